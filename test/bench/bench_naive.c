#include "bench_naive.h"

#include <math.h>
#include <string.h>

#include "format/dtype.h"

static float round_to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    u = (u + 0x7FFFu + (u >> 16 & 1)) & 0xFFFF0000u; /* inputs are finite */
    memcpy(&x, &u, sizeof x);
    return x;
}

/* To the nearest of 0 .5 1 1.5 2 3 4 6, ties to the even code. Counting has no branches for random data to mispredict. */
static uint8_t to_e2m1(float x)
{
    const float a = fabsf(x);
    const int   code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);

    return (uint8_t)(code | (signbit(x) ? 8 : 0));
}

static float largest(const float *x, size_t n)
{
    float m = 0;

    for (size_t i = 0; i < n; i++)
        m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    return m;
}

static void pack_group(const float *x, size_t n, float scale, uint8_t *out)
{
    for (size_t i = 0; i < n; i += 2)
        out[i / 2] = (uint8_t)(to_e2m1(x[i] / scale) | to_e2m1(x[i + 1] / scale) << 4);
}

void naive_quant_main(const float *x, size_t width, uint8_t *out)
{
    float g[16];

    for (size_t c = 0; c < width; c += 16) {
        float   amax;
        uint8_t code;

        for (size_t i = 0; i < 16; i++)
            g[i] = round_to_bf16(x[c + i]);
        amax = largest(g, 16);
        code = kvi_f32_to_e4m3((amax > 6 * 0x1p-9f ? amax : 6 * 0x1p-9f) / 6);
        pack_group(g, 16, kvi_e4m3_values[code], out + c / 2);
        out[width / 2 + c / 16] = code;
    }
}

void naive_quant_index(const float *x, size_t width, uint8_t *values, uint8_t *scales)
{
    float g[32];

    for (size_t c = 0; c < width; c += 32) {
        float   amax;
        uint8_t code;

        for (size_t i = 0; i < 32; i++)
            g[i] = round_to_bf16(x[c + i]);
        amax = largest(g, 32);
        code = kvi_f32_to_e8m0_up((amax > 6 * 0x1p-126f ? amax : 6 * 0x1p-126f) * (1.0f / 6.0f));
        pack_group(g, 32, kvi_e8m0_to_f32(code), values + c / 2);
        scales[c / 32] = code;
    }
}

void naive_dequant(const uint8_t *values, const uint8_t *scales, size_t width, float *out)
{
    for (size_t g = 0; g < width; g += 32) {
        const float scale = kvi_e8m0_to_f32(scales[g / 32]);

        for (size_t c = g; c < g + 32; c += 2) {
            out[c] = kvi_e2m1_values[values[c / 2] & 15] * scale;
            out[c + 1] = kvi_e2m1_values[values[c / 2] >> 4] * scale;
        }
    }
}

static float score(const int8_t *codes, const float *q_scales, const float *weights, size_t n_heads, size_t width, const int8_t *key,
                   const float *k_scales)
{
    float  heads[64] = {0};
    size_t n_tree = 1;

    for (size_t h = 0; h < n_heads; h++) {
        float dot = 0;

        for (size_t g = 0; g < width / 32; g++) {
            int32_t sum = 0;

            for (size_t c = 0; c < 32; c++)
                sum += codes[h * width + 32 * g + c] * key[32 * g + c];
            dot += (float)sum * q_scales[h * (width / 32) + g] * k_scales[g];
        }
        heads[h] = (dot > 0 ? dot : 0) * weights[h];
    }
    while (n_tree < n_heads)
        n_tree *= 2;
    for (size_t half = n_tree / 2; half > 0; half /= 2)
        for (size_t h = 0; h < half; h++)
            heads[h] += heads[h + half];
    return heads[0];
}

void naive_scores(naive_key_fn key, const void *arg, size_t first, size_t n, const int8_t *codes, const float *scales,
                  const float *weights, size_t n_heads, size_t width, float *out)
{
    int8_t codes_of_key[256];
    float  scales_of_key[8];

    for (size_t i = 0; i < n; i++) {
        const uint8_t *k_values;
        const uint8_t *k_scales;

        key(arg, first + i, &k_values, &k_scales);
        for (size_t c = 0; c < width; c++) {
            const uint8_t byte = k_values[c / 2];

            codes_of_key[c] = (int8_t)(2 * kvi_e2m1_values[c % 2 ? byte >> 4 : byte & 15]);
        }
        for (size_t g = 0; g < width / 32; g++)
            scales_of_key[g] = kvi_e8m0_to_f32(k_scales[g]) / 2;
        out[i] = score(codes, scales, weights, n_heads, width, codes_of_key, scales_of_key);
    }
}

void naive_block_max(const float *scores, size_t n_blocks, float *out)
{
    for (size_t b = 0; b < n_blocks; b++) {
        float m = scores[8 * b];

        for (size_t i = 1; i < 8; i++)
            m = scores[8 * b + i] > m ? scores[8 * b + i] : m;
        out[b] = m;
    }
}
