/* kvcsa_session_sync and the use of known prefixes, on the random checkpoint T1: the least work, a
 * report that the counters bear out, the bits of a cold run. */
#include "support/cold_fixture.h"

#define N 300

static int set_up(void **state)
{
    *state = fixture_make(N, 401);
    return 0;
}

#define assert_report(r, kept, adopted, replay, compute)                                           \
    do {                                                                                           \
        assert_int_equal((r).n_kept, kept);                                                        \
        assert_int_equal((r).n_adopted, adopted);                                                  \
        assert_int_equal((r).n_replay, replay);                                                    \
        assert_int_equal((r).n_compute, compute);                                                  \
    } while (0)

/* ------------------------------------------------------------------ one session, no other */

static void test_sync_same_list_does_nothing(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = host_session(pool, f->model, 0);
    kvcsa_reuse    r;

    cold_extend(&f->cold, pool, s, 141);
    r = cold_sync(&f->cold, pool, s, 141);
    assert_report(r, 141, 0, 0, 0);
    assert_int_equal(r.reason, KVCSA_REASON_NONE);
    assert_int_equal(r.how, KVCSA_REUSE_EXACT);
    kvcsa_session_release(&s);
    close_pool(pool);
}

static void test_sync_longer_list_computes_the_rest(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = host_session(pool, f->model, 0);
    kvcsa_reuse    r;

    r = cold_sync(&f->cold, pool, s, 50); /* from nothing */
    assert_report(r, 0, 0, 0, 50);
    assert_int_equal(r.reason, KVCSA_REASON_UNKNOWN);
    r = cold_sync(&f->cold, pool, s, 51);
    assert_report(r, 50, 0, 0, 1);
    r = cold_sync(&f->cold, pool, s, 150);
    assert_report(r, 51, 0, 0, 99);
    r = cold_sync(&f->cold, pool, s, 170);
    assert_report(r, 150, 0, 0, 20);
    assert_int_not_equal(r.reason, KVCSA_REASON_NONE);
    kvcsa_session_release(&s);
    close_pool(pool);
}

static void test_sync_shorter_list_goes_back(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = host_session(pool, f->model, 0);
    kvcsa_reuse    r;

    cold_extend(&f->cold, pool, s, N);
    r = cold_sync(&f->cold, pool, s, 200);
    assert_report(r, 200, 0, T1_REPLAY, 0);
    assert_int_equal(r.reason, KVCSA_REASON_NONE);
    r = cold_sync(&f->cold, pool, s, 5);
    assert_report(r, 5, 0, 5, 0);
    kvcsa_session_release(&s);
    close_pool(pool);
}

static void test_sync_list_that_diverges(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = host_session(pool, f->model, 0);
    cold           b = cold_branch(&f->cold, 201, 30, 402), c = cold_branch(&f->cold, 63, 20, 403);
    kvcsa_reuse    r;

    cold_extend(&f->cold, pool, s, N);
    r = cold_sync(&b, pool, s, 231); /* inside the second block, which is known */
    assert_report(r, 201, 0, T1_REPLAY, 30);
    assert_int_equal(r.reason, KVCSA_REASON_DIVERGED);
    r = cold_sync(&c, pool, s, 83);
    assert_report(r, 63, 0, 63, 20);
    assert_int_equal(r.reason, KVCSA_REASON_DIVERGED);
    kvcsa_session_release(&s);
    close_pool(pool);
    cold_free(&b);
    cold_free(&c);
}

static void test_sync_unrelated_list_computes_all(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = host_session(pool, f->model, 0);
    cold           b = cold_branch(&f->cold, 0, 40, 404);
    kvcsa_reuse    r;

    cold_extend(&f->cold, pool, s, 150);
    r = cold_sync(&b, pool, s, 40);
    assert_report(r, 0, 0, 0, 40);
    assert_int_equal(r.reason, KVCSA_REASON_UNKNOWN);
    r = cold_sync(&f->cold, pool, s, 30); /* and back: the block is still known, the windows not */
    assert_int_equal(r.n_kept, 0);
    assert_int_equal(r.n_adopted + r.n_compute, 30);
    kvcsa_session_release(&s);
    close_pool(pool);
    cold_free(&b);
}

static void test_sync_empty_list_empties_the_session(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = host_session(pool, f->model, 0);
    kvcsa_reuse    r = {.struct_size = sizeof r};
    kvcsa_error    err;

    cold_extend(&f->cold, pool, s, 40);
    assert_ok(kvcsa_session_sync(s, NULL, 0, NULL, &r, &err));
    assert_report(r, 0, 0, 0, 0);
    assert_int_equal(kvcsa_session_length(s), 0);
    assert_int_equal(pool_figures(pool).used_bytes, 0);
    host_step(pool, s);
    cold_extend(&f->cold, pool, s, 20);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* ------------------------------------------------------------------ what others have computed */

static void test_sync_adopts_what_another_session_made(void **state)
{
    const fixture   *f = *state;
    kvcsa_pool      *pool = host_pool(2, 0);
    kvcsa_session   *a = host_session(pool, f->model, 0), *s = host_session(pool, f->model, 0);
    cold             b = cold_branch(&f->cold, 0, 20, 405);
    kvcsa_pool_stats st;
    kvcsa_reuse      r;

    cold_extend(&f->cold, pool, a, 260);
    st = pool_figures(pool);
    r = cold_sync(&f->cold, pool, s, 280);
    assert_report(r, 0, 256, T1_REPLAY, 24);
    assert_int_equal(r.reason, KVCSA_REASON_ENDED);
    assert_int_equal(pool_figures(pool).n_sealed_blocks, st.n_sealed_blocks); /* held once */
    assert_int_equal(pool_figures(pool).n_hit_tokens - st.n_hit_tokens, 256);
    assert_int_equal(session_figures(s).shared_bytes, 2 * 22528);
    r = cold_sync(&b, pool, s, 20); /* away and back */
    assert_report(r, 0, 0, 0, 20);
    kvcsa_session_release(&a);
    r = cold_sync(&f->cold, pool, s, 240); /* ends inside a block; nobody but the tree holds it */
    assert_report(r, 0, 240, T1_REPLAY, 0);
    assert_int_equal(r.reason, KVCSA_REASON_NONE);
    cold_extend(&f->cold, pool, s, 243); /* what is written into it is a copy */
    assert_int_equal(pool_figures(pool).n_copied_blocks, 1);
    r = cold_sync(&f->cold, pool, s, N); /* 13 tokens ahead are known: not worth a replay */
    assert_report(r, 243, 0, 0, N - 243);
    assert_int_equal(r.reason, KVCSA_REASON_SHORT);
    kvcsa_session_release(&s);
    close_pool(pool);
    cold_free(&b);
}

/* What is known ahead is taken only where it saves rows. */
static void test_sync_takes_the_least_work(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *a = host_session(pool, f->model, 0), *s = host_session(pool, f->model, 0);
    kvcsa_reuse    r;

    cold_extend(&f->cold, pool, s, 128);
    cold_extend(&f->cold, pool, a, 256);
    r = cold_sync(&f->cold, pool, s, 290);
    /* the 128 tokens ahead are known, but 151 rows would be run again for them */
    assert_report(r, 128, 0, 0, 162);
    assert_int_equal(r.reason, KVCSA_REASON_SHORT);
    r = cold_sync(&f->cold, pool, s, 120); /* now that the windows are lost in any case */
    assert_report(r, 120, 0, 120, 0);
    rewind_session(s, 120);
    r = cold_reuse(&f->cold, pool, s, 270, KVCSA_REUSE_EXACT);
    assert_int_equal(r.n_kept + r.n_adopted + r.n_compute, 270);
    kvcsa_session_release(&a);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* Stored windows make the hit cheap. */
static void test_sync_adopts_a_stored_window(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = host_pool(2, 0);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *a, *s;
    kvcsa_reuse          r;

    p.window_store_tokens = 128;
    a = make_session(pool, f->model, &p);
    s = make_session(pool, f->model, &p);
    cold_extend(&f->cold, pool, a, N);
    r = cold_sync(&f->cold, pool, s, 256); /* the logits of the last one alone */
    assert_int_equal(r.n_kept + r.n_adopted, 256);
    assert_int_equal(r.n_compute, 0);
    assert_true(r.n_replay <= 128);
    kvcsa_session_release(&s);
    s = make_session(pool, f->model, &p);
    r = cold_sync(&f->cold, pool, s, 270);
    assert_report(r, 0, 256, 0, 14);
    kvcsa_session_release(&s);
    s = make_session(pool, f->model, &p);
    r = cold_sync(&f->cold, pool, s, 140); /* a hit inside the second block */
    assert_report(r, 0, 140, 12, 0);
    kvcsa_session_release(&s);
    kvcsa_session_release(&a);
    close_pool(pool);
}

static void test_reuse_can_be_switched_off(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = host_pool(2, 0);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *a = host_session(pool, f->model, 0), *s = host_session(pool, f->model, 0);
    kvcsa_append_params  ap;
    kvcsa_reuse          r;
    kvcsa_error          err;

    cold_extend(&f->cold, pool, a, 256);
    r = cold_reuse(&f->cold, pool, s, 200, KVCSA_REUSE_NONE); /* of an append */
    assert_report(r, 0, 0, 0, 200);
    assert_int_equal(r.reason, KVCSA_REASON_OFF);
    assert_int_equal(r.how, KVCSA_REUSE_NONE);
    kvcsa_session_release(&s);
    p.reuse = KVCSA_REUSE_NONE; /* of the session */
    s = make_session(pool, f->model, &p);
    r = cold_sync(&f->cold, pool, s, 130);
    assert_report(r, 0, 0, 0, 130);
    assert_int_equal(r.reason, KVCSA_REASON_OFF);
    kvcsa_session_release(&s);
    s = make_session(pool, f->model, &p);
    r = cold_reuse(&f->cold, pool, s, 256, KVCSA_REUSE_EXACT); /* the append's word is the last */
    assert_report(r, 0, 256, T1_REPLAY, 0);
    assert_int_equal(r.how, KVCSA_REUSE_EXACT);
    kvcsa_session_release(&s);
    /* logits of rows that would be adopted */
    s = host_session(pool, f->model, 0);
    cold_extend(&f->cold, pool, s, 60);
    r = session_reuse(s);
    assert_report(r, 0, 0, 0, 60);
    assert_int_equal(r.reason, KVCSA_REASON_LOGITS);
    kvcsa_session_release(&s);
    s = host_session(pool, f->model, 0);
    {
        host_rows      rows = host_rows_make(4, T1_VOCAB);
        const uint32_t at[] = {7, 199};

        kvcsa_append_params_default(&ap, sizeof ap);
        ap.logits = KVCSA_LOGITS_ROWS;
        ap.rows = at;
        ap.n_rows = 2;
        ap.on_logits = host_rows_take;
        ap.user = &rows;
        r = (kvcsa_reuse){.struct_size = sizeof r};
        assert_ok(kvcsa_session_sync(s, f->cold.ids, 200, &ap, &r, &err));
        assert_report(r, 0, 0, 0, 200);
        assert_int_equal(r.reason, KVCSA_REASON_LOGITS);
        host_step(pool, s);
        assert_int_equal(rows.n, 2);
        cold_check_rows(&f->cold, 7, rows.data, 1);
        cold_check_rows(&f->cold, 199, rows.data + T1_VOCAB, 1);
        free(rows.data);
    }
    kvcsa_session_release(&s);
    kvcsa_session_release(&a);
    close_pool(pool);
}

/* No last logits wanted: a hit of everything leaves the windows to the step that needs them. */
static void test_sync_without_logits(void **state)
{
    const fixture      *f = *state;
    kvcsa_pool         *pool = host_pool(2, 0);
    kvcsa_session      *a = host_session(pool, f->model, 0), *s = host_session(pool, f->model, 0);
    kvcsa_append_params p;
    kvcsa_reuse         r = {.struct_size = sizeof r};
    kvcsa_error         err;

    cold_extend(&f->cold, pool, a, 256);
    kvcsa_append_params_default(&p, sizeof p);
    p.logits = KVCSA_LOGITS_NONE;
    assert_ok(kvcsa_session_sync(s, f->cold.ids, 256, &p, &r, &err));
    assert_int_equal(r.n_adopted, 256);
    assert_int_equal(r.n_compute, 0);
    host_step(pool, s);
    assert_int_equal(kvcsa_session_length(s), 256);
    cold_extend(&f->cold, pool, s, 260);
    assert_int_equal(session_figures(s).n_computed_rows, 4);
    kvcsa_session_release(&s);
    kvcsa_session_release(&a);
    close_pool(pool);
}

/* Salts part what is equal otherwise. */
static void test_salts_do_not_share(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = host_pool(2, 0);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *a, *s;
    size_t               n = 0;
    kvcsa_reuse          r;
    kvcsa_error          err;

    p.salt = 1;
    a = make_session(pool, f->model, &p);
    cold_extend(&f->cold, pool, a, 128);
    assert_ok(kvcsa_prefix_match(pool, f->model, 0, f->cold.ids, 128, &n, &err));
    assert_int_equal(n, 0);
    assert_ok(kvcsa_prefix_match(pool, f->model, 1, f->cold.ids, 128, &n, &err));
    assert_int_equal(n, 128);
    s = host_session(pool, f->model, 0);
    r = cold_reuse(&f->cold, pool, s, 130, KVCSA_REUSE_EXACT);
    assert_report(r, 0, 0, 0, 130);
    assert_int_equal(r.reason, KVCSA_REASON_UNKNOWN);
    assert_int_equal(pool_figures(pool).n_published_blocks, 2);
    kvcsa_session_release(&a);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* What is forgotten while a session holds it stays with the session, and can be published again. */
static void test_publish_pin_and_forget(void **state)
{
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *a = host_session(pool, f->model, 0);
    cold           b = cold_branch(&f->cold, 128, 140, 406);
    size_t         n = 0;
    uint64_t       freed = 1, published = 0;
    kvcsa_error    err;

    cold_extend(&f->cold, pool, a, 260);
    assert_ok(kvcsa_prefix_forget(pool, f->model, 0, f->cold.ids, 260, &freed, &err));
    assert_int_equal(freed, 0); /* the session has them */
    assert_ok(kvcsa_prefix_match(pool, f->model, 0, f->cold.ids, N, &n, &err));
    assert_int_equal(n, 0);
    cold_extend(&f->cold, pool, a, 261);
    assert_ok(kvcsa_prefix_publish(a, &published, &err));
    assert_int_equal(published, 256);
    assert_ok(kvcsa_prefix_match(pool, f->model, 0, f->cold.ids, N, &n, &err));
    assert_int_equal(n, 256);
    assert_ok(kvcsa_prefix_match(pool, f->model, 0, f->cold.ids, 200, &n, &err));
    assert_int_equal(n, 200);
    assert_ok(kvcsa_prefix_match(pool, f->model, 0, b.ids, 268, &n, &err));
    assert_int_equal(n, 128);
    assert_ok(kvcsa_prefix_pin(pool, f->model, 0, f->cold.ids, 300, &n, &err));
    assert_int_equal(n, 256);
    assert_true(pool_figures(pool).n_pinned_blocks > 0);
    kvcsa_session_release(&a);
    assert_ok(kvcsa_pool_trim(pool, 0, &freed, &err)); /* pinned: nothing goes */
    assert_int_equal(pool_figures(pool).n_published_blocks, 2);
    assert_fails(kvcsa_prefix_unpin(pool, f->model, 0, f->cold.ids, 128, &err), KVCSA_ERR_ARG,
                 "pin");
    assert_ok(kvcsa_prefix_unpin(pool, f->model, 0, f->cold.ids, 256, &err));
    assert_fails(kvcsa_prefix_unpin(pool, f->model, 0, f->cold.ids, 256, &err), KVCSA_ERR_ARG,
                 "pin");
    assert_int_equal(pool_figures(pool).n_pinned_blocks, 0);
    a = host_session(pool, f->model, 0); /* two branches behind one block */
    host_run(pool, a, b.ids, 268, NULL);
    kvcsa_session_release(&a);
    assert_int_equal(pool_figures(pool).n_published_blocks, 3);
    assert_ok(kvcsa_prefix_forget(pool, f->model, 0, f->cold.ids, 256, &freed, &err));
    assert_int_equal(freed, 22528); /* the first block is the other's too */
    assert_ok(kvcsa_prefix_match(pool, f->model, 0, b.ids, 268, &n, &err));
    assert_int_equal(n, 256);
    assert_ok(kvcsa_prefix_forget(pool, f->model, 0, b.ids, 128, &freed, &err));
    assert_int_equal(freed, 2 * 22528); /* with all that goes on after it */
    assert_int_equal(pool_figures(pool).used_bytes, 0);
    close_pool(pool);
    cold_free(&b);
}

/* ------------------------------------------------------------------ failures, costs, traces */

static void same_figures(kvcsa_session *s, const kvcsa_session_stats *before, const cold *c)
{
    const kvcsa_session_stats now = session_figures(s);

    assert_int_equal(now.n_tokens, before->n_tokens);
    assert_int_equal(now.n_queued, 0);
    assert_int_equal(now.n_replay, before->n_replay);
    assert_int_equal(now.n_blocks, before->n_blocks);
    assert_int_equal(now.window_bytes, before->window_bytes);
    cold_check(c, s);
}

static void test_sync_that_fails_changes_nothing(void **state)
{
    const fixture      *f = *state;
    kvcsa_cost          cost = {.struct_size = sizeof cost};
    int32_t            *ids = malloc(16400 * sizeof *ids);
    kvcsa_append_params p;
    kvcsa_session_stats before;
    kvcsa_reuse         r = {.struct_size = sizeof r};
    kvcsa_pool         *pool;
    kvcsa_session      *s;
    kvcsa_error         err;

    assert_non_null(ids);
    assert_ok(kvcsa_model_cost(f->model, 0, &cost, &err));
    pool = host_pool(2, cost.const_bytes + cost.pending_bytes + 2 * cost.block_bytes);
    s = host_session(pool, f->model, 0);
    cold_extend(&f->cold, pool, s, 141);
    before = session_figures(s);
    host_tokens(ids, 16400, 407);
    memcpy(ids, f->cold.ids, 100 * sizeof *ids);
    ids[199] = 512; /* at the very end */
    assert_fails(kvcsa_session_sync(s, ids, 200, NULL, &r, &err), KVCSA_ERR_ARG, "tokens[199]");
    same_figures(s, &before, &f->cold);
    ids[199] = -1;
    assert_int_equal(kvcsa_session_sync(s, ids, 200, NULL, NULL, &err), KVCSA_ERR_ARG);
    ids[199] = 511; /* the image token */
    assert_int_equal(kvcsa_session_sync(s, ids, 200, NULL, NULL, &err), KVCSA_ERR_ARG);
    ids[199] = 5;
    assert_fails(kvcsa_session_sync(s, ids, 400, NULL, &r, &err), KVCSA_ERR_FULL, "budget");
    same_figures(s, &before, &f->cold);
    assert_fails(kvcsa_session_sync(s, ids, 16385, NULL, &r, &err), KVCSA_ERR_LIMIT, "16384");
    assert_int_equal(kvcsa_session_sync(s, ids, SIZE_MAX, NULL, &r, &err), KVCSA_ERR_LIMIT);
    same_figures(s, &before, &f->cold);
    assert_int_equal(kvcsa_session_sync(s, NULL, 3, NULL, &r, &err), KVCSA_ERR_ARG);
    kvcsa_append_params_default(&p, sizeof p);
    p.logits = KVCSA_LOGITS_ALL; /* without a callback */
    assert_fails(kvcsa_session_sync(s, ids, 150, &p, &r, &err), KVCSA_ERR_ARG, "on_logits");
    kvcsa_append_params_default(&p, sizeof p);
    p.reuse = 99;
    assert_int_not_equal(kvcsa_session_sync(s, ids, 150, &p, &r, &err), KVCSA_OK);
    same_figures(s, &before, &f->cold);
    assert_int_equal(pool_figures(pool).reserved_bytes, 0);
    assert_ok(kvcsa_session_append(s, f->cold.ids + 141, 2, NULL, NULL, &err));
    assert_fails(kvcsa_session_sync(s, ids, 150, NULL, &r, &err), KVCSA_ERR_ARG, "queue");
    host_step(pool, s);
    cold_extend(&f->cold, pool, s, 146);
    check_pool(pool);
    kvcsa_session_release(&s);
    close_pool(pool);
    free(ids);
}

/* A sync that is cancelled: back to where it began, what was sealed meanwhile is found again. */
static int32_t stop_late(void *user, kvcsa_session *session, uint64_t done, uint64_t queued)
{
    (void)session;
    (void)queued;
    return done >= *(const uint64_t *)user;
}

static void test_cancelled_sync_can_be_repeated(void **state)
{
    const fixture    *f = *state;
    kvcsa_pool       *pool = host_pool(2, 0);
    kvcsa_session    *s = host_session(pool, f->model, 40);
    cold              b = cold_branch(&f->cold, 0, 60, 408);
    uint64_t          limit = 270;
    kvcsa_step_params sp;
    kvcsa_reuse       r;
    kvcsa_error       err;

    cold_extend(&b, pool, s, 60);
    kvcsa_step_params_default(&sp, sizeof sp);
    sp.progress = stop_late;
    sp.user = &limit;
    assert_ok(kvcsa_session_sync(s, f->cold.ids, N, NULL, NULL, &err));
    assert_int_equal(kvcsa_pool_step(pool, &s, 1, &sp, NULL, &err), KVCSA_ERR_CANCELLED);
    check_pool(pool);
    assert_int_equal(session_figures(s).n_queued, 0);
    /* the queue began behind what sync kept of the old list */
    assert_int_equal(kvcsa_session_length(s), 0);
    r = cold_sync(&f->cold, pool, s, N);
    assert_report(r, 0, 256, T1_REPLAY, N - 256); /* the retry resumes */
    kvcsa_session_release(&s);
    close_pool(pool);
    cold_free(&b);
}

static void test_lookups_probe_once_a_block(void **state)
{
    const fixture   *f = *state;
    kvcsa_pool      *pool = host_pool(2, 0);
    kvcsa_session   *a = host_session(pool, f->model, 0), *s = host_session(pool, f->model, 0);
    kvcsa_pool_stats st, now;
    size_t           n = 0;
    kvcsa_error      err;

    cold_extend(&f->cold, pool, a, N);
    st = pool_figures(pool);
    assert_ok(kvcsa_prefix_match(pool, f->model, 0, f->cold.ids, N, &n, &err));
    now = pool_figures(pool);
    assert_int_equal(n, 256);
    assert_int_equal(now.n_lookups - st.n_lookups, 1);
    assert_in_range(now.n_probes - st.n_probes, 2, 3);
    st = now;
    assert_ok(kvcsa_session_append(s, f->cold.ids, N, NULL, NULL, &err));
    now = pool_figures(pool);
    assert_int_equal(now.n_lookups - st.n_lookups, 1);
    assert_in_range(now.n_probes - st.n_probes, 2, 3);
    kvcsa_session_release(&s);
    kvcsa_session_release(&a);
    close_pool(pool);
}

/* What is adopted is not reserved again. Rebuilding the window and going on may take two of them for
 * a while. */
static void test_hits_need_no_room_for_what_is_shared(void **state)
{
    const fixture *f = *state;
    kvcsa_cost     cost = {.struct_size = sizeof cost};
    kvcsa_pool    *pool;
    kvcsa_session *a, *s;
    kvcsa_reuse    r;
    kvcsa_error    err;

    assert_ok(kvcsa_model_cost(f->model, 0, &cost, &err));
    pool = host_pool(2, 3 * (cost.const_bytes + cost.pending_bytes) + 4 * cost.block_bytes);
    a = host_session(pool, f->model, 0);
    s = host_session(pool, f->model, 0);
    cold_extend(&f->cold, pool, a, 260); /* three blocks */
    r = cold_reuse(&f->cold, pool, s, 262, KVCSA_REUSE_EXACT);
    assert_int_equal(r.n_adopted, 256);
    assert_true(pool_figures(pool).used_bytes <= pool_figures(pool).budget_bytes);
    assert_int_equal(pool_figures(pool).n_open_blocks, 2);
    kvcsa_session_release(&a);
    kvcsa_session_release(&s);
    close_pool(pool);
}

typedef struct events {
    uint64_t n_tokens[8]; /* by kind */
    uint64_t n_calls[8];
    uint32_t last_reason[8];
    uint32_t n_bad;
} events;

static void take_event(void *user, const kvcsa_trace_event *e)
{
    events *ev = user;

    if (e->kind >= 8 || e->struct_size < sizeof *e) {
        ev->n_bad++;
        return;
    }
    ev->n_tokens[e->kind] += e->n_tokens;
    ev->n_calls[e->kind]++;
    ev->last_reason[e->kind] = e->reason;
}

static void test_trace_tells_what_the_report_tells(void **state)
{
    const fixture    *f = *state;
    events            ev = {0};
    const kvcsa_trace trace = {take_event, &ev};
    kvcsa_pool_params pp;
    kvcsa_pool       *pool = NULL;
    kvcsa_session    *a, *s;
    kvcsa_reuse       r;
    kvcsa_error       err;

    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.trace = &trace;
    pp.n_threads = 2;
    assert_ok(kvcsa_pool_create(&pp, &pool, &err));
    a = host_session(pool, f->model, 0);
    s = host_session(pool, f->model, 0);
    host_run(pool, a, f->cold.ids, 260, NULL);
    assert_int_equal(ev.n_tokens[KVCSA_TRACE_MISS], 260);
    assert_int_equal(ev.last_reason[KVCSA_TRACE_MISS], KVCSA_REASON_UNKNOWN);
    assert_int_equal(ev.n_calls[KVCSA_TRACE_PUBLISH], 2);
    assert_int_equal(ev.n_calls[KVCSA_TRACE_HIT], 0);
    r = cold_reuse(&f->cold, pool, s, 270, KVCSA_REUSE_EXACT);
    assert_int_equal(ev.n_tokens[KVCSA_TRACE_HIT], r.n_adopted);
    assert_int_equal(ev.n_tokens[KVCSA_TRACE_MISS], 260 + r.n_compute);
    assert_int_equal(ev.last_reason[KVCSA_TRACE_MISS], KVCSA_REASON_ENDED);
    assert_int_equal(ev.n_tokens[KVCSA_TRACE_REPLAY], r.n_replay);
    kvcsa_session_release(&a);
    kvcsa_session_release(&s);
    assert_ok(kvcsa_pool_trim(pool, 0, NULL, &err));
    assert_int_equal(ev.n_calls[KVCSA_TRACE_EVICT], 2);
    assert_int_equal(ev.last_reason[KVCSA_TRACE_EVICT], KVCSA_REASON_TRIM);
    assert_int_equal(ev.n_bad, 0);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync_same_list_does_nothing),
        cmocka_unit_test(test_sync_longer_list_computes_the_rest),
        cmocka_unit_test(test_sync_shorter_list_goes_back),
        cmocka_unit_test(test_sync_list_that_diverges),
        cmocka_unit_test(test_sync_unrelated_list_computes_all),
        cmocka_unit_test(test_sync_empty_list_empties_the_session),
        cmocka_unit_test(test_sync_adopts_what_another_session_made),
        cmocka_unit_test(test_sync_takes_the_least_work),
        cmocka_unit_test(test_sync_adopts_a_stored_window),
        cmocka_unit_test(test_reuse_can_be_switched_off),
        cmocka_unit_test(test_sync_without_logits),
        cmocka_unit_test(test_salts_do_not_share),
        cmocka_unit_test(test_publish_pin_and_forget),
        cmocka_unit_test(test_sync_that_fails_changes_nothing),
        cmocka_unit_test(test_cancelled_sync_can_be_repeated),
        cmocka_unit_test(test_lookups_probe_once_a_block),
        cmocka_unit_test(test_hits_need_no_room_for_what_is_shared),
        cmocka_unit_test(test_trace_tells_what_the_report_tells),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
