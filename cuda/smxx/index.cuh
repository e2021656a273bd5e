/* Index scores of FP4 keys: score(row, j) = sum over heads of w[h] * max(0, q[h] . key[j]), bit for bit as op_params.h says.
 *
 * Work split: a warp takes units of 32 keys and waits for nobody: its own ring of asynchronous copies, no barrier of the block
 * behind the queries. A block's 8 warps share the queries of up to 12 rows; a unit is unpacked once, in registers, for all of
 * them. Grid: x = tiles of rows, y = blocks that deal out the units; y comes from the machine and from scores_stride, and no bit
 * depends on it. Units behind the last visible entry of the rows are left out.
 * Many timelines (slices): a tile has rows of one of them only. How long they are is known on the device alone, and they may be
 * far apart, so the grid is a number of blocks for all tiles together (dealt): every warp counts the units of all tiles, 8 bytes
 * a row from the second cache, and finds the tile that its block is dealt to. A tile gets blocks by its share of all units; one
 * with nothing to score gets none, and what is left of the grid ends there.
 * Product: mma m16n8k32 on int8, 16 keys by 8 heads; its 32 channels are one scale group, so each product is an exact group sum.
 * Traffic: 68 bytes a key of 128 channels once per tile of rows, 4 bytes a score, 4 KiB of query a row and block. Bound aimed at:
 * at 1 row memory, 1 Mi keys: 71 MB + 4 MB, 15.7 us at 4.8 TB/s of an H200, of which the goal is 0.6. Instructions are close
 * behind: a unit takes a warp about 530 to find, copy and unpack and 205 a row of 32 heads (sm_90a: counted in the machine
 * code), 5.7 cycles a key of an SM at 1 row, 14 at 6 rows: 26 us and 62 us for 1 Mi keys on 132 SMs of 1.75 GHz if every cycle
 * issues. The matrix rate: 4096 products a key and row are 4.3 us a row at 1979 TOPS, which mma.sync does not reach on Hopper.
 * Measured: not yet run on a device.
 *
 * The numbers. A dot product is, in the order of the groups, float(sum) * query scale * (key scale / 2), added in fp32; heads are
 * added in a tree. STRICT does just that. LEVEL gives the same bits (see cpu/index_quad.h for the same idea):
 * - All query scales of the block's rows are powers of two in 2^-60 .. 2^40, within 2^3 of one another in a head; codes of key
 *   scales are in 68 .. 168, within 2 of one another in a key. The differences go into the int8 operands: |query| <= 12 * 8 = 96,
 *   |key| <= 2 * 12 * 4 = 96. All groups then make one integer n, |n| <= 256 * 96 * 96 < 2^22, and the sums that op_params.h
 *   wants are such integers times one power of two (2^-121 .. 2^80): exact, in any order.
 * - f = w * least query scale / 2 (the key operand is doubled), 2^-60 <= |f| <= 2^40 or w = 0. Powers of two move out of
 *   products and of the tree: products stay in 2^-120 .. 2^102 before and after, so normal, and sums below 2^108; sums that are
 *   subnormal are exact on both ways, since every term is a multiple of 2^-144. At the end: times 2^(least code - 128).
 * - n starts at the bits of L = 2^23: as a float it is L + n if n >= 0 and something below L otherwise, so max(that, L) is L +
 *   max(0, n); fma(that, f, -L * f) is max(0, n) * f with one rounding, L * f being exact. It gives +0 for -0: this shows only
 *   where every head's product is -0, so a row of negative weights only, without an absent head, is STRICT.
 * The choice is made for each unit and changes no bit. Heads behind the tree's width count as -0, which x + -0 = x forgets; LEVEL
 * makes +0 of them, which again shows in a score of -0 only. */
#ifndef KVI_CUDA_INDEX_CUH
#define KVI_CUDA_INDEX_CUH

#include "backend/op_params.h"
#include "device_index.cuh"

enum : unsigned {
    INDEX_THREADS = 256,
    INDEX_WARPS = INDEX_THREADS / KVI_WARP,
    INDEX_UNIT = 32,  /* keys of a warp at once: two tiles of 16 */
    INDEX_GROUP = 8,  /* keys that lie together in the cache */
    INDEX_BLOCK = 32, /* channels of a scale */
    INDEX_ROWS = 12,  /* of a block at most */
    INDEX_DEALT = 8, /* tiles a lane at most, where blocks are dealt out */
    INDEX_DEALT_TILES = INDEX_DEALT * KVI_WARP,
    INDEX_MAX_THREADS = 128
};

enum : unsigned { /* LEVEL */
    INDEX_CODE_MIN = 68,
    INDEX_CODE_MAX = 166, /* of the least code of a key */
    INDEX_KEY_SPREAD = 2,
    INDEX_QUERY_SPREAD = 3,
    INDEX_EXPONENT_MIN = 127 - 60,
    INDEX_EXPONENT_MAX = 127 + 40
};

/* x / by for x < 2^31 */
struct index_divisor {
    uint32_t by, mul, shift;
};

struct index_args {
    uint8_t *const  *parts;
    const kvi_slice *slices; /* nullptr = all rows are of one timeline, that of parts */
    const int8_t   *codes;
    const float    *scales, *weights;
    const uint64_t *n_visible;
    const int32_t  *blocks;
    const uint32_t *n_blocks;
    float          *scores;
    float          *block_max; /* nullptr = none; block_entries is 8, 16 or 32 then */
    uint64_t        all;       /* rows that see no more are not scored; 0 = none */
    size_t          scores_stride, blocks_stride, max_stride, n_rows;
    size_t          rows_slice;  /* of a timeline; n_rows if there is one */
    unsigned        rows_tile;   /* rows of a block; 1 with candidate blocks */
    unsigned        tiles_slice; /* of a timeline */
    unsigned        n_tiles;
    unsigned        deal; /* 0 = the grid is n_tiles x blocks of a tile; else blocks that are dealt out by the tiles' lengths */
    unsigned        n_heads, n_tree, n_groups;
    unsigned        index_off, block_entries;
    index_divisor   rows_per_block, per_block; /* per_block: by block_entries */
    unsigned        piece; /* bytes that are copied at once: 16 or 8; 1 = key by key, candidate blocks that are no whole groups */
};

/* Constants of the unpacking. They come from shared memory, since the compiler would make known ones anew at every use. */
struct index_tables {
    uint32_t positive, negative, mask, pad;
};

/* Eight keys. Block j of a key's channels, 16 bytes, stands at index_place(key, j). */
template <unsigned G> struct index_group {
    uint4   values[INDEX_GROUP * G];
    uint8_t scales[INDEX_GROUP * G];
};

/* A row. Heads 2t, 2t + 1 of a tile of eight are those of lanes t, 4 + t, ... after a product. */
template <unsigned G, unsigned T> struct index_query {
    uint4   codes[T][G / 2][KVI_WARP]; /* operand of a product: blocks 2j and 2j + 1 */
    float4  factor[T][4];              /* f of two heads, -L f of the same */
    float   scales[G][8 * T];
    float   weights[8 * T];
    uint8_t least[8 * T]; /* exponent of the least scale */
};

template <unsigned G, unsigned T, unsigned STAGES> struct index_shared {
    index_group<G>    unit[INDEX_WARPS][STAGES][INDEX_UNIT / INDEX_GROUP];
    unsigned          count[INDEX_ROWS]; /* scores of a row */
    unsigned          positive[INDEX_ROWS];
    index_tables      tables;
    unsigned          strict, pad[3];
    index_query<G, T> query[1]; /* rows_tile of them */
};

KVI_DEV uint32_t index_divide(uint32_t x, const index_divisor &d)
{
    return (static_cast<uint32_t>(static_cast<uint64_t>(x) * d.mul >> 32) + x) >> d.shift;
}

/* For a fixed j eight keys lie in eight different groups of four banks, and so do eight pieces of 16 bytes that follow one
 * another in the cache when a key has G blocks. */
template <unsigned G> KVI_DEV unsigned index_place(unsigned key, unsigned j)
{
    return INDEX_GROUP * j + (key + j * (INDEX_GROUP / G)) % INDEX_GROUP;
}

/* Scores of a row. */
KVI_DEV unsigned index_count(const index_args &a, size_t row)
{
    uint64_t n = !a.blocks || a.all ? a.n_visible[row] : 0;

    if (a.all && n <= a.all)
        return 0;
    if (a.blocks)
        n = static_cast<uint64_t>(a.n_blocks[row]) * a.block_entries;
    return static_cast<unsigned>(n < a.scores_stride ? n : a.scores_stride);
}

/* Entry of a score; rows have blocks of their own. */
KVI_DEV uint64_t index_entry(const index_args &a, size_t row, unsigned at)
{
    if (!a.blocks)
        return at;
    const uint32_t block = index_divide(at, a.per_block);
    return static_cast<uint64_t>(static_cast<uint32_t>(a.blocks[row * a.blocks_stride + block])) * a.block_entries +
           (at - block * a.block_entries);
}

/* ---- who does what ---- */

/* Rows of a tile, and which of the blocks that share it this one is. */
struct index_share {
    size_t   first_row;
    unsigned n_rows; /* 0 = the block has nothing to do */
    unsigned block, n_blocks;
};

KVI_DEV index_share index_tile(const index_args &a, unsigned tile)
{
    const unsigned slice = tile / a.tiles_slice;
    const size_t   in_slice = static_cast<size_t>(tile - slice * a.tiles_slice) * a.rows_tile;
    const size_t   first_row = slice * a.rows_slice + in_slice;
    const size_t   of_slice = a.rows_slice - in_slice, of_all = first_row < a.n_rows ? a.n_rows - first_row : 0;
    const size_t   n = of_slice < of_all ? of_slice : of_all;

    return {first_row, static_cast<unsigned>(n < a.rows_tile ? n : a.rows_tile), 0, 0};
}

/* Scores of the tile's longest row. */
KVI_DEV unsigned index_most(const index_args &a, const index_share &tile)
{
    unsigned most = 0;

    for (unsigned r = 0; r < tile.n_rows; r++) {
        const unsigned n = index_count(a, tile.first_row + r);
        most = n > most ? n : most;
    }
    return most;
}

KVI_DEV unsigned index_units(const index_args &a, unsigned tile)
{
    return (index_most(a, index_tile(a, tile)) + INDEX_UNIT - 1) / INDEX_UNIT;
}

/* Of a tile with `units`, each of which is worth `each` blocks. Rounded down, so that the sum is at most a.deal and one more for
 * each tile: a.deal < 2^20, what is lost in a float does not reach a block. */
KVI_DEV unsigned index_blocks_of(unsigned units, float each)
{
    const unsigned most = (units + INDEX_WARPS - 1) / INDEX_WARPS; /* rather than warps without a unit */
    const float    n = static_cast<float>(units) * each;

    return most <= 1 || n >= static_cast<float>(most) ? most : n < 1.0f ? 1u : static_cast<unsigned>(n);
}

template <class T> KVI_DEV T index_warp_scan(T x) /* with the own one */
{
    for (unsigned d = 1; d < KVI_WARP; d *= 2) {
        const T lower = kvi_shfl_up(x, d);
        x += kvi_lane() >= d ? lower : 0;
    }
    return x;
}

/* Each warp for itself, with the same result. */
KVI_DEV index_share index_dealt(const index_args &a)
{
    unsigned units[INDEX_DEALT], n = 0, tile = 0, block = 0, of_tile = 0;
    uint64_t own = 0;

    KVI_UNROLL
    for (unsigned i = 0; i < INDEX_DEALT; i++) {
        const unsigned t = i * KVI_WARP + kvi_lane();
        units[i] = t < a.n_tiles ? index_units(a, t) : 0;
        own += units[i];
    }
    const uint64_t total = kvi_shfl(index_warp_scan(own), KVI_WARP - 1);
    const float    each = kvi_div(static_cast<float>(a.deal), static_cast<float>(total));
    KVI_UNROLL
    for (unsigned i = 0; i < INDEX_DEALT; i++)
        n += index_blocks_of(units[i], each);
    unsigned at = blockIdx.x - (index_warp_scan(n) - n); /* among the lane's blocks; no small number once it is in front of them */
    KVI_UNROLL
    for (unsigned i = 0; i < INDEX_DEALT; i++) {
        const unsigned blocks = index_blocks_of(units[i], each);
        if (at < blocks) {
            tile = i * KVI_WARP + kvi_lane();
            block = at;
            of_tile = blocks;
        }
        at -= blocks;
    }
    const unsigned who = kvi_ballot(of_tile != 0);
    if (who == 0)
        return {0, 0, 0, 0};
    const unsigned lane = kvi_count_bits(who - 1); /* one bit is set */
    index_share    share = index_tile(a, kvi_shfl(tile, lane));
    share.block = kvi_shfl(block, lane);
    share.n_blocks = kvi_shfl(of_tile, lane);
    return share;
}

KVI_DEV index_share index_take_share(const index_args &a)
{
    if (a.deal)
        return index_dealt(a);
    index_share share = index_tile(a, blockIdx.x);
    share.block = blockIdx.y;
    share.n_blocks = gridDim.y;
    return share;
}

/* ---- keys into shared memory ---- */

/* The group of eight with the score `at` in it; nullptr = none of it is scored. */
KVI_DEV const uint8_t *index_find(const index_args &a, uint8_t *const *parts, size_t row, unsigned at, unsigned count,
                                  uint64_t visible)
{
    if (at >= count)
        return nullptr;
    const uint64_t entry = index_entry(a, row, at);
    if (entry >= visible)
        return nullptr;
    const uint32_t i = static_cast<uint32_t>(entry); /* ids of entries are int32 */
    const uint32_t part = index_divide(i, a.rows_per_block);
    return parts[part] + a.index_off +
           static_cast<size_t>((i - part * a.rows_per_block.by) / INDEX_GROUP) * (INDEX_GROUP * 17u * a.n_groups);
}

/* Eight lanes copy a group. */
template <unsigned G, bool WHOLE>
KVI_DEV void index_copy(const index_args &a, index_group<G> &to, const uint8_t *from, unsigned sub)
{
    const unsigned n_groups = WHOLE ? G : a.n_groups, n_values = INDEX_GROUP * 16 * n_groups;

    if (!from)
        return;
    if (a.piece == 16) {
        KVI_UNROLL
        for (unsigned i = 0; i < G; i++) {
            const unsigned c = INDEX_GROUP * i + sub;
            if (i < n_groups)
                kvi_copy_16(&to.values[index_place<G>(c / n_groups, c % n_groups)], from + 16 * c);
        }
        if (sub < n_groups / 2)
            kvi_copy_16(to.scales + 16 * sub, from + n_values + 16 * sub);
        return;
    }
    KVI_ROLLED
    for (unsigned u = sub; u < 2 * INDEX_GROUP * n_groups; u += 8) {
        uint4 *place = &to.values[index_place<G>(u / 2 / n_groups, u / 2 % n_groups)];
        kvi_copy_8(reinterpret_cast<uint8_t *>(place) + 8 * (u % 2), from + 8 * u);
    }
    if (sub < n_groups)
        kvi_copy_8(to.scales + 8 * sub, from + n_values + 8 * sub);
}

/* A lane copies its key; scales have any alignment. */
template <unsigned G, bool WHOLE>
KVI_DEV void index_copy_key(const index_args &a, uint8_t *const *parts, index_group<G> *unit, size_t row, unsigned at,
                            unsigned count, uint64_t visible)
{
    const unsigned  n_groups = WHOLE ? G : a.n_groups, key = kvi_lane() % INDEX_GROUP;
    index_group<G> &to = unit[kvi_lane() / INDEX_GROUP];
    const uint8_t  *from = index_find(a, parts, row, at + kvi_lane(), count, visible);

    if (!from)
        return;
    const unsigned there = static_cast<unsigned>(index_entry(a, row, at + kvi_lane()) % INDEX_GROUP);
    KVI_ROLLED
    for (unsigned j = 0; j < n_groups; j++) {
        uint8_t *place = reinterpret_cast<uint8_t *>(&to.values[index_place<G>(key, j)]);
        kvi_copy_8(place, from + 16 * (there * n_groups + j));
        kvi_copy_8(place + 8, from + 16 * (there * n_groups + j) + 8);
        to.scales[key * n_groups + j] = from[(16 * INDEX_GROUP + there) * n_groups + j];
    }
}

/* ---- queries ---- */

/* Scales of a head and what follows from them. */
template <unsigned G, unsigned T, unsigned STAGES>
KVI_DEV void index_take_head(const index_args &a, index_shared<G, T, STAGES> &s, size_t row, unsigned r, unsigned h)
{
    index_query<G, T> &q = s.query[r];
    const bool         there = h < a.n_heads;
    const size_t       head = row * a.n_heads + h;
    const float        w = there ? a.weights[head] : 0.0f;
    unsigned           least = 255, most = 0;
    bool               powers = true;

    for (unsigned j = 0; j < a.n_groups; j++) {
        const float    scale = there ? a.scales[head * a.n_groups + j] : 1.0f;
        const uint32_t bits = kvi_bits(scale);
        const unsigned exponent = bits >> 23 & 255u;

        q.scales[j][h] = scale;
        powers = powers && (bits & 0x807fffffu) == 0;
        least = exponent < least ? exponent : least;
        most = exponent > most ? exponent : most;
    }
    powers = powers && least >= INDEX_EXPONENT_MIN && most <= INDEX_EXPONENT_MAX && most - least <= INDEX_QUERY_SPREAD;
    const float f = powers ? w * kvi_float((least - 1) << 23) : 0.0f;
    const float size = f < 0.0f ? -f : f;
    if (!powers || !(w == 0.0f || (size >= kvi_float((127u - 60u) << 23) && size <= kvi_float((127u + 40u) << 23))))
        s.strict = 1;
    if (there ? kvi_bits(w) >> 31 == 0 : h < a.n_tree)
        s.positive[r] = 1;
    float *factor = reinterpret_cast<float *>(&q.factor[h / 8][h % 8 / 2]);
    factor[h % 2] = f;
    factor[2 + h % 2] = -8388608.0f * f;
    q.weights[h] = w;
    q.least[h] = static_cast<uint8_t>(least);
}

/* By how much the codes of block j of head h are shifted. */
template <unsigned G, unsigned T> KVI_DEV unsigned index_query_shift(const index_query<G, T> &q, unsigned h, unsigned j)
{
    return (kvi_bits(q.scales[j][h]) >> 23) - q.least[h];
}

/* Signed bytes times 2^shift, shift <= 3; they fit. What a byte loses would land in the next one's low bits. */
KVI_DEV uint32_t index_shift(uint32_t bytes, unsigned shift)
{
    return (bytes << shift) & (0x01010101u * (0xffu << shift & 0xffu));
}

/* True if all rows are LEVEL. */
template <unsigned G, unsigned T, unsigned STAGES>
KVI_DEV bool index_take_queries(const index_args &a, index_shared<G, T, STAGES> &s, size_t first_row, unsigned n_rows)
{
    bool level = true;

    if (threadIdx.x < n_rows) {
        s.count[threadIdx.x] = index_count(a, first_row + threadIdx.x);
        s.positive[threadIdx.x] = 0;
    }
    if (threadIdx.x == 0)
        s.strict = 0;
    if (threadIdx.x == 0)
        s.tables = {0x03020100u, 0x7d7e7f00u, 0xf8fcfe00u, 0};
    kvi_sync_block();
    for (unsigned i = threadIdx.x; i < n_rows * 8 * T; i += INDEX_THREADS)
        index_take_head(a, s, first_row + i / (8 * T), i / (8 * T), i % (8 * T));
    kvi_sync_block();
    level = s.strict == 0;
    for (unsigned r = 0; r < n_rows; r++)
        level = level && s.positive[r] != 0;
    for (unsigned i = threadIdx.x; i < n_rows * T * (G / 2) * KVI_WARP; i += INDEX_THREADS) {
        const unsigned lane = i % KVI_WARP, pair = i / KVI_WARP % (G / 2), tile = i / KVI_WARP / (G / 2) % T;
        const unsigned r = i / KVI_WARP / (G / 2) / T, h = 8 * tile + lane / 4;
        const int8_t  *from = a.codes + ((first_row + r) * a.n_heads + h) * a.n_groups * INDEX_BLOCK + 8 * (lane % 4);
        uint2          v[2];

        KVI_UNROLL
        for (unsigned e = 0; e < 2; e++) {
            const unsigned j = 2 * pair + e;

            v[e] = make_uint2(0, 0);
            if (h < a.n_heads && j < a.n_groups) {
                const unsigned shift = level ? index_query_shift(s.query[r], h, j) : 0;
                v[e] = *reinterpret_cast<const uint2 *>(from + INDEX_BLOCK * j);
                v[e] = make_uint2(index_shift(v[e].x, shift), index_shift(v[e].y, shift));
            }
        }
        s.query[r].codes[tile][pair][lane] = {v[0].x, v[0].y, v[1].x, v[1].y};
    }
    kvi_sync_block();
    return level;
}

/* ---- keys as operands ---- */

/* Four E2M1 codes (the low 16 bits) as signed bytes: twice their value, times 2^shift, 1 <= shift <= 3. A lookup whose nibble
 * has its highest bit set gives the sign of the table's byte: 0 in both tables. So the two tables, of positive codes and of
 * negative ones with 7 bits, do not disturb one another; the shift brings the sign to its place. */
KVI_DEV uint32_t index_unpack(const index_tables &tables, uint32_t codes, uint32_t flipped, unsigned shift, uint32_t mask)
{
    const uint32_t positive = kvi_byte_perm_sign(tables.positive, 0x0c080604u, codes);
    const uint32_t negative = kvi_byte_perm_sign(tables.negative, 0x74787a7cu, flipped);

    return ((positive | negative) << shift) & mask;
}

/* Block j of the keys lane / 4 and lane / 4 + 8 of a tile: lane % 4 has channels 8t .. 8t + 7, as the query's operand does. */
template <unsigned G>
KVI_DEV void index_operand(uint32_t (&k)[4], const index_tables &tables, const index_group<G> *tile, unsigned j,
                           unsigned shift_low, unsigned shift_high)
{
    const unsigned key = kvi_lane() / 4, t = kvi_lane() % 4;

    KVI_UNROLL
    for (unsigned i = 0; i < 2; i++) {
        const uint32_t codes = reinterpret_cast<const uint32_t *>(&tile[i].values[index_place<G>(key, j)])[t];
        const uint32_t flipped = codes ^ 0x88888888u;
        const unsigned shift = i ? shift_high : shift_low;
        const uint32_t mask = kvi_byte_perm_sign(tables.mask, 0, 0x1111u * shift);

        k[i] = index_unpack(tables, codes, flipped, shift, mask);
        k[2 + i] = index_unpack(tables, codes >> 16, flipped >> 16, shift, mask);
    }
}

/* Half of a key's scale. */
KVI_DEV float index_half_scale(unsigned code)
{
    if (code < 2)
        return kvi_float(0x00200000u << code);
    return kvi_float(code == 255 ? 0x7fc00000u : (code - 1) << 23);
}

template <unsigned G> struct index_keys {
    const index_group<G> *unit;
    index_tables          tables;
    uint32_t              k[2][G][4]; /* LEVEL */
};

/* Unpacks a unit if it is LEVEL. least[i] = the least code of key lane / 4 of group i. */
template <unsigned G, bool WHOLE>
KVI_DEV bool index_level_keys(const index_args &a, index_keys<G> &keys, unsigned n_scored, bool level,
                              unsigned (&least)[4] KVI_SITE_MORE)
{
    const unsigned n_groups = WHOLE ? G : a.n_groups, key = kvi_lane() / 4;
    unsigned       code[4][G];

    KVI_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        const uint8_t *scales = keys.unit[i].scales + key * n_groups;
        const uint32_t four = WHOLE ? *reinterpret_cast<const uint32_t *>(scales) : 0; /* G is 4 then */
        unsigned       most = 0;

        least[i] = 255;
        KVI_UNROLL
        for (unsigned j = 0; j < G; j++) {
            code[i][j] = WHOLE ? four >> (8 * j) & 255u : scales[j < n_groups ? j : 0];
            least[i] = code[i][j] < least[i] ? code[i][j] : least[i];
            most = code[i][j] > most ? code[i][j] : most;
        }
        const bool fits = (least[i] - INDEX_CODE_MIN <= INDEX_CODE_MAX - INDEX_CODE_MIN) & (most - least[i] <= INDEX_KEY_SPREAD);
        level = level & (fits | (8 * i + key >= n_scored));
    }
#ifdef KVI_CUDA_EMULATED
    level = kvi_ballot(level, file, line) == KVI_ALL_LANES;
#else
    level = kvi_ballot(level) == KVI_ALL_LANES;
#endif
    if (!level)
        return false;
    KVI_UNROLL
    for (unsigned j = 0; j < G; j++) {
        unsigned shift[4];

        if (j >= n_groups)
            break;
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++) { /* what lies behind the scored keys may be anything */
            shift[i] = code[i][j] - (least[i] - 1);
            shift[i] = shift[i] < 1 + INDEX_KEY_SPREAD ? shift[i] : 1 + INDEX_KEY_SPREAD;
        }
        index_operand(keys.k[0][j], keys.tables, keys.unit, j, shift[0], shift[1]);
        index_operand(keys.k[1][j], keys.tables, keys.unit + 2, j, shift[2], shift[3]);
    }
    return true;
}

/* ---- products ---- */

/* A tile of eight heads against the unit: out[m][i], key lane / 4 + 8 (i / 2) of tile m, head 2 (lane % 4) + i % 2. */
template <unsigned G, unsigned T, bool WHOLE>
KVI_DEV void index_level_heads(const index_args &a, float (&out)[2][4], const index_keys<G> &keys, const index_query<G, T> &q,
                               unsigned tile)
{
    const int zero = 0x4b000000; /* L */
    int       sum[2][4];

    KVI_UNROLL
    for (unsigned pair = 0; pair < G / 2; pair++) {
        const uint4    b = q.codes[tile][pair][kvi_lane()];
        const uint32_t even[2] = {b.x, b.y}, odd[2] = {b.z, b.w};

        if (!WHOLE && 2 * pair >= a.n_groups)
            break;
        KVI_UNROLL
        for (unsigned m = 0; m < 2; m++) {
            if (pair == 0)
                kvi_mma_s8_from(sum[m], zero, keys.k[m][2 * pair], even);
            else
                kvi_mma_s8(sum[m], keys.k[m][2 * pair], even);
            if (WHOLE || 2 * pair + 1 < a.n_groups)
                kvi_mma_s8(sum[m], keys.k[m][2 * pair + 1], odd);
        }
    }
    const float4 f = q.factor[tile][kvi_lane() % 4];
    KVI_UNROLL
    for (unsigned m = 0; m < 2; m++)
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++) {
            const float x = kvi_float(static_cast<uint32_t>(sum[m][i] > zero ? sum[m][i] : zero));
            out[m][i] = kvi_fma(x, i % 2 ? f.y : f.x, i % 2 ? f.w : f.z);
        }
}

template <unsigned G, unsigned T, bool WHOLE>
KVI_DEV void index_strict_heads(const index_args &a, float (&out)[2][4], const index_keys<G> &keys, const index_query<G, T> &q,
                                unsigned tile, bool level_query)
{
    const unsigned n_groups = WHOLE ? G : a.n_groups, key = kvi_lane() / 4, first = 8 * tile + 2 * (kvi_lane() % 4);

    KVI_UNROLL
    for (unsigned m = 0; m < 2; m++)
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++)
            out[m][i] = 0.0f;
    KVI_ROLLED
    for (unsigned j = 0; j < n_groups; j++) {
        const uint4    pair = q.codes[tile][j / 2][kvi_lane()];
        const uint32_t b[2] = {j % 2 ? pair.z : pair.x, j % 2 ? pair.w : pair.y};

        KVI_UNROLL
        for (unsigned m = 0; m < 2; m++) {
            uint32_t k[4];
            int      sum[4];

            index_operand(k, keys.tables, keys.unit + 2 * m, j, 1, 1);
            kvi_mma_s8_from(sum, 0, k, b);
            KVI_UNROLL
            for (unsigned i = 0; i < 4; i++) {
                const unsigned h = first + i % 2;
                const unsigned shift = 1 + (level_query ? index_query_shift(q, h, j) : 0); /* sum is a multiple of 2^shift */
                const float    half = index_half_scale(keys.unit[2 * m + i / 2].scales[key * n_groups + j]);

                out[m][i] = out[m][i] + static_cast<float>(sum[i] >> shift) * q.scales[j][h] * half;
            }
        }
    }
    KVI_UNROLL
    for (unsigned m = 0; m < 2; m++)
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++) {
            const unsigned h = first + i % 2;
            const float    x = (out[m][i] < 0.0f ? 0.0f : out[m][i]) * q.weights[h]; /* NaN is not below 0 and stays */
            out[m][i] = h < a.n_heads ? x : h < a.n_tree ? 0.0f : -0.0f;
        }
}

/* Tiles FIRST, FIRST + STEP, ... in the order of the tree. */
template <bool LEVEL, unsigned G, unsigned T, bool WHOLE, unsigned FIRST = 0, unsigned STEP = 1>
KVI_DEV void index_tree(const index_args &a, float (&out)[2][4], const index_keys<G> &keys, const index_query<G, T> &q,
                        bool level_query)
{
    if constexpr (STEP < T) {
        float other[2][4];

        index_tree<LEVEL, G, T, WHOLE, FIRST, 2 * STEP>(a, out, keys, q, level_query);
        index_tree<LEVEL, G, T, WHOLE, FIRST + STEP, 2 * STEP>(a, other, keys, q, level_query);
        KVI_UNROLL
        for (unsigned m = 0; m < 2; m++)
            KVI_UNROLL
            for (unsigned i = 0; i < 4; i++)
                out[m][i] = out[m][i] + other[m][i];
    } else {
        if (!WHOLE && FIRST && 8 * FIRST >= a.n_tree) {
            KVI_UNROLL
            for (unsigned m = 0; m < 2; m++)
                KVI_UNROLL
                for (unsigned i = 0; i < 4; i++)
                    out[m][i] = -0.0f;
            return;
        }
        if constexpr (LEVEL)
            index_level_heads<G, T, WHOLE>(a, out, keys, q, FIRST);
        else
            index_strict_heads<G, T, WHOLE>(a, out, keys, q, FIRST, level_query);
    }
}

/* The last three levels of the tree, heads 4, 2 and 1 apart; every lane ends with one key: 16 (t % 2) + 8 (t / 2) + lane / 4. */
KVI_DEV float index_gather_heads(const float (&v)[2][4] KVI_SITE_MORE)
{
    const bool high = kvi_lane() & 2u, second = kvi_lane() & 1u;
    float      y[2][2], z[2];

    KVI_UNROLL
    for (unsigned m = 0; m < 2; m++)
        KVI_UNROLL
        for (unsigned e = 0; e < 2; e++) {
            const float mine = high ? v[m][2 + e] : v[m][e], theirs = high ? v[m][e] : v[m][2 + e];
#ifdef KVI_CUDA_EMULATED
            y[m][e] = mine + kvi_shfl_xor(theirs, 2, file, line);
#else
            y[m][e] = mine + kvi_shfl_xor(theirs, 2);
#endif
        }
    KVI_UNROLL
    for (unsigned e = 0; e < 2; e++) {
        const float mine = second ? y[1][e] : y[0][e], theirs = second ? y[0][e] : y[1][e];
#ifdef KVI_CUDA_EMULATED
        z[e] = mine + kvi_shfl_xor(theirs, 1, file, line);
#else
        z[e] = mine + kvi_shfl_xor(theirs, 1);
#endif
    }
    return z[0] + z[1];
}

/* Maxima of blocks of 8, 16 or 32 keys of a unit. */
KVI_DEV void index_write_max(const index_args &a, size_t row, float score, unsigned at, unsigned count)
{
    const float none = kvi_float(0xff800000u);
    float       most = at < count ? kvi_max(score, none) : none;

    KVI_UNROLL
    for (unsigned d = 4; d < KVI_WARP; d *= 2)
        most = kvi_max(most, kvi_shfl_xor(most, d));
    if (a.block_entries >= 16)
        most = kvi_max(most, kvi_shfl_xor(most, 2));
    if (a.block_entries == 32)
        most = kvi_max(most, kvi_shfl_xor(most, 1));
    if (at % a.block_entries == 0 && at < count)
        a.block_max[row * a.max_stride + at / a.block_entries] = most + 0.0f;
}

/* ---- kernels ---- */

/* G blocks of channels and T tiles of eight heads at most; WHOLE: just G. */
template <unsigned G, unsigned T, unsigned STAGES, bool WHOLE> KVI_KERNEL(INDEX_THREADS, WHOLE ? 2 : 1) index_kernel(index_args a)
{
    index_shared<G, T, STAGES> &s = kvi_shared<index_shared<G, T, STAGES>>();
    const index_share           share = index_take_share(a);
    const size_t                first_row = share.first_row;
    const unsigned              n_rows = share.n_rows, most = index_most(a, share);
    const unsigned              step = share.n_blocks * INDEX_WARPS, lane = kvi_lane();
    const unsigned              mine = 16 * (lane % 2) + 8 * (lane % 4 / 2) + lane / 4; /* the key a lane ends with */

    if (share.block * INDEX_UNIT >= most) /* the whole block */
        return;
    uint8_t *const *parts = a.slices ? a.slices[first_row / a.rows_slice].index_parts : a.parts;
    const bool     level_query = index_take_queries(a, s, first_row, n_rows);
    const uint64_t visible = a.blocks ? a.n_visible[first_row] : most;
    const unsigned n_units = (most + INDEX_UNIT - 1) / INDEX_UNIT;
    unsigned       unit = kvi_warp() * share.n_blocks + share.block;
    unsigned       turn = 0;
    index_keys<G>  keys;
    auto          &ring = s.unit[kvi_warp()];
    const auto     find = [&](unsigned u) {
        return a.piece == 1 ? nullptr : index_find(a, parts, first_row, u * INDEX_UNIT + lane / 8 * INDEX_GROUP, most, visible);
    };
    const uint8_t *from = find(unit); /* of the next copy: its address is there before it begins */
    const auto     copy = [&](unsigned u, unsigned stage) {
        if (a.piece == 1)
            index_copy_key<G, WHOLE>(a, parts, ring[stage], first_row, u * INDEX_UNIT, most, visible);
        else
            index_copy<G, WHOLE>(a, ring[stage][lane / 8], from, lane % 8);
        kvi_copy_commit();
        from = find(u + step);
    };

    keys.tables = s.tables;
    KVI_UNROLL
    for (unsigned i = 0; i < STAGES - 1; i++)
        copy(unit + i * step, i);
    for (; unit < n_units; unit += step) {
        const unsigned at = unit * INDEX_UNIT;
        unsigned       least[4];

        kvi_copy_wait<STAGES - 2>();
        kvi_sync_warp(); /* the unit is there, and nobody reads the one before it any longer */
        copy(unit + (STAGES - 1) * step, turn ? turn - 1 : STAGES - 1);
        keys.unit = ring[turn];
        turn = turn + 1 < STAGES ? turn + 1 : 0;
        const bool     level = index_level_keys<G, WHOLE>(a, keys, most - at, level_query, least);
        const unsigned code = lane & 1u ? (lane & 2u ? least[3] : least[2]) : (lane & 2u ? least[1] : least[0]);
        const bool     hidden = a.blocks && at + mine < most && index_entry(a, first_row, at + mine) >= visible;

        KVI_ROLLED
        for (unsigned r = 0; r < n_rows; r++) {
            const unsigned count = s.count[r];
            float          v[2][4], score;

            if (count <= at)
                continue;
            if (level)
                index_tree<true, G, T, WHOLE>(a, v, keys, s.query[r], true);
            else
                index_tree<false, G, T, WHOLE>(a, v, keys, s.query[r], level_query);
            score = index_gather_heads(v);
            if (level)
                score = score * kvi_float((code - 1) << 23);
            if (hidden)
                score = kvi_float(0xff800000u);
            if (at + mine < count)
                a.scores[(first_row + r) * a.scores_stride + at + mine] = score;
            if (a.block_max)
                index_write_max(a, first_row + r, score, at + mine, count);
        }
    }
    kvi_copy_wait<0>();
}

/* Maxima of blocks of any size, a thread each, over scores that are there: a second pass, 4 bytes a score. */
KVI_KERNEL(INDEX_MAX_THREADS, 4) index_max_kernel(index_args a)
{
    const size_t   row = blockIdx.y + static_cast<size_t>(a.rows_tile); /* here: the first row */
    const unsigned count = index_count(a, row);
    const size_t   block = static_cast<size_t>(blockIdx.x) * INDEX_MAX_THREADS + threadIdx.x, first = block * a.block_entries;
    float          most = kvi_float(0xff800000u);

    if (first >= count)
        return;
    for (size_t i = first; i < first + a.block_entries && i < count; i++)
        most = kvi_max(a.scores[row * a.scores_stride + i], most);
    a.block_max[row * a.max_stride + block] = most + 0.0f;
}

#endif
