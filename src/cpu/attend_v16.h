/* Attention over window and selected entries with sixteen lanes: include after cpu/v16.h and what
 * the variant defines: the register (reg, REG_LANES, reg_zero, reg_load, reg_store, reg_set of a
 * float in memory, reg_add, reg_fma, reg_transpose) and the tiles (DOT_KEYS, DOT_REGS, DOT_FEW,
 * REST_KEYS).
 *
 * Two matrix products with a softmax between them:
 *   scores   lanes are heads. Lane i of v16.h, the channels i, i + 16, ..., is a tile of keys x
 *            registers of heads: q of these channels, brought in order once a row, comes from the
 *            L2 cache, the keys of a tile, decoded just before, stay in L1 for all heads. So the
 *            fold of v16.h is 15 plain additions, the same bits as between lanes of a register;
 *   softmax  per tile of 64 slots: maximum, e^x and sums run vertically over the keys;
 *   output   register tiles of heads x channels, keys inside: these channels of the keys stay in
 *            L1.
 * Work: 2 fma of 16 lanes for a key, a head and 16 channels; the bound is the fma rate. Besides it
 * 15 additions for 16 scores (512 fma at 512 channels) and one e^x of 24. Heads see nothing of each
 * other.
 *
 * The order of ref_attend.c with
 *   - scores summed as v16.h says, then times the scale;
 *   - p * key added to the output with one rounding (fma);
 *   - denominator * f + sum with two roundings.
 *
 * Measured (64 heads x 512 channels x (128 window rows + 512 entries FP4_E4M3_G16), one row, one
 * thread, AVX-512): scores alone 0.91 to 0.92 of the fma peak with keys from L2; the operator 1.10
 * times as fast as with lanes that are channels where there are 4k entries, 1.05 to 1.07 times
 * with 1M. With AVX2 no difference that can be told. */
#ifndef KVI_ATTEND_V16_H
#define KVI_ATTEND_V16_H

#include "cpu/attend_kernels.h"

#include <string.h>

#define SUM_REST (V16_REGS == 32 ? 2 : 1)

/* Arrays of sums are registers only if every loop over them is unrolled. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum {
    LANES = 16,
    DOT_HEADS = DOT_REGS * REG_LANES,
    REST_HEADS = 6,
    PREFETCH_ROWS = 6, /* of a tile */
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

/* Registers of heads that are taken together where n_heads are left; 0 = too few for one. */
static inline size_t block_regs(size_t n_heads)
{
    if (n_heads + REG_LANES / 4 >= DOT_HEADS)
        return DOT_REGS;
    return n_heads + REG_LANES / 4 >= REG_LANES ? 1 : 0;
}

/* A register of heads, lanes are heads: q of channel 16 j + lane goes to to[(lane * width / 16 + j)
 * * stride]. Where there is no head: 0. */
static void arrange_heads(const kvi_attend_heads *h, size_t first, float *to, size_t stride)
{
    const size_t steps = h->width / 16;

    for (size_t c = 0; c < h->width; c += REG_LANES) {
        reg t[REG_LANES];

        for (size_t i = 0; i < REG_LANES; i++)
            t[i] = first + i < h->n_heads ? reg_load(h->q + (first + i) * h->width + c)
                                          : reg_zero();
        reg_transpose(t);
        for (size_t i = 0; i < REG_LANES; i++)
            reg_store(to + ((c % 16 + i) * steps + c / 16) * stride, t[i]);
    }
}

static void attend_arrange(const kvi_attend_heads *h)
{
    float *to = h->lanes;
    size_t n_regs;

    for (size_t first = 0; first < h->n_heads; first += n_regs * REG_LANES) {
        n_regs = block_regs(h->n_heads - first);
        if (n_regs == 0)
            break;
        for (size_t r = 0; r < n_regs; r++)
            arrange_heads(h, first + r * REG_LANES, to + r * REG_LANES, n_regs * REG_LANES);
        to += n_regs * REG_LANES * h->width;
    }
    if (h->n_heads % LANES != 0) /* lanes that no register covers */
        memset(h->dots + h->n_heads / LANES * KVI_ATTEND_PASS * LANES, 0,
               sizeof(float) * KVI_ATTEND_PASS * LANES);
}

/* A tile: some keys and registers of heads, a block of channels. */
typedef struct dot_job {
    const float     *keys[DOT_KEYS];
    const float     *q;      /* of lane 0 */
    size_t           stride; /* of q, from lane to lane */
    size_t           width;  /* channels */
    size_t           first;  /* 1 = the first block: dots holds nothing yet */
    float           *dots;
    kvi_attend_next *next;
} dot_job;

/* To the L2 cache, at lane n of a tile. First one line of some rows: what follows waits for the
 * page walks, and only walks that are asked for together overlap. Later their other lines, a row at
 * a time: many at once would hold up the loads of q. */
static void prefetch_rows(kvi_attend_next *next, size_t n)
{
    if (n == 0) {
        for (size_t i = 0; i < PREFETCH_ROWS && i < next->n; i++)
            __builtin_prefetch(next->rows[i], 0, 2);
    } else if (n + 2 * PREFETCH_ROWS >= LANES && n % 2 == 0 && next->n > 0) {
        for (size_t at = 64; at < next->bytes; at += 64)
            __builtin_prefetch(*next->rows + at, 0, 2);
        __builtin_prefetch(*next->rows + next->bytes - 1, 0, 2);
        next->rows++;
        next->n--;
    }
}

/* The lanes of v16.h are taken one after the other, in such an order that every sum of the fold is
 * due when its second half is there: `wait` holds at most one half of each level. */
static inline __attribute__((always_inline)) void dot_tile(const dot_job *job, size_t n_keys,
                                                           size_t n_regs)
{
    static const uint8_t order[LANES] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

    const size_t width = job->width;

    _Alignas(64) float wait[4][DOT_KEYS][DOT_HEADS];

    for (size_t n = 0; n < LANES; n++) {
        const size_t lane = order[n];
        const float *q = job->q + lane * job->stride;
        const float *keys[DOT_KEYS];
        size_t       level = 0;
        reg          a[DOT_KEYS][DOT_REGS];

        prefetch_rows(job->next, n);
        UNROLL
        for (size_t i = 0; i < n_keys; i++) {
            keys[i] = job->keys[i] + lane;
            UNROLL
            for (size_t r = 0; r < n_regs; r++)
                a[i][r] = reg_zero();
        }
        for (size_t c = 0; c < width; c += 16) {
            reg x[DOT_REGS];

            UNROLL
            for (size_t r = 0; r < n_regs; r++)
                x[r] = reg_load(q + r * REG_LANES);
            q += n_regs * REG_LANES;
            UNROLL
            for (size_t i = 0; i < n_keys; i++) {
                const reg k = reg_set(keys[i] + c);

                UNROLL
                for (size_t r = 0; r < n_regs; r++)
                    a[i][r] = reg_fma(k, x[r], a[i][r]);
            }
        }
        for (; (n >> level & 1) != 0; level++) {
            UNROLL
            for (size_t i = 0; i < n_keys; i++)
                UNROLL
                for (size_t r = 0; r < n_regs; r++)
                    a[i][r] = reg_add(reg_load(wait[level][i] + r * REG_LANES), a[i][r]);
        }
        UNROLL
        for (size_t i = 0; i < n_keys; i++)
            UNROLL
            for (size_t r = 0; r < n_regs; r++) {
                float *dot = job->dots + (r * REG_LANES / LANES * KVI_ATTEND_PASS + i) * LANES +
                             r * REG_LANES % LANES;

                if (n + 1 < LANES)
                    reg_store(wait[level][i] + r * REG_LANES, a[i][r]);
                else
                    reg_store(dot, job->first ? a[i][r] : reg_add(reg_load(dot), a[i][r]));
            }
    }
}

/* Functions of their own: inlined into one large function, gcc spills inside the loops. */
#define DOT_FUNCTION(name, n_keys, n_regs)                                                         \
    static __attribute__((noinline)) void name(const dot_job *job)                                 \
    {                                                                                              \
        dot_tile(job, n_keys, n_regs);                                                             \
    }
DOT_FUNCTION(dot_many, DOT_KEYS, DOT_REGS)
DOT_FUNCTION(dot_few, DOT_FEW, DOT_REGS)
DOT_FUNCTION(dot_one, 1, DOT_REGS)
DOT_FUNCTION(dot_many_of_some, DOT_KEYS, 1)
DOT_FUNCTION(dot_few_of_some, DOT_FEW, 1)
DOT_FUNCTION(dot_one_of_some, 1, 1)

/* The keys begin .. end - 1 and the heads from first on; q: of these heads. */
static void dot_block(const kvi_attend_heads *h, const kvi_attend_keys *keys, size_t begin,
                      size_t end, size_t first, const float *q, kvi_attend_next *next)
{
    const int some = block_regs(h->n_heads - first) < DOT_REGS;
    const size_t n_heads = some ? REG_LANES : DOT_HEADS;
    dot_job      job = {.stride = h->width / 16 * n_heads, .next = next};
    size_t       n;

    for (size_t i = begin; i < end; i += n) {
        n = end - i >= DOT_KEYS ? DOT_KEYS : end - i >= DOT_FEW ? DOT_FEW : 1;
        job.dots = h->dots + (first / LANES * KVI_ATTEND_PASS + i) * LANES + first % LANES;
        for (size_t c = 0; c < h->width; c += V16_BLOCK) {
            job.q = q + c / 16 * n_heads;
            job.width = h->width - c < V16_BLOCK ? h->width - c : V16_BLOCK;
            job.first = c == 0;
            for (size_t j = 0; j < n; j++)
                job.keys[j] = keys->rows[i + j] + c;
            if (n == DOT_KEYS)
                (some ? dot_many_of_some : dot_many)(&job);
            else if (n == DOT_FEW)
                (some ? dot_few_of_some : dot_few)(&job);
            else
                (some ? dot_one_of_some : dot_one)(&job);
        }
    }
}

/* ---------------------------------------------------------------- scores of a few heads */

/* Heads that would leave most of a register empty: lanes are channels, and the sums of a key for up
 * to 16 heads are folded together. */

/* Sums of keys x heads over `width` channels, not yet folded: acc [n_keys][LANES][16]. A register
 * of lanes at a time, since lanes are independent and more keys and heads are worth more than more
 * lanes where registers are few. */
static inline __attribute__((always_inline)) void
rest_tile(const float *const *keys, size_t n_keys, const float *q, size_t q_stride, size_t n_heads,
          size_t width, float *acc)
{
    for (size_t lane = 0; lane < LANES; lane += REG_LANES) {
        reg a[REST_KEYS][REST_HEADS];

        UNROLL
        for (size_t i = 0; i < n_keys; i++)
            UNROLL
            for (size_t h = 0; h < n_heads; h++)
                a[i][h] = reg_zero();
        for (size_t c = lane; c < width; c += 16) {
            reg k[REST_KEYS];

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
rest_heads(const float *const *keys, size_t n_keys, const float *q, size_t q_stride,
           size_t n_heads, size_t width, float *acc)
{
    for (; n_heads >= REST_HEADS; n_heads -= REST_HEADS) {
        rest_tile(keys, n_keys, q, q_stride, REST_HEADS, width, acc);
        q += REST_HEADS * q_stride;
        acc += REST_HEADS * 16;
    }
    switch (n_heads) {
    case 5: rest_tile(keys, n_keys, q, q_stride, 5, width, acc); break;
    case 4: rest_tile(keys, n_keys, q, q_stride, 4, width, acc); break;
    case 3: rest_tile(keys, n_keys, q, q_stride, 3, width, acc); break;
    case 2: rest_tile(keys, n_keys, q, q_stride, 2, width, acc); break;
    case 1: rest_tile(keys, n_keys, q, q_stride, 1, width, acc); break;
    default: break;
    }
}

static __attribute__((noinline)) void rest_many(const float *const *keys, const float *q,
                                                size_t q_stride, size_t n_heads, size_t width,
                                                float *acc)
{
    rest_heads(keys, REST_KEYS, q, q_stride, n_heads, width, acc);
}

static __attribute__((noinline)) void rest_one(const float *const *keys, const float *q,
                                               size_t q_stride, size_t n_heads, size_t width,
                                               float *acc)
{
    rest_heads(keys, 1, q, q_stride, n_heads, width, acc);
}

/* The keys begin .. end - 1 and the heads from first on, less than a register of them. */
static void dot_rest(const kvi_attend_heads *h, const kvi_attend_keys *keys, size_t begin,
                     size_t end, size_t first)
{
    const size_t n_heads = h->n_heads - first;
    const float *q = h->q + first * h->width;
    size_t       n;

    _Alignas(64) float acc[REST_KEYS * LANES * 16];

    memset(acc, 0, sizeof acc);
    for (size_t i = begin; i < end; i += n) {
        float *dots = h->dots + (first / LANES * KVI_ATTEND_PASS + i) * LANES + first % LANES;

        n = end - i < REST_KEYS ? 1 : REST_KEYS;
        for (size_t c = 0; c < h->width; c += V16_BLOCK) {
            const size_t block = h->width - c < V16_BLOCK ? h->width - c : V16_BLOCK;
            const float *rows[REST_KEYS];

            for (size_t j = 0; j < n; j++)
                rows[j] = keys->rows[i + j] + c;
            (n == 1 ? rest_one : rest_many)(rows, q + c, h->width, n_heads, block, acc);
            for (size_t j = 0; j < n; j++) {
                float *s = dots + j * LANES;
                v16    a[16], sum;

                for (size_t k = 0; k < 16; k++)
                    a[k] = v16_load(acc + (j * LANES + k) * 16);
                sum = v16_fold16(a);
                v16_store_n(s, c == 0 ? sum : v16_add(v16_load_n(s, n_heads), sum), n_heads);
            }
        }
    }
}

/* ---------------------------------------------------------------- scores of all heads */

static void attend_score(const kvi_attend_heads *h, const kvi_attend_keys *keys, size_t begin,
                         size_t end, kvi_attend_next *next)
{
    const float *q = h->lanes;
    size_t       n_heads;

    for (size_t first = 0; first < h->n_heads; first += n_heads) {
        n_heads = block_regs(h->n_heads - first) * REG_LANES;
        if (n_heads == 0) {
            dot_rest(h, keys, begin, end, first);
            break;
        }
        dot_block(h, keys, begin, end, first, q, next);
        q += n_heads * h->width;
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
sum_heads(const kvi_attend_keys *keys, const float *f, const float *p, size_t n_heads, size_t c,
          size_t n_vecs, int first, float *out, size_t stride)
{
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

/* factors [n_tiles][LANES], weights [key][LANES]. */
static __attribute__((noinline)) void sum_keys(const kvi_attend_keys *keys, const float *factors,
                                               const float *weights, size_t n_heads, size_t width,
                                               int first, float *out)
{
    size_t c = 0;

    for (; c + SUM_VECS * 16 <= width; c += SUM_VECS * 16)
        sum_heads(keys, factors, weights, n_heads, c, SUM_VECS, first, out + c, width);
#if SUM_REST > 1
    for (; c + SUM_REST * 16 <= width; c += SUM_REST * 16)
        sum_heads(keys, factors, weights, n_heads, c, SUM_REST, first, out + c, width);
#endif
    for (; c < width; c += 16)
        sum_heads(keys, factors, weights, n_heads, c, 1, first, out + c, width);
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

static void attend_add_keys(const kvi_attend_heads *h, const kvi_attend_keys *keys)
{
    const v16 scale = v16_set(h->scale);
    float    *s = h->dots;

    for (size_t first = 0; first < h->n_heads; first += LANES) {
        const size_t n = h->n_heads - first < LANES ? h->n_heads - first : LANES;
        v16          max = load_lanes(h->max + first, n);
        v16          sum = load_lanes(h->sum + first, n);
        size_t       begin = 0;

        _Alignas(64) float factors[KVI_ATTEND_PASS / KVI_ATTEND_TILE][LANES];

        if (h->scores)
            keep_scores(h, first, n, keys, s);
        for (size_t t = 0; t < keys->n_tiles; t++) {
            v16_store(factors[t],
                      soften(s + begin * LANES, keys->ends[t] - begin, scale, &max, &sum));
            begin = keys->ends[t];
        }
        store_lanes(h->max + first, max, n);
        store_lanes(h->sum + first, sum, n);
        sum_keys(keys, factors[0], s, n, h->width, h->first != 0, h->out + first * h->width);
        s += KVI_ATTEND_PASS * LANES;
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
