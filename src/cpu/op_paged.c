#include "cpu/cpu_ops.h"

void kvi_paged_init(kvi_paged_kernels *k, uint32_t flags)
{
    k->flags = flags;
}

kvcsa_status kvi_cpu_paged_attend(kvi_device *dev, const kvi_paged_attend_params *p,
                                  kvcsa_error *err)
{
    (void)dev;
    (void)p;
    return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "not there yet");
}
