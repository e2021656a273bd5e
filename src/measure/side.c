#include "measure/side.h"

#include <math.h>

#include "api/api_call.h"
#include "base/checked.h"

#define DEFAULT_APPEND_TOKENS 128u
#define SETTING_FLAGS ((uint32_t)KVCSA_SETTING_CHAIN_HITS)

KVI_NO_TAIL_PADDING(kvcsa_setting, n_hidden);

static const kvcsa_setting default_setting = {.struct_size = sizeof(kvcsa_setting)};

void kvcsa_setting_default(kvcsa_setting *setting, size_t struct_size)
{
    kvi_params_default(setting, struct_size, &default_setting, sizeof default_setting);
}

/* ------------------------------------------------------------------ the setting */

static int ranks_spans(const kvi_side *side)
{
    return side->set.keep_fraction > 0 && side->set.keep_fraction < 1;
}

static int hits_are_first(const kvi_side *side)
{
    return side->set.hit_tokens && !(side->set.flags & KVCSA_SETTING_CHAIN_HITS);
}

static kvcsa_status check_setting(const kvcsa_setting *s, const char *name, kvcsa_error *err)
{
    if (!s->model || !s->pool)
        return kvi_fail(err, KVCSA_ERR_ARG, "%s: %s is NULL", name, s->model ? "pool" : "model");
    if (s->flags & ~SETTING_FLAGS)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "%s: flags is 0x%x, unknown bits in it", name,
                        s->flags);
    if (s->hit_tokens % s->append_tokens)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "%s: hit_tokens is %llu, must be a multiple of append_tokens, %llu", name,
                        (unsigned long long)s->hit_tokens, (unsigned long long)s->append_tokens);
    if (s->keep_first_tokens && !s->keep_last_tokens)
        return kvi_fail(err, KVCSA_ERR_ARG, "%s: keep_first_tokens is %llu, needs keep_last_tokens",
                        name, (unsigned long long)s->keep_first_tokens);
    if (!(s->keep_fraction >= 0 && s->keep_fraction <= 1))
        return kvi_fail(err, KVCSA_ERR_ARG, "%s: keep_fraction is %g, must be in 0..1", name,
                        (double)s->keep_fraction);
    if (s->n_hidden && !s->hidden)
        return kvi_fail(err, KVCSA_ERR_ARG, "%s: hidden is NULL, n_hidden is %zu", name,
                        s->n_hidden);
    return KVCSA_OK;
}

kvcsa_status kvi_side_init(kvi_side *side, const kvcsa_setting *theirs, const char *name,
                           kvi_side_progress *progress, kvcsa_error *err)
{
    kvcsa_model_info info = {.struct_size = sizeof info};
    kvcsa_status     st;

    *side = (kvi_side){.set = default_setting, .progress = progress};
    if ((st = KVI_IMPORT(side->set, theirs, "kvcsa_setting", err)) != KVCSA_OK)
        return st;
    if (!side->set.append_tokens)
        side->set.append_tokens = DEFAULT_APPEND_TOKENS;
    kvcsa_session_params_default(&side->params, sizeof side->params);
    if ((st = check_setting(&side->set, name, err)) != KVCSA_OK ||
        (st = KVI_IMPORT_GROWN(side->params, salt, side->set.session, "kvcsa_session_params",
                               err)) != KVCSA_OK ||
        (st = kvcsa_model_get_info(side->set.model, &info, err)) != KVCSA_OK)
        return st;
    side->params.flags |= KVCSA_SESSION_PRIVATE;
    if (ranks_spans(side))
        side->params.flags |= KVCSA_SESSION_TRACK_MASS;
    side->n_vocab = info.vocab_tokens;
    side->span_tokens = info.span_tokens;
    side->image_token = info.image_token;
    side->max_tokens = info.max_context_tokens;
    if (!side->span_tokens && (side->set.keep_last_tokens || ranks_spans(side)))
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "%s: the model has no index, its entries cannot be hidden", name);
    return KVCSA_OK;
}

void kvi_side_fini(kvi_side *side)
{
    const kvcsa_allocator *a = side->set.pool ? kvi_pool_allocator(side->set.pool) : NULL;

    kvcsa_session_release(&side->s);
    kvcsa_session_release(&side->exact);
    if (!a)
        return;
    kvi_buf_free(a, &side->found, sizeof(double));
    kvi_buf_free(a, &side->mass, sizeof(double));
    kvi_buf_free(a, &side->ranks, sizeof(uint64_t));
}

uint64_t kvi_side_rows(const kvi_side *side, uint64_t n_tokens)
{
    const uint64_t hit = side->set.hit_tokens;
    const uint64_t last_hit = n_tokens && hit ? (n_tokens - 1) / hit * hit : 0;

    return n_tokens + (hits_are_first(side) ? last_hit : 0);
}

/* ------------------------------------------------------------------ one append */

static int32_t tell_progress(void *user, kvcsa_session *s, uint64_t n_done, uint64_t n_queued)
{
    const kvi_side_progress *p = user;

    (void)s;
    (void)n_queued;
    return p->hook.progress(p->hook.user, p->n_done + n_done, p->n_rows);
}

/* Tokens a->from .. into one session. */
static kvcsa_status compute(const kvi_side *side, kvcsa_session *s, const int32_t *tokens,
                            const kvi_side_append *a, kvcsa_error *err)
{
    kvi_side_progress  *p = side->progress;
    kvcsa_append_params ap;
    kvcsa_step_params   sp;
    kvcsa_status        st;

    kvcsa_append_params_default(&ap, sizeof ap);
    ap.on_logits = a->on_logits;
    ap.user = a->user;
    ap.logits = a->logits;
    ap.reuse = KVCSA_REUSE_NONE;
    kvcsa_step_params_default(&sp, sizeof sp);
    sp.progress = p->hook.progress ? tell_progress : NULL;
    sp.user = p;
    if ((st = kvcsa_session_append(s, tokens + a->from, (size_t)a->n, &ap, NULL, err)) !=
            KVCSA_OK ||
        (st = kvcsa_pool_step(side->set.pool, &s, 1, &sp, NULL, err)) != KVCSA_OK)
        return st;
    p->n_done += a->n;
    if (p->hook.progress && p->hook.progress(p->hook.user, p->n_done, p->n_rows))
        return kvi_fail(err, KVCSA_ERR_CANCELLED, "cancelled after %llu of %llu rows",
                        (unsigned long long)p->n_done, (unsigned long long)p->n_rows);
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ hits */

static kvcsa_status lose_windows(kvcsa_session *s, kvcsa_error *err)
{
    kvcsa_status st = kvi_session_enter(s, err);

    if (st != KVCSA_OK)
        return st;
    kvi_session_lose_windows(s);
    kvi_session_leave(s);
    return KVCSA_OK;
}

static kvcsa_status make_session(const kvi_side *side, const kvcsa_session_params *params,
                                 kvcsa_session **out, kvcsa_error *err)
{
    return kvcsa_session_create(side->set.pool, side->set.model, params, out, err);
}

/* An undisturbed run beside this one. Slack and salt are those of the forks. */
static kvcsa_status make_exact(kvi_side *side, kvcsa_error *err)
{
    kvcsa_session_params p;

    kvcsa_session_params_default(&p, sizeof p);
    p.chunk_tokens = side->params.chunk_tokens;
    p.salt = side->params.salt;
    p.window_slack_tokens = side->params.window_slack_tokens;
    p.flags = KVCSA_SESSION_PRIVATE | (side->params.flags & KVCSA_SESSION_TRACK_MASS);
    return make_session(side, &p, &side->exact, err);
}

/* Attention per span of a session, into buf. */
static kvcsa_status read_mass(const kvi_side *side, kvcsa_session *s, kvi_buf *buf, size_t *n,
                              kvcsa_error *err)
{
    kvcsa_status st = kvcsa_session_get_mass(s, NULL, 0, n, 0, err);

    if (st != KVCSA_OK)
        return st;
    if (!kvi_buf_reserve(kvi_pool_allocator(side->set.pool), buf, sizeof(double), 0, *n))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "attention of %zu spans", *n);
    return kvcsa_session_get_mass(s, buf->data, *n, n, 0, err);
}

/* (D2) The exact run goes on to `position`, and this side from there on with what it has made. */
static kvcsa_status take_over(kvi_side *side, const int32_t *tokens, uint64_t position,
                              kvcsa_error *err)
{
    kvi_side_append a = {.logits = KVCSA_LOGITS_NONE};
    kvcsa_status    st;

    if (!side->exact && (st = make_exact(side, err)) != KVCSA_OK)
        return st;
    a.from = kvcsa_session_length(side->exact);
    a.n = position - a.from;
    if ((st = compute(side, side->exact, tokens, &a, err)) != KVCSA_OK)
        return st;
    kvcsa_session_release(&side->s);
    if ((st = kvcsa_session_fork(side->exact, position, &side->params, &side->s, err)) != KVCSA_OK)
        return st;
    return ranks_spans(side) ? read_mass(side, side->exact, &side->found, &side->n_found, err)
                             : KVCSA_OK;
}

/* ------------------------------------------------------------------ hidden entries */

static kvcsa_status hide_listed(const kvi_side *side, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    for (size_t i = 0; i < side->set.n_hidden && st == KVCSA_OK; i++)
        st = kvcsa_session_hide(side->s, side->set.hidden[2 * i], side->set.hidden[2 * i + 1], 1,
                                err);
    return st;
}

/* All but the first and the last tokens of n. */
static kvcsa_status hide_middle(const kvi_side *side, uint64_t n, kvcsa_error *err)
{
    const uint64_t span = side->span_tokens;
    const uint64_t last = side->set.keep_last_tokens;
    const uint64_t end = last < n ? (n - last) / span * span : 0;
    uint64_t       begin;

    if (!last || side->set.keep_first_tokens >= end)
        return KVCSA_OK;
    begin = kvi_div_up(side->set.keep_first_tokens, span) * span;
    return begin < end ? kvcsa_session_hide(side->s, begin, end, 1, err) : KVCSA_OK;
}

/* Is span i to go before span k? Less attention; the later one of equals. */
static int goes_first(const double *mass, uint64_t i, uint64_t k)
{
    return mass[i] < mass[k] || (mass[i] == mass[k] && i > k);
}

/* The heap's top is the span that is to stay before all others; sifts number `at` down. */
static void sift(const double *mass, uint64_t *heap, size_t n, size_t at)
{
    size_t child;

    while ((child = 2 * at + 1) < n) {
        const uint64_t x = heap[at];

        if (child + 1 < n && goes_first(mass, heap[child], heap[child + 1]))
            child++;
        if (!goes_first(mass, x, heap[child]))
            return;
        heap[at] = heap[child];
        heap[child] = x;
        at = child;
    }
}

/* Spans in the order in which they go. */
static void rank_spans(const double *mass, uint64_t *ranks, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ranks[i] = i;
    for (size_t i = n / 2; i-- > 0;)
        sift(mass, ranks, n, i);
    for (size_t left = n; left-- > 1;) {
        const uint64_t top = ranks[0];

        ranks[0] = ranks[left];
        ranks[left] = top;
        sift(mass, ranks, left, 0);
    }
}

/* Spans that stay of n: the part of them, rounded up. A float is within 1e-7 of what was meant. */
static size_t spans_to_keep(const kvi_side *side, size_t n)
{
    const double part = (double)side->set.keep_fraction * (double)n;

    return (size_t)ceil(part - part * 1e-6);
}

/* All but the part of the spans that received most attention so far. The last one stays until it is
 * full: it would hide tokens to come. */
static kvcsa_status hide_losers(kvi_side *side, uint64_t n_tokens, kvcsa_error *err)
{
    const uint64_t span = side->span_tokens;
    size_t         n = 0;
    kvcsa_status   st = read_mass(side, side->s, &side->mass, &n, err);
    double        *mass = side->mass.data;
    const double  *found = side->found.data;
    uint64_t      *ranks;

    if (st != KVCSA_OK)
        return st;
    n = kvi_min_size(n, n_tokens / span);
    if (!kvi_buf_reserve(kvi_pool_allocator(side->set.pool), &side->ranks, sizeof *ranks, 0, n))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "ranks of %zu spans", n);
    ranks = side->ranks.data;
    for (size_t i = 0; i < n && i < side->n_found; i++)
        mass[i] += found[i];
    rank_spans(mass, ranks, n);
    for (size_t i = 0; i < n - spans_to_keep(side, n) && st == KVCSA_OK; i++)
        st = kvcsa_session_hide(side->s, ranks[i] * span, (ranks[i] + 1) * span, 1, err);
    return st;
}

/* What the session is not to see from here on. */
static kvcsa_status hide(kvi_side *side, uint64_t n, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    if (ranks_spans(side) && n) /* ranks have changed */
        st = kvcsa_session_hide(side->s, 0, UINT64_MAX, 0, err);
    if (st == KVCSA_OK)
        st = hide_listed(side, err);
    if (st == KVCSA_OK)
        st = hide_middle(side, n, err);
    if (st == KVCSA_OK && ranks_spans(side))
        st = hide_losers(side, n, err);
    return st;
}

/* ------------------------------------------------------------------ a text, append by append */

kvcsa_status kvi_side_append_tokens(kvi_side *side, const int32_t *tokens, const kvi_side_append *a,
                                    kvcsa_error *err)
{
    const uint64_t hit = side->set.hit_tokens;
    kvcsa_status   st = KVCSA_OK;

    if (hit && a->from && a->from % hit == 0) {
        if (hits_are_first(side))
            st = take_over(side, tokens, a->from, err);
        if (st == KVCSA_OK)
            st = lose_windows(side->s, err);
    } else if (!side->s) {
        st = make_session(side, &side->params, &side->s, err);
    }
    if (st == KVCSA_OK && a->from % side->set.append_tokens == 0) /* (D3) */
        st = hide(side, a->from, err);
    return st == KVCSA_OK ? compute(side, side->s, tokens, a, err) : st;
}

kvcsa_status kvi_side_next_token(kvi_side *side, float *logits, int32_t *token, kvcsa_error *err)
{
    kvcsa_status st = kvcsa_session_get_logits(side->s, logits, side->n_vocab, err);
    float        best = -INFINITY;

    *token = 0;
    for (uint32_t i = 0; i < side->n_vocab && st == KVCSA_OK; i++) {
        if (isnan(logits[i]))
            return kvi_fail(err, KVCSA_ERR_ARG, "logits[%u] is NaN", i);
        if (logits[i] > best && (int32_t)i != side->image_token) {
            best = logits[i];
            *token = (int32_t)i;
        }
    }
    return st;
}
