/* Paged attention in numerics 2, for every instruction set (cpu/v16.h). The order: paged_kernels.h.
 *
 * A decoded value serves all query rows of the chunk, four for one token of a model with 32 / 8
 * heads. Rows are decoded into a buffer in L1, sixteen at a time, which then meets all query rows;
 * or, where registers suffice for four query rows, used in the registers they are decoded in.
 *
 * Work for sixteen values and four query rows: 2 (f16) to 6 (fp8) instructions of decoding, 4
 * multiply-adds; 3 instructions for each key and query row to add up lanes (v16_fold16). Bound: the
 * read stream for two bytes a value, the vector ports below that. While keys are used their values
 * are fetched into L2, then the keys of the next tile. Lines on their way occupy the few buffers
 * (16 on recent Intel cores) that loads need too, so a row is prefetched at a time, in order of
 * addresses, and the hardware's own prefetch runs ahead of that.
 *
 * Measured, one token, 32 / 8 heads x 128, 32k positions, one AVX-512 core, against the read stream
 * of the same bytes: f16 and bf16 0.71, fp8 0.40, int8 0.48, four bits 0.28 (compute bound: 0.30 of
 * the multiply-adds that the core can do, as much again goes into decoding and lanes). Without the
 * prefetches f16 gets 0.43. Many rows: 0.4 to 0.5 of the multiply-adds. */
#ifndef KVI_PAGED_V16_H
#define KVI_PAGED_V16_H

#include "cpu/paged_row_v16.h"

#include "base/checked.h"

/* Arrays of sums are registers only if every loop over them is unrolled. */
#if defined(__clang__)
#define PAGED_UNROLL    _Pragma("clang loop unroll(full)")
#define PAGED_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define PAGED_UNROLL    _Pragma("GCC unroll 16")
#define PAGED_NO_UNROLL _Pragma("GCC unroll 1")
#endif

enum { STEP = 16 }; /* rows in the buffer */

/* Registers: a block of dot products is BLOCK_Q x BLOCK_KEYS, one of sums BLOCK_Q x BLOCK_CHANNELS.
 * With 32 registers of sixteen floats four query rows fit beside the decoding itself: then the
 * values of a row never see memory as floats. */
#if V16_REGS >= 32
#define PAGED_FUSED 1
enum { BLOCK_Q = 4, BLOCK_KEYS = 4, BLOCK_CHANNELS = 64, FUSED_Q = 4 };
#else
#define PAGED_FUSED 0
enum { BLOCK_Q = 2, BLOCK_KEYS = 2, BLOCK_CHANNELS = 32, FUSED_Q = 0 };
#endif

/* ---------------------------------------------------------------- q . key */

/* acc[i * stride + j]: lanes of the products of query row i and key j, channels begin .. end - 1 */
PAGED_INLINE void multiply(const float *q, const float *keys, size_t width, size_t begin,
                           size_t end, const int nq, const int nk, v16 *acc, const int stride)
{
    v16 a[16];

    PAGED_UNROLL
    for (int i = 0; i < nq * nk; i++)
        a[i] = v16_zero();
    for (size_t c = begin; c < end; c += 16) {
        v16 x[4];

        PAGED_UNROLL
        for (int i = 0; i < nq; i++)
            x[i] = v16_load(q + (size_t)i * width + c);
        PAGED_UNROLL
        for (int j = 0; j < nk; j++) {
            const v16 k = v16_load(keys + (size_t)j * width + c);

            PAGED_UNROLL
            for (int i = 0; i < nq; i++)
                a[i * nk + j] = v16_fma(x[i], k, a[i * nk + j]);
        }
    }
    PAGED_UNROLL
    for (int i = 0; i < nq; i++)
        PAGED_UNROLL
        for (int j = 0; j < nk; j++)
            acc[i * stride + j] = a[i * nk + j];
}

/* Sixteen dot products, nq query rows by 16 / nq keys, in lanes nk * i + j. */
PAGED_INLINE v16 dots16(const float *q, const float *keys, size_t width, const int nq)
{
    const int nk = 16 / nq;
    const int bq = nq < BLOCK_Q ? nq : BLOCK_Q;
    const int bk = V16_REGS >= 32 ? nk : bq == 1 ? 4 : BLOCK_KEYS;
    v16       sum = v16_zero();

    for (size_t begin = 0; begin < width; begin += V16_BLOCK) {
        const size_t end = kvi_min_size(begin + V16_BLOCK, width);
        v16          acc[16];

        /* Blocks one after the other: unrolled, their lanes would compete for few registers. */
        PAGED_NO_UNROLL
        for (int i = 0; i < nq; i += bq)
            PAGED_NO_UNROLL
            for (int j = 0; j < nk; j += bk)
                multiply(q + (size_t)i * width, keys + (size_t)j * width, width, begin, end, bq, bk,
                         acc + i * nk + j, nk);
        sum = begin == 0 ? v16_fold16(acc) : v16_add(sum, v16_fold16(acc));
    }
    return sum;
}

/* scores of nq query rows (1, 2, 4) and STEP keys; those of a query row lie KVI_PAGED_TILE apart */
PAGED_INLINE void score_block(const float *q, const float *keys, size_t width, float *scores,
                              const int nq)
{
    const size_t nk = 16 / (size_t)nq;

    for (size_t k = 0; k < STEP; k += nk) {
        float t[16];

        v16_store(t, dots16(q, keys + k * width, width, nq));
        PAGED_UNROLL
        for (int i = 0; i < nq; i++)
            memcpy(scores + (size_t)i * KVI_PAGED_TILE + k, t + (size_t)i * nk, nk * sizeof *t);
    }
}

static void score_step(const float *q, size_t n_q, const float *keys, size_t width, float *scores)
{
    size_t i = 0;

    for (; i + 4 <= n_q; i += 4)
        score_block(q + i * width, keys, width, scores + i * KVI_PAGED_TILE, 4);
    for (; i + 2 <= n_q; i += 2)
        score_block(q + i * width, keys, width, scores + i * KVI_PAGED_TILE, 2);
    for (; i < n_q; i++)
        score_block(q + i * width, keys, width, scores + i * KVI_PAGED_TILE, 1);
}

/* ---------------------------------------------------------------- softmax */

PAGED_INLINE float exp_of(float x)
{
    float t[16];

    v16_store(t, v16_exp(v16_set(x)));
    return t[0];
}

/* v16_exp of what is not above 0, bit by bit: no overflow, and 2^n is a float. NaN stays one. */
PAGED_INLINE v16 exp_down(v16 x)
{
    const v16 n = v16_round(v16_mul(x, v16_set(1.44269504088896341f)));
    v16       r = v16_fnma(n, v16_set(0.693359375f), x);
    v16       p = v16_set(1.9875691500e-4f);

    r = v16_fnma(n, v16_set(-2.12194440e-4f), r);
    p = v16_fma(p, r, v16_set(1.3981999507e-3f));
    p = v16_fma(p, r, v16_set(8.3334519073e-3f));
    p = v16_fma(p, r, v16_set(4.1665795894e-2f));
    p = v16_fma(p, r, v16_set(1.6666665459e-1f));
    p = v16_fma(p, r, v16_set(5.0000001201e-1f));
    p = v16_add(v16_fma(p, v16_mul(r, r), r), v16_set(1.0f));
    p = v16_mul(p, v16_of_bits(v16i_shl(v16i_add(v16_to_int(n), v16i_set(127)), 23)));
    return v16_choose(v16_lt(x, v16_set(-87.33654f)), v16_zero(), p);
}

/* Scores become probabilities: [n_q <= 16, KVI_PAGED_TILE], of which n[i] count for query row i;
 * factor[i] is that of what was summed before. All rows pass each stage together, so that none
 * waits for the one value that a stage makes of a row. */
static void weigh(kvi_paged_state *state, float *scores, const size_t *n, size_t n_q, float scale,
                  float *factor)
{
    const v16 none = v16_of_bits(v16i_set((int32_t)0xff800000));
    float     max[16] = {0};
    float     step[16] = {0};
    float     sum[16];

    for (size_t q = 0; q < n_q; q++) {
        float *s = scores + q * KVI_PAGED_TILE;
        v16    top = v16_set(state[q].max);

        for (size_t i = 0; i < 4; i++) {
            const size_t here = n[q] > 16 * i ? n[q] - 16 * i : 0;
            v16          x = v16_mul(v16_load(s + 16 * i), v16_set(scale));

            if (here < 16) { /* no score: -infinity */
                float t[16];

                v16_store(t, none);
                v16_store_n(t, x, here);
                x = v16_load(t);
            }
            v16_store(s + 16 * i, x);
            top = v16_more(x, top); /* NaN does not move it, but arrives through e^s */
        }
        max[q] = paged_largest(top);
        step[q] = state[q].max - max[q];
    }
    v16_store(step, exp_down(v16_load(step)));
    for (size_t q = 0; q < n_q; q++) {
        float *s = scores + q * KVI_PAGED_TILE;
        v16    p[4];

        PAGED_UNROLL
        for (int i = 0; i < 4; i++) {
            p[i] = exp_down(v16_sub(v16_load(s + 16 * i), v16_set(max[q])));
            v16_store(s + 16 * i, p[i]);
        }
        sum[q] = v16_fold(v16_add(v16_add(v16_add(p[0], p[1]), p[2]), p[3]));
    }
    for (size_t q = 0; q < n_q; q++) {
        float t[16];

        v16_store(t, v16_fma(v16_set(state[q].den), v16_set(step[q]), v16_set(sum[q])));
        state[q].den = t[0];
        state[q].max = max[q];
        factor[q] = step[q];
    }
}

/* ---------------------------------------------------------------- p * value */

/* out[i] = out[i] * f[i], then + p[i][k] * value k, k ascending, for nq query rows and nc times
 * sixteen channels. */
PAGED_INLINE void add_block(float *out, const float *f, const float *p, const float *values,
                            size_t width, size_t n, const int nq, const int nc)
{
    v16 a[16];

    PAGED_UNROLL
    for (int i = 0; i < nq; i++)
        PAGED_UNROLL
        for (int j = 0; j < nc; j++)
            a[i * nc + j] = v16_mul(v16_load(out + (size_t)i * width + 16 * j), v16_set(f[i]));
    for (size_t k = 0; k < n; k++) {
        v16 v[4];

        PAGED_UNROLL
        for (int j = 0; j < nc; j++)
            v[j] = v16_load(values + k * width + 16 * j);
        PAGED_UNROLL
        for (int i = 0; i < nq; i++) {
            const v16 w = v16_set(p[(size_t)i * KVI_PAGED_TILE + k]);

            PAGED_UNROLL
            for (int j = 0; j < nc; j++)
                a[i * nc + j] = v16_fma(w, v[j], a[i * nc + j]);
        }
    }
    PAGED_UNROLL
    for (int i = 0; i < nq; i++)
        PAGED_UNROLL
        for (int j = 0; j < nc; j++)
            v16_store(out + (size_t)i * width + 16 * j, a[i * nc + j]);
}

PAGED_INLINE void add_rows(float *out, const float *f, const float *p, const float *values,
                           size_t width, size_t n, const int nq)
{
    size_t c = 0;

    for (; c + BLOCK_CHANNELS <= width; c += BLOCK_CHANNELS)
        add_block(out + c, f, p, values + c, width, n, nq, BLOCK_CHANNELS / 16);
    for (; c < width; c += 32)
        add_block(out + c, f, p, values + c, width, n, nq, 2);
}

/* n[i] <= STEP values count for query row i. Blocks of query rows share those that all of them
 * see. */
static void add_step(float *out, const float *f, const float *p, const size_t *n, size_t n_q,
                     const float *values, size_t width)
{
    size_t i = 0;

    while (i < n_q) {
        const size_t nq = n_q - i >= BLOCK_Q ? BLOCK_Q : n_q - i >= 2 ? 2 : 1;
        const float *weights = p + i * KVI_PAGED_TILE;
        float       *to = out + i * width;
        size_t       common = n[i];

        for (size_t j = 1; j < nq; j++)
            common = kvi_min_size(common, n[i + j]);
        switch (nq) {
        case 4: add_rows(to, f + i, weights, values, width, common, 4); break;
        case 2: add_rows(to, f + i, weights, values, width, common, 2); break;
        default: add_rows(to, f + i, weights, values, width, common, 1);
        }
        for (size_t j = 0; j < nq; j++) {
            static const float one = 1.0f;

            if (n[i + j] > common)
                add_rows(to + j * width, &one, weights + j * KVI_PAGED_TILE + common,
                         values + common * width, width, n[i + j] - common, 1);
        }
        i += nq;
    }
}

/* ---------------------------------------------------------------- decoded in registers */

#if PAGED_FUSED
/* Scores of four query rows with keys k .. k + 3. Prefetches go between the sums one row at a time:
 * lines on their way occupy the few buffers that loads need too. */
PAGED_INLINE void score4(const uint32_t format, const tile_rows *t, const float *q, size_t k,
                         float *scores)
{
    size_t ahead = k;
    v16    sum = v16_zero();
    float  s[16];

    for (size_t begin = 0; begin < t->width; begin += V16_BLOCK) {
        const size_t end = kvi_min_size(begin + V16_BLOCK, t->width);
        v16          a[16];

        PAGED_UNROLL
        for (int i = 0; i < 16; i++)
            a[i] = v16_zero();
        for (size_t c = begin; c < end; c += 32) {
            v16 x[4][2];

            if (ahead < k + 4 && ahead < t->n_next)
                prefetch_row(t->next[ahead++], t->row_bytes);
            PAGED_UNROLL
            for (size_t j = 0; j < 4; j++)
                load32(format, t->rows[k + j], t->width, c, x[j]);
            PAGED_UNROLL
            for (size_t half = 0; half < 2; half++) {
                PAGED_UNROLL
                for (size_t i = 0; i < 4; i++) {
                    const v16 y = v16_load(q + i * t->width + c + 16 * half);

                    PAGED_UNROLL
                    for (size_t j = 0; j < 4; j++)
                        a[4 * i + j] = v16_fma(y, x[j][half], a[4 * i + j]);
                }
            }
        }
        sum = begin == 0 ? v16_fold16(a) : v16_add(sum, v16_fold16(a));
    }
    v16_store(s, sum);
    PAGED_UNROLL
    for (size_t i = 0; i < 4; i++)
        memcpy(scores + i * KVI_PAGED_TILE + k, s + 4 * i, 4 * sizeof *s);
}

/* out = out * f, then + p * value: four query rows, all of the tile, channels c .. c + 16 nc - 1 */
PAGED_INLINE void add4(const uint32_t format, const tile_rows *t, float *out, const float *f,
                       const float *p, size_t c, const size_t nc)
{
    const size_t passes = kvi_div_up(t->width, 64);
    size_t       ahead = c / 64 * KVI_PAGED_TILE / passes; /* each pass fetches its share */
    size_t       wait = 1;
    v16          a[16];

    PAGED_UNROLL
    for (size_t i = 0; i < 4; i++)
        PAGED_UNROLL
        for (size_t j = 0; j < nc; j++)
            a[i * nc + j] = v16_mul(v16_load(out + i * t->width + c + 16 * j), v16_set(f[i]));
    for (size_t k = 0; k < t->n; k++) {
        v16 v[4];

        if (--wait == 0) {
            if (ahead < t->n_next)
                prefetch_row(t->next[ahead++], t->row_bytes);
            wait = passes;
        }
        PAGED_UNROLL
        for (size_t j = 0; j < nc; j += 2)
            load32(format, t->rows[k], t->width, c + 16 * j, v + j);
        PAGED_UNROLL
        for (size_t i = 0; i < 4; i++) {
            const v16 w = v16_set(p[i * KVI_PAGED_TILE + k]);

            PAGED_UNROLL
            for (size_t j = 0; j < nc; j++)
                a[i * nc + j] = v16_fma(w, v[j], a[i * nc + j]);
        }
    }
    PAGED_UNROLL
    for (size_t i = 0; i < 4; i++)
        PAGED_UNROLL
        for (size_t j = 0; j < nc; j++)
            v16_store(out + i * t->width + c + 16 * j, a[i * nc + j]);
}

static void score_fused(const tile_rows *t, const float *q, float *scores)
{
#define SCORE(f)                                                                                   \
    for (size_t k = 0; k < t->n; k += 4)                                                           \
        score4(f, t, q, k, scores)
    FORMATS(t->format, SCORE)
#undef SCORE
}

static void add_fused(const tile_rows *t, float *out, const float *f, const float *p)
{
    size_t c = 0;

#define ADD(f_)                                                                                    \
    for (; c + 64 <= t->width; c += 64)                                                            \
        add4(f_, t, out, f, p, c, 4);                                                              \
    if (c < t->width)                                                                              \
        add4(f_, t, out, f, p, c, 2)
    FORMATS(t->format, ADD)
#undef ADD
}
#endif

/* ---------------------------------------------------------------- tiles */

static void score_tile(const kvi_paged_chunk *c, const tile_rows *t, int fused, float *buffer,
                       float *scores)
{
#if PAGED_FUSED
    if (fused) {
        score_fused(t, c->q, scores);
        return;
    }
#endif
    (void)fused;
    for (size_t at = 0; at < t->n; at += STEP) {
        decode_rows(t, at, STEP, buffer);
        score_step(c->q, c->n_q, buffer, t->width, scores + at);
    }
}

static void add_tile(const kvi_paged_chunk *c, const tile_rows *t, int fused, const size_t *seen,
                     float *f, float *buffer, const float *scores)
{
#if PAGED_FUSED
    if (fused) {
        add_fused(t, c->out, f, scores);
        return;
    }
#endif
    (void)fused;
    for (size_t at = 0; at < t->n; at += STEP) {
        size_t here[KVI_PAGED_MAX_Q];

        for (size_t q = 0; q < c->n_q; q++)
            here[q] = seen[q] > at ? kvi_min_size(seen[q] - at, STEP) : 0;
        decode_rows(t, at, kvi_min_size(t->n - at, STEP), buffer);
        add_step(c->out, f, scores + at, here, c->n_q, buffer, t->width);
        for (size_t q = 0; q < c->n_q; q++)
            f[q] = 1.0f;
    }
}

/* Tile `keys` at `begin` of the chunk; keys->next are those of the next tile. While keys are used
 * the values are on their way, and then the next keys. */
static void run_tile(const kvi_paged_chunk *c, size_t begin, tile_rows *keys)
{
    const size_t   n = keys->n;
    const uint8_t *value_rows[KVI_PAGED_TILE];
    tile_rows      values = *keys;
    float         *buffer = c->scratch;
    float         *scores = c->scratch + KVI_PAGED_TILE * keys->width;
    float          f[KVI_PAGED_MAX_Q];
    size_t         seen[KVI_PAGED_MAX_Q];
    int            fused = c->n_q == FUSED_Q && has_format(keys->format);

    for (size_t q = 0; q < c->n_q; q++) {
        seen[q] = c->n_seen[q] > begin ? kvi_min_size(c->n_seen[q] - begin, n) : 0;
        fused &= seen[q] == n;
    }
    for (size_t i = 0; i < n; i++)
        value_rows[i] = keys->rows[i] + c->p->page_rows * c->row_bytes;
    for (size_t i = n; i % STEP != 0; i++) /* keys without a position: any that can be read */
        keys->rows[i] = keys->rows[n - 1];
    values.rows = value_rows;
    keys->next = value_rows;
    keys->n_next = n;
    score_tile(c, keys, fused, buffer, scores);
    for (size_t q = 0; q < c->n_q; q += 16)
        weigh(c->state + q, scores + q * KVI_PAGED_TILE, seen + q, kvi_min_size(c->n_q - q, 16),
              c->p->scale, f + q);
    add_tile(c, &values, fused, seen, f, buffer, scores);
}

static void chunk_v16(const kvi_paged_chunk *c)
{
    const uint8_t *rows[2][KVI_PAGED_TILE];
    tile_rows      t = {.row_bytes = c->row_bytes, .width = c->p->width, .format = c->p->format};
    size_t         end = 0;
    int            now = 0;

    for (size_t q = 0; q < c->n_q; q++) {
        c->state[q] = (kvi_paged_state){-1e30f, 0.0f};
        end = kvi_max_size(end, c->n_seen[q]);
    }
    memset(c->out, 0, c->n_q * c->p->width * sizeof(float));
    kvi_paged_find(c, c->first, kvi_min_size(end, KVI_PAGED_TILE), rows[0]);
    for (size_t begin = 0; begin < end; begin += KVI_PAGED_TILE, now ^= 1) {
        const uint64_t next = c->first + begin + KVI_PAGED_TILE;

        t.rows = rows[now];
        t.next = rows[now ^ 1];
        t.n = kvi_min_size(end - begin, KVI_PAGED_TILE);
        t.n_next = next < c->ahead ? kvi_min_size(c->ahead - next, KVI_PAGED_TILE) : 0;
        kvi_paged_find(c, next, t.n_next, t.next);
        run_tile(c, begin, &t);
    }
}

/* ---------------------------------------------------------------- states */

static void merge_v16(kvi_paged_state *state, float *out, const kvi_paged_state *chunk,
                      const float *chunk_out, size_t width)
{
    const float max = chunk->max > state->max ? chunk->max : state->max;
    const v16   f = v16_exp(v16_set(state->max - max));
    const v16   w = v16_exp(v16_set(chunk->max - max));
    float       t[16];

    v16_store(t, v16_fma(w, v16_set(chunk->den), v16_mul(v16_set(state->den), f)));
    state->max = max;
    state->den = t[0];
    for (size_t c = 0; c < width; c += 16)
        v16_store(out + c, v16_fma(w, v16_load(chunk_out + c), v16_mul(v16_load(out + c), f)));
}

static void finish_v16(const kvi_paged_state *state, const float *sink, float *out, size_t width)
{
    const float den = sink ? state->den + exp_of(*sink - state->max) : state->den;

    for (size_t c = 0; c < width; c += 16)
        v16_store(out + c, v16_div(v16_load(out + c), v16_set(den)));
}

static void paged_v16_init(kvi_paged_kernels *k)
{
    k->chunk = chunk_v16;
    k->merge = merge_v16;
    k->finish = finish_v16;
}

#endif
