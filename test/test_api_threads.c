/* Threads and one pool, through the public header, on the random checkpoint T1: rows 48 and 70 of
 * the table in test/README.md. `make check-tsan` runs this under the thread sanitizer. */
#include <pthread.h>
#include <stdatomic.h>

#include "support/cold_fixture.h"
#include "support/fault_alloc.h"

#define N 170 /* a full block and a tail */

static int set_up(void **state)
{
    *state = fixture_make(N, 601);
    return 0;
}

typedef struct worker {
    const fixture *f;
    kvcsa_pool    *pool;
    cold           own;
    pthread_t      thread;
} worker;

static void *work(void *arg)
{
    worker        *w = arg;
    kvcsa_session *s = host_session(w->pool, w->f->model, 30), *t;

    cold_sync(&w->f->cold, w->pool, s, 150); /* all of them want the same */
    t = fork_session(s, 140);
    cold_sync(&w->own, w->pool, s, 170);
    cold_extend(&w->f->cold, w->pool, t, 160);
    rewind_session(t, 20);
    kvcsa_session_release(&s);
    cold_extend(&w->f->cold, w->pool, t, 24);
    kvcsa_session_release(&t);
    return NULL;
}

/* 48: four threads with sessions of one pool that meet the same prefix. */
static void test_behaviour_48_threads_share(void **state)
{
    enum { K = 4 };
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(2, 0);
    worker         w[K];

    for (int k = 0; k < K; k++)
        w[k] = (worker){
            .f = f, .pool = pool, .own = cold_branch(&f->cold, 130, 40, 530 + (uint64_t)k)};
    for (int k = 0; k < K; k++)
        assert_int_equal(pthread_create(&w[k].thread, NULL, work, &w[k]), 0);
    for (int k = 0; k < K; k++) {
        pthread_join(w[k].thread, NULL);
        cold_free(&w[k].own);
    }
    assert_int_equal(pool_figures(pool).n_published_blocks, 1);
    close_pool(pool);
}

typedef struct intruder {
    kvcsa_session *s;
    int            calls, busy;
} intruder;

static void *intrude(void *arg)
{
    intruder            *in = arg;
    const int32_t        ids[] = {5, 6};
    kvcsa_session       *t = NULL;
    kvcsa_reuse          r = {.struct_size = sizeof r};
    uint64_t             n;
    size_t               k;
    kvcsa_sampler_params sp;
    int32_t              token;
    kvcsa_status         st[10];

    kvcsa_sampler_params_default(&sp, sizeof sp);
    st[0] = kvcsa_session_append(in->s, ids, 2, NULL, NULL, NULL);
    st[1] = kvcsa_session_fork(in->s, 0, NULL, &t, NULL);
    st[2] = kvcsa_session_rewind(in->s, 0, NULL);
    st[3] = kvcsa_session_sync(in->s, ids, 2, NULL, &r, NULL);
    st[4] = kvcsa_session_erase(in->s, 0, NULL);
    st[5] = kvcsa_session_get_reuse(in->s, &r, NULL);
    st[6] = kvcsa_session_common_prefix(in->s, ids, 2, &k, NULL);
    st[7] = kvcsa_prefix_publish(in->s, &n, NULL);
    st[8] = kvcsa_snapshot_size(in->s, NULL, &n, NULL);
    st[9] = kvcsa_session_sample(in->s, &sp, &token, NULL);
    for (size_t i = 0; i < sizeof st / sizeof *st; i++)
        in->busy += st[i] == KVCSA_ERR_BUSY;
    in->calls = 10;
    return NULL;
}

static int32_t let_one_in(void *user, kvcsa_session *session, uint64_t n_done, uint64_t n_queued)
{
    intruder *in = user;
    pthread_t thread;

    (void)session;
    (void)n_done;
    (void)n_queued;
    if (!in->calls && pthread_create(&thread, NULL, intrude, in) == 0)
        pthread_join(thread, NULL);
    return 0;
}

/* ... and a second thread in one session is told so, and spoils nothing. */
static void test_behaviour_48_second_thread_is_refused(void **state)
{
    const fixture    *f = *state;
    kvcsa_pool       *pool = host_pool(2, 0);
    intruder          in = {.s = host_session(pool, f->model, 0)};
    kvcsa_step_params sp;
    kvcsa_error       err;

    kvcsa_step_params_default(&sp, sizeof sp);
    sp.progress = let_one_in;
    sp.user = &in;
    assert_ok(kvcsa_session_append(in.s, f->cold.ids, 50, NULL, NULL, &err));
    assert_ok(kvcsa_pool_step(pool, &in.s, 1, &sp, NULL, &err));
    assert_int_equal(in.calls, 10);
    assert_int_equal(in.busy, 10);
    cold_check(&f->cold, in.s);
    cold_extend(&f->cold, pool, in.s, 60);
    kvcsa_session_release(&in.s);
    close_pool(pool);
}

typedef struct handles {
    kvcsa_model   *model;
    kvcsa_pool    *pool;
    kvcsa_session *s[3];
} handles;

static void *release_pool_and_model(void *arg)
{
    handles *h = arg;

    kvcsa_model_release(&h->model);
    kvcsa_pool_release(&h->pool);
    return NULL;
}

static void *release_sessions(void *arg)
{
    handles *h = arg;

    for (int i = 2; i >= 0; i--) {
        kvcsa_session_release(&h->s[i]);
        kvcsa_session_release(&h->s[i]);
    }
    return NULL;
}

static void in_a_thread(void *(*f)(void *), void *arg)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, f, arg), 0);
    pthread_join(thread, NULL);
}

/* 70: handles go in any order, twice, from any thread; sessions, forks and prefixes live on. */
static void test_behaviour_70(void **state)
{
    const fixture *f = *state;

    for (int order = 0; order < 4; order++) {
        fault_alloc       fa;
        kvcsa_pool_params pp;
        kvcsa_pool       *same;
        handles           h = {.model = host_model(T1_DIR)};
        kvcsa_error       err;

        fault_alloc_init(&fa);
        kvcsa_pool_params_default(&pp, sizeof pp);
        pp.allocator = &fa.hook;
        pp.n_threads = 2;
        assert_ok(kvcsa_pool_create(&pp, &h.pool, &err));
        same = h.pool;
        h.s[0] = host_session(h.pool, h.model, 0);
        host_run(h.pool, h.s[0], f->cold.ids, 130, NULL);
        h.s[1] = fork_session(h.s[0], 130);
        h.s[2] = fork_session(h.s[1], 60);
        if (order & 1) {
            in_a_thread(release_pool_and_model, &h);
            assert_null(h.pool);
            assert_null(h.model);
            kvcsa_session_release(&h.s[0]);
            assert_ok(kvcsa_session_append(h.s[1], f->cold.ids + 130, 2, NULL, NULL, &err));
            assert_ok(kvcsa_pool_step(same, &h.s[1], 1, NULL, NULL, &err));
            cold_check(&f->cold, h.s[1]);
        }
        if (order & 2)
            in_a_thread(release_sessions, &h);
        else
            release_sessions(&h);
        assert_null(h.s[0]);
        release_pool_and_model(&h);
        release_pool_and_model(&h);
        assert_true(fault_alloc_is_clean(&fa));
    }
    kvcsa_session_release(NULL);
    kvcsa_pool_release(NULL);
    kvcsa_model_release(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_behaviour_48_threads_share),
        cmocka_unit_test(test_behaviour_48_second_thread_is_refused),
        cmocka_unit_test(test_behaviour_70),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
