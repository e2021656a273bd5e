/* Libraries that the plug-in opens by itself at run time: without them it goes on and says so in the log. */
#ifndef KVI_CUDA_LIBS_H
#define KVI_CUDA_LIBS_H

#include "cuda_device.h"

/* cuda_blas.cu; flags: KVI_DEVICE_*. cuRAND is opened by the first call that wants it (cuda_rand.cu). */
void kvi_cuda_blas_open(kvi_device *dev, uint32_t flags);
void kvi_cuda_blas_close(kvi_device *dev);

#endif
