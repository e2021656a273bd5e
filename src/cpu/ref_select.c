/* Hidden entries, candidate blocks, top-k.
 *
 * Hiding. Scores of hidden entries become -inf, which nothing below takes.
 *
 * Selection. Scores are compared through unsigned keys of the same order (NaN and -inf = 0, never
 * taken; -0 = +0). The k-th largest key is found by counting, 11 + 11 + 10 bits at a time; one more
 * pass in ascending order then takes what is larger and, from the left, as many equal ones as are
 * still wanted: linear time, ties to the lower index, ascending output. */
#include "cpu/cpu_ops.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "cpu/ref_dense_int.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    DIGIT_BITS = 11,
    SELECT_WORK = 8 /* a score, in multiply-adds, roughly; for the grain of parallel loops */
};

/* ---------------------------------------------------------------- exact selection */

/* Unsigned integers in the order of the scores; 0 = never taken. */
static uint32_t order_key(float score)
{
    const uint32_t bits = score == 0.0f ? 0 : kvi_f32_bits(score); /* zeros of either sign tie */
    const uint32_t flip =
        (0u - (bits >> 31)) | 0x80000000u; /* all bits of a negative number, else its sign */

    return score > -INFINITY ? bits ^ flip : 0;
}

/* What to take: every key above `least`, and the first n_ties of those equal to it. */
typedef struct cut {
    uint32_t least;
    size_t   n_ties;
} cut;

/* One digit: among the keys that equal `prefix` above bits `shift + n_bits`, the digit in which the
 * *wanted-th largest lies; *wanted becomes its rank among the keys with that digit. False if there
 * are fewer keys. */
static bool find_digit(const float *scores, size_t n, unsigned shift, unsigned n_bits,
                       uint32_t *prefix, size_t *wanted)
{
    const uint32_t mask = (1u << n_bits) - 1;
    const uint64_t above = (uint64_t)*prefix >> (shift + n_bits);
    uint32_t       counts[1u << DIGIT_BITS] = {0};

    for (size_t i = 0; i < n; i++) {
        const uint32_t key = order_key(scores[i]);

        if (key != 0 && (uint64_t)key >> (shift + n_bits) == above)
            counts[key >> shift & mask]++;
    }
    for (uint32_t digit = mask + 1; digit-- > 0;) {
        if (*wanted <= counts[digit]) {
            *prefix |= digit << shift;
            return true;
        }
        *wanted -= counts[digit];
    }
    return false;
}

static cut find_cut(const float *scores, size_t n, size_t k)
{
    const cut all = {0, 0}; /* key 0 is never taken, so this is: all that can be */
    cut       c = {0, k};

    if (k == 0)
        return (cut){UINT32_MAX, 0};
    if (n <= k || !find_digit(scores, n, 21, 11, &c.least, &c.n_ties))
        return all;
    (void)find_digit(scores, n, 10, 11, &c.least, &c.n_ties);
    (void)find_digit(scores, n, 0, 10, &c.least, &c.n_ties);
    return c;
}

static bool is_taken(float score, cut *c)
{
    const uint32_t key = order_key(score);

    if (key > c->least)
        return true;
    if (key < c->least || c->n_ties == 0)
        return false;
    c->n_ties--;
    return true;
}

/* ---------------------------------------------------------------- candidates */

typedef struct candidates_job {
    const kvi_candidates_params *p;
    const kvcsa_allocator       *allocator;
    size_t                       n_maxima; /* largest number of blocks of a row */
    atomic_int                   no_memory;
} candidates_job;

/* Maxima of the blocks; NaN is passed over. */
static void find_maxima(const float *scores, size_t n, size_t block_entries, float *maxima)
{
    for (size_t b = 0, at = 0; at < n; b++, at += block_entries) {
        const size_t end = kvi_min_size(at + block_entries, n);

        maxima[b] = -INFINITY;
        for (size_t i = at; i < end; i++)
            if (scores[i] > maxima[b])
                maxima[b] = scores[i];
    }
}

static void choose_blocks(const kvi_candidates_params *p, size_t row, float *maxima)
{
    const size_t n_visible = (size_t)p->n_visible[row];
    const size_t n_blocks = kvi_div_up(n_visible, p->block_entries);
    const size_t stride = p->blocks_stride ? p->blocks_stride : p->n_keep;
    int32_t     *out = p->blocks + row * stride;
    uint32_t     n = 0;
    cut          c;

    if (n_blocks > 0 && p->n_keep > 0) {
        find_maxima(p->scores + row * p->scores_stride, n_visible, p->block_entries, maxima);
        /* The newest block is in whatever its scores are; it leaves the contest and its place is
         * kept. */
        maxima[n_blocks - 1] = -INFINITY;
        c = find_cut(maxima, n_blocks - 1, p->n_keep - 1);
        for (size_t b = 0; b + 1 < n_blocks; b++)
            if (is_taken(maxima[b], &c))
                out[n++] = (int32_t)b;
        out[n++] = (int32_t)(n_blocks - 1);
    }
    p->n_blocks[row] = n;
    for (; n < stride; n++)
        out[n] = -1;
}

static void run_candidates(void *arg, size_t begin, size_t end)
{
    candidates_job *job = arg;
    const size_t    bytes = job->n_maxima * sizeof(float);
    float          *maxima = atomic_load(&job->no_memory) ? NULL : kvi_alloc(job->allocator, bytes);

    if (maxima == NULL) {
        atomic_store(&job->no_memory, 1);
        return;
    }
    for (size_t row = begin; row < end; row++)
        choose_blocks(job->p, row, maxima);
    kvi_free(job->allocator, maxima, bytes);
}

kvcsa_status kvi_cpu_candidates(kvi_device *dev, const kvi_candidates_params *p, kvcsa_error *err)
{
    candidates_job job = {.p = p, .allocator = &dev->allocator};

    KVI_ASSERT(p->block_entries != 0);
    KVI_ASSERT(p->blocks_stride == 0 || p->blocks_stride >= p->n_keep);
    if (p->n_rows == 0)
        return KVCSA_OK;
    for (size_t row = 0; row < p->n_rows; row++)
        job.n_maxima =
            kvi_max_size(job.n_maxima, kvi_div_up((size_t)p->n_visible[row], p->block_entries));
    KVI_ASSERT(job.n_maxima <= INT32_MAX);
    atomic_init(&job.no_memory, 0);
    kvi_run(dev->threads, run_candidates, &job, p->n_rows,
            kvi_ref_grain(job.n_maxima * p->block_entries));
    if (atomic_load(&job.no_memory))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "candidates: scratch of %zu bytes",
                        job.n_maxima * sizeof(float));
    return KVCSA_OK;
}

/* ---------------------------------------------------------------- hiding */

/* Scores of one span that are neighbours are looked at together: one division for all of them. */
static void run_hide(void *arg, size_t begin, size_t end)
{
    const kvi_hide_params *p = arg;

    for (size_t row = begin; row < end; row++) {
        float         *scores = p->scores + row * p->scores_stride;
        const int32_t *blocks = p->blocks != NULL ? p->blocks + row * p->blocks_stride : NULL;
        const size_t   n_scores = (size_t)p->n_scores[row];
        size_t         n = 0;

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
        n_most = kvi_max_size(n_most, (size_t)p->n_scores[row]);
    if (p->n_rows != 0)
        kvi_run(dev->threads, run_hide, &own, p->n_rows, kvi_ref_grain(n_most));
    return KVCSA_OK;
}

/* ---------------------------------------------------------------- top-k */

static void run_topk(void *arg, size_t begin, size_t end)
{
    const kvi_topk_params *p = arg;

    for (size_t row = begin; row < end; row++) {
        const float   *scores = p->scores + row * p->scores_stride;
        const int32_t *blocks = p->blocks != NULL ? p->blocks + row * p->blocks_stride : NULL;
        const size_t   n_scores = (size_t)p->n_scores[row];
        const size_t   stride = p->ids_stride ? p->ids_stride : p->k;
        int32_t       *ids = p->ids + row * stride;
        size_t         n = 0;
        cut            c = find_cut(scores, n_scores, p->k);

        /* Blocks ascend, so ids ascend with i in both cases. */
        for (size_t i = 0; i < n_scores && n < p->k; i++) {
            if (!is_taken(scores[i], &c))
                continue;
            if (blocks == NULL)
                ids[n++] = (int32_t)i;
            else
                ids[n++] = blocks[i / p->block_entries] * (int32_t)p->block_entries +
                           (int32_t)(i % p->block_entries);
        }
        for (; n < stride; n++)
            ids[n] = -1;
    }
}

kvcsa_status kvi_cpu_topk(kvi_device *dev, const kvi_topk_params *p, kvcsa_error *err)
{
    kvi_topk_params own = *p;
    size_t          n_most = 0;

    (void)err;
    KVI_ASSERT(p->blocks == NULL || p->block_entries != 0);
    KVI_ASSERT(p->ids_stride == 0 || p->ids_stride >= p->k);
    for (size_t row = 0; row < p->n_rows; row++)
        n_most = kvi_max_size(n_most, (size_t)p->n_scores[row]);
    if (p->n_rows != 0)
        kvi_run(dev->threads, run_topk, &own, p->n_rows, kvi_ref_grain(n_most * SELECT_WORK));
    return KVCSA_OK;
}
