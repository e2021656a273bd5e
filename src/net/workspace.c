#include "net/net_int.h"

#include "base/checked.h"
#include "base/status.h"
#include "index/indexer.h"
#include "plan/plan_cost.h"

#include <string.h>

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

/* What differs between layers or slices, at its largest or in sum. */
typedef struct extent {
    size_t rows;       /* of all slices */
    size_t slice_rows; /* of the longest */
    size_t logit_rows;
    size_t kept, raw; /* bytes that wait for the commit */
    size_t select, blocks, scores, window_row, n_columns;
    size_t mass_rows;  /* of the longest that counts it */
} extent;

/* Rows of a slice that may have to wait for the commit, of one layer. */
static kvi_window_geom kept_of(const kvi_net_slice *slice)
{
    const kvi_window_geom *g = slice->geom;

    return (kvi_window_geom){.page_rows = (uint32_t)kvi_window_kept(g, slice->n_rows),
                             .pending_slots =
                                 (uint32_t)kvi_min_size(g->pending_slots, slice->n_rows)};
}

static size_t scores_of(const kvi_plan_row *r, const kvi_net_slice *slice, bool tapped)
{
    const uint64_t n_entries = (slice->pos + slice->n_rows) / r->ratio;
    size_t         n = 0;

    if (r->select == KVCSA_SELECT_OWN || r->select == KVCSA_SELECT_REINDEX)
        n = kvi_select_scratch(r, n_entries, slice->n_rows);
    return tapped ? kvi_max_size(n, n_entries) : n;
}

static extent measure(const kvcsa_model *model, const kvi_net_slice *slices, size_t n_slices,
                      bool tapped)
{
    const kvi_plan *plan = &model->plan;
    extent          x = {.n_columns = model->config.n_engram_layers ? model->engram.n_columns : 0};
    size_t          row_bytes = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *r = &plan->rows[l];

        x.window_row = kvi_max_size(x.window_row, r->window_bytes);
        row_bytes += r->window_bytes;
        if (r->ratio == 0)
            continue;
        x.select = kvi_max_size(x.select, r->select_entries);
        x.blocks = kvi_max_size(x.blocks, r->candidate_blocks);
        for (size_t i = 0; i < n_slices; i++)
            x.scores = kvi_max_size(x.scores, scores_of(r, &slices[i], tapped));
    }
    for (size_t i = 0; i < n_slices; i++) {
        const kvi_window_geom kept = kept_of(&slices[i]);

        x.rows += slices[i].n_rows;
        x.slice_rows = kvi_max_size(x.slice_rows, slices[i].n_rows);
        if (slices[i].mass)
            x.mass_rows = kvi_max_size(x.mass_rows, slices[i].n_rows);
        x.logit_rows += slices[i].n_logit_rows;
        x.kept += kept.page_rows * row_bytes;
        x.raw += kept.pending_slots * (size_t)kvi_plan_pending_bytes(plan);
    }
    return x;
}

static void cut_all(cutter *c, const kvcsa_model *model, const extent *x, size_t n_slices,
                    kvi_net_buffers *b)
{
    const kvi_config *cfg = &model->config;
    const size_t      n = x->rows;
    const size_t      m = cfg->hc_copies;
    const size_t      D = cfg->hidden_size;
    const size_t      d = cfg->head_dim;
    const size_t      heads = (size_t)cfg->n_heads * d;
    const size_t      index = (size_t)cfg->index_heads * cfg->index_dim;

    CUT(parts, n_slices);
    CUT(counts, n_slices * 2 * model->plan.n_layers);
    CUT(compress, n_slices);
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
    CUT(chunk, n * x->window_row);
    CUT(kept, x->kept);
    CUT(raw, x->raw / sizeof(float));
    CUT(k, (n + n_slices) * d);
    CUT(gate, (n + n_slices) * d);
    CUT(latent, n * d);
    CUT(key, n * cfg->index_dim);
    CUT(entry_pos, n);
    CUT(iq, n * index);
    CUT(codes, x->slice_rows * index);
    CUT(iscale, x->slice_rows * (index / 32));
    CUT(iweight, n * cfg->index_heads);
    CUT(ids, n * x->select);
    CUT(blocks, n * x->blocks);
    CUT(n_blocks, n);
    CUT(scores, x->scores);
    b->n_scores = x->scores;
    CUT(mass, x->mass_rows * x->select);
    CUT(router, n * cfg->n_experts);
    CUT(experts, n * cfg->n_experts_per_token);
    CUT(eweight, n * cfg->n_experts_per_token);
    CUT(erows, n * x->n_columns);
    CUT(embed, n * x->n_columns * cfg->engram_head_dim);
    CUT(ekv, x->n_columns ? n * (m + 1) * D : 0);
    CUT(logits, x->logit_rows * cfg->vocab_size);
}

static void fill_parts(kvi_net *net, const kvi_net_slice *slices)
{
    const kvi_plan  *plan = &net->model->plan;
    kvi_net_buffers *b = &net->b;
    uint8_t         *window = b->kept;
    uint8_t         *raw = (uint8_t *)b->raw;

    net->n_rows = 0;
    memset(b->counts, 0, net->n_parts * 2 * plan->n_layers * sizeof *b->counts);
    for (size_t i = 0; i < net->n_parts; i++) {
        const kvi_window_geom kept = kept_of(&slices[i]);
        uint32_t             *counts = b->counts + i * 2 * plan->n_layers;
        kvi_window_offs       all = {0};

        for (uint32_t l = 0; l < plan->n_layers; l++)
            kvi_window_offs_pass(&all, &kept, &plan->rows[l]);
        b->parts[i] = (kvi_net_part){.begin = net->n_rows,
                                     .n_rows = slices[i].n_rows,
                                     .kept = kept,
                                     .window = window,
                                     .raw = raw,
                                     .n_window = counts,
                                     .n_raw = counts + plan->n_layers};
        net->n_rows += slices[i].n_rows;
        window += all.page;
        raw += all.pending;
    }
}

kvcsa_status kvi_net_prepare(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                             size_t n_slices, kvcsa_error *err)
{
    const extent x = measure(net->model, slices, n_slices, exec->tap != NULL);
    cutter       count = {.ok = true};
    cutter       c = {.ok = true};

    net->n_rows = 0;
    net->n_parts = 0;
    cut_all(&count, net->model, &x, n_slices, &net->b);
    if (count.ok && count.used > net->memory.cap)
        kvi_net_wipe(net); /* what is given back holds nothing of anybody's text */
    if (!count.ok || !kvi_buf_reserve(&net->allocator, &net->memory, 1, 0, count.used)) {
        net->b = (kvi_net_buffers){0};
        return kvi_fail(err, KVCSA_ERR_NOMEM, "workspace of %zu bytes for %zu rows", count.used,
                        x.rows);
    }
    c.base = net->memory.data;
    cut_all(&c, net->model, &x, n_slices, &net->b);
    net->b.n_ids = 0;
    net->b.n_block_ids = 0;
    net->n_parts = n_slices;
    fill_parts(net, slices);
    return KVCSA_OK;
}
