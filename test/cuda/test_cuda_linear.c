/* Matrix products on the device beside the CPU's. Bound of the device: cuda/smxx/product.cuh; of the CPU: support/op_check.h. */
#include "cuda/cuda_check.h"

#include <float.h>
#include <stdio.h>

typedef struct job {
    const test_matrix *w;
    const float       *x;
    size_t             n_rows, x_stride, y_stride, x_off;
    uint32_t           row0, n_out;
} job;

static kvi_matrix matrix_to_device(const test_matrix *t)
{
    const kvi_matrix m = t->m;
    const size_t     n = (size_t)m.rows * m.cols;
    const size_t     data = m.kind == KVI_W_F32 ? 4 * n : m.kind == KVI_W_BF16 ? 2 * n : m.kind == KVI_W_FP4 ? n / 2 : n;
    const size_t     scale = m.kind == KVI_W_FP8 ? (size_t)(m.rows + 31) / 32 * (m.cols / 32) : n / 32;
    kvi_matrix       d = m;

    d.data = to_device(m.data, data);
    d.scale = m.kind >= KVI_W_FP8 ? to_device_at(m.scale, scale, 3) : NULL;
    return d;
}

static void run(const void *arg, void *out)
{
    const job        *j = arg;
    const kvi_matrix  w = matrix_to_device(j->w);
    float            *y = to_device(NULL, j->n_rows * j->y_stride * sizeof *y);
    kvi_linear_params p = {.w = &w,
                           .row0 = j->row0,
                           .n_out = j->n_out,
                           .x = to_device_at(j->x, j->n_rows * j->x_stride * sizeof *j->x, j->x_off),
                           .y = y,
                           .x_stride = j->x_stride,
                           .y_stride = j->y_stride,
                           .n_rows = j->n_rows};

    GPU(linear, &p);
    from_device(out, y, j->n_rows * j->y_stride * sizeof *y);
    device_free_all();
}

static void run_cpu(const job *j, float *y)
{
    const kvi_linear_params p = {.w = &j->w->m, .row0 = j->row0, .n_out = j->n_out, .x = j->x, .y = y, .x_stride = j->x_stride,
                                 .y_stride = j->y_stride, .n_rows = j->n_rows};

    CPU(linear, &p);
}

static float *new_floats(size_t n)
{
    float *x = calloc(n + 1, sizeof *x);

    assert_non_null(x);
    return x;
}

/* ------------------------------------------------------------------ close to the CPU */

static void compare(uint32_t kind, uint32_t rows, uint32_t cols, size_t n_rows, uint32_t row0, uint32_t n_out, size_t pad, size_t off)
{
    test_matrix w = matrix_new(kind, rows, cols);
    job         j = {.w = &w, .n_rows = n_rows, .x_stride = cols + pad, .y_stride = n_out + pad, .x_off = off, .row0 = row0, .n_out = n_out};
    float      *x = new_floats(n_rows * j.x_stride);
    float      *want = new_floats(n_rows * j.y_stride), *got = new_floats(n_rows * j.y_stride);
    /* F32: one rounding per product of a chain of cols / 256 or less, then 3 + 5 + 8 additions */
    const double device = kind == KVI_W_F32 ? (cols / 256.0 + 20) * U : 0x1p-17 + 2.2 * cols * 0x1p-23 + 0x1p-20;

    j.x = x;
    fill(x, n_rows * j.x_stride, 2.0f);
    run_cpu(&j, want);
    gpu_run(run, &j, got, n_rows * j.y_stride * sizeof *got);
    for (size_t i = 0; i < n_rows; i++)
        for (size_t o = 0; o < n_out; o++) {
            double s = 0;

            for (size_t c = 0; c < cols; c++)
                s += fabs((double)x[i * j.x_stride + c] * w.values[(row0 + o) * cols + c]);
            /* weights below 2^-126 are rounded by 2^-134 */
            assert_within(got[i * j.y_stride + o], (double)want[i * j.y_stride + o],
                          (device + (cols / 16.0 + 6) * U) * s + cols * 2.0 * 0x1p-134);
        }
    free(x);
    free(want);
    free(got);
    matrix_free(&w);
}

static void test_linear_near_cpu(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        const bool     any = kinds[k] <= KVI_W_BF16;
        const uint32_t q = any ? 1 : 0;

        compare(kinds[k], 16, 64, 1, 0, 16, 0, 0);
        compare(kinds[k], 1, 32, 1, 0, 1, 0, 0);
        compare(kinds[k], 37, 128 - q, 3, 0, 37, 0, 0);
        compare(kinds[k], 50, 160, 8, 5, 33, 3, 4);  /* rows of x at odd places */
        compare(kinds[k], 17, 192 + 5 * q, 9, 1, 16, 0, 0);
        compare(kinds[k], 40, 96, 32, 0, 40, 4, 0);
        compare(kinds[k], 33, 64, 33, 0, 33, 0, 0);
        compare(kinds[k], 70, 288, 5, 2, 65, 1, 8);
    }
    compare(KVI_W_F32, 9, 1100, 9, 1, 7, 0, 0);
    compare(KVI_W_F32, 2, 3, 2, 0, 2, 0, 0);
    compare(KVI_W_BF16, 3, 1, 2, 0, 3, 0, 0);
    compare(KVI_W_FP8, 16, 2080, 2, 0, 16, 0, 0);  /* 9 segments of 256 */
    compare(KVI_W_FP4, 16, 2208, 1, 0, 16, 0, 0);
    compare(KVI_W_FP4, 130, 160, 34, 0, 130, 0, 0); /* two weight tiles */
    compare(KVI_W_FP8, 400, 32, 34, 0, 390, 0, 0);  /* four: more than y of an emulated grid */
    compare(KVI_W_F32, 70, 5, 1, 0, 70, 0, 0);
}

static void test_linear_nothing_to_do(void **state)
{
    (void)state;
    compare(KVI_W_FP8, 16, 32, 0, 0, 16, 0, 0);
    compare(KVI_W_F32, 16, 32, 2, 3, 0, 1, 0);
}

/* ------------------------------------------------------------------ exact sums: every bit */

/* Whole numbers: codes of values that are multiples of 1/2 up to 6, scales 1, 2, 4, 8; |x| <= 600, with more bits than a bf16 has; every
 * partial sum is below 2^24 halves. */
static void make_exact(test_matrix *w, uint32_t kind, uint32_t rows, uint32_t cols)
{
    static const uint8_t e4m3[8] = {0x00, 0x30, 0x38, 0x3c, 0xc0, 0xc4, 0x48, 0xcc}; /* 0 .5 1 1.5 -2 -3 4 -6 */
    const size_t         n = (size_t)rows * cols;
    uint8_t             *data, *scale;

    *w = matrix_new(kind, rows, cols);
    data = (uint8_t *)(uintptr_t)w->m.data;
    scale = (uint8_t *)(uintptr_t)w->m.scale;
    for (size_t i = 0; i < n; i++) {
        const float    v = (float)((int)(prng() % 97) - 48) * 0.5f;
        const uint32_t bits = kvi_f32_bits(v);

        if (kind == KVI_W_F32)
            memcpy(data + 4 * i, &v, 4);
        else if (kind == KVI_W_BF16)
            memcpy(data + 2 * i, (const uint8_t *)&bits + 2, 2);
        else if (kind != KVI_W_FP4)
            data[i] = e4m3[prng() % 8];
        else if (i % 2 == 0)
            data[i / 2] = (uint8_t)prng();
    }
    if (kind >= KVI_W_FP8)
        for (size_t i = 0; i < (kind == KVI_W_FP8 ? (size_t)(rows + 31) / 32 * (cols / 32) : n / 32); i++)
            scale[i] = (uint8_t)(127 + prng() % 4);
}

static void test_linear_exact_sums(void **state)
{
    static const size_t counts[] = {1, 9, 40};

    (void)state;
    for (size_t k = 0; k < N_KINDS; k++)
        for (size_t r = 0; r < sizeof counts / sizeof *counts; r++) {
            const uint32_t cols = r == 1 ? 224 : 160;
            test_matrix    w;
            job            j = {.n_rows = counts[r], .x_stride = cols, .y_stride = 70, .n_out = 70};
            float         *x = new_floats(counts[r] * cols), *want = new_floats(counts[r] * 70), *got = new_floats(counts[r] * 70);

            make_exact(&w, kinds[k], 70, cols);
            for (size_t i = 0; i < counts[r] * cols; i++)
                x[i] = (float)((int)(prng() % 1201) - 600);
            j.w = &w;
            j.x = x;
            run_cpu(&j, want);
            gpu_run(run, &j, got, counts[r] * 70 * sizeof *got);
            for (size_t i = 0; i < counts[r] * 70; i++)
                assert_true(got[i] == want[i]); /* a zero may have another sign */
            free(x);
            free(want);
            free(got);
            matrix_free(&w);
        }
}

/* ------------------------------------------------------------------ one row, any number of rows: the same bits */

static void test_linear_does_not_depend_on_rows(void **state)
{
    enum { ROWS = 41, OUT = 37 };
    static const size_t parts[][4] = {{1, 8, 9, 23}, {33, 1, 7, 0}, {32, 9, 0, 0}, {12, 12, 16, 1}};

    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        const uint32_t cols = kinds[k] == KVI_W_FP4 ? 416 : 288;
        test_matrix    w = matrix_new(kinds[k], OUT, cols);
        float         *x = new_floats(ROWS * cols), *all = new_floats(ROWS * OUT), *part = new_floats(ROWS * OUT);
        job            j = {.w = &w, .x = x, .n_rows = ROWS, .x_stride = cols, .y_stride = OUT, .n_out = OUT};

        fill(x, ROWS * cols, 1.0f);
        run(&j, all);
        j.x_off = 4; /* by the body for few rows */
        run(&j, part);
        assert_bits(part, all, ROWS * OUT);
        j.x_off = 0;
        for (size_t a = 0; a < 4; a++) {
            size_t first = 0;

            for (size_t b = 0; b < 4; b++) {
                if (parts[a][b] == 0)
                    continue;
                j.x = x + first * cols;
                j.n_rows = parts[a][b];
                run(&j, part + first * OUT);
                first += parts[a][b];
            }
            assert_bits(part, all, ROWS * OUT);
        }
        /* nor on which outputs are asked for */
        j = (job){.w = &w, .x = x, .n_rows = 3, .x_stride = cols, .y_stride = 5, .row0 = 19, .n_out = 5};
        run(&j, part);
        for (size_t i = 0; i < 3; i++)
            assert_bits(part + i * 5, all + i * OUT + 19, 5);
        free(x);
        free(all);
        free(part);
        matrix_free(&w);
    }
}

/* ------------------------------------------------------------------ NaN, infinity, extremes */

static void test_linear_hostile_numbers(void **state)
{
    enum { OUT = 12, COLS = 64 };
    static const float odd[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 3.3961e38f, 1e-45f, -0.0f, 0x1p-130f};
    static const size_t counts[] = {9, 36};

    (void)state;
    for (size_t k = 0; k < N_KINDS; k++)
        for (size_t r = 0; r < 2; r++) {
            const size_t rows = counts[r];
            test_matrix  w = matrix_new(kinds[k], OUT, COLS);
            uint8_t     *data = (uint8_t *)(uintptr_t)w.m.data;
            uint8_t     *scale = (uint8_t *)(uintptr_t)w.m.scale;
            float       *x = new_floats(rows * COLS), *want = new_floats(rows * OUT), *got = new_floats(rows * OUT);
            job          j = {.w = &w, .x = x, .n_rows = rows, .x_stride = COLS, .y_stride = OUT, .n_out = OUT};

            for (size_t i = 0; i < rows; i++)
                x[i * COLS + 7 * i % COLS] = odd[i % (sizeof odd / sizeof *odd)]; /* one in a row of zeros */
            if (kinds[k] == KVI_W_FP8 || kinds[k] == KVI_W_FP8_ROW) {
                data[5 * COLS + 40] = 0x7f;
                data[6 * COLS + 63] = 0xff;
            }
            if (kinds[k] == KVI_W_FP8_ROW || kinds[k] == KVI_W_FP4) {
                scale[7 * (COLS / 32) + 1] = 255;
                scale[8 * (COLS / 32)] = 0; /* 2^-127; less than 2^-134 would be 0, and infinity times it NaN */
                for (size_t i = 0; kinds[k] == KVI_W_FP8_ROW && i < 32; i++)
                    data[8 * COLS + i] = 0x38 | (data[8 * COLS + i] & 0x87);
                scale[9 * (COLS / 32)] = 200; /* two factors */
            }
            run_cpu(&j, want);
            gpu_run(run, &j, got, rows * OUT * sizeof *got);
            for (size_t i = 0; i < rows * OUT; i++) {
                const float a = got[i], b = want[i];

                if (isnan(a) != isnan(b) || isinf(a) != isinf(b) || (isinf(b) && a != b))
                    fail_msg("kind %u, row %zu, output %zu: %g, must be %g", kinds[k], i / OUT, i % OUT, (double)a, (double)b);
                if (isfinite(b)) { /* one product, of x off by 2^-17; what is below 2^-126 in x or w is rounded by 2^-134 */
                    const double value = fabs((double)odd[i / OUT % (sizeof odd / sizeof *odd)]);
                    const double weight = i % OUT == 9 ? 0x1p82 : 4;

                    assert_within(a, (double)b,
                                  0x1p-16 * fabs((double)b) + 0x1p-134 * ((isfinite(value) ? value : 0) + weight));
                }
            }
            free(x);
            free(want);
            free(got);
            matrix_free(&w);
        }
}

/* ------------------------------------------------------------------ the vendor's library, where it was asked for */

typedef struct heard {
    char    text[512];
    int32_t level;
} heard;

static void hear(void *user, int32_t level, const char *text)
{
    heard *h = user;

    if (!strstr(text, "cuBLASLt"))
        return;
    h->level = level;
    snprintf(h->text, sizeof h->text, "%s", text);
}

static kvi_device *open_with(uint32_t flags, heard *h, kvi_device_info *info)
{
    const kvi_host_ops      host = {.struct_size = sizeof host, .log = hear, .user = h};
    const kvi_device_params params = {.host = &host, .flags = flags};
    kvi_device             *dev = NULL;
    kvcsa_error             err = {0};

    must(gpu_ops->device_open(&params, &dev, &err), &err);
    gpu_ops->describe(dev, info);
    return dev;
}

/* 70 rows, of which parts are asked for as well. Where cuBLASLt is not there the bits are those of any device. */
static void test_linear_fast_dense(void **state)
{
    enum { ROWS = 70, OUT = 53, COLS = 296 };
    heard           h = {.text = ""}, plain_h = {.text = ""};
    kvi_device_info info, plain_info;
    kvi_device     *plain = gpu, *fast = open_with(KVI_DEVICE_FAST_DENSE, &h, &info);
    const bool      there = strstr(h.text, "makes dense products") != NULL;

    (void)state;
    printf("%s\n", h.text);
    assert_int_equal(h.level, there ? KVCSA_LOG_INFO : KVCSA_LOG_WARN);
    gpu_ops->device_close(open_with(0, &plain_h, &plain_info));
    assert_null(strstr(plain_h.text, "makes dense products"));
    assert_int_equal(plain_h.level, KVCSA_LOG_INFO);
    assert_int_equal(info.numerics != plain_info.numerics, there);
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t kind = k ? KVI_W_BF16 : KVI_W_F32;
        test_matrix    w = matrix_new(kind, OUT + 3, COLS);
        float         *x = new_floats(ROWS * COLS), *want = new_floats(ROWS * OUT), *got = new_floats(ROWS * OUT);
        job            j = {.w = &w, .x = x, .n_rows = ROWS, .x_stride = COLS, .y_stride = OUT, .row0 = 3, .n_out = OUT};

        fill(x, ROWS * COLS, 1.0f);
        run(&j, want);
        gpu = fast;
        run(&j, got);
        gpu = plain;
        for (size_t i = 0; i < ROWS * OUT; i++) {
            double s = 0;

            if (!there)
                assert_bits(got + i, want + i, 1);
            for (size_t c = 0; c < COLS; c++)
                s += fabs((double)x[i / OUT * COLS + c] * w.values[(3 + i % OUT) * COLS + c]);
            assert_within(got[i], (double)want[i], 2 * (0x1p-17 + 2.2 * COLS * 0x1p-23 + 0x1p-20) * s + COLS * 2.0 * 0x1p-134);
        }
        free(x);
        free(want);
        free(got);
        matrix_free(&w);
    }
    gpu_ops->device_close(fast);
}

static void test_linear_refuses(void **state)
{
    const uint8_t some[64] = {0};
    kvi_matrix    w = {.data = to_device(some, 64), .scale = to_device(some, 64), .kind = KVI_W_FP8, .rows = 1, .cols = 32};
    float        *x = to_device(NULL, 256), *y = to_device(NULL, 256);
    kvcsa_error   err = {0};

    (void)state;
    kvi_linear_params p = {.w = &w, .n_out = 1, .x = x, .y = y, .x_stride = 32, .y_stride = 1, .n_rows = 1, .flags = KVI_OP_ACT_QUANT};
    assert_int_equal(gpu_ops->linear(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    p.flags = 0;
    p.n_out = 2;
    assert_int_equal(gpu_ops->linear(gpu, &p, &err), KVCSA_ERR_ARG);
    p.n_out = 1;
    w.cols = 33;
    assert_int_equal(gpu_ops->linear(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    w.cols = 32;
    w.kind = KVI_W_NONE;
    assert_int_equal(gpu_ops->linear(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    w.kind = KVI_W_FP8;
    w.data += 4;
    assert_int_equal(gpu_ops->linear(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    w.data -= 4;
    w.rows = p.n_out = 0x7fffffff;
    assert_int_equal(gpu_ops->linear(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "at most"));
    device_free_all();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_linear_near_cpu),      cmocka_unit_test(test_linear_nothing_to_do),
    cmocka_unit_test(test_linear_exact_sums),    cmocka_unit_test(test_linear_does_not_depend_on_rows),
    cmocka_unit_test(test_linear_hostile_numbers), cmocka_unit_test(test_linear_fast_dense),
    cmocka_unit_test(test_linear_refuses),
};

CUDA_MAIN(tests)
