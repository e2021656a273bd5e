/* Norm, rotation, residual stream, Engram gate, router: every instruction set of this machine against an oracle of the fused
 * order written with fmaf, against double, and against the portable kernels where the bits are the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/fmath.h"
#include "cpu/cpu_ops.h"
#include "support/prng.h"

#define U 0x1p-24 /* unit roundoff of float */

enum { MAX_MASKS = 2, N_THREADS = 3, GUARD = 0xA7 };

static prng         rng;
static kvi_threads *threads[N_THREADS];
static kvi_device   portable[N_THREADS];           /* with 1, 2 and 3 threads */
static kvi_device   variants[MAX_MASKS][N_THREADS];
static size_t       n_variants;

/* ---------------------------------------------------------------- memory between two pages that fault */

typedef struct fence {
    uint8_t *map;
    float   *data;
    size_t   bytes; /* of the map */
} fence;

static fence  fences[64]; /* a stack */
static size_t n_fences;

/* n floats that end at the end of a page. */
static float *fenced(size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t bytes = (n * sizeof(float) + page - 1) / page * page;
    fence       *f = &fences[n_fences++];

    assert_true(n_fences < sizeof fences / sizeof *fences);
    f->bytes = bytes + 2 * page;
    f->map = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f->map != MAP_FAILED);
    memset(f->map + page, GUARD, bytes);
    assert_int_equal(mprotect(f->map, page, PROT_NONE), 0);
    assert_int_equal(mprotect(f->map + page + bytes, page, PROT_NONE), 0);
    return f->data = (float *)(void *)(f->map + page + bytes - n * sizeof(float));
}

/* Frees all but the first `keep` arrays; fails if something in front of one was written. */
static void free_fenced(size_t keep)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    while (n_fences > keep) {
        const fence *f = &fences[--n_fences];

        for (const uint8_t *b = f->map + page; b < (const uint8_t *)(const void *)f->data; b++)
            assert_int_equal(*b, GUARD);
        munmap(f->map, f->bytes);
    }
}

static float *random_floats(size_t n, float size)
{
    float *p = fenced(n);

    for (size_t i = 0; i < n; i++)
        p[i] = prng_float(&rng, -size, size);
    return p;
}

static bool untouched(float x)
{
    return kvi_f32_bits(x) == 0xA7A7A7A7u;
}

/* Equal bits, or both NaN. */
static void assert_same(const float *is, const float *wanted, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (kvi_f32_bits(is[i]) != kvi_f32_bits(wanted[i]) && !(is[i] != is[i] && wanted[i] != wanted[i]))
            fail_msg("element %zu is %.9g, must be %.9g", i, (double)is[i], (double)wanted[i]);
}

static void assert_within(float is, double wanted, double bound)
{
    if (!(fabs((double)is - wanted) <= bound))
        fail_msg("is %.9g, must be %.9g within %.3g", (double)is, wanted, bound);
}

/* ---------------------------------------------------------------- every mask, any split of the rows */

/* Runs rows first .. first + n - 1 and puts their outputs at out + first * width. */
typedef void (*rows_fn)(const void *job, kvi_device *dev, size_t first, size_t n, float *out);

static void check_device(rows_fn run, const void *job, kvi_device *dev, const float *wanted, size_t n_rows, size_t width)
{
    const size_t mark = n_fences;
    const size_t part = n_rows / 3;
    float       *out = NULL;

    for (size_t t = 0; t < N_THREADS; t++) {
        out = fenced(n_rows * width);
        run(job, &dev[t], 0, n_rows, out);
        assert_same(out, wanted, n_rows * width);
        free_fenced(mark);
    }
    out = fenced(n_rows * width);
    if (part)
        run(job, dev, 0, part, out);
    run(job, dev, part, n_rows - part, out);
    assert_same(out, wanted, n_rows * width);
    for (size_t i = 0; i < n_rows; i++)
        run(job, dev, i, 1, out);
    assert_same(out, wanted, n_rows * width);
    free_fenced(mark);
}

static void check_variants(rows_fn run, const void *job, const float *wanted, size_t n_rows, size_t width)
{
    for (size_t v = 0; v < n_variants; v++)
        check_device(run, job, variants[v], wanted, n_rows, width);
}

/* The same bits as the portable kernels. */
static void check_as_portable(rows_fn run, const void *job, size_t n_rows, size_t width)
{
    const size_t mark = n_fences;
    float *wanted = fenced(n_rows * width);

    run(job, &portable[0], 0, n_rows, wanted);
    check_variants(run, job, wanted, n_rows, width);
    free_fenced(mark);
}

/* ---------------------------------------------------------------- the fused order, naively */

/* Sum of (a b) c, b NULL = 1: sixteen lanes, blocks of 1024, folds. */
static float fused_sum(const float *a, const float *b, const float *c, size_t n)
{
    float sum = 0.0f;

    for (size_t begin = 0; begin < n; begin += 1024) {
        float lane[16] = {0};

        for (size_t i = begin; i < n && i < begin + 1024; i++)
            lane[i % 16] = fmaf(b ? a[i] * b[i] : a[i], c[i], lane[i % 16]);
        for (size_t half = 8; half > 0; half /= 2)
            for (size_t i = 0; i < half; i++)
                lane[i] = lane[i] + lane[i + half];
        sum = begin == 0 ? lane[0] : sum + lane[0];
    }
    return sum;
}

static float fused_rms_inverse(const float *x, size_t n, float eps)
{
    return 1.0f / sqrtf(fused_sum(x, NULL, x, n) / (float)n + eps);
}

static float fused_exp(float x)
{
    const float n = nearbyintf(x * 1.44269504088896341f);
    float       r = fmaf(-n, 0.693359375f, x);
    float       p = 1.9875691500e-4f;

    if (x != x || x > 88.722839f || x < -87.33654f)
        return x != x ? x : x > 0.0f ? INFINITY : 0.0f;
    r = fmaf(-n, -2.12194440e-4f, r);
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    return ldexpf(fmaf(p, r * r, r) + 1.0f, (int)n);
}

static float fused_sigmoid(float x)
{
    return 1.0f / (1.0f + fused_exp(0.0f - x));
}

/* x >= 0 */
static float fused_log1p(float x)
{
    static const float rest[8] = {-1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f, 1.4249322787e-1f,
                                  -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
    const float        u = 1.0f + x;
    const float        c = x - (u - 1.0f);
    float              p = 7.0376836292e-2f;
    float              f;
    float              z;
    int                k;
    float              m = frexpf(u, &k);

    if (x != x)
        return x;
    if (m < 0.70710677f) { /* the float below sqrt(1/2) */
        m *= 2.0f;
        k--;
    }
    f = fmaf(c, ldexpf(1.0f, -k), m - 1.0f);
    z = f * f;
    for (size_t i = 0; i < 8; i++)
        p = fmaf(p, f, rest[i]);
    p = p * f * z;
    p = fmaf((float)k, -2.12194440e-4f, p);
    p = fmaf(-0.5f, z, p);
    return fmaf((float)k, 0.693359375f, f + p);
}

/* ---------------------------------------------------------------- norm */

typedef struct norm_job {
    const float *x; /* at width + 3 */
    const float *weight;
    uint32_t     width;
    uint32_t     flags;
    bool         in_place;
} norm_job;

static void run_norm(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const size_t mark = n_fences;
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
        assert_true(i + 1 == n || untouched(y[i * stride + w]));
    }
    free_fenced(mark);
}

/* The sum is within (n / 16 + 6) u, halved by the root; quotient, + eps, root, 1 /, two products: n / 32 + 10 u. */
static void check_norm(uint32_t width, size_t n_rows, float size)
{
    const size_t mark = n_fences;
    const size_t stride = width + 3u;
    float       *x = random_floats(n_rows * stride - 3, size);
    float       *w = random_floats(width, 1.0f);
    float       *wanted = fenced(n_rows * width);
    norm_job     job = {.x = x, .weight = w, .width = width};

    for (size_t i = 0; i < n_rows; i++) {
        const float *row = x + i * stride;
        const float  r = fused_rms_inverse(row, width, 1e-20f);
        double       exact = 0;

        for (size_t c = 0; c < width; c++)
            exact += (double)row[c] * (double)row[c];
        exact = 1.0 / sqrt(exact / width + (double)1e-20f);
        for (size_t c = 0; c < width; c++) {
            const double y = (double)w[c] * (double)row[c] * exact;

            wanted[i * width + c] = w[c] * (row[c] * r);
            assert_within(wanted[i * width + c], y, (width / 32.0 + 10) * U * fabs(y));
        }
    }
    check_variants(run_norm, &job, wanted, n_rows, width);
    job.in_place = true;
    check_variants(run_norm, &job, wanted, n_rows, width);
    job.flags = KVI_OP_ROUND_BF16;
    check_as_portable(run_norm, &job, n_rows, width);
    free_fenced(mark);
}

static void test_norm_every_width(void **state)
{
    (void)state;
    for (uint32_t width = 1; width <= 50; width += 7)
        check_norm(width, 4, 1.0f);
    check_norm(192, 7, 100.0f);
    check_norm(1023, 3, 1.0f);
    check_norm(1024, 3, 1.0f);
    check_norm(1280, 3, 1e-9f);
    check_norm(4096 + 17, 3, 1.0f);
    check_norm(5120, 40, 0.01f); /* several ranges of rows */
    check_norm(8192 + 5120 + 40, 2, 1.0f);
}

static void test_norm_nan_and_infinity(void **state)
{
    const size_t mark = n_fences;
    const uint32_t width = 1100;
    const size_t   stride = width + 3;
    float         *x = random_floats(5 * stride - 3, 1.0f);
    float         *w = random_floats(width, 1.0f);
    norm_job       job = {.x = x, .weight = w, .width = width};
    float          a[5 * 1100];
    float          b[5 * 1100];

    (void)state;
    x[17] = NAN;
    x[stride + 1090] = INFINITY;
    for (size_t i = 0; i < width; i++) {
        x[2 * stride + i] = i % 2 ? -0.0f : 0.0f;
        x[3 * stride + i] = 1e30f; /* the sum overflows */
        x[4 * stride + i] = kvi_bits_f32(1 + (uint32_t)i);
    }
    run_norm(&job, &portable[0], 0, 5, a);
    for (size_t v = 0; v < n_variants; v++) {
        run_norm(&job, &variants[v][0], 0, 5, b);
        for (size_t i = 0; i < 5 * width; i++)
            assert_true(isnan(a[i]) == isnan(b[i]) && isinf(a[i]) == isinf(b[i]));
        assert_same(b + 2 * width, a + 2 * width, 3 * width); /* no rounding in these sums */
    }
    free_fenced(mark);
}

/* ---------------------------------------------------------------- rope */

typedef struct rope_job {
    const float    *x;
    const float    *freqs;
    const uint64_t *pos;
    uint32_t        n_heads;
    uint32_t        width;
    uint32_t        n_rotated;
    uint32_t        inverse;
    uint32_t        flags;
} rope_job;

static void run_rope(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const size_t mark = n_fences;
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
            assert_true(untouched(x[i * (row + 5) + row + c]));
    }
    free_fenced(mark);
}

static void check_rope(uint32_t n_heads, uint32_t width, uint32_t n_rotated, size_t n_rows)
{
    const size_t mark = n_fences;
    static const uint64_t some[9] = {0, 1, 77, 65536, 1048575, 3, 16777215, 16777217, UINT64_MAX};
    const size_t          row = (size_t)n_heads * width;
    float                *x = random_floats(n_rows * row, 1.0f);
    float                *freqs = fenced(n_rotated / 2);
    uint64_t             *pos = malloc(n_rows * sizeof *pos);
    rope_job              job = {.x = x, .freqs = freqs, .pos = pos, .n_heads = n_heads, .width = width, .n_rotated = n_rotated};

    assert_non_null(pos);
    for (size_t i = 0; i < n_rows; i++)
        pos[i] = some[i % 9];
    for (size_t i = 0; i < n_rotated / 2; i++)
        freqs[i] = kvi_powf(10000.0f, -2.0f * (float)i / (float)n_rotated);
    for (job.inverse = 0; job.inverse < 2; job.inverse++) {
        job.flags = 0;
        check_as_portable(run_rope, &job, n_rows, row);
        job.flags = KVI_OP_ROUND_BF16;
        check_as_portable(run_rope, &job, n_rows, row);
    }
    free_fenced(mark);
    free(pos);
}

static void test_rope_every_shape(void **state)
{
    (void)state;
    check_rope(1, 2, 2, 3);
    check_rope(3, 7, 6, 9);
    check_rope(2, 33, 14, 9);
    check_rope(5, 40, 18, 4);
    check_rope(3, 64, 32, 9);
    check_rope(4, 100, 66, 2);
    check_rope(2, 200, 196, 9); /* more pairs than are held at once */
    check_rope(1, 128, 128, 3);
    check_rope(1, 66, 64, 450); /* several ranges of rows */
    check_rope(64, 512, 64, 3);
}

/* Any bits as the angle, and the neighbours of multiples of a quarter turn: equal to kvi_sincosf. */
static void test_rope_any_angle(void **state)
{
    const size_t mark = n_fences;
    enum { PAIRS = 4096, ROUNDS = 12 };
    float          *x = fenced(2 * PAIRS);
    float          *freqs = fenced(PAIRS);
    float          *out = fenced(2 * PAIRS);
    const uint64_t  pos = 1;
    const rope_job  job = {.x = x, .freqs = freqs, .pos = &pos, .n_heads = 1, .width = 2 * PAIRS, .n_rotated = 2 * PAIRS};

    (void)state;
    for (size_t i = 0; i < PAIRS; i++) { /* (1, -0) turns into (cos, sin), the sign of a 0 included */
        x[2 * i] = 1.0f;
        x[2 * i + 1] = -0.0f;
    }
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < PAIRS; i++) {
            const float quarter = (float)((double)prng_below(&rng, 10680707) * 1.57079632679489661923);

            freqs[i] = prng_float_bits(&rng);
            if (round % 3 == 1)
                freqs[i] = kvi_bits_f32(kvi_f32_bits(quarter) + (uint32_t)prng_below(&rng, 5));
            if (round % 3 == 2)
                freqs[i] = prng_float(&rng, -0x1p20f, 0x1p20f);
        }
        freqs[0] = -0.0f;
        freqs[1] = 0x1p24f;
        freqs[2] = -0x1.000002p24f;
        freqs[3] = -INFINITY;
        freqs[4] = -0x1p-149f;
        freqs[5] = NAN;
        for (size_t v = 0; v < n_variants; v++) {
            run_rope(&job, &variants[v][0], 0, 1, out);
            for (size_t i = 0; i < PAIRS; i++) {
                float s;
                float c;

                kvi_sincosf(freqs[i], &s, &c);
                assert_same(&out[2 * i], &(float){c - -0.0f * s}, 1);
                assert_same(&out[2 * i + 1], &(float){s + -0.0f * c}, 1);
            }
        }
    }
    free_fenced(mark);
}

/* ---------------------------------------------------------------- mix */

typedef struct mix_job {
    const float *h;
    const float *proj;
    const float *base;
    uint32_t     copies;
    uint32_t     width;
    uint32_t     n_iters;
} mix_job;

static const float mix_scale[3] = {0.8f, 0.6f, 1.2f};

/* a row of output: pre, post, comb */
static void run_mix(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const size_t mark = n_fences;
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

/* Lines of m elements, `step` apart, are divided by their sums. */
static void fused_divide(float *c, size_t m, size_t line, size_t step, float eps)
{
    for (size_t a = 0; a < m; a++) {
        float sum = c[a * line];

        for (size_t b = 1; b < m; b++)
            sum += c[a * line + b * step];
        sum += eps;
        for (size_t b = 0; b < m; b++)
            c[a * line + b * step] = c[a * line + b * step] / sum;
    }
}

static void fused_mix(const mix_job *j, size_t row, float *out)
{
    const size_t m = j->copies;
    const float *proj = j->proj + row * (2 + m) * m;
    const float  r = fused_rms_inverse(j->h + row * m * j->width, m * j->width, 1e-20f);
    float       *c = out + 2 * m;

    for (size_t i = 0; i < m; i++) {
        out[i] = fused_sigmoid(proj[i] * r * mix_scale[0] + j->base[i]) + 1e-6f;
        out[m + i] = 2.0f * fused_sigmoid(proj[m + i] * r * mix_scale[1] + j->base[m + i]);
    }
    for (size_t i = 0; i < m * m; i++)
        c[i] = proj[2 * m + i] * r * mix_scale[2] + j->base[2 * m + i];
    for (size_t a = 0; a < m; a++) {
        float most = c[a * m];

        for (size_t k = 1; k < m; k++)
            most = c[a * m + k] > most ? c[a * m + k] : most;
        for (size_t k = 0; k < m; k++)
            c[a * m + k] = fused_exp(c[a * m + k] - most);
    }
    fused_divide(c, m, m, 1, 0.0f);
    for (size_t i = 0; i < m * m; i++)
        c[i] += 1e-6f;
    fused_divide(c, m, 1, m, 1e-6f);
    for (uint32_t it = 1; it < j->n_iters; it++) {
        fused_divide(c, m, m, 1, 1e-6f);
        fused_divide(c, m, 1, m, 1e-6f);
    }
}

static void check_mix(uint32_t copies, uint32_t width, size_t n_rows, uint32_t n_iters)
{
    const size_t mark = n_fences;
    const size_t  m = copies;
    const size_t  row = (2 + m) * m;
    float        *h = random_floats(n_rows * m * width, 1.0f);
    float        *proj = random_floats(n_rows * row, 2.0f);
    float        *base = random_floats(row, 0.3f);
    float        *wanted = fenced(n_rows * row);
    float        *plain = fenced(n_rows * row);
    const mix_job job = {.h = h, .proj = proj, .base = base, .copies = copies, .width = width, .n_iters = n_iters};

    for (size_t i = 0; i < n_rows; i++)
        fused_mix(&job, i, wanted + i * row);
    check_variants(run_mix, &job, wanted, n_rows, row);
    /* Each is this far from the exact value: arguments below 8 with (m width / 32 + 12) roundings, slopes of the sigmoids 1/4
     * and 1/2, entries of C at most 1; every normalisation adds m + 1 roundings; exp is off by 3 u at most. */
    run_mix(&job, &portable[0], 0, n_rows, plain);
    for (size_t i = 0; i < n_rows * row; i++)
        assert_within(wanted[i], (double)plain[i],
                      2.0 * (8.0 * ((double)(m * width) / 32 + 12) + (i % row < 2 * m ? 7 : 40.0 * (double)(m + 1) + 6)) * U);
    free_fenced(mark);
}

static void test_mix_every_shape(void **state)
{
    (void)state;
    for (uint32_t copies = 1; copies <= 8; copies++)
        check_mix(copies, 10 + copies, 21, 20);
    check_mix(4, 16, 3, 1);
    check_mix(4, 5120, 2, 20);
    check_mix(4, 300, 130, 20); /* several ranges of rows */
    check_mix(2, 2000, 9, 3);
}

/* NaN and infinity where the portable kernels have them. */
static void test_mix_nan_and_infinity(void **state)
{
    const size_t mark = n_fences;
    enum { ROWS = 9 };
    static const float bad[4] = {NAN, INFINITY, -INFINITY, 3e38f};

    (void)state;
    for (uint32_t m = 2; m <= 4; m++) {
        const size_t  row = (2 + m) * m;
        float        *h = random_floats(ROWS * m * 8, 1.0f);
        float        *proj = random_floats(ROWS * row, 2.0f);
        float        *base = random_floats(row, 0.3f);
        float         a[ROWS * 24];
        float         b[ROWS * 24];
        const mix_job job = {.h = h, .proj = proj, .base = base, .copies = m, .width = 8, .n_iters = 20};

        h[3] = NAN;
        for (size_t i = 1; i < ROWS; i++)
            proj[i * row + prng_below(&rng, row)] = bad[i % 4];
        run_mix(&job, &portable[0], 0, ROWS, a);
        for (size_t v = 0; v < n_variants; v++) {
            run_mix(&job, &variants[v][0], 0, ROWS, b);
            for (size_t i = 0; i < ROWS * row; i++)
                assert_true(isnan(a[i]) == isnan(b[i]) && isinf(a[i]) == isinf(b[i]));
            for (size_t i = 0; i < ROWS; i++)
                fused_mix(&job, i, a + i * row);
            check_device(run_mix, &job, variants[v], a, ROWS, row);
            run_mix(&job, &portable[0], 0, ROWS, a);
        }
        free_fenced(mark);
    }
}

/* ---------------------------------------------------------------- collapse, expand */

typedef struct stream_job {
    const float *h;
    const float *pre; /* [n_rows, copies]; of expand: post */
    const float *comb;
    const float *y;
    uint32_t     copies;
    uint32_t     width;
    uint32_t     flags;
} stream_job;

static void run_collapse(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const stream_job         *j = job;
    const kvi_collapse_params p = {.h = j->h + first * j->copies * j->width, .pre = j->pre + first * j->copies,
                                   .y = out + first * j->width, .n_rows = n, .copies = j->copies, .width = j->width,
                                   .flags = j->flags};

    assert_int_equal(kvi_cpu_collapse(dev, &p, NULL), KVCSA_OK);
}

static void run_expand(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const stream_job       *j = job;
    const size_t            row = (size_t)j->copies * j->width;
    const kvi_expand_params p = {.h = out + first * row, .y = j->y + first * j->width, .post = j->pre + first * j->copies,
                                 .comb = j->comb + first * j->copies * j->copies, .n_rows = n, .copies = j->copies,
                                 .width = j->width, .flags = j->flags};

    memcpy(p.h, j->h + first * row, n * row * sizeof *p.h);
    assert_int_equal(kvi_cpu_expand(dev, &p, NULL), KVCSA_OK);
}

static void check_stream(uint32_t copies, uint32_t width, size_t n_rows)
{
    const size_t mark = n_fences;
    const size_t m = copies;
    float       *h = random_floats(n_rows * m * width, 1.0f);
    float       *pre = random_floats(n_rows * m, 1.0f);
    float       *comb = random_floats(n_rows * m * m, 1.0f);
    float       *y = random_floats(n_rows * width, 1.0f);
    float       *one = fenced(n_rows * width);
    float       *all = fenced(n_rows * m * width);
    float       *plain = fenced(n_rows * m * width);
    stream_job   job = {.h = h, .pre = pre, .comb = comb, .y = y, .copies = copies, .width = width};

    h[width / 2] = NAN;
    h[n_rows * m * width - 1] = INFINITY;
    for (size_t r = 0; r < n_rows; r++)
        for (size_t i = 0; i < width; i++) {
            const float *x = h + r * m * width + i;
            float        sum = pre[r * m] * x[0];

            for (size_t c = 1; c < m; c++)
                sum = fmaf(pre[r * m + c], x[c * width], sum);
            one[r * width + i] = sum;
            for (size_t k = 0; k < m; k++) {
                const float *c = comb + r * m * m + k;

                sum = c[0] * x[0];
                for (size_t j = 1; j < m; j++)
                    sum = fmaf(c[j * m], x[j * width], sum);
                all[(r * m + k) * width + i] = fmaf(pre[r * m + k], y[r * width + i], sum);
            }
        }
    check_variants(run_collapse, &job, one, n_rows, width);
    check_variants(run_expand, &job, all, n_rows, m * width);
    /* every product below 1 has m roundings here and m + 1 there, or one more each */
    run_collapse(&job, &portable[0], 0, n_rows, plain);
    for (size_t i = 0; i < n_rows * width; i++)
        if (isfinite(plain[i]))
            assert_within(one[i], (double)plain[i], (double)(2 * m + 1) * (double)m * U);
        else
            assert_true(isnan(one[i]) == isnan(plain[i]) && !isfinite(one[i]));
    run_expand(&job, &portable[0], 0, n_rows, plain);
    for (size_t i = 0; i < n_rows * m * width; i++)
        if (isfinite(plain[i]))
            assert_within(all[i], (double)plain[i], (double)(2 * m + 3) * (double)(m + 1) * U);
        else
            assert_true(isnan(all[i]) == isnan(plain[i]) && !isfinite(all[i]));
    job.flags = KVI_OP_ROUND_BF16;
    check_as_portable(run_collapse, &job, n_rows, width);
    check_as_portable(run_expand, &job, n_rows, m * width);
    free_fenced(mark);
}

static void test_collapse_and_expand(void **state)
{
    (void)state;
    for (uint32_t copies = 1; copies <= 8; copies++)
        check_stream(copies, 13 * copies, 3);
    check_stream(4, 1, 2);
    check_stream(4, 64, 5);
    check_stream(4, 2051, 31); /* several ranges of rows */
    check_stream(4, 5120, 2);
}

/* ---------------------------------------------------------------- Engram gate */

typedef struct engram_job {
    const float *h;
    const float *kv;
    const float *qk;
    uint32_t     copies;
    uint32_t     width;
    uint32_t     flags;
} engram_job;

static void run_engram(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const engram_job            *j = job;
    const size_t                 row = (size_t)j->copies * j->width;
    const kvi_engram_gate_params p = {.h = out + first * row, .kv = j->kv + first * (row + j->width), .qk = j->qk, .n_rows = n,
                                      .copies = j->copies, .width = j->width, .eps = 1e-20f, .flags = j->flags};

    memcpy(p.h, j->h + first * row, n * row * sizeof *p.h);
    assert_int_equal(kvi_cpu_engram_gate(dev, &p, NULL), KVCSA_OK);
}

static float fused_gate(const engram_job *j, const float *h, const float *qk, const float *key)
{
    const size_t w = j->width;
    const float  r = fused_rms_inverse(h, w, 1e-20f) * fused_rms_inverse(key, w, 1e-20f);
    const float  dot = fused_sum(h, qk, key, w) * r * (1.0f / sqrtf((float)w));
    const float  root = sqrtf(fabsf(dot) < 1e-6f ? 1e-6f : fabsf(dot));

    return fused_sigmoid(copysignf(root, dot));
}

/* Sums within (n / 16 + 6) u of the sizes of their products, n / 16 + 20 roundings of the factors; the root is within sqrt of the
 * error and, away from 0, within error / sqrt; the sigmoid has slope 1/4 and 8 u of its own. */
static void assert_engram_exact(const engram_job *j, size_t r, size_t c, const float *y)
{
    const size_t w = j->width;
    const float *h = j->h + (r * j->copies + c) * w;
    const float *kv = j->kv + r * (j->copies + 1u) * w;
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
    gate = 1.0 / (1.0 + exp(-copysign(sqrt(fmax(fabs(dot), 1e-6)), dot)));
    for (size_t q = 0; q < w; q++)
        assert_within(y[q], (double)h[q] + gate * (double)kv[j->copies * w + q], error / 4 + 16 * U);
}

static void check_engram(uint32_t copies, uint32_t width, size_t n_rows)
{
    const size_t mark = n_fences;
    const size_t row = (size_t)copies * width;
    float       *h = random_floats(n_rows * row, 1.0f);
    float       *kv = random_floats(n_rows * (row + width), 1.0f);
    float       *qk = random_floats(row, 2.0f);
    float       *wanted = fenced(n_rows * row);
    engram_job   job = {.h = h, .kv = kv, .qk = qk, .copies = copies, .width = width};

    for (size_t r = 0; r < n_rows; r++)
        for (size_t c = 0; c < copies; c++) {
            const float *keys = kv + r * (row + width);
            const float *x = h + (r * copies + c) * width;
            float       *y = wanted + (r * copies + c) * width;
            const float  gate = fused_gate(&job, x, qk + c * width, keys + c * width);

            for (size_t i = 0; i < width; i++)
                y[i] = fmaf(gate, keys[row + i], x[i]);
            assert_engram_exact(&job, r, c, y);
        }
    check_variants(run_engram, &job, wanted, n_rows, row);
    job.flags = KVI_OP_ROUND_BF16;
    check_as_portable(run_engram, &job, n_rows, row);
    free_fenced(mark);
}

static void test_engram_every_shape(void **state)
{
    (void)state;
    for (uint32_t copies = 1; copies <= 8; copies++)
        check_engram(copies, 5 + 9 * copies, 3);
    check_engram(17, 20, 2);
    check_engram(4, 1024, 2);
    check_engram(4, 3072 + 33, 3);
    check_engram(4, 5120, 7); /* several ranges of rows */
}

/* The sign of the dot product, its floor, and what is no number. */
static void test_engram_special_values(void **state)
{
    static const float qks[8] = {0.0f, -0.0f, 1e-9f, -1e-9f, NAN, INFINITY, -INFINITY, -1e-44f};
    float              h[8 * 20];
    float              kv[9 * 20];
    float              qk[8 * 20];
    float              a[8 * 20];
    float              b[8 * 20];
    const engram_job   job = {.h = h, .kv = kv, .qk = qk, .copies = 8, .width = 20};

    (void)state;
    for (size_t i = 0; i < 9 * 20; i++)
        kv[i] = 1.0f;
    for (size_t i = 0; i < 8 * 20; i++) {
        h[i] = 1.0f;
        qk[i] = qks[i / 20];
    }
    run_engram(&job, &portable[0], 0, 1, a);
    for (size_t v = 0; v < n_variants; v++) {
        run_engram(&job, &variants[v][0], 0, 1, b);
        for (size_t i = 0; i < 8 * 20; i++)
            if (isnan(a[i]))
                assert_true(isnan(b[i]));
            else
                assert_within(b[i], (double)a[i], 16 * U);
        for (size_t c = 0; c < 8; c++) {
            const float gate = fused_gate(&job, h + c * 20, qk + c * 20, kv + c * 20);

            for (size_t i = 0; i < 20; i++)
                a[c * 20 + i] = fmaf(gate, 1.0f, 1.0f);
        }
        assert_same(b, a, 8 * 20);
        run_engram(&job, &portable[0], 0, 1, a);
    }
}

/* ---------------------------------------------------------------- route */

typedef struct route_job {
    const float *z;
    const float *bias;
    uint32_t     n_experts;
    uint32_t     k;
    uint32_t     normalise;
    float        scale;
} route_job;

/* a row of output: k experts as floats, k weights */
static void run_route(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const size_t mark = n_fences;
    const route_job *j = job;
    const size_t     k = j->k;
    float           *weights = fenced(n * k);
    float           *ids = fenced(n * k);
    uint32_t        *experts = (uint32_t *)(void *)ids;

    const kvi_route_params p = {.z = j->z + first * j->n_experts, .bias = j->bias, .experts = experts, .weights = weights,
                                .n_rows = n, .n_experts = j->n_experts, .k = j->k, .normalise = j->normalise, .scale = j->scale};

    assert_int_equal(kvi_cpu_route(dev, &p, NULL), KVCSA_OK);
    for (size_t i = 0; i < n; i++)
        for (size_t q = 0; q < k; q++) {
            out[(first + i) * 2 * k + q] = (float)experts[i * k + q];
            out[(first + i) * 2 * k + k + q] = weights[i * k + q];
        }
    free_fenced(mark);
}

static float fused_score(float z)
{
    if (z < -17.0f)
        return fused_exp(z * 0.5f);
    return sqrtf(z > 20.0f ? z : fused_log1p(fused_exp(z)));
}

static void fused_route(const route_job *j, size_t row, float *out)
{
    const float *z = j->z + row * j->n_experts;
    bool         taken[512] = {false};
    float        sum = 0.0f;
    size_t       n = 0;

    for (size_t i = 0; i < j->k; i++) {
        size_t best = j->n_experts;
        float  most = 0.0f;

        for (size_t e = 0; e < j->n_experts; e++) {
            float rank = fused_score(z[e]) + j->bias[e];

            rank = rank != rank ? -INFINITY : rank;
            if (!taken[e] && (best == j->n_experts || rank > most)) {
                best = e;
                most = rank;
            }
        }
        taken[best] = true;
    }
    for (size_t e = 0; e < j->n_experts; e++)
        if (taken[e]) {
            out[n] = (float)e;
            out[j->k + n++] = fused_score(z[e]);
            sum += fused_score(z[e]);
        }
    for (size_t i = 0; i < j->k; i++) {
        if (j->normalise && j->k > 1)
            out[j->k + i] = out[j->k + i] / (sum + 1e-20f);
        out[j->k + i] = out[j->k + i] * j->scale;
    }
}

static void check_route(uint32_t n_experts, uint32_t k, size_t n_rows, float size)
{
    const size_t mark = n_fences;
    float    *z = random_floats(n_rows * n_experts, size);
    float    *bias = random_floats(n_experts, 1.0f);
    float    *wanted = fenced(n_rows * 2 * k);
    route_job job = {.z = z, .bias = bias, .n_experts = n_experts, .k = k, .scale = 1.5f};

    for (size_t i = 0; i < n_rows * n_experts; i += 3)
        z[i] = rintf(z[i]); /* some ties */
    for (job.normalise = 0; job.normalise < 2; job.normalise++) {
        for (size_t i = 0; i < n_rows; i++)
            fused_route(&job, i, wanted + i * 2 * k);
        check_variants(run_route, &job, wanted, n_rows, 2 * k);
    }
    free_fenced(mark);
}

static void test_route_every_shape(void **state)
{
    (void)state;
    check_route(1, 1, 3, 4.0f);
    check_route(5, 5, 3, 4.0f);
    check_route(16, 2, 9, 30.0f);
    check_route(33, 6, 9, 100.0f);
    check_route(48, 7, 5, 12.0f);
    check_route(384, 6, 100, 4.0f); /* several tasks */
    check_route(500, 8, 5, 4.0f);
}

/* The score itself: all experts, not normalised. exp is within 3 u, log(1 + e) within 3 u more, halved by the root, which adds
 * one: 4 u. Equal to the portable kernel where no exp is taken. */
static void test_route_scores(void **state)
{
    const size_t mark = n_fences;
    enum { E = 512, ROUNDS = 40 };
    float          *z = fenced(E);
    float          *bias = fenced(E);
    float          *out = fenced(2 * E);
    const route_job job = {.z = z, .bias = bias, .n_experts = E, .k = E, .scale = 1.0f};

    (void)state;
    memset(bias, 0, E * sizeof *bias);
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t e = 0; e < E; e++) {
            z[e] = prng_float(&rng, -40.0f, 25.0f);
            if (round % 4 == 1)
                z[e] = prng_float(&rng, -174.0f, 90.0f);
            if (round % 4 == 2)
                z[e] = ldexpf(prng_float(&rng, -1.0f, 1.0f), -(int)prng_below(&rng, 140));
            if (round % 4 == 3)
                z[e] = prng_float(&rng, -20.0f, -15.0f);
        }
        z[0] = -17.0f;
        z[1] = -0x1.100002p4f;
        z[2] = 20.0f;
        z[3] = 0x1.400002p4f;
        z[4] = 0.0f;
        z[5] = -0.0f;
        z[6] = 3e38f;
        z[7] = -3e38f;
        z[8] = INFINITY;
        z[9] = -INFINITY;
        z[10] = NAN;
        for (size_t v = 0; v < n_variants; v++) {
            run_route(&job, &variants[v][0], 0, 1, out);
            for (size_t e = 0; e < E; e++) {
                const double soft = z[e] > 20.0f ? (double)z[e] : log1p(exp((double)z[e]));

                assert_true(out[e] == (float)e);
                if (isfinite(soft))
                    assert_within(out[E + e], sqrt(soft), 4 * U * sqrt(soft) + 0x1p-126);
                else
                    assert_true(isnan(out[E + e]) == isnan(z[e]) && isinf(out[E + e]) == isinf(z[e]));
            }
        }
    }
    free_fenced(mark);
}

/* Selection as the portable kernel's where the scores are the same bits: z above 20, infinities, NaN. */
static void test_route_special_values(void **state)
{
    const size_t mark = n_fences;
    enum { E = 77 };
    static const float zs[8] = {NAN, INFINITY, -INFINITY, 25.0f, 25.0f, 30.0f, 36.0f, 25.0f};
    static const uint32_t ks[5] = {1, 2, 6, 30, E};
    static const float biases[6] = {0.0f, -0.0f, NAN, -INFINITY, 1.0f, INFINITY};
    float             *z = fenced(9 * E);
    float             *bias = fenced(E);
    route_job          job = {.z = z, .bias = bias, .n_experts = E, .normalise = 1, .scale = 2.5f};

    (void)state;
    for (size_t round = 0; round < 6; round++) {
        for (size_t i = 0; i < 9 * E; i++)
            z[i] = round == 0 ? NAN : round == 1 ? 25.0f : zs[prng_below(&rng, 8)];
        for (size_t i = 0; i < E; i++)
            bias[i] = round < 3 ? 0.0f : biases[prng_below(&rng, 6)];
        for (size_t i = 0; i < 5; i++) {
            job.k = ks[i];
            check_as_portable(run_route, &job, 9, 2 * job.k);
        }
    }
    free_fenced(mark);
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    for (size_t v = 0; v < n_variants; v++) {
        kvi_device *dev = &variants[v][1];

        assert_int_equal(kvi_cpu_norm(dev, &(kvi_norm_params){.width = 8}, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_rope(dev, &(kvi_rope_params){.n_heads = 1, .width = 8, .n_rotated = 8}, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_mix(dev, &(kvi_mix_params){.copies = 4, .width = 8}, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_collapse(dev, &(kvi_collapse_params){.copies = 4, .width = 8}, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_expand(dev, &(kvi_expand_params){.copies = 4, .width = 8}, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_engram_gate(dev, &(kvi_engram_gate_params){.copies = 4, .width = 8}, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_route(dev, &(kvi_route_params){.n_experts = 8, .k = 2}, NULL), KVCSA_OK);
    }
}

/* ---------------------------------------------------------------- devices */

static void init_devices(kvi_device *dev, uint32_t flags)
{
    for (uint32_t i = 0; i < N_THREADS; i++) {
        assert_int_equal(kvi_allocator_import(NULL, &dev[i].allocator, NULL), KVCSA_OK);
        dev[i].threads = threads[i];
        dev[i].flags = flags;
        kvi_dense_init(&dev[i].dense, flags);
        assert_int_equal(dev[i].dense.flags, flags);
    }
}

static int open_devices(void **state)
{
#if defined(__x86_64__)
    static const uint32_t masks[MAX_MASKS] = {KVCSA_CPU_AVX2, KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512};
#else
    static const uint32_t masks[MAX_MASKS] = {KVCSA_CPU_NEON, KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD};
#endif
    const uint32_t  have = kvi_cpu_flags(0);
    kvcsa_allocator a;

    (void)state;
    assert_int_equal(kvi_allocator_import(NULL, &a, NULL), KVCSA_OK);
    for (uint32_t i = 0; i < N_THREADS; i++)
        assert_int_equal(kvi_threads_create(&a, i + 1, NULL, &threads[i], NULL), KVCSA_OK);
    init_devices(portable, 0);
    for (size_t m = 0; m < MAX_MASKS; m++) {
        if ((have & masks[m]) == masks[m])
            init_devices(variants[n_variants++], masks[m]);
        else
            print_message("mask 0x%x: not on this machine\n", masks[m]);
    }
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_THREADS; i++)
        kvi_threads_destroy(threads[i]);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_every_width),
        cmocka_unit_test(test_norm_nan_and_infinity),
        cmocka_unit_test(test_rope_every_shape),
        cmocka_unit_test(test_rope_any_angle),
        cmocka_unit_test(test_mix_every_shape),
        cmocka_unit_test(test_mix_nan_and_infinity),
        cmocka_unit_test(test_collapse_and_expand),
        cmocka_unit_test(test_engram_every_shape),
        cmocka_unit_test(test_engram_special_values),
        cmocka_unit_test(test_route_every_shape),
        cmocka_unit_test(test_route_scores),
        cmocka_unit_test(test_route_special_values),
        cmocka_unit_test(test_nothing_to_do),
    };

    prng_init(&rng, prng_seed(argc, argv, 20250729));
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
