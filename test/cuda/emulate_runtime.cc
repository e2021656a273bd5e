#include "emulate_runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

struct emulate_graph {
    std::vector<std::function<cudaError_t()>> steps;
    void                                     *room; /* that it takes on the device */
};

struct emulate_stream {
    std::deque<std::function<cudaError_t()>>  waiting;  /* for somebody to wait for them */
    std::vector<std::function<cudaError_t()>> recorded; /* while it is captured */
    bool                                      captured = false, spoilt = false;
};

namespace {

std::mutex              lock;
struct piece {
    size_t size;
    bool   pinned;
};
std::map<const void *, piece> pieces; /* device and pinned memory */
size_t                  outstanding, limit = 4ull << 30;
long                    fail_at = -1;
int                     arch = 80;
thread_local int        current;
thread_local cudaError_t last;
thread_local std::vector<cudaStream_t> captures; /* that the thread has begun */

/* What a call returns stays for cudaGetLastError if it is an error. */
cudaError_t told(cudaError_t code)
{
    if (code != cudaSuccess)
        last = code;
    return code;
}

/* A call that a capturing thread must not make. */
bool refused()
{
    for (cudaStream_t s : captures)
        s->spoilt = true;
    return !captures.empty();
}

cudaError_t enqueue(cudaStream_t s, std::function<cudaError_t()> step)
{
    if (s->spoilt)
        return told(cudaErrorStreamCaptureInvalidated);
    if (s->captured)
        s->recorded.push_back(std::move(step));
    else
        s->waiting.push_back(std::move(step));
    return cudaSuccess;
}

bool is_pinned(const void *p)
{
    std::lock_guard<std::mutex> hold(lock);
    auto                        found = pieces.upper_bound(p);

    if (found == pieces.begin())
        return false;
    --found;
    return found->second.pinned &&
           static_cast<const char *>(p) < static_cast<const char *>(found->first) + found->second.size;
}

cudaError_t allocate(void **out, size_t size, bool pinned)
{
    std::lock_guard<std::mutex> hold(lock);

    *out = nullptr;
    if ((fail_at >= 0 && fail_at-- == 0) || size > limit - outstanding)
        return told(cudaErrorMemoryAllocation);
    /* aligned as a device does it, and no byte longer than asked for, so that AddressSanitizer sees the end */
    if (posix_memalign(out, 256, size ? size : 1))
        return told(cudaErrorMemoryAllocation);
    std::memset(*out, 0xff, size);
    pieces[*out] = {size, pinned};
    outstanding += size;
    return cudaSuccess;
}

cudaError_t release(void *p)
{
    std::lock_guard<std::mutex> hold(lock);

    if (!p)
        return cudaSuccess;
    const auto found = pieces.find(p);
    if (found == pieces.end())
        return told(cudaErrorInvalidValue);
    outstanding -= found->second.size;
    pieces.erase(found);
    std::free(p);
    return cudaSuccess;
}

} // namespace

const char *cudaGetErrorString(cudaError_t code)
{
    switch (code) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no device";
    case cudaErrorLaunchFailure: return kvi_emu_fault();
    case cudaErrorStreamCaptureUnsupported: return "not while a stream is captured";
    case cudaErrorStreamCaptureInvalidated: return "the capture was spoilt";
    case cudaErrorStreamCaptureWrongThread: return "the capture is another thread's";
    default: return "emulated error";
    }
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t code = last;

    last = cudaSuccess;
    return code;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = arch ? 1 : 0;
    return told(arch ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *ordinal)
{
    *ordinal = current;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal)
{
    current = ordinal;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int ordinal)
{
    if (ordinal != 0)
        return told(cudaErrorInvalidValue);
    *out = cudaDeviceProp();
    std::strcpy(out->name, "emulated");
    out->totalGlobalMem = limit;
    out->sharedMemPerBlockOptin = arch >= 120 || arch == 86 || arch == 89 ? 99 * 1024 : arch >= 90 ? 227 * 1024 : 163 * 1024;
    out->major = arch / 10;
    out->minor = arch % 10;
    out->multiProcessorCount = 4;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    std::lock_guard<std::mutex> hold(lock);

    *free_bytes = limit - outstanding;
    *total = limit;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t size)
{
    return refused() ? told(cudaErrorStreamCaptureUnsupported) : allocate(out, size, false);
}
cudaError_t cudaMallocHost(void **out, size_t size)
{
    return refused() ? told(cudaErrorStreamCaptureUnsupported) : allocate(out, size, true);
}
cudaError_t cudaFree(void *p) { return p && refused() ? told(cudaErrorStreamCaptureUnsupported) : release(p); }
cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }

/* What is copied in is taken at once, but for pinned memory and what a graph will copy. What is copied out is garbage until somebody
 * has waited. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind way, cudaStream_t s)
{
    if (way == cudaMemcpyHostToDevice && !s->captured && !is_pinned(from)) {
        const char *bytes = static_cast<const char *>(from);
        const auto  taken = std::make_shared<std::vector<char>>(bytes, bytes + size);

        return enqueue(s, [=] {
            std::memcpy(to, taken->data(), size);
            return static_cast<cudaError_t>(cudaSuccess);
        });
    }
    if (way == cudaMemcpyDeviceToHost && !s->captured)
        std::memset(to, 0xa5, size);
    return enqueue(s, [=] {
        std::memmove(to, from, size);
        return static_cast<cudaError_t>(cudaSuccess);
    });
}

cudaError_t cudaMemsetAsync(void *p, int byte, size_t size, cudaStream_t s)
{
    return enqueue(s, [=] {
        std::memset(p, byte, size);
        return static_cast<cudaError_t>(cudaSuccess);
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned)
{
    *out = new emulate_stream();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    const cudaError_t code = cudaStreamSynchronize(s);

    delete s;
    return code;
}

/* The first error ends it. */
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    cudaError_t code = cudaSuccess;

    if (s->captured) {
        s->spoilt = true;
        return told(cudaErrorStreamCaptureUnsupported);
    }
    while (!s->waiting.empty() && code == cudaSuccess) {
        code = s->waiting.front()();
        s->waiting.pop_front();
    }
    s->waiting.clear();
    return told(code);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    if (s->captured)
        return told(cudaErrorStreamCaptureUnsupported);
    s->captured = true;
    captures.push_back(s);
    return cudaSuccess;
}

static cudaError_t new_graph(const std::vector<std::function<cudaError_t()>> &steps, emulate_graph **out)
{
    void             *room = nullptr;
    const cudaError_t code = allocate(&room, 64 * (1 + steps.size()), false);

    *out = code == cudaSuccess ? new emulate_graph{steps, room} : nullptr;
    return code;
}

static cudaError_t drop_graph(emulate_graph *graph)
{
    if (!graph)
        return told(cudaErrorInvalidValue);
    (void)release(graph->room);
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    const auto found = std::find(captures.begin(), captures.end(), s);
    const bool spoilt = s->spoilt;
    std::vector<std::function<cudaError_t()>> steps;

    *out = nullptr;
    if (!s->captured)
        return told(cudaErrorInvalidValue);
    if (found == captures.end()) {
        s->spoilt = true;
        return told(cudaErrorStreamCaptureWrongThread);
    }
    captures.erase(found);
    s->captured = s->spoilt = false;
    steps.swap(s->recorded);
    return spoilt ? told(cudaErrorStreamCaptureInvalidated) : new_graph(steps, out);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    return new_graph(graph->steps, out);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s)
{
    if (s->captured) {
        s->spoilt = true;
        return told(cudaErrorStreamCaptureUnsupported);
    }
    s->waiting.insert(s->waiting.end(), graph->steps.begin(), graph->steps.end());
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return drop_graph(graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return drop_graph(graph); }

/* The most shared memory that a block of each kernel has had, for test/check_plugin.sh: appended to the file that KVI_EMU_SHARED
 * names when the process ends. */
struct shared_table {
    std::map<std::string, size_t> most;
    std::mutex                    lock;

    void note(const char *name, size_t bytes)
    {
        std::lock_guard<std::mutex> hold(lock);
        size_t                     &m = most[name];

        m = bytes > m ? bytes : m;
    }
    ~shared_table()
    {
        const char *path = std::getenv("KVI_EMU_SHARED");
        std::FILE  *f = path ? std::fopen(path, "a") : nullptr;

        for (const auto &m : most)
            if (f)
                std::fprintf(f, "%s\t%zu\n", m.first.c_str(), m.second);
        if (f)
            std::fclose(f);
    }
};
static shared_table shared_of;

cudaError_t emulate_launch(cudaStream_t s, const char *name, dim3 grid, dim3 block, size_t shared,
                           const std::function<void()> &body)
{
    shared_of.note(name, shared);
    return enqueue(s, [=]() -> cudaError_t {
        return kvi_emu::launch(name, grid, block, shared, body) ? cudaSuccess : cudaErrorLaunchFailure;
    });
}

extern "C" void kvi_emu_fail_alloc(long nth) { fail_at = nth; }

extern "C" void kvi_emu_device_memory(size_t n) { limit = n; }

extern "C" size_t kvi_emu_outstanding(void)
{
    std::lock_guard<std::mutex> hold(lock);

    return outstanding;
}

extern "C" void kvi_emu_arch(int wanted) { arch = wanted; }
