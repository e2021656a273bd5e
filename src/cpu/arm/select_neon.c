/* Selection, NEON.
 *
 * Collecting looks at 16 scores with four compares. Where one is taken, the lanes of each vector
 * are moved together by a byte permutation that a table has for every mask, and stored whole, one
 * vector behind the other. Not measured: there was no such machine, only an emulator. */
#include "cpu/select_rest.h"

#include "base/prefetch.h"

#include <arm_neon.h>
#include <math.h>

/* The bytes of a lane. */
#define LANE(i) (0x03020100u + 0x04040404u * (i))
static const uint32_t moves[16][4] = {
    {0},
    {LANE(0)},
    {LANE(1)},
    {LANE(0), LANE(1)},
    {LANE(2)},
    {LANE(0), LANE(2)},
    {LANE(1), LANE(2)},
    {LANE(0), LANE(1), LANE(2)},
    {LANE(3)},
    {LANE(0), LANE(3)},
    {LANE(1), LANE(3)},
    {LANE(0), LANE(1), LANE(3)},
    {LANE(2), LANE(3)},
    {LANE(0), LANE(2), LANE(3)},
    {LANE(1), LANE(2), LANE(3)},
    {LANE(0), LANE(1), LANE(2), LANE(3)},
};
static const uint8_t n_lanes[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};

static inline float32x4_t more(float32x4_t a, float32x4_t b) /* NaN in a gives b */
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

typedef struct neighbours { /* of a threshold, lane by lane */
    uint32x4_t  sum;
    float32x4_t above;
    float32x4_t below;
} neighbours;

static inline void add_neighbours(neighbours *b, float32x4_t x, float32x4_t bound)
{
    const uint32x4_t m = vcgeq_f32(x, bound);

    b->sum = vsubq_u32(b->sum, m);
    b->above = vminq_f32(vbslq_f32(m, x, vdupq_n_f32(INFINITY)), b->above);
    b->below = more(vbslq_f32(m, vdupq_n_f32(-INFINITY), x), b->below);
}

/* Two at a time, which do not wait for one another. */
static kvi_select_split split(const float *scores, size_t n, float least)
{
    const float32x4_t bound = vdupq_n_f32(least);
    neighbours        b = {vdupq_n_u32(0), vdupq_n_f32(INFINITY), vdupq_n_f32(-INFINITY)};
    neighbours        c = b;
    kvi_select_split  s;
    size_t            i = 0;

    for (; i + 8 <= n; i += 8) {
        add_neighbours(&b, vld1q_f32(scores + i), bound);
        add_neighbours(&c, vld1q_f32(scores + i + 4), bound);
    }
    s.n = vaddvq_u32(vaddq_u32(b.sum, c.sum));
    s.above = vminvq_f32(vminq_f32(b.above, c.above));
    s.below = vmaxvq_f32(vmaxq_f32(b.below, c.below));
    kvi_split_rest(scores + i, n - i, least, &s);
    return s;
}

/* Stores the lanes of m; n elements are there before. Writes 4. Returns n after. */
static inline size_t put(const kvi_select_list *list, size_t n, uint32x4_t m, float32x4_t x,
                         int32x4_t at)
{
    static const uint32_t bits[4] = {1, 2, 4, 8};
    const uint32_t        mask = vaddvq_u32(vandq_u32(m, vld1q_u32(bits)));
    const uint8x16_t      move = vreinterpretq_u8_u32(vld1q_u32(moves[mask]));

    vst1q_f32(list->scores + n,
              vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(x), move)));
    vst1q_s32(list->at + n, vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(at), move)));
    return n + n_lanes[mask];
}

static size_t collect(const float *scores, size_t n, int32_t first, float least,
                      kvi_select_list *list)
{
    static const int32_t  lanes[4] = {0, 1, 2, 3};
    const float32x4_t     bound = vdupq_n_f32(least);
    const int32x4_t       lane = vld1q_s32(lanes);
    const kvi_select_list out = *list;
    size_t                n_out = list->n;
    size_t                i = 0;

    for (; i + 16 <= n && n_out < out.cap; i += 16) {
        float32x4_t x[4];
        uint32x4_t  m[4];

        kvi_prefetch(scores + i + KVI_SELECT_AHEAD);
        for (int j = 0; j < 4; j++) {
            x[j] = vld1q_f32(scores + i + 4 * (size_t)j);
            m[j] = vcgeq_f32(x[j], bound);
        }
        if (vmaxvq_u32(vorrq_u32(vorrq_u32(m[0], m[1]), vorrq_u32(m[2], m[3]))) == 0)
            continue;
        for (int j = 0; j < 4; j++)
            n_out = put(&out, n_out, m[j], x[j],
                        vaddq_s32(lane, vdupq_n_s32(first + (int32_t)i + 4 * j)));
    }
    list->n = n_out;
    return kvi_collect_rest(scores, i, n, first, least, list);
}

/* A whole vector is stored at or in front of where it was read. */
static void keep(kvi_select_list *list, size_t begin, size_t end, float least)
{
    const float32x4_t bound = vdupq_n_f32(least);
    size_t            n = list->n;
    size_t            i = begin;

    for (; i + 4 <= end; i += 4) {
        const float32x4_t x = vld1q_f32(list->scores + i);

        n = put(list, n, vcgeq_f32(x, bound), x, vld1q_s32(list->at + i));
    }
    list->n = n;
    kvi_keep_rest(list, i, end, least);
}

/* The four maxima of lanes of a block of eight. */
static inline float32x4_t maxima_2(const float *p)
{
    return more(vld1q_f32(p), more(vld1q_f32(p + 4), vdupq_n_f32(-INFINITY)));
}

static void maxima_of(const float *scores, size_t n, size_t block_entries, float *maxima)
{
    size_t i = 0;

    for (; block_entries == 8 && i + 32 <= n; i += 32, maxima += 4) { /* four blocks */
        const float32x4_t a = vpmaxq_f32(maxima_2(scores + i), maxima_2(scores + i + 8));
        const float32x4_t b = vpmaxq_f32(maxima_2(scores + i + 16), maxima_2(scores + i + 24));

        kvi_prefetch(scores + i + KVI_SELECT_AHEAD);
        kvi_prefetch(scores + i + KVI_SELECT_AHEAD + 16);
        vst1q_f32(maxima, vpmaxq_f32(a, b));
    }
    kvi_ref_maxima(scores + i, n - i, block_entries, maxima);
}

void kvi_select_neon(kvi_select_kernels *k)
{
    k->collect = collect;
    k->keep = keep;
    k->split = split;
    k->maxima = maxima_of;
}
