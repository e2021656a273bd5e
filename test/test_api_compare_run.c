/* Texts under a reference and under other settings: what must print exactly 0 does, what saves
 * something is seen, and bounded replay prints what the independent reference prints. */
#include <math.h>
#include <stdio.h>

#include <jansson.h>

#include "support/compared.h"
#include "support/fault_alloc.h"

#define GOLDEN "test/golden/measure/bounded.json"

/* ------------------------------------------------------------------ exactly 0 */

/* The noise floor: other pools, chunks, threads and appends, all at once. */
static void check_noise_floor(kvcsa_model *model, kvcsa_pool *const *pools, const int32_t *ids,
                              size_t n)
{
    static const uint64_t appends[] = {60, 20, 5, 15};
    static const uint32_t chunks[] = {0, 7, 128, 33};
    kvcsa_session_params  params[4];
    kvcsa_setting         settings[4];
    kvcsa_compare        *compares[3] = {NULL, NULL, NULL};
    kvcsa_error           err;

    for (int i = 0; i < 4; i++) {
        params[i] = session_defaults();
        params[i].chunk_tokens = chunks[i];
        settings[i] = setting_of(model, pools[i % 2], &params[i]);
        settings[i].append_tokens = appends[i];
    }
    for (int i = 0; i < 3; i++)
        assert_ok(kvcsa_compare_create(NULL, &compares[i], &err));
    assert_ok(kvcsa_compare_text(&settings[0], &settings[1], compares, 3, ids, n, 0, NULL, &err));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(result_of(compares[i]).n_text_rows, n - 1);
        check_all_zero(compares[i], n);
        kvcsa_compare_release(&compares[i]);
    }
}

static void test_identical_settings_print_zero(void **state)
{
    fixture     *f = *state;
    kvcsa_model *tiny = host_model(TINY_DIR);
    kvcsa_pool  *pools[2] = {f->pool, f->other};
    const char   text[] = "And Moses said unto the people, Remember this day, in which ye "
                          "came out from Egypt, out of the house of bondage; for by strength "
                          "of hand the LORD brought you out from this place: there shall no "
                          "leavened bread be eaten.";
    int32_t      ids[200];
    size_t       n = 0;
    kvcsa_error  err;

    check_noise_floor(f->model, pools, f->ids, N);
    assert_ok(kvcsa_model_tokenize(tiny, text, sizeof text - 1, 0, ids, 200, &n, &err));
    assert_in_range(n, 50, 200);
    check_noise_floor(tiny, pools, ids, n);
    assert_int_equal(f->n_replays, 0);
    kvcsa_model_release(&tiny);
}

/* Hits that are rebuilt exactly; the windows were lost, or nothing would have run again. */
static void test_exact_hits_print_zero(void **state)
{
    fixture             *f = *state;
    kvcsa_session_params p[4];
    kvcsa_setting        tests[4];
    kvcsa_compare       *c[4];

    for (int i = 0; i < 4; i++) {
        p[i] = session_defaults();
        p[i].reuse = i / 2 ? KVCSA_REUSE_EXACT : KVCSA_REUSE_NONE;
        p[i].window_slack_tokens = i % 2 ? 40 : 0; /* room that a rewind would find rows in */
        tests[i] = setting_of(f->model, f->other, &p[i]);
        tests[i].append_tokens = 15;
        tests[i].hit_tokens = 30;
        tests[i].flags = i % 2 ? KVCSA_SETTING_CHAIN_HITS : 0;
    }
    f->n_replays = f->n_replayed_rows = 0;
    run_against_exact(f, tests, c, 4);
    for (int i = 0; i < 4; i++) {
        check_all_zero(c[i], N);
        kvcsa_compare_release(&c[i]);
    }
    assert_int_equal(f->n_replays, 4 * 3); /* at 30, 60, 90: all of what is in front */
    assert_int_equal(f->n_replayed_rows, 4 * (30 + 60 + 90));
}

/* A stored row that says what the model's own quantiser said, in four bytes a channel. */
static void test_storage_of_the_same_values_prints_zero(void **state)
{
    fixture           *f = *state;
    kvcsa_model_params mp;
    kvcsa_model       *wide = NULL;
    kvcsa_setting      test;
    kvcsa_compare     *c;
    kvcsa_cost         a = {.struct_size = sizeof a}, b = a;
    kvcsa_error        err;

    kvcsa_model_params_default(&mp, sizeof mp);
    mp.plan = "{\"entry_format\": \"fp4-as-f32\"}";
    assert_ok(kvcsa_model_open(T1_DIR, &mp, &wide, &err));
    assert_ok(kvcsa_model_cost(f->model, N, &a, &err));
    assert_ok(kvcsa_model_cost(wide, N, &b, &err));
    assert_true(b.rate > 3 * a.rate); /* 4 bytes a channel for 4.5 bits */
    test = setting_of(wide, f->other, NULL);
    run_against_exact(f, &test, &c, 1);
    check_all_zero(c, N);
    kvcsa_compare_release(&c);
    kvcsa_model_release(&wide);
}

/* ------------------------------------------------------------------ what saves is seen */

static void test_bounded_hits_are_seen(void **state)
{
    fixture             *f = *state;
    kvcsa_session_params p = session_defaults();
    kvcsa_setting        tests[2];
    kvcsa_compare       *c[2];

    p.reuse = KVCSA_REUSE_BOUNDED;
    tests[0] = setting_of(f->model, f->other, &p);
    tests[0].append_tokens = 15;
    tests[0].hit_tokens = 30;
    tests[1] = tests[0];
    tests[1].flags = KVCSA_SETTING_CHAIN_HITS;
    f->n_replays = f->n_replayed_rows = 0;
    run_against_exact(f, tests, c, 2);
    assert_int_equal(f->n_replays, 2 * 3);
    assert_int_equal(f->n_replayed_rows, 2 * 3 * T1_WINDOW);
    check_differs_from(c[0], 30);
    check_differs_from(c[1], 30);
    /* the second hit finds what the first has made */
    assert_true(result_of(c[0]).kl_mean != result_of(c[1]).kl_mean);
    kvcsa_compare_release(&c[0]);
    kvcsa_compare_release(&c[1]);
}

/* Rows of the last window of each append are all that decoder replay has; of the reference too. */
static void test_decoder_replay_has_few_rows(void **state)
{
    fixture             *f = *state;
    kvcsa_session_params p = session_defaults();
    kvcsa_setting        test = setting_of(f->model, f->other, &p);
    kvcsa_setting        ref = setting_of(f->model, f->pool, NULL);
    kvcsa_compare       *c = NULL;
    kvcsa_compare_row   *rows;
    kvcsa_error          err;

    p.decoder_replay = KVCSA_DECODER_REPLAY_ON;
    ref.append_tokens = test.append_tokens = 50;
    for (int swap = 0; swap < 2; swap++) {
        size_t i = 0;

        assert_ok(kvcsa_compare_create(NULL, &c, &err));
        assert_ok(kvcsa_compare_text(swap ? &test : &ref, swap ? &ref : &test, &c, 1, f->ids, N, 0,
                                     NULL, &err));
        rows = rows_of(c, 2 * T1_WINDOW);
        for (uint64_t end = 50; end < N + 50; end += 50)
            for (uint64_t k = 0; k < T1_WINDOW; k++)
                assert_int_equal(rows[i++].position, (end < N ? end : N) - T1_WINDOW + k);
        assert_true(result_of(c).kl_mean > 1e-3);
        free(rows);
        kvcsa_compare_release(&c);
    }
}

/* Decoder replay spoils windows, not entries: behind a hit that is rebuilt exactly it makes no
 * difference who has made what the hit finds. */
static void test_exact_hits_repair_decoder_replay(void **state)
{
    fixture             *f = *state;
    kvcsa_session_params p = session_defaults();
    kvcsa_setting        tests[2];
    kvcsa_compare       *c[2];
    kvcsa_compare_row   *rows[2];

    p.decoder_replay = KVCSA_DECODER_REPLAY_ON;
    tests[0] = setting_of(f->model, f->other, &p);
    tests[0].append_tokens = tests[0].hit_tokens = 32;
    tests[1] = tests[0];
    tests[1].flags = KVCSA_SETTING_CHAIN_HITS;
    run_against_exact(f, tests, c, 2);
    for (int i = 0; i < 2; i++)
        rows[i] = rows_of(c[i], N / 32 * T1_WINDOW);
    for (size_t i = 0; i + 1 < N / 32 * T1_WINDOW; i++) {
        assert_memory_equal(&rows[0][i], &rows[1][i], sizeof rows[0][i]);
        assert_true(rows[0][i].kl > 0);
    }
    for (int i = 0; i < 2; i++) {
        free(rows[i]);
        kvcsa_compare_release(&c[i]);
    }
}

static void test_what_is_not_selected_is_seen(void **state)
{
    /* two tokens have no more than two entries; T1's candidate blocks are of four */
    static const uint64_t from[] = {0, 2, 4};
    const fixture        *f = *state;
    kvcsa_session_params  p[3] = {session_defaults(), session_defaults(), session_defaults()};
    kvcsa_setting         tests[3];
    kvcsa_compare        *c[3];

    p[0].flags = KVCSA_SESSION_WINDOW_ONLY;
    p[1].select_entries = 2;
    p[2].candidate_blocks = 1;
    for (int i = 0; i < 3; i++)
        tests[i] = setting_of(f->model, f->other, &p[i]);
    run_against_exact(f, tests, c, 3);
    for (int i = 0; i < 3; i++) {
        check_differs_from(c[i], from[i]);
        kvcsa_compare_release(&c[i]);
    }
}

static void test_entries_of_other_formats_are_seen(void **state)
{
    static const char *const plans[3] = {"{\"entry_format\": \"f32\"}",
                                         "{\"entry_format\": \"bf16\"}",
                                         "{\"entry_format\": \"q4_0\"}"};
    const fixture           *f = *state;
    kvcsa_model             *models[3] = {NULL, NULL, NULL};
    kvcsa_setting            tests[3];
    kvcsa_compare           *c[3];
    kvcsa_error              err;

    for (int i = 0; i < 3; i++) {
        kvcsa_model_params mp;

        kvcsa_model_params_default(&mp, sizeof mp);
        mp.plan = plans[i];
        assert_ok(kvcsa_model_open(T1_DIR, &mp, &models[i], &err));
        tests[i] = setting_of(models[i], f->other, NULL);
    }
    run_against_exact(f, tests, c, 3);
    for (int i = 0; i < 3; i++) {
        check_differs_from(c[i], 0);
        kvcsa_compare_release(&c[i]);
        kvcsa_model_release(&models[i]);
    }
}

/* ------------------------------------------------------------------ parity */

static double number_at(const json_t *row, size_t i)
{
    return json_number_value(json_array_get(row, i));
}

/* Rows of one list of the golden file against ours. */
static double check_golden(const char *name, const json_t *list, const kvcsa_compare_row *rows,
                           size_t n_rows)
{
    size_t at = 0;
    double sum = 0;
    double want = 0;

    assert_true(json_array_size(list) == 80);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t  *row = json_array_get(list, i);
        const uint64_t position = (uint64_t)number_at(row, 0);
        const double   kl = number_at(row, 1);

        while (at < n_rows && rows[at].position < position)
            at++;
        assert_true(at < n_rows);
        assert_int_equal(rows[at].position, position);
        assert_true(kl > 5e-3); /* so that a run which saved nothing would not pass */
        if (fabs(rows[at].kl - kl) > 1e-4)
            fail_msg("%s, position %llu: KL is %.9g, the reference has %.9g", name,
                     (unsigned long long)position, rows[at].kl, kl);
        sum += rows[at].kl;
        want += kl;
    }
    assert_true(fabs(sum - want) / 80 < 1e-4);
    return want / 80;
}

/* With numerics 1 no code of the golden text rounds another way than the reference's; with 2 one does, and T1's random weights
 * make another function of it (test/golden/measure/README.md). */
static kvcsa_pool *portable_pool(void)
{
    kvcsa_pool_params p;
    kvcsa_pool       *pool = NULL;
    kvcsa_error       err;

    kvcsa_pool_params_default(&p, sizeof p);
    p.cpu_avoid = KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512 | KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD;
    assert_ok(kvcsa_pool_create(&p, &pool, &err));
    return pool;
}

static void test_bounded_replay_prints_what_the_reference_prints(void **state)
{
    static const struct {
        const char *name;
        uint32_t    flags, reuse, decoder, hits;
    } cases[] = {
        {"first", 0, KVCSA_REUSE_BOUNDED, KVCSA_DECODER_REPLAY_OFF, 1},
        {"chain", KVCSA_SETTING_CHAIN_HITS, KVCSA_REUSE_BOUNDED, KVCSA_DECODER_REPLAY_OFF, 1},
        {"decoder", 0, KVCSA_REUSE_EXACT, KVCSA_DECODER_REPLAY_ON, 0}};
    const fixture *f = *state;
    kvcsa_pool    *pools[2] = {portable_pool(), portable_pool()};
    json_error_t   jerr;
    json_t        *golden = json_load_file(GOLDEN, 0, &jerr);
    const json_t  *tokens = json_object_get(golden, "tokens");
    const size_t   n = json_array_size(tokens);
    const uint64_t hit = (uint64_t)json_integer_value(json_object_get(golden, "hit_tokens"));
    int32_t        ids[100];
    kvcsa_error    err;

    if (!golden)
        fail_msg("%s: %s", GOLDEN, jerr.text);
    assert_int_equal(n, 100);
    assert_int_equal(hit, 20);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(tokens, i));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvcsa_session_params p = session_defaults();
        kvcsa_setting        ref = setting_of(f->model, pools[0], NULL);
        kvcsa_setting        test = setting_of(f->model, pools[1], &p);
        kvcsa_compare       *c = NULL;
        kvcsa_compare_row   *rows;
        size_t               n_rows = 0;

        ref.append_tokens = test.append_tokens = hit;
        test.hit_tokens = cases[i].hits ? hit : 0;
        test.flags = cases[i].flags;
        p.reuse = cases[i].reuse;
        p.decoder_replay = cases[i].decoder;
        assert_ok(kvcsa_compare_create(NULL, &c, &err));
        assert_ok(kvcsa_compare_text(&ref, &test, &c, 1, ids, n, 0, NULL, &err));
        n_rows = result_of(c).n_rows;
        rows = rows_of(c, n_rows);
        assert_true(check_golden(cases[i].name,
                                 json_object_get(json_object_get(golden, "rows"), cases[i].name),
                                 rows, n_rows) > 0.1);
        free(rows);
        kvcsa_compare_release(&c);
    }
    kvcsa_pool_release(&pools[0]);
    kvcsa_pool_release(&pools[1]);
    json_decref(golden);
}

/* ------------------------------------------------------------------ rows, progress, cancel */

static void test_rows_in_front_of_first_are_left_out(void **state)
{
    const fixture       *f = *state;
    kvcsa_session_params p = session_defaults();
    kvcsa_setting        ref = setting_of(f->model, f->pool, NULL);
    kvcsa_setting        test = setting_of(f->model, f->other, &p);
    kvcsa_compare       *all = NULL, *some = NULL;
    kvcsa_compare_row   *a, *b;
    kvcsa_error          err;

    p.flags = KVCSA_SESSION_WINDOW_ONLY;
    assert_ok(kvcsa_compare_create(NULL, &all, &err));
    assert_ok(kvcsa_compare_create(NULL, &some, &err));
    assert_ok(kvcsa_compare_text(&ref, &test, &all, 1, f->ids, N, 0, NULL, &err));
    ref.append_tokens = test.append_tokens = 32;
    assert_ok(kvcsa_compare_text(&ref, &test, &some, 1, f->ids, N, 70, NULL, &err));
    assert_ok(kvcsa_compare_text(&ref, &test, &some, 1, f->ids, N, N, NULL, &err)); /* none */
    assert_ok(kvcsa_compare_text(&ref, &test, &some, 1, f->ids, N, N - 1, NULL, &err));
    a = rows_of(all, N);
    b = rows_of(some, N - 70 + 1);
    for (size_t i = 70; i + 1 < N; i++)
        assert_memory_equal(&a[i], &b[i - 70], sizeof *a);
    assert_int_equal(b[N - 70].position, N - 1);
    assert_int_equal(b[N - 70].run, 1); /* the run without rows took no number */
    assert_true(isnan(b[N - 70].ref_log_prob));
    free(a);
    free(b);
    kvcsa_compare_release(&all);
    kvcsa_compare_release(&some);
}

typedef struct watch {
    uint64_t n_calls, last, n_rows, stop_at;
    int      falls;
} watch;

static int32_t look(void *user, uint64_t n_done, uint64_t n_rows)
{
    watch *w = user;

    w->n_calls++;
    w->falls |= n_done < w->last || n_done > n_rows || (w->n_rows && w->n_rows != n_rows);
    w->last = n_done;
    w->n_rows = n_rows;
    return w->stop_at && n_done >= w->stop_at;
}

static void test_progress_and_cancel(void **state)
{
    static const uint64_t        stops[] = {1, 100, 270};
    const fixture               *f = *state;
    kvcsa_setting                ref = setting_of(f->model, f->pool, NULL);
    kvcsa_setting                test = setting_of(f->model, f->other, NULL);
    watch                        w = {0};
    const kvcsa_compare_progress progress = {look, &w};
    kvcsa_compare               *c = NULL;
    kvcsa_error                  err;

    ref.append_tokens = test.append_tokens = 30;
    test.hit_tokens = 30; /* the exact run beside it makes 90 rows */
    assert_ok(kvcsa_compare_create(NULL, &c, &err));
    assert_ok(kvcsa_compare_text(&ref, &test, &c, 1, f->ids, N, 0, &progress, &err));
    assert_int_equal(w.falls, 0);
    assert_int_equal(w.n_rows, 2 * N + 90);
    assert_int_equal(w.last, w.n_rows);
    assert_true(w.n_calls > 20);
    w = (watch){0};
    assert_ok(kvcsa_compare_greedy(&ref, &test, &c, 1, f->ids, 50, 12, NULL, &progress, &err));
    assert_int_equal(w.falls, 0);
    assert_int_equal(w.n_rows, 2 * 61 + 60); /* the last token is not fed */
    assert_int_equal(w.last, w.n_rows);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        const uint64_t before = result_of(c).n_rows;

        w = (watch){.stop_at = stops[i]};
        assert_fails(kvcsa_compare_text(&ref, &test, &c, 1, f->ids, N, 0, &progress, &err),
                     KVCSA_ERR_CANCELLED, "cancelled");
        assert_true(w.last >= stops[i] && w.last < stops[i] + 30); /* within its append */
        assert_true(result_of(c).n_rows - before <= N);
        w = (watch){.stop_at = stops[i] / 3 + 1};
        assert_fails(
            kvcsa_compare_greedy(&ref, &test, &c, 1, f->ids, 50, 12, NULL, &progress, &err),
            KVCSA_ERR_CANCELLED, "cancelled");
        assert_int_equal(result_of(c).n_greedy, 1);
    }
    kvcsa_compare_release(&c);
}

/* ------------------------------------------------------------------ greedy */

/* What a session says by itself behind the first n tokens. */
static void generate(const fixture *f, size_t n, int32_t *out, size_t n_out)
{
    kvcsa_session *s = host_session(f->pool, f->model, 0);
    kvcsa_error    err;

    host_run(f->pool, s, f->ids, n, NULL);
    for (size_t i = 0; i < n_out; i++) {
        assert_ok(kvcsa_session_sample(s, NULL, &out[i], &err));
        host_run(f->pool, s, &out[i], 1, NULL);
    }
    kvcsa_session_release(&s);
}

static void test_greedy_of_identical_settings_never_diverges(void **state)
{
    enum { PROMPT = 70, GENERATE = 30 };
    fixture             *f = *state;
    kvcsa_session_params p = session_defaults();
    kvcsa_setting        ref = setting_of(f->model, f->pool, NULL);
    kvcsa_setting        test[2] = {setting_of(f->model, f->other, &p),
                                    setting_of(f->model, f->other, NULL)};
    kvcsa_compare       *c[2] = {NULL, NULL};
    int32_t              want[GENERATE], got[3][GENERATE];
    kvcsa_error          err;

    p.chunk_tokens = 9;
    test[0].append_tokens = ref.append_tokens = 20;
    test[1].append_tokens = 10;
    test[1].hit_tokens = 20; /* three in the prompt, at its end too, one in what is generated */
    f->n_replays = 0;
    assert_ok(kvcsa_compare_create(NULL, &c[0], &err));
    assert_ok(kvcsa_compare_create(NULL, &c[1], &err));
    assert_ok(kvcsa_compare_greedy(&ref, test, c, 2, f->ids, PROMPT, GENERATE, got[0], NULL, &err));
    generate(f, PROMPT, want, GENERATE);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(got[i], want, sizeof want);
    assert_int_equal(f->n_replays, 4);
    for (int i = 0; i < 2; i++) {
        const kvcsa_compare_result r = result_of(c[i]);

        assert_int_equal(r.n_greedy, 1);
        assert_int_equal(r.n_diverged, 0);
        assert_int_equal(r.n_greedy_same, GENERATE);
        assert_int_equal(r.n_rows, 0);
        kvcsa_compare_release(&c[i]);
    }
}

static void test_greedy_of_another_setting_diverges(void **state)
{
    enum { PROMPT = 64, GENERATE = 20 };
    const fixture       *f = *state;
    kvcsa_session_params p = session_defaults();
    kvcsa_setting        ref = setting_of(f->model, f->pool, NULL);
    kvcsa_setting        test = setting_of(f->model, f->other, &p);
    kvcsa_compare       *c = NULL;
    int32_t              got[2][GENERATE];
    uint64_t             same = 0;
    size_t               n = 0;
    kvcsa_error          err;

    p.flags = KVCSA_SESSION_WINDOW_ONLY;
    assert_ok(kvcsa_compare_create(NULL, &c, &err));
    assert_ok(
        kvcsa_compare_greedy(&ref, &test, &c, 1, f->ids, PROMPT, GENERATE, got[0], NULL, &err));
    assert_ok(kvcsa_compare_get_greedy(c, &same, 1, &n, &err));
    assert_int_equal(n, 1);
    assert_true(same < GENERATE);
    assert_memory_equal(got[0], got[1], same * sizeof(int32_t));
    assert_int_not_equal(got[0][same], got[1][same]);
    assert_int_equal(result_of(c).n_diverged, 1);
    assert_int_equal(result_of(c).first_divergence, same);
    /* one token: the prompt's last row says it */
    assert_ok(kvcsa_compare_greedy(&ref, &test, &c, 1, f->ids, PROMPT, 1, NULL, NULL, &err));
    assert_int_equal(result_of(c).n_greedy, 2);
    assert_int_equal(result_of(c).n_greedy_tokens, GENERATE + 1);
    kvcsa_compare_release(&c);
}

/* The image token cannot be fed: where it is the likeliest the next one is taken. */
static void test_greedy_takes_tokens_that_can_be_fed(void **state)
{
    static const int32_t prompt[2] = {300, 131}; /* T1 goes on with its image token */
    const fixture       *f = *state;
    kvcsa_setting        ref = setting_of(f->model, f->pool, NULL);
    kvcsa_session       *s = host_session(f->pool, f->model, 0);
    float                logits[T1_VOCAB];
    int32_t              got[2];
    int32_t              best = 0;
    kvcsa_error          err;

    host_run(f->pool, s, prompt, 2, NULL);
    assert_ok(kvcsa_session_sample(s, NULL, &best, &err));
    assert_int_equal(best, T1_VOCAB - 1);
    host_logits(s, logits, T1_VOCAB);
    best = 0;
    for (int32_t i = 1; i < (int32_t)T1_VOCAB - 1; i++)
        if (logits[i] > logits[best])
            best = i;
    assert_ok(kvcsa_compare_greedy(&ref, NULL, NULL, 0, prompt, 2, 2, got, NULL, &err));
    assert_int_equal(got[0], best);
    kvcsa_session_release(&s);
}

/* ------------------------------------------------------------------ bad calls */

static void test_bad_settings_are_refused(void **state)
{
    const fixture       *f = *state;
    const uint64_t       odd[] = {1, 2 * SPAN};
    kvcsa_setting        ref = setting_of(f->model, f->pool, NULL);
    const kvcsa_setting  good = setting_of(f->model, f->other, NULL);
    kvcsa_setting        test = good;
    kvcsa_session_params p = session_defaults();
    kvcsa_compare       *c = NULL;
    kvcsa_model         *tiny = host_model(TINY_DIR);
    kvcsa_error          err;

#define refuses(status, fragment)                                                                  \
    assert_fails(kvcsa_compare_text(&ref, &test, &c, 1, f->ids, N, 0, NULL, &err), status,         \
                 fragment);                                                                        \
    assert_fails(kvcsa_compare_greedy(&ref, &test, &c, 1, f->ids, N, 4, NULL, NULL, &err), status, \
                 fragment);                                                                        \
    test = good

    refuses(KVCSA_ERR_ARG, "compares[0] is NULL");
    assert_ok(kvcsa_compare_create(NULL, &c, &err));
    test.append_tokens = 96;
    refuses(KVCSA_ERR_ARG, "append_tokens is 96");
    test.hit_tokens = 64;
    refuses(KVCSA_ERR_ARG, "hit_tokens is 64");
    test.model = NULL;
    refuses(KVCSA_ERR_ARG, "model is NULL");
    test.pool = NULL;
    refuses(KVCSA_ERR_ARG, "pool is NULL");
    test.model = tiny;
    refuses(KVCSA_ERR_ARG, "1536");
    test.flags = 2;
    refuses(KVCSA_ERR_UNSUPPORTED, "flags");
    test.keep_fraction = NAN;
    refuses(KVCSA_ERR_ARG, "keep_fraction");
    test.keep_fraction = 1.5f;
    refuses(KVCSA_ERR_ARG, "keep_fraction");
    test.keep_first_tokens = 5;
    refuses(KVCSA_ERR_ARG, "keep_first_tokens");
    test.n_hidden = 1;
    refuses(KVCSA_ERR_ARG, "hidden");
    test.hidden = odd;
    test.n_hidden = 1;
    refuses(KVCSA_ERR_ARG, "multiple");
    test.struct_size = 8;
    refuses(KVCSA_ERR_ARG, "struct_size");
    test.struct_size = sizeof test + 4;
    refuses(KVCSA_ERR_ARG, "struct_size");
    p.mode = 77;
    test.session = &p;
    refuses(KVCSA_ERR_UNSUPPORTED, "mode");
#undef refuses
    assert_fails(kvcsa_compare_text(NULL, &test, &c, 1, f->ids, N, 0, NULL, &err), KVCSA_ERR_ARG,
                 "reference");
    assert_fails(kvcsa_compare_text(&ref, NULL, &c, 1, f->ids, N, 0, NULL, &err), KVCSA_ERR_ARG,
                 "tests");
    assert_fails(kvcsa_compare_text(&ref, &test, NULL, 1, f->ids, N, 0, NULL, &err), KVCSA_ERR_ARG,
                 "compares");
    assert_fails(kvcsa_compare_text(&ref, &test, &c, 1, NULL, N, 0, NULL, &err), KVCSA_ERR_ARG,
                 "tokens");
    assert_fails(kvcsa_compare_text(&ref, &test, &c, 1, f->ids, 0, 0, NULL, &err), KVCSA_ERR_ARG,
                 "n_tokens");
    assert_fails(kvcsa_compare_greedy(&ref, &test, &c, 1, f->ids, N, 0, NULL, NULL, &err),
                 KVCSA_ERR_ARG, "n_generate");
    assert_fails(kvcsa_compare_greedy(&ref, &test, &c, 1, f->ids, N, SIZE_MAX, NULL, NULL, &err),
                 KVCSA_ERR_LIMIT, "context limit");
    assert_fails(kvcsa_compare_greedy(&ref, &test, &c, 1, f->ids, 90, 16384 - 88, NULL, NULL, &err),
                 KVCSA_ERR_LIMIT, "context limit"); /* 90 + 16,295 are fed */
    assert_fails(kvcsa_compare_text(&ref, &test, &c, 1, f->ids, 16385, 0, NULL, &err),
                 KVCSA_ERR_LIMIT, "context limit");
    assert_int_equal(result_of(c).n_rows, 0);
    assert_int_equal(result_of(c).n_greedy, 0);
    kvcsa_compare_release(&c);
    kvcsa_model_release(&tiny);
}

/* Without tests the reference runs alone: what it says can be asked for. */
static void test_a_reference_alone(void **state)
{
    const fixture *f = *state;
    kvcsa_setting  ref = setting_of(f->model, f->pool, NULL);
    int32_t        want[5], got[5];
    kvcsa_error    err;

    generate(f, 40, want, 5);
    assert_ok(kvcsa_compare_greedy(&ref, NULL, NULL, 0, f->ids, 40, 5, got, NULL, &err));
    assert_memory_equal(got, want, sizeof got);
    assert_ok(kvcsa_compare_text(&ref, NULL, NULL, 0, f->ids, 40, 0, NULL, &err));
}

/* ------------------------------------------------------------------ out of memory */

/* The n-th allocation of the pool's allocator or of the comparison's fails, n = 1 until none does:
 * an error, and everything is given back. */
static void test_out_of_memory(void **state)
{
    const fixture       *f = *state;
    kvcsa_session_params p = session_defaults();
    uint64_t             n_failed = 0;
    kvcsa_status         st = KVCSA_ERR_NOMEM;

    p.reuse = KVCSA_REUSE_BOUNDED;
    for (uint64_t n = 1; st != KVCSA_OK; n += 1 + n / 4) {
        kvcsa_pool_params pp;
        kvcsa_pool       *pool = NULL;
        kvcsa_compare    *c = NULL;
        kvcsa_setting     ref, test;
        fault_alloc       fa;
        kvcsa_error       err;

        fault_alloc_init(&fa);
        kvcsa_pool_params_default(&pp, sizeof pp);
        pp.allocator = &fa.hook;
        pp.n_threads = 1;
        assert_ok(kvcsa_pool_create(&pp, &pool, &err));
        assert_ok(kvcsa_compare_create(&fa.hook, &c, &err));
        ref = setting_of(f->model, pool, NULL);
        test = setting_of(f->model, pool, &p);
        ref.append_tokens = test.append_tokens = 20;
        test.hit_tokens = 20;
        test.keep_fraction = 0.5f;
        fault_alloc_fail_at(&fa, n);
        st = kvcsa_compare_text(&ref, &test, &c, 1, f->ids, 50, 0, NULL, &err);
        assert_int_equal(st, fault_alloc_hit(&fa) ? KVCSA_ERR_NOMEM : KVCSA_OK);
        assert_int_equal(err.status, st);
        n_failed += st != KVCSA_OK;
        fault_alloc_fail_at(&fa, 0);
        assert_true(result_of(c).n_rows <= 50 && (st != KVCSA_OK || result_of(c).n_rows == 50));
        host_pool_is_idle(pool);
        kvcsa_compare_release(&c);
        kvcsa_pool_release(&pool);
        assert_true(fault_alloc_is_clean(&fa));
    }
    assert_true(n_failed > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identical_settings_print_zero),
        cmocka_unit_test(test_exact_hits_print_zero),
        cmocka_unit_test(test_storage_of_the_same_values_prints_zero),
        cmocka_unit_test(test_bounded_hits_are_seen),
        cmocka_unit_test(test_decoder_replay_has_few_rows),
        cmocka_unit_test(test_exact_hits_repair_decoder_replay),
        cmocka_unit_test(test_what_is_not_selected_is_seen),
        cmocka_unit_test(test_entries_of_other_formats_are_seen),
        cmocka_unit_test(test_bounded_replay_prints_what_the_reference_prints),
        cmocka_unit_test(test_rows_in_front_of_first_are_left_out),
        cmocka_unit_test(test_progress_and_cancel),
        cmocka_unit_test(test_greedy_of_identical_settings_never_diverges),
        cmocka_unit_test(test_greedy_of_another_setting_diverges),
        cmocka_unit_test(test_greedy_takes_tokens_that_can_be_fed),
        cmocka_unit_test(test_bad_settings_are_refused),
        cmocka_unit_test(test_a_reference_alone),
        cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
