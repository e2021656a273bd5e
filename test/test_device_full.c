/* Sessions on a device that is full, the test plug-in "apart" with little memory and a budget without a limit: prefixes go
 * for blocks, weights and workspaces, then the session is told, and goes on when others have left; what is computed are the
 * numbers of a pool with room for all. And a device that fails in the middle of a batch. */
#include "support/host.h"
#include "support/pool_host.h"
#include "support/test_backend.h"

#include "session/session_int.h"

#include <stdio.h>
#include <unistd.h>

enum { N_PROMPTS = 12, PROMPT = 300, LONG = 1300, CHUNK = 64, SLAB = 256 << 10 };

static kvcsa_model *model;
static float        calm[N_PROMPTS][T1_VOCAB]; /* the last row of each prompt on the CPU */

static void prompt(int32_t *ids, size_t n, int which)
{
    host_tokens(ids, n, 900 + (uint64_t)which);
}

/* The device of the next pool; 0 = as it comes. */
static void set_device(uint64_t bytes, uint64_t fail_after, int late)
{
    char text[24];

    snprintf(text, sizeof text, "%llu", (unsigned long long)bytes);
    assert_int_equal(bytes ? setenv("APART_BYTES", text, 1) : unsetenv("APART_BYTES"), 0);
    snprintf(text, sizeof text, "%llu", (unsigned long long)fail_after);
    assert_int_equal(setenv("APART_FAIL_AFTER", text, 1), 0);
    assert_int_equal(setenv("APART_FAIL_LATE", late ? "1" : "0", 1), 0);
}

static kvcsa_pool *open_pool(uint32_t backend, const kvcsa_allocator *allocator)
{
    kvcsa_pool_params p;
    kvcsa_pool       *pool = NULL;
    kvcsa_error       err;

    kvcsa_pool_params_default(&p, sizeof p);
    p.n_threads = 1;
    p.allocator = allocator;
    p.backend = backend;
    p.backend_dir = test_backend_beside("apart");
    assert_ok(kvcsa_pool_create(&p, &pool, &err));
    return pool;
}

static uint64_t taken(const kvcsa_pool *pool)
{
    kvi_device_info info;

    kvi_pool_describe(pool, &info);
    return info.memory - info.memory_free;
}

static void check_logits(kvcsa_session *s, int which)
{
    float logits[T1_VOCAB];

    host_logits(s, logits, T1_VOCAB);
    assert_memory_equal(logits, calm[which], sizeof logits);
}

static kvcsa_session *run_prompt(kvcsa_pool *pool, int which)
{
    kvcsa_session *s = host_session(pool, model, CHUNK);
    int32_t        ids[PROMPT];

    prompt(ids, PROMPT, which);
    host_run(pool, s, ids, PROMPT, NULL);
    return s;
}

/* What one session with a prompt takes, slabs with their free blocks included. */
static uint64_t bytes_of_one(void)
{
    kvcsa_pool    *pool;
    kvcsa_session *s;
    uint64_t       n;

    set_device(0, 0, 0);
    pool = open_pool(KVCSA_BACKEND_CUDA, NULL);
    s = run_prompt(pool, 0);
    n = taken(pool);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    return n;
}

static int set_up(void **state)
{
    kvcsa_pool *pool = open_pool(KVCSA_BACKEND_CPU, NULL);

    (void)state;
    model = host_model(T1_DIR);
    for (int i = 0; i < N_PROMPTS; i++) {
        kvcsa_session *s = run_prompt(pool, i);

        host_logits(s, calm[i], T1_VOCAB);
        kvcsa_session_release(&s);
    }
    kvcsa_pool_release(&pool);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvcsa_model_release(&model);
    return 0;
}

/* ------------------------------------------------------------------ blocks */

static void test_prefixes_go_for_new_sessions(void **state)
{
    const uint64_t one = bytes_of_one();
    kvcsa_pool    *pool;
    kvcsa_session *s;
    uint64_t       before = 0;
    kvcsa_error    err;

    (void)state;
    set_device(one + SLAB, 0, 0); /* what goes need not leave whole slabs */
    pool = open_pool(KVCSA_BACKEND_CUDA, NULL);
    for (int i = 0; i < N_PROMPTS; i++) {
        s = run_prompt(pool, i);
        check_logits(s, i);
        assert_ok(kvcsa_pool_check(pool, &err));
        kvcsa_session_release(&s);
        assert_true(ph_stats(pool).n_evicted_blocks >= before);
        before = ph_stats(pool).n_evicted_blocks;
    }
    assert_true(before > 0 && ph_stats(pool).n_published_blocks > 0);
    assert_true(ph_stats(pool).budget_bytes == 0 || ph_stats(pool).budget_bytes > one);
    s = run_prompt(pool, N_PROMPTS - 1); /* what was used last is still there */
    check_logits(s, N_PROMPTS - 1);
    assert_int_equal(ph_stats(pool).n_hit_tokens, PROMPT / 128 * 128); /* however many others its replay has cost */
    kvcsa_session_release(&s);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
}

/* Two sessions run as one batch, then one wants all that a slab has. */
static void test_blocks_that_others_hold(void **state)
{
    static int32_t ids[LONG];
    kvcsa_pool    *pool;
    kvcsa_session *s[2];
    float          wanted[T1_VOCAB], logits[T1_VOCAB];
    uint64_t       limit = 0;
    uint64_t       length = 0;
    kvcsa_error    err;

    (void)state;
    prompt(ids, LONG, 1);
    pool = open_pool(KVCSA_BACKEND_CPU, NULL);
    s[0] = host_session(pool, model, CHUNK);
    host_run(pool, s[0], ids, LONG, NULL);
    host_logits(s[0], wanted, T1_VOCAB);
    kvcsa_session_release(&s[0]);
    kvcsa_pool_release(&pool);
    for (int probe = 1; probe >= 0; probe--) {
        set_device(limit, 0, 0);
        pool = open_pool(KVCSA_BACKEND_CUDA, NULL);
        for (int i = 0; i < 2; i++) {
            int32_t first[PROMPT];

            s[i] = host_session(pool, model, CHUNK);
            prompt(first, PROMPT, i);
            assert_ok(kvcsa_session_append(s[i], i ? ids : first, PROMPT, NULL, NULL, &err));
        }
        assert_ok(kvcsa_pool_step(pool, s, 2, NULL, NULL, &err));
        check_logits(s[0], 0);
        limit = taken(pool);
        if (probe) {
            kvcsa_session_release(&s[0]);
            kvcsa_session_release(&s[1]);
            kvcsa_pool_release(&pool);
        }
    }
    assert_ok(kvcsa_session_append(s[1], ids + PROMPT, LONG - PROMPT, NULL, NULL, &err));
    assert_fails(kvcsa_pool_step(pool, &s[1], 1, NULL, NULL, &err), KVCSA_ERR_NOMEM, "no room on apart");
    length = kvcsa_session_length(s[1]);
    assert_true(length >= PROMPT && length < LONG);
    assert_ok(kvcsa_pool_check(pool, &err));
    assert_fails(kvcsa_pool_step(pool, &s[1], 1, NULL, NULL, &err), KVCSA_ERR_NOMEM, "no room on apart");
    assert_int_equal(kvcsa_session_length(s[1]), length);
    check_logits(s[0], 0); /* nobody else has felt it */
    kvcsa_session_release(&s[0]);
    assert_ok(kvcsa_pool_step(pool, &s[1], 1, NULL, NULL, &err));
    host_logits(s[1], logits, T1_VOCAB);
    assert_memory_equal(logits, wanted, sizeof logits);
    assert_ok(kvcsa_pool_check(pool, &err));
    kvcsa_session_release(&s[1]);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
}

/* ------------------------------------------------------------------ weights and workspaces */

static void test_no_room_for_a_workspace(void **state)
{
    const uint64_t one = bytes_of_one();
    kvcsa_pool    *pool;
    kvcsa_session *a, *b;
    int32_t        ids[PROMPT];
    kvcsa_error    err;

    (void)state;
    set_device(one + 1000, 0, 0);
    pool = open_pool(KVCSA_BACKEND_CUDA, NULL);
    a = run_prompt(pool, 0);
    b = host_session(pool, model, CHUNK);
    prompt(ids, PROMPT, 1);
    assert_ok(kvcsa_session_append(b, ids, PROMPT, NULL, NULL, &err));
    for (int i = 0; i < 2; i++) {
        assert_fails(kvcsa_pool_step(pool, &b, 1, NULL, NULL, &err), KVCSA_ERR_NOMEM, "no room on apart, a device of apart");
        assert_non_null(strstr(err.text, "workspace for"));
        assert_int_equal(kvcsa_session_length(b), 0);
        assert_ok(kvcsa_pool_check(pool, &err));
    }
    check_logits(a, 0);
    kvcsa_session_release(&a);
    host_step(pool, b);
    check_logits(b, 1);
    kvcsa_session_release(&b);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
}

static const kvi_class_shape large = {KVI_CLASS_CACHE, 64 << 10, 64 << 10, PH_TOKENS};

/* n published blocks that nobody holds, in slabs of two. */
static void publish_large(kvcsa_pool *pool, kvi_block_class *cls, kvi_prefix_root *root, int n)
{
    kvcsa_error err;

    for (int i = 0; i < n; i++) {
        kvi_block *b = NULL;

        assert_ok(kvi_pool_reserve(pool, cls, 1, &err));
        assert_ok(kvi_block_acquire(pool, cls, &b, &err));
        assert_ok(kvi_memory_fill(kvi_pool_memory(pool), kvi_block_index_part(b), i, large.index_bytes, &err));
        assert_ok(kvi_memory_fill(kvi_pool_memory(pool), kvi_block_main_part(b), i, large.main_bytes, &err));
        for (int t = 0; t < PH_TOKENS; t++)
            kvi_block_tokens(b)[t] = i;
        kvi_block_release(pool, kvi_block_seal(pool, root, b, NULL, 0, NULL, 0));
    }
}

/* A device full of prefixes, then a session: weights, workspace, windows and blocks find room, and no more go than have to. */
static void test_prefixes_go_for_weights_and_workspaces(void **state)
{
    const uint64_t     one = bytes_of_one();
    kvcsa_pool        *pool;
    kvi_block_class   *cls;
    kvi_prefix_root   *root;
    uint64_t           n_gone = 0;
    const kvi_weights *w = NULL;
    void              *p = NULL;
    kvcsa_error        err;
    kvcsa_session     *s;

    (void)state;
    set_device(one + 4 * 262144 + 1000, 0, 0);
    pool = open_pool(KVCSA_BACKEND_CUDA, NULL);
    cls = ph_class(pool, &large);
    root = ph_root(pool, &ph_domain);
    publish_large(pool, cls, root, (int)(one / 131072) + 6);
    assert_true(taken(pool) > one);
    assert_int_equal(ph_stats(pool).n_evicted_blocks, 0);

    /* a request that cannot be met costs nobody anything */
    assert_int_equal(kvi_memory_alloc(kvi_pool_memory(pool), (size_t)one * 2, &p, &err), KVCSA_ERR_NOMEM);
    assert_null(p);
    assert_int_equal(ph_stats(pool).n_evicted_blocks, 0);

    s = run_prompt(pool, 0);
    check_logits(s, 0);
    n_gone = ph_stats(pool).n_evicted_blocks;
    assert_true(n_gone > one / 131072 / 2);
    assert_true(ph_stats(pool).n_published_blocks > PROMPT / 128); /* some have stayed */
    assert_ok(kvcsa_pool_check(pool, &err));
    kvcsa_session_release(&s);
    kvi_prefix_root_release(pool, root);
    kvi_pool_class_release(pool, cls);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);

    /* weights that would not fit if everything else had gone */
    set_device(1u << 20, 0, 0);
    pool = open_pool(KVCSA_BACKEND_CUDA, NULL);
    cls = ph_class(pool, &large);
    root = ph_root(pool, &ph_domain);
    publish_large(pool, cls, root, 6);
    assert_fails(kvi_pool_weights_acquire(pool, model, &w, &err), KVCSA_ERR_NOMEM, "weights for apart, device 0 of apart");
    assert_int_equal(ph_stats(pool).n_evicted_blocks, 0);
    s = host_session(pool, model, CHUNK);
    assert_ok(kvcsa_session_append(s, (const int32_t[]){7, 8, 9}, 3, NULL, NULL, &err));
    assert_fails(kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err), KVCSA_ERR_NOMEM, "weights for apart");
    kvcsa_session_release(&s);
    kvi_prefix_root_release(pool, root);
    kvi_pool_class_release(pool, cls);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
}

/* ------------------------------------------------------------------ a device that fails */

/* 1 = the batch went through. */
static int run_two(kvcsa_pool *pool)
{
    kvcsa_step_result results[2] = {0};
    kvcsa_session    *s[2] = {NULL, NULL};
    kvcsa_status      st;
    int               whole;
    kvcsa_error       err;

    for (int i = 0; i < 2; i++) {
        kvcsa_session_params p;
        int32_t              ids[PROMPT];

        kvcsa_session_params_default(&p, sizeof p);
        p.chunk_tokens = CHUNK;
        if (kvcsa_session_create(pool, model, &p, &s[i], &err) != KVCSA_OK) {
            assert_int_equal(err.status, KVCSA_ERR_BACKEND);
            break;
        }
        prompt(ids, PROMPT, i);
        assert_ok(kvcsa_session_append(s[i], ids, PROMPT, NULL, NULL, &err));
    }
    if (!s[1]) {
        kvcsa_session_release(&s[0]);
        return 0;
    }
    st = kvcsa_pool_step(pool, s, 2, NULL, results, &err);
    assert_true(st == KVCSA_OK || st == KVCSA_ERR_BACKEND);
    whole = st == KVCSA_OK;
    for (int i = 0; i < 2; i++) {
        if (whole) {
            check_logits(s[i], i);
        } else if (results[i].error.status != KVCSA_OK) {
            assert_int_equal(results[i].error.status, KVCSA_ERR_BACKEND);
            assert_true(results[i].error.text[0] != '\0');
        }
        assert_int_equal(kvcsa_session_length(s[i]) % CHUNK, whole ? PROMPT % CHUNK : 0);
    }
    if (!whole) { /* and it stays so */
        assert_true(results[0].error.status != KVCSA_OK || results[1].error.status != KVCSA_OK);
        assert_int_equal(kvcsa_pool_step(pool, s, 2, NULL, results, &err), KVCSA_ERR_BACKEND);
        assert_int_equal(results[0].error.status, KVCSA_ERR_BACKEND);
        assert_int_equal(results[1].error.status, KVCSA_ERR_BACKEND);
    }
    kvcsa_session_release(&s[0]);
    kvcsa_session_release(&s[1]);
    return whole;
}

static void test_a_device_that_fails_in_a_batch(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        int      whole = 0;
        uint64_t n = 5; /* behind what opens the pool */

        for (; !whole; n += 1 + n / 5) {
            fault_alloc fa;
            kvcsa_pool *pool;

            fault_alloc_init(&fa);
            set_device(0, n, late);
            pool = open_pool(KVCSA_BACKEND_CUDA, &fa.hook);
            whole = run_two(pool);
            kvcsa_pool_release(&pool);
            assert_true(fault_alloc_is_clean(&fa));
        }
        assert_true(n > 1000);
    }
    set_device(0, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefixes_go_for_new_sessions),
        cmocka_unit_test(test_blocks_that_others_hold),
        cmocka_unit_test(test_no_room_for_a_workspace),
        cmocka_unit_test(test_prefixes_go_for_weights_and_workspaces),
        cmocka_unit_test(test_a_device_that_fails_in_a_batch),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
