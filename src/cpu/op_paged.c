/* Attention over paged keys and values: the split of the work.
 *
 * Query rows are taken in groups, one KV head at a time, so that keys and values are decoded once
 * for all query heads that read them (at most KVI_PAGED_MAX_Q rows x heads; more heads than that
 * on one KV head are cut into parts). A group and a part of heads is a unit.
 *
 *   whole   many units: a unit is an item, and merges its chunks one after the other as it goes
 *   split   few units (one row of a long context): a chunk of a unit is an item and leaves its
 *           state in memory; a second loop merges the states of each row and head
 *
 * Both merge the same states in the same order, so the bits are equal (paged_kernels.h). */
#include "cpu/cpu_ops.h"

#include "base/checked.h"
#include "format/row.h"
#include "plan/cache_plan.h"
#include "cpu/ref_dense_int.h"

#include <stdatomic.h>
#include <string.h>

enum { UNITS_PER_THREAD = 16, RANGES_PER_THREAD = 32 };
#define STATE_BYTES ((size_t)64 << 20) /* of the states in memory, unless one group needs more */

typedef struct paged_job {
    const kvi_paged_attend_params *p;
    const kvi_paged_kernels       *kernels;
    const kvcsa_allocator         *allocator;
    size_t                         row_bytes;
    size_t                         n_ratio;    /* query heads of a KV head */
    size_t                         n_parts;    /* that they are cut into */
    size_t                         part_heads; /* heads of a part; the last may have fewer */
    size_t                         group_rows;
    size_t                         first_group;
    size_t                         n_groups;
    size_t                         n_chunks;   /* split: of the longest row */
    kvi_paged_state               *states;     /* split: [items, unit_q] */
    float                         *outs;       /* split: [items, unit_q, width] */
    atomic_int                     no_memory;
} paged_job;

/* A unit: rows row .. row + n_rows - 1, heads head .. head + n_heads - 1. */
typedef struct unit {
    size_t   row;
    size_t   n_rows;
    size_t   head;
    size_t   n_heads;
    uint32_t kv_head;
    uint64_t end; /* largest n_visible */
} unit;

typedef struct scratch {
    kvi_paged_chunk  c;
    kvi_paged_state  states[KVI_PAGED_MAX_Q];
    kvi_paged_state  merged[KVI_PAGED_MAX_Q];
    uint32_t         n_seen[KVI_PAGED_MAX_Q];
    float           *q;      /* [KVI_PAGED_MAX_Q, width] */
    float           *outs;   /* the same */
    float           *memory;
    size_t           bytes;
} scratch;

static size_t units_per_group(const paged_job *job)
{
    return job->p->n_kv_heads * job->n_parts;
}

static size_t unit_q(const paged_job *job)
{
    return job->group_rows * job->part_heads;
}

/* Units of one KV head follow one another: their keys may still lie in a cache. */
static void find_unit(const paged_job *job, size_t idx, unit *u)
{
    const size_t part = idx / job->n_groups % job->n_parts;

    u->kv_head = (uint32_t)(idx / job->n_groups / job->n_parts);
    u->row = (job->first_group + idx % job->n_groups) * job->group_rows;
    u->n_rows = kvi_min_size(job->group_rows, job->p->n_rows - u->row);
    u->head = u->kv_head * job->n_ratio + part * job->part_heads;
    u->n_heads = kvi_min_size(job->part_heads, job->n_ratio - part * job->part_heads);
    u->end = 0;
    for (size_t i = 0; i < u->n_rows; i++)
        if (job->p->n_visible[u->row + i] > u->end)
            u->end = job->p->n_visible[u->row + i];
}

static float *unit_out(const paged_job *job, const unit *u, size_t i)
{
    const kvi_paged_attend_params *p = job->p;

    return p->out +
           ((u->row + i / u->n_heads) * p->n_heads + u->head + i % u->n_heads) * p->width;
}

/* ---------------------------------------------------------------- one unit */

static int scratch_init(paged_job *job, scratch *s)
{
    const size_t width = job->p->width;
    const size_t n = KVI_PAGED_SCRATCH(width) + 2 * (size_t)KVI_PAGED_MAX_Q * width;

    s->bytes = n * sizeof(float);
    s->memory = atomic_load(&job->no_memory) ? NULL : kvi_alloc(job->allocator, s->bytes);
    if (!s->memory) {
        atomic_store(&job->no_memory, 1);
        return 0;
    }
    s->q = s->memory + KVI_PAGED_SCRATCH(width);
    s->outs = s->q + (size_t)KVI_PAGED_MAX_Q * width;
    s->c = (kvi_paged_chunk){.p = job->p, .row_bytes = job->row_bytes, .n_seen = s->n_seen,
                             .q = s->q, .state = s->states, .out = s->outs, .scratch = s->memory};
    return 1;
}

static void begin_unit(const paged_job *job, const unit *u, scratch *s)
{
    const kvi_paged_attend_params *p = job->p;

    for (size_t i = 0; i < u->n_rows; i++)
        memcpy(s->q + i * u->n_heads * p->width,
               p->q + ((u->row + i) * p->n_heads + u->head) * p->width,
               u->n_heads * p->width * sizeof(float));
    s->c.kv_head = u->kv_head;
    s->c.n_q = (uint32_t)(u->n_rows * u->n_heads);
}

static void run_chunk(const paged_job *job, const unit *u, uint64_t first, uint64_t ahead,
                      scratch *s)
{
    for (size_t i = 0; i < s->c.n_q; i++) {
        const uint64_t n = job->p->n_visible[u->row + i / u->n_heads];

        s->n_seen[i] = n <= first ? 0 : (uint32_t)kvi_min_size(n - first, KVI_PAGED_CHUNK);
    }
    s->c.first = first;
    s->c.ahead = ahead < u->end ? ahead : u->end;
    job->kernels->chunk(&s->c);
}

static void begin_out(float *out, size_t width, kvi_paged_state *state)
{
    memset(out, 0, width * sizeof *out);
    *state = (kvi_paged_state){-1e30f, 0.0f};
}

static void end_out(const paged_job *job, size_t head, const kvi_paged_state *state, float *out)
{
    job->kernels->finish(state, job->p->sink ? job->p->sink + head : NULL, out, job->p->width);
}

/* ---------------------------------------------------------------- whole */

static void run_whole(void *arg, size_t begin, size_t end)
{
    paged_job   *job = arg;
    const size_t width = job->p->width;
    scratch      s;
    unit         u;

    if (!scratch_init(job, &s))
        return;
    for (size_t item = begin; item < end; item++) {
        find_unit(job, item, &u);
        begin_unit(job, &u, &s);
        for (size_t i = 0; i < s.c.n_q; i++)
            begin_out(unit_out(job, &u, i), width, &s.merged[i]);
        for (uint64_t first = 0; first < u.end; first += KVI_PAGED_CHUNK) {
            run_chunk(job, &u, first, u.end, &s);
            for (size_t i = 0; i < s.c.n_q; i++)
                if (s.n_seen[i] > 0)
                    job->kernels->merge(&s.merged[i], unit_out(job, &u, i), &s.states[i],
                                        s.outs + i * width, width);
        }
        for (size_t i = 0; i < s.c.n_q; i++)
            if (job->p->n_visible[u.row + i / u.n_heads] > 0)
                end_out(job, u.head + i % u.n_heads, &s.merged[i], unit_out(job, &u, i));
    }
    kvi_free(job->allocator, s.memory, s.bytes);
}

/* ---------------------------------------------------------------- split */

static void run_chunks(void *arg, size_t begin, size_t end)
{
    paged_job   *job = arg;
    const size_t n_q = unit_q(job);
    size_t       loaded = SIZE_MAX;
    scratch      s;
    unit         u;

    if (!scratch_init(job, &s))
        return;
    for (size_t item = begin; item < end; item++) {
        const size_t   idx = item / job->n_chunks;
        const uint64_t first = (uint64_t)(item % job->n_chunks) * KVI_PAGED_CHUNK;

        if (idx != loaded) {
            find_unit(job, idx, &u);
            begin_unit(job, &u, &s);
            loaded = idx;
        }
        s.c.state = job->states + item * n_q;
        s.c.out = job->outs + item * n_q * job->p->width;
        if (first < u.end)
            run_chunk(job, &u, first, first + (end - item) * KVI_PAGED_CHUNK, &s);
    }
    kvi_free(job->allocator, s.memory, s.bytes);
}

static void run_merge(void *arg, size_t begin, size_t end)
{
    const paged_job               *job = arg;
    const kvi_paged_attend_params *p = job->p;
    const size_t                   n_q = unit_q(job);
    kvi_paged_state                state;
    unit                           u;

    for (size_t at = begin; at < end; at++) {
        const size_t i = at % n_q;
        uint64_t     n_visible;
        float       *out;

        find_unit(job, at / n_q, &u);
        if (i >= u.n_rows * u.n_heads)
            continue;
        out = unit_out(job, &u, i);
        begin_out(out, p->width, &state);
        n_visible = p->n_visible[u.row + i / u.n_heads];
        for (size_t chunk = 0; (uint64_t)chunk * KVI_PAGED_CHUNK < n_visible; chunk++) {
            const size_t slot = (at / n_q * job->n_chunks + chunk) * n_q + i;

            job->kernels->merge(&state, out, job->states + slot, job->outs + slot * p->width,
                                p->width);
        }
        if (n_visible > 0)
            end_out(job, u.head + i % u.n_heads, &state, out);
    }
}

/* n_groups groups from first_group on. */
static kvcsa_status attend_split(kvi_device *dev, paged_job *job, size_t bytes, kvcsa_error *err)
{
    const size_t n_units = job->n_groups * units_per_group(job);
    const size_t n_q = unit_q(job);
    const size_t n_slots = n_units * job->n_chunks * n_q;
    const size_t n_ranges = RANGES_PER_THREAD * (size_t)kvi_threads_width(dev->threads);
    const size_t work = 2 * n_q * job->p->width * KVI_PAGED_CHUNK;
    float       *memory = kvi_alloc(job->allocator, bytes);

    if (!memory)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "paged attention: states of %zu bytes", bytes);
    job->outs = memory;
    job->states = (kvi_paged_state *)(memory + n_slots * job->p->width);
    kvi_run(dev->threads, run_chunks, job, n_units * job->n_chunks,
            kvi_max_size(n_units * job->n_chunks / n_ranges, kvi_ref_grain(work)));
    if (!atomic_load(&job->no_memory))
        kvi_run(dev->threads, run_merge, job, n_units * n_q,
                kvi_ref_grain(8 * job->n_chunks * job->p->width));
    kvi_free(job->allocator, memory, bytes);
    return KVCSA_OK;
}

/* ---------------------------------------------------------------- the operator */

void kvi_paged_init(kvi_paged_kernels *k, uint32_t flags)
{
    k->flags = flags;
    kvi_paged_ref(k);
#if defined(KVI_ARCH_X86_64)
    if (flags & KVCSA_CPU_AVX2)
        kvi_paged_avx2(k);
    if (flags & KVCSA_CPU_AVX512)
        kvi_paged_avx512(k);
#elif defined(KVI_ARCH_ARM64)
    if (flags & KVCSA_CPU_NEON)
        kvi_paged_neon(k);
#endif
}

static void job_init(kvi_device *dev, const kvi_paged_attend_params *p, paged_job *job)
{
    job->p = p;
    job->kernels = &dev->paged;
    job->allocator = &dev->allocator;
    job->row_bytes = kvi_format_row_bytes(p->format, p->width);
    job->n_ratio = p->n_heads / p->n_kv_heads;
    job->n_parts = kvi_div_up(job->n_ratio, KVI_PAGED_MAX_Q);
    job->part_heads = kvi_div_up(job->n_ratio, job->n_parts);
    job->group_rows = kvi_min_size(KVI_PAGED_MAX_Q / job->part_heads, p->n_rows);
    job->n_groups = kvi_div_up(p->n_rows, job->group_rows);
    atomic_init(&job->no_memory, 0);
}

/* Chunks of the longest row of all. */
static size_t count_chunks(const kvi_paged_attend_params *p)
{
    uint64_t most = 0;

    for (size_t i = 0; i < p->n_rows; i++)
        most = p->n_visible[i] > most ? p->n_visible[i] : most;
    return kvi_div_up(most, KVI_PAGED_CHUNK);
}

static kvcsa_status run_batches(kvi_device *dev, paged_job *job, kvcsa_error *err)
{
    const size_t n_groups = job->n_groups;
    const size_t slot_bytes = job->p->width * sizeof(float) + sizeof(kvi_paged_state);
    kvcsa_status st = KVCSA_OK;
    size_t       group_bytes;

    if (!kvi_mul_size(units_per_group(job) * unit_q(job) * slot_bytes, job->n_chunks, &group_bytes))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "paged attention: states of %zu chunks",
                        job->n_chunks);
    while (st == KVCSA_OK && job->first_group < n_groups) {
        job->n_groups = kvi_min_size(kvi_max_size(STATE_BYTES / group_bytes, 1),
                                     n_groups - job->first_group);
        st = attend_split(dev, job, job->n_groups * group_bytes, err);
        job->first_group += job->n_groups;
    }
    return st;
}

kvcsa_status kvi_cpu_paged_attend(kvi_device *dev, const kvi_paged_attend_params *p,
                                  kvcsa_error *err)
{
    const size_t n_threads = dev->threads ? kvi_threads_width(dev->threads) : 1;
    kvcsa_status st = KVCSA_OK;
    paged_job    job = {0};
    size_t       n_units;

    KVI_ASSERT(p->width > 0 && p->width % 32 == 0 && p->page_rows > 0);
    KVI_ASSERT(p->n_kv_heads > 0 && p->n_heads > 0 && p->n_heads % p->n_kv_heads == 0);
    if (!kvi_row_can_run(p->format) || kvi_format_row_bytes(p->format, p->width) == 0)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "paged attention: format %u of %u channels",
                        p->format, p->width);
    if (p->n_rows == 0)
        return KVCSA_OK;
    job_init(dev, p, &job);
    job.n_chunks = count_chunks(p);
    n_units = job.n_groups * units_per_group(&job);
    if (n_threads == 1 || job.n_chunks <= 1 || n_units >= UNITS_PER_THREAD * n_threads)
        kvi_run(dev->threads, run_whole, &job, n_units,
                kvi_ref_grain(2 * unit_q(&job) * p->width * job.n_chunks * KVI_PAGED_CHUNK));
    else
        st = run_batches(dev, &job, err);
    if (st == KVCSA_OK && atomic_load(&job.no_memory))
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "paged attention: scratch for %u channels", p->width);
    return st;
}
