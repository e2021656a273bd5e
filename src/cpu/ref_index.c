/* Index scores.
 *
 * A lane is a key: 16 keys are unpacked into columns ([channel][16 keys]) and then serve
 * every head of every row of the tile, so that unpacking is paid once and no sum crosses lanes. The
 * sum over a 32-channel block is exact in 16 bits: codes are twice E2M1 values, at most 12, and 32
 * * 12 * 12 = 4608. What is rounded (scales, blocks, weights, heads) is done per lane in the order
 * of op_params.h, hence a score depends neither on its lane nor on the tile of rows. NaN in a scale
 * makes the scores that use it NaN. */
#include "cpu/cpu_ops.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "format/dtype.h"
#include "format/fp4.h"
#include "cpu/ref_dense_int.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    LANES = 16,       /* keys at once */
    ROWS_TILE = 16,   /* rows that share unpacked keys */
    KEYS_RANGE = 256  /* keys of one item of the parallel loop, a multiple of LANES */
};

typedef int16_t vec_i16
    __attribute__((vector_size(LANES))); /* half of the lanes: gcc keeps longer ones in memory */

/* ---------------------------------------------------------------- scores */

typedef struct score_job {
    const kvi_index_score_params *p;
    const kvcsa_allocator        *allocator;
    size_t                        n_groups; /* scales of a key */
    size_t                        n_tree;   /* power of two >= n_heads */
    size_t                        rows_tile;
    size_t                        n_ranges; /* of keys */
    atomic_int                    no_memory;
} score_job;

/* Scratch of one worker. */
typedef struct key_tile {
    int64_t  ids[LANES]; /* entry of each lane, -1 = none */
    int8_t  *row;        /* [width] one key */
    int16_t *codes;      /* [width][LANES] twice the E2M1 values; 0 in empty lanes */
    float   *scales;     /* [n_groups][LANES] half the E8M0 scales */
    float   *heads;      /* [n_tree][LANES] */
} key_tile;

/* Length of a row of scores. */
static size_t count_scores(const kvi_index_score_params *p, size_t row)
{
    return p->blocks != NULL ? (size_t)p->n_blocks[row] * p->block_entries
                             : (size_t)p->n_visible[row];
}

static size_t scratch_bytes(const score_job *job)
{
    const size_t width = job->n_groups * KVI_INDEX_GROUP;

    return (job->n_tree + job->n_groups) * LANES * sizeof(float) + width * LANES * sizeof(int16_t) +
           width;
}

static void carve_scratch(const score_job *job, void *memory, key_tile *tile)
{
    tile->heads = memory;
    tile->scales = tile->heads + job->n_tree * LANES;
    tile->codes = (int16_t *)(void *)(tile->scales + job->n_groups * LANES);
    tile->row = (int8_t *)(tile->codes + job->n_groups * KVI_INDEX_GROUP * LANES);
}

/* Which entries stand behind scores at..at + n - 1 of `row`. Invisible entries get no lane. */
static void find_entries(const kvi_index_score_params *p, size_t row, size_t at, size_t n,
                         int64_t *ids)
{
    for (size_t i = 0; i < LANES; i++)
        ids[i] = i < n ? (int64_t)(at + i) : -1;
    if (p->blocks == NULL)
        return;
    for (size_t i = 0; i < n; i++) {
        const int64_t block = p->blocks[row * p->blocks_stride + (at + i) / p->block_entries];

        ids[i] = block * p->block_entries + (int64_t)((at + i) % p->block_entries);
        if ((uint64_t)ids[i] >= p->n_visible[row])
            ids[i] = -1;
    }
}

static void unpack_keys(const score_job *job, key_tile *tile)
{
    const kvi_entries  *keys = &job->p->keys;
    const kvi_kv_owner *o = keys->owner;
    const size_t        width = job->n_groups * KVI_INDEX_GROUP;

    memset(tile->codes, 0, width * LANES * sizeof *tile->codes);
    memset(tile->scales, 0, job->n_groups * LANES * sizeof *tile->scales);
    for (size_t i = 0; i < LANES; i++) {
        if (tile->ids[i] < 0)
            continue;
        const uint64_t entry = (uint64_t)tile->ids[i];
        const uint8_t *part = keys->index_parts[entry / o->rows_per_block];
        const uint32_t row = (uint32_t)(entry % o->rows_per_block);
        const uint8_t *scales = part + kvi_kv_index_scales_off(o, row);

        kvi_unpack_e2m1_x2(part + kvi_kv_index_values_off(o, row), width, tile->row);
        for (size_t c = 0; c < width; c++)
            tile->codes[c * LANES + i] = tile->row[c];
        for (size_t g = 0; g < job->n_groups; g++)
            tile->scales[g * LANES + i] = kvi_e8m0_to_f32(scales[g]) * 0.5f;
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
static void score_head(const key_tile *tile, size_t n_groups, const int8_t *q,
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

static void score_row(const score_job *job, const key_tile *tile, size_t row, size_t at, size_t n)
{
    const kvi_index_score_params *p = job->p;
    const size_t                  width = job->n_groups * KVI_INDEX_GROUP;
    float                        *out = p->scores + row * p->scores_stride + at;

    for (size_t h = 0; h < p->n_heads; h++) {
        const size_t i = row * p->n_heads + h;

        score_head(tile, job->n_groups, p->codes + i * width, p->scales + i * job->n_groups,
                   p->weights[i], tile->heads + h * LANES);
    }
    memset(tile->heads + p->n_heads * LANES, 0, (job->n_tree - p->n_heads) * LANES * sizeof(float));
    for (size_t half = job->n_tree / 2; half > 0; half /= 2) {
        for (size_t h = 0; h < half; h++) {
            float       *a = tile->heads + h * LANES;
            const float *b = tile->heads + (h + half) * LANES;

            for (size_t i = 0; i < LANES; i++)
                a[i] = a[i] + b[i];
        }
    }
    for (size_t i = 0; i < n; i++)
        out[i] = tile->ids[i] >= 0 ? tile->heads[i] : -INFINITY;
}

/* Scores [at, end) of the rows [row_begin, row_end), as far as a row goes. */
static void score_range(const score_job *job, key_tile *tile, size_t row_begin, size_t row_end,
                        size_t at, size_t end)
{
    for (; at < end; at += LANES) {
        size_t n_tile = 0;

        for (size_t row = row_begin; row < row_end; row++)
            n_tile = kvi_max_size(n_tile, count_scores(job->p, row));
        if (n_tile <= at)
            return;
        n_tile = kvi_min_size(n_tile - at, kvi_min_size(end - at, LANES));
        find_entries(job->p, row_begin, at, n_tile, tile->ids);
        unpack_keys(job, tile);
        for (size_t row = row_begin; row < row_end; row++) {
            const size_t count = count_scores(job->p, row);

            if (count > at)
                score_row(job, tile, row, at, kvi_min_size(count - at, n_tile));
        }
    }
}

static void run_index_score(void *arg, size_t begin, size_t end)
{
    score_job   *job = arg;
    const size_t bytes = scratch_bytes(job);
    void        *memory = atomic_load(&job->no_memory) ? NULL : kvi_alloc(job->allocator, bytes);
    key_tile     tile;

    if (memory == NULL) {
        atomic_store(&job->no_memory, 1);
        return;
    }
    carve_scratch(job, memory, &tile);
    for (size_t i = begin; i < end; i++) {
        const size_t row = i / job->n_ranges * job->rows_tile;
        const size_t at = i % job->n_ranges * KEYS_RANGE;

        score_range(job, &tile, row, kvi_min_size(row + job->rows_tile, job->p->n_rows), at,
                    at + KEYS_RANGE);
    }
    kvi_free(job->allocator, memory, bytes);
}

kvcsa_status kvi_cpu_index_score(kvi_device *dev, const kvi_index_score_params *p, kvcsa_error *err)
{
    score_job job = {.p = p, .allocator = &dev->allocator};
    size_t    n_most = 0;
    size_t    work = 0;

    KVI_ASSERT(p->keys.owner->index_width % KVI_INDEX_GROUP == 0 && p->n_heads != 0);
    for (size_t row = 0; row < p->n_rows; row++)
        n_most = kvi_max_size(n_most, count_scores(p, row));
    KVI_ASSERT(n_most <= p->scores_stride || p->n_rows <= 1);
    if (n_most == 0)
        return KVCSA_OK;
    job.n_groups = p->keys.owner->index_width / KVI_INDEX_GROUP;
    for (job.n_tree = 1; job.n_tree < p->n_heads; job.n_tree *= 2)
        ;
    /* Candidate blocks differ from row to row, so there rows share no keys. */
    job.rows_tile = p->blocks != NULL ? 1 : ROWS_TILE;
    job.n_ranges = kvi_div_up(n_most, KEYS_RANGE);
    /* of an item; eight 16-bit products are made at once */
    work = p->n_heads * job.n_groups * (KVI_INDEX_GROUP / 8);
    work *= kvi_min_size(p->n_rows, job.rows_tile) * kvi_min_size(n_most, KEYS_RANGE);
    atomic_init(&job.no_memory, 0);
    kvi_run(dev->threads, run_index_score, &job,
            kvi_div_up(p->n_rows, job.rows_tile) * job.n_ranges, kvi_ref_grain(work));
    if (atomic_load(&job.no_memory))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "index scores: scratch of %zu bytes",
                        scratch_bytes(&job));
    return KVCSA_OK;
}
