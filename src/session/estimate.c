/* Arithmetic of kvcsa_model_estimate: the same classes and counts as a session's, without one. */
#include "session/estimate.h"

#include "attn/window.h"
#include "base/checked.h"
#include "base/status.h"
#include "plan/plan_cost.h"
#include "pool/pool.h"

#define MAX_SLACK_TOKENS 4096u /* as of a session */
#define LARGEST_SUM ((uint64_t)1 << 63)

typedef struct counts { /* of blocks of each class */
    uint64_t blocks, pages, pending;
} counts;

/* a + b * c into a; false = above the limit. */
static bool add_product(uint64_t *a, uint64_t b, uint64_t c)
{
    size_t product;
    size_t sum;

    if (!kvi_mul_size(b, c, &product) || !kvi_add_size(*a, product, &sum) || sum > LARGEST_SUM)
        return false;
    *a = sum;
    return true;
}

/* Pages of the ring that the positions [from, to) are written to. */
static uint64_t pages_written(const kvi_window_geom *g, uint64_t from, uint64_t to)
{
    if (from >= to)
        return 0;
    return kvi_min_size(g->n_pages, (to - 1) / g->page_rows - from / g->page_rows + 1);
}

/* Pages that the stored windows at the first n multiples of `store` hold. One that follows another
 * shares the pages that were not written in between. How pages lie to these positions repeats after
 * page_rows of them. */
static uint64_t stored_pages(const kvi_window_geom *g, uint64_t store, uint64_t n)
{
    const uint64_t period = g->page_rows;
    uint64_t       in_period = 0;
    uint64_t       in_rest = 0;

    for (uint64_t k = 0; k < period; k++) {
        const uint64_t pages = pages_written(g, k * store, (k + 1) * store);

        in_period += pages;
        if (k < n % period)
            in_rest += pages;
    }
    return n / period * in_period + in_rest;
}

/* Counts of n_sessions (not 0) sessions. The windows of a session lie beside the blocks, if they
 * are stored: then it holds pages of its own from the last of them on. */
static bool count_all(const kvi_window_geom *g, uint32_t block_tokens, uint32_t store,
                      uint64_t n_tokens, uint64_t n_sessions, uint64_t n_shared, counts *c)
{
    const uint64_t shared_blocks = n_shared / block_tokens;
    const uint64_t own_blocks = kvi_div_up(n_tokens, block_tokens) - shared_blocks;
    const uint64_t whole = n_tokens / block_tokens * block_tokens;
    uint64_t       shared_pages = 0;
    uint64_t       own_pages = pages_written(g, 0, n_tokens);

    if (store && g->n_pages) {
        const uint64_t n_shared_stores = shared_blocks * block_tokens / store;

        shared_pages = stored_pages(g, store, n_shared_stores);
        own_pages = stored_pages(g, store, whole / store) - shared_pages +
                    pages_written(g, whole / store * store, n_tokens);
    }
    *c = (counts){.blocks = shared_blocks, .pages = shared_pages};
    return add_product(&c->blocks, own_blocks, n_sessions) &&
           add_product(&c->pages, own_pages, n_sessions) &&
           add_product(&c->pending, g->pending_bytes && n_tokens, n_sessions);
}

/* What n blocks of a class take from the budget and from the allocator. */
static bool add_class(const kvi_class_shape *shape, uint64_t n, uint64_t *used, kvcsa_estimate *out)
{
    kvi_class_cost cost;

    if (!n)
        return true;
    cost = kvi_class_cost_of(shape, n); /* the largest number there is, where it overflows */
    return add_product(used, n, (uint64_t)shape->index_bytes + shape->main_bytes) &&
           add_product(&out->slab_bytes, cost.slab_bytes, 1) &&
           add_product(&out->record_bytes, cost.record_bytes, 1);
}

/* states: of linear attention, all sessions; like windows they belong to one session each. */
static bool sum_up(const kvi_kv_layout *layout, const kvi_window_geom *g, const counts *c,
                   uint64_t states, kvcsa_estimate *out)
{
    const kvi_class_shape block = {.kind = KVI_CLASS_CACHE,
                                   .index_bytes = layout->index_part_bytes,
                                   .main_bytes = layout->main_part_bytes,
                                   .block_tokens = layout->block_tokens};
    const kvi_class_shape page = {.kind = KVI_CLASS_WINDOW, .main_bytes = g->page_bytes};
    const kvi_class_shape raw = {.kind = KVI_CLASS_WINDOW, .main_bytes = g->pending_bytes};
    const bool            one = page.main_bytes == raw.main_bytes; /* equal shapes, one class */
    uint64_t              n_pages = c->pages;

    if (one && !add_product(&n_pages, c->pending, 1))
        return false;
    out->n_blocks = c->blocks;
    out->used_bytes = 0;
    return add_class(&block, c->blocks, &out->block_bytes, out) &&
           add_class(&page, n_pages, &out->window_bytes, out) &&
           add_class(&raw, one ? 0 : c->pending, &out->window_bytes, out) &&
           add_product(&out->window_bytes, states, 1) && add_product(&out->slab_bytes, states, 1) &&
           add_product(&out->used_bytes, out->block_bytes, 1) &&
           add_product(&out->used_bytes, out->window_bytes, 1);
}

/* The two parameters that change bytes; a session would refuse the same values. */
static kvcsa_status check_params(const kvi_plan *plan, const kvcsa_session_params *p,
                                 kvcsa_error *err)
{
    if (p->window_slack_tokens > MAX_SLACK_TOKENS)
        return kvi_fail(err, KVCSA_ERR_ARG, "window_slack_tokens is %u, the limit is %u",
                        p->window_slack_tokens, MAX_SLACK_TOKENS);
    if (p->window_store_tokens % plan->block_tokens)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "window_store_tokens is %u, must be a multiple of block_tokens, %u",
                        p->window_store_tokens, plan->block_tokens);
    return KVCSA_OK;
}

kvcsa_status kvi_estimate(const kvcsa_model *model, const kvcsa_session_params *params,
                          uint64_t n_tokens, uint64_t n_sessions, uint64_t n_shared,
                          kvcsa_estimate *out, kvcsa_error *err)
{
    const kvi_plan *plan = &model->plan;
    const uint32_t  store = params->window_store_tokens;
    kvcsa_estimate  sum = {.struct_size = out->struct_size};
    uint64_t        states = 0;
    kvi_window_geom g;
    counts          c;
    kvcsa_status    st;

    if ((st = check_params(plan, params, err)) != KVCSA_OK ||
        (st = kvi_window_geom_init(&g, plan, params->window_slack_tokens, err)) != KVCSA_OK)
        return st;
    if (n_tokens > plan->max_tokens)
        return kvi_fail(err, KVCSA_ERR_LIMIT, "n_tokens is %llu, the context limit is %llu",
                        (unsigned long long)n_tokens, (unsigned long long)plan->max_tokens);
    if (n_shared > n_tokens)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_shared_tokens is %llu, n_tokens is %llu",
                        (unsigned long long)n_shared, (unsigned long long)n_tokens);
    if (n_sessions &&
        (!count_all(&g, plan->block_tokens, store, n_tokens, n_sessions, n_shared, &c) ||
         !add_product(&states, kvi_plan_state_bytes(plan), n_tokens ? n_sessions : 0) ||
         !sum_up(&model->layout, &g, &c, states, &sum)))
        return kvi_fail(err, KVCSA_ERR_LIMIT,
                        "n_sessions is %llu, of %llu tokens each: above 2^63 bytes",
                        (unsigned long long)n_sessions, (unsigned long long)n_tokens);
    *out = sum;
    return KVCSA_OK;
}
