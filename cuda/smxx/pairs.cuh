/* Pooling of pairs: softmax over two gates, weighted sum of two values. The CPU's bits: e^x in double, of the smaller gate alone,
 * since that of the larger is 1.
 *
 * Work split: a thread four channels of a pair, 128 threads a block; pairs and channels are one array of pieces.
 * Bytes: 20 a channel.
 * Bound: memory. 4096 tokens of 512 + 128 channels are 26 MB, 5.5 us at 4.8 TB/s; the 25 operations in double of a channel take
 * 40 % of that on H200.
 * Measured: not yet run on a device. */
#ifndef KVI_CUDA_PAIRS_CUH
#define KVI_CUDA_PAIRS_CUH

#include "device_floats.cuh"
#include "device_math.cuh"

enum : unsigned { POOL_THREADS = 128 };

struct pool_args {
    const float *k, *gate;
    const float *head; /* NULL, or what stands in front of k and of gate */
    float       *out;
    unsigned     width, pieces; /* blocks of a pair */
};

KVI_DEV float pool_channel(float k0, float k1, float g0, float g1)
{
    const bool  first = g0 > g1;
    const float m = first ? g0 : g1;
    const float top = (m - m) + 1.0f; /* e^0, or NaN */
    const float rest = kvi_exp_exact((first ? g1 : g0) - m);
    const float e0 = first ? top : rest, e1 = first ? rest : top;
    const float sum = e0 + e1;

    return k0 * kvi_div(e0, sum) + k1 * kvi_div(e1, sum);
}

KVI_DEV float4 pool_load(const float *row, unsigned i, unsigned width)
{
    return kvi_load_piece(row, i, width, kvi_is_aligned_16(row));
}

KVI_KERNEL(POOL_THREADS, 8) pool_pairs_f32_f32_kernel(pool_args a)
{
    const size_t   pair = blockIdx.x / a.pieces;
    const unsigned i = (blockIdx.x % a.pieces * POOL_THREADS + threadIdx.x) * 4;
    const bool     from_head = a.head && pair == 0;
    const size_t   second = (2 * pair + (a.head ? 0 : 1)) * a.width; /* where the second rows begin */
    const float   *k1 = a.k + second, *gate1 = a.gate + second;
    const float   *k0 = from_head ? a.head : k1 - a.width, *gate0 = from_head ? a.head + a.width : gate1 - a.width;
    float         *out = a.out + pair * a.width;

    if (i < a.width) {
        const float4 x0 = pool_load(k0, i, a.width), x1 = pool_load(k1, i, a.width);
        const float4 g0 = pool_load(gate0, i, a.width), g1 = pool_load(gate1, i, a.width);

        kvi_write_piece(out, i, a.width, kvi_is_aligned_16(out),
                        make_float4(pool_channel(x0.x, x1.x, g0.x, g1.x), pool_channel(x0.y, x1.y, g0.y, g1.y),
                                    pool_channel(x0.z, x1.z, g0.z, g1.z), pool_channel(x0.w, x1.w, g0.w, g1.w)));
    }
}

#endif
