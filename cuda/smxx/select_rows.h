/* The k best items of each row, as top-k and candidates need it. Items are floats, or keys (select_key of select.cuh): u32 in
 * the order of the floats, 0 = never taken. */
#ifndef KVI_CUDA_SELECT_ROWS_H
#define KVI_CUDA_SELECT_ROWS_H

#include "cuda_device.h"

struct select_row_args;

/* Bytes of scratch for rows of up to items_stride items, at most `n_rows` at a time, 0 = none; *clear bytes of them, at the
 * begin, must be 0 before the kernels run. */
size_t kvi_cuda_select_scratch(const kvi_device *dev, size_t n_rows, size_t items_stride, size_t *clear);
enum : size_t { KVI_CUDA_SELECT_ROWS = 128 }; /* at a time */
/* a.items_stride < 2^31; n_rows <= KVI_CUDA_SELECT_ROWS where scratch is needed. */
kvcsa_status kvi_cuda_select_rows(kvi_device *dev, const char *what, const select_row_args &a, size_t n_rows, bool keys,
                                  void *scratch, kvcsa_error *err);
/* The same of rows whose items are all equal: the first ones. Any n_rows, no scratch; a.items is not looked at. */
kvcsa_status kvi_cuda_select_equal(kvi_device *dev, const char *what, const select_row_args &a, size_t n_rows, kvcsa_error *err);

#endif
