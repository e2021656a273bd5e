/* Sixteen floats at once, whatever the registers are: kernels in files named *_v16.h are written
 * once with these functions and compiled for each instruction set. A variant file (x86/NAME_avx2.c,
 * x86/NAME_avx512.c, arm/NAME_neon.c) includes this header and then the kernels, and holds nothing
 * else but its init function: all is static.
 *
 * Every function rounds each lane once as IEEE 754 says, so the same kernel gives the same bits on
 * every instruction set: this is numerics revision 2, "fused". It differs from the portable
 * kernels (revision 1) in nothing but
 *   - sums: a product is added with one rounding (fma). A sum of n products is made in sixteen
 *     lanes, lane i taking the products i, i + 16, i + 32, ... of a block of V16_BLOCK; the lanes
 *     are added pairwise (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1); the sums of the blocks are
 *     added in ascending order;
 *   - exp and what is made of it: v16_exp below instead of base/fmath.h.
 *
 *   v16_fma(a, b, c)    a * b + c          v16_fnma(a, b, c)   c - a * b
 *   v16_more(a, b)      a > b ? a : b      v16_less(a, b)      a < b ? a : b       (NaN gives b)
 *   v16_load_n(p, n)    n < 16 floats, the rest 0;  v16_store_n  n < 16
 *   v16_round           to the nearest integer, ties to even;  v16_to_int: of integral values
 *   v16_lt, gt, eq      false where NaN is; v16_choose(mask, yes, no)
 *   v16_load_bf16, f16, u8, i8   sixteen elements, any alignment
 *   v16_fold(a)         sum of the lanes in the order above
 *   v16_fold16(a)       lane i = v16_fold(a[i]); far cheaper than sixteen folds
 *   V16_TILE_M, _N      rows x rows of dot products whose sums fit the registers */
#ifndef KVI_V16_H
#define KVI_V16_H

#if defined(__AVX512F__)
#include "cpu/x86/v16_avx512.h"
#elif defined(__AVX2__)
#include "cpu/x86/v16_avx2.h"
#elif defined(__aarch64__)
#include "cpu/arm/v16_neon.h"
#endif

#define V16_BLOCK 1024u /* products of one fold: numerics revision 2 */

/* a . b */
static inline float v16_dot(const float *a, const float *b, size_t n)
{
    float sum = 0.0f;
    int   first = 1;

    for (size_t begin = 0; begin < n; begin += V16_BLOCK) {
        const size_t end = n - begin < V16_BLOCK ? n : begin + V16_BLOCK;
        v16          acc = v16_zero();
        size_t       i = begin;

        for (; i + 16 <= end; i += 16)
            acc = v16_fma(v16_load(a + i), v16_load(b + i), acc);
        if (i < end)
            acc = v16_fma(v16_load_n(a + i, end - i), v16_load_n(b + i, end - i), acc);
        sum = first ? v16_fold(acc) : sum + v16_fold(acc);
        first = 0;
    }
    return sum;
}

/* e^x, at most 1.5 ulp off: 0 below -87.33 (no subnormal results), +inf above 88.72, NaN of NaN.
 * x = n ln 2 + r, |r| <= ln 2 / 2, in two parts of ln 2 (Cody and Waite); e^r by the polynomial of
 * Cephes' expf, error 0.6 ulp before rounding. */
static inline v16 v16_exp(v16 x)
{
    const v16 n = v16_round(v16_mul(v16_less(v16_more(x, v16_set(-88.0f)), v16_set(89.0f)),
                                    v16_set(1.44269504088896341f)));
    v16       r = v16_fnma(n, v16_set(0.693359375f), x);
    v16       p = v16_set(1.9875691500e-4f);
    v16       y;

    r = v16_fnma(n, v16_set(-2.12194440e-4f), r);
    p = v16_fma(p, r, v16_set(1.3981999507e-3f));
    p = v16_fma(p, r, v16_set(8.3334519073e-3f));
    p = v16_fma(p, r, v16_set(4.1665795894e-2f));
    p = v16_fma(p, r, v16_set(1.6666665459e-1f));
    p = v16_fma(p, r, v16_set(5.0000001201e-1f));
    y = v16_add(v16_fma(p, v16_mul(r, r), r), v16_set(1.0f));
    /* 2^n in two factors: n reaches 128, whose power is no float */
    {
        const v16i k = v16_to_int(n);
        const v16i half = v16i_sar(k, 1);
        const v16i rest = v16i_sub(k, half);
        const v16i bias = v16i_set(127);

        y = v16_mul(y, v16_of_bits(v16i_shl(v16i_add(half, bias), 23)));
        y = v16_mul(y, v16_of_bits(v16i_shl(v16i_add(rest, bias), 23)));
    }
    y = v16_choose(v16_lt(x, v16_set(-87.33654f)), v16_zero(), y);
    y = v16_choose(v16_gt(x, v16_set(88.722839f)), v16_of_bits(v16i_set(0x7f800000)), y);
    return v16_choose(v16_isnan(x), x, y);
}

/* 1 / (1 + e^-x) */
static inline v16 v16_sigmoid(v16 x)
{
    const v16 e = v16_exp(v16_sub(v16_zero(), x));

    return v16_div(v16_set(1.0f), v16_add(v16_set(1.0f), e));
}

/* Rounded to bf16, ties to even; a NaN stays one. */
static inline v16 v16_round_bf16(v16 x)
{
    const v16i b = v16_bits(x);
    const v16i odd = v16i_and(v16i_shr(b, 16), v16i_set(1));
    const v16i up = v16i_add(b, v16i_add(odd, v16i_set(0x7fff)));

    return v16_choose(v16_isnan(x), x, v16_of_bits(v16i_and(up, v16i_set((int32_t)0xffff0000))));
}

#endif
