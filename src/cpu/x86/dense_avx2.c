/* Norm, rotation, residual stream, router for AVX2: cpu/dense_v16.h. */
#include "cpu/v16.h"

#include "cpu/dense_kernels.h"

static inline v16 v16_swap_pairs(v16 a)
{
    return (v16){_mm256_permute_ps(a.a, 0xb1), _mm256_permute_ps(a.b, 0xb1)};
}
#define v16_quad(x, i)                                                                             \
    ((v16){_mm256_permute_ps((x).a, 0x55 * (i)), _mm256_permute_ps((x).b, 0x55 * (i))})
static inline v16 v16_group(v16 x, int i)
{
    const __m256 half = i < 2 ? x.a : x.b;
    const __m256 all = i % 2 ? _mm256_permute2f128_ps(half, half, 0x11)
                             : _mm256_permute2f128_ps(half, half, 0x00);

    return (v16){all, all};
}
static inline float v16_most(v16 x)
{
    const __m256 b = _mm256_max_ps(x.a, x.b);
    const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));

    return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}
static inline uint32_t v16_mask_bits(v16m m)
{
    return (uint32_t)_mm256_movemask_ps(m.a) | (uint32_t)_mm256_movemask_ps(m.b) << 8;
}

typedef __m256d vd;
#define VD_LANES 4
static inline vd vd_load(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
static inline void vd_store_twice(float *p, vd a)
{
    const __m128 f = _mm256_cvtpd_ps(a);

    _mm_storeu_ps(p, _mm_unpacklo_ps(f, f));
    _mm_storeu_ps(p + 4, _mm_unpackhi_ps(f, f));
}
static inline vd vd_trunc(vd a)
{
    return _mm256_round_pd(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}

#include "cpu/dense_v16.h"

void kvi_dense_avx2(kvi_dense_kernels *k)
{
    fill_table(k);
}
