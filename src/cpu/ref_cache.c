/* Portable kernels where floats become cache bytes and back: window rows, entries, index keys and
 * queries; and the pooling of two tokens into one entry in front of them.
 *
 * All quantisers work on groups of a fixed width, so a row is converted group by group through a
 * small buffer that holds the bf16 values; nothing here allocates. Rounding to bf16 in front of a
 * quantiser is part of the cache format: it happens in every mode, whereas KVI_OP_ROUND_BF16
 * belongs to the reference mode. A group with NaN or infinity becomes a poisoned group (its scale
 * is NaN), which later makes the scores and outputs that touch it NaN instead of plausible. */
#include "cpu/cache_kernels.h"

#include "base/fmath.h"
#include "format/dtype.h"
#include "format/fp4.h"
#include "format/fp8.h"
#include "format/row.h"

static void round_group(const float *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = kvi_round_bf16(x[i]);
}

static void encode_window(const float *x, uint32_t width, uint8_t *row)
{
    float g[KVI_WINDOW_GROUP];

    for (size_t c = 0; c < width; c += KVI_WINDOW_GROUP) {
        round_group(x + c, KVI_WINDOW_GROUP, g);
        (void)kvi_quant_window(g, KVI_WINDOW_GROUP, row + c, row + width + c / KVI_WINDOW_GROUP);
    }
}

static void decode_window(const uint8_t *row, uint32_t width, float *out)
{
    kvi_dequant_window(row, row + width, width, out);
}

static void encode_entry(uint32_t format, const float *x, uint32_t width, uint8_t *row)
{
    (void)kvi_row_encode(format, x, width, row);
}

static void decode_entry(uint32_t format, const uint8_t *row, uint32_t width, float *out)
{
    kvi_row_decode(format, row, width, out);
}

static void encode_index(const float *x, uint32_t width, uint8_t *values, uint8_t *scales)
{
    float g[KVI_INDEX_GROUP];

    for (size_t c = 0; c < width; c += KVI_INDEX_GROUP) {
        round_group(x + c, KVI_INDEX_GROUP, g);
        (void)kvi_quant_index(g, KVI_INDEX_GROUP, values + c / 2, scales + c / KVI_INDEX_GROUP);
    }
}

static void encode_query(const float *x, size_t n_groups, int8_t *codes, float *scales)
{
    float   g[KVI_INDEX_GROUP];
    uint8_t packed[KVI_INDEX_GROUP / 2];
    uint8_t scale;

    for (size_t i = 0; i < n_groups; i++) {
        round_group(x + i * KVI_INDEX_GROUP, KVI_INDEX_GROUP, g);
        (void)kvi_quant_index(g, KVI_INDEX_GROUP, packed, &scale);
        kvi_unpack_e2m1_x2(packed, KVI_INDEX_GROUP, codes + i * KVI_INDEX_GROUP);
        scales[i] =
            kvi_e8m0_to_f32(scale) * 0.5f; /* exact: the smallest, 2^-128, is a subnormal */
    }
}

/* Softmax over two with the maximum subtracted, as torch.softmax does it; the spec's sigmoid of the
 * difference is the same number but not the same bits. */
static float pool_channel(float k0, float k1, float g0, float g1)
{
    const float m = g0 > g1 ? g0 : g1;
    const float e0 = kvi_expf(g0 - m);
    const float e1 = kvi_expf(g1 - m);
    const float sum = e0 + e1;

    return k0 * (e0 / sum) + k1 * (e1 / sum);
}

void kvi_ref_pool_pair(const float *const k[2], const float *const gate[2], uint32_t width,
                       float *out)
{
    for (size_t c = 0; c < width; c++)
        out[c] = pool_channel(k[0][c], k[1][c], gate[0][c], gate[1][c]);
}

void kvi_cache_ref(kvi_cache_kernels *k)
{
    k->encode_window = encode_window;
    k->decode_window = decode_window;
    k->encode_entry = encode_entry;
    k->decode_entry = decode_entry;
    k->encode_index = encode_index;
    k->encode_query = encode_query;
    k->pool_pair = kvi_ref_pool_pair;
}
