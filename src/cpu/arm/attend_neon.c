/* Attention over window and selected entries for NEON. */
#include "cpu/v16.h"

typedef float32x4_t reg;
#define REG_LANES       4
#define reg_zero()      vdupq_n_f32(0.0f)
#define reg_load        vld1q_f32
#define reg_store       vst1q_f32
#define reg_fma(a, b, c) vfmaq_f32(c, a, b)

#define DOT_KEYS 4 /* x 6 heads: 24 sums, 4 keys, 1 query */
#include "cpu/attend_v16.h"

void kvi_attend_neon(kvi_attend_kernels *k)
{
    k->min_work = 500000;
    k->add_keys = attend_add_keys;
    k->finish = attend_finish;
}
