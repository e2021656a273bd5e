/* The residual stream of several copies (mHC), docs/formats.md "Network", and the gate of its
 * "Engram": portable kernels. */
#include "cpu/ref_dense_int.h"

#include "base/bytes.h"
#include "base/fmath.h"
#include "format/dtype.h"

/* ------------------------------------------------------------------ coefficients */

/* Sinkhorn-Knopp: softmax over k for each j, + eps, columns; then n_iters - 1 times rows, columns.
 * c is C[j][k]. */
static void divide_columns(float *c, size_t m, float eps)
{
    for (size_t k = 0; k < m; k++) {
        float sum = 0.0f;

        for (size_t j = 0; j < m; j++)
            sum += c[j * m + k];
        sum += eps;
        for (size_t j = 0; j < m; j++)
            c[j * m + k] = c[j * m + k] / sum;
    }
}

static void divide_rows(float *c, size_t m, float eps)
{
    for (size_t j = 0; j < m; j++) {
        float sum = 0.0f;

        for (size_t k = 0; k < m; k++)
            sum += c[j * m + k];
        sum += eps;
        for (size_t k = 0; k < m; k++)
            c[j * m + k] = c[j * m + k] / sum;
    }
}

static void softmax_rows(float *c, size_t m)
{
    for (size_t j = 0; j < m; j++) {
        float *row = c + j * m;
        float  most = row[0];

        for (size_t k = 1; k < m; k++)
            if (row[k] > most)
                most = row[k];
        for (size_t k = 0; k < m; k++)
            row[k] = kvi_expf(row[k] - most);
    }
    divide_rows(c, m, 0.0f);
}

static void mix_row(const kvi_mix_params *p, size_t row)
{
    const size_t m = p->copies;
    const size_t n = m * p->width;
    const float *h = p->h + row * n;
    const float *proj = p->proj + row * (2 + m) * m;
    const float *base = p->base;
    float       *c = p->comb + row * m * m;
    const float  r = kvi_ref_rms_inverse(h, n, p->norm_eps);

    for (size_t i = 0; i < m; i++) {
        p->pre[row * m + i] = kvi_sigmoidf(proj[i] * r * p->scale[0] + base[i]) + p->eps;
        p->post[row * m + i] = 2.0f * kvi_sigmoidf(proj[m + i] * r * p->scale[1] + base[m + i]);
    }
    for (size_t i = 0; i < m * m; i++)
        c[i] = proj[2 * m + i] * r * p->scale[2] + base[2 * m + i];
    softmax_rows(c, m);
    for (size_t i = 0; i < m * m; i++)
        c[i] += p->eps;
    divide_columns(c, m, p->eps);
    for (uint32_t it = 1; it < p->n_iters; it++) {
        divide_rows(c, m, p->eps);
        divide_columns(c, m, p->eps);
    }
}

void kvi_ref_mix(const kvi_mix_params *p, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        mix_row(p, i);
}

/* ------------------------------------------------------------------ collapse, expand */

void kvi_ref_collapse(const kvi_collapse_params *p, size_t begin, size_t end)
{
    const size_t m = p->copies;
    const size_t width = p->width;

    for (size_t row = begin; row < end; row++) {
        const float *h = p->h + row * m * width;
        const float *pre = p->pre + row * m;
        float       *y = p->y + row * width;
        size_t       i = 0;

        for (; i + 4 <= width; i += 4) {
            kvi_vec4 sum = pre[0] * kvi_vec4_load(h + i);

            for (size_t c = 1; c < m; c++)
                sum = sum + pre[c] * kvi_vec4_load(h + c * width + i);
            kvi_vec4_store(y + i, sum);
        }
        for (; i < width; i++) {
            float sum = pre[0] * h[i];

            for (size_t c = 1; c < m; c++)
                sum = sum + pre[c] * h[c * width + i];
            y[i] = sum;
        }
        if (p->flags & KVI_OP_ROUND_BF16)
            for (i = 0; i < width; i++)
                y[i] = kvi_round_bf16(y[i]);
    }
}

/* Four channels, or one in lane 0. The sum over source copies is made first, then added to post x
 * y. */
static inline void expand_four(const float *post, const float *comb, size_t m, kvi_vec4 y,
                               const kvi_vec4 *old, kvi_vec4 *new)
{
    for (size_t k = 0; k < m; k++) {
        kvi_vec4 sum = comb[k] * old[0];

        for (size_t j = 1; j < m; j++)
            sum = sum + comb[j * m + k] * old[j];
        new[k] = post[k] * y + sum;
    }
}

/* m == p->copies; inline, so that the usual m can be a constant. */
static inline void expand_row(const kvi_expand_params *p, size_t row, size_t m)
{
    const size_t width = p->width;
    const float *post = p->post + row * m;
    const float *comb = p->comb + row * m * m;
    const float *y = p->y + row * width;
    float       *h = p->h + row * m * width;
    kvi_vec4     old[KVI_MAX_COPIES];
    kvi_vec4 new[KVI_MAX_COPIES];
    size_t i = 0;

    for (; i + 4 <= width; i += 4) {
        for (size_t j = 0; j < m; j++)
            old[j] = kvi_vec4_load(h + j * width + i);
        expand_four(post, comb, m, kvi_vec4_load(y + i), old, new);
        for (size_t k = 0; k < m; k++)
            kvi_vec4_store(h + k * width + i, new[k]);
    }
    for (; i < width; i++) {
        const kvi_vec4 one = {y[i], 0.0f, 0.0f, 0.0f};

        for (size_t j = 0; j < m; j++)
            old[j] = (kvi_vec4){h[j * width + i], 0.0f, 0.0f, 0.0f};
        expand_four(post, comb, m, one, old, new);
        for (size_t k = 0; k < m; k++)
            h[k * width + i] = new[k][0];
    }
    if (p->flags & KVI_OP_ROUND_BF16)
        for (i = 0; i < m * width; i++)
            h[i] = kvi_round_bf16(h[i]);
}

void kvi_ref_expand(const kvi_expand_params *p, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        if (p->copies == 4)
            expand_row(p, i, 4);
        else
            expand_row(p, i, p->copies);
    }
}

/* ------------------------------------------------------------------ Engram gate */

/* sum of (a x b) x c in the order of base/vec.h */
static float triple_dot(const float *a, const float *b, const float *c, size_t n)
{
    kvi_vec4 s[4] = {{0}, {0}, {0}, {0}};
    float    tail[3][KVI_LANES] = {{0}};
    size_t   i = 0;

    for (; i + KVI_LANES <= n; i += KVI_LANES)
        for (size_t q = 0; q < 4; q++)
            s[q] = s[q] + kvi_vec4_load(a + i + 4 * q) * kvi_vec4_load(b + i + 4 * q) *
                              kvi_vec4_load(c + i + 4 * q);
    if (i < n) {
        memcpy(tail[0], a + i, (n - i) * sizeof *a);
        memcpy(tail[1], b + i, (n - i) * sizeof *b);
        memcpy(tail[2], c + i, (n - i) * sizeof *c);
        for (size_t q = 0; q < 4; q++)
            s[q] = s[q] + kvi_vec4_load(tail[0] + 4 * q) * kvi_vec4_load(tail[1] + 4 * q) *
                              kvi_vec4_load(tail[2] + 4 * q);
    }
    return kvi_vec4_fold(s[0], s[1], s[2], s[3]);
}

/* The gate of one copy: the square root keeps its sign; |dot| has a floor, so that 0 gives
 * sigmoid(0.001). */
static float gate_of(const kvi_engram_gate_params *p, const float *h, const float *qk,
                     const float *key)
{
    const size_t width = p->width;
    const float r = kvi_ref_rms_inverse(h, width, p->eps) * kvi_ref_rms_inverse(key, width, p->eps);
    const float dot = triple_dot(h, qk, key, width) * r * (1.0f / kvi_sqrtf((float)width));
    const bool  negative = kvi_f32_bits(dot) >> 31; /* copysign: also of -0 */
    const float size = negative ? -dot : dot;
    const float root = kvi_sqrtf(size < 1e-6f ? 1e-6f : size);

    return kvi_sigmoidf(negative ? -root : root);
}

static void engram_row(const kvi_engram_gate_params *p, size_t row)
{
    const size_t width = p->width;
    const size_t m = p->copies;
    const float *kv = p->kv + row * (m + 1) * width;
    const float *value = kv + m * width;

    for (size_t c = 0; c < m; c++) {
        float      *h = p->h + (row * m + c) * width;
        const float gate = gate_of(p, h, p->qk + c * width, kv + c * width);
        size_t      i = 0;

        for (; i + 4 <= width; i += 4)
            kvi_vec4_store(h + i, kvi_vec4_load(h + i) + gate * kvi_vec4_load(value + i));
        for (; i < width; i++)
            h[i] = h[i] + gate * value[i];
        if (p->flags & KVI_OP_ROUND_BF16)
            for (i = 0; i < width; i++)
                h[i] = kvi_round_bf16(h[i]);
    }
}

void kvi_ref_engram_gate(const kvi_engram_gate_params *p, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        engram_row(p, i);
}
