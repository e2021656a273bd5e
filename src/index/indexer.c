#include "index/indexer.h"

#include <math.h>

#include "base/checked.h"

/* Scores of one tile of rows are kept at a time, so that a long context does not need a rows x
 * entries matrix. A device takes more of them in a launch. */
#define TILE_FLOATS  ((size_t)4 << 20)
#define APART_FLOATS ((size_t)16 << 20)

/* So that a step has the launches of the one before, a device is asked for powers of two. */
static uint64_t round_entries(uint64_t n_entries, bool apart)
{
    uint64_t n = 1024;

    while (apart && n < n_entries)
        n *= 2;
    return apart ? n : n_entries;
}

static size_t score_stride(const kvi_plan_row *row, uint64_t n_entries, bool apart)
{
    const uint64_t n = round_entries(n_entries, apart);

    if (row->candidates != KVCSA_CANDIDATES_CONSUMER)
        return kvi_max_size(n, 1);
    /* whole blocks: the last one may reach behind the newest entry */
    return kvi_max_size(kvi_min_size(row->candidate_blocks,
                                     kvi_div_up(n, row->candidate_block_entries)) *
                            row->candidate_block_entries,
                        1);
}

/* Maxima of the blocks of a row, which lie behind the scores of all rows of a tile. */
static size_t max_stride(const kvi_plan_row *row, size_t stride)
{
    return row->candidates == KVCSA_CANDIDATES_SOURCE
               ? kvi_div_up(stride, row->candidate_block_entries)
               : 0;
}

size_t kvi_select_scratch(const kvi_plan_row *row, uint64_t n_entries, size_t n_rows, bool apart)
{
    const size_t stride = score_stride(row, n_entries, apart);
    const size_t all = stride + max_stride(row, stride);

    return all * kvi_max_size(1, kvi_min_size(n_rows, (apart ? APART_FLOATS : TILE_FLOATS) / all));
}

static uint32_t entries_to_select(const kvi_select_params *p)
{
    const uint32_t own = p->limits ? p->limits->select_entries : 0;

    return own ? own : p->row->select_entries;
}

static uint32_t blocks_to_keep(const kvi_select_params *p)
{
    const uint32_t own = p->limits ? p->limits->candidate_blocks : 0;

    return own ? own : p->row->candidate_blocks;
}

static bool hides(const kvi_select_params *p)
{
    return p->limits && (p->limits->n_hidden || p->limits->rest_hidden);
}

int kvi_select_is_limited(const kvi_select_limits *l)
{
    return l && (l->select_entries || l->candidate_blocks || l->window_only || l->n_hidden ||
                 l->rest_hidden);
}

/* A row that sees no more has all of it selected and needs no scores. A consumer's candidate blocks
 * are then all that there are: its source has the same limits. */
static uint64_t sees_all(const kvi_select_params *p)
{
    const uint64_t blocks = (uint64_t)blocks_to_keep(p) * p->row->candidate_block_entries;

    if (hides(p))
        return 0;
    return p->row->candidates == KVCSA_CANDIDATES_NONE
               ? entries_to_select(p)
               : kvi_min_size(entries_to_select(p), blocks);
}

/* Rows from the first on that are not scored. In a slice rows see more and more; of several slices
 * it is all rows, or operators look at each. */
static size_t unscored_rows(const kvi_select_params *p)
{
    size_t i = 0;

    if (p->limits && p->limits->window_only)
        return p->n_rows;
    while (i < p->n_rows && p->visible[i] <= sees_all(p))
        i++;
    return i == p->n_rows || p->of.each == p->n_rows ? i : 0;
}

/* The first n rows take the first k entries that they see, and the first blocks. */
static kvcsa_status select_first(const kvi_select_params *p, size_t n, uint32_t k,
                                 uint32_t n_blocks, kvcsa_error *err)
{
    const kvi_plan_row   *row = p->row;
    const kvi_topk_params topk = {.n_scores = p->n_visible,
                                  .ids = p->ids,
                                  .ids_stride = row->select_entries,
                                  .n_rows = n,
                                  .k = k};
    kvcsa_status          st = KVCSA_OK;
    const kvi_candidates_params publish = {.n_visible = p->n_visible,
                                           .blocks = p->blocks,
                                           .n_blocks = p->n_blocks,
                                           .blocks_stride = row->candidate_blocks,
                                           .n_rows = n,
                                           .block_entries = row->candidate_block_entries,
                                           .n_keep = n_blocks};

    if (n && row->candidates == KVCSA_CANDIDATES_SOURCE)
        st = p->exec.ops->candidates(p->exec.dev, &publish, err);
    return n && st == KVCSA_OK ? p->exec.ops->topk(p->exec.dev, &topk, err) : st;
}

/* ------------------------------------------------------------------ counts */

/* Candidate blocks, and what they hold, are known to operators only. */
static kvcsa_status tally_blocks(const kvi_select_params *p, size_t first, kvcsa_error *err)
{
    const uint32_t         stride = p->row->candidate_blocks;
    const kvi_tally_params tally = {.items = p->blocks + first * stride,
                                    .n_visible = p->n_visible + first,
                                    .counts = p->tally,
                                    .stride = stride,
                                    .n_rows = p->n_rows - first,
                                    .n_items = stride,
                                    .each = p->row->candidate_block_entries,
                                    .rows_per_block = p->owner->rows_per_block,
                                    .all = first ? 0 : sees_all(p),
                                    .rows_each = p->of.each,
                                    .counts_stride = p->tally_stride};

    return p->exec.ops->tally(p->exec.dev, &tally, err);
}

static void count_keys(kvcsa_work *w, const kvi_kv_owner *owner, uint64_t n_keys, uint64_t n_parts)
{
    w->n_keys_scored += n_keys;
    w->n_blocks_touched += n_parts;
    w->index_read_bytes += n_keys * owner->index_row_bytes;
    w->read_bytes += n_keys * owner->index_row_bytes;
}

/* Rows from first on were scored, but for those that see all. */
static kvcsa_status count_rows(const kvi_select_params *p, size_t first, kvcsa_error *err)
{
    bool counted = false;

    for (size_t i = first; i < p->n_rows; i++) {
        kvcsa_work    *w = p->work[i / p->of.each];
        const uint64_t n = p->visible[i];

        if (!w || (first == 0 && n <= sees_all(p)))
            continue;
        counted = true;
        w->n_selections++;
        if (p->row->candidates != KVCSA_CANDIDATES_CONSUMER)
            count_keys(w, p->owner, n, kvi_div_up(n, p->owner->rows_per_block));
    }
    return counted && p->row->candidates != KVCSA_CANDIDATES_NONE ? tally_blocks(p, first, err)
                                                                  : KVCSA_OK;
}

void kvi_select_add_tally(const kvi_plan_row *row, const kvi_kv_owner *owner,
                          const uint64_t tally[3], kvcsa_work *work)
{
    work->n_candidate_blocks += tally[0];
    if (row->candidates == KVCSA_CANDIDATES_CONSUMER)
        count_keys(work, owner, tally[1], tally[2]);
}

/* ------------------------------------------------------------------ rows that are scored */

/* Hidden entries lose: nothing selects -inf. */
static kvcsa_status hide(const kvi_select_params *p, const kvi_topk_params *of, kvcsa_error *err)
{
    const kvi_hide_params h = {.scores = p->scores,
                               .n_scores = of->n_scores,
                               .blocks = of->blocks,
                               .n_blocks = of->n_blocks,
                               .hidden = p->hidden,
                               .n_hidden = p->limits->n_hidden,
                               .scores_stride = of->scores_stride,
                               .blocks_stride = of->blocks_stride,
                               .n_rows = of->n_rows,
                               .block_entries = of->block_entries,
                               .span_entries = p->limits->span_tokens / p->row->ratio,
                               .rest_hidden = p->limits->rest_hidden ? 1u : 0u};

    return p->exec.ops->hide(p->exec.dev, &h, err);
}

/* Whose rows [first, first + n) are: whole slices, or some of one. */
static kvi_slices slices_from(const kvi_select_params *p, size_t first, size_t n)
{
    return (kvi_slices){.slices = p->of.slices + first / p->of.each,
                        .rows = p->of.rows,
                        .each = first % p->of.each == 0 && n >= p->of.each ? p->of.each : n};
}

/* Score and select rows [first, first + n). */
static kvcsa_status select_tile(const kvi_select_params *p, size_t first, size_t n, size_t stride,
                                kvcsa_error *err)
{
    const kvi_plan_row *row = p->row;
    const bool          consumer = row->candidates == KVCSA_CANDIDATES_CONSUMER;
    const bool          source = row->candidates == KVCSA_CANDIDATES_SOURCE;
    const kvi_slices    of = slices_from(p, first, n);
    const uint64_t      all = p->of.each < p->n_rows ? sees_all(p) : 0;
    float              *maxima = source && !hides(p) ? p->scores + n * stride : NULL;
    const size_t        per_row = (size_t)row->index_heads * row->index_width;
    const int32_t      *blocks = consumer ? p->blocks + first * row->candidate_blocks : NULL;
    const uint32_t     *n_blocks = consumer ? p->n_blocks + first : NULL;
    const kvi_index_score_params score = {.keys = {.owner = p->owner},
                                          .codes = p->codes + first * per_row,
                                          .scales = p->scales + first * (per_row / 32),
                                          .weights = p->weights + first * row->index_heads,
                                          .n_visible = p->n_visible + first,
                                          .blocks = blocks,
                                          .n_blocks = n_blocks,
                                          .scores = p->scores,
                                          .scores_stride = stride,
                                          .blocks_stride = row->candidate_blocks,
                                          .n_rows = n,
                                          .n_heads = row->index_heads,
                                          .block_entries = row->candidate_block_entries,
                                          .all = all,
                                          .of = of,
                                          .block_max = maxima,
                                          .max_stride = max_stride(row, stride)};
    const kvi_topk_params        topk = {.scores = p->scores,
                                         .n_scores = consumer ? NULL : p->n_visible + first,
                                         .blocks = blocks,
                                         .n_blocks = n_blocks,
                                         .ids = p->ids + first * row->select_entries,
                                         .scores_stride = stride,
                                         .blocks_stride = row->candidate_blocks,
                                         .ids_stride = row->select_entries,
                                         .n_rows = n,
                                         .block_entries = row->candidate_block_entries,
                                         .k = entries_to_select(p),
                                         .all = all,
                                         .n_visible = all ? p->n_visible + first : NULL};
    const kvi_candidates_params  publish = {.scores = p->scores,
                                            .n_visible = p->n_visible + first,
                                            .blocks = p->blocks + first * row->candidate_blocks,
                                            .n_blocks = p->n_blocks + first,
                                            .scores_stride = stride,
                                            .blocks_stride = row->candidate_blocks,
                                            .n_rows = n,
                                            .block_entries = row->candidate_block_entries,
                                            .n_keep = blocks_to_keep(p),
                                            .all = all,
                                            .block_max = maxima,
                                            .max_stride = max_stride(row, stride)};
    kvcsa_status                 st = p->exec.ops->index_score(p->exec.dev, &score, err);

    if (st == KVCSA_OK && hides(p))
        st = hide(p, &topk, err);
    if (st == KVCSA_OK && source)
        st = p->exec.ops->candidates(p->exec.dev, &publish, err);
    return st != KVCSA_OK ? st : p->exec.ops->topk(p->exec.dev, &topk, err);
}

/* For the tap: scores of all visible entries, row by row, whatever limits the selection. */
static kvcsa_status tap_scores(const kvi_select_params *p, kvcsa_error *err)
{
    const kvi_plan_row *row = p->row;
    const size_t        per_row = (size_t)row->index_heads * row->index_width;
    kvcsa_status        st = KVCSA_OK;

    for (size_t i = 0; i < p->n_rows && st == KVCSA_OK; i++) {
        const kvi_index_score_params score = {.keys = {.owner = p->owner},
                                              .of = slices_from(p, i, 1),
                                              .codes = p->codes + i * per_row,
                                              .scales = p->scales + i * (per_row / 32),
                                              .weights = p->weights + i * row->index_heads,
                                              .n_visible = p->n_visible + i,
                                              .scores = p->scores,
                                              .scores_stride = p->n_scores,
                                              .n_rows = 1,
                                              .n_heads = row->index_heads};

        st = p->exec.ops->index_score(p->exec.dev, &score, err);
        if (st == KVCSA_OK)
            kvi_exec_tap(&p->exec, KVI_TAP_SCORE, p->scores, 1, p->visible[i]);
    }
    return st;
}

static kvcsa_status encode_queries(const kvi_select_params *p, kvcsa_error *err)
{
    const kvi_plan_row *row = p->row;
    const float         scale =
        (float)(1.0 / sqrt((double)row->index_width) / sqrt((double)row->index_heads));
    const kvi_index_query_params query = {.x = p->queries,
                                          .codes = p->codes,
                                          .scales = p->scales,
                                          .weights = p->weights,
                                          .n_rows = p->n_rows,
                                          .n_heads = row->index_heads,
                                          .width = row->index_width,
                                          .weight_scale = scale,
                                          .flags = p->exec.flags};

    return p->exec.ops->index_query(p->exec.dev, &query, err);
}

/* Rows that go through scratch together, from row i on; stride: of their scores. */
static size_t rows_of_tile(const kvi_select_params *p, size_t i, size_t stride)
{
    enum { MAX_TILE_ROWS = 64 }; /* scores stay in a cache where contexts are short */
    const kvi_memory m = kvi_exec_memory(&p->exec);
    const size_t     each = p->of.each;
    size_t           fit = kvi_max_size(1, p->n_scores / (stride + max_stride(p->row, stride)));

    if (!kvi_memory_is_apart(&m))
        fit = kvi_min_size(fit, MAX_TILE_ROWS);
    if (i % each == 0 && fit >= each)
        return kvi_min_size(p->n_rows - i, fit / each * each);
    return kvi_min_size(each - i % each, fit);
}

kvcsa_status kvi_select(const kvi_select_params *p, kvcsa_error *err)
{
    const kvi_memory m = kvi_exec_memory(&p->exec);
    const bool       nothing = p->limits && p->limits->window_only;
    const size_t     first = unscored_rows(p);
    uint64_t         most = 0;
    size_t           stride;
    size_t           i = first;
    kvcsa_status     st;

    for (size_t r = first; r < p->n_rows; r++)
        most = kvi_max_size(most, p->visible[r]);
    st = select_first(p, first, nothing ? 0 : entries_to_select(p), nothing ? 0 : blocks_to_keep(p),
                      err);
    if (st == KVCSA_OK && (first < p->n_rows || p->exec.tap))
        st = encode_queries(p, err);
    if (st == KVCSA_OK && p->exec.tap)
        st = tap_scores(p, err);
    stride = score_stride(p->row, most, kvi_memory_is_apart(&m));
    while (i < p->n_rows && st == KVCSA_OK) {
        const size_t n = rows_of_tile(p, i, stride);

        st = select_tile(p, i, n, stride, err);
        i += n;
    }
    if (st == KVCSA_OK)
        st = count_rows(p, first, err);
    kvi_exec_tap(&p->exec, KVI_TAP_TOPK, p->ids, p->n_rows, p->row->select_entries);
    return st;
}
