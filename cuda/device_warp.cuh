/* Largest and smallest whole number of a warp. */
#ifndef KVI_DEVICE_WARP_CUH
#define KVI_DEVICE_WARP_CUH

#include "device.cuh"

KVI_DEV unsigned kvi_warp_max_u32(unsigned x)
{
#ifdef KVI_CUDA_EMULATED
    for (unsigned d = 16; d; d /= 2) {
        const unsigned other = kvi_shfl_xor(x, d);
        x = other > x ? other : x;
    }
    return x;
#else
    return __reduce_max_sync(KVI_ALL_LANES, x);
#endif
}

KVI_DEV unsigned kvi_warp_min_u32(unsigned x)
{
#ifdef KVI_CUDA_EMULATED
    return ~kvi_warp_max_u32(~x);
#else
    return __reduce_min_sync(KVI_ALL_LANES, x);
#endif
}

#endif
