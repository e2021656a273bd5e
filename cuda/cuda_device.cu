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
    cudaGraphExec_t   exec;
    kvi_cuda_scratch *scratch; /* that its operators use; NULL = none */
};

static thread_local kvi_device *in_use; /* of the calling thread */

/* ---- errors and log ---- */

kvcsa_status kvi_cuda_fail(kvcsa_error *err, kvcsa_status status, int32_t detail, const char *format, ...)
{
    kvcsa_error what = kvcsa_error();
    va_list     args;

    what.status = status;
    what.detail = detail;
    va_start(args, format);
    std::vsnprintf(what.text, sizeof what.text, format, args);
    va_end(args);
    if (in_use && in_use->recording && in_use->broken.status == KVCSA_OK)
        in_use->broken = what;
    if (err)
        *err = what;
    return status;
}

kvcsa_status kvi_cuda_check(cudaError_t code, const char *what, kvcsa_error *err)
{
    if (code == cudaSuccess)
        return KVCSA_OK;
    (void)cudaGetLastError(); /* it is told here, and not by the next launch */
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

    dev->recorded.wait(hold, [dev] { return !dev->recording || dev->recorder == std::this_thread::get_id(); });
    in_use = dev;
    if (cudaGetDevice(&now) == cudaSuccess && now == dev->ordinal)
        return;
    if (cudaSetDevice(dev->ordinal) == cudaSuccess)
        before = now;
}

kvi_cuda_use::~kvi_cuda_use()
{
    in_use = nullptr;
    if (before >= 0)
        (void)cudaSetDevice(before);
}

/* ---- opening ---- */

static kvcsa_status device_start(kvi_device *dev, uint32_t flags, kvcsa_error *err)
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
    kvi_cuda_blas_open(dev, flags);
    (void)cudaGetLastError(); /* it goes without, where something failed */
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
        st = device_start(dev, p->flags, err);
    }
    if (st != KVCSA_OK) {
        kvi_cuda_device_close(dev);
        return st;
    }
    *out = dev;
    return KVCSA_OK;
}

/* Frees what was outgrown and no graph refers to, or everything. The stream has been waited for. */
static void scratch_trim(kvi_device *dev, bool all)
{
    kvi_cuda_scratch **at = dev->scratch && !all ? &dev->scratch->older : &dev->scratch;

    while (kvi_cuda_scratch *s = *at) {
        if (s->n_graphs && !all) {
            at = &s->older;
            continue;
        }
        *at = s->older;
        (void)cudaFree(s->base);
        delete s;
    }
}

/* Give up what is recorded on the stream. */
static void capture_drop(kvi_device *dev)
{
    cudaGraph_t lost = nullptr;

    if (cudaStreamEndCapture(dev->stream, &lost) == cudaSuccess)
        (void)cudaGraphDestroy(lost);
    (void)cudaGetLastError();
}

void kvi_cuda_device_close(kvi_device *dev)
{
    if (!dev)
        return;
    {
        kvi_cuda_use use(dev);
        if (dev->recording)
            capture_drop(dev);
        if (dev->stream)
            (void)cudaStreamSynchronize(dev->stream);
        kvi_cuda_blas_close(dev);
        scratch_trim(dev, true);
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

/* ERR_BACKEND where a graph is recorded. */
static kvcsa_status not_recorded(const kvi_device *dev, const char *what, kvcsa_error *err)
{
    if (!dev->recording)
        return KVCSA_OK;
    return kvi_cuda_fail(err, KVCSA_ERR_BACKEND, 0, "%s while a graph is recorded", what);
}

kvcsa_status kvi_cuda_scratch_get(kvi_device *dev, size_t size, void **out, kvcsa_error *err)
{
    const size_t have = dev->scratch ? dev->scratch->size : 0;

    *out = nullptr;
    if (size > have) {
        kvi_cuda_scratch *more;
        void             *base = nullptr;
        kvcsa_status      st;

        KVI_TRY(not_recorded(dev, "more scratch", err));
        more = new (std::nothrow) kvi_cuda_scratch();
        if (!more)
            return kvi_cuda_fail(err, KVCSA_ERR_NOMEM, 0, "scratch");
        more->size = size > have + have / 2 ? size : have + have / 2; /* by half more, so that growing is rare */
        more->size = (more->size + 0xffff) & ~static_cast<size_t>(0xffff);
        st = kvi_cuda_check(cudaMalloc(&base, more->size), "scratch", err);
        if (st != KVCSA_OK) {
            delete more;
            return st;
        }
        more->base = static_cast<char *>(base);
        more->older = dev->scratch;
        dev->scratch = more;
    }
    if (dev->scratch)
        *out = dev->scratch->base;
    dev->uses_scratch = true;
    return KVCSA_OK;
}

kvcsa_status kvi_cuda_mem_alloc(kvi_device *dev, size_t size, uint32_t kind, void **out, kvcsa_error *err)
{
    kvi_cuda_use use(dev);
    char         what[96];

    *out = nullptr;
    KVI_TRY(not_recorded(dev, "allocation", err));
    if (size == 0)
        size = 1;
    std::snprintf(what, sizeof what, "%zu bytes of %s memory, device %d of cuda", size, kind == KVI_MEMORY_PINNED ? "pinned" : "its own",
                  dev->ordinal);
    return kvi_cuda_check(kind == KVI_MEMORY_PINNED ? cudaMallocHost(out, size) : cudaMalloc(out, size), what, err);
}

/* Waits, so that something can be freed. A graph that is recorded meanwhile is lost: what the caller still sends until its end
 * goes into another, which nobody gets. */
class waited {
public:
    waited(kvi_device *device, const char *what) : dev(device)
    {
        if (not_recorded(dev, what, nullptr) != KVCSA_OK)
            capture_drop(dev);
        (void)cudaStreamSynchronize(dev->stream);
    }
    ~waited()
    {
        if (dev->recording)
            (void)cudaStreamBeginCapture(dev->stream, cudaStreamCaptureModeThreadLocal);
    }
    waited(const waited &) = delete;
    waited &operator=(const waited &) = delete;

private:
    kvi_device *dev;
};

void kvi_cuda_mem_free(kvi_device *dev, void *ptr, uint32_t kind)
{
    if (!ptr)
        return;
    kvi_cuda_use use(dev);
    const waited before(dev, "memory is freed");
    if (kind == KVI_MEMORY_PINNED)
        (void)cudaFreeHost(ptr);
    else
        (void)cudaFree(ptr);
}

/* From memory that is not pinned the runtime takes the bytes before it returns. */
kvcsa_status kvi_cuda_mem_copy(kvi_device *dev, void *to, const void *from, size_t size, uint32_t way, kvcsa_error *err)
{
    static const cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
    kvi_cuda_use use(dev);

    if (way > KVI_COPY_WITHIN)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "no such way to copy: %u", way);
    if (way != KVI_COPY_WITHIN)
        KVI_TRY(not_recorded(dev, "a copy from or to the host", err));
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

    KVI_TRY(not_recorded(dev, "a wait", err));
    KVI_TRY(kvi_cuda_check(cudaStreamSynchronize(dev->stream), "wait", err));
    scratch_trim(dev, false);
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
    dev->recorder = std::this_thread::get_id();
    dev->uses_scratch = false;
    dev->broken = kvcsa_error();
    return KVCSA_OK;
}

static kvcsa_status make_graph(kvi_device *dev, cudaGraph_t recorded, kvi_graph **out, kvcsa_error *err)
{
    kvi_graph   *graph = new (std::nothrow) kvi_graph();
    kvcsa_status st;

    if (!graph)
        return kvi_cuda_fail(err, KVCSA_ERR_NOMEM, 0, "graph");
    st = kvi_cuda_check(cudaGraphInstantiate(&graph->exec, recorded, 0), "graph", err);
    if (st != KVCSA_OK) {
        delete graph;
        return st;
    }
    if (dev->uses_scratch && dev->scratch) {
        graph->scratch = dev->scratch;
        graph->scratch->n_graphs++;
    }
    *out = graph;
    return KVCSA_OK;
}

kvcsa_status kvi_cuda_graph_end(kvi_device *dev, kvi_graph **out, kvcsa_error *err)
{
    kvi_cuda_use use(dev);
    cudaGraph_t  recorded = nullptr;
    kvcsa_status st;

    *out = nullptr;
    if (!dev->recording)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "no graph is being recorded");
    if (dev->broken.status != KVCSA_OK)
        capture_drop(dev);
    else
        (void)kvi_cuda_check(cudaStreamEndCapture(dev->stream, &recorded), "capture", nullptr);
    dev->recording = false;
    dev->recorded.notify_all();
    if (dev->broken.status != KVCSA_OK)
        return kvi_cuda_fail(err, dev->broken.status, dev->broken.detail, "no graph: %.200s", dev->broken.text);
    st = make_graph(dev, recorded, out, err);
    (void)cudaGraphDestroy(recorded);
    return st;
}

kvcsa_status kvi_cuda_graph_run(kvi_device *dev, kvi_graph *graph, kvcsa_error *err)
{
    kvi_cuda_use use(dev);

    KVI_TRY(not_recorded(dev, "a graph is run", err));
    return kvi_cuda_check(cudaGraphLaunch(graph->exec, dev->stream), "graph", err);
}

void kvi_cuda_graph_free(kvi_device *dev, kvi_graph *graph)
{
    if (!graph)
        return;
    kvi_cuda_use use(dev);
    const waited before(dev, "a graph is freed");
    (void)cudaGraphExecDestroy(graph->exec);
    if (graph->scratch)
        graph->scratch->n_graphs--;
    scratch_trim(dev, false);
    delete graph;
}
