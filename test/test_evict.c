/* pool: who goes when room is wanted; resize and trim. */
#include "support/pool_host.h"

/* The budget in blocks. */
static void open_for(pool_host *h, uint64_t n_blocks, uint32_t evict)
{
    ph_open(h, n_blocks * PH_BLOCK, KVCSA_POOL_FILL_FREED, evict);
}

/* A prompt of n blocks that only the tree holds; tokens are those of ph_prompt(who). */
static void leave_prompt(pool_host *h, int32_t who, size_t n)
{
    int32_t t[16 * PH_TOKENS];

    assert_in_range(n, 1, 16);
    ph_prompt(t, n * PH_TOKENS, who);
    kvi_block_release(h->pool, ph_chain(h, NULL, t, n, 0));
}

static size_t known_blocks(pool_host *h, int32_t who, size_t n)
{
    int32_t t[16 * PH_TOKENS];

    ph_prompt(t, n * PH_TOKENS, who);
    return ph_match(h, t, n * PH_TOKENS) / PH_TOKENS;
}

/* What a session does with a known prompt. Returns the last block, held. */
static kvi_block *use_prompt(pool_host *h, int32_t who, size_t n)
{
    int32_t          t[16 * PH_TOKENS];
    kvi_prefix_match match;

    ph_prompt(t, n * PH_TOKENS, who);
    kvi_prefix_find(h->pool, h->root, NULL, t, n * PH_TOKENS, &match);
    assert_int_equal(match.n_tokens, n * PH_TOKENS);
    kvi_prefix_touch(h->pool, match.last, 0);
    return match.last;
}

/* ------------------------------------------------------------------ room for something else */

static void test_behaviour_41_append_evicts_before_full(void **state)
{
    pool_host h;

    (void)state;
    open_for(&h, 10, KVCSA_EVICT_LRU);
    for (int32_t who = 0; who < 5; who++)
        leave_prompt(&h, who, 2);
    assert_int_equal(ph_stats(h.pool).used_bytes, 10 * PH_BLOCK);
    assert_int_equal(ph_stats(h.pool).evictable_bytes, 10 * PH_BLOCK);
    assert_int_equal(kvi_pool_reserve(h.pool, h.cls, 3, NULL), KVCSA_OK);
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 3); /* not one more */
    assert_int_equal(ph_stats(h.pool).used_bytes, 7 * PH_BLOCK);
    assert_int_equal(ph_stats(h.pool).reserved_bytes, 3 * PH_BLOCK);
    ph_check(h.pool);
    assert_int_equal(kvi_pool_reserve(h.pool, h.cls, 7, NULL), KVCSA_OK);
    assert_int_equal(kvi_pool_reserve(h.pool, h.cls, 1, NULL), KVCSA_ERR_FULL);
    kvi_pool_unreserve(h.pool, h.cls, 10);
    ph_close(&h);
}

static void test_window_pages_evict_too(void **state)
{
    pool_host h;

    (void)state;
    open_for(&h, 4, KVCSA_EVICT_LRU);
    leave_prompt(&h, 1, 4);
    assert_int_equal(kvi_pool_reserve(h.pool, h.page_cls, 1, NULL), KVCSA_OK);
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 1);
    assert_int_equal(known_blocks(&h, 1, 4), 3);
    kvi_pool_unreserve(h.pool, h.page_cls, 1);
    ph_close(&h);
}

/* Neither a block that somebody holds goes, nor one in front of it, nor a pinned one; and a request
 * that cannot be met takes nothing. */
static void test_held_and_pinned_stay(void **state)
{
    pool_host        h;
    int32_t          t[4 * PH_TOKENS];
    kvi_block       *held = NULL;
    kvi_prefix_match match;
    kvcsa_error      err;

    (void)state;
    open_for(&h, 10, KVCSA_EVICT_LRU);
    leave_prompt(&h, 1, 4);
    leave_prompt(&h, 2, 4);
    held = use_prompt(&h, 1, 3); /* the fourth is free to go */
    ph_prompt(t, 16, 2);
    kvi_prefix_find(h.pool, h.root, NULL, t, 8, &match);
    kvi_prefix_pin(h.pool, match.last);
    kvi_prefix_match_release(h.pool, &match);
    assert_int_equal(ph_stats(h.pool).evictable_bytes, 3 * PH_BLOCK);
    assert_int_equal(kvi_pool_reserve(h.pool, h.cls, 6, &err), KVCSA_ERR_FULL);
    assert_non_null(strstr(err.text, "480 of the pool's budget of 960 are free"));
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 0);
    assert_int_equal(kvi_pool_reserve(h.pool, h.cls, 5, NULL), KVCSA_OK);
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 3);
    assert_int_equal(ph_stats(h.pool).evictable_bytes, 0);
    assert_int_equal(known_blocks(&h, 1, 4), 3);
    assert_int_equal(known_blocks(&h, 2, 4), 2);
    kvi_pool_unreserve(h.pool, h.cls, 5);
    kvi_block_release(h.pool, held);
    ph_close(&h);
}

/* A private block of a session behind a published one keeps that one too. */
static void test_private_child_holds_its_parent(void **state)
{
    pool_host  h;
    int32_t    t[2 * PH_TOKENS];
    kvi_block *mine = NULL;

    (void)state;
    open_for(&h, 4, KVCSA_EVICT_LRU);
    ph_prompt(t, 8, 1);
    mine = ph_seal(&h, ph_seal(&h, NULL, t, 0), t + 4, KVI_SEAL_TAINTED);
    assert_int_equal(ph_stats(h.pool).evictable_bytes, 0);
    kvi_pool_trim(h.pool, 0, NULL);
    assert_int_equal(known_blocks(&h, 1, 2), 1);
    kvi_block_release(h.pool, mine);
    assert_int_equal(ph_stats(h.pool).evictable_bytes, PH_BLOCK);
    ph_close(&h);
}

static void test_stored_window_goes_with_its_block(void **state)
{
    pool_host  h;
    int32_t    t[2 * PH_TOKENS];
    kvi_block *window[2];
    kvi_block *a = NULL;
    kvi_block *b = NULL;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    for (int32_t i = 0; i < 2; i++)
        window[i] = ph_block(h.pool, h.page_cls);
    ph_prompt(t, 8, 1);
    a = kvi_block_seal(h.pool, h.root, ph_open_block(&h, t), NULL, 0, window, 2);
    b = kvi_block_seal(h.pool, h.root, ph_open_block(&h, t + 4), NULL, 0, window, 1); /* shared */
    kvi_block_release(h.pool, window[0]);
    kvi_block_release(h.pool, a);
    kvi_block_release(h.pool, b);
    assert_int_equal(ph_stats(h.pool).evictable_bytes, 2 * PH_BLOCK + PH_PAGE); /* we hold [1] */
    kvi_block_release(h.pool, window[1]);
    assert_int_equal(ph_stats(h.pool).evictable_bytes, 2 * PH_BLOCK + 2 * PH_PAGE);
    ph_check(h.pool);
    kvi_pool_trim(h.pool, PH_BLOCK + PH_PAGE, NULL);
    assert_int_equal(ph_stats(h.pool).used_bytes, PH_BLOCK + PH_PAGE);
    ph_close(&h);
}

/* ------------------------------------------------------------------ order */

static void test_lru_takes_the_one_used_longest_ago(void **state)
{
    pool_host h;

    (void)state;
    open_for(&h, 6, KVCSA_EVICT_LRU);
    for (int32_t who = 0; who < 6; who++)
        leave_prompt(&h, who, 1);
    kvi_block_release(h.pool, use_prompt(&h, 0, 1));
    kvi_block_release(h.pool, use_prompt(&h, 2, 1));
    for (int32_t k = 0; k < 6; k++) {
        static const int32_t order[6] = {1, 3, 4, 5, 0, 2};

        kvi_pool_trim(h.pool, (uint64_t)(5 - k) * PH_BLOCK, NULL);
        for (int32_t j = 0; j < 6; j++)
            assert_int_equal(known_blocks(&h, order[j], 1), j > k);
        ph_check(h.pool);
    }
    ph_close(&h);
}

/* A look at the tree is no use of it. */
static void test_a_search_alone_does_not_count(void **state)
{
    pool_host h;

    (void)state;
    open_for(&h, 4, KVCSA_EVICT_LRU);
    leave_prompt(&h, 1, 1);
    leave_prompt(&h, 2, 1);
    assert_int_equal(known_blocks(&h, 1, 1), 1);
    kvi_pool_trim(h.pool, PH_BLOCK, NULL);
    assert_int_equal(known_blocks(&h, 1, 1), 0);
    assert_int_equal(known_blocks(&h, 2, 1), 1);
    ph_close(&h);
}

static void test_chain_goes_from_its_end(void **state)
{
    pool_host h;

    (void)state;
    open_for(&h, 8, KVCSA_EVICT_LRU);
    leave_prompt(&h, 1, 8);
    for (size_t n = 8; n > 0; n--) {
        assert_int_equal(known_blocks(&h, 1, 8), n);
        kvi_pool_trim(h.pool, (n - 1) * PH_BLOCK, NULL);
    }
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 8);
    ph_close(&h);
}

/* A prefix that was used 30 times, then many prompts that were used once: how much of the prefix is
 * left in a pool of 12 blocks? */
static size_t shared_after_prompts(uint32_t evict, int32_t n_prompts)
{
    pool_host h;
    size_t    n = 0;

    open_for(&h, 12, evict);
    leave_prompt(&h, 0, 4);
    for (int i = 0; i < 30; i++)
        kvi_block_release(h.pool, use_prompt(&h, 0, 4));
    for (int32_t who = 1; who <= n_prompts; who++) {
        leave_prompt(&h, who, 2);
        assert_in_range(ph_stats(h.pool).used_bytes, 0, 12 * PH_BLOCK);
    }
    n = known_blocks(&h, 0, 4);
    ph_close(&h);
    return n;
}

static void test_cost_keeps_a_shared_prefix_lru_does_not(void **state)
{
    (void)state;
    assert_int_equal(shared_after_prompts(KVCSA_EVICT_LRU, 100), 0);
    /* 30 hits are 5 bits: they last until 5 x 64 x 12 blocks of prompts have gone */
    assert_int_equal(shared_after_prompts(KVCSA_EVICT_COST, 1000), 4);
    assert_int_equal(shared_after_prompts(KVCSA_EVICT_COST, 2500), 0); /* but not for ever */
}

/* Used now and then, though less often than the pool is filled anew, it stays for good. */
static void test_cost_keeps_what_is_used_again(void **state)
{
    pool_host h;

    (void)state;
    open_for(&h, 12, KVCSA_EVICT_COST);
    leave_prompt(&h, 0, 4);
    for (int32_t who = 1; who <= 100; who++) {
        if (who % 6 == 1)
            kvi_block_release(h.pool, use_prompt(&h, 0, 4));
        leave_prompt(&h, who, 2);
        assert_int_equal(known_blocks(&h, 0, 4), 4);
    }
    ph_close(&h);
}

static void test_cost_of_equals_is_lru(void **state)
{
    pool_host h;

    (void)state;
    open_for(&h, 4, KVCSA_EVICT_COST);
    for (int32_t who = 0; who < 4; who++)
        leave_prompt(&h, who, 1);
    for (int32_t k = 0; k < 4; k++) {
        assert_int_equal(known_blocks(&h, k, 1), 1);
        kvi_pool_trim(h.pool, (uint64_t)(3 - k) * PH_BLOCK, NULL);
        assert_int_equal(known_blocks(&h, k, 1), 0);
    }
    ph_close(&h);
}

/* ------------------------------------------------------------------ resize and trim */

static void test_resize_is_all_or_nothing(void **state)
{
    pool_host  h;
    kvi_block *held = NULL;

    (void)state;
    open_for(&h, 10, KVCSA_EVICT_LRU);
    for (int32_t who = 0; who < 4; who++)
        leave_prompt(&h, who, 2);
    held = use_prompt(&h, 3, 2);
    assert_int_equal(kvi_pool_reserve(h.pool, h.cls, 1, NULL), KVCSA_OK);
    /* 2 held, 1 promised: 3 is the least */
    assert_int_equal(kvi_pool_resize(h.pool, 3 * PH_BLOCK - 1, NULL), KVCSA_ERR_FULL);
    assert_int_equal(ph_stats(h.pool).budget_bytes, 10 * PH_BLOCK);
    assert_int_equal(ph_stats(h.pool).n_published_blocks, 8);
    assert_int_equal(h.n_events, 8); /* they were published, none went */
    assert_int_equal(kvi_pool_resize(h.pool, 5 * PH_BLOCK, NULL), KVCSA_OK);
    assert_int_equal(ph_stats(h.pool).budget_bytes, 5 * PH_BLOCK);
    assert_int_equal(ph_stats(h.pool).used_bytes, 4 * PH_BLOCK);
    ph_check(h.pool);
    assert_int_equal(kvi_pool_resize(h.pool, 3 * PH_BLOCK, NULL), KVCSA_OK);
    assert_int_equal(ph_stats(h.pool).used_bytes, 2 * PH_BLOCK);
    assert_int_equal(known_blocks(&h, 3, 2), 2);
    assert_int_equal(kvi_pool_reserve(h.pool, h.cls, 1, NULL), KVCSA_ERR_FULL);
    assert_int_equal(kvi_pool_resize(h.pool, 0, NULL), KVCSA_OK); /* no limit */
    assert_int_equal(kvi_pool_reserve(h.pool, h.cls, 1000, NULL), KVCSA_OK);
    assert_true(ph_stats(h.pool).budget_bytes == UINT64_MAX);
    ph_check(h.pool);
    kvi_pool_unreserve(h.pool, h.cls, 1001);
    kvi_block_release(h.pool, held);
    ph_close(&h);
}

static void test_trim_gives_memory_back(void **state)
{
    pool_host  h;
    kvi_block *held = NULL;
    uint64_t   freed = 0;
    size_t     baseline = 0;
    size_t     before = 0;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    kvi_pool_trim(h.pool, 0, NULL);
    baseline = h.fa.n_bytes;
    for (int32_t who = 0; who < 800; who++)
        leave_prompt(&h, who, 10);
    held = use_prompt(&h, 7, 10);
    before = h.fa.n_bytes;
    assert_true(before > baseline + 8000 * PH_BLOCK);
    kvi_pool_trim(h.pool, 4000 * PH_BLOCK, &freed);
    assert_int_equal(freed, before - h.fa.n_bytes);
    assert_int_equal(ph_stats(h.pool).used_bytes, 4000 * PH_BLOCK);
    assert_int_equal(known_blocks(&h, 7, 10), 10);
    kvi_pool_trim(h.pool, 0, NULL);
    assert_int_equal(ph_stats(h.pool).used_bytes, 10 * PH_BLOCK); /* ours stay */
    ph_check(h.pool);
    kvi_block_release(h.pool, held);
    before = h.fa.n_bytes;
    kvi_pool_trim(h.pool, 0, &freed);
    assert_int_equal(h.fa.n_bytes, baseline);
    assert_int_equal(freed, before - baseline);
    assert_int_equal(ph_stats(h.pool).slab_bytes, 0);
    assert_int_equal(ph_stats(h.pool).record_bytes, 0);
    kvi_pool_trim(h.pool, 0, &freed);
    assert_int_equal(freed, 0);
    ph_close(&h);
}

/* Each event says what went, where it lay in its prompt, and why. */
static void test_trace_carries_the_reason(void **state)
{
    static const uint32_t reasons[] = {KVCSA_REASON_BUDGET, KVCSA_REASON_TRIM, KVCSA_REASON_RESIZE,
                                       KVCSA_REASON_FORGOTTEN, KVCSA_REASON_ERASED};
    pool_host             h;

    (void)state;
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        kvi_block *last = NULL;

        open_for(&h, 3, KVCSA_EVICT_LRU);
        leave_prompt(&h, 1, 3);
        h.n_events = 0;
        switch (reasons[i]) {
        case KVCSA_REASON_BUDGET:
            assert_int_equal(kvi_pool_reserve(h.pool, h.cls, 3, NULL), KVCSA_OK);
            kvi_pool_unreserve(h.pool, h.cls, 3);
            break;
        case KVCSA_REASON_TRIM: kvi_pool_trim(h.pool, 0, NULL); break;
        case KVCSA_REASON_RESIZE:
            assert_int_equal(kvi_pool_resize(h.pool, 1, NULL), KVCSA_OK);
            break;
        case KVCSA_REASON_FORGOTTEN: kvi_prefix_forget(h.pool, h.root, NULL); break;
        default:
            last = use_prompt(&h, 1, 3);
            kvi_prefix_erase(h.pool, last);
            kvi_block_release(h.pool, last);
            break;
        }
        assert_int_equal(h.n_events, 3);
        for (size_t k = 0; k < 3; k++) {
            assert_int_equal(h.events[k].kind, KVCSA_TRACE_EVICT);
            assert_int_equal(h.events[k].reason, reasons[i]);
            assert_int_equal(h.events[k].position, (2 - k) * PH_TOKENS);
            assert_int_equal(h.events[k].n_tokens, PH_TOKENS);
            assert_int_equal(h.events[k].n_bytes, PH_BLOCK);
        }
        assert_int_equal(ph_stats(h.pool).n_evicted_blocks, i < 3 ? 3 : 0);
        ph_close(&h);
    }
}

/* (T8): the list of those that may go. */
static void test_check_names_what_is_broken(void **state)
{
    pool_host  h;
    kvi_block *idle = NULL;
    kvi_block *held = NULL;

    (void)state;
    open_for(&h, 8, KVCSA_EVICT_COST);
    leave_prompt(&h, 1, 2);
    leave_prompt(&h, 2, 1);
    held = use_prompt(&h, 2, 1);
    idle = h.pool->idle_head;
    assert_non_null(idle);
    PH_BROKEN_BY(h.pool, idle->refs, 2, "T8: ");
    PH_BROKEN_BY(h.pool, idle->idle, 0, "T8: ");
    PH_BROKEN_BY(h.pool, held->idle, 1, "T8: ");
    PH_BROKEN_BY(h.pool, held->refs, 1, "T8: ");
    PH_BROKEN_BY(h.pool, h.pool->idle_head, NULL, "T8: ");
    PH_BROKEN_BY(h.pool, h.pool->idle_tail, NULL, "T8: ");
    PH_BROKEN_BY(h.pool, idle->next_idle, idle, "T8: ");
    kvi_block_release(h.pool, held);
    ph_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_behaviour_41_append_evicts_before_full),
        cmocka_unit_test(test_window_pages_evict_too),
        cmocka_unit_test(test_held_and_pinned_stay),
        cmocka_unit_test(test_private_child_holds_its_parent),
        cmocka_unit_test(test_stored_window_goes_with_its_block),
        cmocka_unit_test(test_lru_takes_the_one_used_longest_ago),
        cmocka_unit_test(test_a_search_alone_does_not_count),
        cmocka_unit_test(test_chain_goes_from_its_end),
        cmocka_unit_test(test_cost_keeps_a_shared_prefix_lru_does_not),
        cmocka_unit_test(test_cost_keeps_what_is_used_again),
        cmocka_unit_test(test_cost_of_equals_is_lru),
        cmocka_unit_test(test_resize_is_all_or_nothing),
        cmocka_unit_test(test_trim_gives_memory_back),
        cmocka_unit_test(test_trace_carries_the_reason),
        cmocka_unit_test(test_check_names_what_is_broken),
    };

    return cmocka_run_group_tests_name("evict", tests, NULL, NULL);
}
