/* Norm, rotation, residual stream (mHC), Engram gate, router: rows are independent, so each
 * operator is a loop over rows whose ranges are long enough to be worth a wake-up. */
#include "cpu/cpu_ops.h"

#include "base/checked.h"

static const kvi_dense_kernels portable = {
    .angle = 150,
    .balance = 40,
    .score = 500,
    .norm = kvi_ref_norm,
    .rope = kvi_ref_rope,
    .mix = kvi_ref_mix,
    .collapse = kvi_ref_collapse,
    .expand = kvi_ref_expand,
    .engram_gate = kvi_ref_engram_gate,
    .route = kvi_ref_route,
};

void kvi_dense_init(kvi_dense_kernels *k, uint32_t flags)
{
    *k = portable;
#if defined(KVI_ARCH_X86_64)
    if (flags & KVCSA_CPU_AVX2)
        kvi_dense_avx2(k);
    if (flags & KVCSA_CPU_AVX512)
        kvi_dense_avx512(k);
#elif defined(KVI_ARCH_ARM64)
    if (flags & KVCSA_CPU_NEON)
        kvi_dense_neon(k);
#endif
    k->flags = flags;
}

/* Only the portable kernels know the reference mode. */
static const kvi_dense_kernels *kernels(const kvi_device *dev, uint32_t op_flags)
{
    return op_flags & (KVI_OP_ROUND_BF16 | KVI_OP_ACT_QUANT) ? &portable : &dev->dense;
}

/* Floats that take about 20 us to pass by, half as long in L2: less is not worth a wake-up. */
#define MIN_WORK 250000u

/* Rows of a range, for rows of `work` floats. */
static size_t grain(size_t work)
{
    return kvi_max_size(1, MIN_WORK / kvi_max_size(work, 1));
}

typedef struct job {
    const kvi_dense_kernels *kernels;
    const void              *params;
} job;

/* ------------------------------------------------------------------ norm, rope */

static void norm_rows(void *arg, size_t begin, size_t end)
{
    const job *j = arg;

    j->kernels->norm(j->params, begin, end);
}

/* A zero row gives zeros for eps > 0. A NaN makes its row NaN; an infinity becomes NaN, and the
 * rest of its row 0. */
kvcsa_status kvi_cpu_norm(kvi_device *dev, const kvi_norm_params *p, kvcsa_error *err)
{
    job j = {.kernels = kernels(dev, p->flags), .params = p};

    (void)err;
    kvi_run(dev->threads, norm_rows, &j, p->n_rows, grain(3 * (size_t)p->width));
    return KVCSA_OK;
}

static void rope_rows(void *arg, size_t begin, size_t end)
{
    const job *j = arg;

    j->kernels->rope(j->params, begin, end);
}

kvcsa_status kvi_cpu_rope(kvi_device *dev, const kvi_rope_params *p, kvcsa_error *err)
{
    job          j = {.kernels = kernels(dev, p->flags), .params = p};
    const size_t work = (size_t)p->n_rotated / 2 * (j.kernels->angle + 4 * (size_t)p->n_heads);

    (void)err;
    KVI_ASSERT(p->n_rotated % 2 == 0 && p->n_rotated <= p->width);
    kvi_run(dev->threads, rope_rows, &j, p->n_rows, grain(work));
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ residual stream */

static void mix_rows(void *arg, size_t begin, size_t end)
{
    const job *j = arg;

    j->kernels->mix(j->params, begin, end);
}

kvcsa_status kvi_cpu_mix(kvi_device *dev, const kvi_mix_params *p, kvcsa_error *err)
{
    job          j = {.kernels = &dev->dense, .params = p};
    const size_t m = p->copies;
    const size_t work = m * p->width + (size_t)p->n_iters * j.kernels->balance * m * m;

    (void)err;
    KVI_ASSERT(m >= 1 && m <= KVI_MAX_COPIES);
    kvi_run(dev->threads, mix_rows, &j, p->n_rows, grain(work));
    return KVCSA_OK;
}

static void collapse_rows(void *arg, size_t begin, size_t end)
{
    const job *j = arg;

    j->kernels->collapse(j->params, begin, end);
}

kvcsa_status kvi_cpu_collapse(kvi_device *dev, const kvi_collapse_params *p, kvcsa_error *err)
{
    job          j = {.kernels = kernels(dev, p->flags), .params = p};
    const size_t m = p->copies;

    (void)err;
    kvi_run(dev->threads, collapse_rows, &j, p->n_rows, grain((m + 1) * p->width));
    return KVCSA_OK;
}

static void expand_rows(void *arg, size_t begin, size_t end)
{
    const job *j = arg;

    j->kernels->expand(j->params, begin, end);
}

kvcsa_status kvi_cpu_expand(kvi_device *dev, const kvi_expand_params *p, kvcsa_error *err)
{
    job          j = {.kernels = kernels(dev, p->flags), .params = p};
    const size_t m = p->copies;

    (void)err;
    KVI_ASSERT(m >= 1 && m <= KVI_MAX_COPIES);
    kvi_run(dev->threads, expand_rows, &j, p->n_rows, grain((2 * m + 1) * p->width));
    return KVCSA_OK;
}

static void engram_rows(void *arg, size_t begin, size_t end)
{
    const job *j = arg;

    j->kernels->engram_gate(j->params, begin, end);
}

kvcsa_status kvi_cpu_engram_gate(kvi_device *dev, const kvi_engram_gate_params *p, kvcsa_error *err)
{
    job          j = {.kernels = kernels(dev, p->flags), .params = p};
    const size_t m = p->copies;

    (void)err;
    kvi_run(dev->threads, engram_rows, &j, p->n_rows, grain((5 * m + 1) * p->width));
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ router */

typedef struct route_job {
    const kvi_dense_kernels *kernels;
    const kvi_route_params  *p;
    float                   *scratch; /* [n_tasks, floats] */
    size_t                   floats;
    size_t                   n_tasks;
} route_job;

static void route_tasks(void *arg, size_t begin, size_t end)
{
    const route_job *j = arg;
    const size_t     n = j->p->n_rows;

    for (size_t t = begin; t < end; t++)
        j->kernels->route(j->p, j->scratch + t * j->floats, n * t / j->n_tasks,
                          n * (t + 1) / j->n_tasks);
}

kvcsa_status kvi_cpu_route(kvi_device *dev, const kvi_route_params *p, kvcsa_error *err)
{
    route_job    j = {.kernels = &dev->dense, .p = p, .floats = kvi_route_floats(p->n_experts)};
    const size_t work = (size_t)p->n_experts * (j.kernels->score + p->k);
    const size_t width = dev->threads ? kvi_threads_width(dev->threads) : 1;
    size_t       bytes = 0;

    KVI_ASSERT(p->k <= p->n_experts);
    if (p->n_rows == 0)
        return KVCSA_OK;
    /* four tasks a thread, so that a late one does not hold up the rest for long */
    j.n_tasks = kvi_min_size(width > 1 ? 4 * width : 1,
                             kvi_div_up(p->n_rows, grain(work)));
    bytes = j.n_tasks * j.floats * sizeof *j.scratch;
    if (!(j.scratch = kvi_alloc(&dev->allocator, bytes)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "scratch of the router, %zu bytes", bytes);
    kvi_run(dev->threads, route_tasks, &j, j.n_tasks, 1);
    kvi_free(&dev->allocator, j.scratch, bytes);
    return KVCSA_OK;
}
