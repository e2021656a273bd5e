/* A host with a garbage collector, through the public header, on the random checkpoint T1: row 70 of
 * the table in test/README.md. Handles that nobody reaches any more are released by a thread of
 * the collector, in an order of its own, while the host goes on in the same pool. */
#include <pthread.h>

#include "support/cold_fixture.h"
#include "support/fault_alloc.h"
#include "support/prng.h"

#define N 170 /* a full block and a tail */
#define N_ROUNDS 8
#define MAX_DROPPED (6 * N_ROUNDS)

static int set_up(void **state)
{
    *state = fixture_make(N, 607);
    return 0;
}

typedef struct dropped { /* one of them is not NULL */
    kvcsa_model   *model;
    kvcsa_pool    *pool;
    kvcsa_session *session;
} dropped;

typedef struct collector {
    pthread_t       thread;
    pthread_mutex_t lock;
    pthread_cond_t  more;
    prng            random;
    dropped         list[MAX_DROPPED];
    size_t          n;
    size_t          n_released;
    int             ends;
} collector;

static void drop(collector *c, dropped what)
{
    pthread_mutex_lock(&c->lock);
    assert_true(c->n < MAX_DROPPED);
    c->list[c->n++] = what;
    pthread_cond_signal(&c->more);
    pthread_mutex_unlock(&c->lock);
}

/* Any of those that wait. A finaliser that runs twice finds the handle gone. */
static void *collect(void *arg)
{
    collector *c = arg;

    pthread_mutex_lock(&c->lock);
    for (;;) {
        dropped what;
        size_t  i;

        while (!c->n && !c->ends)
            pthread_cond_wait(&c->more, &c->lock);
        if (!c->n)
            break;
        i = prng_below(&c->random, c->n);
        what = c->list[i];
        c->list[i] = c->list[--c->n];
        pthread_mutex_unlock(&c->lock);
        for (int twice = 0; twice < 2; twice++) {
            kvcsa_pool_release(&what.pool);
            kvcsa_model_release(&what.model);
            kvcsa_session_release(&what.session);
        }
        pthread_mutex_lock(&c->lock);
        c->n_released++;
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static kvcsa_pool *counted_pool(fault_alloc *fa)
{
    kvcsa_pool       *pool = NULL;
    kvcsa_pool_params pp;
    kvcsa_error       err;

    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &fa->hook;
    pp.n_threads = 2;
    assert_ok(kvcsa_pool_create(&pp, &pool, &err));
    return pool;
}

/* A session of the pool that lasts, one of a pool of its own, a fork of either; each is used after
 * what it came from was dropped. */
static void use_and_drop(collector *c, const cold *run, kvcsa_pool *lasting, fault_alloc *fa,
                         prng *random)
{
    kvcsa_model   *model = host_model(T1_DIR);
    kvcsa_pool    *own = counted_pool(fa);
    kvcsa_pool    *pools[2] = {lasting, own};
    kvcsa_session *s[4];

    for (int i = 0; i < 2; i++) {
        s[i] = host_session(pools[i], model, 0);
        cold_sync(run, pools[i], s[i], prng_range(random, 130, 150));
    }
    drop(c, (dropped){.model = model});
    for (int i = 0; i < 2; i++) {
        s[2 + i] = fork_session(s[i], prng_range(random, 1, 130));
        drop(c, (dropped){.session = s[i]});
        cold_extend(run, pools[i], s[2 + i], kvcsa_session_length(s[2 + i]) + 3);
    }
    drop(c, (dropped){.pool = own});
    cold_extend(run, own, s[3], kvcsa_session_length(s[3]) + 2); /* the session holds its pool */
    drop(c, (dropped){.session = s[2]});
    drop(c, (dropped){.session = s[3]});
}

static void test_behaviour_70_collector(void **state)
{
    const fixture *f = *state;
    collector      c = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};
    fault_alloc    fa;
    kvcsa_pool    *lasting;
    prng           random;

    fault_alloc_init(&fa);
    lasting = counted_pool(&fa);
    prng_init(&random, 613);
    prng_init(&c.random, 617);
    assert_int_equal(pthread_create(&c.thread, NULL, collect, &c), 0);
    for (int i = 0; i < N_ROUNDS; i++)
        use_and_drop(&c, &f->cold, lasting, &fa, &random);
    pthread_mutex_lock(&c.lock);
    c.ends = 1;
    pthread_cond_signal(&c.more);
    pthread_mutex_unlock(&c.lock);
    pthread_join(c.thread, NULL);
    assert_int_equal(c.n_released, MAX_DROPPED);
    close_pool(lasting);
    assert_true(fault_alloc_is_clean(&fa));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_behaviour_70_collector),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
