/* Memory barriers in shared memory and bulk copies that tell them (sm_90 and later). A barrier counts arrivals and bytes; its
 * phase ends when as many threads as kvi_mbar_init said have arrived and all bytes that they expect have come. Whoever waits
 * names the parity of the phase: 0 is the first; 1 of a new barrier is the phase before, which has ended. */
#ifndef KVI_DEVICE_BULK_CUH
#define KVI_DEVICE_BULK_CUH

#include "device.cuh"

#ifndef KVI_CUDA_EMULATED
KVI_DEV unsigned kvi_shared_address(const void *p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
#endif

KVI_DEV void kvi_mbar_init(uint64_t *bar, unsigned count)
{
#ifdef KVI_CUDA_EMULATED
    kvi_emu::mbar_init(bar, count);
#else
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(kvi_shared_address(bar)), "r"(count) : "memory");
#endif
}

/* After the last kvi_mbar_init of a thread; others may use the barriers after the block's next barrier. */
KVI_DEV void kvi_mbar_ready()
{
#ifndef KVI_CUDA_EMULATED
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
#endif
}

KVI_DEV void kvi_mbar_arrive(uint64_t *bar)
{
#ifdef KVI_CUDA_EMULATED
    kvi_emu::mbar_arrive(bar, 0);
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(kvi_shared_address(bar)) : "memory");
#endif
}

KVI_DEV void kvi_mbar_arrive_expect(uint64_t *bar, unsigned bytes)
{
#ifdef KVI_CUDA_EMULATED
    kvi_emu::mbar_arrive(bar, bytes);
#else
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(kvi_shared_address(bar)), "r"(bytes) : "memory");
#endif
}

KVI_DEV void kvi_mbar_wait(uint64_t *bar, unsigned parity KVI_SITE_MORE)
{
#ifdef KVI_CUDA_EMULATED
    kvi_emu::mbar_wait(bar, parity, {file, line});
#else
    asm volatile("{\n\t.reg .pred p;\n"
                 "again:\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t@!p bra again;\n\t}"
                 ::"r"(kvi_shared_address(bar)), "r"(parity) : "memory");
#endif
}

/* `bytes`, a multiple of 16, from global to shared memory, both aligned to 16. */
KVI_DEV void kvi_bulk_copy(void *shared, const void *global, unsigned bytes, uint64_t *bar)
{
#ifdef KVI_CUDA_EMULATED
    kvi_emu::bulk_copy(shared, global, bytes, bar);
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(kvi_shared_address(shared)), "l"(global), "r"(bytes), "r"(kvi_shared_address(bar)) : "memory");
#endif
}

#endif
