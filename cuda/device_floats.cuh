/* Rows of floats in pieces of four: thread t of a group of T has the pieces t, t + T, ... Rows may begin anywhere and end in the
 * middle of a piece; whether 16 bytes are moved at once changes no sum. */
#ifndef KVI_DEVICE_FLOATS_CUH
#define KVI_DEVICE_FLOATS_CUH

#include "device.cuh"

/* May 16 bytes at once be moved at p + 4 i? */
KVI_DEV bool kvi_is_aligned_16(const void *p) { return (reinterpret_cast<uintptr_t>(p) & 15u) == 0; }

/* 16 bytes that this launch writes too: past the cache of what never changes. */
KVI_DEV float4 kvi_read_float4(const float *p)
{
#ifdef KVI_CUDA_EMULATED
    if (!kvi_is_aligned_16(p))
        kvi_emu::fault({"kvi_read_float4", 0}, "16 bytes are not aligned");
#endif
    return *reinterpret_cast<const float4 *>(p);
}

KVI_DEV void kvi_write_float4(float *p, float4 v)
{
#ifdef KVI_CUDA_EMULATED
    if (!kvi_is_aligned_16(p))
        kvi_emu::fault({"kvi_write_float4", 0}, "16 bytes are not aligned");
#endif
    *reinterpret_cast<float4 *>(p) = v;
}

KVI_DEV float4 kvi_load_float4(const float *p) /* that no kernel of this launch writes */
{
    const uint4 v = kvi_load_16(p);
    return make_float4(kvi_float(v.x), kvi_float(v.y), kvi_float(v.z), kvi_float(v.w));
}

/* Floats i .. i + 3 of a row of n, i < n; behind the end 0. `aligned` is that of the row. */
KVI_DEV float4 kvi_read_piece(const float *row, unsigned i, unsigned n, bool aligned)
{
    if (aligned && i + 4 <= n)
        return kvi_read_float4(row + i);
    return make_float4(row[i], i + 1 < n ? row[i + 1] : 0.0f, i + 2 < n ? row[i + 2] : 0.0f, i + 3 < n ? row[i + 3] : 0.0f);
}

/* of a row that no kernel of this launch writes */
KVI_DEV float4 kvi_load_piece(const float *row, unsigned i, unsigned n, bool aligned)
{
    if (aligned && i + 4 <= n)
        return kvi_load_float4(row + i);
    return make_float4(row[i], i + 1 < n ? row[i + 1] : 0.0f, i + 2 < n ? row[i + 2] : 0.0f, i + 3 < n ? row[i + 3] : 0.0f);
}

KVI_DEV void kvi_write_piece(float *row, unsigned i, unsigned n, bool aligned, float4 v)
{
    if (aligned && i + 4 <= n) {
        kvi_write_float4(row + i, v);
        return;
    }
    row[i] = v.x;
    if (i + 1 < n)
        row[i + 1] = v.y;
    if (i + 2 < n)
        row[i + 2] = v.z;
    if (i + 3 < n)
        row[i + 3] = v.w;
}

/* Four sums side by side. */
KVI_DEV void kvi_add_products(float4 &sum, float4 a, float4 b)
{
    sum.x = kvi_fma(a.x, b.x, sum.x);
    sum.y = kvi_fma(a.y, b.y, sum.y);
    sum.z = kvi_fma(a.z, b.z, sum.z);
    sum.w = kvi_fma(a.w, b.w, sum.w);
}
/* Adds the squares of the pieces `first`, first + step, ... (floats) of a row of n: four loads are on their way at a time. */
KVI_DEV void kvi_add_squares(float4 &sum, const float *row, unsigned first, unsigned step, unsigned n, bool aligned)
{
    for (unsigned at = first; at < n; at += 4 * step) {
        float4 v[4];

        KVI_UNROLL
        for (unsigned u = 0; u < 4; u++)
            v[u] = at + u * step < n ? kvi_read_piece(row, at + u * step, n, aligned) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        KVI_UNROLL
        for (unsigned u = 0; u < 4; u++)
            kvi_add_products(sum, v[u], v[u]);
    }
}

KVI_DEV float kvi_fold(float4 a) { return (a.x + a.y) + (a.z + a.w); }

KVI_DEV float4 kvi_times(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
KVI_DEV float4 kvi_times(float a, float4 b) { return make_float4(a * b.x, a * b.y, a * b.z, a * b.w); }
KVI_DEV float4 kvi_plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

/* The sum of a block's WARPS sums, the same bits in every lane. */
template <unsigned WARPS> KVI_DEV float kvi_sum_of_warps(const float *part)
{
    static_assert(WARPS <= KVI_WARP, "one warp adds them up");
    return kvi_warp_sum(kvi_lane() < WARPS ? part[kvi_lane()] : 0.0f);
}

/* The sum of a block of WARPS warps, the same bits in every thread; part[WARPS] is shared memory that nobody uses any more. */
template <unsigned WARPS> KVI_DEV float kvi_block_sum(float x, float *part)
{
    x = kvi_warp_sum(x);
    if (kvi_lane() == 0)
        part[kvi_warp()] = x;
    kvi_sync_block();
    return kvi_sum_of_warps<WARPS>(part);
}

/* 1 / sqrt(mean x^2 + eps) of the sum of n squares */
KVI_DEV float kvi_rms_inverse(float sum, size_t n, float eps)
{
    return kvi_div(1.0f, kvi_sqrt(kvi_div(sum, static_cast<float>(n)) + eps));
}

#endif
