/* What rows of a chunk of the host attend to: selection and attention. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "session/hosted.h"

#define MAX_HEADS 65536u
#define NO_SINK -1e30f /* the running maximum of a row without keys: adds nothing beside any key */

static kvi_slices slices_of(const kvi_hosted_layer *v, size_t n)
{
    const uint8_t *tables = kvi_hosted_data(v->h, KVI_HOSTED_TABLES);

    return (kvi_slices){.slices = (const kvi_slice *)(const void *)tables,
                        .rows = (const kvi_slice_rows *)(const void *)(tables + v->h->tables.rows) +
                                v->layer,
                        .each = n};
}

/* Entries and index keys that the layer reads are there. */
static kvcsa_status check_owner(const kvi_hosted_layer *v, kvcsa_error *err)
{
    if (v->row->ratio == 0 || v->slice->replay || v->h->written[v->row->kv_owner])
        return KVCSA_OK;
    return kvi_fail(err, KVCSA_ERR_ARG,
                    "layer %u: layer %d, whose entries it reads, was not written", v->layer,
                    v->row->kv_owner);
}

/* ------------------------------------------------------------------ select */

/* Entries that the rows from `skip` on see: for the host and for operators. */
static kvcsa_status count_visible(const kvi_hosted_layer *v, size_t skip, kvi_select_params *p,
                                  kvcsa_error *err)
{
    const size_t n = v->slice->n_rows - skip;
    uint64_t    *here;
    kvcsa_status st;

    if (!kvi_buf_reserve(&v->s->allocator, &v->h->here, 1, 0, n * sizeof *here))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "counts of %zu rows", n);
    if ((st = kvi_hosted_grow(v->s, KVI_HOSTED_VISIBLE, n * sizeof *here, err)) != KVCSA_OK)
        return st;
    here = v->h->here.data;
    for (size_t i = 0; i < n; i++)
        here[i] = (v->slice->pos + skip + i + 1) / v->row->ratio;
    p->visible = here;
    p->n_visible = kvi_hosted_data(v->h, KVI_HOSTED_VISIBLE);
    return kvi_memory_put(&v->h->memory, kvi_hosted_data(v->h, KVI_HOSTED_VISIBLE), here,
                          n * sizeof *here, err);
}

/* Arrays of a selection of the whole chunk; ids and blocks may hold the one before. */
static kvcsa_status grow_selection(const kvi_hosted_layer *v, size_t n, kvcsa_error *err)
{
    const kvi_plan_row *row = v->row;
    const size_t        channels = n * row->index_heads * row->index_width;
    const struct {
        uint32_t which;
        size_t   bytes;
    } arrays[] = {
        {KVI_HOSTED_IDS, v->slice->n_rows * (size_t)row->select_entries * sizeof(int32_t)},
        {KVI_HOSTED_BLOCKS,
         row->candidates == KVCSA_CANDIDATES_CONSUMER
             ? 0
             : v->slice->n_rows * (size_t)row->candidate_blocks * sizeof(int32_t)},
        {KVI_HOSTED_N_BLOCKS,
         row->candidates == KVCSA_CANDIDATES_CONSUMER ? 0 : v->slice->n_rows * sizeof(uint32_t)},
        {KVI_HOSTED_CODES, channels},
        {KVI_HOSTED_SCALES, channels / 32 * sizeof(float)},
    };
    kvcsa_status st = KVCSA_OK;

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays && st == KVCSA_OK; i++)
        st = kvi_hosted_grow(v->s, arrays[i].which, arrays[i].bytes, err);
    return st;
}

/* Weights are scaled in place, so they are a copy in any case. */
static kvcsa_status bring_weights(const kvi_hosted_layer *v, const kvcsa_chunk_queries *q,
                                  size_t skip, float **out, kvcsa_error *err)
{
    const uint32_t        heads = v->row->index_heads;
    const size_t          bytes = (v->slice->n_rows - skip) * heads * sizeof(float);
    const kvi_hosted_rows r =
        kvi_hosted_rows_of(v, &q->weights, skip, v->slice->n_rows, 1, heads, KVI_HOSTED_IN_TOO);
    const float *x;
    kvcsa_status st = kvi_hosted_bring(v->s, &r, &x, err);

    if (st != KVCSA_OK || bytes == 0 ||
        x == (const float *)kvi_hosted_data(v->h, KVI_HOSTED_IN_TOO)) {
        *out = kvi_hosted_data(v->h, KVI_HOSTED_IN_TOO);
        return st;
    }
    if ((st = kvi_hosted_grow(v->s, KVI_HOSTED_IN_TOO, bytes, err)) != KVCSA_OK)
        return st;
    *out = kvi_hosted_data(v->h, KVI_HOSTED_IN_TOO);
    return kvi_memory_move(&v->h->memory, *out, x, bytes, err);
}

static uint64_t *tally_of(const kvi_hosted_layer *v)
{
    return (uint64_t *)(void *)((uint8_t *)kvi_hosted_data(v->h, KVI_HOSTED_TABLES) +
                                v->h->tables.tally);
}

static kvcsa_status clear_tally(const kvi_hosted_layer *v, kvcsa_error *err)
{
    return kvi_memory_fill(&v->h->memory, tally_of(v), 0, 3 * sizeof(uint64_t), err);
}

/* A selection of rows from skip on into the arrays. */
static kvcsa_status run_select(const kvi_hosted_layer *v, const kvcsa_chunk_queries *q, size_t skip,
                               kvcsa_error *err)
{
    const kvi_plan_row   *row = v->row;
    const size_t          n = v->slice->n_rows - skip;
    const kvi_hosted_rows queries = kvi_hosted_rows_of(
        v, &q->query, skip, v->slice->n_rows, row->index_heads, row->index_width, KVI_HOSTED_IN);
    const int         apart = kvi_memory_is_apart(&v->h->memory);
    kvcsa_work       *work = kvi_hosted_work(v);
    kvi_select_params p = {
        .exec = kvi_session_exec(v->s),
        .row = row,
        .owner = v->owner,
        .of = slices_of(v, n),
        .n_rows = n,
        .limits = &v->s->limits,
        .hidden = (const uint8_t *)kvi_hosted_data(v->h, KVI_HOSTED_TABLES) + v->h->tables.hidden,
        .work = &work,
        .tally = tally_of(v),
        .n_scores = kvi_select_scratch(row, kvi_hosted_end(v) / row->ratio, n, apart)};
    kvcsa_status st = grow_selection(v, n, err);

    if (st != KVCSA_OK ||
        (st = kvi_hosted_grow(v->s, KVI_HOSTED_SCORES, p.n_scores * sizeof(float), err)) !=
            KVCSA_OK ||
        (st = kvi_hosted_bring(v->s, &queries, &p.queries, err)) != KVCSA_OK ||
        (st = bring_weights(v, q, skip, &p.weights, err)) != KVCSA_OK ||
        (st = clear_tally(v, err)) != KVCSA_OK ||
        (st = count_visible(v, skip, &p, err)) != KVCSA_OK)
        return st;
    p.codes = kvi_hosted_data(v->h, KVI_HOSTED_CODES);
    p.scales = kvi_hosted_data(v->h, KVI_HOSTED_SCALES);
    p.scores = kvi_hosted_data(v->h, KVI_HOSTED_SCORES);
    p.ids = (int32_t *)kvi_hosted_data(v->h, KVI_HOSTED_IDS) + skip * row->select_entries;
    p.blocks = (int32_t *)kvi_hosted_data(v->h, KVI_HOSTED_BLOCKS) + skip * row->candidate_blocks;
    p.n_blocks = (uint32_t *)kvi_hosted_data(v->h, KVI_HOSTED_N_BLOCKS) + skip;
    return kvi_select(&p, err);
}

static kvcsa_status count_select(const kvi_hosted_layer *v, kvcsa_error *err)
{
    uint64_t     tally[3];
    kvcsa_work  *w = kvi_hosted_work(v);
    kvcsa_status st = KVCSA_OK;

    if (!w || v->row->candidates == KVCSA_CANDIDATES_NONE)
        return KVCSA_OK;
    if ((st = kvi_memory_get(&v->h->memory, tally, tally_of(v), sizeof tally, err)) == KVCSA_OK)
        kvi_select_add_tally(v->row, v->owner, tally, w);
    return st;
}

/* ids of all rows of the chunk for the host: those that were left out have none. */
static kvcsa_status give_ids(const kvi_hosted_layer *v, size_t skip, int32_t *ids, kvcsa_error *err)
{
    const size_t k = v->row->select_entries;

    if (!ids)
        return KVCSA_OK;
    for (size_t i = 0; i < skip * k; i++)
        ids[i] = -1;
    return kvi_memory_get(&v->h->memory, ids + skip * k,
                          (const int32_t *)kvi_hosted_data(v->h, KVI_HOSTED_IDS) + skip * k,
                          (v->slice->n_rows - skip) * k * sizeof *ids, err);
}

static kvcsa_status check_select(const kvi_hosted_layer *v, const kvcsa_chunk_queries *q,
                                 kvcsa_error *err)
{
    const kvi_plan_row *row = v->row;
    kvcsa_status        st;

    if (row->select_owner != (int32_t)v->layer)
        return kvi_fail(err, KVCSA_ERR_ARG, "layer %u makes no selection", v->layer);
    if ((st = kvi_hosted_check_given(v, "query", &q->query, 1, err)) != KVCSA_OK ||
        (st = kvi_hosted_check_given(v, "weights", &q->weights, 1, err)) != KVCSA_OK ||
        (st = check_owner(v, err)) != KVCSA_OK)
        return st;
    if (row->candidates == KVCSA_CANDIDATES_CONSUMER && v->h->candidates != row->candidate_owner)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "layer %u: layer %d, whose candidates it reads, was not selected", v->layer,
                        row->candidate_owner);
    return KVCSA_OK;
}

kvcsa_status kvi_hosted_select(kvcsa_session *s, uint32_t layer, const kvcsa_chunk_queries *q,
                               kvcsa_error *err)
{
    kvi_hosted_layer v;
    size_t           skip;
    kvcsa_status     st = kvi_hosted_view(s, layer, q->flags, q->reserved, &v, err);

    if (st != KVCSA_OK || (st = check_select(&v, q, err)) != KVCSA_OK)
        return st;
    skip = kvi_hosted_skipped_queries(v.h, layer);
    v.h->selected = KVI_NO_LAYER;
    if (v.row->candidates == KVCSA_CANDIDATES_SOURCE)
        v.h->candidates = KVI_NO_LAYER;
    if (skip < v.slice->n_rows && ((st = run_select(&v, q, skip, err)) != KVCSA_OK ||
                                   (st = count_select(&v, err)) != KVCSA_OK))
        return st;
    v.h->selected = (int32_t)layer;
    if (v.row->candidates == KVCSA_CANDIDATES_SOURCE)
        v.h->candidates = (int32_t)layer;
    return give_ids(&v, skip, q->ids, err);
}

/* ------------------------------------------------------------------ attend */

/* What the operator reads and where it leaves the rows. */
typedef struct attention {
    const kvcsa_chunk_attention *p;
    const float                 *q;
    const float                 *sink; /* for operators; NULL = none */
    float                       *out;
    size_t                       skip;
    size_t                       n; /* rows from skip on */
    float                        scale;
} attention;

static kvcsa_status bring_sink(const kvi_hosted_layer *v, attention *a, kvcsa_error *err)
{
    const uint32_t n = a->p->n_heads;
    float         *here;
    kvcsa_status   st;

    if (!a->p->sink && v->owner && v->owner->n_strip_heads)
        return KVCSA_OK;
    if (!kvi_buf_reserve(&v->s->allocator, &v->h->here, 1, 0, n * sizeof *here))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "sinks of %u heads", n);
    if ((st = kvi_hosted_grow(v->s, KVI_HOSTED_SINK, n * sizeof *here, err)) != KVCSA_OK)
        return st;
    here = v->h->here.data;
    for (uint32_t i = 0; i < n; i++)
        here[i] = a->p->sink ? a->p->sink[i] : NO_SINK;
    a->sink = kvi_hosted_data(v->h, KVI_HOSTED_SINK);
    return kvi_memory_put(&v->h->memory, kvi_hosted_data(v->h, KVI_HOSTED_SINK), here,
                          n * sizeof *here, err);
}

static uint64_t window_rows_read(const kvi_hosted_layer *v, const attention *a)
{
    const uint64_t floor = kvi_max_size(v->slice->floors[v->layer], v->slice->first_rows[v->layer]);
    uint64_t       n = 0;

    for (uint64_t end = v->slice->pos + a->skip + 1; end <= kvi_hosted_end(v); end++)
        n += kvi_min_size(v->row->window_tokens, end - kvi_min_size(floor, end));
    return n;
}

static kvcsa_status count_sparse(const kvi_hosted_layer *v, const attention *a,
                                 const kvi_exec *exec, const int32_t *ids, kvcsa_error *err)
{
    const uint64_t         n_window = window_rows_read(v, a);
    const kvi_tally_params p = {.items = ids,
                                .counts = tally_of(v),
                                .stride = v->row->select_entries,
                                .n_rows = a->n,
                                .n_items = v->row->select_entries,
                                .each = 1,
                                .rows_per_block = v->owner ? v->owner->rows_per_block : 1};
    kvcsa_work            *w = kvi_hosted_work(v);
    uint64_t               tally[3];
    kvcsa_status           st;

    if (!w)
        return KVCSA_OK;
    w->n_rows += a->n;
    w->n_window_rows_read += n_window;
    w->read_bytes += n_window * v->row->window_bytes;
    if (!v->owner)
        return KVCSA_OK;
    if ((st = clear_tally(v, err)) != KVCSA_OK ||
        (st = exec->ops->tally(exec->dev, &p, err)) != KVCSA_OK ||
        (st = kvi_memory_get(&v->h->memory, tally, tally_of(v), sizeof tally, err)) != KVCSA_OK)
        return st;
    w->n_entries_read += tally[1];
    w->n_blocks_touched += tally[2];
    w->read_bytes += tally[1] * v->row->entry_bytes;
    return KVCSA_OK;
}

static kvcsa_status attend_sparse(const kvi_hosted_layer *v, const attention *a, kvcsa_error *err)
{
    const kvi_plan_row *row = v->row;
    const kvi_exec      exec = kvi_session_exec(v->s);
    const uint8_t      *tables = kvi_hosted_data(v->h, KVI_HOSTED_TABLES);
    const int32_t      *all = kvi_hosted_data(v->h, KVI_HOSTED_IDS);
    const int32_t      *ids = v->owner ? all + a->skip * row->select_entries : NULL;
    kvi_attend_params   p = {
          .q = a->q,
          .out = a->out,
          .pos = (const uint64_t *)(const void *)(tables + v->h->tables.pos) + a->skip,
          .page_off = kvi_window_offs_of(&v->s->geom, &v->s->model->plan, v->layer).page,
          .chunk = (const uint8_t *)kvi_hosted_data(v->h, KVI_HOSTED_ROWS) + v->h->at[v->layer],
          .sink = a->sink,
          .ids = ids,
          .entries = {.owner = v->owner},
          .n_rows = a->n,
          .n_heads = a->p->n_heads,
          .width = v->width,
          .n_window = row->window_tokens,
          .page_rows = v->s->geom.page_rows,
          .n_pages = v->s->geom.n_pages,
          .row_bytes = row->window_bytes,
          .k = v->owner ? row->select_entries : 0,
          .scale = a->scale,
          .of = slices_of(v, a->n)};
    const kvcsa_status st = exec.ops->attend(exec.dev, &p, err);

    return st == KVCSA_OK ? count_sparse(v, a, &exec, ids, err) : st;
}

static kvcsa_status attend_paged(const kvi_hosted_layer *v, const attention *a, kvcsa_error *err)
{
    const kvi_plan_row     *row = v->row;
    const kvi_exec          exec = kvi_session_exec(v->s);
    kvi_select_params       seen;
    kvi_paged_attend_params p = {.q = a->q,
                                 .out = a->out,
                                 .pages = v->slice->main_parts,
                                 .sink = a->sink,
                                 .page_off = v->owner->main_off,
                                 .n_rows = a->n,
                                 .n_heads = a->p->n_heads,
                                 .n_kv_heads = row->kv_heads,
                                 .width = v->width,
                                 .page_rows = v->owner->rows_per_block,
                                 .format = row->entry_format,
                                 .scale = a->scale,
                                 .max_visible = kvi_hosted_end(v)};
    kvcsa_work             *w = kvi_hosted_work(v);
    kvcsa_status            st = count_visible(v, a->skip, &seen, err);

    if (st != KVCSA_OK)
        return st;
    p.n_visible = seen.n_visible;
    st = exec.ops->paged_attend(exec.dev, &p, err);
    if (st != KVCSA_OK || !w)
        return st;
    w->n_rows += a->n;
    for (uint64_t n = v->slice->pos + a->skip + 1; n <= kvi_hosted_end(v); n++) {
        w->n_entries_read += n;
        w->n_blocks_touched += kvi_div_up(n, v->owner->rows_per_block);
        w->read_bytes += n * row->entry_bytes;
    }
    return KVCSA_OK;
}

static kvcsa_status check_attend(const kvi_hosted_layer *v, const kvcsa_chunk_attention *p,
                                 kvcsa_error *err)
{
    const kvi_plan_row *row = v->row;
    size_t              bytes;
    kvcsa_status        st;

    if ((st = kvi_hosted_check_given(v, "query", &p->query, 1, err)) != KVCSA_OK)
        return st;
    if (!p->out)
        return kvi_fail(err, KVCSA_ERR_ARG, "layer %u: out is NULL", v->layer);
    if (p->n_heads == 0 || p->n_heads > MAX_HEADS ||
        (row->kv_heads > 1 && p->n_heads % row->kv_heads))
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "layer %u: n_heads is %u, must be a multiple of kv_heads, %u, in 1..%u",
                        v->layer, p->n_heads, row->kv_heads, MAX_HEADS);
    if (!kvi_mul_size((size_t)p->n_heads * v->width * sizeof(float), v->slice->n_rows, &bytes))
        return kvi_fail(err, KVCSA_ERR_ARG, "layer %u: n_heads is %u, too many for %u rows",
                        v->layer, p->n_heads, v->slice->n_rows);
    if (!isfinite(p->scale))
        return kvi_fail(err, KVCSA_ERR_ARG, "layer %u: scale is not a finite number", v->layer);
    if (row->window_tokens && !v->h->written[v->layer])
        return kvi_fail(err, KVCSA_ERR_ARG, "layer %u was not written", v->layer);
    if ((st = check_owner(v, err)) != KVCSA_OK)
        return st;
    if (row->select_owner != KVI_NO_LAYER && v->h->selected != row->select_owner)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "layer %u: the selection of layer %d is wanted, the last one is of %d",
                        v->layer, row->select_owner, v->h->selected);
    if (v->owner && v->owner->n_strip_heads && kvi_select_is_limited(&v->s->limits))
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "layer %u attends to all positions: none can be hidden", v->layer);
    return KVCSA_OK;
}

kvcsa_status kvi_hosted_attend(kvcsa_session *s, uint32_t layer, const kvcsa_chunk_attention *p,
                               kvcsa_error *err)
{
    kvi_hosted_layer v;
    attention        a = {.p = p};
    kvi_hosted_rows  q;
    kvi_hosted_out   out;
    kvcsa_status     st = kvi_hosted_view(s, layer, p->flags, p->reserved, &v, err);

    if (st != KVCSA_OK || (st = check_attend(&v, p, err)) != KVCSA_OK)
        return st;
    a.skip = kvi_hosted_skipped_queries(v.h, layer);
    a.n = v.slice->n_rows - a.skip;
    a.scale = p->scale != 0.0f ? p->scale : (float)(1.0 / sqrt((double)v.width));
    if (a.n == 0)
        return KVCSA_OK;
    q = kvi_hosted_rows_of(&v, &p->query, a.skip, v.slice->n_rows, p->n_heads, v.width,
                           KVI_HOSTED_IN);
    out = (kvi_hosted_out){.out = p->out,
                           .row_stride = p->out_row_stride,
                           .head_stride = p->out_head_stride,
                           .skip = a.skip,
                           .n = v.slice->n_rows,
                           .heads = p->n_heads,
                           .width = v.width,
                           .flags = p->flags};
    if ((st = bring_sink(&v, &a, err)) != KVCSA_OK ||
        (st = kvi_hosted_bring(s, &q, &a.q, err)) != KVCSA_OK ||
        (st = kvi_hosted_place(s, &out, &a.out, err)) != KVCSA_OK)
        return st;
    st = v.owner && v.owner->n_strip_heads ? attend_paged(&v, &a, err) : attend_sparse(&v, &a, err);
    return st == KVCSA_OK ? kvi_hosted_give(s, &out, a.out, err) : st;
}
