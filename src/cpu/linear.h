/* Matrix products: the kernels. */
#ifndef KVI_CPU_LINEAR_H
#define KVI_CPU_LINEAR_H

#include "cpu/cpu_flags.h"

typedef struct kvi_linear_kernels {
    uint32_t flags; /* KVCSA_CPU_* that are in use */
} kvi_linear_kernels;

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_linear_init(kvi_linear_kernels *k, uint32_t flags);

#endif
