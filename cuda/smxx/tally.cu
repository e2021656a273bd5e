#include "tally.cuh"

#include "dense_check.h"

kvcsa_status kvi_cuda_tally(kvi_device *dev, const kvi_tally_params *p, kvcsa_error *err)
{
    kvi_cuda_use     use(dev);
    const tally_args a = {p->items,   p->n_visible, p->counts,  p->stride, p->rows_each, p->counts_stride,
                          p->all,     p->n_items,   p->each,    p->rows_per_block};
    dim3             grid;

    if (p->rows_per_block == 0)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "tally: cache blocks of 0 entries");
    if (p->all && !p->n_visible)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "tally: all without n_visible");
    if (p->n_rows == 0 || p->n_items == 0)
        return KVCSA_OK;
    KVI_TRY(kvi_dense_grid("tally", p->n_rows, 1, &grid, err));
    return kvi_launch(dev, "tally", tally_kernel, grid, TALLY_THREADS, sizeof(tally_shared), err, a);
}
