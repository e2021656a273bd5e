/* The CPU's operators: one file op_*.c a subject makes tasks of the work and calls the subject's
 * kernels through the table of the device. ref_*.c holds the portable kernels, which are the truth;
 * x86/ and arm/ hold variants. Nobody outside cpu/ includes this. */
#ifndef KVI_CPU_OPS_H
#define KVI_CPU_OPS_H

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/status.h"
#include "cpu/attend_kernels.h"
#include "cpu/cache_kernels.h"
#include "cpu/dense_kernels.h"
#include "cpu/index_kernels.h"
#include "cpu/linear_kernels.h"
#include "cpu/paged_kernels.h"
#include "cpu/select_kernels.h"

struct kvi_device {
    kvcsa_allocator    allocator;
    kvi_threads       *threads;
    uint32_t           flags; /* KVCSA_CPU_* that the kernels use */
    kvi_linear_kernels linear;
    kvi_attend_kernels attend;
    kvi_index_kernels  index;
    kvi_select_kernels select;
    kvi_cache_kernels  cache;
    kvi_dense_kernels  dense;
    kvi_paged_kernels  paged;
};

/* No slot of a table is ever NULL. threads may be NULL: the caller alone. */
void kvi_cpu_device_init(kvi_device *dev, const kvcsa_allocator *allocator, kvi_threads *threads,
                         uint32_t flags);

/* op_linear.c */
kvcsa_status kvi_cpu_embed(kvi_device *dev, const kvi_embed_params *p, kvcsa_error *err);
kvcsa_status kvi_cpu_linear(kvi_device *dev, const kvi_linear_params *p, kvcsa_error *err);
/* One weight row as float. out f32 [w->cols]. */
void kvi_ref_weight_row(const kvi_matrix *w, uint64_t row, float *out);
/* x' = dequantised Q-SWA of bf16(x) (KVI_OP_ACT_QUANT). */
void kvi_ref_act_quant(const float *x, size_t width, float *out);
/* op_dense.c */
kvcsa_status kvi_cpu_norm(kvi_device *dev, const kvi_norm_params *p, kvcsa_error *err);
kvcsa_status kvi_cpu_rope(kvi_device *dev, const kvi_rope_params *p, kvcsa_error *err);
kvcsa_status kvi_cpu_mix(kvi_device *dev, const kvi_mix_params *p, kvcsa_error *err);
kvcsa_status kvi_cpu_collapse(kvi_device *dev, const kvi_collapse_params *p, kvcsa_error *err);
kvcsa_status kvi_cpu_expand(kvi_device *dev, const kvi_expand_params *p, kvcsa_error *err);
kvcsa_status kvi_cpu_engram_gate(kvi_device *dev, const kvi_engram_gate_params *p,
                                 kvcsa_error *err);
kvcsa_status kvi_cpu_route(kvi_device *dev, const kvi_route_params *p, kvcsa_error *err);
/* op_moe.c */
kvcsa_status kvi_cpu_moe(kvi_device *dev, const kvi_moe_params *p, kvcsa_error *err);
/* op_cache.c */
kvcsa_status kvi_cpu_window_write(kvi_device *dev, const kvi_window_write_params *p,
                                  kvcsa_error *err);
kvcsa_status kvi_cpu_pool_pairs(kvi_device *dev, const kvi_pool_pairs_params *p, kvcsa_error *err);
kvcsa_status kvi_cpu_entry_write(kvi_device *dev, const kvi_entry_write_params *p,
                                 kvcsa_error *err);
kvcsa_status kvi_cpu_paged_write(kvi_device *dev, const kvi_paged_write_params *p,
                                 kvcsa_error *err);
kvcsa_status kvi_cpu_index_query(kvi_device *dev, const kvi_index_query_params *p,
                                 kvcsa_error *err);
/* op_index.c */
kvcsa_status kvi_cpu_index_score(kvi_device *dev, const kvi_index_score_params *p,
                                 kvcsa_error *err);
/* op_select.c */
kvcsa_status kvi_cpu_candidates(kvi_device *dev, const kvi_candidates_params *p, kvcsa_error *err);
kvcsa_status kvi_cpu_hide(kvi_device *dev, const kvi_hide_params *p, kvcsa_error *err);
kvcsa_status kvi_cpu_topk(kvi_device *dev, const kvi_topk_params *p, kvcsa_error *err);
/* op_paged.c */
kvcsa_status kvi_cpu_paged_attend(kvi_device *dev, const kvi_paged_attend_params *p,
                                  kvcsa_error *err);
/* op_attend.c */
kvcsa_status kvi_cpu_attend(kvi_device *dev, const kvi_attend_params *p, kvcsa_error *err);
/* op_copy.c */
kvcsa_status kvi_cpu_copy(kvi_device *dev, const kvi_copy_params *p, kvcsa_error *err);
kvcsa_status kvi_cpu_tally(kvi_device *dev, const kvi_tally_params *p, kvcsa_error *err);

#endif
