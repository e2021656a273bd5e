/* Index scores: a row's query as all variants keep it. A variant file includes this; all is static.
 *
 * Four heads are scored together. With P = n_tree they are (j, j + P/2, j + P/4, j + 3P/4), so that
 * the first two levels of the tree of op_params.h stay in registers: (0 + 1) + (2 + 3). There are
 * four slots at least: heads between n_heads and P count as +0; what lies behind P has the weight
 * -0, and x + -0 is x for every x.
 *
 * Sums n of a block start at the bits of M = 1.5 * 2^23, which makes an integer register the float
 * M + n: fma(M + n, scale, -M * scale) is n * scale, one instruction instead of a conversion and a
 * product.
 *
 * Two shortcuts that change no bit.
 * EXACT: query scales are powers of two in 2^-21 .. 2^40 and codes of key scales in 1 .. 202. Then
 *   n * (scale / 2) * key scale is an integer below 2^13 times a power of two in 2^-148 .. 2^114:
 *   no product rounds, and fma(n * (scale / 2), key scale, dot) is the products and the sum of
 *   op_params.h, which halves the other scale. All else goes the long way: mul, mul, add.
 * LEVEL (variants with 32-bit sums of bytes): EXACT, four blocks, whose scales differ by 2^3 at
 *   most within a key, and within a head of the query. The difference is put into the codes (12 *
 *   2^3 = 96 fits a signed byte), and the blocks make one integer, at most 4 * 4608 * 64 < 2^21.
 *   The sums that op_params.h wants are integers of that size times one power of two as well: they
 *   are exact, and the order is of no matter.
 *   Powers of two move out of the products with weights and out of the tree, as they change no
 *   rounding of normal floats: with f = w * scale / 2 the sum of a quad is s = sum of max(0, n) *
 *   f, times the key's scale. |f| in 2^-60 .. 2^40 and key scales in 2^-60 .. 2^40 keep products
 *   above 2^-120 and sums below 2^127 on both ways; a sum that is subnormal is exact on both. Sums
 *   start at the bits of L = 2^23: max(L + n, L) is the float L + max(0, n), and L * f is exact,
 *   so fma(that, f, -L * f) rounds once: 2 instructions for a head instead of 4. It makes +0 of
 *   max(0, n) * f = -0. That shows only in a score of which all heads are -0, which needs a sign
 *   on all weights, and no head that is absent: such a row is not LEVEL. */
#ifndef KVI_INDEX_QUAD_H
#define KVI_INDEX_QUAD_H

#include "cpu/index_kernels.h"

#include "format/fp4.h"
#include "format/kv_layout.h"

#include <string.h>

#define KVI_ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
    QUAD = 4,                     /* heads */
    QUAD_DWORDS = 8,              /* of a block of 32 channels */
    QUAD_MAGIC_BITS = 0x4b400000, /* of M */
    QUAD_CODE_MIN = 1,            /* EXACT */
    QUAD_CODE_MAX = 202,
    QUAD_LEVEL_BITS = 0x4b000000, /* of L */
    QUAD_LEVEL_CODE_MIN = 67,
    QUAD_LEVEL_CODE_MAX = 167,
    QUAD_LEVEL_SHIFT = 3,
    QUAD_LEVEL_GROUPS = 4,
    QUAD_HALF = KVI_INDEX_GROUP / 2 /* bytes of a packed block */
};
#define QUAD_MAGIC 12582912.0f
#define QUAD_LEVEL_ZERO 8388608.0f /* L */
#define QUAD_SCALE_MIN 0x1p-21f
#define QUAD_SCALE_MAX 0x1p40f

/* A query: for each quad a quad_head and n_groups quad_blocks. */
typedef struct quad_head {
    float    weights[QUAD];
    uint32_t is_exact;
    uint32_t is_level;
    uint32_t unused[10]; /* whole lines of the cache */
    /* LEVEL */
    int32_t start[QUAD];  /* bits of L - key_offset * sum of codes of all blocks */
    float   factor[QUAD]; /* weight * the smallest scale / 2 */
    float   minus[QUAD];  /* -L * factor */
    float   pad[QUAD];
} quad_head;

typedef struct quad_block {
    int8_t  codes[QUAD_DWORDS][QUAD][4]; /* << shift if LEVEL */
    int32_t start[QUAD];                 /* bits of M - key_offset * sum of codes */
    float   half[QUAD];                  /* scale / 2; blocks that are shifted: the smallest */
    float   minus[QUAD];                 /* -M * scale / 2 */
    float   scale[QUAD];                 /* for the long way */
} quad_block;

static inline size_t quad_count(const kvi_index_shape *s)
{
    return s->n_tree < QUAD ? 1 : s->n_tree / QUAD;
}

static inline size_t quad_bytes(const kvi_index_shape *s)
{
    return sizeof(quad_head) + s->n_groups * sizeof(quad_block);
}

static inline const quad_head *quad_at(const kvi_index_shape *s, const void *query, size_t j)
{
    return (const quad_head *)(const void *)((const uint8_t *)query + j * quad_bytes(s));
}

static inline const quad_block *quad_blocks(const quad_head *head)
{
    return (const quad_block *)(const void *)(head + 1);
}

static inline int quad_is_exact_scale(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7fffff) == 0 && x >= QUAD_SCALE_MIN && x <= QUAD_SCALE_MAX;
}

/* A block of zeros is +0 with every scale from 0 up to infinity. */
static inline int quad_has_any_scale(const int8_t *codes, float scale)
{
    uint64_t v[KVI_INDEX_GROUP / 8];

    memcpy(v, codes, sizeof v);
    return (v[0] | v[1] | v[2] | v[3]) == 0 && scale >= 0.0f && scale <= 0x1p127f;
}

/* Of powers of two, a <= b. */
static inline int quad_log2_ratio(float a, float b)
{
    uint32_t x;
    uint32_t y;

    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return (int)((y - x) >> 23);
}

static inline int quad_is_level_factor(float weight, float factor)
{
    const float x = factor < 0.0f ? -factor : factor;

    return weight == 0.0f || (x >= 0x1p-60f && x <= 0x1p40f);
}

/* Has any head of the tree a weight without a sign? A score is never -0 then. */
static inline int quad_has_plus(const kvi_index_shape *s, const float *weights)
{
    int any = s->n_heads < s->n_tree;

    for (size_t h = 0; h < s->n_heads; h++) {
        uint32_t bits;

        memcpy(&bits, weights + h, sizeof bits);
        any |= bits >> 31 == 0;
    }
    return any;
}

/* Bytes 0, 2, 4, 6 */
static inline uint32_t quad_even_bytes(uint64_t v)
{
    v &= 0x00ff00ff00ff00ffu;
    v = (v | v >> 8) & 0x0000ffff0000ffffu;
    return (uint32_t)(v | v >> 16);
}

/* Codes of one block << shift as slot k; returns their sum. Byte b of dword d is channel 8 (d / 2)
 * + 2 b + d % 2, since a dword of packed keys gives its even channels and its odd ones. Eight
 * codes at once, as one row of queries costs as much as a hundred keys otherwise. */
static inline int32_t quad_put_codes(const int8_t *codes, int shift, size_t k, quad_block *to)
{
    const uint64_t stay = 0x0101010101010101u * ((0xffu << shift) & 0xffu);
    uint64_t       sums = 0; /* of 16-bit lanes, codes + 128 */

    for (size_t i = 0; i < KVI_INDEX_GROUP / 8; i++) {
        uint64_t v;
        uint64_t u;
        uint32_t even;
        uint32_t odd;

        memcpy(&v, codes + 8 * i, sizeof v);
        u = v ^ 0x8080808080808080u;
        sums += (u & 0x00ff00ff00ff00ffu) + (u >> 8 & 0x00ff00ff00ff00ffu);
        v = v << shift & stay;
        even = quad_even_bytes(v);
        odd = quad_even_bytes(v >> 8);
        memcpy(to->codes[2 * i][k], &even, sizeof even);
        memcpy(to->codes[2 * i + 1][k], &odd, sizeof odd);
    }
    sums = (sums & 0x0000ffff0000ffffu) + (sums >> 16 & 0x0000ffff0000ffffu);
    return ((int32_t)(uint32_t)(sums + (sums >> 32)) - 128 * (int32_t)KVI_INDEX_GROUP) *
           (1 << shift);
}

/* Head as slot k of a quad. */
static inline void quad_put_head(size_t n_groups, const int8_t *codes, const float *scales,
                                 int32_t key_offset, size_t k, quad_head *head)
{
    quad_block *to = (quad_block *)(void *)(head + 1);
    float       least = QUAD_SCALE_MAX;
    float       most = QUAD_SCALE_MIN;
    int         is_exact = 1;
    int         is_level = 0;

    for (size_t g = 0; g < n_groups; g++) {
        if (quad_has_any_scale(codes + g * KVI_INDEX_GROUP, scales[g]))
            continue;
        is_exact &= quad_is_exact_scale(scales[g]);
        least = scales[g] < least ? scales[g] : least;
        most = scales[g] > most ? scales[g] : most;
    }
    if (least > most) /* nothing but zeros */
        least = most = 1.0f;
    is_level = head->is_level && is_exact && quad_log2_ratio(least, most) <= QUAD_LEVEL_SHIFT;
    head->factor[k] = head->weights[k] * (0.5f * least);
    head->minus[k] = -QUAD_LEVEL_ZERO * head->factor[k];
    head->start[k] = QUAD_LEVEL_BITS;
    head->is_exact &= (uint32_t)is_exact;
    head->is_level &= is_level && quad_is_level_factor(head->weights[k], head->factor[k]);
    for (size_t g = 0; g < n_groups; g++) {
        const int8_t *of_block = codes + g * KVI_INDEX_GROUP;
        const int     any = quad_has_any_scale(of_block, scales[g]);
        const float   scale = !any ? scales[g] : is_exact ? least : 1.0f;
        const float   one = is_level ? least : scale;
        const int     shift = is_level ? quad_log2_ratio(least, scale) : 0;
        const int32_t offset = key_offset * quad_put_codes(of_block, shift, k, to + g);

        to[g].start[k] = QUAD_MAGIC_BITS - offset;
        to[g].half[k] = 0.5f * one;
        to[g].minus[k] = -QUAD_MAGIC * (0.5f * one);
        to[g].scale[k] = one;
        head->start[k] -= offset;
    }
}

/* Keys are unpacked as code + key_offset. */
static inline void quad_prepare(const kvi_index_shape *s, const int8_t *codes, const float *scales,
                                const float *weights, int32_t key_offset, int may_be_level,
                                void *query)
{
    const size_t quarter = s->n_tree / 4;
    const size_t half = s->n_tree / 2;
    const size_t n_slots = s->n_tree < QUAD ? s->n_tree : QUAD;
    const int    has_plus = quad_has_plus(s, weights);

    memset(query, 0, quad_count(s) * quad_bytes(s));
    for (size_t j = 0; j < quad_count(s); j++) {
        const size_t heads[QUAD] = {j, j + half, j + quarter, j + half + quarter};
        quad_head   *head = (quad_head *)(void *)((uint8_t *)query + j * quad_bytes(s));
        quad_block  *blocks = (quad_block *)(void *)(head + 1);

        head->is_exact = 1;
        head->is_level = may_be_level && has_plus && s->n_groups == QUAD_LEVEL_GROUPS;
        for (size_t k = 0; k < QUAD; k++) {
            const size_t h = heads[k];

            head->weights[k] = k < n_slots ? 0.0f : -0.0f;
            for (size_t g = 0; g < s->n_groups; g++)
                blocks[g].start[k] = QUAD_MAGIC_BITS; /* codes and scales 0 */
            if (k >= n_slots || h >= s->n_heads)
                continue;
            head->weights[k] = weights[h];
            quad_put_head(s->n_groups, codes + h * s->n_groups * KVI_INDEX_GROUP,
                          scales + h * s->n_groups, key_offset, k, head);
        }
    }
}

/* The rest of the tree: sums f32 [n_quads][n_keys], destroyed. Its last levels, all that 32 heads
 * have, are one pass. */
static inline void quad_fold(float *sums, size_t n_quads, size_t n_keys, float *out)
{
    const float *s = sums;

    for (; n_quads > 8; n_quads /= 2)
        for (size_t i = 0; i < n_quads / 2 * n_keys; i++)
            sums[i] = sums[i] + sums[n_quads / 2 * n_keys + i];
    for (size_t i = 0; i < n_keys; i++, s++) {
        if (n_quads == 8)
            out[i] = ((s[0] + s[4 * n_keys]) + (s[2 * n_keys] + s[6 * n_keys])) +
                     ((s[n_keys] + s[5 * n_keys]) + (s[3 * n_keys] + s[7 * n_keys]));
        else if (n_quads == 4)
            out[i] = (s[0] + s[2 * n_keys]) + (s[n_keys] + s[3 * n_keys]);
        else
            out[i] = n_quads == 2 ? s[0] + s[n_keys] : s[0];
    }
}

#endif
