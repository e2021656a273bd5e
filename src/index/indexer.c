#include "index/indexer.h"

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
 * rows come first. */
static bool sees_all(const kvi_select_params *p, size_t i)
{
    const uint64_t n = p->n_visible[i];

    if (n > entries_to_select(p) || (n && hides(p)))
        return false;
    if (p->row->candidates == KVCSA_CANDIDATES_NONE)
        return true;
    if (p->row->candidates == KVCSA_CANDIDATES_SOURCE)
        return kvi_div_up(n, p->row->candidate_block_entries) <= blocks_to_keep(p);
    return kvi_div_up(n, p->row->candidate_block_entries) == p->n_blocks[i];
}

/* The first n entries of row i, which are all that it sees; or none. */
static void select_first(const kvi_select_params *p, size_t i, uint64_t n)
{
    int32_t *ids = p->ids + i * p->row->select_entries;

    for (uint32_t k = 0; k < p->row->select_entries; k++)
        ids[k] = k < n ? (int32_t)k : -1;
    if (p->row->candidates == KVCSA_CANDIDATES_SOURCE)
        p->n_blocks[i] = kvi_candidates_all(p->row, n, p->blocks + i * p->row->candidate_blocks);
}

/* ------------------------------------------------------------------ counts */

/* Keys that row i scores among its candidate blocks, and the cache blocks they lie in. */
static uint64_t count_candidates(const kvi_select_params *p, size_t i, uint64_t *n_parts)
{
    const uint64_t each = p->row->candidate_block_entries;
    const uint64_t per_part = p->keys.owner->rows_per_block;
    const int32_t *blocks = p->blocks + i * p->row->candidate_blocks;
    uint64_t       n_keys = 0;
    uint64_t       next = 0; /* first cache block that has not been counted */

    for (uint32_t b = 0; b < p->n_blocks[i]; b++) {
        const uint64_t first = (uint64_t)blocks[b] * each;
        const uint64_t end = kvi_min_size(first + each, p->n_visible[i]);
        const uint64_t from = kvi_max_size(first / per_part, next);

        n_keys += end - first;
        next = (end - 1) / per_part + 1;
        *n_parts += next - from;
    }
    return n_keys;
}

static void count_row(const kvi_select_params *p, size_t i)
{
    const int consumer = p->row->candidates == KVCSA_CANDIDATES_CONSUMER;
    uint64_t  n_parts = 0;
    uint64_t  n_keys = p->n_visible[i];

    if (!p->work)
        return;
    if (consumer)
        n_keys = count_candidates(p, i, &n_parts);
    else
        n_parts = kvi_div_up(n_keys, p->keys.owner->rows_per_block);
    if (p->row->candidates != KVCSA_CANDIDATES_NONE)
        p->work->n_candidate_blocks += p->n_blocks[i];
    p->work->n_selections++;
    p->work->n_keys_scored += n_keys;
    p->work->n_blocks_touched += n_parts;
    p->work->index_read_bytes += n_keys * p->keys.owner->index_row_bytes;
    p->work->read_bytes += n_keys * p->keys.owner->index_row_bytes;
}

/* ------------------------------------------------------------------ rows that are scored */

/* Hidden entries lose: nothing selects -inf. */
static kvcsa_status hide(const kvi_select_params *p, const kvi_topk_params *of, kvcsa_error *err)
{
    const kvi_hide_params h = {.scores = p->scores,
                               .n_scores = of->n_scores,
                               .blocks = of->blocks,
                               .hidden = p->limits->hidden,
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
                                uint64_t *n_scores, kvcsa_error *err)
{
    const kvi_plan_row *row = p->row;
    const bool          consumer = row->candidates == KVCSA_CANDIDATES_CONSUMER;
    const size_t        per_row = (size_t)row->index_heads * row->index_width;
    const int32_t      *blocks = consumer ? p->blocks + first * row->candidate_blocks : NULL;
    const kvi_index_score_params score = {.keys = p->keys,
                                          .codes = p->codes + first * per_row,
                                          .scales = p->scales + first * (per_row / 32),
                                          .weights = p->weights + first * row->index_heads,
                                          .n_visible = p->n_visible + first,
                                          .blocks = blocks,
                                          .n_blocks = p->n_blocks ? p->n_blocks + first : NULL,
                                          .scores = p->scores,
                                          .scores_stride = stride,
                                          .blocks_stride = row->candidate_blocks,
                                          .n_rows = n,
                                          .n_heads = row->index_heads,
                                          .block_entries = row->candidate_block_entries};
    const kvi_topk_params        topk = {.scores = p->scores,
                                         .n_scores = n_scores,
                                         .blocks = blocks,
                                         .ids = p->ids + first * row->select_entries,
                                         .scores_stride = stride,
                                         .blocks_stride = row->candidate_blocks,
                                         .ids_stride = row->select_entries,
                                         .n_rows = n,
                                         .block_entries = row->candidate_block_entries,
                                         .k = entries_to_select(p)};
    kvcsa_status                 st = p->exec.ops->index_score(p->exec.dev, &score, err);

    for (size_t i = 0; i < n; i++)
        n_scores[i] = consumer ? (uint64_t)p->n_blocks[first + i] * row->candidate_block_entries
                               : p->n_visible[first + i];
    if (st == KVCSA_OK && hides(p))
        st = hide(p, &topk, err);
    if (st == KVCSA_OK && row->candidates == KVCSA_CANDIDATES_SOURCE)
        st = kvi_candidates_publish(&p->exec, row, blocks_to_keep(p), p->scores, stride,
                                    p->n_visible + first,
                                    p->blocks + first * row->candidate_blocks, p->n_blocks + first,
                                    n, err);
    for (size_t i = 0; i < n && st == KVCSA_OK; i++)
        count_row(p, first + i);
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
            kvi_exec_tap(&p->exec, KVI_TAP_SCORE, p->scores, 1, p->n_visible[i]);
    }
    return st;
}

kvcsa_status kvi_select(const kvi_select_params *p, kvcsa_error *err)
{
    enum { MAX_TILE_ROWS = 64 };
    uint64_t                     n_scores[MAX_TILE_ROWS];
    kvcsa_status                 st = KVCSA_OK;
    size_t                       i = 0;
    const kvi_index_query_params query = {.x = p->queries,
                                          .codes = p->codes,
                                          .scales = p->scales,
                                          .n_rows = p->n_rows,
                                          .n_heads = p->row->index_heads,
                                          .width = p->row->index_width};

    if (p->limits && p->limits->window_only)
        while (i < p->n_rows)
            select_first(p, i++, 0);
    while (i < p->n_rows && sees_all(p, i)) {
        select_first(p, i, p->n_visible[i]);
        i++;
    }
    if (i < p->n_rows || p->exec.tap)
        st = p->exec.ops->index_query(p->exec.dev, &query, err);
    if (st == KVCSA_OK && p->exec.tap)
        st = tap_scores(p, err);
    while (i < p->n_rows && st == KVCSA_OK) {
        const size_t stride = kvi_max_size(score_stride(p->row, p->n_visible[p->n_rows - 1]), 1);
        const size_t fit = kvi_max_size(1, p->n_scores / stride);
        const size_t n = kvi_min_size(kvi_min_size(p->n_rows - i, fit), MAX_TILE_ROWS);

        st = select_tile(p, i, n, stride, n_scores, err);
        i += n;
    }
    kvi_exec_tap(&p->exec, KVI_TAP_TOPK, p->ids, p->n_rows, p->row->select_entries);
    return st;
}
