/* Blocks of the pool.
 *
 * The pool owns its classes; a class owns its slabs; a slab owns the memory of its blocks and their
 * records with the token ids. A class is one shape. Slabs come when no block is free; one that has
 * become empty is kept for the next block, a second one is given back at once, and all go when the
 * class has neither users nor blocks in use.
 *
 * (P1) A block is FREE, OPEN or SEALED.
 * (P2) refs == 0 exactly when FREE. Only a SEALED block has a parent, which is SEALED, of a depth
 *      less by one, and held by it; only a SEALED block has a stored window, whose pages are of a
 *      window class and held by it.
 * (P3) The free list of a slab holds its FREE blocks, each once, and nothing else; free_slabs holds
 *      the slabs with FREE blocks, each once.
 * (P4) The counts of slabs and classes are those of a walk; at most one slab of a class is empty.
 * (P5) Parts lie inside their slab, at multiples of 64 bytes; slab_bytes and record_bytes are the
 *      sums over the slabs.
 * (P6) used_bytes = blocks not FREE, window_bytes those of window classes; reserved_bytes = what
 *      the classes promised; used_bytes + reserved_bytes <= budget_bytes. A block counts its part
 *      sizes, no more.
 * (P7) n_acquired - n_released == blocks not FREE.
 * (P8) Shapes of classes differ; a class without users has blocks in use.
 * (P9) With KVCSA_POOL_FILL_FREED, each byte of a FREE block is 0xA5, or each is 0 where the block
 *      was to be zeroed: nobody writes to a block that is not his.
 * (P10) The parts of a SEALED cache block have the checksums that were taken when it was sealed.
 *
 * Parts lie in the pool's memory, which may be a device's: they are written and read in order with
 * its operators, so a block that is freed while they run may be taken again at once. All else,
 * token ids too, is the host's. Room on a device is known only by asking for it; where there is
 * none, published prefixes go, one by one.
 *
 *     FREE   -> OPEN     kvi_block_acquire, _acquire_copy   takes a reserved block
 *     OPEN   -> FREE     kvi_block_unacquire                gives it back to the reservation
 *     OPEN   -> SEALED   kvi_block_seal                     (prefix_share.c)
 *     OPEN or SEALED     kvi_block_retain, kvi_block_release: stays
 *     any    -> FREE     kvi_block_drop                     of the last reference
 *
 * That an OPEN block is written to by one holder, in rows that no other reads, is a promise of
 * those who hold it; the pool does not look.
 */
#include "pool/pool.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"
#include "pool/pool_int.h"

#include <inttypes.h>
#include <string.h>

/* Enough that the allocator is asked rarely, little enough for a small pool and for giving back. */
#define SLAB_BYTES ((size_t)256 << 10)

/* ------------------------------------------------------------------ geometry */

static size_t part_stride(uint32_t bytes)
{
    /* an empty part has an address of its own too */
    return kvi_div_up(bytes ? bytes : 1, KVI_PART_ALIGN) * KVI_PART_ALIGN;
}

static void set_shape(kvi_block_class *cls, const kvi_class_shape *shape)
{
    cls->shape = *shape;
    cls->index_stride = part_stride(shape->index_bytes);
    cls->main_stride = part_stride(shape->main_bytes);
}

static size_t full_slab_blocks(const kvi_block_class *cls)
{
    return kvi_max_size(1, SLAB_BYTES / kvi_slab_size(cls, 1));
}

static uint64_t times(uint64_t a, uint64_t b)
{
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

kvi_class_cost kvi_class_cost_of(const kvi_class_shape *shape, uint64_t n_blocks)
{
    kvi_block_class cls = {0};
    size_t          per_slab = 0;
    uint64_t        n_slabs = 0;

    set_shape(&cls, shape);
    per_slab = full_slab_blocks(&cls);
    n_slabs = kvi_div_up(n_blocks, per_slab);
    return (kvi_class_cost){.slab_bytes = times(n_slabs, kvi_slab_size(&cls, per_slab)),
                            .record_bytes = times(n_slabs, kvi_slab_record_size(&cls, per_slab))};
}

static size_t block_no(const kvi_block *block)
{
    return (size_t)(block - block->slab->blocks);
}

uint8_t *kvi_block_index_part(const kvi_block *block)
{
    const kvi_block_class *cls = block->slab->cls;

    return block->slab->bytes +
           block_no(block) * (cls->index_stride + (cls->one_piece ? cls->main_stride : 0));
}

uint8_t *kvi_block_main_part(const kvi_block *block)
{
    const kvi_slab *slab = block->slab;

    if (slab->cls->one_piece)
        return kvi_block_index_part(block) + slab->cls->index_stride;
    return slab->bytes + slab->n_blocks * slab->cls->index_stride +
           block_no(block) * slab->cls->main_stride;
}

int32_t *kvi_block_tokens(const kvi_block *block)
{
    const kvi_slab *slab = block->slab;

    return slab->tokens + block_no(block) * slab->cls->shape.block_tokens;
}

uint32_t kvi_block_state(const kvi_block *block)
{
    return block->state;
}

/* ------------------------------------------------------------------ slabs; the caller holds the
 * lock */

/* Blocks of the next slab: about SLAB_BYTES, but no more than the budget can ever hold. */
static uint32_t next_slab_blocks(const kvcsa_pool *pool, const kvi_block_class *cls)
{
    size_t   n = full_slab_blocks(cls);
    uint64_t each = kvi_class_block_bytes(cls);
    uint64_t have = kvi_class_in_use(cls) + cls->n_free;
    uint64_t most = each ? pool->budget_bytes / each : UINT64_MAX;

    if (most > have && most - have < n)
        n = (size_t)(most - have);
    return (uint32_t)n; /* at most 2^18 / 128 */
}

static void link_free_slab(kvi_slab *slab)
{
    kvi_block_class *cls = slab->cls;

    slab->prev_free = NULL;
    slab->next_free = cls->free_slabs;
    if (cls->free_slabs)
        cls->free_slabs->prev_free = slab;
    cls->free_slabs = slab;
}

static void unlink_free_slab(kvi_slab *slab)
{
    if (slab->prev_free)
        slab->prev_free->next_free = slab->next_free;
    else
        slab->cls->free_slabs = slab->next_free;
    if (slab->next_free)
        slab->next_free->prev_free = slab->prev_free;
    slab->next_free = NULL;
    slab->prev_free = NULL;
}

static int is_empty(const kvi_slab *slab)
{
    return slab->n_free == slab->n_blocks;
}

/* A device that fails at this fails for good: nobody reads the block any more. */
void kvi_block_fill(const kvcsa_pool *pool, const kvi_block *block, int byte)
{
    const kvi_block_class *cls = block->slab->cls;
    const kvi_memory      *m = &pool->memory;

    (void)kvi_memory_fill(m, kvi_block_index_part(block), byte, cls->shape.index_bytes, NULL);
    (void)kvi_memory_fill(m, kvi_block_main_part(block), byte, cls->shape.main_bytes, NULL);
    memset(kvi_block_tokens(block), byte, kvi_block_token_bytes(cls));
}

static void fill_slab(const kvcsa_pool *pool, const kvi_slab *slab, int byte)
{
    (void)kvi_memory_fill(&pool->memory, slab->bytes, byte,
                          kvi_slab_size(slab->cls, slab->n_blocks), NULL);
    memset(slab->tokens, byte, slab->n_blocks * kvi_block_token_bytes(slab->cls));
}

/* A free block joins its slab's list. */
static void push_free(kvi_block *block)
{
    kvi_slab *slab = block->slab;

    block->next_free = slab->free_list;
    slab->free_list = block;
    slab->cls->n_free++;
    if (slab->n_free++ == 0)
        link_free_slab(slab);
    if (is_empty(slab))
        slab->cls->n_empty_slabs++;
}

/* Something of the device's memory is given back, or a block of the class has become free; 0 =
 * nothing more can go. */
static int make_room(kvcsa_pool *pool, const kvi_block_class *cls)
{
    const uint64_t before = pool->slab_bytes;

    kvi_pool_free_empty_slabs(pool);
    while (pool->slab_bytes == before && !cls->free_slabs) {
        if (!kvi_evict_one(pool, KVCSA_REASON_BUDGET))
            return 0;
        if (!cls->free_slabs)
            kvi_pool_free_empty_slabs(pool);
    }
    return 1;
}

/* Bytes of a slab. On a device *out may stay NULL: a block of the class has become free. */
static kvcsa_status get_slab_bytes(kvcsa_pool *pool, const kvi_block_class *cls, uint32_t n,
                                   void **out, kvcsa_error *err)
{
    const size_t    bytes = kvi_slab_size(cls, n);
    kvi_memory      locked = pool->memory;
    kvi_device_info info;
    kvcsa_status    st = KVCSA_OK;

    if (!kvi_memory_is_apart(&pool->memory)) {
        if (!(*out = kvi_alloc_pages(&pool->allocator, bytes)))
            return kvi_fail(err, KVCSA_ERR_NOMEM, "slab of %" PRIu32 " cache blocks, %zu bytes", n,
                            bytes);
        return KVCSA_OK;
    }
    locked.make_room = NULL; /* that would take the lock, and a block is enough */
    while ((st = kvi_memory_alloc(&locked, bytes, out, err)) == KVCSA_ERR_NOMEM &&
           make_room(pool, cls) && !cls->free_slabs) {
    }
    if (st == KVCSA_OK || cls->free_slabs) {
        kvi_error_clear(err); /* an attempt may have failed */
        return KVCSA_OK;
    }
    if (st != KVCSA_ERR_NOMEM)
        return st;
    kvi_pool_describe(pool, &info);
    return kvi_fail(err, st,
                    "slab of %" PRIu32 " cache blocks, %zu bytes: no room on %s, device %" PRIu32
                    " of %s",
                    n, bytes, info.name, pool->ordinal, pool->ops->name);
}

static void free_slab_bytes(const kvcsa_pool *pool, void *bytes, size_t size)
{
    if (kvi_memory_is_apart(&pool->memory))
        kvi_memory_free(&pool->memory, bytes, size);
    else
        kvi_free_pages(&pool->allocator, bytes, size);
}

/* For a class without a free block: it has one afterwards. */
static kvcsa_status add_slab(kvcsa_pool *pool, kvi_block_class *cls, kvcsa_error *err)
{
    uint32_t     n = next_slab_blocks(pool, cls);
    size_t       record_bytes = kvi_slab_record_size(cls, n);
    kvi_slab    *slab = kvi_zalloc(&pool->allocator, record_bytes);
    void        *bytes = NULL;
    kvcsa_status st = KVCSA_OK;

    if (!slab)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "slab of %" PRIu32 " cache blocks, %zu bytes", n,
                        record_bytes);
    st = get_slab_bytes(pool, cls, n, &bytes, err);
    if (st != KVCSA_OK || cls->free_slabs) {
        kvi_free(&pool->allocator, slab, record_bytes);
        return st;
    }
    slab->bytes = bytes;
    slab->cls = cls;
    slab->tokens = (int32_t *)(void *)((uint8_t *)slab + kvi_slab_tokens_off(n));
    slab->n_blocks = n;
    slab->next = cls->slabs;
    if (cls->slabs)
        cls->slabs->prev = slab;
    cls->slabs = slab;
    if (pool->flags & KVCSA_POOL_FILL_FREED)
        fill_slab(pool, slab, pool->flags & KVCSA_POOL_ZERO_FREED ? 0 : KVI_FILL_BYTE);
    pool->slab_bytes += kvi_slab_size(cls, n);
    pool->record_bytes += record_bytes;
    for (uint32_t i = n; i-- > 0;) { /* so that the first in memory is taken first */
        slab->blocks[i].slab = slab;
        push_free(&slab->blocks[i]);
    }
    return KVCSA_OK;
}

/* Back to the allocator; none of its blocks is in use. */
static void free_slab(kvcsa_pool *pool, kvi_slab *slab)
{
    kvi_block_class *cls = slab->cls;
    size_t           bytes = kvi_slab_size(cls, slab->n_blocks);
    size_t           record_bytes = kvi_slab_record_size(cls, slab->n_blocks);

    KVI_ASSERT(is_empty(slab));
    unlink_free_slab(slab);
    if (slab->prev)
        slab->prev->next = slab->next;
    else
        cls->slabs = slab->next;
    if (slab->next)
        slab->next->prev = slab->prev;
    cls->n_free -= slab->n_free;
    cls->n_empty_slabs--;
    pool->slab_bytes -= bytes;
    pool->record_bytes -= record_bytes;
    free_slab_bytes(pool, slab->bytes, bytes);
    kvi_free(&pool->allocator, slab, record_bytes);
}

static void free_empty_slabs_of(kvcsa_pool *pool, kvi_block_class *cls)
{
    for (kvi_slab *slab = cls->free_slabs, *next = NULL; slab; slab = next) {
        next = slab->next_free;
        if (is_empty(slab))
            free_slab(pool, slab);
    }
}

void kvi_pool_free_empty_slabs(kvcsa_pool *pool)
{
    for (kvi_block_class *cls = pool->classes; cls; cls = cls->next)
        free_empty_slabs_of(pool, cls);
}

static void destroy_class(kvcsa_pool *pool, kvi_block_class *cls)
{
    kvi_block_class **link = &pool->classes;

    while (*link != cls)
        link = &(*link)->next;
    *link = cls->next;
    free_empty_slabs_of(pool, cls);
    kvi_host_free_slabs(pool, cls);
    pool->side_bytes -= sizeof *cls;
    kvi_free(&pool->allocator, cls, sizeof *cls);
}

/* (P8) */
static void destroy_class_if_idle(kvcsa_pool *pool, kvi_block_class *cls)
{
    if (cls->n_users == 0 && kvi_class_in_use(cls) + cls->n_host == 0) {
        KVI_ASSERT(cls->n_reserved == 0);
        destroy_class(pool, cls);
    }
}

void kvi_pool_destroy_classes(kvcsa_pool *pool)
{
    while (pool->classes) {
        KVI_ASSERT(kvi_class_in_use(pool->classes) + pool->classes->n_host == 0);
        destroy_class(pool, pool->classes);
    }
}

/* ------------------------------------------------------------------ classes */

kvi_block_class *kvi_pool_find_class(const kvcsa_pool *pool, const kvi_class_shape *shape)
{
    kvi_block_class *cls = pool->classes;

    while (cls && (cls->shape.kind != shape->kind || cls->shape.index_bytes != shape->index_bytes ||
                   cls->shape.main_bytes != shape->main_bytes ||
                   cls->shape.block_tokens != shape->block_tokens))
        cls = cls->next;
    return cls;
}

kvcsa_status kvi_pool_class_acquire(kvcsa_pool *pool, const kvi_class_shape *shape,
                                    kvi_block_class **out, kvcsa_error *err)
{
    kvcsa_status     st = KVCSA_OK;
    kvi_block_class *cls = NULL;

    pthread_mutex_lock(&pool->lock);
    cls = kvi_pool_find_class(pool, shape);
    if (!cls) {
        if ((st = kvi_pool_reserve_scratch(pool, shape, err)) != KVCSA_OK)
            goto done;
        cls = kvi_zalloc(&pool->allocator, sizeof *cls);
        if (!cls) {
            st = kvi_fail(err, KVCSA_ERR_NOMEM, "block class of %zu bytes", sizeof *cls);
            goto done;
        }
        set_shape(cls, shape);
        cls->one_piece = (uint32_t)kvi_memory_is_apart(&pool->memory);
        cls->next = pool->classes;
        pool->classes = cls;
        pool->side_bytes += sizeof *cls;
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
    if (!kvi_evict_for(pool, bytes, KVCSA_REASON_BUDGET)) {
        /* nothing was evicted for a request that is hopeless; what could be counts as free */
        st = kvi_fail(err, KVCSA_ERR_FULL,
                      "%s need %" PRIu64 " bytes, %" PRIu64 " of the pool's budget of %" PRIu64
                      " are free",
                      cls->shape.kind == KVI_CLASS_WINDOW ? "windows" : "blocks", bytes,
                      pool->budget_bytes - pool->reserved_bytes - pool->used_bytes +
                          kvi_evict_possible_bytes(pool),
                      pool->budget_bytes);
        goto done;
    }
    cls->n_reserved += n_blocks;
    pool->reserved_bytes += bytes;
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

/* ------------------------------------------------------------------ blocks; the caller holds the
 * lock */

static void count_used(kvcsa_pool *pool, const kvi_block_class *cls, int sign)
{
    const uint64_t bytes = kvi_class_block_bytes(cls);
    const uint64_t delta = sign > 0 ? bytes : 0 - bytes; /* modulo 2^64 */

    pool->used_bytes += delta;
    if (cls->shape.kind == KVI_CLASS_WINDOW)
        pool->window_bytes += delta;
}

/* A free block of the class, from a slab that is in use already if there is one, so that the spare
 * one stays whole. */
static kvi_block *pop_free(kvi_block_class *cls)
{
    kvi_slab  *slab = cls->free_slabs;
    kvi_block *block = NULL;

    if (is_empty(slab) && slab->next_free) /* (P4): the next one is not */
        slab = slab->next_free;
    if (is_empty(slab))
        cls->n_empty_slabs--;
    block = slab->free_list;
    slab->free_list = block->next_free;
    block->next_free = NULL;
    cls->n_free--;
    if (--slab->n_free == 0)
        unlink_free_slab(slab);
    return block;
}

static kvcsa_status take_block(kvcsa_pool *pool, kvi_block_class *cls, kvi_block **out,
                               kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    kvi_block   *block = NULL;

    KVI_ASSERT(cls->n_reserved > 0);
    if (!cls->free_slabs && (st = add_slab(pool, cls, err)) != KVCSA_OK)
        return st;
    block = pop_free(cls);
    block->n_at_host = 0;
    block->state = KVI_BLOCK_OPEN;
    block->refs = 1;
    block->at[0] = block->at[1] =
        kvi_memory_is_apart(&pool->memory) ? KVI_AT_DEVICE : KVI_AT_HOST;
    cls->n_open++;
    cls->n_reserved--;
    pool->reserved_bytes -= kvi_class_block_bytes(cls);
    count_used(pool, cls, 1);
    pool->n_acquired++;
    *out = block;
    return KVCSA_OK;
}

kvcsa_status kvi_block_take(kvcsa_pool *pool, kvi_block_class *cls, kvi_block **out,
                            kvcsa_error *err)
{
    const uint64_t bytes = kvi_class_block_bytes(cls);
    const uint64_t most = pool->budget_bytes - pool->reserved_bytes; /* (P6): no underflow */
    kvcsa_status   st = KVCSA_OK;

    *out = NULL;
    if (bytes <= most)
        kvi_evict_down_to(pool, most - bytes, KVCSA_REASON_BUDGET);
    if (bytes > most || pool->used_bytes > most - bytes)
        return kvi_fail(err, KVCSA_ERR_FULL, "no room for a block of %" PRIu64 " bytes", bytes);
    cls->n_reserved++;
    pool->reserved_bytes += bytes;
    if ((st = take_block(pool, cls, out, err)) != KVCSA_OK) {
        cls->n_reserved--;
        pool->reserved_bytes -= bytes;
    }
    return st;
}

/* Any state -> FREE, when the last reference has gone. The block's record may be gone afterwards,
 * and its class too. */
void kvi_block_free(kvcsa_pool *pool, kvi_block *block)
{
    kvi_slab        *slab = block->slab;
    kvi_block_class *cls = slab->cls;

    if (block->out) {
        kvi_host_free(pool, block);
        destroy_class_if_idle(pool, cls);
        return;
    }
    if (block->state == KVI_BLOCK_OPEN)
        cls->n_open--;
    else
        cls->n_sealed--;
    if (block->secure || pool->flags & KVCSA_POOL_ZERO_FREED)
        kvi_block_fill(pool, block, 0);
    else if (pool->flags & KVCSA_POOL_FILL_FREED)
        kvi_block_fill(pool, block, KVI_FILL_BYTE);
    memset(block, 0, sizeof *block);
    block->slab = slab;
    push_free(block);
    count_used(pool, cls, -1);
    pool->n_released++;
    if (is_empty(slab) && cls->n_empty_slabs > 1)
        free_slab(pool, slab);
    destroy_class_if_idle(pool, cls);
}

void kvi_window_drop(kvcsa_pool *pool, kvi_stored_window *window)
{
    if (!window)
        return;
    for (size_t i = 0; i < window->n_pages; i++) {
        /* pages have neither parents nor windows, and are not published */
        if (window->pages[i] && --window->pages[i]->refs == 0)
            kvi_block_free(pool, window->pages[i]);
    }
    pool->side_bytes -= kvi_stored_window_size(window->n_pages);
    kvi_free(&pool->allocator, window, kvi_stored_window_size(window->n_pages));
}

void kvi_block_drop(kvcsa_pool *pool, kvi_block *block)
{
    while (block) {
        kvi_block         *parent = block->parent;
        kvi_stored_window *window = block->window;

        KVI_ASSERT(block->state != KVI_BLOCK_FREE && block->refs > 0);
        if (--block->refs > 0) {
            kvi_evict_update(pool, block);
            return;
        }
        KVI_ASSERT(!block->published && !block->idle && block->pins == 0);
        kvi_block_free(pool, block);
        kvi_window_drop(pool, window);
        block = parent;
    }
}

void kvi_block_hold(kvcsa_pool *pool, kvi_block *block)
{
    KVI_ASSERT(block->state != KVI_BLOCK_FREE && block->refs < UINT32_MAX);
    block->refs++;
    kvi_evict_update(pool, block);
}

/* ------------------------------------------------------------------ the same, locked */

kvcsa_status kvi_block_acquire(kvcsa_pool *pool, kvi_block_class *cls, kvi_block **out,
                               kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    *out = NULL;
    pthread_mutex_lock(&pool->lock);
    st = take_block(pool, cls, out, err);
    pthread_mutex_unlock(&pool->lock);
    return st;
}

kvcsa_status kvi_block_acquire_instead(kvcsa_pool *pool, kvi_block *from, kvi_block **out,
                                       kvcsa_error *err)
{
    kvi_block_class *cls = from->slab->cls;
    kvcsa_status     st = KVCSA_OK;

    *out = NULL;
    pthread_mutex_lock(&pool->lock);
    st = take_block(pool, cls, out, err);
    if (st == KVCSA_OK)
        pool->n_copied[cls->shape.kind]++;
    pthread_mutex_unlock(&pool->lock);
    return st;
}

kvcsa_status kvi_block_acquire_copy(kvcsa_pool *pool, kvi_block *from, kvi_block **out,
                                    kvcsa_error *err)
{
    const kvi_block_class *cls = from->slab->cls;
    const kvi_memory      *m = &pool->memory;
    kvcsa_status           st = kvi_block_acquire_instead(pool, from, out, err);

    if (st != KVCSA_OK)
        return st;
    /* both blocks are held by the caller */
    st = kvi_memory_move(m, kvi_block_index_part(*out), kvi_block_index_part(from),
                         cls->shape.index_bytes, err);
    if (st == KVCSA_OK)
        st = kvi_memory_move(m, kvi_block_main_part(*out), kvi_block_main_part(from),
                             cls->shape.main_bytes, err);
    if (st != KVCSA_OK) {
        kvi_block_unacquire(pool, *out);
        *out = NULL;
        return st;
    }
    memcpy(kvi_block_tokens(*out), kvi_block_tokens(from), kvi_block_token_bytes(cls));
    return KVCSA_OK;
}

int kvi_block_is_writable(kvcsa_pool *pool, const kvi_block *block, int mine)
{
    int writable = 0;

    pthread_mutex_lock(&pool->lock);
    writable = block->state == KVI_BLOCK_OPEN && (mine || block->refs == 1);
    pthread_mutex_unlock(&pool->lock);
    return writable;
}

void kvi_block_unacquire(kvcsa_pool *pool, kvi_block *block)
{
    kvi_block_class *cls = block->slab->cls;

    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(block->state == KVI_BLOCK_OPEN && block->refs == 1);
    KVI_ASSERT(cls->n_users > 0); /* so that it outlives its block */
    block->refs = 0;
    kvi_block_free(pool, block);
    cls->n_reserved++;
    pool->reserved_bytes += kvi_class_block_bytes(cls);
    pthread_mutex_unlock(&pool->lock);
}

void kvi_block_retain(kvcsa_pool *pool, kvi_block *block)
{
    kvi_blocks_retain(pool, &block, 1);
}

void kvi_block_release(kvcsa_pool *pool, kvi_block *block)
{
    kvi_blocks_release(pool, &block, 1);
}

void kvi_blocks_retain(kvcsa_pool *pool, kvi_block *const *blocks, size_t n)
{
    pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < n; i++) {
        if (blocks[i])
            kvi_block_hold(pool, blocks[i]);
    }
    pthread_mutex_unlock(&pool->lock);
}

void kvi_blocks_release(kvcsa_pool *pool, kvi_block *const *blocks, size_t n)
{
    pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < n; i++)
        kvi_prefix_let_go(pool, blocks[i]);
    pthread_mutex_unlock(&pool->lock);
}

size_t kvi_blocks_count_shared(kvcsa_pool *pool, kvi_block *const *blocks, size_t n)
{
    size_t n_shared = 0;

    pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < n; i++)
        n_shared += !blocks[i] || blocks[i]->refs > 1;
    pthread_mutex_unlock(&pool->lock);
    return n_shared;
}

int kvi_block_is_shared(kvcsa_pool *pool, const kvi_block *block)
{
    int shared = 0;

    pthread_mutex_lock(&pool->lock);
    shared = block->refs > 1;
    pthread_mutex_unlock(&pool->lock);
    return shared;
}
