/* Histories that went wrong once, one test each, and many short random ones. An exact session has
 * the bits of an undisturbed run, whatever others did. T1 in blocks of 16, public header. */
#include "support/cold.h"
#include "support/fault_alloc.h"
#include "support/prng.h"

#define N_LISTS 5
#define N_SHORT 120 /* tokens of all lists but the first, which has 256 */

static uint64_t seed = 41; /* of the first random game */

typedef struct fixture {
    kvcsa_model *model;
    cold         lists[N_LISTS]; /* the others leave the first one somewhere */
} fixture;

static int set_up(void **state)
{
    static const size_t cut[N_LISTS] = {0, 16, 33, 64, 90};
    fixture            *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->model = host_model_in_blocks(16);
    f->lists[0] = cold_run(f->model, 256, 5);
    for (size_t i = 1; i < N_LISTS; i++)
        f->lists[i] = cold_branch(&f->lists[0], cut[i], N_SHORT - cut[i], 1000 + i);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    for (size_t i = 0; i < N_LISTS; i++)
        cold_free(&f->lists[i]);
    kvcsa_model_release(&f->model);
    free(f);
    return 0;
}

/* ------------------------------------------------------------------ one pool and its sessions */

typedef struct scene {
    kvcsa_model   *model;
    const cold    *c;
    const int32_t *ids;
    kvcsa_pool    *pool;
    kvcsa_session *all[4];
    size_t         n;
} scene;

static scene begin(void **state)
{
    const fixture *f = *state;

    return (scene){f->model, &f->lists[0], f->lists[0].ids, host_pool(1, 0), {NULL}, 0};
}

static void end(scene *k)
{
    while (k->n)
        kvcsa_session_release(&k->all[--k->n]);
    close_pool(k->pool);
}

static kvcsa_session *make_with(scene *k, const kvcsa_session_params *p)
{
    return k->all[k->n++] = make_session(k->pool, k->model, p);
}

static kvcsa_session *make(scene *k, uint32_t slack, uint32_t store)
{
    kvcsa_session_params p = session_defaults();

    p.window_slack_tokens = slack;
    p.window_store_tokens = store;
    return make_with(k, &p);
}

static kvcsa_session *make_decoder(scene *k)
{
    kvcsa_session_params p = session_defaults();

    p.decoder_replay = KVCSA_DECODER_REPLAY_ON;
    p.chunk_tokens = 200;
    return make_with(k, &p);
}

static void append(kvcsa_session *s, const int32_t *ids, size_t n, uint32_t reuse)
{
    kvcsa_append_params p;
    kvcsa_error         err;

    kvcsa_append_params_default(&p, sizeof p);
    p.reuse = reuse;
    assert_ok(kvcsa_session_append(s, ids, n, &p, NULL, &err));
}

static kvcsa_status step_rows(kvcsa_pool *pool, kvcsa_session *s, uint64_t max_rows)
{
    kvcsa_step_params p;

    kvcsa_step_params_default(&p, sizeof p);
    p.max_rows = max_rows;
    return kvcsa_pool_step(pool, &s, 1, &p, NULL, NULL);
}

static void cancel(const scene *k, kvcsa_session *s, uint64_t length)
{
    kvcsa_session_cancel(s);
    assert_int_equal(step_rows(k->pool, s, 0), KVCSA_ERR_CANCELLED);
    assert_int_equal(kvcsa_session_length(s), length);
}

static void fill_up(const scene *k) /* not a byte is left */
{
    const kvcsa_pool_stats st = pool_figures(k->pool);
    kvcsa_error            err;

    assert_ok(kvcsa_pool_resize(k->pool, st.used_bytes + st.reserved_bytes, &err));
}

static void check_same_logits(kvcsa_session *a, kvcsa_session *b)
{
    float x[T1_VOCAB], y[T1_VOCAB];

    host_logits(a, x, T1_VOCAB);
    host_logits(b, y, T1_VOCAB);
    assert_memory_equal(x, y, sizeof x);
}

/* ------------------------------------------------------------------ snapshots in memory */

typedef struct bytes {
    uint8_t data[1 << 20];
    size_t  n, at;
} bytes;

static int32_t put_bytes(void *user, const void *data, size_t n)
{
    bytes *b = user;

    assert_true(n <= sizeof b->data - b->n);
    memcpy(b->data + b->n, data, n);
    b->n += n;
    return 0;
}

static int64_t get_bytes(void *user, void *data, size_t n)
{
    bytes       *b = user;
    const size_t k = (size_t)cold_min(n, b->n - b->at);

    memcpy(data, b->data + b->at, k);
    b->at += k;
    return (int64_t)k;
}

static kvcsa_status save(kvcsa_session *s, bytes *b, uint32_t flags, kvcsa_error *err)
{
    const kvcsa_writer    w = {put_bytes, b};
    kvcsa_snapshot_params p;

    kvcsa_snapshot_params_default(&p, sizeof p);
    p.flags = flags;
    b->n = 0;
    return kvcsa_snapshot_write(s, &w, &p, NULL, err);
}

static kvcsa_status load(kvcsa_session *s, bytes *b, kvcsa_error *err)
{
    const kvcsa_reader r = {get_bytes, b};

    b->at = 0;
    return kvcsa_snapshot_read(s, &r, NULL, NULL, err);
}

/* ------------------------------------------------------------------ approximate and exact */

/* The windows of a bounded replay stayed, but what was made from them was published as exact. */
static void test_rewind_within_the_slack_stays_approximate(void **state)
{
    scene          k = begin(state);
    kvcsa_session *a = make(&k, 0, 0), *b = make(&k, 16, 0), *c = make(&k, 0, 0);

    host_run(k.pool, a, k.ids, 96, NULL);
    append(b, k.ids, 96, KVCSA_REUSE_BOUNDED);
    assert_int_equal(session_reuse(b).n_adopted, 96);
    host_step(k.pool, b);
    host_run(k.pool, b, k.ids + 200, 5, NULL);
    rewind_session(b, 96);
    host_run(k.pool, b, k.ids + 96, 96, NULL);
    assert_int_equal(session_figures(b).n_exact_tokens, 96);
    assert_int_equal(cold_reuse(k.c, k.pool, c, 193, KVCSA_REUSE_DEFAULT).n_adopted, 96);
    end(&k);
}

/* A replay was planned for an append; cancelled behind it, the windows lacked the append's rows. */
static void test_cancel_behind_a_decoder_replay(void **state)
{
    scene          k = begin(state);
    kvcsa_session *s = make_decoder(&k), *t;

    host_run(k.pool, s, k.ids, 200, NULL);
    k.all[k.n++] = t = fork_session(s, 100);
    host_step(k.pool, t);
    rewind_session(s, 100);
    append(s, k.ids + 200, 50, KVCSA_REUSE_DEFAULT);
    assert_int_equal(step_rows(k.pool, s, 100), KVCSA_OK); /* the replay and no more */
    assert_int_equal(session_figures(s).n_queued, 50);
    cancel(&k, s, 100);
    host_step(k.pool, s);
    check_same_logits(s, t);
    host_run(k.pool, s, k.ids + 210, 3, NULL);
    host_run(k.pool, t, k.ids + 210, 3, NULL);
    check_same_logits(s, t);
    end(&k);
}

/* Exact sessions, loaded or forked, took windows that decoder replay had made. */
static void test_exact_sessions_refuse_decoder_windows(void **state)
{
    const kvcsa_session_params exact = session_defaults();
    scene                      k = begin(state), other = begin(state);
    kvcsa_session             *d = make_decoder(&k), *e = make(&other, 0, 0), *t = NULL;
    bytes                      b;
    kvcsa_error                err;

    host_run(k.pool, d, k.ids, 200, NULL);
    assert_ok(save(d, &b, KVCSA_SNAPSHOT_WINDOW, &err));
    assert_ok(load(e, &b, &err));
    cold_extend(k.c, other.pool, e, 203);
    assert_ok(kvcsa_session_fork(d, 200, &exact, &t, &err));
    k.all[k.n++] = t;
    cold_extend(k.c, k.pool, t, 203);
    end(&k);
    end(&other);
}

/* ------------------------------------------------------------------ what is left behind */

/* The mark of an append that was adopted whole stayed; a cancel after a rewind went back to it. */
static void test_rewind_forgets_the_mark(void **state)
{
    scene          k = begin(state);
    kvcsa_session *a = make(&k, 0, 0), *b = make(&k, 0, 0);

    host_run(k.pool, a, k.ids, 200, NULL);
    host_run(k.pool, b, k.ids, 40, NULL);
    append(b, k.ids + 40, 152, KVCSA_REUSE_DEFAULT);
    assert_int_equal(step_rows(k.pool, b, 5), KVCSA_OK);
    assert_int_equal(kvcsa_session_length(b), 192);
    rewind_session(b, 20);
    append(b, k.ids + 220, 10, KVCSA_REUSE_DEFAULT);
    assert_int_equal(step_rows(k.pool, b, 10), KVCSA_OK);
    cancel(&k, b, 20);
    host_step(k.pool, b);
    cold_check(k.c, b);
    end(&k);
}

/* A load kept what the replay of the old timeline had reserved. */
static void test_load_gives_back_what_a_replay_reserved(void **state)
{
    scene          k = begin(state);
    kvcsa_session *s = make(&k, 64, 0);
    bytes          b;
    kvcsa_error    err;

    host_run(k.pool, s, k.ids, 240, NULL);
    assert_ok(save(s, &b, KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS, &err));
    rewind_session(s, 100);
    assert_int_equal(step_rows(k.pool, s, 1), KVCSA_OK);
    assert_true(pool_figures(k.pool).reserved_bytes > 0);
    assert_ok(load(s, &b, &err));
    assert_int_equal(pool_figures(k.pool).reserved_bytes, 0);
    assert_int_equal(session_figures(s).n_replay, 0);
    cold_check(k.c, s);
    end(&k);
}

/* A sync that found no room began the replay under way anew. */
static void test_failed_sync_keeps_the_replay(void **state)
{
    scene          k = begin(state);
    kvcsa_session *s = make(&k, 0, 0);
    kvcsa_error    err;

    host_run(k.pool, s, k.ids, 40, NULL);
    rewind_session(s, 30);
    assert_int_equal(step_rows(k.pool, s, 10), KVCSA_OK);
    assert_int_equal(session_figures(s).n_replay, 20);
    fill_up(&k);
    assert_fails(kvcsa_session_sync(s, k.ids, 250, NULL, NULL, &err), KVCSA_ERR_FULL, "budget");
    assert_int_equal(session_figures(s).n_replay, 20);
    host_step(k.pool, s);
    cold_check(k.c, s);
    end(&k);
}

/* A secure erase rolled the append back first: the blocks it had sealed stayed known. */
static void test_secure_erase_of_half_an_append(void **state)
{
    scene          k = begin(state);
    kvcsa_session *s = make(&k, 0, 0);
    size_t         n = 0;
    kvcsa_error    err;

    append(s, k.ids, 100, KVCSA_REUSE_DEFAULT);
    assert_int_equal(step_rows(k.pool, s, 40), KVCSA_OK);
    assert_ok(kvcsa_prefix_match(k.pool, k.model, 0, k.ids, 100, &n, &err));
    assert_int_equal(n, 32);
    assert_ok(kvcsa_session_erase(s, KVCSA_ERASE_SECURE, &err));
    assert_ok(kvcsa_prefix_match(k.pool, k.model, 0, k.ids, 100, &n, &err));
    assert_int_equal(n, 0);
    assert_int_equal(pool_figures(k.pool).used_bytes, 0);
    end(&k);
}

/* ------------------------------------------------------------------ what is reserved */

/* A window stored at the border of two queued appends: the copies of its pages were not counted. */
static void test_stored_window_between_two_appends(void **state)
{
    scene                k = begin(state);
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s;

    p.chunk_tokens = 3;
    p.window_store_tokens = 16;
    s = make_with(&k, &p);
    host_run(k.pool, s, k.ids, 10, NULL);
    append(s, k.ids + 10, 6, KVCSA_REUSE_DEFAULT);
    append(s, k.ids + 16, 1, KVCSA_REUSE_DEFAULT);
    host_step(k.pool, s);
    assert_int_equal(pool_figures(k.pool).reserved_bytes, 0);
    cold_check(k.c, s);
    end(&k);
}

/* A chunk without memory had used up the copies that the next, smaller chunks rely on. */
static void test_no_memory_then_smaller_chunks(void **state)
{
    int hit = 1;

    for (uint64_t at = 1; hit; at++) {
        scene             k = begin(state);
        kvcsa_pool_params pp;
        kvcsa_session    *s;
        kvcsa_status      st;
        fault_alloc       fa;

        fault_alloc_init(&fa);
        kvcsa_pool_params_default(&pp, sizeof pp);
        pp.allocator = &fa.hook;
        pp.n_threads = 1;
        kvcsa_pool_release(&k.pool);
        assert_int_equal(kvcsa_pool_create(&pp, &k.pool, NULL), KVCSA_OK);
        s = make(&k, 0, 0);
        append(s, k.ids, 9, KVCSA_REUSE_DEFAULT);
        fault_alloc_fail_at(&fa, at);
        fa.keep_failing = 1;
        st = step_rows(k.pool, s, 0);
        hit = fault_alloc_hit(&fa);
        assert_int_equal(st, hit ? KVCSA_ERR_NOMEM : KVCSA_OK);
        assert_true(hit || at > 14); /* it was the 14th once */
        fault_alloc_fail_at(&fa, 0);
        assert_int_equal(step_rows(k.pool, s, 1), KVCSA_OK);
        assert_int_equal(step_rows(k.pool, s, 1), KVCSA_OK);
        host_step(k.pool, s);
        cold_check(k.c, s);
        end(&k);
        assert_true(fault_alloc_is_clean(&fa));
    }
}

/* All tokens adopted, on a stored window: the last row, for its logits, had no page reserved. */
static void test_hit_on_a_stored_window_in_a_full_pool(void **state)
{
    scene          k = begin(state);
    kvcsa_session *a = make(&k, 0, 16), *b = make(&k, 0, 16);

    host_run(k.pool, a, k.ids, 16, NULL);
    append(b, k.ids, 16, KVCSA_REUSE_DEFAULT);
    assert_int_equal(session_reuse(b).n_adopted, 16);
    fill_up(&k);
    host_step(k.pool, b);
    cold_check(k.c, b);
    end(&k);
}

/* The last row alone writes to pages that the session has; new ones were asked for. */
static void test_last_row_in_a_full_pool(void **state)
{
    scene          k = begin(state);
    kvcsa_session *s = make(&k, 16, 0);

    host_run(k.pool, s, k.ids, 100, NULL);
    rewind_session(s, 98);
    fill_up(&k);
    host_step(k.pool, s);
    cold_check(k.c, s);
    end(&k);
}

/* Less slack, as many pages: a stored window that such a session took was said to reach back
 * further than it did. */
static void test_stored_window_of_another_slack(void **state)
{
    scene          k = begin(state);
    kvcsa_session *q = make(&k, 0, 0), *a = make(&k, 32, 64), *b = make(&k, 20, 64);
    kvcsa_session *d = make(&k, 32, 0);
    cold           branch = cold_branch(k.c, 52, 2, 31);
    bytes          saved;
    kvcsa_error    err;

    host_run(k.pool, q, k.ids, 100, NULL);
    host_run(k.pool, a, k.ids, 60, NULL); /* adopted: rows in front of the window are not there */
    append(a, k.ids + 60, 10, KVCSA_REUSE_NONE);
    host_step(k.pool, a); /* stores at 64 */
    append(b, k.ids, 64, KVCSA_REUSE_DEFAULT);
    assert_int_equal(session_reuse(b).n_adopted, 64);
    assert_int_equal(session_reuse(b).n_replay, 1);
    host_step(k.pool, b);
    assert_ok(save(b, &saved, KVCSA_SNAPSHOT_WINDOW, &err));
    assert_ok(load(d, &saved, &err));
    rewind_session(d, 52);
    cold_extend(&branch, k.pool, d, 54);
    cold_free(&branch);
    end(&k);
}

/* ------------------------------------------------------------------ random calls */

typedef struct player { /* what a session is to hold */
    kvcsa_session *s;
    const cold    *c;
    uint64_t       n, total;
    int            loose; /* approximate: bits are not compared */
} player;

typedef struct game {
    const fixture *f;
    kvcsa_pool    *pool;
    prng           r;
    fault_alloc    fa;
    player         p[3], saved;
    bytes          bin;
    int            limited;
    kvcsa_error    err;
} game;

static uint64_t below(game *g, uint64_t n)
{
    return prng_below(&g->r, n);
}

static int went(game *g, kvcsa_status st)
{
    if (st != KVCSA_OK && !(st == KVCSA_ERR_FULL && g->limited) &&
        !(st == KVCSA_ERR_NOMEM && fault_alloc_hit(&g->fa)))
        fail_msg("%s: %s", kvcsa_status_name(st), g->err.text);
    return st == KVCSA_OK;
}

static void play_make(game *g, player *p)
{
    kvcsa_session_params sp = session_defaults();

    sp.chunk_tokens = (uint32_t)below(g, 40); /* 0 is 128 */
    sp.window_slack_tokens = 16 * (uint32_t)below(g, 3);
    sp.window_store_tokens = 16 * (uint32_t)below(g, 3);
    sp.reuse = (uint32_t)below(g, 4);
    sp.decoder_replay = below(g, 8) ? KVCSA_DECODER_REPLAY_OFF : KVCSA_DECODER_REPLAY_ON;
    *p = (player){.c = g->f->lists};
    p->loose = sp.reuse == KVCSA_REUSE_BOUNDED || sp.decoder_replay == KVCSA_DECODER_REPLAY_ON;
    (void)went(g, kvcsa_session_create(g->pool, g->f->model, &sp, &p->s, &g->err));
}

/* More tokens of a list that begins with those held; where none waits, perhaps of any list. */
static void play_append(game *g, player *p)
{
    const int           sync = p->n == p->total && below(g, 3) == 0;
    const cold         *c = &g->f->lists[below(g, N_LISTS)];
    kvcsa_append_params ap;
    uint64_t            kept = 0, to;
    kvcsa_status        st;

    while (kept < p->total && c->ids[kept] == p->c->ids[kept])
        kept++;
    if (!sync && kept < p->total) {
        c = p->c;
        kept = p->total;
    }
    to = sync ? below(g, N_SHORT + 1) : cold_min(kept + 1 + below(g, 30), N_SHORT);
    kept = cold_min(kept, to);
    kvcsa_append_params_default(&ap, sizeof ap);
    ap.reuse = (uint32_t)below(g, 4);
    st = sync ? kvcsa_session_sync(p->s, c->ids, to, &ap, NULL, &g->err)
              : kvcsa_session_append(p->s, c->ids + kept, to - kept, &ap, NULL, &g->err);
    if (!went(g, st))
        return;
    *p = (player){p->s, c, sync ? kept : p->n, to, p->loose};
    p->loose |= session_reuse(p->s).how == KVCSA_REUSE_BOUNDED && session_reuse(p->s).n_adopted;
}

/* All at once, under a limit, one cancelled. Only a session without a queue may find no room. */
static void play_step(game *g)
{
    player *const     stop = g->fa.fail_at ? NULL : &g->p[below(g, 3)];
    kvcsa_session    *all[3];
    kvcsa_step_result res[3];
    kvcsa_step_params sp;
    size_t            n = 0, i = 0;
    float             row[T1_VOCAB];

    kvcsa_step_params_default(&sp, sizeof sp);
    sp.max_rows = below(g, 2) * (1 + below(g, 30));
    for (player *p = g->p; p < g->p + 3; p++) {
        if (p->s)
            all[n++] = p->s;
        if (p == stop && sp.max_rows == 0 && p->n < p->total)
            kvcsa_session_cancel(p->s);
    }
    (void)kvcsa_pool_step(g->pool, all, n, &sp, res, &g->err);
    for (player *p = g->p; p < g->p + 3; p++) {
        if (!p->s)
            continue;
        g->err = res[i++].error;
        if (g->err.status == KVCSA_ERR_CANCELLED && p == stop) {
            assert_true(kvcsa_session_length(p->s) <= p->total);
            p->total = kvcsa_session_length(p->s);
        } else if (went(g, g->err.status) && sp.max_rows == 0) {
            assert_int_equal(kvcsa_session_length(p->s), p->total);
            if (p->total && !p->loose)
                host_logits(p->s, row, T1_VOCAB);
        }
        assert_true(g->err.status != KVCSA_ERR_FULL || p->n == p->total);
        p->n = kvcsa_session_length(p->s);
    }
}

static void play_idle(game *g, player *p, player *other) /* no token waits */
{
    const uint64_t any = below(g, p->n + 1), at = below(g, 2) ? any : p->n - any / 8;

    switch (below(g, 6)) {
    default:
        if (went(g, kvcsa_session_rewind(p->s, at, &g->err)))
            p->n = p->total = at;
        break;
    case 1:
        if (p == other)
            break;
        kvcsa_session_release(&other->s);
        *other = (player){NULL, p->c, at, at, p->loose};
        (void)went(g, kvcsa_session_fork(p->s, at, NULL, &other->s, &g->err));
        break;
    case 2:
        g->saved.s = NULL;
        if (went(g, save(p->s, &g->bin, (uint32_t)below(g, 4), &g->err)))
            g->saved = *p;
        break;
    case 3:
        if (g->saved.s && went(g, load(p->s, &g->bin, &g->err)))
            *p = (player){p->s, g->saved.c, g->saved.n, g->saved.n, p->loose | g->saved.loose};
        break;
    case 4:
        (void)went(g, kvcsa_session_erase(p->s, (uint32_t)below(g, 2), &g->err));
        p->n = p->total = 0;
    }
}

static void check_players(game *g)
{
    int32_t ids[N_SHORT];
    float   row[T1_VOCAB];
    size_t  n;
    int     busy = 0;

    fault_alloc_fail_at(&g->fa, 0);
    check_pool(g->pool);
    for (const player *p = g->p; p < g->p + 3; p++) {
        kvcsa_session_stats st;

        if (!p->s)
            continue;
        st = session_figures(p->s);
        busy |= st.n_queued || st.n_replay;
        assert_int_equal(st.n_queued, p->total - p->n);
        assert_int_equal(kvcsa_session_get_tokens(p->s, 0, ids, N_SHORT, &n, NULL), KVCSA_OK);
        assert_int_equal(n, p->n);
        assert_memory_equal(ids, p->c->ids, n * sizeof *ids);
        assert_true(p->loose || st.n_exact_tokens == n);
        if (n && !p->loose && !kvcsa_session_get_logits(p->s, row, T1_VOCAB, NULL))
            cold_check_rows(p->c, n - 1, row, 1);
    }
    assert_true(busy || pool_figures(g->pool).reserved_bytes == 0);
}

static void play_game(game *g)
{
    kvcsa_pool_params pp;

    fault_alloc_init(&g->fa);
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &g->fa.hook;
    pp.n_threads = 1;
    g->limited = below(g, 3) > 0;
    pp.budget_bytes = g->limited ? 30000 + below(g, 150000) : 0;
    assert_int_equal(kvcsa_pool_create(&pp, &g->pool, NULL), KVCSA_OK);
    for (uint64_t i = 10 + below(g, 25); i > 0; i--) {
        player        *p = &g->p[below(g, 3)];
        const uint64_t what = below(g, 12);

        g->fa.keep_failing = (int)below(g, 2);
        if (below(g, 8) == 0)
            fault_alloc_fail_at(&g->fa, 1 + below(g, 30));
        if (!p->s)
            play_make(g, p);
        else if (what < 5 && p->total < N_SHORT)
            play_append(g, p);
        else if (what < 8)
            play_step(g);
        else if (what < 11 && p->n == p->total)
            play_idle(g, p, &g->p[below(g, 3)]);
        else
            (void)went(g, kvcsa_pool_trim(g->pool, below(g, 50000), NULL, &g->err));
        check_players(g);
    }
    assert_int_equal(kvcsa_pool_resize(g->pool, 0, NULL), KVCSA_OK);
    for (player *p = g->p; p < g->p + 3; p++) { /* all go on as if nothing had been */
        if (!p->s)
            continue;
        host_step(g->pool, p->s);
        if (!p->loose && p->total + 3 <= N_SHORT)
            cold_extend(p->c, g->pool, p->s, p->total += 3);
        p->n = p->total;
        check_players(g);
        kvcsa_session_release(&p->s);
    }
    close_pool(g->pool);
    assert_true(fault_alloc_is_clean(&g->fa));
}

/* Sessions that share, fork, save, load, lose their room and their memory: no bit tells. */
static void test_random_calls_keep_every_bit(void **state)
{
    game *g = malloc(sizeof *g);

    assert_non_null(g);
    for (uint64_t i = 0; i < 40; i++) {
        memset(g, 0, sizeof *g);
        g->f = *state;
        prng_init(&g->r, seed + i);
        play_game(g);
    }
    free(g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rewind_within_the_slack_stays_approximate),
        cmocka_unit_test(test_cancel_behind_a_decoder_replay),
        cmocka_unit_test(test_exact_sessions_refuse_decoder_windows),
        cmocka_unit_test(test_rewind_forgets_the_mark),
        cmocka_unit_test(test_load_gives_back_what_a_replay_reserved),
        cmocka_unit_test(test_failed_sync_keeps_the_replay),
        cmocka_unit_test(test_secure_erase_of_half_an_append),
        cmocka_unit_test(test_stored_window_between_two_appends),
        cmocka_unit_test(test_no_memory_then_smaller_chunks),
        cmocka_unit_test(test_hit_on_a_stored_window_in_a_full_pool),
        cmocka_unit_test(test_last_row_in_a_full_pool),
        cmocka_unit_test(test_stored_window_of_another_slack),
        cmocka_unit_test(test_random_calls_keep_every_bit),
    };

    seed = prng_seed(argc, argv, seed);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
