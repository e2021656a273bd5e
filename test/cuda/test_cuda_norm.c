/* RMS norm on the device beside the CPU's. */
#include "cuda/cuda_check.h"

#include <stdio.h>
#include <string.h>

typedef struct job {
    size_t   n_rows, x_stride, y_stride, off; /* off: bytes that all arrays are beside a 256-byte boundary */
    uint32_t width;
    float   *x, *w;
    bool     in_place; /* x_stride == y_stride */
} job;

static size_t floats(size_t n_rows, size_t stride, size_t width)
{
    return n_rows ? (n_rows - 1) * stride + width : 0;
}

static void run(const void *arg, void *out)
{
    const job      *j = arg;
    const size_t    n_x = floats(j->n_rows, j->x_stride, j->width), n_y = floats(j->n_rows, j->y_stride, j->width);
    float          *x = to_device_at(j->x, n_x * sizeof *x, j->off);
    float          *y = j->in_place ? x : to_device_at(NULL, n_y * sizeof *y, j->off);
    kvi_norm_params p = {.x = x,
                         .y = y,
                         .weight = to_device_at(j->w, j->width * sizeof *j->w, j->off),
                         .x_stride = j->x_stride,
                         .y_stride = j->y_stride,
                         .n_rows = j->n_rows,
                         .width = j->width,
                         .eps = 1e-6f};

    GPU(norm, &p);
    from_device(out, y, n_y * sizeof *y);
    device_free_all();
}

static void run_cpu(const job *j, float *out)
{
    kvi_norm_params p = {.x = j->x, .y = out, .weight = j->w, .x_stride = j->x_stride, .y_stride = j->y_stride,
                         .n_rows = j->n_rows, .width = j->width, .eps = 1e-6f};

    CPU(norm, &p);
}

/* Multiples of 1/8 up to 1: sums of up to 2^18 of their squares have no rounding, in any order. */
static void fill_eighths(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(prng() % 17) - 8) / 8;
}

/* Equal bits where neither is a NaN. */
static void assert_same_row(const float *is, const float *wanted, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(isnan(is[i]) && isnan(wanted[i])) && memcmp(is + i, wanted + i, sizeof *is) != 0)
            fail_msg("[%zu] is %a, not %a", i, (double)is[i], (double)wanted[i]);
}

static void check(uint32_t width, size_t n_rows, size_t off, bool exact, bool in_place)
{
    job    j = {.n_rows = n_rows, .x_stride = width + width % 3, .y_stride = width + (in_place ? width % 3 : 1),
                .off = off, .width = width, .in_place = in_place};
    size_t n_x = floats(n_rows, j.x_stride, width), n_y = floats(n_rows, j.y_stride, width);
    float *want = calloc(n_y + 1, sizeof *want), *got = calloc(n_y + 1, sizeof *got);

    j.x = calloc(n_x + 1, sizeof *j.x);
    j.w = calloc(width, sizeof *j.w);
    fill(j.w, width, 1.0f);
    if (exact)
        fill_eighths(j.x, n_x);
    else
        fill(j.x, n_x, 2.0f);
    run_cpu(&j, want);
    gpu_run(run, &j, got, n_y * sizeof *got);
    for (size_t i = 0; i < n_rows; i++)
        if (exact)
            assert_same_row(got + i * j.y_stride, want + i * j.y_stride, width);
        else
            /* Sums of n squares, all positive: here at most n / 128 + 12 roundings lie on a term, there n / 16 + 6; half of what
             * they make is left after the root. Three roundings on either side make r of it, two more y. */
            for (uint32_t c = 0; c < width; c++)
                assert_within(got[i * j.y_stride + c], (double)want[i * j.y_stride + c],
                              ((width / 128.0 + width / 16.0 + 18) / 2 + 10) * 1.01 * U * fabs((double)want[i * j.y_stride + c]));
    free(want);
    free(got);
    free(j.x);
    free(j.w);
}

/* Where the sum is exact, the bits are those of the CPU. */
static void test_norm_exact(void **state)
{
    static const uint32_t widths[] = {1,    2,    3,    4,    31,   32,   33,   64,   127,  128,   255,   256,  257,   512, 1000,
                                      1023, 1024, 1025, 1536, 2050, 4096, 5000, 5120, 8191, 8192, 8193, 12000, 32768,
                                      32769, 65536};

    (void)state;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        check(widths[w], 1, 0, true, false);
        check(widths[w], widths[w] > 8192 ? 2 : 6, 4 * (w % 4), true, w % 2);
    }
    check(64, 0, 0, true, false);
    check(128, 131, 0, true, true);
}

static void test_norm_near(void **state)
{
    static const uint32_t widths[] = {1, 5, 100, 512, 1024, 1027, 5120, 9001};

    (void)state;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        check(widths[w], 3, 0, false, w % 2);
}

/* A row alone, and at another address, has the bits that it has among others. */
static void test_norm_batch_invariance(void **state)
{
    static const uint32_t widths[] = {37, 1024, 5120, 8200};

    (void)state;
    for (size_t w = 0; w < 4; w++) {
        const uint32_t width = widths[w];
        job            j = {.n_rows = 3, .x_stride = width + 1, .y_stride = width, .width = width};
        float         *all = calloc(3 * width, sizeof *all), *one = calloc(width, sizeof *one);

        j.x = calloc(3 * (width + 1), sizeof *j.x);
        j.w = calloc(width, sizeof *j.w);
        fill(j.x, 3 * (width + 1), 1.0f);
        fill(j.w, width, 1.0f);
        run(&j, all);
        for (size_t i = 0; i < 3; i++) {
            job k = {.n_rows = 1, .x_stride = width, .y_stride = width, .width = width, .x = j.x + i * (width + 1), .w = j.w,
                     .off = 4 * i};

            run(&k, one);
            assert_memory_equal(one, all + i * width, width * sizeof *one);
        }
        free(all);
        free(one);
        free(j.x);
        free(j.w);
    }
}

static void test_norm_nan_and_infinity(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, 0x1p-149f, -0.0f};
    enum { WIDTH = 1030, N_BAD = 6 };
    static float x[N_BAD * WIDTH], w[WIDTH], want[N_BAD * WIDTH], got[N_BAD * WIDTH];
    const job    j = {.n_rows = N_BAD, .x_stride = WIDTH, .y_stride = WIDTH, .width = WIDTH, .x = x, .w = w};

    (void)state;
    fill_eighths(x, N_BAD * WIDTH);
    fill(w, WIDTH, 1.0f);
    for (size_t i = 0; i < N_BAD; i++)
        x[i * WIDTH + 200 * i + 1] = bad[i];
    for (size_t c = 0; c < WIDTH; c++)
        x[4 * WIDTH + c] = 0.0f;
    run_cpu(&j, want);
    gpu_run(run, &j, got, sizeof got);
    assert_same_row(got, want, N_BAD * WIDTH);
}

static void test_norm_refuses(void **state)
{
    kvcsa_error     err = {0};
    kvi_norm_params p = {.n_rows = 1, .width = 8, .flags = KVI_OP_ROUND_BF16};

    (void)state;
    assert_int_equal(gpu_ops->norm(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "reference mode"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_norm_exact),
    cmocka_unit_test(test_norm_near),
    cmocka_unit_test(test_norm_batch_invariance),
    cmocka_unit_test(test_norm_nan_and_infinity),
    cmocka_unit_test(test_norm_refuses),
};

CUDA_MAIN(tests)
