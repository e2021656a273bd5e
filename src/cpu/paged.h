/* Attention over paged keys and values: the kernels. */
#ifndef KVI_CPU_PAGED_H
#define KVI_CPU_PAGED_H

#include "cpu/cpu_flags.h"

typedef struct kvi_paged_kernels {
    uint32_t flags; /* KVCSA_CPU_* that are in use */
} kvi_paged_kernels;

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_paged_init(kvi_paged_kernels *k, uint32_t flags);

#endif
