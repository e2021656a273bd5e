/* Router: s = sqrt(softplus(z)), the k largest of s + bias, their weights. The CPU's bits: exp and log1p in double.
 *
 * Work split: a block of 512 threads a row. All of them make scores (about 100 operations in double each); then the first warp
 * takes the best k times, every lane with the ranks of experts lane, lane + 32, ... in registers as whole numbers in the order of
 * the floats.
 * Bytes: 4 n_experts a row, 8 k written; 1.6 KB for 384 experts.
 * Bound: latency, in clocks of one row: some 1500 for the scores and 100 for each of the k; many rows: the double rate, 384 x 100
 * operations of 64 a clock and SM, 600 clocks a row, 11 us for 4096 rows.
 * Measured: not yet run on a device. */
#ifndef KVI_CUDA_ROUTE_CUH
#define KVI_CUDA_ROUTE_CUH

#include "device_math.cuh"
#include "device_warp.cuh"

enum : unsigned { ROUTE_THREADS = 512, ROUTE_EXPERTS = 1024 };

struct route_args {
    const float *z, *bias;
    uint32_t    *experts;
    float       *weights;
    unsigned     n_experts, k, normalise;
    float        scale;
};

struct route_shared {
    float    score[ROUTE_EXPERTS];
    uint32_t rank[ROUTE_EXPERTS]; /* 0 = none */
    float    taken[ROUTE_EXPERTS]; /* scores of the experts that were taken, by id */
};

/* In the order of the floats, never 0; NaN is -inf, -0 is 0. */
KVI_DEV uint32_t route_rank(float x)
{
    const uint32_t u = kvi_is_nan(x) ? 0xff800000u : kvi_bits(x + 0.0f);
    return u >> 31 ? ~u : u | 0x80000000u;
}

KVI_DEV float route_score(float z) { return kvi_sqrt(z > 20.0f ? z : kvi_log1p_exact(kvi_exp_exact(z))); }

/* SLOTS x 32 experts at most. */
template <unsigned SLOTS> KVI_KERNEL(ROUTE_THREADS, 2) route_f32_f32_kernel(route_args a)
{
    route_shared  &s = kvi_shared<route_shared>();
    const size_t   row = blockIdx.x;
    const float   *z = a.z + row * a.n_experts;
    const unsigned lane = kvi_lane();

    for (unsigned e = threadIdx.x; e < SLOTS * KVI_WARP; e += ROUTE_THREADS) {
        const float score = e < a.n_experts ? route_score(z[e]) : 0.0f;

        s.score[e] = score;
        s.rank[e] = e < a.n_experts ? route_rank(score + a.bias[e]) : 0;
    }
    kvi_sync_block();
    if (kvi_warp() == 0) {
        uint32_t rank[SLOTS], taken = 0; /* bit q: that of slot q */

        KVI_UNROLL
        for (unsigned q = 0; q < SLOTS; q++)
            rank[q] = s.rank[q * KVI_WARP + lane];
        for (unsigned i = 0; i < a.k; i++) {
            uint32_t best = 0, mine = KVI_ALL_LANES;

            KVI_UNROLL
            for (unsigned q = 0; q < SLOTS; q++)
                best = rank[q] > best ? rank[q] : best;
            best = kvi_warp_max_u32(best);
            KVI_UNROLL
            for (unsigned q = SLOTS; q-- > 0;)
                mine = rank[q] == best ? q * KVI_WARP + lane : mine;
            mine = kvi_warp_min_u32(mine);
            KVI_UNROLL
            for (unsigned q = 0; q < SLOTS; q++)
                if (q * KVI_WARP + lane == mine) {
                    rank[q] = 0;
                    taken |= 1u << q;
                }
        }
        for (unsigned q = 0, at = 0; q < SLOTS; q++) {
            const unsigned all = kvi_ballot(taken >> q & 1u), i = at + kvi_count_bits(all & ((1u << lane) - 1u));

            if (taken >> q & 1u) {
                a.experts[row * a.k + i] = q * KVI_WARP + lane;
                s.taken[i] = s.score[q * KVI_WARP + lane];
            }
            at += kvi_count_bits(all);
        }
        kvi_sync_warp();
        float sum = 0.0f;
        for (unsigned i = 0; i < a.k; i++)
            sum = sum + s.taken[i];
        for (unsigned i = lane; i < a.k; i += KVI_WARP) {
            const float w = a.normalise && a.k > 1 ? kvi_div(s.taken[i], sum + 1e-20f) : s.taken[i];
            a.weights[row * a.k + i] = w * a.scale;
        }
    }
}

#endif
