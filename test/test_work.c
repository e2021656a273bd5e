/* What layers count (kvcsa_work), exactly: per layer, per group, per step, against the formulas of
 * support/work_count.h and against selections recomputed from the scores that the tap shows. */
#include "support/fault_alloc.h"
#include "support/work_world.h"

/* ------------------------------------------------------------------ selection and its counts */

/* What the formulas of support/work_count.h say is what the tap saw. */
static void test_formulas_are_what_the_tap_saw(void **state)
{
    const world      *w = *state;
    const work_limits none = {0};

    for (uint32_t l = 0; l < T1_LAYERS; l++)
        for (uint64_t pos = 0; pos < N && selects(&w->plan, l); pos++) {
            const work_pick a = w->picks[l * N + pos];
            const work_pick b = work_pick_of(&w->plan, l, pos, &none);

            assert_int_equal(a.scored, b.scored);
            assert_int_equal(a.n_keys, b.n_keys);
            assert_int_equal(a.n_candidates, b.n_candidates);
            assert_int_equal(a.n_ids, b.n_ids);
            if (w->plan.rows[l].select == KVCSA_SELECT_OWN)
                assert_int_equal(a.index_parts, b.index_parts);
            assert_true(a.main_parts <= a.n_ids);
        }
    /* the limits of T1 in so many words: Full 2 and 4 from 18 tokens on, Full 5 from 9 */
    assert_int_equal(w->picks[2 * N + 16].scored, 0);
    assert_int_equal(w->picks[2 * N + 17].n_keys, 9);
    assert_int_equal(w->picks[5 * N + 7].scored, 0);
    assert_int_equal(w->picks[5 * N + 8].n_keys, 9);
    assert_int_equal(w->picks[7 * N + 11].n_keys, 12);
    assert_int_equal(w->picks[7 * N + 12].n_keys, 9); /* 3 blocks, the newest holds one entry */
    assert_int_equal(w->picks[7 * N + N - 1].n_keys, 12);
    assert_int_equal(w->picks[7 * N + N - 1].n_candidates, 3);
    assert_int_equal(w->picks[5 * N + N - 1].index_parts, 4); /* 420 entries, 128 a block */
}

/* Every limit changes selection and counts as it should. */
static void test_limits_change_what_is_counted(void **state)
{
    static const work_limits cases[] = {
        {.window_only = 1},
        {.select_entries = 3},
        {.candidate_blocks = 1},
        {.candidate_blocks = 2, .select_entries = 7},
    };
    const world *w = *state;
    work_pick   *picks = calloc(T1_LAYERS * N, sizeof *picks);

    assert_non_null(picks);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const setting set = {.limits = cases[i]};

        watch(w, &set, 33, picks);
        for (uint32_t l = 0; l < T1_LAYERS; l++)
            for (uint64_t pos = 0; pos < N && selects(&w->plan, l); pos++) {
                const work_pick want = work_pick_of(&w->plan, l, pos, &cases[i]);

                assert_int_equal(picks[l * N + pos].scored, want.scored);
                assert_int_equal(picks[l * N + pos].n_keys, want.n_keys);
                assert_int_equal(picks[l * N + pos].n_candidates, want.n_candidates);
                assert_int_equal(picks[l * N + pos].n_ids, want.n_ids);
            }
    }
    free(picks);
}

/* Spans that are hidden are never selected, whatever their scores; nor do they make candidates. */
static void test_hidden_spans_are_not_selected(void **state)
{
    const world *w = *state;
    work_pick   *picks = calloc(T1_LAYERS * N, sizeof *picks);
    uint8_t      hidden[N_SPANS] = {0};
    setting      set = {.hidden = hidden};
    uint64_t     n_other = 0;

    assert_non_null(picks);
    for (int k = 0; k < 4; k++) { /* one span; every third; all but two; all of them */
        for (uint64_t i = 0; i < N_SPANS; i++)
            hidden[i] = k == 0   ? i == 3
                        : k == 1 ? i % 3 == 0
                        : k == 2 ? i != 1 && i != 20
                                 : 1;
        watch(w, &set, 50, picks);
        for (size_t i = 0; i < T1_LAYERS * N; i++)
            n_other += picks[i].n_ids != w->picks[i].n_ids;
    }
    assert_true(n_other > 1000); /* it is not that nothing happened */
    set.limits = (work_limits){.select_entries = 5, .candidate_blocks = 2};
    for (uint64_t i = 0; i < N_SPANS; i++)
        hidden[i] = i % 2 == 0;
    watch(w, &set, 50, picks);
    free(picks);
}

/* ------------------------------------------------------------------ prefill and decode */

static void test_prefill_counts(void **state)
{
    static const uint32_t chunks[] = {1, 7, 128, N};
    const world          *w = *state;
    kvcsa_work            want[T1_LAYERS];

    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        kvcsa_session *s = plain_session(w, chunks[i]);
        const uint64_t n = chunks[i] == 1 ? 150 : N;

        host_run(w->pool, s, w->ids, n, NULL);
        expect(w, 0, n, chunks[i], want);
        check_counts(w, s, want, want, 0);
        /* but for raw rows, which only the end of a chunk keeps, chunks do not matter */
        expect(w, 0, n, n, want);
        check_counts(w, s, want, want, WORK_BUT_WRITTEN);
        kvcsa_session_release(&s);
    }
}

/* One token a step: what is read is what the plan says it costs. */
static void test_decode_reads_what_the_plan_costs(void **state)
{
    const world   *w = *state;
    const uint64_t key_bytes = w->plan.rows[SOURCE].index_bytes;
    kvcsa_session *s = plain_session(w, 0);
    kvcsa_work     total[T1_LAYERS] = {{0}};
    kvcsa_work     step[T1_LAYERS];
    kvcsa_error    err;

    host_run(w->pool, s, w->ids, 18, NULL);
    expect(w, 0, 18, 128, total);
    for (uint64_t n = 19; n <= N; n++) { /* from here on every selecting layer scores */
        kvcsa_cost cost = {.struct_size = sizeof cost};
        uint64_t   read = 0;
        uint64_t   written = 0;

        if (n == 100) { /* the same all the way: the middle at once */
            host_run(w->pool, s, w->ids + n - 1, 280, NULL);
            expect(w, n - 1, n + 279, 128, step);
            add_layers(total, step);
            n += 280;
        }
        host_run(w->pool, s, w->ids + n - 1, 1, NULL);
        expect(w, n - 1, n, 1, step);
        add_layers(total, step);
        check_counts(w, s, step, total, 0);
        for (uint32_t l = 0; l < T1_LAYERS; l++) {
            read += step[l].read_bytes;
            written += step[l].written_bytes;
        }
        assert_ok(kvcsa_model_cost(w->model, n, &cost, &err));
        /* the plan counts candidate blocks as full ones: the newest lacks keys at most lengths */
        assert_int_equal(read + key_bytes * ((4 - n % 4) % 4), cost.read_bytes);
        /* ratio 1 writes an entry each time, ratio 2 a raw row and an entry in turn */
        assert_int_equal(written, 10 * 99 + 54 + 34 + (n % 2 ? 2 * 768 : 2 * (54 + 34)));
    }
    kvcsa_session_release(&s);
}

/* A step is what the last call of kvcsa_pool_step ran, in as many chunks as it took. */
static void test_step_begins_again(void **state)
{
    const world      *w = *state;
    kvcsa_session    *s = plain_session(w, 16);
    kvcsa_work        total[T1_LAYERS] = {{0}};
    const kvcsa_work  none[T1_LAYERS] = {{0}};
    kvcsa_work        step[T1_LAYERS];
    kvcsa_step_params p;
    kvcsa_error       err;

    check_counts(w, s, none, none, 0);
    assert_ok(kvcsa_session_append(s, w->ids, 100, NULL, NULL, &err));
    check_counts(w, s, none, none, 0);
    kvcsa_step_params_default(&p, sizeof p);
    p.max_rows = 40;
    for (uint64_t begin = 0; begin < 100; begin += 40) {
        const uint64_t end = cold_min(begin + 40, 100);

        assert_ok(kvcsa_pool_step(w->pool, &s, 1, &p, NULL, &err));
        assert_int_equal(kvcsa_session_length(s), end);
        expect(w, begin, end, 16, step); /* 16, 16 and 8 rows */
        add_layers(total, step);
        check_counts(w, s, step, total, 0);
    }
    host_step(w->pool, s); /* nothing to do */
    check_counts(w, s, none, total, 0);
    assert_ok(kvcsa_session_erase(s, 0, &err)); /* since creation, whatever became of it */
    check_counts(w, s, none, total, 0);
    kvcsa_session_release(&s);
}

static void test_sessions_of_a_batch_count_their_own(void **state)
{
    enum { K = 4 };
    static const uint64_t have[K] = {0, 30, 131, 200};
    static const uint64_t more[K] = {50, 1, 1, 133};
    const world          *w = *state;
    kvcsa_session        *s[K];
    kvcsa_work            total[T1_LAYERS];
    kvcsa_work            step[T1_LAYERS];
    kvcsa_error           err;

    for (int i = 0; i < K; i++) {
        s[i] = plain_session(w, 64);
        if (have[i])
            host_run(w->pool, s[i], w->ids, have[i], NULL);
        assert_ok(kvcsa_session_append(s[i], w->ids + have[i], more[i], NULL, NULL, &err));
    }
    assert_ok(kvcsa_pool_step(w->pool, s, K, NULL, NULL, &err));
    for (int i = 0; i < K; i++) {
        expect(w, 0, have[i], 64, total);
        expect(w, have[i], have[i] + more[i], 64, step);
        add_layers(total, step);
        check_counts(w, s[i], step, total, 0);
        kvcsa_session_release(&s[i]);
    }
}

/* ------------------------------------------------------------------ rows that run again */

/* Layer l writes window rows from first[l] on; the last row of the last layer is right. */
static void exact_first_rows(uint64_t hit, uint64_t *first)
{
    first[T1_LAYERS] = hit - 1;
    for (uint32_t l = 0; l < T1_LAYERS; l++) {
        const uint64_t rows = T1_WINDOW + (T1_LAYERS - 1 - l) * (T1_WINDOW - 1);

        first[l] = hit > rows ? hit - rows : 0;
    }
}

static void last_window(uint64_t hit, uint64_t *first)
{
    for (uint32_t l = 0; l <= T1_LAYERS; l++)
        first[l] = hit > T1_WINDOW ? hit - T1_WINDOW : 0;
}

/* A replay up to `hit`, then n_own rows behind it. */
static void expect_replay(const world *w, const uint64_t *first, uint64_t hit, uint64_t n_own,
                          uint64_t chunk, kvcsa_work *step)
{
    work_forward again = forward(w, first[0], hit, chunk);
    work_forward own = forward(w, hit, hit + n_own, chunk);

    memset(step, 0, T1_LAYERS * sizeof *step);
    again.first = first;
    again.replay = 1;
    own.floors = first;
    work_add_forward(&w->plan, &again, step);
    work_add_forward(&w->plan, &own, step);
}

static void test_exact_replay_counts(void **state)
{
    static const uint64_t hits[] = {400, 399, 152, 151, 150, 17, 1};
    const world          *w = *state;
    kvcsa_session        *s = plain_session(w, 40);
    kvcsa_work            step[T1_LAYERS];
    uint64_t              first[T1_LAYERS + 1];

    host_run(w->pool, s, w->ids, N, NULL);
    for (size_t i = 0; i < sizeof hits / sizeof *hits; i++) {
        const uint64_t hit = hits[i];

        rewind_session(s, hit);
        host_run(w->pool, s, w->ids + hit, 3, NULL);
        exact_first_rows(hit, first);
        expect_replay(w, first, hit, 3, 40, step);
        check_counts(w, s, step, NULL, 0);
        for (uint32_t l = 0; l < T1_LAYERS; l++) {
            const uint64_t rows = T1_WINDOW + (T1_LAYERS - 1 - l) * (T1_WINDOW - 1);
            kvcsa_work     got;
            kvcsa_error    err;

            assert_ok(kvcsa_session_layer_work(s, l, &got, NULL, &err));
            assert_int_equal(got.n_replayed_rows, cold_min(rows, hit));
            assert_int_equal(got.n_entries_written, w->plan.rows[l].kv_owner != (int)l ? 0
                                                    : w->plan.rows[l].ratio == 1
                                                        ? 3
                                                        : (hit + 3) / 2 - hit / 2);
        }
    }
    kvcsa_session_release(&s);
}

static kvcsa_session *session_of_reuse(const world *w, uint32_t reuse, uint32_t decoder)
{
    kvcsa_session_params p = session_defaults();

    p.chunk_tokens = 40;
    p.reuse = reuse;
    p.decoder_replay = decoder;
    return make_session(w->pool, w->model, &p);
}

/* A hit writes no entry again, and reads the entries of others. */
static void test_hits_count_their_replay(void **state)
{
    const world   *w = *state;
    kvcsa_session *first_one = session_of_reuse(w, KVCSA_REUSE_EXACT, 0);
    kvcsa_session *exact = session_of_reuse(w, KVCSA_REUSE_EXACT, 0);
    kvcsa_session *bounded = session_of_reuse(w, KVCSA_REUSE_BOUNDED, 0);
    kvcsa_work     step[T1_LAYERS];
    uint64_t       first[T1_LAYERS + 1];
    kvcsa_error    err;

    host_run(w->pool, first_one, w->ids, N, NULL);
    host_run(w->pool, exact, w->ids, 401, NULL); /* 3 blocks and a part of the tail's */
    assert_int_equal(session_reuse(exact).n_adopted, 384);
    exact_first_rows(384, first);
    expect_replay(w, first, 384, 17, 40, step);
    check_counts(w, exact, step, step, 0);

    host_run(w->pool, bounded, w->ids, 386, NULL);
    last_window(384, first);
    expect_replay(w, first, 384, 2, 40, step);
    /* approximate rows may select other entries: which blocks they lie in is not known */
    check_counts(w, bounded, step, step, WORK_BUT_PARTS);
    for (uint32_t l = 0; l < T1_LAYERS; l++) {
        assert_int_equal(step[l].n_replayed_rows, T1_WINDOW);
        assert_int_equal(step[l].n_rows, T1_WINDOW + 2);
    }
    kvcsa_session_release(&first_one);
    kvcsa_session_release(&exact);
    kvcsa_session_release(&bounded);
    assert_ok(kvcsa_prefix_forget(w->pool, NULL, 0, NULL, 0, NULL, &err));
}

/* Layers from the cut (6) on run the last window; the layer below it asks for no more queries. */
static void test_decoder_replay_counts(void **state)
{
    enum { CUT = 6, AT = 300 };
    const world   *w = *state;
    kvcsa_session *s = session_of_reuse(w, KVCSA_REUSE_NONE, KVCSA_DECODER_REPLAY_ON);
    kvcsa_work     step[T1_LAYERS] = {{0}};
    kvcsa_work     total[T1_LAYERS] = {{0}};
    uint64_t       first[T1_LAYERS + 1] = {0};
    work_forward   f = forward(w, 0, AT, 40);

    for (uint32_t l = CUT; l <= T1_LAYERS; l++)
        first[l] = AT - T1_WINDOW;
    f.first = first;
    work_add_forward(&w->plan, &f, step);
    assert_int_equal(step[CUT - 1].n_rows, T1_WINDOW);
    assert_int_equal(step[CUT - 1].n_entries_written, AT);
    assert_int_equal(step[CUT].n_window_rows_written, T1_WINDOW);
    assert_int_equal(step[CUT - 2].n_rows, AT);
    host_run(w->pool, s, w->ids, AT, NULL);
    /* the layers above the cut see less, and select other entries */
    check_counts(w, s, step, step, WORK_BUT_PARTS);
    add_layers(total, step);
    for (uint64_t n = AT + 1; n < AT + 20; n++) { /* no window row below AT - 16 is there */
        memset(step, 0, sizeof step);
        f = forward(w, n - 1, n, 40);
        f.floors = first;
        work_add_forward(&w->plan, &f, step);
        add_layers(total, step);
        host_run(w->pool, s, w->ids + n - 1, 1, NULL);
        check_counts(w, s, step, total, WORK_BUT_PARTS);
    }
    kvcsa_session_release(&s);
}

/* After a rewind inside the slack the last row runs alone, for its logits. */
static void test_last_row_alone_counts(void **state)
{
    const world         *w = *state;
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s;
    kvcsa_work           step[T1_LAYERS] = {{0}};
    work_forward         f = forward(w, 295, 296, 128);

    p.window_slack_tokens = 16;
    p.reuse = KVCSA_REUSE_NONE;
    s = make_session(w->pool, w->model, &p);
    host_run(w->pool, s, w->ids, 300, NULL);
    rewind_session(s, 296);
    host_step(w->pool, s);
    f.replay = 1;
    work_add_forward(&w->plan, &f, step);
    check_counts(w, s, step, NULL, 0);
    kvcsa_session_release(&s);
}

/* ------------------------------------------------------------------ chunks that come to nothing */

typedef struct stopper {
    int n_asked;
    int stop_at;
} stopper;

static int32_t stop_at(void *user, kvcsa_session *session, uint64_t n_done, uint64_t n_queued)
{
    stopper *st = user;

    (void)session;
    (void)n_done;
    (void)n_queued;
    return st->n_asked++ == st->stop_at;
}

/* Cancelled in front of layer l of its second chunk: the layers below have run. */
static void test_cancelled_chunk_counts(void **state)
{
    const world *w = *state;

    for (int l = 0; l < (int)T1_LAYERS; l++) {
        stopper           stop = {.stop_at = (int)T1_LAYERS + l};
        kvcsa_session    *s = plain_session(w, 40);
        kvcsa_work        total[T1_LAYERS];
        kvcsa_work        step[T1_LAYERS];
        kvcsa_work        half[T1_LAYERS];
        kvcsa_step_params p;
        kvcsa_error       err;

        kvcsa_step_params_default(&p, sizeof p);
        p.progress = stop_at;
        p.user = &stop;
        assert_ok(kvcsa_session_append(s, w->ids, 100, NULL, NULL, &err));
        assert_int_equal(kvcsa_pool_step(w->pool, &s, 1, &p, NULL, &err), KVCSA_ERR_CANCELLED);
        assert_int_equal(stop.n_asked, stop.stop_at + 1);
        assert_int_equal(kvcsa_session_length(s), 0);
        expect(w, 0, 40, 40, total);
        expect(w, 40, 80, 40, half);
        for (int i = 0; i < l; i++)
            work_add(&total[i], &half[i]);
        check_counts(w, s, total, total, 0);
        host_run(w->pool, s, w->ids, 40, NULL);
        expect(w, 0, 40, 40, step);
        add_layers(total, step);
        check_counts(w, s, step, total, 0);
        kvcsa_session_release(&s);
    }
}

/* Counts of got are none above those of want, and are those of whole layers but for one. */
static void check_partial(kvcsa_session *s, const kvcsa_work *want, kvcsa_work *got)
{
    enum { FIELDS = sizeof(kvcsa_work) / sizeof(uint64_t) };
    int n_partial = 0;

    for (uint32_t l = 0; l < T1_LAYERS; l++) {
        static const kvcsa_work none;
        uint64_t                a[FIELDS];
        uint64_t                b[FIELDS];
        kvcsa_error             err;

        assert_ok(kvcsa_session_layer_work(s, l, &got[l], NULL, &err));
        memcpy(a, &got[l], sizeof a);
        memcpy(b, &want[l], sizeof b);
        for (int i = 0; i < FIELDS; i++)
            assert_true(a[i] <= b[i]);
        if (!work_differs(&got[l], &none, 0))
            n_partial += n_partial == 0; /* nothing may come behind it */
        else if (work_differs(&got[l], &want[l], 0))
            n_partial++;
        else
            assert_int_equal(n_partial, 0);
    }
    assert_true(n_partial <= 2); /* the one that failed, and that none follows */
}

static void test_failed_chunk_counts(void **state)
{
    enum { ROWS = 24 }; /* the last of them are scored in every layer */
    const world      *w = *state;
    kvcsa_pool_params pp;
    kvcsa_work        none[T1_LAYERS] = {{0}};
    kvcsa_work        full[T1_LAYERS];
    fault_alloc       fa;
    int               n_failed = 0;
    int               n_began = 0;
    int               hit = 1;

    expect(w, 0, ROWS, ROWS, full);
    for (uint64_t n = 1; hit; n += n < 30 ? 1 : 5) {
        kvcsa_work     got[T1_LAYERS] = {{0}};
        kvcsa_pool    *pool = NULL;
        kvcsa_session *s;
        kvcsa_error    err;

        fault_alloc_init(&fa);
        kvcsa_pool_params_default(&pp, sizeof pp);
        pp.allocator = &fa.hook;
        pp.n_threads = 1;
        assert_ok(kvcsa_pool_create(&pp, &pool, &err));
        s = host_session(pool, w->model, ROWS);
        assert_ok(kvcsa_session_append(s, w->ids, ROWS, NULL, NULL, &err));
        fault_alloc_fail_at(&fa, n);
        if (kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err) != KVCSA_OK) {
            assert_int_equal(err.status, KVCSA_ERR_NOMEM);
            assert_int_equal(kvcsa_session_length(s), 0);
            check_partial(s, full, got);
            n_failed++;
            n_began += work_differs(&got[0], none, 0) != NULL;
        }
        hit = fault_alloc_hit(&fa);
        fault_alloc_fail_at(&fa, 0);
        if (kvcsa_session_length(s) == 0) {
            host_step(pool, s); /* the queue is still there */
            add_layers(got, full);
            check_counts(w, s, full, got, 0);
        } else {
            check_counts(w, s, full, full, 0);
        }
        kvcsa_session_release(&s);
        kvcsa_pool_release(&pool);
        assert_true(fault_alloc_is_clean(&fa));
    }
    assert_true(n_failed > 20);
    assert_true(n_began > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas_are_what_the_tap_saw),
        cmocka_unit_test(test_limits_change_what_is_counted),
        cmocka_unit_test(test_hidden_spans_are_not_selected),
        cmocka_unit_test(test_prefill_counts),
        cmocka_unit_test(test_decode_reads_what_the_plan_costs),
        cmocka_unit_test(test_step_begins_again),
        cmocka_unit_test(test_sessions_of_a_batch_count_their_own),
        cmocka_unit_test(test_exact_replay_counts),
        cmocka_unit_test(test_hits_count_their_replay),
        cmocka_unit_test(test_decoder_replay_counts),
        cmocka_unit_test(test_last_row_alone_counts),
        cmocka_unit_test(test_cancelled_chunk_counts),
        cmocka_unit_test(test_failed_chunk_counts),
    };

    return cmocka_run_group_tests(tests, world_set_up, world_tear_down);
}
