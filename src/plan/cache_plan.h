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

#define KVI_MAX_PLAN_LAYERS 1024u
#define KVI_DEFAULT_BLOCK_TOKENS 128u

typedef struct kvi_plan_row {
    /* owners: the layer whose ... this layer reads; itself where it makes them; KVI_NO_LAYER
     * where there is none */
    int32_t kv_owner;         /* entries */
    int32_t index_owner;      /* index keys: kv_owner, but where layers share a selection across
                               * owners (only then may an owner have no keys of its own) */
    int32_t select_owner;     /* selection */
    int32_t candidate_owner;  /* candidate blocks that limit the selection made here */
    /* pooling */
    uint32_t ratio;           /* tokens per entry; 0 = this layer has none: its window only, or a
                               * state */
    uint32_t pool_kind;       /* KVCSA_POOLING_* */
    uint32_t pending_bytes;   /* raw rows kept while an entry is half complete (owners with ratio
                               * > 1) */
    /* entry: kv_heads keys, and values */
    uint32_t kv_heads;        /* 1 for a latent that all heads share */
    uint32_t entry_width;     /* channels of one head's key */
    uint32_t entry_rotated;   /* last so many channels are rotated, before quantisation */
    uint32_t entry_format;    /* KVCSA_FORMAT_* of keys */
    uint32_t value_kind;      /* KVCSA_VALUE_* */
    uint32_t value_width;     /* channels of one head's value */
    uint32_t value_format;    /* where the value is OWN, else KVCSA_FORMAT_NONE */
    uint32_t entry_bytes;     /* of one row: all heads, keys and own values; also on layers that
                               * read another's */
    /* index keys */
    uint32_t index_heads;     /* of the query */
    uint32_t index_width;
    uint32_t index_format;
    uint32_t index_bytes;     /* of one row; 0 = entries without index keys */
    /* selection */
    uint32_t select;          /* KVCSA_SELECT_* */
    uint32_t select_entries;  /* top-k; 0 with SELECT_ALL */
    uint32_t candidates;      /* KVCSA_CANDIDATES_* */
    uint32_t candidate_blocks;        /* kept */
    uint32_t candidate_block_entries; /* entries in a candidate block */
    /* window: raw rows of the layer itself, in pages of the session */
    uint32_t window_tokens;   /* 0 = none */
    uint32_t window_format;
    uint32_t window_bytes;    /* of one row: all heads, keys and own values */
    /* extras */
    uint32_t sink;            /* 1 = a learned logit per head in the denominator */
    uint32_t cost_only;       /* 1 = no operator of this version computes such a layer */
    uint32_t state_heads;     /* linear attention */
    uint64_t state_bytes;     /* of all heads; 0 = none */
} kvi_plan_row;

typedef struct kvi_plan {
    uint32_t      n_layers;
    uint32_t      block_tokens;
    uint64_t      max_tokens;
    kvi_plan_row *rows;       /* [n_layers] */
} kvi_plan;

/* Bytes of a row of `width` channels in a KVCSA_FORMAT_*, values, scales and padding. 0 = unknown
 * format, or one that does not come in this width. */
uint32_t kvi_format_row_bytes(uint32_t format, uint32_t width);
/* How overrides and the command spell it ("fp4", "bf16", ...); "?" for an unknown one. */
const char *kvi_format_name(uint32_t format);
/* 0 = no format is called so. */
uint32_t kvi_format_by_name(const char *name);

/* The same without the scales, of the three formats that lie as values, then scales: FP4_E4M3_G16,
 * FP4_E8M0_G32, FP8_E8M0_G32; of others row_bytes. */
uint32_t kvi_format_value_bytes(uint32_t format, uint32_t width);

/* Largest ratio of an owner, at least 1; and of an owner with index keys. block_tokens must be a
 * multiple of every ratio and of kvi_plan_span_tokens. */
uint32_t kvi_plan_max_ratio(const kvi_plan *plan);
/* An owner has index keys. */
int      kvi_plan_has_index(const kvi_plan *plan);
/* 8 x the largest ratio of an owner with index keys; without one, the largest ratio, or 8 if that
 * is more. Tokens in whole groups of keys: what sessions hide and count attention by. */
uint32_t kvi_plan_span_tokens(const kvi_plan *plan);

/* What follows from other fields and is 0: entry_bytes, index_bytes, window_bytes, pending_bytes.
 * Nothing has to be validated; what cannot be computed stays 0. */
void kvi_plan_row_complete(kvi_plan_row *row, uint32_t layer);

/* Every rule that the rest of the library relies on: owners exist at or before their readers
 * with the same ratio, formats fit widths, block_tokens divides. ERR_FORMAT (or ERR_ARG for
 * block_tokens) with the layer, the field, the value and the limit. */
kvcsa_status kvi_plan_validate(const kvi_plan *plan, kvcsa_error *err);

/* What operators can do with a layer. */
enum {
    KVI_ROW_NONE = 0,   /* nothing: its cost is known */
    KVI_ROW_SPARSE = 1, /* window and selected entries in one softmax (kvi_attend_params) */
    KVI_ROW_PAGED = 2   /* keys and values of heads, all positions (kvi_paged_attend_params) */
};
/* Of a layer of a plan that has been validated. */
uint32_t kvi_plan_row_kind(const kvi_plan *plan, uint32_t layer);

/* What blocks of two plans must have in common to be shared: a hash of the rows. Of a row with one
 * head, whose value is its key, the fields of 0.2 say everything: plans of such rows hash as in 0.2,
 * so its snapshots can be read. Of other rows heads and values count too. ERR_NOMEM. */
kvcsa_status kvi_plan_hash(const kvi_plan *plan, const kvcsa_allocator *a, uint64_t *hash,
                           kvcsa_error *err);

/* Channels of a window row; 0 = the layer has no window. Rows without entries give its bytes only. */
uint32_t kvi_plan_window_width(const kvi_plan_row *row);

/* Of a token of an entry that is not complete yet; 0 = none is kept. */
static inline uint32_t kvi_plan_raw_row_bytes(const kvi_plan_row *row)
{
    return row->pending_bytes ? row->pending_bytes / (row->ratio - 1) : 0;
}

/* True where the layer makes entries. */
static inline int kvi_plan_owns(const kvi_plan *plan, uint32_t layer)
{
    return plan->rows[layer].kv_owner == (int32_t)layer;
}

#endif
