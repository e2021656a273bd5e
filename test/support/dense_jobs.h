/* Norm, rotation, residual stream and Engram gate as jobs of rows (rows_fn of op_check.h), and how near they are to the exact
 * result: for the portable kernels and for those of every instruction set. */
#ifndef DENSE_JOBS_H
#define DENSE_JOBS_H

#include "support/op_check.h"

typedef struct norm_job {
    const float *x; /* rows at width + 3 */
    const float *weight;
    uint32_t     width;
    uint32_t     flags;
    bool         in_place;
} norm_job;

typedef struct rope_job {
    const float    *x;
    const float    *freqs;
    const uint64_t *pos;
    uint32_t        n_heads;
    uint32_t        width;
    uint32_t        n_rotated;
    uint32_t        inverse;
    uint32_t        flags;
} rope_job;

typedef struct mix_job {
    const float *h;
    const float *proj;
    const float *base;
    uint32_t     copies;
    uint32_t     width;
    uint32_t     n_iters;
} mix_job;

typedef struct stream_job {
    const float *h;
    const float *pre; /* [n_rows, copies]; of expand: post */
    const float *comb;
    const float *y;
    uint32_t     copies;
    uint32_t     width;
    uint32_t     flags;
} stream_job;

typedef struct engram_job {
    const float *h;
    const float *kv;
    const float *qk;
    uint32_t     copies;
    uint32_t     width;
    uint32_t     flags;
} engram_job;

/* The scales of pre, post and comb in run_mix. */
extern const float mix_scale[3];

/* Outputs of norm, rope and mix are written between fences, with gaps between the rows where there is a stride. A row of run_mix is
 * pre, post, comb. */
void run_norm(const void *job, kvi_device *dev, size_t first, size_t n, float *out);
void run_rope(const void *job, kvi_device *dev, size_t first, size_t n, float *out);
void run_mix(const void *job, kvi_device *dev, size_t first, size_t n, float *out);
void run_collapse(const void *job, kvi_device *dev, size_t first, size_t n, float *out);
void run_expand(const void *job, kvi_device *dev, size_t first, size_t n, float *out);
void run_engram(const void *job, kvi_device *dev, size_t first, size_t n, float *out);

/* y [width] is what the row of the job has to be, within the bound of its sums; of the gate: copy c of the row, with `slack` for the
 * error of its sigmoid. */
void assert_norm_exact(const norm_job *j, size_t row, const float *y);
void assert_engram_exact(const engram_job *j, size_t row, size_t c, const float *y, double slack);

#endif
