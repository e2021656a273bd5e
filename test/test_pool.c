/* pool: lifetime and budget; random operations against a model; failing allocations; several
 * threads. */
#include "support/pool_host.h"
#include "support/pool_model.h"
#include "support/prng.h"

#include "base/alloc.h"
#include "base/status.h"

#include <pthread.h>

static uint64_t seed;

static kvcsa_pool_params make_params(fault_alloc *fa, uint64_t budget, uint32_t flags)
{
    return (kvcsa_pool_params){.struct_size = sizeof(kvcsa_pool_params),
                               .allocator = &fa->hook,
                               .budget_bytes = budget,
                               .n_threads = 1,
                               .flags = flags};
}

static kvcsa_pool *make_pool(fault_alloc *fa, uint64_t budget, uint32_t flags)
{
    kvcsa_pool_params p = make_params(fa, budget, flags);
    kvcsa_pool       *pool = NULL;
    kvcsa_error       err;

    if (kvi_pool_create(&p, &pool, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    return pool;
}

static kvi_block_class *get_class(kvcsa_pool *pool, uint32_t index_bytes, uint32_t main_bytes)
{
    const kvi_class_shape shape = {KVI_CLASS_CACHE, index_bytes, main_bytes, PH_TOKENS};

    return ph_class(pool, &shape);
}

/* ------------------------------------------------------------------ lifetime */

static void log_nothing(void *user, int32_t level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
}

static void test_create_copies_the_hooks(void **state)
{
    fault_alloc       fa;
    kvcsa_log         log = {log_nothing, &fa};
    kvcsa_pool_params p;
    kvcsa_pool       *pool = NULL;
    kvcsa_error       err;

    (void)state;
    fault_alloc_init(&fa);
    p = make_params(&fa, 1000, 0);
    p.backend = KVCSA_BACKEND_CPU;
    p.log = &log;
    assert_int_equal(kvi_pool_create(&p, &pool, &err), KVCSA_OK);
    memset(&log, 0, sizeof log);
    memset(&p, 0, sizeof p);
    assert_ptr_equal(kvi_pool_allocator(pool)->user, &fa);
    assert_ptr_equal(kvi_pool_log(pool)->user, &fa);
    assert_true(kvi_pool_log(pool)->write == log_nothing);
    assert_ptr_equal(kvi_pool_ops(pool), kvi_cpu_backend(kvi_cpu_flags(0)));
    assert_int_equal(kvi_pool_backend(pool), KVCSA_BACKEND_CPU);
    assert_true(kvi_pool_numerics(pool) == kvi_pool_ops(pool)->numerics);
    assert_false(kvi_memory_is_apart(kvi_pool_memory(pool)));
    assert_non_null(kvi_pool_device(pool));
    ph_check(pool);
    assert_int_equal(ph_stats(pool).budget_bytes, 1000);
    assert_int_equal(ph_stats(pool).used_bytes, 0);
    assert_int_equal(kvi_pool_get_stats(pool, NULL, &err), KVCSA_ERR_ARG);
    assert_ptr_equal(kvi_pool_retain(pool), pool);
    kvi_pool_release(pool);
    assert_true(fa.n_bytes > 0); /* still there */
    ph_check(pool);
    kvi_pool_release(pool);
    kvi_pool_release(NULL);
    assert_true(fault_alloc_is_clean(&fa));
}

static void no_run(void *user, void (*task)(void *arg, uint32_t i), void *arg, uint32_t n)
{
    (void)user;
    for (uint32_t i = 0; i < n; i++)
        task(arg, i);
}

static void test_create_refuses_wrong_arguments(void **state)
{
    fault_alloc       fa;
    kvcsa_allocator   half = {fault_alloc_alloc, NULL, NULL};
    kvcsa_executor    executor = {NULL, NULL, 2, 0};
    kvcsa_pool_params p;
    kvcsa_pool       *pool = (kvcsa_pool *)&fa;
    kvcsa_error       err;

    (void)state;
    fault_alloc_init(&fa);
    p = make_params(&fa, 0, 8);
    assert_int_equal(kvi_pool_create(&p, &pool, &err), KVCSA_ERR_ARG);
    assert_string_equal(err.text, "pool flags are 0x8, known are 0x7");
    assert_null(pool);
    p = make_params(&fa, 0, 0);
    p.backend = KVCSA_BACKEND_CUDA + 1;
    assert_int_equal(kvi_pool_create(&p, &pool, &err), KVCSA_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "backend is 3, the limit is 2");
    p.backend = KVCSA_BACKEND_CPU;
    p.allocator = &half;
    assert_int_equal(kvi_pool_create(&p, &pool, &err), KVCSA_ERR_ARG);
    p.allocator = &fa.hook;
    p.executor = &executor;
    assert_int_equal(kvi_pool_create(&p, &pool, &err), KVCSA_ERR_ARG);
    p.executor = NULL;
    p.n_threads = 100000;
    assert_int_equal(kvi_pool_create(&p, &pool, &err), KVCSA_ERR_ARG);
    assert_null(pool);
    assert_true(fault_alloc_is_clean(&fa));
    executor.run = no_run;
    p.executor = &executor; /* n_threads does not matter now */
    assert_int_equal(kvi_pool_create(&p, &pool, &err), KVCSA_OK);
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa));
}

static void test_create_with_libc(void **state)
{
    kvcsa_pool_params p = {.struct_size = sizeof p, .n_threads = 2};
    kvcsa_pool       *pool = NULL;
    kvi_block_class  *cls = NULL;
    kvcsa_error       err;

    (void)state;
    assert_int_equal(kvi_pool_create(&p, &pool, &err), KVCSA_OK);
    assert_true(ph_stats(pool).budget_bytes == UINT64_MAX); /* no limit */
    cls = get_class(pool, 100, 200);
    kvi_block_release(pool, ph_block(pool, cls));
    kvi_pool_class_release(pool, cls);
    ph_check(pool);
    kvi_pool_release(pool);
}

/* A whole life of a pool; stops at the first failure and always cleans up. */
static kvcsa_status live_once(fault_alloc *fa)
{
    kvcsa_pool_params p = make_params(fa, 0, KVCSA_POOL_FILL_FREED);
    kvcsa_pool       *pool = NULL;
    kvi_block_class  *cls[2] = {NULL, NULL};
    kvi_block        *blocks[6] = {NULL};
    uint64_t          n_reserved = 0;
    kvcsa_status      st = KVCSA_OK;
    kvcsa_error       err;

    p.n_threads = 3;
    st = kvi_pool_create(&p, &pool, &err);
    if (st != KVCSA_OK) {
        assert_null(pool);
        return st;
    }
    for (size_t i = 0; i < 2 && st == KVCSA_OK; i++)
        st = kvi_pool_class_acquire(
            pool, &(kvi_class_shape){KVI_CLASS_CACHE, 21760, 92160 + 64 * (uint32_t)i, 128},
            &cls[i], &err);
    if (st == KVCSA_OK)
        st = kvi_pool_reserve(pool, cls[0], 3, &err);
    if (st == KVCSA_OK)
        st = kvi_pool_reserve(pool, cls[1], 3, &err);
    for (size_t i = 0; i < 6 && st == KVCSA_OK; i++) {
        n_reserved = ph_stats(pool).reserved_bytes;
        st = kvi_block_acquire(pool, cls[i / 3], &blocks[i], &err);
        ph_check(pool);
        if (st != KVCSA_OK) {
            assert_null(blocks[i]);
            assert_int_equal(ph_stats(pool).reserved_bytes, n_reserved); /* kept */
        }
    }
    kvi_blocks_release(pool, blocks, 6);
    for (size_t i = 0; i < 2; i++) {
        if (cls[i])
            kvi_pool_unreserve(pool, cls[i], cls[i]->n_reserved);
    }
    for (size_t i = 0; i < 2; i++)
        kvi_pool_class_release(pool, cls[i]);
    ph_check(pool);
    assert_int_equal(ph_stats(pool).used_bytes + ph_stats(pool).reserved_bytes, 0);
    assert_int_equal(ph_stats(pool).slab_bytes + ph_stats(pool).record_bytes, 0);
    kvi_pool_release(pool);
    return st;
}

static void test_every_failing_allocation_is_survived(void **state)
{
    fault_alloc fa;
    uint64_t    n = 1;

    (void)state;
    fault_alloc_init(&fa);
    for (;; n++) {
        kvcsa_status st = KVCSA_OK;

        fault_alloc_fail_at(&fa, n);
        st = live_once(&fa);
        assert_true(fault_alloc_is_clean(&fa));
        if (!fault_alloc_hit(&fa)) {
            assert_int_equal(st, KVCSA_OK);
            break;
        }
        assert_int_equal(st, KVCSA_ERR_NOMEM);
    }
    assert_in_range(n, 10, 1000); /* pool, threads, device, 2 classes, 2 slabs of 2 */
}

static void test_create_and_release_stay_flat(void **state)
{
    fault_alloc fa;
    uint64_t    per_life = 0;

    (void)state;
    fault_alloc_init(&fa);
    for (int i = 0; i < 100; i++) {
        uint64_t before = fa.n_total;

        assert_int_equal(live_once(&fa), KVCSA_OK);
        assert_true(fault_alloc_is_clean(&fa));
        if (i > 0)
            assert_int_equal(fa.n_total - before, per_life);
        per_life = fa.n_total - before;
    }
}

/* A pool may be let go with prefixes in it. */
static void test_pool_takes_its_prefixes_along(void **state)
{
    pool_host h;
    int32_t   t[3 * PH_TOKENS];

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    ph_prompt(t, 12, 1);
    kvi_block_release(h.pool, ph_chain(&h, NULL, t, 3, 0));
    kvi_prefix_root_release(h.pool, h.root);
    kvi_pool_class_release(h.pool, h.cls);
    kvi_pool_class_release(h.pool, h.page_cls);
    assert_int_equal(ph_stats(h.pool).n_published_blocks, 3);
    kvi_pool_release(h.pool);
    assert_true(fault_alloc_is_clean(&h.fa));
}

/* ------------------------------------------------------------------ budget */

static void test_budget_is_exact(void **state)
{
    fault_alloc      fa;
    kvcsa_pool      *pool = NULL;
    kvi_block_class *cls = NULL;
    kvi_block_class *pages = NULL;
    kvi_block       *block = NULL;
    kvi_block       *page = NULL;
    kvcsa_error      err;

    (void)state;
    fault_alloc_init(&fa);
    pool = make_pool(&fa, 1000, 0);
    cls = get_class(pool, 100, 150); /* 250 each, though the slab rounds parts up */
    pages = ph_class(pool, &(kvi_class_shape){KVI_CLASS_WINDOW, 0, 125, 0});
    assert_int_equal(kvi_pool_reserve(pool, cls, 5, &err), KVCSA_ERR_FULL);
    assert_string_equal(
        err.text, "blocks need 1250 bytes, 1000 of the pool's budget of 1000 are free");
    assert_int_equal(kvi_pool_reserve(pool, cls, UINT64_MAX, &err), KVCSA_ERR_FULL);
    assert_int_equal(kvi_pool_reserve(pool, cls, UINT64_MAX / 250 + 2, &err), KVCSA_ERR_FULL);
    assert_int_equal(ph_stats(pool).reserved_bytes, 0);
    assert_int_equal(kvi_pool_reserve(pool, cls, 3, &err), KVCSA_OK);
    assert_int_equal(kvi_pool_reserve(pool, pages, 3, &err), KVCSA_ERR_FULL);
    assert_string_equal(
        err.text, "windows need 375 bytes, 250 of the pool's budget of 1000 are free");
    assert_int_equal(kvi_pool_reserve(pool, pages, 2, &err), KVCSA_OK); /* to the last byte */
    assert_int_equal(kvi_pool_reserve(pool, pages, 1, &err), KVCSA_ERR_FULL);
    assert_int_equal(kvi_pool_reserve(pool, cls, 0, &err), KVCSA_OK);
    assert_int_equal(kvi_block_acquire(pool, cls, &block, &err), KVCSA_OK);
    assert_int_equal(kvi_block_acquire(pool, pages, &page, &err), KVCSA_OK);
    assert_int_equal(ph_stats(pool).used_bytes, 375);
    assert_int_equal(ph_stats(pool).reserved_bytes, 625);
    assert_int_equal(ph_stats(pool).window_bytes, 125);
    assert_int_equal(ph_stats(pool).n_window_pages, 1);
    assert_int_equal(ph_stats(pool).n_open_blocks, 1); /* pages are not counted */
    ph_check(pool);
    kvi_block_unacquire(pool, block);
    assert_int_equal(ph_stats(pool).used_bytes, 125);
    assert_int_equal(ph_stats(pool).reserved_bytes, 875);
    /* the slab holds no more than the budget can */
    assert_int_equal(ph_stats(pool).n_free_blocks, 4);
    kvi_pool_unreserve(pool, cls, 3);
    kvi_pool_unreserve(pool, pages, 1);
    kvi_block_release(pool, page);
    assert_int_equal(ph_stats(pool).used_bytes, 0);
    kvi_pool_count_session(pool, 1);
    kvi_pool_count_session(pool, 1);
    kvi_pool_count_session(pool, -1);
    assert_int_equal(ph_stats(pool).n_sessions, 1);
    kvi_pool_count_session(pool, -1);
    ph_check(pool);
    kvi_pool_class_release(pool, cls);
    kvi_pool_class_release(pool, pages);
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa));
}

/* Giving up one thing for another: with room for both, for one only, and for neither. */
static void test_trade_is_one_move(void **state)
{
    pool_host       h;
    int32_t         t[4 * PH_TOKENS];
    kvi_block      *chain = NULL;
    kvi_block      *tail = NULL;
    kvi_reservation want[3];

    (void)state;
    ph_open(&h, 5 * PH_BLOCK, KVCSA_POOL_FILL_FREED, KVCSA_EVICT_LRU);
    ph_prompt(t, 16, 1);
    chain = ph_chain(&h, NULL, t, 3, 0);
    tail = ph_block(h.pool, h.cls);
    want[0] = (kvi_reservation){h.cls, 6};
    want[1] = (kvi_reservation){h.page_cls, 0};
    want[2] = (kvi_reservation){NULL, 0};
    assert_int_equal(kvi_pool_trade(h.pool, want, 3, (kvi_block *[]){chain, NULL, tail}, 3, NULL),
                     KVCSA_ERR_FULL);
    assert_int_equal(ph_stats(h.pool).used_bytes, 4 * PH_BLOCK);
    assert_int_equal(ph_stats(h.pool).reserved_bytes, 0);
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 0);
    want[0].n_blocks = 3; /* one is free, the tail goes, and the end of the chain */
    want[1].n_blocks = 0;
    assert_int_equal(kvi_pool_trade(h.pool, want, 3, (kvi_block *[]){chain, NULL, tail}, 3, NULL),
                     KVCSA_OK);
    assert_int_equal(ph_stats(h.pool).used_bytes, 2 * PH_BLOCK);
    assert_int_equal(ph_stats(h.pool).reserved_bytes, 3 * PH_BLOCK);
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 1);
    assert_int_equal(ph_match(&h, t, 12), 8);
    ph_check(h.pool);
    kvi_pool_unreserve(h.pool, h.cls, 3);
    ph_close(&h);
}

/* A session that went back: what is known behind its end could go as well, once it lets go. And
 * blocks that it holds twice, or that hang on each other, count once. */
static void test_trade_counts_all_that_could_go(void **state)
{
    pool_host  h;
    int32_t    t[4 * PH_TOKENS];
    kvi_block *page = NULL;
    kvi_block *chain = NULL;
    kvi_block *mine = NULL;

    (void)state;
    ph_open(&h, 6 * PH_BLOCK + PH_PAGE, KVCSA_POOL_FILL_FREED, KVCSA_EVICT_LRU);
    ph_prompt(t, 16, 1);
    chain = ph_chain(&h, NULL, t, 2, 0);
    kvi_block_retain(h.pool, chain);
    kvi_block_release(h.pool, ph_chain(&h, chain, t + 8, 2, 0));
    page = ph_block(h.pool, h.page_cls);
    mine = ph_open_block(&h, t);
    mine = kvi_block_seal(h.pool, h.root, mine, NULL, KVI_SEAL_PRIVATE, &page, 1);
    mine = ph_seal(&h, mine, t, KVI_SEAL_TAINTED);
    kvi_block_retain(h.pool, mine);
    kvi_block_release(h.pool, page);
    assert_int_equal(ph_stats(h.pool).used_bytes, 6 * PH_BLOCK + PH_PAGE);
    assert_int_equal(kvi_pool_trade(h.pool, (kvi_reservation[]){{h.cls, 6}, {h.page_cls, 2}}, 2,
                                    (kvi_block *[]){mine, chain, mine}, 3, NULL),
                     KVCSA_ERR_FULL);
    assert_int_equal(ph_stats(h.pool).used_bytes, 6 * PH_BLOCK + PH_PAGE);
    ph_check(h.pool);
    assert_int_equal(kvi_pool_trade(h.pool, (kvi_reservation[]){{h.cls, 6}, {h.page_cls, 1}}, 2,
                                    (kvi_block *[]){mine, chain, mine}, 3, NULL),
                     KVCSA_OK);
    assert_int_equal(ph_stats(h.pool).used_bytes, 0);
    kvi_pool_unreserve(h.pool, h.cls, 6);
    kvi_pool_unreserve(h.pool, h.page_cls, 1);
    ph_close(&h);
}

/* ------------------------------------------------------------------ random operations against a
 * model */

static uint32_t below(void *user, uint32_t n)
{
    return (uint32_t)prng_below(user, n);
}

static uint64_t run_model(pool_model_params params, uint64_t with, int n_steps)
{
    static pool_model m;
    prng              r;
    int               bad = 0;

    prng_init(&r, with);
    params.below = below;
    params.user = &r;
    bad = pool_model_init(&m, &params);
    for (int i = 0; i < n_steps && !bad; i++)
        bad = pool_model_step(&m);
    /* the sequence met what it is about */
    if (!bad && n_steps >= 2000) {
        assert_in_range(m.n_found, 10, UINT64_MAX);
        assert_in_range(m.n_deduplicated, 10, UINT64_MAX);
        assert_in_range(m.n_failed, 3, UINT64_MAX);
        if (params.budget) {
            assert_in_range(m.n_full, 10, UINT64_MAX);
            assert_in_range(m.n_evicted, 10, UINT64_MAX);
        }
    }
    if (bad || pool_model_finish(&m))
        fail_msg("model with seed %llu: %s", (unsigned long long)with, m.fault);
    return m.n_steps;
}

static void test_random_operations_match_the_model(void **state)
{
    uint64_t n = 0;

    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        const uint64_t s = seed + 100 * i;

        n += run_model((pool_model_params){.budget = 5000, .evict = KVCSA_EVICT_LRU}, s, 4000);
        n += run_model((pool_model_params){.budget = 4000, .evict = KVCSA_EVICT_COST}, s + 1, 4000);
        n += run_model((pool_model_params){.budget = 3000, .flags = KVCSA_POOL_FILL_FREED,
                                           .evict = KVCSA_EVICT_COST, .weak_hash = 1},
                       s + 2, 2000);
        n += run_model((pool_model_params){.flags = KVCSA_POOL_ZERO_FREED, .weak_hash = i & 1},
                       s + 3, 2000);
    }
    assert_int_equal(n, 4 * 12000);
}

/* ------------------------------------------------------------------ several threads */

typedef struct worker {
    pool_host *h;
    uint64_t   seed;
    int        ok;
} worker;

/* Chains of few kinds, so that all threads meet in the same blocks. */
static kvi_block *grow_somewhere(worker *w, prng *r)
{
    kvi_block *chain = NULL;

    for (uint64_t depth = 1 + prng_below(r, 4); depth > 0; depth--) {
        kvi_block *block = NULL;
        int32_t    token = (int32_t)prng_below(r, 2);

        if (kvi_pool_reserve(w->h->pool, w->h->cls, 1, NULL) != KVCSA_OK)
            break;
        if (kvi_block_acquire(w->h->pool, w->h->cls, &block, NULL) != KVCSA_OK) {
            w->ok = 0;
            break;
        }
        for (size_t i = 0; i < PH_TOKENS; i++)
            kvi_block_tokens(block)[i] = token;
        memset(kvi_block_index_part(block), token, PH_INDEX);
        memset(kvi_block_main_part(block), token + 1, PH_MAIN);
        chain = kvi_block_seal(w->h->pool, w->h->root, block, chain, 0, NULL, 0);
        w->ok &= kvi_block_tokens(chain)[3] == token &&
                 kvi_block_main_part(chain)[PH_MAIN - 1] == token + 1;
    }
    return chain;
}

static void *use_pool(void *arg)
{
    worker          *w = arg;
    kvi_prefix_match match;
    prng             r;

    prng_init(&r, w->seed);
    for (int round = 0; round < 300 && w->ok; round++) {
        kvi_block *chain = grow_somewhere(w, &r);
        int32_t    t[4 * PH_TOKENS] = {0};

        t[8] = t[9] = t[10] = t[11] = 1;
        kvi_prefix_find(w->h->pool, w->h->root, NULL, t, 4 * PH_TOKENS, &match);
        w->ok &= match.n_tokens <= 16 && (match.n_tokens >= 4) == (match.last != NULL);
        if (match.last) {
            w->ok &= kvi_block_tokens(match.last)[0] == (match.n_tokens / 4 == 3);
            kvi_prefix_touch(w->h->pool, match.last, 0);
            if (round % 3 == 0) {
                kvi_prefix_pin(w->h->pool, match.last);
                kvi_prefix_unpin(w->h->pool, match.last);
            }
        }
        kvi_prefix_match_release(w->h->pool, &match);
        kvi_block_release(w->h->pool, chain);
        if (round % 50 == 7)
            kvi_prefix_forget(w->h->pool, w->h->root, NULL);
        if (round % 50 == 20)
            kvi_pool_trim(w->h->pool, 5 * PH_BLOCK, NULL);
        if (round % 64 == 0)
            w->ok &= kvi_pool_check(w->h->pool, NULL) == KVCSA_OK;
    }
    kvi_pool_release(w->h->pool);
    return NULL;
}

static void test_pool_is_shared_by_threads(void **state)
{
    static pool_host h;
    worker           workers[4];
    pthread_t        ids[4];

    (void)state;
    ph_open(&h, 20 * PH_BLOCK, 0, KVCSA_EVICT_COST); /* so that some reservations evict or fail */
    h.pool->trace = (kvcsa_trace){0};
    for (size_t i = 0; i < 4; i++) {
        workers[i] = (worker){&h, seed + i, 1};
        kvi_pool_retain(h.pool);
        assert_int_equal(pthread_create(&ids[i], NULL, use_pool, &workers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(ids[i], NULL);
        assert_true(workers[i].ok);
    }
    assert_int_equal(ph_stats(h.pool).used_bytes, ph_stats(h.pool).evictable_bytes);
    ph_close(&h);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_copies_the_hooks),
        cmocka_unit_test(test_create_refuses_wrong_arguments),
        cmocka_unit_test(test_create_with_libc),
        cmocka_unit_test(test_every_failing_allocation_is_survived),
        cmocka_unit_test(test_create_and_release_stay_flat),
        cmocka_unit_test(test_budget_is_exact),
        cmocka_unit_test(test_trade_is_one_move),
        cmocka_unit_test(test_trade_counts_all_that_could_go),
        cmocka_unit_test(test_pool_takes_its_prefixes_along),
        cmocka_unit_test(test_random_operations_match_the_model),
        cmocka_unit_test(test_pool_is_shared_by_threads),
    };

    seed = prng_seed(argc, argv, 20250811);
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
