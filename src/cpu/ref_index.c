/* Index scores, portable.
 *
 * 16 keys are unpacked into columns ([channel][16 keys]). The sum over a 32-channel block is exact
 * in 16 bits: codes are twice E2M1 values, at most 12, and 32 * 12 * 12 = 4608. What is rounded
 * (scales, blocks, weights, heads) is done per lane in the order of op_params.h, hence a score
 * depends neither on its lane nor on the rows beside it. NaN in a scale makes the scores that use
 * it NaN. */
#include "cpu/index_kernels.h"

#include "format/dtype.h"
#include "format/fp4.h"
#include "format/kv_layout.h"

#include <string.h>

enum { LANES = 16 }; /* keys at once */

typedef int16_t vec_i16
    __attribute__((vector_size(LANES))); /* half of the lanes: gcc keeps longer ones in memory */

typedef struct ref_query {
    const int8_t *codes;
    const float  *scales;
    const float  *weights;
} ref_query;

/* Parts of a tile. */
typedef struct ref_tile {
    float   *heads;  /* [n_tree][LANES] */
    float   *scales; /* [n_groups][LANES] half the E8M0 scales */
    int16_t *codes;  /* [width][LANES] twice the E2M1 values */
    int8_t  *row;    /* [width] one key */
} ref_tile;

static size_t ref_query_bytes(const kvi_index_shape *s)
{
    (void)s;
    return sizeof(ref_query);
}

static size_t ref_tile_bytes(const kvi_index_shape *s)
{
    const size_t width = s->n_groups * KVI_INDEX_GROUP;

    return (s->n_tree + s->n_groups) * LANES * sizeof(float) + width * LANES * sizeof(int16_t) +
           width;
}

static ref_tile carve_tile(const kvi_index_shape *s, void *memory)
{
    ref_tile t;

    t.heads = memory;
    t.scales = t.heads + s->n_tree * LANES;
    t.codes = (int16_t *)(void *)(t.scales + s->n_groups * LANES);
    t.row = (int8_t *)(t.codes + s->n_groups * KVI_INDEX_GROUP * LANES);
    return t;
}

static void ref_prepare(const kvi_index_shape *s, const int8_t *codes, const float *scales,
                        const float *weights, void *query)
{
    const ref_query q = {codes, scales, weights};

    (void)s;
    memcpy(query, &q, sizeof q);
}

static void ref_unpack(const kvi_index_shape *s, const uint8_t *const *groups, size_t n, void *tile)
{
    const ref_tile t = carve_tile(s, tile);
    const size_t   width = s->n_groups * KVI_INDEX_GROUP;

    memset(t.codes, 0, width * LANES * sizeof *t.codes);
    memset(t.scales, 0, s->n_groups * LANES * sizeof *t.scales);
    for (size_t i = 0; i < n * KVI_INDEX_GROUP_ROWS; i++) {
        const uint8_t *group = groups[i / KVI_INDEX_GROUP_ROWS];
        const size_t   row = i % KVI_INDEX_GROUP_ROWS;
        const uint8_t *scales = group + KVI_INDEX_GROUP_ROWS * (width / 2) + row * s->n_groups;

        kvi_unpack_e2m1_x2(group + row * (width / 2), width, t.row);
        for (size_t c = 0; c < width; c++)
            t.codes[c * LANES + i] = t.row[c];
        for (size_t g = 0; g < s->n_groups; g++)
            t.scales[g * LANES + i] = kvi_e8m0_to_f32(scales[g]) * 0.5f;
    }
}

/* sums[i] = q . key[i] over one block of channels */
static void dot_block(const int8_t *q, const int16_t *codes, int16_t *sums)
{
    vec_i16 low = {0};
    vec_i16 high = {0};

    for (size_t c = 0; c < KVI_INDEX_GROUP; c++) {
        vec_i16 k0;
        vec_i16 k1;

        memcpy(&k0, codes + c * LANES, sizeof k0);
        memcpy(&k1, codes + c * LANES + LANES / 2, sizeof k1);
        low = low + k0 * (int16_t)q[c];
        high = high + k1 * (int16_t)q[c];
    }
    memcpy(sums, &low, sizeof low);
    memcpy(sums + LANES / 2, &high, sizeof high);
}

/* One head against 16 keys: w * max(0, q . key). */
static void score_head(const ref_tile *tile, size_t n_groups, const int8_t *q,
                       const float *q_scales, float weight, float *out)
{
    float dot[LANES] = {0};

    for (size_t g = 0; g < n_groups; g++) {
        const float *k_scales = tile->scales + g * LANES;
        const float  q_scale = q_scales[g];
        int16_t      sums[LANES];

        dot_block(q + g * KVI_INDEX_GROUP, tile->codes + g * KVI_INDEX_GROUP * LANES, sums);
        for (size_t i = 0; i < LANES; i++)
            dot[i] = dot[i] + (float)sums[i] * q_scale * k_scales[i];
    }
    for (size_t i = 0; i < LANES; i++)
        out[i] = (dot[i] < 0.0f ? 0.0f : dot[i]) * weight; /* NaN is not below 0 and stays */
}

static void ref_score(const kvi_index_shape *s, const void *query, void *tile,
                      const kvi_index_ahead *ahead, float *out)
{
    const ref_tile t = carve_tile(s, tile);
    const size_t   width = s->n_groups * KVI_INDEX_GROUP;
    ref_query      q;

    memcpy(&q, query, sizeof q);
    kvi_index_ask(ahead, 0, 1);
    for (size_t h = 0; h < s->n_heads; h++)
        score_head(&t, s->n_groups, q.codes + h * width, q.scales + h * s->n_groups, q.weights[h],
                   t.heads + h * LANES);
    memset(t.heads + s->n_heads * LANES, 0, (s->n_tree - s->n_heads) * LANES * sizeof(float));
    for (size_t half = s->n_tree / 2; half > 0; half /= 2) {
        for (size_t h = 0; h < half; h++) {
            float       *a = t.heads + h * LANES;
            const float *b = t.heads + (h + half) * LANES;

            for (size_t i = 0; i < LANES; i++)
                a[i] = a[i] + b[i];
        }
    }
    memcpy(out, t.heads, LANES * sizeof *out);
}

void kvi_index_portable(kvi_index_kernels *k)
{
    k->n_keys = LANES;
    k->rate = 2;
    k->query_bytes = ref_query_bytes;
    k->tile_bytes = ref_tile_bytes;
    k->prepare = ref_prepare;
    k->unpack = ref_unpack;
    k->score = ref_score;
}
