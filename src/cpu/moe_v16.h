/* What stands between the two products of an expert, with the exp of cpu/v16.h. */
#ifndef KVI_MOE_V16_H
#define KVI_MOE_V16_H

#include "cpu/linear_kernels.h"
#include "cpu/v16.h"

/* [weight *] (g / (1 + e^-g) * u), clamped as op_params.h says. */
static inline v16 moe_activate16(v16 g, v16 u, float limit, const float *weight)
{
    v16 a;

    if (limit > 0.0f) {
        g = v16_less(v16_set(limit), g);
        u = v16_more(v16_set(-limit), v16_less(v16_set(limit), u));
    }
    a = v16_exp(v16_sub(v16_zero(), g));
    a = v16_mul(v16_div(g, v16_add(v16_set(1.0f), a)), u);
    return weight ? v16_mul(v16_set(*weight), a) : a;
}

static void moe_activate(const kvi_activate_block *b)
{
    for (size_t i = 0; i < b->n_rows; i++) {
        float       *g = b->g + i * b->g_stride;
        const float *u = b->u + i * b->u_stride;
        const float *weight = b->weights ? b->weights + i : NULL;
        size_t       c = 0;

        for (; c + 16 <= b->n; c += 16)
            v16_store(g + c, moe_activate16(v16_load(g + c), v16_load(u + c), b->limit, weight));
        if (c < b->n) {
            const size_t n = b->n - c;
            const v16    a = moe_activate16(v16_load_n(g + c, n), v16_load_n(u + c, n), b->limit,
                                            weight);

            v16_store_n(g + c, a, n);
        }
    }
}

#endif
