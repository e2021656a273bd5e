/* Blocks of the pool.
 *
 * The pool owns its classes; a class owns its slabs; a slab owns the memory of its blocks and their
 * records. A class is one pair of part sizes. Slabs come when no block is free and go all together
 * when the class has neither users nor blocks in use.
 *
 * (P1) A block is FREE, OPEN or SEALED.
 * (P2) refs == 0 exactly when FREE; an OPEN block has one.
 * (P3) The free list of a class holds its FREE blocks, each once, and nothing else.
 * (P4) The counts of a class are those of a walk.
 * (P5) Parts lie inside their slab, at multiples of 64 bytes; slab_bytes is the sum of the slabs.
 * (P6) used_bytes = window_bytes + blocks not FREE; reserved_bytes = what the classes promised;
 *      used_bytes + reserved_bytes <= budget_bytes. A block counts its part sizes, no more.
 * (P7) n_acquired - n_released == blocks not FREE.
 * (P8) Part sizes of classes differ; a class without users has blocks in use.
 * (P9) With KVCSA_POOL_FILL_FREED, each byte of a FREE block is 0xA5: nobody writes to a block
 *      that is not his.
 *
 *     FREE   -> OPEN     kvi_block_acquire     takes a reserved block
 *     OPEN   -> FREE     kvi_block_unacquire   gives it back to the reservation
 *     OPEN   -> SEALED   kvi_block_seal
 *     SEALED -> SEALED   kvi_block_retain, kvi_block_release
 *     any    -> FREE     kvi_block_release     of the last reference
 *
 * That the bytes of a SEALED block never change is a promise of those who hold it; the pool does
 * not look.
 */
#include "pool/pool.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"
#include "pool/pool_int.h"

#include <inttypes.h>
#include <string.h>

#define PART_ALIGN 64u
#define FILL_BYTE 0xA5
/* Enough that the allocator is asked rarely, little enough for a small pool. */
#define SLAB_BYTES ((size_t)1 << 20)

/* ------------------------------------------------------------------ geometry */

static size_t part_stride(uint32_t bytes)
{
    /* an empty part has an address of its own too */
    return kvi_div_up(bytes ? bytes : 1, PART_ALIGN) * PART_ALIGN;
}

static size_t slab_size(const kvi_block_class *cls, uint32_t n_blocks)
{
    return (cls->index_stride + cls->main_stride) * n_blocks;
}

static size_t slab_record_size(uint32_t n_blocks)
{
    return sizeof(kvi_slab) + n_blocks * sizeof(kvi_block);
}

static size_t index_off(const kvi_block *block)
{
    return (size_t)(block - block->slab->blocks) * block->slab->cls->index_stride;
}

static size_t main_off(const kvi_block *block)
{
    const kvi_slab *slab = block->slab;

    return slab->n_blocks * slab->cls->index_stride +
           (size_t)(block - slab->blocks) * slab->cls->main_stride;
}

uint8_t *kvi_block_index_part(const kvi_block *block)
{
    return block->slab->bytes + index_off(block);
}

uint8_t *kvi_block_main_part(const kvi_block *block)
{
    return block->slab->bytes + main_off(block);
}

uint32_t kvi_block_state(const kvi_block *block)
{
    return block->state;
}

/* ------------------------------------------------------------------ slabs; the caller holds the
 * lock */

static uint64_t blocks_in_use(const kvi_block_class *cls)
{
    return cls->n_open + cls->n_sealed;
}

/* Blocks of the next slab: about SLAB_BYTES, but no more than the budget can ever hold. */
static uint32_t next_slab_blocks(const kvcsa_pool *pool, const kvi_block_class *cls)
{
    size_t   n = kvi_max_size(1, SLAB_BYTES / slab_size(cls, 1));
    uint64_t each = kvi_class_block_bytes(cls);
    uint64_t have = blocks_in_use(cls) + cls->n_free;
    uint64_t most = each ? pool->budget_bytes / each : UINT64_MAX;

    if (most > have && most - have < n)
        n = (size_t)(most - have);
    return (uint32_t)n; /* at most 2^20 / 128 */
}

static void fill_block(const kvi_block *block)
{
    const kvi_block_class *cls = block->slab->cls;

    memset(kvi_block_index_part(block), FILL_BYTE, cls->index_bytes);
    memset(kvi_block_main_part(block), FILL_BYTE, cls->main_bytes);
}

static void push_free(kvi_block *block)
{
    kvi_block_class *cls = block->slab->cls;

    block->state = KVI_BLOCK_FREE;
    block->refs = 0;
    block->next_free = cls->free_list;
    cls->free_list = block;
    cls->n_free++;
}

static kvcsa_status add_slab(kvcsa_pool *pool, kvi_block_class *cls, kvcsa_error *err)
{
    uint32_t  n = next_slab_blocks(pool, cls);
    size_t    bytes = slab_size(cls, n);
    kvi_slab *slab = kvi_zalloc(&pool->allocator, slab_record_size(n));

    if (slab)
        slab->bytes = kvi_alloc_pages(&pool->allocator, bytes);
    if (!slab || !slab->bytes) {
        kvi_free(&pool->allocator, slab, slab_record_size(n));
        return kvi_fail(err, KVCSA_ERR_NOMEM, "slab of %" PRIu32 " cache blocks, %zu bytes", n,
                        bytes);
    }
    slab->cls = cls;
    slab->n_blocks = n;
    slab->next = cls->slabs;
    cls->slabs = slab;
    pool->slab_bytes += bytes;
    for (uint32_t i = n; i-- > 0;) { /* so that the first in memory is taken first */
        slab->blocks[i].slab = slab;
        if (pool->flags & KVCSA_POOL_FILL_FREED)
            fill_block(&slab->blocks[i]);
        push_free(&slab->blocks[i]);
    }
    return KVCSA_OK;
}

static void destroy_class(kvcsa_pool *pool, kvi_block_class *cls)
{
    kvi_block_class **link = &pool->classes;

    while (*link != cls)
        link = &(*link)->next;
    *link = cls->next;
    while (cls->slabs) {
        kvi_slab *slab = cls->slabs;
        size_t    bytes = slab_size(cls, slab->n_blocks);

        cls->slabs = slab->next;
        pool->slab_bytes -= bytes;
        kvi_free_pages(&pool->allocator, slab->bytes, bytes);
        kvi_free(&pool->allocator, slab, slab_record_size(slab->n_blocks));
    }
    kvi_free(&pool->allocator, cls, sizeof *cls);
}

/* (P8) */
static void destroy_class_if_idle(kvcsa_pool *pool, kvi_block_class *cls)
{
    if (cls->n_users == 0 && blocks_in_use(cls) == 0) {
        KVI_ASSERT(cls->n_reserved == 0);
        destroy_class(pool, cls);
    }
}

void kvi_pool_destroy_classes(kvcsa_pool *pool)
{
    while (pool->classes) {
        KVI_ASSERT(blocks_in_use(pool->classes) == 0);
        destroy_class(pool, pool->classes);
    }
}

/* ------------------------------------------------------------------ classes */

static kvi_block_class *find_class(const kvcsa_pool *pool, uint32_t index_bytes,
                                   uint32_t main_bytes)
{
    kvi_block_class *cls = pool->classes;

    while (cls && (cls->index_bytes != index_bytes || cls->main_bytes != main_bytes))
        cls = cls->next;
    return cls;
}

kvcsa_status kvi_pool_class_acquire(kvcsa_pool *pool, uint32_t index_bytes, uint32_t main_bytes,
                                    kvi_block_class **out, kvcsa_error *err)
{
    kvcsa_status     st = KVCSA_OK;
    kvi_block_class *cls = NULL;

    pthread_mutex_lock(&pool->lock);
    cls = find_class(pool, index_bytes, main_bytes);
    if (!cls) {
        cls = kvi_zalloc(&pool->allocator, sizeof *cls);
        if (!cls) {
            st = kvi_fail(err, KVCSA_ERR_NOMEM, "block class of %zu bytes", sizeof *cls);
            goto done;
        }
        cls->index_bytes = index_bytes;
        cls->main_bytes = main_bytes;
        cls->index_stride = part_stride(index_bytes);
        cls->main_stride = part_stride(main_bytes);
        cls->next = pool->classes;
        pool->classes = cls;
    }
    cls->n_users++;
done:
    pthread_mutex_unlock(&pool->lock);
    *out = cls;
    return st;
}

void kvi_pool_class_release(kvcsa_pool *pool, kvi_block_class *cls)
{
    if (!cls)
        return;
    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(cls->n_users > 0);
    cls->n_users--;
    destroy_class_if_idle(pool, cls);
    pthread_mutex_unlock(&pool->lock);
}

/* ------------------------------------------------------------------ reservations */

kvcsa_status kvi_pool_reserve(kvcsa_pool *pool, kvi_block_class *cls, uint64_t n_blocks,
                              kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    uint64_t     each = kvi_class_block_bytes(cls);
    uint64_t     bytes = 0;

    pthread_mutex_lock(&pool->lock);
    if (n_blocks > UINT64_MAX - cls->n_reserved || !kvi_mul_size(n_blocks, each, &bytes)) {
        st = kvi_fail(err, KVCSA_ERR_FULL, "%" PRIu64 " blocks of %" PRIu64 " bytes are too many",
                      n_blocks, each);
        goto done;
    }
    st = kvi_pool_check_room(pool, bytes, "blocks", err);
    if (st == KVCSA_OK) {
        cls->n_reserved += n_blocks;
        pool->reserved_bytes += bytes;
    }
done:
    pthread_mutex_unlock(&pool->lock);
    return st;
}

void kvi_pool_unreserve(kvcsa_pool *pool, kvi_block_class *cls, uint64_t n_blocks)
{
    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(n_blocks <= cls->n_reserved);
    cls->n_reserved -= n_blocks;
    pool->reserved_bytes -= n_blocks * kvi_class_block_bytes(cls);
    pthread_mutex_unlock(&pool->lock);
}

/* ------------------------------------------------------------------ blocks */

kvcsa_status kvi_block_acquire(kvcsa_pool *pool, kvi_block_class *cls, kvi_block **out,
                               kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    kvi_block   *block = NULL;

    *out = NULL;
    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(cls->n_reserved > 0);
    if (!cls->free_list && (st = add_slab(pool, cls, err)) != KVCSA_OK)
        goto done;
    block = cls->free_list;
    cls->free_list = block->next_free;
    cls->n_free--;
    block->next_free = NULL;
    block->state = KVI_BLOCK_OPEN;
    block->refs = 1;
    cls->n_open++;
    cls->n_reserved--;
    pool->reserved_bytes -= kvi_class_block_bytes(cls);
    pool->used_bytes += kvi_class_block_bytes(cls);
    pool->n_acquired++;
    *out = block;
done:
    pthread_mutex_unlock(&pool->lock);
    return st;
}

/* OPEN or SEALED -> FREE; the caller holds the lock. */
static void free_block(kvcsa_pool *pool, kvi_block *block)
{
    kvi_block_class *cls = block->slab->cls;

    if (block->state == KVI_BLOCK_OPEN)
        cls->n_open--;
    else
        cls->n_sealed--;
    if (pool->flags & KVCSA_POOL_FILL_FREED)
        fill_block(block);
    push_free(block);
    pool->used_bytes -= kvi_class_block_bytes(cls);
    pool->n_released++;
}

void kvi_block_unacquire(kvcsa_pool *pool, kvi_block *block)
{
    kvi_block_class *cls = block->slab->cls;

    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(block->state == KVI_BLOCK_OPEN);
    free_block(pool, block);
    cls->n_reserved++;
    pool->reserved_bytes += kvi_class_block_bytes(cls);
    pthread_mutex_unlock(&pool->lock);
}

void kvi_block_seal(kvcsa_pool *pool, kvi_block *block)
{
    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(block->state == KVI_BLOCK_OPEN);
    block->state = KVI_BLOCK_SEALED;
    block->slab->cls->n_open--;
    block->slab->cls->n_sealed++;
    pthread_mutex_unlock(&pool->lock);
}

void kvi_block_retain(kvcsa_pool *pool, kvi_block *block)
{
    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(block->state == KVI_BLOCK_SEALED && block->refs < UINT32_MAX);
    block->refs++;
    pthread_mutex_unlock(&pool->lock);
}

void kvi_block_release(kvcsa_pool *pool, kvi_block *block)
{
    kvi_block_class *cls = block->slab->cls;

    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(block->state != KVI_BLOCK_FREE);
    if (--block->refs == 0) {
        free_block(pool, block);
        destroy_class_if_idle(pool, cls);
    }
    pthread_mutex_unlock(&pool->lock);
}

/* ------------------------------------------------------------------ check */

#define BROKEN(...) kvi_fail(err, KVCSA_ERR_INTERNAL, __VA_ARGS__)

typedef struct walk { /* what a walk finds */
    uint64_t n_in[3]; /* by state */
    uint64_t used_bytes;
    uint64_t reserved_bytes;
    uint64_t slab_bytes;
    uint64_t n_in_use;
} walk;

static int is_filled(const uint8_t *p, size_t n)
{
    /* each byte equals the one before it */
    return n == 0 || (p[0] == FILL_BYTE && memcmp(p, p + 1, n - 1) == 0);
}

static kvcsa_status check_block(const kvcsa_pool *pool, const kvi_block *block,
                                const kvi_slab *slab, kvcsa_error *err)
{
    const kvi_block_class *cls = slab->cls;
    const void            *at = (const void *)block;

    if (block->state > KVI_BLOCK_SEALED)
        return BROKEN("P1: block %p has state %" PRIu32, at, block->state);
    if ((block->refs == 0) != (block->state == KVI_BLOCK_FREE) ||
        (block->state == KVI_BLOCK_OPEN && block->refs != 1))
        return BROKEN("P2: block %p in state %" PRIu32 " has %" PRIu32 " references", at,
                      block->state, block->refs);
    if (block->slab != slab)
        return BROKEN("P5: block %p names another slab", at);
    if ((uintptr_t)kvi_block_index_part(block) % PART_ALIGN ||
        (uintptr_t)kvi_block_main_part(block) % PART_ALIGN ||
        main_off(block) + cls->main_bytes > slab_size(cls, slab->n_blocks) ||
        index_off(block) + cls->index_bytes > slab->n_blocks * cls->index_stride)
        return BROKEN("P5: parts of block %p are out of place", at);
    if (block->state == KVI_BLOCK_FREE && pool->flags & KVCSA_POOL_FILL_FREED &&
        (!is_filled(kvi_block_index_part(block), cls->index_bytes) ||
         !is_filled(kvi_block_main_part(block), cls->main_bytes)))
        return BROKEN("P9: free block %p was written to", at);
    return KVCSA_OK;
}

static kvcsa_status check_free_list(const kvi_block_class *cls, uint64_t n_free, kvcsa_error *err)
{
    uint64_t n = 0;

    /* n_free different FREE blocks are all of them; a list that ends cannot hold one twice */
    for (const kvi_block *b = cls->free_list; b; b = b->next_free) {
        if (b->state != KVI_BLOCK_FREE || b->slab->cls != cls)
            return BROKEN("P3: free list holds block %p in state %" PRIu32, (const void *)b,
                          b->state);
        if (++n > n_free)
            break;
    }
    if (n != n_free)
        return BROKEN("P3: free list does not end at %" PRIu64 " free blocks (%" PRIu64 " seen)",
                      n_free, n);
    return KVCSA_OK;
}

static kvcsa_status check_class(const kvcsa_pool *pool, const kvi_block_class *cls, walk *w,
                                kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    uint64_t     n_in[3] = {0};
    uint64_t     n_in_use = 0;

    for (const kvi_slab *slab = cls->slabs; slab; slab = slab->next) {
        if (slab->cls != cls)
            return BROKEN("P5: slab %p names another class", (const void *)slab);
        for (uint32_t i = 0; i < slab->n_blocks; i++) {
            if ((st = check_block(pool, &slab->blocks[i], slab, err)) != KVCSA_OK)
                return st;
            n_in[slab->blocks[i].state]++;
        }
        w->slab_bytes += slab_size(cls, slab->n_blocks);
    }
    st = check_free_list(cls, n_in[KVI_BLOCK_FREE], err);
    if (st != KVCSA_OK)
        return st;
    if (cls->n_free != n_in[KVI_BLOCK_FREE] || cls->n_open != n_in[KVI_BLOCK_OPEN] ||
        cls->n_sealed != n_in[KVI_BLOCK_SEALED])
        return BROKEN("P4: class counts %" PRIu64 " free, %" PRIu64 " open, %" PRIu64
                      " sealed; a walk finds %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                      cls->n_free, cls->n_open, cls->n_sealed, n_in[KVI_BLOCK_FREE],
                      n_in[KVI_BLOCK_OPEN], n_in[KVI_BLOCK_SEALED]);
    n_in_use = n_in[KVI_BLOCK_OPEN] + n_in[KVI_BLOCK_SEALED];
    if ((cls->n_users == 0 && n_in_use == 0) ||
        find_class(pool, cls->index_bytes, cls->main_bytes) != cls)
        return BROKEN("P8: class of %" PRIu32 " + %" PRIu32 " bytes is idle or there twice",
                      cls->index_bytes, cls->main_bytes);
    w->used_bytes += n_in_use * kvi_class_block_bytes(cls);
    w->reserved_bytes += cls->n_reserved * kvi_class_block_bytes(cls);
    w->n_in_use += n_in_use;
    return KVCSA_OK;
}

kvcsa_status kvi_pool_check_blocks(const kvcsa_pool *pool, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    walk         w = {0};

    for (const kvi_block_class *cls = pool->classes; cls; cls = cls->next) {
        if ((st = check_class(pool, cls, &w, err)) != KVCSA_OK)
            return st;
    }
    if (pool->slab_bytes != w.slab_bytes)
        return BROKEN("P5: slab_bytes is %" PRIu64 ", a walk finds %" PRIu64, pool->slab_bytes,
                      w.slab_bytes);
    if (pool->used_bytes != pool->window_bytes + w.used_bytes)
        return BROKEN("P6: used_bytes is %" PRIu64 ", windows have %" PRIu64 " and blocks %" PRIu64,
                      pool->used_bytes, pool->window_bytes, w.used_bytes);
    if (pool->reserved_bytes != w.reserved_bytes)
        return BROKEN("P6: reserved_bytes is %" PRIu64 ", classes promised %" PRIu64,
                      pool->reserved_bytes, w.reserved_bytes);
    if (pool->used_bytes > pool->budget_bytes ||
        pool->reserved_bytes > pool->budget_bytes - pool->used_bytes)
        return BROKEN("P6: %" PRIu64 " used and %" PRIu64 " reserved of %" PRIu64 " bytes",
                      pool->used_bytes, pool->reserved_bytes, pool->budget_bytes);
    if (pool->n_acquired - pool->n_released != w.n_in_use)
        return BROKEN("P7: %" PRIu64 " acquired, %" PRIu64 " released, %" PRIu64 " in use",
                      pool->n_acquired, pool->n_released, w.n_in_use);
    return KVCSA_OK;
}
