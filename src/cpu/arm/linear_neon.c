/* Matrix products with NEON: how weights become floats. The kernels: linear_v16.h.
 *
 * FP8: an E4M3 value is a bf16. For exponent bits eee* above 0 its high byte is 60 + eee and its
 * low byte the low nibble, shifted; the sixteen codes below are looked up (TBL gives 0 for an index
 * beyond its table). NaN by a comparison. FP4: both bytes by one TBL each. Interleaved and widened,
 * they are in natural order; one multiplication by the scale for four weights. Tested under
 * emulation only: nothing was measured. */
#include "cpu/linear_kernels.h"
#include "cpu/v16.h"

#define LIN_STEP 32
#define LIN_MIXED 0
#define LIN_PARTS 4
#define LIN_N 5
#define LIN_DIRECT 3
#define LIN_DIRECT_M(n) 2

typedef float32x4_t lin_four;
typedef float32x4_t lin_part;

static inline lin_part lin_part_zero(void) { return vdupq_n_f32(0.0f); }
static inline lin_part lin_part_load(const float *p) { return vld1q_f32(p); }
static inline void     lin_part_store(float *p, lin_part a) { vst1q_f32(p, a); }
static inline lin_part lin_part_fma(lin_part a, lin_part b, lin_part c)
{
    return vfmaq_f32(c, a, b);
}
static inline void lin_store_parts(float *p, size_t step, v16 v)
{
    for (size_t i = 0; i < 4; i++)
        vst1q_f32(p + step * i, v.v[i]);
}

/* Of codes 0 .. 15 (exponent 0 and 1) and of the upper three exponent bits. */
static const uint8_t high_small[16] = {0,  59, 59, 59, 60, 60, 60, 60,
                                       60, 60, 60, 60, 60, 60, 60, 60};
static const uint8_t high_large[16] = {0, 61, 62, 63, 64, 65, 66, 67};
/* Turns code << 4 into the low byte 0 0 80 c0 0 20 40 60 80 90 ... f0. */
static const uint8_t low_fix[16] = {0x00, 0x10, 0xa0, 0xf0, 0x40, 0x70, 0x20, 0x10};
static const uint8_t fp4_high[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                     0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
static const uint8_t fp4_low[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                    0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};

/* Sixteen weights from the low and high bytes of their bf16. */
static inline v16 values_of_bytes(uint8x16_t low, uint8x16_t high, v16 s)
{
    const uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(low, high));
    const uint16x8_t b = vreinterpretq_u16_u8(vzip2q_u8(low, high));
    const v16        w = {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(a), 16)),
                           vreinterpretq_f32_u32(vshll_high_n_u16(a, 16)),
                           vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(b), 16)),
                           vreinterpretq_f32_u32(vshll_high_n_u16(b, 16))}};

    return v16_mul(w, s);
}

static inline v16 fp8_16(const uint8_t *p, v16 s)
{
    const uint8x16_t codes = vld1q_u8(p);
    const uint8x16_t a = vandq_u8(codes, vdupq_n_u8(0x7f));
    const uint8x16_t nan = vceqq_u8(a, vdupq_n_u8(0x7f));
    const uint8x16_t low = veorq_u8(vshlq_n_u8(a, 4), vqtbl1q_u8(vld1q_u8(low_fix), a));
    const uint8x16_t high = vmaxq_u8(vqtbl1q_u8(vld1q_u8(high_large), vshrq_n_u8(a, 4)),
                                     vqtbl1q_u8(vld1q_u8(high_small), a));

    return values_of_bytes(low, vbslq_u8(vdupq_n_u8(0x80), codes, vorrq_u8(high, nan)), s);
}

static inline void lin_fp8_32(const uint8_t *p, v16 s, v16 w[2])
{
    w[0] = fp8_16(p, s);
    w[1] = fp8_16(p + 16, s);
}

static inline void lin_fp4_32(const uint8_t *p, v16 s, v16 w[2])
{
    const uint8x16_t codes = vld1q_u8(p);
    const uint8x16_t even = vandq_u8(codes, vdupq_n_u8(0x0f));
    const uint8x16_t odd = vshrq_n_u8(codes, 4);
    const uint8x16_t n0 = vzip1q_u8(even, odd);
    const uint8x16_t n1 = vzip2q_u8(even, odd);
    const uint8x16_t low = vld1q_u8(fp4_low);
    const uint8x16_t high = vld1q_u8(fp4_high);

    w[0] = values_of_bytes(vqtbl1q_u8(low, n0), vqtbl1q_u8(high, n0), s);
    w[1] = values_of_bytes(vqtbl1q_u8(low, n1), vqtbl1q_u8(high, n1), s);
}

/* (i, i + 8), then (i, i + 4) */
static inline float32x4_t fold_to_four(v16 a)
{
    return vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
}

/* (i, i + 2) of two, side by side */
static inline float32x4_t fold_two(float32x4_t a, float32x4_t b)
{
    return vaddq_f32(vcombine_f32(vget_low_f32(a), vget_low_f32(b)),
                     vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
}

static inline __attribute__((always_inline)) void lin_fold(const v16 *a, size_t n, lin_four *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = vpaddq_f32(fold_two(fold_to_four(a[4 * i]), fold_to_four(a[4 * i + 1])),
                            fold_two(fold_to_four(a[4 * i + 2]), fold_to_four(a[4 * i + 3])));
}

#include "cpu/linear_v16.h"

void kvi_linear_neon(kvi_linear_kernels *k)
{
    lin_set(k, 400000.0);
}
