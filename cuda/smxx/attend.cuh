/* Attention of one latent over window rows and selected entries (kvi_attend_params), for sm_80 and later: mma.sync m16n8k16
 * bf16.
 *
 * Work split: a block takes one query row, one split of 320 slots and a group of HEADS heads; a second kernel combines the
 * splits of a row (attend_combine.cuh). Splits are cut by n_window and k alone. Which group of heads a block has (64, or 16
 * where that fills the device better) changes no bit: heads share nothing but the keys, and all sums are made in the same
 * order for both.
 *
 * A tile of SLOTS slots: rows come by cp.async (288 bytes of FP4, 528 of FP8) while the tile before is computed; they are
 * dequantised once into bf16 in shared memory, which serves as K and, through transposed ldmatrix, as V.
 *   scores   the warps have 2 halves of the channels (steps of 16, even and odd) x blocks of heads x blocks of slots; the
 *            halves are added in shared memory;
 *   softmax  per tile, fp32, the running maximum from -1e30; p goes to bf16 for the product, unrounded into the denominator;
 *   output   fp32 in registers, a warp has 64 of 512 channels of all the block's heads: 128 registers of a thread with 64
 *            heads. Rows of shared memory are 16 bytes longer than a multiple of 128: ldmatrix meets no bank twice.
 *
 * Traffic of a row with 640 slots: 512 x 288 + 128 x 528 bytes of keys, q and out of 128 KiB each (64 heads x 512), and for
 * two splits 256 KiB of partial results written and read. Work 2 x 2 x 64 x 512 x 640 = 84 Mflop. Bound it aims at (H200): 128
 * rows are 10.7 Gflop, 10.9 us at 989 Tflop/s, about 18 us at what mma.sync reaches of it; 1 row: the latency of 5 tiles of 64
 * slots and of the combine. Measured: not yet run on a device.
 *
 * Errors. q is rounded to bf16 (u = 2^-8), keys are exact in FP4_E4M3_G16, FP4_E8M0_G32, FP8_E8M0_G32, BF16 and FP4_AS_F32,
 * else they are rounded too; g = width x 2^-22 covers the additions of a score in any order, truncated, and the CPU's own.
 * With a = scale x sum |q||k| a score is off by D = a (2u + u^2 + g) at most (a (u + g) where keys are exact). With
 * probabilities p, E = p(sink) + sum p e^D bounds the change of the denominator both ways (below by Jensen), so that a
 * probability is off by the factor e^D E, and
 *   |out - exact| <= sum over slots of p |k| (e^D E (1 + u)(1 + v)(1 + h) - 1)
 * with u for p in bf16, v = u where keys are rounded (else 0), h = (n_slots + 64) x 2^-22 for e^x (2 x 2^-24), for the sums of
 * the denominator and of the output, the factors between tiles and splits and the division. Mass: the same
 * without |k| and (1 + u)(1 + v). */
#ifndef KVI_CUDA_ATTEND_CUH
#define KVI_CUDA_ATTEND_CUH

#include "backend/op_params.h"
#include "device_tile.cuh"

enum : unsigned {
    ATTEND_THREADS = 256,
    ATTEND_WIDTH = 512,              /* at most */
    ATTEND_STEP = 32,                /* of widths */
    ATTEND_SPLIT = 320,              /* slots: part of the numerics */
    ATTEND_PITCH = ATTEND_WIDTH + 8, /* of q and keys in shared memory */
    ATTEND_FP4 = ATTEND_WIDTH / 2 + ATTEND_WIDTH / 16,
    ATTEND_FP8 = ATTEND_WIDTH + ATTEND_WIDTH / 32,
    ATTEND_HALVES = 2                /* of the channels: part of the numerics */
};
#define ATTEND_NO_MAX (-1e30f)
/* Steps of the loops of a tile that are in flight together: with more, 64 heads x 64 slots spill on sm_100. */
#ifdef KVI_CUDA_EMULATED
#define ATTEND_UNROLL_STEPS
#else
#define ATTEND_UNROLL_STEPS _Pragma("unroll 2")
#endif

struct attend_args {
    const float          *q;         /* of the first row of this launch, as out, pos and ids */
    float                *out;
    const uint64_t       *pos;
    uint8_t *const       *pages;
    const uint8_t        *chunk;
    const float          *sink;
    const int32_t        *ids;
    uint8_t *const       *main_parts;
    float                *part;      /* [rows, splits, heads, width] if there are splits */
    float2               *part_stat; /* [rows, splits, heads]: maximum and sum */
    float2               *stat;      /* [rows, heads]: maximum and denominator of the end; NULL = nobody asks for the mass */
    float                *scores;    /* [rows, heads, k], NULL with it */
    uint64_t              chunk_pos, floor;
    kvi_slices            of;        /* slices NULL = pages, main_parts, chunk_pos and floor say it */
    size_t                first_row; /* of this launch, among the rows of all slices */
    size_t                page_off, main_off;
    unsigned              n_heads, n_groups, n_splits, width;
    unsigned              n_window, page_rows, n_pages, row_bytes;
    unsigned              k, rows_per_block, main_row_bytes, format;
    float                 scale;
};

/* FAST: 512 channels, FP4_E4M3_G16, all rows at multiples of 16 bytes (pages and blocks begin at one: their addresses are the
 * device's, the host looks at offsets only); else anything, decoded from global memory. */
template <unsigned HEADS, unsigned SLOTS, bool FAST> struct attend_shape {
    enum : unsigned {
        M_WARPS = HEADS == 64 ? 2 : 1,                        /* of a score tile: blocks of heads, of slots */
        N_WARPS = SLOTS / (HEADS == 64 ? SLOTS / 2 : 16),
        M_TILES = HEADS / 16 / M_WARPS,                       /* of a warp: 16 heads, 16 slots each */
        N_TILES = SLOTS / 16 / N_WARPS,
        HEAD_THREADS = ATTEND_THREADS / HEADS < SLOTS / 4 ? ATTEND_THREADS / HEADS : SLOTS / 4, /* of the softmax */
        QUADS = SLOTS / 4 / HEAD_THREADS,
        OUT_TILES = HEADS / 16,
        GROUPS = ATTEND_WIDTH / 16 / (ATTEND_THREADS / KVI_WARP), /* of 16 channels, of a warp */
        S_PITCH = SLOTS + 8,
        P_PITCH = SLOTS + 8
    };
    static_assert(HEADS == 16 || HEADS == 64, "groups of heads");
    static_assert(SLOTS == 32 || SLOTS == 64, "tiles");
    static_assert(M_WARPS * N_WARPS * ATTEND_HALVES <= ATTEND_THREADS / KVI_WARP, "warps");
    static_assert(ATTEND_SPLIT % SLOTS == 0, "whole tiles");
    static_assert(ATTEND_PITCH * 2 % 128 == 16 && P_PITCH * 2 % 32 == 16, "banks");

    struct shared {
        alignas(16) uint16_t q[HEADS][ATTEND_PITCH];
        alignas(16) uint16_t key[SLOTS][ATTEND_PITCH];
        alignas(16) uint8_t  raw[FAST ? SLOTS : 1][ATTEND_FP8]; /* bytes of the next tile's rows */
        alignas(16) float    s[ATTEND_HALVES][HEADS][S_PITCH];
        alignas(16) uint16_t p[HEADS][P_PITCH];
        float                factor[HEADS];                     /* of what was there before this tile; at the end 1 / denominator */
        const uint8_t       *rows[ATTEND_SPLIT];                /* nullptr = empty slot */
        uint32_t             used[ATTEND_SPLIT / 32];           /* bit of a slot */
    };
};

/* What a row of queries looks at: that of its timeline. */
struct attend_view {
    uint8_t *const *pages;
    uint8_t *const *main_parts;
    const uint8_t  *chunk;     /* row of chunk_pos */
    uint64_t        chunk_pos, floor;
};

KVI_DEV attend_view attend_view_of(const attend_args &a, size_t row)
{
    if (!a.of.slices)
        return {a.pages, a.main_parts, a.chunk, a.chunk_pos, a.floor};
    const size_t          i = (a.first_row + row) / a.of.each;
    const kvi_slice      &s = a.of.slices[i];
    const kvi_slice_rows &r = a.of.rows[i];

    return {s.pages, s.main_parts, a.chunk + r.row * a.row_bytes, r.pos, r.floor};
}

KVI_DEV uint64_t attend_first(const attend_args &a, const attend_view &v, uint64_t pos)
{
    const uint64_t end = pos + 1, lo = end > a.n_window ? end - a.n_window : 0;

    return lo > v.floor ? lo : v.floor;
}

/* Row of slot `slot`, nullptr = empty. */
KVI_DEV const uint8_t *attend_row(const attend_args &a, const attend_view &v, size_t row, unsigned slot)
{
    if (slot < a.n_window) {
        const uint64_t pos = a.pos[row], at = attend_first(a, v, pos) + slot;

        if (at > pos)
            return nullptr;
        if (at >= v.chunk_pos)
            return v.chunk + (at - v.chunk_pos) * a.row_bytes;
        const unsigned ring = static_cast<unsigned>(at % (static_cast<uint64_t>(a.n_pages) * a.page_rows));
        return v.pages[ring / a.page_rows] + a.page_off + static_cast<size_t>(ring % a.page_rows) * a.row_bytes;
    }
    slot -= a.n_window;
    if (slot >= a.k)
        return nullptr;
    const int32_t id = a.ids[row * a.k + slot];
    if (id < 0)
        return nullptr;
    const unsigned entry = static_cast<unsigned>(id);
    const unsigned block = entry / a.rows_per_block, in_block = entry % a.rows_per_block;
    return v.main_parts[block] + a.main_off + static_cast<size_t>(in_block) * a.main_row_bytes;
}

/* ---- the steps of a tile; `tile` counts inside the split ---- */

/* The first tile from `tile` on that is not empty. */
template <unsigned SLOTS> KVI_DEV unsigned attend_next(const uint32_t *used, unsigned tile)
{
    for (; tile < ATTEND_SPLIT / SLOTS; tile++) {
        uint32_t any = 0;

        for (unsigned i = 0; i < SLOTS / 32; i++)
            any |= used[tile * SLOTS / 32 + i];
        if (any)
            break;
    }
    return tile;
}

/* A warp a row: 18 or 33 copies of 16 bytes. */
template <class SHAPE, unsigned SLOTS>
KVI_DEV void attend_gather(const attend_args &a, typename SHAPE::shared &s, unsigned begin, unsigned tile)
{
    for (unsigned i = kvi_warp(); i < SLOTS; i += ATTEND_THREADS / KVI_WARP) {
        const uint8_t *row = s.rows[tile * SLOTS + i];
        const unsigned n = (begin + tile * SLOTS + i < a.n_window ? ATTEND_FP8 : ATTEND_FP4) / 16;

        for (unsigned c = kvi_lane(); row && c < n; c += KVI_WARP)
            kvi_copy_16(s.raw[i] + 16 * c, row + 16 * c);
    }
    kvi_copy_commit();
}

/* A warp a row, a lane eight channels at a time: codes are read and keys written without a bank conflict. */
template <class SHAPE, unsigned SLOTS, bool FAST>
KVI_DEV void attend_dequantise(const attend_args &a, typename SHAPE::shared &s, unsigned begin, unsigned tile)
{
    const unsigned n = (FAST ? ATTEND_WIDTH : a.width) / 8;

    ATTEND_UNROLL_STEPS
    for (unsigned i = kvi_warp(); i < SLOTS; i += ATTEND_THREADS / KVI_WARP) {
        const uint8_t *row = s.rows[tile * SLOTS + i];
        const bool     window = begin + tile * SLOTS + i < a.n_window;

        KVI_UNROLL
        for (unsigned j = 0; j < ATTEND_WIDTH / 8 / KVI_WARP; j++) {
            const unsigned c = kvi_lane() + j * KVI_WARP;
            uint4          v = make_uint4(0, 0, 0, 0); /* an empty slot must not be NaN: p = 0 meets it */

            if (c >= n)
                continue;
            if (FAST && row)
                v = window ? kvi_tile_fp8<ATTEND_WIDTH>(s.raw[i], c) : kvi_tile_fp4<ATTEND_WIDTH>(s.raw[i], c);
            else if (row)
                v = kvi_tile_any(window ? static_cast<unsigned>(KVCSA_FORMAT_FP8_E8M0_G32) : a.format, row, a.width, 8 * c);
            kvi_put(&s.key[i][8 * c], v);
        }
    }
}

/* Dot products of q and the keys of a tile, a half of the channels each. */
template <class SHAPE, bool FAST> KVI_DEV void attend_scores(const attend_args &a, typename SHAPE::shared &s)
{
    const unsigned warp = kvi_warp(), lane = kvi_lane();
    const unsigned half = warp % ATTEND_HALVES, block = warp / ATTEND_HALVES;
    const unsigned m0 = block / SHAPE::N_WARPS * 16 * SHAPE::M_TILES, n0 = block % SHAPE::N_WARPS * 16 * SHAPE::N_TILES;
    const unsigned steps = (FAST ? ATTEND_WIDTH : a.width) / 16;
    float          d[SHAPE::M_TILES][SHAPE::N_TILES][2][4];

    if (block >= SHAPE::M_WARPS * SHAPE::N_WARPS)
        return;
    KVI_UNROLL
    for (unsigned m = 0; m < SHAPE::M_TILES; m++)
        KVI_UNROLL
        for (unsigned n = 0; n < SHAPE::N_TILES; n++)
            KVI_UNROLL
            for (unsigned i = 0; i < 8; i++)
                d[m][n][i / 4][i % 4] = 0.0f;
    ATTEND_UNROLL_STEPS
    for (unsigned step = half; step < steps; step += ATTEND_HALVES) {
        uint32_t q[SHAPE::M_TILES][4], k[SHAPE::N_TILES][4];

        KVI_UNROLL
        for (unsigned m = 0; m < SHAPE::M_TILES; m++)
            kvi_load_matrices<false>(q[m], &s.q[m0 + 16 * m + lane % 16][16 * step + lane / 16 * 8]);
        KVI_UNROLL
        for (unsigned n = 0; n < SHAPE::N_TILES; n++)
            kvi_load_matrices<false>(k[n], &s.key[n0 + 16 * n + lane % 8 + lane / 16 * 8][16 * step + lane / 8 % 2 * 8]);
        KVI_UNROLL
        for (unsigned m = 0; m < SHAPE::M_TILES; m++)
            KVI_UNROLL
            for (unsigned n = 0; n < SHAPE::N_TILES; n++)
                KVI_UNROLL
                for (unsigned i = 0; i < 2; i++) {
                    const uint32_t b[2] = {k[n][2 * i], k[n][2 * i + 1]};
                    kvi_mma_bf16(d[m][n][i], q[m], b);
                }
    }
    KVI_UNROLL
    for (unsigned m = 0; m < SHAPE::M_TILES; m++)
        KVI_UNROLL
        for (unsigned n = 0; n < SHAPE::N_TILES; n++)
            KVI_UNROLL
            for (unsigned i = 0; i < 4; i++) {
                const unsigned row = m0 + 16 * m + i % 2 * 8 + lane / 4, col = n0 + 16 * n + i / 2 * 8 + lane % 4 * 2;
                kvi_put(&s.s[half][row][col], make_float2(d[m][n][i / 2][i % 2 * 2], d[m][n][i / 2][i % 2 * 2 + 1]));
            }
}

/* What a head carries from tile to tile, in all its threads of the softmax. */
struct attend_head {
    float max, sum;
};

/* HEAD_THREADS threads a head; thread r has the quads of slots r, r + HEAD_THREADS, .... The order of a sum: inside a quad
 * ascending, quads in a butterfly, the far ones first; so it is the same for every number of threads. */
template <class SHAPE, unsigned SLOTS>
KVI_DEV void attend_soften(const attend_args &a, typename SHAPE::shared &s, attend_head &h, size_t row, unsigned first_head,
                           unsigned begin, unsigned tile)
{
    const unsigned head = threadIdx.x / SHAPE::HEAD_THREADS, r = threadIdx.x % SHAPE::HEAD_THREADS;
    float          x[SHAPE::QUADS][4], sum[SHAPE::QUADS], max = h.max;

    KVI_UNROLL
    for (unsigned i = 0; i < SHAPE::QUADS; i++) {
        const unsigned at = 4 * (i * SHAPE::HEAD_THREADS + r), slot = tile * SLOTS + at;
        const uint32_t used = s.used[slot / 32] >> (slot % 32);
        const float4   half0 = kvi_get<float4>(&s.s[0][head][at]);
        const float4   half1 = kvi_get<float4>(&s.s[1][head][at]);

        x[i][0] = (half0.x + half1.x) * a.scale;
        x[i][1] = (half0.y + half1.y) * a.scale;
        x[i][2] = (half0.z + half1.z) * a.scale;
        x[i][3] = (half0.w + half1.w) * a.scale;
        KVI_UNROLL
        for (unsigned e = 0; e < 4; e++) {
            if (a.scores && used >> e & 1u && begin + slot + e >= a.n_window && first_head + head < a.n_heads)
                a.scores[(row * a.n_heads + first_head + head) * a.k + begin + slot + e - a.n_window] = x[i][e];
            if (!(used >> e & 1u))
                x[i][e] = -kvi_float(0x7f800000u);
            max = kvi_max(x[i][e], max); /* NaN does not move it, but arrives through e^x */
        }
    }
    KVI_UNROLL
    for (unsigned d = SHAPE::HEAD_THREADS / 2; d; d /= 2)
        max = kvi_max(kvi_shfl_xor(max, d), max);
    KVI_UNROLL
    for (unsigned i = 0; i < SHAPE::QUADS; i++) {
        const unsigned at = 4 * (i * SHAPE::HEAD_THREADS + r);

        KVI_UNROLL
        for (unsigned e = 0; e < 4; e++)
            x[i][e] = kvi_exp(x[i][e] - max);
        sum[i] = ((x[i][0] + x[i][1]) + x[i][2]) + x[i][3];
        kvi_put(&s.p[head][at], make_uint2(kvi_bf16x2(x[i][0], x[i][1]), kvi_bf16x2(x[i][2], x[i][3])));
    }
    KVI_UNROLL
    for (unsigned d = SHAPE::QUADS / 2; d; d /= 2)
        KVI_UNROLL
        for (unsigned i = 0; i < d; i++)
            sum[i] = sum[i] + sum[i + d];
    KVI_UNROLL
    for (unsigned d = SHAPE::HEAD_THREADS / 2; d; d /= 2)
        sum[0] = sum[0] + kvi_shfl_xor(sum[0], d);
    const float f = kvi_exp(h.max - max);
    h.sum = h.sum * f + sum[0];
    h.max = max;
    if (r == 0)
        s.factor[head] = f;
}

template <class SHAPE> struct attend_out {
    float o[SHAPE::OUT_TILES][SHAPE::GROUPS][2][4];
};

KVI_DEV unsigned attend_channel(unsigned group) { return 16 * (group * (ATTEND_THREADS / KVI_WARP) + kvi_warp()); }

/* out = out * factor + p * keys for the warp's channels. */
template <class SHAPE, unsigned SLOTS, bool FAST>
KVI_DEV void attend_add(const attend_args &a, typename SHAPE::shared &s, attend_out<SHAPE> &t)
{
    const unsigned lane = kvi_lane();

    KVI_UNROLL
    for (unsigned m = 0; m < SHAPE::OUT_TILES; m++) {
        const float f0 = s.factor[16 * m + lane / 4], f1 = s.factor[16 * m + lane / 4 + 8];

        KVI_UNROLL
        for (unsigned g = 0; g < SHAPE::GROUPS; g++)
            KVI_UNROLL
            for (unsigned i = 0; i < 8; i++)
                t.o[m][g][i / 4][i % 4] = t.o[m][g][i / 4][i % 4] * (i % 4 < 2 ? f0 : f1);
    }
    ATTEND_UNROLL_STEPS
    for (unsigned step = 0; step < SLOTS / 16; step++) {
        uint32_t p[SHAPE::OUT_TILES][4];

        KVI_UNROLL
        for (unsigned m = 0; m < SHAPE::OUT_TILES; m++)
            kvi_load_matrices<false>(p[m], &s.p[16 * m + lane % 16][16 * step + lane / 16 * 8]);
        KVI_UNROLL
        for (unsigned g = 0; g < SHAPE::GROUPS; g++) {
            uint32_t v[4];

            if (!FAST && attend_channel(g) >= a.width)
                continue;
            kvi_load_matrices<true>(v, &s.key[16 * step + lane % 16][attend_channel(g) + lane / 16 * 8]);
            KVI_UNROLL
            for (unsigned m = 0; m < SHAPE::OUT_TILES; m++)
                KVI_UNROLL
                for (unsigned i = 0; i < 2; i++) {
                    const uint32_t b[2] = {v[2 * i], v[2 * i + 1]};
                    kvi_mma_bf16(t.o[m][g][i], p[m], b);
                }
        }
    }
}

/* ---- the kernel ---- */

/* Block: group of heads fastest, then split, then row. */
template <unsigned HEADS, unsigned SLOTS, bool FAST>
KVI_KERNEL(ATTEND_THREADS, (FAST && HEADS == 16 && SLOTS == 32 ? 2 : 1)) attend_bf16_f32_kernel(attend_args a)
{
    typedef attend_shape<HEADS, SLOTS, FAST> shape;
    typename shape::shared &s = kvi_shared<typename shape::shared>();
    const unsigned group = blockIdx.x % a.n_groups, split = blockIdx.x / a.n_groups % a.n_splits;
    const size_t   row = blockIdx.x / a.n_groups / a.n_splits;
    const unsigned first_head = group * HEADS, begin = split * ATTEND_SPLIT, lane = kvi_lane();
    const float   *q = a.q + (row * a.n_heads + first_head) * a.width;
    const unsigned quads = (FAST ? ATTEND_WIDTH : a.width) / 4;
    attend_head    head = {ATTEND_NO_MAX, 0.0f};
    const attend_view view = attend_view_of(a, row);
    attend_out<shape> t;

    for (unsigned i = threadIdx.x; i < ATTEND_SPLIT; i += ATTEND_THREADS) { /* whole warps */
        const uint8_t *p = attend_row(a, view, row, begin + i);
        const uint32_t used = kvi_ballot(p != nullptr);

        s.rows[i] = p;
        if (lane == 0)
            s.used[i / 32] = used;
    }
    kvi_sync_block();
    unsigned tile = attend_next<SLOTS>(s.used, 0);
    if (FAST && tile < ATTEND_SPLIT / SLOTS)
        attend_gather<shape, SLOTS>(a, s, begin, tile);
    for (unsigned i = threadIdx.x; i < HEADS * quads && tile < ATTEND_SPLIT / SLOTS; i += ATTEND_THREADS) {
        const unsigned h = i / quads, c = 4 * (i % quads);
        float4         v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

        if (first_head + h < a.n_heads)
            v = kvi_get<float4>(q + static_cast<size_t>(h) * a.width + c);
        kvi_put(&s.q[h][c], make_uint2(kvi_bf16x2(v.x, v.y), kvi_bf16x2(v.z, v.w)));
    }
    KVI_UNROLL
    for (unsigned m = 0; m < shape::OUT_TILES; m++)
        KVI_UNROLL
        for (unsigned g = 0; g < shape::GROUPS; g++)
            KVI_UNROLL
            for (unsigned i = 0; i < 8; i++)
                t.o[m][g][i / 4][i % 4] = 0.0f;
    while (tile < ATTEND_SPLIT / SLOTS) {
        const unsigned next = attend_next<SLOTS>(s.used, tile + 1);

        if (FAST)
            kvi_copy_wait<0>();
        kvi_sync_block(); /* rows of this tile are there, keys of the one before have been used */
        attend_dequantise<shape, SLOTS, FAST>(a, s, begin, tile);
        kvi_sync_block();
        if (FAST && next < ATTEND_SPLIT / SLOTS)
            attend_gather<shape, SLOTS>(a, s, begin, next);
        attend_scores<shape, FAST>(a, s);
        kvi_sync_block();
        if (threadIdx.x < HEADS * shape::HEAD_THREADS)
            attend_soften<shape, SLOTS>(a, s, head, row, first_head, begin, tile);
        kvi_sync_block();
        attend_add<shape, SLOTS, FAST>(a, s, t);
        tile = next;
    }

    /* The end of a head that has one split; else its part. */
    const bool     whole = a.n_splits == 1;
    const unsigned h = threadIdx.x / shape::HEAD_THREADS;
    kvi_sync_block(); /* the factors of the last tile have been used */
    if (threadIdx.x < HEADS * shape::HEAD_THREADS && threadIdx.x % shape::HEAD_THREADS == 0 && first_head + h < a.n_heads) {
        const size_t at = first_head + h;

        if (whole) {
            const float den = head.sum + kvi_exp(a.sink[at] - head.max);
            s.factor[h] = kvi_div(1.0f, den);
            if (a.stat)
                a.stat[row * a.n_heads + at] = make_float2(head.max, den);
        } else {
            a.part_stat[(row * a.n_splits + split) * a.n_heads + at] = make_float2(head.max, head.sum);
        }
    }
    kvi_sync_block();
    float *to = whole ? a.out + row * a.n_heads * a.width : a.part + (row * a.n_splits + split) * a.n_heads * a.width;
    KVI_UNROLL
    for (unsigned m = 0; m < shape::OUT_TILES; m++)
        KVI_UNROLL
        for (unsigned i = 0; i < 2; i++) {
            const unsigned at = 16 * m + 8 * i + lane / 4;
            const float    f = whole && first_head + at < a.n_heads ? s.factor[at] : 1.0f;

            if (first_head + at >= a.n_heads)
                continue;
            KVI_UNROLL
            for (unsigned g = 0; g < shape::GROUPS; g++)
                KVI_UNROLL
                for (unsigned n = 0; n < 2; n++) {
                    const unsigned c = attend_channel(g) + 8 * n + lane % 4 * 2;
                    const float   *d = t.o[m][g][n] + 2 * i;
                    if (FAST || c < a.width)
                        kvi_put(to + static_cast<size_t>(first_head + at) * a.width + c, make_float2(d[0] * f, d[1] * f));
                }
        }
}

#endif
