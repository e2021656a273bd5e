/* Device, stream, memory, copies and graphs. */
#include "cuda_device.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "cuda_backend.h"
#include "cuda_blas.h"
#include "cuda_libs.h"

struct kvi_graph {
    cudaGraphExec_t exec;
};

/* ---- errors and log ---- */

kvcsa_status kvi_cuda_fail(kvcsa_error *err, kvcsa_status status, int32_t detail, const char *format, ...)
{
    if (err) {
        va_list args;

        err->status = status;
        err->detail = detail;
        va_start(args, format);
        std::vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return status;
}

kvcsa_status kvi_cuda_check(cudaError_t code, const char *what, kvcsa_error *err)
{
    if (code == cudaSuccess)
        return KVCSA_OK;
    return kvi_cuda_fail(err, code == cudaErrorMemoryAllocation ? KVCSA_ERR_NOMEM : KVCSA_ERR_BACKEND, static_cast<int32_t>(code),
                         "%s: %s", what, cudaGetErrorString(code));
}

void kvi_cuda_log(const kvi_device *dev, int32_t level, const char *format, ...)
{
    char    text[512];
    va_list args;

    if (!dev->host.log)
        return;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dev->host.log(dev->host.user, level, text);
}

/* ---- which device the calling thread uses ---- */

kvi_cuda_use::kvi_cuda_use(kvi_device *dev) : hold(dev->lock), before(-1)
{
    int now = -1;

    if (cudaGetDevice(&now) == cudaSuccess && now == dev->ordinal)
        return;
    if (cudaSetDevice(dev->ordinal) == cudaSuccess)
        before = now;
}

kvi_cuda_use::~kvi_cuda_use()
{
    if (before >= 0)
        (void)cudaSetDevice(before);
}

/* ---- opening ---- */

static kvcsa_status device_start(kvi_device *dev, kvcsa_error *err)
{
    cudaDeviceProp prop;

    KVI_TRY(kvi_cuda_check(cudaGetDeviceProperties(&prop, dev->ordinal), "properties of the device", err));
    dev->arch = 10 * prop.major + prop.minor;
    dev->n_sms = prop.multiProcessorCount;
    dev->shared_max = prop.sharedMemPerBlockOptin;
    if (dev->arch < 80)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, dev->arch, "%.64s is of compute capability %d.%d, 8.0 is needed", prop.name,
                             prop.major, prop.minor);
    KVI_TRY(kvi_cuda_check(cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking), "stream", err));
    kvi_cuda_blas_open(dev);
    return KVCSA_OK;
}

kvcsa_status kvi_cuda_device_open(const kvi_device_params *p, kvi_device **out, kvcsa_error *err)
{
    kvi_device  *dev = new (std::nothrow) kvi_device();
    kvcsa_status st;

    *out = nullptr;
    if (!dev)
        return kvi_cuda_fail(err, KVCSA_ERR_NOMEM, 0, "device");
    if (p->host)
        dev->host = *p->host;
    dev->ordinal = static_cast<int>(p->ordinal);
    {
        kvi_cuda_use use(dev);
        st = device_start(dev, err);
    }
    if (st != KVCSA_OK) {
        kvi_cuda_device_close(dev);
        return st;
    }
    *out = dev;
    return KVCSA_OK;
}

static void scratch_free_old(kvi_cuda_scratch *s)
{
    for (int i = 0; i < s->n_old; i++)
        (void)cudaFree(s->old[i]);
    s->n_old = 0;
}

void kvi_cuda_device_close(kvi_device *dev)
{
    if (!dev)
        return;
    {
        kvi_cuda_use use(dev);
        if (dev->stream)
            (void)cudaStreamSynchronize(dev->stream);
        kvi_cuda_blas_close(dev);
        scratch_free_old(&dev->scratch);
        (void)cudaFree(dev->scratch.base);
        if (dev->stream)
            (void)cudaStreamDestroy(dev->stream);
    }
    delete dev;
}

void kvi_cuda_describe(kvi_device *dev, kvi_device_info *out)
{
    kvi_cuda_use   use(dev);
    cudaDeviceProp prop;
    size_t         left = 0, total = 0;

    *out = kvi_device_info();
    if (cudaGetDeviceProperties(&prop, dev->ordinal) == cudaSuccess)
        std::snprintf(out->name, sizeof out->name, "%.63s", prop.name);
    if (cudaMemGetInfo(&left, &total) == cudaSuccess) {
        out->memory = total;
        out->memory_free = left;
    }
    std::snprintf(out->kernels, sizeof out->kernels, "sm_%d", dev->arch);
    /* The matrix instructions of two generations add in different orders. */
    out->numerics = KVI_CUDA_NUMERICS + static_cast<uint64_t>(dev->arch);
    if (dev->blas && dev->blas->fast_dense)
        out->numerics += KVI_CUDA_FAST_NUMERICS;
}

/* ---- memory ---- */

kvcsa_status kvi_cuda_scratch_get(kvi_device *dev, size_t size, void **out, kvcsa_error *err)
{
    kvi_cuda_scratch *s = &dev->scratch;

    *out = nullptr;
    if (size > s->size) {
        void  *more = nullptr;
        /* by half more, so that growing is rare */
        size_t want = size > s->size + s->size / 2 ? size : s->size + s->size / 2;

        want = (want + 0xffff) & ~static_cast<size_t>(0xffff);
        if (dev->recording)
            return kvi_cuda_fail(err, KVCSA_ERR_BACKEND, 0, "%zu bytes of scratch while a graph is recorded", size);
        if (s->n_old == static_cast<int>(sizeof s->old / sizeof *s->old)) {
            KVI_TRY(kvi_cuda_check(cudaStreamSynchronize(dev->stream), "wait", err));
            scratch_free_old(s);
        }
        KVI_TRY(kvi_cuda_check(cudaMalloc(&more, want), "scratch", err));
        if (s->base)
            s->old[s->n_old++] = s->base;
        s->base = static_cast<char *>(more);
        s->size = want;
    }
    *out = s->base;
    return KVCSA_OK;
}

kvcsa_status kvi_cuda_mem_alloc(kvi_device *dev, size_t size, uint32_t kind, void **out, kvcsa_error *err)
{
    kvi_cuda_use use(dev);
    char         what[96];

    *out = nullptr;
    if (dev->recording)
        return kvi_cuda_fail(err, KVCSA_ERR_BACKEND, 0, "allocation while a graph is recorded");
    if (size == 0)
        size = 1;
    std::snprintf(what, sizeof what, "%zu bytes of %s memory, device %d of cuda", size, kind == KVI_MEMORY_PINNED ? "pinned" : "its own",
                  dev->ordinal);
    return kvi_cuda_check(kind == KVI_MEMORY_PINNED ? cudaMallocHost(out, size) : cudaMalloc(out, size), what, err);
}

void kvi_cuda_mem_free(kvi_device *dev, void *ptr, uint32_t kind)
{
    kvi_cuda_use use(dev);

    if (!ptr)
        return;
    (void)cudaStreamSynchronize(dev->stream);
    if (kind == KVI_MEMORY_PINNED)
        (void)cudaFreeHost(ptr);
    else
        (void)cudaFree(ptr);
}

/* From memory that is not pinned the runtime takes the bytes before it returns; while a graph is recorded it keeps the address. */
kvcsa_status kvi_cuda_mem_copy(kvi_device *dev, void *to, const void *from, size_t size, uint32_t way, kvcsa_error *err)
{
    static const cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
    kvi_cuda_use use(dev);

    if (way > KVI_COPY_WITHIN)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "no such way to copy: %u", way);
    if (size == 0)
        return KVCSA_OK;
    return kvi_cuda_check(cudaMemcpyAsync(to, from, size, kinds[way], dev->stream), "copy", err);
}

kvcsa_status kvi_cuda_mem_fill(kvi_device *dev, void *ptr, int byte, size_t size, kvcsa_error *err)
{
    kvi_cuda_use use(dev);

    if (size == 0)
        return KVCSA_OK;
    return kvi_cuda_check(cudaMemsetAsync(ptr, byte, size, dev->stream), "fill", err);
}

kvcsa_status kvi_cuda_sync(kvi_device *dev, kvcsa_error *err)
{
    kvi_cuda_use use(dev);

    KVI_TRY(kvi_cuda_check(cudaStreamSynchronize(dev->stream), "wait", err));
    scratch_free_old(&dev->scratch);
    return KVCSA_OK;
}

/* ---- graphs ---- */

kvcsa_status kvi_cuda_graph_begin(kvi_device *dev, kvcsa_error *err)
{
    kvi_cuda_use use(dev);

    if (dev->recording)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "a graph is being recorded already");
    KVI_TRY(kvi_cuda_check(cudaStreamBeginCapture(dev->stream, cudaStreamCaptureModeThreadLocal), "capture", err));
    dev->recording = true;
    return KVCSA_OK;
}

kvcsa_status kvi_cuda_graph_end(kvi_device *dev, kvi_graph **out, kvcsa_error *err)
{
    kvi_cuda_use use(dev);
    cudaGraph_t  recorded = nullptr;
    kvi_graph   *graph;
    kvcsa_status st;

    *out = nullptr;
    if (!dev->recording)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "no graph is being recorded");
    dev->recording = false;
    KVI_TRY(kvi_cuda_check(cudaStreamEndCapture(dev->stream, &recorded), "capture", err));
    graph = new (std::nothrow) kvi_graph();
    if (!graph)
        st = kvi_cuda_fail(err, KVCSA_ERR_NOMEM, 0, "graph");
    else
        st = kvi_cuda_check(cudaGraphInstantiate(&graph->exec, recorded, 0), "graph", err);
    (void)cudaGraphDestroy(recorded);
    if (st != KVCSA_OK) {
        delete graph;
        return st;
    }
    *out = graph;
    return KVCSA_OK;
}

kvcsa_status kvi_cuda_graph_run(kvi_device *dev, kvi_graph *graph, kvcsa_error *err)
{
    kvi_cuda_use use(dev);

    return kvi_cuda_check(cudaGraphLaunch(graph->exec, dev->stream), "graph", err);
}

void kvi_cuda_graph_free(kvi_device *dev, kvi_graph *graph)
{
    kvi_cuda_use use(dev);

    if (!graph)
        return;
    (void)cudaStreamSynchronize(dev->stream);
    (void)cudaGraphExecDestroy(graph->exec);
    delete graph;
}
