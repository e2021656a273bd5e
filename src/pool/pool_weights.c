/* Weights where the operators of a pool find them. A device with memory of its own gets one copy for
 * all sessions of a model, from the first of them to the last. Copying takes long: the pool's lock is
 * not held, and a second session of the model waits for the lock of the weights. */
#include "pool/pool.h"

#include "base/alloc.h"
#include "base/status.h"
#include "model/weights_place.h"
#include "pool/pool_int.h"

#include <inttypes.h>

/* Engram tables take at most this part of the memory that is free: they are read in a few rows for a
 * token, which may as well come from the host, and the other matrices, blocks, windows and
 * workspaces, all read in whole, want the rest. */
#define TABLE_SHARE 4

struct kvi_placed_weights {
    kvi_placed_weights *next;
    const kvcsa_model  *model;
    uint64_t            refs;
    uint64_t            n_bytes;
    kvi_weights         weights;
};

/* Without the tables, prefixes go for it. */
static kvcsa_status place_few(kvcsa_pool *pool, const kvcsa_model *model, kvi_weights *out,
                              kvcsa_error *err)
{
    const kvi_memory *m = &pool->memory;
    kvi_memory        alone = *m;

    if (!kvi_pool_could_have(pool, kvi_weights_least_bytes(model))) {
        alone.make_room = NULL; /* they need not go for nothing */
        m = &alone;
    }
    return kvi_weights_place(model, m, 0, out, err);
}

/* The caller holds the lock of the weights. */
static kvcsa_status place(kvcsa_pool *pool, const kvcsa_model *model, kvi_placed_weights *p,
                          kvcsa_error *err)
{
    kvcsa_error     why = {0};
    kvi_memory      alone = pool->memory;
    kvi_device_info info;
    kvcsa_status    st = KVCSA_OK;

    alone.make_room = NULL;
    kvi_pool_describe(pool, &info);
    st = kvi_weights_place(model, &alone, info.memory_free / TABLE_SHARE, &p->weights, &why);
    if (st == KVCSA_ERR_NOMEM) /* perhaps the tables were too much */
        st = place_few(pool, model, &p->weights, &why);
    if (st != KVCSA_OK)
        return kvi_fail_code(err, st, why.detail,
                             "weights for %.48s, device %" PRIu32 " of %s (%" PRIu64
                             " bytes are free): %.120s",
                             info.name, pool->ordinal, pool->ops->name, info.memory_free, why.text);
    p->model = model;
    p->n_bytes = kvi_weights_placed_bytes(&p->weights);
    p->next = pool->weights;
    pool->weights = p;
    atomic_fetch_add(&pool->weight_bytes, p->n_bytes);
    return KVCSA_OK;
}

static void destroy(kvcsa_pool *pool, kvi_placed_weights *p)
{
    kvi_placed_weights **link = &pool->weights;

    while (*link != p)
        link = &(*link)->next;
    *link = p->next;
    atomic_fetch_sub(&pool->weight_bytes, p->n_bytes);
    kvi_weights_unplace(&p->weights, &pool->memory);
    kvi_free(&pool->allocator, p, sizeof *p);
}

kvcsa_status kvi_pool_weights_acquire(kvcsa_pool *pool, const kvcsa_model *model,
                                      const kvi_weights **out, kvcsa_error *err)
{
    kvi_placed_weights *p = NULL;
    kvcsa_status        st = KVCSA_OK;

    *out = NULL;
    if (!kvi_memory_is_apart(&pool->memory)) {
        *out = &model->weights;
        return KVCSA_OK;
    }
    pthread_mutex_lock(&pool->weights_lock);
    p = pool->weights;
    while (p && p->model != model)
        p = p->next;
    if (!p) {
        p = kvi_zalloc(&pool->allocator, sizeof *p);
        st = p ? place(pool, model, p, err)
               : kvi_fail(err, KVCSA_ERR_NOMEM, "weights' record of %zu bytes", sizeof *p);
        if (st != KVCSA_OK) {
            kvi_free(&pool->allocator, p, sizeof *p);
            goto done;
        }
    }
    p->refs++;
    *out = &p->weights;
done:
    pthread_mutex_unlock(&pool->weights_lock);
    return st;
}

void kvi_pool_weights_release(kvcsa_pool *pool, const kvi_weights *weights)
{
    kvi_placed_weights *p = NULL;

    if (!weights || !kvi_memory_is_apart(&pool->memory))
        return;
    pthread_mutex_lock(&pool->weights_lock);
    p = pool->weights;
    while (p && &p->weights != weights)
        p = p->next;
    KVI_ASSERT(p && p->refs > 0);
    if (p && --p->refs == 0)
        destroy(pool, p);
    pthread_mutex_unlock(&pool->weights_lock);
}

uint64_t kvi_pool_weight_bytes(kvcsa_pool *pool)
{
    return atomic_load(&pool->weight_bytes);
}

void kvi_pool_destroy_weights(kvcsa_pool *pool)
{
    while (pool->weights) {
        KVI_ASSERT(pool->weights->refs == 0); /* sessions hold the pool */
        destroy(pool, pool->weights);
    }
}
