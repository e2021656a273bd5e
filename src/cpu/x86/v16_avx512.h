/* Sixteen floats in one AVX-512 register. The meaning of every function: cpu/v16.h. */
#ifndef KVI_V16_AVX512_H
#define KVI_V16_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef __m512  v16;
typedef __m512i v16i;
typedef __mmask16 v16m;

/* Register tile of dot products: weight rows x input rows, 32 registers. */
#define V16_TILE_M 4
#define V16_TILE_N 6
#define V16_REGS   32 /* registers, in units of v16 */

static inline v16 v16_zero(void) { return _mm512_setzero_ps(); }
static inline v16 v16_set(float x) { return _mm512_set1_ps(x); }
static inline v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v16_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
static inline v16 v16_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
static inline void v16_store_n(float *p, v16 a, size_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a);
}
static inline v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
static inline v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
static inline v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
static inline v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
static inline v16 v16_sqrt(v16 a) { return _mm512_sqrt_ps(a); }
static inline v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
static inline v16 v16_fnma(v16 a, v16 b, v16 c) { return _mm512_fnmadd_ps(a, b, c); }
static inline v16 v16_more(v16 a, v16 b) { return _mm512_max_ps(a, b); }
static inline v16 v16_less(v16 a, v16 b) { return _mm512_min_ps(a, b); }
static inline v16 v16_round(v16 a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline v16i v16_bits(v16 a) { return _mm512_castps_si512(a); }
static inline v16 v16_of_bits(v16i a) { return _mm512_castsi512_ps(a); }
static inline v16i v16_to_int(v16 a) { return _mm512_cvtps_epi32(a); }
static inline v16 v16_of_int(v16i a) { return _mm512_cvtepi32_ps(a); }
static inline v16i v16i_set(int32_t x) { return _mm512_set1_epi32(x); }
static inline v16i v16i_load(const void *p) { return _mm512_loadu_si512(p); }
static inline void v16i_store(void *p, v16i a) { _mm512_storeu_si512(p, a); }
static inline v16i v16i_add(v16i a, v16i b) { return _mm512_add_epi32(a, b); }
static inline v16i v16i_sub(v16i a, v16i b) { return _mm512_sub_epi32(a, b); }
static inline v16i v16i_and(v16i a, v16i b) { return _mm512_and_si512(a, b); }
static inline v16i v16i_or(v16i a, v16i b) { return _mm512_or_si512(a, b); }
static inline v16i v16i_xor(v16i a, v16i b) { return _mm512_xor_si512(a, b); }
#define v16i_shl(a, n) _mm512_slli_epi32(a, n)
#define v16i_shr(a, n) _mm512_srli_epi32(a, n)
#define v16i_sar(a, n) _mm512_srai_epi32(a, n)
static inline v16m v16_lt(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline v16m v16_gt(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
static inline v16m v16_eq(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline v16m v16_isnan(v16 a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
static inline v16 v16_choose(v16m m, v16 yes, v16 no) { return _mm512_mask_blend_ps(m, no, yes); }
static inline v16 v16_load_bf16(const void *p)
{
    const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
static inline v16 v16_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline v16 v16_load_u8(const void *p) /* 0..255 */
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline v16 v16_load_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* Sum of the lanes: (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1). */
static inline float v16_fold(v16 a)
{
    const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}

/* Two vectors halved into one: for fold4 and fold16. Lane groups of a stay low, those of b high. */
static inline v16 v16_half8(v16 a, v16 b) /* (a_i + a_i+8), (b_i + b_i+8) */
{
    const __m512 cross = _mm512_shuffle_f32x4(a, b, 0x4e); /* a high, b low */
    const __m512 keep = _mm512_mask_blend_ps(0xff00, a, b); /* a low, b high */
    return _mm512_add_ps(keep, cross);
}
static inline v16 v16_half4(v16 a, v16 b) /* within each half: quarter sums of a, then of b */
{
    /* blocks of four lanes: a = a0 a1 | a2 a3 -> a0+a1, b0+b1 | a2+a3, b2+b3 */
    const __m512i swap = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26,
                                           27);
    const __m512 cross = _mm512_permutex2var_ps(a, swap, b);
    const __m512 keep = _mm512_mask_blend_ps(0xf0f0, a, b);
    return _mm512_add_ps(keep, cross);
}
static inline v16 v16_half2(v16 a, v16 b) /* within blocks of four: pairs */
{
    const __m512 cross = _mm512_shuffle_ps(a, b, 0x4e); /* a2 a3 b0 b1 */
    const __m512 keep = _mm512_mask_blend_ps(0xcccc, a, b); /* a0 a1 b2 b3 */
    return _mm512_add_ps(keep, cross);
}
static inline v16 v16_half1(v16 a, v16 b) /* lanes: a0+a1, b0+b1, a2+a3, b2+b3 */
{
    const __m512i swap = _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15,
                                           30);
    const __m512 cross = _mm512_permutex2var_ps(a, swap, b);
    const __m512 keep = _mm512_mask_blend_ps(0xaaaa, a, b);
    return _mm512_add_ps(keep, cross);
}

/* out[i] = v16_fold(a[i]) for 16 vectors. One piece: a tree of 15 halvings. The operands are so
 * paired that the result stands in order: a half1 leaves pairs (x, y) in neighbouring lanes. */
static inline v16 v16_fold16(const v16 a[16])
{
    v16 h[8], q[4], p[2];

    for (int i = 0; i < 8; i++) /* low half: vector i, high half: vector i + 8 */
        h[i] = v16_half8(a[i], a[i + 8]);
    for (int i = 0; i < 4; i++) /* blocks of four: i, i + 4 | i + 8, i + 12 */
        q[i] = v16_half4(h[i], h[i + 4]);
    for (int i = 0; i < 2; i++) /* pairs: i, i + 2 in each block */
        p[i] = v16_half2(q[i], q[i + 2]);
    return v16_half1(p[0], p[1]);
}

#endif
