/* One chunk of one session inside a step: what it will write is made ready, then the rows run (with
 * those of other sessions), then they are committed or forgotten. */
#include "session/session_int.h"

#include <string.h>

#include "base/status.h"

/* Logits of all wanted rows are kept until the commit: bound them. */
#define MAX_LOGIT_BYTES ((uint64_t)64 << 20)

static kvi_block **own_blocks(const kvcsa_session *s)
{
    return s->own.data;
}

int kvi_session_has_work(const kvcsa_session *s)
{
    return kvi_session_queued(s) || s->now.replay_end || s->now.logits_due;
}

/* ------------------------------------------------------------------ mark and roll-back */

/* (S4) Remember where the append began, if this chunk does not finish it. end: of the append. */
static kvcsa_status set_mark(kvcsa_session *s, uint64_t end, kvcsa_error *err)
{
    kvcsa_status st;

    if (s->has_mark)
        return KVCSA_OK;
    if (!s->mark.pages && (st = kvi_state_init(s, &s->mark, err)) != KVCSA_OK)
        return st;
    s->has_mark = 1;
    /* a chunk that failed may have used what was reserved for the copies */
    if (s->light_mark || s->n_reserved_pages < kvi_session_pages_of(s, s->now.n_tokens, end) ||
        (s->pending_cls && s->n_reserved_pending == 0)) {
        s->mark_is_light = 1;
        s->mark.n_tokens = s->now.n_tokens;
        s->mark.logits_approx = s->now.logits_approx;
        if ((s->mark.logits = s->now.logits))
            atomic_fetch_add_explicit(&s->mark.logits->refs, 1, memory_order_relaxed);
        return KVCSA_OK;
    }
    /* the mark's reference must not cost the session a tail that nobody else reads */
    s->now.tail_mine = kvi_session_is_writable(s, s->now.tail, s->now.tail_mine);
    kvi_state_copy(s, &s->mark, &s->now);
    s->mark_is_light = 0;
    return KVCSA_OK;
}

void kvi_session_drop_mark(kvcsa_session *s)
{
    if (s->has_mark)
        kvi_state_clear(s, &s->mark);
    s->has_mark = 0;
}

/* The next row would miss window rows in some layer: decoder replay has cut a replay short. */
static int lacks_rows(const kvcsa_session *s)
{
    const kvi_plan *plan = &s->model->plan;

    for (uint32_t l = 0; l < plan->n_layers; l++)
        if (s->now.floors[l] && s->now.floors[l] + plan->rows[l].window_tokens > s->now.n_tokens)
            return 1;
    return 0;
}

void kvi_session_rollback(kvcsa_session *s)
{
    const uint64_t begin = s->n_appends ? kvi_session_first_append(s)->begin : 0;

    while (s->n_appends)
        kvi_session_drop_append(s);
    s->first_queued = 0;
    s->n_queued = 0;
    s->planned = 0;
    kvi_session_drop_adopt(s);
    if (s->last_row_only) /* of a step that was to bring the logits back */
        s->now.replay_end = 0;
    s->last_row_only = 0;
    if (s->has_mark && begin > s->mark.n_tokens) { /* the prefix reached behind that append */
        kvi_state_cut(s, &s->now, begin, KVI_REPLAY_EXACT);
        kvi_session_drop_mark(s);
    } else if (s->has_mark && s->mark_is_light) {
        kvi_state_cut(s, &s->now, s->mark.n_tokens, KVI_REPLAY_EXACT);
        if (!s->now.logits && (s->now.logits = s->mark.logits)) {
            s->mark.logits = NULL;
            s->now.logits_due = 0;
            s->now.logits_approx = s->mark.logits_approx;
        }
        kvi_session_drop_mark(s);
    } else if (s->has_mark) {
        kvi_state old = s->now;

        s->now = s->mark;
        /* rows behind the mark were nobody else's: the writer goes on where it was */
        s->now.tail_mine = old.tail_mine && old.tail == s->now.tail;
        s->mark = old;
        kvi_session_drop_mark(s);
    }
    if (lacks_rows(s)) /* they were left out for an append that is not to be */
        kvi_state_rebuild_window(s, &s->now, kvi_session_default_replay(s));
    s->n_view = kvi_min_size(s->n_view, kvi_state_n_full(&s->now));
    (void)kvi_session_reserve(s, 0, NULL); /* cannot fail: it only gives back */
}

kvcsa_status kvi_session_give_up(kvcsa_session *s, kvcsa_error *err)
{
    kvi_session_rollback(s);
    atomic_store_explicit(&s->cancel, 0, memory_order_relaxed);
    return kvi_fail(err, KVCSA_ERR_CANCELLED, "cancelled; the session holds %llu tokens",
                    (unsigned long long)s->now.n_tokens);
}

/* ------------------------------------------------------------------ adopting a known prefix */

/* Appends that end at or before `position` have nothing left to compute. */
static void drop_finished_appends(kvcsa_session *s)
{
    const kvi_append *ap;

    while ((ap = kvi_session_first_append(s)) && ap->end <= s->now.n_tokens)
        kvi_session_drop_append(s);
}

/* Entries come from the prefix; windows are rebuilt, or come from the stored window. */
static void adopt_prefix(kvcsa_session *s)
{
    kvi_state       *st = &s->now;
    const uint64_t   from_depth = kvi_state_n_full(st);
    const uint64_t   hit = from_depth * kvi_session_block_tokens(s) + s->adopt.n_tokens;
    const uint64_t   n = hit - st->n_tokens;

    if (s->adopt.last) {
        kvi_block_release(s->pool, st->last);
        st->last = s->adopt.last;
    }
    kvi_block_release(s->pool, st->tail);
    st->tail = s->adopt.partial;
    st->tail_mine = 0;
    st->n_tokens = hit;
    s->adopt = (kvi_prefix_match){0};
    kvi_state_lose_window(s, st, s->reuse == KVCSA_REUSE_BOUNDED ? KVI_REPLAY_BOUNDED
                                                                 : KVI_REPLAY_EXACT);
    if (s->stored_pos) {
        memcpy(st->pages, s->stored, s->geom.n_pages * sizeof *st->pages);
        kvi_state_stand_on_stored(s, st, s->stored_pos);
        s->stored_pos = 0;
    }
    s->first_queued += (size_t)n;
    s->n_queued -= (size_t)n;
    s->n_adopted_tokens += n;
    s->planned = 0;
    kvi_prefix_touch(s->pool, st->last, from_depth);
    kvi_pool_count_adopted(s->pool, n);
    drop_finished_appends(s);
}

/* ------------------------------------------------------------------ room for what is written */

/* (S7) It is reserved; where somebody shared a page meanwhile, it is asked for now. */
static kvcsa_status want_one(kvcsa_session *s, kvi_block_class *cls, uint64_t *n_reserved,
                             kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    if (*n_reserved == 0 && (st = kvi_pool_reserve(s->pool, cls, 1, err)) == KVCSA_OK)
        (*n_reserved)++;
    return st;
}

/* Rows of n tokens. A device takes the whole parts: what its writer has enqueued is done before. */
static kvcsa_status copy_rows(const kvcsa_session *s, const kvi_block *to, const kvi_block *from,
                              uint32_t n, kvcsa_error *err)
{
    const kvi_memory    *m = kvi_pool_memory(s->pool);
    const kvi_kv_layout *layout = &s->model->layout;
    kvcsa_status         st;

    if (!kvi_memory_is_apart(m)) {
        kvi_kv_copy_rows(layout, n, kvi_block_index_part(to), kvi_block_main_part(to),
                         kvi_block_index_part(from), kvi_block_main_part(from));
        return KVCSA_OK;
    }
    st = kvi_memory_move(m, kvi_block_index_part(to), kvi_block_index_part(from),
                         layout->index_part_bytes, err);
    return st == KVCSA_OK ? kvi_memory_move(m, kvi_block_main_part(to), kvi_block_main_part(from),
                                            layout->main_part_bytes, err)
                          : st;
}

/* The rows that are ours of a tail that others hold too; its writer may be at work behind them. */
static kvcsa_status own_tail(kvcsa_session *s, kvcsa_error *err)
{
    kvi_state     *st = &s->now;
    const uint32_t n = (uint32_t)(st->n_tokens % kvi_session_block_tokens(s));
    kvi_block     *copy = NULL;
    kvcsa_status   status;

    if (!st->tail || kvi_session_is_writable(s, st->tail, st->tail_mine))
        return KVCSA_OK;
    if ((status = want_one(s, s->cls, &s->n_reserved, err)) != KVCSA_OK ||
        (status = kvi_block_acquire_instead(s->pool, st->tail, &copy, err)) != KVCSA_OK)
        return status;
    if ((status = copy_rows(s, copy, st->tail, n, err)) != KVCSA_OK) {
        kvi_block_unacquire(s->pool, copy);
        return status;
    }
    s->n_reserved--;
    memcpy(kvi_block_tokens(copy), kvi_block_tokens(st->tail), n * sizeof(int32_t));
    kvi_block_release(s->pool, st->tail);
    st->tail = copy;
    st->tail_mine = 1;
    return KVCSA_OK;
}

static kvcsa_status acquire_blocks(kvcsa_session *s, uint64_t end, kvcsa_error *err)
{
    const size_t n = (size_t)(kvi_session_blocks_for(s, end) - kvi_state_n_full(&s->now) -
                              (s->now.tail ? 1 : 0));
    kvcsa_status st;

    if (!kvi_buf_reserve(&s->allocator, &s->own, sizeof(kvi_block *), s->n_own, n))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of %zu blocks", n);
    while (s->n_own < n) {
        if ((st = want_one(s, s->cls, &s->n_reserved, err)) != KVCSA_OK ||
            (st = kvi_block_acquire(s->pool, s->cls, &own_blocks(s)[s->n_own], err)) != KVCSA_OK)
            return st;
        s->n_reserved--;
        s->n_own++;
    }
    return KVCSA_OK;
}

/* A page that is written is the session's alone. */
static kvcsa_status own_page(kvcsa_session *s, kvi_block_class *cls, kvi_block **page,
                             uint64_t *n_reserved, kvcsa_error *err)
{
    kvi_block   *mine = NULL;
    kvcsa_status st;

    if (!kvi_blocks_count_shared(s->pool, page, 1))
        return KVCSA_OK;
    if ((st = want_one(s, cls, n_reserved, err)) != KVCSA_OK)
        return st;
    st = *page ? kvi_block_acquire_copy(s->pool, *page, &mine, err)
               : kvi_block_acquire(s->pool, cls, &mine, err);
    if (st != KVCSA_OK)
        return st;
    if (!*page && cls == s->pending_cls && /* slots that are never written may be saved */
        (st = kvi_memory_fill(kvi_pool_memory(s->pool), kvi_block_main_part(mine), 0,
                              s->geom.pending_bytes, err)) != KVCSA_OK) {
        kvi_block_unacquire(s->pool, mine);
        return st;
    }
    (*n_reserved)--;
    kvi_block_release(s->pool, *page);
    *page = mine;
    return KVCSA_OK;
}

static kvcsa_status own_windows(kvcsa_session *s, uint64_t pos, uint32_t n_rows, kvcsa_error *err)
{
    const kvi_window_geom *g = &s->geom;
    const uint64_t         end = pos + n_rows;
    kvcsa_status           st = KVCSA_OK;

    for (uint64_t p = end - kvi_window_kept(g, n_rows); p < end && st == KVCSA_OK;
         p += g->page_rows - p % g->page_rows)
        st = own_page(s, s->page_cls, &s->now.pages[kvi_window_page_of(g, p)],
                      &s->n_reserved_pages, err);
    if (st == KVCSA_OK && s->pending_cls)
        st = own_page(s, s->pending_cls, &s->now.pending, &s->n_reserved_pending, err);
    return st;
}

/* ------------------------------------------------------------------ the slice */

static int ask_stop(void *user)
{
    const kvi_chunk *c = user;

    if (atomic_load_explicit(&c->s->cancel, memory_order_relaxed))
        return 1;
    return c->progress &&
           c->progress(c->user, c->s, c->n_before, kvi_session_queued(c->s)) != 0;
}

static uint64_t chunk_limit(const kvcsa_session *s, const kvi_append *ap)
{
    const uint64_t rows = MAX_LOGIT_BYTES / (s->model->config.vocab_size * sizeof(float) + 1);
    const uint64_t store = s->set.store_tokens;
    uint64_t       limit = s->set.chunk_tokens;

    if (!s->cache_only &&
        (ap->logits == KVCSA_LOGITS_ALL || ap->logits == KVCSA_LOGITS_ROWS))
        limit = kvi_min_size(limit, kvi_max_size(rows, 1));
    if (store) /* windows are kept where a chunk ends */
        limit = kvi_min_size(limit, store - s->now.n_tokens % store);
    return limit;
}

/* Rows of a chunk [n_tokens, n_tokens + n) whose logits the append wants, into s->rows; returns
 * their number. The first n_reported are for the callback; the last row of the append is computed
 * in any case. */
static uint32_t wanted_rows(const kvcsa_session *s, const kvi_append *ap, uint32_t n,
                            uint32_t *n_reported)
{
    const uint64_t begin = s->now.n_tokens;
    const uint64_t first = s->first_rows[s->model->plan.n_layers]; /* none below reach the head */
    uint32_t      *rows = s->rows.data;
    uint32_t       n_rows = 0;

    if (ap->logits == KVCSA_LOGITS_ALL)
        for (uint32_t i = 0; i < n; i++)
            if (begin + i >= first)
                rows[n_rows++] = i;
    if (ap->logits == KVCSA_LOGITS_ROWS)
        for (uint32_t i = 0; i < ap->n_rows; i++)
            if (ap->begin + ap->rows[i] >= kvi_max_size(begin, first) &&
                ap->begin + ap->rows[i] < begin + n)
                rows[n_rows++] = (uint32_t)(ap->begin + ap->rows[i] - begin);
    *n_reported = n_rows;
    if (ap->logits != KVCSA_LOGITS_NONE && begin + n == ap->end &&
        (n_rows == 0 || rows[n_rows - 1] != n - 1))
        rows[n_rows++] = n - 1;
    return n_rows;
}

/* Tokens [pos, pos + n) and those that the model looks back at, in one list. */
static kvcsa_status gather_tokens(kvcsa_session *s, uint64_t pos, uint32_t n, const int32_t **out,
                                  kvcsa_error *err)
{
    const uint64_t before = kvi_min_size(pos, kvi_net_lookback(s->model));
    const uint64_t held = kvi_min_size(pos + n, s->now.n_tokens) - (pos - before);
    int32_t       *list;

    if (!kvi_session_grow_ids(s, &s->chunk, 0, (size_t)before + n) ||
        !kvi_buf_reserve(&s->allocator, &s->rows, sizeof(uint32_t), 0, n))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "lists of %u rows", n);
    list = s->chunk.data;
    kvi_session_copy_tokens(s, pos - before, held, list);
    if (before + n > held)
        memcpy(list + held, kvi_session_queue(s), (before + n - held) * sizeof *list);
    *out = list + before;
    return KVCSA_OK;
}

/* Where the logits of the last row go; a commit cannot fail. */
static kvcsa_status prepare_logits(kvcsa_session *s, kvcsa_error *err)
{
    if (!s->cache_only && !s->next_logits && !(s->next_logits = kvi_logits_create(s)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "logits of %u tokens", s->model->config.vocab_size);
    return KVCSA_OK;
}

static void fill_slice(kvi_chunk *c, kvi_net_slice *slice)
{
    const kvcsa_session *s = c->s;

    slice->index_parts = kvi_session_parts(s, KVI_PARTS_INDEX);
    slice->main_parts = kvi_session_parts(s, KVI_PARTS_MAIN);
    slice->geom = &s->geom;
    slice->window_pages = kvi_session_parts(s, KVI_PARTS_PAGES);
    slice->pending = s->now.pending ? kvi_block_main_part(s->now.pending) : NULL;
    slice->floors = s->now.floors;
    slice->first_rows = s->first_rows;
    slice->logit_rows = s->rows.data;
    slice->limits = &s->limits;
    slice->work = s->work;
    slice->mass = s->set.flags & KVCSA_SESSION_TRACK_MASS ? s->mass.data : NULL;
    slice->n_mass = s->n_mass;
    slice->stop = ask_stop;
    slice->stop_user = c;
    slice->stopped = 0;
}

static kvcsa_status plan_rows(kvi_chunk *c, uint64_t max_rows, kvi_net_slice *slice,
                              kvcsa_error *err)
{
    kvcsa_session    *s = c->s;
    const kvi_append *ap = kvi_session_first_append(s);
    const uint64_t    pos = s->now.n_tokens;
    const uint32_t    n = (uint32_t)kvi_min_size(kvi_min_size(ap->end - pos, max_rows),
                                                 chunk_limit(s, ap));
    kvcsa_status      st;

    *slice = (kvi_net_slice){.pos = pos, .n_rows = n};
    c->n_before = pos - ap->begin;
    if ((pos + n < ap->end && (st = set_mark(s, ap->end, err)) != KVCSA_OK) ||
        (st = gather_tokens(s, pos, n, &slice->tokens, err)) != KVCSA_OK ||
        (st = own_tail(s, err)) != KVCSA_OK ||
        (st = acquire_blocks(s, pos + n, err)) != KVCSA_OK ||
        (st = own_windows(s, pos, n, err)) != KVCSA_OK ||
        (st = prepare_logits(s, err)) != KVCSA_OK)
        return st;
    slice->n_logit_rows = wanted_rows(s, ap, n, &c->n_reported);
    return KVCSA_OK;
}

static kvcsa_status plan_replay(kvi_chunk *c, uint64_t max_rows, kvi_net_slice *slice,
                                kvcsa_error *err)
{
    kvcsa_session *s = c->s;
    const uint64_t left = s->now.replay_end - s->replay_pos;
    const uint32_t n =
        (uint32_t)kvi_min_size(kvi_min_size(left, max_rows), s->set.chunk_tokens);
    kvcsa_status   st;

    *slice = (kvi_net_slice){.pos = s->replay_pos, .n_rows = n, .replay = 1};
    c->n_before = 0;
    c->n_reported = 0;
    if ((st = gather_tokens(s, s->replay_pos, n, &slice->tokens, err)) != KVCSA_OK ||
        (st = own_windows(s, s->replay_pos, n, err)) != KVCSA_OK ||
        (st = prepare_logits(s, err)) != KVCSA_OK)
        return st;
    /* the last row of the last layer is right again, unless decoder replay leaves it out */
    slice->n_logit_rows =
        n == left && s->now.replay_end > s->first_rows[s->model->plan.n_layers] ? 1 : 0;
    *(uint32_t *)s->rows.data = n - 1;
    return KVCSA_OK;
}

/* Windows are right and nothing is queued: the last row alone brings the logits back. */
static void plan_last_row(kvi_state *st)
{
    st->replay_how = KVI_REPLAY_FROM;
    st->replay_from = st->n_tokens - 1;
    st->replay_end = st->n_tokens;
}

kvcsa_status kvi_chunk_plan(kvi_chunk *c, uint64_t max_rows, kvi_net_slice *slice, kvcsa_error *err)
{
    kvcsa_session *s = c->s;
    kvcsa_status   st;

    slice->n_rows = 0;
    if (s->adopt.n_tokens) {
        if ((st = set_mark(s, s->now.n_tokens, err)) != KVCSA_OK) /* windows are new ones anyway */
            return st;
        adopt_prefix(s);
    }
    if (!kvi_session_has_work(s))
        return KVCSA_OK;
    if (!kvi_session_queued(s)) {
        if (!s->now.replay_end) {
            plan_last_row(&s->now);
            s->last_row_only = 1;
        }
        if (!s->planned && (st = kvi_session_reserve(s, 1, err)) != KVCSA_OK) {
            if (s->last_row_only)
                s->now.replay_end = 0;
            s->last_row_only = 0;
            return st;
        }
    }
    if (!s->planned) {
        const kvi_append *ap = kvi_session_first_append(s);

        if (!s->first_rows &&
            !(s->first_rows = kvi_zalloc(&s->allocator, (s->model->plan.n_layers + 1) *
                                                            sizeof *s->first_rows)))
            return kvi_fail(err, KVCSA_ERR_NOMEM, "plan of %u layers", s->model->plan.n_layers);
        kvi_session_plan_forward(s, ap ? ap->end : s->now.n_tokens);
    }
    st = s->now.replay_end ? plan_replay(c, max_rows, slice, err)
                           : plan_rows(c, max_rows, slice, err);
    if (st == KVCSA_OK)
        st = kvi_session_prepare_counts(s, slice->pos + slice->n_rows, err);
    if (st == KVCSA_OK)
        st = kvi_session_view(s, 0, err);
    if (st == KVCSA_OK)
        st = kvi_session_send_view(s, err);
    if (st != KVCSA_OK) {
        slice->n_rows = 0;
        kvi_chunk_undo(c);
        return st;
    }
    fill_slice(c, slice);
    return KVCSA_OK;
}

void kvi_chunk_undo(kvi_chunk *c)
{
    kvcsa_session *s = c->s;

    while (s->n_own) {
        kvi_block_unacquire(s->pool, own_blocks(s)[--s->n_own]);
        s->n_reserved++;
    }
    if (s->last_row_only) { /* the windows are as right as they were */
        s->now.replay_end = 0;
        s->last_row_only = 0;
        s->planned = 0;
    }
}

/* ------------------------------------------------------------------ commit */

static void commit_logits(kvi_chunk *c, const kvi_net *net, const kvi_net_slice *slices, size_t i,
                          int last_row)
{
    kvcsa_session *s = c->s;
    const uint32_t vocab = s->model->config.vocab_size;

    kvi_logits_release(s, s->now.logits);
    s->now.logits = NULL;
    if (!last_row || !net)
        return;
    memcpy(s->next_logits->row,
           kvi_net_logits(net, slices, i) + (size_t)(slices[i].n_logit_rows - 1) * vocab,
           vocab * sizeof(float));
    s->now.logits = s->next_logits;
    s->next_logits = NULL;
}

/* Token ids into the tail and the blocks behind it. */
static void store_tokens(kvcsa_session *s, const int32_t *tokens, uint32_t n)
{
    const uint32_t bt = kvi_session_block_tokens(s);
    uint64_t       at = s->now.n_tokens % bt;
    size_t         k = 0;
    kvi_block     *b = s->now.tail ? s->now.tail : own_blocks(s)[k++];

    for (uint32_t i = 0; i < n; i++) {
        if (at == bt) {
            b = own_blocks(s)[k++];
            at = 0;
        }
        kvi_block_tokens(b)[at++] = tokens[i];
    }
}

/* Windows are kept beside a block that ends where the chunk does. */
static int is_stored_here(const kvcsa_session *s, uint64_t end)
{
    const kvi_state *st = &s->now;
    const uint64_t   window = kvi_session_window_tokens(s);

    return s->set.store_tokens && st->n_tokens == end && end % s->set.store_tokens == 0 &&
           !st->window_approx && st->taint_pos == UINT64_MAX &&
           st->window_lo <= (end > window ? end - window : 0);
}

/* Full blocks go to the chain; what is left over is the tail. */
static void seal_blocks(kvcsa_session *s)
{
    kvi_state     *st = &s->now;
    const uint32_t bt = kvi_session_block_tokens(s);
    size_t         k = 0;
    kvi_block     *b = st->tail ? st->tail : s->n_own ? own_blocks(s)[k++] : NULL;

    for (uint64_t end = (kvi_state_n_full(st) + 1) * bt; b && end <= st->n_tokens; end += bt) {
        const uint32_t flags = (st->taint_pos < end ? (uint32_t)KVI_SEAL_TAINTED : 0u) |
                               (s->set.flags & KVCSA_SESSION_PRIVATE ? (uint32_t)KVI_SEAL_PRIVATE
                                                                     : 0u);

        st->last = kvi_block_seal(s->pool, s->root, b, st->last, flags, st->pages,
                                  is_stored_here(s, end) ? s->geom.n_pages : 0);
        b = k < s->n_own ? own_blocks(s)[k++] : NULL;
    }
    st->tail = b;
    st->tail_mine = b != NULL;
    s->n_own = 0;
}

/* Windows are not those of an undisturbed run, nor will entries from `pos` on be. */
static void taint(kvi_state *st, uint64_t pos)
{
    st->taint_pos = kvi_min_size(st->taint_pos, pos);
    st->window_approx = 1;
}

/* A forward that left rows out made windows that are not those of an undisturbed run. */
static void note_windows(kvcsa_session *s, const kvi_net_slice *slice)
{
    kvi_state     *st = &s->now;
    const uint32_t n_layers = s->model->plan.n_layers;
    const uint64_t end = slice->pos + slice->n_rows;
    const uint64_t ring = kvi_window_ring_rows(&s->geom);

    if (kvi_session_is_limited(s))
        taint(st, slice->pos);
    for (uint32_t l = 0; l < n_layers; l++)
        st->window_lo = kvi_max_size(st->window_lo, s->first_rows[l]);
    if (end > ring)
        st->window_lo = kvi_max_size(st->window_lo, end - ring);
}

/* Slots that rows up to raw_end went into do not hold those of older entries any more. */
static uint64_t oldest_raw_row(const kvcsa_session *s)
{
    const kvi_plan *plan = &s->model->plan;
    uint64_t        oldest = 0;

    for (uint32_t l = 0; l < plan->n_layers && s->now.raw_end; l++) {
        const uint64_t last = plan->rows[l].pending_bytes
                                  ? (s->now.raw_end - 1) / plan->rows[l].ratio + 1
                                  : 0;

        if (last > s->geom.pending_slots)
            oldest = kvi_max_size(oldest, (last - s->geom.pending_slots) * plan->rows[l].ratio);
    }
    return oldest;
}

/* Of a replay, which runs more and more layers, the rows of its last token's entry are sure to be
 * there. */
static void note_raw_rows(kvcsa_session *s, const kvi_net_slice *slice)
{
    kvi_state     *st = &s->now;
    const uint64_t end = slice->pos + slice->n_rows;
    const uint64_t first = slice->replay ? end - 1 : slice->pos;

    if (slice->replay)
        st->raw_lo = UINT64_MAX;
    else if (slice->pos < st->raw_end) /* the session went back */
        st->raw_lo = kvi_max_size(st->raw_lo, oldest_raw_row(s));
    st->raw_lo = kvi_min_size(st->raw_lo, first);
    st->raw_end = end;
}

static void finish_replay(kvcsa_session *s)
{
    kvi_state *st = &s->now;

    if (st->replay_how == KVI_REPLAY_BOUNDED && s->first_rows[0] > 0)
        taint(st, st->replay_end);
    if (st->replay_how != KVI_REPLAY_FROM)
        st->window_lo = s->first_rows[s->model->plan.n_layers - 1];
    else if (st->replay_end > kvi_window_ring_rows(&s->geom))
        st->window_lo = kvi_max_size(st->window_lo,
                                     st->replay_end - kvi_window_ring_rows(&s->geom));
    if (!st->window_approx && st->taint_pos >= st->n_tokens) /* the windows that meant are gone */
        st->taint_pos = UINT64_MAX;
    st->replay_end = 0;
    s->replay_told = 0;
    s->last_row_only = 0;
    if (!kvi_session_queued(s))
        s->planned = 0;
}

static void commit_replay(kvi_chunk *c, const kvi_net *net, const kvi_net_slice *slices, size_t i)
{
    kvcsa_session *s = c->s;
    const uint32_t n = slices[i].n_rows;

    if (!s->replay_told)
        kvi_pool_trace(s->pool, KVCSA_TRACE_REPLAY, KVCSA_REASON_NONE, s->replay_pos,
                       s->now.replay_end - s->replay_pos, 0);
    s->replay_told = 1;
    s->n_replayed_rows += n;
    s->replay_pos += n;
    s->now.replay_from = s->replay_pos; /* where the windows are right now, if they were before */
    if (kvi_session_is_limited(s) && !s->last_row_only) /* now; what comes may see all again */
        taint(&s->now, s->now.replay_end);
    if (s->replay_pos < s->now.replay_end)
        return;
    commit_logits(c, net, slices, i, slices[i].n_logit_rows > 0);
    s->now.logits_due = !s->now.logits && !s->cache_only && s->now.logits_due;
    finish_replay(s);
}

static void commit_rows(kvi_chunk *c, const kvi_net *net, const kvi_net_slice *slices, size_t i)
{
    kvcsa_session       *s = c->s;
    const kvi_net_slice *slice = &slices[i];
    const kvi_append     ap = *kvi_session_first_append(s);
    const uint32_t       vocab = s->model->config.vocab_size;
    const int            done = slice->pos + slice->n_rows == ap.end;

    store_tokens(s, slice->tokens, slice->n_rows);
    s->now.n_tokens += slice->n_rows;
    s->first_queued += slice->n_rows;
    s->n_queued -= slice->n_rows;
    s->n_computed_rows += slice->n_rows;
    note_windows(s, slice);
    seal_blocks(s);
    commit_logits(c, net, slices, i, done && ap.logits != KVCSA_LOGITS_NONE);
    s->now.logits_due = 0;
    for (uint32_t k = 0; k < c->n_reported && net; k++)
        ap.on_logits(ap.user, slice->pos + slice->logit_rows[k],
                     kvi_net_logits(net, slices, i) + (size_t)k * vocab, vocab);
    if (done)
        kvi_session_drop_append(s);
}

void kvi_chunk_lose_windows(kvi_chunk *c)
{
    kvcsa_session *s = c->s;

    kvi_chunk_undo(c);
    s->planned = 0;
    kvi_state_rebuild_window(s, &s->now, kvi_session_default_replay(s));
    (void)kvi_session_reserve(s, 0, NULL); /* what there is; a chunk asks for the rest */
}

/* The last row, run for its logits: its window and raw rows are there, and are better than what a
 * session makes that sees less by now. */
static int keeps_windows(const kvi_chunk *c)
{
    return c->s->last_row_only;
}

void kvi_chunk_commit_windows(kvi_chunk *c, kvi_net *net, const kvi_net_slice *slices, size_t i)
{
    kvcsa_session *s = c->s;

    if (!keeps_windows(c))
        kvi_net_commit(net, slices, i, s->page_parts.data,
                       s->now.pending ? kvi_block_main_part(s->now.pending) : NULL, s->now.floors);
}

void kvi_chunk_commit(kvi_chunk *c, const kvi_net *net, const kvi_net_slice *slices, size_t i)
{
    kvcsa_session *s = c->s;

    if (!keeps_windows(c))
        note_raw_rows(s, &slices[i]);
    if (slices[i].replay)
        commit_replay(c, net, slices, i);
    else
        commit_rows(c, net, slices, i);
    s->now.logits_approx = s->now.logits && (s->now.window_approx || kvi_session_is_limited(s));
    if (!s->now.replay_end &&
        (!kvi_session_first_append(s) || s->now.n_tokens == kvi_session_first_append(s)->begin))
        kvi_session_drop_mark(s);
    if (!kvi_session_has_work(s))
        (void)kvi_session_reserve(s, 0, NULL); /* cannot fail: it only gives back */
}
