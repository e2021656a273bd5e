/* Chunks that the host computes (kvcsa_chunk_begin).
 *
 * (H1) A chunk is open from begin to commit or abandon. It is planned, committed and undone as a
 *      chunk of a step is; in between nothing of the session changes but what lies behind its
 *      tokens.
 * (H2) Window and raw rows wait beside the pages until the commit; entries and index keys go where
 *      they belong at once, for nobody reads behind the session's tokens.
 * (H3) Of a layer, rows below first_rows[layer] are neither written nor attended to; queries are
 *      those from first_rows[layer + 1] on (attn/swa_replay.h).
 * (H4) ids and blocks hold the selection and the candidates of one layer each, for all rows of the
 *      chunk. */
#ifndef KVI_HOSTED_H
#define KVI_HOSTED_H

#include "session/session_int.h"

enum {                      /* arrays in the memory of operators */
       KVI_HOSTED_ROWS = 0, /* window rows of all layers, then raw rows */
       KVI_HOSTED_TABLES,   /* what operators read of the timeline */
       KVI_HOSTED_VISIBLE,  /* u64 [n] */
       KVI_HOSTED_IN,       /* f32: rows of the host, one behind the other */
       KVI_HOSTED_IN_TOO,
       KVI_HOSTED_OUT,      /* f32 [n, heads, width] */
       KVI_HOSTED_SINK,     /* f32 [heads] */
       KVI_HOSTED_IDS,      /* i32 [n, select_entries] */
       KVI_HOSTED_BLOCKS,   /* i32 [n, candidate_blocks] */
       KVI_HOSTED_N_BLOCKS, /* u32 [n] */
       KVI_HOSTED_CODES,
       KVI_HOSTED_SCALES,
       KVI_HOSTED_SCORES,
       KVI_N_HOSTED_ARRAYS
};

typedef struct kvi_hosted_array {
    void  *data;
    size_t cap; /* bytes */
} kvi_hosted_array;

typedef struct kvi_hosted_tables { /* where they lie, in bytes, inside KVI_HOSTED_TABLES */
    size_t rows;                   /* kvi_slice_rows [layers]; one kvi_slice stands in front */
    size_t pos;                    /* u64 [n] */
    size_t tally;                  /* u64 [3] */
    size_t hidden;                 /* u8 [n_hidden] */
    size_t bytes;
} kvi_hosted_tables;

typedef struct kvi_hosted {
    int               open;
    kvi_chunk         chunk;
    kvi_net_slice     slice;
    kvi_memory        memory;
    uint8_t          *written;  /* u8 [layers] */
    size_t           *at;       /* [2, layers] window rows, and raw rows, in KVI_HOSTED_ROWS */
    int32_t           selected; /* (H4) layer, KVI_NO_LAYER = none yet */
    int32_t           candidates;
    kvi_hosted_array  arrays[KVI_N_HOSTED_ARRAYS];
    kvi_hosted_tables tables;
    kvi_copies        copies;
    kvi_buf           here; /* of the host: bytes on their way */
} kvi_hosted;

/* The layers of the plan can be served by what computes in the pool. ERR_UNSUPPORTED names the first
 * that cannot. */
kvcsa_status kvi_hosted_check(const kvcsa_pool *pool, const kvi_plan *plan, const kvi_settings *set,
                              kvcsa_error *err);
void         kvi_hosted_destroy(kvcsa_session *s); /* abandons; there need not be one */
/* Rows of tokens that are erased. No chunk is open. */
void     kvi_hosted_wipe(kvcsa_session *s);
uint64_t kvi_hosted_bytes(const kvcsa_session *s);

/* Public semantics: kvcsa.h. The caller is inside; structs have been imported. */
kvcsa_status kvi_hosted_begin(kvcsa_session *s, uint32_t max_rows, kvcsa_chunk_info *info,
                              kvcsa_error *err);
kvcsa_status kvi_hosted_write(kvcsa_session *s, uint32_t layer, const kvcsa_chunk_rows *rows,
                              kvcsa_error *err);
kvcsa_status kvi_hosted_select(kvcsa_session *s, uint32_t layer, const kvcsa_chunk_queries *q,
                               kvcsa_error *err);
kvcsa_status kvi_hosted_attend(kvcsa_session *s, uint32_t layer, const kvcsa_chunk_attention *p,
                               kvcsa_error *err);
kvcsa_status kvi_hosted_commit(kvcsa_session *s, kvcsa_error *err);
void         kvi_hosted_abandon(kvcsa_session *s);

/* ------------------------------------------------------------------ hosted_rows.c */

/* Rows [skip, n) of the host as operators find them, one behind the other: the very same, or a copy
 * in array `which`. */
typedef struct kvi_hosted_rows {
    const kvcsa_rows *rows;
    size_t            skip;
    size_t            n;
    uint32_t          heads;
    uint32_t          width;
    uint32_t          flags; /* KVCSA_ROWS_* */
    uint32_t          which;
} kvi_hosted_rows;
kvcsa_status kvi_hosted_bring(kvcsa_session *s, const kvi_hosted_rows *r, const float **out,
                              kvcsa_error *err);
/* The other way: out[skip ..] = what operators left at `from`. */
typedef struct kvi_hosted_out {
    float   *out;
    size_t   row_stride;
    size_t   head_stride;
    size_t   skip;
    size_t   n;
    uint32_t heads;
    uint32_t width;
    uint32_t flags;
} kvi_hosted_out;
/* Where operators may write them: in place where that is the same, else the array OUT. */
kvcsa_status kvi_hosted_place(kvcsa_session *s, const kvi_hosted_out *o, float **to,
                              kvcsa_error *err);
kvcsa_status kvi_hosted_give(kvcsa_session *s, const kvi_hosted_out *o, const float *from,
                             kvcsa_error *err);

/* Room for so many bytes; contents are not kept. ERR_NOMEM with a text, ERR_BACKEND. */
kvcsa_status kvi_hosted_grow(kvcsa_session *s, uint32_t which, size_t bytes, kvcsa_error *err);

/* ------------------------------------------------------------------ hosted_layers.c */

/* One layer of the open chunk. */
typedef struct kvi_hosted_layer {
    kvcsa_session       *s;
    kvi_hosted          *h;
    const kvi_plan_row  *row;
    const kvi_kv_owner  *owner; /* of the entries; NULL where there are none */
    const kvi_net_slice *slice;
    uint32_t             layer;
    uint32_t             width; /* channels of a head: keys, values, window rows and queries */
    uint32_t             flags; /* KVCSA_ROWS_* */
} kvi_hosted_layer;
/* ERR_ARG no chunk is open, no such layer; ERR_UNSUPPORTED flags. */
kvcsa_status kvi_hosted_view(kvcsa_session *s, uint32_t layer, uint32_t flags, uint32_t reserved,
                             kvi_hosted_layer *v, kvcsa_error *err);
/* wanted: 1 = they must be there, 0 = there are none of this layer, -1 = not looked at. ERR_ARG. */
kvcsa_status kvi_hosted_check_given(const kvi_hosted_layer *v, const char *what,
                                    const kvcsa_rows *rows, int wanted, kvcsa_error *err);

static inline uint64_t kvi_hosted_end(const kvi_hosted_layer *v)
{
    return v->slice->pos + v->slice->n_rows;
}

static inline kvcsa_work *kvi_hosted_work(const kvi_hosted_layer *v)
{
    return v->slice->work ? &v->slice->work[v->layer] : NULL;
}

static inline kvi_hosted_rows kvi_hosted_rows_of(const kvi_hosted_layer *v, const kvcsa_rows *rows,
                                                 size_t skip, size_t n, uint32_t heads,
                                                 uint32_t width, uint32_t which)
{
    return (kvi_hosted_rows){.rows = rows,
                             .skip = skip,
                             .n = n,
                             .heads = heads,
                             .width = width,
                             .flags = v->flags,
                             .which = which};
}

static inline void *kvi_hosted_data(const kvi_hosted *h, uint32_t which)
{
    return h->arrays[which].data;
}

/* Entries of tokens below can be read: those of an open chunk once they are written. */
static inline uint64_t kvi_hosted_readable(const kvcsa_session *s, uint32_t owner)
{
    const kvi_hosted *h = s->hosted;

    return h && h->open && !h->slice.replay && h->written[owner] ? h->slice.pos + h->slice.n_rows
                                                                 : s->now.n_tokens;
}

/* (H3) */
static inline size_t kvi_hosted_skipped(const kvi_hosted *h, uint32_t layer)
{
    const uint64_t first = h->slice.first_rows[layer];

    return first > h->slice.pos ? kvi_min_size(first - h->slice.pos, h->slice.n_rows) : 0;
}
static inline size_t kvi_hosted_skipped_queries(const kvi_hosted *h, uint32_t layer)
{
    return kvi_hosted_skipped(h, layer + 1);
}

#endif
