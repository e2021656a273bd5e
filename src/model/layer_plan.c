/* Configuration -> cache plan, for all families. Modes and owners: docs/architecture.md, "The cache
 * plan" (of DeepSeek-V4.1: paper, section 2.2). */
#include "model/layer_plan.h"

#include "base/alloc.h"
#include "base/status.h"
#include "plan/plan_cost.h"

#include <string.h>

typedef struct owners { /* the last ones seen while walking up the layers */
    int32_t kv;
    int32_t select;
} owners;

/* Bytes of a window row of all heads, keys and own values: of layers without entries too. */
static uint32_t window_bytes(const kvi_cache_shape *s, uint32_t format)
{
    uint32_t head = kvi_format_row_bytes(format, s->key_width);

    if (s->value_kind == KVCSA_VALUE_OWN)
        head += kvi_format_row_bytes(format, s->value_width);
    return s->kv_heads * head;
}

static void fill_window(kvi_plan_row *row, const kvi_config *c)
{
    const kvi_cache_shape *s = &c->cache;

    row->kv_heads = s->kv_heads;
    row->window_tokens = c->window;
    row->window_format = s->window_format ? s->window_format : s->entry_format;
    row->window_bytes = window_bytes(s, row->window_format);
}

static uint32_t pool_kind(uint8_t flags, uint32_t ratio)
{
    if (ratio <= 1)
        return KVCSA_POOLING_NONE;
    if (flags & KVI_LAYER_OVERLAP)
        return KVCSA_POOLING_OVERLAP;
    return flags & KVI_LAYER_WIDE ? KVCSA_POOLING_WIDE : KVCSA_POOLING_GATED;
}

static void fill_entries(kvi_plan_row *row, const kvi_config *c, uint32_t layer, const owners *at)
{
    const kvi_cache_shape *s = &c->cache;
    const int              own_value = s->value_kind == KVCSA_VALUE_OWN;

    row->kv_owner = at->kv;
    row->ratio = c->ratios[layer];
    row->pool_kind = pool_kind(s->layers[layer], row->ratio);
    row->kv_heads = s->kv_heads;
    row->entry_width = s->key_width;
    row->entry_rotated = s->rotated;
    row->entry_format = s->entry_format;
    row->value_kind = s->value_kind;
    row->value_width = s->value_width;
    if (own_value)
        row->value_format = s->value_format ? s->value_format : s->entry_format;
}

static void fill_selection(kvi_plan_row *row, const kvi_config *c, uint32_t layer, const owners *at,
                           const kvi_plan_row *rows)
{
    const int owns = c->kv_source[layer];
    const int selects = c->index_source[layer];

    row->select = KVCSA_SELECT_ALL;
    if (!owns && at->kv >= 0)
        row->index_owner = rows[at->kv].index_owner;
    if (!(c->cache.layers[layer] & KVI_LAYER_INDEXED))
        return;
    row->select = !selects ? KVCSA_SELECT_INHERITED
                  : owns   ? KVCSA_SELECT_OWN
                           : KVCSA_SELECT_REINDEX;
    row->select_owner = at->select;
    row->select_entries = c->index_topk;
    if (owns)
        row->index_owner = selects           ? (int32_t)layer
                           : at->select >= 0 ? rows[at->select].index_owner
                                             : KVI_NO_LAYER;
    if (owns && !selects) /* it has no keys of its own */
        return;
    row->index_heads = c->index_heads;
    row->index_width = c->index_dim;
    row->index_format = c->cache.index_format;
    row->index_bytes = kvi_format_row_bytes(row->index_format, row->index_width);
}

static void fill_candidates(kvi_plan_row *row, const kvi_config *c, uint32_t layer)
{
    if (c->candidate_source < 0 || !c->index_source[layer] || (int32_t)layer < c->candidate_source)
        return;
    row->candidates =
        (int32_t)layer == c->candidate_source ? KVCSA_CANDIDATES_SOURCE : KVCSA_CANDIDATES_CONSUMER;
    row->candidate_owner = c->candidate_source;
    row->candidate_blocks = c->candidate_blocks;
    row->candidate_block_entries = c->candidate_block_size;
}

/* What kvi_plan_validate asks of a row that is computed, as far as an override can change it. */
static int is_computed(const kvi_plan_row *row, const kvi_config *c, uint32_t layer)
{
    if (!c->has_network || layer >= c->n_layers || row->window_format != KVCSA_FORMAT_FP8_E8M0_G32)
        return 0;
    return row->ratio == 0 ||
           (row->kv_heads == 1 && kvi_format_can_store(row->entry_format) &&
            row->select != KVCSA_SELECT_ALL && row->index_owner == row->kv_owner &&
            row->index_format == KVCSA_FORMAT_FP4_E8M0_G32);
}

static void fill_row(kvi_plan_row *rows, const kvi_config *c, uint32_t layer, const owners *at)
{
    const uint8_t flags = c->cache.layers[layer];
    kvi_plan_row *row = &rows[layer];

    row->kv_owner = KVI_NO_LAYER;
    row->index_owner = KVI_NO_LAYER;
    row->select_owner = KVI_NO_LAYER;
    row->candidate_owner = KVI_NO_LAYER;
    row->sink = c->cache.sink;
    if (flags & KVI_LAYER_WINDOW)
        fill_window(row, c);
    if (flags & KVI_LAYER_STATE) {
        row->state_heads = c->cache.state_heads;
        row->state_bytes = c->cache.state_bytes;
    }
    if (c->ratios[layer] > 0) {
        fill_entries(row, c, layer, at);
        fill_selection(row, c, layer, at, rows);
        fill_candidates(row, c, layer);
        kvi_plan_row_complete(row, layer);
    }
    row->cost_only = !is_computed(row, c, layer);
}

kvcsa_status kvi_layer_plan_build(const kvi_config *c, uint32_t block_tokens,
                                  const kvcsa_allocator *a, kvi_plan *out, kvcsa_error *err)
{
    kvcsa_status st;
    owners       at = {KVI_NO_LAYER, KVI_NO_LAYER};

    memset(out, 0, sizeof *out);
    out->n_layers = c->cache.n_layers;
    out->block_tokens = block_tokens ? block_tokens : KVI_DEFAULT_BLOCK_TOKENS;
    out->max_tokens = c->max_tokens;
    if (!(out->rows = kvi_zalloc(a, out->n_layers * sizeof *out->rows))) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "cache plan of %u layers", out->n_layers);
        goto fail;
    }
    for (uint32_t i = 0; i < out->n_layers; i++) {
        if (c->kv_source[i])
            at.kv = (int32_t)i;
        if (c->index_source[i])
            at.select = (int32_t)i;
        fill_row(out->rows, c, i, &at);
    }
    if ((st = kvi_plan_validate(out, err)) == KVCSA_OK)
        return KVCSA_OK;
fail:
    kvi_layer_plan_fini(out, a);
    return st;
}

void kvi_layer_plan_fini(kvi_plan *plan, const kvcsa_allocator *a)
{
    kvi_free(a, plan->rows, plan->n_layers * sizeof *plan->rows);
    memset(plan, 0, sizeof *plan);
}
