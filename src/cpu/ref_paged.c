/* Portable kernels of paged attention: numerics 1. The order is that of paged_kernels.h.
 *
 * Keys, and then values, of a tile are decoded once for all query rows of the chunk. */
#include "cpu/cpu_ops.h"

#include "base/fmath.h"
#include "base/prefetch.h"
#include "format/row.h"
#include "cpu/ref_dense_int.h"

#define E8M0_4(c) (c) << 23, ((c) + 1) << 23, ((c) + 2) << 23, ((c) + 3) << 23
#define E8M0_16(c) E8M0_4(c), E8M0_4((c) + 4), E8M0_4((c) + 8), E8M0_4((c) + 12)
#define E8M0_64(c) E8M0_16(c), E8M0_16((c) + 16), E8M0_16((c) + 32), E8M0_16((c) + 48)

const uint32_t kvi_paged_e8m0[256] = {
    0x00400000u,     1u << 23,        2u << 23,        3u << 23,        E8M0_4(4u),
    E8M0_4(8u),      E8M0_4(12u),     E8M0_16(16u),    E8M0_16(32u),    E8M0_16(48u),
    E8M0_64(64u),    E8M0_64(128u),   E8M0_16(192u),   E8M0_16(208u),   E8M0_16(224u),
    E8M0_4(240u),    E8M0_4(244u),    E8M0_4(248u),    252u << 23,      253u << 23,
    254u << 23,      0x7fc00000u};

void kvi_paged_find(const kvi_paged_chunk *c, uint64_t pos, size_t n, const uint8_t **rows)
{
    const kvi_paged_attend_params *p = c->p;
    uint8_t *const                *page = p->pages + pos / p->page_rows;
    size_t                         row = (size_t)(pos % p->page_rows);
    const size_t off = p->page_off + (size_t)c->kv_head * 2 * p->page_rows * c->row_bytes;

    while (n > 0) {
        const size_t   here = kvi_min_size(n, p->page_rows - row);
        const uint8_t *at = *page++ + off + row * c->row_bytes;

        for (size_t i = 0; i < here; i++)
            *rows++ = at + i * c->row_bytes;
        n -= here;
        row = 0;
    }
}

/* Scores become probabilities. Returns the factor of what was summed before. */
static float weigh(kvi_paged_state *state, float *s, size_t n)
{
    float max = state->max;
    float sum = 0.0f;
    float f;

    for (size_t i = 0; i < n; i++)
        if (s[i] > max) /* NaN does not move it, but arrives through e^s */
            max = s[i];
    f = kvi_expf(state->max - max);
    for (size_t i = 0; i < n; i++) {
        s[i] = kvi_expf(s[i] - max);
        sum = sum + s[i];
    }
    state->den = state->den * f + sum;
    state->max = max;
    return f;
}

/* out = out * f + sum of p * value, positions ascending; width: a multiple of 16. Four short
 * vectors stay in registers on every machine. */
static void add_values(float *out, size_t width, float f, const float *p, const float *values,
                       size_t n)
{
    for (size_t c = 0; c < width; c += 16) {
        kvi_vec4 a0 = kvi_vec4_load(out + c) * f;
        kvi_vec4 a1 = kvi_vec4_load(out + c + 4) * f;
        kvi_vec4 a2 = kvi_vec4_load(out + c + 8) * f;
        kvi_vec4 a3 = kvi_vec4_load(out + c + 12) * f;

        for (size_t i = 0; i < n; i++) {
            const float *v = values + i * width + c;

            a0 = a0 + kvi_vec4_load(v) * p[i];
            a1 = a1 + kvi_vec4_load(v + 4) * p[i];
            a2 = a2 + kvi_vec4_load(v + 8) * p[i];
            a3 = a3 + kvi_vec4_load(v + 12) * p[i];
        }
        kvi_vec4_store(out + c, a0);
        kvi_vec4_store(out + c + 4, a1);
        kvi_vec4_store(out + c + 8, a2);
        kvi_vec4_store(out + c + 12, a3);
    }
}

/* Query rows against the positions begin .. end - 1 of the chunk, one tile. */
static void add_tile(const kvi_paged_chunk *c, size_t begin, size_t end)
{
    const kvi_paged_attend_params *p = c->p;
    float                         *scores = c->scratch + KVI_PAGED_TILE * (size_t)p->width;
    const uint8_t                 *rows[KVI_PAGED_TILE];
    float                          f[KVI_PAGED_MAX_Q];
    size_t                         n[KVI_PAGED_MAX_Q];

    kvi_paged_find(c, c->first + begin, end - begin, rows);
    for (size_t i = 0; i < end - begin; i++)
        kvi_row_decode(p->format, rows[i], p->width, c->scratch + i * p->width);
    for (size_t q = 0; q < c->n_q; q++) {
        float *s = scores + q * KVI_PAGED_TILE;

        n[q] = c->n_seen[q] > begin ? kvi_min_size(c->n_seen[q], end) - begin : 0;
        for (size_t i = 0; i < n[q]; i++)
            s[i] = kvi_ref_dot(c->q + q * p->width, c->scratch + i * p->width, p->width) * p->scale;
        f[q] = n[q] > 0 ? weigh(&c->state[q], s, n[q]) : 1.0f;
    }
    for (size_t i = 0; i < end - begin; i++)
        kvi_row_decode(p->format, rows[i] + p->page_rows * c->row_bytes, p->width,
                       c->scratch + i * p->width);
    for (size_t q = 0; q < c->n_q; q++)
        if (n[q] > 0)
            add_values(c->out + q * p->width, p->width, f[q], scores + q * KVI_PAGED_TILE,
                       c->scratch, n[q]);
}

static void chunk_ref(const kvi_paged_chunk *c)
{
    size_t end = 0;

    for (size_t q = 0; q < c->n_q; q++) {
        c->state[q] = (kvi_paged_state){-1e30f, 0.0f};
        end = kvi_max_size(end, c->n_seen[q]);
    }
    memset(c->out, 0, c->n_q * c->p->width * sizeof(float));
    for (size_t begin = 0; begin < end; begin += KVI_PAGED_TILE)
        add_tile(c, begin, kvi_min_size(begin + KVI_PAGED_TILE, end));
}

static void merge_ref(kvi_paged_state *state, float *out, const kvi_paged_state *chunk,
                      const float *chunk_out, size_t width)
{
    const float max = chunk->max > state->max ? chunk->max : state->max;
    const float f = kvi_expf(state->max - max);
    const float w = kvi_expf(chunk->max - max);

    state->max = max;
    state->den = state->den * f + w * chunk->den;
    for (size_t c = 0; c < width; c++)
        out[c] = out[c] * f + w * chunk_out[c];
}

static void finish_ref(const kvi_paged_state *state, const float *sink, float *out, size_t width)
{
    const float den = sink ? state->den + kvi_expf(*sink - state->max) : state->den;

    for (size_t c = 0; c < width; c++)
        out[c] = out[c] / den;
}

void kvi_paged_ref(kvi_paged_kernels *k)
{
    k->chunk = chunk_ref;
    k->merge = merge_ref;
    k->finish = finish_ref;
}
