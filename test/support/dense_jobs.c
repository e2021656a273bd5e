#include "support/dense_jobs.h"

#include "support/fenced.h"

const float mix_scale[3] = {0.8f, 0.6f, 1.2f};

void run_norm(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const size_t    mark = fence_mark();
    const norm_job *j = job;
    const size_t    w = j->width;
    const size_t    stride = w + 1; /* the last row has no gap behind it */
    float          *y = fenced(n * stride - 1);
    kvi_norm_params p = {.x = j->x + first * (w + 3), .y = y, .weight = j->weight, .x_stride = w + 3, .y_stride = stride,
                         .n_rows = n, .width = j->width, .eps = 1e-20f, .flags = j->flags};

    for (size_t i = 0; i < n && j->in_place; i++)
        memcpy(y + i * stride, p.x + i * p.x_stride, w * sizeof *y);
    if (j->in_place) {
        p.x = y;
        p.x_stride = stride;
    }
    assert_int_equal(kvi_cpu_norm(dev, &p, NULL), KVCSA_OK);
    for (size_t i = 0; i < n; i++) {
        memcpy(out + (first + i) * w, y + i * stride, w * sizeof *y);
        assert_true(i + 1 == n || untouched(&y[i * stride + w]));
    }
    free_fenced(mark);
}

void run_rope(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const size_t          mark = fence_mark();
    const rope_job       *j = job;
    const size_t          row = (size_t)j->n_heads * j->width;
    float                *x = fenced(n * (row + 5) - 5);
    const kvi_rope_params p = {.x = x, .freqs = j->freqs, .pos = j->pos + first, .row_stride = row + 5, .n_rows = n,
                               .n_heads = j->n_heads, .width = j->width, .n_rotated = j->n_rotated, .inverse = j->inverse,
                               .flags = j->flags};

    for (size_t i = 0; i < n; i++)
        memcpy(x + i * (row + 5), j->x + (first + i) * row, row * sizeof *x);
    assert_int_equal(kvi_cpu_rope(dev, &p, NULL), KVCSA_OK);
    for (size_t i = 0; i < n; i++) {
        memcpy(out + (first + i) * row, x + i * (row + 5), row * sizeof *x);
        for (size_t c = 0; c < 5 && i + 1 < n; c++)
            assert_true(untouched(&x[i * (row + 5) + row + c]));
    }
    free_fenced(mark);
}

void run_mix(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const size_t   mark = fence_mark();
    const mix_job *j = job;
    const size_t   m = j->copies;
    const size_t   row = (2 + m) * m;
    float         *pre = fenced(n * m);
    float         *post = fenced(n * m);
    float         *comb = fenced(n * m * m);
    kvi_mix_params p = {.h = j->h + first * m * j->width, .proj = j->proj + first * row, .base = j->base, .pre = pre, .post = post,
                        .comb = comb, .n_rows = n, .copies = j->copies, .width = j->width, .n_iters = j->n_iters,
                        .norm_eps = 1e-20f, .eps = 1e-6f};

    memcpy(p.scale, mix_scale, sizeof p.scale);
    assert_int_equal(kvi_cpu_mix(dev, &p, NULL), KVCSA_OK);
    for (size_t i = 0; i < n; i++) {
        memcpy(out + (first + i) * row, pre + i * m, m * sizeof *out);
        memcpy(out + (first + i) * row + m, post + i * m, m * sizeof *out);
        memcpy(out + (first + i) * row + 2 * m, comb + i * m * m, m * m * sizeof *out);
    }
    free_fenced(mark);
}

void run_collapse(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const stream_job         *j = job;
    const kvi_collapse_params p = {.h = j->h + first * j->copies * j->width, .pre = j->pre + first * j->copies,
                                   .y = out + first * j->width, .n_rows = n, .copies = j->copies, .width = j->width,
                                   .flags = j->flags};

    assert_int_equal(kvi_cpu_collapse(dev, &p, NULL), KVCSA_OK);
}

void run_expand(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const stream_job       *j = job;
    const size_t            row = (size_t)j->copies * j->width;
    const kvi_expand_params p = {.h = out + first * row, .y = j->y + first * j->width, .post = j->pre + first * j->copies,
                                 .comb = j->comb + first * j->copies * j->copies, .n_rows = n, .copies = j->copies,
                                 .width = j->width, .flags = j->flags};

    memcpy(p.h, j->h + first * row, n * row * sizeof *p.h);
    assert_int_equal(kvi_cpu_expand(dev, &p, NULL), KVCSA_OK);
}

void run_engram(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const engram_job            *j = job;
    const size_t                 row = (size_t)j->copies * j->width;
    const kvi_engram_gate_params p = {.h = out + first * row, .kv = j->kv + first * (row + j->width), .qk = j->qk, .n_rows = n,
                                      .copies = j->copies, .width = j->width, .eps = 1e-20f, .flags = j->flags};

    memcpy(p.h, j->h + first * row, n * row * sizeof *p.h);
    assert_int_equal(kvi_cpu_engram_gate(dev, &p, NULL), KVCSA_OK);
}

/* The sum is within (n / 16 + 6) u, halved by the root; quotient, + eps, root, 1 /, two products: n / 32 + 10 u. */
void assert_norm_exact(const norm_job *j, size_t row, const float *y)
{
    const size_t w = j->width;
    const float *x = j->x + row * (w + 3);
    double       r = 0;

    for (size_t c = 0; c < w; c++)
        r += (double)x[c] * (double)x[c];
    r = 1.0 / sqrt(r / (double)w + (double)1e-20f);
    for (size_t c = 0; c < w; c++) {
        const double wanted = (double)j->weight[c] * (double)x[c] * r;

        assert_within(y[c], wanted, ((double)w / 32 + 10) * U * fabs(wanted));
    }
}

/* Sums within (n / 16 + 6) u of the sizes of their products, n / 16 + 20 roundings of the factors; the root is within sqrt of the
 * error and, away from 0, within error / sqrt; the sigmoid has slope 1/4. */
void assert_engram_exact(const engram_job *j, size_t row, size_t c, const float *y, double slack)
{
    const size_t w = j->width;
    const float *h = j->h + (row * j->copies + c) * w;
    const float *kv = j->kv + row * (j->copies + 1u) * w;
    double       hh = 0;
    double       kk = 0;
    double       dot = 0;
    double       size = 0;
    double       scale;
    double       error;
    double       gate;

    for (size_t q = 0; q < w; q++) {
        const double product = (double)h[q] * (double)j->qk[c * w + q] * (double)kv[c * w + q];

        hh += (double)h[q] * (double)h[q];
        kk += (double)kv[c * w + q] * (double)kv[c * w + q];
        dot += product;
        size += fabs(product);
    }
    scale = (double)w / sqrt(hh * kk) / sqrt((double)w);
    dot *= scale;
    error = ((double)w / 16 + 30) * U * size * scale;
    error = fmin(sqrt(error), fabs(dot) > 2 * error ? error / sqrt(fabs(dot)) : 1.0);
    gate = sigmoid(copysign(sqrt(fmax(fabs(dot), 1e-6)), dot));
    for (size_t q = 0; q < w; q++)
        assert_within(y[q], (double)h[q] + gate * (double)kv[j->copies * w + q], error / 4 + slack);
}
