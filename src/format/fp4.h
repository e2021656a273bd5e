/* FP4 rows: main entries (Q-MAIN) and index keys and queries (Q-IDX).
 *
 * Byte b of the values holds channel 2b in the low nibble and 2b + 1 in the high one. Inputs are
 * bf16 values held in float. A group that holds NaN or infinity is poisoned: its scale is the
 * NaN code and its values are 0; the functions then return 1. */
#ifndef KVI_FP4_H
#define KVI_FP4_H

#include <stddef.h>
#include <stdint.h>

#define KVI_MAIN_GROUP 16u  /* channels with one scale */
#define KVI_INDEX_GROUP 32u

/* Q-MAIN: groups of 16, scale E4M3 of max(amax, 6 * 2^-9) / 6, element E2M1 of x / scale (IEEE
 * division), clamped. values u8 [width / 2], scales u8 [width / 16]. width: a multiple of 16. */
int  kvi_quant_main(const float *x, size_t width, uint8_t *values, uint8_t *scales);
void kvi_dequant_main(const uint8_t *values, const uint8_t *scales, size_t width, float *x);

/* Q-IDX: groups of 32, scale E8M0 = 2^ceil(log2(max(amax, 6 * 2^-126) * fp32(1/6))).
 * values u8 [width / 2], scales u8 [width / 32]. width: a multiple of 32. */
int  kvi_quant_index(const float *x, size_t width, uint8_t *values, uint8_t *scales);
void kvi_dequant_index(const uint8_t *values, const uint8_t *scales, size_t width, float *x);

/* FP4 weight row (groups of 32, E8M0 scales): the same bytes as an index row. */

/* Twice the values of packed E2M1 codes, exactly: 0 1 2 3 4 6 8 12 and negatives. out i8
 * [width]. For integer dot products. */
void kvi_unpack_e2m1_x2(const uint8_t *values, size_t width, int8_t *out);

#endif
