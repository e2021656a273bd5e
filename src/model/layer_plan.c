/* DeepSeek-V4.1 configuration -> cache plan. Modes and owners: docs/architecture.md, "The cache
 * plan" (paper: section 2.2). */
#include "model/layer_plan.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"

#include <string.h>

#define DEFAULT_BLOCK_TOKENS 128u

typedef struct owners { /* the last ones seen while walking up the layers */
    int32_t kv;
    int32_t select;
} owners;

static uint32_t row_bytes(uint32_t format, uint32_t width)
{
    return kvi_format_value_bytes(format, width) + kvi_format_scale_bytes(format, width);
}

static void fill_window(kvi_plan_row *row, const kvi_config *c)
{
    row->kv_owner = KVI_NO_LAYER;
    row->select_owner = KVI_NO_LAYER;
    row->candidate_owner = KVI_NO_LAYER;
    row->window_tokens = c->window;
    row->window_format = KVCSA_FORMAT_FP8_E8M0_G32;
    row->window_bytes = row_bytes(row->window_format, c->head_dim);
    row->sink = 1;
}

static void fill_entries(kvi_plan_row *row, const kvi_config *c, uint32_t layer, const owners *at)
{
    row->kv_owner = at->kv;
    row->ratio = c->ratios[layer];
    row->pool_kind = row->ratio > 1 ? KVI_POOL_GATED : KVI_POOL_NONE;
    /* the half entry's key and gate rows in f32 */
    row->pending_bytes =
        row->ratio > 1 && at->kv == (int32_t)layer ? 2 * c->head_dim * (uint32_t)sizeof(float) : 0;
    row->entry_width = c->head_dim;
    row->entry_rotated = c->rope_dim;
    row->entry_format = KVCSA_FORMAT_FP4_E4M3_G16;
    row->entry_bytes = row_bytes(row->entry_format, row->entry_width);
    row->index_heads = c->index_heads;
    row->index_width = c->index_dim;
    row->index_format = KVCSA_FORMAT_FP4_E8M0_G32;
    row->index_bytes = row_bytes(row->index_format, row->index_width);
}

static void fill_selection(kvi_plan_row *row, const kvi_config *c, uint32_t layer, const owners *at)
{
    row->select_owner = at->select;
    row->select_entries = c->index_topk;
    if (c->kv_source[layer])
        row->select = KVCSA_SELECT_OWN;
    else if (c->index_source[layer])
        row->select = KVCSA_SELECT_REINDEX;
    else
        row->select = KVCSA_SELECT_INHERITED;
    if (c->candidate_source < 0 || !c->index_source[layer] || (int32_t)layer < c->candidate_source)
        return;
    row->candidates =
        (int32_t)layer == c->candidate_source ? KVCSA_CANDIDATES_SOURCE : KVCSA_CANDIDATES_CONSUMER;
    row->candidate_owner = c->candidate_source;
    row->candidate_blocks = c->candidate_blocks;
    row->candidate_block_entries = c->candidate_block_size;
}

kvcsa_status kvi_layer_plan_build(const kvi_config *c, uint32_t block_tokens,
                                  const kvcsa_allocator *a, kvi_plan *out, kvcsa_error *err)
{
    kvcsa_status st;
    owners       at = {KVI_NO_LAYER, KVI_NO_LAYER};

    memset(out, 0, sizeof *out);
    out->n_layers = c->n_layers;
    out->block_tokens = block_tokens ? block_tokens : DEFAULT_BLOCK_TOKENS;
    out->max_tokens = c->max_tokens;
    if (!(out->rows = kvi_zalloc(a, c->n_layers * sizeof *out->rows))) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "cache plan of %u layers", c->n_layers);
        goto fail;
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (c->kv_source[i])
            at.kv = (int32_t)i;
        if (c->index_source[i])
            at.select = (int32_t)i;
        fill_window(&out->rows[i], c);
        if (c->ratios[i] == 0)
            continue;
        fill_entries(&out->rows[i], c, i, &at);
        fill_selection(&out->rows[i], c, i, &at);
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
