/* Scalar reference operators, one file a subject, and what they share. Nobody outside cpu/
 * includes this. */
#ifndef KVI_CPU_OPS_H
#define KVI_CPU_OPS_H

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/status.h"

struct kvi_device {
    kvcsa_allocator allocator;
    kvi_threads    *threads;
};

/* ref_linear.c */
kvcsa_status kvi_ref_embed(kvi_device *dev, const kvi_embed_params *p, kvcsa_error *err);
kvcsa_status kvi_ref_linear(kvi_device *dev, const kvi_linear_params *p, kvcsa_error *err);
/* One weight row as float. out f32 [w->cols]. */
void kvi_ref_weight_row(const kvi_matrix *w, uint64_t row, float *out);
/* x' = dequantised Q-SWA of bf16(x) (KVI_OP_ACT_QUANT). */
void kvi_ref_act_quant(const float *x, size_t width, float *out);
/* ref_norm.c */
kvcsa_status kvi_ref_norm(kvi_device *dev, const kvi_norm_params *p, kvcsa_error *err);
kvcsa_status kvi_ref_rope(kvi_device *dev, const kvi_rope_params *p, kvcsa_error *err);
/* ref_mix.c */
kvcsa_status kvi_ref_mix(kvi_device *dev, const kvi_mix_params *p, kvcsa_error *err);
kvcsa_status kvi_ref_collapse(kvi_device *dev, const kvi_collapse_params *p, kvcsa_error *err);
kvcsa_status kvi_ref_expand(kvi_device *dev, const kvi_expand_params *p, kvcsa_error *err);
kvcsa_status kvi_ref_engram_gate(kvi_device *dev, const kvi_engram_gate_params *p,
                                 kvcsa_error *err);
/* ref_moe.c */
kvcsa_status kvi_ref_route(kvi_device *dev, const kvi_route_params *p, kvcsa_error *err);
kvcsa_status kvi_ref_moe(kvi_device *dev, const kvi_moe_params *p, kvcsa_error *err);
/* ref_fp4.c */
kvcsa_status kvi_ref_window_write(kvi_device *dev, const kvi_window_write_params *p,
                                  kvcsa_error *err);
kvcsa_status kvi_ref_pool_pairs(kvi_device *dev, const kvi_pool_pairs_params *p, kvcsa_error *err);
kvcsa_status kvi_ref_entry_write(kvi_device *dev, const kvi_entry_write_params *p,
                                 kvcsa_error *err);
kvcsa_status kvi_ref_index_query(kvi_device *dev, const kvi_index_query_params *p,
                                 kvcsa_error *err);
/* ref_index.c */
kvcsa_status kvi_ref_index_score(kvi_device *dev, const kvi_index_score_params *p,
                                 kvcsa_error *err);
kvcsa_status kvi_ref_candidates(kvi_device *dev, const kvi_candidates_params *p, kvcsa_error *err);
kvcsa_status kvi_ref_hide(kvi_device *dev, const kvi_hide_params *p, kvcsa_error *err);
kvcsa_status kvi_ref_topk(kvi_device *dev, const kvi_topk_params *p, kvcsa_error *err);
/* ref_attn.c */
kvcsa_status kvi_ref_attend(kvi_device *dev, const kvi_attend_params *p, kvcsa_error *err);

#endif
