/* Random words: kvi_backend_ops.mem_random. */
#ifndef KVI_CUDA_RAND_H
#define KVI_CUDA_RAND_H

#include "cuda_device.h"

/* Many words come from cuRAND, if it is there; few, those of a graph that is recorded, and all without it from a kernel of our own
 * (philox.cuh). They are the same words. May wait for the stream. ERR_ARG: `to` is not at 4 bytes, or words from 2^64 on. */
kvcsa_status kvi_cuda_mem_random(kvi_device *dev, void *to, size_t n_words, uint64_t seed, uint64_t offset, kvcsa_error *err);

#endif
