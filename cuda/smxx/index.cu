#include "index.cuh"

#include "cuda_features.h"

typedef index_shared<4, 4, 3> index_shared_hot; /* 128 channels, 32 heads */
typedef index_shared<8, 8, 2> index_shared_any;

static_assert(sizeof(index_group<4>) == 8 * 68 && sizeof(index_group<8>) == 8 * 136, "a group is as long as in the cache");
static_assert(offsetof(index_shared_hot, query) % 16 == 0 && sizeof(index_query<4, 4>) % 16 == 0,
              "operands are read 16 bytes at once");
static_assert(offsetof(index_shared_any, query) % 16 == 0 && sizeof(index_query<8, 8>) % 16 == 0,
              "operands are read 16 bytes at once");
/* Two blocks of six rows on an SM of 164 KiB, each of which costs 1 KiB more. */
static_assert(2 * (sizeof(index_shared_hot) + 5 * sizeof(index_query<4, 4>) + 1024) <= 164 * 1024, "two blocks on an SM");
static_assert(sizeof(index_shared_any) <= 99 * 1024, "a block of one row on every architecture");

enum : unsigned { MAX_GRID_Y = 65535, MAX_HEADS = 64, MAX_WIDTH = 8 * INDEX_BLOCK };

static kvcsa_status index_check(const kvi_index_score_params *p, kvcsa_error *err)
{
    const kvi_kv_owner *o = p->keys.owner;

    if (o->index_width == 0 || o->index_width % INDEX_BLOCK || o->index_width > MAX_WIDTH)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "index_score: %u channels; multiples of %u up to %u",
                             o->index_width, +INDEX_BLOCK, +MAX_WIDTH);
    if (p->n_heads == 0 || p->n_heads > MAX_HEADS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "index_score: %u heads; 1 to %u", p->n_heads, +MAX_HEADS);
    if (o->index_value_bytes != o->index_width / 2 || o->index_row_bytes != o->index_width / 32 * 17)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "index_score: keys of %u bytes are not FP4", o->index_row_bytes);
    if (o->rows_per_block == 0 || o->rows_per_block % INDEX_GROUP || o->rows_per_block > INT32_MAX || o->index_off % 8)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "index_score: %u keys of a block at byte %u; both multiples of 8",
                             o->rows_per_block, o->index_off);
    if (reinterpret_cast<uintptr_t>(p->codes) % 8)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "index_score: query codes at no multiple of 8 bytes");
    if (p->scores_stride > INT32_MAX)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "index_score: scores_stride %zu; at most 2^31 - 1", p->scores_stride);
    if ((p->blocks || p->block_max) && (p->block_entries == 0 || p->block_entries > INT32_MAX))
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "index_score: blocks of %u entries", p->block_entries);
    if (p->blocks && p->block_max)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "index_score: maxima of candidate blocks");
    if (p->of.slices && p->of.each == 0)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "index_score: timelines of 0 rows");
    return KVCSA_OK;
}

static index_divisor index_make_divisor(uint32_t by)
{
    index_divisor d = {by, 0, 0};

    while (by > 1u << d.shift)
        d.shift++;
    d.mul = static_cast<uint32_t>(((static_cast<uint64_t>(1) << 32) * ((static_cast<uint64_t>(1) << d.shift) - by)) / by + 1);
    return d;
}

static index_args index_make_args(const kvi_index_score_params *p)
{
    const kvi_kv_owner *o = p->keys.owner;
    index_args          a = {};

    a.parts = p->keys.index_parts;
    a.slices = p->of.slices;
    a.codes = p->codes;
    a.scales = p->scales;
    a.weights = p->weights;
    a.n_visible = p->n_visible;
    a.blocks = p->blocks;
    a.n_blocks = p->n_blocks;
    a.scores = p->scores;
    a.all = p->all;
    a.scores_stride = p->scores_stride;
    a.blocks_stride = p->blocks_stride;
    a.max_stride = p->max_stride;
    a.n_rows = p->n_rows;
    a.rows_slice = p->of.slices && p->of.each < p->n_rows ? p->of.each : p->n_rows;
    a.n_heads = p->n_heads;
    for (a.n_tree = 1; a.n_tree < p->n_heads; a.n_tree *= 2)
        ;
    a.n_groups = o->index_width / INDEX_BLOCK;
    a.rows_per_block = index_make_divisor(o->rows_per_block);
    a.index_off = o->index_off;
    a.block_entries = p->block_entries;
    a.per_block = index_make_divisor(p->block_entries ? p->block_entries : 1);
    a.piece = a.n_groups % 2 || o->index_off % 16 ? 8 : 16;
    if (p->blocks && p->block_entries % INDEX_GROUP)
        a.piece = 1;
    return a;
}

/* Rows of a block: what fits with `per_sm` blocks on an SM, else alone; in equal tiles. */
static unsigned index_rows(const kvi_device *dev, size_t n_rows, size_t fixed, size_t query, unsigned per_sm)
{
    const size_t shared = (dev->shared_max + 1024) / per_sm - 1024;
    size_t       fit = shared >= fixed + query ? (shared - fixed) / query : (dev->shared_max - fixed) / query;

    fit = fit < INDEX_ROWS ? fit : +INDEX_ROWS;
    const size_t n_tiles = (n_rows + fit - 1) / fit;
    return static_cast<unsigned>((n_rows + n_tiles - 1) / n_tiles);
}

/* Blocks that share a tile of rows: few tiles fill the machine once, so that queries are loaded once; of many, the last ones
 * must not leave much of it idle. */
static size_t index_split(size_t slots, size_t n_tiles, size_t n_units)
{
    const size_t n = n_tiles <= slots / 4 ? slots / n_tiles : (4 * slots + n_tiles - 1) / n_tiles;

    return n < n_units ? n : n_units;
}

template <class SHARED, class QUERY>
static kvcsa_status index_start(kvi_device *dev, const char *name, void (*kernel)(index_args), index_args a, unsigned per_sm,
                                kvcsa_error *err)
{
    const size_t fixed = sizeof(SHARED) - sizeof(QUERY), slots = static_cast<size_t>(dev->n_sms) * per_sm;
    const size_t n_units = (a.scores_stride + INDEX_UNIT - 1) / INDEX_UNIT;

    a.rows_tile = a.blocks ? 1 : index_rows(dev, a.rows_slice, fixed, sizeof(QUERY), per_sm);
    const size_t n_slices = (a.n_rows + a.rows_slice - 1) / a.rows_slice;
    const size_t tiles_slice = (a.rows_slice + a.rows_tile - 1) / a.rows_tile, n_tiles = n_slices * tiles_slice;
    if (n_tiles > INT32_MAX)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "index_score: %zu tiles of rows; at most 2^31 - 1", n_tiles);
    a.tiles_slice = static_cast<unsigned>(tiles_slice);
    a.n_tiles = static_cast<unsigned>(n_tiles);
    dim3 grid(a.n_tiles);
    if (n_slices > 1 && n_tiles <= INDEX_DEALT_TILES) {
        const size_t deal = n_tiles <= slots / 4 ? slots : 4 * slots;
        const size_t most = n_tiles * ((n_units + INDEX_WARPS - 1) / INDEX_WARPS);

        a.deal = static_cast<unsigned>(deal);
        grid.x = static_cast<unsigned>(deal + n_tiles < most ? deal + n_tiles : most);
    } else {
        const size_t n = index_split(slots, n_tiles, n_units);

        grid.y = static_cast<unsigned>(n < MAX_GRID_Y ? n : +MAX_GRID_Y);
    }
    return kvi_launch(dev, name, kernel, grid, INDEX_THREADS, fixed + a.rows_tile * sizeof(QUERY), err, a);
}

static kvcsa_status index_maxima(kvi_device *dev, index_args a, kvcsa_error *err)
{
    const size_t all_blocks = (a.scores_stride + a.block_entries - 1) / a.block_entries;
    const size_t n_blocks = all_blocks < a.max_stride ? all_blocks : a.max_stride;

    for (size_t row = 0; row < a.n_rows && n_blocks; row += MAX_GRID_Y) {
        const size_t n = a.n_rows - row < MAX_GRID_Y ? a.n_rows - row : +MAX_GRID_Y;

        a.rows_tile = static_cast<unsigned>(row);
        KVI_TRY(kvi_launch(dev, "index_max", index_max_kernel,
                           dim3(kvi_blocks(n_blocks, INDEX_MAX_THREADS), static_cast<unsigned>(n)), INDEX_MAX_THREADS, 0, err,
                           a));
    }
    return KVCSA_OK;
}

/* Maxima of blocks of 8, 16 and 32 entries come from the kernel that scores, those of others from a second one. */
kvcsa_status kvi_cuda_index_score(kvi_device *dev, const kvi_index_score_params *p, kvcsa_error *err)
{
    kvi_cuda_use use(dev);

    KVI_TRY(index_check(p, err));
    if (p->n_rows == 0 || p->scores_stride == 0)
        return KVCSA_OK;
    index_args a = index_make_args(p);
    const bool fused = a.block_entries == 8 || a.block_entries == 16 || a.block_entries == 32;

    a.block_max = fused ? p->block_max : nullptr;
    if (a.n_groups == 4 && a.n_heads <= 32)
        KVI_TRY(
            (index_start<index_shared_hot, index_query<4, 4>>(dev, "index_score_128", index_kernel<4, 4, 3, true>, a, 2, err)));
    else
        KVI_TRY((index_start<index_shared_any, index_query<8, 8>>(dev, "index_score", index_kernel<8, 8, 2, false>, a, 1, err)));
    if (!p->block_max || fused)
        return KVCSA_OK;
    a.block_max = p->block_max;
    return index_maxima(dev, a, err);
}

void kvi_cuda_features_index(kvi_features *f)
{
    f->index_heads = {1, MAX_HEADS, 1};
    f->index_width = {INDEX_BLOCK, MAX_WIDTH, INDEX_BLOCK};
    f->candidate_block_entries = {1, INT32_MAX, 1};
}
