/* Index scores: the kernels. */
#ifndef KVI_CPU_INDEX_H
#define KVI_CPU_INDEX_H

#include "cpu/cpu_flags.h"

typedef struct kvi_index_kernels {
    uint32_t flags; /* KVCSA_CPU_* that are in use */
} kvi_index_kernels;

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_index_init(kvi_index_kernels *k, uint32_t flags);

#endif
