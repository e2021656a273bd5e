/* Paged attention on AVX2. Sixteen floats are two of sixteen registers, so rows are decoded into a
 * buffer and sums are made in blocks of 2 x 2.
 *
 * Measured, one token, 32 / 8 heads x 128, 32k positions, one core, against the read stream of the
 * same bytes: f16 and bf16 0.43, int8 0.25, fp8 0.2, four bits 0.12: bound by the vector ports. */
#include "cpu/v16.h"

#include "format/dtype.h"

#include <string.h>

#define PAGED_PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)

static inline float paged_largest(v16 a)
{
    const __m256 m = _mm256_max_ps(a.a, a.b);
    __m128       x = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));

    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/* fp16 in every lane */
static inline v16 paged_half(const uint8_t *p)
{
    uint16_t h;
    __m256   x;

    memcpy(&h, p, sizeof h);
    x = _mm256_cvtph_ps(_mm_set1_epi16((short)h));
    return (v16){x, x};
}

/* Eight E2M1 codes: the permutation takes the three bits of magnitude, the fourth is the sign. */
static inline __m256 e2m1_8(const uint8_t *p)
{
    const __m256  values = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    int           bits;
    __m256i       codes;
    __m256i       sign;

    memcpy(&bits, p, sizeof bits);
    codes = _mm256_srlv_epi32(_mm256_set1_epi32(bits), shifts);
    sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32(INT32_MIN));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(values, codes), _mm256_castsi256_ps(sign));
}

static inline v16 paged_e2m1(const uint8_t *p)
{
    return (v16){e2m1_8(p), e2m1_8(p + 4)};
}

/* 32 codes - 8 of Q4_0: channel i low, channel i + 16 high in byte i */
static inline void paged_q4(const uint8_t *p, v16 out[2])
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    const __m256i eight = _mm256_set1_epi32(8);
    const __m256i low = _mm256_set1_epi32(15);
    const __m256i a = _mm256_cvtepu8_epi32(bytes);
    const __m256i b = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));

    out[0] = v16_of_int((v16i){_mm256_sub_epi32(_mm256_and_si256(a, low), eight),
                               _mm256_sub_epi32(_mm256_and_si256(b, low), eight)});
    out[1] = v16_of_int((v16i){_mm256_sub_epi32(_mm256_srli_epi32(a, 4), eight),
                               _mm256_sub_epi32(_mm256_srli_epi32(b, 4), eight)});
}

/* Sixteen E4M3 codes / 256: the seven bits of magnitude are those of an fp16 with another bias,
 * subnormals included. 0x7f lies one step below bit 14: adding a step carries into that bit, which
 * makes it a NaN. */
static inline v16 e4m3_16(const uint8_t *p)
{
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    const __m256i half =
        _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80));
    const __m256i carry = _mm256_add_epi16(half, _mm256_set1_epi16(0x80));
    const __m256i all =
        _mm256_or_si256(half, _mm256_and_si256(carry, _mm256_set1_epi16(0x4000)));

    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(all)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(all, 1))};
}

static inline void paged_e4m3(const uint8_t *p, v16 out[2])
{
    out[0] = e4m3_16(p);
    out[1] = e4m3_16(p + 16);
}

#include "cpu/paged_v16.h"

void kvi_paged_avx2(kvi_paged_kernels *k)
{
    paged_v16_init(k);
}
