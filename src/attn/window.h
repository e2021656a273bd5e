/* Sliding windows: one ring of quantised rows a layer. Position p stands in slot p % window_tokens.
 *
 * (W1) A ring holds the rows of the last min(n, window_tokens) committed positions; it is not
 *      written while a chunk runs, since queries of the chunk still read rows that the chunk will
 *      push out.
 * (W2) Rows of the running chunk lie beside it: all of them while their layer runs, the last
 *      window_tokens until the commit. */
#ifndef KVI_WINDOW_H
#define KVI_WINDOW_H

#include "backend/exec.h"

/* Rows of a chunk that outlive it. */
static inline size_t kvi_window_kept(const kvi_plan_row *row, size_t n_rows)
{
    return n_rows < row->window_tokens ? n_rows : row->window_tokens;
}

/* Commit: copy the last kept rows of a chunk that starts at position pos and has n_rows rows
 * into the ring. kept holds kvi_window_kept() rows. */
void kvi_window_commit(const kvi_plan_row *row, uint8_t *ring, const uint8_t *kept, uint64_t pos,
                       size_t n_rows);

#endif
