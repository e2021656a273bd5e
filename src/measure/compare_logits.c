/* One row of a comparison: two rows of logits, and how far apart they are. */
#include "measure/compare.h"

#include <math.h>
#include <string.h>

#include "base/fmath.h"
#include "base/status.h"

/* Rounding of sums over any vocabulary stays far below this; a real difference of distributions
 * above it is never negative. */
#define ROUNDING 1e-12

typedef struct one_row { /* of logits, looked at alone */
    const float *logits; /* f32 [n] */
    uint32_t     n;
    int32_t      top; /* ties to the lower id */
    double       best;
    double       second; /* -infinity: there is no other token */
    double       ln_sum; /* ln of the sum of exp(logit - best) */
} one_row;

static kvcsa_status look_at(const float *logits, uint32_t n, const char *name, one_row *out,
                            kvcsa_error *err)
{
    *out = (one_row){.logits = logits, .n = n, .top = -1, .best = -INFINITY, .second = -INFINITY};
    for (uint32_t i = 0; i < n; i++) {
        const double x = (double)logits[i];

        if (!(x < INFINITY))
            return kvi_fail(err, KVCSA_ERR_ARG, "%s[%u] is %s, logits are below infinity", name, i,
                            x > 0 ? "infinity" : "NaN");
        if (x > out->best) {
            out->second = out->best;
            out->best = x;
            out->top = (int32_t)i;
        } else if (x > out->second) {
            out->second = x;
        }
    }
    if (out->top < 0)
        return kvi_fail(err, KVCSA_ERR_ARG, "%s is -infinity for all of %u tokens", name, n);
    return KVCSA_OK;
}

static int is_out(const one_row *r, uint32_t i)
{
    return (double)r->logits[i] == -INFINITY;
}

/* exp and what it is of: logits are shifted by their maximum, so that the sum is 1 or more. */
static double shifted(const one_row *r, uint32_t i)
{
    return (double)r->logits[i] - r->best;
}

static void sum_up(one_row *r)
{
    double sum = 0;

    for (uint32_t i = 0; i < r->n; i++)
        sum += is_out(r, i) ? 0 : kvi_exp(shifted(r, i));
    r->ln_sum = kvi_ln(sum);
}

static double log_prob(const one_row *r, uint32_t i)
{
    return is_out(r, i) ? -INFINITY : shifted(r, i) - r->ln_sum;
}

/* Both rows are summed up. */
static double divergence(const one_row *ref, const one_row *test)
{
    double sum = 0;
    double weight = 0;
    double kl;

    for (uint32_t i = 0; i < ref->n; i++) {
        double e;

        if (is_out(ref, i)) /* nothing of the reference is lost */
            continue;
        if (is_out(test, i))
            return INFINITY;
        e = kvi_exp(shifted(ref, i));
        weight += e;
        sum += e * (shifted(ref, i) - shifted(test, i));
    }
    kl = sum / weight - (ref->ln_sum - test->ln_sum);
    return kl < 0 && kl > -ROUNDING ? 0 : kl;
}

static double largest_difference(const one_row *ref, const one_row *test)
{
    double largest = 0;

    for (uint32_t i = 0; i < ref->n; i++) {
        const double d = (double)ref->logits[i] - (double)test->logits[i]; /* NaN: both are out */

        largest = fabs(d) > largest ? fabs(d) : largest;
    }
    return largest;
}

kvcsa_status kvi_compare_logits(int32_t next_token, const float *ref, const float *test, uint32_t n,
                                kvcsa_compare_row *row, kvcsa_error *err)
{
    one_row      a, b;
    kvcsa_status st;

    if (next_token < -1 || (next_token >= 0 && (uint32_t)next_token >= n))
        return kvi_fail(err, KVCSA_ERR_ARG, "next_token is %d, must be -1 or below %u", next_token,
                        n);
    if ((st = look_at(ref, n, "ref", &a, err)) != KVCSA_OK ||
        (st = look_at(test, n, "test", &b, err)) != KVCSA_OK)
        return st;
    sum_up(&a);
    row->equal = memcmp(ref, test, n * sizeof *ref) == 0;
    if (row->equal)
        b.ln_sum = a.ln_sum;
    else
        sum_up(&b);
    row->kl = row->equal ? 0 : divergence(&a, &b);
    row->margin = (float)(a.best - a.second);
    row->max_difference = row->equal ? 0 : (float)largest_difference(&a, &b);
    row->ref_log_prob = next_token < 0 ? NAN : (float)log_prob(&a, (uint32_t)next_token);
    row->test_log_prob = next_token < 0 ? NAN : (float)log_prob(&b, (uint32_t)next_token);
    row->ref_top = a.top;
    row->test_top = b.top;
    return KVCSA_OK;
}
