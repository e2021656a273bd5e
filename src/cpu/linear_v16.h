/* Matrix products with fused sums for one instruction set. The variant file defines first, for 32
 * or 64 weights at a time (one or two groups with a scale):
 *   LIN_STEP                32 or 64
 *   LIN_PARTS, lin_part     registers of sixteen floats, and one of them, with
 *                           lin_part_zero, _load, _store, _fma
 *   LIN_N                   rows of x in a tile: 3, 5 or 6. It takes 4 LIN_N + 4 registers and one
 *                           for x; gcc for ARM loads all rows of x first
 *   lin_store_parts(p, step, v)  the parts of v at p, p + step, ...
 *   LIN_DIRECT              rows of x up to which no panel is made, at most 6
 *   LIN_DIRECT_M(n)         weight rows side by side then, for n rows of x: 2 or 4
 *   lin_fp8_32(p, s, w)     w[2] = values of 32 codes at p, each times s: one rounding
 *   lin_fp4_32(p, s, w)     likewise of 16 bytes
 *   LIN_MIXED               1 if FP4 weights come cheaper in another order, for few rows of x:
 *                           lin_fp4_mixed(p, code of the scale, w[2]), lin_mix(x), lin_unmix(sums)
 *   lin_fp8_64, lin_fp4_64  if LIN_STEP is 64: (p, s, t, w[4]) with the scales of both groups
 *   lin_fold(a, n, out)     out[i] = the four v16_fold(a[4 i ..]), i < n, n <= 6 and constant;
 *                           lin_four: a register of four floats
 *
 * Every output is made as cpu/v16.h says: sixteen lanes over a block of V16_BLOCK channels, one
 * fold, blocks added in ascending order. Which other rows are computed beside it cannot be seen.
 *
 * Few rows of x (decode): linear_few_v16.h.
 *
 * More rows: a panel of LIN_PANEL weight rows and one block of channels is decoded to floats (at
 * most 512 KiB, second cache) and used for all rows of x. A tile is LIN_M weight rows by
 * LIN_N rows of x, its sums in registers; the rows of x (at most 24 KiB) stay in the first cache
 * while the panel streams by. While a panel is in use, the weights of the next one are prefetched,
 * and the next rows of x: a third level is too slow for them. Each panel reads all of x again, so
 * 128 weight rows are 3 % faster than 64 where the second cache has 2 MiB, and 32 slower by 7 %.
 * Bound: multiply-adds. Decoding a panel costs as much as about ten rows of x (AVX-512). What was
 * measured stands in the variant files: one thread, the operator as a whole, as a share of what
 * loops that only read, or only multiply and add, got at the same time; one row of x against
 * 16384 x 4096 weights that no cache holds, and 256 rows against 4096 x 4096. */
#ifndef KVI_LINEAR_V16_H
#define KVI_LINEAR_V16_H

#include "cpu/linear_kernels.h"
#include "cpu/moe_v16.h"

#include <string.h>

#define LIN_INLINE static inline __attribute__((always_inline))
/* Arrays are registers only if every loop over them is unrolled. */
#if defined(__clang__)
#define LIN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LIN_UNROLL _Pragma("GCC unroll 8")
#endif

enum {
    LIN_M = 4,                    /* weight rows of a tile */
    LIN_GROUP = 32,               /* channels with one scale, and rows of an FP8 tile */
    LIN_VECS = LIN_STEP / 16,
    LIN_PANEL = LIN_PARTS == 1 ? 128 : 64, /* weight rows of a panel */
    LIN_BAND = 64,                /* weight rows of a band, where few rows of x are wide */
    LIN_ROWS = 252 / LIN_N * LIN_N, /* rows of x whose block of channels fits the second cache */
    LIN_AHEAD = 8192,             /* bytes of weights that are on their way */
    LIN_NEAR = 2048,              /* bytes of the panel that are */
    LIN_X_BYTES = 32768,          /* of x that stay in the first cache */
    LIN_LINE = 64,
    LIN_SCALES = V16_BLOCK / LIN_GROUP, /* of a block of channels */
    LIN_SUMS = 24                 /* of a tile, at most */
};

/* Sums of a tile, a<row of x><weight row>: named one by one, since gcc 12 keeps an array in memory
 * beside the registers. Rows that a kernel does not have are never used and cost nothing. */
#define LIN_EACH_ROW(f) f(0) f(1) f(2) f(3) f(4) f(5)
#define LIN_X(r) const float *const x##r = r < n ? x[r] : x[0];
#define LIN_SUMS_OF(type, r) type a##r##0, a##r##1, a##r##2, a##r##3;
#define LIN_SUMS_V16(r) LIN_SUMS_OF(v16, r)
#define LIN_SUMS_PART(r) LIN_SUMS_OF(lin_part, r)
#define LIN_ZERO_V16(r) a##r##0 = a##r##1 = a##r##2 = a##r##3 = v16_zero();
#define LIN_ZERO_PART(r) a##r##0 = a##r##1 = a##r##2 = a##r##3 = lin_part_zero();
#define LIN_PUT                                                                                    \
    if (m == 4)                                                                                    \
        lin_put((const v16[24]){a00, a01, a02, a03, a10, a11, a12, a13, a20, a21, a22, a23,        \
                                a30, a31, a32, a33, a40, a41, a42, a43, a50, a51, a52, a53},       \
                m, n, y, j, m_rows, k0 == 0);                                                      \
    else                                                                                           \
        lin_put((const v16[12]){a00, a01, a10, a11, a20, a21, a30, a31, a40, a41, a50, a51}, m, n, \
                y, j, m_rows, k0 == 0);
_Static_assert(LIN_PANEL % LIN_M == 0 && LIN_DIRECT <= 6, "whole tiles; list of kernels");

/* ------------------------------------------------------------------ weights
 *
 * `kind` is a constant wherever these are inlined. */

typedef struct lin_row { /* of a matrix, at some channel */
    const uint8_t *data;
    const uint8_t *scale;
} lin_row;

LIN_INLINE size_t lin_bytes(uint32_t kind, size_t channels)
{
    return kind == KVI_W_F32    ? 4 * channels
           : kind == KVI_W_BF16 ? 2 * channels
           : kind == KVI_W_FP4  ? channels / 2
                                : channels;
}

LIN_INLINE int lin_scaled(uint32_t kind)
{
    return kind != KVI_W_F32 && kind != KVI_W_BF16;
}

LIN_INLINE lin_row lin_row_at(const kvi_matrix *w, uint32_t kind, uint64_t row)
{
    const size_t r = (size_t)row;
    lin_row      at = {.data = w->data + r * lin_bytes(kind, w->cols)};

    if (lin_scaled(kind))
        at.scale = w->scale + (w->kind == KVI_W_FP8 ? r / LIN_GROUP : r) * (w->cols / LIN_GROUP);
    return at;
}

/* E8M0 codes as floats, 2^(code - 127); code 0 is subnormal, 255 NaN. n <= V16_BLOCK / LIN_GROUP;
 * out has room for whole sixteens. */
static inline void lin_scales(const uint8_t *codes, size_t n, float *out)
{
    for (size_t i = 0; i < n; i += 16) {
        uint8_t tail[16] = {0};
        v16     code;
        v16     half;

        if (n - i < 16)
            memcpy(tail, codes + i, n - i);
        code = v16_load_u8(n - i < 16 ? tail : codes + i);
        half = v16_choose(v16_eq(code, v16_zero()), v16_of_bits(v16i_set(0x00400000)),
                          v16_choose(v16_eq(code, v16_set(255.0f)),
                                     v16_of_bits(v16i_set(0x00400000)), v16_zero()));
        v16_store(out + i, v16_of_bits(v16i_or(v16i_shl(v16_to_int(code), 23), v16_bits(half))));
    }
}

/* The scales of n channels of weight rows first .. first + m - 1; only `there` of the rows are
 * there, and the last of them stands for the others. */
LIN_INLINE void lin_scales_of(const kvi_matrix *w, uint32_t kind, uint64_t first, size_t m,
                              size_t there, size_t k0, size_t n, float out[][LIN_SCALES])
{
    const uint8_t *before = NULL;

    for (size_t i = 0; i < m && lin_scaled(kind); i++) {
        const uint64_t row = first + (i < there ? i : there - 1);
        const uint8_t *codes = lin_row_at(w, kind, row).scale + k0 / LIN_GROUP;

        if (codes == before) /* rows of one FP8 tile */
            memcpy(out[i], out[i - 1], sizeof out[i]);
        else
            lin_scales(codes, n / LIN_GROUP, out[i]);
        before = codes;
    }
}

/* LIN_STEP weights at p; s their scales. */
LIN_INLINE void lin_step(uint32_t kind, const uint8_t *p, const float *s, v16 w[LIN_VECS])
{
    if (kind == KVI_W_F32) {
        LIN_UNROLL
        for (size_t v = 0; v < LIN_VECS; v++)
            w[v] = v16_load((const float *)(const void *)p + 16 * v);
    } else if (kind == KVI_W_BF16) {
        LIN_UNROLL
        for (size_t v = 0; v < LIN_VECS; v++)
            w[v] = v16_load_bf16(p + 32 * v);
    } else {
#if LIN_STEP == 64
        if (kind == KVI_W_FP4)
            lin_fp4_64(p, v16_set(s[0]), v16_set(s[1]), w);
        else
            lin_fp8_64(p, v16_set(s[0]), v16_set(s[1]), w);
#else
        if (kind == KVI_W_FP4)
            lin_fp4_32(p, v16_set(s[0]), w);
        else
            lin_fp8_32(p, v16_set(s[0]), w);
#endif
    }
}

/* Likewise LIN_GROUP weights: the end of a row whose width is no multiple of LIN_STEP. */
LIN_INLINE void lin_step_32(uint32_t kind, const uint8_t *p, const float *s, v16 w[2])
{
    if (kind == KVI_W_FP4) {
        lin_fp4_32(p, v16_set(s[0]), w);
    } else if (lin_scaled(kind)) {
        lin_fp8_32(p, v16_set(s[0]), w);
    } else {
        for (size_t v = 0; v < 2; v++)
            w[v] = kind == KVI_W_F32 ? v16_load((const float *)(const void *)p + 16 * v)
                                     : v16_load_bf16(p + 32 * v);
    }
}

/* n <= V16_BLOCK weights as floats, zeros behind them to a multiple of 16. For widths that are no
 * multiple of LIN_GROUP, which have no scales. */
static void lin_decode(uint32_t kind, const uint8_t *p, size_t n, float *out)
{
    const size_t whole = n / 16 * 16;

    for (size_t i = 0; i < whole; i += 16)
        v16_store(out + i, kind == KVI_W_F32
                               ? v16_load((const float *)(const void *)(p + 4 * i))
                               : v16_load_bf16(p + 2 * i));
    for (size_t i = whole; i < (n + 15) / 16 * 16; i++) {
        uint32_t bits = 0;

        if (i < n && kind == KVI_W_F32)
            memcpy(&bits, p + 4 * i, sizeof bits);
        else if (i < n)
            bits = (uint32_t)p[2 * i] << 16 | (uint32_t)p[2 * i + 1] << 24;
        memcpy(out + i, &bits, sizeof bits);
    }
}

/* ------------------------------------------------------------------ sums of a tile into y */

LIN_INLINE void lin_put4(float *y, lin_four sums, int first)
{
    lin_four old = sums;

    if (!first) {
        memcpy(&old, y, sizeof old);
        old = old + sums;
    }
    memcpy(y, &old, sizeof old);
}

LIN_INLINE void lin_put2(float *y, float s0, float s1, int first)
{
    y[0] = first ? s0 : y[0] + s0;
    y[1] = first ? s1 : y[1] + s1;
}

/* Fewer weight rows than the kernel has. */
static void lin_put_some(const lin_four *sums, size_t n, size_t m, float *const *y, size_t j,
                         size_t m_rows, int first)
{
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < m_rows; i++) {
            const float s = sums[(m * r + i) / 4][(m * r + i) % 4];
            float      *to = y[r] + j + i;

            *to = first ? s : *to + s;
        }
}

LIN_INLINE void lin_put_all(const lin_four *sums, size_t n, size_t m, float *const *y, size_t j,
                            int first)
{
    LIN_UNROLL
    for (size_t r = 0; r < n; r++) {
        const lin_four s = sums[m * r / 4];

        if (m == 4)
            lin_put4(y[r] + j, s, first);
        else if (r % 2 == 0)
            lin_put2(y[r] + j, s[0], s[1], first);
        else
            lin_put2(y[r] + j, s[2], s[3], first);
    }
}

/* y[r][j ..] (+)= the folded sums acc[m r ..]; m is 2 or 4, m_rows <= m weight rows are there. */
LIN_INLINE void lin_put(const v16 *acc, size_t m, size_t n, float *const *y, size_t j,
                        size_t m_rows, int first)
{
    lin_four sums[6];

    lin_fold(acc, (m * n + 3) / 4, sums);
    if (m_rows < m)
        lin_put_some(sums, n, m, y, j, m_rows, first);
    else if (first)
        lin_put_all(sums, n, m, y, j, 1);
    else
        lin_put_all(sums, n, m, y, j, 0);
}

#include "cpu/linear_few_v16.h"

/* ------------------------------------------------------------------ many rows of x */

typedef struct lin_panel { /* [n_rows / LIN_M, parts, n / 16, LIN_M, 16 / parts] floats */
    float *data;
    size_t j0;             /* first weight row of the block */
    size_t n_rows;         /* weight rows that are there; the last tile may have more */
    size_t k0;             /* first channel */
    size_t n;              /* channels */
} lin_panel;

/* The tile at `to`: n weight rows from `first` on, side by side, so that memory is written in
 * order. The last one fills empty places. */
LIN_INLINE void lin_fill_tile(uint32_t kind, const kvi_matrix *w, uint64_t first, size_t n,
                              const lin_panel *a, float *to)
{
    const uint8_t *p[LIN_M];
    float          scales[LIN_M][LIN_SCALES];
    size_t         k = 0;

    LIN_UNROLL
    for (size_t m = 0; m < LIN_M; m++)
        p[m] = lin_row_at(w, kind, first + (m < n ? m : n - 1)).data + lin_bytes(kind, a->k0);
    lin_scales_of(w, kind, first, LIN_M, n, a->k0, a->n, scales);
    for (; k + LIN_STEP <= a->n; k += LIN_STEP) {
        LIN_UNROLL
        for (size_t m = 0; m < LIN_M; m++) {
            v16 v[LIN_VECS];

            lin_step(kind, p[m] + lin_bytes(kind, k), scales[m] + k / LIN_GROUP, v);
            LIN_UNROLL
            for (size_t i = 0; i < LIN_VECS; i++)
                lin_store_parts(to + 16 / LIN_PARTS * (LIN_M * (k / 16 + i) + m),
                                LIN_M / LIN_PARTS * a->n, v[i]);
        }
    }
    for (size_t m = 0; m < LIN_M && k < a->n; m++) { /* half a step */
        v16 v[2];

        lin_step_32(kind, p[m] + lin_bytes(kind, k), scales[m] + k / LIN_GROUP, v);
        for (size_t i = 0; i < 2; i++)
            lin_store_parts(to + 16 / LIN_PARTS * (LIN_M * (k / 16 + i) + m),
                            LIN_M / LIN_PARTS * a->n, v[i]);
    }
}

/* Weight rows j .. j + LIN_M - 1 of the panel. */
static void lin_fill(const kvi_linear_block *b, const lin_panel *a, size_t j)
{
    const uint64_t first = b->row0 + a->j0 + j;
    const size_t   n = a->n_rows - j < LIN_M ? a->n_rows - j : LIN_M;
    float         *to = a->data + j * a->n;

    switch (b->w->kind) {
    case KVI_W_F32:
        lin_fill_tile(KVI_W_F32, b->w, first, n, a, to);
        break;
    case KVI_W_BF16:
        lin_fill_tile(KVI_W_BF16, b->w, first, n, a, to);
        break;
    case KVI_W_FP4:
        lin_fill_tile(KVI_W_FP4, b->w, first, n, a, to);
        break;
    default:
        lin_fill_tile(KVI_W_FP8, b->w, first, n, a, to);
        break;
    }
}

/* Lines of the weights that the next panel is made of, a few at a time. */
typedef struct lin_ahead {
    uintptr_t at;
    size_t    row_bytes;   /* from row to row */
    size_t    piece_bytes; /* of a row in the panel */
    size_t    done;        /* bytes of the present row */
    size_t    n_rows;
    size_t    lines;       /* of one tile */
} lin_ahead;

static void lin_ahead_start(const kvi_linear_block *b, const lin_panel *a, size_t n_tiles,
                            lin_ahead *to)
{
    const uint32_t kind = b->w->kind;
    const size_t   next = a->j0 + a->n_rows;
    size_t         lines = 0;

    to->row_bytes = lin_bytes(kind, b->w->cols);
    to->piece_bytes = lin_bytes(kind, a->n);
    to->n_rows = b->n_out - next < LIN_PANEL ? b->n_out - next : LIN_PANEL;
    to->at = (uintptr_t)b->w->data + ((size_t)b->row0 + next) * to->row_bytes +
             lin_bytes(kind, a->k0);
    to->done = 0;
    lines = to->n_rows * (to->piece_bytes / LIN_LINE + 1);
    to->lines = (lines + n_tiles - 1) / n_tiles;
}

static inline void lin_ahead_go(lin_ahead *a)
{
    for (size_t i = 0; i < a->lines && a->n_rows > 0; i++) {
        __builtin_prefetch((const void *)(a->at + a->done), 0, 2);
        a->done += LIN_LINE;
        if (a->done >= a->piece_bytes) {
            a->done = 0;
            a->at += a->row_bytes;
            a->n_rows--;
        }
    }
}

/* Rows of x that meet the panel together. */
typedef struct lin_rows {
    const float *x[6];
    float       *y[6];
    size_t       n;
} lin_rows;

/* Fetches x of the next group into the second cache, while tile j / LIN_M is made: the third is too
 * slow for a first tile. */
static inline void lin_soon(const lin_rows *next, const lin_panel *a, size_t j)
{
    const size_t tiles = (a->n_rows + LIN_M - 1) / LIN_M;
    const size_t piece = (a->n / 16 + tiles - 1) / tiles * 16;
    const size_t from = j / LIN_M * piece;

    for (size_t r = 0; r < next->n; r++)
        for (size_t k = from; k < from + piece && k < a->n; k += 16)
            __builtin_prefetch(next->x[r] + a->k0 + k, 0, 2);
}

#define LIN_TILE_FMA(r)                                                                            \
    if (r < n) {                                                                                   \
        const lin_part xv = lin_part_load(x##r + k);                                               \
        a##r##0 = lin_part_fma(w0, xv, a##r##0);                                                   \
        a##r##1 = lin_part_fma(w1, xv, a##r##1);                                                   \
        a##r##2 = lin_part_fma(w2, xv, a##r##2);                                                   \
        a##r##3 = lin_part_fma(w3, xv, a##r##3);                                                   \
    }
#define LIN_TILE_KEEP(r)                                                                           \
    if (r < n) {                                                                                   \
        lin_part_store(kept[4 * r] + lane, a##r##0);                                               \
        lin_part_store(kept[4 * r + 1] + lane, a##r##1);                                           \
        lin_part_store(kept[4 * r + 2] + lane, a##r##2);                                           \
        lin_part_store(kept[4 * r + 3] + lane, a##r##3);                                           \
    }

/* Sums of LIN_M weight rows by n rows of x. Where a register has fewer than sixteen lanes, the tile
 * is made for its lanes of all sums, then for the next: as many sums side by side as registers. */
LIN_INLINE const float *lin_tile(const lin_panel *a, const float *w, const float *const *x,
                                 float *const *y, size_t n, size_t j, size_t m_rows)
{
    const size_t m = LIN_M;
    const size_t k0 = a->k0;
    LIN_EACH_ROW(LIN_X)
    LIN_EACH_ROW(LIN_SUMS_PART)
#if LIN_PARTS > 1
    float kept[LIN_SUMS][16];
    v16   sums[LIN_SUMS];
#endif

    for (size_t lane = 0; lane < 16; lane += 16 / LIN_PARTS) {
        LIN_EACH_ROW(LIN_ZERO_PART)
        for (size_t k = k0 + lane; k < k0 + a->n; k += 16) {
            const lin_part w0 = lin_part_load(w);
            const lin_part w1 = lin_part_load(w + 16 / LIN_PARTS);
            const lin_part w2 = lin_part_load(w + 32 / LIN_PARTS);
            const lin_part w3 = lin_part_load(w + 48 / LIN_PARTS);

            LIN_EACH_ROW(LIN_TILE_FMA)
            w += 64 / LIN_PARTS;
#if LIN_PARTS > 1 /* several loads of a line: do not let all of them wait for it */
            for (size_t c = 0; c < 64 / LIN_PARTS; c += 16)
                __builtin_prefetch((const void *)((uintptr_t)(w + c) + LIN_NEAR));
#endif
        }
#if LIN_PARTS > 1
        LIN_EACH_ROW(LIN_TILE_KEEP)
#endif
    }
#if LIN_PARTS > 1
    for (size_t i = 0; i < 4 * n; i++)
        sums[i] = v16_load(kept[i]);
    lin_put(sums, m, n, y, j, m_rows, k0 == 0);
#else
    LIN_PUT
#endif
    return w;
}

/* All tiles of the panel against n rows of x. `fill`: whose weights the panel is to be filled with,
 * a tile at a time, as the multiplication hides the stores; NULL = it is full. */
LIN_INLINE void lin_tiles(const lin_panel *a, const lin_rows *g, const lin_rows *next, size_t n,
                          lin_ahead *ahead, const kvi_linear_block *fill)
{
    const float *w = a->data;

    for (size_t i = 0; i < a->n_rows; i += LIN_M) {
        if (fill)
            lin_fill(fill, a, i);
        lin_ahead_go(ahead);
        lin_soon(next, a, i);
        w = lin_tile(a, w, g->x, g->y, n, a->j0 + i, a->n_rows - i < LIN_M ? a->n_rows - i : LIN_M);
    }
}

#define LIN_TILES(n)                                                                               \
    static void lin_tiles_##n(const lin_panel *a, const lin_rows *g, const lin_rows *next,       \
                              lin_ahead *ahead, const kvi_linear_block *fill)                      \
    {                                                                                              \
        lin_tiles(a, g, next, n, ahead, fill);                                                     \
    }
LIN_TILES(1)
LIN_TILES(2)
LIN_TILES(3)
#if LIN_N >= 5
LIN_TILES(4)
LIN_TILES(5)
#endif
#if LIN_N >= 6
LIN_TILES(6)
#endif
typedef void (*lin_tiles_fn)(const lin_panel *, const lin_rows *, const lin_rows *, lin_ahead *,
                             const kvi_linear_block *);
static const lin_tiles_fn lin_tiles_of[] = {lin_tiles_1, lin_tiles_2, lin_tiles_3,
#if LIN_N >= 5
                                            lin_tiles_4, lin_tiles_5,
#endif
#if LIN_N >= 6
                                            lin_tiles_6
#endif
};
_Static_assert(sizeof lin_tiles_of / sizeof *lin_tiles_of == LIN_N, "3, 5 or 6");

/* Group g of `groups` of nearly one size, of rows i0 .. i0 + n - 1. */
static void lin_rows_of(const kvi_linear_block *b, size_t i0, size_t n, size_t g, size_t groups,
                        lin_rows *to)
{
    const size_t from = n * g / groups;

    to->n = n * (g + 1) / groups - from;
    lin_pointers(b, i0 + from, to->n, to->x, to->y);
}

/* The panel against rows i0 .. i0 + n - 1 of x. */
static void lin_panel_rows(const kvi_linear_block *b, const lin_panel *a, size_t i0, size_t n)
{
    const size_t groups = (n + LIN_N - 1) / LIN_N;
    lin_rows     group[2];
    lin_ahead    ahead;

    lin_ahead_start(b, a, groups * ((a->n_rows + LIN_M - 1) / LIN_M), &ahead);
    lin_rows_of(b, i0, n, 0, groups, &group[0]);
    for (size_t g = 0; g < groups; g++) {
        const lin_rows *now = &group[g % 2];
        lin_rows       *next = &group[(g + 1) % 2];

        lin_rows_of(b, i0, n, g + 1 < groups ? g + 1 : 0, groups, next);
        lin_tiles_of[now->n - 1](a, now, next, &ahead, g == 0 ? b : NULL);
    }
}

/* Rows i0 .. i0 + n - 1 of x. */
static void lin_panels(const kvi_linear_block *b, size_t i0, size_t n)
{
    const size_t cols = b->w->cols;
    lin_panel    a = {.data = b->scratch};

    for (a.k0 = 0; a.k0 == 0 || a.k0 < cols; a.k0 += V16_BLOCK) {
        a.n = cols - a.k0 < V16_BLOCK ? cols - a.k0 : V16_BLOCK;
        for (a.j0 = 0; a.j0 < b->n_out; a.j0 += LIN_PANEL) {
            a.n_rows = b->n_out - a.j0 < LIN_PANEL ? b->n_out - a.j0 : LIN_PANEL;
            lin_panel_rows(b, &a, i0, n);
        }
    }
}

/* Floats from one decoded row to the next: one block of channels, zeros behind odd ones. */
static size_t lin_odd_stride(size_t cols)
{
    return (cols < V16_BLOCK ? cols + 15 : V16_BLOCK) / 16 * 16;
}

/* sums[r] = v16_dot(w + r * stride, x, n) for m <= 16 rows, n <= V16_BLOCK. */
static void lin_odd_sums(const float *w, size_t stride, size_t m, const float *x, size_t n,
                         float sums[16])
{
    v16 acc[16];

    for (size_t r = 0; r < 16; r++)
        acc[r] = v16_zero();
    for (size_t r = 0; r < m; r++) {
        const float *row = w + r * stride;
        v16          a = v16_zero();
        size_t       k = 0;

        for (; k + 16 <= n; k += 16)
            a = v16_fma(v16_load(row + k), v16_load(x + k), a);
        if (k < n)
            a = v16_fma(v16_load(row + k), v16_load_n(x + k, n - k), a);
        acc[r] = a;
    }
    v16_store(sums, v16_fold16(acc));
}

static size_t lin_scratch(uint32_t kind, size_t cols, size_t n_out, size_t n_rows)
{
    const size_t rows = n_out < LIN_PANEL ? (n_out + LIN_M - 1) / LIN_M * LIN_M : LIN_PANEL;
    const size_t panel = n_rows <= LIN_DIRECT ? 0 : rows * (cols < V16_BLOCK ? cols : V16_BLOCK);
    size_t       mixed = 0;

    if (cols % LIN_GROUP != 0)
        return 16 * lin_odd_stride(cols);
#if LIN_MIXED
    if (kind == KVI_W_FP4)
        mixed = (n_rows < LIN_DIRECT ? n_rows : LIN_DIRECT) * cols;
#endif
    (void)kind;
    return mixed > panel ? mixed : panel;
}

/* Widths that are no multiple of LIN_GROUP: sixteen weight rows are decoded, and their sums folded
 * together, for one row of x after the other. */
static void lin_odd_block(const kvi_linear_block *b)
{
    const kvi_matrix *w = b->w;
    const size_t      stride = lin_odd_stride(w->cols);

    for (size_t j = 0; j < b->n_out; j += 16) {
        const size_t m = b->n_out - j < 16 ? b->n_out - j : 16;

        for (size_t k0 = 0; k0 < w->cols; k0 += V16_BLOCK) {
            const size_t n = w->cols - k0 < V16_BLOCK ? w->cols - k0 : V16_BLOCK;

            for (size_t r = 0; r < m; r++)
                lin_decode(w->kind,
                           lin_row_at(w, w->kind, b->row0 + j + r).data + lin_bytes(w->kind, k0), n,
                           b->scratch + r * stride);
            for (size_t i = 0; i < b->n_rows; i++) {
                const float *x;
                float       *y;
                float        sums[16];

                lin_pointers(b, i, 1, &x, &y);
                lin_odd_sums(b->scratch, stride, m, x + k0, n, sums);
                for (size_t r = 0; r < m; r++)
                    y[j + r] = k0 == 0 ? sums[r] : y[j + r] + sums[r];
            }
        }
    }
}

static void lin_block(const kvi_linear_block *b)
{
    if (b->w->cols % LIN_GROUP != 0) {
        lin_odd_block(b);
    } else if (b->n_rows <= LIN_DIRECT) {
        if (b->n_rows > 0)
            lin_direct(b);
    } else {
        for (size_t i = 0, n = 0; i < b->n_rows; i += n) {
            n = b->n_rows - i;
            if (n > LIN_ROWS + LIN_ROWS / 2)
                n = LIN_ROWS;
            lin_panels(b, i, n);
        }
    }
}

static void lin_set(kvi_linear_kernels *k, double task_work)
{
    k->task_work = task_work;
    k->scratch = lin_scratch;
    k->block = lin_block;
    k->activate = moe_activate;
}

#endif
