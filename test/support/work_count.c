#include "support/work_count.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t div_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

void work_plan_init(work_plan *p, const kvcsa_model *model)
{
    kvcsa_model_info info = {.struct_size = sizeof info};

    if (kvcsa_model_get_info(model, &info, NULL) != KVCSA_OK)
        abort();
    *p = (work_plan){.n_layers = info.n_layers,
                     .block_tokens = info.block_tokens,
                     .n_experts = info.n_experts_per_token,
                     .rows = calloc(info.n_layers, sizeof *p->rows)};
    for (uint32_t l = 0; l < p->n_layers; l++) {
        p->rows[l].struct_size = sizeof *p->rows;
        if (kvcsa_model_plan_row(model, l, &p->rows[l], NULL) != KVCSA_OK)
            abort();
    }
}

/* ------------------------------------------------------------------ one row */

/* Blocks that are candidates of m entries, and the entries in them. */
static uint64_t candidates_of(const kvcsa_plan_row *r, uint64_t m, uint64_t n_keep,
                              uint64_t *n_entries)
{
    const uint64_t e = r->candidate_block_entries;
    const uint64_t all = div_up(m, e);
    const uint64_t n = min_u64(all, n_keep);

    *n_entries = n == all ? m : n * e - (all * e - m);
    return n;
}

work_pick work_pick_of(const work_plan *p, uint32_t layer, uint64_t pos, const work_limits *limits)
{
    const kvcsa_plan_row *r = &p->rows[layer];
    const uint64_t        k = limits->select_entries ? limits->select_entries : r->select_entries;
    const uint64_t        b =
        limits->candidate_blocks ? limits->candidate_blocks : r->candidate_blocks;
    const uint64_t m = (pos + 1) / r->ratio;
    uint64_t       reach = m;
    uint64_t       n_blocks = 0;
    work_pick      pick = {0};

    if (limits->window_only)
        return pick;
    if (r->candidates != KVCSA_CANDIDATES_NONE)
        n_blocks = candidates_of(r, m, b, &reach);
    pick.scored = m > k || reach < m;
    if (r->candidates != KVCSA_CANDIDATES_CONSUMER)
        reach = m; /* a source looks at all of them */
    pick.n_ids = min_u64(k, reach);
    if (!pick.scored)
        return pick;
    pick.n_keys = reach;
    pick.n_candidates = n_blocks;
    if (r->candidates != KVCSA_CANDIDATES_CONSUMER)
        pick.index_parts = div_up(m, p->block_tokens / r->ratio);
    return pick;
}

uint64_t work_count_parts(const int32_t *ids, uint64_t n, uint32_t rows)
{
    uint64_t parts = 0;

    for (uint64_t i = 0; i < n; i++)
        parts += i == 0 || (uint32_t)ids[i] / rows != (uint32_t)ids[i - 1] / rows;
    return parts;
}

/* The selection that a row of a layer uses. */
static work_pick pick_for(const work_plan *p, const work_forward *f, uint32_t layer, uint64_t pos)
{
    const uint32_t owner = (uint32_t)p->rows[layer].select_owner;
    const uint64_t at = pos - f->first_pick;

    return f->picks && pos >= f->first_pick && at < f->n_picks
               ? f->picks[owner * f->n_picks + at]
               : work_pick_of(p, owner, pos, &f->limits);
}

static void add_query(const work_plan *p, const work_forward *f, uint32_t layer, uint64_t pos,
                      kvcsa_work *w)
{
    const kvcsa_plan_row *r = &p->rows[layer];
    const uint64_t        floor = max_u64(f->floors ? f->floors[layer] : 0,
                                          f->first ? f->first[layer] : 0);
    const uint64_t        n_window = min_u64(r->window_tokens, pos + 1 - min_u64(floor, pos + 1));
    work_pick             pick;

    w->n_rows++;
    w->n_experts += p->n_experts;
    w->n_window_rows_read += n_window;
    w->read_bytes += n_window * r->window_bytes;
    if (!r->ratio)
        return;
    pick = pick_for(p, f, layer, pos);
    w->n_entries_read += pick.n_ids;
    w->n_blocks_touched += pick.main_parts;
    w->read_bytes += pick.n_ids * p->rows[r->kv_owner].entry_bytes;
    if (r->select_owner != (int32_t)layer || !pick.scored)
        return;
    w->n_selections++;
    w->n_keys_scored += pick.n_keys;
    w->n_candidate_blocks += pick.n_candidates;
    w->n_blocks_touched += pick.index_parts;
    w->index_read_bytes += pick.n_keys * p->rows[r->kv_owner].index_bytes;
    w->read_bytes += pick.n_keys * p->rows[r->kv_owner].index_bytes;
}

/* ------------------------------------------------------------------ what is written */

static uint64_t multiples_below(uint64_t n, uint64_t ratio)
{
    return div_up(n, ratio);
}

/* Rows [begin, end) of one layer, of one chunk. */
static void add_written(const work_plan *p, const work_forward *f, uint32_t layer, uint64_t begin,
                        uint64_t end, kvcsa_work *w)
{
    const kvcsa_plan_row *r = &p->rows[layer];
    uint64_t              n_raw;
    uint64_t              n_entries;

    if (begin >= end)
        return;
    w->n_window_rows_written += end - begin;
    w->n_replayed_rows += f->replay ? end - begin : 0;
    w->written_bytes += (end - begin) * r->window_bytes;
    if (r->kv_owner != (int32_t)layer)
        return;
    n_entries = f->replay ? 0 : end / r->ratio - begin / r->ratio;
    w->n_entries_written += n_entries;
    w->written_bytes += n_entries * (r->entry_bytes + r->index_bytes);
    if (!r->pending_bytes)
        return;
    /* raw rows of tokens that begin an entry: the last ones of a chunk */
    n_raw = multiples_below(end, r->ratio) - multiples_below(begin, r->ratio);
    w->written_bytes += min_u64(n_raw, f->n_slots ? f->n_slots : 1) * r->pending_bytes;
}

void work_add_forward(const work_plan *p, const work_forward *f, kvcsa_work *layers)
{
    for (uint64_t begin = f->begin; begin < f->end; begin += f->chunk) {
        const uint64_t end = min_u64(begin + f->chunk, f->end);

        for (uint32_t l = 0; l < p->n_layers; l++) {
            const uint64_t window = f->first ? max_u64(begin, f->first[l]) : begin;
            const uint64_t query = f->first ? max_u64(begin, f->first[l + 1]) : begin;

            add_written(p, f, l, window, end, &layers[l]);
            for (uint64_t pos = max_u64(window, query); pos < end; pos++)
                add_query(p, f, l, pos, &layers[l]);
        }
    }
}

/* ------------------------------------------------------------------ sums and comparing */

uint32_t work_group(const work_plan *p, uint32_t layer)
{
    const kvcsa_plan_row *r = &p->rows[layer];

    if (!r->ratio)
        return KVCSA_LAYERS_WINDOW;
    if (r->kv_owner == (int32_t)layer)
        return KVCSA_LAYERS_FULL;
    return r->select_owner == (int32_t)layer ? KVCSA_LAYERS_REINDEX : KVCSA_LAYERS_REUSE;
}

/* name, and whether a mask leaves it out */
#define WORK_FIELDS(X)                                                                             \
    X(n_rows, 0)                                                                                   \
    X(n_replayed_rows, 0)                                                                          \
    X(n_selections, 0)                                                                             \
    X(n_keys_scored, 0)                                                                            \
    X(n_candidate_blocks, 0)                                                                       \
    X(n_entries_read, 0)                                                                           \
    X(n_window_rows_read, 0)                                                                       \
    X(n_entries_written, 0)                                                                        \
    X(n_window_rows_written, 0)                                                                    \
    X(n_blocks_touched, WORK_BUT_PARTS)                                                            \
    X(n_experts, 0)                                                                                \
    X(read_bytes, 0)                                                                               \
    X(index_read_bytes, 0)                                                                         \
    X(written_bytes, WORK_BUT_WRITTEN)                                                             \
    X(reserved[0], 0)                                                                              \
    X(reserved[1], 0)

void work_add(kvcsa_work *to, const kvcsa_work *from)
{
#define ADD(field, mask) to->field += from->field;
    WORK_FIELDS(ADD)
#undef ADD
}

const char *work_differs(const kvcsa_work *got, const kvcsa_work *want, uint32_t but)
{
    static char text[128];

#define COMPARE(field, mask)                                                                       \
    if (!(but & (mask)) && got->field != want->field) {                                            \
        snprintf(text, sizeof text, #field " is %llu, not %llu", (unsigned long long)got->field,   \
                 (unsigned long long)want->field);                                                 \
        return text;                                                                               \
    }
    WORK_FIELDS(COMPARE)
#undef COMPARE
    return NULL;
}

uint64_t work_released_read_bytes(uint64_t n)
{
    return 68 * (5 * n / 2 + 4 * min_u64(n, 16384)) +
           288 * (18 * min_u64(n / 2, 512) + 20 * min_u64(n, 512)) +
           (uint64_t)528 * 40 * min_u64(n, 128);
}
