/* Index scores: which keys a row scores, and the tasks.
 *
 * Rows are taken in tiles of at most ROWS_TILE, whose queries are prepared once, in the caller. A
 * task is a run of tiles of keys for all those rows: keys are unpacked once for them. With
 * candidate blocks each row has keys of its own, and with slices the rows of each: a tile of rows
 * then is made of units, and a task is a run of tiles of keys for one unit.
 *
 * Kernels want whole groups of eight keys. Where fewer are visible, or candidate blocks are no
 * whole groups, the keys are copied into a group of zeros first; so no byte of an entry that nobody
 * scores is read, which somebody else may be writing (kvi_kv_copy_rows). While a tile is
 * scored the tile after the next is asked for: candidate blocks lie anywhere, and without that they
 * cost twice the time in a context of a million entries; whole rows gain a third.
 *
 * Maxima of blocks are taken while the scores of a tile are in the cache, if tiles are whole
 * blocks: tasks meet between tiles. Otherwise they are made when the scores are there. */
#include "cpu/cpu_ops.h"

#include "base/checked.h"
#include "format/fp4.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    ROWS_TILE = 16,               /* rows that share unpacked keys */
    GROUP = KVI_INDEX_GROUP_ROWS, /* keys */
    GROUPS_TILE = KVI_INDEX_TILE / KVI_INDEX_GROUP_ROWS,
    TASK_NS = 40000,        /* a task is worth a wake-up */
    MAXIMA_SCORES = 131072, /* likewise */
    ALIGNMENT = 64
};

typedef struct score_job {
    const kvi_index_score_params *p;
    const kvi_index_kernels      *kernels;
    const kvi_select_kernels     *select;
    const kvcsa_allocator        *allocator;
    kvi_index_shape               shape;
    size_t                        group_bytes; /* of eight keys */
    size_t                        tile_bytes;
    size_t                        query_bytes;
    uint8_t                      *queries; /* [n_rows] prepared */
    size_t                        first_row;
    size_t                        n_rows;  /* of this tile of rows */
    size_t                        n_unit;  /* rows of a unit, the last may have fewer */
    size_t                        n_tiles; /* of keys */
    bool                          maxima;  /* are taken tile by tile */
    atomic_int                    no_memory;
} score_job;

/* What a task works with: groups of the tile that is next and of the one behind it. */
typedef struct score_scratch {
    const uint8_t *groups[2][GROUPS_TILE];
    uint8_t       *staged[2]; /* [GROUPS_TILE][group_bytes] */
    void          *tile;
} score_scratch;

/* Length of a row of scores; 0 = it is not scored. */
static size_t count_scores(const kvi_index_score_params *p, size_t row)
{
    if (p->all != 0 && p->n_visible[row] <= p->all)
        return 0;
    return p->blocks != NULL ? (size_t)p->n_blocks[row] * p->block_entries
                             : (size_t)p->n_visible[row];
}

static size_t most_scores(const kvi_index_score_params *p, size_t row, size_t n_rows)
{
    size_t n = 0;

    for (size_t end = row + n_rows; row < end; row++)
        n = kvi_max_size(n, count_scores(p, row));
    return n;
}

/* Entry behind score `at` of a row. */
static uint64_t entry_of(const kvi_index_score_params *p, size_t row, size_t at)
{
    const uint32_t i = (uint32_t)at; /* ids of entries are int32 */
    const int32_t *blocks = p->blocks;

    if (blocks == NULL)
        return at;
    return (uint64_t)blocks[row * p->blocks_stride + i / p->block_entries] * p->block_entries +
           i % p->block_entries;
}

static const uint8_t *group_of(const score_job *job, size_t row, uint64_t entry)
{
    const kvi_index_score_params *p = job->p;
    const kvi_kv_owner           *o = p->keys.owner;
    const uint32_t                i = (uint32_t)entry;
    uint8_t *const               *parts =
        p->of.slices ? p->of.slices[row / p->of.each].index_parts : p->keys.index_parts;

    return parts[i / o->rows_per_block] + kvi_kv_index_group_off(o, i % o->rows_per_block / GROUP);
}

/* Copies the visible ones of the keys behind scores at .. at + n - 1 into a group of zeros. */
static void stage_group(const score_job *job, size_t row, size_t at, size_t n, uint64_t n_visible,
                        uint8_t *to)
{
    const size_t value_bytes = job->shape.n_groups * (KVI_INDEX_GROUP / 2);
    const size_t scale_bytes = job->shape.n_groups;

    memset(to, 0, GROUP * value_bytes);
    memset(to + GROUP * value_bytes, 127, GROUP * scale_bytes); /* 1: a scale like others */
    for (size_t i = 0; i < n; i++) {
        const uint64_t entry = entry_of(job->p, row, at + i);
        const uint8_t *from;

        if (entry >= n_visible)
            continue;
        from = group_of(job, row, entry);
        memcpy(to + i * value_bytes, from + entry % GROUP * value_bytes, value_bytes);
        memcpy(to + GROUP * value_bytes + i * scale_bytes,
               from + GROUP * value_bytes + entry % GROUP * scale_bytes, scale_bytes);
    }
}

/* Whole groups of the entries at .. end - 1, at a multiple of a group; returns their number. Inside
 * a block of the cache they follow one another: no division for each, about 1 % of the whole. */
static size_t find_whole(const score_job *job, size_t row, size_t at, size_t end,
                         const uint8_t **groups)
{
    const uint32_t rows_per_block = job->p->keys.owner->rows_per_block;
    const uint8_t *next = NULL;
    size_t         left = 0;
    size_t         n = 0;

    for (; at + GROUP <= end; at += GROUP) {
        if (left == 0) {
            next = group_of(job, row, at);
            left = (rows_per_block - (uint32_t)at % rows_per_block) / GROUP;
        }
        groups[n++] = next;
        next += job->group_bytes;
        left--;
    }
    return n;
}

/* The groups behind scores at .. end - 1 become groups[turn]; returns their number. */
static size_t find_groups(const score_job *job, size_t row, size_t at, size_t end, size_t turn,
                          score_scratch *scratch)
{
    const kvi_index_score_params *p = job->p;
    const uint64_t                n_visible = p->blocks != NULL ? p->n_visible[row] : end;
    const int                     whole = p->block_entries % GROUP == 0;
    size_t                        n = 0;

    if (p->blocks == NULL)
        n = find_whole(job, row, at, end, scratch->groups[turn]);
    for (at += n * GROUP; at < end; at += GROUP, n++) {
        const uint64_t entry = entry_of(p, row, at);
        uint8_t       *staged = scratch->staged[turn] + n * job->group_bytes;

        if (whole && entry + GROUP <= n_visible) {
            scratch->groups[turn][n] = group_of(job, row, entry);
        } else {
            stage_group(job, row, at, kvi_min_size(end - at, GROUP), n_visible, staged);
            scratch->groups[turn][n] = staged;
        }
    }
    return n;
}

/* One row against the unpacked keys of scores at .. end - 1. */
static void score_row(const score_job *job, void *tile, const kvi_index_ahead *ahead, size_t row,
                      size_t at, size_t end)
{
    const kvi_index_score_params *p = job->p;
    const void                   *query = job->queries + (row - job->first_row) * job->query_bytes;
    float                        *out = p->scores + row * p->scores_stride + at;
    const size_t                  n = end - at;

    if (n == job->kernels->n_keys) {
        job->kernels->score(&job->shape, query, tile, ahead, out);
    } else {
        float all[KVI_INDEX_TILE];

        job->kernels->score(&job->shape, query, tile, ahead, all);
        memcpy(out, all, n * sizeof *out);
    }
    if (job->maxima)
        job->select->maxima(out, n, p->block_entries,
                            p->block_max + row * p->max_stride + at / p->block_entries);
    /* Blocks ascend, so invisible entries are in the last ones. */
    for (size_t i = n; p->blocks != NULL && i-- > 0;) {
        if (entry_of(p, row, at + i) < p->n_visible[row])
            break;
        out[i] = -INFINITY;
    }
}

/* Tiles [tile, end) of keys for the rows row .. row + n_rows - 1, which see the same entries. */
static void score_tiles(const score_job *job, score_scratch *scratch, size_t row, size_t n_rows,
                        size_t tile, size_t end)
{
    const size_t    n_keys = job->kernels->n_keys;
    const size_t    last = kvi_min_size(end * n_keys, most_scores(job->p, row, n_rows));
    size_t          at = tile * n_keys;
    size_t          turn = 1;
    kvi_index_ahead ahead = {.bytes = job->group_bytes};

    find_groups(job, row, at, kvi_min_size(at + n_keys, last), 0, scratch);
    ahead.groups = scratch->groups[1];
    ahead.n = find_groups(job, row, at + n_keys, kvi_min_size(at + 2 * n_keys, last), 1, scratch);
    kvi_index_ask(&ahead, 0, 1);
    for (; at < last; at += n_keys) {
        const size_t next = kvi_min_size(at + n_keys, last);
        const size_t second = at + 2 * n_keys;

        turn = 1 - turn;
        job->kernels->unpack(&job->shape, scratch->groups[turn], kvi_div_up(next - at, GROUP),
                             scratch->tile);
        ahead.groups = scratch->groups[turn];
        ahead.n = find_groups(job, row, second, kvi_min_size(second + n_keys, last), turn, scratch);
        for (size_t i = row; i < row + n_rows; i++) {
            const size_t count = count_scores(job->p, i);

            if (count <= at)
                continue;
            score_row(job, scratch->tile, &ahead, i, at, kvi_min_size(count, next));
            ahead.n = 0; /* once */
        }
    }
}

static void run_index_score(void *arg, size_t begin, size_t end)
{
    score_job    *job = arg;
    const size_t  bytes = job->tile_bytes + 2 * GROUPS_TILE * job->group_bytes;
    void         *memory = atomic_load(&job->no_memory) ? NULL : kvi_alloc(job->allocator, bytes);
    score_scratch scratch;

    if (memory == NULL) {
        atomic_store(&job->no_memory, 1);
        return;
    }
    scratch.tile = memory;
    scratch.staged[0] = (uint8_t *)memory + job->tile_bytes;
    scratch.staged[1] = scratch.staged[0] + GROUPS_TILE * job->group_bytes;
    while (begin < end) { /* items: tiles of the first unit, ... */
        const size_t unit = begin / job->n_tiles;
        const size_t stop = kvi_min_size(end, (unit + 1) * job->n_tiles);
        const size_t row = unit * job->n_unit;

        score_tiles(job, &scratch, job->first_row + row,
                    kvi_min_size(job->n_unit, job->n_rows - row), begin - unit * job->n_tiles,
                    stop - unit * job->n_tiles);
        begin = stop;
    }
    /* the only bytes of a cache that go to scratch as they are */
    memset(scratch.staged[0], 0, 2 * GROUPS_TILE * job->group_bytes);
    kvi_free(job->allocator, memory, bytes);
}

static void prepare_queries(const score_job *job)
{
    const kvi_index_score_params *p = job->p;

    for (size_t i = 0; i < job->n_rows; i++) {
        const size_t head = (job->first_row + i) * p->n_heads;

        if (count_scores(p, job->first_row + i) == 0)
            continue;
        job->kernels->prepare(&job->shape, p->codes + head * job->shape.n_groups * KVI_INDEX_GROUP,
                              p->scales + head * job->shape.n_groups, p->weights + head,
                              job->queries + i * job->query_bytes);
    }
}

/* The next tile of rows: in a slice, or whole slices. */
static void take_rows(score_job *job, size_t row)
{
    const kvi_index_score_params *p = job->p;
    const size_t                  each = p->of.slices ? p->of.each : p->n_rows;
    size_t                        n = ROWS_TILE;

    if (each <= n)
        n -= n % each;
    else
        n = kvi_min_size(n, each - row % each);
    job->first_row = row;
    job->n_rows = kvi_min_size(p->n_rows - row, n);
    job->n_unit = p->blocks != NULL ? 1 : kvi_min_size(each, job->n_rows);
    job->n_tiles = kvi_div_up(most_scores(p, row, job->n_rows), job->kernels->n_keys);
}

/* Where tiles are no whole blocks. */
static void run_maxima(void *arg, size_t begin, size_t end)
{
    const score_job              *job = arg;
    const kvi_index_score_params *p = job->p;

    for (size_t row = begin; row < end; row++)
        job->select->maxima(p->scores + row * p->scores_stride, count_scores(p, row),
                            p->block_entries, p->block_max + row * p->max_stride);
}

/* Tiles of keys for one task. */
static size_t tiles_of_task(const score_job *job)
{
    const size_t work = job->n_unit * job->kernels->n_keys * job->shape.n_heads *
                        job->shape.n_groups * KVI_INDEX_GROUP;

    return kvi_max_size(1, (size_t)job->kernels->rate * TASK_NS / work);
}

static size_t aligned(size_t n)
{
    return kvi_div_up(n, ALIGNMENT) * ALIGNMENT;
}

kvcsa_status kvi_cpu_index_score(kvi_device *dev, const kvi_index_score_params *p, kvcsa_error *err)
{
    score_job    job = {.p = p,
                        .kernels = &dev->index,
                        .select = &dev->select,
                        .allocator = &dev->allocator};
    const size_t n_most = most_scores(p, 0, p->n_rows);
    size_t       bytes = 0;

    KVI_ASSERT(p->keys.owner->index_width % KVI_INDEX_GROUP == 0 && p->n_heads != 0);
    KVI_ASSERT(n_most <= p->scores_stride || p->n_rows <= 1);
    KVI_ASSERT(!p->of.slices || p->of.each != 0);
    KVI_ASSERT(!p->block_max || (!p->blocks && p->block_entries != 0));
    if (n_most == 0)
        return KVCSA_OK;
    job.shape.n_heads = p->n_heads;
    for (job.shape.n_tree = 1; job.shape.n_tree < p->n_heads; job.shape.n_tree *= 2)
        ;
    job.shape.n_groups = p->keys.owner->index_width / KVI_INDEX_GROUP;
    job.group_bytes = (size_t)GROUP * job.shape.n_groups * (KVI_INDEX_GROUP / 2 + 1);
    KVI_ASSERT(job.group_bytes == (size_t)GROUP * p->keys.owner->index_row_bytes);
    job.tile_bytes = aligned(job.kernels->tile_bytes(&job.shape));
    job.query_bytes = aligned(job.kernels->query_bytes(&job.shape));
    job.maxima = p->block_max && job.kernels->n_keys % p->block_entries == 0;
    bytes = kvi_min_size(p->n_rows, ROWS_TILE) * job.query_bytes;
    job.queries = kvi_alloc(job.allocator, bytes);
    atomic_init(&job.no_memory, job.queries == NULL);
    for (size_t row = 0; row < p->n_rows && job.queries != NULL; row += job.n_rows) {
        take_rows(&job, row);
        if (job.n_tiles == 0)
            continue;
        prepare_queries(&job);
        kvi_run(dev->threads, run_index_score, &job,
                job.n_tiles * kvi_div_up(job.n_rows, job.n_unit), tiles_of_task(&job));
    }
    if (p->block_max && !job.maxima && !atomic_load(&job.no_memory))
        kvi_run(dev->threads, run_maxima, &job, p->n_rows,
                kvi_max_size(1, MAXIMA_SCORES / n_most));
    kvi_free(job.allocator, job.queries, bytes);
    if (atomic_load(&job.no_memory))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "index scores: scratch of %zu bytes",
                        bytes + job.tile_bytes);
    return KVCSA_OK;
}

void kvi_index_init(kvi_index_kernels *k, uint32_t flags)
{
    k->flags = flags;
    kvi_index_portable(k);
#if defined(KVI_ARCH_X86_64)
    if (flags & KVCSA_CPU_AVX2)
        kvi_index_avx2(k);
    if (flags & KVCSA_CPU_AVX512)
        kvi_index_avx512(k);
#elif defined(KVI_ARCH_ARM64)
    if (flags & KVCSA_CPU_NEON)
        kvi_index_neon(k);
    if (flags & KVCSA_CPU_DOTPROD)
        kvi_index_dotprod(k);
#endif
}
