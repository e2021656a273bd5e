/* States as values: copies share, cuts let go. */
#include "session/session_int.h"

#include <string.h>

#include "base/status.h"

static size_t pages_bytes(const kvcsa_session *s)
{
    return s->geom.n_pages * sizeof(kvi_block *);
}

static size_t floors_bytes(const kvcsa_session *s)
{
    return s->model->plan.n_layers * sizeof(uint64_t);
}

static size_t logits_bytes(const kvcsa_session *s)
{
    return sizeof(kvi_logits) + s->model->config.vocab_size * sizeof(float);
}

kvi_logits *kvi_logits_create(const kvcsa_session *s)
{
    kvi_logits *l = kvi_alloc(&s->allocator, logits_bytes(s));

    if (l)
        atomic_init(&l->refs, 1);
    return l;
}

void kvi_logits_release(const kvcsa_session *s, kvi_logits *l)
{
    if (l && atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) == 1)
        kvi_free(&s->allocator, l, logits_bytes(s));
}

kvcsa_status kvi_state_init(const kvcsa_session *s, kvi_state *st, kvcsa_error *err)
{
    *st = (kvi_state){.taint_pos = UINT64_MAX, .raw_lo = UINT64_MAX};
    if (!(st->pages = kvi_zalloc(&s->allocator, pages_bytes(s))) ||
        !(st->floors = kvi_zalloc(&s->allocator, floors_bytes(s)))) {
        kvi_state_fini(s, st);
        return kvi_fail(err, KVCSA_ERR_NOMEM, "state of a session, %zu bytes",
                        pages_bytes(s) + floors_bytes(s));
    }
    return KVCSA_OK;
}

static void drop_window(const kvcsa_session *s, kvi_state *st)
{
    if (st->pages) {
        kvi_blocks_release(s->pool, st->pages, s->geom.n_pages);
        memset(st->pages, 0, pages_bytes(s));
        memset(st->floors, 0, floors_bytes(s));
    }
    kvi_block_release(s->pool, st->pending);
    st->pending = NULL;
    kvi_logits_release(s, st->logits);
    st->logits = NULL;
    st->window_approx = 0;
}

void kvi_state_clear(const kvcsa_session *s, kvi_state *st)
{
    drop_window(s, st);
    kvi_block_release(s->pool, st->tail);
    kvi_block_release(s->pool, st->last);
    *st = (kvi_state){.pages = st->pages,
                      .floors = st->floors,
                      .taint_pos = UINT64_MAX,
                      .raw_lo = UINT64_MAX};
}

void kvi_state_fini(const kvcsa_session *s, kvi_state *st)
{
    if (st->pages && st->floors)
        kvi_state_clear(s, st);
    kvi_free(&s->allocator, st->pages, pages_bytes(s));
    kvi_free(&s->allocator, st->floors, floors_bytes(s));
    *st = (kvi_state){0};
}

void kvi_state_copy(const kvcsa_session *s, kvi_state *to, const kvi_state *from)
{
    kvi_block **const pages = to->pages;
    uint64_t *const   floors = to->floors;
    kvi_block *const  others[] = {from->last, from->tail, from->pending};

    KVI_ASSERT(to->n_tokens == 0 && !to->last && !to->tail);
    *to = *from;
    to->pages = pages;
    to->floors = floors;
    to->tail_mine = 0;
    memcpy(pages, from->pages, pages_bytes(s));
    memcpy(floors, from->floors, floors_bytes(s));
    kvi_blocks_retain(s->pool, pages, s->geom.n_pages);
    kvi_blocks_retain(s->pool, others, 3);
    if (to->logits)
        atomic_fetch_add_explicit(&to->logits->refs, 1, memory_order_relaxed);
}

void kvi_state_lose_window(const kvcsa_session *s, kvi_state *st, uint32_t how)
{
    drop_window(s, st);
    st->window_lo = st->n_tokens;
    st->raw_lo = UINT64_MAX;
    st->raw_end = 0;
    st->replay_end = s->geom.n_pages ? st->n_tokens : 0; /* none where there is nothing to rebuild */
    st->replay_from = 0;
    st->replay_how = how;
    st->logits_due = st->n_tokens > 0;
}

void kvi_state_stand_on_stored(const kvcsa_session *s, kvi_state *st, uint64_t pos)
{
    const uint64_t window = kvi_session_window_tokens(s);

    st->window_lo = pos > window ? pos - window : 0;
    st->replay_how = KVI_REPLAY_FROM;
    st->replay_from = pos;
    st->replay_end = pos < st->n_tokens ? st->n_tokens : 0;
}

void kvi_state_drop_approx_logits(const kvcsa_session *s, kvi_state *st)
{
    if (!st->logits || !st->logits_approx || st->window_approx || st->taint_pos < st->n_tokens ||
        !kvi_session_is_exact(s))
        return;
    kvi_logits_release(s, st->logits);
    st->logits = NULL;
    st->logits_due = 1;
}

/* A window beside one of the chain's blocks, if that leaves fewer rows to run again. */
static void find_stored(const kvcsa_session *s, kvi_state *st)
{
    const uint64_t rows = kvi_session_replay_rows(s, st->n_tokens, KVI_REPLAY_EXACT);
    uint64_t       pos;

    if (st->replay_how != KVI_REPLAY_EXACT || !st->last || !s->geom.n_pages)
        return;
    pos = kvi_block_stored_window(s->pool, st->last,
                                  (st->n_tokens - rows) / kvi_session_block_tokens(s), st->pages,
                                  s->geom.n_pages);
    if (pos && st->n_tokens - pos < rows) {
        kvi_state_stand_on_stored(s, st, pos);
    } else if (pos) {
        kvi_blocks_release(s->pool, st->pages, s->geom.n_pages);
        memset(st->pages, 0, pages_bytes(s));
    }
}

void kvi_state_rebuild_window(const kvcsa_session *s, kvi_state *st, uint32_t how)
{
    kvi_state_lose_window(s, st, how);
    if (st->replay_end)
        find_stored(s, st);
}

/* The chain up to `position`; a block that it ends in becomes the tail. */
static void cut_blocks(const kvcsa_session *s, kvi_state *st, uint64_t position)
{
    const uint32_t bt = kvi_session_block_tokens(s);
    const uint64_t n_full = position / bt;
    kvi_block     *keep = st->last;
    kvi_block     *tail = position % bt && n_full == kvi_state_n_full(st) ? st->tail : NULL;

    while (keep && kvi_block_depth(keep) >= n_full) {
        if (kvi_block_depth(keep) == n_full && position % bt)
            tail = keep;
        keep = kvi_block_parent(keep);
    }
    kvi_block_retain(s->pool, keep);
    kvi_block_retain(s->pool, tail);
    kvi_block_release(s->pool, st->tail);
    kvi_block_release(s->pool, st->last);
    st->last = keep;
    st->tail = tail;
    st->tail_mine = 0; /* somebody may read what lies behind */
}

uint64_t kvi_session_window_tokens(const kvcsa_session *s)
{
    const kvi_plan *plan = &s->model->plan;
    uint64_t        widest = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++)
        widest = kvi_max_size(widest, plan->rows[l].window_tokens);
    return widest;
}

int kvi_session_is_exact(const kvcsa_session *s)
{
    return s->set.reuse != KVCSA_REUSE_BOUNDED && s->set.decoder_cut == 0 &&
           !kvi_session_is_limited(s);
}

/* Rows that a query at `position` reads, and the raw row in front of it, are still there. */
static int has_window_at(const kvcsa_session *s, const kvi_state *st, uint64_t position)
{
    const uint64_t ring = kvi_window_ring_rows(&s->geom);
    const uint64_t window = kvi_session_window_tokens(s);
    const uint64_t held = st->n_tokens > ring ? st->n_tokens - ring : 0;

    return !st->replay_end && kvi_max_size(held, st->window_lo) <=
                                  (position > window ? position - window : 0);
}

/* The slots hold the rows of the last tokens that were run, wherever the session went back to. */
static int has_raw_row_at(const kvcsa_session *s, const kvi_state *st, uint64_t position)
{
    const kvi_plan *plan = &s->model->plan;

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const uint32_t ratio = plan->rows[l].ratio;

        if (plan->rows[l].pending_bytes && position % ratio != 0 &&
            (position - position % ratio < st->raw_lo - st->raw_lo % ratio ||
             position / ratio + s->geom.pending_slots <= (st->raw_end - 1) / ratio))
            return 0;
    }
    return 1;
}

int kvi_state_has_raw_rows(const kvcsa_session *s, const kvi_state *st)
{
    return st->pending && !st->replay_end && has_raw_row_at(s, st, st->n_tokens);
}

void kvi_state_cut(const kvcsa_session *s, kvi_state *st, uint64_t position, uint32_t how)
{
    const int window = has_window_at(s, st, position);
    const int raw = has_raw_row_at(s, st, position);

    if (position == st->n_tokens)
        return;
    if (position == 0) {
        kvi_state_clear(s, st);
        return;
    }
    cut_blocks(s, st, position);
    st->n_tokens = position;
    if (!window) {
        if (position <= st->taint_pos)
            st->taint_pos = UINT64_MAX;
        kvi_state_rebuild_window(s, st, how);
        return;
    }
    if (st->taint_pos != UINT64_MAX) /* the windows that stay are those of the bounded replay */
        st->taint_pos = kvi_min_size(st->taint_pos, position);
    kvi_logits_release(s, st->logits);
    st->logits = NULL;
    st->logits_due = 1;
    if (!raw) { /* the tokens of the entry bring them back */
        st->replay_end = position;
        st->replay_from = position - position % kvi_plan_max_ratio(&s->model->plan);
        st->replay_how = KVI_REPLAY_FROM;
    }
}

void kvi_session_install(kvcsa_session *s, kvi_state *st)
{
    kvi_state old = s->now;

    KVI_ASSERT(!kvi_session_queued(s));
    s->now = *st;
    *st = (kvi_state){0};
    kvi_state_fini(s, &old);
    s->n_view = 0;
    kvi_session_clear_mass(s);
    kvi_session_forget_plan(s);
}

void kvi_session_forget_plan(kvcsa_session *s)
{
    kvi_session_drop_mark(s);
    s->planned = 0;
    s->replay_told = 0;
    s->last_row_only = 0;
    /* a request to cancel was for what is no more */
    atomic_store_explicit(&s->cancel, 0, memory_order_relaxed);
    if (!kvi_session_queued(s))
        (void)kvi_session_reserve(s, 0, NULL); /* cannot fail: it only gives back */
}

/* ------------------------------------------------------------------ lists */

int kvi_session_grow_ids(const kvcsa_session *s, kvi_buf *buf, size_t used, size_t need)
{
    const kvi_buf old = *buf;
    kvi_buf       bigger = {0};

    if (need <= old.cap)
        return 1;
    if (!kvi_buf_reserve(&s->allocator, &bigger, sizeof(int32_t), 0,
                         kvi_max_size(need, old.cap + old.cap / 2)))
        return 0;
    if (old.data) {
        memcpy(bigger.data, old.data, used * sizeof(int32_t));
        memset(old.data, 0, old.cap * sizeof(int32_t));
    }
    kvi_buf_free(&s->allocator, buf, sizeof(int32_t));
    *buf = bigger;
    return 1;
}

/* ------------------------------------------------------------------ flat tables */

static kvi_buf *parts_of(kvcsa_session *s, uint32_t which)
{
    return which == KVI_PARTS_INDEX  ? &s->index_parts
           : which == KVI_PARTS_MAIN ? &s->main_parts
                                     : &s->page_parts;
}

/* Entries that were sent are kept too: what differs from them is sent again. */
static int reserve_parts(kvcsa_session *s, uint32_t which, size_t used, size_t n)
{
    return kvi_buf_reserve(&s->allocator, parts_of(s, which), sizeof(uint8_t *),
                           kvi_max_size(used, s->there[which].n_clean), n);
}

static int reserve_tables(kvcsa_session *s, size_t n)
{
    return kvi_buf_reserve(&s->allocator, &s->blocks, sizeof(kvi_block *), s->n_view, n) &&
           reserve_parts(s, KVI_PARTS_INDEX, s->n_view, n) &&
           reserve_parts(s, KVI_PARTS_MAIN, s->n_view, n) &&
           reserve_parts(s, KVI_PARTS_PAGES, 0, s->geom.n_pages);
}

static void set_part(kvcsa_session *s, uint32_t which, size_t i, uint8_t *part)
{
    uint8_t        **list = parts_of(s, which)->data;
    kvi_parts_there *there = &s->there[which];

    if (i < there->n_clean && list[i] != part)
        there->n_clean = i;
    list[i] = part;
}

static void set_block(kvcsa_session *s, uint64_t i, kvi_block *block)
{
    kvi_session_blocks(s)[i] = block;
    set_part(s, KVI_PARTS_INDEX, i, kvi_block_index_part(block));
    set_part(s, KVI_PARTS_MAIN, i, kvi_block_main_part(block));
}

kvcsa_status kvi_session_view(kvcsa_session *s, uint64_t n_more, kvcsa_error *err)
{
    const kvi_state *st = &s->now;
    const uint64_t   n_full = kvi_state_n_full(st);
    const size_t     n = (size_t)(n_full + 1 + s->n_own + n_more);
    uint64_t         i = n_full;

    if (!reserve_tables(s, n))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "block table of %zu blocks", n);
    for (kvi_block *b = st->last; i > s->n_view; b = kvi_block_parent(b))
        set_block(s, --i, b);
    s->n_view = n_full;
    i = n_full;
    if (st->tail)
        set_block(s, i++, st->tail);
    for (size_t k = 0; k < s->n_own; k++)
        set_block(s, i++, ((kvi_block **)s->own.data)[k]);
    for (uint32_t k = 0; k < s->geom.n_pages; k++)
        set_part(s, KVI_PARTS_PAGES, k, st->pages[k] ? kvi_block_main_part(st->pages[k]) : NULL);
    return KVCSA_OK;
}

static kvcsa_status send_parts(kvcsa_session *s, uint32_t which, size_t n, kvcsa_error *err)
{
    const kvi_memory *m = kvi_pool_memory(s->pool);
    kvi_parts_there  *there = &s->there[which];
    uint8_t *const   *list = parts_of(s, which)->data;
    const size_t      cap = there->cap;
    kvcsa_status st = kvi_memory_grow(m, &there->data, &there->cap, sizeof(uint8_t *), n, err);

    if (there->cap != cap)
        there->n_clean = 0;
    if (st == KVCSA_ERR_NOMEM)
        return kvi_memory_no_room(m, "table of blocks", n * sizeof(uint8_t *), err);
    if (st != KVCSA_OK || n <= there->n_clean)
        return st;
    st = kvi_memory_put(m, (uint8_t **)there->data + there->n_clean, list + there->n_clean,
                        (n - there->n_clean) * sizeof *list, err);
    if (st == KVCSA_OK)
        there->n_clean = n;
    return st;
}

kvcsa_status kvi_session_send_view(kvcsa_session *s, kvcsa_error *err)
{
    const size_t n = (size_t)kvi_state_n_full(&s->now) + (s->now.tail ? 1 : 0) + s->n_own;
    kvcsa_status st;

    if (!kvi_memory_is_apart(kvi_pool_memory(s->pool)))
        return KVCSA_OK;
    if ((st = send_parts(s, KVI_PARTS_INDEX, n, err)) != KVCSA_OK ||
        (st = send_parts(s, KVI_PARTS_MAIN, n, err)) != KVCSA_OK)
        return st;
    return send_parts(s, KVI_PARTS_PAGES, s->geom.n_pages, err);
}

uint8_t *const *kvi_session_parts(const kvcsa_session *s, uint32_t which)
{
    if (kvi_memory_is_apart(kvi_pool_memory(s->pool)))
        return s->there[which].data;
    return which == KVI_PARTS_INDEX  ? s->index_parts.data
           : which == KVI_PARTS_MAIN ? s->main_parts.data
                                     : s->page_parts.data;
}

void kvi_session_free_view(kvcsa_session *s)
{
    const kvi_memory *m = kvi_pool_memory(s->pool);

    kvi_buf_free(&s->allocator, &s->blocks, sizeof(kvi_block *));
    for (uint32_t i = 0; i < KVI_N_PARTS; i++) {
        kvi_buf_free(&s->allocator, parts_of(s, i), sizeof(uint8_t *));
        kvi_memory_free(m, s->there[i].data, s->there[i].cap * sizeof(uint8_t *));
        s->there[i] = (kvi_parts_there){0};
    }
}

/* ------------------------------------------------------------------ tokens */

/* Part of [from, to) that lies in the block that begins at `begin`. */
static void copy_part(const kvcsa_session *s, const kvi_block *b, uint64_t begin, uint64_t from,
                      uint64_t to, int32_t *out)
{
    const uint64_t lo = kvi_max_size(from, begin);
    const uint64_t hi = kvi_min_size(to, begin + kvi_session_block_tokens(s));

    if (lo < hi)
        memcpy(out + (lo - from), kvi_block_tokens(b) + (lo - begin), (hi - lo) * sizeof *out);
}

void kvi_session_copy_tokens(const kvcsa_session *s, uint64_t from, size_t n, int32_t *out)
{
    const kvi_state *st = &s->now;
    const uint32_t   bt = kvi_session_block_tokens(s);
    const uint64_t   to = from + n;

    if (st->tail)
        copy_part(s, st->tail, kvi_state_begin_of_tail(s, st), from, to, out);
    for (kvi_block *b = st->last; b && (kvi_block_depth(b) + 1) * bt > from;
         b = kvi_block_parent(b))
        copy_part(s, b, kvi_block_depth(b) * bt, from, to, out);
}

/* First of n tokens in which the two lists differ. */
static uint64_t first_difference(const int32_t *a, const int32_t *b, uint64_t n)
{
    uint64_t i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* The blocks are walked from the end, so the last difference found is the first of the list. */
size_t kvi_session_count_common(const kvcsa_session *s, const int32_t *tokens, size_t n)
{
    const kvi_state *st = &s->now;
    const uint32_t   bt = kvi_session_block_tokens(s);
    uint64_t         common = kvi_min_size(n, st->n_tokens);
    const uint64_t   tail = kvi_state_begin_of_tail(s, st);

    if (st->tail && common > tail)
        common = tail + first_difference(kvi_block_tokens(st->tail), tokens + tail, common - tail);
    for (kvi_block *b = st->last; b; b = kvi_block_parent(b)) {
        const uint64_t begin = kvi_block_depth(b) * bt;
        const uint64_t have = common > begin ? kvi_min_size(common - begin, bt) : 0;
        const uint64_t same = first_difference(kvi_block_tokens(b), tokens + begin, have);

        if (same < have)
            common = begin + same;
    }
    return (size_t)common;
}
