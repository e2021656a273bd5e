/* A host with keys, values and queries of heads: plain functions of token and position, so that a
 * test knows every row without a network. Public header only. */
#ifndef TEST_HEADS_HOST_H
#define TEST_HEADS_HOST_H

#include <math.h>

#include "support/host.h"
#include "support/plan_rows.h"

enum { HH_LAYERS = 2, HH_KV = 2, HH_HEADS = 6, HH_WIDTH = 32, HH_VOCAB = 512 };
enum { HH_KEY = 1, HH_VALUE = 2, HH_QUERY = 3 };

/* In -1 .. 1. */
static inline float hh_value(uint32_t what, uint32_t layer, int32_t token, uint64_t pos,
                             uint32_t head, uint32_t channel)
{
    uint64_t x = (((uint64_t)what * 8 + layer) * 1024 + (uint64_t)token) * 65536 + pos;

    x = (x * 64 + head) * 64 + channel;
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    x ^= x >> 31;
    return (float)((double)(x >> 11) * 0x1p-52 - 1.0);
}

static inline kvcsa_model *hh_model(uint32_t format, uint32_t block_tokens)
{
    kvcsa_plan_row    rows[HH_LAYERS];
    kvcsa_plan_params p = default_params();

    p.block_tokens = block_tokens;
    p.vocab_tokens = HH_VOCAB;
    for (int32_t l = 0; l < HH_LAYERS; l++) {
        rows[l] = grouped_row(l, l, HH_KV, HH_WIDTH);
        rows[l].entry_format = rows[l].value_format = format;
    }
    return from_rows(rows, HH_LAYERS, &p);
}

static inline kvcsa_session *hh_session(kvcsa_pool *pool, kvcsa_model *model, uint64_t salt)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.flags = KVCSA_SESSION_CACHE_ONLY;
    p.salt = salt;
    assert_ok(kvcsa_session_create(pool, model, &p, &s, &err));
    return s;
}

/* How the host's arrays lie: [rows, heads, width] with gaps, or [heads, rows, width] as others have
 * them. */
typedef struct hh_layout {
    int    heads_outside;
    size_t gap; /* floats behind every row of a head */
} hh_layout;

static inline size_t hh_strides(hh_layout how, size_t n, uint32_t heads, size_t *row, size_t *head)
{
    const size_t width = HH_WIDTH + how.gap;

    *row = how.heads_outside ? width : heads * width;
    *head = how.heads_outside ? n * width : width;
    return n * heads * width;
}

static inline kvcsa_rows hh_rows(const kvcsa_chunk_info *c, uint32_t what, uint32_t layer,
                                 uint32_t heads, hh_layout how)
{
    kvcsa_rows   r = {0};
    const size_t n = hh_strides(how, c->n_rows, heads, &r.row_stride, &r.head_stride);
    float       *data = malloc(n * sizeof *data);

    assert_non_null(data);
    for (size_t i = 0; i < n; i++)
        data[i] = NAN;
    for (size_t i = 0; i < c->n_rows; i++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t k = 0; k < HH_WIDTH; k++)
                data[i * r.row_stride + h * r.head_stride + k] =
                    hh_value(what, layer, c->tokens[i], c->position + i, h, k);
    r.data = data;
    return r;
}

static inline void hh_free(kvcsa_rows r)
{
    free((void *)(uintptr_t)r.data);
}

/* What attention gave: f32 [tokens, layers, heads, width]. */
typedef struct hh_out {
    float *data;
    size_t cap; /* tokens */
} hh_out;

static inline hh_out hh_out_make(size_t n_tokens)
{
    const hh_out o = {.data = calloc(n_tokens * HH_LAYERS * HH_HEADS * HH_WIDTH, sizeof(float)),
                      .cap = n_tokens};

    assert_non_null(o.data);
    return o;
}

static inline float *hh_out_row(const hh_out *o, uint64_t pos, uint32_t layer)
{
    return o->data + (pos * HH_LAYERS + layer) * HH_HEADS * HH_WIDTH;
}

typedef struct hh_attention {
    const float *sink;
    float        scale;
    hh_layout    how;
} hh_attention;

static inline kvcsa_status hh_write(kvcsa_session *s, const kvcsa_chunk_info *c, uint32_t layer,
                                    hh_layout how, kvcsa_error *err)
{
    kvcsa_chunk_rows w = {.struct_size = sizeof w};
    kvcsa_status     st;

    w.key = hh_rows(c, HH_KEY, layer, HH_KV, how);
    w.value = hh_rows(c, HH_VALUE, layer, HH_KV, how);
    st = kvcsa_chunk_write(s, layer, &w, err);
    hh_free(w.key);
    hh_free(w.value);
    return st;
}

static inline kvcsa_status hh_attend(kvcsa_session *s, const kvcsa_chunk_info *c, uint32_t layer,
                                     const hh_attention *as, const hh_out *out, kvcsa_error *err)
{
    kvcsa_chunk_attention a = {
        .struct_size = sizeof a, .n_heads = HH_HEADS, .sink = as->sink, .scale = as->scale};
    const size_t n =
        hh_strides(as->how, c->n_rows, HH_HEADS, &a.out_row_stride, &a.out_head_stride);
    kvcsa_status st;

    a.query = hh_rows(c, HH_QUERY, layer, HH_HEADS, as->how);
    a.out = malloc(n * sizeof(float));
    assert_non_null(a.out);
    st = kvcsa_chunk_attend(s, layer, &a, err);
    for (size_t i = 0; i < c->n_rows && st == KVCSA_OK && out; i++)
        for (uint32_t h = 0; h < HH_HEADS; h++)
            memcpy(hh_out_row(out, c->position + i, layer) + h * HH_WIDTH,
                   a.out + i * a.out_row_stride + h * a.out_head_stride, HH_WIDTH * sizeof(float));
    free(a.out);
    hh_free(a.query);
    return st;
}

/* All that is queued, in chunks of at most max_rows. Rows that were computed, and replayed. */
typedef struct hh_count {
    uint64_t computed, replayed;
} hh_count;

static inline hh_count hh_run(kvcsa_session *s, uint32_t max_rows, const hh_attention *as,
                              const hh_out *out)
{
    hh_count    n = {0, 0};
    kvcsa_error err;

    for (;;) {
        kvcsa_chunk_info c = {.struct_size = sizeof c};

        assert_ok(kvcsa_chunk_begin(s, max_rows, &c, &err));
        if (c.n_rows == 0)
            return n;
        for (uint32_t l = 0; l < HH_LAYERS; l++) {
            assert_ok(hh_write(s, &c, l, as->how, &err));
            assert_ok(hh_attend(s, &c, l, as, out, &err));
        }
        assert_ok(kvcsa_chunk_commit(s, &err));
        *(c.replay ? &n.replayed : &n.computed) += c.n_rows;
    }
}

static inline hh_count hh_append(kvcsa_session *s, const int32_t *ids, size_t n, uint32_t max_rows,
                                 const hh_attention *as, const hh_out *out)
{
    kvcsa_error err;

    assert_ok(kvcsa_session_append(s, ids, n, NULL, NULL, &err));
    return hh_run(s, max_rows, as, out);
}

#endif
