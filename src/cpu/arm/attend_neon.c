/* Attention over window and selected entries for NEON. */
#include "cpu/v16.h"

typedef float32x4_t reg;
#define REG_LANES       4
#define reg_zero()      vdupq_n_f32(0.0f)
#define reg_load        vld1q_f32
#define reg_store       vst1q_f32
#define reg_add         vaddq_f32
#define reg_fma(a, b, c) vfmaq_f32(c, a, b)
#define reg_set         vld1q_dup_f32

/* Lane j of a[i] to lane i of a[j]. */
static inline void reg_transpose(reg a[4])
{
    const float32x4x2_t low = vtrnq_f32(a[0], a[1]);
    const float32x4x2_t high = vtrnq_f32(a[2], a[3]);

    a[0] = vcombine_f32(vget_low_f32(low.val[0]), vget_low_f32(high.val[0]));
    a[1] = vcombine_f32(vget_low_f32(low.val[1]), vget_low_f32(high.val[1]));
    a[2] = vcombine_f32(vget_high_f32(low.val[0]), vget_high_f32(high.val[0]));
    a[3] = vcombine_f32(vget_high_f32(low.val[1]), vget_high_f32(high.val[1]));
}

#define DOT_KEYS 6 /* x 4 registers of heads: 24 sums, 4 queries, 1 key */
#define DOT_REGS 4
#define DOT_FEW  2
#define REST_KEYS 3 /* x 6 heads */
#include "cpu/attend_v16.h"

void kvi_attend_neon(kvi_attend_kernels *k)
{
    k->min_work = 500000;
    k->score_keys = DOT_KEYS;
    k->arrange = attend_arrange;
    k->score = attend_score;
    k->add_keys = attend_add_keys;
    k->finish = attend_finish;
}
