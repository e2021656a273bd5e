/* Giving up blocks for others in one move: a session that replaces what it holds needs no room for
 * both, and keeps what it has where even that would not do. */
#include "pool/pool.h"

#include "base/checked.h"
#include "base/status.h"
#include "pool/pool_int.h"

#include <inttypes.h>

/* Counts as if one reference went: the bytes that would be free. Nothing is freed, and give() takes
 * it back. */
static uint64_t take(kvi_block *b)
{
    uint64_t bytes = 0;

    for (; b && --b->refs == 0; b = b->parent) {
        const kvi_stored_window *w = b->window;

        bytes += kvi_class_block_bytes(b->slab->cls);
        for (size_t i = 0; w && i < w->n_pages; i++)
            bytes += w->pages[i] ? take(w->pages[i]) : 0; /* pages have neither parent nor window */
    }
    return bytes;
}

static void give(kvi_block *b)
{
    for (; b && b->refs++ == 0; b = b->parent) {
        const kvi_stored_window *w = b->window;

        for (size_t i = 0; w && i < w->n_pages; i++)
            if (w->pages[i])
                give(w->pages[i]);
    }
}

/* What dropping one reference to each of n blocks makes room for, at once or by eviction. */
static uint64_t room_of(const kvcsa_pool *pool, kvi_block *const *drop, size_t n)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < n; i++)
        bytes += drop[i] ? take(drop[i]) : 0;
    bytes += kvi_evict_possible_bytes(pool);
    for (size_t i = n; i-- > 0;)
        if (drop[i])
            give(drop[i]);
    return bytes;
}

kvcsa_status kvi_pool_trade(kvcsa_pool *pool, const kvi_reservation *want, size_t n_want,
                            kvi_block *const *drop, size_t n_drop, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    uint64_t     need = 0;
    uint64_t     room = 0;

    pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < n_want; i++) {
        uint64_t bytes = 0;

        if (want[i].n_blocks &&
            (!kvi_mul_size(want[i].n_blocks, kvi_class_block_bytes(want[i].cls), &bytes) ||
             !kvi_add_size(need, bytes, &need)))
            need = UINT64_MAX;
    }
    room = pool->budget_bytes - pool->used_bytes - pool->reserved_bytes +
           room_of(pool, drop, n_drop);
    if (need > room) {
        st = kvi_fail(err, KVCSA_ERR_FULL,
                      "blocks need %" PRIu64 " bytes, %" PRIu64 " of the pool's budget of %" PRIu64
                      " would be free",
                      need, room, pool->budget_bytes);
        goto done;
    }
    for (size_t i = 0; i < n_drop; i++)
        kvi_prefix_let_go(pool, drop[i]);
    KVI_ASSERT(need <= pool->budget_bytes);
    if (!kvi_evict_for(pool, need, KVCSA_REASON_BUDGET))
        st = kvi_fail(err, KVCSA_ERR_INTERNAL, "room for %" PRIu64 " bytes was miscounted", need);
    for (size_t i = 0; i < n_want && st == KVCSA_OK; i++) {
        if (!want[i].n_blocks)
            continue;
        want[i].cls->n_reserved += want[i].n_blocks;
        pool->reserved_bytes += want[i].n_blocks * kvi_class_block_bytes(want[i].cls);
    }
done:
    pthread_mutex_unlock(&pool->lock);
    return st;
}
