/* Sessions that see less than the plan says, beside exact ones: what they made never passes for
 * exact, by any way out of a session (fork, sync, snapshot). */
#include "support/cold.h"
#include "support/snap.h"

#include <stdlib.h>
#include <string.h>

enum { N = 270, PREFIX = 256, SLACK = 32 };

typedef struct fixture {
    kvcsa_model *model;
    kvcsa_pool  *pool;
    cold         cold;
    snap_dir     dir;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->model = host_model(T1_DIR);
    f->pool = host_pool(1, 0);
    f->cold = cold_run(f->model, N, 911);
    f->dir = snap_dir_make();
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    close_pool(f->pool);
    kvcsa_model_release(&f->model);
    cold_free(&f->cold);
    snap_dir_remove(&f->dir);
    free(f);
    return 0;
}

static kvcsa_session_params with_slack(void)
{
    kvcsa_session_params p = session_defaults();

    p.window_slack_tokens = SLACK;
    p.flags = KVCSA_SESSION_PRIVATE;
    return p;
}

static void hide_all(kvcsa_session *s, int32_t hidden)
{
    kvcsa_error err;

    assert_ok(kvcsa_session_hide(s, 0, UINT64_MAX, hidden, &err));
}

static int has_cold_logits(const fixture *f, kvcsa_session *s)
{
    const uint64_t n = kvcsa_session_length(s);
    float          logits[T1_VOCAB];

    host_logits(s, logits, T1_VOCAB);
    return memcmp(logits, f->cold.rows.data + (n - 1) * T1_VOCAB, sizeof logits) == 0;
}

/* Exact entries and windows, and logits that were brought back while everything was hidden. */
static kvcsa_session *with_wrong_logits(const fixture *f)
{
    const kvcsa_session_params p = with_slack();
    kvcsa_session             *s = make_session(f->pool, f->model, &p);

    cold_extend(&f->cold, f->pool, s, 100);
    rewind_session(s, 95);
    hide_all(s, 1);
    host_step(f->pool, s);
    hide_all(s, 0);
    assert_false(has_cold_logits(f, s)); /* they stay until something else is asked for */
    assert_int_equal(session_figures(s).n_exact_tokens, 95);
    return s;
}

static void test_fork_takes_no_approximate_logits(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = with_wrong_logits(f);
    kvcsa_session *fork = fork_session(s, 95);

    host_step(f->pool, fork);
    cold_check(&f->cold, fork);
    kvcsa_session_release(&fork);
    kvcsa_session_release(&s);
}

static void test_sync_brings_exact_logits_back(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = with_wrong_logits(f);
    kvcsa_error    err;

    assert_ok(kvcsa_session_sync(s, f->cold.ids, 95, NULL, NULL, &err));
    host_step(f->pool, s);
    cold_check(&f->cold, s);
    kvcsa_session_release(&s);
}

static void test_snapshot_takes_no_approximate_logits(void **state)
{
    const fixture             *f = *state;
    const kvcsa_session_params p = with_slack();
    kvcsa_session             *s = with_wrong_logits(f);
    kvcsa_session             *loaded = make_session(f->pool, f->model, &p);
    const snap_path            path = snap_in(&f->dir, "hidden.kvs");
    const kvcsa_snapshot_info  info =
        snap_save(s, path.text, NULL, KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS);

    assert_int_equal(info.exact, 1);
    assert_int_equal(info.sections, KVCSA_SNAPSHOT_WINDOW);
    (void)snap_load(loaded, path.text, NULL, 0);
    host_step(f->pool, loaded);
    cold_check(&f->cold, loaded);
    kvcsa_session_release(&loaded);
    kvcsa_session_release(&s);
}

/* All that it holds was loaded, so only its logits are approximate. */
static void test_exact_fork_of_a_limited_session(void **state)
{
    const fixture        *f = *state;
    kvcsa_session_params  p = with_slack();
    kvcsa_session        *s = make_session(f->pool, f->model, &p);
    const snap_path       path = snap_in(&f->dir, "exact.kvs");
    kvcsa_session        *fork = NULL;
    kvcsa_session        *few;
    kvcsa_error           err;

    cold_extend(&f->cold, f->pool, s, 95);
    (void)snap_save(s, path.text, NULL, KVCSA_SNAPSHOT_WINDOW);
    p.select_entries = 1;
    few = make_session(f->pool, f->model, &p);
    (void)snap_load(few, path.text, NULL, 0);
    host_step(f->pool, few);
    assert_false(has_cold_logits(f, few));
    p.select_entries = 0;
    assert_ok(kvcsa_session_fork(few, 95, &p, &fork, &err));
    host_step(f->pool, fork);
    cold_check(&f->cold, fork);
    kvcsa_session_release(&fork);
    kvcsa_session_release(&few);
    kvcsa_session_release(&s);
}

/* The fork's position lies in front of the first approximate entry, inside the slack. */
static void test_exact_fork_in_front_of_approximate_entries(void **state)
{
    const fixture             *f = *state;
    const kvcsa_session_params exact = {.struct_size = sizeof exact, .window_slack_tokens = SLACK};
    kvcsa_session             *first = make_session(f->pool, f->model, &exact);
    kvcsa_session             *fork = NULL;
    kvcsa_session_params       p = exact;
    kvcsa_session             *s;
    kvcsa_error                err;

    cold_extend(&f->cold, f->pool, first, PREFIX);
    p.reuse = KVCSA_REUSE_BOUNDED;
    s = make_session(f->pool, f->model, &p);
    host_run(f->pool, s, f->cold.ids, PREFIX + 1, NULL);
    assert_int_equal(session_figures(s).n_adopted_tokens, PREFIX);
    host_run(f->pool, s, f->cold.ids + PREFIX + 1, 4, NULL);
    assert_int_equal(session_figures(s).n_exact_tokens, PREFIX);
    assert_ok(kvcsa_session_fork(s, PREFIX, &exact, &fork, &err));
    cold_extend(&f->cold, f->pool, fork, N); /* the bits of a cold run */
    assert_int_equal(session_figures(fork).n_exact_tokens, N);
    kvcsa_session_release(&fork);
    kvcsa_session_release(&s);
    kvcsa_session_release(&first);
}

/* What others have made, and kept beside it, does not change what a limited session computes. */
static void test_limited_bits_do_not_depend_on_the_pool(void **state)
{
    const fixture       *f = *state;
    kvcsa_session_params limited = session_defaults();
    kvcsa_session_params storing = session_defaults();
    kvcsa_session       *s;
    kvcsa_session       *other;
    float                alone[T1_VOCAB], beside[T1_VOCAB];

    limited.flags = KVCSA_SESSION_WINDOW_ONLY;
    storing.window_store_tokens = 128;
    s = make_session(f->pool, f->model, &limited);
    host_run(f->pool, s, f->cold.ids, 140, NULL);
    host_logits(s, alone, T1_VOCAB);
    kvcsa_session_release(&s);
    other = make_session(f->pool, f->model, &storing);
    host_run(f->pool, other, f->cold.ids, 160, NULL);
    s = make_session(f->pool, f->model, &limited);
    host_run(f->pool, s, f->cold.ids, 140, NULL);
    host_logits(s, beside, T1_VOCAB);
    assert_memory_equal(alone, beside, sizeof alone);
    assert_int_equal(session_figures(s).n_adopted_tokens, 0);
    kvcsa_session_release(&s);
    kvcsa_session_release(&other);
}

/* The attention that was counted belongs to the tokens that a load replaces. */
static void test_load_begins_mass_anew(void **state)
{
    const fixture       *f = *state;
    kvcsa_session_params p = with_slack();
    kvcsa_session       *s;
    const snap_path      path = snap_in(&f->dir, "mass.kvs");
    double               mass[32];
    size_t               n = 0;
    kvcsa_error          err;

    p.flags |= KVCSA_SESSION_TRACK_MASS;
    s = make_session(f->pool, f->model, &p);
    host_run(f->pool, s, f->cold.ids, 95, NULL);
    assert_ok(kvcsa_session_get_mass(s, mass, 32, &n, 0, &err));
    assert_int_equal(n, 6);
    assert_true(mass[0] > 0);
    (void)snap_save(s, path.text, NULL, KVCSA_SNAPSHOT_WINDOW);
    (void)snap_load(s, path.text, NULL, 0);
    assert_ok(kvcsa_session_get_mass(s, mass, 32, &n, 0, &err));
    assert_int_equal(n, 6);
    for (size_t i = 0; i < n; i++)
        assert_true(mass[i] == 0);
    kvcsa_session_release(&s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_fork_takes_no_approximate_logits),
        TEST(test_sync_brings_exact_logits_back),
        TEST(test_snapshot_takes_no_approximate_logits),
        TEST(test_exact_fork_of_a_limited_session),
        TEST(test_exact_fork_in_front_of_approximate_entries),
        TEST(test_limited_bits_do_not_depend_on_the_pool),
        TEST(test_load_begins_mass_anew),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
