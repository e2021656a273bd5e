/* The cache plan: what every layer keeps and reads, as data.
 *
 * One row a layer. Everything that depends on the shape of a cache (block bytes, cost, what a
 * step computes) is read from these rows; no code asks which model it is running. */
#ifndef KVI_CACHE_PLAN_H
#define KVI_CACHE_PLAN_H

#include "kvcsa.h"

#define KVI_NO_LAYER (-1)
#define KVI_INDEX_GROUP_ROWS 8u /* index keys lie in groups of so many rows: codes, then scales
                                 * (one fetch per candidate block) */

enum { KVI_POOL_NONE = 0, KVI_POOL_GATED = 1 }; /* how `ratio` tokens become an entry: one to
                                                 * one; softmax gate per channel */

typedef struct kvi_plan_row {
    /* owners: the layer whose ... this layer reads; itself where it makes them; KVI_NO_LAYER
     * where there is none */
    int32_t kv_owner;         /* entries and index keys */
    int32_t select_owner;     /* selection */
    int32_t candidate_owner;  /* candidate blocks that limit the selection made here */
    /* pooling */
    uint32_t ratio;           /* tokens per entry; 0 = this layer reads its window only */
    uint32_t pool_kind;       /* KVI_POOL_* */
    uint32_t pending_bytes;   /* raw row kept while an entry is half complete (owners with ratio
                               * > 1) */
    /* entry: one latent, key and value alike */
    uint32_t entry_width;     /* channels */
    uint32_t entry_rotated;   /* last so many channels are rotated, before quantisation */
    uint32_t entry_format;    /* KVCSA_FORMAT_* */
    uint32_t entry_bytes;     /* of one row; also on layers that read another's */
    /* index, made from the latent */
    uint32_t index_heads;
    uint32_t index_width;
    uint32_t index_format;
    uint32_t index_bytes;
    /* selection */
    uint32_t select;          /* KVCSA_SELECT_* */
    uint32_t select_entries;  /* top-k */
    uint32_t candidates;      /* KVCSA_CANDIDATES_* */
    uint32_t candidate_blocks;        /* kept */
    uint32_t candidate_block_entries; /* entries in a candidate block */
    /* window: raw rows of the layer itself, in a ring of the session */
    uint32_t window_tokens;
    uint32_t window_format;
    uint32_t window_bytes;    /* of one row */
    /* extras */
    uint32_t sink;            /* 1 = a learned logit per head in the denominator */
} kvi_plan_row;

typedef struct kvi_plan {
    uint32_t      n_layers;
    uint32_t      block_tokens;
    uint64_t      max_tokens;
    kvi_plan_row *rows;       /* [n_layers] */
} kvi_plan;

/* Bytes of one row of `width` channels in a KVCSA_FORMAT_*: values and scales. 0 = unknown
 * format or width not a multiple of the group. */
uint32_t kvi_format_value_bytes(uint32_t format, uint32_t width);
uint32_t kvi_format_scale_bytes(uint32_t format, uint32_t width);

/* Largest ratio of an owner, at least 1; block_tokens must be a multiple of every ratio and of 8
 * x this. */
uint32_t kvi_plan_max_ratio(const kvi_plan *plan);

/* Every rule that the rest of the library relies on: owners exist at or before their readers
 * with the same ratio, formats fit widths, block_tokens divides. ERR_FORMAT (or ERR_ARG for
 * block_tokens) with the layer, the field, the value and the limit. */
kvcsa_status kvi_plan_validate(const kvi_plan *plan, kvcsa_error *err);

/* True where the layer makes entries. */
static inline int kvi_plan_owns(const kvi_plan *plan, uint32_t layer)
{
    return plan->rows[layer].kv_owner == (int32_t)layer;
}

#endif
