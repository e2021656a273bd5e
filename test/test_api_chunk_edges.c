/* Chunks of a host: whatever is called wrong, out of turn, without memory or against a request to
 * stop, gives its error and leaves the session as the header says. */
#include "support/fault_alloc.h"
#include "support/heads_host.h"

enum { N = 150 };

static const hh_attention plain = {0};

typedef struct fixture {
    kvcsa_model   *model;
    kvcsa_pool    *pool;
    kvcsa_session *s;
    int32_t        ids[N];
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->model = hh_model(KVCSA_FORMAT_F32, 0);
    f->pool = host_pool(1, 0);
    f->s = hh_session(f->pool, f->model, 0);
    host_tokens(f->ids, N, 3);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    kvcsa_session_release(&f->s);
    host_pool_is_idle(f->pool);
    kvcsa_pool_release(&f->pool);
    kvcsa_model_release(&f->model);
    free(f);
    return 0;
}

static kvcsa_chunk_info begin(kvcsa_session *s, uint32_t max_rows)
{
    kvcsa_chunk_info c = {.struct_size = sizeof c};
    kvcsa_error      err;

    assert_ok(kvcsa_chunk_begin(s, max_rows, &c, &err));
    return c;
}

/* All layers of the open chunk. */
static void run_open(kvcsa_session *s, const kvcsa_chunk_info *c)
{
    kvcsa_error err;

    for (uint32_t l = 0; l < HH_LAYERS; l++) {
        assert_ok(hh_write(s, c, l, plain.how, &err));
        assert_ok(hh_attend(s, c, l, &plain, NULL, &err));
    }
}

static void queue(const fixture *f, size_t n)
{
    kvcsa_error err;

    assert_ok(kvcsa_session_append(f->s, f->ids, n, NULL, NULL, &err));
}

/* ------------------------------------------------------------------ sessions */

static kvcsa_status create(kvcsa_pool *pool, kvcsa_model *m, uint32_t flags, kvcsa_error *err)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    kvcsa_status         st;

    kvcsa_session_params_default(&p, sizeof p);
    p.flags = flags;
    st = kvcsa_session_create(pool, m, &p, &s, err);
    assert_true((st == KVCSA_OK) == (s != NULL));
    kvcsa_session_release(&s);
    return st;
}

static void test_edges_of_sessions(void **state)
{
    const fixture *f = *state;
    kvcsa_model   *t1 = host_model(T1_DIR);
    kvcsa_plan_row row = empty_row(0);
    kvcsa_model   *linear;
    kvcsa_error    err;

    row.state_heads = 4;
    row.state_bytes = 64;
    linear = from_rows(&row, 1, NULL);
    assert_fails(create(f->pool, t1, KVCSA_SESSION_CACHE_ONLY, &err), KVCSA_ERR_ARG, "has weights");
    assert_fails(create(f->pool, f->model, 0, &err), KVCSA_ERR_UNSUPPORTED, "no weights");
    assert_fails(create(f->pool, linear, KVCSA_SESSION_CACHE_ONLY, &err), KVCSA_ERR_UNSUPPORTED,
                 "layer 0: cost only");
    assert_fails(
        create(f->pool, f->model, KVCSA_SESSION_CACHE_ONLY | KVCSA_SESSION_TRACK_MASS, &err),
        KVCSA_ERR_UNSUPPORTED, "TRACK_MASS");
    assert_fails(
        create(f->pool, f->model, KVCSA_SESSION_CACHE_ONLY | KVCSA_SESSION_WINDOW_ONLY, &err),
        KVCSA_ERR_UNSUPPORTED, "layer 0 has no window");
    kvcsa_model_release(&linear);
    kvcsa_model_release(&t1);
}

static void test_edges_of_computed_sessions(void **state)
{
    const fixture       *f = *state;
    kvcsa_model         *t1 = host_model(T1_DIR);
    kvcsa_session       *s = host_session(f->pool, t1, 0), *fork = NULL;
    kvcsa_chunk_info     c = {.struct_size = sizeof c};
    kvcsa_session_params p;
    kvcsa_error          err;

    assert_fails(kvcsa_chunk_begin(s, 0, &c, &err), KVCSA_ERR_ARG, "CACHE_ONLY");
    assert_fails(kvcsa_chunk_commit(s, &err), KVCSA_ERR_ARG, "no chunk is open");
    kvcsa_chunk_abandon(s);
    kvcsa_session_params_default(&p, sizeof p);
    p.flags = KVCSA_SESSION_CACHE_ONLY;
    assert_fails(kvcsa_session_fork(s, 0, &p, &fork, &err), KVCSA_ERR_ARG, "CACHE_ONLY");
    p.flags = 0;
    assert_fails(kvcsa_session_fork(f->s, 0, &p, &fork, &err), KVCSA_ERR_ARG, "CACHE_ONLY");
    /* rows of a session of ours can be read too; both in one step: one refused, one computed */
    queue(f, 4);
    assert_ok(kvcsa_session_append(s, f->ids, 40, NULL, NULL, &err));

    kvcsa_session    *both[2] = {f->s, s};
    kvcsa_step_result results[2];
    float             key[96];

    assert_fails(kvcsa_pool_step(f->pool, both, 2, NULL, results, &err), KVCSA_ERR_UNSUPPORTED,
                 "kvcsa_chunk_begin");
    assert_int_equal(results[1].error.status, KVCSA_OK);
    assert_int_equal(kvcsa_session_length(s), 40);
    assert_int_equal(kvcsa_session_length(f->s), 0);
    assert_ok(kvcsa_session_read_rows(s, 0, KVCSA_READ_WINDOW, 39, 1, key, 96, &err));
    kvcsa_session_release(&s);
    kvcsa_model_release(&t1);
}

/* ------------------------------------------------------------------ out of turn */

static void test_edges_without_a_chunk(void **state)
{
    const fixture        *f = *state;
    float                 x[8] = {0};
    kvcsa_chunk_rows      w = {.struct_size = sizeof w};
    kvcsa_chunk_queries   q = {.struct_size = sizeof q};
    kvcsa_chunk_attention a = {.struct_size = sizeof a, .query.data = x, .out = x, .n_heads = 2};
    kvcsa_chunk_info      c;
    kvcsa_error           err;

    c = begin(f->s, 0);
    assert_int_equal(c.n_rows, 0); /* nothing is queued: none is open */
    assert_fails(kvcsa_chunk_write(f->s, 0, &w, &err), KVCSA_ERR_ARG, "no chunk is open");
    assert_fails(kvcsa_chunk_select(f->s, 0, &q, &err), KVCSA_ERR_ARG, "no chunk is open");
    assert_fails(kvcsa_chunk_attend(f->s, 0, &a, &err), KVCSA_ERR_ARG, "no chunk is open");
    assert_fails(kvcsa_chunk_commit(f->s, &err), KVCSA_ERR_ARG, "no chunk is open");
    kvcsa_chunk_abandon(f->s);
    kvcsa_chunk_abandon(NULL);
}

#define assert_arg(call) assert_int_equal((call), KVCSA_ERR_ARG)

static void test_edges_of_null(void **state)
{
    const fixture        *f = *state;
    kvcsa_chunk_rows      w = {.struct_size = sizeof w};
    kvcsa_chunk_queries   q = {.struct_size = sizeof q};
    kvcsa_chunk_attention a = {.struct_size = sizeof a};
    kvcsa_chunk_info      c = {.struct_size = sizeof c};
    kvcsa_error           err;

    assert_arg(kvcsa_chunk_begin(NULL, 0, &c, NULL));
    assert_arg(kvcsa_chunk_begin(f->s, 0, NULL, &err));
    assert_arg(kvcsa_chunk_begin(f->s, 0, &(kvcsa_chunk_info){0}, &err));
    assert_arg(kvcsa_chunk_write(NULL, 0, &w, NULL));
    assert_arg(kvcsa_chunk_write(f->s, 0, NULL, &err));
    assert_arg(kvcsa_chunk_write(f->s, 0, &(kvcsa_chunk_rows){0}, NULL));
    assert_arg(kvcsa_chunk_select(NULL, 0, &q, NULL));
    assert_arg(kvcsa_chunk_select(f->s, 0, NULL, &err));
    assert_arg(kvcsa_chunk_select(f->s, 0, &(kvcsa_chunk_queries){0}, NULL));
    assert_arg(kvcsa_chunk_attend(NULL, 0, &a, NULL));
    assert_arg(kvcsa_chunk_attend(f->s, 0, NULL, &err));
    assert_arg(kvcsa_chunk_attend(f->s, 0, &(kvcsa_chunk_attention){0}, NULL));
    assert_arg(kvcsa_chunk_commit(NULL, NULL));
    assert_arg(kvcsa_session_read_rows(NULL, 0, KVCSA_READ_KEYS, 0, 0, NULL, 0, NULL));
    assert_arg(kvcsa_session_read_rows(f->s, 0, KVCSA_READ_KEYS, 0, 1, NULL, 9, &err));
}

/* Every call that would look at, or change, a timeline that is being written. */
static void test_edges_busy_while_open(void **state)
{
    const fixture      *f = *state;
    kvcsa_session      *fork = NULL;
    kvcsa_chunk_info    c, another = {.struct_size = sizeof another};
    kvcsa_reuse         reuse = {.struct_size = sizeof reuse};
    kvcsa_session_stats st = {.struct_size = sizeof st};
    kvcsa_step_result   r;
    uint64_t            n_bytes;
    size_t              n;
    kvcsa_session      *s = f->s;
    kvcsa_error         err;

    queue(f, N);
    c = begin(s, 40);
    assert_int_equal(c.n_rows, 40);
    assert_int_equal(c.n_queued, N - 40);
    assert_fails(kvcsa_chunk_begin(s, 0, &another, &err), KVCSA_ERR_BUSY, "a chunk is open");
    assert_fails(kvcsa_session_append(s, f->ids, 1, NULL, NULL, &err), KVCSA_ERR_BUSY, "chunk");
    assert_fails(kvcsa_session_sync(s, f->ids, 1, NULL, NULL, &err), KVCSA_ERR_BUSY, "chunk");
    assert_fails(kvcsa_session_fork(s, 0, NULL, &fork, &err), KVCSA_ERR_BUSY, "chunk");
    assert_fails(kvcsa_session_rewind(s, 0, &err), KVCSA_ERR_BUSY, "chunk");
    assert_fails(kvcsa_session_erase(s, 0, &err), KVCSA_ERR_BUSY, "chunk");
    assert_fails(kvcsa_session_hide(s, 0, 8, 1, &err), KVCSA_ERR_BUSY, "chunk");
    assert_fails(kvcsa_session_get_reuse(s, &reuse, &err), KVCSA_ERR_BUSY, "chunk");
    assert_fails(kvcsa_session_get_stats(s, &st, &err), KVCSA_ERR_BUSY, "chunk");
    assert_fails(kvcsa_session_common_prefix(s, f->ids, 3, &n, &err), KVCSA_ERR_BUSY, "chunk");
    assert_fails(kvcsa_snapshot_size(s, NULL, &n_bytes, &err), KVCSA_ERR_BUSY, "chunk");
    assert_int_equal(kvcsa_pool_step(f->pool, &s, 1, NULL, &r, &err), KVCSA_ERR_BUSY);
    assert_int_equal(kvcsa_session_length(s), 0);
    run_open(s, &c);
    assert_ok(kvcsa_chunk_commit(s, &err));
    assert_int_equal(kvcsa_session_length(s), 40);
    hh_run(s, 0, &plain, NULL);
    assert_int_equal(kvcsa_session_length(s), N);
}

static void test_edges_of_layers(void **state)
{
    const fixture        *f = *state;
    float                 x[4096] = {0};
    kvcsa_chunk_rows      w = {.struct_size = sizeof w};
    kvcsa_chunk_queries   q = {.struct_size = sizeof q, .query.data = x, .weights.data = x};
    kvcsa_chunk_attention a = {
        .struct_size = sizeof a, .query.data = x, .out = x + 2048, .n_heads = 2};
    kvcsa_chunk_info c;
    kvcsa_error      err;

    queue(f, 8);
    c = begin(f->s, 0);
    assert_fails(kvcsa_chunk_write(f->s, HH_LAYERS, &w, &err), KVCSA_ERR_ARG, "layer is 2");
    assert_fails(kvcsa_chunk_write(f->s, 0, &w, &err), KVCSA_ERR_ARG, "layer 0: key is NULL");
    w.key.data = x;
    assert_fails(kvcsa_chunk_write(f->s, 0, &w, &err), KVCSA_ERR_ARG, "layer 0: value is NULL");
    w.value.data = w.window.data = x;
    assert_fails(kvcsa_chunk_write(f->s, 0, &w, &err), KVCSA_ERR_ARG, "window is given");
    w.window.data = NULL;
    w.index_key.data = x;
    assert_fails(kvcsa_chunk_write(f->s, 0, &w, &err), KVCSA_ERR_ARG, "index_key is given");
    w.index_key.data = NULL;
    w.pending.data = x;
    assert_fails(kvcsa_chunk_write(f->s, 0, &w, &err), KVCSA_ERR_ARG, "pending is given");
    w.pending.data = NULL;
    w.flags = 2;
    assert_fails(kvcsa_chunk_write(f->s, 0, &w, &err), KVCSA_ERR_UNSUPPORTED, "flags");
    w.flags = 0;
    w.reserved = 1;
    assert_fails(kvcsa_chunk_write(f->s, 0, &w, &err), KVCSA_ERR_UNSUPPORTED, "reserved");
    w.reserved = 0;
    assert_fails(kvcsa_chunk_select(f->s, 0, &q, &err), KVCSA_ERR_ARG, "makes no selection");
    assert_fails(kvcsa_chunk_attend(f->s, 0, &a, &err), KVCSA_ERR_ARG, "was not written");
    assert_ok(kvcsa_chunk_write(f->s, 0, &w, &err));
    a.n_heads = 3;
    assert_fails(kvcsa_chunk_attend(f->s, 0, &a, &err), KVCSA_ERR_ARG, "multiple of kv_heads, 2");
    a.n_heads = 0;
    assert_fails(kvcsa_chunk_attend(f->s, 0, &a, &err), KVCSA_ERR_ARG, "n_heads is 0");
    a.n_heads = UINT32_MAX - 1;
    assert_fails(kvcsa_chunk_attend(f->s, 0, &a, &err), KVCSA_ERR_ARG, "n_heads");
    a.n_heads = 2;
    a.scale = NAN;
    assert_fails(kvcsa_chunk_attend(f->s, 0, &a, &err), KVCSA_ERR_ARG, "scale");
    a.scale = 0;
    a.out = NULL;
    assert_fails(kvcsa_chunk_attend(f->s, 0, &a, &err), KVCSA_ERR_ARG, "out is NULL");
    assert_fails(kvcsa_chunk_commit(f->s, &err), KVCSA_ERR_ARG, "layer 1 was not written");
    run_open(f->s, &c); /* a second time replaces the first */
    assert_ok(kvcsa_chunk_commit(f->s, &err));
    assert_int_equal(kvcsa_session_length(f->s), 8);
}

/* What a device would take is refused where there is none. */
static void test_edges_of_device_pointers(void **state)
{
    const fixture     *f = *state;
    kvcsa_backend_info b = {.struct_size = sizeof b};
    kvcsa_chunk_rows   w = {.struct_size = sizeof w, .flags = KVCSA_ROWS_ON_DEVICE};
    kvcsa_chunk_info   c;
    kvcsa_error        err;

    queue(f, 8);
    c = begin(f->s, 0);
    assert_int_equal(c.n_rows, 8);
    assert_ok(kvcsa_pool_get_backend(f->pool, &b, &err));
    if (b.memory_bytes == 0)
        assert_fails(kvcsa_chunk_write(f->s, 0, &w, &err), KVCSA_ERR_UNSUPPORTED, "ON_DEVICE");
    kvcsa_chunk_abandon(f->s);
}

static void test_edges_of_reading(void **state)
{
    const fixture *f = *state;
    const size_t   row = HH_KV * HH_WIDTH;
    float          x[16 * HH_KV * HH_WIDTH];
    kvcsa_error    err;

    queue(f, 8);
    hh_run(f->s, 0, &plain, NULL);
    assert_ok(kvcsa_session_read_rows(f->s, 1, KVCSA_READ_KEYS, 0, 8, x, 8 * row, &err));
    assert_ok(kvcsa_session_read_rows(f->s, 1, KVCSA_READ_KEYS, 8, 0, NULL, 0, &err));
    assert_fails(kvcsa_session_read_rows(f->s, 1, KVCSA_READ_KEYS, 0, 8, x, 8 * row - 1, &err),
                 KVCSA_ERR_ARG, "cap is");
    assert_fails(kvcsa_session_read_rows(f->s, 1, KVCSA_READ_KEYS, 1, 8, x, sizeof x, &err),
                 KVCSA_ERR_ARG, "there are 0..8");
    assert_fails(
        kvcsa_session_read_rows(f->s, 1, KVCSA_READ_KEYS, 1, UINT64_MAX, x, sizeof x, &err),
        KVCSA_ERR_ARG, "are asked for");
    assert_fails(
        kvcsa_session_read_rows(f->s, 1, KVCSA_READ_KEYS, UINT64_MAX, 1, x, sizeof x, &err),
        KVCSA_ERR_ARG, "are asked for");
    assert_fails(kvcsa_session_read_rows(f->s, 2, KVCSA_READ_KEYS, 0, 1, x, row, &err),
                 KVCSA_ERR_ARG, "layer is 2");
    assert_fails(kvcsa_session_read_rows(f->s, 0, 0, 0, 1, x, row, &err), KVCSA_ERR_ARG,
                 "what is 0");
    assert_fails(kvcsa_session_read_rows(f->s, 0, 6, 0, 1, x, row, &err), KVCSA_ERR_ARG,
                 "what is 6");
    assert_fails(kvcsa_session_read_rows(f->s, 0, KVCSA_READ_INDEX_KEYS, 0, 1, x, row, &err),
                 KVCSA_ERR_ARG, "layer 0 has no index keys");
    assert_fails(kvcsa_session_read_rows(f->s, 0, KVCSA_READ_WINDOW, 0, 1, x, row, &err),
                 KVCSA_ERR_ARG, "layer 0 has no window");
    assert_fails(kvcsa_session_read_rows(f->s, 0, KVCSA_READ_PENDING, 0, 1, x, row, &err),
                 KVCSA_ERR_ARG, "layer 0 has no pending rows");
    /* of an open chunk: once the layer is written */
    assert_ok(kvcsa_session_append(f->s, f->ids + 8, 4, NULL, NULL, &err));

    const kvcsa_chunk_info c = begin(f->s, 0);

    assert_fails(kvcsa_session_read_rows(f->s, 0, KVCSA_READ_KEYS, 8, 4, x, sizeof x, &err),
                 KVCSA_ERR_ARG, "there are 0..8");
    assert_ok(hh_write(f->s, &c, 0, plain.how, &err));
    assert_ok(kvcsa_session_read_rows(f->s, 0, KVCSA_READ_KEYS, 8, 4, x, 4 * row, &err));
    for (uint32_t i = 0; i < 4 * row; i++)
        assert_true(x[i] == hh_value(HH_KEY, 0, f->ids[8 + i / row], 8 + i / row,
                                     (uint32_t)(i % row / HH_WIDTH), i % HH_WIDTH));
    kvcsa_chunk_abandon(f->s);
    assert_fails(kvcsa_session_read_rows(f->s, 0, KVCSA_READ_KEYS, 8, 4, x, sizeof x, &err),
                 KVCSA_ERR_ARG, "there are 0..8");
}

/* Hidden spans cannot be kept from a layer that attends to all positions. */
static void test_edges_of_hiding(void **state)
{
    const fixture   *f = *state;
    kvcsa_chunk_info c;
    kvcsa_error      err;

    queue(f, 64);
    hh_run(f->s, 0, &plain, NULL);
    assert_ok(kvcsa_session_hide(f->s, 0, 8, 1, &err));
    assert_ok(kvcsa_session_append(f->s, f->ids, 1, NULL, NULL, &err));
    c = begin(f->s, 0);
    assert_ok(hh_write(f->s, &c, 0, plain.how, &err));
    assert_fails(hh_attend(f->s, &c, 0, &plain, NULL, &err), KVCSA_ERR_UNSUPPORTED, "hidden");
    kvcsa_session_cancel(f->s);
    assert_fails(kvcsa_chunk_commit(f->s, &err), KVCSA_ERR_ARG, "layer 1 was not written");
    kvcsa_chunk_abandon(f->s);
    assert_fails(kvcsa_chunk_begin(f->s, 0, &c, &err), KVCSA_ERR_CANCELLED, "64 tokens");
    assert_ok(kvcsa_session_hide(f->s, 0, 8, 0, &err));
    hh_append(f->s, f->ids, 1, 0, &plain, NULL);
}

/* ------------------------------------------------------------------ undone */

static void test_edges_abandon_leaves_the_queue(void **state)
{
    const fixture      *f = *state;
    kvcsa_session_stats st = {.struct_size = sizeof st};
    kvcsa_chunk_info    c;
    kvcsa_error         err;

    queue(f, N);
    for (int i = 0; i < 3; i++) {
        c = begin(f->s, 100);
        assert_int_equal(c.position, 0);
        assert_int_equal(c.n_rows, 100);
        assert_memory_equal(c.tokens, f->ids, 100 * sizeof *f->ids);
        run_open(f->s, &c);
        kvcsa_chunk_abandon(f->s);
        assert_int_equal(kvcsa_session_length(f->s), 0);
        assert_ok(kvcsa_pool_check(f->pool, &err));
    }
    assert_ok(kvcsa_session_get_stats(f->s, &st, &err));
    hh_run(f->s, 0, &plain, NULL);
    assert_int_equal(kvcsa_session_length(f->s), N);
}

static void test_edges_cancel(void **state)
{
    const fixture   *f = *state;
    kvcsa_chunk_info c;
    kvcsa_error      err;

    queue(f, 8);
    hh_run(f->s, 0, &plain, NULL);
    assert_ok(kvcsa_session_append(f->s, f->ids + 8, N - 8, NULL, NULL, &err));
    c = begin(f->s, 40);
    run_open(f->s, &c);
    assert_ok(kvcsa_chunk_commit(f->s, &err));
    assert_int_equal(kvcsa_session_length(f->s), 48);
    c = begin(f->s, 40);
    run_open(f->s, &c);
    kvcsa_session_cancel(f->s); /* while it is open: the commit meets it */
    assert_fails(kvcsa_chunk_commit(f->s, &err), KVCSA_ERR_CANCELLED, "8 tokens");
    assert_int_equal(kvcsa_session_length(f->s), 8);
    assert_int_equal(begin(f->s, 0).n_rows, 0);
    assert_ok(kvcsa_session_append(f->s, f->ids + 8, N - 8, NULL, NULL, &err));
    kvcsa_session_cancel(f->s);
    c = (kvcsa_chunk_info){.struct_size = sizeof c};
    assert_fails(kvcsa_chunk_begin(f->s, 0, &c, &err), KVCSA_ERR_CANCELLED, "8 tokens");
    assert_int_equal(c.n_rows, 0);
    hh_append(f->s, f->ids + 8, N - 8, 0, &plain, NULL);
    assert_int_equal(kvcsa_session_length(f->s), N);
}

static void test_edges_release_with_an_open_chunk(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = hh_session(f->pool, f->model, 5);
    kvcsa_error    err;

    assert_ok(kvcsa_session_append(s, f->ids, N, NULL, NULL, &err));
    assert_int_equal(begin(s, 0).n_rows, 128);
    kvcsa_session_release(&s);
    assert_ok(kvcsa_pool_check(f->pool, &err));
}

/* ------------------------------------------------------------------ without memory */

/* One chunk in the open, whatever fails; 1 = nothing did. */
static int try_chunk(kvcsa_session *s, fault_alloc *fa, uint64_t n)
{
    kvcsa_chunk_info c = {.struct_size = sizeof c};
    kvcsa_error      err;
    kvcsa_status     st;
    uint32_t         l = 0;

    fault_alloc_fail_at(fa, n);
    st = kvcsa_chunk_begin(s, 64, &c, &err);
    for (; l < HH_LAYERS && st == KVCSA_OK; l++) {
        st = hh_write(s, &c, l, (hh_layout){1, 2}, &err);
        if (st == KVCSA_OK)
            st = hh_attend(s, &c, l, &(hh_attention){.how = {1, 2}}, NULL, &err);
    }
    if (st == KVCSA_OK)
        st = kvcsa_chunk_commit(s, &err);
    if (st == KVCSA_OK)
        return 1;
    assert_int_equal(st, KVCSA_ERR_NOMEM);
    fault_alloc_fail_at(fa, 0);
    kvcsa_chunk_abandon(s);
    assert_int_equal(kvcsa_session_length(s), 0);
    return 0;
}

static void test_edges_out_of_memory(void **state)
{
    const fixture    *f = *state;
    fault_alloc       fa;
    kvcsa_pool_params p;
    uint64_t          n = 0;
    int               done = 0;

    fault_alloc_init(&fa);
    kvcsa_pool_params_default(&p, sizeof p);
    p.allocator = &fa.hook;
    p.n_threads = 1;
    while (!done) {
        kvcsa_pool    *pool = NULL;
        kvcsa_session *s;
        kvcsa_error    err;

        assert_ok(kvcsa_pool_create(&p, &pool, &err));
        s = hh_session(pool, f->model, 0);
        assert_ok(kvcsa_session_append(s, f->ids, 64, NULL, NULL, &err));
        done = try_chunk(s, &fa, ++n);
        fault_alloc_fail_at(&fa, 0);
        assert_ok(kvcsa_pool_check(pool, &err));
        if (!done) /* all is there again: it goes on */
            hh_run(s, 0, &plain, NULL);
        assert_int_equal(kvcsa_session_length(s), 64);
        kvcsa_session_release(&s);
        host_pool_is_idle(pool);
        kvcsa_pool_release(&pool);
        assert_true(fault_alloc_is_clean(&fa));
    }
    assert_true(n > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_edges_of_sessions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_edges_of_computed_sessions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_edges_without_a_chunk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_edges_of_null, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_edges_busy_while_open, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_edges_of_layers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_edges_of_device_pointers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_edges_of_reading, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_edges_of_hiding, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_edges_abandon_leaves_the_queue, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_edges_cancel, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_edges_release_with_an_open_chunk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_edges_out_of_memory, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
