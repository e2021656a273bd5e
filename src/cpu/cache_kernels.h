/* Cache bytes from floats and back: the kernels. All of them but pool_pair give the bytes and
 * floats of the portable ones, bit for bit, for every input; so the bytes of a cache do not say
 * where they were made.
 *
 * Arrays may have any alignment and nothing outside them is read or written. Widths are multiples
 * of the format's group, 16 for FP4_E4M3_G16 and 32 for all others that have groups. */
#ifndef KVI_CPU_CACHE_KERNELS_H
#define KVI_CPU_CACHE_KERNELS_H

#include <stddef.h>

#include "cpu/cpu_flags.h"

typedef struct kvi_cache_kernels {
    uint32_t flags; /* KVCSA_CPU_* that are in use */

    /* Window rows: width E4M3 values, then width / 32 E8M0 scales. Rounds to bf16 first. */
    void (*encode_window)(const float *x, uint32_t width, uint8_t *row);
    void (*decode_window)(const uint8_t *row, uint32_t width, float *out);

    /* Entries: what format/row.h says of the format (kvi_row_can_run). */
    void (*encode_entry)(uint32_t format, const float *x, uint32_t width, uint8_t *row);
    void (*decode_entry)(uint32_t format, const uint8_t *row, uint32_t width, float *out);

    /* Index keys, rounded to bf16 first: values u8 [width / 2], scales u8 [width / 32]. */
    void (*encode_index)(const float *x, uint32_t width, uint8_t *values, uint8_t *scales);
    /* Index queries, groups of 32 of any number of heads: x f32 [32 n_groups], codes [32 n_groups]
     * twice the E2M1 value, scales [n_groups] half the E8M0 scale. */
    void (*encode_query)(const float *x, size_t n_groups, int8_t *codes, float *scales);

    /* out[c] = softmax over (gate[0][c], gate[1][c]) of k[0][c], k[1][c]; k, gate [2, width].
     * m = g0 > g1 ? g0 : g1, e_i = exp(g_i - m), s = e0 + e1, out = k0 * (e0 / s) + k1 * (e1 / s),
     * each operation rounded, no fused ones; variants take v16_exp, where g - m <= 0 and so e has
     * at most 1.5 ulp of error instead of 0.51, and e < 2^-126 is 0. */
    void (*pool_pair)(const float *const k[2], const float *const gate[2], uint32_t width,
                      float *out);
} kvi_cache_kernels;

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_cache_init(kvi_cache_kernels *k, uint32_t flags);

void kvi_cache_ref(kvi_cache_kernels *k);    /* ref_cache.c */
void kvi_cache_avx2(kvi_cache_kernels *k);   /* x86/cache_avx2.c */
void kvi_cache_avx512(kvi_cache_kernels *k); /* x86/cache_avx512.c */
void kvi_cache_neon(kvi_cache_kernels *k);   /* arm/cache_neon.c */

/* The portable pool_pair, which is also that of the reference mode (KVI_OP_ROUND_BF16). */
void kvi_ref_pool_pair(const float *const k[2], const float *const gate[2], uint32_t width,
                       float *out);

#endif
