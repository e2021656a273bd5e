/* Rows of keys and values as floats, for the kernels of paged_v16.h: thirty-two channels at a time
 * into registers, so that a kernel can use them where they are decoded, and whole rows into a
 * buffer. The values are those of kvi_row_decode, bit by bit.
 *
 * The file of the instruction set provides
 *   paged_half(p)      the fp16 at p in every lane
 *   paged_e2m1(p)      sixteen E2M1 codes, even channels in the low nibbles
 *   paged_q4(p, x)     32 codes - 8, channels 0..15 in the low nibbles
 *   paged_e4m3(p, x)   32 E4M3 codes, / 256
 *   paged_largest(x)   largest lane, no NaN
 *   PAGED_PREFETCH(p) */
#ifndef KVI_PAGED_ROW_V16_H
#define KVI_PAGED_ROW_V16_H

#include "cpu/cpu_ops.h"

#include "format/row.h"

#include <string.h>

#define PAGED_INLINE static inline __attribute__((always_inline))

PAGED_INLINE v16 scale_e8m0(uint32_t code)
{
    float s;

    memcpy(&s, &kvi_paged_e8m0[code], sizeof s);
    return v16_set(s);
}

/* Channels c .. c + 31 of a row, exactly as kvi_row_decode gives them. One piece: the formats. */
PAGED_INLINE void load32(const uint32_t format, const uint8_t *row, size_t width, size_t c,
                         v16 x[2])
{
    const uint8_t *at = row;
    v16            scale[2];

    switch (format) {
    case KVCSA_FORMAT_F16:
        x[0] = v16_load_f16(row + 2 * c);
        x[1] = v16_load_f16(row + 2 * c + 32);
        return;
    case KVCSA_FORMAT_BF16:
        x[0] = v16_load_bf16(row + 2 * c);
        x[1] = v16_load_bf16(row + 2 * c + 32);
        return;
    case KVCSA_FORMAT_Q8_0:
        at = row + c / 32 * 34;
        scale[0] = scale[1] = paged_half(at);
        x[0] = v16_load_i8(at + 2);
        x[1] = v16_load_i8(at + 18);
        break;
    case KVCSA_FORMAT_Q4_0:
        at = row + c / 32 * 18;
        scale[0] = scale[1] = paged_half(at);
        paged_q4(at + 2, x);
        break;
    case KVCSA_FORMAT_FP4_E4M3_G16:
        at = row + width / 2 + c / 16;
        scale[0] = v16_set(kvi_e4m3_values[at[0]]);
        scale[1] = v16_set(kvi_e4m3_values[at[1]]);
        x[0] = paged_e2m1(row + c / 2);
        x[1] = paged_e2m1(row + c / 2 + 8);
        break;
    case KVCSA_FORMAT_FP4_E8M0_G32:
        scale[0] = scale[1] = scale_e8m0(row[width / 2 + c / 32]);
        x[0] = paged_e2m1(row + c / 2);
        x[1] = paged_e2m1(row + c / 2 + 8);
        break;
    default: { /* KVCSA_FORMAT_FP8_E8M0_G32 */
        const uint32_t code = row[width + c / 32];

        paged_e4m3(row + c, x); /* values / 256; scales above 2^119 leave no room for the factor */
        if (code < 247) {
            scale[0] = scale[1] = scale_e8m0(code + 8);
        } else {
            scale[0] = scale[1] = scale_e8m0(code);
            x[0] = v16_mul(x[0], v16_set(256.0f));
            x[1] = v16_mul(x[1], v16_set(256.0f));
        }
    }
    }
    x[0] = v16_mul(x[0], scale[0]);
    x[1] = v16_mul(x[1], scale[1]);
}

PAGED_INLINE void prefetch_row(const uint8_t *row, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        PAGED_PREFETCH(row + i);
}

PAGED_INLINE void decode_row(const uint32_t format, const uint8_t *row, size_t width, float *x)
{
    for (size_t c = 0; c < width; c += 32) {
        v16 v[2];

        load32(format, row, width, c, v);
        v16_store(x + c, v[0]);
        v16_store(x + c + 16, v[1]);
    }
}

/* Key rows or value rows of a tile, and what is wanted after them. */
typedef struct tile_rows {
    const uint8_t **rows;   /* [n] */
    const uint8_t **next;   /* [n_next] to prefetch */
    size_t          n;
    size_t          n_next;
    size_t          row_bytes;
    size_t          width;
    uint32_t        format;
} tile_rows;

#define FORMAT_CASE(f, call)                                                                       \
    case f: call(f); break
#define FORMATS(format, call)                                                                      \
    switch (format) {                                                                              \
        FORMAT_CASE(KVCSA_FORMAT_F16, call);                                                       \
        FORMAT_CASE(KVCSA_FORMAT_BF16, call);                                                      \
        FORMAT_CASE(KVCSA_FORMAT_FP8_E8M0_G32, call);                                              \
        FORMAT_CASE(KVCSA_FORMAT_Q8_0, call);                                                      \
        FORMAT_CASE(KVCSA_FORMAT_Q4_0, call);                                                      \
        FORMAT_CASE(KVCSA_FORMAT_FP4_E4M3_G16, call);                                              \
        FORMAT_CASE(KVCSA_FORMAT_FP4_E8M0_G32, call);                                              \
    default: break;                                                                                \
    }

static int has_format(uint32_t format)
{
#define YES(f) return 1
    FORMATS(format, YES)
#undef YES
    return 0;
}

/* Rows at .. at + n - 1 as floats. */
static void decode_rows(const tile_rows *t, size_t at, size_t n, float *x)
{
#define DECODE(f)                                                                                  \
    for (size_t i = at; i < at + n; i++, x += t->width) {                                          \
        if (i < t->n_next)                                                                         \
            prefetch_row(t->next[i], t->row_bytes);                                                \
        decode_row(f, t->rows[i], t->width, x);                                                    \
    }
    FORMATS(t->format, DECODE)
#undef DECODE
    if (!has_format(t->format))
        for (size_t i = at; i < at + n; i++, x += t->width)
            kvi_row_decode(t->format, t->rows[i], t->width, x);
}

#endif
