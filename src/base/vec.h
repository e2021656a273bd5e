/* Sixteen floats at once, and the one order in which long sums are made.
 *
 * A sum of n products is made in 16 lanes: lane i adds the products i, i + 16, i + 32, ... in
 * that order, each product rounded before it is added; then the lanes are added pairwise (i, i +
 * 8), (i, i + 4), (i, i + 2), (i, i + 1). Every kernel of this numerics revision uses this
 * order, so a result depends neither on the number of rows nor on who computes it. */
#ifndef KVI_VEC_H
#define KVI_VEC_H

#include <stddef.h>
#include <string.h>

#define KVI_LANES 16

#if !defined(__GNUC__) && !defined(__clang__)
#error "vector types of gcc or clang wanted"
#endif
typedef float kvi_vec __attribute__((vector_size(4 * KVI_LANES), aligned(4), may_alias));

static inline kvi_vec kvi_vec_load(const float *p)
{
    kvi_vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void kvi_vec_store(float *p, const kvi_vec *v)
{
    memcpy(p, v, sizeof *v);
}

static inline float kvi_vec_sum(const kvi_vec *v)
{
    float s[KVI_LANES];

    memcpy(s, v, sizeof s);
    for (size_t half = KVI_LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            s[i] = s[i] + s[i + half];
    return s[0];
}

/* a . b, n any */
static inline float kvi_dot(const float *a, const float *b, size_t n)
{
    kvi_vec acc = {0};
    size_t  i = 0;

    for (; i + KVI_LANES <= n; i += KVI_LANES)
        acc = acc + kvi_vec_load(a + i) * kvi_vec_load(b + i);
    if (i < n) {
        float ta[KVI_LANES] = {0};
        float tb[KVI_LANES] = {0};

        memcpy(ta, a + i, (n - i) * sizeof *a);
        memcpy(tb, b + i, (n - i) * sizeof *b);
        acc = acc + kvi_vec_load(ta) * kvi_vec_load(tb);
    }
    return kvi_vec_sum(&acc);
}

#endif
