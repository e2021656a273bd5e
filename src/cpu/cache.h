/* Cache bytes from floats and back: the kernels. */
#ifndef KVI_CPU_CACHE_H
#define KVI_CPU_CACHE_H

#include "cpu/cpu_flags.h"

typedef struct kvi_cache_kernels {
    uint32_t flags; /* KVCSA_CPU_* that are in use */
} kvi_cache_kernels;

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_cache_init(kvi_cache_kernels *k, uint32_t flags);

#endif
