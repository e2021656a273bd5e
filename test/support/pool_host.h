/* A pool with small blocks for the tests of the room: opening, growing chains, asking, closing. */
#ifndef TEST_POOL_HOST_H
#define TEST_POOL_HOST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "pool/pool.h"
#include "pool/pool_int.h"

#include "support/fault_alloc.h"

enum {
    PH_TOKENS = 4, /* in a block */
    PH_INDEX = 24,
    PH_MAIN = 72,
    PH_BLOCK = PH_INDEX + PH_MAIN, /* what the budget counts */
    PH_PAGE = 50,
    PH_MAX_EVENTS = 2048
};

typedef struct pool_host {
    fault_alloc       fa;
    kvcsa_pool       *pool;
    kvi_block_class  *cls;
    kvi_block_class  *page_cls;
    kvi_prefix_root  *root;
    size_t            n_events;
    kvcsa_trace_event events[PH_MAX_EVENTS];
} pool_host;

static const kvi_class_shape ph_shape = {KVI_CLASS_CACHE, PH_INDEX, PH_MAIN, PH_TOKENS};
static const kvi_class_shape ph_page_shape = {KVI_CLASS_WINDOW, 0, PH_PAGE, 0};
static const kvi_domain      ph_domain = {.weights = 11,
                                          .adapter = 12,
                                          .plan = 13,
                                          .numerics = 14,
                                          .salt = 15,
                                          .version = KVI_DOMAIN_VERSION};

static inline void ph_check(kvcsa_pool *pool)
{
    kvcsa_error err;

    if (kvi_pool_check(pool, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
}

/* The check must fail, and say with which invariant. */
static inline void ph_expect_broken(kvcsa_pool *pool, const char *name)
{
    kvcsa_error err = {0};

    assert_int_equal(kvi_pool_check(pool, &err), KVCSA_ERR_INTERNAL);
    if (strncmp(err.text, name, strlen(name)) != 0)
        fail_msg("wanted %s, got: %s", name, err.text);
}

/* A planted fault, seen and taken back. */
#define PH_BROKEN_BY(pool, field, value, name)                                                     \
    do {                                                                                           \
        __typeof__(field) old_ = (field);                                                          \
        (field) = (value);                                                                         \
        ph_expect_broken((pool), (name));                                                          \
        (field) = old_;                                                                            \
        ph_check(pool);                                                                            \
    } while (0)

static inline kvcsa_pool_stats ph_stats(kvcsa_pool *pool)
{
    kvcsa_pool_stats s;
    kvcsa_error      err;

    memset(&s, 0x77, sizeof s);
    s.struct_size = 12345;
    assert_int_equal(kvi_pool_get_stats(pool, &s, &err), KVCSA_OK);
    assert_int_equal(s.struct_size, 12345);
    return s;
}

static inline kvi_block_class *ph_class(kvcsa_pool *pool, const kvi_class_shape *shape)
{
    kvi_block_class *cls = NULL;
    kvcsa_error      err;

    assert_int_equal(kvi_pool_class_acquire(pool, shape, &cls, &err), KVCSA_OK);
    assert_non_null(cls);
    return cls;
}

static inline kvi_prefix_root *ph_root(kvcsa_pool *pool, const kvi_domain *domain)
{
    kvi_prefix_root *root = NULL;
    kvcsa_error      err;

    assert_int_equal(kvi_prefix_root_acquire(pool, domain, PH_TOKENS, &root, &err), KVCSA_OK);
    assert_non_null(root);
    return root;
}

static inline kvi_block *ph_block(kvcsa_pool *pool, kvi_block_class *cls)
{
    kvi_block  *block = NULL;
    kvcsa_error err;

    if (kvi_pool_reserve(pool, cls, 1, &err) != KVCSA_OK ||
        kvi_block_acquire(pool, cls, &block, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    assert_int_equal(kvi_block_state(block), KVI_BLOCK_OPEN);
    return block;
}

static inline void ph_note_event(void *user, const kvcsa_trace_event *event)
{
    pool_host *h = user;

    if (event->struct_size == sizeof *event && h->n_events < PH_MAX_EVENTS)
        h->events[h->n_events++] = *event;
}

static inline size_t ph_count_events(const pool_host *h, uint32_t kind, uint32_t reason)
{
    size_t n = 0;

    for (size_t i = 0; i < h->n_events; i++)
        n += h->events[i].kind == kind && h->events[i].reason == reason;
    return n;
}

static inline void ph_open(pool_host *h, uint64_t budget, uint32_t flags, uint32_t evict)
{
    const kvcsa_trace trace = {ph_note_event, h};
    kvcsa_pool_params p = {.struct_size = sizeof p,
                           .allocator = &h->fa.hook,
                           .budget_bytes = budget,
                           .n_threads = 1,
                           .flags = flags,
                           .trace = &trace,
                           .evict = evict};
    kvcsa_error       err;

    memset(h, 0, sizeof *h);
    fault_alloc_init(&h->fa);
    if (kvi_pool_create(&p, &h->pool, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    h->cls = ph_class(h->pool, &ph_shape);
    h->page_cls = ph_class(h->pool, &ph_page_shape);
    h->root = ph_root(h->pool, &ph_domain);
}

/* Whoever still holds a block has leaked it. */
static inline void ph_close(pool_host *h)
{
    ph_check(h->pool);
    kvi_prefix_forget(h->pool, NULL, NULL);
    assert_int_equal(ph_stats(h->pool).used_bytes, 0);
    assert_int_equal(ph_stats(h->pool).reserved_bytes, 0);
    kvi_prefix_root_release(h->pool, h->root);
    kvi_pool_class_release(h->pool, h->cls);
    kvi_pool_class_release(h->pool, h->page_cls);
    ph_check(h->pool);
    kvi_pool_release(h->pool);
    assert_true(fault_alloc_is_clean(&h->fa));
}

/* An open block with these tokens. */
static inline kvi_block *ph_open_block(pool_host *h, const int32_t *tokens)
{
    kvi_block *block = ph_block(h->pool, h->cls);

    memset(kvi_block_index_part(block), (int)(tokens[0] & 0x7F), PH_INDEX);
    memset(kvi_block_main_part(block), (int)(tokens[PH_TOKENS - 1] & 0x7F), PH_MAIN);
    memcpy(kvi_block_tokens(block), tokens, PH_TOKENS * sizeof *tokens);
    return block;
}

/* A sealed one behind `parent`, the caller's reference to which goes into it. */
static inline kvi_block *ph_seal(pool_host *h, kvi_block *parent, const int32_t *tokens,
                                 uint32_t flags)
{
    kvi_block *block =
        kvi_block_seal(h->pool, h->root, ph_open_block(h, tokens), parent, flags, NULL, 0);

    assert_int_equal(kvi_block_state(block), KVI_BLOCK_SEALED);
    return block;
}

/* n blocks of tokens behind `parent`; the caller holds the last one. */
static inline kvi_block *ph_chain(pool_host *h, kvi_block *parent, const int32_t *tokens, size_t n,
                                  uint32_t flags)
{
    for (size_t i = 0; i < n; i++)
        parent = ph_seal(h, parent, tokens + i * PH_TOKENS, flags);
    return parent;
}

/* n_tokens of `tokens` that the tree knows; nothing is kept. */
static inline uint64_t ph_match(pool_host *h, const int32_t *tokens, size_t n_tokens)
{
    kvi_prefix_match match;
    uint64_t         n = 0;

    kvi_prefix_find(h->pool, h->root, NULL, tokens, n_tokens, &match);
    n = match.n_tokens;
    kvi_prefix_match_release(h->pool, &match);
    return n;
}

/* n tokens that nobody else begins with. */
static inline void ph_prompt(int32_t *tokens, size_t n, int32_t who)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = 1000 * who + (int32_t)i;
}

#endif
