/* session: choosing a token. Known answers of the generator, a naive sampler, distributions with a
 * computed bound. */
#include "session/sampler.h"
#include "session/sampler_int.h"

#include "base/alloc.h"
#include "base/fmath.h"

#include "support/fault_alloc.h"
#include "support/prng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_VOCAB 64

static uint64_t seed;

static kvcsa_sampler_params params(float temperature, uint32_t top_k, float min_p, float top_p)
{
    return (kvcsa_sampler_params){
        sizeof(kvcsa_sampler_params), 1234, temperature, top_p, min_p, top_k};
}

static int32_t sample(const float *logits, uint32_t n, uint64_t position,
                      const kvcsa_sampler_params *p)
{
    kvcsa_allocator a;
    int32_t         token = -7;
    kvcsa_error     err;

    kvi_allocator_import(NULL, &a, NULL);
    if (kvi_sample(&a, logits, n, position, p, &token, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    assert_true(token >= 0 && (uint32_t)token < n);
    return token;
}

/* ------------------------------------------------------------------ generator */

/* The three known answers for philox4x32 with 10 rounds that its authors publish. */
static void test_philox_known_answers(void **state)
{
    static const uint32_t rows[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];

        kvi_philox4x32(rows[i], rows[i] + 4, out);
        assert_memory_equal(out, rows[i] + 6, sizeof out);
    }
}

static void test_uniform_is_a_function_of_seed_and_position(void **state)
{
    double sum = 0;

    (void)state;
    /* from the first known answer: the upper 53 bits of e169c58d6627e8d5 */
    assert_true(kvi_uniform(0, 0) ==
                (double)(UINT64_C(0xe169c58d6627e8d5) >> 11) / 9007199254740992.0);
    assert_true(kvi_uniform(5, 9) == kvi_uniform(5, 9));
    assert_true(kvi_uniform(5, 9) != kvi_uniform(9, 5));
    assert_true(kvi_uniform(5, UINT64_C(1) << 32) != kvi_uniform(5, 0));
    assert_true(kvi_uniform(UINT64_C(1) << 32, 5) != kvi_uniform(0, 5));
    for (uint64_t i = 0; i < 10000; i++) {
        const double u = kvi_uniform(seed, i);

        assert_true(u >= 0.0 && u < 1.0);
        sum += u;
    }
    /* mean of 10,000: standard deviation 0.0029; six of them */
    assert_true(fabs(sum / 10000 - 0.5) < 0.0174);
}

/* ------------------------------------------------------------------ greedy */

static void test_greedy_takes_the_lowest_of_the_largest(void **state)
{
    static const float   logits[] = {1, 5, -3, 5, 4, 5};
    kvcsa_sampler_params p = params(0, 0, 0, 0);

    (void)state;
    for (uint64_t at = 0; at < 20; at++)
        assert_int_equal(sample(logits, 6, at, &p), 1);
    p = params(1, 1, 0, 0); /* the one best of top-k is the same */
    for (uint64_t at = 0; at < 20; at++)
        assert_int_equal(sample(logits, 6, at, &p), 1);
    p = params(1e-30f, 0, 0, 0); /* no heat left: the three of 5 share everything */
    for (uint64_t at = 0; at < 50; at++)
        assert_true(logits[sample(logits, 6, at, &p)] == 5);
    assert_int_equal(sample(logits, 1, 0, &p), 0);
}

static void test_infinities(void **state)
{
    static const float   up[] = {1, INFINITY, 3, INFINITY, -INFINITY};
    static const float   down[] = {-INFINITY, -INFINITY, 2, -INFINITY};
    static const float   none[] = {-INFINITY, -INFINITY};
    static const float   not_number[] = {1, 2, NAN};
    kvcsa_sampler_params p = params(0, 0, 0, 0);
    kvcsa_allocator      a;
    kvcsa_error          err;
    int32_t              token = 3;
    bool                 seen[2] = {false, false};

    (void)state;
    kvi_allocator_import(NULL, &a, NULL);
    assert_int_equal(sample(up, 5, 0, &p), 1);
    assert_int_equal(sample(down, 4, 0, &p), 2);
    for (int kind = 0; kind < 4; kind++) {
        p = params(1, kind == 1 ? 3 : 0, kind == 2 ? 0.1f : 0, kind == 3 ? 0.9f : 0);
        for (uint64_t at = 0; at < 60; at++) {
            const int32_t got = sample(up, 5, at, &p);

            assert_true(got == 1 || got == 3);
            seen[got / 2] = true;
            assert_int_equal(sample(down, 4, at, &p), 2);
        }
        assert_true(seen[0] && seen[1]);
    }
    for (int hot = 0; hot < 2; hot++) {
        p = params((float)hot, 0, 0, 0);
        assert_int_equal(kvi_sample(&a, none, 2, 0, &p, &token, &err), KVCSA_ERR_ARG);
        assert_non_null(strstr(err.text, "-inf"));
        assert_int_equal(kvi_sample(&a, not_number, 3, 0, &p, &token, &err), KVCSA_ERR_ARG);
        assert_non_null(strstr(err.text, "logits[2]"));
        assert_int_equal(token, 0);
    }
}

static void test_refuses_wrong_parameters(void **state)
{
    static const float logits[] = {1, 2};
    const struct {
        kvcsa_sampler_params p;
        kvcsa_status         st;
    } cases[] = {
        {params(-0.5f, 0, 0, 0), KVCSA_ERR_ARG},
        {params(NAN, 0, 0, 0), KVCSA_ERR_ARG},
        {params(INFINITY, 0, 0, 0), KVCSA_ERR_ARG},
        {params(1, 0, -0.1f, 0), KVCSA_ERR_ARG},
        {params(1, 0, 1.5f, 0), KVCSA_ERR_ARG},
        {params(1, 0, NAN, 0), KVCSA_ERR_ARG},
        {params(1, 0, 0, -0.1f), KVCSA_ERR_ARG},
        {params(1, 0, 0, 1.1f), KVCSA_ERR_ARG},
        {params(1, 0, 0, NAN), KVCSA_ERR_ARG},
        {params(0, 0, NAN, 0), KVCSA_ERR_ARG},
        {params(1, 0, 1, 1), KVCSA_OK},
        {params(3.4e38f, UINT32_MAX, 0, 0), KVCSA_OK},
        {params(-0.0f, 0, 0, 0), KVCSA_OK},
    };
    kvcsa_allocator      a;
    kvcsa_error          err;
    kvcsa_sampler_params p = params(1, 0, 0, 0);
    int32_t              token = 0;

    (void)state;
    kvi_allocator_import(NULL, &a, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(kvi_sample(&a, logits, 2, 0, &cases[i].p, &token, &err), cases[i].st);
    assert_int_equal(kvi_sample(&a, NULL, 2, 0, &p, &token, &err), KVCSA_ERR_ARG);
    assert_int_equal(kvi_sample(&a, logits, 0, 0, &p, &token, &err), KVCSA_ERR_ARG);
}

/* ------------------------------------------------------------------ a naive sampler */

typedef struct naive {
    float    logit;
    uint32_t id;
    double   p;
} naive;

static int compare_naive(const void *a, const void *b)
{
    const naive *x = a;
    const naive *y = b;

    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit)
                                : (x->id > y->id) - (x->id < y->id);
}

static int compare_ids(const void *a, const void *b)
{
    return (((const naive *)a)->id > ((const naive *)b)->id) -
           (((const naive *)a)->id < ((const naive *)b)->id);
}

/* Sort everything, then filter as the header says. Returns the number left, by ascending id,
 * probabilities in p. `margin` is how far the closest decision on min-p and top-p was from going
 * the other way. */
static size_t filter_naively(const float *logits, uint32_t n, const kvcsa_sampler_params *p,
                             naive *c, double *margin)
{
    double total = 0;
    double sum = 0;
    size_t left = n;

    *margin = 1;
    for (uint32_t i = 0; i < n; i++)
        c[i] = (naive){logits[i], i, 0};
    qsort(c, n, sizeof *c, compare_naive);
    if (p->top_k > 0 && p->top_k < left)
        left = p->top_k;
    for (size_t i = 0; i < left; i++)
        c[i].p = exp(((double)c[i].logit - (double)c[0].logit) / (double)p->temperature);
    for (size_t i = left; i-- > 0 && p->min_p > 0;) {
        *margin = fmin(*margin, fabs(c[i].p - (double)p->min_p));
        if (c[i].p < (double)p->min_p)
            left = i;
    }
    for (size_t i = 0; i < left; i++)
        total += c[i].p;
    for (size_t i = 0; i < left && p->top_p > 0 && p->top_p < 1; i++) {
        sum += c[i].p;
        *margin = fmin(*margin, fabs(sum / total - (double)p->top_p));
        if (sum >= (double)p->top_p * total)
            left = i + 1;
    }
    total = 0;
    for (size_t i = 0; i < left; i++)
        total += c[i].p;
    for (size_t i = 0; i < left; i++)
        c[i].p /= total;
    qsort(c, left, sizeof *c, compare_ids);
    return left;
}

static void test_sample_matches_the_naive_sampler(void **state)
{
    prng r;
    int  n_compared = 0;

    (void)state;
    prng_init(&r, seed + 1);
    for (int i = 0; i < 4000; i++) {
        const uint32_t             n = (uint32_t)prng_range(&r, 1, MAX_VOCAB);
        const kvcsa_sampler_params p = {sizeof p,
                                        prng_u64(&r),
                                        prng_float(&r, 0.2f, 2),
                                        prng_below(&r, 2) ? prng_float(&r, 0, 1) : 0,
                                        prng_below(&r, 2) ? prng_float(&r, 0, 0.5f) : 0,
                                        prng_below(&r, 2) ? (uint32_t)prng_below(&r, n + 2) : 0};
        float                      logits[MAX_VOCAB];
        naive                      c[MAX_VOCAB];
        double                     margin = 0;
        double                     sum = 0;
        size_t                     left = 0;
        size_t                     want = 0;

        for (uint32_t k = 0; k < n; k++) /* halves: many ties */
            logits[k] = i % 2 ? prng_normal(&r) * 2 : (float)prng_below(&r, 6) * 0.5f;
        left = filter_naively(logits, n, &p, c, &margin);
        for (want = 0; want + 1 < left; want++) {
            sum += c[want].p;
            margin = fmin(margin, fabs(sum - kvi_uniform(p.seed, (uint64_t)i)));
            if (kvi_uniform(p.seed, (uint64_t)i) < sum)
                break;
        }
        if (margin <
            1e-12) /* both compute in double; sums of 64 differ by less than 64 x 1.2e-16 x 64 */
            continue;
        assert_int_equal(sample(logits, n, (uint64_t)i, &p), c[want].id);
        n_compared++;
    }
    assert_true(n_compared > 3900);
}

/* ------------------------------------------------------------------ distribution */

/* Counts of n draws against the probabilities. The statistic is about chi-square distributed with
 * left - 1 degrees of freedom, mean left - 1 and variance 2 (left - 1); the bound lies 6 standard
 * deviations above. The seed is fixed, so this is no matter of luck. */
static void check_distribution(const kvcsa_sampler_params *p)
{
    static const float logits[12] = {0.5f,   -1, 2,     2,     0,    1.25f,
                                     -1.75f, 1,  0.75f, -0.5f, 1.5f, -1.5f};
    const uint64_t     n = 40000;
    naive              c[12];
    uint32_t           counts[12] = {0};
    double             margin = 0;
    double             chi = 0;
    size_t             left = filter_naively(logits, 12, p, c, &margin);
    uint64_t           n_left = 0;

    for (uint64_t i = 0; i < n; i++)
        counts[sample(logits, 12, i, p)]++;
    for (size_t i = 0; i < left; i++) {
        const double want = c[i].p * (double)n;

        assert_true(want > 30); /* or the approximation would not hold */
        chi += ((double)counts[c[i].id] - want) * ((double)counts[c[i].id] - want) / want;
        n_left += counts[c[i].id];
    }
    assert_int_equal(n_left, n); /* nothing else was drawn */
    if (left > 1 && chi > (double)(left - 1) + 6 * sqrt(2.0 * (double)(left - 1)))
        fail_msg("chi-square is %g for %zu tokens", chi, left);
    assert_true(left == 1 || chi > 0);
}

static void test_draws_follow_the_distribution(void **state)
{
    const kvcsa_sampler_params cases[] = {
        params(1, 0, 0, 0),     params(0.8f, 0, 0, 0), params(2, 5, 0, 0),
        params(1, 0, 0.2f, 0),  params(1, 0, 0, 0.8f), params(1.5f, 9, 0.1f, 0.9f),
        params(1, 3, 0, 0.01f), params(1, 0, 1, 0),
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_distribution(&cases[i]);
}

/* Computed by a script of a few lines that shares no code with ours. Frozen: a saved run must go on
 * with the same draws in every later version. */
static void test_draws_are_frozen(void **state)
{
    static const float         logits[8] = {0, 1, 2, 3, 3, 2, 1, 0};
    static const int32_t       want[24] = {3, 3, 4, 4, 5, 3, 4, 3, 2, 3, 4, 3,
                                           3, 3, 4, 3, 3, 3, 5, 2, 5, 3, 4, 5};
    const kvcsa_sampler_params p = {sizeof p, 42, 1, 0.95f, 0.02f, 7};

    (void)state;
    for (uint64_t at = 0; at < 24; at++) {
        assert_int_equal(sample(logits, 8, at, &p), want[at]);
        assert_int_equal(sample(logits, 8, at, &p), want[at]);
    }
}

static void test_large_vocabulary(void **state)
{
    const uint32_t       n = 129280;
    float               *logits = malloc(n * sizeof *logits);
    kvcsa_sampler_params p = params(0.8f, 40, 0, 0.95f);
    prng                 r;

    (void)state;
    assert_non_null(logits);
    prng_init(&r, seed + 2);
    for (uint32_t i = 0; i < n; i++)
        logits[i] = prng_normal(&r);
    logits[n - 1] = 50;
    assert_int_equal(sample(logits, n, 0, &p), n - 1);
    for (uint32_t i = 0; i < n;
         i++) /* all equal: the first 40 are left, of which the first 38 make 0.95 */
        logits[i] = -2.5f;
    for (uint64_t at = 0; at < 30; at++)
        assert_true(sample(logits, n, at, &p) < 38);
    p = params(1, 0, 0, 0.5f);
    for (uint64_t at = 0; at < 5; at++)
        assert_true(sample(logits, n, at, &p) < (int32_t)n / 2);
    free(logits);
}

static void test_failing_allocation(void **state)
{
    static const float   logits[] = {1, 2, 3};
    kvcsa_sampler_params p = params(1, 0, 0, 0);
    fault_alloc          fa;
    kvcsa_error          err;
    int32_t              token = 5;

    (void)state;
    fault_alloc_init(&fa);
    fault_alloc_fail_at(&fa, 1);
    assert_int_equal(kvi_sample(&fa.hook, logits, 3, 0, &p, &token, &err), KVCSA_ERR_NOMEM);
    assert_int_equal(token, 0);
    p.temperature = 0; /* greedy needs no memory */
    fault_alloc_fail_at(&fa, 1);
    assert_int_equal(kvi_sample(&fa.hook, logits, 3, 0, &p, &token, &err), KVCSA_OK);
    assert_int_equal(token, 2);
    assert_true(fault_alloc_is_clean(&fa));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_uniform_is_a_function_of_seed_and_position),
        cmocka_unit_test(test_greedy_takes_the_lowest_of_the_largest),
        cmocka_unit_test(test_infinities),
        cmocka_unit_test(test_refuses_wrong_parameters),
        cmocka_unit_test(test_sample_matches_the_naive_sampler),
        cmocka_unit_test(test_draws_follow_the_distribution),
        cmocka_unit_test(test_draws_are_frozen),
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_failing_allocation),
    };

    seed = prng_seed(argc, argv, 20261131);
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
