/* Element types: bf16, fp16, E4M3, E5M2, E8M0, E2M1. Conversions round to nearest, ties to even,
 * and saturate where the format has no infinity. NaN becomes the format's NaN where it has one. */
#ifndef KVI_DTYPE_H
#define KVI_DTYPE_H

#include <stdint.h>

extern const float kvi_e4m3_values[256]; /* OCP "fn": no infinity, NaN = 0x7f and 0xff */
extern const float kvi_e2m1_values[16];  /* 0 .5 1 1.5 2 3 4 6 and their negatives; 8 = -0 */

float    kvi_e4m3_to_f32(uint8_t code);
uint8_t  kvi_f32_to_e4m3(float x);       /* |x| > 448 and infinity = 448; NaN = 0x7f with the
                                          * sign */
float    kvi_e5m2_to_f32(uint8_t code);
uint8_t  kvi_f32_to_e5m2(float x);       /* saturates at 57344; infinity too; NaN = 0x7f with the
                                          * sign */
float    kvi_e8m0_to_f32(uint8_t code);  /* 2^(code - 127), code 0 is the subnormal 2^-127; 255 =
                                          * NaN */
uint8_t  kvi_f32_to_e8m0_up(float x);    /* exact ceil(log2 x) + 127 from the bits, clamped to
                                          * 0..254; x > 0 finite, else 255 */
float    kvi_e2m1_to_f32(uint8_t code);  /* low 4 bits */
uint8_t  kvi_f32_to_e2m1(float x);       /* saturates at 6; sign kept, also of zero; NaN = 0
                                          * (E2M1 has none: poison the scale) */
float    kvi_bf16_to_f32(uint16_t bits);
uint16_t kvi_f32_to_bf16(float x);
float    kvi_round_bf16(float x);        /* nearest bf16 value */
float    kvi_fp16_to_f32(uint16_t bits);
uint16_t kvi_f32_to_fp16(float x);

#endif
