/* Experts: y = sum over a row's experts of w2 (weight * silu(min(w1 x, limit)) * clamp(w3 x, limit)), the shared expert last.
 *
 * group  a block an expert counts all (row, expert) pairs and lists its own, rows ascending: slots of an expert lie side by side, the
 *        shared expert's (one of each row) behind them; tiles of `tile` slots; for each row its slots in ascending order of experts. It also
 *        writes the table of the experts' pointers, which come as a parameter of the launch: by value, so a recorded graph keeps them.
 * up     a block a tile and 16 (few) or 64 (many) inner channels: w1 x and w3 x side by side, then h = weight * silu * u.
 * down   a block a tile and 32 or 128 channels: one row of products per slot.
 * sum    adds each row's slots.
 * The host knows the number of rows only, so grids are as large as any routing may need and blocks behind the last tile end at once. Bits of
 * a slot depend on its row and its expert alone (product.cuh), the sum's order on the row's experts.
 *
 * Traffic: the weights of every expert with rows once per tile of slots; h and the products of the slots written and read once, 8 (inner +
 * width) bytes a slot. Bound at one row: memory, (k 3 width inner x 0.53 (FP4) + 3 width inner x 1.03 (FP8)) bytes / 4.8 TB/s: k = 6, width
 * 4096, inner 2048 106 MB, 22 us. With many rows: 12 width inner flops a slot (high and low) / 989 TFLOPS.
 * measured: not yet run on a device. */
#ifndef KVI_MOE_CUH
#define KVI_MOE_CUH

#include "product.cuh"

enum : unsigned { MOE_MAX_EXPERTS = 512, MOE_MAX_K = 64, MOE_NO_SLOT = 0xffffffffu };

struct moe_expert {
    product_weights w1, w2, w3;
};

struct moe_experts { /* parameters of a launch have room for 32 KiB */
    moe_expert e[MOE_MAX_EXPERTS + 1]; /* the shared one behind the routed ones */
};

struct moe_tile {
    unsigned expert, first, n_slots, unused;
};

/* What lies in the scratch. */
struct moe_lists {
    moe_expert *table;
    moe_tile   *tiles;
    unsigned   *n_tiles;
    unsigned   *slot_row;    /* [n_slots + n_rows] */
    float      *slot_weight;
    unsigned   *order;       /* [n_rows, k] slots */
};

struct moe_group_args {
    const uint32_t *experts;
    const float    *weights;
    moe_lists       to;
    unsigned        n_rows, k, n_experts, tile;
};

struct moe_group_shared {
    unsigned count[MOE_MAX_EXPERTS];
    unsigned part[2][PRODUCT_WARPS];
};

/* Sums over the block, the same in all threads. */
KVI_DEV void block_sums(moe_group_shared &s, unsigned &a, unsigned &b)
{
    for (unsigned d = 16; d; d /= 2) {
        a += kvi_shfl_xor(a, d);
        b += kvi_shfl_xor(b, d);
    }
    if (kvi_lane() == 0) {
        s.part[0][kvi_warp()] = a;
        s.part[1][kvi_warp()] = b;
    }
    kvi_sync_block();
    a = b = 0;
    for (unsigned i = 0; i < PRODUCT_WARPS; i++) {
        a += s.part[0][i];
        b += s.part[1][i];
    }
    kvi_sync_block(); /* the caller may use `part` again */
}

/* How many of the row's experts come before its j-th: lower ones, and the same further left. */
KVI_DEV unsigned moe_rank(const uint32_t *row, unsigned k, unsigned j)
{
    unsigned rank = 0;

    for (unsigned i = 0; i < k; i++)
        rank += row[i] < row[j] || (row[i] == row[j] && i < j) ? 1u : 0u;
    return rank;
}

KVI_KERNEL(PRODUCT_THREADS, 1) moe_group_kernel(moe_group_args a, const moe_experts table) /* n_experts + 1 blocks */
{
    moe_group_shared &s = kvi_shared<moe_group_shared>();
    const unsigned    e = blockIdx.x, n = a.n_rows * a.k;
    const bool        is_shared = e == a.n_experts;
    unsigned          first = 0, tiles = 0, n_mine = a.n_rows;

    for (unsigned i = threadIdx.x; i < a.n_experts; i += PRODUCT_THREADS)
        s.count[i] = 0;
    kvi_sync_block();
    for (unsigned i = threadIdx.x; i < n; i += PRODUCT_THREADS) {
        if (a.experts[i] < a.n_experts)
            kvi_atomic_add(&s.count[a.experts[i]], 1u);
        else if (is_shared) /* no such expert: no slot */
            a.to.order[i / a.k * a.k + moe_rank(a.experts + i / a.k * a.k, a.k, i % a.k)] = MOE_NO_SLOT;
    }
    kvi_sync_block();
    for (unsigned i = threadIdx.x; i < e; i += PRODUCT_THREADS) {
        first += s.count[i];
        tiles += (s.count[i] + a.tile - 1) / a.tile;
    }
    block_sums(s, first, tiles);
    if (is_shared)
        first = n; /* fixed, so that it does not depend on the routing */
    else
        n_mine = s.count[e];
    const unsigned n_tiles = (n_mine + a.tile - 1) / a.tile;
    for (unsigned i = threadIdx.x; i < n_tiles; i += PRODUCT_THREADS) {
        const unsigned left = n_mine - i * a.tile;
        a.to.tiles[tiles + i] = {e, first + i * a.tile, left < a.tile ? left : a.tile, 0};
    }
    if (threadIdx.x == 0) {
        a.to.table[e] = table.e[e];
        if (is_shared)
            *a.to.n_tiles = tiles + n_tiles;
    }
    if (is_shared) {
        for (unsigned i = threadIdx.x; i < a.n_rows; i += PRODUCT_THREADS) {
            a.to.slot_row[n + i] = i;
            a.to.slot_weight[n + i] = 1.0f;
        }
        return;
    }
    /* In turns of 256 pairs: a pair's place is the number of this expert's pairs in front of it. */
    for (unsigned base = 0; base < n; base += PRODUCT_THREADS) {
        const unsigned i = base + threadIdx.x;
        const bool     mine = i < n && a.experts[i] == e;
        const unsigned votes = kvi_ballot(mine);
        unsigned       slot = first + kvi_count_bits(votes & ((1u << kvi_lane()) - 1u));

        if (kvi_lane() == 0)
            s.part[0][kvi_warp()] = kvi_count_bits(votes);
        kvi_sync_block();
        for (unsigned w = 0; w < PRODUCT_WARPS; w++) {
            slot += w < kvi_warp() ? s.part[0][w] : 0u;
            first += s.part[0][w];
        }
        if (mine) {
            const unsigned row = i / a.k;
            a.to.slot_row[slot] = row;
            a.to.slot_weight[slot] = a.weights[i];
            a.to.order[row * a.k + moe_rank(a.experts + static_cast<size_t>(row) * a.k, a.k, i % a.k)] = slot;
        }
        kvi_sync_block();
    }
}

/* ---- products ---- */

struct moe_args {
    moe_lists     lists;
    product_shape shape;    /* channels of x: width up, inner down */
    const float  *x;        /* up: the rows; down: h */
    float        *y;        /* up: h [slots, n_out]; down: products [slots, n_out] */
    unsigned      n_out;
    unsigned      n_routed; /* experts before the shared one */
    bool          routed, shared; /* whose tiles this launch makes */
    float         limit;
};

KVI_DEV bool moe_mine(const moe_args &a, const moe_tile &tile) { return tile.expert == a.n_routed ? a.shared : a.routed; }

/* As the CPU does it (cpu/ref_moe.c): NaN passes both clamps. */
KVI_DEV float moe_activate(float g, float u, float weight, float limit)
{
    if (limit > 0.0f) {
        g = g > limit ? limit : g;
        u = u > limit ? limit : u;
        u = u < -limit ? -limit : u;
    }
    return weight * (kvi_div(g, 1.0f + kvi_exp(-g)) * u);
}

/* UP: matrix 0 is w1, matrix 1 is w3, 16 rows each. Else 32 rows of w2. */
template <unsigned KIND, bool UP, unsigned NT>
KVI_DEV void moe_few(few_shared<2, NT> &sh, const moe_args &a, const moe_tile &tile, const moe_expert &expert)
{
    const unsigned  g = kvi_lane() / 4, m0 = blockIdx.x * (UP ? 16 : 32), last = a.n_out - 1;
    few_rows<2>     rows;
    const float    *x[NT];

    KVI_UNROLL
    for (unsigned m = 0; m < 2; m++) {
        const unsigned low = m0 + (UP ? 0 : 16 * m) + g;
        rows.w[m] = UP ? m ? expert.w3 : expert.w1 : expert.w2;
        rows.low[m] = low < last ? low : last;
        rows.high[m] = low + 8 < last ? low + 8 : last;
    }
    KVI_UNROLL
    for (unsigned n = 0; n < NT; n++) {
        const unsigned slot = tile.first + (8 * n + g < tile.n_slots ? 8 * n + g : 0);
        x[n] = a.x + static_cast<size_t>(UP ? a.lists.slot_row[slot] : slot) * a.shape.cols;
    }
    few_segments<KIND, 2, NT>(sh, rows, x, tile.n_slots, a.shape);
}

/* Grid (channels, tiles). */
template <unsigned ROUTED, unsigned SHARED, bool UP, unsigned NT>
KVI_KERNEL(PRODUCT_THREADS, (NT == 1 && ROUTED != WEIGHT_BF16 ? 2 : 1)) moe_few_kernel(moe_args a)
{
    few_shared<2, NT> &sh = kvi_shared<few_shared<2, NT>>();

    if (blockIdx.y >= *a.lists.n_tiles) /* the same for the whole block */
        return;
    const moe_tile   tile = a.lists.tiles[blockIdx.y];
    const moe_expert expert = a.lists.table[tile.expert];

    if (!moe_mine(a, tile))
        return;
    if (ROUTED != SHARED && tile.expert == a.n_routed)
        moe_few<SHARED, UP, NT>(sh, a, tile, expert);
    else
        moe_few<ROUTED, UP, NT>(sh, a, tile, expert);
    kvi_sync_block();
    constexpr unsigned ROWS = UP ? 16 : 32;
    for (unsigned i = threadIdx.x; i < ROWS * 8 * NT; i += PRODUCT_THREADS) {
        const unsigned row = i % ROWS, col = i / ROWS, at = row % 16 * 8 + col % 8, slot = tile.first + col;
        if (blockIdx.x * ROWS + row >= a.n_out || col >= tile.n_slots)
            continue;
        float v = few_sum<2, NT>(sh, row / 16, col / 8, at, a.shape);
        if (UP)
            v = moe_activate(v, few_sum<2, NT>(sh, 1, col / 8, at, a.shape), a.lists.slot_weight[slot], a.limit);
        a.y[static_cast<size_t>(slot) * a.n_out + blockIdx.x * ROWS + row] = v;
    }
}

template <unsigned KIND, bool UP> KVI_KERNEL(PRODUCT_THREADS, 1) moe_many_kernel(moe_args a) /* grid (channels, tiles) */
{
    many_shared   &sh = kvi_shared<many_shared>();
    const unsigned m0 = kvi_warp() % 2 * 64, n0 = kvi_warp() / 2 * 32, g = kvi_lane() / 4, t = kvi_lane() % 4;
    constexpr unsigned ROWS = UP ? MANY / 2 : MANY;
    many_args          p;
    float              sum[4][4][4];

    if (blockIdx.y >= *a.lists.n_tiles)
        return;
    const moe_tile   tile = a.lists.tiles[blockIdx.y];
    const moe_expert expert = a.lists.table[tile.expert];

    if (!moe_mine(a, tile))
        return;
    p.w[0] = UP ? expert.w1 : expert.w2;
    p.w[1] = UP ? expert.w3 : expert.w2;
    p.row0 = static_cast<size_t>(blockIdx.x) * ROWS;
    p.n_left = a.n_out - blockIdx.x * ROWS;
    p.paired = UP;
    p.x = a.x;
    p.x_stride = a.shape.cols;
    p.n_x = tile.n_slots;
    if (threadIdx.x < tile.n_slots)
        sh.x_row[threadIdx.x] = UP ? a.lists.slot_row[tile.first + threadIdx.x] : tile.first + threadIdx.x;
    kvi_sync_block();
    many_product<KIND>(sum, sh, p, a.shape, m0, n0);
    KVI_UNROLL
    for (unsigned n = 0; n < 4; n++)
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++) {
            const unsigned col = n0 + 8 * n + 2 * t + i % 2, slot = tile.first + col;
            if (col >= tile.n_slots)
                continue;
            float *y = a.y + static_cast<size_t>(slot) * a.n_out + blockIdx.x * ROWS;
            if (UP) { /* rows m0 .. m0 + 31 are w1's, the next 32 the same of w3 */
                const float weight = a.lists.slot_weight[slot];
                KVI_UNROLL
                for (unsigned m = 0; m < 2; m++) {
                    const unsigned row = m0 / 2 + 16 * m + g + i / 2 * 8;
                    if (row < p.n_left)
                        y[row] = moe_activate(sum[m][n][i], sum[m + 2][n][i], weight, a.limit);
                }
            } else {
                KVI_UNROLL
                for (unsigned m = 0; m < 4; m++) {
                    const unsigned row = m0 + 16 * m + g + i / 2 * 8;
                    if (row < p.n_left)
                        y[row] = sum[m][n][i];
                }
            }
        }
}

/* ---- the sum of a row's slots: grid (channels, rows) ---- */

struct moe_sum_args {
    const float    *products;   /* [slots, width] */
    const unsigned *order;
    float          *y;
    unsigned        n_slots;    /* routed: the shared expert's begin there */
    unsigned        k, width;
    bool            whole;      /* y is aligned to 16 bytes, width a multiple of 4 */
};

KVI_KERNEL(PRODUCT_THREADS, 2) moe_sum_kernel(moe_sum_args a)
{
    const unsigned  row = blockIdx.y, c = blockIdx.x * PRODUCT_THREADS * 4 + threadIdx.x * 4;
    const unsigned *order = a.order + static_cast<size_t>(row) * a.k;
    float           v[4] = {0.0f, 0.0f, 0.0f, 0.0f};

    if (c >= a.width)
        return;
    for (unsigned i = 0; i <= a.k; i++) {
        const unsigned slot = i < a.k ? order[i] : a.n_slots + row;
        if (slot == MOE_NO_SLOT)
            continue;
        const float *from = a.products + static_cast<size_t>(slot) * a.width + c;
        if (a.whole) {
            const uint4 q = kvi_load_16(from);
            v[0] = v[0] + kvi_float(q.x);
            v[1] = v[1] + kvi_float(q.y);
            v[2] = v[2] + kvi_float(q.z);
            v[3] = v[3] + kvi_float(q.w);
        } else {
            KVI_UNROLL
            for (unsigned j = 0; j < 4; j++)
                v[j] = c + j < a.width ? v[j] + from[j] : 0.0f;
        }
    }
    float *to = a.y + static_cast<size_t>(row) * a.width + c;
    if (a.whole) {
        *reinterpret_cast<float4 *>(to) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        KVI_UNROLL
        for (unsigned j = 0; j < 4; j++)
            if (c + j < a.width)
                to[j] = v[j];
    }
}

#endif
