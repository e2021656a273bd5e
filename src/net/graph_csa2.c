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

/* The different ratios of the plan: what rows see and complete is listed for each. */
static void find_ratios(kvi_net *net)
{
    const kvi_plan *plan = &net->model->plan;

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const uint32_t ratio = plan->rows[l].ratio;
        uint32_t       k = 0;

        while (k < net->n_ratios && net->ratios[k] != ratio)
            k++;
        if (ratio && k == net->n_ratios)
            net->ratios[net->n_ratios++] = ratio;
    }
}

/* Both rotation tables, in the memory of operators. */
static kvcsa_status make_freqs(kvi_net *net, kvcsa_error *err)
{
    const size_t half = net->model->config.rope_dim / 2;
    const size_t bytes = 2 * half * sizeof(float);
    void        *there = NULL;
    float       *freqs = kvi_alloc(&net->allocator, bytes);
    kvcsa_status st = KVCSA_ERR_NOMEM;

    if (freqs)
        st = kvi_memory_alloc(&net->memory, bytes, &there, err);
    if (st == KVCSA_ERR_NOMEM)
        kvi_memory_no_room(&net->memory, "rotation tables", bytes, err);
    if (st == KVCSA_OK) {
        net->freqs = there;
        for (int i = 0; i < 2; i++)
            kvi_rope_freqs(&net->model->config, i, freqs + (size_t)i * half);
        st = kvi_memory_put(&net->memory, there, freqs, bytes, err);
    }
    kvi_free(&net->allocator, freqs, bytes);
    return st;
}

kvcsa_status kvi_net_create(const kvcsa_model *model, const kvi_weights *weights,
                            const kvi_memory *memory, kvi_net **out, kvcsa_error *err)
{
    const kvcsa_allocator *a = memory->allocator;
    kvi_net               *net = kvi_zalloc(a, sizeof *net);
    kvcsa_status           st;

    *out = NULL;
    if (!net)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "network state of %zu bytes", sizeof *net);
    net->model = model;
    net->weights = weights;
    net->allocator = *a;
    net->memory = *memory;
    net->memory.allocator = &net->allocator;
    net->copies.post = &net->post;
    net->tape.allocator = &net->allocator;
    if (!(net->ratios = kvi_alloc(a, model->plan.n_layers * sizeof *net->ratios))) {
        kvi_net_destroy(net);
        return kvi_fail(err, KVCSA_ERR_NOMEM, "ratios of %u layers", model->plan.n_layers);
    }
    find_ratios(net);
    if ((st = make_freqs(net, err)) != KVCSA_OK) {
        kvi_net_destroy(net);
        return st;
    }
    *out = net;
    return KVCSA_OK;
}

void kvi_net_destroy(kvi_net *net)
{
    if (!net)
        return;

    const kvcsa_allocator a = net->allocator;

    kvi_graphs_fini(&net->graphs, &net->memory);
    kvi_tape_fini(&net->tape);
    kvi_buf_free(&a, &net->padded, sizeof(kvi_net_slice));
    kvi_copies_fini(&net->copies, &net->memory);
    kvi_post_fini(&net->post, &net->memory);
    kvi_memory_free_pinned(&net->memory, net->pinned, net->pinned_bytes);
    kvi_memory_free(&net->memory, net->freqs, net->model->config.rope_dim / 2 * 2 * sizeof(float));
    kvi_memory_free(&net->memory, net->there, net->there_bytes);
    kvi_free(&a, net->ratios, net->model->plan.n_layers * sizeof *net->ratios);
    kvi_buf_free(&a, &net->here, 1);
    kvi_free(&a, net, sizeof *net);
}

void kvi_net_wipe(kvi_net *net)
{
    if (!net)
        return;
    if (net->here.data)
        memset(net->here.data, 0, net->here.cap);
    if (net->pinned)
        memset(net->pinned, 0, net->pinned_bytes);
    kvi_post_wipe(&net->post, &net->memory);
    if (net->there) /* a device in trouble shows its memory to nobody */
        (void)kvi_memory_fill(&net->memory, net->there, 0, net->there_bytes, NULL);
}

uint64_t kvi_net_workspace_bytes(const kvi_net *net)
{
    if (!net)
        return 0;
    return net->here.cap + net->there_bytes + net->pinned_bytes + net->post.cap +
           (net->copies.jobs.cap + net->copies.there_cap) * sizeof(kvi_copy_job) +
           net->tape.bytes.cap;
}

uint32_t kvi_net_lookback(const kvcsa_model *model)
{
    return model->config.n_engram_layers ? model->config.engram_ngram - 1 : 0;
}

const float *kvi_net_logits(const kvi_net *net, const kvi_net_slice *slices, size_t i)
{
    (void)slices; /* the caller has them at hand, the parts know it already */
    return net->host.logits + net->host.parts[i].first_logit * net->model->config.vocab_size;
}

/* Every stream starts as the embedding. */
static kvcsa_status embed(kvi_net *net, const kvi_exec *exec, kvcsa_error *err)
{
    const kvi_config      *c = &net->model->config;
    kvi_net_buffers       *b = &net->b;
    const size_t           n = net->n_rows * c->hc_copies;
    const kvi_embed_params e = {.table = &net->weights->embed,
                                .ids = b->meta.ids,
                                .y = b->h,
                                .y_stride = c->hidden_size,
                                .n_rows = n};
    const kvcsa_status     st = exec->ops->embed(exec->dev, &e, err);

    return st == KVCSA_OK
               ? kvi_memory_move(&net->memory, b->pre[0], b->meta.pre, n * sizeof(float), err)
               : st;
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
    const kvi_layer_weights *w = &net->weights->layers[layer];
    kvi_net_buffers         *b = &net->b;
    kvcsa_status             st = KVCSA_OK;

    st = kvi_net_drop_rows(net, slices, layer, err);
    if (st != KVCSA_OK || net->n_rows == 0)
        return st; /* nor do the layers above want any of these rows */
    if (w->engram_index >= 0)
        st = kvi_engram(net, exec, layer, err);
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

/* Rows of a slice that have a place among the logits. */
static uint32_t n_logits_of(const kvi_net *net, const kvi_net_slice *slice)
{
    return slice->stopped && !kvi_memory_is_apart(&net->memory) ? 0 : slice->n_logit_rows;
}

/* Streams and collapse weights of the wanted rows, one behind the other: where they are, or brought
 * together. */
static kvcsa_status gather_wanted(kvi_net *net, const kvi_net_slice *slices, const float **h,
                                  const float **pre, kvcsa_error *err)
{
    const size_t     copies = net->model->config.hc_copies;
    const size_t     streams = copies * net->model->config.hidden_size;
    kvi_net_buffers *b = &net->b;
    size_t           n = 0;

    for (size_t i = 0; i < net->n_parts; i++) {
        const kvi_net_part *part = &net->host.parts[i];
        const size_t        n_gone = slices[i].n_rows - part->n_rows;

        for (uint32_t r = 0; r < n_logits_of(net, &slices[i]); r++, n++) {
            const size_t from = part->begin + slices[i].logit_rows[r] - n_gone;

            KVI_ASSERT(slices[i].logit_rows[r] >= n_gone);
            if (n == 0) {
                *h = b->h + from * streams;
                *pre = b->pre[0] + from * copies;
            }
            if (!b->wanted_h) {
                KVI_ASSERT(*h + n * streams == b->h + from * streams);
                continue;
            }
            kvi_copies_add(&net->copies, &net->memory, b->wanted_h + n * streams,
                           b->h + from * streams, streams * sizeof(float));
            kvi_copies_add(&net->copies, &net->memory, b->wanted_pre + n * copies,
                           b->pre[0] + from * copies, copies * sizeof(float));
        }
    }
    if (!b->wanted_h)
        return KVCSA_OK;
    *h = b->wanted_h;
    *pre = b->wanted_pre;
    return kvi_copies_run(&net->copies, &net->memory, err);
}

/* Logits of the wanted rows of all slices. */
static kvcsa_status head(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                         kvcsa_error *err)
{
    const float *h = NULL;
    const float *pre = NULL;
    size_t       n = 0;
    kvcsa_status st;

    for (size_t i = 0; i < net->n_parts; i++) {
        net->host.parts[i].first_logit = n;
        n += n_logits_of(net, &slices[i]);
    }
    if (n == 0)
        return KVCSA_OK;
    if ((st = gather_wanted(net, slices, &h, &pre, err)) != KVCSA_OK ||
        (st = collapse(net, exec, h, pre, net->weights->norm, n, err)) != KVCSA_OK)
        return st;
    return kvi_exec_linear(exec, &net->weights->head, net->b.x, net->b.logits, n, 0, err);
}

/* Asks every slice that has not been stopped, in front of a layer. Returns 1 if one is left. */
static int ask_to_stop(kvi_net *net, kvi_net_slice *slices, uint32_t layer)
{
    int left = 0;

    for (size_t i = 0; i < net->n_real; i++) {
        kvi_net_slice *s = &slices[i];

        if (!s->stopped && s->stop && s->stop(s->stop_user)) {
            s->stopped = 1;
            net->host.parts[i].n_counted = layer;
        }
        left |= !s->stopped;
    }
    return left;
}

/* Waits for the run, however it went, and takes what it made for the host. */
static kvcsa_status finish(kvi_net *net, const kvi_net_slice *slices, kvcsa_status st,
                           kvcsa_error *err)
{
    const uint32_t vocab = net->model->config.vocab_size;
    const size_t   n_tallies = net->n_parts * net->model->plan.n_layers * KVI_TALLY_SIZE;
    size_t         bytes = n_tallies * sizeof *net->b.tally;
    kvcsa_status   got = KVCSA_OK;

    if (kvi_memory_is_apart(&net->memory)) {
        if (st == KVCSA_OK) { /* the logits lie behind the tallies */
            bytes = (size_t)((uint8_t *)net->b.logits - (uint8_t *)net->b.tally);
            for (size_t i = 0; i < net->n_real; i++)
                bytes += slices[i].n_logit_rows * (vocab * sizeof *net->b.logits);
        }
        got = kvi_memory_get(&net->memory, net->host.tally, net->b.tally, bytes,
                             st == KVCSA_OK ? err : NULL);
    }
    if (got == KVCSA_OK) {
        kvi_post_arrived(&net->post);
        kvi_net_add_tallies(net, slices);
    }
    return st == KVCSA_OK ? got : st;
}

static kvcsa_status run_layers(kvi_net *net, const kvi_exec *exec, kvi_net_slice *slices,
                               kvcsa_error *err)
{
    const kvi_plan *plan = &net->model->plan;
    const size_t    n_tallies = net->n_parts * plan->n_layers * KVI_TALLY_SIZE;
    kvcsa_status    st;

    if ((st = kvi_memory_fill(&net->memory, net->b.tally, 0, n_tallies * sizeof *net->b.tally,
                              err)) != KVCSA_OK ||
        (st = embed(net, exec, err)) != KVCSA_OK)
        return st;
    for (uint32_t l = 0; l < plan->n_layers; l++) {
        if (!ask_to_stop(net, slices, l))
            return kvi_fail(err, KVCSA_ERR_CANCELLED, "cancelled in front of layer %u", l);
        if ((st = run_layer(net, exec, slices, l, err)) != KVCSA_OK)
            return st;
        for (size_t i = 0; i < net->n_parts; i++) {
            kvi_net_part *part = &net->host.parts[i];

            kvi_window_offs_pass(&part->at, slices[i].geom, &plan->rows[l]);
            part->raw_at += (size_t)part->raw_slots * plan->rows[l].pending_bytes;
        }
    }
    return head(net, exec, slices, err);
}

/* ------------------------------------------------------------------ steps that are alike */

enum { GRAPH_ROWS = 8, GRAPH_SLICES = 1024 }; /* of a slice; of a run */

/* A short run of a device that needs nothing of it on the way: its operators can be noted, and done
 * again as a graph by the next run that is like it. */
static bool can_be_taped(const kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                         size_t n_slices)
{
    const uint32_t n_layers = net->model->plan.n_layers;

    if (!kvi_memory_is_apart(&net->memory) || !net->memory.ops->graph_begin || exec->tap ||
        n_slices > GRAPH_SLICES)
        return false;
    for (size_t i = 0; i < n_slices; i++) {
        const kvi_net_slice *s = &slices[i];

        if (s->n_rows > GRAPH_ROWS || s->replay || s->mass || kvi_select_is_limited(s->limits) ||
            s->first_rows[n_layers] > s->pos)
            return false;
    }
    return true;
}

/* Batches of similar size become one of the same size: at most a quarter more. */
static size_t bucket_of(size_t n)
{
    size_t step = 1;

    while (8 * step < n)
        step *= 2;
    return kvi_div_up(n, step) * step;
}

/* The slices, and copies of the last one, whose rows do what it does once more and are counted and
 * committed for nobody. */
static kvi_net_slice *pad(kvi_net *net, kvi_net_slice *slices, size_t *n_slices)
{
    const size_t   n = *n_slices;
    const size_t   want = bucket_of(n);
    kvi_net_slice *all;

    if (want == n ||
        !kvi_buf_reserve(&net->allocator, &net->padded, sizeof *slices, 0, want))
        return slices;
    all = net->padded.data;
    memcpy(all, slices, n * sizeof *slices);
    for (size_t i = n; i < want; i++) {
        all[i] = slices[n - 1];
        all[i].work = NULL;
        all[i].stop = NULL;
    }
    *n_slices = want;
    return all;
}

/* Notes the run and then lets the device do it. */
static kvcsa_status run_taped(kvi_net *net, const kvi_exec *exec, kvi_net_slice *slices,
                              kvcsa_error *err)
{
    const kvi_memory device = net->memory;
    kvi_exec         noting = *exec;
    kvcsa_status     st = kvi_engram_bring_all(net, err);

    if (st != KVCSA_OK)
        return st;
    net->memory.ops = noting.ops = kvi_tape_ops();
    net->memory.dev = noting.dev = kvi_tape_device(&net->tape);
    net->copies.stage[0] = net->host.meta.jobs;
    net->copies.stage[1] = net->b.meta.jobs;
    net->copies.stage_cap = net->n_jobs;
    st = run_layers(net, &noting, slices, err);
    net->memory = device;
    net->copies.stage[0] = NULL;
    if (st == KVCSA_OK)
        st = kvi_net_send_rows(net, err);
    net->copies.stage_used = 0;
    if (st == KVCSA_OK)
        st = kvi_graphs_play(&net->graphs, &net->memory, &net->tape, err);
    kvi_tape_clear(&net->tape);
    return st;
}

static kvcsa_status run(kvi_net *net, const kvi_exec *exec, kvi_net_slice *slices,
                        kvcsa_error *err)
{
    kvcsa_status st;

    kvi_net_describe_rows(net, slices);
    if (net->taped)
        return run_taped(net, exec, slices, err);
    st = kvi_net_send_rows(net, err);
    return st == KVCSA_OK ? run_layers(net, exec, slices, err) : st;
}

kvcsa_status kvi_net_run(kvi_net *net, const kvi_exec *exec, kvi_net_slice *slices, size_t n_slices,
                         kvcsa_error *err)
{
    kvi_net_slice *all = slices;
    size_t         n = n_slices;
    kvi_exec       own = *exec;
    kvcsa_status   st;

    for (size_t i = 0; i < n_slices; i++)
        slices[i].stopped = 0;
    net->taped = can_be_taped(net, exec, slices, n_slices);
    if (net->taped)
        all = pad(net, slices, &n);
    own.allocator = &net->allocator; /* that of the lists of copies */
    if ((st = kvi_net_prepare(net, exec, all, n, err)) != KVCSA_OK)
        return st;
    net->n_real = n_slices;
    st = finish(net, all, run(net, &own, all, err), err);
    for (size_t i = 0; i < n_slices && all != slices; i++)
        slices[i].stopped = all[i].stopped;
    return st;
}

void kvi_net_graphs(const kvi_net *net, uint64_t *n_recorded, uint64_t *n_runs)
{
    *n_recorded = net ? net->graphs.n_recorded : 0;
    *n_runs = net ? net->graphs.n_runs : 0;
}

/* Raw rows that a layer kept, into their slots: at most two pieces, since the slots are a ring. */
static void commit_raw_rows(kvi_net *net, const kvi_plan_row *row, const kvi_net_slice *slice,
                            uint32_t n, const uint8_t *kept, uint8_t *slots)
{
    const uint64_t last = (slice->pos + slice->n_rows - 1) / row->ratio; /* entry that it begins */
    const size_t   bytes = row->pending_bytes;

    while (n) {
        const uint64_t slot = (last - (n - 1)) % slice->geom->pending_slots;
        const uint32_t piece = (uint32_t)kvi_min_size(n, slice->geom->pending_slots - slot);

        kvi_copies_add(&net->copies, &net->memory, slots + slot * bytes, kept, piece * bytes);
        kept += piece * bytes;
        n -= piece;
    }
}

void kvi_net_commit(kvi_net *net, const kvi_net_slice *slices, size_t i,
                    uint8_t *const *window_pages, uint8_t *pending, uint64_t *floors)
{
    const kvi_plan      *plan = &net->model->plan;
    const kvi_net_slice *slice = &slices[i];
    const kvi_net_part  *part = &net->host.parts[i];
    const uint64_t       end = slice->pos + slice->n_rows;
    size_t               raw_at = 0;
    kvi_window_offs      at = {0};

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *row = &plan->rows[l];
        const uint32_t      n = part->n_window[l];

        if (n)
            kvi_window_commit(
                &net->copies, &net->memory, slice->geom, row->window_bytes, at.page, window_pages,
                net->host.chunks[l] + (size_t)part->chunk[l] * row->window_bytes, end - n, n);
        if (floors[l] < slice->first_rows[l])
            floors[l] = slice->first_rows[l];
        if (pending && row->pending_bytes)
            commit_raw_rows(net, row, slice, part->n_raw[l], part->raw + raw_at,
                            pending + at.pending);
        raw_at += (size_t)part->raw_slots * row->pending_bytes;
        kvi_window_offs_pass(&at, slice->geom, row);
    }
}

kvcsa_status kvi_net_commit_all(kvi_net *net, kvcsa_error *err)
{
    return kvi_copies_run(&net->copies, &net->memory, err);
}
