/* What sharing saves, in exact counts and without a clock: sessions of the released model's plan
 * that commit chunks without computing them (40 layers, window 128, ratios 2 and 1; blocks of 128
 * tokens and 113,920 bytes). */
#include "support/fault_alloc.h"
#include "support/host.h"

#include "session/session_int.h"

#include <stdio.h>
#include <unistd.h>

#define BLOCK_TOKENS 128u
#define BLOCK_BYTES 113920u
#define RATE 890u             /* bytes per token */
#define PAGE_BYTES 337920u    /* 16 positions x 40 layers x 528 */
#define WINDOW_PAGES 8u
#define RAW_BYTES 12288u      /* three owners of ratio 2, one raw row each */
#define EXACT_ROWS 5081u      /* 128 + 39 x 127 */
#define VOCAB 129280u
#define N_IDS 110000u

typedef struct world {
    fault_alloc  fa;
    kvcsa_model *model;
    kvcsa_pool  *pool;
    int32_t     *ids;
} world;

static void start_pool(world *w, uint64_t budget, uint32_t evict, int counted)
{
    kvcsa_pool_params p;
    kvcsa_error       err;

    kvcsa_pool_params_default(&p, sizeof p);
    p.allocator = counted ? &w->fa.hook : NULL;
    p.n_threads = 1;
    p.budget_bytes = budget;
    p.evict = evict;
    assert_ok(kvcsa_pool_create(&p, &w->pool, &err));
}

static int set_up(void **state)
{
    world *w = calloc(1, sizeof *w);

    assert_non_null(w);
    fault_alloc_init(&w->fa);
    w->model = host_plan(RELEASE_CONFIG, NULL, NULL);
    w->ids = malloc(N_IDS * sizeof *w->ids);
    assert_non_null(w->ids);
    host_tokens(w->ids, N_IDS, 31);
    start_pool(w, 0, KVCSA_EVICT_COST, 1);
    *state = w;
    return 0;
}

static void check(kvcsa_pool *pool)
{
    kvcsa_error err;

    assert_ok(kvcsa_pool_check(pool, &err));
}

static void stop_pool(world *w)
{
    uint64_t    freed = 0;
    kvcsa_error err;

    check(w->pool);
    assert_ok(kvcsa_prefix_forget(w->pool, NULL, 0, NULL, 0, &freed, &err));
    host_pool_is_idle(w->pool);
    kvcsa_pool_release(&w->pool);
    assert_true(fault_alloc_is_clean(&w->fa));
}

static int tear_down(void **state)
{
    world *w = *state;

    stop_pool(w);
    kvcsa_model_release(&w->model);
    free(w->ids);
    free(w);
    return 0;
}

static kvcsa_session *session(const world *w, uint32_t reuse)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.reuse = reuse;
    assert_ok(kvi_session_create(w->pool, w->model, &p, 1, &s, &err));
    return s;
}

static void grow(const world *w, kvcsa_session *s, const int32_t *ids, size_t n)
{
    kvcsa_error err;

    assert_ok(kvcsa_session_append(s, ids, n, NULL, NULL, &err));
    host_step(w->pool, s);
}

static kvcsa_session *session_of(const world *w, size_t n)
{
    kvcsa_session *s = session(w, KVCSA_REUSE_DEFAULT);

    grow(w, s, w->ids, n);
    assert_int_equal(kvcsa_session_length(s), n);
    return s;
}

static kvcsa_session *fork_of(kvcsa_session *s)
{
    kvcsa_session *f = NULL;
    kvcsa_error    err;

    assert_ok(kvcsa_session_fork(s, kvcsa_session_length(s), NULL, &f, &err));
    return f;
}

static kvcsa_pool_stats pool_stats(kvcsa_pool *pool)
{
    kvcsa_pool_stats st = {.struct_size = sizeof st};
    kvcsa_error      err;

    assert_ok(kvcsa_pool_get_stats(pool, &st, &err));
    return st;
}

static kvcsa_session_stats session_stats(kvcsa_session *s)
{
    kvcsa_session_stats st = {.struct_size = sizeof st};
    kvcsa_error         err;

    assert_ok(kvcsa_session_get_stats(s, &st, &err));
    return st;
}

static uint64_t blocks_for(uint64_t n_tokens)
{
    return (n_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

/* Tokens that no other call of this function and no prefix has in the same place. */
static void own_tokens(int32_t *ids, size_t n, uint32_t who)
{
    host_tokens(ids, n, 1000 + who);
    ids[0] = (int32_t)(1000 + who);
}

/* ------------------------------------------------------------------ fork */

/* Bytes that the allocator gives for a fork at the end. */
static size_t cost_of_a_fork(const world *w, size_t n)
{
    kvcsa_session         *s = session_of(w, n);
    const kvcsa_pool_stats before = pool_stats(w->pool);
    const size_t           bytes = w->fa.n_bytes;
    kvcsa_session         *f = fork_of(s);
    const kvcsa_pool_stats after = pool_stats(w->pool);
    const size_t           cost = w->fa.n_bytes - bytes;

    assert_int_equal(kvcsa_session_length(f), n);
    assert_int_equal(after.n_acquired, before.n_acquired);
    assert_int_equal(after.n_copied_blocks, before.n_copied_blocks);
    assert_int_equal(after.n_copied_pages, before.n_copied_pages);
    assert_int_equal(after.n_window_pages, before.n_window_pages);
    assert_int_equal(after.used_bytes, before.used_bytes);
    assert_int_equal(after.n_probes, before.n_probes);
    assert_int_equal(session_stats(f).block_bytes, session_stats(f).shared_bytes);
    check(w->pool);
    kvcsa_session_release(&s);
    kvcsa_session_release(&f);
    return cost;
}

static void test_fork_copies_nothing(void **state)
{
    const world *w = *state;
    const size_t small = cost_of_a_fork(w, 4096);

    assert_true(small < 4096); /* the handle itself */
    assert_int_equal(cost_of_a_fork(w, 4100), small);
    assert_int_equal(cost_of_a_fork(w, 100000), small);
}

/* k forks of n tokens hold the n tokens once, and each its tail and the pages that it wrote. */
static void test_forks_cost_their_tails(void **state)
{
    enum { N = 100000, K = 20, OWN = 10 };
    const world           *w = *state;
    kvcsa_session         *s = session_of(w, N); /* 781 blocks and 32 tokens */
    kvcsa_session         *f[K];
    const kvcsa_pool_stats before = pool_stats(w->pool);
    kvcsa_pool_stats       after;
    int32_t                ids[OWN];

    assert_int_equal(before.used_bytes - before.window_bytes, blocks_for(N) * BLOCK_BYTES);
    for (uint32_t i = 0; i < K; i++)
        f[i] = fork_of(s);
    for (uint32_t i = 0; i < K; i++) {
        own_tokens(ids, OWN, i);
        grow(w, f[i], ids, OWN);
    }
    after = pool_stats(w->pool);
    assert_int_equal(after.n_copied_blocks - before.n_copied_blocks, K);
    assert_int_equal(after.used_bytes - after.window_bytes,
                     RATE * (N / BLOCK_TOKENS * BLOCK_TOKENS) + (K + 1) * (uint64_t)BLOCK_BYTES);
    /* ten rows from slot 32 of the ring on fall into one page of 16; and one page of raw rows */
    assert_int_equal(after.window_bytes - before.window_bytes,
                     K * ((uint64_t)PAGE_BYTES + RAW_BYTES));
    assert_int_equal(after.n_copied_pages - before.n_copied_pages, 2 * K);
    check(w->pool);
    for (uint32_t i = 0; i < K; i++)
        kvcsa_session_release(&f[i]);
    assert_int_equal(pool_stats(w->pool).used_bytes, before.used_bytes);
    kvcsa_session_release(&s);
}

/* The one who made the tail goes on in it: only the forks copy. */
static void test_the_writer_of_a_tail_does_not_copy_it(void **state)
{
    const world           *w = *state;
    kvcsa_session         *s = session_of(w, 1000);
    kvcsa_session         *f = fork_of(s);
    const kvcsa_pool_stats before = pool_stats(w->pool);

    grow(w, s, w->ids + 1000, 1);
    assert_int_equal(pool_stats(w->pool).n_copied_blocks, before.n_copied_blocks);
    grow(w, f, w->ids + 5000, 1);
    assert_int_equal(pool_stats(w->pool).n_copied_blocks, before.n_copied_blocks + 1);
    kvcsa_session_release(&s);
    kvcsa_session_release(&f);
}

/* ------------------------------------------------------------------ prefixes */

static void test_look_up_probes_once_a_block(void **state)
{
    static const size_t lengths[] = {1, 127, 128, 129, 4095, 4096, 10000, 100096};
    const world        *w = *state;
    kvcsa_session      *s = session_of(w, 100096); /* 782 blocks */

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const size_t           n = lengths[i];
        const kvcsa_pool_stats before = pool_stats(w->pool);
        const int32_t          was = w->ids[n];
        kvcsa_pool_stats       after;
        kvi_prefix_match       m;

        kvi_prefix_find(w->pool, s->root, NULL, w->ids, n, &m);
        after = pool_stats(w->pool);
        assert_int_equal(m.n_tokens, n);
        kvi_prefix_match_release(w->pool, &m);
        assert_int_equal(after.n_lookups - before.n_lookups, 1);
        assert_true(after.n_probes - before.n_probes >= n / BLOCK_TOKENS);
        assert_true(after.n_probes - before.n_probes <= blocks_for(n) + 1);
        assert_int_equal(after.n_acquired, before.n_acquired);

        w->ids[n] = was + 7; /* goes on in another way than what is known */
        kvi_prefix_find(w->pool, s->root, NULL, w->ids, 100096 > n ? 100096 : n, &m);
        w->ids[n] = was;
        assert_int_equal(m.n_tokens, n);
        kvi_prefix_match_release(w->pool, &m);
        assert_true(pool_stats(w->pool).n_probes - after.n_probes <= n / BLOCK_TOKENS + 1);
    }
    kvcsa_session_release(&s);
}

/* A second session of the first n_known tokens, and n_own of its own: what the report says is what
 * happens. */
static void check_hit(const world *w, size_t n_known, size_t n_own, uint32_t how, uint64_t replay)
{
    kvcsa_session         *s = session(w, how);
    int32_t               *ids = malloc((n_known + n_own) * sizeof *ids);
    const kvcsa_pool_stats before = pool_stats(w->pool);
    kvcsa_reuse            r = {.struct_size = sizeof r};
    kvcsa_session_stats    st;
    kvcsa_pool_stats       after;
    kvcsa_error            err;

    assert_non_null(ids);
    memcpy(ids, w->ids, n_known * sizeof *ids);
    own_tokens(ids + n_known, n_own, (uint32_t)n_known + (how == KVCSA_REUSE_BOUNDED ? 50000 : 0));
    assert_ok(kvcsa_session_append(s, ids, n_known + n_own, NULL, NULL, &err));
    assert_ok(kvcsa_session_get_reuse(s, &r, &err));
    assert_int_equal(r.n_kept, 0);
    assert_int_equal(r.n_adopted, how == KVCSA_REUSE_NONE ? 0 : n_known);
    assert_int_equal(r.n_adopted + r.n_compute, n_known + n_own);
    assert_int_equal(r.n_replay, replay);
    assert_int_equal(r.how, how);
    assert_int_equal(r.reason, how == KVCSA_REUSE_NONE ? KVCSA_REASON_OFF : KVCSA_REASON_DIVERGED);
    host_step(w->pool, s);
    st = session_stats(s);
    assert_int_equal(st.n_tokens, n_known + n_own);
    assert_int_equal(st.n_adopted_tokens, r.n_adopted);
    assert_int_equal(st.n_replayed_rows, r.n_replay);
    assert_int_equal(st.n_computed_rows, r.n_compute);
    after = pool_stats(w->pool);
    assert_int_equal(after.n_hit_tokens - before.n_hit_tokens, r.n_adopted);
    /* of a block that is known in part the session has its own copy */
    assert_int_equal(after.n_copied_blocks - before.n_copied_blocks,
                     r.n_adopted % BLOCK_TOKENS != 0);
    assert_int_equal((after.used_bytes - after.window_bytes) -
                         (before.used_bytes - before.window_bytes),
                     (blocks_for(n_known + n_own) - n_known / BLOCK_TOKENS) * BLOCK_BYTES);
    check(w->pool);
    kvcsa_session_release(&s);
    free(ids);
}

static void test_a_hit_computes_what_the_report_says(void **state)
{
    const world   *w = *state;
    kvcsa_session *s = session_of(w, 20000);

    check_hit(w, 8192, 300, KVCSA_REUSE_EXACT, EXACT_ROWS);
    check_hit(w, 8193, 300, KVCSA_REUSE_EXACT, EXACT_ROWS);
    check_hit(w, 12345, 1, KVCSA_REUSE_EXACT, EXACT_ROWS);
    check_hit(w, 8192, 300, KVCSA_REUSE_BOUNDED, 128);
    check_hit(w, 8209, 77, KVCSA_REUSE_BOUNDED, 128);
    kvcsa_session_release(&s);
}

/* Nothing is shared where reuse is off: the blocks are computed, and then found to be there. */
static void test_without_reuse_everything_is_computed(void **state)
{
    const world           *w = *state;
    kvcsa_session         *s = session_of(w, 8192);
    const kvcsa_pool_stats before = pool_stats(w->pool);
    kvcsa_session         *again = session(w, KVCSA_REUSE_NONE);

    grow(w, again, w->ids, 8192);
    assert_int_equal(session_stats(again).n_computed_rows, 8192);
    assert_int_equal(session_stats(again).n_adopted_tokens, 0);
    assert_int_equal(pool_stats(w->pool).used_bytes - pool_stats(w->pool).window_bytes,
                     before.used_bytes - before.window_bytes);
    kvcsa_session_release(&again);
    kvcsa_session_release(&s);
}

/* ------------------------------------------------------------------ many sessions */

static void test_thirty_sessions_hold_a_prefix_once(void **state)
{
    enum { SHARED = 100096, OWN = 500, K = 30, N = SHARED + OWN };
    const world     *w = *state;
    int32_t         *ids = malloc(N * sizeof *ids);
    kvcsa_estimate   e = {.struct_size = sizeof e};
    kvcsa_session   *s[K];
    kvcsa_pool_stats st;
    kvcsa_error      err;
    const uint64_t   tails = blocks_for(N) - SHARED / BLOCK_TOKENS; /* of one session */

    assert_non_null(ids);
    memcpy(ids, w->ids, SHARED * sizeof *ids);
    for (uint32_t i = 0; i < K; i++) {
        s[i] = session(w, KVCSA_REUSE_DEFAULT);
        own_tokens(ids + SHARED, OWN, i);
        grow(w, s[i], ids, N);
        assert_int_equal(session_stats(s[i]).n_computed_rows, i == 0 ? N : OWN);
        assert_int_equal(session_stats(s[i]).n_adopted_tokens, i == 0 ? 0 : SHARED);
    }
    st = pool_stats(w->pool);
    assert_int_equal(st.used_bytes - st.window_bytes,
                     (uint64_t)RATE * SHARED + K * tails * BLOCK_BYTES);
    assert_int_equal(st.window_bytes, K * (WINDOW_PAGES * (uint64_t)PAGE_BYTES + RAW_BYTES));
    assert_int_equal(st.reserved_bytes, 0);

    assert_ok(kvcsa_model_estimate(w->model, NULL, N, K, SHARED, &e, &err));
    assert_int_equal(e.used_bytes, st.used_bytes);
    assert_int_equal(e.window_bytes, st.window_bytes);
    assert_int_equal(e.block_bytes, st.used_bytes - st.window_bytes);
    assert_int_equal(e.n_blocks, st.n_open_blocks + st.n_sealed_blocks);
    /* what the allocator gave: within one block */
    assert_true(st.slab_bytes <= e.slab_bytes + BLOCK_BYTES);
    assert_true(e.slab_bytes <= st.slab_bytes + BLOCK_BYTES);
    assert_true(st.record_bytes <= e.record_bytes + BLOCK_BYTES);
    assert_true(e.record_bytes <= st.record_bytes + BLOCK_BYTES);
    check(w->pool);
    for (uint32_t i = 0; i < K; i++)
        kvcsa_session_release(&s[i]);
    free(ids);
}

/* ------------------------------------------------------------------ bytes */

static void test_a_token_costs_890_bytes(void **state)
{
    static const size_t lengths[] = {128, 4096, 8192, 100096};
    world              *w = *state;

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const size_t              n = lengths[i];
        kvcsa_session            *s = session_of(w, n);
        const kvcsa_session_stats st = session_stats(s);
        const kvcsa_pool_stats    ps = pool_stats(w->pool);

        assert_int_equal(st.entry_bytes, (uint64_t)RATE * n);
        assert_int_equal(st.block_bytes, (uint64_t)RATE * n);
        assert_int_equal(st.n_blocks, n / BLOCK_TOKENS);
        assert_int_equal(ps.used_bytes - ps.window_bytes, (uint64_t)RATE * n);
        assert_int_equal(ps.window_bytes, st.window_bytes + RAW_BYTES);
        kvcsa_session_release(&s);
        stop_pool(w);
        start_pool(w, 0, KVCSA_EVICT_COST, 1);
    }
}

/* Memory of the allocator over the payload, the last block half full; windows and a row of logits
 * apart. */
static void test_memory_is_little_more_than_the_payload(void **state)
{
    world *w = *state;

    for (size_t k = 16384; k <= 65536; k *= 2) {
        const size_t        n = k - BLOCK_TOKENS / 2;
        const size_t        empty = w->fa.n_bytes;
        kvcsa_session      *s = session_of(w, n);
        const kvi_class_cost pages =
            kvi_class_cost_of(&(kvi_class_shape){KVI_CLASS_WINDOW, 0, PAGE_BYTES, 0}, WINDOW_PAGES);
        const kvi_class_cost raw =
            kvi_class_cost_of(&(kvi_class_shape){KVI_CLASS_WINDOW, 0, RAW_BYTES, 0}, 1);
        const uint64_t apart = pages.slab_bytes + pages.record_bytes + raw.slab_bytes +
                               raw.record_bytes + VOCAB * sizeof(float);

        assert_true(w->fa.n_bytes - empty - apart <= (uint64_t)RATE * n * 102 / 100);
        kvcsa_session_release(&s);
        stop_pool(w);
        start_pool(w, 0, KVCSA_EVICT_COST, 1);
    }
}

static void test_append_takes_the_same_at_every_length(void **state)
{
    static const size_t lengths[] = {4096, 100096};
    const world        *w = *state;

    for (size_t i = 0; i < 2; i++) {
        kvcsa_session         *s = session_of(w, lengths[i]);
        const kvcsa_pool_stats before = pool_stats(w->pool);
        const uint64_t         n_total = w->fa.n_total;
        kvcsa_pool_stats       after;

        grow(w, s, w->ids + N_IDS / 2, 1); /* begins a block */
        assert_int_equal(pool_stats(w->pool).n_acquired - before.n_acquired, 1);
        for (size_t k = 1; k < BLOCK_TOKENS; k++)
            grow(w, s, w->ids + N_IDS / 2 + k, 1);
        after = pool_stats(w->pool);
        assert_int_equal(after.n_acquired - before.n_acquired, 1);
        assert_int_equal(after.n_copied_blocks, before.n_copied_blocks);
        assert_int_equal(after.n_copied_pages, before.n_copied_pages);
        /* an append and a step take a few small pieces for the time of the call */
        assert_true(w->fa.n_total - n_total <= 4 * BLOCK_TOKENS + 8);
        kvcsa_session_release(&s);
    }
}

static void test_window_pages_stay_constant(void **state)
{
    const world   *w = *state;
    kvcsa_session *s = session(w, KVCSA_REUSE_DEFAULT);
    size_t         n = 0;

    grow(w, s, w->ids, 16);
    assert_int_equal(session_stats(s).window_bytes, PAGE_BYTES);
    grow(w, s, w->ids + 16, 1);
    assert_int_equal(session_stats(s).window_bytes, 2 * PAGE_BYTES);
    for (n = 17; n < 3000; n += 331) {
        grow(w, s, w->ids + n, 331);
        assert_int_equal(session_stats(s).window_bytes, WINDOW_PAGES * PAGE_BYTES);
        assert_int_equal(pool_stats(w->pool).n_window_pages, WINDOW_PAGES + 1); /* and raw rows */
    }
    grow(w, s, w->ids + n, 100000);
    assert_int_equal(pool_stats(w->pool).n_window_pages, WINDOW_PAGES + 1);
    kvcsa_session_release(&s);
}

static size_t memory_with_limit(world *w, const char *limit, size_t n)
{
    size_t         size = 0;
    char          *text = read_file(RELEASE_CONFIG, &size);
    char          *edited = edit_json(text, size, "text_config/max_position_embeddings", limit);
    char           path[] = "/tmp/kvcsa_scale_XXXXXX";
    const int      fd = mkstemp(path);
    kvcsa_model   *own = w->model;
    const size_t   empty = w->fa.n_bytes;
    kvcsa_session *s;
    size_t         bytes;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, edited, strlen(edited)), strlen(edited));
    close(fd);
    w->model = host_plan(path, NULL, NULL);
    unlink(path);
    s = session_of(w, n);
    bytes = w->fa.n_bytes - empty;
    kvcsa_session_release(&s);
    kvcsa_model_release(&w->model);
    w->model = own;
    stop_pool(w);
    start_pool(w, 0, KVCSA_EVICT_COST, 1);
    free(text);
    free(edited);
    return bytes;
}

static void test_memory_follows_the_length_not_the_limit(void **state)
{
    world       *w = *state;
    const size_t small = memory_with_limit(w, "8192", 4096);

    assert_int_equal(memory_with_limit(w, "1048576", 4096), small);
    assert_true(memory_with_limit(w, "1048576", 8192) > small + (size_t)RATE * 4000);
}

/* ------------------------------------------------------------------ eviction */

/* Tokens of the shared prefix that are still known after a thousand prompts of which each is used
 * once, in a pool that holds the prefix, one such prompt and a few blocks. */
static size_t kept_after_one_shots(world *w, uint32_t evict)
{
    enum { SHARED = 8192, ONE_SHOT = 512, K = 1000 };
    const uint64_t   window = WINDOW_PAGES * PAGE_BYTES + RAW_BYTES;
    const uint64_t   budget = (SHARED / BLOCK_TOKENS + 12) * (uint64_t)BLOCK_BYTES + 2 * window;
    int32_t          ids[ONE_SHOT];
    kvi_prefix_match m;
    kvcsa_session   *s;
    kvi_domain       domain;
    kvi_prefix_root *root;
    size_t           kept;

    stop_pool(w);
    start_pool(w, budget, evict, 0);
    domain = kvi_session_domain(w->model, kvi_pool_numerics(w->pool), 0);
    for (uint32_t i = 0; i < 3; i++) { /* the first computes it, the others use it */
        s = session(w, KVCSA_REUSE_DEFAULT);
        grow(w, s, w->ids, SHARED);
        kvcsa_session_release(&s);
    }
    for (uint32_t i = 0; i < K; i++) {
        s = session(w, KVCSA_REUSE_DEFAULT);
        own_tokens(ids, ONE_SHOT, i);
        grow(w, s, ids, ONE_SHOT);
        assert_int_equal(session_stats(s).n_computed_rows, ONE_SHOT);
        kvcsa_session_release(&s);
    }
    assert_true(pool_stats(w->pool).used_bytes <= budget);
    assert_true(pool_stats(w->pool).n_evicted_blocks >= K * (ONE_SHOT / BLOCK_TOKENS) - 12 - 64);
    root = kvi_prefix_root_find(w->pool, &domain);
    assert_non_null(root);
    kvi_prefix_find(w->pool, root, NULL, w->ids, SHARED, &m);
    kept = (size_t)m.n_tokens;
    kvi_prefix_match_release(w->pool, &m);
    kvi_prefix_root_release(w->pool, root);
    stop_pool(w);
    start_pool(w, 0, KVCSA_EVICT_COST, 1);
    return kept;
}

static void test_a_shared_prefix_outlives_one_shot_prompts(void **state)
{
    world *w = *state;

    assert_int_equal(kept_after_one_shots(w, KVCSA_EVICT_COST), 8192);
    assert_int_equal(kept_after_one_shots(w, KVCSA_EVICT_LRU), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_fork_copies_nothing),
        TEST(test_forks_cost_their_tails),
        TEST(test_the_writer_of_a_tail_does_not_copy_it),
        TEST(test_look_up_probes_once_a_block),
        TEST(test_a_hit_computes_what_the_report_says),
        TEST(test_without_reuse_everything_is_computed),
        TEST(test_thirty_sessions_hold_a_prefix_once),
        TEST(test_a_token_costs_890_bytes),
        TEST(test_memory_is_little_more_than_the_payload),
        TEST(test_append_takes_the_same_at_every_length),
        TEST(test_window_pages_stay_constant),
        TEST(test_memory_follows_the_length_not_the_limit),
        TEST(test_a_shared_prefix_outlives_one_shot_prompts),
    };

    return cmocka_run_group_tests_name("scale", tests, NULL, NULL);
}
