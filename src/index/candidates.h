/* Candidate blocks: the entries that later layers may select from, as blocks of consecutive entries
 * ranked by the source layer. */
#ifndef KVI_CANDIDATES_H
#define KVI_CANDIDATES_H

#include "backend/exec.h"

/* From the source's scores [n_rows, stride] (NULL = those of all visible entries are equal), at
 * most n_keep a row. blocks [n_rows, candidate_blocks]. */
kvcsa_status kvi_candidates_publish(const kvi_exec *exec, const kvi_plan_row *row, uint32_t n_keep,
                                    const float *scores, size_t stride, const uint64_t *n_visible,
                                    int32_t *blocks, uint32_t *n_blocks, size_t n_rows,
                                    kvcsa_error *err);

#endif
