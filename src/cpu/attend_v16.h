/* Attention over window and selected entries with sixteen lanes: include after cpu/v16.h and what
 * the variant defines: the register (reg, REG_LANES, reg_zero, reg_load, reg_store, reg_fma) and
 * DOT_KEYS.
 *
 * Two matrix products with a softmax between them, for up to sixteen heads at a time:
 *   scores   [key][16 heads] = q . key: register tiles of keys x heads, lanes are channels; the
 *            16 heads of q stay in the L1 cache, a key comes from the L2 cache once. The sums of a
 *            key for 16 heads are folded together, so that heads are lanes from here on;
 *   softmax  per tile of 64 slots: maximum, e^x and sums run vertically over the keys;
 *   output   register tiles of heads x channels, keys inside: these channels of the keys stay in
 *            L1.
 * Work: 2 fma of 16 lanes for a key, a head and 16 channels; the bound is the fma rate. Besides it
 * a fold of 45 instructions for 16 scores (512 fma at 512 channels) and one e^x of 24. Heads of a
 * group see nothing of each other.
 *
 * The order of ref_attend.c with
 *   - scores summed as v16.h says, then times the scale;
 *   - p * key added to the output with one rounding (fma);
 *   - denominator * f + sum with two roundings.
 *
 * Measured (64 heads x 512 channels x (128 window rows + 512 entries FP4_E4M3_G16), one row, one
 * thread), share of the fma peak of AVX-512 / AVX2: scores with fold 0.88 / 0.92, output 0.94 /
 * 0.93, softmax 4 % / 3 %; the operator with 4k entries 0.81 / 0.86, with 1M 0.77 / 0.84. */
#ifndef KVI_ATTEND_V16_H
#define KVI_ATTEND_V16_H

#include "cpu/attend_kernels.h"

/* Arrays of sums are registers only if every loop over them is unrolled. */
#if defined(__clang__)
#define UNROLL       _Pragma("clang loop unroll(full)")
#define UNROLL_TWICE _Pragma("clang loop unroll_count(2)")
#else
#define UNROLL       _Pragma("GCC unroll 16")
#define UNROLL_TWICE _Pragma("GCC unroll 2")
#endif

enum {
    LANES = 16,
    DOT_HEADS = 6,
#if V16_REGS == 32
    SUM_HEADS = 8,
    SUM_VECS = 3,
    EXPS = 4
#else
    SUM_HEADS = 6,
    SUM_VECS = 1,
    EXPS = 2
#endif
};

/* ---------------------------------------------------------------- scores */

/* Sums of keys x heads over `width` channels, not yet folded: acc [n_keys][LANES][16]. A register
 * of lanes at a time, since lanes are independent and more keys and heads are worth more than more
 * lanes where registers are few. */
static inline __attribute__((always_inline)) void
dot_tile(const float *const *keys, size_t n_keys, const float *q, size_t q_stride, size_t n_heads,
         size_t width, float *acc)
{
    for (size_t lane = 0; lane < LANES; lane += REG_LANES) {
        reg a[DOT_KEYS][DOT_HEADS];

        UNROLL
        for (size_t i = 0; i < n_keys; i++)
            UNROLL
            for (size_t h = 0; h < n_heads; h++)
                a[i][h] = reg_zero();
        UNROLL_TWICE
        for (size_t c = lane; c < width; c += 16) {
            reg k[DOT_KEYS];

            UNROLL
            for (size_t i = 0; i < n_keys; i++)
                k[i] = reg_load(keys[i] + c);
            UNROLL
            for (size_t h = 0; h < n_heads; h++) {
                const reg x = reg_load(q + h * q_stride + c);

                UNROLL
                for (size_t i = 0; i < n_keys; i++)
                    a[i][h] = reg_fma(k[i], x, a[i][h]);
            }
        }
        UNROLL
        for (size_t i = 0; i < n_keys; i++)
            UNROLL
            for (size_t h = 0; h < n_heads; h++)
                reg_store(acc + (i * LANES + h) * 16 + lane, a[i][h]);
    }
}

/* The same for a number of heads that is known when it runs; n_keys is a constant. */
static inline __attribute__((always_inline)) void
dot_some_heads(const float *const *keys, size_t n_keys, const float *q, size_t q_stride,
               size_t n_heads, size_t width, float *acc)
{
    for (; n_heads >= DOT_HEADS; n_heads -= DOT_HEADS) {
        dot_tile(keys, n_keys, q, q_stride, DOT_HEADS, width, acc);
        q += DOT_HEADS * q_stride;
        acc += DOT_HEADS * 16;
    }
    switch (n_heads) {
    case 5: dot_tile(keys, n_keys, q, q_stride, 5, width, acc); break;
    case 4: dot_tile(keys, n_keys, q, q_stride, 4, width, acc); break;
    case 3: dot_tile(keys, n_keys, q, q_stride, 3, width, acc); break;
    case 2: dot_tile(keys, n_keys, q, q_stride, 2, width, acc); break;
    case 1: dot_tile(keys, n_keys, q, q_stride, 1, width, acc); break;
    default: break;
    }
}

/* Functions of their own: inlined into one large function, gcc spills inside the loops. */
static __attribute__((noinline)) void dot_many(const float *const *keys, const float *q,
                                               size_t q_stride, size_t n_heads, size_t width,
                                               float *acc)
{
    dot_some_heads(keys, DOT_KEYS, q, q_stride, n_heads, width, acc);
}

static __attribute__((noinline)) void dot_one(const float *const *keys, const float *q,
                                              size_t q_stride, size_t n_heads, size_t width,
                                              float *acc)
{
    dot_some_heads(keys, 1, q, q_stride, n_heads, width, acc);
}

/* Dot products [n_keys][LANES] of all keys and some heads; lanes without a head give 0. */
static void dot_products(const kvi_attend_keys *keys, const float *q, size_t n_heads, size_t width,
                         float *scores)
{
    const size_t n_keys = keys->ends[keys->n_tiles - 1];

    _Alignas(64) float acc[DOT_KEYS * LANES * 16];

    for (size_t i = 0; i < DOT_KEYS * LANES && n_heads < LANES; i++)
        v16_store(acc + i * 16, v16_zero());
    for (size_t i = 0; i < n_keys;) {
        const size_t n = n_keys - i < DOT_KEYS ? 1 : DOT_KEYS;

        for (size_t c = 0; c < width; c += V16_BLOCK) {
            const size_t block = width - c < V16_BLOCK ? width - c : V16_BLOCK;
            const float *rows[DOT_KEYS];

            for (size_t j = 0; j < n; j++)
                rows[j] = keys->rows[i + j] + c;
            if (n == 1)
                dot_one(rows, q + c, width, n_heads, block, acc);
            else
                dot_many(rows, q + c, width, n_heads, block, acc);
            for (size_t j = 0; j < n; j++) {
                float *s = scores + (i + j) * LANES;
                v16    a[16];

                for (size_t h = 0; h < 16; h++)
                    a[h] = v16_load(acc + (j * LANES + h) * 16);
                v16_store(s, c == 0 ? v16_fold16(a) : v16_add(v16_load(s), v16_fold16(a)));
            }
        }
        i += n;
    }
}

/* ---------------------------------------------------------------- softmax */

/* Keeps the scores of the selected slots; s [key][LANES] not yet scaled. */
static void keep_scores(const kvi_attend_heads *h, size_t first_head, size_t n_heads,
                        const kvi_attend_keys *keys, const float *s)
{
    float       *scores = h->scores + first_head * h->k;
    const size_t n_keys = keys->ends[keys->n_tiles - 1];

    for (size_t i = 0; i < n_keys; i++)
        for (size_t j = 0; keys->slots[i] >= h->n_window && j < n_heads; j++)
            scores[j * h->k + keys->slots[i] - h->n_window] = s[i * LANES + j] * h->scale;
}

/* n vectors of v16_exp in place, bit for bit, where x <= 0 or NaN: 2^k, k >= -126, is added to the
 * exponent of a value that is not below 2^(-126 - k); lanes below -87.33 or NaN hold anything until
 * the end. Step by step for all n (a constant), since one vector after the other would
 * wait for its own results: half the time. */
static inline __attribute__((always_inline)) void exp_of_negative(v16 *x, int n)
{
    const v16 magic = v16_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    v16       k[EXPS], r[EXPS], p[EXPS];

    for (int i = 0; i < n; i++)
        k[i] = v16_add(v16_mul(x[i], v16_set(1.44269504088896341f)), magic);
    for (int i = 0; i < n; i++)
        r[i] = v16_fnma(v16_sub(k[i], magic), v16_set(0.693359375f), x[i]);
    for (int i = 0; i < n; i++)
        r[i] = v16_fnma(v16_sub(k[i], magic), v16_set(-2.12194440e-4f), r[i]);
    for (int i = 0; i < n; i++)
        p[i] = v16_fma(v16_set(1.9875691500e-4f), r[i], v16_set(1.3981999507e-3f));
    for (int i = 0; i < n; i++)
        p[i] = v16_fma(p[i], r[i], v16_set(8.3334519073e-3f));
    for (int i = 0; i < n; i++)
        p[i] = v16_fma(p[i], r[i], v16_set(4.1665795894e-2f));
    for (int i = 0; i < n; i++)
        p[i] = v16_fma(p[i], r[i], v16_set(1.6666665459e-1f));
    for (int i = 0; i < n; i++)
        p[i] = v16_fma(p[i], r[i], v16_set(5.0000001201e-1f));
    for (int i = 0; i < n; i++)
        p[i] = v16_add(v16_fma(p[i], v16_mul(r[i], r[i]), r[i]), v16_set(1.0f));
    for (int i = 0; i < n; i++) {
        const v16 y = v16_of_bits(v16i_add(v16_bits(p[i]), v16i_shl(v16_bits(k[i]), 23)));

        p[i] = v16_choose(v16_lt(x[i], v16_set(-87.33654f)), v16_zero(), y);
        x[i] = v16_choose(v16_isnan(x[i]), x[i], p[i]);
    }
}

/* Scores of n keys (a constant) to weights; returns total + their sum. */
static inline __attribute__((always_inline)) v16 soften_keys(float *s, int n, v16 scale, v16 max,
                                                             v16 total)
{
    v16 e[EXPS];

    for (int i = 0; i < n; i++)
        e[i] = v16_sub(v16_mul(v16_load(s + i * LANES), scale), max);
    exp_of_negative(e, n);
    for (int i = 0; i < n; i++) {
        total = v16_add(total, e[i]);
        v16_store(s + i * LANES, e[i]);
    }
    return total;
}

/* Scores [n_keys][LANES] of a tile, not yet scaled, to weights in place. Moves max and sum of the
 * lanes; returns the factor of what was there before. */
static inline v16 soften(float *s, size_t n_keys, v16 scale, v16 *max, v16 *sum)
{
    v16    m = *max;
    v16    total = v16_zero();
    v16    f;
    size_t i;

    for (i = 0; i < n_keys; i++) /* NaN does not move it */
        m = v16_more(v16_mul(v16_load(s + i * LANES), scale), m);
    for (i = 0; i + EXPS <= n_keys; i += EXPS)
        total = soften_keys(s + i * LANES, EXPS, scale, m, total);
    for (; i < n_keys; i++)
        total = soften_keys(s + i * LANES, 1, scale, m, total);
    f = v16_sub(*max, m);
    exp_of_negative(&f, 1);
    *sum = v16_add(v16_mul(*sum, f), total);
    *max = m;
    return f;
}

/* ---------------------------------------------------------------- output */

/* What the output of some heads gets: per tile a factor, per key a weight; lanes are heads. */
typedef struct weights {
    float factors[KVI_ATTEND_PASS / KVI_ATTEND_TILE][LANES];
    float keys[KVI_ATTEND_PASS][LANES];
} weights;

/* n_heads x n_vecs x 16 channels, the channels from c on. factors and p, the weights: of the first
 * of these heads; out: there, at c. */
static inline __attribute__((always_inline)) void
sum_tile(const kvi_attend_keys *keys, const float *factors, const float *p, size_t n_heads,
         size_t c, size_t n_vecs, int first, float *out, size_t out_stride)
{
    v16    a[SUM_HEADS][SUM_VECS];
    size_t i = 0;

    UNROLL
    for (size_t h = 0; h < n_heads; h++)
        UNROLL
        for (size_t v = 0; v < n_vecs; v++)
            a[h][v] = first ? v16_zero() : v16_load(out + h * out_stride + v * 16);
    for (size_t t = 0; t < keys->n_tiles; t++) {
        const size_t end = keys->ends[t];

        UNROLL
        for (size_t h = 0; h < n_heads; h++) {
            const v16 f = v16_set(factors[h]);

            UNROLL
            for (size_t v = 0; v < n_vecs; v++)
                a[h][v] = v16_mul(a[h][v], f);
        }
        factors += LANES;
        for (; i < end; i++) {
            const float *key = keys->rows[i] + c;
            v16          k[SUM_VECS];

            UNROLL
            for (size_t v = 0; v < n_vecs; v++)
                k[v] = v16_load(key + v * 16);
            UNROLL
            for (size_t h = 0; h < n_heads; h++) {
                const v16 w = v16_set(p[h]);

                UNROLL
                for (size_t v = 0; v < n_vecs; v++)
                    a[h][v] = v16_fma(w, k[v], a[h][v]);
            }
            p += LANES;
        }
    }
    UNROLL
    for (size_t h = 0; h < n_heads; h++)
        UNROLL
        for (size_t v = 0; v < n_vecs; v++)
            v16_store(out + h * out_stride + v * 16, a[h][v]);
}

/* The same for all heads of a group; n_vecs is a constant. */
static inline __attribute__((always_inline)) void
sum_heads(const kvi_attend_keys *keys, const weights *w, size_t n_heads, size_t c, size_t n_vecs,
          int first, float *out, size_t stride)
{
    const float *f = w->factors[0];
    const float *p = w->keys[0];

    for (; n_heads >= SUM_HEADS; n_heads -= SUM_HEADS) {
        sum_tile(keys, f, p, SUM_HEADS, c, n_vecs, first, out, stride);
        f += SUM_HEADS;
        p += SUM_HEADS;
        out += SUM_HEADS * stride;
    }
    switch (n_heads) {
#if V16_REGS == 32
    case 7: sum_tile(keys, f, p, 7, c, n_vecs, first, out, stride); break;
    case 6: sum_tile(keys, f, p, 6, c, n_vecs, first, out, stride); break;
#endif
    case 5: sum_tile(keys, f, p, 5, c, n_vecs, first, out, stride); break;
    case 4: sum_tile(keys, f, p, 4, c, n_vecs, first, out, stride); break;
    case 3: sum_tile(keys, f, p, 3, c, n_vecs, first, out, stride); break;
    case 2: sum_tile(keys, f, p, 2, c, n_vecs, first, out, stride); break;
    case 1: sum_tile(keys, f, p, 1, c, n_vecs, first, out, stride); break;
    default: break;
    }
}

static __attribute__((noinline)) void sum_keys(const kvi_attend_keys *keys, const weights *w,
                                               size_t n_heads, size_t width, int first,
                                               float *out)
{
    size_t c = 0;

    for (; c + SUM_VECS * 16 <= width; c += SUM_VECS * 16)
        sum_heads(keys, w, n_heads, c, SUM_VECS, first, out + c, width);
    for (; c < width; c += 16)
        sum_heads(keys, w, n_heads, c, 1, first, out + c, width);
}

/* ---------------------------------------------------------------- kernels */

static inline v16 load_lanes(const float *p, size_t n)
{
    return n < LANES ? v16_load_n(p, n) : v16_load(p);
}

static inline void store_lanes(float *p, v16 a, size_t n)
{
    if (n < LANES)
        v16_store_n(p, a, n);
    else
        v16_store(p, a);
}

/* Heads first .. first + n_heads - 1, at most LANES. */
static void add_keys_to(const kvi_attend_heads *h, size_t first, size_t n_heads,
                        const kvi_attend_keys *keys)
{
    const v16    scale = v16_set(h->scale);
    v16          max = load_lanes(h->max + first, n_heads);
    v16          sum = load_lanes(h->sum + first, n_heads);
    size_t       begin = 0;

    _Alignas(64) weights w;

    dot_products(keys, h->q + first * h->width, n_heads, h->width, w.keys[0]);
    if (h->scores)
        keep_scores(h, first, n_heads, keys, w.keys[0]);
    for (size_t t = 0; t < keys->n_tiles; t++) {
        v16_store(w.factors[t], soften(w.keys[begin], keys->ends[t] - begin, scale, &max, &sum));
        begin = keys->ends[t];
    }
    store_lanes(h->max + first, max, n_heads);
    store_lanes(h->sum + first, sum, n_heads);
    sum_keys(keys, &w, n_heads, h->width, h->first != 0, h->out + first * h->width);
}

static void attend_add_keys(const kvi_attend_heads *h, const kvi_attend_keys *keys)
{
    const size_t n_groups = (h->n_heads + LANES - 1) / LANES;
    size_t       first = 0;

    for (size_t g = n_groups; g > 0; g--) { /* groups of nearly equal size */
        const size_t n = (h->n_heads - first + g - 1) / g;

        add_keys_to(h, first, n, keys);
        first += n;
    }
}

/* Scores [n] to probabilities. */
static void finish_scores(float *s, size_t n, float max, float den)
{
    const v16 m = v16_set(max);
    const v16 d = v16_set(den);
    size_t    i = 0;

    for (; i + 16 <= n; i += 16)
        v16_store(s + i, v16_div(v16_exp(v16_sub(v16_load(s + i), m)), d));
    if (i < n)
        v16_store_n(s + i, v16_div(v16_exp(v16_sub(v16_load_n(s + i, n - i), m)), d), n - i);
}

static void attend_finish(const kvi_attend_heads *h, const float *sink)
{
    for (size_t first = 0; first < h->n_heads; first += LANES) {
        const size_t n = h->n_heads - first < LANES ? h->n_heads - first : LANES;
        const v16    e = v16_exp(v16_sub(load_lanes(sink + first, n),
                                         load_lanes(h->max + first, n)));
        float        den[LANES];

        v16_store(den, v16_add(load_lanes(h->sum + first, n), e));
        for (size_t i = 0; i < n; i++) {
            const v16 d = v16_set(den[i]);
            float    *out = h->out + (first + i) * h->width;

            for (size_t c = 0; c < h->width; c += 16)
                v16_store(out + c, v16_div(v16_load(out + c), d));
            if (h->scores)
                finish_scores(h->scores + (first + i) * h->k, h->k, h->max[first + i], den[i]);
        }
    }
}

#endif
