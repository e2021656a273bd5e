/* The prefix tree of a pool, asked by tokens. Ids are compared only, so any number is allowed. */
#include "api/api_call.h"
#include "session/session.h"

/* Whose prefixes, and which. */
typedef struct query {
    kvcsa_pool        *pool;
    const kvcsa_model *model;
    uint64_t           salt;
    const int32_t     *tokens;
    size_t             n_tokens;
} query;

/* What is known of them. The references are released by drop_known. */
typedef struct known {
    kvi_prefix_root *root; /* NULL = nothing of this model and salt */
    kvi_prefix_match match;
    size_t           n_whole_tokens; /* matched in whole blocks */
} known;

/* bring: back from the host tier, for who keeps the blocks. */
static void find_known(const query *q, int bring, known *k)
{
    const kvi_domain domain = kvi_session_domain(q->model, kvi_pool_numerics(q->pool), q->salt);

    *k = (known){0};
    if (!(k->root = kvi_prefix_root_find(q->pool, &domain)) || q->n_tokens == 0)
        return;
    if (bring)
        kvi_prefix_find(q->pool, k->root, NULL, q->tokens, q->n_tokens, &k->match);
    else
        kvi_prefix_look(q->pool, k->root, q->tokens, q->n_tokens, &k->match);
    if (k->match.last)
        k->n_whole_tokens =
            (size_t)(kvi_block_depth(k->match.last) + 1) * q->model->plan.block_tokens;
}

static void drop_known(const query *q, known *k)
{
    kvi_prefix_match_release(q->pool, &k->match);
    if (k->root)
        kvi_prefix_root_release(q->pool, k->root);
}

static kvcsa_status check_query(const query *q, kvcsa_error *err)
{
    kvcsa_pool *const        pool = q->pool; /* by the names that the caller knows */
    const kvcsa_model *const model = q->model;
    const int32_t *const     tokens = q->tokens;

    KVI_REQUIRE(pool, err);
    KVI_REQUIRE(model, err);
    if (q->n_tokens)
        KVI_REQUIRE(tokens, err);
    return KVCSA_OK;
}

kvcsa_status kvcsa_prefix_match(kvcsa_pool *pool, const kvcsa_model *model, uint64_t salt,
                                const int32_t *tokens, size_t n_tokens, size_t *n_matched,
                                kvcsa_error *err)
{
    const query  q = {pool, model, salt, tokens, n_tokens};
    known        k;
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(n_matched, err);
    *n_matched = 0;
    if ((st = check_query(&q, err)) != KVCSA_OK)
        return st;
    find_known(&q, 0, &k);
    *n_matched = (size_t)k.match.n_tokens;
    drop_known(&q, &k);
    return KVCSA_OK;
}

kvcsa_status kvcsa_prefix_publish(kvcsa_session *session, uint64_t *n_published, kvcsa_error *err)
{
    uint64_t     n;
    kvcsa_status st;

    kvi_error_clear(err);
    if (n_published)
        *n_published = 0;
    KVI_REQUIRE(session, err);
    if ((st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    n = kvi_session_publish(session);
    kvi_session_leave(session);
    if (n_published)
        *n_published = n;
    return KVCSA_OK;
}

kvcsa_status kvcsa_prefix_pin(kvcsa_pool *pool, const kvcsa_model *model, uint64_t salt,
                              const int32_t *tokens, size_t n_tokens, size_t *n_pinned,
                              kvcsa_error *err)
{
    const query  q = {pool, model, salt, tokens, n_tokens};
    known        k;
    kvcsa_status st;

    kvi_error_clear(err);
    if (n_pinned)
        *n_pinned = 0;
    if ((st = check_query(&q, err)) != KVCSA_OK)
        return st;
    find_known(&q, 1, &k);
    if (k.match.last) /* it keeps the blocks in front of it */
        kvi_prefix_pin(pool, k.match.last);
    if (n_pinned)
        *n_pinned = k.n_whole_tokens;
    drop_known(&q, &k);
    return KVCSA_OK;
}

kvcsa_status kvcsa_prefix_unpin(kvcsa_pool *pool, const kvcsa_model *model, uint64_t salt,
                                const int32_t *tokens, size_t n_tokens, kvcsa_error *err)
{
    const query  q = {pool, model, salt, tokens, n_tokens};
    known        k;
    kvcsa_status st;

    kvi_error_clear(err);
    if ((st = check_query(&q, err)) != KVCSA_OK)
        return st;
    find_known(&q, 0, &k);
    if (!k.match.last || k.n_whole_tokens != n_tokens)
        st = kvi_fail(err, KVCSA_ERR_ARG,
                      "n_tokens is %zu, nothing is pinned there: whole known blocks end at %zu",
                      n_tokens, k.n_whole_tokens);
    else if (!kvi_prefix_unpin(pool, k.match.last))
        st = kvi_fail(err, KVCSA_ERR_ARG, "n_tokens is %zu, the prefix is not pinned there",
                      n_tokens);
    drop_known(&q, &k);
    return st;
}

static uint64_t used_bytes(kvcsa_pool *pool)
{
    kvcsa_pool_stats st = {.struct_size = sizeof st};

    return kvi_pool_get_stats(pool, &st, NULL) == KVCSA_OK ? st.used_bytes : 0;
}

/* Everything below and including `block`, and the match's references with it. */
static uint64_t forget_block(const query *q, known *k, kvi_block *block)
{
    const uint64_t freed = kvi_prefix_forget(q->pool, k->root, block);
    uint64_t       before;
    uint64_t       after;

    /* the match has held its blocks, and with them the chain, so they go now; what other threads
     * take or give back at this moment is counted with it */
    before = used_bytes(q->pool);
    kvi_prefix_match_release(q->pool, &k->match);
    after = used_bytes(q->pool);
    return freed + (before > after ? before - after : 0);
}

/* One branch after the other that begins with the tokens; then what leads to them. */
static uint64_t forget_known(const query *q, known *k)
{
    uint64_t freed = 0;

    if (!k->root)
        return 0;
    if (q->n_tokens == 0)
        return kvi_prefix_forget(q->pool, k->root, NULL);
    while (k->match.n_tokens == q->n_tokens) {
        freed += forget_block(q, k, k->match.partial ? k->match.partial : k->match.last);
        kvi_prefix_look(q->pool, k->root, q->tokens, q->n_tokens, &k->match);
    }
    if (k->match.last && k->match.reason == KVCSA_REASON_ENDED)
        freed += forget_block(q, k, k->match.last);
    return freed;
}

kvcsa_status kvcsa_prefix_forget(kvcsa_pool *pool, const kvcsa_model *model, uint64_t salt,
                                 const int32_t *tokens, size_t n_tokens, uint64_t *n_freed_bytes,
                                 kvcsa_error *err)
{
    const query  q = {pool, model, salt, tokens, n_tokens};
    uint64_t     freed;
    known        k;
    kvcsa_status st;

    kvi_error_clear(err);
    if (n_freed_bytes)
        *n_freed_bytes = 0;
    KVI_REQUIRE(pool, err);
    if (!model && (tokens || n_tokens))
        return kvi_fail(err, KVCSA_ERR_ARG, "model is NULL, so tokens must be NULL and n_tokens 0");
    if (!model) {
        freed = kvi_prefix_forget(pool, NULL, NULL);
    } else {
        if ((st = check_query(&q, err)) != KVCSA_OK)
            return st;
        find_known(&q, 0, &k);
        freed = forget_known(&q, &k);
        drop_known(&q, &k);
    }
    if (n_freed_bytes)
        *n_freed_bytes = freed;
    return KVCSA_OK;
}
