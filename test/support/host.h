/* What the API tests share: opening the shipped checkpoints, running tokens, comparing logits.
 * Public header only. */
#ifndef TEST_HOST_H
#define TEST_HOST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kvcsa.h"

#include "support/checkpoint.h"

#define T1_VOCAB 512u

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        const kvcsa_status st_ = (call);                                                           \
        if (st_ != KVCSA_OK)                                                                       \
            fail_msg("%s: %s: %s", #call, kvcsa_status_name(st_), err.text);                       \
    } while (0)

/* The status, and a fragment of the message. */
#define assert_fails(call, want, fragment)                                                         \
    do {                                                                                           \
        const kvcsa_status st_ = (call);                                                           \
        if (st_ != (want))                                                                         \
            fail_msg("%s: %s, expected %s", #call, kvcsa_status_name(st_), #want);                 \
        if (!strstr(err.text, fragment))                                                           \
            fail_msg("%s: '%s' lacks '%s'", #call, err.text, fragment);                            \
        assert_int_equal(err.status, want);                                                        \
    } while (0)

static inline kvcsa_model *host_model(const char *dir)
{
    kvcsa_model *m = NULL;
    kvcsa_error  err;

    assert_ok(kvcsa_model_open(dir, NULL, &m, &err));
    return m;
}

/* T1 in blocks of that many tokens. */
static inline kvcsa_model *host_model_in_blocks(uint32_t block_tokens)
{
    kvcsa_model_params p;
    kvcsa_model       *m = NULL;
    kvcsa_error        err;

    kvcsa_model_params_default(&p, sizeof p);
    p.block_tokens = block_tokens;
    assert_ok(kvcsa_model_open(T1_DIR, &p, &m, &err));
    return m;
}

/* A plan without weights; plan = changes to it, allocator may be NULL. */
static inline kvcsa_model *host_plan(const char *path, const char *plan,
                                     const kvcsa_allocator *allocator)
{
    kvcsa_model_params p;
    kvcsa_model       *m = NULL;
    kvcsa_error        err;

    kvcsa_model_params_default(&p, sizeof p);
    p.flags = KVCSA_MODEL_PLAN_ONLY;
    p.plan = plan;
    p.allocator = allocator;
    assert_ok(kvcsa_model_open(path, &p, &m, &err));
    return m;
}

static inline kvcsa_pool *host_pool(uint32_t n_threads, uint64_t budget)
{
    kvcsa_pool_params p;
    kvcsa_pool       *pool = NULL;
    kvcsa_error       err;

    kvcsa_pool_params_default(&p, sizeof p);
    p.n_threads = n_threads;
    p.budget_bytes = budget;
    p.flags = KVCSA_POOL_FILL_FREED;
    assert_ok(kvcsa_pool_create(&p, &pool, &err));
    return pool;
}

static inline kvcsa_session *host_session(kvcsa_pool *pool, kvcsa_model *model, uint32_t chunk)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.chunk_tokens = chunk;
    assert_ok(kvcsa_session_create(pool, model, &p, &s, &err));
    return s;
}

/* Pseudo-random ids that are neither special nor the image token (T1: 3..505). */
static inline void host_tokens(int32_t *ids, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ids[i] = 3 + (int32_t)((seed >> 33) % 500);
    }
}

/* All rows of logits, in order. */
typedef struct host_rows {
    float   *data;
    size_t   n, cap;
    uint64_t next; /* position expected next */
    int      in_order;
    uint32_t vocab;
} host_rows;

static inline void host_rows_take(void *user, uint64_t position, const float *logits,
                                  uint32_t n_vocab)
{
    host_rows *r = user;

    r->in_order &= position == r->next && n_vocab == r->vocab && r->n < r->cap;
    r->next = position + 1;
    if (r->n < r->cap)
        memcpy(r->data + r->n++ * r->vocab, logits, n_vocab * sizeof(float));
}

static inline host_rows host_rows_make(size_t cap, uint32_t vocab)
{
    host_rows r = {
        .data = malloc(cap * vocab * sizeof(float)), .cap = cap, .in_order = 1, .vocab = vocab};

    assert_non_null(r.data);
    return r;
}

static inline void host_step(kvcsa_pool *pool, kvcsa_session *s)
{
    kvcsa_error err;

    assert_ok(kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err));
}

/* Append and compute, all logits into rows (may be NULL). */
static inline void host_run(kvcsa_pool *pool, kvcsa_session *s, const int32_t *ids, size_t n,
                            host_rows *rows)
{
    kvcsa_append_params p;
    kvcsa_error         err;

    kvcsa_append_params_default(&p, sizeof p);
    if (rows) {
        p.logits = KVCSA_LOGITS_ALL;
        p.on_logits = host_rows_take;
        p.user = rows;
    }
    assert_ok(kvcsa_session_append(s, ids, n, &p, NULL, &err));
    host_step(pool, s);
}

static inline void host_logits(kvcsa_session *s, float *logits, uint32_t vocab)
{
    kvcsa_error err;

    assert_ok(kvcsa_session_get_logits(s, logits, vocab, &err));
}

/* Clean counts: everything the pool handed out came back. */
static inline void host_pool_is_idle(kvcsa_pool *pool)
{
    kvcsa_pool_stats st = {.struct_size = sizeof st};
    kvcsa_error      err;

    assert_ok(kvcsa_pool_check(pool, &err));
    assert_ok(kvcsa_prefix_forget(pool, NULL, 0, NULL, 0, NULL, &err)); /* the tree's share */
    assert_ok(kvcsa_pool_check(pool, &err));
    assert_ok(kvcsa_pool_get_stats(pool, &st, &err));
    assert_int_equal(st.used_bytes, 0);
    assert_int_equal(st.reserved_bytes, 0);
    assert_int_equal(st.n_sessions, 0);
    assert_int_equal(st.n_acquired, st.n_released);
}

#endif
