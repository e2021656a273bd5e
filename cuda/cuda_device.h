/* The device of the CUDA plug-in: one stream, its scratch, and how operators launch kernels. */
#ifndef KVI_CUDA_DEVICE_H
#define KVI_CUDA_DEVICE_H

#include <condition_variable>
#include <mutex>
#include <thread>

extern "C" {
#include "backend/backend.h"
}

#ifdef KVI_CUDA_EMULATED
#include "emulate.h"
#include "emulate_runtime.h"
#else
#include <cuda_runtime.h>
#endif

/* Room for what an operator needs between its kernels, the newest first. Those that were outgrown stay until the stream has been
 * waited for and no graph refers to them. */
struct kvi_cuda_scratch {
    char             *base;
    size_t            size;
    size_t            n_graphs; /* that were recorded with it */
    kvi_cuda_scratch *older;
};

struct kvi_cuda_blas; /* cuda_blas.cu: cuBLASLt, if it is there */

struct kvi_device {
    kvi_host_ops     host;
    int              ordinal;
    int              arch;      /* of the device: 10 * major + minor */
    int              n_sms;
    size_t           shared_max; /* bytes of shared memory that a block may have */
    cudaStream_t     stream;
    kvi_cuda_scratch *scratch;
    kvi_cuda_blas   *blas;      /* NULL = not there: our own kernels do all products */
    std::mutex       lock;      /* one operator at a time: its kernels stay together on the stream */

    bool                    recording; /* a graph, by `recorder`: other threads wait */
    bool                    uses_scratch;
    std::thread::id         recorder;
    std::condition_variable recorded;
    kvcsa_error             broken;    /* the first failure while it is recorded; OK = none */
};

/* Fill err as the library does (base/status.h); the plug-in does not link to it. What the calling thread records is given up. */
kvcsa_status kvi_cuda_fail(kvcsa_error *err, kvcsa_status status, int32_t detail, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* OK, ERR_NOMEM where the device has no memory, ERR_BACKEND with the code of CUDA as detail otherwise. */
kvcsa_status kvi_cuda_check(cudaError_t code, const char *what, kvcsa_error *err);
void         kvi_cuda_log(const kvi_device *dev, int32_t level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The calling thread's current device is `dev` while this lives; the host's choice comes back afterwards. Takes the lock, once
 * no other thread records a graph. */
class kvi_cuda_use {
public:
    explicit kvi_cuda_use(kvi_device *dev);
    ~kvi_cuda_use();
    kvi_cuda_use(const kvi_cuda_use &) = delete;
    kvi_cuda_use &operator=(const kvi_cuda_use &) = delete;

private:
    std::unique_lock<std::mutex> hold;
    int                          before;
};

/* `size` bytes of device memory that belong to the operator that runs, aligned to 256; one piece at a time. ERR_BACKEND where it
 * would have to grow while a graph is recorded: run the same once before. */
kvcsa_status kvi_cuda_scratch_get(kvi_device *dev, size_t size, void **out, kvcsa_error *err);

/* Enqueue a kernel. Blocks are one-dimensional; `shared` bytes are those of its struct. */
template <class... P, class... A>
kvcsa_status kvi_launch(kvi_device *dev, const char *name, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared,
                        kvcsa_error *err, const A &...args)
{
#ifdef KVI_CUDA_EMULATED
    (void)emulate_launch(dev->stream, name, grid, dim3(threads), shared, [=] { kernel(args...); });
#else
    if (shared > 48 * 1024) {
        const cudaError_t code =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
        if (code != cudaSuccess)
            return kvi_cuda_check(code, name, err);
    }
    kernel<<<grid, threads, shared, dev->stream>>>(args...);
#endif
    return kvi_cuda_check(cudaGetLastError(), name, err);
}

#define KVI_TRY(call)                                                                                                          \
    do {                                                                                                                       \
        const kvcsa_status kvi_try_status = (call);                                                                            \
        if (kvi_try_status != KVCSA_OK)                                                                                        \
            return kvi_try_status;                                                                                             \
    } while (0)

/* One block per `per` elements, for a grid's x. */
static inline unsigned kvi_blocks(size_t n, size_t per) { return static_cast<unsigned>((n + per - 1) / per); }

/* The operators; parameters as in backend/op_params.h, all pointers to device memory unless cuda_ops.h says otherwise. */
#include "cuda_ops.h"

#endif
