#include "engram.cuh"

#include "dense_check.h"

kvcsa_status kvi_cuda_engram_gate(kvi_device *dev, const kvi_engram_gate_params *p, kvcsa_error *err)
{
    kvi_cuda_use      use(dev);
    const engram_args a = {p->h, p->kv, p->qk, p->copies, p->width, p->eps};
    dim3              grid;

    KVI_TRY(kvi_dense_flags("engram_gate", p->flags, err));
    if (p->n_rows == 0 || p->copies == 0 || p->width == 0)
        return KVCSA_OK;
    if (p->width > 0x7fffffffu)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "engram_gate: at most 2^31 - 1 channels");
    KVI_TRY(kvi_dense_grid("engram_gate", p->n_rows, p->copies, &grid, err));
    return kvi_launch(dev, "engram_gate", engram_gate_f32_f32_kernel, grid, ENGRAM_THREADS, sizeof(engram_shared), err, a);
}
