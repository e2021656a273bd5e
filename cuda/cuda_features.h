/* What the plug-in has kernels for: each file of operators says what its own checks let through. */
#ifndef KVI_CUDA_FEATURES_H
#define KVI_CUDA_FEATURES_H

#include "cuda_device.h"

/* Sets the fields that it knows about. */
#define KVI_CUDA_EACH_FEATURES(X) X(linear) X(attend) X(paged) X(index) X(topk) X(candidates) X(mix) X(route) X(moe)
#define KVI_CUDA_DECLARE_FEATURES(subject) void kvi_cuda_features_##subject(kvi_features *f);
KVI_CUDA_EACH_FEATURES(KVI_CUDA_DECLARE_FEATURES)
#undef KVI_CUDA_DECLARE_FEATURES

#endif
