/* Matrix products over weights in the checkpoint's formats: the portable kernels.
 *
 * A block dequantises a panel of its weight rows into floats once and uses the panel for all rows
 * of x. Three sums run side by side, for three rows of x or, when
 * few are left, three weight rows: enough independent additions to hide their latency in sixteen
 * registers of four floats. Every sum is made by itself in the order of base/vec.h, so how rows are
 * grouped cannot be seen in the result. */
#include "cpu/ref_dense_int.h"

#include "base/bytes.h"
#include "format/dtype.h"
#include "format/fp8.h"

enum { GROUP = 32 };          /* columns per scale, and rows per FP8 tile */
enum { PANEL_FLOATS = 4096 }; /* 16 KiB: leaves half of the first cache to x */

/* ------------------------------------------------------------------ weight rows */

static void row_bf16(const uint8_t *data, size_t cols, float *out)
{
    size_t c = 0;

    for (; c + KVI_LANES <= cols; c += KVI_LANES) {
        uint16_t half[KVI_LANES];
        uint32_t bits[KVI_LANES];

        memcpy(half, data + 2 * c, sizeof half);
        for (size_t i = 0; i < KVI_LANES; i++)
            bits[i] = (uint32_t)half[i] << 16;
        memcpy(out + c, bits, sizeof bits);
    }
    for (; c < cols; c++)
        out[c] = kvi_bits_f32((uint32_t)kvi_load_u16(data + 2 * c) << 16);
}

static void row_fp8(const uint8_t *data, const uint8_t *scale, size_t cols, float *out)
{
    for (size_t c = 0; c < cols; c += GROUP) {
        const float s = kvi_e8m0_to_f32(scale[c / GROUP]);

        for (size_t i = c; i < c + GROUP; i++)
            out[i] = kvi_e4m3_values[data[i]] * s;
    }
}

/* Both values of a byte of FP4 in one load, the low nibble first. */
#define PAIRS_WITH(high)                                                                           \
    {0.0f, high}, {0.5f, high}, {1.0f, high}, {1.5f, high}, {2.0f, high}, {3.0f, high},            \
        {4.0f, high}, {6.0f, high}, {-0.0f, high}, {-0.5f, high}, {-1.0f, high}, {-1.5f, high},    \
        {-2.0f, high}, {-3.0f, high}, {-4.0f, high},                                               \
    {                                                                                              \
        -6.0f, high                                                                                \
    }
static const float e2m1_pairs[256][2] = {
    PAIRS_WITH(0.0f),  PAIRS_WITH(0.5f),  PAIRS_WITH(1.0f),  PAIRS_WITH(1.5f),
    PAIRS_WITH(2.0f),  PAIRS_WITH(3.0f),  PAIRS_WITH(4.0f),  PAIRS_WITH(6.0f),
    PAIRS_WITH(-0.0f), PAIRS_WITH(-0.5f), PAIRS_WITH(-1.0f), PAIRS_WITH(-1.5f),
    PAIRS_WITH(-2.0f), PAIRS_WITH(-3.0f), PAIRS_WITH(-4.0f), PAIRS_WITH(-6.0f)};

static void row_fp4(const uint8_t *data, const uint8_t *scale, size_t cols, float *out)
{
    for (size_t c = 0; c < cols; c += GROUP) {
        const float s = kvi_e8m0_to_f32(scale[c / GROUP]);

        for (size_t i = c; i < c + GROUP; i += 4) {
            const float   *low = e2m1_pairs[data[i / 2]];
            const float   *high = e2m1_pairs[data[i / 2 + 1]];
            const kvi_vec4 v = {low[0], low[1], high[0], high[1]};

            kvi_vec4_store(out + i, v * s);
        }
    }
}

/* Formats: docs/formats.md "Tensors". Rows of the Engram table lie beyond 2^36
 * bytes: 64-bit offsets. */
void kvi_ref_weight_row(const kvi_matrix *w, uint64_t row, float *out)
{
    const size_t cols = w->cols;
    const size_t r = (size_t)row;

    KVI_ASSERT(row < w->rows);
    KVI_ASSERT(!kvi_ref_quantised(w) || cols % GROUP == 0);
    switch (w->kind) {
    case KVI_W_F32:
        memcpy(out, w->data + r * cols * sizeof *out, cols * sizeof *out);
        break;
    case KVI_W_BF16:
        row_bf16(w->data + r * cols * 2, cols, out);
        break;
    case KVI_W_FP8:
        row_fp8(w->data + r * cols, w->scale + r / GROUP * (cols / GROUP), cols, out);
        break;
    case KVI_W_FP8_ROW:
        row_fp8(w->data + r * cols, w->scale + r * (cols / GROUP), cols, out);
        break;
    case KVI_W_FP4:
        row_fp4(w->data + r * (cols / 2), w->scale + r * (cols / GROUP), cols, out);
        break;
    default:
        KVI_ASSERT(w->kind <= KVI_W_FP4 && w->kind != KVI_W_NONE);
        memset(out, 0, cols * sizeof *out);
        break;
    }
}

/* ------------------------------------------------------------------ quantised activations */

/* out may be x: a group is read before it is written. */
void kvi_ref_act_quant(const float *x, size_t width, float *out)
{
    for (size_t c = 0; c < width; c += GROUP) {
        float   in[GROUP];
        uint8_t values[GROUP];
        uint8_t scale = 0;

        for (size_t i = 0; i < GROUP; i++)
            in[i] = kvi_round_bf16(x[c + i]);
        (void)kvi_quant_window(in, GROUP, values, &scale); /* a poisoned group reads back as NaN */
        kvi_dequant_window(values, &scale, GROUP, out + c);
    }
}

/* ------------------------------------------------------------------ products */

/* out[r] = kvi_dot(a, b[r], n) for three b. One piece: the loop is the point, and its tail repeats
 * it. */
static void dot_three(const float *a, const float *const b[3], size_t n, float out[3])
{
    const float *p = b[0], *q = b[1], *r = b[2];
    kvi_vec4     p0 = {0}, p1 = {0}, p2 = {0}, p3 = {0};
    kvi_vec4     q0 = {0}, q1 = {0}, q2 = {0}, q3 = {0};
    kvi_vec4     r0 = {0}, r1 = {0}, r2 = {0}, r3 = {0};
    float        tail[4][KVI_LANES];

    for (size_t left = n; left > 0;) {
        kvi_vec4 v;

        if (left < KVI_LANES) { /* products behind the end are 0 x 0 */
            memset(tail, 0, sizeof tail);
            memcpy(tail[0], a, left * sizeof *a);
            memcpy(tail[1], p, left * sizeof *p);
            memcpy(tail[2], q, left * sizeof *q);
            memcpy(tail[3], r, left * sizeof *r);
            a = tail[0];
            p = tail[1];
            q = tail[2];
            r = tail[3];
            left = KVI_LANES;
        }
        v = kvi_vec4_load(a);
        p0 = p0 + v * kvi_vec4_load(p);
        q0 = q0 + v * kvi_vec4_load(q);
        r0 = r0 + v * kvi_vec4_load(r);
        v = kvi_vec4_load(a + 4);
        p1 = p1 + v * kvi_vec4_load(p + 4);
        q1 = q1 + v * kvi_vec4_load(q + 4);
        r1 = r1 + v * kvi_vec4_load(r + 4);
        v = kvi_vec4_load(a + 8);
        p2 = p2 + v * kvi_vec4_load(p + 8);
        q2 = q2 + v * kvi_vec4_load(q + 8);
        r2 = r2 + v * kvi_vec4_load(r + 8);
        v = kvi_vec4_load(a + 12);
        p3 = p3 + v * kvi_vec4_load(p + 12);
        q3 = q3 + v * kvi_vec4_load(q + 12);
        r3 = r3 + v * kvi_vec4_load(r + 12);
        a += KVI_LANES;
        p += KVI_LANES;
        q += KVI_LANES;
        r += KVI_LANES;
        left -= KVI_LANES;
    }
    out[0] = kvi_vec4_fold(p0, p1, p2, p3);
    out[1] = kvi_vec4_fold(q0, q1, q2, q3);
    out[2] = kvi_vec4_fold(r0, r1, r2, r3);
}

static const float *block_x(const kvi_linear_block *b, size_t i)
{
    return b->x + (b->ids ? b->ids[i] : i) * b->x_stride;
}

/* Outputs j0 .. j0 + n - 1 from the n weight rows in the panel. */
static void panel_times_rows(const kvi_linear_block *b, size_t j0, size_t n)
{
    const size_t cols = b->w->cols;
    size_t       i = 0;

    for (; i + 3 <= b->n_rows; i += 3) {
        const float *const x[3] = {block_x(b, i), block_x(b, i + 1), block_x(b, i + 2)};
        float             *y = b->y + i * b->y_stride + j0;

        for (size_t j = 0; j < n; j++) {
            float out[3];

            dot_three(b->scratch + j * cols, x, cols, out);
            y[j] = out[0];
            y[b->y_stride + j] = out[1];
            y[2 * b->y_stride + j] = out[2];
        }
    }
    for (; i < b->n_rows; i++) {
        const float *x = block_x(b, i);
        float       *y = b->y + i * b->y_stride + j0;
        size_t       j = 0;

        for (; j + 3 <= n; j += 3) {
            const float       *w = b->scratch + j * cols;
            const float *const three[3] = {w, w + cols, w + 2 * cols};

            dot_three(x, three, cols, y + j);
        }
        for (; j < n; j++)
            y[j] = kvi_ref_dot(x, b->scratch + j * cols, cols);
    }
}

static size_t panel_rows(size_t cols)
{
    /* a multiple of three, so that a single row of x needs no odd sums in full panels */
    return kvi_max_size(3, kvi_min_size(PANEL_FLOATS / kvi_max_size(cols, 1), 48) / 3 * 3);
}

size_t kvi_ref_linear_scratch(uint32_t kind, size_t cols, size_t n_out, size_t n_rows)
{
    (void)kind;
    (void)n_rows;
    return kvi_min_size(panel_rows(cols), n_out) * cols;
}

void kvi_ref_linear_block(const kvi_linear_block *b)
{
    const size_t cols = b->w->cols;
    const size_t step = panel_rows(cols);

    for (size_t j0 = 0; j0 < b->n_out; j0 += step) {
        const size_t n = kvi_min_size(step, b->n_out - j0);

        for (size_t j = 0; j < n; j++)
            kvi_ref_weight_row(b->w, b->row0 + j0 + j, b->scratch + j * cols);
        panel_times_rows(b, j0, n);
    }
    if (b->flags & KVI_OP_ROUND_BF16)
        for (size_t i = 0; i < b->n_rows; i++)
            for (size_t j = 0; j < b->n_out; j++)
                b->y[i * b->y_stride + j] = kvi_round_bf16(b->y[i * b->y_stride + j]);
}
