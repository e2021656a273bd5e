#include "attn/window.h"

#include <string.h>

void kvi_window_commit(const kvi_plan_row *row, uint8_t *ring, const uint8_t *kept, uint64_t pos,
                       size_t n_rows)
{
    const size_t   n = kvi_window_kept(row, n_rows);
    const uint64_t first = pos + n_rows - n;

    for (size_t i = 0; i < n; i++)
        memcpy(ring + (size_t)((first + i) % row->window_tokens) * row->window_bytes,
               kept + i * row->window_bytes, row->window_bytes);
}
