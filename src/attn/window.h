/* Sliding windows: quantised rows of the last tokens of every layer, in a ring of pages, and the
 * raw rows of half-finished entries.
 *
 * A page holds page_rows consecutive positions: the rows of layer 0, then those of layer 1, ...
 * Position p stands in slot s = p % (n_pages * page_rows): row s % page_rows of page s / page_rows.
 * Pages are counted by reference and copied before they are written while somebody else holds them
 * (that is the session's business); a page that was never written is NULL.
 *
 * (W1) The ring holds the rows of the last min(n, ring rows) committed positions; it is not written
 *      while a chunk runs, since queries of the chunk still read rows that the chunk will push out.
 * (W2) Rows of the running chunk lie beside it until the commit, which takes the last ring rows.
 * (W3) Raw rows of a token that begins an entry of an owner with ratio > 1 lie in one more page:
 *      per such owner, ascending layer, pending_slots rows of pending_bytes (k, then gate, f32);
 *      the one of token p in slot (p / ratio) % pending_slots. The last pending_slots of them are
 *      kept, so that a rewind by less than the slack finds the one it needs. */
#ifndef KVI_WINDOW_H
#define KVI_WINDOW_H

#include "backend/exec.h"

typedef struct kvi_window_geom {
    uint32_t page_rows;
    uint32_t n_pages;       /* of the ring; 0 = no layer has a window */
    uint32_t page_bytes;
    uint32_t pending_slots;
    uint32_t pending_bytes; /* of the page of raw rows; 0 = no owner needs one */
} kvi_window_geom;

/* Window of the widest layer plus at least slack_tokens; page_rows is the largest of 16, 8, 4, 2, 1
 * that divides the window, the slack is rounded up to it. ERR_LIMIT: a page of over 2^31 bytes. */
kvcsa_status kvi_window_geom_init(kvi_window_geom *g, const kvi_plan *plan, uint32_t slack_tokens,
                                  kvcsa_error *err);

static inline uint32_t kvi_window_ring_rows(const kvi_window_geom *g)
{
    return g->page_rows * g->n_pages;
}

/* Page that holds position p. */
static inline uint32_t kvi_window_page_of(const kvi_window_geom *g, uint64_t p)
{
    return (uint32_t)(p % kvi_window_ring_rows(g) / g->page_rows);
}

/* Rows of a chunk that outlive it. */
static inline size_t kvi_window_kept(const kvi_window_geom *g, size_t n_rows)
{
    return n_rows < kvi_window_ring_rows(g) ? n_rows : kvi_window_ring_rows(g);
}

/* Where a layer's rows begin: offsets inside a page, and inside the page of raw rows. */
typedef struct kvi_window_offs {
    size_t page;
    size_t pending;
} kvi_window_offs;
static inline void kvi_window_offs_pass(kvi_window_offs *o, const kvi_window_geom *g,
                                        const kvi_plan_row *row)
{
    o->page += (size_t)g->page_rows * row->window_bytes;
    o->pending += (size_t)g->pending_slots * row->pending_bytes;
}
static inline kvi_window_offs kvi_window_offs_of(const kvi_window_geom *g, const kvi_plan *plan,
                                                 uint32_t layer)
{
    kvi_window_offs o = {0};

    for (uint32_t l = 0; l < layer; l++)
        kvi_window_offs_pass(&o, g, &plan->rows[l]);
    return o;
}

/* Commit: the last kept rows of a chunk of one layer that starts at position pos and has n_rows
 * rows (rows: all of them) into the pages (page_off: of the layer), as copies for the caller to
 * run; at most one a page and one more. Every page that they fall into is there and the caller's
 * alone. */
void kvi_window_commit(kvi_copies *copies, const kvi_memory *m, const kvi_window_geom *g,
                       uint32_t row_bytes, size_t page_off, uint8_t *const *pages,
                       const uint8_t *rows, uint64_t pos, size_t n_rows);

#endif
