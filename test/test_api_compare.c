/* Comparisons by hand: rows of logits whose figures are known, through the public interface. */
#include <math.h>
#include <stdio.h>

#include "support/fault_alloc.h"
#include "support/host.h"

static kvcsa_compare *make_compare(void)
{
    kvcsa_compare *c = NULL;
    kvcsa_error    err;

    assert_ok(kvcsa_compare_create(NULL, &c, &err));
    return c;
}

static kvcsa_compare_result result_of(const kvcsa_compare *c)
{
    kvcsa_compare_result r = {.struct_size = sizeof r};
    kvcsa_error          err;

    assert_ok(kvcsa_compare_get_result(c, &r, &err));
    return r;
}

static void add(kvcsa_compare *c, uint64_t position, int32_t next, const float *ref,
                const float *test, uint32_t n)
{
    kvcsa_error err;

    assert_ok(kvcsa_compare_add(c, position, next, ref, test, n, &err));
}

static kvcsa_compare_row row_at(const kvcsa_compare *c, uint64_t i)
{
    kvcsa_compare_row row;
    size_t            n = 0;
    kvcsa_error       err;

    assert_ok(kvcsa_compare_get_rows(c, i, &row, 1, &n, &err));
    assert_true(n >= 1);
    return row;
}

/* One row alone. */
static kvcsa_compare_row compare_once(int32_t next, const float *ref, const float *test, uint32_t n)
{
    kvcsa_compare    *c = make_compare();
    kvcsa_compare_row row;

    add(c, 7, next, ref, test, n);
    row = row_at(c, 0);
    assert_int_equal(row.position, 7);
    assert_int_equal(row.run, 0);
    kvcsa_compare_release(&c);
    assert_null(c);
    return row;
}

/* Test logits of two tokens whose divergence from equal ones is about kl: with p = 1/2 + d,
 * KL = -1/2 ln(4 p (1 - p)). */
static void two_tokens(double kl, float *test)
{
    const double d = sqrt(1 - exp(-2 * kl)) / 2;

    test[0] = (float)log(0.5 + d);
    test[1] = (float)log(0.5 - d);
}

static const float even[2] = {0, 0};

/* ------------------------------------------------------------------ one row */

static void test_two_tokens_by_hand(void **state)
{
    const float             ref[2] = {-0.69314718f, -0.69314718f};
    const float             test[2] = {-1.38629436f, -0.28768207f}; /* ln 1/4, ln 3/4 */
    const kvcsa_compare_row row = compare_once(1, ref, test, 2);

    (void)state;
    assert_true(fabs(row.kl - 0.14384103622589042) < 1e-7); /* 1/2 ln 2 + 1/2 ln 2/3 */
    assert_int_equal(row.ref_top, 0);                       /* a tie: the lower id */
    assert_int_equal(row.test_top, 1);
    assert_true(row.margin == 0);
    assert_true(fabsf(row.max_difference - 0.69314718f) < 1e-6f);
    assert_true(fabsf(row.ref_log_prob - -0.69314718f) < 1e-6f);
    assert_true(fabsf(row.test_log_prob - -0.28768207f) < 1e-6f);
    assert_int_equal(row.equal, 0);
}

static void test_the_other_way_round_is_another_figure(void **state)
{
    const float ref[2] = {-1.38629436f, -0.28768207f};

    (void)state;
    /* 1/4 ln 1/2 + 3/4 ln 3/2 */
    assert_true(fabs(compare_once(-1, ref, even, 2).kl - 0.13081203594113697) < 1e-7);
}

static void test_equal_logits_are_exactly_zero(void **state)
{
    float             x[T1_VOCAB];
    kvcsa_compare_row row;

    (void)state;
    for (uint32_t i = 0; i < T1_VOCAB; i++)
        x[i] = (float)((i * 7919 % 1000) * 0.013 - 5);
    row = compare_once(3, x, x, T1_VOCAB);
    assert_true(row.kl == 0 && !signbit(row.kl));
    assert_true(row.max_difference == 0);
    assert_int_equal(row.equal, 1);
    assert_true(row.ref_log_prob == row.test_log_prob);
    assert_int_equal(row.ref_top, row.test_top);
}

/* Zeros of both signs are other bits and the same numbers. */
static void test_equal_is_about_bits(void **state)
{
    const float             ref[3] = {0.0f, 1.0f, -2.0f};
    const float             test[3] = {-0.0f, 1.0f, -2.0f};
    const kvcsa_compare_row row = compare_once(-1, ref, test, 3);

    (void)state;
    assert_int_equal(row.equal, 0);
    assert_true(row.kl == 0);
    assert_true(row.max_difference == 0);
}

/* Logits are known up to a constant: nothing but their difference may matter. */
static void test_a_constant_changes_nothing(void **state)
{
    float             ref[300], test[300];
    kvcsa_compare_row row;

    (void)state;
    for (uint32_t i = 0; i < 300; i++) {
        ref[i] = (float)(i * 37 % 101) * 0.25f; /* exact, with the constant too */
        test[i] = ref[i] + 64.0f;
    }
    row = compare_once(5, ref, test, 300);
    assert_true(row.kl == 0);
    assert_true(row.max_difference == 64.0f);
    assert_true(row.ref_log_prob == row.test_log_prob);
}

/* The definition, with libm in long double. */
static long double naive_kl(const float *ref, const float *test, uint32_t n)
{
    long double a = 0, b = 0, kl = 0;

    for (uint32_t i = 0; i < n; i++) {
        a += expl((long double)ref[i]);
        b += expl((long double)test[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        const long double p = expl((long double)ref[i]) / a;
        const long double q = expl((long double)test[i]) / b;

        kl += p * logl(p / q);
    }
    return kl;
}

static void test_random_rows_against_the_definition(void **state)
{
    float    ref[T1_VOCAB], test[T1_VOCAB];
    uint64_t x = 20;

    (void)state;
    for (int round = 0; round < 40; round++) {
        const double step = pow(10, -(round % 8)); /* from far apart to nearly the same */
        double       want;
        double       got;

        for (uint32_t i = 0; i < T1_VOCAB; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            ref[i] = (float)((double)(x >> 40) * 0x1p-24 * 20 - 10);
            x = x * 6364136223846793005u + 1442695040888963407u;
            test[i] = ref[i] + (float)(((double)(x >> 40) * 0x1p-24 - 0.5) * step);
        }
        want = (double)naive_kl(ref, test, T1_VOCAB);
        got = compare_once(-1, ref, test, T1_VOCAB).kl;
        assert_true(got >= 0);
        if (fabs(got - want) > 1e-14 + 1e-12 * want)
            fail_msg("KL is %.17g, expected %.17g", got, want);
    }
}

static void test_what_cannot_be(void **state)
{
    const float       out = -INFINITY;
    const float       ref[3] = {1, out, 0};
    const float       less[3] = {1, out, out};
    kvcsa_compare_row row;

    (void)state;
    row = compare_once(2, ref, less, 3); /* the test excludes a token that the reference knows */
    assert_true(row.kl == INFINITY);
    assert_true(row.max_difference == INFINITY);
    assert_true(isfinite(row.ref_log_prob));
    assert_true(row.test_log_prob == -INFINITY);
    row = compare_once(1, less, ref, 3); /* the other way round it is a finite loss: ln(1 + 1/e) */
    assert_true(fabs(row.kl - 0.31326168751822286) < 1e-12);
    assert_true(row.margin == INFINITY); /* there is no second token */
    assert_true(row.ref_log_prob == -INFINITY);
    row = compare_once(-1, ref, ref, 3); /* excluded by both: no difference */
    assert_true(row.kl == 0 && row.max_difference == 0 && row.equal == 1);
    assert_true(isnan(row.ref_log_prob) && isnan(row.test_log_prob));
    row = compare_once(0, even, even, 1);
    assert_true(row.margin == INFINITY);
    assert_true(row.ref_log_prob == 0);
}

static void test_extreme_logits(void **state)
{
    const float ref[3] = {3e38f, -3e38f, 0};
    const float test[3] = {0, -3e38f, 3e38f};

    (void)state;
    assert_true(fabs(compare_once(0, ref, test, 3).kl / 3e38 - 1) < 1e-6);
    assert_true(compare_once(0, ref, ref, 3).kl == 0);
}

static void test_margins(void **state)
{
    const float ref[5] = {1, 4.5f, 4.25f, -8, 4};
    const float same[3] = {2, 5, 5};

    (void)state;
    assert_true(compare_once(-1, ref, ref, 5).margin == 0.25f);
    assert_int_equal(compare_once(-1, ref, ref, 5).ref_top, 1);
    assert_true(compare_once(-1, same, same, 3).margin == 0);
    assert_int_equal(compare_once(-1, same, same, 3).test_top, 1);
}

static void test_bad_rows_are_refused(void **state)
{
    const float    nan_row[2] = {0, NAN};
    const float    inf_row[2] = {INFINITY, 0};
    const float    none[2] = {-INFINITY, -INFINITY};
    kvcsa_compare *c = make_compare();
    kvcsa_error    err;

    (void)state;
    assert_fails(kvcsa_compare_add(c, 0, -1, nan_row, even, 2, &err), KVCSA_ERR_ARG, "ref[1]");
    assert_fails(kvcsa_compare_add(c, 0, -1, even, nan_row, 2, &err), KVCSA_ERR_ARG, "test[1]");
    assert_fails(kvcsa_compare_add(c, 0, -1, inf_row, even, 2, &err), KVCSA_ERR_ARG, "ref[0]");
    assert_fails(kvcsa_compare_add(c, 0, -1, even, inf_row, 2, &err), KVCSA_ERR_ARG, "infinity");
    assert_fails(kvcsa_compare_add(c, 0, -1, none, even, 2, &err), KVCSA_ERR_ARG, "all of 2");
    assert_fails(kvcsa_compare_add(c, 0, -1, even, none, 2, &err), KVCSA_ERR_ARG, "test");
    assert_fails(kvcsa_compare_add(c, 0, -1, even, even, 0, &err), KVCSA_ERR_ARG, "n_vocab");
    assert_fails(kvcsa_compare_add(c, 0, 2, even, even, 2, &err), KVCSA_ERR_ARG, "next_token is 2");
    assert_fails(kvcsa_compare_add(c, 0, -2, even, even, 2, &err), KVCSA_ERR_ARG, "next_token");
    assert_fails(kvcsa_compare_add(NULL, 0, -1, even, even, 2, &err), KVCSA_ERR_ARG, "compare");
    assert_fails(kvcsa_compare_add(c, 0, -1, NULL, even, 2, &err), KVCSA_ERR_ARG, "ref");
    assert_fails(kvcsa_compare_add(c, 0, -1, even, NULL, 2, &err), KVCSA_ERR_ARG, "test");
    assert_int_equal(kvcsa_compare_add(c, 0, -1, nan_row, even, 2, NULL), KVCSA_ERR_ARG);
    assert_int_equal(result_of(c).n_rows, 0);
    kvcsa_compare_release(&c);
}

/* ------------------------------------------------------------------ figures of many */

static void test_without_rows_all_is_zero(void **state)
{
    kvcsa_compare             *c = make_compare();
    const kvcsa_compare_result want = {.struct_size = sizeof want, .first_divergence = UINT64_MAX};
    const kvcsa_compare_result got = result_of(c);

    (void)state;
    assert_memory_equal(&got, &want, sizeof got);
    kvcsa_compare_release(&c);
}

/* n rows whose divergences are those of rank 1 .. n, in an order that is not theirs. */
static void add_ranks(kvcsa_compare *c, uint64_t n, double *kl /* [n + 1], by rank */)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t rank = 1 + i * 17 % n; /* no n here is a multiple of 17 */
        float          test[2];

        two_tokens((double)rank / (double)n, test);
        add(c, 1000 + rank, 0, even, test, 2);
        kl[rank] = row_at(c, i).kl;
        assert_true(fabs(kl[rank] - (double)rank / (double)n) < 1e-6);
    }
}

static void test_percentiles_by_nearest_rank(void **state)
{
    static const struct {
        uint64_t n, median, p99, p999;
    } cases[] = {{1, 1, 1, 1},          {2, 1, 2, 2},        {3, 2, 3, 3},
                 {100, 50, 99, 100},    {101, 51, 100, 101}, {1000, 500, 990, 999},
                 {1001, 501, 991, 1000}};

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const uint64_t       n = cases[k].n;
        double              *kl = malloc((n + 1) * sizeof *kl);
        kvcsa_compare       *c = make_compare();
        kvcsa_compare_result r;
        double               sum = 0;

        assert_non_null(kl);
        add_ranks(c, n, kl);
        r = result_of(c);
        for (uint64_t i = 0; i < n; i++)
            sum += row_at(c, i).kl;
        assert_int_equal(r.n_rows, n);
        assert_true(r.kl_median == kl[cases[k].median]);
        assert_true(r.kl_p99 == kl[cases[k].p99]);
        assert_true(r.kl_p999 == kl[cases[k].p999]);
        assert_true(r.kl_max == kl[n]);
        assert_int_equal(r.kl_max_position, 1000 + n);
        assert_true(r.kl_mean == sum / (double)n);
        free(kl);
        kvcsa_compare_release(&c);
    }
}

static void test_flips_by_margin(void **state)
{
    static const float   margins[] = {0.05f, 0.5f, 2.0f};
    kvcsa_compare       *c = make_compare();
    kvcsa_compare_result r;

    (void)state;
    for (int i = 0; i < 3; i++) { /* one row that keeps its best token, i + 1 that do not */
        const float ref[2] = {0, margins[i]};
        const float kept[2] = {0, 0.01f};
        const float flipped[2] = {0.01f, 0};

        add(c, 0, -1, ref, kept, 2);
        for (int k = 0; k <= i; k++)
            add(c, 0, -1, ref, flipped, 2);
    }
    r = result_of(c);
    assert_int_equal(r.n_rows, 9);
    assert_int_equal(r.n_flips, 6);
    assert_int_equal(r.n_margin_01, 7);
    assert_int_equal(r.n_flips_01, 5);
    assert_int_equal(r.n_margin_10, 4);
    assert_int_equal(r.n_flips_10, 3);
    assert_int_equal(r.n_text_rows, 0);
    assert_true(r.ref_nll == 0 && r.test_nll == 0);
    kvcsa_compare_release(&c);
}

static void test_nll_is_of_rows_with_a_next_token(void **state)
{
    const float          test[2] = {-1.38629436f, -0.28768207f};
    kvcsa_compare       *c = make_compare();
    kvcsa_compare_result r;

    (void)state;
    add(c, 0, 0, even, test, 2);
    add(c, 1, 1, even, test, 2);
    add(c, 2, -1, even, test, 2);
    r = result_of(c);
    assert_int_equal(r.n_text_rows, 2);
    assert_true(fabs(r.ref_nll - 0.69314718) < 1e-7);
    assert_true(fabs(r.test_nll - (1.38629436 + 0.28768207) / 2) < 1e-6);
    kvcsa_compare_release(&c);
}

static void test_infinity_reaches_the_figures(void **state)
{
    const float          less[2] = {0, -INFINITY};
    kvcsa_compare       *c = make_compare();
    kvcsa_compare_result r;

    (void)state;
    for (uint64_t i = 0; i < 9; i++)
        add(c, i, 0, even, even, 2);
    add(c, 9, 1, even, less, 2);
    r = result_of(c);
    assert_true(r.kl_mean == INFINITY && r.kl_max == INFINITY && r.kl_p99 == INFINITY);
    assert_true(r.kl_median == 0);
    assert_int_equal(r.kl_max_position, 9);
    assert_int_equal(r.n_equal_rows, 9);
    assert_true(r.test_nll == INFINITY);
    assert_true(r.max_difference == INFINITY);
    kvcsa_compare_release(&c);
}

static void test_runs_are_numbered(void **state)
{
    static const uint32_t want[] = {0, 0, 1, 2};
    kvcsa_compare        *c = make_compare();
    kvcsa_compare_row     rows[5];
    float                 test[2];
    size_t                n = 0;
    kvcsa_error           err;

    (void)state;
    assert_ok(kvcsa_compare_begin(c, &err)); /* nothing to leave behind */
    assert_ok(kvcsa_compare_begin(c, &err));
    add(c, 5, -1, even, even, 2);
    add(c, 6, -1, even, even, 2);
    assert_ok(kvcsa_compare_begin(c, &err));
    assert_ok(kvcsa_compare_begin(c, &err));
    two_tokens(0.5, test);
    add(c, 5, -1, even, test, 2);
    assert_ok(kvcsa_compare_begin(c, &err));
    add(c, 5, -1, even, even, 2);
    assert_ok(kvcsa_compare_get_rows(c, 0, rows, 5, &n, &err));
    assert_int_equal(n, 4);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(rows[i].run, want[i]);
    assert_int_equal(result_of(c).kl_max_run, 1);
    assert_int_equal(result_of(c).kl_max_position, 5);
    assert_fails(kvcsa_compare_begin(NULL, &err), KVCSA_ERR_ARG, "compare");
    kvcsa_compare_release(&c);
}

static void test_lists_in_pieces(void **state)
{
    kvcsa_compare    *c = make_compare();
    kvcsa_compare_row rows[4];
    size_t            n = 99;
    kvcsa_error       err;

    (void)state;
    for (uint64_t i = 0; i < 10; i++)
        add(c, 100 + i, -1, even, even, 2);
    memset(rows, 0xEE, sizeof rows);
    assert_ok(kvcsa_compare_get_rows(c, 7, rows, 2, &n, &err));
    assert_int_equal(n, 3);
    assert_int_equal(rows[0].position, 107);
    assert_int_equal(rows[1].position, 108);
    assert_int_equal(((unsigned char *)rows)[2 * sizeof *rows], 0xEE);
    assert_ok(kvcsa_compare_get_rows(c, 0, NULL, 0, &n, &err));
    assert_int_equal(n, 10);
    assert_ok(kvcsa_compare_get_rows(c, 10, rows, 4, &n, &err));
    assert_int_equal(n, 0);
    n = 99;
    assert_fails(kvcsa_compare_get_rows(c, 11, rows, 4, &n, &err), KVCSA_ERR_ARG, "from is 11");
    assert_int_equal(n, 0);
    assert_fails(kvcsa_compare_get_rows(c, 0, NULL, 1, &n, &err), KVCSA_ERR_ARG, "rows");
    assert_fails(kvcsa_compare_get_rows(c, 0, rows, 1, NULL, &err), KVCSA_ERR_ARG, "n_rows");
    assert_fails(kvcsa_compare_get_rows(NULL, 0, rows, 1, &n, &err), KVCSA_ERR_ARG, "compare");
    kvcsa_compare_release(&c);
}

static void test_greedy_runs(void **state)
{
    static const int32_t a[5] = {1, 2, 3, 4, 5};
    static const int32_t b[5] = {1, 2, 9, 4, 5};
    kvcsa_compare       *c = make_compare();
    kvcsa_compare_result r;
    uint64_t             same[3] = {7, 7, 7};
    size_t               n = 0;
    kvcsa_error          err;

    (void)state;
    assert_ok(kvcsa_compare_add_greedy(c, a, a, 5, &err));
    r = result_of(c);
    assert_true(r.first_divergence == UINT64_MAX);
    assert_int_equal(r.n_greedy_same, 5);
    assert_ok(kvcsa_compare_add_greedy(c, a, b, 5, &err));
    assert_ok(kvcsa_compare_add_greedy(c, a, b + 1, 4, &err));
    r = result_of(c);
    assert_int_equal(r.n_greedy, 3);
    assert_int_equal(r.n_diverged, 2);
    assert_int_equal(r.n_greedy_same, 7);
    assert_int_equal(r.n_greedy_tokens, 14);
    assert_int_equal(r.first_divergence, 0);
    assert_int_equal(r.n_rows, 0);
    assert_ok(kvcsa_compare_get_greedy(c, same, 2, &n, &err));
    assert_int_equal(n, 3);
    assert_int_equal(same[0], 5);
    assert_int_equal(same[1], 2);
    assert_int_equal(same[2], 7); /* not written */
    assert_ok(kvcsa_compare_get_greedy(c, NULL, 0, &n, &err));
    assert_int_equal(n, 3);
    assert_fails(kvcsa_compare_add_greedy(c, a, b, 0, &err), KVCSA_ERR_ARG, "n_tokens");
    assert_fails(kvcsa_compare_add_greedy(c, NULL, b, 1, &err), KVCSA_ERR_ARG, "ref");
    assert_fails(kvcsa_compare_add_greedy(c, a, NULL, 1, &err), KVCSA_ERR_ARG, "test");
    assert_fails(kvcsa_compare_add_greedy(NULL, a, b, 1, &err), KVCSA_ERR_ARG, "compare");
    assert_fails(kvcsa_compare_get_greedy(c, NULL, 1, &n, &err), KVCSA_ERR_ARG, "n_same");
    assert_fails(kvcsa_compare_get_greedy(c, same, 1, NULL, &err), KVCSA_ERR_ARG, "n_greedy");
    assert_fails(kvcsa_compare_get_greedy(NULL, same, 1, &n, &err), KVCSA_ERR_ARG, "compare");
    kvcsa_compare_release(&c);
}

static void test_result_fills_what_the_caller_knows(void **state)
{
    kvcsa_compare       *c = make_compare();
    kvcsa_compare_result r = {.struct_size = sizeof r - 8};
    kvcsa_error          err;

    (void)state;
    assert_fails(kvcsa_compare_get_result(c, &r, &err), KVCSA_ERR_ARG, "struct_size");
    assert_fails(kvcsa_compare_get_result(c, NULL, &err), KVCSA_ERR_ARG, "result");
    assert_fails(kvcsa_compare_get_result(NULL, &r, &err), KVCSA_ERR_ARG, "compare");
    assert_fails(kvcsa_compare_create(NULL, NULL, &err), KVCSA_ERR_ARG, "out");
    kvcsa_compare_release(NULL);
    kvcsa_compare_release(&c);
    kvcsa_compare_release(&c);
}

/* ------------------------------------------------------------------ out of memory */

static void test_out_of_memory_adds_nothing(void **state)
{
    static const int32_t list[2] = {1, 2};
    kvcsa_compare_result r = {.struct_size = sizeof r};
    kvcsa_compare       *c = NULL;
    fault_alloc          fa;
    float                test[2];
    kvcsa_error          err;

    (void)state;
    fault_alloc_init(&fa);
    fault_alloc_fail_at(&fa, 1);
    assert_fails(kvcsa_compare_create(&fa.hook, &c, &err), KVCSA_ERR_NOMEM, "comparison");
    assert_null(c);
    fault_alloc_fail_at(&fa, 0);
    assert_ok(kvcsa_compare_create(&fa.hook, &c, &err));
    two_tokens(0.25, test);
    for (uint64_t i = 0; i < 100; i++) { /* whenever the list grows it fails first */
        fault_alloc_fail_at(&fa, 1);
        if (kvcsa_compare_add(c, i, -1, even, test, 2, &err) != KVCSA_OK) {
            assert_true(fault_alloc_hit(&fa));
            assert_int_equal(err.status, KVCSA_ERR_NOMEM);
            fault_alloc_fail_at(&fa, 0);
            assert_int_equal(result_of(c).n_rows, i);
            add(c, i, -1, even, test, 2);
        }
    }
    fault_alloc_fail_at(&fa, 1);
    assert_fails(kvcsa_compare_get_result(c, &r, &err), KVCSA_ERR_NOMEM, "100 rows");
    fault_alloc_fail_at(&fa, 1);
    assert_fails(kvcsa_compare_add_greedy(c, list, list, 2, &err), KVCSA_ERR_NOMEM, "greedy run 0");
    fault_alloc_fail_at(&fa, 0);
    r = result_of(c);
    assert_int_equal(r.n_rows, 100);
    assert_int_equal(r.n_greedy, 0);
    assert_true(r.kl_median == r.kl_max && r.kl_mean > 0.2);
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(row_at(c, i).position, i);
    /* 48 bytes a row: the list alone grows, by half */
    assert_true(fa.n_bytes <= 150 * sizeof(kvcsa_compare_row) + 512);
    kvcsa_compare_release(&c);
    assert_true(fault_alloc_is_clean(&fa));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_tokens_by_hand),
        cmocka_unit_test(test_the_other_way_round_is_another_figure),
        cmocka_unit_test(test_equal_logits_are_exactly_zero),
        cmocka_unit_test(test_equal_is_about_bits),
        cmocka_unit_test(test_a_constant_changes_nothing),
        cmocka_unit_test(test_random_rows_against_the_definition),
        cmocka_unit_test(test_what_cannot_be),
        cmocka_unit_test(test_extreme_logits),
        cmocka_unit_test(test_margins),
        cmocka_unit_test(test_bad_rows_are_refused),
        cmocka_unit_test(test_without_rows_all_is_zero),
        cmocka_unit_test(test_percentiles_by_nearest_rank),
        cmocka_unit_test(test_flips_by_margin),
        cmocka_unit_test(test_nll_is_of_rows_with_a_next_token),
        cmocka_unit_test(test_infinity_reaches_the_figures),
        cmocka_unit_test(test_runs_are_numbered),
        cmocka_unit_test(test_lists_in_pieces),
        cmocka_unit_test(test_greedy_runs),
        cmocka_unit_test(test_result_fills_what_the_caller_knows),
        cmocka_unit_test(test_out_of_memory_adds_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
