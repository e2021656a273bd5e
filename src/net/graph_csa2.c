/* DeepSeek-V4.1's order of operators: embedding, layers (Engram, attention site, feed-forward
 * site), head.
 *
 * The residual is hc_copies streams. A site's input is a weighted sum of them; the weights come
 * from the site before ("single pass"): attention uses those of the previous layer's feed-forward
 * site, feed-forward those of this layer's attention site, the head those of the last. Source:
 * docs/formats.md "Network". */
#include <string.h>

#include "base/checked.h"
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

void kvi_net_wipe(kvi_net *net)
{
    if (net && net->memory.data)
        memset(net->memory.data, 0, net->memory.cap);
}

uint64_t kvi_net_workspace_bytes(const kvi_net *net)
{
    return net ? net->memory.cap : 0;
}

uint32_t kvi_net_lookback(const kvcsa_model *model)
{
    return model->config.n_engram_layers ? model->config.engram_ngram - 1 : 0;
}

const float *kvi_net_logits(const kvi_net *net, const kvi_net_slice *slices, size_t i)
{
    (void)slices; /* the caller has them at hand, the parts know it already */
    return net->b.logits + net->b.parts[i].first_logit * net->model->config.vocab_size;
}

/* Rows of one buffer that stay close up. */
static void move_up(const kvi_net *net, void *rows, size_t row_bytes)
{
    uint8_t *to = rows;

    for (size_t i = 0; i < net->n_parts; i++) {
        const kvi_net_part *part = &net->b.parts[i];
        const uint8_t      *from = (uint8_t *)rows + (part->begin + part->n_drop) * row_bytes;
        const size_t        bytes = (part->n_rows - part->n_drop) * row_bytes;

        if (to != from)
            memmove(to, from, bytes);
        to += bytes;
    }
}

/* Rows of a slice that go: those below first_rows[layer]. */
static size_t rows_to_drop(const kvi_net_slice *slice, const kvi_net_part *part, uint32_t layer)
{
    const uint64_t pos = slice->pos + slice->n_rows - part->n_rows;
    const uint64_t first = slice->first_rows[layer];

    if (slice->stopped)
        return part->n_rows;
    return first > pos ? kvi_min_size(first - pos, part->n_rows) : 0;
}

void kvi_net_drop_rows(kvi_net *net, const kvi_net_slice *slices, uint32_t layer)
{
    const kvi_config *c = &net->model->config;
    kvi_net_buffers  *b = &net->b;
    const size_t      m = c->hc_copies;
    const size_t      f = sizeof(float);
    size_t            n_drop = 0;

    for (size_t i = 0; i < net->n_parts; i++)
        n_drop += b->parts[i].n_drop = rows_to_drop(&slices[i], &b->parts[i], layer);
    if (n_drop == 0)
        return;
    move_up(net, b->h, m * c->hidden_size * f);
    move_up(net, b->x, c->hidden_size * f);
    move_up(net, b->pre[0], m * f);
    move_up(net, b->pre[1], m * f);
    move_up(net, b->post, m * f);
    move_up(net, b->comb, m * m * f);
    move_up(net, b->pos, sizeof *b->pos);
    move_up(net, b->ids, b->n_ids * sizeof *b->ids);
    move_up(net, b->blocks, b->n_block_ids * sizeof *b->blocks);
    move_up(net, b->n_blocks, sizeof *b->n_blocks);
    net->n_rows = 0;
    for (size_t i = 0; i < net->n_parts; i++) {
        b->parts[i].begin = net->n_rows;
        b->parts[i].n_rows -= b->parts[i].n_drop;
        net->n_rows += b->parts[i].n_rows;
    }
}

/* Every stream starts as the embedding; the first site takes stream 0. */
static kvcsa_status embed(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                          kvcsa_error *err)
{
    const kvi_config      *c = &net->model->config;
    kvi_net_buffers       *b = &net->b;
    const size_t           streams = (size_t)c->hc_copies * c->hidden_size;
    const kvi_embed_params e = {.table = &net->model->weights.embed,
                                .ids = b->entry_pos,
                                .y = b->h,
                                .y_stride = streams,
                                .n_rows = net->n_rows};
    size_t                 at = 0;
    kvcsa_status           st;

    for (size_t i = 0; i < net->n_parts; i++)
        for (uint32_t r = 0; r < slices[i].n_rows; r++, at++) {
            b->pos[at] = slices[i].pos + r;
            b->entry_pos[at] = (uint64_t)slices[i].tokens[r];
        }
    if ((st = exec->ops->embed(exec->dev, &e, err)) != KVCSA_OK)
        return st;
    memset(b->pre[0], 0, net->n_rows * c->hc_copies * sizeof(float));
    for (size_t i = 0; i < net->n_rows; i++) {
        b->pre[0][i * c->hc_copies] = 1.0f;
        for (uint32_t k = 1; k < c->hc_copies; k++)
            memcpy(b->h + i * streams + (size_t)k * c->hidden_size, b->h + i * streams,
                   c->hidden_size * sizeof(float));
    }
    return KVCSA_OK;
}

/* Coefficients of a site from the streams in front of it: pre goes to the next site, post and comb
 * are its own. */
static kvcsa_status mix(kvi_net *net, const kvi_exec *exec, const kvi_mix_weights *w, float *pre,
                        kvcsa_error *err)
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
    const kvcsa_status   st = kvi_exec_linear(exec, &w->fn, b->h, b->proj, net->n_rows, 0, err);

    return st == KVCSA_OK ? exec->ops->mix(exec->dev, &m, err) : st;
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

static kvcsa_status expand(kvi_net *net, const kvi_exec *exec, kvcsa_error *err)
{
    const kvi_config       *c = &net->model->config;
    const kvi_expand_params e = {.h = net->b.h,
                                 .y = net->b.y,
                                 .post = net->b.post,
                                 .comb = net->b.comb,
                                 .n_rows = net->n_rows,
                                 .copies = c->hc_copies,
                                 .width = c->hidden_size,
                                 .flags = exec->flags};

    return exec->ops->expand(exec->dev, &e, err);
}

static kvcsa_status run_layer(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                              uint32_t layer, kvcsa_error *err)
{
    const kvi_layer_weights *w = &net->model->weights.layers[layer];
    kvi_net_buffers         *b = &net->b;
    kvcsa_status             st = KVCSA_OK;

    kvi_net_drop_rows(net, slices, layer);
    if (net->n_rows == 0)
        return KVCSA_OK; /* nor do the layers above want any of these rows */
    if (w->engram_index >= 0)
        st = kvi_engram(net, exec, slices, layer, err);
    /* pre[0]: from the previous layer; pre[1]: from this layer's attention site, used by its
     * feed-forward site */
    if (st != KVCSA_OK || (st = mix(net, exec, &w->mix_attn, b->pre[1], err)) != KVCSA_OK ||
        (st = collapse(net, exec, b->h, b->pre[0], w->attn_norm, net->n_rows, err)) != KVCSA_OK ||
        (st = kvi_attention(net, exec, slices, layer, err)) != KVCSA_OK || net->n_rows == 0 ||
        (st = expand(net, exec, err)) != KVCSA_OK ||
        (st = mix(net, exec, &w->mix_ffn, b->pre[0], err)) != KVCSA_OK ||
        (st = collapse(net, exec, b->h, b->pre[1], w->ffn_norm, net->n_rows, err)) != KVCSA_OK ||
        (st = kvi_moe(net, exec, layer, err)) != KVCSA_OK)
        return st;
    kvi_net_count_experts(net, slices, layer);
    return expand(net, exec, err);
}

/* Logits of the wanted rows of all slices; the streams of the others are not needed any more. */
static kvcsa_status head(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                         kvcsa_error *err)
{
    const kvi_config *c = &net->model->config;
    kvi_net_buffers  *b = &net->b;
    const size_t      streams = (size_t)c->hc_copies * c->hidden_size;
    size_t            n = 0;
    kvcsa_status      st;

    for (size_t i = 0; i < net->n_parts; i++) {
        kvi_net_part *part = &b->parts[i];
        const size_t  n_gone = slices[i].n_rows - part->n_rows;

        part->first_logit = n;
        for (uint32_t r = 0; r < slices[i].n_logit_rows && !slices[i].stopped; r++, n++) {
            /* ascending: moved before overwritten */
            const size_t from = part->begin + slices[i].logit_rows[r] - n_gone;

            KVI_ASSERT(slices[i].logit_rows[r] >= n_gone);
            memmove(b->h + n * streams, b->h + from * streams, streams * sizeof(float));
            memmove(b->pre[0] + n * c->hc_copies, b->pre[0] + from * c->hc_copies,
                    c->hc_copies * sizeof(float));
        }
    }
    if (n == 0)
        return KVCSA_OK;
    st = collapse(net, exec, b->h, b->pre[0], net->model->weights.norm, n, err);
    return st == KVCSA_OK
               ? kvi_exec_linear(exec, &net->model->weights.head, b->x, b->logits, n, 0, err)
               : st;
}

/* Asks every slice that has not been stopped. Returns 1 if one is left. */
static int ask_to_stop(kvi_net_slice *slices, size_t n)
{
    int left = 0;

    for (size_t i = 0; i < n; i++) {
        kvi_net_slice *s = &slices[i];

        if (!s->stopped && s->stop && s->stop(s->stop_user))
            s->stopped = 1;
        left |= !s->stopped;
    }
    return left;
}

kvcsa_status kvi_net_run(kvi_net *net, const kvi_exec *exec, kvi_net_slice *slices, size_t n_slices,
                         kvcsa_error *err)
{
    const kvi_plan *plan = &net->model->plan;
    kvcsa_status    st = kvi_net_prepare(net, exec, slices, n_slices, err);

    for (size_t i = 0; i < n_slices; i++)
        slices[i].stopped = 0;
    if (st == KVCSA_OK)
        st = embed(net, exec, slices, err);
    for (uint32_t l = 0; l < plan->n_layers && st == KVCSA_OK; l++) {
        if (!ask_to_stop(slices, n_slices))
            return kvi_fail(err, KVCSA_ERR_CANCELLED, "cancelled in front of layer %u", l);
        st = run_layer(net, exec, slices, l, err);
        for (size_t i = 0; i < n_slices; i++) {
            kvi_net_part *part = &net->b.parts[i];

            kvi_window_offs_pass(&part->at, slices[i].geom, &plan->rows[l]);
            kvi_window_offs_pass(&part->kept_at, &part->kept, &plan->rows[l]);
        }
    }
    return st == KVCSA_OK ? head(net, exec, slices, err) : st;
}

/* Raw rows that a layer kept, into their slots. */
static void commit_raw_rows(const kvi_plan_row *row, const kvi_net_slice *slice, uint32_t n,
                            const uint8_t *kept, uint8_t *slots)
{
    const uint64_t last = (slice->pos + slice->n_rows - 1) / row->ratio; /* entry that it begins */

    for (uint32_t i = 0; i < n; i++) {
        const uint64_t slot = (last - (n - 1 - i)) % slice->geom->pending_slots;

        memcpy(slots + slot * row->pending_bytes, kept + (size_t)i * row->pending_bytes,
               row->pending_bytes);
    }
}

void kvi_net_commit(kvi_net *net, const kvi_net_slice *slices, size_t i,
                    uint8_t *const *window_pages, uint8_t *pending, uint64_t *floors)
{
    const kvi_plan      *plan = &net->model->plan;
    const kvi_net_slice *slice = &slices[i];
    const kvi_net_part  *part = &net->b.parts[i];
    const uint64_t       end = slice->pos + slice->n_rows;
    kvi_window_offs      at = {0};
    kvi_window_offs      kept_at = {0};

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *row = &plan->rows[l];
        const uint32_t      n = part->n_window[l];

        if (n)
            kvi_window_commit(slice->geom, row->window_bytes, at.page, window_pages,
                              part->window + kept_at.page, end - n, n);
        if (floors[l] < slice->first_rows[l])
            floors[l] = slice->first_rows[l];
        if (pending && row->pending_bytes)
            commit_raw_rows(row, slice, part->n_raw[l], part->raw + kept_at.pending,
                            pending + at.pending);
        kvi_window_offs_pass(&at, slice->geom, row);
        kvi_window_offs_pass(&kept_at, &part->kept, row);
    }
}
