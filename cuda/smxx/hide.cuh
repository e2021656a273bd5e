/* Scores of hidden entries become -inf; entry j belongs to span j / span_entries.
 *
 * A block of 256 threads has 2048 neighbouring scores of a row, each thread 8 of them at a distance of 256; scores are never
 * read.
 * Traffic: 4 bytes a hidden score; the bytes of the spans and the list of blocks stay in the first cache. Bound: two divisions
 * by a number that is not constant a score: about 60 instructions, 1M scores: 8,000 a processor, 3,800 cycles of its four
 * pipes = 2 us.
 * measured: not yet run on a device */
#ifndef KVI_CUDA_HIDE_CUH
#define KVI_CUDA_HIDE_CUH

#include "device.cuh"

enum : unsigned { HIDE_THREADS = 256, HIDE_SCORES = 8 * HIDE_THREADS };

struct hide_args {
    float          *scores;        /* [n_rows, scores_stride] */
    const uint64_t *n_scores;      /* [n_rows], or: */
    const uint32_t *n_blocks;      /* [n_rows] of block_entries scores */
    const int32_t  *blocks;        /* NULL, or [n_rows, blocks_stride] */
    const uint8_t  *hidden;        /* [n_hidden] */
    size_t          n_hidden, scores_stride, blocks_stride;
    unsigned        blocks_a_row;  /* of the grid */
    unsigned        block_entries, span_entries, rest_hidden;
};

KVI_DEV size_t hide_divide(size_t a, unsigned b) /* 32 bits, where they do, take a fifth of the time */
{
    return a >> 32 ? a / b : static_cast<unsigned>(a) / b;
}

KVI_KERNEL(HIDE_THREADS, 4) hide_kernel(hide_args a)
{
    const size_t   row = blockIdx.x / a.blocks_a_row;
    const size_t   first = static_cast<size_t>(blockIdx.x % a.blocks_a_row) * HIDE_SCORES;
    const uint64_t all = a.n_blocks ? static_cast<uint64_t>(a.n_blocks[row]) * a.block_entries : a.n_scores[row];
    const uint64_t n = all < a.scores_stride ? all : a.scores_stride;
    const int32_t *blocks = a.blocks ? a.blocks + row * a.blocks_stride : nullptr;
    float         *scores = a.scores + row * a.scores_stride;

    for (size_t i = first + threadIdx.x; i < first + HIDE_SCORES && i < n; i += HIDE_THREADS) {
        size_t entry = i;

        if (blocks) {
            const size_t block = hide_divide(i, a.block_entries);
            entry = static_cast<size_t>(blocks[block]) * a.block_entries + (i - block * a.block_entries);
        }
        const size_t span = hide_divide(entry, a.span_entries);
        if (span < a.n_hidden ? a.hidden[span] != 0 : a.rest_hidden != 0)
            scores[i] = kvi_float(0xff800000u);
    }
}

#endif
