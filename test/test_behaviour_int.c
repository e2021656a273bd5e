/* What users of such libraries run into (test/README.md), where a test has to look inside: at bytes
 * of memory, at keys that collide, and at sessions of the released plan that hold blocks without
 * computing them. */
#include "session/session_int.h"

#include <pthread.h>

#include "support/cold_fixture.h"

#define N 300

static int set_up(void **state)
{
    fixture *f = fixture_make(N, 701);

    f->other = cold_branch(&f->cold, 0, 270, 702);
    *state = f;
    return 0;
}

/* ------------------------------------------------------------------ 32: equal keys */

static kvi_hash128 same_hash(const void *data, size_t n_bytes, uint64_t seed)
{
    (void)data;
    (void)n_bytes;
    (void)seed;
    return (kvi_hash128){1, 2};
}

/* Every key is the same: tokens are compared, and so are salts. */
static void test_behaviour_32(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = host_pool(2, 0);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s;
    kvcsa_reuse          r;
    size_t               n = 1;
    kvcsa_error          err;

    kvi_pool_set_hash(pool, same_hash);
    s = host_session(pool, f->model, 0);
    cold_extend(&f->cold, pool, s, 270);
    kvcsa_session_release(&s);
    assert_ok(kvcsa_prefix_match(pool, f->model, 0, f->other.ids, 270, &n, &err));
    assert_int_equal(n, 0);
    s = host_session(pool, f->model, 0);
    r = cold_reuse(&f->other, pool, s, 270, KVCSA_REUSE_EXACT);
    assert_int_equal(r.n_adopted, 0);
    kvcsa_session_release(&s);
    assert_int_equal(pool_figures(pool).n_published_blocks, 4);
    check_pool(pool);
    for (int i = 0; i < 2; i++) { /* both are found */
        s = host_session(pool, f->model, 0);
        r = cold_reuse(i ? &f->other : &f->cold, pool, s, 270, KVCSA_REUSE_EXACT);
        assert_int_equal(r.n_adopted, 256);
        kvcsa_session_release(&s);
    }
    p.salt = 1;
    s = make_session(pool, f->model, &p);
    r = cold_reuse(&f->cold, pool, s, 130, KVCSA_REUSE_EXACT);
    assert_int_equal(r.n_adopted, 0);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* ------------------------------------------------------------------ 34: no trace is left */

/* An allocator that gives nothing back to the system, so that a test can look for bytes in memory
 * that was freed as well as in memory that is in use. */
typedef struct vault {
    kvcsa_allocator hook;
    pthread_mutex_t lock;
    struct {
        uint8_t *data;
        size_t   size;
    } pieces[4096];
    size_t n;
} vault;

static void *vault_alloc(void *user, size_t size, size_t align)
{
    vault *v = user;
    void  *p = NULL;

    pthread_mutex_lock(&v->lock);
    if (v->n < sizeof v->pieces / sizeof *v->pieces &&
        posix_memalign(&p, align < 64 ? 64 : align, size) == 0) {
        memset(p, 0, size);
        v->pieces[v->n].data = p;
        v->pieces[v->n++].size = size;
    }
    pthread_mutex_unlock(&v->lock);
    return p;
}

static void vault_free(void *user, void *ptr, size_t size, size_t align)
{
    (void)user; /* kept as it is */
    (void)ptr;
    (void)size;
    (void)align;
}

static vault *vault_create(void)
{
    vault *v = calloc(1, sizeof *v);

    assert_non_null(v);
    pthread_mutex_init(&v->lock, NULL);
    v->hook = (kvcsa_allocator){vault_alloc, vault_free, v};
    return v;
}

static void vault_destroy(vault *v)
{
    for (size_t i = 0; i < v->n; i++)
        free(v->pieces[i].data);
    pthread_mutex_destroy(&v->lock);
    free(v);
}

typedef struct secret {
    const char *what;
    uint8_t     bytes[48];
} secret;

/* In how many pieces the bytes are. */
static size_t vault_count(const vault *v, const secret *s)
{
    size_t n = 0;

    for (size_t i = 0; i < v->n; i++)
        n += memmem(v->pieces[i].data, v->pieces[i].size, s->bytes, sizeof s->bytes) != NULL;
    return n;
}

enum { N_SECRETS = 9 };

static void keep(secret *s, const char *what, const void *bytes)
{
    s->what = what;
    memcpy(s->bytes, bytes, sizeof s->bytes);
}

/* One example of everything that a session knows. */
static void learn(kvcsa_session *s, const cold *c, const int32_t *queued, secret *out)
{
    const kvi_kv_layout *layout = &s->model->layout;
    kvi_block           *first = s->now.last;
    float                logits[T1_VOCAB];

    assert_non_null(first);
    assert_non_null(s->now.tail);
    assert_non_null(s->now.pages[0]);
    host_logits(s, logits, T1_VOCAB);
    keep(&out[0], "tokens of the first block", c->ids + 20);
    keep(&out[1], "tokens of the open block", c->ids + 130);
    keep(&out[2], "tokens of the queue", queued + 3);
    keep(&out[3], "logits", logits + 100);
    keep(&out[4], "an entry of the first block", kvi_block_main_part(first));
    keep(&out[5], "an entry of the open block", kvi_block_main_part(s->now.tail));
    keep(&out[6], "index keys", kvi_block_index_part(first) + layout->index_part_bytes / 2);
    keep(&out[7], "window rows", kvi_block_main_part(s->now.pages[0]) + 10);
    keep(&out[8], "a raw row", kvi_block_main_part(s->now.pending));
}

static void check_secrets(const vault *v, const secret *s, size_t from, size_t to, int there)
{
    for (size_t i = from; i < to; i++) {
        const size_t n = vault_count(v, &s[i]);

        if ((n > 0) != there)
            fail_msg("%s: in %zu pieces of memory", s[i].what, n);
    }
}

static kvcsa_pool *vault_pool(vault *v)
{
    kvcsa_pool_params pp;
    kvcsa_pool       *pool = NULL;
    kvcsa_error       err;

    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &v->hook;
    pp.n_threads = 2;
    assert_ok(kvcsa_pool_create(&pp, &pool, &err));
    return pool;
}

static void test_behaviour_34(void **state)
{
    const fixture *f = *state;
    vault         *v = vault_create();
    kvcsa_pool    *pool = vault_pool(v);
    kvcsa_session *s = host_session(pool, f->model, 32);
    secret         secrets[N_SECRETS];
    kvcsa_error    err;

    host_run(pool, s, f->cold.ids, 151, NULL);
    assert_ok(kvcsa_session_append(s, f->other.ids, 40, NULL, NULL, &err));
    learn(s, &f->cold, f->other.ids, secrets);
    check_secrets(v, secrets, 0, N_SECRETS, 1);
    assert_ok(kvcsa_session_erase(s, KVCSA_ERASE_SECURE, &err));
    check_secrets(v, secrets, 0, N_SECRETS, 0);
    assert_int_equal(kvcsa_session_length(s), 0);
    assert_int_equal(session_figures(s).n_queued, 0);
    assert_int_equal(pool_figures(pool).n_published_blocks, 0);
    assert_int_equal(pool_figures(pool).used_bytes, 0);
    check_pool(pool);
    cold_extend(&f->cold, pool, s, 20); /* as new */
    kvcsa_session_release(&s);
    close_pool(pool);
    vault_destroy(v);
}

/* Tables and lists have grown on the way; what they left behind is clean too. */
static void test_behaviour_34_after_a_long_life(void **state)
{
    const fixture *f = *state;
    vault         *v = vault_create();
    kvcsa_pool    *pool = vault_pool(v);
    kvcsa_session *s = host_session(pool, f->model, 16), *t;
    secret         secrets[N_SECRETS];
    kvcsa_error    err;

    for (uint64_t n = 1; kvcsa_session_length(s) < 151; n += n) /* ever longer appends */
        host_run(pool, s, f->cold.ids + kvcsa_session_length(s),
                 cold_min(n, 151 - kvcsa_session_length(s)), NULL);
    assert_ok(kvcsa_session_rewind(s, 140, &err));
    host_run(pool, s, f->cold.ids + 140, 11, NULL);
    assert_ok(kvcsa_session_sync(s, f->cold.ids, 151, NULL, NULL, &err));
    t = fork_session(s, 151);
    host_run(pool, t, f->cold.ids + 151, 1, NULL); /* copies its tail */
    kvcsa_session_release(&t);
    assert_ok(kvcsa_session_append(s, f->other.ids, 40, NULL, NULL, &err));
    learn(s, &f->cold, f->other.ids, secrets);
    check_secrets(v, secrets, 0, N_SECRETS, 1);
    assert_ok(kvcsa_session_erase(s, KVCSA_ERASE_SECURE, &err));
    check_secrets(v, secrets, 0, 1, 0);
    check_secrets(v, secrets, 2, 3, 0);
    check_secrets(v, secrets, 4, 5, 0);
    check_secrets(v, secrets, 6, 7, 0);
    kvcsa_session_release(&s);
    close_pool(pool);
    vault_destroy(v);
}

/* What others hold is theirs, and is overwritten when they let go. */
static void test_behaviour_34_shared(void **state)
{
    const fixture *f = *state;
    vault         *v = vault_create();
    kvcsa_pool    *pool = vault_pool(v);
    kvcsa_session *s = host_session(pool, f->model, 32), *t;
    secret         secrets[N_SECRETS];
    kvcsa_error    err;

    host_run(pool, s, f->cold.ids, 151, NULL);
    t = fork_session(s, 151);
    learn(s, &f->cold, f->cold.ids, secrets);
    assert_ok(kvcsa_session_erase(s, KVCSA_ERASE_SECURE, &err));
    check_pool(pool);
    check_secrets(v, secrets, 4, 9, 1);
    cold_check(&f->cold, t);
    cold_extend(&f->cold, pool, t, 155);
    kvcsa_session_release(&t);
    check_secrets(v, secrets, 4, 5, 0); /* the full block, which was erased while t held it */
    check_secrets(v, secrets, 6, 7, 0);
    kvcsa_session_release(&s);
    close_pool(pool);
    vault_destroy(v);
}

/* ------------------------------------------------------------------ cache-only sessions */

static kvcsa_session *cache_session(kvcsa_pool *pool, kvcsa_model *m)
{
    const kvcsa_session_params p = session_defaults();
    kvcsa_session             *s = NULL;
    kvcsa_error                err;

    assert_ok(kvi_session_create(pool, m, &p, 1, &s, &err));
    return s;
}

static void hold(kvcsa_pool *pool, kvcsa_session *s, const int32_t *ids, size_t n)
{
    kvcsa_append_params p;
    kvcsa_error         err;

    kvcsa_append_params_default(&p, sizeof p);
    p.logits = KVCSA_LOGITS_NONE;
    assert_ok(kvcsa_session_append(s, ids, n, &p, NULL, &err));
    host_step(pool, s);
    assert_int_equal(kvcsa_session_length(s), n);
}

/* 35: 500 prefixes come and go, one by one and all at once. */
static void test_behaviour_35(void **state)
{
    enum { K = 500 };
    const fixture *f = *state;
    kvcsa_pool    *pool = host_pool(1, 0);
    uint64_t       used = 0, freed = 0;
    int32_t        ids[T1_BLOCK];
    kvcsa_error    err;

    for (int round = 0; round < 2; round++) {
        for (uint64_t k = 0; k < K; k++) {
            kvcsa_session *s = cache_session(pool, f->model);

            host_tokens(ids, T1_BLOCK, k);
            hold(pool, s, ids, T1_BLOCK);
            kvcsa_session_release(&s);
        }
        used = pool_figures(pool).used_bytes;
        assert_int_equal(pool_figures(pool).n_published_blocks, K);
        assert_int_equal(used, K * 22528);
        assert_int_equal(pool_figures(pool).evictable_bytes, used);
        for (uint64_t k = 0; k < K / 2; k++) {
            host_tokens(ids, T1_BLOCK, k * 2);
            assert_ok(kvcsa_prefix_forget(pool, f->model, 0, ids, T1_BLOCK, &freed, &err));
            assert_int_equal(freed, 22528);
        }
        assert_int_equal(pool_figures(pool).used_bytes, used / 2);
        check_pool(pool);
        if (round)
            assert_ok(kvcsa_prefix_forget(pool, NULL, 0, NULL, 0, &freed, &err));
        else
            assert_ok(kvcsa_prefix_forget(pool, f->model, 0, NULL, 0, &freed, &err));
        assert_int_equal(freed, used / 2);
        assert_int_equal(pool_figures(pool).used_bytes, 0);
        assert_int_equal(pool_figures(pool).n_published_blocks, 0);
        assert_ok(kvcsa_pool_trim(pool, 0, NULL, &err));
        assert_int_equal(pool_figures(pool).slab_bytes, 0);
        assert_int_equal(pool_figures(pool).record_bytes, 0);
    }
    close_pool(pool);
}

/* Counts, and fills nothing: memory that is not written costs the test nothing. */
typedef struct counter {
    kvcsa_allocator hook;
    uint64_t        n_bytes;
} counter;

static void *counter_alloc(void *user, size_t size, size_t align)
{
    void *p = NULL;

    if (posix_memalign(&p, align < 64 ? 64 : align, size) != 0)
        return NULL;
    ((counter *)user)->n_bytes += size;
    return p;
}

static void counter_free(void *user, void *ptr, size_t size, size_t align)
{
    (void)align;
    ((counter *)user)->n_bytes -= size;
    free(ptr);
}

/* 61: what the released model takes at 1k, 32k and 1M tokens, before and after. */
static void test_behaviour_61(void **state)
{
    static const uint64_t lengths[] = {1024, 32768, 1048576};
    counter               c = {{counter_alloc, counter_free, &c}, 0};
    int32_t              *ids = malloc(lengths[2] * sizeof *ids);
    kvcsa_model_params    mp;
    kvcsa_pool_params     pp;
    kvcsa_model          *m = NULL;
    kvcsa_error           err;

    (void)state;
    assert_non_null(ids);
    host_tokens(ids, lengths[2], 703);
    kvcsa_model_params_default(&mp, sizeof mp);
    mp.flags = KVCSA_MODEL_PLAN_ONLY;
    assert_ok(kvcsa_model_open(RELEASE_CONFIG, &mp, &m, &err));
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &c.hook;
    pp.n_threads = 1;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        kvcsa_pool      *pool = NULL;
        kvcsa_session   *s;
        kvcsa_estimate   e = {.struct_size = sizeof e};
        kvcsa_cost       cost = {.struct_size = sizeof cost};
        kvcsa_pool_stats st;
        uint64_t         empty, taken;

        assert_ok(kvcsa_model_estimate(m, NULL, lengths[i], 1, 0, &e, &err));
        assert_ok(kvcsa_model_cost(m, lengths[i], &cost, &err));
        assert_ok(kvcsa_pool_create(&pp, &pool, &err));
        s = cache_session(pool, m);
        empty = c.n_bytes;
        hold(pool, s, ids, lengths[i]);
        st = pool_figures(pool);
        assert_int_equal(st.used_bytes, e.used_bytes);
        assert_int_equal(e.block_bytes, lengths[i] * 890);
        assert_true(e.used_bytes - cost.resident_bytes <= cost.pending_bytes);
        assert_true(e.slab_bytes + cost.block_bytes >= st.slab_bytes);
        assert_true(st.slab_bytes + cost.block_bytes >= e.slab_bytes);
        /* the allocator's own count; what comes on top is the session's tables and its queue */
        taken = c.n_bytes - empty;
        assert_true(taken + cost.block_bytes >= e.slab_bytes + e.record_bytes);
        assert_true(taken <= e.slab_bytes + e.record_bytes + cost.block_bytes + lengths[i] * 8 +
                                 st.n_sealed_blocks * 64 + (1 << 20));
        kvcsa_session_release(&s);
        kvcsa_pool_release(&pool);
        assert_int_equal(c.n_bytes, 0);
    }
    kvcsa_model_release(&m);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_behaviour_32),
        cmocka_unit_test(test_behaviour_34),
        cmocka_unit_test(test_behaviour_34_after_a_long_life),
        cmocka_unit_test(test_behaviour_34_shared),
        cmocka_unit_test(test_behaviour_35),
        cmocka_unit_test(test_behaviour_61),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
