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

/* The wanted rows of all slices, one behind the other: x itself where that is all of it. rows: the
 * table that says so. */
static kvcsa_status gather(const kvi_compress_params *p, const float **out, size_t *n_rows,
                           const kvi_slice_rows **rows, kvcsa_error *err)
{
    const kvi_memory m = kvi_exec_memory(&p->exec);
    const size_t     width = p->wkv->cols;
    const float     *x = p->x;
    kvcsa_status     st;
    size_t           n = 0;
    size_t           first = 0;
    int              replay = 0;

    for (size_t i = 0; i < p->n_slices; i++)
        replay |= p->slices[i].replay;
    for (size_t i = 0; i < p->n_slices; i++) {
        const size_t k = wanted_rows(p, &p->slices[i], &first);

        if (replay) {
            kvi_copies_add(p->copies, &m, p->x_spare + n * width, x + first * width,
                           k * width * sizeof *x);
            p->gathered[0][i] = (kvi_slice_rows){.pos = p->slices[i].pos + first, .row = n};
        }
        x += p->slices[i].n_rows * width;
        n += k;
    }
    *n_rows = n;
    *out = replay ? p->x_spare : p->x;
    *rows = replay ? p->gathered[1] : p->rows;
    if (replay && kvi_memory_is_apart(&m) &&
        (st = kvi_post_put(p->copies->post, &m, p->gathered[1], p->gathered[0],
                           p->n_slices * sizeof *p->rows, err)) != KVCSA_OK)
        return st;
    return kvi_copies_run(p->copies, &m, err);
}

/* Ratio 1: the latent is a projection. */
static kvcsa_status project(const kvi_compress_params *p, kvcsa_error *err)
{
    const kvi_slice_rows *rows = NULL;
    const float          *x = NULL;
    size_t                n = 0;
    kvcsa_status          st = gather(p, &x, &n, &rows, err);

    for (size_t i = 0; i < p->n_slices; i++)
        p->slices[i].n_entries = p->slices[i].replay ? 0 : p->slices[i].n_rows;
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
    uint32_t         i = 0;

    s->n_kept = (uint32_t)kvi_min_size(count, s->max_kept);
    for (; i < s->n_kept; i++) {
        const size_t row = even + 2 * (count - s->n_kept + i);
        float       *to = s->kept + i * 2 * width;

        kvi_copies_add(p->copies, &m, to, k + row * width, width * sizeof *k);
        kvi_copies_add(p->copies, &m, to + width, gate + row * width, width * sizeof *gate);
    }
    for (; i < s->max_kept && s->n_rows; i++) {
        kvi_copies_add_none(p->copies, &m, s->kept, k, width * sizeof *k);
        kvi_copies_add_none(p->copies, &m, s->kept, gate, width * sizeof *gate);
    }
}

/* Runs an operator for neighbours of a group that have equally many slots, at least one; at: of the
 * first of them. */
typedef kvcsa_status (*run_slots)(const kvi_compress_params *p, const kvi_compress_group *g,
                                  const kvi_slices *of, size_t at, size_t n_slots,
                                  kvcsa_error *err);
static kvcsa_status each_group(const kvi_compress_params *p, const kvi_slice_rows *rows,
                               run_slots run, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    size_t       at = 0;

    for (size_t g = 0; g < p->n_groups; g++) {
        const kvi_compress_group *group = &p->groups[g];
        const size_t              end = group->first + group->n;
        size_t                    next = 0;

        for (size_t i = group->first; i < end && st == KVCSA_OK; i = next) {
            const size_t     each = p->slices[i].n_slots;
            const kvi_slices of = {.slices = p->tables + i, .rows = rows + i, .each = each};

            for (next = i + 1; next < end && p->slices[next].n_slots == each;)
                next++;
            if (each)
                st = run(p, group, &of, at, (next - i) * each, err);
            at += (next - i) * each;
        }
    }
    return st;
}

/* An entry that begins in front of the rows takes its first half from the page of raw rows. */
static kvcsa_status pool_slots(const kvi_compress_params *p, const kvi_compress_group *g,
                               const kvi_slices *of, size_t at, size_t n_slots, kvcsa_error *err)
{
    const kvi_pool_pairs_params pool = {.k = p->k,
                                        .gate = p->gate,
                                        .out = p->latent + at * p->row->entry_width,
                                        .n_pairs = n_slots,
                                        .width = p->row->entry_width,
                                        .flags = p->exec.flags,
                                        .of = *of,
                                        .entry_pos = p->entry_pos + at,
                                        .pending_off = g->pending_off,
                                        .pending_slots = g->pending_slots,
                                        .pending_bytes = p->row->pending_bytes};

    return p->exec.ops->pool_pairs(p->exec.dev, &pool, err);
}

/* Ratio 2: two tokens, weighed by a softmax per channel. Projections stay fp32 in every mode. */
static kvcsa_status pool_pairs(const kvi_compress_params *p, kvcsa_error *err)
{
    const kvi_memory      m = kvi_exec_memory(&p->exec);
    const size_t          width = p->row->entry_width;
    const kvi_slice_rows *rows = NULL;
    const float          *x = NULL;
    size_t                n = 0;
    size_t                from = 0;
    kvcsa_status          st = gather(p, &x, &n, &rows, err);

    if (st != KVCSA_OK || n == 0)
        return st;
    if ((st = kvi_exec_linear(&p->exec, p->wkv, x, p->k, n, 0, err)) != KVCSA_OK ||
        (st = kvi_exec_linear(&p->exec, p->wgate, x, p->gate, n, 0, err)) != KVCSA_OK)
        return st;
    for (size_t i = 0; i < p->n_slices; i++) {
        kvi_compress_slice *s = &p->slices[i];
        size_t              first = 0;
        const size_t        n_wanted = wanted_rows(p, s, &first);

        keep_raw_rows(p, s, first, n_wanted, p->k + from * width, p->gate + from * width);
        s->n_entries = s->replay ? 0 : (s->pos + n_wanted) / 2 - s->pos / 2;
        from += n_wanted;
    }
    st = kvi_copies_run(p->copies, &m, err);
    return st == KVCSA_OK ? each_group(p, rows, pool_slots, err) : st;
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
        (st = kvi_exec_rope(e, &p->rotary, p->key, p->turn_pos, n, 1, row->index_width, 0, err)) !=
            KVCSA_OK ||
        (st = kvi_exec_rope(e, &p->rotary, p->latent, p->turn_pos, n, 1, row->entry_width, 0,
                            err)) != KVCSA_OK)
        return st;
    kvi_exec_tap(e, KVI_TAP_KEY, p->key, n, row->index_width);
    kvi_exec_tap(e, KVI_TAP_MAIN, p->latent, n, row->entry_width);
    return KVCSA_OK;
}

static kvcsa_status write_slots(const kvi_compress_params *p, const kvi_compress_group *g,
                                const kvi_slices *of, size_t at, size_t n_slots, kvcsa_error *err)
{
    const kvi_plan_row          *row = p->row;
    const kvi_entry_write_params write = {.to = {.owner = p->owner},
                                          .latent = p->latent + at * row->entry_width,
                                          .key = p->key + at * row->index_width,
                                          .n_rows = n_slots,
                                          .of = *of,
                                          .entry_pos = p->entry_pos + at,
                                          .ratio = row->ratio};

    (void)g;
    return p->exec.ops->entry_write(p->exec.dev, &write, err);
}

kvcsa_status kvi_compress(const kvi_compress_params *p, kvcsa_error *err)
{
    const kvi_plan_row *row = p->row;
    size_t              n = 0;
    kvcsa_status        st;

    for (size_t i = 0; i < p->n_slices; i++) {
        n += p->slices[i].n_slots;
        p->slices[i].n_kept = 0;
        p->slices[i].n_entries = 0;
    }
    if (row->pool_kind == KVCSA_POOLING_NONE && row->ratio == 1)
        st = project(p, err);
    else if (is_gated(p) && row->ratio == 2)
        st = pool_pairs(p, err);
    else
        st = kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "pooling kind %u with ratio %u has no operator",
                      row->pool_kind, row->ratio);
    if (st != KVCSA_OK || n == 0 || (st = finish(p, n, err)) != KVCSA_OK)
        return st;
    return each_group(p, p->rows, write_slots, err);
}
