/* What the hosts' side of the dense operators shares. */
#ifndef KVI_CUDA_DENSE_CHECK_H
#define KVI_CUDA_DENSE_CHECK_H

#include "cuda_device.h"

static inline kvcsa_status kvi_dense_flags(const char *name, uint32_t flags, kvcsa_error *err)
{
    if (flags)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "%s: the reference mode is the CPU's", name);
    return KVCSA_OK;
}

/* A one-dimensional grid of rows x pieces blocks. */
static inline kvcsa_status kvi_dense_grid(const char *name, size_t rows, size_t pieces, dim3 *out, kvcsa_error *err)
{
    const size_t most = 0x7fffffff;

    if (pieces != 0 && rows > most / pieces)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "%s: %zu rows need more than 2^31 - 1 blocks", name, rows);
    *out = dim3(static_cast<unsigned>(rows * pieces));
    return KVCSA_OK;
}

#endif
