/* mHC, the residual stream of several copies.
 *
 * mix     coefficients of a row: a block a row. 512 threads add the squares of all copies; then the first warp balances C and the
 *         second makes the gates pre and post.
 *         Bytes: 4 copies width a row (80 KB for 4 x 5120), from L2 where the product with fn has just read it.
 *         Bound: at one row 80 KB through one SM, about 0.8 us (splitting them over SMs would cost a second launch), and 39 steps
 *         of C that each wait for 4 shuffles, 4 additions and a division, about 90 cycles: 2 us. Many rows: memory, 70 us for
 *         4096.
 *         Order of the sum: thread t adds floats 4 (t + 512 k) + i in four sums i; then as in norm.cuh. After the sum the
 *         bits are those of the CPU's portable kernels: double for e^x, the same operations in the same order.
 * collapse, expand   a block per row and 512 columns, a thread four of them of all copies. The CPU's bits.
 *         Bytes: 4 (copies + 1) width and 4 (2 copies + 1) width a row: 102 KB and 184 KB for 4 x 5120.
 *         Bound: memory: 128 rows 2.7 and 4.9 us, 4096 rows 87 and 157 us at 4.8 TB/s.
 * Measured: not yet run on a device. */
#ifndef KVI_CUDA_MIX_CUH
#define KVI_CUDA_MIX_CUH

#include "device_floats.cuh"
#include "device_math.cuh"

enum : unsigned {
    MIX_THREADS = 512,
    MIX_COPIES = 8,        /* at most: KVI_MAX_COPIES */
    STREAM_THREADS = 128,
    STREAM_COLUMNS = 4 * STREAM_THREADS, /* of a block */
};

/* ---- coefficients ---- */

struct mix_args {
    const float *h, *proj, *base;
    float       *pre, *post, *comb;
    unsigned     copies, row_floats, n_iters; /* row_floats = copies x width */
    float        scale_pre, scale_post, scale_comb;
    float        norm_eps, eps;
};

struct mix_shared {
    float part[MIX_THREADS / KVI_WARP];
};

/* A matrix of m x m <= 64 in a warp: element e is c[e / 32] of lane e % 32. N = registers of a lane. */
template <unsigned N> struct mix_matrix {
    float c[N];
};

template <unsigned N> KVI_DEV float mix_element(const mix_matrix<N> &a, unsigned e)
{
    const float low = kvi_shfl(a.c[0], e % KVI_WARP);
    if (N == 1)
        return low;
    const float high = kvi_shfl(a.c[N - 1], e % KVI_WARP);
    return e < KVI_WARP ? low : high;
}

/* Elements are divided by eps + the sum of their row (COLUMNS: of their column), made in ascending order. */
template <unsigned N, bool COLUMNS> KVI_DEV void mix_divide(mix_matrix<N> &a, unsigned m, float eps)
{
    float sum[N];

    KVI_UNROLL
    for (unsigned q = 0; q < N; q++) {
        const unsigned e = kvi_lane() + KVI_WARP * q, first = COLUMNS ? e % m : e - e % m;
        sum[q] = 0.0f;
        for (unsigned i = 0; i < m; i++)
            sum[q] = sum[q] + mix_element(a, (first + i * (COLUMNS ? m : 1u)) % (KVI_WARP * N));
        sum[q] = sum[q] + eps;
    }
    KVI_UNROLL
    for (unsigned q = 0; q < N; q++)
        a.c[q] = kvi_div(a.c[q], sum[q]);
}

/* Softmax of the rows, + eps, columns; then rows and columns n_iters - 1 times. Lanes without an element go along with some
 * number. */
template <unsigned N> KVI_DEV void mix_balance(mix_matrix<N> &a, unsigned m, float eps, unsigned n_iters)
{
    float most[N];

    KVI_UNROLL
    for (unsigned q = 0; q < N; q++) {
        const unsigned e = kvi_lane() + KVI_WARP * q, first = e - e % m;
        most[q] = mix_element(a, first);
        for (unsigned i = 1; i < m; i++) {
            const float v = mix_element(a, (first + i) % (KVI_WARP * N));
            most[q] = v > most[q] ? v : most[q];
        }
    }
    KVI_UNROLL
    for (unsigned q = 0; q < N; q++)
        a.c[q] = kvi_exp_exact(a.c[q] - most[q]);
    mix_divide<N, false>(a, m, 0.0f);
    KVI_UNROLL
    for (unsigned q = 0; q < N; q++)
        a.c[q] = a.c[q] + eps;
    mix_divide<N, true>(a, m, eps);
    for (unsigned it = 1; it < n_iters; it++) {
        mix_divide<N, false>(a, m, eps);
        mix_divide<N, true>(a, m, eps);
    }
}

/* The copies are a constant where COPIES is not 0. */
template <unsigned COPIES> KVI_KERNEL(MIX_THREADS, 2) mix_f32_f32_kernel(mix_args a)
{
    constexpr unsigned N = COPIES != 0 && COPIES * COPIES <= KVI_WARP ? 1 : 2;
    mix_shared    &s = kvi_shared<mix_shared>();
    const unsigned m = COPIES ? COPIES : a.copies;
    const size_t   row = blockIdx.x;
    const float   *h = a.h + row * a.row_floats;
    const float   *proj = a.proj + row * (2 + m) * m;
    const bool     aligned = kvi_is_aligned_16(h);
    float4         sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    kvi_add_squares(sum, h, 4 * threadIdx.x, 4 * MIX_THREADS, a.row_floats, aligned);
    const float r = kvi_rms_inverse(kvi_block_sum<MIX_THREADS / KVI_WARP>(kvi_fold(sum), s.part), a.row_floats, a.norm_eps);
    const unsigned lane = kvi_lane();

    if (kvi_warp() == 0) {
        mix_matrix<N> c;

        KVI_UNROLL
        for (unsigned q = 0; q < N; q++) {
            const unsigned e = lane + KVI_WARP * q;
            c.c[q] = e < m * m ? proj[2 * m + e] * r * a.scale_comb + a.base[2 * m + e] : 0.0f;
        }
        mix_balance<N>(c, m, a.eps, a.n_iters);
        KVI_UNROLL
        for (unsigned q = 0; q < N; q++)
            if (lane + KVI_WARP * q < m * m)
                a.comb[row * m * m + lane + KVI_WARP * q] = c.c[q];
    } else if (kvi_warp() == 1 && lane < 2 * m) {
        const bool  post = lane >= m;
        const float gate = kvi_sigmoid_exact(proj[lane] * r * (post ? a.scale_post : a.scale_pre) + a.base[lane]);

        if (post)
            a.post[row * m + lane - m] = 2.0f * gate;
        else
            a.pre[row * m + lane] = gate + a.eps;
    }
}

/* ---- collapse, expand ---- */

struct collapse_args {
    const float *h, *pre;
    float       *y;
    unsigned     copies, width, pieces; /* blocks of a row */
};

struct expand_args {
    float       *h;
    const float *y, *post, *comb;
    unsigned     copies, width, pieces;
};

struct expand_shared {
    alignas(16) float comb[MIX_COPIES * MIX_COPIES];
    float             post[MIX_COPIES];
};

/* y = sum over copies, ascending, of pre h. */
template <unsigned COPIES> KVI_KERNEL(STREAM_THREADS, 8) collapse_f32_f32_kernel(collapse_args a)
{
    const unsigned m = COPIES ? COPIES : a.copies;
    const size_t   row = blockIdx.x / a.pieces;
    const unsigned i = blockIdx.x % a.pieces * STREAM_COLUMNS + 4 * threadIdx.x;
    const float   *h = a.h + row * m * a.width, *pre = a.pre + row * m;
    float         *y = a.y + row * a.width;

    if (i < a.width) {
        const bool aligned = kvi_is_aligned_16(h) && a.width % 4 == 0;
        float4     sum = kvi_times(pre[0], kvi_load_piece(h, i, a.width, aligned));

        KVI_UNROLL
        for (unsigned c = 1; c < m; c++)
            sum = kvi_plus(sum, kvi_times(pre[c], kvi_load_piece(h + static_cast<size_t>(c) * a.width, i, a.width, aligned)));
        kvi_write_piece(y, i, a.width, kvi_is_aligned_16(y), sum);
    }
}

/* h[k] = post[k] y + (sum over j, ascending, of C[j][k] h[j]); in place. COPIES: as many or more. */
template <unsigned COPIES> KVI_KERNEL(STREAM_THREADS, COPIES > 4 ? 4 : 8) expand_f32_f32_kernel(expand_args a)
{
    expand_shared &s = kvi_shared<expand_shared>();
    const unsigned m = COPIES == 4 ? COPIES : a.copies;
    const size_t   row = blockIdx.x / a.pieces;
    const unsigned i = blockIdx.x % a.pieces * STREAM_COLUMNS + 4 * threadIdx.x;
    const float   *y = a.y + row * a.width;
    float         *h = a.h + row * m * a.width;
    const bool     aligned = kvi_is_aligned_16(h) && a.width % 4 == 0, in = i < a.width;
    float4         old[COPIES], add = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    KVI_UNROLL
    for (unsigned j = 0; j < COPIES; j++)
        if (in && j < m)
            old[j] = kvi_read_piece(h + static_cast<size_t>(j) * a.width, i, a.width, aligned);
    if (in)
        add = kvi_load_piece(y, i, a.width, kvi_is_aligned_16(y));
    if (threadIdx.x < m * m)
        s.comb[threadIdx.x] = a.comb[row * m * m + threadIdx.x];
    if (threadIdx.x < m)
        s.post[threadIdx.x] = a.post[row * m + threadIdx.x];
    kvi_sync_block();
    KVI_UNROLL
    for (unsigned k = 0; k < COPIES; k++)
        if (in && k < m) {
            float4 sum = kvi_times(s.comb[k], old[0]);

            KVI_UNROLL
            for (unsigned j = 1; j < COPIES; j++)
                if (j < m)
                    sum = kvi_plus(sum, kvi_times(s.comb[j * m + k], old[j]));
            kvi_write_piece(h + static_cast<size_t>(k) * a.width, i, a.width, aligned, kvi_plus(kvi_times(s.post[k], add), sum));
        }
}

#endif
