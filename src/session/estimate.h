/* Bytes that sessions will take from a pool, from the plan alone (kvcsa_model_estimate). */
#ifndef KVI_ESTIMATE_H
#define KVI_ESTIMATE_H

#include "model/model.h"

/* n_sessions sessions, each of n_tokens committed tokens with nothing queued. The first n_shared
 * are the same in all of them and known to the pool: their whole blocks count once.
 * params have been imported; those that change bytes are checked here. struct_size of out is not
 * touched. ERR_ARG; ERR_LIMIT: too long for the model, or a sum above 2^63. */
kvcsa_status kvi_estimate(const kvcsa_model *model, const kvcsa_session_params *params,
                          uint64_t n_tokens, uint64_t n_sessions, uint64_t n_shared,
                          kvcsa_estimate *out, kvcsa_error *err);

#endif
