/* Attention over window and selected entries: the kernels.
 *
 * op_attend.c walks over the slots of a row in passes of some tiles, finds the keys of a pass and
 * calls add_keys for the heads that an item of work has; finish after the last pass. The algorithm
 * stands in ref_attend.c: it goes tile by tile, and passes cannot be seen in the result. */
#ifndef KVI_CPU_ATTEND_KERNELS_H
#define KVI_CPU_ATTEND_KERNELS_H

#include <stddef.h>

#include "cpu/cpu_flags.h"

#define KVI_ATTEND_TILE 64u  /* slots; part of the numerics */
/* Slots of a pass, a multiple of the tile: keys of 512 channels are then 264 KiB and stay in the L2
 * cache, and 48 channels of them, 24 KiB, in the L1 cache. */
#define KVI_ATTEND_PASS 128u

/* Neighbouring heads of a row, and what they carry from pass to pass. */
typedef struct kvi_attend_heads {
    const float *q;      /* [n_heads, width] */
    float       *out;    /* [n_heads, width]: unfinished between passes */
    float       *max;    /* [n_heads]: -1e30 before the first pass */
    float       *sum;    /* [n_heads]: 0 before the first pass */
    float       *scores; /* [n_heads, k]: initialised; NULL = nobody asks for the mass */
    float       *lanes;  /* [n_heads rounded up to 16, width]: q as `arrange` leaves it */
    float       *dots;   /* [n_heads / 16 rounded up, KVI_ATTEND_PASS, 16]: from score to
                          * add_keys */
    size_t       n_heads;
    size_t       width;  /* a multiple of 32 */
    size_t       k;      /* selected slots: those from n_window on */
    size_t       n_window;
    float        scale;
    uint32_t     first;  /* 1 = the first pass with keys: out holds nothing yet */
    uint32_t     flags;  /* KVI_OP_ROUND_BF16: for the portable kernels only */
} kvi_attend_heads;

/* The keys of a pass, empty slots left out; tiles that are empty altogether too. */
typedef struct kvi_attend_keys {
    const float *rows[KVI_ATTEND_PASS];  /* each [width] */
    uint32_t     slots[KVI_ATTEND_PASS]; /* ascending */
    uint32_t     ends[KVI_ATTEND_PASS / KVI_ATTEND_TILE]; /* tile i: keys from ends[i - 1] (or 0)
                                                           * up to ends[i] - 1; never empty */
    uint32_t     n_tiles;
} kvi_attend_keys;

/* Rows that a kernel brings to the L2 cache while it computes; it takes off what it asked for. */
typedef struct kvi_attend_next {
    const uint8_t *const *rows;
    size_t                n;
    size_t                bytes; /* of a row */
} kvi_attend_next;

typedef struct kvi_attend_kernels {
    uint32_t flags;      /* KVCSA_CPU_* that are in use */
    uint32_t min_work;   /* multiply-adds that are worth waking a thread: about 20 us */
    uint32_t score_keys; /* keys that score likes to take; 0 = neither arrange nor score: add_keys
                          * does without them */
    /* Before the first pass. */
    void (*arrange)(const kvi_attend_heads *h);
    /* Dot products of the keys begin .. end - 1 of a pass, which are best decoded just before. */
    void (*score)(const kvi_attend_heads *h, const kvi_attend_keys *keys, size_t begin, size_t end,
                  kvi_attend_next *next);
    /* Takes the keys in, n_tiles > 0; scores of selected slots are kept if somebody wants them. */
    void (*add_keys)(const kvi_attend_heads *h, const kvi_attend_keys *keys);
    /* Divides by the denominator; scores become probabilities (meaningless in empty slots).
     * sink [n_heads] */
    void (*finish)(const kvi_attend_heads *h, const float *sink);
} kvi_attend_kernels;

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_attend_init(kvi_attend_kernels *k, uint32_t flags);
void kvi_attend_avx2(kvi_attend_kernels *k);
void kvi_attend_avx512(kvi_attend_kernels *k);
void kvi_attend_neon(kvi_attend_kernels *k);

/* ref_attend.c */
void kvi_attend_portable(kvi_attend_kernels *k);
/* mass[j] = probabilities[0][j] + probabilities[1][j] + ..., from 0; probabilities [n_heads, k].
 * Additions alone: the same for every instruction set. */
void kvi_attend_add_heads(const float *probabilities, size_t n_heads, size_t k, float *mass);

#endif
