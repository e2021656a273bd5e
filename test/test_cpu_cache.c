/* Cache-side operators of the reference backend that make bytes: window_write, pool_pairs, entry_write, index_query. Everything is
 * compared with implementations written here from the specification, which share no code with the formats or the kernels. */
#include "support/cache_ops.h"

/* ---------------------------------------------------------------- formats, from docs/formats.md */

static double amax_of(const float *x, size_t n, double least)
{
    for (size_t i = 0; i < n; i++)
        least = fmax(least, fabs((double)bf16(x[i])));
    return least;
}

/* Code of the nearest magnitude, ties to the even code, with the sign in `sign`. */
static unsigned nearest(double x, double (*value)(unsigned), unsigned n, unsigned sign)
{
    unsigned best = 0;

    for (unsigned c = 1; c < n; c++) {
        const double d = fabs(value(c) - fabs(x)) - fabs(value(best) - fabs(x));

        if (d < 0 || (d == 0 && c % 2 == 0))
            best = c;
    }
    return signbit(x) ? best | sign : best;
}

static double e2m1_of(unsigned code)
{
    return e2m1[code & 7];
}

static void naive_window(const float *x, size_t width, uint8_t *row)
{
    for (size_t g = 0; g < width / 32; g++) {
        const double amax = amax_of(x + 32 * g, 32, (double)1e-4f);
        int          k = -126;

        while (ldexp(448, k) < amax)
            k++;
        row[width + g] = (uint8_t)(k + 127);
        for (size_t i = 32 * g; i < 32 * g + 32; i++)
            row[i] = (uint8_t)nearest((double)bf16(x[i]) / ldexp(1, k), e4m3, 127, 0x80);
    }
}

static void pack(const float *x, size_t n, double scale, uint8_t *values)
{
    for (size_t i = 0; i < n; i += 2)
        values[i / 2] = (uint8_t)(nearest((double)bf16(x[i]) / scale, e2m1_of, 8, 8) |
                                  nearest((double)bf16(x[i + 1]) / scale, e2m1_of, 8, 8) << 4);
}

static void naive_main(const float *x, size_t width, uint8_t *values, uint8_t *scales)
{
    for (size_t g = 0; g < width / 16; g++) {
        scales[g] = (uint8_t)nearest(amax_of(x + 16 * g, 16, 6 * 0x1p-9) / 6, e4m3, 127, 0);
        pack(x + 16 * g, 16, e4m3(scales[g]), values + 8 * g);
    }
}

static void naive_index(const float *x, size_t width, uint8_t *values, uint8_t *scales)
{
    for (size_t g = 0; g < width / 32; g++) {
        const double amax = amax_of(x + 32 * g, 32, 6 * 0x1p-126);
        int          k = -126;

        while (ldexp(6, k) < amax)
            k++;
        scales[g] = (uint8_t)(k + 127);
        pack(x + 32 * g, 32, ldexp(1, k), values + 16 * g);
    }
}

/* ---------------------------------------------------------------- bytes */

static void test_window_write_packs_rows(void **state)
{
    enum { WIDTH = 96, BYTES = WIDTH + 3, ROWS = 700, STRIDE = 101 }; /* enough rows for several ranges */
    prng     r;
    float   *x = get(ROWS * STRIDE * sizeof *x);
    uint8_t *rows = get((size_t)ROWS * BYTES);
    uint8_t  want[BYTES];

    (void)state;
    prng_init(&r, seed);
    for (size_t i = 0; i < ROWS * STRIDE; i++)
        x[i] = prng_normal(&r) * ldexpf(1, (int)prng_below(&r, 40) - 30);
    memset(x + STRIDE * 5, 0, WIDTH * sizeof *x);
    for (size_t d = 0; d < N_DEVICES; d++) {
        const kvi_window_write_params p = {.x = x, .rows = rows, .x_stride = STRIDE, .n_rows = ROWS, .width = WIDTH,
                                           .row_bytes = BYTES};

        memset(rows, 0x11, (size_t)ROWS * BYTES);
        assert_int_equal(kvi_cpu_window_write(&devices[d], &p, NULL), KVCSA_OK);
        for (size_t i = 0; i < ROWS; i++) {
            naive_window(x + i * STRIDE, WIDTH, want);
            assert_memory_equal(rows + i * BYTES, want, BYTES);
        }
        check_guard(rows, (size_t)ROWS * BYTES);
    }
    assert_int_equal(rows[5 * BYTES + WIDTH], 0x69); /* a zero group */
    free(x);
    free(rows);
}

static void test_window_write_poisons_one_group(void **state)
{
    float   x[64];
    uint8_t row[66];

    (void)state;
    for (size_t i = 0; i < 64; i++)
        x[i] = 1.0f;
    for (size_t bad = 0; bad < 3; bad++) {
        const kvi_window_write_params p = {.x = x, .rows = row, .x_stride = 64, .n_rows = 1, .width = 64, .row_bytes = 66};

        x[40] = bad == 0 ? NAN : bad == 1 ? -INFINITY : 3.4e38f; /* the last becomes infinite in bf16 */
        assert_int_equal(kvi_cpu_window_write(&devices[0], &p, NULL), KVCSA_OK);
        assert_int_equal(row[65], 255);
        assert_int_equal(row[64], 127 - 8); /* 448 * 2^-8 = 1.75 holds 1, 448 * 2^-9 does not */
    }
}

static void test_entry_write_main_row_is_288_bytes_of_e2m1_and_e4m3(void **state)
{
    /* vectors A and B of the specification in the first two groups */
    static const float a[32] = {0, .5f, -.75f, 1, -1.25f, 1.5f, 2, -2.5f, 3, 3.5f, -4, 5, 6, -6, .25f, -.25f,
        0.310546875f, -0.06982421875f, 1.8984375f, -2.203125f, 0.0030059814453125f, 0.640625f, -1.109375f, 0.87890625f,
        1.453125f, -0.51953125f, 0.1904296875f, -1.7265625f, 2.046875f, 0.96875f, -0.359375f, -0.010009765625f};
    static const uint8_t bytes[16] = {0x10, 0x2a, 0x3a, 0xc4, 0x65, 0x6e, 0xf7, 0x80,
                                      0x82, 0xf7, 0x30, 0x4d, 0xb6, 0xe1, 0x57, 0x8a};
    static const double values[32] = {0, .5, -1, 1, -1, 1.5, 2, -2, 3, 4, -4, 4, 6, -6, 0, -0.,
        .375, -0., 2.25, -2.25, 0, .5625, -1.125, .75, 1.5, -.5625, .1875, -1.5, 2.25, 1.125, -.375, -0.};
    float latent[512] = {0};
    float key[128] = {0};
    store s;

    (void)state;
    memcpy(latent, a, sizeof a);
    store_init(&s, 512, 128, 8, 8);
    assert_int_equal(s.owner.main_row_bytes, 288);
    assert_int_equal(s.owner.index_row_bytes, 68);
    const kvi_entry_write_params p = {.to = entries_of(&s), .latent = latent, .key = key, .first_entry = 3, .n_rows = 1};
    assert_int_equal(kvi_cpu_entry_write(&devices[0], &p, NULL), KVCSA_OK);
    assert_memory_equal(main_row(&s, 3), bytes, sizeof bytes);
    assert_int_equal(main_row(&s, 3)[256], 0x38);
    assert_int_equal(main_row(&s, 3)[257], 0x2c);
    assert_int_equal(main_row(&s, 3)[258], 0x01); /* a zero group */
    for (size_t c = 0; c < 512; c++)
        assert_true(unpacked(main_row(&s, 3), main_row(&s, 3) + 256, c, 16) == (c < 32 ? values[c] : 0));
    store_fini(&s);
}

static void test_entry_write_places_rows(void **state)
{
    enum { WIDTH = 64, INDEX = 96, PER_BLOCK = 16, FIRST = 13, ROWS = 150, ALL = 176 };
    prng   r;
    float *latent = get(ROWS * WIDTH * sizeof *latent);
    float *key = get(ROWS * INDEX * sizeof *key);
    store  s;
    store  want;

    (void)state;
    prng_init(&r, seed + 1);
    for (size_t i = 0; i < ROWS * WIDTH; i++)
        latent[i] = prng_normal(&r) * ldexpf(1, (int)prng_below(&r, 16) - 10);
    for (size_t i = 0; i < ROWS * INDEX; i++)
        key[i] = prng_normal(&r) * ldexpf(1, (int)prng_below(&r, 60) - 40);
    store_init(&want, WIDTH, INDEX, PER_BLOCK, ALL);
    for (size_t i = 0; i < ROWS; i++) {
        naive_main(latent + i * WIDTH, WIDTH, main_row(&want, FIRST + i), main_row(&want, FIRST + i) + WIDTH / 2);
        naive_index(key + i * INDEX, INDEX, index_values(&want, FIRST + i), index_scales(&want, FIRST + i));
    }
    for (size_t d = 0; d < N_DEVICES + 1; d++) {
        store_init(&s, WIDTH, INDEX, PER_BLOCK, ALL);
        for (size_t i = 0; i < ROWS;) { /* the last time in pieces of 1, 2, 3, ... rows */
            const size_t n = d < N_DEVICES ? ROWS : (i + 3 < ROWS ? 1 + i % 3 : ROWS - i);
            const kvi_entry_write_params p = {.to = entries_of(&s), .latent = latent + i * WIDTH, .key = key + i * INDEX,
                                              .first_entry = FIRST + i, .n_rows = n};

            assert_int_equal(kvi_cpu_entry_write(&devices[d % N_DEVICES], &p, NULL), KVCSA_OK);
            i += n;
        }
        for (size_t b = 0; b < s.n_blocks; b++) { /* bytes of neither row are touched */
            assert_memory_equal(s.main_parts[b], want.main_parts[b], s.main_bytes);
            assert_memory_equal(s.index_parts[b], want.index_parts[b], s.index_bytes);
        }
        store_fini(&s);
    }
    store_fini(&want);
    free(latent);
    free(key);
}

static void test_index_query_gives_twice_the_values(void **state)
{
    enum { HEADS = 3, WIDTH = 64, ROWS = 90, N = ROWS * HEADS * WIDTH };
    prng    r;
    float  *x = get(N * sizeof *x);
    int8_t *codes = get(N);
    float  *scales = get(N / 32 * sizeof *scales);

    (void)state;
    prng_init(&r, seed + 2);
    for (size_t i = 0; i < N; i++)
        x[i] = prng_normal(&r) * ldexpf(1, (int)prng_below(&r, 60) - 40);
    memset(x + 64, 0, 32 * sizeof *x);
    x[100] = INFINITY;
    for (size_t d = 0; d < N_DEVICES; d++) {
        const kvi_index_query_params p = {.x = x, .codes = codes, .scales = scales, .n_rows = ROWS, .n_heads = HEADS,
                                          .width = WIDTH};

        assert_int_equal(kvi_cpu_index_query(&devices[d], &p, NULL), KVCSA_OK);
        check_guard(codes, N);
        check_guard(scales, N / 32 * sizeof *scales);
        for (size_t g = 0; g < N / 32; g++) {
            uint8_t values[16];
            uint8_t scale;

            if (g == 3) {
                assert_true(isnan(scales[g]));
                continue;
            }
            naive_index(x + 32 * g, 32, values, &scale);
            assert_true((double)scales[g] == e8m0(scale) / 2);
            for (size_t c = 0; c < 32; c++)
                assert_true((double)codes[32 * g + c] * (double)scales[g] == unpacked(values, &scale, c, 32));
        }
    }
    assert_true(scales[2] == 0x1p-127f); /* a zero group: half of 2^-126 */
    free(x);
    free(codes);
    free(scales);
}

/* ---------------------------------------------------------------- pooling */

static void test_pool_pairs_vector_i(void **state)
{
    static const float k[8] = {1, -2, .5f, 4, 3, 2, -1.5f, 0};
    static const float g[8] = {0, 1, -2, .5f, 0, -1, 2, .5f};
    static const double plain[4] = {2, -1.5231883, -1.4640276, 2};
    static const float rounded[4] = {2, -1.5234375f, -1.4609375f, 2};
    float out[4];

    (void)state;
    kvi_pool_pairs_params p = {.k = k, .gate = g, .out = out, .n_pairs = 1, .width = 4};
    assert_int_equal(kvi_cpu_pool_pairs(&devices[0], &p, NULL), KVCSA_OK);
    for (size_t c = 0; c < 4; c++)
        assert_true(fabs((double)out[c] - plain[c]) < 1e-6);
    p.flags = KVI_OP_ROUND_BF16;
    assert_int_equal(kvi_cpu_pool_pairs(&devices[0], &p, NULL), KVCSA_OK);
    for (size_t c = 0; c < 4; c++)
        assert_true(out[c] == rounded[c]);
}

static void test_pool_pairs_is_a_softmax_per_channel(void **state)
{
    enum { PAIRS = 300, WIDTH = 48, N = PAIRS * WIDTH };
    prng   r;
    float *k = get(2 * N * sizeof *k);
    float *g = get(2 * N * sizeof *g);
    float *out = get(N * sizeof *out);

    (void)state;
    prng_init(&r, seed + 3);
    fill_normal(&r, k, 2 * N, 3.0f);
    fill_normal(&r, g, 2 * N, 10.0f);
    g[0] = 3e38f; /* without the subtraction this overflows */
    g[1] = g[WIDTH + 1] = -1e30f;
    g[2] = -INFINITY;
    g[3] = NAN;
    for (size_t d = 0; d < N_DEVICES; d++) {
        const kvi_pool_pairs_params p = {.k = k, .gate = g, .out = out, .n_pairs = PAIRS, .width = WIDTH};

        memset(out, 0, N * sizeof *out);
        assert_int_equal(kvi_cpu_pool_pairs(&devices[d], &p, NULL), KVCSA_OK);
        check_guard(out, N * sizeof *out);
        assert_true(isnan(out[3]));
        for (size_t i = 0; i < N; i++) {
            const size_t at = i / WIDTH * 2 * WIDTH + i % WIDTH;
            const double w = 1 / (1 + exp((double)g[at + WIDTH] - (double)g[at]));
            const double want = (double)k[at] * w + (double)k[at + WIDTH] * (1 - w);
            /* a weight has 0.51 ulp of the exponentials twice, half an ulp of sum and of quotient; then product and sum: under
             * 4 * 2^-24 for each term; the argument is rounded too, by 2^-24 |g|, and enters e^x by as much */
            const double dg = fabs((double)g[at]) + fabs((double)g[at + WIDTH]);
            const double bound = (4 + dg) * 0x1p-24 * (fabs((double)k[at]) + fabs((double)k[at + WIDTH]));

            if (i != 3)
                assert_true(fabs((double)out[i] - want) <= bound);
        }
    }
    assert_true(out[0] == k[0]);
    assert_true(out[1] == 0.5f * k[1] + 0.5f * k[WIDTH + 1]);
    assert_true(out[2] == k[WIDTH + 2]);
    free(k);
    free(g);
    free(out);
}

static void test_no_rows_is_no_work(void **state)
{
    kvi_device  *dev = &devices[1];
    store        s;
    kvi_entries  e;
    const kvi_window_write_params w = {.width = 32, .row_bytes = 33};
    const kvi_pool_pairs_params   pool = {.width = 32};
    const kvi_index_query_params  q = {.n_heads = 2, .width = 32};
    const kvi_candidates_params   c = {.block_entries = 8, .n_keep = 2};
    const kvi_hide_params         hide = {.span_entries = 8};
    const kvi_topk_params         t = {.k = 2};

    (void)state;
    store_init(&s, 32, 32, 8, 8);
    e = entries_of(&s);
    const kvi_entry_write_params entry = {.to = e};
    const kvi_index_score_params score = {.keys = e, .n_heads = 2};
    const kvi_attend_params      a = {.n_heads = 2, .width = 32, .n_window = 4, .row_bytes = 33};
    fault_alloc_fail_at(&memory, 1); /* not even scratch */
    assert_int_equal(kvi_cpu_window_write(dev, &w, NULL), KVCSA_OK);
    assert_int_equal(kvi_cpu_pool_pairs(dev, &pool, NULL), KVCSA_OK);
    assert_int_equal(kvi_cpu_entry_write(dev, &entry, NULL), KVCSA_OK);
    assert_int_equal(kvi_cpu_index_query(dev, &q, NULL), KVCSA_OK);
    assert_int_equal(kvi_cpu_index_score(dev, &score, NULL), KVCSA_OK);
    assert_int_equal(kvi_cpu_candidates(dev, &c, NULL), KVCSA_OK);
    assert_int_equal(kvi_cpu_hide(dev, &hide, NULL), KVCSA_OK);
    assert_int_equal(kvi_cpu_topk(dev, &t, NULL), KVCSA_OK);
    assert_int_equal(kvi_cpu_attend(dev, &a, NULL), KVCSA_OK);
    fault_alloc_fail_at(&memory, 0);
    store_fini(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window_write_packs_rows),
        cmocka_unit_test(test_window_write_poisons_one_group),
        cmocka_unit_test(test_entry_write_main_row_is_288_bytes_of_e2m1_and_e4m3),
        cmocka_unit_test(test_entry_write_places_rows),
        cmocka_unit_test(test_index_query_gives_twice_the_values),
        cmocka_unit_test(test_pool_pairs_vector_i),
        cmocka_unit_test(test_pool_pairs_is_a_softmax_per_channel),
        cmocka_unit_test(test_no_rows_is_no_work),
    };

    seed = prng_seed(argc, argv, 20261);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
