/* Lifetime, settings, queue and figures of a session. */
#include "session/hosted.h"

#include <string.h>

#include "base/status.h"
#include "net/net_features.h"
#include "plan/plan_cost.h"

#define DEFAULT_CHUNK_TOKENS 128u
#define MAX_SLACK_TOKENS 4096u

/* ------------------------------------------------------------------ settings */

static kvcsa_status check_choice(uint32_t value, uint32_t largest, const char *field,
                                 kvcsa_error *err)
{
    if (value > largest)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "%s is %u, the largest known is %u", field,
                        value, largest);
    return KVCSA_OK;
}

/* Layer from which decoder replay may leave rows out; 0 = it is off. */
static kvcsa_status resolve_cut(const kvi_plan *plan, const kvcsa_session_params *p, uint32_t *cut,
                                kvcsa_error *err)
{
    const uint32_t least = kvi_replay_default_cut(plan);

    *cut = 0;
    if (p->decoder_cut_layer && p->decoder_cut_layer < least)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "decoder_cut_layer is %u, layers below %u own entries or lie under one",
                        p->decoder_cut_layer, least);
    if (p->decoder_cut_layer > plan->n_layers)
        return kvi_fail(err, KVCSA_ERR_ARG, "decoder_cut_layer is %u, the model has %u layers",
                        p->decoder_cut_layer, plan->n_layers);
    if (p->decoder_replay == KVCSA_DECODER_REPLAY_ON ||
        (p->decoder_replay == KVCSA_DECODER_REPLAY_DEFAULT && p->mode == KVCSA_MODE_FAST))
        *cut = p->decoder_cut_layer ? p->decoder_cut_layer : least;
    return KVCSA_OK;
}

/* A limit below the plan's; 0 = none. The widest layer counts. */
static kvcsa_status resolve_limits(const kvi_plan *plan, const kvcsa_session_params *p,
                                   kvi_settings *set, kvcsa_error *err)
{
    uint32_t entries = 0;
    uint32_t blocks = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        entries = (uint32_t)kvi_max_size(entries, plan->rows[l].select_entries);
        blocks = (uint32_t)kvi_max_size(blocks, plan->rows[l].candidate_blocks);
    }
    if (p->select_entries > entries)
        return kvi_fail(err, KVCSA_ERR_ARG, "select_entries is %u, the plan's is %u",
                        p->select_entries, entries);
    if (p->candidate_blocks > blocks)
        return kvi_fail(err, KVCSA_ERR_ARG, "candidate_blocks is %u, the plan's is %u",
                        p->candidate_blocks, blocks);
    set->select_entries = p->select_entries < entries ? p->select_entries : 0;
    set->candidate_blocks = p->candidate_blocks < blocks ? p->candidate_blocks : 0;
    return KVCSA_OK;
}

kvcsa_status kvi_session_resolve(const kvi_plan *plan, const kvcsa_session_params *p,
                                 kvi_settings *set, kvcsa_error *err)
{
    const uint32_t known =
        KVCSA_SESSION_PRIVATE | KVCSA_SESSION_WINDOW_ONLY | KVCSA_SESSION_TRACK_MASS |
        KVCSA_SESSION_CACHE_ONLY;
    kvcsa_status st;

    if (p->flags & ~known)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "session flags are 0x%x, known are 0x%x",
                        p->flags, known);
    if ((st = check_choice(p->mode, KVCSA_MODE_FAST, "mode", err)) != KVCSA_OK ||
        (st = check_choice(p->reuse, KVCSA_REUSE_BOUNDED, "reuse", err)) != KVCSA_OK ||
        (st = check_choice(p->decoder_replay, KVCSA_DECODER_REPLAY_ON, "decoder_replay", err)) !=
            KVCSA_OK)
        return st;
    if (p->window_slack_tokens > MAX_SLACK_TOKENS)
        return kvi_fail(err, KVCSA_ERR_ARG, "window_slack_tokens is %u, the limit is %u",
                        p->window_slack_tokens, MAX_SLACK_TOKENS);
    if (p->window_store_tokens % plan->block_tokens)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "window_store_tokens is %u, must be a multiple of block_tokens, %u",
                        p->window_store_tokens, plan->block_tokens);
    set->salt = p->salt;
    set->chunk_tokens = p->chunk_tokens ? p->chunk_tokens : DEFAULT_CHUNK_TOKENS;
    set->flags = p->flags;
    set->reuse = p->reuse                     ? p->reuse
                 : p->mode == KVCSA_MODE_FAST ? KVCSA_REUSE_BOUNDED
                                              : KVCSA_REUSE_EXACT;
    set->slack_tokens = p->window_slack_tokens;
    set->store_tokens = p->window_store_tokens;
    if ((st = resolve_limits(plan, p, set, err)) != KVCSA_OK)
        return st;
    return resolve_cut(plan, p, &set->decoder_cut, err);
}

kvi_domain kvi_session_domain(const kvcsa_model *model, uint64_t numerics, uint64_t salt)
{
    return (kvi_domain){.weights = model->fingerprint,
                        .plan = model->plan_hash,
                        .numerics = numerics,
                        .salt = salt,
                        .version = KVI_DOMAIN_VERSION};
}

/* ------------------------------------------------------------------ lifetime */

static kvcsa_status acquire_classes(kvcsa_session *s, kvcsa_error *err)
{
    const kvi_kv_layout  *layout = &s->model->layout;
    const kvi_class_shape block = {.kind = KVI_CLASS_CACHE,
                                   .index_bytes = layout->index_part_bytes,
                                   .main_bytes = layout->main_part_bytes,
                                   .block_tokens = layout->block_tokens};
    const kvi_class_shape page = {.kind = KVI_CLASS_WINDOW, .main_bytes = s->geom.page_bytes};
    const kvi_class_shape raw = {.kind = KVI_CLASS_WINDOW, .main_bytes = s->geom.pending_bytes};
    const kvi_domain domain = kvi_session_domain(s->model, kvi_pool_numerics(s->pool), s->set.salt);
    kvcsa_status     st;

    if ((st = kvi_pool_class_acquire(s->pool, &block, &s->cls, err)) != KVCSA_OK)
        return st;
    if (s->geom.n_pages &&
        (st = kvi_pool_class_acquire(s->pool, &page, &s->page_cls, err)) != KVCSA_OK)
        return st;
    if (s->geom.pending_bytes &&
        (st = kvi_pool_class_acquire(s->pool, &raw, &s->pending_cls, err)) != KVCSA_OK)
        return st;
    return kvi_prefix_root_acquire(s->pool, &domain, layout->block_tokens, &s->root, err);
}

/* What computes in the pool has kernels for the model. */
static kvcsa_status check_features(const kvcsa_pool *pool, const kvcsa_model *model,
                                   kvcsa_error *err)
{
    const kvi_backend_ops *ops = kvi_pool_ops(pool);
    kvi_features           f = {0};

    if (!ops->features)
        return KVCSA_OK;
    ops->features(&f);
    return kvi_net_check_features(&f, ops->name, model, err);
}

kvcsa_status kvi_session_create_with(kvcsa_pool *pool, kvcsa_model *model, const kvi_settings *set,
                                     int cache_only, kvcsa_session **out, kvcsa_error *err)
{
    const kvcsa_allocator *a = kvi_pool_allocator(pool);
    kvcsa_session         *s = kvi_zalloc(a, sizeof *s);
    kvcsa_status           st;

    *out = NULL;
    if (!s)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "session of %zu bytes", sizeof *s);
    s->allocator = *a;
    atomic_flag_clear(&s->busy);
    atomic_init(&s->cancel, 0);
    s->pool = kvi_pool_retain(pool);
    s->model = kvi_model_retain(model);
    s->cache_only = cache_only;
    s->set = *set;
    s->reuse = set->reuse;
    kvi_session_init_limits(s);
    kvi_pool_count_session(pool, 1);
    if ((!cache_only && (st = check_features(pool, model, err)) != KVCSA_OK) ||
        (set->flags & KVCSA_SESSION_CACHE_ONLY &&
         (st = kvi_hosted_check(pool, &model->plan, set, err)) != KVCSA_OK) ||
        (st = kvi_window_geom_init(&s->geom, &model->plan, set->slack_tokens, err)) != KVCSA_OK ||
        (st = kvi_state_init(s, &s->now, err)) != KVCSA_OK ||
        (st = acquire_classes(s, err)) != KVCSA_OK)
        goto fail;
    *out = s;
    return KVCSA_OK;
fail:
    kvi_session_destroy(s);
    return st;
}

kvcsa_status kvi_session_create(kvcsa_pool *pool, kvcsa_model *model,
                                const kvcsa_session_params *params, int cache_only,
                                kvcsa_session **out, kvcsa_error *err)
{
    kvi_settings set = {0};
    kvcsa_status st = kvi_session_resolve(&model->plan, params, &set, err);

    *out = NULL;
    if (st != KVCSA_OK)
        return st;
    if (set.flags & KVCSA_SESSION_CACHE_ONLY && !model->plan_only)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "KVCSA_SESSION_CACHE_ONLY: the model has weights, open it for its plan only");
    cache_only |= (set.flags & KVCSA_SESSION_CACHE_ONLY) != 0;
    if (model->plan_only && !cache_only)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "the model was opened for its plan only, it has no weights");
    return kvi_session_create_with(pool, model, &set, cache_only, out, err);
}

static void free_stored(kvcsa_session *s)
{
    if (s->stored_pos)
        kvi_blocks_release(s->pool, s->stored, s->geom.n_pages);
    s->stored_pos = 0;
}

void kvi_session_drop_adopt(kvcsa_session *s)
{
    kvi_prefix_match_release(s->pool, &s->adopt);
    s->adopt = (kvi_prefix_match){0};
    free_stored(s);
}

static void release_reservations(kvcsa_session *s)
{
    if (s->n_reserved)
        kvi_pool_unreserve(s->pool, s->cls, s->n_reserved);
    if (s->n_reserved_pages)
        kvi_pool_unreserve(s->pool, s->page_cls, s->n_reserved_pages);
    if (s->n_reserved_pending)
        kvi_pool_unreserve(s->pool, s->pending_cls, s->n_reserved_pending);
    s->n_reserved = 0;
    s->n_reserved_pages = 0;
    s->n_reserved_pending = 0;
}

static void free_buffers(kvcsa_session *s)
{
    const kvcsa_allocator *a = &s->allocator;

    kvi_buf_free(a, &s->queue, sizeof(int32_t));
    kvi_buf_free(a, &s->appends, sizeof(kvi_append));
    kvi_buf_free(a, &s->own, sizeof(kvi_block *));
    kvi_buf_free(a, &s->chunk, sizeof(int32_t));
    kvi_buf_free(a, &s->rows, sizeof(uint32_t));
    kvi_buf_free(a, &s->look, sizeof(int32_t));
    kvi_session_free_view(s);
    kvi_buf_free(a, &s->hidden, 1);
    kvi_buf_free(a, &s->mass, sizeof(double));
    kvi_free(a, s->work, 2 * s->model->plan.n_layers * sizeof *s->work);
    kvi_free(a, s->first_rows, (s->model->plan.n_layers + 1) * sizeof *s->first_rows);
    kvi_free(a, s->stored, s->geom.n_pages * sizeof *s->stored);
}

void kvi_session_destroy(kvcsa_session *s)
{
    kvcsa_allocator a;
    kvcsa_pool     *pool;

    if (!s)
        return;
    a = s->allocator;
    pool = s->pool;
    kvi_hosted_destroy(s);
    while (s->n_appends)
        kvi_session_drop_append(s);
    kvi_session_drop_adopt(s);
    kvi_logits_release(s, s->next_logits);
    kvi_state_fini(s, &s->mark);
    kvi_state_fini(s, &s->now);
    release_reservations(s);
    if (s->root)
        kvi_prefix_root_release(pool, s->root);
    kvi_pool_class_release(pool, s->pending_cls);
    kvi_pool_class_release(pool, s->page_cls);
    kvi_pool_class_release(pool, s->cls);
    kvi_pool_count_session(pool, -1);
    kvi_net_destroy(s->net);
    if (s->weights)
        kvi_pool_weights_release(pool, s->weights);
    free_buffers(s);
    kvi_model_release(s->model);
    kvi_free(&a, s, sizeof *s);
    kvi_pool_release(pool); /* last: it may own the allocator's user data */
}

kvcsa_status kvi_session_enter_chunk(kvcsa_session *s, kvcsa_error *err)
{
    if (atomic_flag_test_and_set_explicit(&s->busy, memory_order_acquire))
        return kvi_fail(err, KVCSA_ERR_BUSY, "another call is inside this session");
    return KVCSA_OK;
}

kvcsa_status kvi_session_enter(kvcsa_session *s, kvcsa_error *err)
{
    const kvcsa_status st = kvi_session_enter_chunk(s, err);

    if (st != KVCSA_OK || !s->hosted || !s->hosted->open)
        return st;
    kvi_session_leave(s);
    return kvi_fail(err, KVCSA_ERR_BUSY, "a chunk is open: kvcsa_chunk_commit or _abandon it first");
}

void kvi_session_leave(kvcsa_session *s)
{
    atomic_flag_clear_explicit(&s->busy, memory_order_release);
}

void kvi_session_set_reference(kvcsa_session *s, uint32_t op_flags, const kvi_tap *tap)
{
    s->op_flags = op_flags;
    s->tap = tap;
    if (op_flags || tap) { /* other numerics than the domain says, or every row is to be seen */
        s->set.flags |= KVCSA_SESSION_PRIVATE;
        s->set.reuse = KVCSA_REUSE_NONE;
    }
}

void kvi_session_set_filler(kvcsa_session *s, kvi_session_fill_fn fill, void *user)
{
    s->fill = fill;
    s->fill_user = user;
    s->cache_only = fill != NULL;
    s->set.flags |= KVCSA_SESSION_PRIVATE;
}

void kvi_session_set_decoder_cut(kvcsa_session *s, uint32_t cut)
{
    s->set.decoder_cut = cut;
}

/* ------------------------------------------------------------------ queue */

static kvi_append *append_at(const kvcsa_session *s, size_t i)
{
    return (kvi_append *)s->appends.data + s->first_append + i;
}

kvi_append *kvi_session_first_append(const kvcsa_session *s)
{
    return s->n_appends ? append_at(s, 0) : NULL;
}

void kvi_session_drop_append(kvcsa_session *s)
{
    kvi_append *ap = append_at(s, 0);

    kvi_free(&s->allocator, ap->rows, ap->n_rows * sizeof *ap->rows);
    s->first_append++;
    if (--s->n_appends == 0)
        s->first_append = 0;
    s->planned = 0;
}

/* Everything about an append that can be wrong, before anything changes. `held`: tokens in front of
 * it. */
static kvcsa_status check_append(const kvcsa_session *s, uint64_t held, const int32_t *tokens,
                                 size_t n, const kvcsa_append_params *p, kvcsa_error *err)
{
    const kvi_config *c = &s->model->config;

    if (n > c->max_tokens || held > c->max_tokens - n)
        return kvi_fail(err, KVCSA_ERR_LIMIT,
                        "n_tokens is %zu after %llu, the context limit is %llu", n,
                        (unsigned long long)held, (unsigned long long)c->max_tokens);
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
    return KVCSA_OK;
}

static kvcsa_status check_rows(const kvcsa_append_params *p, size_t n, kvcsa_error *err)
{
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

/* Finished appends and tokens at the front of the lists make room for new ones. */
static void compact_queue(kvcsa_session *s)
{
    if (s->first_append)
        memmove(s->appends.data, append_at(s, 0), s->n_appends * sizeof(kvi_append));
    s->first_append = 0;
    if (s->first_queued)
        memmove(s->queue.data, kvi_session_queue(s), s->n_queued * sizeof(int32_t));
    s->first_queued = 0;
}

/* The new append stands in the queue; its budget is not reserved yet. */
static kvcsa_status push_append(kvcsa_session *s, const int32_t *tokens, size_t n,
                                const kvcsa_append_params *p, kvcsa_error *err)
{
    const kvcsa_allocator *a = &s->allocator;
    kvi_append             ap = {.on_logits = p->on_logits,
                                 .user = p->user,
                                 .logits = p->logits,
                                 .begin = kvi_session_total(s),
                                 .n_rows = p->logits == KVCSA_LOGITS_ROWS ? p->n_rows : 0};

    ap.end = ap.begin + n;
    compact_queue(s);
    if (!kvi_session_grow_ids(s, &s->queue, s->n_queued, s->n_queued + n) ||
        !kvi_buf_reserve(a, &s->appends, sizeof(kvi_append), s->n_appends, s->n_appends + 1) ||
        !(ap.rows = kvi_alloc(a, ap.n_rows * sizeof *ap.rows)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "queue of %zu tokens", n);
    memcpy((int32_t *)s->queue.data + s->n_queued, tokens, n * sizeof *tokens);
    if (ap.n_rows)
        memcpy(ap.rows, p->rows, ap.n_rows * sizeof *ap.rows);
    *append_at(s, s->n_appends++) = ap;
    s->n_queued += n;
    return KVCSA_OK;
}

static void pop_append(kvcsa_session *s)
{
    const kvi_append ap = *append_at(s, s->n_appends - 1);

    kvi_free(&s->allocator, ap.rows, ap.n_rows * sizeof *ap.rows);
    s->n_appends--;
    s->n_queued -= (size_t)(ap.end - ap.begin);
}

/* What an append changes besides the queue, to be put back when it fails. */
typedef struct before_append {
    kvi_prefix_match adopt;
    uint64_t         stored_pos;
    uint32_t         reuse;
    kvcsa_reuse      report;
} before_append;

/* Queue and find what is known of it. On failure the session is as before. */
static kvcsa_status queue_append(kvcsa_session *s, const int32_t *tokens, size_t n,
                                 const kvcsa_append_params *p, kvcsa_error *err)
{
    before_append was;
    kvi_block   **was_stored = s->stored;
    kvcsa_status  st = push_append(s, tokens, n, p, err);

    if (st != KVCSA_OK)
        return st;
    was = (before_append){s->adopt, s->stored_pos, s->reuse, s->report};
    s->adopt = (kvi_prefix_match){0};
    s->stored = NULL;
    s->stored_pos = 0;
    s->reuse = p->reuse ? p->reuse : s->set.reuse;
    if ((st = kvi_session_look_up(s, err)) == KVCSA_OK &&
        (st = kvi_session_reserve(s, 0, err)) == KVCSA_OK) {
        kvi_prefix_match_release(s->pool, &was.adopt);
        if (was.stored_pos)
            kvi_blocks_release(s->pool, was_stored, s->geom.n_pages);
        kvi_free(&s->allocator, was_stored, s->geom.n_pages * sizeof *was_stored);
        return KVCSA_OK;
    }
    kvi_session_drop_adopt(s);
    kvi_free(&s->allocator, s->stored, s->geom.n_pages * sizeof *s->stored);
    s->stored = was_stored;
    s->adopt = was.adopt;
    s->stored_pos = was.stored_pos;
    s->reuse = was.reuse;
    s->report = was.report;
    pop_append(s);
    return st;
}

kvcsa_status kvi_session_append(kvcsa_session *s, const int32_t *tokens, size_t n,
                                const kvcsa_append_params *p, uint64_t *out_pos, kvcsa_error *err)
{
    const int    late = !kvi_session_queued(s);
    kvcsa_status st;

    if (n == 0)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_tokens is 0, must be at least 1");
    if ((st = check_append(s, kvi_session_total(s), tokens, n, p, err)) != KVCSA_OK ||
        (st = check_rows(p, n, err)) != KVCSA_OK ||
        (st = queue_append(s, tokens, n, p, err)) != KVCSA_OK)
        return st;
    if (late) { /* a request to cancel that came too late was for an earlier queue */
        atomic_store_explicit(&s->cancel, 0, memory_order_relaxed);
        kvi_session_drop_mark(s); /* likewise: that append has been adopted whole */
    }
    kvi_session_trace_reuse(s);
    if (out_pos)
        *out_pos = kvi_session_total(s);
    return KVCSA_OK;
}

/* The session holds next.n_tokens tokens of the list; the rest is queued. */
static kvcsa_status sync_rest(kvcsa_session *s, kvi_state *next, const int32_t *tokens, size_t n,
                              const kvcsa_append_params *p, kvcsa_error *err)
{
    const size_t kept = (size_t)next->n_tokens;
    const int    planned = s->planned;
    kvi_state    old = s->now;
    kvcsa_status st = KVCSA_OK;

    s->now = *next;
    s->n_view = kvi_min_size(s->n_view, kvi_state_n_full(next));
    s->planned = 0;
    s->give = &old;
    if (kept < n)
        st = queue_append(s, tokens + kept, n - kept, p, err);
    else
        kvi_session_report_kept(s);
    s->give = NULL;
    if (st != KVCSA_OK) {
        *next = s->now;
        s->now = old;
        s->n_view = 0;
        s->planned = planned;
        return st;
    }
    *next = old;
    kvi_session_drop_mark(s); /* of an append that was adopted whole: it is over */
    s->replay_told = 0;
    return KVCSA_OK;
}

/* The session holds the beginning of the list. */
static kvcsa_status extend(kvcsa_session *s, const int32_t *tokens, size_t n,
                           const kvcsa_append_params *p, kvcsa_error *err)
{
    const size_t kept = (size_t)s->now.n_tokens;

    if (kept < n)
        return kvi_session_append(s, tokens + kept, n - kept, p, NULL, err);
    kvi_state_drop_approx_logits(s, &s->now);
    kvi_session_report_kept(s);
    return KVCSA_OK;
}

kvcsa_status kvi_session_sync(kvcsa_session *s, const int32_t *tokens, size_t n,
                              const kvcsa_append_params *p, kvcsa_error *err)
{
    const uint32_t how = kvi_session_default_replay(s);
    kvi_state      next = {0};
    kvcsa_status   st;
    size_t         kept;

    if (kvi_session_queued(s))
        return kvi_fail(err, KVCSA_ERR_ARG, "%zu tokens are queued, sync needs an empty queue",
                        s->n_queued);
    if ((st = check_append(s, 0, tokens, n, p, err)) != KVCSA_OK)
        return st;
    kept = kvi_session_count_common(s, tokens, n);
    if ((st = check_rows(p, n - kept, err)) != KVCSA_OK)
        return st;
    if (kept == s->now.n_tokens) /* nothing goes */
        return extend(s, tokens, n, p, err);
    if ((st = kvi_state_init(s, &next, err)) != KVCSA_OK)
        return st;
    kvi_state_copy(s, &next, &s->now);
    kvi_state_cut(s, &next, kept, how);
    st = sync_rest(s, &next, tokens, n, p, err);
    kvi_state_fini(s, &next); /* what is not wanted any more: the old state, or the new one */
    if (st != KVCSA_OK)
        return st;
    atomic_store_explicit(&s->cancel, 0, memory_order_relaxed);
    if (!kvi_session_queued(s)) /* cannot fail: it only gives back */
        (void)kvi_session_reserve(s, 0, NULL);
    kvi_session_trace_reuse(s);
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ figures */

/* Blocks of the chain that somebody else holds too. */
static uint64_t count_shared(const kvcsa_session *s)
{
    enum { SOME = 64 };
    kvi_block *some[SOME];
    size_t     n = 0;
    uint64_t   shared = 0;

    for (kvi_block *b = s->now.last; b; b = kvi_block_parent(b)) {
        if (n == SOME) {
            shared += kvi_blocks_count_shared(s->pool, some, n);
            n = 0;
        }
        some[n++] = b;
    }
    shared += kvi_blocks_count_shared(s->pool, some, n);
    if (s->now.tail)
        shared += kvi_block_is_shared(s->pool, s->now.tail) ? 1 : 0;
    return shared;
}

void kvi_session_get_stats(const kvcsa_session *s, kvcsa_session_stats *out)
{
    const kvi_kv_layout *layout = &s->model->layout;
    const kvi_state     *st = &s->now;
    const uint64_t       each = (uint64_t)layout->index_part_bytes + layout->main_part_bytes;

    out->n_tokens = st->n_tokens;
    out->n_queued = kvi_session_queued(s);
    out->n_entries = 0;
    out->entry_bytes = 0;
    for (uint32_t i = 0; i < layout->n_owners; i++) {
        const kvi_kv_owner *o = &layout->owners[i];

        out->n_entries += st->n_tokens / o->ratio;
        out->entry_bytes += st->n_tokens / o->ratio * (o->main_row_bytes + o->index_row_bytes);
    }
    out->n_blocks = kvi_session_blocks_for(s, st->n_tokens);
    out->block_bytes = out->n_blocks * each;
    out->shared_bytes = count_shared(s) * each;
    out->window_bytes = 0;
    for (uint32_t i = 0; i < s->geom.n_pages; i++)
        out->window_bytes += st->pages[i] ? s->geom.page_bytes : 0;
    out->workspace_bytes = kvi_net_workspace_bytes(s->net) + kvi_hosted_bytes(s);
    out->n_computed_rows = s->n_computed_rows;
    out->n_replayed_rows = s->n_replayed_rows;
    out->n_adopted_tokens = s->n_adopted_tokens;
    out->n_replay = kvi_session_rows_to_replay(s);
    out->n_exact_tokens = kvi_min_size(st->taint_pos, st->n_tokens);
    kvi_session_group_work(s, out->step, out->total);
}
