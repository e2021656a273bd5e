/* What prefix calls mean at the edges: tokens that are no whole blocks, that are not known to their
 * end, and what is freed with them. */
#include "support/host.h"

#define BLOCK 32u
#define N 200u

typedef struct scene {
    kvcsa_model *model; /* blocks of 32 tokens */
    kvcsa_pool  *pool;
    int32_t      ids[N];
    int32_t      other[N]; /* the same up to 3 blocks and 5 tokens */
} scene;

static scene set_up(void)
{
    scene sc = {NULL, NULL, {0}, {0}};

    sc.model = host_model_in_blocks(BLOCK);
    sc.pool = host_pool(1, 0);
    host_tokens(sc.ids, N, 71);
    host_tokens(sc.other, N, 72);
    memcpy(sc.other, sc.ids, (3 * BLOCK + 5) * sizeof *sc.ids);
    sc.other[3 * BLOCK + 5] = sc.ids[3 * BLOCK + 5] == 9 ? 10 : 9;
    return sc;
}

/* A session computes the tokens and goes; its full blocks stay. */
static void compute(const scene *sc, const int32_t *ids, size_t n, uint32_t store)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.window_store_tokens = store;
    assert_ok(kvcsa_session_create(sc->pool, sc->model, &p, &s, &err));
    host_run(sc->pool, s, ids, n, NULL);
    kvcsa_session_release(&s);
}

static kvcsa_pool_stats figures(const scene *sc)
{
    kvcsa_pool_stats st = {.struct_size = sizeof st};
    kvcsa_error      err;

    assert_ok(kvcsa_pool_check(sc->pool, &err));
    assert_ok(kvcsa_pool_get_stats(sc->pool, &st, &err));
    return st;
}

static size_t match(const scene *sc, const int32_t *ids, size_t n)
{
    size_t      n_matched = 0;
    kvcsa_error err;

    assert_ok(kvcsa_prefix_match(sc->pool, sc->model, 0, ids, n, &n_matched, &err));
    return n_matched;
}

/* Forgets, checks that the bytes said to be freed are those of the pool, returns blocks. */
static uint64_t forget(const scene *sc, const int32_t *ids, size_t n)
{
    const kvcsa_pool_stats before = figures(sc);
    kvcsa_pool_stats       after;
    uint64_t               freed = 1;
    kvcsa_error            err;

    assert_ok(kvcsa_prefix_forget(sc->pool, sc->model, 0, ids, n, &freed, &err));
    after = figures(sc);
    assert_int_equal(freed, before.used_bytes - after.used_bytes);
    return before.n_sealed_blocks - after.n_sealed_blocks;
}

static void tear_down(scene *sc)
{
    host_pool_is_idle(sc->pool);
    kvcsa_pool_release(&sc->pool);
    kvcsa_model_release(&sc->model);
}

static void test_match_ends_anywhere(void **state)
{
    scene   sc = set_up();
    int32_t strange[3] = {-1, INT32_MAX, INT32_MIN};

    (void)state;
    assert_int_equal(match(&sc, sc.ids, N), 0);
    compute(&sc, sc.ids, 5 * BLOCK + 3, 0);
    for (size_t n = 0; n <= N; n++)
        assert_int_equal(match(&sc, sc.ids, n), n < 5 * BLOCK ? n : 5 * BLOCK);
    assert_int_equal(match(&sc, sc.other, N), 3 * BLOCK + 5);
    assert_int_equal(match(&sc, sc.ids + 1, N - 1), 0);
    assert_int_equal(match(&sc, strange, 3), 0); /* only compared */
    tear_down(&sc);
}

/* Tokens behind the last known block name nothing more; what leads to them is taken only where nothing
 * else goes on from there. */
static void test_forget_of_tokens_that_are_not_known_to_the_end(void **state)
{
    scene sc = set_up();

    (void)state;
    compute(&sc, sc.ids, 5 * BLOCK, 0);
    compute(&sc, sc.other, 5 * BLOCK, 0);
    assert_int_equal(figures(&sc).n_published_blocks, 3 + 2 + 2);
    sc.other[4 * BLOCK] ^= 1; /* from here on a third list, which nobody has computed */
    assert_int_equal(forget(&sc, sc.other, 5 * BLOCK), 0); /* block 3 has another end */
    sc.other[4 * BLOCK] ^= 1;
    assert_int_equal(forget(&sc, sc.other, N), 2); /* its end, up to where `ids` goes its own way */
    assert_int_equal(match(&sc, sc.other, N), 3 * BLOCK + 5);
    assert_int_equal(match(&sc, sc.ids, N), 5 * BLOCK);
    sc.other[0] ^= 1; /* not known at all */
    assert_int_equal(forget(&sc, sc.other, N), 0);
    assert_int_equal(forget(&sc, sc.ids, N), 5); /* a whole list, longer than what is known */
    tear_down(&sc);
}

/* What begins with the tokens goes, wherever they end; what does not stays. */
static void test_forget_takes_what_begins_so(void **state)
{
    scene       sc = set_up();
    size_t      n = 0;
    kvcsa_error err;

    (void)state;
    compute(&sc, sc.ids, 5 * BLOCK, 0);
    compute(&sc, sc.other, 4 * BLOCK, 0);
    assert_ok(kvcsa_prefix_pin(sc.pool, sc.model, 0, sc.ids, N, &n, &err));
    assert_int_equal(n, 5 * BLOCK);
    assert_int_equal(forget(&sc, sc.other, 3 * BLOCK + 9), 1); /* behind where they part */
    assert_int_equal(match(&sc, sc.ids, N), 5 * BLOCK);
    assert_int_equal(figures(&sc).n_pinned_blocks, 1);
    compute(&sc, sc.other, 4 * BLOCK, 0);
    assert_int_equal(forget(&sc, sc.other, 3 * BLOCK + 5), 6); /* both, and the pin with them */
    assert_int_equal(figures(&sc).n_pinned_blocks, 0);
    assert_fails(kvcsa_prefix_unpin(sc.pool, sc.model, 0, sc.ids, n, &err), KVCSA_ERR_ARG,
                 "pinned");
    compute(&sc, sc.ids, 2 * BLOCK, 0);
    compute(&sc, sc.ids + 1, 3 * BLOCK, 0);
    assert_int_equal(forget(&sc, sc.ids, BLOCK - 1), 2);
    assert_int_equal(forget(&sc, sc.ids + 1, 1), 3);
    compute(&sc, sc.ids, 2 * BLOCK, 0);
    assert_int_equal(forget(&sc, NULL, 0), 2);
    tear_down(&sc);
}

/* A stored window goes with its block, and is counted. */
static void test_forget_counts_stored_windows(void **state)
{
    scene sc = set_up();

    (void)state;
    compute(&sc, sc.ids, 5 * BLOCK, BLOCK);
    assert_true(figures(&sc).window_bytes > 0);
    assert_int_equal(forget(&sc, sc.ids, 5 * BLOCK), 5);
    assert_int_equal(figures(&sc).used_bytes, 0);
    tear_down(&sc);
}

/* Pins count, and hold through a trim. */
static void test_pins_count(void **state)
{
    scene       sc = set_up();
    size_t      n = 0;
    uint64_t    freed = 0;
    kvcsa_error err;

    (void)state;
    compute(&sc, sc.ids, 4 * BLOCK, 0);
    for (int i = 0; i < 2; i++) {
        assert_ok(kvcsa_prefix_pin(sc.pool, sc.model, 0, sc.ids, 3 * BLOCK + 7, &n, &err));
        assert_int_equal(n, 3 * BLOCK);
    }
    assert_int_equal(figures(&sc).n_pinned_blocks, 1);
    assert_fails(kvcsa_prefix_unpin(sc.pool, sc.model, 0, sc.ids, 3 * BLOCK + 7, &err),
                 KVCSA_ERR_ARG, "end at 96");
    assert_fails(kvcsa_prefix_unpin(sc.pool, sc.model, 1, sc.ids, 3 * BLOCK, &err), KVCSA_ERR_ARG,
                 "pinned");
    for (int i = 0; i < 2; i++) {
        assert_ok(kvcsa_pool_trim(sc.pool, 0, &freed, &err));
        assert_int_equal(match(&sc, sc.ids, N), 3 * BLOCK);
        assert_ok(kvcsa_prefix_unpin(sc.pool, sc.model, 0, sc.ids, 3 * BLOCK, &err));
    }
    assert_fails(kvcsa_prefix_unpin(sc.pool, sc.model, 0, sc.ids, 3 * BLOCK, &err), KVCSA_ERR_ARG,
                 "not pinned");
    assert_ok(kvcsa_pool_trim(sc.pool, 0, &freed, &err));
    assert_int_equal(match(&sc, sc.ids, N), 0);
    assert_int_equal(figures(&sc).used_bytes, 0);
    tear_down(&sc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_match_ends_anywhere),
        cmocka_unit_test(test_forget_of_tokens_that_are_not_known_to_the_end),
        cmocka_unit_test(test_forget_takes_what_begins_so),
        cmocka_unit_test(test_forget_counts_stored_windows),
        cmocka_unit_test(test_pins_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
