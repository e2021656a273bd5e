/* Choosing a token from one row of logits (kvcsa_sample_logits). */
#ifndef KVI_SAMPLER_H
#define KVI_SAMPLER_H

#include "kvcsa.h"

/* p has been imported (defaults filled in, struct_size ours). Scratch comes from a. */
kvcsa_status kvi_sample(const kvcsa_allocator *a, const float *logits, uint32_t n_vocab,
                        uint64_t position,
                        const kvcsa_sampler_params *p, int32_t *token, kvcsa_error *err);

/* Uniform in [0, 1), a function of (seed, position) alone: Philox 4x32-10, key = seed, counter =
 * position. */
double kvi_uniform(uint64_t seed, uint64_t position);

#endif
