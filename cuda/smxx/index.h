/* Index scores with the maxima that candidates are chosen by. Index parts start at 16-byte boundaries of device memory. */
#ifndef KVI_CUDA_INDEX_H
#define KVI_CUDA_INDEX_H

#include "cuda_device.h"

/* kvi_cuda_index_score, which also writes the maximum of the visible scores of every block of p->block_entries entries that has
 * any: block_max f32 [n_rows, ceil(scores_stride / block_entries)]. NaN does not count, -inf where nothing else is there, +0 for
 * -0. One pass for blocks of 8, 16 and 32, a second kernel over the scores for others. NULL = none. Not with p->blocks. */
kvcsa_status kvi_cuda_index_score_max(kvi_device *dev, const kvi_index_score_params *p, float *block_max, kvcsa_error *err);

#endif
