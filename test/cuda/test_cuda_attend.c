/* Sparse attention on the device beside the portable CPU's, and beside an oracle in double that rounds q and keys to bf16 as
 * the device does. The bounds are those of cuda/smxx/attend.cuh. */
#include "cuda/attend_scene.h"

enum { FP4 = KVCSA_FORMAT_FP4_E4M3_G16 };

static void test_shapes(void **state)
{
    static const shape shapes[] = {
        /* rows, heads, width, window, k, format, page rows, first, in chunk, floor, off */
        {1, 1, 32, 1, 0, FP4, 1, 0, 0, 0, 0},
        {1, 4, 96, 16, 8, FP4, 16, 0, 0, 0, 0},
        {5, 4, 96, 16, 8, FP4, 16, 40, 3, 0, 24},       /* T1, from the ring and the chunk */
        {3, 4, 96, 16, 8, FP4, 7, 9, 0, 0, 33},         /* slots behind pos */
        {2, 3, 64, 8, 5, FP4, 3, 100, 2, 97, 0},        /* floor */
        {2, 2, 32, 64, 64, FP4, 64, 200, 0, 0, 0},
        {1, 2, 32, 65, 63, FP4, 13, 200, 0, 0, 1},
        {1, 17, 64, 31, 33, FP4, 16, 64, 0, 0, 0},      /* a second group of heads */
        {1, 33, 32, 10, 10, FP4, 16, 64, 0, 0, 0},
        {1, 2, 160, 0, 40, FP4, 16, 64, 0, 0, 0},       /* entries alone */
        {1, 2, 480, 40, 0, FP4, 16, 64, 0, 0, 0},       /* window alone */
        {2, 2, 32, 128, 193, FP4, 32, 300, 0, 0, 0},    /* a slot more than a split */
        {1, 3, 64, 100, 900, FP4, 32, 300, 0, 0, 0},    /* four splits */
        {1, 2, 64, 3, 30, KVCSA_FORMAT_FP4_E8M0_G32, 4, 9, 0, 0, 2},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_FP8_E8M0_G32, 4, 9, 0, 0, 0},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_F32, 4, 9, 0, 0, 1},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_F16, 4, 9, 0, 0, 0},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_BF16, 4, 9, 0, 0, 0},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_FP4_AS_F32, 4, 9, 0, 0, 0},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_Q8_0, 4, 9, 0, 0, 0},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_Q4_0, 4, 9, 0, 0, 5},
        {1, 2, 96, 3, 30, KVCSA_FORMAT_INT3_F16_G32, 4, 9, 0, 0, 0},
        {1, 5, 512, 20, 30, FP4, 8, 33, 4, 0, 16},      /* the fast kernels from here on */
        {1, 16, 512, 0, 33, FP4, 8, 33, 0, 0, 0},
        {1, 2, 512, 33, 0, FP4, 8, 33, 0, 0, 64},
        {2, 33, 512, 5, 6, FP4, 8, 3, 0, 0, 0},         /* 64 heads a block */
        {1, 2, 512, 20, 30, FP4, 8, 33, 0, 0, 8},       /* not at multiples of 16 */
        {1, 2, 512, 9, 9, KVCSA_FORMAT_BF16, 8, 33, 0, 0, 0},
        {1, 129, 32, 3, 2, FP4, 8, 33, 0, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        scene c;

        scene_init(&c, &shapes[i]);
        check(&c, shapes[i].k && i % 3 != 1);
        scene_fini(&c);
    }
}

static void check_released(void)
{
    static const shape shapes[] = {{1, 64, 512, 128, 512, FP4, 16, 1000, 0, 0, 0}, {2, 64, 512, 12, 55, FP4, 16, 1000, 0, 0, 0}};

    for (size_t i = 0; i < 2; i++) {
        scene c;

        scene_init(&c, &shapes[i]);
        check(&c, i == 0);
        scene_fini(&c);
    }
}

/* Bits of a row do not depend on how many there are: few and many rows take other kernels. */
static void check_rows_alone(void)
{
    static const shape shapes[] = {{3, 64, 512, 30, 35, FP4, 16, 1000, 2, 0, 0}, {2, 40, 512, 10, 330, FP4, 16, 5, 0, 0, 0}};

    for (size_t t = 0; t < 2; t++) {
        scene  c;
        size_t row;
        float *all, *one;

        scene_init(&c, &shapes[t]);
        if (t == 1) /* most tiles are empty, and the first split of some rows */
            for (size_t i = 0; i < c.s.n_rows * c.s.k; i++)
                if (i % c.s.k % 64 > 3 && i % c.s.k < 328)
                    c.ids[i] = -1;
        row = (size_t)c.s.n_heads * c.s.width;
        all = some(c.n_out * sizeof *all + c.s.n_rows * c.s.k * sizeof *all);
        one = some(row * sizeof *one + c.s.k * sizeof *one);
        run(&(job){&c, 0, c.s.n_rows, true}, all);
        for (size_t i = 0; i < c.s.n_rows; i++) {
            run(&(job){&c, i, 1, true}, one);
            assert_memory_equal(one, all + i * row, row * sizeof *one);
            assert_memory_equal(one + row, all + c.n_out + i * c.s.k, c.s.k * sizeof *one);
        }
        free(all);
        free(one);
        scene_fini(&c);
    }
}

static void test_released_shape(void **state)
{
    (void)state;
    check_released();
}

static void test_rows_alone(void **state)
{
    (void)state;
    check_rows_alone();
}

/* A device with more shared memory has larger tiles. */
static void test_large_tiles(void **state)
{
    const kvcsa_allocator a = metered();
    kvi_device_params     params = {.allocator = &a};
    kvi_device           *small = gpu;
    kvcsa_error           err = {0};

    (void)state;
    if (!emulated)
        skip();
    emu.arch(100);
    must(gpu_ops->device_open(&params, &gpu, &err), &err);
    check_released();
    check_rows_alone();
    gpu_ops->device_close(gpu);
    emu.arch(80);
    gpu = small;
}

/* With few channels and slots the bound against the rounded oracle is near: p in bf16 is all there is. */
static void test_bound_is_not_vacuous(void **state)
{
    static const shape s = {40, 4, 32, 3, 2, FP4, 4, 9, 0, 0, 0};
    scene              c;

    (void)state;
    scene_init(&c, &s);
    assert_true(check(&c, true) > 0.125);
    scene_fini(&c);
}

static void test_no_keys(void **state)
{
    static const shape shapes[] = {{9, 2, 32, 16, 4, FP4, 4, 0, 0, 8, 0},
                                   {2, 2, 512, 0, 0, FP4, 4, 5, 0, 0, 0},
                                   {2, 2, 512, 0, 700, FP4, 4, 5, 0, 0, 0}};

    (void)state;
    for (size_t t = 0; t < 3; t++) {
        scene  c;
        float *got, *want;
        job    j;

        scene_init(&c, &shapes[t]);
        if (c.ids)
            memset(c.ids, 0xff, c.s.n_rows * c.s.k * sizeof *c.ids);
        j = (job){&c, 0, c.s.n_rows, c.s.k != 0};
        got = some(out_bytes(&j));
        want = some(out_bytes(&j));
        gpu_run(run, &j, got, out_bytes(&j));
        run_cpu(&c, want, j.mass ? want + c.n_out : NULL);
        for (size_t i = 0; i < out_bytes(&j) / sizeof *got; i++)
            assert_true((got[i] == 0) == (want[i] == 0)); /* position 8 sees itself */
        for (size_t i = 0; i < (t == 0 ? 8 * 64 : c.n_out); i++)
            assert_true(got[i] == 0);
        free(got);
        free(want);
        scene_fini(&c);
    }
}

/* NaN in q makes its head NaN; in a key, all heads of the rows that see it. Nothing else. */
static void test_nan_positions(void **state)
{
    static const shape shapes[] = {{12, 2, 32, 8, 3, FP4, 4, 20, 0, 0, 0}, {3, 40, 512, 2, 30, FP4, 4, 20, 0, 0, 0},
                                   {2, 2, 64, 4, 400, FP4, 4, 20, 0, 0, 0}};

    (void)state;
    for (size_t t = 0; t < 3; t++) {
        scene    c;
        float   *got, *want;
        job      j;
        size_t   n_nan = 0, bytes;
        uint8_t *entry;

        scene_init(&c, &shapes[t]);
        c.q[c.s.width * (c.s.n_heads + 1) + 9] = NAN;                          /* row 1, head 1 */
        c.q[9] = INFINITY;
        c.chunk[c.row_bytes + c.s.width] = 255;                                /* scale of position 21 */
        c.chunk[3] = t == 1 ? 0xff : 0x7f;                                     /* an element of position 20 */
        if (t != 1)
            c.chunk[3] = 0x10;
        entry = c.blocks[1] + 3 * c.owner.main_row_bytes;                      /* entry 11 */
        entry[c.s.width / 2 + 1] = t == 0 ? 0xff : 0x7f;
        j = (job){&c, 0, c.s.n_rows, true};
        bytes = out_bytes(&j);
        got = some(bytes);
        want = some(bytes);
        gpu_run(run, &j, got, bytes);
        run_cpu(&c, want, want + c.n_out);
        for (size_t i = 0; i < bytes / sizeof *got; i++) {
            assert_int_equal(isnan(got[i]), isnan(want[i]));
            n_nan += isnan(got[i]) != 0;
        }
        assert_true(n_nan > 0 && n_nan < bytes / sizeof *got);
        free(got);
        free(want);
        scene_fini(&c);
    }
}

/* More parts than one portion of rows may leave in scratch. */
static void test_portions(void **state)
{
    static const shape s = {11, 16, 512, 0, 32000, FP4, 4, 20, 0, 0, 0};
    scene              c;
    float             *got, *want;
    size_t             row;

    (void)state;
    scene_init(&c, &(shape){11, 16, 512, 0, 1, FP4, 4, 20, 0, 0, 0});
    c.s.k = s.k;
    free(c.ids);
    c.ids = some(c.s.n_rows * c.s.k * sizeof *c.ids);
    memset(c.ids, 0xff, c.s.n_rows * c.s.k * sizeof *c.ids);
    for (size_t i = 0; i < c.s.n_rows; i++)
        for (size_t k = 0; k < 4; k++)
            c.ids[i * c.s.k + (3 * i + 7 * k + 31 * k * k) * 64] = (int32_t)(i + k);
    row = (size_t)c.s.n_heads * c.s.width;
    got = some(c.n_out * sizeof *got);
    want = some(row * sizeof *want);
    run(&(job){&c, 0, c.s.n_rows, false}, got);
    for (size_t i = 0; i < c.s.n_rows; i += 5) {
        run(&(job){&c, i, 1, false}, want);
        assert_memory_equal(got + i * row, want, row * sizeof *want);
    }
    free(got);
    free(want);
    scene_fini(&c);
}

/* ---- many timelines in one call ---- */

static void test_many_slices(void **state)
{
    static const struct {
        shape  s; /* its first position is that of the first timeline */
        size_t n, last;
        bool   mass;
    } cases[] = {
        {{1, 4, 96, 16, 8, FP4, 16, 40, 0, 0, 24}, 5, 1, false},
        {{1, 1, 32, 1, 0, FP4, 1, 0, 0, 0, 0}, 3, 1, false},
        {{1, 2, 32, 8, 8, FP4, 3, 0, 0, 0, 0}, 4, 1, true},      /* from the first position on */
        {{6, 4, 96, 16, 8, FP4, 16, 40, 0, 0, 24}, 3, 6, true},
        {{6, 3, 64, 8, 5, FP4, 3, 101, 0, 97, 0}, 4, 2, false},  /* the last is shorter */
        {{6, 1, 32, 128, 193, FP4, 32, 300, 0, 0, 0}, 2, 6, true}, /* two splits */
        {{1, 2, 160, 0, 40, FP4, 16, 64, 0, 0, 0}, 3, 1, true},
        {{1, 2, 480, 40, 0, FP4, 16, 64, 0, 0, 0}, 3, 1, false},
        {{1, 2, 96, 3, 30, KVCSA_FORMAT_INT3_F16_G32, 4, 9, 0, 0, 0}, 3, 1, false},
        {{4, 2, 32, 9, 9, KVCSA_FORMAT_BF16, 4, 9, 0, 0, 2}, 1, 4, true}, /* one timeline */
        {{1, 5, 512, 20, 30, FP4, 8, 33, 0, 0, 16}, 4, 1, true}, /* the fast kernels */
        {{6, 2, 512, 12, 33, FP4, 8, 130, 0, 0, 0}, 2, 6, false},
        {{1, 64, 512, 12, 55, FP4, 16, 1000, 0, 0, 0}, 2, 1, false}, /* 64 heads a block */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        slices a;

        slices_init(&a, &cases[i].s, cases[i].n, cases[i].last, cases[i].mass);
        check_slices(&a);
        slices_fini(&a);
    }
}

/* Scratch is for ten rows: a timeline is cut in the middle. */
static void test_many_slices_in_portions(void **state)
{
    enum { K = 32000 };
    slices a;

    (void)state;
    slices_init(&a, &(shape){6, 16, 512, 0, 1, FP4, 4, 20, 0, 0, 0}, 2, 6, false);
    for (size_t i = 0; i < a.n; i++) {
        scene *c = &a.scenes[i];

        c->s.k = K;
        free(c->ids);
        c->ids = some(c->s.n_rows * K * sizeof *c->ids);
        memset(c->ids, 0xff, c->s.n_rows * K * sizeof *c->ids);
        for (size_t j = 0; j < 4 * c->s.n_rows; j++)
            c->ids[j / 4 * K + (3 * j + 7 * i + 1) * 64] = (int32_t)(j % 20);
    }
    check_slices(&a);
    slices_fini(&a);
}

static void test_refused(void **state)
{
    kvi_kv_owner      owner = {.rows_per_block = 8, .entry_width = 64, .entry_format = 14, .main_row_bytes = 656};
    kvi_attend_params p = {.n_rows = 1, .n_heads = 1, .width = 64, .n_window = 4, .entries = {.owner = &owner}};
    kvcsa_error       err = {0};

    (void)state;
    p.width = 544;
    assert_int_equal(gpu_ops->attend(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "512"));
    p.width = 48;
    assert_int_equal(gpu_ops->attend(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    p.width = 64;
    p.flags = KVI_OP_ROUND_BF16;
    assert_int_equal(gpu_ops->attend(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    p.flags = 0;
    p.k = 1;
    assert_int_equal(gpu_ops->attend(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "14"));
    owner.entry_format = FP4;
    p.k = 1u << 25;
    assert_int_equal(gpu_ops->attend(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    p.n_rows = 0;
    p.k = 0;
    assert_int_equal(gpu_ops->attend(gpu, &p, &err), KVCSA_OK);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_shapes),
    cmocka_unit_test(test_released_shape),
    cmocka_unit_test(test_rows_alone),
    cmocka_unit_test(test_large_tiles),
    cmocka_unit_test(test_bound_is_not_vacuous),
    cmocka_unit_test(test_no_keys),
    cmocka_unit_test(test_nan_positions),
    cmocka_unit_test(test_portions),
    cmocka_unit_test(test_many_slices),
    cmocka_unit_test(test_many_slices_in_portions),
    cmocka_unit_test(test_refused),
};

CUDA_MAIN(tests)
