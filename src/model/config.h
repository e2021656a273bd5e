/* config.json, read and validated. */
#ifndef KVI_CONFIG_H
#define KVI_CONFIG_H

#include "kvcsa.h"

#define KVI_MAX_LAYERS 512u
#define KVI_MAX_ENGRAM_LAYERS 8u
#define KVI_MAX_NGRAM 8u

typedef struct kvi_config {
    char     architecture[64];
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
} kvi_config;

/* json u8 [n_bytes]; name for messages. Every self-consistency check of docs/formats.md;
 * ERR_FORMAT names the field, the value and the limit; ERR_UNSUPPORTED another architecture or
 * quantisation. */
kvcsa_status kvi_config_parse(const char *json, size_t n_bytes, const char *name, kvi_config *out,
                              kvcsa_error *err);

#endif
