/* One tour through what a host does with the library, by its table alone, so that it can be made with any copy of it: open,
 * tokenize, generate, fork, rewind, snapshot to memory and to a file, compare, fail, release. Needs no CMocka. */
#ifndef GUEST_TOUR_H
#define GUEST_TOUR_H

#include "kvcsa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOUR_TOKENS = 12, TOUR_PROMPT = 200 };

typedef struct tour {
    const kvcsa_api       *k;
    const char            *model_dir;
    const char            *file;      /* of a snapshot; NULL = to memory only */
    const kvcsa_allocator *allocator; /* may be NULL */
    uint32_t               n_threads;
    uint32_t               cpu_avoid;
    int32_t                tokens[TOUR_TOKENS]; /* out: what was generated */
    char                   why[320];            /* out: what went wrong */
    kvcsa_model           *model;
    kvcsa_pool            *pool;
    kvcsa_session         *s, *fork;
} tour;

typedef struct tour_bytes { /* a snapshot in memory */
    unsigned char *data;
    size_t         n, cap, at;
} tour_bytes;

static inline int32_t tour_write(void *user, const void *data, size_t n_bytes)
{
    tour_bytes *b = user;

    if (n_bytes > b->cap - b->n)
        return 1;
    memcpy(b->data + b->n, data, n_bytes);
    b->n += n_bytes;
    return 0;
}

static inline int64_t tour_read(void *user, void *data, size_t n_bytes)
{
    tour_bytes  *b = user;
    const size_t n = n_bytes < b->n - b->at ? n_bytes : b->n - b->at;

    memcpy(data, b->data + b->at, n);
    b->at += n;
    return (int64_t)n;
}

/* 0, or -1 with `why` */
static inline int tour_ok(tour *t, const char *what, kvcsa_status st, const kvcsa_error *err)
{
    if (st == KVCSA_OK)
        return 0;
    snprintf(t->why, sizeof t->why, "%.80s: %s: %.180s", what, t->k->status_name(st), err->text);
    return -1;
}
#define TOUR(call)                                                                                                     \
    do {                                                                                                               \
        if (tour_ok(t, #call, t->k->call, &err))                                                                       \
            return -1;                                                                                                 \
    } while (0)
#define TOUR_IF(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            snprintf(t->why, sizeof t->why, "not so: %s", #condition);                                                 \
            return -1;                                                                                                 \
        }                                                                                                              \
    } while (0)

static inline int tour_open(tour *t)
{
    kvcsa_model_params mp;
    kvcsa_pool_params  pp;
    kvcsa_model       *none = NULL;
    kvcsa_error        err;

    t->k->model_params_default(&mp, sizeof mp);
    t->k->pool_params_default(&pp, sizeof pp);
    mp.allocator = pp.allocator = t->allocator;
    pp.n_threads = t->n_threads;
    pp.cpu_avoid = t->cpu_avoid;
    TOUR(model_open(t->model_dir, &mp, &t->model, &err));
    TOUR_IF(t->k->model_open("there is no such place", &mp, &none, &err) == KVCSA_ERR_IO);
    TOUR(pool_create(&pp, &t->pool, &err));
    return 0;
}

static inline int tour_generate(tour *t, kvcsa_session *s, int32_t *tokens, int n)
{
    kvcsa_error err;

    for (int i = 0; i < n; i++) {
        TOUR(pool_step(t->pool, &s, 1, NULL, NULL, &err));
        TOUR(session_sample(s, NULL, &tokens[i], &err));
        TOUR(session_append(s, &tokens[i], 1, NULL, NULL, &err));
    }
    TOUR(pool_step(t->pool, &s, 1, NULL, NULL, &err));
    return 0;
}

static inline int tour_talk(tour *t)
{
    static const char text[] = "In the beginning was the word";
    int32_t           ids[TOUR_PROMPT], again[TOUR_TOKENS];
    size_t            n = 0;
    kvcsa_error       err;

    TOUR(model_tokenize(t->model, text, sizeof text - 1, 0, ids, TOUR_PROMPT, &n, &err));
    for (; n < TOUR_PROMPT; n++)
        ids[n] = ids[n % 7];
    TOUR(session_create(t->pool, t->model, NULL, &t->s, &err));
    TOUR(session_append(t->s, ids, n, NULL, NULL, &err));
    if (tour_generate(t, t->s, t->tokens, TOUR_TOKENS))
        return -1;
    TOUR(session_fork(t->s, n, NULL, &t->fork, &err));
    if (tour_generate(t, t->fork, again, TOUR_TOKENS))
        return -1;
    TOUR_IF(!memcmp(again, t->tokens, sizeof again));
    TOUR(session_rewind(t->fork, n - 3, &err));
    TOUR(session_append(t->fork, ids + n - 3, 3, NULL, NULL, &err));
    if (tour_generate(t, t->fork, again, TOUR_TOKENS))
        return -1;
    TOUR_IF(!memcmp(again, t->tokens, sizeof again));
    TOUR_IF(t->k->session_append(t->fork, ids, n, NULL, NULL, NULL) == KVCSA_OK);
    t->k->session_cancel(t->fork);
    TOUR_IF(t->k->pool_step(t->pool, &t->fork, 1, NULL, NULL, &err) == KVCSA_ERR_CANCELLED);
    return 0;
}

static inline int tour_save(tour *t, tour_bytes *b)
{
    const kvcsa_writer writer = {tour_write, b};
    const kvcsa_reader reader = {tour_read, b};
    const uint64_t     length = t->k->session_length(t->s);
    kvcsa_error        err;

    TOUR(snapshot_write(t->s, &writer, NULL, NULL, &err));
    TOUR(snapshot_read(t->fork, &reader, NULL, NULL, &err));
    TOUR_IF(t->k->session_length(t->fork) == length);
    if (t->file) {
        TOUR(snapshot_save(t->s, t->file, NULL, NULL, &err));
        TOUR(snapshot_load(t->fork, t->file, NULL, NULL, &err));
        TOUR(snapshot_remove(t->file, NULL, &err));
    }
    return 0;
}

/* Public functions that call others. */
static inline int tour_compare(tour *t)
{
    kvcsa_setting        setting;
    kvcsa_compare       *c = NULL;
    kvcsa_compare_result result = {.struct_size = sizeof result};
    kvcsa_error          err;
    int32_t              ids[32];
    int                  rc = 0;

    for (int i = 0; i < 32; i++)
        ids[i] = t->tokens[i % TOUR_TOKENS];
    t->k->setting_default(&setting, sizeof setting);
    setting.model = t->model;
    setting.pool = t->pool;
    TOUR(compare_create(t->allocator, &c, &err));
    rc = tour_ok(t, "compare_text", t->k->compare_text(&setting, &setting, &c, 1, ids, 32, 0, NULL, &err), &err) ||
         tour_ok(t, "compare_get_result", t->k->compare_get_result(c, &result, &err), &err);
    t->k->compare_release(&c);
    TOUR_IF(rc || result.n_equal_rows == 32);
    return rc ? -1 : 0;
}

static inline void tour_release(tour *t)
{
    t->k->model_release(&t->model); /* children keep their parents */
    t->k->pool_release(&t->pool);
    t->k->session_release(&t->fork);
    t->k->session_release(&t->s);
}

/* All of it but the release; 0 = good. */
static inline int tour_begin(tour *t)
{
    tour_bytes b = {.data = malloc(1 << 22), .cap = 1 << 22};
    int        rc = -1;

    if (b.data)
        rc = tour_open(t) || tour_talk(t) || tour_save(t, &b) || tour_compare(t) ? -1 : 0;
    free(b.data);
    return rc;
}

static inline int tour_run(tour *t)
{
    const int rc = tour_begin(t);

    tour_release(t);
    return rc;
}

#endif
