#include "cpu/cpu_ops.h"

void kvi_linear_init(kvi_linear_kernels *k, uint32_t flags)
{
    k->flags = flags;
}
