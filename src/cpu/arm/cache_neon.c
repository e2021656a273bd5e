/* Cache bytes from floats and back, NEON. The kernels: cpu/cache_v16.h; here is what shuffles.
 *
 * Encoding E2M1: the code of a channel is counted, one compare and one subtraction for each of the
 * seven limits: 18 operations for four channels.
 * Decoding E2M1: a table gives the upper byte of the value in fp16 (the lower one is 0), sixteen
 * channels at once; conversion and scale: 2.5 operations for four channels. */
#include "cpu/v16.h"

static inline v16 cache_amax(const float *x, size_t n_groups, size_t group)
{
    const uint32x4_t magnitude = vdupq_n_u32(0x7fffffff);
    uint32_t         amax[16];

    for (size_t g = 0; g < 16; g++) {
        const float *p = x + (g < n_groups ? g * group : 0);
        uint32x4_t   m = vdupq_n_u32(0);

        for (size_t c = 0; c < group; c += 4)
            m = vmaxq_u32(m, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(p + c)), magnitude));
        amax[g] = vmaxvq_u32(m);
    }
    return v16_of_bits(v16i_load(amax));
}

/* Sign at bit 3, then the count of limits that lie below. */
static inline uint32x4_t count(const float *x, const int32_t *t)
{
    const uint32x4_t u = vreinterpretq_u32_f32(vld1q_f32(x));
    const int32x4_t  a = vreinterpretq_s32_u32(vandq_u32(u, vdupq_n_u32(0x7fffffff)));
    uint32x4_t       n = vandq_u32(vshrq_n_u32(u, 28), vdupq_n_u32(8));

    for (int i = 0; i < 7; i++)
        n = vsubq_u32(n, vcgtq_s32(a, vdupq_n_s32(t[i])));
    return n;
}

static inline uint16x8_t low_halves(uint32x4_t a, uint32x4_t b)
{
    return vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
}

static inline uint8x16_t low_bytes(uint16x8_t a, uint16x8_t b)
{
    return vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
}

/* Two codes in neighbouring bytes of a word: the second moves down to the upper nibble. */
static inline void cache_nibbles(const float *x, const int32_t *t, uint8_t *out)
{
    const uint16x8_t w = vreinterpretq_u16_u8(
        low_bytes(low_halves(count(x, t), count(x + 4, t)),
                  low_halves(count(x + 8, t), count(x + 12, t))));

    vst1_u8(out, vmovn_u16(vorrq_u16(w, vshrq_n_u16(w, 4))));
}

static inline uint16x8_t words_of(v16i a, int half)
{
    return low_halves(vreinterpretq_u32_s32(a.v[2 * half]),
                      vreinterpretq_u32_s32(a.v[2 * half + 1]));
}

static inline void cache_put_bytes(void *p, v16i a)
{
    vst1q_u8(p, low_bytes(words_of(a, 0), words_of(a, 1)));
}

static inline void cache_put_words(void *p, v16i a)
{
    vst1q_u8(p, vreinterpretq_u8_u16(words_of(a, 0)));
    vst1q_u8((uint8_t *)p + 16, vreinterpretq_u8_u16(words_of(a, 1)));
}

static inline void cache_put_f16(void *p, v16 x)
{
    for (int i = 0; i < 4; i++)
        vst1_u8((uint8_t *)p + 8 * i, vreinterpret_u8_f16(vcvt_f16_f32(x.v[i])));
}

static inline v16 of_f16(uint16x8_t low, uint16x8_t high)
{
    const float16x8_t a = vreinterpretq_f16_u16(low);
    const float16x8_t b = vreinterpretq_f16_u16(high);

    return (v16){{vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a),
                  vcvt_f32_f16(vget_low_f16(b)), vcvt_high_f32_f16(b)}};
}

/* An E4M3 code moved to the place of exponent and mantissa of an fp16, whose bias is 15 instead of
 * 7, is the value / 256, subnormals included; the sign is already in bit 15 of the word. */
static inline uint16x8_t place_e4m3(int8x8_t x)
{
    const uint16x8_t w = vreinterpretq_u16_s16(vmovl_s8(x));

    return vorrq_u16(vandq_u16(vshlq_n_u16(w, 7), vdupq_n_u16(0x3f80)),
                     vandq_u16(w, vdupq_n_u16(0x8000)));
}

static inline v16 cache_e4m3_256(const uint8_t *p)
{
    const int8x16_t x = vreinterpretq_s8_u8(vld1q_u8(p));

    return of_f16(place_e4m3(vget_low_s8(x)), place_e4m3(vget_high_s8(x)));
}

static inline int cache_any_e4m3_nan(const uint8_t *p, size_t n)
{
    uint8x16_t top = vdupq_n_u8(0);

    for (size_t i = 0; i < n; i += 16)
        top = vmaxq_u8(top, vandq_u8(vld1q_u8(p + i), vdupq_n_u8(0x7f)));
    return vmaxvq_u8(top) == 0x7f;
}

static inline int cache_any(v16m m)
{
    return vmaxvq_u32(vorrq_u32(vorrq_u32(m.v[0], m.v[1]), vorrq_u32(m.v[2], m.v[3]))) != 0;
}

static inline v16 cache_f16(const uint8_t *p)
{
    const float32x4_t d = vcvt_f32_f16(
        vreinterpret_f16_u16(vdup_n_u16((uint16_t)(p[0] | p[1] << 8))));

    return (v16){{d, d, d, d}};
}

static inline v16 of_int8(int8x16_t x)
{
    const int16x8_t a = vmovl_s8(vget_low_s8(x));
    const int16x8_t b = vmovl_high_s8(x);

    return (v16){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(a))), vcvtq_f32_s32(vmovl_high_s16(a)),
                  vcvtq_f32_s32(vmovl_s16(vget_low_s16(b))), vcvtq_f32_s32(vmovl_high_s16(b))}};
}

static inline void cache_q4(const uint8_t *p, v16 *lo, v16 *hi)
{
    const uint8x16_t b = vld1q_u8(p);
    const int8x16_t  eight = vdupq_n_s8(8);

    *lo = of_int8(vsubq_s8(vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8(15))), eight));
    *hi = of_int8(vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(b, 4)), eight));
}

/* Sixteen nibbles in the order of the channels. */
static inline uint8x16_t nibbles(const uint8_t *p)
{
    const uint8x8_t b = vld1_u8(p);

    return vcombine_u8(vzip1_u8(vand_u8(b, vdup_n_u8(15)), vshr_n_u8(b, 4)),
                       vzip2_u8(vand_u8(b, vdup_n_u8(15)), vshr_n_u8(b, 4)));
}

static inline void cache_fp4_16(const uint8_t *p, float s, float *out)
{
    static const uint8_t half[16] = {0x00, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46,
                                     0x80, 0xb8, 0xbc, 0xbe, 0xc0, 0xc2, 0xc4, 0xc6};
    const uint8x16_t b = vqtbl1q_u8(vld1q_u8(half), nibbles(p));

    v16_store(out, v16_mul(of_f16(vshll_n_u8(vget_low_u8(b), 8), vshll_high_n_u8(b, 8)),
                           v16_set(s)));
}

static inline void cache_twice(const uint8_t *p, int8_t *out)
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

    vst1q_s8(out, vqtbl1q_s8(vld1q_s8(twice), nibbles(p)));
}

#include "cpu/cache_v16.h"

void kvi_cache_neon(kvi_cache_kernels *k)
{
    cache_set(k);
}
