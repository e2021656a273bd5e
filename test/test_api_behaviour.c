/* What users of such libraries run into, one test a row of the table in test/README.md: sessions,
 * prefixes, fork and rewind, through the public header, on the random checkpoint T1. Threads:
 * test_api_threads.c. */
#include <stdio.h>
#include <unistd.h>

#include "support/cold_fixture.h"
#include "support/fault_alloc.h"

#define N 330 /* two full blocks and a tail; many windows */

static int set_up(void **state)
{
    *state = fixture_make(N, 501);
    return 0;
}

/* A pool in which the first full blocks of the cold run can be found. */
static kvcsa_pool *make_known(const fixture *f, uint64_t n, uint32_t store)
{
    kvcsa_pool          *pool = host_pool(2, 0);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s;

    p.window_store_tokens = store;
    s = make_session(pool, f->model, &p);
    cold_extend(&f->cold, pool, s, n);
    kvcsa_session_release(&s);
    assert_int_equal(pool_figures(pool).n_published_blocks, n / T1_BLOCK);
    return pool;
}

/* ------------------------------------------------------------------ fork, rewind */

/* 6: fork of the first half: no copy, blocks counted once, exact. */
static void test_behaviour_06(void **state)
{
    const fixture   *f = *state;
    kvcsa_pool      *pool = host_pool(2, 0);
    kvcsa_session   *s = host_session(pool, f->model, 0), *half, *whole;
    kvcsa_pool_stats before;

    cold_extend(&f->cold, pool, s, 200);
    before = pool_figures(pool);
    half = fork_session(s, 100);
    whole = fork_session(s, 200);
    assert_int_equal(pool_figures(pool).used_bytes, before.used_bytes);
    assert_int_equal(pool_figures(pool).n_acquired, before.n_acquired);
    assert_int_equal(pool_figures(pool).n_copied_blocks + pool_figures(pool).n_copied_pages, 0);
    assert_int_equal(session_figures(half).n_blocks, 1);
    assert_int_equal(session_figures(half).n_replay, 100); /* later, when it is stepped */
    assert_int_equal(session_figures(whole).n_replay, 0);
    cold_check(&f->cold, whole);
    cold_extend(&f->cold, pool, half, 120);
    cold_extend(&f->cold, pool, whole, 210);
    cold_extend(&f->cold, pool, s, 220);
    kvcsa_session_release(&s);
    kvcsa_session_release(&half);
    kvcsa_session_release(&whole);
    close_pool(pool);
}

/* 7: 700 tokens; back to 695, 100, 3 and on again. */
static void test_behaviour_07(void **state)
{
    static const uint64_t positions[] = {695, 100, 3};
    const fixture        *f = *state;
    kvcsa_pool           *pool = host_pool(2, 0);
    cold                  c = cold_run(f->model, 700, 502);
    kvcsa_session        *s = host_session(pool, f->model, 0);

    cold_reuse(&c, pool, s, 700, KVCSA_REUSE_EXACT);
    for (size_t i = 0; i < 3; i++) {
        kvcsa_reuse r;

        rewind_session(s, positions[i]);
        cold_extend(&c, pool, s, cold_min(positions[i] + 40, 700)); /* computed, every row */
        r = cold_sync(&c, pool, s, 700); /* and with what is known by now */
        assert_int_equal(r.n_kept + r.n_adopted + r.n_compute, 700);
    }
    kvcsa_session_release(&s);
    close_pool(pool);
    cold_free(&c);
}

/* 8: dropping tokens from the middle and shifting the rest is not offered; saying the new list
 * computes what comes behind the gap, to the bits of a run that never had it. */
static void test_behaviour_08(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = host_session(pool, f->model, 0);
    int32_t        ids[110];
    cold           c;
    kvcsa_reuse    r;

    memcpy(ids, f->cold.ids, 10 * sizeof *ids);
    memcpy(ids + 10, f->cold.ids + 100, 100 * sizeof *ids);
    c = cold_run_of(f->model, ids, 110);
    cold_extend(&f->cold, pool, s, 200);
    r = cold_sync(&c, pool, s, 110);
    assert_int_equal(r.n_kept, 10);
    assert_int_equal(r.n_compute, 100);
    kvcsa_session_release(&s);
    close_pool(pool);
    cold_free(&c);
}

/* 28: 500 times back and on in four sessions that share: stable, and nothing grows. */
static void test_behaviour_28(void **state)
{
    const fixture    *f = *state;
    fault_alloc       fa;
    kvcsa_pool_params pp;
    kvcsa_pool       *pool = NULL;
    kvcsa_session    *s[4];
    size_t            early = 0, most = 0;
    uint32_t          x = 99;
    kvcsa_error       err;

    fault_alloc_init(&fa);
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &fa.hook;
    pp.n_threads = 2;
    pp.flags = KVCSA_POOL_FILL_FREED;
    assert_ok(kvcsa_pool_create(&pp, &pool, &err));
    for (int k = 0; k < 4; k++) {
        kvcsa_session_params p = session_defaults();

        p.window_slack_tokens = k < 3 ? 16 : 0;
        p.reuse = k == 3 ? KVCSA_REUSE_BOUNDED : KVCSA_REUSE_EXACT;
        s[k] = make_session(pool, f->model, &p);
        host_run(pool, s[k], f->cold.ids, 150, NULL); /* as long as they will be */
        rewind_session(s[k], 140);
    }
    for (int i = 0; i < 500; i++) {
        kvcsa_session *t = s[i % 4];
        const uint64_t n = kvcsa_session_length(t);

        x = x * 1664525u + 1013904223u;
        rewind_session(t, i % 200 < 4 ? 60 : n - (x >> 16) % 5); /* now and then far */
        x = x * 1664525u + 1013904223u;
        if (kvcsa_session_length(t) < 140)
            host_run(pool, t, f->cold.ids + kvcsa_session_length(t),
                     i % 200 < 4 ? 85 : 1 + (x >> 16) % 8, NULL);
        most = fa.n_bytes > most ? fa.n_bytes : most;
        if (i == 100)
            early = most;
        if (i % 50 == 0)
            check_pool(pool);
    }
    assert_true(most <= early + 65536);
    for (int k = 0; k < 4; k++) {
        if (k < 3)
            cold_extend(&f->cold, pool, s[k], 145);
        kvcsa_session_release(&s[k]);
    }
    close_pool(pool);
    assert_true(fault_alloc_is_clean(&fa));
}

/* n tokens into s, all rows of logits into rows from its length on; computed by the next step. */
static void queue_rows(kvcsa_session *s, const int32_t *ids, uint64_t n, host_rows *rows)
{
    kvcsa_append_params p;
    kvcsa_error         err;

    *rows = host_rows_make(n, T1_VOCAB);
    rows->next = kvcsa_session_length(s);
    kvcsa_append_params_default(&p, sizeof p);
    p.logits = KVCSA_LOGITS_ALL;
    p.on_logits = host_rows_take;
    p.user = rows;
    assert_ok(kvcsa_session_append(s, ids, n, &p, NULL, &err));
}

/* k drafts in k + 1 forks, of which j = 0..k are accepted, then n plain steps at a time. */
static void draft(const fixture *f, kvcsa_pool *pool, kvcsa_session *base, uint64_t k, uint64_t n)
{
    const uint64_t at = kvcsa_session_length(base);
    kvcsa_session *s[17];
    host_rows      rows[17];
    int32_t        drafts[17];
    kvcsa_error    err;

    for (uint64_t j = 0; j <= k; j++) {
        s[j] = fork_session(base, at);
        memcpy(drafts, f->cold.ids + at, k * sizeof *drafts);
        for (uint64_t i = j; i < k; i++) /* wrong ones */
            drafts[i] = drafts[i] == 9 ? 10 : 9;
        queue_rows(s[j], drafts, k, &rows[j]);
    }
    assert_ok(kvcsa_pool_step(pool, s, k + 1, NULL, NULL, &err));
    for (uint64_t j = 0; j <= k; j++) {
        cold_check_rows(&f->cold, at, rows[j].data, j); /* rows of the right ones */
        free(rows[j].data);
        rewind_session(s[j], at + j);
    }
    for (uint64_t done = 0; done < 20; done += n) {
        for (uint64_t j = 0; j <= k; j++)
            queue_rows(s[j], f->cold.ids + at + j + done, n, &rows[j]);
        assert_ok(kvcsa_pool_step(pool, s, k + 1, NULL, NULL, &err));
        for (uint64_t j = 0; j <= k; j++) {
            assert_true(rows[j].in_order && rows[j].n == n);
            cold_check_rows(&f->cold, at + j + done, rows[j].data, n);
            free(rows[j].data);
        }
    }
    for (uint64_t j = 0; j <= k; j++) {
        const kvcsa_session_stats st = session_figures(s[j]);

        assert_int_equal(st.n_tokens, at + j + 20);
        assert_int_equal(st.n_entries, (at + j + 20) / 2 * 2 + at + j + 20);
        assert_int_equal(st.n_replayed_rows, 0);
        assert_int_equal(st.n_exact_tokens, at + j + 20);
        kvcsa_session_release(&s[j]);
    }
}

/* 53: k drafts, j of them accepted, then 20 plain steps. */
static void test_behaviour_53(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = host_pool(2, 0);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *base, *s = NULL;
    kvcsa_error          err;

    p.window_slack_tokens = 16;
    base = make_session(pool, f->model, &p);
    cold_extend(&f->cold, pool, base, 121); /* odd; drafts cross the end of the block */
    for (uint64_t k = 1; k <= 16; k++)
        draft(f, pool, base, k, k == 1 || k == 7 ? 1 : 20);
    check_pool(pool);
    kvcsa_session_release(&base);
    p.window_slack_tokens = 4097; /* beyond what a ring may have */
    assert_fails(kvcsa_session_create(pool, f->model, &p, &s, &err), KVCSA_ERR_ARG, "slack");
    assert_null(s);
    close_pool(pool);
}

typedef struct drafter {
    cold           cold;
    kvcsa_session *s;
    host_rows      rows;
} drafter;

/* 56: three sessions in one step, each with drafts of its own, 50 rounds. */
static void test_behaviour_56(void **state)
{
    enum { K = 3, ROUNDS = 50 };
    const fixture       *f = *state;
    kvcsa_pool          *pool = host_pool(2, 0);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s[K];
    drafter              d[K];
    uint32_t             x = 1;
    kvcsa_error          err;

    p.window_slack_tokens = 6;
    for (int k = 0; k < K; k++) {
        d[k].cold = cold_run(f->model, 180, 510 + (uint64_t)k);
        s[k] = d[k].s = make_session(pool, f->model, &p);
    }
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t n[K], right[K], at[K];

        for (int k = 0; k < K; k++) {
            kvcsa_append_params ap;
            int32_t             ids[6];

            x = x * 1664525u + 1013904223u;
            n[k] = 1 + (x >> 16) % 6;
            right[k] = 1 + (x >> 24) % n[k];
            right[k] = right[k] > 3 ? 3 : right[k];
            at[k] = kvcsa_session_length(s[k]);
            for (uint64_t i = 0; i < n[k]; i++)
                ids[i] = i < right[k] ? d[k].cold.ids[at[k] + i] : 7;
            d[k].rows = host_rows_make(n[k], T1_VOCAB);
            d[k].rows.next = at[k];
            kvcsa_append_params_default(&ap, sizeof ap);
            ap.logits = KVCSA_LOGITS_ALL;
            ap.on_logits = host_rows_take;
            ap.user = &d[k].rows;
            assert_ok(kvcsa_session_append(s[k], ids, n[k], &ap, NULL, &err));
        }
        assert_ok(kvcsa_pool_step(pool, s, K, NULL, NULL, &err));
        for (int k = 0; k < K; k++) {
            cold_check_rows(&d[k].cold, at[k], d[k].rows.data, right[k]);
            free(d[k].rows.data);
            rewind_session(s[k], at[k] + right[k]);
        }
    }
    for (int k = 0; k < K; k++) {
        assert_int_equal(session_figures(s[k]).n_replayed_rows, 0);
        cold_extend(&d[k].cold, pool, s[k], kvcsa_session_length(s[k]) + 5);
        kvcsa_session_release(&s[k]);
        cold_free(&d[k].cold);
    }
    close_pool(pool);
}

/* ------------------------------------------------------------------ known prefixes */

/* 17: a new session is empty whatever is known; an append says what it took. */
static void test_behaviour_17(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = make_known(f, 260, 0);
    kvcsa_session *s = host_session(pool, f->model, 0);
    kvcsa_reuse    r = session_reuse(s);
    size_t         n = 0;
    kvcsa_error    err;

    assert_int_equal(kvcsa_session_length(s), 0);
    assert_int_equal(r.n_kept + r.n_adopted + r.n_replay + r.n_compute, 0);
    assert_int_equal(session_figures(s).block_bytes, 0);
    assert_ok(kvcsa_prefix_match(pool, f->model, 0, f->cold.ids, N, &n, &err)); /* only looks */
    assert_int_equal(n, 256);
    assert_int_equal(session_figures(s).n_adopted_tokens, 0);
    assert_ok(kvcsa_session_append(s, f->cold.ids, 270, NULL, NULL, &err));
    r = session_reuse(s); /* before anything has run */
    assert_int_equal(r.n_adopted, 256);
    assert_int_equal(r.n_compute, 14);
    assert_int_equal(kvcsa_session_length(s), 0);
    host_step(pool, s);
    cold_check(&f->cold, s);
    assert_int_equal(session_figures(s).n_adopted_tokens, 256);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* 27: a prompt of many windows, and a turn of 10 tokens: 10 rows, and at most one replay. */
static void test_behaviour_27(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = make_known(f, 310, 0);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s = host_session(pool, f->model, 0);
    kvcsa_reuse          r;

    cold_reuse(&f->cold, pool, s, 300, KVCSA_REUSE_EXACT);
    r = cold_reuse(&f->cold, pool, s, 310, KVCSA_REUSE_EXACT); /* the same session */
    assert_int_equal(r.n_compute, 10);
    assert_int_equal(r.n_replay, 0);
    kvcsa_session_release(&s);
    s = host_session(pool, f->model, 0); /* another one, which has no windows */
    r = cold_reuse(&f->cold, pool, s, 266, KVCSA_REUSE_EXACT);
    assert_int_equal(r.n_compute, 10);
    assert_int_equal(r.n_replay, T1_REPLAY);
    kvcsa_session_release(&s);
    p.reuse = KVCSA_REUSE_BOUNDED;
    s = make_session(pool, f->model, &p);
    host_run(pool, s, f->cold.ids, 266, NULL);
    assert_int_equal(session_figures(s).n_computed_rows, 10);
    assert_int_equal(session_figures(s).n_replayed_rows, T1_WINDOW); /* one window */
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* 30: B begins like A and takes A's blocks while A goes on. */
static void test_behaviour_30(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    cold           b = cold_branch(&f->cold, 290, 40, 503);
    kvcsa_session *s[2] = {host_session(pool, f->model, 20), host_session(pool, f->model, 20)};
    kvcsa_error    err;

    cold_extend(&f->cold, pool, s[0], 270);
    assert_ok(kvcsa_session_append(s[0], f->cold.ids + 270, 60, NULL, NULL, &err));
    assert_ok(kvcsa_session_append(s[1], b.ids, 330, NULL, NULL, &err));
    assert_int_equal(session_reuse(s[1]).n_adopted, 256);
    assert_ok(kvcsa_pool_step(pool, s, 2, NULL, NULL, &err));
    cold_check(&f->cold, s[0]);
    cold_check(&b, s[1]);
    assert_int_equal(pool_figures(pool).n_sealed_blocks, 2); /* once */
    kvcsa_session_release(&s[0]);
    kvcsa_session_release(&s[1]);
    close_pool(pool);
    cold_free(&b);
}

/* 31: a hit of every length gives the bits of a cold run: windows by exact replay. */
static void test_behaviour_31_exact_replay(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = make_known(f, 256, 0);

    for (uint64_t hit = 0; hit <= 190; hit++) {
        kvcsa_session *s = host_session(pool, f->model, 0);

        if (hit) {
            const kvcsa_reuse r = cold_reuse(&f->cold, pool, s, hit, KVCSA_REUSE_EXACT);

            assert_int_equal(r.n_adopted, hit);
            assert_int_equal(r.n_replay, cold_min(hit, T1_REPLAY));
            assert_int_equal(r.n_compute, 0);
        }
        cold_extend(&f->cold, pool, s, hit + 2);
        assert_int_equal(session_figures(s).n_computed_rows, 2);
        kvcsa_session_release(&s);
    }
    close_pool(pool);
}

/* ... and with stored windows, which leave less to run again from the first of them on. */
static void test_behaviour_31_stored_window(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = make_known(f, 256, 128);

    for (uint64_t hit = 0; hit <= 190; hit += hit < 120 ? 13 : 1) {
        kvcsa_session *s = host_session(pool, f->model, 0);

        if (hit) {
            const kvcsa_reuse r = cold_reuse(&f->cold, pool, s, hit, KVCSA_REUSE_EXACT);

            assert_int_equal(r.n_adopted, hit);
            if (hit < 128)
                assert_int_equal(r.n_replay, hit);
            else if (hit > 128) /* at 128 itself: what the logits of its last row take */
                assert_int_equal(r.n_replay, hit - 128);
        }
        cold_extend(&f->cold, pool, s, hit + 2);
        kvcsa_session_release(&s);
    }
    close_pool(pool);
}

/* ... the bounded way is another function: stated, measurable, kept apart. */
static void test_behaviour_31_bounded(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = make_known(f, 256, 0);
    kvcsa_session_params p = session_defaults();
    uint32_t             other = 0;

    p.reuse = KVCSA_REUSE_BOUNDED;
    for (uint64_t hit = 1; hit <= 190; hit += 9) {
        kvcsa_session *s = make_session(pool, f->model, &p);
        float          logits[T1_VOCAB];
        kvcsa_reuse    r;

        host_run(pool, s, f->cold.ids, hit, NULL);
        r = session_reuse(s);
        assert_int_equal(r.how, KVCSA_REUSE_BOUNDED);
        assert_int_equal(r.n_adopted + r.n_compute, hit);
        assert_true(r.n_replay <= T1_WINDOW);
        host_run(pool, s, f->cold.ids + hit, 3, NULL);
        host_logits(s, logits, T1_VOCAB);
        if (hit <= T1_WINDOW)
            cold_check(&f->cold, s); /* run from the first token: exact */
        else
            other += memcmp(logits, f->cold.rows.data + (hit + 2) * T1_VOCAB, sizeof logits) != 0;
        assert_int_equal(session_figures(s).n_exact_tokens, hit <= T1_WINDOW ? hit + 3 : hit);
        kvcsa_session_release(&s);
    }
    assert_int_equal(other, 20); /* it can be seen in every longer one */
    close_pool(pool);
}

/* 36: which tokens are held, and how many of a list. */
static void test_behaviour_36(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = host_session(pool, f->model, 0), *t;
    int32_t        ids[N], got[N];
    size_t         n = 0;
    kvcsa_error    err;

    cold_extend(&f->cold, pool, s, 300);
    t = fork_session(s, 270);
    rewind_session(s, 140);
    memcpy(ids, f->cold.ids, sizeof ids);
    for (int i = 0; i < 2; i++) {
        kvcsa_session *x = i ? t : s;
        const size_t   length = i ? 270 : 140;

        assert_ok(kvcsa_session_get_tokens(x, 0, got, N, &n, &err));
        assert_int_equal(n, length);
        assert_memory_equal(got, ids, n * sizeof *got);
        assert_ok(kvcsa_session_get_tokens(x, 127, got, 3, &n, &err)); /* over a block's end */
        assert_int_equal(n, length - 127);
        assert_memory_equal(got, ids + 127, 3 * sizeof *got);
        assert_ok(kvcsa_session_common_prefix(x, ids, N, &n, &err));
        assert_int_equal(n, length);
        for (size_t at = 0; at < length; at += 1 + at / 3) {
            ids[at]++;
            assert_ok(kvcsa_session_common_prefix(x, ids, N, &n, &err));
            assert_int_equal(n, at);
            ids[at]--;
            assert_ok(kvcsa_session_common_prefix(x, ids, at, &n, &err));
            assert_int_equal(n, at);
        }
        assert_ok(kvcsa_session_append(x, ids + length, 2, NULL, NULL, &err));
        assert_ok(kvcsa_session_common_prefix(x, ids, N, &n, &err));
        assert_int_equal(n, length); /* queued is not held */
    }
    kvcsa_session_release(&s);
    kvcsa_session_release(&t);
    close_pool(pool);
}

/* 63: hits around one and two windows: what is kept, adopted, run again and computed. */
static void test_behaviour_63(void **state)
{
    static const uint64_t hits[] = {
        0, 1, T1_WINDOW - 1, T1_WINDOW, T1_WINDOW + 1, 2 * T1_WINDOW - 1, 2 * T1_WINDOW};
    const fixture      *f = *state;
    kvcsa_pool         *pool = make_known(f, 128, 0);
    kvcsa_append_params ap;
    kvcsa_error         err;

    for (size_t i = 0; i < sizeof hits / sizeof *hits; i++) {
        cold           c = cold_branch(&f->cold, hits[i], 9, 520 + i); /* then other tokens */
        kvcsa_session *s = host_session(pool, f->model, 0);
        kvcsa_reuse    r = cold_reuse(&c, pool, s, hits[i] + 9, KVCSA_REUSE_EXACT);

        assert_int_equal(r.n_kept, 0);
        assert_int_equal(r.n_adopted, hits[i]);
        assert_int_equal(r.n_replay, hits[i]); /* shorter than a replay: all of it */
        assert_int_equal(r.n_compute, 9);
        assert_int_equal(r.reason, hits[i] ? KVCSA_REASON_DIVERGED : KVCSA_REASON_UNKNOWN);
        kvcsa_session_release(&s);
        s = host_session(pool, f->model, 0);
        kvcsa_append_params_default(&ap, sizeof ap);
        ap.reuse = KVCSA_REUSE_BOUNDED;
        assert_ok(kvcsa_session_append(s, c.ids, hits[i] + 9, &ap, NULL, &err));
        r = session_reuse(s);
        host_step(pool, s);
        check_work(s, (counted){0}, &r);
        assert_int_equal(r.n_adopted, hits[i]);
        assert_int_equal(r.n_replay, cold_min(hits[i], T1_WINDOW));
        kvcsa_session_release(&s);
        cold_free(&c);
    }
    close_pool(pool);
}

/* ------------------------------------------------------------------ room */

/* 37: memory is that of the tokens held, whatever the limit is. */
static void test_behaviour_37(void **state)
{
    static const char *const limits[] = {"16384", "1048576"};
    const fixture           *f = *state;
    size_t                   bytes[2];

    for (int i = 0; i < 2; i++) {
        fault_alloc       fa;
        checkpoint        c;
        kvcsa_pool_params pp;
        kvcsa_pool       *pool = NULL;
        kvcsa_model      *m;
        kvcsa_session    *s;
        kvcsa_error       err;

        checkpoint_copy(&c, T1_DIR);
        checkpoint_edit_config(&c, "text_config/max_position_embeddings", limits[i]);
        m = host_model(c.dir);
        fault_alloc_init(&fa);
        kvcsa_pool_params_default(&pp, sizeof pp);
        pp.allocator = &fa.hook;
        pp.n_threads = 1;
        assert_ok(kvcsa_pool_create(&pp, &pool, &err));
        s = host_session(pool, m, 0);
        assert_int_equal(pool_figures(pool).used_bytes, 0);
        host_run(pool, s, f->cold.ids, 100, NULL);
        assert_int_equal(pool_figures(pool).used_bytes,
                         f->cost.block_bytes + pool_figures(pool).window_bytes);
        assert_true(pool_figures(pool).window_bytes <= f->cost.const_bytes + f->cost.pending_bytes);
        assert_true(pool_figures(pool).slab_bytes < 2 << 20);
        bytes[i] = fa.n_bytes;
        kvcsa_session_release(&s);
        kvcsa_pool_release(&pool);
        kvcsa_model_release(&m);
        assert_true(fault_alloc_is_clean(&fa));
        checkpoint_remove(&c);
    }
    assert_int_equal(bytes[0], bytes[1]);
}

/* 41: a pool full of prefixes that nobody uses makes room before it says full. */
static void test_behaviour_41(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool;
    kvcsa_session *s;
    cold           c = cold_branch(&f->cold, 0, 260, 504);
    kvcsa_error    err;

    pool = host_pool(2, f->cost.const_bytes + f->cost.pending_bytes + 3 * f->cost.block_bytes);
    s = host_session(pool, f->model, 0);
    cold_extend(&f->cold, pool, s, 300); /* three blocks: full */
    kvcsa_session_release(&s);
    assert_int_equal(pool_figures(pool).n_published_blocks, 2);
    assert_int_equal(pool_figures(pool).evictable_bytes, 2 * f->cost.block_bytes);
    s = host_session(pool, f->model, 0);
    assert_ok(kvcsa_session_append(s, c.ids, 260, NULL, NULL, &err)); /* needs all of it */
    assert_int_equal(pool_figures(pool).n_evicted_blocks, 2);
    assert_fails(kvcsa_session_append(s, c.ids, 200, NULL, NULL, &err), KVCSA_ERR_FULL, "budget");
    host_step(pool, s);
    cold_check(&c, s);
    assert_true(pool_figures(pool).used_bytes <= pool_figures(pool).budget_bytes);
    kvcsa_session_release(&s);
    close_pool(pool);
    cold_free(&c);
}

/* 58: trim takes prefixes that nobody holds, never a byte of a session. */
static void test_behaviour_58(void **state)
{
    const fixture      *f = *state;
    kvcsa_pool         *pool = make_known(f, 256, 128);
    kvcsa_session      *s = host_session(pool, f->model, 0);
    kvcsa_session_stats before, after;
    uint64_t            freed = 0;
    cold                c = cold_branch(&f->cold, 0, 150, 505);
    kvcsa_error         err;

    cold_extend(&c, pool, s, 145);
    before = session_figures(s);
    assert_int_equal(pool_figures(pool).n_published_blocks, 3);
    assert_ok(kvcsa_pool_trim(pool, 0, &freed, &err));
    check_pool(pool);
    after = session_figures(s);
    assert_int_equal(after.n_tokens, before.n_tokens);
    assert_int_equal(after.n_entries, before.n_entries);
    assert_int_equal(after.block_bytes, before.block_bytes);
    assert_int_equal(after.window_bytes, before.window_bytes);
    assert_int_equal(pool_figures(pool).used_bytes,
                     after.block_bytes + pool_figures(pool).window_bytes);
    assert_int_equal(pool_figures(pool).evictable_bytes, 0);
    assert_int_equal(pool_figures(pool).n_evicted_blocks, 2);
    cold_extend(&c, pool, s, 150);
    kvcsa_session_release(&s);
    assert_ok(kvcsa_pool_trim(pool, 0, &freed, &err));
    assert_int_equal(pool_figures(pool).used_bytes, 0);
    assert_int_equal(pool_figures(pool).slab_bytes, 0);
    assert_true(freed > 0);
    close_pool(pool);
    cold_free(&c);
}

/* A little of everything; the bits of all logits on the way. */
static uint64_t live(const fixture *f, uint32_t flags)
{
    kvcsa_pool_params pp;
    kvcsa_pool       *pool = NULL;
    kvcsa_session    *s, *t;
    uint64_t          h = 14695981039346656037u;
    float             logits[T1_VOCAB];
    kvcsa_error       err;

    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.n_threads = 2;
    pp.flags = flags;
    pp.budget_bytes = 8 * f->cost.block_bytes;
    assert_ok(kvcsa_pool_create(&pp, &pool, &err));
    for (int i = 0; i < 2; i++) { /* the second time in used memory */
        const uint8_t *bytes = (const uint8_t *)logits;

        s = host_session(pool, f->model, 0);
        cold_reuse(&f->cold, pool, s, 131, KVCSA_REUSE_DEFAULT);
        t = fork_session(s, 100);
        rewind_session(s, 60);
        cold_extend(&f->cold, pool, s, 63);
        host_run(pool, t, f->cold.ids + 200, 31, NULL);
        host_logits(t, logits, T1_VOCAB);
        for (size_t k = 0; k < sizeof logits; k++)
            h = (h ^ bytes[k]) * 1099511628211u;
        kvcsa_session_release(&s);
        kvcsa_session_release(&t);
        assert_ok(kvcsa_pool_trim(pool, 0, NULL, &err));
    }
    close_pool(pool);
    return h;
}

/* 65: what freed memory holds does not matter. */
static void test_behaviour_65(void **state)
{
    const fixture *f = *state;
    const uint64_t plain = live(f, 0);

    assert_true(live(f, KVCSA_POOL_FILL_FREED) == plain);
    assert_true(live(f, KVCSA_POOL_ZERO_FREED) == plain);
}

/* ------------------------------------------------------------------ steps, silence */

/* 54: however the tokens are cut into appends and chunks. */
static void test_behaviour_54(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    uint32_t       x = 5;

    for (int way = 0; way < 4; way++) { /* one row at a time, then at random */
        kvcsa_session *s = host_session(pool, f->model, way == 0 ? 1 : 100);

        while (kvcsa_session_length(s) < 300) {
            const uint64_t n = kvcsa_session_length(s);

            x = x * 1664525u + 1013904223u;
            cold_extend(&f->cold, pool, s, way ? cold_min(n + 1 + (x >> 16) % 60, 300) : 300);
        }
        assert_int_equal(session_figures(s).n_computed_rows, 300);
        kvcsa_session_release(&s);
    }
    close_pool(pool);
}

/* 49: a long prefill that is cancelled: as before it, and the retry finds what had been sealed. */
static int32_t stop_at_280(void *user, kvcsa_session *session, uint64_t n_done, uint64_t n_queued)
{
    (void)user;
    (void)session;
    (void)n_queued;
    return n_done >= 240; /* of the append, which begins at 40 */
}

static void test_behaviour_49(void **state)
{
    const fixture      *f = *state;
    kvcsa_pool         *pool = host_pool(2, 0);
    kvcsa_session      *s = host_session(pool, f->model, 40);
    kvcsa_step_params   sp;
    kvcsa_step_result   res;
    kvcsa_session_stats before, after;
    kvcsa_reuse         r;
    kvcsa_error         err;

    cold_extend(&f->cold, pool, s, 40);
    before = session_figures(s);
    kvcsa_step_params_default(&sp, sizeof sp);
    sp.progress = stop_at_280;
    assert_ok(kvcsa_session_append(s, f->cold.ids + 40, 290, NULL, NULL, &err));
    assert_fails(kvcsa_pool_step(pool, &s, 1, &sp, &res, &err), KVCSA_ERR_CANCELLED, "cancelled");
    assert_int_equal(res.n_queued, 0);
    after = session_figures(s);
    assert_int_equal(after.n_tokens, 40);
    assert_int_equal(after.n_queued, 0);
    assert_int_equal(after.n_blocks, 1);
    assert_int_equal(after.window_bytes, before.window_bytes);
    assert_int_equal(pool_figures(pool).reserved_bytes, 0);
    cold_check(&f->cold, s);
    check_pool(pool);
    r = cold_reuse(&f->cold, pool, s, 330, KVCSA_REUSE_DEFAULT);
    assert_int_equal(r.n_kept, 40);
    assert_int_equal(r.n_adopted, 216);
    assert_int_equal(r.n_replay, T1_REPLAY);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* 50: without a log callback nothing is written anywhere. */
static void test_behaviour_50(void **state)
{
    const fixture *f = *state;
    const int      out = dup(1), errors = dup(2);
    FILE          *file = tmpfile();
    long           size;
    kvcsa_pool    *pool;
    kvcsa_session *s, *t = NULL;
    kvcsa_model   *m = NULL;
    kvcsa_error    err;

    assert_non_null(file);
    assert_true(out >= 0 && errors >= 0);
    fflush(NULL);
    dup2(fileno(file), 1);
    dup2(fileno(file), 2);
    (void)live(f, KVCSA_POOL_FILL_FREED);
    pool = host_pool(1, f->cost.block_bytes);
    s = host_session(pool, f->model, 0);
    (void)kvcsa_session_append(s, f->cold.ids, 300, NULL, NULL, &err); /* full */
    (void)kvcsa_session_fork(s, 7, NULL, &t, &err);
    (void)kvcsa_session_rewind(s, 7, &err);
    (void)kvcsa_session_sync(s, NULL, 7, NULL, NULL, &err);
    (void)kvcsa_session_erase(s, 77, &err);
    (void)kvcsa_model_open("no such place", NULL, &m, &err);
    kvcsa_session_release(&s);
    close_pool(pool);
    fflush(NULL);
    dup2(out, 1);
    dup2(errors, 2);
    close(out);
    close(errors);
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    fclose(file);
    assert_int_equal(size, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_behaviour_06),
        cmocka_unit_test(test_behaviour_07),
        cmocka_unit_test(test_behaviour_08),
        cmocka_unit_test(test_behaviour_17),
        cmocka_unit_test(test_behaviour_27),
        cmocka_unit_test(test_behaviour_28),
        cmocka_unit_test(test_behaviour_30),
        cmocka_unit_test(test_behaviour_31_exact_replay),
        cmocka_unit_test(test_behaviour_31_stored_window),
        cmocka_unit_test(test_behaviour_31_bounded),
        cmocka_unit_test(test_behaviour_36),
        cmocka_unit_test(test_behaviour_37),
        cmocka_unit_test(test_behaviour_41),
        cmocka_unit_test(test_behaviour_49),
        cmocka_unit_test(test_behaviour_50),
        cmocka_unit_test(test_behaviour_53),
        cmocka_unit_test(test_behaviour_54),
        cmocka_unit_test(test_behaviour_56),
        cmocka_unit_test(test_behaviour_58),
        cmocka_unit_test(test_behaviour_63),
        cmocka_unit_test(test_behaviour_65),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
