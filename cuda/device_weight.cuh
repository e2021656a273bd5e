/* Weights of the checkpoint as operands of the bf16 matrix instruction, and activations beside them.
 *
 * The unit is a piece: 16 channels of one row that lie side by side, as eight registers of two bf16. Registers 2j and 2j + 1 are what a
 * lane gives to step j of four (a[0] and a[2], or b[0] and b[1]): which channel stands in which place is free as long as weights and
 * activations agree, so each kind has the order in which its bytes unpack with the fewest instructions.
 *
 * E4M3 x 2^k and E2M1 x 2^k have at most four significant bits: exact in bf16 where the product is no subnormal of it (below 2^-126 it
 * is rounded by at most 2^-134). A float x of an activation is hi + lo, two bf16: |x - hi| <= 2^-8 2^e for 2^e <= |x|, so lo stands at
 * 2^(e - 9) or lower unless it is exactly 2^(e - 8), and |x - hi - lo| <= 2^-17 |x|. */
#ifndef KVI_DEVICE_WEIGHT_CUH
#define KVI_DEVICE_WEIGHT_CUH

#include "device.cuh"

/* KVI_W_* of backend/op_params.h, which kernels do not include */
enum weight_kind : unsigned { WEIGHT_F32 = 1, WEIGHT_BF16, WEIGHT_FP8, WEIGHT_FP8_ROW, WEIGHT_FP4 };

enum : unsigned { PIECE = 16, PIECE_REGS = 8, SCALE_GROUP = 32 };

/* Two products of bf16, each rounded; a zero keeps its sign, subnormals are numbers. */
KVI_DEV uint32_t kvi_mul_bf16x2(uint32_t a, uint32_t b)
{
#ifdef KVI_CUDA_EMULATED
    return kvi_bf16x2(kvi_of_bf16(a & 0xffffu) * kvi_of_bf16(b & 0xffffu), kvi_of_bf16(a >> 16) * kvi_of_bf16(b >> 16));
#else
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u)); /* - 0 */
    return d;
#endif
}

/* r *= 2^(e + at - 254), e an E8M0 code: in one product, or in two where the factor is no bf16 (scales above 2^(127 - (at - 127))). */
KVI_DEV void weight_scale(uint32_t (&r)[PIECE_REGS], unsigned e, unsigned at)
{
    const unsigned field = e + at - 127;
    const unsigned first = e == 255 ? 0x7fc0u : (field < 254 ? field : 254u) << 7;

    KVI_UNROLL
    for (unsigned i = 0; i < PIECE_REGS; i++)
        r[i] = kvi_mul_bf16x2(r[i], first | first << 16);
    if (field > 254 && e != 255) {
        const unsigned rest = (field - 254 + 127) << 7;
        KVI_UNROLL
        for (unsigned i = 0; i < PIECE_REGS; i++)
            r[i] = kvi_mul_bf16x2(r[i], rest | rest << 16);
    }
}

/* E2M1: the code's exponent and mantissa moved to bits 8..6 of a bf16 are the value / 2^126, the subnormal 0.5 too. Codes i and i + 4 of
 * a word stand 16 bits apart: one register. */
KVI_DEV void weight_fp4(uint32_t (&r)[PIECE_REGS], uint2 w, unsigned e)
{
    constexpr uint32_t SIZE = 0x01c001c0u, SIGN = 0x80008000u;

    KVI_UNROLL
    for (unsigned q = 0; q < 2; q++) {
        const uint32_t v = q ? w.y : w.x;
        r[4 * q] = ((v << 6) & SIZE) | ((v << 12) & SIGN);
        r[4 * q + 1] = ((v << 2) & SIZE) | ((v << 8) & SIGN);
        r[4 * q + 2] = ((v >> 2) & SIZE) | ((v << 4) & SIGN);
        r[4 * q + 3] = ((v >> 6) & SIZE) | (v & SIGN);
    }
    weight_scale(r, e, 127 + 126);
}

/* E4M3: exponent and mantissa at bits 10..4 of a bf16 are the value / 2^120; only the code of NaN would come out as a number (480). Bytes
 * i and i + 2 of a word make a register. */
KVI_DEV void weight_fp8(uint32_t (&r)[PIECE_REGS], uint4 w, unsigned e)
{
    constexpr uint32_t SIZE = 0x07f007f0u, SIGN = 0x80008000u;
    const uint32_t     v[4] = {w.x, w.y, w.z, w.w};
    uint32_t           nan = 0;

    KVI_UNROLL
    for (unsigned q = 0; q < 4; q++) {
        r[2 * q] = ((v[q] << 4) & SIZE) | ((v[q] << 8) & SIGN);
        r[2 * q + 1] = ((v[q] >> 4) & SIZE) | (v[q] & SIGN);
        nan |= (v[q] & 0x7f7f7f7fu) + 0x01010101u;
    }
    if (nan & 0x80808080u) {
        KVI_UNROLL
        for (unsigned i = 0; i < PIECE_REGS; i++) {
            if ((r[i] & 0x07f0u) == 0x07f0u)
                r[i] |= 0x7fc0u;
            if ((r[i] & 0x07f00000u) == 0x07f00000u)
                r[i] |= 0x7fc00000u;
        }
    }
    weight_scale(r, e, 127 + 120);
}

/* The two channels of a piece that stand in register i. */
template <unsigned KIND> KVI_DEV constexpr unsigned piece_low(unsigned i)
{
    return KIND == WEIGHT_FP4 ? 8 * (i / 4) + i % 4 : KIND == WEIGHT_BF16 ? 2 * i : 4 * (i / 2) + i % 2;
}
template <unsigned KIND> KVI_DEV constexpr unsigned piece_high(unsigned i)
{
    return piece_low<KIND>(i) + (KIND == WEIGHT_FP4 ? 4 : KIND == WEIGHT_BF16 ? 1 : 2);
}

/* One float in two bf16, whatever it is: an infinity and a NaN have no low part; a number that would round to infinity is cut twice, so
 * that the parts together do not reach it (off by less than 2^112, 2^-15 of it). */
KVI_DEV void piece_split_any(float x, uint32_t &hi, uint32_t &lo)
{
    const uint32_t size = kvi_bits(x) & 0x7fffffffu;

    const bool     cut = size >= 0x7f7f8000u && size <= 0x7f800000u;

    hi = cut ? kvi_bits(x) >> 16 : kvi_bf16(x);
    const float rest = x - kvi_of_bf16(hi);
    lo = size >= 0x7f800000u ? 0u : cut ? kvi_bits(rest) >> 16 : kvi_bf16(rest);
}

/* Activations of a piece in the order of a kind's weights: x = hi + lo. */
template <unsigned KIND> KVI_DEV void piece_split(const float (&x)[PIECE], uint32_t (&hi)[PIECE_REGS], uint32_t (&lo)[PIECE_REGS])
{
    uint32_t most = 0;

    KVI_UNROLL
    for (unsigned i = 0; i < PIECE; i++) {
        const uint32_t size = kvi_bits(x[i]) & 0x7fffffffu;
        most = most > size ? most : size;
    }
    if (most < 0x7f7f8000u) {
        KVI_UNROLL
        for (unsigned i = 0; i < PIECE_REGS; i++) {
            const float a = x[piece_low<KIND>(i)], b = x[piece_high<KIND>(i)];
            hi[i] = kvi_bf16x2(a, b);
            lo[i] = kvi_bf16x2(a - kvi_float(hi[i] << 16), b - kvi_float(hi[i] & 0xffff0000u));
        }
    } else {
        KVI_UNROLL
        for (unsigned i = 0; i < PIECE_REGS; i++) {
            uint32_t ha, la, hb, lb;
            piece_split_any(x[piece_low<KIND>(i)], ha, la);
            piece_split_any(x[piece_high<KIND>(i)], hb, lb);
            hi[i] = ha | hb << 16;
            lo[i] = la | lb << 16;
        }
    }
}

#endif
