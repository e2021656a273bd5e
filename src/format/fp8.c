/* FP8 rows. Rules: docs/formats.md "Quantisers". */
#include "format/fp8.h"

#include "format/dtype.h"
#include "format/group_int.h"

#include <string.h>

int kvi_quant_window(const float *x, size_t width, uint8_t *values, uint8_t *scales)
{
    const float inverse_max = 1.0f / 448.0f;
    int         poisoned = 0;

    for (size_t g = 0; g < width / KVI_WINDOW_GROUP;
         g++, x += KVI_WINDOW_GROUP, values += KVI_WINDOW_GROUP) {
        const uint32_t bits = kvi_amax_bits(x, KVI_WINDOW_GROUP);
        float          amax;
        float          inverse;

        if (bits >= KVI_BITS_INFINITY) {
            scales[g] = 255;
            memset(values, 0, KVI_WINDOW_GROUP);
            poisoned = 1;
            continue;
        }
        amax = kvi_bits_f32(bits);
        if (amax < 1e-4f)
            amax = 1e-4f;
        scales[g] = kvi_f32_to_e8m0_up(amax * inverse_max);
        /* The scale lies in 2^-22..2^120: its reciprocal is exact and the product equals the
         * quotient, unless the product is subnormal, far below half of the smallest code. */
        inverse = kvi_e8m0_to_f32((uint8_t)(254u - scales[g]));
        for (size_t i = 0; i < KVI_WINDOW_GROUP; i++)
            values[i] = kvi_f32_to_e4m3(x[i] * inverse);
    }
    return poisoned;
}

void kvi_dequant_window(const uint8_t *values, const uint8_t *scales, size_t width, float *x)
{
    for (size_t g = 0; g < width / KVI_WINDOW_GROUP;
         g++, x += KVI_WINDOW_GROUP, values += KVI_WINDOW_GROUP) {
        const float s = kvi_e8m0_to_f32(scales[g]);

        for (size_t i = 0; i < KVI_WINDOW_GROUP; i++)
            x[i] = kvi_e4m3_values[values[i]] * s;
    }
}
