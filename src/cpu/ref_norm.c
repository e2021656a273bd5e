/* RMSNorm and rotary position, docs/formats.md "Network" and "Rotation": portable kernels. */
#include "cpu/ref_dense_int.h"

#include "base/fmath.h"
#include "format/dtype.h"

/* ------------------------------------------------------------------ norm */

static void norm_row(const kvi_norm_params *p, const float *x, float *y)
{
    const size_t width = p->width;
    const float  r = kvi_ref_rms_inverse(x, width, p->eps);
    size_t       i = 0;

    for (; i + 4 <= width; i += 4)
        kvi_vec4_store(y + i, kvi_vec4_load(p->weight + i) * (kvi_vec4_load(x + i) * r));
    for (; i < width; i++)
        y[i] = p->weight[i] * (x[i] * r);
    if (p->flags & KVI_OP_ROUND_BF16)
        for (i = 0; i < width; i++)
            y[i] = kvi_round_bf16(y[i]);
}

void kvi_ref_norm(const kvi_norm_params *p, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        norm_row(p, p->x + i * p->x_stride, p->y + i * p->y_stride);
}

/* ------------------------------------------------------------------ rope */

enum { ROPE_PAIRS = 64 }; /* sines and cosines held at once */

/* Pairs first .. first + n - 1 of all heads of a row: (a + ib) e^(i angle). */
static void rope_pairs(const kvi_rope_params *p, float *row, uint64_t pos, size_t first, size_t n)
{
    float sn[ROPE_PAIRS];
    float cs[ROPE_PAIRS];

    for (size_t i = 0; i < n; i++) {
        /* the angle is rounded to float before the sine, as the official code does; in double it
         * would differ at 10^5 */
        const float angle = (float)pos * p->freqs[first + i];

        kvi_sincosf(angle, &sn[i], &cs[i]);
        if (p->inverse)
            sn[i] = -sn[i];
    }
    for (size_t h = 0; h < p->n_heads; h++) {
        float *x = row + (h + 1) * p->width - p->n_rotated + 2 * first;

        for (size_t i = 0; i < n; i++) {
            const float a = x[2 * i];
            const float b = x[2 * i + 1];

            x[2 * i] = a * cs[i] - b * sn[i];
            x[2 * i + 1] = a * sn[i] + b * cs[i];
        }
    }
}

void kvi_ref_rope(const kvi_rope_params *p, size_t begin, size_t end)
{
    const size_t n_pairs = p->n_rotated / 2;

    for (size_t i = begin; i < end; i++) {
        float *row = p->x + i * p->row_stride;

        for (size_t first = 0; first < n_pairs; first += ROPE_PAIRS)
            rope_pairs(p, row, p->pos[i], first, kvi_min_size(ROPE_PAIRS, n_pairs - first));
        /* all channels, rotated or not: the reference rounds the whole row */
        if (p->flags & KVI_OP_ROUND_BF16)
            for (size_t c = 0; c < (size_t)p->n_heads * p->width; c++)
                row[c] = kvi_round_bf16(row[c]);
    }
}
