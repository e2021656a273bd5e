#include "net/net_int.h"

#include "attn/window.h"
#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"
#include "index/indexer.h"
#include "plan/plan_cost.h"

/* Hands out aligned pieces of a buffer; with base NULL it only counts. */
typedef struct cutter {
    uint8_t *base;
    size_t   used;
    bool     ok;
} cutter;

static void *cut(cutter *c, size_t count, size_t elem)
{
    size_t bytes = 0;
    size_t end = 0;
    void  *p = c->base ? c->base + c->used : NULL;

    if (!kvi_mul_size(count, elem, &bytes) || !kvi_add_size(bytes, 63, &end) ||
        !kvi_add_size(c->used, end & ~(size_t)63, &end)) {
        c->ok = false;
        return NULL;
    }
    c->used = end;
    return p;
}

#define CUT(field, count) (b->field = cut(c, (count), sizeof *b->field))

/* Widths that differ between layers are taken at their largest. */
typedef struct widths {
    size_t select, blocks, scores, kept, window_row, n_columns;
} widths;

static widths largest(const kvcsa_model *model, uint64_t n_tokens, size_t n, bool tapped)
{
    widths w = {0};

    for (uint32_t l = 0; l < model->plan.n_layers; l++) {
        const kvi_plan_row *r = &model->plan.rows[l];

        w.window_row = kvi_max_size(w.window_row, r->window_bytes);
        w.kept += kvi_window_kept(r, n) * r->window_bytes;
        if (r->ratio == 0)
            continue;
        w.select = kvi_max_size(w.select, r->select_entries);
        w.blocks = kvi_max_size(w.blocks, r->candidate_blocks);
        if (r->select == KVCSA_SELECT_OWN || r->select == KVCSA_SELECT_REINDEX)
            w.scores = kvi_max_size(w.scores, kvi_select_scratch(r, n_tokens / r->ratio, n));
        if (tapped)
            w.scores = kvi_max_size(w.scores, n_tokens / r->ratio);
    }
    w.n_columns = model->config.n_engram_layers ? model->engram.n_columns : 0;
    return w;
}

static void cut_all(cutter *c, const kvcsa_model *model, const kvi_net_run_params *p,
                    kvi_net_buffers *b)
{
    const kvi_config *cfg = &model->config;
    const size_t      n = p->n_rows;
    const size_t      m = cfg->hc_copies;
    const size_t      D = cfg->hidden_size;
    const size_t      d = cfg->head_dim;
    const size_t      heads = (size_t)cfg->n_heads * d;
    const size_t      index = (size_t)cfg->index_heads * cfg->index_dim;
    const widths      w = largest(model, p->state.pos + n, n, p->exec.tap != NULL);

    CUT(h, n * m * D);
    CUT(x, n * D);
    CUT(y, n * D);
    CUT(pre[0], n * m);
    CUT(pre[1], n * m);
    CUT(post, n * m);
    CUT(comb, n * m * m);
    CUT(proj, n * (2 + m) * m);
    CUT(pos, n);
    CUT(n_visible, n);
    CUT(qr, n * cfg->q_lora_rank);
    CUT(q, n * heads);
    CUT(o, n * heads);
    CUT(z, n * cfg->o_groups * cfg->o_lora_rank);
    CUT(row, n * d);
    CUT(chunk, n * w.window_row);
    CUT(kept, w.kept);
    CUT(k, (n + 1) * d);
    CUT(gate, (n + 1) * d);
    CUT(latent, n * d);
    CUT(key, n * cfg->index_dim);
    CUT(entry_pos, n);
    CUT(pending, kvi_plan_pending_bytes(&model->plan) / sizeof(float));
    CUT(iq, n * index);
    CUT(codes, n * index);
    CUT(iscale, n * (index / 32));
    CUT(iweight, n * cfg->index_heads);
    CUT(ids, n * w.select);
    b->select_stride = w.select;
    CUT(blocks, n * w.blocks);
    b->blocks_stride = w.blocks;
    CUT(n_blocks, n);
    CUT(scores, w.scores);
    b->n_scores = w.scores;
    CUT(router, n * cfg->n_experts);
    CUT(experts, n * cfg->n_experts_per_token);
    CUT(eweight, n * cfg->n_experts_per_token);
    CUT(erows, n * w.n_columns);
    CUT(embed, n * w.n_columns * cfg->engram_head_dim);
    CUT(ekv, w.n_columns ? n * (m + 1) * D : 0);
    CUT(live, model->plan.n_layers);
    CUT(logits, (size_t)p->n_logit_rows * cfg->vocab_size);
}

kvcsa_status kvi_net_prepare(kvi_net *net, const kvi_net_run_params *p, kvcsa_error *err)
{
    cutter count = {.ok = true};
    cutter c = {.ok = true};

    cut_all(&count, net->model, p, &net->b);
    if (!count.ok || !kvi_buf_reserve(&net->allocator, &net->memory, 1, 0, count.used)) {
        net->b = (kvi_net_buffers){0};
        return kvi_fail(err, KVCSA_ERR_NOMEM, "workspace of %zu bytes for %u rows", count.used,
                        p->n_rows);
    }
    c.base = net->memory.data;
    cut_all(&c, net->model, p, &net->b);
    return KVCSA_OK;
}
