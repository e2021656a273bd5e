/* A session as a header and records. Parts of full blocks, pages and logits go out as they lie in
 * the session; what holds rows of nobody's (behind the last token, outside the window) is gathered,
 * with zeros in their place: such bytes may be another session's. */
#include "session/snapshot_int.h"

#include <string.h>

#include "base/status.h"

static const uint8_t zeros[KVI_SNAP_UNIT];

enum { AHEAD = 16 }; /* blocks */

/* ------------------------------------------------------------------ header */

/* Window rows that are right and that the ring still holds begin here. */
static uint64_t window_begin(const kvcsa_session *s)
{
    const uint64_t ring = kvi_window_ring_rows(&s->geom);
    const uint64_t n = s->now.n_tokens;

    return kvi_max_size(s->now.window_lo, n > ring ? n - ring : 0);
}

static kvi_block *page_of_group(const kvcsa_session *s, uint64_t group)
{
    return s->now.pages[group % s->geom.n_pages];
}

static int has_window(const kvcsa_session *s)
{
    const kvi_state *st = &s->now;
    const uint64_t   lo = s->geom.n_pages ? window_begin(s) : 0;

    if (!s->geom.n_pages || st->replay_end || lo >= st->n_tokens)
        return 0;
    for (uint64_t g = lo / s->geom.page_rows; g <= (st->n_tokens - 1) / s->geom.page_rows; g++)
        if (!page_of_group(s, g))
            return 0;
    return 1;
}

uint64_t kvi_snap_copy_raw(const kvcsa_session *s, uint64_t n, uint64_t lo, uint32_t slots,
                           uint8_t *page, uint8_t *bytes, int to_page)
{
    const kvi_plan *plan = &s->model->plan;
    kvi_window_offs offs = {0};
    uint64_t        total = 0;

    for (uint32_t l = 0; l < plan->n_layers && n; l++) {
        const kvi_plan_row *row = &plan->rows[l];
        const uint64_t      last = row->pending_bytes ? (n - 1) / row->ratio : 0;
        uint64_t            j = row->pending_bytes ? kvi_div_up(lo, row->ratio) : 1;

        if (last >= slots)
            j = kvi_max_size(j, last + 1 - slots);
        for (; j <= last && row->pending_bytes; j++, total += row->pending_bytes) {
            uint8_t *at = NULL;

            if (!bytes)
                continue;
            at = page + offs.pending + j % s->geom.pending_slots * row->pending_bytes;
            if (to_page)
                memcpy(at, bytes + total, row->pending_bytes);
            else
                memcpy(bytes + total, at, row->pending_bytes);
        }
        kvi_window_offs_pass(&offs, &s->geom, row);
    }
    return total;
}

/* Where the oldest entry in progress began; n_tokens if there is none. */
static uint64_t begin_of_entries(const kvcsa_session *s)
{
    const kvi_plan *plan = &s->model->plan;
    const uint64_t  n = s->now.n_tokens;
    uint64_t        lo = n;

    for (uint32_t l = 0; l < plan->n_layers; l++)
        if (plan->rows[l].pending_bytes)
            lo = kvi_min_size(lo, n - n % plan->rows[l].ratio);
    return lo;
}

static void set_sections(const kvcsa_session *s, uint32_t flags, kvi_snap_header *h)
{
    const kvi_state *st = &s->now;
    uint64_t         raw_lo = begin_of_entries(s);
    uint32_t         slots = 1;

    if ((flags & KVCSA_SNAPSHOT_WINDOW) && has_window(s)) {
        h->sections |= KVI_SNAP_WINDOW;
        h->flags |= st->window_approx ? (uint32_t)KVI_SNAP_APPROX : 0u;
        h->window_lo = window_begin(s);
        raw_lo = h->window_lo; /* those that a rewind within the slack wants, too */
        slots = s->geom.pending_slots;
    }
    if (st->pending && !st->replay_end && raw_lo < st->n_tokens) {
        const uint64_t bytes = kvi_snap_copy_raw(s, st->n_tokens, raw_lo, slots, NULL, NULL, 0);

        h->sections |= bytes ? (uint32_t)KVI_SNAP_RAW : 0u;
        h->raw_lo = bytes ? raw_lo : 0;
        h->raw_slots = bytes ? slots : 0;
        h->raw_bytes = (uint32_t)bytes; /* at most a page */
    }
    /* beside exact entries no others: they are marked by nothing, and one row brings them back */
    if ((flags & KVCSA_SNAPSHOT_LOGITS) && st->logits && st->n_tokens &&
        !(st->logits_approx && st->taint_pos >= st->n_tokens))
        h->sections |= KVI_SNAP_LOGITS;
}

static kvcsa_status make_header(const kvcsa_session *s, uint32_t flags, uint32_t kind,
                                kvi_snap_header *h, kvcsa_error *err)
{
    const kvi_domain    *d = kvi_prefix_root_domain(s->root);
    const kvi_kv_layout *layout = &s->model->layout;

    *h = (kvi_snap_header){.kind = kind,
                           .weights = d->weights,
                           .adapter = d->adapter,
                           .plan = d->plan,
                           .numerics = d->numerics,
                           .salt = d->salt,
                           .domain_version = d->version,
                           .block_tokens = layout->block_tokens,
                           .index_bytes = layout->index_part_bytes,
                           .main_bytes = layout->main_part_bytes,
                           .vocab = kvi_snap_vocab(s),
                           .n_layers = s->model->plan.n_layers,
                           .page_rows = s->geom.page_rows,
                           .n_tokens = s->now.n_tokens,
                           .exact_tokens = s->now.taint_pos};
    if (s->geom.page_rows)
        h->window_row_bytes = s->geom.page_bytes / s->geom.page_rows;
    set_sections(s, flags, h);
    return kvi_snap_header_count(h, err);
}

void kvi_snap_fill_info(const kvi_snap_header *h, kvcsa_snapshot_info *info)
{
    info->n_tokens = h->n_tokens;
    info->fingerprint = h->weights;
    info->numerics = h->numerics;
    info->salt = h->salt;
    info->total_bytes = h->total_bytes;
    info->n_records = h->n_records;
    info->written_bytes = 0;
    info->n_written_records = 0;
    info->n_shared_records = 0;
    info->version = KVI_SNAP_VERSION;
    info->sections = h->sections & (KVI_SNAP_WINDOW | KVI_SNAP_LOGITS);
    info->block_tokens = h->block_tokens;
    info->exact = h->exact_tokens >= h->n_tokens;
}

kvcsa_status kvi_snapshot_size(kvcsa_session *s, uint32_t flags, uint64_t *n_bytes,
                               kvcsa_error *err)
{
    kvi_snap_header h;
    kvcsa_status    st = make_header(s, flags, KVI_SNAP_FILE, &h, err);

    *n_bytes = st == KVCSA_OK ? h.total_bytes : 0;
    return st;
}

/* ------------------------------------------------------------------ records */

/* Pinned. */
static kvcsa_status alloc_seen(kvi_save *v, kvcsa_error *err)
{
    void        *seen = NULL;
    kvcsa_status st =
        kvi_memory_alloc_pinned(kvi_pool_memory(v->s->pool), v->seen_bytes, &seen, err);

    v->seen = seen;
    if (st == KVCSA_ERR_NOMEM)
        kvi_fail(err, st, "parts of %zu bytes", v->seen_bytes);
    return st;
}

kvcsa_status kvi_save_init(kvi_save *v, kvcsa_session *s, uint32_t flags, uint32_t kind,
                           kvcsa_error *err)
{
    const kvi_kv_layout *layout = &s->model->layout;
    kvcsa_status         st;

    *v = (kvi_save){.s = s};
    if ((st = make_header(s, flags, kind, &v->h, err)) != KVCSA_OK ||
        (st = kvi_session_view(s, 0, err)) != KVCSA_OK)
        return st;
    v->scratch_bytes =
        layout->block_tokens * sizeof(int32_t) + layout->index_part_bytes + layout->main_part_bytes;
    v->scratch_bytes = kvi_max_size(v->scratch_bytes, s->geom.page_bytes);
    v->scratch_bytes = kvi_max_size(v->scratch_bytes, v->h.raw_bytes);
    if (!(v->scratch = kvi_alloc(&s->allocator, v->scratch_bytes)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "record of %zu bytes", v->scratch_bytes);
    if (!kvi_memory_is_apart(kvi_pool_memory(s->pool)))
        return KVCSA_OK;
    /* of a directory's blocks most are there already */
    v->n_ahead = kind == KVI_SNAP_FILE ? kvi_min_size(kvi_snap_n_blocks(&v->h), AHEAD) : 1;
    v->seen_bytes = (size_t)kvi_max_size(v->n_ahead, 1) *
                    ((size_t)layout->index_part_bytes + layout->main_part_bytes);
    v->seen_bytes = kvi_max_size(v->seen_bytes, s->geom.page_bytes);
    v->seen_bytes = kvi_max_size(v->seen_bytes, s->geom.pending_bytes);
    return alloc_seen(v, err);
}

void kvi_save_fini(kvi_save *v)
{
    if (v->s) {
        kvi_free(&v->s->allocator, v->scratch, v->scratch_bytes);
        if (v->seen)
            kvi_memory_free_pinned(kvi_pool_memory(v->s->pool), v->seen, v->seen_bytes);
    }
    *v = (kvi_save){0};
}

/* The main part of a page. */
static kvcsa_status see_page(kvi_save *v, const kvi_block *page, size_t n_bytes, const void **out,
                             kvcsa_error *err)
{
    v->n_seen = 0;
    return kvi_memory_see(kvi_pool_memory(v->s->pool), kvi_block_main_part(page), n_bytes, v->seen,
                          out, err);
}

/* Parts of block `first` and of those behind it, from a device: one wait for all. */
static kvcsa_status look_ahead(kvi_save *v, uint64_t first, kvcsa_error *err)
{
    const kvi_memory    *m = kvi_pool_memory(v->s->pool);
    const kvi_kv_layout *layout = &v->s->model->layout;
    const uint64_t       n = kvi_min_size(v->n_ahead, kvi_snap_n_blocks(&v->h) - first);
    uint8_t             *to = v->seen;
    kvcsa_status         st = KVCSA_OK;
    kvcsa_status         waited;

    v->n_seen = 0;
    for (uint64_t i = first; i < first + n && st == KVCSA_OK; i++) {
        const kvi_block *b = kvi_session_blocks(v->s)[i];

        st = kvi_memory_get_later(m, to, kvi_block_index_part(b), layout->index_part_bytes, err);
        to += layout->index_part_bytes;
        if (st == KVCSA_OK)
            st = kvi_memory_get_later(m, to, kvi_block_main_part(b), layout->main_part_bytes, err);
        to += layout->main_part_bytes;
    }
    waited = kvi_memory_sync(m, st == KVCSA_OK ? err : NULL); /* nothing is on its way any more */
    st = st == KVCSA_OK ? waited : st;
    v->seen_first = first;
    v->n_seen = st == KVCSA_OK ? n : 0;
    return st;
}

kvcsa_status kvi_save_see(kvi_save *v, kvi_save_record *rec, kvcsa_error *err)
{
    const kvi_kv_layout *layout = &v->s->model->layout;
    const size_t         each = (size_t)layout->index_part_bytes + layout->main_part_bytes;
    kvcsa_status         st = KVCSA_OK;

    if (!rec->block)
        return KVCSA_OK;
    if (!v->seen) {
        rec->parts[0] = kvi_block_index_part(rec->block);
        rec->parts[1] = kvi_block_main_part(rec->block);
    } else {
        if ((rec->at < v->seen_first || rec->at - v->seen_first >= v->n_seen) &&
            (st = look_ahead(v, rec->at, err)) != KVCSA_OK)
            return st;
        rec->parts[0] = v->seen + (rec->at - v->seen_first) * each;
        rec->parts[1] = v->seen + (rec->at - v->seen_first) * each + layout->index_part_bytes;
        rec->in_scratch = 1;
    }
    rec->block = NULL;
    return KVCSA_OK;
}

/* Complete entries of n tokens of a block; the rest of its parts is zeros. */
static kvcsa_status gather_rows(kvi_save *v, kvi_save_record *rec, uint32_t n, uint8_t *index_part,
                                uint8_t *main_part, kvcsa_error *err)
{
    const kvi_kv_layout *layout = &v->s->model->layout;
    kvcsa_status         st = kvi_save_see(v, rec, err);

    if (st != KVCSA_OK)
        return st;
    memset(index_part, 0, layout->index_part_bytes);
    memset(main_part, 0, layout->main_part_bytes);
    kvi_kv_copy_rows(layout, n, index_part, main_part, rec->parts[0], rec->parts[1]);
    return KVCSA_OK;
}

static kvcsa_status make_block(kvi_save *v, uint64_t i, kvi_save_record *out, kvcsa_error *err)
{
    const kvi_block *b = kvi_session_blocks(v->s)[i];
    kvi_snap_record *r = &out->r;
    uint8_t         *ids = v->scratch;
    uint8_t         *index_part = ids + r->ids_bytes;
    uint8_t         *main_part = index_part + r->part_bytes[0];
    kvcsa_status     st;

    out->ids = kvi_block_tokens(b);
    out->block = b;
    out->at = i;
    r->parent = v->last_key;
    if (r->flags & KVI_RECORD_PARTIAL) {
        memset(ids, 0, r->ids_bytes);
        memcpy(ids, out->ids, r->n_tokens * sizeof(int32_t));
        if ((st = gather_rows(v, out, r->n_tokens, index_part, main_part, err)) != KVCSA_OK)
            return st;
        out->ids = ids;
        out->parts[0] = index_part;
        out->parts[1] = main_part;
        out->in_scratch = 1;
        r->flags |= v->s->now.taint_pos < v->h.n_tokens ? (uint32_t)KVI_RECORD_TAINTED : 0u;
        r->sums[0] = kvi_hash128_of(index_part, r->part_bytes[0], 0);
        r->sums[1] = kvi_hash128_of(main_part, r->part_bytes[1], 0);
    } else {
        r->flags |= kvi_block_is_tainted(b) ? (uint32_t)KVI_RECORD_TAINTED : 0u;
        r->sums[0] = kvi_block_index_sum(b);
        r->sums[1] = kvi_block_main_sum(b);
    }
    r->ids_sum = kvi_hash128_of(out->ids, r->ids_bytes, 0);
    if (r->flags)
        kvi_snap_record_set_key(r);
    else
        r->key = kvi_block_key(b);
    v->last_key = r->key;
    return KVCSA_OK;
}

/* Rows of positions [lo, hi) of a page, in its layout. */
static void gather_page(const kvcsa_session *s, const uint8_t *page, uint64_t lo, uint64_t hi,
                        uint8_t *out)
{
    const uint32_t first = (uint32_t)(lo % s->geom.page_rows);
    size_t         off = 0;

    memset(out, 0, s->geom.page_bytes);
    for (uint32_t l = 0; l < s->model->plan.n_layers; l++) {
        const size_t row = s->model->plan.rows[l].window_bytes;

        memcpy(out + off + first * row, page + off + first * row, (size_t)(hi - lo) * row);
        off += s->geom.page_rows * row;
    }
}

static kvcsa_status make_page(kvi_save *v, kvi_save_record *out, kvcsa_error *err)
{
    const kvcsa_session *s = v->s;
    const uint64_t       begin = out->r.position;
    const uint64_t       lo = kvi_max_size(begin, v->h.window_lo);
    const uint64_t       hi = kvi_min_size(begin + s->geom.page_rows, v->h.n_tokens);
    const void          *page = NULL;
    kvcsa_status         st =
        see_page(v, page_of_group(s, begin / s->geom.page_rows), s->geom.page_bytes, &page, err);

    if (st != KVCSA_OK)
        return st;
    out->in_scratch = v->seen != NULL;
    out->parts[2] = page;
    if (hi - lo == s->geom.page_rows)
        return KVCSA_OK;
    gather_page(s, page, lo, hi, v->scratch);
    out->in_scratch = 1;
    out->parts[2] = v->scratch;
    return KVCSA_OK;
}

static kvcsa_status make_raw(kvi_save *v, kvi_save_record *out, kvcsa_error *err)
{
    const kvcsa_session *s = v->s;
    const void          *page = NULL;
    kvcsa_status         st = see_page(v, s->now.pending, s->geom.pending_bytes, &page, err);

    if (st != KVCSA_OK)
        return st;
    kvi_snap_copy_raw(s, s->now.n_tokens, v->h.raw_lo, v->h.raw_slots, (void *)(uintptr_t)page,
                      v->scratch, 0);
    out->parts[2] = v->scratch;
    out->in_scratch = 1;
    return KVCSA_OK;
}

kvcsa_status kvi_save_make(kvi_save *v, uint64_t i, kvi_save_record *out, kvcsa_error *err)
{
    const kvi_state *st = &v->s->now;
    kvi_snap_record *r = &out->r;
    kvcsa_status     made = KVCSA_OK;
    int              part = 2;

    *out = (kvi_save_record){0};
    kvi_snap_expect(&v->h, i, r, NULL);
    switch (r->kind) {
    case KVI_RECORD_BLOCK:
        return make_block(v, i, out, err);
    case KVI_RECORD_FLOORS:
        part = 0;
        out->parts[0] = st->floors;
        break;
    case KVI_RECORD_PAGE:
        made = make_page(v, out, err);
        break;
    case KVI_RECORD_RAW:
        made = make_raw(v, out, err);
        break;
    default:
        out->parts[2] = st->logits->row;
    }
    if (made != KVCSA_OK)
        return made;
    r->sums[part] = kvi_hash128_of(out->parts[part], r->part_bytes[part], 0);
    kvi_snap_record_set_key(r);
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ sink */

static kvcsa_status flush_to_writer(kvi_sink *k, kvcsa_error *err)
{
    for (int i = 0; i < k->n_iov; i++) {
        const int32_t rc = k->writer->write(k->writer->user, k->iov[i].iov_base, k->iov[i].iov_len);

        if (rc != 0)
            return kvi_fail_code(err, KVCSA_ERR_IO, rc, "snapshot: the writer returned %d", rc);
    }
    return KVCSA_OK;
}

kvcsa_status kvi_sink_flush(kvi_sink *k, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    if (k->n_iov == 0)
        return KVCSA_OK;
    if (k->writer)
        st = flush_to_writer(k, err);
    else if (kvi_fs_write_all(k->fs, k->fd, k->iov, k->n_iov) != 0)
        st = kvi_fs_fail(err, "write", k->path);
    k->n_iov = 0;
    k->n_heads = 0;
    return st;
}

static void put(kvi_sink *k, const void *data, size_t n)
{
    if (n == 0)
        return;
    KVI_ASSERT(k->n_iov < KVI_SINK_IOVS);
    k->iov[k->n_iov++] = (struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = n};
    k->n_bytes += n;
}

kvcsa_status kvi_sink_put(kvi_sink *k, const void *data, size_t n, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    if (k->n_iov == KVI_SINK_IOVS)
        st = kvi_sink_flush(k, err);
    if (st == KVCSA_OK)
        put(k, data, n);
    return st;
}

kvcsa_status kvi_sink_record(kvi_sink *k, const kvi_save_record *rec, kvcsa_error *err)
{
    const kvi_snap_record *r = &rec->r;
    uint64_t               n = (uint64_t)KVI_SNAP_HEAD_BYTES + r->ids_bytes;
    kvcsa_status           st = KVCSA_OK;
    uint8_t               *head;

    KVI_ASSERT(!rec->block);
    if ((k->n_iov + KVI_SINK_PER_RECORD > KVI_SINK_IOVS ||
         k->n_heads == KVI_SINK_IOVS / KVI_SINK_PER_RECORD) &&
        (st = kvi_sink_flush(k, err)) != KVCSA_OK)
        return st;
    head = k->heads[k->n_heads++];
    kvi_snap_record_encode(r, head);
    put(k, head, KVI_SNAP_HEAD_BYTES);
    put(k, rec->ids, r->ids_bytes);
    for (int p = 0; p < KVI_SNAP_PARTS; p++) {
        put(k, rec->parts[p], r->part_bytes[p]);
        n += r->part_bytes[p];
    }
    put(k, zeros, (size_t)(kvi_snap_pad(n) - n));
    return rec->in_scratch ? kvi_sink_flush(k, err) : KVCSA_OK;
}

kvcsa_status kvi_save_all(kvi_save *v, kvi_sink *k, kvcsa_error *err)
{
    uint8_t         page[KVI_SNAP_UNIT];
    kvi_save_record rec;
    kvcsa_status    st;

    kvi_snap_header_encode(&v->h, page);
    st = kvi_sink_put(k, page, sizeof page, err);
    for (uint64_t i = 0; i < v->h.n_records && st == KVCSA_OK; i++) {
        if ((st = kvi_save_make(v, i, &rec, err)) == KVCSA_OK &&
            (st = kvi_save_see(v, &rec, err)) == KVCSA_OK)
            st = kvi_sink_record(k, &rec, err);
    }
    if (st == KVCSA_OK)
        st = kvi_sink_flush(k, err);
    KVI_ASSERT(st != KVCSA_OK || k->n_bytes == v->h.total_bytes);
    return st;
}

void kvi_save_count(const kvi_save *v, uint64_t n_bytes, uint64_t n_records, uint64_t n_shared,
                    kvcsa_snapshot_info *info)
{
    kvcsa_pool              *pool = v->s->pool;
    const kvi_pool_io_counts add = {.saved_bytes = n_bytes, .saved_records = n_records};

    kvi_pool_count_io(pool, &add);
    kvi_pool_trace(pool, KVCSA_TRACE_SAVE, KVCSA_REASON_NONE, 0, v->h.n_tokens, n_bytes);
    if (!info)
        return;
    kvi_snap_fill_info(&v->h, info);
    info->written_bytes = n_bytes;
    info->n_written_records = n_records;
    info->n_shared_records = n_shared;
}

kvcsa_status kvi_snapshot_write(kvcsa_session *s, const kvcsa_writer *w, uint32_t flags,
                                kvcsa_snapshot_info *info, kvcsa_error *err)
{
    kvi_sink     sink = {.writer = w};
    kvi_save     v;
    kvcsa_status st = kvi_save_init(&v, s, flags, KVI_SNAP_FILE, err);

    if (st == KVCSA_OK)
        st = kvi_save_all(&v, &sink, err);
    if (st == KVCSA_OK)
        kvi_save_count(&v, sink.n_bytes, v.h.n_records, 0, info);
    kvi_save_fini(&v);
    return st;
}
