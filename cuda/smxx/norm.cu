#include "norm.cuh"

#include "dense_check.h"

kvcsa_status kvi_cuda_norm(kvi_device *dev, const kvi_norm_params *p, kvcsa_error *err)
{
    kvi_cuda_use    use(dev);
    const norm_args a = {p->x, p->y, p->weight, p->x_stride, p->y_stride, p->n_rows, p->width, p->eps};
    dim3            grid;

    KVI_TRY(kvi_dense_flags("norm", p->flags, err));
    if (p->n_rows == 0 || p->width == 0)
        return KVCSA_OK;
    if (p->width > 0x7fffffffu)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "norm: at most 2^31 - 1 channels");
    if (p->width <= NORM_WARP_WIDTH) {
        KVI_TRY(kvi_dense_grid("norm", (p->n_rows + NORM_ROWS - 1) / NORM_ROWS, 1, &grid, err));
        return kvi_launch(dev, "norm", norm_f32_f32_warp_kernel, grid, NORM_ROWS * KVI_WARP, 0, err, a);
    }
    KVI_TRY(kvi_dense_grid("norm", p->n_rows, 1, &grid, err));
    if (p->width <= NORM_SMALL_WIDTH)
        return kvi_launch(dev, "norm", norm_f32_f32_kernel<NORM_SMALL>, grid, NORM_SMALL, sizeof(norm_shared<NORM_SMALL>), err,
                          a);
    return kvi_launch(dev, "norm", norm_f32_f32_kernel<NORM_LARGE>, grid, NORM_LARGE, sizeof(norm_shared<NORM_LARGE>), err, a);
}
