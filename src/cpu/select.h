/* Selection: the kernels. */
#ifndef KVI_CPU_SELECT_H
#define KVI_CPU_SELECT_H

#include "cpu/cpu_flags.h"

typedef struct kvi_select_kernels {
    uint32_t flags; /* KVCSA_CPU_* that are in use */
} kvi_select_kernels;

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_select_init(kvi_select_kernels *k, uint32_t flags);

#endif
