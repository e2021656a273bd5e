/* One row of entries in any format that operators can compute with (kvi_row_can_run): FP4_E4M3_G16
 * (the model's), F32, F16, BF16, FP4_AS_F32, FP8_E8M0_G32, FP4_E8M0_G32, Q8_0, Q4_0, INT3_F16_G32.
 * Bytes of each: docs/formats.md "Entries". */
#ifndef KVI_ROW_H
#define KVI_ROW_H

#include <stddef.h>
#include <stdint.h>

int kvi_row_can_run(uint32_t format);

/* f32 [width] -> kvi_format_row_bytes(format, width) bytes. Formats with a scale per group round to
 * bf16 first, as the model does in front of its quantiser; F32 and F16 do not. Returns 1 if NaN or
 * infinity was met: such a group (or channel, where there are no groups) reads back as NaN. */
int  kvi_row_encode(uint32_t format, const float *x, size_t width, uint8_t *row);
void kvi_row_decode(uint32_t format, const uint8_t *row, size_t width, float *x);

#endif
