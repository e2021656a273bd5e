/* backend/tape.h: calls that are noted, told apart, carried out and recorded, on the test device "apart". */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/tape.h"

#include "support/worlds.h"

enum { SIZE = 64 };

static kvi_memory on_tape(const world *w, kvi_tape *t)
{
    kvi_memory m = w->m;

    m.ops = kvi_tape_ops();
    m.dev = kvi_tape_device(t);
    return m;
}

static kvi_tape tape_of(const world *w)
{
    return (kvi_tape){.allocator = w->m.allocator};
}

/* Fills `to` with `byte`, moves it to `to` + SIZE, and counts what a list of three items names. */
static void note(const world *w, kvi_tape *t, uint8_t *to, int byte, const int32_t *items, uint64_t *counts)
{
    const kvi_memory       m = on_tape(w, t);
    const kvi_tally_params tally = {
        .items = items, .counts = counts, .stride = 3, .n_rows = 1, .n_items = 3, .each = 1, .rows_per_block = 4};
    kvcsa_error err;

    assert_true(kvi_memory_is_apart(&m));
    assert_int_equal(kvi_memory_fill(&m, to, byte, SIZE, &err), KVCSA_OK);
    assert_int_equal(kvi_memory_move(&m, to + SIZE, to, SIZE, &err), KVCSA_OK);
    assert_int_equal(m.ops->tally(m.dev, &tally, &err), KVCSA_OK);
}

typedef struct box {
    world    w;
    uint8_t *bytes;
    int32_t *items;
    uint64_t *counts;
} box;

static box open_box(void)
{
    static const int32_t  items[3] = {1, 2, 9};
    static const uint64_t counts[3];
    box                   b = {.w = open_world(ON_DEVICE, NULL, NULL, NULL)};

    b.bytes = world_room(&b.w, 2 * SIZE);
    b.items = world_put(&b.w, items, sizeof items);
    b.counts = world_put(&b.w, counts, sizeof counts);
    return b;
}

static void check(box *b, int byte, uint64_t times)
{
    uint8_t  bytes[2 * SIZE];
    uint64_t counts[3];

    world_get(&b->w, bytes, b->bytes, sizeof bytes);
    world_get(&b->w, counts, b->counts, sizeof counts);
    for (size_t i = 0; i < sizeof bytes; i++)
        assert_int_equal(bytes[i], byte);
    assert_int_equal(counts[0], 3 * times);
    assert_int_equal(counts[1], 3 * times);
    assert_int_equal(counts[2], 2 * times);
}

/* Plays the tape and empties it. */
static kvcsa_status play(box *b, kvi_graphs *g, const kvi_memory *m, kvi_tape *t)
{
    const kvcsa_status st = kvi_graphs_play(g, m, t, &b->w.err);

    kvi_tape_clear(t);
    return st;
}

static void test_nothing_happens_before_it_is_played(void **state)
{
    box      b = open_box();
    kvi_tape t = tape_of(&b.w);

    (void)state;
    must(&b.w, kvi_memory_fill(&b.w.m, b.bytes, 7, 2 * SIZE, &b.w.err));
    note(&b.w, &t, b.bytes, 0xAB, b.items, b.counts);
    check(&b, 7, 0);
    must(&b.w, kvi_tape_play(&t, &b.w.m, &b.w.err));
    check(&b, 0xAB, 1);
    must(&b.w, kvi_tape_play(&t, &b.w.m, &b.w.err));
    check(&b, 0xAB, 2);
    kvi_tape_fini(&t);
    close_world(&b.w);
}

/* One call more, another byte, another order: another list. */
static void test_lists_are_compared(void **state)
{
    box        b = open_box();
    kvi_graphs g = {0};
    kvi_tape   t = tape_of(&b.w);

    (void)state;
    for (int i = 0; i < 2; i++) { /* the second time each is recorded, once more is run */
        note(&b.w, &t, b.bytes, 1, b.items, b.counts);
        must(&b.w, play(&b, &g, &b.w.m, &t));
        note(&b.w, &t, b.bytes, 2, b.items, b.counts);
        must(&b.w, play(&b, &g, &b.w.m, &t));
        note(&b.w, &t, b.bytes, 1, b.items, b.counts);
        note(&b.w, &t, b.bytes, 1, b.items, b.counts); /* begins like the first */
        must(&b.w, play(&b, &g, &b.w.m, &t));
        assert_int_equal(g.n_recorded, i == 0 ? 0 : 3);
        assert_int_equal(g.n_runs, i == 0 ? 0 : 3);
    }
    must(&b.w, play(&b, &g, &b.w.m, &t)); /* nothing at all */
    assert_int_equal(g.n_runs, 3);
    check(&b, 1, 8);
    kvi_graphs_fini(&g, &b.w.m);
    kvi_tape_fini(&t);
    close_world(&b.w);
}

static void test_what_cannot_wait_is_refused(void **state)
{
    box              b = open_box();
    kvi_tape         t = tape_of(&b.w);
    const kvi_memory m = on_tape(&b.w, &t);
    uint8_t          here[4] = {0};
    void            *more = &more;
    kvcsa_error      err;

    (void)state;
    assert_int_equal(kvi_memory_put(&m, b.bytes, here, 4, &err), KVCSA_ERR_INTERNAL);
    assert_int_equal(kvi_memory_get(&m, here, b.bytes, 4, &err), KVCSA_ERR_INTERNAL);
    assert_int_equal(kvi_memory_sync(&m, &err), KVCSA_ERR_INTERNAL);
    assert_int_equal(kvi_memory_alloc(&m, 4, &more, &err), KVCSA_ERR_INTERNAL);
    assert_null(more);
    assert_int_equal(t.used, 0);
    kvi_tape_fini(&t);
    close_world(&b.w);
}

/* The first time call by call, the second time recorded, from then on a graph. */
static void test_graphs_of_lists(void **state)
{
    box        b = open_box();
    kvi_graphs g = {0};
    kvi_tape   t = tape_of(&b.w);

    (void)state;
    for (uint64_t i = 1; i <= 5; i++) {
        note(&b.w, &t, b.bytes, 5, b.items, b.counts);
        must(&b.w, play(&b, &g, &b.w.m, &t));
        check(&b, 5, i);
        assert_int_equal(g.n_recorded, i >= 2);
        assert_int_equal(g.n_runs, i - 1);
    }
    kvi_graphs_fini(&g, &b.w.m);
    kvi_tape_fini(&t);
    close_world(&b.w);
}

/* With one list too many, the one that was not played for the longest time makes room. */
static void test_the_oldest_list_goes(void **state)
{
    box        b = open_box();
    kvi_graphs g = {0};
    kvi_tape   t = tape_of(&b.w);
    uint64_t   n = 0;

    (void)state;
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < (int)KVI_GRAPHS; i++) {
            note(&b.w, &t, b.bytes, i, b.items, b.counts);
            must(&b.w, play(&b, &g, &b.w.m, &t));
            check(&b, i, ++n);
        }
    assert_int_equal(g.n_recorded, KVI_GRAPHS);
    note(&b.w, &t, b.bytes, 0, b.items, b.counts); /* it is the oldest no more */
    must(&b.w, play(&b, &g, &b.w.m, &t));
    note(&b.w, &t, b.bytes, 99, b.items, b.counts); /* in the place of 1 */
    must(&b.w, play(&b, &g, &b.w.m, &t));
    n += 2;
    for (int i = 0; i < (int)KVI_GRAPHS; i += 2) {
        note(&b.w, &t, b.bytes, i, b.items, b.counts);
        must(&b.w, play(&b, &g, &b.w.m, &t));
        check(&b, i, ++n);
    }
    assert_int_equal(g.n_recorded, KVI_GRAPHS);
    assert_int_equal(g.n_runs, KVI_GRAPHS + 1 + KVI_GRAPHS / 2);
    note(&b.w, &t, b.bytes, 1, b.items, b.counts);
    must(&b.w, play(&b, &g, &b.w.m, &t));
    check(&b, 1, ++n);
    assert_int_equal(g.n_runs, KVI_GRAPHS + 1 + KVI_GRAPHS / 2); /* it begins again */
    kvi_graphs_fini(&g, &b.w.m);
    kvi_tape_fini(&t);
    close_world(&b.w);
}

/* A list that lacks a call is never played. */
static void test_no_memory_for_a_call(void **state)
{
    box        b = open_box();
    kvi_graphs g = {0};
    kvi_tape   t = tape_of(&b.w);

    (void)state;
    must(&b.w, kvi_memory_fill(&b.w.m, b.bytes, 7, 2 * SIZE, &b.w.err));
    fault_alloc_fail_at(&world_host, 1);
    note(&b.w, &t, b.bytes, 1, b.items, b.counts);
    fault_alloc_fail_at(&world_host, 0);
    assert_int_equal(kvi_tape_play(&t, &b.w.m, &b.w.err), KVCSA_ERR_NOMEM);
    assert_int_equal(kvi_graphs_play(&g, &b.w.m, &t, &b.w.err), KVCSA_ERR_NOMEM);
    check(&b, 7, 0);
    kvi_tape_clear(&t);
    note(&b.w, &t, b.bytes, 1, b.items, b.counts);
    must(&b.w, play(&b, &g, &b.w.m, &t));
    check(&b, 1, 1);
    kvi_graphs_fini(&g, &b.w.m);
    kvi_tape_fini(&t);
    close_world(&b.w);
}

/* A device that cannot record does the calls one by one. */
static kvcsa_status never_begin(kvi_device *dev, kvcsa_error *err)
{
    (void)dev;
    err->status = KVCSA_ERR_BACKEND;
    return err->status;
}

static void test_a_device_that_cannot_record(void **state)
{
    box             b = open_box();
    kvi_backend_ops ops = *b.w.m.ops;
    kvi_memory      m = b.w.m;
    kvi_graphs      g = {0};
    kvi_tape        t = tape_of(&b.w);

    (void)state;
    ops.graph_begin = never_begin;
    m.ops = &ops;
    for (uint64_t i = 1; i <= 4; i++) {
        note(&b.w, &t, b.bytes, 3, b.items, b.counts);
        must(&b.w, play(&b, &g, &m, &t));
        check(&b, 3, i);
    }
    assert_int_equal(g.n_recorded + g.n_runs, 0);
    kvi_graphs_fini(&g, &m);
    kvi_tape_fini(&t);
    close_world(&b.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_happens_before_it_is_played),
        cmocka_unit_test(test_lists_are_compared),
        cmocka_unit_test(test_what_cannot_wait_is_refused),
        cmocka_unit_test(test_graphs_of_lists),
        cmocka_unit_test(test_the_oldest_list_goes),
        cmocka_unit_test(test_no_memory_for_a_call),
        cmocka_unit_test(test_a_device_that_cannot_record),
    };

    return cmocka_run_group_tests(tests, load_apart, NULL);
}
