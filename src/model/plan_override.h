/* Changes to the cache plan of a configuration: other formats, shared layers, draft layers.
 * docs/formats.md "Plan overrides". */
#ifndef KVI_PLAN_OVERRIDE_H
#define KVI_PLAN_OVERRIDE_H

#include "model/config.h"

enum { /* kvi_plan_override.given */
    KVI_CHANGE_ENTRY_FORMAT = 1u << 0,
    KVI_CHANGE_VALUE_FORMAT = 1u << 1,
    KVI_CHANGE_INDEX_FORMAT = 1u << 2,
    KVI_CHANGE_WINDOW_FORMAT = 1u << 3,
    KVI_CHANGE_KV_HEADS = 1u << 4,
    KVI_CHANGE_KV_SHARE = 1u << 5,
    KVI_CHANGE_INDEX_SHARE = 1u << 6,
    KVI_CHANGE_DRAFT_LAYERS = 1u << 7,
    KVI_CHANGE_WINDOW_TOKENS = 1u << 8,
    KVI_CHANGE_MAX_TOKENS = 1u << 9
};

typedef struct kvi_layer_share { /* which layers own */
    uint32_t every;              /* the first of so many; 0 = the listed ones */
    uint8_t  owns[KVI_MAX_LAYERS];
} kvi_layer_share;

typedef struct kvi_plan_override {
    uint32_t given;              /* KVI_CHANGE_* that are there */
    uint32_t from_call;          /* of these, the ones that a caller gave, not the file */
    uint32_t entry_format, value_format, index_format, window_format;
    uint32_t kv_heads;
    uint32_t draft_layers;       /* 1 = counted */
    uint32_t window_tokens;
    uint64_t max_tokens;
    kvi_layer_share kv_share, index_share;
} kvi_plan_override;

/* Read the text of kvcsa_model_params.plan over *out, whose values it wins against. NULL text = no
 * change. ERR_ARG with the key, the value and what is allowed. */
kvcsa_status kvi_plan_override_parse(const char *text, kvi_plan_override *out, kvcsa_error *err);

/* With weights only what operators can store may change. ERR_UNSUPPORTED names the key. */
kvcsa_status kvi_plan_override_runs(const kvi_plan_override *o, kvcsa_error *err);

/* *out = *base with the changes. ERR_ARG (from a call) or ERR_FORMAT (from the file) where the
 * model has nothing of what is to be changed. */
kvcsa_status kvi_plan_override_apply(const kvi_plan_override *o, const kvi_config *base,
                                     kvi_config *out, kvcsa_error *err);

/* What a failed build of the changed plan is: it was sound without the changes. */
kvcsa_status kvi_plan_override_blame(const kvi_plan_override *o, kvcsa_status st,
                                     kvcsa_error *err);

#endif
