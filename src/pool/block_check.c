/* The walk over classes, slabs and blocks that compares them with (P1) to (P10) of block_alloc.c
 * and with (H1) to (H4) of host_tier.c. */
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
    uint64_t host_slab_bytes;
    uint64_t host_used_bytes;
    uint64_t n_host[2]; /* by KVI_CLASS_* */
} walk;

typedef struct shelf { /* the slabs of a class on one side */
    const kvi_slab *slabs;
    const kvi_slab *free_slabs;
    uint64_t        n_empty;
    int             out;
} shelf;

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
    const uint8_t         *begin = slab->bytes;
    const uint8_t         *main_parts = slab->bytes + slab->n_blocks * cls->index_stride;
    const uint8_t         *end = slab->bytes + kvi_slab_size(cls, slab->n_blocks);

    if (block->slab != slab)
        return KVI_BROKEN("P5: block %p names another slab", at);
    index_part = kvi_block_index_part(block);
    main_part = kvi_block_main_part(block);
    if (cls->one_piece) {
        begin += (size_t)(block - slab->blocks) * kvi_slab_size(cls, 1);
        main_parts = begin + cls->index_stride;
        end = begin + kvi_slab_size(cls, 1);
    }
    if ((uintptr_t)index_part % KVI_PART_ALIGN || (uintptr_t)main_part % KVI_PART_ALIGN ||
        index_part < begin || index_part + cls->shape.index_bytes > main_parts ||
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
        if (page && (page->out != block->out || (page->out && page->refs != 1)))
            return KVI_BROKEN("H1: the stored window of block %p is not where the block is", at);
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

/* Where it says that it is: records of the two sides do not mix. */
static kvcsa_status check_side(const kvcsa_pool *pool, const kvi_block *block, int out,
                               kvcsa_error *err)
{
    const int     apart = kvi_memory_is_apart(&pool->memory);
    const uint8_t at = apart && !out ? KVI_AT_DEVICE : KVI_AT_HOST;

    if (block->state == KVI_BLOCK_FREE && block->out == out)
        return KVCSA_OK;
    if (block->out != out || block->at[0] != at || block->at[1] != at)
        return KVI_BROKEN("H1: block %p is not where it says", (const void *)block);
    if (!out && !block->published && block->n_at_host)
        return KVI_BROKEN("H2: private block %p has children in the host tier",
                          (const void *)block);
    if (out && block->copy_no > pool->host.n_copies)
        return KVI_BROKEN("H4: block %p waits for a copy that was not made", (const void *)block);
    return KVCSA_OK;
}

static kvcsa_status check_block(kvcsa_pool *pool, const kvi_block *block, const kvi_slab *slab,
                                int out, kvcsa_error *err)
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
        st = check_side(pool, block, out, err);
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

static kvcsa_status check_free_slabs(const kvi_block_class *cls, const shelf *side,
                                     uint64_t n_slabs, kvcsa_error *err)
{
    uint64_t        n = 0;
    const kvi_slab *prev = NULL;

    for (const kvi_slab *s = side->free_slabs; s; prev = s, s = s->next_free) {
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

/* Slabs of a class on one side: their bytes, blocks by state, and slabs with free blocks. */
static kvcsa_status check_slabs(kvcsa_pool *pool, const kvi_block_class *cls, const shelf *side,
                                uint64_t n_in[3], uint64_t *bytes, walk *w, kvcsa_error *err)
{
    kvcsa_status    st = KVCSA_OK;
    uint64_t        n_free_slabs = 0;
    uint64_t        n_empty = 0;
    const kvi_slab *prev = NULL;

    for (const kvi_slab *slab = side->slabs; slab; prev = slab, slab = slab->next) {
        const uint64_t n_before = n_in[KVI_BLOCK_FREE];
        uint64_t       n_free = 0;

        if (slab->cls != cls || slab->prev != prev)
            return KVI_BROKEN("P5: slab %p names another class or neighbour", (const void *)slab);
        for (uint32_t i = 0; i < slab->n_blocks; i++) {
            if ((st = check_block(pool, &slab->blocks[i], slab, side->out, err)) != KVCSA_OK)
                return st;
            n_in[slab->blocks[i].state]++;
        }
        n_free = n_in[KVI_BLOCK_FREE] - n_before;
        if ((st = check_free_list(slab, n_free, err)) != KVCSA_OK)
            return st;
        n_free_slabs += n_free > 0;
        n_empty += n_free == slab->n_blocks;
        *bytes += kvi_slab_size(cls, slab->n_blocks);
        w->record_bytes += kvi_slab_record_size(cls, slab->n_blocks);
    }
    if (n_empty > 1 || n_empty != side->n_empty)
        return KVI_BROKEN("P4: %" PRIu64 " slabs are empty, class counts %" PRIu64
                          ", the limit is 1",
                          n_empty, side->n_empty);
    return check_free_slabs(cls, side, n_free_slabs, err);
}

/* (H3) */
static kvcsa_status check_host(kvcsa_pool *pool, const kvi_block_class *cls, walk *w,
                               kvcsa_error *err)
{
    const shelf  side = {cls->host_slabs, cls->host_free_slabs, cls->n_host_empty, 1};
    uint64_t     n_in[3] = {0};
    uint64_t     n = 0;
    kvcsa_status st = check_slabs(pool, cls, &side, n_in, &w->host_slab_bytes, w, err);

    if (st != KVCSA_OK)
        return st;
    n = n_in[KVI_BLOCK_OPEN] + n_in[KVI_BLOCK_SEALED];
    if (n != cls->n_host || (cls->shape.kind == KVI_CLASS_CACHE && n_in[KVI_BLOCK_OPEN]))
        return KVI_BROKEN("H3: class counts %" PRIu64 " in the host tier, a walk finds %" PRIu64
                          ", %" PRIu64 " of them open",
                          cls->n_host, n, n_in[KVI_BLOCK_OPEN]);
    w->host_used_bytes += n * kvi_class_block_bytes(cls);
    w->n_host[cls->shape.kind] += n;
    return KVCSA_OK;
}

static kvcsa_status check_class(kvcsa_pool *pool, const kvi_block_class *cls, walk *w,
                                kvcsa_error *err)
{
    const shelf  side = {cls->slabs, cls->free_slabs, cls->n_empty_slabs, 0};
    kvcsa_status st = KVCSA_OK;
    uint64_t     n_in[3] = {0};
    uint64_t     n_in_use = 0;
    uint64_t     bytes = 0;

    st = check_slabs(pool, cls, &side, n_in, &w->slab_bytes, w, err);
    if (st == KVCSA_OK)
        st = check_host(pool, cls, w, err);
    if (st != KVCSA_OK)
        return st;
    if (cls->n_free != n_in[KVI_BLOCK_FREE] || cls->n_open != n_in[KVI_BLOCK_OPEN] ||
        cls->n_sealed != n_in[KVI_BLOCK_SEALED])
        return KVI_BROKEN("P4: class counts %" PRIu64 " free, %" PRIu64 " open, %" PRIu64
                          " sealed; a walk finds %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                          cls->n_free, cls->n_open, cls->n_sealed, n_in[KVI_BLOCK_FREE],
                          n_in[KVI_BLOCK_OPEN], n_in[KVI_BLOCK_SEALED]);
    n_in_use = n_in[KVI_BLOCK_OPEN] + n_in[KVI_BLOCK_SEALED];
    if ((cls->n_users == 0 && n_in_use + cls->n_host == 0) ||
        kvi_pool_find_class(pool, &cls->shape) != cls)
        return KVI_BROKEN("P8: class of %" PRIu32 " + %" PRIu32 " bytes is idle or there twice",
                          cls->shape.index_bytes, cls->shape.main_bytes);
    bytes = n_in_use * kvi_class_block_bytes(cls);
    w->used_bytes += bytes;
    w->window_bytes += cls->shape.kind == KVI_CLASS_WINDOW ? bytes : 0;
    w->reserved_bytes += cls->n_reserved * kvi_class_block_bytes(cls);
    w->n_in_use += n_in_use;
    return KVCSA_OK;
}

static kvcsa_status check_host_sums(const kvi_host_tier *host, const walk *w, kvcsa_error *err)
{
    if (host->slab_bytes != w->host_slab_bytes || host->used_bytes != w->host_used_bytes)
        return KVI_BROKEN("H3: %" PRIu64 " bytes of slabs and %" PRIu64
                          " in use in the host tier, a walk finds %" PRIu64 " and %" PRIu64,
                          host->slab_bytes, host->used_bytes, w->host_slab_bytes,
                          w->host_used_bytes);
    if (host->n_blocks != w->n_host[KVI_CLASS_CACHE] ||
        host->n_pages != w->n_host[KVI_CLASS_WINDOW])
        return KVI_BROKEN("H3: %" PRIu64 " blocks and %" PRIu64
                          " pages in the host tier, a walk finds %" PRIu64 " and %" PRIu64,
                          host->n_blocks, host->n_pages, w->n_host[KVI_CLASS_CACHE],
                          w->n_host[KVI_CLASS_WINDOW]);
    if (host->used_bytes > host->budget_bytes)
        return KVI_BROKEN("H3: %" PRIu64 " of %" PRIu64 " bytes of the host tier are used",
                          host->used_bytes, host->budget_bytes);
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
    return check_host_sums(&pool->host, w, err);
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
