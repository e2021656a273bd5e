#include "cpu/cpu_ops.h"

void kvi_cache_init(kvi_cache_kernels *k, uint32_t flags)
{
    k->flags = flags;
}
