#include "rope.cuh"

#include "dense_check.h"

kvcsa_status kvi_cuda_rope(kvi_device *dev, const kvi_rope_params *p, kvcsa_error *err)
{
    kvi_cuda_use   use(dev);
    const unsigned head_blocks = kvi_blocks(p->n_heads, ROPE_HEADS);
    const rope_args a = {p->x, p->freqs, p->pos, p->row_stride, p->n_heads, p->width, p->n_rotated, p->inverse, head_blocks};
    dim3            grid;

    KVI_TRY(kvi_dense_flags("rope", p->flags, err));
    if (p->n_rotated % 2 || p->n_rotated > p->width)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "rope: %u channels of %u cannot be rotated in pairs", p->n_rotated,
                             p->width);
    if (p->n_rows == 0 || p->n_heads == 0 || p->n_rotated == 0)
        return KVCSA_OK;
    KVI_TRY(kvi_dense_grid("rope", p->n_rows, head_blocks, &grid, err));
    return kvi_launch(dev, "rope", rope_f32_f32_kernel, grid, ROPE_THREADS, sizeof(rope_shared), err, a);
}
