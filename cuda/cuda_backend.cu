/* The table of the plug-in and its one symbol. */
#include "cuda_backend.h"
#include "cuda_features.h"
#include "cuda_rand.h"

#include <cstdio>

static int32_t score(const kvi_host_ops *host, char *why, size_t why_size)
{
    int               n = 0;
    const cudaError_t code = cudaGetDeviceCount(&n);
    cudaDeviceProp    prop;

    (void)host;
    if (code != cudaSuccess || n == 0) {
        std::snprintf(why, why_size, "no CUDA device: %s", code != cudaSuccess ? cudaGetErrorString(code) : "none found");
        return 0;
    }
    if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess || prop.major < 8) {
        std::snprintf(why, why_size, "the CUDA device is older than compute capability 8.0");
        return 0;
    }
    std::snprintf(why, why_size, "%.64s, compute capability %d.%d", prop.name, prop.major, prop.minor);
    return 100 + 10 * prop.major + prop.minor;
}

#define KVI_CUDA_FEATURES(subject) kvi_cuda_features_##subject(out);
static void features(kvi_features *out)
{
    *out = kvi_features();
    KVI_CUDA_EACH_FEATURES(KVI_CUDA_FEATURES)
}

#define KVI_CUDA_SLOT(op) t.op = kvi_cuda_##op;

static kvi_backend_ops make_table()
{
    kvi_backend_ops t = kvi_backend_ops();

    t.abi = KVI_BACKEND_ABI;
    t.struct_size = sizeof t;
    t.name = "cuda";
    t.numerics = KVI_CUDA_NUMERICS;
    t.device_open = kvi_cuda_device_open;
    t.device_close = kvi_cuda_device_close;
    KVI_EACH_OPERATOR(KVI_CUDA_SLOT)
    t.features = features;
    t.score = score;
    t.describe = kvi_cuda_describe;
    t.mem_alloc = kvi_cuda_mem_alloc;
    t.mem_free = kvi_cuda_mem_free;
    t.mem_copy = kvi_cuda_mem_copy;
    t.mem_fill = kvi_cuda_mem_fill;
    t.sync = kvi_cuda_sync;
    t.graph_begin = kvi_cuda_graph_begin;
    t.graph_end = kvi_cuda_graph_end;
    t.graph_run = kvi_cuda_graph_run;
    t.graph_free = kvi_cuda_graph_free;
    t.mem_random = kvi_cuda_mem_random;
    return t;
}

extern "C" __attribute__((visibility("default"))) const kvi_backend_ops *kvcsa_backend_query(uint32_t abi)
{
    static const kvi_backend_ops table = make_table();

    return abi == KVI_BACKEND_ABI ? &table : nullptr;
}
