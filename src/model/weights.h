/* Weights of the text model: tensors bound by name, with dtype and shape checked. Matrices point
 * into the mapped files; vectors are copied to f32. */
#ifndef KVI_WEIGHTS_H
#define KVI_WEIGHTS_H

#include "backend/op_params.h"
#include "model/config.h"
#include "model/safetensors.h"

typedef struct kvi_mix_weights {   /* one mHC site */
    kvi_matrix   fn;               /* F32 [(2 + copies) * copies, copies * hidden] */
    const float *base;             /* [(2 + copies) * copies] */
    float        scale[3];
} kvi_mix_weights;

typedef struct kvi_layer_weights {
    const float *attn_norm, *ffn_norm;   /* [hidden] */
    const float *q_norm, *kv_norm;       /* [q_lora_rank], [head_dim] */
    const float *attn_sink;              /* [n_heads] */
    kvi_matrix   wq_a, wq_b, wkv, wo_a, wo_b;
    /* kv owners, else kind NONE / NULL; wgate only where ratio > 1 */
    kvi_matrix   comp_wkv, comp_wgate, index_wk;
    const float *comp_norm, *index_k_norm;
    /* index sources */
    kvi_matrix   index_wq_b, index_weights;
    /* feed-forward */
    kvi_matrix   gate;
    const float *gate_bias;              /* [n_experts] */
    kvi_expert   shared;
    kvi_expert  *experts;                /* [n_experts] */
    kvi_mix_weights mix_attn, mix_ffn;
    /* Engram layers */
    int32_t      engram_index;           /* -1 = none */
    kvi_matrix   engram_table;           /* FP8_ROW [rows, engram_head_dim] */
    kvi_matrix   engram_wkv;
    const float *engram_qk;              /* [copies, hidden] q_weight * k_weight */
} kvi_layer_weights;

typedef struct kvi_weights {
    kvi_matrix         embed, head;      /* BF16 [vocab, hidden] */
    const float       *norm;             /* [hidden] */
    kvi_layer_weights *layers;           /* [n_layers] */
    void              *owned;            /* storage of the copies; private */
} kvi_weights;

/* Binds every tensor the text model needs and marks it used; ERR_FORMAT names shard, tensor,
 * what it is and what it must be. */
kvcsa_status kvi_weights_bind(const kvi_config *c, kvi_tensors *t, const kvcsa_allocator *a,
                              kvi_weights *out, kvcsa_error *err);
void         kvi_weights_fini(kvi_weights *w, const kvi_config *c, const kvcsa_allocator *a);

#endif
