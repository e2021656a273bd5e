/* Matrix products with few rows of x (decode), a part of linear_v16.h: weights are decoded in
 * registers and used at once, two or four weight rows side by side. The sums of sixteen weight rows
 * are folded together: of narrow rows, folding is most of the work.
 *
 * Bound: reading the weights. Each is read once, in the order of memory where x stays in the first
 * cache; otherwise in bands of weight rows, one block of channels after the other, so that the
 * block of x does. What comes LIN_AHEAD bytes later is prefetched. */
#ifndef KVI_LINEAR_FEW_V16_H
#define KVI_LINEAR_FEW_V16_H

/* Weight row i of the kernel, all rows of x, vector v of the step. */
#define LIN_DIRECT_FMA(r)                                                                          \
    if (r < n) {                                                                                   \
        const v16 xv = v16_load(x##r + k + 16 * v);                                                \
        if (i == 0)                                                                                \
            a##r##0 = v16_fma(w[v], xv, a##r##0);                                                  \
        else if (i == 1)                                                                           \
            a##r##1 = v16_fma(w[v], xv, a##r##1);                                                  \
        else if (i == 2)                                                                           \
            a##r##2 = v16_fma(w[v], xv, a##r##2);                                                  \
        else                                                                                       \
            a##r##3 = v16_fma(w[v], xv, a##r##3);                                                  \
    }

enum { LIN_FOLD = 16 + 4 }; /* sums of one row of x, and room for what is one too many */

#define LIN_DIRECT_KEEP(r)                                                                         \
    if (r < n) {                                                                                   \
        lin_keep(kind, sums + r * LIN_FOLD, a##r##0);                                              \
        lin_keep(kind, sums + r * LIN_FOLD + 1, a##r##1);                                          \
        if (m == 4) {                                                                              \
            lin_keep(kind, sums + r * LIN_FOLD + 2, a##r##2);                                      \
            lin_keep(kind, sums + r * LIN_FOLD + 3, a##r##3);                                      \
        }                                                                                          \
    }

/* A sum for later, its lanes in natural order. */
LIN_INLINE void lin_keep(uint32_t kind, v16 *to, v16 sum)
{
#if LIN_MIXED
    if (kind == KVI_W_FP4)
        sum = lin_unmix(sum);
#endif
    (void)kind;
    *to = sum;
}

/* n_vecs x 16 weights at p: codes are their scales, s the same as floats, and one of them is
 * there. n_vecs is LIN_VECS, or 2 at the end of a row. */
LIN_INLINE void lin_direct_step(uint32_t kind, size_t n_vecs, const uint8_t *p,
                                const uint8_t *codes, const float *s, v16 w[LIN_VECS])
{
#if LIN_MIXED
    if (kind == KVI_W_FP4) {
        for (size_t g = 0; g < n_vecs / 2; g++)
            lin_fp4_mixed(p + g * LIN_GROUP / 2, codes + g, w + 2 * g);
        return;
    }
#endif
    (void)codes;
    if (n_vecs == LIN_VECS)
        lin_step(kind, p, s, w);
    else
        lin_step_32(kind, p, s, w);
}

/* Weight rows at one block of channels; the bytes from row to row are 0 if only one is there. */
typedef struct lin_few {
    const uint8_t *data;
    const uint8_t *codes;
    size_t         stride;
    size_t         code_stride;
    size_t         ahead; /* how many bytes further on the weights are that will be wanted soon */
    size_t         k0;
    size_t         end;
} lin_few;

/* sums[r * LIN_FOLD + i] = weight row i . row r of x over the block, not folded; i < m. Few
 * pointers, so that they fit the registers. */
LIN_INLINE void lin_direct_rows(const lin_few *a, uint32_t kind, size_t m, size_t n,
                                float scales[][LIN_SCALES], const float *const *x, v16 *sums)
{
    const int      mixed = LIN_MIXED && kind == KVI_W_FP4;
    const size_t   stride = a->stride;
    const size_t   code_stride = a->code_stride;
    const uint8_t *codes = a->codes;
    const uint8_t *p = a->data;
    const size_t   end = a->end;
    uintptr_t      soon = (uintptr_t)p + a->ahead;
    size_t         k = a->k0;
    LIN_EACH_ROW(LIN_X)
    LIN_EACH_ROW(LIN_SUMS_V16)

    LIN_EACH_ROW(LIN_ZERO_V16)
    for (; k + LIN_STEP <= end; k += LIN_STEP) {
        const size_t g = (k - a->k0) / LIN_GROUP;

        LIN_UNROLL
        for (size_t i = 0; i < m; i++) {
            v16 w[LIN_VECS];

            lin_direct_step(kind, LIN_VECS, p + stride * i,
                            mixed ? codes + code_stride * i + g : NULL, scales[i] + g, w);
            LIN_UNROLL
            for (size_t v = 0; v < LIN_VECS; v++) {
                LIN_EACH_ROW(LIN_DIRECT_FMA)
            }
            LIN_UNROLL
            for (size_t c = 0; c < lin_bytes(kind, LIN_STEP); c += LIN_LINE)
                __builtin_prefetch((const void *)(soon + stride * i + c));
        }
        p += lin_bytes(kind, LIN_STEP);
        soon += lin_bytes(kind, LIN_STEP);
    }
    if (LIN_STEP > LIN_GROUP && k < end) { /* half a step */
        const size_t g = (k - a->k0) / LIN_GROUP;

        LIN_UNROLL
        for (size_t i = 0; i < m; i++) {
            v16 w[LIN_VECS];

            lin_direct_step(kind, 2, p + stride * i, mixed ? codes + code_stride * i + g : NULL,
                            scales[i] + g, w);
            LIN_UNROLL
            for (size_t v = 0; v < 2; v++) {
                LIN_EACH_ROW(LIN_DIRECT_FMA)
            }
            __builtin_prefetch((const void *)(soon + stride * i));
        }
    }
    LIN_EACH_ROW(LIN_DIRECT_KEEP)
}

/* Where to go on m rows and one block of channels after (j, k0): bands of `band` weight rows, in a
 * band one block of channels after the other. */
typedef struct lin_walk {
    size_t m;
    size_t band;
    size_t cols;
    size_t n_out;
    size_t j0; /* of the band */
    size_t j;
    size_t k0;
} lin_walk;

static inline void lin_walk_on(lin_walk *a)
{
    a->j += a->m;
    if (a->j < a->j0 + a->band && a->j < a->n_out)
        return;
    a->j = a->j0;
    a->k0 += V16_BLOCK;
    if (a->k0 < a->cols)
        return;
    a->k0 = 0;
    a->j = a->j0 += a->band;
}

/* One block of channels of `there` <= 16 weight rows, m at a time, against n rows of x; of the last
 * ones, fewer than m, each as m equal ones. All folds are made together. */
LIN_INLINE void lin_direct_group(const kvi_linear_block *b, uint32_t kind, size_t m, size_t n,
                                 const lin_walk *now, size_t there, lin_walk *soon,
                                 const float *const *x, float *const *y)
{
    const size_t cols = b->w->cols;
    const size_t k0 = now->k0;
    const int    mixed = LIN_MIXED && kind == KVI_W_FP4;
    const size_t row_bytes = lin_bytes(kind, cols);
    lin_few      a = {.k0 = k0, .end = cols - k0 < V16_BLOCK ? cols : k0 + V16_BLOCK};
    float        scales[4][LIN_SCALES];
    v16          sums[6 * LIN_FOLD];
    size_t       step = m;

    for (size_t i = there < 16 ? 0 : n * LIN_FOLD; i < n * LIN_FOLD; i++)
        sums[i] = v16_zero();
    for (size_t i = 0; i < there; i += step) {
        const uint64_t first = b->row0 + now->j + i;
        const lin_row  row = lin_row_at(b->w, kind, first);

        step = there - i < m ? 1 : m;
        a.data = row.data + lin_bytes(kind, k0);
        a.codes = mixed ? row.scale + k0 / LIN_GROUP : NULL;
        a.stride = step < m ? 0 : row_bytes;
        a.code_stride = step < m ? 0 : cols / LIN_GROUP;
        a.ahead = (soon->j - now->j - i) * row_bytes + lin_bytes(kind, soon->k0) -
                  lin_bytes(kind, k0);
        if (!mixed)
            lin_scales_of(b->w, kind, first, m, step, k0, a.end - k0, scales);
        lin_direct_rows(&a, kind, m, n, scales, x, sums + i);
        lin_walk_on(soon);
    }
    for (size_t r = 0; r < n; r++) {
        float    *to = y[r] + now->j;
        const v16 s = v16_fold16(sums + r * LIN_FOLD);

        if (there == 16)
            v16_store(to, k0 == 0 ? s : v16_add(v16_load(to), s));
        else
            v16_store_n(to, k0 == 0 ? s : v16_add(v16_load_n(to, there), s), there);
    }
}

/* All weight rows of the block against n rows of x. */
LIN_INLINE void lin_direct_all(const kvi_linear_block *b, uint32_t kind, size_t m, size_t n,
                               const float *const *x, float *const *y)
{
    const size_t row_bytes = lin_bytes(kind, b->w->cols);
    const size_t piece = m * (row_bytes < lin_bytes(kind, V16_BLOCK) ? row_bytes
                                                                     : lin_bytes(kind, V16_BLOCK));
    lin_walk now = {.m = 16, .cols = b->w->cols, .n_out = b->n_out};
    lin_walk soon;

    now.band = n * b->w->cols * sizeof **x <= LIN_X_BYTES ? 16 : LIN_BAND;
    soon = now;
    soon.m = m;
    for (size_t c = 0; c < LIN_AHEAD && piece > 0; c += piece)
        lin_walk_on(&soon);
    while (now.j0 < b->n_out) {
        const size_t left = b->n_out - now.j;

        lin_direct_group(b, kind, m, n, &now, left < 16 ? left : 16, &soon, x, y);
        lin_walk_on(&now);
    }
}

#define LIN_DIRECT_CASE(kind, n)                                                                   \
    case n:                                                                                        \
        if (n <= LIN_DIRECT)                                                                       \
            lin_direct_all(b, kind, LIN_DIRECT_M(n), n, x, y);                                     \
        break;
#define LIN_DIRECT_KIND(name, kind)                                                                \
    static void name(const kvi_linear_block *b, const float *const *x, float *const *y)            \
    {                                                                                              \
        switch (b->n_rows) {                                                                       \
            LIN_DIRECT_CASE(kind, 1)                                                               \
            LIN_DIRECT_CASE(kind, 2)                                                               \
            LIN_DIRECT_CASE(kind, 3)                                                               \
            LIN_DIRECT_CASE(kind, 4)                                                               \
            LIN_DIRECT_CASE(kind, 5)                                                               \
            LIN_DIRECT_CASE(kind, 6)                                                               \
        }                                                                                          \
    }
LIN_DIRECT_KIND(lin_direct_f32, KVI_W_F32)
LIN_DIRECT_KIND(lin_direct_bf16, KVI_W_BF16)
LIN_DIRECT_KIND(lin_direct_fp8, KVI_W_FP8)
LIN_DIRECT_KIND(lin_direct_fp4, KVI_W_FP4)

/* Rows i .. i + n - 1 of the block. */
static void lin_pointers(const kvi_linear_block *b, size_t i, size_t n, const float **x, float **y)
{
    for (size_t r = 0; r < n; r++) {
        x[r] = b->x + (b->ids ? b->ids[i + r] : i + r) * b->x_stride;
        y[r] = b->y + (i + r) * b->y_stride;
    }
}

#if LIN_MIXED
/* x[0 .. n_rows - 1] as lin_fp4_mixed has its weights, in the scratch. */
static void lin_mix_rows(const kvi_linear_block *b, const float **x)
{
    const size_t cols = b->w->cols;

    for (size_t r = 0; r < b->n_rows; r++) {
        float *to = b->scratch + r * cols;

        for (size_t k = 0; k < cols; k += 16)
            v16_store(to + k, lin_mix(v16_load(x[r] + k)));
        x[r] = to;
    }
}
#endif

static void lin_direct(const kvi_linear_block *b)
{
    const float *x[6];
    float       *y[6];

    lin_pointers(b, 0, b->n_rows, x, y);
#if LIN_MIXED
    if (b->w->kind == KVI_W_FP4)
        lin_mix_rows(b, x);
#endif
    switch (b->w->kind) {
    case KVI_W_F32:
        lin_direct_f32(b, x, y);
        break;
    case KVI_W_BF16:
        lin_direct_bf16(b, x, y);
        break;
    case KVI_W_FP4:
        lin_direct_fp4(b, x, y);
        break;
    default:
        lin_direct_fp8(b, x, y);
        break;
    }
}

#endif
