/* FP4 rows. Rules: docs/formats.md "Quantisers". */
#include "format/fp4.h"

#include "format/dtype.h"
#include "format/group_int.h"

#include <string.h>

#define SCALE_NAN_E4M3 0x7fu
#define SCALE_NAN_E8M0 0xffu

int kvi_quant_main(const float *x, size_t width, uint8_t *values, uint8_t *scales)
{
    int poisoned = 0;

    for (size_t g = 0; g < width / KVI_MAIN_GROUP;
         g++, x += KVI_MAIN_GROUP, values += KVI_MAIN_GROUP / 2) {
        const uint32_t bits = kvi_amax_bits(x, KVI_MAIN_GROUP);
        float          amax = kvi_bits_f32(bits);
        float          s;

        if (bits >= KVI_BITS_INFINITY) {
            scales[g] = SCALE_NAN_E4M3;
            memset(values, 0, KVI_MAIN_GROUP / 2);
            poisoned = 1;
            continue;
        }
        if (amax < 6.0f * 0x1p-9f) /* the smallest scale that is not 0 */
            amax = 6.0f * 0x1p-9f;
        scales[g] = kvi_f32_to_e4m3(amax / 6.0f);
        s = kvi_e4m3_to_f32(scales[g]);
        /* A division, not a product with 1/s: s is no power of two, and the product moves quotients
         * off a tie. The encoder saturates, which is the rule's clamp to 6. */
        for (size_t i = 0; i < KVI_MAIN_GROUP; i += 2)
            values[i / 2] =
                (uint8_t)(kvi_f32_to_e2m1(x[i] / s) | kvi_f32_to_e2m1(x[i + 1] / s) << 4);
    }
    return poisoned;
}

void kvi_dequant_main(const uint8_t *values, const uint8_t *scales, size_t width, float *x)
{
    for (size_t i = 0; i < width; i += 2) {
        const float   s = kvi_e4m3_values[scales[i / KVI_MAIN_GROUP]];
        const uint8_t b = values[i / 2];

        x[i] = kvi_e2m1_values[b & 15u] * s;
        x[i + 1] = kvi_e2m1_values[b >> 4] * s;
    }
}

int kvi_quant_index(const float *x, size_t width, uint8_t *values, uint8_t *scales)
{
    const float sixth = 1.0f / 6.0f;
    int         poisoned = 0;

    for (size_t g = 0; g < width / KVI_INDEX_GROUP;
         g++, x += KVI_INDEX_GROUP, values += KVI_INDEX_GROUP / 2) {
        const uint32_t bits = kvi_amax_bits(x, KVI_INDEX_GROUP);
        float          amax = kvi_bits_f32(bits);
        float          inverse;

        if (bits >= KVI_BITS_INFINITY) {
            scales[g] = SCALE_NAN_E8M0;
            memset(values, 0, KVI_INDEX_GROUP / 2);
            poisoned = 1;
            continue;
        }
        if (amax < 6.0f * 0x1p-126f) /* keeps the scale a normal float */
            amax = 6.0f * 0x1p-126f;
        scales[g] = kvi_f32_to_e8m0_up(amax * sixth);
        /* The scale lies in 2^-126..2^126, so its reciprocal is a normal float too and the product
         * equals the quotient. */
        inverse = kvi_e8m0_to_f32((uint8_t)(254u - scales[g]));
        for (size_t i = 0; i < KVI_INDEX_GROUP; i += 2)
            values[i / 2] = (uint8_t)(kvi_f32_to_e2m1(x[i] * inverse) |
                                      kvi_f32_to_e2m1(x[i + 1] * inverse) << 4);
    }
    return poisoned;
}

void kvi_dequant_index(const uint8_t *values, const uint8_t *scales, size_t width, float *x)
{
    for (size_t g = 0; g < width / KVI_INDEX_GROUP;
         g++, x += KVI_INDEX_GROUP, values += KVI_INDEX_GROUP / 2) {
        const float s = kvi_e8m0_to_f32(scales[g]);

        for (size_t i = 0; i < KVI_INDEX_GROUP; i += 2) {
            x[i] = kvi_e2m1_values[values[i / 2] & 15u] * s;
            x[i + 1] = kvi_e2m1_values[values[i / 2] >> 4] * s;
        }
    }
}

void kvi_unpack_e2m1_x2(const uint8_t *values, size_t width, int8_t *out)
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

    for (size_t i = 0; i < width; i += 2) {
        out[i] = twice[values[i / 2] & 15u];
        out[i + 1] = twice[values[i / 2] >> 4];
    }
}
