/* The part of the CUDA runtime that cuda/ uses, on the host: memory is malloc's. A stream runs what it is given when
 * somebody waits for it and not before, so that a missing wait is seen, or records it while it is captured, whichever thread
 * gives it. A capture is its thread's (the thread-local mode of CUDA): what that thread allocates, frees or waits for meanwhile is
 * refused and spoils it; other threads may allocate and free. Graphs are device memory too, so that one that is never freed is outstanding.
 * Calls can be made to fail (kvi_emu_fail_alloc). */
#ifndef KVI_EMULATE_RUNTIME_H
#define KVI_EMULATE_RUNTIME_H

#include <functional>

#include "emulate.h"

typedef int cudaError_t;
enum : int {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNoDevice = 100,
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureWrongThread = 908
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum { cudaStreamNonBlocking = 1 };

struct cudaDeviceProp {
    char   name[256];
    size_t totalGlobalMem;
    size_t sharedMemPerBlockOptin;
    int    major, minor, multiProcessorCount;
};

typedef struct emulate_stream *cudaStream_t;
typedef struct emulate_graph  *cudaGraph_t;
typedef struct emulate_graph  *cudaGraphExec_t;

const char *cudaGetErrorString(cudaError_t code);
cudaError_t cudaGetLastError(void);
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDevice(int *ordinal);
cudaError_t cudaSetDevice(int ordinal);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int ordinal);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaMalloc(void **out, size_t size);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **out, size_t size);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind way, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *p, int byte, size_t size, cudaStream_t s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);

cudaError_t emulate_launch(cudaStream_t s, const char *name, dim3 grid, dim3 block, size_t shared,
                           const std::function<void()> &body);

#pragma GCC visibility push(default)
extern "C" {
void   kvi_emu_fail_alloc(long nth);     /* allocation number nth from now on fails (0 = the next), -1 = none */
void   kvi_emu_device_memory(size_t n);  /* bytes that the device has; 4 GiB at first */
size_t kvi_emu_outstanding(void);        /* bytes of device and pinned memory that are allocated */
void   kvi_emu_arch(int arch);           /* that the device says it has: 80 at first */
}
#pragma GCC visibility pop

#endif
