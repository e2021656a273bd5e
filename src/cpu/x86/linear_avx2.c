/* Matrix products with AVX2: how weights become floats. The kernels: linear_v16.h.
 *
 * FP8: an E4M3 value is a bf16. For exponent bits eee* above 0 its high byte is 60 + eee and its
 * low byte the low nibble, shifted; the sixteen codes below are looked up. Their high bytes are
 * less than 61, so a maximum joins both; their low bytes are corrected by an exclusive or that
 * pshufb leaves out for other codes (index with bit 7). NaN by a comparison. About 24 instructions
 * for 32 weights, and one multiplication by the scale for eight.
 * FP4: the high byte of the bf16 by one pshufb, the low byte by another.
 * In both, bytes are placed so that interleaving and two shifts end in natural order.
 *
 * Measured, one row, of the read stream: f32 0.94, bf16 0.86, FP8 0.48, FP4 0.34 (instruction
 * bound); 256 rows, of the FMA peak of AVX2: 0.86 to 0.90. */
#include "cpu/linear_kernels.h"
#include "cpu/v16.h"

#define LIN_STEP 32
#define LIN_MIXED 0
#define LIN_PARTS 2
#define LIN_N 3
#define LIN_DIRECT 6
#define LIN_DIRECT_M(n) 2

typedef __m128 lin_four;
typedef __m256 lin_part;

static inline lin_part lin_part_zero(void) { return _mm256_setzero_ps(); }
static inline lin_part lin_part_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void     lin_part_store(float *p, lin_part a) { _mm256_storeu_ps(p, a); }
static inline lin_part lin_part_fma(lin_part a, lin_part b, lin_part c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline void lin_store_parts(float *p, size_t step, v16 v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + step, v.b);
}

/* Sixteen bytes for both lanes. */
#define BOTH(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))

/* 32 weights from the high and low bytes of their bf16. Bytes of lane 0: channels 0, 8, 1, 9, 2,
 * 10, 3, 11, then 16, 24, 17, 25, ...; of lane 1: four channels on. Interleaved, the even words are
 * channels 0..3 and 4..7, the odd words 8..11 and 12..15. */
static inline void values_of_bytes(__m256i low, __m256i high, v16 s, v16 w[2])
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    const __m256i a = _mm256_unpacklo_epi8(low, high);
    const __m256i b = _mm256_unpackhi_epi8(low, high);

    w[0].a = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), s.a);
    w[0].b = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(a, upper)), s.b);
    w[1].a = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(b, 16)), s.a);
    w[1].b = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(b, upper)), s.b);
}

static inline void lin_fp8_32(const uint8_t *p, v16 s, v16 w[2])
{
    const __m256i pairs = BOTH(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    const __m256i halves = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    const __m256i magnitude = _mm256_set1_epi8(0x7f);
    const __m256i high_large = BOTH(0, 61, 62, 63, 64, 65, 66, 67, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i high_small = BOTH(0, 59, 59, 59, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60);
    const __m256i low_large = BOTH(0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, -0x80, -0x70,
                                   -0x60, -0x50, -0x40, -0x30, -0x20, -0x10);
    /* of codes 0 .. 15: what turns the row above into 0 0 80 c0 0 20 40 60 80 90 ... f0 */
    const __m256i low_fix = BOTH(0x00, 0x10, -0x60, -0x10, 0x40, 0x70, 0x20, 0x10, 0, 0, 0, 0, 0, 0,
                                 0, 0);
    const __m256i codes = _mm256_shuffle_epi8(
        _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p), halves),
        pairs);
    const __m256i a = _mm256_and_si256(codes, magnitude);
    const __m256i top = _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(0x0f));
    const __m256i nan = _mm256_cmpeq_epi8(a, magnitude);
    const __m256i small = _mm256_add_epi8(a, _mm256_set1_epi8(0x70)); /* bit 7 if not below 16 */
    const __m256i low = _mm256_xor_si256(_mm256_shuffle_epi8(low_large, a),
                                         _mm256_shuffle_epi8(low_fix, small));
    __m256i       high = _mm256_max_epu8(_mm256_shuffle_epi8(high_large, top),
                                         _mm256_shuffle_epi8(high_small, a));

    high = _mm256_or_si256(_mm256_or_si256(high, nan), _mm256_andnot_si256(magnitude, codes));
    values_of_bytes(low, high, s, w);
}

/* Byte i holds channels 2 i (low nibble) and 2 i + 1. */
static inline void lin_fp4_32(const uint8_t *p, v16 s, v16 w[2])
{
    const __m256i high_byte = BOTH(0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41,
                                   -0x41, -0x41, -0x40, -0x40, -0x40, -0x40);
    const __m256i low_byte = BOTH(0x00, 0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40, 0x00, 0x00,
                                  -0x80, -0x40, 0x00, 0x40, -0x80, -0x40);
    /* bytes of the codes in the order of values_of_bytes, one nibble of each wanted */
    const __m256i places = _mm256_setr_epi8(0, 4, 0, 4, 1, 5, 1, 5, 8, 12, 8, 12, 9, 13, 9, 13, 2,
                                            6, 2, 6, 3, 7, 3, 7, 10, 14, 10, 14, 11, 15, 11, 15);
    const __m256i up = _mm256_set1_epi32(0x00010010); /* low nibbles of even words to the top */
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    const __m256i codes = _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p)), places);
    const __m256i n = _mm256_and_si256(_mm256_srli_epi16(_mm256_mullo_epi16(codes, up), 4), nibble);

    values_of_bytes(_mm256_shuffle_epi8(low_byte, n), _mm256_shuffle_epi8(high_byte, n), s, w);
}

/* Four halved vectors: their sums. */
static inline __m128 fold4(__m256 h0, __m256 h1, __m256 h2, __m256 h3)
{
    /* (i, i + 4): 0 and 1 in one register, 2 and 3 in another */
    const __m256 q0 = _mm256_add_ps(_mm256_blend_ps(h0, h1, 0xf0),
                                    _mm256_permute2f128_ps(h0, h1, 0x21));
    const __m256 q1 = _mm256_add_ps(_mm256_blend_ps(h2, h3, 0xf0),
                                    _mm256_permute2f128_ps(h2, h3, 0x21));
    /* (i, i + 2), lane 0: 0 0 2 2, lane 1: 1 1 3 3 */
    const __m256 p = _mm256_add_ps(_mm256_blend_ps(q0, q1, 0xcc), _mm256_shuffle_ps(q0, q1, 0x4e));
    const __m256 s = _mm256_add_ps(p, _mm256_permute_ps(p, 0xb1));

    return _mm_unpacklo_ps(_mm_shuffle_ps(_mm256_castps256_ps128(s), _mm256_castps256_ps128(s),
                                          0x88),
                           _mm_shuffle_ps(_mm256_extractf128_ps(s, 1),
                                          _mm256_extractf128_ps(s, 1), 0x88));
}

static inline __attribute__((always_inline)) void lin_fold(const v16 *a, size_t n, lin_four *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = fold4(_mm256_add_ps(a[4 * i].a, a[4 * i].b),
                       _mm256_add_ps(a[4 * i + 1].a, a[4 * i + 1].b),
                       _mm256_add_ps(a[4 * i + 2].a, a[4 * i + 2].b),
                       _mm256_add_ps(a[4 * i + 3].a, a[4 * i + 3].b));
}

#include "cpu/linear_v16.h"

void kvi_linear_avx2(kvi_linear_kernels *k)
{
    lin_set(k, 800000.0);
}
