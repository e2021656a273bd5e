/* Shared by the readers of configurations: families that have a plan and no network. */
#ifndef KVI_CONFIG_INT_H
#define KVI_CONFIG_INT_H

#include "model/config.h"
#include "model/json_reader_int.h"
#include "model/plan_override.h"
#include "plan/plan_cost.h"

/* Limits of fields. Products of two that bound the bytes of a row are checked where they are
 * formed, so that the plan has nothing left to refuse but the size of a block. */
#define KVI_MAX_ROW_WIDTH (1 << 16)   /* channels of a cached row, as in the plan */
#define KVI_MAX_HEAD_COUNT (1 << 14)
#define KVI_MAX_HIDDEN (1 << 20)
#define KVI_MAX_VOCAB (1 << 24)
#define KVI_MAX_EXPERT_COUNT (1 << 14)

/* Where the keys of the text model stand, and what is made of them. */
typedef struct kvi_family_input {
    kvi_json_reader r;    /* text_config if there is one, else the root */
    const json_t   *root;
    kvi_config     *c;
} kvi_family_input;

typedef struct kvi_family {
    const char *architecture;
    void (*read)(kvi_family_input *in);
} kvi_family;

/* NULL = none of this name. */
const kvi_family *kvi_family_find(const char *architecture);
/* root: a reader of the file; its st says how it went. */
void kvi_family_read(const kvi_family *family, kvi_json_reader *root, kvi_config *out);

/* ------------------------------------------------------------------ family.c: what many share */

/* The first of some keys that is there; keys[0] if none is. keys ends with NULL. */
const char *kvi_family_key(const kvi_family_input *in, const char *const *keys);
/* An integer under one of these keys; absent -1 = it must be there. */
int64_t kvi_family_int(kvi_family_input *in, const char *const *keys, int64_t min, int64_t max,
                       int64_t absent);

typedef struct kvi_family_absent { /* what a family's class assumes where a key is absent; 0 = it
                                    * must be there */
    uint32_t n_heads;
    uint32_t vocab_size;
    uint32_t max_tokens;
} kvi_family_absent;

/* Layers (draft ones too), widths, vocabulary, context, dtype, experts. All layers get entries for
 * every token, of which all are attended. */
void kvi_family_basics(kvi_family_input *in, const kvi_family_absent *absent);
/* Flags and ratio of every layer, draft ones too. */
void kvi_family_set_layers(kvi_config *c, uint8_t flags, uint32_t ratio);
/* One layer: window only, a state, ... */
void kvi_family_set_layer(kvi_config *c, uint32_t layer, uint8_t flags, uint32_t ratio);
/* "layer_types": kinds u8 [n_layers], positions in `names`. 0 = the key is absent, or wrong. */
int kvi_family_layer_types(kvi_family_input *in, const char *const *names, size_t n_names,
                           uint8_t *kinds);
/* A list of n_layers integers min..max; 0 = absent, or wrong. */
int kvi_family_layer_list(kvi_json_reader *r, const char *key, uint32_t n_layers, int64_t min,
                          int64_t max, uint8_t *out);
/* State of linear attention: n_heads x key x value in fp32. */
void kvi_family_set_state(kvi_family_input *in, const char *key, uint64_t n_heads,
                          uint64_t key_width, uint64_t value_width);
void kvi_family_want_multiple(kvi_json_reader *r, const char *key, uint64_t value, uint32_t of);

/* ------------------------------------------------------------------ family_heads.c */

void kvi_family_llama(kvi_family_input *in);
void kvi_family_mistral(kvi_family_input *in);
void kvi_family_qwen(kvi_family_input *in);
void kvi_family_gemma3(kvi_family_input *in);
void kvi_family_gpt_oss(kvi_family_input *in);
void kvi_family_all_heads(kvi_family_input *in); /* GPT-2, GPT-NeoX: a key and value per head */
void kvi_family_falcon(kvi_family_input *in);
void kvi_family_minimax(kvi_family_input *in);
void kvi_family_minimax_m3(kvi_family_input *in);

/* ------------------------------------------------------------------ family_latent.c */

void kvi_family_mla(kvi_family_input *in);
void kvi_family_dsa(kvi_family_input *in);
void kvi_family_csa(kvi_family_input *in);
void kvi_family_kimi_linear(kvi_family_input *in);

/* ------------------------------------------------------------------ family_experts.c */

/* Experts of one layer, how many layers have them, bytes of one. */
void kvi_family_experts(kvi_family_input *in);

/* ------------------------------------------------------------------ plan_override.c */

/* The object "kvcsa_plan" of a configuration file. root: its reader. */
void kvi_plan_override_of_file(kvi_json_reader *root, kvi_plan_override *out);

#endif
