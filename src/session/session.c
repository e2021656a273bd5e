#include "session/session_int.h"

#include <string.h>

#include "base/checked.h"
#include "base/status.h"
#include "plan/plan_cost.h"

#define DEFAULT_CHUNK_TOKENS 128u

static size_t pending_bytes(const kvcsa_model *m)
{
    return (size_t)kvi_plan_pending_bytes(&m->plan);
}

static size_t window_bytes(const kvcsa_model *m)
{
    return (size_t)kvi_plan_window_bytes(&m->plan);
}

static size_t floors_bytes(const kvcsa_model *m)
{
    return (m->plan.n_layers + 1) * sizeof(uint64_t);
}

static kvi_append *append_at(const kvcsa_session *s, size_t i)
{
    return (kvi_append *)s->appends.data + s->first_append + i;
}

static int32_t *token_list(const kvcsa_session *s)
{
    return s->tokens.data;
}

kvcsa_status kvi_session_create(kvcsa_pool *pool, kvcsa_model *model,
                                const kvcsa_session_params *params, kvcsa_session **out,
                                kvcsa_error *err)
{
    const kvcsa_allocator *a = kvi_pool_allocator(pool);
    const size_t           n_pending = pending_bytes(model);
    kvcsa_status           st;
    kvcsa_session         *s;

    *out = NULL;
    if (model->plan_only)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "the model was opened for its plan only, it has no weights");
    if (params->flags)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "session flags are 0x%x, none are known",
                        params->flags);
    if (!(s = kvi_zalloc(a, sizeof *s)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "session of %zu bytes", sizeof *s);
    s->allocator = *a;
    atomic_flag_clear(&s->busy);
    atomic_init(&s->cancel, 0);
    s->pool = kvi_pool_retain(pool);
    s->model = kvi_model_retain(model);
    s->chunk_tokens = params->chunk_tokens ? params->chunk_tokens : DEFAULT_CHUNK_TOKENS;
    kvi_pool_count_session(pool, 1);
    if ((st = kvi_pool_charge(pool, window_bytes(model) + n_pending, err)) != KVCSA_OK)
        goto fail;
    s->charged_bytes = window_bytes(model) + n_pending;
    if ((st = kvi_pool_class_acquire(pool, model->layout.index_part_bytes,
                                     model->layout.main_part_bytes, &s->cls, err)) != KVCSA_OK ||
        (st = kvi_net_create(model, a, &s->net, err)) != KVCSA_OK)
        goto fail;
    if (!(s->windows = kvi_zalloc(a, window_bytes(model))) ||
        !(s->pending = kvi_zalloc(a, n_pending)) ||
        !(s->floors = kvi_zalloc(a, floors_bytes(model))) ||
        !(s->first_rows = kvi_zalloc(a, floors_bytes(model))) ||
        !(s->logits = kvi_alloc(a, model->config.vocab_size * sizeof(float)))) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "window rows of %zu bytes", window_bytes(model));
        goto fail;
    }
    *out = s;
    return KVCSA_OK;
fail:
    kvi_session_destroy(s);
    return st;
}

static void free_mark(kvcsa_session *s)
{
    kvi_free(&s->allocator, s->mark.windows, window_bytes(s->model));
    kvi_free(&s->allocator, s->mark.pending, pending_bytes(s->model));
    kvi_free(&s->allocator, s->mark.floors, floors_bytes(s->model));
    s->mark = (kvi_mark){0};
}

static void drop_first_append(kvcsa_session *s)
{
    kvi_append *ap = append_at(s, 0);

    kvi_free(&s->allocator, ap->rows, ap->n_rows * sizeof *ap->rows);
    s->first_append++;
    if (--s->n_appends == 0)
        s->first_append = 0;
}

void kvi_session_destroy(kvcsa_session *s)
{
    if (!s)
        return;

    const kvcsa_allocator a = s->allocator;

    while (s->n_appends)
        drop_first_append(s);
    for (uint64_t i = 0; i < s->n_blocks; i++)
        kvi_block_release(s->pool, kvi_session_blocks(s)[i]);
    if (s->cls) {
        kvi_pool_unreserve(s->pool, s->cls, s->n_reserved);
        kvi_pool_class_release(s->pool, s->cls);
    }
    kvi_pool_uncharge(s->pool, s->charged_bytes);
    kvi_pool_count_session(s->pool, -1);
    free_mark(s);
    kvi_net_destroy(s->net);
    kvi_free(&a, s->windows, window_bytes(s->model));
    kvi_free(&a, s->pending, pending_bytes(s->model));
    kvi_free(&a, s->floors, floors_bytes(s->model));
    kvi_free(&a, s->first_rows, floors_bytes(s->model));
    kvi_free(&a, s->logits, s->model->config.vocab_size * sizeof(float));
    kvi_buf_free(&a, &s->tokens, sizeof(int32_t));
    kvi_buf_free(&a, &s->appends, sizeof(kvi_append));
    kvi_buf_free(&a, &s->blocks, sizeof(kvi_block *));
    kvi_buf_free(&a, &s->index_parts, sizeof(uint8_t *));
    kvi_buf_free(&a, &s->main_parts, sizeof(uint8_t *));
    kvi_model_release(s->model);

    kvcsa_pool *pool = s->pool;

    kvi_free(&a, s, sizeof *s);
    kvi_pool_release(pool); /* last: it may own the allocator's user data */
}

kvcsa_status kvi_session_enter(kvcsa_session *s, kvcsa_error *err)
{
    if (atomic_flag_test_and_set_explicit(&s->busy, memory_order_acquire))
        return kvi_fail(err, KVCSA_ERR_BUSY, "another call is inside this session");
    return KVCSA_OK;
}

void kvi_session_leave(kvcsa_session *s)
{
    atomic_flag_clear_explicit(&s->busy, memory_order_release);
}

void kvi_session_set_reference(kvcsa_session *s, uint32_t op_flags, const kvi_tap *tap)
{
    s->op_flags = op_flags;
    s->tap = tap;
}

/* Everything about an append that can be wrong, before anything changes. */
static kvcsa_status check_append(const kvcsa_session *s, const int32_t *tokens, size_t n,
                                 const kvcsa_append_params *p, kvcsa_error *err)
{
    const kvi_config *c = &s->model->config;

    if (n == 0)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_tokens is 0, must be at least 1");
    if (n > c->max_tokens || s->n_total > c->max_tokens - n)
        return kvi_fail(err, KVCSA_ERR_LIMIT,
                        "n_tokens is %zu after %llu, the context limit is %llu", n,
                        (unsigned long long)s->n_total, (unsigned long long)c->max_tokens);
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= c->vocab_size)
            return kvi_fail(err, KVCSA_ERR_ARG, "tokens[%zu] is %d, must be in 0..%u", i, tokens[i],
                            c->vocab_size - 1);
        if (tokens[i] == c->image)
            return kvi_fail(err, KVCSA_ERR_ARG,
                            "tokens[%zu] is %d, the image token: this version reads text", i,
                            tokens[i]);
    }
    if (p->logits > KVCSA_LOGITS_NONE)
        return kvi_fail(err, KVCSA_ERR_ARG, "logits is %u, must be one of KVCSA_LOGITS_*",
                        p->logits);
    if ((p->logits == KVCSA_LOGITS_ALL || p->logits == KVCSA_LOGITS_ROWS) && !p->on_logits)
        return kvi_fail(err, KVCSA_ERR_ARG, "on_logits is NULL, logits %u need it", p->logits);
    if (p->logits != KVCSA_LOGITS_ROWS)
        return KVCSA_OK;
    if (p->n_rows && !p->rows)
        return kvi_fail(err, KVCSA_ERR_ARG, "rows is NULL, n_rows is %u", p->n_rows);
    for (uint32_t i = 0; i < p->n_rows; i++)
        if (p->rows[i] >= n || (i && p->rows[i] <= p->rows[i - 1]))
            return kvi_fail(err, KVCSA_ERR_ARG, "rows[%u] is %u, must be ascending and below %zu",
                            i, p->rows[i], n);
    return KVCSA_OK;
}

/* Finished appends at the front of the list make room for new ones. */
static void compact_appends(kvcsa_session *s)
{
    if (s->first_append == 0)
        return;
    memmove(s->appends.data, append_at(s, 0), s->n_appends * sizeof(kvi_append));
    s->first_append = 0;
}

kvcsa_status kvi_session_append(kvcsa_session *s, const int32_t *tokens, size_t n,
                                const kvcsa_append_params *p, uint64_t *out_pos, kvcsa_error *err)
{
    const kvcsa_allocator *a = &s->allocator;
    kvi_append             ap = {.on_logits = p->on_logits,
                                 .user = p->user,
                                 .logits = p->logits,
                                 .begin = s->n_total};
    kvcsa_status st = check_append(s, tokens, n, p, err);
    uint64_t     need;

    if (st != KVCSA_OK)
        return st;
    ap.end = s->n_total + n;
    ap.n_rows = p->logits == KVCSA_LOGITS_ROWS ? p->n_rows : 0;
    need = kvi_session_blocks_for(s, ap.end) - s->n_blocks - s->n_reserved;
    compact_appends(s);
    if (!kvi_buf_reserve(a, &s->tokens, sizeof(int32_t), s->n_total, ap.end) ||
        !kvi_buf_reserve(a, &s->appends, sizeof(kvi_append), s->n_appends, s->n_appends + 1) ||
        !(ap.rows = kvi_alloc(a, ap.n_rows * sizeof *ap.rows)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "queue of %zu tokens", n);
    if ((st = kvi_pool_reserve(s->pool, s->cls, need, err)) != KVCSA_OK) {
        kvi_free(a, ap.rows, ap.n_rows * sizeof *ap.rows);
        return st;
    }
    if (!kvi_session_queued(s)) /* a request that came too late was for an earlier queue */
        atomic_store_explicit(&s->cancel, 0, memory_order_relaxed);
    s->n_reserved += need;
    memcpy(token_list(s) + s->n_total, tokens, n * sizeof *tokens);
    if (ap.n_rows)
        memcpy(ap.rows, p->rows, ap.n_rows * sizeof *ap.rows);
    *append_at(s, s->n_appends++) = ap;
    s->n_total = ap.end;
    if (out_pos)
        *out_pos = s->n_total;
    return KVCSA_OK;
}

void kvi_session_get_stats(const kvcsa_session *s, kvcsa_session_stats *out)
{
    const kvi_kv_layout *layout = &s->model->layout;

    out->n_tokens = s->n_tokens;
    out->n_queued = kvi_session_queued(s);
    out->n_entries = 0;
    out->entry_bytes = 0;
    for (uint32_t i = 0; i < layout->n_owners; i++) {
        const kvi_kv_owner *o = &layout->owners[i];

        out->n_entries += s->n_tokens / o->ratio;
        out->entry_bytes += s->n_tokens / o->ratio * (o->main_row_bytes + o->index_row_bytes);
    }
    out->n_blocks = s->n_blocks;
    out->block_bytes = s->n_blocks * ((uint64_t)layout->index_part_bytes + layout->main_part_bytes);
    out->window_bytes = window_bytes(s->model);
    out->workspace_bytes = kvi_net_workspace_bytes(s->net);
    out->n_computed_rows = s->n_computed_rows;
}

/* Blocks behind n go back to the pool; their room is the session's reservation again. */
static void unacquire_blocks(kvcsa_session *s, uint64_t n)
{
    while (s->n_blocks > n) {
        kvi_block_unacquire(s->pool, kvi_session_blocks(s)[--s->n_blocks]);
        s->n_reserved++;
    }
}

/* Blocks for n_tokens; (S2) is restored by the caller if the chunk fails. */
static kvcsa_status acquire_blocks(kvcsa_session *s, uint64_t n_tokens, kvcsa_error *err)
{
    const kvcsa_allocator *a = &s->allocator;
    const size_t           n = (size_t)kvi_session_blocks_for(s, n_tokens);
    kvcsa_status           st;

    if (!kvi_buf_reserve(a, &s->blocks, sizeof(kvi_block *), s->n_blocks, n) ||
        !kvi_buf_reserve(a, &s->index_parts, sizeof(uint8_t *), s->n_blocks, n) ||
        !kvi_buf_reserve(a, &s->main_parts, sizeof(uint8_t *), s->n_blocks, n))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "block table of %zu blocks", n);
    while (s->n_blocks < n) {
        kvi_block *b = NULL;

        if ((st = kvi_block_acquire(s->pool, s->cls, &b, err)) != KVCSA_OK)
            return st;
        kvi_session_set_block(s, s->n_blocks++, b);
        s->n_reserved--;
    }
    return KVCSA_OK;
}

/* (S4) Remember where the append began, if this chunk does not finish it. */
static kvcsa_status set_mark(kvcsa_session *s, kvcsa_error *err)
{
    const size_t n_pending = pending_bytes(s->model);
    kvi_mark    *m = &s->mark;

    if (m->set)
        return KVCSA_OK;
    if ((!m->windows && !(m->windows = kvi_alloc(&s->allocator, window_bytes(s->model)))) ||
        (!m->pending && !(m->pending = kvi_alloc(&s->allocator, n_pending))) ||
        (!m->floors && !(m->floors = kvi_alloc(&s->allocator, floors_bytes(s->model)))))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "copy of the window rows, %zu bytes",
                        window_bytes(s->model));
    memcpy(m->windows, s->windows, window_bytes(s->model));
    memcpy(m->pending, s->pending, n_pending);
    memcpy(m->floors, s->floors, floors_bytes(s->model));
    m->has_logits = s->has_logits;
    m->n_tokens = s->n_tokens;
    m->set = 1;
    return KVCSA_OK;
}

void kvi_session_rollback(kvcsa_session *s)
{
    const kvi_mark *m = &s->mark;

    while (s->n_appends)
        drop_first_append(s);
    s->planned = 0;
    if (m->set) {
        memcpy(s->windows, m->windows, window_bytes(s->model));
        memcpy(s->pending, m->pending, pending_bytes(s->model));
        memcpy(s->floors, m->floors, floors_bytes(s->model));
        s->has_logits = m->has_logits;
        s->n_tokens = m->n_tokens;
    }
    free_mark(s);
    unacquire_blocks(s, kvi_session_blocks_for(s, s->n_tokens)); /* (S4): they are still OPEN */
    kvi_pool_unreserve(s->pool, s->cls, s->n_reserved);
    s->n_reserved = 0;
    s->n_total = s->n_tokens;
}

/* Rows of a chunk [n_tokens, n_tokens + n) whose logits the append wants, into rows; returns their
 * number. The first n_reported are for the callback; the last row of the append is computed in any
 * case. */
static uint32_t wanted_rows(const kvcsa_session *s, const kvi_append *ap, uint32_t n,
                            uint32_t *rows, uint32_t *n_reported)
{
    const uint64_t begin = s->n_tokens;
    const uint64_t first = s->first_rows[s->model->plan.n_layers]; /* none below reach the head */
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

static void seal_full_blocks(kvcsa_session *s)
{
    for (; s->n_sealed < s->n_tokens / s->model->plan.block_tokens; s->n_sealed++)
        kvi_block_seal(s->pool, kvi_session_blocks(s)[s->n_sealed]);
}

/* The part that cannot fail. */
static void commit_chunk(kvcsa_session *s, const kvi_net_run_params *run, uint32_t n_reported)
{
    const kvi_append ap = *append_at(s, 0);
    const uint64_t   begin = s->n_tokens;
    const uint32_t   vocab = s->model->config.vocab_size;
    const int        done = begin + run->n_rows == ap.end;
    const float     *logits = kvi_net_logits(s->net);

    kvi_net_commit(s->net, run);
    s->n_tokens += run->n_rows;
    s->has_logits = done && ap.logits != KVCSA_LOGITS_NONE;
    if (s->has_logits)
        memcpy(s->logits, logits + (size_t)(run->n_logit_rows - 1) * vocab, vocab * sizeof(float));
    for (uint32_t i = 0; i < n_reported; i++)
        ap.on_logits(ap.user, begin + run->logit_rows[i], logits + (size_t)i * vocab, vocab);
    if (done) {
        drop_first_append(s);
        s->planned = 0;
        s->mark.set = 0;
        seal_full_blocks(s);
        if (s->n_appends == 0)
            free_mark(s); /* a copy of the windows is not worth keeping between prompts */
    }
}

static int ask_stop(void *user)
{
    const kvi_stop_context *c = user;

    if (atomic_load_explicit(&c->s->cancel, memory_order_relaxed))
        return 1;
    return c->hooks->progress &&
           c->hooks->progress(c->hooks->user, c->s, c->n_before, kvi_session_queued(c->s)) != 0;
}

/* Logits of all wanted rows are kept until the commit: bound them. */
static uint64_t chunk_limit(const kvcsa_session *s, const kvi_append *ap)
{
    const uint64_t rows = ((uint64_t)64 << 20) / (s->model->config.vocab_size * sizeof(float));
    const uint64_t limit = s->chunk_tokens;

    if (ap->logits != KVCSA_LOGITS_ALL && ap->logits != KVCSA_LOGITS_ROWS)
        return limit;
    return rows == 0 ? 1 : kvi_min_size(limit, rows);
}

kvi_net_run_params kvi_session_run_params(const kvcsa_session *s, uint64_t pos, uint32_t n_rows,
                                          kvi_stop_context *stop)
{
    return (kvi_net_run_params){.exec = {.ops = kvi_pool_ops(s->pool),
                                         .dev = kvi_pool_device(s->pool),
                                         .flags = s->op_flags,
                                         .tap = s->tap},
                                .state = {.pos = pos,
                                          .tokens = s->tokens.data,
                                          .index_parts = s->index_parts.data,
                                          .main_parts = s->main_parts.data,
                                          .floors = s->floors,
                                          .windows = s->windows,
                                          .pending = s->pending},
                                .n_rows = n_rows,
                                .first_rows = s->first_rows,
                                .stop = ask_stop,
                                .stop_user = stop};
}

kvcsa_status kvi_session_run_chunk(kvcsa_session *s, const kvi_chunk_hooks *hooks,
                                   uint64_t max_rows, uint64_t *n_done, kvcsa_error *err)
{
    const kvi_append *ap = append_at(s, 0);
    const uint64_t    n_blocks = s->n_blocks;
    const uint32_t    n =
        (uint32_t)kvi_min_size(kvi_min_size(ap->end - s->n_tokens, max_rows), chunk_limit(s, ap));
    uint32_t          *rows;
    kvi_stop_context   stop = {.s = s, .hooks = hooks, .n_before = s->n_tokens - ap->begin};
    kvi_net_run_params run;
    uint32_t           n_reported = 0;
    kvcsa_status       st = KVCSA_OK;

    *n_done = 0;
    if (!s->planned)
        kvi_session_plan_forward(s, ap->end);
    if (s->replay_end)
        return kvi_session_replay_chunk(s, &stop, max_rows, n_done, err);
    rows = kvi_alloc(&s->allocator, n * sizeof *rows);
    if (!rows)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of %u rows", n);
    if (s->n_tokens + n < ap->end)
        st = set_mark(s, err);
    if (st == KVCSA_OK)
        st = acquire_blocks(s, s->n_tokens + n, err);
    if (st == KVCSA_OK) {
        run = kvi_session_run_params(s, s->n_tokens, n, &stop);
        run.logit_rows = rows;
        run.n_logit_rows = wanted_rows(s, ap, n, rows, &n_reported);
        st = kvi_net_run(s->net, &run, err);
        s->n_computed_rows += n;
    }
    if (st == KVCSA_OK) {
        commit_chunk(s, &run, n_reported);
        *n_done = n;
    } else {
        unacquire_blocks(s, n_blocks); /* (S3) */
        if (st == KVCSA_ERR_CANCELLED)
            kvi_session_rollback(s);
    }
    kvi_free(&s->allocator, rows, n * sizeof *rows);
    return st;
}
