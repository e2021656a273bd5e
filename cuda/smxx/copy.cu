#include "copy.cuh"

#include "cuda_device.h"

kvcsa_status kvi_cuda_copy(kvi_device *dev, const kvi_copy_params *p, kvcsa_error *err)
{
    enum : size_t { MOST_UNITS = static_cast<size_t>(0x7fffffff) * COPY_WARPS };
    kvi_cuda_use use(dev);
    const size_t pieces = static_cast<size_t>(p->max_bytes / COPY_PIECE + (p->max_bytes % COPY_PIECE != 0));
    size_t       n = 0;

    if (pieces == 0)
        return KVCSA_OK;
    if (pieces > MOST_UNITS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "copy: %llu bytes of a job, at most 2^44",
                             static_cast<unsigned long long>(p->max_bytes));
    for (size_t job = 0; job < p->n_jobs; job += n) { /* once, if they fit a grid */
        n = p->n_jobs - job < MOST_UNITS / pieces ? p->n_jobs - job : MOST_UNITS / pieces;
        const copy_args a = {p->jobs + job, n * pieces, pieces};
        KVI_TRY(kvi_launch(dev, "copy", copy_kernel, dim3(kvi_blocks(a.n_units, COPY_WARPS)), COPY_THREADS, 0, err, a));
    }
    return KVCSA_OK;
}
