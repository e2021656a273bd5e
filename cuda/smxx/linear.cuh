/* y = x W^T. product.cuh has the two bodies for quantised and BF16 weights and says why they give the same bits; F32 weights (routers, the
 * projections of the stream: small) are summed in floats here.
 *
 * few    n_out / 16 blocks (1..8 rows) or n_out / 32 x rows / 32. Traffic: the weights once per 32 rows, x from the second cache. Bound at
 *        1..8 rows: memory, n_out x cols x (1.03 FP8, 0.53 FP4, 2 BF16) bytes / 4.8 TB/s: 32768 x 1536 FP8 10.8 us.
 * many   128 x 128 a block. Bound: 4 n_rows n_out cols flops (two products each, high and low) / 989 TFLOPS.
 * f32    a block has R weight rows and up to N rows of x; thread i sums the channels 4i.. + 1024 k, a butterfly, warps ascending.
 * measured: not yet run on a device. */
#ifndef KVI_LINEAR_CUH
#define KVI_LINEAR_CUH

#include "product.cuh"

struct linear_args {
    product_weights w;
    product_shape   shape;
    unsigned        row0;
    const float    *x;
    float          *y;
    size_t          x_stride, y_stride, n_rows;
    unsigned        n_out;
};

/* Grids are (row tiles, weight tiles, more weight tiles); in the last z some have no weights. */
KVI_DEV unsigned linear_tile() { return blockIdx.z * gridDim.y + blockIdx.y; }

/* ---- few rows ---- */

template <unsigned KIND, unsigned MT, unsigned NT> KVI_KERNEL(PRODUCT_THREADS, NT == 1 ? 2 : 1) linear_few_kernel(linear_args a)
{
    few_shared<MT, NT> &sh = kvi_shared<few_shared<MT, NT>>();
    const unsigned      g = kvi_lane() / 4, m0 = linear_tile() * (MT * 16);
    const size_t        first = static_cast<size_t>(blockIdx.x) * (8 * NT), left = a.n_rows - first;
    const unsigned      n_x = left < 8 * NT ? static_cast<unsigned>(left) : 8 * NT;
    few_rows<MT>        rows;
    const float        *x[NT];

    if (m0 >= a.n_out)
        return;
    KVI_UNROLL
    for (unsigned m = 0; m < MT; m++) {
        const unsigned low = m0 + 16 * m + g, last = a.n_out - 1;
        rows.w[m] = a.w;
        rows.low[m] = a.row0 + (low < last ? low : last);
        rows.high[m] = a.row0 + (low + 8 < last ? low + 8 : last);
    }
    KVI_UNROLL
    for (unsigned n = 0; n < NT; n++)
        x[n] = a.x + (first + (8 * n + g < n_x ? 8 * n + g : 0)) * a.x_stride;
    few_segments<KIND, MT, NT>(sh, rows, x, n_x, a.shape);
    kvi_sync_block();
    for (unsigned i = threadIdx.x; i < MT * NT * 128; i += PRODUCT_THREADS) {
        const unsigned row = i % (16 * MT), col = i / (16 * MT);
        if (m0 + row < a.n_out && col < n_x)
            a.y[(first + col) * a.y_stride + m0 + row] = few_sum<MT, NT>(sh, row / 16, col / 8, row % 16 * 8 + col % 8, a.shape);
    }
}

/* ---- many rows ---- */

template <unsigned KIND> KVI_KERNEL(PRODUCT_THREADS, 1) linear_many_kernel(linear_args a)
{
    many_shared   &sh = kvi_shared<many_shared>();
    const unsigned m0 = kvi_warp() % 2 * 64, n0 = kvi_warp() / 2 * 32, g = kvi_lane() / 4, t = kvi_lane() % 4;
    const unsigned w0 = linear_tile() * MANY;
    const size_t   first = static_cast<size_t>(blockIdx.x) * MANY, left = a.n_rows - first;
    many_args      p;
    float          sum[4][4][4];

    if (w0 >= a.n_out)
        return;
    p.w[0] = p.w[1] = a.w;
    p.row0 = a.row0 + w0;
    p.n_left = a.n_out - w0;
    p.paired = false;
    p.x = a.x + first * a.x_stride;
    p.x_stride = a.x_stride;
    p.n_x = left < MANY ? static_cast<unsigned>(left) : MANY;
    if (threadIdx.x < MANY)
        sh.x_row[threadIdx.x] = threadIdx.x;
    kvi_sync_block();
    many_product<KIND>(sum, sh, p, a.shape, m0, n0);
    KVI_UNROLL
    for (unsigned m = 0; m < 4; m++)
        KVI_UNROLL
        for (unsigned n = 0; n < 4; n++)
            KVI_UNROLL
            for (unsigned i = 0; i < 4; i++) {
                const unsigned row = m0 + 16 * m + g + i / 2 * 8, col = n0 + 8 * n + 2 * t + i % 2;
                if (row < p.n_left && col < p.n_x)
                    a.y[(first + col) * a.y_stride + w0 + row] = sum[m][n][i];
            }
}

/* ---- F32 weights ---- */

template <unsigned R, unsigned N> struct linear_f32_shared {
    float part[PRODUCT_WARPS][N][R];
};

KVI_DEV float4 load_4(const float *row, unsigned c, unsigned cols, bool whole)
{
    if (whole) {
        const uint4 v = kvi_load_16(row + c);
        return make_float4(kvi_float(v.x), kvi_float(v.y), kvi_float(v.z), kvi_float(v.w));
    }
    return make_float4(row[c], c + 1 < cols ? row[c + 1] : 0.0f, c + 2 < cols ? row[c + 2] : 0.0f, c + 3 < cols ? row[c + 3] : 0.0f);
}

template <unsigned R, unsigned N> KVI_KERNEL(PRODUCT_THREADS, 2) linear_f32_kernel(linear_args a)
{
    linear_f32_shared<R, N> &sh = kvi_shared<linear_f32_shared<R, N>>();
    const unsigned           cols = a.shape.cols, m0 = linear_tile() * R;
    const size_t             first = static_cast<size_t>(blockIdx.x) * N, left = a.n_rows - first;
    const unsigned           n_x = left < N ? static_cast<unsigned>(left) : N;
    float                    sum[N][R];

    if (m0 >= a.n_out)
        return;
    KVI_UNROLL
    for (unsigned n = 0; n < N; n++)
        KVI_UNROLL
        for (unsigned r = 0; r < R; r++)
            sum[n][r] = 0.0f;
    for (unsigned c = 4 * threadIdx.x; c < cols; c += 4 * PRODUCT_THREADS) {
        float4 w[R];

        KVI_UNROLL
        for (unsigned r = 0; r < R; r++) {
            const size_t row = a.row0 + (m0 + r < a.n_out ? m0 + r : m0); /* below 2^32 */
            w[r] = load_4(reinterpret_cast<const float *>(a.w.data) + row * cols, c, cols, a.shape.whole);
        }
        KVI_UNROLL
        for (unsigned n = 0; n < N; n++) {
            const float4 v = load_4(a.x + (first + (n < n_x ? n : 0)) * a.x_stride, c, cols, a.shape.x_whole);
            KVI_UNROLL
            for (unsigned r = 0; r < R; r++)
                sum[n][r] = kvi_fma(v.w, w[r].w, kvi_fma(v.z, w[r].z, kvi_fma(v.y, w[r].y, kvi_fma(v.x, w[r].x, sum[n][r]))));
        }
    }
    KVI_UNROLL
    for (unsigned n = 0; n < N; n++)
        KVI_UNROLL
        for (unsigned r = 0; r < R; r++) {
            const float all = kvi_warp_sum(sum[n][r]);
            if (kvi_lane() == 0)
                sh.part[kvi_warp()][n][r] = all;
        }
    kvi_sync_block();
    if (threadIdx.x < N * R) {
        const unsigned n = threadIdx.x / R, r = threadIdx.x % R;
        float          all = 0.0f;
        for (unsigned i = 0; i < PRODUCT_WARPS; i++)
            all = all + sh.part[i][n][r];
        if (n < n_x && m0 + r < a.n_out)
            a.y[(first + n) * a.y_stride + m0 + r] = all;
    }
}

/* ---- for cuBLAS (cuda_blas.cu): x as two planes of bf16 ---- */

struct linear_split_args {
    const float *x;
    uint16_t    *hi, *lo; /* [n_rows, cols] */
    size_t       x_stride;
    unsigned     cols;
};

KVI_KERNEL(PRODUCT_THREADS, 2) linear_split_kernel(linear_split_args a) /* a block a row */
{
    const float *x = a.x + static_cast<size_t>(blockIdx.x) * a.x_stride;
    const size_t at = static_cast<size_t>(blockIdx.x) * a.cols;

    for (unsigned c = threadIdx.x; c < a.cols; c += PRODUCT_THREADS) {
        uint32_t hi, lo;
        piece_split_any(x[c], hi, lo);
        a.hi[at + c] = static_cast<uint16_t>(hi);
        a.lo[at + c] = static_cast<uint16_t>(lo);
    }
}

#endif
