/* The attention sublayer: projections around window, compressor, selection and attention. What a
 * layer does is read from its plan row. Source: docs/formats.md "Network"; DeepSeek-V4.1 report 2.2
 * - 2.4. */
#include <math.h>

#include "attn/attend.h"
#include "base/checked.h"
#include "base/status.h"
#include "index/indexer.h"
#include "net/net_int.h"

/* What the steps below share. */
typedef struct layer_view {
    kvi_net                 *net;
    const kvi_net_slice     *slices;
    kvi_exec                 exec;
    const kvi_plan_row      *row;
    const kvi_layer_weights *w;
    uint32_t                 layer;
    kvi_rotary               rotary;
    const kvi_kv_owner      *owner; /* of the entries; NULL where the layer reads its window only */
} layer_view;

static layer_view view_layer(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                             uint32_t layer)
{
    const kvcsa_model *model = net->model;
    layer_view         v = {.net = net,
                            .slices = slices,
                            .exec = *exec,
                            .row = &model->plan.rows[layer],
                            .w = &net->weights->layers[layer],
                            .layer = layer};

    v.exec.layer = layer;
    v.rotary = (kvi_rotary){.freqs = net->freqs +
                                     (v.row->ratio > 0) * (size_t)(model->config.rope_dim / 2),
                            .n_rotated = model->config.rope_dim};
    if (v.row->ratio)
        v.owner = kvi_kv_layout_owner(&model->layout, (uint32_t)v.row->kv_owner);
    return v;
}

/* Window row of every token; it is stored quantised, and read back so. */
static kvcsa_status make_window_rows(const layer_view *v, kvcsa_error *err)
{
    const kvi_config             *c = &v->net->model->config;
    kvi_net_buffers              *b = &v->net->b;
    const kvi_exec               *e = &v->exec;
    const size_t                  n = v->net->n_rows;
    const kvi_window_write_params write = {.x = b->row,
                                           .rows = v->net->host.chunks[v->layer],
                                           .x_stride = c->head_dim,
                                           .n_rows = n,
                                           .width = c->head_dim,
                                           .row_bytes = v->row->window_bytes};
    kvcsa_status                  st;

    if ((st = kvi_exec_linear(e, &v->w->wkv, b->x, b->row, n, e->flags, err)) != KVCSA_OK ||
        (st = kvi_exec_norm(e, v->w->kv_norm, b->row, n, c->head_dim, c->norm_eps, err)) !=
            KVCSA_OK ||
        (st = kvi_exec_rope(e, &v->rotary, b->row, b->meta.pos, n, 1, c->head_dim, 0, err)) !=
            KVCSA_OK ||
        (st = e->ops->window_write(e->dev, &write, err)) != KVCSA_OK)
        return st;
    kvi_exec_tap(e, KVI_TAP_WINDOW, b->row, n, c->head_dim);
    kvi_net_count_window(v->net, v->slices, v->layer);
    for (size_t i = 0; i < v->net->n_parts; i++) {
        kvi_net_part *part = &v->net->host.parts[i];

        part->chunk[v->layer] = (uint32_t)part->begin;
        part->n_window[v->layer] = (uint32_t)part->n_rows;
    }
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
    st = kvi_exec_rope(e, &v->rotary, b->q, b->meta.pos, n, c->n_heads, c->head_dim, 0, err);
    if (st == KVCSA_OK)
        kvi_exec_tap(e, KVI_TAP_QUERY, b->q, n, (size_t)c->n_heads * c->head_dim);
    return st;
}

/* The rows of slice i for the compressor. */
static kvi_compress_slice compress_slice(const layer_view *v, size_t i)
{
    const kvi_net_slice     *slice = &v->slices[i];
    const kvi_net_part      *part = &v->net->host.parts[i];
    const kvi_compress_slice c = {.pos = slice->pos + slice->n_rows - part->n_rows,
                                  .n_rows = part->n_rows,
                                  .kept = (float *)(void *)(part->raw + part->raw_at),
                                  .max_kept = part->raw_slots,
                                  .replay = slice->replay,
                                  .n_slots = kvi_net_entry_slots(v->net, slice, part->n_rows,
                                                                 v->row->ratio)};

    /* entries are made of all tokens: only a replay leaves rows out below the last owner */
    KVI_ASSERT(c.n_rows == 0 || c.replay || c.pos == slice->pos);
    return c;
}

static kvi_compress_group compress_group(const layer_view *v, const kvi_net_group *g)
{
    return (kvi_compress_group){.first = g->first,
                                .n = g->n,
                                .pending_off = v->net->host.parts[g->first].at.pending,
                                .pending_slots = v->slices[g->first].geom->pending_slots};
}

static kvcsa_status compress(const layer_view *v, kvcsa_error *err)
{
    kvi_net_buffers          *b = &v->net->b;
    kvi_net_host             *h = &v->net->host;
    const kvi_compress_params p = {.exec = v->exec,
                                   .copies = &v->net->copies,
                                   .row = v->row,
                                   .wkv = &v->w->comp_wkv,
                                   .wgate = &v->w->comp_wgate,
                                   .index_wk = &v->w->index_wk,
                                   .norm = v->w->comp_norm,
                                   .index_k_norm = v->w->index_k_norm,
                                   .rotary = v->rotary,
                                   .x = b->x,
                                   .x_spare = b->y,
                                   .k = b->k,
                                   .gate = b->gate,
                                   .latent = b->latent,
                                   .key = b->key,
                                   .entry_pos =
                                       kvi_net_of_ratio(v->net, b->meta.entry_pos, v->row->ratio),
                                   .turn_pos =
                                       kvi_net_of_ratio(v->net, b->meta.turn_pos, v->row->ratio),
                                   .tables = b->meta.slices,
                                   .rows = b->meta.slice_rows + v->layer * v->net->n_parts,
                                   .gathered = {h->meta.gathered, b->meta.gathered},
                                   .owner = v->owner,
                                   .slices = h->compress,
                                   .n_slices = v->net->n_parts,
                                   .groups = h->compress_groups,
                                   .n_groups = v->net->n_groups,
                                   .eps = v->net->model->config.norm_eps};
    kvcsa_status              st;

    for (size_t i = 0; i < p.n_slices; i++)
        h->compress[i] = compress_slice(v, i);
    for (size_t i = 0; i < p.n_groups; i++)
        h->compress_groups[i] = compress_group(v, &h->groups[i]);
    st = kvi_compress(&p, err);
    for (size_t i = 0; i < p.n_slices; i++)
        h->parts[i].n_raw[v->layer] = h->compress[i].n_kept;
    if (st == KVCSA_OK)
        kvi_net_count_entries(v->net, v->slices, v->layer);
    return st;
}

static kvcsa_status select_group(const layer_view *v, const kvi_net_group *g, kvcsa_error *err)
{
    const kvi_plan_row     *row = v->row;
    const kvi_net          *net = v->net;
    const kvi_net_buffers  *b = &net->b;
    const kvi_net_meta     *meta[2] = {&net->host.meta, &b->meta};
    const uint32_t          ratio = row->ratio;
    const size_t            heads = row->index_heads;
    const kvi_select_params p = {
        .exec = v->exec,
        .row = row,
        .owner = v->owner,
        .of = kvi_net_slices(net, g, v->layer),
        .queries = b->iq + g->begin * heads * row->index_width,
        .codes = b->codes,
        .scales = b->iscale,
        .weights = b->iweight + g->begin * heads,
        .visible = kvi_net_of_ratio(net, meta[0]->n_visible, ratio) + g->begin,
        .n_visible = kvi_net_of_ratio(net, meta[1]->n_visible, ratio) + g->begin,
        .scores = b->scores,
        .n_scores = net->n_scores,
        .blocks = b->blocks + g->begin * row->candidate_blocks,
        .n_blocks = b->n_blocks + g->begin,
        .ids = b->ids + g->begin * row->select_entries,
        .n_rows = g->n_rows,
        .limits = g->n == 1 ? v->slices[g->first].limits : NULL,
        .hidden = net->host.parts[g->first].hidden,
        .work = net->host.work + g->first,
        .tally = kvi_net_tally(net, b->tally, g->first, v->layer) + KVI_TALLY_BLOCKS,
        .tally_stride = net->model->plan.n_layers * (size_t)KVI_TALLY_SIZE};

    return kvi_select(&p, err);
}

/* Index queries and head weights, then the selection; later layers inherit net->b.ids and
 * net->b.blocks. */
static kvcsa_status select_entries(const layer_view *v, kvcsa_error *err)
{
    const kvi_config *c = &v->net->model->config;
    kvi_net_buffers  *b = &v->net->b;
    const kvi_exec   *e = &v->exec;
    const size_t      n = v->net->n_rows;
    kvcsa_status      st;

    if ((st = kvi_exec_linear(e, &v->w->index_wq_b, b->qr, b->iq, n, e->flags, err)) != KVCSA_OK ||
        (st = kvi_exec_rope(e, &v->rotary, b->iq, b->meta.pos, n, c->index_heads, c->index_dim, 0,
                            err)) != KVCSA_OK ||
        (st = kvi_exec_linear(e, &v->w->index_weights, b->x, b->iweight, n, e->flags, err)) !=
            KVCSA_OK)
        return st;
    kvi_exec_tap(e, KVI_TAP_INDEX_QUERY, b->iq, n, (size_t)c->index_heads * c->index_dim);
    kvi_exec_tap(e, KVI_TAP_INDEX_WEIGHT, b->iweight, n, c->index_heads);
    for (size_t i = 0; i < v->net->n_parts; i++)
        v->net->host.work[i] = kvi_net_work(v->slices, i, v->layer);
    for (size_t i = 0; i < v->net->n_groups && st == KVCSA_OK; i++)
        st = select_group(v, &v->net->host.groups[i], err);
    v->net->n_ids = v->row->select_entries;
    if (v->row->candidates == KVCSA_CANDIDATES_SOURCE)
        v->net->n_block_ids = v->row->candidate_blocks;
    return st;
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

/* Softmax over window and selected entries of a group. */
static kvcsa_status attend_group(const layer_view *v, const kvi_net_group *g, kvcsa_error *err)
{
    const kvi_config     *c = &v->net->model->config;
    const kvi_net_slice  *slice = &v->slices[g->first];
    kvi_net_buffers      *b = &v->net->b;
    const bool            mass = slice->mass && v->row->ratio;
    const size_t          heads = g->begin * c->n_heads * c->head_dim;
    const kvi_attend_view view = {
        .exec = v->exec,
        .row = v->row,
        .q = b->q + heads,
        .out = b->o + heads,
        .pos = b->meta.pos + g->begin,
        .geom = slice->geom,
        .page_off = v->net->host.parts[g->first].at.page,
        .chunk = v->net->host.chunks[v->layer],
        .sink = v->w->attn_sink,
        .ids = b->ids + g->begin * v->net->n_ids,
        .mass = mass ? b->mass : NULL,
        .owner = v->owner,
        .of = kvi_net_slices(v->net, g, v->layer),
        .n_rows = g->n_rows,
        .n_heads = c->n_heads,
        .width = c->head_dim};
    kvcsa_status st;

    if ((st = kvi_attend(&view, err)) != KVCSA_OK ||
        (st = kvi_net_count_attention(v->net, &v->exec, v->slices, g, v->layer, err)) != KVCSA_OK)
        return st;
    return mass ? kvi_net_add_mass(v->net, v->slices, g->first, v->layer, err) : KVCSA_OK;
}

static kvcsa_status attend(const layer_view *v, kvcsa_error *err)
{
    const kvi_config *c = &v->net->model->config;
    kvi_net_buffers  *b = &v->net->b;
    kvcsa_status      st = KVCSA_OK;

    for (size_t i = 0; i < v->net->n_groups && st == KVCSA_OK; i++)
        st = attend_group(v, &v->net->host.groups[i], err);
    if (st == KVCSA_OK)
        kvi_exec_tap(&v->exec, KVI_TAP_ATTENTION, b->o, v->net->n_rows,
                     (size_t)c->n_heads * c->head_dim);
    /* keys are values too, so the result still carries the keys' rotation: undo it at the query's
     * position */
    if (st == KVCSA_OK)
        st = kvi_exec_rope(&v->exec, &v->rotary, b->o, b->meta.pos, v->net->n_rows, c->n_heads,
                           c->head_dim, 1, err);
    return st;
}

kvcsa_status kvi_attention(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                           uint32_t layer, kvcsa_error *err)
{
    const layer_view v = view_layer(net, exec, slices, layer);
    kvcsa_status     st = make_window_rows(&v, err);

    if (st == KVCSA_OK && kvi_plan_owns(&net->model->plan, layer))
        st = compress(&v, err);
    /* window rows are wanted from first_rows[layer] on, queries only from the next one on */
    if (st == KVCSA_OK)
        st = kvi_net_drop_rows(net, slices, layer + 1, err);
    if (st != KVCSA_OK || net->n_rows == 0)
        return st;
    st = make_queries(&v, err);
    if (st == KVCSA_OK &&
        (v.row->select == KVCSA_SELECT_OWN || v.row->select == KVCSA_SELECT_REINDEX))
        st = select_entries(&v, err);
    if (st == KVCSA_OK)
        st = attend(&v, err);
    return st == KVCSA_OK ? project_out(&v, err) : st;
}
