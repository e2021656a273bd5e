#include "pairs.cuh"

#include "dense_check.h"

kvcsa_status kvi_cuda_pool_pairs(kvi_device *dev, const kvi_pool_pairs_params *p, kvcsa_error *err)
{
    kvi_cuda_use    use(dev);
    const unsigned  pieces = kvi_blocks(p->width, 4 * POOL_THREADS);
    const pool_args a = {p->k, p->gate, p->head, p->out, p->width, pieces, p->of, p->entry_pos, p->pending_off, p->pending_slots,
                         p->pending_bytes};
    dim3            grid;

    KVI_TRY(kvi_dense_flags("pool_pairs", p->flags, err));
    if (p->n_pairs == 0 || p->width == 0)
        return KVCSA_OK;
    if (p->width > 0x7fffffffu)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "pool_pairs: at most 2^31 - 1 channels");
    if (p->of.slices && (p->of.each == 0 || p->head))
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "pool_pairs: slices of %zu pairs%s", p->of.each,
                             p->head ? ", and a head" : "");
    KVI_TRY(kvi_dense_grid("pool_pairs", p->n_pairs, pieces, &grid, err));
    return kvi_launch(dev, "pool_pairs", pool_pairs_f32_f32_kernel, grid, POOL_THREADS, 0, err, a);
}
