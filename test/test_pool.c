/* pool: budget, blocks, invariants; random operations against a model; failing allocations. */
#include "pool/pool.h"
#include "pool/pool_int.h"

#include "base/alloc.h"
#include "base/status.h"

#include "support/fault_alloc.h"
#include "support/prng.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;

static kvcsa_pool_params make_params(fault_alloc *fa, uint64_t budget, uint32_t flags)
{
    kvcsa_pool_params p = {sizeof p, &fa->hook, NULL, NULL, budget, 1, flags};

    return p;
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

static void check_pool(kvcsa_pool *pool)
{
    kvcsa_error err;

    if (kvi_pool_check(pool, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
}

static kvcsa_pool_stats get_stats(kvcsa_pool *pool)
{
    kvcsa_pool_stats s;
    kvcsa_error      err;

    memset(&s, 0x77, sizeof s);
    s.struct_size = 12345;
    assert_int_equal(kvi_pool_get_stats(pool, &s, &err), KVCSA_OK);
    assert_int_equal(s.struct_size, 12345);
    return s;
}

static kvi_block_class *get_class(kvcsa_pool *pool, uint32_t index_bytes, uint32_t main_bytes)
{
    kvi_block_class *cls = NULL;
    kvcsa_error      err;

    assert_int_equal(kvi_pool_class_acquire(pool, index_bytes, main_bytes, &cls, &err), KVCSA_OK);
    assert_non_null(cls);
    return cls;
}

static kvi_block *get_block(kvcsa_pool *pool, kvi_block_class *cls)
{
    kvi_block  *block = NULL;
    kvcsa_error err;

    assert_int_equal(kvi_pool_reserve(pool, cls, 1, &err), KVCSA_OK);
    assert_int_equal(kvi_block_acquire(pool, cls, &block, &err), KVCSA_OK);
    assert_int_equal(kvi_block_state(block), KVI_BLOCK_OPEN);
    return block;
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
    p.log = &log;
    assert_int_equal(kvi_pool_create(&p, &pool, &err), KVCSA_OK);
    memset(&log, 0, sizeof log);
    memset(&p, 0, sizeof p);
    assert_ptr_equal(kvi_pool_allocator(pool)->user, &fa);
    assert_ptr_equal(kvi_pool_log(pool)->user, &fa);
    assert_true(kvi_pool_log(pool)->write == log_nothing);
    assert_ptr_equal(kvi_pool_ops(pool), kvi_cpu_backend());
    assert_non_null(kvi_pool_device(pool));
    check_pool(pool);
    assert_int_equal(get_stats(pool).budget_bytes, 1000);
    assert_int_equal(get_stats(pool).used_bytes, 0);
    assert_int_equal(kvi_pool_get_stats(pool, NULL, &err), KVCSA_ERR_ARG);
    assert_ptr_equal(kvi_pool_retain(pool), pool);
    kvi_pool_release(pool);
    assert_true(fa.n_bytes > 0); /* still there */
    check_pool(pool);
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
    p = make_params(&fa, 0, 2);
    assert_int_equal(kvi_pool_create(&p, &pool, &err), KVCSA_ERR_ARG);
    assert_string_equal(err.text, "pool flags are 0x2, known are 0x1");
    assert_null(pool);
    p = make_params(&fa, 0, 0);
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
    kvcsa_pool_params p = {sizeof p, NULL, NULL, NULL, 0, 2, 0};
    kvcsa_pool       *pool = NULL;
    kvi_block_class  *cls = NULL;
    kvcsa_error       err;

    (void)state;
    assert_int_equal(kvi_pool_create(&p, &pool, &err), KVCSA_OK);
    assert_true(get_stats(pool).budget_bytes == UINT64_MAX); /* no limit */
    cls = get_class(pool, 100, 200);
    kvi_block_release(pool, get_block(pool, cls));
    kvi_pool_class_release(pool, cls);
    check_pool(pool);
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
        st = kvi_pool_class_acquire(pool, 21760, 92160 + 64 * (uint32_t)i, &cls[i], &err);
    if (st == KVCSA_OK)
        st = kvi_pool_reserve(pool, cls[0], 3, &err);
    if (st == KVCSA_OK)
        st = kvi_pool_reserve(pool, cls[1], 3, &err);
    for (size_t i = 0; i < 6 && st == KVCSA_OK; i++) {
        n_reserved = get_stats(pool).reserved_bytes;
        st = kvi_block_acquire(pool, cls[i / 3], &blocks[i], &err);
        check_pool(pool);
        if (st != KVCSA_OK) {
            assert_null(blocks[i]);
            assert_int_equal(get_stats(pool).reserved_bytes, n_reserved); /* kept */
        }
    }
    for (size_t i = 0; i < 6; i++) {
        if (blocks[i])
            kvi_block_release(pool, blocks[i]);
        else if (cls[i / 3] && cls[i / 3]->n_reserved)
            kvi_pool_unreserve(pool, cls[i / 3], 1);
    }
    for (size_t i = 0; i < 2; i++)
        kvi_pool_class_release(pool, cls[i]);
    check_pool(pool);
    assert_int_equal(get_stats(pool).used_bytes + get_stats(pool).reserved_bytes, 0);
    assert_int_equal(get_stats(pool).slab_bytes, 0);
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

/* ------------------------------------------------------------------ budget */

static void test_budget_is_exact(void **state)
{
    fault_alloc      fa;
    kvcsa_pool      *pool = NULL;
    kvi_block_class *cls = NULL;
    kvi_block       *block = NULL;
    kvcsa_error      err;

    (void)state;
    fault_alloc_init(&fa);
    pool = make_pool(&fa, 1000, 0);
    cls = get_class(pool, 100, 150); /* 250 each, though the slab rounds parts up */
    assert_int_equal(kvi_pool_reserve(pool, cls, 5, &err), KVCSA_ERR_FULL);
    assert_string_equal(
        err.text, "blocks need 1250 bytes, 1000 of the pool's budget of 1000 are free");
    assert_int_equal(kvi_pool_reserve(pool, cls, UINT64_MAX, &err), KVCSA_ERR_FULL);
    assert_int_equal(kvi_pool_reserve(pool, cls, UINT64_MAX / 250 + 2, &err), KVCSA_ERR_FULL);
    assert_int_equal(get_stats(pool).reserved_bytes, 0);
    assert_int_equal(kvi_pool_reserve(pool, cls, 3, &err), KVCSA_OK);
    assert_int_equal(kvi_pool_charge(pool, 251, &err), KVCSA_ERR_FULL);
    assert_int_equal(kvi_pool_charge(pool, UINT64_MAX, &err), KVCSA_ERR_FULL);
    assert_int_equal(kvi_pool_charge(pool, 250, &err), KVCSA_OK);
    assert_int_equal(kvi_pool_charge(pool, 0, &err), KVCSA_OK);
    assert_int_equal(kvi_pool_charge(pool, 1, &err), KVCSA_ERR_FULL);
    assert_int_equal(kvi_pool_reserve(pool, cls, 1, &err), KVCSA_ERR_FULL);
    assert_int_equal(kvi_pool_reserve(pool, cls, 0, &err), KVCSA_OK);
    assert_int_equal(kvi_block_acquire(pool, cls, &block, &err), KVCSA_OK);
    assert_int_equal(get_stats(pool).used_bytes, 500);
    assert_int_equal(get_stats(pool).reserved_bytes, 500);
    assert_int_equal(get_stats(pool).window_bytes, 250);
    check_pool(pool);
    kvi_block_unacquire(pool, block);
    assert_int_equal(get_stats(pool).used_bytes, 250);
    assert_int_equal(get_stats(pool).reserved_bytes, 750);
    /* the slab holds no more than the budget can */
    assert_int_equal(get_stats(pool).n_free_blocks, 4);
    kvi_pool_unreserve(pool, cls, 3);
    kvi_pool_uncharge(pool, 250);
    assert_int_equal(get_stats(pool).used_bytes, 0);
    kvi_pool_count_session(pool, 1);
    kvi_pool_count_session(pool, 1);
    kvi_pool_count_session(pool, -1);
    assert_int_equal(get_stats(pool).n_sessions, 1);
    kvi_pool_count_session(pool, -1);
    check_pool(pool);
    kvi_pool_class_release(pool, cls);
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa));
}

/* ------------------------------------------------------------------ blocks */

static void test_classes_of_equal_parts_are_one(void **state)
{
    fault_alloc      fa;
    kvcsa_pool      *pool = NULL;
    kvi_block_class *a = NULL;
    kvi_block_class *b = NULL;
    kvi_block_class *c = NULL;

    (void)state;
    fault_alloc_init(&fa);
    pool = make_pool(&fa, 0, 0);
    a = get_class(pool, 64, 128);
    b = get_class(pool, 64, 128);
    c = get_class(pool, 128, 64);
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    kvi_block_release(pool, get_block(pool, a));
    assert_true(get_stats(pool).slab_bytes > 0);
    kvi_pool_class_release(pool, a);
    check_pool(pool);
    assert_true(get_stats(pool).slab_bytes > 0); /* one user is left */
    kvi_pool_class_release(pool, b);
    assert_int_equal(get_stats(pool).slab_bytes, 0);
    kvi_pool_class_release(pool, c);
    kvi_pool_class_release(pool, NULL);
    check_pool(pool);
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa));
}

static void test_class_waits_for_its_blocks(void **state)
{
    fault_alloc      fa;
    kvcsa_pool      *pool = NULL;
    kvi_block_class *cls = NULL;
    kvi_block       *block = NULL;

    (void)state;
    fault_alloc_init(&fa);
    pool = make_pool(&fa, 0, 0);
    cls = get_class(pool, 64, 128);
    block = get_block(pool, cls);
    kvi_block_seal(pool, block);
    kvi_pool_class_release(pool, cls); /* the last user leaves a block that somebody else holds */
    check_pool(pool);
    memset(kvi_block_main_part(block), 1, 128);
    assert_ptr_equal(get_class(pool, 64, 128), cls); /* found again */
    kvi_pool_class_release(pool, cls);
    kvi_block_release(pool, block);
    assert_int_equal(get_stats(pool).slab_bytes, 0);
    check_pool(pool);
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa));
}

static void test_block_walks_through_its_states(void **state)
{
    fault_alloc      fa;
    kvcsa_pool      *pool = NULL;
    kvi_block_class *cls = NULL;
    kvi_block       *block = NULL;
    kvcsa_pool_stats s;

    (void)state;
    fault_alloc_init(&fa);
    pool = make_pool(&fa, 0, KVCSA_POOL_FILL_FREED);
    cls = get_class(pool, 100, 200);
    block = get_block(pool, cls);
    assert_int_equal(kvi_block_index_part(block)[0], 0xA5); /* a fresh one is filled too */
    memset(kvi_block_index_part(block), 1, 100);
    memset(kvi_block_main_part(block), 2, 200);
    check_pool(pool);
    kvi_block_seal(pool, block);
    assert_int_equal(kvi_block_state(block), KVI_BLOCK_SEALED);
    s = get_stats(pool);
    assert_int_equal(s.n_open_blocks, 0);
    assert_int_equal(s.n_sealed_blocks, 1);
    assert_int_equal(s.used_bytes, 300);
    kvi_block_retain(pool, block);
    kvi_block_release(pool, block);
    assert_int_equal(kvi_block_state(block), KVI_BLOCK_SEALED);
    assert_int_equal(kvi_block_index_part(block)[99], 1);
    assert_int_equal(kvi_block_main_part(block)[199], 2);
    check_pool(pool);
    kvi_block_release(pool, block);
    assert_int_equal(kvi_block_state(block), KVI_BLOCK_FREE);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(kvi_block_index_part(block)[i], 0xA5);
    for (size_t i = 0; i < 200; i++)
        assert_int_equal(kvi_block_main_part(block)[i], 0xA5);
    block = get_block(pool, cls);
    kvi_block_release(pool, block); /* an OPEN one may be let go as well */
    assert_int_equal(kvi_block_state(block), KVI_BLOCK_FREE);
    s = get_stats(pool);
    assert_int_equal(s.n_acquired, 2);
    assert_int_equal(s.n_released, 2);
    assert_int_equal(s.used_bytes, 0);
    check_pool(pool);
    kvi_pool_class_release(pool, cls);
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa));
}

static int is_all(const uint8_t *p, size_t n, uint8_t value)
{
    /* each byte equals the one before it */
    return n == 0 || (p[0] == value && memcmp(p, p + 1, n - 1) == 0);
}

/* Every byte of every part belongs to one block only. */
static void test_parts_do_not_overlap(void **state)
{
    static const uint32_t sizes[][2] = {{1, 1},         {0, 70},          {70, 0},
                                        {0, 0},         {64, 64},         {65, 127},
                                        {21760, 92160}, {300000, 900000}, {5, 1048576}};
    enum { N = 20 };
    fault_alloc fa;
    kvcsa_pool *pool = NULL;
    kvi_block  *blocks[N];

    (void)state;
    fault_alloc_init(&fa);
    pool = make_pool(&fa, 0, 0);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const uint32_t   ib = sizes[k][0];
        const uint32_t   mb = sizes[k][1];
        kvi_block_class *cls = get_class(pool, ib, mb);

        for (size_t i = 0; i < N; i++) {
            blocks[i] = get_block(pool, cls);
            assert_int_equal((uintptr_t)kvi_block_index_part(blocks[i]) % 64, 0);
            assert_int_equal((uintptr_t)kvi_block_main_part(blocks[i]) % 64, 0);
            memset(kvi_block_index_part(blocks[i]), (int)(2 * i), ib);
            memset(kvi_block_main_part(blocks[i]), (int)(2 * i + 1), mb);
        }
        for (size_t i = 0; i < N; i++) {
            const uint8_t *index = kvi_block_index_part(blocks[i]);
            const uint8_t *main = kvi_block_main_part(blocks[i]);

            for (size_t j = 0; j < i; j++)
                assert_ptr_not_equal(blocks[i], blocks[j]);
            assert_true(is_all(index, ib, (uint8_t)(2 * i)));
            assert_true(is_all(main, mb, (uint8_t)(2 * i + 1)));
        }
        check_pool(pool);
        assert_int_equal(get_stats(pool).used_bytes, (uint64_t)N * (ib + mb));
        for (size_t i = 0; i < N; i++)
            kvi_block_release(pool, blocks[i]);
        kvi_pool_class_release(pool, cls);
    }
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa)); /* fences of the slabs too */
}

static void test_slabs_are_about_a_megabyte(void **state)
{
    fault_alloc      fa;
    kvcsa_pool      *pool = NULL;
    kvi_block_class *cls = NULL;
    kvi_block       *blocks[10];

    (void)state;
    fault_alloc_init(&fa);
    pool = make_pool(&fa, 0, 0);
    cls = get_class(pool, 21760, 92160); /* the shape of V4.1: 113,920 bytes, no rounding */
    assert_int_equal(get_stats(pool).slab_bytes, 0); /* none before a block is asked for */
    for (size_t i = 0; i < 10; i++)
        blocks[i] = get_block(pool, cls);
    assert_int_equal(get_stats(pool).slab_bytes, 2 * 9 * 113920);
    for (size_t i = 0; i < 10; i++)
        kvi_block_release(pool, blocks[i]);
    assert_int_equal(get_stats(pool).n_free_blocks, 18);
    kvi_pool_class_release(pool, cls);
    cls = get_class(pool, 1 << 20, 3 << 20); /* larger than a slab: one by one */
    blocks[0] = get_block(pool, cls);
    assert_int_equal(get_stats(pool).slab_bytes, 4 << 20);
    kvi_block_release(pool, blocks[0]);
    kvi_pool_class_release(pool, cls);
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa));
}

/* ------------------------------------------------------------------ the check itself */

static void expect_broken(kvcsa_pool *pool, const char *name)
{
    kvcsa_error err;

    assert_int_equal(kvi_pool_check(pool, &err), KVCSA_ERR_INTERNAL);
    if (strncmp(err.text, name, strlen(name)) != 0)
        fail_msg("wanted %s, got: %s", name, err.text);
}

#define EXPECT_BROKEN_BY(field, value, name) \
    do {                                     \
        __typeof__(field) old_ = (field);    \
        (field) = (value);                   \
        expect_broken(pool, (name));         \
        (field) = old_;                      \
        check_pool(pool);                    \
    } while (0)

static void test_check_names_what_is_broken(void **state)
{
    fault_alloc      fa;
    kvcsa_pool      *pool = NULL;
    kvi_block_class *cls = NULL;
    kvi_block_class *other = NULL;
    kvi_block       *open = NULL;
    kvi_block       *sealed = NULL;
    kvi_block       *freed = NULL;
    kvcsa_error      err;

    (void)state;
    fault_alloc_init(&fa);
    pool = make_pool(&fa, 100000, KVCSA_POOL_FILL_FREED);
    cls = get_class(pool, 1000, 2000);
    other = get_class(pool, 1000, 2001);
    open = get_block(pool, cls);
    sealed = get_block(pool, cls);
    kvi_block_seal(pool, sealed);
    freed = get_block(pool, cls);
    kvi_block_release(pool, freed);
    assert_int_equal(kvi_pool_reserve(pool, cls, 2, &err), KVCSA_OK);
    check_pool(pool);

    EXPECT_BROKEN_BY(open->state, 3, "P1: ");
    EXPECT_BROKEN_BY(open->refs, 2, "P2: ");
    EXPECT_BROKEN_BY(open->refs, 0, "P2: ");
    EXPECT_BROKEN_BY(sealed->refs, 0, "P2: ");
    EXPECT_BROKEN_BY(freed->refs, 1, "P2: ");
    EXPECT_BROKEN_BY(cls->free_list, cls->free_list->next_free, "P3: ");
    EXPECT_BROKEN_BY(cls->free_list, open, "P3: ");
    EXPECT_BROKEN_BY(freed->next_free, freed, "P3: "); /* a ring */
    EXPECT_BROKEN_BY(freed->next_free, NULL, "P3: ");
    EXPECT_BROKEN_BY(cls->n_free, cls->n_free + 1, "P4: ");
    EXPECT_BROKEN_BY(cls->n_open, 0, "P4: ");
    EXPECT_BROKEN_BY(cls->n_sealed, 2, "P4: ");
    EXPECT_BROKEN_BY(cls->main_stride, cls->main_stride + 8, "P5: ");
    EXPECT_BROKEN_BY(cls->slabs->cls, other, "P5: ");
    EXPECT_BROKEN_BY(pool->slab_bytes, 0, "P5: ");
    EXPECT_BROKEN_BY(pool->used_bytes, pool->used_bytes + 1, "P6: ");
    EXPECT_BROKEN_BY(pool->window_bytes, 1, "P6: ");
    EXPECT_BROKEN_BY(pool->reserved_bytes, 0, "P6: ");
    EXPECT_BROKEN_BY(cls->n_reserved, 3, "P6: ");
    EXPECT_BROKEN_BY(pool->budget_bytes, 11999, "P6: ");
    EXPECT_BROKEN_BY(pool->n_acquired, 0, "P7: ");
    EXPECT_BROKEN_BY(pool->n_released, 0, "P7: ");
    EXPECT_BROKEN_BY(other->n_users, 0, "P8: ");
    EXPECT_BROKEN_BY(other->main_bytes, 2000, "P8: ");
    EXPECT_BROKEN_BY(kvi_block_index_part(freed)[999], 0, "P9: ");
    EXPECT_BROKEN_BY(kvi_block_main_part(freed)[1999], 0, "P9: ");

    kvi_pool_unreserve(pool, cls, 2);
    kvi_block_release(pool, open);
    kvi_block_release(pool, sealed);
    kvi_pool_class_release(pool, cls);
    kvi_pool_class_release(pool, other);
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa));
}

/* ------------------------------------------------------------------ random operations against a
 * model */

enum { N_CLASSES = 3, N_SLOTS = 60 };
static const uint32_t class_sizes[N_CLASSES][2] = {{300, 1000}, {64, 8192}, {0, 20000}};

typedef struct slot { /* a block as the model knows it */
    kvi_block *block;
    uint32_t   state;
    uint32_t   refs;
    int        c;
    uint8_t    mark; /* what its bytes are */
} slot;

typedef struct model {
    kvcsa_pool      *pool;
    fault_alloc      fa;
    prng             r;
    uint64_t         budget;
    uint64_t         windows;
    kvi_block_class *cls[N_CLASSES];
    uint64_t         n_users[N_CLASSES];
    uint64_t         n_reserved[N_CLASSES];
    uint64_t         n_acquired;
    uint64_t         n_released;
    slot             slots[N_SLOTS];
} model;

static uint64_t model_block_bytes(int c)
{
    return (uint64_t)class_sizes[c][0] + class_sizes[c][1];
}

static uint64_t model_used(const model *m)
{
    uint64_t used = m->windows;

    for (size_t i = 0; i < N_SLOTS; i++) {
        if (m->slots[i].state != KVI_BLOCK_FREE)
            used += model_block_bytes(m->slots[i].c);
    }
    return used;
}

static uint64_t model_reserved(const model *m)
{
    uint64_t reserved = 0;

    for (int c = 0; c < N_CLASSES; c++)
        reserved += m->n_reserved[c] * model_block_bytes(c);
    return reserved;
}

static uint64_t model_room(const model *m)
{
    return m->budget - model_used(m) - model_reserved(m);
}

/* a slot in this state, or NULL */
static slot *pick_slot(model *m, uint32_t state)
{
    size_t start = (size_t)prng_below(&m->r, N_SLOTS);

    for (size_t i = 0; i < N_SLOTS; i++) {
        slot *s = &m->slots[(start + i) % N_SLOTS];

        if (s->state == state)
            return s;
    }
    return NULL;
}

static void compare(model *m)
{
    kvcsa_pool_stats s = get_stats(m->pool);
    uint64_t         n[3] = {0};

    check_pool(m->pool);
    for (size_t i = 0; i < N_SLOTS; i++) {
        const slot *x = &m->slots[i];

        n[x->state]++;
        if (x->state == KVI_BLOCK_FREE)
            continue;
        assert_int_equal(kvi_block_state(x->block), x->state);
        for (size_t k = 0; k < class_sizes[x->c][0]; k += 97)
            assert_int_equal(kvi_block_index_part(x->block)[k], x->mark);
        for (size_t k = 0; k < class_sizes[x->c][1]; k += 997)
            assert_int_equal(kvi_block_main_part(x->block)[k], x->mark);
    }
    assert_int_equal(s.used_bytes, model_used(m));
    assert_int_equal(s.reserved_bytes, model_reserved(m));
    assert_int_equal(s.window_bytes, m->windows);
    assert_int_equal(s.n_open_blocks, n[KVI_BLOCK_OPEN]);
    assert_int_equal(s.n_sealed_blocks, n[KVI_BLOCK_SEALED]);
    assert_int_equal(s.n_acquired, m->n_acquired);
    assert_int_equal(s.n_released, m->n_released);
    assert_true(s.used_bytes + s.reserved_bytes <= s.budget_bytes);
}

static void model_class(model *m, int c)
{
    int in_use = m->n_reserved[c] > 0;

    for (size_t i = 0; i < N_SLOTS; i++)
        in_use |= m->slots[i].state != KVI_BLOCK_FREE && m->slots[i].c == c;
    if (m->n_users[c] == 0 || prng_below(&m->r, 2)) {
        kvi_block_class *cls = get_class(m->pool, class_sizes[c][0], class_sizes[c][1]);

        if (m->n_users[c] || in_use)
            assert_ptr_equal(cls, m->cls[c]);
        m->cls[c] = cls;
        m->n_users[c]++;
    } else if (m->n_users[c] > 1 || m->n_reserved[c] == 0) { /* a reservation belongs to a user */
        kvi_pool_class_release(m->pool, m->cls[c]);
        m->n_users[c]--;
    }
}

static void model_reserve(model *m, int c)
{
    uint64_t    n = prng_below(&m->r, 6);
    int         fits = n * model_block_bytes(c) <= model_room(m);
    kvcsa_error err;

    if (m->n_users[c] == 0)
        return;
    assert_int_equal(kvi_pool_reserve(m->pool, m->cls[c], n, &err),
                     fits ? KVCSA_OK : KVCSA_ERR_FULL);
    if (fits)
        m->n_reserved[c] += n;
}

static void model_acquire(model *m, int c)
{
    slot        *s = pick_slot(m, KVI_BLOCK_FREE);
    kvcsa_status st = KVCSA_OK;
    kvcsa_error  err;

    if (!s || m->n_reserved[c] == 0)
        return;
    fault_alloc_fail_at(&m->fa, prng_below(&m->r, 4)); /* often fails if a slab is needed */
    st = kvi_block_acquire(m->pool, m->cls[c], &s->block, &err);
    assert_int_equal(st, fault_alloc_hit(&m->fa) ? KVCSA_ERR_NOMEM : KVCSA_OK);
    fault_alloc_fail_at(&m->fa, 0);
    if (st != KVCSA_OK) {
        assert_null(s->block);
        return;
    }
    s->state = KVI_BLOCK_OPEN;
    s->refs = 1;
    s->c = c;
    s->mark = (uint8_t)prng_u32(&m->r);
    memset(kvi_block_index_part(s->block), s->mark, class_sizes[c][0]);
    memset(kvi_block_main_part(s->block), s->mark, class_sizes[c][1]);
    m->n_reserved[c]--;
    m->n_acquired++;
}

static void model_drop(model *m, slot *s)
{
    kvi_block_release(m->pool, s->block);
    if (--s->refs == 0) {
        s->state = KVI_BLOCK_FREE;
        m->n_released++;
    }
}

static void model_window(model *m)
{
    uint64_t    bytes = prng_below(&m->r, 30000);
    int         fits = bytes <= model_room(m);
    kvcsa_error err;

    if (prng_below(&m->r, 2)) {
        assert_int_equal(kvi_pool_charge(m->pool, bytes, &err), fits ? KVCSA_OK : KVCSA_ERR_FULL);
        m->windows += fits ? bytes : 0;
    } else {
        bytes = prng_below(&m->r, m->windows + 1);
        kvi_pool_uncharge(m->pool, bytes);
        m->windows -= bytes;
    }
}

static void model_step(model *m)
{
    int      c = (int)prng_below(&m->r, N_CLASSES);
    slot    *s = NULL;
    uint64_t n = 0;

    switch (prng_below(&m->r, 12)) {
    case 0: model_class(m, c); break;
    case 1:
    case 2: model_reserve(m, c); break;
    case 3: model_window(m); break;
    case 4: /* give some of a reservation back */
        n = prng_below(&m->r, m->n_reserved[c] + 1);
        if (n > 0)
            kvi_pool_unreserve(m->pool, m->cls[c], n);
        m->n_reserved[c] -= n;
        break;
    case 5: /* undo an acquire; whoever takes the room back must be a user */
        s = pick_slot(m, KVI_BLOCK_OPEN);
        if (s && m->n_users[s->c]) {
            kvi_block_unacquire(m->pool, s->block);
            s->state = KVI_BLOCK_FREE;
            m->n_reserved[s->c]++;
            m->n_released++;
        }
        break;
    case 6:
        s = pick_slot(m, KVI_BLOCK_OPEN);
        if (s) {
            kvi_block_seal(m->pool, s->block);
            s->state = KVI_BLOCK_SEALED;
        }
        break;
    case 7:
        s = pick_slot(m, KVI_BLOCK_SEALED);
        if (s) {
            kvi_block_retain(m->pool, s->block);
            s->refs++;
        }
        break;
    case 8:
        s = pick_slot(m, KVI_BLOCK_SEALED);
        if (s)
            model_drop(m, s);
        break;
    case 9:
        s = pick_slot(m, KVI_BLOCK_OPEN);
        if (s && prng_below(&m->r, 2))
            model_drop(m, s);
        break;
    default: model_acquire(m, c); break;
    }
}

static void run_model(uint64_t s, uint64_t budget, uint32_t flags, int n_steps)
{
    static model m;

    memset(&m, 0, sizeof m);
    fault_alloc_init(&m.fa);
    prng_init(&m.r, s);
    m.pool = make_pool(&m.fa, budget, flags);
    m.budget = budget ? budget : UINT64_MAX;
    for (int i = 0; i < n_steps; i++) {
        model_step(&m);
        compare(&m);
    }
    assert_true(m.n_acquired > 10); /* the sequence did something */
    for (size_t i = 0; i < N_SLOTS; i++) {
        while (m.slots[i].state != KVI_BLOCK_FREE)
            model_drop(&m, &m.slots[i]);
    }
    for (int c = 0; c < N_CLASSES; c++) {
        if (m.n_reserved[c])
            kvi_pool_unreserve(m.pool, m.cls[c], m.n_reserved[c]);
        m.n_reserved[c] = 0;
        for (; m.n_users[c] > 0; m.n_users[c]--)
            kvi_pool_class_release(m.pool, m.cls[c]);
    }
    compare(&m);
    assert_int_equal(get_stats(m.pool).slab_bytes, 0);
    kvi_pool_release(m.pool);
    assert_true(fault_alloc_is_clean(&m.fa));
}

static void test_random_operations_match_the_model(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        run_model(seed + 10 * i, 200000, 0, 2000);
        run_model(seed + 10 * i + 1, 0, 0, 600);
        run_model(seed + 10 * i + 2, 200000, KVCSA_POOL_FILL_FREED, 300);
    }
}

/* ------------------------------------------------------------------ several threads */

typedef struct worker {
    kvcsa_pool *pool;
    kvi_block  *shared;
    uint64_t    seed;
    int         ok;
} worker;

static void *use_pool(void *arg)
{
    worker          *w = arg;
    kvi_block_class *cls = NULL;
    prng             r;

    prng_init(&r, w->seed);
    for (int round = 0; round < 300 && w->ok; round++) {
        kvi_block *block = NULL;
        uint8_t    mark = (uint8_t)prng_u32(&r);

        if (kvi_pool_class_acquire(w->pool, 500, 700 + 64 * (uint32_t)prng_below(&r, 2), &cls,
                                   NULL) != KVCSA_OK)
            w->ok = 0;
        kvi_block_retain(w->pool, w->shared);
        if (w->ok && kvi_pool_reserve(w->pool, cls, 1, NULL) == KVCSA_OK) {
            w->ok &= kvi_block_acquire(w->pool, cls, &block, NULL) == KVCSA_OK;
            if (!w->ok)
                break;
            memset(kvi_block_main_part(block), mark, 700);
            kvi_block_seal(w->pool, block);
            w->ok &= kvi_block_main_part(block)[699] == mark;
            kvi_block_release(w->pool, block);
        }
        kvi_block_release(w->pool, w->shared);
        kvi_pool_class_release(w->pool, cls);
        if (round % 64 == 0)
            w->ok &= kvi_pool_check(w->pool, NULL) == KVCSA_OK;
    }
    kvi_pool_release(w->pool);
    return NULL;
}

static void test_pool_is_shared_by_threads(void **state)
{
    fault_alloc      fa;
    kvcsa_pool      *pool = NULL;
    kvi_block_class *cls = NULL;
    kvi_block       *shared = NULL;
    worker           workers[4];
    pthread_t        ids[4];

    (void)state;
    fault_alloc_init(&fa);
    pool = make_pool(&fa, 5000, 0); /* so that some reservations fail */
    cls = get_class(pool, 10, 10);
    shared = get_block(pool, cls);
    kvi_block_seal(pool, shared);
    for (size_t i = 0; i < 4; i++) {
        workers[i] = (worker){kvi_pool_retain(pool), shared, seed + i, 1};
        assert_int_equal(pthread_create(&ids[i], NULL, use_pool, &workers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(ids[i], NULL);
        assert_true(workers[i].ok);
    }
    check_pool(pool);
    assert_int_equal(get_stats(pool).used_bytes, 20);
    kvi_block_release(pool, shared);
    kvi_pool_class_release(pool, cls);
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa));
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
        cmocka_unit_test(test_classes_of_equal_parts_are_one),
        cmocka_unit_test(test_class_waits_for_its_blocks),
        cmocka_unit_test(test_block_walks_through_its_states),
        cmocka_unit_test(test_parts_do_not_overlap),
        cmocka_unit_test(test_slabs_are_about_a_megabyte),
        cmocka_unit_test(test_check_names_what_is_broken),
        cmocka_unit_test(test_random_operations_match_the_model),
        cmocka_unit_test(test_pool_is_shared_by_threads),
    };

    seed = prng_seed(argc, argv, 20250811);
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
