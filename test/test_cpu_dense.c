/* Dense reference operators: the table, weight rows, embed, linear, norm, rope. Bounds: see support/op_check.h. */
#include "support/dense_jobs.h"

#include "base/vec.h"
#include "format/dtype.h"

/* ------------------------------------------------------------------ table and device */

static void test_cpu_backend_table_is_complete(void **state)
{
    const kvi_backend_ops *ops = kvi_cpu_backend(0);
    const size_t           first = offsetof(kvi_backend_ops, device_open), end = offsetof(kvi_backend_ops, score);
    void                  *slot;

    (void)state;
    assert_int_equal(ops->abi, KVI_BACKEND_ABI);
    assert_int_equal(ops->struct_size, sizeof *ops);
    assert_string_equal(ops->name, "cpu");
    assert_true(ops->numerics != 0);
    assert_int_equal((end - first) / sizeof slot, 26); /* two for the device, 23 operators, what they can do */
    for (size_t at = end; at < sizeof *ops; at += sizeof slot) { /* of devices with memory of their own */
        memcpy(&slot, (const uint8_t *)ops + at, sizeof slot);
        assert_null(slot);
    }
    for (size_t at = first; at < end; at += sizeof slot) {
        memcpy(&slot, (const uint8_t *)ops + at, sizeof slot);
        if (!slot)
            fail_msg("slot at byte %zu is NULL", at);
        for (size_t other = first; other < at; other += sizeof slot)
            assert_memory_not_equal((const uint8_t *)ops + other, &slot, sizeof slot);
    }
}

static void test_cpu_backend_open_fails_clean(void **state)
{
    const kvcsa_allocator   a = metered();
    const kvi_device_params p = {.allocator = &a};
    const long              before = atomic_load(&the_meter.outstanding);
    kvi_device             *dev = devices[0];
    kvcsa_error             err;

    (void)state;
    the_meter.fail_at = atomic_load(&the_meter.calls);
    assert_int_equal(kvi_cpu_backend(0)->device_open(&p, &dev, &err), KVCSA_ERR_NOMEM);
    the_meter.fail_at = -1;
    assert_int_equal(err.status, KVCSA_ERR_NOMEM);
    assert_null(dev);
    assert_int_equal(atomic_load(&the_meter.outstanding), before);
    kvi_cpu_backend(0)->device_close(NULL);
}

/* ------------------------------------------------------------------ weights */

static void test_weight_row_golden_bytes(void **state)
{
    /* real bytes: layers.0.attn.wkv.weight row 0 of the release, specification 1.4 */
    static const uint8_t bytes[8] = {0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5};
    static const float   golden[8] = {-0.00390625f, 0.03515625f,  -0.0390625f, 0.0703125f,
                                      0.03125f,     0.017578125f, -0.03125f,   -0.0126953125f};
    uint8_t              data[32] = {0};
    const uint8_t        scale = 0x73;
    float                out[32];
    const kvi_matrix     m = {.data = data, .scale = &scale, .kind = KVI_W_FP8, .rows = 1, .cols = 32};

    (void)state;
    memcpy(data, bytes, sizeof bytes);
    kvi_ref_weight_row(&m, 0, out);
    assert_bits(out, golden, 8);
}

static void test_weight_row_fp4_low_nibble_first(void **state)
{
    uint8_t          data[16] = {0x71, 0x9a};
    const uint8_t    scale = 128; /* 2 */
    float            out[32];
    const kvi_matrix m = {.data = data, .scale = &scale, .kind = KVI_W_FP4, .rows = 1, .cols = 32};

    (void)state;
    kvi_ref_weight_row(&m, 0, out);
    assert_true(out[0] == 1.0f && out[1] == 12.0f && out[2] == -2.0f && out[3] == -1.0f && out[4] == 0.0f);
}

static void test_weight_row_every_kind(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        test_matrix t = matrix_new(kinds[k], 70, 96); /* 70: the last tile row of FP8 is partial */
        guarded     out = guarded_new(96);

        for (size_t r = 0; r < 70; r++) {
            kvi_ref_weight_row(&t.m, r, out.data);
            for (size_t c = 0; c < 96; c++) /* at most 8 significant bits x a power of two, or a float itself: exact */
                assert_true((double)out.data[c] == t.values[r * 96 + c]);
        }
        guarded_check_free(&out);
        matrix_free(&t);
    }
}

static void test_embed_gathers_rows(void **state)
{
    const uint64_t ids[5] = {3, 69, 0, 3, 32};

    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        test_matrix            t = matrix_new(kinds[k], 70, 64);
        guarded                y = guarded_new(4 * 67 + 64);
        const kvi_embed_params p = {.table = &t.m, .ids = ids, .y = y.data, .y_stride = 67, .n_rows = 5,
                                    .flags = k % 2 ? KVI_OP_ROUND_BF16 : 0};

        assert_int_equal(kvi_cpu_embed(devices[k % N_DEVICES], &p, NULL), KVCSA_OK);
        for (size_t i = 0; i < 5; i++)
            for (size_t c = 0; c < 64; c++) {
                const float v = (float)t.values[ids[i] * 64 + c];

                assert_true(y.data[i * 67 + c] == (p.flags ? kvi_round_bf16(v) : v));
            }
        for (size_t i = 0; i < 4; i++)
            assert_true(untouched(y.data + i * 67 + 64) && untouched(y.data + i * 67 + 66));
        guarded_check_free(&y);
        matrix_free(&t);
    }
}

/* ------------------------------------------------------------------ linear */

typedef struct linear_job {
    const test_matrix *w;
    const float       *x;
    size_t             x_stride;
    uint32_t           row0;
    uint32_t           n_out;
    uint32_t           flags;
} linear_job;

static void run_linear(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const linear_job       *j = job;
    const kvi_linear_params p = {.w = &j->w->m, .row0 = j->row0, .n_out = j->n_out, .x = j->x + first * j->x_stride,
                                 .y = out + first * j->n_out, .x_stride = j->x_stride, .y_stride = j->n_out, .n_rows = n,
                                 .flags = j->flags};

    assert_int_equal(kvi_cpu_linear(dev, &p, NULL), KVCSA_OK);
}

/* Every output is kvi_dot of the weight row and x, bit for bit, and near the sum in double. */
static void check_linear(uint32_t kind, uint32_t rows, uint32_t cols, uint32_t row0, uint32_t n_out, size_t n_rows)
{
    const size_t     stride = cols + 3;
    test_matrix      t = matrix_new(kind, rows, cols);
    float           *x = malloc(n_rows * stride * sizeof *x);
    float           *row = malloc(cols * sizeof *row);
    float           *y = malloc(n_rows * n_out * sizeof *y);
    const linear_job job = {.w = &t, .x = x, .x_stride = stride, .row0 = row0, .n_out = n_out};

    assert_true(x && row && y);
    fill(x, n_rows * stride, 2.0f);
    check_invariance(run_linear, &job, n_rows, n_out, y);
    for (size_t j = 0; j < n_out; j++) {
        kvi_ref_weight_row(&t.m, row0 + j, row);
        for (size_t i = 0; i < n_rows; i++) {
            double sum = 0;
            double size = 0;

            for (size_t c = 0; c < cols; c++) {
                const double product = t.values[(row0 + j) * cols + c] * (double)x[i * stride + c];

                sum += product;
                size += fabs(product);
            }
            assert_within(y[i * n_out + j], sum, ((double)cols / 16 + 7) * U * size);
            assert_true(y[i * n_out + j] == kvi_dot(x + i * stride, row, cols));
        }
    }
    free(x);
    free(row);
    free(y);
    matrix_free(&t);
}

static void test_linear_every_kind(void **state)
{
    (void)state;
    prng_seed(11);
    for (size_t k = 0; k < N_KINDS; k++) {
        check_linear(kinds[k], 37, 32, 0, 37, 1);
        check_linear(kinds[k], 70, 96, 31, 39, 5); /* ends inside the partial tile row */
        check_linear(kinds[k], 33, 160, 32, 1, 4);
        check_linear(kinds[k], 130, 192, 1, 128, 13); /* above the work of one task */
    }
}

static void test_linear_odd_widths(void **state)
{
    static const uint32_t widths[] = {1, 2, 15, 16, 17, 31, 33, 50};

    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (size_t n_rows = 1; n_rows <= 4; n_rows++) {
            check_linear(KVI_W_F32, 9, widths[i], 2, 7, n_rows);
            check_linear(KVI_W_BF16, 8, widths[i], 0, 8, n_rows);
        }
}

static void test_linear_wide_rows(void **state)
{
    (void)state;
    check_linear(KVI_W_FP8, 40, 5120, 3, 37, 4); /* a panel has its least number of rows */
    check_linear(KVI_W_BF16, 7, 5001, 0, 7, 3);
}

static void test_linear_strides_and_guards(void **state)
{
    test_matrix t = matrix_new(KVI_W_FP4, 50, 64);
    float       x[4 * 64];

    (void)state;
    fill(x, 4 * 64, 1.0f);
    for (size_t d = 0; d < N_DEVICES; d++) {
        guarded                 y = guarded_new(3 * 60 + 50);
        const kvi_linear_params p = {.w = &t.m, .n_out = 50, .x = x, .y = y.data, .x_stride = 64, .y_stride = 60, .n_rows = 4};

        assert_int_equal(kvi_cpu_linear(devices[d], &p, NULL), KVCSA_OK);
        for (size_t i = 0; i < 3; i++)
            for (size_t j = 50; j < 60; j++)
                assert_true(untouched(y.data + i * 60 + j));
        guarded_check_free(&y);
    }
    matrix_free(&t);
}

static void test_linear_nothing_to_do(void **state)
{
    test_matrix       t = matrix_new(KVI_W_F32, 2, 2);
    float             y = 5.0f;
    kvi_linear_params p = {.w = &t.m, .n_out = 2, .x = &y, .y = &y, .x_stride = 2, .y_stride = 2};
    const long        calls = atomic_load(&the_meter.calls);

    (void)state;
    assert_int_equal(kvi_cpu_linear(devices[0], &p, NULL), KVCSA_OK);
    p.n_rows = 1;
    p.n_out = 0;
    assert_int_equal(kvi_cpu_linear(devices[0], &p, NULL), KVCSA_OK);
    assert_true(y == 5.0f);
    assert_int_equal(atomic_load(&the_meter.calls), calls);
    matrix_free(&t);
}

static void test_linear_round_bf16(void **state)
{
    test_matrix t = matrix_new(KVI_W_BF16, 40, 64);
    float       x[5 * 64];
    float       plain[5 * 40];
    float       rounded[5 * 40];
    linear_job  job = {.w = &t, .x = x, .x_stride = 64, .n_out = 40};

    (void)state;
    fill(x, 5 * 64, 1.0f);
    run_linear(&job, devices[0], 0, 5, plain);
    job.flags = KVI_OP_ROUND_BF16;
    check_invariance(run_linear, &job, 5, 40, rounded);
    round_all(plain, 5 * 40);
    assert_bits(rounded, plain, 5 * 40);
    matrix_free(&t);
}

/* Q-SWA by its definition, in double: nearest E4M3 by search over all codes, ties to the even code. */
static void quantise_group(const float *x, double out[32])
{
    double most = 1e-4f;
    int    k = -126;

    for (size_t i = 0; i < 32; i++)
        most = fmax(most, fabs((double)kvi_round_bf16(x[i])));
    most = (float)most * (1.0f / 448.0f);
    while (ldexp(1.0, k) < most)
        k++;
    for (size_t i = 0; i < 32; i++) {
        const double q = fabs(ldexp((double)kvi_round_bf16(x[i]), -k));
        unsigned     best = 0;

        for (unsigned code = 1; code < 127; code++) {
            const double nearer = fabs(e4m3_exact((uint8_t)code) - q) - fabs(e4m3_exact((uint8_t)best) - q);

            if (nearer < 0 || (nearer == 0 && code % 2 == 0))
                best = code;
        }
        out[i] = copysign(ldexp(e4m3_exact((uint8_t)best), k), (double)x[i]);
    }
}

static void test_act_quant_definition(void **state)
{
    float  x[96];
    float  q[96];
    double wanted[32];

    (void)state;
    for (int round = 0; round < 50; round++) {
        fill(x, 96, ldexpf(1.0f, round % 12 - 6));
        x[40] = x[41] = 0.0f;
        kvi_ref_act_quant(x, 96, q);
        for (size_t g = 0; g < 96; g += 32) {
            quantise_group(x + g, wanted);
            for (size_t i = 0; i < 32; i++)
                assert_true((double)q[g + i] == wanted[i]);
        }
        kvi_ref_act_quant(x, 96, x); /* in place */
        assert_bits(x, q, 96);
    }
    x[33] = NAN;
    kvi_ref_act_quant(x, 96, q);
    for (size_t i = 0; i < 96; i++) /* the group, and no other */
        assert_int_equal(isnan(q[i]) != 0, i >= 32 && i < 64);
}

static void test_linear_act_quant(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        test_matrix t = matrix_new(kinds[k], 40, 96);
        float       x[7 * 100];
        float       q[7 * 100] = {0};
        float       plain[7 * 40];
        float       y[7 * 40];
        linear_job  job = {.w = &t, .x = x, .x_stride = 100, .n_out = 40, .flags = KVI_OP_ACT_QUANT};

        fill(x, 7 * 100, 3.0f);
        for (size_t i = 0; i < 7; i++)
            kvi_ref_act_quant(x + i * 100, 96, q + i * 100);
        check_invariance(run_linear, &job, 7, 40, y);
        job.flags = 0;
        job.x = kinds[k] >= KVI_W_FP8 ? q : x; /* F32 and BF16 take x as it is */
        run_linear(&job, devices[0], 0, 7, plain);
        assert_bits(y, plain, 7 * 40);
        matrix_free(&t);
    }
}

/* ------------------------------------------------------------------ norm */

static void check_norm(uint32_t width, size_t n_rows, float size)
{
    const size_t stride = width + 3;
    float       *x = malloc(n_rows * stride * sizeof *x);
    float       *w = malloc(width * sizeof *w);
    float       *y = malloc(n_rows * width * sizeof *y);
    norm_job     job = {.x = x, .weight = w, .width = width};

    assert_true(x && w && y);
    fill(x, n_rows * stride, size);
    fill(w, width, 1.0f);
    check_invariance(run_norm, &job, n_rows, width, y);
    for (size_t i = 0; i < n_rows; i++)
        assert_norm_exact(&job, i, y + i * width);
    {
        float *rounded = malloc(n_rows * width * sizeof *rounded);

        assert_non_null(rounded);
        job.flags = KVI_OP_ROUND_BF16;
        check_invariance(run_norm, &job, n_rows, width, rounded);
        round_all(y, n_rows * width);
        assert_bits(rounded, y, n_rows * width);
        free(rounded);
    }
    free(x);
    free(w);
    free(y);
}

static void test_norm_formula(void **state)
{
    (void)state;
    check_norm(1, 3, 1.0f);
    check_norm(7, 5, 1.0f);
    check_norm(192, 40, 100.0f);
    check_norm(5120, 41, 0.01f);
    check_norm(64, 4, 1e-9f);  /* mean square 1e-18: eps must not be 1e-6 */
    check_norm(64, 4, 1e-11f); /* eps rules */
}

static void test_norm_in_place_and_zero(void **state)
{
    float           x[48] = {0};
    float           y[48];
    float           w[16];
    kvi_norm_params p = {.x = x, .y = y, .weight = w, .x_stride = 16, .y_stride = 16, .n_rows = 3, .width = 16, .eps = 1e-20f};

    (void)state;
    fill(w, 16, 1.0f);
    fill(x, 32, 1.0f);
    assert_int_equal(kvi_cpu_norm(devices[1], &p, NULL), KVCSA_OK);
    for (size_t c = 32; c < 48; c++)
        assert_true(y[c] == 0.0f);
    p.y = x;
    assert_int_equal(kvi_cpu_norm(devices[2], &p, NULL), KVCSA_OK);
    assert_bits(x, y, 48);
}

/* ------------------------------------------------------------------ rope */

/* Against libm in double at the float angle: sine and cosine within 0.51 ulp (1.02 u), product u, sum u: 4 u (|a| + |b|). */
static void check_rope(uint32_t n_heads, uint32_t width, uint32_t n_rotated, uint32_t inverse)
{
    static const uint64_t pos[6] = {0, 1, 77, 65536, 1048575, 3};
    const size_t          row = (size_t)n_heads * width;
    float                *x = malloc(6 * row * sizeof *x);
    float                *y = malloc(6 * row * sizeof *y);
    float                *rounded = malloc(6 * row * sizeof *rounded);
    float                *freqs = malloc(n_rotated / 2 * sizeof *freqs);
    rope_job              job = {.x = x, .freqs = freqs, .pos = pos, .n_heads = n_heads, .width = width, .n_rotated = n_rotated,
                                 .inverse = inverse};

    assert_true(x && y && rounded && freqs);
    fill(x, 6 * row, 1.0f);
    for (size_t i = 0; i < n_rotated / 2; i++)
        freqs[i] = (float)pow(10000.0, -2.0 * (double)i / n_rotated);
    check_invariance(run_rope, &job, 6, row, y);
    for (size_t i = 0; i < 6 * n_heads; i++) {
        const float *a = x + i * width;
        const float *b = y + i * width;
        const size_t plain = width - n_rotated;

        assert_bits(a, b, plain);
        for (size_t c = 0; c < n_rotated / 2; c++) {
            const float  angle = (float)pos[i / n_heads] * freqs[c];
            const double s = inverse ? -sin((double)angle) : sin((double)angle);
            const double re = (double)a[plain + 2 * c];
            const double im = (double)a[plain + 2 * c + 1];
            const double bound = 4 * U * (fabs(re) + fabs(im));

            assert_within(b[plain + 2 * c], re * cos((double)angle) - im * s, bound);
            assert_within(b[plain + 2 * c + 1], re * s + im * cos((double)angle), bound);
        }
    }
    job.flags = KVI_OP_ROUND_BF16; /* all channels, rotated or not */
    check_invariance(run_rope, &job, 6, row, rounded);
    round_all(y, 6 * row);
    assert_bits(rounded, y, 6 * row);
    free(x);
    free(y);
    free(rounded);
    free(freqs);
}

static void test_rope_rotates_pairs(void **state)
{
    (void)state;
    check_rope(1, 16, 16, 0);
    check_rope(3, 64, 16, 0);
    check_rope(3, 64, 16, 1);
    check_rope(5, 200, 196, 0); /* more pairs than are held at once */
    check_rope(64, 512, 64, 1);
}

static void test_rope_keeps_the_gap_between_rows(void **state)
{
    static const uint64_t pos[2] = {5, 6};
    const float           freqs[2] = {1.0f, 0.5f};
    guarded               x = guarded_new(9 + 8);
    const kvi_rope_params p = {.x = x.data, .freqs = freqs, .pos = pos, .row_stride = 9, .n_rows = 2, .n_heads = 2, .width = 4,
                               .n_rotated = 4, .flags = KVI_OP_ROUND_BF16};

    (void)state;
    fill(x.data, 8, 1.0f);
    fill(x.data + 9, 8, 1.0f);
    assert_int_equal(kvi_cpu_rope(devices[0], &p, NULL), KVCSA_OK);
    assert_true(untouched(x.data + 8));
    guarded_check_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_backend_table_is_complete),
        cmocka_unit_test(test_cpu_backend_open_fails_clean),
        cmocka_unit_test(test_weight_row_golden_bytes),
        cmocka_unit_test(test_weight_row_fp4_low_nibble_first),
        cmocka_unit_test(test_weight_row_every_kind),
        cmocka_unit_test(test_embed_gathers_rows),
        cmocka_unit_test(test_linear_every_kind),
        cmocka_unit_test(test_linear_odd_widths),
        cmocka_unit_test(test_linear_wide_rows),
        cmocka_unit_test(test_linear_strides_and_guards),
        cmocka_unit_test(test_linear_nothing_to_do),
        cmocka_unit_test(test_linear_round_bf16),
        cmocka_unit_test(test_act_quant_definition),
        cmocka_unit_test(test_linear_act_quant),
        cmocka_unit_test(test_norm_formula),
        cmocka_unit_test(test_norm_in_place_and_zero),
        cmocka_unit_test(test_rope_rotates_pairs),
        cmocka_unit_test(test_rope_keeps_the_gap_between_rows),
    };

    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
