/* Counts of what rows of ascending lists name.
 *
 * Work split: a block a row, eight items a thread and turn, so that 2048 items are one turn; turns end at the first negative item.
 * An item's cache blocks are those behind the ones of the item in front of it, which a thread reads for itself: nothing is carried
 * from item to item. The block's sums go to the three counts by integer additions, which are exact in any order.
 * Traffic: 4 bytes an item. Bound: latency of a launch, one load, two reductions and an addition in the second cache; 128 rows of
 * 512 items are 256 KB.
 * Measured: not yet run on a device. */
#ifndef KVI_CUDA_TALLY_CUH
#define KVI_CUDA_TALLY_CUH

#include "device.cuh"

enum : unsigned {
    TALLY_THREADS = 256,
    TALLY_WARPS = TALLY_THREADS / KVI_WARP,
    TALLY_EACH = 8, /* items of a thread and turn */
    TALLY_TURN = TALLY_EACH * TALLY_THREADS,
    TALLY_COUNTS = 3
};

struct tally_args {
    const int32_t  *items;     /* [n_rows, stride] */
    const uint64_t *n_visible; /* [n_rows] or NULL */
    uint64_t       *counts;    /* [3], or of every rows_each rows, counts_stride apart */
    size_t          stride, rows_each, counts_stride;
    uint64_t        all;       /* rows that see no more do not count; 0 = all rows do */
    unsigned        n_items, each, rows_per_block;
};

struct tally_shared {
    unsigned end[TALLY_WARPS]; /* of a turn: the first item that ends the row, as far as a warp sees */
    uint64_t sum[TALLY_WARPS][TALLY_COUNTS];
};

/* Entries of an item that count: first .. end - 1, none where end <= first. */
KVI_DEV uint64_t tally_end(const tally_args &a, uint64_t first, uint64_t n_visible)
{
    return first + a.each < n_visible ? first + a.each : n_visible;
}

KVI_DEV uint64_t tally_divide(uint64_t x, unsigned by) { return x >> 32 ? x / by : static_cast<unsigned>(x) / by; }

KVI_DEV void tally_item(const tally_args &a, const int32_t *items, unsigned i, uint64_t n_visible, uint64_t (&sum)[TALLY_COUNTS])
{
    const uint64_t first = static_cast<uint64_t>(items[i]) * a.each, end = tally_end(a, first, n_visible);

    sum[0]++;
    if (first >= end)
        return;
    uint64_t from = tally_divide(first, a.rows_per_block);
    if (i) { /* items ascend: that in front counts too, and ends in no later block */
        const uint64_t before = tally_end(a, static_cast<uint64_t>(items[i - 1]) * a.each, n_visible);
        const uint64_t next = tally_divide(before - 1, a.rows_per_block) + 1;
        from = from > next ? from : next;
    }
    sum[1] += end - first;
    sum[2] += tally_divide(end - 1, a.rows_per_block) + 1 - from;
}

KVI_KERNEL(TALLY_THREADS, 4) tally_kernel(tally_args a)
{
    tally_shared  &s = kvi_shared<tally_shared>();
    const size_t   row = blockIdx.x;
    const int32_t *items = a.items + row * a.stride;
    const uint64_t n_visible = a.n_visible ? a.n_visible[row] : UINT64_MAX;
    uint64_t       sum[TALLY_COUNTS] = {0, 0, 0};
    bool           more = true;

    if (a.all != 0 && n_visible <= a.all) /* the whole block */
        return;
    for (size_t begin = 0; begin < a.n_items && more; begin += TALLY_TURN) {
        unsigned end = a.n_items - begin < TALLY_TURN ? static_cast<unsigned>(a.n_items - begin) : TALLY_TURN;

        more = end == TALLY_TURN;
        KVI_UNROLL
        for (unsigned j = TALLY_EACH; j-- > 0;) {
            const unsigned i = j * TALLY_THREADS + threadIdx.x;
            if (begin + i < a.n_items && items[begin + i] < 0)
                end = i < end ? i : end;
        }
        KVI_UNROLL
        for (unsigned d = KVI_WARP / 2; d; d /= 2) {
            const unsigned other = kvi_shfl_xor(end, d);
            end = other < end ? other : end;
        }
        if (kvi_lane() == 0)
            s.end[kvi_warp()] = end;
        kvi_sync_block();
        for (unsigned w = 0; w < TALLY_WARPS; w++)
            end = s.end[w] < end ? s.end[w] : end;
        more = more && end == TALLY_TURN;
        for (unsigned i = threadIdx.x; i < end; i += TALLY_THREADS)
            tally_item(a, items, static_cast<unsigned>(begin) + i, n_visible, sum);
        kvi_sync_block(); /* in front of the next turn's */
    }
    KVI_UNROLL
    for (unsigned c = 0; c < TALLY_COUNTS; c++) {
        KVI_UNROLL
        for (unsigned d = KVI_WARP / 2; d; d /= 2)
            sum[c] += kvi_shfl_xor(sum[c], d);
        if (kvi_lane() == 0)
            s.sum[kvi_warp()][c] = sum[c];
    }
    kvi_sync_block();
    if (threadIdx.x < TALLY_COUNTS) {
        uint64_t all = 0;
        for (unsigned w = 0; w < TALLY_WARPS; w++)
            all += s.sum[w][threadIdx.x];
        uint64_t *counts = a.rows_each ? a.counts + row / a.rows_each * a.counts_stride : a.counts;
        if (all)
            kvi_atomic_add(&counts[threadIdx.x], all);
    }
}

#endif
