/* Bytes from place to place, and counts of what lists name. Neither is worth a thread. */
#include "cpu/cpu_ops.h"

#include <string.h>

kvcsa_status kvi_cpu_copy(kvi_device *dev, const kvi_copy_params *p, kvcsa_error *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < p->n_jobs; i++)
        memcpy(p->jobs[i].to, p->jobs[i].from, p->jobs[i].n_bytes);
    return KVCSA_OK;
}

kvcsa_status kvi_cpu_tally(kvi_device *dev, const kvi_tally_params *p, kvcsa_error *err)
{
    (void)dev;
    (void)err;
    KVI_ASSERT(p->all == 0 || p->n_visible);
    for (size_t i = 0; i < p->n_rows; i++) {
        const int32_t *items = p->items + i * p->stride;
        const uint64_t n_visible = p->n_visible ? p->n_visible[i] : UINT64_MAX;
        uint64_t      *counts = p->counts;
        uint64_t       next = 0; /* first cache block of the row that has not been counted */

        if (p->all != 0 && n_visible <= p->all)
            continue;
        if (p->rows_each != 0)
            counts += i / p->rows_each * p->counts_stride;
        for (uint32_t k = 0; k < p->n_items && items[k] >= 0; k++) {
            const uint64_t first = (uint64_t)items[k] * p->each;
            const uint64_t end = first + p->each < n_visible ? first + p->each : n_visible;

            counts[0]++;
            if (first >= end)
                continue;
            if (end <= next * p->rows_per_block) { /* in a block that counts already */
                counts[1] += end - first;
                continue;
            }

            const uint64_t from = first / p->rows_per_block;
            const uint64_t last = (end - 1) / p->rows_per_block;

            counts[1] += end - first;
            counts[2] += last + 1 - (from > next ? from : next); /* items ascend: >= next */
            next = last + 1;
        }
    }
    return KVCSA_OK;
}
