/* Norm, rotation, residual stream, router for AVX-512: cpu/dense_v16.h. */
#include "cpu/v16.h"

#include "cpu/dense_kernels.h"

static inline v16 v16_swap_pairs(v16 a) { return _mm512_permute_ps(a, 0xb1); }
#define v16_quad(a, i) _mm512_permute_ps(a, 0x55 * (i))
#define v16_group(a, i) _mm512_shuffle_f32x4(a, a, 0x55 * (i))
static inline float v16_most(v16 a) { return _mm512_reduce_max_ps(a); }
static inline uint32_t v16_mask_bits(v16m m) { return m; }

typedef __m512d vd;
#define VD_LANES 8
static inline vd vd_load(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
static inline void vd_store_twice(float *p, vd a)
{
    const __m512i each = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);

    _mm512_storeu_ps(p, _mm512_permutexvar_ps(each, _mm512_castps256_ps512(_mm512_cvtpd_ps(a))));
}
static inline vd vd_trunc(vd a)
{
    return _mm512_roundscale_pd(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}

#include "cpu/dense_v16.h"

void kvi_dense_avx512(kvi_dense_kernels *k)
{
    fill_table(k);
}
