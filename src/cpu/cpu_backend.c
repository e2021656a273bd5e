/* The built-in backend: the table of operators, and which kernels a device uses.
 *
 * There are two numerics. A change of a bit of any operator needs a new number.
 *   1  portable C: sums in the order of base/vec.h, functions of base/fmath.h, no contraction
 *   2  every instruction set with fused multiply-add: cpu/v16.h
 * Within one, neither the instruction set nor the compiler can be seen in the results. */
#include "cpu/cpu_ops.h"

enum { NUMERICS_SEPARATE = 1, NUMERICS_FUSED = 2 };

void kvi_cpu_device_init(kvi_device *dev, const kvcsa_allocator *allocator, kvi_threads *threads,
                         uint32_t flags)
{
    dev->allocator = *allocator;
    dev->threads = threads;
    dev->flags = flags;
    kvi_linear_init(&dev->linear, flags);
    kvi_attend_init(&dev->attend, flags);
    kvi_index_init(&dev->index, flags);
    kvi_select_init(&dev->select, flags);
    kvi_cache_init(&dev->cache, flags);
    kvi_dense_init(&dev->dense, flags);
    kvi_paged_init(&dev->paged, flags);
}

static kvcsa_status cpu_open(const kvi_device_params *p, kvi_device **out, kvcsa_error *err)
{
    kvcsa_status    st = KVCSA_OK;
    kvcsa_allocator allocator;
    kvi_device     *dev = NULL;

    *out = NULL;
    if ((st = kvi_allocator_import(p->allocator, &allocator, err)) != KVCSA_OK)
        return st;
    if (!(dev = kvi_zalloc(&allocator, sizeof *dev)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "device of %zu bytes", sizeof *dev);
    kvi_cpu_device_init(dev, &allocator, p->threads, p->cpu_flags);
    *out = dev;
    return KVCSA_OK;
}

static void cpu_close(kvi_device *dev)
{
    if (dev) {
        const kvcsa_allocator allocator = dev->allocator;

        kvi_free(&allocator, dev, sizeof *dev);
    }
}

#define CPU_TABLE(revision)                                                                        \
    {                                                                                              \
        .abi = KVI_BACKEND_ABI,                                                                    \
        .struct_size = sizeof(kvi_backend_ops),                                                    \
        .name = "cpu",                                                                             \
        .numerics = revision,                                                                      \
        .device_open = cpu_open,                                                                   \
        .device_close = cpu_close,                                                                 \
        .embed = kvi_cpu_embed,                                                                    \
        .linear = kvi_cpu_linear,                                                                  \
        .norm = kvi_cpu_norm,                                                                      \
        .rope = kvi_cpu_rope,                                                                      \
        .window_write = kvi_cpu_window_write,                                                      \
        .pool_pairs = kvi_cpu_pool_pairs,                                                          \
        .entry_write = kvi_cpu_entry_write,                                                        \
        .index_query = kvi_cpu_index_query,                                                        \
        .index_score = kvi_cpu_index_score,                                                        \
        .candidates = kvi_cpu_candidates,                                                          \
        .hide = kvi_cpu_hide,                                                                      \
        .topk = kvi_cpu_topk,                                                                      \
        .attend = kvi_cpu_attend,                                                                  \
        .paged_attend = kvi_cpu_paged_attend,                                                      \
        .mix = kvi_cpu_mix,                                                                        \
        .collapse = kvi_cpu_collapse,                                                              \
        .expand = kvi_cpu_expand,                                                                  \
        .route = kvi_cpu_route,                                                                    \
        .moe = kvi_cpu_moe,                                                                        \
        .engram_gate = kvi_cpu_engram_gate,                                                        \
    }
static const kvi_backend_ops separate_table = CPU_TABLE(NUMERICS_SEPARATE);
static const kvi_backend_ops fused_table = CPU_TABLE(NUMERICS_FUSED);

const kvi_backend_ops *kvi_cpu_backend(uint32_t cpu_flags)
{
    return cpu_flags ? &fused_table : &separate_table;
}
