/* Cache-side operators of the reference backend: window_write, pool_pairs, entry_write, index_query, index_score, candidates,
 * topk, attend. Everything is compared with implementations written here from the specification, which share no code with the
 * formats or the kernels; where op_params.h fixes the order of a sum, bits are compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fmath.h"
#include "cpu/cpu_ops.h"
#include "support/fault_alloc.h"
#include "support/prng.h"

enum { N_DEVICES = 3, GUARD = 64 };

static uint64_t   seed;
static fault_alloc memory;
static kvi_device devices[N_DEVICES]; /* 1, 2 and 3 threads */

static void *get(size_t bytes) /* with guard bytes behind, and full of a value that no operator writes */
{
    uint8_t *p = malloc(bytes + GUARD);

    assert_non_null(p);
    memset(p, 0xA7, bytes + GUARD);
    return p;
}

static void check_guard(const void *p, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(((const uint8_t *)p)[bytes + i], 0xA7);
}

static void fill_normal(prng *r, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = prng_normal(r) * scale;
}

/* ---------------------------------------------------------------- formats, from docs/formats.md */

static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

static double e4m3(unsigned code)
{
    const unsigned e = code >> 3 & 15;
    const unsigned m = code & 7;
    const double   v = e == 0 ? m * 0x1p-9 : ldexp(1 + m / 8.0, (int)e - 7);

    if ((code & 0x7f) == 0x7f)
        return NAN;
    return code & 0x80 ? -v : v;
}

static double e8m0(unsigned code)
{
    return code == 255 ? NAN : ldexp(1, (int)code - 127);
}

static float bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, sizeof u);
    return x;
}

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

/* A packed row as doubles; group = channels with one scale. */
static double unpacked(const uint8_t *values, const uint8_t *scales, size_t c, size_t group)
{
    const unsigned code = c % 2 != 0 ? values[c / 2] >> 4 : values[c / 2] & 15;
    const double   v = code & 8 ? -e2m1[code & 7] : e2m1[code & 7];

    return v * (group == 16 ? e4m3(scales[c / 16]) : e8m0(scales[c / 32]));
}

/* ---------------------------------------------------------------- entries in blocks */

typedef struct store {
    kvi_kv_owner owner;
    size_t       n_blocks;
    size_t       index_bytes;
    size_t       main_bytes;
    uint8_t     *index_parts[64];
    uint8_t     *main_parts[64];
} store;

/* The owner lies behind others in both parts, so that its offsets count. */
static void store_init(store *s, uint32_t width, uint32_t index_width, uint32_t rows_per_block, size_t n_entries)
{
    memset(s, 0, sizeof *s);
    s->owner = (kvi_kv_owner){.layer = 3, .ratio = 1, .rows_per_block = rows_per_block, .entry_width = width,
                              .main_value_bytes = width / 2, .main_row_bytes = width / 2 + width / 16,
                              .index_width = index_width, .index_value_bytes = index_width / 2,
                              .index_row_bytes = index_width / 2 + index_width / 32, .index_off = 40, .main_off = 24};
    s->n_blocks = (n_entries + rows_per_block - 1) / rows_per_block;
    assert_true(s->n_blocks <= 64 && rows_per_block % 8 == 0);
    s->index_bytes = 40 + (size_t)rows_per_block * s->owner.index_row_bytes;
    s->main_bytes = 24 + (size_t)rows_per_block * s->owner.main_row_bytes;
    for (size_t b = 0; b < s->n_blocks; b++) {
        s->index_parts[b] = get(s->index_bytes);
        s->main_parts[b] = get(s->main_bytes);
    }
}

static void store_fini(store *s)
{
    for (size_t b = 0; b < s->n_blocks; b++) {
        check_guard(s->index_parts[b], s->index_bytes);
        check_guard(s->main_parts[b], s->main_bytes);
        free(s->index_parts[b]);
        free(s->main_parts[b]);
    }
}

static kvi_entries entries_of(const store *s)
{
    return (kvi_entries){&s->owner, s->index_parts, s->main_parts};
}

static uint8_t *main_row(const store *s, size_t entry)
{
    return s->main_parts[entry / s->owner.rows_per_block] + 24 +
           entry % s->owner.rows_per_block * s->owner.main_row_bytes;
}

/* Groups of 8 rows: 8 x values, then 8 x scales. */
static uint8_t *index_values(const store *s, size_t entry)
{
    const size_t row = entry % s->owner.rows_per_block;

    return s->index_parts[entry / s->owner.rows_per_block] + 40 + row / 8 * 8 * s->owner.index_row_bytes +
           row % 8 * s->owner.index_value_bytes;
}

static uint8_t *index_scales(const store *s, size_t entry)
{
    const size_t row = entry % s->owner.rows_per_block;

    return s->index_parts[entry / s->owner.rows_per_block] + 40 + row / 8 * 8 * s->owner.index_row_bytes +
           (size_t)8 * s->owner.index_value_bytes + row % 8 * (s->owner.index_width / 32);
}

/* Valid random bytes: no NaN, scales near 1. */
static void store_fill(store *s, prng *r)
{
    for (size_t e = 0; e < s->n_blocks * s->owner.rows_per_block; e++) {
        prng_fill(r, index_values(s, e), s->owner.index_value_bytes);
        prng_fill(r, main_row(s, e), s->owner.main_value_bytes);
        for (size_t g = 0; g < s->owner.index_width / 32; g++)
            index_scales(s, e)[g] = (uint8_t)prng_range(r, 120, 132);
        for (size_t g = 0; g < s->owner.entry_width / 16; g++)
            main_row(s, e)[s->owner.main_value_bytes + g] = (uint8_t)prng_range(r, 0x18, 0x34);
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
        assert_int_equal(kvi_ref_window_write(&devices[d], &p, NULL), KVCSA_OK);
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
        assert_int_equal(kvi_ref_window_write(&devices[0], &p, NULL), KVCSA_OK);
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
    assert_int_equal(kvi_ref_entry_write(&devices[0], &p, NULL), KVCSA_OK);
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

            assert_int_equal(kvi_ref_entry_write(&devices[d % N_DEVICES], &p, NULL), KVCSA_OK);
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

        assert_int_equal(kvi_ref_index_query(&devices[d], &p, NULL), KVCSA_OK);
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
    assert_int_equal(kvi_ref_pool_pairs(&devices[0], &p, NULL), KVCSA_OK);
    for (size_t c = 0; c < 4; c++)
        assert_true(fabs((double)out[c] - plain[c]) < 1e-6);
    p.flags = KVI_OP_ROUND_BF16;
    assert_int_equal(kvi_ref_pool_pairs(&devices[0], &p, NULL), KVCSA_OK);
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
        assert_int_equal(kvi_ref_pool_pairs(&devices[d], &p, NULL), KVCSA_OK);
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

/* ---------------------------------------------------------------- index scores */

typedef struct query {
    int8_t *codes;
    float  *scales;
    float  *weights;
} query;

static query make_query(prng *r, size_t n_rows, size_t n_heads, size_t width)
{
    static const int8_t values[15] = {0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12};
    query               q = {get(n_rows * n_heads * width), get(n_rows * n_heads * (width / 32) * sizeof(float)),
                             get(n_rows * n_heads * sizeof(float))};

    for (size_t i = 0; i < n_rows * n_heads * width; i++)
        q.codes[i] = values[prng_below(r, 15)];
    for (size_t i = 0; i < n_rows * n_heads * (width / 32); i++)
        q.scales[i] = ldexpf(1, (int)prng_range(r, 0, 12) - 8);
    fill_normal(r, q.weights, n_rows * n_heads, 0.1f);
    return q;
}

static void free_query(query *q)
{
    free(q->codes);
    free(q->scales);
    free(q->weights);
}

/* Score of an entry in the order of op_params.h; *exact the same in double, *size the sum of magnitudes. */
static float naive_score(const store *s, const query *q, size_t row, size_t n_heads, size_t entry, double *exact, double *size)
{
    const size_t width = s->owner.index_width;
    size_t       n_tree = 1;
    float        heads[64] = {0};

    *exact = *size = 0;
    for (size_t h = 0; h < n_heads; h++) {
        const size_t at = row * n_heads + h;
        float        dot = 0;
        double       true_dot = 0;

        for (size_t g = 0; g < width / 32; g++) {
            const float scale = (float)(e8m0(index_scales(s, entry)[g]) / 2);
            int         sum = 0;

            for (size_t c = 32 * g; c < 32 * g + 32; c++) {
                const double key = unpacked(index_values(s, entry), index_scales(s, entry), c, 32);

                if (isnan(key))
                    continue; /* poisoned: the codes are 0 and the scale makes it NaN */
                sum += q->codes[at * width + c] * (int)(key / (double)scale);
                true_dot += key * q->codes[at * width + c] * (double)q->scales[at * (width / 32) + g];
            }
            dot = dot + (float)sum * q->scales[at * (width / 32) + g] * scale;
        }
        heads[h] = (dot < 0 ? 0 : dot) * q->weights[at];
        *exact += fmax(0, true_dot) * (double)q->weights[at];
        *size += fabs(true_dot * (double)q->weights[at]);
    }
    while (n_tree < n_heads)
        n_tree *= 2;
    for (size_t half = n_tree / 2; half > 0; half /= 2)
        for (size_t h = 0; h < half; h++)
            heads[h] = heads[h] + heads[h + half];
    return heads[0];
}

static void test_index_score_vector_j(void **state)
{
    static const uint8_t keys[3] = {0x24, 0x2a, 0xd1}; /* (2, 1), (-1, 1), (.5, -3), first channel in the low nibble */
    int8_t   codes[64] = {2, -1};                      /* (1, -.5) */
    float    scales[2] = {0.5f, 0.5f};
    float    weights[2] = {.5f, -.25f};
    uint64_t n_visible = 3;
    float    scores[3];
    store    s;

    (void)state;
    codes[32] = 1; /* (.5, 2) */
    codes[33] = 4;
    store_init(&s, 32, 32, 8, 8);
    for (size_t e = 0; e < 3; e++) {
        memset(index_values(&s, e), 0, 16);
        index_values(&s, e)[0] = keys[e];
        index_scales(&s, e)[0] = 127;
    }
    const kvi_index_score_params p = {.keys = entries_of(&s), .codes = codes, .scales = scales, .weights = weights,
                                      .n_visible = &n_visible, .scores = scores, .scores_stride = 3, .n_rows = 1, .n_heads = 2};
    assert_int_equal(kvi_ref_index_score(&devices[0], &p, NULL), KVCSA_OK);
    assert_true(scores[0] == 0 && scores[1] == -0.375f && scores[2] == 1.0f);
    store_fini(&s);
}

/* Compares a whole call with naive_score; rows see n_visible[], blocks may be NULL. */
static void check_scores(const kvi_device *dev, const store *s, const query *q, size_t n_rows, size_t n_heads,
                         const uint64_t *n_visible, const int32_t *blocks, const uint32_t *n_blocks, size_t n_listed)
{
    const size_t be = 8;
    const size_t stride = blocks ? n_listed * be + 3 : 260;
    const size_t bytes = n_rows * stride * sizeof(float);
    float       *scores = get(bytes);
    kvi_index_score_params p = {.keys = entries_of(s), .codes = q->codes, .scales = q->scales, .weights = q->weights,
                                .n_visible = n_visible, .blocks = blocks, .n_blocks = n_blocks, .scores = scores,
                                .scores_stride = stride, .blocks_stride = n_listed, .n_rows = n_rows,
                                .n_heads = (uint32_t)n_heads, .block_entries = (uint32_t)be};

    assert_int_equal(kvi_ref_index_score((kvi_device *)(uintptr_t)dev, &p, NULL), KVCSA_OK);
    check_guard(scores, bytes);
    for (size_t row = 0; row < n_rows; row++) {
        const size_t n = blocks ? n_blocks[row] * be : n_visible[row];

        for (size_t i = 0; i < stride; i++) {
            const float  got = scores[row * stride + i];
            const size_t entry = blocks && i < n ? (size_t)blocks[row * n_listed + i / be] * be + i % be : i;
            double       exact;
            double       size;

            if (i >= n) { /* behind the row: untouched */
                assert_memory_equal(&got, "\xA7\xA7\xA7\xA7", 4);
            } else if (entry >= n_visible[row]) {
                assert_true(got == -INFINITY);
            } else {
                const float want = naive_score(s, q, row, n_heads, entry, &exact, &size);

                assert_memory_equal(&got, &want, sizeof got);
                /* 4 blocks, weight, 5 levels: at most 10 roundings */
                assert_true(fabs((double)got - exact) <= 10 * 0x1p-24 * (size + fabs(exact)) * 4);
            }
        }
    }
    free(scores);
}

static void test_index_score_matches_naive_bit_for_bit(void **state)
{
    static const uint32_t n_heads[] = {1, 3, 4, 5, 32};
    static const size_t   n_rows[] = {1, 2, 16, 37};
    prng     r;
    store    s;
    uint64_t n_visible[37];

    (void)state;
    prng_init(&r, seed + 4);
    for (size_t t = 0; t < 20; t++) {
        const uint32_t heads = n_heads[t % 5];
        const size_t   rows = heads == 32 ? n_rows[t % 3] : n_rows[t % 4];
        query          q;

        store_init(&s, 32, t % 3 == 0 ? 128 : 32, 16, 256);
        store_fill(&s, &r);
        q = make_query(&r, rows, heads, s.owner.index_width);
        for (size_t i = 0; i < rows; i++)
            n_visible[i] = prng_below(&r, 257);
        check_scores(&devices[t % N_DEVICES], &s, &q, rows, heads, n_visible, NULL, NULL, 0);
        free_query(&q);
        store_fini(&s);
    }
}

static void test_index_score_of_candidate_blocks(void **state)
{
    enum { ROWS = 19, LISTED = 12, HEADS = 3 };
    prng     r;
    store    s;
    query    q;
    uint64_t n_visible[ROWS];
    int32_t  blocks[ROWS * LISTED];
    uint32_t n_blocks[ROWS];

    (void)state;
    prng_init(&r, seed + 5);
    store_init(&s, 32, 64, 24, 240);
    store_fill(&s, &r);
    q = make_query(&r, ROWS, HEADS, 64);
    for (size_t i = 0; i < ROWS; i++) {
        n_visible[i] = i == 4 ? 0 : prng_range(&r, 1, 240);
        n_blocks[i] = 0;
        for (int32_t b = 0; (uint64_t)b * 8 < n_visible[i] && n_blocks[i] < LISTED; b++)
            if ((uint64_t)b * 8 + 8 >= n_visible[i] || prng_below(&r, 2) != 0)
                blocks[i * LISTED + n_blocks[i]++] = b;
    }
    for (size_t d = 0; d < N_DEVICES; d++)
        check_scores(&devices[d], &s, &q, ROWS, HEADS, n_visible, blocks, n_blocks, LISTED);
    free_query(&q);
    store_fini(&s);
}

static void test_index_score_visibility_m(void **state)
{
    static const uint64_t pairs[8] = {0, 1, 1, 2, 2, 3, 3, 4};
    prng     r;
    store    s;
    query    q;
    uint64_t single[8];

    (void)state;
    prng_init(&r, seed + 6);
    store_init(&s, 32, 32, 8, 8);
    store_fill(&s, &r);
    q = make_query(&r, 8, 2, 32);
    for (uint64_t p = 0; p < 8; p++) {
        assert_int_equal(pairs[p], (p + 1) / 2);
        single[p] = p + 1;
    }
    check_scores(&devices[0], &s, &q, 8, 2, pairs, NULL, NULL, 0); /* what is not visible is not even written */
    check_scores(&devices[0], &s, &q, 8, 2, single, NULL, NULL, 0);
    free_query(&q);
    store_fini(&s);
}

static void test_index_score_poison_is_never_selected(void **state)
{
    enum { N = 40 };
    prng     r;
    store    s;
    query    q;
    uint64_t n_visible[2] = {N, N};
    float    scores[2 * N];
    int32_t  ids[2 * N];

    (void)state;
    prng_init(&r, seed + 7);
    store_init(&s, 32, 64, 8, N);
    store_fill(&s, &r);
    q = make_query(&r, 2, 3, 64);
    memset(index_values(&s, 17) + 16, 0, 16);
    index_scales(&s, 17)[1] = 255;
    q.scales[1 * 3 * 2 + 4] = NAN; /* a head of row 1 */
    const kvi_index_score_params p = {.keys = entries_of(&s), .codes = q.codes, .scales = q.scales, .weights = q.weights,
                                      .n_visible = n_visible, .scores = scores, .scores_stride = N, .n_rows = 2, .n_heads = 3};
    const kvi_topk_params top = {.scores = scores, .n_scores = n_visible, .ids = ids, .scores_stride = N, .n_rows = 2, .k = N};
    assert_int_equal(kvi_ref_index_score(&devices[0], &p, NULL), KVCSA_OK);
    assert_int_equal(kvi_ref_topk(&devices[0], &top, NULL), KVCSA_OK);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(isnan(scores[i]) != 0, i == 17);
        assert_true(isnan(scores[N + i]));
        assert_int_equal(ids[i], i < 17 ? (int)i : i < N - 1 ? (int)i + 1 : -1);
        assert_int_equal(ids[N + i], -1);
    }
    free_query(&q);
    store_fini(&s);
}

/* ---------------------------------------------------------------- selection */

typedef struct ranked {
    float  score;
    size_t i;
} ranked;

static int by_rank(const void *a, const void *b) /* larger score, then lower index; NaN and -inf last */
{
    const ranked *x = a;
    const ranked *y = b;
    const bool    x_out = isnan(x->score) || x->score == -INFINITY;
    const bool    y_out = isnan(y->score) || y->score == -INFINITY;

    if (x_out != y_out)
        return x_out ? 1 : -1;
    if (!x_out && x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

static int by_id(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a;
    const int32_t y = *(const int32_t *)b;

    return x < y ? -1 : x > y;
}

/* The k best indices, ascending. Returns how many there are. */
static size_t naive_topk(const float *scores, size_t n, size_t k, int32_t *ids)
{
    ranked *all = get((n + 1) * sizeof *all);
    size_t  taken = 0;

    for (size_t i = 0; i < n; i++)
        all[i] = (ranked){scores[i], i};
    qsort(all, n, sizeof *all, by_rank);
    while (taken < k && taken < n && !isnan(all[taken].score) && all[taken].score != -INFINITY) {
        ids[taken] = (int32_t)all[taken].i;
        taken++;
    }
    qsort(ids, taken, sizeof *ids, by_id);
    free(all);
    return taken;
}

enum { N_PATTERNS = 11 };

static void fill_pattern(prng *r, size_t pattern, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        switch (pattern) {
        case 0: x[i] = prng_normal(r); break;
        case 1: x[i] = (float)prng_below(r, 5) - 2.0f; break;                      /* many ties */
        case 2: x[i] = -3.5f; break;                                               /* all equal */
        case 3: x[i] = (float)i; break;
        case 4: x[i] = -(float)i; break;
        case 5: x[i] = i / 7 % 2 == 0 ? -INFINITY : (float)prng_below(r, 9); break;
        case 6: x[i] = prng_below(r, 3) == 0 ? NAN : prng_normal(r); break;
        case 7: x[i] = prng_below(r, 2) == 0 ? -0.0f : 0.0f; break;                /* zeros of both signs tie */
        case 8: x[i] = prng_below(r, 4) == 0 ? INFINITY : prng_normal(r); break;
        case 9: x[i] = prng_float_bits(r); break;                                  /* anything at all */
        default: x[i] = prng_below(r, 2) == 0 ? -NAN : -INFINITY; break;           /* nothing to take */
        }
    }
}

static void test_topk_equals_a_stable_sort(void **state)
{
    enum { MOST = 700, ROWS = 3 };
    prng     r;
    float   *scores = get(ROWS * MOST * sizeof *scores);
    int32_t *want = get(MOST * sizeof *want);
    int32_t *ids = get(ROWS * MOST * sizeof *ids);

    (void)state;
    prng_init(&r, seed + 8);
    for (size_t t = 0; t < 600; t++) {
        const size_t   k = t % 7 == 0 ? 1 : prng_range(&r, 1, t % 2 != 0 ? 40 : MOST);
        const uint64_t n[ROWS] = {prng_below(&r, MOST + 1), t % 3 == 0 ? k : prng_below(&r, 50), t % 5 == 0 ? 0 : MOST};
        const kvi_topk_params p = {.scores = scores, .n_scores = n, .ids = ids, .scores_stride = MOST, .n_rows = ROWS,
                                   .k = (uint32_t)k};

        for (size_t row = 0; row < ROWS; row++)
            fill_pattern(&r, (t + row) % N_PATTERNS, scores + row * MOST, MOST);
        memset(ids, 0xA7, ROWS * MOST * sizeof *ids);
        assert_int_equal(kvi_ref_topk(&devices[t % N_DEVICES], &p, NULL), KVCSA_OK);
        for (size_t row = 0; row < ROWS; row++) {
            const size_t taken = naive_topk(scores + row * MOST, n[row], k, want);

            for (size_t i = 0; i < k; i++)
                assert_int_equal(ids[row * k + i], i < taken ? want[i] : -1);
        }
        check_guard(ids, ROWS * k * sizeof *ids);
    }
    free(scores);
    free(want);
    free(ids);
}

static void test_topk_maps_blocks_to_entries(void **state)
{
    enum { BLOCKS = 9, BE = 4, N = BLOCKS * BE, K = 10 };
    static const int32_t blocks[2 * 11] = {0, 2, 3, 7, 8, 20, 21, 100, 4000, -1, -1, 5, 6, 9};
    const uint64_t n[2] = {N, 3 * BE};
    prng    r;
    float   scores[2 * 40];
    int32_t ids[2 * K + 1];
    int32_t want[K];

    (void)state;
    prng_init(&r, seed + 9);
    for (size_t t = 0; t < 50; t++) {
        const kvi_topk_params p = {.scores = scores, .n_scores = n, .blocks = blocks, .ids = ids, .scores_stride = 40,
                                   .blocks_stride = 11, .n_rows = 2, .block_entries = BE, .k = K};

        fill_pattern(&r, t % N_PATTERNS, scores, 80);
        ids[2 * K] = 77;
        assert_int_equal(kvi_ref_topk(&devices[0], &p, NULL), KVCSA_OK);
        assert_int_equal(ids[2 * K], 77);
        for (size_t row = 0; row < 2; row++) {
            const size_t taken = naive_topk(scores + 40 * row, n[row], K, want);

            for (size_t i = 0; i < K; i++)
                assert_int_equal(ids[row * K + i],
                                 i < taken ? blocks[11 * row + (size_t)want[i] / BE] * BE + want[i] % BE : -1);
        }
    }
}

static void test_topk_of_a_million(void **state)
{
    enum { N = 1 << 20, K = 512 };
    const uint64_t n = N;
    prng     r;
    float   *scores = get(N * sizeof *scores);
    int32_t *ids = get(K * sizeof *ids);
    int32_t *want = get(N * sizeof *want);

    (void)state;
    prng_init(&r, seed + 10);
    for (size_t i = 0; i < N; i++)
        scores[i] = (float)(prng_below(&r, 20000)) * 0x1p-10f; /* the cut lies within ties */
    const kvi_topk_params p = {.scores = scores, .n_scores = &n, .ids = ids, .scores_stride = N, .n_rows = 1, .k = K};
    assert_int_equal(kvi_ref_topk(&devices[1], &p, NULL), KVCSA_OK);
    assert_int_equal(naive_topk(scores, N, K, want), K);
    assert_memory_equal(ids, want, K * sizeof *ids);
    free(scores);
    free(ids);
    free(want);
}

static void test_candidates_vector_k(void **state)
{
    static const float source[14] = {.1f, .9f, .2f, .3f, .8f, .7f, .6f, .5f, 0, 0, 1, 0, -.5f, -.4f};
    static const float consumer[14] = {.3f, .1f, .9f, .8f, .7f, .6f, .5f, .4f, .2f, .25f, .35f, .15f, .05f, .95f};
    const uint64_t n = 14;
    int32_t        blocks[2];
    uint32_t       n_blocks;
    float          pool[8];
    const uint64_t n_pool = 8;
    int32_t        ids[3];

    (void)state;
    const kvi_candidates_params c = {.scores = source, .n_visible = &n, .blocks = blocks, .n_blocks = &n_blocks,
                                     .scores_stride = 14, .n_rows = 1, .block_entries = 4, .n_keep = 2};
    assert_int_equal(kvi_ref_candidates(&devices[0], &c, NULL), KVCSA_OK);
    assert_int_equal(n_blocks, 2);
    assert_int_equal(blocks[0], 2);
    assert_int_equal(blocks[1], 3);
    for (size_t i = 0; i < 8; i++)
        pool[i] = 8 + i < 14 ? consumer[8 + i] : -INFINITY;
    const kvi_topk_params t = {.scores = pool, .n_scores = &n_pool, .blocks = blocks, .ids = ids, .scores_stride = 8,
                               .blocks_stride = 2, .n_rows = 1, .block_entries = 4, .k = 3};
    assert_int_equal(kvi_ref_topk(&devices[0], &t, NULL), KVCSA_OK);
    assert_int_equal(ids[0], 9);
    assert_int_equal(ids[1], 10);
    assert_int_equal(ids[2], 13);
}

/* Sort of block maxima in which the newest block counts as larger than everything. */
static size_t naive_candidates(const float *scores, size_t n_visible, size_t be, size_t n_keep, int32_t *blocks)
{
    const size_t n = (n_visible + be - 1) / be;
    float       *maxima = get((n + 1) * sizeof *maxima);
    size_t       taken = 0;

    for (size_t b = 0; b < n; b++) {
        maxima[b] = -INFINITY;
        for (size_t i = b * be; i < n_visible && i < b * be + be; i++)
            if (!isnan(scores[i]))
                maxima[b] = fmaxf(maxima[b], scores[i]);
    }
    if (n > 0) {
        taken = naive_topk(maxima, n - 1, n_keep - 1, blocks);
        blocks[taken++] = (int32_t)n - 1;
    }
    free(maxima);
    return taken;
}

static void test_candidates_equal_a_stable_sort(void **state)
{
    enum { MOST = 600, ROWS = 3, KEEP = 80 };
    prng     r;
    float   *scores = get(ROWS * MOST * sizeof *scores);
    int32_t *blocks = get(ROWS * KEEP * sizeof *blocks);
    int32_t *want = get(MOST * sizeof *want);
    uint32_t n_blocks[ROWS];

    (void)state;
    prng_init(&r, seed + 11);
    for (size_t t = 0; t < 600; t++) {
        const size_t   be = prng_range(&r, 1, 9);
        const size_t   keep = t % 9 == 0 ? 1 : prng_range(&r, 1, KEEP);
        const uint64_t n[ROWS] = {prng_below(&r, MOST + 1), prng_below(&r, 20), t % 4 == 0 ? 0 : MOST};
        const kvi_candidates_params p = {.scores = scores, .n_visible = n, .blocks = blocks, .n_blocks = n_blocks,
                                         .scores_stride = MOST, .n_rows = ROWS, .block_entries = (uint32_t)be,
                                         .n_keep = (uint32_t)keep};

        for (size_t row = 0; row < ROWS; row++)
            fill_pattern(&r, (t + row) % N_PATTERNS, scores + row * MOST, MOST);
        memset(blocks, 0xA7, ROWS * KEEP * sizeof *blocks);
        assert_int_equal(kvi_ref_candidates(&devices[t % N_DEVICES], &p, NULL), KVCSA_OK);
        for (size_t row = 0; row < ROWS; row++) {
            const size_t taken = naive_candidates(scores + row * MOST, n[row], be, keep, want);

            assert_int_equal(n_blocks[row], taken);
            for (size_t i = 0; i < taken; i++)
                assert_int_equal(blocks[row * keep + i], want[i]);
        }
        check_guard(blocks, ROWS * keep * sizeof *blocks);
    }
    free(scores);
    free(blocks);
    free(want);
}

/* ---------------------------------------------------------------- attention */

typedef struct scene {      /* a timeline of `n` positions and entries to select from */
    size_t   n;
    uint32_t n_heads;
    uint32_t width;
    uint32_t n_window;
    uint32_t row_bytes;
    uint32_t k;
    uint64_t floor;
    uint32_t flags;
    float    scale;
    float   *q;             /* [n, n_heads, width] */
    uint8_t *rows;          /* [n, row_bytes] of every position */
    int32_t *ids;           /* [n, k] */
    float   *sink;
    store    s;
} scene;

static void scene_init(scene *c, prng *r, size_t n, uint32_t n_heads, uint32_t width, uint32_t n_window, uint32_t k)
{
    *c = (scene){.n = n, .n_heads = n_heads, .width = width, .n_window = n_window, .row_bytes = width + width / 32, .k = k,
                 .scale = (float)(1 / sqrt((double)width))};
    c->q = get(n * n_heads * width * sizeof *c->q);
    c->rows = get(n * c->row_bytes);
    c->ids = get(n * k * sizeof *c->ids + 1);
    c->sink = get(n_heads * sizeof *c->sink);
    fill_normal(r, c->q, n * n_heads * width, 2.0f);
    fill_normal(r, c->sink, n_heads, 1.0f);
    for (size_t i = 0; i < n * c->row_bytes; i++) {
        const uint8_t code = (uint8_t)prng_range(r, 0x20, 0x48); /* up to 4 */

        c->rows[i] = i % c->row_bytes >= width ? (uint8_t)prng_range(r, 124, 127) : (uint8_t)(code | prng_below(r, 2) << 7);
    }
    store_init(&c->s, width, 32, 16, 96);
    store_fill(&c->s, r);
    for (size_t i = 0; i < n; i++) /* ascending, duplicates of window tokens and all, then -1; some in between too */
        for (size_t j = 0; j < k; j++)
            c->ids[i * k + j] = prng_below(r, 5) == 0 || j > i ? -1 : (int32_t)(j * 96 / k);
}

static void scene_fini(scene *c)
{
    store_fini(&c->s);
    free(c->q);
    free(c->rows);
    free(c->ids);
    free(c->sink);
}

/* Key of a slot of the query at pos, as double; false = empty slot. */
static bool slot_key(const scene *c, uint64_t pos, size_t slot, double *key)
{
    uint64_t lo = pos + 1 > c->n_window ? pos + 1 - c->n_window : 0;

    lo = lo > c->floor ? lo : c->floor;
    if (slot < c->n_window) {
        const uint8_t *row = c->rows + (lo + slot) * c->row_bytes;

        for (size_t i = 0; i < c->width && lo + slot <= pos; i++)
            key[i] = e4m3(row[i]) * e8m0(row[c->width + i / 32]);
        return lo + slot <= pos;
    }
    const int32_t id = c->ids[pos * c->k + slot - c->n_window];
    for (size_t i = 0; i < c->width && id >= 0; i++)
        key[i] = unpacked(main_row(&c->s, (size_t)id), main_row(&c->s, (size_t)id) + c->width / 2, i, 16);
    return id >= 0;
}

static float lane_dot(const float *a, const float *b, size_t n) /* the order of base/vec.h */
{
    float lane[16] = {0};

    for (size_t i = 0; i < n; i++)
        lane[i % 16] = lane[i % 16] + a[i] * b[i];
    for (size_t half = 8; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lane[i] = lane[i] + lane[i + half];
    return lane[0];
}

/* The tile algorithm with every slot in it, the empty ones as p = 0 of a zero key. */
static void naive_tiles(const scene *c, uint64_t pos, size_t head, float *out)
{
    const size_t n_slots = c->n_window + c->k;
    const float *q = c->q + (pos * c->n_heads + head) * c->width;
    float       *keys = get(64 * c->width * sizeof *keys);
    double      *key = get(c->width * sizeof *key);
    float        max = -1e30f;
    float        den = 0;

    memset(out, 0, c->width * sizeof *out);
    for (size_t t = 0; t < n_slots; t += 64) {
        const size_t n = n_slots - t < 64 ? n_slots - t : 64;
        float        s[64];
        float        next = max;
        float        sum = 0;

        for (size_t j = 0; j < n; j++) {
            const bool there = slot_key(c, pos, t + j, key);

            for (size_t i = 0; i < c->width; i++)
                keys[j * c->width + i] = there ? (float)key[i] : 0.0f;
            s[j] = (there ? lane_dot(q, keys + j * c->width, c->width) : -INFINITY) * c->scale;
            next = s[j] > next ? s[j] : next;
        }
        for (size_t i = 0; i < c->width; i++)
            out[i] = out[i] * kvi_expf(max - next);
        for (size_t j = 0; j < n; j++) {
            const float p = kvi_expf(s[j] - next);

            sum = sum + p;
            for (size_t i = 0; i < c->width; i++)
                out[i] = out[i] + (c->flags & KVI_OP_ROUND_BF16 ? bf16(p) : p) * keys[j * c->width + i];
        }
        den = den * kvi_expf(max - next) + sum;
        max = next;
    }
    den = den + kvi_expf(c->sink[head] - max);
    for (size_t i = 0; i < c->width; i++)
        out[i] = c->flags & KVI_OP_ROUND_BF16 ? bf16(out[i] / den) : out[i] / den;
    free(keys);
    free(key);
}

/* Plain softmax in double. Returns the largest |out - naive| over the head's channels in units of sum p |key| / den. */
static double softmax_error(const scene *c, uint64_t pos, size_t head, const float *out)
{
    const size_t n_slots = c->n_window + c->k;
    const float *q = c->q + (pos * c->n_heads + head) * c->width;
    double      *key = get(c->width * sizeof *key);
    double      *acc = get(c->width * sizeof *acc);
    double      *size = get(c->width * sizeof *size);
    double       den = exp((double)c->sink[head]);
    double       worst = 0;

    for (size_t i = 0; i < c->width; i++)
        acc[i] = size[i] = 0;
    for (size_t slot = 0; slot < n_slots; slot++) {
        double s = 0;

        if (!slot_key(c, pos, slot, key))
            continue;
        for (size_t i = 0; i < c->width; i++)
            s += (double)q[i] * key[i];
        s = exp(s * (double)c->scale);
        den += s;
        for (size_t i = 0; i < c->width; i++) {
            acc[i] += s * key[i];
            size[i] += fabs(s * key[i]);
        }
    }
    for (size_t i = 0; i < c->width; i++)
        worst = fmax(worst, fabs((double)out[i] - acc[i] / den) / fmax(size[i] / den, 1e-30));
    free(key);
    free(acc);
    free(size);
    return worst;
}

/* The last ring rows in front of `first` in pages, as the session leaves them, this layer's rows not at the beginning of a
 * page; NaN where nothing was written, and no page at all where no row of it was. Page sizes and slack vary with `first`. */
typedef struct ring {
    uint8_t **pages;
    size_t    page_off;
    uint32_t  page_rows, n_pages;
} ring;

static ring ring_init(const scene *c, size_t first)
{
    static const uint32_t sizes[] = {1, 3, 16, 7, 64};
    const uint32_t rows = sizes[first % 5];
    ring           r = {.page_rows = rows, .page_off = 33 * (first % 3)};
    size_t         n;

    r.n_pages = (c->n_window + rows - 1) / rows + (uint32_t)(first % 2);
    n = (size_t)r.n_pages * rows;
    r.pages = get(r.n_pages * sizeof *r.pages);
    memset(r.pages, 0, r.n_pages * sizeof *r.pages);
    for (size_t p = first > n ? first - n : 0; p < first; p++) {
        uint8_t **page = &r.pages[p % n / rows];

        if (!*page) {
            *page = get(r.page_off + rows * c->row_bytes);
            memset(*page, 0xFF, r.page_off + rows * c->row_bytes);
        }
        memcpy(*page + r.page_off + p % n % rows * c->row_bytes, c->rows + p * c->row_bytes, c->row_bytes);
    }
    return r;
}

static void ring_fini(ring *r)
{
    for (uint32_t i = 0; i < r->n_pages; i++)
        free(r->pages[i]);
    free(r->pages);
}

/* Rows first .. first + n - 1 in one call: older rows in the ring. out [n, n_heads, width] */
static kvcsa_status attend_chunk(kvi_device *dev, const scene *c, size_t first, size_t n, float *out)
{
    uint64_t *pos = get(n * sizeof *pos);
    ring      r = ring_init(c, first);
    const size_t q_row = (size_t)c->n_heads * c->width;
    kvcsa_status st;

    for (size_t i = 0; i < n; i++)
        pos[i] = first + i;
    const kvi_attend_params p = {.q = c->q + first * q_row, .out = out, .pos = pos, .pages = r.pages,
                                 .page_off = r.page_off, .page_rows = r.page_rows, .n_pages = r.n_pages,
                                 .chunk = c->rows + first * c->row_bytes, .sink = c->sink,
                                 .ids = c->k ? c->ids + first * c->k : NULL, .entries = entries_of(&c->s), .chunk_pos = first,
                                 .floor = c->floor, .n_rows = n, .n_heads = c->n_heads, .width = c->width,
                                 .n_window = c->n_window, .row_bytes = c->row_bytes, .k = c->k, .scale = c->scale,
                                 .flags = c->flags};
    st = kvi_ref_attend(dev, &p, NULL);
    free(pos);
    ring_fini(&r);
    return st;
}

static void test_attend_vector_l(void **state)
{
    static const uint8_t codes[3][2] = {{0x38, 0}, {0, 0x38}, {0xb8, 0x40}}; /* (1, 0), (0, 1), (-1, 2) */
    uint8_t  rows[3 * 33] = {0};
    float    q[32] = {2};
    float    sink = .25f;
    uint64_t pos[3] = {2};
    float    out[32];
    uint8_t *pages[2] = {rows, NULL}; /* of two rows: positions 0 and 1 */

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        memcpy(rows + 33 * i, codes[i], 2);
        rows[33 * i + 32] = 127;
    }
    kvi_attend_params p = {.q = q, .out = out, .pos = pos, .pages = pages, .page_rows = 2, .n_pages = 2,
                           .chunk = rows + 66, .sink = &sink, .chunk_pos = 2,
                           .n_rows = 1, .n_heads = 1, .width = 32, .n_window = 3, .row_bytes = 33, .scale = .5f,
                           .flags = KVI_OP_ROUND_BF16};
    assert_int_equal(kvi_ref_attend(&devices[0], &p, NULL), KVCSA_OK);
    assert_true(out[0] == 0.4375f && out[1] == 0.32421875f && out[2] == 0);
    p.flags = 0;
    assert_int_equal(kvi_ref_attend(&devices[0], &p, NULL), KVCSA_OK);
    assert_true(fabs((double)out[0] - (1 - exp(-2)) / 1.9755813) < 1e-7);
    assert_true(fabs((double)out[1] - (exp(-1) + 2 * exp(-2)) / 1.9755813) < 1e-7);
}

static void test_attend_matches_tiles_bit_for_bit(void **state)
{
    static const uint32_t n_window[] = {16, 64, 100, 128};
    static const uint32_t k[] = {0, 24, 70, 5};
    prng r;

    (void)state;
    prng_init(&r, seed + 12);
    for (size_t t = 0; t < 8; t++) {
        const uint32_t width = t % 2 == 0 ? 32 : 96;
        const size_t   n = 150;
        const size_t   n_out = n * 3 * width;
        float         *out = get(n_out * sizeof *out);
        float         *want = get(width * sizeof *want);
        scene          c;

        scene_init(&c, &r, n, 3, width, n_window[t % 4], k[t % 4]);
        c.flags = t < 4 ? KVI_OP_ROUND_BF16 : 0;
        c.floor = t == 5 ? 60 : 0;
        c.q[5] *= 40; /* a maximum that moves a lot */
        assert_int_equal(attend_chunk(&devices[t % N_DEVICES], &c, 0, n, out), KVCSA_OK);
        check_guard(out, n_out * sizeof *out);
        for (size_t i = 0; i < n; i += t == 0 ? 1 : 7)
            for (size_t h = 0; h < 3; h++) {
                const float *got = out + (i * 3 + h) * width;

                naive_tiles(&c, i, h, want);
                for (size_t x = 0; x < width; x++) /* as numbers: an empty slot may turn -0 into 0 */
                    assert_true(got[x] == want[x]);
                /* n_slots + 20 roundings of the sums and as much again in the scores, which are below 40 */
                if (c.flags == 0)
                    assert_true(softmax_error(&c, i, h, got) < (198 + 40 * 20) * 0x1p-24);
                else
                    assert_true(softmax_error(&c, i, h, got) < 2.1 * 0x1p-8);
            }
        scene_fini(&c);
        free(out);
        free(want);
    }
}

static void test_attend_does_not_depend_on_chunks_or_threads(void **state)
{
    static const size_t lengths[] = {130, 190, 322};
    prng r;

    (void)state;
    prng_init(&r, seed + 13);
    for (size_t t = 0; t < 3; t++) {
        const size_t n = lengths[t];
        const size_t row = 2 * 64;
        float       *one = get(n * row * sizeof *one);
        float       *out = get(n * row * sizeof *out);
        scene        c;

        scene_init(&c, &r, n, 2, 64, 128, 40);
        c.flags = t == 1 ? KVI_OP_ROUND_BF16 : 0;
        c.floor = t == 2 ? 100 : 0;
        for (size_t i = 0; i < n; i++) /* decoding: all earlier positions are in the ring */
            assert_int_equal(attend_chunk(&devices[0], &c, i, 1, one + i * row), KVCSA_OK);
        for (size_t way = 0; way < 5; way++) {
            for (size_t i = 0; i < n;) {
                const size_t want = way == 0 ? n : way == 1 ? 64 : way == 2 ? 129 : prng_range(&r, 1, 40);
                const size_t rows = want < n - i ? want : n - i;

                assert_int_equal(attend_chunk(&devices[way % N_DEVICES], &c, i, rows, out + i * row), KVCSA_OK);
                i += rows;
            }
            assert_memory_equal(out, one, n * row * sizeof *out);
            check_guard(out, n * row * sizeof *out);
        }
        scene_fini(&c);
        free(one);
        free(out);
    }
}

static void test_attend_without_keys_gives_zero(void **state)
{
    prng  r;
    scene c;
    float out[10 * 2 * 32];

    (void)state;
    prng_init(&r, seed + 14);
    scene_init(&c, &r, 10, 2, 32, 16, 4);
    memset(c.ids, 0xFF, 10 * 4 * sizeof *c.ids);
    c.floor = 8; /* positions 0..7 see nothing, 8 sees itself */
    assert_int_equal(attend_chunk(&devices[0], &c, 0, 10, out), KVCSA_OK);
    for (size_t i = 0; i < 8 * 64; i++)
        assert_true(out[i] == 0);
    for (size_t i = 8 * 64; i < 10 * 64; i += 32) {
        double sum = 0;

        for (size_t x = 0; x < 32; x++)
            sum += fabs((double)out[i + x]);
        assert_true(sum > 0);
    }
    scene_fini(&c);
}

static void test_attend_shows_nan(void **state)
{
    enum { ROWS = 20, ROW = 2 * 32 };
    prng  r;
    scene c;
    float clean[ROWS * ROW];
    float out[ROWS * ROW];

    (void)state;
    prng_init(&r, seed + 15);
    scene_init(&c, &r, ROWS, 2, 32, 8, 3);
    assert_int_equal(attend_chunk(&devices[0], &c, 0, ROWS, clean), KVCSA_OK);
    c.q[(6 * 2 + 1) * 32 + 9] = NAN;    /* row 6, head 1 */
    c.rows[11 * c.row_bytes + 32] = 255; /* position 11: rows 11..18 see it */
    assert_int_equal(attend_chunk(&devices[0], &c, 0, ROWS, out), KVCSA_OK);
    for (size_t i = 0; i < ROWS * ROW; i++) {
        const size_t row = i / ROW;

        if ((row >= 11 && row <= 18) || (row == 6 && i % ROW >= 32))
            assert_true(isnan(out[i]));
        else
            assert_true(out[i] == clean[i] && !isnan(out[i]));
    }
    scene_fini(&c);
}

/* ---------------------------------------------------------------- out of memory */

static kvcsa_status score_some(kvi_device *dev, prng *r)
{
    const uint64_t n_visible[40] = {250, 250, 250, [39] = 250};
    store          s;
    query          q;
    float         *scores = get(40 * 256 * sizeof *scores);
    kvcsa_error    err = {0};
    kvcsa_status   st;

    store_init(&s, 32, 128, 16, 256);
    store_fill(&s, r);
    q = make_query(r, 40, 32, 128);
    const kvi_index_score_params p = {.keys = entries_of(&s), .codes = q.codes, .scales = q.scales, .weights = q.weights,
                                      .n_visible = n_visible, .scores = scores, .scores_stride = 256, .n_rows = 40,
                                      .n_heads = 32};
    st = kvi_ref_index_score(dev, &p, &err);
    assert_int_equal(err.status, st);
    check_guard(scores, 40 * 256 * sizeof *scores);
    free(scores);
    free_query(&q);
    store_fini(&s);
    return st;
}

static kvcsa_status choose_some(kvi_device *dev, prng *r)
{
    const uint64_t n_visible[3] = {60000, 5, 60000};
    float         *scores = get(3 * 60000 * sizeof *scores);
    int32_t        blocks[3 * 4];
    uint32_t       n_blocks[3];
    kvcsa_error    err = {0};
    kvcsa_status   st;

    fill_normal(r, scores, 3 * 60000, 1.0f);
    const kvi_candidates_params p = {.scores = scores, .n_visible = n_visible, .blocks = blocks, .n_blocks = n_blocks,
                                     .scores_stride = 60000, .n_rows = 3, .block_entries = 8, .n_keep = 4};
    st = kvi_ref_candidates(dev, &p, &err);
    assert_int_equal(err.status, st);
    free(scores);
    return st;
}

static kvcsa_status attend_some(kvi_device *dev, prng *r, size_t n)
{
    float       *out = get(n * 2 * 32 * sizeof *out);
    scene        c;
    kvcsa_status st;

    scene_init(&c, r, n, 2, 32, 128, 40);
    st = attend_chunk(dev, &c, 0, n, out);
    check_guard(out, n * 2 * 32 * sizeof *out);
    scene_fini(&c);
    free(out);
    return st;
}

static kvcsa_status run_some(size_t op, kvi_device *dev, prng *r)
{
    switch (op) {
    case 0: return score_some(dev, r);
    case 1: return choose_some(dev, r);
    case 2: return attend_some(dev, r, 1);
    default: return attend_some(dev, r, 90);
    }
}

static void test_scratch_failures_leave_nothing(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed + 16);
    for (size_t op = 0; op < 4; op++)
        for (size_t d = 0; d < N_DEVICES; d++) {
            const size_t before = memory.n_blocks; /* the devices' threads */
            size_t       n_hits = 0;

            for (uint64_t n = 1;; n++) {
                kvcsa_status st;

                fault_alloc_fail_at(&memory, n);
                st = run_some(op, &devices[d], &r);
                assert_int_equal(memory.n_blocks, before);
                assert_int_equal(memory.n_bad, 0);
                if (!fault_alloc_hit(&memory)) {
                    assert_int_equal(st, KVCSA_OK);
                    break;
                }
                assert_int_equal(st, KVCSA_ERR_NOMEM);
                n_hits++;
                assert_true(n < 100);
            }
            fault_alloc_fail_at(&memory, 0);
            assert_true(n_hits >= 1);
        }
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
    const kvi_topk_params         t = {.k = 2};

    (void)state;
    store_init(&s, 32, 32, 8, 8);
    e = entries_of(&s);
    const kvi_entry_write_params entry = {.to = e};
    const kvi_index_score_params score = {.keys = e, .n_heads = 2};
    const kvi_attend_params      a = {.n_heads = 2, .width = 32, .n_window = 4, .row_bytes = 33};
    fault_alloc_fail_at(&memory, 1); /* not even scratch */
    assert_int_equal(kvi_ref_window_write(dev, &w, NULL), KVCSA_OK);
    assert_int_equal(kvi_ref_pool_pairs(dev, &pool, NULL), KVCSA_OK);
    assert_int_equal(kvi_ref_entry_write(dev, &entry, NULL), KVCSA_OK);
    assert_int_equal(kvi_ref_index_query(dev, &q, NULL), KVCSA_OK);
    assert_int_equal(kvi_ref_index_score(dev, &score, NULL), KVCSA_OK);
    assert_int_equal(kvi_ref_candidates(dev, &c, NULL), KVCSA_OK);
    assert_int_equal(kvi_ref_topk(dev, &t, NULL), KVCSA_OK);
    assert_int_equal(kvi_ref_attend(dev, &a, NULL), KVCSA_OK);
    fault_alloc_fail_at(&memory, 0);
    store_fini(&s);
}

static int open_devices(void **state)
{
    (void)state;
    fault_alloc_init(&memory);
    for (uint32_t d = 0; d < N_DEVICES; d++) {
        devices[d].allocator = memory.hook;
        assert_int_equal(kvi_threads_create(&memory.hook, d + 1, NULL, &devices[d].threads, NULL), KVCSA_OK);
    }
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    for (uint32_t d = 0; d < N_DEVICES; d++)
        kvi_threads_destroy(devices[d].threads);
    return fault_alloc_is_clean(&memory) ? 0 : -1;
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
        cmocka_unit_test(test_index_score_vector_j),
        cmocka_unit_test(test_index_score_matches_naive_bit_for_bit),
        cmocka_unit_test(test_index_score_of_candidate_blocks),
        cmocka_unit_test(test_index_score_visibility_m),
        cmocka_unit_test(test_index_score_poison_is_never_selected),
        cmocka_unit_test(test_topk_equals_a_stable_sort),
        cmocka_unit_test(test_topk_maps_blocks_to_entries),
        cmocka_unit_test(test_topk_of_a_million),
        cmocka_unit_test(test_candidates_vector_k),
        cmocka_unit_test(test_candidates_equal_a_stable_sort),
        cmocka_unit_test(test_attend_vector_l),
        cmocka_unit_test(test_attend_matches_tiles_bit_for_bit),
        cmocka_unit_test(test_attend_does_not_depend_on_chunks_or_threads),
        cmocka_unit_test(test_attend_without_keys_gives_zero),
        cmocka_unit_test(test_attend_shows_nan),
        cmocka_unit_test(test_scratch_failures_leave_nothing),
        cmocka_unit_test(test_no_rows_is_no_work),
    };

    seed = prng_seed(argc, argv, 20261);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
