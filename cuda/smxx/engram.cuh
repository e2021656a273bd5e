/* Engram gate: h += sigmoid(+-sqrt|h . key|) value, h and key normalised, for every copy.
 *
 * Work split: a block of 256 threads per row and copy. The three sums are made in one pass; h stays in registers up to 8192
 * channels (beyond them it is read again, from L2), so that it is read once and written once.
 * Bytes: 4 (3 copies + 1) width a row (266 KB for 4 x 5120) and qk, from L2 for all rows but the first.
 * Bound: memory: 128 rows 7 us, 4096 rows 227 us at 4.8 TB/s; one row 80 KB through one SM for each copy, about 0.8 us.
 * Order of the sums: that of norm.cuh; after them the bits are those of the CPU's portable kernels.
 * Measured: not yet run on a device. */
#ifndef KVI_CUDA_ENGRAM_CUH
#define KVI_CUDA_ENGRAM_CUH

#include "device_floats.cuh"
#include "device_math.cuh"

enum : unsigned { ENGRAM_THREADS = 256, ENGRAM_HELD = 8, ENGRAM_STEP = 4 * ENGRAM_THREADS };

struct engram_args {
    float       *h;
    const float *kv, *qk;
    unsigned     copies, width;
    float        eps;
};

struct engram_shared {
    float part[3][ENGRAM_THREADS / KVI_WARP];
};

struct engram_sums {
    float4 hh, kk, dot;
};

KVI_DEV void engram_add(engram_sums &s, float4 h, float4 key, float4 qk)
{
    kvi_add_products(s.hh, h, h);
    kvi_add_products(s.kk, key, key);
    kvi_add_products(s.dot, kvi_times(h, qk), key);
}

/* Sums over the block, then the gate. The root keeps its sign, also that of -0; |dot| has a floor. */
KVI_DEV float engram_gate(const engram_sums &sums, unsigned width, float eps)
{
    engram_shared &s = kvi_shared<engram_shared>();
    const float    mine[3] = {kvi_warp_sum(kvi_fold(sums.hh)), kvi_warp_sum(kvi_fold(sums.kk)), kvi_warp_sum(kvi_fold(sums.dot))};
    float          all[3];

    if (kvi_lane() == 0) {
        s.part[0][kvi_warp()] = mine[0];
        s.part[1][kvi_warp()] = mine[1];
        s.part[2][kvi_warp()] = mine[2];
    }
    kvi_sync_block();
    KVI_UNROLL
    for (unsigned i = 0; i < 3; i++)
        all[i] = kvi_sum_of_warps<ENGRAM_THREADS / KVI_WARP>(s.part[i]);
    const float r = kvi_rms_inverse(all[0], width, eps) * kvi_rms_inverse(all[1], width, eps);
    const float dot = all[2] * r * kvi_div(1.0f, kvi_sqrt(static_cast<float>(width)));
    const bool  negative = kvi_bits(dot) >> 31;
    const float size = negative ? -dot : dot;
    const float root = kvi_sqrt(size < 1e-6f ? 1e-6f : size);

    return kvi_sigmoid_exact(negative ? -root : root);
}

KVI_KERNEL(ENGRAM_THREADS, 3) engram_gate_f32_f32_kernel(engram_args a)
{
    const size_t   row = blockIdx.x / a.copies;
    const unsigned copy = blockIdx.x % a.copies;
    float         *h = a.h + (row * a.copies + copy) * a.width;
    const float   *kv = a.kv + row * (static_cast<size_t>(a.copies) + 1) * a.width;
    const float   *key = kv + static_cast<size_t>(copy) * a.width, *value = kv + static_cast<size_t>(a.copies) * a.width;
    const float   *qk = a.qk + static_cast<size_t>(copy) * a.width;
    const bool     h_aligned = kvi_is_aligned_16(h), key_aligned = kvi_is_aligned_16(key), qk_aligned = kvi_is_aligned_16(qk);
    const bool     value_aligned = kvi_is_aligned_16(value);
    const float4   zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const unsigned first = 4 * threadIdx.x, rest = first + ENGRAM_HELD * ENGRAM_STEP;
    float4         held[ENGRAM_HELD];
    engram_sums    s = {zero, zero, zero};

    KVI_UNROLL
    for (unsigned k = 0; k < ENGRAM_HELD; k++) {
        const unsigned i = first + k * ENGRAM_STEP;
        if (i < a.width) {
            held[k] = kvi_read_piece(h, i, a.width, h_aligned);
            engram_add(s, held[k], kvi_load_piece(key, i, a.width, key_aligned), kvi_load_piece(qk, i, a.width, qk_aligned));
        }
    }
    for (unsigned i = rest; i < a.width; i += ENGRAM_STEP)
        engram_add(s, kvi_read_piece(h, i, a.width, h_aligned), kvi_load_piece(key, i, a.width, key_aligned),
                   kvi_load_piece(qk, i, a.width, qk_aligned));
    const float gate = engram_gate(s, a.width, a.eps);
    KVI_UNROLL
    for (unsigned k = 0; k < ENGRAM_HELD; k++) {
        const unsigned i = first + k * ENGRAM_STEP;
        if (i < a.width)
            kvi_write_piece(h, i, a.width, h_aligned,
                            kvi_plus(held[k], kvi_times(gate, kvi_load_piece(value, i, a.width, value_aligned))));
    }
    for (unsigned i = rest; i < a.width; i += ENGRAM_STEP)
        kvi_write_piece(h, i, a.width, h_aligned,
                        kvi_plus(kvi_read_piece(h, i, a.width, h_aligned),
                                 kvi_times(gate, kvi_load_piece(value, i, a.width, value_aligned))));
}

#endif
