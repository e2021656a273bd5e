/* Matrix products: every instruction set of this machine against an oracle of the fused order written with fmaf, against sums in
 * double, and against the portable kernels for what is not a number. Every array ends at the end of a page. */
#include "support/mask_devices.h"

#include "format/dtype.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCK = 1024, LANES = 16, SLACK_BYTE = 0xa7 };

/* ------------------------------------------------------------------ memory in front of a page that faults */

typedef struct fence {
    uint8_t *map;
    size_t   bytes; /* of the map */
    size_t   slack; /* bytes in front of the data */
    void    *data;
} fence;

static fence fence_new(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t whole = (bytes + page - 1) / page * page;
    fence        f = {.bytes = whole + page, .slack = whole - bytes};

    f.map = mmap(NULL, f.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.map != MAP_FAILED);
    memset(f.map, SLACK_BYTE, whole);
    assert_int_equal(mprotect(f.map + whole, page, PROT_NONE), 0);
    f.data = f.map + f.slack;
    return f;
}

static void fence_free(fence *f)
{
    for (size_t i = 0; i < f->slack; i++)
        assert_int_equal(f->map[i], SLACK_BYTE);
    assert_int_equal(munmap(f->map, f->bytes), 0);
}

/* ------------------------------------------------------------------ oracle */

/* a . b as numerics revision 2 says */
static float fused_dot(const float *a, const float *b, size_t n)
{
    float sum = 0.0f;

    for (size_t k0 = 0; k0 == 0 || k0 < n; k0 += BLOCK) {
        const size_t m = n - k0 < BLOCK ? n - k0 : BLOCK;
        float        lane[LANES] = {0};

        for (size_t k = 0; k < (m + LANES - 1) / LANES * LANES; k++)
            lane[k % LANES] = k < m ? fmaf(a[k0 + k], b[k0 + k], lane[k % LANES]) : lane[k % LANES] + 0.0f;
        for (size_t half = LANES / 2; half > 0; half /= 2)
            for (size_t i = 0; i < half; i++)
                lane[i] = lane[i] + lane[i + half];
        sum = k0 == 0 ? lane[0] : sum + lane[0];
    }
    return sum;
}

typedef struct product {
    test_matrix t;
    fence       data;
    fence       scale;
    fence       x;
    float      *wanted; /* [n_rows, n_out] */
    size_t      x_stride;
    size_t      n_rows;
    uint32_t    row0;
    uint32_t    n_out;
} product;

static void oracle(product *p)
{
    const size_t cols = p->t.m.cols;
    float       *row = malloc(cols * sizeof *row + 1);
    const float *x = p->x.data;

    assert_non_null(row);
    for (size_t j = 0; j < p->n_out; j++) {
        kvi_ref_weight_row(&p->t.m, p->row0 + j, row);
        for (size_t i = 0; i < p->n_rows; i++)
            p->wanted[i * p->n_out + j] = fused_dot(x + i * p->x_stride, row, cols);
    }
    free(row);
}

static product product_new(uint32_t kind, uint32_t cols, uint32_t row0, uint32_t n_out, size_t n_rows)
{
    const uint32_t rows = row0 + n_out; /* the last row used ends at the end of a page */
    product        p = {.t = matrix_new(kind, rows, cols), .x_stride = cols + 3, .n_rows = n_rows, .row0 = row0, .n_out = n_out};
    const size_t   data = kind == KVI_W_F32    ? 4 * (size_t)rows * cols
                          : kind == KVI_W_BF16 ? 2 * (size_t)rows * cols
                          : kind == KVI_W_FP4  ? (size_t)rows * cols / 2
                                               : (size_t)rows * cols;
    const size_t   scale = p.t.m.scale ? (kind == KVI_W_FP8 ? (rows + 31) / 32 : rows) * (size_t)(cols / 32) : 0;

    p.data = fence_new(data);
    p.scale = fence_new(scale);
    p.x = fence_new(((n_rows - 1) * p.x_stride + cols) * sizeof(float));
    p.wanted = malloc(n_rows * n_out * sizeof *p.wanted);
    assert_non_null(p.wanted);
    memcpy(p.data.data, p.t.m.data, data);
    if (scale)
        memcpy(p.scale.data, p.t.m.scale, scale);
    p.t.m.data = p.data.data;
    p.t.m.scale = p.scale.data;
    fill(p.x.data, (n_rows - 1) * p.x_stride + cols, 2.0f);
    oracle(&p);
    return p;
}

static void product_free(product *p)
{
    fence_free(&p->data);
    fence_free(&p->scale);
    fence_free(&p->x);
    free(p->wanted);
    matrix_free(&p->t);
}

/* Rows first .. first + n - 1 with one device; y has gaps and ends at the end of a page. */
static void check_rows(const product *p, kvi_device *dev, size_t first, size_t n)
{
    const size_t            stride = p->n_out + 5;
    fence                   y = fence_new(((n - 1) * stride + p->n_out) * sizeof(float));
    const kvi_linear_params params = {.w = &p->t.m, .row0 = p->row0, .n_out = p->n_out,
                                      .x = (const float *)p->x.data + first * p->x_stride, .y = y.data,
                                      .x_stride = p->x_stride, .y_stride = stride, .n_rows = n};
    const float            *out = y.data;

    assert_int_equal(kvi_cpu_linear(dev, &params, NULL), KVCSA_OK);
    for (size_t i = 0; i < n; i++) {
        assert_bits(out + i * stride, p->wanted + (first + i) * p->n_out, p->n_out);
        for (size_t j = p->n_out; i + 1 < n && j < stride; j++)
            assert_int_equal(kvi_f32_bits(out[i * stride + j]), 0xa7a7a7a7u);
    }
    fence_free(&y);
}

/* Portable results lie within both bounds of the fused ones: each within (n / 16 + 7) u sum |a b| of the exact sum. */
static void check_near_exact(const product *p)
{
    const size_t cols = p->t.m.cols;
    const float *x = p->x.data;

    for (size_t i = 0; i < p->n_rows; i++)
        for (size_t j = 0; j < p->n_out; j++) {
            double sum = 0;
            double size = 0;

            for (size_t c = 0; c < cols; c++) {
                const double term = p->t.values[(p->row0 + j) * cols + c] * (double)x[i * p->x_stride + c];

                sum += term;
                size += fabs(term);
            }
            assert_within(p->wanted[i * p->n_out + j], sum, ((double)cols / 16 + 7) * U * size);
        }
}

static void check_product(uint32_t kind, uint32_t cols, uint32_t row0, uint32_t n_out, size_t n_rows)
{
    product p = product_new(kind, cols, row0, n_out, n_rows);

    check_near_exact(&p);
    for (size_t m = 0; m < n_masks; m++)
        for (size_t t = 0; t < MAX_THREADS; t++) {
            check_rows(&p, &fused[m][t], 0, n_rows);
            if (t == 0) /* batch invariance: by itself, and in two uneven parts */
                check_rows(&p, &fused[m][t], n_rows - 1, 1);
            if (n_rows >= 3) {
                check_rows(&p, &fused[m][t], 0, n_rows / 3);
                check_rows(&p, &fused[m][t], n_rows / 3, n_rows - n_rows / 3);
            }
        }
    product_free(&p);
}

/* ------------------------------------------------------------------ tests */

static void test_linear_rows_of_x(void **state)
{
    (void)state;
    prng_seed(21);
    for (size_t k = 0; k < N_KINDS; k++)
        for (size_t n = 1; n <= 14; n++)
            check_product(kinds[k], 64, (uint32_t)n % 3, 11, n);
}

static void test_linear_numbers_of_outputs(void **state)
{
    (void)state;
    prng_seed(22);
    for (size_t k = 0; k < N_KINDS; k++)
        for (uint32_t n_out = 1; n_out <= 9; n_out++) {
            check_product(kinds[k], 128, 31, n_out, 2);
            check_product(kinds[k], 64, 0, n_out, 8);
        }
}

static void test_linear_widths(void **state)
{
    static const uint32_t widths[] = {32, 96, 160, 1024, 1056, 1088, 2080, 3200};

    (void)state;
    prng_seed(23);
    for (size_t k = 0; k < N_KINDS; k++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            check_product(kinds[k], widths[i], 3, 5, 1);
            check_product(kinds[k], widths[i], 0, 6, 4);
            check_product(kinds[k], widths[i], 1, 4, 9);
        }
}

static void test_linear_odd_widths(void **state)
{
    static const uint32_t widths[] = {1, 2, 15, 16, 17, 31, 33, 48, 50, 1023, 1025, 1040, 2049};

    (void)state;
    prng_seed(24);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        check_product(KVI_W_F32, widths[i], 2, 5, 1 + i % 4);
        check_product(KVI_W_BF16, widths[i], 1, 6, 1 + i % 3);
        check_product(KVI_W_BF16, widths[i], 0, 5, 9);
    }
}

/* Several panels, more rows than stay in the second cache, and work for three threads. */
static void test_linear_large(void **state)
{
    (void)state;
    prng_seed(25);
    check_product(KVI_W_FP8, 64, 5, 140, 400);
    check_product(KVI_W_FP4, 1088, 0, 300, 16);
    check_product(KVI_W_BF16, 2112, 1, 530, 2);
    check_product(KVI_W_F32, 64, 0, 67, 259);
}

/* Every code with every scale: a product with 1 is the weight. Sums of the empty places are +0. */
static void check_codes(uint32_t kind, size_t n_rows)
{
    enum { COLS = 64, CODES = 256 };
    static uint8_t   data[CODES * COLS];
    static uint8_t   scale[CODES * COLS / 32];
    static float     x[9 * COLS];
    static float     y[9 * CODES];
    static float     row[COLS];
    const kvi_matrix w = {.data = data, .scale = scale, .kind = kind, .rows = CODES, .cols = COLS};
    kvi_linear_params p = {.w = &w, .n_out = CODES, .x = x, .y = y, .x_stride = COLS, .y_stride = CODES, .n_rows = n_rows};

    memset(data, 0, sizeof data);
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = 1.0f;
    for (size_t j = 0; j < CODES; j++)
        if (kind == KVI_W_FP4) /* one nibble of each row */
            data[j * COLS / 2 + j / 32] = (uint8_t)(j % 2 ? j / 2 % 16 << 4 : j / 2 % 16);
        else
            data[j * COLS + j * 7 % COLS] = (uint8_t)j;
    for (unsigned s = 0; s < 256; s++) {
        memset(scale, (int)s, sizeof scale);
        for (size_t m = 0; m < n_masks; m++) {
            memset(y, GUARD, sizeof y);
            assert_int_equal(kvi_cpu_linear(&fused[m][0], &p, NULL), KVCSA_OK);
            for (size_t j = 0; j < CODES; j++) {
                const size_t at = kind == KVI_W_FP4 ? 2 * (j / 32) + j % 2 : j * 7 % COLS;

                kvi_ref_weight_row(&w, j, row);
                for (size_t i = 0; i < n_rows; i++) {
                    const float is = y[i * CODES + j];

                    if (isnan(row[at]) ? !isnan(is) : is != row[at])
                        fail_msg("mask %u kind %u code %zu scale %u: %g, must be %g", masks[m], kind, j, s, (double)is,
                                 (double)row[at]);
                }
            }
        }
    }
}

static void test_linear_every_code(void **state)
{
    (void)state;
    check_codes(KVI_W_FP8, 1);
    check_codes(KVI_W_FP8, 9);
    check_codes(KVI_W_FP8_ROW, 2);
    check_codes(KVI_W_FP4, 1);
    check_codes(KVI_W_FP4, 9);
}

/* What is no number stands where the portable kernels have it, and nothing of it leaks into other outputs. */
static void test_linear_not_a_number(void **state)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, 1e-45f, -0.0f};

    (void)state;
    prng_seed(26);
    for (size_t k = 0; k < N_KINDS; k++)
        for (size_t n = 1; n <= 9; n += 4) {
            product                 p = product_new(kinds[k], 96 + 32 * (uint32_t)(k % 2), 0, 9, n);
            float                  *x = p.x.data;
            float                   y[2][9 * 9];
            const kvi_linear_params params = {.w = &p.t.m, .n_out = 9, .x = x, .y = y[0], .x_stride = p.x_stride,
                                              .y_stride = 9, .n_rows = n};

            for (size_t i = 0; i < n; i++)
                x[i * p.x_stride + i * 11 % p.t.m.cols] = odd[(i + k) % 6];
            if (kinds[k] >= KVI_W_FP8)
                ((uint8_t *)p.scale.data)[kinds[k] == KVI_W_FP8 ? 1 : 7] = 255;
            else if (kinds[k] == KVI_W_F32)
                memcpy((uint8_t *)p.data.data + 4 * p.t.m.cols, &odd[1], 4);
            oracle(&p);
            assert_int_equal(kvi_cpu_linear(devices[0], &params, NULL), KVCSA_OK);
            memcpy(y[1], y[0], sizeof y[0]);
            for (size_t m = 0; m < n_masks; m++) {
                assert_int_equal(kvi_cpu_linear(&fused[m][1], &params, NULL), KVCSA_OK);
                for (size_t i = 0; i < 9 * n; i++) {
                    assert_int_equal(isnan(y[0][i]) != 0, isnan(y[1][i]) != 0);
                    if (!isnan(y[0][i]))
                        assert_bits(&y[0][i], &p.wanted[i], 1);
                }
            }
            product_free(&p);
        }
}

/* The reference mode has portable numerics whatever the device is. */
static void test_linear_reference_mode_is_portable(void **state)
{
    (void)state;
    prng_seed(27);
    for (size_t k = 0; k < N_KINDS; k++) {
        test_matrix       t = matrix_new(kinds[k], 40, 96);
        float             x[7 * 96];
        float             y[2][7 * 40];
        kvi_linear_params p = {.w = &t.m, .n_out = 40, .x = x, .x_stride = 96, .y_stride = 40, .n_rows = 7};

        fill(x, 7 * 96, 3.0f);
        for (p.flags = 1; p.flags <= 3; p.flags++)
            for (size_t m = 0; m < n_masks; m++) {
                p.y = y[0];
                assert_int_equal(kvi_cpu_linear(devices[0], &p, NULL), KVCSA_OK);
                p.y = y[1];
                assert_int_equal(kvi_cpu_linear(&fused[m][2], &p, NULL), KVCSA_OK);
                assert_bits(y[1], y[0], 7 * 40);
            }
        matrix_free(&t);
    }
}

static void test_linear_out_of_memory(void **state)
{
    product p = product_new(KVI_W_FP8, 64, 0, 70, 20);

    (void)state;
    for (size_t m = 0; m < n_masks; m++) {
        float             y[20 * 70];
        kvi_linear_params params = {.w = &p.t.m, .n_out = 70, .x = p.x.data, .y = y, .x_stride = p.x_stride, .y_stride = 70,
                                    .n_rows = 20};
        kvcsa_error       err = {0};
        const long        before = atomic_load(&the_meter.outstanding);

        the_meter.fail_at = atomic_load(&the_meter.calls);
        assert_int_equal(kvi_cpu_linear(&fused[m][0], &params, &err), KVCSA_ERR_NOMEM);
        assert_int_equal(err.status, KVCSA_ERR_NOMEM);
        params.n_rows = 1; /* decode allocates nothing */
        the_meter.fail_at = atomic_load(&the_meter.calls);
        assert_int_equal(kvi_cpu_linear(&fused[m][0], &params, &err), KVCSA_OK);
        the_meter.fail_at = -1;
        assert_int_equal(atomic_load(&the_meter.outstanding), before);
    }
    product_free(&p);
}

static void test_embed_same_bits_everywhere(void **state)
{
    const uint64_t ids[4] = {3, 69, 0, 32};

    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        test_matrix      t = matrix_new(kinds[k], 70, 96);
        float            y[2][4 * 96];
        kvi_embed_params p = {.table = &t.m, .ids = ids, .y = y[0], .y_stride = 96, .n_rows = 4};

        assert_int_equal(kvi_cpu_embed(devices[0], &p, NULL), KVCSA_OK);
        p.y = y[1];
        for (size_t m = 0; m < n_masks; m++) {
            assert_int_equal(kvi_cpu_embed(&fused[m][1], &p, NULL), KVCSA_OK);
            assert_bits(y[1], y[0], 4 * 96);
        }
        matrix_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_rows_of_x),
        cmocka_unit_test(test_linear_numbers_of_outputs),
        cmocka_unit_test(test_linear_widths),
        cmocka_unit_test(test_linear_odd_widths),
        cmocka_unit_test(test_linear_large),
        cmocka_unit_test(test_linear_every_code),
        cmocka_unit_test(test_linear_not_a_number),
        cmocka_unit_test(test_linear_reference_mode_is_portable),
        cmocka_unit_test(test_linear_out_of_memory),
        cmocka_unit_test(test_embed_same_bits_everywhere),
    };

    return cmocka_run_group_tests(tests, open_masks, close_masks);
}
