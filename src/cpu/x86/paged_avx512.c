/* Paged attention on AVX-512. Four query rows on a KV head (32 / 8 heads, one token) use the
 * kernels that decode in registers.
 *
 * Instructions on the two ports of the multiply-adds for sixteen values, beside 4 of those: f16
 * and bf16 2 (a vcvtph2ps of sixteen is two), int8 and Q4_0 4.5, FP4 3, fp8 6. Measured:
 * paged_v16.h. */
#include "cpu/v16.h"

#include "format/dtype.h"

#include <string.h>

#ifndef PFH
#define PFH _MM_HINT_T1
#endif
#define PAGED_PREFETCH(p) _mm_prefetch((const char *)(p), PFH)

static inline float paged_largest(v16 a)
{
    return _mm512_reduce_max_ps(a);
}

/* fp16 in every lane */
static inline v16 paged_half(const uint8_t *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof h);
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)h));
}

/* Sixteen E2M1 codes: nibble i of the eight bytes goes to the low bits of lane i, the permutation
 * looks at no others. */
static inline v16 paged_e2m1(const uint8_t *p)
{
    const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                         -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52,
                                             56, 60);
    long long bits;

    memcpy(&bits, p, sizeof bits);
    return _mm512_permutexvar_ps(_mm512_multishift_epi64_epi8(shifts, _mm512_set1_epi64(bits)),
                                 values);
}

/* 32 codes - 8 of Q4_0: channel i low, channel i + 16 high in byte i */
static inline void paged_q4(const uint8_t *p, v16 out[2])
{
    const __m512 values = _mm512_setr_ps(-8.0f, -7.0f, -6.0f, -5.0f, -4.0f, -3.0f, -2.0f, -1.0f,
                                         0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));

    out[0] = _mm512_permutexvar_ps(bytes, values);
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), values);
}

/* 32 E4M3 codes / 256: the seven bits of magnitude are those of an fp16 with another bias,
 * subnormals included. 0x7f lies one step below bit 14: adding a step carries into that bit, which
 * makes it a NaN. */
static inline void paged_e4m3(const uint8_t *p, v16 out[2])
{
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
    const __m512i half = _mm512_and_si512(_mm512_slli_epi16(wide, 7),
                                          _mm512_set1_epi16((short)0xbf80));
    const __m512i carry = _mm512_add_epi16(half, _mm512_set1_epi16(0x80));
    const __m512i all = /* half | (carry & 0x4000) */
        _mm512_ternarylogic_epi32(half, carry, _mm512_set1_epi16(0x4000), 0xf8);

    out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(all));
    out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(all, 1));
}

#include "cpu/paged_v16.h"

void kvi_paged_avx512(kvi_paged_kernels *k)
{
    paged_v16_init(k);
}
