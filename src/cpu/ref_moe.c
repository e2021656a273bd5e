/* Experts: the portable kernel between their products. */
#include "cpu/linear_kernels.h"

#include "base/fmath.h"
#include "format/dtype.h"

/* Order of the multiplications and one-sided clamp of g: docs/formats.md "Network". NaN passes both
 * clamps. */
static float activate(const kvi_activate_block *b, float g, float u, const float *weight)
{
    float a;

    if (b->limit > 0.0f) {
        g = g > b->limit ? b->limit : g;
        u = u > b->limit ? b->limit : u;
        u = u < -b->limit ? -b->limit : u;
    }
    a = g / (1.0f + kvi_expf(-g)) * u;
    if (weight)
        a = *weight * a;
    return (b->flags & KVI_OP_ROUND_BF16) ? kvi_round_bf16(a) : a;
}

void kvi_ref_activate(const kvi_activate_block *b)
{
    for (size_t i = 0; i < b->n_rows; i++) {
        float       *g = b->g + i * b->g_stride;
        const float *u = b->u + i * b->u_stride;

        for (size_t j = 0; j < b->n; j++)
            g[j] = activate(b, g[j], u[j], b->weights ? b->weights + i : NULL);
    }
}
