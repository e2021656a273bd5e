/* The attention sublayer: projections around window, compressor, selection and attention. What a
 * layer does is read from its plan row. Source: docs/formats.md "Network"; DeepSeek-V4.1 report 2.2
 * - 2.4. */
#include <math.h>
#include <string.h>

#include "attn/attend.h"
#include "attn/compressor.h"
#include "attn/window.h"
#include "base/checked.h"
#include "format/dtype.h"
#include "index/indexer.h"
#include "net/net_int.h"

/* What the steps below share. */
typedef struct layer_view {
    kvi_net                  *net;
    const kvi_net_run_params *p;
    kvi_exec                  exec;
    const kvi_plan_row       *row;
    const kvi_layer_weights  *w;
    uint32_t                  layer;
    kvi_rotary                rotary;
    kvi_entries    entries; /* of the kv owner; owner NULL where the layer reads its window only */
    uint8_t       *ring, *kept;
    kvi_layer_offs offs;
} layer_view;

static layer_view view_layer(kvi_net *net, const kvi_net_run_params *p, uint32_t layer)
{
    const kvcsa_model *model = net->model;
    const kvi_plan    *plan = &model->plan;
    layer_view         v = {.net = net,
                            .p = p,
                            .row = &plan->rows[layer],
                            .w = &model->weights.layers[layer],
                            .layer = layer,
                            .exec = p->exec};

    v.exec.layer = layer;
    v.rotary =
        (kvi_rotary){.freqs = net->freqs[v.row->ratio > 0], .n_rotated = model->config.rope_dim};
    for (uint32_t l = 0; l < layer; l++)
        kvi_layer_offs_pass(&v.offs, &plan->rows[l], p->n_rows);
    v.ring = p->state.windows + v.offs.ring;
    v.kept = net->b.kept + v.offs.kept;
    if (v.row->ratio)
        v.entries =
            (kvi_entries){.owner = kvi_kv_layout_owner(&model->layout, (uint32_t)v.row->kv_owner),
                          .index_parts = p->state.index_parts,
                          .main_parts = p->state.main_parts};
    return v;
}

/* Window row of every token; it is stored quantised, and read back so. */
static kvcsa_status make_window_rows(const layer_view *v, kvcsa_error *err)
{
    const kvi_config             *c = &v->net->model->config;
    kvi_net_buffers              *b = &v->net->b;
    const kvi_exec               *e = &v->exec;
    const size_t                  n = v->net->n_rows;
    const size_t                  n_kept = kvi_window_kept(v->row, n);
    const kvi_window_write_params write = {.x = b->row,
                                           .rows = b->chunk,
                                           .x_stride = c->head_dim,
                                           .n_rows = n,
                                           .width = c->head_dim,
                                           .row_bytes = v->row->window_bytes};
    kvcsa_status                  st;

    if ((st = kvi_exec_linear(e, &v->w->wkv, b->x, b->row, n, e->flags, err)) != KVCSA_OK ||
        (st = kvi_exec_norm(e, v->w->kv_norm, b->row, n, c->head_dim, c->norm_eps, err)) !=
            KVCSA_OK ||
        (st = kvi_exec_rope(e, &v->rotary, b->row, b->pos, n, 1, c->head_dim, 0, err)) !=
            KVCSA_OK ||
        (st = e->ops->window_write(e->dev, &write, err)) != KVCSA_OK)
        return st;
    kvi_exec_tap(e, KVI_TAP_WINDOW, b->row, n, c->head_dim);
    memcpy(v->kept, b->chunk + (n - n_kept) * v->row->window_bytes, n_kept * v->row->window_bytes);
    b->live[v->layer] = (uint32_t)n;
    return KVCSA_OK;
}

static kvcsa_status make_queries(const layer_view *v, kvcsa_error *err)
{
    const kvi_config *c = &v->net->model->config;
    kvi_net_buffers  *b = &v->net->b;
    const kvi_exec   *e = &v->exec;
    const size_t      n = v->net->n_rows;
    kvcsa_status      st;

    if ((st = kvi_exec_linear(e, &v->w->wq_a, b->x, b->qr, n, e->flags, err)) != KVCSA_OK ||
        (st = kvi_exec_norm(e, v->w->q_norm, b->qr, n, c->q_lora_rank, c->norm_eps, err)) !=
            KVCSA_OK ||
        (st = kvi_exec_linear(e, &v->w->wq_b, b->qr, b->q, n, e->flags, err)) != KVCSA_OK)
        return st;
    return kvi_exec_rope(e, &v->rotary, b->q, b->pos, n, c->n_heads, c->head_dim, 0, err);
}

static kvcsa_status compress(const layer_view *v, kvcsa_error *err)
{
    const kvi_config         *c = &v->net->model->config;
    kvi_net_buffers          *b = &v->net->b;
    const kvi_compress_params p = {.exec = v->exec,
                                   .row = v->row,
                                   .wkv = &v->w->comp_wkv,
                                   .wgate = &v->w->comp_wgate,
                                   .index_wk = &v->w->index_wk,
                                   .norm = v->w->comp_norm,
                                   .index_k_norm = v->w->index_k_norm,
                                   .rotary = v->rotary,
                                   .to = v->entries,
                                   .x = b->x,
                                   .pending = v->p->state.pending + v->offs.pending,
                                   .pending_out = b->pending + v->offs.pending,
                                   .k = b->k,
                                   .gate = b->gate,
                                   .latent = b->latent,
                                   .key = b->key,
                                   .entry_pos = b->entry_pos,
                                   .pos = b->pos[0],
                                   .replay = v->p->replay,
                                   .n_rows = v->net->n_rows,
                                   .eps = c->norm_eps};

    return kvi_compress(&p, err);
}

/* Index queries and head weights, then the selection; later layers inherit net->b.ids and
 * net->b.blocks. */
static kvcsa_status select_entries(const layer_view *v, kvcsa_error *err)
{
    const kvi_config *c = &v->net->model->config;
    kvi_net_buffers  *b = &v->net->b;
    const kvi_exec   *e = &v->exec;
    const size_t      n = v->net->n_rows;
    const float scale = (float)(1.0 / sqrt((double)c->index_dim) / sqrt((double)c->index_heads));
    const kvi_select_params p = {.exec = *e,
                                 .row = v->row,
                                 .keys = v->entries,
                                 .queries = b->iq,
                                 .codes = b->codes,
                                 .scales = b->iscale,
                                 .weights = b->iweight,
                                 .n_visible = b->n_visible,
                                 .scores = b->scores,
                                 .n_scores = b->n_scores,
                                 .blocks = b->blocks,
                                 .n_blocks = b->n_blocks,
                                 .ids = b->ids,
                                 .n_rows = n};
    kvcsa_status            st;

    if ((st = kvi_exec_linear(e, &v->w->index_wq_b, b->qr, b->iq, n, e->flags, err)) != KVCSA_OK ||
        (st = kvi_exec_rope(e, &v->rotary, b->iq, b->pos, n, c->index_heads, c->index_dim, 0,
                            err)) != KVCSA_OK ||
        (st = kvi_exec_linear(e, &v->w->index_weights, b->x, b->iweight, n, e->flags, err)) !=
            KVCSA_OK)
        return st;
    for (size_t i = 0; i < n * c->index_heads; i++) {
        b->iweight[i] *= scale;
        if (e->flags & KVI_OP_ROUND_BF16)
            b->iweight[i] = kvi_round_bf16(b->iweight[i]);
    }
    for (size_t i = 0; i < n; i++)
        b->n_visible[i] = (b->pos[i] + 1) / v->row->ratio;
    return kvi_select(&p, err);
}

/* Grouped output projection: every group of heads through its own rows of wo_a, then all through
 * wo_b. */
static kvcsa_status project_out(const layer_view *v, kvcsa_error *err)
{
    const kvi_config *c = &v->net->model->config;
    kvi_net_buffers  *b = &v->net->b;
    const kvi_exec   *e = &v->exec;
    const size_t      group = (size_t)c->n_heads * c->head_dim / c->o_groups;

    for (uint32_t g = 0; g < c->o_groups; g++) {
        const kvi_linear_params p = {
            .w = &v->w->wo_a,
            .row0 = g * c->o_lora_rank,
            .n_out = c->o_lora_rank,
            .x = b->o + g * group,
            .y = b->z + (size_t)g * c->o_lora_rank,
            .x_stride = group * c->o_groups,
            .y_stride = (size_t)c->o_groups * c->o_lora_rank,
            .n_rows = v->net->n_rows,
            .flags =
                e->flags & ~(uint32_t)KVI_OP_ACT_QUANT}; /* the official code keeps wo_a in bf16 */
        const kvcsa_status st = e->ops->linear(e->dev, &p, err);

        if (st != KVCSA_OK)
            return st;
    }
    return kvi_exec_linear(e, &v->w->wo_b, b->z, b->y, v->net->n_rows, e->flags, err);
}

/* Softmax over window and selected entries; chunk_pos: of the first window row made here. */
static kvcsa_status attend(const layer_view *v, uint64_t chunk_pos, kvcsa_error *err)
{
    const kvi_config     *c = &v->net->model->config;
    kvi_net_buffers      *b = &v->net->b;
    const kvi_attend_view view = {
        .exec = v->exec,
        .row = v->row,
        .q = b->q,
        .out = b->o,
        .pos = b->pos,
        .ring = v->ring,
        .chunk = b->chunk,
        .sink = v->w->attn_sink,
        .ids = b->ids,
        .entries = v->entries,
        .rotary = v->rotary,
        .chunk_pos = chunk_pos,
        .floor = kvi_max_size(v->p->state.floors[v->layer], v->p->first_rows[v->layer]),
        .n_rows = v->net->n_rows,
        .n_heads = c->n_heads,
        .width = c->head_dim};

    return kvi_attend(&view, err);
}

kvcsa_status kvi_attention(kvi_net *net, const kvi_net_run_params *p, uint32_t layer,
                           kvcsa_error *err)
{
    const layer_view v = view_layer(net, p, layer);
    const uint64_t   chunk_pos = net->b.pos[0];
    kvcsa_status     st = make_window_rows(&v, err);

    if (st == KVCSA_OK && kvi_plan_owns(&net->model->plan, layer))
        st = compress(&v, err);
    if (st != KVCSA_OK)
        return st;
    /* window rows are wanted from first_rows[layer] on, queries only from the next one on */
    kvi_net_drop_rows(net, p->first_rows[layer + 1]);
    if (net->n_rows == 0)
        return KVCSA_OK;
    st = make_queries(&v, err);
    if (st == KVCSA_OK &&
        (v.row->select == KVCSA_SELECT_OWN || v.row->select == KVCSA_SELECT_REINDEX))
        st = select_entries(&v, err);
    if (st == KVCSA_OK)
        st = attend(&v, chunk_pos, err);
    return st == KVCSA_OK ? project_out(&v, err) : st;
}
