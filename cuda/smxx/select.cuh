/* The k largest of a row, ascending ids: the kernels that top-k and candidates share (select_rows.h says what an item is).
 *
 * Items are compared as integers in the order of the floats: 0 = never taken (NaN, -inf), equal for both zeros. The threshold
 * is found from histograms of 11, 11 and 10 bits of them; places come from counts in front of an item, never from atomics, so
 * ids ascend and of equal ones the first are taken. Nothing depends on values but how soon a pass may be left out. Equal bins
 * of a warp are one operation (ATOMS.POPC.INC in the machine code of sm_80 and sm_90a), so equal scores cost no more than
 * others.
 *
 * Rows of up to 16,384: one block of 1024 threads, 16 items a thread in registers; histograms and counts in shared memory.
 *   Traffic: 4 bytes an item, once, and the ids. Bound: the latency of one block: a load, 3 x (histogram, scan), a scan, 12
 *   barriers; 128 rows x 64 KiB = 8.4 MB: 1.8 us at 4.8 TB/s. Goal 8 us for 1 to 128 rows.
 * Longer rows: a grid of blocks a row, five kernels after a clearing, each with the histogram or the counts of the one before:
 *   first     histogram of the highest 11 bits, all items
 *   second    histogram of the next 11 of those that share the threshold's first 11; what is not below them goes to a list of
 *             each warp's segment, in order; a segment with more than its list holds is read again by the kernels to come, so
 *             that no row is a bad case
 *   third     the last 10 bits, from the lists
 *   count     items above and at the threshold, by segment and block
 *   write     ids at their places
 * How long a row is is known on the device alone, and rows of a batch may be far apart: a row's blocks are as many as a long one
 * wants (SELECT_BLOCKS), a warp has 512 items at least, and blocks without items end at once, as do those of a row of which all
 * is taken.
 *   Traffic: 8 bytes an item and lists of some more than k (20 bytes an item where a row's scores share 11 bits). Bound, H200:
 *   1 row of 1M: 2 x 4.2 MB = 1.8 us at 4.8 TB/s and 6 dependent launches (goal 30 us); 64 rows: 2 x 268 MB = 112 us (goal
 *   160 us).
 * measured: not yet run on a device */
#ifndef KVI_CUDA_SELECT_CUH
#define KVI_CUDA_SELECT_CUH

#include "device.cuh"

enum : unsigned {
    SELECT_BINS = 2048,       /* of the first two histograms */
    SELECT_LAST_BINS = 1024,
    SELECT_ALL_BINS = 2 * SELECT_BINS + SELECT_LAST_BINS,
    SELECT_SHORT_THREADS = 1024,
    SELECT_SHORT_TILES = 4,   /* of four items a thread */
    SELECT_SHORT_TILE = 4 * SELECT_SHORT_THREADS,
    SELECT_SHORT_ITEMS = SELECT_SHORT_TILES * SELECT_SHORT_TILE,
    SELECT_THREADS = 512,     /* of the kernels for longer rows */
    SELECT_WARPS = SELECT_THREADS / KVI_WARP,
    SELECT_GROUP = 4 * KVI_WARP, /* items that a warp reads at once, 16 bytes a lane */
    SELECT_AHEAD = 4,         /* groups on their way; a segment has no fewer where the row has more */
    SELECT_BLOCKS = 8,        /* of a row of 65,536 items and more, however many rows there are */
    SELECT_LIST = SELECT_GROUP,
    SELECT_NO_LIST = 0xffffffffu
};
static_assert(SELECT_SHORT_ITEMS == 16384, "counts of a short row fit 16 bits");

/* What a row is, and where its result goes. */
struct select_row_args {
    const uint32_t *items;         /* [n_rows, items_stride] floats, or keys if the kernel says so */
    const uint64_t *n;             /* [n_rows] scores; items are the ceil(n / per_item) - (newest != 0) first */
    const uint32_t *n_blocks;      /* NULL, or instead of n: [n_rows] of block_entries items */
    const int32_t  *blocks;        /* as in kvi_topk_params */
    int32_t        *ids;           /* [n_rows, ids_stride] */
    uint32_t       *n_ids;         /* [n_rows], NULL = nobody asks */
    size_t          items_stride, blocks_stride, ids_stride;
    unsigned        per_item;
    unsigned        block_entries; /* with blocks */
    unsigned        k;
    unsigned        newest;        /* 1: the item behind the last is taken too, whatever it is */
    uint64_t        all;           /* a row with n_visible <= all takes the ceil(n_visible / per_item) first; 0 = no row */
    const uint64_t *n_visible;     /* [n_rows] */
};

/* Items of key >> shift above prefix are taken, and the first `need` of those at it. */
struct select_threshold {
    unsigned prefix, shift, need;
    unsigned n_taken;
    unsigned done;                 /* no finer one is needed */
    unsigned unused[3];
};

/* ---- keys ---- */

/* 0 for NaN and -inf, else ascending with the float. */
KVI_DEV uint32_t select_key(uint32_t bits)
{
    const uint32_t size = bits & 0x7fffffffu;

    return size > 0x7f800000u ? 0u : bits >> 31 ? 0x7f800000u - size : 0x7f800000u + size;
}

/* What is not there has key 0. */
template <bool KEYS> KVI_DEV uint32_t select_nothing() { return KEYS ? 0u : 0xffffffffu; }
template <bool KEYS> KVI_DEV uint32_t select_key_of(uint32_t bits) { return KEYS ? bits : select_key(bits); }

/* ---- rows ---- */

/* All items of the row are taken, and none is looked at. */
KVI_DEV bool select_takes_all(const select_row_args &a, size_t row) { return a.all != 0 && a.n_visible[row] <= a.all; }

KVI_DEV unsigned select_n_items(const select_row_args &a, size_t row)
{
    if (select_takes_all(a, row))
        return 0;
    const uint64_t n_scores = a.n_blocks ? static_cast<uint64_t>(a.n_blocks[row]) * a.block_entries : a.n[row];
    const uint64_t n = a.per_item == 1 ? n_scores : (n_scores + a.per_item - 1) / a.per_item;
    const uint64_t rest = n != 0 ? n - a.newest : 0;

    return a.k == 0 ? 0u : static_cast<unsigned>(rest < a.items_stride ? rest : a.items_stride);
}

KVI_DEV void select_write(const select_row_args &a, size_t row, unsigned place, unsigned item)
{
    const int32_t *blocks = a.blocks ? a.blocks + row * a.blocks_stride : nullptr;
    const int32_t  be = static_cast<int32_t>(a.block_entries);
    int32_t        id = static_cast<int32_t>(item);

    if (blocks)
        id = blocks[item / a.block_entries] * be + static_cast<int32_t>(item % a.block_entries);
    a.ids[row * a.ids_stride + place] = id;
}

/* What stands behind the n ids that were taken; by `n_threads` threads, of which this is number `thread`. */
KVI_DEV void select_write_rest(const select_row_args &a, size_t row, unsigned n, size_t thread, size_t n_threads)
{
    int32_t *ids = a.ids + row * a.ids_stride;

    if (a.newest && a.n[row] != 0) {
        if (thread == 0)
            ids[n] = static_cast<int32_t>((a.n[row] - 1) / a.per_item);
        n++;
    }
    if (thread == 0 && a.n_ids)
        a.n_ids[row] = n;
    for (size_t i = n + thread; i < a.ids_stride; i += n_threads)
        ids[i] = -1;
}

/* The row of which all is taken. */
KVI_DEV void select_write_all(const select_row_args &a, size_t row, size_t thread, size_t n_threads)
{
    const uint64_t n_items = (a.n_visible[row] + a.per_item - 1) / a.per_item, most = static_cast<uint64_t>(a.k) + a.newest;
    const unsigned n = static_cast<unsigned>(n_items < most ? n_items : most);
    int32_t       *ids = a.ids + row * a.ids_stride;

    if (thread == 0 && a.n_ids)
        a.n_ids[row] = n;
    for (size_t i = thread; i < a.ids_stride; i += n_threads)
        ids[i] = i < n ? static_cast<int32_t>(i) : -1;
}

/* Where all scores are equal: the first ones, and the newest if it is asked for. */
KVI_KERNEL(SELECT_THREADS, 2) select_equal_kernel(select_row_args a)
{
    const size_t   row = blockIdx.x;
    const unsigned n_items = select_n_items(a, row), n = n_items < a.k ? n_items : a.k;
    int32_t       *ids = a.ids + row * a.ids_stride;

    if (select_takes_all(a, row)) {
        select_write_all(a, row, threadIdx.x, SELECT_THREADS);
        return;
    }
    for (unsigned i = threadIdx.x; i < n; i += SELECT_THREADS)
        ids[i] = static_cast<int32_t>(i);
    select_write_rest(a, row, n, threadIdx.x, SELECT_THREADS);
}

/* ---- scans ---- */

KVI_DEV unsigned select_warp_sum(unsigned x)
{
    for (unsigned d = KVI_WARP / 2; d; d /= 2)
        x += kvi_shfl_xor(x, d);
    return x;
}

KVI_DEV unsigned select_warp_scan(unsigned x) /* with the own one */
{
    for (unsigned d = 1; d < KVI_WARP; d *= 2) {
        const unsigned lower = kvi_shfl_up(x, d);
        x += kvi_lane() >= d ? lower : 0u;
    }
    return x;
}

struct select_scan_shared {
    unsigned warp[KVI_WARP];
    unsigned bin, need, count;
};

struct select_bin {
    unsigned bin;   /* the highest with which `wanted` items are reached */
    unsigned need;  /* of its `count` */
    unsigned count;
    unsigned total; /* in the histogram; if below wanted the others are undefined */
};

/* All threads call, after a barrier behind the last write of the histogram. It is not read any more when this returns. */
template <unsigned THREADS, unsigned BINS>
KVI_DEV select_bin select_find(select_scan_shared &s, const unsigned *bins, unsigned wanted)
{
    constexpr unsigned PER = BINS / THREADS, WARPS = THREADS / KVI_WARP;
    const unsigned     lowest = BINS - (threadIdx.x + 1) * PER; /* thread 0 has the highest bins */
    unsigned           n[PER], sum = 0;

    static_assert(BINS % THREADS == 0 && WARPS <= KVI_WARP, "every thread has a bin");
    KVI_UNROLL
    for (unsigned i = 0; i < PER; i++) {
        n[i] = bins[lowest + i];
        sum += n[i];
    }
    const unsigned scanned = select_warp_scan(sum);
    if (kvi_lane() == KVI_WARP - 1)
        s.warp[kvi_warp()] = scanned;
    kvi_sync_block();
    const unsigned of_warp = kvi_lane() < WARPS ? s.warp[kvi_lane()] : 0u;
    const unsigned total = select_warp_sum(of_warp);
    unsigned       above = select_warp_sum(kvi_lane() < kvi_warp() ? of_warp : 0u) + scanned - sum;
    KVI_UNROLL
    for (unsigned i = PER; i-- > 0;) {
        if (above < wanted && wanted - above <= n[i]) {
            s.bin = lowest + i;
            s.need = wanted - above;
            s.count = n[i];
        }
        above += n[i];
    }
    kvi_sync_block();
    return {s.bin, s.need, s.count, total};
}

/* The threshold after the first histogram. */
KVI_DEV select_threshold select_begin(const select_bin &b, unsigned k)
{
    if (b.total < k || k == 0)
        return {0, 0, 0, b.total, 1, {0, 0, 0}}; /* everything from key 1 on */
    return {b.bin, 21, b.need, k, b.count == b.need, {0, 0, 0}};
}

/* And after those to come, of `bits` bits each. */
KVI_DEV select_threshold select_refine(const select_threshold &t, const select_bin &b, unsigned bits)
{
    return {t.prefix << bits | b.bin, t.shift - bits, b.need, t.n_taken, b.count == b.need, {0, 0, 0}};
}

/* ---- short rows ---- */

struct select_short_shared {
    unsigned           bins[SELECT_ALL_BINS];
    unsigned           part[SELECT_SHORT_TILES * KVI_WARP]; /* of tile t, warp w: t x 32 + w */
    select_scan_shared scan;
};

/* Four items of a thread; the row may begin at any float. */
template <bool KEYS> KVI_DEV void select_load_four(uint32_t *to, const uint32_t *row, unsigned first, unsigned n)
{
    if (first + 4 <= n && reinterpret_cast<uintptr_t>(row) % 16 == 0) {
        const uint4 x = kvi_load_16(row + first);
        to[0] = x.x;
        to[1] = x.y;
        to[2] = x.z;
        to[3] = x.w;
    } else {
        KVI_UNROLL
        for (unsigned e = 0; e < 4; e++)
            to[e] = first + e < n ? row[first + e] : select_nothing<KEYS>();
    }
}

/* Items at the threshold in the upper half, above it in the lower. */
KVI_DEV unsigned select_class(const select_threshold &t, uint32_t key)
{
    const uint32_t high = key >> t.shift;

    return key == 0 ? 0u : high > t.prefix ? 1u : high == t.prefix ? 0x10000u : 0u;
}

template <bool KEYS> KVI_KERNEL(SELECT_SHORT_THREADS, 1) select_short_kernel(select_row_args a)
{
    select_short_shared &s = kvi_shared<select_short_shared>();
    const size_t         row = blockIdx.x;
    const uint32_t      *items = a.items + row * a.items_stride;
    const unsigned       n = select_n_items(a, row), t = threadIdx.x;
    const unsigned       n_tiles = (n + SELECT_SHORT_TILE - 1) / SELECT_SHORT_TILE;
    uint32_t             key[4 * SELECT_SHORT_TILES];
    unsigned             before[SELECT_SHORT_TILES];

    if (select_takes_all(a, row)) { /* the whole block */
        select_write_all(a, row, t, SELECT_SHORT_THREADS);
        return;
    }
    KVI_UNROLL
    for (unsigned j = 0; j < SELECT_SHORT_TILES; j++)
        select_load_four<KEYS>(key + 4 * j, items, j * SELECT_SHORT_TILE + 4 * t, n);
    for (unsigned i = t; i < SELECT_ALL_BINS; i += SELECT_SHORT_THREADS)
        s.bins[i] = 0;
    kvi_sync_block();

    KVI_UNROLL
    for (unsigned i = 0; i < 4 * SELECT_SHORT_TILES; i++) {
        key[i] = select_key_of<KEYS>(key[i]);
        if (key[i])
            kvi_atomic_add(&s.bins[key[i] >> 21], 1);
    }
    kvi_sync_block();
    select_threshold at = select_begin(select_find<SELECT_SHORT_THREADS, SELECT_BINS>(s.scan, s.bins, a.k), a.k);
    if (!at.done) {
        KVI_UNROLL
        for (unsigned i = 0; i < 4 * SELECT_SHORT_TILES; i++)
            if (key[i] >> 21 == at.prefix && key[i])
                kvi_atomic_add(&s.bins[SELECT_BINS + (key[i] >> 10) % SELECT_BINS], 1);
        kvi_sync_block();
        at = select_refine(at, select_find<SELECT_SHORT_THREADS, SELECT_BINS>(s.scan, s.bins + SELECT_BINS, at.need), 11);
    }
    if (!at.done) {
        unsigned *last = s.bins + 2 * SELECT_BINS;
        KVI_UNROLL
        for (unsigned i = 0; i < 4 * SELECT_SHORT_TILES; i++)
            if (key[i] >> 10 == at.prefix && key[i])
                kvi_atomic_add(&last[key[i] % SELECT_LAST_BINS], 1);
        kvi_sync_block();
        at = select_refine(at, select_find<SELECT_SHORT_THREADS, SELECT_LAST_BINS>(s.scan, last, at.need), 10);
    }

    /* In the order of the items: by tile, thread, element. */
    KVI_UNROLL
    for (unsigned j = 0; j < SELECT_SHORT_TILES; j++) {
        before[j] = 0;
        if (j < n_tiles) {
            unsigned own = 0;
            KVI_UNROLL
            for (unsigned e = 0; e < 4; e++)
                own += select_class(at, key[4 * j + e]);
            const unsigned scanned = select_warp_scan(own);
            before[j] = scanned - own;
            if (kvi_lane() == KVI_WARP - 1)
                s.part[j * KVI_WARP + kvi_warp()] = scanned;
        } else if (kvi_lane() == 0) {
            s.part[j * KVI_WARP + kvi_warp()] = 0;
        }
    }
    kvi_sync_block();
    if (kvi_warp() == 0) {
        unsigned part[SELECT_SHORT_TILES], sum = 0;
        KVI_UNROLL
        for (unsigned i = 0; i < SELECT_SHORT_TILES; i++) {
            part[i] = s.part[SELECT_SHORT_TILES * t + i];
            sum += part[i];
        }
        sum = select_warp_scan(sum) - sum;
        KVI_UNROLL
        for (unsigned i = 0; i < SELECT_SHORT_TILES; i++) {
            s.part[SELECT_SHORT_TILES * t + i] = sum;
            sum += part[i];
        }
    }
    kvi_sync_block();
    KVI_UNROLL
    for (unsigned j = 0; j < SELECT_SHORT_TILES; j++)
        if (j < n_tiles) {
            unsigned both = s.part[j * KVI_WARP + kvi_warp()] + before[j];
            KVI_UNROLL
            for (unsigned e = 0; e < 4; e++) {
                const unsigned own = select_class(at, key[4 * j + e]);
                const unsigned ties = both >> 16, place = (both & 0xffffu) + (ties < at.need ? ties : at.need);

                if (own == 1 || (own && ties < at.need))
                    select_write(a, row, place, j * SELECT_SHORT_TILE + 4 * t + e);
                both += own;
            }
        }
    select_write_rest(a, row, at.n_taken, t, SELECT_SHORT_THREADS);
}

/* ---- longer rows ---- */

struct select_counts {
    unsigned above, at; /* the threshold */
};

/* Scratch of one call. A row has blocks_a_row blocks, a block SELECT_WARPS segments. */
struct select_long_args {
    select_row_args   row;
    unsigned         *bins;       /* [n_rows, SELECT_ALL_BINS], 0 at first */
    select_threshold *thresholds; /* [n_rows, 3]: after each histogram */
    unsigned         *listed;     /* [n_rows, blocks_a_row, SELECT_WARPS] items in the list or SELECT_NO_LIST */
    uint2            *lists;      /* [n_rows, blocks_a_row, SELECT_WARPS, SELECT_LIST] keys and items, ascending */
    select_counts    *of_segment; /* [n_rows, blocks_a_row, SELECT_WARPS] */
    select_counts    *of_block;   /* [n_rows, blocks_a_row] */
    unsigned          blocks_a_row;
};

struct select_long_shared {
    unsigned           bins[SELECT_BINS];
    select_scan_shared scan;
    select_counts      part[SELECT_WARPS];
};

/* What a warp reads: groups begin..end-1 of 128 items. Groups are counted from the 16-byte boundary at or in front of the
 * row's begin, `off` floats before it. */
struct select_segment {
    const uint32_t *items; /* of the row */
    unsigned        n, off;
    unsigned        begin, end;
    size_t          row, block, number; /* number of the block and of the segment among all rows' */
    bool            idle;               /* the block has no items. The row's first one decides for all, so it is idle only where
                                         * there is nothing to decide */
};

KVI_DEV select_segment select_segment_of(const select_long_args &a)
{
    select_segment g;

    g.block = blockIdx.x;
    g.row = blockIdx.x / a.blocks_a_row;
    g.number = g.block * SELECT_WARPS + kvi_warp();
    g.items = a.row.items + g.row * a.row.items_stride;
    g.n = select_n_items(a.row, g.row);
    g.off = static_cast<unsigned>(reinterpret_cast<uintptr_t>(g.items) / 4 % 4);
    const unsigned n_groups = (g.n + g.off + SELECT_GROUP - 1) / SELECT_GROUP;
    const unsigned n_segments = a.blocks_a_row * SELECT_WARPS;
    const unsigned even = (n_groups + n_segments - 1) / n_segments, per = even > SELECT_AHEAD ? even : +SELECT_AHEAD;
    const unsigned part = blockIdx.x % a.blocks_a_row, mine = part * SELECT_WARPS + kvi_warp();

    g.idle = select_takes_all(a.row, g.row) || (part != 0 && part * SELECT_WARPS * per >= n_groups);
    g.begin = mine * per < n_groups ? mine * per : n_groups;
    g.end = g.begin + per < n_groups ? g.begin + per : n_groups;
    return g;
}

/* Number of the first of the four items that this lane has of a group; wraps around in front of item 0. */
KVI_DEV unsigned select_first_item(const select_segment &g, unsigned group)
{
    return group * SELECT_GROUP + 4 * kvi_lane() - g.off;
}

template <bool KEYS> KVI_DEV uint4 select_load_group(const select_segment &g, unsigned group)
{
    const unsigned first = select_first_item(g, group);

    if (group < g.end && first < g.n && g.n - first >= 4) /* a first in front of item 0 is not below n */
        return kvi_load_16(g.items + first);
    uint4 x;
    x.x = group < g.end && first < g.n ? g.items[first] : select_nothing<KEYS>();
    x.y = group < g.end && first + 1 < g.n ? g.items[first + 1] : select_nothing<KEYS>();
    x.z = group < g.end && first + 2 < g.n ? g.items[first + 2] : select_nothing<KEYS>();
    x.w = group < g.end && first + 3 < g.n ? g.items[first + 3] : select_nothing<KEYS>();
    return x;
}

/* fn(key[4], item[4]) for all items of the segment, in order: by call, lane, element. All lanes call it equally often. */
template <bool KEYS, class F> KVI_DEV void select_each(const select_segment &g, F fn)
{
    for (unsigned group = g.begin; group < g.end; group += SELECT_AHEAD) {
        uint4 x[SELECT_AHEAD];

        KVI_UNROLL
        for (unsigned i = 0; i < SELECT_AHEAD; i++)
            x[i] = select_load_group<KEYS>(g, group + i);
        KVI_UNROLL
        for (unsigned i = 0; i < SELECT_AHEAD; i++) {
            const unsigned first = select_first_item(g, group + i);
            const uint32_t key[4] = {select_key_of<KEYS>(x[i].x), select_key_of<KEYS>(x[i].y), select_key_of<KEYS>(x[i].z),
                                     select_key_of<KEYS>(x[i].w)};
            const uint32_t item[4] = {first, first + 1, first + 2, first + 3};
            fn(key, item);
        }
    }
}

/* The same for what may be taken after the second pass: the list, or all items again. A list is one call. */
template <bool KEYS, class F> KVI_DEV void select_each_listed(const select_long_args &a, const select_segment &g, F fn)
{
    const unsigned n = a.listed[g.number];

    if (n == SELECT_NO_LIST) {
        select_each<KEYS>(g, fn);
    } else if (n) {
        const uint2   *list = a.lists + g.number * SELECT_LIST;
        const unsigned first = 4 * kvi_lane();
        uint32_t       key[4], item[4];

        KVI_UNROLL
        for (unsigned e = 0; e < 4; e++) {
            const uint2 x = first + e < n ? list[first + e] : make_uint2(0, 0);
            key[e] = x.x;
            item[e] = x.y;
        }
        fn(key, item);
    }
}

/* A barrier must follow before the first count. */
KVI_DEV void select_clear(select_long_shared &s)
{
    for (unsigned i = threadIdx.x; i < SELECT_BINS; i += SELECT_THREADS)
        s.bins[i] = 0;
}

/* The block's counts go to the row's. */
KVI_DEV void select_add_bins(const select_long_shared &s, unsigned *bins, unsigned n_bins)
{
    for (unsigned i = threadIdx.x; i < n_bins; i += SELECT_THREADS)
        if (s.bins[i])
            kvi_atomic_add(&bins[i], s.bins[i]);
}

template <bool KEYS> KVI_KERNEL(SELECT_THREADS, 2) select_first_kernel(select_long_args a)
{
    select_long_shared  &s = kvi_shared<select_long_shared>();
    const select_segment g = select_segment_of(a);

    if (g.idle || g.n == 0) /* the whole block */
        return;
    select_clear(s);
    kvi_sync_block();
    select_each<KEYS>(g, [&](const uint32_t (&key)[4], const uint32_t (&)[4]) {
        KVI_UNROLL
        for (unsigned e = 0; e < 4; e++)
            if (key[e])
                kvi_atomic_add(&s.bins[key[e] >> 21], 1);
    });
    kvi_sync_block();
    select_add_bins(s, a.bins + g.row * SELECT_ALL_BINS, SELECT_BINS);
}

template <bool KEYS> KVI_KERNEL(SELECT_THREADS, 2) select_second_kernel(select_long_args a)
{
    select_long_shared    &s = kvi_shared<select_long_shared>();
    const select_segment   g = select_segment_of(a);
    unsigned              *bins = a.bins + g.row * SELECT_ALL_BINS;
    uint2                 *list = a.lists + g.number * SELECT_LIST;

    if (g.idle)
        return;
    select_clear(s); /* barriers follow in select_find */
    const select_threshold at = select_begin(select_find<SELECT_THREADS, SELECT_BINS>(s.scan, bins, a.row.k), a.row.k);
    const uint32_t         least = at.prefix ? at.prefix << at.shift : 1u;
    const unsigned         lower = (1u << kvi_lane()) - 1u;
    unsigned               n = 0; /* in the list; more than it holds = there is none */

    if (blockIdx.x % a.blocks_a_row == 0 && threadIdx.x == 0)
        a.thresholds[3 * g.row] = at;
    select_each<KEYS>(g, [&](const uint32_t (&key)[4], const uint32_t (&item)[4]) {
        unsigned taken[4], in_front = 0, all = 0;

        if (!kvi_ballot(key[0] >= least || key[1] >= least || key[2] >= least || key[3] >= least))
            return;
        KVI_UNROLL
        for (unsigned e = 0; e < 4; e++) {
            taken[e] = kvi_ballot(key[e] >= least);
            in_front += kvi_count_bits(taken[e] & lower);
            all += kvi_count_bits(taken[e]);
        }
        const bool fits = n + all <= SELECT_LIST;
        KVI_UNROLL
        for (unsigned e = 0; e < 4; e++)
            if (key[e] >= least) {
                if (fits)
                    list[n + in_front] = make_uint2(key[e], item[e]);
                in_front++;
                if (!at.done && key[e] >> 21 == at.prefix)
                    kvi_atomic_add(&s.bins[(key[e] >> 10) % SELECT_BINS], 1);
            }
        n = fits ? n + all : SELECT_LIST + 1;
    });
    if (kvi_lane() == 0)
        a.listed[g.number] = n <= SELECT_LIST ? n : static_cast<unsigned>(SELECT_NO_LIST);
    kvi_sync_block();
    select_add_bins(s, bins + SELECT_BINS, SELECT_BINS);
}

template <bool KEYS> KVI_KERNEL(SELECT_THREADS, 2) select_third_kernel(select_long_args a)
{
    select_long_shared  &s = kvi_shared<select_long_shared>();
    const select_segment g = select_segment_of(a);
    unsigned            *bins = a.bins + g.row * SELECT_ALL_BINS;

    if (g.idle)
        return;
    select_threshold at = a.thresholds[3 * g.row];
    if (!at.done) { /* the same for the whole block */
        select_clear(s);
        at = select_refine(at, select_find<SELECT_THREADS, SELECT_BINS>(s.scan, bins + SELECT_BINS, at.need), 11);
        if (!at.done)
            select_each_listed<KEYS>(a, g, [&](const uint32_t (&key)[4], const uint32_t (&)[4]) {
                KVI_UNROLL
                for (unsigned e = 0; e < 4; e++)
                    if (key[e] && key[e] >> 10 == at.prefix)
                        kvi_atomic_add(&s.bins[key[e] % SELECT_LAST_BINS], 1);
            });
        kvi_sync_block();
        if (!at.done)
            select_add_bins(s, bins + 2 * SELECT_BINS, SELECT_LAST_BINS);
    }
    if (blockIdx.x % a.blocks_a_row == 0 && threadIdx.x == 0)
        a.thresholds[3 * g.row + 1] = at;
}

template <bool KEYS> KVI_KERNEL(SELECT_THREADS, 2) select_count_kernel(select_long_args a)
{
    select_long_shared  &s = kvi_shared<select_long_shared>();
    const select_segment g = select_segment_of(a);
    const unsigned      *bins = a.bins + g.row * SELECT_ALL_BINS;
    select_counts        own = {0, 0};

    if (g.idle)
        return;
    select_threshold at = a.thresholds[3 * g.row + 1];
    if (!at.done)
        at = select_refine(at, select_find<SELECT_THREADS, SELECT_LAST_BINS>(s.scan, bins + 2 * SELECT_BINS, at.need), 10);
    if (blockIdx.x % a.blocks_a_row == 0 && threadIdx.x == 0)
        a.thresholds[3 * g.row + 2] = at;
    select_each_listed<KEYS>(a, g, [&](const uint32_t (&key)[4], const uint32_t (&)[4]) {
        KVI_UNROLL
        for (unsigned e = 0; e < 4; e++) {
            const unsigned c = select_class(at, key[e]);
            own.above += c & 1u;
            own.at += c >> 16;
        }
    });
    own.above = select_warp_sum(own.above);
    own.at = select_warp_sum(own.at);
    if (kvi_lane() == 0) {
        a.of_segment[g.number] = own;
        s.part[kvi_warp()] = own;
    }
    kvi_sync_block();
    if (threadIdx.x == 0) {
        select_counts sum = {0, 0};
        for (unsigned w = 0; w < SELECT_WARPS; w++) {
            sum.above += s.part[w].above;
            sum.at += s.part[w].at;
        }
        a.of_block[g.block] = sum;
    }
}

/* Ids of the segment. */
template <bool KEYS>
KVI_DEV void select_write_segment(const select_long_args &a, const select_segment &g, const select_threshold &at)
{
    const unsigned      part = blockIdx.x % a.blocks_a_row;
    const select_counts own = a.of_segment[g.number];
    const unsigned      lower = (1u << kvi_lane()) - 1u;
    unsigned            above = 0, ties = 0; /* in front */

    for (unsigned b = kvi_lane(); b < part; b += KVI_WARP) {
        above += a.of_block[g.block - part + b].above;
        ties += a.of_block[g.block - part + b].at;
    }
    if (kvi_lane() < kvi_warp()) { /* 16 warps at most */
        above += a.of_segment[g.block * SELECT_WARPS + kvi_lane()].above;
        ties += a.of_segment[g.block * SELECT_WARPS + kvi_lane()].at;
    }
    above = select_warp_sum(above);
    ties = select_warp_sum(ties);
    if (own.above || (own.at && ties < at.need))
        select_each_listed<KEYS>(a, g, [&](const uint32_t (&key)[4], const uint32_t (&item)[4]) {
            unsigned c[4], n_above = 0, n_ties = 0, all_above = 0, all_ties = 0;

            KVI_UNROLL
            for (unsigned e = 0; e < 4; e++)
                c[e] = select_class(at, key[e]);
            if (!kvi_ballot((c[0] | c[1] | c[2] | c[3]) != 0))
                return;
            KVI_UNROLL
            for (unsigned e = 0; e < 4; e++) {
                const unsigned higher = kvi_ballot(c[e] == 1), equal = kvi_ballot(c[e] > 1);
                n_above += kvi_count_bits(higher & lower);
                n_ties += kvi_count_bits(equal & lower);
                all_above += kvi_count_bits(higher);
                all_ties += kvi_count_bits(equal);
            }
            n_above += above;
            n_ties += ties;
            KVI_UNROLL
            for (unsigned e = 0; e < 4; e++) {
                if (c[e] == 1 || (c[e] && n_ties < at.need))
                    select_write(a.row, g.row, n_above + (n_ties < at.need ? n_ties : at.need), item[e]);
                n_above += c[e] & 1u;
                n_ties += c[e] >> 16;
            }
            above += all_above;
            ties += all_ties;
        });
}

template <bool KEYS> KVI_KERNEL(SELECT_THREADS, 2) select_write_kernel(select_long_args a)
{
    const select_segment g = select_segment_of(a);
    const size_t         n_threads = static_cast<size_t>(a.blocks_a_row) * SELECT_THREADS;
    const size_t         thread = blockIdx.x % a.blocks_a_row * SELECT_THREADS + threadIdx.x;

    if (select_takes_all(a.row, g.row)) {
        select_write_all(a.row, g.row, thread, n_threads);
        return;
    }
    const select_threshold at = a.thresholds[3 * g.row + 2];
    if (!g.idle)
        select_write_segment<KEYS>(a, g, at);
    select_write_rest(a.row, g.row, at.n_taken, thread, n_threads);
}

#endif
