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
}

static void check_entry_write(const watch *w, const kvi_entry_write_params *p)
{
    CHECK(to.index_parts);
    CHECK(to.main_parts);
    CHECK(latent);
    CHECK(key);
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
}

static void check_candidates(const watch *w, const kvi_candidates_params *p)
{
    CHECK(scores);
    CHECK(n_visible);
    CHECK(blocks);
    CHECK(n_blocks);
}

static void check_topk(const watch *w, const kvi_topk_params *p)
{
    CHECK(scores);
    CHECK(n_scores);
    CHECK(blocks);
    CHECK(n_blocks);
    CHECK(ids);
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
}

static void check_paged_attend(const watch *w, const kvi_paged_attend_params *p)
{
    CHECK(q);
    CHECK(out);
    CHECK(pages);
    CHECK(n_visible);
    CHECK(sink);
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

/* Parts of the blocks of entries first .. end - 1. */
static void check_parts(const apart_memory *m, const char *op, const kvi_kv_owner *owner, uint8_t *const *parts, uint64_t first,
                        uint64_t end, size_t off, size_t bytes)
{
    for (uint64_t b = first / owner->rows_per_block; parts && end > first && b <= (end - 1) / owner->rows_per_block; b++) {
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
    uint64_t end = 0;

    for (size_t i = 0; i < p->n_rows; i++)
        end = p->n_visible[i] > end ? p->n_visible[i] : end;
    check_index(m, "index_score", &p->keys, 0, end);
}

static void check_attend_run(const apart_memory *m, const kvi_attend_params *p)
{
    const size_t window = p->page_off + (size_t)p->page_rows * p->row_bytes;

    for (size_t i = 0; p->pages && i < p->n_pages; i++) {
        if (p->pages[i] && !apart_holds(m, p->pages[i], window, KVI_MEMORY_DEVICE))
            apart_die("attend: page %zu is %p, which is not the device's", i, (void *)p->pages[i]);
    }
    for (size_t i = 0; p->ids && i < p->n_rows * p->k; i++) {
        if (p->ids[i] >= 0)
            check_main(m, "attend", &p->entries, (uint64_t)p->ids[i], (uint64_t)p->ids[i] + 1);
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
    case APART_entry_write: {
        const kvi_entry_write_params *e = &p->entry_write;

        check_main(m, "entry_write", &e->to, e->first_entry, e->first_entry + e->n_rows);
        check_index(m, "entry_write", &e->to, e->first_entry, e->first_entry + e->n_rows);
        break;
    }
    case APART_index_score:
        check_score_run(m, &p->index_score);
        break;
    case APART_attend:
        check_attend_run(m, &p->attend);
        break;
    case APART_paged_attend:
        check_paged_run(m, &p->paged_attend);
        break;
    case APART_copy:
        check_copy_run(m, &p->copy);
        break;
    default: /* no table */
        break;
    }
}
