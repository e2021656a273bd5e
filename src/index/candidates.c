#include "index/candidates.h"

kvcsa_status kvi_candidates_publish(const kvi_exec *exec, const kvi_plan_row *row, uint32_t n_keep,
                                    const float *scores, size_t stride, const uint64_t *n_visible,
                                    int32_t *blocks, uint32_t *n_blocks, size_t n_rows,
                                    kvcsa_error *err)
{
    const kvi_candidates_params p = {.scores = scores,
                                     .n_visible = n_visible,
                                     .blocks = blocks,
                                     .n_blocks = n_blocks,
                                     .scores_stride = stride,
                                     .blocks_stride = row->candidate_blocks,
                                     .n_rows = n_rows,
                                     .block_entries = row->candidate_block_entries,
                                     .n_keep = n_keep};

    return exec->ops->candidates(exec->dev, &p, err);
}
