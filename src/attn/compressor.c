/* Source: docs/formats.md "Cache block"; DeepSeek-V4.1 report 2.3. Entry j of ratio r covers tokens
 * j r .. j r + r - 1, is rotated at position j r and is written by the chunk that holds its last
 * token. The index key is made from the latent before rotation and quantisation. */
#include "attn/compressor.h"

#include "base/checked.h"
#include "base/status.h"

static bool is_gated(const kvi_compress_params *p)
{
    return p->row->pool_kind == KVCSA_POOLING_GATED;
}

/* Rows of a slice that are projected: all, or in a replay those from the oldest raw row to keep to
 * the newest, if the pool needs raw rows at all. first: where they begin inside the slice. */
static size_t wanted_rows(const kvi_compress_params *p, const kvi_compress_slice *s, size_t *first)
{
    const size_t ratio = p->row->ratio;
    const size_t begin = (ratio - s->pos % ratio) % ratio; /* first row that begins an entry */
    size_t       n;

    *first = 0;
    if (!s->replay || s->n_rows == 0)
        return s->n_rows;
    if (!is_gated(p) || begin >= s->n_rows)
        return 0;
    n = (s->n_rows - 1 - begin) / ratio; /* raw rows behind that */
    *first = begin + (n - kvi_min_size(n, s->max_kept - 1)) * ratio;
    return begin + n * ratio - *first + 1;
}

/* The wanted rows of all slices, one behind the other: x itself where that is all of it. */
static kvcsa_status gather(const kvi_compress_params *p, const float **out, size_t *n_rows,
                           kvcsa_error *err)
{
    const kvi_memory m = kvi_exec_memory(&p->exec);
    const size_t     width = p->wkv->cols;
    const float     *x = p->x;
    size_t           n = 0;
    size_t           first = 0;
    int              replay = 0;

    for (size_t i = 0; i < p->n_slices; i++)
        replay |= p->slices[i].replay;
    for (size_t i = 0; i < p->n_slices; i++) {
        const size_t k = wanted_rows(p, &p->slices[i], &first);

        if (replay)
            kvi_copies_add(p->copies, &m, p->gathered + n * width, x + first * width,
                           k * width * sizeof *x);
        x += p->slices[i].n_rows * width;
        n += k;
    }
    *n_rows = n;
    *out = replay ? p->gathered : p->x;
    return kvi_copies_run(p->copies, &m, err);
}

/* Ratio 1: the latent is a projection. */
static kvcsa_status project(const kvi_compress_params *p, size_t *n_entries, kvcsa_error *err)
{
    size_t       n = 0;
    const float *x = NULL;
    kvcsa_status st = gather(p, &x, &n, err);

    for (size_t i = 0; i < p->n_slices; i++) {
        kvi_compress_slice *s = &p->slices[i];

        s->first_entry = s->pos;
        s->n_entries = s->replay ? 0 : s->n_rows;
    }
    *n_entries = n;
    return st == KVCSA_OK && n
               ? kvi_exec_linear(&p->exec, p->wkv, x, p->latent, n, p->exec.flags, err)
               : st;
}

/* Raw rows for later: of the last tokens that begin an entry. k, gate: of the slice's first wanted
 * row, which is the first-th of the slice. */
static void keep_raw_rows(const kvi_compress_params *p, kvi_compress_slice *s, size_t first,
                          size_t n, const float *k, const float *gate)
{
    const kvi_memory m = kvi_exec_memory(&p->exec);
    const size_t     width = p->row->entry_width;
    const size_t     even = (s->pos + first) % 2;
    const size_t     count = n > even ? (n - even + 1) / 2 : 0;

    s->n_kept = (uint32_t)kvi_min_size(count, s->max_kept);
    for (size_t i = 0; i < s->n_kept; i++) {
        const size_t row = even + 2 * (count - s->n_kept + i);
        float       *to = s->kept + i * 2 * width;

        kvi_copies_add(p->copies, &m, to, k + row * width, width * sizeof *k);
        kvi_copies_add(p->copies, &m, to + width, gate + row * width, width * sizeof *gate);
    }
}

/* Pairs of one slice. One that begins inside an entry takes its first half from the raw row of the
 * token in front. */
static kvcsa_status pool_slice(const kvi_compress_params *p, const kvi_compress_slice *s,
                               const float *k, const float *gate, float *out, kvcsa_error *err)
{
    const kvi_pool_pairs_params pool = {.k = k,
                                        .gate = gate,
                                        .head = s->pos % 2 ? s->pending : NULL,
                                        .out = out,
                                        .n_pairs = s->n_entries,
                                        .width = p->row->entry_width,
                                        .flags = p->exec.flags};

    return s->n_entries ? p->exec.ops->pool_pairs(p->exec.dev, &pool, err) : KVCSA_OK;
}

/* Ratio 2: two tokens, weighed by a softmax per channel. Projections stay fp32 in every mode. */
static kvcsa_status pool_pairs(const kvi_compress_params *p, size_t *n_entries, kvcsa_error *err)
{
    const kvi_memory m = kvi_exec_memory(&p->exec);
    const size_t     width = p->row->entry_width;
    const float     *x = NULL;
    size_t           n = 0;
    size_t           from = 0;
    kvcsa_status     st = gather(p, &x, &n, err);

    if (st != KVCSA_OK || n == 0)
        return st;
    if ((st = kvi_exec_linear(&p->exec, p->wkv, x, p->k, n, 0, err)) != KVCSA_OK ||
        (st = kvi_exec_linear(&p->exec, p->wgate, x, p->gate, n, 0, err)) != KVCSA_OK)
        return st;
    for (size_t i = 0; i < p->n_slices; i++) {
        kvi_compress_slice *s = &p->slices[i];
        size_t              first = 0;
        const size_t        rows = wanted_rows(p, s, &first);

        keep_raw_rows(p, s, first, rows, p->k + from * width, p->gate + from * width);
        s->first_entry = s->pos / 2;
        s->n_entries = s->replay ? 0 : (s->pos + rows) / 2 - s->first_entry;
        from += rows;
    }
    st = kvi_copies_run(p->copies, &m, err);
    from = 0;
    for (size_t i = 0; i < p->n_slices && st == KVCSA_OK; i++) {
        const kvi_compress_slice *s = &p->slices[i];
        size_t                    first = 0;

        st = pool_slice(p, s, p->k + from * width, p->gate + from * width,
                        p->latent + *n_entries * width, err);
        *n_entries += s->n_entries;
        from += wanted_rows(p, s, &first);
    }
    return st;
}

/* Latents -> index keys and entries, before they are stored. */
static kvcsa_status finish(const kvi_compress_params *p, size_t n, kvcsa_error *err)
{
    const kvi_plan_row *row = p->row;
    const kvi_exec     *e = &p->exec;
    kvcsa_status        st;

    if ((st = kvi_exec_norm(e, p->norm, p->latent, n, row->entry_width, p->eps, err)) != KVCSA_OK ||
        (st = kvi_exec_linear(e, p->index_wk, p->latent, p->key, n, e->flags, err)) != KVCSA_OK ||
        (st = kvi_exec_norm(e, p->index_k_norm, p->key, n, row->index_width, p->eps, err)) !=
            KVCSA_OK ||
        (st = kvi_exec_rope(e, &p->rotary, p->key, p->entry_pos, n, 1, row->index_width, 0, err)) !=
            KVCSA_OK ||
        (st = kvi_exec_rope(e, &p->rotary, p->latent, p->entry_pos, n, 1, row->entry_width, 0,
                            err)) != KVCSA_OK)
        return st;
    kvi_exec_tap(e, KVI_TAP_KEY, p->key, n, row->index_width);
    kvi_exec_tap(e, KVI_TAP_MAIN, p->latent, n, row->entry_width);
    return KVCSA_OK;
}

kvcsa_status kvi_compress(const kvi_compress_params *p, kvcsa_error *err)
{
    const kvi_plan_row *row = p->row;
    size_t              n = 0;
    size_t              at = 0;
    kvcsa_status        st = KVCSA_ERR_INTERNAL;

    for (size_t i = 0; i < p->n_slices; i++) {
        p->slices[i].n_kept = 0;
        p->slices[i].n_entries = 0;
    }
    if (row->pool_kind == KVCSA_POOLING_NONE && row->ratio == 1)
        st = project(p, &n, err);
    else if (is_gated(p) && row->ratio == 2)
        st = pool_pairs(p, &n, err);
    else
        st = kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "pooling kind %u with ratio %u has no operator",
                      row->pool_kind, row->ratio);
    if (st != KVCSA_OK || n == 0)
        return st;
    st = finish(p, n, err);
    for (size_t i = 0; i < p->n_slices && st == KVCSA_OK; i++) {
        const kvi_compress_slice    *s = &p->slices[i];
        const kvi_entry_write_params write = {.to = s->to,
                                              .latent = p->latent + at * row->entry_width,
                                              .key = p->key + at * row->index_width,
                                              .first_entry = s->first_entry,
                                              .n_rows = s->n_entries};

        if (s->n_entries)
            st = p->exec.ops->entry_write(p->exec.dev, &write, err);
        at += s->n_entries;
    }
    return st;
}
