/* What of a session survives in a snapshot: every kind of length, windows, logits, slack, entries
 * that are approximate, salt; and that a session goes on from it with the same bits. On the random
 * checkpoint T1. */
#include "support/snap_fixture.h"

#define N 200u          /* tokens that are saved */
#define EXACT_ROWS 151u /* window 16, 10 layers: 16 + 9 * 15 */
#define FULL (KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS)

static int set_up(void **state)
{
    *state = fixture_make(N, 331);
    return 0;
}

static kvcsa_session *session_with(kvcsa_pool *pool, kvcsa_model *model, uint32_t slack,
                                   uint32_t reuse, uint64_t salt, uint32_t flags)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.window_slack_tokens = slack;
    p.reuse = reuse;
    p.salt = salt;
    p.flags = flags;
    assert_ok(kvcsa_session_create(pool, model, &p, &s, &err));
    return s;
}

static size_t match(const fixture *f, kvcsa_pool *pool, uint64_t salt)
{
    size_t      n = 0;
    kvcsa_error err;

    assert_ok(kvcsa_prefix_match(pool, f->small, salt, f->run.ids, N, &n, &err));
    return n;
}

/* ------------------------------------------------------------------ round trips */

/* Loads into a new pool and goes on; checks how much had to be run again. */
static void check_load(const fixture *f, const char *path, uint64_t n, uint32_t flags, uint64_t to)
{
    kvcsa_pool               *pool = host_pool(1, 0);
    kvcsa_session            *s = host_session(pool, f->model, 50);
    const kvcsa_snapshot_info info = snap_load(s, path, NULL, 0);
    const uint64_t            rows = n < EXACT_ROWS ? n : EXACT_ROWS;
    float                     logits[T1_VOCAB];
    kvcsa_error               err;

    assert_int_equal(info.n_tokens, n);
    assert_int_equal(info.exact, 1);
    assert_int_equal(info.sections, n ? flags : flags & 0u);
    snap_assert_tokens(&f->run, s, n);
    assert_ok(kvcsa_pool_check(pool, &err));
    if (n && (flags & KVCSA_SNAPSHOT_LOGITS)) {
        host_logits(s, logits, T1_VOCAB);
        assert_memory_equal(logits, snap_row(&f->run, n - 1), sizeof logits);
    } else {
        assert_int_equal(kvcsa_session_get_logits(s, logits, T1_VOCAB, &err), KVCSA_ERR_ARG);
    }
    if (flags == FULL)
        assert_int_equal(snap_session_stats(s).n_replay, 0);
    if (!(flags & KVCSA_SNAPSHOT_WINDOW))
        assert_int_equal(snap_session_stats(s).n_replay, rows);
    snap_go_on(&f->run, pool, s, to);
    assert_int_equal(snap_session_stats(s).n_replayed_rows,
                     flags & KVCSA_SNAPSHOT_WINDOW ? 0 : rows);
    assert_int_equal(snap_session_stats(s).n_exact_tokens, to);
    assert_ok(kvcsa_pool_check(pool, &err));
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
}

/* Around the window, ends of entries, and ends of blocks; with and without windows and logits. */
static void test_every_kind_of_length_continues_with_the_same_bits(void **state)
{
    static const uint64_t lengths[] = {0, 1, 15, 16, 17, 127, 128, 129, 190};
    static const uint32_t flags[] = {0, FULL, KVCSA_SNAPSHOT_WINDOW};
    const fixture        *f = *state;
    const snap_path       path = snap_in(&f->dir, "length");
    kvcsa_pool           *pool = host_pool(1, 0);
    kvcsa_session        *s = host_session(pool, f->model, 0);

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        if (lengths[i])
            snap_go_on(&f->run, pool, s, lengths[i]);
        for (size_t k = 0; k < sizeof flags / sizeof *flags; k++) {
            snap_save(s, path.text, NULL, flags[k]);
            check_load(f, path.text, lengths[i], flags[k], lengths[i] + 5);
        }
        snap_assert_untouched(&f->run, pool, s, lengths[i]); /* saving changes nothing */
    }
    snap_put_away(&path, s, pool);
}

/* Logits alone: the replay makes windows, the logits are there at once. */
static void test_logits_without_windows(void **state)
{
    const fixture  *f = *state;
    const snap_path path = snap_in(&f->dir, "logits");

    snap_save(f->saver, path.text, NULL, KVCSA_SNAPSHOT_LOGITS);
    check_load(f, path.text, N, KVCSA_SNAPSHOT_LOGITS, N + 3);
    assert_int_equal(unlink(path.text), 0);
}

/* Without stored logits a step of a session without a queue brings them back. */
static void test_a_step_rebuilds_logits_after_a_load(void **state)
{
    const fixture  *f = *state;
    const snap_path path = snap_in(&f->dir, "step");
    float           logits[T1_VOCAB];

    for (uint32_t flags = 0; flags <= KVCSA_SNAPSHOT_WINDOW; flags += KVCSA_SNAPSHOT_WINDOW) {
        kvcsa_pool    *pool = host_pool(1, 0);
        kvcsa_session *s = host_session(pool, f->model, 0);

        snap_save(f->saver, path.text, NULL, flags);
        snap_load(s, path.text, NULL, 0);
        host_step(pool, s);
        host_logits(s, logits, T1_VOCAB);
        assert_memory_equal(logits, snap_row(&f->run, N - 1), sizeof logits);
        snap_assert_untouched(&f->run, pool, s, N);
        snap_go_on(&f->run, pool, s, N + 3);
        kvcsa_session_release(&s);
        host_pool_is_idle(pool);
        kvcsa_pool_release(&pool);
    }
    assert_int_equal(unlink(path.text), 0);
}

/* Saved, loaded and saved again: the same bytes. Whatever the loader did not need is not lost. */
static void test_saving_again_gives_the_same_bytes(void **state)
{
    const fixture  *f = *state;
    const snap_path a = snap_in(&f->dir, "a"), b = snap_in(&f->dir, "b");
    kvcsa_pool     *pool = host_pool(1, 0);
    kvcsa_session  *s = host_session(pool, f->model, 0);

    snap_save(f->saver, a.text, NULL, FULL);
    snap_load(s, a.text, NULL, 0);
    snap_save(s, b.text, NULL, FULL);
    snap_assert_files_equal(a.text, b.text);
    snap_save(f->saver, a.text, NULL, 0);
    snap_load(s, a.text, NULL, 0);
    snap_save(s, b.text, NULL, 0); /* before the windows are rebuilt */
    snap_assert_files_equal(a.text, b.text);
    assert_int_equal(unlink(a.text), 0);
    snap_put_away(&b, s, pool);
}

/* A session rewound, forked and run on is saved like one that was not. */
static void test_a_session_with_a_past_is_saved_alike(void **state)
{
    const fixture  *f = *state;
    const snap_path a = snap_in(&f->dir, "a"), b = snap_in(&f->dir, "b");
    kvcsa_pool     *pool = host_pool(1, 0);
    kvcsa_session  *s = snap_session(&f->run, pool, f->model, 263), *fork = NULL;
    kvcsa_error     err;

    assert_ok(kvcsa_session_fork(s, 250, NULL, &fork, &err));
    kvcsa_session_release(&s);
    assert_ok(kvcsa_session_rewind(fork, 131, &err));
    snap_go_on(&f->run, pool, fork, N);
    snap_save(f->saver, a.text, NULL, KVCSA_SNAPSHOT_LOGITS);
    snap_save(fork, b.text, NULL, KVCSA_SNAPSHOT_LOGITS);
    snap_assert_files_equal(a.text, b.text);
    /* between a rewind and the step that rebuilds: no windows, no logits to save */
    assert_ok(kvcsa_session_rewind(fork, 140, &err));
    assert_int_equal(snap_save(fork, b.text, NULL, FULL).sections, 0);
    check_load(f, b.text, 140, 0, 145);
    assert_int_equal(unlink(a.text), 0);
    snap_put_away(&b, fork, pool);
}

/* Queued tokens are not saved, and stay queued. */
static void test_queued_tokens_stay_queued(void **state)
{
    const fixture              *f = *state;
    const snap_path             path = snap_in(&f->dir, "queued");
    const kvcsa_snapshot_params p = snap_params(NULL, 0);
    kvcsa_pool                 *pool = host_pool(1, 0);
    kvcsa_session              *s = snap_session(&f->run, pool, f->model, 50);
    kvcsa_error                 err;

    assert_ok(kvcsa_session_append(s, f->run.ids + 50, 10, NULL, NULL, &err));
    assert_int_equal(snap_save(s, path.text, NULL, 0).n_tokens, 50);
    assert_fails(kvcsa_snapshot_load(s, path.text, &p, NULL, &err), KVCSA_ERR_ARG, "queue");
    assert_int_equal(snap_session_stats(s).n_queued, 10);
    host_step(pool, s);
    snap_assert_untouched(&f->run, pool, s, 60);
    snap_load(s, path.text, NULL, 0);
    snap_go_on(&f->run, pool, s, 60);
    snap_put_away(&path, s, pool);
}

/* The pool knows the blocks: they are shared, and counted as such. */
static void test_blocks_that_the_pool_knows_are_shared(void **state)
{
    const fixture      *f = *state;
    const snap_path     path = snap_in(&f->dir, "known");
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *a = snap_session(&f->run, pool, f->small, N);
    kvcsa_session      *b = host_session(pool, f->small, 0);
    kvcsa_pool_stats    before, after;
    kvcsa_snapshot_info info;

    snap_save(f->small_saver, path.text, NULL, 0);
    before = snap_pool_stats(pool);
    info = snap_load(b, path.text, NULL, 0);
    after = snap_pool_stats(pool);
    assert_int_equal(info.n_shared_records, N / 16);
    assert_int_equal(after.n_sealed_blocks, before.n_sealed_blocks);
    assert_true(after.n_loaded_records - before.n_loaded_records < 4); /* no sealed block */
    snap_go_on(&f->run, pool, b, N + 5);
    snap_go_on(&f->run, pool, a, N + 5);
    kvcsa_session_release(&a);
    kvcsa_session_release(&b);
    /* and after a load into an empty pool others find them */
    kvcsa_pool_release(&pool);
    pool = host_pool(1, 0);
    a = host_session(pool, f->small, 0);
    info = snap_load(a, path.text, NULL, 0);
    assert_int_equal(info.n_shared_records, 0);
    after = snap_pool_stats(pool);
    assert_int_equal(after.n_published_blocks, N / 16);
    assert_true(after.n_loaded_records >= N / 16);
    assert_true(after.n_loaded_bytes > N / 16 * 16 * 176); /* 176 bytes a token */
    assert_true(after.n_loaded_bytes <= info.total_bytes);
    kvcsa_session_release(&a);
    assert_int_equal(unlink(path.text), 0);
    kvcsa_pool_release(&pool);
}

/* ------------------------------------------------------------------ kinds of sessions */

/* Rings of other sizes: what the loader has room for, and what the saver had. A rewind within the
 * slack that both had is free afterwards. */
static void test_rings_of_other_sizes(void **state)
{
    static const uint32_t slacks[] = {0, 5, 45};
    const fixture        *f = *state;
    const snap_path       path = snap_in(&f->dir, "slack");

    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 3; k++) {
            const uint32_t back = slacks[i] < slacks[k] ? slacks[i] : slacks[k];
            kvcsa_pool    *pool = host_pool(1, 0), *other = host_pool(1, 0);
            kvcsa_session *s = session_with(pool, f->model, slacks[i], 0, 0, 0);
            kvcsa_session *t = session_with(other, f->model, slacks[k], 0, 0, 0);
            kvcsa_error    err;

            host_run(pool, s, f->run.ids, 141, NULL);
            snap_save(s, path.text, NULL, FULL);
            snap_load(t, path.text, NULL, 0);
            snap_assert_untouched(&f->run, other, t, 141);
            assert_ok(kvcsa_session_rewind(t, 141 - back, &err));
            snap_go_on(&f->run, other, t, 150);
            assert_int_equal(snap_session_stats(t).n_replayed_rows, 0);
            /* as far as the saver could have gone, as the loader says that it can, beyond both */
            snap_load(t, path.text, NULL, 0);
            assert_ok(kvcsa_session_rewind(t, 141 - slacks[i], &err));
            snap_go_on(&f->run, other, t, 143);
            assert_ok(kvcsa_session_rewind(t, 143 - slacks[k], &err));
            snap_go_on(&f->run, other, t, 144);
            assert_ok(kvcsa_session_rewind(t, 90, &err));
            snap_go_on(&f->run, other, t, 92);
            kvcsa_session_release(&s);
            kvcsa_session_release(&t);
            kvcsa_pool_release(&pool);
            kvcsa_pool_release(&other);
        }
    assert_int_equal(unlink(path.text), 0);
}

/* Entries from 100 on are approximate. They stay so, and nobody else gets them. */
static void test_approximate_entries_stay_approximate(void **state)
{
    const fixture      *f = *state;
    const snap_path     path = snap_in(&f->dir, "approximate");
    kvcsa_pool         *pool = host_pool(1, 0), *other = host_pool(1, 0);
    kvcsa_session      *s = session_with(pool, f->small, 0, KVCSA_REUSE_BOUNDED, 0, 0);
    kvcsa_session      *t = host_session(other, f->small, 0), *u;
    host_rows           a = host_rows_make(8, T1_VOCAB), b = host_rows_make(8, T1_VOCAB);
    kvcsa_snapshot_info info;
    uint64_t            exact;
    kvcsa_error         err;

    host_run(pool, s, f->run.ids, 110, NULL);
    assert_ok(kvcsa_session_rewind(s, 100, &err));
    host_run(pool, s, f->run.ids + 100, 100, NULL);
    exact = snap_session_stats(s).n_exact_tokens;
    assert_in_range(exact, 90, 100);
    assert_int_equal(snap_save(s, path.text, NULL, FULL).exact, 0);
    info = snap_load(t, path.text, NULL, 0);
    assert_int_equal(info.exact, 0);
    snap_assert_tokens(&f->run, t, N);
    assert_int_equal(snap_session_stats(t).n_exact_tokens, exact);
    assert_int_equal(match(f, other, 0), 96); /* the blocks in front */
    a.next = b.next = N;
    host_run(pool, s, f->run.ids + N, 8, &a);
    host_run(other, t, f->run.ids + N, 8, &b);
    assert_memory_equal(a.data, b.data, a.n * T1_VOCAB * sizeof(float));
    assert_memory_not_equal(a.data, snap_row(&f->run, N), a.n * T1_VOCAB * sizeof(float));
    /* saved once more, without windows, and into a pool that knows the right blocks */
    assert_int_equal(snap_save(t, path.text, NULL, 0).exact, 0);
    u = host_session(f->pool, f->small, 0);
    info = snap_load(u, path.text, NULL, 0);
    assert_int_equal(info.exact, 0);
    assert_int_equal(info.n_shared_records, 6);
    assert_int_equal(snap_session_stats(u).n_exact_tokens, exact);
    assert_int_equal(match(f, f->pool, 0), N / 16 * 16); /* the right ones are still found */
    kvcsa_session_release(&u);
    free(a.data);
    free(b.data);
    assert_int_equal(unlink(path.text), 0);
    kvcsa_session_release(&s);
    kvcsa_session_release(&t);
    kvcsa_pool_release(&pool);
    kvcsa_pool_release(&other);
}

/* Right after a bounded replay (0), with no token behind it (2), or after a prefill with decoder
 * replay (1): windows are approximate. What goes on from them is not exact, there as here. */
static void check_approximate_windows(const fixture *f, int kind)
{
    static const uint64_t lengths[] = {70, 90, 139}; /* soon after, where it shows, and late */
    const snap_path      path = snap_in(&f->dir, "windows");
    kvcsa_pool          *pool = host_pool(1, 0), *other = host_pool(1, 0);
    host_rows            a = host_rows_make(8, T1_VOCAB), b = host_rows_make(8, T1_VOCAB);
    kvcsa_session_params p;
    kvcsa_session       *s = NULL, *t = NULL, *u;
    uint64_t             n = 60;
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.window_store_tokens = 16;
    p.mode = KVCSA_MODE_FAST; /* an exact one would rebuild them */
    assert_ok(kvcsa_session_create(other, f->small, &p, &t, &err));
    assert_ok(kvcsa_session_create(pool, f->small, &p, &s, &err));
    if (kind == 1) {
        host_run(pool, s, f->run.ids, n, NULL);
    } else {
        for (n = 0; n < 110; n += 10) /* too short for decoder replay */
            host_run(pool, s, f->run.ids + n, 10, NULL);
        assert_ok(kvcsa_session_rewind(s, 100, &err));
        n = kind == 0 ? 103 : 100;
        if (kind == 0)
            host_run(pool, s, f->run.ids + 100, 3, NULL);
        else
            host_step(pool, s);
    }
    snap_save(s, path.text, NULL, FULL);
    snap_load(t, path.text, NULL, 0);
    assert_int_equal(snap_session_stats(t).n_exact_tokens, snap_session_stats(s).n_exact_tokens);
    a.next = b.next = n;
    host_run(pool, s, f->run.ids + n, 8, &a);
    host_run(other, t, f->run.ids + n, 8, &b);
    assert_int_equal(a.n, 8);
    assert_memory_equal(a.data, b.data, 8 * T1_VOCAB * sizeof(float));
    assert_memory_not_equal(a.data, snap_row(&f->run, n), 8 * T1_VOCAB * sizeof(float));
    /* decoder replay leaves out layers that own no entries */
    assert_in_range(snap_session_stats(t).n_exact_tokens, kind == 1 ? 68 : 96,
                    kind == 1 ? 68 : 100);
    assert_int_equal(snap_session_stats(t).n_exact_tokens, snap_session_stats(s).n_exact_tokens);
    assert_int_equal(snap_session_stats(t).n_replayed_rows, 0);
    /* nor are they kept beside a block: who takes the blocks makes windows of its own */
    host_run(other, t, f->run.ids + n + 8, 130 - n, NULL);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        u = snap_session(&f->run, other, f->small, lengths[i]);
        snap_assert_untouched(&f->run, other, u, lengths[i]);
        kvcsa_session_release(&u);
    }
    free(a.data);
    free(b.data);
    assert_int_equal(unlink(path.text), 0);
    kvcsa_session_release(&s);
    kvcsa_session_release(&t);
    kvcsa_pool_release(&pool);
    kvcsa_pool_release(&other);
}

static void test_approximate_windows_stay_approximate(void **state)
{
    check_approximate_windows(*state, 0);
    check_approximate_windows(*state, 1);
    check_approximate_windows(*state, 2);
}

/* What is loaded belongs to the salt of the session that loads, whatever salt it was saved under,
 * and is published only if that session's blocks are. */
static void test_salt_and_privacy_are_the_loaders(void **state)
{
    const fixture  *f = *state;
    const snap_path path = snap_in(&f->dir, "salt");
    kvcsa_pool     *pool = host_pool(1, 0);
    kvcsa_session  *quiet = session_with(pool, f->small, 0, 0, 0, KVCSA_SESSION_PRIVATE);
    kvcsa_session  *salted = session_with(pool, f->small, 0, 0, 7, 0);

    assert_int_equal(snap_save(f->small_saver, path.text, NULL, 0).salt, 0);
    snap_load(quiet, path.text, NULL, 0);
    assert_int_equal(match(f, pool, 0), 0);
    snap_go_on(&f->run, pool, quiet, N + 3);
    snap_load(salted, path.text, NULL, 0);
    assert_int_equal(match(f, pool, 0), 0);
    assert_int_equal(match(f, pool, 7), N / 16 * 16);
    snap_go_on(&f->run, pool, salted, N + 3);
    assert_int_equal(snap_save(salted, path.text, NULL, 0).salt, 7);
    kvcsa_session_release(&quiet);
    kvcsa_session_release(&salted);
    assert_int_equal(unlink(path.text), 0);
    kvcsa_pool_release(&pool);
}

typedef struct events {
    uint64_t n[KVCSA_TRACE_LOAD + 1], bytes[KVCSA_TRACE_LOAD + 1];
} events;

static void take_event(void *user, const kvcsa_trace_event *e)
{
    events *ev = user;

    if (e->kind <= KVCSA_TRACE_LOAD) {
        ev->n[e->kind]++;
        ev->bytes[e->kind] += e->n_bytes;
    }
}

static void test_trace_and_counters_tell_what_was_moved(void **state)
{
    const fixture      *f = *state;
    snap_dir            d = snap_dir_make_in(&f->dir, "trace");
    events              ev = {0};
    const kvcsa_trace   trace = {take_event, &ev};
    kvcsa_pool_params   pp;
    kvcsa_pool         *pool = NULL;
    kvcsa_session      *s, *t;
    kvcsa_snapshot_info saved;
    kvcsa_error         err;

    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.trace = &trace;
    pp.n_threads = 1;
    assert_ok(kvcsa_pool_create(&pp, &pool, &err));
    s = snap_session(&f->run, pool, f->small, 100);
    saved = snap_save(s, d.path, NULL, 0);
    assert_int_equal(ev.n[KVCSA_TRACE_SAVE], 1);
    assert_int_equal(ev.bytes[KVCSA_TRACE_SAVE], saved.written_bytes);
    assert_int_equal(saved.written_bytes, snap_dir_bytes(&d));
    kvcsa_session_release(&s);
    assert_ok(kvcsa_pool_trim(pool, 0, NULL, &err));
    t = host_session(pool, f->small, 0);
    snap_load(t, d.path, NULL, 0);
    assert_int_equal(ev.n[KVCSA_TRACE_LOAD], 1);
    assert_int_equal(ev.bytes[KVCSA_TRACE_LOAD], snap_pool_stats(pool).n_loaded_bytes);
    assert_true(snap_pool_stats(pool).n_loaded_bytes <= saved.written_bytes);
    assert_true(snap_pool_stats(pool).n_loaded_bytes > 7 * SNAP_PAGE);
    kvcsa_session_release(&t);
    kvcsa_pool_release(&pool);
    snap_dir_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_of_length_continues_with_the_same_bits),
        cmocka_unit_test(test_logits_without_windows),
        cmocka_unit_test(test_a_step_rebuilds_logits_after_a_load),
        cmocka_unit_test(test_saving_again_gives_the_same_bytes),
        cmocka_unit_test(test_a_session_with_a_past_is_saved_alike),
        cmocka_unit_test(test_queued_tokens_stay_queued),
        cmocka_unit_test(test_blocks_that_the_pool_knows_are_shared),
        cmocka_unit_test(test_rings_of_other_sizes),
        cmocka_unit_test(test_approximate_entries_stay_approximate),
        cmocka_unit_test(test_approximate_windows_stay_approximate),
        cmocka_unit_test(test_salt_and_privacy_are_the_loaders),
        cmocka_unit_test(test_trace_and_counters_tell_what_was_moved),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
