/* Instructions of the index kernels that device.cuh does not have. */
#ifndef KVI_DEVICE_INDEX_CUH
#define KVI_DEVICE_INDEX_CUH

#include "device.cuh"

#ifdef KVI_CUDA_EMULATED
#define KVI_ROLLED
#else
#define KVI_ROLLED _Pragma("unroll 1") /* of a loop: code that is rarely run stays short */
#endif

/* As kvi_byte_perm, but where the highest bit of a nibble of `pick` is set the byte is the sign of the one it names, eight times.
 * The upper half of `pick` is not used. */
KVI_DEV uint32_t kvi_byte_perm_sign(uint32_t x, uint32_t y, uint32_t pick)
{
#ifdef KVI_CUDA_EMULATED
    const uint64_t all = (static_cast<uint64_t>(y) << 32) | x;
    uint32_t       r = 0;
    for (unsigned i = 0; i < 4; i++) {
        const uint32_t byte = static_cast<uint32_t>(all >> (8 * (pick >> (4 * i) & 7u)) & 0xffu);
        r |= ((pick >> (4 * i) & 8u) ? ((byte & 0x80u) ? 0xffu : 0u) : byte) << (8 * i);
    }
    return r;
#else
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(pick));
    return r;
#endif
}

/* kvi_copy_16 for 8 bytes at 8-byte boundaries. */
KVI_DEV void kvi_copy_8(void *shared, const void *global)
{
#ifdef KVI_CUDA_EMULATED
    if (reinterpret_cast<uintptr_t>(shared) % 8 || reinterpret_cast<uintptr_t>(global) % 8)
        kvi_emu::fault({"kvi_copy_8", 0}, "8 bytes are not aligned");
    kvi_emu::copy_later(shared, global, 8, 0);
#else
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(global) : "memory");
#endif
}

/* d = a b, and c in every element. */
KVI_DEV void kvi_mma_s8_from(int (&d)[4], int c, const uint32_t (&a)[4], const uint32_t (&b)[2] KVI_SITE_MORE)
{
#ifdef KVI_CUDA_EMULATED
    for (unsigned i = 0; i < 4; i++)
        d[i] = c;
    kvi_mma_s8(d, a, b, file, line);
#else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c));
#endif
}

#endif
