/* Libraries that the plug-in opens by itself at run time: without them it goes on and says so in the log. */
#ifndef KVI_CUDA_LIBS_H
#define KVI_CUDA_LIBS_H

#include "cuda_device.h"

void kvi_cuda_blas_open(kvi_device *dev); /* cuda_blas.cu */
void kvi_cuda_blas_close(kvi_device *dev);

#endif
