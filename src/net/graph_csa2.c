/* DeepSeek-V4.1's order of operators: embedding, layers (Engram, attention site, feed-forward
 * site), head.
 *
 * The residual is hc_copies streams. A site's input is a weighted sum of them; the weights come
 * from the site before ("single pass"): attention uses those of the previous layer's feed-forward
 * site, feed-forward those of this layer's attention site, the head those of the last. Source:
 * docs/formats.md "Network". */
#include <string.h>

#include "attn/window.h"
#include "base/alloc.h"
#include "base/status.h"
#include "net/net_int.h"
#include "net/rope.h"

kvcsa_status kvi_net_create(const kvcsa_model *model, const kvcsa_allocator *a, kvi_net **out,
                            kvcsa_error *err)
{
    const size_t half = model->config.rope_dim / 2;
    kvi_net     *net = kvi_zalloc(a, sizeof *net);

    *out = NULL;
    if (!net)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "network state of %zu bytes", sizeof *net);
    net->model = model;
    net->allocator = *a;
    for (int i = 0; i < 2; i++) {
        if (!(net->freqs[i] = kvi_alloc(a, half * sizeof(float)))) {
            kvi_net_destroy(net);
            return kvi_fail(err, KVCSA_ERR_NOMEM, "rotation table of %zu floats", half);
        }
        kvi_rope_freqs(&model->config, i, net->freqs[i]);
    }
    *out = net;
    return KVCSA_OK;
}

void kvi_net_destroy(kvi_net *net)
{
    if (!net)
        return;

    const kvcsa_allocator a = net->allocator;

    for (int i = 0; i < 2; i++)
        kvi_free(&a, net->freqs[i], net->model->config.rope_dim / 2 * sizeof(float));
    kvi_buf_free(&a, &net->memory, 1);
    kvi_free(&a, net, sizeof *net);
}

const float *kvi_net_logits(const kvi_net *net)
{
    return net->b.logits;
}

uint64_t kvi_net_workspace_bytes(const kvi_net *net)
{
    return net->memory.cap;
}

static void move_up(void *rows, size_t row_bytes, size_t n_drop, size_t n_keep)
{
    memmove(rows, (uint8_t *)rows + n_drop * row_bytes, n_keep * row_bytes);
}

void kvi_net_drop_rows(kvi_net *net, uint64_t first)
{
    const kvi_config *c = &net->model->config;
    kvi_net_buffers  *b = &net->b;
    const size_t      m = c->hc_copies;
    const size_t      f = sizeof(float);
    size_t            d = 0;
    size_t            n;

    while (d < net->n_rows && b->pos[d] < first)
        d++;
    if (d == 0)
        return;
    n = net->n_rows - d;
    move_up(b->h, m * c->hidden_size * f, d, n);
    move_up(b->x, c->hidden_size * f, d, n);
    move_up(b->pre[0], m * f, d, n);
    move_up(b->pre[1], m * f, d, n);
    move_up(b->post, m * f, d, n);
    move_up(b->comb, m * m * f, d, n);
    move_up(b->pos, sizeof *b->pos, d, n);
    move_up(b->ids, b->select_stride * sizeof *b->ids, d, n);
    move_up(b->blocks, b->blocks_stride * sizeof *b->blocks, d, n);
    move_up(b->n_blocks, sizeof *b->n_blocks, d, n);
    net->n_rows = n;
}

/* Every stream starts as the embedding; the first site takes stream 0. */
static kvcsa_status embed(kvi_net *net, const kvi_net_run_params *p, kvcsa_error *err)
{
    const kvi_config      *c = &net->model->config;
    kvi_net_buffers       *b = &net->b;
    const size_t           streams = (size_t)c->hc_copies * c->hidden_size;
    const kvi_embed_params e = {.table = &net->model->weights.embed,
                                .ids = b->entry_pos,
                                .y = b->h,
                                .y_stride = streams,
                                .n_rows = p->n_rows};
    kvcsa_status           st;

    for (uint32_t i = 0; i < p->n_rows; i++) {
        b->pos[i] = p->state.pos + i;
        b->entry_pos[i] = (uint64_t)p->state.tokens[b->pos[i]];
    }
    if ((st = p->exec.ops->embed(p->exec.dev, &e, err)) != KVCSA_OK)
        return st;
    memset(b->pre[0], 0, (size_t)p->n_rows * c->hc_copies * sizeof(float));
    for (uint32_t i = 0; i < p->n_rows; i++) {
        b->pre[0][(size_t)i * c->hc_copies] = 1.0f;
        for (uint32_t k = 1; k < c->hc_copies; k++)
            memcpy(b->h + i * streams + (size_t)k * c->hidden_size, b->h + i * streams,
                   c->hidden_size * sizeof(float));
    }
    return KVCSA_OK;
}

/* Coefficients of a site from the streams in front of it: pre goes to the next site, post and comb
 * are its own. */
static kvcsa_status mix(kvi_net *net, const kvi_net_run_params *p, const kvi_mix_weights *w,
                        float *pre, kvcsa_error *err)
{
    const kvi_config    *c = &net->model->config;
    kvi_net_buffers     *b = &net->b;
    const kvi_mix_params m = {.h = b->h,
                              .proj = b->proj,
                              .base = w->base,
                              .pre = pre,
                              .post = b->post,
                              .comb = b->comb,
                              .n_rows = net->n_rows,
                              .copies = c->hc_copies,
                              .width = c->hidden_size,
                              .n_iters = c->hc_iters,
                              .scale = {w->scale[0], w->scale[1], w->scale[2]},
                              .norm_eps = c->norm_eps,
                              .eps = c->hc_eps};
    const kvcsa_status   st = kvi_exec_linear(&p->exec, &w->fn, b->h, b->proj, net->n_rows, 0, err);

    return st == KVCSA_OK ? p->exec.ops->mix(p->exec.dev, &m, err) : st;
}

/* x = norm(weighted sum of the streams) */
static kvcsa_status collapse(kvi_net *net, const kvi_exec *e, const float *h, const float *pre,
                             const float *norm, size_t n_rows, kvcsa_error *err)
{
    const kvi_config         *c = &net->model->config;
    const kvi_collapse_params p = {.h = h,
                                   .pre = pre,
                                   .y = net->b.x,
                                   .n_rows = n_rows,
                                   .copies = c->hc_copies,
                                   .width = c->hidden_size,
                                   .flags = e->flags};
    const kvcsa_status        st = e->ops->collapse(e->dev, &p, err);

    return st == KVCSA_OK
               ? kvi_exec_norm(e, norm, net->b.x, n_rows, c->hidden_size, c->norm_eps, err)
               : st;
}

static kvcsa_status expand(kvi_net *net, const kvi_net_run_params *p, kvcsa_error *err)
{
    const kvi_config       *c = &net->model->config;
    const kvi_expand_params e = {.h = net->b.h,
                                 .y = net->b.y,
                                 .post = net->b.post,
                                 .comb = net->b.comb,
                                 .n_rows = net->n_rows,
                                 .copies = c->hc_copies,
                                 .width = c->hidden_size,
                                 .flags = p->exec.flags};

    return p->exec.ops->expand(p->exec.dev, &e, err);
}

static kvcsa_status run_layer(kvi_net *net, const kvi_net_run_params *p, uint32_t layer,
                              kvcsa_error *err)
{
    const kvi_layer_weights *w = &net->model->weights.layers[layer];
    kvi_net_buffers         *b = &net->b;
    kvcsa_status             st = KVCSA_OK;

    b->live[layer] = 0;
    kvi_net_drop_rows(net, p->first_rows[layer]);
    if (net->n_rows == 0)
        return KVCSA_OK; /* nor do the layers above want any of this chunk */
    if (w->engram_index >= 0)
        st = kvi_engram(net, p, layer, err);
    /* pre[0]: from the previous layer; pre[1]: from this layer's attention site, used by its
     * feed-forward site */
    if (st != KVCSA_OK || (st = mix(net, p, &w->mix_attn, b->pre[1], err)) != KVCSA_OK ||
        (st = collapse(net, &p->exec, b->h, b->pre[0], w->attn_norm, net->n_rows, err)) !=
            KVCSA_OK ||
        (st = kvi_attention(net, p, layer, err)) != KVCSA_OK || net->n_rows == 0 ||
        (st = expand(net, p, err)) != KVCSA_OK ||
        (st = mix(net, p, &w->mix_ffn, b->pre[0], err)) != KVCSA_OK ||
        (st = collapse(net, &p->exec, b->h, b->pre[1], w->ffn_norm, net->n_rows, err)) !=
            KVCSA_OK ||
        (st = kvi_moe(net, p, layer, err)) != KVCSA_OK)
        return st;
    return expand(net, p, err);
}

/* Logits of the wanted rows; the streams of the others are not needed any more. */
static kvcsa_status head(kvi_net *net, const kvi_net_run_params *p, kvcsa_error *err)
{
    const kvi_config *c = &net->model->config;
    kvi_net_buffers  *b = &net->b;
    const size_t      streams = (size_t)c->hc_copies * c->hidden_size;
    kvcsa_status      st;

    if (p->n_logit_rows == 0)
        return KVCSA_OK;
    for (uint32_t i = 0; i < p->n_logit_rows; i++) { /* ascending: moved before overwritten */
        const size_t from = p->logit_rows[i] - (p->n_rows - net->n_rows);

        memmove(b->h + i * streams, b->h + from * streams, streams * sizeof(float));
        memmove(b->pre[0] + (size_t)i * c->hc_copies, b->pre[0] + from * c->hc_copies,
                c->hc_copies * sizeof(float));
    }
    if ((st = collapse(net, &p->exec, b->h, b->pre[0], net->model->weights.norm, p->n_logit_rows,
                       err)) != KVCSA_OK)
        return st;
    return kvi_exec_linear(&p->exec, &net->model->weights.head, b->x, b->logits, p->n_logit_rows, 0,
                           err);
}

kvcsa_status kvi_net_run(kvi_net *net, const kvi_net_run_params *p, kvcsa_error *err)
{
    kvcsa_status st = kvi_net_prepare(net, p, err);

    net->n_rows = p->n_rows;
    if (st == KVCSA_OK)
        st = embed(net, p, err);
    for (uint32_t l = 0; l < net->model->config.n_layers && st == KVCSA_OK; l++) {
        if (p->stop && p->stop(p->stop_user))
            return kvi_fail(err, KVCSA_ERR_CANCELLED, "cancelled in front of layer %u", l);
        st = run_layer(net, p, l, err);
    }
    return st == KVCSA_OK ? head(net, p, err) : st;
}

void kvi_net_commit(kvi_net *net, const kvi_net_run_params *p)
{
    const kvi_plan *plan = &net->model->plan;
    const uint64_t  end = p->state.pos + p->n_rows;
    kvi_layer_offs  at = {0};

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *row = &plan->rows[l];

        if (net->b.live[l])
            kvi_window_commit(row, p->state.windows + at.ring, net->b.kept + at.kept,
                              end - net->b.live[l], net->b.live[l]);
        if (p->state.floors[l] < p->first_rows[l])
            p->state.floors[l] = p->first_rows[l];
        if (row->pending_bytes && end % row->ratio)
            memcpy(p->state.pending + at.pending, net->b.pending + at.pending, row->pending_bytes);
        kvi_layer_offs_pass(&at, row, p->n_rows);
    }
}
