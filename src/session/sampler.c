/* Choosing a token.
 *
 * The candidates are kept in ascending order of id from step to step; the filters only drop some.
 * So the sum of weights, and with it the draw, has one order whatever the filters did. Weights are
 * e^((logit - max) / temperature) in double.
 *
 *   top-k   the k first by (logit descending, id ascending)
 *   min-p   weight >= min_p x the largest weight (which is 1)
 *   top-p   the shortest beginning of that order with at least top_p of the weight that is left
 *
 * A logit of -inf is never drawn while another is left. With +inf present only those have weight.
 */
#include "session/sampler.h"

#include "base/alloc.h"
#include "base/fmath.h"
#include "base/status.h"
#include "session/sampler_int.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef struct candidate {
    double   weight;
    float    logit;
    uint32_t id;
} candidate;

/* ------------------------------------------------------------------ randomness */

void kvi_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t k0 = key[0];
    uint32_t k1 = key[1];

    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c[0];
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c[2];

        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

double kvi_uniform(uint64_t seed, uint64_t position)
{
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t       r[4];

    kvi_philox4x32(counter, key, r);
    return (double)(((uint64_t)r[1] << 32 | r[0]) >> 11) * 0x1p-53;
}

/* ------------------------------------------------------------------ order: (logit descending, id
 * ascending) */

static bool comes_before(const candidate *a, const candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void sift_down(const candidate *c, uint32_t *heap, uint32_t n, uint32_t i)
{
    const uint32_t moving = heap[i];

    for (uint32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && comes_before(&c[heap[child + 1]], &c[heap[child]]))
            child++;
        if (!comes_before(&c[heap[child]], &c[moving]))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moving;
}

/* Keep the shortest beginning of the order that has max_n candidates or at least `mass` of weight.
 * Only so many are taken off the heap, so a narrow choice from a large vocabulary costs little more
 * than one pass. */
static uint32_t keep_first(candidate *c, uint32_t n, uint32_t *heap, uint32_t max_n, double mass)
{
    candidate last = c[0];
    uint32_t  left = n;
    uint32_t  kept = 0;
    double    sum = 0.0;

    for (uint32_t i = 0; i < n; i++)
        heap[i] = i;
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(c, heap, n, i);
    for (uint32_t taken = 0; taken < max_n && left > 0; taken++) {
        last = c[heap[0]];
        heap[0] = heap[--left];
        if (left > 0)
            sift_down(c, heap, left, 0);
        sum += last.weight;
        if (sum >= mass)
            break;
    }
    for (uint32_t i = 0; i < n; i++)
        if (!comes_before(&last, &c[i]))
            c[kept++] = c[i];
    return kept;
}

static uint32_t keep_likely(candidate *c, uint32_t n, double min_weight)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++)
        if (c[i].weight >= min_weight)
            c[kept++] = c[i];
    return kept;
}

/* ------------------------------------------------------------------ sample */

static double sum_weights(const candidate *c, uint32_t n)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++)
        sum += c[i].weight;
    return sum;
}

static void set_weights(candidate *c, uint32_t n, float max, double temperature)
{
    for (uint32_t i = 0; i < n; i++) {
        const double x = c[i].logit == max ? 0.0 : ((double)c[i].logit - (double)max) / temperature;

        c[i].weight = x < -745.0 ? 0.0 : kvi_exp(x); /* below, e^x rounds to 0; also -inf */
    }
}

/* The candidate at `at` of the total; the last one with weight where rounding leaves nothing. */
static uint32_t draw(const candidate *c, uint32_t n, double u)
{
    const double at = u * sum_weights(c, n);
    uint32_t     last = c[0].id;
    double       sum = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        if (c[i].weight <= 0.0)
            continue;
        last = c[i].id;
        sum += c[i].weight;
        if (at < sum)
            break;
    }
    return last;
}

static kvcsa_status check_params(const kvcsa_sampler_params *p, kvcsa_error *err)
{
    if (!isfinite(p->temperature) || p->temperature < 0.0f)
        return kvi_fail(err, KVCSA_ERR_ARG, "temperature is %g, must be finite and at least 0",
                        (double)p->temperature);
    if (!(p->top_p >= 0.0f && p->top_p <= 1.0f))
        return kvi_fail(err, KVCSA_ERR_ARG, "top_p is %g, limit 0 to 1", (double)p->top_p);
    if (!(p->min_p >= 0.0f && p->min_p <= 1.0f))
        return kvi_fail(err, KVCSA_ERR_ARG, "min_p is %g, limit 0 to 1", (double)p->min_p);
    return KVCSA_OK;
}

/* Largest logit, the lowest id of equal ones. */
static kvcsa_status find_max(const float *logits, uint32_t n, uint32_t *at, kvcsa_error *err)
{
    *at = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(logits[i]))
            return kvi_fail(err, KVCSA_ERR_ARG, "logits[%u] is not a number", (unsigned)i);
        if (logits[i] > logits[*at])
            *at = i;
    }
    if (isinf(logits[*at]) && logits[*at] < 0.0f)
        return kvi_fail(err, KVCSA_ERR_ARG, "logits are -inf, all %u", (unsigned)n);
    return KVCSA_OK;
}

static uint32_t choose(candidate *c, uint32_t *heap, const float *logits, uint32_t n, float max,
                       double u, const kvcsa_sampler_params *p)
{
    for (uint32_t i = 0; i < n; i++)
        c[i] = (candidate){0.0, logits[i], i};
    if (p->top_k > 0 && p->top_k < n)
        n = keep_first(c, n, heap, p->top_k, INFINITY);
    set_weights(c, n, max, (double)p->temperature);
    if (p->min_p > 0.0f)
        n = keep_likely(c, n, (double)p->min_p);
    if (p->top_p > 0.0f && p->top_p < 1.0f)
        n = keep_first(c, n, heap, n, (double)p->top_p * sum_weights(c, n));
    return draw(c, n, u);
}

kvcsa_status kvi_sample(const kvcsa_allocator *a, const float *logits, uint32_t n_vocab,
                        uint64_t position, const kvcsa_sampler_params *p, int32_t *token,
                        kvcsa_error *err)
{
    const size_t bytes = (size_t)n_vocab * (sizeof(candidate) + sizeof(uint32_t));
    candidate   *c = NULL;
    uint32_t     best = 0;
    kvcsa_status st = KVCSA_OK;

    *token = 0;
    if (!logits)
        return kvi_fail(err, KVCSA_ERR_ARG, "logits is NULL");
    if (n_vocab == 0 || n_vocab > INT32_MAX)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_vocab is %u, limit 1 to %u", (unsigned)n_vocab,
                        (unsigned)INT32_MAX);
    if ((st = check_params(p, err)) != KVCSA_OK ||
        (st = find_max(logits, n_vocab, &best, err)) != KVCSA_OK)
        return st;
    if (p->temperature > 0.0f && p->top_k != 1) {
        if (!(c = kvi_alloc(a, bytes)))
            return kvi_fail(err, KVCSA_ERR_NOMEM, "%zu bytes for %u candidates", bytes,
                            (unsigned)n_vocab);
        best = choose(c, (uint32_t *)(c + n_vocab), logits, n_vocab, logits[best],
                      kvi_uniform(p->seed, position), p);
        kvi_free(a, c, bytes);
    }
    *token = (int32_t)best;
    return KVCSA_OK;
}
