/* What a host sees of work, hidden spans and attention: kvcsa_session_layer_work, the groups of
 * kvcsa_session_get_stats, kvcsa_session_hide, kvcsa_session_get_mass. On the random checkpoint T1;
 * which entries are selected, and every count, is checked in test_work.c. */
#include "support/cold_fixture.h"
#include "support/fault_alloc.h"
#include "support/snap.h"
#include "support/work_count.h"

#include <stddef.h>

#define N 420u
#define SPAN 16u

static int set_up(void **state)
{
    fixture *f = fixture_make(N, 53);

    f->pool = host_pool(2, 0);
    *state = f;
    return 0;
}

static kvcsa_session *session_with(const fixture *f, uint32_t flags, uint32_t slack)
{
    kvcsa_session_params p = session_defaults();

    p.flags = flags;
    p.window_slack_tokens = slack;
    p.salt = slack; /* windows of another length, and nothing shared between the tests of one */
    return make_session(f->pool, f->model, &p);
}

/* The next tokens of the cold run, without use of what others know. */
static void extend(const fixture *f, kvcsa_session *s, uint64_t to)
{
    const uint64_t      from = kvcsa_session_length(s);
    kvcsa_append_params p;
    kvcsa_error         err;

    kvcsa_append_params_default(&p, sizeof p);
    p.reuse = KVCSA_REUSE_NONE;
    assert_ok(kvcsa_session_append(s, f->cold.ids + from, to - from, &p, NULL, &err));
    host_step(f->pool, s);
    assert_int_equal(kvcsa_session_length(s), to);
}

static void hide(kvcsa_session *s, uint64_t begin, uint64_t end)
{
    kvcsa_error err;

    assert_ok(kvcsa_session_hide(s, begin, end, 1, &err));
}

static void show(kvcsa_session *s, uint64_t begin, uint64_t end)
{
    kvcsa_error err;

    assert_ok(kvcsa_session_hide(s, begin, end, 0, &err));
}

static int has_cold_logits(const fixture *f, kvcsa_session *s)
{
    const uint64_t at = kvcsa_session_length(s) - 1;
    float          logits[T1_VOCAB];

    host_logits(s, logits, T1_VOCAB);
    return memcmp(logits, f->cold.rows.data + at * T1_VOCAB, sizeof logits) == 0;
}

static int same_logits(kvcsa_session *a, kvcsa_session *b)
{
    float x[T1_VOCAB];
    float y[T1_VOCAB];

    host_logits(a, x, T1_VOCAB);
    host_logits(b, y, T1_VOCAB);
    return memcmp(x, y, sizeof x) == 0;
}

static uint64_t n_exact(kvcsa_session *s)
{
    return session_figures(s).n_exact_tokens;
}

/* ------------------------------------------------------------------ work */

static void test_layers_and_groups(void **state)
{
    const fixture      *f = *state;
    kvcsa_session      *s = session_with(f, 0, 0);
    kvcsa_work          want[KVCSA_N_LAYER_GROUPS] = {{0}};
    kvcsa_work          total;
    kvcsa_work          step;
    kvcsa_session_stats st;
    work_plan           plan;
    kvcsa_error         err;

    work_plan_init(&plan, f->model);
    extend(f, s, 300);
    extend(f, s, 301);
    st = session_figures(s);
    for (uint32_t l = 0; l < T1_LAYERS; l++) {
        assert_ok(kvcsa_session_layer_work(s, l, &step, &total, &err));
        assert_int_equal(step.n_rows, 1);
        assert_int_equal(total.n_rows, 301);
        assert_int_equal(total.n_experts, 301 * 3);
        work_add(&want[work_group(&plan, l)], &total);
    }
    for (uint32_t g = 0; g < KVCSA_N_LAYER_GROUPS; g++)
        if (work_differs(&st.total[g], &want[g], 0))
            fail_msg("group %u: %s", g, work_differs(&st.total[g], &want[g], 0));
    /* what the groups are about */
    assert_int_equal(st.step[KVCSA_LAYERS_WINDOW].n_entries_read, 0);
    assert_int_equal(st.step[KVCSA_LAYERS_WINDOW].n_window_rows_read, 2 * 16);
    assert_int_equal(st.step[KVCSA_LAYERS_FULL].n_keys_scored, 150 + 150 + 301);
    assert_int_equal(st.step[KVCSA_LAYERS_REINDEX].n_keys_scored, 9);
    assert_int_equal(st.step[KVCSA_LAYERS_REUSE].n_keys_scored, 0);
    assert_int_equal(st.step[KVCSA_LAYERS_REUSE].n_selections, 0);
    assert_int_equal(st.step[KVCSA_LAYERS_REUSE].n_entries_read, 4 * 8);
    assert_ok(kvcsa_session_layer_work(s, 3, &step, NULL, &err));
    assert_ok(kvcsa_session_layer_work(s, 3, NULL, &total, &err));
    assert_ok(kvcsa_session_layer_work(s, 3, NULL, NULL, &err));
    assert_int_equal(step.n_entries_read, 8);
    assert_int_equal(total.n_rows, 301);
    kvcsa_session_release(&s);
    free(plan.rows);
}

static void test_layer_work_refuses(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = session_with(f, 0, 0);
    kvcsa_work     step;
    kvcsa_work     total;
    kvcsa_error    err;

    memset(&step, 7, sizeof step);
    memset(&total, 7, sizeof total);
    assert_fails(kvcsa_session_layer_work(s, T1_LAYERS, &step, &total, &err), KVCSA_ERR_ARG,
                 "layer is 10");
    assert_int_equal(step.n_rows, 0);
    assert_int_equal(total.reserved[1], 0);
    assert_fails(kvcsa_session_layer_work(NULL, 0, &step, &total, &err), KVCSA_ERR_ARG, "session");
    memset(&step, 7, sizeof step);
    assert_ok(kvcsa_session_layer_work(s, 0, &step, &total, &err)); /* has not computed yet */
    assert_int_equal(step.n_rows, 0);
    assert_int_equal(step.written_bytes, 0);
    kvcsa_session_release(&s);
}

typedef struct meddler {
    kvcsa_status work, hide, mass;
} meddler;

static int32_t meddle(void *user, kvcsa_session *session, uint64_t n_done, uint64_t n_queued)
{
    meddler *m = user;
    size_t   n = 0;

    (void)n_done;
    (void)n_queued;
    m->work = kvcsa_session_layer_work(session, 0, NULL, NULL, NULL);
    m->hide = kvcsa_session_hide(session, 0, SPAN, 1, NULL);
    m->mass = kvcsa_session_get_mass(session, NULL, 0, &n, 0, NULL);
    return 0;
}

static void test_a_second_caller_is_refused(void **state)
{
    const fixture    *f = *state;
    kvcsa_session    *s = session_with(f, KVCSA_SESSION_TRACK_MASS, 0);
    meddler           m = {0};
    kvcsa_step_params p;
    kvcsa_error       err;

    kvcsa_step_params_default(&p, sizeof p);
    p.progress = meddle;
    p.user = &m;
    assert_ok(kvcsa_session_append(s, f->cold.ids, 30, NULL, NULL, &err));
    assert_ok(kvcsa_pool_step(f->pool, &s, 1, &p, NULL, &err));
    assert_int_equal(m.work, KVCSA_ERR_BUSY);
    assert_int_equal(m.hide, KVCSA_ERR_BUSY);
    assert_int_equal(m.mass, KVCSA_ERR_BUSY);
    cold_check(&f->cold, s);
    kvcsa_session_release(&s);
}

/* A program of the release before has a shorter struct, and no room behind it. */
static void test_shorter_statistics(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = session_with(f, 0, 0);
    const size_t   old = offsetof(kvcsa_session_stats, step);
    struct {
        kvcsa_session_stats st;
    } room;
    kvcsa_error err;

    extend(f, s, 20);
    memset(&room, 0x5A, sizeof room);
    room.st.struct_size = old;
    assert_ok(kvcsa_session_get_stats(s, &room.st, &err));
    assert_int_equal(room.st.n_exact_tokens, 20);
    for (size_t i = old; i < sizeof room; i++)
        assert_int_equal(((const unsigned char *)&room)[i], 0x5A);
    kvcsa_session_release(&s);
}

/* ------------------------------------------------------------------ hiding */

static void test_hide_refuses(void **state)
{
    const fixture   *f = *state;
    kvcsa_session   *s = session_with(f, 0, 0);
    kvcsa_model_info info = {.struct_size = sizeof info};
    kvcsa_error      err;

    assert_ok(kvcsa_model_get_info(f->model, &info, &err));
    assert_int_equal(info.span_tokens, SPAN);
    extend(f, s, 100);
    assert_fails(kvcsa_session_hide(NULL, 0, SPAN, 1, &err), KVCSA_ERR_ARG, "session");
    assert_fails(kvcsa_session_hide(s, 8, SPAN, 1, &err), KVCSA_ERR_ARG, "begin is 8");
    assert_fails(kvcsa_session_hide(s, 0, 17, 1, &err), KVCSA_ERR_ARG, "end is 17");
    assert_fails(kvcsa_session_hide(s, 0, UINT64_MAX - 1, 1, &err), KVCSA_ERR_ARG, "end is");
    assert_fails(kvcsa_session_hide(s, 1, UINT64_MAX, 1, &err), KVCSA_ERR_ARG, "begin is 1");
    assert_fails(kvcsa_session_hide(s, 32, SPAN, 1, &err), KVCSA_ERR_ARG, "begin is 32");
    assert_fails(kvcsa_session_hide(s, 0, SPAN, 2, &err), KVCSA_ERR_ARG, "hidden is 2");
    assert_fails(kvcsa_session_hide(s, 0, SPAN, -1, &err), KVCSA_ERR_ARG, "hidden is -1");
    assert_ok(kvcsa_session_append(s, f->cold.ids + 100, 1, NULL, NULL, &err));
    assert_fails(kvcsa_session_hide(s, 0, SPAN, 1, &err), KVCSA_ERR_ARG, "queued");
    host_step(f->pool, s);
    cold_check(&f->cold, s); /* nothing was hidden by all this */
    assert_int_equal(n_exact(s), 101);
    hide(s, 0, UINT64_C(1) << 62); /* far behind every limit: as good as all */
    show(s, 0, UINT64_C(1) << 62);
    hide(s, UINT64_C(1) << 62, UINT64_C(1) << 62); /* nothing */
    hide(s, UINT64_C(1) << 40, UINT64_MAX);        /* what can never be */
    show(s, 0, UINT64_MAX);
    extend(f, s, 140);
    cold_check(&f->cold, s);
    assert_int_equal(n_exact(s), 140);
    kvcsa_session_release(&s);
}

/* Hidden and shown again with nothing computed in between: not a bit differs. */
static void test_show_restores_every_bit(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = session_with(f, KVCSA_SESSION_PRIVATE, 0);

    extend(f, s, 200);
    hide(s, 0, 64);
    hide(s, 96, UINT64_MAX);
    show(s, 96, 160);
    show(s, 0, 64);
    show(s, 160, UINT64_MAX);
    cold_extend(&f->cold, f->pool, s, 230);
    assert_int_equal(n_exact(s), 230);
    hide(s, 0, 192);
    extend(f, s, 231);
    assert_false(has_cold_logits(f, s));
    assert_int_equal(n_exact(s), 230);
    show(s, 0, 192);
    extend(f, s, 240); /* reads approximate rows: stays so */
    assert_int_equal(n_exact(s), 230);
    assert_false(has_cold_logits(f, s));
    rewind_session(s, 230); /* in front of all that */
    cold_extend(&f->cold, f->pool, s, 260);
    assert_int_equal(n_exact(s), 260);
    kvcsa_session_release(&s);
}

/* What is far behind the length changes nothing until it is reached. */
static void test_hidden_tokens_that_are_still_to_come(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = session_with(f, KVCSA_SESSION_PRIVATE, 0);

    extend(f, s, 100);
    hide(s, 256, 400);
    cold_extend(&f->cold, f->pool, s, 256);
    extend(f, s, N);
    assert_false(has_cold_logits(f, s));
    assert_true(n_exact(s) <= 256);
    kvcsa_session_release(&s);
}

/* With everything hidden the windows alone are left. */
static void test_all_hidden_is_window_only(void **state)
{
    const fixture *f = *state;
    kvcsa_session *a = session_with(f, KVCSA_SESSION_PRIVATE, 0);
    kvcsa_session *b = session_with(f, KVCSA_SESSION_WINDOW_ONLY, 0);

    hide(a, 0, UINT64_MAX);
    for (uint64_t n = 5; n < 200; n += 39) {
        extend(f, a, n);
        extend(f, b, n);
        assert_true(same_logits(a, b));
    }
    assert_false(has_cold_logits(f, a));
    assert_int_equal(n_exact(a), 0);
    assert_int_equal(n_exact(b), 0);
    kvcsa_session_release(&a);
    kvcsa_session_release(&b);
}

static size_t n_known(const fixture *f)
{
    size_t      n = 0;
    kvcsa_error err;

    assert_ok(kvcsa_prefix_match(f->pool, f->model, 0, f->cold.ids, N, &n, &err));
    return n;
}

/* Approximate blocks are found by nobody; exact ones in front of them are. */
static void test_approximate_blocks_are_not_published(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = session_with(f, 0, 0);
    kvcsa_session *other;
    uint64_t       n = 7;
    kvcsa_error    err;

    assert_ok(kvcsa_prefix_forget(f->pool, NULL, 0, NULL, 0, NULL, &err));
    extend(f, s, 200);
    assert_int_equal(n_known(f), 128);
    hide(s, 0, 32);
    extend(f, s, N);
    assert_int_equal(n_exact(s), 200);
    assert_int_equal(n_known(f), 128); /* the block of 128..255 is exact in part only */
    show(s, 0, 32);
    assert_ok(kvcsa_prefix_publish(s, &n, &err));
    assert_int_equal(n, 128);
    assert_int_equal(n_known(f), 128);
    other = session_with(f, 0, 0);
    cold_reuse(&f->cold, f->pool, other, N, KVCSA_REUSE_DEFAULT); /* bits of a cold run */
    assert_int_equal(session_reuse(other).n_adopted, 128);
    assert_int_equal(n_known(f), 384); /* these are exact */
    kvcsa_session_release(&other);
    kvcsa_session_release(&s);
}

/* Bits of a session that sees less do not depend on what others have computed: it uses no known
 * prefix, and nobody uses what it makes. */
static void test_hidden_session_uses_no_prefix(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = session_with(f, 0, 0);
    kvcsa_session *h = session_with(f, 0, 0);
    kvcsa_error    err;

    assert_ok(kvcsa_prefix_forget(f->pool, NULL, 0, NULL, 0, NULL, &err));
    extend(f, s, 384);
    hide(h, 0, 320);
    assert_ok(kvcsa_session_append(h, f->cold.ids, N, NULL, NULL, &err));
    assert_int_equal(session_reuse(h).n_adopted, 0);
    assert_int_equal(session_reuse(h).reason, KVCSA_REASON_PRIVATE);
    host_step(f->pool, h);
    assert_false(has_cold_logits(f, h));
    assert_int_equal(n_exact(h), 0);
    assert_int_equal(n_known(f), 384);
    kvcsa_session_release(&h);
    kvcsa_session_release(&s);
}

static void test_fork_copies_what_is_hidden(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = session_with(f, KVCSA_SESSION_PRIVATE, 0);
    kvcsa_session *same;
    kvcsa_session *shown;

    extend(f, s, 200);
    hide(s, 0, 64);
    hide(s, 160, UINT64_MAX);
    same = fork_session(s, 200);
    shown = fork_session(s, 200);
    show(shown, 0, UINT64_MAX);
    extend(f, s, 230);
    extend(f, same, 230);
    extend(f, shown, 230);
    assert_true(same_logits(s, same));
    assert_false(same_logits(s, shown));
    cold_check(&f->cold, shown);
    assert_int_equal(n_exact(shown), 230);
    assert_int_equal(n_exact(same), 200);
    kvcsa_session_release(&shown);
    shown = fork_session(s, 190); /* in front of what is approximate */
    show(shown, 0, UINT64_MAX);
    show(same, 0, UINT64_MAX); /* each has its own list */
    cold_extend(&f->cold, f->pool, shown, 240);
    assert_int_equal(n_exact(shown), 240);
    kvcsa_session_release(&same);
    same = fork_session(s, 230);
    extend(f, s, 260);
    extend(f, same, 260);
    assert_true(same_logits(s, same));
    kvcsa_session_release(&shown);
    kvcsa_session_release(&same);
    kvcsa_session_release(&s);
}

static void test_erase_shows_and_rewind_does_not(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = session_with(f, KVCSA_SESSION_PRIVATE, 0);
    kvcsa_error    err;

    extend(f, s, 200);
    hide(s, 0, UINT64_MAX);
    rewind_session(s, 150);
    extend(f, s, 200);
    assert_false(has_cold_logits(f, s));
    assert_int_equal(n_exact(s), 150);
    assert_ok(kvcsa_session_erase(s, 0, &err));
    cold_extend(&f->cold, f->pool, s, 200);
    assert_int_equal(n_exact(s), 200);
    kvcsa_session_release(&s);
}

/* The logits of the last token are wanted back while something is hidden: its row runs again and
 * sees less, but window rows that are right already stay what they are. */
static void test_logits_while_hidden_leave_the_window_alone(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = session_with(f, KVCSA_SESSION_PRIVATE, 8);

    extend(f, s, 300);
    rewind_session(s, 296);
    hide(s, 0, 256);
    host_step(f->pool, s);
    assert_false(has_cold_logits(f, s));
    assert_int_equal(n_exact(s), 296);
    show(s, 0, 256);
    cold_extend(&f->cold, f->pool, s, 320);
    assert_int_equal(n_exact(s), 320);
    kvcsa_session_release(&s);
}

/* Windows that were rebuilt while something was hidden are approximate, and so is what follows. */
static void test_replay_while_hidden_taints(void **state)
{
    const fixture    *f = *state;
    kvcsa_session    *s = session_with(f, KVCSA_SESSION_PRIVATE, 0);
    kvcsa_session    *t;
    kvcsa_step_params p;
    kvcsa_error       err;

    kvcsa_step_params_default(&p, sizeof p);
    p.max_rows = 30;
    extend(f, s, 300);
    rewind_session(s, 250);
    hide(s, 0, 208);
    host_step(f->pool, s);
    assert_false(has_cold_logits(f, s));
    show(s, 0, 208);
    t = fork_session(s, 250); /* an exact session rebuilds them */
    extend(f, s, 256);
    assert_int_equal(n_exact(s), 250);
    cold_extend(&f->cold, f->pool, t, 256);
    assert_int_equal(n_exact(t), 256);
    kvcsa_session_release(&t);
    /* a part of the replay is enough */
    rewind_session(s, 240);
    hide(s, 0, 208);
    assert_ok(kvcsa_pool_step(f->pool, &s, 1, &p, NULL, &err));
    show(s, 0, 208);
    host_step(f->pool, s);
    assert_int_equal(session_figures(s).n_replay, 0);
    extend(f, s, 256);
    assert_int_equal(n_exact(s), 240);
    rewind_session(s, 240);
    cold_extend(&f->cold, f->pool, s, 256);
    assert_int_equal(n_exact(s), 256);
    kvcsa_session_release(&s);
}

static void test_snapshot_of_a_hidden_session(void **state)
{
    const fixture  *f = *state;
    kvcsa_session  *s = session_with(f, KVCSA_SESSION_PRIVATE, 0);
    kvcsa_session  *t = session_with(f, KVCSA_SESSION_PRIVATE, 0);
    snap_dir        dir = snap_dir_make();
    const snap_path file = snap_in(&dir, "hidden");

    extend(f, s, 200);
    hide(s, 0, 128);
    extend(f, s, 230);
    assert_int_equal(snap_save(s, file.text, NULL, 0).exact, 0);
    snap_load(t, file.text, NULL, 0);
    assert_int_equal(kvcsa_session_length(t), 230);
    assert_true(n_exact(t) <= 200); /* it sees all, but what it holds was made seeing less */
    extend(f, t, 260);
    assert_true(n_exact(t) <= 200);
    kvcsa_session_release(&s);
    kvcsa_session_release(&t);
    snap_dir_remove(&dir);
}

/* Out of memory: as before. */
static void test_hide_without_memory(void **state)
{
    const fixture    *f = *state;
    kvcsa_pool_params pp;
    kvcsa_pool       *pool = NULL;
    kvcsa_session    *s;
    kvcsa_session    *fork = NULL;
    fault_alloc       fa;
    kvcsa_error       err;

    fault_alloc_init(&fa);
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &fa.hook;
    pp.n_threads = 1;
    assert_ok(kvcsa_pool_create(&pp, &pool, &err));
    s = host_session(pool, f->model, 0);
    host_run(pool, s, f->cold.ids, 100, NULL);
    fault_alloc_fail_at(&fa, 1);
    assert_fails(kvcsa_session_hide(s, 0, 64, 1, &err), KVCSA_ERR_NOMEM, "hidden spans");
    fault_alloc_fail_at(&fa, 0);
    host_run(pool, s, f->cold.ids + 100, 20, NULL);
    cold_check(&f->cold, s);
    assert_ok(kvcsa_session_hide(s, 0, 64, 1, &err));
    for (uint64_t n = 1; !fork; n++) {
        fault_alloc_fail_at(&fa, n);
        if (kvcsa_session_fork(s, 120, NULL, &fork, &err) != KVCSA_OK)
            assert_int_equal(err.status, KVCSA_ERR_NOMEM);
    }
    fault_alloc_fail_at(&fa, 0);
    host_run(pool, s, f->cold.ids + 120, 9, NULL);
    host_run(pool, fork, f->cold.ids + 120, 9, NULL);
    assert_true(same_logits(s, fork));
    kvcsa_session_release(&s);
    kvcsa_session_release(&fork);
    kvcsa_pool_release(&pool);
    assert_true(fault_alloc_is_clean(&fa));
}

/* ------------------------------------------------------------------ limits of a session */

static void test_limits_of_a_session(void **state)
{
    const fixture       *f = *state;
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s = NULL;
    kvcsa_error          err;

    p.select_entries = 9;
    assert_fails(kvcsa_session_create(f->pool, f->model, &p, &s, &err), KVCSA_ERR_ARG,
                 "select_entries is 9");
    p.select_entries = 0;
    p.candidate_blocks = 4;
    assert_fails(kvcsa_session_create(f->pool, f->model, &p, &s, &err), KVCSA_ERR_ARG,
                 "candidate_blocks is 4");
    p.candidate_blocks = 0;
    p.flags = 16;
    assert_fails(kvcsa_session_create(f->pool, f->model, &p, &s, &err), KVCSA_ERR_UNSUPPORTED,
                 "0x10");
    for (int i = 0; i < 3; i++) { /* the plan's own limits are none */
        p = session_defaults();
        p.select_entries = i == 0 ? 8 : i == 1 ? 4 : 0;
        p.candidate_blocks = i == 0 ? 3 : i == 1 ? 0 : 2;
        p.salt = 17;
        s = make_session(f->pool, f->model, &p);
        extend(f, s, 200);
        assert_int_equal(has_cold_logits(f, s), i == 0);
        assert_int_equal(n_exact(s), i == 0 ? 200 : 0);
        kvcsa_session_release(&s);
    }
}

/* ------------------------------------------------------------------ mass */

static void test_mass_arguments(void **state)
{
    const fixture *f = *state;
    kvcsa_session *plain = session_with(f, 0, 0);
    kvcsa_session *s = session_with(f, KVCSA_SESSION_TRACK_MASS, 0);
    double         mass[32];
    double         again[32];
    size_t         n = 9;
    kvcsa_error    err;

    assert_fails(kvcsa_session_get_mass(plain, mass, 32, &n, 0, &err), KVCSA_ERR_ARG,
                 "TRACK_MASS");
    assert_int_equal(n, 0);
    assert_fails(kvcsa_session_get_mass(NULL, mass, 32, &n, 0, &err), KVCSA_ERR_ARG, "session");
    assert_fails(kvcsa_session_get_mass(s, NULL, 1, &n, 0, &err), KVCSA_ERR_ARG, "mass");
    assert_fails(kvcsa_session_get_mass(s, mass, 32, NULL, 0, &err), KVCSA_ERR_ARG, "n_spans");
    assert_ok(kvcsa_session_get_mass(s, mass, 32, &n, 1, &err));
    assert_int_equal(n, 0);
    extend(f, s, 100);
    cold_check(&f->cold, s); /* counting changes no bit */
    for (int i = 0; i < 32; i++)
        mass[i] = again[i] = -1;
    assert_ok(kvcsa_session_get_mass(s, mass, 32, &n, 0, &err));
    assert_int_equal(n, 7);
    assert_ok(kvcsa_session_get_mass(s, again, 3, &n, 1, &err));
    assert_int_equal(n, 7);
    for (int i = 0; i < 32; i++) {
        assert_true(i < 7 ? mass[i] > 0 : mass[i] == -1);
        assert_true(i < 3 ? again[i] == mass[i] : again[i] == -1);
    }
    assert_ok(kvcsa_session_get_mass(s, again, 32, &n, 0, &err));
    for (int i = 0; i < 7; i++)
        assert_true(again[i] == 0);
    kvcsa_session_release(&plain);
    kvcsa_session_release(&s);
}

/* What spans received goes with their tokens. */
static void test_mass_after_rewind_and_erase(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = session_with(f, KVCSA_SESSION_TRACK_MASS | KVCSA_SESSION_PRIVATE, 0);
    kvcsa_session *t;
    double         before[32];
    double         fork[32];
    double         mass[32];
    size_t         n = 0;
    kvcsa_error    err;

    extend(f, s, 200);
    assert_ok(kvcsa_session_get_mass(s, before, 32, &n, 0, &err));
    assert_int_equal(n, 13);
    rewind_session(s, 100);
    assert_ok(kvcsa_session_get_mass(s, mass, 32, &n, 0, &err));
    assert_int_equal(n, 7);
    assert_memory_equal(mass, before, n * sizeof *mass);
    rewind_session(s, 96);
    t = fork_session(s, 96); /* begins at zero */
    extend(f, s, 150);
    extend(f, t, 150);
    assert_ok(kvcsa_session_get_mass(s, mass, 32, &n, 0, &err));
    assert_ok(kvcsa_session_get_mass(t, fork, 32, &n, 0, &err));
    assert_int_equal(n, 10);
    assert_true(mass[5] > fork[5]); /* rows in front of position 96 saw it too */
    assert_memory_equal(mass + 6, fork + 6, 4 * sizeof *mass);
    kvcsa_session_release(&t);
    assert_ok(kvcsa_session_erase(s, 0, &err));
    assert_ok(kvcsa_session_get_mass(s, mass, 32, &n, 0, &err));
    assert_int_equal(n, 0);
    extend(f, s, 200);
    assert_ok(kvcsa_session_get_mass(s, mass, 32, &n, 0, &err));
    assert_memory_equal(mass, before, 13 * sizeof *mass);
    kvcsa_session_release(&s);
}

/* The same sums however the rows come, but for the rounding of sums in another order: they are
 * made row by row. */
static void test_mass_does_not_depend_on_chunks(void **state)
{
    static const uint32_t chunks[] = {1, 7, 128};
    const fixture        *f = *state;
    double                mass[3][32];
    size_t                n = 0;

    for (int i = 0; i < 3; i++) {
        kvcsa_session_params p = session_defaults();
        kvcsa_session       *s;
        kvcsa_error          err;

        p.flags = KVCSA_SESSION_TRACK_MASS;
        p.chunk_tokens = chunks[i];
        s = make_session(f->pool, f->model, &p);
        extend(f, s, 200);
        assert_ok(kvcsa_session_get_mass(s, mass[i], 32, &n, 0, &err));
        kvcsa_session_release(&s);
    }
    for (size_t i = 0; i < n; i++) {
        const double a = mass[0][i];

        assert_true(mass[1][i] > a * (1 - 1e-12) && mass[1][i] < a * (1 + 1e-12));
        assert_true(mass[2][i] > a * (1 - 1e-12) && mass[2][i] < a * (1 + 1e-12));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_and_groups),
        cmocka_unit_test(test_layer_work_refuses),
        cmocka_unit_test(test_a_second_caller_is_refused),
        cmocka_unit_test(test_shorter_statistics),
        cmocka_unit_test(test_hide_refuses),
        cmocka_unit_test(test_show_restores_every_bit),
        cmocka_unit_test(test_hidden_tokens_that_are_still_to_come),
        cmocka_unit_test(test_all_hidden_is_window_only),
        cmocka_unit_test(test_approximate_blocks_are_not_published),
        cmocka_unit_test(test_hidden_session_uses_no_prefix),
        cmocka_unit_test(test_fork_copies_what_is_hidden),
        cmocka_unit_test(test_erase_shows_and_rewind_does_not),
        cmocka_unit_test(test_logits_while_hidden_leave_the_window_alone),
        cmocka_unit_test(test_replay_while_hidden_taints),
        cmocka_unit_test(test_snapshot_of_a_hidden_session),
        cmocka_unit_test(test_hide_without_memory),
        cmocka_unit_test(test_limits_of_a_session),
        cmocka_unit_test(test_mass_arguments),
        cmocka_unit_test(test_mass_after_rewind_and_erase),
        cmocka_unit_test(test_mass_does_not_depend_on_chunks),
    };

    return cmocka_run_group_tests_name("api_work", tests, set_up, tear_down);
}
