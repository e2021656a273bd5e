/* Index scores with SDOT (Armv8.2-A); cpu/index_quad.h has the idea and why it is exact.
 *
 * SDOT multiplies signed bytes: keys stay as they are. A lane is a key: dword d of four keys times
 * dword d of a head, which SDOT takes by lane out of the four heads of a quad. 8 keys are scored
 * against four heads at once: 8 registers of sums, 8 of dot products, 2 of keys, 1 of the query.
 *
 * Work for a key and 32 heads of 128 channels: 256 SDOT and 72 for scales and heads (LEVEL: 24).
 * Bound: SDOT, one or two a cycle. Not measured: no such machine, only qemu. */
#include "cpu/index_quad.h"

#include <arm_neon.h>

enum {
    LANES = 4, /* keys of a register */
    REGS = 2,  /* that are scored together */
    GROUP = LANES * REGS,
    KEYS = KVI_INDEX_TILE,
    GROUPS = KEYS / GROUP
};

typedef struct key_block {
    int8_t codes[QUAD_DWORDS][REGS][4 * LANES];
    float  scales[REGS][LANES];
} key_block;

/* Eight keys; key_block [n_groups] follow. A tile: GROUPS of these, sums of quads f32
 * [n_quads][KEYS]. */
typedef struct key_head {
    float    least[REGS][LANES]; /* LEVEL: the smallest scale of the key, to which codes belong */
    uint32_t is_exact;
    uint32_t is_level;
    uint32_t unused[6];
} key_head;

static size_t group_bytes(const kvi_index_shape *s)
{
    return sizeof(key_head) + s->n_groups * sizeof(key_block);
}

static size_t query_bytes(const kvi_index_shape *s)
{
    return quad_count(s) * quad_bytes(s);
}

static size_t tile_bytes(const kvi_index_shape *s)
{
    return GROUPS * group_bytes(s) + quad_count(s) * KEYS * sizeof(float);
}

static void prepare(const kvi_index_shape *s, const int8_t *codes, const float *scales,
                    const float *weights, void *query)
{
    quad_prepare(s, codes, scales, weights, 0, 1, query);
}

/* ---------------------------------------------------------------- keys */

static float scale_of(uint32_t code)
{
    const uint32_t bits = code == 255 ? 0x7fc00000u : code == 0 ? 0x00400000u : code << 23;
    float          x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Scales of eight keys, and whether they are EXACT and LEVEL: then shifts [4][8] too. */
static void unpack_scales(size_t n_groups, const uint8_t *scales, key_head *head,
                          int8_t shifts[QUAD_LEVEL_GROUPS][GROUP])
{
    key_block *to = (key_block *)(void *)(head + 1);
    uint32_t   is_exact = 1;
    uint32_t   is_level = n_groups == QUAD_LEVEL_GROUPS;

    for (size_t i = 0; i < GROUP; i++) {
        const uint8_t *of_key = scales + i * n_groups;
        uint8_t        least = 255;
        uint8_t        most = 0;

        for (size_t g = 0; g < n_groups; g++) {
            least = of_key[g] < least ? of_key[g] : least;
            most = of_key[g] > most ? of_key[g] : most;
            to[g].scales[i / LANES][i % LANES] = scale_of(of_key[g]);
        }
        is_exact &= least >= QUAD_CODE_MIN && most <= QUAD_CODE_MAX;
        is_level &= most - least <= QUAD_LEVEL_SHIFT && least >= QUAD_LEVEL_CODE_MIN &&
                    most <= QUAD_LEVEL_CODE_MAX;
        head->least[i / LANES][i % LANES] = scale_of(least);
        for (size_t g = 0; g < n_groups && is_level; g++)
            shifts[g][i] = (int8_t)(of_key[g] - least);
    }
    head->is_exact = is_exact;
    head->is_level = is_exact & is_level;
}

/* One block of four keys, whose packed bytes begin at `from`. shifts: of each key, in its bytes. */
static void unpack_block(const uint8_t *from, size_t stride, int8x16_t shifts, size_t reg,
                         key_block *to)
{
    static const int8_t codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const int8x16_t     table = vld1q_s8(codes);
    const uint32x4_t    r0 = vreinterpretq_u32_u8(vld1q_u8(from));
    const uint32x4_t    r1 = vreinterpretq_u32_u8(vld1q_u8(from + stride));
    const uint32x4_t    r2 = vreinterpretq_u32_u8(vld1q_u8(from + 2 * stride));
    const uint32x4_t    r3 = vreinterpretq_u32_u8(vld1q_u8(from + 3 * stride));
    const uint64x2_t    t0 = vreinterpretq_u64_u32(vtrn1q_u32(r0, r1)); /* dwords 0 and 2 */
    const uint64x2_t    t1 = vreinterpretq_u64_u32(vtrn2q_u32(r0, r1));
    const uint64x2_t    t2 = vreinterpretq_u64_u32(vtrn1q_u32(r2, r3));
    const uint64x2_t    t3 = vreinterpretq_u64_u32(vtrn2q_u32(r2, r3));
    const uint8x16_t    w[4] = {
           vreinterpretq_u8_u64(vtrn1q_u64(t0, t2)), vreinterpretq_u8_u64(vtrn1q_u64(t1, t3)),
           vreinterpretq_u8_u64(vtrn2q_u64(t0, t2)), vreinterpretq_u8_u64(vtrn2q_u64(t1, t3))};

    for (size_t i = 0; i < 4; i++) {
        const int8x16_t low = vqtbl1q_s8(table, vandq_u8(w[i], vdupq_n_u8(15)));
        const int8x16_t high = vqtbl1q_s8(table, vshrq_n_u8(w[i], 4));

        vst1q_s8(to->codes[2 * i][reg], vshlq_s8(low, shifts));
        vst1q_s8(to->codes[2 * i + 1][reg], vshlq_s8(high, shifts));
    }
}

static void unpack_group(size_t n_groups, const uint8_t *from, key_head *head)
{
    const size_t stride = n_groups * QUAD_HALF;
    int8_t       shifts[QUAD_LEVEL_GROUPS][GROUP];
    key_block   *to = (key_block *)(void *)(head + 1);

    unpack_scales(n_groups, from + GROUP * stride, head, shifts);
    for (size_t g = 0; g < n_groups; g++) {
        int8x16_t of_reg[REGS] = {vdupq_n_s8(0), vdupq_n_s8(0)};

        if (head->is_level) {
            const int8x16_t v = vcombine_s8(vld1_s8(shifts[g]), vdup_n_s8(0));
            const int8x16_t twice = vzip1q_s8(v, v);

            of_reg[0] = vzip1q_s8(twice, twice);
            of_reg[1] = vzip2q_s8(twice, twice);
        }
        for (size_t r = 0; r < REGS; r++)
            unpack_block(from + g * QUAD_HALF + r * LANES * stride, stride, of_reg[r], r, to + g);
    }
}

static void unpack(const kvi_index_shape *s, const uint8_t *const *groups, size_t n, void *tile)
{
    for (size_t i = 0; i < GROUPS; i++) /* lanes behind the last key repeat it */
        unpack_group(s->n_groups, groups[i < n ? i : n - 1],
                     (key_head *)(void *)((uint8_t *)tile + i * group_bytes(s)));
}

/* ---------------------------------------------------------------- scores */

typedef int32x4_t   int_tile[QUAD][REGS];
typedef float32x4_t dot_tile[REGS][QUAD];

KVI_ALWAYS_INLINE void start_block(const int32_t *start, int_tile acc)
{
    for (size_t h = 0; h < QUAD; h++)
        for (size_t r = 0; r < REGS; r++)
            acc[h][r] = vdupq_n_s32(start[h]);
}

KVI_ALWAYS_INLINE void add_block(const quad_block *q, const key_block *keys, int_tile acc)
{
#pragma GCC unroll 1 /* unrolled, gcc loads all first and runs out of registers */
    for (size_t d = 0; d < QUAD_DWORDS; d++) {
        const int8x16_t c = vld1q_s8(q->codes[d][0]);

#pragma GCC unroll 2
        for (size_t r = 0; r < REGS; r++) {
            const int8x16_t k = vld1q_s8(keys->codes[d][r]);

            acc[0][r] = vdotq_laneq_s32(acc[0][r], k, c, 0);
            acc[1][r] = vdotq_laneq_s32(acc[1][r], k, c, 1);
            acc[2][r] = vdotq_laneq_s32(acc[2][r], k, c, 2);
            acc[3][r] = vdotq_laneq_s32(acc[3][r], k, c, 3);
        }
    }
}

/* n * half the query's scale */
KVI_ALWAYS_INLINE float32x4_t scaled(int32x4_t acc, const quad_block *q, size_t h)
{
    return vfmaq_n_f32(vdupq_n_f32(q->minus[h]), vreinterpretq_f32_s32(acc), q->half[h]);
}

/* dot + (n * scale) * (key scale / 2) with every rounding of op_params.h */
KVI_ALWAYS_INLINE float32x4_t add_long(float32x4_t dot, int32x4_t acc, float scale,
                                       const key_head *keys, const key_block *k, size_t r)
{
    const float32x4_t of_key = vld1q_f32(k->scales[r]);
    float32x4_t       n = vcvtq_f32_s32(vsubq_s32(acc, vdupq_n_s32(QUAD_MAGIC_BITS)));

    if (keys->is_level) /* codes as they were: the quotient is a power of two */
        n = vmulq_f32(n, vdivq_f32(vld1q_f32(keys->least[r]), of_key));
    n = vmulq_n_f32(n, scale);
    return vaddq_f32(dot, vmulq_f32(n, vmulq_n_f32(of_key, 0.5f)));
}

/* Sums of four heads' w * max(0, dot) for each key; a NaN dot stays. */
KVI_ALWAYS_INLINE void store_sums(const quad_head *head, dot_tile dot, float *out)
{
    for (size_t r = 0; r < REGS; r++) {
        float32x4_t y[QUAD];

        for (size_t h = 0; h < QUAD; h++) {
            const uint32x4_t below = vcltq_f32(dot[r][h], vdupq_n_f32(0.0f));

            y[h] = vmulq_n_f32(vbslq_f32(below, vdupq_n_f32(0.0f), dot[r][h]), head->weights[h]);
        }
        vst1q_f32(out + r * LANES, vaddq_f32(vaddq_f32(y[0], y[1]), vaddq_f32(y[2], y[3])));
    }
}

/* n below 0 is below L as a float too */
static void score_level(const quad_head *head, const key_head *keys, float *out)
{
    const quad_block *q = quad_blocks(head);
    const key_block  *k = (const key_block *)(const void *)(keys + 1);
    const float32x4_t zero = vdupq_n_f32(QUAD_LEVEL_ZERO);
    int_tile          acc;

    start_block(head->start, acc);
    for (size_t g = 0; g < QUAD_LEVEL_GROUPS; g++)
        add_block(q + g, k + g, acc);
    for (size_t r = 0; r < REGS; r++) {
        float32x4_t y[QUAD];

        for (size_t h = 0; h < QUAD; h++)
            y[h] = vfmaq_n_f32(vdupq_n_f32(head->minus[h]),
                               vmaxq_f32(vreinterpretq_f32_s32(acc[h][r]), zero), head->factor[h]);
        vst1q_f32(out + r * LANES,
                  vmulq_f32(vaddq_f32(vaddq_f32(y[0], y[1]), vaddq_f32(y[2], y[3])),
                            vld1q_f32(keys->least[r])));
    }
}

KVI_ALWAYS_INLINE void score_blocks(const quad_head *head, const key_head *keys, size_t n_groups,
                                    int is_exact, float *out)
{
    const quad_block *q = quad_blocks(head);
    const key_block  *k = (const key_block *)(const void *)(keys + 1);
    dot_tile          dot;

    for (size_t r = 0; r < REGS; r++)
        for (size_t h = 0; h < QUAD; h++)
            dot[r][h] = vdupq_n_f32(0.0f);
    for (size_t g = 0; g < n_groups; g++, q++, k++) {
        int_tile acc;

        start_block(q->start, acc);
        add_block(q, k, acc);
        for (size_t r = 0; r < REGS; r++) {
            const float32x4_t scale = vld1q_f32(keys->is_level ? keys->least[r] : k->scales[r]);

            for (size_t h = 0; h < QUAD; h++)
                dot[r][h] = is_exact ? vfmaq_f32(dot[r][h], scaled(acc[h][r], q, h), scale)
                                     : add_long(dot[r][h], acc[h][r], q->scale[h], keys, k, r);
        }
    }
    store_sums(head, dot, out);
}

static void score_exact(const quad_head *head, const key_head *keys, size_t n_groups, float *out)
{
    score_blocks(head, keys, n_groups, 1, out);
}

static void score_long(const quad_head *head, const key_head *keys, size_t n_groups, float *out)
{
    score_blocks(head, keys, n_groups, 0, out);
}

static void score(const kvi_index_shape *s, const void *query, void *tile,
                  const kvi_index_ahead *ahead, float *out)
{
    const size_t n_quads = quad_count(s);
    float       *sums = (float *)(void *)((uint8_t *)tile + GROUPS * group_bytes(s));

    for (size_t j = 0; j < n_quads; j++) {
        const quad_head *head = quad_at(s, query, j);

        kvi_index_ask(ahead, j, n_quads);
        for (size_t i = 0; i < GROUPS; i++) {
            const key_head *keys =
                (const key_head *)(const void *)((uint8_t *)tile + i * group_bytes(s));
            float *to = sums + j * KEYS + i * GROUP;

            if (!keys->is_exact || !head->is_exact)
                score_long(head, keys, s->n_groups, to);
            else if (keys->is_level && head->is_level)
                score_level(head, keys, to);
            else
                score_exact(head, keys, s->n_groups, to);
        }
    }
    quad_fold(sums, n_quads, KEYS, out);
}

void kvi_index_dotprod(kvi_index_kernels *k)
{
    k->n_keys = KEYS;
    k->rate = 60;
    k->query_bytes = query_bytes;
    k->tile_bytes = tile_bytes;
    k->prepare = prepare;
    k->unpack = unpack;
    k->score = score;
}
