/* Window pages: their geometry, and commits against a plain list of rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attn/window.h"
#include "support/prng.h"

static uint64_t seed;

/* Two layers with entries and raw rows, one without; the last window is the widest. */
static kvi_plan make_plan(kvi_plan_row *rows, uint32_t widest)
{
    rows[0] =
        (kvi_plan_row){.window_tokens = 4, .window_bytes = 33, .ratio = 4, .pending_bytes = 96};
    rows[1] = (kvi_plan_row){.window_tokens = 1, .window_bytes = 66};
    rows[2] = (kvi_plan_row){
        .window_tokens = widest, .window_bytes = 99, .ratio = 2, .pending_bytes = 64};
    return (kvi_plan){.n_layers = 3, .rows = rows};
}

static void test_geometry(void **state)
{
    static const struct {
        uint32_t window, slack, page_rows, n_pages, slots;
    } cases[] = {
        {128, 0, 16, 8, 1},  {128, 1, 16, 9, 1},  {128, 8, 16, 9, 5},      {128, 300, 16, 27, 151},
        {16, 0, 16, 1, 1},   {16, 8, 16, 2, 5},   {16, 16, 16, 2, 9},      {16, 17, 16, 3, 9},
        {100, 0, 4, 25, 1},  {100, 1, 4, 26, 1},  {100, 8, 4, 27, 5},      {100, 300, 4, 100, 151},
        {127, 0, 1, 127, 1}, {127, 8, 1, 135, 5}, {127, 300, 1, 427, 151}, {24, 3, 8, 4, 2},
        {6, 3, 2, 5, 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvi_plan_row    rows[3];
        kvi_plan        plan = make_plan(rows, cases[i].window);
        kvi_window_geom g;

        assert_int_equal(kvi_window_geom_init(&g, &plan, cases[i].slack, NULL), KVCSA_OK);
        assert_int_equal(g.page_rows, cases[i].page_rows);
        assert_int_equal(g.n_pages, cases[i].n_pages);
        assert_int_equal(g.page_bytes, cases[i].page_rows * 198);
        assert_int_equal(g.pending_slots, cases[i].slots);
        assert_int_equal(g.pending_bytes, cases[i].slots * 160);
        assert_int_equal(kvi_window_ring_rows(&g), cases[i].page_rows * cases[i].n_pages);
        assert_true(kvi_window_ring_rows(&g) >= cases[i].window + cases[i].slack);
        assert_int_equal(kvi_window_kept(&g, 5), 5);
        assert_int_equal(kvi_window_kept(&g, 100000), kvi_window_ring_rows(&g));
    }
}

static void test_geometry_of_plans_that_lack_something(void **state)
{
    kvi_plan_row    rows[3];
    kvi_plan        plan = make_plan(rows, 16);
    kvi_window_geom g;

    (void)state;
    rows[0].pending_bytes = rows[2].pending_bytes = 0;
    assert_int_equal(kvi_window_geom_init(&g, &plan, 8, NULL), KVCSA_OK);
    assert_int_equal(g.n_pages, 2);
    assert_int_equal(g.pending_bytes, 0);
    for (int i = 0; i < 3; i++)
        rows[i].window_tokens = 0;
    assert_int_equal(kvi_window_geom_init(&g, &plan, 8, NULL), KVCSA_OK);
    assert_int_equal(g.n_pages, 0);
    assert_int_equal(g.page_bytes, 0);
    assert_int_equal(kvi_window_ring_rows(&g), 0);
    assert_int_equal(kvi_window_kept(&g, 5), 0);
}

static void test_geometry_has_limits(void **state)
{
    kvi_plan_row    rows[3];
    kvi_plan        plan = make_plan(rows, 16);
    kvi_window_geom g;
    kvcsa_error     err;

    (void)state;
    assert_int_equal(kvi_window_geom_init(&g, &plan, UINT32_MAX, &err), KVCSA_ERR_LIMIT);
    assert_non_null(strstr(err.text, "slack_tokens is 4294967295"));
    /* raw rows: 160 bytes for two tokens, 13421772 slots */
    assert_int_equal(kvi_window_geom_init(&g, &plan, 26843543, &err), KVCSA_OK);
    assert_int_equal(kvi_window_geom_init(&g, &plan, 26843544, &err), KVCSA_ERR_LIMIT);
    assert_non_null(strstr(err.text, "raw rows"));
    rows[1].window_bytes = 1u << 27;
    assert_int_equal(kvi_window_geom_init(&g, &plan, 0, &err), KVCSA_ERR_LIMIT);
    assert_non_null(strstr(err.text, "window rows"));
}

static void test_offsets_of_layers(void **state)
{
    kvi_plan_row    rows[3];
    kvi_plan        plan = make_plan(rows, 16);
    kvi_window_geom g;
    kvi_window_offs o = {0};

    (void)state;
    assert_int_equal(kvi_window_geom_init(&g, &plan, 8, NULL), KVCSA_OK);
    kvi_window_offs_pass(&o, &g, &rows[0]);
    assert_int_equal(o.page, 16 * 33);
    assert_int_equal(o.pending, 5 * 96);
    kvi_window_offs_pass(&o, &g, &rows[1]);
    assert_int_equal(o.page, 16 * 99);
    assert_int_equal(o.pending, 5 * 96);
    kvi_window_offs_pass(&o, &g, &rows[2]);
    assert_int_equal(o.page, g.page_bytes);
    assert_int_equal(o.pending, g.pending_bytes);
}

/* The byte that a row of a layer at a position is full of. */
static uint8_t row_byte(uint64_t p, uint32_t layer)
{
    return (uint8_t)(p * 7 + layer * 3 + 1);
}

static void commit_layer(const kvi_window_geom *g, const kvi_plan *plan, uint32_t layer,
                         size_t page_off, uint8_t *const *pages, uint64_t pos, size_t n)
{
    const size_t row_bytes = plan->rows[layer].window_bytes;
    const kvi_memory host = {.ops = kvi_cpu_backend(0)};
    kvi_copies   copies = {0};
    uint8_t     *rows = malloc(n * row_bytes);

    assert_non_null(rows);
    for (size_t i = 0; i < n; i++)
        memset(rows + i * row_bytes, row_byte(pos + i, layer), row_bytes);
    kvi_window_commit(&copies, &host, g, (uint32_t)row_bytes, page_off, pages, rows, pos, n);
    free(rows);
}

/* Every byte of every page is that of the last position that stands there. */
static void check_pages(const kvi_window_geom *g, const kvi_plan *plan, uint8_t *const *pages,
                        uint64_t n_tokens, uint64_t first)
{
    const uint32_t  ring = kvi_window_ring_rows(g);
    kvi_window_offs o = {0};

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const size_t row_bytes = plan->rows[l].window_bytes;

        for (uint64_t p = n_tokens > ring ? n_tokens - ring : 0; p < n_tokens; p++) {
            const uint8_t *page = pages[p % ring / g->page_rows];

            for (size_t i = 0; p >= first && i < row_bytes; i++)
                assert_int_equal(page[o.page + p % ring % g->page_rows * row_bytes + i],
                                 row_byte(p, l));
        }
        kvi_window_offs_pass(&o, g, &plan->rows[l]);
    }
    for (uint64_t slot = 0; slot < ring && n_tokens - first < ring; slot++) { /* not written */
        const uint64_t p = first + (slot + ring - first % ring) % ring;

        if (p >= n_tokens && pages[slot / g->page_rows])
            assert_int_equal(pages[slot / g->page_rows][slot % g->page_rows * 33], 0xEE);
    }
}

static void test_commit_matches_a_list(void **state)
{
    static const uint32_t windows[] = {128, 16, 100, 127};
    static const uint32_t slacks[] = {0, 1, 8, 300};
    prng                  r;

    (void)state;
    prng_init(&r, seed);
    for (size_t t = 0; t < 16; t++) {
        kvi_plan_row    rows[3];
        kvi_plan        plan = make_plan(rows, windows[t % 4]);
        kvi_window_geom g;
        uint8_t       **pages;
        uint64_t        pos = t % 3 == 0 ? 1000 + t : 0; /* a replay begins anywhere */
        const uint64_t  first = pos;

        assert_int_equal(kvi_window_geom_init(&g, &plan, slacks[t / 4], NULL), KVCSA_OK);
        pages = calloc(g.n_pages, sizeof *pages);
        assert_non_null(pages);
        for (size_t round = 0; round < 12; round++) {
            const size_t    n = (size_t)prng_range(&r, 1, round % 4 == 0 ? 600 : 40);
            kvi_window_offs o = {0};

            for (uint64_t p = pos + n - kvi_window_kept(&g, n); p < pos + n; p++) {
                uint8_t **page = &pages[kvi_window_page_of(&g, p)];

                if (!*page) /* the pages that the chunk needs, and no other */
                    *page = memset(malloc(g.page_bytes), 0xEE, g.page_bytes);
            }
            for (uint32_t l = 0; l < plan.n_layers; l++) {
                commit_layer(&g, &plan, l, o.page, pages, pos, n);
                kvi_window_offs_pass(&o, &g, &rows[l]);
            }
            pos += n;
            check_pages(&g, &plan, pages, pos, first);
        }
        for (uint32_t i = 0; i < g.n_pages; i++)
            free(pages[i]);
        free(pages);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_geometry),
        cmocka_unit_test(test_geometry_of_plans_that_lack_something),
        cmocka_unit_test(test_geometry_has_limits),
        cmocka_unit_test(test_offsets_of_layers),
        cmocka_unit_test(test_commit_matches_a_list),
    };

    seed = prng_seed(argc, argv, 20260314);
    return cmocka_run_group_tests_name("window", tests, NULL, NULL);
}
