/* The host tier of a pool, on the test plug-in "apart": blocks that the device has no room for move to pinned memory of the host
 * and come back, bit for bit and one copy each; every count is exact. Last, two prompts that do not both fit the device are run
 * in turn. test_host_tier_random.c has random calls. */
#include "support/host.h"
#include "support/tier_host.h"

/* ------------------------------------------------------------------ out and back */

static void test_blocks_go_out_and_come_back(void **state)
{
    static pool_host h;
    int32_t          a[FOUR], b[FOUR];
    kvi_prefix_match match;
    uint64_t         n_known;
    kvi_block       *last;

    (void)state;
    set_device(0, 0, 0);
    ph_prompt(a, FOUR, 1);
    ph_prompt(b, FOUR, 2);
    open_host(&h, N * PH_BLOCK, ROOMY, 0);
    assert_int_equal(run_and_leave(&h, a, N), 0);
    expect(&h, 0, 0, 0, 0);
    assert_int_equal(ph_stats(h.pool).host_slab_bytes, 0); /* nothing is taken before it is needed */
    assert_int_equal(run_and_leave(&h, b, N), 0);
    expect(&h, N, 0, N, 0);
    assert_int_equal(ph_stats(h.pool).n_published_blocks, 2 * N);
    assert_int_equal(ph_stats(h.pool).n_sealed_blocks, N);
    assert_int_equal(ph_stats(h.pool).used_bytes, N * PH_BLOCK);
    assert_int_equal(ph_stats(h.pool).evictable_bytes, N * PH_BLOCK);

    kvi_prefix_look(h.pool, h.root, a, FOUR - 1, &match); /* whoever only looks moves nothing */
    assert_int_equal(match.n_tokens, FOUR - 1);
    assert_true(match.last->out && match.partial->out && match.last->at[0] == KVI_AT_HOST);
    kvi_prefix_match_release(h.pool, &match);
    expect(&h, N, 0, N, 0);

    for (uint64_t i = 1; i <= 6; i++) { /* in turn, and nothing is computed */
        assert_int_equal(run_and_leave(&h, i % 2 ? a : b, N), FOUR);
        expect(&h, N + i * N, i * N, N, 0);
    }
    last = run_chain(&h, a, N, &n_known); /* held: the next one finds no room */
    assert_int_equal(n_known, FOUR);
    kvi_prefix_find(h.pool, h.root, NULL, b, FOUR, &match);
    assert_true(match.n_tokens == 0 && !match.last && match.reason == KVCSA_REASON_BUDGET);
    ph_check(h.pool);
    kvi_block_release(h.pool, last);
    close_host(&h);
}

/* Without a tier, and where the host's memory is the pool's. */
static void test_without_a_tier_prefixes_are_lost(void **state)
{
    static pool_host  h;
    kvcsa_pool_params p = {.struct_size = sizeof p, .n_threads = 1, .backend = KVCSA_BACKEND_CPU, .host_bytes = 1 << 20};
    int32_t           a[FOUR], b[FOUR];
    kvcsa_pool       *pool = NULL;

    (void)state;
    set_device(0, 0, 0);
    ph_prompt(a, FOUR, 1);
    ph_prompt(b, FOUR, 2);
    open_host(&h, N * PH_BLOCK, 0, 0);
    for (uint64_t i = 0; i < 4; i++) {
        assert_int_equal(run_and_leave(&h, i % 2 ? a : b, N), 0);
        expect(&h, 0, 0, 0, i * N);
    }
    close_host(&h);
    assert_int_equal(kvi_pool_create(&p, &pool, NULL), KVCSA_OK);
    assert_int_equal(ph_stats(pool).host_budget_bytes, 0);
    kvi_pool_release(pool);
}

/* The end of a match lies inside a block; and a match that is cut short where there is no more room. */
static void test_parts_of_a_match(void **state)
{
    static pool_host h;
    int32_t          a[FOUR], b[FOUR];
    kvi_prefix_match match;
    kvi_block       *held[3];

    (void)state;
    set_device(0, 0, 0);
    ph_prompt(a, FOUR, 1);
    ph_prompt(b, FOUR, 2);
    open_host(&h, N * PH_BLOCK, ROOMY, 0);
    run_and_leave(&h, a, N);
    run_and_leave(&h, b, N);
    kvi_prefix_find(h.pool, h.root, NULL, a, 2 * PH_TOKENS + 3, &match);
    assert_int_equal(match.n_tokens, 2 * PH_TOKENS + 3);
    assert_int_equal(match.reason, KVCSA_REASON_NONE);
    check_chain(&h, match.last, a, 2);
    check_chain(&h, match.partial, a, 3);
    expect(&h, N + 3, 3, N, 0);
    kvi_prefix_match_release(h.pool, &match);

    run_and_leave(&h, b, N);
    for (int i = 0; i < 3; i++) { /* one block is left */
        held[i] = ph_block(h.pool, h.cls);
        if (i < 2)
            continue;
        kvi_prefix_find(h.pool, h.root, NULL, a, FOUR, &match);
        assert_int_equal(match.n_tokens, PH_TOKENS);
        assert_int_equal(match.reason, KVCSA_REASON_BUDGET);
        check_chain(&h, match.last, a, 1);
        assert_null(match.partial);
        ph_check(h.pool);
        kvi_prefix_match_release(h.pool, &match);
        kvi_prefix_find(h.pool, h.root, NULL, a, PH_TOKENS + 2, &match); /* nor is there room for the part */
        assert_int_equal(match.n_tokens, PH_TOKENS);
        assert_int_equal(match.reason, KVCSA_REASON_BUDGET);
        assert_null(match.partial);
        kvi_prefix_match_release(h.pool, &match);
    }
    for (int i = 0; i < 3; i++)
        kvi_block_release(h.pool, held[i]);
    ph_check(h.pool);
    assert_int_equal(run_and_leave(&h, a, N), FOUR);
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 0);
    close_host(&h);
}

/* A block that would not fit even then pushes nobody out. */
static void test_a_hopeless_match_moves_nothing(void **state)
{
    const kvi_class_shape small = {KVI_CLASS_CACHE, 8, 8, PH_TOKENS};
    static pool_host      h;
    kvi_block_class      *cls;
    kvi_block            *held[N - 1];
    kvi_block            *b;
    int32_t               a[FOUR];

    (void)state;
    set_device(0, 0, 0);
    ph_prompt(a, FOUR, 1);
    open_host(&h, N * PH_BLOCK, ROOMY, 0);
    run_and_leave(&h, a, N);
    kvi_pool_trim(h.pool, 0, NULL);
    cls = ph_class(h.pool, &small);
    for (int i = 0; i < N - 1; i++)
        held[i] = ph_block(h.pool, h.cls);
    assert_int_equal(kvi_pool_reserve(h.pool, h.page_cls, 1, NULL), KVCSA_OK);
    b = ph_block(h.pool, cls);
    memset(kvi_block_tokens(b), 0, PH_TOKENS * sizeof(int32_t));
    kvi_block_release(h.pool, kvi_block_seal(h.pool, h.root, b, NULL, 0, NULL, 0));
    assert_int_equal(ph_match(&h, a, FOUR), 0);
    expect(&h, N, 0, N, 0);
    kvi_pool_unreserve(h.pool, h.page_cls, 1);
    assert_int_equal(ph_match(&h, a, FOUR), PH_TOKENS);
    kvi_pool_class_release(h.pool, cls);
    for (int i = 0; i < N - 1; i++)
        kvi_block_release(h.pool, held[i]);
    close_host(&h);
}

/* ------------------------------------------------------------------ stored windows */

static kvi_block *page_of(pool_host *h, int byte)
{
    kvi_block *page = ph_block(h->pool, h->page_cls);

    (void)kvi_memory_fill(kvi_pool_memory(h->pool), kvi_block_main_part(page), byte, PH_PAGE, NULL);
    return page;
}

static int is_page(pool_host *h, const kvi_block *page, int byte)
{
    uint8_t bytes[PH_PAGE];
    size_t  i = 0;

    assert_int_equal(kvi_memory_get(kvi_pool_memory(h->pool), bytes, kvi_block_main_part(page), PH_PAGE, NULL), KVCSA_OK);
    while (i < PH_PAGE && bytes[i] == byte)
        i++;
    return i == PH_PAGE;
}

static void test_stored_windows_go_along(void **state)
{
    enum { BUDGET = N * PH_BLOCK + 2 * PH_PAGE };
    static pool_host h;
    int32_t          a[FOUR], b[FOUR];
    kvi_block       *pages[3];
    kvi_block       *last;
    uint64_t         n_known;

    (void)state;
    set_device(0, 0, 0);
    ph_prompt(a, FOUR, 1);
    ph_prompt(b, FOUR, 2);
    for (int k = 0; k < 3; k++) { /* room for all; for no window at the host; for none on the way back */
        open_host(&h, BUDGET, k == 1 ? PH_BLOCK + PH_PAGE : ROOMY, 0);
        last = run_chain(&h, a, N - 1, &n_known);
        pages[0] = page_of(&h, 0x31);
        pages[1] = NULL;
        pages[2] = page_of(&h, 0x32);
        last = compute_block(&h, last, a + FOUR - PH_TOKENS, pages, 3);
        kvi_block_release(h.pool, pages[0]);
        kvi_block_release(h.pool, last);
        ph_check(h.pool);
        assert_int_equal(ph_stats(h.pool).evictable_bytes, BUDGET - PH_PAGE); /* one page is ours too */
        run_and_leave(&h, b, N);
        expect(&h, N, 0, k == 1 ? 1 : N, k == 1 ? N - 1 : 0);
        assert_int_equal(ph_stats(h.pool).n_host_pages, k == 1 ? 0 : 2);
        assert_int_equal(ph_stats(h.pool).n_window_pages, 1); /* ours */
        assert_true(is_page(&h, pages[2], 0x32));
        if (k != 2)
            kvi_block_release(h.pool, pages[2]);
        assert_int_equal(ph_stats(h.pool).n_window_pages, k == 2);
        last = run_chain(&h, a, N, &n_known);
        assert_int_equal(n_known, k == 1 ? PH_TOKENS : FOUR);
        check_chain(&h, last, a, N);
        if (k == 2)
            kvi_block_release(h.pool, pages[2]);
        memset(pages, 0, sizeof pages);
        assert_int_equal(kvi_block_stored_window(h.pool, last, 0, pages, 3), k ? 0 : FOUR);
        if (k == 0) {
            assert_null(pages[1]);
            assert_true(is_page(&h, pages[0], 0x31) && is_page(&h, pages[2], 0x32));
            kvi_block_release(h.pool, pages[0]);
            kvi_block_release(h.pool, pages[2]);
        }
        assert_int_equal(ph_stats(h.pool).n_window_pages, k == 0 ? 2 : 0);
        assert_int_equal(ph_stats(h.pool).n_host_pages, 0);
        ph_check(h.pool);
        kvi_block_release(h.pool, last);
        close_host(&h);
    }
}

/* ------------------------------------------------------------------ a host that is full */

static void test_full_host_drops_leaves_by_the_same_policy(void **state)
{
    static pool_host h;
    int32_t          p[5][FOUR];

    (void)state;
    set_device(0, 0, 0);
    for (int32_t i = 0; i < 5; i++)
        ph_prompt(p[i], FOUR, i + 1);
    open_host(&h, N * PH_BLOCK, 6 * PH_BLOCK + PH_BLOCK / 2, 0);
    assert_int_equal(ph_stats(h.pool).host_budget_bytes, 6 * PH_BLOCK + PH_BLOCK / 2);
    run_and_leave(&h, p[0], N);
    run_and_leave(&h, p[1], N);
    expect(&h, N, 0, N, 0);
    run_and_leave(&h, p[2], N); /* two of the oldest go for two of these, the last ones first */
    expect(&h, 2 * N, 0, 6, 2);
    assert_int_equal(ph_match(&h, p[1], 0), 0);
    assert_int_equal(run_and_leave(&h, p[0], N), 2 * PH_TOKENS); /* what was left of it comes back */
    ph_check(h.pool);
    assert_true(ph_stats(h.pool).host_used_bytes <= 6 * PH_BLOCK);
    assert_int_equal(run_and_leave(&h, p[2], N), FOUR);
    for (int i = 0; i < 40; i++) {
        run_and_leave(&h, p[i * 3 % 5], N);
        ph_check(h.pool);
        assert_true(ph_stats(h.pool).n_host_blocks <= 6);
    }
    close_host(&h);

    /* what is worth less than all that is there does not push it out: KVCSA_EVICT_COST */
    assert_true(try_open(&h, N * PH_BLOCK, N * PH_BLOCK, 0, KVCSA_EVICT_COST));
    for (int i = 0; i < 5; i++)
        run_and_leave(&h, p[0], N); /* of use four times */
    run_and_leave(&h, p[1], N);
    expect(&h, N, 0, N, 0);
    run_and_leave(&h, p[2], N);
    run_and_leave(&h, p[3], N);
    expect(&h, N, 0, N, 2 * N);
    assert_int_equal(run_and_leave(&h, p[0], N), FOUR);
    expect(&h, 2 * N - 1, N, N - 1, 2 * N + 1); /* the first that makes room finds none there, behind it each place is free */
    close_host(&h);

    open_host(&h, N * PH_BLOCK, PH_BLOCK - 1, 0); /* too small for one */
    run_and_leave(&h, p[0], N);
    run_and_leave(&h, p[1], N);
    expect(&h, 0, 0, 0, N);
    close_host(&h);
}

/* ------------------------------------------------------------------ leaving, pinning, computing once more */

static void test_forget_trim_and_resize(void **state)
{
    static pool_host h;
    int32_t          a[FOUR], b[FOUR];
    kvi_prefix_match match;
    kvi_block       *block;
    uint64_t         freed = 0;

    (void)state;
    set_device(0, 0, 0);
    ph_prompt(a, FOUR, 1);
    ph_prompt(b, FOUR, 2);
    memcpy(b, a, 2 * PH_TOKENS * sizeof *a); /* the first half is one */
    open_host(&h, N * PH_BLOCK, ROOMY, KVCSA_POOL_FILL_FREED);
    run_and_leave(&h, a, N);
    assert_int_equal(run_and_leave(&h, b, N), 2 * PH_TOKENS);
    expect(&h, 2, 0, 2, 0);
    kvi_prefix_look(h.pool, h.root, a, 3 * PH_TOKENS, &match);
    assert_true(match.last->out);
    block = match.last;
    assert_int_equal(kvi_prefix_forget(h.pool, h.root, block), 0); /* of the device nothing */
    ph_check(h.pool);
    kvi_prefix_find(h.pool, h.root, NULL, a, FOUR, &match);
    assert_int_equal(match.n_tokens, 2 * PH_TOKENS);
    assert_int_equal(match.reason, KVCSA_REASON_DIVERGED);
    kvi_prefix_match_release(h.pool, &match);
    assert_int_equal(ph_stats(h.pool).n_host_blocks, 1); /* held by us */
    kvi_block_release(h.pool, block);
    expect(&h, 2, 0, 0, 0);

    kvi_pool_trim(h.pool, PH_BLOCK, &freed); /* of the device; nothing is lost */
    expect(&h, 2 + 3, 0, 3, 0);
    assert_int_equal(ph_stats(h.pool).used_bytes, PH_BLOCK);
    assert_int_equal(kvi_pool_resize(h.pool, PH_BLOCK / 2, NULL), KVCSA_OK);
    expect(&h, 2 + 4, 0, 4, 0);
    assert_int_equal(ph_stats(h.pool).used_bytes, 0);
    kvi_prefix_find(h.pool, h.root, NULL, b, FOUR, &match);
    assert_true(match.n_tokens == 0 && match.reason == KVCSA_REASON_BUDGET);
    assert_int_equal(kvi_pool_resize(h.pool, N * PH_BLOCK, NULL), KVCSA_OK);
    assert_int_equal(run_and_leave(&h, b, N), FOUR);
    expect(&h, 2 + 4, N, 0, 0);
    assert_true(ph_stats(h.pool).host_slab_bytes > 0);
    kvi_pool_trim(h.pool, UINT64_MAX, &freed);
    assert_int_equal(ph_stats(h.pool).host_slab_bytes, 0);
    assert_true(freed > 0);
    close_host(&h);
}

static void test_blocks_that_are_computed_once_more(void **state)
{
    static pool_host h;
    int32_t          a[FOUR], b[FOUR];
    kvi_block       *last = NULL;
    kvi_block       *mine = NULL;
    kvi_prefix_match match;

    (void)state;
    set_device(0, 0, 0);
    ph_prompt(a, FOUR, 1);
    ph_prompt(b, FOUR, 2);
    open_host(&h, N * PH_BLOCK, ROOMY, 0);
    run_and_leave(&h, a, N);
    run_and_leave(&h, b, N);
    for (size_t i = 0; i < 2; i++) /* nobody asked for what is known */
        last = compute_block(&h, last, a + i * PH_TOKENS, NULL, 0);
    assert_true(kvi_block_is_published(h.pool, last));
    check_chain(&h, last, a, 2);
    expect(&h, N + 2, 0, N, 0); /* two of b for two of a, which are not there any more */
    assert_int_equal(ph_stats(h.pool).n_published_blocks, 2 * N);
    kvi_block_release(h.pool, last);
    assert_int_equal(run_and_leave(&h, a, N), FOUR);
    expect(&h, N + 4, 2, N, 0);

    /* published later; and one that somebody looks at stays what it is */
    kvi_pool_trim(h.pool, 0, NULL);
    expect(&h, N + 8, 2, 2 * N, 0);
    mine = ph_block(h.pool, h.cls);
    memcpy(kvi_block_tokens(mine), b, PH_TOKENS * sizeof *b);
    write_bytes(&h, mine, kvi_prefix_key(h.root, NULL, b));
    mine = kvi_block_seal(h.pool, h.root, mine, NULL, KVI_SEAL_PRIVATE, NULL, 0);
    kvi_prefix_look(h.pool, h.root, b, PH_TOKENS, &match);
    assert_int_equal(kvi_prefix_publish(h.pool, h.root, mine), 0);
    assert_false(kvi_block_is_published(h.pool, mine));
    ph_check(h.pool);
    kvi_prefix_match_release(h.pool, &match);
    assert_int_equal(kvi_prefix_publish(h.pool, h.root, mine), 1);
    assert_true(kvi_block_is_published(h.pool, mine));
    expect(&h, N + 8, 2, 2 * N - 1, 0);
    kvi_block_release(h.pool, mine);
    assert_int_equal(run_and_leave(&h, b, N), FOUR);
    close_host(&h);
}

static void test_pins_and_who_looks(void **state)
{
    static pool_host h;
    int32_t          a[FOUR], b[FOUR];
    kvi_prefix_match match, seen;

    (void)state;
    set_device(0, 0, 0);
    ph_prompt(a, FOUR, 1);
    ph_prompt(b, FOUR, 2);
    open_host(&h, N * PH_BLOCK, ROOMY, 0);
    run_and_leave(&h, a, N);
    run_and_leave(&h, b, N);
    kvi_prefix_find(h.pool, h.root, NULL, a, 2 * PH_TOKENS, &match);
    kvi_prefix_pin(h.pool, match.last);
    kvi_prefix_match_release(h.pool, &match);
    assert_int_equal(ph_stats(h.pool).n_pinned_blocks, 1);
    kvi_pool_trim(h.pool, 0, NULL);
    assert_int_equal(ph_stats(h.pool).used_bytes, 2 * PH_BLOCK); /* they stay */
    assert_int_equal(ph_stats(h.pool).evictable_bytes, 0);
    ph_check(h.pool);

    /* what somebody looks at cannot come: the match ends in front of it, until he has gone */
    kvi_prefix_look(h.pool, h.root, a, 3 * PH_TOKENS, &seen);
    kvi_prefix_find(h.pool, h.root, NULL, a, FOUR, &match);
    assert_int_equal(match.n_tokens, 2 * PH_TOKENS);
    kvi_prefix_match_release(h.pool, &match);
    kvi_prefix_match_release(h.pool, &seen);
    kvi_prefix_find(h.pool, h.root, NULL, a, FOUR, &match);
    assert_int_equal(match.n_tokens, FOUR);
    check_chain(&h, match.last, a, N);
    for (kvi_block *p = kvi_block_parent(match.last); p; p = kvi_block_parent(p))
        (void)kvi_prefix_unpin(h.pool, p);
    kvi_prefix_match_release(h.pool, &match);
    assert_int_equal(ph_stats(h.pool).n_pinned_blocks, 0);
    close_host(&h);
}

/* Bytes of an erased session that lie out there become zeros when they go. */
static void test_erased_blocks_are_zeroed_there(void **state)
{
    static pool_host h;
    int32_t          a[FOUR];
    kvi_block       *first, *last;
    kvi_prefix_match match;
    uint8_t         *there[2];
    uint64_t         n_known;

    (void)state;
    set_device(0, 0, 0);
    ph_prompt(a, FOUR, 1);
    open_host(&h, N * PH_BLOCK, ROOMY, 0);
    first = run_chain(&h, a, 1, &n_known);
    last = run_chain(&h, a, 2, &n_known); /* of another session */
    kvi_prefix_erase(h.pool, first);
    kvi_block_release(h.pool, first);
    kvi_block_release(h.pool, last);
    kvi_pool_trim(h.pool, 0, NULL);
    expect(&h, 2, 0, 2, 0);
    kvi_prefix_look(h.pool, h.root, a, 2 * PH_TOKENS, &match);
    there[1] = kvi_block_main_part(match.last);
    there[0] = kvi_block_main_part(kvi_block_parent(match.last));
    assert_true(kvi_block_parent(match.last)->secure && !match.last->secure);
    assert_int_equal(there[0][5], byte_of(kvi_block_parent(match.last)->key, PH_INDEX + 5)); /* the check has waited */
    assert_int_equal(there[1][5], byte_of(match.last->key, PH_INDEX + 5));
    kvi_prefix_match_release(h.pool, &match);
    kvi_prefix_forget(h.pool, h.root, NULL);
    for (int i = 0; i < PH_MAIN; i++)
        assert_int_equal(there[0][i], 0);
    assert_int_not_equal(there[1][5], 0); /* the slab is still there, and nobody asked for more */
    close_host(&h);
}

/* Nor is there a copy where they have been meanwhile, on either side. */
static void test_erase_finds_what_blocks_left_behind(void **state)
{
    static pool_host h;
    int32_t          a[FOUR];
    uint8_t          bytes[PH_BLOCK];
    kvi_block       *last;
    uint64_t         n_known;
    size_t           n_dirty = 0;

    (void)state;
    set_device(0, 0, 0);
    ph_prompt(a, FOUR, 1);
    open_host(&h, 2 * N * PH_BLOCK, ROOMY, 0);
    for (int erase = 0; erase < 2; erase++) {
        last = run_chain(&h, a, N, &n_known);
        kvi_block_release(h.pool, last);
        kvi_pool_trim(h.pool, 0, NULL); /* the slab of the device is given back */
        last = run_chain(&h, a, N, &n_known);
        assert_int_equal(n_known, FOUR);
        if (erase)
            kvi_prefix_erase(h.pool, last);
        kvi_block_release(h.pool, last);
        assert_int_equal(ph_stats(h.pool).n_published_blocks, erase ? 0 : N);
        n_dirty = 0;
        assert_int_equal(kvi_memory_sync(kvi_pool_memory(h.pool), NULL), KVCSA_OK);
        for (uint32_t i = 0; i < h.cls->host_slabs->n_blocks; i++) {
            const kvi_block *b = &h.cls->host_slabs->blocks[i];

            assert_int_equal(b->state, KVI_BLOCK_FREE);
            for (size_t k = 0; k < PH_MAIN; k++)
                n_dirty += kvi_block_main_part(b)[k] != 0 && kvi_block_main_part(b)[k] != 0xEE;
        }
        for (uint32_t i = 0; erase && i < N; i++) {
            const kvi_block *b = &h.cls->slabs->blocks[i];

            assert_int_equal(kvi_memory_get(kvi_pool_memory(h.pool), bytes, kvi_block_main_part(b), PH_MAIN, NULL), KVCSA_OK);
            for (size_t k = 0; k < PH_MAIN; k++)
                n_dirty += bytes[k] != 0;
        }
        assert_int_equal(n_dirty == 0, erase); /* the test sees what is there */
    }
    close_host(&h);
}

/* ------------------------------------------------------------------ a device that is full, or fails; a host without memory */

static void test_full_device_moves_before_it_gives_up(void **state)
{
    const kvi_class_shape large = {KVI_CLASS_CACHE, 64 << 10, 64 << 10, PH_TOKENS};
    static pool_host      h;
    kvi_block_class      *cls;
    kvi_prefix_match      match;
    int32_t               tokens[7][PH_TOKENS];

    (void)state;
    set_device(600000, 0, 0); /* slabs of two: four blocks */
    open_host(&h, 0, UINT64_MAX, 0);
    cls = ph_class(h.pool, &large);
    for (int i = 0; i < 7; i++) {
        kvi_block *b = ph_block(h.pool, cls);

        ph_prompt(tokens[i], PH_TOKENS, i);
        memcpy(kvi_block_tokens(b), tokens[i], sizeof tokens[i]);
        (void)kvi_memory_fill(kvi_pool_memory(h.pool), kvi_block_index_part(b), 10 + i, large.index_bytes, NULL);
        (void)kvi_memory_fill(kvi_pool_memory(h.pool), kvi_block_main_part(b), 20 + i, large.main_bytes, NULL);
        kvi_block_release(h.pool, kvi_block_seal(h.pool, h.root, b, NULL, 0, NULL, 0));
    }
    ph_check(h.pool);
    assert_int_equal(ph_stats(h.pool).n_host_blocks, 3);
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 0);
    for (int k = 0; k < 14; k++) {
        uint8_t seen[2];

        kvi_prefix_find(h.pool, h.root, NULL, tokens[k % 7], PH_TOKENS, &match);
        assert_int_equal(match.n_tokens, PH_TOKENS);
        (void)kvi_memory_get(kvi_pool_memory(h.pool), seen, kvi_block_index_part(match.last) + large.index_bytes - 1, 1, NULL);
        (void)kvi_memory_get(kvi_pool_memory(h.pool), seen + 1, kvi_block_main_part(match.last) + large.main_bytes - 1, 1, NULL);
        assert_true(seen[0] == 10 + k % 7 && seen[1] == 20 + k % 7);
        kvi_prefix_touch(h.pool, match.last, 0);
        kvi_prefix_match_release(h.pool, &match);
    }
    ph_check(h.pool);
    assert_int_equal(ph_stats(h.pool).n_moved_in_blocks, 14);
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 0);
    kvi_pool_class_release(h.pool, cls);
    kvi_prefix_forget(h.pool, NULL, NULL);
    set_device(0, 0, 0);
    close_host(&h);
}

/* Two chains in turn, while something fails. 1 = nothing did. */
static int run_in_turn(pool_host *h)
{
    int32_t a[FOUR], b[FOUR];
    int     whole = 1;

    ph_prompt(a, FOUR, 1);
    ph_prompt(b, FOUR, 2);
    for (int i = 0; i < 4; i++) {
        uint64_t   n_known = 0;
        kvi_block *last = run_chain(h, i % 2 ? b : a, N, &n_known);

        whole = whole && last && n_known == (i < 2 ? 0 : FOUR);
        kvi_block_release(h->pool, last);
    }
    return whole;
}

static void test_a_device_that_fails(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        int whole = 0;

        for (uint64_t n = 1; !whole; n++) {
            static pool_host h;
            kvcsa_status     st;
            kvcsa_error      err;

            assert_true(n < 1000);
            set_device(0, n, k & 1);
            if (!try_open(&h, N * PH_BLOCK, ROOMY, k & 2 ? KVCSA_POOL_FILL_FREED : 0, KVCSA_EVICT_LRU)) {
                assert_true(fault_alloc_is_clean(&h.fa));
                continue;
            }
            whole = run_in_turn(&h);
            st = kvi_pool_check(h.pool, &err);
            if (st != KVCSA_OK && st != KVCSA_ERR_BACKEND)
                fail_msg("call %d: %s", (int)n, err.text);
            whole = whole && st == KVCSA_OK;
            kvi_prefix_forget(h.pool, NULL, NULL);
            assert_int_equal(ph_stats(h.pool).used_bytes, 0);
            assert_int_equal(ph_stats(h.pool).host_used_bytes, 0);
            kvi_prefix_root_release(h.pool, h.root);
            kvi_pool_class_release(h.pool, h.cls);
            kvi_pool_class_release(h.pool, h.page_cls);
            kvi_pool_release(h.pool);
            assert_true(fault_alloc_is_clean(&h.fa));
        }
    }
    set_device(0, 0, 0);
}

static void test_a_host_without_memory(void **state)
{
    int whole = 0;

    (void)state;
    set_device(0, 0, 0);
    for (uint64_t n = 1; !whole; n++) {
        static pool_host h;

        assert_true(n < 200);
        open_host(&h, N * PH_BLOCK, ROOMY, 0);
        fault_alloc_fail_at(&h.fa, n);
        whole = run_in_turn(&h) && !fault_alloc_hit(&h.fa);
        fault_alloc_fail_at(&h.fa, 0);
        close_host(&h);
    }
}

/* ------------------------------------------------------------------ the check sees faults */

static void test_check_sees_faults_of_the_tier(void **state)
{
    static pool_host h;
    int32_t          a[FOUR], b[FOUR];
    kvi_prefix_match match;
    kvi_block       *last, *out;

    (void)state;
    set_device(0, 0, 0);
    ph_prompt(a, FOUR, 1);
    ph_prompt(b, FOUR, 2);
    open_host(&h, N * PH_BLOCK, ROOMY, KVCSA_POOL_FILL_FREED);
    run_and_leave(&h, a, N);
    run_and_leave(&h, b, 2);
    kvi_prefix_look(h.pool, h.root, a, FOUR, &match);
    out = match.last;
    last = kvi_block_parent(kvi_block_parent(out));
    assert_true(out->out && !last->out && last->n_at_host == 1);
    PH_BROKEN_BY(h.pool, last->n_at_host, 2, "H2: ");
    PH_BROKEN_BY(h.pool, out->at[1], KVI_AT_DEVICE, "H1: ");
    PH_BROKEN_BY(h.pool, last->at[0], KVI_AT_HOST, "H1: ");
    PH_BROKEN_BY(h.pool, h.pool->host.used_bytes, 0, "H3: ");
    PH_BROKEN_BY(h.pool, h.pool->host.n_blocks, 5, "H3: ");
    PH_BROKEN_BY(h.pool, h.pool->host.budget_bytes, PH_BLOCK, "H3: ");
    PH_BROKEN_BY(h.pool, h.cls->n_host, 3, "H3: ");
    PH_BROKEN_BY(h.pool, out->copy_no, UINT64_MAX, "H4: ");
    PH_BROKEN_BY(h.pool, kvi_block_main_part(out)[PH_MAIN - 1], 0x77 ^ kvi_block_main_part(out)[PH_MAIN - 1], "P10: ");
    PH_BROKEN_BY(h.pool, kvi_block_index_part(out)[0], 0x77 ^ kvi_block_index_part(out)[0], "P10: ");
    PH_BROKEN_BY(h.pool, h.cls->host_free_slabs->free_list->state, KVI_BLOCK_OPEN, "P2: ");
    PH_BROKEN_BY(h.pool, kvi_block_main_part(h.cls->host_free_slabs->free_list)[3], 1, "P9: ");
    kvi_prefix_match_release(h.pool, &match);
    PH_BROKEN_BY(h.pool, h.pool->host.idle_head, NULL, "T8: ");
    close_host(&h);
}
/* ------------------------------------------------------------------ sessions */

enum { PROMPT = 600, CHUNK = 64, KNOWN = PROMPT / 128 * 128, SPARE = 20000 }; /* SPARE: bytes for what is run again */

static kvcsa_session *run_prompt(kvcsa_pool *pool, kvcsa_model *model, int which, uint32_t store, float *logits)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    int32_t              ids[PROMPT];
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.chunk_tokens = CHUNK;
    p.window_store_tokens = store;
    assert_ok(kvcsa_session_create(pool, model, &p, &s, &err));
    host_tokens(ids, PROMPT, 700 + (uint64_t)which);
    host_run(pool, s, ids, PROMPT, NULL);
    host_logits(s, logits, T1_VOCAB);
    return s;
}

static kvcsa_pool *session_pool(uint32_t backend, uint64_t budget, uint64_t host)
{
    kvcsa_pool_params p;
    kvcsa_pool       *pool = NULL;
    kvcsa_error       err;

    kvcsa_pool_params_default(&p, sizeof p);
    p.n_threads = 1;
    p.backend = backend;
    p.backend_dir = test_backend_beside("apart");
    p.budget_bytes = budget;
    p.host_bytes = host;
    assert_ok(kvcsa_pool_create(&p, &pool, &err));
    return pool;
}

static kvcsa_session_stats stats_of(kvcsa_session *s)
{
    kvcsa_session_stats st = {.struct_size = sizeof st};
    kvcsa_error         err;

    assert_ok(kvcsa_session_get_stats(s, &st, &err));
    return st;
}

/* Without a tier everything is computed again each time, with one nothing but what rebuilds a window, if none was stored. */
static void run_two_in_turn(kvcsa_model *model, uint32_t store)
{
    static float   calm[2][T1_VOCAB], logits[T1_VOCAB];
    kvcsa_pool    *pool = session_pool(KVCSA_BACKEND_CPU, 0, 0);
    uint64_t       one = 0;
    kvcsa_session *s;
    kvcsa_error    err;

    for (int i = 0; i < 2; i++) {
        s = run_prompt(pool, model, i, store, calm[i]);
        one = ph_stats(pool).used_bytes + ph_stats(pool).reserved_bytes;
        kvcsa_session_release(&s);
        kvi_prefix_forget(pool, NULL, NULL);
    }
    kvcsa_pool_release(&pool);
    for (uint64_t tier = 0; tier < 2; tier++) {
        pool = session_pool(KVCSA_BACKEND_CUDA, one + SPARE, tier << 26);
        for (int i = 0; i < 6; i++) {
            const int known = tier && i >= 2;

            s = run_prompt(pool, model, i % 2, store, logits);
            assert_memory_equal(logits, calm[i % 2], sizeof logits);
            assert_int_equal(stats_of(s).n_adopted_tokens, known ? KNOWN : 0);
            assert_int_equal(stats_of(s).n_replayed_rows, known && !store ? 16 + 9 * 15 : 0);
            assert_ok(kvcsa_pool_check(pool, &err));
            kvcsa_session_release(&s);
            assert_int_equal(ph_stats(pool).n_host_pages != 0, tier && i && store);
        }
        assert_int_equal(ph_stats(pool).n_evicted_blocks, tier ? 0 : 5 * (KNOWN / 128));
        assert_int_equal(ph_stats(pool).n_moved_out_blocks, tier ? 5 * (KNOWN / 128) : 0);
        assert_int_equal(ph_stats(pool).n_moved_in_blocks, tier ? 4 * (KNOWN / 128) : 0);
        assert_int_equal(ph_stats(pool).n_hit_tokens, tier ? 4 * KNOWN : 0);
        host_pool_is_idle(pool);
        kvcsa_pool_release(&pool);
    }
}

/* What asks by tokens moves nothing, forgets what lies there, and pins what it has brought back. */
static void test_calls_by_tokens(void **state)
{
    static float   logits[T1_VOCAB];
    int32_t        ids[PROMPT];
    kvcsa_model   *model = host_model(T1_DIR);
    kvcsa_pool    *pool;
    kvcsa_session *s;
    size_t         n = 0;
    uint64_t       freed = 1;
    kvcsa_error    err;

    (void)state;
    set_device(0, 0, 0);
    pool = session_pool(KVCSA_BACKEND_CUDA, 0, 1u << 26);
    s = run_prompt(pool, model, 0, 0, logits);
    kvcsa_session_release(&s);
    assert_ok(kvcsa_pool_trim(pool, 0, NULL, &err));
    host_tokens(ids, PROMPT, 700);
    assert_ok(kvcsa_prefix_match(pool, model, 0, ids, PROMPT, &n, &err));
    assert_int_equal(n, KNOWN);
    assert_int_equal(ph_stats(pool).n_host_blocks, KNOWN / 128);
    assert_ok(kvcsa_prefix_pin(pool, model, 0, ids, 256, &n, &err));
    assert_int_equal(n, 256);
    assert_int_equal(ph_stats(pool).n_host_blocks, KNOWN / 128 - 2);
    assert_ok(kvcsa_prefix_unpin(pool, model, 0, ids, 256, &err));
    assert_ok(kvcsa_pool_trim(pool, 0, NULL, &err));
    assert_ok(kvcsa_prefix_forget(pool, model, 0, ids, 384, &freed, &err)); /* and all that leads there only */
    assert_int_equal(freed, 0);
    assert_int_equal(ph_stats(pool).n_moved_in_blocks, 2);
    assert_int_equal(ph_stats(pool).n_published_blocks, 0);
    assert_int_equal(ph_stats(pool).host_used_bytes, 0);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&model);
}

static void test_two_long_prompts_in_turn(void **state)
{
    kvcsa_model *model = host_model(T1_DIR);

    (void)state;
    set_device(0, 0, 0);
    run_two_in_turn(model, 0);
    run_two_in_turn(model, 512);
    kvcsa_model_release(&model);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_go_out_and_come_back),
        cmocka_unit_test(test_without_a_tier_prefixes_are_lost),
        cmocka_unit_test(test_parts_of_a_match),
        cmocka_unit_test(test_a_hopeless_match_moves_nothing),
        cmocka_unit_test(test_stored_windows_go_along),
        cmocka_unit_test(test_full_host_drops_leaves_by_the_same_policy),
        cmocka_unit_test(test_forget_trim_and_resize),
        cmocka_unit_test(test_blocks_that_are_computed_once_more),
        cmocka_unit_test(test_pins_and_who_looks),
        cmocka_unit_test(test_erased_blocks_are_zeroed_there),
        cmocka_unit_test(test_erase_finds_what_blocks_left_behind),
        cmocka_unit_test(test_full_device_moves_before_it_gives_up),
        cmocka_unit_test(test_a_device_that_fails),
        cmocka_unit_test(test_a_host_without_memory),
        cmocka_unit_test(test_check_sees_faults_of_the_tier),
        cmocka_unit_test(test_calls_by_tokens),
        cmocka_unit_test(test_two_long_prompts_in_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
