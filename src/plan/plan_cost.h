/* Cost arithmetic on a plan: the five figures (docs/architecture.md). */
#ifndef KVI_PLAN_COST_H
#define KVI_PLAN_COST_H

#include "plan/cache_plan.h"

/* 1 = operators encode and decode entries in this format: kvi_row_can_run of the format room, which
 * the plan cannot see. */
int kvi_format_can_store(uint32_t format);

/* plan has been validated. struct_size of out is not touched. */
void kvi_plan_cost(const kvi_plan *plan, uint64_t n_tokens, kvcsa_cost *out);

/* Public row of one layer; struct_size of out is not touched. Bytes of entries and index keys
 * are 0 on layers that own none. */
void kvi_plan_public_row(const kvi_plan *plan, uint32_t layer, kvcsa_plan_row *out);

/* Window rows, pending rows, and states, of all layers of one session. */
uint64_t kvi_plan_window_bytes(const kvi_plan *plan);
uint64_t kvi_plan_pending_bytes(const kvi_plan *plan);
uint64_t kvi_plan_state_bytes(const kvi_plan *plan);

#endif
