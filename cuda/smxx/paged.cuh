/* Attention over paged keys and values, one query row at a time (decoding).
 *
 * Work: a block takes one query row, one KV head and up to 8 NT of the query heads that read it, and one chunk of
 * KVI_PAGED_CHUNK positions (or, without a bound of the lengths or with rows enough, all chunks one after the other). Its warps
 * take 16 positions in turn, each on its own with a running maximum of its own: fetch (cp.async, STAGES deep), decode, scores,
 * probabilities, values; they meet once a chunk. Products are transposed, so that heads are the 8 columns of m16n8k16 and four
 * heads waste half of it, not three quarters:  scores [positions, heads] = K q^T,  out [channels, heads] = V^T p^T.  K and V go
 * from their bytes in shared memory to registers (device_paged_row.cuh); a block stores nothing but its 8 NT x width sums and
 * two floats a head.
 *
 * Merging has one order: warps ascending in a chunk, chunks ascending in a group of PAGED_GROUP, groups ascending. The kernel
 * of one chunk a block leaves sums in scratch, and paged_combine_kernel does the rest, eight groups at a time; the other does
 * it as it goes. Both do the same operations, so bits depend on a row's own length only.
 *
 * Rounding: keys and values are exact operands. q is: three bf16 parts, or, for F16 and FP4, scaled by a power of two so that
 * its largest channel of a head is in 2^14..2^15, two f16 parts (2^-22 of a channel, 2^-39 of the largest). p is two parts:
 * 2^-16 of itself in bf16, 2^-22 in f16 (times 2^15: not less than 2^-40 of the largest). Infinite keys and values may give NaN
 * where the CPU has a limit.
 *
 * Traffic of a row: each visible key and value row once a KV head (again from the second cache for each further 8 NT query
 * heads), out, and with chunks apart 8 (width + 2) bytes a head and chunk. Bound: memory. At 128k positions, 8 KV heads of 128
 * channels and 4.8 TB/s: F16 537 MB, 112 us; MXFP8 277 MB, 58 us; FP4 151 MB, 31 us; 1024 blocks for 132 SMs; products of 8
 * columns 9 GFLOP (bf16 11), 11 us at 989 TFLOPS. Prefill reads the cache once a query row: right, but not what this is for.
 * Measured: not yet run on a device. */
#ifndef KVI_CUDA_PAGED_CUH
#define KVI_CUDA_PAGED_CUH

#include "backend/op_params.h"
#include "device_paged_row.cuh"

enum : unsigned {
    PAGED_ROWS = 16,                                  /* positions of a warp's step */
    PAGED_STEPS = KVI_PAGED_CHUNK / PAGED_ROWS,       /* of a chunk, all warps together */
    PAGED_GROUP = 16,                                 /* chunks that are merged first */
    PAGED_COMBINE_WARPS = 8,
    PAGED_COMBINE_THREADS = PAGED_COMBINE_WARPS * KVI_WARP,
    PAGED_MAX_WIDTH = 256,
    PAGED_MAX_RATIO = 64
};
static_assert(PAGED_COMBINE_THREADS >= PAGED_MAX_WIDTH, "a thread per channel");

struct paged_args {
    const float           *q;         /* [n_rows, n_heads, width] */
    float                 *out;
    const uint8_t *const  *pages;
    const uint64_t        *n_visible;
    const float           *sink;
    float                 *sums;      /* [n_rows, n_chunks, n_heads, width] */
    float2                *states;    /* [n_rows, n_chunks, n_heads]: maximum, denominator */
    size_t                 page_off;
    uint64_t               max_visible;
    unsigned               n_chunks;  /* a block each; 0 = a block does all */
    unsigned               n_heads, n_kv_heads, ratio, n_parts, width, page_rows, row_bytes;
    float                  scale;     /* times log2 e: probabilities are powers of two */
};

/* ---- maximum, denominator, sums: merged alike in both kernels ---- */

struct paged_state {
    float max, den;
};
struct paged_factors {
    float old, add;
};

KVI_DEV paged_factors paged_merge(paged_state &to, float max, float den)
{
    const float         m = kvi_max(max, to.max);
    const paged_factors f = {kvi_exp2_near(to.max - m), kvi_exp2_near(max - m)};

    to.den = kvi_fma(f.add, den, to.den * f.old);
    to.max = m;
    return f;
}
KVI_DEV float paged_merge_sum(paged_factors f, float to, float add) { return kvi_fma(f.add, add, to * f.old); }

/* What the sums are divided by. */
KVI_DEV float paged_den(const paged_state &s, const float *sink, unsigned head)
{
    return sink ? s.den + kvi_exp2_near(sink[head] * 1.44269504088896341f - s.max) : s.den;
}

KVI_DEV uint64_t paged_seen(const paged_args &a, unsigned row)
{
    const uint64_t n = a.n_visible[row];

    return n < a.max_visible ? n : a.max_visible;
}

/* ---- shapes ---- */

template <class F, unsigned MAX_WIDTH, unsigned NT> struct paged_shape {
    enum : unsigned {
        WARPS = MAX_WIDTH > 128 ? 2 : 4,
        THREADS = WARPS * KVI_WARP,
        HEADS = 8 * NT,
        PARTS = F::HALF ? 2 : 3, /* of q */
        STAGES = F::BYTES > 60 ? 2 : F::BYTES > 30 ? 3 : 4,
        BLOCKS = NT > 1 || F::BYTES > 60 || MAX_WIDTH > 128 ? 2 : F::BYTES > 30 ? 3 : 4, /* of an SM */
        ROW = F::BYTES * MAX_WIDTH / 32,
        /* Rows at a distance of 64 modulo 128 bytes let eight lanes read 16 bytes each of two keys at once, 16 modulo 64
         * sixteen lanes 8 bytes of four values. Other formats lie as in the page, or row by row in 16-byte pieces. */
        KEY_AREA = PAGED_ROWS * (F::WORDS16 ? ROW + 64 : (ROW + 30) / 16 * 16),
        VALUE_AREA = PAGED_ROWS * (F::WORDS16 ? ROW + 16 : (ROW + 30) / 16 * 16),
        OUT_STRIDE = MAX_WIDTH + 4
    };
    static_assert(HEADS * OUT_STRIDE * sizeof(float) <= STAGES * (KEY_AREA + VALUE_AREA), "sums lie where the stages were");
    static_assert(KEY_AREA % 16 == 0 && VALUE_AREA % 16 == 0, "cp.async writes 16 bytes");
};

template <class F, unsigned MAX_WIDTH, unsigned NT> struct paged_shared {
    typedef paged_shape<F, MAX_WIDTH, NT> shape;
    alignas(16) unsigned char stage[shape::WARPS][shape::STAGES][shape::KEY_AREA + shape::VALUE_AREA];
    float          group[shape::HEADS][MAX_WIDTH];         /* sums of the group that is open */
    paged_state    warp[shape::WARPS][shape::HEADS];
    float          of_warp[shape::WARPS][shape::HEADS];    /* factors of the sums */
    paged_factors  of_group[shape::HEADS], of_all[shape::HEADS];
    float          den[shape::HEADS];
    const uint8_t *source[PAGED_STEPS];                    /* first key row of a step, where a step lies in one page */
};

/* ---- where rows are ---- */

/* The chunk that a block works on. */
struct paged_chunk {
    uint64_t first_page;
    unsigned first_row; /* in its page */
    unsigned n;         /* visible positions */
    size_t   head_off;  /* bytes in a page to the key rows of the KV head */
    bool     whole;     /* steps lie in one page each */
};

KVI_DEV const uint8_t *paged_key_at(const paged_args &a, const paged_chunk &c, unsigned i)
{
    const unsigned row = c.first_row + i;

    return a.pages[c.first_page + row / a.page_rows] + c.head_off + static_cast<size_t>(row % a.page_rows) * a.row_bytes;
}

/* Rows of a format without WORDS16 in an area: base + i * pitch + what their address has over a multiple of 16. */
KVI_DEV unsigned paged_piece_pitch(unsigned row_bytes) { return (row_bytes + 30) / 16 * 16; }

/* Copies the rows of a step into an area; rows behind the n-th become zeros. `value` is 0 for keys, page_rows rows for values. */
template <class F, unsigned MAX_WIDTH>
KVI_DEV void paged_fetch(const paged_args &a, const paged_chunk &c, const uint8_t *source, unsigned step, size_t value,
                         unsigned pitch, unsigned char *area)
{
    const unsigned first = step * PAGED_ROWS, n = c.n - first < PAGED_ROWS ? c.n - first : PAGED_ROWS;

    if (F::WORDS16) {
        constexpr unsigned LANES = MAX_WIDTH / 8; /* of a row */
        const unsigned at = kvi_lane() % LANES * 16;
        if (at < a.row_bytes)
            for (unsigned row = kvi_lane() / LANES; row < PAGED_ROWS; row += KVI_WARP / LANES) {
                const unsigned from = row < n ? row : 0;
                const uint8_t *p = c.whole ? source + static_cast<size_t>(from) * a.row_bytes : paged_key_at(a, c, first + from);
                kvi_copy_16(area + row * pitch + at, p + value + at, row < n ? 16 : 0);
            }
    } else if (c.whole) {
        const uint8_t *p = source + value;
        const unsigned off = static_cast<unsigned>(reinterpret_cast<uintptr_t>(p) & 15u), end = off + n * a.row_bytes;
        for (unsigned at = 16 * kvi_lane(); at < off + PAGED_ROWS * a.row_bytes; at += 16 * KVI_WARP) {
            const unsigned left = at < end ? end - at : 0;
            kvi_copy_16(area + at, p - off + (left ? at : 0), left < 16 ? left : 16);
        }
    } else {
        for (unsigned row = 0; row < PAGED_ROWS; row++) {
            const uint8_t *p = paged_key_at(a, c, first + (row < n ? row : 0)) + value;
            const unsigned off = static_cast<unsigned>(reinterpret_cast<uintptr_t>(p) & 15u), end = off + a.row_bytes;
            for (unsigned at = 16 * kvi_lane(); at < pitch; at += 16 * KVI_WARP) {
                const unsigned left = row < n && at < end ? end - at : 0;
                kvi_copy_16(area + row * pitch + at, p - off + (left ? at : 0), left < 16 ? left : 16);
            }
        }
    }
}

/* Where row i of a step begins in its area. */
template <class F>
KVI_DEV unsigned paged_row_at(const paged_args &a, const paged_chunk &c, const uint8_t *source, unsigned step, size_t value,
                              unsigned pitch, unsigned i)
{
    if (F::WORDS16)
        return i * pitch;
    if (c.whole)
        return (static_cast<unsigned>(reinterpret_cast<uintptr_t>(source) + value) & 15u) + i * a.row_bytes;
    const unsigned row = (c.first_row + step * PAGED_ROWS + i) % a.page_rows;
    return i * pitch + (static_cast<unsigned>(c.head_off + static_cast<size_t>(row) * a.row_bytes + value) & 15u);
}

/* ---- q ---- */

template <class F, unsigned MAX_WIDTH, unsigned NT> struct paged_query {
    uint32_t b[MAX_WIDTH / 16][NT][paged_shape<F, MAX_WIDTH, NT>::PARTS][2];
    float    scale[NT][2]; /* of heads 2t, 2t + 1 */
};

/* Column g of the operand is query head g of the part; heads that are not there are 0. */
template <class F, unsigned MAX_WIDTH, unsigned NT>
KVI_DEV void paged_load_query(const paged_args &a, const float *q, unsigned n_heads, paged_query<F, MAX_WIDTH, NT> &out)
{
    enum : unsigned { PARTS = paged_shape<F, MAX_WIDTH, NT>::PARTS };
    const unsigned g = kvi_lane() / 4, t = kvi_lane() % 4;

    KVI_UNROLL
    for (unsigned nt = 0; nt < NT; nt++) {
        const unsigned head = 8 * nt + g;
        const float   *row = q + static_cast<size_t>(head < n_heads ? head : 0) * a.width;
        float          factor = 1.0f, back = 1.0f;

        if (F::HALF) {
            float most = 0.0f;
            for (unsigned c = t; c < a.width; c += 4)
                most = kvi_max(kvi_float(kvi_bits(row[c]) & 0x7fffffffu), most);
            most = kvi_max(kvi_shfl_xor(most, 1), most);
            most = kvi_max(kvi_shfl_xor(most, 2), most);
            if (most < kvi_float(0x7f800000u)) {
                const int e = static_cast<int>(kvi_bits(most) >> 23) - 127, k = e < -86 ? 100 : 14 - e;
                factor = kvi_float(static_cast<uint32_t>(127 + k) << 23);
                back = kvi_float(static_cast<uint32_t>(127 - k) << 23);
            }
        }
        KVI_UNROLL
        for (unsigned j = 0; j < 2; j++)
            out.scale[nt][j] = a.scale * kvi_shfl(back, 4 * (2 * t + j));
        KVI_UNROLL
        for (unsigned i = 0; i < MAX_WIDTH / 8; i++) { /* pairs of channels: word i % 4 of group i / 4 */
            float x[2] = {0.0f, 0.0f};
            KVI_UNROLL
            for (unsigned j = 0; j < 2; j++)
                if (i / 4 * 32 < a.width && head < n_heads)
                    x[j] = row[i / 4 * 32 + F::key_channel(t, i % 4 * 2 + j)] * factor;
            KVI_UNROLL
            for (unsigned part = 0; part < PARTS; part++) {
                const uint32_t w = paged_pack<F::HALF>(x[0], x[1]);
                const float    y[2] = {paged_low<F::HALF>(w), paged_high<F::HALF>(w)};
                out.b[i / 2][nt][part][i % 2] = w;
                KVI_UNROLL
                for (unsigned j = 0; j < 2; j++) /* nothing is left of an infinity */
                    x[j] = (kvi_bits(y[j]) & 0x7fffffffu) == 0x7f800000u ? 0.0f : x[j] - y[j];
            }
        }
    }
}

/* ---- one step of a warp ---- */

template <unsigned NT> struct paged_softmax { /* of heads 2t, 2t + 1; den: what this lane's positions add to it */
    float max[NT][2], den[NT][2];
};

/* s: in positions g, g + 8 x heads 2t, 2t + 1 as the product leaves them. */
template <class F, unsigned MAX_WIDTH, unsigned NT>
KVI_DEV void paged_scores(const paged_args &a, const paged_query<F, MAX_WIDTH, NT> &q, const unsigned char *const (&row)[2],
                          float (&s)[NT][4])
{
    enum : unsigned { PARTS = paged_shape<F, MAX_WIDTH, NT>::PARTS };
    const unsigned t = kvi_lane() % 4;

    KVI_UNROLL
    for (unsigned nt = 0; nt < NT; nt++)
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++)
            s[nt][i] = 0.0f;
    KVI_UNROLL
    for (unsigned group = 0; group < MAX_WIDTH / 32; group++) {
        if (group * 32 >= a.width)
            continue;
        uint32_t w[2][4];
        float    part_sum[NT][4];
        F::key(row[0], a.width, group, t, w[0]);
        F::key(row[1], a.width, group, t, w[1]);
        KVI_UNROLL
        for (unsigned nt = 0; nt < NT; nt++)
            KVI_UNROLL
            for (unsigned i = 0; i < 4; i++)
                part_sum[nt][i] = F::GROUPED ? 0.0f : s[nt][i];
        KVI_UNROLL
        for (unsigned k = 0; k < 2; k++) {
            const uint32_t m[4] = {w[0][2 * k], w[1][2 * k], w[0][2 * k + 1], w[1][2 * k + 1]};
            KVI_UNROLL
            for (unsigned nt = 0; nt < NT; nt++)
                KVI_UNROLL
                for (unsigned part = 0; part < PARTS; part++)
                    paged_mma<F::HALF>(part_sum[nt], m, q.b[2 * group + k][nt][part]);
        }
        const float f[2] = {F::scale(row[0], a.width, group), F::scale(row[1], a.width, group)};
        KVI_UNROLL
        for (unsigned nt = 0; nt < NT; nt++)
            KVI_UNROLL
            for (unsigned i = 0; i < 4; i++)
                s[nt][i] = F::GROUPED ? kvi_fma(part_sum[nt][i], f[i / 2], s[nt][i]) : part_sum[nt][i];
    }
}

/* s becomes p. True if a maximum has moved: then f is what the sums must be multiplied with. */
template <unsigned NT>
KVI_DEV bool paged_weigh(const float (&scale)[NT][2], unsigned n, paged_softmax<NT> &state, float (&s)[NT][4], float (&f)[NT][2])
{
    const unsigned g = kvi_lane() / 4;
    bool           moved = false;

    KVI_UNROLL
    for (unsigned nt = 0; nt < NT; nt++)
        KVI_UNROLL
        for (unsigned j = 0; j < 2; j++) {
            const float x[2] = {s[nt][j] * scale[nt][j], s[nt][2 + j] * scale[nt][j]};
            const float before = state.max[nt][j];
            float       m = before; /* never NaN: one does not move it, but arrives through p */
            KVI_UNROLL
            for (unsigned i = 0; i < 2; i++)
                if (g + 8 * i < n)
                    m = kvi_max(x[i], m);
            m = kvi_max(kvi_shfl_xor(m, 4), m);
            m = kvi_max(kvi_shfl_xor(m, 8), m);
            m = kvi_max(kvi_shfl_xor(m, 16), m);
            f[nt][j] = kvi_exp2_near(before - m);
            moved = moved || m > before;
            KVI_UNROLL
            for (unsigned i = 0; i < 2; i++)
                s[nt][2 * i + j] = g + 8 * i < n ? kvi_exp2_near(x[i] - m) : 0.0f;
            state.den[nt][j] = kvi_fma(state.den[nt][j], f[nt][j], s[nt][j] + s[nt][2 + j]);
            state.max[nt][j] = m;
        }
    return kvi_ballot(moved) != 0;
}

/* p of head g at positions 2t, 2t + 1, 2t + 8, 2t + 9, from those of positions g, g + 8 and heads 2t, 2t + 1. */
template <unsigned NT> KVI_DEV void paged_turn(const float (&p)[NT][4], float (&out)[NT][4])
{
    const unsigned g = kvi_lane() / 4, t = kvi_lane() % 4;

    KVI_UNROLL
    for (unsigned nt = 0; nt < NT; nt++)
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++) {
            const unsigned from = 4 * (2 * t + i % 2) + g / 2;
            const float    even = kvi_shfl(p[nt][i / 2 * 2], from), odd = kvi_shfl(p[nt][i / 2 * 2 + 1], from);
            out[nt][i] = g % 2 ? odd : even;
        }
}

/* hi, lo: both parts of four probabilities, as the second operand. */
template <bool HALF> KVI_DEV void paged_split(const float (&p)[4], uint32_t (&hi)[2], uint32_t (&lo)[2])
{
    KVI_UNROLL
    for (unsigned k = 0; k < 2; k++) {
        hi[k] = paged_pack<HALF>(p[2 * k], p[2 * k + 1]);
        lo[k] = paged_pack<HALF>(p[2 * k] - paged_low<HALF>(hi[k]), p[2 * k + 1] - paged_high<HALF>(hi[k]));
    }
}

/* sum[2 group + pair]: value channels 2 pair, 2 pair + 1 of lane g x heads 2t, 2t + 1. */
template <class F, unsigned MAX_WIDTH, unsigned NT>
KVI_DEV void paged_add_values(const paged_args &a, const unsigned char *const (&row)[4], const float (&p)[NT][4],
                              float (&sum)[MAX_WIDTH / 16][NT][4])
{
    const unsigned g = kvi_lane() / 4;
    uint32_t       hi[NT][2], lo[NT][2];

    if (!F::GROUPED) {
        KVI_UNROLL
        for (unsigned nt = 0; nt < NT; nt++) {
            float x[4];
            KVI_UNROLL
            for (unsigned i = 0; i < 4; i++)
                x[i] = p[nt][i] * (F::HALF ? 32768.0f : 1.0f);
            paged_split<F::HALF>(x, hi[nt], lo[nt]);
        }
    }
    KVI_UNROLL
    for (unsigned group = 0; group < MAX_WIDTH / 32; group++) {
        if (group * 32 >= a.width)
            continue;
        uint32_t w[4][2];
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++)
            F::value(row[i], a.width, group, g, w[i]);
        if (F::GROUPED) {
            float f[4];
            KVI_UNROLL
            for (unsigned i = 0; i < 4; i++)
                f[i] = F::scale(row[i], a.width, group);
            KVI_UNROLL
            for (unsigned nt = 0; nt < NT; nt++) {
                const float x[4] = {p[nt][0] * f[0], p[nt][1] * f[1], p[nt][2] * f[2], p[nt][3] * f[3]};
                paged_split<F::HALF>(x, hi[nt], lo[nt]);
            }
        }
        KVI_UNROLL
        for (unsigned pair = 0; pair < 2; pair++) {
            const uint32_t m[4] = {kvi_byte_perm(w[0][pair], w[1][pair], 0x5410), kvi_byte_perm(w[0][pair], w[1][pair], 0x7632),
                                   kvi_byte_perm(w[2][pair], w[3][pair], 0x5410), kvi_byte_perm(w[2][pair], w[3][pair], 0x7632)};
            KVI_UNROLL
            for (unsigned nt = 0; nt < NT; nt++) {
                paged_mma<F::HALF>(sum[2 * group + pair][nt], m, hi[nt]);
                paged_mma<F::HALF>(sum[2 * group + pair][nt], m, lo[nt]);
            }
        }
    }
}

/* ---- one chunk: a warp's part of it, left in shared memory ---- */

template <class F, unsigned MAX_WIDTH, unsigned NT>
KVI_DEV void paged_attend_chunk(const paged_args &a, const paged_chunk &c, const paged_query<F, MAX_WIDTH, NT> &q,
                                paged_shared<F, MAX_WIDTH, NT> &s)
{
    typedef paged_shape<F, MAX_WIDTH, NT> shape;
    const unsigned warp = kvi_warp(), g = kvi_lane() / 4, t = kvi_lane() % 4;
    const unsigned n_steps = (c.n + PAGED_ROWS - 1) / PAGED_ROWS;
    const size_t   value = static_cast<size_t>(a.page_rows) * a.row_bytes;
    const unsigned key_pitch = F::WORDS16 ? a.row_bytes + (a.row_bytes % 128 ? 0 : 64) : paged_piece_pitch(a.row_bytes);
    const unsigned value_pitch = F::WORDS16 ? a.row_bytes + 16 : key_pitch;
    paged_softmax<NT> state;
    float             sum[MAX_WIDTH / 16][NT][4];

    KVI_UNROLL
    for (unsigned nt = 0; nt < NT; nt++) {
        KVI_UNROLL
        for (unsigned j = 0; j < 2; j++)
            state.max[nt][j] = -1e30f, state.den[nt][j] = 0.0f;
        KVI_UNROLL
        for (unsigned i = 0; i < MAX_WIDTH / 16; i++)
            KVI_UNROLL
            for (unsigned j = 0; j < 4; j++)
                sum[i][nt][j] = 0.0f;
    }

    const auto fetch = [&](unsigned step, unsigned stage) {
        if (step < n_steps) {
            unsigned char *area = s.stage[warp][stage];
            const uint8_t *source = s.source[step];
            paged_fetch<F, MAX_WIDTH>(a, c, source, step, 0, key_pitch, area);
            paged_fetch<F, MAX_WIDTH>(a, c, source, step, value, value_pitch, area + shape::KEY_AREA);
        }
        kvi_copy_commit();
    };
    for (unsigned i = 0; i + 1 < shape::STAGES; i++)
        fetch(warp + i * shape::WARPS, i);
    unsigned stage = 0;
    for (unsigned step = warp; step < n_steps; step += shape::WARPS) {
        kvi_copy_wait<shape::STAGES - 2>();
        kvi_sync_warp(); /* all lanes see the copies, and all have left the stage that is filled next */
        fetch(step + (shape::STAGES - 1) * shape::WARPS, stage == 0 ? shape::STAGES - 1 : stage - 1);

        const unsigned char *area = s.stage[warp][stage];
        const uint8_t       *source = s.source[step];
        const unsigned char *key[2], *values[4];
        float                p[NT][4], turned[NT][4], f[NT][2];
        KVI_UNROLL
        for (unsigned i = 0; i < 2; i++)
            key[i] = area + paged_row_at<F>(a, c, source, step, 0, key_pitch, g + 8 * i);
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++)
            values[i] = area + shape::KEY_AREA +
                        paged_row_at<F>(a, c, source, step, value, value_pitch, 2 * t + i % 2 + i / 2 * 8);
        paged_scores<F, MAX_WIDTH, NT>(a, q, key, p);
        if (paged_weigh<NT>(q.scale, c.n - step * PAGED_ROWS, state, p, f)) {
            KVI_UNROLL
            for (unsigned i = 0; i < MAX_WIDTH / 16; i++)
                KVI_UNROLL
                for (unsigned nt = 0; nt < NT; nt++)
                    KVI_UNROLL
                    for (unsigned j = 0; j < 4; j++)
                        sum[i][nt][j] = sum[i][nt][j] * f[nt][j % 2];
        }
        paged_turn<NT>(p, turned);
        paged_add_values<F, MAX_WIDTH, NT>(a, values, turned, sum);
        stage = stage + 1 < shape::STAGES ? stage + 1 : 0;
    }
    kvi_copy_wait<0>();
    kvi_sync_warp(); /* the sums go where the stages were */

    float *to = reinterpret_cast<float *>(s.stage[warp][0]);
    KVI_UNROLL
    for (unsigned nt = 0; nt < NT; nt++)
        KVI_UNROLL
        for (unsigned j = 0; j < 2; j++) {
            const unsigned head = 8 * nt + 2 * t + j;
            float          den = state.den[nt][j];
            den = den + kvi_shfl_xor(den, 4);
            den = den + kvi_shfl_xor(den, 8);
            den = den + kvi_shfl_xor(den, 16);
            if (g == 0)
                s.warp[warp][head] = {state.max[nt][j], den};
            KVI_UNROLL
            for (unsigned i = 0; i < MAX_WIDTH / 8; i++) /* channel i % 4 of lane g in group i / 4 */
                if (i / 4 * 32 < a.width)
                    to[head * shape::OUT_STRIDE + i / 4 * 32 + F::value_channel(g, i % 4)] =
                        sum[i / 2][nt][i % 2 * 2 + j] * (F::HALF ? 1.0f / 32768.0f : 1.0f);
        }
}

template <class F, unsigned MAX_WIDTH, unsigned NT>
KVI_KERNEL((paged_shape<F, MAX_WIDTH, NT>::THREADS), (paged_shape<F, MAX_WIDTH, NT>::BLOCKS)) paged_kernel(paged_args a)
{
    typedef paged_shape<F, MAX_WIDTH, NT> shape;
    paged_shared<F, MAX_WIDTH, NT> &s = kvi_shared<paged_shared<F, MAX_WIDTH, NT>>();
    unsigned       at = blockIdx.x;
    const unsigned part = at % a.n_parts;
    at /= a.n_parts;
    const unsigned kv_head = at % a.n_kv_heads;
    at /= a.n_kv_heads;
    const unsigned only = a.n_chunks ? at % a.n_chunks : 0;
    const unsigned row = a.n_chunks ? at / a.n_chunks : at;
    const unsigned first_head = kv_head * a.ratio + part * shape::HEADS;
    const unsigned n_heads = a.ratio - part * shape::HEADS < shape::HEADS ? a.ratio - part * shape::HEADS : shape::HEADS;
    const uint64_t n_seen = paged_seen(a, row);
    const uint64_t n_all = (n_seen + KVI_PAGED_CHUNK - 1) / KVI_PAGED_CHUNK;
    const uint64_t begin = only, end = a.n_chunks ? (only < n_all ? only + 1 : only) : n_all;
    float         *out = a.out + (static_cast<size_t>(row) * a.n_heads + first_head) * a.width;
    paged_query<F, MAX_WIDTH, NT> q;
    paged_state    group = {-1e30f, 0.0f}, all = {-1e30f, 0.0f}; /* of head threadIdx.x */

    if (begin < end)
        paged_load_query<F, MAX_WIDTH, NT>(a, a.q + (static_cast<size_t>(row) * a.n_heads + first_head) * a.width, n_heads, q);
    if (!a.n_chunks)
        for (unsigned head = 0; head < n_heads; head++)
            for (unsigned i = threadIdx.x; i < a.width; i += shape::THREADS) {
                s.group[head][i] = 0.0f;
                out[head * static_cast<size_t>(a.width) + i] = 0.0f;
            }
    for (uint64_t chunk = begin; chunk < end; chunk++) {
        const uint64_t first = chunk * KVI_PAGED_CHUNK;
        const bool     group_ends = chunk % PAGED_GROUP == PAGED_GROUP - 1 || chunk + 1 == n_all;
        paged_chunk    c;

        c.first_page = first / a.page_rows;
        c.first_row = static_cast<unsigned>(first % a.page_rows);
        c.n = static_cast<unsigned>(n_seen - first < KVI_PAGED_CHUNK ? n_seen - first : KVI_PAGED_CHUNK);
        c.head_off = a.page_off + static_cast<size_t>(kv_head) * 2 * a.page_rows * a.row_bytes;
        c.whole = a.page_rows % PAGED_ROWS == 0;
        if (c.whole)
            for (unsigned i = threadIdx.x; i * PAGED_ROWS < c.n; i += shape::THREADS)
                s.source[i] = paged_key_at(a, c, i * PAGED_ROWS);
        kvi_sync_block();
        paged_attend_chunk<F, MAX_WIDTH, NT>(a, c, q, s);
        kvi_sync_block();

        const size_t slot = (static_cast<size_t>(row) * a.n_chunks + static_cast<size_t>(chunk)) * a.n_heads + first_head;
        if (threadIdx.x < n_heads) {
            const unsigned head = threadIdx.x;
            paged_state    of = {-1e30f, 0.0f};
            for (unsigned w = 0; w < shape::WARPS; w++)
                of.max = kvi_max(s.warp[w][head].max, of.max);
            for (unsigned w = 0; w < shape::WARPS; w++) {
                const float f = kvi_exp2_near(s.warp[w][head].max - of.max);
                s.of_warp[w][head] = f;
                of.den = kvi_fma(f, s.warp[w][head].den, of.den);
            }
            if (a.n_chunks) {
                a.states[slot + head] = make_float2(of.max, of.den);
            } else {
                s.of_group[head] = paged_merge(group, of.max, of.den);
                if (group_ends) {
                    s.of_all[head] = paged_merge(all, group.max, group.den);
                    group = {-1e30f, 0.0f};
                }
                s.den[head] = paged_den(all, a.sink, first_head + head);
            }
        }
        kvi_sync_block();
        for (unsigned head = 0; head < n_heads; head++)
            for (unsigned i = threadIdx.x; i < a.width; i += shape::THREADS) {
                float x = 0.0f;
                KVI_UNROLL
                for (unsigned w = 0; w < shape::WARPS; w++) {
                    const float *sums = reinterpret_cast<const float *>(s.stage[w][0]);
                    x = kvi_fma(s.of_warp[w][head], sums[head * shape::OUT_STRIDE + i], x);
                }
                if (a.n_chunks) {
                    a.sums[(slot + head) * a.width + i] = x;
                    continue;
                }
                x = paged_merge_sum(s.of_group[head], s.group[head][i], x);
                s.group[head][i] = group_ends ? 0.0f : x;
                if (group_ends) {
                    float *to = out + head * static_cast<size_t>(a.width) + i;
                    x = paged_merge_sum(s.of_all[head], *to, x);
                    *to = chunk + 1 == n_all ? kvi_div(x, s.den[head]) : x;
                }
            }
        /* the next chunk overwrites nothing of this one before its first barrier */
    }
}

/* ---- chunks of a row and head, a block each: a warp merges a group, then a thread a channel the groups ---- */

struct paged_combine_shared {
    paged_state state[PAGED_COMBINE_WARPS];
    float       sum[PAGED_COMBINE_WARPS][PAGED_MAX_WIDTH];
};

KVI_KERNEL(PAGED_COMBINE_THREADS, 2) paged_combine_kernel(paged_args a)
{
    enum : unsigned { PER_LANE = PAGED_MAX_WIDTH / KVI_WARP };
    paged_combine_shared &s = kvi_shared<paged_combine_shared>();
    const unsigned row = blockIdx.x / a.n_heads, head = blockIdx.x % a.n_heads, warp = kvi_warp(), lane = kvi_lane();
    const uint64_t n = (paged_seen(a, row) + KVI_PAGED_CHUNK - 1) / KVI_PAGED_CHUNK;
    paged_state    all = {-1e30f, 0.0f};
    float          out = 0.0f;

    for (uint64_t round = 0; round < n; round += PAGED_COMBINE_WARPS * PAGED_GROUP) {
        const uint64_t first = round + warp * PAGED_GROUP;
        const unsigned here = first >= n ? 0 : n - first < PAGED_GROUP ? static_cast<unsigned>(n - first) : PAGED_GROUP;
        const size_t   slot = (static_cast<size_t>(row) * a.n_chunks + static_cast<size_t>(first)) * a.n_heads + head;
        const float2   mine = lane < here ? a.states[slot + static_cast<size_t>(lane) * a.n_heads] : make_float2(0.0f, 0.0f);
        paged_state    group = {-1e30f, 0.0f};
        float          sum[PER_LANE];

        KVI_UNROLL
        for (unsigned k = 0; k < PER_LANE; k++)
            sum[k] = 0.0f;
        KVI_UNROLL
        for (unsigned i = 0; i < PAGED_GROUP; i++) { /* unrolled, so that loads go ahead of the sums */
            const float         max = kvi_shfl(mine.x, i), den = kvi_shfl(mine.y, i);
            const float        *from = a.sums + (slot + static_cast<size_t>(i) * a.n_heads) * a.width;
            if (i < here) {
                const paged_factors f = paged_merge(group, max, den);
                KVI_UNROLL
                for (unsigned k = 0; k < PER_LANE; k++)
                    if (k * KVI_WARP < a.width)
                        sum[k] = paged_merge_sum(f, sum[k], from[k * KVI_WARP + lane]);
            }
        }
        if (lane == 0)
            s.state[warp] = group;
        KVI_UNROLL
        for (unsigned k = 0; k < PER_LANE; k++)
            s.sum[warp][k * KVI_WARP + lane] = sum[k];
        kvi_sync_block();
        for (unsigned w = 0; w < PAGED_COMBINE_WARPS && round + w * PAGED_GROUP < n; w++) {
            const paged_state   of = s.state[w];
            const paged_factors f = paged_merge(all, of.max, of.den);
            out = paged_merge_sum(f, out, s.sum[w][threadIdx.x]);
        }
        kvi_sync_block();
    }
    if (threadIdx.x < a.width)
        a.out[(static_cast<size_t>(row) * a.n_heads + head) * a.width + threadIdx.x] =
            n == 0 ? 0.0f : kvi_div(out, paged_den(all, a.sink, head));
}

#endif
