/* Maxima of blocks of scores, as keys of select.cuh: what candidates are chosen by.
 *
 * A thread a block of up to 32 scores (16 bytes a load where the rows allow it: each 32-byte sector is read once), a warp a
 * longer one. A row has a bounded number of thread blocks, which go round: a batch of rows that are shorter than their stride
 * is not a grid of blocks without work.
 * Traffic: 4 bytes a score read, 4 / block_entries written. Bound, H200: 1M scores: 4.2 MB, 0.9 us at 4.8 TB/s, and the
 * selection of select.cuh among 131,072 keys (five more launches; its clearing is done here on the way). 128 rows x 1M: 537
 * MB, 112 us + 2 x 14 us.
 * measured: not yet run on a device */
#ifndef KVI_CUDA_CANDIDATES_CUH
#define KVI_CUDA_CANDIDATES_CUH

#include "select.cuh"

enum : unsigned {
    MAXIMA_THREADS = 256,
    MAXIMA_SHORT = 32, /* scores of a block that one thread reads */
    MAXIMA_TURNS = 4,  /* blocks of scores a warp of the other kernel, at once */
    MAXIMA_BLOCKS = 8192 /* of all rows; 128 of them at most */
};

struct maxima_args {
    const float    *scores;    /* [n_rows, scores_stride] */
    const uint64_t *n_visible; /* [n_rows] */
    uint32_t       *keys;      /* [n_rows, keys_stride] of all blocks but the newest */
    unsigned       *zeros;     /* [n_zeros] to be cleared on the way */
    size_t          scores_stride, keys_stride, n_zeros;
    uint64_t        all;       /* no keys for rows that see no more; 0 = for all */
    unsigned        block_entries;
    unsigned        blocks_a_row; /* of the grid */
};

KVI_DEV size_t maxima_n_keys(const maxima_args &a, size_t row)
{
    const uint64_t visible = a.n_visible[row], n = visible < a.scores_stride ? visible : a.scores_stride;

    return n == 0 || visible <= a.all ? 0 : static_cast<size_t>((n - 1) / a.block_entries);
}

KVI_DEV void maxima_clear(const maxima_args &a)
{
    for (size_t i = static_cast<size_t>(blockIdx.x) * MAXIMA_THREADS + threadIdx.x; i < a.n_zeros;
         i += static_cast<size_t>(gridDim.x) * MAXIMA_THREADS)
        a.zeros[i] = 0;
}

KVI_DEV uint32_t maxima_more(uint32_t most, uint32_t bits)
{
    const uint32_t key = select_key(bits);

    return key > most ? key : most;
}

KVI_KERNEL(MAXIMA_THREADS, 4) maxima_thread_kernel(maxima_args a)
{
    const size_t row = blockIdx.x / a.blocks_a_row, n = maxima_n_keys(a, row);
    const size_t first = static_cast<size_t>(blockIdx.x % a.blocks_a_row) * MAXIMA_THREADS + threadIdx.x;

    maxima_clear(a);
    for (size_t i = first; i < n; i += static_cast<size_t>(a.blocks_a_row) * MAXIMA_THREADS) {
        const float *x = a.scores + row * a.scores_stride + i * a.block_entries;
        uint32_t     most = 0;

        if (a.block_entries % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
            for (unsigned j = 0; j < a.block_entries; j += 4) {
                const uint4 four = kvi_load_16(x + j);
                most = maxima_more(maxima_more(maxima_more(maxima_more(most, four.x), four.y), four.z), four.w);
            }
        } else {
            for (unsigned j = 0; j < a.block_entries; j++)
                most = maxima_more(most, kvi_bits(x[j]));
        }
        a.keys[row * a.keys_stride + i] = most;
    }
}

KVI_KERNEL(MAXIMA_THREADS, 4) maxima_warp_kernel(maxima_args a)
{
    const size_t row = blockIdx.x / a.blocks_a_row;
    const size_t first = static_cast<size_t>(blockIdx.x % a.blocks_a_row) * (MAXIMA_THREADS / KVI_WARP) + kvi_warp();
    const size_t step = static_cast<size_t>(a.blocks_a_row) * (MAXIMA_THREADS / KVI_WARP), n = maxima_n_keys(a, row);

    maxima_clear(a);
    for (size_t i = first; i < n; i += step) {
        const float *x = a.scores + row * a.scores_stride + i * a.block_entries;
        uint32_t     most = 0;

        for (unsigned j = kvi_lane(); j < a.block_entries; j += KVI_WARP)
            most = maxima_more(most, kvi_bits(x[j]));
        for (unsigned d = KVI_WARP / 2; d; d /= 2) {
            const uint32_t other = kvi_shfl_xor(most, d);
            most = other > most ? other : most;
        }
        if (kvi_lane() == 0)
            a.keys[row * a.keys_stride + i] = most;
    }
}

#endif
