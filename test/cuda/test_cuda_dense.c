/* Rotation, residual stream, pooling and Engram gate on the device beside the CPU's. Where a sum is long, its order is another: there
 * inputs whose sums have no rounding must give the CPU's bits, and others are near. */
#include "cuda/cuda_check.h"

#include <stdio.h>
#include <string.h>

/* Multiples of 1/8 up to 1: sums of up to 2^15 products of three of them have no rounding, in any order. */
static void fill_eighths(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(prng() % 17) - 8) / 8;
}

static float *eighths(size_t n)
{
    float *x = calloc(n + 1, sizeof *x);

    fill_eighths(x, n);
    return x;
}

static float *some(size_t n, float size)
{
    float *x = calloc(n + 1, sizeof *x);

    fill(x, n, size);
    return x;
}

/* Equal bits where neither is a NaN. */
static void assert_same(const float *is, const float *wanted, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (!(isnan(is[i]) && isnan(wanted[i])) && memcmp(is + i, wanted + i, sizeof *is) != 0)
            fail_msg("%s: [%zu] is %a, not %a", what, i, (double)is[i], (double)wanted[i]);
}

/* A few values that are no ordinary numbers. */
static void spoil(float *x, size_t n)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 0x1p-149f, -0.0f, 0.0f, -0x1p-127f};

    for (size_t i = 0; i < 9 && n; i++)
        x[prng() % n] = bad[i];
}

/* A copy on the device, `off` bytes beside a boundary of 256. */
static float *sent(const float *x, size_t n, size_t off)
{
    return to_device_at(x, n * sizeof *x, off);
}

static void assert_refused(kvcsa_status status, const kvcsa_error *err, const char *text)
{
    assert_int_equal(status, KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err->text, text));
}

/* ---------------------------------------------------------------- rope */

typedef struct rope_case {
    kvi_rope_params p; /* of the host */
    size_t          n, off;
} rope_case;

static void run_rope(const void *arg, void *out)
{
    const rope_case *j = arg;
    kvi_rope_params  p = j->p;

    p.x = sent(j->p.x, j->n, j->off);
    p.freqs = sent(j->p.freqs, p.n_rotated / 2, 0);
    p.pos = to_device(j->p.pos, p.n_rows * sizeof *p.pos);
    GPU(rope, &p);
    from_device(out, p.x, j->n * sizeof *p.x);
    device_free_all();
}

static void check_rope(size_t n_rows, uint32_t n_heads, uint32_t width, uint32_t n_rotated, size_t pad, size_t off,
                       uint64_t first)
{
    for (uint32_t inverse = 0; inverse < 2; inverse++) {
        rope_case j = {.p = {.row_stride = (size_t)n_heads * width + pad, .n_rows = n_rows, .n_heads = n_heads, .width = width,
                             .n_rotated = n_rotated, .inverse = inverse},
                       .off = off};
        uint64_t *pos = calloc(n_rows + 1, sizeof *pos);
        float    *freqs = calloc(n_rotated / 2 + 1, sizeof *freqs), *want, *got;

        j.n = n_rows * j.p.row_stride;
        for (size_t i = 0; i < n_rows; i++)
            pos[i] = first * (i + 1) + i;
        for (uint32_t i = 0; i < n_rotated / 2; i++)
            freqs[i] = powf(10000.0f, -2.0f * (float)i / (float)n_rotated);
        want = some(j.n, 2.0f);
        if (n_rows > 2)
            spoil(want, j.n);
        j.p.x = calloc(j.n + 1, sizeof *want);
        got = calloc(j.n + 1, sizeof *got);
        memcpy(j.p.x, want, j.n * sizeof *want);
        j.p.pos = pos;
        j.p.freqs = freqs;
        gpu_run(run_rope, &j, got, j.n * sizeof *got);
        CPU(rope, &j.p);
        assert_same(got, j.p.x, j.n, "rope");
        free(pos);
        free(freqs);
        free(want);
        free(got);
        free(j.p.x);
    }
}

static void test_rope(void **state)
{
    (void)state;
    check_rope(1, 1, 2, 2, 0, 0, 0);
    check_rope(1, 64, 512, 64, 0, 0, 123456);
    check_rope(3, 16, 128, 64, 4, 0, 1000000);
    check_rope(3, 17, 128, 64, 3, 0, 77);
    check_rope(4, 33, 64, 64, 1, 4, 1);
    check_rope(2, 1, 576, 64, 0, 8, 12345);
    check_rope(2, 5, 66, 62, 2, 0, 99);
    check_rope(2, 5, 67, 66, 2, 12, 99);
    check_rope(1, 3, 300, 300, 0, 0, 4096);  /* more pairs than a block holds */
    check_rope(2, 2, 600, 514, 5, 0, 4097);  /* two pairs in the third round */
    check_rope(2, 2, 516, 516, 0, 0, 31);
    check_rope(3, 2, 64, 64, 0, 0, (uint64_t)1 << 23);
    check_rope(5, 2, 64, 64, 0, 0, (uint64_t)1 << 40); /* the first angles are too large: NaN */
    check_rope(2, 2, 64, 0, 0, 0, 5);
    check_rope(0, 2, 64, 64, 0, 0, 5);
    check_rope(2, 0, 64, 64, 0, 0, 5);
    check_rope(3, 1, 4, 4, 0, 0, 9);
    check_rope(3, 1, 6, 4, 2, 0, 9);
    check_rope(130, 2, 8, 4, 0, 0, 3);
    check_rope(2, 15, 192, 64, 0, 0, 500000);
    check_rope(2, 32, 192, 2, 0, 0, 500000);
}

/* All angles that a million positions make with frequency 1, and steps between. */
static void test_rope_angles(void **state)
{
    enum { ROWS = 512 };
    static uint64_t pos[ROWS];
    static float    x[2 * 4 * ROWS], got[2 * 4 * ROWS];
    const float     freqs[4] = {1.0f, 0.7310586f, 3.1415927f, 16.0f};
    const rope_case j = {.p = {.x = x, .freqs = freqs, .pos = pos, .row_stride = 8, .n_rows = ROWS, .n_heads = 1, .width = 8,
                               .n_rotated = 8},
                         .n = 8 * ROWS};

    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        pos[i] = i < 256 ? i : prng() % 1100000;
    for (size_t i = 0; i < 8 * ROWS; i++)
        x[i] = i % 2 ? 0.0f : 1.0f;
    run_rope(&j, got);
    CPU(rope, &j.p);
    assert_same(got, x, 8 * ROWS, "angles");
}

/* ---------------------------------------------------------------- mix */

typedef struct mix_case {
    kvi_mix_params p;
    size_t         off;
} mix_case;

static size_t mix_row(const kvi_mix_params *p) { return (size_t)(2 + p->copies) * p->copies; }

/* out: pre, post, comb of all rows */
static void run_mix(const void *arg, void *out)
{
    const mix_case *j = arg;
    kvi_mix_params  p = j->p;
    const size_t    n = p.n_rows, m = p.copies, row = mix_row(&p);
    float          *to = out;

    p.h = sent(p.h, n * m * p.width, j->off);
    p.proj = sent(p.proj, n * row, j->off);
    p.base = sent(p.base, row, 0);
    p.pre = sent(NULL, n * m, 0);
    p.post = sent(NULL, n * m, 4);
    p.comb = sent(NULL, n * m * m, j->off);
    GPU(mix, &p);
    from_device(to, p.pre, n * m * sizeof *to);
    from_device(to + n * m, p.post, n * m * sizeof *to);
    from_device(to + 2 * n * m, p.comb, n * m * m * sizeof *to);
    device_free_all();
}

static void check_mix(uint32_t copies, uint32_t width, size_t n_rows, uint32_t n_iters, bool exact, bool bad)
{
    const size_t m = copies, row = (2 + m) * m, n = n_rows * row;
    float       *h = exact ? eighths(n_rows * m * width) : some(n_rows * m * width, 1.0f);
    float       *proj = some(n, 2.0f), *base = some(row, 0.3f);
    float       *want = calloc(n + 1, sizeof *want), *got = calloc(n + 1, sizeof *got);
    mix_case     j = {.p = {.h = h, .proj = proj, .base = base, .n_rows = n_rows, .copies = copies, .width = width, .n_iters = n_iters,
                            .scale = {0.9f, 1.1f, 1.3f}, .norm_eps = 1e-20f, .eps = 1e-6f},
                      .off = 4 * (width % 4)};
    kvi_mix_params p = j.p;

    if (bad) {
        h[n_rows * m * width / 2] = NAN;
        spoil(proj, n);
    }
    p.pre = want;
    p.post = want + n_rows * m;
    p.comb = want + 2 * n_rows * m;
    CPU(mix, &p);
    gpu_run(run_mix, &j, got, n * sizeof *got);
    if (exact || bad)
        assert_same(got, want, n, "mix");
    else {
        /* r: two sums of squares with at most N / 2048 + 16 and N / 16 + 6 roundings on a term, half of them after the root; three
         * more on either side. An argument |x| < 6 (2 x 1.3 r + 0.3, r < 2): 5.2 of it move with r; four roundings on both
         * sides. In the logarithm an element of C moves by no more than eps' = 4 moves of an argument after the softmax; then it is
         * that times u_j v_k, and every one of the t = 2 n_iters - 1 divisions takes u or v along by at most eps' and its own
         * roundings, (m + 3) u here and there: 2 t + 1 of these sums at most. */
        const double size = (double)(m * width), r = ((size / 2048 + 16 + size / 16 + 6) / 2 + 6) * U;
        const double move = 5.2 * r + 8 * 6 * U, step = 4 * move + 2 * (double)(m + 3) * U;

        for (size_t i = 0; i < n; i++)
            if (i < 2 * n_rows * m) /* the slope of a sigmoid is 1/4, times 2; half an ulp and two roundings */
                assert_within(got[i], (double)want[i], move / 2 + 8 * U);
            else
                assert_within(got[i], (double)want[i], (double)want[i] * 1.02 * (4.0 * n_iters + 1) * step);
    }
    free(h);
    free(proj);
    free(base);
    free(want);
    free(got);
}

static void test_mix(void **state)
{
    (void)state;
    for (uint32_t copies = 1; copies <= 8; copies++) {
        check_mix(copies, 10 + copies, 3, 20, true, false);
        check_mix(copies, 65 + copies, 2, 3, false, false);
        check_mix(copies, 12, 9, 4, true, true);
    }
    check_mix(4, 16, 1, 1, true, false);
    check_mix(4, 16, 3, 0, true, false);
    check_mix(4, 1, 2, 20, true, false);
    check_mix(4, 512, 2, 20, true, false);
    check_mix(4, 515, 2, 20, true, false);
    check_mix(4, 5120, 1, 20, true, false);
    check_mix(4, 2049, 2, 2, true, false);
    check_mix(2, 2000, 3, 3, true, false);
    check_mix(4, 300, 40, 20, true, false);
    check_mix(4, 8, 0, 20, true, false);
    check_mix(4, 600, 2, 20, false, false);
    check_mix(4, 60, 7, 20, false, false);
}

/* ---------------------------------------------------------------- collapse, expand */

typedef struct stream_case {
    size_t       n_rows, off;
    uint32_t     copies, width;
    const float *h, *pre, *comb, *y;
} stream_case;

static void run_collapse(const void *arg, void *out)
{
    const stream_case  *j = arg;
    const size_t        n = j->n_rows, m = j->copies;
    kvi_collapse_params p = {.h = sent(j->h, n * m * j->width, j->off), .pre = sent(j->pre, n * m, 0),
                             .y = sent(NULL, n * j->width, j->off), .n_rows = n, .copies = j->copies, .width = j->width};

    GPU(collapse, &p);
    from_device(out, p.y, n * j->width * sizeof *p.y);
    device_free_all();
}

static void run_expand(const void *arg, void *out)
{
    const stream_case *j = arg;
    const size_t       n = j->n_rows, m = j->copies;
    kvi_expand_params  p = {.h = sent(j->h, n * m * j->width, j->off), .y = sent(j->y, n * j->width, j->off),
                            .post = sent(j->pre, n * m, 0), .comb = sent(j->comb, n * m * m, 0),
                            .n_rows = n, .copies = j->copies, .width = j->width};

    GPU(expand, &p);
    from_device(out, p.h, n * m * j->width * sizeof *p.h);
    device_free_all();
}

static void check_stream(uint32_t copies, uint32_t width, size_t n_rows, size_t off)
{
    const size_t m = copies, n = n_rows * width;
    float       *h = some(m * n, 1.0f), *pre = some(n_rows * m, 1.0f), *comb = some(n_rows * m * m, 1.0f), *y = some(n, 1.0f);
    float       *want = calloc(m * n + 1, sizeof *want), *got = calloc(m * n + 1, sizeof *got);
    stream_case  j = {.n_rows = n_rows, .off = off, .copies = copies, .width = width, .h = h, .pre = pre, .comb = comb, .y = y};

    spoil(h, m * n);
    spoil(y, n);
    kvi_collapse_params c = {.h = h, .pre = pre, .y = want, .n_rows = n_rows, .copies = copies, .width = width};
    CPU(collapse, &c);
    gpu_run(run_collapse, &j, got, n * sizeof *got);
    assert_same(got, want, n, "collapse");
    memcpy(want, h, m * n * sizeof *h);
    kvi_expand_params e = {.h = want, .y = y, .post = pre, .comb = comb, .n_rows = n_rows, .copies = copies, .width = width};
    CPU(expand, &e);
    gpu_run(run_expand, &j, got, m * n * sizeof *got);
    assert_same(got, want, m * n, "expand");
    free(h);
    free(pre);
    free(comb);
    free(y);
    free(want);
    free(got);
}

static void test_collapse_and_expand(void **state)
{
    (void)state;
    for (uint32_t copies = 1; copies <= 8; copies++) {
        check_stream(copies, 13 * copies, 3, 0);
        check_stream(copies, 64, 2, 4 * (copies % 4));
        check_stream(copies, 516, 1, 0);
    }
    check_stream(4, 1, 2, 0);
    check_stream(4, 3, 2, 0);
    check_stream(4, 512, 3, 0);
    check_stream(4, 511, 3, 4);
    check_stream(4, 513, 3, 0);
    check_stream(4, 2051, 3, 0);
    check_stream(4, 5120, 2, 0);
    check_stream(4, 36, 31, 0);
    check_stream(4, 36, 0, 0);
    check_stream(4, 0, 2, 0);
}

/* ---------------------------------------------------------------- pool_pairs */

typedef struct pool_case {
    const float *k, *gate;
    const float *head; /* NULL, or k and gate begin a row earlier */
    size_t       n_pairs, off, head_off;
    uint32_t     width;
} pool_case;

static void run_pool(const void *arg, void *out)
{
    const pool_case      *j = arg;
    const size_t          n = j->n_pairs * j->width, n_in = 2 * n - (j->head && n ? j->width : 0);
    kvi_pool_pairs_params p = {.k = sent(j->k, n_in, j->off), .gate = sent(j->gate, n_in, 0), .out = sent(NULL, n, j->off),
                               .n_pairs = j->n_pairs, .width = j->width};

    if (j->head)
        p.head = sent(j->head, 2 * (size_t)j->width, j->head_off);

    GPU(pool_pairs, &p);
    from_device(out, p.out, n * sizeof *p.out);
    device_free_all();
}

static void check_pool(uint32_t width, size_t n_pairs, size_t off, float size)
{
    const size_t n = n_pairs * width;
    float       *k = some(2 * n, 1.0f), *gate = some(2 * n, size);
    float       *want = calloc(n + 1, sizeof *want), *got = calloc(n + 1, sizeof *got);
    pool_case    j = {.k = k, .gate = gate, .n_pairs = n_pairs, .off = off, .width = width};

    spoil(k, 2 * n);
    spoil(gate, 2 * n);
    for (size_t i = 0; i + width < 2 * n; i += 7) /* equal gates, most of them of one pair */
        gate[i] = gate[i + width];
    kvi_pool_pairs_params p = {.k = k, .gate = gate, .out = want, .n_pairs = n_pairs, .width = width};
    CPU(pool_pairs, &p);
    gpu_run(run_pool, &j, got, n * sizeof *got);
    assert_same(got, want, n, "pool_pairs");
    if (n_pairs) { /* the same rows, the first of them as a head */
        float *head = some(2 * (size_t)width, 0.0f);

        memcpy(head, k, width * sizeof *k);
        memcpy(head + width, gate, width * sizeof *gate);
        p.head = j.head = head;
        p.k = j.k = k + width;
        p.gate = j.gate = gate + width;
        j.head_off = 4 * (n_pairs % 4);
        gpu_run(run_pool, &j, got, n * sizeof *got);
        assert_same(got, want, n, "pool_pairs of a head");
        memset(want, 0, n * sizeof *want);
        CPU(pool_pairs, &p);
        assert_same(got, want, n, "pool_pairs of a head and the CPU's");
        free(head);
    }
    free(k);
    free(gate);
    free(want);
    free(got);
}

static void test_pool_pairs(void **state)
{
    static const uint32_t widths[] = {1, 2, 3, 4, 31, 32, 33, 64, 127, 128, 256, 511, 512, 513, 576, 1000, 1024, 2047, 2052};

    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        check_pool(widths[i], 1, 0, 3.0f);
        check_pool(widths[i], 5, 4 * (i % 4), i % 2 ? 120.0f : 1.0f);
    }
    check_pool(8, 0, 0, 1.0f);
    check_pool(8, 300, 0, 1.0f);
}

/* Both gates anything that there is. */
static void test_pool_special_gates(void **state)
{
    static const float v[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 0.0f, -0.0f, 1.0f, -88.0f, -104.0f, 0x1p-149f};
    enum { N = 11 };
    static float k[2 * N * N], gate[2 * N * N], want[N * N], got[N * N];
    pool_case    j = {.k = k, .gate = gate, .n_pairs = 1, .width = N * N};

    (void)state;
    for (size_t i = 0; i < N * N; i++) {
        gate[i] = v[i / N];
        gate[N * N + i] = v[i % N];
        k[i] = 1.5f;
        k[N * N + i] = -0.75f;
    }
    kvi_pool_pairs_params p = {.k = k, .gate = gate, .out = want, .n_pairs = 1, .width = N * N};
    CPU(pool_pairs, &p);
    gpu_run(run_pool, &j, got, sizeof got);
    assert_same(got, want, N * N, "gates");
}

/* ---------------------------------------------------------------- Engram gate */

typedef struct engram_case {
    const float *h, *kv, *qk;
    size_t       n_rows, off;
    uint32_t     copies, width;
} engram_case;

static void run_engram(const void *arg, void *out)
{
    const engram_case     *j = arg;
    const size_t           row = (size_t)j->copies * j->width, n = j->n_rows * row;
    kvi_engram_gate_params p = {.h = sent(j->h, n, j->off), .kv = sent(j->kv, j->n_rows * (row + j->width), j->off),
                                .qk = sent(j->qk, row, 0), .n_rows = j->n_rows, .copies = j->copies, .width = j->width, .eps = 1e-20f};

    GPU(engram_gate, &p);
    from_device(out, p.h, n * sizeof *p.h);
    device_free_all();
}

/* How far off the gates of one copy may be, of two that sum as the CPU's portable kernels and as ours do. */
static double gate_bound(const float *h, const float *qk, const float *key, size_t n)
{
    double hh = 0, kk = 0, dot = 0, size = 0, r;
    /* Roundings on a term of a sum: n / 16 + 8 there, n / 1024 + 14 here; those of the squares count half, and 20 more for what is
     * made of them on both sides. */
    const double roundings = ((double)n / 16 + 8 + (double)n / 1024 + 14) * U;

    for (size_t i = 0; i < n; i++) {
        hh += (double)h[i] * (double)h[i];
        kk += (double)key[i] * (double)key[i];
        dot += (double)h[i] * (double)qk[i] * (double)key[i];
        size += fabs((double)h[i] * (double)qk[i] * (double)key[i]);
    }
    r = sqrt((double)n / (hh + 1e-30)) * sqrt((double)n / (kk + 1e-30)) / sqrt((double)n);
    dot = fabs(dot) * r;
    size = size * r * roundings + dot * (roundings + 20 * U);
    /* d sqrt = d / (2 sqrt) while the sign is certain; else both roots are at most sqrt(2 size) or the floor's 1e-3 away from 0. The
     * slope of the sigmoid is at most 1/4; half an ulp of it here and there. */
    if (dot > 2 * size + 2e-6)
        return size / (2 * sqrt(dot - size)) / 4 + 4 * U * (1 + sqrt(dot));
    return 2 * (sqrt(3 * size + 2e-6) + 1e-3) / 4 + 4 * U;
}

static void check_engram(uint32_t copies, uint32_t width, size_t n_rows, size_t off, bool exact)
{
    const size_t row = (size_t)copies * width, n = n_rows * row, n_kv = n_rows * (row + width);
    float       *h = exact ? eighths(n) : some(n, 1.0f), *kv = exact ? eighths(n_kv) : some(n_kv, 1.0f);
    float       *qk = exact ? eighths(row) : some(row, 2.0f);
    float       *want = calloc(n + 1, sizeof *want), *got = calloc(n + 1, sizeof *got);
    engram_case  j = {.h = h, .kv = kv, .qk = qk, .n_rows = n_rows, .off = off, .copies = copies, .width = width};

    memcpy(want, h, n * sizeof *h);
    kvi_engram_gate_params p = {.h = want, .kv = kv, .qk = qk, .n_rows = n_rows, .copies = copies, .width = width, .eps = 1e-20f};
    CPU(engram_gate, &p);
    gpu_run(run_engram, &j, got, n * sizeof *got);
    if (exact)
        assert_same(got, want, n, "engram");
    for (size_t r = 0; r < n_rows && !exact; r++)
        for (size_t c = 0; c < copies; c++) {
            const float *keys = kv + r * (row + width), *value = keys + row;
            const size_t at = r * row + c * width;
            const double bound = gate_bound(h + at, qk + c * width, keys + c * width, width);

            for (size_t i = 0; i < width; i++)
                assert_within(got[at + i], (double)want[at + i],
                              fabs((double)value[i]) * bound + 3 * U * (fabs((double)h[at + i]) + fabs((double)value[i])));
        }
    free(h);
    free(kv);
    free(qk);
    free(want);
    free(got);
}

static void test_engram(void **state)
{
    (void)state;
    for (uint32_t copies = 1; copies <= 8; copies++) {
        check_engram(copies, 5 + 9 * copies, 3, 4 * (copies % 4), true);
        check_engram(copies, 5 + 9 * copies, 2, 0, false);
    }
    check_engram(17, 20, 2, 0, true);
    check_engram(4, 1, 2, 0, true);
    check_engram(4, 1024, 2, 0, true);
    check_engram(4, 1024, 2, 0, false);
    check_engram(4, 3072 + 33, 1, 0, true);
    check_engram(4, 5120, 1, 0, true);
    check_engram(1, 8192, 1, 0, true);
    check_engram(1, 8195, 2, 0, true); /* more than the registers hold */
    check_engram(2, 16384, 1, 0, true);
    check_engram(4, 64, 0, 0, true);
    check_engram(2, 64, 40, 0, false);
}

/* The sign of the dot product, its floor, and what is no number. */
static void test_engram_special_values(void **state)
{
    static const float qks[8] = {0.0f, -0.0f, 1e-9f, -1e-9f, NAN, INFINITY, -INFINITY, -1e-44f};
    static float       h[8 * 20], kv[9 * 20], qk[8 * 20], want[8 * 20], got[8 * 20];
    const engram_case  j = {.h = h, .kv = kv, .qk = qk, .n_rows = 1, .copies = 8, .width = 20};

    (void)state;
    for (size_t i = 0; i < 9 * 20; i++)
        kv[i] = 1.0f;
    for (size_t i = 0; i < 8 * 20; i++) {
        want[i] = h[i] = 1.0f;
        qk[i] = i % 20 ? 0.0f : qks[i / 20]; /* one term: sums are exact */
    }
    kvi_engram_gate_params p = {.h = want, .kv = kv, .qk = qk, .n_rows = 1, .copies = 8, .width = 20, .eps = 1e-20f};
    CPU(engram_gate, &p);
    gpu_run(run_engram, &j, got, sizeof got);
    assert_same(got, want, 8 * 20, "values");
}

/* ---------------------------------------------------------------- batch invariance, refusals */

/* Sums whose order shows: a row alone has the bits that it has among others. */
static void test_batch_invariance(void **state)
{
    enum { M = 4, W = 700, ROWS = 3, ROW = M * W, MIX = (2 + M) * M };
    float *h = some(ROWS * ROW, 1.0f), *kv = some(ROWS * (ROW + W), 1.0f), *qk = some(ROW, 1.0f), *proj = some(ROWS * MIX, 1.0f);
    float *all = calloc(ROWS * ROW, sizeof *all), *one = calloc(ROW, sizeof *one), *base = some(MIX, 0.3f);

    (void)state;
    run_engram(&(engram_case){.h = h, .kv = kv, .qk = qk, .n_rows = ROWS, .copies = M, .width = W}, all);
    for (size_t i = 0; i < ROWS; i++) {
        run_engram(&(engram_case){.h = h + i * ROW, .kv = kv + i * (ROW + W), .qk = qk, .n_rows = 1, .copies = M, .width = W,
                                   .off = 4 * i}, one);
        assert_memory_equal(one, all + i * ROW, ROW * sizeof *one);
    }
    for (size_t i = 0; i <= ROWS; i++) { /* the last is all of them */
        const size_t n = i < ROWS ? 1 : ROWS, first = i < ROWS ? i : 0;
        mix_case     j = {.p = {.h = h + first * ROW, .proj = proj + first * MIX, .base = base, .n_rows = n, .copies = M, .width = W,
                                .n_iters = 20, .scale = {1.0f, 1.0f, 1.0f}, .norm_eps = 1e-20f, .eps = 1e-6f},
                          .off = 4 * (i % 4)};

        run_mix(&j, i < ROWS ? one + i * MIX : all);
    }
    for (size_t i = 0; i < ROWS; i++) {
        assert_memory_equal(one + i * MIX, all + i * M, M * sizeof *one);
        assert_memory_equal(one + i * MIX + M, all + (ROWS + i) * M, M * sizeof *one);
        assert_memory_equal(one + i * MIX + 2 * M, all + 2 * ROWS * M + i * M * M, M * M * sizeof *one);
    }
    free(h);
    free(kv);
    free(qk);
    free(proj);
    free(all);
    free(one);
    free(base);
}

static void test_refusals(void **state)
{
    const uint32_t         flag = KVI_OP_ROUND_BF16;
    kvcsa_error            err = {0};
    kvi_rope_params        rope = {.n_rows = 1, .n_heads = 1, .width = 8, .n_rotated = 8, .flags = flag};
    kvi_collapse_params    collapse = {.n_rows = 1, .copies = 4, .width = 8, .flags = flag};
    kvi_expand_params      expand = {.n_rows = 1, .copies = 4, .width = 8, .flags = flag};
    kvi_pool_pairs_params  pool = {.n_pairs = 1, .width = 8, .flags = flag};
    kvi_engram_gate_params gate = {.n_rows = 1, .copies = 4, .width = 8, .flags = flag};
    kvi_mix_params         mix = {.n_rows = 1, .copies = 9, .width = 8};

    (void)state;
    assert_refused(gpu_ops->rope(gpu, &rope, &err), &err, "reference mode");
    assert_refused(gpu_ops->collapse(gpu, &collapse, &err), &err, "reference mode");
    assert_refused(gpu_ops->expand(gpu, &expand, &err), &err, "reference mode");
    assert_refused(gpu_ops->pool_pairs(gpu, &pool, &err), &err, "reference mode");
    assert_refused(gpu_ops->engram_gate(gpu, &gate, &err), &err, "reference mode");
    assert_refused(gpu_ops->mix(gpu, &mix, &err), &err, "1 to 8 copies");
    mix.copies = 0;
    assert_refused(gpu_ops->mix(gpu, &mix, &err), &err, "1 to 8 copies");
    rope.flags = 0;
    rope.n_rotated = 7;
    assert_refused(gpu_ops->rope(gpu, &rope, &err), &err, "in pairs");
    rope.n_rotated = 10;
    assert_refused(gpu_ops->rope(gpu, &rope, &err), &err, "in pairs");
    expand.flags = 0;
    expand.copies = 9;
    assert_refused(gpu_ops->expand(gpu, &expand, &err), &err, "1 to 8 copies");
    collapse.flags = 0;
    collapse.copies = 9;
    assert_refused(gpu_ops->collapse(gpu, &collapse, &err), &err, "1 to 8 copies");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_rope),
    cmocka_unit_test(test_rope_angles),
    cmocka_unit_test(test_mix),
    cmocka_unit_test(test_collapse_and_expand),
    cmocka_unit_test(test_pool_pairs),
    cmocka_unit_test(test_pool_special_gates),
    cmocka_unit_test(test_engram),
    cmocka_unit_test(test_engram_special_values),
    cmocka_unit_test(test_batch_invariance),
    cmocka_unit_test(test_refusals),
};

CUDA_MAIN(tests)
