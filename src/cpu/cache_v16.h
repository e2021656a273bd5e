/* Cache bytes from floats and back with sixteen lanes: what is the same for every instruction set.
 * A variant file defines, in front of this header, the functions named cache_* listed below; they
 * are the ones that shuffle.
 *
 * Rows are taken in chunks of sixteen groups: the largest magnitudes of the groups come first, one
 * in each lane, so that the scales of a chunk cost as much as one scale alone. All is exact, by the
 * arguments at each function; NaN codes and the like, which no row of a healthy session holds, go
 * to the portable functions. Rounding is to nearest even, the mode of every operator
 * (base/fpenv.h).
 *
 *   v16  cache_amax(x, n_groups, group)  lane g: largest |x| of group g as a bit pattern (NaN and
 *                                        infinity on top); that of group 0 where g >= n_groups.
 *                                        group: 16 or 32
 *   void cache_nibbles(x, t, out)        16 channels to 8 bytes: E2M1 codes by limits t[0..6]
 *   void cache_put_bytes(p, a)           low bytes of the lanes
 *   void cache_put_words(p, a)           low halves of the lanes
 *   void cache_put_f16(p, x)             fp16, nearest even; NaN 0x7e00 of NaN 0x7fc00000
 *   v16  cache_e4m3_256(p)               16 E4M3 codes, none of them NaN: value / 256
 *   int  cache_any_e4m3_nan(p, n)        is a code 0x7f or 0xff among n (a multiple of 32)?
 *   int  cache_any(m)                    is a lane of the mask true?
 *   v16  cache_f16(p)                    one fp16 in all lanes; a NaN comes quiet
 *   void cache_q4(p, lo, hi)             low and high nibbles of 16 bytes, minus 8
 *   void cache_fp4_16(p, s, out)         8 bytes of E2M1 times s: 16 floats
 *   void cache_twice(p, out)             8 bytes of E2M1 to 16 int8, twice the values */
#ifndef KVI_CPU_CACHE_V16_H
#define KVI_CPU_CACHE_V16_H

#include <float.h>
#include <string.h>

#include "base/bytes.h"
#include "cpu/cache_kernels.h"
#include "format/dtype.h"
#include "format/fp4.h"
#include "format/fp8.h"
#include "format/row.h"
#include "kvcsa.h"

enum {
    CACHE_CHUNK = 16, /* groups */
    CACHE_Q8_BYTES = 34,
    CACHE_Q4_BYTES = 18
};

/* ---------------------------------------------------------------- scales */

/* Scales of a chunk. */
typedef struct cache_scales {
    float   s[CACHE_CHUNK];     /* finite, also where the group is poisoned */
    uint8_t codes[CACHE_CHUNK]; /* the NaN code where it is */
    int     any_poisoned;
} cache_scales;

/* bf16 of finite magnitudes, ties to even; the carry out of the largest makes infinity. */
static inline v16 cache_round(v16i bits)
{
    const v16i odd = v16i_and(v16i_shr(bits, 16), v16i_set(1));
    const v16i up = v16i_add(bits, v16i_add(odd, v16i_set(0x7fff)));

    return v16_of_bits(v16i_and(up, v16i_set((int32_t)0xffff0000)));
}

static inline v16i cache_abs(v16i bits)
{
    return v16i_and(bits, v16i_set(0x7fffffff));
}

/* Lanes whose group is not poisoned: its largest magnitude is finite in bf16. 0x7f7f8000 is the tie
 * between the largest bf16 and 2^128; NaN is not below it either. */
static inline v16m cache_healthy(v16 amax)
{
    return v16_lt(amax, v16_of_bits(v16i_set(0x7f7f8000)));
}

static inline v16i cache_choose_int(v16m m, v16i yes, v16i no)
{
    return v16_bits(v16_choose(m, v16_of_bits(yes), v16_of_bits(no)));
}

/* E4M3 codes of magnitudes v <= 448. From 2^-6 on the code is the float's exponent and first three
 * bits of mantissa: adding just under half of what is cut off, plus one where the kept part is odd,
 * rounds to nearest even, and a carry moves on to the next exponent by itself; 120 << 3 is the
 * difference of the biases, 127 and 7. Below 2^-6 the codes are the multiples of 2^-9; v * 512 is
 * exact (or subnormal, and then far below the first tie), and the conversion rounds once. */
static inline v16i cache_e4m3_codes(v16 v)
{
    const v16i b = v16_bits(v);
    const v16i odd = v16i_and(v16i_shr(b, 20), v16i_set(1));
    const v16i up = v16i_add(v16i_add(b, v16i_set(0x7ffff)), odd);
    const v16i normal = v16i_sub(v16i_shr(up, 20), v16i_set(120 << 3));
    const v16i small = v16_to_int(v16_mul(v, v16_set(512.0f)));

    return cache_choose_int(v16_lt(v, v16_set(0x1p-6f)), small, normal);
}

static inline void cache_put_scales(v16m healthy, v16i codes, int32_t nan_code, v16 s,
                                    cache_scales *out)
{
    const v16i all = cache_choose_int(healthy, codes, v16i_set(nan_code));

    cache_put_bytes(out->codes, all);
    v16_store(out->s, s);
    out->any_poisoned = cache_any(v16_lt(v16_choose(healthy, v16_set(1.0f), v16_zero()),
                                         v16_set(1.0f)));
}

/* Q-MAIN: E4M3 of max(amax, 6 * 2^-9) / 6, a true division as in the rule. The code's value is a
 * multiple of 2^-9 below 2^-6, and else the bits that the code was made of. */
static inline void cache_scales_main(v16 amax, cache_scales *out)
{
    const v16m healthy = cache_healthy(amax);
    const v16  a = v16_more(cache_round(v16_bits(amax)), v16_set(6.0f * 0x1p-9f));
    const v16  v = v16_less(v16_div(a, v16_set(6.0f)), v16_set(448.0f));
    const v16i codes = cache_e4m3_codes(v);
    const v16  small = v16_mul(v16_of_int(codes), v16_set(0x1p-9f));
    const v16  normal = v16_of_bits(v16i_add(v16i_shl(codes, 20), v16i_set(120 << 23)));

    cache_put_scales(healthy, codes, 0x7f, v16_choose(v16_lt(v, v16_set(0x1p-6f)), small, normal),
                     out);
}

/* Q-IDX and Q-SWA: 2^ceil(log2(max(amax, least) * factor)). The product is a normal float between
 * 2^-126 and 2^126, so its exponent field, plus one where the mantissa is not 0, is the code, and
 * the code shifted back is the scale. */
static inline void cache_scales_e8m0(v16 amax, float least, float factor, cache_scales *out)
{
    const v16m healthy = cache_healthy(amax);
    const v16  a = v16_less(v16_more(cache_round(v16_bits(amax)), v16_set(least)),
                            v16_set(FLT_MAX));
    const v16i b = v16_bits(v16_mul(a, v16_set(factor)));
    const v16i codes = v16i_shr(v16i_add(b, v16i_set(0x7fffff)), 23);

    cache_put_scales(healthy, codes, 0xff, v16_of_bits(v16i_shl(codes, 23)), out);
}

static inline void cache_scales_index(v16 amax, cache_scales *out)
{
    cache_scales_e8m0(amax, 6.0f * 0x1p-126f, 1.0f / 6.0f, out);
}

static inline void cache_scales_window(v16 amax, cache_scales *out)
{
    cache_scales_e8m0(amax, 1e-4f, 1.0f / 448.0f, out);
}

/* ---------------------------------------------------------------- E2M1 */

/* The code of x under scale s is the number of midpoints m below |bf16(x) / s| (.25, 1.25, 2.5 and
 * 5 strictly below, .75, 1.75 and 3.5 also if equal: ties to the even code). Neither the division
 * nor the rounding to bf16 has to be done; t[i] is such that the i-th midpoint counts exactly if
 * the bits of |x| are greater.
 *
 * 1. No division: s has at most 4 significant bits (E4M3; a power of two has 1) and m at most 3, so
 *    t = m s is exact in fp32, also when it is a subnormal, and has at most 7 significant bits: it
 *    is a bf16 value. With X = bf16(x): X > t implies X >= t + ulp / 2 in 8 bits, so that X / s is
 *    larger than m by a factor of at least 1 + 2^-9 and stays larger when rounded to 24 bits;
 *    X < t likewise, and X = t gives exactly m. So X / s compares with m as X with t. A quotient
 *    that is subnormal lies below all midpoints, as |X| lies below all t. t may overflow to
 *    infinity (5 * 2^126): no X is larger, and X / s < 4 there.
 * 2. No rounding: t with 7 significant bits is even as a bf16 (bit 16 of its pattern is 0; the
 *    lattice of subnormals is the one of the smallest normal binade, 7 bits there too). Patterns of
 *    magnitudes are ordered like the values, and rounding to bf16 is rounding of the pattern to
 *    multiples of 2^16. So bf16(x) > t exactly if x lies above the middle between t and the next
 *    bf16, pattern(t) + 0x8000, since the tie goes to the even t; and bf16(x) >= t exactly if x is
 *    at or above pattern(t) - 0x8000, the tie in front of t, which goes to t as well. */
static inline void cache_limits(const float s[CACHE_CHUNK], int32_t t[CACHE_CHUNK + 1][8])
{
    static const float mid[16] = {.25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 5.0f,
                                  .25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 5.0f};
    static const int32_t half[16] = {0x8000, -0x8001, 0x8000, -0x8001, 0x8000, -0x8001, 0x8000, 0,
                                     0x8000, -0x8001, 0x8000, -0x8001, 0x8000, -0x8001, 0x8000, 0};
    const v16  m = v16_load(mid);
    const v16i h = v16i_load(half);

    for (size_t g = 0; g < CACHE_CHUNK; g++) /* the second half is written over by the next */
        v16i_store(t[g], v16i_add(v16_bits(v16_mul(v16_set(s[g]), m)), h));
}

/* n <= 16 groups of 16 or 32 channels. */
static inline void cache_pack_chunk(const float *x, size_t n, size_t group, const cache_scales *sc,
                                    uint8_t *values)
{
    const uint8_t nan_code = group == KVI_MAIN_GROUP ? 0x7f : 0xff;
    int32_t       t[CACHE_CHUNK + 1][8];

    cache_limits(sc->s, t);
    for (size_t g = 0; g < n; g++)
        for (size_t c = g * group; c < (g + 1) * group; c += 16)
            cache_nibbles(x + c, t[g], values + c / 2);
    if (sc->any_poisoned)
        for (size_t g = 0; g < n; g++)
            if (sc->codes[g] == nan_code)
                memset(values + g * group / 2, 0, group / 2);
}

static inline size_t cache_chunk(size_t n_groups, size_t g)
{
    return n_groups - g < CACHE_CHUNK ? n_groups - g : CACHE_CHUNK;
}

static void cache_encode_main(const float *x, uint32_t width, uint8_t *row)
{
    const size_t n_groups = width / KVI_MAIN_GROUP;
    uint8_t     *scales = row + width / 2;
    cache_scales sc;

    for (size_t g = 0; g < n_groups; g += CACHE_CHUNK) {
        const size_t n = cache_chunk(n_groups, g);
        const float *gx = x + g * KVI_MAIN_GROUP;

        cache_scales_main(cache_amax(gx, n, KVI_MAIN_GROUP), &sc);
        cache_pack_chunk(gx, n, KVI_MAIN_GROUP, &sc, row + g * KVI_MAIN_GROUP / 2);
        memcpy(scales + g, sc.codes, n);
    }
}

static void cache_encode_index(const float *x, uint32_t width, uint8_t *values, uint8_t *scales)
{
    const size_t n_groups = width / KVI_INDEX_GROUP;
    cache_scales sc;

    for (size_t g = 0; g < n_groups; g += CACHE_CHUNK) {
        const size_t n = cache_chunk(n_groups, g);
        const float *gx = x + g * KVI_INDEX_GROUP;

        cache_scales_index(cache_amax(gx, n, KVI_INDEX_GROUP), &sc);
        cache_pack_chunk(gx, n, KVI_INDEX_GROUP, &sc, values + g * KVI_INDEX_GROUP / 2);
        memcpy(scales + g, sc.codes, n);
    }
}

/* Half of the scale: exact, the smallest is 2^-127. */
static void cache_encode_query(const float *x, size_t n_groups, int8_t *codes, float *scales)
{
    uint8_t      packed[CACHE_CHUNK * KVI_INDEX_GROUP / 2];
    cache_scales sc;

    for (size_t g = 0; g < n_groups; g += CACHE_CHUNK) {
        const size_t n = cache_chunk(n_groups, g);
        const float *gx = x + g * KVI_INDEX_GROUP;

        cache_scales_index(cache_amax(gx, n, KVI_INDEX_GROUP), &sc);
        cache_pack_chunk(gx, n, KVI_INDEX_GROUP, &sc, packed);
        for (size_t i = 0; i < n * KVI_INDEX_GROUP; i += 16)
            cache_twice(packed + i / 2, codes + g * KVI_INDEX_GROUP + i);
        for (size_t i = 0; i < n; i++)
            scales[g + i] = sc.codes[i] == 0xff ? kvi_e8m0_to_f32(0xff) * 0.5f : sc.s[i] * 0.5f;
    }
}

/* ---------------------------------------------------------------- E4M3 */

/* |x| / scale is a product with a power of two (254 - code is the code of its inverse), exact or
 * far below the first tie; scale 2^-22 at least keeps the inverse finite, and |x| / scale <= 448
 * because scale >= amax * fp32(1 / 448), where amax has 8 bits. */
static void cache_encode_window(const float *x, uint32_t width, uint8_t *row)
{
    const size_t n_groups = width / KVI_WINDOW_GROUP;
    cache_scales sc;

    for (size_t g = 0; g < n_groups; g += CACHE_CHUNK) {
        const size_t n = cache_chunk(n_groups, g);
        const float *gx = x + g * KVI_WINDOW_GROUP;
        uint8_t     *values = row + g * KVI_WINDOW_GROUP;

        cache_scales_window(cache_amax(gx, n, KVI_WINDOW_GROUP), &sc);
        for (size_t i = 0; i < n; i++, values += KVI_WINDOW_GROUP) {
            v16 inverse;

            if (sc.codes[i] == 0xff) {
                memset(values, 0, KVI_WINDOW_GROUP);
                continue;
            }
            inverse = v16_of_bits(v16i_set((254 - sc.codes[i]) << 23));
            for (size_t c = 0; c < KVI_WINDOW_GROUP; c += 16) {
                const v16i b = v16_bits(v16_load(gx + i * KVI_WINDOW_GROUP + c));
                const v16  a = cache_round(cache_abs(b));
                const v16i sign = v16i_and(v16i_shr(b, 24), v16i_set(0x80));

                cache_put_bytes(values + c,
                                v16i_or(cache_e4m3_codes(v16_mul(a, inverse)), sign));
            }
        }
        memcpy(row + width + g, sc.codes, n);
    }
}

/* value / 256 times 256 scale, both exact: code + 8 is the code of 256 scale, a normal float while
 * code <= 246. A row with a larger scale or a NaN is left to the portable function. */
static void cache_decode_window(const uint8_t *row, uint32_t width, float *out)
{
    const size_t   n_groups = width / KVI_WINDOW_GROUP;
    const uint8_t *scales = row + width;
    uint8_t        top = 0;

    for (size_t g = 0; g < n_groups; g++)
        top = scales[g] > top ? scales[g] : top;
    if (top > 246 || cache_any_e4m3_nan(row, width)) {
        kvi_dequant_window(row, scales, width, out);
        return;
    }
    for (size_t g = 0; g < n_groups; g++, row += KVI_WINDOW_GROUP, out += KVI_WINDOW_GROUP) {
        const v16 s = v16_of_bits(v16i_set((scales[g] + 8) << 23));

        v16_store(out, v16_mul(cache_e4m3_256(row), s));
        v16_store(out + 16, v16_mul(cache_e4m3_256(row + 16), s));
    }
}

/* ---------------------------------------------------------------- decoding */

/* E2M1 x E4M3 has at most 2 + 4 significant bits, E2M1 x E8M0 two, and the smallest, 2^-128, is a
 * multiple of 2^-149: every product is exact. */
static void cache_decode_main(const uint8_t *row, uint32_t width, float *out)
{
    const size_t       n_groups = width / KVI_MAIN_GROUP;
    const uint8_t     *scales = row + width / 2;
    const float *const value = kvi_e4m3_values;
    int                poisoned = cache_any_e4m3_nan(scales, n_groups & ~(size_t)31);

    for (size_t g = n_groups & ~(size_t)31; g < n_groups; g++)
        poisoned |= (scales[g] & 0x7f) == 0x7f;
    if (poisoned) {
        kvi_dequant_main(row, scales, width, out);
        return;
    }
    for (size_t g = 0; g < n_groups; g++)
        cache_fp4_16(row + g * KVI_MAIN_GROUP / 2, value[scales[g]], out + g * KVI_MAIN_GROUP);
}

static void cache_decode_index(const uint8_t *row, uint32_t width, float *out)
{
    const uint8_t *scales = row + width / 2;

    for (size_t g = 0; g < width / KVI_INDEX_GROUP;
         g++, row += KVI_INDEX_GROUP / 2, out += KVI_INDEX_GROUP) {
        /* code 0 is 2^-127, a subnormal */
        const float s = kvi_bits_f32(scales[g] != 0 ? (uint32_t)scales[g] << 23 : 0x00400000u);

        if (scales[g] == 0xff) {
            kvi_dequant_index(row, scales + g, KVI_INDEX_GROUP, out);
            continue;
        }
        cache_fp4_16(row, s, out);
        cache_fp4_16(row + 8, s, out + 16);
    }
}

static void cache_decode_q8(const uint8_t *row, uint32_t width, float *out)
{
    for (size_t c = 0; c < width; c += 32, row += CACHE_Q8_BYTES) {
        const v16 d = cache_f16(row);

        v16_store(out + c, v16_mul(v16_load_i8(row + 2), d));
        v16_store(out + c + 16, v16_mul(v16_load_i8(row + 18), d));
    }
}

static void cache_decode_q4(const uint8_t *row, uint32_t width, float *out)
{
    for (size_t c = 0; c < width; c += 32, row += CACHE_Q4_BYTES) {
        const v16 d = cache_f16(row);
        v16       lo;
        v16       hi;

        cache_q4(row + 2, &lo, &hi);
        v16_store(out + c, v16_mul(lo, d));
        v16_store(out + c + 16, v16_mul(hi, d));
    }
}

/* The hardware makes NaNs quiet, the portable function keeps their bits. */
static void cache_decode_f16(const uint8_t *row, uint32_t width, float *out)
{
    size_t c = 0;

    for (; c + 16 <= width; c += 16) {
        const v16 x = v16_load_f16(row + 2 * c);

        if (cache_any(v16_isnan(x)))
            kvi_row_decode(KVCSA_FORMAT_F16, row + 2 * c, 16, out + c);
        else
            v16_store(out + c, x);
    }
    kvi_row_decode(KVCSA_FORMAT_F16, row + 2 * c, width - c, out + c);
}

static void cache_decode_bf16(const uint8_t *row, uint32_t width, float *out)
{
    size_t c = 0;

    for (; c + 16 <= width; c += 16)
        v16_store(out + c, v16_load_bf16(row + 2 * c));
    kvi_row_decode(KVCSA_FORMAT_BF16, row + 2 * c, width - c, out + c);
}

static void cache_decode_entry(uint32_t format, const uint8_t *row, uint32_t width, float *out)
{
    switch (format) {
    case KVCSA_FORMAT_FP4_E4M3_G16:
        cache_decode_main(row, width, out);
        break;
    case KVCSA_FORMAT_FP4_E8M0_G32:
        cache_decode_index(row, width, out);
        break;
    case KVCSA_FORMAT_FP8_E8M0_G32:
        cache_decode_window(row, width, out);
        break;
    case KVCSA_FORMAT_F16:
        cache_decode_f16(row, width, out);
        break;
    case KVCSA_FORMAT_BF16:
        cache_decode_bf16(row, width, out);
        break;
    case KVCSA_FORMAT_Q8_0:
        cache_decode_q8(row, width, out);
        break;
    case KVCSA_FORMAT_Q4_0:
        cache_decode_q4(row, width, out);
        break;
    default: /* F32 and FP4_AS_F32 are copies, INT3 is for experiments */
        kvi_row_decode(format, row, width, out);
        break;
    }
}

/* ---------------------------------------------------------------- encoding of other formats */

/* Scales of a chunk of Q8_0 or Q4_0: d, and 1 / d where d is a normal float, else 0. */
typedef struct cache_blocks {
    float    inverse[CACHE_CHUNK];
    uint16_t d[CACHE_CHUNK]; /* fp16; NaN of a poisoned block */
} cache_blocks;

/* 65520 is the tie between the largest fp16 and infinity. */
static inline void cache_put_blocks(v16m healthy, v16 d, cache_blocks *out)
{
    const v16 nan = v16_of_bits(v16i_set(0x7fc00000));
    const v16 a = v16_of_bits(cache_abs(v16_bits(d)));
    const v16 inverse = v16_div(v16_set(1.0f), d); /* infinite where it is not used */

    v16_store(out->inverse, v16_choose(v16_lt(a, v16_set(FLT_MIN)), v16_zero(), inverse));
    cache_put_f16(out->d, v16_choose(healthy, v16_choose(v16_lt(a, v16_set(65520.0f)), d, nan),
                                     nan));
}

/* Halves away from 0: what v16_round, to even, took down from a half goes up. */
static inline v16i cache_q8_codes(v16i b, v16 inverse)
{
    const v16  q = v16_mul(cache_round(cache_abs(b)), inverse);
    const v16  r = v16_round(q);
    const v16m tie = v16_eq(v16_sub(q, r), v16_set(0.5f));
    const v16i a = v16_to_int(v16_add(r, v16_choose(tie, v16_set(1.0f), v16_zero())));
    const v16i sign = v16i_sar(b, 31);

    return v16i_sub(v16i_xor(a, sign), sign);
}

/* d = amax / 127, codes = x / d by a product. */
static void cache_encode_q8(const float *x, uint32_t width, uint8_t *row)
{
    const size_t n_groups = width / 32;
    cache_blocks blocks;

    for (size_t g = 0; g < n_groups; g += CACHE_CHUNK) {
        const size_t n = cache_chunk(n_groups, g);
        const v16    amax = cache_amax(x, n, 32);

        cache_put_blocks(cache_healthy(amax),
                         v16_div(cache_round(v16_bits(amax)), v16_set(127.0f)), &blocks);
        for (size_t i = 0; i < n; i++, x += 32, row += CACHE_Q8_BYTES) {
            const v16 inverse = v16_set(blocks.inverse[i]);

            memcpy(row, &blocks.d[i], 2);
            if (blocks.d[i] == 0x7e00) {
                memset(row + 2, 0, 32);
                continue;
            }
            cache_put_bytes(row + 2, cache_q8_codes(v16_bits(v16_load(x)), inverse));
            cache_put_bytes(row + 18, cache_q8_codes(v16_bits(v16_load(x + 16)), inverse));
        }
    }
}

/* Sign bit of the first of the channels whose magnitude, in bf16, is a: both signs are rare. */
static inline uint32_t cache_first_sign(const float *x, float a)
{
    const v16i sign = v16i_set((int32_t)0x80000000);
    int        seen[2] = {0, 0};

    for (size_t c = 0; c < 32; c += 16) {
        const v16i b = v16_bits(v16_load(x + c));
        const v16  r = v16_of_bits(v16i_or(v16_bits(cache_round(cache_abs(b))),
                                           v16i_and(b, sign)));

        seen[0] |= cache_any(v16_eq(r, v16_set(a)));
        seen[1] |= cache_any(v16_eq(r, v16_set(-a)));
    }
    if (seen[0] && seen[1])
        for (size_t c = 0; c < 32; c++)
            if (kvi_bits_f32(kvi_f32_bits(kvi_round_bf16(x[c])) & 0x7fffffffu) == a)
                return kvi_f32_bits(x[c]) & 0x80000000u;
    return seen[1] ? 0x80000000u : 0;
}

/* The integer part of x / d + 8.5, at most 15. The sum lies in 0.5..16.5, and what v16_round took
 * up goes down. */
static inline v16i cache_q4_codes(v16i b, v16 inverse)
{
    const v16i sign = v16i_and(b, v16i_set((int32_t)0x80000000));
    const v16  x = v16_of_bits(v16i_or(v16_bits(cache_round(cache_abs(b))), sign));
    const v16  q = v16_add(v16_mul(x, inverse), v16_set(8.5f));
    const v16  r = v16_round(q);
    const v16  down = v16_sub(r, v16_choose(v16_gt(r, q), v16_set(1.0f), v16_zero()));

    return v16_to_int(v16_less(down, v16_set(15.0f)));
}

/* d = extreme / -8, where extreme is the first value of largest magnitude, with its sign; +0 of a
 * zero group (so that d is -0). */
static void cache_encode_q4(const float *x, uint32_t width, uint8_t *row)
{
    const size_t n_groups = width / 32;
    float        extreme[CACHE_CHUNK];
    cache_blocks blocks;

    for (size_t g = 0; g < n_groups; g += CACHE_CHUNK) {
        const size_t n = cache_chunk(n_groups, g);
        const v16    amax = cache_amax(x, n, 32);

        v16_store(extreme, cache_round(v16_bits(amax)));
        for (size_t i = 0; i < n; i++)
            if (extreme[i] > 0.0f && cache_first_sign(x + 32 * i, extreme[i]))
                extreme[i] = -extreme[i];
        cache_put_blocks(cache_healthy(amax), v16_div(v16_load(extreme), v16_set(-8.0f)), &blocks);
        for (size_t i = 0; i < n; i++, x += 32, row += CACHE_Q4_BYTES) {
            const v16 inverse = v16_set(blocks.inverse[i]);

            memcpy(row, &blocks.d[i], 2);
            if (blocks.d[i] == 0x7e00)
                memset(row + 2, 0, 16);
            else
                cache_put_bytes(row + 2, v16i_or(cache_q4_codes(v16_bits(v16_load(x)), inverse),
                                                 v16i_shl(cache_q4_codes(
                                                     v16_bits(v16_load(x + 16)), inverse), 4)));
        }
    }
}

static void cache_encode_f16(const float *x, uint32_t width, uint8_t *row)
{
    size_t c = 0;

    for (; c + 16 <= width; c += 16) {
        const v16  v = v16_load(x + c);
        const v16m healthy = v16_lt(v16_of_bits(cache_abs(v16_bits(v))), v16_set(65520.0f));

        cache_put_f16(row + 2 * c, v16_choose(healthy, v, v16_of_bits(v16i_set(0x7fc00000))));
    }
    (void)kvi_row_encode(KVCSA_FORMAT_F16, x + c, width - c, row + 2 * c);
}

static void cache_encode_bf16(const float *x, uint32_t width, uint8_t *row)
{
    size_t c = 0;

    for (; c + 16 <= width; c += 16) {
        const v16i b = v16_bits(v16_load(x + c));
        const v16m healthy = cache_healthy(v16_of_bits(cache_abs(b)));
        const v16i r = cache_choose_int(healthy, v16_bits(cache_round(b)), v16i_set(0x7fc00000));

        cache_put_words(row + 2 * c, v16i_shr(r, 16));
    }
    (void)kvi_row_encode(KVCSA_FORMAT_BF16, x + c, width - c, row + 2 * c);
}

static void cache_encode_entry(uint32_t format, const float *x, uint32_t width, uint8_t *row)
{
    switch (format) {
    case KVCSA_FORMAT_FP4_E4M3_G16:
        cache_encode_main(x, width, row);
        break;
    case KVCSA_FORMAT_FP4_E8M0_G32:
        cache_encode_index(x, width, row, row + width / 2);
        break;
    case KVCSA_FORMAT_FP8_E8M0_G32:
        cache_encode_window(x, width, row);
        break;
    case KVCSA_FORMAT_F16:
        cache_encode_f16(x, width, row);
        break;
    case KVCSA_FORMAT_BF16:
        cache_encode_bf16(x, width, row);
        break;
    case KVCSA_FORMAT_Q8_0:
        cache_encode_q8(x, width, row);
        break;
    case KVCSA_FORMAT_Q4_0:
        cache_encode_q4(x, width, row);
        break;
    default:
        (void)kvi_row_encode(format, x, width, row);
        break;
    }
}

/* ---------------------------------------------------------------- pooling */

/* v16_more is the rule's g0 > g1 ? g0 : g1, also with NaN. A weight below 2^-126 is 0, so an infinite
 * k gives NaN there, where the portable kernel, whose exp has subnormals, gives infinity. */
static inline v16 cache_pool(v16 k0, v16 k1, v16 g0, v16 g1)
{
    const v16 m = v16_more(g0, g1);
    const v16 e0 = v16_exp(v16_sub(g0, m));
    const v16 e1 = v16_exp(v16_sub(g1, m));
    const v16 sum = v16_add(e0, e1);

    return v16_add(v16_mul(k0, v16_div(e0, sum)), v16_mul(k1, v16_div(e1, sum)));
}

static void cache_pool_pair(const float *const k[2], const float *const gate[2], uint32_t width,
                            float *out)
{
    const float *k0 = k[0];
    const float *k1 = k[1];
    const float *g0 = gate[0];
    const float *g1 = gate[1];
    size_t       c = 0;

    for (; c + 16 <= width; c += 16)
        v16_store(out + c, cache_pool(v16_load(k0 + c), v16_load(k1 + c), v16_load(g0 + c),
                                      v16_load(g1 + c)));
    if (c < width) {
        const size_t n = width - c;

        v16_store_n(out + c, cache_pool(v16_load_n(k0 + c, n), v16_load_n(k1 + c, n),
                                        v16_load_n(g0 + c, n), v16_load_n(g1 + c, n)), n);
    }
}

static void cache_set(kvi_cache_kernels *k)
{
    k->encode_window = cache_encode_window;
    k->decode_window = cache_decode_window;
    k->encode_entry = cache_encode_entry;
    k->decode_entry = cache_decode_entry;
    k->encode_index = cache_encode_index;
    k->encode_query = cache_encode_query;
    k->pool_pair = cache_pool_pair;
}

#endif
