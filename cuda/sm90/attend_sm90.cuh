/* attend.cuh's fast case (512 channels, FP4_E4M3_G16 entries, rows at multiples of 16 bytes) for Hopper: wgmma and bulk copies,
 * for more than 32 heads. Splits, slots, what follows (attend_combine.cuh) and the bound of errors are those of attend.cuh; the
 * order of sums is another one.
 *
 * Work split: a block takes one query row, one split of 320 slots and 64 heads; three warpgroups, one block a multiprocessor.
 *   keys      warpgroup 0 writes bf16 keys into one of two tiles of 64 slots while the other is computed with. A warp has 16
 *             rows of a tile; they come by bulk copies (288 bytes of FP4, 528 of FP8) into a ring of its own: three pieces of
 *             four rows, each with a memory barrier, so that 8 to 12 rows of each warp are on their way;
 *   the rest  warpgroups 1 and 2 have 256 of the 512 channels of the output each, 128 registers of a thread, and both make all
 *             scores of a tile (m64n64k16, 32 steps) and their softmax: half more work for the tensor cores than is needed, but
 *             p stays in registers as operand, nothing is exchanged, and one computes while the other takes exponents.
 * Keys serve as K and, with the other descriptor, as V. 225,280 bytes of shared memory, 168 registers of a thread at the launch,
 * then 88 and 208.
 *
 * Traffic: as attend.cuh. Work of a tile: scores twice and the output once, 2 x 64 x 64 x 512 each, are
 * 12.6 Mflop, 3072 cycles of the tensor cores; wgmma reads shared memory for 2560 cycles, keys are written in 512. Bound it
 * aims at (H200): 128 rows of 640 slots, ten tiles each, 18 us. Measured: not yet run on a device, only emulated. */
#ifndef KVI_CUDA_ATTEND_SM90_CUH
#define KVI_CUDA_ATTEND_SM90_CUH

#include "attend.cuh"
#include "device_wgmma.cuh"

enum : unsigned {
    SM90_HEADS = 64,
    SM90_SLOTS = 64,
    SM90_THREADS = 3 * KVI_WARPGROUP,
    SM90_TILES = 2,                                /* of keys in shared memory */
    SM90_WARPS = KVI_WARPGROUP / KVI_WARP,         /* that write keys */
    SM90_ROWS = 4,                                 /* of a piece */
    SM90_RING = 3,                                 /* pieces of a warp */
    SM90_PIECES = SM90_SLOTS / SM90_WARPS / SM90_ROWS, /* of a warp and tile */
    SM90_BLOCKS = ATTEND_WIDTH / 64,               /* of 64 channels: a row of an atom */
    SM90_HALF = ATTEND_WIDTH / 2,                  /* channels of a warpgroup's output */
    SM90_REGISTERS_KEYS = 88,
    SM90_REGISTERS = 208,                          /* 88 + 2 x 208 = 504 = 3 x 168, those of the launch */
    SM90_QUERY_BARRIER = 1
};

struct attend_sm90_shared {
    alignas(KVI_ATOM) uint8_t q[SM90_BLOCKS][SM90_HEADS * KVI_ATOM_ROW];
    alignas(KVI_ATOM) uint8_t key[SM90_TILES][SM90_BLOCKS][SM90_SLOTS * KVI_ATOM_ROW];
    alignas(16) uint8_t       raw[SM90_WARPS][SM90_RING][SM90_ROWS][ATTEND_FP8];
    uint64_t                  raw_there[SM90_WARPS][SM90_RING];
    uint64_t                  key_there[SM90_TILES], key_used[SM90_TILES];
    const uint8_t            *rows[ATTEND_SPLIT];  /* nullptr = empty slot */
    uint32_t                  used[ATTEND_SPLIT / 32];
};
static_assert(sizeof(attend_sm90_shared) <= 227 * 1024, "shared memory of a block");

/* A place that goes around a ring, with the parity of its phase. */
struct attend_ring {
    unsigned at, parity;
};

template <unsigned N> KVI_DEV void attend_ring_next(attend_ring &r)
{
    if (++r.at == N) {
        r.at = 0;
        r.parity ^= 1;
    }
}

/* ---- warpgroup 0 ---- */

KVI_DEV unsigned attend_sm90_bytes(const attend_args &a, const attend_sm90_shared &s, unsigned begin, unsigned slot)
{
    return !s.rows[slot] ? 0u : begin + slot < a.n_window ? +ATTEND_FP8 : +ATTEND_FP4;
}

/* The piece of a warp's rows that begins at `slot` into place `at` of its ring, once all lanes have done with that. */
KVI_DEV void attend_sm90_fetch(const attend_args &a, attend_sm90_shared &s, unsigned begin, unsigned slot, unsigned at)
{
    const unsigned warp = kvi_warp(), lane = kvi_lane();

    kvi_sync_warp();
    if (lane == 0) {
        unsigned all = 0;

        KVI_UNROLL
        for (unsigned i = 0; i < SM90_ROWS; i++)
            all += attend_sm90_bytes(a, s, begin, slot + i);
        kvi_mbar_arrive_expect(&s.raw_there[warp][at], all);
    }
    const unsigned bytes = lane < SM90_ROWS ? attend_sm90_bytes(a, s, begin, slot + lane) : 0;
    if (bytes)
        kvi_bulk_copy(s.raw[warp][at][lane], s.rows[slot + lane], bytes, &s.raw_there[warp][at]);
}

/* A row of a piece to bf16, a lane 16 bytes of keys at a time: a quarter of a warp fills a row of an atom. */
KVI_DEV void attend_sm90_dequantise(const attend_args &a, attend_sm90_shared &s, unsigned begin, unsigned slot,
                                    const uint8_t *raw, unsigned tile)
{
    const bool     there = s.rows[slot] != nullptr, window = begin + slot < a.n_window;
    const unsigned row = slot % SM90_SLOTS;

    KVI_UNROLL
    for (unsigned i = 0; i < ATTEND_WIDTH / 8 / KVI_WARP; i++) {
        const unsigned c = i * KVI_WARP + kvi_lane();
        uint4          v = make_uint4(0, 0, 0, 0); /* an empty slot must not be NaN: p = 0 meets it */

        if (there)
            v = window ? kvi_tile_fp8<ATTEND_WIDTH>(raw, c) : kvi_tile_fp4<ATTEND_WIDTH>(raw, c);
        kvi_operand_put(s.key[tile][c / 8] + kvi_swizzle(row, c % 8), v);
    }
}

KVI_DEV void attend_sm90_keys(const attend_args &a, attend_sm90_shared &s, unsigned begin)
{
    const unsigned warp = kvi_warp(), first = warp * SM90_SLOTS / SM90_WARPS;
    unsigned       ahead = attend_next<SM90_SLOTS>(s.used, 0), piece = 0; /* what is fetched next */
    unsigned       n_pieces = 0;                                          /* on their way */
    attend_ring    tile = {0, 1}, ring = {0, 0};

    for (unsigned now = ahead; now < ATTEND_SPLIT / SM90_SLOTS; now = attend_next<SM90_SLOTS>(s.used, now + 1)) {
        kvi_mbar_wait(&s.key_used[tile.at], tile.parity);
        for (unsigned i = 0; i < SM90_PIECES; i++) {
            /* the ring is full before the first piece; after each, one more */
            for (; n_pieces < SM90_RING && ahead < ATTEND_SPLIT / SM90_SLOTS; n_pieces++) {
                attend_sm90_fetch(a, s, begin, ahead * SM90_SLOTS + first + piece * SM90_ROWS, (ring.at + n_pieces) % SM90_RING);
                if (++piece == SM90_PIECES) {
                    piece = 0;
                    ahead = attend_next<SM90_SLOTS>(s.used, ahead + 1);
                }
            }
            kvi_mbar_wait(&s.raw_there[warp][ring.at], ring.parity);
            KVI_UNROLL
            for (unsigned r = 0; r < SM90_ROWS; r++)
                attend_sm90_dequantise(a, s, begin, now * SM90_SLOTS + first + i * SM90_ROWS + r, s.raw[warp][ring.at][r],
                                       tile.at);
            n_pieces--;
            attend_ring_next<SM90_RING>(ring);
        }
        kvi_operand_fence();
        kvi_sync_warp();
        if (kvi_lane() == 0)
            kvi_mbar_arrive(&s.key_there[tile.at]);
        attend_ring_next<SM90_TILES>(tile);
    }
}

/* ---- warpgroups 1 and 2 ---- */

/* What a thread carries of heads row and row + 8, those of its fragments; a sum is that of the thread's slots. */
struct attend_sm90_head {
    float max[2], sum[2];
};

KVI_DEV unsigned attend_sm90_row(unsigned r) { return kvi_warp() % SM90_WARPS * 16 + 8 * r + kvi_lane() / 4; }

/* q to bf16. */
KVI_DEV void attend_sm90_query(attend_sm90_shared &s, const float *q, unsigned n_heads)
{
    for (unsigned i = threadIdx.x - KVI_WARPGROUP; i < SM90_HEADS * ATTEND_WIDTH / 8; i += 2 * KVI_WARPGROUP) {
        const unsigned h = i / (ATTEND_WIDTH / 8), c = i % (ATTEND_WIDTH / 8);
        uint4          v = make_uint4(0, 0, 0, 0);

        if (h < n_heads) {
            const float *from = q + static_cast<size_t>(h) * ATTEND_WIDTH + 8 * c;
            const float4 x = kvi_get<float4>(from), y = kvi_get<float4>(from + 4);
            v = make_uint4(kvi_bf16x2(x.x, x.y), kvi_bf16x2(x.z, x.w), kvi_bf16x2(y.x, y.y), kvi_bf16x2(y.z, y.w));
        }
        kvi_operand_put(s.q[c / 8] + kvi_swizzle(h, c % 8), v);
    }
    kvi_operand_fence();
    kvi_sync_some(SM90_QUERY_BARRIER, 2 * KVI_WARPGROUP);
}

KVI_DEV void attend_sm90_scores(attend_sm90_shared &s, unsigned tile, float (&x)[32])
{
    kvi_wgmma_fence(x);
    KVI_UNROLL
    for (unsigned step = 0; step < ATTEND_WIDTH / 16; step++) {
        const unsigned at = step % 4 * 32; /* inside a row of an atom */
        kvi_wgmma_64(x, kvi_operand_k(s.q[step / 4] + at), kvi_operand_k(s.key[tile][step / 4] + at), step != 0);
    }
    kvi_wgmma_wait(x);
}

/* Scores to probabilities, p[step] for 16 slots each; f: what the sums so far are multiplied with. */
KVI_DEV void attend_sm90_soften(const attend_args &a, const attend_sm90_shared &s, attend_sm90_head &h, float (&x)[32],
                                uint32_t (&p)[4][4], float (&f)[2], size_t row, unsigned first_head, unsigned begin,
                                unsigned tile)
{
    const unsigned t = kvi_lane() % 4, group = kvi_warp() / SM90_WARPS - 1;
    const uint32_t used[2] = {s.used[2 * tile] >> (2 * t), s.used[2 * tile + 1] >> (2 * t)};

    KVI_UNROLL
    for (unsigned r = 0; r < 2; r++) {
        const unsigned head = first_head + attend_sm90_row(r);
        float          max = h.max[r];

        KVI_UNROLL
        for (unsigned i = 0; i < 16; i++) {
            const unsigned j = i / 2, e = i % 2, slot = begin + tile * SM90_SLOTS + 8 * j + 2 * t + e;
            const bool     there = used[j / 4] >> (8 * (j % 4) + e) & 1u;
            float         &v = x[4 * j + 2 * r + e];

            v = v * a.scale;
            if (a.scores && j / 4 == group && there && slot >= a.n_window && head < a.n_heads)
                a.scores[(row * a.n_heads + head) * a.k + slot - a.n_window] = v;
            if (!there)
                v = -kvi_float(0x7f800000u);
            max = kvi_max(v, max); /* NaN does not move it, but arrives through e^x */
        }
        KVI_UNROLL
        for (unsigned d = 2; d; d /= 2)
            max = kvi_max(kvi_shfl_xor(max, d), max);
        f[r] = kvi_exp(h.max[r] - max);
        h.max[r] = max;
        h.sum[r] = h.sum[r] * f[r];
        KVI_UNROLL
        for (unsigned j = 0; j < 8; j++) {
            const float low = kvi_exp(x[4 * j + 2 * r] - max), high = kvi_exp(x[4 * j + 2 * r + 1] - max);
            h.sum[r] = h.sum[r] + (low + high);
            p[j / 2][j % 2 * 2 + r] = kvi_bf16x2(low, high);
        }
    }
}

/* out = out * f + p * keys for the warpgroup's channels. */
KVI_DEV void attend_sm90_add(attend_sm90_shared &s, unsigned tile, float (&o)[128], uint32_t (&p)[4][4], const float (&f)[2])
{
    const uint8_t *key = s.key[tile][(kvi_warp() / SM90_WARPS - 1) * (SM90_HALF / 64)];

    KVI_UNROLL
    for (unsigned i = 0; i < 128; i++)
        o[i] = o[i] * f[i / 2 % 2];
    kvi_wgmma_fence(o, p);
    KVI_UNROLL
    for (unsigned step = 0; step < SM90_SLOTS / 16; step++)
        kvi_wgmma_256(o, p[step], kvi_operand_n(key + step * 2 * KVI_ATOM, SM90_SLOTS * KVI_ATOM_ROW));
    kvi_wgmma_wait(o);
}

KVI_DEV void attend_sm90_rest(const attend_args &a, attend_sm90_shared &s, size_t row, unsigned split, unsigned first_head)
{
    const unsigned begin = split * ATTEND_SPLIT, t = kvi_lane() % 4;
    const unsigned channel = (kvi_warp() / SM90_WARPS - 1) * SM90_HALF;
    const bool     whole = a.n_splits == 1;
    attend_sm90_head h = {{ATTEND_NO_MAX, ATTEND_NO_MAX}, {0.0f, 0.0f}};
    attend_ring      ring = {0, 0};
    float            o[128];

    attend_sm90_query(s, a.q + (row * a.n_heads + first_head) * ATTEND_WIDTH, a.n_heads - first_head);
    KVI_UNROLL
    for (unsigned i = 0; i < 128; i++)
        o[i] = 0.0f;
    for (unsigned tile = attend_next<SM90_SLOTS>(s.used, 0); tile < ATTEND_SPLIT / SM90_SLOTS;
         tile = attend_next<SM90_SLOTS>(s.used, tile + 1)) {
        float    x[32], f[2];
        uint32_t p[4][4];

        KVI_UNROLL
        for (unsigned i = 0; i < 32; i++)
            x[i] = 0.0f;
        kvi_mbar_wait(&s.key_there[ring.at], ring.parity);
        attend_sm90_scores(s, ring.at, x);
        attend_sm90_soften(a, s, h, x, p, f, row, first_head, begin, tile);
        attend_sm90_add(s, ring.at, o, p, f);
        kvi_sync_warp();
        if (kvi_lane() == 0)
            kvi_mbar_arrive(&s.key_used[ring.at]);
        attend_ring_next<SM90_TILES>(ring);
    }

    float *to = whole ? a.out + row * a.n_heads * ATTEND_WIDTH : a.part + (row * a.n_splits + split) * a.n_heads * ATTEND_WIDTH;
    KVI_UNROLL
    for (unsigned r = 0; r < 2; r++) {
        const unsigned head = first_head + attend_sm90_row(r);
        float          factor = 1.0f;

        KVI_UNROLL
        for (unsigned d = 2; d; d /= 2)
            h.sum[r] = h.sum[r] + kvi_shfl_xor(h.sum[r], d);
        if (head >= a.n_heads)
            continue;
        if (whole) {
            const float den = h.sum[r] + kvi_exp(a.sink[head] - h.max[r]);
            factor = kvi_div(1.0f, den);
            if (a.stat && channel == 0 && t == 0)
                a.stat[row * a.n_heads + head] = make_float2(h.max[r], den);
        } else if (channel == 0 && t == 0) {
            a.part_stat[(row * a.n_splits + split) * a.n_heads + head] = make_float2(h.max[r], h.sum[r]);
        }
        KVI_UNROLL
        for (unsigned j = 0; j < 32; j++)
            kvi_put(to + static_cast<size_t>(head) * ATTEND_WIDTH + channel + 8 * j + 2 * t,
                    make_float2(o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor));
    }
}

/* ---- the kernel ---- */

/* Block: group of heads fastest, then split, then row. */
KVI_KERNEL(SM90_THREADS, 1) attend_sm90_kernel(attend_args a)
{
#if defined(KVI_CUDA_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    attend_sm90_shared &s = kvi_shared<attend_sm90_shared>();
    const unsigned      group = blockIdx.x % a.n_groups, split = blockIdx.x / a.n_groups % a.n_splits;
    const size_t        row = blockIdx.x / a.n_groups / a.n_splits;

    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < SM90_WARPS * SM90_RING; i++)
            kvi_mbar_init(&s.raw_there[i / SM90_RING][i % SM90_RING], 1);
        for (unsigned i = 0; i < SM90_TILES; i++) {
            kvi_mbar_init(&s.key_there[i], SM90_WARPS);
            kvi_mbar_init(&s.key_used[i], 2 * SM90_WARPS);
        }
        kvi_mbar_ready();
    }
    if (threadIdx.x < ATTEND_SPLIT) { /* whole warps */
        const attend_view view = attend_view_of(a, row);
        const uint8_t    *p = attend_row(a, view, row, split * ATTEND_SPLIT + threadIdx.x);
        const uint32_t    used = kvi_ballot(p != nullptr);

        s.rows[threadIdx.x] = p;
        if (kvi_lane() == 0)
            s.used[threadIdx.x / 32] = used;
    }
    kvi_sync_block();
    if (kvi_warp() < SM90_WARPS) {
        kvi_registers_fewer<SM90_REGISTERS_KEYS>();
        attend_sm90_keys(a, s, split * ATTEND_SPLIT);
    } else {
        kvi_registers_more<SM90_REGISTERS>();
        attend_sm90_rest(a, s, row, split, group * SM90_HEADS);
    }
#else
    (void)a; /* no other architecture has these instructions */
#endif
}

#endif
