/* Pooling of pairs: softmax over two gates, weighted sum of two values. The CPU's bits: e^x in double, of the smaller gate alone,
 * since that of the larger is 1.
 *
 * Work split: a thread four channels of a pair, 128 threads a block; pairs and channels are one array of pieces. Pairs of many
 * timelines (kvi_slices) find their rows in tables: three dependent loads more.
 * Bytes: 20 a channel.
 * Bound: memory. 4096 tokens of 512 + 128 channels are 26 MB, 5.5 us at 4.8 TB/s; the 25 operations in double of a channel take
 * 40 % of that on H200.
 * Measured: not yet run on a device. */
#ifndef KVI_CUDA_PAIRS_CUH
#define KVI_CUDA_PAIRS_CUH

#include "backend/op_params.h"
#include "device_floats.cuh"
#include "device_math.cuh"

enum : unsigned { POOL_THREADS = 128 };

struct pool_args {
    const float    *k, *gate;
    const float    *head; /* NULL, or what stands in front of k and of gate */
    float          *out;
    unsigned        width, pieces; /* blocks of a pair */
    kvi_slices      of;            /* slices NULL = pairs follow each other in k */
    const uint64_t *entry_pos;
    size_t          pending_off;
    unsigned        pending_slots, pending_bytes;
};

/* The rows of a pair; k0 NULL = there is no pair. */
struct pool_rows {
    const float *k0, *gate0, *k1, *gate1;
};

KVI_DEV pool_rows pool_rows_of(const pool_args &a, size_t pair)
{
    const bool   from_head = a.head && pair == 0;
    const size_t second = (2 * pair + (a.head ? 0 : 1)) * a.width; /* where the second rows begin */
    const float *k1 = a.k + second, *gate1 = a.gate + second;

    return {from_head ? a.head : k1 - a.width, from_head ? a.head + a.width : gate1 - a.width, k1, gate1};
}

KVI_DEV pool_rows pool_rows_of_slice(const pool_args &a, size_t pair)
{
    const uint64_t pos = a.entry_pos[pair];

    if (pos == KVI_NO_ENTRY)
        return {nullptr, nullptr, nullptr, nullptr};
    const size_t          i = pair / a.of.each;
    const kvi_slice_rows &r = a.of.rows[i];
    const size_t          second = static_cast<size_t>(r.row + (pos + 1 - r.pos)) * a.width;
    const float          *k1 = a.k + second, *gate1 = a.gate + second;

    if (pos >= r.pos)
        return {k1 - a.width, gate1 - a.width, k1, gate1};
    const uint8_t *raw = a.of.slices[i].pending + a.pending_off + pos / 2 % a.pending_slots * a.pending_bytes;
    const float   *k0 = reinterpret_cast<const float *>(raw);
    return {k0, k0 + a.width, k1, gate1};
}

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
    const size_t    pair = blockIdx.x / a.pieces;
    const unsigned  i = (blockIdx.x % a.pieces * POOL_THREADS + threadIdx.x) * 4;
    const pool_rows r = a.of.slices ? pool_rows_of_slice(a, pair) : pool_rows_of(a, pair);
    float          *out = a.out + pair * a.width;

    if (i < a.width && !r.k0) {
        kvi_write_piece(out, i, a.width, kvi_is_aligned_16(out), make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    } else if (i < a.width) {
        const float4 x0 = pool_load(r.k0, i, a.width), x1 = pool_load(r.k1, i, a.width);
        const float4 g0 = pool_load(r.gate0, i, a.width), g1 = pool_load(r.gate1, i, a.width);

        kvi_write_piece(out, i, a.width, kvi_is_aligned_16(out),
                        make_float4(pool_channel(x0.x, x1.x, g0.x, g1.x), pool_channel(x0.y, x1.y, g0.y, g1.y),
                                    pool_channel(x0.z, x1.z, g0.z, g1.z), pool_channel(x0.w, x1.w, g0.w, g1.w)));
    }
}

#endif
