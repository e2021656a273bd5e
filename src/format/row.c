/* Rows of entries. Each format is a pair of functions; the choice is made once a row.
 *
 * Three shapes of bytes:
 *   split    values of all channels, then the scales of all groups: the model's own rows
 *   blocks   a scale and its 32 codes, then the next: the bytes of llama.cpp; and three bits by the
 *            rule of Q4_0, so that the number of bits is all that differs
 *   plain    channel after channel
 * Decoded values are exact in fp32 (2^128, which the E8M0 formats can say, is infinity). What
 * cannot be stored becomes NaN and is reported: a group or channel with NaN or infinity, and one
 * whose scale or value overflows fp16. */
#include "format/row.h"

#include "base/status.h"
#include "format/dtype.h"
#include "format/fp4.h"
#include "format/fp8.h"
#include "format/group_int.h"
#include "kvcsa.h"

#include <float.h>

enum {
    MAX_GROUP = 32,
    BLOCK = 32, /* channels with one fp16 scale */
    SCALE_BYTES = 2,
    Q8_BYTES = SCALE_BYTES + BLOCK,
    Q4_BYTES = SCALE_BYTES + BLOCK / 2,
    INT3_BYTES = SCALE_BYTES + BLOCK * 3 / 8,
    FP16_NAN = 0x7e00,
    BF16_NAN = 0x7fc0
};
#define F32_NAN 0x7fc00000u
#define F32_MAGNITUDE 0x7fffffffu

static void round_group(const float *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = kvi_round_bf16(x[i]);
}

/* ---------------------------------------------------------------- split */

typedef struct split {
    int (*quant)(const float *x, size_t width, uint8_t *values, uint8_t *scales);
    size_t group;    /* channels with one scale, at most MAX_GROUP */
    size_t per_byte; /* channels in a byte of values */
} split;

static int encode_split(const split *f, const float *x, size_t width, uint8_t *row)
{
    uint8_t *scales = row + width / f->per_byte;
    float    g[MAX_GROUP];
    int      bad = 0;

    for (size_t c = 0; c < width; c += f->group) {
        round_group(x + c, f->group, g);
        bad |= f->quant(g, f->group, row + c / f->per_byte, scales + c / f->group);
    }
    return bad;
}

static int encode_main(const float *x, size_t width, uint8_t *row)
{
    return encode_split(&(split){kvi_quant_main, KVI_MAIN_GROUP, 2}, x, width, row);
}

static void decode_main(const uint8_t *row, size_t width, float *x)
{
    kvi_dequant_main(row, row + width / 2, width, x);
}

static int encode_index(const float *x, size_t width, uint8_t *row)
{
    return encode_split(&(split){kvi_quant_index, KVI_INDEX_GROUP, 2}, x, width, row);
}

static void decode_index(const uint8_t *row, size_t width, float *x)
{
    kvi_dequant_index(row, row + width / 2, width, x);
}

static int encode_window(const float *x, size_t width, uint8_t *row)
{
    return encode_split(&(split){kvi_quant_window, KVI_WINDOW_GROUP, 1}, x, width, row);
}

static void decode_window(const uint8_t *row, size_t width, float *x)
{
    kvi_dequant_window(row, row + width, width, x);
}

/* ---------------------------------------------------------------- blocks */

/* The value of largest magnitude with its sign, the first of several; +0 of a zero group. */
static float extreme_of(const float *g)
{
    float best = 0.0f;
    float amax = 0.0f;

    for (size_t i = 0; i < BLOCK; i++) {
        const float a = kvi_bits_f32(kvi_f32_bits(g[i]) & F32_MAGNITUDE);

        if (a > amax) {
            amax = a;
            best = g[i];
        }
    }
    return best;
}

/* Codes are made with the scale before it is rounded to fp16, by a product, as ggml makes them. A
 * scale that is no normal float is 0 in fp16, so that its codes do not matter. */
static float reciprocal(float d)
{
    return d >= FLT_MIN || d <= -FLT_MIN ? 1.0f / d : 0.0f;
}

/* Writes the scale. Returns 1, with the block poisoned, if the group or the scale is not finite. */
static int put_scale(const float *g, float d, uint8_t *block, size_t block_bytes)
{
    uint16_t  bits = kvi_f32_to_fp16(d);
    const int bad =
        kvi_amax_bits(g, BLOCK) >= KVI_BITS_INFINITY || (bits & 0x7fffu) >= 0x7c00u;

    if (bad) {
        memset(block, 0, block_bytes);
        bits = FP16_NAN;
    }
    memcpy(block, &bits, SCALE_BYTES);
    return bad;
}

static float get_scale(const uint8_t *block)
{
    return kvi_fp16_to_f32(kvi_load_u16(block));
}

static int encode_blocks(int (*encode)(const float *g, uint8_t *block), size_t block_bytes,
                         const float *x, size_t width, uint8_t *row)
{
    float g[BLOCK];
    int   bad = 0;

    for (size_t c = 0; c < width; c += BLOCK, row += block_bytes) {
        round_group(x + c, BLOCK, g);
        bad |= encode(g, row);
    }
    return bad;
}

/* d = amax / 127, code = x / d, halves away from 0 */
static int encode_q8_block(const float *g, uint8_t *block)
{
    const float d = kvi_bits_f32(kvi_amax_bits(g, BLOCK)) / 127.0f;
    const float inverse = reciprocal(d);

    if (put_scale(g, d, block, Q8_BYTES))
        return 1;
    for (size_t i = 0; i < BLOCK; i++) {
        const float q = g[i] * inverse;

        block[SCALE_BYTES + i] = (uint8_t)(int8_t)((double)q + (q < 0.0f ? -0.5 : 0.5));
    }
    return 0;
}

static int encode_q8(const float *x, size_t width, uint8_t *row)
{
    return encode_blocks(encode_q8_block, Q8_BYTES, x, width, row);
}

static void decode_q8(const uint8_t *row, size_t width, float *x)
{
    for (size_t c = 0; c < width; c += BLOCK, row += Q8_BYTES) {
        const float d = get_scale(row);

        for (size_t i = 0; i < BLOCK; i++)
            x[c + i] = (float)(int8_t)row[SCALE_BYTES + i] * d;
    }
}

/* Codes of a group for 2 * half levels, the extreme at code 0. Product and sum are rounded to fp32
 * one after the other, as in ggml's C where the compiler does not fuse them. */
static void make_codes(const float *g, float inverse, unsigned half, uint8_t *codes)
{
    for (size_t i = 0; i < BLOCK; i++) {
        const float    q = g[i] * inverse;
        const unsigned code = (unsigned)(q + ((float)half + 0.5f));

        codes[i] = (uint8_t)(code > 2 * half - 1 ? 2 * half - 1 : code);
    }
}

/* d = extreme / -8, code = x / d + 8. Byte i holds channel i low and channel i + 16 high. */
static int encode_q4_block(const float *g, uint8_t *block)
{
    const float d = extreme_of(g) / -8.0f;
    uint8_t     codes[BLOCK];

    if (put_scale(g, d, block, Q4_BYTES))
        return 1;
    make_codes(g, reciprocal(d), 8, codes);
    for (size_t i = 0; i < BLOCK / 2; i++)
        block[SCALE_BYTES + i] = (uint8_t)(codes[i] | codes[i + BLOCK / 2] << 4);
    return 0;
}

static int encode_q4(const float *x, size_t width, uint8_t *row)
{
    return encode_blocks(encode_q4_block, Q4_BYTES, x, width, row);
}

static void decode_q4(const uint8_t *row, size_t width, float *x)
{
    for (size_t c = 0; c < width; c += BLOCK, row += Q4_BYTES) {
        const float d = get_scale(row);

        for (size_t i = 0; i < BLOCK / 2; i++) {
            x[c + i] = (float)((row[SCALE_BYTES + i] & 15) - 8) * d;
            x[c + i + BLOCK / 2] = (float)((row[SCALE_BYTES + i] >> 4) - 8) * d;
        }
    }
}

/* d = extreme / -4, code = x / d + 4. Code i is bits 3i..3i + 2 of the 96 behind the scale, least
 * significant first: eight codes are three bytes. */
static int encode_int3_block(const float *g, uint8_t *block)
{
    const float d = extreme_of(g) / -4.0f;
    uint8_t     codes[BLOCK];

    if (put_scale(g, d, block, INT3_BYTES))
        return 1;
    make_codes(g, reciprocal(d), 4, codes);
    for (size_t i = 0; i < BLOCK; i += 8) {
        uint32_t bits = 0;

        for (size_t k = 0; k < 8; k++)
            bits |= (uint32_t)codes[i + k] << (3 * k);
        memcpy(block + SCALE_BYTES + i / 8 * 3, &bits, 3);
    }
    return 0;
}

static int encode_int3(const float *x, size_t width, uint8_t *row)
{
    return encode_blocks(encode_int3_block, INT3_BYTES, x, width, row);
}

static void decode_int3(const uint8_t *row, size_t width, float *x)
{
    for (size_t c = 0; c < width; c += BLOCK, row += INT3_BYTES) {
        const float d = get_scale(row);

        for (size_t i = 0; i < BLOCK; i += 8) {
            uint32_t bits = 0;

            memcpy(&bits, row + SCALE_BYTES + i / 8 * 3, 3);
            for (size_t k = 0; k < 8; k++)
                x[c + i + k] = (float)((int)(bits >> (3 * k) & 7u) - 4) * d;
        }
    }
}

/* ---------------------------------------------------------------- plain */

static int encode_f32(const float *x, size_t width, uint8_t *row)
{
    int bad = 0;

    for (size_t c = 0; c < width; c++) {
        uint32_t bits = kvi_f32_bits(x[c]);

        if ((bits & F32_MAGNITUDE) >= KVI_BITS_INFINITY) {
            bits = F32_NAN;
            bad = 1;
        }
        memcpy(row + 4 * c, &bits, sizeof bits);
    }
    return bad;
}

static void decode_f32(const uint8_t *row, size_t width, float *x)
{
    memcpy(x, row, width * sizeof *x);
}

static int encode_f16(const float *x, size_t width, uint8_t *row)
{
    int bad = 0;

    for (size_t c = 0; c < width; c++) {
        uint16_t bits = kvi_f32_to_fp16(x[c]);

        if ((bits & 0x7fffu) >= 0x7c00u) {
            bits = FP16_NAN;
            bad = 1;
        }
        memcpy(row + 2 * c, &bits, sizeof bits);
    }
    return bad;
}

static void decode_f16(const uint8_t *row, size_t width, float *x)
{
    for (size_t c = 0; c < width; c++)
        x[c] = kvi_fp16_to_f32(kvi_load_u16(row + 2 * c));
}

static int encode_bf16(const float *x, size_t width, uint8_t *row)
{
    int bad = 0;

    for (size_t c = 0; c < width; c++) {
        uint16_t bits = kvi_f32_to_bf16(x[c]);

        if ((bits & 0x7fffu) >= 0x7f80u) {
            bits = BF16_NAN;
            bad = 1;
        }
        memcpy(row + 2 * c, &bits, sizeof bits);
    }
    return bad;
}

static void decode_bf16(const uint8_t *row, size_t width, float *x)
{
    for (size_t c = 0; c < width; c++)
        x[c] = kvi_bits_f32((uint32_t)kvi_load_u16(row + 2 * c) << 16); /* inline, unlike dtype.h */
}

/* What decode_main would give, group by group. */
static int encode_main_as_f32(const float *x, size_t width, uint8_t *row)
{
    int bad = 0;

    for (size_t c = 0; c < width; c += KVI_MAIN_GROUP) {
        float   g[KVI_MAIN_GROUP];
        uint8_t values[KVI_MAIN_GROUP / 2];
        uint8_t scale;

        round_group(x + c, KVI_MAIN_GROUP, g);
        bad |= kvi_quant_main(g, KVI_MAIN_GROUP, values, &scale);
        kvi_dequant_main(values, &scale, KVI_MAIN_GROUP, g);
        memcpy(row + 4 * c, g, sizeof g);
    }
    return bad;
}

/* ---------------------------------------------------------------- choice */

typedef struct row_format {
    int (*encode)(const float *x, size_t width, uint8_t *row);
    void (*decode)(const uint8_t *row, size_t width, float *x);
} row_format;

static const row_format formats[] = {
    [KVCSA_FORMAT_FP4_E4M3_G16] = {encode_main, decode_main},
    [KVCSA_FORMAT_FP4_E8M0_G32] = {encode_index, decode_index},
    [KVCSA_FORMAT_FP8_E8M0_G32] = {encode_window, decode_window},
    [KVCSA_FORMAT_F32] = {encode_f32, decode_f32},
    [KVCSA_FORMAT_F16] = {encode_f16, decode_f16},
    [KVCSA_FORMAT_BF16] = {encode_bf16, decode_bf16},
    [KVCSA_FORMAT_FP4_AS_F32] = {encode_main_as_f32, decode_f32},
    [KVCSA_FORMAT_Q8_0] = {encode_q8, decode_q8},
    [KVCSA_FORMAT_Q4_0] = {encode_q4, decode_q4},
    [KVCSA_FORMAT_INT3_F16_G32] = {encode_int3, decode_int3},
};

int kvi_row_can_run(uint32_t format)
{
    return format < sizeof formats / sizeof *formats && formats[format].encode;
}

int kvi_row_encode(uint32_t format, const float *x, size_t width, uint8_t *row)
{
    KVI_ASSERT(kvi_row_can_run(format));
    return formats[format].encode(x, width, row);
}

void kvi_row_decode(uint32_t format, const uint8_t *row, size_t width, float *x)
{
    KVI_ASSERT(kvi_row_can_run(format));
    formats[format].decode(row, width, x);
}
