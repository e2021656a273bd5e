/* Norms, rotation, residual stream, router: the kernels. */
#ifndef KVI_CPU_DENSE_KERNELS_H
#define KVI_CPU_DENSE_KERNELS_H

#include "cpu/cpu_flags.h"

/* Rows begin .. end - 1 of an operator, in the calling thread. Shapes and meaning: op_params.h.
 * Widths, strides and alignment are free; nothing outside the arrays is read or written.
 *
 * Fused kernels (numerics 2, cpu/v16.h) differ from the portable ones in this and nothing else:
 *   norm, mix     mean of squares: sum in the order of v16.h
 *   rope          nothing: the same bits
 *   mix           exp and sigmoid of v16.h; after them the same operations in the same order
 *   collapse      pre[0] h[0], then fma by ascending copies
 *   expand        C[0][k] h[0], then fma by ascending j, then fma with post[k] y
 *   engram_gate   sums of h h, key key and (h qk) key in the order of v16.h, h qk rounded; sigmoid
 *                 of v16.h; h + gate value as one fma
 *   route         s = sqrt(log1p(e^z)) by v16_exp and v16_log1p (dense_v16.h), e^(z/2) below -17 */
typedef struct kvi_dense_kernels {
    uint32_t flags;   /* KVCSA_CPU_* that are in use */

    /* What is no reading or writing of floats, counted in floats that would take as long: to see
     * whether another thread is worth waking. */
    uint32_t angle;   /* sine and cosine of a pair */
    uint32_t balance; /* an element of C, each iteration */
    uint32_t score;   /* s and rank of an expert */

    void (*norm)(const kvi_norm_params *p, size_t begin, size_t end);
    void (*rope)(const kvi_rope_params *p, size_t begin, size_t end);
    void (*mix)(const kvi_mix_params *p, size_t begin, size_t end);
    void (*collapse)(const kvi_collapse_params *p, size_t begin, size_t end);
    void (*expand)(const kvi_expand_params *p, size_t begin, size_t end);
    void (*engram_gate)(const kvi_engram_gate_params *p, size_t begin, size_t end);
    /* scratch: kvi_route_floats(n_experts) */
    void (*route)(const kvi_route_params *p, float *scratch, size_t begin, size_t end);
} kvi_dense_kernels;

/* s and rank of a row, each in whole groups of sixteen. */
static inline size_t kvi_route_floats(uint32_t n_experts)
{
    return 2 * (((size_t)n_experts + 15) / 16 * 16);
}

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_dense_init(kvi_dense_kernels *k, uint32_t flags);
void kvi_dense_avx2(kvi_dense_kernels *k);
void kvi_dense_avx512(kvi_dense_kernels *k);
void kvi_dense_neon(kvi_dense_kernels *k);

/* The portable kernels: ref_norm.c, ref_mix.c, ref_route.c. */
void kvi_ref_norm(const kvi_norm_params *p, size_t begin, size_t end);
void kvi_ref_rope(const kvi_rope_params *p, size_t begin, size_t end);
void kvi_ref_mix(const kvi_mix_params *p, size_t begin, size_t end);
void kvi_ref_collapse(const kvi_collapse_params *p, size_t begin, size_t end);
void kvi_ref_expand(const kvi_expand_params *p, size_t begin, size_t end);
void kvi_ref_engram_gate(const kvi_engram_gate_params *p, size_t begin, size_t end);
void kvi_ref_route(const kvi_route_params *p, float *scratch, size_t begin, size_t end);

#endif
