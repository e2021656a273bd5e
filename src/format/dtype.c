/* Element types by integer arithmetic on the bits, so that neither the host's rounding mode nor its
 * treatment of subnormals changes a byte. */
#include "format/dtype.h"

#include "base/bytes.h"

#include <math.h>

#define F32_INF 0x7f800000u
#define F32_MAGNITUDE 0x7fffffffu

/* Eight codes of one exponent field: (8 + m) steps, m = 0..7. The last field of E4M3 holds only
 * seven values. */
#define E4M3_SUBNORMAL(s)                                                                          \
    0.0f * (s), 1.0f * (s), 2.0f * (s), 3.0f * (s), 4.0f * (s), 5.0f * (s), 6.0f * (s), 7.0f * (s)
#define E4M3_TOP(s)                                                                                \
    8.0f * (s), 9.0f * (s), 10.0f * (s), 11.0f * (s), 12.0f * (s), 13.0f * (s), 14.0f * (s)
#define E4M3_NORMAL(s) E4M3_TOP(s), 15.0f * (s)
#define E4M3_HALF(one, nan)                                                                        \
    E4M3_SUBNORMAL(0x1p-9f * (one)), E4M3_NORMAL(0x1p-9f * (one)), E4M3_NORMAL(0x1p-8f * (one)),   \
        E4M3_NORMAL(0x1p-7f * (one)), E4M3_NORMAL(0x1p-6f * (one)), E4M3_NORMAL(0x1p-5f * (one)),  \
        E4M3_NORMAL(0x1p-4f * (one)), E4M3_NORMAL(0x1p-3f * (one)), E4M3_NORMAL(0x1p-2f * (one)),  \
        E4M3_NORMAL(0x1p-1f * (one)), E4M3_NORMAL(0x1p0f * (one)), E4M3_NORMAL(0x1p1f * (one)),    \
        E4M3_NORMAL(0x1p2f * (one)), E4M3_NORMAL(0x1p3f * (one)), E4M3_NORMAL(0x1p4f * (one)),     \
        E4M3_TOP(0x1p5f * (one)), (nan)

const float kvi_e4m3_values[256] = {E4M3_HALF(1.0f, NAN), E4M3_HALF(-1.0f, -NAN)};

const float kvi_e2m1_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* Magnitude code of a smaller binary format with `mant` mantissa bits, nearest, ties to the even
 * code. a: bits of a finite |x|. Range is the caller's business: the result may be one past the
 * largest code of the format.
 *
 * The mantissa q keeps its implicit one, so ((field - 1) << mant) + q is the code, and a carry out
 * of q moves on to the next field by itself; a subnormal has field 1 and no implicit one. */
static uint32_t narrow(uint32_t a, uint32_t mant, int32_t bias)
{
    uint32_t m = a & 0x7fffffu;
    int32_t  field = (int32_t)(a >> 23);
    uint32_t shift = 23u - mant;
    uint32_t q;
    uint32_t rest;
    uint32_t half;

    if (field == 0)
        field = 1;
    else
        m |= 0x800000u;
    field += bias - 127;
    if (field < 1) {
        shift += (uint32_t)(1 - field);
        field = 1;
    }
    if (shift > 24u)
        return 0; /* m < 2^24 is less than half of the smallest value */
    q = m >> shift;
    rest = m & ((1u << shift) - 1u);
    half = 1u << (shift - 1u);
    if (rest > half || (rest == half && (q & 1u)))
        q++;
    return ((uint32_t)(field - 1) << mant) + q;
}

float kvi_e4m3_to_f32(uint8_t code)
{
    return kvi_e4m3_values[code];
}

uint8_t kvi_f32_to_e4m3(float x)
{
    const uint32_t u = kvi_f32_bits(x);
    const uint32_t sign = (u >> 24) & 0x80u;
    const uint32_t a = u & F32_MAGNITUDE;

    if (a > F32_INF)
        return (uint8_t)(sign | 0x7fu);
    if (a >= 0x43e00000u) /* 448 */
        return (uint8_t)(sign | 0x7eu);
    return (uint8_t)(sign | narrow(a, 3, 7));
}

float kvi_e5m2_to_f32(uint8_t code)
{
    /* the upper byte of an fp16 */
    return kvi_fp16_to_f32((uint16_t)((uint32_t)code << 8));
}

uint8_t kvi_f32_to_e5m2(float x)
{
    const uint32_t u = kvi_f32_bits(x);
    const uint32_t sign = (u >> 24) & 0x80u;
    const uint32_t a = u & F32_MAGNITUDE;

    if (a > F32_INF)
        return (uint8_t)(sign | 0x7fu);
    if (a >= 0x47600000u) /* 57344 */
        return (uint8_t)(sign | 0x7bu);
    return (uint8_t)(sign | narrow(a, 2, 15));
}

float kvi_e8m0_to_f32(uint8_t code)
{
    if (code == 0)
        return kvi_bits_f32(0x00400000u); /* 2^-127 is a subnormal */
    if (code == 255)
        return kvi_bits_f32(0x7fc00000u);
    return kvi_bits_f32((uint32_t)code << 23);
}

uint8_t kvi_f32_to_e8m0_up(float x)
{
    const uint32_t u = kvi_f32_bits(x);
    uint32_t       code;

    if (u == 0 || u >= F32_INF) /* zero, infinity, NaN, and everything with a sign */
        return 255;
    if (u < 0x00800000u) /* subnormal: up to 2^-127, or between that and 2^-126 */
        return u > 0x00400000u;
    code = (u >> 23) + ((u & 0x7fffffu) != 0);
    return (uint8_t)(code > 254u ? 254u : code);
}

float kvi_e2m1_to_f32(uint8_t code)
{
    return kvi_e2m1_values[code & 15u];
}

/* The code of |x| is the number of midpoints below it; a midpoint itself counts where the code
 * above it is the even one. Comparisons with NaN are false, which gives 0. */
uint8_t kvi_f32_to_e2m1(float x)
{
    const uint32_t u = kvi_f32_bits(x);
    const float    a = kvi_bits_f32(u & F32_MAGNITUDE);
    const uint32_t code = (uint32_t)(a > 0.25f) + (uint32_t)(a >= 0.75f) + (uint32_t)(a > 1.25f) +
                          (uint32_t)(a >= 1.75f) + (uint32_t)(a > 2.5f) + (uint32_t)(a >= 3.5f) +
                          (uint32_t)(a > 5.0f);
    const uint32_t sign = (u & F32_MAGNITUDE) > F32_INF ? 0 : u >> 31;

    return (uint8_t)(sign << 3 | code);
}

float kvi_bf16_to_f32(uint16_t bits)
{
    return kvi_bits_f32((uint32_t)bits << 16);
}

uint16_t kvi_f32_to_bf16(float x)
{
    const uint32_t u = kvi_f32_bits(x);

    if ((u & F32_MAGNITUDE) > F32_INF)
        return (uint16_t)(u >> 16 | 0x40u); /* keep it a NaN when the payload is cut off */
    /* adding just under half, plus one where the kept part is odd, rounds to nearest even; a carry
     * makes infinity */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float kvi_round_bf16(float x)
{
    return kvi_bf16_to_f32(kvi_f32_to_bf16(x));
}

float kvi_fp16_to_f32(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    const uint32_t field = bits >> 10 & 31u;
    uint32_t       mant = bits & 0x3ffu;
    uint32_t       exponent = 113; /* 2^-14 */

    if (field == 31)
        return kvi_bits_f32(sign | F32_INF | mant << 13);
    if (field != 0)
        return kvi_bits_f32(sign | (field + 112u) << 23 | mant << 13);
    if (mant == 0)
        return kvi_bits_f32(sign);
    while ((mant & 0x400u) == 0) { /* every subnormal of fp16 is a normal float */
        mant <<= 1;
        exponent--;
    }
    return kvi_bits_f32(sign | exponent << 23 | (mant & 0x3ffu) << 13);
}

uint16_t kvi_f32_to_fp16(float x)
{
    const uint32_t u = kvi_f32_bits(x);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t a = u & F32_MAGNITUDE;

    if (a > F32_INF)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) /* 65520, the tie between 65504 and 2^16, goes to infinity */
        return (uint16_t)(sign | 0x7c00u);
    return (uint16_t)(sign | narrow(a, 10, 15));
}
