/* base: status, log, hash, params, alloc, checked sizes, float functions. Threads are in
 * test_threads.c. */
#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/fmath.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/params.h"
#include "base/status.h"

#include "support/fault_alloc.h"
#include "support/prng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;

/* ------------------------------------------------------------------ status */

static void test_status_names_every_value(void **state)
{
    (void)state;
    assert_string_equal(kvi_status_name(KVCSA_OK), "KVCSA_OK");
    assert_string_equal(kvi_status_name(KVCSA_ERR_FULL), "KVCSA_ERR_FULL");
    for (int32_t a = KVCSA_ERR_LIMIT; a <= KVCSA_OK; a++) {
        assert_string_not_equal(kvi_status_name(a), "KVCSA_ERR_?");
        for (int32_t b = KVCSA_ERR_LIMIT; b < a; b++)
            assert_string_not_equal(kvi_status_name(a), kvi_status_name(b));
    }
    assert_string_equal(kvi_status_name(1), "KVCSA_ERR_?");
    assert_string_equal(kvi_status_name(KVCSA_ERR_LIMIT - 1), "KVCSA_ERR_?");
}

static void test_fail_fills_the_record(void **state)
{
    kvcsa_error err;

    (void)state;
    memset(&err, 0x5A, sizeof err);
    assert_int_equal(kvi_fail(&err, KVCSA_ERR_ARG, "n is %d, limit %u", 7, 5u), KVCSA_ERR_ARG);
    assert_int_equal(err.status, KVCSA_ERR_ARG);
    assert_int_equal(err.detail, 0);
    assert_string_equal(err.text, "n is 7, limit 5");
    assert_int_equal(kvi_fail_code(&err, KVCSA_ERR_IO, 2, "%s", "gone"), KVCSA_ERR_IO);
    assert_int_equal(err.detail, 2);
    assert_string_equal(err.text, "gone");
    for (size_t i = 4; i < sizeof err.text; i++) /* nothing of an older message is left */
        assert_int_equal(err.text[i], 0);
    assert_int_equal(kvi_fail(&err, KVCSA_ERR_IO, "model: %s", err.text), KVCSA_ERR_IO);
    assert_string_equal(err.text, "model: gone");
    assert_int_equal(kvi_fail(NULL, KVCSA_ERR_FULL, "%d", 1), KVCSA_ERR_FULL);
    assert_int_equal(kvi_fail_code(NULL, KVCSA_ERR_IO, 3, "x"), KVCSA_ERR_IO);
    kvi_error_clear(&err);
    assert_int_equal(err.status, KVCSA_OK);
    assert_string_equal(err.text, "");
    kvi_error_clear(NULL);
}

static void expect_text(const char *raw, const char *want)
{
    kvcsa_error err;

    kvi_fail(&err, KVCSA_ERR_ARG, "%s", raw);
    assert_string_equal(err.text, want);
}

static void test_fail_cleans_text(void **state)
{
    (void)state;
    expect_text("a\nb\tc\rd\x1b[31m\x7f", "a?b?c?d?[31m?");
    expect_text("\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80", "\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80");
    expect_text("\xC2\x85|\xE2\x80\xA8|\xE2\x80\xA9|\xC2\xA0", "?|?|?|\xC2\xA0"); /* C1, LS, PS */
    expect_text("\x80", "?");
    expect_text("\xC0\xAF", "??"); /* longer than needed */
    expect_text("\xE0\x80\xAF", "???");
    expect_text("\xF0\x80\x80\xAF", "????");
    expect_text("\xED\xA0\x80", "???");      /* surrogate */
    expect_text("\xF4\x90\x80\x80", "????"); /* above U+10FFFF */
    expect_text("\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF");
    expect_text("\xFF\xFE", "??");
    expect_text("\xE2\x82", "??"); /* cut short */
    expect_text("\xC3(", "?(");
}

static void test_fail_cuts_at_a_character(void **state)
{
    kvcsa_error err;
    char        raw[400];

    (void)state;
    memset(raw, 'x', sizeof raw);
    raw[sizeof raw - 1] = '\0';
    kvi_fail(&err, KVCSA_ERR_ARG, "%s", raw);
    assert_int_equal(strlen(err.text), 247);
    for (size_t len = 2; len <= 4;
         len++) { /* a character of len bytes at each place around the end */
        const char *ch = len == 2 ? "\xC3\xA4" : len == 3 ? "\xE2\x82\xAC" : "\xF0\x9F\x98\x80";

        for (size_t at = 240; at <= 250; at++) {
            memset(raw, 'x', sizeof raw);
            raw[sizeof raw - 1] = '\0';
            memcpy(raw + at, ch, len);
            kvi_fail(&err, KVCSA_ERR_ARG, "%s", raw);
            if (at + len <= 247) {
                assert_int_equal(strlen(err.text), 247);
                assert_memory_equal(err.text + at, ch, len);
            } else {
                assert_int_equal(strlen(err.text), at < 247 ? at : 247);
                assert_null(strchr(err.text, '?'));
            }
        }
    }
}

static void test_fail_survives_any_bytes(void **state)
{
    kvcsa_error err;
    kvcsa_error again;
    char        raw[300];
    prng        r;

    (void)state;
    prng_init(&r, seed);
    for (int round = 0; round < 2000; round++) {
        size_t n = (size_t)prng_below(&r, sizeof raw);

        prng_fill(&r, raw, n);
        raw[n] = '\0';
        kvi_fail(&err, KVCSA_ERR_FORMAT, "%s", raw);
        assert_non_null(memchr(err.text, 0, sizeof err.text));
        for (const char *p = err.text; *p; p++)
            assert_true((unsigned char)*p >= 0x20 && *p != 0x7F);
        /* clean text stays as it is, so all of it is valid */
        kvi_fail(&again, KVCSA_ERR_FORMAT, "%s", err.text);
        assert_string_equal(again.text, err.text);
    }
}

/* ------------------------------------------------------------------ log */

typedef struct log_seen {
    int     n;
    int32_t level;
    char    text[600];
} log_seen;

static void write_log(void *user, int32_t level, const char *text)
{
    log_seen *seen = user;

    seen->n++;
    seen->level = level;
    snprintf(seen->text, sizeof seen->text, "%s", text);
}

static void test_log_writes_one_clean_line(void **state)
{
    log_seen  seen = {0};
    kvcsa_log log = {write_log, &seen};
    kvcsa_log none = {NULL, &seen};
    char      raw[1000];

    (void)state;
    kvi_log(&log, KVCSA_LOG_WARN, "%s is %d", "a\nb", 3);
    assert_int_equal(seen.n, 1);
    assert_int_equal(seen.level, KVCSA_LOG_WARN);
    assert_string_equal(seen.text, "a?b is 3");
    memset(raw, 'y', sizeof raw);
    raw[sizeof raw - 1] = '\0';
    kvi_log(&log, KVCSA_LOG_INFO, "%s", raw);
    assert_int_equal(strlen(seen.text), 511);
    kvi_log(&none, KVCSA_LOG_ERROR, "nobody listens");
    kvi_log(NULL, KVCSA_LOG_ERROR, "nobody listens");
    assert_int_equal(seen.n, 2);
}

/* ------------------------------------------------------------------ hash */

static void test_hash_is_xxh3(void **state)
{
    uint8_t data[300];
    uint8_t moved[304];

    (void)state;
    /* published for XXH3: the hash of nothing with seed 0 */
    assert_true(kvi_hash64(NULL, 0, 0) == UINT64_C(0x2D06800538D394C2));
    assert_true(kvi_hash64("", 0, 0) == UINT64_C(0x2D06800538D394C2));
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7 + 1);
    for (size_t n = 1; n <= sizeof data; n++) {
        uint64_t h = kvi_hash64(data, n, 1);

        assert_true(h != kvi_hash64(data, n, 2));
        assert_true(h != kvi_hash64(data, n - 1, 1));
        memcpy(moved + 3, data, n); /* any alignment */
        assert_true(h == kvi_hash64(moved + 3, n, 1));
        moved[3 + n - 1] ^= 1;
        assert_true(h != kvi_hash64(moved + 3, n, 1));
    }
}

/* ------------------------------------------------------------------ params */

typedef struct params_v1 {
    size_t   struct_size;
    uint32_t a;
    uint32_t b;
} params_v1;
typedef struct params_v2 {
    size_t   struct_size;
    uint32_t a;
    uint32_t b;
    uint64_t c;
} params_v2;
typedef struct params_v3 {
    size_t   struct_size;
    uint32_t a;
    uint32_t b;
    uint64_t c;
    uint64_t d;
} params_v3;
KVI_NO_TAIL_PADDING(params_v1, b);
KVI_NO_TAIL_PADDING(params_v2, c);

static const params_v2 defaults_v2 = {sizeof(params_v2), 1, 2, 3};

static kvcsa_status import_v2(params_v2 *ours, const void *theirs, kvcsa_error *err)
{
    *ours = defaults_v2;
    return kvi_params_import(ours, sizeof *ours, sizeof(params_v1), theirs, "p", err);
}

static void test_params_import_mixes_releases(void **state)
{
    params_v1   old = {sizeof old, 10, 20};
    params_v2   same = {sizeof same, 10, 20, 30};
    params_v3   newer = {sizeof newer, 10, 20, 30, 0};
    params_v2   ours;
    kvcsa_error err;

    (void)state;
    assert_int_equal(import_v2(&ours, NULL, &err), KVCSA_OK);
    assert_memory_equal(&ours, &defaults_v2, sizeof ours);
    assert_int_equal(import_v2(&ours, &old, &err), KVCSA_OK);
    assert_int_equal(ours.struct_size, sizeof ours);
    assert_int_equal(ours.a, 10);
    assert_int_equal(ours.b, 20);
    assert_int_equal(ours.c, 3); /* not in the old struct: the default */
    assert_int_equal(import_v2(&ours, &same, &err), KVCSA_OK);
    assert_int_equal(ours.c, 30);
    assert_int_equal(import_v2(&ours, &newer, &err), KVCSA_OK);
    assert_int_equal(ours.c, 30);
    assert_int_equal(ours.struct_size, sizeof ours);
    newer.d = UINT64_C(1) << 56; /* the very last byte */
    assert_int_equal(import_v2(&ours, &newer, &err), KVCSA_ERR_UNSUPPORTED);
    assert_int_equal(err.status, KVCSA_ERR_UNSUPPORTED);
    assert_memory_equal(&ours, &defaults_v2, sizeof ours);
}

static void test_params_import_refuses_wrong_sizes(void **state)
{
    params_v2           same = {0, 10, 20, 30};
    params_v2           ours;
    kvcsa_error         err;
    static const size_t bad[] = {0, 1, sizeof(size_t), sizeof(params_v1) - 1, 4097, SIZE_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        same.struct_size = bad[i];
        assert_int_equal(import_v2(&ours, &same, &err), KVCSA_ERR_ARG);
        assert_non_null(strstr(err.text, "p.struct_size is "));
        assert_memory_equal(&ours, &defaults_v2, sizeof ours);
    }
    same.struct_size = sizeof(params_v1);
    assert_int_equal(import_v2(&ours, &same, &err), KVCSA_OK);
}

static void test_params_export_fills_no_more_than_asked(void **state)
{
    const params_v2 ours = {sizeof ours, 1, 2, 3};
    params_v3       theirs;
    kvcsa_error     err;

    (void)state;
    memset(&theirs, 0x77, sizeof theirs);
    theirs.struct_size = sizeof(params_v1);
    assert_int_equal(kvi_params_export(&ours, sizeof ours, sizeof(params_v1), &theirs, "s", &err),
                     KVCSA_OK);
    assert_int_equal(theirs.struct_size, sizeof(params_v1));
    assert_int_equal(theirs.b, 2);
    assert_true(theirs.c == UINT64_C(0x7777777777777777));
    theirs.struct_size = sizeof theirs; /* a caller from a later release */
    assert_int_equal(kvi_params_export(&ours, sizeof ours, sizeof(params_v1), &theirs, "s", &err),
                     KVCSA_OK);
    assert_int_equal(theirs.struct_size, sizeof theirs);
    assert_int_equal(theirs.c, 3);
    assert_int_equal(theirs.d, 0);
    theirs.struct_size = sizeof(params_v1) - 1;
    theirs.a = 9;
    assert_int_equal(kvi_params_export(&ours, sizeof ours, sizeof(params_v1), &theirs, "s", &err),
                     KVCSA_ERR_ARG);
    assert_int_equal(theirs.a, 9);
    assert_int_equal(kvi_params_export(&ours, sizeof ours, sizeof(params_v1), NULL, "s", &err),
                     KVCSA_ERR_ARG);
    assert_string_equal(err.text, "s is NULL");
}

static void test_params_default_knows_the_caller_size(void **state)
{
    params_v3 theirs;

    (void)state;
    memset(&theirs, 0x77, sizeof theirs);
    kvi_params_default(&theirs, sizeof(params_v1), &defaults_v2, sizeof defaults_v2);
    assert_int_equal(theirs.struct_size, sizeof(params_v1));
    assert_int_equal(theirs.a, 1);
    assert_int_equal(theirs.b, 2);
    assert_true(theirs.c == UINT64_C(0x7777777777777777));
    kvi_params_default(&theirs, sizeof theirs, &defaults_v2, sizeof defaults_v2);
    assert_int_equal(theirs.struct_size, sizeof theirs);
    assert_int_equal(theirs.c, 3);
    assert_int_equal(theirs.d, 0);
    theirs.a = 5;
    kvi_params_default(&theirs, sizeof(size_t) - 1, &defaults_v2, sizeof defaults_v2);
    assert_int_equal(theirs.a, 5);
    kvi_params_default(NULL, sizeof theirs, &defaults_v2, sizeof defaults_v2);
}

/* ------------------------------------------------------------------ alloc and sizes */

static void test_allocator_import_wants_both_or_none(void **state)
{
    kvcsa_allocator ours;
    kvcsa_allocator half = {fault_alloc_alloc, NULL, NULL};
    fault_alloc     fa;
    kvcsa_error     err;
    unsigned char  *p = NULL;

    (void)state;
    assert_int_equal(kvi_allocator_import(&half, &ours, &err), KVCSA_ERR_ARG);
    half.alloc = NULL;
    half.free = fault_alloc_free;
    assert_int_equal(kvi_allocator_import(&half, &ours, &err), KVCSA_ERR_ARG);
    half.free = NULL;
    for (int i = 0; i < 2; i++) { /* libc */
        assert_int_equal(kvi_allocator_import(i ? &half : NULL, &ours, &err), KVCSA_OK);
        p = kvi_zalloc(&ours, 1000);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t k = 0; k < 1000; k++)
            assert_int_equal(p[k], 0);
        kvi_free(&ours, p, 1000);
    }
    fault_alloc_init(&fa);
    assert_int_equal(kvi_allocator_import(&fa.hook, &ours, &err), KVCSA_OK);
    assert_ptr_equal(ours.user, &fa);
}

static void test_alloc_aligns_and_balances(void **state)
{
    fault_alloc fa;
    void       *p = NULL;

    (void)state;
    fault_alloc_init(&fa);
    for (size_t size = 0; size < 300; size++) {
        p = kvi_alloc(&fa.hook, size);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        memset(p, 1, size);
        kvi_free(&fa.hook, p, size);
    }
    p = kvi_alloc_pages(&fa.hook, 5000);
    assert_int_equal((uintptr_t)p % 4096, 0);
    kvi_free_pages(&fa.hook, p, 5000);
    kvi_free(&fa.hook, NULL, 3);
    kvi_free_pages(&fa.hook, NULL, 3);
    assert_null(kvi_alloc(&fa.hook, SIZE_MAX));
    assert_null(kvi_zalloc(&fa.hook, (size_t)PTRDIFF_MAX + 1));
    fault_alloc_fail_at(&fa, 1);
    assert_null(kvi_zalloc(&fa.hook, 10));
    p = kvi_strdup(&fa.hook, "name");
    assert_string_equal((char *)p, "name");
    kvi_strfree(&fa.hook, p);
    kvi_strfree(&fa.hook, NULL);
    fault_alloc_fail_at(&fa, 1);
    assert_null(kvi_strdup(&fa.hook, "name"));
    assert_true(fault_alloc_is_clean(&fa));
}

static void test_fault_alloc_sees_faults(void **state)
{
    fault_alloc    fa;
    unsigned char *p = NULL;

    (void)state;
    fault_alloc_init(&fa);
    p = kvi_alloc(&fa.hook, 10);
    assert_int_equal(p[9], FAULT_ALLOC_FRESH);
    assert_int_equal(fa.n_blocks, 1);
    assert_int_equal(fa.n_bytes, 10);
    assert_false(fault_alloc_is_clean(&fa));
    kvi_free(&fa.hook, p, 11); /* wrong size */
    assert_int_equal(fa.n_bad, 1);
    p = kvi_alloc_pages(&fa.hook, 10);
    kvi_free(&fa.hook, p, 10); /* wrong alignment */
    assert_int_equal(fa.n_bad, 2);
    p = kvi_alloc(&fa.hook, 10);
    p[10] = 0; /* inside the guard */
    kvi_free(&fa.hook, p, 10);
    assert_int_equal(fa.n_bad, 3);
    assert_int_equal(fa.n_blocks, 0);
    assert_int_equal(fa.n_bytes, 0);
}

static void test_buf_grows_by_half(void **state)
{
    fault_alloc fa;
    kvi_buf     buf = {0};
    uint32_t   *v = NULL;
    size_t      n_grown = 0;

    (void)state;
    fault_alloc_init(&fa);
    for (uint32_t i = 0; i < 10000; i++) {
        size_t cap = buf.cap;

        assert_true(kvi_buf_reserve(&fa.hook, &buf, sizeof *v, i, i + 1));
        n_grown += buf.cap != cap;
        assert_true(buf.cap <= 2 * ((size_t)i + 1));
        v = buf.data;
        v[i] = i * 3;
    }
    for (uint32_t i = 0; i < 10000; i++)
        assert_int_equal(v[i], i * 3);
    assert_in_range(n_grown, 10, 30);
    fault_alloc_fail_at(&fa, 1);
    assert_false(kvi_buf_reserve(&fa.hook, &buf, sizeof *v, 10000, 100000));
    assert_ptr_equal(buf.data, v); /* unchanged */
    assert_int_equal(v[9999], 9999 * 3);
    assert_false(kvi_buf_reserve(&fa.hook, &buf, sizeof *v, 10000, SIZE_MAX));
    assert_false(
        kvi_buf_reserve(&fa.hook, &buf, sizeof *v, 10000, SIZE_MAX / 4 + 2)); /* overflows */
    assert_ptr_equal(buf.data, v);
    assert_true(kvi_buf_reserve(&fa.hook, &buf, sizeof *v, 0, 5)); /* nothing to do */
    kvi_buf_free(&fa.hook, &buf, sizeof *v);
    assert_null(buf.data);
    assert_int_equal(buf.cap, 0);
    kvi_buf_free(&fa.hook, &buf, sizeof *v);
    assert_true(fault_alloc_is_clean(&fa));
}

static void test_checked_sizes(void **state)
{
    size_t   s = 0;
    uint32_t u = 0;
    uint8_t  raw[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8};

    (void)state;
    assert_true(kvi_add_size(SIZE_MAX - 1, 1, &s) && s == SIZE_MAX);
    assert_false(kvi_add_size(SIZE_MAX, 1, &s));
    assert_true(kvi_mul_size(SIZE_MAX / 3, 3, &s) && s == SIZE_MAX / 3 * 3);
    assert_false(kvi_mul_size(SIZE_MAX / 3 + 1, 3, &s));
    assert_true(kvi_mul_size(SIZE_MAX, 0, &s) && s == 0);
    assert_true(kvi_to_u32(UINT32_MAX, &u) && u == UINT32_MAX);
    assert_false(kvi_to_u32((uint64_t)UINT32_MAX + 1, &u));
    assert_int_equal(kvi_div_up(SIZE_MAX, 2), SIZE_MAX / 2 + 1);
    assert_int_equal(kvi_div_up(0, 5), 0);
    assert_int_equal(kvi_load_u16(raw + 1), 0x0201);
    assert_int_equal(kvi_load_u32(raw + 1), 0x04030201);
    assert_true(kvi_load_u64(raw + 1) == UINT64_C(0x0807060504030201));
    assert_int_equal(kvi_f32_bits(1.0f), 0x3F800000);
    assert_true(kvi_bits_f32(0xC0000000u) == -2.0f);
}

/* ------------------------------------------------------------------ float functions */

#define N_POINTS 200000

/* |got - want| in units of the last place that a float near `want` has. Both infinite or both NaN:
 * 0. */
static double ulps(float got, double want)
{
    int    exponent = 0;
    double unit = 0;

    if (isnan(want))
        return isnan(got) ? 0 : HUGE_VAL;
    if (fabs(want) >= 0x1.ffffffp127) /* rounds to infinity */
        return (double)got == copysign(HUGE_VAL, want) ? 0 : HUGE_VAL;
    if (!isfinite(got))
        return HUGE_VAL;
    frexp(want, &exponent);
    unit = ldexp(1.0, (want != 0 && exponent - 1 > -126 ? exponent - 1 : -126) - 23);
    return fabs((double)got - want) / unit;
}

#define ASSERT_ULPS(got, want, x)                                                             \
    do {                                                                                      \
        double e_ = ulps((got), (want));                                                      \
        if (!(e_ <= 0.51))                                                                    \
            fail_msg("at %a: %a, wanted %a, %g ulp", (double)(x), (double)(got), (want), e_); \
    } while (0)

static const float special[] = {
    0.0f,        -0.0f,           1.0f,
    -1.0f,       0x1p-149f,       -0x1p-149f,
    0x1p-126f,   0x1p-25f,        -0x1p-24f,
    0x1p-12f,    -0x1p-12f,       0x1.fffp-13f,
    0.5f,        -0.5f,           88.72283f,
    88.72284f,   89.0f,           -87.33654f,
    -87.33655f,  -103.2f,         -103.97208f,
    -103.97209f, -104.0f,         1000.0f,
    -1000.0f,    0x1.fffffep127f, -0x1.fffffep127f,
    HUGE_VALF,   -HUGE_VALF,
};
#define N_SPECIAL (sizeof special / sizeof *special)

static void check_exp(float x)
{
    ASSERT_ULPS(kvi_expf(x), exp((double)x), x);
    ASSERT_ULPS(kvi_sigmoidf(x), 1.0 / (1.0 + exp(-(double)x)), x);
}

static void test_expf_and_sigmoidf_round_well(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed);
    for (size_t i = 0; i < N_SPECIAL; i++)
        check_exp(special[i]);
    for (int i = 0; i < N_POINTS; i++) {
        check_exp(prng_float(&r, -104.5f, 89.5f));
        check_exp(prng_float(&r, -1.0f, 1.0f));
        check_exp(prng_float_bits(&r));
    }
    assert_true(isnan(kvi_expf(NAN)) && isnan(kvi_sigmoidf(NAN)));
    assert_true(kvi_expf(-HUGE_VALF) == 0.0f && kvi_sigmoidf(-HUGE_VALF) == 0.0f);
    assert_true(kvi_expf(-0.0f) == 1.0f && kvi_sigmoidf(0.0f) == 0.5f);
    assert_true(kvi_expf(-103.9f) == 0x1p-149f); /* results may be subnormal */
}

static void check_log1p(float x)
{
    ASSERT_ULPS(kvi_log1pf(x), log1p((double)x), x);
}

static void test_log1pf_rounds_well(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed);
    for (size_t i = 0; i < N_SPECIAL; i++) {
        if (special[i] > -1.0f)
            check_log1p(special[i]);
    }
    for (int i = 0; i < N_POINTS; i++) {
        float x = prng_float_bits(&r);

        check_log1p(prng_float(&r, -1.0f + 0x1p-24f, 3.0f));
        check_log1p(prng_float(&r, -0x1p-11f, 0x1p-11f));
        if (x > -1.0f)
            check_log1p(x);
    }
    assert_true(kvi_log1pf(-1.0f) == -HUGE_VALF);
    assert_true(isnan(kvi_log1pf(-1.5f)) && isnan(kvi_log1pf(NAN)));
    assert_true(signbit(kvi_log1pf(-0.0f)) && kvi_log1pf(-0.0f) == 0.0f);
}

static void check_sincos(float x)
{
    float s = 0;
    float c = 0;

    kvi_sincosf(x, &s, &c);
    ASSERT_ULPS(s, sin((double)x), x);
    ASSERT_ULPS(c, cos((double)x), x);
}

static void test_sincosf_rounds_well(void **state)
{
    static const float bad[] = {0x1.000002p24f, -0x1.8p24f, HUGE_VALF, -HUGE_VALF, NAN};
    prng               r;
    float              s = 0;
    float              c = 0;

    (void)state;
    prng_init(&r, seed);
    for (size_t i = 0; i < N_SPECIAL; i++) {
        if (fabsf(special[i]) <= 0x1p24f)
            check_sincos(special[i]);
    }
    check_sincos(0x1p24f);
    check_sincos(-0x1p24f);
    for (int i = 0; i < N_POINTS; i++) {
        /* the floats around a multiple of pi / 2, where the reduction cancels most */
        float near = (float)((double)prng_below(&r, 10680708) * 1.5707963267948966);

        check_sincos(prng_float(&r, -0x1p24f, 0x1p24f));
        check_sincos(prng_float(&r, -1000.0f, 1000.0f));
        check_sincos(prng_float(&r, -1.0f, 1.0f));
        check_sincos((float)(uint32_t)prng_below(&r, 1u << 24)); /* positions */
        check_sincos(near);
        check_sincos(-nextafterf(near, 0.0f));
    }
    kvi_sincosf(-0.0f, &s, &c);
    assert_true(s == 0.0f && signbit(s) && c == 1.0f);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kvi_sincosf(bad[i], &s, &c);
        assert_true(isnan(s) && isnan(c));
    }
}

static void check_pow(float b, float e)
{
    double want = pow((double)b, (double)e);

    ASSERT_ULPS(kvi_powf(b, e), want, b);
}

static void test_powf_rounds_well(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed);
    for (int i = 0; i < N_POINTS; i++) {
        float b = fabsf(prng_float_bits(&r));

        check_pow(prng_float(&r, 0.001f, 100.0f), prng_float(&r, -30.0f, 30.0f));
        check_pow(10000.0f, prng_float(&r, -1.0f, 1.0f)); /* frequencies of rotations */
        check_pow(160000.0f, -prng_float(&r, 0.0f, 1.0f));
        if (b > 0)
            check_pow(b, prng_float(&r, -2.0f, 2.0f));
    }
    check_pow(1.0f, 3e38f);
    check_pow(1.0f, HUGE_VALF);
    check_pow(2.0f, -149.0f);
    check_pow(2.0f, 127.0f);
    check_pow(2.0f, 128.0f);
    check_pow(0x1p-149f, 0.5f);
    check_pow(HUGE_VALF, 0.0f);
    check_pow(HUGE_VALF, -1.0f);
    check_pow(0.5f, HUGE_VALF);
    assert_true(isnan(kvi_powf(NAN, 1.0f)) && isnan(kvi_powf(2.0f, NAN)));
}

static void test_double_exp_and_log_are_close(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed);
    for (int i = 0; i < N_POINTS; i++) {
        double x = -708.0 + prng_unit(&r) * 1417.0;
        double want = exp(x);
        double got = kvi_exp(x);
        double v = ldexp(1.0 + prng_unit(&r), (int)prng_range(&r, 0, 2000) - 1000);

        if (fabs(got - want) > fabs(want) * 0x1p-51)
            fail_msg("exp(%a) = %a, wanted %a", x, got, want);
        if (fabs(kvi_ln(v) - log(v)) > fabs(log(v)) * 0x1p-51)
            fail_msg("log(%a) = %a, wanted %a", v, kvi_ln(v), log(v));
        v = 0.75 + prng_unit(&r) * 0.75; /* around 1 the result is small */
        if (fabs(kvi_ln(v) - log(v)) > fabs(log(v)) * 0x1p-51)
            fail_msg("log(%a) = %a, wanted %a", v, kvi_ln(v), log(v));
    }
    assert_true(kvi_exp(0.0) == 1.0 && kvi_ln(1.0) == 0.0);
    assert_true(kvi_exp(710.0) == HUGE_VAL && kvi_exp(-746.0) == 0.0);
    assert_true(kvi_exp(HUGE_VAL) == HUGE_VAL && kvi_exp(-HUGE_VAL) == 0.0);
    assert_true(fabs(kvi_exp(-740.0) - exp(-740.0)) <= 0x1p-1074);
    assert_true(isfinite(kvi_exp(709.78)) && kvi_exp(709.78) > 1.79e308);
    assert_true(kvi_ln(0.0) == -HUGE_VAL && kvi_ln(HUGE_VAL) == HUGE_VAL);
    assert_true(fabs(kvi_ln(0x1p-1074) - log(0x1p-1074)) < 1e-12);
    assert_true(isnan(kvi_ln(-1.0)) && isnan(kvi_ln(NAN)) && isnan(kvi_exp(NAN)));
}

static void test_sqrtf_is_exact(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed);
    for (int i = 0; i < N_POINTS; i++) {
        float x = fabsf(prng_float_bits(&r));

        if (isfinite(x)) /* rounding the double root again changes nothing: 53 >= 2 * 24 + 2 */
            assert_true(kvi_sqrtf(x) == (float)sqrt((double)x));
    }
    assert_true(signbit(kvi_sqrtf(-0.0f)) && isnan(kvi_sqrtf(-1.0f)));
    assert_true(kvi_sqrtf(HUGE_VALF) == HUGE_VALF);
}

/* The bits of these functions are a promise of the numerics revision: a change must be seen. */
static void test_float_functions_keep_their_bits(void **state)
{
    uint64_t sum = 0;
    float    s = 0;
    float    c = 0;

    (void)state;
    for (int i = 1; i <= 4096; i++) {
        float x = (float)i * 0.0173f;
        float y[6];

        kvi_sincosf(x * 1000.0f, &s, &c);
        y[0] = kvi_expf(-x);
        y[1] = kvi_log1pf(x);
        y[2] = s;
        y[3] = c;
        y[4] = kvi_powf(x, 0.37f);
        y[5] = kvi_sigmoidf(x - 35.0f);
        sum = kvi_hash64(y, sizeof y, sum);
    }
    if (sum != UINT64_C(0x98204dc0d82f7cb7))
        fail_msg("bits have changed: 0x%016" PRIx64, sum);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_names_every_value),
        cmocka_unit_test(test_fail_fills_the_record),
        cmocka_unit_test(test_fail_cleans_text),
        cmocka_unit_test(test_fail_cuts_at_a_character),
        cmocka_unit_test(test_fail_survives_any_bytes),
        cmocka_unit_test(test_log_writes_one_clean_line),
        cmocka_unit_test(test_hash_is_xxh3),
        cmocka_unit_test(test_params_import_mixes_releases),
        cmocka_unit_test(test_params_import_refuses_wrong_sizes),
        cmocka_unit_test(test_params_export_fills_no_more_than_asked),
        cmocka_unit_test(test_params_default_knows_the_caller_size),
        cmocka_unit_test(test_allocator_import_wants_both_or_none),
        cmocka_unit_test(test_alloc_aligns_and_balances),
        cmocka_unit_test(test_fault_alloc_sees_faults),
        cmocka_unit_test(test_buf_grows_by_half),
        cmocka_unit_test(test_checked_sizes),
        cmocka_unit_test(test_expf_and_sigmoidf_round_well),
        cmocka_unit_test(test_log1pf_rounds_well),
        cmocka_unit_test(test_sincosf_rounds_well),
        cmocka_unit_test(test_powf_rounds_well),
        cmocka_unit_test(test_double_exp_and_log_are_close),
        cmocka_unit_test(test_sqrtf_is_exact),
        cmocka_unit_test(test_float_functions_keep_their_bits),
    };

    seed = prng_seed(argc, argv, 20250811);
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
