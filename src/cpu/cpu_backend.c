/* The built-in backend: the table of operators, and which kernels a device uses.
 *
 * There are two numerics. A change of a bit of any operator needs a new number.
 *   1  portable C: sums in the order of base/vec.h, functions of base/fmath.h, no contraction
 *   2  every instruction set with fused multiply-add: cpu/v16.h
 * Within one, neither the instruction set nor the compiler can be seen in the results. */
#include "base/fpenv.h"
#include "cpu/cpu_ops.h"
#include "format/row.h"

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

/* The kernels take any size; what is left are groups of channels with one scale. */
static void cpu_features(kvi_features *out)
{
    const kvi_sizes any = {1, UINT32_MAX, 1};
    const kvi_sizes groups = {32, UINT32_MAX, 32};

    *out = (kvi_features){
        .weight_kinds = 1u << KVI_W_F32 | 1u << KVI_W_BF16 | 1u << KVI_W_FP8 |
                        1u << KVI_W_FP8_ROW | 1u << KVI_W_FP4,
        .expert_kinds = 1u << KVI_W_F32 | 1u << KVI_W_BF16 | 1u << KVI_W_FP8 | 1u << KVI_W_FP4,
        .reference = 1,
        .heads = any,
        .head_width = groups,
        .window_width = groups,
        .index_heads = any,
        .index_width = groups,
        .select_entries = any,
        .candidate_blocks = any,
        .candidate_block_entries = any,
        .copies = {1, KVI_MAX_COPIES, 1},
        .hidden = groups,
        .inner = groups,
        .experts = any,
        .experts_per_token = any,
        .paged_width = groups,
    };
    for (uint32_t f = 0; f < 64; f++)
        if (kvi_row_can_run(f))
            out->entry_formats |= UINT64_C(1) << f;
    out->paged_formats = out->entry_formats;
}

/* Each operator in the floating-point mode that it needs; workers: base/threads.c. */
#define GUARDED(op)                                                                                \
    static kvcsa_status op##_guarded(kvi_device *dev, const kvi_##op##_params *p,                  \
                                     kvcsa_error *err)                                             \
    {                                                                                              \
        const uint64_t     mode = kvi_fp_enter();                                                  \
        const kvcsa_status st = kvi_cpu_##op(dev, p, err);                                         \
                                                                                                   \
        kvi_fp_leave(mode);                                                                        \
        return st;                                                                                 \
    }
KVI_EACH_OPERATOR(GUARDED)

#define SLOT(op) .op = op##_guarded,
#define CPU_TABLE(revision)                                                                        \
    {                                                                                              \
        .abi = KVI_BACKEND_ABI,                                                                    \
        .struct_size = sizeof(kvi_backend_ops),                                                    \
        .name = "cpu",                                                                             \
        .numerics = revision,                                                                      \
        .device_open = cpu_open,                                                                   \
        .device_close = cpu_close,                                                                 \
        KVI_EACH_OPERATOR(SLOT)                                                                    \
        .features = cpu_features,                                                                  \
    }
static const kvi_backend_ops separate_table = CPU_TABLE(NUMERICS_SEPARATE);
static const kvi_backend_ops fused_table = CPU_TABLE(NUMERICS_FUSED);

const kvi_backend_ops *kvi_cpu_backend(uint32_t cpu_flags)
{
    return cpu_flags ? &fused_table : &separate_table;
}
