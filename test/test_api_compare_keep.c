/* Settings that hide entries: by range, all but the first and last tokens, by attention. */
#include "support/compared.h"

typedef void (*hide_fn)(kvcsa_session *s, uint64_t n);

static void hide(kvcsa_session *s, uint64_t begin, uint64_t end, int32_t hidden)
{
    kvcsa_error err;

    assert_ok(kvcsa_session_hide(s, begin, end, hidden, &err));
}

/* Kept: two spans at the beginning, and the last 20 tokens in whole spans. */
static void hide_middle(kvcsa_session *s, uint64_t n)
{
    const uint64_t end = n > 20 ? (n - 20) / SPAN * SPAN : 0;

    if (end > 2 * SPAN)
        hide(s, 2 * SPAN, end, 1);
}

static void hide_second(kvcsa_session *s, uint64_t n)
{
    if (n == 0)
        hide(s, SPAN, 2 * SPAN, 1);
}

/* Kept: the half of the full spans that received most attention, rounded up; and one that is not
 * full. */
static void hide_by_mass(kvcsa_session *s, uint64_t n)
{
    const size_t full = (size_t)(n / SPAN);
    double       mass[N / SPAN + 1];
    size_t       n_spans = 0;
    kvcsa_error  err;

    if (!n)
        return;
    hide(s, 0, UINT64_MAX, 0);
    assert_ok(kvcsa_session_get_mass(s, mass, N / SPAN + 1, &n_spans, 0, &err));
    assert_int_equal(n_spans, (n + SPAN - 1) / SPAN);
    for (size_t i = 0; i < full; i++) {
        size_t better = 0;

        for (size_t k = 0; k < full; k++)
            better += mass[k] > mass[i] || (mass[k] == mass[i] && k < i);
        if (better >= (full + 1) / 2)
            hide(s, i * SPAN, (i + 1) * SPAN, 1);
    }
}

/* The same by hand: a session, appends of 15 tokens, `before` in front of each. */
static void check_by_hand(const fixture *f, const cold *exact, const kvcsa_compare *c,
                          hide_fn before)
{
    kvcsa_session_params p = session_defaults();
    host_rows            rows = host_rows_make(N, T1_VOCAB);
    kvcsa_compare       *want = NULL;
    kvcsa_compare_row   *a, *b;
    kvcsa_session       *s;
    kvcsa_error          err;

    p.flags = KVCSA_SESSION_TRACK_MASS;
    s = make_session(f->pool, f->model, &p);
    for (uint64_t at = 0; at < N; at += 15) {
        before(s, at);
        host_run(f->pool, s, f->ids + at, (size_t)cold_min(15, N - at), &rows);
    }
    assert_int_equal(rows.n, N);
    assert_ok(kvcsa_compare_create(NULL, &want, &err));
    for (size_t i = 0; i < N; i++)
        assert_ok(kvcsa_compare_add(want, i, i + 1 < N ? f->ids[i + 1] : -1,
                                    exact->rows.data + i * T1_VOCAB, rows.data + i * T1_VOCAB,
                                    T1_VOCAB, &err));
    a = rows_of(c, N);
    b = rows_of(want, N);
    for (size_t i = 0; i + 1 < N; i++) /* the last row's log-probabilities are NaN */
        assert_memory_equal(&a[i], &b[i], sizeof a[i]);
    assert_true(a[N - 1].kl == b[N - 1].kl);
    assert_true(result_of(c).kl_mean > 1e-3);
    free(a);
    free(b);
    kvcsa_compare_release(&want);
    kvcsa_session_release(&s);
    free(rows.data);
}

static void test_what_is_kept_equals_hiding_by_hand(void **state)
{
    static const hide_fn  by_hand[3] = {hide_middle, hide_second, hide_by_mass};
    static const uint64_t ranges[] = {SPAN, 2 * SPAN};
    const fixture        *f = *state;
    cold                  exact = cold_run_of(f->model, f->ids, N);
    kvcsa_setting         tests[3];
    kvcsa_compare        *c[3];

    for (int i = 0; i < 3; i++) {
        tests[i] = setting_of(f->model, f->other, NULL);
        tests[i].append_tokens = 15;
    }
    tests[0].keep_first_tokens = SPAN + 1;
    tests[0].keep_last_tokens = 20;
    tests[1].hidden = ranges;
    tests[1].n_hidden = 1;
    tests[2].keep_fraction = 0.5f;
    run_against_exact(f, tests, c, 3);
    for (int i = 0; i < 3; i++) {
        check_by_hand(f, &exact, c[i], by_hand[i]);
        kvcsa_compare_release(&c[i]);
    }
    cold_free(&exact);
}

/* Where everything is kept nothing changes. */
static void test_keeping_all_prints_zero(void **state)
{
    const fixture *f = *state;
    kvcsa_setting  tests[3];
    kvcsa_compare *c[3];

    for (int i = 0; i < 3; i++) {
        tests[i] = setting_of(f->model, f->other, NULL);
        tests[i].append_tokens = 30;
    }
    tests[0].keep_last_tokens = N;
    tests[1].keep_first_tokens = tests[1].keep_last_tokens = N / 2;
    tests[2].keep_fraction = 1;
    run_against_exact(f, tests, c, 3);
    for (int i = 0; i < 3; i++) {
        check_all_zero(c[i], N);
        kvcsa_compare_release(&c[i]);
    }
}

/* Hits and hiding together: what is hidden stays so behind a hit, and the ranks of a hit that is
 * the first are those of the run that it finds. */
static void test_hits_of_settings_that_hide(void **state)
{
    fixture       *f = *state;
    kvcsa_setting  tests[4];
    kvcsa_compare *c[4];

    for (int i = 0; i < 4; i++) {
        tests[i] = setting_of(f->model, f->other, NULL);
        tests[i].append_tokens = 16;
        tests[i].hit_tokens = 32;
        tests[i].flags = i % 2 ? KVCSA_SETTING_CHAIN_HITS : 0;
        tests[i].keep_fraction = i / 2 ? 0.25f : 0;
        tests[i].keep_last_tokens = i / 2 ? 0 : 16;
    }
    f->n_replays = 0;
    run_against_exact(f, tests, c, 4);
    assert_int_equal(f->n_replays, 4 * 2); /* at 32 and 64 */
    for (int i = 0; i < 4; i++) {
        check_differs_from(c[i], 32);
        kvcsa_compare_release(&c[i]);
    }
}

static void get_mass(kvcsa_session *s, double *mass, int32_t reset)
{
    size_t      n = 0;
    kvcsa_error err;

    assert_ok(kvcsa_session_get_mass(s, mass, N / SPAN, &n, reset, &err));
}

/* Hide all of the first n spans but the `keep` of largest mass. */
static void keep_best(kvcsa_session *s, const double *mass, size_t n, size_t keep)
{
    for (size_t i = 0; i < n; i++) {
        size_t better = 0;

        for (size_t k = 0; k < n; k++)
            better += mass[k] > mass[i] || (mass[k] == mass[i] && k < i);
        hide(s, i * SPAN, (i + 1) * SPAN, better >= keep);
    }
}

/* A hit that is the first finds the ranks of the exact run too, and adds to them what it sees. By
 * hand: a session that has lost its windows by a long way back, and begins to count there. */
static void test_first_hits_rank_by_what_they_find(void **state)
{
    enum { HIT = 64, APPEND = 16 };
    static const size_t  keep[] = {2, 3}; /* of 4 and 5 spans */
    const fixture       *f = *state;
    kvcsa_session_params p = session_defaults();
    kvcsa_setting        test = setting_of(f->model, f->other, NULL);
    kvcsa_compare       *c = NULL;
    kvcsa_compare_row   *rows;
    cold                 exact = cold_run_of(f->model, f->ids, N);
    host_rows            got = host_rows_make(N - HIT, T1_VOCAB);
    double               found[N / SPAN] = {0}, own[N / SPAN] = {0}, sum[N / SPAN];
    kvcsa_session       *s;
    kvcsa_error          err;

    test.append_tokens = APPEND;
    test.hit_tokens = HIT;
    test.keep_fraction = 0.45f;
    run_against_exact(f, &test, &c, 1);
    p.flags = KVCSA_SESSION_TRACK_MASS;
    s = make_session(f->pool, f->model, &p);
    host_run(f->pool, s, f->ids, HIT, NULL);
    get_mass(s, found, 0);
    host_run(f->pool, s, f->ids + HIT, N - HIT, NULL);
    rewind_session(s, HIT);
    get_mass(s, own, 1);
    for (uint64_t at = HIT; at < N; at += APPEND) {
        memset(own, 0, sizeof own);
        get_mass(s, own, 0);
        for (size_t i = 0; i < N / SPAN; i++)
            sum[i] = own[i] + found[i];
        keep_best(s, sum, (size_t)(at / SPAN), keep[(at - HIT) / APPEND]);
        host_run(f->pool, s, f->ids + at, APPEND, &got);
    }
    assert_true(sum[2] > sum[4] && own[2] < own[4]); /* what was found decides */
    assert_int_equal(got.n, N - HIT);
    rows = rows_of(c, N);
    for (size_t i = 0; i < got.n; i++) {
        kvcsa_compare    *one = NULL;
        kvcsa_compare_row want;
        size_t            n = 0;

        assert_ok(kvcsa_compare_create(NULL, &one, &err));
        assert_ok(kvcsa_compare_add(one, HIT + i, -1, exact.rows.data + (HIT + i) * T1_VOCAB,
                                    got.data + i * T1_VOCAB, T1_VOCAB, &err));
        assert_ok(kvcsa_compare_get_rows(one, 0, &want, 1, &n, &err));
        assert_true(want.kl > 0 && rows[HIT + i].kl == want.kl);
        kvcsa_compare_release(&one);
    }
    free(rows);
    free(got.data);
    cold_free(&exact);
    kvcsa_session_release(&s);
    kvcsa_compare_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_kept_equals_hiding_by_hand),
        cmocka_unit_test(test_keeping_all_prints_zero),
        cmocka_unit_test(test_hits_of_settings_that_hide),
        cmocka_unit_test(test_first_hits_rank_by_what_they_find),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
