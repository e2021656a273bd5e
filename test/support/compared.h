/* What the tests of compared texts share: T1, two pools, a text, and an exact run to compare with.
 * Public header only. */
#ifndef TEST_COMPARED_H
#define TEST_COMPARED_H

#include "support/cold.h"

#define N 96u    /* tokens of the text */
#define SPAN 16u /* tokens of T1 that are hidden together */

typedef struct fixture {
    kvcsa_model *model;
    kvcsa_pool  *pool;  /* of the reference */
    kvcsa_pool  *other; /* of the tests; its replays are counted */
    uint64_t     n_replays;
    uint64_t     n_replayed_rows;
    int32_t      ids[N];
} fixture;

static inline void count_replays(void *user, const kvcsa_trace_event *event)
{
    fixture *f = user;

    if (event->kind != KVCSA_TRACE_REPLAY)
        return;
    f->n_replays++;
    f->n_replayed_rows += event->n_tokens;
}

static inline int set_up(void **state)
{
    fixture          *f = calloc(1, sizeof *f);
    kvcsa_trace       trace;
    kvcsa_pool_params p;
    kvcsa_error       err;

    assert_non_null(f);
    f->model = host_model(T1_DIR);
    f->pool = host_pool(1, 0);
    trace = (kvcsa_trace){count_replays, f};
    kvcsa_pool_params_default(&p, sizeof p);
    p.n_threads = 2;
    p.trace = &trace;
    p.flags = KVCSA_POOL_FILL_FREED;
    assert_ok(kvcsa_pool_create(&p, &f->other, &err));
    host_tokens(f->ids, N, 4);
    *state = f;
    return 0;
}

static inline int tear_down(void **state)
{
    fixture *f = *state;

    host_pool_is_idle(f->pool); /* nothing is left behind, and nothing was published */
    host_pool_is_idle(f->other);
    kvcsa_pool_release(&f->pool);
    kvcsa_pool_release(&f->other);
    kvcsa_model_release(&f->model);
    free(f);
    return 0;
}

static inline kvcsa_setting setting_of(kvcsa_model *model, kvcsa_pool *pool,
                                       const kvcsa_session_params *session)
{
    kvcsa_setting s;

    kvcsa_setting_default(&s, sizeof s);
    s.model = model;
    s.pool = pool;
    s.session = session;
    return s;
}

static inline kvcsa_compare_result result_of(const kvcsa_compare *c)
{
    kvcsa_compare_result r = {.struct_size = sizeof r};
    kvcsa_error          err;

    assert_ok(kvcsa_compare_get_result(c, &r, &err));
    return r;
}

/* All rows; there are n. */
static inline kvcsa_compare_row *rows_of(const kvcsa_compare *c, size_t n)
{
    kvcsa_compare_row *rows = malloc((n + 1) * sizeof *rows);
    size_t             got = 0;
    kvcsa_error        err;

    assert_non_null(rows);
    assert_ok(kvcsa_compare_get_rows(c, 0, rows, n + 1, &got, &err));
    assert_int_equal(got, n);
    return rows;
}

/* The text of the fixture under each test against an exact run in appends as long as theirs. */
static inline void run_against_exact(const fixture *f, const kvcsa_setting *tests,
                                     kvcsa_compare **out, size_t n)
{
    kvcsa_setting ref = setting_of(f->model, f->pool, NULL);
    kvcsa_error   err;

    ref.append_tokens = tests->append_tokens;
    for (size_t i = 0; i < n; i++)
        assert_ok(kvcsa_compare_create(NULL, &out[i], &err));
    assert_ok(kvcsa_compare_text(&ref, tests, out, n, f->ids, N, 0, NULL, &err));
}

static inline void check_all_zero(const kvcsa_compare *c, uint64_t n)
{
    const kvcsa_compare_result r = result_of(c);

    assert_int_equal(r.n_rows, n);
    assert_int_equal(r.n_equal_rows, n);
    assert_true(r.kl_mean == 0 && r.kl_median == 0 && r.kl_p99 == 0 && r.kl_p999 == 0);
    assert_true(r.kl_max == 0 && r.max_difference == 0);
    assert_int_equal(r.n_flips, 0);
    assert_true(r.ref_nll == r.test_nll);
}

/* Every row in front of `from` is the same, and what follows is not, on the whole. */
static inline void check_differs_from(const kvcsa_compare *c, uint64_t from)
{
    kvcsa_compare_row *rows = rows_of(c, N);
    uint64_t           n_equal = 0;
    double             sum = 0;

    for (uint64_t i = 0; i < N; i++) {
        assert_int_equal(rows[i].position, i);
        if (i < from && !rows[i].equal)
            fail_msg("row %llu differs, the first may be %llu", (unsigned long long)i,
                     (unsigned long long)from);
        n_equal += i >= from ? rows[i].equal : 0;
        sum += rows[i].kl;
    }
    assert_true(sum / (double)N > 1e-3); /* the random weights of T1 forgive nothing */
    assert_true(n_equal * 5 < N - from);
    free(rows);
}

#endif
