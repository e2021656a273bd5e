/* What a queue needs before it runs: the known prefix that it begins with, and room in the pool. */
#include "session/session_int.h"

#include <string.h>

#include "base/status.h"

/* ------------------------------------------------------------------ rows to run again */

uint64_t kvi_session_replay_rows(const kvcsa_session *s, uint64_t hit, uint32_t how)
{
    const kvi_plan *plan = &s->model->plan;
    uint64_t        widest = 0;
    uint64_t        depth = 1;

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const uint64_t w = plan->rows[l].window_tokens;

        widest = kvi_max_size(widest, w);
        depth += w ? w - 1 : 0;
    }
    return kvi_min_size(hit, how == KVI_REPLAY_BOUNDED || widest == 0 ? widest : depth);
}

uint64_t kvi_session_rows_to_replay(const kvcsa_session *s)
{
    const kvi_state *st = &s->now;

    if (!st->replay_end)
        return st->logits_due && !kvi_session_queued(s) ? 1 : 0;
    if (s->planned)
        return st->replay_end - s->replay_pos;
    return st->replay_how == KVI_REPLAY_FROM
               ? st->replay_end - st->replay_from
               : kvi_session_replay_rows(s, st->replay_end, st->replay_how);
}

/* ------------------------------------------------------------------ known prefixes */

/* What the session holds once the known prefix is taken. */
static uint64_t end_of_prefix(const kvcsa_session *s)
{
    return s->adopt.n_tokens ? kvi_state_begin_of_tail(s, &s->now) + s->adopt.n_tokens
                             : s->now.n_tokens;
}

/* No prefix may reach behind this position: rows from there on are wanted one by one. */
static uint64_t reuse_limit(const kvcsa_session *s)
{
    const kvi_append *ap = s->appends.data;

    for (size_t i = s->first_append; i < s->first_append + s->n_appends; i++)
        if (ap[i].logits == KVCSA_LOGITS_ALL || ap[i].logits == KVCSA_LOGITS_ROWS)
            return ap[i].begin;
    return kvi_session_total(s);
}

/* Tokens [begin, limit) of session and queue, one behind the other. */
static const int32_t *gather_tokens(kvcsa_session *s, uint64_t begin, uint64_t limit,
                                    kvcsa_error *err)
{
    const size_t held = (size_t)(s->now.n_tokens - begin);
    const size_t n = (size_t)(limit - begin);
    int32_t     *list;

    if (!kvi_session_grow_ids(s, &s->look, 0, n)) {
        kvi_fail(err, KVCSA_ERR_NOMEM, "list of %zu tokens", n);
        return NULL;
    }
    list = s->look.data;
    kvi_session_copy_tokens(s, begin, held, list);
    if (n > held)
        memcpy(list + held, kvi_session_queue(s), (n - held) * sizeof *list);
    return list;
}

/* A window beside one of the matched blocks that leaves fewer rows to run again than `rows`. */
static kvcsa_status find_stored(kvcsa_session *s, uint64_t hit, uint64_t *rows, kvcsa_error *err)
{
    const size_t n_pages = s->geom.n_pages;
    kvi_block   *last = s->adopt.last ? s->adopt.last : s->now.last;

    if (s->reuse != KVCSA_REUSE_EXACT || !last || !n_pages)
        return KVCSA_OK;
    if (!s->stored &&
        !(s->stored = kvi_zalloc(&s->allocator, n_pages * sizeof *s->stored)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of %zu window pages", n_pages);
    s->stored_pos = kvi_block_stored_window(
        s->pool, last, (hit - *rows) / kvi_session_block_tokens(s), s->stored, n_pages);
    if (s->stored_pos && hit - s->stored_pos >= *rows) {
        kvi_blocks_release(s->pool, s->stored, n_pages);
        s->stored_pos = 0;
    }
    if (s->stored_pos)
        *rows = hit - s->stored_pos;
    return KVCSA_OK;
}

/* Fills adopt. *rows: of the replay that it costs. */
static kvcsa_status find_prefix(kvcsa_session *s, uint64_t *rows, uint32_t *reason,
                                kvcsa_error *err)
{
    const uint64_t n_tokens = s->now.n_tokens;
    const uint64_t begin = kvi_state_begin_of_tail(s, &s->now);
    const uint64_t limit = reuse_limit(s);
    const int32_t *list;
    kvcsa_status   st;
    uint64_t       hit;

    *reason = KVCSA_REASON_OFF;
    if (s->reuse == KVCSA_REUSE_NONE)
        return KVCSA_OK;
    *reason = KVCSA_REASON_PRIVATE; /* a limited session's bits do not depend on what others made */
    if (s->now.taint_pos != UINT64_MAX || kvi_session_is_limited(s))
        return KVCSA_OK;
    *reason = KVCSA_REASON_LOGITS;
    if (limit <= n_tokens)
        return KVCSA_OK;
    if (!(list = gather_tokens(s, begin, limit, err)))
        return KVCSA_ERR_NOMEM;
    kvi_prefix_find(s->pool, s->root, s->now.last, list, (size_t)(limit - begin), &s->adopt);
    *reason = s->adopt.reason ? s->adopt.reason
              : limit < kvi_session_total(s) ? KVCSA_REASON_LOGITS
                                             : KVCSA_REASON_NONE;
    hit = begin + s->adopt.n_tokens;
    if (hit <= n_tokens) {
        kvi_session_drop_adopt(s);
        return KVCSA_OK;
    }
    *rows = kvi_session_replay_rows(
        s, hit, s->reuse == KVCSA_REUSE_BOUNDED ? KVI_REPLAY_BOUNDED : KVI_REPLAY_EXACT);
    if ((st = find_stored(s, hit, rows, err)) != KVCSA_OK)
        return st;
    if (*rows > hit - n_tokens + kvi_session_rows_to_replay(s)) {
        kvi_session_drop_adopt(s);
        *reason = KVCSA_REASON_SHORT;
    }
    return KVCSA_OK;
}

kvcsa_status kvi_session_look_up(kvcsa_session *s, kvcsa_error *err)
{
    const uint64_t total = kvi_session_total(s);
    uint64_t       rows = 0;
    uint32_t       reason = KVCSA_REASON_NONE;
    kvcsa_status   st = find_prefix(s, &rows, &reason, err);
    const uint64_t hit = end_of_prefix(s);

    if (st != KVCSA_OK)
        return st;
    if (!s->adopt.n_tokens)
        rows = kvi_session_rows_to_replay(s);
    if (hit == total && rows == 0)
        rows = 1; /* the last row, for its logits */
    s->report = (kvcsa_reuse){.n_kept = s->now.n_tokens,
                              .n_adopted = hit - s->now.n_tokens,
                              .n_replay = rows,
                              .n_compute = total - hit,
                              .how = s->reuse,
                              .reason = hit == total ? (uint32_t)KVCSA_REASON_NONE : reason};
    return KVCSA_OK;
}

void kvi_session_report_kept(kvcsa_session *s)
{
    s->report = (kvcsa_reuse){.n_kept = s->now.n_tokens,
                              .n_replay = kvi_session_rows_to_replay(s),
                              .how = s->set.reuse};
}

void kvi_session_trace_reuse(const kvcsa_session *s)
{
    const kvcsa_reuse *r = &s->report;

    if (r->n_adopted)
        kvi_pool_trace(s->pool, KVCSA_TRACE_HIT, KVCSA_REASON_NONE, r->n_kept, r->n_adopted, 0);
    if (r->n_compute)
        kvi_pool_trace(s->pool, KVCSA_TRACE_MISS, r->reason, r->n_kept + r->n_adopted,
                       r->n_compute, 0);
}

/* ------------------------------------------------------------------ room */

typedef struct kvi_need {
    uint64_t blocks, pages, pending;
} kvi_need;

/* Pages that the last ring rows of [begin, end) fall into. */
static uint64_t pages_touched(const kvcsa_session *s, uint64_t begin, uint64_t end)
{
    const kvi_window_geom *g = &s->geom;
    const uint64_t         first = kvi_max_size(
                begin, end > kvi_window_ring_rows(g) ? end - kvi_window_ring_rows(g) : 0);

    if (begin >= end)
        return 0;
    return kvi_min_size(g->n_pages, (end - 1) / g->page_rows - first / g->page_rows + 1);
}

int kvi_session_is_writable(const kvcsa_session *s, const kvi_block *block, int mine)
{
    return block && kvi_block_is_writable(s->pool, block, mine);
}

uint64_t kvi_session_pages_of(const kvcsa_session *s, uint64_t begin, uint64_t end)
{
    return s->page_cls ? pages_touched(s, begin, end) : 0;
}

/* Those of them that have to be acquired as things stand. */
static uint64_t pages_missing(const kvcsa_session *s, uint64_t begin, uint64_t end)
{
    const kvi_window_geom *g = &s->geom;
    const uint64_t         n = pages_touched(s, begin, end);
    uint64_t               missing = 0;

    for (uint64_t i = 0; i < n; i++) {
        const uint64_t p = (end - 1) / g->page_rows - i;

        missing += kvi_blocks_count_shared(s->pool, &s->now.pages[p % g->n_pages], 1);
    }
    return missing;
}

enum { NEED_COPIES = 1, NEED_ALL = 2 };

/* Pages and raw rows of rows [begin, end), an upper limit. NEED_ALL: none of the pages are there.
 * NEED_COPIES: several chunks run behind a mark, so what is written is copied first; that holds
 * behind every stored window too. */
static void need_of_rows(const kvcsa_session *s, uint64_t begin, uint64_t end, uint32_t how,
                         kvi_need *need)
{
    const uint64_t store = s->set.store_tokens;
    const uint64_t now = s->now.n_tokens;
    const int      all = how & NEED_ALL || (how & NEED_COPIES && end - begin > 1) ||
                    (store && begin > now && begin / store > now / store); /* stored before */

    if (begin >= end)
        return;
    if (s->page_cls)
        need->pages += all ? pages_touched(s, begin, end) : pages_missing(s, begin, end);
    if (s->pending_cls)
        need->pending += all ? 1 : kvi_blocks_count_shared(s->pool, &s->now.pending, 1);
    if (!store || !s->page_cls)
        return;
    for (uint64_t p = (begin / store + 1) * store; p < end; p += store) {
        need->pages += pages_touched(s, p, kvi_min_size(p + store, end));
        need->pending++;
    }
}

static kvi_need need_of(const kvcsa_session *s, int with_replay, uint32_t copies)
{
    const kvi_state *st = &s->now;
    const uint32_t   bt = kvi_session_block_tokens(s);
    const int        adopts = s->adopt.n_tokens > 0;
    const uint64_t   hit = end_of_prefix(s);
    const int        fresh = adopts || (st->replay_end && st->replay_how != KVI_REPLAY_FROM);
    const uint32_t   how = copies | (fresh ? (uint32_t)NEED_ALL : 0u);
    const kvi_append *ap = s->appends.data;
    kvi_need          need = {0};
    uint64_t          base;

    if (!kvi_session_queued(s) && !with_replay)
        return need;
    base = adopts ? hit / bt
                  : kvi_state_n_full(st) +
                        (kvi_session_is_writable(s, st->tail, st->tail_mine) ? 1 : 0);
    if (kvi_session_queued(s) && hit < kvi_session_total(s))
        need.blocks = kvi_session_blocks_for(s, kvi_session_total(s)) - base;
    if (adopts && s->stored_pos == hit && hit == kvi_session_total(s))
        need_of_rows(s, hit - 1, hit, NEED_ALL, &need); /* the last row, for its logits */
    else if (fresh)
        need_of_rows(s, adopts ? s->stored_pos : 0, hit, NEED_ALL, &need);
    else if (st->replay_end)
        need_of_rows(s, st->replay_from, hit, 0, &need);
    else if (st->logits_due && hit)
        need_of_rows(s, hit - 1, hit, 0, &need);
    for (size_t i = s->first_append; i < s->first_append + s->n_appends; i++)
        need_of_rows(s, kvi_max_size(ap[i].begin, hit), ap[i].end, how, &need);
    return need;
}

static kvcsa_status reserve_more(kvcsa_session *s, kvi_block_class *cls, uint64_t have,
                                 uint64_t want, kvcsa_error *err)
{
    return want > have ? kvi_pool_reserve(s->pool, cls, want - have, err) : KVCSA_OK;
}

static void unreserve_rest(kvcsa_session *s, kvi_block_class *cls, uint64_t have, uint64_t want)
{
    if (have > want)
        kvi_pool_unreserve(s->pool, cls, have - want);
}

/* All that is missing, or nothing. */
static kvcsa_status reserve_all(kvcsa_session *s, const kvi_need *need, kvcsa_error *err)
{
    kvcsa_status st = reserve_more(s, s->cls, s->n_reserved, need->blocks, err);

    if (st != KVCSA_OK)
        return st;
    st = reserve_more(s, s->page_cls, s->n_reserved_pages, need->pages, err);
    if (st == KVCSA_OK) {
        st = reserve_more(s, s->pending_cls, s->n_reserved_pending, need->pending, err);
        if (st != KVCSA_OK)
            unreserve_rest(s, s->page_cls, need->pages, s->n_reserved_pages);
    }
    if (st != KVCSA_OK)
        unreserve_rest(s, s->cls, need->blocks, s->n_reserved);
    return st;
}

static uint64_t more(uint64_t have, uint64_t want)
{
    return want > have ? want - have : 0;
}

/* The same for what the state `give` holds, which goes in the same move. */
static kvcsa_status trade(kvcsa_session *s, const kvi_need *need, kvi_state *give, kvcsa_error *err)
{
    const kvi_reservation want[] = {{s->cls, more(s->n_reserved, need->blocks)},
                                    {s->page_cls, more(s->n_reserved_pages, need->pages)},
                                    {s->pending_cls, more(s->n_reserved_pending, need->pending)}};
    const size_t          n = s->geom.n_pages + 3u;
    kvi_block           **drop = kvi_alloc(&s->allocator, n * sizeof *drop);
    kvcsa_status          st;

    if (!drop)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of %zu blocks", n);
    memcpy(drop, give->pages, s->geom.n_pages * sizeof *drop);
    drop[n - 3] = give->pending;
    drop[n - 2] = give->tail;
    drop[n - 1] = give->last;
    st = kvi_pool_trade(s->pool, want, 3, drop, n, err);
    kvi_free(&s->allocator, drop, n * sizeof *drop);
    if (st != KVCSA_OK)
        return st;
    kvi_error_clear(err); /* of the attempt before */
    memset(give->pages, 0, s->geom.n_pages * sizeof *give->pages);
    give->pending = NULL;
    give->tail = NULL;
    give->last = NULL;
    return KVCSA_OK;
}

/* What grows first, so that a failure finds what was there. Where the pool has no room for a second
 * copy of the windows, the mark does without: a roll-back then runs rows again. */
kvcsa_status kvi_session_reserve(kvcsa_session *s, int with_replay, kvcsa_error *err)
{
    kvi_need     need = need_of(s, with_replay, NEED_COPIES);
    kvcsa_status st = reserve_all(s, &need, err);
    int          light = 0;

    if (st == KVCSA_ERR_FULL) {
        need = need_of(s, with_replay, 0);
        light = 1;
        kvi_error_clear(err);
        st = reserve_all(s, &need, err);
    }
    if (st == KVCSA_ERR_FULL && s->give)
        st = trade(s, &need, s->give, err);
    if (st != KVCSA_OK)
        return st;
    s->light_mark = light;
    unreserve_rest(s, s->cls, s->n_reserved, need.blocks);
    unreserve_rest(s, s->page_cls, s->n_reserved_pages, need.pages);
    unreserve_rest(s, s->pending_cls, s->n_reserved_pending, need.pending);
    s->n_reserved = need.blocks;
    s->n_reserved_pages = need.pages;
    s->n_reserved_pending = need.pending;
    return KVCSA_OK;
}
