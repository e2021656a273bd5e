#include "candidates.cuh"

#include "cuda_features.h"
#include "select_rows.h"

enum : size_t { MOST_BLOCKS = 0x7fffffff };

static kvcsa_status launch_maxima(kvi_device *dev, maxima_args &a, size_t n_rows, kvcsa_error *err)
{
    const bool     by_thread = a.block_entries <= MAXIMA_SHORT;
    const size_t   per = by_thread ? MAXIMA_THREADS : MAXIMA_TURNS * MAXIMA_THREADS / KVI_WARP;
    const unsigned all = kvi_blocks(a.keys_stride, per), most = MAXIMA_BLOCKS / static_cast<unsigned>(n_rows);

    a.blocks_a_row = all < most ? all : most;
    return kvi_launch(dev, "maxima", by_thread ? maxima_thread_kernel : maxima_warp_kernel,
                      dim3(static_cast<unsigned>(n_rows) * a.blocks_a_row), MAXIMA_THREADS, 0, err, a);
}

static select_row_args candidate_rows(const kvi_candidates_params *p, const void *items, size_t items_stride, size_t row)
{
    const size_t ids_stride = p->blocks_stride ? p->blocks_stride : p->n_keep;

    return {static_cast<const uint32_t *>(items),
            p->n_visible + row,
            nullptr,
            nullptr,
            p->blocks + row * ids_stride,
            p->n_blocks + row,
            items_stride,
            0,
            ids_stride,
            p->block_entries,
            1,
            p->n_keep ? p->n_keep - 1 : 0,
            p->n_keep ? 1u : 0u,
            p->all,
            p->n_visible + row};
}

/* Maxima that are there already are the items. */
static kvcsa_status choose_by_maxima(kvi_device *dev, const kvi_candidates_params *p, kvcsa_error *err)
{
    size_t n = 0;

    if (p->max_stride > MOST_BLOCKS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "candidates: %zu blocks a row, the limit is %zu", p->max_stride,
                             MOST_BLOCKS);
    for (size_t row = 0; row < p->n_rows; row += n) {
        void  *scratch = nullptr;
        size_t clear = 0;

        n = p->n_rows - row < KVI_CUDA_SELECT_ROWS ? p->n_rows - row : KVI_CUDA_SELECT_ROWS;
        const size_t bytes = kvi_cuda_select_scratch(dev, n, p->max_stride, &clear);
        if (bytes == 0) {
            n = p->n_rows - row;
        } else {
            KVI_TRY(kvi_cuda_scratch_get(dev, bytes, &scratch, err));
            KVI_TRY(kvi_cuda_check(cudaMemsetAsync(scratch, 0, clear, dev->stream), "candidates", err));
        }
        const select_row_args a = candidate_rows(p, p->block_max + row * p->max_stride, p->max_stride, row);
        KVI_TRY(kvi_cuda_select_rows(dev, "candidates", a, n, false, scratch, err));
    }
    return KVCSA_OK;
}

kvcsa_status kvi_cuda_candidates(kvi_device *dev, const kvi_candidates_params *p, kvcsa_error *err)
{
    kvi_cuda_use use(dev);
    const size_t n_keys = p->scores_stride / p->block_entries + 1; /* room for all blocks of a row, also one that is not full */
    const size_t keys_stride = (n_keys + 3) / 4 * 4;               /* rows begin at 16 bytes */
    size_t       n = 0;

    if (p->block_max)
        return choose_by_maxima(dev, p, err);
    if (!p->scores)
        return kvi_cuda_select_equal(dev, "candidates", candidate_rows(p, nullptr, MOST_BLOCKS, 0), p->n_rows, err);
    if (keys_stride > MOST_BLOCKS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "candidates: %zu blocks a row, the limit is %zu", n_keys,
                             MOST_BLOCKS);
    for (size_t row = 0; row < p->n_rows; row += n) {
        void  *scratch = nullptr;
        size_t clear = 0;

        n = p->n_rows - row < KVI_CUDA_SELECT_ROWS ? p->n_rows - row : KVI_CUDA_SELECT_ROWS;
        const size_t bytes = (kvi_cuda_select_scratch(dev, n, keys_stride, &clear) + 15) / 16 * 16;
        KVI_TRY(kvi_cuda_scratch_get(dev, bytes + n * keys_stride * sizeof(uint32_t), &scratch, err));
        uint32_t   *keys = reinterpret_cast<uint32_t *>(static_cast<char *>(scratch) + bytes);
        maxima_args maxima = {p->scores + row * p->scores_stride,
                              p->n_visible + row,
                              keys,
                              static_cast<unsigned *>(scratch),
                              p->scores_stride,
                              keys_stride,
                              clear / sizeof(unsigned),
                              p->all,
                              p->block_entries,
                              0};
        const select_row_args a = candidate_rows(p, keys, keys_stride, row);
        KVI_TRY(launch_maxima(dev, maxima, n, err));
        KVI_TRY(kvi_cuda_select_rows(dev, "candidates", a, n, true, scratch, err));
    }
    return KVCSA_OK;
}

void kvi_cuda_features_candidates(kvi_features *f) { f->candidate_blocks = {1, static_cast<uint32_t>(MOST_BLOCKS), 1}; }
