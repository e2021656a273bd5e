/* What can come in between while windows are rebuilt and prefixes are adopted: limits, cancels,
 * rewinds, forks, eviction, other sessions with other windows. T1, public header. */
#include "support/cold_fixture.h"

#define N 300

static int set_up(void **state)
{
    *state = fixture_make(N, 801);
    return 0;
}

static kvcsa_session *make_with(const fixture *f, kvcsa_pool *pool, uint32_t slack, uint32_t store)
{
    kvcsa_session_params p = session_defaults();

    p.window_slack_tokens = slack;
    p.window_store_tokens = store;
    return make_session(pool, f->model, &p);
}

static void step_rows(kvcsa_pool *pool, kvcsa_session *s, uint64_t max_rows)
{
    kvcsa_step_params sp;
    kvcsa_error       err;

    kvcsa_step_params_default(&sp, sizeof sp);
    sp.max_rows = max_rows;
    assert_ok(kvcsa_pool_step(pool, &s, 1, &sp, NULL, &err));
}

/* ------------------------------------------------------------------ a replay in pieces */

static void test_replay_in_small_steps(void **state)
{
    static const uint64_t limits[] = {1, 7, 16, 40};
    const fixture        *f = *state;
    kvcsa_pool           *pool = host_pool(2, 0);
    kvcsa_session        *s = make_with(f, pool, 0, 0);

    cold_extend(&f->cold, pool, s, 200);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        kvcsa_session *t = fork_session(s, 161);
        uint64_t       last = T1_REPLAY + 1;
        kvcsa_error    err;

        assert_ok(kvcsa_session_append(t, f->cold.ids + 161, 4, NULL, NULL, &err));
        while (session_figures(t).n_replay) {
            step_rows(pool, t, limits[i]);
            assert_true(session_figures(t).n_replay < last);
            last = session_figures(t).n_replay;
        }
        while (session_figures(t).n_queued)
            step_rows(pool, t, limits[i]);
        assert_int_equal(kvcsa_session_length(t), 165);
        assert_int_equal(session_figures(t).n_replayed_rows, T1_REPLAY);
        assert_int_equal(session_figures(t).n_computed_rows, 4);
        cold_check(&f->cold, t);
        kvcsa_session_release(&t);
    }
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* Half rebuilt windows are nobody's: not a fork's, not those of a rewind that comes in between. */
static void test_rewind_and_fork_in_the_middle_of_a_replay(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);

    for (uint64_t rows = 5; rows < 120; rows += 23) {
        kvcsa_session *s = make_with(f, pool, 0, 0), *t, *u;

        cold_extend(&f->cold, pool, s, 150);
        rewind_session(s, 131);
        step_rows(pool, s, rows);
        t = fork_session(s, 131);
        u = fork_session(s, 90);
        step_rows(pool, s, 3);
        cold_extend(&f->cold, pool, t, 134);
        rewind_session(s, 120); /* once more */
        step_rows(pool, s, rows / 2);
        cold_extend(&f->cold, pool, u, 92);
        cold_extend(&f->cold, pool, s, 123);
        check_pool(pool);
        kvcsa_session_release(&s);
        kvcsa_session_release(&t);
        kvcsa_session_release(&u);
    }
    close_pool(pool);
}

static int32_t stop_at(void *user, kvcsa_session *session, uint64_t n_done, uint64_t n_queued)
{
    (void)session;
    (void)n_done;
    (void)n_queued;
    return --*(int *)user < 0;
}

/* Two appends that begin with a hit behind the first of them, cancelled anywhere: one of the two
 * beginnings, and right from there. */
static void test_hits_that_are_cancelled(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *a = make_with(f, pool, 0, 0);
    int            cancelled = 0;

    cold_extend(&f->cold, pool, a, 257);
    kvcsa_session_release(&a);
    for (int calls = 0; calls < 100; calls += 9) {
        kvcsa_session    *s = host_session(pool, f->model, 40);
        kvcsa_step_params sp;
        int               left = calls;
        kvcsa_status      st;
        uint64_t          n;
        kvcsa_error       err;

        kvcsa_step_params_default(&sp, sizeof sp);
        sp.progress = stop_at;
        sp.user = &left;
        assert_ok(kvcsa_session_append(s, f->cold.ids, 201, NULL, NULL, &err));
        assert_ok(kvcsa_session_append(s, f->cold.ids + 201, 79, NULL, NULL, &err));
        st = kvcsa_pool_step(pool, &s, 1, &sp, NULL, &err);
        check_pool(pool);
        n = kvcsa_session_length(s);
        if (st == KVCSA_OK) {
            assert_int_equal(n, 280);
        } else {
            assert_int_equal(st, KVCSA_ERR_CANCELLED);
            assert_true(n == 0 || n == 201);
            assert_int_equal(session_figures(s).n_queued, 0);
            assert_int_equal(pool_figures(pool).reserved_bytes, 0);
            cancelled++;
            if (n) { /* its logits are there, or come back */
                host_step(pool, s);
                cold_check(&f->cold, s);
            }
        }
        cold_reuse(&f->cold, pool, s, 283, KVCSA_REUSE_EXACT);
        kvcsa_session_release(&s);
    }
    assert_true(cancelled > 5);
    close_pool(pool);
}

/* ------------------------------------------------------------------ between append and step */

static void test_what_an_append_found_is_held(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *a = make_with(f, pool, 0, 128), *s[3];
    kvcsa_error    err;

    cold_extend(&f->cold, pool, a, 257);
    kvcsa_session_release(&a);
    for (int k = 0; k < 3; k++) {
        s[k] = make_with(f, pool, 0, 0);
        assert_ok(kvcsa_session_append(s[k], f->cold.ids, k == 2 ? 270 : 190, NULL, NULL, &err));
        assert_true(session_reuse(s[k]).n_adopted >= 190);
    }
    assert_ok(kvcsa_pool_trim(pool, 0, NULL, &err)); /* nothing of it can go */
    assert_ok(kvcsa_prefix_forget(pool, NULL, 0, NULL, 0, NULL, &err));
    kvcsa_session_release(&s[1]); /* with a hit that it never used */
    check_pool(pool);
    host_step(pool, s[0]);
    cold_check(&f->cold, s[0]);
    kvcsa_session_cancel(s[2]);
    assert_int_equal(kvcsa_pool_step(pool, &s[2], 1, NULL, NULL, &err), KVCSA_ERR_CANCELLED);
    assert_int_equal(kvcsa_session_length(s[2]), 0);
    cold_extend(&f->cold, pool, s[0], 195);
    cold_extend(&f->cold, pool, s[2], 5);
    kvcsa_session_release(&s[0]);
    kvcsa_session_release(&s[2]);
    close_pool(pool);
}

/* An append behind one that is still queued: looked up again, with both. */
static void test_appends_in_pieces_find_as_much(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *a = make_with(f, pool, 0, 0), *s = make_with(f, pool, 0, 0);
    kvcsa_reuse    r;
    kvcsa_error    err;

    cold_extend(&f->cold, pool, a, 257);
    for (uint64_t n = 0; n < 280; n += 70)
        assert_ok(kvcsa_session_append(s, f->cold.ids + n, 70, NULL, NULL, &err));
    r = session_reuse(s);
    assert_int_equal(r.n_adopted, 256);
    assert_int_equal(r.n_compute, 24);
    host_step(pool, s);
    cold_check(&f->cold, s);
    assert_int_equal(session_figures(s).n_computed_rows, 24);
    kvcsa_session_release(&a);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* Both compute the same at the same time: one of the blocks goes, and nobody notices. */
static void test_two_that_meet_in_one_step_hold_one_copy(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s[2] = {host_session(pool, f->model, 50), host_session(pool, f->model, 60)};
    kvcsa_error    err;

    for (int k = 0; k < 2; k++)
        assert_ok(kvcsa_session_append(s[k], f->cold.ids, 290, NULL, NULL, &err));
    assert_ok(kvcsa_pool_step(pool, s, 2, NULL, NULL, &err));
    assert_int_equal(pool_figures(pool).n_sealed_blocks, 2);
    assert_int_equal(pool_figures(pool).n_published_blocks, 2);
    assert_int_equal(pool_figures(pool).n_open_blocks, 2);
    for (int k = 0; k < 2; k++) {
        cold_check(&f->cold, s[k]);
        cold_extend(&f->cold, pool, s[k], 292);
        kvcsa_session_release(&s[k]);
    }
    close_pool(pool);
}

/* ------------------------------------------------------------------ stored windows */

/* Sessions with other slack have rings of another size: their windows do not fit, and are not
 * taken for each other. */
static void test_stored_windows_of_other_sizes(void **state)
{
    static const uint32_t slacks[] = {0, 16, 33};
    const fixture        *f = *state;
    kvcsa_pool           *pool = host_pool(2, 0);

    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < 3; i++) {
            kvcsa_session *s = make_with(f, pool, slacks[i], 128);

            if (round == 0 && i == 0)
                cold_extend(&f->cold, pool, s, 257);
            cold_sync(&f->cold, pool, s, 270);
            cold_extend(&f->cold, pool, s, 280);
            rewind_session(s, 259);
            cold_extend(&f->cold, pool, s, 262);
            check_pool(pool);
            kvcsa_session_release(&s);
        }
    close_pool(pool);
}

/* A window beside the block ahead makes it worth while to go there, from the middle of a block. */
static void test_a_stored_window_ahead(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *a = make_with(f, pool, 0, 128), *s = make_with(f, pool, 0, 0);
    kvcsa_reuse    r;

    cold_extend(&f->cold, pool, s, 140); /* nothing is known yet behind its first block */
    cold_extend(&f->cold, pool, a, 257);
    r = cold_reuse(&f->cold, pool, s, 275, KVCSA_REUSE_EXACT);
    assert_int_equal(r.n_kept, 140);
    assert_int_equal(r.n_adopted, 116);
    assert_int_equal(r.n_replay, 0);
    assert_int_equal(r.n_compute, 19);
    assert_int_equal(pool_figures(pool).n_sealed_blocks, 2);
    kvcsa_session_release(&a);
    cold_extend(&f->cold, pool, s, N);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* ------------------------------------------------------------------ everything at random */

/* Random calls on four sessions of one list and its branches; whatever they hold is right. */
static void test_random_calls_on_sessions_that_share(void **state)
{
    enum { K = 4, ROUNDS = 120 };
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    cold           lists[3] = {f->cold, cold_branch(&f->cold, 150, 60, 802),
                               cold_branch(&f->cold, 61, 90, 803)};
    kvcsa_session *s[K];
    size_t         of[K] = {0}; /* the list that a session follows */
    uint32_t       x = 2024;
    kvcsa_error    err;

    for (int k = 0; k < K; k++)
        s[k] = make_with(f, pool, (uint32_t)k % 2 * 20, (uint32_t)k / 2 * 128);
    for (int i = 0; i < ROUNDS; i++) {
        const int      k = (x = x * 1664525u + 1013904223u, (x >> 16) % K);
        const uint32_t r = (x = x * 1664525u + 1013904223u, x >> 12);
        const cold    *c = &lists[of[k]];
        const uint64_t n = kvcsa_session_length(s[k]);

        switch ((x >> 8) % 8) {
        case 0: /* another list */
        case 1:
            of[k] = r % 3;
            cold_sync(&lists[of[k]], pool, s[k],
                      1 + r % (lists[of[k]].n < 215 ? lists[of[k]].n : 215));
            break;
        case 2:
            rewind_session(s[k], n - r % (n / 4 + 1));
            break;
        case 3:
            if (n < c->n)
                cold_extend(c, pool, s[k], cold_min(n + 1 + r % 12, c->n));
            break;
        case 4: { /* replaced by a fork of itself or of one with the same windows */
            kvcsa_session *t = fork_session(s[k], n - r % (n / 4 + 1));

            kvcsa_session_release(&s[k]);
            s[k] = t;
            break;
        }
        case 5:
            assert_ok(kvcsa_pool_trim(pool, r % 4 * 40000, NULL, &err));
            break;
        case 6:
            if (r % 3 == 0)
                assert_ok(kvcsa_session_erase(s[k], r % 2, &err));
            else
                assert_ok(kvcsa_prefix_forget(pool, f->model, 0, c->ids, 1 + r % c->n, NULL, &err));
            break;
        default:
            host_step(pool, s[k]);
            if (n)
                cold_check(c, s[k]);
        }
        check_pool(pool);
    }
    for (int k = 0; k < K; k++)
        kvcsa_session_release(&s[k]);
    close_pool(pool);
    cold_free(&lists[1]);
    cold_free(&lists[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay_in_small_steps),
        cmocka_unit_test(test_hits_that_are_cancelled),
        cmocka_unit_test(test_what_an_append_found_is_held),
        cmocka_unit_test(test_appends_in_pieces_find_as_much),
        cmocka_unit_test(test_two_that_meet_in_one_step_hold_one_copy),
        cmocka_unit_test(test_stored_windows_of_other_sizes),
        cmocka_unit_test(test_a_stored_window_ahead),
        cmocka_unit_test(test_random_calls_on_sessions_that_share),
        cmocka_unit_test(test_rewind_and_fork_in_the_middle_of_a_replay),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
