/* Attention over the window and the selected entries of a row: the portable kernels.
 *
 * The algorithm is that of the official kernel, slot for slot (docs/formats.md "Network"):
 *   - slots in order: n_window window slots, the oldest position first, then the k selected
 *     entries; an empty slot keeps its place, so the tiles of 64 slots have fixed borders;
 *   - per tile: s = (q . key) * scale; the running maximum m (from -1e30) moves to m';
 *     f = e^(m - m'); p = e^(s - m'); denominator = denominator * f + (sum of p, slots ascending
 *     from 0); every channel of the output is multiplied by f and then gets p * key, slots
 *     ascending, each product rounded; in the reference mode p is rounded to bf16 for that
 *     product and for nothing else;
 *   - at the end the denominator gets e^(sink - m) and divides.
 * Empty slots would add p = 0; they are skipped. Without any key the sink term is infinite and the
 * output 0. NaN in a query or in a key makes the whole head NaN.
 *
 * The mass of a selected slot is e^(s - m) / denominator with the m and the denominator of the end,
 * in every mode, summed over the heads in ascending order. It needs the scores of all heads of a
 * row until then, and changes no bit of the output.
 *
 * None of this depends on how rows, heads and tiles are grouped. */
#include "cpu/cpu_ops.h"

#include "base/fmath.h"
#include "format/dtype.h"
#include "cpu/ref_dense_int.h"

/* out = out * f + sum over keys of weight * key, keys ascending. width: a multiple of 16. Channels
 * are independent, so their grouping is free; four short vectors stay in registers on every
 * machine, where gcc keeps one long vector in memory. */
static void add_keys(float *out, size_t width, float f, const float *weights,
                     const float *const *keys, size_t n_keys)
{
    for (size_t c = 0; c < width; c += 16) {
        kvi_vec4 a0 = kvi_vec4_load(out + c) * f;
        kvi_vec4 a1 = kvi_vec4_load(out + c + 4) * f;
        kvi_vec4 a2 = kvi_vec4_load(out + c + 8) * f;
        kvi_vec4 a3 = kvi_vec4_load(out + c + 12) * f;

        for (size_t i = 0; i < n_keys; i++) {
            const float *key = keys[i] + c;

            a0 = a0 + kvi_vec4_load(key) * weights[i];
            a1 = a1 + kvi_vec4_load(key + 4) * weights[i];
            a2 = a2 + kvi_vec4_load(key + 8) * weights[i];
            a3 = a3 + kvi_vec4_load(key + 12) * weights[i];
        }
        kvi_vec4_store(out + c, a0);
        kvi_vec4_store(out + c + 4, a1);
        kvi_vec4_store(out + c + 8, a2);
        kvi_vec4_store(out + c + 12, a3);
    }
}

/* Keeps the scores s of the selected slots among keys begin.. of a pass. */
static void keep_scores(const kvi_attend_heads *h, size_t head, const kvi_attend_keys *keys,
                        size_t begin, size_t n_keys, const float *s)
{
    float *scores = h->scores + head * h->k;

    for (size_t i = 0; i < n_keys; i++)
        if (keys->slots[begin + i] >= h->n_window)
            scores[keys->slots[begin + i] - h->n_window] = s[i];
}

/* One head, one tile. */
static void add_tile(const kvi_attend_heads *h, size_t head, const kvi_attend_keys *keys,
                     size_t begin, size_t n_keys)
{
    const float *const *rows = keys->rows + begin;
    const float        *q = h->q + head * h->width;
    float               s[KVI_ATTEND_TILE];
    float               max = h->max[head];
    float               sum = 0.0f;
    float               f;

    for (size_t i = 0; i < n_keys; i++) {
        s[i] = kvi_ref_dot(q, rows[i], h->width) * h->scale;
        if (s[i] > max) /* NaN does not move it, but arrives through e^s */
            max = s[i];
    }
    if (h->scores != NULL)
        keep_scores(h, head, keys, begin, n_keys, s);
    f = kvi_expf(h->max[head] - max);
    for (size_t i = 0; i < n_keys; i++) {
        s[i] = kvi_expf(s[i] - max);
        sum = sum + s[i];
        if ((h->flags & KVI_OP_ROUND_BF16) != 0)
            s[i] = kvi_round_bf16(s[i]);
    }
    h->sum[head] = h->sum[head] * f + sum;
    h->max[head] = max;
    add_keys(h->out + head * h->width, h->width, f, s, rows, n_keys);
}

/* Tile by tile for all heads: the keys of a tile stay in the cache. */
static void add_tiles(const kvi_attend_heads *h, const kvi_attend_keys *keys)
{
    size_t begin = 0;

    if (h->first)
        memset(h->out, 0, h->n_heads * h->width * sizeof *h->out);
    for (size_t t = 0; t < keys->n_tiles; t++) {
        for (size_t head = 0; head < h->n_heads; head++)
            add_tile(h, head, keys, begin, keys->ends[t] - begin);
        begin = keys->ends[t];
    }
}

static void finish(const kvi_attend_heads *h, const float *sink)
{
    for (size_t head = 0; head < h->n_heads; head++) {
        const float den = h->sum[head] + kvi_expf(sink[head] - h->max[head]);
        float      *out = h->out + head * h->width;

        for (size_t c = 0; c < h->width; c++) {
            out[c] = out[c] / den;
            if ((h->flags & KVI_OP_ROUND_BF16) != 0)
                out[c] = kvi_round_bf16(out[c]);
        }
        for (size_t j = 0; h->scores != NULL && j < h->k; j++) {
            float *s = h->scores + head * h->k + j;

            *s = kvi_expf(*s - h->max[head]) / den;
        }
    }
}

void kvi_attend_portable(kvi_attend_kernels *k)
{
    k->flags = 0;
    k->min_work = KVI_REF_MIN_WORK;
    k->add_keys = add_tiles;
    k->finish = finish;
}

void kvi_attend_add_heads(const float *probabilities, size_t n_heads, size_t k, float *mass)
{
    memset(mass, 0, k * sizeof *mass);
    for (size_t head = 0; head < n_heads; head++)
        for (size_t j = 0; j < k; j++)
            mass[j] = mass[j] + probabilities[head * k + j];
}
