/* What the table of the plug-in is made of, beside the operators (cuda_ops.h). */
#ifndef KVI_CUDA_BACKEND_H
#define KVI_CUDA_BACKEND_H

#include "cuda_device.h"

/* Numerics of the plug-in: this and the compute capability. A change of a bit of any operator needs a new number. */
#define KVI_CUDA_NUMERICS 1000u
#define KVI_CUDA_FAST_NUMERICS (1u << 20) /* added where cuBLASLt makes products: not batch-invariant */

kvcsa_status kvi_cuda_device_open(const kvi_device_params *p, kvi_device **out, kvcsa_error *err);
void         kvi_cuda_device_close(kvi_device *dev);
void         kvi_cuda_describe(kvi_device *dev, kvi_device_info *out);
kvcsa_status kvi_cuda_mem_alloc(kvi_device *dev, size_t size, uint32_t kind, void **out, kvcsa_error *err);
void         kvi_cuda_mem_free(kvi_device *dev, void *ptr, uint32_t kind);
kvcsa_status kvi_cuda_mem_copy(kvi_device *dev, void *to, const void *from, size_t size, uint32_t way, kvcsa_error *err);
kvcsa_status kvi_cuda_mem_fill(kvi_device *dev, void *ptr, int byte, size_t size, kvcsa_error *err);
kvcsa_status kvi_cuda_sync(kvi_device *dev, kvcsa_error *err);
kvcsa_status kvi_cuda_graph_begin(kvi_device *dev, kvcsa_error *err);
kvcsa_status kvi_cuda_graph_end(kvi_device *dev, kvi_graph **out, kvcsa_error *err);
kvcsa_status kvi_cuda_graph_run(kvi_device *dev, kvi_graph *graph, kvcsa_error *err);
void         kvi_cuda_graph_free(kvi_device *dev, kvi_graph *graph);

#endif
