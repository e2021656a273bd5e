/* RMS norm: y = w * (x * 1 / sqrt(mean x^2 + eps)).
 *
 * Work split: a warp a row up to 1024 floats, 256 threads up to 8192, 1024 threads above: by the width alone, so that a row's
 * bits do not depend on how many there are. Pieces of 16 bytes stay in registers between the sum and the product; what a row has
 * beyond 32768 floats is read again, from L2.
 * Bytes: 4 (2 width) a row and the weight once, from L2 for all rows but the first.
 * Bound: memory. 128 rows of 5120 are 5.2 MB, 1.1 us at 4.8 TB/s, below the cost of the launch; 4096 rows 35 us.
 * Order: thread t adds floats 4 (t + k T) + i in four sums i, by ascending k; (0, 1), (2, 3), both; the butterfly of the warp;
 * that of the warps' sums.
 * Measured: not yet run on a device. */
#ifndef KVI_CUDA_NORM_CUH
#define KVI_CUDA_NORM_CUH

#include "device_floats.cuh"

enum : unsigned {
    NORM_ROWS = 4,          /* warps of a block that have a row each */
    NORM_WARP_WIDTH = 1024, /* of a row that a warp does alone */
    NORM_SMALL = 256,       /* threads of a row */
    NORM_LARGE = 1024,
    NORM_HELD = 8,          /* pieces of a thread that stay in registers */
    NORM_SMALL_WIDTH = 4 * NORM_HELD * NORM_SMALL,
};
static_assert(4 * NORM_HELD * KVI_WARP == NORM_WARP_WIDTH, "a lane holds as much as any thread");

struct norm_args {
    const float *x;
    float       *y;
    const float *weight;
    size_t       x_stride, y_stride, n_rows;
    unsigned     width;
    float        eps;
};

template <unsigned THREADS> struct norm_shared {
    float part[THREADS / KVI_WARP];
};

KVI_DEV float4 norm_piece(float4 x, float r, float4 w) { return kvi_times(w, kvi_times(r, x)); }

/* Thread t of `THREADS` that have one row; sum(x) adds over all of them. */
template <unsigned THREADS, class SUM> KVI_DEV void norm_row(const norm_args &a, size_t row, unsigned t, SUM sum)
{
    const float *x = a.x + row * a.x_stride;
    float       *y = a.y + row * a.y_stride;
    const bool   x_aligned = kvi_is_aligned_16(x), y_aligned = kvi_is_aligned_16(y), w_aligned = kvi_is_aligned_16(a.weight);
    const unsigned first = 4 * t;
    float4       held[NORM_HELD];
    float4       s = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    KVI_UNROLL
    for (unsigned k = 0; k < NORM_HELD; k++)
        if (first + k * 4 * THREADS < a.width)
            held[k] = kvi_read_piece(x, first + k * 4 * THREADS, a.width, x_aligned);
    KVI_UNROLL
    for (unsigned k = 0; k < NORM_HELD; k++)
        if (first + k * 4 * THREADS < a.width)
            kvi_add_products(s, held[k], held[k]);
    for (unsigned i = first + NORM_HELD * 4 * THREADS; i < a.width; i += 4 * THREADS) {
        const float4 v = kvi_read_piece(x, i, a.width, x_aligned);
        kvi_add_products(s, v, v);
    }
    const float r = kvi_rms_inverse(sum(kvi_fold(s)), a.width, a.eps);
    KVI_UNROLL
    for (unsigned k = 0; k < NORM_HELD; k++) {
        const unsigned i = first + k * 4 * THREADS;
        if (i < a.width)
            kvi_write_piece(y, i, a.width, y_aligned, norm_piece(held[k], r, kvi_load_piece(a.weight, i, a.width, w_aligned)));
    }
    for (unsigned i = first + NORM_HELD * 4 * THREADS; i < a.width; i += 4 * THREADS)
        kvi_write_piece(y, i, a.width, y_aligned,
                        norm_piece(kvi_read_piece(x, i, a.width, x_aligned), r, kvi_load_piece(a.weight, i, a.width, w_aligned)));
}

KVI_KERNEL(NORM_ROWS * KVI_WARP, 8) norm_f32_f32_warp_kernel(norm_args a)
{
    const size_t row = static_cast<size_t>(blockIdx.x) * NORM_ROWS + kvi_warp();

    if (row < a.n_rows)
        norm_row<KVI_WARP>(a, row, kvi_lane(), [](float x) { return kvi_warp_sum(x); });
}

template <unsigned THREADS> KVI_KERNEL(THREADS, THREADS == NORM_LARGE ? 1 : 3) norm_f32_f32_kernel(norm_args a)
{
    float *part = kvi_shared<norm_shared<THREADS>>().part;

    norm_row<THREADS>(a, blockIdx.x, threadIdx.x, [part](float x) { return kvi_block_sum<THREADS / KVI_WARP>(x, part); });
}

#endif
