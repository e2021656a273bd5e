/* Fork and rewind through the public header, on the random checkpoint T1 (10 layers, window 16,
 * ratios 2 and 1, blocks of 128 tokens): every way to a place gives the bits of a run that never
 * left it, and costs what the header says. */
#include "support/cold_fixture.h"

#define N 190

static int set_up(void **state)
{
    *state = fixture_make(N, 301);
    return 0;
}

/* What a session holds beside its full blocks. */
static uint64_t tail_bytes(const fixture *f)
{
    return f->cost.block_bytes + f->cost.const_bytes + f->cost.pending_bytes;
}

/* A parent that holds n tokens of the cold run. */
static kvcsa_session *make_parent(const fixture *f, kvcsa_pool *pool, uint64_t n)
{
    kvcsa_session *s = host_session(pool, f->model, 0);

    cold_extend(&f->cold, pool, s, n);
    return s;
}

/* ------------------------------------------------------------------ what a fork costs */

static void test_fork_at_the_end_copies_nothing(void **state)
{
    const fixture         *f = *state;
    kvcsa_pool            *pool = host_pool(2, 0);
    kvcsa_session         *s = make_parent(f, pool, 141); /* odd: a raw row is pending */
    const kvcsa_pool_stats before = pool_figures(pool);
    kvcsa_session         *t = fork_session(s, 141);
    kvcsa_pool_stats       after = pool_figures(pool);
    kvcsa_session_stats    st = session_figures(t);

    assert_int_equal(after.n_copied_blocks, before.n_copied_blocks);
    assert_int_equal(after.n_copied_pages, before.n_copied_pages);
    assert_int_equal(after.n_acquired, before.n_acquired);
    assert_int_equal(after.used_bytes, before.used_bytes);
    assert_int_equal(after.reserved_bytes, 0);
    assert_int_equal(after.n_sessions, 2);
    assert_int_equal(st.n_replay, 0);
    assert_int_equal(st.n_blocks, 2);
    assert_int_equal(st.shared_bytes, st.block_bytes);
    assert_int_equal(st.n_exact_tokens, 141);
    cold_check(&f->cold, t); /* logits are there without a step */
    cold_extend(&f->cold, pool, t, 143);
    after = pool_figures(pool);
    assert_int_equal(session_figures(t).n_replayed_rows, 0);
    assert_int_equal(session_figures(t).n_computed_rows, 2);
    /* the open block, a page of the window and the raw rows; whoever writes first */
    assert_true(after.n_copied_blocks - before.n_copied_blocks <= 1);
    assert_true(after.n_copied_pages - before.n_copied_pages <= 2);
    assert_true(after.used_bytes - before.used_bytes <= tail_bytes(f));
    cold_extend(&f->cold, pool, s, N); /* the parent goes on as if nothing had been */
    check_pool(pool);
    kvcsa_session_release(&s);
    cold_extend(&f->cold, pool, t, N);
    kvcsa_session_release(&t);
    close_pool(pool);
}

static void test_forks_cost_their_tails(void **state)
{
    enum { K = 8 };
    const fixture         *f = *state;
    kvcsa_pool            *pool = host_pool(2, 0);
    kvcsa_session         *s = make_parent(f, pool, 150), *t[K];
    const kvcsa_pool_stats before = pool_figures(pool);
    kvcsa_pool_stats       after;

    for (int k = 0; k < K; k++)
        t[k] = fork_session(s, 150);
    assert_int_equal(pool_figures(pool).used_bytes, before.used_bytes);
    for (int k = 0; k < K; k++)
        cold_extend(&f->cold, pool, t[k], 151);
    after = pool_figures(pool);
    assert_true(after.n_copied_blocks - before.n_copied_blocks <= K);
    assert_true(after.n_copied_pages - before.n_copied_pages <= 2 * K);
    assert_true(after.used_bytes > before.used_bytes); /* they differ now */
    assert_true(after.used_bytes - before.used_bytes <= K * tail_bytes(f));
    assert_int_equal(after.n_sealed_blocks, 1); /* the full block is there once */
    check_pool(pool);
    for (int k = 0; k < K; k++)
        kvcsa_session_release(&t[k]);
    cold_extend(&f->cold, pool, s, 152);
    assert_int_equal(pool_figures(pool).used_bytes, before.used_bytes);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* The only holder of a tail writes to it in place. */
static void test_parent_released_first(void **state)
{
    const fixture   *f = *state;
    kvcsa_pool      *pool = host_pool(2, 0);
    kvcsa_session   *s = make_parent(f, pool, 137), *t = fork_session(s, 137);
    kvcsa_session   *u = fork_session(s, 60);
    kvcsa_pool_stats st;

    kvcsa_session_release(&s);
    check_pool(pool);
    cold_extend(&f->cold, pool, t, N);
    st = pool_figures(pool);
    assert_int_equal(st.n_copied_blocks, 0);
    assert_int_equal(st.n_copied_pages, 0);
    cold_extend(&f->cold, pool, u, 64); /* inside the first block, which t holds too */
    assert_int_equal(pool_figures(pool).n_copied_blocks, 1);
    check_pool(pool);
    kvcsa_session_release(&t);
    cold_extend(&f->cold, pool, u, 70);
    kvcsa_session_release(&u);
    close_pool(pool);
}

static void test_fork_of_an_empty_session(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = host_session(pool, f->model, 0), *t = fork_session(s, 0);

    cold_extend(&f->cold, pool, s, 20);
    cold_extend(&f->cold, pool, t, 5);
    kvcsa_session_release(&t);
    t = fork_session(s, 0); /* of one that is not */
    assert_int_equal(session_figures(t).block_bytes, 0);
    assert_int_equal(session_figures(t).window_bytes, 0);
    assert_int_equal(session_figures(t).n_replay, 0);
    cold_extend(&f->cold, pool, t, 21);
    kvcsa_session_release(&s);
    kvcsa_session_release(&t);
    close_pool(pool);
}

/* ------------------------------------------------------------------ any position, any branch */

/* Forks at p, runs two more tokens, compares; due: rows of layer 0 that it has to run again. */
static void fork_and_go_on(const fixture *f, kvcsa_pool *pool, kvcsa_session *s, uint64_t p,
                           uint64_t due)
{
    const kvcsa_pool_stats before = pool_figures(pool);
    kvcsa_session         *t = fork_session(s, p);

    assert_int_equal(pool_figures(pool).n_copied_blocks, before.n_copied_blocks);
    assert_int_equal(pool_figures(pool).used_bytes, before.used_bytes);
    if (p < N)
        cold_extend(&f->cold, pool, t, cold_min(p + 2, N));
    else
        cold_check(&f->cold, t);
    assert_int_equal(session_figures(t).n_replayed_rows, due);
    assert_int_equal(session_figures(t).n_computed_rows, cold_min(p + 2, N) - p);
    kvcsa_session_release(&t);
    assert_int_equal(pool_figures(pool).used_bytes, before.used_bytes);
}

/* 0, inside the first window, odd ones, inside and at the end of a block, the end: with windows of
 * all positions at hand every one of them, and with windows that have to be rebuilt as well. */
static void test_fork_at_every_position_equals_a_cold_run(void **state)
{
    static const uint64_t at[] = {0, 1, 15, 16, 33, 64, 95, 127, 128, 129, 152, 189, 190};
    const fixture        *f = *state;
    kvcsa_pool           *pool = host_pool(2, 0);
    kvcsa_session_params  p = session_defaults();
    kvcsa_session        *s;

    p.window_slack_tokens = N;
    s = make_session(pool, f->model, &p);
    cold_extend(&f->cold, pool, s, N);
    for (uint64_t pos = 0; pos <= N; pos++)
        fork_and_go_on(f, pool, s, pos, 0);
    kvcsa_session_release(&s);
    s = make_parent(f, pool, N);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        fork_and_go_on(f, pool, s, at[i], at[i] < N ? cold_min(at[i], T1_REPLAY) : 0);
    check_pool(pool);
    cold_check(&f->cold, s); /* nobody wrote to what it holds */
    rewind_session(s, N - 1);
    cold_extend(&f->cold, pool, s, N);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* A step without a queue rebuilds windows and logits. */
static void test_step_after_a_fork_gives_logits(void **state)
{
    static const uint64_t positions[] = {1, 15, 16, 17, 33, 127, 128, 129, 171};
    const fixture        *f = *state;
    kvcsa_pool           *pool = host_pool(2, 0);
    kvcsa_session        *s = make_parent(f, pool, N);
    float                 logits[T1_VOCAB];
    kvcsa_error           err;

    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        kvcsa_session *t = fork_session(s, positions[i]);

        assert_fails(kvcsa_session_get_logits(t, logits, T1_VOCAB, &err), KVCSA_ERR_ARG, "logits");
        host_step(pool, t);
        cold_check(&f->cold, t);
        assert_int_equal(session_figures(t).n_computed_rows, 0);
        assert_int_equal(session_figures(t).n_replay, 0);
        host_step(pool, t); /* nothing is left to do */
        assert_int_equal(session_figures(t).n_replayed_rows, cold_min(positions[i], T1_REPLAY));
        cold_extend(&f->cold, pool, t, positions[i] + 3);
        kvcsa_session_release(&t);
    }
    kvcsa_session_release(&s);
    close_pool(pool);
}

static void test_branches_diverge(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = make_parent(f, pool, 150);
    kvcsa_session *a = fork_session(s, 150), *b = fork_session(s, 75), *c = fork_session(s, 128);
    cold wa = cold_branch(&f->cold, 150, 30, 302), wb = cold_branch(&f->cold, 75, 80, 303);
    cold wc = cold_branch(&f->cold, 128, 20, 304);

    for (uint64_t i = 1; i <= 4; i++) { /* in turns */
        cold_extend(&wa, pool, a, 150 + i * 7);
        cold_extend(&wb, pool, b, 75 + i * 20); /* seals a first block of its own */
        cold_extend(&f->cold, pool, s, 150 + i * 10);
        cold_extend(&wc, pool, c, 128 + i * 5);
        check_pool(pool);
    }
    assert_int_equal(pool_figures(pool).n_sealed_blocks, 2);
    kvcsa_session_release(&s);
    kvcsa_session_release(&a);
    kvcsa_session_release(&b);
    kvcsa_session_release(&c);
    close_pool(pool);
    cold_free(&wa);
    cold_free(&wb);
    cold_free(&wc);
}

static void test_forks_of_forks(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = make_parent(f, pool, 140), *t, *u, *v;
    cold           wt = cold_branch(&f->cold, 133, 20, 305), wu = cold_branch(&wt, 141, 10, 306);
    cold           wv = cold_branch(&wu, 151, 6, 307);

    t = fork_session(s, 133);
    cold_extend(&wt, pool, t, 145);
    u = fork_session(t, 141);
    kvcsa_session_release(&s); /* grandparents first */
    cold_extend(&wu, pool, u, 151);
    v = fork_session(u, 151);
    cold_extend(&wv, pool, v, 153);
    kvcsa_session_release(&u);
    kvcsa_session_release(&t);
    check_pool(pool);
    t = fork_session(v, 152);
    cold_extend(&wv, pool, t, 157);
    cold_extend(&wv, pool, v, 157);
    kvcsa_session_release(&t);
    u = fork_session(v, 133); /* back to what the first parent computed */
    cold_extend(&f->cold, pool, u, 136);
    kvcsa_session_release(&u);
    kvcsa_session_release(&v);
    close_pool(pool);
    cold_free(&wt);
    cold_free(&wu);
    cold_free(&wv);
}

/* The new session's own parameters. */
static void test_fork_takes_params(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = host_pool(2, 0);
    kvcsa_session       *s = make_parent(f, pool, 100), *t = NULL;
    cold                 w = cold_branch(&f->cold, 100, 60, 308);
    kvcsa_session_params p = session_defaults();
    size_t               n = 0;
    kvcsa_error          err;

    p.window_slack_tokens = 16;
    assert_fails(kvcsa_session_fork(s, 100, &p, &t, &err), KVCSA_ERR_ARG, "slack");
    assert_null(t);
    p = session_defaults();
    p.flags = KVCSA_SESSION_PRIVATE;
    p.chunk_tokens = 7;
    assert_ok(kvcsa_session_fork(s, 100, &p, &t, &err));
    cold_extend(&w, pool, t, 160);
    assert_ok(kvcsa_prefix_match(pool, f->model, 0, w.ids, 160, &n, &err));
    assert_int_equal(n, 0); /* it is private */
    kvcsa_session_release(&t);
    p = session_defaults();
    p.salt = 7; /* sessions of different salts never share, and a fork is all sharing */
    assert_fails(kvcsa_session_fork(s, 100, &p, &t, &err), KVCSA_ERR_ARG, "salt");
    assert_null(t);
    check_pool(pool);
    kvcsa_session_release(&s);
    close_pool(pool);
    cold_free(&w);
}

static void test_fork_and_rewind_refuse_bad_calls(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = make_parent(f, pool, 40), *t = (kvcsa_session *)1;
    kvcsa_error    err;

    assert_fails(kvcsa_session_fork(s, 41, NULL, &t, &err), KVCSA_ERR_ARG, "41");
    assert_null(t);
    assert_fails(kvcsa_session_rewind(s, 41, &err), KVCSA_ERR_ARG, "41");
    assert_int_equal(kvcsa_session_fork(s, UINT64_MAX, NULL, &t, &err), KVCSA_ERR_ARG);
    assert_int_equal(kvcsa_session_rewind(s, UINT64_MAX, &err), KVCSA_ERR_ARG);
    assert_ok(kvcsa_session_append(s, f->cold.ids + 40, 2, NULL, NULL, &err));
    assert_fails(kvcsa_session_fork(s, 40, NULL, &t, &err), KVCSA_ERR_ARG, "queue");
    assert_fails(kvcsa_session_rewind(s, 10, &err), KVCSA_ERR_ARG, "queue");
    host_step(pool, s);
    cold_check(&f->cold, s);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* ------------------------------------------------------------------ rewind */

static void test_random_rewinds_equal_a_cold_run(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = host_session(pool, f->model, 17);
    uint32_t       x = 4711;

    for (int i = 0; i < 14; i++) {
        const uint64_t n = kvcsa_session_length(s);

        x = x * 1664525u + 1013904223u;
        cold_extend(&f->cold, pool, s, cold_min(n + 1 + (x >> 16) % (N - n), n + 45));
        x = x * 1664525u + 1013904223u;
        rewind_session(s, (x >> 16) % kvcsa_session_length(s));
        if (x & 0x8000) /* twice in a row, nothing in between */
            rewind_session(s, kvcsa_session_length(s) / 2 + 1 > kvcsa_session_length(s)
                                  ? 0
                                  : kvcsa_session_length(s) / 2 + 1);
    }
    check_pool(pool);
    kvcsa_session_release(&s);
    close_pool(pool);
}

static void test_rewind_changes_no_byte_and_gives_room_back(void **state)
{
    const fixture   *f = *state;
    kvcsa_pool      *pool = host_pool(2, 0);
    kvcsa_session   *s = host_session(pool, f->model, 0);
    kvcsa_pool_stats st;

    cold_extend(&f->cold, pool, s, N);
    rewind_session(s, 150);
    st = pool_figures(pool);
    assert_int_equal(st.n_copied_blocks + st.n_copied_pages, 0);
    assert_int_equal(session_figures(s).n_blocks, 2);
    rewind_session(s, 100);
    st = pool_figures(pool);
    assert_int_equal(st.n_copied_blocks, 0);
    assert_int_equal(st.n_open_blocks, 0); /* the second block went */
    assert_int_equal(session_figures(s).n_blocks, 1);
    cold_extend(&f->cold, pool, s, 102); /* writes into a block that can be found: a copy */
    assert_int_equal(pool_figures(pool).n_copied_blocks, 1);
    rewind_session(s, 102); /* to where it is */
    host_step(pool, s);
    cold_check(&f->cold, s);
    rewind_session(s, 0);
    assert_int_equal(session_figures(s).block_bytes, 0);
    assert_int_equal(session_figures(s).n_replay, 0);
    cold_extend(&f->cold, pool, s, 3);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* Within the slack nothing is run again, if a token follows. */
static void test_window_slack_makes_rewinds_free(void **state)
{
    static const uint32_t slacks[] = {1, 16, 37};
    const fixture        *f = *state;
    kvcsa_pool           *pool = host_pool(2, 0);
    kvcsa_session_params  p = session_defaults();

    for (size_t i = 0; i < sizeof slacks / sizeof *slacks; i++) {
        kvcsa_session *s, *t;

        p.window_slack_tokens = slacks[i];
        s = make_session(pool, f->model, &p);
        cold_extend(&f->cold, pool, s, N);
        for (uint64_t back = 1; back <= slacks[i]; back += back < 3 ? 1 : 7) {
            rewind_session(s, N - back);
            cold_extend(&f->cold, pool, s, N);
        }
        rewind_session(s, N - slacks[i]);
        cold_extend(&f->cold, pool, s, N);
        assert_int_equal(session_figures(s).n_replayed_rows, 0);
        t = fork_session(s, N - slacks[i]); /* a fork likewise */
        cold_extend(&f->cold, pool, t, N);
        assert_int_equal(session_figures(t).n_replayed_rows, 0);
        kvcsa_session_release(&t);
        rewind_session(s, N - 1); /* without a token: the row whose logits are wanted */
        assert_int_equal(session_figures(s).n_replay, 1);
        host_step(pool, s);
        cold_check(&f->cold, s);
        assert_int_equal(session_figures(s).n_replayed_rows, 1);
        rewind_session(s, N - 1 - slacks[i] - 2 * T1_WINDOW); /* too far */
        cold_extend(&f->cold, pool, s, N);
        assert_true(session_figures(s).n_replayed_rows > 100);
        kvcsa_session_release(&s);
    }
    close_pool(pool);
}

/* Sessions no longer than a window have all their window rows, but not every raw row: those of the
 * first halves of entries, which odd positions need. */
static void test_short_sessions_go_back(void **state)
{
    static const uint64_t lengths[] = {2, 5, 15, 16, 17, 20};
    const fixture        *f = *state;
    kvcsa_pool           *pool = host_pool(1, 0);

    for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
        kvcsa_session_params p = session_defaults();
        kvcsa_session       *s;

        p.window_slack_tokens = i % 2 * 3;
        s = make_session(pool, f->model, &p);
        cold_extend(&f->cold, pool, s, lengths[i / 2]);
        for (uint64_t pos = 0; pos < lengths[i / 2]; pos++) {
            kvcsa_session *t = fork_session(s, pos);

            cold_extend(&f->cold, pool, t, pos + 2);
            if (pos > 2) { /* and once more, from a place between the two */
                rewind_session(t, pos - 1);
                cold_extend(&f->cold, pool, t, pos + 1);
            }
            kvcsa_session_release(&t);
        }
        kvcsa_session_release(&s);
    }
    close_pool(pool);
}

/* Steps back in a row use up the slack; going on fills it again. */
static void test_slack_is_used_up_and_filled_again(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = host_pool(1, 0);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s;

    p.window_slack_tokens = 8;
    s = make_session(pool, f->model, &p);
    cold_extend(&f->cold, pool, s, 100);
    for (uint64_t i = 0; i < 8; i++)
        rewind_session(s, 99 - i);
    for (uint64_t i = 92; i < 130; i += 3) { /* back by 2, on by 5, in the ring all the time */
        cold_extend(&f->cold, pool, s, i + 5);
        rewind_session(s, i + 3);
    }
    assert_int_equal(session_figures(s).n_replayed_rows, 0);
    rewind_session(s, 60);
    cold_extend(&f->cold, pool, s, 63);
    assert_int_equal(session_figures(s).n_replayed_rows, 60);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* Windows stored on the way change no bit of what goes back or apart behind them. */
static void test_stored_windows_change_no_bit(void **state)
{
    static const uint64_t positions[] = {189, 150, 129, 128, 127, 7};
    const fixture        *f = *state;
    kvcsa_pool           *pool = host_pool(2, 0);
    kvcsa_session_params  p = session_defaults();
    kvcsa_session        *s;

    p.window_store_tokens = 128;
    s = make_session(pool, f->model, &p);
    cold_extend(&f->cold, pool, s, N);
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        const uint64_t replayed = session_figures(s).n_replayed_rows;
        const uint64_t most = cold_min(positions[i], T1_REPLAY);
        kvcsa_session *t = fork_session(s, positions[i]);

        cold_extend(&f->cold, pool, t, positions[i] + 1);
        assert_true(session_figures(t).n_replayed_rows <= most);
        kvcsa_session_release(&t);
        rewind_session(s, positions[i]);
        cold_extend(&f->cold, pool, s, N);
        assert_true(session_figures(s).n_replayed_rows - replayed <= most);
    }
    check_pool(pool);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* ------------------------------------------------------------------ approximations stay private */

static size_t known(const fixture *f, kvcsa_pool *pool, const int32_t *ids, size_t n)
{
    size_t      n_matched = 77;
    kvcsa_error err;

    assert_ok(kvcsa_prefix_match(pool, f->model, 0, ids, n, &n_matched, &err));
    return n_matched;
}

static double distance(kvcsa_session *s, const cold *c)
{
    const float *want = c->rows.data + (kvcsa_session_length(s) - 1) * T1_VOCAB;
    double       worst = 0;
    float        logits[T1_VOCAB];

    host_logits(s, logits, T1_VOCAB);
    for (uint32_t i = 0; i < T1_VOCAB; i++) {
        const double d = (double)logits[i] - (double)want[i];

        worst = d > worst ? d : -d > worst ? -d : worst;
    }
    return worst;
}

static void test_bounded_rewind_taints_what_follows(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = host_pool(2, 0);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s, *t;
    uint64_t             published = 0;
    kvcsa_error          err;

    p.reuse = KVCSA_REUSE_BOUNDED;
    p.flags = KVCSA_SESSION_PRIVATE;
    s = make_session(pool, f->model, &p);
    cold_extend(&f->cold, pool, s, 120); /* exact so far */
    assert_int_equal(session_figures(s).n_exact_tokens, 120);
    rewind_session(s, 100);
    assert_int_equal(session_figures(s).n_replay, T1_WINDOW);
    host_run(pool, s, f->cold.ids + 100, N - 100, NULL);
    assert_int_equal(session_figures(s).n_replayed_rows, T1_WINDOW);
    assert_int_equal(session_figures(s).n_exact_tokens, 100);
    assert_true(distance(s, &f->cold) > 1e-3); /* it is another function */
    assert_true(distance(s, &f->cold) < 10);   /* and not nonsense */
    assert_ok(kvcsa_prefix_publish(s, &published, &err));
    assert_int_equal(published, 0);
    assert_int_equal(known(f, pool, f->cold.ids, N), 0);
    t = fork_session(s, 150); /* taint is inherited */
    assert_int_equal(session_figures(t).n_exact_tokens, 100);
    kvcsa_session_release(&t);
    t = fork_session(s, 90); /* in front of it all is well */
    assert_int_equal(session_figures(t).n_exact_tokens, 90);
    kvcsa_session_release(&t);
    rewind_session(s, 12); /* so short that it is run from the beginning: exact again */
    cold_extend(&f->cold, pool, s, 140);
    assert_int_equal(session_figures(s).n_exact_tokens, 140);
    assert_ok(kvcsa_prefix_publish(s, &published, &err));
    assert_int_equal(published, 128);
    assert_int_equal(known(f, pool, f->cold.ids, N), 128);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* A bounded hit, and exact sessions beside it that never see what it made. */
static void test_exact_sessions_next_to_bounded_ones(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = host_pool(2, 0);
    cold                 c = cold_run(f->model, 400, 309);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *first = host_session(pool, f->model, 0), *b, *e;
    kvcsa_reuse          r;

    cold_extend(&c, pool, first, 256);
    p.reuse = KVCSA_REUSE_BOUNDED;
    b = make_session(pool, f->model, &p);
    host_run(pool, b, c.ids, 400, NULL);
    r = session_reuse(b);
    assert_int_equal(r.n_adopted, 256);
    assert_int_equal(r.n_replay, T1_WINDOW);
    assert_int_equal(r.n_compute, 144);
    assert_int_equal(r.how, KVCSA_REUSE_BOUNDED);
    assert_int_equal(session_figures(b).n_exact_tokens, 256);
    assert_int_equal(session_figures(b).n_replayed_rows, T1_WINDOW);
    assert_true(distance(b, &c) > 1e-3 && distance(b, &c) < 10);
    assert_int_equal(pool_figures(pool).n_published_blocks, 2); /* not its third */
    assert_int_equal(known(f, pool, c.ids, 400), 256);
    e = host_session(pool, f->model, 0);
    r = cold_reuse(&c, pool, e, 390, KVCSA_REUSE_EXACT); /* bit for bit */
    assert_int_equal(r.n_adopted, 256);
    assert_int_equal(r.n_compute, 134);
    assert_int_equal(known(f, pool, c.ids, 400), 384);
    assert_int_equal(session_figures(e).n_exact_tokens, 390);
    check_pool(pool);
    kvcsa_session_release(&first);
    kvcsa_session_release(&b);
    kvcsa_session_release(&e);
    close_pool(pool);
    cold_free(&c);
}

/* Layers above the last owner may be run for the last window of a prompt only: entries are exact. */
static void test_decoder_replay_publishes_exact_entries(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = host_pool(2, 0);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *d, *e;
    cold                 c = cold_run(f->model, 280, 310);
    kvcsa_reuse          r;

    p.decoder_replay = KVCSA_DECODER_REPLAY_ON;
    d = make_session(pool, f->model, &p);
    host_run(pool, d, c.ids, 270, NULL);
    assert_true(distance(d, &c) > 1e-4 && distance(d, &c) < 10); /* approximate itself */
    for (uint64_t n = 270; n < 274; n++)
        host_run(pool, d, c.ids + n, 1, NULL);
    assert_int_equal(session_figures(d).n_exact_tokens, 274);
    assert_int_equal(known(f, pool, c.ids, 280), 256);
    e = host_session(pool, f->model, 0);
    r = cold_reuse(&c, pool, e, 275, KVCSA_REUSE_EXACT);
    assert_int_equal(r.n_adopted, 256);
    cold_extend(&c, pool, e, 280);
    kvcsa_session_release(&e);
    kvcsa_session_release(&d);
    p = session_defaults(); /* fast mode has it on, and bounded reuse */
    p.mode = KVCSA_MODE_FAST;
    d = make_session(pool, f->model, &p);
    host_run(pool, d, c.ids, 100, NULL);
    assert_int_equal(session_figures(d).n_exact_tokens, 100);
    assert_true(distance(d, &c) > 1e-4);
    rewind_session(d, 60);
    assert_int_equal(session_figures(d).n_replay, T1_WINDOW);
    kvcsa_session_release(&d);
    /* a prompt no longer than a window is not cut */
    d = make_session(pool, f->model, &p);
    host_run(pool, d, c.ids, T1_WINDOW, NULL);
    cold_check(&c, d);
    kvcsa_session_release(&d);
    close_pool(pool);
    cold_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork_at_the_end_copies_nothing),
        cmocka_unit_test(test_forks_cost_their_tails),
        cmocka_unit_test(test_parent_released_first),
        cmocka_unit_test(test_fork_of_an_empty_session),
        cmocka_unit_test(test_fork_at_every_position_equals_a_cold_run),
        cmocka_unit_test(test_step_after_a_fork_gives_logits),
        cmocka_unit_test(test_branches_diverge),
        cmocka_unit_test(test_forks_of_forks),
        cmocka_unit_test(test_fork_takes_params),
        cmocka_unit_test(test_fork_and_rewind_refuse_bad_calls),
        cmocka_unit_test(test_random_rewinds_equal_a_cold_run),
        cmocka_unit_test(test_rewind_changes_no_byte_and_gives_room_back),
        cmocka_unit_test(test_window_slack_makes_rewinds_free),
        cmocka_unit_test(test_short_sessions_go_back),
        cmocka_unit_test(test_slack_is_used_up_and_filled_again),
        cmocka_unit_test(test_stored_windows_change_no_bit),
        cmocka_unit_test(test_bounded_rewind_taints_what_follows),
        cmocka_unit_test(test_exact_sessions_next_to_bounded_ones),
        cmocka_unit_test(test_decoder_replay_publishes_exact_entries),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
