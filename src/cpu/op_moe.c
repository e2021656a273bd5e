/* Mixture of experts, docs/formats.md "Network".
 *
 * The rows of a step are grouped by expert, so that an expert's weights are read and dequantised
 * once a step. Two parallel loops:
 *   1. items (expert or shared, block of inner channels):
 *      g = w1 x, u = w3 x, h = weight * silu(g) * u, into `h`
 *   2. items (block of output channels):
 *      over the experts in ascending order y += w2 h, the shared expert last
 * Workers take the items in ascending order from a counter: neighbours read neighbouring weights,
 * and experts differ in their rows. An item writes channels that no other item writes, and every
 * sum has one order: the result does not depend on the number of threads, nor (see
 * linear_kernels.h) on the other rows of the step. */
#include "cpu/ref_dense_int.h"

#include "format/dtype.h"

#include <stdatomic.h>

enum {
    /* channels of an item; a quantisation group of w2's input never crosses items */
    BLOCK = 64,
    BLOCK_LEAST = 32, /* where there would be too few items */
    ITEMS = 4         /* of a worker, at least */
};

typedef struct moe_job {
    const kvi_moe_params *p;
    const float          *x_quant;     /* [n_rows, width]; NULL = not wanted */
    size_t               *start;       /* [n_experts + 1] first slot of each expert */
    size_t               *slot_row;    /* [n_slots] */
    size_t               *active;      /* [n_active] experts with rows, ascending */
    float                *slot_weight; /* [n_slots] */
    float                *h; /* [n_slots + n_rows, inner]; the shared expert's rows last */
    float *scratch;      /* [n_workers, worker_floats]: a block of sums, then the kernel's own */
    const kvi_linear_kernels *k;
    size_t n_slots;
    size_t n_active;
    size_t most_rows;    /* of one expert, shared included */
    size_t sums_floats;
    size_t worker_floats;
    size_t n_workers;
    size_t block;        /* channels of an item */
    size_t n_items;
    atomic_size_t next;  /* first item that nobody has taken */
    /* the two allocations */
    size_t *sizes;
    float  *floats;
    size_t  sizes_bytes;
    size_t  floats_bytes;
} moe_job;

/* One expert's rows. */
typedef struct expert_rows {
    const kvi_expert *expert;
    const size_t     *ids;     /* rows of x; NULL = all */
    const float      *weights; /* NULL = 1 */
    float            *h;
    size_t            n;
} expert_rows;

static expert_rows rows_of(const moe_job *job, size_t unit)
{
    const kvi_moe_params *p = job->p;
    expert_rows r = {.expert = p->shared, .h = job->h + job->n_slots * p->inner, .n = p->n_rows};

    if (unit < job->n_active) {
        const size_t e = job->active[unit];
        const size_t first = job->start[e];

        r.expert = &p->routed[e];
        r.ids = job->slot_row + first;
        r.weights = job->slot_weight + first;
        r.h = job->h + first * p->inner;
        r.n = job->start[e + 1] - first;
    }
    return r;
}

static void up_item(const moe_job *job, size_t item, float *scratch)
{
    const kvi_moe_params *p = job->p;
    const size_t          n_blocks = kvi_div_up(p->inner, job->block);
    const expert_rows     r = rows_of(job, item / n_blocks);
    const size_t          j0 = item % n_blocks * job->block;
    const size_t          n = kvi_min_size(job->block, p->inner - j0);
    kvi_linear_block      b = {.w = &r.expert->w1,
                               .row0 = j0,
                               .n_out = n,
                               .x = p->x,
                               .ids = r.ids,
                               .x_stride = p->width,
                               .n_rows = r.n,
                               .y = r.h + j0,
                               .y_stride = p->inner,
                               .scratch = scratch + job->sums_floats,
                               .flags = p->flags};
    const kvi_activate_block act = {.g = r.h + j0,
                                    .u = scratch,
                                    .weights = r.weights,
                                    .g_stride = p->inner,
                                    .u_stride = n,
                                    .n_rows = r.n,
                                    .n = n,
                                    .limit = p->limit,
                                    .flags = p->flags};

    if (job->x_quant && kvi_ref_quantised(b.w))
        b.x = job->x_quant;
    job->k->block(&b);
    b.w = &r.expert->w3;
    b.x = job->x_quant && kvi_ref_quantised(b.w) ? job->x_quant : p->x;
    b.y = scratch;
    b.y_stride = n;
    job->k->block(&b);
    job->k->activate(&act);
    if ((p->flags & KVI_OP_ACT_QUANT) && kvi_ref_quantised(&r.expert->w2))
        for (size_t i = 0; i < r.n; i++)
            kvi_ref_act_quant(act.g + i * p->inner, n, act.g + i * p->inner);
}

static void down_item(const moe_job *job, size_t item, float *scratch)
{
    const kvi_moe_params *p = job->p;
    const size_t          j0 = item * job->block;
    const size_t          n = kvi_min_size(job->block, p->width - j0);

    for (size_t i = 0; i < p->n_rows; i++)
        memset(p->y + i * p->width + j0, 0, n * sizeof *p->y);
    for (size_t unit = 0; unit <= job->n_active; unit++) {
        const expert_rows      r = rows_of(job, unit);
        const kvi_linear_block b = {.w = &r.expert->w2,
                                    .row0 = j0,
                                    .n_out = n,
                                    .x = r.h,
                                    .x_stride = p->inner,
                                    .n_rows = r.n,
                                    .y = scratch,
                                    .y_stride = n,
                                    .scratch = scratch + job->sums_floats,
                                    .flags = p->flags};

        job->k->block(&b);
        for (size_t i = 0; i < r.n; i++) {
            float *y = p->y + (r.ids ? r.ids[i] : i) * p->width + j0;

            for (size_t j = 0; j < n; j++)
                y[j] = y[j] + scratch[i * n + j];
        }
    }
    if (p->flags & KVI_OP_ROUND_BF16)
        for (size_t i = 0; i < p->n_rows; i++)
            for (size_t j = j0; j < j0 + n; j++)
                p->y[i * p->width + j] = kvi_round_bf16(p->y[i * p->width + j]);
}

typedef void (*item_fn)(const moe_job *job, size_t item, float *scratch);

static void take_items(moe_job *job, item_fn fn, float *scratch)
{
    for (;;) {
        const size_t item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);

        if (item >= job->n_items)
            return;
        fn(job, item, scratch);
    }
}

static void up_work(void *arg, size_t begin, size_t end)
{
    moe_job *job = arg;

    for (size_t worker = begin; worker < end; worker++)
        take_items(job, up_item, job->scratch + worker * job->worker_floats);
}

static void down_work(void *arg, size_t begin, size_t end)
{
    moe_job *job = arg;

    for (size_t worker = begin; worker < end; worker++)
        take_items(job, down_item, job->scratch + worker * job->worker_floats);
}

static void run_items(kvi_device *dev, moe_job *job, kvi_range_fn fn, size_t n_items)
{
    job->n_items = n_items;
    atomic_store(&job->next, 0);
    kvi_run(dev->threads, fn, job, job->n_workers, 1);
}

/* Slots by expert, rows ascending within an expert: a counting sort. */
static void group_rows(moe_job *job)
{
    const kvi_moe_params *p = job->p;

    memset(job->start, 0, (p->n_experts + (size_t)1) * sizeof *job->start);
    for (size_t i = 0; i < job->n_slots; i++) {
        KVI_ASSERT(p->experts[i] < p->n_experts);
        job->start[p->experts[i] + 1]++;
    }
    job->most_rows = p->n_rows;
    for (size_t e = 0; e < p->n_experts; e++) {
        if (job->start[e + 1] > 0)
            job->active[job->n_active++] = e;
        job->most_rows = kvi_max_size(
            job->most_rows, job->start[e + 1]); /* larger if a row names an expert twice */
        job->start[e + 1] += job->start[e];
    }
    for (size_t i = 0; i < job->n_slots; i++) {
        const size_t at = job->start[p->experts[i]]++;

        job->slot_row[at] = i / p->k;
        job->slot_weight[at] = p->weights[i];
    }
    for (size_t e = p->n_experts; e > 0; e--) /* every start has moved to the next one's place */
        job->start[e] = job->start[e - 1];
    job->start[0] = 0;
}

/* *total += a * b; false = overflow */
static bool add_floats(size_t *total, size_t a, size_t b)
{
    size_t n = 0;

    return kvi_mul_size(a, b, &n) && kvi_add_size(*total, n, total);
}

static bool allocate_slots(kvi_device *dev, moe_job *job)
{
    const kvi_moe_params *p = job->p;
    size_t                n = 0;

    if (!kvi_mul_size(p->n_rows, p->k, &job->n_slots) || !add_floats(&n, job->n_slots, 2) ||
        !add_floats(&n, p->n_experts, 2) || !add_floats(&n, 1, 1) ||
        !kvi_mul_size(n, sizeof *job->sizes, &job->sizes_bytes) ||
        !(job->sizes = kvi_alloc(&dev->allocator, job->sizes_bytes)))
        return false;
    job->start = job->sizes;
    job->active = job->start + p->n_experts + 1;
    job->slot_row = job->active + p->n_experts;
    /* the last n_slots sizes give room to the weights */
    job->slot_weight = (float *)(void *)(job->slot_row + job->n_slots);
    return true;
}

static bool any_quantised(const kvi_moe_params *p)
{
    if (!(p->flags & KVI_OP_ACT_QUANT))
        return false;
    for (size_t e = 0; e < p->n_experts; e++)
        if (kvi_ref_quantised(&p->routed[e].w1) || kvi_ref_quantised(&p->routed[e].w3))
            return true;
    return kvi_ref_quantised(&p->shared->w1) || kvi_ref_quantised(&p->shared->w3);
}

/* Workers and items; sizes of their scratch in whole cache lines. False = too much. */
static bool split_items(const kvi_device *dev, moe_job *job)
{
    const kvi_moe_params *p = job->p;
    const double          work =
        (double)(job->n_slots + p->n_rows + (job->n_active + 1) * KVI_REF_DEQUANT) *
        (double)p->width * (double)p->inner;
    /* of the narrow blocks, in the half with fewer; without channels somebody writes the zeros */
    const size_t least =
        kvi_max_size(1, kvi_min_size((job->n_active + 1) * kvi_div_up(p->inner, BLOCK_LEAST),
                                     kvi_div_up(p->width, BLOCK_LEAST)));
    size_t kernel = 0;

    job->n_workers = kvi_linear_workers(dev, job->k, least, work);
    job->block = job->n_workers > 1 && least / (BLOCK / BLOCK_LEAST) < ITEMS * job->n_workers
                     ? BLOCK_LEAST
                     : BLOCK;
    /* not that of the larger: odd widths take little */
    kernel = kvi_max_size(job->k->scratch(KVI_W_FP4, p->width, job->block, job->most_rows),
                          job->k->scratch(KVI_W_FP4, p->inner, job->block, job->most_rows));
    return kvi_mul_size(job->most_rows, job->block, &job->sums_floats) &&
           kvi_add_size(job->sums_floats, kernel, &job->worker_floats) &&
           kvi_add_size(job->worker_floats, 15, &job->worker_floats) &&
           (job->worker_floats = job->worker_floats / 16 * 16, true);
}

/* The rest, once the most rows of an expert are known. */
static bool allocate_floats(kvi_device *dev, moe_job *job)
{
    const kvi_moe_params *p = job->p;
    const bool            quant = any_quantised(p);
    size_t                n = 0;

    if (!split_items(dev, job) || !add_floats(&n, job->n_workers, job->worker_floats) ||
        !add_floats(&n, job->n_slots, p->inner) || !add_floats(&n, p->n_rows, p->inner) ||
        !add_floats(&n, quant ? p->n_rows : 0, p->width) ||
        !kvi_mul_size(n, sizeof *job->floats, &job->floats_bytes) ||
        !(job->floats = kvi_alloc(&dev->allocator, job->floats_bytes)))
        return false;
    job->scratch = job->floats; /* first, for its alignment */
    job->h = job->scratch + job->n_workers * job->worker_floats;
    if (quant) {
        float *at = job->h + (job->n_slots + p->n_rows) * p->inner;

        kvi_ref_act_quant_rows(dev, p->x, p->width, p->n_rows, p->width, at);
        job->x_quant = at;
    }
    return true;
}

kvcsa_status kvi_cpu_moe(kvi_device *dev, const kvi_moe_params *p, kvcsa_error *err)
{
    kvi_linear_kernels portable;
    kvcsa_status       st = KVCSA_OK;
    moe_job            job = {.p = p, .k = kvi_linear_use(dev, p->flags, &portable)};

    if (p->n_rows == 0)
        return KVCSA_OK;
    if (!allocate_slots(dev, &job)) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "lists of the experts, %zu rows", p->n_rows);
        goto done;
    }
    group_rows(&job);
    if (!allocate_floats(dev, &job)) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "scratch of the experts, %zu rows", p->n_rows);
        goto done;
    }
    run_items(dev, &job, up_work, (job.n_active + 1) * kvi_div_up(p->inner, job.block));
    run_items(dev, &job, down_work, kvi_div_up(p->width, job.block));
done:
    kvi_free(&dev->allocator, job.floats, job.floats_bytes);
    kvi_free(&dev->allocator, job.sizes, job.sizes_bytes);
    return st;
}
