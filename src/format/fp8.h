/* FP8 rows with one E8M0 scale per 32 channels (Q-SWA): window rows, and activations in front of
 * FP8 / FP4 matrices in the reference mode. */
#ifndef KVI_FP8_H
#define KVI_FP8_H

#include <stddef.h>
#include <stdint.h>

#define KVI_WINDOW_GROUP 32u /* channels with one scale */

/* scale 2^ceil(log2(max(amax, 1e-4) * fp32(1/448))), element E4M3 of x / scale, clamped to 448.
 * values u8 [width], scales u8 [width / 32]; a row of the cache is values, then scales. width: a
 * multiple of 32. A group with NaN or infinity is poisoned (scale 255, values 0) and 1 is
 * returned. */
int  kvi_quant_window(const float *x, size_t width, uint8_t *values, uint8_t *scales);
void kvi_dequant_window(const uint8_t *values, const uint8_t *scales, size_t width, float *x);

#endif
