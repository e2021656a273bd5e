/* Going back and making windows again, through the room's own functions: on the random checkpoint
 * T1 (10 layers, window 16, ratios 2 and 1, blocks of 128 tokens). */
#include "session/session_int.h"
#include "support/fault_alloc.h"
#include "support/host.h"

#include "attn/swa_replay.h"

#define N 190
#define WINDOW 16u
#define LAYERS 10u
#define EXACT_ROWS (WINDOW + (LAYERS - 1) * (WINDOW - 1)) /* 151 */

typedef struct fixture {
    kvcsa_model *model;
    kvcsa_pool  *pool;
    int32_t      ids[N];
    host_rows    cold; /* logits of every row of one undisturbed run */
} fixture;

static int set_up(void **state)
{
    fixture       *f = calloc(1, sizeof *f);
    kvcsa_session *s;

    assert_non_null(f);
    f->model = host_model(T1_DIR);
    f->pool = host_pool(2, 0);
    host_tokens(f->ids, N, 71);
    f->cold = host_rows_make(N, T1_VOCAB);
    s = host_session(f->pool, f->model, 0);
    host_run(f->pool, s, f->ids, N, &f->cold);
    kvcsa_session_release(&s);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    host_pool_is_idle(f->pool);
    kvcsa_pool_release(&f->pool);
    kvcsa_model_release(&f->model);
    free(f->cold.data);
    free(f);
    return 0;
}

/* Tokens [session length, to) again; their rows must be those of the cold run, bit for bit. */
static void run_to_in(const fixture *f, kvcsa_pool *pool, kvcsa_session *s, uint64_t to)
{
    const uint64_t from = kvcsa_session_length(s);
    host_rows      rows = host_rows_make(N, T1_VOCAB);

    rows.next = from;
    host_run(pool, s, f->ids + from, to - from, &rows);
    assert_true(rows.in_order);
    assert_int_equal(rows.n, to - from);
    assert_memory_equal(rows.data, f->cold.data + from * T1_VOCAB,
                        rows.n * T1_VOCAB * sizeof(float));
    free(rows.data);
}

static void run_to(const fixture *f, kvcsa_session *s, uint64_t to)
{
    run_to_in(f, f->pool, s, to);
}

static void test_rows_of_an_exact_replay(void **state)
{
    const fixture *f = *state;
    uint64_t       first[LAYERS + 1];

    kvi_replay_first_rows(&f->model->plan, 180, KVI_REPLAY_EXACT, first);
    for (uint32_t l = 0; l < LAYERS; l++) /* W + (L - 1 - l)(W - 1) rows in front of the hit */
        assert_int_equal(180 - first[l], WINDOW + (LAYERS - 1 - l) * (WINDOW - 1));
    assert_int_equal(first[LAYERS], 179);
    kvi_replay_first_rows(&f->model->plan, 20, KVI_REPLAY_EXACT, first);
    assert_int_equal(first[0], 0); /* there are no more */
    assert_int_equal(first[LAYERS - 1], 4);
    kvi_replay_first_rows(&f->model->plan, 180, KVI_REPLAY_BOUNDED, first);
    for (uint32_t l = 0; l <= LAYERS; l++)
        assert_int_equal(first[l], 180 - WINDOW);
    assert_int_equal(kvi_replay_default_cut(&f->model->plan), 6);
    memset(first, 0, sizeof first);
    assert_int_equal(kvi_replay_cut(&f->model->plan, 6, 0, 16, first), 0);
    assert_int_equal(first[LAYERS], 0);
    assert_int_equal(kvi_replay_cut(&f->model->plan, 6, 0, 17, first), 1);
    assert_int_equal(first[5], 0);
    assert_int_equal(first[6], 1);
    assert_int_equal(first[LAYERS], 1);
}

/* Every hit length: 0, inside the window, odd, at and inside blocks. */
static void test_exact_replay_equals_a_cold_run_at_every_position(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = host_session(f->pool, f->model, 40);
    kvcsa_error    err;

    run_to(f, s, N);
    for (uint64_t hit = N - 1; hit < N; hit--) { /* down to 0 */
        const uint64_t before = s->n_replayed_rows;

        assert_ok(kvi_session_rewind(s, hit, KVI_REPLAY_EXACT, &err));
        assert_int_equal(kvcsa_session_length(s), hit);
        run_to(f, s, hit + 2 < N ? hit + 2 : N);
        if (hit + 3 > WINDOW) /* else the ring still holds every row, and at most one is missing */
            assert_int_equal(s->n_replayed_rows - before, hit < EXACT_ROWS ? hit : EXACT_ROWS);
        else
            assert_true(s->n_replayed_rows - before <= 1);
        assert_ok(kvcsa_pool_check(f->pool, &err));
    }
    kvcsa_session_release(&s);
}

static void test_random_rewinds_equal_a_cold_run(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = host_session(f->pool, f->model, 17);
    uint32_t       x = 12345;
    kvcsa_error    err;

    for (int i = 0; i < 60; i++) {
        const uint64_t n = kvcsa_session_length(s);
        uint64_t       to;

        x = x * 1664525u + 1013904223u;
        to = n + 1 + (x >> 16) % (N - n);
        run_to(f, s, to < n + 50 ? to : n + 50);
        x = x * 1664525u + 1013904223u;
        assert_ok(
            kvi_session_rewind(s, (x >> 16) % kvcsa_session_length(s), KVI_REPLAY_EXACT, &err));
    }
    assert_ok(kvcsa_pool_check(f->pool, &err));
    kvcsa_session_release(&s);
}

/* Rewinding twice before anything runs, and to where the session already is. */
static void test_rewinds_in_a_row(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = host_session(f->pool, f->model, 0);
    kvcsa_error    err;

    run_to(f, s, 170);
    assert_ok(kvi_session_rewind(s, 170, KVI_REPLAY_EXACT, &err));
    run_to(f, s, 172);
    assert_ok(kvi_session_rewind(s, 150, KVI_REPLAY_EXACT, &err));
    assert_ok(kvi_session_rewind(s, 131, KVI_REPLAY_EXACT, &err));
    run_to(f, s, N);
    assert_fails(kvi_session_rewind(s, N + 1, KVI_REPLAY_EXACT, &err), KVCSA_ERR_ARG, "holds 190");
    assert_ok(kvi_session_rewind(s, 60, KVI_REPLAY_EXACT, &err));
    assert_ok(kvcsa_session_append(s, f->ids + 60, 3, NULL, NULL, &err));
    assert_fails(kvi_session_rewind(s, 10, KVI_REPLAY_EXACT, &err), KVCSA_ERR_ARG, "queue");
    kvcsa_session_release(&s);
}

static uint64_t hash_entries(kvcsa_session *s, uint64_t n_tokens)
{
    const kvi_kv_layout *layout = &s->model->layout;
    uint8_t *const      *main;
    uint8_t              scratch[1024];
    uint64_t             h = 14695981039346656037u;
    kvcsa_error          err;

    assert_ok(kvi_session_view(s, 0, &err));
    main = s->main_parts.data;

    for (uint32_t o = 0; o < layout->n_owners; o++) {
        const kvi_kv_owner *w = &layout->owners[o];

        for (uint64_t j = 0; j < n_tokens / w->ratio; j++) {
            const uint8_t *row = main[j / w->rows_per_block] +
                                 kvi_kv_main_row_off(w, (uint32_t)(j % w->rows_per_block));
            const void    *seen = NULL;

            assert_true(w->main_row_bytes <= sizeof scratch);
            assert_ok(kvi_memory_see(kvi_pool_memory(s->pool), row, w->main_row_bytes, scratch, &seen, &err));
            for (uint32_t i = 0; i < w->main_row_bytes; i++)
                h = (h ^ ((const uint8_t *)seen)[i]) * 1099511628211u;
        }
    }
    return h;
}

/* The last W rows through all layers: other window rows than a cold run's, the same entries. */
static void test_bounded_replay_is_approximate_and_writes_no_entry(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = host_session(f->pool, f->model, 0);
    float          logits[T1_VOCAB];
    double         worst = 0;
    uint64_t       h;
    kvcsa_error    err;

    run_to(f, s, N);
    h = hash_entries(s, 130);
    assert_ok(kvi_session_rewind(s, 130, KVI_REPLAY_BOUNDED, &err));
    host_run(f->pool, s, f->ids + 130, 60, NULL);
    assert_int_equal(s->n_replayed_rows, WINDOW);
    assert_true(hash_entries(s, 130) == h);
    host_logits(s, logits, T1_VOCAB);
    for (uint32_t i = 0; i < T1_VOCAB; i++) {
        const double d = (double)logits[i] - (double)f->cold.data[(N - 1) * T1_VOCAB + i];

        worst = d > worst ? d : -d > worst ? -d : worst;
    }
    assert_true(worst > 1e-3 && worst < 10); /* it is another function, and not nonsense */
    /* short hits are computed from the beginning: exact */
    assert_ok(kvi_session_rewind(s, 12, KVI_REPLAY_BOUNDED, &err));
    run_to(f, s, 40);
    kvcsa_session_release(&s);
}

/* Layers above the last owner run for the last window of a prompt: entries are those of a full run. */
static void test_decoder_replay_keeps_entries(void **state)
{
    const fixture *f = *state;
    kvcsa_session *full = host_session(f->pool, f->model, 0);
    kvcsa_session *cut = host_session(f->pool, f->model, 33);
    float          a[T1_VOCAB], b[T1_VOCAB];

    run_to(f, full, N);
    kvi_session_set_decoder_cut(cut, kvi_replay_default_cut(&f->model->plan));
    host_run(f->pool, cut, f->ids, N, NULL);
    assert_true(hash_entries(full, N) == hash_entries(cut, N));
    host_logits(full, a, T1_VOCAB);
    host_logits(cut, b, T1_VOCAB);
    assert_memory_not_equal(a, b, sizeof a);
    kvcsa_session_release(&full);
    kvcsa_session_release(&cut);
}

/* Nothing is copied when going back; the first write behind it copies what others may read. */
static void test_writing_into_a_sealed_block_copies_it(void **state)
{
    const fixture   *f = *state;
    kvcsa_pool_stats ps = {.struct_size = sizeof ps};
    kvcsa_pool      *pool = host_pool(1, 0);
    kvcsa_session   *s = host_session(pool, f->model, 0);
    kvcsa_error      err;

    run_to_in(f, pool, s, N);
    assert_ok(kvi_session_rewind(s, 100, KVI_REPLAY_EXACT, &err));
    assert_ok(kvcsa_pool_get_stats(pool, &ps, &err));
    assert_int_equal(ps.n_copied_blocks, 0);
    assert_int_equal(ps.n_open_blocks, 0); /* that behind the position is gone */
    assert_int_equal(ps.n_sealed_blocks, 1);
    run_to_in(f, pool, s, 120);
    assert_ok(kvcsa_pool_get_stats(pool, &ps, &err));
    assert_int_equal(ps.n_copied_blocks, 1);
    assert_int_equal(ps.n_open_blocks, 1);
    assert_ok(kvi_session_rewind(s, 110, KVI_REPLAY_EXACT, &err)); /* its own: no copy */
    run_to_in(f, pool, s, N);
    assert_ok(kvcsa_pool_get_stats(pool, &ps, &err));
    assert_int_equal(ps.n_copied_blocks, 1);
    assert_int_equal(ps.n_sealed_blocks, 1); /* equal to the one that is published: one copy */
    assert_ok(kvcsa_pool_check(pool, &err));
    kvcsa_session_release(&s);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
}

static int32_t stop_at_once(void *user, kvcsa_session *session, uint64_t done, uint64_t queued)
{
    (void)session;
    (void)done;
    (void)queued;
    return --*(int *)user < 0;
}

/* Cancelled inside the replay and inside the append behind it; then the same again. */
static void test_cancelled_replays_can_be_repeated(void **state)
{
    const fixture *f = *state;

    for (int calls = 0; calls < 60; calls += 7) {
        kvcsa_session    *s = host_session(f->pool, f->model, 30);
        kvcsa_step_params sp;
        int               left = calls;
        kvcsa_error       err;

        run_to(f, s, N);
        assert_ok(kvi_session_rewind(s, 161, KVI_REPLAY_EXACT, &err));
        kvcsa_step_params_default(&sp, sizeof sp);
        sp.progress = stop_at_once;
        sp.user = &left;
        assert_ok(kvcsa_session_append(s, f->ids + 161, 20, NULL, NULL, &err));
        assert_int_equal(kvcsa_pool_step(f->pool, &s, 1, &sp, NULL, &err), KVCSA_ERR_CANCELLED);
        assert_int_equal(kvcsa_session_length(s), 161);
        run_to(f, s, N);
        kvcsa_session_release(&s);
    }
}

static void test_rewind_survives_failing_allocations(void **state)
{
    const fixture    *f = *state;
    fault_alloc       fa;
    kvcsa_pool_params pp;
    uint64_t          n = 1;
    int               hit = 1;

    fault_alloc_init(&fa);
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &fa.hook;
    pp.n_threads = 1;
    for (; hit; n += n < 12 ? 1 : 37) {
        kvcsa_pool    *pool = NULL;
        kvcsa_session *s;
        float          logits[T1_VOCAB];
        kvcsa_error    err;

        assert_ok(kvcsa_pool_create(&pp, &pool, &err));
        s = host_session(pool, f->model, 64);
        host_run(pool, s, f->ids, 140, NULL);
        fault_alloc_fail_at(&fa, n);
        assert_ok(kvi_session_rewind(s, 90, KVI_REPLAY_EXACT, &err)); /* needs no memory */
        while (kvcsa_session_append(s, f->ids + 90, 3, NULL, NULL, &err) != KVCSA_OK)
            assert_int_equal(err.status, KVCSA_ERR_NOMEM);
        while (kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err) != KVCSA_OK)
            assert_int_equal(err.status, KVCSA_ERR_NOMEM);
        hit = fault_alloc_hit(&fa);
        fault_alloc_fail_at(&fa, 0);
        host_logits(s, logits, T1_VOCAB);
        assert_memory_equal(logits, f->cold.data + 92 * T1_VOCAB, sizeof logits);
        kvcsa_session_release(&s);
        host_pool_is_idle(pool);
        kvcsa_pool_release(&pool);
        assert_true(fault_alloc_is_clean(&fa));
    }
    /* a device's scratch is not from the host's allocator */
    assert_true(n > (kvi_memory_is_apart(kvi_pool_memory(f->pool)) ? 3 : 30));
}

/* ------------------------------------------------------------------ memory apart */

static void parts_are_there(const kvcsa_session *s, uint32_t which, const kvi_buf *list, size_t n)
{
    const kvi_memory *m = kvi_pool_memory(s->pool);
    const uint8_t    *seen[16];
    kvcsa_error       err;

    if (!kvi_memory_is_apart(m)) {
        assert_ptr_equal(kvi_session_parts(s, which), list->data);
        return;
    }
    assert_true(n <= 16 && s->there[which].n_clean >= n);
    assert_ok(kvi_memory_get(m, seen, kvi_session_parts(s, which), n * sizeof *seen, &err));
    if (n)
        assert_memory_equal(seen, list->data, n * sizeof *seen);
}

static void view_is_there(kvcsa_session *s)
{
    const size_t n = (size_t)kvi_session_blocks_for(s, s->now.n_tokens);
    kvcsa_error  err;

    assert_ok(kvi_session_view(s, 0, &err));
    assert_ok(kvi_session_send_view(s, &err));
    parts_are_there(s, KVI_PARTS_INDEX, &s->index_parts, n);
    parts_are_there(s, KVI_PARTS_MAIN, &s->main_parts, n);
    parts_are_there(s, KVI_PARTS_PAGES, &s->page_parts, s->geom.n_pages);
}

/* What operators find is what the session holds, whatever was sent before. */
static void test_tables_of_operators_follow_the_session(void **state)
{
    enum { STEPS = 60, MOST = 9 * 128 };
    const fixture *f = *state;
    kvcsa_session *s = host_session(f->pool, f->model, 128);
    uint64_t       seed = 5;
    int32_t        ids[MOST];
    kvcsa_error    err;

    for (int i = 0; i < STEPS; i++) {
        const uint64_t n = kvcsa_session_length(s);
        kvcsa_session *fork = NULL;
        uint64_t       more;

        seed = seed * 6364136223846793005u + 1442695040888963407u;
        more = 1 + (seed >> 40) % (i % 3 ? 20 : 300);
        if (n + more > MOST || i % 5 == 4) {
            assert_ok(kvi_session_rewind(s, (seed >> 33) % (n + 1), KVI_REPLAY_BOUNDED, &err));
            view_is_there(s);
            continue;
        }
        host_tokens(ids, more, seed);
        host_run(f->pool, s, ids, more, NULL);
        view_is_there(s);
        if (i % 4 != 1)
            continue;
        assert_ok(kvcsa_session_fork(s, n + more / 2, NULL, &fork, &err));
        host_run(f->pool, fork, ids, 3, NULL); /* pages and tail are copied */
        view_is_there(fork);
        kvcsa_session_release(&s);
        s = fork;
    }
    kvcsa_session_release(&s);
}

static int32_t write_nothing(void *user, const void *data, size_t n)
{
    (void)user;
    (void)data;
    (void)n;
    return 0;
}

/* 1 = the device failed, and it was told. */
static int fails(kvcsa_status st)
{
    if (st != KVCSA_OK)
        assert_int_equal(st, KVCSA_ERR_BACKEND);
    return st != KVCSA_OK;
}

/* Runs, goes apart, back, and out, until the device fails and behind that. */
static int live_and_fail(const fixture *f, kvcsa_pool *pool)
{
    const kvcsa_writer    w = {.write = write_nothing};
    kvcsa_session_params  p;
    kvcsa_snapshot_params snap;
    kvcsa_session        *s = NULL;
    kvcsa_session        *fork = NULL;
    int                   bad;
    kvcsa_error           err;

    kvcsa_session_params_default(&p, sizeof p);
    p.chunk_tokens = 64;
    kvcsa_snapshot_params_default(&snap, sizeof snap);
    snap.flags = KVCSA_SNAPSHOT_WINDOW;
    if (fails(kvcsa_session_create(pool, f->model, &p, &s, &err)))
        return 1;
    bad = fails(kvcsa_session_append(s, f->ids, 150, NULL, NULL, &err));
    bad |= fails(kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err));
    assert_int_equal(kvcsa_session_length(s) % 64, bad ? 0 : 150 % 64);
    if (!bad)
        bad |= fails(kvcsa_session_fork(s, 145, NULL, &fork, &err));
    bad |= fails(kvcsa_session_append(s, f->ids, 9, NULL, NULL, &err));
    bad |= fails(kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err));
    if (fork) {
        bad |= fails(kvcsa_session_append(fork, f->ids, 2, NULL, NULL, &err));
        bad |= fails(kvcsa_pool_step(pool, &fork, 1, NULL, NULL, &err));
    }
    if (!kvi_session_queued(s))
        bad |= fails(kvcsa_snapshot_write(s, &w, &snap, NULL, &err));
    kvcsa_session_cancel(s);
    bad |= kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err) == KVCSA_ERR_BACKEND;
    kvi_session_erase(s, KVCSA_ERASE_SECURE);
    assert_int_equal(kvcsa_session_length(s), 0);
    kvcsa_session_release(&s);
    kvcsa_session_release(&fork);
    return bad;
}

/* With each call in turn as the first that fails; told at once, or by whoever waits next. Where there
 * is no such device nothing fails. */
static void test_a_device_that_fails(void **state)
{
    const fixture    *f = *state;
    fault_alloc       fa;
    kvcsa_pool_params pp;

    fault_alloc_init(&fa);
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &fa.hook;
    pp.n_threads = 1;
    for (int late = 0; late < 2; late++) {
        int bad = 1;

        assert_int_equal(setenv("APART_FAIL_LATE", late ? "1" : "0", 1), 0);
        for (uint64_t n = 1; bad; n += 1 + n / 8) {
            kvcsa_pool *pool = NULL;
            char        number[24];
            kvcsa_error err;

            snprintf(number, sizeof number, "%llu", (unsigned long long)n);
            assert_int_equal(setenv("APART_FAIL_AFTER", number, 1), 0);
            bad = fails(kvcsa_pool_create(&pp, &pool, &err));
            if (!bad)
                bad = live_and_fail(f, pool);
            kvcsa_pool_release(&pool);
            assert_true(fault_alloc_is_clean(&fa));
        }
    }
    unsetenv("APART_FAIL_AFTER");
    unsetenv("APART_FAIL_LATE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_an_exact_replay),
        cmocka_unit_test(test_exact_replay_equals_a_cold_run_at_every_position),
        cmocka_unit_test(test_random_rewinds_equal_a_cold_run),
        cmocka_unit_test(test_rewinds_in_a_row),
        cmocka_unit_test(test_bounded_replay_is_approximate_and_writes_no_entry),
        cmocka_unit_test(test_decoder_replay_keeps_entries),
        cmocka_unit_test(test_writing_into_a_sealed_block_copies_it),
        cmocka_unit_test(test_cancelled_replays_can_be_repeated),
        cmocka_unit_test(test_rewind_survives_failing_allocations),
        cmocka_unit_test(test_tables_of_operators_follow_the_session),
        cmocka_unit_test(test_a_device_that_fails),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
