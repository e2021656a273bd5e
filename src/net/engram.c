/* Engram: n-gram rows of a large table, gated into the residual streams. Source: docs/formats.md
 * "Engram". */
#include "net/net_int.h"

/* Table rows of every token: they depend on token ids alone. */
static void hash_rows(const kvi_net *net, const kvi_net_slice *slice, const kvi_net_part *part,
                      uint32_t engram_index)
{
    const kvcsa_model *model = net->model;
    const uint32_t     ngram = model->engram.ngram;
    uint32_t           history[KVI_MAX_NGRAM];

    for (size_t i = part->begin; i < part->begin + part->n_rows; i++) {
        const uint64_t pos = net->b.pos[i];
        const int32_t *newest = slice->tokens + (pos - slice->pos);
        uint32_t       n = 0;

        for (; n < ngram && n <= pos; n++)
            history[n] = model->token_map[newest[-(ptrdiff_t)n]];
        kvi_engram_rows(&model->engram, engram_index, history, n,
                        net->b.erows + i * model->engram.n_columns);
    }
}

kvcsa_status kvi_engram(kvi_net *net, const kvi_exec *e, const kvi_net_slice *slices,
                        uint32_t layer, kvcsa_error *err)
{
    const kvi_config            *c = &net->model->config;
    const kvi_layer_weights     *w = &net->model->weights.layers[layer];
    kvi_net_buffers             *b = &net->b;
    const kvi_embed_params       embed = {.table = &w->engram_table,
                                          .ids = b->erows,
                                          .y = b->embed,
                                          .y_stride = c->engram_head_dim,
                                          .n_rows = net->n_rows * net->model->engram.n_columns,
                                          .flags = e->flags};
    const kvi_engram_gate_params gate = {.h = b->h,
                                         .kv = b->ekv,
                                         .qk = w->engram_qk,
                                         .n_rows = net->n_rows,
                                         .copies = c->hc_copies,
                                         .width = c->hidden_size,
                                         .eps = c->norm_eps,
                                         .flags = e->flags};
    kvcsa_status                 st;

    for (size_t i = 0; i < net->n_parts; i++)
        hash_rows(net, &slices[i], &b->parts[i], (uint32_t)w->engram_index);
    if ((st = e->ops->embed(e->dev, &embed, err)) != KVCSA_OK ||
        (st = kvi_exec_linear(e, &w->engram_wkv, b->embed, b->ekv, net->n_rows, e->flags, err)) !=
            KVCSA_OK)
        return st;
    return e->ops->engram_gate(e->dev, &gate, err);
}
