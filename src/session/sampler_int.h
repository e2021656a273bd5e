/* The random generator of the sampler, for its known-answer test. */
#ifndef KVI_SAMPLER_INT_H
#define KVI_SAMPLER_INT_H

#include <stdint.h>

/* Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). */
void kvi_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
