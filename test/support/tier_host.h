/* Pools on the test plug-in "apart" with a host tier: chains whose bytes follow from their place, run as a session does. */
#ifndef TEST_TIER_HOST_H
#define TEST_TIER_HOST_H

#include "support/pool_host.h"
#include "support/test_backend.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    N = 4, /* blocks of most chains */
    FOUR = N * PH_TOKENS,
    ROOMY = 64 * PH_BLOCK
};

static inline void set_device(uint64_t bytes, uint64_t fail_after, int late)
{
    char text[24];

    snprintf(text, sizeof text, "%llu", (unsigned long long)bytes);
    assert_int_equal(bytes ? setenv("APART_BYTES", text, 1) : unsetenv("APART_BYTES"), 0);
    snprintf(text, sizeof text, "%llu", (unsigned long long)fail_after);
    assert_int_equal(fail_after ? setenv("APART_FAIL_AFTER", text, 1) : unsetenv("APART_FAIL_AFTER"), 0);
    assert_int_equal(setenv("APART_FAIL_LATE", late ? "1" : "0", 1), 0);
}

/* budget, host: in bytes. 0 = the pool could not be made. */
static inline int try_open(pool_host *h, uint64_t budget, uint64_t host, uint32_t flags, uint32_t evict)
{
    const kvcsa_trace trace = {ph_note_event, h};
    kvcsa_pool_params p = {.struct_size = sizeof p,
                           .allocator = &h->fa.hook,
                           .budget_bytes = budget,
                           .n_threads = 1,
                           .flags = flags,
                           .trace = &trace,
                           .evict = evict,
                           .backend = KVCSA_BACKEND_CUDA,
                           .backend_dir = test_backend_beside("apart"),
                           .host_bytes = host};

    memset(h, 0, sizeof *h);
    fault_alloc_init(&h->fa);
    if (kvi_pool_create(&p, &h->pool, NULL) != KVCSA_OK)
        return 0;
    if (kvi_pool_class_acquire(h->pool, &ph_shape, &h->cls, NULL) != KVCSA_OK ||
        kvi_pool_class_acquire(h->pool, &ph_page_shape, &h->page_cls, NULL) != KVCSA_OK) {
        kvi_pool_class_release(h->pool, h->cls);
        kvi_pool_release(h->pool);
        return 0;
    }
    h->root = ph_root(h->pool, &ph_domain);
    return 1;
}

static inline void open_host(pool_host *h, uint64_t budget, uint64_t host, uint32_t flags)
{
    assert_true(try_open(h, budget, host, flags, KVCSA_EVICT_LRU));
}

static inline void close_host(pool_host *h)
{
    ph_check(h->pool);
    kvi_prefix_forget(h->pool, NULL, NULL);
    ph_check(h->pool);
    assert_int_equal(ph_stats(h->pool).n_host_blocks, 0);
    assert_int_equal(ph_stats(h->pool).n_host_pages, 0);
    assert_int_equal(ph_stats(h->pool).host_used_bytes, 0);
    ph_close(h);
}

/* ------------------------------------------------------------------ bytes that follow from the block's place */

static inline uint8_t byte_of(kvi_hash128 key, size_t i)
{
    return (uint8_t)(key.lo >> i % 8 * 8 ^ key.hi >> i % 7 * 8 ^ i * 37);
}

static inline void write_bytes(pool_host *h, kvi_block *b, kvi_hash128 key)
{
    const kvi_memory *m = kvi_pool_memory(h->pool);
    uint8_t           bytes[PH_BLOCK];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = byte_of(key, i);
    (void)kvi_memory_put(m, kvi_block_index_part(b), bytes, PH_INDEX, NULL);
    (void)kvi_memory_put(m, kvi_block_main_part(b), bytes + PH_INDEX, PH_MAIN, NULL);
}

/* Under the lock: the compiler may read neighbours that are the tree's together with what a holder may look at. */
static inline bool is_on_device(pool_host *h, const kvi_block *b)
{
    bool there;

    pthread_mutex_lock(&h->pool->lock);
    there = !b->out && b->at[0] == KVI_AT_DEVICE && b->at[1] == KVI_AT_DEVICE;
    pthread_mutex_unlock(&h->pool->lock);
    return there;
}

/* The whole chain is on the device, and what it was. */
static inline void check_chain(pool_host *h, kvi_block *last, const int32_t *tokens, size_t n)
{
    const kvi_memory *m = kvi_pool_memory(h->pool);
    uint8_t           bytes[PH_BLOCK];

    assert_int_equal(kvi_block_depth(last), n - 1);
    for (kvi_block *b = last; b; b = kvi_block_parent(b)) {
        const kvi_hash128 key = kvi_block_key(b);

        assert_true(is_on_device(h, b));
        assert_memory_equal(kvi_block_tokens(b), tokens + kvi_block_depth(b) * PH_TOKENS, PH_TOKENS * sizeof *tokens);
        assert_true(kvi_hash128_equal(key, kvi_prefix_key(h->root, kvi_block_parent(b), kvi_block_tokens(b))));
        assert_int_equal(kvi_memory_get(m, bytes, kvi_block_index_part(b), PH_INDEX, NULL), KVCSA_OK);
        assert_int_equal(kvi_memory_get(m, bytes + PH_INDEX, kvi_block_main_part(b), PH_MAIN, NULL), KVCSA_OK);
        for (size_t i = 0; i < sizeof bytes; i++)
            assert_int_equal(bytes[i], byte_of(key, i));
    }
}

/* The block behind `parent` with these tokens, computed; NULL = no room, and the reference to the parent is dropped. */
static inline kvi_block *compute_block(pool_host *h, kvi_block *parent, const int32_t *tokens, kvi_block *const *window,
                                       size_t n_window)
{
    kvi_block *b = NULL;

    if (kvi_pool_reserve(h->pool, h->cls, 1, NULL) != KVCSA_OK) {
        kvi_block_release(h->pool, parent);
        return NULL;
    }
    if (kvi_block_acquire(h->pool, h->cls, &b, NULL) != KVCSA_OK) {
        kvi_pool_unreserve(h->pool, h->cls, 1);
        kvi_block_release(h->pool, parent);
        return NULL;
    }
    memcpy(kvi_block_tokens(b), tokens, PH_TOKENS * sizeof *tokens);
    write_bytes(h, b, kvi_prefix_key(h->root, parent, tokens));
    return kvi_block_seal(h->pool, h->root, b, parent, 0, window, n_window);
}

/* As a session does: what is known, then the rest. Returns the last block, held; the number of tokens that were known. */
static inline kvi_block *run_chain(pool_host *h, const int32_t *tokens, size_t n, uint64_t *n_known)
{
    kvi_prefix_match match;
    kvi_block       *last;

    kvi_prefix_find(h->pool, h->root, NULL, tokens, n * PH_TOKENS, &match);
    kvi_block_release(h->pool, match.partial);
    last = match.last;
    *n_known = last ? (kvi_block_depth(last) + 1) * PH_TOKENS : 0;
    kvi_prefix_touch(h->pool, last, 0);
    for (size_t i = (size_t)*n_known / PH_TOKENS; i < n; i++) {
        if (!(last = compute_block(h, last, tokens + i * PH_TOKENS, NULL, 0)))
            return NULL;
    }
    return last;
}

static inline uint64_t run_and_leave(pool_host *h, const int32_t *tokens, size_t n)
{
    uint64_t   n_known = 0;
    kvi_block *last = run_chain(h, tokens, n, &n_known);

    check_chain(h, last, tokens, n);
    kvi_block_release(h->pool, last);
    return n_known;
}

static inline void expect(pool_host *h, uint64_t out, uint64_t in, uint64_t there, uint64_t evicted)
{
    const kvcsa_pool_stats s = ph_stats(h->pool);

    ph_check(h->pool);
    assert_int_equal(s.n_moved_out_blocks, out);
    assert_int_equal(s.n_moved_in_blocks, in);
    assert_int_equal(s.n_host_blocks, there);
    assert_int_equal(s.n_evicted_blocks, evicted);
    assert_int_equal(s.host_used_bytes, there * PH_BLOCK + s.n_host_pages * PH_PAGE);
    assert_true((there == 0 && s.n_moved_out_blocks == 0) || s.host_slab_bytes >= s.host_used_bytes);
    assert_int_equal(ph_count_events(h, KVCSA_TRACE_MOVE_OUT, KVCSA_REASON_NONE), out);
    assert_int_equal(ph_count_events(h, KVCSA_TRACE_MOVE_IN, KVCSA_REASON_NONE), in);
    assert_int_equal(ph_count_events(h, KVCSA_TRACE_EVICT, KVCSA_REASON_BUDGET), evicted);
}

#endif
