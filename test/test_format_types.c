/* Element types: every code against its definition, rounding, saturation, NaN. */
#include "base/bytes.h"
#include "format/dtype.h"

#include "golden/quant/rows.h"
#include "support/small_float.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
