#include "hide.cuh"

#include "cuda_device.h"

kvcsa_status kvi_cuda_hide(kvi_device *dev, const kvi_hide_params *p, kvcsa_error *err)
{
    enum : size_t { MOST_BLOCKS = 0x7fffffff };
    kvi_cuda_use use(dev);
    const size_t a_row = (p->scores_stride + HIDE_SCORES - 1) / HIDE_SCORES;
    size_t       n = 0;

    if (a_row > MOST_BLOCKS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "hide: rows of %zu scores, the limit is %zu", p->scores_stride,
                             MOST_BLOCKS * HIDE_SCORES);
    if (a_row == 0 || (p->n_hidden == 0 && !p->rest_hidden))
        return KVCSA_OK;
    for (size_t row = 0; row < p->n_rows; row += n) { /* once, if not for more rows than a grid has blocks */
        const hide_args a = {p->scores + row * p->scores_stride,
                             p->n_scores ? p->n_scores + row : nullptr,
                             p->n_blocks ? p->n_blocks + row : nullptr,
                             p->blocks ? p->blocks + row * p->blocks_stride : nullptr,
                             p->hidden,
                             p->n_hidden,
                             p->scores_stride,
                             p->blocks_stride,
                             static_cast<unsigned>(a_row),
                             p->block_entries,
                             p->span_entries,
                             p->rest_hidden};

        n = p->n_rows - row < MOST_BLOCKS / a_row ? p->n_rows - row : MOST_BLOCKS / a_row;
        KVI_TRY(kvi_launch(dev, "hide", hide_kernel, dim3(static_cast<unsigned>(n * a_row)), HIDE_THREADS, 0, err, a));
    }
    return KVCSA_OK;
}
