/* The rows of a run: what the host knows of them, and how some of them go. */
#include <string.h>

#include "base/checked.h"
#include "base/status.h"
#include "net/net_int.h"

/* Engram's table rows of a token, in every Engram layer: they depend on token ids alone. */
static void hash_row(kvi_net *net, const kvi_net_slice *slice, uint32_t r, size_t at)
{
    const kvcsa_model *model = net->model;
    const uint32_t     ngram = model->engram.ngram;
    const uint32_t     n_columns = model->engram.n_columns;
    const int32_t     *newest = slice->tokens + r;
    uint32_t           history[KVI_MAX_NGRAM];
    uint32_t           n = 0;

    for (; n < ngram && n <= slice->pos + r; n++)
        history[n] = model->token_map[newest[-(ptrdiff_t)n]];
    for (uint32_t e = 0; e < model->config.n_engram_layers; e++)
        kvi_engram_rows(&model->engram, e, history, n,
                        net->host.meta.erows + (e * net->n_all + at) * n_columns);
}

static void describe_row(kvi_net *net, const kvi_net_slice *slice, uint32_t r, size_t at)
{
    kvi_net_meta  *m = &net->host.meta;
    const size_t   copies = net->model->config.hc_copies;
    const uint64_t pos = slice->pos + r;

    m->pos[at] = pos;
    for (uint32_t k = 0; k < net->n_ratios; k++)
        m->n_visible[k * net->n_all + at] = (pos + 1) / net->ratios[k];
    for (size_t c = 0; c < copies; c++) {
        m->ids[at * copies + c] = (uint64_t)slice->tokens[r];
        m->pre[at * copies + c] = c == 0 ? 1.0f : 0.0f; /* the first site takes stream 0 */
    }
    if (net->model->config.n_engram_layers)
        hash_row(net, slice, r, at);
}

size_t kvi_net_entry_slots(const kvi_net *net, const kvi_net_slice *slice, size_t n_rows,
                           uint32_t ratio)
{
    const uint64_t end = slice->pos + slice->n_rows;

    if (slice->replay)
        return 0;
    return kvi_memory_is_apart(&net->memory) ? kvi_div_up(n_rows, ratio)
                                             : end / ratio - (end - n_rows) / ratio;
}

/* Positions of the entries that the rows left complete: that of an entry's first token. */
static void place_entries(kvi_net *net, const kvi_net_slice *slices)
{
    kvi_net_meta *m = &net->host.meta;

    for (uint32_t k = 0; k < net->n_ratios; k++) {
        const uint32_t ratio = net->ratios[k];
        size_t         at = k * net->n_all;

        for (size_t i = 0; i < net->n_parts; i++) {
            const size_t   n_rows = net->host.parts[i].n_rows;
            const uint64_t end = slices[i].pos + slices[i].n_rows;
            const size_t   n_slots = kvi_net_entry_slots(net, &slices[i], n_rows, ratio);
            uint64_t       j = (end - n_rows) / ratio;

            for (size_t slot = 0; slot < n_slots; slot++, at++, j++) {
                m->turn_pos[at] = j < end / ratio ? j * ratio : 0;
                m->entry_pos[at] = j < end / ratio ? j * ratio : KVI_NO_ENTRY;
            }
        }
    }
}

/* What layers from `layer` on find of each slice. */
static void place_slices(kvi_net *net, const kvi_net_slice *slices, uint32_t layer)
{
    for (uint32_t l = layer; l < net->model->plan.n_layers; l++)
        for (size_t i = 0; i < net->n_parts; i++) {
            const kvi_net_slice *s = &slices[i];
            const kvi_net_part  *part = &net->host.parts[i];

            net->host.meta.slice_rows[l * net->n_parts + i] =
                (kvi_slice_rows){.pos = s->pos + s->n_rows - part->n_rows,
                                 .row = part->begin,
                                 .floor = kvi_max_size(s->floors[l], s->first_rows[l])};
        }
}

static bool is_alone(const kvi_net_slice *s)
{
    return s->mass || kvi_select_is_limited(s->limits);
}

static void group_slices(kvi_net *net, const kvi_net_slice *slices)
{
    const kvi_net_part *parts = net->host.parts;
    const bool          apart = kvi_memory_is_apart(&net->memory);

    net->n_groups = 0;
    for (size_t i = 0; i < net->n_parts; i++) {
        kvi_net_group       *last = net->n_groups ? &net->host.groups[net->n_groups - 1] : NULL;
        const kvi_net_slice *of = last ? &slices[last->first] : NULL;

        if (parts[i].n_rows == 0)
            continue;
        if (!apart || !last || last->first + last->n != i || last->each != parts[i].n_rows ||
            is_alone(of) || is_alone(&slices[i]) || of->replay != slices[i].replay ||
            memcmp(of->geom, slices[i].geom, sizeof *of->geom) != 0) {
            last = &net->host.groups[net->n_groups++];
            *last = (kvi_net_group){
                .first = i, .each = parts[i].n_rows, .begin = parts[i].begin};
        }
        last->n++;
        last->n_rows += parts[i].n_rows;
    }
}

static void place(kvi_net *net, const kvi_net_slice *slices, uint32_t layer)
{
    place_entries(net, slices);
    place_slices(net, slices, layer);
    group_slices(net, slices);
}

void kvi_net_describe_rows(kvi_net *net, const kvi_net_slice *slices)
{
    kvi_net_meta *m = &net->host.meta;
    const bool    apart = kvi_memory_is_apart(&net->memory);
    uint8_t      *hidden = m->hidden;
    size_t        at = 0;

    for (size_t i = 0; i < net->n_parts; i++) {
        const kvi_select_limits *limits = slices[i].limits;

        for (uint32_t r = 0; r < slices[i].n_rows; r++)
            describe_row(net, &slices[i], r, at++);
        if (apart && limits && limits->n_hidden) {
            memcpy(hidden, limits->hidden, limits->n_hidden);
            hidden += limits->n_hidden;
        }
        m->slices[i] = (kvi_slice){.index_parts = slices[i].index_parts,
                                   .main_parts = slices[i].main_parts,
                                   .pages = slices[i].window_pages,
                                   .pending = slices[i].pending};
    }
    place(net, slices, 0);
    for (uint64_t i = 0; i < net->n_in_turn; i++)
        m->in_turn[i] = i;
}

/* What is there of a run: copies of it are noted last. */
kvcsa_status kvi_net_send_rows(kvi_net *net, kvcsa_error *err)
{
    const kvi_net_meta *m = &net->host.meta;

    if (!kvi_memory_is_apart(&net->memory))
        return KVCSA_OK;
    return kvi_post_put(&net->post, &net->memory, net->b.meta.pos, m->pos,
                        m->fixed + net->copies.stage_used * sizeof *m->jobs, err);
}

/* ------------------------------------------------------------------ rows that go */

/* Rows move up in place where the memory is the host's, else into the spare area and, in a second
 * launch, back. */
typedef struct mover {
    kvi_net *net;
    uint8_t *spare; /* where the next rows go to or come from; NULL = in place */
    int      back;
} mover;

/* Rows of one buffer that stay close up. */
static void move_up(mover *m, void *rows, size_t row_bytes)
{
    kvi_net *net = m->net;
    uint8_t *to = rows;

    for (size_t i = 0; i < net->n_parts; i++) {
        const kvi_net_part *part = &net->host.parts[i];
        const uint8_t      *from = (uint8_t *)rows + (part->begin + part->n_drop) * row_bytes;
        const size_t        bytes = (part->n_rows - part->n_drop) * row_bytes;

        if (to != from && m->spare) {
            kvi_copies_add(&net->copies, &net->memory, m->back ? to : m->spare,
                           m->back ? m->spare : from, bytes);
            m->spare += bytes;
        } else if (to != from) {
            memmove(to, from, bytes);
        }
        to += bytes;
    }
}

size_t kvi_net_moving_bytes(const kvi_config *c, size_t n_ids, size_t n_block_ids)
{
    const size_t m = c->hc_copies;

    return ((m + 1) * c->hidden_size + (3 + m) * m) * sizeof(float) + n_ids * sizeof(int32_t) +
           n_block_ids * sizeof(int32_t) + sizeof(uint32_t);
}

/* What operators have made so far, in the order of the spare area. */
static void move_buffers(mover *m)
{
    const kvi_config *c = &m->net->model->config;
    kvi_net_buffers  *b = &m->net->b;
    const size_t      copies = c->hc_copies;
    const size_t      f = sizeof(float);

    move_up(m, b->h, copies * c->hidden_size * f);
    move_up(m, b->x, c->hidden_size * f);
    move_up(m, b->pre[0], copies * f);
    move_up(m, b->pre[1], copies * f);
    move_up(m, b->post, copies * f);
    move_up(m, b->comb, copies * copies * f);
    move_up(m, b->ids, m->net->n_ids * sizeof *b->ids);
    move_up(m, b->blocks, m->net->n_block_ids * sizeof *b->blocks);
    move_up(m, b->n_blocks, sizeof *b->n_blocks);
}

static void move_meta(kvi_net *net)
{
    kvi_net_meta *meta = &net->host.meta;
    const size_t  n_columns = net->model->engram.n_columns;
    mover         m = {.net = net};

    move_up(&m, meta->pos, sizeof *meta->pos);
    for (uint32_t k = 0; k < net->n_ratios; k++)
        move_up(&m, meta->n_visible + k * net->n_all, sizeof *meta->n_visible);
    for (uint32_t e = 0; e < net->model->config.n_engram_layers; e++)
        move_up(&m, meta->erows + e * net->n_all * n_columns, n_columns * sizeof *meta->erows);
}

/* Rows of a slice that go: those below first_rows[layer]. */
static size_t rows_to_drop(const kvi_net *net, const kvi_net_slice *slice, const kvi_net_part *part,
                           uint32_t layer)
{
    const uint64_t pos = slice->pos + slice->n_rows - part->n_rows;
    const uint64_t first = slice->first_rows[layer];

    if (slice->stopped && !kvi_memory_is_apart(&net->memory))
        return part->n_rows;
    return first > pos ? kvi_min_size(first - pos, part->n_rows) : 0;
}

kvcsa_status kvi_net_drop_rows(kvi_net *net, const kvi_net_slice *slices, uint32_t layer,
                               kvcsa_error *err)
{
    kvi_net_part *parts = net->host.parts;
    const bool    apart = kvi_memory_is_apart(&net->memory);
    size_t        n_drop = 0;
    kvcsa_status  st = KVCSA_OK;

    for (size_t i = 0; i < net->n_parts; i++)
        n_drop += parts[i].n_drop = rows_to_drop(net, &slices[i], &parts[i], layer);
    if (n_drop == 0)
        return KVCSA_OK;
    KVI_ASSERT(!apart || net->b.spare);
    for (int back = 0; back <= (apart ? 1 : 0) && st == KVCSA_OK; back++) {
        mover m = {.net = net, .spare = net->b.spare, .back = back};

        move_buffers(&m);
        st = kvi_copies_run(&net->copies, &net->memory, err);
    }
    if (st != KVCSA_OK)
        return st;
    move_meta(net);
    net->n_rows = 0;
    for (size_t i = 0; i < net->n_parts; i++) {
        parts[i].begin = net->n_rows;
        parts[i].n_rows -= parts[i].n_drop;
        net->n_rows += parts[i].n_rows;
    }
    place(net, slices, layer);
    return apart ? kvi_post_put(&net->post, &net->memory, net->b.meta.pos, net->host.meta.pos,
                                net->b.meta.lasting, err)
                 : KVCSA_OK;
}
