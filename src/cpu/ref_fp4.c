/* Where floats become cache bytes: window rows, entries with their index keys, index queries; and
 * in front of them the pooling of two tokens into one entry.
 *
 * All quantisers work on groups of a fixed width, so a row is converted group by group through a
 * small buffer that holds the bf16 values; nothing here allocates. Rounding to bf16 in front of a
 * quantiser is part of the cache format: it happens in every mode, whereas KVI_OP_ROUND_BF16
 * belongs to the reference mode. A group with NaN or infinity becomes a poisoned group (its scale
 * is NaN), which later makes the scores and outputs that touch it NaN instead of plausible. */
#include "cpu/cpu_ops.h"

#include "base/fmath.h"
#include "format/dtype.h"
#include "format/fp4.h"
#include "format/fp8.h"
#include "format/row.h"
#include "cpu/ref_dense_int.h"

enum {
    QUANT_WORK = 8, /* a channel, in multiply-adds, roughly; for the grain of parallel loops */
    POOL_WORK = 32
};

static void round_group(const float *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = kvi_round_bf16(x[i]);
}

static void write_window_row(const float *x, size_t width, uint8_t *row)
{
    float g[KVI_WINDOW_GROUP];

    for (size_t c = 0; c < width; c += KVI_WINDOW_GROUP) {
        round_group(x + c, KVI_WINDOW_GROUP, g);
        (void)kvi_quant_window(g, KVI_WINDOW_GROUP, row + c, row + width + c / KVI_WINDOW_GROUP);
    }
}

static void run_window_write(void *arg, size_t begin, size_t end)
{
    const kvi_window_write_params *p = arg;

    for (size_t i = begin; i < end; i++)
        write_window_row(p->x + i * p->x_stride, p->width, p->rows + i * p->row_bytes);
}

kvcsa_status kvi_cpu_window_write(kvi_device *dev, const kvi_window_write_params *p,
                                  kvcsa_error *err)
{
    kvi_window_write_params own = *p;

    (void)err;
    KVI_ASSERT(p->width % KVI_WINDOW_GROUP == 0 &&
               p->row_bytes == p->width + p->width / KVI_WINDOW_GROUP);
    if (p->n_rows != 0)
        kvi_run(dev->threads, run_window_write, &own, p->n_rows,
                kvi_ref_grain((size_t)p->width * QUANT_WORK));
    return KVCSA_OK;
}

/* Softmax over two with the maximum subtracted, as torch.softmax does it; the spec's sigmoid of the
 * difference is the same number but not the same bits. */
static float pool_pair(float k0, float k1, float g0, float g1)
{
    const float m = g0 > g1 ? g0 : g1;
    const float e0 = kvi_expf(g0 - m);
    const float e1 = kvi_expf(g1 - m);
    const float sum = e0 + e1;

    return k0 * (e0 / sum) + k1 * (e1 / sum);
}

static void run_pool_pairs(void *arg, size_t begin, size_t end)
{
    const kvi_pool_pairs_params *p = arg;
    const size_t                 width = p->width;

    for (size_t j = begin; j < end; j++) {
        const float *k = p->k + 2 * j * width;
        const float *g = p->gate + 2 * j * width;
        float       *out = p->out + j * width;

        for (size_t c = 0; c < width; c++) {
            const float x = pool_pair(k[c], k[width + c], g[c], g[width + c]);

            out[c] = (p->flags & KVI_OP_ROUND_BF16) != 0 ? kvi_round_bf16(x) : x;
        }
    }
}

kvcsa_status kvi_cpu_pool_pairs(kvi_device *dev, const kvi_pool_pairs_params *p, kvcsa_error *err)
{
    kvi_pool_pairs_params own = *p;

    (void)err;
    if (p->n_pairs != 0)
        kvi_run(dev->threads, run_pool_pairs, &own, p->n_pairs,
                kvi_ref_grain((size_t)p->width * POOL_WORK));
    return KVCSA_OK;
}

static void write_index_row(const float *x, const kvi_kv_owner *o, uint8_t *values, uint8_t *scales)
{
    float g[KVI_INDEX_GROUP];

    for (size_t c = 0; c < o->index_width; c += KVI_INDEX_GROUP) {
        round_group(x + c, KVI_INDEX_GROUP, g);
        (void)kvi_quant_index(g, KVI_INDEX_GROUP, values + c / 2, scales + c / KVI_INDEX_GROUP);
    }
}

static void run_entry_write(void *arg, size_t begin, size_t end)
{
    const kvi_entry_write_params *p = arg;
    const kvi_kv_owner           *o = p->to.owner;

    for (size_t i = begin; i < end; i++) {
        const uint64_t entry = p->first_entry + i;
        const uint64_t block = entry / o->rows_per_block;
        const uint32_t row = (uint32_t)(entry % o->rows_per_block);
        uint8_t       *index = p->to.index_parts[block];

        (void)kvi_row_encode(o->entry_format, p->latent + i * o->entry_width, o->entry_width,
                             p->to.main_parts[block] + kvi_kv_main_row_off(o, row));
        write_index_row(p->key + i * o->index_width, o, index + kvi_kv_index_values_off(o, row),
                        index + kvi_kv_index_scales_off(o, row));
    }
}

kvcsa_status kvi_cpu_entry_write(kvi_device *dev, const kvi_entry_write_params *p, kvcsa_error *err)
{
    kvi_entry_write_params own = *p;
    const size_t           width = (size_t)p->to.owner->entry_width + p->to.owner->index_width;

    (void)err;
    KVI_ASSERT(kvi_row_can_run(p->to.owner->entry_format) &&
               p->to.owner->index_width % KVI_INDEX_GROUP == 0);
    KVI_ASSERT(p->to.owner->main_row_bytes ==
               kvi_format_row_bytes(p->to.owner->entry_format, p->to.owner->entry_width));
    if (p->n_rows != 0)
        kvi_run(dev->threads, run_entry_write, &own, p->n_rows, kvi_ref_grain(width * QUANT_WORK));
    return KVCSA_OK;
}

static void run_index_query(void *arg, size_t begin, size_t end)
{
    const kvi_index_query_params *p = arg;
    const size_t                  n_groups = (size_t)p->n_heads * p->width / KVI_INDEX_GROUP;
    float                         g[KVI_INDEX_GROUP];
    uint8_t                       packed[KVI_INDEX_GROUP / 2];
    uint8_t                       scale;

    /* Heads and groups are contiguous on both sides, so a row is one run of groups. */
    for (size_t i = begin * n_groups; i < end * n_groups; i++) {
        round_group(p->x + i * KVI_INDEX_GROUP, KVI_INDEX_GROUP, g);
        (void)kvi_quant_index(g, KVI_INDEX_GROUP, packed, &scale);
        kvi_unpack_e2m1_x2(packed, KVI_INDEX_GROUP, p->codes + i * KVI_INDEX_GROUP);
        p->scales[i] =
            kvi_e8m0_to_f32(scale) * 0.5f; /* exact: the smallest, 2^-128, is a subnormal */
    }
}

kvcsa_status kvi_cpu_index_query(kvi_device *dev, const kvi_index_query_params *p, kvcsa_error *err)
{
    kvi_index_query_params own = *p;
    const size_t           width = (size_t)p->n_heads * p->width;

    (void)err;
    KVI_ASSERT(p->width % KVI_INDEX_GROUP == 0);
    if (p->n_rows != 0)
        kvi_run(dev->threads, run_index_query, &own, p->n_rows, kvi_ref_grain(width * QUANT_WORK));
    return KVCSA_OK;
}
