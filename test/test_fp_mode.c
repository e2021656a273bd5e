/* Operators in threads of a host that has changed the floating-point mode: the same bits, nothing written outside, and the mode
 * is the host's again afterwards. (Whole models: test_api_cpu.) */
#include "support/fp_mode.h"
#include "support/mask_devices.h"

#include <string.h>

enum { N = 3000, K = 64, ROOM = 4096, WIDTH = 64, ROWS = 3 };

static const kvi_backend_ops *table_of(uint32_t flags)
{
    return kvi_cpu_backend(flags);
}

/* Scores of which many are subnormal: without subnormals they are all equal, and their order as integers is another one. */
static void tiny_scores(float *x, uint32_t kind)
{
    for (size_t i = 0; i < N; i++) {
        const uint32_t bits = kind == 0   ? prng() % 0x00800000u                 /* subnormals */
                              : kind == 1 ? 0x00800000u + prng() % 0x00400000u   /* the smallest normal numbers */
                                          : prng() % 0x01000000u | prng() << 31; /* both, of both signs */

        memcpy(&x[i], &bits, sizeof bits);
        if (kind == 1 && prng() % 2)
            x[i] = 0;
    }
}

static void select_with(kvi_device *dev, uint32_t flags, const float *x, int32_t *ids)
{
    const uint64_t        n = N;
    const kvi_topk_params p = {.scores = x, .n_scores = &n, .ids = ids, .scores_stride = N, .n_rows = 1, .k = K};
    kvcsa_error           err;

    memset(ids, GUARD, ROOM * sizeof *ids);
    assert_int_equal(table_of(flags)->topk(dev, &p, &err), KVCSA_OK);
    for (size_t i = K; i < ROOM; i++)
        assert_int_equal(((uint32_t *)ids)[i], 0x01010101u * GUARD);
}

static void check_selection(kvi_device *dev, uint32_t flags)
{
    static float   x[N];
    static int32_t want[ROOM], got[ROOM];

    for (uint32_t kind = 0; kind < 3; kind++) {
        tiny_scores(x, kind);
        select_with(dev, flags, x, want);
        for (size_t m = 0; m < N_FP_MODES; m++) {
            fp_mode_set(fp_modes[m]);
            select_with(dev, flags, x, got);
            const uint32_t after = fp_mode_get();
            fp_mode_set(FP_MODE_DEFAULT);
            assert_int_equal(after, fp_modes[m]);
            assert_memory_equal(got, want, sizeof got);
        }
    }
}

static void test_topk_of_subnormals_in_any_mode(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_DEVICES; t++)
        check_selection(devices[t], 0);
    for (size_t i = 0; i < n_masks; i++)
        for (size_t t = 0; t < MAX_THREADS; t++)
            check_selection(&fused[i][t], masks[i]);
}

/* Quantised rows and a product, whose roundings would be seen. */
typedef struct results {
    uint8_t rows[ROWS * (WIDTH + WIDTH / 32)];
    float   product[ROWS * WIDTH];
} results;

static void compute(kvi_device *dev, uint32_t flags, const float *x, const kvi_matrix *w, results *out)
{
    const kvi_window_write_params q = {.x = x, .rows = out->rows, .x_stride = WIDTH, .n_rows = ROWS, .width = WIDTH,
                                       .row_bytes = WIDTH + WIDTH / 32};
    const kvi_linear_params       l = {.w = w, .n_out = WIDTH, .x = x, .y = out->product, .x_stride = WIDTH, .y_stride = WIDTH,
                                       .n_rows = ROWS};
    kvcsa_error                   err;

    assert_int_equal(table_of(flags)->window_write(dev, &q, &err), KVCSA_OK);
    assert_int_equal(table_of(flags)->linear(dev, &l, &err), KVCSA_OK);
}

static void check_roundings(kvi_device *dev, uint32_t flags)
{
    float       x[ROWS * WIDTH];
    test_matrix w = matrix_new(KVI_W_F32, WIDTH, WIDTH);
    results     want, got;

    fill(x, ROWS * WIDTH, 3.0f);
    for (size_t i = 0; i < WIDTH; i++)
        x[i] *= 0x1p-130f; /* a row of subnormals */
    compute(dev, flags, x, &w.m, &want);
    for (size_t m = 0; m < N_FP_MODES; m++) {
        fp_mode_set(fp_modes[m]);
        compute(dev, flags, x, &w.m, &got);
        const uint32_t after = fp_mode_get();
        fp_mode_set(FP_MODE_DEFAULT);
        assert_int_equal(after, fp_modes[m]);
        assert_memory_equal(&got, &want, sizeof got);
    }
    matrix_free(&w);
}

static void test_roundings_in_any_mode(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_DEVICES; t++)
        check_roundings(devices[t], 0);
    for (size_t i = 0; i < n_masks; i++)
        for (size_t t = 0; t < MAX_THREADS; t++)
            check_roundings(&fused[i][t], masks[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topk_of_subnormals_in_any_mode),
        cmocka_unit_test(test_roundings_in_any_mode),
    };

    return cmocka_run_group_tests(tests, open_masks, close_masks);
}
