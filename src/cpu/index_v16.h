/* Index scores of variants that sum a block of 32 channels in 16 bits: a tile is cut into units of
 * 16 keys, each of which takes the short way or the long one. A variant file includes this behind
 * its key_block, and has a score_unit; all is static. */
#ifndef KVI_CPU_INDEX_V16_H
#define KVI_CPU_INDEX_V16_H

#include "cpu/index_quad.h"

enum { UNIT = 16, KEYS = KVI_INDEX_TILE, UNITS = KEYS / UNIT };

/* A tile: key_head, key_block [UNITS][n_groups], sums of quads f32 [n_quads][KEYS]. */
typedef struct key_head {
    uint32_t is_exact[UNITS];
    uint32_t unused[16 - UNITS];
} key_head;

/* Four heads x 16 keys: out f32 [UNIT] */
KVI_ALWAYS_INLINE void score_unit(const quad_head *head, const key_block *keys, size_t n_groups,
                                  int is_exact, float *out);

static size_t query_bytes(const kvi_index_shape *s)
{
    return quad_count(s) * quad_bytes(s);
}

static size_t tile_bytes(const kvi_index_shape *s)
{
    return sizeof(key_head) + UNITS * s->n_groups * sizeof(key_block) +
           quad_count(s) * KEYS * sizeof(float);
}

static void score_exact(const quad_head *head, const key_block *keys, size_t n_groups, float *out)
{
    score_unit(head, keys, n_groups, 1, out);
}

static void score_long(const quad_head *head, const key_block *keys, size_t n_groups, float *out)
{
    score_unit(head, keys, n_groups, 0, out);
}

static void score(const kvi_index_shape *s, const void *query, void *tile,
                  const kvi_index_ahead *ahead, float *out)
{
    const key_head  *head = tile;
    const key_block *keys = (const key_block *)(const void *)(head + 1);
    const size_t     n_quads = quad_count(s);
    float           *sums = (float *)(void *)((uint8_t *)tile + sizeof(key_head) +
                                    UNITS * s->n_groups * sizeof(key_block));

    for (size_t j = 0; j < n_quads; j++) {
        const quad_head *q = quad_at(s, query, j);

        kvi_index_ask(ahead, j, n_quads);
        for (size_t u = 0; u < UNITS; u++) {
            float *to = sums + j * KEYS + u * UNIT;

            if (head->is_exact[u] && q->is_exact)
                score_exact(q, keys + u * s->n_groups, s->n_groups, to);
            else
                score_long(q, keys + u * s->n_groups, s->n_groups, to);
        }
    }
    quad_fold(sums, n_quads, KEYS, out);
}

#endif
