/* Selection: the kernels. What they are for: op_select.c.
 *
 * Scores are compared as floats: NaN reaches no threshold, zeros of either sign tie. Kernels of all
 * instruction sets do the same, so nothing of it shows in a result. */
#ifndef KVI_CPU_SELECT_KERNELS_H
#define KVI_CPU_SELECT_KERNELS_H

#include <stddef.h>

#include "cpu/cpu_flags.h"

/* Scores with their numbers, ascending numbers. */
typedef struct kvi_select_list {
    float   *scores;
    int32_t *at;
    size_t   n;
    size_t   cap; /* both arrays have KVI_SELECT_ROOM elements more, which kernels may write */
} kvi_select_list;
#define KVI_SELECT_ROOM 96u /* 64 that are looked at together, 16 of a store that is not full */

/* Scores are asked for a page before they are read, since the processor's own prefetch stops at the
 * end of a page: block maxima of 4 MB took 1.5 times as long as a plain read, with it 1.1 to
 * 1.25. */
#define KVI_SELECT_AHEAD 1024u

typedef struct kvi_select_split {
    size_t n;     /* that are >= least */
    float  above; /* the least of them, +inf for none */
    float  below; /* the largest of the others, -inf for none; NaN is passed over */
} kvi_select_split;

typedef struct kvi_select_kernels {
    uint32_t flags; /* KVCSA_CPU_* that are in use */
    /* Appends those of scores[0..n-1] that are >= least; score i has the number first + i. Stops
     * once the list holds cap or more. Returns how many scores it has looked at. */
    size_t (*collect)(const float *scores, size_t n, int32_t first, float least,
                      kvi_select_list *list);
    /* Moves those of the elements begin..end-1 that are >= least to the end of the list, which is
     * at or in front of begin. */
    void (*keep)(kvi_select_list *list, size_t begin, size_t end, float least);
    /* What of n < 2^32 scores is >= least, and what lies next to it. */
    kvi_select_split (*split)(const float *scores, size_t n, float least);
    /* Largest score of each block of block_entries, the last may be shorter; NaN is passed over,
     * -inf where there is nothing else. maxima f32 [ceil(n / block_entries)]. */
    void (*maxima)(const float *scores, size_t n, size_t block_entries, float *maxima);
} kvi_select_kernels;

/* Position of element i of a sample, of n. A full avalanche of the bits (that of murmur3), so that
 * no period of the scores meets it; tests make the worst of it. */
#define KVI_SELECT_SAMPLE 1024u /* elements at most, and 1 of 32 at most */
static inline size_t kvi_select_place(uint32_t i, size_t n)
{
    uint32_t h = i * 0x9e3779b1u + 0x7f4a7c15u;

    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    h ^= h >> 16;
    return (size_t)((uint64_t)h * n >> 32);
}

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_select_init(kvi_select_kernels *k, uint32_t flags);
void kvi_select_portable(kvi_select_kernels *k);
void kvi_select_avx2(kvi_select_kernels *k);
void kvi_select_avx512(kvi_select_kernels *k);
void kvi_select_neon(kvi_select_kernels *k);

/* The portable one, for block sizes that a variant has no kernel for. */
void kvi_ref_maxima(const float *scores, size_t n, size_t block_entries, float *maxima);

#endif
