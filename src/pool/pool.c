/* The pool: lifetime, budget and figures. What it owns and the invariants are in block_alloc.c. */
#include "pool/pool.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"
#include "pool/pool_int.h"

#include <inttypes.h>

#define KNOWN_FLAGS ((uint32_t)KVCSA_POOL_FILL_FREED)

static void destroy_pool(kvcsa_pool *pool)
{
    kvcsa_allocator a;

    if (!pool)
        return;
    a = pool->allocator;
    kvi_pool_destroy_classes(pool);
    if (pool->ops)
        pool->ops->device_close(pool->device);
    kvi_threads_destroy(pool->threads); /* after the device, which uses them */
    pthread_mutex_destroy(&pool->lock);
    kvi_free(&a, pool, sizeof *pool);
}

kvcsa_status kvi_pool_create(const kvcsa_pool_params *params, kvcsa_pool **out, kvcsa_error *err)
{
    kvcsa_status      st = KVCSA_OK;
    kvcsa_pool       *pool = NULL;
    kvcsa_allocator   a;
    kvi_device_params device = {0};

    *out = NULL;
    if (params->flags & ~KNOWN_FLAGS)
        return kvi_fail(err, KVCSA_ERR_ARG, "pool flags are 0x%" PRIx32 ", known are 0x%" PRIx32,
                        params->flags, KNOWN_FLAGS);
    st = kvi_allocator_import(params->allocator, &a, err);
    if (st != KVCSA_OK)
        return st;
    pool = kvi_zalloc(&a, sizeof *pool);
    if (!pool)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "pool of %zu bytes", sizeof *pool);
    pool->allocator = a;
    if (params->log)
        pool->log = *params->log;
    pool->flags = params->flags;
    pool->budget_bytes = params->budget_bytes ? params->budget_bytes : UINT64_MAX;
    atomic_init(&pool->refs, 1);
    pthread_mutex_init(&pool->lock, NULL); /* cannot fail with default attributes */

    st = kvi_threads_create(&pool->allocator, params->n_threads, params->executor, &pool->threads,
                            err);
    if (st != KVCSA_OK)
        goto fail;
    device.allocator = &pool->allocator;
    device.threads = pool->threads;
    pool->ops = kvi_cpu_backend();
    st = pool->ops->device_open(&device, &pool->device, err);
    if (st != KVCSA_OK)
        goto fail;
    *out = pool;
    return KVCSA_OK;
fail:
    destroy_pool(pool);
    return st;
}

kvcsa_pool *kvi_pool_retain(kvcsa_pool *pool)
{
    atomic_fetch_add_explicit(&pool->refs, 1, memory_order_relaxed);
    return pool;
}

void kvi_pool_release(kvcsa_pool *pool)
{
    /* the last one must see what the others did to the pool before they let go */
    if (pool && atomic_fetch_sub_explicit(&pool->refs, 1, memory_order_acq_rel) == 1)
        destroy_pool(pool);
}

const kvcsa_allocator *kvi_pool_allocator(const kvcsa_pool *pool)
{
    return &pool->allocator;
}

const kvcsa_log *kvi_pool_log(const kvcsa_pool *pool)
{
    return &pool->log;
}

kvi_device *kvi_pool_device(const kvcsa_pool *pool)
{
    return pool->device;
}

const kvi_backend_ops *kvi_pool_ops(const kvcsa_pool *pool)
{
    return pool->ops;
}

kvcsa_status kvi_pool_check_room(const kvcsa_pool *pool, uint64_t bytes, const char *what,
                                 kvcsa_error *err)
{
    /* (P6): no underflow */
    uint64_t room = pool->budget_bytes - pool->used_bytes - pool->reserved_bytes;

    if (bytes > room)
        return kvi_fail(err, KVCSA_ERR_FULL,
                        "%s need %" PRIu64 " bytes, %" PRIu64 " of the pool's budget of %" PRIu64 " are free",
                        what, bytes, room, pool->budget_bytes);
    return KVCSA_OK;
}

kvcsa_status kvi_pool_charge(kvcsa_pool *pool, uint64_t bytes, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    pthread_mutex_lock(&pool->lock);
    st = kvi_pool_check_room(pool, bytes, "windows", err);
    if (st == KVCSA_OK) {
        pool->used_bytes += bytes;
        pool->window_bytes += bytes;
    }
    pthread_mutex_unlock(&pool->lock);
    return st;
}

void kvi_pool_uncharge(kvcsa_pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(bytes <= pool->window_bytes);
    pool->used_bytes -= bytes;
    pool->window_bytes -= bytes;
    pthread_mutex_unlock(&pool->lock);
}

void kvi_pool_count_session(kvcsa_pool *pool, int delta)
{
    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(delta >= 0 || pool->n_sessions >= (uint64_t) - (int64_t)delta);
    pool->n_sessions += (uint64_t)(int64_t)delta; /* modulo 2^64: a negative delta subtracts */
    pthread_mutex_unlock(&pool->lock);
}

kvcsa_status kvi_pool_get_stats(kvcsa_pool *pool, kvcsa_pool_stats *out, kvcsa_error *err)
{
    if (!out)
        return kvi_fail(err, KVCSA_ERR_ARG, "stats is NULL");
    pthread_mutex_lock(&pool->lock);
    out->budget_bytes = pool->budget_bytes;
    out->used_bytes = pool->used_bytes;
    out->reserved_bytes = pool->reserved_bytes;
    out->window_bytes = pool->window_bytes;
    out->slab_bytes = pool->slab_bytes;
    out->n_open_blocks = 0;
    out->n_sealed_blocks = 0;
    out->n_free_blocks = 0;
    for (const kvi_block_class *cls = pool->classes; cls; cls = cls->next) {
        out->n_open_blocks += cls->n_open;
        out->n_sealed_blocks += cls->n_sealed;
        out->n_free_blocks += cls->n_free;
    }
    out->n_sessions = pool->n_sessions;
    out->n_acquired = pool->n_acquired;
    out->n_released = pool->n_released;
    pthread_mutex_unlock(&pool->lock);
    return KVCSA_OK;
}

kvcsa_status kvi_pool_check(kvcsa_pool *pool, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    pthread_mutex_lock(&pool->lock);
    st = kvi_pool_check_blocks(pool, err);
    pthread_mutex_unlock(&pool->lock);
    return st;
}
