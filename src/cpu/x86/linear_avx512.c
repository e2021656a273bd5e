/* Matrix products with AVX-512: how weights become floats. The kernels: linear_v16.h.
 *
 * FP8: an E4M3 value is a bf16, so two tables of 128 bytes give its high and low byte (vpermi2b,
 * NaN and subnormals included). A permutation in front puts the bytes so that interleaving and two
 * shifts end in natural order. 22 vector instructions for 64 weights with scale and one product.
 * FP4: sixteen nibbles from a broadcast quadword by one vpmultishiftqb, then vpermps in a table of
 * values times scale: two shuffles for 16 weights. For few rows of x a rotation takes the place of
 * the first, and the table is looked up (16 KiB): a third less work, a tenth less time.
 *
 * Measured, one row, of the read stream: f32 0.97, bf16 0.89, FP8 0.80, FP4 0.68 (of
 * 32 channels: FP8 0.19, FP4 0.30); 256 rows, of the FMA peak: f32 0.72, bf16 0.79, FP8 0.80, FP4
 * 0.82. A tile alone reaches 0.90: the fold and the addition to y take as long as 85 of its 768
 * cycles. */
#include "cpu/linear_kernels.h"
#include "cpu/v16.h"

#include <string.h>

#define LIN_STEP 64
#define LIN_MIXED 1
#define LIN_PARTS 1
#define LIN_N 6
#define LIN_DIRECT 6
#define LIN_DIRECT_M(n) ((n) <= 2 ? 4 : 2)

/* High and low bytes of the bf16 of codes 0 .. 127. With exponent field e > 0 the bf16 has exponent
 * e + 120: high byte (e + 120) / 2, low byte (e % 2) 0x80 and the mantissa; e = 0 by hand. */
#define HIGH(e) (e) / 2 + 60
#define HIGH8(e) HIGH(e), HIGH(e), HIGH(e), HIGH(e), HIGH(e), HIGH(e), HIGH(e), HIGH(e)
#define LOW(e, m) (e) % 2 * 0x80 + (m) * 0x10
#define LOW7(e) LOW(e, 0), LOW(e, 1), LOW(e, 2), LOW(e, 3), LOW(e, 4), LOW(e, 5), LOW(e, 6)
#define LOW8(e) LOW7(e), LOW(e, 7)
static const uint8_t high_byte[128] = {
    0,         59,        59,        59,        60,        60,         60,         60,
    HIGH8(1),  HIGH8(2),  HIGH8(3),  HIGH8(4),  HIGH8(5),  HIGH8(6),   HIGH8(7),   HIGH8(8),
    HIGH8(9),  HIGH8(10), HIGH8(11), HIGH8(12), HIGH8(13), HIGH8(14),  HIGH(15),   HIGH(15),
    HIGH(15),  HIGH(15),  HIGH(15),  HIGH(15),  HIGH(15),  0x7f};
static const uint8_t low_byte[128] = {
    0,       0,       0x80,    0xc0,     0,        0x20,     0x40,     0x60,
    LOW8(1), LOW8(2), LOW8(3), LOW8(4),  LOW8(5),  LOW8(6),  LOW8(7),  LOW8(8),
    LOW8(9), LOW8(10), LOW8(11), LOW8(12), LOW8(13), LOW8(14), LOW7(15), 0xc0};

/* Byte 16 g + 2 j from channel 4 g + j, the byte behind it from 16 channels on; 8 bytes later the
 * same of the second 32 channels. */
#define PLACE2(c) (c), (c) + 16
#define PLACE16(g)                                                                                 \
    PLACE2(4 * (g)), PLACE2(4 * (g) + 1), PLACE2(4 * (g) + 2), PLACE2(4 * (g) + 3),                \
        PLACE2(4 * (g) + 32), PLACE2(4 * (g) + 33), PLACE2(4 * (g) + 34), PLACE2(4 * (g) + 35)
static const uint8_t places[64] = {PLACE16(0), PLACE16(1), PLACE16(2), PLACE16(3)};

/* w[0], w[1] scaled by s, w[2], w[3] by t. */
static inline void fp8_values(__m512i codes, v16 s, v16 t, v16 w[4])
{
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    const __m512i c = _mm512_permutexvar_epi8(_mm512_loadu_si512(places), codes);
    const __m512i magnitude = _mm512_permutex2var_epi8(_mm512_loadu_si512(high_byte), c,
                                                       _mm512_loadu_si512(high_byte + 64));
    const __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(low_byte), c,
                                                 _mm512_loadu_si512(low_byte + 64));
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, c, sign, 0xf8); /* a | (b & c) */
    const __m512i a = _mm512_unpacklo_epi8(low, high);
    const __m512i b = _mm512_unpackhi_epi8(low, high);

    w[0] = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), s);
    w[1] = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(a, upper)), s);
    w[2] = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), t);
    w[3] = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(b, upper)), t);
}

static inline void lin_fp8_64(const uint8_t *p, v16 s, v16 t, v16 w[4])
{
    fp8_values(_mm512_loadu_si512(p), s, t, w);
}

static inline void lin_fp8_32(const uint8_t *p, v16 s, v16 w[2])
{
    v16 four[4];

    fp8_values(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)p)), s, s,
               four);
    w[0] = four[0];
    w[1] = four[1];
}

/* Sixteen values of eight bytes: nibble i to the low bits of lane i; vpermps looks at no others. */
static inline v16 fp4_16(const uint8_t *p, v16 values)
{
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52,
                                             56, 60);
    long long     bits;

    memcpy(&bits, p, sizeof bits);
    return _mm512_permutexvar_ps(
        _mm512_multishift_epi64_epi8(shifts, _mm512_set1_epi64(bits)), values);
}

static inline v16 fp4_values(v16 scale)
{
    return _mm512_mul_ps(_mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                        -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f),
                         scale);
}

static inline void lin_fp4_32(const uint8_t *p, v16 s, v16 w[2])
{
    const v16 values = fp4_values(s);

    w[0] = fp4_16(p, values);
    w[1] = fp4_16(p + 8, values);
}

static inline void lin_fp4_64(const uint8_t *p, v16 s, v16 t, v16 w[4])
{
    lin_fp4_32(p, s, w);
    lin_fp4_32(p + 16, t, w + 2);
}

/* For few rows of x, where the shuffles are the bound: a rotation in place of one of the two. Lane
 * 2 i has channel i, lane 2 i + 1 channel 8 + i. */
static inline v16 fp4_16_mixed(const uint8_t *p, v16 values)
{
    const __m512i turns = _mm512_setr_epi64(0, 4, 8, 12, 16, 20, 24, 28);
    long long     bits;

    memcpy(&bits, p, sizeof bits);
    return _mm512_permutexvar_ps(_mm512_rorv_epi64(_mm512_set1_epi64(bits), turns), values);
}

/* Bits of all FP4 values times E8M0 code c, the negative ones behind the others. */
#define SCALED(half, one, one_half, two, three, four, six)                                         \
    {                                                                                              \
        0, half, one, one_half, two, three, four, six, 0x80000000, 0x80000000 | (half),            \
            0x80000000 | (one), 0x80000000 | (one_half), 0x80000000 | (two),                       \
            0x80000000 | (three), 0x80000000 | (four), 0x80000000 | (six)                          \
    }
#define POWER(e) (uint32_t)(e) << 23
#define AND_HALF(e) (POWER(e) | 0x400000u)
#define SCALED_1(c)                                                                                \
    SCALED(POWER((c) - 1), POWER(c), AND_HALF(c), POWER((c) + 1), AND_HALF((c) + 1),               \
           POWER((c) + 2), AND_HALF((c) + 2))
#define SCALED_4(c) SCALED_1(c), SCALED_1((c) + 1), SCALED_1((c) + 2), SCALED_1((c) + 3)
#define SCALED_16(c) SCALED_4(c), SCALED_4((c) + 4), SCALED_4((c) + 8), SCALED_4((c) + 12)
#define SCALED_64(c) SCALED_16(c), SCALED_16((c) + 16), SCALED_16((c) + 32), SCALED_16((c) + 48)
static const _Alignas(64) uint32_t lin_fp4_scaled[256][16] = {
    /* subnormal at the lower end, infinite at the upper */
    SCALED(0x200000u, 0x400000u, 0x600000u, POWER(1), AND_HALF(1), POWER(2), AND_HALF(2)),
    SCALED(0x400000u, POWER(1), AND_HALF(1), POWER(2), AND_HALF(2), POWER(3), AND_HALF(3)),
    SCALED_1(2), SCALED_1(3), SCALED_4(4), SCALED_4(8), SCALED_4(12), SCALED_16(16), SCALED_16(32),
    SCALED_16(48), SCALED_64(64), SCALED_64(128), SCALED_16(192), SCALED_16(208), SCALED_16(224),
    SCALED_4(240), SCALED_4(244), SCALED_4(248), SCALED_1(252),
    SCALED(POWER(252), POWER(253), AND_HALF(253), POWER(254), AND_HALF(254), POWER(255),
           POWER(255)),
    SCALED(POWER(253), POWER(254), AND_HALF(254), POWER(255), POWER(255), POWER(255), POWER(255)),
    {0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000,
     0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000,
     0x7fc00000, 0x7fc00000}};

static inline void lin_fp4_mixed(const uint8_t *p, const uint8_t *scale, v16 w[2])
{
    const v16 values = _mm512_load_ps(lin_fp4_scaled[*scale]);

    w[0] = fp4_16_mixed(p, values);
    w[1] = fp4_16_mixed(p + 8, values);
}

static inline v16 lin_mix(v16 a)
{
    return _mm512_permutexvar_ps(
        _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15), a);
}

static inline v16 lin_unmix(v16 a)
{
    return _mm512_permutexvar_ps(
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), a);
}

typedef __m128 lin_four;
typedef v16    lin_part;

static inline lin_part lin_part_zero(void) { return v16_zero(); }
static inline lin_part lin_part_load(const float *p) { return v16_load(p); }
static inline lin_part lin_part_fma(lin_part a, lin_part b, lin_part c) { return v16_fma(a, b, c); }
static inline void     lin_store_parts(float *p, size_t step, v16 v)
{
    (void)step;
    v16_store(p, v);
}

/* Sums of four vectors, in blocks of four lanes each of which lanes 0 + 2 and 1 + 3 are left. */
static inline v16 fold_to_blocks(const v16 *a)
{
    return v16_half4(v16_half8(a[0], a[2]), v16_half8(a[1], a[3]));
}

static inline void fold4(const v16 *a, lin_four *out)
{
    const v16     q = fold_to_blocks(a);
    const __m512  p = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4e));
    const __m512  s = _mm512_add_ps(p, _mm512_permute_ps(p, 0xb1));
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);

    out[0] = _mm512_castps512_ps128(_mm512_permutexvar_ps(first, s));
}

static inline void fold8(const v16 *a, lin_four *out)
{
    const v16     p = v16_half2(fold_to_blocks(a), fold_to_blocks(a + 4));
    const __m512  s = _mm512_add_ps(p, _mm512_permute_ps(p, 0xb1));
    const __m512i pick = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512  t = _mm512_permutexvar_ps(pick, s);

    out[0] = _mm512_castps512_ps128(t);
    out[1] = _mm512_extractf32x4_ps(t, 1);
}

static inline void fold16(const v16 *a, lin_four *out)
{
    const __m512 s = v16_fold16(a);

    out[0] = _mm512_castps512_ps128(s);
    out[1] = _mm512_extractf32x4_ps(s, 1);
    out[2] = _mm512_extractf32x4_ps(s, 2);
    out[3] = _mm512_extractf32x4_ps(s, 3);
}

static inline __attribute__((always_inline)) void lin_fold(const v16 *a, size_t n, lin_four *out)
{
    if (n >= 4)
        fold16(a, out);
    if (n % 4 >= 2)
        fold8(a + n / 4 * 16, out + n / 4 * 4);
    if (n % 2 == 1)
        fold4(a + (n - 1) * 4, out + n - 1);
}

#include "cpu/linear_v16.h"

void kvi_linear_avx512(kvi_linear_kernels *k)
{
    lin_set(k, 1600000.0);
}
