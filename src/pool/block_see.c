/* Parts of blocks for the host to read. Where they are apart, both are copied into one piece of
 * pinned memory with one wait. It is as large as the largest block of any class so far, so that
 * sealing, which cannot fail, needs no memory; one thread at a time has it, under a lock of its own:
 * the pool's is not held while the device is waited for. (The queue of the device is one, so a
 * second piece would save no time.) Order of locks: the pool's, then this one. */
#include "pool/pool.h"

#include "base/checked.h"
#include "base/status.h"
#include "pool/pool_int.h"

static size_t main_off(const kvi_class_shape *shape)
{
    return kvi_div_up(shape->index_bytes, KVI_PART_ALIGN) * KVI_PART_ALIGN;
}

kvcsa_status kvi_pool_reserve_scratch(kvcsa_pool *pool, const kvi_class_shape *shape,
                                      kvcsa_error *err)
{
    const size_t size = main_off(shape) + shape->main_bytes;
    void        *more = NULL;
    kvcsa_status st = KVCSA_OK;

    if (!kvi_memory_is_apart(&pool->memory) || size <= pool->scratch_bytes)
        return KVCSA_OK;
    st = kvi_memory_alloc_pinned(&pool->memory, size, &more, err);
    if (st != KVCSA_OK)
        return st;
    pthread_mutex_lock(&pool->scratch_lock);
    kvi_memory_free_pinned(&pool->memory, pool->scratch, pool->scratch_bytes);
    pool->scratch = more;
    pool->scratch_bytes = size;
    pthread_mutex_unlock(&pool->scratch_lock);
    return KVCSA_OK;
}

void kvi_pool_free_scratch(kvcsa_pool *pool)
{
    if (pool->scratch)
        kvi_memory_free_pinned(&pool->memory, pool->scratch, pool->scratch_bytes);
    pool->scratch = NULL;
    pool->scratch_bytes = 0;
}

static kvcsa_status copy_parts(kvcsa_pool *pool, const kvi_block *block, uint8_t *to,
                               kvcsa_error *err)
{
    const kvi_class_shape *shape = &block->slab->cls->shape;
    const kvi_memory      *m = &pool->memory;
    kvcsa_status           st =
        kvi_memory_get_later(m, to, kvi_block_index_part(block), shape->index_bytes, err);

    if (st == KVCSA_OK)
        st = kvi_memory_get_later(m, to + main_off(shape), kvi_block_main_part(block),
                                  shape->main_bytes, err);
    return st == KVCSA_OK ? kvi_memory_sync(m, err) : st;
}

kvcsa_status kvi_block_see(kvcsa_pool *pool, const kvi_block *block, kvi_seen_parts *out,
                           kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    out->index_part = kvi_block_index_part(block);
    out->main_part = kvi_block_main_part(block);
    if (!kvi_memory_is_apart(&pool->memory))
        return KVCSA_OK;
    if (block->out && (st = kvi_host_wait(pool, block, err)) != KVCSA_OK)
        return st;
    pthread_mutex_lock(&pool->scratch_lock);
    if (block->out)
        return KVCSA_OK; /* the very bytes */
    st = copy_parts(pool, block, pool->scratch, err);
    if (st != KVCSA_OK) {
        pthread_mutex_unlock(&pool->scratch_lock);
        return st;
    }
    out->index_part = pool->scratch;
    out->main_part = pool->scratch + main_off(&block->slab->cls->shape);
    return KVCSA_OK;
}

void kvi_block_unsee(kvcsa_pool *pool)
{
    if (kvi_memory_is_apart(&pool->memory))
        pthread_mutex_unlock(&pool->scratch_lock);
}

kvcsa_status kvi_block_sums(kvcsa_pool *pool, const kvi_block *block, kvi_hash128 sums[2],
                            kvcsa_error *err)
{
    const kvi_class_shape *shape = &block->slab->cls->shape;
    kvi_seen_parts         seen;
    const kvcsa_status     st = kvi_block_see(pool, block, &seen, err);

    if (st != KVCSA_OK)
        return st;
    sums[0] = kvi_hash128_of(seen.index_part, shape->index_bytes, 0);
    sums[1] = kvi_hash128_of(seen.main_part, shape->main_bytes, 0);
    kvi_block_unsee(pool);
    return KVCSA_OK;
}
