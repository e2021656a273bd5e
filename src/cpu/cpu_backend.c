/* The built-in backend: the table of the scalar reference operators. */
#include "cpu/cpu_ops.h"

/* Revision 1: sums in the order of base/vec.h, functions of base/fmath.h, no contraction. Neither
 * the instruction set nor the compiler is part of it. Any change of a bit of any operator needs a
 * new number. */
#define CPU_NUMERICS 1u

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
    dev->allocator = allocator;
    dev->threads = p->threads;
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

static const kvi_backend_ops cpu_table = {
    .abi = KVI_BACKEND_ABI,
    .struct_size = sizeof(kvi_backend_ops),
    .name = "cpu",
    .numerics = CPU_NUMERICS,
    .device_open = cpu_open,
    .device_close = cpu_close,
    .embed = kvi_ref_embed,
    .linear = kvi_ref_linear,
    .norm = kvi_ref_norm,
    .rope = kvi_ref_rope,
    .window_write = kvi_ref_window_write,
    .pool_pairs = kvi_ref_pool_pairs,
    .entry_write = kvi_ref_entry_write,
    .index_query = kvi_ref_index_query,
    .index_score = kvi_ref_index_score,
    .candidates = kvi_ref_candidates,
    .hide = kvi_ref_hide,
    .topk = kvi_ref_topk,
    .attend = kvi_ref_attend,
    .mix = kvi_ref_mix,
    .collapse = kvi_ref_collapse,
    .expand = kvi_ref_expand,
    .route = kvi_ref_route,
    .moe = kvi_ref_moe,
    .engram_gate = kvi_ref_engram_gate,
};

const kvi_backend_ops *kvi_cpu_backend(void)
{
    return &cpu_table;
}
