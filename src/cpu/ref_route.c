/* The router of the experts, docs/formats.md "Network": portable kernels. */
#include "cpu/ref_dense_int.h"

#include "base/fmath.h"

#include <math.h>

static float softplus(float z)
{
    return z > 20.0f ? z : kvi_log1pf(kvi_expf(z));
}

/* The k experts of highest rank, equal ones by id, into `experts` in ascending order. k is small: k
 * passes. No rank is NaN at first; a taken expert's becomes NaN, which is never picked. n >= k. */
static void take_best(float *rank, size_t n, uint32_t k, uint32_t *experts)
{
    for (uint32_t i = 0; i < k; i++) {
        size_t   best = n;
        uint32_t at = i;

        for (size_t e = 0; e < n; e++)
            if (rank[e] == rank[e] && (best == n || rank[e] > rank[best]))
                best = e;
        rank[best] = NAN;
        for (; at > 0 && experts[at - 1] > best; at--)
            experts[at] = experts[at - 1];
        experts[at] = (uint32_t)best;
    }
}

static void route_row(const kvi_route_params *p, size_t row, float *s, float *rank)
{
    const float *z = p->z + row * p->n_experts;
    uint32_t    *experts = p->experts + row * p->k;
    float       *weights = p->weights + row * p->k;
    float        sum = 0.0f;

    for (size_t e = 0; e < p->n_experts; e++) {
        s[e] = kvi_sqrtf(softplus(z[e]));
        rank[e] = s[e] + p->bias[e];
        if (rank[e] != rank[e])
            rank[e] = -INFINITY;
    }
    take_best(rank, p->n_experts, p->k, experts);
    for (uint32_t i = 0; i < p->k; i++) {
        weights[i] = s[experts[i]];
        sum += weights[i];
    }
    for (uint32_t i = 0; i < p->k; i++) {
        if (p->normalise && p->k > 1)
            weights[i] = weights[i] / (sum + 1e-20f);
        weights[i] = weights[i] * p->scale;
    }
}

/* A NaN score is never preferred; if it is selected all the same, its weight is NaN and so is the
 * row. */
void kvi_ref_route(const kvi_route_params *p, float *scratch, size_t begin, size_t end)
{
    for (size_t row = begin; row < end; row++)
        route_row(p, row, scratch, scratch + p->n_experts);
}
