#include "cpu/cpu_ops.h"

void kvi_dense_init(kvi_dense_kernels *k, uint32_t flags)
{
    k->flags = flags;
}
