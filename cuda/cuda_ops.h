/* Every operator of the plug-in, and what differs from backend/op_params.h.
 *
 * Pointers are to device memory, with the exception of the parameter structs themselves and of what hangs on them by value:
 * kvi_matrix and kvi_expert structs (routed: an array of the host) and kvi_entries.owner are read by the host at the call.
 * kvi_copy_params.jobs is an array in device memory.
 * kvi_entries.index_parts / main_parts and pages are arrays in device memory of pointers to device memory.
 * kvi_slices.slices and rows are arrays in device memory, and so are the tables that a kvi_slice points to. Weight matrices,
 * parts of cache blocks, pages and arrays of floats start at 16-byte boundaries; index_score: scores_stride bounds every row. Flags of
 * the reference mode are refused with ERR_UNSUPPORTED. */
#ifndef KVI_CUDA_OPS_H
#define KVI_CUDA_OPS_H

#define KVI_CUDA_DECLARE(op) kvcsa_status kvi_cuda_##op(kvi_device *dev, const kvi_##op##_params *p, kvcsa_error *err);
KVI_EACH_OPERATOR(KVI_CUDA_DECLARE)
#undef KVI_CUDA_DECLARE

#endif
