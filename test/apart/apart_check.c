#include "apart/apart_check.h"

/* ------------------------------------------------------------------ at the call */

typedef struct watch {
    const apart_memory *m;
    const char         *op;
} watch;

static void check(const watch *w, const char *name, const void *ptr)
{
    if (ptr && !apart_holds(w->m, ptr, 0, KVI_MEMORY_DEVICE))
        apart_die("%s: %s is %p, which is not the device's", w->op, name, ptr);
}
#define CHECK(field) check(w, #field, p->field)

static void check_matrix(const watch *w, const kvi_matrix *p)
{
    CHECK(data);
    CHECK(scale);
}

static void check_expert(const watch *w, const kvi_expert *e)
{
    check_matrix(w, &e->w1);
    check_matrix(w, &e->w2);
    check_matrix(w, &e->w3);
}

static void check_embed(const watch *w, const kvi_embed_params *p)
{
    check_matrix(w, p->table);
    CHECK(ids);
    CHECK(y);
}

static void check_linear(const watch *w, const kvi_linear_params *p)
{
    check_matrix(w, p->w);
    CHECK(x);
    CHECK(y);
}

static void check_norm(const watch *w, const kvi_norm_params *p)
{
    CHECK(x);
    CHECK(y);
    CHECK(weight);
}

static void check_rope(const watch *w, const kvi_rope_params *p)
{
    CHECK(x);
    CHECK(freqs);
    CHECK(pos);
}

static void check_window_write(const watch *w, const kvi_window_write_params *p)
{
    CHECK(x);
    CHECK(rows);
}

static void check_pool_pairs(const watch *w, const kvi_pool_pairs_params *p)
{
    CHECK(k);
    CHECK(gate);
    CHECK(head);
    CHECK(out);
    CHECK(of.slices);
    CHECK(of.rows);
    CHECK(entry_pos);
}

static void check_entry_write(const watch *w, const kvi_entry_write_params *p)
{
    CHECK(to.index_parts);
    CHECK(to.main_parts);
    CHECK(latent);
    CHECK(key);
    CHECK(of.slices);
    CHECK(of.rows);
    CHECK(entry_pos);
}

static void check_index_query(const watch *w, const kvi_index_query_params *p)
{
    CHECK(x);
    CHECK(codes);
    CHECK(scales);
    CHECK(weights);
}

static void check_index_score(const watch *w, const kvi_index_score_params *p)
{
    CHECK(keys.index_parts);
    CHECK(keys.main_parts);
    CHECK(codes);
    CHECK(scales);
    CHECK(weights);
    CHECK(n_visible);
    CHECK(blocks);
    CHECK(n_blocks);
    CHECK(scores);
    CHECK(block_max);
    CHECK(of.slices);
    CHECK(of.rows);
}

static void check_candidates(const watch *w, const kvi_candidates_params *p)
{
    CHECK(scores);
    CHECK(n_visible);
    CHECK(blocks);
    CHECK(n_blocks);
    CHECK(block_max);
}

static void check_topk(const watch *w, const kvi_topk_params *p)
{
    CHECK(scores);
    CHECK(n_scores);
    CHECK(blocks);
    CHECK(n_blocks);
    CHECK(ids);
    CHECK(n_visible);
}

static void check_hide(const watch *w, const kvi_hide_params *p)
{
    CHECK(scores);
    CHECK(n_scores);
    CHECK(blocks);
    CHECK(n_blocks);
    CHECK(hidden);
}

static void check_attend(const watch *w, const kvi_attend_params *p)
{
    CHECK(q);
    CHECK(out);
    CHECK(pos);
    CHECK(pages);
    CHECK(chunk);
    CHECK(sink);
    CHECK(ids);
    CHECK(mass);
    CHECK(entries.index_parts);
    CHECK(entries.main_parts);
    CHECK(of.slices);
    CHECK(of.rows);
}

static void check_paged_attend(const watch *w, const kvi_paged_attend_params *p)
{
    CHECK(q);
    CHECK(out);
    CHECK(pages);
    CHECK(n_visible);
    CHECK(sink);
}

static void check_paged_write(const watch *w, const kvi_paged_write_params *p)
{
    CHECK(k);
    CHECK(v);
    CHECK(pages);
}

static void check_mix(const watch *w, const kvi_mix_params *p)
{
    CHECK(h);
    CHECK(proj);
    CHECK(base);
    CHECK(pre);
    CHECK(post);
    CHECK(comb);
}

static void check_collapse(const watch *w, const kvi_collapse_params *p)
{
    CHECK(h);
    CHECK(pre);
    CHECK(y);
}

static void check_expand(const watch *w, const kvi_expand_params *p)
{
    CHECK(h);
    CHECK(y);
    CHECK(post);
    CHECK(comb);
}

static void check_route(const watch *w, const kvi_route_params *p)
{
    CHECK(z);
    CHECK(bias);
    CHECK(experts);
    CHECK(weights);
}

static void check_moe(const watch *w, const kvi_moe_params *p)
{
    CHECK(x);
    CHECK(y);
    CHECK(experts);
    CHECK(weights);
    for (uint32_t i = 0; p->routed && i < p->n_experts; i++)
        check_expert(w, &p->routed[i]);
    if (p->shared)
        check_expert(w, p->shared);
}

static void check_engram_gate(const watch *w, const kvi_engram_gate_params *p)
{
    CHECK(h);
    CHECK(kv);
    CHECK(qk);
}

static void check_copy(const watch *w, const kvi_copy_params *p)
{
    CHECK(jobs);
}

static void check_tally(const watch *w, const kvi_tally_params *p)
{
    CHECK(items);
    CHECK(n_visible);
    CHECK(counts);
}

void apart_check_call(const apart_memory *m, uint32_t op, const apart_params *p)
{
    switch (op) {
#define CALL(name)                                                                                                                 \
    case APART_##name:                                                                                                             \
        check_##name(&(watch){.m = m, .op = #name}, &p->name);                                                                     \
        break;
        KVI_EACH_OPERATOR(CALL)
    default:
        apart_die("no such operator: %u", op);
    }
}

/* ------------------------------------------------------------------ when it runs */

/* The table of slices and, with_rows, that of their rows; every pointer that a slice has. */
static void check_slices(const apart_memory *m, const char *op, const kvi_slices *of, size_t n_rows, int with_rows)
{
    const size_t n = of->each ? (n_rows + of->each - 1) / of->each : 0;

    if (of->each == 0 || !apart_holds(m, of->slices, n * sizeof *of->slices, KVI_MEMORY_DEVICE) ||
        (with_rows && !apart_holds(m, of->rows, n * sizeof *of->rows, KVI_MEMORY_DEVICE)))
        apart_die("%s: %zu rows, %zu a slice, slices %p, rows %p", op, n_rows, of->each, (const void *)of->slices,
                  (const void *)of->rows);
    for (size_t i = 0; i < n; i++) {
        const kvi_slice *s = &of->slices[i];
        const void      *tables[4] = {s->index_parts, s->main_parts, s->pages, s->pending};

        for (size_t t = 0; t < 4; t++) {
            if (tables[t] && !apart_holds(m, tables[t], 0, KVI_MEMORY_DEVICE))
                apart_die("%s: pointer %zu of slice %zu is %p, which is not the device's", op, t, i, tables[t]);
        }
    }
}

/* Entries as row `row` of an operator sees them. */
static kvi_entries entries_of(const kvi_entries *e, const kvi_slices *of, size_t row)
{
    kvi_entries own = *e;

    if (of->slices) {
        own.index_parts = of->slices[row / of->each].index_parts;
        own.main_parts = of->slices[row / of->each].main_parts;
    }
    return own;
}

/* Parts of the blocks of entries first .. end - 1. */
static void check_parts(const apart_memory *m, const char *op, const kvi_kv_owner *owner, uint8_t *const *parts, uint64_t first,
                        uint64_t end, size_t off, size_t bytes)
{
    for (uint64_t b = first / owner->rows_per_block; parts && end > first && b <= (end - 1) / owner->rows_per_block; b++) {
        if (!apart_holds(m, parts + b, sizeof *parts, KVI_MEMORY_DEVICE))
            apart_die("%s: the table of parts has no room for part %llu", op, (unsigned long long)b);
        if (!apart_holds(m, parts[b], off + bytes, KVI_MEMORY_DEVICE))
            apart_die("%s: part %llu is %p, which is not the device's", op, (unsigned long long)b, (void *)parts[b]);
    }
}

static void check_main(const apart_memory *m, const char *op, const kvi_entries *e, uint64_t first, uint64_t end)
{
    check_parts(m, op, e->owner, e->main_parts, first, end, e->owner->main_off,
                (size_t)e->owner->rows_per_block * e->owner->main_row_bytes);
}

static void check_index(const apart_memory *m, const char *op, const kvi_entries *e, uint64_t first, uint64_t end)
{
    check_parts(m, op, e->owner, e->index_parts, first, end, e->owner->index_off,
                (size_t)e->owner->rows_per_block * e->owner->index_row_bytes);
}

static void check_score_run(const apart_memory *m, const kvi_index_score_params *p)
{
    if (p->of.slices)
        check_slices(m, "index_score", &p->of, p->n_rows, 0);
    for (size_t i = 0, next; i < p->n_rows; i = next) { /* slice by slice */
        const kvi_entries e = entries_of(&p->keys, &p->of, i);
        uint64_t          end = 0;

        for (next = i; next < p->n_rows && (!p->of.slices || next < i + p->of.each); next++)
            if (p->n_visible[next] > end && (p->all == 0 || p->n_visible[next] > p->all))
                end = p->n_visible[next];
        check_index(m, "index_score", &e, 0, end);
    }
}

static void check_pages(const apart_memory *m, const kvi_attend_params *p, uint8_t *const *pages)
{
    const size_t window = p->page_off + (size_t)p->page_rows * p->row_bytes;

    if (pages && !apart_holds(m, pages, p->n_pages * sizeof *pages, KVI_MEMORY_DEVICE))
        apart_die("attend: the table of pages has no room for %u", p->n_pages);
    for (size_t i = 0; pages && i < p->n_pages; i++) {
        if (pages[i] && !apart_holds(m, pages[i], window, KVI_MEMORY_DEVICE))
            apart_die("attend: page %zu is %p, which is not the device's", i, (void *)pages[i]);
    }
}

/* The window row of each row's own position. */
static void check_chunk(const apart_memory *m, const kvi_attend_params *p)
{
    for (size_t i = 0; i < p->n_rows; i++) {
        const kvi_slice_rows *r = p->of.slices ? &p->of.rows[i / p->of.each] : NULL;
        const uint64_t        row = r ? r->row + p->pos[i] - r->pos : p->pos[i] - p->chunk_pos;

        if (p->n_window && !apart_holds(m, p->chunk + row * p->row_bytes, p->row_bytes, KVI_MEMORY_DEVICE))
            apart_die("attend: row %zu is row %llu of the chunk, which ends before", i, (unsigned long long)row);
    }
}

static void check_attend_run(const apart_memory *m, const kvi_attend_params *p)
{
    if (p->of.slices) {
        check_slices(m, "attend", &p->of, p->n_rows, 1);
        for (size_t i = 0; i < p->n_rows; i += p->of.each)
            check_pages(m, p, p->of.slices[i / p->of.each].pages);
    } else {
        check_pages(m, p, p->pages);
    }
    check_chunk(m, p);
    for (size_t i = 0; p->ids && i < p->n_rows * p->k; i++) {
        const kvi_entries e = entries_of(&p->entries, &p->of, i / p->k);

        if (p->ids[i] >= 0)
            check_main(m, "attend", &e, (uint64_t)p->ids[i], (uint64_t)p->ids[i] + 1);
    }
}

static void check_write_run(const apart_memory *m, const kvi_entry_write_params *p)
{
    if (p->of.slices)
        check_slices(m, "entry_write", &p->of, p->n_rows, 0);
    for (size_t i = 0; i < p->n_rows; i++) {
        const kvi_entries e = entries_of(&p->to, &p->of, i);
        const uint64_t    entry = p->of.slices ? p->entry_pos[i] / p->ratio : p->first_entry + i;

        if (p->of.slices && p->entry_pos[i] == KVI_NO_ENTRY)
            continue;
        check_main(m, "entry_write", &e, entry, entry + 1);
        check_index(m, "entry_write", &e, entry, entry + 1);
    }
}

/* The rows and the pending row of each pair. */
static void check_pairs_run(const apart_memory *m, const kvi_pool_pairs_params *p)
{
    const size_t bytes = p->width * sizeof(float);

    if (p->of.slices)
        check_slices(m, "pool_pairs", &p->of, p->n_pairs, 1);
    for (size_t j = 0; p->of.slices && j < p->n_pairs; j++) {
        const uint64_t        pos = p->entry_pos[j];
        const kvi_slice_rows *r = &p->of.rows[j / p->of.each];
        const uint8_t        *pending = p->of.slices[j / p->of.each].pending;

        if (pos == KVI_NO_ENTRY)
            continue;
        if (pos < r->pos && (!pending || !apart_holds(m, pending,
                                                      p->pending_off + pos / 2 % p->pending_slots * p->pending_bytes + 2 * bytes,
                                                      KVI_MEMORY_DEVICE)))
            apart_die("pool_pairs: pair %zu has no pending row at %p", j, (const void *)pending);
        if (pos + 1 < r->pos || !apart_holds(m, p->k + (r->row + pos + 1 - r->pos) * p->width, bytes, KVI_MEMORY_DEVICE) ||
            !apart_holds(m, p->gate + (r->row + pos + 1 - r->pos) * p->width, bytes, KVI_MEMORY_DEVICE))
            apart_die("pool_pairs: pair %zu at position %llu has no row", j, (unsigned long long)pos);
    }
}

static void check_paged_run(const apart_memory *m, const kvi_paged_attend_params *p)
{
    uint64_t end = 0;

    for (size_t i = 0; i < p->n_rows; i++)
        end = p->n_visible[i] > end ? p->n_visible[i] : end;
    for (uint64_t i = 0; i * p->page_rows < end; i++) {
        if (!apart_holds(m, p->pages[i], p->page_off, KVI_MEMORY_DEVICE))
            apart_die("paged_attend: page %llu is %p, which is not the device's", (unsigned long long)i, (void *)p->pages[i]);
    }
}

/* `x` has a row of p->width for each position and head. */
static void check_heads(const apart_memory *m, const kvi_paged_write_params *p, const char *name, const float *x, size_t row_stride,
                        size_t head_stride)
{
    const size_t last = (p->n_rows - 1) * row_stride + (p->n_kv_heads - 1) * head_stride;

    if (!apart_holds(m, x, (last + p->width) * sizeof *x, KVI_MEMORY_DEVICE))
        apart_die("paged_write: %s ends before row %zu of head %u", name, p->n_rows - 1, p->n_kv_heads - 1);
}

/* Pages of the positions that are written, whole: the strips of all heads. */
static void check_paged_write_run(const apart_memory *m, const kvi_paged_write_params *p)
{
    const size_t bytes = p->page_off + (size_t)2 * p->n_kv_heads * p->page_rows * kvi_format_row_bytes(p->format, p->width);

    if (p->n_rows == 0)
        return;
    check_heads(m, p, "k", p->k, p->k_row_stride, p->k_head_stride);
    check_heads(m, p, "v", p->v, p->v_row_stride, p->v_head_stride);
    for (uint64_t i = p->first / p->page_rows; i <= (p->first + p->n_rows - 1) / p->page_rows; i++) {
        if (!apart_holds(m, p->pages + i, sizeof *p->pages, KVI_MEMORY_DEVICE))
            apart_die("paged_write: the table of pages has no room for page %llu", (unsigned long long)i);
        if (!apart_holds(m, p->pages[i], bytes, KVI_MEMORY_DEVICE))
            apart_die("paged_write: page %llu is %p, which does not have %zu bytes of the device's", (unsigned long long)i,
                      (void *)p->pages[i], bytes);
    }
}

static void check_copy_run(const apart_memory *m, const kvi_copy_params *p)
{
    for (size_t i = 0; i < p->n_jobs; i++) {
        const kvi_copy_job *j = &p->jobs[i];

        if (j->n_bytes > p->max_bytes || !apart_holds(m, j->from, j->n_bytes, KVI_MEMORY_DEVICE) ||
            !apart_holds(m, j->to, j->n_bytes, KVI_MEMORY_DEVICE))
            apart_die("copy: job %zu, %llu bytes from %p to %p", i, (unsigned long long)j->n_bytes, j->from, j->to);
    }
}

void apart_check_run(const apart_memory *m, uint32_t op, const apart_params *p)
{
    switch (op) {
    case APART_pool_pairs:
        check_pairs_run(m, &p->pool_pairs);
        break;
    case APART_entry_write:
        check_write_run(m, &p->entry_write);
        break;
    case APART_index_score:
        check_score_run(m, &p->index_score);
        break;
    case APART_attend:
        check_attend_run(m, &p->attend);
        break;
    case APART_paged_attend:
        check_paged_run(m, &p->paged_attend);
        break;
    case APART_paged_write:
        check_paged_write_run(m, &p->paged_write);
        break;
    case APART_copy:
        check_copy_run(m, &p->copy);
        break;
    default: /* no table */
        break;
    }
}
