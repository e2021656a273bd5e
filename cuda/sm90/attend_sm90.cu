#include "attend_sm90.h"

#if defined(KVI_CUDA_EMULATED) || defined(KVI_CUDA_SM90A)
#include "attend_sm90.cuh"

bool kvi_attend_sm90_get(const kvi_device *dev, unsigned n_heads, attend_sm90 *out)
{
    if (dev->arch != 90 || n_heads <= SM90_HEADS / 2 || dev->shared_max < sizeof(attend_sm90_shared))
        return false;
    *out = {attend_sm90_kernel, sizeof(attend_sm90_shared), SM90_THREADS, SM90_HEADS};
    return true;
}
#else /* no image of this library has the instructions */
bool kvi_attend_sm90_get(const kvi_device *, unsigned, attend_sm90 *)
{
    return false;
}
#endif
