/* y = x W^T over weights in the checkpoint's formats, for linear.cuh and moe.cuh: two bodies of one and the same sum.
 *
 * THE ORDER. An output must not depend on how many rows a call has, so few rows and many use the same instruction (16 x 8 x 16, weights
 * are its 16 rows, rows of x its 8 columns) on the same channels in the same order:
 * - The channels are cut into segments of product_segment(cols) = a multiple of 128, at most 16 of them. A segment begins at +0.
 * - It goes in tiles of 64 channels: four pieces of 16, piece t is lane t's (of the four lanes of a row). The tile's piece t begins at
 *   64 tile + 16 t; for FP4, whose lane loads 32 channels at once, at 128 (tile / 2) + 16 (tile % 2) + 32 t.
 * - A tile is four steps (device_weight.cuh says which channels), each first with the high, then with the low parts of x.
 * - The segments are added to +0 in ascending order.
 * Column n of the instruction's result depends on column n of x only; which of the 8 places a row has changes nothing.
 *
 * ERROR. Weights are exact, x is off by 2^-17. A step adds 16 exact products to a sum; hardware aligns the 17 addends to the largest and
 * cuts, each by less than 2^-23 of it. With S = sum |x w| no partial sum is above S, so 2 (cols / 16) steps make at most
 * 2.2 cols 2^-23 S, segments 16 2^-24 S: |error| <= (2^-17 + 2.2 cols 2^-23 + 2^-20) S. */
#ifndef KVI_PRODUCT_CUH
#define KVI_PRODUCT_CUH

#include "device_weight.cuh"

/* Loops whose addresses would take registers that the sums need. */
#ifdef KVI_CUDA_EMULATED
#define PRODUCT_ROLLED
#else
#define PRODUCT_ROLLED _Pragma("unroll 1")
#endif

enum : unsigned {
    PRODUCT_THREADS = 256,
    PRODUCT_WARPS = PRODUCT_THREADS / KVI_WARP,
    TILE = 64,                /* channels */
    MAX_SEGMENTS = 16,
    MANY = 128                /* weight rows and rows of x of a block of `many` */
};

/* Channels of a segment: enough segments that all warps of a block have one, for any matrix that is worth it. */
static inline size_t product_segment(size_t cols)
{
    const size_t even = (cols + MAX_SEGMENTS - 1) / MAX_SEGMENTS;
    return even <= 128 ? 128 : (even + 127) / 128 * 128;
}

struct product_weights { /* kind is known to the caller */
    const uint8_t *data;
    const uint8_t *scale;
};

struct product_shape {
    unsigned cols;
    unsigned segment;    /* channels */
    unsigned n_segments;
    bool     whole;      /* BF16: cols is a multiple of 16 */
    bool     x_whole;    /* pieces of x are aligned to 16 bytes, and cols as above */
};

KVI_DEV size_t weight_scale_at(unsigned kind, size_t row, unsigned cols) /* first scale of a row */
{
    return (kind == WEIGHT_FP8 ? row / SCALE_GROUP : row) * (cols / SCALE_GROUP);
}

/* First channel of piece t. */
template <unsigned KIND> KVI_DEV unsigned piece_channel(unsigned tile, unsigned t)
{
    return KIND == WEIGHT_FP4 ? tile / 2 * 128 + tile % 2 * PIECE + t * 32 : tile * TILE + t * PIECE;
}

/* Channels c .. c + 15 of a row of x; those behind the end are 0. */
KVI_DEV void load_x(float (&out)[PIECE], const float *row, unsigned c, const product_shape &s)
{
    if (s.x_whole && c < s.cols) {
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++) {
            const uint4 v = kvi_load_16(row + c + 4 * i);
            out[4 * i] = kvi_float(v.x);
            out[4 * i + 1] = kvi_float(v.y);
            out[4 * i + 2] = kvi_float(v.z);
            out[4 * i + 3] = kvi_float(v.w);
        }
    } else {
        KVI_UNROLL
        for (unsigned i = 0; i < PIECE; i++)
            out[i] = c + i < s.cols ? row[c + i] : 0.0f;
    }
}

KVI_DEV uint4 zero_16() { return make_uint4(0, 0, 0, 0); }

/* What a lane loads of one weight row for two tiles (128 channels of four lanes), and the two pieces made of it. */
template <unsigned KIND> struct row_bytes { /* FP8 of both layouts */
    uint4    raw[2];
    unsigned e[2];
};
template <> struct row_bytes<WEIGHT_FP4> {
    uint4    raw;
    unsigned e;
};
template <> struct row_bytes<WEIGHT_BF16> {
    uint4 raw[4];
};

template <unsigned KIND>
KVI_DEV void load_row(row_bytes<KIND> &b, const product_weights &w, size_t row, unsigned pair, const product_shape &s)
{
    const unsigned t = kvi_lane() % 4;

    KVI_UNROLL
    for (unsigned h = 0; h < 2; h++) {
        const unsigned c = piece_channel<KIND>(2 * pair + h, t);
        b.raw[h] = c < s.cols ? kvi_load_16(w.data + row * s.cols + c) : zero_16();
        b.e[h] = c < s.cols ? w.scale[weight_scale_at(KIND, row, s.cols) + c / SCALE_GROUP] : 127u;
    }
}
KVI_DEV void load_row(row_bytes<WEIGHT_FP4> &b, const product_weights &w, size_t row, unsigned pair, const product_shape &s)
{
    const unsigned c = piece_channel<WEIGHT_FP4>(2 * pair, kvi_lane() % 4);

    b.raw = c < s.cols ? kvi_load_16(w.data + row * (s.cols / 2) + c / 2) : zero_16();
    b.e = c < s.cols ? w.scale[weight_scale_at(WEIGHT_FP4, row, s.cols) + c / SCALE_GROUP] : 127u;
}
KVI_DEV void load_row(row_bytes<WEIGHT_BF16> &b, const product_weights &w, size_t row, unsigned pair, const product_shape &s)
{
    const uint16_t *data = reinterpret_cast<const uint16_t *>(w.data) + row * s.cols;

    KVI_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        const unsigned c = piece_channel<WEIGHT_BF16>(2 * pair + i / 2, kvi_lane() % 4) + i % 2 * 8;
        uint32_t       v[4];
        if (s.whole) {
            b.raw[i] = c < s.cols ? kvi_load_16(data + c) : zero_16();
            continue;
        }
        KVI_UNROLL
        for (unsigned q = 0; q < 4; q++) {
            const unsigned at = c + 2 * q;
            v[q] = (at < s.cols ? data[at] : 0u) | (at + 1 < s.cols ? static_cast<uint32_t>(data[at + 1]) << 16 : 0u);
        }
        b.raw[i] = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

template <unsigned KIND> KVI_DEV void unpack_row(uint32_t (&r)[PIECE_REGS], const row_bytes<KIND> &b, unsigned half)
{
    weight_fp8(r, half ? b.raw[1] : b.raw[0], half ? b.e[1] : b.e[0]);
}
KVI_DEV void unpack_row(uint32_t (&r)[PIECE_REGS], const row_bytes<WEIGHT_FP4> &b, unsigned half)
{
    weight_fp4(r, half ? make_uint2(b.raw.z, b.raw.w) : make_uint2(b.raw.x, b.raw.y), b.e);
}
KVI_DEV void set_regs(uint32_t (&r)[PIECE_REGS], const uint4 &a, const uint4 &b)
{
    r[0] = a.x, r[1] = a.y, r[2] = a.z, r[3] = a.w;
    r[4] = b.x, r[5] = b.y, r[6] = b.z, r[7] = b.w;
}
KVI_DEV void unpack_row(uint32_t (&r)[PIECE_REGS], const row_bytes<WEIGHT_BF16> &b, unsigned half)
{
    if (half)
        set_regs(r, b.raw[2], b.raw[3]);
    else
        set_regs(r, b.raw[0], b.raw[1]);
}

KVI_DEV void zero_acc(float (&d)[4]) { d[0] = d[1] = d[2] = d[3] = 0.0f; }

/* ---- few rows ----
 * MT x 16 weight rows and up to NT x 8 rows of x a block; a warp has every eighth segment. Weights go from memory into registers in loads
 * of 16 bytes and are unpacked there; nothing waits for another warp before the end, where the sums of the segments meet in shared memory. */

template <unsigned MT, unsigned NT> struct few_shared {
    float part[MAX_SEGMENTS][MT][NT][16 * 8];
};

template <unsigned MT> struct few_rows {
    product_weights w[MT];
    unsigned        low[MT], high[MT]; /* the lane's weight rows, lane / 4 and + 8; existing ones */
};

template <unsigned KIND, unsigned MT, unsigned NT>
KVI_DEV void few_segments(few_shared<MT, NT> &sh, const few_rows<MT> &rows, const float *const (&x)[NT], unsigned n_x, const product_shape &s)
{
    const unsigned lane = kvi_lane(), g = lane / 4, t = lane % 4;

    for (unsigned seg = kvi_warp(); seg < s.n_segments; seg += PRODUCT_WARPS) {
        const unsigned first = seg * (s.segment / 128), end = first + s.segment / 128, all = (s.cols + 127) / 128;
        float          acc[MT][NT][4];

        KVI_UNROLL
        for (unsigned m = 0; m < MT; m++)
            KVI_UNROLL
            for (unsigned n = 0; n < NT; n++)
                zero_acc(acc[m][n]);
        for (unsigned pair = first; pair < end && pair < all; pair++) {
            row_bytes<KIND> raw[MT][2];

            KVI_UNROLL
            for (unsigned m = 0; m < MT; m++) {
                load_row(raw[m][0], rows.w[m], rows.low[m], pair, s);
                load_row(raw[m][1], rows.w[m], rows.high[m], pair, s);
            }
            KVI_UNROLL
            for (unsigned half = 0; half < 2; half++) {
                uint32_t a[MT][2][PIECE_REGS];

                KVI_UNROLL
                for (unsigned m = 0; m < MT; m++) {
                    unpack_row(a[m][0], raw[m][0], half);
                    unpack_row(a[m][1], raw[m][1], half);
                }
                KVI_UNROLL
                for (unsigned n = 0; n < NT; n++) {
                    uint32_t hi[PIECE_REGS], lo[PIECE_REGS];
                    float    v[PIECE];

                    if (8 * n >= n_x) /* the same in all lanes */
                        continue;
                    if (8 * n + g < n_x) {
                        load_x(v, x[n], piece_channel<KIND>(2 * pair + half, t), s);
                    } else {
                        KVI_UNROLL
                        for (unsigned i = 0; i < PIECE; i++)
                            v[i] = 0.0f;
                    }
                    piece_split<KIND>(v, hi, lo);
                    KVI_UNROLL
                    for (unsigned j = 0; j < 4; j++)
                        KVI_UNROLL
                        for (unsigned m = 0; m < MT; m++) {
                            const uint32_t w[4] = {a[m][0][2 * j], a[m][1][2 * j], a[m][0][2 * j + 1], a[m][1][2 * j + 1]};
                            const uint32_t h[2] = {hi[2 * j], hi[2 * j + 1]}, l[2] = {lo[2 * j], lo[2 * j + 1]};
                            kvi_mma_bf16(acc[m][n], w, h);
                            kvi_mma_bf16(acc[m][n], w, l);
                        }
                }
            }
        }
        KVI_UNROLL
        for (unsigned m = 0; m < MT; m++)
            KVI_UNROLL
            for (unsigned n = 0; n < NT; n++) {
                float *to = sh.part[seg][m][n] + g * 8 + 2 * t;
                *reinterpret_cast<float2 *>(to) = make_float2(acc[m][n][0], acc[m][n][1]);
                *reinterpret_cast<float2 *>(to + 64) = make_float2(acc[m][n][2], acc[m][n][3]);
            }
    }
}

template <unsigned MT, unsigned NT>
KVI_DEV float few_sum(const few_shared<MT, NT> &sh, unsigned m, unsigned n, unsigned at, const product_shape &s)
{
    float sum = 0.0f;

    for (unsigned seg = 0; seg < s.n_segments; seg++)
        sum = sum + sh.part[seg][m][n][at];
    return sum;
}

/* ---- many rows ----
 * 128 weight rows x 128 rows of x a block, eight warps of 64 x 32. The bytes of the next tile are copied (cp.async) while the tensor
 * cores work on this one; each is unpacked once a block, from `next` into `w` and `hi`, `lo`. Rows of 128 bytes whose 16-byte chunks are
 * permuted by the row: neither loads nor stores meet in a bank. */

struct many_shared {
    uint4    w[MANY][8], hi[MANY][8], lo[MANY][8]; /* bf16, 64 channels a row */
    uint4    x_next[MANY][16];                     /* f32 */
    uint4    w_next[MANY][8];                      /* FP8 and FP4: four chunks are used */
    unsigned x_row[MANY];
};

/* Rows of the block: `row` says which matrix and row the tile's row r is. */
struct many_args {
    product_weights w[2];
    size_t          row0;     /* of both */
    unsigned        n_left;   /* weight rows from row0 on */
    bool            paired;   /* 32 rows of w[0], the same 32 of w[1], ... */
    const float    *x;
    size_t          x_stride;
    unsigned        n_x;      /* rows of x, listed in x_row */
};

struct many_row {
    unsigned matrix;
    size_t   row;
};

KVI_DEV many_row many_weight_row(const many_args &a, unsigned r)
{
    const unsigned i = a.paired ? r / 64 * 32 + r % 32 : r;

    return {a.paired ? r / 32 % 2 : 0u, a.row0 + (i < a.n_left ? i : a.n_left - 1)};
}

KVI_DEV unsigned many_x_chunk(unsigned row, unsigned piece, unsigned i) { return 4 * piece + (i ^ piece ^ (row & 1u)); }

template <unsigned KIND> KVI_DEV void many_copy(many_shared &sh, const many_args &a, const product_shape &s, unsigned tile)
{
    constexpr unsigned CHUNKS = KIND == WEIGHT_BF16 ? 8 : 4;

    if (KIND != WEIGHT_FP4 || tile % 2 == 0) { /* FP4: 128 channels at once */
        PRODUCT_ROLLED
        for (unsigned turn = 0; turn < MANY * CHUNKS / PRODUCT_THREADS; turn++) {
            const unsigned i = turn * PRODUCT_THREADS + threadIdx.x, r = i / CHUNKS, k = i % CHUNKS;
            const unsigned c = KIND == WEIGHT_BF16 ? tile * TILE + 8 * k : piece_channel<KIND>(tile, k);
            const many_row at = many_weight_row(a, r);
            const uint8_t *data = at.matrix ? a.w[1].data : a.w[0].data;
            const size_t   row_bytes = KIND == WEIGHT_BF16 ? 2 * static_cast<size_t>(s.cols) : KIND == WEIGHT_FP4 ? s.cols / 2 : s.cols;
            const size_t   off = KIND == WEIGHT_BF16 ? 2 * static_cast<size_t>(c) : KIND == WEIGHT_FP4 ? c / 2 : c;
            const bool     there = c < s.cols;
            kvi_copy_16(&sh.w_next[r][k], data + (there ? at.row * row_bytes + off : 0), there ? 16 : 0);
        }
    }
    PRODUCT_ROLLED
    for (unsigned turn = 0; turn < MANY * 16 / PRODUCT_THREADS; turn++) {
        const unsigned i = turn * PRODUCT_THREADS + threadIdx.x;
        const unsigned r = i / 16, piece = i % 16 / 4, q = i % 4, c = piece_channel<KIND>(tile, piece) + 4 * q;
        const bool     there = r < a.n_x && c < s.cols;
        kvi_copy_16(&sh.x_next[r][many_x_chunk(r, piece, q)], a.x + (there ? sh.x_row[r] * a.x_stride + c : 0), there ? 16 : 0);
    }
    kvi_copy_commit();
}

KVI_DEV void many_store(uint4 (&to)[8], unsigned row, unsigned piece, const uint32_t (&r)[PIECE_REGS])
{
    to[(2 * piece) ^ (row & 7u)] = make_uint4(r[0], r[1], r[2], r[3]);
    to[(2 * piece + 1) ^ (row & 7u)] = make_uint4(r[4], r[5], r[6], r[7]);
}

template <unsigned KIND> KVI_DEV void many_unpack(many_shared &sh, const many_args &a, const product_shape &s, unsigned tile)
{
    KVI_UNROLL
    for (unsigned turn = 0; turn < MANY * 4 / PRODUCT_THREADS; turn++) {
        const unsigned i = turn * PRODUCT_THREADS + threadIdx.x, r = i / 4, piece = i % 4, c = piece_channel<KIND>(tile, piece);
        uint32_t       w[PIECE_REGS], lo[PIECE_REGS];
        float          x[PIECE];

        if (KIND == WEIGHT_BF16) {
            set_regs(w, sh.w_next[r][2 * piece], sh.w_next[r][2 * piece + 1]);
        } else {
            const many_row at = many_weight_row(a, r);
            const uint8_t *scale = at.matrix ? a.w[1].scale : a.w[0].scale;
            const unsigned e = c < s.cols ? scale[weight_scale_at(KIND, at.row, s.cols) + c / SCALE_GROUP] : 127u;
            const uint4    v = sh.w_next[r][piece];
            if (KIND == WEIGHT_FP4)
                weight_fp4(w, tile % 2 ? make_uint2(v.z, v.w) : make_uint2(v.x, v.y), e);
            else
                weight_fp8(w, v, e);
        }
        many_store(sh.w[r], r, piece, w);
        KVI_UNROLL
        for (unsigned q = 0; q < 4; q++) {
            const uint4 v = sh.x_next[r][many_x_chunk(r, piece, q)];
            x[4 * q] = kvi_float(v.x);
            x[4 * q + 1] = kvi_float(v.y);
            x[4 * q + 2] = kvi_float(v.z);
            x[4 * q + 3] = kvi_float(v.w);
        }
        piece_split<KIND>(x, w, lo);
        many_store(sh.hi[r], r, piece, w);
        many_store(sh.lo[r], r, piece, lo);
    }
}

/* A warp's 64 x 32 of one tile. */
KVI_DEV void many_multiply(float (&acc)[4][4][4], const many_shared &sh, unsigned m0, unsigned n0)
{
    const unsigned g = kvi_lane() / 4, t = kvi_lane() % 4;

    KVI_UNROLL
    for (unsigned q = 0; q < 2; q++) { /* two steps: a chunk of each row */
        const unsigned chunk = (2 * t + q) ^ g; /* rows are g mod 8 */
        uint4          hi[4], lo[4];

        KVI_UNROLL
        for (unsigned n = 0; n < 4; n++) {
            hi[n] = sh.hi[n0 + 8 * n + g][chunk];
            lo[n] = sh.lo[n0 + 8 * n + g][chunk];
        }
        KVI_UNROLL
        for (unsigned m = 0; m < 4; m++) {
            const uint4    low = sh.w[m0 + 16 * m + g][chunk], high = sh.w[m0 + 16 * m + g + 8][chunk];
            const uint32_t w0[4] = {low.x, high.x, low.y, high.y}, w1[4] = {low.z, high.z, low.w, high.w};
            KVI_UNROLL
            for (unsigned n = 0; n < 4; n++) {
                const uint32_t h0[2] = {hi[n].x, hi[n].y}, l0[2] = {lo[n].x, lo[n].y};
                const uint32_t h1[2] = {hi[n].z, hi[n].w}, l1[2] = {lo[n].z, lo[n].w};
                kvi_mma_bf16(acc[m][n], w0, h0);
                kvi_mma_bf16(acc[m][n], w0, l0);
                kvi_mma_bf16(acc[m][n], w1, h1);
                kvi_mma_bf16(acc[m][n], w1, l1);
            }
        }
    }
}

/* sum[m][n][..]: as the matrix instruction leaves it, weight rows m0 + 16 m, rows of x n0 + 8 n. x_row is filled and a barrier lies
 * behind it. */
template <unsigned KIND>
KVI_DEV void many_product(float (&sum)[4][4][4], many_shared &sh, const many_args &a, const product_shape &s, unsigned m0, unsigned n0)
{
    const unsigned n_tiles = (s.cols + 127) / 128 * 2, segment_tiles = s.segment / TILE;
    float          acc[4][4][4];

    KVI_UNROLL
    for (unsigned m = 0; m < 4; m++)
        KVI_UNROLL
        for (unsigned n = 0; n < 4; n++) {
            zero_acc(sum[m][n]);
            zero_acc(acc[m][n]);
        }
    many_copy<KIND>(sh, a, s, 0);
    for (unsigned tile = 0; tile < n_tiles; tile++) {
        kvi_copy_wait<0>();
        kvi_sync_block(); /* the copies of all threads are here, and nobody multiplies any more */
        many_unpack<KIND>(sh, a, s, tile);
        kvi_sync_block();
        if (tile + 1 < n_tiles)
            many_copy<KIND>(sh, a, s, tile + 1);
        if (n0 < a.n_x)
            many_multiply(acc, sh, m0, n0);
        if ((tile + 1) % segment_tiles == 0 || tile + 1 == n_tiles) {
            KVI_UNROLL
            for (unsigned m = 0; m < 4; m++)
                KVI_UNROLL
                for (unsigned n = 0; n < 4; n++) {
                    KVI_UNROLL
                    for (unsigned i = 0; i < 4; i++)
                        sum[m][n][i] = sum[m][n][i] + acc[m][n][i];
                    zero_acc(acc[m][n]);
                }
        }
    }
}

#endif
