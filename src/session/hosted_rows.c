/* Rows of the host on their way to operators and back. Where the memory is the host's and they lie
 * one behind the other, nothing is copied. */
#include "session/hosted.h"

#include <string.h>

#include "base/status.h"

#define DEVICE_ALIGN 16u /* kernels load so many bytes at once */

kvcsa_status kvi_hosted_grow(kvcsa_session *s, uint32_t which, size_t bytes, kvcsa_error *err)
{
    kvi_hosted        *h = s->hosted;
    kvi_hosted_array  *a = &h->arrays[which];
    const kvcsa_status st = kvi_memory_grow(&h->memory, &a->data, &a->cap, 1, bytes, err);

    return st == KVCSA_ERR_NOMEM ? kvi_memory_no_room(&h->memory, "rows of a chunk", bytes, err)
                                 : st;
}

static void *grow_here(kvcsa_session *s, size_t bytes, kvcsa_error *err)
{
    if (kvi_buf_reserve(&s->allocator, &s->hosted->here, 1, 0, bytes))
        return s->hosted->here.data;
    kvi_fail(err, KVCSA_ERR_NOMEM, "rows of a chunk, %zu bytes", bytes);
    return NULL;
}

static int is_apart(const kvcsa_session *s)
{
    return kvi_memory_is_apart(&s->hosted->memory);
}

/* ------------------------------------------------------------------ strides */

typedef struct strides {
    size_t row, head;
} strides;

static strides strides_of(size_t row, size_t head, uint32_t heads, uint32_t width)
{
    return (strides){row ? row : (size_t)heads * width, head ? head : width};
}

/* One row behind the other, as operators want them. */
static int is_dense(strides st, size_t n, uint32_t heads, uint32_t width)
{
    return (heads == 1 || st.head == width) && (n <= 1 || st.row == (size_t)heads * width);
}

/* Pieces that lie side by side on both sides: whole rows, or heads. */
static uint32_t pieces_of_row(strides st, uint32_t heads, uint32_t width)
{
    return heads == 1 || st.head == width ? 1 : heads;
}

static void gather(const kvi_hosted_rows *r, strides st, float *to)
{
    const uint32_t pieces = pieces_of_row(st, r->heads, r->width);
    const size_t   n = (size_t)r->heads * r->width / pieces;

    for (size_t i = r->skip; i < r->n; i++)
        for (uint32_t k = 0; k < pieces; k++, to += n)
            memcpy(to, r->rows->data + i * st.row + k * st.head, n * sizeof *to);
}

static void scatter(const kvi_hosted_out *o, strides st, const float *from)
{
    const uint32_t pieces = pieces_of_row(st, o->heads, o->width);
    const size_t   n = (size_t)o->heads * o->width / pieces;

    for (size_t i = o->skip; i < o->n; i++)
        for (uint32_t k = 0; k < pieces; k++, from += n)
            memcpy(o->out + i * st.row + k * st.head, from, n * sizeof *from);
}

/* ------------------------------------------------------------------ to operators */

/* Of the device already; gathered there. */
static kvcsa_status bring_within(kvcsa_session *s, const kvi_hosted_rows *r, strides st,
                                 kvcsa_error *err)
{
    kvi_hosted    *h = s->hosted;
    float         *to = kvi_hosted_data(h, r->which);
    const uint32_t pieces = pieces_of_row(st, r->heads, r->width);
    const size_t   n = (size_t)r->heads * r->width / pieces;

    for (size_t i = r->skip; i < r->n; i++)
        for (uint32_t k = 0; k < pieces; k++, to += n)
            kvi_copies_add(&h->copies, &h->memory, to, r->rows->data + i * st.row + k * st.head,
                           n * sizeof *to);
    return kvi_copies_run(&h->copies, &h->memory, err);
}

static kvcsa_status bring_over(kvcsa_session *s, const kvi_hosted_rows *r, strides st, size_t bytes,
                               kvcsa_error *err)
{
    kvi_hosted *h = s->hosted;
    const void *from = r->rows->data + r->skip * st.row;
    void       *to = kvi_hosted_data(h, r->which);

    if (!is_dense(st, r->n - r->skip, r->heads, r->width)) {
        if (!is_apart(s)) {
            gather(r, st, to);
            return KVCSA_OK;
        }
        float *here = grow_here(s, bytes, err);

        if (!here)
            return KVCSA_ERR_NOMEM;
        gather(r, st, here);
        from = here;
    }
    return kvi_memory_put(&h->memory, to, from, bytes, err);
}

kvcsa_status kvi_hosted_bring(kvcsa_session *s, const kvi_hosted_rows *r, const float **out,
                              kvcsa_error *err)
{
    const strides st = strides_of(r->rows->row_stride, r->rows->head_stride, r->heads, r->width);
    const size_t  bytes = (r->n - r->skip) * r->heads * r->width * sizeof(float);
    const int     there = (r->flags & KVCSA_ROWS_ON_DEVICE) != 0;
    const float  *first = r->rows->data + r->skip * st.row;
    kvcsa_status  status;

    *out = first;
    if (r->n == r->skip || (is_dense(st, r->n - r->skip, r->heads, r->width) &&
                            (there ? (uintptr_t)first % DEVICE_ALIGN == 0 : !is_apart(s))))
        return KVCSA_OK;
    if ((status = kvi_hosted_grow(s, r->which, bytes, err)) != KVCSA_OK)
        return status;
    *out = kvi_hosted_data(s->hosted, r->which);
    return there ? bring_within(s, r, st, err) : bring_over(s, r, st, bytes, err);
}

/* ------------------------------------------------------------------ and back */

kvcsa_status kvi_hosted_place(kvcsa_session *s, const kvi_hosted_out *o, float **to,
                              kvcsa_error *err)
{
    const strides st = strides_of(o->row_stride, o->head_stride, o->heads, o->width);
    const size_t  bytes = (o->n - o->skip) * o->heads * o->width * sizeof(float);
    kvcsa_status  status = KVCSA_OK;

    *to = o->out + o->skip * st.row;
    if (!is_apart(s) && is_dense(st, o->n - o->skip, o->heads, o->width))
        return KVCSA_OK;
    if ((status = kvi_hosted_grow(s, KVI_HOSTED_OUT, bytes, err)) == KVCSA_OK)
        *to = kvi_hosted_data(s->hosted, KVI_HOSTED_OUT);
    return status;
}

kvcsa_status kvi_hosted_give(kvcsa_session *s, const kvi_hosted_out *o, const float *from,
                             kvcsa_error *err)
{
    kvi_hosted    *h = s->hosted;
    const strides  st = strides_of(o->row_stride, o->head_stride, o->heads, o->width);
    const uint32_t pieces = pieces_of_row(st, o->heads, o->width);
    const size_t   n = (size_t)o->heads * o->width / pieces;
    const size_t   bytes = (o->n - o->skip) * o->heads * o->width * sizeof(float);
    float         *here;
    kvcsa_status   status;

    if (bytes == 0 || from == o->out + o->skip * st.row)
        return KVCSA_OK;
    if (o->flags & KVCSA_ROWS_ON_DEVICE) {
        for (size_t i = o->skip; i < o->n; i++)
            for (uint32_t k = 0; k < pieces; k++, from += n)
                kvi_copies_add(&h->copies, &h->memory, o->out + i * st.row + k * st.head, from,
                               n * sizeof *from);
        status = kvi_copies_run(&h->copies, &h->memory, err);
        return status == KVCSA_OK ? kvi_memory_sync(&h->memory, err) : status;
    }
    if (!is_apart(s)) {
        scatter(o, st, from);
        return KVCSA_OK;
    }
    if (is_dense(st, o->n - o->skip, o->heads, o->width))
        return kvi_memory_get(&h->memory, o->out + o->skip * st.row, from, bytes, err);
    if (!(here = grow_here(s, bytes, err)))
        return KVCSA_ERR_NOMEM;
    if ((status = kvi_memory_get(&h->memory, here, from, bytes, err)) == KVCSA_OK)
        scatter(o, st, here);
    return status;
}
