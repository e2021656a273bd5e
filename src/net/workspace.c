#include "net/net_int.h"

#include "base/checked.h"
#include "base/status.h"
#include "index/indexer.h"
#include "plan/plan_cost.h"

#include <stdio.h>
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

#define CUT(field, count) ((field) = cut(c, (count), sizeof *(field)))

/* What differs between layers or slices, at its largest or in sum. */
typedef struct extent {
    size_t slices;
    size_t rows;       /* of all slices */
    size_t slice_rows; /* of the longest */
    size_t logit_rows;
    size_t wanted_rows; /* logit rows that have to be brought together */
    size_t raw;         /* bytes that wait for the commit */
    size_t select, blocks, scores, n_columns;
    size_t group_rows; /* of the largest group that may be */
    size_t mass_rows;  /* of the longest that counts it */
    size_t hidden;     /* spans of all slices */
    size_t table_rows; /* of a table that has stayed with the host */
    size_t tables;     /* of them at a time */
    size_t spare;      /* bytes of a row that may move */
    size_t copies;     /* of one launch */
    size_t raw_copies; /* of one layer, for raw rows */
    size_t jobs;       /* copies of a run that is noted first */
    bool   apart;
} extent;

/* Arrays whose rows move, and how often they do without a wait in a run: a replay drops rows at
 * every layer, but the layers of a long one take far longer than a wait, and a short one has none to
 * drop. */
enum { MOVING = 9, MOVES_AHEAD = 4 };

/* Raw rows of a slice that may have to wait for the commit, of one layer. */
static uint32_t raw_slots(const kvi_net_slice *slice)
{
    return (uint32_t)kvi_min_size(slice->geom->pending_slots, slice->n_rows);
}

static size_t scores_of(const kvi_plan_row *r, const kvi_net_slice *slice, const extent *x,
                        bool tapped)
{
    const uint64_t n_entries = (slice->pos + slice->n_rows) / r->ratio;
    const size_t   n_rows = x->apart ? x->rows : slice->n_rows;
    size_t         n = 0;

    if (r->select == KVCSA_SELECT_OWN || r->select == KVCSA_SELECT_REINDEX)
        n = kvi_select_scratch(r, n_entries, n_rows, x->apart);
    return tapped ? kvi_max_size(n, n_entries) : n;
}

/* The rows whose logits are wanted follow each other without a gap. Slices that are stopped leave
 * none, nor do rows that are dropped: nobody wants them. */
static bool are_in_line(const kvi_net_slice *slices, size_t n_slices)
{
    bool begun = false;
    bool ended = false;

    for (size_t i = 0; i < n_slices; i++) {
        const kvi_net_slice *s = &slices[i];
        const uint32_t       n = s->n_logit_rows;

        if (n == 0) {
            ended = begun;
            continue;
        }
        if (ended || (begun && s->logit_rows[0] != 0) ||
            s->logit_rows[n - 1] - s->logit_rows[0] != n - 1)
            return false;
        begun = true;
        ended = s->logit_rows[n - 1] != s->n_rows - 1;
    }
    return true;
}

static void measure_layers(const kvi_net *net, const kvi_net_slice *slices, bool tapped, extent *x)
{
    const kvi_plan *plan = &net->model->plan;

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *r = &plan->rows[l];

        if (net->weights->layers[l].engram_on_host) {
            x->table_rows = x->rows * x->n_columns;
            x->tables = net->taped ? net->model->config.n_engram_layers : 1;
        }
        if (r->ratio == 0)
            continue;
        x->select = kvi_max_size(x->select, r->select_entries);
        x->blocks = kvi_max_size(x->blocks, r->candidate_blocks);
        for (size_t i = 0; i < x->slices; i++)
            x->scores = kvi_max_size(x->scores, scores_of(r, &slices[i], x, tapped));
    }
}

/* Copies that any launch of a run or the commit may need. */
static void count_copies(const kvi_net *net, const kvi_net_slice *slices, extent *x)
{
    const kvi_plan *plan = &net->model->plan;
    size_t          commit = 0;

    x->raw_copies = 0;
    for (size_t i = 0; i < x->slices; i++) {
        const kvi_window_geom *g = slices[i].geom;
        const size_t           page_rows = kvi_max_size(g->page_rows, 1);

        x->raw_copies += 2 * (size_t)raw_slots(&slices[i]);
        /* of a layer: pages, one of which may be met at both ends, and raw rows around the end of
         * their slots */
        commit += plan->n_layers *
                  (kvi_min_size(g->n_pages, kvi_div_up(slices[i].n_rows, page_rows)) + 3);
    }
    x->copies = kvi_max_size(kvi_max_size(MOVING * x->slices, 2 * x->wanted_rows),
                             kvi_max_size(commit, x->raw_copies));
    for (uint32_t l = 0; l < plan->n_layers && net->taped; l++)
        x->jobs += plan->rows[l].pending_bytes ? x->raw_copies : 0;
    x->jobs += net->taped ? 2 * x->wanted_rows : 0;
}

static extent measure(const kvi_net *net, const kvi_net_slice *slices, size_t n_slices, bool tapped)
{
    const kvcsa_model *model = net->model;
    const kvi_plan    *plan = &model->plan;
    extent             x = {.slices = n_slices, .apart = kvi_memory_is_apart(&net->memory)};
    bool               drops = false;

    if (model->config.n_engram_layers)
        x.n_columns = model->engram.n_columns;
    for (size_t i = 0; i < n_slices; i++) {
        const kvi_net_slice *s = &slices[i];

        x.rows += s->n_rows;
        x.slice_rows = kvi_max_size(x.slice_rows, s->n_rows);
        if (s->mass)
            x.mass_rows = kvi_max_size(x.mass_rows, s->n_rows);
        x.logit_rows += s->n_logit_rows;
        x.raw += raw_slots(s) * (size_t)kvi_plan_pending_bytes(plan);
        if (s->limits && x.apart)
            x.hidden += s->limits->n_hidden;
        drops |= s->first_rows[plan->n_layers] > s->pos;
    }
    measure_layers(net, slices, tapped, &x);
    x.group_rows = x.apart ? x.rows : x.slice_rows;
    if (!are_in_line(slices, n_slices))
        x.wanted_rows = x.logit_rows;
    if (x.apart && drops)
        x.spare = kvi_net_moving_bytes(&model->config, x.select, x.blocks);
    count_copies(net, slices, &x);
    return x;
}

static void cut_meta(cutter *c, const kvi_net *net, const extent *x, kvi_net_meta *m)
{
    const kvi_config *cfg = &net->model->config;
    const size_t      begin = c->used;
    const size_t      copies = cfg->hc_copies;

    CUT(m->pos, x->rows);
    CUT(m->n_visible, x->rows * net->n_ratios);
    CUT(m->entry_pos, x->rows * net->n_ratios);
    m->turn_pos = m->entry_pos;
    if (x->apart)
        CUT(m->turn_pos, x->rows * net->n_ratios);
    CUT(m->erows, x->rows * x->n_columns * cfg->n_engram_layers);
    CUT(m->slice_rows, x->slices * net->model->plan.n_layers);
    m->lasting = c->used - begin;
    CUT(m->ids, x->rows * copies);
    CUT(m->pre, x->rows * copies);
    CUT(m->slices, x->slices);
    CUT(m->gathered, x->slices);
    CUT(m->in_turn, x->table_rows);
    CUT(m->hidden, x->hidden);
    m->fixed = c->used - begin;
    CUT(m->jobs, x->jobs);
    m->bytes = c->used - begin;
}

/* Bytes of n rows of an Engram table: values, then scales. */
static size_t table_row_bytes(const kvi_config *c)
{
    return c->engram_head_dim + c->engram_head_dim / 32;
}

static void cut_host(cutter *c, const kvi_net *net, const extent *x, kvi_net_host *h)
{
    const kvcsa_model *model = net->model;
    const uint32_t     n_layers = model->plan.n_layers;

    *h = (kvi_net_host){0};
    cut_meta(c, net, x, &h->meta);
    CUT(h->parts, x->slices);
    CUT(h->groups, x->slices);
    CUT(h->compress, x->slices);
    CUT(h->compress_groups, x->slices);
    CUT(h->work, x->slices);
    CUT(h->counts, x->slices * 3 * n_layers);
    CUT(h->chunks, n_layers);
    if (!x->apart)
        return;
    CUT(h->tables, model->config.n_engram_layers);
    CUT(h->etable, x->tables * x->table_rows * table_row_bytes(&model->config));
}

/* What comes from a device. */
static void cut_pinned(cutter *c, const kvi_net *net, const extent *x, kvi_net_host *h)
{
    const kvcsa_model *model = net->model;
    const uint32_t     n_layers = model->plan.n_layers;

    if (!x->apart)
        return;
    CUT(h->ids, x->mass_rows * x->select);
    CUT(h->mass, x->mass_rows * x->select);
    CUT(h->tally, x->slices * n_layers * KVI_TALLY_SIZE);
    CUT(h->logits, x->logit_rows * model->config.vocab_size);
}

static void cut_buffers(cutter *c, kvi_net *net, const extent *x, kvi_net_buffers *b)
{
    const kvi_plan   *plan = &net->model->plan;
    const kvi_config *cfg = &net->model->config;
    const size_t      n = x->rows;
    const size_t      m = cfg->hc_copies;
    const size_t      D = cfg->hidden_size;
    const size_t      d = cfg->head_dim;
    const size_t      heads = (size_t)cfg->n_heads * d;
    const size_t      index = (size_t)cfg->index_heads * cfg->index_dim;

    *b = (kvi_net_buffers){.meta = net->host.meta};
    if (x->apart)
        cut_meta(c, net, x, &b->meta);
    CUT(b->h, n * m * D);
    CUT(b->x, n * D);
    CUT(b->y, n * D);
    CUT(b->pre[0], n * m);
    CUT(b->pre[1], n * m);
    CUT(b->post, n * m);
    CUT(b->comb, n * m * m);
    CUT(b->proj, n * (2 + m) * m);
    CUT(b->qr, n * cfg->q_lora_rank);
    CUT(b->q, n * heads);
    CUT(b->o, n * heads);
    CUT(b->z, n * cfg->o_groups * cfg->o_lora_rank);
    CUT(b->row, n * d);
    for (uint32_t l = 0; l < plan->n_layers; l++) {
        uint8_t *rows = cut(c, n, plan->rows[l].window_bytes);

        if (c->base)
            net->host.chunks[l] = rows;
    }
    CUT(b->raw, x->raw);
    CUT(b->k, n * d);
    CUT(b->gate, n * d);
    CUT(b->latent, n * d);
    CUT(b->key, n * cfg->index_dim);
    CUT(b->iq, n * index);
    CUT(b->codes, x->group_rows * index);
    CUT(b->iscale, x->group_rows * (index / 32));
    CUT(b->iweight, n * cfg->index_heads);
    CUT(b->ids, n * x->select);
    CUT(b->blocks, n * x->blocks);
    CUT(b->n_blocks, n);
    CUT(b->scores, x->scores);
    CUT(b->mass, x->mass_rows * x->select);
    CUT(b->router, n * cfg->n_experts);
    CUT(b->experts, n * cfg->n_experts_per_token);
    CUT(b->eweight, n * cfg->n_experts_per_token);
    CUT(b->etable, x->tables * x->table_rows * table_row_bytes(cfg));
    CUT(b->embed, n * x->n_columns * cfg->engram_head_dim);
    CUT(b->ekv, x->n_columns ? n * (m + 1) * D : 0);
    if (x->wanted_rows) {
        CUT(b->wanted_h, x->wanted_rows * m * D);
        CUT(b->wanted_pre, x->wanted_rows * m);
    }
    if (x->spare)
        b->spare = cut(c, n, x->spare);
    CUT(b->tally, x->slices * plan->n_layers * KVI_TALLY_SIZE);
    CUT(b->logits, x->logit_rows * cfg->vocab_size);
}

static void fill_parts(kvi_net *net, const kvi_net_slice *slices)
{
    const kvi_plan *plan = &net->model->plan;
    const uint8_t  *hidden = net->b.meta.hidden;
    uint8_t        *raw = net->b.raw;
    const bool      apart = kvi_memory_is_apart(&net->memory);

    net->n_rows = 0;
    memset(net->host.counts, 0, net->n_parts * 3 * plan->n_layers * sizeof *net->host.counts);
    for (size_t i = 0; i < net->n_parts; i++) {
        const kvi_select_limits *limits = slices[i].limits;
        uint32_t                *counts = net->host.counts + i * 3 * plan->n_layers;
        kvi_net_part            *part = &net->host.parts[i];

        *part = (kvi_net_part){.begin = net->n_rows,
                               .n_rows = slices[i].n_rows,
                               .raw_slots = raw_slots(&slices[i]),
                               .raw = raw,
                               .n_counted = plan->n_layers,
                               .chunk = counts,
                               .n_window = counts + plan->n_layers,
                               .n_raw = counts + 2 * plan->n_layers};
        if (limits)
            part->hidden = apart ? hidden : limits->hidden;
        hidden += limits && apart ? limits->n_hidden : 0;
        net->n_rows += slices[i].n_rows;
        raw += part->raw_slots * (size_t)kvi_plan_pending_bytes(plan);
    }
    net->n_all = net->n_rows;
}

static void free_there(kvi_net *net)
{
    kvi_net_wipe(net);
    kvi_memory_free(&net->memory, net->there, net->there_bytes);
    net->there = NULL;
    net->there_bytes = 0;
}

/* At least `need` bytes of operators' memory, by half more than before. A device that is full need
 * not have room for both, nor for the half, before others have to go. */
static kvcsa_status reserve_there(kvi_net *net, size_t need, kvcsa_error *err)
{
    kvi_memory   alone = net->memory;
    size_t       cap = kvi_max_size(need, net->there_bytes + net->there_bytes / 2);
    void        *more = NULL;
    kvcsa_status st;

    if (need <= net->there_bytes)
        return KVCSA_OK;
    alone.make_room = NULL;
    if ((st = kvi_memory_alloc(&alone, cap, &more, err)) == KVCSA_ERR_NOMEM &&
        kvi_memory_is_apart(&alone)) {
        free_there(net);
        cap = need;
        if ((st = kvi_memory_alloc(&net->memory, cap, &more, err)) == KVCSA_OK)
            kvi_error_clear(err);
    }
    if (st != KVCSA_OK)
        return st;
    free_there(net);
    net->there = more;
    net->there_bytes = cap;
    return KVCSA_OK;
}

static kvcsa_status reserve_pinned(kvi_net *net, size_t need, kvcsa_error *err)
{
    const size_t cap = kvi_max_size(need, net->pinned_bytes + net->pinned_bytes / 2);
    void        *more = NULL;
    kvcsa_status st;

    if (need <= net->pinned_bytes)
        return KVCSA_OK;
    if ((st = kvi_memory_alloc_pinned(&net->memory, cap, &more, err)) != KVCSA_OK)
        return st;
    kvi_net_wipe(net);
    kvi_memory_free_pinned(&net->memory, net->pinned, net->pinned_bytes);
    net->pinned = more;
    net->pinned_bytes = cap;
    return KVCSA_OK;
}

/* Room for what goes to a device between the ends of two runs: a commit, and a run. */
static kvcsa_status reserve_post(kvi_net *net, const extent *x, kvcsa_error *err)
{
    const kvi_plan     *plan = &net->model->plan;
    const kvi_net_meta *meta = &net->host.meta;
    const size_t        job = sizeof(kvi_copy_job);
    cutter              c = {.ok = true};

    if (!x->apart)
        return KVCSA_OK;
    cut(&c, meta->bytes, 1);
    cut(&c, x->tables * x->table_rows, table_row_bytes(&net->model->config));
    cut(&c, 2, x->copies * job + KVI_POST_ALIGN); /* the commit, rows of logits */
    for (uint32_t l = 0; l < plan->n_layers; l++)
        if (plan->rows[l].pending_bytes) {
            cut(&c, 2, x->raw_copies * job + KVI_POST_ALIGN);
            cut(&c, x->slices, sizeof(kvi_slice_rows) + KVI_POST_ALIGN);
        }
    if (x->spare)
        cut(&c, MOVES_AHEAD, meta->lasting + 2 * MOVING * x->slices * job + 3 * KVI_POST_ALIGN);
    return c.ok ? kvi_post_reserve(&net->post, &net->memory, c.used, err) : KVCSA_ERR_NOMEM;
}

static kvcsa_status no_room(const kvi_net *net, size_t n_bytes, size_t n_rows, kvcsa_error *err)
{
    char what[48];

    snprintf(what, sizeof what, "workspace for %zu rows", n_rows);
    return kvi_memory_no_room(&net->memory, what, n_bytes, err);
}

static kvcsa_status reserve(kvi_net *net, const extent *x, kvcsa_error *err)
{
    cutter       here = {.ok = true};
    cutter       there = {.ok = true};
    cutter       pinned = {.ok = true};
    kvcsa_status st = KVCSA_ERR_NOMEM;

    cut_host(&here, net, x, &net->host);
    cut_pinned(&pinned, net, x, &net->host);
    cut_buffers(&there, net, x, &net->b);
    if (here.ok && there.ok && pinned.ok) {
        if (here.used > net->here.cap)
            kvi_net_wipe(net); /* what is given back holds nothing of anybody's text */
        if (kvi_buf_reserve(&net->allocator, &net->here, 1, 0, here.used))
            st = reserve_there(net, there.used, err);
    }
    if (st == KVCSA_OK)
        st = reserve_pinned(net, pinned.used, err);
    if (st == KVCSA_OK)
        st = reserve_post(net, x, err);
    if (st == KVCSA_OK)
        st = kvi_copies_reserve(&net->copies, &net->memory, x->copies, err);
    return st == KVCSA_ERR_NOMEM ? no_room(net, here.used + there.used + pinned.used, x->rows, err)
                                 : st;
}

kvcsa_status kvi_net_prepare(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                             size_t n_slices, kvcsa_error *err)
{
    const extent x = measure(net, slices, n_slices, exec->tap != NULL);
    cutter       c = {.ok = true};
    kvcsa_status st = reserve(net, &x, err);

    net->n_rows = 0;
    net->n_parts = 0;
    if (st != KVCSA_OK) {
        net->host = (kvi_net_host){0};
        net->b = (kvi_net_buffers){0};
        return st;
    }
    c.base = net->here.data;
    cut_host(&c, net, &x, &net->host);
    c = (cutter){.base = net->pinned, .ok = true};
    cut_pinned(&c, net, &x, &net->host);
    c = (cutter){.base = net->there, .ok = true};
    cut_buffers(&c, net, &x, &net->b);
    if (!x.apart) {
        net->host.tally = net->b.tally;
        net->host.logits = net->b.logits;
    }
    net->n_scores = x.scores;
    net->n_in_turn = x.table_rows;
    net->n_jobs = x.jobs;
    net->table_bytes = x.table_rows * table_row_bytes(&net->model->config);
    net->n_ids = 0;
    net->n_block_ids = 0;
    net->n_parts = n_slices;
    fill_parts(net, slices);
    return KVCSA_OK;
}
