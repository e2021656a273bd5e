/* All rows that a decode step appends, in one launch: window rows of every layer, entries and index keys of their owners.
 *
 * A job is one run of rows. Jobs lie in device memory, so that a recorded step can be replayed for other positions: only they are
 * rewritten. Pointers in them are device memory. */
#ifndef KVI_CUDA_CACHE_H
#define KVI_CUDA_CACHE_H

#include "cuda_device.h"

enum : unsigned { KVI_APPEND_JOBS = 64 * 128 }; /* of one launch: up to 64 in each of 128 sessions */

struct alignas(16) kvi_append_job {
    const float    *x;              /* row i at x + i * x_stride */
    uint8_t        *rows;           /* of contiguous rows */
    uint8_t *const *parts;          /* of rows in blocks: that of the first row's block; else NULL */
    size_t          x_stride;
    uint32_t        n_rows;
    uint32_t        width;
    uint32_t        format;         /* KVCSA_FORMAT_* */
    uint32_t        first_row;      /* inside its block */
    uint32_t        rows_per_block;
    uint32_t        part_off;       /* of the owner inside a part */
    uint32_t        group_rows;     /* values of so many rows, then their scales: 1, or that of index keys */
    uint32_t        value_bytes;    /* of a row */
    uint32_t        scale_bytes;
    uint32_t        reserved;
};
static_assert(sizeof(kvi_append_job) == 80, "five loads of 16 bytes");

/* Fill jobs, in the host's memory. ERR_UNSUPPORTED, ERR_ARG; an owner without keys gives a key job without rows. Where rows of
 * slices belong (kvi_slices) a job does not say. */
kvcsa_status kvi_append_window_job(const kvi_window_write_params *p, kvi_append_job *job, kvcsa_error *err);
kvcsa_status kvi_append_entry_jobs(const kvi_entry_write_params *p, kvi_append_job *latents, kvi_append_job *keys,
                                   kvcsa_error *err);
/* Warps that a job needs. */
size_t       kvi_append_warps(const kvi_append_job *job);

/* jobs [n_jobs] in device memory, none of which needs more than `warps`. Their rows must not overlap. */
kvcsa_status kvi_cuda_append_step(kvi_device *dev, const kvi_append_job *jobs, unsigned n_jobs, size_t warps, kvcsa_error *err);

#endif
