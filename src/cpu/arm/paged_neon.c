/* Paged attention on NEON. Sixteen floats are four of 32 registers, so rows are decoded into a
 * buffer and sums are made in blocks of 2 x 2. Run under qemu only: right, not measured. */
#include "cpu/v16.h"

#include "format/dtype.h"

#include <string.h>

#define PAGED_PREFETCH(p) __builtin_prefetch(p)

static inline float paged_largest(v16 a)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}

/* fp16 in every lane */
static inline v16 paged_half(const uint8_t *p)
{
    uint16_t    h;
    float32x4_t x;

    memcpy(&h, p, sizeof h);
    x = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h)));
    return (v16){{x, x, x, x}};
}

/* The upper halves of sixteen floats, low and high bytes apart. */
static inline v16 of_upper_bytes(uint8x16_t low, uint8x16_t high)
{
    const uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(low, high));
    const uint16x8_t b = vreinterpretq_u16_u8(vzip2q_u8(low, high));

    return (v16){{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(a), 16)),
                  vreinterpretq_f32_u32(vshll_high_n_u16(a, 16)),
                  vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(b), 16)),
                  vreinterpretq_f32_u32(vshll_high_n_u16(b, 16))}};
}

/* Sixteen E2M1 codes: the two bytes of a float that are not 0 come from tables. */
static inline v16 paged_e2m1(const uint8_t *p)
{
    static const uint8_t low[16] = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0,
                                    0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
    static const uint8_t high[16] = {0,    0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                     0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
    const uint8x8_t  bytes = vld1_u8(p);
    const uint8x8_t  even = vand_u8(bytes, vdup_n_u8(15));
    const uint8x8_t  odd = vshr_n_u8(bytes, 4);
    const uint8x16_t codes = vcombine_u8(vzip1_u8(even, odd), vzip2_u8(even, odd));

    return of_upper_bytes(vqtbl1q_u8(vld1q_u8(low), codes), vqtbl1q_u8(vld1q_u8(high), codes));
}

static inline v16 of_s8(int8x16_t x)
{
    const int16x8_t a = vmovl_s8(vget_low_s8(x));
    const int16x8_t b = vmovl_high_s8(x);

    return (v16){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(a))), vcvtq_f32_s32(vmovl_high_s16(a)),
                  vcvtq_f32_s32(vmovl_s16(vget_low_s16(b))), vcvtq_f32_s32(vmovl_high_s16(b))}};
}

/* 32 codes - 8 of Q4_0: channel i low, channel i + 16 high in byte i */
static inline void paged_q4(const uint8_t *p, v16 out[2])
{
    const uint8x16_t bytes = vld1q_u8(p);
    const int8x16_t  eight = vdupq_n_s8(8);

    out[0] = of_s8(vsubq_s8(vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15))), eight));
    out[1] = of_s8(vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4)), eight));
}

/* Eight E4M3 codes / 256 as fp16: the seven bits of magnitude are those of an fp16 with another
 * bias, subnormals included. 0x7f lies one step below bit 14: adding a step carries into that bit,
 * which makes it a NaN. */
static inline float16x8_t e4m3_8(int8x8_t codes)
{
    const uint16x8_t wide = vreinterpretq_u16_s16(vmovl_s8(codes));
    const uint16x8_t half = vandq_u16(vshlq_n_u16(wide, 7), vdupq_n_u16(0xbf80));
    const uint16x8_t carry = vaddq_u16(half, vdupq_n_u16(0x80));

    return vreinterpretq_f16_u16(vorrq_u16(half, vandq_u16(carry, vdupq_n_u16(0x4000))));
}

static inline void paged_e4m3(const uint8_t *p, v16 out[2])
{
    for (int i = 0; i < 2; i++) {
        const int8x16_t   codes = vreinterpretq_s8_u8(vld1q_u8(p + 16 * i));
        const float16x8_t a = e4m3_8(vget_low_s8(codes));
        const float16x8_t b = e4m3_8(vget_high_s8(codes));

        out[i] = (v16){{vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a),
                        vcvt_f32_f16(vget_low_f16(b)), vcvt_high_f32_f16(b)}};
    }
}

#include "cpu/paged_v16.h"

void kvi_paged_neon(kvi_paged_kernels *k)
{
    paged_v16_init(k);
}
