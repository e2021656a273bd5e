/* Where floats become cache bytes: window rows, entries with their index keys, index queries; and
 * in front of them the pooling of two tokens into one entry. A row is one kernel call; rows go to
 * several threads only if there are so many that a wake-up pays. */
#include "cpu/cpu_ops.h"

#include "base/checked.h"
#include "format/dtype.h"
#include "format/fp4.h"
#include "format/fp8.h"
#include "format/row.h"

#include <string.h>

/* Channels of a range, which is worth a wake-up from about 20 us on: quantising one takes 0.3 to
 * 0.6 ns with vectors and 6 to 12 without, pooling 1.1 to 1.6 and 22. */
enum {
    QUANT_CHANNELS = 64 * 1024,
    QUANT_CHANNELS_PORTABLE = 4 * 1024,
    POOL_CHANNELS = 16 * 1024
};

static size_t quant_grain(const kvi_device *dev, size_t width)
{
    const size_t channels = dev->cache.flags ? QUANT_CHANNELS : QUANT_CHANNELS_PORTABLE;

    return kvi_max_size(1, channels / kvi_max_size(width, 1));
}

/* ---------------------------------------------------------------- window rows */

typedef struct window_job {
    const kvi_window_write_params *p;
    const kvi_cache_kernels       *k;
} window_job;

static void run_window_write(void *arg, size_t begin, size_t end)
{
    const window_job              *job = arg;
    const kvi_window_write_params *p = job->p;

    for (size_t i = begin; i < end; i++)
        job->k->encode_window(p->x + i * p->x_stride, p->width, p->rows + i * p->row_bytes);
}

kvcsa_status kvi_cpu_window_write(kvi_device *dev, const kvi_window_write_params *p,
                                  kvcsa_error *err)
{
    window_job job = {p, &dev->cache};

    (void)err;
    KVI_ASSERT(p->width % KVI_WINDOW_GROUP == 0 &&
               p->row_bytes == p->width + p->width / KVI_WINDOW_GROUP);
    if (p->n_rows != 0)
        kvi_run(dev->threads, run_window_write, &job, p->n_rows, quant_grain(dev, p->width));
    return KVCSA_OK;
}

/* ---------------------------------------------------------------- pooling */

typedef struct pool_job {
    const kvi_pool_pairs_params *p;
    void (*pool_pair)(const float *const k[2], const float *const gate[2], uint32_t width,
                      float *out);
} pool_job;

/* Where the two rows of pair j stand; false = there is none. */
static bool find_pair(const kvi_pool_pairs_params *p, size_t j, const float *k[2],
                      const float *gate[2])
{
    const size_t width = p->width;
    const float *front = p->head && j == 0 ? p->head : NULL; /* the first row, if it is apart */
    size_t       row = 2 * j - (p->head && j);               /* ... and otherwise, if not */

    if (p->of.slices) {
        const uint64_t        pos = p->entry_pos[j];
        const kvi_slice      *slice = &p->of.slices[j / p->of.each];
        const kvi_slice_rows *rows = &p->of.rows[j / p->of.each];

        if (pos == KVI_NO_ENTRY)
            return false;
        KVI_ASSERT(pos + 1 >= rows->pos);
        row = (size_t)(rows->row + pos - rows->pos);
        if (pos < rows->pos) {
            front = (const float *)(const void *)(slice->pending + p->pending_off +
                                                  pos / 2 % p->pending_slots * p->pending_bytes);
            row = (size_t)rows->row;
        }
    }
    k[0] = front ? front : p->k + row * width;
    gate[0] = front ? front + width : p->gate + row * width;
    row += front == NULL;
    k[1] = p->k + row * width;
    gate[1] = p->gate + row * width;
    return true;
}

static void run_pool_pairs(void *arg, size_t begin, size_t end)
{
    const pool_job              *job = arg;
    const kvi_pool_pairs_params *p = job->p;
    const size_t                 width = p->width;

    for (size_t j = begin; j < end; j++) {
        const float *k[2];
        const float *gate[2];
        float       *out = p->out + j * width;

        if (!find_pair(p, j, k, gate)) {
            memset(out, 0, width * sizeof *out);
            continue;
        }
        job->pool_pair(k, gate, p->width, out);
        if (p->flags & KVI_OP_ROUND_BF16)
            for (size_t c = 0; c < width; c++)
                out[c] = kvi_round_bf16(out[c]);
    }
}

kvcsa_status kvi_cpu_pool_pairs(kvi_device *dev, const kvi_pool_pairs_params *p, kvcsa_error *err)
{
    const int reference = (p->flags & (KVI_OP_ROUND_BF16 | KVI_OP_ACT_QUANT)) != 0;
    pool_job  job = {p, reference ? kvi_ref_pool_pair : dev->cache.pool_pair};

    (void)err;
    KVI_ASSERT(!p->of.slices || (!p->head && p->of.each != 0 && p->pending_slots != 0));
    if (p->n_pairs != 0)
        kvi_run(dev->threads, run_pool_pairs, &job, p->n_pairs,
                kvi_max_size(1, POOL_CHANNELS / kvi_max_size(p->width, 1)));
    return KVCSA_OK;
}

/* ---------------------------------------------------------------- entries */

typedef struct entry_job {
    const kvi_entry_write_params *p;
    const kvi_cache_kernels      *k;
} entry_job;

static void run_entry_write(void *arg, size_t begin, size_t end)
{
    const entry_job              *job = arg;
    const kvi_entry_write_params *p = job->p;
    const kvi_kv_owner           *o = p->to.owner;

    for (size_t i = begin; i < end; i++) {
        const kvi_slice *slice = p->of.slices ? &p->of.slices[i / p->of.each] : NULL;
        uint64_t         entry = p->first_entry + i;
        uint8_t *const  *main_parts = slice ? slice->main_parts : p->to.main_parts;
        uint8_t *const  *index_parts = slice ? slice->index_parts : p->to.index_parts;

        if (slice && p->entry_pos[i] == KVI_NO_ENTRY)
            continue;
        if (slice)
            entry = p->entry_pos[i] / p->ratio;

        const uint64_t block = entry / o->rows_per_block;
        const uint32_t row = (uint32_t)(entry % o->rows_per_block);
        uint8_t       *index = index_parts[block];

        job->k->encode_entry(o->entry_format, p->latent + i * o->entry_width, o->entry_width,
                             main_parts[block] + kvi_kv_main_row_off(o, row));
        job->k->encode_index(p->key + i * o->index_width, o->index_width,
                             index + kvi_kv_index_values_off(o, row),
                             index + kvi_kv_index_scales_off(o, row));
    }
}

kvcsa_status kvi_cpu_entry_write(kvi_device *dev, const kvi_entry_write_params *p, kvcsa_error *err)
{
    const kvi_kv_owner *o = p->to.owner;
    entry_job           job = {p, &dev->cache};

    (void)err;
    KVI_ASSERT(kvi_row_can_run(o->entry_format) && o->index_width % KVI_INDEX_GROUP == 0);
    KVI_ASSERT(o->main_row_bytes == kvi_format_row_bytes(o->entry_format, o->entry_width));
    KVI_ASSERT(!p->of.slices || (p->of.each != 0 && p->ratio != 0));
    if (p->n_rows != 0)
        kvi_run(dev->threads, run_entry_write, &job, p->n_rows,
                quant_grain(dev, (size_t)o->entry_width + o->index_width));
    return KVCSA_OK;
}

/* ---------------------------------------------------------------- keys and values of heads */

typedef struct paged_write_job {
    const kvi_paged_write_params *p;
    const kvi_cache_kernels      *k;
    size_t                        row_bytes;
} paged_write_job;

static void run_paged_write(void *arg, size_t begin, size_t end)
{
    const paged_write_job        *job = arg;
    const kvi_paged_write_params *p = job->p;
    const size_t                  strip = p->page_rows * job->row_bytes; /* of a head */

    for (size_t i = begin; i < end; i++) {
        const uint64_t pos = p->first + i;
        uint8_t       *to = p->pages[pos / p->page_rows] + p->page_off +
                      (size_t)(pos % p->page_rows) * job->row_bytes;

        for (uint32_t h = 0; h < p->n_kv_heads; h++, to += 2 * strip) {
            job->k->encode_entry(p->format, p->k + i * p->k_row_stride + h * p->k_head_stride,
                                 p->width, to);
            job->k->encode_entry(p->format, p->v + i * p->v_row_stride + h * p->v_head_stride,
                                 p->width, to + strip);
        }
    }
}

kvcsa_status kvi_cpu_paged_write(kvi_device *dev, const kvi_paged_write_params *p, kvcsa_error *err)
{
    paged_write_job job = {p, &dev->cache, kvi_format_row_bytes(p->format, p->width)};

    KVI_ASSERT(p->n_kv_heads > 0 && p->page_rows > 0);
    if (!kvi_row_can_run(p->format) || job.row_bytes == 0)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "paged keys: format %u of %u channels",
                        p->format, p->width);
    if (p->n_rows != 0)
        kvi_run(dev->threads, run_paged_write, &job, p->n_rows,
                quant_grain(dev, 2 * (size_t)p->n_kv_heads * p->width));
    return KVCSA_OK;
}

/* ---------------------------------------------------------------- queries */

typedef struct query_job {
    const kvi_index_query_params *p;
    const kvi_cache_kernels      *k;
} query_job;

static void run_index_query(void *arg, size_t begin, size_t end)
{
    const query_job              *job = arg;
    const kvi_index_query_params *p = job->p;
    const size_t                  n_groups = (size_t)p->n_heads * p->width / KVI_INDEX_GROUP;

    /* Heads and groups are contiguous on both sides, so that rows are one run of groups. */
    job->k->encode_query(p->x + begin * n_groups * KVI_INDEX_GROUP, (end - begin) * n_groups,
                         p->codes + begin * n_groups * KVI_INDEX_GROUP,
                         p->scales + begin * n_groups);
    for (size_t i = begin * p->n_heads; p->weights && i < end * p->n_heads; i++) {
        p->weights[i] *= p->weight_scale;
        if (p->flags & KVI_OP_ROUND_BF16)
            p->weights[i] = kvi_round_bf16(p->weights[i]);
    }
}

kvcsa_status kvi_cpu_index_query(kvi_device *dev, const kvi_index_query_params *p, kvcsa_error *err)
{
    query_job job = {p, &dev->cache};

    (void)err;
    KVI_ASSERT(p->width % KVI_INDEX_GROUP == 0);
    if (p->n_rows != 0)
        kvi_run(dev->threads, run_index_query, &job, p->n_rows,
                quant_grain(dev, (size_t)p->n_heads * p->width));
    return KVCSA_OK;
}

void kvi_cache_init(kvi_cache_kernels *k, uint32_t flags)
{
    k->flags = flags;
    kvi_cache_ref(k);
#if defined(KVI_ARCH_X86_64)
    if (flags & KVCSA_CPU_AVX2)
        kvi_cache_avx2(k);
    if (flags & KVCSA_CPU_AVX512)
        kvi_cache_avx512(k);
#elif defined(KVI_ARCH_ARM64)
    if (flags & KVCSA_CPU_NEON)
        kvi_cache_neon(k);
#endif
}
