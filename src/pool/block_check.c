/* The walk over classes, slabs and blocks that compares them with (P1) to (P10) of
 * block_alloc.c. */
#include "pool/pool.h"

#include "base/status.h"
#include "pool/pool_int.h"

#include <inttypes.h>
#include <string.h>

typedef struct walk { /* what a walk finds */
    uint64_t used_bytes;
    uint64_t window_bytes;
    uint64_t reserved_bytes;
    uint64_t slab_bytes;
    uint64_t record_bytes;
    uint64_t n_in_use;
} walk;

/* Every byte of n is `byte`. */
static int is_filled(const void *data, size_t n, uint8_t byte)
{
    const uint8_t *p = data;

    /* each byte equals the one before it */
    return n == 0 || (p[0] == byte && memcmp(p, p + 1, n - 1) == 0);
}

static int is_filled_block(const kvi_block *block, const kvi_seen_parts *seen, uint8_t byte)
{
    const kvi_block_class *cls = block->slab->cls;

    return is_filled(seen->index_part, cls->shape.index_bytes, byte) &&
           is_filled(seen->main_part, cls->shape.main_bytes, byte) &&
           is_filled(kvi_block_tokens(block), kvi_block_token_bytes(cls), byte);
}

static kvcsa_status check_place(const kvi_block *block, const kvi_slab *slab, kvcsa_error *err)
{
    const kvi_block_class *cls = slab->cls;
    const void            *at = (const void *)block;
    const uint8_t         *index_part = NULL;
    const uint8_t         *main_part = NULL;
    const uint8_t         *main_parts = slab->bytes + slab->n_blocks * cls->index_stride;
    const uint8_t         *end = slab->bytes + kvi_slab_size(cls, slab->n_blocks);

    if (block->slab != slab)
        return KVI_BROKEN("P5: block %p names another slab", at);
    index_part = kvi_block_index_part(block);
    main_part = kvi_block_main_part(block);
    if ((uintptr_t)index_part % KVI_PART_ALIGN || (uintptr_t)main_part % KVI_PART_ALIGN ||
        index_part < slab->bytes || index_part + cls->shape.index_bytes > main_parts ||
        main_part < main_parts || main_part + cls->shape.main_bytes > end)
        return KVI_BROKEN("P5: parts of block %p are out of place", at);
    return KVCSA_OK;
}

static kvcsa_status check_links(const kvi_block *block, kvcsa_error *err)
{
    const void *at = (const void *)block;

    if (block->state != KVI_BLOCK_SEALED && (block->parent || block->window || block->published))
        return KVI_BROKEN("P2: block %p in state %d has a parent, a window or is published", at,
                          (int)block->state);
    if (block->parent && (block->parent->state != KVI_BLOCK_SEALED || block->parent->refs == 0))
        return KVI_BROKEN("P2: the parent of block %p is in state %d", at,
                          (int)block->parent->state);
    if (block->depth != (block->parent ? block->parent->depth + 1 : 0))
        return KVI_BROKEN("P2: block %p has depth %" PRIu64 ", which is not its parent's + 1", at,
                          block->depth);
    for (size_t i = 0; block->window && i < block->window->n_pages; i++) {
        const kvi_block *page = block->window->pages[i];

        if (page && (page->state == KVI_BLOCK_FREE ||
                     page->slab->cls->shape.kind != KVI_CLASS_WINDOW))
            return KVI_BROKEN("P2: the stored window of block %p holds what is no page", at);
    }
    return KVCSA_OK;
}

static kvcsa_status check_free_bytes(kvcsa_pool *pool, const kvi_block *block, kvcsa_error *err)
{
    kvi_seen_parts seen;
    kvcsa_status   st = KVCSA_OK;
    int            filled = 0;

    if (!(pool->flags & KVCSA_POOL_FILL_FREED))
        return KVCSA_OK;
    if ((st = kvi_block_see(pool, block, &seen, err)) != KVCSA_OK)
        return st;
    filled = is_filled_block(block, &seen, KVI_FILL_BYTE) || is_filled_block(block, &seen, 0);
    kvi_block_unsee(pool);
    if (!filled)
        return KVI_BROKEN("P9: free block %p was written to", (const void *)block);
    return KVCSA_OK;
}

static kvcsa_status check_bytes(kvcsa_pool *pool, const kvi_block *block, kvcsa_error *err)
{
    const void  *at = (const void *)block;
    kvi_hash128  sums[2];
    kvcsa_status st = KVCSA_OK;

    if (block->state == KVI_BLOCK_FREE)
        return check_free_bytes(pool, block, err);
    if (block->state != KVI_BLOCK_SEALED || block->slab->cls->shape.kind != KVI_CLASS_CACHE)
        return KVCSA_OK;
    if ((st = kvi_block_sums(pool, block, sums, err)) != KVCSA_OK)
        return st;
    if (!kvi_hash128_equal(block->sums[0], sums[0]))
        return KVI_BROKEN("P10: the index part of sealed block %p has changed", at);
    if (!kvi_hash128_equal(block->sums[1], sums[1]))
        return KVI_BROKEN("P10: the main part of sealed block %p has changed", at);
    return KVCSA_OK;
}

static kvcsa_status check_block(kvcsa_pool *pool, const kvi_block *block, const kvi_slab *slab,
                                kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    const void  *at = (const void *)block;

    if (block->state > KVI_BLOCK_SEALED)
        return KVI_BROKEN("P1: block %p has state %d", at, (int)block->state);
    if ((block->refs == 0) != (block->state == KVI_BLOCK_FREE))
        return KVI_BROKEN("P2: block %p in state %d has %" PRIu32 " references", at,
                          (int)block->state, block->refs);
    st = check_place(block, slab, err);
    if (st == KVCSA_OK)
        st = check_links(block, err);
    if (st == KVCSA_OK)
        st = check_bytes(pool, block, err);
    return st;
}

static kvcsa_status check_free_list(const kvi_slab *slab, uint64_t n_free, kvcsa_error *err)
{
    uint64_t n = 0;

    /* n_free different FREE blocks are all of them; a list that ends cannot hold one twice */
    for (const kvi_block *b = slab->free_list; b; b = b->next_free) {
        if (b->state != KVI_BLOCK_FREE || b->slab != slab)
            return KVI_BROKEN("P3: free list holds block %p in state %d", (const void *)b,
                              (int)b->state);
        if (++n > n_free)
            break;
    }
    if (n != n_free)
        return KVI_BROKEN("P3: free list does not end at %" PRIu64 " free blocks (%" PRIu64
                          " seen)",
                          n_free, n);
    if (slab->n_free != n_free)
        return KVI_BROKEN("P4: slab counts %" PRIu32 " free blocks, a walk finds %" PRIu64,
                          slab->n_free, n_free);
    return KVCSA_OK;
}

static kvcsa_status check_free_slabs(const kvi_block_class *cls, uint64_t n_slabs,
                                     kvcsa_error *err)
{
    uint64_t        n = 0;
    const kvi_slab *prev = NULL;

    for (const kvi_slab *s = cls->free_slabs; s; prev = s, s = s->next_free) {
        if (s->cls != cls || s->n_free == 0 || s->prev_free != prev)
            return KVI_BROKEN("P3: slab %p has no place among those with free blocks",
                              (const void *)s);
        if (++n > n_slabs)
            break;
    }
    if (n != n_slabs)
        return KVI_BROKEN("P3: %" PRIu64 " slabs are listed as having free blocks, %" PRIu64
                          " have",
                          n, n_slabs);
    return KVCSA_OK;
}

/* Slabs of a class: blocks by state, and slabs with free blocks. */
static kvcsa_status check_slabs(kvcsa_pool *pool, const kvi_block_class *cls, uint64_t n_in[3],
                                walk *w, kvcsa_error *err)
{
    kvcsa_status    st = KVCSA_OK;
    uint64_t        n_free_slabs = 0;
    uint64_t        n_empty = 0;
    const kvi_slab *prev = NULL;

    for (const kvi_slab *slab = cls->slabs; slab; prev = slab, slab = slab->next) {
        const uint64_t n_before = n_in[KVI_BLOCK_FREE];
        uint64_t       n_free = 0;

        if (slab->cls != cls || slab->prev != prev)
            return KVI_BROKEN("P5: slab %p names another class or neighbour", (const void *)slab);
        for (uint32_t i = 0; i < slab->n_blocks; i++) {
            if ((st = check_block(pool, &slab->blocks[i], slab, err)) != KVCSA_OK)
                return st;
            n_in[slab->blocks[i].state]++;
        }
        n_free = n_in[KVI_BLOCK_FREE] - n_before;
        if ((st = check_free_list(slab, n_free, err)) != KVCSA_OK)
            return st;
        n_free_slabs += n_free > 0;
        n_empty += n_free == slab->n_blocks;
        w->slab_bytes += kvi_slab_size(cls, slab->n_blocks);
        w->record_bytes += kvi_slab_record_size(cls, slab->n_blocks);
    }
    if (n_empty > 1 || n_empty != cls->n_empty_slabs)
        return KVI_BROKEN("P4: %" PRIu64 " slabs are empty, class counts %" PRIu64
                          ", the limit is 1",
                          n_empty, cls->n_empty_slabs);
    return check_free_slabs(cls, n_free_slabs, err);
}

static kvcsa_status check_class(kvcsa_pool *pool, const kvi_block_class *cls, walk *w,
                                kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    uint64_t     n_in[3] = {0};
    uint64_t     n_in_use = 0;
    uint64_t     bytes = 0;

    st = check_slabs(pool, cls, n_in, w, err);
    if (st != KVCSA_OK)
        return st;
    if (cls->n_free != n_in[KVI_BLOCK_FREE] || cls->n_open != n_in[KVI_BLOCK_OPEN] ||
        cls->n_sealed != n_in[KVI_BLOCK_SEALED])
        return KVI_BROKEN("P4: class counts %" PRIu64 " free, %" PRIu64 " open, %" PRIu64
                          " sealed; a walk finds %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                          cls->n_free, cls->n_open, cls->n_sealed, n_in[KVI_BLOCK_FREE],
                          n_in[KVI_BLOCK_OPEN], n_in[KVI_BLOCK_SEALED]);
    n_in_use = n_in[KVI_BLOCK_OPEN] + n_in[KVI_BLOCK_SEALED];
    if ((cls->n_users == 0 && n_in_use == 0) || kvi_pool_find_class(pool, &cls->shape) != cls)
        return KVI_BROKEN("P8: class of %" PRIu32 " + %" PRIu32 " bytes is idle or there twice",
                          cls->shape.index_bytes, cls->shape.main_bytes);
    bytes = n_in_use * kvi_class_block_bytes(cls);
    w->used_bytes += bytes;
    w->window_bytes += cls->shape.kind == KVI_CLASS_WINDOW ? bytes : 0;
    w->reserved_bytes += cls->n_reserved * kvi_class_block_bytes(cls);
    w->n_in_use += n_in_use;
    return KVCSA_OK;
}

static kvcsa_status check_sums(const kvcsa_pool *pool, const walk *w, kvcsa_error *err)
{
    if (pool->slab_bytes != w->slab_bytes)
        return KVI_BROKEN("P5: slab_bytes is %" PRIu64 ", a walk finds %" PRIu64, pool->slab_bytes,
                          w->slab_bytes);
    if (pool->record_bytes != w->record_bytes)
        return KVI_BROKEN("P5: record_bytes is %" PRIu64 ", a walk finds %" PRIu64,
                          pool->record_bytes, w->record_bytes);
    if (pool->used_bytes != w->used_bytes)
        return KVI_BROKEN("P6: used_bytes is %" PRIu64 ", a walk finds %" PRIu64, pool->used_bytes,
                          w->used_bytes);
    if (pool->window_bytes != w->window_bytes)
        return KVI_BROKEN("P6: window_bytes is %" PRIu64 ", a walk finds %" PRIu64,
                          pool->window_bytes, w->window_bytes);
    if (pool->reserved_bytes != w->reserved_bytes)
        return KVI_BROKEN("P6: reserved_bytes is %" PRIu64 ", classes promised %" PRIu64,
                          pool->reserved_bytes, w->reserved_bytes);
    if (pool->used_bytes > pool->budget_bytes ||
        pool->reserved_bytes > pool->budget_bytes - pool->used_bytes)
        return KVI_BROKEN("P6: %" PRIu64 " used and %" PRIu64 " reserved of %" PRIu64 " bytes",
                          pool->used_bytes, pool->reserved_bytes, pool->budget_bytes);
    if (pool->n_acquired - pool->n_released != w->n_in_use)
        return KVI_BROKEN("P7: %" PRIu64 " acquired, %" PRIu64 " released, %" PRIu64 " in use",
                          pool->n_acquired, pool->n_released, w->n_in_use);
    return KVCSA_OK;
}

kvcsa_status kvi_pool_check_blocks(kvcsa_pool *pool, kvcsa_error *err)
{
    walk w = {0};

    for (const kvi_block_class *cls = pool->classes; cls; cls = cls->next) {
        const kvcsa_status st = check_class(pool, cls, &w, err);

        if (st != KVCSA_OK)
            return st;
    }
    return check_sums(pool, &w, err);
}
