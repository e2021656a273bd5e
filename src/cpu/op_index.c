#include "cpu/cpu_ops.h"

void kvi_index_init(kvi_index_kernels *k, uint32_t flags)
{
    k->flags = flags;
}
