/* Engram: n-gram rows of a large table, gated into the residual streams. Source: docs/formats.md
 * "Engram". */
#include <string.h>

#include "net/net_int.h"

/* Rows of a table that has stayed with the host: gathered there, and brought over as a small table
 * of their own, whose rows are wanted in turn. */
static kvcsa_status bring_rows(kvi_net *net, const kvi_layer_weights *w, kvcsa_error *err)
{
    const size_t      n_columns = net->model->engram.n_columns;
    const size_t      e = (size_t)w->engram_index;
    const size_t      n = net->n_rows * n_columns;
    const size_t      off = net->taped ? e * net->table_bytes : 0;
    const uint64_t   *rows = net->host.meta.erows + e * net->n_all * n_columns;
    const kvi_matrix *table = &w->engram_table;
    const size_t      width = table->cols;
    const size_t      n_scales = width / 32;
    uint8_t          *values = net->host.etable + off;
    uint8_t          *scales = values + n * width;
    kvi_matrix       *out = &net->host.tables[e];

    for (size_t i = 0; i < n; i++) {
        memcpy(values + i * width, table->data + rows[i] * width, width);
        memcpy(scales + i * n_scales, table->scale + rows[i] * n_scales, n_scales);
    }
    *out = *table;
    out->data = net->b.etable + off;
    out->scale = out->data + n * width;
    out->rows = (uint32_t)n;
    return kvi_post_put(&net->post, &net->memory, net->b.etable + off, values,
                        n * (width + n_scales), err);
}

kvcsa_status kvi_engram_bring_all(kvi_net *net, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    for (uint32_t l = 0; l < net->model->plan.n_layers && st == KVCSA_OK; l++)
        if (net->weights->layers[l].engram_on_host)
            st = bring_rows(net, &net->weights->layers[l], err);
    return st;
}

kvcsa_status kvi_engram(kvi_net *net, const kvi_exec *e, uint32_t layer, kvcsa_error *err)
{
    const kvi_config            *c = &net->model->config;
    const kvi_layer_weights     *w = &net->weights->layers[layer];
    const size_t                 n_columns = net->model->engram.n_columns;
    const size_t                 at = (size_t)w->engram_index * net->n_all * n_columns;
    kvi_net_buffers             *b = &net->b;
    kvi_embed_params             embed = {.table = &w->engram_table,
                                          .ids = b->meta.erows + at,
                                          .y = b->embed,
                                          .y_stride = c->engram_head_dim,
                                          .n_rows = net->n_rows * n_columns,
                                          .flags = e->flags};
    const kvi_engram_gate_params gate = {.h = b->h,
                                         .kv = b->ekv,
                                         .qk = w->engram_qk,
                                         .n_rows = net->n_rows,
                                         .copies = c->hc_copies,
                                         .width = c->hidden_size,
                                         .eps = c->norm_eps,
                                         .flags = e->flags};
    kvcsa_status                 st = KVCSA_OK;

    if (w->engram_on_host) {
        st = net->taped ? KVCSA_OK : bring_rows(net, w, err);
        embed.table = &net->host.tables[w->engram_index];
        embed.ids = b->meta.in_turn;
    }
    if (st != KVCSA_OK || (st = e->ops->embed(e->dev, &embed, err)) != KVCSA_OK ||
        (st = kvi_exec_linear(e, &w->engram_wkv, b->embed, b->ekv, net->n_rows, e->flags, err)) !=
            KVCSA_OK)
        return st;
    return e->ops->engram_gate(e->dev, &gate, err);
}
