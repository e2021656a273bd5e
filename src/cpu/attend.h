/* Attention over window and selected entries: the kernels. */
#ifndef KVI_CPU_ATTEND_H
#define KVI_CPU_ATTEND_H

#include "cpu/cpu_flags.h"

typedef struct kvi_attend_kernels {
    uint32_t flags; /* KVCSA_CPU_* that are in use */
} kvi_attend_kernels;

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_attend_init(kvi_attend_kernels *k, uint32_t flags);

#endif
