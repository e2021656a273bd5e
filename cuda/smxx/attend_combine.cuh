/* What follows attend.cuh: the splits of a row to one result, and the mass of the selected slots.
 *
 * attend_combine: a block a row and head, a thread four channels; splits are added in ascending order with the factors
 * e^(maximum of the split - maximum of all), the sink joins the denominator. Traffic: the parts once (from the second cache:
 * kvi_cuda_attend takes rows in portions whose parts fit it), the output once. Bound: memory.
 * attend_mass: a thread a selected slot, heads in ascending order: reads a score of every head. Bound: memory. Measured: not
 * yet run on a device. */
#ifndef KVI_CUDA_ATTEND_COMBINE_CUH
#define KVI_CUDA_ATTEND_COMBINE_CUH

#include "attend.cuh"

enum : unsigned { COMBINE_THREADS = ATTEND_WIDTH / 4, MASS_THREADS = 128 };

KVI_KERNEL(COMBINE_THREADS, 8) attend_combine_kernel(attend_args a)
{
    const size_t   row = blockIdx.x / a.n_heads;
    const unsigned head = blockIdx.x % a.n_heads, c = 4 * threadIdx.x;
    const float2  *stat = a.part_stat + row * a.n_splits * a.n_heads + head;
    float4         o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float          max = ATTEND_NO_MAX, sum = 0.0f;

    for (unsigned i = 0; i < a.n_splits; i++)
        max = kvi_max(stat[static_cast<size_t>(i) * a.n_heads].x, max);
    for (unsigned i = 0; i < a.n_splits; i++) {
        const float2 part = stat[static_cast<size_t>(i) * a.n_heads];
        const float  f = kvi_exp(part.x - max);

        sum = sum + part.y * f;
        if (c < a.width) {
            const float4 v = kvi_get<float4>(a.part + ((row * a.n_splits + i) * a.n_heads + head) * static_cast<size_t>(a.width) + c);
            o.x = o.x + v.x * f;
            o.y = o.y + v.y * f;
            o.z = o.z + v.z * f;
            o.w = o.w + v.w * f;
        }
    }
    const float den = sum + kvi_exp(a.sink[head] - max), r = kvi_div(1.0f, den);
    if (c < a.width)
        kvi_put(a.out + (row * a.n_heads + head) * a.width + c, make_float4(o.x * r, o.y * r, o.z * r, o.w * r));
    if (a.stat && threadIdx.x == 0)
        a.stat[row * a.n_heads + head] = make_float2(max, den);
}

struct attend_mass_args {
    const float   *scores; /* [rows, heads, k] */
    const float2  *stat;   /* [rows, heads]: maximum, denominator */
    const int32_t *ids;    /* [rows, k] */
    float         *mass;
    unsigned       n_heads, k;
};

KVI_KERNEL(MASS_THREADS, 8) attend_mass_kernel(attend_mass_args a)
{
    const unsigned per_row = (a.k + MASS_THREADS - 1) / MASS_THREADS;
    const size_t   row = blockIdx.x / per_row;
    const unsigned j = blockIdx.x % per_row * MASS_THREADS + threadIdx.x;
    float          sum = 0.0f;

    if (j >= a.k)
        return;
    for (unsigned h = 0; h < a.n_heads && a.ids[row * a.k + j] >= 0; h++) {
        const float2 stat = a.stat[row * a.n_heads + h];
        sum = sum + kvi_div(kvi_exp(a.scores[(row * a.n_heads + h) * a.k + j] - stat.x), stat.y);
    }
    a.mass[row * a.k + j] = sum;
}

#endif
