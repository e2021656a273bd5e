/* Dense products by cuBLASLt: an offer, not the way products are made.
 *
 * cuBLASLt chooses tile, split over channels and with them the order of a sum by the shape of the call, so a row's bits depend on how many
 * other rows it comes with; backend/op_params.h promises that they do not. Padding to one shape would not help: with kernels that spread
 * the channels of a tile over SMs ("stream-K") a row's bits depend on where it stands. So the library's own kernels make all products, and
 * cuBLASLt is used only on a device that was opened with KVI_DEVICE_FAST_DENSE, for BF16 and F32 weights and FAST_DENSE_ROWS rows or more.
 * Results then are within the bounds of product.cuh but not invariant. */
#ifndef KVI_CUDA_BLAS_H
#define KVI_CUDA_BLAS_H

#include "cuda_device.h"

enum { FAST_DENSE_ROWS = 64, CUDA_BLAS_CALLS = 13 };

struct kvi_cuda_blas {
    bool  fast_dense;
    void *library, *handle, *workspace;
    void *calls[CUDA_BLAS_CALLS]; /* its functions: cuda_blas.cu */
};

/* y [n_rows, n_out] = x W^T, or += where `add`. F32: x is float at x_stride; BF16: x is bf16, contiguous. */
struct kvi_cuda_blas_product {
    const void *w;
    const void *x;
    float      *y;
    size_t      n_rows, n_out, cols, x_stride, y_stride;
    bool        bf16, add;
};
/* *made = false: cuBLASLt has nothing for this shape. */
kvcsa_status kvi_cuda_blas_run(kvi_device *dev, const kvi_cuda_blas_product *p, bool *made, kvcsa_error *err);

#endif
