/* Index scores: the kernels.
 *
 * A tile holds unpacked keys in a layout of the variant's own, and serves every row that scores
 * them; a row's query is brought into the variant's layout once a call. A lane is a key in every
 * variant, so no sum crosses lanes, and the heads are added in the order of op_params.h in each
 * lane.
 *
 * All variants give the bits of the portable kernels, but for the payload of NaN. */
#ifndef KVI_CPU_INDEX_KERNELS_H
#define KVI_CPU_INDEX_KERNELS_H

#include <stddef.h>

#include "base/prefetch.h"
#include "cpu/cpu_flags.h"

#define KVI_INDEX_TILE 64u /* keys of a tile at most */

typedef struct kvi_index_shape {
    size_t n_heads;
    size_t n_tree;   /* power of two >= n_heads */
    size_t n_groups; /* scales of a key; its width is 32 times that */
} kvi_index_shape;

/* Groups of a later tile, asked for from memory while this one is scored: a few at each step, since
 * a core waits for 16 lines or so at a time and its other loads stand behind a longer queue. */
typedef struct kvi_index_ahead {
    const uint8_t *const *groups; /* [n] */
    size_t                n;
    size_t                bytes; /* of a group */
} kvi_index_ahead;

typedef struct kvi_index_kernels {
    uint32_t flags;  /* KVCSA_CPU_* that are in use */
    uint32_t n_keys; /* of a tile: a multiple of 8 */
    uint32_t rate;   /* products of codes in a nanosecond, about: how to split the work */

    size_t (*query_bytes)(const kvi_index_shape *s);
    size_t (*tile_bytes)(const kvi_index_shape *s);

    /* codes i8 [n_heads, width], scales f32 [n_heads, n_groups], weights f32 [n_heads]: they live
     * as long as `query` (64-byte aligned) does. */
    void (*prepare)(const kvi_index_shape *s, const int8_t *codes, const float *scales,
                    const float *weights, void *query);
    /* groups[n], 1 <= n <= n_keys / 8: eight keys each, as format/kv_layout.h says, any alignment.
     * `tile` is 64-byte aligned. */
    void (*unpack)(const kvi_index_shape *s, const uint8_t *const *groups, size_t n, void *tile);
    /* out f32 [n_keys]: scores of the unpacked keys, and anything behind them. The tile may hold
     * scratch, its keys stay. */
    void (*score)(const kvi_index_shape *s, const void *query, void *tile,
                  const kvi_index_ahead *ahead, float *out);
} kvi_index_kernels;

/* Step `step` of n_steps. */
static inline void kvi_index_ask(const kvi_index_ahead *a, size_t step, size_t n_steps)
{
    for (size_t i = step; i < a->n; i += n_steps)
        for (size_t byte = 0; byte < a->bytes; byte += 64)
            kvi_prefetch(a->groups[i] + byte);
}

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_index_init(kvi_index_kernels *k, uint32_t flags);

void kvi_index_portable(kvi_index_kernels *k);
void kvi_index_avx2(kvi_index_kernels *k);
void kvi_index_avx512(kvi_index_kernels *k);
void kvi_index_neon(kvi_index_kernels *k);
void kvi_index_dotprod(kvi_index_kernels *k);

#endif
