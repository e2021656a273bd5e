/* Rows of the cache as floats, as attention sees them. */
#include <string.h>

#include "base/status.h"
#include "format/row.h"
#include "session/hosted.h"

/* What is read: rows [first, first + n) of one layer. */
typedef struct reading {
    kvcsa_session      *s;
    const kvi_plan_row *row;
    const kvi_kv_owner *owner; /* of the rows; NULL where there are none */
    uint32_t            layer;
    uint64_t            first, n;
    float              *out;
    size_t              width;   /* floats of a row */
    uint8_t            *scratch; /* one piece, and one row behind it */
    size_t              n_scratch;
} reading;

/* Bytes that lie side by side. */
static kvcsa_status see(const reading *r, const uint8_t *from, size_t n_bytes, const uint8_t **out,
                        kvcsa_error *err)
{
    const void  *seen = NULL;
    kvcsa_status st =
        kvi_memory_see(kvi_pool_memory(r->s->pool), from, n_bytes, r->scratch, &seen, err);

    *out = seen;
    return st;
}

/* Rows of one block, entry i of which is row `row`: `heads` of them side by side, or one head's. */
typedef struct piece {
    const uint8_t *part;
    uint32_t       row, n;
    float         *out;
} piece;

static kvcsa_status read_strips(const reading *r, const piece *p, int values, kvcsa_error *err)
{
    const kvi_kv_owner *o = r->owner;
    const uint32_t      bytes = values ? o->value_row_bytes : o->key_row_bytes;
    const size_t        width = r->width / o->n_strip_heads;
    const uint8_t      *seen;

    for (uint32_t h = 0; h < o->n_strip_heads; h++) {
        const size_t       off = values ? kvi_kv_value_strip_off(o, h) : kvi_kv_key_strip_off(o, h);
        const kvcsa_status st =
            see(r, p->part + off + (size_t)p->row * bytes, (size_t)p->n * bytes, &seen, err);

        if (st != KVCSA_OK)
            return st;
        for (uint32_t i = 0; i < p->n; i++)
            kvi_row_decode(values ? r->row->value_format : r->row->entry_format, seen + i * bytes,
                           width, p->out + i * r->width + h * width);
    }
    return KVCSA_OK;
}

/* Values that are not stored are the first channels of their head's key. */
static kvcsa_status read_entries(const reading *r, const piece *p, kvcsa_error *err)
{
    const kvi_kv_owner *o = r->owner;
    const uint32_t      heads = r->row->kv_heads;
    const size_t        key_bytes = o->main_row_bytes / heads;
    const size_t        width = r->width / heads;
    float              *key = (float *)(void *)(r->scratch + r->n_scratch);
    const uint8_t      *seen;
    const kvcsa_status  st = see(r, p->part + kvi_kv_main_row_off(o, p->row),
                                 (size_t)p->n * o->main_row_bytes, &seen, err);

    for (size_t i = 0; i < (size_t)p->n * heads && st == KVCSA_OK; i++) {
        kvi_row_decode(r->row->entry_format, seen + i * key_bytes, r->row->entry_width, key);
        memcpy(p->out + i * width, key, width * sizeof *key);
    }
    return st;
}

/* Keys lie in groups: values of 8 rows, then their scales. */
static kvcsa_status read_index(const reading *r, const piece *p, kvcsa_error *err)
{
    const kvi_kv_owner *o = r->owner;
    const size_t        n_values = o->index_value_bytes;
    const size_t        n_scales = o->index_row_bytes - n_values;
    uint8_t            *row = r->scratch + r->n_scratch;
    const uint8_t      *seen;

    for (uint32_t i = 0; i < p->n; i++) {
        kvcsa_status st =
            see(r, p->part + kvi_kv_index_values_off(o, p->row + i), n_values, &seen, err);

        if (st != KVCSA_OK)
            return st;
        memcpy(row, seen, n_values);
        if ((st = see(r, p->part + kvi_kv_index_scales_off(o, p->row + i), n_scales, &seen, err)) !=
            KVCSA_OK)
            return st;
        memcpy(row + n_values, seen, n_scales);
        kvi_row_decode(r->row->index_format, row, r->width, p->out + i * r->width);
    }
    return KVCSA_OK;
}

/* Entries, block by block. */
static kvcsa_status read_blocks(const reading *r, uint32_t what, kvcsa_error *err)
{
    const uint32_t  per_block = r->owner->rows_per_block;
    uint8_t *const *parts =
        what == KVCSA_READ_INDEX_KEYS ? r->s->index_parts.data : r->s->main_parts.data;
    const int    values = what == KVCSA_READ_VALUES;
    kvcsa_status st = KVCSA_OK;

    for (uint64_t i = r->first; i < r->first + r->n && st == KVCSA_OK;) {
        piece p = {.part = parts[i / per_block],
                   .row = (uint32_t)(i % per_block),
                   .out = r->out + (i - r->first) * r->width};

        p.n = (uint32_t)kvi_min_size(per_block - p.row, r->first + r->n - i);
        if (what == KVCSA_READ_INDEX_KEYS)
            st = read_index(r, &p, err);
        else
            st = r->owner->n_strip_heads ? read_strips(r, &p, values, err)
                                         : read_entries(r, &p, err);
        i += p.n;
    }
    return st;
}

static kvi_window_offs offs_of(const reading *r)
{
    return kvi_window_offs_of(&r->s->geom, &r->s->model->plan, r->layer);
}

static kvcsa_status read_window(const reading *r, kvcsa_error *err)
{
    const kvi_window_geom *g = &r->s->geom;
    const size_t           bytes = r->row->window_bytes;
    const size_t           off = offs_of(r).page;
    const uint8_t         *seen;

    for (uint64_t p = r->first; p < r->first + r->n; p++) {
        const uint8_t     *page = kvi_block_main_part(r->s->now.pages[kvi_window_page_of(g, p)]);
        const size_t       row = p % kvi_window_ring_rows(g) % g->page_rows;
        const kvcsa_status st = see(r, page + off + row * bytes, bytes, &seen, err);

        if (st != KVCSA_OK)
            return st;
        kvi_row_decode(r->row->window_format, seen, r->width, r->out + (p - r->first) * r->width);
    }
    return KVCSA_OK;
}

static kvcsa_status read_pending(const reading *r, kvcsa_error *err)
{
    const uint64_t entry = r->first / r->row->ratio;
    const size_t   slot = (size_t)(entry % r->s->geom.pending_slots) * r->row->pending_bytes;
    const size_t   bytes = r->width * sizeof(float);
    const uint8_t *rows = kvi_block_main_part(r->s->now.pending) + offs_of(r).pending + slot +
                          r->first % r->row->ratio * bytes;

    return kvi_memory_get(kvi_pool_memory(r->s->pool), r->out, rows, (size_t)r->n * bytes, err);
}

/* ------------------------------------------------------------------ what there is */

/* Rows [*begin, *end) can be read; widths, or 0 where the layer has no such rows. */
static void find_rows(reading *r, uint32_t what, uint64_t *begin, uint64_t *end)
{
    const kvcsa_session *s = r->s;
    const kvi_plan_row  *row = r->row;
    const kvi_state     *st = &s->now;
    const int            of_index = what == KVCSA_READ_INDEX_KEYS;
    const int32_t        owner = of_index ? row->index_owner : row->kv_owner;
    const uint64_t       ring = kvi_window_ring_rows(&s->geom);

    *begin = 0;
    if (what == KVCSA_READ_WINDOW) {
        r->width = kvi_plan_window_width(row);
        *begin = kvi_max_size(kvi_max_size(st->window_lo, st->floors[r->layer]),
                              st->n_tokens > ring ? st->n_tokens - ring : 0);
        *end = st->replay_end && !s->last_row_only ? *begin : st->n_tokens;
    } else if (what == KVCSA_READ_PENDING) {
        r->width = kvi_plan_raw_row_bytes(row) / sizeof(float);
        *end = r->width && kvi_state_has_raw_rows(s, st) ? st->n_tokens : 0;
        *begin = r->width ? *end - *end % row->ratio : 0;
    } else if (owner != KVI_NO_LAYER) {
        r->owner = kvi_kv_layout_owner(&s->model->layout, (uint32_t)owner);
        r->width = of_index ? row->index_width
                            : (size_t)row->kv_heads *
                                  (what == KVCSA_READ_KEYS ? row->entry_width : row->value_width);
        *end = kvi_hosted_readable(s, (uint32_t)owner) / row->ratio;
    }
}

static kvcsa_status check_range(reading *r, uint32_t what, size_t cap, kvcsa_error *err)
{
    static const char *const names[] = {"",           "keys",   "values",
                                        "index keys", "window", "pending rows"};
    uint64_t                 begin = 0;
    uint64_t                 end = 0;
    size_t                   need;

    if (what < KVCSA_READ_KEYS || what > KVCSA_READ_PENDING)
        return kvi_fail(err, KVCSA_ERR_ARG, "what is %u, must be one of KVCSA_READ_*", what);
    find_rows(r, what, &begin, &end);
    if (r->width == 0)
        return kvi_fail(err, KVCSA_ERR_ARG, "layer %u has no %s", r->layer, names[what]);
    if (r->first < begin || r->first > end || r->n > end - r->first)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "layer %u: %s %llu and %llu more are asked for, there are %llu..%llu",
                        r->layer, names[what], (unsigned long long)r->first,
                        (unsigned long long)r->n, (unsigned long long)begin,
                        (unsigned long long)end);
    if (!kvi_mul_size((size_t)r->n, r->width, &need) || need > cap)
        return kvi_fail(err, KVCSA_ERR_ARG, "cap is %zu floats, %llu rows of %zu are asked for",
                        cap, (unsigned long long)r->n, r->width);
    return KVCSA_OK;
}

/* The most that is seen at once, and one row as bytes or floats behind it. */
static kvcsa_status make_scratch(reading *r, uint8_t **memory, size_t *n_bytes, kvcsa_error *err)
{
    const size_t largest = r->owner
                             ? (size_t)r->owner->rows_per_block *
                                   kvi_max_size(r->owner->main_row_bytes, r->owner->index_row_bytes)
                             : r->row->window_bytes;
    const size_t row = kvi_max_size(r->row->entry_width * sizeof(float), r->row->index_bytes);

    r->n_scratch = kvi_div_up(largest, sizeof(float)) * sizeof(float);
    *n_bytes = r->n_scratch + row;
    if (!(*memory = kvi_alloc(&r->s->allocator, *n_bytes)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "rows of layer %u, %zu bytes", r->layer, *n_bytes);
    r->scratch = *memory;
    return KVCSA_OK;
}

kvcsa_status kvi_session_read_rows(kvcsa_session *s, uint32_t layer, uint32_t what, uint64_t first,
                                   uint64_t n, float *out, size_t cap, kvcsa_error *err)
{
    reading      r = {.s = s, .layer = layer, .first = first, .n = n, .out = out};
    uint8_t     *scratch = NULL;
    size_t       n_bytes = 0;
    kvcsa_status st;

    if (layer >= s->model->plan.n_layers)
        return kvi_fail(err, KVCSA_ERR_ARG, "layer is %u, the model has %u", layer,
                        s->model->plan.n_layers);
    r.row = &s->model->plan.rows[layer];
    if ((st = check_range(&r, what, cap, err)) != KVCSA_OK || n == 0)
        return st;
    if (what == KVCSA_READ_PENDING)
        return read_pending(&r, err);
    if ((st = make_scratch(&r, &scratch, &n_bytes, err)) != KVCSA_OK)
        return st;
    st = kvi_session_view(s, 0, err);
    if (st == KVCSA_OK)
        st = what == KVCSA_READ_WINDOW ? read_window(&r, err) : read_blocks(&r, what, err);
    kvi_free(&s->allocator, scratch, n_bytes);
    return st;
}
