/* Where operators run, and the few calls that every room makes. */
#ifndef KVI_EXEC_H
#define KVI_EXEC_H

#include "backend/memory.h"

/* For tests: sees the values in front of every rounding or ranking decision, and the decisions.
 * Called from the running thread. */
enum {
    KVI_TAP_WINDOW = 0, /* f32 [rows, width] window rows in front of the quantiser */
    KVI_TAP_MAIN = 1,   /* latents in front of the quantiser */
    KVI_TAP_KEY = 2,    /* index keys in front of the quantiser */
    KVI_TAP_SCORE = 3,  /* one row of scores of all visible entries */
    KVI_TAP_ROUTER = 4, /* router projection */
    KVI_TAP_TOPK = 5,   /* i32 [rows, select_entries] */
    /* what goes into selection and attention, and what comes out */
    KVI_TAP_INDEX_QUERY = 6,  /* [rows, heads * width], rotated */
    KVI_TAP_INDEX_WEIGHT = 7, /* [rows, heads], not yet scaled */
    KVI_TAP_QUERY = 8,        /* [rows, heads * width], rotated */
    KVI_TAP_ATTENTION = 9     /* [rows, heads * width], still rotated */
};
typedef struct kvi_tap {
    void (*see)(void *user, uint32_t kind, uint32_t layer, const void *data, size_t n_rows,
                size_t width);
    void *user;
} kvi_tap;

typedef struct kvi_exec {
    const kvi_backend_ops *ops;
    kvi_device            *dev;
    const kvcsa_allocator *allocator; /* of the host; wanted where the memory is apart */
    uint32_t               flags; /* KVI_OP_*: 0 but in the reference mode of the tests */
    uint32_t               layer; /* the one that runs, for the tap */
    const kvi_tap         *tap;   /* NULL but in tests */
} kvi_exec;

static inline kvi_memory kvi_exec_memory(const kvi_exec *e)
{
    return (kvi_memory){.ops = e->ops, .dev = e->dev, .allocator = e->allocator};
}

/* data: [n_rows, width] of four bytes each. Where the host cannot look at it, a copy is shown, or
 * nothing if there is no room for one. */
static inline void kvi_exec_tap(const kvi_exec *e, uint32_t kind, const void *data, size_t n_rows,
                                size_t width)
{
    const kvi_memory m = kvi_exec_memory(e);
    const size_t     bytes = n_rows * width * 4;
    const void      *seen = data;
    void            *copy = NULL;

    if (!e->tap || (kvi_memory_is_apart(&m) && !(copy = kvi_alloc(e->allocator, bytes))))
        return;
    if (kvi_memory_see(&m, data, bytes, copy, &seen, NULL) == KVCSA_OK)
        e->tap->see(e->tap->user, kind, e->layer, seen, n_rows, width);
    kvi_free(e->allocator, copy, bytes);
}

/* y = W x for contiguous rows. */
static inline kvcsa_status kvi_exec_linear(const kvi_exec *e, const kvi_matrix *w, const float *x,
                                           float *y, size_t n_rows, uint32_t flags,
                                           kvcsa_error *err)
{
    const kvi_linear_params p = {.w = w,
                                 .n_out = w->rows,
                                 .x = x,
                                 .y = y,
                                 .x_stride = w->cols,
                                 .y_stride = w->rows,
                                 .n_rows = n_rows,
                                 .flags = flags};

    return e->ops->linear(e->dev, &p, err);
}

/* RMS norm of contiguous rows, in place. */
static inline kvcsa_status kvi_exec_norm(const kvi_exec *e, const float *weight, float *x,
                                         size_t n_rows, uint32_t width, float eps, kvcsa_error *err)
{
    const kvi_norm_params p = {.x = x,
                               .y = x,
                               .weight = weight,
                               .x_stride = width,
                               .y_stride = width,
                               .n_rows = n_rows,
                               .width = width,
                               .eps = eps,
                               .flags = e->flags};

    return e->ops->norm(e->dev, &p, err);
}

/* One rotation table: the frequencies of a layer. */
typedef struct kvi_rotary {
    const float *freqs; /* [n_rotated / 2] */
    uint32_t     n_rotated;
} kvi_rotary;

/* Rotate contiguous rows of n_heads x width in place. */
static inline kvcsa_status kvi_exec_rope(const kvi_exec *e, const kvi_rotary *r, float *x,
                                         const uint64_t *pos, size_t n_rows, uint32_t n_heads,
                                         uint32_t width, uint32_t inverse, kvcsa_error *err)
{
    const kvi_rope_params p = {.x = x,
                               .freqs = r->freqs,
                               .pos = pos,
                               .row_stride = (size_t)n_heads * width,
                               .n_rows = n_rows,
                               .n_heads = n_heads,
                               .width = width,
                               .n_rotated = r->n_rotated,
                               .inverse = inverse,
                               .flags = e->flags};

    return e->ops->rope(e->dev, &p, err);
}

#endif
