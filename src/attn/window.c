#include "attn/window.h"

#include "base/checked.h"
#include "base/status.h"

/* What the plan asks for, over all layers. */
typedef struct demand {
    uint32_t widest;     /* window, tokens */
    uint32_t ratio;      /* the smallest of an owner with raw rows */
    uint64_t row_bytes;  /* one position in every layer */
    uint64_t slot_bytes; /* one raw row of every owner */
} demand;

static demand sum_up(const kvi_plan *plan)
{
    demand d = {0};

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *r = &plan->rows[l];

        if (r->window_tokens > d.widest)
            d.widest = r->window_tokens;
        if (r->pending_bytes && (d.ratio == 0 || r->ratio < d.ratio))
            d.ratio = r->ratio;
        d.row_bytes += r->window_bytes;
        d.slot_bytes += r->pending_bytes;
    }
    return d;
}

kvcsa_status kvi_window_geom_init(kvi_window_geom *g, const kvi_plan *plan, uint32_t slack_tokens,
                                  kvcsa_error *err)
{
    const uint64_t limit = (uint64_t)1 << 31;
    const demand   d = sum_up(plan);
    uint32_t       page_rows = 16;
    uint64_t       n_pages;
    uint64_t       n_slots;

    *g = (kvi_window_geom){.page_rows = 1};
    while (d.widest % page_rows)
        page_rows /= 2;
    n_pages = d.widest ? d.widest / page_rows + kvi_div_up(slack_tokens, page_rows) : 0;
    n_slots = d.ratio ? slack_tokens / d.ratio + 1 : 0;
    if (n_pages * page_rows >= limit)
        return kvi_fail(err, KVCSA_ERR_LIMIT, "slack_tokens is %u, limit %llu with a window of %u",
                        slack_tokens, (unsigned long long)(limit - d.widest - page_rows), d.widest);
    if (page_rows * d.row_bytes > limit || n_slots * d.slot_bytes > limit)
        return kvi_fail(err, KVCSA_ERR_LIMIT,
                        "slack_tokens is %u: %llu bytes of window rows and %llu of raw rows in a "
                        "page, limit %llu",
                        slack_tokens, (unsigned long long)(page_rows * d.row_bytes),
                        (unsigned long long)(n_slots * d.slot_bytes), (unsigned long long)limit);
    g->page_rows = page_rows;
    g->n_pages = (uint32_t)n_pages;
    g->page_bytes = (uint32_t)(n_pages ? page_rows * d.row_bytes : 0);
    g->pending_slots = (uint32_t)n_slots;
    g->pending_bytes = (uint32_t)(n_slots * d.slot_bytes);
    return KVCSA_OK;
}

/* Neighbours inside a page are copied together. */
void kvi_window_commit(kvi_copies *copies, const kvi_memory *m, const kvi_window_geom *g,
                       uint32_t row_bytes, size_t page_off, uint8_t *const *pages,
                       const uint8_t *rows, uint64_t pos, size_t n_rows)
{
    const size_t   n_kept = kvi_window_kept(g, n_rows);
    const uint64_t end = pos + n_rows;
    uint64_t       p = end - n_kept;

    rows += (n_rows - n_kept) * row_bytes;
    while (p < end) {
        const uint32_t row = (uint32_t)(p % kvi_window_ring_rows(g)) % g->page_rows;
        const size_t   n = kvi_min_size(g->page_rows - row, (size_t)(end - p));

        kvi_copies_add(copies, m,
                       pages[kvi_window_page_of(g, p)] + page_off + (size_t)row * row_bytes, rows,
                       n * row_bytes);
        rows += n * row_bytes;
        p += n;
    }
}
