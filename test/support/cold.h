/* One undisturbed run of a list of tokens, and what the tests of sessions ask of every other way to
 * the same place: the same bits. Public header only. */
#ifndef TEST_COLD_H
#define TEST_COLD_H

#include "support/host.h"

#define T1_WINDOW 16u
#define T1_LAYERS 10u
#define T1_BLOCK 128u
/* Rows of layer 0 that an exact replay of T1 runs, if there are so many. */
#define T1_REPLAY (T1_WINDOW + (T1_LAYERS - 1) * (T1_WINDOW - 1))

static inline uint64_t cold_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ------------------------------------------------------------------ figures, by value */

static inline kvcsa_pool_stats pool_figures(kvcsa_pool *pool)
{
    kvcsa_pool_stats st = {.struct_size = sizeof st};
    kvcsa_error      err;

    assert_ok(kvcsa_pool_get_stats(pool, &st, &err));
    return st;
}

static inline kvcsa_session_stats session_figures(kvcsa_session *s)
{
    kvcsa_session_stats st = {.struct_size = sizeof st};
    kvcsa_error         err;

    assert_ok(kvcsa_session_get_stats(s, &st, &err));
    return st;
}

static inline kvcsa_reuse session_reuse(kvcsa_session *s)
{
    kvcsa_reuse r = {.struct_size = sizeof r};
    kvcsa_error err;

    assert_ok(kvcsa_session_get_reuse(s, &r, &err));
    return r;
}

static inline void check_pool(kvcsa_pool *pool)
{
    kvcsa_error err;

    assert_ok(kvcsa_pool_check(pool, &err));
}

/* No session is left: without the prefixes nothing is. */
static inline void check_pool_empties(kvcsa_pool *pool)
{
    kvcsa_error err;

    check_pool(pool);
    assert_ok(kvcsa_prefix_forget(pool, NULL, 0, NULL, 0, NULL, &err));
    assert_int_equal(pool_figures(pool).n_published_blocks, 0);
    assert_int_equal(pool_figures(pool).window_bytes, 0);
    host_pool_is_idle(pool);
}

/* The same, and the end of the pool. */
static inline void close_pool(kvcsa_pool *pool)
{
    check_pool_empties(pool);
    kvcsa_pool_release(&pool);
}

/* ------------------------------------------------------------------ sessions */

static inline kvcsa_session_params session_defaults(void)
{
    kvcsa_session_params p;

    kvcsa_session_params_default(&p, sizeof p);
    return p;
}

static inline kvcsa_session *make_session(kvcsa_pool *pool, kvcsa_model *model,
                                          const kvcsa_session_params *p)
{
    kvcsa_session *s = NULL;
    kvcsa_error    err;

    assert_ok(kvcsa_session_create(pool, model, p, &s, &err));
    return s;
}

static inline kvcsa_session *fork_session(kvcsa_session *s, uint64_t position)
{
    kvcsa_session *f = NULL;
    kvcsa_error    err;

    assert_ok(kvcsa_session_fork(s, position, NULL, &f, &err));
    assert_int_equal(kvcsa_session_length(f), position);
    return f;
}

static inline void rewind_session(kvcsa_session *s, uint64_t position)
{
    kvcsa_error err;

    assert_ok(kvcsa_session_rewind(s, position, &err));
    assert_int_equal(kvcsa_session_length(s), position);
}

/* ------------------------------------------------------------------ the undisturbed run */

typedef struct cold {
    kvcsa_model *model; /* borrowed */
    int32_t     *ids;
    size_t       n;
    host_rows    rows; /* logits of every token */
} cold;

static inline cold cold_run_of(kvcsa_model *model, const int32_t *ids, size_t n)
{
    cold           c = {model, malloc(n * sizeof *ids), n, host_rows_make(n, T1_VOCAB)};
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = host_session(pool, model, 0);

    assert_non_null(c.ids);
    memcpy(c.ids, ids, n * sizeof *ids);
    host_run(pool, s, ids, n, &c.rows);
    assert_true(c.rows.in_order);
    assert_int_equal(c.rows.n, n);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    return c;
}

static inline cold cold_run(kvcsa_model *model, size_t n, uint64_t seed)
{
    int32_t *ids = malloc(n * sizeof *ids);
    cold     c;

    assert_non_null(ids);
    host_tokens(ids, n, seed);
    c = cold_run_of(model, ids, n);
    free(ids);
    return c;
}

/* The first `at` tokens of c, and `n` others behind them. */
static inline cold cold_branch(const cold *c, size_t at, size_t n, uint64_t seed)
{
    int32_t *ids = malloc((at + n) * sizeof *ids);
    cold     b;

    assert_non_null(ids);
    host_tokens(ids + at, n, seed);
    if (at < c->n && n > 0 && ids[at] == c->ids[at])
        ids[at] = ids[at] == 3 ? 4 : 3;
    memcpy(ids, c->ids, at * sizeof *ids);
    b = cold_run_of(c->model, ids, at + n);
    free(ids);
    return b;
}

static inline void cold_free(cold *c)
{
    free(c->ids);
    free(c->rows.data);
}

/* n rows from position pos on are those of the cold run. */
static inline void cold_check_rows(const cold *c, uint64_t pos, const float *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(rows + i * T1_VOCAB, c->rows.data + (pos + i) * T1_VOCAB,
                   T1_VOCAB * sizeof *rows) != 0)
            fail_msg("logits at position %llu are not those of a cold run",
                     (unsigned long long)(pos + i));
}

/* The session holds the first tokens of c and has their logits. */
static inline void cold_check(const cold *c, kvcsa_session *s)
{
    const uint64_t n = kvcsa_session_length(s);
    float          logits[T1_VOCAB];

    assert_in_range(n, 1, c->n);
    host_logits(s, logits, T1_VOCAB);
    cold_check_rows(c, n - 1, logits, 1);
}

/* The next tokens of c up to `to`, all of them computed, all rows compared. */
static inline void cold_extend(const cold *c, kvcsa_pool *pool, kvcsa_session *s, uint64_t to)
{
    const uint64_t from = kvcsa_session_length(s);
    host_rows      rows = host_rows_make(to - from, T1_VOCAB);

    rows.next = from;
    host_run(pool, s, c->ids + from, to - from, &rows);
    assert_true(rows.in_order);
    assert_int_equal(rows.n, to - from);
    assert_int_equal(kvcsa_session_length(s), to);
    cold_check_rows(c, from, rows.data, rows.n);
    free(rows.data);
}

/* The counters of a session move by what the report says. */
typedef struct counted {
    uint64_t computed, replayed, adopted;
} counted;

static inline counted count_work(kvcsa_session *s)
{
    const kvcsa_session_stats st = session_figures(s);

    return (counted){st.n_computed_rows, st.n_replayed_rows, st.n_adopted_tokens};
}

static inline void check_work(kvcsa_session *s, counted before, const kvcsa_reuse *r)
{
    const counted now = count_work(s);

    assert_int_equal(now.computed - before.computed, r->n_compute);
    assert_int_equal(now.replayed - before.replayed, r->n_replay);
    assert_int_equal(now.adopted - before.adopted, r->n_adopted);
    assert_int_equal(r->n_kept + r->n_adopted + r->n_compute, kvcsa_session_length(s));
}

/* The next tokens of c up to `to` with the use of known prefixes; the last logits are compared, and
 * the counters with the report, which is returned. */
static inline kvcsa_reuse cold_reuse(const cold *c, kvcsa_pool *pool, kvcsa_session *s, uint64_t to,
                                     uint32_t reuse)
{
    const uint64_t      from = kvcsa_session_length(s);
    const counted       before = count_work(s);
    kvcsa_append_params p;
    kvcsa_reuse         r;
    kvcsa_error         err;

    kvcsa_append_params_default(&p, sizeof p);
    p.reuse = reuse;
    assert_ok(kvcsa_session_append(s, c->ids + from, to - from, &p, NULL, &err));
    r = session_reuse(s);
    host_step(pool, s);
    check_work(s, before, &r);
    cold_check(c, s);
    return r;
}

/* The session is made to hold the first n tokens of c; checks as cold_reuse. */
static inline kvcsa_reuse cold_sync(const cold *c, kvcsa_pool *pool, kvcsa_session *s, uint64_t n)
{
    const counted before = count_work(s);
    kvcsa_reuse   r = {.struct_size = sizeof r};
    kvcsa_error   err;

    assert_ok(kvcsa_session_sync(s, c->ids, n, NULL, &r, &err));
    host_step(pool, s);
    assert_int_equal(kvcsa_session_length(s), n);
    check_work(s, before, &r);
    if (n)
        cold_check(c, s);
    return r;
}

#endif
