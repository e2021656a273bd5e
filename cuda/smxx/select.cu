#include "select.cuh"

#include "cuda_features.h"
#include "dense_check.h"
#include "select_rows.h"

enum : unsigned { TOPK_MOST = 2048 };
enum : size_t { MOST_ITEMS = 0x7fffffff, ITEMS_A_BLOCK = 16 * SELECT_THREADS };

namespace {

/* Two blocks a processor: all run at once. More rows may be of very different lengths: idle blocks cost little. No block without
 * 16 items a thread. */
unsigned blocks_a_row(const kvi_device *dev, size_t n_rows, size_t items_stride)
{
    const size_t at_once = 2 * static_cast<size_t>(dev->n_sms) / n_rows, fit = at_once > SELECT_BLOCKS ? at_once : +SELECT_BLOCKS;
    const size_t most = (items_stride + ITEMS_A_BLOCK - 1) / ITEMS_A_BLOCK;
    const size_t n = fit < most ? fit : most;

    return static_cast<unsigned>(n ? n : 1);
}

static_assert(ITEMS_A_BLOCK == SELECT_WARPS * SELECT_AHEAD * SELECT_GROUP, "as segments are dealt out");

/* The next piece of scratch, at a multiple of 16 bytes; with a NULL base only its size is counted. */
template <class T> T *take(char *base, size_t &off, size_t n)
{
    T *at = base ? reinterpret_cast<T *>(base + off) : nullptr;

    static_assert(16 % alignof(T) == 0, "pieces begin at multiples of 16 bytes");
    off += (n * sizeof(T) + 15) / 16 * 16;
    return at;
}

/* Lays the scratch out from `base` on; returns its size. */
size_t lay_out(select_long_args &a, char *base, size_t n_rows)
{
    const size_t n_blocks = n_rows * a.blocks_a_row, n_segments = n_blocks * SELECT_WARPS;
    size_t       off = 0;

    a.bins = take<unsigned>(base, off, n_rows * SELECT_ALL_BINS);
    a.thresholds = take<select_threshold>(base, off, 3 * n_rows);
    a.listed = take<unsigned>(base, off, n_segments);
    a.lists = take<uint2>(base, off, n_segments * SELECT_LIST);
    a.of_segment = take<select_counts>(base, off, n_segments);
    a.of_block = take<select_counts>(base, off, n_blocks);
    return off;
}

template <bool KEYS>
kvcsa_status select_rows(kvi_device *dev, const char *what, const select_row_args &row, size_t n_rows, void *scratch,
                         kvcsa_error *err)
{
    select_long_args a = {};

    if (row.items_stride <= SELECT_SHORT_ITEMS)
        return kvi_launch(dev, what, select_short_kernel<KEYS>, dim3(static_cast<unsigned>(n_rows)), SELECT_SHORT_THREADS,
                          sizeof(select_short_shared), err, row);
    a.row = row;
    a.blocks_a_row = blocks_a_row(dev, n_rows, row.items_stride);
    (void)lay_out(a, static_cast<char *>(scratch), n_rows);
    const dim3 grid(static_cast<unsigned>(n_rows) * a.blocks_a_row);
    KVI_TRY(kvi_launch(dev, what, select_first_kernel<KEYS>, grid, SELECT_THREADS, sizeof(select_long_shared), err, a));
    KVI_TRY(kvi_launch(dev, what, select_second_kernel<KEYS>, grid, SELECT_THREADS, sizeof(select_long_shared), err, a));
    KVI_TRY(kvi_launch(dev, what, select_third_kernel<KEYS>, grid, SELECT_THREADS, sizeof(select_long_shared), err, a));
    KVI_TRY(kvi_launch(dev, what, select_count_kernel<KEYS>, grid, SELECT_THREADS, sizeof(select_long_shared), err, a));
    return kvi_launch(dev, what, select_write_kernel<KEYS>, grid, SELECT_THREADS, 0, err, a);
}

} // namespace

size_t kvi_cuda_select_scratch(const kvi_device *dev, size_t n_rows, size_t items_stride, size_t *clear)
{
    select_long_args a = {};

    *clear = 0;
    if (items_stride <= SELECT_SHORT_ITEMS || n_rows == 0)
        return 0;
    a.blocks_a_row = blocks_a_row(dev, n_rows, items_stride);
    *clear = n_rows * SELECT_ALL_BINS * sizeof(unsigned);
    return lay_out(a, nullptr, n_rows);
}

kvcsa_status kvi_cuda_select_rows(kvi_device *dev, const char *what, const select_row_args &a, size_t n_rows, bool keys,
                                  void *scratch, kvcsa_error *err)
{
    return keys ? select_rows<true>(dev, what, a, n_rows, scratch, err) : select_rows<false>(dev, what, a, n_rows, scratch, err);
}

kvcsa_status kvi_cuda_select_equal(kvi_device *dev, const char *what, const select_row_args &a, size_t n_rows, kvcsa_error *err)
{
    dim3 grid;

    if (n_rows == 0)
        return KVCSA_OK;
    KVI_TRY(kvi_dense_grid(what, n_rows, 1, &grid, err));
    return kvi_launch(dev, what, select_equal_kernel, grid, SELECT_THREADS, 0, err, a);
}

static select_row_args topk_rows(const kvi_topk_params *p, size_t row)
{
    const size_t ids_stride = p->ids_stride ? p->ids_stride : p->k;

    return {p->scores ? reinterpret_cast<const uint32_t *>(p->scores) + row * p->scores_stride : nullptr,
            p->n_scores ? p->n_scores + row : nullptr,
            p->n_blocks ? p->n_blocks + row : nullptr,
            p->blocks ? p->blocks + row * p->blocks_stride : nullptr,
            p->ids + row * ids_stride,
            nullptr,
            p->scores ? p->scores_stride : +MOST_ITEMS,
            p->blocks_stride,
            ids_stride,
            1,
            p->block_entries,
            p->k,
            0,
            p->all,
            p->n_visible ? p->n_visible + row : nullptr};
}

kvcsa_status kvi_cuda_topk(kvi_device *dev, const kvi_topk_params *p, kvcsa_error *err)
{
    kvi_cuda_use use(dev);
    size_t       clear = 0, n = 0;

    if (p->k > TOPK_MOST)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "topk: k is %u, the limit is %u", p->k, +TOPK_MOST);
    if (p->all && !p->n_visible)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "topk: all without n_visible");
    if (p->scores_stride > MOST_ITEMS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "topk: rows of %zu scores, the limit is %zu", p->scores_stride,
                             MOST_ITEMS);
    if (!p->scores)
        return kvi_cuda_select_equal(dev, "topk", topk_rows(p, 0), p->n_rows, err);
    for (size_t row = 0; row < p->n_rows; row += n) {
        const select_row_args a = topk_rows(p, row);
        void                 *scratch = nullptr;

        n = p->n_rows - row < KVI_CUDA_SELECT_ROWS ? p->n_rows - row : KVI_CUDA_SELECT_ROWS;
        const size_t bytes = kvi_cuda_select_scratch(dev, n, p->scores_stride, &clear);
        if (bytes == 0) {
            n = p->n_rows - row;
        } else {
            KVI_TRY(kvi_cuda_scratch_get(dev, bytes, &scratch, err));
            KVI_TRY(kvi_cuda_check(cudaMemsetAsync(scratch, 0, clear, dev->stream), "topk", err));
        }
        KVI_TRY(kvi_cuda_select_rows(dev, "topk", a, n, false, scratch, err));
    }
    return KVCSA_OK;
}

void kvi_cuda_features_topk(kvi_features *f) { f->select_entries = {1, TOPK_MOST, 1}; }
