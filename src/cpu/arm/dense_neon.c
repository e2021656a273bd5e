/* Norm, rotation, residual stream, router for NEON: cpu/dense_v16.h. */
#include "cpu/v16.h"

#include "cpu/dense_kernels.h"

static inline v16 v16_swap_pairs(v16 a)
{
    return (v16){{vrev64q_f32(a.v[0]), vrev64q_f32(a.v[1]), vrev64q_f32(a.v[2]),
                  vrev64q_f32(a.v[3])}};
}
#define v16_quad(a, i)                                                                             \
    ((v16){{vdupq_laneq_f32((a).v[0], i), vdupq_laneq_f32((a).v[1], i),                            \
            vdupq_laneq_f32((a).v[2], i), vdupq_laneq_f32((a).v[3], i)}})
static inline v16 v16_group(v16 a, int i)
{
    return (v16){{a.v[i], a.v[i], a.v[i], a.v[i]}};
}
static inline float v16_most(v16 a)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}
static inline uint32_t v16_mask_bits(v16m m)
{
    static const uint32_t bit[4] = {1, 2, 4, 8};
    const uint32x4_t      b = vld1q_u32(bit);

    return vaddvq_u32(vandq_u32(m.v[0], b)) | vaddvq_u32(vandq_u32(m.v[1], b)) << 4 |
           vaddvq_u32(vandq_u32(m.v[2], b)) << 8 | vaddvq_u32(vandq_u32(m.v[3], b)) << 12;
}

typedef float64x2_t vd;
#define VD_LANES 2
static inline vd vd_load(const float *p) { return vcvt_f64_f32(vld1_f32(p)); }
static inline void vd_store_twice(float *p, vd a)
{
    const float32x2_t f = vcvt_f32_f64(a);

    vst1q_f32(p, vcombine_f32(vdup_lane_f32(f, 0), vdup_lane_f32(f, 1)));
}
static inline vd vd_trunc(vd a) { return vrndq_f64(a); }

#include "cpu/dense_v16.h"

void kvi_dense_neon(kvi_dense_kernels *k)
{
    fill_table(k);
}
