/* The pool: lifetime, budget and figures. What it owns and the invariants are in block_alloc.c and
 * prefix_share.c. */
#include "pool/pool.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/status.h"
#include "pool/pool_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KNOWN_FLAGS                                                                                \
    ((uint32_t)(KVCSA_POOL_FILL_FREED | KVCSA_POOL_ZERO_FREED | KVCSA_POOL_FAST_DENSE))

/* ------------------------------------------------------------------ lifetime */

static void destroy_pool(kvcsa_pool *pool)
{
    kvcsa_allocator a;

    if (!pool)
        return;
    a = pool->allocator;
    kvi_prefix_destroy_all(pool);
    kvi_pool_destroy_classes(pool);
    kvi_pool_destroy_weights(pool);
    kvi_pool_free_scratch(pool);
    if (pool->ops)
        pool->ops->device_close(pool->device);
    kvi_threads_destroy(pool->threads); /* after the device, which uses them */
    pthread_mutex_destroy(&pool->weights_lock);
    pthread_mutex_destroy(&pool->scratch_lock);
    pthread_mutex_destroy(&pool->lock);
    kvi_free(&a, pool, sizeof *pool);
}

static kvcsa_status check_params(const kvcsa_pool_params *params, kvcsa_error *err)
{
    if (params->flags & ~KNOWN_FLAGS)
        return kvi_fail(err, KVCSA_ERR_ARG, "pool flags are 0x%" PRIx32 ", known are 0x%" PRIx32,
                        params->flags, KNOWN_FLAGS);
    if (params->evict > KVCSA_EVICT_LRU)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "evict is %" PRIu32 ", the limit is %d",
                        params->evict, KVCSA_EVICT_LRU);
    if (params->backend > KVCSA_BACKEND_CUDA)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "backend is %" PRIu32 ", the limit is %d",
                        params->backend, KVCSA_BACKEND_CUDA);
    if (params->cpu_avoid & ~KVI_CPU_ALL)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "cpu_avoid is 0x%" PRIx32 ", known are 0x%" PRIx32, params->cpu_avoid,
                        KVI_CPU_ALL);
    return KVCSA_OK;
}

static void set_params(kvcsa_pool *pool, const kvcsa_pool_params *params)
{
    if (params->log)
        pool->log = *params->log;
    if (params->trace)
        pool->trace = *params->trace;
    pool->flags = params->flags;
    pool->evict = params->evict;
    pool->cpu_avoid = params->cpu_avoid;
    pool->ordinal = params->ordinal;
    pool->budget_bytes = params->budget_bytes ? params->budget_bytes : UINT64_MAX;
    pool->hash = kvi_hash128_of;
    pool->fs = kvi_fs_posix();
    atomic_init(&pool->refs, 1);
    atomic_init(&pool->weight_bytes, 0);
    pthread_mutex_init(&pool->lock, NULL); /* cannot fail with default attributes */
    pthread_mutex_init(&pool->scratch_lock, NULL);
    pthread_mutex_init(&pool->weights_lock, NULL);
}

/* Whatever a driver says, it becomes one clean line. */
static void log_of_device(void *user, int32_t level, const char *text)
{
    const kvcsa_pool *pool = user;

    kvi_log(&pool->log, level, "%s", text);
}

static kvcsa_status open_device(kvcsa_pool *pool, const kvi_backend_wish *wish, kvcsa_error *err)
{
    const kvi_host_ops      host = {.struct_size = sizeof host, .log = log_of_device, .user = pool};
    const uint32_t          fast = pool->flags & KVCSA_POOL_FAST_DENSE ? KVI_DEVICE_FAST_DENSE : 0;
    const kvi_device_params params = {.allocator = &pool->allocator,
                                      .threads = pool->threads,
                                      .cpu_flags = wish->cpu_flags,
                                      .ordinal = pool->ordinal,
                                      .host = &host,
                                      .flags = fast};
    kvi_device_info         info;
    kvcsa_status            st = kvi_backend_choose(wish, &pool->ops, &pool->choice, err);

    if (st == KVCSA_OK)
        st = pool->ops->device_open(&params, &pool->device, err);
    if (st != KVCSA_OK)
        return st;
    pool->memory = (kvi_memory){.ops = pool->ops,
                                .dev = pool->device,
                                .allocator = &pool->allocator,
                                .make_room = kvi_pool_make_room,
                                .room_user = pool};
    kvi_pool_describe(pool, &info);
    pool->numerics = info.numerics;
    return KVCSA_OK;
}

/* A device that was not asked for may fail to open: the CPU is always there. */
static kvcsa_status choose_device(kvcsa_pool *pool, const kvcsa_pool_params *params,
                                  kvcsa_error *err)
{
    kvi_backend_wish wish = {.backend = params->backend,
                             .dir = params->backend_dir,
                             .cpu_flags = kvi_cpu_flags(params->cpu_avoid),
                             .log = &pool->log};
    kvcsa_error      why = {0};
    char             text[sizeof pool->choice.why];
    kvcsa_status     st = open_device(pool, &wish, &why);

    if (st == KVCSA_OK)
        return st;
    if (params->backend != KVCSA_BACKEND_AUTO || pool->choice.backend == KVCSA_BACKEND_CPU) {
        if (err)
            *err = why;
        return st;
    }
    kvi_log(&pool->log, KVCSA_LOG_WARN, "device %" PRIu32 " of %s cannot be opened: %s",
            pool->ordinal, pool->ops->name, why.text);
    snprintf(text, sizeof text, "%.150s; device %" PRIu32 " cannot be opened: %.120s",
             pool->choice.why, pool->ordinal, why.text);
    wish.backend = KVCSA_BACKEND_CPU;
    st = open_device(pool, &wish, err);
    memcpy(pool->choice.why, text, sizeof text);
    return st;
}

kvcsa_status kvi_pool_create(const kvcsa_pool_params *params, kvcsa_pool **out, kvcsa_error *err)
{
    kvcsa_status    st = KVCSA_OK;
    kvcsa_pool     *pool = NULL;
    kvcsa_allocator a;

    *out = NULL;
    st = check_params(params, err);
    if (st == KVCSA_OK)
        st = kvi_allocator_import(params->allocator, &a, err);
    if (st != KVCSA_OK)
        return st;
    pool = kvi_zalloc(&a, sizeof *pool);
    if (!pool)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "pool of %zu bytes", sizeof *pool);
    pool->allocator = a;
    set_params(pool, params);
    st = kvi_threads_create(&pool->allocator, params->n_threads, params->executor, &pool->threads,
                            err);
    if (st != KVCSA_OK)
        goto fail;
    if ((st = choose_device(pool, params, err)) != KVCSA_OK)
        goto fail;
    if (kvi_memory_is_apart(&pool->memory))
        pool->host.budget_bytes = params->host_bytes;
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

/* ------------------------------------------------------------------ what it is made of */

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

uint32_t kvi_pool_cpu_avoid(const kvcsa_pool *pool)
{
    return pool->cpu_avoid;
}

const kvi_backend_ops *kvi_pool_ops(const kvcsa_pool *pool)
{
    return pool->ops;
}

uint64_t kvi_pool_numerics(const kvcsa_pool *pool)
{
    return pool->numerics;
}

uint32_t kvi_pool_backend(const kvcsa_pool *pool)
{
    return pool->choice.backend;
}

const char *kvi_pool_backend_why(const kvcsa_pool *pool)
{
    return pool->choice.why;
}

void kvi_pool_describe(const kvcsa_pool *pool, kvi_device_info *out)
{
    memset(out, 0, sizeof *out);
    out->numerics = pool->ops->numerics;
    if (pool->ops->describe)
        pool->ops->describe(pool->device, out);
}

const kvi_memory *kvi_pool_memory(const kvcsa_pool *pool)
{
    return &pool->memory;
}

kvi_threads *kvi_pool_threads(const kvcsa_pool *pool)
{
    return pool->threads;
}

void kvi_pool_set_hash(kvcsa_pool *pool, kvi_hash_fn hash)
{
    pthread_mutex_lock(&pool->lock);
    pool->hash = hash;
    for (kvi_prefix_root *root = pool->roots; root; root = root->next) {
        KVI_ASSERT(root->n_published == 0); /* their keys would be wrong */
        root->hash = hash;
        root->key = kvi_prefix_root_key(root);
    }
    pthread_mutex_unlock(&pool->lock);
}

void kvi_pool_set_fs(kvcsa_pool *pool, const kvi_fs *fs)
{
    pool->fs = fs;
}

const kvi_fs *kvi_pool_fs(const kvcsa_pool *pool)
{
    return pool->fs;
}

/* ------------------------------------------------------------------ budget */

kvcsa_status kvi_pool_resize(kvcsa_pool *pool, uint64_t budget_bytes, kvcsa_error *err)
{
    const uint64_t budget = budget_bytes ? budget_bytes : UINT64_MAX;
    kvcsa_status   st = KVCSA_OK;
    uint64_t       least = 0; /* what nobody can be made to give back */

    pthread_mutex_lock(&pool->lock);
    if (budget >= pool->used_bytes + pool->reserved_bytes) { /* (P6): no overflow */
        pool->budget_bytes = budget;
        goto done;
    }
    least = pool->used_bytes + pool->reserved_bytes - kvi_evict_possible_bytes(pool);
    if (least > budget) {
        st = kvi_fail(err, KVCSA_ERR_FULL,
                      "budget_bytes is %" PRIu64 ", sessions and pins hold %" PRIu64, budget,
                      least);
        goto done;
    }
    kvi_evict_down_to(pool, budget - pool->reserved_bytes, KVCSA_REASON_RESIZE);
    pool->budget_bytes = budget;
done:
    pthread_mutex_unlock(&pool->lock);
    return st;
}

static uint64_t allocated_bytes(const kvcsa_pool *pool)
{
    return pool->slab_bytes + pool->host.slab_bytes + pool->record_bytes + pool->side_bytes;
}

void kvi_pool_trim(kvcsa_pool *pool, uint64_t max_used_bytes, uint64_t *freed)
{
    uint64_t before = 0;

    pthread_mutex_lock(&pool->lock);
    before = allocated_bytes(pool);
    kvi_evict_down_to(pool, max_used_bytes, KVCSA_REASON_TRIM);
    kvi_pool_free_empty_slabs(pool);
    for (kvi_block_class *cls = pool->classes; cls; cls = cls->next)
        kvi_host_free_slabs(pool, cls);
    if (freed)
        *freed = before - allocated_bytes(pool);
    pthread_mutex_unlock(&pool->lock);
}

/* ------------------------------------------------------------------ figures */

void kvi_pool_count_session(kvcsa_pool *pool, int delta)
{
    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(delta >= 0 || pool->n_sessions >= (uint64_t) - (int64_t)delta);
    pool->n_sessions += (uint64_t)(int64_t)delta; /* modulo 2^64: a negative delta subtracts */
    pthread_mutex_unlock(&pool->lock);
}

void kvi_pool_count_io(kvcsa_pool *pool, const kvi_pool_io_counts *add)
{
    pthread_mutex_lock(&pool->lock);
    pool->io.saved_bytes += add->saved_bytes;
    pool->io.saved_records += add->saved_records;
    pool->io.loaded_bytes += add->loaded_bytes;
    pool->io.loaded_records += add->loaded_records;
    pthread_mutex_unlock(&pool->lock);
}

void kvi_pool_count_adopted(kvcsa_pool *pool, uint64_t n_tokens)
{
    pthread_mutex_lock(&pool->lock);
    pool->n_hit_tokens += n_tokens;
    pthread_mutex_unlock(&pool->lock);
}

/* The caller holds the lock. */
static void get_block_stats(const kvcsa_pool *pool, kvcsa_pool_stats *out)
{
    out->n_open_blocks = 0;
    out->n_sealed_blocks = 0;
    out->n_free_blocks = 0;
    out->n_window_pages = 0;
    for (const kvi_block_class *cls = pool->classes; cls; cls = cls->next) {
        if (cls->shape.kind == KVI_CLASS_WINDOW) {
            out->n_window_pages += kvi_class_in_use(cls);
            continue;
        }
        out->n_open_blocks += cls->n_open;
        out->n_sealed_blocks += cls->n_sealed;
        out->n_free_blocks += cls->n_free;
    }
    out->n_acquired = pool->n_acquired;
    out->n_released = pool->n_released;
    out->n_copied_blocks = pool->n_copied[KVI_CLASS_CACHE];
    out->n_copied_pages = pool->n_copied[KVI_CLASS_WINDOW];
}

/* The caller holds the lock. */
static void get_prefix_stats(const kvcsa_pool *pool, kvcsa_pool_stats *out)
{
    out->evictable_bytes = kvi_evict_possible_bytes(pool);
    out->n_published_blocks = pool->n_published;
    out->n_pinned_blocks = pool->n_pinned;
    out->n_evicted_blocks = pool->n_evicted;
    out->n_lookups = pool->n_lookups;
    out->n_probes = pool->n_probes;
    out->n_hit_tokens = pool->n_hit_tokens;
}

/* The caller holds the lock. */
static void get_host_stats(const kvi_host_tier *host, kvcsa_pool_stats *out)
{
    out->host_budget_bytes = host->budget_bytes;
    out->host_used_bytes = host->used_bytes;
    out->host_slab_bytes = host->slab_bytes;
    out->n_host_blocks = host->n_blocks;
    out->n_host_pages = host->n_pages;
    out->n_moved_out_blocks = host->n_moved_out;
    out->n_moved_in_blocks = host->n_moved_in;
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
    out->record_bytes = pool->record_bytes;
    get_block_stats(pool, out);
    get_prefix_stats(pool, out);
    get_host_stats(&pool->host, out);
    out->n_sessions = pool->n_sessions;
    out->n_saved_bytes = pool->io.saved_bytes;
    out->n_saved_records = pool->io.saved_records;
    out->n_loaded_bytes = pool->io.loaded_bytes;
    out->n_loaded_records = pool->io.loaded_records;
    pthread_mutex_unlock(&pool->lock);
    return KVCSA_OK;
}

kvcsa_status kvi_pool_check(kvcsa_pool *pool, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    pthread_mutex_lock(&pool->lock);
    st = kvi_pool_check_blocks(pool, err);
    if (st == KVCSA_OK)
        st = kvi_pool_check_tree(pool, err);
    if (st == KVCSA_OK)
        st = kvi_pool_check_idle(pool, err);
    pthread_mutex_unlock(&pool->lock);
    return st;
}

void kvi_pool_trace(const kvcsa_pool *pool, uint32_t kind, uint32_t reason, uint64_t position,
                    uint64_t n_tokens, uint64_t n_bytes)
{
    const kvcsa_trace_event event = {.struct_size = sizeof event,
                                     .position = position,
                                     .n_tokens = n_tokens,
                                     .n_bytes = n_bytes,
                                     .kind = kind,
                                     .reason = reason};

    if (pool->trace.event)
        pool->trace.event(pool->trace.user, &event);
}
