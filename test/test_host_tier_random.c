/* The host tier of a pool under random calls, held to a naive model that follows every block; and under threads. */
#include "support/prng.h"
#include "support/tier_host.h"

#include <pthread.h>

/* ------------------------------------------------------------------ random calls against a model */

enum { M_NODES = 400, M_BRANCH = 3, M_DEPTH = 5, M_HELD = 3 };

typedef struct node {
    int      parent; /* -1 = the root */
    int      depth;
    int      which; /* of M_BRANCH */
    int      known, out, held;
    uint64_t used;
} node;

typedef struct model {
    node     nodes[M_NODES];
    int      n;
    int      coming; /* the end of a match, which does not go meanwhile; -1 = none */
    uint64_t here, there, most_here, most_there, clock;
    uint64_t n_out, n_in, n_evicted;
    struct {
        kvi_block *last;
        int        node;
    } held[M_HELD];
} model_of_tier;

static int m_child(model_of_tier *m, int parent, int which)
{
    for (int i = 0; i < m->n; i++)
        if (m->nodes[i].parent == parent && m->nodes[i].which == which)
            return i;
    assert_true(m->n < M_NODES);
    m->nodes[m->n] = (node){.parent = parent, .depth = parent < 0 ? 0 : m->nodes[parent].depth + 1, .which = which};
    return m->n++;
}

static int m_has_child(const model_of_tier *m, int i, int out)
{
    for (int c = 0; c < m->n; c++)
        if (m->nodes[c].parent == i && m->nodes[c].known && m->nodes[c].out == out)
            return 1;
    return 0;
}

static int m_forget(model_of_tier *m, int i)
{
    int n = 1;

    for (int c = 0; c < m->n; c++)
        if (m->nodes[c].parent == i && m->nodes[c].known)
            n += m_forget(m, c);
    m->nodes[i].known = 0;
    *(m->nodes[i].out ? &m->there : &m->here) -= 1;
    m->nodes[i].out = 0;
    return n;
}

/* Longest ago of those on one side that could go; -1 = none. */
static int m_victim(const model_of_tier *m, int out)
{
    int best = -1;

    for (int i = 0; i < m->n; i++) {
        const node *x = &m->nodes[i];

        if (x->known && x->out == out && !x->held && i != m->coming && !m_has_child(m, i, out) &&
            (best < 0 || x->used < m->nodes[best].used))
            best = i;
    }
    return best;
}

static int m_evict(model_of_tier *m)
{
    const int v = m_victim(m, 0);

    if (v < 0)
        return 0;
    while (m->there + 1 > m->most_there) {
        const int w = m->most_there ? m_victim(m, 1) : -1;

        if (w < 0 || (!m_has_child(m, v, 1) && m->nodes[v].used < m->nodes[w].used)) {
            m->n_evicted += (uint64_t)m_forget(m, v);
            return 1;
        }
        m->n_evicted += (uint64_t)m_forget(m, w);
    }
    m->nodes[v].out = 1;
    m->here--;
    m->there++;
    m->n_out++;
    return 1;
}

/* On the device, and nobody holds it or what stands behind it. */
static int m_could_go(const model_of_tier *m, int i)
{
    if (m->nodes[i].held)
        return 0;
    for (int c = 0; c < m->n; c++)
        if (m->nodes[c].parent == i && m->nodes[c].known && !m->nodes[c].out && !m_could_go(m, c))
            return 0;
    return 1;
}

static uint64_t m_least(const model_of_tier *m)
{
    uint64_t n = m->here;

    for (int i = 0; i < m->n; i++)
        n -= (uint64_t)(m->nodes[i].known && !m->nodes[i].out && m_could_go(m, i));
    return n;
}

static int m_take(model_of_tier *m)
{
    if (m_least(m) + 1 > m->most_here)
        return 0;
    while (m->here + 1 > m->most_here)
        assert_true(m_evict(m));
    m->here++;
    return 1;
}

static void m_hold(model_of_tier *m, int i, int n)
{
    if (i >= 0)
        m->nodes[i].held += n;
}

/* path[n]. Returns how far it goes; the last one is held. */
static int m_run(model_of_tier *m, const int *path, int n)
{
    int k = 0, end = 0, at = -1;

    while (end < n && m->nodes[path[end]].known)
        end++;
    m->coming = end ? path[end - 1] : -1;
    while (k < end && !m->nodes[path[k]].out)
        at = path[k++];
    m_hold(m, at, 1);
    for (; k < end && m_take(m); k++) {
        m->nodes[path[k]].out = 0;
        m->there--;
        m->n_in++;
        m_hold(m, at, -1);
        m_hold(m, at = path[k], 1);
    }
    m->coming = -1;
    for (int i = k; i-- > 0;)
        m->nodes[path[i]].used = ++m->clock;
    for (; k < n; k++) {
        if (!m_take(m)) {
            m_hold(m, at, -1);
            return -1;
        }
        if (m->nodes[path[k]].known) /* out, and computed once more */
            m->there--;
        else
            m->nodes[path[k]].used = ++m->clock;
        m->nodes[path[k]].known = 1;
        m->nodes[path[k]].out = 0;
        m_hold(m, at, -1);
        m_hold(m, at = path[k], 1);
    }
    return at;
}

static int random_path(model_of_tier *m, prng *r, int *path, int32_t *tokens)
{
    const int n = 1 + (int)prng_below(r, M_DEPTH);
    int       at = -1;

    for (int k = 0; k < n; k++) {
        const int which = (int)prng_below(r, M_BRANCH);

        path[k] = at = m_child(m, at, which);
        for (int t = 0; t < PH_TOKENS; t++)
            tokens[k * PH_TOKENS + t] = 100 * k + 10 * which + t;
    }
    return n;
}

static void compare(pool_host *h, model_of_tier *m)
{
    const kvcsa_pool_stats s = ph_stats(h->pool);

    ph_check(h->pool);
    assert_int_equal(s.used_bytes, m->here * PH_BLOCK);
    assert_int_equal(s.evictable_bytes, (m->here - m_least(m)) * PH_BLOCK);
    assert_int_equal(s.host_used_bytes, m->there * PH_BLOCK);
    assert_int_equal(s.n_host_blocks, m->there);
    assert_int_equal(s.n_published_blocks, m->here + m->there);
    assert_int_equal(s.n_moved_out_blocks, m->n_out);
    assert_int_equal(s.n_moved_in_blocks, m->n_in);
    assert_int_equal(s.n_evicted_blocks, m->n_evicted);
    for (int i = 0; i < m->n; i++) {
        int32_t          tokens[M_DEPTH * PH_TOKENS];
        kvi_prefix_match match;

        for (int k = m->nodes[i].depth, at = i; k >= 0; k--, at = m->nodes[at].parent)
            for (int t = 0; t < PH_TOKENS; t++)
                tokens[k * PH_TOKENS + t] = 100 * k + 10 * m->nodes[at].which + t;
        kvi_prefix_look(h->pool, h->root, tokens, (size_t)(m->nodes[i].depth + 1) * PH_TOKENS, &match);
        assert_int_equal(match.reason == KVCSA_REASON_NONE, m->nodes[i].known);
        if (m->nodes[i].known)
            assert_int_equal(match.last->out, m->nodes[i].out);
        kvi_prefix_match_release(h->pool, &match);
    }
}

static void random_step(pool_host *h, model_of_tier *m, prng *r)
{
    const uint32_t what = (uint32_t)prng_below(r, 16);
    const size_t   slot = (size_t)prng_below(r, M_HELD);
    int            path[M_DEPTH];
    int32_t        tokens[M_DEPTH * PH_TOKENS];
    const int      n = random_path(m, r, path, tokens);

    if (what < 11) { /* a session */
        uint64_t   n_known;
        kvi_block *last = run_chain(h, tokens, (size_t)n, &n_known);
        const int  at = m_run(m, path, n);

        assert_int_equal(last != NULL, at >= 0);
        if (last)
            check_chain(h, last, tokens, (size_t)n);
        if (last && what < 4 && !m->held[slot].last) {
            m->held[slot].last = last;
            m->held[slot].node = at;
        } else if (last) {
            kvi_block_release(h->pool, last);
            m_hold(m, at, -1);
        }
    } else if (what < 13) {
        if (m->held[slot].last) {
            kvi_block_release(h->pool, m->held[slot].last);
            m_hold(m, m->held[slot].node, -1);
            m->held[slot].last = NULL;
        }
    } else if (what == 13) { /* forget, where nobody holds anything */
        kvi_prefix_match match;
        int              i = path[n - 1];

        for (size_t k = 0; k < M_HELD; k++)
            if (m->held[k].last)
                return;
        if (!m->nodes[i].known)
            return;
        kvi_prefix_look(h->pool, h->root, tokens, (size_t)n * PH_TOKENS, &match);
        assert_int_equal(match.n_tokens, n * PH_TOKENS);
        kvi_prefix_forget(h->pool, h->root, match.last);
        kvi_prefix_match_release(h->pool, &match);
        for (; i >= 0; i = m->nodes[i].parent) {
            m_forget(m, i);
            if (m->nodes[i].parent >= 0 && (m_has_child(m, m->nodes[i].parent, 0) || m_has_child(m, m->nodes[i].parent, 1)))
                break;
        }
    } else if (what == 14) {
        const uint64_t most = prng_below(r, 10);

        kvi_pool_trim(h->pool, most * PH_BLOCK, NULL);
        while (m->here > most && m_evict(m)) {
        }
    } else {
        const uint64_t most = 4 + prng_below(r, 9);
        const int      can = m_least(m) <= most;

        assert_int_equal(kvi_pool_resize(h->pool, most * PH_BLOCK, NULL), can ? KVCSA_OK : KVCSA_ERR_FULL);
        while (can && m->here > most)
            assert_true(m_evict(m));
        m->most_here = can ? most : m->most_here;
    }
}

static void test_random_calls_equal_a_naive_model(void **state)
{
    const uint64_t seed = getenv("TEST_SEED") ? strtoull(getenv("TEST_SEED"), NULL, 0) : 20261130;

    (void)state;
    set_device(0, 0, 0);
    for (uint64_t round = 0; round < 6; round++) {
        static pool_host     h;
        static model_of_tier m;
        prng                 r;

        prng_init(&r, seed + round);
        printf("seed %llu\n", (unsigned long long)(seed + round));
        m = (model_of_tier){.coming = -1, .most_here = 9, .most_there = round * 5};
        open_host(&h, m.most_here * PH_BLOCK, m.most_there * PH_BLOCK, round & 1 ? KVCSA_POOL_FILL_FREED : 0);
        for (int step = 0; step < 250; step++) {
            random_step(&h, &m, &r);
            compare(&h, &m);
        }
        assert_true(round == 0 || (m.n_in > 10 && m.n_out > 10));
        for (size_t k = 0; k < M_HELD; k++)
            kvi_block_release(h.pool, m.held[k].last);
        close_host(&h);
    }
}

/* ------------------------------------------------------------------ threads */

enum { WORKERS = 4, ROUNDS = 120 };

typedef struct worker {
    pthread_t  thread;
    pool_host *h;
    uint64_t   seed;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    prng    r;

    prng_init(&r, w->seed);
    for (int i = 0; i < ROUNDS; i++) {
        int32_t          tokens[M_DEPTH * PH_TOKENS];
        const size_t     n = 1 + (size_t)prng_below(&r, M_DEPTH);
        kvi_prefix_match match;
        kvi_block       *last;
        uint64_t         n_known;

        for (size_t k = 0; k < n; k++) {
            const int32_t which = (int32_t)prng_below(&r, M_BRANCH);

            for (int t = 0; t < PH_TOKENS; t++)
                tokens[k * PH_TOKENS + (size_t)t] = 100 * (int32_t)k + 10 * which + t;
        }
        kvi_prefix_look(w->h->pool, w->h->root, tokens, n * PH_TOKENS, &match);
        if (i % 16 == 7)
            kvi_prefix_forget(w->h->pool, w->h->root, match.last);
        last = run_chain(w->h, tokens, n, &n_known);
        kvi_prefix_match_release(w->h->pool, &match);
        if (last)
            check_chain(w->h, last, tokens, n);
        kvi_block_release(w->h->pool, last);
    }
    return NULL;
}

static void test_threads_on_one_tier(void **state)
{
    static pool_host h;
    worker           w[WORKERS];

    (void)state;
    set_device(0, 0, 0);
    open_host(&h, 3 * M_DEPTH * PH_BLOCK, 20 * PH_BLOCK, 0);
    for (int i = 0; i < WORKERS; i++) {
        w[i] = (worker){.h = &h, .seed = 77 + (uint64_t)i};
        assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++)
        assert_int_equal(pthread_join(w[i].thread, NULL), 0);
    assert_true(ph_stats(h.pool).n_moved_in_blocks > 20 && ph_stats(h.pool).n_moved_out_blocks > 20);
    close_host(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_calls_equal_a_naive_model),
        cmocka_unit_test(test_threads_on_one_tier),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
