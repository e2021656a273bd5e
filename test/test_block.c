/* pool: blocks in slabs and classes, sharing, and the check of their invariants. */
#include "support/pool_host.h"

static kvcsa_pool *make_pool(fault_alloc *fa, uint64_t budget, uint32_t flags)
{
    const kvcsa_pool_params p = {.struct_size = sizeof p,
                                 .allocator = &fa->hook,
                                 .budget_bytes = budget,
                                 .n_threads = 1,
                                 .flags = flags};
    kvcsa_pool             *pool = NULL;
    kvcsa_error             err;

    if (kvi_pool_create(&p, &pool, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    return pool;
}

static kvi_block_class *get_class(kvcsa_pool *pool, uint32_t index_bytes, uint32_t main_bytes)
{
    const kvi_class_shape shape = {KVI_CLASS_CACHE, index_bytes, main_bytes, PH_TOKENS};

    return ph_class(pool, &shape);
}

/* Sealed as the first of a prompt; nobody will find it. */
static void seal(kvcsa_pool *pool, kvi_block *block)
{
    kvi_prefix_root *root = ph_root(pool, &ph_domain);

    memset(kvi_block_tokens(block), 0, PH_TOKENS * sizeof(int32_t));
    assert_ptr_equal(kvi_block_seal(pool, root, block, NULL, KVI_SEAL_PRIVATE, NULL, 0), block);
    kvi_prefix_root_release(pool, root);
}

/* ------------------------------------------------------------------ classes and slabs */

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
    kvi_block_release(pool, ph_block(pool, a));
    assert_true(ph_stats(pool).slab_bytes > 0);
    kvi_pool_class_release(pool, a);
    ph_check(pool);
    assert_true(ph_stats(pool).slab_bytes > 0); /* one user is left */
    kvi_pool_class_release(pool, b);
    assert_int_equal(ph_stats(pool).slab_bytes, 0);
    kvi_pool_class_release(pool, c);
    kvi_pool_class_release(pool, NULL);
    ph_check(pool);
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
    block = ph_block(pool, cls);
    seal(pool, block);
    kvi_pool_class_release(pool, cls); /* the last user leaves a block that somebody else holds */
    ph_check(pool);
    memset(kvi_block_main_part(block), 1, 128);
    assert_ptr_equal(get_class(pool, 64, 128), cls); /* found again */
    kvi_pool_class_release(pool, cls);
    kvi_block_release(pool, block);
    assert_int_equal(ph_stats(pool).slab_bytes, 0);
    ph_check(pool);
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
    block = ph_block(pool, cls);
    assert_int_equal(kvi_block_index_part(block)[0], 0xA5); /* a fresh one is filled too */
    memset(kvi_block_index_part(block), 1, 100);
    memset(kvi_block_main_part(block), 2, 200);
    ph_check(pool);
    seal(pool, block);
    assert_int_equal(kvi_block_state(block), KVI_BLOCK_SEALED);
    s = ph_stats(pool);
    assert_int_equal(s.n_open_blocks, 0);
    assert_int_equal(s.n_sealed_blocks, 1);
    assert_int_equal(s.used_bytes, 300);
    kvi_block_retain(pool, block);
    kvi_block_release(pool, block);
    assert_int_equal(kvi_block_state(block), KVI_BLOCK_SEALED);
    assert_int_equal(kvi_block_index_part(block)[99], 1);
    assert_int_equal(kvi_block_main_part(block)[199], 2);
    ph_check(pool);
    kvi_block_release(pool, block);
    assert_int_equal(kvi_block_state(block), KVI_BLOCK_FREE);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(kvi_block_index_part(block)[i], 0xA5);
    for (size_t i = 0; i < 200; i++)
        assert_int_equal(kvi_block_main_part(block)[i], 0xA5);
    block = ph_block(pool, cls);
    kvi_block_release(pool, block); /* an OPEN one may be let go as well */
    assert_int_equal(kvi_block_state(block), KVI_BLOCK_FREE);
    s = ph_stats(pool);
    assert_int_equal(s.n_acquired, 2);
    assert_int_equal(s.n_released, 2);
    assert_int_equal(s.used_bytes, 0);
    ph_check(pool);
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
            blocks[i] = ph_block(pool, cls);
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
        ph_check(pool);
        assert_int_equal(ph_stats(pool).used_bytes, (uint64_t)N * (ib + mb));
        for (size_t i = 0; i < N; i++)
            kvi_block_release(pool, blocks[i]);
        kvi_pool_class_release(pool, cls);
    }
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa)); /* fences of the slabs too */
}

/* What is written down before equals what the allocator gives; memory grows with blocks. */
static void test_cost_of_a_class_is_known_before(void **state)
{
    static const kvi_class_shape shapes[] = {{KVI_CLASS_CACHE, 21760, 92160, 128}, /* V4.1's */
                                             {KVI_CLASS_CACHE, 1 << 20, 3 << 20, 128},
                                             {KVI_CLASS_CACHE, 24, 72, 4},
                                             {KVI_CLASS_WINDOW, 0, 8448, 0}};
    enum { MOST = 40 };
    fault_alloc fa;
    kvcsa_pool *pool = NULL;
    kvi_block  *blocks[MOST];

    (void)state;
    fault_alloc_init(&fa);
    pool = make_pool(&fa, 0, 0);
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        kvi_block_class *cls = ph_class(pool, &shapes[k]);
        const size_t     before = fa.n_bytes;
        const size_t     n_most = k == 1 ? 3 : MOST;

        assert_int_equal(ph_stats(pool).slab_bytes, 0); /* none before a block is asked for */
        for (size_t n = 0; n < n_most; n++) {
            kvi_class_cost cost;

            blocks[n] = ph_block(pool, cls);
            cost = kvi_class_cost_of(&shapes[k], n + 1);
            assert_int_equal(ph_stats(pool).slab_bytes, cost.slab_bytes);
            assert_int_equal(ph_stats(pool).record_bytes, cost.record_bytes);
            assert_int_equal(fa.n_bytes - before, cost.slab_bytes + cost.record_bytes);
        }
        kvi_blocks_release(pool, blocks, n_most);
        kvi_pool_class_release(pool, cls);
    }
    assert_int_equal(kvi_class_cost_of(&shapes[0], 0).slab_bytes, 0);
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa));
}

/* Of slabs with nothing in use one is kept. */
static void test_empty_slabs_go_back(void **state)
{
    enum { N = 32 };
    const kvi_class_shape shape = {KVI_CLASS_CACHE, 0, 256 << 10, 4}; /* a slab each */
    fault_alloc           fa;
    kvcsa_pool           *pool = NULL;
    kvi_block_class      *cls = NULL;
    kvi_block            *blocks[N];
    uint64_t              n_total = 0;

    (void)state;
    fault_alloc_init(&fa);
    pool = make_pool(&fa, 0, 0);
    cls = ph_class(pool, &shape);
    for (size_t i = 0; i < N; i++)
        blocks[i] = ph_block(pool, cls);
    for (size_t i = 0; i < N; i++) {
        kvi_block_release(pool, blocks[i]);
        ph_check(pool);
        assert_int_equal(ph_stats(pool).n_free_blocks, 1);
    }
    n_total = fa.n_total;
    for (size_t i = 0; i < N; i++)
        kvi_block_release(pool, ph_block(pool, cls));
    assert_int_equal(fa.n_total, n_total); /* so one block to and fro asks for nothing */
    kvi_pool_trim(pool, 0, NULL);
    assert_int_equal(ph_stats(pool).slab_bytes, 0);
    kvi_pool_class_release(pool, cls);
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa));
}

/* ------------------------------------------------------------------ sharing */

/* What a session does with its tail after a fork. */
static void test_writer_copies_what_others_read(void **state)
{
    pool_host  h;
    int32_t    t[PH_TOKENS] = {4, 3, 2, 1};
    kvi_block *tail = NULL;
    kvi_block *copy = NULL;

    (void)state;
    ph_open(&h, 0, KVCSA_POOL_FILL_FREED, KVCSA_EVICT_LRU);
    tail = ph_open_block(&h, t);
    assert_false(kvi_block_is_shared(h.pool, tail));
    kvi_block_retain(h.pool, tail); /* the fork */
    assert_true(kvi_block_is_shared(h.pool, tail));
    assert_int_equal(
        kvi_blocks_count_shared(h.pool, (kvi_block *[]){tail, NULL, tail}, 3), 3);
    assert_int_equal(ph_stats(h.pool).n_copied_blocks, 0);
    assert_int_equal(kvi_pool_reserve(h.pool, h.cls, 1, NULL), KVCSA_OK);
    assert_int_equal(kvi_block_acquire_copy(h.pool, tail, &copy, NULL), KVCSA_OK);
    kvi_block_release(h.pool, tail);
    assert_false(kvi_block_is_shared(h.pool, tail));
    assert_int_equal(kvi_blocks_count_shared(h.pool, (kvi_block *[]){tail, copy}, 2), 0);
    assert_int_equal(kvi_block_state(copy), KVI_BLOCK_OPEN);
    assert_memory_equal(kvi_block_index_part(copy), kvi_block_index_part(tail), PH_INDEX);
    assert_memory_equal(kvi_block_main_part(copy), kvi_block_main_part(tail), PH_MAIN);
    assert_memory_equal(kvi_block_tokens(copy), t, sizeof t);
    memset(kvi_block_main_part(copy), 9, PH_MAIN);
    assert_int_equal(kvi_block_main_part(tail)[0], 1); /* the other's is as it was */
    assert_int_equal(ph_stats(h.pool).n_copied_blocks, 1);
    assert_int_equal(ph_stats(h.pool).n_copied_pages, 0);
    ph_check(h.pool);
    kvi_block_release(h.pool, tail);
    tail = ph_block(h.pool, h.page_cls);
    memset(kvi_block_main_part(tail), 7, PH_PAGE);
    kvi_block_release(h.pool, copy);
    assert_int_equal(kvi_pool_reserve(h.pool, h.page_cls, 1, NULL), KVCSA_OK);
    assert_int_equal(kvi_block_acquire_copy(h.pool, tail, &copy, NULL), KVCSA_OK);
    assert_int_equal(kvi_block_main_part(copy)[PH_PAGE - 1], 7);
    assert_int_equal(ph_stats(h.pool).n_copied_pages, 1);
    kvi_blocks_release(h.pool, (kvi_block *[]){tail, NULL, copy}, 3);
    ph_close(&h);
}

static void test_zero_freed(void **state)
{
    static const uint8_t zeros[PH_MAIN];
    pool_host            h;
    const int32_t        t[PH_TOKENS] = {4, 3, 2, 1};
    kvi_block           *block = NULL;

    (void)state;
    ph_open(&h, 0, KVCSA_POOL_ZERO_FREED | KVCSA_POOL_FILL_FREED, KVCSA_EVICT_LRU);
    block = ph_open_block(&h, t);
    kvi_block_release(h.pool, block); /* its slab is kept */
    assert_memory_equal(kvi_block_index_part(block), zeros, PH_INDEX);
    assert_memory_equal(kvi_block_main_part(block), zeros, PH_MAIN);
    assert_memory_equal(kvi_block_tokens(block), zeros, sizeof t);
    ph_check(h.pool);
    ph_close(&h);
}

/* ------------------------------------------------------------------ the check itself */

#define EXPECT_BROKEN_BY(field, value, name) PH_BROKEN_BY(pool, field, value, name)

static void test_check_names_what_is_broken(void **state)
{
    fault_alloc      fa;
    kvcsa_pool      *pool = NULL;
    kvi_block_class *cls = NULL;
    kvi_block_class *other = NULL;
    kvi_block       *open = NULL;
    kvi_block       *sealed = NULL;
    kvi_block       *freed = NULL;
    kvi_slab        *slab = NULL;
    kvcsa_error      err;

    (void)state;
    fault_alloc_init(&fa);
    pool = make_pool(&fa, 100000, KVCSA_POOL_FILL_FREED);
    cls = get_class(pool, 1000, 2000);
    other = get_class(pool, 1000, 2001);
    open = ph_block(pool, cls);
    sealed = ph_block(pool, cls);
    seal(pool, sealed);
    freed = ph_block(pool, cls);
    kvi_block_release(pool, freed);
    assert_int_equal(kvi_pool_reserve(pool, cls, 2, &err), KVCSA_OK);
    slab = cls->slabs;
    ph_check(pool);

    EXPECT_BROKEN_BY(open->state, 3, "P1: ");
    EXPECT_BROKEN_BY(open->refs, 0, "P2: ");
    EXPECT_BROKEN_BY(sealed->refs, 0, "P2: ");
    EXPECT_BROKEN_BY(freed->refs, 1, "P2: ");
    EXPECT_BROKEN_BY(slab->free_list, slab->free_list->next_free, "P3: ");
    EXPECT_BROKEN_BY(slab->free_list, open, "P3: ");
    EXPECT_BROKEN_BY(cls->free_slabs, NULL, "P3: ");
    EXPECT_BROKEN_BY(freed->next_free, freed, "P3: "); /* a ring */
    EXPECT_BROKEN_BY(freed->next_free, NULL, "P3: ");
    EXPECT_BROKEN_BY(cls->n_free, cls->n_free + 1, "P4: ");
    EXPECT_BROKEN_BY(slab->n_free, slab->n_free - 1, "P4: ");
    EXPECT_BROKEN_BY(cls->n_empty_slabs, 1, "P4: ");
    EXPECT_BROKEN_BY(cls->n_open, 0, "P4: ");
    EXPECT_BROKEN_BY(cls->n_sealed, 2, "P4: ");
    EXPECT_BROKEN_BY(cls->main_stride, cls->main_stride + 8, "P5: ");
    EXPECT_BROKEN_BY(slab->cls, other, "P5: ");
    EXPECT_BROKEN_BY(pool->slab_bytes, 0, "P5: ");
    EXPECT_BROKEN_BY(pool->record_bytes, 0, "P5: ");
    EXPECT_BROKEN_BY(pool->used_bytes, pool->used_bytes + 1, "P6: ");
    EXPECT_BROKEN_BY(pool->window_bytes, 1, "P6: ");
    EXPECT_BROKEN_BY(pool->reserved_bytes, 0, "P6: ");
    EXPECT_BROKEN_BY(cls->n_reserved, 3, "P6: ");
    EXPECT_BROKEN_BY(pool->budget_bytes, 11999, "P6: ");
    EXPECT_BROKEN_BY(pool->n_acquired, 0, "P7: ");
    EXPECT_BROKEN_BY(pool->n_released, 0, "P7: ");
    EXPECT_BROKEN_BY(other->n_users, 0, "P8: ");
    EXPECT_BROKEN_BY(other->shape.main_bytes, 2000, "P8: ");
    EXPECT_BROKEN_BY(kvi_block_index_part(freed)[999], 0, "P9: ");
    EXPECT_BROKEN_BY(kvi_block_main_part(freed)[1999], 0, "P9: ");
    EXPECT_BROKEN_BY(kvi_block_tokens(freed)[3], 0, "P9: ");
    EXPECT_BROKEN_BY(kvi_block_index_part(sealed)[0], (uint8_t)(old_ ^ 1), "P10: ");
    EXPECT_BROKEN_BY(kvi_block_main_part(sealed)[1999], (uint8_t)(old_ ^ 128), "P10: ");
    EXPECT_BROKEN_BY(sealed->parent, open, "P2: ");
    EXPECT_BROKEN_BY(open->parent, sealed, "P2: ");
    EXPECT_BROKEN_BY(sealed->depth, 1, "P2: ");

    kvi_pool_unreserve(pool, cls, 2);
    kvi_block_release(pool, open);
    kvi_block_release(pool, sealed);
    kvi_pool_class_release(pool, cls);
    kvi_pool_class_release(pool, other);
    kvi_pool_release(pool);
    assert_true(fault_alloc_is_clean(&fa));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes_of_equal_parts_are_one),
        cmocka_unit_test(test_class_waits_for_its_blocks),
        cmocka_unit_test(test_block_walks_through_its_states),
        cmocka_unit_test(test_parts_do_not_overlap),
        cmocka_unit_test(test_cost_of_a_class_is_known_before),
        cmocka_unit_test(test_empty_slabs_go_back),
        cmocka_unit_test(test_writer_copies_what_others_read),
        cmocka_unit_test(test_zero_freed),
        cmocka_unit_test(test_check_names_what_is_broken),
    };

    return cmocka_run_group_tests_name("block", tests, NULL, NULL);
}
