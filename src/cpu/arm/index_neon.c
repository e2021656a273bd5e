/* Index scores with NEON of Armv8-A; cpu/index_quad.h has the idea and why it is exact.
 *
 * SMLAL multiplies signed bytes into 16 bits, which hold a block's sum: 32 * 12 * 12 = 4608. A lane
 * is a key: 16 keys are unpacked into [channel][16 keys] and scored against four heads at once,
 * whose codes are copied into all lanes: 8 registers of sums, 4 of keys, 2 of the query; dot
 * products wait in memory. M comes in when a block's sum is widened.
 *
 * Work for a key and 32 heads of 128 channels: 512 SMLAL and 104 for scales and heads. Bound:
 * SMLAL, one or two a cycle. Not measured: no such machine, only qemu. */
#include "cpu/index_quad.h"

#include <arm_neon.h>

enum {
    LANES = 16, /* keys that are scored together */
    PARTS = 4   /* of four keys, as floats */
};

typedef struct key_block {
    int8_t codes[QUAD_DWORDS][4][LANES];
    float  scales[PARTS][LANES / PARTS];
} key_block;

#include "cpu/index_v16.h"

static void prepare(const kvi_index_shape *s, const int8_t *codes, const float *scales,
                    const float *weights, void *query)
{
    quad_prepare(s, codes, scales, weights, 0, 0, query);
}

/* ---------------------------------------------------------------- keys */

/* Four steps that each interleave rows i and i + 8 make columns of rows: the first lane counts
 * rows, and a step moves its highest bit behind the bits of the column. */
static void transpose(uint8x16_t r[LANES])
{
    for (size_t step = 0; step < 4; step++) {
        uint8x16_t t[LANES];

        for (size_t i = 0; i < LANES / 2; i++) {
            t[2 * i] = vzip1q_u8(r[i], r[i + LANES / 2]);
            t[2 * i + 1] = vzip2q_u8(r[i], r[i + LANES / 2]);
        }
        memcpy(r, t, sizeof t);
    }
}

/* One block of 16 keys, whose packed bytes begin at a and b. */
static void unpack_block(const uint8_t *a, const uint8_t *b, size_t stride, key_block *to)
{
    static const int8_t codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const int8x16_t     table = vld1q_s8(codes);
    uint8x16_t          rows[LANES];

    for (size_t i = 0; i < LANES / 2; i++) {
        rows[i] = vld1q_u8(a + i * stride);
        rows[i + LANES / 2] = vld1q_u8(b + i * stride);
    }
    transpose(rows);
    for (size_t i = 0; i < LANES; i++) { /* byte i: channels 2 i and 2 i + 1 */
        const uint8x16_t low = vandq_u8(rows[i], vdupq_n_u8(15));

        vst1q_s8(to->codes[i / 4 * 2][i % 4], vqtbl1q_s8(table, low));
        vst1q_s8(to->codes[i / 4 * 2 + 1][i % 4], vqtbl1q_s8(table, vshrq_n_u8(rows[i], 4)));
    }
}

static float scale_of(uint32_t code)
{
    const uint32_t bits = code == 255 ? 0x7fc00000u : code == 0 ? 0x00400000u : code << 23;
    float          x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static void unpack(const kvi_index_shape *s, const uint8_t *const *groups, size_t n, void *tile)
{
    const size_t stride = s->n_groups * QUAD_HALF;
    key_head    *head = tile;
    key_block   *to = (key_block *)(void *)(head + 1);

    for (size_t u = 0; u < UNITS; u++, to += s->n_groups) { /* behind the last: that again */
        const uint8_t *pair[2] = {groups[2 * u < n ? 2 * u : n - 1],
                                  groups[2 * u + 1 < n ? 2 * u + 1 : n - 1]};
        uint32_t       is_exact = 1;

        for (size_t g = 0; g < s->n_groups; g++)
            unpack_block(pair[0] + g * QUAD_HALF, pair[1] + g * QUAD_HALF, stride, to + g);
        for (size_t i = 0; i < LANES; i++) {
            const uint8_t *scales = pair[i / 8] + 8 * stride + i % 8 * s->n_groups;

            for (size_t g = 0; g < s->n_groups; g++) {
                is_exact &= scales[g] >= QUAD_CODE_MIN && scales[g] <= QUAD_CODE_MAX;
                to[g].scales[i / 4][i % 4] = scale_of(scales[g]);
            }
        }
        head->is_exact[u] = is_exact;
    }
}

/* ---------------------------------------------------------------- scores */

typedef int16x8_t int_tile[QUAD][2];

/* acc += channel b of a dword, head h: both are constants of the instruction */
#define ADD(h, b)                                                                                  \
    acc[h][0] = vmlal_s8(acc[h][0], vget_low_s8(k[b]), vdup_laneq_s8(c, 4 * h + b));               \
    acc[h][1] = vmlal_high_s8(acc[h][1], k[b], vdupq_laneq_s8(c, 4 * h + b))
#define ADD_HEADS(b)                                                                               \
    ADD(0, b);                                                                                     \
    ADD(1, b);                                                                                     \
    ADD(2, b);                                                                                     \
    ADD(3, b)

/* acc = one block of four heads x 16 keys */
KVI_ALWAYS_INLINE void sum_block(const quad_block *q, const key_block *keys, int_tile acc)
{
    for (size_t h = 0; h < QUAD; h++)
        acc[h][0] = acc[h][1] = vdupq_n_s16(0);
    for (size_t d = 0; d < QUAD_DWORDS; d++) {
        const int8x16_t c = vld1q_s8(q->codes[d][0]);
        const int8x16_t k[4] = {vld1q_s8(keys->codes[d][0]), vld1q_s8(keys->codes[d][1]),
                                vld1q_s8(keys->codes[d][2]), vld1q_s8(keys->codes[d][3])};

        ADD_HEADS(0);
        ADD_HEADS(1);
        ADD_HEADS(2);
        ADD_HEADS(3);
    }
}

/* dot + product of one block for four keys, see index_quad.h */
KVI_ALWAYS_INLINE float32x4_t add_scaled(float32x4_t dot, int16x4_t acc, const quad_block *q,
                                         size_t h, float32x4_t scale, int is_exact)
{
    const int32x4_t sum = vaddw_s16(vdupq_n_s32(q->start[h]), acc);
    float32x4_t     n;

    if (is_exact) {
        n = vfmaq_n_f32(vdupq_n_f32(q->minus[h]), vreinterpretq_f32_s32(sum), q->half[h]);
        return vfmaq_f32(dot, n, scale);
    }
    n = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(acc)), q->scale[h]);
    return vaddq_f32(dot, vmulq_f32(n, vmulq_n_f32(scale, 0.5f)));
}

KVI_ALWAYS_INLINE void score_unit(const quad_head *head, const key_block *keys, size_t n_groups,
                                  int is_exact, float *out)
{
    const quad_block *q = quad_blocks(head);
    float32x4_t       dots[PARTS][QUAD];

    for (size_t i = 0; i < PARTS; i++)
        for (size_t h = 0; h < QUAD; h++)
            dots[i][h] = vdupq_n_f32(0.0f);
    for (size_t g = 0; g < n_groups; g++, q++, keys++) {
        int_tile acc;

        sum_block(q, keys, acc);
#pragma GCC unroll 4
        for (size_t i = 0; i < PARTS; i++) {
            const float32x4_t scale = vld1q_f32(keys->scales[i]);

#pragma GCC unroll 4
            for (size_t h = 0; h < QUAD; h++) {
                const int16x8_t half = acc[h][i / 2];

                dots[i][h] =
                    add_scaled(dots[i][h], i % 2 ? vget_high_s16(half) : vget_low_s16(half), q, h,
                               scale, is_exact);
            }
        }
    }
    for (size_t i = 0; i < PARTS; i++) {
        float32x4_t y[QUAD];

        for (size_t h = 0; h < QUAD; h++) { /* a NaN is not below 0 and stays */
            const uint32x4_t below = vcltq_f32(dots[i][h], vdupq_n_f32(0.0f));

            y[h] = vmulq_n_f32(vbslq_f32(below, vdupq_n_f32(0.0f), dots[i][h]), head->weights[h]);
        }
        vst1q_f32(out + 4 * i, vaddq_f32(vaddq_f32(y[0], y[1]), vaddq_f32(y[2], y[3])));
    }
}

void kvi_index_neon(kvi_index_kernels *k)
{
    k->n_keys = KEYS;
    k->rate = 30;
    k->query_bytes = query_bytes;
    k->tile_bytes = tile_bytes;
    k->prepare = prepare;
    k->unpack = unpack;
    k->score = score;
}
