/* Embedding and matrix products: how the work is split.
 *
 * Chunks of weight rows are handed out by a counter to as many workers as are worth a wake-up; a
 * worker owns a slot of scratch. A chunk writes outputs that no other chunk writes, and every sum
 * is made by itself: neither the chunks nor the workers can be seen in the result. */
#include "cpu/ref_dense_int.h"

#include "format/dtype.h"

#include <stdatomic.h>

enum {
    CHUNKS = 4,     /* of a worker, so that a late one does not hold up the rest for long */
    CHUNK_ROWS = 64 /* a chunk is a multiple: whole panels and cache lines of y */
};

void kvi_linear_init(kvi_linear_kernels *k, uint32_t flags)
{
    k->flags = flags;
    k->task_work = KVI_REF_MIN_WORK;
    k->scratch = kvi_ref_linear_scratch;
    k->block = kvi_ref_linear_block;
    k->activate = kvi_ref_activate;
#if defined(KVI_ARCH_X86_64)
    if (flags & KVCSA_CPU_AVX2)
        kvi_linear_avx2(k);
    if (flags & KVCSA_CPU_AVX512)
        kvi_linear_avx512(k);
#elif defined(KVI_ARCH_ARM64)
    if (flags & KVCSA_CPU_NEON)
        kvi_linear_neon(k);
#endif
}

const kvi_linear_kernels *kvi_linear_use(const kvi_device *dev, uint32_t flags,
                                         kvi_linear_kernels *portable)
{
    if (flags == 0)
        return &dev->linear;
    kvi_linear_init(portable, 0);
    return portable;
}

size_t kvi_linear_workers(const kvi_device *dev, const kvi_linear_kernels *k, size_t n_items,
                          double work)
{
    const double worth = work / k->task_work;
    size_t       n = dev->threads ? kvi_threads_width(dev->threads) : 1;

    if (worth < (double)n)
        n = (size_t)worth;
    return kvi_min_size(kvi_max_size(n, 1), n_items);
}

size_t kvi_ref_n_tasks(const kvi_device *dev, size_t n_items, double work)
{
    const size_t width = dev->threads ? kvi_threads_width(dev->threads) : 1;
    const double worth = work / KVI_REF_MIN_WORK;
    size_t       n = width > 1 ? CHUNKS * width : 1;

    if (worth < (double)n)
        n = (size_t)worth;
    return kvi_min_size(kvi_max_size(n, 1), n_items);
}

/* ------------------------------------------------------------------ embedding */

typedef struct embed_job {
    const kvi_embed_params *p;
} embed_job;

static void embed_rows(void *arg, size_t begin, size_t end)
{
    const kvi_embed_params *p = ((const embed_job *)arg)->p;

    for (size_t i = begin; i < end; i++) {
        float *y = p->y + i * p->y_stride;

        kvi_ref_weight_row(p->table, p->ids[i], y);
        if (p->flags & KVI_OP_ROUND_BF16)
            for (size_t c = 0; c < p->table->cols; c++)
                y[c] = kvi_round_bf16(y[c]);
    }
}

kvcsa_status kvi_cpu_embed(kvi_device *dev, const kvi_embed_params *p, kvcsa_error *err)
{
    embed_job job = {.p = p};

    (void)err;
    kvi_run(dev->threads, embed_rows, &job, p->n_rows, kvi_ref_grain(p->table->cols));
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ quantised activations */

typedef struct quant_job {
    const float *x;
    float       *out;
    size_t       x_stride;
    size_t       width;
} quant_job;

static void quant_rows(void *arg, size_t begin, size_t end)
{
    const quant_job *q = arg;

    for (size_t i = begin; i < end; i++)
        kvi_ref_act_quant(q->x + i * q->x_stride, q->width, q->out + i * q->width);
}

void kvi_ref_act_quant_rows(kvi_device *dev, const float *x, size_t x_stride, size_t n_rows,
                            size_t width, float *out)
{
    quant_job job = {.x = x, .out = out, .x_stride = x_stride, .width = width};

    kvi_run(dev->threads, quant_rows, &job, n_rows, kvi_ref_grain(8 * width));
}

/* ------------------------------------------------------------------ products */

typedef struct linear_job {
    const kvi_linear_params  *p;
    const kvi_linear_kernels *k;
    const float              *x;
    size_t                    x_stride;
    float                    *scratch; /* [n_workers, slot] */
    size_t                    slot;    /* floats */
    size_t                    n_workers;
    size_t                    chunk;   /* weight rows */
    atomic_size_t             next;    /* first weight row that nobody has taken */
} linear_job;

static void linear_work(void *arg, size_t begin, size_t end)
{
    linear_job              *job = arg;
    const kvi_linear_params *p = job->p;

    for (size_t worker = begin; worker < end; worker++)
        for (;;) {
            const size_t first = atomic_fetch_add_explicit(&job->next, job->chunk,
                                                           memory_order_relaxed);
            kvi_linear_block b = {.w = p->w,
                                  .row0 = (uint64_t)p->row0 + first,
                                  .x = job->x,
                                  .x_stride = job->x_stride,
                                  .n_rows = p->n_rows,
                                  .y = p->y + first,
                                  .y_stride = p->y_stride,
                                  .scratch = job->slot ? job->scratch + worker * job->slot : NULL,
                                  .flags = p->flags};

            if (first >= p->n_out)
                break;
            b.n_out = kvi_min_size(job->chunk, p->n_out - first);
            job->k->block(&b);
        }
}

/* Workers and chunks. One worker takes all at once. */
static void split_linear(const kvi_device *dev, linear_job *job)
{
    const kvi_linear_params *p = job->p;
    const double             work =
        (double)p->n_out * (double)p->w->cols * (double)(p->n_rows + KVI_REF_DEQUANT);
    size_t chunk = p->n_out;

    job->n_workers = kvi_linear_workers(dev, job->k, p->n_out, work);
    if (job->n_workers > 1) {
        chunk = kvi_div_up(p->n_out, CHUNKS * job->n_workers);
        if (chunk > CHUNK_ROWS / 2)
            chunk = kvi_div_up(chunk, CHUNK_ROWS) * CHUNK_ROWS;
        job->n_workers = kvi_min_size(job->n_workers, kvi_div_up(p->n_out, chunk));
    }
    job->chunk = chunk;
    job->slot =
        kvi_div_up(job->k->scratch(p->w->kind, p->w->cols, chunk, p->n_rows), 16) * 16;
}

kvcsa_status kvi_cpu_linear(kvi_device *dev, const kvi_linear_params *p, kvcsa_error *err)
{
    kvi_linear_kernels portable;
    const size_t       cols = p->w->cols;
    const bool         quant = (p->flags & KVI_OP_ACT_QUANT) && kvi_ref_quantised(p->w);
    linear_job         job = {.p = p,
                              .k = kvi_linear_use(dev, p->flags, &portable),
                              .x = p->x,
                              .x_stride = p->x_stride};
    float             *scratch = NULL;
    size_t             n_quant = 0;
    size_t             n_slots = 0;
    size_t             bytes = 0;

    if (p->n_rows == 0 || p->n_out == 0)
        return KVCSA_OK;
    split_linear(dev, &job);
    if (!kvi_mul_size(quant ? p->n_rows : 0, cols, &n_quant) ||
        !kvi_mul_size(job.n_workers, job.slot, &n_slots) ||
        !kvi_add_size(n_quant, n_slots, &bytes) || !kvi_mul_size(bytes, sizeof *scratch, &bytes) ||
        (bytes > 0 && !(scratch = kvi_alloc(&dev->allocator, bytes))))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "scratch of a linear operator, %zu rows of %zu",
                        p->n_rows, cols);
    job.scratch = scratch;
    if (quant) {
        kvi_ref_act_quant_rows(dev, p->x, p->x_stride, p->n_rows, cols, scratch + n_slots);
        job.x = scratch + n_slots;
        job.x_stride = cols;
    }
    kvi_run(dev->threads, linear_work, &job, job.n_workers, 1);
    kvi_free(&dev->allocator, scratch, bytes);
    return KVCSA_OK;
}
