/* Dense products by cuBLASLt: an offer, not the way products are made.
 *
 * cuBLASLt chooses tile, split over channels and with them the order of a sum by the shape of the call, so a row's bits depend on how many
 * other rows it comes with; backend/op_params.h promises that they do not. So the library's own kernels make all products, and cuBLASLt is
 * used only on a device whose `fast_dense` is set, for BF16 and F32 weights and FAST_DENSE_ROWS rows or more. Results then are within the
 * bounds of product.cuh but not invariant. */
#ifndef KVI_CUDA_BLAS_H
#define KVI_CUDA_BLAS_H

#include "cuda_device.h"

/* 1 = devices open with fast_dense set. */
#ifndef KVI_CUDA_FAST_DENSE
#define KVI_CUDA_FAST_DENSE 0
#endif

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
kvcsa_status kvi_cuda_blas_run(kvi_device *dev, const kvi_cuda_blas_product *p, kvcsa_error *err);

#endif
