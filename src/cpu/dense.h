/* Norms, rotation, residual stream: the kernels. */
#ifndef KVI_CPU_DENSE_H
#define KVI_CPU_DENSE_H

#include "cpu/cpu_flags.h"

typedef struct kvi_dense_kernels {
    uint32_t flags; /* KVCSA_CPU_* that are in use */
} kvi_dense_kernels;

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_dense_init(kvi_dense_kernels *k, uint32_t flags);

#endif
