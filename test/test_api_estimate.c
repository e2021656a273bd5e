/* kvcsa_model_estimate: bytes before they are taken. */
#include "support/host.h"

#define V41_CONFIG "test/data/v41-flash-config.json"

typedef struct estimate_case {
    uint64_t n_tokens, n_sessions, n_shared;
    uint32_t slack, store, block_tokens;
} estimate_case;

/* What the pool says when that many tokens are there. */
static void hold(const estimate_case *c, const kvcsa_session_params *sp, kvcsa_model *m,
                 kvcsa_pool_stats *stats)
{
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s[4] = {NULL};
    int32_t        ids[512];
    kvcsa_error    err;

    for (uint64_t i = 0; i < c->n_sessions; i++) {
        assert_ok(kvcsa_session_create(pool, m, sp, &s[i], &err));
        host_tokens(ids, c->n_tokens, 600 + i);
        host_tokens(ids, c->n_shared, 599);
        if (c->n_shared < c->n_tokens) /* not by chance one more */
            ids[c->n_shared] = 10 + (int32_t)i;
        if (c->n_tokens)
            host_run(pool, s[i], ids, c->n_tokens, NULL);
    }
    assert_ok(kvcsa_pool_check(pool, &err));
    assert_ok(kvcsa_pool_get_stats(pool, stats, &err));
    for (uint64_t i = 0; i < c->n_sessions; i++)
        kvcsa_session_release(&s[i]);
    kvcsa_pool_release(&pool);
}

/* Before anything is allocated, to the byte: lengths around the window (16), pages (16), entries of
 * two tokens and blocks (128, 32), with sharing that ends at and inside a block. */
static void test_behaviour_61_estimate_is_what_the_pool_takes(void **state)
{
    static const estimate_case cases[] = {
        {0, 2, 0, 0, 0, 0},      {1, 1, 0, 0, 0, 0},      {15, 1, 0, 0, 0, 0},
        {16, 3, 0, 0, 0, 0},     {17, 1, 0, 0, 0, 0},     {17, 2, 0, 1, 0, 0},
        {31, 1, 0, 40, 0, 0},    {64, 1, 0, 33, 0, 0},    {127, 2, 0, 0, 0, 0},
        {128, 1, 0, 0, 0, 0},    {129, 1, 0, 16, 0, 0},   {160, 3, 128, 0, 0, 0},
        {200, 3, 150, 0, 0, 0},  {128, 2, 128, 0, 0, 0},  {100, 2, 100, 0, 0, 0},
        {100, 3, 64, 0, 0, 32},  {101, 2, 97, 20, 0, 32}, {150, 1, 0, 0, 128, 0},
        {200, 2, 0, 20, 32, 32}, {130, 1, 0, 0, 64, 32},
    };

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const estimate_case *c = &cases[k];
        kvcsa_model_params   mp;
        kvcsa_session_params sp;
        kvcsa_model         *m = NULL;
        kvcsa_estimate       e = {.struct_size = sizeof e};
        kvcsa_pool_stats     st = {.struct_size = sizeof st};
        kvcsa_error          err;

        kvcsa_model_params_default(&mp, sizeof mp);
        mp.block_tokens = c->block_tokens;
        assert_ok(kvcsa_model_open(T1_DIR, &mp, &m, &err));
        kvcsa_session_params_default(&sp, sizeof sp);
        sp.window_slack_tokens = c->slack;
        sp.window_store_tokens = c->store;
        assert_ok(kvcsa_model_estimate(m, &sp, c->n_tokens, c->n_sessions, c->n_shared, &e, &err));
        hold(c, &sp, m, &st);
        if (e.used_bytes != st.used_bytes || e.window_bytes != st.window_bytes ||
            e.slab_bytes != st.slab_bytes || e.record_bytes != st.record_bytes ||
            e.n_blocks != st.n_open_blocks + st.n_sealed_blocks ||
            e.block_bytes != st.used_bytes - st.window_bytes)
            fail_msg("case %zu: used %llu, pool %llu; window %llu, %llu; slab %llu, %llu; record "
                     "%llu, %llu; blocks %llu, %llu",
                     k, (unsigned long long)e.used_bytes, (unsigned long long)st.used_bytes,
                     (unsigned long long)e.window_bytes, (unsigned long long)st.window_bytes,
                     (unsigned long long)e.slab_bytes, (unsigned long long)st.slab_bytes,
                     (unsigned long long)e.record_bytes, (unsigned long long)st.record_bytes,
                     (unsigned long long)e.n_blocks,
                     (unsigned long long)(st.n_open_blocks + st.n_sealed_blocks));
        kvcsa_model_release(&m);
    }
}

/* The released configuration, by hand: 113,920 bytes a block, 2,703,360 of window, three owners
 * with raw rows of 4,096 bytes. */
static void test_estimate_of_the_released_config(void **state)
{
    const uint64_t window = 2703360 + 3 * 4096;
    kvcsa_model   *m = host_plan(V41_CONFIG, NULL, NULL);
    kvcsa_estimate e = {.struct_size = sizeof e};
    kvcsa_error    err;

    (void)state;
    assert_ok(kvcsa_model_estimate(m, NULL, 1048576, 1, 0, &e, &err));
    assert_int_equal(e.n_blocks, 8192);
    assert_int_equal(e.block_bytes, UINT64_C(890) * 1048576);
    assert_int_equal(e.window_bytes, window);
    assert_int_equal(e.used_bytes, e.block_bytes + e.window_bytes);
    assert_true(e.slab_bytes >= e.used_bytes && e.slab_bytes < e.used_bytes + e.used_bytes / 50);
    /* 30 sessions that begin with the same 100,000 tokens and go on by 1,000 */
    assert_ok(kvcsa_model_estimate(m, NULL, 101000, 30, 100000, &e, &err));
    assert_int_equal(e.n_blocks, 781 + 30 * 9); /* 99,968 tokens in common, then 1,032 */
    assert_int_equal(e.block_bytes, (781 + 30 * 9) * 113920);
    assert_int_equal(e.window_bytes, 30 * window);
    /* 100 tokens of a million: one block and seven pages of eight */
    assert_ok(kvcsa_model_estimate(m, NULL, 100, 1, 0, &e, &err));
    assert_int_equal(e.used_bytes, 113920 + 2703360 / 8 * 7 + 3 * 4096);
    kvcsa_model_release(&m);
}

static void test_estimate_refuses_what_cannot_be(void **state)
{
    kvcsa_model         *m = host_plan(V41_CONFIG, NULL, NULL);
    kvcsa_session_params sp;
    kvcsa_estimate       e = {.struct_size = sizeof e, .used_bytes = 7};
    kvcsa_error          err;

    (void)state;
    assert_fails(kvcsa_model_estimate(m, NULL, 1048577, 1, 0, &e, &err), KVCSA_ERR_LIMIT,
                 "1048576");
    assert_int_equal(e.used_bytes, 0);
    assert_fails(kvcsa_model_estimate(m, NULL, 100, 1, 101, &e, &err), KVCSA_ERR_ARG,
                 "n_shared_tokens is 101");
    for (uint64_t n = UINT64_MAX; n > UINT64_C(1) << 40; n /= 2)
        if (n > (UINT64_C(1) << 63) / 113920 / 8192) /* cannot fit, whatever windows cost */
            assert_fails(kvcsa_model_estimate(m, NULL, 1048576, n, 0, &e, &err), KVCSA_ERR_LIMIT,
                         "2^63");
    assert_int_equal(e.used_bytes, 0);
    assert_ok(kvcsa_model_estimate(m, NULL, 1048576, 0, 0, &e, &err));
    assert_int_equal(e.used_bytes, 0);
    kvcsa_session_params_default(&sp, sizeof sp);
    sp.window_slack_tokens = 4097;
    assert_fails(kvcsa_model_estimate(m, &sp, 1, 1, 0, &e, &err), KVCSA_ERR_ARG,
                 "window_slack_tokens is 4097");
    kvcsa_session_params_default(&sp, sizeof sp);
    sp.window_store_tokens = 64;
    assert_fails(kvcsa_model_estimate(m, &sp, 1, 1, 0, &e, &err), KVCSA_ERR_ARG,
                 "window_store_tokens is 64");
    kvcsa_model_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_behaviour_61_estimate_is_what_the_pool_takes),
        cmocka_unit_test(test_estimate_of_the_released_config),
        cmocka_unit_test(test_estimate_refuses_what_cannot_be),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
