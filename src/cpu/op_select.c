#include "cpu/cpu_ops.h"

void kvi_select_init(kvi_select_kernels *k, uint32_t flags)
{
    k->flags = flags;
}
