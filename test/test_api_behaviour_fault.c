/* What users of such libraries run into (test/README.md): memory that is not there, calls that are
 * wrong, callers that are older, one session of many that fails. */
#include "support/cold_fixture.h"
#include "support/fault_alloc.h"
#include "support/test_backend.h"

#define N 200
#define HELD 20   /* tokens of a small session */
#define LARGE 140 /* and of one with a full block */

static int set_up(void **state)
{
    fixture *f = fixture_make(N, 601);

    f->other = cold_branch(&f->cold, 10, 30, 602);
    *state = f;
    return 0;
}

/* ------------------------------------------------------------------ 39: allocations fail */

typedef struct host {
    const fixture *f;
    fault_alloc    fa;
    kvcsa_pool    *pool;
    kvcsa_session *s, *out; /* out: what an operation makes */
} host;

static void make_host(host *h, const fixture *f, uint64_t held, uint32_t flags)
{
    kvcsa_pool_params    pp;
    kvcsa_session_params p = session_defaults();
    kvcsa_error          err;

    *h = (host){.f = f};
    fault_alloc_init(&h->fa);
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &h->fa.hook;
    pp.n_threads = 1;
    pp.flags = KVCSA_POOL_FILL_FREED;
    assert_ok(kvcsa_pool_create(&pp, &h->pool, &err));
    p.chunk_tokens = 16;
    p.flags = flags;
    p.window_store_tokens = 128;
    h->s = make_session(h->pool, f->model, &p);
    if (held)
        host_run(h->pool, h->s, f->cold.ids, held, NULL);
}

static void drop_host(host *h)
{
    kvcsa_session_release(&h->out);
    kvcsa_session_release(&h->s);
    close_pool(h->pool);
    assert_true(fault_alloc_is_clean(&h->fa));
}

typedef struct operation {
    const char *name;
    kvcsa_status (*call)(host *h, kvcsa_error *err);
    void (*check)(host *h); /* that it has done its work; may be NULL */
    uint64_t held;          /* tokens of the session at the beginning */
    uint32_t flags;         /* of the session */
    uint32_t min_allocs;    /* it makes at least so many; 0 = it may make none */
    int      cannot_fail;   /* the header names no ERR_NOMEM */
} operation;

static kvcsa_status call_create(host *h, kvcsa_error *err)
{
    return kvcsa_session_create(h->pool, h->f->model, NULL, &h->out, err);
}

static void check_create(host *h)
{
    cold_extend(&h->f->cold, h->pool, h->out, 3);
}

static kvcsa_status call_append(host *h, kvcsa_error *err)
{
    static const uint32_t rows[] = {3, 9};
    static host_rows      none; /* takes nothing */
    kvcsa_append_params   p;

    kvcsa_append_params_default(&p, sizeof p);
    p.logits = KVCSA_LOGITS_ROWS;
    p.rows = rows;
    p.n_rows = 2;
    p.on_logits = host_rows_take;
    p.user = &none;
    return kvcsa_session_append(h->s, h->f->cold.ids + h->f->cold.n - 100, 30, &p, NULL, err);
}

static void check_append(host *h)
{
    assert_int_equal(session_figures(h->s).n_queued, 30);
    kvcsa_session_cancel(h->s);
    assert_int_equal(kvcsa_pool_step(h->pool, &h->s, 1, NULL, NULL, NULL), KVCSA_ERR_CANCELLED);
}

static kvcsa_status call_fork_end(host *h, kvcsa_error *err)
{
    return kvcsa_session_fork(h->s, kvcsa_session_length(h->s), NULL, &h->out, err);
}

static kvcsa_status call_fork_earlier(host *h, kvcsa_error *err)
{
    return kvcsa_session_fork(h->s, 7, NULL, &h->out, err);
}

static void check_fork(host *h)
{
    cold_extend(&h->f->cold, h->pool, h->out, kvcsa_session_length(h->out) + 2);
}

static kvcsa_status call_rewind(host *h, kvcsa_error *err)
{
    return kvcsa_session_rewind(h->s, 7, err);
}

static kvcsa_status call_sync(host *h, kvcsa_error *err)
{
    kvcsa_reuse r = {.struct_size = sizeof r};

    return kvcsa_session_sync(h->s, h->f->other.ids, 40, NULL, &r, err);
}

static void check_sync(host *h)
{
    host_step(h->pool, h->s);
    cold_check(&h->f->other, h->s);
}

/* Away from the list and back to more of it: a hit with a stored window. */
static kvcsa_status call_sync_hit(host *h, kvcsa_error *err)
{
    assert_int_equal(kvcsa_session_length(h->s) >= LARGE, 1);
    if (!h->out && call_create(h, err) != KVCSA_OK)
        return err->status;
    return kvcsa_session_sync(h->out, h->f->cold.ids, 135, NULL, NULL, err);
}

static void check_sync_hit(host *h)
{
    assert_int_equal(session_reuse(h->out).n_adopted, 128);
    host_step(h->pool, h->out);
    cold_check(&h->f->cold, h->out);
}

static kvcsa_status call_common(host *h, kvcsa_error *err)
{
    size_t             n = 0;
    const kvcsa_status st = kvcsa_session_common_prefix(h->s, h->f->other.ids, 40, &n, err);

    if (st == KVCSA_OK)
        assert_int_equal(n, 10);
    return st;
}

static kvcsa_status call_match(host *h, kvcsa_error *err)
{
    size_t             n = 0;
    const kvcsa_status st = kvcsa_prefix_match(h->pool, h->f->model, 0, h->f->cold.ids, N, &n, err);

    if (st == KVCSA_OK)
        assert_int_equal(n, 128);
    return st;
}

static kvcsa_status call_publish(host *h, kvcsa_error *err)
{
    uint64_t           n = 0;
    const kvcsa_status st = kvcsa_prefix_publish(h->s, &n, err);

    if (st == KVCSA_OK)
        assert_true(n == 128 || fault_alloc_hit(&h->fa)); /* then they stay private */
    return st;
}

static kvcsa_status call_pin(host *h, kvcsa_error *err)
{
    return kvcsa_prefix_pin(h->pool, h->f->model, 0, h->f->cold.ids, N, NULL, err);
}

static kvcsa_status call_pin_unpin(host *h, kvcsa_error *err)
{
    const kvcsa_status st = call_pin(h, err);

    return st ? st : kvcsa_prefix_unpin(h->pool, h->f->model, 0, h->f->cold.ids, 128, err);
}

static kvcsa_status call_forget(host *h, kvcsa_error *err)
{
    return kvcsa_prefix_forget(h->pool, h->f->model, 0, h->f->cold.ids, N, NULL, err);
}

static kvcsa_status call_erase(host *h, kvcsa_error *err)
{
    return kvcsa_session_erase(h->s, 0, err);
}

static kvcsa_status call_erase_secure(host *h, kvcsa_error *err)
{
    return kvcsa_session_erase(h->s, KVCSA_ERASE_SECURE, err);
}

static kvcsa_status call_trim(host *h, kvcsa_error *err)
{
    return kvcsa_pool_trim(h->pool, 0, NULL, err);
}

static kvcsa_status call_resize(host *h, kvcsa_error *err)
{
    return kvcsa_pool_resize(h->pool, 1 << 20, err);
}

static const operation operations[] = {
    {"create", call_create, check_create, HELD, 0, 3, 0},
    {"append", call_append, check_append, HELD, 0, 1, 0},
    {"append with a full block", call_append, check_append, LARGE, 0, 1, 0},
    {"fork", call_fork_end, check_fork, HELD, 0, 1, 0},
    {"fork earlier", call_fork_earlier, check_fork, HELD, 0, 1, 0},
    {"rewind", call_rewind, NULL, HELD, 0, 0, 1},
    {"sync", call_sync, check_sync, HELD, 0, 1, 0},
    {"sync with a hit", call_sync_hit, check_sync_hit, LARGE, 0, 3, 0},
    {"common prefix", call_common, NULL, HELD, 0, 0, 1},
    {"match", call_match, NULL, LARGE, 0, 0, 1},
    {"publish", call_publish, NULL, LARGE, KVCSA_SESSION_PRIVATE, 0, 1},
    {"pin", call_pin, NULL, LARGE, 0, 0, 1},
    {"pin and unpin", call_pin_unpin, NULL, LARGE, 0, 0, 1},
    {"forget", call_forget, NULL, LARGE, 0, 0, 1},
    {"erase", call_erase, NULL, LARGE, 0, 0, 1},
    {"erase all traces", call_erase_secure, NULL, LARGE, 0, 0, 1},
    {"trim", call_trim, NULL, LARGE, 0, 0, 1},
    {"resize", call_resize, NULL, LARGE, 0, 0, 1},
};

/* Fails the n-th allocation of one operation; 1 if none failed. */
static int fail_once(const fixture *f, const operation *op, uint64_t n)
{
    host                h;
    kvcsa_session_stats before, after;
    kvcsa_error         err = {0};
    kvcsa_status        st;
    int                 hit;

    make_host(&h, f, op->held, op->flags);
    before = session_figures(h.s);
    fault_alloc_fail_at(&h.fa, n);
    st = op->call(&h, &err);
    hit = fault_alloc_hit(&h.fa);
    fault_alloc_fail_at(&h.fa, 0);
    if (st != KVCSA_OK) {
        if (st != KVCSA_ERR_NOMEM || op->cannot_fail)
            fail_msg("%s, allocation %u: %s: %s", op->name, (unsigned)n, kvcsa_status_name(st),
                     err.text);
        assert_true(hit);
        after = session_figures(h.s);
        assert_memory_equal(&after, &before, sizeof after);
        assert_int_equal(pool_figures(h.pool).reserved_bytes, 0);
        cold_check(&f->cold, h.s);
        check_pool(h.pool);
        st = op->call(&h, &err); /* the same call again */
        if (st != KVCSA_OK)
            fail_msg("%s again: %s", op->name, err.text);
    }
    check_pool(h.pool);
    if (op->check)
        op->check(&h);
    if (kvcsa_session_length(h.s) && !session_figures(h.s).n_queued && op->call != call_sync)
        cold_extend(&f->cold, h.pool, h.s, kvcsa_session_length(h.s) + 1); /* the next token */
    drop_host(&h);
    return !hit;
}

static void test_behaviour_39_calls(void **state)
{
    const fixture *f = *state;

    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        uint64_t n = 1;

        while (!fail_once(f, &operations[i], n))
            n++;
        if (n - 1 < operations[i].min_allocs || n > 200)
            fail_msg("%s makes %u allocations", operations[i].name, (unsigned)n - 1);
    }
}

/* Steps: what was committed stays, the rest is queued, and the same call goes on. `how`: plain,
 * after a rewind (replay), after a hit (adopts). Returns 1 if none failed. */
static int fail_in_step(const fixture *f, int how, uint64_t n)
{
    host         h;
    kvcsa_error  err;
    kvcsa_status st;
    int          hit;
    uint64_t     from, to;

    make_host(&h, f, how == 2 ? 130 : how == 1 ? 30 : 0, 0);
    if (how == 2) {
        assert_ok(call_create(&h, &err));
    } else {
        h.out = h.s;
        h.s = NULL;
        if (how == 1)
            rewind_session(h.out, 9);
    }
    from = kvcsa_session_length(h.out);
    to = how == 2 ? 133 : 25;
    assert_ok(kvcsa_session_append(h.out, f->cold.ids + from, to - from, NULL, NULL, &err));
    fault_alloc_fail_at(&h.fa, n);
    st = kvcsa_pool_step(h.pool, &h.out, 1, NULL, NULL, &err);
    hit = fault_alloc_hit(&h.fa);
    fault_alloc_fail_at(&h.fa, 0);
    if (st != KVCSA_OK) {
        const kvcsa_session_stats ss = session_figures(h.out);

        assert_int_equal(st, KVCSA_ERR_NOMEM);
        assert_true(hit);
        assert_int_equal(ss.n_tokens + ss.n_queued, to);
        assert_int_equal(ss.n_blocks, (ss.n_tokens + 127) / 128);
        check_pool(h.pool);
        host_step(h.pool, h.out);
    }
    assert_int_equal(kvcsa_session_length(h.out), to);
    cold_check(&f->cold, h.out);
    drop_host(&h);
    return !hit;
}

static void test_behaviour_39_steps(void **state)
{
    const fixture *f = *state;

    for (int how = 0; how < 3; how++) {
        uint64_t n = 1, runs = 0;

        for (; !fail_in_step(f, how, n); n += n < (how == 2 ? 6 : 12) ? 1 : 9)
            runs++;
        assert_true(runs > (test_backend_dir() ? 2 : 8)); /* a device takes its scratch elsewhere */
    }
}

/* A pool cannot be had in pieces either. */
static void test_behaviour_39_pool(void **state)
{
    fault_alloc       fa;
    kvcsa_pool_params pp;
    uint64_t          n = 1;

    (void)state;
    fault_alloc_init(&fa);
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &fa.hook;
    pp.n_threads = 3;
    for (;; n++) {
        kvcsa_pool  *pool = NULL;
        kvcsa_error  err;
        kvcsa_status st;

        fault_alloc_fail_at(&fa, n);
        st = kvcsa_pool_create(&pp, &pool, &err);
        if (st == KVCSA_OK)
            assert_int_equal(fault_alloc_hit(&fa), 0);
        else
            assert_int_equal(st, KVCSA_ERR_NOMEM);
        kvcsa_pool_release(&pool);
        assert_true(fault_alloc_is_clean(&fa));
        if (st == KVCSA_OK)
            break;
    }
    assert_in_range(n, 3, 100);
}

/* ------------------------------------------------------------------ 40 */

static void test_behaviour_40(void **state)
{
    const fixture *f = *state;
    host           h;
    size_t         bytes = 0;
    uint64_t       calls = 0;
    kvcsa_error    err;

    make_host(&h, f, 30, 0);
    for (int i = 0; i < 1000; i++) {
        const uint64_t before = h.fa.n_total;
        kvcsa_session *s = host_session(h.pool, f->model, 0), *t;

        assert_ok(kvcsa_session_append(s, f->cold.ids, 100, NULL, NULL, &err));
        t = fork_session(h.s, (uint64_t)i % 31);
        rewind_session(t, (uint64_t)i % 31 / 2);
        if (i % 2)
            assert_ok(kvcsa_session_erase(s, (uint32_t)i / 2 % 2, &err));
        kvcsa_session_release(i % 3 ? &s : &t);
        kvcsa_session_release(i % 3 ? &t : &s);
        if (i == 3) {
            bytes = h.fa.n_bytes;
            calls = h.fa.n_total - before;
        } else if (i > 3) {
            assert_int_equal(h.fa.n_bytes, bytes);
            assert_true(h.fa.n_total - before <= calls + 4);
        }
    }
    cold_check(&f->cold, h.s);
    drop_host(&h);
}

/* ------------------------------------------------------------------ 44: callers of 0.1 */

/* A struct as 0.1 knew it, with memory behind it that is not the library's business. */
#define OLD(type, first_new)                                                                       \
    union {                                                                                        \
        type          s;                                                                           \
        unsigned char bytes[sizeof(type)];                                                         \
    }
#define OLD_SIZE(type, first_new) offsetof(type, first_new)

static void check_behind(const unsigned char *bytes, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        assert_int_equal(bytes[i], 0xEE);
}

static void test_behaviour_44(void **state)
{
    const fixture *f = *state;
    OLD(kvcsa_pool_params, trace) pp;
    OLD(kvcsa_session_params, salt) sp;
    OLD(kvcsa_append_params, reuse) ap;
    OLD(kvcsa_pool_stats, evictable_bytes) ps;
    OLD(kvcsa_session_stats, shared_bytes) ss;
    kvcsa_pool    *pool = NULL;
    kvcsa_session *s = NULL;
    kvcsa_error    err;

    memset(&pp, 0xEE, sizeof pp);
    memset(&sp, 0xEE, sizeof sp);
    memset(&ap, 0xEE, sizeof ap);
    memset(&ps, 0xEE, sizeof ps);
    memset(&ss, 0xEE, sizeof ss);
    kvcsa_pool_params_default(&pp.s, OLD_SIZE(kvcsa_pool_params, trace));
    kvcsa_session_params_default(&sp.s, OLD_SIZE(kvcsa_session_params, salt));
    kvcsa_append_params_default(&ap.s, OLD_SIZE(kvcsa_append_params, reuse));
    check_behind(pp.bytes, OLD_SIZE(kvcsa_pool_params, trace), sizeof pp);
    check_behind(sp.bytes, OLD_SIZE(kvcsa_session_params, salt), sizeof sp);
    check_behind(ap.bytes, OLD_SIZE(kvcsa_append_params, reuse), sizeof ap);
    pp.s.n_threads = 1;
    sp.s.chunk_tokens = 33;
    assert_ok(kvcsa_pool_create(&pp.s, &pool, &err));
    assert_ok(kvcsa_session_create(pool, f->model, &sp.s, &s, &err));
    assert_ok(kvcsa_session_append(s, f->cold.ids, 130, &ap.s, NULL, &err));
    host_step(pool, s);
    cold_check(&f->cold, s);
    ps.s.struct_size = OLD_SIZE(kvcsa_pool_stats, evictable_bytes);
    ss.s.struct_size = OLD_SIZE(kvcsa_session_stats, shared_bytes);
    assert_ok(kvcsa_pool_get_stats(pool, &ps.s, &err));
    assert_ok(kvcsa_session_get_stats(s, &ss.s, &err));
    check_behind(ps.bytes, OLD_SIZE(kvcsa_pool_stats, evictable_bytes), sizeof ps);
    check_behind(ss.bytes, OLD_SIZE(kvcsa_session_stats, shared_bytes), sizeof ss);
    assert_int_equal(ps.s.n_sealed_blocks, 1);
    assert_int_equal(ps.s.n_sessions, 1);
    assert_int_equal(ss.s.n_tokens, 130);
    assert_int_equal(ss.s.n_computed_rows, 130);
    kvcsa_session_release(&s);
    /* smaller than any release had */
    sp.s.struct_size = OLD_SIZE(kvcsa_session_params, salt) - 1;
    assert_fails(kvcsa_session_create(pool, f->model, &sp.s, &s, &err), KVCSA_ERR_ARG,
                 "struct_size");
    ps.s.struct_size = OLD_SIZE(kvcsa_pool_stats, evictable_bytes) - 1;
    assert_fails(kvcsa_pool_get_stats(pool, &ps.s, &err), KVCSA_ERR_ARG, "struct_size");
    close_pool(pool);
}

/* ------------------------------------------------------------------ 46: calls that are wrong */

#define assert_arg(call) assert_int_equal((call), KVCSA_ERR_ARG)
/* A value that this version does not know. */
#define assert_refused(call)                                                                       \
    do {                                                                                           \
        const kvcsa_status st_ = (call);                                                           \
        if (st_ != KVCSA_ERR_ARG && st_ != KVCSA_ERR_UNSUPPORTED)                                  \
            fail_msg("%s: %s", #call, kvcsa_status_name(st_));                                     \
    } while (0)

static void test_behaviour_46_sessions(void **state)
{
    const fixture *f = *state;
    host           h;
    const int32_t *ids = f->cold.ids;
    kvcsa_reuse    r = {.struct_size = sizeof r}, unsized = {0};
    kvcsa_session *out = (kvcsa_session *)1;
    size_t         n = 7;
    uint64_t       n64 = 7;
    kvcsa_error    err;

    make_host(&h, f, HELD, 0);
    assert_arg(kvcsa_session_get_reuse(NULL, &r, NULL));
    assert_arg(kvcsa_session_get_reuse(h.s, NULL, &err));
    assert_arg(kvcsa_session_get_reuse(h.s, &unsized, &err));
    assert_arg(kvcsa_session_common_prefix(NULL, ids, 3, &n, NULL));
    assert_int_equal(n, 0);
    assert_arg(kvcsa_session_common_prefix(h.s, NULL, 3, &n, &err));
    assert_arg(kvcsa_session_common_prefix(h.s, ids, 3, NULL, &err));
    assert_ok(kvcsa_session_common_prefix(h.s, NULL, 0, &n, &err));
    assert_arg(kvcsa_session_fork(NULL, 0, NULL, &out, NULL));
    assert_null(out);
    assert_arg(kvcsa_session_fork(h.s, 0, NULL, NULL, &err));
    assert_arg(kvcsa_session_fork(h.s, HELD + 1, NULL, &out, &err));
    assert_arg(kvcsa_session_rewind(NULL, 0, NULL));
    assert_arg(kvcsa_session_rewind(h.s, HELD + 1, &err));
    assert_arg(kvcsa_session_sync(NULL, ids, 3, NULL, &r, NULL));
    assert_arg(kvcsa_session_sync(h.s, NULL, 3, NULL, &r, &err));
    assert_arg(kvcsa_session_sync(h.s, ids, 3, NULL, &unsized, &err));
    assert_int_equal(kvcsa_session_sync(h.s, ids, SIZE_MAX, NULL, NULL, &err), KVCSA_ERR_LIMIT);
    assert_arg(kvcsa_session_erase(NULL, 0, NULL));
    assert_refused(kvcsa_session_erase(h.s, 1u << 31, &err));
    assert_arg(kvcsa_prefix_publish(NULL, &n64, NULL));
    assert_int_equal(n64, 0);
    assert_int_equal(kvcsa_session_length(h.s), HELD); /* nothing of it did anything */
    cold_check(&f->cold, h.s);
    cold_extend(&f->cold, h.pool, h.s, HELD + 2);
    drop_host(&h);
}

static void test_behaviour_46_pools_and_prefixes(void **state)
{
    const fixture     *f = *state;
    host               h;
    const int32_t     *ids = f->cold.ids;
    kvcsa_model       *m = f->model, *plan = NULL;
    kvcsa_model_params mp;
    kvcsa_estimate     e = {.struct_size = sizeof e};
    size_t             n = 7;
    uint64_t           n64 = 7;
    kvcsa_error        err;

    make_host(&h, f, HELD, 0);
    assert_arg(kvcsa_pool_resize(NULL, 0, NULL));
    assert_arg(kvcsa_pool_trim(NULL, 0, &n64, NULL));
    assert_int_equal(n64, 0);
    assert_int_equal(kvcsa_pool_resize(h.pool, 1, &err),
                     KVCSA_ERR_FULL); /* the session holds more */
    assert_true(pool_figures(h.pool).budget_bytes == UINT64_MAX);
    assert_arg(kvcsa_model_estimate(NULL, NULL, 1, 1, 0, &e, NULL));
    assert_arg(kvcsa_model_estimate(m, NULL, 1, 1, 0, NULL, &err));
    assert_int_equal(kvcsa_model_estimate(m, NULL, UINT64_MAX, UINT64_MAX, 0, &e, &err),
                     KVCSA_ERR_LIMIT);
    assert_arg(kvcsa_prefix_match(NULL, m, 0, ids, 3, &n, NULL));
    assert_int_equal(n, 0);
    assert_arg(kvcsa_prefix_match(h.pool, NULL, 0, ids, 3, &n, &err));
    assert_arg(kvcsa_prefix_match(h.pool, m, 0, NULL, 3, &n, &err));
    assert_arg(kvcsa_prefix_match(h.pool, m, 0, ids, 3, NULL, &err));
    assert_arg(kvcsa_prefix_pin(NULL, m, 0, ids, 3, &n, NULL));
    assert_arg(kvcsa_prefix_pin(h.pool, NULL, 0, ids, 3, &n, &err));
    assert_arg(kvcsa_prefix_pin(h.pool, m, 0, NULL, 3, &n, &err));
    assert_arg(kvcsa_prefix_unpin(NULL, m, 0, ids, 3, NULL));
    assert_arg(kvcsa_prefix_unpin(h.pool, NULL, 0, ids, 3, &err));
    assert_arg(kvcsa_prefix_unpin(h.pool, m, 0, NULL, 3, &err));
    assert_arg(kvcsa_prefix_unpin(h.pool, m, 0, ids, 3, &err)); /* never pinned */
    assert_arg(kvcsa_prefix_forget(NULL, m, 0, ids, 3, &n64, NULL));
    assert_arg(kvcsa_prefix_forget(h.pool, NULL, 0, ids, 3, &n64, &err));
    assert_arg(kvcsa_prefix_forget(h.pool, m, 0, NULL, 3, &n64, &err));
    kvcsa_model_params_default(&mp, sizeof mp);
    mp.flags = KVCSA_MODEL_PLAN_ONLY;
    assert_ok(kvcsa_model_open(T1_DIR, &mp, &plan, &err));
    assert_ok(kvcsa_prefix_match(h.pool, plan, 0, ids, 3, &n, &err)); /* of hosts' sessions */
    assert_int_equal(n, 0);
    assert_ok(kvcsa_prefix_pin(h.pool, plan, 0, ids, 3, &n, &err));
    assert_int_equal(n, 0);
    assert_ok(kvcsa_model_estimate(plan, NULL, 100, 1, 0, &e, &err)); /* a plan is enough */
    kvcsa_model_release(&plan);
    check_pool(h.pool);
    drop_host(&h);
}

static void test_behaviour_46_params(void **state)
{
    const fixture       *f = *state;
    kvcsa_pool          *pool = NULL;
    kvcsa_session       *s = NULL;
    kvcsa_session_params p;
    kvcsa_append_params  ap;
    kvcsa_pool_params    pp;
    kvcsa_error          err;

    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.evict = 9;
    assert_refused(kvcsa_pool_create(&pp, &pool, &err));
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.flags = 1u << 30;
    assert_refused(kvcsa_pool_create(&pp, &pool, &err));
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.cpu_avoid = 1u << 31;
    assert_refused(kvcsa_pool_create(&pp, &pool, &err));
    assert_null(pool);
    pool = host_pool(1, 0);
#define REFUSES(field, value)                                                                      \
    do {                                                                                           \
        p = session_defaults();                                                                    \
        p.field = (value);                                                                         \
        assert_refused(kvcsa_session_create(pool, f->model, &p, &s, &err));                        \
        assert_null(s);                                                                            \
        assert_true(err.text[0] != 0);                                                             \
    } while (0)
    REFUSES(flags, 1u << 31);
    REFUSES(mode, 9);
    REFUSES(reuse, 9);
    REFUSES(decoder_replay, 9);
    REFUSES(window_slack_tokens, 4097);
    REFUSES(window_slack_tokens, UINT32_MAX);
    REFUSES(window_store_tokens, 5);
    REFUSES(window_store_tokens, UINT32_MAX);
    p = session_defaults();
    p.decoder_replay = KVCSA_DECODER_REPLAY_ON;
    p.decoder_cut_layer = 5; /* owns entries */
    assert_refused(kvcsa_session_create(pool, f->model, &p, &s, &err));
    p.decoder_cut_layer = 11; /* there are no more than 10 */
    assert_refused(kvcsa_session_create(pool, f->model, &p, &s, &err));
    assert_null(s);
    s = host_session(pool, f->model, 0);
    kvcsa_append_params_default(&ap, sizeof ap);
    ap.reuse = 9;
    assert_refused(kvcsa_session_append(s, f->cold.ids, 3, &ap, NULL, &err));
    assert_refused(kvcsa_session_sync(s, f->cold.ids, 3, &ap, NULL, &err));
    kvcsa_append_params_default(&ap, sizeof ap);
    ap.reserved = 1;
    assert_refused(kvcsa_session_append(s, f->cold.ids, 3, &ap, NULL, &err));
    assert_int_equal(session_figures(s).n_queued, 0);
    kvcsa_session_release(&s);
    close_pool(pool);
}

static void test_behaviour_46_snapshots(void **state)
{
    const fixture        *f = *state;
    host                  h;
    kvcsa_snapshot_params p;
    kvcsa_snapshot_info   info = {.struct_size = sizeof info}, unsized = {0};
    const kvcsa_writer    no_writer = {0};
    const kvcsa_reader    no_reader = {0};
    uint64_t              n = 7;
    kvcsa_error           err;

    make_host(&h, f, HELD, 0);
    kvcsa_snapshot_params_default(NULL, 1);
    kvcsa_snapshot_params_default(&p, sizeof p);
    assert_arg(kvcsa_snapshot_size(NULL, &p, &n, NULL));
    assert_int_equal(n, 0);
    assert_arg(kvcsa_snapshot_size(h.s, &p, NULL, &err));
    assert_arg(kvcsa_snapshot_save(NULL, "x", &p, &info, NULL));
    assert_arg(kvcsa_snapshot_save(h.s, NULL, &p, &info, &err));
    assert_arg(kvcsa_snapshot_load(NULL, "x", &p, &info, NULL));
    assert_arg(kvcsa_snapshot_load(h.s, NULL, &p, &info, &err));
    assert_arg(kvcsa_snapshot_write(NULL, &no_writer, &p, &info, NULL));
    assert_arg(kvcsa_snapshot_write(h.s, NULL, &p, &info, &err));
    assert_arg(kvcsa_snapshot_write(h.s, &no_writer, &p, &info, &err));
    assert_arg(kvcsa_snapshot_read(NULL, &no_reader, &p, &info, NULL));
    assert_arg(kvcsa_snapshot_read(h.s, NULL, &p, &info, &err));
    assert_arg(kvcsa_snapshot_read(h.s, &no_reader, &p, &info, &err));
    assert_arg(kvcsa_snapshot_inspect(NULL, &p, &info, NULL));
    assert_arg(kvcsa_snapshot_inspect("x", &p, NULL, &err));
    assert_arg(kvcsa_snapshot_inspect("x", &p, &unsized, &err));
    assert_arg(kvcsa_snapshot_remove(NULL, &p, NULL));
    p.flags = 1u << 31;
    assert_refused(kvcsa_snapshot_size(h.s, &p, &n, &err));
    assert_refused(kvcsa_snapshot_load(h.s, "x", &p, &info, &err));
    kvcsa_snapshot_params_default(&p, sizeof p);
    p.struct_size = 3;
    assert_arg(kvcsa_snapshot_size(h.s, &p, &n, &err));
    cold_check(&f->cold, h.s);
    drop_host(&h);
}

/* ------------------------------------------------------------------ 67: one of several fails */

static int32_t stop_one(void *user, kvcsa_session *session, uint64_t n_done, uint64_t n_queued)
{
    (void)n_queued;
    return session == *(kvcsa_session **)user && n_done >= 16;
}

static void test_behaviour_67_cancelled(void **state)
{
    enum { K = 3 };
    const fixture    *f = *state;
    kvcsa_pool       *pool = host_pool(2, 0);
    kvcsa_session    *s[K];
    kvcsa_step_params sp;
    kvcsa_error       err;

    for (int way = 0; way < 2; way++) {
        kvcsa_step_result res[K];

        for (int k = 0; k < K; k++) {
            s[k] = host_session(pool, f->model, 16);
            cold_extend(&f->cold, pool, s[k], 5 + (uint64_t)k);
            assert_ok(kvcsa_session_append(s[k], f->cold.ids + 5 + k, 50, NULL, NULL, &err));
        }
        kvcsa_step_params_default(&sp, sizeof sp);
        if (way == 0) {
            sp.progress = stop_one;
            sp.user = &s[1];
        } else {
            kvcsa_session_cancel(s[1]);
        }
        assert_int_equal(kvcsa_pool_step(pool, s, K, &sp, res, &err), KVCSA_ERR_CANCELLED);
        check_pool(pool);
        for (int k = 0; k < K; k++) {
            assert_int_equal(res[k].error.status, k == 1 ? KVCSA_ERR_CANCELLED : KVCSA_OK);
            assert_int_equal(res[k].n_queued, 0);
            assert_int_equal(kvcsa_session_length(s[k]), k == 1 ? 6 : 55 + k);
            cold_check(&f->cold, s[k]);
            cold_extend(&f->cold, pool, s[k], kvcsa_session_length(s[k]) + 2);
            kvcsa_session_release(&s[k]);
        }
    }
    close_pool(pool);
}

static int fail_in_batch(const fixture *f, uint64_t n)
{
    enum { K = 3 };
    host              h;
    kvcsa_session    *s[K];
    kvcsa_step_result res[K];
    kvcsa_error       err;
    kvcsa_status      st;
    int               hit;

    make_host(&h, f, 0, 0);
    for (int k = 0; k < K; k++) {
        s[k] = host_session(h.pool, f->model, 8);
        assert_ok(kvcsa_session_append(s[k], f->cold.ids, 9 + (size_t)k, NULL, NULL, &err));
    }
    memset(res, 0x77, sizeof res);
    fault_alloc_fail_at(&h.fa, n);
    st = kvcsa_pool_step(h.pool, s, K, NULL, res, &err);
    hit = fault_alloc_hit(&h.fa);
    fault_alloc_fail_at(&h.fa, 0);
    check_pool(h.pool);
    for (int k = 0; k < K; k++) {
        const uint64_t want = 9 + (uint64_t)k;

        if (res[k].error.status == KVCSA_OK && res[k].n_computed) {
            assert_int_equal(kvcsa_session_length(s[k]), want);
        } else { /* it failed, or the call did before it came to this one: nothing or 0 in res */
            assert_int_equal(st, KVCSA_ERR_NOMEM);
            assert_true(res[k].error.status == KVCSA_ERR_NOMEM || res[k].error.status == KVCSA_OK);
            assert_int_equal(session_figures(s[k]).n_tokens + session_figures(s[k]).n_queued, want);
            host_step(h.pool, s[k]);
        }
        cold_check(&f->cold, s[k]);
        kvcsa_session_release(&s[k]);
    }
    drop_host(&h);
    return !hit;
}

static void test_behaviour_67_no_memory(void **state)
{
    uint64_t n = 1, runs = 0;

    for (; !fail_in_batch(*state, n); n += n < 15 ? 1 : 41)
        runs++;
    assert_true(runs > (test_backend_dir() ? 4 : 15));
}

/* ------------------------------------------------------------------ 72: bad tokens */

static void test_behaviour_72(void **state)
{
    static const int32_t bad[] = {-1, INT32_MIN, 512, INT32_MAX, 511};
    const fixture       *f = *state;
    host                 h;
    int32_t              ids[40];
    kvcsa_model         *m = NULL;
    kvcsa_error          err;

    make_host(&h, f, HELD, 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (size_t at = 0; at < 40; at += 13) {
            memcpy(ids, f->cold.ids, sizeof ids);
            ids[at] = bad[i];
            assert_fails(kvcsa_session_append(h.s, ids, 40, NULL, NULL, &err), KVCSA_ERR_ARG,
                         "tokens[");
            assert_fails(kvcsa_session_sync(h.s, ids, 40, NULL, NULL, &err), KVCSA_ERR_ARG,
                         "tokens[");
            assert_int_equal(session_figures(h.s).n_tokens, HELD);
            assert_int_equal(session_figures(h.s).n_queued, 0);
        }
    cold_extend(&f->cold, h.pool, h.s, HELD + 2);
    assert_int_not_equal(kvcsa_model_open("no such folder", NULL, &m, &err), KVCSA_OK);
    assert_null(m);
    assert_true(strstr(err.text, "no such folder") != NULL);
    drop_host(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_behaviour_39_calls),
        cmocka_unit_test(test_behaviour_39_steps),
        cmocka_unit_test(test_behaviour_39_pool),
        cmocka_unit_test(test_behaviour_40),
        cmocka_unit_test(test_behaviour_44),
        cmocka_unit_test(test_behaviour_46_sessions),
        cmocka_unit_test(test_behaviour_46_pools_and_prefixes),
        cmocka_unit_test(test_behaviour_46_params),
        cmocka_unit_test(test_behaviour_46_snapshots),
        cmocka_unit_test(test_behaviour_67_cancelled),
        cmocka_unit_test(test_behaviour_67_no_memory),
        cmocka_unit_test(test_behaviour_72),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
