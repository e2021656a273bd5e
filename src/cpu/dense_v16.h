/* Norm, rotation, residual stream, Engram gate and router in sixteen lanes; what they compute:
 * dense_kernels.h. All of them but rope and route pass over their arrays once or twice with one or
 * two operations per float: the aim is the speed of L2 (48 bytes a cycle at best). Only the balancing
 * of C shows besides: 39 steps that each wait for a division.
 *
 * The including file has defined, besides v16:
 *   v16_swap_pairs(a)   lanes 1 0 3 2 ...
 *   v16_quad(a, i)      lane i of each group of four in all of the group
 *   v16_group(a, i)     group i of four lanes in all groups
 *   v16_most(a)         largest lane; no lane is NaN
 *   v16_mask_bits(m)    bit i = lane i
 *   vd, VD_LANES        doubles; vd_load from floats; vd_store_twice: rounded to float, each of
 *                       them twice in a row; vd_trunc
 *
 * Measured on one core of a busy machine, microseconds: portable / AVX2 / AVX-512
 *   one row, its operands in L2 (read at 115 GB/s meanwhile)         128 rows, from L3 or memory
 *   norm 5120                 1.6 / 0.87 / 0.78                      301 / 241 / 234
 *   rope, 64 heads x 64       1.4 / 0.72 / 0.51                      407 / 150 / 133
 *   mix, 4 x 5120             2.4 / 1.16 / 1.20 (0.5 of it C)        640 / 417 / 419
 *   collapse, 4 x 5120        3.1 / 1.02 / 0.91                      579 / 546 / 549
 *   expand, 4 x 5120          9.3 / 2.80 / 2.15                      1458 / 1058 / 1062
 *   engram_gate, 4 x 5120     9.5 / 4.37 / 4.76                      3732 / 2608 / 2660
 *   route, 384 experts, k 6   12.7 / 1.20 / 0.87                     2361 / 162 / 119 */
#ifndef KVI_DENSE_V16_H
#define KVI_DENSE_V16_H

#include "backend/op_params.h"
#include "base/fmath.h"
#include "cpu/dense_kernels.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ sums */

/* Blocks whose sums are made side by side: an fma takes four cycles and two can begin in each, so
 * one chain alone would wait most of the time. */
#define N_BESIDE (V16_REGS >= 32 ? 8u : 4u)

/* sum + x . x of n_blocks whole blocks, in ascending order; the first block's sum stands alone.
 * n_blocks is a constant at every call. */
static inline float add_squares(float sum, int first, const float *x, size_t n_blocks)
{
    v16 acc[8];

    for (size_t b = 0; b < n_blocks; b++)
        acc[b] = v16_zero();
    for (size_t i = 0; i < V16_BLOCK; i += 16)
        for (size_t b = 0; b < n_blocks; b++) {
            const v16 v = v16_load(x + b * V16_BLOCK + i);

            acc[b] = v16_fma(v, v, acc[b]);
        }
    for (size_t b = 0; b < n_blocks; b++)
        sum = first && b == 0 ? v16_fold(acc[b]) : sum + v16_fold(acc[b]);
    return sum;
}

/* v16_dot(x, x, n) */
static float squares(const float *x, size_t n)
{
    const size_t whole = n / V16_BLOCK;
    float        sum = 0.0f;
    size_t       b = 0;

    for (; b + N_BESIDE <= whole; b += N_BESIDE)
        sum = add_squares(sum, b == 0, x + b * V16_BLOCK, N_BESIDE);
    for (; b + 4 <= whole; b += 4)
        sum = add_squares(sum, b == 0, x + b * V16_BLOCK, 4);
    for (; b < whole; b++)
        sum = add_squares(sum, b == 0, x + b * V16_BLOCK, 1);
    if (n % V16_BLOCK) {
        const float rest = v16_dot(x + b * V16_BLOCK, x + b * V16_BLOCK, n % V16_BLOCK);

        sum = b == 0 ? rest : sum + rest;
    }
    return sum;
}

/* 1 / sqrt(mean x^2 + eps) of a sum of squares */
static inline float rms_inverse(float sum, size_t n, float eps)
{
    return 1.0f / kvi_sqrtf(sum / (float)n + eps);
}

static inline v16 load_up_to(const float *p, size_t n)
{
    return n >= 16 ? v16_load(p) : v16_load_n(p, n);
}

static inline void store_up_to(float *p, v16 a, size_t n)
{
    if (n >= 16)
        v16_store(p, a);
    else
        v16_store_n(p, a, n);
}

/* ------------------------------------------------------------------ norm */

static void norm(const kvi_norm_params *p, size_t begin, size_t end)
{
    const size_t width = p->width;
    const float *w = p->weight;

    for (size_t row = begin; row < end; row++) {
        const float *x = p->x + row * p->x_stride;
        float       *y = p->y + row * p->y_stride;
        const v16    r = v16_set(rms_inverse(squares(x, width), width, p->eps));
        size_t       i = 0;

        for (; i + 16 <= width; i += 16)
            v16_store(y + i, v16_mul(v16_load(w + i), v16_mul(v16_load(x + i), r)));
        if (i < width)
            v16_store_n(y + i,
                        v16_mul(v16_load_n(w + i, width - i),
                                v16_mul(v16_load_n(x + i, width - i), r)),
                        width - i);
    }
}

/* ------------------------------------------------------------------ rope */

/* kvi_sincosf, VD_LANES at a time, each result twice in a row: the same operations in double in
 * the same order, so the same bits (not those of a NaN); base/fmath.c explains them. */
typedef int64_t vd_bits __attribute__((vector_size(sizeof(vd))));

static inline vd vd_set(double x)
{
    return x - (vd){0};
}

static inline void sincos_lanes(const float *angle, float *s, float *c)
{
    const vd_bits sign = (vd_bits){0} + INT64_MIN;
    const vd      x = vd_load(angle);
    const vd      turns = x * 0x1.45f306dc9c883p-1;
    /* to the nearest, halves away from 0; + 0, since a -0 would cost the sign of sin -0 */
    const vd      half = (vd)(((vd_bits)turns & sign) | (vd_bits)vd_set(0.5));
    const vd      n = vd_trunc(turns + half) + 0.0;
    const vd      r = ((x - n * 0x1.921fb54000000p+0) - n * 0x1.10b4610000000p-30) -
                 n * 0x1.a62633145c06ep-58;
    const vd      z = r * r;
    /* the low bits of a double of this size are those of the integer */
    const vd_bits k = (vd_bits)(n + 0x1.8p52);
    const vd_bits odd = (vd_bits){0} - (k & 1);
    const vd_bits far = (vd_bits)(x > 0x1p24) | (vd_bits)(x < -0x1p24);
    const vd_bits nan = far & 0x7ff8000000000000;
    vd            sine = vd_set(1.0 / 6227020800.0);
    vd            cosine = vd_set(-1.0 / 87178291200.0);

    sine = sine * z - 1.0 / 39916800.0;
    sine = sine * z + 1.0 / 362880.0;
    sine = sine * z - 1.0 / 5040.0;
    sine = sine * z + 1.0 / 120.0;
    sine = sine * z - 1.0 / 6.0;
    sine = r * (1.0 + sine * z);
    cosine = cosine * z + 1.0 / 479001600.0;
    cosine = cosine * z - 1.0 / 3628800.0;
    cosine = cosine * z + 1.0 / 40320.0;
    cosine = cosine * z - 1.0 / 720.0;
    cosine = cosine * z + 1.0 / 24.0;
    cosine = cosine * z - 0.5;
    cosine = 1.0 + cosine * z;
    {
        const vd_bits a = ((vd_bits)sine & ~odd) | ((vd_bits)cosine & odd);
        const vd_bits b = ((vd_bits)cosine & ~odd) | ((vd_bits)sine & odd);

        vd_store_twice(s, (vd)((a ^ ((k << 62) & sign)) | nan));
        vd_store_twice(c, (vd)((b ^ (((k + 1) << 62) & sign)) | nan));
    }
}

enum { ROPE_PAIRS = 64 }; /* sines and cosines held at once */

/* (a, b) turns into (a c - b s, b c + a s): c c c c ... times the pair, plus -s s -s s ... times
 * the swapped pair. One table of a position serves all heads. */
typedef struct turns {
    float c[2 * ROPE_PAIRS];
    float s[2 * ROPE_PAIRS];
} turns;

static void make_turns(turns *t, const kvi_rope_params *p, uint64_t pos, size_t first, size_t n)
{
    static const int32_t minus[17] = {INT32_MIN, 0, INT32_MIN, 0, INT32_MIN, 0, INT32_MIN, 0,
                                      INT32_MIN, 0, INT32_MIN, 0, INT32_MIN, 0, INT32_MIN, 0,
                                      INT32_MIN};
    const v16i sign = v16i_load(minus + (p->inverse ? 1 : 0));

    for (size_t i = 0; i < n; i += 16) {
        /* the angle is rounded to float before the sine, as the official code does */
        const v16 angle = v16_mul(v16_set((float)pos), load_up_to(p->freqs + first + i, n - i));
        float     a[16];

        v16_store(a, angle);
        for (size_t q = 0; q < 16; q += VD_LANES)
            sincos_lanes(a + q, t->s + 2 * (i + q), t->c + 2 * (i + q));
        for (size_t q = 2 * i; q < 2 * i + 32; q += 16)
            v16_store(t->s + q, v16_of_bits(v16i_xor(v16_bits(v16_load(t->s + q)), sign)));
    }
}

static inline v16 turn(v16 x, const turns *t, size_t i)
{
    return v16_add(v16_mul(x, v16_load(t->c + i)),
                   v16_mul(v16_swap_pairs(x), v16_load(t->s + i)));
}

static void rope(const kvi_rope_params *p, size_t begin, size_t end)
{
    const size_t n_pairs = p->n_rotated / 2;
    turns        t;

    for (size_t row = begin; row < end; row++)
        for (size_t first = 0; first < n_pairs; first += ROPE_PAIRS) {
            const size_t n = n_pairs - first < ROPE_PAIRS ? n_pairs - first : ROPE_PAIRS;
            float       *x = p->x + row * p->row_stride + p->width - p->n_rotated + 2 * first;

            make_turns(&t, p, p->pos[row], first, n);
            for (size_t h = 0; h < p->n_heads; h++, x += p->width) {
                size_t i = 0;

                for (; i + 16 <= 2 * n; i += 16)
                    v16_store(x + i, turn(v16_load(x + i), &t, i));
                if (i < 2 * n)
                    v16_store_n(x + i, turn(v16_load_n(x + i, 2 * n - i), &t, i), 2 * n - i);
            }
        }
}

/* ------------------------------------------------------------------ mix */

/* Sinkhorn-Knopp on the matrices of four copies, one in sixteen lanes (lane 4 j + k is C[j][k]).
 * Each step waits for the one before, about 40 cycles; N_MATRICES of them fill the gaps. */
enum { N_MATRICES = 4 };

static inline v16 sum_rows(v16 c)
{
    return v16_add(v16_add(v16_add(v16_quad(c, 0), v16_quad(c, 1)), v16_quad(c, 2)),
                   v16_quad(c, 3));
}

static inline v16 sum_columns(v16 c)
{
    return v16_add(v16_add(v16_add(v16_group(c, 0), v16_group(c, 1)), v16_group(c, 2)),
                   v16_group(c, 3));
}

static inline v16 most_of_rows(v16 c)
{
    return v16_more(v16_more(v16_more(v16_quad(c, 3), v16_quad(c, 2)), v16_quad(c, 1)),
                    v16_quad(c, 0));
}

/* n is a constant at every call. */
static inline void balance_four(v16 *c, size_t n, v16 eps, uint32_t n_iters)
{
    for (size_t i = 0; i < n; i++) {
        c[i] = v16_exp(v16_sub(c[i], most_of_rows(c[i])));
        c[i] = v16_add(v16_div(c[i], sum_rows(c[i])), eps);
    }
    for (size_t i = 0; i < n; i++)
        c[i] = v16_div(c[i], v16_add(sum_columns(c[i]), eps));
    for (uint32_t it = 1; it < n_iters; it++) {
        for (size_t i = 0; i < n; i++)
            c[i] = v16_div(c[i], v16_add(sum_rows(c[i]), eps));
        for (size_t i = 0; i < n; i++)
            c[i] = v16_div(c[i], v16_add(sum_columns(c[i]), eps));
    }
}

/* Any number of copies, sixteen matrices at once: c[j m + k], lane = matrix. */
static void divide_lanes(v16 *c, size_t m, size_t line, size_t step, v16 eps)
{
    for (size_t a = 0; a < m; a++) {
        v16 *first = c + a * line;
        v16  sum = first[0];

        for (size_t b = 1; b < m; b++)
            sum = v16_add(sum, first[b * step]);
        sum = v16_add(sum, eps);
        for (size_t b = 0; b < m; b++)
            first[b * step] = v16_div(first[b * step], sum);
    }
}

static void balance_lanes(v16 *c, size_t m, v16 eps, uint32_t n_iters)
{
    for (size_t j = 0; j < m; j++) {
        v16 most = c[j * m];

        for (size_t k = 1; k < m; k++)
            most = v16_more(c[j * m + k], most);
        for (size_t k = 0; k < m; k++)
            c[j * m + k] = v16_exp(v16_sub(c[j * m + k], most));
    }
    divide_lanes(c, m, m, 1, v16_zero());
    for (size_t i = 0; i < m * m; i++)
        c[i] = v16_add(c[i], eps);
    divide_lanes(c, m, 1, m, eps);
    for (uint32_t it = 1; it < n_iters; it++) {
        divide_lanes(c, m, m, 1, eps);
        divide_lanes(c, m, 1, m, eps);
    }
}

/* pre and post of a row; gives r. scale: of the 2 m lanes. */
static inline float mix_gates(const kvi_mix_params *p, size_t row, v16 scale)
{
    const size_t m = p->copies;
    const size_t n = m * p->width;
    const float  r = rms_inverse(squares(p->h + row * n, n), n, p->norm_eps);
    const v16    proj = load_up_to(p->proj + row * (2 + m) * m, 2 * m);
    const v16    x = v16_add(v16_mul(v16_mul(proj, v16_set(r)), scale), load_up_to(p->base, 2 * m));
    const v16    s = v16_sigmoid(x);
    float        post[16];

    store_up_to(p->pre + row * m, v16_add(s, v16_set(p->eps)), m);
    v16_store(post, v16_mul(v16_set(2.0f), s));
    for (size_t i = 0; i < m; i++)
        p->post[row * m + i] = post[m + i];
    return r;
}

/* n rows of four copies; n is a constant at every call. */
static inline void mix_four(const kvi_mix_params *p, size_t row, size_t n, v16 scale)
{
    const v16 base = v16_load(p->base + 8);
    v16       c[N_MATRICES];

    for (size_t i = 0; i < n; i++) {
        const v16 r = v16_set(mix_gates(p, row + i, scale));

        c[i] = v16_mul(v16_mul(v16_load(p->proj + (row + i) * 24 + 8), r), v16_set(p->scale[2]));
        c[i] = v16_add(c[i], base);
    }
    balance_four(c, n, v16_set(p->eps), p->n_iters);
    for (size_t i = 0; i < n; i++)
        v16_store(p->comb + (row + i) * 16, c[i]);
}

/* n <= 16 rows. */
static void mix_lanes(const kvi_mix_params *p, size_t row, size_t n, v16 scale)
{
    const size_t m = p->copies;
    v16          c[KVI_MAX_COPIES * KVI_MAX_COPIES];
    float        r[16] = {0};
    float        lanes[16] = {0};

    for (size_t i = 0; i < n; i++)
        r[i] = mix_gates(p, row + i, scale);
    for (size_t q = 0; q < m * m; q++) {
        for (size_t i = 0; i < n; i++)
            lanes[i] = p->proj[(row + i) * (2 + m) * m + 2 * m + q];
        c[q] = v16_mul(v16_mul(v16_load(lanes), v16_load(r)), v16_set(p->scale[2]));
        c[q] = v16_add(c[q], v16_set(p->base[2 * m + q]));
    }
    balance_lanes(c, m, v16_set(p->eps), p->n_iters);
    for (size_t q = 0; q < m * m; q++) {
        v16_store(lanes, c[q]);
        for (size_t i = 0; i < n; i++)
            p->comb[(row + i) * m * m + q] = lanes[i];
    }
}

static void mix(const kvi_mix_params *p, size_t begin, size_t end)
{
    float  scale[16];
    size_t row = begin;

    for (size_t i = 0; i < 16; i++)
        scale[i] = p->scale[i >= p->copies];
    if (p->copies == 4) {
        for (; row + N_MATRICES <= end; row += N_MATRICES)
            mix_four(p, row, N_MATRICES, v16_load(scale));
        for (; row < end; row++)
            mix_four(p, row, 1, v16_load(scale));
    }
    for (; row < end; row += 16)
        mix_lanes(p, row, end - row < 16 ? end - row : 16, v16_load(scale));
}

/* ------------------------------------------------------------------ collapse, expand */

/* n lanes of one row at column i; m is a constant where it is 4. */
static inline v16 collapsed(const float *h, const float *pre, size_t m, size_t width, size_t n)
{
    v16 sum = v16_mul(v16_set(pre[0]), load_up_to(h, n));

    for (size_t c = 1; c < m; c++)
        sum = v16_fma(v16_set(pre[c]), load_up_to(h + c * width, n), sum);
    return sum;
}

static inline void collapse_row(const kvi_collapse_params *p, size_t row, size_t m)
{
    const size_t width = p->width;
    const float *h = p->h + row * m * width;
    const float *pre = p->pre + row * m;
    float       *y = p->y + row * width;
    size_t       i = 0;

    for (; i + 16 <= width; i += 16)
        v16_store(y + i, collapsed(h + i, pre, m, width, 16));
    if (i < width)
        v16_store_n(y + i, collapsed(h + i, pre, m, width, width - i), width - i);
}

static void collapse(const kvi_collapse_params *p, size_t begin, size_t end)
{
    for (size_t row = begin; row < end; row++) {
        if (p->copies == 4)
            collapse_row(p, row, 4);
        else
            collapse_row(p, row, p->copies);
    }
}

/* n lanes at one column of all copies; m is a constant where it is 4. */
static inline void expand_lanes(float *h, const float *y, const float *post, const float *comb,
                                size_t m, size_t width, size_t n)
{
    const v16 add = load_up_to(y, n);
    v16       old[KVI_MAX_COPIES];

    for (size_t j = 0; j < m; j++)
        old[j] = load_up_to(h + j * width, n);
    for (size_t k = 0; k < m; k++) {
        v16 sum = v16_mul(v16_set(comb[k]), old[0]);

        for (size_t j = 1; j < m; j++)
            sum = v16_fma(v16_set(comb[j * m + k]), old[j], sum);
        store_up_to(h + k * width, v16_fma(v16_set(post[k]), add, sum), n);
    }
}

static inline void expand_row(const kvi_expand_params *p, size_t row, size_t m)
{
    const size_t width = p->width;
    const float *y = p->y + row * width;
    float       *h = p->h + row * m * width;
    float        post[KVI_MAX_COPIES]; /* copies that no store to h can change */
    float        comb[KVI_MAX_COPIES * KVI_MAX_COPIES];
    size_t       i = 0;

    memcpy(post, p->post + row * m, m * sizeof *post);
    memcpy(comb, p->comb + row * m * m, m * m * sizeof *comb);
    for (; i + 16 <= width; i += 16)
        expand_lanes(h + i, y + i, post, comb, m, width, 16);
    if (i < width)
        expand_lanes(h + i, y + i, post, comb, m, width, width - i);
}

static void expand(const kvi_expand_params *p, size_t begin, size_t end)
{
    for (size_t row = begin; row < end; row++) {
        if (p->copies == 4)
            expand_row(p, row, 4);
        else
            expand_row(p, row, p->copies);
    }
}

/* ------------------------------------------------------------------ Engram gate */

typedef struct gate_sums {
    float hh;
    float kk;
    float dot; /* (h qk) key */
} gate_sums;

static inline void add_folds(gate_sums *s, v16 hh, v16 kk, v16 dot, int first)
{
    s->hh = first ? v16_fold(hh) : s->hh + v16_fold(hh);
    s->kk = first ? v16_fold(kk) : s->kk + v16_fold(kk);
    s->dot = first ? v16_fold(dot) : s->dot + v16_fold(dot);
}

/* Of n_blocks whole blocks from column `at`, side by side; n_blocks is a constant at every call. */
static inline void add_gate_sums(gate_sums *s, const float *h, const float *qk, const float *key,
                                 size_t at, size_t n_blocks)
{
    v16 hh[2], kk[2], dot[2];

    for (size_t b = 0; b < n_blocks; b++)
        hh[b] = kk[b] = dot[b] = v16_zero();
    for (size_t i = at; i < at + V16_BLOCK; i += 16)
        for (size_t b = 0; b < n_blocks; b++) {
            const v16 vh = v16_load(h + b * V16_BLOCK + i);
            const v16 vk = v16_load(key + b * V16_BLOCK + i);

            hh[b] = v16_fma(vh, vh, hh[b]);
            kk[b] = v16_fma(vk, vk, kk[b]);
            dot[b] = v16_fma(v16_mul(vh, v16_load(qk + b * V16_BLOCK + i)), vk, dot[b]);
        }
    for (size_t b = 0; b < n_blocks; b++)
        add_folds(s, hh[b], kk[b], dot[b], at + b == 0);
}

/* Of the n < V16_BLOCK columns from `at`. */
static void add_last_sums(gate_sums *s, const float *h, const float *qk, const float *key,
                          size_t at, size_t n)
{
    v16 hh = v16_zero(), kk = hh, dot = hh;

    for (size_t i = 0; i < n; i += 16) {
        const v16 vh = load_up_to(h + at + i, n - i);
        const v16 vk = load_up_to(key + at + i, n - i);

        hh = v16_fma(vh, vh, hh);
        kk = v16_fma(vk, vk, kk);
        dot = v16_fma(v16_mul(vh, load_up_to(qk + at + i, n - i)), vk, dot);
    }
    add_folds(s, hh, kk, dot, at == 0);
}

/* h . key of one copy, both normalised. */
static float normalised_dot(const float *h, const float *qk, const float *key, size_t width,
                            float eps)
{
    gate_sums s = {0};
    size_t    at = 0;
    float     r = 0;

    for (; at + 2 * V16_BLOCK <= width; at += 2 * V16_BLOCK)
        add_gate_sums(&s, h, qk, key, at, 2);
    for (; at + V16_BLOCK <= width; at += V16_BLOCK)
        add_gate_sums(&s, h, qk, key, at, 1);
    if (at < width)
        add_last_sums(&s, h, qk, key, at, width - at);
    r = rms_inverse(s.hh, width, eps) * rms_inverse(s.kk, width, eps);
    return s.dot * r * (1.0f / kvi_sqrtf((float)width));
}

/* The square root keeps its sign, also that of -0; |dot| has a floor. */
static inline v16 gates_of(v16 dot)
{
    const v16i sign = v16i_and(v16_bits(dot), v16i_set(INT32_MIN));
    const v16  size = v16_of_bits(v16i_xor(v16_bits(dot), sign));
    const v16  least = v16_set(1e-6f);
    const v16  root = v16_sqrt(v16_choose(v16_lt(size, least), least, size));

    return v16_sigmoid(v16_of_bits(v16i_xor(v16_bits(root), sign)));
}

/* h[c] += gate[c] value for n copies; n is a constant where it is 4. */
static inline void add_value(float *h, const float *value, const float *gate, size_t n,
                             size_t width)
{
    size_t i = 0;

    for (; i + 16 <= width; i += 16)
        for (size_t c = 0; c < n; c++)
            v16_store(h + c * width + i, v16_fma(v16_set(gate[c]), v16_load(value + i),
                                                 v16_load(h + c * width + i)));
    if (i < width)
        for (size_t c = 0; c < n; c++)
            v16_store_n(h + c * width + i,
                        v16_fma(v16_set(gate[c]), v16_load_n(value + i, width - i),
                                v16_load_n(h + c * width + i, width - i)),
                        width - i);
}

static void engram_gate(const kvi_engram_gate_params *p, size_t begin, size_t end)
{
    const size_t width = p->width;
    const size_t m = p->copies;

    for (size_t row = begin; row < end; row++)
        for (size_t c0 = 0; c0 < m; c0 += 16) {
            const size_t n = m - c0 < 16 ? m - c0 : 16;
            float       *h = p->h + (row * m + c0) * width;
            const float *kv = p->kv + row * (m + 1) * width;
            float        gate[16] = {0};

            for (size_t c = 0; c < n; c++)
                gate[c] = normalised_dot(h + c * width, p->qk + (c0 + c) * width,
                                         kv + (c0 + c) * width, width, p->eps);
            v16_store(gate, gates_of(v16_load(gate)));
            if (n == 4)
                add_value(h, kv + m * width, gate, 4, width);
            else
                add_value(h, kv + m * width, gate, n, width);
        }
}

/* ------------------------------------------------------------------ route */

/* log(1 + x) for 0 <= x < 2^126, NaN of NaN; at most 1.5 ulp off. 1 + x = u + c with u rounded, u =
 * 2^k m, sqrt(1/2) <= m < sqrt 2, f = (m - 1) + c 2^-k, which is x itself while k is 0: small
 * results keep their precision. log(1 + f) = f - f^2/2 + f^3 P(f) by the polynomial of Cephes' logf
 * (its own error is 0.1 ulp). The worst is k = 1, m near sqrt(1/2), where the result is 0.35: half
 * an ulp of it each by f (slope 1.2) and the last two sums. Largest found over every fifth float up
 * to 2^28: 1.39 ulp. */
static inline v16 v16_log1p(v16 x)
{
    const v16  one = v16_set(1.0f);
    const v16  u = v16_add(one, x);
    const v16  c = v16_sub(x, v16_sub(u, one));
    const v16i k = v16i_sar(v16i_sub(v16_bits(u), v16i_set(0x3f3504f3)), 23);
    const v16i power = v16i_shl(k, 23);
    const v16  m = v16_of_bits(v16i_sub(v16_bits(u), power));
    const v16  scale = v16_of_bits(v16i_sub(v16i_set(0x3f800000), power));
    const v16  n = v16_of_int(k);
    const v16  f = v16_fma(c, scale, v16_sub(m, one));
    const v16  z = v16_mul(f, f);
    v16        p = v16_set(7.0376836292e-2f);

    p = v16_fma(p, f, v16_set(-1.1514610310e-1f));
    p = v16_fma(p, f, v16_set(1.1676998740e-1f));
    p = v16_fma(p, f, v16_set(-1.2420140846e-1f));
    p = v16_fma(p, f, v16_set(1.4249322787e-1f));
    p = v16_fma(p, f, v16_set(-1.6668057665e-1f));
    p = v16_fma(p, f, v16_set(2.0000714765e-1f));
    p = v16_fma(p, f, v16_set(-2.4999993993e-1f));
    p = v16_fma(p, f, v16_set(3.3333331174e-1f));
    p = v16_mul(v16_mul(p, f), z);
    p = v16_fma(n, v16_set(-2.12194440e-4f), p);
    p = v16_fnma(v16_set(0.5f), z, p);
    return v16_fma(n, v16_set(0.693359375f), v16_add(f, p));
}

/* sqrt(softplus(z)), softplus(z) = z above 20. Below -17, log(1 + e^z) is e^z to 2^-25.5, and its
 * root e^(z/2), which stays a normal number down to z = -174. */
static inline v16 score_of(v16 z)
{
    const v16m low = v16_lt(z, v16_set(-17.0f));
    const v16  e = v16_exp(v16_choose(low, v16_mul(z, v16_set(0.5f)), z));
    const v16  soft = v16_choose(v16_gt(z, v16_set(20.0f)), z, v16_log1p(e));

    return v16_choose(low, e, v16_sqrt(soft));
}

/* s and rank of n experts; behind them ranks are NaN up to the next sixteen: nobody's. */
static void score_experts(const float *z, const float *bias, size_t n, float *s, float *rank)
{
    for (size_t e = 0; e < n; e += 16) {
        const v16 score = score_of(load_up_to(z + e, n - e));
        const v16 r = v16_add(score, load_up_to(bias + e, n - e));

        v16_store(s + e, score);
        v16_store(rank + e, v16_choose(v16_isnan(r), v16_set(-INFINITY), r));
    }
    for (size_t e = n; e % 16; e++)
        rank[e] = NAN;
}

/* The best of n16 ranks, a multiple of 16, the lowest id among equals; it becomes NaN, which is
 * never taken. */
static uint32_t take_best(float *rank, size_t n16)
{
    v16    a = v16_set(-INFINITY);
    v16    b = a;
    size_t e = 0;

    for (; e + 32 <= n16; e += 32) {
        a = v16_more(v16_load(rank + e), a);
        b = v16_more(v16_load(rank + e + 16), b);
    }
    if (e < n16)
        a = v16_more(v16_load(rank + e), a);
    a = v16_set(v16_most(v16_more(a, b)));
    for (e = 0; e < n16; e += 16) {
        const uint32_t same = v16_mask_bits(v16_eq(v16_load(rank + e), a));

        if (same) {
            e += (size_t)__builtin_ctz(same);
            break;
        }
    }
    rank[e] = NAN;
    return (uint32_t)e;
}

static void route_row(const kvi_route_params *p, size_t row, float *s, float *rank)
{
    const size_t n = p->n_experts;
    uint32_t    *experts = p->experts + row * p->k;
    float       *weights = p->weights + row * p->k;
    float        sum = 0.0f;

    score_experts(p->z + row * n, p->bias, n, s, rank);
    for (uint32_t i = 0; i < p->k; i++) {
        const uint32_t best = take_best(rank, (n + 15) / 16 * 16);
        uint32_t       at = i;

        for (; at > 0 && experts[at - 1] > best; at--)
            experts[at] = experts[at - 1];
        experts[at] = best;
    }
    for (uint32_t i = 0; i < p->k; i++) {
        weights[i] = s[experts[i]];
        sum += weights[i];
    }
    for (uint32_t i = 0; i < p->k; i++) {
        if (p->normalise && p->k > 1)
            weights[i] = weights[i] / (sum + 1e-20f);
        weights[i] = weights[i] * p->scale;
    }
}

static void route(const kvi_route_params *p, float *scratch, size_t begin, size_t end)
{
    for (size_t row = begin; row < end; row++)
        route_row(p, row, scratch, scratch + kvi_route_floats(p->n_experts) / 2);
}

/* ------------------------------------------------------------------ table */

static void fill_table(kvi_dense_kernels *k)
{
    k->angle = 32;
    k->balance = 10;
    k->score = 15;
    k->norm = norm;
    k->rope = rope;
    k->mix = mix;
    k->collapse = collapse;
    k->expand = expand;
    k->engram_gate = engram_gate;
    k->route = route;
}

#endif
