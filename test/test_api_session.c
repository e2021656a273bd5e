/* Sessions through the public header and the shared library, on the random checkpoint T1. */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "support/host.h"

#define N 150 /* crosses windows, ratio-2 pairs, top-k, candidates and a block boundary */

/* The thread sanitizer is some 40 times slower, and looks for races, not for bits: fewer
 * repetitions under it. */
#ifdef __SANITIZE_THREAD__
#define REPEAT(n) (1 + (n) / 20)
#else
#define REPEAT(n) (n)
#endif

/* ------------------------------------------------------------------ batch invariance */

static void run_alone(uint32_t threads, uint32_t chunk, const int32_t *ids, size_t n,
                      host_rows *rows)
{
    kvcsa_model   *m = host_model(T1_DIR);
    kvcsa_pool    *pool = host_pool(threads, 0);
    kvcsa_session *s = host_session(pool, m, chunk);

    host_run(pool, s, ids, n, rows);
    assert_true(rows->in_order);
    assert_int_equal(rows->n, n);
    kvcsa_session_release(&s);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

static void test_session_bits_do_not_depend_on_threads_or_chunks(void **state)
{
    static const uint32_t chunks[] = {1, 7, 16, 1000};
    int32_t               ids[N];
    host_rows             want = host_rows_make(N, T1_VOCAB);

    (void)state;
    host_tokens(ids, N, 1);
    run_alone(1, 1000, ids, N, &want);
    for (uint32_t threads = 1; threads <= 3; threads++)
        for (size_t c = 0; c < REPEAT(4); c++) {
            host_rows got = host_rows_make(N, T1_VOCAB);

            run_alone(threads, chunks[c], ids, N, &got);
            if (memcmp(got.data, want.data, N * T1_VOCAB * sizeof(float)) != 0)
                fail_msg("threads %u, chunk %u: other bits", threads, chunks[c]);
            free(got.data);
        }
    free(want.data);
}

/* Random appends and random row limits instead of chunk sizes. */
static void test_session_bits_do_not_depend_on_appends_or_limits(void **state)
{
    int32_t      ids[N];
    host_rows    want = host_rows_make(N, T1_VOCAB);
    kvcsa_model *m = host_model(T1_DIR);
    kvcsa_pool  *pool = host_pool(2, 0);
    kvcsa_error  err;

    (void)state;
    host_tokens(ids, N, 2);
    run_alone(1, 1000, ids, N, &want);
    for (uint32_t seed = 1; seed <= REPEAT(20); seed++) {
        host_rows           got = host_rows_make(N, T1_VOCAB);
        kvcsa_session      *s = host_session(pool, m, 16);
        kvcsa_append_params ap;
        kvcsa_step_params   sp;
        uint32_t            x = seed * 2654435761u;
        size_t              at = 0;

        kvcsa_append_params_default(&ap, sizeof ap);
        kvcsa_step_params_default(&sp, sizeof sp);
        ap.logits = KVCSA_LOGITS_ALL;
        ap.on_logits = host_rows_take;
        ap.user = &got;
        while (kvcsa_session_length(s) < N) {
            size_t n = 1 + (x = x * 1664525u + 1013904223u, x >> 8) % 40;

            n = n < N - at ? n : N - at;
            if (n)
                assert_ok(kvcsa_session_append(s, ids + at, n, &ap, NULL, &err));
            at += n;
            sp.max_rows = 1 + (x >> 16) % 25;
            assert_ok(kvcsa_pool_step(pool, &s, 1, &sp, NULL, &err));
        }
        assert_true(got.in_order);
        assert_memory_equal(got.data, want.data, N * T1_VOCAB * sizeof(float));
        free(got.data);
        kvcsa_session_release(&s);
    }
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
    free(want.data);
}

typedef struct reverse { /* a host executor that runs tasks backwards, in the calling thread */
    uint32_t calls;
} reverse;

static void run_reverse(void *user, void (*task)(void *arg, uint32_t i), void *arg, uint32_t n)
{
    ((reverse *)user)->calls++;
    while (n-- > 0)
        task(arg, n);
}

static void test_session_bits_do_not_depend_on_the_executor(void **state)
{
    reverse              rev = {0};
    const kvcsa_executor ex = {.run = run_reverse, .user = &rev, .width = 5};
    int32_t              ids[N];
    host_rows            want = host_rows_make(N, T1_VOCAB);
    host_rows            got = host_rows_make(N, T1_VOCAB);
    kvcsa_model         *m = host_model(T1_DIR);
    kvcsa_pool_params    pp;
    kvcsa_pool          *pool = NULL;
    kvcsa_session       *s;
    kvcsa_error          err;

    (void)state;
    host_tokens(ids, N, 3);
    run_alone(1, 0, ids, N, &want);
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.executor = &ex;
    assert_ok(kvcsa_pool_create(&pp, &pool, &err));
    s = host_session(pool, m, 0);
    host_run(pool, s, ids, N, &got);
    assert_true(rev.calls > 0);
    assert_memory_equal(got.data, want.data, N * T1_VOCAB * sizeof(float));
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
    free(want.data);
    free(got.data);
}

static void test_session_several_in_one_step_equal_their_solo_runs(void **state)
{
    enum { K = 4 };
    int32_t             ids[K][N];
    host_rows           want[K], got[K];
    kvcsa_model        *m = host_model(T1_DIR);
    kvcsa_pool         *pool = host_pool(2, 0);
    kvcsa_session      *s[K];
    kvcsa_step_result   res[K];
    kvcsa_append_params ap;
    kvcsa_error         err;

    (void)state;
    kvcsa_append_params_default(&ap, sizeof ap);
    ap.logits = KVCSA_LOGITS_ALL;
    ap.on_logits = host_rows_take;
    for (int k = 0; k < K; k++) {
        host_tokens(ids[k], N, 40 + (uint64_t)k);
        want[k] = host_rows_make(N, T1_VOCAB);
        got[k] = host_rows_make(N, T1_VOCAB);
        run_alone(1, 0, ids[k], N, &want[k]);
        s[k] = host_session(pool, m, 10 + (uint32_t)k);
        ap.user = &got[k];
        assert_ok(kvcsa_session_append(s[k], ids[k], (size_t)(N - 7 * k), &ap, NULL, &err));
    }
    assert_ok(kvcsa_pool_step(pool, s, K, NULL, res, &err));
    for (int k = 0; k < K; k++) {
        assert_int_equal(res[k].n_computed, N - 7 * k);
        assert_int_equal(res[k].n_queued, 0);
        assert_int_equal(res[k].error.status, KVCSA_OK);
        assert_memory_equal(got[k].data, want[k].data,
                            (size_t)(N - 7 * k) * T1_VOCAB * sizeof(float));
        kvcsa_session_release(&s[k]);
        free(want[k].data);
        free(got[k].data);
    }
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

typedef struct worker {
    kvcsa_pool  *pool;
    kvcsa_model *model;
    int32_t      ids[N];
    host_rows    rows;
    pthread_t    thread;
} worker;

static void *work(void *arg)
{
    worker        *w = arg;
    kvcsa_session *s = host_session(w->pool, w->model, 16);

    host_run(w->pool, s, w->ids, N, &w->rows);
    kvcsa_session_release(&s);
    return NULL;
}

static void test_session_threads_of_one_pool_equal_solo_runs(void **state)
{
    enum { K = 4 };
    worker       w[K];
    kvcsa_model *m = host_model(T1_DIR);
    kvcsa_pool  *pool = host_pool(2, 0);

    (void)state;
    for (int k = 0; k < K; k++) {
        w[k] = (worker){.pool = pool, .model = m, .rows = host_rows_make(N, T1_VOCAB)};
        host_tokens(w[k].ids, N, 50 + (uint64_t)k);
        assert_int_equal(pthread_create(&w[k].thread, NULL, work, &w[k]), 0);
    }
    for (int k = 0; k < K; k++) {
        host_rows want = host_rows_make(N, T1_VOCAB);

        pthread_join(w[k].thread, NULL);
        run_alone(1, 0, w[k].ids, N, &want);
        assert_memory_equal(w[k].rows.data, want.data, N * T1_VOCAB * sizeof(float));
        free(want.data);
        free(w[k].rows.data);
    }
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

/* ------------------------------------------------------------------ appends */

static void test_append_refuses_bad_calls_and_changes_nothing(void **state)
{
    kvcsa_model        *m = host_model(T1_DIR);
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *s = host_session(pool, m, 0);
    kvcsa_append_params p;
    kvcsa_session_stats st = {.struct_size = sizeof st};
    const int32_t       low[] = {5, -1}, high[] = {5, 512}, image[] = {511}, good[] = {0, 17, 200};
    const uint32_t      rows[] = {1, 1}, far[] = {3};
    uint64_t            pos = 99;
    kvcsa_error         err;

    (void)state;
    assert_fails(kvcsa_session_append(NULL, good, 3, NULL, NULL, &err), KVCSA_ERR_ARG,
                 "session is NULL");
    assert_fails(kvcsa_session_append(s, NULL, 3, NULL, &pos, &err), KVCSA_ERR_ARG,
                 "tokens is NULL");
    assert_int_equal(pos, 0);
    assert_fails(kvcsa_session_append(s, good, 0, NULL, NULL, &err), KVCSA_ERR_ARG,
                 "n_tokens is 0");
    assert_fails(kvcsa_session_append(s, low, 2, NULL, NULL, &err), KVCSA_ERR_ARG,
                 "tokens[1] is -1, must be in 0..511");
    assert_fails(kvcsa_session_append(s, high, 2, NULL, NULL, &err), KVCSA_ERR_ARG,
                 "tokens[1] is 512");
    assert_fails(kvcsa_session_append(s, image, 1, NULL, NULL, &err), KVCSA_ERR_ARG, "image token");
    assert_fails(kvcsa_session_append(s, good, 16385, NULL, NULL, &err), KVCSA_ERR_LIMIT,
                 "context limit is 16384");
    assert_fails(kvcsa_session_append(s, good, SIZE_MAX, NULL, NULL, &err), KVCSA_ERR_LIMIT,
                 "16384");
    kvcsa_append_params_default(&p, sizeof p);
    p.logits = 9;
    assert_fails(kvcsa_session_append(s, good, 3, &p, NULL, &err), KVCSA_ERR_ARG, "logits is 9");
    p.logits = KVCSA_LOGITS_ALL;
    assert_fails(kvcsa_session_append(s, good, 3, &p, NULL, &err), KVCSA_ERR_ARG,
                 "on_logits is NULL");
    p.on_logits = host_rows_take;
    p.logits = KVCSA_LOGITS_ROWS;
    p.n_rows = 2;
    assert_fails(kvcsa_session_append(s, good, 3, &p, NULL, &err), KVCSA_ERR_ARG, "rows is NULL");
    p.rows = rows;
    assert_fails(kvcsa_session_append(s, good, 3, &p, NULL, &err), KVCSA_ERR_ARG, "rows[1] is 1");
    p.rows = far;
    p.n_rows = 1;
    assert_fails(kvcsa_session_append(s, good, 3, &p, NULL, &err), KVCSA_ERR_ARG, "rows[0] is 3");
    p.struct_size = 4;
    assert_fails(kvcsa_session_append(s, good, 3, &p, NULL, &err), KVCSA_ERR_ARG, "struct_size");
    assert_ok(kvcsa_session_get_stats(s, &st, &err));
    assert_int_equal(st.n_tokens, 0);
    assert_int_equal(st.n_queued, 0);
    assert_ok(kvcsa_session_append(s, good, 3, NULL, &pos, NULL));
    assert_int_equal(pos, 3);
    kvcsa_session_release(&s); /* with a queue */
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

static void test_append_limit_is_exact(void **state)
{
    kvcsa_model   *m = host_model(T1_DIR);
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = host_session(pool, m, 0);
    int32_t       *ids = malloc(16384 * sizeof *ids);
    uint64_t       pos = 0;
    kvcsa_error    err;

    (void)state;
    assert_non_null(ids);
    host_tokens(ids, 16384, 9);
    assert_ok(kvcsa_session_append(s, ids, 16384, NULL, &pos, &err));
    assert_int_equal(pos, 16384);
    assert_fails(kvcsa_session_append(s, ids, 1, NULL, NULL, &err), KVCSA_ERR_LIMIT, "after 16384");
    free(ids);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

static void test_logits_of_chosen_rows(void **state)
{
    const uint32_t      rows[] = {0, 17, 63};
    int32_t             ids[N];
    host_rows           all = host_rows_make(N, T1_VOCAB);
    host_rows           some = host_rows_make(8, T1_VOCAB);
    float               last[T1_VOCAB];
    kvcsa_model        *m = host_model(T1_DIR);
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *s = host_session(pool, m, 20);
    kvcsa_append_params p;
    kvcsa_error         err;

    (void)state;
    host_tokens(ids, N, 5);
    run_alone(1, 0, ids, N, &all);
    kvcsa_append_params_default(&p, sizeof p);
    p.logits = KVCSA_LOGITS_ROWS;
    p.on_logits = host_rows_take;
    p.user = &some;
    p.rows = rows;
    p.n_rows = 3;
    assert_ok(kvcsa_session_append(s, ids, 100, &p, NULL, &err));
    host_step(pool, s);
    assert_int_equal(some.n, 3);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(some.data + (size_t)i * T1_VOCAB, all.data + rows[i] * T1_VOCAB,
                            sizeof last);
    host_logits(s, last, T1_VOCAB); /* the last row is there although it was not asked for */
    assert_memory_equal(last, all.data + 99 * T1_VOCAB, sizeof last);
    kvcsa_append_params_default(&p, sizeof p);
    p.logits = KVCSA_LOGITS_NONE;
    assert_ok(kvcsa_session_append(s, ids + 100, 10, &p, NULL, &err));
    host_step(pool, s);
    assert_fails(kvcsa_session_get_logits(s, last, T1_VOCAB, &err), KVCSA_ERR_ARG, "no logits");
    host_run(pool, s, ids + 110, 1, NULL);
    host_logits(s, last, T1_VOCAB);
    assert_memory_equal(last, all.data + 110 * T1_VOCAB, sizeof last);
    assert_fails(kvcsa_session_get_logits(s, last, 7, &err), KVCSA_ERR_ARG, "n_vocab is 7");
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
    free(all.data);
    free(some.data);
}

static void test_tokens_and_length(void **state)
{
    int32_t        ids[40], got[40];
    size_t         n = 0;
    kvcsa_model   *m = host_model(T1_DIR);
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = host_session(pool, m, 0);
    float          logits[T1_VOCAB];
    kvcsa_error    err;

    (void)state;
    host_tokens(ids, 40, 6);
    assert_fails(kvcsa_session_get_logits(s, logits, T1_VOCAB, &err), KVCSA_ERR_ARG,
                 "the session is empty");
    assert_int_equal(kvcsa_session_length(NULL), 0);
    assert_ok(kvcsa_session_append(s, ids, 40, NULL, NULL, &err));
    assert_int_equal(kvcsa_session_length(s), 0); /* queued is not committed */
    host_step(pool, s);
    assert_int_equal(kvcsa_session_length(s), 40);
    assert_ok(kvcsa_session_get_tokens(s, 0, got, 40, &n, &err));
    assert_int_equal(n, 40);
    assert_memory_equal(got, ids, sizeof ids);
    assert_ok(kvcsa_session_get_tokens(s, 35, got, 2, &n, &err));
    assert_int_equal(n, 5);
    assert_memory_equal(got, ids + 35, 2 * sizeof *ids);
    assert_ok(kvcsa_session_get_tokens(s, 40, NULL, 0, &n, &err));
    assert_int_equal(n, 0);
    assert_fails(kvcsa_session_get_tokens(s, 41, NULL, 0, &n, &err), KVCSA_ERR_ARG, "from is 41");
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

/* ------------------------------------------------------------------ budget */

static void test_budget_exhausted_leaves_the_session_unchanged(void **state)
{
    kvcsa_model        *m = host_model(T1_DIR);
    kvcsa_cost          cost = {.struct_size = sizeof cost};
    kvcsa_pool_stats    ps = {.struct_size = sizeof ps};
    kvcsa_session_stats ss = {.struct_size = sizeof ss};
    int32_t             ids[400];
    host_rows           want = host_rows_make(N, T1_VOCAB);
    float               before[T1_VOCAB], after[T1_VOCAB];
    kvcsa_pool         *pool;
    kvcsa_session      *s, *t = NULL;
    kvcsa_error         err;

    (void)state;
    host_tokens(ids, 400, 7);
    run_alone(1, 0, ids, N, &want);
    assert_ok(kvcsa_model_cost(m, 0, &cost, &err));
    pool = host_pool(1, cost.const_bytes + cost.pending_bytes +
                            2 * cost.block_bytes); /* room for 256 tokens */
    s = host_session(pool, m, 0);
    host_run(pool, s, ids, 140, NULL);
    host_logits(s, before, T1_VOCAB);
    assert_fails(kvcsa_session_append(s, ids, 200, NULL, NULL, &err), KVCSA_ERR_FULL, "budget");
    assert_ok(kvcsa_session_get_stats(s, &ss, &err));
    assert_int_equal(ss.n_tokens, 140);
    assert_int_equal(ss.n_queued, 0);
    assert_int_equal(ss.n_blocks, 2);
    host_logits(s, after, T1_VOCAB);
    assert_memory_equal(before, after, sizeof before);
    /* no room for a second session's window either */
    assert_ok(kvcsa_session_create(pool, m, NULL, &t, &err));
    assert_int_equal(kvcsa_session_append(t, ids + 200, 1, NULL, NULL, &err), KVCSA_ERR_FULL);
    kvcsa_session_release(&t);
    /* what fits goes on as if nothing had been tried */
    host_run(pool, s, ids + 140, 10, NULL);
    host_logits(s, after, T1_VOCAB);
    assert_memory_equal(after, want.data + 149 * T1_VOCAB, sizeof after);
    assert_ok(kvcsa_session_append(s, ids, 106, NULL, NULL, &err)); /* 256 in all: exactly full */
    assert_ok(kvcsa_pool_get_stats(pool, &ps, &err));
    assert_int_equal(ps.used_bytes + ps.reserved_bytes, ps.budget_bytes);
    assert_int_equal(kvcsa_session_append(s, ids, 1, NULL, NULL, &err), KVCSA_ERR_FULL);
    kvcsa_session_release(&s);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
    free(want.data);
}

static void test_budget_counts_bytes_exactly(void **state)
{
    kvcsa_model        *m = host_model(T1_DIR);
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *s = host_session(pool, m, 0);
    kvcsa_pool_stats    ps = {.struct_size = sizeof ps};
    kvcsa_session_stats ss = {.struct_size = sizeof ss};
    kvcsa_cost          cost = {.struct_size = sizeof cost};
    int32_t             ids[300];
    kvcsa_error         err;

    (void)state;
    host_tokens(ids, 300, 8);
    host_run(pool, s, ids, 300, NULL);
    assert_ok(kvcsa_pool_get_stats(pool, &ps, &err));
    assert_ok(kvcsa_session_get_stats(s, &ss, &err));
    assert_ok(kvcsa_model_cost(m, 300, &cost, &err));
    assert_int_equal(cost.block_bytes, 22528);        /* oracle/README: 176 B per token */
    assert_int_equal(cost.const_bytes, 10 * 16 * 99); /* 10 layers, window 16, 96 + 3 bytes */
    assert_int_equal(ss.n_blocks, 3);
    assert_int_equal(ss.n_entries, 150 + 150 + 300);
    assert_int_equal(ss.entry_bytes, 300 * 176);
    assert_int_equal(cost.persist_bytes, 300 * 176);
    assert_int_equal(ss.window_bytes, cost.const_bytes);
    assert_int_equal(cost.resident_bytes, cost.const_bytes + 3 * 22528);
    assert_int_equal(ps.used_bytes, cost.resident_bytes + ps.window_bytes - cost.const_bytes);
    assert_int_equal(ps.n_sealed_blocks, 2);
    assert_int_equal(ps.n_open_blocks, 1);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

static void test_pool_serves_two_models(void **state)
{
    kvcsa_model      *t1 = host_model(T1_DIR), *tiny = host_model(TINY_DIR);
    kvcsa_pool       *pool = host_pool(2, 0), *other = host_pool(1, 0);
    kvcsa_session    *s[2] = {host_session(pool, t1, 16), host_session(pool, tiny, 16)};
    kvcsa_session    *alone = host_session(other, tiny, 0);
    kvcsa_step_result res[2];
    int32_t           ids[N];
    float             a[1536], b[1536];
    kvcsa_error       err;

    (void)state;
    host_tokens(ids, N, 11);
    assert_ok(kvcsa_session_append(s[0], ids, N, NULL, NULL, &err));
    assert_ok(kvcsa_session_append(s[1], ids, N, NULL, NULL, &err));
    assert_ok(kvcsa_pool_step(pool, s, 2, NULL, res, &err));
    host_run(other, alone, ids, N, NULL);
    host_logits(s[1], a, 1536);
    host_logits(alone, b, 1536);
    assert_memory_equal(a, b, sizeof a);
    assert_ok(kvcsa_pool_check(pool, &err));
    assert_fails(kvcsa_pool_step(other, s, 2, NULL, NULL, &err), KVCSA_ERR_ARG, "another pool");
    for (int i = 0; i < 2; i++)
        kvcsa_session_release(&s[i]);
    kvcsa_session_release(&alone);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_pool_release(&other);
    kvcsa_model_release(&t1);
    kvcsa_model_release(&tiny);
}

/* ------------------------------------------------------------------ cancel, limits, busy */

typedef struct stopper {
    uint32_t left; /* calls until it says stop */
    uint32_t calls;
    uint64_t max_done;
} stopper;

static int32_t stop_after(void *user, kvcsa_session *session, uint64_t n_done, uint64_t n_queued)
{
    stopper *st = user;

    assert_non_null(session);
    assert_true(n_queued > 0);
    st->calls++;
    st->max_done = n_done > st->max_done ? n_done : st->max_done;
    return st->left-- == 0;
}

static void test_cancel_anywhere_restores_the_session(void **state)
{
    int32_t      ids[N];
    host_rows    want = host_rows_make(N, T1_VOCAB);
    kvcsa_model *m = host_model(T1_DIR);
    kvcsa_pool  *pool = host_pool(2, 0);
    float        before[T1_VOCAB], after[T1_VOCAB];
    uint32_t     cancelled = 0;
    kvcsa_error  err;

    (void)state;
    host_tokens(ids, N, 12);
    run_alone(1, 0, ids, N, &want);
    for (uint32_t at = 0; at < 100; at += 102 / REPEAT(34)) {
        kvcsa_session      *s = host_session(pool, m, 13);
        stopper             st = {.left = at};
        kvcsa_step_params   sp;
        kvcsa_step_result   res;
        kvcsa_session_stats ss = {.struct_size = sizeof ss};
        kvcsa_status        status;

        host_run(pool, s, ids, 51, NULL); /* odd: a half entry is pending */
        host_logits(s, before, T1_VOCAB);
        kvcsa_step_params_default(&sp, sizeof sp);
        sp.progress = stop_after;
        sp.user = &st;
        assert_ok(kvcsa_session_append(s, ids + 51, N - 51, NULL, NULL, &err));
        status = kvcsa_pool_step(pool, &s, 1, &sp, &res, &err);
        if (status == KVCSA_OK) { /* more calls allowed than there are */
            assert_int_equal(res.n_computed, N - 51);
        } else {
            cancelled++;
            assert_int_equal(status, KVCSA_ERR_CANCELLED);
            assert_int_equal(res.error.status, KVCSA_ERR_CANCELLED);
            assert_int_equal(res.n_queued, 0);
            assert_int_equal(res.n_computed, 0);
            assert_int_equal(kvcsa_session_length(s), 51);
            host_logits(s, after, T1_VOCAB);
            assert_memory_equal(before, after, sizeof before);
            assert_ok(kvcsa_session_get_stats(s, &ss, &err));
            assert_int_equal(ss.n_blocks, 1);
            assert_ok(kvcsa_pool_check(pool, &err));
            host_run(pool, s, ids + 51, N - 51, NULL);
        }
        host_logits(s, after, T1_VOCAB);
        assert_memory_equal(after, want.data + (N - 1) * T1_VOCAB, sizeof after);
        kvcsa_session_release(&s);
    }
    assert_true(cancelled >=
                REPEAT(20)); /* 8 chunks of 10 layers: most of these points are inside */
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
    free(want.data);
}

static void test_cancel_without_a_step_drops_the_queue(void **state)
{
    int32_t           ids[30];
    kvcsa_model      *m = host_model(T1_DIR);
    kvcsa_pool       *pool = host_pool(1, 0);
    kvcsa_session    *s = host_session(pool, m, 0);
    kvcsa_step_result res;
    kvcsa_error       err;

    (void)state;
    kvcsa_session_cancel(NULL);
    host_tokens(ids, 30, 13);
    assert_ok(kvcsa_session_append(s, ids, 30, NULL, NULL, &err));
    kvcsa_session_cancel(s);
    assert_fails(kvcsa_pool_step(pool, &s, 1, NULL, &res, &err), KVCSA_ERR_CANCELLED, "cancelled");
    assert_int_equal(res.n_queued, 0);
    host_run(pool, s, ids, 30, NULL); /* the request is used up */
    assert_int_equal(kvcsa_session_length(s), 30);
    kvcsa_session_cancel(s); /* too late: what follows is not meant */
    host_run(pool, s, ids, 5, NULL);
    assert_int_equal(kvcsa_session_length(s), 35);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

typedef struct stepper {
    kvcsa_pool    *pool;
    kvcsa_session *session;
    kvcsa_status   status;
} stepper;

static void *step_in_a_thread(void *arg)
{
    stepper *st = arg;

    st->status = kvcsa_pool_step(st->pool, &st->session, 1, NULL, NULL, NULL);
    return NULL;
}

static void test_cancel_from_another_thread(void **state)
{
    enum { LONG = 5000 };
    const struct timespec ten_ms = {.tv_nsec = 10000000};
    kvcsa_model          *m = host_model(T1_DIR);
    kvcsa_pool           *pool = host_pool(2, 0);
    stepper               st = {.pool = pool, .session = host_session(pool, m, 0)};
    int32_t              *ids = malloc(LONG * sizeof *ids);
    pthread_t             thread;
    kvcsa_error           err;

    (void)state;
    assert_non_null(ids);
    host_tokens(ids, LONG, 18);
    assert_ok(kvcsa_session_append(st.session, ids, LONG, NULL, NULL, &err));
    assert_int_equal(pthread_create(&thread, NULL, step_in_a_thread, &st), 0);
    nanosleep(&ten_ms, NULL);
    kvcsa_session_cancel(st.session);
    pthread_join(thread, NULL);
    assert_int_equal(st.status, KVCSA_ERR_CANCELLED); /* 5000 tokens take seconds */
    assert_int_equal(kvcsa_session_length(st.session), 0);
    host_run(pool, st.session, ids, 10, NULL);
    assert_int_equal(kvcsa_session_length(st.session), 10);
    kvcsa_session_release(&st.session);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
    free(ids);
}

static void test_step_limits(void **state)
{
    int32_t           ids[N];
    kvcsa_model      *m = host_model(T1_DIR);
    kvcsa_pool       *pool = host_pool(1, 0);
    kvcsa_session    *s = host_session(pool, m, 16);
    kvcsa_step_params sp;
    kvcsa_step_result res;
    kvcsa_error       err;

    (void)state;
    host_tokens(ids, N, 14);
    kvcsa_step_params_default(&sp, sizeof sp);
    assert_ok(kvcsa_session_append(s, ids, N, NULL, NULL, &err));
    sp.max_rows = 21;
    assert_ok(kvcsa_pool_step(pool, &s, 1, &sp, &res, &err));
    assert_int_equal(res.n_computed, 21);
    assert_int_equal(res.n_queued, N - 21);
    sp.max_rows = 0;
    sp.deadline_ns = 1; /* over before it began: no chunk is started */
    assert_ok(kvcsa_pool_step(pool, &s, 1, &sp, &res, &err));
    assert_int_equal(res.n_computed, 0);
    assert_int_equal(kvcsa_session_length(s), 21);
    assert_ok(kvcsa_pool_step(pool, &s, 1, NULL, &res, &err));
    assert_int_equal(res.n_computed, N - 21);
    assert_ok(kvcsa_pool_step(pool, NULL, 0, NULL, NULL, &err));
    assert_fails(kvcsa_pool_step(pool, NULL, 1, NULL, NULL, &err), KVCSA_ERR_ARG,
                 "sessions is NULL");
    assert_fails(kvcsa_pool_step(pool, &(kvcsa_session *){NULL}, 1, NULL, NULL, &err),
                 KVCSA_ERR_ARG, "sessions[0] is NULL");
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

/* A second caller while a step is inside. */
static int32_t poke(void *user, kvcsa_session *session, uint64_t n_done, uint64_t n_queued)
{
    const int32_t       id = 5;
    float               logits[T1_VOCAB];
    size_t              n;
    kvcsa_error         err;
    kvcsa_session_stats st = {.struct_size = sizeof st};

    (void)n_done;
    (void)n_queued;
    if (*(int *)user)
        return 0;
    *(int *)user = 1;
    assert_fails(kvcsa_session_append(session, &id, 1, NULL, NULL, &err), KVCSA_ERR_BUSY, "inside");
    assert_fails(kvcsa_session_get_logits(session, logits, T1_VOCAB, &err), KVCSA_ERR_BUSY,
                 "inside");
    assert_fails(kvcsa_session_get_tokens(session, 0, NULL, 0, &n, &err), KVCSA_ERR_BUSY, "inside");
    assert_fails(kvcsa_session_get_stats(session, &st, &err), KVCSA_ERR_BUSY, "inside");
    return 0;
}

static void test_second_caller_gets_busy(void **state)
{
    int32_t           ids[30];
    kvcsa_model      *m = host_model(T1_DIR);
    kvcsa_pool       *pool = host_pool(1, 0);
    kvcsa_session    *s = host_session(pool, m, 0);
    kvcsa_session    *twice[2] = {s, s};
    kvcsa_step_params sp;
    kvcsa_step_result res[2];
    int               poked = 0;
    kvcsa_error       err;

    (void)state;
    host_tokens(ids, 30, 15);
    kvcsa_step_params_default(&sp, sizeof sp);
    sp.progress = poke;
    sp.user = &poked;
    assert_ok(kvcsa_session_append(s, ids, 30, NULL, NULL, &err));
    assert_ok(kvcsa_pool_step(pool, &s, 1, &sp, NULL, &err));
    assert_int_equal(poked, 1);
    assert_ok(kvcsa_session_append(s, ids, 30, NULL, NULL, &err));
    assert_int_equal(kvcsa_pool_step(pool, twice, 2, NULL, res, &err), KVCSA_ERR_BUSY);
    assert_int_equal(res[0].n_computed, 30); /* the first went on */
    assert_int_equal(res[1].error.status, KVCSA_ERR_BUSY);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

/* ------------------------------------------------------------------ lifetimes */

static void test_children_keep_their_parents(void **state)
{
    kvcsa_model   *m = host_model(T1_DIR);
    kvcsa_pool    *pool = host_pool(2, 0), *same = pool;
    kvcsa_session *s = host_session(pool, m, 0);
    int32_t        ids[20];
    kvcsa_error    err;

    (void)state;
    host_tokens(ids, 20, 16);
    kvcsa_model_release(&m);
    kvcsa_model_release(&m);
    kvcsa_model_release(NULL);
    kvcsa_pool_release(&pool);
    kvcsa_pool_release(&pool);
    kvcsa_pool_release(NULL);
    assert_null(m);
    assert_null(pool);
    assert_ok(kvcsa_session_append(s, ids, 20, NULL, NULL, &err));
    assert_ok(kvcsa_pool_step(same, &s, 1, NULL, NULL, &err));
    assert_int_equal(kvcsa_session_length(s), 20);
    kvcsa_session_release(&s);
    kvcsa_session_release(&s);
    kvcsa_session_release(NULL);
    assert_null(s);
}

static void test_create_refuses_bad_calls(void **state)
{
    kvcsa_model         *m = host_model(T1_DIR), *plan = NULL;
    kvcsa_pool          *pool = host_pool(1, 0);
    kvcsa_session       *s = (kvcsa_session *)1;
    kvcsa_session_params sp;
    kvcsa_model_params   mp;
    kvcsa_error          err;

    (void)state;
    assert_fails(kvcsa_session_create(NULL, m, NULL, &s, &err), KVCSA_ERR_ARG, "pool is NULL");
    assert_null(s);
    assert_fails(kvcsa_session_create(pool, NULL, NULL, &s, &err), KVCSA_ERR_ARG, "model is NULL");
    assert_fails(kvcsa_session_create(pool, m, NULL, NULL, &err), KVCSA_ERR_ARG, "out is NULL");
    kvcsa_session_params_default(&sp, sizeof sp);
    sp.flags = 16;
    assert_fails(kvcsa_session_create(pool, m, &sp, &s, &err), KVCSA_ERR_UNSUPPORTED, "flags");
    kvcsa_model_params_default(&mp, sizeof mp);
    mp.flags = KVCSA_MODEL_PLAN_ONLY;
    assert_ok(kvcsa_model_open(T1_DIR, &mp, &plan, &err));
    assert_fails(kvcsa_session_create(pool, plan, NULL, &s, &err), KVCSA_ERR_UNSUPPORTED,
                 "plan only");
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
    kvcsa_model_release(&plan);
}

/* A newer caller's longer struct: zero beyond what we know is fine, anything else is refused, not
 * ignored. */
static void test_params_of_a_newer_caller(void **state)
{
    struct newer {
        kvcsa_session_params p;
        uint64_t             future;
    } big;
    kvcsa_model   *m = host_model(T1_DIR);
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = NULL;
    kvcsa_error    err;

    (void)state;
    memset(&big, 0xEE, sizeof big);
    kvcsa_session_params_default(&big.p, sizeof big);
    assert_int_equal(big.future, 0);
    assert_ok(kvcsa_session_create(pool, m, &big.p, &s, &err));
    kvcsa_session_release(&s);
    big.future = 1;
    assert_int_equal(kvcsa_session_create(pool, m, &big.p, &s, &err), KVCSA_ERR_UNSUPPORTED);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

/* ------------------------------------------------------------------ sampling */

static void test_sampling_is_a_function_of_seed_and_position(void **state)
{
    int32_t              ids[40], first[24], again[24];
    kvcsa_model         *m = host_model(T1_DIR);
    kvcsa_pool          *pool = host_pool(2, 0);
    kvcsa_sampler_params p;
    float                logits[T1_VOCAB];
    uint32_t             best = 0;
    kvcsa_error          err;

    (void)state;
    host_tokens(ids, 40, 17);
    kvcsa_sampler_params_default(&p, sizeof p);
    p.temperature = 1.0f;
    p.top_p = 0.95f;
    p.seed = 42;
    for (int run = 0; run < 2; run++) {
        kvcsa_session *s = host_session(pool, m, run ? 3 : 0);
        int32_t       *out = run ? again : first;

        host_run(pool, s, ids, 40, NULL);
        for (int i = 0; i < 24; i++) {
            assert_ok(kvcsa_session_sample(s, &p, &out[i], &err));
            host_run(pool, s, &out[i], 1, NULL);
        }
        kvcsa_session_release(&s);
    }
    assert_memory_equal(first, again, sizeof first);
    {
        kvcsa_session *s = host_session(pool, m, 0);
        int32_t        greedy, direct;

        host_run(pool, s, ids, 40, NULL);
        host_logits(s, logits, T1_VOCAB);
        for (uint32_t i = 1; i < T1_VOCAB; i++)
            best = logits[i] > logits[best] ? i : best;
        assert_ok(kvcsa_session_sample(s, NULL, &greedy, &err));
        assert_int_equal(greedy, best);
        assert_ok(kvcsa_sample_logits(logits, T1_VOCAB, 40, &p, &direct, &err));
        assert_int_equal(direct, first[0]);
        kvcsa_session_release(&s);
    }
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session_bits_do_not_depend_on_threads_or_chunks),
        cmocka_unit_test(test_session_bits_do_not_depend_on_appends_or_limits),
        cmocka_unit_test(test_session_bits_do_not_depend_on_the_executor),
        cmocka_unit_test(test_session_several_in_one_step_equal_their_solo_runs),
        cmocka_unit_test(test_session_threads_of_one_pool_equal_solo_runs),
        cmocka_unit_test(test_append_refuses_bad_calls_and_changes_nothing),
        cmocka_unit_test(test_append_limit_is_exact),
        cmocka_unit_test(test_logits_of_chosen_rows),
        cmocka_unit_test(test_tokens_and_length),
        cmocka_unit_test(test_budget_exhausted_leaves_the_session_unchanged),
        cmocka_unit_test(test_budget_counts_bytes_exactly),
        cmocka_unit_test(test_pool_serves_two_models),
        cmocka_unit_test(test_cancel_anywhere_restores_the_session),
        cmocka_unit_test(test_cancel_without_a_step_drops_the_queue),
        cmocka_unit_test(test_cancel_from_another_thread),
        cmocka_unit_test(test_step_limits),
        cmocka_unit_test(test_second_caller_gets_busy),
        cmocka_unit_test(test_children_keep_their_parents),
        cmocka_unit_test(test_create_refuses_bad_calls),
        cmocka_unit_test(test_params_of_a_newer_caller),
        cmocka_unit_test(test_sampling_is_a_function_of_seed_and_position),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
