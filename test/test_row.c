/* Rows of entries in every format that runs.
 *
 * The reference reads bytes by the description in docs/formats.md, in double, and shares nothing
 * with the library's conversions; bytes are compared with golden rows that other programs made. */
#include "base/bytes.h"
#include "format/dtype.h"
#include "format/row.h"
#include "plan/cache_plan.h"
#include "plan/plan_cost.h"

#include "golden/quant/rows.h"
#include "golden/row/row_bytes.h"
#include "support/prng.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_WIDTH = 512, MAX_ROW = 4 * MAX_WIDTH };

static uint64_t seed;

static const struct {
    uint32_t format;
    uint32_t group;        /* channels that NaN takes with it */
    uint32_t bytes_of_512; /* the size of a row of the release */
} all[] = {
    {KVCSA_FORMAT_FP4_E4M3_G16, 16, 288}, {KVCSA_FORMAT_FP4_E8M0_G32, 32, 272},
    {KVCSA_FORMAT_FP8_E8M0_G32, 32, 528}, {KVCSA_FORMAT_F32, 1, 2048},
    {KVCSA_FORMAT_F16, 1, 1024},          {KVCSA_FORMAT_BF16, 1, 1024},
    {KVCSA_FORMAT_FP4_AS_F32, 16, 2048},  {KVCSA_FORMAT_Q8_0, 32, 544},
    {KVCSA_FORMAT_Q4_0, 32, 288},         {KVCSA_FORMAT_INT3_F16_G32, 32, 224},
};
enum { N_ALL = sizeof all / sizeof *all };

/* ------------------------------------------------------------------ reference */

/* A small float of 1 + exponent + mant bits without infinities; NaN is the caller's business. */
static double ref_float(unsigned code, int mant, int bias, int n_bits)
{
    const unsigned m = code & ((1u << mant) - 1);
    const int      e = (int)(code >> mant) & ((1 << (n_bits - 1 - mant)) - 1);
    const double   v = e == 0 ? ldexp(m, 1 - bias - mant)
                              : ldexp((1 << mant) + (int)m, e - bias - mant);

    return code >> (n_bits - 1) ? -v : v;
}

static double ref_e4m3(unsigned code)
{
    return (code & 0x7f) == 0x7f ? (double)NAN : ref_float(code, 3, 7, 8);
}

static double ref_e8m0(unsigned code)
{
    return code == 255 ? (double)NAN : ldexp(1, (int)code - 127);
}

static double ref_fp16(const uint8_t *p)
{
    const unsigned code = p[0] | (unsigned)p[1] << 8;

    if ((code & 0x7c00) == 0x7c00)
        return code & 0x3ff ? (double)NAN : code & 0x8000 ? -INFINITY : INFINITY;
    return ref_float(code, 10, 15, 16);
}

static double ref_f32(const uint8_t *p, unsigned n_bytes)
{
    uint32_t u = 0;
    float    v;

    for (unsigned i = 0; i < n_bytes; i++)
        u |= (uint32_t)p[i] << (8 * (4 - n_bytes + i));
    memcpy(&v, &u, sizeof v);
    return (double)v;
}

static double ref_nibble(const uint8_t *values, size_t c)
{
    return ref_float((unsigned)values[c / 2] >> (c % 2 * 4) & 15u, 1, 1, 4);
}

/* 3 bits of a little-endian bit string */
static int ref_three_bits(const uint8_t *bytes, size_t i)
{
    int code = 0;

    for (size_t b = 0; b < 3; b++)
        code |= (bytes[(3 * i + b) / 8] >> (3 * i + b) % 8 & 1) << b;
    return code;
}

/* Channel c of a row. */
static double ref_read(uint32_t format, const uint8_t *row, size_t width, size_t c)
{
    const size_t g = c / 32;
    const size_t i = c % 32;

    switch (format) {
    case KVCSA_FORMAT_FP4_E4M3_G16: return ref_nibble(row, c) * ref_e4m3(row[width / 2 + c / 16]);
    case KVCSA_FORMAT_FP4_E8M0_G32: return ref_nibble(row, c) * ref_e8m0(row[width / 2 + g]);
    case KVCSA_FORMAT_FP8_E8M0_G32: return ref_e4m3(row[c]) * ref_e8m0(row[width + g]);
    case KVCSA_FORMAT_F16: return ref_fp16(row + 2 * c);
    case KVCSA_FORMAT_BF16: return ref_f32(row + 2 * c, 2);
    case KVCSA_FORMAT_Q8_0: return ref_fp16(row + 34 * g) * (int8_t)row[34 * g + 2 + i];
    case KVCSA_FORMAT_Q4_0:
        return ref_fp16(row + 18 * g) * ((row[18 * g + 2 + i % 16] >> (i / 16 * 4) & 15) - 8);
    case KVCSA_FORMAT_INT3_F16_G32:
        return ref_fp16(row + 14 * g) * (ref_three_bits(row + 14 * g + 2, i) - 4);
    default: return ref_f32(row + 4 * c, 4);
    }
}

/* Normal values (Box and Muller), not bf16. */
static void fill_normal(prng *r, float *x, size_t n, double scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(scale * sqrt(-2 * log(1 - prng_unit(r))) * cos(2 * M_PI * prng_unit(r)));
}

/* As floats: the largest scales of the E8M0 formats give infinity. */
static bool is_equal(double want, float got)
{
    return isnan(want) ? isnan(got) : (float)want == got && !signbit(want) == !signbit(got);
}

/* ------------------------------------------------------------------ what there is */

static void test_row_formats_that_run(void **state)
{
    (void)state;
    for (uint32_t f = 0; f < 40; f++) {
        bool is_listed = false;

        for (size_t i = 0; i < N_ALL; i++)
            is_listed |= all[i].format == f;
        assert_int_equal(kvi_row_can_run(f), is_listed);
        assert_int_equal(kvi_format_can_store(f), is_listed); /* what plans believe */
    }
    assert_int_equal(kvi_row_can_run(UINT32_MAX), 0);
    for (size_t i = 0; i < N_ALL; i++)
        assert_int_equal(kvi_format_row_bytes(all[i].format, 512), all[i].bytes_of_512);
}

/* ------------------------------------------------------------------ golden rows */

static void check_golden(uint32_t format, size_t row, const void *bytes, size_t n_bytes)
{
    float   x[GOLDEN_ROW_WIDTH];
    uint8_t got[4 * GOLDEN_ROW_WIDTH];

    for (size_t i = 0; i < GOLDEN_ROW_WIDTH; i++)
        x[i] = kvi_bits_f32(golden_row_input[row][i]);
    assert_int_equal(kvi_row_encode(format, x, GOLDEN_ROW_WIDTH, got), 0);
    assert_int_equal(kvi_format_row_bytes(format, GOLDEN_ROW_WIDTH), n_bytes);
    assert_memory_equal(got, bytes, n_bytes);
}

static void check_golden_read(uint32_t format, const uint8_t *bytes, const uint32_t *want)
{
    float x[GOLDEN_ROW_WIDTH];

    kvi_row_decode(format, bytes, GOLDEN_ROW_WIDTH, x);
    assert_memory_equal(x, want, sizeof x);
}

static void test_row_bytes_match_golden(void **state)
{
    (void)state;
    for (size_t r = 0; r < GOLDEN_ROW_ROWS; r++) {
        check_golden(KVCSA_FORMAT_F32, r, golden_row_input[r], sizeof golden_row_input[r]);
        check_golden(KVCSA_FORMAT_F16, r, golden_row_f16[r], sizeof golden_row_f16[r]);
        check_golden(KVCSA_FORMAT_BF16, r, golden_row_bf16[r], sizeof golden_row_bf16[r]);
        check_golden(KVCSA_FORMAT_Q8_0, r, golden_row_q8[r], sizeof golden_row_q8[r]);
        check_golden(KVCSA_FORMAT_Q4_0, r, golden_row_q4[r], sizeof golden_row_q4[r]);
        check_golden(KVCSA_FORMAT_INT3_F16_G32, r, golden_row_int3[r], sizeof golden_row_int3[r]);
        check_golden_read(KVCSA_FORMAT_Q8_0, golden_row_q8[r], golden_row_q8_read[r]);
        check_golden_read(KVCSA_FORMAT_Q4_0, golden_row_q4[r], golden_row_q4_read[r]);
    }
}

/* The three of the model: values, then scales. */
static void test_row_bytes_match_golden_quantisers(void **state)
{
    (void)state;
    for (size_t r = 0; r < GOLDEN_ROWS; r++) {
        float   x[GOLDEN_WIDTH];
        uint8_t got[2 * GOLDEN_WIDTH];

        for (size_t i = 0; i < GOLDEN_WIDTH; i++)
            x[i] = kvi_bits_f32((uint32_t)golden_input[r][i] << 16);
        assert_int_equal(kvi_row_encode(KVCSA_FORMAT_FP4_E4M3_G16, x, GOLDEN_WIDTH, got), 0);
        assert_memory_equal(got, golden_main_values[r], GOLDEN_WIDTH / 2);
        assert_memory_equal(got + GOLDEN_WIDTH / 2, golden_main_scales[r], GOLDEN_WIDTH / 16);
        assert_int_equal(kvi_row_encode(KVCSA_FORMAT_FP4_E8M0_G32, x, GOLDEN_WIDTH, got), 0);
        assert_memory_equal(got, golden_index_values[r], GOLDEN_WIDTH / 2);
        assert_memory_equal(got + GOLDEN_WIDTH / 2, golden_index_scales[r], GOLDEN_WIDTH / 32);
        assert_int_equal(kvi_row_encode(KVCSA_FORMAT_FP8_E8M0_G32, x, GOLDEN_WIDTH, got), 0);
        assert_memory_equal(got, golden_window_values[r], GOLDEN_WIDTH);
        assert_memory_equal(got + GOLDEN_WIDTH, golden_window_scales[r], GOLDEN_WIDTH / 32);
    }
}

/* 512 channels of which the last 64, the rotated ones, are unlike the others: no format stores them
 * in another way. A layout with 64 bf16 channels at the end has 384 or 584 bytes instead. */
static void test_row_of_the_release_packs_rotated_channels_too(void **state)
{
    static const uint8_t main_scales[4] = {0x38, 0x40, 0x48, 0x50}; /* 1 2 4 8 */
    float                x[512];
    uint8_t              row[528];

    (void)state;
    for (size_t c = 0; c < 512; c++) {
        const float s = c < 448 ? 0 : ldexpf(1, (int)(c - 448) / 16);

        x[c] = c < 448 ? 1 : c % 2 == 0 ? 6 * s : -0.5f * s;
    }
    memset(row, 0xee, sizeof row);
    assert_int_equal(kvi_row_encode(KVCSA_FORMAT_FP4_E4M3_G16, x, 512, row), 0);
    for (size_t b = 0; b < 224; b++)
        assert_int_equal(row[b], 0x77); /* 1 / 0.171875 is above 5 */
    for (size_t b = 224; b < 256; b++)
        assert_int_equal(row[b], 0x97);
    for (size_t b = 256; b < 284; b++)
        assert_int_equal(row[b], 0x23); /* 0.171875 is the E4M3 next to 1 / 6 */
    assert_memory_equal(row + 284, main_scales, 4);
    for (size_t b = 288; b < sizeof row; b++)
        assert_int_equal(row[b], 0xee);

    assert_int_equal(kvi_row_encode(KVCSA_FORMAT_FP8_E8M0_G32, x, 512, row), 0);
    for (size_t b = 0; b < 448; b++)
        assert_int_equal(row[b], 0x78); /* 256 x 2^-8 */
    for (size_t b = 448; b < 512; b++) { /* scales 2^-5 and 2^-3 hold 12 and 48 */
        const uint8_t six = (uint8_t)(0x74 + (b / 16 % 2) * 8);
        const uint8_t half = (uint8_t)(0xd8 + (b / 16 % 2) * 8);

        assert_int_equal(row[b], b % 2 == 0 ? six : half);
    }
    for (size_t b = 512; b < 526; b++)
        assert_int_equal(row[b], 119);
    assert_int_equal(row[526], 122);
    assert_int_equal(row[527], 124);
}

/* Where nibbles and bits stand: one channel at a time is the extreme of its group, code 0. */
static void test_row_places_every_channel(void **state)
{
    (void)state;
    for (size_t c = 0; c < 32; c++) {
        float   x[32] = {0};
        uint8_t q4[18];
        uint8_t want_q4[18] = {0x00, 0x34}; /* 0.25 */
        uint8_t int3[14];
        uint8_t want_int3[14] = {0x00, 0x38}; /* 0.5 */

        x[c] = -2.0f;
        memset(want_q4 + 2, 0x88, 16);
        want_q4[2 + c % 16] = c < 16 ? 0x80 : 0x08;
        for (size_t i = 0; i < 32; i++) /* 4 in every place but one: its highest bit */
            if (i != c)
                want_int3[2 + (3 * i + 2) / 8] |= (uint8_t)(1u << (3 * i + 2) % 8);
        assert_int_equal(kvi_row_encode(KVCSA_FORMAT_Q4_0, x, 32, q4), 0);
        assert_memory_equal(q4, want_q4, sizeof q4);
        assert_int_equal(kvi_row_encode(KVCSA_FORMAT_INT3_F16_G32, x, 32, int3), 0);
        assert_memory_equal(int3, want_int3, sizeof int3);
    }
}

/* ------------------------------------------------------------------ reading */

static void test_row_reads_any_bytes(void **state)
{
    prng    r;
    uint8_t row[MAX_ROW + 1];
    float   x[MAX_WIDTH];

    (void)state;
    prng_init(&r, seed);
    for (size_t t = 0; t < 60; t++) {
        for (size_t f = 0; f < N_ALL; f++) {
            const size_t width = 32 * (1 + t % 16);

            prng_fill(&r, row, sizeof row);
            kvi_row_decode(all[f].format, row + t % 2, width, x); /* at any alignment */
            for (size_t c = 0; c < width; c++)
                assert_true(is_equal(ref_read(all[f].format, row + t % 2, width, c), x[c]));
        }
    }
}

static void test_row_fp4_as_f32_reads_the_same_bits(void **state)
{
    prng  r;
    float x[MAX_WIDTH];
    float a[MAX_WIDTH];
    float b[MAX_WIDTH];

    (void)state;
    prng_init(&r, seed + 1);
    for (size_t t = 0; t < 400; t++) {
        const size_t width = 16 * (1 + t % 32);
        uint8_t      row[MAX_ROW];
        int          bad;

        fill_normal(&r, x, width, ldexp(1, (int)prng_below(&r, 20) - 12));
        if (t % 3 == 0)
            x[prng_below(&r, width)] = prng_float_bits(&r);
        if (t % 5 == 0)
            x[prng_below(&r, width)] = t % 2 == 0 ? -NAN : INFINITY;
        bad = kvi_row_encode(KVCSA_FORMAT_FP4_E4M3_G16, x, width, row);
        kvi_row_decode(KVCSA_FORMAT_FP4_E4M3_G16, row, width, a);
        assert_int_equal(kvi_row_encode(KVCSA_FORMAT_FP4_AS_F32, x, width, row), bad);
        kvi_row_decode(KVCSA_FORMAT_FP4_AS_F32, row, width, b);
        assert_memory_equal(b, a, width * sizeof *a);
        assert_int_equal(bad != 0, t % 5 == 0 || bad); /* the planted one is always seen */
    }
}

/* ------------------------------------------------------------------ errors */

/* Largest error that a format may make of x in a group with this amax; rounding to bf16 apart.
 * fp16 scales are off by 2^-11 at most. */
static double error_bound(uint32_t format, double x, double amax)
{
    switch (format) {
    case KVCSA_FORMAT_F32: return 0;
    case KVCSA_FORMAT_F16: return fmax(fabs(x) * 0x1p-11, 0x1p-25); /* subnormals */
    case KVCSA_FORMAT_BF16: return 0; /* it is that rounding */
    /* half of the gap 4..6 in scales, and a scale is off by 1/16 at most */
    case KVCSA_FORMAT_FP4_E4M3_G16:
    case KVCSA_FORMAT_FP4_AS_F32: return amax / 6 * (1 + 1.0 / 16);
    case KVCSA_FORMAT_FP4_E8M0_G32: return amax / 6 * 2; /* and up to one binade too large */
    case KVCSA_FORMAT_FP8_E8M0_G32: return fabs(x) * 0x1p-4 + amax / 448 * 2 * 0x1p-10;
    case KVCSA_FORMAT_Q8_0: return amax / 254 + amax * 0x1p-11;
    /* half a step; at the other end the last half step has no code */
    case KVCSA_FORMAT_Q4_0: return amax / 8 + amax * 0x1p-11;
    default: return amax / 4 + amax * 0x1p-11;
    }
}

static void test_row_errors_are_bounded(void **state)
{
    prng  r;
    float x[MAX_WIDTH];
    float y[MAX_WIDTH];

    (void)state;
    prng_init(&r, seed + 2);
    for (size_t t = 0; t < 100; t++) {
        fill_normal(&r, x, MAX_WIDTH, ldexp(1, (int)(t % 9) - 2));
        for (size_t f = 0; f < N_ALL; f++) {
            const uint32_t format = all[f].format;
            const size_t   group = all[f].group;
            const bool     is_plain = format == KVCSA_FORMAT_F32 || format == KVCSA_FORMAT_F16;
            uint8_t        row[MAX_ROW];

            assert_int_equal(kvi_row_encode(format, x, MAX_WIDTH, row), 0);
            kvi_row_decode(format, row, MAX_WIDTH, y);
            for (size_t c = 0; c < MAX_WIDTH; c++) {
                double amax = 0;
                double bound;

                for (size_t i = c / group * group; i < c / group * group + group; i++)
                    amax = fmax(amax, fabs((double)x[i]));
                /* bf16 moves x by 2^-8 |x|, and the amax by as much */
                bound = error_bound(format, (double)x[c], amax * (1 + 0x1p-8)) +
                        (is_plain ? 0 : fabs((double)x[c]) * 0x1p-8);
                assert_true(fabs((double)x[c] - (double)y[c]) <= bound * (1 + 1e-6));
            }
        }
    }
}

/* The table in docs/formats.md "Entries": 1,000 rows of 512 normal values. Its numbers are those of
 * this seed, to three digits. */
static void test_row_errors_are_those_of_the_table(void **state)
{
    static const struct {
        double rms;     /* of the errors, as a part of that of the values */
        double largest; /* error, as a part of the largest value of its row */
    } table[N_ALL] = {
        {0.0951, 0.171},      {0.115, 0.200},     {0.0267, 0.0604}, {0, 0},
        {0.000208, 0.000453}, {0.00166, 0.00345}, {0.0951, 0.171},  {0.00560, 0.00647},
        {0.0858, 0.123},      {0.174, 0.244},
    };
    prng   r;
    double sum[N_ALL] = {0};
    double largest[N_ALL] = {0};
    double power = 0;

    (void)state;
    prng_init(&r, 20261130);
    for (size_t t = 0; t < 1000; t++) {
        float  x[MAX_WIDTH];
        float  y[MAX_WIDTH];
        double top = 0;

        fill_normal(&r, x, MAX_WIDTH, 1);
        for (size_t c = 0; c < MAX_WIDTH; c++) {
            power += (double)x[c] * (double)x[c];
            top = fmax(top, fabs((double)x[c]));
        }
        for (size_t f = 0; f < N_ALL; f++) {
            uint8_t row[MAX_ROW];

            assert_int_equal(kvi_row_encode(all[f].format, x, MAX_WIDTH, row), 0);
            kvi_row_decode(all[f].format, row, MAX_WIDTH, y);
            for (size_t c = 0; c < MAX_WIDTH; c++) {
                const double e = fabs((double)x[c] - (double)y[c]);

                sum[f] += e * e;
                largest[f] = fmax(largest[f], e / top);
            }
        }
    }
    for (size_t f = 0; f < N_ALL; f++) {
        const double rms = sqrt(sum[f] / power);

        assert_true(fabs(rms - table[f].rms) <= 0.005 * table[f].rms);
        assert_true(fabs(largest[f] - table[f].largest) <= 0.005 * table[f].largest);
    }
}

/* ------------------------------------------------------------------ what cannot be stored */

static void test_row_poisons_its_group_only(void **state)
{
    static const uint32_t bad[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x7f800000u, 0xff800000u};
    enum { WIDTH = 96 };
    prng r;

    (void)state;
    prng_init(&r, seed + 3);
    for (size_t f = 0; f < N_ALL; f++) {
        for (size_t at = 0; at < WIDTH; at++) {
            const size_t group = all[f].group;
            uint8_t      row[4 * WIDTH];
            float        x[WIDTH];
            float        clean[WIDTH];
            float        y[WIDTH];

            fill_normal(&r, x, WIDTH, 1);
            assert_int_equal(kvi_row_encode(all[f].format, x, WIDTH, row), 0);
            kvi_row_decode(all[f].format, row, WIDTH, clean);
            x[at] = kvi_bits_f32(bad[at % 5]);
            assert_int_equal(kvi_row_encode(all[f].format, x, WIDTH, row), 1);
            kvi_row_decode(all[f].format, row, WIDTH, y);
            for (size_t c = 0; c < WIDTH; c++) {
                assert_true(!isnan(clean[c]));
                if (c / group == at / group)
                    assert_true(isnan(y[c]));
                else
                    assert_memory_equal(&y[c], &clean[c], sizeof y[c]);
            }
        }
    }
}

/* One value among zeros: is it stored, as what, and is it reported? */
static void check_value(uint32_t format, float x, int bad, float want)
{
    float   row_x[32] = {0};
    float   y[32];
    uint8_t row[128];

    row_x[19] = x;
    assert_int_equal(kvi_row_encode(format, row_x, 32, row), bad);
    kvi_row_decode(format, row, 32, y);
    if (bad)
        assert_true(isnan(y[19]));
    else
        assert_true(y[19] == want);
}

static void test_row_overflow_is_not_hidden(void **state)
{
    const float rounds_up = nextafterf(0x1.ffp127f, INFINITY); /* to infinity, in bf16 */

    (void)state;
    check_value(KVCSA_FORMAT_F32, FLT_MAX, 0, FLT_MAX);
    check_value(KVCSA_FORMAT_F16, 65519.0f, 0, 65504.0f);
    check_value(KVCSA_FORMAT_F16, 65520.0f, 1, 0);
    check_value(KVCSA_FORMAT_F16, -65520.0f, 1, 0);
    check_value(KVCSA_FORMAT_BF16, 0x1.fep127f, 0, 0x1.fep127f);
    for (size_t f = 0; f < N_ALL; f++)
        if (all[f].format != KVCSA_FORMAT_F32)
            check_value(all[f].format, -rounds_up, 1, 0);
    /* the model's entries saturate, as the model does: 6 x 448. E8M0 scales hold everything, but
     * the largest values are rounded up to 2^128 */
    check_value(KVCSA_FORMAT_FP4_E4M3_G16, 0x1.fep127f, 0, 2688.0f);
    check_value(KVCSA_FORMAT_FP4_AS_F32, -0x1.fep127f, 0, -2688.0f);
    check_value(KVCSA_FORMAT_FP4_E8M0_G32, 0x1.fep127f, 0, INFINITY);
    check_value(KVCSA_FORMAT_FP4_E8M0_G32, 0x1p127f, 0, 0x1p127f);
    check_value(KVCSA_FORMAT_FP8_E8M0_G32, -0x1.fep127f, 0, -INFINITY);
    check_value(KVCSA_FORMAT_FP8_E8M0_G32, 0x1.ep127f, 0, 0x1.ep127f);
    /* fp16 scales reach 65504; 65280 is the bf16 below */
    check_value(KVCSA_FORMAT_Q8_0, 127 * 65536.0f - 65536.0f, 0, 127 * 65024.0f);
    check_value(KVCSA_FORMAT_Q8_0, 127 * 65536.0f, 1, 0);
    check_value(KVCSA_FORMAT_Q4_0, 8 * 65280.0f, 0, 8 * 65280.0f);
    check_value(KVCSA_FORMAT_Q4_0, -8 * 65280.0f, 0, -8 * 65280.0f);
    check_value(KVCSA_FORMAT_Q4_0, 8 * 65536.0f, 1, 0);
    check_value(KVCSA_FORMAT_INT3_F16_G32, 4 * 65280.0f, 0, 4 * 65280.0f);
    check_value(KVCSA_FORMAT_INT3_F16_G32, -4 * 65536.0f, 1, 0);
}

/* Scales that are 0 in fp16, subnormal there, or no normal float: never more than the value. */
static void test_row_of_tiny_values(void **state)
{
    static const float tiny[] = {0.0f,      -0.0f,     0x1p-133f, -0x1p-126f, 0x1p-125f,
                                 0x1p-119f, -0x1p-60f, 0x1p-24f,  0x1p-20f};

    (void)state;
    for (size_t f = 0; f < N_ALL; f++) {
        for (size_t t = 0; t < sizeof tiny / sizeof *tiny; t++) {
            float   x[32];
            float   y[32];
            uint8_t row[128];

            for (size_t c = 0; c < 32; c++)
                x[c] = c % 3 == 0 ? tiny[t] : 0;
            assert_int_equal(kvi_row_encode(all[f].format, x, 32, row), 0);
            kvi_row_decode(all[f].format, row, 32, y);
            for (size_t c = 0; c < 32; c++) {
                assert_true(fabsf(y[c]) <= 2 * fabsf(x[c]));
                if (all[f].format == KVCSA_FORMAT_F32 || all[f].format == KVCSA_FORMAT_BF16)
                    assert_true(y[c] == x[c]);
            }
        }
    }
}

/* Groups of zeros, and of values whose scale is not even a normal float. */
static void check_zero_bytes(float tiny)
{
    float   x[32] = {0, tiny, -tiny, tiny};
    uint8_t row[128];
    uint8_t want[34] = {0};

    assert_int_equal(kvi_row_encode(KVCSA_FORMAT_Q8_0, x, 32, row), 0);
    assert_memory_equal(row, want, 34);
    memset(want + 2, 0x88, 16);
    want[1] = 0x80; /* the scale is tiny / -8 */
    assert_int_equal(kvi_row_encode(KVCSA_FORMAT_Q4_0, x, 32, row), 0);
    assert_memory_equal(row, want, 18);
    for (size_t i = 0; i < 12; i += 3)
        memcpy(want + 2 + i, "\x24\x49\x92", 3); /* 4 4 4 4 4 4 4 4 */
    assert_int_equal(kvi_row_encode(KVCSA_FORMAT_INT3_F16_G32, x, 32, row), 0);
    assert_memory_equal(row, want, 14);
}

static void test_row_zero_bytes(void **state)
{
    (void)state;
    check_zero_bytes(0);
    check_zero_bytes(0x1p-133f);
    check_zero_bytes(0x1.8p-125f);
}

/* Exactly row_bytes are written and width floats are read back, at any alignment. */
static void test_row_stays_inside(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed + 4);
    for (size_t f = 0; f < N_ALL; f++) {
        for (size_t width = 32; width <= 512; width += 96) {
            const size_t n = kvi_format_row_bytes(all[f].format, (uint32_t)width);
            uint8_t     *row = malloc(n + 1); /* its end is the end of the memory */
            float       *x = malloc(width * sizeof *x);
            float       *y = malloc(width * sizeof *y);
            uint8_t      around[MAX_ROW + 8];

            assert_true(n > 0 && row && x && y);
            fill_normal(&r, x, width, 3);
            memset(around, 0xee, sizeof around);
            assert_int_equal(kvi_row_encode(all[f].format, x, width, row + 1), 0);
            assert_int_equal(kvi_row_encode(all[f].format, x, width, around + 3), 0);
            assert_memory_equal(around + 3, row + 1, n);
            for (size_t i = 0; i < sizeof around; i++)
                if (i < 3 || i >= 3 + n)
                    assert_int_equal(around[i], 0xee);
            kvi_row_decode(all[f].format, row + 1, width, y);
            for (size_t c = 0; c < width; c++)
                assert_true(is_equal(ref_read(all[f].format, row + 1, width, c), y[c]));
            free(row);
            free(x);
            free(y);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_formats_that_run),
        cmocka_unit_test(test_row_bytes_match_golden),
        cmocka_unit_test(test_row_bytes_match_golden_quantisers),
        cmocka_unit_test(test_row_of_the_release_packs_rotated_channels_too),
        cmocka_unit_test(test_row_places_every_channel),
        cmocka_unit_test(test_row_reads_any_bytes),
        cmocka_unit_test(test_row_fp4_as_f32_reads_the_same_bits),
        cmocka_unit_test(test_row_errors_are_bounded),
        cmocka_unit_test(test_row_errors_are_those_of_the_table),
        cmocka_unit_test(test_row_poisons_its_group_only),
        cmocka_unit_test(test_row_overflow_is_not_hidden),
        cmocka_unit_test(test_row_of_tiny_values),
        cmocka_unit_test(test_row_zero_bytes),
        cmocka_unit_test(test_row_stays_inside),
    };

    seed = prng_seed(argc, argv, 41);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
