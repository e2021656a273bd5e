/* The ways out of the prefix tree: eviction's last step, forget, erase, and the end of the pool.
 * The invariants are in prefix_share.c. */
#include "pool/pool.h"

#include "base/alloc.h"
#include "base/status.h"
#include "pool/pool_int.h"

/* ------------------------------------------------------------------ one block; the caller holds
 * the lock */

/* (T7) */
static void destroy_root_if_idle(kvcsa_pool *pool, kvi_prefix_root *root)
{
    kvi_prefix_root **link = &pool->roots;

    if (root->refs > 0 || root->n_published > 0)
        return;
    while (*link != root)
        link = &(*link)->next;
    *link = root->next;
    pool->side_bytes -= sizeof *root;
    kvi_free(&pool->allocator, root, sizeof *root);
}

void kvi_prefix_root_drop(kvcsa_pool *pool, kvi_prefix_root *root)
{
    root->refs--;
    destroy_root_if_idle(pool, root);
}

static void take_out_of_bucket(kvcsa_pool *pool, kvi_block *block)
{
    kvi_block **link = &pool->buckets[block->key.lo & (pool->n_buckets - 1)];

    while (*link != block)
        link = &(*link)->next_in_bucket;
    *link = block->next_in_bucket;
    block->next_in_bucket = NULL;
}

static void take_from_parent(kvi_block *block)
{
    if (block->out && block->parent && !block->parent->out)
        block->parent->n_at_host--;
    if (block->prev_sibling)
        block->prev_sibling->next_sibling = block->next_sibling;
    else
        *kvi_prefix_children(block->root, block->parent) = block->next_sibling;
    if (block->next_sibling)
        block->next_sibling->prev_sibling = block->prev_sibling;
    block->prev_sibling = NULL;
    block->next_sibling = NULL;
}

static void free_table(kvcsa_pool *pool)
{
    pool->side_bytes -= kvi_table_size(pool);
    kvi_free(&pool->allocator, pool->buckets, kvi_table_size(pool));
    pool->buckets = NULL;
    pool->n_buckets = 0;
}

void kvi_prefix_unpublish(kvcsa_pool *pool, kvi_block *block)
{
    kvi_prefix_root *root = block->root;

    KVI_ASSERT(block->published && !block->first_child);
    take_out_of_bucket(pool, block);
    take_from_parent(block);
    block->published = 0;
    block->root = NULL;
    root->n_published--;
    if (--pool->n_published == 0)
        free_table(pool);
    if (block->pins > 0) {
        block->refs -= block->pins; /* the tree's own is left */
        block->pins = 0;
        pool->n_pinned--;
    }
    kvi_evict_update(pool, block);
    kvi_block_drop(pool, block);
    destroy_root_if_idle(pool, root);
}

void kvi_prefix_remove(kvcsa_pool *pool, kvi_block *block, uint32_t reason)
{
    const kvi_block_class *cls = block->slab->cls;

    kvi_pool_trace(pool, KVCSA_TRACE_EVICT, reason, block->depth * cls->shape.block_tokens,
                   cls->shape.block_tokens, kvi_class_block_bytes(cls));
    kvi_prefix_unpublish(pool, block);
}

/* Everything below `top` (NULL = the root), children first. */
static uint64_t remove_below(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *top,
                             uint32_t reason)
{
    kvi_block *b = *kvi_prefix_children(root, top);
    uint64_t   n = 0;

    while (b) {
        kvi_block *parent = NULL;

        while (b->first_child)
            b = b->first_child;
        parent = b->parent;
        kvi_prefix_remove(pool, b, reason);
        n++;
        /* the parent is published, so it is still there; without children it is next */
        b = parent == top ? *kvi_prefix_children(root, top) : parent;
    }
    return n;
}

uint64_t kvi_prefix_remove_tree(kvcsa_pool *pool, kvi_block *block, uint32_t reason)
{
    const uint64_t n = remove_below(pool, block->root, block, reason);

    kvi_prefix_remove(pool, block, reason);
    return n + 1;
}

/* ------------------------------------------------------------------ forget */

static void remove_root(kvcsa_pool *pool, kvi_prefix_root *root)
{
    root->refs++; /* it must outlive its last block */
    remove_below(pool, root, NULL, KVCSA_REASON_FORGOTTEN);
    kvi_prefix_root_drop(pool, root);
}

static void remove_branch(kvcsa_pool *pool, kvi_block *block)
{
    if (!block->published)
        return;
    remove_below(pool, block->root, block, KVCSA_REASON_FORGOTTEN);
    while (block && !block->first_child) {
        kvi_block *parent = block->parent;

        kvi_prefix_remove(pool, block, KVCSA_REASON_FORGOTTEN);
        block = parent;
    }
}

uint64_t kvi_prefix_forget(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *block)
{
    uint64_t before = 0;

    pthread_mutex_lock(&pool->lock);
    before = pool->used_bytes;
    if (root && block) {
        remove_branch(pool, block);
    } else if (root) {
        remove_root(pool, root);
    } else {
        for (kvi_prefix_root *r = pool->roots, *next = NULL; r; r = next) {
            next = r->next;
            remove_root(pool, r);
        }
    }
    before -= pool->used_bytes;
    pthread_mutex_unlock(&pool->lock);
    return before;
}

/* ------------------------------------------------------------------ erase */

static void mark_secure(kvi_block *block)
{
    const kvi_stored_window *window = block->window;

    block->secure = 1;
    for (size_t i = 0; window && i < window->n_pages; i++) {
        if (window->pages[i])
            window->pages[i]->secure = 1;
    }
}

void kvi_prefix_erase(kvcsa_pool *pool, kvi_block *last)
{
    kvi_block *b = last;

    pthread_mutex_lock(&pool->lock);
    kvi_host_wipe(pool);
    for (kvi_block *s = last; s; s = s->parent)
        mark_secure(s);
    /* The caller holds the last one and each of them the one in front of it: with the tree's that
     * makes two references, and any more are somebody else's. */
    while (b && !b->first_child && b->refs == 1u + b->published) {
        kvi_block *parent = b->parent;

        if (b->published)
            kvi_prefix_remove(pool, b, KVCSA_REASON_ERASED);
        b = parent;
    }
    pthread_mutex_unlock(&pool->lock);
}

/* A block of an erased session goes with its last holder, wherever in the chain it stands; the tree
 * alone does not keep it. */
void kvi_prefix_let_go(kvcsa_pool *pool, kvi_block *block)
{
    while (block) {
        kvi_block *parent = block->parent;

        if (block->secure && block->published && !block->first_child && block->refs == 2 &&
            block->pins == 0)
            kvi_prefix_remove(pool, block, KVCSA_REASON_ERASED);
        if (block->refs > 1) {
            kvi_block_drop(pool, block);
            return;
        }
        if (parent) /* the reference that the block has on it is ours now */
            kvi_block_hold(pool, parent);
        kvi_block_drop(pool, block);
        block = parent;
    }
}

/* ------------------------------------------------------------------ the end */

void kvi_prefix_destroy_all(kvcsa_pool *pool)
{
    pool->trace = (kvcsa_trace){0}; /* nobody listens to the end of the pool */
    while (pool->roots) {
        KVI_ASSERT(pool->roots->refs == 0);
        pool->roots->refs = 0;
        remove_root(pool, pool->roots);
    }
}

