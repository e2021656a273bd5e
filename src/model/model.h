/* Model handle: immutable once open, reference counted. */
#ifndef KVI_MODEL_H
#define KVI_MODEL_H

#include <stdatomic.h>

#include "format/kv_layout.h"
#include "model/config.h"
#include "model/engram_hash.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "text/tokenizer.h"

struct kvcsa_model {
    atomic_uint_least64_t refs;
    kvcsa_allocator  allocator;
    kvcsa_log        log;
    kvi_config       config;
    kvi_plan         plan;
    uint64_t         plan_hash;
    kvi_kv_layout    layout;
    int              plan_only;          /* of a configuration, or of rows alone: then only a few
                                          * fields of config are set */
    /* absent with plan_only */
    kvi_tensors     *tensors;
    kvi_weights      weights;
    kvi_tokenizer   *tokenizer;
    uint32_t        *token_map;          /* [vocab] token id -> compressed id; NULL without
                                          * Engram */
    kvi_engram_hash  engram;
    /* for kvcsa_model_get_info */
    char            *skipped_names;
    uint32_t         n_tensors, n_skipped;
    uint64_t         weight_bytes, skipped_bytes, fingerprint;
};

/* params have been imported; flags checked. */
kvcsa_status kvi_model_open(const char *path, const kvcsa_model_params *params, kvcsa_model **out,
                            kvcsa_error *err);
/* A model with plan_only. rows: kvcsa_plan_row [n_rows], as the caller has them; params have been
 * imported. */
kvcsa_status kvi_model_from_plan(const void *rows, size_t n_rows, const kvcsa_plan_params *params,
                                 kvcsa_model **out, kvcsa_error *err);
kvcsa_model *kvi_model_retain(kvcsa_model *model);
void         kvi_model_release(kvcsa_model *model);     /* accepts NULL; frees with the last
                                                         * reference */

#endif
