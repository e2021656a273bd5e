/* Which published block goes when room is wanted.
 *
 * Only idle blocks go: published, not pinned, and nobody but the tree holds them. A block with a
 * child behind it is held by the child, so a chain goes from its end; the pool keeps the idle ones
 * in a list, which is thus one of leaves, and the search for the next victim is a walk over it.
 * Children in the host tier do not count on the device: they have gone first. The tier has a list
 * of its own, and the same policy.
 *
 * LRU: the one that was used longest ago.
 * Cost: greedy dual with frequencies (GDSF), for blocks of one size and with a slow clock. A block
 * is worth
 *     age + number of bits of its number of hits
 * when it is published or hit. The age grows by one while AGE_TURNOVERS times as many blocks go as
 * are published, so a block that was hit once outlives that many generations of those that never
 * were, and every doubling of its hits buys as many more: prompts that are used once do not push
 * out a prefix that is shared, and one that nobody asks for any more goes in the end. Equal worth:
 * the one that was used longest ago. */
#include "pool/pool.h"

#include "base/status.h"
#include "pool/pool_int.h"

#include <inttypes.h>

#define AGE_TURNOVERS 64

/* ------------------------------------------------------------------ the idle list */

static int is_evictable(const kvi_block *block)
{
    return block->published && block->pins == 0 &&
           block->refs == 1 + (block->out ? 0 : block->n_at_host);
}

static void link_idle(kvcsa_pool *pool, kvi_block *block)
{
    kvi_block **const head = block->out ? &pool->host.idle_head : &pool->idle_head;
    kvi_block **const tail = block->out ? &pool->host.idle_tail : &pool->idle_tail;

    block->prev_idle = *tail;
    block->next_idle = NULL;
    if (*tail)
        (*tail)->next_idle = block;
    else
        *head = block;
    *tail = block;
    block->idle = 1;
}

static void unlink_idle(kvcsa_pool *pool, kvi_block *block)
{
    if (block->prev_idle)
        block->prev_idle->next_idle = block->next_idle;
    else
        *(block->out ? &pool->host.idle_head : &pool->idle_head) = block->next_idle;
    if (block->next_idle)
        block->next_idle->prev_idle = block->prev_idle;
    else
        *(block->out ? &pool->host.idle_tail : &pool->idle_tail) = block->prev_idle;
    block->prev_idle = NULL;
    block->next_idle = NULL;
    block->idle = 0;
}

void kvi_evict_update(kvcsa_pool *pool, kvi_block *block)
{
    const int wanted = is_evictable(block);

    if (wanted && !block->idle)
        link_idle(pool, block);
    else if (!wanted && block->idle)
        unlink_idle(pool, block);
}

/* ------------------------------------------------------------------ worth */

static void set_worth(kvcsa_pool *pool, kvi_block *block)
{
    uint32_t bits = 0;

    for (uint64_t n = block->n_hits; n; n >>= 1)
        bits++;
    block->last_used = ++pool->clock;
    block->worth = pool->age + bits;
}

void kvi_evict_enter(kvcsa_pool *pool, kvi_block *block)
{
    block->n_hits = 0;
    set_worth(pool, block);
    kvi_evict_update(pool, block);
}

void kvi_evict_used(kvcsa_pool *pool, kvi_block *block)
{
    block->n_hits++;
    set_worth(pool, block);
}

/* a goes before b. */
static int goes_first(const kvcsa_pool *pool, const kvi_block *a, const kvi_block *b)
{
    if (pool->evict == KVCSA_EVICT_COST && a->worth != b->worth)
        return a->worth < b->worth;
    return a->last_used < b->last_used;
}

/* ------------------------------------------------------------------ evicting */

static kvi_block *pick_victim(const kvcsa_pool *pool, kvi_block *head)
{
    kvi_block *victim = head;

    for (kvi_block *b = head ? head->next_idle : NULL; b; b = b->next_idle) {
        if (goes_first(pool, b, victim))
            victim = b;
    }
    return victim;
}

int kvi_evict_one(kvcsa_pool *pool, uint32_t reason)
{
    kvi_block *victim = pick_victim(pool, pool->idle_head);
    uint64_t   n_here = pool->n_published; /* about: a block out there may be looked at */

    if (!victim)
        return 0;
    if (n_here > pool->host.n_blocks)
        n_here -= pool->host.n_blocks;
    pool->age += 1.0 / ((double)AGE_TURNOVERS * (double)n_here);
    if (!kvi_host_take_over(pool, victim))
        pool->n_evicted += kvi_prefix_remove_tree(pool, victim, reason);
    return 1;
}

int kvi_evict_host_one(kvcsa_pool *pool, const kvi_block *coming)
{
    kvi_block *victim = pick_victim(pool, pool->host.idle_head);

    /* with children out there it cannot go before them */
    if (!victim || (coming->n_at_host == 0 && goes_first(pool, coming, victim)))
        return 0;
    pool->n_evicted++;
    kvi_prefix_remove(pool, victim, KVCSA_REASON_BUDGET);
    return 1;
}

void kvi_evict_down_to(kvcsa_pool *pool, uint64_t max_used, uint32_t reason)
{
    while (pool->used_bytes > max_used && kvi_evict_one(pool, reason)) {
    }
}

int kvi_evict_for(kvcsa_pool *pool, uint64_t bytes, uint32_t reason)
{
    uint64_t max_used = pool->budget_bytes - pool->reserved_bytes; /* (P6): no underflow */

    if (bytes > max_used)
        return 0;
    max_used -= bytes;
    if (pool->used_bytes <= max_used)
        return 1;
    /* a hopeless request must not empty the tree */
    if (pool->used_bytes - kvi_evict_possible_bytes(pool) > max_used)
        return 0;
    kvi_evict_down_to(pool, max_used, reason);
    KVI_ASSERT(pool->used_bytes <= max_used);
    return 1;
}

/* ------------------------------------------------------------------ what could go */

/* First block of the subtree in post-order: children before their parent. */
static kvi_block *first_leaf(kvi_block *block)
{
    while (block && block->first_child)
        block = block->first_child;
    return block;
}

static kvi_block *next_in_post_order(const kvi_block *block)
{
    return block->next_sibling ? first_leaf(block->next_sibling) : block->parent;
}

/* Somebody beside the tree and the published children holds it. */
static int is_held(const kvi_block *block)
{
    uint32_t n = 1;

    for (const kvi_block *child = block->first_child; child; child = child->next_sibling)
        n++;
    return block->refs != n;
}

/* Calls `take` for every block that could go when all those behind it have gone. Returns the sum of
 * what it returns. */
static uint64_t for_each_possible(const kvcsa_pool *pool, uint64_t (*take)(const kvi_block *block))
{
    uint64_t sum = 0;

    for (const kvi_prefix_root *root = pool->roots; root; root = root->next) {
        /* The last block that has to stay has this depth. In post-order the next one with a lower
         * depth is its parent, which stays too. */
        uint64_t stays = 0;

        for (const kvi_block *b = first_leaf(root->first_child); b; b = next_in_post_order(b)) {
            if (stays > b->depth || is_held(b))
                stays = b->depth;
            else
                sum += take(b);
        }
    }
    return sum;
}

/* Pages may lie in several stored windows: n_hits of a page counts those that could go, and the
 * last of them frees it. */
static uint64_t take_bytes(const kvi_block *block)
{
    const kvi_stored_window *window = block->window;
    uint64_t                 bytes = kvi_class_block_bytes(block->slab->cls);

    if (block->out)
        return 0; /* it has gone */
    for (size_t i = 0; window && i < window->n_pages; i++) {
        kvi_block *page = window->pages[i];

        if (page && ++page->n_hits == page->refs)
            bytes += kvi_class_block_bytes(page->slab->cls);
    }
    return bytes;
}

static uint64_t forget_counts(const kvi_block *block)
{
    const kvi_stored_window *window = block->window;

    for (size_t i = 0; window && i < window->n_pages; i++) {
        if (window->pages[i])
            window->pages[i]->n_hits = 0;
    }
    return 0;
}

uint64_t kvi_evict_possible_bytes(const kvcsa_pool *pool)
{
    const uint64_t bytes = for_each_possible(pool, take_bytes);

    for_each_possible(pool, forget_counts);
    return bytes;
}

uint64_t kvi_evict_room(const kvcsa_pool *pool)
{
    return pool->budget_bytes - pool->reserved_bytes - pool->used_bytes +
           kvi_evict_possible_bytes(pool);
}

/* ------------------------------------------------------------------ a device that is full */

static int could_have(kvcsa_pool *pool, uint64_t n_bytes)
{
    const uint64_t  stays = pool->used_bytes - kvi_evict_possible_bytes(pool);
    kvi_device_info info;

    kvi_pool_describe(pool, &info);
    /* slabs that are used in part count as if they could go too */
    return n_bytes <= info.memory_free + (pool->slab_bytes - stays);
}

int kvi_pool_could_have(kvcsa_pool *pool, uint64_t n_bytes)
{
    int could = 0;

    pthread_mutex_lock(&pool->lock);
    could = could_have(pool, n_bytes);
    pthread_mutex_unlock(&pool->lock);
    return could;
}

int kvi_pool_make_room(void *user, size_t size)
{
    kvcsa_pool *pool = user;
    uint64_t    before = 0;
    int         made = 0;

    pthread_mutex_lock(&pool->lock);
    before = pool->slab_bytes;
    if (could_have(pool, size)) { /* a hopeless request must not empty the tree */
        do {
            kvi_pool_free_empty_slabs(pool);
            made = pool->slab_bytes < before;
        } while (!made && kvi_evict_one(pool, KVCSA_REASON_BUDGET));
    }
    pthread_mutex_unlock(&pool->lock);
    return made;
}

/* ------------------------------------------------------------------ check */

/* (T8) */
static kvcsa_status check_list(const kvcsa_pool *pool, const kvi_block *head,
                               const kvi_block *tail, int out, uint64_t *n, kvcsa_error *err)
{
    const kvi_block *prev = NULL;

    for (const kvi_block *b = head; b; prev = b, b = b->next_idle) {
        if (!b->idle || !is_evictable(b) || b->prev_idle != prev || b->out != out)
            return KVI_BROKEN("T8: block %p has no place among the idle ones", (const void *)b);
        if (++*n > pool->n_published)
            return KVI_BROKEN("T8: the list of idle blocks does not end");
    }
    if (tail != prev)
        return KVI_BROKEN("T8: the list of idle blocks ends at another block than its tail");
    return KVCSA_OK;
}

static kvcsa_status check_marks(const kvi_slab *slabs, uint64_t *n_idle, kvcsa_error *err)
{
    for (const kvi_slab *slab = slabs; slab; slab = slab->next) {
        for (uint32_t i = 0; i < slab->n_blocks; i++) {
            const kvi_block *b = &slab->blocks[i];

            if (b->idle != is_evictable(b))
                return KVI_BROKEN("T8: block %p has the wrong mark of idle ones",
                                  (const void *)b);
            *n_idle += b->idle;
        }
    }
    return KVCSA_OK;
}

kvcsa_status kvi_pool_check_idle(const kvcsa_pool *pool, kvcsa_error *err)
{
    const kvi_host_tier *host = &pool->host;
    uint64_t             n_listed = 0;
    uint64_t             n_idle = 0;
    kvcsa_status         st =
        check_list(pool, pool->idle_head, pool->idle_tail, 0, &n_listed, err);

    if (st == KVCSA_OK)
        st = check_list(pool, host->idle_head, host->idle_tail, 1, &n_listed, err);
    for (const kvi_block_class *cls = pool->classes; cls && st == KVCSA_OK; cls = cls->next) {
        if ((st = check_marks(cls->slabs, &n_idle, err)) == KVCSA_OK)
            st = check_marks(cls->host_slabs, &n_idle, err);
    }
    if (st == KVCSA_OK && n_idle != n_listed)
        return KVI_BROKEN("T8: %" PRIu64 " blocks are idle, %" PRIu64 " are listed", n_idle,
                          n_listed);
    return st;
}
