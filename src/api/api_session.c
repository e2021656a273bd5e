#include <string.h>

#include "api/api_call.h"
#include "base/fpenv.h"
#include "session/sampler.h"
#include "session/session.h"

KVI_NO_TAIL_PADDING(kvcsa_session_params, candidate_blocks);
KVI_NO_TAIL_PADDING(kvcsa_append_params, reserved);
KVI_NO_TAIL_PADDING(kvcsa_session_stats, total);
_Static_assert(sizeof(kvcsa_work) == 128, "kvcsa_work is frozen");
KVI_NO_TAIL_PADDING(kvcsa_reuse, reason);
KVI_NO_TAIL_PADDING(kvcsa_sampler_params, top_k);
KVI_FIRST_SIZE(kvcsa_session_params, salt, 16);
KVI_FIRST_SIZE(kvcsa_append_params, reuse, 40);
KVI_FIRST_SIZE(kvcsa_session_stats, shared_bytes, 80);

static const kvcsa_session_params default_session_params = {.struct_size =
                                                                sizeof(kvcsa_session_params)};
static const kvcsa_append_params  default_append_params = {.struct_size =
                                                               sizeof(kvcsa_append_params)};
static const kvcsa_sampler_params default_sampler_params = {.struct_size =
                                                                sizeof(kvcsa_sampler_params)};

void kvcsa_session_params_default(kvcsa_session_params *params, size_t struct_size)
{
    kvi_params_default(params, struct_size, &default_session_params, sizeof default_session_params);
}

void kvcsa_append_params_default(kvcsa_append_params *params, size_t struct_size)
{
    kvi_params_default(params, struct_size, &default_append_params, sizeof default_append_params);
}

void kvcsa_sampler_params_default(kvcsa_sampler_params *params, size_t struct_size)
{
    kvi_params_default(params, struct_size, &default_sampler_params, sizeof default_sampler_params);
}

kvcsa_status kvcsa_session_create(kvcsa_pool *pool, kvcsa_model *model,
                                  const kvcsa_session_params *params, kvcsa_session **out,
                                  kvcsa_error *err)
{
    kvcsa_session_params p = default_session_params;
    kvcsa_status         st;

    kvi_error_clear(err);
    KVI_REQUIRE(out, err);
    *out = NULL;
    KVI_REQUIRE(pool, err);
    KVI_REQUIRE(model, err);
    if ((st = KVI_IMPORT_GROWN(p, salt, params, "kvcsa_session_params", err)) != KVCSA_OK)
        return st;
    return kvi_session_create(pool, model, &p, 0, out, err);
}

void kvcsa_session_release(kvcsa_session **session)
{
    if (!session)
        return;
    kvi_session_destroy(*session);
    *session = NULL;
}

/* What the session room does not look at; ours becomes theirs, or the defaults. */
static kvcsa_status import_append(kvcsa_append_params *ours, const kvcsa_append_params *theirs,
                                  kvcsa_error *err)
{
    kvcsa_status st;

    *ours = default_append_params;
    if ((st = KVI_IMPORT_GROWN(*ours, reuse, theirs, "kvcsa_append_params", err)) != KVCSA_OK)
        return st;
    if (ours->reuse > KVCSA_REUSE_BOUNDED)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "reuse is %u, must be one of KVCSA_REUSE_*",
                        ours->reuse);
    if (ours->reserved)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "reserved is %u, must be 0", ours->reserved);
    return KVCSA_OK;
}

kvcsa_status kvcsa_session_append(kvcsa_session *session, const int32_t *tokens, size_t n_tokens,
                                  const kvcsa_append_params *params, uint64_t *out_pos,
                                  kvcsa_error *err)
{
    kvcsa_append_params p;
    kvcsa_status        st;

    kvi_error_clear(err);
    if (out_pos)
        *out_pos = 0;
    KVI_REQUIRE(session, err);
    if (n_tokens)
        KVI_REQUIRE(tokens, err);
    if ((st = import_append(&p, params, err)) != KVCSA_OK ||
        (st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    st = kvi_session_append(session, tokens, n_tokens, &p, out_pos, err);
    kvi_session_leave(session);
    return st;
}

kvcsa_status kvcsa_session_sync(kvcsa_session *session, const int32_t *tokens, size_t n_tokens,
                                const kvcsa_append_params *params, kvcsa_reuse *reuse,
                                kvcsa_error *err)
{
    kvcsa_append_params p;
    kvcsa_reuse         r = {.struct_size = sizeof r};
    kvcsa_status        st;

    kvi_error_clear(err);
    /* before anything changes: a struct that cannot be filled fails the call */
    if (reuse && (st = KVI_EXPORT(r, reuse, "kvcsa_reuse", err)) != KVCSA_OK)
        return st;
    KVI_REQUIRE(session, err);
    if (n_tokens)
        KVI_REQUIRE(tokens, err);
    if ((st = import_append(&p, params, err)) != KVCSA_OK ||
        (st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    if ((st = kvi_session_sync(session, tokens, n_tokens, &p, err)) == KVCSA_OK)
        r = session->report;
    kvi_session_leave(session);
    if (st == KVCSA_OK && reuse)
        st = KVI_EXPORT(r, reuse, "kvcsa_reuse", err);
    return st;
}

kvcsa_status kvcsa_session_fork(kvcsa_session *session, uint64_t position,
                                const kvcsa_session_params *params, kvcsa_session **out,
                                kvcsa_error *err)
{
    kvcsa_session_params p = default_session_params;
    kvcsa_status         st;

    kvi_error_clear(err);
    KVI_REQUIRE(out, err);
    *out = NULL;
    KVI_REQUIRE(session, err);
    if ((st = KVI_IMPORT_GROWN(p, salt, params, "kvcsa_session_params", err)) != KVCSA_OK ||
        (st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    st = kvi_session_fork(session, position, params ? &p : NULL, out, err);
    kvi_session_leave(session);
    return st;
}

kvcsa_status kvcsa_session_rewind(kvcsa_session *session, uint64_t position, kvcsa_error *err)
{
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    if ((st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    st = kvi_session_rewind_default(session, position, err);
    kvi_session_leave(session);
    return st;
}

kvcsa_status kvcsa_session_erase(kvcsa_session *session, uint32_t flags, kvcsa_error *err)
{
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    if (flags & ~(uint32_t)KVCSA_ERASE_SECURE)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "flags is 0x%x, unknown bits in it", flags);
    if ((st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    kvi_session_erase(session, flags);
    kvi_session_leave(session);
    return KVCSA_OK;
}

void kvcsa_session_cancel(kvcsa_session *session)
{
    if (session)
        atomic_store_explicit(&session->cancel, 1, memory_order_relaxed);
}

/* The caller is inside. */
static kvcsa_status last_logits(const kvcsa_session *s, const float **row, kvcsa_error *err)
{
    const char *why = "the last append is unfinished or asked for none";

    if (s->now.logits) {
        *row = s->now.logits->row;
        return KVCSA_OK;
    }
    if (!s->now.n_tokens)
        why = "the session is empty";
    else if (s->now.replay_end || s->now.logits_due)
        why = "the next step rebuilds them";
    return kvi_fail(err, KVCSA_ERR_ARG, "no logits: %s", why);
}

kvcsa_status kvcsa_session_get_logits(kvcsa_session *session, float *logits, uint32_t n_vocab,
                                      kvcsa_error *err)
{
    const float *row = NULL;
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    KVI_REQUIRE(logits, err);
    if (n_vocab != session->model->config.vocab_size)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_vocab is %u, the model has %u", n_vocab,
                        session->model->config.vocab_size);
    if ((st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    if ((st = last_logits(session, &row, err)) == KVCSA_OK)
        memcpy(logits, row, n_vocab * sizeof *logits);
    kvi_session_leave(session);
    return st;
}

uint64_t kvcsa_session_length(const kvcsa_session *session)
{
    return session ? session->now.n_tokens : 0;
}

kvcsa_status kvcsa_session_get_tokens(kvcsa_session *session, uint64_t from, int32_t *tokens,
                                      size_t cap, size_t *n_tokens, kvcsa_error *err)
{
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(n_tokens, err);
    *n_tokens = 0;
    KVI_REQUIRE(session, err);
    if (cap)
        KVI_REQUIRE(tokens, err);
    if ((st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    if (from > session->now.n_tokens) {
        st = kvi_fail(err, KVCSA_ERR_ARG, "from is %llu, the session holds %llu tokens",
                      (unsigned long long)from, (unsigned long long)session->now.n_tokens);
    } else {
        *n_tokens = session->now.n_tokens - from;
        kvi_session_copy_tokens(session, from, *n_tokens < cap ? *n_tokens : cap, tokens);
    }
    kvi_session_leave(session);
    return st;
}

kvcsa_status kvcsa_session_get_stats(kvcsa_session *session, kvcsa_session_stats *stats,
                                     kvcsa_error *err)
{
    kvcsa_session_stats s = {.struct_size = sizeof s};
    kvcsa_status        st;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    KVI_REQUIRE(stats, err);
    if ((st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    kvi_session_get_stats(session, &s);
    kvi_session_leave(session);
    return KVI_EXPORT_GROWN(s, shared_bytes, stats, "kvcsa_session_stats", err);
}

kvcsa_status kvcsa_session_layer_work(kvcsa_session *session, uint32_t layer, kvcsa_work *step,
                                      kvcsa_work *total, kvcsa_error *err)
{
    kvcsa_status st;

    kvi_error_clear(err);
    if (step)
        memset(step, 0, sizeof *step);
    if (total)
        memset(total, 0, sizeof *total);
    KVI_REQUIRE(session, err);
    if (layer >= session->model->plan.n_layers)
        return kvi_fail(err, KVCSA_ERR_ARG, "layer is %u, the model has %u", layer,
                        session->model->plan.n_layers);
    if ((st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    kvi_session_layer_work(session, layer, step, total);
    kvi_session_leave(session);
    return KVCSA_OK;
}

kvcsa_status kvcsa_session_hide(kvcsa_session *session, uint64_t begin, uint64_t end,
                                int32_t hidden, kvcsa_error *err)
{
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    if (hidden != 0 && hidden != 1)
        return kvi_fail(err, KVCSA_ERR_ARG, "hidden is %d, must be 0 or 1", hidden);
    if ((st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    st = kvi_session_hide(session, begin, end, hidden, err);
    kvi_session_leave(session);
    return st;
}

kvcsa_status kvcsa_session_get_mass(kvcsa_session *session, double *mass, size_t cap,
                                    size_t *n_spans, int32_t reset, kvcsa_error *err)
{
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(n_spans, err);
    *n_spans = 0;
    KVI_REQUIRE(session, err);
    if (cap)
        KVI_REQUIRE(mass, err);
    if ((st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    if (session->set.flags & KVCSA_SESSION_TRACK_MASS)
        *n_spans = kvi_session_get_mass(session, mass, cap, reset);
    else
        st = kvi_fail(err, KVCSA_ERR_ARG, "flags of this session lack KVCSA_SESSION_TRACK_MASS");
    kvi_session_leave(session);
    return st;
}

kvcsa_status kvcsa_session_get_reuse(kvcsa_session *session, kvcsa_reuse *reuse, kvcsa_error *err)
{
    kvcsa_reuse  r;
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    KVI_REQUIRE(reuse, err);
    if ((st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    r = session->report;
    kvi_session_leave(session);
    return KVI_EXPORT(r, reuse, "kvcsa_reuse", err);
}

kvcsa_status kvcsa_session_common_prefix(kvcsa_session *session, const int32_t *tokens,
                                         size_t n_tokens, size_t *n_common, kvcsa_error *err)
{
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(n_common, err);
    *n_common = 0;
    KVI_REQUIRE(session, err);
    if (n_tokens)
        KVI_REQUIRE(tokens, err);
    if ((st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    *n_common = kvi_session_count_common(session, tokens, n_tokens);
    kvi_session_leave(session);
    return KVCSA_OK;
}

static kvcsa_status import_sampler(kvcsa_sampler_params *ours, const kvcsa_sampler_params *theirs,
                                   kvcsa_error *err)
{
    *ours = default_sampler_params;
    return KVI_IMPORT(*ours, theirs, "kvcsa_sampler_params", err);
}

/* kvi_sample in the mode that it needs. */
static kvcsa_status sample(const kvcsa_allocator *a, const float *logits, uint32_t n_vocab,
                           uint64_t position, const kvcsa_sampler_params *p, int32_t *token,
                           kvcsa_error *err)
{
    const uint64_t     mode = kvi_fp_enter();
    const kvcsa_status st = kvi_sample(a, logits, n_vocab, position, p, token, err);

    kvi_fp_leave(mode);
    return st;
}

kvcsa_status kvcsa_sample_logits(const float *logits, uint32_t n_vocab, uint64_t position,
                                 const kvcsa_sampler_params *params, int32_t *token,
                                 kvcsa_error *err)
{
    kvcsa_allocator      a;
    kvcsa_sampler_params p;
    kvcsa_status         st;

    kvi_error_clear(err);
    KVI_REQUIRE(token, err);
    *token = 0;
    KVI_REQUIRE(logits, err);
    if ((st = import_sampler(&p, params, err)) != KVCSA_OK ||
        (st = kvi_allocator_import(NULL, &a, err)) != KVCSA_OK)
        return st;
    return sample(&a, logits, n_vocab, position, &p, token, err);
}

kvcsa_status kvcsa_session_sample(kvcsa_session *session, const kvcsa_sampler_params *params,
                                  int32_t *token, kvcsa_error *err)
{
    kvcsa_sampler_params p;
    const float         *row = NULL;
    kvcsa_status         st;

    kvi_error_clear(err);
    KVI_REQUIRE(token, err);
    *token = 0;
    KVI_REQUIRE(session, err);
    if ((st = import_sampler(&p, params, err)) != KVCSA_OK ||
        (st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    if ((st = last_logits(session, &row, err)) == KVCSA_OK)
        st = sample(&session->allocator, row, session->model->config.vocab_size,
                    session->now.n_tokens, &p, token, err);
    kvi_session_leave(session);
    return st;
}
