/* Decode steps on a device are recorded once and then run as one graph: on the test plug-in "apart" (the CPU's operators), bit for
 * bit what the CPU computes, whatever the lengths, the batch and the rows of a step are, and however sessions come and go. */
#include "support/host.h"
#include "support/test_backend.h"

#include "net/net.h"
#include "session/session_int.h"

#include "apart/apart_counts.h"

#include <stdio.h>

enum { MAX_SESSIONS = 11, MAX_TOKENS = 260 };

static kvcsa_model *model;

typedef struct world { /* the same sessions on the CPU and on the device */
    kvcsa_pool    *pools[2];
    kvcsa_session *s[2][MAX_SESSIONS];
    int32_t        ids[MAX_SESSIONS][MAX_TOKENS];
    size_t         done[MAX_SESSIONS];
    size_t         n;
} world;

static kvcsa_pool *open_pool(uint32_t backend)
{
    kvcsa_pool_params p;
    kvcsa_pool       *pool = NULL;
    kvcsa_error       err;

    kvcsa_pool_params_default(&p, sizeof p);
    p.n_threads = 1;
    p.backend = backend;
    p.backend_dir = test_backend_beside("apart");
    assert_ok(kvcsa_pool_create(&p, &pool, &err));
    return pool;
}

static void open_session(world *w, int on, size_t i)
{
    w->s[on][i] = host_session(w->pools[on], model, 256);
}

static world *open_world(size_t n)
{
    world *w = calloc(1, sizeof *w);

    assert_non_null(w);
    w->n = n;
    w->pools[0] = open_pool(KVCSA_BACKEND_CPU);
    w->pools[1] = open_pool(KVCSA_BACKEND_CUDA);
    for (size_t i = 0; i < n; i++) {
        host_tokens(w->ids[i], MAX_TOKENS, 40 + i);
        for (int on = 0; on < 2; on++)
            open_session(w, on, i);
    }
    return w;
}

static void close_world(world *w)
{
    kvcsa_error err;

    for (int on = 0; on < 2; on++) {
        assert_ok(kvcsa_pool_check(w->pools[on], &err));
        for (size_t i = 0; i < w->n; i++)
            kvcsa_session_release(&w->s[on][i]);
        kvcsa_pool_release(&w->pools[on]);
    }
    free(w);
}

/* n[i] more tokens for session i, all in one step; 0 = the session stays out. */
static void step(world *w, const size_t *n)
{
    kvcsa_error err;

    for (int on = 0; on < 2; on++) {
        kvcsa_session *list[MAX_SESSIONS];
        size_t         n_list = 0;

        for (size_t i = 0; i < w->n; i++) {
            if (n[i] == 0)
                continue;
            assert_true(w->done[i] + n[i] <= MAX_TOKENS);
            assert_ok(kvcsa_session_append(w->s[on][i], w->ids[i] + w->done[i], n[i], NULL, NULL, &err));
            list[n_list++] = w->s[on][i];
        }
        assert_ok(kvcsa_pool_step(w->pools[on], list, n_list, NULL, NULL, &err));
    }
    for (size_t i = 0; i < w->n; i++)
        w->done[i] += n[i];
}

static void step_all(world *w, size_t each)
{
    size_t n[MAX_SESSIONS];

    for (size_t i = 0; i < MAX_SESSIONS; i++)
        n[i] = i < w->n ? each : 0;
    step(w, n);
}

/* Logits, and what was counted layer by layer. */
static void check_same(const world *w)
{
    for (size_t i = 0; i < w->n; i++) {
        float       logits[2][T1_VOCAB];
        kvcsa_error err;

        if (w->done[i] == 0)
            continue;
        for (int on = 0; on < 2; on++)
            host_logits(w->s[on][i], logits[on], T1_VOCAB);
        assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
        for (uint32_t l = 0; l < model->plan.n_layers; l++) {
            kvcsa_work a[2], b[2];

            assert_ok(kvcsa_session_layer_work(w->s[0][i], l, &a[0], &b[0], &err));
            assert_ok(kvcsa_session_layer_work(w->s[1][i], l, &a[1], &b[1], &err));
            assert_memory_equal(&a[0], &a[1], sizeof a[0]);
            assert_memory_equal(&b[0], &b[1], sizeof b[0]);
        }
    }
}

typedef struct counts {
    uint64_t recorded, runs;
} counts;

/* Graphs lie with the session that leads the batch. */
static counts graphs(const world *w, size_t lead)
{
    counts c;

    kvi_net_graphs(w->s[1][lead]->net, &c.recorded, &c.runs);
    return c;
}

/* ------------------------------------------------------------------ one session */

static void test_steps_of_one_row(void **state)
{
    world *w = open_world(1);

    (void)state;
    step_all(w, 37);
    assert_int_equal(graphs(w, 0).recorded, 0);
    for (int i = 0; i < 100; i++) {
        step_all(w, 1);
        check_same(w);
    }
    assert_int_equal(graphs(w, 0).recorded, 1); /* of the second step, and never again: entries come in every other one */
    assert_int_equal(graphs(w, 0).runs, 99);
    close_world(w);
}

static void test_steps_of_six_rows(void **state)
{
    world *w = open_world(1);

    (void)state;
    step_all(w, 21);
    for (int i = 0; i < 30; i++) {
        step_all(w, 6);
        check_same(w);
    }
    assert_true(graphs(w, 0).recorded <= 2); /* rows that select all they see come to an end inside of one step */
    assert_true(graphs(w, 0).runs >= 26);
    close_world(w);
}

/* A session that decodes from its first token on: lengths 0, 1, 2, ... */
static void test_steps_from_nothing(void **state)
{
    world *w = open_world(1);

    (void)state;
    for (int i = 0; i < 60; i++) {
        step_all(w, 1);
        check_same(w);
    }
    /* once layers that select begin to leave something out, those with an entry a token first */
    assert_int_equal(graphs(w, 0).recorded, 3);
    assert_int_equal(graphs(w, 0).runs, 57);
    close_world(w);
}

static void test_rows_change_between_steps(void **state)
{
    static const size_t rows[] = {1, 6, 1, 6, 3, 1, 8, 9, 1, 6, 8, 2};
    world              *w = open_world(1);

    (void)state;
    step_all(w, 50);
    for (int turn = 0; turn < 4; turn++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            step_all(w, rows[i]);
            check_same(w);
        }
    assert_int_equal(graphs(w, 0).recorded, 5); /* 1, 2, 3, 6, 8; 9 are too many */
    close_world(w);
}

/* ------------------------------------------------------------------ batches */

/* Sessions of any length and parity share a graph. */
static void test_batches_of_any_lengths(void **state)
{
    for (size_t n = 2; n <= MAX_SESSIONS; n += 3) {
        world *w = open_world(n);
        size_t begin[MAX_SESSIONS];

        (void)state;
        for (size_t i = 0; i < n; i++)
            begin[i] = 1 + i * i + i % 2;
        step(w, begin);
        for (int i = 0; i < 40; i++) {
            step_all(w, 1);
            check_same(w);
        }
        assert_true(graphs(w, 0).recorded <= 3 && graphs(w, 0).runs >= 37);
        close_world(w);
    }
}

static void test_batches_of_six_rows(void **state)
{
    world       *w = open_world(3);
    const size_t begin[] = {5, 64, 33};

    (void)state;
    step(w, begin);
    for (int i = 0; i < 20; i++) {
        step_all(w, 6);
        check_same(w);
    }
    assert_true(graphs(w, 0).recorded >= 1 && graphs(w, 0).runs >= 15);
    close_world(w);
}

/* Sizes in one bucket are one graph: 9 and 10 sessions run as 10. */
static void test_batches_of_similar_size(void **state)
{
    world *w = open_world(10);
    size_t n[MAX_SESSIONS];

    (void)state;
    step_all(w, 30);
    for (int i = 0; i < 20; i++) {
        for (size_t k = 0; k < MAX_SESSIONS; k++)
            n[k] = k < 10;
        n[3 + i % 6] = (size_t)(i % 2); /* somebody rests in every other step */
        step(w, n);
        check_same(w);
    }
    assert_int_equal(graphs(w, 0).recorded, 1);
    assert_int_equal(graphs(w, 0).runs, 19);
    close_world(w);
}

/* One session's prompt beside the steps of others: that batch is no graph, the ones before and after are. */
static void test_a_prompt_comes_in_between(void **state)
{
    world       *w = open_world(3);
    const size_t mixed[] = {1, 40, 1};
    const size_t two[] = {1, 0, 1};

    (void)state;
    step_all(w, 20);
    for (int i = 0; i < 8; i++)
        step_all(w, 1);
    step(w, mixed);
    check_same(w);
    for (int i = 0; i < 8; i++)
        step_all(w, 1);
    for (int i = 0; i < 8; i++)
        step(w, two);
    check_same(w);
    assert_int_equal(graphs(w, 0).recorded, 2);
    assert_int_equal(graphs(w, 0).runs, 7 + 8 + 7);
    close_world(w);
}

/* ------------------------------------------------------------------ what a step asks of the device */

/* Operators of a step whose layers all score. A layer that takes over the selection of another has none of the indexer's. */
static uint64_t operators_of_a_step(void)
{
    const kvi_config *c = &model->config;
    uint64_t          n = 1 + 3 * (uint64_t)c->n_engram_layers + 3; /* embedding; table, projection and gate; head */

    for (uint32_t l = 0; l < model->plan.n_layers; l++) {
        const kvi_plan_row *r = &model->plan.rows[l];

        n += 2 * (4 + 1);                                        /* two sites: mixing, collapsing, expanding */
        n += 4 + 4 + 1 + c->o_groups + 1 + 3;                    /* window row, query, rotation back, output; experts */
        n += r->ratio ? 2 : 1;                                     /* attention, and the count of what it reads */
        if (kvi_plan_owns(&model->plan, l))
            n += r->ratio == 2 ? 4 + 5 + 1 : 1 + 5 + 1;               /* latents, norms and rotations, the block */
        if (r->select == KVCSA_SELECT_OWN || r->select == KVCSA_SELECT_REINDEX)
            n += r->candidates == KVCSA_CANDIDATES_SOURCE ? 8 : r->candidates == KVCSA_CANDIDATES_NONE ? 6 : 7;
    }
    return n;
}

static apart_counts device_counts(void)
{
    apart_counts c;

    assert_true(apart_counts_now(test_backend_beside("apart"), &c));
    return c;
}

/* However many sessions: one piece that goes there, one launch, the commit of all windows, one wait. */
static void test_what_a_step_asks_of_the_device(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 8; n += 7)
        for (size_t each = 1; each <= 6; each += 5) {
            world       *w = open_world(n);
            apart_counts a, b;

            step_all(w, 120);
            step_all(w, each);
            a = device_counts();
            step_all(w, each);
            b = device_counts();
            assert_int_equal(b.graphs - a.graphs, 1);
            assert_int_equal(b.recorded - a.recorded, operators_of_a_step() + (each > 1 && n > 1 ? 1 : 0)); /* rows of the head */
            for (int i = 0; i < 3; i++) {
                a = device_counts();
                step_all(w, each);
                b = device_counts();
                assert_int_equal(b.graph_runs - a.graph_runs, 1);
                assert_int_equal(b.launches - a.launches, 1); /* windows */
                assert_int_equal(b.syncs - a.syncs, 1);
                assert_int_equal(b.copies_out - a.copies_out, 1);
                assert_true(b.copies_in - a.copies_in <= 2 + n); /* rows, list of copies; a page's place in a session's table */
            }
            check_same(w);
            close_world(w);
        }
}

/* ------------------------------------------------------------------ what changes around a graph */

/* A longer run makes the workspace grow: what was recorded with the old one is not run again. */
static void test_the_workspace_grows(void **state)
{
    world *w = open_world(1);

    (void)state;
    step_all(w, 10);
    for (int i = 0; i < 5; i++)
        step_all(w, 1);
    step_all(w, 150);
    for (int i = 0; i < 5; i++) {
        step_all(w, 1);
        check_same(w);
    }
    assert_true(graphs(w, 0).recorded <= 2);
    assert_true(graphs(w, 0).runs >= 4 + 3);
    close_world(w);
}

static void test_rewind_and_fork(void **state)
{
    world      *w = open_world(2);
    kvcsa_error err;

    (void)state;
    step_all(w, 40);
    for (int i = 0; i < 12; i++)
        step_all(w, 1);
    for (int on = 0; on < 2; on++) {
        assert_ok(kvcsa_session_rewind(w->s[on][0], 45, &err));
        kvcsa_session_release(&w->s[on][1]);
        assert_ok(kvcsa_session_fork(w->s[on][0], 45, NULL, &w->s[on][1], &err));
    }
    w->done[0] = w->done[1] = 45;
    memcpy(w->ids[1], w->ids[0], 45 * sizeof(int32_t));
    for (int i = 0; i < 30; i++) {
        step_all(w, 1);
        check_same(w);
    }
    close_world(w);
}

/* Limits of a session are its own business: it is not noted, and nor is the batch. */
static void test_limits_are_not_recorded(void **state)
{
    world               *w = open_world(2);
    kvcsa_session_params p;
    kvcsa_error          err;

    (void)state;
    kvcsa_session_params_default(&p, sizeof p);
    p.select_entries = 5;
    for (int on = 0; on < 2; on++) {
        kvcsa_session_release(&w->s[on][1]);
        assert_ok(kvcsa_session_create(w->pools[on], model, &p, &w->s[on][1], &err));
    }
    step_all(w, 60);
    for (int i = 0; i < 10; i++) {
        step_all(w, 1);
        check_same(w);
    }
    assert_int_equal(graphs(w, 0).recorded, 0);
    close_world(w);
}

/* ------------------------------------------------------------------ cancel, failure */

typedef struct stopper {
    kvcsa_session *who;
    int            asked;
    int            at;
} stopper;

static int32_t stop_at(void *user, kvcsa_session *s, uint64_t done, uint64_t left)
{
    stopper *p = user;

    (void)done;
    (void)left;
    return s == p->who && ++p->asked == p->at;
}

/* A step that is noted can be stopped until all of it has been handed over; the others go on. */
static void test_cancel(void **state)
{
    for (int at = 1; at < 12; at += 3) {
        world            *w = open_world(2);
        kvcsa_step_params p;
        kvcsa_error       err;

        (void)state;
        step_all(w, 30);
        for (int i = 0; i < 5; i++)
            step_all(w, 1);
        for (int on = 0; on < 2; on++) {
            stopper           stop = {.who = w->s[on][1], .at = at};
            kvcsa_step_result res[2];

            kvcsa_step_params_default(&p, sizeof p);
            p.progress = stop_at;
            p.user = &stop;
            for (size_t i = 0; i < 2; i++)
                assert_ok(kvcsa_session_append(w->s[on][i], w->ids[i] + w->done[i], 1, NULL, NULL, &err));
            assert_int_equal(kvcsa_pool_step(w->pools[on], w->s[on], 2, &p, res, &err), KVCSA_ERR_CANCELLED);
            assert_int_equal(res[0].error.status, KVCSA_OK);
            assert_int_equal(kvcsa_session_length(w->s[on][1]), 35);
        }
        w->done[0]++;
        for (int i = 0; i < 5; i++)
            step_all(w, 1);
        check_same(w);
        close_world(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_of_one_row),        cmocka_unit_test(test_steps_of_six_rows),
        cmocka_unit_test(test_steps_from_nothing),      cmocka_unit_test(test_rows_change_between_steps),
        cmocka_unit_test(test_batches_of_any_lengths),  cmocka_unit_test(test_batches_of_six_rows),
        cmocka_unit_test(test_batches_of_similar_size), cmocka_unit_test(test_a_prompt_comes_in_between),
        cmocka_unit_test(test_what_a_step_asks_of_the_device),
        cmocka_unit_test(test_the_workspace_grows),     cmocka_unit_test(test_rewind_and_fork),
        cmocka_unit_test(test_limits_are_not_recorded), cmocka_unit_test(test_cancel),
    };
    int rc;

    model = host_model(T1_DIR);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    kvcsa_model_release(&model);
    return rc;
}
