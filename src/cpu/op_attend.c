#include "cpu/cpu_ops.h"

void kvi_attend_init(kvi_attend_kernels *k, uint32_t flags)
{
    k->flags = flags;
}
