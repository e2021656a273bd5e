/* Element types, quantisers and the byte map of a block.
 *
 * The reference of this file knows the formats by their definition (sign, exponent, mantissa) and
 * finds codes by trying all of them in double; it shares nothing with the library's conversions. */
#include "base/alloc.h"
#include "base/bytes.h"
#include "format/dtype.h"
#include "format/fp4.h"
#include "format/fp8.h"
#include "format/kv_layout.h"

#include "golden/quant/rows.h"
#include "support/st_io.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_WIDTH 512u

/* ------------------------------------------------------------------ reference */

typedef struct small_float {
    int      mant_bits;
    int      bias;
    unsigned sign;     /* the sign bit */
    unsigned max_code; /* of the largest finite magnitude */
} small_float;

static const small_float e2m1 = {1, 1, 0x8, 0x7};
static const small_float e4m3 = {3, 7, 0x80, 0x7e};
static const small_float e5m2 = {2, 15, 0x80, 0x7b};
static const small_float fp16 = {10, 15, 0x8000, 0x7bff};

static double ref_value(const small_float *f, unsigned magnitude)
{
    const int field = (int)(magnitude >> f->mant_bits);
    const int mant = (int)(magnitude & ((1u << f->mant_bits) - 1));
    const int one = 1 << f->mant_bits;

    if (field == 0)
        return ldexp(mant, 1 - f->bias - f->mant_bits);
    return ldexp(one + mant, field - f->bias - f->mant_bits);
}

/* Code whose value times s is nearest to x; ties to the even code; saturating. For the x and s of
 * this file every difference that matters is exact in double. */
static unsigned ref_nearest(const small_float *f, double x, double s)
{
    const double a = fabs(x);
    double       best = INFINITY;
    unsigned     code = 0;

    for (unsigned c = 0; c <= f->max_code; c++) {
        const double d = fabs(a - ref_value(f, c) * s);

        if (d < best || (d == best && c % 2 == 0)) {
            best = d;
            code = c;
        }
    }
    return code | (signbit(x) ? f->sign : 0);
}

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

/* ------------------------------------------------------------------ element types */

static void test_e4m3_decodes_every_code(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 256; c++) {
        const unsigned m = c & 0x7fu;
        const float    v = kvi_e4m3_to_f32((uint8_t)c);

        assert_memory_equal(&v, &kvi_e4m3_values[c], sizeof v);
        assert_true(!signbit(v) == (c < 0x80));
        if (m == 0x7f)
            assert_true(isnan(v));
        else
            assert_true(fabs((double)v) == ref_value(&e4m3, m));
        assert_int_equal(kvi_f32_to_e4m3(v), c);
    }
    assert_true(kvi_e4m3_to_f32(0x7e) == 448.0f && kvi_e4m3_to_f32(0x01) == 0x1p-9f);
    assert_true(kvi_e4m3_to_f32(0x08) == 0x1p-6f && kvi_e4m3_to_f32(0xb8) == -1.0f);
}

static void test_e5m2_decodes_every_code(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 256; c++) {
        const unsigned m = c & 0x7fu;
        const float    v = kvi_e5m2_to_f32((uint8_t)c);

        assert_true(!signbit(v) == (c < 0x80));
        if (m > 0x7c) {
            assert_true(isnan(v));
            assert_int_equal(kvi_f32_to_e5m2(v), (c & 0x80u) | 0x7fu);
        } else if (m == 0x7c) {
            assert_true(isinf(v));
            assert_int_equal(kvi_f32_to_e5m2(v), (c & 0x80u) | 0x7bu); /* saturates */
        } else {
            assert_true(fabs((double)v) == ref_value(&e5m2, m));
            assert_int_equal(kvi_f32_to_e5m2(v), c);
        }
    }
    assert_true(kvi_e5m2_to_f32(0x7b) == 57344.0f && kvi_e5m2_to_f32(0x01) == 0x1p-16f);
}

static void test_e2m1_decodes_every_code(void **state)
{
    static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

    (void)state;
    for (unsigned c = 0; c < 16; c++) {
        const float v = kvi_e2m1_to_f32((uint8_t)c);

        assert_memory_equal(&v, &kvi_e2m1_values[c], sizeof v);
        assert_true(fabsf(v) == values[c & 7u] && !signbit(v) == (c < 8));
        assert_true((double)values[c & 7u] == ref_value(&e2m1, c & 7u));
        assert_int_equal(kvi_f32_to_e2m1(v), c);
        assert_true(kvi_e2m1_to_f32((uint8_t)(c | 0xa0u)) == v); /* upper bits do not matter */
    }
}

static void check_encode(const small_float *f, unsigned (*encode)(float), float x)
{
    assert_int_equal(encode(x), ref_nearest(f, (double)x, 1.0));
    assert_int_equal(encode(-x), ref_nearest(f, -(double)x, 1.0));
}

/* Around every value and every midpoint between two: on it, and one ulp to each side. */
static void check_encode_neighbours(const small_float *f, unsigned (*encode)(float))
{
    for (unsigned c = 0; c <= f->max_code; c++) {
        const float v = (float)ref_value(f, c);
        float       mid;

        check_encode(f, encode, v);
        check_encode(f, encode, nextafterf(v, INFINITY));
        if (c > 0)
            check_encode(f, encode, nextafterf(v, 0));
        if (c == f->max_code)
            break;
        mid = (float)((ref_value(f, c) + ref_value(f, c + 1)) / 2);
        assert_true((double)mid * 2 == ref_value(f, c) + ref_value(f, c + 1));
        check_encode(f, encode, mid);
        check_encode(f, encode, nextafterf(mid, 0));
        check_encode(f, encode, nextafterf(mid, INFINITY));
        /* the same without the reference: a tie goes to the even code, a neighbour to its side */
        assert_int_equal(encode(mid), c + c % 2);
        assert_int_equal(encode(-nextafterf(mid, 0)), c | f->sign);
        assert_int_equal(encode(-nextafterf(mid, INFINITY)), (c + 1) | f->sign);
    }
}

static unsigned encode_e4m3(float x)
{
    return kvi_f32_to_e4m3(x);
}

static unsigned encode_e5m2(float x)
{
    return kvi_f32_to_e5m2(x);
}

static unsigned encode_e2m1(float x)
{
    return kvi_f32_to_e2m1(x);
}

static void test_small_floats_round_ties_to_even(void **state)
{
    static const float   mids[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    static const uint8_t codes[7] = {0, 2, 2, 4, 4, 6, 6};

    (void)state;
    check_encode_neighbours(&e4m3, encode_e4m3);
    check_encode_neighbours(&e5m2, encode_e5m2);
    check_encode_neighbours(&e2m1, encode_e2m1);
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(kvi_f32_to_e2m1(mids[i]), codes[i]);
        assert_int_equal(kvi_f32_to_e2m1(-mids[i]), codes[i] | 8u);
    }
}

static void test_small_floats_saturate(void **state)
{
    static const float big[] = {448.0f,   460.0f, 464.0f,  465.0f,   480.0f,  57344.0f,
                                61440.0f, 1e9f,   FLT_MAX, 0x1p127f, INFINITY};

    (void)state;
    for (size_t i = 0; i < sizeof big / sizeof *big; i++) {
        assert_int_equal(kvi_f32_to_e4m3(big[i]), 0x7e);
        assert_int_equal(kvi_f32_to_e4m3(-big[i]), 0xfe);
        assert_int_equal(kvi_f32_to_e2m1(big[i]), 0x7);
        assert_int_equal(kvi_f32_to_e2m1(-big[i]), 0xf);
        if (big[i] >= 57344.0f) {
            assert_int_equal(kvi_f32_to_e5m2(big[i]), 0x7b);
            assert_int_equal(kvi_f32_to_e5m2(-big[i]), 0xfb);
        }
    }
    /* far below the smallest value: zero with the sign, also from subnormal floats */
    for (float x = 0x1p-20f; x > 0; x /= 2) {
        assert_int_equal(kvi_f32_to_e4m3(x), 0x00);
        assert_int_equal(kvi_f32_to_e4m3(-x), 0x80);
        assert_int_equal(kvi_f32_to_e5m2(-x), 0x80);
        assert_int_equal(kvi_f32_to_e2m1(-x), 0x8);
    }
}

static void test_small_floats_keep_nan(void **state)
{
    static const uint32_t nans[] = {0x7fc00000u, 0x7f800001u, 0x7fffffffu, 0x7fa12345u};

    (void)state;
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        const float p = kvi_bits_f32(nans[i]);
        const float n = kvi_bits_f32(nans[i] | 0x80000000u);

        assert_int_equal(kvi_f32_to_e4m3(p), 0x7f);
        assert_int_equal(kvi_f32_to_e4m3(n), 0xff);
        assert_int_equal(kvi_f32_to_e5m2(p), 0x7f);
        assert_int_equal(kvi_f32_to_e5m2(n), 0xff);
        assert_int_equal(kvi_f32_to_e2m1(p), 0);
        assert_int_equal(kvi_f32_to_e2m1(n), 0);
        assert_int_equal(kvi_f32_to_e8m0_up(p), 255);
        assert_int_equal(kvi_f32_to_e8m0_up(n), 255);
        assert_true(isnan(kvi_round_bf16(p)) && isnan(kvi_round_bf16(n)));
        assert_true(isnan(kvi_fp16_to_f32(kvi_f32_to_fp16(p))));
        assert_int_equal(kvi_f32_to_fp16(n) >> 15, 1);
        assert_int_equal(kvi_f32_to_bf16(n) >> 15, 1);
    }
}

static void test_e8m0_is_a_power_of_two(void **state)
{
    (void)state;
    for (int c = 0; c < 255; c++) {
        assert_true((double)kvi_e8m0_to_f32((uint8_t)c) == ldexp(1, c - 127));
        assert_int_equal(kvi_f32_to_e8m0_up(kvi_e8m0_to_f32((uint8_t)c)), c);
    }
    assert_true(kvi_e8m0_to_f32(0) == 0x1p-127f && kvi_e8m0_to_f32(1) == 0x1p-126f);
    assert_true(kvi_e8m0_to_f32(127) == 1.0f && kvi_e8m0_to_f32(254) == 0x1p127f);
    assert_true(isnan(kvi_e8m0_to_f32(255)));
}

static void test_e8m0_rounds_up(void **state)
{
    static const float none[] = {0.0f, -0.0f, -1.0f, -FLT_MIN, INFINITY, -INFINITY};

    (void)state;
    for (int k = -126; k < 127; k++) {
        const float p = ldexpf(1, k);

        assert_int_equal(kvi_f32_to_e8m0_up(p), k + 127);
        assert_int_equal(kvi_f32_to_e8m0_up(nextafterf(p, INFINITY)), k + 128);
        assert_int_equal(kvi_f32_to_e8m0_up(nextafterf(p, 0)), k + 127);
    }
    assert_int_equal(kvi_f32_to_e8m0_up(0x1p-149f), 0);
    assert_int_equal(kvi_f32_to_e8m0_up(0x1p-127f), 0);
    assert_int_equal(kvi_f32_to_e8m0_up(nextafterf(0x1p-127f, 1)), 1);
    assert_int_equal(kvi_f32_to_e8m0_up(0x1p127f), 254);
    assert_int_equal(kvi_f32_to_e8m0_up(FLT_MAX), 254); /* clamped */
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(kvi_f32_to_e8m0_up(none[i]), 255);
}

static void test_bf16_round_trips_every_code(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 0x10000; c++) {
        const float v = kvi_bf16_to_f32((uint16_t)c);

        assert_int_equal(kvi_f32_bits(v), c << 16);
        if ((c & 0x7fffu) > 0x7f80) {
            assert_true(isnan(kvi_bf16_to_f32(kvi_f32_to_bf16(v))));
            continue;
        }
        assert_int_equal(kvi_f32_to_bf16(v), c);
        if ((c & 0x7fffu) == 0x7f80)
            continue;
        /* half way to the next code away from zero, and one ulp to each side */
        assert_int_equal(kvi_f32_to_bf16(kvi_bits_f32(c << 16 | 0x8000u)), c + c % 2);
        assert_int_equal(kvi_f32_to_bf16(kvi_bits_f32(c << 16 | 0x7fffu)), c);
        assert_int_equal(kvi_f32_to_bf16(kvi_bits_f32(c << 16 | 0x8001u)), c + 1);
        assert_int_equal(kvi_f32_bits(kvi_round_bf16(kvi_bits_f32(c << 16 | 0x8001u))), (c + 1)
                                                                                            << 16);
    }
    assert_int_equal(kvi_f32_to_bf16(FLT_MAX), 0x7f80);
    assert_int_equal(kvi_f32_to_bf16(-FLT_MAX), 0xff80);
}

static void test_fp16_round_trips_every_code(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 0x10000; c++) {
        const unsigned m = c & 0x7fffu;
        const float    v = kvi_fp16_to_f32((uint16_t)c);
        const float    up = m < 0x7bff ? (float)ref_value(&fp16, m + 1) : 65536.0f;
        float          mid;

        assert_true(!signbit(v) == (c < 0x8000));
        if (m > 0x7c00) {
            assert_true(isnan(v) && (kvi_f32_to_fp16(v) & 0x7fffu) > 0x7c00);
            continue;
        }
        assert_int_equal(kvi_f32_to_fp16(v), c);
        if (m == 0x7c00) {
            assert_true(isinf(v));
            continue;
        }
        assert_true(fabs((double)v) == ref_value(&fp16, m));
        mid = copysignf((fabsf(v) + up) / 2, v);
        assert_int_equal(kvi_f32_to_fp16(mid), c + c % 2);
        assert_int_equal(kvi_f32_to_fp16(nextafterf(mid, 0)), c);
        assert_int_equal(kvi_f32_to_fp16(nextafterf(mid, copysignf(INFINITY, v))), c + 1);
    }
    assert_int_equal(kvi_f32_to_fp16(65519.99f), 0x7bff);
    assert_int_equal(kvi_f32_to_fp16(65520.0f), 0x7c00);
    assert_int_equal(kvi_f32_to_fp16(-INFINITY), 0xfc00);
    assert_int_equal(kvi_f32_to_fp16(0x1p-149f), 0);
    assert_int_equal(kvi_f32_to_fp16(-0x1p-149f), 0x8000);
}

static void test_casts_match_golden(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden_casts / sizeof *golden_casts; i++) {
        const float x = kvi_bits_f32(golden_casts[i].x);

        assert_int_equal(kvi_f32_to_e4m3(x), golden_casts[i].e4m3);
        assert_int_equal(kvi_f32_to_e5m2(x), golden_casts[i].e5m2);
        assert_int_equal(kvi_f32_to_bf16(x), golden_casts[i].bf16);
        assert_int_equal(kvi_f32_to_fp16(x), golden_casts[i].fp16);
    }
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

/* ------------------------------------------------------------------ byte map of a block */

#define MAX_LAYERS 24

/* Rows of which only the fields that a layout reads are set; ratios[l] != 0 makes l an owner. */
static void owners_plan(kvi_plan *plan, kvi_plan_row *rows, uint32_t n, const uint32_t *ratios,
                        uint32_t entry_width, uint32_t index_width, uint32_t block_tokens)
{
    memset(rows, 0, n * sizeof *rows);
    *plan =
        (kvi_plan){.n_layers = n, .block_tokens = block_tokens, .max_tokens = 1024, .rows = rows};
    for (uint32_t l = 0; l < n; l++) {
        rows[l].kv_owner = ratios[l] ? (int32_t)l : (l ? rows[l - 1].kv_owner : KVI_NO_LAYER);
        rows[l].ratio = ratios[l] ? ratios[l] : (l ? rows[l - 1].ratio : 0);
        rows[l].entry_width = entry_width;
        rows[l].entry_format = KVCSA_FORMAT_FP4_E4M3_G16;
        rows[l].entry_bytes = entry_width / 2 + entry_width / 16;
        rows[l].index_width = index_width;
        rows[l].index_format = KVCSA_FORMAT_FP4_E8M0_G32;
        rows[l].index_bytes = index_width / 2 + index_width / 32;
    }
}

/* Adds one to every byte of a piece, which lies inside its part. */
static void mark(uint8_t *part, size_t part_bytes, size_t off, size_t n)
{
    assert_true(off <= part_bytes && n <= part_bytes - off);
    for (size_t i = 0; i < n; i++)
        part[off + i]++;
}

/* Values and scales of all rows of all owners cover both parts exactly once. */
static void check_tiling(const kvi_kv_layout *layout)
{
    uint8_t *index = calloc(layout->index_part_bytes + 1u, 1);
    uint8_t *entries = calloc(layout->main_part_bytes + 1u, 1);

    assert_true(index && entries);
    for (uint32_t i = 0; i < layout->n_owners; i++) {
        const kvi_kv_owner *o = &layout->owners[i];

        assert_int_equal(o->rows_per_block, layout->block_tokens / o->ratio);
        for (uint32_t r = 0; r < o->rows_per_block; r++) {
            mark(entries, layout->main_part_bytes, kvi_kv_main_row_off(o, r), o->main_row_bytes);
            mark(index, layout->index_part_bytes, kvi_kv_index_values_off(o, r),
                 o->index_value_bytes);
            mark(index, layout->index_part_bytes, kvi_kv_index_scales_off(o, r),
                 o->index_row_bytes - o->index_value_bytes);
            if (r % 8 == 0)
                assert_int_equal(kvi_kv_index_group_off(o, r / 8), kvi_kv_index_values_off(o, r));
            if (r % 8 == 7) /* a group ends with the scales of its last row */
                assert_int_equal(kvi_kv_index_scales_off(o, r) + o->index_row_bytes -
                                     o->index_value_bytes,
                                 kvi_kv_index_group_off(o, r / 8 + 1));
        }
    }
    for (size_t i = 0; i < layout->index_part_bytes; i++)
        assert_int_equal(index[i], 1);
    for (size_t i = 0; i < layout->main_part_bytes; i++)
        assert_int_equal(entries[i], 1);
    free(index);
    free(entries);
}

static void test_layout_of_the_release(void **state)
{
    static const uint32_t ratios[22] = {[2] = 2, [8] = 2, [14] = 2, [20] = 1};
    static const uint32_t layers[4] = {2, 8, 14, 20};
    static const uint32_t index_off[4] = {0, 4352, 8704, 13056};
    static const uint32_t main_off[4] = {0, 18432, 36864, 55296};
    kvi_plan_row          rows[22];
    kvi_plan              plan;
    kvi_kv_layout         layout;
    kvcsa_allocator       a;

    (void)state;
    assert_int_equal(kvi_allocator_import(NULL, &a, NULL), KVCSA_OK);
    owners_plan(&plan, rows, 22, ratios, 512, 128, 128);
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, NULL), KVCSA_OK);
    assert_int_equal(layout.index_part_bytes, 21760);
    assert_int_equal(layout.main_part_bytes, 92160);
    assert_int_equal(layout.n_owners, 4);
    for (uint32_t i = 0; i < 4; i++) {
        const kvi_kv_owner *o = kvi_kv_layout_owner(&layout, layers[i]);

        assert_ptr_equal(o, &layout.owners[i]);
        assert_int_equal(o->layer, layers[i]);
        assert_int_equal(o->ratio, i < 3 ? 2 : 1);
        assert_int_equal(o->rows_per_block, i < 3 ? 64 : 128);
        assert_true(o->main_row_bytes == 288 && o->entry_width == 512);
        assert_true(o->index_row_bytes == 68 && o->index_value_bytes == 64);
        assert_true(o->entry_width == 512 && o->index_width == 128);
        assert_int_equal(o->index_off, index_off[i]);
        assert_int_equal(o->main_off, main_off[i]);
    }
    for (uint32_t l = 0; l < 60; l++)
        if (l != 2 && l != 8 && l != 14 && l != 20)
            assert_null(kvi_kv_layout_owner(&layout, l));
    /* one candidate block of 8 entries is one piece of 544 bytes */
    assert_int_equal(kvi_kv_index_group_off(&layout.owners[3], 3), 13056 + 3 * 544);
    check_tiling(&layout);
    kvi_kv_layout_fini(&layout, &a);
}

static void test_layout_tiles_other_geometries(void **state)
{
    static const struct {
        uint32_t ratios[7];
        uint32_t entry_width;
        uint32_t index_width;
        uint32_t block_tokens;
        uint32_t index_part;
        uint32_t main_part;
    } cases[] = {
        {{0, 0, 2, 0, 2, 1, 0}, 96, 64, 128, 256 * 34, 256 * 54},
        {{0, 0, 2, 0, 2, 1, 0}, 96, 64, 16, 32 * 34, 32 * 54},
        {{0, 0, 2, 0, 2, 1, 0}, 96, 64, 256, 512 * 34, 512 * 54},
        {{1, 0, 0, 0, 0, 0, 0}, 32, 32, 8, 8 * 17, 8 * 18},
        {{4, 0, 128, 0, 1, 0, 0}, 512, 128, 1024, (256 + 8 + 1024) * 68, (256 + 8 + 1024) * 288},
        {{3, 2, 0, 0, 0, 0, 1}, 64, 96, 48, (16 + 24 + 48) * 51, (16 + 24 + 48) * 36},
        {{0, 0, 0, 0, 0, 0, 0}, 64, 96, 128, 0, 0},
    };
    kvcsa_allocator a;

    (void)state;
    assert_int_equal(kvi_allocator_import(NULL, &a, NULL), KVCSA_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvi_plan_row  rows[7];
        kvi_plan      plan;
        kvi_kv_layout layout;

        owners_plan(&plan, rows, 7, cases[i].ratios, cases[i].entry_width, cases[i].index_width,
                    cases[i].block_tokens);
        assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, NULL), KVCSA_OK);
        assert_int_equal(layout.block_tokens, cases[i].block_tokens);
        assert_int_equal(layout.index_part_bytes, cases[i].index_part);
        assert_int_equal(layout.main_part_bytes, cases[i].main_part);
        check_tiling(&layout);
        kvi_kv_layout_fini(&layout, &a);
        assert_true(layout.owners == NULL && layout.n_owners == 0);
        kvi_kv_layout_fini(&layout, &a); /* accepts what it has emptied */
    }
}

static void *counted_alloc(void *user, size_t size, size_t align)
{
    int *left = user;

    if (left[0] == 0)
        return NULL;
    left[0]--;
    left[1]++;
    return aligned_alloc(align, (size + align - 1) / align * align);
}

static void counted_free(void *user, void *ptr, size_t size, size_t align)
{
    (void)size;
    (void)align;
    ((int *)user)[1]--;
    free(ptr);
}

static void test_layout_refuses_what_it_cannot_hold(void **state)
{
    static const uint32_t ratios[2] = {1, 1};
    int                   left[2] = {0, 0};
    const kvcsa_allocator theirs = {counted_alloc, counted_free, left};
    kvcsa_allocator       a;
    kvcsa_error           err;
    kvi_plan_row          rows[2];
    kvi_plan              plan;
    kvi_kv_layout         layout;

    (void)state;
    assert_int_equal(kvi_allocator_import(&theirs, &a, NULL), KVCSA_OK);
    owners_plan(&plan, rows, 2, ratios, 65536, 128, 1u << 20);
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, &err), KVCSA_ERR_NOMEM);
    assert_int_equal(err.status, KVCSA_ERR_NOMEM);
    left[0] = 100;
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, &err), KVCSA_ERR_FORMAT);
    assert_non_null(strstr(err.text, "38654705664 bytes, must be at most 2147483648"));
    assert_null(layout.owners);
    assert_int_equal(left[1], 0); /* nothing is left behind */
    /* a part of exactly 2^31 bytes passes, one byte a row more does not */
    rows[0].entry_bytes = rows[1].entry_bytes = 1024;
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, &err), KVCSA_OK);
    assert_int_equal(layout.main_part_bytes, 1u << 31);
    kvi_kv_layout_fini(&layout, &a);
    rows[0].index_bytes = rows[1].index_bytes = 1024;
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, &err), KVCSA_OK);
    assert_int_equal(layout.index_part_bytes, 1u << 31);
    kvi_kv_layout_fini(&layout, &a);
    rows[1].index_bytes = 1025;
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, &err), KVCSA_ERR_FORMAT);
    rows[1].index_bytes = 68;
    rows[1].entry_bytes = 1025;
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, &err), KVCSA_ERR_FORMAT);
    assert_int_equal(left[1], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e4m3_decodes_every_code),
        cmocka_unit_test(test_e5m2_decodes_every_code),
        cmocka_unit_test(test_e2m1_decodes_every_code),
        cmocka_unit_test(test_small_floats_round_ties_to_even),
        cmocka_unit_test(test_small_floats_saturate),
        cmocka_unit_test(test_small_floats_keep_nan),
        cmocka_unit_test(test_e8m0_is_a_power_of_two),
        cmocka_unit_test(test_e8m0_rounds_up),
        cmocka_unit_test(test_bf16_round_trips_every_code),
        cmocka_unit_test(test_fp16_round_trips_every_code),
        cmocka_unit_test(test_casts_match_golden),
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
        cmocka_unit_test(test_layout_of_the_release),
        cmocka_unit_test(test_layout_tiles_other_geometries),
        cmocka_unit_test(test_layout_refuses_what_it_cannot_hold),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
