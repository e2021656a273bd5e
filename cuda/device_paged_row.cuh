/* How paged attention reads key and value rows: from shared memory straight into the registers of m16n8k16, so that a value is
 * decoded once and never stored again.
 *
 * An mma does not care in which order it goes through channels, if both operands agree. So a lane takes neighbouring channels
 * of a group of 32 in place of those that it would hold by the picture in device.cuh, with g = lane / 4 and t = lane % 4:
 *   key      8 channels of a row: word 2k, 2k + 1 are a[0], a[2] (or a[1], a[3]) of step k of the group's two
 *   value    4 channels of a row: two words, that are paired with those of the next row afterwards
 * key_channel(t, j), value_channel(g, j) say which channel of the group element j is.
 *
 * A format is a struct:
 *   HALF       operands are f16 (else bf16); both hold its codes without rounding
 *   GROUPED    operands are codes, and the group's scale is applied in fp32: to the sum of the group for keys, to the probability
 *              for values. So formats whose product of code and scale has no room in 16 bits lose nothing.
 *   BYTES      of 32 channels, with their scales
 *   WORDS16    rows start at 16-byte boundaries of shared memory */
#ifndef KVI_DEVICE_PAGED_ROW_CUH
#define KVI_DEVICE_PAGED_ROW_CUH

#include "device.cuh"

/* ---- pairs of 16-bit floats: the first in the low half ---- */

#ifdef KVI_CUDA_EMULATED
static inline uint32_t kvi_emu_to_half(float x) /* ties to even */
{
    const uint32_t u = kvi_bits(x), sign = u >> 16 & 0x8000u, m = u & 0x7fffffffu;

    if (m > 0x7f800000u)
        return sign | 0x7e00u;
    if (m >= 0x477ff000u)
        return sign | 0x7c00u;
    if (m < 0x38800000u) /* subnormal: a multiple of 2^-24 */
        return sign | static_cast<uint32_t>(std::nearbyint(kvi_float(m) * 16777216.0f));
    return sign | (m - 0x38000000u + 0xfffu + (m >> 13 & 1u)) >> 13;
}
#endif

KVI_DEV uint32_t kvi_f16x2(float low, float high)
{
#ifdef KVI_CUDA_EMULATED
    return kvi_emu_to_half(low) | kvi_emu_to_half(high) << 16;
#else
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#endif
}

KVI_DEV float kvi_of_f16(uint32_t low16)
{
#ifdef KVI_CUDA_EMULATED
    return kvi_emu_half(low16 & 0xffffu);
#else
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(static_cast<unsigned short>(low16)));
    return r;
#endif
}

KVI_DEV uint32_t kvi_mul_f16x2(uint32_t a, uint32_t b)
{
#ifdef KVI_CUDA_EMULATED
    return kvi_f16x2(kvi_of_f16(a) * kvi_of_f16(b), kvi_of_f16(a >> 16) * kvi_of_f16(b >> 16));
#else
    uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
#endif
}

/* a * b + c, rounded once. The emulation rounds twice: use it where nothing is rounded. */
KVI_DEV uint32_t kvi_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
#ifdef KVI_CUDA_EMULATED
    return kvi_bf16x2(kvi_of_bf16(a & 0xffffu) * kvi_of_bf16(b & 0xffffu) + kvi_of_bf16(c & 0xffffu),
                      kvi_of_bf16(a >> 16) * kvi_of_bf16(b >> 16) + kvi_of_bf16(c >> 16));
#else
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
#endif
}

/* 2^x, off by less than 2^-22 of itself; 0 where it would be subnormal. */
KVI_DEV float kvi_exp2_near(float x)
{
#ifdef KVI_CUDA_EMULATED
    return x < -126.0f ? 0.0f : std::exp2(x);
#else
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#endif
}

/* ---- bytes of shared memory at any address ---- */

/* Reads the aligned words that the four bytes touch. */
KVI_DEV uint32_t paged_word(const unsigned char *p)
{
    const unsigned  off = static_cast<unsigned>(reinterpret_cast<uintptr_t>(p) & 3u);
    const uint32_t *at = reinterpret_cast<const uint32_t *>(p - off);
    const uint32_t  low = at[0];

    if (off == 0)
        return low;
    return low >> (8 * off) | at[1] << (32 - 8 * off);
}

KVI_DEV uint32_t paged_half(const unsigned char *p) /* at an even address */
{
    return *reinterpret_cast<const uint16_t *>(p);
}

KVI_DEV float paged_e8m0(uint32_t code)
{
    return kvi_float(code == 0 ? 0x00400000u : code == 255u ? 0x7fc00000u : code << 23);
}

/* Four E2M1 codes in the low 16 bits: the bytes of their magnitudes, then signs at bits 15 and 31 of both words. */
KVI_DEV uint32_t paged_e2m1_bytes(uint32_t codes, uint32_t table_low, uint32_t table_high)
{
    return kvi_byte_perm(table_low, table_high, codes & 0x7777u);
}
KVI_DEV uint32_t paged_e2m1_signs(uint32_t codes) { return (codes & 0x8u) << 12 | (codes & 0x80u) << 24; }

/* ---- formats ---- */

struct paged_plain { /* 8 channels 8t.., 4 channels 4g.. */
    KVI_DEV unsigned key_channel(unsigned t, unsigned j) { return 8 * t + j; }
    KVI_DEV unsigned value_channel(unsigned g, unsigned j) { return 4 * g + j; }
    KVI_DEV float    scale(const unsigned char *, unsigned, unsigned) { return 1.0f; }
};

template <bool IS_HALF> struct paged_16bit : paged_plain {
    enum : bool { HALF = IS_HALF, GROUPED = false, WORDS16 = true };
    enum : unsigned { BYTES = 64 };
    KVI_DEV void key(const unsigned char *row, unsigned, unsigned group, unsigned t, uint32_t (&w)[4])
    {
        const uint4 v = *reinterpret_cast<const uint4 *>(row + 64 * group + 16 * t);
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    }
    KVI_DEV void value(const unsigned char *row, unsigned, unsigned group, unsigned g, uint32_t (&w)[2])
    {
        const uint2 v = *reinterpret_cast<const uint2 *>(row + 64 * group + 8 * g);
        w[0] = v.x, w[1] = v.y;
    }
};
typedef paged_16bit<true>  paged_f16;
typedef paged_16bit<false> paged_bf16;

/* E4M3 codes, then an E8M0 scale for 32. */
struct paged_mxfp8 : paged_plain {
    enum : bool { HALF = false, GROUPED = true, WORDS16 = false };
    enum : unsigned { BYTES = 33 };
    /* Exponent and mantissa three bits lower in bf16: 2^-120 of the value, subnormals too. Code 0x7f becomes NaN. */
    KVI_DEV uint32_t two(uint32_t bytes) /* at bits 0 and 16 */
    {
        const uint32_t magnitude = bytes & 0x007f007fu, nan = (magnitude + 0x00010001u) & 0x00800080u;

        return kvi_fma_bf16x2(magnitude << 4 | (bytes & 0x00800080u) << 8, 0x7b807b80u, 0x80008000u) | nan * 0xffu;
    }
    KVI_DEV void four(uint32_t bytes, uint32_t &w0, uint32_t &w1)
    {
        w0 = two(kvi_byte_perm(bytes, 0, 0x4140));
        w1 = two(kvi_byte_perm(bytes, 0, 0x4342));
    }
    KVI_DEV void key(const unsigned char *row, unsigned, unsigned group, unsigned t, uint32_t (&w)[4])
    {
        four(paged_word(row + 32 * group + 8 * t), w[0], w[1]);
        four(paged_word(row + 32 * group + 8 * t + 4), w[2], w[3]);
    }
    KVI_DEV void value(const unsigned char *row, unsigned, unsigned group, unsigned g, uint32_t (&w)[2])
    {
        four(paged_word(row + 32 * group + 4 * g), w[0], w[1]);
    }
    KVI_DEV float scale(const unsigned char *row, unsigned width, unsigned group) { return paged_e8m0(row[width + group]); }
};

/* E2M1 codes, then an E8M0 scale for 32. */
struct paged_mxfp4 : paged_plain {
    enum : bool { HALF = false, GROUPED = true, WORDS16 = false };
    enum : unsigned { BYTES = 17 };
    KVI_DEV void four(uint32_t codes, uint32_t &w0, uint32_t &w1)
    {
        const uint32_t low = paged_e2m1_bytes(codes, 0xc0800000u, 0xc0804000u); /* 0 .5 1 1.5 2 3 4 6 as bf16 */
        const uint32_t high = paged_e2m1_bytes(codes, 0x3f3f3f00u, 0x40404040u);

        w0 = kvi_byte_perm(low, high, 0x5140) | paged_e2m1_signs(codes);
        w1 = kvi_byte_perm(low, high, 0x7362) | paged_e2m1_signs(codes >> 8);
    }
    KVI_DEV void key(const unsigned char *row, unsigned, unsigned group, unsigned t, uint32_t (&w)[4])
    {
        const uint32_t codes = paged_word(row + 16 * group + 4 * t);
        four(codes, w[0], w[1]);
        four(codes >> 16, w[2], w[3]);
    }
    KVI_DEV void value(const unsigned char *row, unsigned, unsigned group, unsigned g, uint32_t (&w)[2])
    {
        const unsigned char *p = row + 16 * group + 2 * g;
        four(p[0] | static_cast<uint32_t>(p[1]) << 8, w[0], w[1]);
    }
    KVI_DEV float scale(const unsigned char *row, unsigned width, unsigned group) { return paged_e8m0(row[width / 2 + group]); }
};

/* E2M1 codes, then an E4M3 scale for 16: six significant bits from 2^-10 to 2688, exact in f16. */
struct paged_fp4 : paged_plain {
    enum : bool { HALF = true, GROUPED = false, WORDS16 = false };
    enum : unsigned { BYTES = 18 };
    /* Codes times 2^8, scales times 2^-8 (the exponent of E4M3 where f16 has its own), so that one product is left. */
    KVI_DEV void four(uint32_t codes, uint32_t scale, uint32_t &w0, uint32_t &w1)
    {
        const uint32_t high = paged_e2m1_bytes(codes, 0x5e5c5800u, 0x66646260u);

        w0 = kvi_mul_f16x2(kvi_byte_perm(high, 0, 0x1404) | paged_e2m1_signs(codes), scale);
        w1 = kvi_mul_f16x2(kvi_byte_perm(high, 0, 0x3424) | paged_e2m1_signs(codes >> 8), scale);
    }
    KVI_DEV uint32_t scale_of(const unsigned char *row, unsigned width, unsigned i)
    {
        const uint32_t code = row[width / 2 + i], magnitude = code & 0x7fu;
        const uint32_t f16 = magnitude == 0x7fu ? 0x7e00u : magnitude << 7 | (code & 0x80u) << 8;

        return f16 | f16 << 16;
    }
    KVI_DEV void key(const unsigned char *row, unsigned width, unsigned group, unsigned t, uint32_t (&w)[4])
    {
        const uint32_t codes = paged_word(row + 16 * group + 4 * t), scale = scale_of(row, width, 2 * group + t / 2);
        four(codes, scale, w[0], w[1]);
        four(codes >> 16, scale, w[2], w[3]);
    }
    KVI_DEV void value(const unsigned char *row, unsigned width, unsigned group, unsigned g, uint32_t (&w)[2])
    {
        four(paged_half(row + 16 * group + 2 * g), scale_of(row, width, 2 * group + g / 4), w[0], w[1]);
    }
};

/* An fp16 scale, 32 bytes. */
struct paged_q8 : paged_plain {
    enum : bool { HALF = false, GROUPED = true, WORDS16 = false };
    enum : unsigned { BYTES = 34 };
    /* 0x4300 | n is 128 + n for seven bits n, and 128 or 256 for the sign bit alone: their difference is the code. */
    KVI_DEV uint32_t two(uint32_t halves)
    {
        return kvi_fma_bf16x2(halves & 0xff7fff7fu, 0x3f803f80u, (halves & 0xff80ff80u) ^ 0x80008000u);
    }
    KVI_DEV void four(uint32_t bytes, uint32_t &w0, uint32_t &w1)
    {
        w0 = two(kvi_byte_perm(bytes, 0x43u, 0x4140));
        w1 = two(kvi_byte_perm(bytes, 0x43u, 0x4342));
    }
    KVI_DEV void key(const unsigned char *row, unsigned, unsigned group, unsigned t, uint32_t (&w)[4])
    {
        four(paged_word(row + 34 * group + 2 + 8 * t), w[0], w[1]);
        four(paged_word(row + 34 * group + 6 + 8 * t), w[2], w[3]);
    }
    KVI_DEV void value(const unsigned char *row, unsigned, unsigned group, unsigned g, uint32_t (&w)[2])
    {
        four(paged_word(row + 34 * group + 2 + 4 * g), w[0], w[1]);
    }
    KVI_DEV float scale(const unsigned char *row, unsigned, unsigned group) { return kvi_of_f16(paged_half(row + 34 * group)); }
};

/* An fp16 scale, 16 bytes: channel i low in byte i, channel i + 16 high. */
struct paged_q4 {
    enum : bool { HALF = false, GROUPED = true, WORDS16 = false };
    enum : unsigned { BYTES = 18 };
    KVI_DEV unsigned key_channel(unsigned t, unsigned j) { return 4 * t + j % 4 + 16 * (j / 4); }
    KVI_DEV unsigned value_channel(unsigned g, unsigned j) { return 2 * g + j % 2 + 16 * (j / 2); }
    KVI_DEV uint32_t two(uint32_t nibbles) /* at bits 0 and 16: 128 + n - 136 */
    {
        return kvi_fma_bf16x2(nibbles | 0x43004300u, 0x3f803f80u, 0xc308c308u);
    }
    KVI_DEV void key(const unsigned char *row, unsigned, unsigned group, unsigned t, uint32_t (&w)[4])
    {
        const uint32_t bytes = paged_word(row + 18 * group + 2 + 4 * t);
        const uint32_t a = kvi_byte_perm(bytes, 0, 0x4140), b = kvi_byte_perm(bytes, 0, 0x4342);
        w[0] = two(a & 0x000f000fu), w[1] = two(b & 0x000f000fu);
        w[2] = two(a >> 4 & 0x000f000fu), w[3] = two(b >> 4 & 0x000f000fu);
    }
    KVI_DEV void value(const unsigned char *row, unsigned, unsigned group, unsigned g, uint32_t (&w)[2])
    {
        const uint32_t a = kvi_byte_perm(paged_half(row + 18 * group + 2 + 2 * g), 0, 0x4140);
        w[0] = two(a & 0x000f000fu), w[1] = two(a >> 4 & 0x000f000fu);
    }
    KVI_DEV float scale(const unsigned char *row, unsigned, unsigned group) { return kvi_of_f16(paged_half(row + 18 * group)); }
};

/* ---- operands of either type ---- */

template <bool HALF> KVI_DEV void paged_mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    if (HALF)
        kvi_mma_f16(d, a, b);
    else
        kvi_mma_bf16(d, a, b);
}


template <bool HALF> KVI_DEV uint32_t paged_pack(float x, float y) { return HALF ? kvi_f16x2(x, y) : kvi_bf16x2(x, y); }
template <bool HALF> KVI_DEV float    paged_low(uint32_t w) { return HALF ? kvi_of_f16(w & 0xffffu) : kvi_float(w << 16); }
template <bool HALF> KVI_DEV float    paged_high(uint32_t w) { return HALF ? kvi_of_f16(w >> 16) : kvi_float(w & 0xffff0000u); }

#endif
