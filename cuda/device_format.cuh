/* Element types and groups of cached rows inside kernels: the bits of format/dtype.c, format/fp4.c and format/fp8.c.
 *
 * Conversions to a narrow type are integer arithmetic on the bits. Where the narrow value is subnormal there, one addition of
 * a power of two c does it: c's last place is the narrow type's step, so that the IEEE addition rounds to a multiple of it,
 * ties to the even one, and the low bits of the sum are the code. Multiplications are exact wherever nothing else is said;
 * nothing depends on how fp32 subnormals are treated except where the value itself is one. A NaN that arithmetic makes has
 * other bits on a device than on a host: whoever stores one names its bits. */
#ifndef KVI_DEVICE_FORMAT_CUH
#define KVI_DEVICE_FORMAT_CUH

#include "device.cuh"

enum : uint32_t { KVI_MAGNITUDE = 0x7fffffffu, KVI_INFINITY = 0x7f800000u, KVI_NAN = 0x7fc00000u };

/* ---- one element ---- */

/* Bits of |x| to the code of a type with MANT mantissa bits and exponent bias BIAS, whose range holds it: at most one past its
 * largest. */
template <unsigned MANT, unsigned BIAS> KVI_DEV uint32_t kvi_narrow(uint32_t a)
{
    const unsigned cut = 23 - MANT;
    const uint32_t normal = (128 - BIAS) << 23;                  /* smallest normal number: 2^(1 - BIAS) */
    const uint32_t step = (127 + 24 - BIAS - MANT) << 23;        /* c: its last place is 2^(1 - BIAS - MANT) */

    if (a < normal)
        return kvi_bits(kvi_float(a) + kvi_float(step)) - step;
    return ((a + ((1u << (cut - 1)) - 1) + (a >> cut & 1u)) >> cut) - ((127 - BIAS) << MANT);
}

KVI_DEV uint32_t kvi_to_e4m3(float x) /* saturates at 448; NaN = 0x7f with the sign */
{
    const uint32_t u = kvi_bits(x), a = u & KVI_MAGNITUDE, sign = u >> 24 & 0x80u;

    if (a >= 0x43e00000u) /* 448 */
        return sign | (a > KVI_INFINITY ? 0x7fu : 0x7eu);
    return sign | kvi_narrow<3, 7>(a);
}

KVI_DEV float kvi_of_e4m3(uint32_t code)
{
    const uint32_t m = code & 0x7fu, sign = (code & 0x80u) << 24;

    if (m == 0x7fu)
        return kvi_float(sign | KVI_NAN);
    /* Three mantissa bits under a field of four are the number times 2^-120; subnormals too. */
    return kvi_float(sign | m << 20) * kvi_float((120u + 127u) << 23);
}

KVI_DEV uint32_t kvi_to_e2m1(float x) /* saturates at 6; the sign also of zero; NaN = 0 */
{
    const uint32_t u = kvi_bits(x), a = u & KVI_MAGNITUDE, sign = u >> 28 & 8u;

    if (a >= 0x40a00001u) /* above 5 */
        return a > KVI_INFINITY ? 0 : sign | 7u;
    return sign | kvi_narrow<1, 1>(a);
}

KVI_DEV float kvi_of_e2m1(uint32_t code) /* low 4 bits */
{
    const uint32_t m = code & 7u;
    const uint32_t high = m < 4 ? 0x3f3f3f00u >> (8 * m) : 0x40404040u,
                   low = m < 4 ? 0xc0800000u >> (8 * m) : 0xc0804000u >> (8 * (m - 4));

    return kvi_float((code & 8u) << 28 | (high & 0xffu) << 24 | (low & 0xffu) << 16);
}

/* ceil(log2 x) + 127; x normal, positive and finite: the quantisers' least amax sees to it. */
KVI_DEV uint32_t kvi_to_e8m0_up(float x)
{
    const uint32_t code = (kvi_bits(x) + 0x7fffffu) >> 23;

    return code > 254 ? 254 : code;
}

KVI_DEV float kvi_of_e8m0(uint32_t code)
{
    return kvi_float(code == 0 ? 0x00400000u : code == 255 ? static_cast<uint32_t>(KVI_NAN) : code << 23);
}

KVI_DEV float kvi_half_of_e8m0(uint32_t code) /* 2^(code - 128): what twice a value is multiplied with */
{
    return kvi_float(code == 255 ? static_cast<uint32_t>(KVI_NAN) : code > 1 ? (code - 1) << 23 : 0x00200000u << code);
}

KVI_DEV uint32_t kvi_to_f16(float x)
{
    const uint32_t u = kvi_bits(x), a = u & KVI_MAGNITUDE, sign = u >> 16 & 0x8000u;

    if (a >= 0x477ff000u) /* 65520, the tie between 65504 and 2^16, goes to infinity */
        return sign | (a > KVI_INFINITY ? 0x7e00u | (a >> 13 & 0x3ffu) : 0x7c00u);
    return sign | kvi_narrow<10, 15>(a);
}

KVI_DEV float kvi_of_f16(uint32_t low16)
{
    const uint32_t m = low16 & 0x7fffu, sign = (low16 & 0x8000u) << 16;

    if (m >= 0x7c00u)
        return kvi_float(sign | KVI_INFINITY | (m & 0x3ffu) << 13);
    return kvi_float(sign | m << 13) * kvi_float((112u + 127u) << 23); /* as E4M3 */
}

/* ---- four and eight elements ---- */

/* Twice the values of the four E2M1 codes in the low 16 bits, int8 each, channel order. */
KVI_DEV uint32_t kvi_e2m1x4_twice(uint32_t codes)
{
    const uint32_t pick = codes & 0x7777u;
    const uint32_t plus = kvi_byte_perm(0x03020100u, 0x0c080604u, pick), minus = kvi_byte_perm(0xfdfeff00u, 0xf4f8fafcu, pick);
    const uint32_t negative = (kvi_byte_perm(codes << 4, codes, 0x5140u) >> 7 & 0x01010101u) * 0xffu;

    return (plus & ~negative) | (minus & negative);
}

/* The product of two pairs of bf16, each rounded once; subnormals count. */
KVI_DEV uint32_t kvi_mul_bf16x2(uint32_t a, uint32_t b)
{
#ifdef KVI_CUDA_EMULATED
    return kvi_bf16(kvi_of_bf16(a & 0xffffu) * kvi_of_bf16(b & 0xffffu)) |
           kvi_bf16(kvi_of_bf16(a >> 16) * kvi_of_bf16(b >> 16)) << 16;
#else
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u)); /* + -0 keeps the sign of a zero */
    return r;
#endif
}

/* Eight E2M1 codes, channel i in bits 4i.., as four pairs of bf16: exact. Tables of bytes: 16 operations. */
KVI_DEV void kvi_e2m1x8_bf16(uint32_t codes, uint32_t *out)
{
    KVI_UNROLL
    for (unsigned half = 0; half < 2; half++) {
        const uint32_t c = half ? codes >> 16 : codes, pick = c & 0x7777u;
        const uint32_t low = kvi_byte_perm(0xc0800000u, 0xc0804000u, pick);
        const uint32_t high = kvi_byte_perm(0x3f3f3f00u, 0x40404040u, pick) | (kvi_byte_perm(c << 4, c, 0x5140u) & 0x80808080u);
        out[2 * half] = kvi_byte_perm(low, high, 0x5140u);
        out[2 * half + 1] = kvi_byte_perm(low, high, 0x7362u);
    }
}

/* Four E4M3 codes as two pairs of bf16: exact. */
KVI_DEV void kvi_e4m3x4_bf16(uint32_t codes, uint32_t *out)
{
    const uint32_t magnitude = codes & 0x7f7f7f7fu, sign = codes & 0x80808080u;
    const uint32_t scale = 0x7b807b80u; /* 2^120 twice */

    KVI_UNROLL
    for (unsigned i = 0; i < 2; i++) {
        const uint32_t pick = i ? 0x3424u : 0x1404u; /* a code into the high byte of a half */
        out[i] = kvi_mul_bf16x2(kvi_byte_perm(magnitude, 0, pick) >> 4, scale) | kvi_byte_perm(sign, 0, pick);
    }
    if ((magnitude + 0x01010101u) & 0x80808080u) { /* a NaN among them, which no quantiser of ours writes into a value */
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++)
            if ((magnitude >> (8 * i) & 0xffu) == 0x7fu)
                out[i / 2] |= 0x7fc0u << (16 * (i % 2));
    }
}

/* ---- groups ---- */

KVI_DEV uint32_t kvi_pair(uint32_t bits16) { return bits16 | bits16 << 16; }

/* 16 channels of FP4_E4M3_G16. The bf16 forms are exact: a product has at most 6 significant bits and lies in 2^-10 .. 2688. */
KVI_DEV void kvi_decode_fp4_16(uint2 codes, uint32_t scale, float (&out)[16])
{
    const float s = kvi_of_e4m3(scale);
    uint32_t    v[8];

    kvi_e2m1x8_bf16(codes.x, v);
    kvi_e2m1x8_bf16(codes.y, v + 4);
    KVI_UNROLL
    for (unsigned i = 0; i < 8; i++) {
        out[2 * i] = kvi_float(v[i] << 16) * s;
        out[2 * i + 1] = kvi_float(v[i] & 0xffff0000u) * s;
    }
}

KVI_DEV void kvi_decode_fp4_16_bf16(uint2 codes, uint32_t scale, uint32_t (&out)[8])
{
    const uint32_t s = kvi_pair(kvi_bits(kvi_of_e4m3(scale)) >> 16);

    kvi_e2m1x8_bf16(codes.x, out);
    kvi_e2m1x8_bf16(codes.y, out + 4);
    KVI_UNROLL
    for (unsigned i = 0; i < 8; i++)
        out[i] = kvi_mul_bf16x2(out[i], s);
}

/* 32 channels of FP8_E8M0_G32: words 0 .. 7 hold four codes each. fp32 is exact (what reaches 2^128 is infinity); bf16 is
 * exact for every scale that the window rule writes (2^-22 and above), and rounded once below 2^-117. */
KVI_DEV void kvi_decode_fp8_32(uint4 first, uint4 second, uint32_t scale, float (&out)[32])
{
    const uint32_t w[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
    const float    s = kvi_of_e8m0(scale);

    KVI_UNROLL
    for (unsigned i = 0; i < 8; i++) {
        uint32_t v[2];
        kvi_e4m3x4_bf16(w[i], v);
        KVI_UNROLL
        for (unsigned k = 0; k < 2; k++) {
            out[4 * i + 2 * k] = kvi_float(v[k] << 16) * s;
            out[4 * i + 2 * k + 1] = kvi_float(v[k] & 0xffff0000u) * s;
        }
    }
}

KVI_DEV void kvi_decode_fp8_32_bf16(uint4 first, uint4 second, uint32_t scale, uint32_t (&out)[16])
{
    const uint32_t w[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
    const uint32_t s = kvi_pair(kvi_bits(kvi_of_e8m0(scale)) >> 16);

    KVI_UNROLL
    for (unsigned i = 0; i < 8; i++) {
        kvi_e4m3x4_bf16(w[i], out + 2 * i);
        out[2 * i] = kvi_mul_bf16x2(out[2 * i], s);
        out[2 * i + 1] = kvi_mul_bf16x2(out[2 * i + 1], s);
    }
}

/* ---- scales of a group; amax: bits of its largest magnitude after rounding to bf16 ---- */

struct kvi_group {
    uint32_t code;  /* the scale byte, NaN's where the group is poisoned: its codes are 0 then */
    float    scale; /* elements are x / scale, or x times it where it says so */
    bool     poisoned;
};

KVI_DEV kvi_group kvi_group_main(uint32_t amax) /* x / scale */
{
    const bool     bad = amax >= KVI_INFINITY;
    const uint32_t code = bad ? 0x7fu : kvi_to_e4m3(kvi_div(kvi_max(kvi_float(amax), 0.01171875f), 6.0f)); /* 6 * 2^-9 */

    return {code, kvi_of_e4m3(code), bad};
}

KVI_DEV kvi_group kvi_group_index(uint32_t amax) /* x * scale */
{
    const bool     bad = amax >= KVI_INFINITY;
    const float    least = kvi_float(0x01c00000u); /* 6 * 2^-126 */
    const uint32_t code = bad ? 255u : kvi_to_e8m0_up(kvi_max(kvi_float(amax), least) * (1.0f / 6.0f));

    return {code, kvi_of_e8m0(254u - (bad ? 127u : code)), bad};
}

KVI_DEV kvi_group kvi_group_window(uint32_t amax) /* x * scale */
{
    const bool     bad = amax >= KVI_INFINITY;
    const uint32_t code = bad ? 255u : kvi_to_e8m0_up(kvi_max(kvi_float(amax), 1e-4f) * (1.0f / 448.0f));

    return {code, kvi_of_e8m0(254u - (bad ? 127u : code)), bad};
}

#endif
