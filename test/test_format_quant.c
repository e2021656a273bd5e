/* The three quantisers of rows against their definition, in double and with the codes of
 * support/small_float.h, against golden bytes and against what the reference run stored. */
#include "base/bytes.h"
#include "format/dtype.h"
#include "format/fp4.h"
#include "format/fp8.h"

#include "golden/quant/rows.h"
#include "support/small_float.h"
#include "support/st_io.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MAX_WIDTH 512u

/* ------------------------------------------------------------------ reference */

/* Smallest k with top * 2^k >= x */
static int ref_ceil_log2(double x, double top)
{
    int k = -200;

    while (ldexp(top, k) < x)
        k++;
    return k;
}

static double ref_amax(const float *x, size_t n, double floor)
{
    double amax = floor;

    for (size_t i = 0; i < n; i++)
        amax = fabs((double)x[i]) > amax ? fabs((double)x[i]) : amax;
    return amax;
}

typedef struct row_codes {
    uint8_t values[MAX_WIDTH];
    uint8_t scales[MAX_WIDTH / 16];
} row_codes;

static unsigned nibble(const uint8_t *values, size_t i)
{
    return ((unsigned)values[i / 2] >> (i % 2 * 4)) & 15u;
}

static void put_nibble(uint8_t *values, size_t i, unsigned code)
{
    if (i % 2 == 0)
        values[i / 2] = (uint8_t)code;
    else
        values[i / 2] = (uint8_t)(values[i / 2] | code << 4);
}

static void ref_main(const float *x, size_t width, row_codes *r)
{
    for (size_t g = 0; g < width / 16; g++) {
        const double amax = ref_amax(x + 16 * g, 16, 6.0 / 512);
        double       s;

        r->scales[g] = (uint8_t)ref_nearest(&e4m3, amax, 6.0);
        s = ref_value(&e4m3, r->scales[g]);
        for (size_t i = 16 * g; i < 16 * g + 16; i++)
            put_nibble(r->values, i, ref_nearest(&e2m1, x[i], s));
    }
}

static void ref_index(const float *x, size_t width, row_codes *r)
{
    for (size_t g = 0; g < width / 32; g++) {
        const int k = ref_ceil_log2(ref_amax(x + 32 * g, 32, ldexp(6, -126)), 6);

        r->scales[g] = (uint8_t)(k + 127);
        for (size_t i = 32 * g; i < 32 * g + 32; i++)
            put_nibble(r->values, i, ref_nearest(&e2m1, x[i], ldexp(1, k)));
    }
}

static void ref_window(const float *x, size_t width, row_codes *r)
{
    for (size_t g = 0; g < width / 32; g++) {
        const int k = ref_ceil_log2(ref_amax(x + 32 * g, 32, (double)1e-4f), 448);

        r->scales[g] = (uint8_t)(k + 127);
        for (size_t i = 32 * g; i < 32 * g + 32; i++)
            r->values[i] = (uint8_t)ref_nearest(&e4m3, x[i], ldexp(1, k));
    }
}

/* The three quantisers side by side. */
typedef struct quantiser {
    const char *name;
    int (*quant)(const float *x, size_t width, uint8_t *values, uint8_t *scales);
    void (*dequant)(const uint8_t *values, const uint8_t *scales, size_t width, float *x);
    void (*ref)(const float *x, size_t width, row_codes *r);
    size_t  group;
    size_t  per_byte; /* channels */
    uint8_t nan_scale;
} quantiser;

static const quantiser quantisers[] = {
    {"main", kvi_quant_main, kvi_dequant_main, ref_main, 16, 2, 0x7f},
    {"index", kvi_quant_index, kvi_dequant_index, ref_index, 32, 2, 0xff},
    {"window", kvi_quant_window, kvi_dequant_window, ref_window, 32, 1, 0xff},
};
#define N_QUANTISERS (sizeof quantisers / sizeof *quantisers)

static float bf16_value(unsigned bits)
{
    return kvi_bits_f32((uint32_t)bits << 16);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* A finite bf16 of random mantissa and sign with an exponent in low..high. */
static float random_bf16(uint32_t *state, int low, int high)
{
    const uint32_t r = next_random(state);
    const int      e = low + (int)(next_random(state) % (uint32_t)(high - low + 1));
    const double   v = ldexp(128 + (int)(r % 128), e - 7);

    return (float)(r & 0x10000u ? -v : v);
}

/* ------------------------------------------------------------------ quantisers */

static const float vector_a[16] = {0, .5f,  -.75f, 1, -1.25f, 1.5f, 2,    -2.5f,
                                   3, 3.5f, -4,    5, 6,      -6,   .25f, -.25f};
static const float vector_b[16] = {
    0.310546875f, -0.06982421875f, 1.8984375f, -2.203125f,      0.0030059814453125f, 0.640625f,
    -1.109375f,   0.87890625f,     1.453125f,  -0.51953125f,    0.1904296875f,       -1.7265625f,
    2.046875f,    0.96875f,        -0.359375f, -0.010009765625f};
static const float vector_c[16] = {6.25f, -6.25f, 5,    3,    1,    .5f,  .25f, 0,
                                   1.5f,  1.5f,   1.5f, 1.5f, 1.5f, 1.5f, 1.5f, 1.5f};
static const float vector_d[16] = {
    0.030029296875f,   -0.02001953125f,      0.010009765625f,        0.0050048828125f,
    0.00250244140625f, 0.00099945068359375f, -0.000499725341796875f, 0,
    0.0150146484375f,  0.0150146484375f,     0.0150146484375f,       0.0150146484375f,
    0.0150146484375f,  0.0150146484375f,     0.0150146484375f,       0.0150146484375f};
static const float vector_f[16] = {11.25f,    2.34375f, 4.6875f, 9.375f,
                                   -2.34375f, -4.6875f, -9.375f, 1.875f};
static const float vector_g[32] = {0,
                                   0.02001953125f,
                                   -0.050048828125f,
                                   0.10986328125f,
                                   0.400390625f,
                                   -0.75f,
                                   0.8984375f,
                                   -1.296875f,
                                   1.703125f,
                                   2.40625f,
                                   -3.09375f,
                                   0.6015625f,
                                   0.330078125f,
                                   -0.2890625f,
                                   0.1396484375f,
                                   -0.080078125f,
                                   1.046875f,
                                   -0.94921875f,
                                   0.5f,
                                   0.25f,
                                   -0.125f,
                                   2,
                                   -2.75f,
                                   3.40625f,
                                   0.06982421875f,
                                   -0.6015625f,
                                   0.80859375f,
                                   1.203125f,
                                   -1.6015625f,
                                   0.02001953125f,
                                   -0.010009765625f,
                                   0.44921875f};

typedef struct vector {
    const float *x;
    uint8_t      scale;
    uint8_t      values[8];
    bool         has_decoded;
    float        decoded[16];
} vector;

static void test_main_vectors(void **state)
{
    static const float  zeros[16] = {0};
    static const vector vectors[] = {
        {vector_a,
         0x38,
         {0x10, 0x2a, 0x3a, 0xc4, 0x65, 0x6e, 0xf7, 0x80},
         true,
         {0, .5f, -1, 1, -1, 1.5f, 2, -2, 3, 4, -4, 4, 6, -6, 0, -0.0f}},
        {vector_b,
         0x2c,
         {0x82, 0xf7, 0x30, 0x4d, 0xb6, 0xe1, 0x57, 0x8a},
         true,
         {.375f, -0.0f, 2.25f, -2.25f, 0, .5625f, -1.125f, .75f, 1.5f, -.5625f, .1875f, -1.5f,
          2.25f, 1.125f, -.375f, -0.0f}},
        {vector_c, 0x38, {0xf7, 0x56, 0x12, 0x00, 0x33, 0x33, 0x33, 0x33}, false, {0}},
        {vector_d, 0x03, {0xd7, 0x23, 0x01, 0x08, 0x55, 0x55, 0x55, 0x55}, false, {0}},
        {zeros, 0x01, {0}, true, {0}},
        {vector_f, 0x3f, {0x27, 0x64, 0xca, 0x2e, 0x00, 0x00, 0x00, 0x00}, false, {0}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        uint8_t values[8];
        uint8_t scale;
        float   y[16];

        assert_int_equal(kvi_quant_main(vectors[i].x, 16, values, &scale), 0);
        assert_int_equal(scale, vectors[i].scale);
        assert_memory_equal(values, vectors[i].values, sizeof values);
        kvi_dequant_main(values, &scale, 16, y);
        if (vectors[i].has_decoded)
            assert_memory_equal(y, vectors[i].decoded, sizeof y); /* signs of zero too */
    }
}

/* One non-zero value in a group of 32: its scale and its code. */
static void check_single(const quantiser *q, float x, uint8_t scale, uint8_t code)
{
    float   row[32] = {0};
    uint8_t values[32];
    uint8_t s;

    row[0] = x;
    assert_int_equal(q->quant(row, 32, values, &s), 0);
    assert_int_equal(s, scale);
    assert_int_equal(values[0], code);
}

static void test_index_vectors(void **state)
{
    static const uint8_t want[16] = {0x00, 0x08, 0xa1, 0xb2, 0x43, 0x1d, 0x91, 0x80,
                                     0xa2, 0x01, 0x48, 0x5d, 0x90, 0x22, 0x0b, 0x18};
    const quantiser     *q = &quantisers[1];
    uint8_t              values[16];
    uint8_t              scale;

    (void)state;
    assert_int_equal(kvi_quant_index(vector_g, 32, values, &scale), 0);
    assert_int_equal(scale, 0x7f);
    assert_memory_equal(values, want, sizeof want);
    check_single(q, 6, 0x7f, 7);
    check_single(q, 6.03125f, 0x80, 5);
    check_single(q, 3, 0x7e, 7);
    check_single(q, 3.015625f, 0x7f, 5);
    check_single(q, 12, 0x80, 7);
    check_single(q, 0, 0x01, 0);
    check_single(q, -0.0f, 0x01, 8);
    check_single(q, bf16_value(0x7f7f), 0xfd, 6); /* largest bf16: 3.984 x 2^126, code 4 */
    check_single(q, bf16_value(0x0001), 0x01, 0);
}

static void test_window_vectors(void **state)
{
    static const uint8_t want[32] = {0x00, 0x42, 0xcd, 0x56, 0x65, 0xec, 0x6e, 0xf2,
                                     0x76, 0x7a, 0xfc, 0x6a, 0x63, 0xe1, 0x59, 0xd2,
                                     0x70, 0xef, 0x68, 0x60, 0xd8, 0x78, 0xfb, 0x7e,
                                     0x51, 0xea, 0x6d, 0x72, 0xf5, 0x42, 0xba, 0x66};
    const quantiser     *q = &quantisers[2];
    uint8_t              values[32];
    uint8_t              scale;

    (void)state;
    assert_int_equal(kvi_quant_window(vector_g, 32, values, &scale), 0);
    assert_int_equal(scale, 0x78);
    assert_memory_equal(values, want, sizeof want);
    check_single(q, 448, 0x7f, 0x7e);
    check_single(q, 450, 0x80, 0x76);
    check_single(q, 7, 0x79, 0x7e);
    check_single(q, 7.03125f, 0x7a, 0x76);
    check_single(q, 0, 0x69, 0x00);
    check_single(q, -0.0f, 0x69, 0x80);
}

/* The scale of every bf16 amax that the format can hold, against exact arithmetic; and the fact
 * that a product with fp32(1/6) would have done as well. */
static void test_main_scale_of_every_bf16(void **state)
{
    const float sixth = 1.0f / 6.0f;
    unsigned    n = 0;

    (void)state;
    for (unsigned c = 0; c <= 0x7f7f; c++) {
        const float amax = bf16_value(c);
        float       row[16] = {0};
        uint8_t     values[8];
        uint8_t     scale;
        unsigned    want;

        row[c % 16] = c % 2 ? amax : -amax;
        assert_int_equal(kvi_quant_main(row, 16, values, &scale), 0);
        want = ref_nearest(&e4m3, amax < 0.01171875f ? 0.01171875 : (double)amax, 6.0);
        assert_int_equal(scale, want);
        assert_in_range(scale, 1, 0x7e);
        if (amax >= 0.01171875f && amax <= 2688.0f) {
            n++;
            assert_int_equal(kvi_f32_to_e4m3(amax / 6.0f), want);
            assert_int_equal(kvi_f32_to_e4m3(amax * sixth), want);
        }
    }
    assert_int_equal(n, 2281);
}

/* The same for the two power-of-two scales. */
static void check_pow2_scale(const quantiser *q, double top, double floor, unsigned expected)
{
    unsigned n = 0;

    for (unsigned c = 0; c <= 0x7f7f; c++) {
        const float amax = bf16_value(c);
        float       row[32] = {0};
        uint8_t     values[32];
        uint8_t     scale;

        row[c % 32] = c % 2 ? amax : -amax;
        assert_int_equal(q->quant(row, 32, values, &scale), 0);
        n += (double)amax >= floor;
        assert_int_equal(scale, 127 + ref_ceil_log2((double)amax < floor ? floor : amax, top));
    }
    assert_int_equal(n, expected);
}

static void test_index_scale_of_every_bf16(void **state)
{
    (void)state;
    check_pow2_scale(&quantisers[1], 6, ldexp(6, -126), 32192);
}

static void test_window_scale_of_every_bf16(void **state)
{
    (void)state;
    check_pow2_scale(&quantisers[2], 448, (double)1e-4f, 18094);
}

/* Every scale code that a group of the main format can have, with every bf16 of the six binades
 * below its largest value. */
static void test_main_elements_of_every_scale(void **state)
{
    (void)state;
    for (unsigned c = 1; c <= 0x7e; c++) {
        const double s = ref_value(&e4m3, c);
        const float  top = (float)(6 * s); /* exact in bf16 */
        unsigned     bits = (kvi_f32_bits(top) >> 16) - 6 * 128;

        while (bf16_value(bits) < top) {
            float   row[16] = {top};
            uint8_t values[8];
            uint8_t scale;

            for (size_t i = 1; i < 16; i++, bits++)
                row[i] =
                    (bits % 2 ? -1.0f : 1.0f) * (bf16_value(bits) < top ? bf16_value(bits) : 0);
            assert_int_equal(kvi_quant_main(row, 16, values, &scale), 0);
            assert_int_equal(scale, c);
            for (size_t i = 0; i < 16; i++)
                assert_int_equal(nibble(values, i), ref_nearest(&e2m1, row[i], s));
        }
    }
}

/* Exactly three (value, scale) mantissas come out differently when the division is replaced by a
 * product with the reciprocal: the scale 1.875 and the quotients 1.25, 2.5 and 5, which are ties.
 */
static void test_main_division_is_needed_for_three_pairs(void **state)
{
    unsigned n = 0;

    (void)state;
    for (unsigned ms = 8; ms < 16; ms++) {
        const float s = (float)ms / 8;
        const float inverse = 1.0f / s;

        for (int e = -5; e <= 4; e++) {
            for (unsigned mx = 128; mx < 256; mx++) {
                const float    x = ldexpf((float)mx, e - 7);
                const unsigned exact = ref_nearest(&e2m1, x, s);

                assert_int_equal(kvi_f32_to_e2m1(x / s), exact);
                if (kvi_f32_to_e2m1(x * inverse) == exact)
                    continue;
                n++;
                assert_true(s == 1.875f && (x == 2.34375f || x == 4.6875f || x == 9.375f));
                assert_int_equal(kvi_f32_to_e2m1(x * inverse), exact + 1);
            }
        }
    }
    assert_int_equal(n, 3);
}

/* Rows of many magnitudes against the reference; decoding is exact and lands on bf16 values. */
static void test_quantisers_match_reference(void **state)
{
    uint32_t seed = 7;

    (void)state;
    for (unsigned round = 0; round < 300; round++) {
        const size_t     width = 32u * (1u + round % 4);
        const quantiser *q = &quantisers[round % N_QUANTISERS];
        const int        low = -14 + (int)(round / 3 % 20);
        float            x[128];
        float            y[128];
        row_codes        want;
        row_codes        got;

        for (size_t i = 0; i < width; i++)
            x[i] = next_random(&seed) % 8 ? random_bf16(&seed, low, low + 6) : 0;
        q->ref(x, width, &want);
        assert_int_equal(q->quant(x, width, got.values, got.scales), 0);
        assert_memory_equal(got.scales, want.scales, width / q->group);
        assert_memory_equal(got.values, want.values, width / q->per_byte);
        q->dequant(got.values, got.scales, width, y);
        for (size_t i = 0; i < width; i++) {
            const unsigned     v = q->per_byte == 1 ? want.values[i] : nibble(want.values, i);
            const small_float *f = q->per_byte == 1 ? &e4m3 : &e2m1;
            const unsigned     s = want.scales[i / q->group];
            const double scale = q->group == 16 ? ref_value(&e4m3, s) : ldexp(1, (int)s - 127);

            assert_true(fabs((double)y[i]) == ref_value(f, v & (f->sign - 1)) * scale);
            assert_true(!signbit(y[i]) == !(v & f->sign));
            assert_int_equal(kvi_f32_bits(y[i]) & 0xffffu, 0); /* a bf16 */
        }
    }
}

static void test_quantisers_match_golden(void **state)
{
    (void)state;
    for (size_t r = 0; r < GOLDEN_ROWS; r++) {
        float   x[GOLDEN_WIDTH];
        uint8_t values[GOLDEN_WIDTH];
        uint8_t scales[GOLDEN_WIDTH / 16];

        for (size_t i = 0; i < GOLDEN_WIDTH; i++)
            x[i] = bf16_value(golden_input[r][i]);
        assert_int_equal(kvi_quant_main(x, GOLDEN_WIDTH, values, scales), 0);
        assert_memory_equal(values, golden_main_values[r], GOLDEN_WIDTH / 2);
        assert_memory_equal(scales, golden_main_scales[r], GOLDEN_WIDTH / 16);
        assert_int_equal(kvi_quant_index(x, GOLDEN_WIDTH, values, scales), 0);
        assert_memory_equal(values, golden_index_values[r], GOLDEN_WIDTH / 2);
        assert_memory_equal(scales, golden_index_scales[r], GOLDEN_WIDTH / 32);
        assert_int_equal(kvi_quant_window(x, GOLDEN_WIDTH, values, scales), 0);
        assert_memory_equal(values, golden_window_values[r], GOLDEN_WIDTH);
        assert_memory_equal(scales, golden_window_scales[r], GOLDEN_WIDTH / 32);
    }
}

/* What the reference run of the tiny checkpoint had in front of its quantisers, and the entries
 * that it stored. A record is main values, main scales, index values, index scales. */
static void test_quantisers_match_reference_run(void **state)
{
    static const unsigned layers[] = {2, 4, 5};
    char                  err[200];
    st_file              *f = st_open("test/golden/t1/t1-f32.safetensors", err, sizeof err);
    size_t                n_rows = 0;

    (void)state;
    assert_non_null(f);
    for (size_t l = 0; l < 3; l++) {
        char             name[64];
        const st_tensor *main_in;
        const st_tensor *index_in;
        const st_tensor *entries;

        snprintf(name, sizeof name, "oneshot61.step0.pre.main.%u", layers[l]);
        assert_non_null(main_in = st_find(f, name));
        snprintf(name, sizeof name, "oneshot61.step0.pre.ikey.%u", layers[l]);
        assert_non_null(index_in = st_find(f, name));
        snprintf(name, sizeof name, "oneshot61.entries.%u", layers[l]);
        assert_non_null(entries = st_find(f, name));
        assert_true(main_in->shape[1] == 96 && index_in->shape[1] == 64 && entries->shape[1] == 88);
        assert_true(main_in->shape[0] == entries->shape[0] &&
                    index_in->shape[0] == entries->shape[0]);
        for (size_t r = 0; r < entries->shape[0]; r++, n_rows++) {
            float   x[96];
            uint8_t got[88];

            for (size_t i = 0; i < 96; i++)
                x[i] = kvi_round_bf16(((const float *)main_in->data)[96 * r + i]);
            assert_int_equal(kvi_quant_main(x, 96, got, got + 48), 0);
            for (size_t i = 0; i < 64; i++)
                x[i] = kvi_round_bf16(((const float *)index_in->data)[64 * r + i]);
            assert_int_equal(kvi_quant_index(x, 64, got + 54, got + 86), 0);
            assert_memory_equal(got, (const uint8_t *)entries->data + 88 * r, 88);
        }
    }
    assert_int_equal(n_rows, 30 + 30 + 61);
    st_close(f);
}

/* Q-MAIN twice: the same bytes wherever the scale is a normal E4M3, that is for amax >= 0.09375. */
static void test_main_is_idempotent_with_normal_scales(void **state)
{
    uint32_t seed = 3;

    (void)state;
    for (unsigned round = 0; round < 3000; round++) {
        float   x[16];
        float   y[16];
        uint8_t v[2][8];
        uint8_t s[2];

        for (size_t i = 0; i < 16; i++)
            x[i] = random_bf16(&seed, -9, (int)(round % 12));
        x[round % 16] = random_bf16(&seed, -3, 10);
        assert_true(ref_amax(x, 16, 0) >= 0.09375);
        assert_int_equal(kvi_quant_main(x, 16, v[0], &s[0]), 0);
        assert_true(s[0] >= 0x08);
        kvi_dequant_main(v[0], &s[0], 16, y);
        assert_int_equal(kvi_quant_main(y, 16, v[1], &s[1]), 0);
        assert_int_equal(s[1], s[0]);
        assert_memory_equal(v[1], v[0], 8);
    }
}

/* Where it is not: a subnormal scale clips the second time (amax/6 = 1.5 x 2^-9 rounds to 2^-8). */
static void test_main_with_subnormal_scale_clips_when_repeated(void **state)
{
    float   x[16] = {9 * 0x1p-9f};
    float   y[16];
    uint8_t values[8];
    uint8_t scale;

    (void)state;
    assert_int_equal(kvi_quant_main(x, 16, values, &scale), 0);
    assert_int_equal(scale, 0x02);
    assert_int_equal(values[0], 6);
    kvi_dequant_main(values, &scale, 16, y);
    assert_true(y[0] == 8 * 0x1p-9f);
    assert_int_equal(kvi_quant_main(y, 16, values, &scale), 0);
    assert_int_equal(scale, 0x01);
    assert_int_equal(values[0], 7);
    kvi_dequant_main(values, &scale, 16, y);
    assert_true(y[0] == 6 * 0x1p-9f);
}

/* The power-of-two rules: values reproduce, the scale byte often does not. */
static void test_pow2_rules_repeat_values_but_not_scales(void **state)
{
    (void)state;
    for (size_t k = 1; k < N_QUANTISERS; k++) {
        const quantiser *q = &quantisers[k];
        uint32_t         seed = 11;
        unsigned         changed = 0;

        for (unsigned round = 0; round < 1000; round++) {
            float     x[32];
            float     y[2][32];
            row_codes c[2];

            for (size_t i = 0; i < 32; i++)
                x[i] = random_bf16(&seed, -8, 2);
            q->quant(x, 32, c[0].values, c[0].scales);
            q->dequant(c[0].values, c[0].scales, 32, y[0]);
            q->quant(y[0], 32, c[1].values, c[1].scales);
            q->dequant(c[1].values, c[1].scales, 32, y[1]);
            assert_memory_equal(y[1], y[0], sizeof y[0]);
            changed += c[0].scales[0] != c[1].scales[0];
        }
        assert_in_range(changed, 1, 999);
    }
}

static void test_quantisers_poison_their_group_only(void **state)
{
    static const uint32_t bad[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x7f800000u, 0xff800000u};

    (void)state;
    for (size_t k = 0; k < N_QUANTISERS; k++) {
        const quantiser *q = &quantisers[k];

        for (size_t at = 0; at < 96; at++) {
            const size_t bad_group = at / q->group;
            uint32_t     seed = 5;
            float        x[96];
            float        y[96];
            row_codes    clean;
            row_codes    got;

            for (size_t i = 0; i < 96; i++)
                x[i] = random_bf16(&seed, -4, 3);
            assert_int_equal(q->quant(x, 96, clean.values, clean.scales), 0);
            x[at] = kvi_bits_f32(bad[at % 5]);
            assert_int_equal(q->quant(x, 96, got.values, got.scales), 1);
            q->dequant(got.values, got.scales, 96, y);
            for (size_t g = 0; g < 96 / q->group; g++) {
                const uint8_t zero[32] = {0};
                const size_t  n = q->group / q->per_byte;
                const bool    is_bad = g == bad_group;

                assert_int_equal(got.scales[g], is_bad ? q->nan_scale : clean.scales[g]);
                assert_memory_equal(got.values + g * n, is_bad ? zero : clean.values + g * n, n);
                for (size_t i = 0; i < q->group; i++)
                    assert_true(!isnan(y[g * q->group + i]) == !is_bad);
            }
        }
    }
}

/* Output ends where it should, at any alignment, and an empty row writes nothing. */
static void test_quantisers_stay_inside_their_outputs(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_QUANTISERS; k++) {
        const quantiser *q = &quantisers[k];

        for (size_t width = 0; width <= 96; width += 32) {
            const size_t nv = width / q->per_byte;
            const size_t ns = width / q->group;
            uint8_t      values[100];
            uint8_t      scales[16];
            float        x[97];
            float        y[100];

            memset(values, 0xee, sizeof values);
            memset(scales, 0xee, sizeof scales);
            for (size_t i = 0; i < 97; i++)
                x[i] = (float)i - 40;
            for (size_t i = 0; i < 100; i++)
                y[i] = 12345;
            assert_int_equal(q->quant(x + 1, width, values + 3, scales + 1), 0);
            q->dequant(values + 3, scales + 1, width, y + 1);
            for (size_t i = 0; i < sizeof values; i++)
                if (i < 3 || i >= 3 + nv)
                    assert_int_equal(values[i], 0xee);
            for (size_t i = 0; i < sizeof scales; i++)
                if (i < 1 || i >= 1 + ns)
                    assert_int_equal(scales[i], 0xee);
            for (size_t i = 0; i < 100; i++)
                assert_true((y[i] == 12345) == (i < 1 || i >= 1 + width));
        }
    }
}

static void test_unpack_doubles_every_pair_of_codes(void **state)
{
    uint8_t bytes[256];
    int8_t  out[514];

    (void)state;
    for (unsigned b = 0; b < 256; b++)
        bytes[b] = (uint8_t)b;
    memset(out, 99, sizeof out);
    kvi_unpack_e2m1_x2(bytes, 512, out + 1);
    for (unsigned i = 0; i < 512; i++) {
        const unsigned code = nibble(bytes, i);
        const double   v = 2 * ref_value(&e2m1, code & 7u);

        assert_true(out[1 + i] == (code & 8u ? -v : v));
    }
    assert_true(out[0] == 99 && out[513] == 99);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_main_vectors),
        cmocka_unit_test(test_index_vectors),
        cmocka_unit_test(test_window_vectors),
        cmocka_unit_test(test_main_scale_of_every_bf16),
        cmocka_unit_test(test_index_scale_of_every_bf16),
        cmocka_unit_test(test_window_scale_of_every_bf16),
        cmocka_unit_test(test_main_elements_of_every_scale),
        cmocka_unit_test(test_main_division_is_needed_for_three_pairs),
        cmocka_unit_test(test_quantisers_match_reference),
        cmocka_unit_test(test_quantisers_match_golden),
        cmocka_unit_test(test_quantisers_match_reference_run),
        cmocka_unit_test(test_main_is_idempotent_with_normal_scales),
        cmocka_unit_test(test_main_with_subnormal_scale_clips_when_repeated),
        cmocka_unit_test(test_pow2_rules_repeat_values_but_not_scales),
        cmocka_unit_test(test_quantisers_poison_their_group_only),
        cmocka_unit_test(test_quantisers_stay_inside_their_outputs),
        cmocka_unit_test(test_unpack_doubles_every_pair_of_codes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
