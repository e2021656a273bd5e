/* A state from a snapshot: everything is read and checked before the session changes. Blocks that
 * the prefix tree has are taken from there; others are private until all of the snapshot has been
 * found right, then published. */
#include "session/snapshot_int.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/status.h"

/* ------------------------------------------------------------------ does it fit the session? */

static kvcsa_status differs(kvcsa_error *err, const char *what, uint64_t theirs, uint64_t ours)
{
    return kvi_fail(err, KVCSA_ERR_MISMATCH, "snapshot is of %s %016llx, this session has %016llx",
                    what, (unsigned long long)theirs, (unsigned long long)ours);
}

static kvcsa_status check_shapes(const kvi_load *ld, kvcsa_error *err)
{
    const kvi_snap_header *h = &ld->h;
    const kvcsa_session   *s = ld->s;
    const uint32_t         rows = s->geom.page_rows;
    const struct {
        const char *name;
        uint32_t    theirs, ours;
    } shapes[] = {
        {"block_tokens", h->block_tokens, s->model->layout.block_tokens},
        {"index_bytes", h->index_bytes, s->model->layout.index_part_bytes},
        {"main_bytes", h->main_bytes, s->model->layout.main_part_bytes},
        {"vocab", h->vocab, kvi_snap_vocab(s)},
        {"n_layers", h->n_layers, s->model->plan.n_layers},
        {"window_row_bytes", h->window_row_bytes, rows ? s->geom.page_bytes / rows : 0},
    };

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (shapes[i].theirs != shapes[i].ours)
            return kvi_fail(err, KVCSA_ERR_MISMATCH,
                            "snapshot header: %s is %u, this session's is %u", shapes[i].name,
                            shapes[i].theirs, shapes[i].ours);
    return KVCSA_OK;
}

static kvcsa_status check_fit(kvi_load *ld, kvcsa_error *err)
{
    const kvi_snap_header *h = &ld->h;
    const kvi_domain      *d = kvi_prefix_root_domain(ld->s->root);
    const kvi_config      *c = &ld->s->model->config;
    const int              other_model = h->weights != d->weights || h->adapter != d->adapter;
    kvcsa_status           st = check_shapes(ld, err);

    if (st != KVCSA_OK)
        return st;
    if (h->plan != d->plan)
        return differs(err, "plan", h->plan, d->plan);
    if (other_model && !(ld->flags & KVCSA_SNAPSHOT_ANY_MODEL))
        return h->weights != d->weights ? differs(err, "model", h->weights, d->weights)
                                        : differs(err, "adapter", h->adapter, d->adapter);
    if (h->numerics != d->numerics && !(ld->flags & KVCSA_SNAPSHOT_ANY_NUMERICS))
        return differs(err, "numerics", h->numerics, d->numerics);
    if (h->domain_version != d->version)
        return differs(err, "domain version", h->domain_version, d->version);
    if (h->n_tokens > c->max_tokens)
        return kvi_fail(err, KVCSA_ERR_LIMIT, "snapshot has %llu tokens, the context limit is %llu",
                        (unsigned long long)h->n_tokens, (unsigned long long)c->max_tokens);
    if ((h->sections & KVI_SNAP_RAW) &&
        h->raw_bytes !=
            kvi_snap_copy_raw(ld->s, h->n_tokens, h->raw_lo, h->raw_slots, NULL, NULL, 0))
        return kvi_fail(err, KVCSA_ERR_MISMATCH,
                        "snapshot header: raw_bytes is %u, this session's plan differs",
                        h->raw_bytes);
    ld->foreign = other_model || h->numerics != d->numerics;
    ld->same_domain = !ld->foreign && h->salt == d->salt;
    ld->taint_pos = ld->foreign ? 0 : h->exact_tokens;
    ld->n_blocks = kvi_snap_n_blocks(h);
    ld->n_all = ld->n_blocks;
    return KVCSA_OK;
}

/* The stored window is of use if the next row finds all that it reads, raw rows included. */
static void judge_window(kvi_load *ld)
{
    const kvi_snap_header *h = &ld->h;
    const kvi_plan        *plan = &ld->s->model->plan;
    const uint64_t         n = h->n_tokens;
    const uint64_t         ring = kvi_window_ring_rows(&ld->s->geom);
    const uint64_t         w = kvi_session_window_tokens(ld->s);

    ld->has_window = (h->sections & KVI_SNAP_WINDOW) && ld->s->geom.n_pages &&
                     !((h->flags & KVI_SNAP_APPROX) && h->exact_tokens >= n &&
                       kvi_session_is_exact(ld->s)) &&
                     h->window_lo <= (n > w ? n - w : 0);
    for (uint32_t l = 0; l < plan->n_layers && ld->has_window; l++)
        if (plan->rows[l].pending_bytes && n % plan->rows[l].ratio)
            ld->has_window = (h->sections & KVI_SNAP_RAW) && h->raw_slots &&
                             h->raw_lo <= n - n % plan->rows[l].ratio;
    ld->window_lo = kvi_max_size(h->window_lo, n > ring ? n - ring : 0);
}

/* ------------------------------------------------------------------ what is no block */

/* A page of the state, there and zero. */
static kvcsa_status need_page(kvi_load *ld, kvi_block_class *cls, kvi_block **page,
                              uint32_t n_bytes, kvcsa_error *err)
{
    kvcsa_status st;

    if (*page)
        return KVCSA_OK;
    if ((st = kvi_pool_reserve(ld->s->pool, cls, 1, err)) != KVCSA_OK)
        return st;
    if ((st = kvi_block_acquire(ld->s->pool, cls, page, err)) != KVCSA_OK) {
        kvi_pool_unreserve(ld->s->pool, cls, 1);
        return st;
    }
    return kvi_memory_fill(kvi_pool_memory(ld->s->pool), kvi_block_main_part(*page), 0, n_bytes,
                           err);
}

/* The bytes of a page to be changed: itself or, until close_page, a copy. */
static kvcsa_status open_page(kvi_load *ld, kvi_block_class *cls, kvi_block **page,
                              uint32_t n_bytes, uint8_t **out, kvcsa_error *err)
{
    const kvi_memory *m = kvi_pool_memory(ld->s->pool);
    kvcsa_status      st = need_page(ld, cls, page, n_bytes, err);

    if (st != KVCSA_OK)
        return st;
    *out = ld->staged ? ld->staged : kvi_block_main_part(*page);
    if (!ld->staged)
        return KVCSA_OK;
    if ((st = kvi_memory_sync(m, err)) != KVCSA_OK) /* what is staged may be on its way */
        return st;
    return kvi_memory_get(m, *out, kvi_block_main_part(*page), n_bytes, err);
}

static kvcsa_status close_page(kvi_load *ld, const kvi_block *page, uint32_t n_bytes,
                               kvcsa_error *err)
{
    /* the next page waits before it changes what is staged */
    return ld->staged ? kvi_memory_put_pinned(kvi_pool_memory(ld->s->pool),
                                              kvi_block_main_part(page), ld->staged, n_bytes, err)
                      : KVCSA_OK;
}

/* Row of position p, of all layers, from a stored page into one of the ring. */
static void put_row(const kvi_load *ld, const kvi_snap_record *r, uint64_t p, const uint8_t *bytes,
                    uint8_t *page)
{
    const kvi_plan        *plan = &ld->s->model->plan;
    const kvi_window_geom *g = &ld->s->geom;
    size_t                 from = 0;
    size_t                 to = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const size_t row = plan->rows[l].window_bytes;

        memcpy(page + to + p % g->page_rows * row, bytes + from + (p - r->position) * row, row);
        from += r->n_tokens * row;
        to += g->page_rows * row;
    }
}

/* Rows of a stored page into the ring, whatever its pages are. */
static kvcsa_status put_rows(kvi_load *ld, const kvi_snap_record *r, const uint8_t *bytes,
                             kvcsa_error *err)
{
    const kvcsa_session   *s = ld->s;
    const kvi_window_geom *g = &s->geom;
    const uint64_t         end = kvi_min_size(r->position + r->n_tokens, ld->h.n_tokens);
    uint64_t               p = kvi_max_size(r->position, ld->window_lo);
    kvcsa_status           st = KVCSA_OK;

    while (p < end && st == KVCSA_OK) {
        const uint64_t next = kvi_min_size(end, p - p % g->page_rows + g->page_rows);
        kvi_block    **page = &ld->st.pages[kvi_window_page_of(g, p)];
        uint8_t       *rows = NULL;

        if ((st = open_page(ld, s->page_cls, page, g->page_bytes, &rows, err)) != KVCSA_OK)
            return st;
        for (; p < next; p++)
            put_row(ld, r, p, bytes, rows);
        st = close_page(ld, *page, g->page_bytes, err);
    }
    return st;
}

static kvcsa_status take_floors(kvi_load *ld, const uint8_t *bytes, kvcsa_error *err)
{
    for (uint32_t l = 0; l < ld->h.n_layers; l++) {
        const uint64_t floor = kvi_load_u64(bytes + l * sizeof floor);

        if (floor > ld->h.n_tokens)
            return kvi_fail(err, KVCSA_ERR_FORMAT,
                            "snapshot: window of layer %u begins at %llu, tokens are %llu", l,
                            (unsigned long long)floor, (unsigned long long)ld->h.n_tokens);
        ld->st.floors[l] = ld->has_window ? floor : 0;
    }
    return KVCSA_OK;
}

static kvcsa_status take_record(kvi_load *ld, const kvi_snap_record *r, uint8_t *bytes,
                                kvcsa_error *err)
{
    const kvcsa_session *s = ld->s;
    const uint32_t       n_raw = s->geom.pending_bytes;
    uint8_t             *rows = NULL;
    kvcsa_status         st;

    switch (r->kind) {
    case KVI_RECORD_FLOORS:
        return take_floors(ld, bytes, err);
    case KVI_RECORD_PAGE:
        return ld->has_window ? put_rows(ld, r, bytes, err) : KVCSA_OK;
    case KVI_RECORD_RAW:
        if (!ld->has_window) /* a replay makes them again */
            return KVCSA_OK;
        if ((st = open_page(ld, s->pending_cls, &ld->st.pending, n_raw, &rows, err)) != KVCSA_OK)
            return st;
        kvi_snap_copy_raw(s, ld->h.n_tokens, ld->h.raw_lo, ld->h.raw_slots, rows, bytes, 1);
        return close_page(ld, ld->st.pending, n_raw, err);
    default:
        if (!(ld->logits = kvi_logits_create(s)))
            return kvi_fail(err, KVCSA_ERR_NOMEM, "logits of %u tokens", ld->h.vocab);
        memcpy(ld->logits->row, bytes, r->part_bytes[2]);
        return KVCSA_OK;
    }
}

/* A record that is no block: one part. */
static kvcsa_status load_record(kvi_load *ld, uint64_t i, kvcsa_error *err)
{
    uint8_t         head[KVI_SNAP_HEAD_BYTES];
    kvi_snap_record r;
    kvcsa_status    st;
    int             part;
    uint64_t        at = 0;

    if (ld->reader) {
        st = kvi_load_next(ld, i, head, sizeof head, err);
    } else if ((st = kvi_load_open(ld, i, err)) == KVCSA_OK) {
        at = kvi_load_offset(ld, i);
        st = kvi_load_at(ld, i, head, sizeof head, at, err);
    }
    if (st != KVCSA_OK || (st = kvi_snap_record_decode(head, &ld->h, i, &r, err)) != KVCSA_OK)
        return st;
    if (ld->manifest && !kvi_hash128_equal(kvi_manifest_entry(ld->manifest, i).key, r.key))
        return kvi_fail(err, KVCSA_ERR_CORRUPT,
                        "snapshot record %llu: it is not the one that the manifest names",
                        (unsigned long long)i);
    part = r.kind == KVI_RECORD_FLOORS ? 0 : 2;
    st = ld->reader ? kvi_load_next(ld, i, ld->buffer, r.part_bytes[part], err)
                    : kvi_load_at(ld, i, ld->buffer, r.part_bytes[part], at + sizeof head, err);
    if (st != KVCSA_OK)
        return st;
    if (!kvi_hash128_equal(r.sums[part], kvi_hash128_of(ld->buffer, r.part_bytes[part], 0)))
        return kvi_load_bad_sum(err, i);
    if ((st = take_record(ld, &r, ld->buffer, err)) != KVCSA_OK)
        return st;
    ld->n_records++;
    if (ld->reader)
        return kvi_load_skip(ld, i, kvi_snap_record_bytes(&r) - sizeof head - r.part_bytes[part],
                             err);
    ld->n_bytes += kvi_snap_record_bytes(&r);
    return KVCSA_OK;
}

static kvcsa_status alloc_buffer(kvi_load *ld, kvcsa_error *err)
{
    kvi_snap_record r;
    size_t          n = KVI_SNAP_UNIT;
    void           *staged = NULL;
    kvcsa_status    st;

    for (uint32_t kind = KVI_RECORD_FLOORS; kind <= KVI_RECORD_LOGITS; kind++) {
        const uint64_t first = kvi_snap_first(&ld->h, kind);

        if (first == ld->h.n_records)
            continue;
        kvi_snap_expect(&ld->h, first, &r, NULL);
        n = kvi_max_size(n, kvi_max_size(r.part_bytes[0], r.part_bytes[2]));
    }
    ld->buffer_bytes = n;
    if (!(ld->buffer = kvi_alloc(&ld->s->allocator, n)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "record of %zu bytes", n);
    if (!kvi_memory_is_apart(kvi_pool_memory(ld->s->pool)))
        return KVCSA_OK;
    n = (size_t)ld->h.index_bytes + ld->h.main_bytes;
    n *= KVI_LOAD_HALVES *
         (ld->reader ? 1 : (size_t)kvi_min_size(kvi_max_size(ld->n_all, 1), KVI_LOAD_STAGED));
    n = kvi_max_size(n, kvi_max_size(ld->s->geom.page_bytes, ld->s->geom.pending_bytes));
    ld->staged_bytes = n;
    st = kvi_memory_alloc_pinned(kvi_pool_memory(ld->s->pool), n, &staged, err);
    ld->staged = staged;
    if (st == KVCSA_ERR_NOMEM)
        kvi_fail(err, st, "parts of %zu bytes", n);
    return st;
}

static kvcsa_status load_records(kvi_load *ld, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    for (uint64_t i = ld->n_all; i < ld->h.n_records && st == KVCSA_OK && !ld->damaged; i++)
        st = kvi_load_salvage(ld, load_record(ld, i, err), ld->n_blocks);
    return st;
}

/* ------------------------------------------------------------------ the whole */

static void finish_state(kvi_load *ld)
{
    kvcsa_session *s = ld->s;
    kvi_state     *st = &ld->st;
    const uint64_t n = kvi_min_size(ld->h.n_tokens, ld->n_blocks * ld->h.block_tokens);

    st->n_tokens = n;
    if (ld->damaged) {
        kvi_logits_release(s, ld->logits);
        ld->logits = NULL;
        ld->has_window = 0;
    }
    if (ld->has_window) {
        st->window_lo = ld->window_lo;
        st->raw_lo = n; /* more may be there */
        st->raw_end = n;
        st->window_approx = (ld->h.flags & KVI_SNAP_APPROX) || ld->foreign;
        st->taint_pos = ld->taint_pos == UINT64_MAX ? UINT64_MAX : kvi_min_size(ld->taint_pos, n);
    } else { /* from exact entries a replay makes exact windows */
        kvi_state_rebuild_window(s, st, KVI_REPLAY_EXACT);
        st->taint_pos = ld->taint_pos < n ? ld->taint_pos : UINT64_MAX;
    }
    st->logits = ld->logits;
    st->logits_approx = st->logits && (st->window_approx || st->taint_pos < n);
    st->logits_due = n > 0 && !st->logits;
    ld->logits = NULL;
}

static void free_load(kvi_load *ld)
{
    const kvcsa_allocator *a = &ld->s->allocator;

    if (ld->blocks)
        kvi_blocks_release(ld->s->pool, ld->blocks, (size_t)ld->n_all);
    kvi_free(a, ld->blocks, (size_t)ld->n_all * sizeof *ld->blocks);
    kvi_logits_release(ld->s, ld->logits);
    kvi_state_fini(ld->s, &ld->st);
    if (ld->n_reserved)
        kvi_pool_unreserve(ld->s->pool, ld->s->cls, ld->n_reserved);
    kvi_free(a, ld->buffer, ld->buffer_bytes);
    if (ld->staged) /* waits for what is on its way */
        kvi_memory_free_pinned(kvi_pool_memory(ld->s->pool), ld->staged, ld->staged_bytes);
    if (ld->manifest && ld->fd >= 0)
        ld->fs->close(ld->fs->user, ld->fd);
}

static void report(const kvi_load *ld, kvcsa_snapshot_info *info)
{
    const kvi_pool_io_counts add = {.loaded_bytes = ld->n_bytes, .loaded_records = ld->n_records};

    kvi_pool_count_io(ld->s->pool, &add);
    kvi_pool_trace(ld->s->pool, KVCSA_TRACE_LOAD, KVCSA_REASON_NONE, 0, ld->s->now.n_tokens,
                   ld->n_bytes);
    if (!info)
        return;
    kvi_snap_fill_info(&ld->h, info);
    info->n_tokens = ld->s->now.n_tokens;
    info->exact = ld->s->now.taint_pos >= ld->s->now.n_tokens;
    info->n_shared_records = ld->n_shared;
}

/* The header has been decoded; bytes come from ld's reader or files. */
static kvcsa_status load_all(kvi_load *ld, kvcsa_snapshot_info *info, kvcsa_error *err)
{
    kvcsa_session *s = ld->s;
    kvcsa_status   st = check_fit(ld, err);

    if (st != KVCSA_OK)
        return st;
    judge_window(ld);
    if ((st = kvi_state_init(s, &ld->st, err)) != KVCSA_OK ||
        (st = alloc_buffer(ld, err)) != KVCSA_OK ||
        (st = ld->reader ? kvi_load_blocks_from_reader(ld, err)
                         : kvi_load_blocks_from_files(ld, err)) != KVCSA_OK ||
        (st = load_records(ld, err)) != KVCSA_OK)
        goto done;
    finish_state(ld);
    if (!ld->foreign && ld->st.last && !(s->set.flags & KVCSA_SESSION_PRIVATE))
        kvi_prefix_publish(s->pool, s->root, ld->st.last);
    kvi_session_install(s, &ld->st);
    report(ld, info);
    kvi_error_clear(err); /* a salvage has left a message */
done:
    free_load(ld);
    return st;
}

static kvcsa_status check_idle(const kvcsa_session *s, kvcsa_error *err)
{
    if (!kvi_session_queued(s))
        return KVCSA_OK;
    return kvi_fail(err, KVCSA_ERR_ARG, "%zu tokens are queued, load needs an empty queue",
                    s->n_queued);
}

kvcsa_status kvi_snapshot_read(kvcsa_session *s, const kvcsa_reader *r, uint32_t flags,
                               kvcsa_snapshot_info *info, kvcsa_error *err)
{
    kvi_load     ld = {.s = s, .flags = flags, .reader = r, .fd = -1};
    uint8_t      page[KVI_SNAP_UNIT];
    int64_t      n;
    kvcsa_status st = check_idle(s, err);

    if (st != KVCSA_OK)
        return st;
    if ((n = r->read(r->user, page, sizeof page)) < 0)
        return kvi_fail_code(err, KVCSA_ERR_IO, (int32_t)n, "snapshot: the reader returned %lld",
                             (long long)n);
    ld.n_bytes = kvi_min_size((uint64_t)n, sizeof page);
    st = kvi_snap_header_decode(page, (size_t)ld.n_bytes, KVI_SNAP_FILE, &ld.h, err);
    return st == KVCSA_OK ? load_all(&ld, info, err) : st;
}

static kvcsa_status load_file(kvi_load *ld, uint64_t n_file, kvcsa_snapshot_info *info,
                              kvcsa_error *err)
{
    uint8_t       page[KVI_SNAP_UNIT];
    const ssize_t n = kvi_fs_read_at(ld->fs, ld->fd, page, sizeof page, 0);
    kvcsa_status  st;

    if (n < 0)
        return kvi_fs_fail(err, "read", ld->path);
    if ((st = kvi_snap_header_decode(page, (size_t)n, KVI_SNAP_FILE, &ld->h, err)) != KVCSA_OK)
        return st;
    ld->n_bytes = sizeof page;
    if (n_file < ld->h.total_bytes && !(ld->flags & KVCSA_SNAPSHOT_SALVAGE))
        return kvi_fail(err, KVCSA_ERR_FORMAT, "truncated snapshot: %llu bytes of %llu",
                        (unsigned long long)n_file, (unsigned long long)ld->h.total_bytes);
    if (n_file > ld->h.total_bytes)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "snapshot is %llu bytes, its file is %llu",
                        (unsigned long long)ld->h.total_bytes, (unsigned long long)n_file);
    return load_all(ld, info, err);
}

static kvcsa_status load_dir(kvi_load *ld, const char *name, kvcsa_snapshot_info *info,
                             kvcsa_error *err)
{
    const kvcsa_allocator *a = &ld->s->allocator;
    kvi_manifest           m = {0};
    size_t                 n = 0;
    char                  *path = kvi_snap_path(a, ld->path, name, KVI_MANIFEST_SUFFIX, &n);
    int                    lock = -1;
    kvcsa_status           st;

    if (!path)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "name of a manifest");
    if ((st = kvi_dir_open(ld->fs, ld->path, LOCK_SH, &lock, err)) == KVCSA_OK &&
        (st = kvi_manifest_read(ld->fs, a, path, &m, err)) == KVCSA_OK) {
        ld->h = m.h;
        ld->manifest = &m;
        ld->n_bytes = KVI_SNAP_UNIT + m.table_bytes;
        st = load_all(ld, info, err);
    }
    kvi_manifest_free(a, &m);
    if (lock >= 0)
        ld->fs->close(ld->fs->user, lock);
    kvi_free(a, path, n);
    return st;
}

kvcsa_status kvi_snapshot_load(kvcsa_session *s, const char *path, const char *name, uint32_t flags,
                               kvcsa_snapshot_info *info, kvcsa_error *err)
{
    const kvi_fs *fs = kvi_pool_fs(s->pool);
    kvi_load      ld = {.s = s, .flags = flags, .fs = fs, .path = path, .fd = -1};
    struct stat   sb;
    int           fd;
    kvcsa_status  st = check_idle(s, err);

    if (st != KVCSA_OK)
        return st;
    if ((fd = fs->open(fs->user, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0)) < 0)
        return kvi_fs_fail(err, "open", path);
    if (fstat(fd, &sb) != 0) {
        st = kvi_fs_fail(err, "read", path);
    } else if (S_ISDIR(sb.st_mode)) {
        st = load_dir(&ld, name, info, err);
    } else if (S_ISREG(sb.st_mode)) {
        ld.fd = fd;
        st = load_file(&ld, (uint64_t)sb.st_size, info, err);
    } else {
        st = kvi_fail(err, KVCSA_ERR_FORMAT, "%s is neither a file nor a directory", path);
    }
    fs->close(fs->user, fd);
    return st;
}
