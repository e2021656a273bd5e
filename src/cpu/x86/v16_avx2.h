/* Sixteen floats in two AVX registers (AVX2, FMA, F16C). What each function
 * means: cpu/v16.h. */
#ifndef KVI_V16_AVX2_H
#define KVI_V16_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct v16 { __m256 a, b; } v16; /* lanes 0..7 and 8..15 */
typedef struct v16i { __m256i a, b; } v16i;
typedef struct v16m { __m256 a, b; } v16m;

#define V16_TILE_M 2
#define V16_TILE_N 3
#define V16_REGS   8

static inline v16 v16_zero(void) { return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline v16 v16_set(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline v16 v16_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.a);
    _mm256_storeu_ps(p + 8, a.b);
}
static inline v16 v16_load_n(const float *p, size_t n)
{
    float t[16] = {0};
    memcpy(t, p, n * sizeof *p);
    return v16_load(t);
}
static inline void v16_store_n(float *p, v16 a, size_t n)
{
    float t[16];
    v16_store(t, a);
    memcpy(p, t, n * sizeof *p);
}
#define V16_BOTH2(f, x, y) ((v16){f((x).a, (y).a), f((x).b, (y).b)})
static inline v16 v16_add(v16 a, v16 b) { return V16_BOTH2(_mm256_add_ps, a, b); }
static inline v16 v16_sub(v16 a, v16 b) { return V16_BOTH2(_mm256_sub_ps, a, b); }
static inline v16 v16_mul(v16 a, v16 b) { return V16_BOTH2(_mm256_mul_ps, a, b); }
static inline v16 v16_div(v16 a, v16 b) { return V16_BOTH2(_mm256_div_ps, a, b); }
static inline v16 v16_sqrt(v16 a) { return (v16){_mm256_sqrt_ps(a.a), _mm256_sqrt_ps(a.b)}; }
static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}
static inline v16 v16_fnma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fnmadd_ps(a.a, b.a, c.a), _mm256_fnmadd_ps(a.b, b.b, c.b)};
}
static inline v16 v16_more(v16 a, v16 b) { return V16_BOTH2(_mm256_max_ps, a, b); }
static inline v16 v16_less(v16 a, v16 b) { return V16_BOTH2(_mm256_min_ps, a, b); }
static inline v16 v16_round(v16 a)
{
    return (v16){_mm256_round_ps(a.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                 _mm256_round_ps(a.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline v16i v16_bits(v16 a)
{
    return (v16i){_mm256_castps_si256(a.a), _mm256_castps_si256(a.b)};
}
static inline v16 v16_of_bits(v16i a)
{
    return (v16){_mm256_castsi256_ps(a.a), _mm256_castsi256_ps(a.b)};
}
static inline v16i v16_to_int(v16 a)
{
    return (v16i){_mm256_cvtps_epi32(a.a), _mm256_cvtps_epi32(a.b)};
}
static inline v16 v16_of_int(v16i a)
{
    return (v16){_mm256_cvtepi32_ps(a.a), _mm256_cvtepi32_ps(a.b)};
}
#define V16I_BOTH2(f, x, y) ((v16i){f((x).a, (y).a), f((x).b, (y).b)})
static inline v16i v16i_set(int32_t x)
{
    return (v16i){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
static inline v16i v16i_load(const void *p)
{
    return (v16i){_mm256_loadu_si256((const __m256i *)p),
                  _mm256_loadu_si256((const __m256i *)p + 1)};
}
static inline void v16i_store(void *p, v16i a)
{
    _mm256_storeu_si256((__m256i *)p, a.a);
    _mm256_storeu_si256((__m256i *)p + 1, a.b);
}
static inline v16i v16i_add(v16i a, v16i b) { return V16I_BOTH2(_mm256_add_epi32, a, b); }
static inline v16i v16i_sub(v16i a, v16i b) { return V16I_BOTH2(_mm256_sub_epi32, a, b); }
static inline v16i v16i_and(v16i a, v16i b) { return V16I_BOTH2(_mm256_and_si256, a, b); }
static inline v16i v16i_or(v16i a, v16i b) { return V16I_BOTH2(_mm256_or_si256, a, b); }
static inline v16i v16i_xor(v16i a, v16i b) { return V16I_BOTH2(_mm256_xor_si256, a, b); }
#define v16i_shl(x, n) ((v16i){_mm256_slli_epi32((x).a, n), _mm256_slli_epi32((x).b, n)})
#define v16i_shr(x, n) ((v16i){_mm256_srli_epi32((x).a, n), _mm256_srli_epi32((x).b, n)})
#define v16i_sar(x, n) ((v16i){_mm256_srai_epi32((x).a, n), _mm256_srai_epi32((x).b, n)})
#define V16_CMP(x, y, op) ((v16m){_mm256_cmp_ps((x).a, (y).a, op), _mm256_cmp_ps((x).b, (y).b, op)})
static inline v16m v16_lt(v16 a, v16 b) { return V16_CMP(a, b, _CMP_LT_OQ); }
static inline v16m v16_gt(v16 a, v16 b) { return V16_CMP(a, b, _CMP_GT_OQ); }
static inline v16m v16_eq(v16 a, v16 b) { return V16_CMP(a, b, _CMP_EQ_OQ); }
static inline v16m v16_isnan(v16 a) { return V16_CMP(a, a, _CMP_UNORD_Q); }
static inline v16 v16_choose(v16m m, v16 yes, v16 no)
{
    return (v16){_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
static inline v16 v16_load_bf16(const void *p)
{
    const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    const __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + 1));
    return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
static inline v16 v16_load_f16(const void *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))};
}
static inline v16 v16_load_u8(const void *p)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
static inline v16 v16_load_i8(const void *p)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}

static inline float v16_fold(v16 a)
{
    const __m256 b = _mm256_add_ps(a.a, a.b);
    const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}

/* Eight vectors of eight lanes, already halved once: one vector of their sums. */
static inline __m256 v16_fold8(const __m256 h[8])
{
    __m256 q[4], p[2];

    for (int i = 0; i < 4; i++) /* (i, i + 4): blocks of four */
        q[i] = _mm256_add_ps(_mm256_blend_ps(h[i], h[i + 4], 0xf0),
                             _mm256_permute2f128_ps(h[i], h[i + 4], 0x21));
    for (int i = 0; i < 2; i++)
        p[i] = _mm256_add_ps(_mm256_blend_ps(q[i], q[i + 2], 0xcc),
                             _mm256_shuffle_ps(q[i], q[i + 2], 0x4e));
    {
        const __m256 even = _mm256_blend_ps(p[0], _mm256_moveldup_ps(p[1]), 0xaa);
        const __m256 odd = _mm256_blend_ps(_mm256_movehdup_ps(p[0]), p[1], 0xaa);
        return _mm256_add_ps(even, odd);
    }
}
static inline v16 v16_fold16(const v16 a[16])
{
    __m256 lo[8], hi[8];

    for (int i = 0; i < 8; i++) {
        lo[i] = _mm256_add_ps(a[i].a, a[i].b);
        hi[i] = _mm256_add_ps(a[i + 8].a, a[i + 8].b);
    }
    return (v16){v16_fold8(lo), v16_fold8(hi)};
}

#endif
