/* Hidden entries, candidate blocks, top-k.
 *
 * Hiding. Scores of hidden entries become -inf, which nothing below takes.
 *
 * Selection of the k best of a row. One pass in ascending order collects in a list what reaches a
 * threshold. A full list is cut down to its k best, and the threshold rises above the least of
 * them: a later score that equals it would lose the tie. At the end the list is cut once more. So
 *   (S1) at any time the k best of what was passed and reaches the first threshold are in the list;
 *   (S2) with a first threshold that everything reaches, the result is right whatever the scores.
 * The first threshold only steers the speed: it is taken from a sample, such that some more than k
 * scores should reach it. If fewer do, the pass is repeated without a threshold. Positions of the
 * sample are hashed, since a stride meets periods in the scores.
 *
 * Cutting. The threshold that k of the list reach is found by halving the range of possible floats.
 * Each time the list is counted and the range narrowed to scores that are there, until k are left
 * or, with ties, until one value is: 11 to 15 times, 32 at most. Of equal ones the first are kept.
 * Unlike a radix histogram this has no tables to clear, and vectors can do it.
 *
 * Cost: one compare a score, at the speed of reading, and these passes over a list of 1.5 to 2.5
 * k. No bad case: a cut, at most 36 passes over `cap`, is paid by cap - k >= cap / 2 scores, which
 * makes 72 compares a score if the sample says nothing and every score beats all before it.
 *
 * Measured, one core of a busy machine, medians, gaussian scores, AVX-512 / AVX2 / portable C: 512
 * of 16,384 in 7.0 / 7.9 / 22 us; 512 of 2^20 in 1.10 / 1.14 / 1.39 times a reading pass; 2048
 * blocks of 2^17 in 1.26 / 1.40 / 1.93 times. The slowest shape took 2.2 / 2.6 / 3.0 times as long
 * as the fastest.
 *
 * Candidate blocks are the same with the maxima of the blocks in place of scores; maxima are made a
 * few hundred at a time and never stored, unless whoever made the scores has them already. */
#include "cpu/cpu_ops.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/fmath.h"

#include <math.h>
#include <string.h>

enum {
    MIN_CAP = 4096,       /* elements of a list: the cuts of a million scores cost little */
    N_MAXIMA = 512,       /* made at a time: 2 KiB */
    TASK_SCORES = 131072, /* fewer are not worth a wake-up: 20 to 60 us */
    HIDE_SCORES = 65536
};

/* ---------------------------------------------------------------- order of floats */

/* Integers in the order of the floats; both zeros are 0. */
static int64_t order_of(float x)
{
    const uint32_t bits = kvi_f32_bits(x);
    const int64_t  size = bits & 0x7fffffffu;

    return bits >> 31 ? -size : size;
}

/* ORDER_NONE gives a NaN. */
static float of_order(int64_t order)
{
    return kvi_bits_f32(order < 0 ? (uint32_t)-order | 0x80000000u : (uint32_t)order);
}

#define ORDER_LEAST (-0x7f7fffff) /* of the least that can be taken: one above -inf */
#define ORDER_NONE  0x7f800001    /* what nothing reaches: one above +inf */

/* ---------------------------------------------------------------- threshold of a list */

/* n_low >= wanted elements reach low, n_high < wanted reach high > low. */
typedef struct bounds {
    int64_t low;
    int64_t high;
    size_t  n_low;
    size_t  n_high;
} bounds;

/* Narrows b until n_low is `wanted` or nothing lies between low and high. */
static void find_threshold(const kvi_select_kernels *kernels, const float *x, size_t n,
                           size_t wanted, bounds *b)
{
    while (b->n_low != wanted && b->high - b->low > 1) {
        const kvi_select_split s =
            kernels->split(x, n, of_order(b->low + (b->high - b->low) / 2));

        if (s.n >= wanted) {
            b->low = order_of(s.above);
            b->n_low = s.n;
        } else {
            b->high = order_of(s.below) + 1;
            b->n_high = s.n;
        }
    }
}

/* Where the elements that equal b->low, and only it, have been n_ties. */
static size_t find_ties_end(const kvi_select_kernels *kernels, const float *x, size_t n,
                            size_t n_ties, const bounds *b)
{
    const float low = of_order(b->low);
    const float high = of_order(b->high);
    size_t      begin = 0;
    size_t      end = n;

    while (end - begin > 1) {
        const size_t half = (end - begin) / 2;
        const size_t here =
            kernels->split(x + begin, half, low).n - kernels->split(x + begin, half, high).n;

        if (here >= n_ties) {
            end = begin + half;
        } else {
            n_ties -= here;
            begin += half;
        }
    }
    return end;
}

/* ---------------------------------------------------------------- one row */

typedef struct source {
    const float *scores;
    size_t       n;             /* that compete */
    size_t       block_entries; /* 1: the scores do; else blocks do, all full, by their maxima */
} source;

typedef struct selection {
    const kvi_select_kernels *kernels;
    kvi_select_list           list;
    size_t                    k;
    int64_t                   low;   /* all in the list reach it */
    float                     least; /* what is collected */
} selection;

/* Leaves the k best of more than k. */
static void cut(selection *s)
{
    const kvi_select_kernels *kernels = s->kernels;
    kvi_select_list          *list = &s->list;
    const size_t              n = list->n;
    size_t                    ties_end = n;
    bounds                    b = {.low = s->low, .high = ORDER_NONE, .n_low = n};

    find_threshold(kernels, list->scores, n, s->k, &b);
    s->low = b.low;
    s->least = of_order(b.low);
    if (b.n_low > s->k) {
        ties_end = find_ties_end(kernels, list->scores, n, s->k - b.n_high, &b);
        s->least = of_order(b.high);
    }
    list->n = 0;
    kernels->keep(list, 0, ties_end, of_order(b.low));
    kernels->keep(list, ties_end, n, of_order(b.high));
    KVI_ASSERT(list->n == s->k);
}

static void start(selection *s, float least)
{
    s->list.n = 0;
    s->low = order_of(least);
    s->least = least;
}

static void pass_scores(selection *s, const float *scores, size_t n, size_t first)
{
    for (size_t i = 0; i < n;) {
        i += s->kernels->collect(scores + i, n - i, (int32_t)(first + i), s->least, &s->list);
        if (s->list.n >= s->list.cap && s->list.n > s->k)
            cut(s);
    }
}

/* Items begin..end-1, and a last cut. */
static void pass(selection *s, const source *src, size_t begin, size_t end)
{
    const size_t be = src->block_entries;
    float        maxima[N_MAXIMA];

    if (be == 1)
        pass_scores(s, src->scores + begin, end - begin, begin);
    else
        for (size_t i = begin, n = 0; i < end; i += n) {
            n = kvi_min_size(end - i, N_MAXIMA);
            s->kernels->maxima(src->scores + i * be, n * be, be, maxima);
            pass_scores(s, maxima, n, i);
        }
    if (s->list.n > s->k)
        cut(s);
}

static void take_sample(const kvi_select_kernels *kernels, const source *src, size_t n,
                        float *sample)
{
    enum { TOGETHER = 64, MOST = 16 };
    const size_t be = src->block_entries;
    float        blocks[TOGETHER * MOST];

    if (be == 1) {
        for (size_t i = 0; i < n; i++)
            sample[i] = src->scores[kvi_select_place((uint32_t)i, src->n)];
    } else if (be > MOST) {
        for (size_t i = 0; i < n; i++)
            kernels->maxima(src->scores + kvi_select_place((uint32_t)i, src->n) * be, be, be,
                            sample + i);
    } else {
        for (size_t i = 0; i < n; i += TOGETHER) {
            const size_t m = kvi_min_size(n - i, TOGETHER);

            for (size_t j = 0; j < m; j++)
                memcpy(blocks + j * be,
                       src->scores + kvi_select_place((uint32_t)(i + j), src->n) * be,
                       be * sizeof *blocks);
            kernels->maxima(blocks, m * be, be, sample + i);
        }
    }
}

/* Of a sample of n, n k / src->n +- the root of it are among the k best. The threshold is what four
 * roots and three more of the sample reach: fewer than k scores reach it once in 50,000 times. */
static float first_threshold(const kvi_select_kernels *kernels, const source *src, size_t k)
{
    const size_t n = kvi_min_size(src->n / 32, KVI_SELECT_SAMPLE);
    const float  mean = (float)n * (float)k / (float)src->n;
    const size_t wanted = (size_t)(mean + 4 * kvi_sqrtf(mean)) + 3;
    float        sample[KVI_SELECT_SAMPLE];
    bounds       b = {.low = ORDER_LEAST, .high = ORDER_NONE};

    if (3 * wanted >= n) /* it would keep little out */
        return of_order(ORDER_LEAST);
    take_sample(kernels, src, n, sample);
    b.n_low = kernels->split(sample, n, of_order(b.low)).n;
    if (b.n_low >= wanted)
        find_threshold(kernels, sample, n, wanted, &b);
    return of_order(b.low);
}

/* ---------------------------------------------------------------- rows as tasks */

/* What top-k and candidates have in common. A task has a slot of scratch: its list. */
typedef struct select_job {
    const kvi_select_kernels *kernels;
    const void               *params;
    size_t (*find_source)(const void *params, size_t row, source *src); /* returns k */
    void (*write)(const void *params, size_t row, const kvi_select_list *list);
    float *scratch;
    size_t n_rows;
    size_t n_tasks;
    size_t cap;
} select_job;

enum { MAX_PARTS = 16 };

/* One row in parts, each with a slot. */
typedef struct parts_job {
    const source *src;
    selection    *parts;
    size_t        n_parts;
    float         least;
} parts_job;

static selection selection_of(const select_job *job, size_t slot, size_t k)
{
    const size_t room = job->cap + KVI_SELECT_ROOM;
    float       *scores = job->scratch + 2 * room * slot;

    return (selection){
        .kernels = job->kernels,
        .list = {.scores = scores, .at = (int32_t *)(void *)(scores + room), .cap = job->cap},
        .k = k};
}

static void run_parts(void *arg, size_t begin, size_t end)
{
    const parts_job *job = arg;
    const size_t     n = job->src->n;

    for (size_t i = begin; i < end; i++) {
        start(&job->parts[i], job->least);
        pass(&job->parts[i], job->src, i * n / job->n_parts, (i + 1) * n / job->n_parts);
    }
}

/* The k best of the parts' k best, in the first list. It has room for two of k: see find_cap. */
static void merge_parts(const parts_job *job)
{
    selection *s = &job->parts[0];

    for (size_t i = 1; i < job->n_parts; i++) {
        const kvi_select_list *from = &job->parts[i].list;

        memcpy(s->list.scores + s->list.n, from->scores, from->n * sizeof *from->scores);
        memcpy(s->list.at + s->list.n, from->at, from->n * sizeof *from->at);
        s->list.n += from->n;
        s->low = order_of(job->least);
        if (s->list.n > s->k)
            cut(s);
    }
}

static void run_pass(kvi_threads *threads, parts_job *job)
{
    if (job->n_parts == 1) {
        run_parts(job, 0, 1);
    } else {
        kvi_run(threads, run_parts, job, job->n_parts, 1);
        merge_parts(job);
    }
}

/* A row in one part or several. The result is parts[0].list. */
static void select_row(kvi_threads *threads, const source *src, selection *parts, size_t n_parts)
{
    const float everything = of_order(ORDER_LEAST);
    parts_job   job = {.src = src, .parts = parts, .n_parts = n_parts};

    if (parts->k == 0 || src->n == 0)
        return;
    job.least = first_threshold(parts->kernels, src, parts->k);
    run_pass(threads, &job);
    if (parts->list.n < parts->k && job.least != everything) {
        job.least = everything;
        run_pass(threads, &job);
    }
}

static void run_rows(void *arg, size_t begin, size_t end)
{
    const select_job *job = arg;

    for (size_t task = begin; task < end; task++) {
        const size_t stop = (task + 1) * job->n_rows / job->n_tasks;

        for (size_t row = task * job->n_rows / job->n_tasks; row < stop; row++) {
            source       src;
            const size_t k = job->find_source(job->params, row, &src);
            selection    s = selection_of(job, task, k);

            select_row(NULL, &src, &s, 1);
            job->write(job->params, row, &s.list);
        }
    }
}

static void run_one_row(kvi_threads *threads, const select_job *job)
{
    selection    parts[MAX_PARTS];
    source       src;
    const size_t k = job->find_source(job->params, 0, &src);

    for (size_t i = 0; i < job->n_tasks; i++)
        parts[i] = selection_of(job, i, k);
    select_row(threads, &src, parts, job->n_tasks);
    job->write(job->params, 0, &parts->list);
}

/* Elements of a list: the largest row if that is short, else more than twice what a cut leaves. */
static size_t find_cap(size_t n_most, size_t k)
{
    return kvi_min_size(n_most, kvi_max_size(MIN_CAP, 2 * k + MIN_CAP / 2));
}

/* A row alone is made in parts, otherwise tasks have whole rows. n_scores and n_most: scores and
 * items of the largest row. */
static kvcsa_status run_select(kvi_device *dev, select_job *job, size_t n_scores, size_t n_most,
                               size_t k, const char *what, kvcsa_error *err)
{
    const size_t width = dev->threads ? kvi_threads_width(dev->threads) : 1;
    const size_t worth =
        kvi_max_size(1, kvi_min_size(4 * width, job->n_rows * n_scores / TASK_SCORES));
    size_t       bytes = 0;

    job->cap = find_cap(n_most, k);
    job->n_tasks = width == 1 ? 1 : kvi_min_size(worth, job->n_rows == 1 ? MAX_PARTS : job->n_rows);
    if (!kvi_mul_size(job->cap + KVI_SELECT_ROOM, 2 * sizeof(float) * job->n_tasks, &bytes) ||
        !(job->scratch = kvi_alloc(&dev->allocator, bytes)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "%s: scratch of %zu bytes", what, bytes);
    if (job->n_rows == 1)
        run_one_row(dev->threads, job);
    else
        kvi_run(dev->threads, run_rows, job, job->n_tasks, 1);
    kvi_free(&dev->allocator, job->scratch, bytes);
    return KVCSA_OK;
}

/* ---------------------------------------------------------------- top-k */

static size_t count_scores(const uint64_t *n_scores, const uint32_t *n_blocks,
                           uint32_t block_entries, size_t row)
{
    return n_blocks ? (size_t)n_blocks[row] * block_entries : (size_t)n_scores[row];
}

/* Without a look at scores: all are equal, or the row takes all that it sees. */
static bool takes_first(const kvi_topk_params *p, size_t row)
{
    return !p->scores || (p->all != 0 && p->n_visible[row] <= p->all);
}

static size_t find_scores(const void *params, size_t row, source *src)
{
    const kvi_topk_params *p = params;

    *src = (source){.block_entries = 1};
    if (takes_first(p, row))
        return 0;
    *src = (source){p->scores + row * p->scores_stride,
                    count_scores(p->n_scores, p->n_blocks, p->block_entries, row), 1};
    return p->k;
}

static void select_first(const kvi_topk_params *p, size_t row)
{
    const size_t   stride = p->ids_stride ? p->ids_stride : p->k;
    const bool     all = p->all != 0 && p->n_visible[row] <= p->all;
    const uint64_t n = all ? p->n_visible[row] : kvi_min_size(p->k, (size_t)p->n_scores[row]);
    int32_t       *ids = p->ids + row * stride;

    KVI_ASSERT(n <= p->k);
    for (size_t i = 0; i < stride; i++)
        ids[i] = i < n ? (int32_t)i : -1;
}

/* Blocks ascend, so ids ascend with the numbers of the scores in both cases. */
static void write_ids(const void *params, size_t row, const kvi_select_list *list)
{
    const kvi_topk_params *p = params;
    const uint32_t         be = p->block_entries;
    const int32_t         *blocks = p->blocks != NULL ? p->blocks + row * p->blocks_stride : NULL;
    const size_t           stride = p->ids_stride ? p->ids_stride : p->k;
    int32_t               *ids = p->ids + row * stride;

    if (takes_first(p, row)) {
        select_first(p, row);
        return;
    }
    if (blocks != NULL)
        for (size_t i = 0; i < list->n; i++) {
            const uint32_t at = (uint32_t)list->at[i];

            ids[i] = blocks[at / be] * (int32_t)be + (int32_t)(at % be);
        }
    else
        memcpy(ids, list->at, list->n * sizeof *ids);
    for (size_t i = list->n; i < stride; i++)
        ids[i] = -1;
}

kvcsa_status kvi_cpu_topk(kvi_device *dev, const kvi_topk_params *p, kvcsa_error *err)
{
    select_job job = {.kernels = &dev->select,
                      .params = p,
                      .find_source = find_scores,
                      .write = write_ids,
                      .n_rows = p->n_rows};
    size_t     n_most = 0;
    size_t     n_first = 0;

    KVI_ASSERT(p->blocks == NULL || p->block_entries != 0);
    KVI_ASSERT(p->ids_stride == 0 || p->ids_stride >= p->k);
    for (size_t row = 0; row < p->n_rows; row++) {
        if (takes_first(p, row))
            n_first++;
        else
            n_most = kvi_max_size(n_most,
                                  count_scores(p->n_scores, p->n_blocks, p->block_entries, row));
    }
    if (n_first == p->n_rows) {
        for (size_t row = 0; row < p->n_rows; row++)
            select_first(p, row);
        return KVCSA_OK;
    }
    KVI_ASSERT(n_most <= INT32_MAX);
    return run_select(dev, &job, n_most, n_most, p->k, "top-k", err);
}

/* ---------------------------------------------------------------- candidates */

/* Without a look at scores: all are equal, or the row takes all that it sees. */
static bool keeps_first(const kvi_candidates_params *p, size_t row)
{
    return (!p->scores && !p->block_max) || (p->all != 0 && p->n_visible[row] <= p->all);
}

/* The newest block is in whatever its scores are; it leaves the contest and its place is kept. */
static size_t find_blocks(const void *params, size_t row, source *src)
{
    const kvi_candidates_params *p = params;
    const size_t n_blocks = kvi_div_up((size_t)p->n_visible[row], p->block_entries);
    const size_t n = n_blocks - (n_blocks != 0);

    *src = (source){.block_entries = 1};
    if (keeps_first(p, row))
        return 0;
    *src = p->block_max ? (source){p->block_max + row * p->max_stride, n, 1}
                        : (source){p->scores + row * p->scores_stride, n, p->block_entries};
    return p->n_keep - (p->n_keep != 0);
}

/* The first ones and the newest. */
static void keep_first(const kvi_candidates_params *p, size_t row)
{
    const size_t n_blocks = kvi_div_up((size_t)p->n_visible[row], p->block_entries);
    const size_t stride = p->blocks_stride ? p->blocks_stride : p->n_keep;
    const size_t n = kvi_min_size(n_blocks, p->n_keep);
    int32_t     *out = p->blocks + row * stride;

    for (size_t i = 0; i < stride; i++)
        out[i] = i < n ? (int32_t)i : -1;
    if (n)
        out[n - 1] = (int32_t)(n_blocks - 1);
    p->n_blocks[row] = (uint32_t)n;
}

static void write_blocks(const void *params, size_t row, const kvi_select_list *list)
{
    const kvi_candidates_params *p = params;
    const size_t n_blocks = kvi_div_up((size_t)p->n_visible[row], p->block_entries);
    const size_t stride = p->blocks_stride ? p->blocks_stride : p->n_keep;
    int32_t     *out = p->blocks + row * stride;
    size_t       n = list->n;

    if (keeps_first(p, row)) {
        keep_first(p, row);
        return;
    }
    memcpy(out, list->at, n * sizeof *out);
    if (n_blocks != 0 && p->n_keep != 0)
        out[n++] = (int32_t)(n_blocks - 1);
    p->n_blocks[row] = (uint32_t)n;
    for (; n < stride; n++)
        out[n] = -1;
}

kvcsa_status kvi_cpu_candidates(kvi_device *dev, const kvi_candidates_params *p, kvcsa_error *err)
{
    select_job job = {.kernels = &dev->select,
                      .params = p,
                      .find_source = find_blocks,
                      .write = write_blocks,
                      .n_rows = p->n_rows};
    size_t     n_most = 0;
    size_t     n_first = 0;
    size_t     n_blocks;

    KVI_ASSERT(p->block_entries != 0);
    KVI_ASSERT(p->blocks_stride == 0 || p->blocks_stride >= p->n_keep);
    for (size_t row = 0; row < p->n_rows; row++) {
        if (keeps_first(p, row))
            n_first++;
        else
            n_most = kvi_max_size(n_most, (size_t)p->n_visible[row]);
    }
    if (n_first == p->n_rows) {
        for (size_t row = 0; row < p->n_rows; row++)
            keep_first(p, row);
        return KVCSA_OK;
    }
    n_blocks = kvi_div_up(n_most, p->block_entries);
    KVI_ASSERT(n_blocks <= INT32_MAX);
    return run_select(dev, &job, p->block_max ? n_blocks : n_most, n_blocks, p->n_keep,
                      "candidates", err);
}

/* ---------------------------------------------------------------- hiding */

/* Scores of one span that are neighbours are looked at together: one division for all of them. */
static void run_hide(void *arg, size_t begin, size_t end)
{
    const kvi_hide_params *p = arg;

    for (size_t row = begin; row < end; row++) {
        float         *scores = p->scores + row * p->scores_stride;
        const int32_t *blocks = p->blocks != NULL ? p->blocks + row * p->blocks_stride : NULL;
        const size_t   n_scores =
            count_scores(p->n_scores, p->n_blocks, p->block_entries, row);
        size_t n = 0;

        for (size_t i = 0; i < n_scores; i += n) {
            size_t entry = i;
            size_t span;

            n = n_scores - i;
            if (blocks != NULL) {
                const size_t at = i % p->block_entries;

                entry = (size_t)blocks[i / p->block_entries] * p->block_entries + at;
                n = kvi_min_size(n, p->block_entries - at);
            }
            span = entry / p->span_entries;
            n = kvi_min_size(n, p->span_entries - entry % p->span_entries);
            if (span < p->n_hidden ? p->hidden[span] : p->rest_hidden)
                for (size_t j = 0; j < n; j++)
                    scores[i + j] = -INFINITY;
        }
    }
}

kvcsa_status kvi_cpu_hide(kvi_device *dev, const kvi_hide_params *p, kvcsa_error *err)
{
    kvi_hide_params own = *p;
    size_t          n_most = 0;

    (void)err;
    KVI_ASSERT(p->span_entries != 0 && (p->blocks == NULL || p->block_entries != 0));
    for (size_t row = 0; row < p->n_rows; row++)
        n_most = kvi_max_size(n_most,
                              count_scores(p->n_scores, p->n_blocks, p->block_entries, row));
    if (p->n_rows != 0)
        kvi_run(dev->threads, run_hide, &own, p->n_rows,
                kvi_max_size(1, HIDE_SCORES / kvi_max_size(n_most, 1)));
    return KVCSA_OK;
}

/* ---------------------------------------------------------------- kernels */

void kvi_select_init(kvi_select_kernels *k, uint32_t flags)
{
    k->flags = flags;
    kvi_select_portable(k);
#if defined(KVI_ARCH_X86_64)
    if (flags & KVCSA_CPU_AVX2)
        kvi_select_avx2(k);
    if (flags & KVCSA_CPU_AVX512)
        kvi_select_avx512(k);
#elif defined(KVI_ARCH_ARM64)
    if (flags & KVCSA_CPU_NEON)
        kvi_select_neon(k);
#endif
}
