/* Opening and closing chunks that the host computes. */
#include <string.h>

#include "base/status.h"
#include "net/net_features.h"
#include "session/hosted.h"

/* ------------------------------------------------------------------ what can be served */

static kvcsa_status check_settings(const kvi_plan *plan, const kvi_settings *set, kvcsa_error *err)
{
    if (set->flags & KVCSA_SESSION_TRACK_MASS)
        return kvi_fail(
            err, KVCSA_ERR_UNSUPPORTED,
            "KVCSA_SESSION_TRACK_MASS: attention is not counted where the host computes");
    for (uint32_t l = 0; l < plan->n_layers && set->flags & KVCSA_SESSION_WINDOW_ONLY; l++)
        if (kvi_plan_row_kind(plan, l) == KVI_ROW_PAGED)
            return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                            "KVCSA_SESSION_WINDOW_ONLY: layer %u has no window", l);
    return KVCSA_OK;
}

kvcsa_status kvi_hosted_check(const kvcsa_pool *pool, const kvi_plan *plan, const kvi_settings *set,
                              kvcsa_error *err)
{
    const kvi_backend_ops *ops = kvi_pool_ops(pool);
    kvi_features           f = {0};
    kvcsa_status           st = check_settings(plan, set, err);

    for (uint32_t l = 0; l < plan->n_layers && st == KVCSA_OK; l++)
        if (kvi_plan_row_kind(plan, l) == KVI_ROW_NONE)
            st =
                kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                         "layer %u: cost only, no operator of this version serves such a layer", l);
    if (st != KVCSA_OK || !ops->features)
        return st;
    ops->features(&f);
    return kvi_net_check_plan(&f, ops->name, plan, err);
}

/* ------------------------------------------------------------------ lifetime */

static kvcsa_status create(kvcsa_session *s, kvcsa_error *err)
{
    const size_t n_layers = s->model->plan.n_layers;
    kvi_hosted  *h = kvi_zalloc(&s->allocator, sizeof *h);

    if (!h || !(h->written = kvi_zalloc(&s->allocator, n_layers)) ||
        !(h->at = kvi_zalloc(&s->allocator, 2 * n_layers * sizeof *h->at))) {
        if (h)
            kvi_free(&s->allocator, h->written, n_layers);
        kvi_free(&s->allocator, h, sizeof *h);
        return kvi_fail(err, KVCSA_ERR_NOMEM, "chunk of %zu layers", n_layers);
    }
    h->memory = *kvi_pool_memory(s->pool);
    h->memory.allocator = &s->allocator;
    s->hosted = h;
    return KVCSA_OK;
}

void kvi_hosted_destroy(kvcsa_session *s)
{
    const size_t n_layers = s->model->plan.n_layers;
    kvi_hosted  *h = s->hosted;

    if (!h)
        return;
    kvi_hosted_abandon(s);
    for (uint32_t i = 0; i < KVI_N_HOSTED_ARRAYS; i++)
        kvi_memory_free(&h->memory, h->arrays[i].data, h->arrays[i].cap);
    kvi_copies_fini(&h->copies, &h->memory);
    kvi_buf_free(&s->allocator, &h->here, 1);
    kvi_free(&s->allocator, h->at, 2 * n_layers * sizeof *h->at);
    kvi_free(&s->allocator, h->written, n_layers);
    kvi_free(&s->allocator, h, sizeof *h);
    s->hosted = NULL;
}

void kvi_hosted_wipe(kvcsa_session *s)
{
    kvi_hosted *h = s->hosted;

    if (!h)
        return;
    for (uint32_t i = 0; i < KVI_N_HOSTED_ARRAYS; i++)
        if (h->arrays[i].data) /* a device in trouble shows its memory to nobody */
            (void)kvi_memory_fill(&h->memory, h->arrays[i].data, 0, h->arrays[i].cap, NULL);
    if (h->here.data)
        memset(h->here.data, 0, h->here.cap);
}

uint64_t kvi_hosted_bytes(const kvcsa_session *s)
{
    const kvi_hosted *h = s->hosted;
    uint64_t          bytes = 0;

    if (!h)
        return 0;
    for (uint32_t i = 0; i < KVI_N_HOSTED_ARRAYS; i++)
        bytes += h->arrays[i].cap;
    return bytes + h->here.cap + (h->copies.jobs.cap + h->copies.there_cap) * sizeof(kvi_copy_job);
}

/* ------------------------------------------------------------------ begin */

/* Kernels load so many bytes at once. */
static size_t align_up(size_t bytes)
{
    return kvi_div_up(bytes, 64) * 64;
}

/* Places of the window and raw rows of every layer. */
static kvcsa_status place_rows(kvcsa_session *s, kvcsa_error *err)
{
    const kvi_plan *plan = &s->model->plan;
    kvi_hosted     *h = s->hosted;
    const size_t    n = h->slice.n_rows;
    size_t          bytes = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        h->at[l] = bytes;
        bytes += align_up(n * plan->rows[l].window_bytes);
    }
    for (uint32_t l = 0; l < plan->n_layers; l++) {
        h->at[plan->n_layers + l] = bytes;
        bytes += align_up(n * kvi_plan_raw_row_bytes(&plan->rows[l]));
    }
    return kvi_hosted_grow(s, KVI_HOSTED_ROWS, bytes, err);
}

/* Both sides of the tables: kvi_slices of the operators. */
static kvcsa_status send_tables(kvcsa_session *s, kvcsa_error *err)
{
    const uint32_t       n_layers = s->model->plan.n_layers;
    kvi_hosted          *h = s->hosted;
    const kvi_net_slice *slice = &h->slice;
    kvi_hosted_tables   *t = &h->tables;
    const kvi_slice      of = {.index_parts = slice->index_parts,
                               .main_parts = slice->main_parts,
                               .pages = slice->window_pages,
                               .pending = slice->pending};
    kvi_slice_rows      *rows;
    uint64_t            *pos;
    kvcsa_status         st;

    t->rows = sizeof of;
    t->pos = t->rows + n_layers * sizeof *rows;
    t->tally = t->pos + slice->n_rows * sizeof *pos;
    t->hidden = t->tally + 3 * sizeof(uint64_t);
    t->bytes = t->hidden + s->limits.n_hidden;
    if (!kvi_buf_reserve(&s->allocator, &h->here, 1, 0, t->bytes))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "tables of a chunk, %zu bytes", t->bytes);
    if ((st = kvi_hosted_grow(s, KVI_HOSTED_TABLES, t->bytes, err)) != KVCSA_OK)
        return st;
    uint8_t *here = h->here.data;

    memset(here, 0, t->bytes);
    memcpy(here, &of, sizeof of);
    rows = (kvi_slice_rows *)(void *)(here + t->rows);
    pos = (uint64_t *)(void *)(here + t->pos);
    for (uint32_t l = 0; l < n_layers; l++) {
        const size_t skip = kvi_hosted_skipped(h, l);

        rows[l] = (kvi_slice_rows){.pos = slice->pos + skip,
                                   .row = skip,
                                   .floor = kvi_max_size(slice->floors[l], slice->first_rows[l])};
    }
    for (uint32_t i = 0; i < slice->n_rows; i++)
        pos[i] = slice->pos + i;
    if (s->limits.n_hidden)
        memcpy(here + t->hidden, s->limits.hidden, s->limits.n_hidden);
    return kvi_memory_put(&h->memory, kvi_hosted_data(h, KVI_HOSTED_TABLES), here, t->bytes, err);
}

static kvcsa_status prepare(kvcsa_session *s, kvcsa_error *err)
{
    kvi_hosted        *h = s->hosted;
    const kvcsa_status st = place_rows(s, err);

    memset(h->written, 0, s->model->plan.n_layers);
    h->selected = KVI_NO_LAYER;
    h->candidates = KVI_NO_LAYER;
    return st == KVCSA_OK ? send_tables(s, err) : st;
}

static void describe(const kvcsa_session *s, kvcsa_chunk_info *info)
{
    const kvi_net_slice *slice = &s->hosted->slice;
    const uint64_t       taken = slice->replay ? 0 : slice->n_rows;

    info->position = slice->pos;
    info->n_queued = kvi_session_queued(s) - taken;
    info->tokens = slice->tokens;
    info->first_rows = slice->first_rows;
    info->n_rows = slice->n_rows;
    info->replay = slice->replay ? 1 : 0;
}

kvcsa_status kvi_hosted_begin(kvcsa_session *s, uint32_t max_rows, kvcsa_chunk_info *info,
                              kvcsa_error *err)
{
    kvi_hosted  *h;
    kvcsa_status st;

    if (!(s->set.flags & KVCSA_SESSION_CACHE_ONLY))
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "the session was not made with KVCSA_SESSION_CACHE_ONLY");
    if (!s->hosted && (st = create(s, err)) != KVCSA_OK)
        return st;
    h = s->hosted;
    kvi_session_begin_work(s);
    if (!kvi_session_has_work(s))
        return KVCSA_OK;
    if (atomic_exchange_explicit(&s->cancel, 0, memory_order_relaxed))
        return kvi_session_give_up(s, err);
    h->chunk = (kvi_chunk){.s = s};
    if ((st = kvi_chunk_plan(&h->chunk, max_rows ? max_rows : UINT32_MAX, &h->slice, err)) !=
            KVCSA_OK ||
        h->slice.n_rows == 0)
        return st;
    if ((st = prepare(s, err)) != KVCSA_OK) {
        kvi_chunk_undo(&h->chunk);
        return st;
    }
    h->open = 1;
    describe(s, info);
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ commit */

/* Raw rows of a layer, entry by entry: the tokens that begin one, but for its last. */
static void commit_raw_rows(kvi_hosted *h, const kvi_plan_row *row, const uint8_t *rows,
                            uint8_t *slots, uint32_t n_slots)
{
    const size_t   bytes = kvi_plan_raw_row_bytes(row);
    const uint64_t end = h->slice.pos + h->slice.n_rows;
    const uint64_t last = (end - 1) / row->ratio;
    const uint64_t kept = last >= n_slots ? (last - n_slots + 1) * row->ratio : 0;
    uint64_t       p = kvi_max_size(h->slice.pos, kept);

    while (p < end) {
        const uint64_t entry = p / row->ratio;
        const uint64_t stop = kvi_min_size(end, (entry + 1) * row->ratio - 1);

        if (p < stop)
            kvi_copies_add(&h->copies, &h->memory,
                           slots + entry % n_slots * row->pending_bytes + p % row->ratio * bytes,
                           rows + (p - h->slice.pos) * bytes, (stop - p) * bytes);
        p = (entry + 1) * row->ratio;
    }
}

static kvcsa_status commit_rows(kvcsa_session *s, kvcsa_error *err)
{
    const kvi_plan *plan = &s->model->plan;
    kvi_hosted     *h = s->hosted;
    const uint8_t  *rows = kvi_hosted_data(h, KVI_HOSTED_ROWS);
    uint8_t        *pending = s->now.pending ? kvi_block_main_part(s->now.pending) : NULL;
    const uint64_t  end = h->slice.pos + h->slice.n_rows;
    kvi_window_offs at = {0};

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *row = &plan->rows[l];
        const size_t        n = h->slice.n_rows - kvi_hosted_skipped(h, l);

        if (n && row->window_tokens)
            kvi_window_commit(
                &h->copies, &h->memory, &s->geom, row->window_bytes, at.page, s->page_parts.data,
                rows + h->at[l] + kvi_hosted_skipped(h, l) * row->window_bytes, end - n, n);
        if (pending && row->pending_bytes)
            commit_raw_rows(h, row, rows + h->at[plan->n_layers + l], pending + at.pending,
                            s->geom.pending_slots);
        kvi_window_offs_pass(&at, &s->geom, row);
    }
    return kvi_copies_run(&h->copies, &h->memory, err);
}

static void raise_floors(kvcsa_session *s)
{
    for (uint32_t l = 0; l < s->model->plan.n_layers; l++)
        if (s->now.floors[l] < s->first_rows[l])
            s->now.floors[l] = s->first_rows[l];
}

/* A layer that the chunk cannot do without. */
static int must_be_written(const kvcsa_session *s, uint32_t layer)
{
    const kvi_plan *plan = &s->model->plan;

    return plan->rows[layer].window_tokens ||
           (kvi_plan_owns(plan, layer) && !s->hosted->slice.replay);
}

static kvcsa_status check_written(const kvcsa_session *s, kvcsa_error *err)
{
    for (uint32_t l = 0; l < s->model->plan.n_layers; l++)
        if (must_be_written(s, l) && !s->hosted->written[l])
            return kvi_fail(err, KVCSA_ERR_ARG, "layer %u was not written", l);
    return KVCSA_OK;
}

kvcsa_status kvi_hosted_commit(kvcsa_session *s, kvcsa_error *err)
{
    kvi_hosted  *h = s->hosted;
    kvcsa_status st;

    if (!h || !h->open)
        return kvi_fail(err, KVCSA_ERR_ARG, "no chunk is open");
    if ((st = check_written(s, err)) != KVCSA_OK)
        return st;
    h->open = 0;
    if (atomic_exchange_explicit(&s->cancel, 0, memory_order_relaxed)) {
        kvi_chunk_undo(&h->chunk);
        return kvi_session_give_up(s, err);
    }
    if (!s->last_row_only && (st = commit_rows(s, err)) == KVCSA_OK)
        raise_floors(s);
    if (st == KVCSA_OK)
        st = kvi_memory_sync(&h->memory, err); /* of what the operators of the chunk did, too */
    if (st != KVCSA_OK) {
        kvi_chunk_lose_windows(&h->chunk);
        return st;
    }
    kvi_chunk_commit(&h->chunk, NULL, &h->slice, 0);
    return KVCSA_OK;
}

void kvi_hosted_abandon(kvcsa_session *s)
{
    if (!s->hosted || !s->hosted->open)
        return;
    s->hosted->open = 0;
    kvi_chunk_undo(&s->hosted->chunk);
}
