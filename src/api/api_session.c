#include <string.h>

#include "api/api_int.h"
#include "session/sampler.h"
#include "session/session.h"

KVI_NO_TAIL_PADDING(kvcsa_session_params, flags);
KVI_NO_TAIL_PADDING(kvcsa_append_params, logits);
KVI_NO_TAIL_PADDING(kvcsa_session_stats, n_computed_rows);
KVI_NO_TAIL_PADDING(kvcsa_sampler_params, top_k);

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
    if ((st = KVI_IMPORT(p, params, "kvcsa_session_params", err)) != KVCSA_OK)
        return st;
    return kvi_session_create(pool, model, &p, out, err);
}

void kvcsa_session_release(kvcsa_session **session)
{
    if (!session)
        return;
    kvi_session_destroy(*session);
    *session = NULL;
}

kvcsa_status kvcsa_session_append(kvcsa_session *session, const int32_t *tokens, size_t n_tokens,
                                  const kvcsa_append_params *params, uint64_t *out_pos,
                                  kvcsa_error *err)
{
    kvcsa_append_params p = default_append_params;
    kvcsa_status        st;

    kvi_error_clear(err);
    if (out_pos)
        *out_pos = 0;
    KVI_REQUIRE(session, err);
    if (n_tokens)
        KVI_REQUIRE(tokens, err);
    if ((st = KVI_IMPORT(p, params, "kvcsa_append_params", err)) != KVCSA_OK ||
        (st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    st = kvi_session_append(session, tokens, n_tokens, &p, out_pos, err);
    kvi_session_leave(session);
    return st;
}

void kvcsa_session_cancel(kvcsa_session *session)
{
    if (session)
        atomic_store_explicit(&session->cancel, 1, memory_order_relaxed);
}

/* The caller is inside. */
static kvcsa_status last_logits(const kvcsa_session *s, kvcsa_error *err)
{
    if (!s->has_logits)
        return kvi_fail(err, KVCSA_ERR_ARG, "no logits: %s",
                        s->n_tokens ? "the last append is unfinished or asked for none"
                                    : "the session is empty");
    return KVCSA_OK;
}

kvcsa_status kvcsa_session_get_logits(kvcsa_session *session, float *logits, uint32_t n_vocab,
                                      kvcsa_error *err)
{
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    KVI_REQUIRE(logits, err);
    if (n_vocab != session->model->config.vocab_size)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_vocab is %u, the model has %u", n_vocab,
                        session->model->config.vocab_size);
    if ((st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    if ((st = last_logits(session, err)) == KVCSA_OK)
        memcpy(logits, session->logits, n_vocab * sizeof *logits);
    kvi_session_leave(session);
    return st;
}

uint64_t kvcsa_session_length(const kvcsa_session *session)
{
    return session ? session->n_tokens : 0;
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
    if (from > session->n_tokens) {
        st = kvi_fail(err, KVCSA_ERR_ARG, "from is %llu, the session holds %llu tokens",
                      (unsigned long long)from, (unsigned long long)session->n_tokens);
    } else {
        *n_tokens = session->n_tokens - from;
        if (cap && *n_tokens)
            memcpy(tokens, (const int32_t *)session->tokens.data + from,
                   (*n_tokens < cap ? *n_tokens : cap) * sizeof *tokens);
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
    return KVI_EXPORT(s, stats, "kvcsa_session_stats", err);
}

static kvcsa_status import_sampler(kvcsa_sampler_params *ours, const kvcsa_sampler_params *theirs,
                                   kvcsa_error *err)
{
    *ours = default_sampler_params;
    return KVI_IMPORT(*ours, theirs, "kvcsa_sampler_params", err);
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
    return kvi_sample(&a, logits, n_vocab, position, &p, token, err);
}

kvcsa_status kvcsa_session_sample(kvcsa_session *session, const kvcsa_sampler_params *params,
                                  int32_t *token, kvcsa_error *err)
{
    kvcsa_sampler_params p;
    kvcsa_status         st;

    kvi_error_clear(err);
    KVI_REQUIRE(token, err);
    *token = 0;
    KVI_REQUIRE(session, err);
    if ((st = import_sampler(&p, params, err)) != KVCSA_OK ||
        (st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    if ((st = last_logits(session, err)) == KVCSA_OK)
        st = kvi_sample(&session->allocator, session->logits, session->model->config.vocab_size,
                        session->n_tokens, &p, token, err);
    kvi_session_leave(session);
    return st;
}
