/* Weights of the text model: the list of its tensors, and how they are bound by name, with dtype
 * and shape checked. Matrices point into the mapped files; vectors are copied to f32. */
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
    uint32_t     engram_on_host;         /* of weights in a device's memory: 1 = the table has stayed
                                          * in the host's, its rows go over one by one */
    kvi_matrix   engram_wkv;
    const float *engram_qk;              /* [copies, hidden] q_weight * k_weight */
} kvi_layer_weights;

typedef struct kvi_weights {
    kvi_matrix         embed, head;      /* BF16 [vocab, hidden] */
    const float       *norm;             /* [hidden] */
    kvi_layer_weights *layers;           /* [n_layers] */
    void              *owned;            /* storage of the copies; private */
} kvi_weights;

/* ------------------------------------------------------------------ the list of tensors */

typedef enum kvi_weight_role { /* what a tensor is for; a weight and its scales share one */
    KVI_ROLE_EMBED,
    KVI_ROLE_HEAD,
    KVI_ROLE_NORM,
    KVI_ROLE_ATTN_NORM,
    KVI_ROLE_FFN_NORM,
    KVI_ROLE_SINK,
    KVI_ROLE_Q_NORM,
    KVI_ROLE_KV_NORM,
    KVI_ROLE_WQ_A,
    KVI_ROLE_WQ_B,
    KVI_ROLE_WKV,
    KVI_ROLE_WO_A,
    KVI_ROLE_WO_B,
    KVI_ROLE_COMP_WKV,
    KVI_ROLE_COMP_WGATE,
    KVI_ROLE_COMP_NORM,
    KVI_ROLE_INDEX_WK,
    KVI_ROLE_INDEX_K_NORM,
    KVI_ROLE_INDEX_WQ_B,
    KVI_ROLE_INDEX_WEIGHTS,
    KVI_ROLE_GATE,
    KVI_ROLE_GATE_BIAS,
    KVI_ROLE_EXPERT_IN,  /* w1 and w3, gate and up */
    KVI_ROLE_EXPERT_OUT, /* w2, down */
    KVI_ROLE_HC_FN,
    KVI_ROLE_HC_BASE,
    KVI_ROLE_HC_SCALE,
    KVI_ROLE_ENGRAM_TABLE,
    KVI_ROLE_ENGRAM_WKV,
    KVI_ROLE_ENGRAM_QK,
    KVI_N_ROLES
} kvi_weight_role;

typedef struct kvi_weight_tensor {
    char            name[96];
    kvi_weight_role role;
    uint32_t        dtype;     /* KVI_ST_*, as in the file */
    uint32_t        n_dims;    /* 1 or 2 */
    uint64_t        shape[2];
    uint32_t        kind;      /* KVI_W_* */
    uint32_t        is_scale;  /* 1 = the scales of the weight that was listed before */
    uint32_t        rows;      /* of the matrix; a vector is one row */
    uint32_t        cols;
    int32_t         layer;     /* -1 = none */
    int32_t         expert;    /* routed; -1 = none */
    size_t          offset;    /* for kvi_weights_bind: where it goes, and how */
    uint32_t        store;
} kvi_weight_tensor;

typedef struct kvi_weight_iter { /* a position in the list; may be copied */
    const kvi_config *c;
    uint32_t          part;      /* 0 = global, then the layers from 1 on */
    uint32_t          expert;    /* of the part; 0 = not among the experts yet, then from 1 on */
    uint32_t          slot;
    uint32_t          scale;     /* 1 = the scales of the slot are next */
} kvi_weight_iter;

/* Every tensor the text model needs, in a fixed order, each exactly once: for binding and for
 * kvcsa_synth_checkpoint. */
kvi_weight_iter kvi_weight_first(const kvi_config *c);
int             kvi_weight_next(kvi_weight_iter *it, kvi_weight_tensor *out); /* 0 = no more */
uint64_t        kvi_weight_bytes(const kvi_weight_tensor *t);

/* ------------------------------------------------------------------ binding */

/* Binds every tensor the text model needs and marks it used; ERR_FORMAT names shard, tensor,
 * what it is and what it must be. */
kvcsa_status kvi_weights_bind(const kvi_config *c, kvi_tensors *t, const kvcsa_allocator *a,
                              kvi_weights *out, kvcsa_error *err);
void         kvi_weights_fini(kvi_weights *w, const kvi_config *c, const kvcsa_allocator *a);

#endif
