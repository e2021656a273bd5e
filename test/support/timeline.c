#include "support/timeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/prng.h"

void *get(size_t n, int fill)
{
    void *p = malloc(n + 1);

    assert_non_null(p);
    return memset(p, fill, n);
}

void *copy_of(const void *from, size_t n)
{
    return memcpy(get(n, 0), from, n);
}

void timeline_lose_window(timeline *t)
{
    for (uint32_t i = 0; i < t->geom.n_pages; i++)
        memset(t->pages[i], 0xFF, t->geom.page_bytes);
    memset(t->pending, 0xFF, t->geom.pending_bytes);
    memset(t->floors, 0, sizeof t->floors);
}

timeline *timeline_new(const kvcsa_model *model, uint32_t slack, uint64_t token_seed)
{
    timeline *t = get(sizeof *t, 0);
    prng      r;

    t->model = model;
    prng_init(&r, token_seed);
    for (size_t i = 0; i < MAX_TOKENS; i++)
        t->tokens[i] = (int32_t)prng_range(&r, 3, 505);
    assert_int_equal(kvi_window_geom_init(&t->geom, &t->model->plan, slack, NULL), KVCSA_OK);
    for (size_t i = 0; i < MAX_BLOCKS; i++) {
        t->index_parts[i] = get(t->model->layout.index_part_bytes, 0xFF);
        t->main_parts[i] = get(t->model->layout.main_part_bytes, 0xFF);
    }
    t->pages = get(t->geom.n_pages * sizeof *t->pages, 0);
    for (uint32_t i = 0; i < t->geom.n_pages; i++)
        t->pages[i] = get(t->geom.page_bytes, 0);
    t->pending = get(t->geom.pending_bytes, 0);
    timeline_lose_window(t);
    return t;
}

timeline *timeline_copy(const timeline *from)
{
    timeline *t = copy_of(from, sizeof *t);

    for (size_t i = 0; i < MAX_BLOCKS; i++) {
        t->index_parts[i] = copy_of(from->index_parts[i], t->model->layout.index_part_bytes);
        t->main_parts[i] = copy_of(from->main_parts[i], t->model->layout.main_part_bytes);
    }
    t->pages = get(t->geom.n_pages * sizeof *t->pages, 0);
    for (uint32_t i = 0; i < t->geom.n_pages; i++)
        t->pages[i] = copy_of(from->pages[i], t->geom.page_bytes);
    t->pending = copy_of(from->pending, t->geom.pending_bytes);
    return t;
}

void timeline_free(timeline *t)
{
    for (size_t i = 0; i < MAX_BLOCKS; i++) {
        free(t->index_parts[i]);
        free(t->main_parts[i]);
    }
    for (uint32_t i = 0; i < t->geom.n_pages; i++)
        free(t->pages[i]);
    free(t->pages);
    free(t->pending);
    free(t);
}

void assert_same_entries(const timeline *a, const timeline *b)
{
    for (size_t i = 0; i < MAX_BLOCKS; i++) {
        assert_memory_equal(a->index_parts[i], b->index_parts[i], a->model->layout.index_part_bytes);
        assert_memory_equal(a->main_parts[i], b->main_parts[i], a->model->layout.main_part_bytes);
    }
}

void assert_same_state(const timeline *a, const timeline *b)
{
    assert_int_equal(a->n, b->n);
    for (uint32_t i = 0; i < a->geom.n_pages; i++)
        assert_memory_equal(a->pages[i], b->pages[i], a->geom.page_bytes);
    assert_memory_equal(a->pending, b->pending, a->geom.pending_bytes);
    assert_memory_equal(a->floors, b->floors, sizeof a->floors);
}

void timeline_change_tokens(timeline *t, uint64_t from, uint64_t token_seed)
{
    prng r;

    prng_init(&r, token_seed);
    for (size_t i = from; i < MAX_TOKENS; i++)
        t->tokens[i] = (int32_t)prng_range(&r, 3, 505);
}
