/* What the dense reference operators (linear, norm, mix, moe) share. Private to cpu/.
 *
 * Sums are made in the order of base/vec.h. gcc keeps a 64-byte vector in memory when the widest
 * register has 16 bytes, so the sixteen lanes are spelled here as four vectors of four: the same
 * order and bits as kvi_dot, about three times as fast. */
#ifndef KVI_REF_DENSE_INT_H
#define KVI_REF_DENSE_INT_H

#include "base/checked.h"
#include "base/fmath.h"
#include "base/vec.h"
#include "cpu/cpu_ops.h"

typedef float kvi_vec4 __attribute__((vector_size(16), aligned(4), may_alias));

static inline kvi_vec4 kvi_vec4_load(const float *p)
{
    kvi_vec4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void kvi_vec4_store(float *p, kvi_vec4 v)
{
    memcpy(p, &v, sizeof v);
}

/* Lanes 0..3, 4..7, 8..11, 12..15 to one sum: (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1). */
static inline float kvi_vec4_fold(kvi_vec4 a, kvi_vec4 b, kvi_vec4 c, kvi_vec4 d)
{
    const kvi_vec4 s = (a + c) + (b + d);
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* kvi_dot(a, b, n) */
static inline float kvi_ref_dot(const float *a, const float *b, size_t n)
{
    kvi_vec4 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    float    ta[KVI_LANES] = {0};
    float    tb[KVI_LANES] = {0};
    size_t   i = 0;

    for (; i + KVI_LANES <= n; i += KVI_LANES) {
        s0 = s0 + kvi_vec4_load(a + i) * kvi_vec4_load(b + i);
        s1 = s1 + kvi_vec4_load(a + i + 4) * kvi_vec4_load(b + i + 4);
        s2 = s2 + kvi_vec4_load(a + i + 8) * kvi_vec4_load(b + i + 8);
        s3 = s3 + kvi_vec4_load(a + i + 12) * kvi_vec4_load(b + i + 12);
    }
    if (i < n) {
        memcpy(ta, a + i, (n - i) * sizeof *a);
        memcpy(tb, b + i, (n - i) * sizeof *b);
        s0 = s0 + kvi_vec4_load(ta) * kvi_vec4_load(tb);
        s1 = s1 + kvi_vec4_load(ta + 4) * kvi_vec4_load(tb + 4);
        s2 = s2 + kvi_vec4_load(ta + 8) * kvi_vec4_load(tb + 8);
        s3 = s3 + kvi_vec4_load(ta + 12) * kvi_vec4_load(tb + 12);
    }
    return kvi_vec4_fold(s0, s1, s2, s3);
}

/* 1 / sqrt(mean x^2 + eps) */
static inline float kvi_ref_rms_inverse(const float *x, size_t n, float eps)
{
    return 1.0f / kvi_sqrtf(kvi_ref_dot(x, x, n) / (float)n + eps);
}

/* A loop range below this many multiply-adds is not worth a wake-up. */
#define KVI_REF_MIN_WORK 500000u
/* Dequantising a weight costs about as much as so many multiply-adds. */
#define KVI_REF_DEQUANT 6u

/* Rows per range of kvi_run, for rows of `work` operations each. */
static inline size_t kvi_ref_grain(size_t work)
{
    return kvi_max_size(1, KVI_REF_MIN_WORK / kvi_max_size(work, 1));
}

/* Tasks for n_items items of `work` multiply-adds altogether; each task may own a slot of
 * scratch. 0 only for no items. */
size_t kvi_ref_n_tasks(const kvi_device *dev, size_t n_items, double work);

/* Does KVI_OP_ACT_QUANT apply in front of this matrix? */
static inline int kvi_ref_quantised(const kvi_matrix *w)
{
    return w->kind == KVI_W_FP8 || w->kind == KVI_W_FP8_ROW || w->kind == KVI_W_FP4;
}

/* act_quant of n_rows rows of `width`, in parallel. out is contiguous. */
void kvi_ref_act_quant_rows(kvi_device *dev, const float *x, size_t x_stride, size_t n_rows,
                            size_t width, float *out);

/* The kernels of an operator with these flags: the portable ones in the reference mode. */
const kvi_linear_kernels *kvi_linear_use(const kvi_device *dev, uint32_t flags,
                                         kvi_linear_kernels *portable);
/* Workers, at most n_items, for `work` multiply-adds altogether. */
size_t kvi_linear_workers(const kvi_device *dev, const kvi_linear_kernels *k, size_t n_items,
                          double work);

#endif
