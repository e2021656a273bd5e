/* What layers make of a chunk of the host: window rows, raw rows, entries, index keys. */
#include "base/status.h"
#include "session/hosted.h"

kvcsa_status kvi_hosted_view(kvcsa_session *s, uint32_t layer, uint32_t flags, uint32_t reserved,
                             kvi_hosted_layer *v, kvcsa_error *err)
{
    const kvi_plan *plan = &s->model->plan;
    const uint32_t  known = KVCSA_ROWS_ON_DEVICE;

    if (!s->hosted || !s->hosted->open)
        return kvi_fail(err, KVCSA_ERR_ARG, "no chunk is open");
    if (layer >= plan->n_layers)
        return kvi_fail(err, KVCSA_ERR_ARG, "layer is %u, the plan has %u", layer, plan->n_layers);
    if (flags & ~known || reserved)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "flags are 0x%x, known are 0x%x; reserved is %u", flags, known, reserved);
    if (flags & KVCSA_ROWS_ON_DEVICE && !kvi_memory_is_apart(&s->hosted->memory))
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "KVCSA_ROWS_ON_DEVICE: the pool computes in the host's memory");
    *v = (kvi_hosted_layer){.s = s,
                            .h = s->hosted,
                            .row = &plan->rows[layer],
                            .slice = &s->hosted->slice,
                            .layer = layer,
                            .flags = flags};
    v->width = v->row->ratio ? v->row->entry_width : kvi_plan_window_width(v->row);
    if (v->row->ratio)
        v->owner = kvi_kv_layout_owner(&s->model->layout, (uint32_t)v->row->kv_owner);
    return KVCSA_OK;
}

kvcsa_status kvi_hosted_check_given(const kvi_hosted_layer *v, const char *what,
                                    const kvcsa_rows *rows, int wanted, kvcsa_error *err)
{
    if (wanted == 1 && !rows->data)
        return kvi_fail(err, KVCSA_ERR_ARG, "layer %u: %s is NULL", v->layer, what);
    if (wanted == 0 && rows->data)
        return kvi_fail(err, KVCSA_ERR_ARG, "layer %u: %s is given, the layer has none", v->layer,
                        what);
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ write */

static size_t entries_completed(const kvi_hosted_layer *v)
{
    return v->row->ratio
               ? (size_t)(kvi_hosted_end(v) / v->row->ratio - v->slice->pos / v->row->ratio)
               : 0;
}

static kvcsa_status check_rows(const kvi_hosted_layer *v, const kvcsa_chunk_rows *r,
                               kvcsa_error *err)
{
    const kvi_plan_row *row = v->row;
    const int           owns = kvi_plan_owns(&v->s->model->plan, v->layer);
    const int           due = v->slice->replay || entries_completed(v) == 0 ? -1 : 1;
    kvcsa_status        st;

    if ((st = kvi_hosted_check_given(v, "key", &r->key, owns ? due : 0, err)) != KVCSA_OK ||
        (st = kvi_hosted_check_given(v, "value", &r->value,
                                     owns && row->value_kind == KVCSA_VALUE_OWN ? due : 0, err)) !=
            KVCSA_OK ||
        (st = kvi_hosted_check_given(v, "index_key", &r->index_key,
                                     owns && row->index_bytes ? due : 0, err)) != KVCSA_OK ||
        (st = kvi_hosted_check_given(v, "window", &r->window, row->window_tokens ? 1 : 0, err)) !=
            KVCSA_OK)
        return st;
    return kvi_hosted_check_given(v, "pending", &r->pending, row->pending_bytes ? 1 : 0, err);
}

static kvcsa_status write_window(const kvi_hosted_layer *v, const kvcsa_chunk_rows *r,
                                 kvcsa_error *err)
{
    const kvi_plan_row   *row = v->row;
    const size_t          skip = kvi_hosted_skipped(v->h, v->layer);
    const uint32_t        n = v->slice->n_rows;
    const kvi_hosted_rows from =
        kvi_hosted_rows_of(v, &r->window, skip, n, 1, v->width, KVI_HOSTED_IN);
    kvi_window_write_params p = {.rows = (uint8_t *)kvi_hosted_data(v->h, KVI_HOSTED_ROWS) +
                                         v->h->at[v->layer] + skip * row->window_bytes,
                                 .x_stride = v->width,
                                 .n_rows = n - skip,
                                 .width = v->width,
                                 .row_bytes = row->window_bytes};
    const kvi_exec          exec = kvi_session_exec(v->s);
    kvcsa_work             *w = kvi_hosted_work(v);
    kvcsa_status            st;

    if (p.n_rows == 0)
        return KVCSA_OK;
    if ((st = kvi_hosted_bring(v->s, &from, &p.x, err)) == KVCSA_OK)
        st = exec.ops->window_write(exec.dev, &p, err);
    if (st == KVCSA_OK && w) {
        w->n_replayed_rows += v->slice->replay ? p.n_rows : 0;
        w->n_window_rows_written += p.n_rows;
        w->written_bytes += p.n_rows * row->window_bytes;
    }
    return st;
}

static kvcsa_status write_pending(const kvi_hosted_layer *v, const kvcsa_chunk_rows *r,
                                  kvcsa_error *err)
{
    const size_t          bytes = kvi_plan_raw_row_bytes(v->row);
    const uint32_t        n = v->slice->n_rows;
    const kvi_hosted_rows from = kvi_hosted_rows_of(
        v, &r->pending, 0, n, 1, (uint32_t)(bytes / sizeof(float)), KVI_HOSTED_IN);
    const float *x;
    kvcsa_status st = kvi_hosted_bring(v->s, &from, &x, err);

    return st != KVCSA_OK ? st
                          : kvi_memory_move(&v->h->memory,
                                            (uint8_t *)kvi_hosted_data(v->h, KVI_HOSTED_ROWS) +
                                                v->h->at[v->s->model->plan.n_layers + v->layer],
                                            x, n * bytes, err);
}

static kvcsa_status write_latents(const kvi_hosted_layer *v, const kvcsa_chunk_rows *r, size_t n,
                                  kvcsa_error *err)
{
    const kvi_exec        exec = kvi_session_exec(v->s);
    const kvi_hosted_rows key = kvi_hosted_rows_of(v, &r->key, 0, n, 1, v->width, KVI_HOSTED_IN);
    const kvi_hosted_rows index_key =
        kvi_hosted_rows_of(v, &r->index_key, 0, n, 1, v->row->index_width, KVI_HOSTED_IN_TOO);
    kvi_entry_write_params p = {.to = {.owner = v->owner,
                                       .index_parts = v->slice->index_parts,
                                       .main_parts = v->slice->main_parts},
                                .first_entry = v->slice->pos / v->row->ratio,
                                .n_rows = n};
    kvcsa_status           st = kvi_hosted_bring(v->s, &key, &p.latent, err);

    if (st == KVCSA_OK)
        st = kvi_hosted_bring(v->s, &index_key, &p.key, err);
    return st == KVCSA_OK ? exec.ops->entry_write(exec.dev, &p, err) : st;
}

/* The strides are the operator's where it reads the host's rows themselves. */
static kvcsa_status write_heads(const kvi_hosted_layer *v, const kvcsa_chunk_rows *r, size_t n,
                                kvcsa_error *err)
{
    const kvi_plan_row    *row = v->row;
    const kvi_exec         exec = kvi_session_exec(v->s);
    const size_t           dense = (size_t)row->kv_heads * v->width;
    kvi_paged_write_params p = {.k = r->key.data,
                                .v = r->value.data,
                                .pages = v->slice->main_parts,
                                .k_row_stride = dense,
                                .k_head_stride = v->width,
                                .v_row_stride = dense,
                                .v_head_stride = v->width,
                                .first = v->slice->pos,
                                .page_off = v->owner->main_off,
                                .n_rows = n,
                                .n_kv_heads = row->kv_heads,
                                .width = v->width,
                                .page_rows = v->owner->rows_per_block,
                                .format = row->entry_format};
    kvcsa_status           st = KVCSA_OK;

    if (!kvi_memory_is_apart(&v->h->memory)) {
        p.k_row_stride = r->key.row_stride ? r->key.row_stride : dense;
        p.k_head_stride = r->key.head_stride ? r->key.head_stride : v->width;
        p.v_row_stride = r->value.row_stride ? r->value.row_stride : dense;
        p.v_head_stride = r->value.head_stride ? r->value.head_stride : v->width;
    } else {
        const kvi_hosted_rows key =
            kvi_hosted_rows_of(v, &r->key, 0, n, row->kv_heads, v->width, KVI_HOSTED_IN);
        const kvi_hosted_rows value =
            kvi_hosted_rows_of(v, &r->value, 0, n, row->kv_heads, v->width, KVI_HOSTED_IN_TOO);

        st = kvi_hosted_bring(v->s, &key, &p.k, err);
        if (st == KVCSA_OK)
            st = kvi_hosted_bring(v->s, &value, &p.v, err);
    }
    return st == KVCSA_OK ? exec.ops->paged_write(exec.dev, &p, err) : st;
}

static kvcsa_status write_entries(const kvi_hosted_layer *v, const kvcsa_chunk_rows *r,
                                  kvcsa_error *err)
{
    const size_t       n = entries_completed(v);
    const kvcsa_status st =
        v->owner->n_strip_heads ? write_heads(v, r, n, err) : write_latents(v, r, n, err);
    kvcsa_work *w = kvi_hosted_work(v);

    if (st == KVCSA_OK && w) {
        w->n_entries_written += n;
        w->written_bytes += n * ((size_t)v->row->entry_bytes + v->row->index_bytes);
    }
    return st;
}

kvcsa_status kvi_hosted_write(kvcsa_session *s, uint32_t layer, const kvcsa_chunk_rows *rows,
                              kvcsa_error *err)
{
    kvi_hosted_layer v;
    kvcsa_status     st = kvi_hosted_view(s, layer, rows->flags, rows->reserved, &v, err);

    if (st != KVCSA_OK || (st = check_rows(&v, rows, err)) != KVCSA_OK)
        return st;
    if (v.row->window_tokens)
        st = write_window(&v, rows, err);
    if (st == KVCSA_OK && v.row->pending_bytes)
        st = write_pending(&v, rows, err);
    if (st == KVCSA_OK && kvi_plan_owns(&s->model->plan, layer) && !v.slice->replay &&
        entries_completed(&v))
        st = write_entries(&v, rows, err);
    if (st == KVCSA_OK)
        v.h->written[layer] = 1;
    return st;
}
