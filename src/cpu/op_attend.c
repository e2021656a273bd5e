/* Attention over the window and the selected entries of a row: work split and keys. The algorithm:
 * ref_attend.c.
 *
 * An item of work is a group of neighbouring rows and some of the heads. It takes its rows one by
 * one and the slots of a row in passes: the keys of a pass are dequantised once and stay in the L2
 * cache for all heads of the item; window keys are dequantised once for a group of rows. Items
 * share nothing: one parallel loop a call is enough, and a thread never waits for the keys of
 * another. Where a row is cut into parts, each part dequantises its keys again: with 64 heads of
 * 512 channels that costs as much as five heads, and keys that another core has dequantised cost
 * about as much to fetch. Groups end with their slice: an item sees the parameters of a call for
 * that slice alone, and the items of all slices are one loop.
 *
 * Keys are decoded a few at a time, just before the kernel scores them. Entries lie at random
 * places of the cache; those of the next pass are prefetched by that kernel, in between. Rows of
 * keys in scratch are a line longer than the key, so that equal channels do not meet in one set of
 * the L1 cache. */
#include "cpu/cpu_ops.h"

#include "base/checked.h"
#include "base/fmath.h"
#include "format/dtype.h"
#include "format/fp8.h"
#include "format/row.h"

#include <stdatomic.h>
#include <string.h>

enum {
    LINE = 64,      /* bytes of a cache line */
    ROWS_GROUP = 8, /* rows that share dequantised window keys */
    KEY_HEADS = 5   /* dequantising the keys of a row, in units of the work of a head */
};

typedef struct attend_job {
    const kvi_attend_params *p;
    const kvi_device        *dev;
    kvi_attend_kernels       kernels;
    size_t                   n_slots;    /* of a row */
    size_t                   each;       /* rows of a slice, the last may have fewer */
    size_t                   n_slices;
    size_t                   n_groups;   /* of the rows of a slice */
    size_t                   n_parts;    /* of heads */
    size_t                   n_tasks;
    size_t                   key_stride; /* floats from key to key in scratch */
    uint8_t                 *scratch;    /* [n_tasks, task_bytes] */
    size_t                   task_bytes;
    float                   *scores;     /* [n_rows, n_heads, k] if there are parts and somebody
                                          * wants the mass */
    atomic_size_t            next_item;
} attend_job;

/* Scratch of a task, and the slice that it is at. */
typedef struct task {
    const kvi_attend_params *p; /* of a call for the slice alone */
    kvi_attend_params        slice;
    size_t                   row0; /* of the slice's rows among all */
    float   *keys;       /* [KVI_ATTEND_PASS, key_stride] of the entries of a pass; of window rows
                          * too, where a group is a single row */
    float   *window;     /* [n_window + rows of a group - 1, key_stride] keys of positions
                          * window_pos..; NULL where a group is a single row */
    float   *scores;     /* [n_heads, k]; NULL = nobody asks for the mass, or the job has them */
    float   *max;        /* [n_heads] */
    float   *sum;        /* [n_heads] */
    float   *lanes;      /* of kvi_attend_heads, as dots */
    float   *dots;
    uint64_t window_pos;
} task;

/* ---------------------------------------------------------------- keys */

static uint64_t first_position(const kvi_attend_params *p, size_t row)
{
    const uint64_t end = p->pos[row] + 1;
    const uint64_t lo = end > p->n_window ? end - p->n_window : 0;

    return lo > p->floor ? lo : p->floor;
}

static const uint8_t *window_row(const kvi_attend_params *p, uint64_t pos)
{
    const uint64_t ring_rows = (uint64_t)p->n_pages * p->page_rows;
    uint32_t       slot;

    if (pos >= p->chunk_pos)
        return p->chunk + (pos - p->chunk_pos) * p->row_bytes;
    slot = (uint32_t)(pos % ring_rows);
    return p->pages[slot / p->page_rows] + p->page_off +
           (size_t)(slot % p->page_rows) * p->row_bytes;
}

static const uint8_t *entry_row(const kvi_attend_params *p, uint32_t entry)
{
    const kvi_kv_owner *o = p->entries.owner;
    const uint8_t      *part = p->entries.main_parts[entry / o->rows_per_block];

    return part + kvi_kv_main_row_off(o, entry % o->rows_per_block);
}

static void load_window(const attend_job *job, size_t row_begin, size_t row_end, task *t)
{
    const kvi_attend_params *p = t->p;
    const uint64_t           last = p->pos[row_end - 1];

    t->window_pos = first_position(p, row_begin);
    for (uint64_t pos = t->window_pos; pos <= last && p->n_window > 0; pos++)
        job->dev->cache.decode_window(window_row(p, pos), p->width,
                                      t->window + (pos - t->window_pos) * job->key_stride);
}

/* What a pass is made of: its slots that are not empty, window slots first. */
typedef struct pass {
    const uint8_t *rows[KVI_ATTEND_PASS]; /* in the cache; NULL = a window key that is there */
    uint32_t       slots[KVI_ATTEND_PASS];
    size_t         n_window;
    size_t         n; /* with the entries */
} pass;

/* The pass that begins with slot `begin`; behind the last slot it has nothing. */
static void find_rows(const attend_job *job, size_t row, size_t begin, const task *t, pass *s)
{
    const kvi_attend_params *p = t->p;
    const size_t             end = kvi_min_size(begin + KVI_ATTEND_PASS, job->n_slots);
    const uint64_t           lo = first_position(p, row);
    size_t                   slot = begin;

    s->n = 0;
    for (; slot < end && slot < p->n_window; slot++) {
        if (lo + slot > p->pos[row])
            continue;
        s->rows[s->n] = t->window ? NULL : window_row(p, lo + slot);
        s->slots[s->n++] = (uint32_t)slot;
    }
    s->n_window = s->n;
    for (; slot < end; slot++) {
        const int32_t entry = p->ids[row * p->k + slot - p->n_window];

        if (entry < 0)
            continue;
        s->rows[s->n] = entry_row(p, (uint32_t)entry);
        s->slots[s->n++] = (uint32_t)slot;
    }
}

static kvi_attend_next entries_of(const attend_job *job, const pass *s)
{
    return (kvi_attend_next){.rows = s->rows + s->n_window,
                             .n = s->n - s->n_window,
                             .bytes = s->n > s->n_window ? job->p->entries.owner->main_row_bytes
                                                         : 0};
}

static void prefetch(const kvi_attend_next *next) /* to the L2 cache */
{
    for (size_t i = 0; i < next->n; i++) {
        for (size_t at = 0; at < next->bytes; at += LINE)
            __builtin_prefetch(next->rows[i] + at, 0, 2);
        __builtin_prefetch(next->rows[i] + next->bytes - 1, 0, 2);
    }
}

static void end_tiles(kvi_attend_keys *keys, size_t n_keys)
{
    keys->n_tiles = 0;
    for (size_t i = 0; i < n_keys; i++) {
        if (i + 1 < n_keys &&
            keys->slots[i + 1] / KVI_ATTEND_TILE == keys->slots[i] / KVI_ATTEND_TILE)
            continue;
        keys->ends[keys->n_tiles++] = (uint32_t)i + 1;
    }
}

/* The keys begin .. end - 1 of a pass. */
static void decode_keys(const attend_job *job, size_t row, const pass *s, const task *t,
                        size_t begin, size_t end, kvi_attend_keys *keys)
{
    const kvi_attend_params *p = t->p;
    const kvi_cache_kernels *cache = &job->dev->cache;
    const uint64_t           lo = first_position(p, row);

    for (size_t i = begin; i < end; i++) {
        float *key = t->keys + i * job->key_stride;

        if (i >= s->n_window)
            cache->decode_entry(p->entries.owner->entry_format, s->rows[i], p->width, key);
        else if (t->window)
            key = t->window + (lo + s->slots[i] - t->window_pos) * job->key_stride;
        else
            cache->decode_window(s->rows[i], p->width, key);
        keys->rows[i] = key;
        keys->slots[i] = s->slots[i];
    }
}

/* Decodes and scores a pass and asks for the entries of the next one. */
static void take_pass(const attend_job *job, size_t row, const pass *s, const pass *next_pass,
                      const task *t, const kvi_attend_heads *h, kvi_attend_keys *keys)
{
    const size_t    step = job->kernels.score_keys;
    kvi_attend_next next = entries_of(job, next_pass);
    size_t          end;

    for (size_t begin = 0; begin < s->n; begin = end) {
        end = step == 0 ? s->n : kvi_min_size(begin + step, s->n);
        decode_keys(job, row, s, t, begin, end, keys);
        if (step != 0)
            job->kernels.score(h, keys, begin, end, &next);
    }
    prefetch(&next);
    end_tiles(keys, s->n);
}

/* ---------------------------------------------------------------- a row */

/* Probabilities [n_heads, k] to the mass of a row. */
static void add_mass(const kvi_attend_params *p, size_t row, const float *probabilities)
{
    float *mass = p->mass + row * p->k;

    kvi_attend_add_heads(probabilities, p->n_heads, p->k, mass);
    for (size_t j = 0; j < p->k; j++)
        if (p->ids[row * p->k + j] < 0)
            mass[j] = 0.0f;
}

static float *scores_of(const attend_job *job, size_t row, const task *t)
{
    if (job->scores)
        return job->scores + (t->row0 + row) * job->p->n_heads * job->p->k;
    return t->scores;
}

static void attend_row(const attend_job *job, size_t row, size_t head_begin, size_t head_end,
                       const task *t)
{
    const kvi_attend_params *p = t->p;
    const size_t             at = (row * p->n_heads + head_begin) * p->width;
    float                   *scores = scores_of(job, row, t);
    pass                     passes[2];
    kvi_attend_keys          keys;
    kvi_attend_next          next;
    kvi_attend_heads         h = {.q = p->q + at,
                                  .out = p->out + at,
                                  .max = t->max,
                                  .sum = t->sum,
                                  .lanes = t->lanes,
                                  .dots = t->dots,
                                  .n_heads = head_end - head_begin,
                                  .width = p->width,
                                  .k = p->k,
                                  .n_window = p->n_window,
                                  .scale = p->scale,
                                  .first = 1,
                                  .flags = p->flags};

    for (size_t i = 0; i < h.n_heads; i++) {
        h.max[i] = -1e30f;
        h.sum[i] = 0.0f;
    }
    if (scores) {
        h.scores = scores + head_begin * p->k;
        memset(h.scores, 0, h.n_heads * p->k * sizeof *scores);
    }
    find_rows(job, row, 0, t, &passes[0]);
    next = entries_of(job, &passes[0]);
    prefetch(&next);
    if (job->kernels.score_keys != 0)
        job->kernels.arrange(&h);
    for (size_t i = 0; i * KVI_ATTEND_PASS < job->n_slots; i++) {
        find_rows(job, row, (i + 1) * KVI_ATTEND_PASS, t, &passes[(i + 1) % 2]);
        take_pass(job, row, &passes[i % 2], &passes[(i + 1) % 2], t, &h, &keys);
        if (keys.n_tiles > 0) {
            job->kernels.add_keys(&h, &keys);
            h.first = 0;
        }
    }
    if (h.first) /* no key at all */
        memset(h.out, 0, h.n_heads * h.width * sizeof *h.out);
    job->kernels.finish(&h, p->sink + head_begin);
}

/* ---------------------------------------------------------------- tasks */

/* Part i of n things cut into n_parts: begins here. */
static size_t part_begin(size_t n, size_t n_parts, size_t i)
{
    return n / n_parts * i + kvi_min_size(n % n_parts, i);
}

static void check_slice(const kvi_attend_params *p)
{
    (void)p;
    KVI_ASSERT(p->chunk_pos <= p->pos[0] && p->pos[p->n_rows - 1] == p->pos[0] + p->n_rows - 1);
    KVI_ASSERT(first_position(p, 0) >= p->chunk_pos ||
               (uint64_t)p->n_pages * p->page_rows >= p->n_window);
}

/* The parameters of a call for one slice alone. */
static void take_slice(const attend_job *job, size_t slice, task *t)
{
    const kvi_attend_params *p = job->p;
    const size_t             row0 = slice * job->each;
    const kvi_slice_rows    *rows = &p->of.rows[slice];
    kvi_attend_params       *one = &t->slice;

    *one = *p;
    one->of.slices = NULL;
    one->q += row0 * p->n_heads * p->width;
    one->out += row0 * p->n_heads * p->width;
    one->pos += row0;
    one->ids = p->ids ? p->ids + row0 * p->k : NULL;
    one->mass = p->mass ? p->mass + row0 * p->k : NULL;
    one->pages = p->of.slices[slice].pages;
    one->entries.main_parts = p->of.slices[slice].main_parts;
    one->chunk += rows->row * p->row_bytes;
    one->chunk_pos = rows->pos;
    one->floor = rows->floor;
    one->n_rows = kvi_min_size(job->each, p->n_rows - row0);
    check_slice(one);
    t->p = one;
    t->row0 = row0;
}

static void run_item(const attend_job *job, size_t item, task *t)
{
    const kvi_attend_params *p = job->p;
    const size_t             part = item % job->n_parts;
    size_t                   group = item / job->n_parts;
    size_t                   row_end;
    size_t                   row;

    if (p->of.slices) {
        take_slice(job, group / job->n_groups, t);
        group %= job->n_groups;
        p = t->p;
    }
    row = part_begin(p->n_rows, job->n_groups, group);
    row_end = part_begin(p->n_rows, job->n_groups, group + 1);
    if (row == row_end)
        return;
    if (t->window)
        load_window(job, row, row_end, t);
    for (; row < row_end; row++) {
        attend_row(job, row, part_begin(p->n_heads, job->n_parts, part),
                   part_begin(p->n_heads, job->n_parts, part + 1), t);
        if (t->scores)
            add_mass(p, row, t->scores);
    }
}

/* Where the parts of a task's scratch lie. With t NULL only their size; false = overflow. */
static bool divide_scratch(const attend_job *job, uint8_t *at, task *t, size_t *bytes)
{
    const kvi_attend_params *p = job->p;
    const size_t             rows = kvi_div_up(job->each, job->n_groups);
    const bool               scores = p->mass != NULL && job->n_parts == 1;
    const size_t             heads = job->kernels.score_keys == 0
                                         ? 0
                                         : kvi_div_up(p->n_heads, job->n_parts * 16) * 16;
    const size_t             counts[6][2] = {
        {KVI_ATTEND_PASS, job->key_stride},
        {rows > 1 ? p->n_window + rows - 1 : 0, job->key_stride},
        {scores ? p->n_heads : 0, p->k},
        {2, p->n_heads},
        {heads, p->width},
        {heads, KVI_ATTEND_PASS},
    };
    size_t ends[6] = {0};
    size_t n = 0;

    for (size_t i = 0; i < 6; i++) {
        size_t size = 0;

        if (!kvi_mul_size(counts[i][0], counts[i][1], &size) || !kvi_add_size(n, size, &n) ||
            !kvi_add_size(n, (0 - n) % (LINE / sizeof(float)), &n))
            return false;
        ends[i] = n;
    }
    if (t != NULL) {
        float *f = (float *)(void *)at;

        *t = (task){.p = p,
                    .keys = f,
                    .window = rows > 1 ? f + ends[0] : NULL,
                    .scores = scores ? f + ends[1] : NULL,
                    .max = f + ends[2],
                    .sum = f + ends[2] + p->n_heads,
                    .lanes = f + ends[3],
                    .dots = f + ends[4]};
    }
    return kvi_mul_size(n, sizeof(float), bytes);
}

static void run_tasks(void *arg, size_t begin, size_t end)
{
    attend_job  *job = arg;
    const size_t n_items = job->n_slices * job->n_groups * job->n_parts;
    size_t       bytes = 0;
    task         t;

    (void)end; /* tasks are alike: each takes items until there are no more */
    divide_scratch(job, job->scratch + begin * job->task_bytes, &t, &bytes);
    for (;;) {
        const size_t item = atomic_fetch_add_explicit(&job->next_item, 1, memory_order_relaxed);

        if (item >= n_items)
            return;
        run_item(job, item, &t);
    }
}

/* Parts of the heads of every row that make n_rows rows end soonest on n_threads threads, where
 * each part dequantises the keys for itself. */
static size_t best_parts(size_t n_rows, size_t n_heads, size_t n_threads)
{
    const size_t most = kvi_min_size(n_heads, n_threads);
    size_t       best = 1;
    size_t       best_cost = SIZE_MAX;

    for (size_t parts = 1; parts <= most; parts++) {
        const size_t rounds = kvi_div_up(n_rows * parts, n_threads);
        const size_t cost = rounds * (kvi_div_up(n_heads, parts) + KEY_HEADS);

        if (cost < best_cost) {
            best = parts;
            best_cost = cost;
        }
    }
    return best;
}

static void split_work(attend_job *job)
{
    const kvi_attend_params *p = job->p;
    const double             work = 2.0 * (double)p->n_rows * (double)p->n_heads *
                                    ((double)p->n_window + (double)p->k) * (double)p->width;
    const double             worth = work / (double)job->kernels.min_work;
    size_t                   n_threads = kvi_threads_width(job->dev->threads);

    if (worth < (double)n_threads)
        n_threads = kvi_max_size((size_t)worth, 1);
    job->each = p->of.slices ? kvi_min_size(p->of.each, p->n_rows) : p->n_rows;
    job->n_slices = kvi_div_up(p->n_rows, job->each);
    job->n_parts = 1;
    job->n_groups = kvi_div_up(job->each, ROWS_GROUP);
    if (n_threads > 1 && p->n_rows < 4 * n_threads) {
        job->n_groups = job->each;
        /* the mass of a row needs the scores of all its parts at the same time: not of many rows */
        if (p->mass == NULL || p->n_rows <= ROWS_GROUP)
            job->n_parts = best_parts(p->n_rows, p->n_heads, n_threads);
    } else if (job->n_slices < n_threads) {
        job->n_groups = kvi_min_size(kvi_div_up(job->n_groups, n_threads) * n_threads, job->each);
    }
    job->n_tasks = kvi_min_size(n_threads, job->n_slices * job->n_groups * job->n_parts);
}

/* Bytes of the job's scratch; false = overflow. */
static bool count_scratch(attend_job *job, size_t *tasks, size_t *bytes)
{
    const kvi_attend_params *p = job->p;
    size_t                   scores = 0;

    if (p->mass != NULL && job->n_parts > 1 &&
        (!kvi_mul_size(p->n_rows * sizeof(float), p->n_heads, &scores) ||
         !kvi_mul_size(scores, p->k, &scores)))
        return false;
    return divide_scratch(job, NULL, NULL, &job->task_bytes) &&
           kvi_mul_size(job->n_tasks, job->task_bytes, tasks) &&
           kvi_add_size(*tasks, scores, bytes);
}

/* ---------------------------------------------------------------- the operator */

static void check_params(const kvi_attend_params *p)
{
    KVI_ASSERT(p->width % KVI_WINDOW_GROUP == 0 &&
               p->row_bytes == p->width + p->width / KVI_WINDOW_GROUP);
    KVI_ASSERT(p->k == 0 || (p->ids != NULL && p->entries.owner->entry_width == p->width));
    KVI_ASSERT(p->k == 0 || (kvi_row_can_run(p->entries.owner->entry_format) &&
                             p->entries.owner->main_row_bytes ==
                                 kvi_format_row_bytes(p->entries.owner->entry_format, p->width)));
    KVI_ASSERT(!p->of.slices || p->of.each != 0);
    if (!p->of.slices)
        check_slice(p);
}

kvcsa_status kvi_cpu_attend(kvi_device *dev, const kvi_attend_params *p, kvcsa_error *err)
{
    attend_job job = {.p = p,
                      .dev = dev,
                      .kernels = dev->attend,
                      .n_slots = (size_t)p->n_window + p->k,
                      .key_stride = (size_t)p->width + LINE / sizeof(float)};
    size_t     tasks = 0;
    size_t     bytes = 0;

    if (p->n_rows == 0 || p->n_heads == 0)
        return KVCSA_OK;
    check_params(p);
    if ((p->flags & KVI_OP_ROUND_BF16) != 0)
        kvi_attend_init(&job.kernels, 0);
    split_work(&job);
    if (!count_scratch(&job, &tasks, &bytes) ||
        (job.scratch = kvi_alloc(&dev->allocator, bytes)) == NULL)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "attention: scratch for %u keys of %u channels",
                        p->n_window + p->k, p->width);
    if (p->mass != NULL && job.n_parts > 1)
        job.scores = (float *)(void *)(job.scratch + tasks);
    atomic_init(&job.next_item, 0);
    kvi_run(dev->threads, run_tasks, &job, job.n_tasks, 1);
    for (size_t row = 0; job.scores && row < p->n_rows; row++)
        add_mass(p, row, job.scores + row * p->n_heads * p->k);
    kvi_free(&dev->allocator, job.scratch, bytes);
    return KVCSA_OK;
}

void kvi_attend_init(kvi_attend_kernels *k, uint32_t flags)
{
    k->score_keys = 0;
    kvi_attend_portable(k);
#if defined(KVI_ARCH_X86_64)
    if (flags & KVCSA_CPU_AVX2)
        kvi_attend_avx2(k);
    if (flags & KVCSA_CPU_AVX512)
        kvi_attend_avx512(k);
#elif defined(KVI_ARCH_ARM64)
    if (flags & KVCSA_CPU_NEON)
        kvi_attend_neon(k);
#endif
    k->flags = flags;
}
