#include "index/indexer.h"

#include <math.h>

#include "base/checked.h"
#include "index/candidates.h"

/* Scores of one tile of rows are kept at a time, so that a long context does not need a rows x
 * entries matrix. */
#define TILE_FLOATS ((size_t)4 << 20)

static size_t score_stride(const kvi_plan_row *row, uint64_t n_entries)
{
    if (row->candidates != KVCSA_CANDIDATES_CONSUMER)
        return n_entries;
    /* whole blocks: the last one may reach behind the newest entry */
    return kvi_min_size(row->candidate_blocks,
                        kvi_div_up(n_entries, row->candidate_block_entries)) *
           row->candidate_block_entries;
}

size_t kvi_select_scratch(const kvi_plan_row *row, uint64_t n_entries, size_t n_rows)
{
    const size_t stride = kvi_max_size(score_stride(row, n_entries), 1);

    return stride * kvi_max_size(1, kvi_min_size(n_rows, TILE_FLOATS / stride));
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

/* A row whose visible entries are all selected needs no scores; rows see more and more, so these
 * rows come first. A consumer's candidate blocks are then all that there are: its source has the
 * same limits. */
static bool sees_all(const kvi_select_params *p, size_t i)
{
    const uint64_t n = p->visible[i];

    if (n > entries_to_select(p) || (n && hides(p)))
        return false;
    return p->row->candidates == KVCSA_CANDIDATES_NONE ||
           kvi_div_up(n, p->row->candidate_block_entries) <= blocks_to_keep(p);
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

    if (n && row->candidates == KVCSA_CANDIDATES_SOURCE)
        st = kvi_candidates_publish(&p->exec, row, n_blocks, NULL, 0, p->n_visible, p->blocks,
                                    p->n_blocks, n, err);
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
                                    .rows_per_block = p->keys.owner->rows_per_block};

    return p->exec.ops->tally(p->exec.dev, &tally, err);
}

static void count_keys(kvcsa_work *w, const kvi_kv_owner *owner, uint64_t n_keys, uint64_t n_parts)
{
    w->n_keys_scored += n_keys;
    w->n_blocks_touched += n_parts;
    w->index_read_bytes += n_keys * owner->index_row_bytes;
    w->read_bytes += n_keys * owner->index_row_bytes;
}

/* Rows first.. were scored. */
static kvcsa_status count_rows(const kvi_select_params *p, size_t first, kvcsa_error *err)
{
    const kvi_kv_owner *owner = p->keys.owner;

    if (!p->work || first == p->n_rows)
        return KVCSA_OK;
    p->work->n_selections += p->n_rows - first;
    for (size_t i = first; i < p->n_rows && p->row->candidates != KVCSA_CANDIDATES_CONSUMER; i++)
        count_keys(p->work, owner, p->visible[i], kvi_div_up(p->visible[i], owner->rows_per_block));
    return p->row->candidates == KVCSA_CANDIDATES_NONE ? KVCSA_OK : tally_blocks(p, first, err);
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

/* Score and select rows first..first+n-1. */
static kvcsa_status select_tile(const kvi_select_params *p, size_t first, size_t n, size_t stride,
                                kvcsa_error *err)
{
    const kvi_plan_row *row = p->row;
    const bool          consumer = row->candidates == KVCSA_CANDIDATES_CONSUMER;
    const size_t        per_row = (size_t)row->index_heads * row->index_width;
    const int32_t      *blocks = consumer ? p->blocks + first * row->candidate_blocks : NULL;
    const uint32_t     *n_blocks = consumer ? p->n_blocks + first : NULL;
    const kvi_index_score_params score = {.keys = p->keys,
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
                                          .block_entries = row->candidate_block_entries};
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
                                         .k = entries_to_select(p)};
    kvcsa_status                 st = p->exec.ops->index_score(p->exec.dev, &score, err);

    if (st == KVCSA_OK && hides(p))
        st = hide(p, &topk, err);
    if (st == KVCSA_OK && row->candidates == KVCSA_CANDIDATES_SOURCE)
        st = kvi_candidates_publish(&p->exec, row, blocks_to_keep(p), p->scores, stride,
                                    p->n_visible + first, p->blocks + first * row->candidate_blocks,
                                    p->n_blocks + first, n, err);
    return st != KVCSA_OK ? st : p->exec.ops->topk(p->exec.dev, &topk, err);
}

/* For the tap: scores of all visible entries, row by row, whatever limits the selection. */
static kvcsa_status tap_scores(const kvi_select_params *p, kvcsa_error *err)
{
    const kvi_plan_row *row = p->row;
    const size_t        per_row = (size_t)row->index_heads * row->index_width;
    kvcsa_status        st = KVCSA_OK;

    for (size_t i = 0; i < p->n_rows && st == KVCSA_OK; i++) {
        const kvi_index_score_params score = {.keys = p->keys,
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

kvcsa_status kvi_select(const kvi_select_params *p, kvcsa_error *err)
{
    enum { MAX_TILE_ROWS = 64 }; /* scores stay in a cache where contexts are short */
    const bool   nothing = p->limits && p->limits->window_only;
    kvcsa_status st;
    size_t       i = nothing ? p->n_rows : 0;
    size_t       first;

    while (i < p->n_rows && sees_all(p, i))
        i++;
    first = i;
    st = select_first(p, first, nothing ? 0 : entries_to_select(p), nothing ? 0 : blocks_to_keep(p),
                      err);
    if (st == KVCSA_OK && (first < p->n_rows || p->exec.tap))
        st = encode_queries(p, err);
    if (st == KVCSA_OK && p->exec.tap)
        st = tap_scores(p, err);
    while (i < p->n_rows && st == KVCSA_OK) {
        const size_t stride = kvi_max_size(score_stride(p->row, p->visible[p->n_rows - 1]), 1);
        const size_t fit = kvi_max_size(1, p->n_scores / stride);
        const size_t n = kvi_min_size(kvi_min_size(p->n_rows - i, fit), MAX_TILE_ROWS);

        st = select_tile(p, i, n, stride, err);
        i += n;
    }
    if (st == KVCSA_OK)
        st = count_rows(p, first, err);
    kvi_exec_tap(&p->exec, KVI_TAP_TOPK, p->ids, p->n_rows, p->row->select_entries);
    return st;
}
