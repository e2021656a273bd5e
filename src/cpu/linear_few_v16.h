/* Matrix products with few rows of x (decode), a part of linear_v16.h: weights are decoded in
 * registers and used at once, two or four weight rows side by side.
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

#if LIN_MIXED
#define LIN_UNMIX(r)                                                                               \
    if (kind == KVI_W_FP4) {                                                                       \
        a##r##0 = lin_unmix(a##r##0);                                                              \
        a##r##1 = lin_unmix(a##r##1);                                                              \
        a##r##2 = lin_unmix(a##r##2);                                                              \
        a##r##3 = lin_unmix(a##r##3);                                                              \
    }
#else
#define LIN_UNMIX(r)
#endif

/* LIN_STEP weights at p: codes are their scales, s the same as floats, and one of them is there. */
LIN_INLINE void lin_direct_step(uint32_t kind, const uint8_t *p, const uint8_t *codes,
                                const float *s, v16 w[LIN_VECS])
{
#if LIN_MIXED
    if (kind == KVI_W_FP4) {
        lin_fp4_mixed(p, codes, w);
        return;
    }
#endif
    (void)codes;
    lin_step(kind, p, s, w);
}

/* One block of channels of m weight rows against n rows of x; of m_rows = 1 weight row m times, if
 * there are fewer than m. `ahead`: how many bytes of memory further on the weights are that will be
 * wanted soon. Few pointers, so that they fit the registers. */
LIN_INLINE void lin_direct_rows(const kvi_linear_block *b, uint32_t kind, size_t m, size_t m_rows,
                                size_t n, size_t j, size_t k0, size_t ahead, const float *const *x,
                                float *const *y)
{
    const uint64_t first = b->row0 + j;
    const size_t   end = b->w->cols - k0 < V16_BLOCK ? b->w->cols : k0 + V16_BLOCK;
    const int      one_row = m_rows < m;
    const int      mixed = LIN_MIXED && kind == KVI_W_FP4;
    const lin_row  row = lin_row_at(b->w, kind, first);
    const size_t   stride = one_row ? 0 : lin_bytes(kind, b->w->cols);
    const size_t   code_stride = one_row ? 0 : b->w->cols / LIN_GROUP;
    const uint8_t *codes = mixed ? row.scale + k0 / LIN_GROUP : row.data;
    const uint8_t *p = row.data + lin_bytes(kind, k0);
    uintptr_t      soon = (uintptr_t)p + ahead;
    float          scales[4][LIN_SCALES];
    LIN_EACH_ROW(LIN_X)
    LIN_EACH_ROW(LIN_SUMS_V16)

    if (!mixed)
        lin_scales_of(b->w, kind, first, m, m_rows, k0, end - k0, scales);
    LIN_EACH_ROW(LIN_ZERO_V16)
    for (size_t k = k0; k < end; k += LIN_STEP) {
        const size_t g = (k - k0) / LIN_GROUP;

        LIN_UNROLL
        for (size_t i = 0; i < m; i++) {
            v16 w[LIN_VECS];

            lin_direct_step(kind, p + stride * i, mixed ? codes + code_stride * i + g : NULL,
                            scales[i] + g, w);
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
    LIN_EACH_ROW(LIN_UNMIX)
    LIN_PUT
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

/* All weight rows of the block: m at a time against n rows of x. */
LIN_INLINE void lin_direct_all(const kvi_linear_block *b, uint32_t kind, size_t m, size_t n,
                               const float *const *x, float *const *y)
{
    const size_t row_bytes = lin_bytes(kind, b->w->cols);
    const size_t piece = m * (row_bytes < lin_bytes(kind, V16_BLOCK) ? row_bytes
                                                                     : lin_bytes(kind, V16_BLOCK));
    lin_walk now = {.m = m, .cols = b->w->cols, .n_out = b->n_out};
    lin_walk soon;

    now.band = n * b->w->cols * sizeof **x <= LIN_X_BYTES ? m : LIN_PANEL;
    soon = now;
    for (size_t c = 0; c < LIN_AHEAD && piece > 0; c += piece)
        lin_walk_on(&soon);
    while (now.j0 < b->n_out) {
        const size_t left = b->n_out - now.j;
        const size_t m_rows = left < m ? 1 : m;
        const size_t ahead = (soon.j - now.j) * row_bytes + lin_bytes(kind, soon.k0) -
                             lin_bytes(kind, now.k0);

        for (size_t i = 0; i < m && i < left; i += m_rows)
            lin_direct_rows(b, kind, m, m_rows, n, now.j + i, now.k0, ahead, x, y);
        lin_walk_on(&now);
        lin_walk_on(&soon);
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
