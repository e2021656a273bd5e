/* The cache plan of a configuration: the one place that knows how a model family fills the rows. */
#ifndef KVI_LAYER_PLAN_H
#define KVI_LAYER_PLAN_H

#include "model/config.h"
#include "plan/cache_plan.h"

/* Validated. block_tokens 0 = 128. rows come from a; free with kvi_layer_plan_fini. */
kvcsa_status kvi_layer_plan_build(const kvi_config *c, uint32_t block_tokens,
                                  const kvcsa_allocator *a, kvi_plan *out,
                                  kvcsa_error *err);
void         kvi_layer_plan_fini(kvi_plan *plan, const kvcsa_allocator *a);

#endif
