/* Sixteen floats in four NEON registers. The meaning of every function: cpu/v16.h. */
#ifndef KVI_V16_NEON_H
#define KVI_V16_NEON_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct v16 { float32x4_t v[4]; } v16;
typedef struct v16i { int32x4_t v[4]; } v16i;
typedef struct v16m { uint32x4_t v[4]; } v16m;

#define V16_TILE_M 2
#define V16_TILE_N 3
#define V16_REGS   8

#define V16_EACH(type, expr) ((type){{expr(0), expr(1), expr(2), expr(3)}})
static inline v16 v16_set(float x)
{
    const float32x4_t s = vdupq_n_f32(x);
    return (v16){{s, s, s, s}};
}
static inline v16 v16_zero(void) { return v16_set(0.0f); }
static inline v16 v16_load(const float *p)
{
    return (v16){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
static inline void v16_store(float *p, v16 a)
{
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, a.v[i]);
}
static inline v16 v16_load_n(const float *p, size_t n)
{
    float t[16] = {0};
    memcpy(t, p, n * sizeof *p);
    return v16_load(t);
}
static inline void v16_store_n(float *p, v16 a, size_t n)
{
    float t[16];
    v16_store(t, a);
    memcpy(p, t, n * sizeof *p);
}
#define V16_F2(name, f)                                                                            \
    static inline v16 name(v16 a, v16 b)                                                           \
    {                                                                                              \
        return (v16){{f(a.v[0], b.v[0]), f(a.v[1], b.v[1]), f(a.v[2], b.v[2]), f(a.v[3], b.v[3])}};\
    }
V16_F2(v16_add, vaddq_f32)
V16_F2(v16_sub, vsubq_f32)
V16_F2(v16_mul, vmulq_f32)
V16_F2(v16_div, vdivq_f32)
static inline v16 v16_sqrt(v16 a)
{
    return (v16){{vsqrtq_f32(a.v[0]), vsqrtq_f32(a.v[1]), vsqrtq_f32(a.v[2]), vsqrtq_f32(a.v[3])}};
}
static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){{vfmaq_f32(c.v[0], a.v[0], b.v[0]), vfmaq_f32(c.v[1], a.v[1], b.v[1]),
                  vfmaq_f32(c.v[2], a.v[2], b.v[2]), vfmaq_f32(c.v[3], a.v[3], b.v[3])}};
}
static inline v16 v16_fnma(v16 a, v16 b, v16 c)
{
    return (v16){{vfmsq_f32(c.v[0], a.v[0], b.v[0]), vfmsq_f32(c.v[1], a.v[1], b.v[1]),
                  vfmsq_f32(c.v[2], a.v[2], b.v[2]), vfmsq_f32(c.v[3], a.v[3], b.v[3])}};
}
/* As maxps and minps: NaN in either gives b. */
static inline float32x4_t v16_more4(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
static inline float32x4_t v16_less4(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
V16_F2(v16_more, v16_more4)
V16_F2(v16_less, v16_less4)
static inline v16 v16_round(v16 a)
{
    return (v16){{vrndnq_f32(a.v[0]), vrndnq_f32(a.v[1]), vrndnq_f32(a.v[2]), vrndnq_f32(a.v[3])}};
}
#define V16_CONV(name, from, to, f)                                                                \
    static inline to name(from a)                                                                  \
    {                                                                                              \
        return (to){{f(a.v[0]), f(a.v[1]), f(a.v[2]), f(a.v[3])}};                                 \
    }
V16_CONV(v16_bits, v16, v16i, vreinterpretq_s32_f32)
V16_CONV(v16_of_bits, v16i, v16, vreinterpretq_f32_s32)
V16_CONV(v16_to_int, v16, v16i, vcvtnq_s32_f32)
V16_CONV(v16_of_int, v16i, v16, vcvtq_f32_s32)
static inline v16i v16i_set(int32_t x)
{
    const int32x4_t s = vdupq_n_s32(x);
    return (v16i){{s, s, s, s}};
}
static inline v16i v16i_load(const void *p)
{
    v16i r;
    memcpy(&r, p, sizeof r);
    return r;
}
static inline void v16i_store(void *p, v16i a)
{
    memcpy(p, &a, sizeof a);
}
#define V16_I2(name, f)                                                                            \
    static inline v16i name(v16i a, v16i b)                                                        \
    {                                                                                              \
        return (v16i){                                                                             \
            {f(a.v[0], b.v[0]), f(a.v[1], b.v[1]), f(a.v[2], b.v[2]), f(a.v[3], b.v[3])}};         \
    }
V16_I2(v16i_add, vaddq_s32)
V16_I2(v16i_sub, vsubq_s32)
V16_I2(v16i_and, vandq_s32)
V16_I2(v16i_or, vorrq_s32)
V16_I2(v16i_xor, veorq_s32)
#define V16I_SHIFT(f, x, n)                                                                        \
    ((v16i){{f((x).v[0], n), f((x).v[1], n), f((x).v[2], n), f((x).v[3], n)}})
#define V16I_SHR(x, n) vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), n))
#define v16i_shl(x, n) V16I_SHIFT(vshlq_n_s32, x, n)
#define v16i_shr(x, n) V16I_SHIFT(V16I_SHR, x, n)
#define v16i_sar(x, n) V16I_SHIFT(vshrq_n_s32, x, n)
#define V16_CMP(name, f)                                                                           \
    static inline v16m name(v16 a, v16 b)                                                          \
    {                                                                                              \
        return (v16m){                                                                             \
            {f(a.v[0], b.v[0]), f(a.v[1], b.v[1]), f(a.v[2], b.v[2]), f(a.v[3], b.v[3])}};         \
    }
V16_CMP(v16_lt, vcltq_f32)
V16_CMP(v16_gt, vcgtq_f32)
V16_CMP(v16_eq, vceqq_f32)
static inline v16m v16_isnan(v16 a)
{
    v16m r = v16_eq(a, a);

    for (int i = 0; i < 4; i++)
        r.v[i] = vmvnq_u32(r.v[i]);
    return r;
}
static inline v16 v16_choose(v16m m, v16 yes, v16 no)
{
    return (v16){{vbslq_f32(m.v[0], yes.v[0], no.v[0]), vbslq_f32(m.v[1], yes.v[1], no.v[1]),
                  vbslq_f32(m.v[2], yes.v[2], no.v[2]), vbslq_f32(m.v[3], yes.v[3], no.v[3])}};
}
static inline v16 v16_load_bf16(const void *p)
{
    const uint16x8_t lo = vreinterpretq_u16_u8(vld1q_u8(p));
    const uint16x8_t hi = vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)p + 16));
    return (v16){{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(lo), 16)),
                  vreinterpretq_f32_u32(vshll_high_n_u16(lo, 16)),
                  vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(hi), 16)),
                  vreinterpretq_f32_u32(vshll_high_n_u16(hi, 16))}};
}
static inline v16 v16_load_f16(const void *p)
{
    const float16x8_t lo = vreinterpretq_f16_u8(vld1q_u8(p));
    const float16x8_t hi = vreinterpretq_f16_u8(vld1q_u8((const uint8_t *)p + 16));
    return (v16){{vcvt_f32_f16(vget_low_f16(lo)), vcvt_high_f32_f16(lo),
                  vcvt_f32_f16(vget_low_f16(hi)), vcvt_high_f32_f16(hi)}};
}
static inline v16 v16_load_u8(const void *p)
{
    const uint8x16_t x = vld1q_u8(p);
    const uint16x8_t lo = vmovl_u8(vget_low_u8(x));
    const uint16x8_t hi = vmovl_high_u8(x);
    return (v16){{vcvtq_f32_u32(vmovl_u16(vget_low_u16(lo))), vcvtq_f32_u32(vmovl_high_u16(lo)),
                  vcvtq_f32_u32(vmovl_u16(vget_low_u16(hi))), vcvtq_f32_u32(vmovl_high_u16(hi))}};
}
static inline v16 v16_load_i8(const void *p)
{
    const int8x16_t x = vld1q_s8(p);
    const int16x8_t lo = vmovl_s8(vget_low_s8(x));
    const int16x8_t hi = vmovl_high_s8(x);
    return (v16){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_high_s16(lo)),
                  vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_high_s16(hi))}};
}

static inline float v16_fold(v16 a)
{
    const float32x4_t c = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    const float32x2_t d = vadd_f32(vget_low_f32(c), vget_high_f32(c));
    return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
}
static inline v16 v16_fold16(const v16 a[16])
{
    v16 r;

    for (int i = 0; i < 4; i++) {
        float32x4_t c[4], low, high;

        for (int j = 0; j < 4; j++) {
            const v16 *x = &a[4 * i + j];
            c[j] = vaddq_f32(vaddq_f32(x->v[0], x->v[2]), vaddq_f32(x->v[1], x->v[3]));
        }
        /* (0, 2), (1, 3) of each vector, two vectors in one register */
        low = vaddq_f32(vcombine_f32(vget_low_f32(c[0]), vget_low_f32(c[1])),
                        vcombine_f32(vget_high_f32(c[0]), vget_high_f32(c[1])));
        high = vaddq_f32(vcombine_f32(vget_low_f32(c[2]), vget_low_f32(c[3])),
                         vcombine_f32(vget_high_f32(c[2]), vget_high_f32(c[3])));
        r.v[i] = vpaddq_f32(low, high);
    }
    return r;
}

#endif
