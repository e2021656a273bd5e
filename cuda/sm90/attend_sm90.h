/* Sparse attention on Hopper: what attend.cu launches there in place of its own kernels. */
#ifndef KVI_CUDA_ATTEND_SM90_H
#define KVI_CUDA_ATTEND_SM90_H

#include "attend.cuh"
#include "cuda_device.h"

struct attend_sm90 {
    void   (*kernel)(attend_args);
    size_t   shared;
    unsigned threads, heads; /* of a block */
};

/* True if the device takes it for so many heads; the shape must be that of the fast kernels. Says nothing of how many rows there
 * are: a row's bits do not depend on it. */
bool kvi_attend_sm90_get(const kvi_device *dev, unsigned n_heads, attend_sm90 *out);

#endif
