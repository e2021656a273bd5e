/* config.json, read and validated. */
#ifndef KVI_CONFIG_H
#define KVI_CONFIG_H

#include "kvcsa.h"

#define KVI_MAX_LAYERS 512u
#define KVI_MAX_ENGRAM_LAYERS 8u
#define KVI_MAX_NGRAM 8u

enum { /* kvi_cache_shape.layers: what a layer keeps; without a ratio it keeps no entries */
    KVI_LAYER_WINDOW = 1,  /* raw rows of the last tokens */
    KVI_LAYER_INDEXED = 2, /* attends a selection of entries, ranked by index keys; else all */
    KVI_LAYER_STATE = 4,   /* linear attention */
    KVI_LAYER_OVERLAP = 8, /* KVCSA_POOLING_OVERLAP; else, with a ratio above 1, GATED */
    KVI_LAYER_WIDE = 16    /* KVCSA_POOLING_WIDE */
};

/* What the layers of a model cache, of any family. Which layers own what stands in ratios,
 * kv_source and index_source of the configuration. */
typedef struct kvi_cache_shape {
    uint32_t n_layers;      /* rows of the plan; draft layers are not counted unless asked for */
    uint32_t kv_heads;
    uint32_t key_width;     /* of one head */
    uint32_t value_width;
    uint32_t value_kind;    /* KVCSA_VALUE_* */
    uint32_t rotated;       /* last so many channels of a key; 0 where they are others, or all */
    uint32_t entry_format;  /* KVCSA_FORMAT_* */
    uint32_t value_format;  /* NONE = as entries */
    uint32_t window_format; /* NONE = as entries */
    uint32_t index_format;
    uint32_t sink;
    uint32_t state_heads;   /* of a layer with KVI_LAYER_STATE */
    uint64_t state_bytes;
    uint8_t  layers[KVI_MAX_LAYERS]; /* KVI_LAYER_* */
} kvi_cache_shape;

struct kvi_plan_override;

typedef struct kvi_config {
    char     architecture[64];
    uint32_t has_network; /* 0 = plan and cost only: what stands below up to max_tokens is known as
                           * far as the family has it */
    uint32_t vocab_size, hidden_size, n_layers, n_draft_layers;
    uint32_t n_heads, head_dim, rope_dim, q_lora_rank, o_lora_rank, o_groups;
    uint32_t window, index_heads, index_dim, index_topk;
    uint32_t candidate_blocks, candidate_block_size;
    int32_t  candidate_source;              /* layer, -1 = none */
    uint32_t n_experts, n_experts_per_token, moe_inner, norm_topk_prob;
    uint32_t hc_copies, hc_iters;
    uint32_t ratios[KVI_MAX_LAYERS];        /* [n_layers + n_draft_layers] */
    uint8_t  kv_source[KVI_MAX_LAYERS];     /* flags per layer */
    uint8_t  index_source[KVI_MAX_LAYERS];
    uint32_t n_engram_layers;
    uint32_t engram_layers[KVI_MAX_ENGRAM_LAYERS];
    uint64_t engram_rows[KVI_MAX_ENGRAM_LAYERS];
    uint32_t engram_ngram, engram_heads, engram_head_dim, engram_pad_token, engram_compressed_vocab;
    uint64_t engram_vocab;
    uint64_t max_tokens;
    uint64_t rope_original_tokens;          /* 0 = no YaRN */
    float    rope_theta, compress_rope_theta, rope_factor, rope_beta_fast, rope_beta_slow;
    float    norm_eps, hc_eps, routed_scale, swiglu_limit;
    int32_t  bos, eos, pad, image;          /* -1 = none */
    int32_t  has_vision;
    /* of experts, for kvcsa_model_get_info; 0 = none, or not known */
    uint32_t n_moe_layers;
    uint64_t expert_bytes;
    kvi_cache_shape cache;
} kvi_config;

/* json u8 [n_bytes]; name for messages. Every self-consistency check of docs/formats.md;
 * ERR_FORMAT names the field, the value and the limit; ERR_UNSUPPORTED another architecture or
 * quantisation.
 * plan_only: any family of docs/formats.md "Families", else those with a network.
 * changes: filled from the object "kvcsa_plan" of the file; NULL = it is not looked at. */
kvcsa_status kvi_config_read(const char *json, size_t n_bytes, const char *name, int plan_only,
                             kvi_config *out, struct kvi_plan_override *changes, kvcsa_error *err);

/* The same for a family with a network, without changes. */
kvcsa_status kvi_config_parse(const char *json, size_t n_bytes, const char *name, kvi_config *out,
                              kvcsa_error *err);

#endif
