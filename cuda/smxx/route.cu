#include "route.cuh"

#include "cuda_features.h"
#include "dense_check.h"

kvcsa_status kvi_cuda_route(kvi_device *dev, const kvi_route_params *p, kvcsa_error *err)
{
    kvi_cuda_use     use(dev);
    const route_args a = {p->z, p->bias, p->experts, p->weights, p->n_experts, p->k, p->normalise, p->scale};
    dim3             grid;

    if (p->n_experts > ROUTE_EXPERTS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "route: at most %u experts, not %u", ROUTE_EXPERTS, p->n_experts);
    if (p->k > p->n_experts)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "route: %u of %u experts", p->k, p->n_experts);
    if (p->n_rows == 0 || p->k == 0)
        return KVCSA_OK;
    KVI_TRY(kvi_dense_grid("route", p->n_rows, 1, &grid, err));
    return kvi_launch(dev, "route", p->n_experts <= ROUTE_THREADS ? route_f32_f32_kernel<16> : route_f32_f32_kernel<32>, grid,
                      ROUTE_THREADS, sizeof(route_shared), err, a);
}

void kvi_cuda_features_route(kvi_features *f) { f->experts = {1, ROUTE_EXPERTS, 1}; }
