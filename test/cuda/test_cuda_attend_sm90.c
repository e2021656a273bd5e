/* Sparse attention on Hopper (cuda/sm90): more than 32 heads of 512 channels, beside the CPU and the oracle. On the emulated
 * device, one of compute capability 9.0; on a real one whatever it is. */
#include "cuda/attend_scene.h"

enum { FP4 = KVCSA_FORMAT_FP4_E4M3_G16 };

static kvi_device *plain;

static void open_hopper(void)
{
    const kvcsa_allocator a = metered();
    kvi_device_params     params = {.allocator = &a};
    kvcsa_error           err = {0};

    plain = gpu;
    emu.arch(90);
    must(gpu_ops->device_open(&params, &gpu, &err), &err);
}

static void close_hopper(void)
{
    gpu_ops->device_close(gpu);
    emu.arch(80);
    gpu = plain;
}

static int group_open(void **state)
{
    const int rc = cuda_open(state);

    if (rc == 0 && emulated)
        open_hopper();
    return rc;
}

static int group_close(void **state)
{
    if (emulated)
        close_hopper();
    return cuda_close(state);
}

static void test_shapes(void **state)
{
    static const shape shapes[] = {
        /* rows, heads, width, window, k, format, page rows, first, in chunk, floor, off */
        {1, 64, 512, 1, 0, FP4, 1, 0, 0, 0, 0},
        {1, 33, 512, 1, 1, FP4, 1, 0, 0, 0, 0},
        {1, 64, 512, 0, 1, FP4, 8, 33, 0, 0, 0},
        {1, 33, 512, 5, 6, FP4, 8, 3, 0, 0, 0},          /* slots behind pos */
        {1, 40, 512, 33, 0, FP4, 8, 34, 0, 0, 64},       /* window alone */
        {1, 34, 512, 128, 0, FP4, 16, 200, 0, 0, 0},
        {1, 33, 512, 0, 63, FP4, 8, 33, 0, 0, 0},        /* ids alone: a slot less than a tile, */
        {1, 33, 512, 0, 64, FP4, 8, 33, 0, 0, 16},
        {1, 33, 512, 0, 65, FP4, 8, 33, 0, 0, 0},        /* and one more */
        {1, 35, 512, 3, 62, FP4, 7, 9, 2, 0, 48},        /* FP8 and FP4 in a piece */
        {1, 33, 512, 20, 30, FP4, 8, 33, 4, 0, 16},      /* from the ring and the chunk */
        {5, 33, 512, 16, 8, FP4, 16, 40, 3, 0, 32},
        {3, 33, 512, 16, 8, FP4, 7, 9, 0, 0, 0},
        {2, 33, 512, 8, 5, FP4, 3, 100, 2, 97, 0},       /* floor */
        {2, 33, 512, 64, 64, FP4, 64, 200, 0, 0, 0},
        {1, 33, 512, 65, 126, FP4, 13, 201, 0, 0, 0},    /* three tiles: each of the two is used again */
        {1, 64, 512, 0, 320, FP4, 8, 33, 0, 0, 0},       /* five, a whole split */
        {1, 33, 512, 128, 193, FP4, 32, 300, 0, 0, 0},   /* a slot more than a split */
        {1, 33, 512, 100, 900, FP4, 32, 300, 0, 0, 0},   /* four splits */
        {1, 65, 512, 10, 20, FP4, 16, 64, 0, 0, 0},      /* a second group of heads */
        {1, 100, 512, 10, 60, FP4, 16, 64, 1, 0, 0},
        {1, 128, 512, 31, 33, FP4, 16, 65, 0, 0, 0},
        {1, 129, 512, 3, 2, FP4, 8, 33, 0, 0, 0},
        {1, 64, 512, 128, 512, FP4, 16, 1000, 0, 0, 0},  /* the released model */
        {2, 33, 512, 20, 30, FP4, 8, 33, 0, 0, 8},       /* not at multiples of 16: the general kernel */
    };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        scene c;

        scene_init(&c, &shapes[i]);
        check(&c, shapes[i].k && i % 3 != 1);
        scene_fini(&c);
    }
}

/* The hot kernel has another order of sums than that of sm_80: were the bits the same, it would not be the one that ran. */
static void test_it_runs(void **state)
{
    static const shape s = {1, 33, 512, 30, 40, FP4, 8, 34, 0, 0, 0};
    scene              c;
    float             *here, *there;

    (void)state;
    if (!emulated)
        skip();
    scene_init(&c, &s);
    here = some(c.n_out * sizeof *here);
    there = some(c.n_out * sizeof *there);
    run(&(job){&c, 0, 1, false}, here);
    close_hopper();
    run(&(job){&c, 0, 1, false}, there);
    open_hopper();
    assert_memory_not_equal(here, there, c.n_out * sizeof *here);
    free(here);
    free(there);
    scene_fini(&c);
}

/* Bits of a row do not depend on the others, nor on how many heads there are in all. */
static void test_rows_alone(void **state)
{
    static const shape shapes[] = {{3, 64, 512, 30, 35, FP4, 16, 1000, 2, 0, 0}, {3, 40, 512, 10, 330, FP4, 16, 5, 0, 0, 0}};

    (void)state;
    for (size_t t = 0; t < 2; t++) {
        scene  c;
        size_t row;
        float *all, *one;

        scene_init(&c, &shapes[t]);
        if (t == 1) /* most tiles are empty, and in row 1 the first split */
            for (size_t i = 0; i < c.s.n_rows * c.s.k; i++)
                if (i / c.s.k == 1 ? i % c.s.k < 328 : i % c.s.k % 128 > 3)
                    c.ids[i] = -1;
        row = (size_t)c.s.n_heads * c.s.width;
        all = some(c.n_out * sizeof *all + c.s.n_rows * c.s.k * sizeof *all);
        one = some(row * sizeof *one + c.s.k * sizeof *one);
        gpu_run(run, &(job){&c, 0, c.s.n_rows, true}, all, (c.n_out + c.s.n_rows * c.s.k) * sizeof *all);
        for (size_t i = 0; i < c.s.n_rows; i++) {
            run(&(job){&c, i, 1, true}, one);
            assert_memory_equal(one, all + i * row, row * sizeof *one);
            assert_memory_equal(one + row, all + c.n_out + i * c.s.k, c.s.k * sizeof *one);
        }
        c.s.n_heads = 34;
        run(&(job){&c, 0, 1, false}, one);
        assert_memory_equal(one, all, 34 * c.s.width * sizeof *one);
        free(all);
        free(one);
        scene_fini(&c);
    }
}

/* With few slots the bound against the rounded oracle is near: p in bf16 is all there is. */
static void test_bound_is_not_vacuous(void **state)
{
    static const shape s = {6, 33, 512, 3, 2, FP4, 4, 9, 0, 0, 0};
    scene              c;

    (void)state;
    scene_init(&c, &s);
    for (size_t i = 0; i < c.n_out; i++)
        c.q[i] *= 0.125f;
    assert_true(check(&c, true) > 0.125);
    scene_fini(&c);
}

static void test_no_keys(void **state)
{
    static const shape shapes[] = {{2, 33, 512, 0, 0, FP4, 4, 5, 0, 0, 0},    /* no slots */
                                   {3, 40, 512, 16, 4, FP4, 4, 0, 0, 2, 0},   /* row 2 sees itself */
                                   {2, 64, 512, 0, 40, FP4, 4, 5, 0, 0, 0},
                                   {2, 33, 512, 0, 700, FP4, 4, 5, 0, 0, 0}};

    (void)state;
    for (size_t t = 0; t < 4; t++) {
        scene  c;
        float *got, *want;
        size_t zeros;
        job    j;

        scene_init(&c, &shapes[t]);
        if (c.ids)
            memset(c.ids, 0xff, c.s.n_rows * c.s.k * sizeof *c.ids);
        j = (job){&c, 0, c.s.n_rows, c.s.k != 0};
        got = some(out_bytes(&j));
        want = some(out_bytes(&j));
        gpu_run(run, &j, got, out_bytes(&j));
        run_cpu(&c, want, j.mass ? want + c.n_out : NULL);
        zeros = t == 1 ? 2 * 40 * 512 : c.n_out;
        for (size_t i = 0; i < out_bytes(&j) / sizeof *got; i++)
            assert_true((got[i] == 0) == (want[i] == 0));
        for (size_t i = 0; i < zeros; i++)
            assert_true(got[i] == 0);
        free(got);
        free(want);
        scene_fini(&c);
    }
}

/* NaN in q makes its head NaN; in a key, all heads of the rows that see it. Nothing else. */
static void test_nan_positions(void **state)
{
    static const shape shapes[] = {{3, 40, 512, 2, 30, FP4, 4, 20, 0, 0, 0}, {2, 33, 512, 4, 400, FP4, 4, 20, 0, 0, 0}};

    (void)state;
    for (size_t t = 0; t < 2; t++) {
        scene  c;
        float *got, *want;
        job    j;
        size_t n_nan = 0, bytes;

        scene_init(&c, &shapes[t]);
        c.q[c.s.width * (c.s.n_heads + 1) + 9] = NAN;                      /* row 1, head 1 */
        if (t == 0) {
            c.chunk[2 * c.row_bytes + c.s.width] = 255;                    /* scale of position 22 */
            c.blocks[1][3 * c.owner.main_row_bytes + c.s.width / 2] = 0x7f; /* entry 11 */
            for (uint32_t i = 0; i < c.s.k; i++)
                c.ids[i] = c.ids[i] == 11 ? 12 : c.ids[i];                 /* row 0 does not see it */
        }
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
    enum { K = 32000 };
    scene  c;
    float *got, *want;
    size_t row;

    (void)state;
    scene_init(&c, &(shape){6, 33, 512, 0, 1, FP4, 4, 20, 0, 0, 0});
    c.s.k = K;
    free(c.ids);
    c.ids = some(c.s.n_rows * K * sizeof *c.ids);
    memset(c.ids, 0xff, c.s.n_rows * K * sizeof *c.ids);
    for (size_t i = 0; i < c.s.n_rows; i++)
        for (size_t k = 0; k < 4; k++)
            c.ids[i * K + (3 * i + 7 * k + 31 * k * k) * 64] = (int32_t)(i + k);
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

static void test_many_slices(void **state)
{
    static const struct {
        shape  s; /* its first position is that of the first timeline */
        size_t n, last;
        bool   mass;
    } cases[] = {
        {{1, 33, 512, 20, 30, FP4, 8, 33, 0, 0, 16}, 5, 1, true},
        {{3, 33, 512, 12, 33, FP4, 8, 130, 0, 0, 0}, 3, 2, false}, /* the last is shorter */
        {{2, 33, 512, 128, 193, FP4, 32, 300, 0, 0, 0}, 2, 2, true},
        {{1, 64, 512, 12, 55, FP4, 16, 1000, 0, 0, 0}, 2, 1, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        slices a;

        slices_init(&a, &cases[i].s, cases[i].n, cases[i].last, cases[i].mass);
        check_slices(&a);
        slices_fini(&a);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_shapes),        cmocka_unit_test(test_it_runs),
    cmocka_unit_test(test_rows_alone),    cmocka_unit_test(test_bound_is_not_vacuous),
    cmocka_unit_test(test_no_keys),       cmocka_unit_test(test_nan_positions),
    cmocka_unit_test(test_portions),      cmocka_unit_test(test_many_slices),
};

int main(int argc, char **argv)
{
    cuda_arguments(argc, argv);
    return cmocka_run_group_tests(tests, group_open, group_close);
}
