/* pool: sealed blocks and the prefix tree. */
#include "support/pool_host.h"

#include "base/alloc.h"

#include <stdlib.h>

#include <xxhash.h>

/* ------------------------------------------------------------------ finding */

/* Files keep keys, so they are what docs/formats.md says for ever: from its words, with xxHash. */
static XXH128_hash_t key_by_the_book(XXH128_hash_t before, const int32_t *tokens)
{
    const XXH128_hash_t own = XXH3_128bits_withSeed(tokens, PH_TOKENS * sizeof *tokens, 0);
    const uint64_t      words[] = {before.low64, before.high64, own.low64, own.high64};

    return XXH3_128bits_withSeed(words, sizeof words, 2);
}

static void test_keys_are_as_documented(void **state)
{
    const kvi_domain *d = &ph_domain;
    const uint64_t pairs[] = {1, d->weights, 2, d->adapter, 3, d->plan,    4,        d->numerics,
                              5, d->salt,    6, d->version, 7, PH_TOKENS};
    const XXH128_hash_t root = XXH3_128bits_withSeed(pairs, sizeof pairs, 1);
    XXH128_hash_t       want;
    pool_host           h;
    int32_t             t[2 * PH_TOKENS];
    kvi_block          *a = NULL;

    (void)state;
    ph_open(&h, 0, KVCSA_POOL_FILL_FREED, KVCSA_EVICT_LRU);
    ph_prompt(t, 2 * PH_TOKENS, 1);
    a = ph_seal(&h, NULL, t, 0);
    want = key_by_the_book(root, t);
    assert_true(kvi_block_key(a).lo == want.low64 && kvi_block_key(a).hi == want.high64);
    a = ph_seal(&h, a, t + PH_TOKENS, 0);
    want = key_by_the_book(want, t + PH_TOKENS);
    assert_true(kvi_block_key(a).lo == want.low64 && kvi_block_key(a).hi == want.high64);
    kvi_block_release(h.pool, a);
    ph_close(&h);
}

static void test_seal_chains_blocks(void **state)
{
    pool_host  h;
    int32_t    t[3 * PH_TOKENS];
    kvi_block *a = NULL;
    kvi_block *b = NULL;

    (void)state;
    ph_open(&h, 0, KVCSA_POOL_FILL_FREED, KVCSA_EVICT_LRU);
    ph_prompt(t, 12, 1);
    a = ph_seal(&h, NULL, t, 0);
    assert_null(kvi_block_parent(a));
    assert_int_equal(kvi_block_depth(a), 0);
    assert_true(kvi_block_is_published(h.pool, a));
    assert_false(kvi_block_is_tainted(a));
    assert_true(kvi_hash128_equal(kvi_block_key(a), kvi_prefix_key(h.root, NULL, t)));
    b = ph_seal(&h, a, t + PH_TOKENS, 0); /* our reference to a went into it */
    assert_ptr_equal(kvi_block_parent(b), a);
    assert_int_equal(kvi_block_depth(b), 1);
    assert_true(kvi_hash128_equal(kvi_block_key(b), kvi_prefix_key(h.root, a, t + PH_TOKENS)));
    assert_false(kvi_hash128_equal(kvi_prefix_key(h.root, a, t), kvi_block_key(a)));
    assert_int_equal(a->refs, 2); /* the tree's and b's */
    assert_int_equal(b->refs, 2); /* the tree's and ours */
    assert_int_equal(ph_count_events(&h, KVCSA_TRACE_PUBLISH, KVCSA_REASON_NONE), 2);
    assert_int_equal(h.events[1].position, PH_TOKENS);
    assert_int_equal(h.events[1].n_tokens, PH_TOKENS);
    ph_check(h.pool);
    kvi_block_release(h.pool, b);
    assert_int_equal(ph_match(&h, t, 12), 8); /* the tree keeps them */
    ph_close(&h);
}

static void test_sums_tell_bytes_apart(void **state)
{
    pool_host         h;
    int32_t           t[PH_TOKENS] = {1, 2, 3, 4};
    kvi_block        *a = NULL;
    kvi_block        *b = NULL;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    a = ph_seal(&h, NULL, t, KVI_SEAL_PRIVATE);
    b = ph_open_block(&h, t);
    kvi_block_main_part(b)[PH_MAIN - 1] ^= 1;
    b = kvi_block_seal(h.pool, h.root, b, NULL, KVI_SEAL_PRIVATE, NULL, 0);
    assert_true(kvi_hash128_equal(kvi_block_index_sum(a), kvi_block_index_sum(b)));
    assert_false(kvi_hash128_equal(kvi_block_main_sum(a), kvi_block_main_sum(b)));
    assert_true(kvi_hash128_equal(kvi_block_index_sum(a),
                                  kvi_hash128_of(kvi_block_index_part(a), PH_INDEX, 0)));
    kvi_block_release(h.pool, a);
    kvi_block_release(h.pool, b);
    ph_close(&h);
}

static kvi_hash128 constant_hash(const void *data, size_t n_bytes, uint64_t with)
{
    (void)data;
    (void)n_bytes;
    (void)with;
    return (kvi_hash128){.lo = 7, .hi = 7};
}

/* Every key is the same: only the tokens tell prompts apart. */
static void test_behaviour_32_tokens_are_compared(void **state)
{
    pool_host        h;
    int32_t          one[2 * PH_TOKENS], two[2 * PH_TOKENS], mixed[2 * PH_TOKENS];
    kvi_block       *a = NULL;
    kvi_block       *b = NULL;
    kvi_prefix_match match;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    kvi_pool_set_hash(h.pool, constant_hash);
    ph_prompt(one, 8, 1);
    ph_prompt(two, 8, 2);
    memcpy(mixed, one, sizeof one);
    memcpy(mixed + PH_TOKENS, two + PH_TOKENS, PH_TOKENS * sizeof *two);
    a = ph_chain(&h, NULL, one, 2, 0);
    assert_int_equal(ph_match(&h, two, 8), 0);
    kvi_prefix_find(h.pool, h.root, NULL, two, 8, &match);
    assert_int_equal(match.reason, KVCSA_REASON_UNKNOWN);
    assert_null(match.last);
    assert_null(match.partial);
    b = ph_chain(&h, NULL, two, 2, 0);
    assert_ptr_not_equal(a, b);
    assert_true(kvi_hash128_equal(kvi_block_key(a), kvi_block_key(b)));
    assert_int_equal(ph_stats(h.pool).n_published_blocks, 4);
    assert_int_equal(ph_match(&h, one, 8), 8);
    assert_int_equal(ph_match(&h, two, 8), 8);
    assert_int_equal(ph_match(&h, mixed, 8), 4); /* the same tokens behind another block */
    assert_int_equal(ph_match(&h, one + PH_TOKENS, 4), 0); /* nor are they the first ones */
    ph_check(h.pool);
    kvi_block_release(h.pool, a);
    kvi_block_release(h.pool, b);
    ph_close(&h);
}

static void test_match_may_end_inside_a_block(void **state)
{
    pool_host        h;
    int32_t          t[4 * PH_TOKENS];
    kvi_prefix_match match;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    ph_prompt(t, 16, 1);
    kvi_block_release(h.pool, ph_chain(&h, NULL, t, 3, 0));
    for (size_t n = 0; n <= 16; n++) {
        const size_t known = n < 12 ? n : 12;

        kvi_prefix_find(h.pool, h.root, NULL, t, n, &match);
        assert_int_equal(match.n_tokens, known);
        assert_int_equal(match.last != NULL, known >= PH_TOKENS);
        assert_int_equal(match.partial != NULL, known % PH_TOKENS != 0);
        if (match.last)
            assert_int_equal(kvi_block_depth(match.last), known / PH_TOKENS - 1);
        if (match.partial)
            assert_ptr_equal(kvi_block_parent(match.partial), match.last);
        assert_int_equal(match.reason, n <= 12 ? KVCSA_REASON_NONE : KVCSA_REASON_ENDED);
        kvi_prefix_match_release(h.pool, &match);
    }
    for (size_t wrong = 0; wrong < 12; wrong++) { /* another token at each place */
        t[wrong] ^= 1 << 20;
        kvi_prefix_find(h.pool, h.root, NULL, t, 16, &match);
        assert_int_equal(match.n_tokens, wrong);
        assert_int_equal(match.reason, wrong ? KVCSA_REASON_DIVERGED : KVCSA_REASON_UNKNOWN);
        kvi_prefix_match_release(h.pool, &match);
        t[wrong] ^= 1 << 20;
    }
    ph_close(&h);
}

/* Of several blocks that begin alike the one is taken that goes on longest. */
static void test_longest_part_of_a_block_wins(void **state)
{
    static const int32_t siblings[][PH_TOKENS] = {
        {5, 9, 9, 9}, {5, 6, 7, 9}, {5, 6, 9, 9}, {8, 6, 7, 1}};
    const int32_t    wanted[PH_TOKENS] = {5, 6, 7, 8};
    pool_host        h;
    kvi_prefix_match match;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    for (size_t i = 0; i < 4; i++)
        kvi_block_release(h.pool, ph_seal(&h, NULL, siblings[i], 0));
    kvi_prefix_find(h.pool, h.root, NULL, wanted, 4, &match);
    assert_int_equal(match.n_tokens, 3);
    assert_null(match.last);
    assert_memory_equal(kvi_block_tokens(match.partial), siblings[1], sizeof siblings[1]);
    kvi_prefix_match_release(h.pool, &match);
    ph_close(&h);
}

static void test_search_goes_on_from_a_block(void **state)
{
    pool_host        h;
    int32_t          t[4 * PH_TOKENS];
    kvi_block       *first = NULL;
    kvi_block       *private_one = NULL;
    kvi_prefix_match match;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    ph_prompt(t, 16, 1);
    first = ph_seal(&h, NULL, t, 0);
    kvi_block_retain(h.pool, first);
    kvi_block_release(h.pool, ph_chain(&h, first, t + 4, 3, 0));
    kvi_prefix_find(h.pool, h.root, first, t + 4, 12, &match);
    assert_int_equal(match.n_tokens, 12);
    assert_int_equal(kvi_block_depth(match.last), 3);
    assert_int_equal(match.reason, KVCSA_REASON_NONE);
    kvi_prefix_match_release(h.pool, &match);
    kvi_prefix_find(h.pool, h.root, first, t, 4, &match); /* other tokens than those behind it */
    assert_int_equal(match.n_tokens, 0);
    assert_int_equal(match.reason, KVCSA_REASON_DIVERGED);
    kvi_prefix_match_release(h.pool, &match);
    private_one = ph_seal(&h, NULL, t + 8, KVI_SEAL_PRIVATE);
    kvi_prefix_find(h.pool, h.root, private_one, t, 4, &match);
    assert_int_equal(match.n_tokens, 0);
    assert_null(match.last);
    assert_null(match.partial);
    assert_int_equal(match.reason, KVCSA_REASON_PRIVATE);
    kvi_prefix_match_release(h.pool, &match);
    kvi_block_release(h.pool, first);
    kvi_block_release(h.pool, private_one);
    ph_close(&h);
}

static void test_one_probe_a_block_and_one_more(void **state)
{
    static const size_t lengths[] = {1, 2, 100, 1000};
    enum { MOST = 1001 * PH_TOKENS };
    pool_host h;
    int32_t  *t = malloc(MOST * sizeof *t);
    uint64_t  before = 0;

    (void)state;
    assert_non_null(t);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const size_t n = lengths[i];

        ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
        ph_prompt(t, MOST, 1);
        kvi_block_release(h.pool, ph_chain(&h, NULL, t, n, 0));
        before = ph_stats(h.pool).n_probes;
        assert_int_equal(ph_match(&h, t, (n + 1) * PH_TOKENS), n * PH_TOKENS);
        assert_int_equal(ph_stats(h.pool).n_lookups, 1);
        assert_in_range(ph_stats(h.pool).n_probes - before, n, n + 1);
        ph_close(&h);
    }
    free(t);
}

/* Blocks are found in a table, whatever their number: chains in it stay short. */
static void test_buckets_grow_with_the_tree(void **state)
{
    pool_host h;
    int32_t   t[PH_TOKENS];
    size_t    longest = 0;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    for (int32_t i = 0; i < 2000; i++) {
        ph_prompt(t, PH_TOKENS, i);
        kvi_block_release(h.pool, ph_seal(&h, NULL, t, 0));
    }
    assert_true(h.pool->n_buckets >= 500);
    for (size_t i = 0; i < h.pool->n_buckets; i++) {
        size_t n = 0;

        for (const kvi_block *b = h.pool->buckets[i]; b; b = b->next_in_bucket)
            n++;
        longest = n > longest ? n : longest;
    }
    assert_in_range(longest, 1, 24); /* at 4 to a bucket, 24 has a chance of 1e-10 */
    ph_close(&h);
}

/* ------------------------------------------------------------------ publishing */

static void test_tainted_is_never_published(void **state)
{
    pool_host  h;
    int32_t    t[4 * PH_TOKENS];
    kvi_block *good = NULL;
    kvi_block *last = NULL;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    ph_prompt(t, 16, 1);
    good = ph_seal(&h, NULL, t, 0);
    last = ph_seal(&h, good, t + 4, KVI_SEAL_TAINTED);
    assert_true(kvi_block_is_tainted(last));
    assert_false(kvi_block_is_published(h.pool, last));
    last = ph_seal(&h, last, t + 8, 0); /* what is behind it was made from it */
    assert_false(kvi_block_is_published(h.pool, last));
    assert_int_equal(ph_match(&h, t, 16), 4);
    assert_int_equal(kvi_prefix_publish(h.pool, h.root, last), 1);
    assert_int_equal(ph_match(&h, t, 16), 4);
    assert_int_equal(ph_stats(h.pool).n_published_blocks, 1);
    ph_check(h.pool);
    kvi_block_release(h.pool, last);
    assert_int_equal(ph_stats(h.pool).n_sealed_blocks, 1);
    ph_close(&h);
}

static void test_equal_blocks_become_one(void **state)
{
    pool_host  h;
    int32_t    t[2 * PH_TOKENS];
    kvi_block *chains[5];
    uint64_t   used = 0;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    ph_prompt(t, 8, 1);
    for (size_t i = 0; i < 5; i++) { /* five sessions with one prompt */
        chains[i] = ph_chain(&h, NULL, t, 2, 0);
        assert_ptr_equal(chains[i], chains[0]);
        used = ph_stats(h.pool).used_bytes;
        assert_int_equal(used, 2 * PH_BLOCK);
    }
    assert_int_equal(chains[0]->refs, 6);
    assert_int_equal(kvi_block_parent(chains[0])->refs, 2);
    ph_check(h.pool);
    for (size_t i = 0; i < 5; i++)
        kvi_block_release(h.pool, chains[i]);
    ph_close(&h);
}

static void test_private_chain_is_published_later(void **state)
{
    pool_host  h;
    int32_t    t[3 * PH_TOKENS];
    kvi_block *last = NULL;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    ph_prompt(t, 12, 1);
    last = ph_chain(&h, NULL, t, 3, KVI_SEAL_PRIVATE);
    assert_int_equal(ph_match(&h, t, 12), 0);
    assert_int_equal(h.n_events, 0);
    assert_int_equal(kvi_prefix_publish(h.pool, h.root, last), 3);
    assert_int_equal(ph_match(&h, t, 12), 12);
    assert_int_equal(ph_count_events(&h, KVCSA_TRACE_PUBLISH, KVCSA_REASON_NONE), 3);
    assert_int_equal(kvi_prefix_publish(h.pool, h.root, last), 3); /* and again */
    assert_int_equal(ph_stats(h.pool).n_published_blocks, 3);
    ph_check(h.pool);
    kvi_block_release(h.pool, last);
    assert_int_equal(ph_match(&h, t, 12), 12);
    ph_close(&h);
}

static void test_publish_does_not_replace(void **state)
{
    pool_host  h;
    int32_t    t[2 * PH_TOKENS];
    kvi_block *mine = NULL;
    kvi_block *theirs = NULL;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    ph_prompt(t, 8, 1);
    mine = ph_chain(&h, NULL, t, 2, KVI_SEAL_PRIVATE);
    theirs = ph_chain(&h, NULL, t, 2, 0);
    assert_ptr_not_equal(mine, theirs);
    kvi_prefix_publish(h.pool, h.root, mine);
    assert_false(kvi_block_is_published(h.pool, mine));
    assert_true(kvi_block_is_published(h.pool, theirs));
    assert_int_equal(ph_stats(h.pool).n_published_blocks, 2);
    ph_check(h.pool);
    kvi_block_release(h.pool, mine);
    kvi_block_release(h.pool, theirs);
    assert_int_equal(ph_match(&h, t, 8), 8);
    ph_close(&h);
}

static void test_each_field_of_the_domain_separates(void **state)
{
    pool_host h;
    int32_t   t[PH_TOKENS];

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    ph_prompt(t, PH_TOKENS, 1);
    kvi_block_release(h.pool, ph_seal(&h, NULL, t, 0));
    for (size_t field = 0; field < sizeof(kvi_domain) / sizeof(uint64_t); field++) {
        kvi_domain       other = ph_domain;
        kvi_prefix_root *root = NULL;
        kvi_prefix_match match;

        memcpy((uint8_t *)&other + field * sizeof(uint64_t), &(uint64_t){99}, sizeof(uint64_t));
        assert_null(kvi_prefix_root_find(h.pool, &other));
        root = ph_root(h.pool, &other);
        assert_ptr_not_equal(root, h.root);
        assert_false(kvi_hash128_equal(kvi_prefix_key(root, NULL, t),
                                       kvi_prefix_key(h.root, NULL, t)));
        kvi_prefix_find(h.pool, root, NULL, t, PH_TOKENS, &match);
        assert_int_equal(match.n_tokens, 0);
        assert_int_equal(match.reason, KVCSA_REASON_UNKNOWN);
        kvi_prefix_match_release(h.pool, &match);
        kvi_prefix_root_release(h.pool, root);
        assert_null(kvi_prefix_root_find(h.pool, &other)); /* gone with its last user */
    }
    assert_int_equal(ph_match(&h, t, PH_TOKENS), PH_TOKENS);
    ph_close(&h);
}

static void test_root_lives_while_blocks_are_below(void **state)
{
    const kvi_domain other = {.weights = 1, .version = KVI_DOMAIN_VERSION};
    pool_host        h;
    int32_t          t[PH_TOKENS] = {1, 2, 3, 4};
    kvi_prefix_root *root = NULL;
    kvi_block       *block = NULL;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    root = ph_root(h.pool, &other);
    assert_memory_equal(kvi_prefix_root_domain(root), &other, sizeof other);
    block = kvi_block_seal(h.pool, root, ph_open_block(&h, t), NULL, 0, NULL, 0);
    kvi_block_release(h.pool, block);
    kvi_prefix_root_release(h.pool, root);
    ph_check(h.pool);
    assert_ptr_equal(kvi_prefix_root_find(h.pool, &other), root);
    kvi_prefix_forget(h.pool, root, NULL);
    ph_check(h.pool);
    assert_memory_equal(kvi_prefix_root_domain(root), &other, sizeof other); /* we have it */
    kvi_prefix_root_release(h.pool, root);
    assert_null(kvi_prefix_root_find(h.pool, &other));
    ph_close(&h);
}

/* ------------------------------------------------------------------ forget, pin, erase */

typedef struct fork_tree { /* a - b - c, and d behind a */
    int32_t    abc[3 * PH_TOKENS];
    int32_t    ad[2 * PH_TOKENS];
    kvi_block *a, *b, *c, *d;
} fork_tree;

/* Nobody holds a block of it, unless told so afterwards. */
static void grow_fork(pool_host *h, fork_tree *t)
{
    ph_prompt(t->abc, 12, 1);
    ph_prompt(t->ad, 8, 2);
    memcpy(t->ad, t->abc, PH_TOKENS * sizeof *t->ad);
    t->c = ph_chain(h, NULL, t->abc, 3, 0);
    t->b = kvi_block_parent(t->c);
    t->a = kvi_block_parent(t->b);
    t->d = ph_chain(h, NULL, t->ad, 2, 0);
    assert_ptr_equal(kvi_block_parent(t->d), t->a);
    kvi_block_release(h->pool, t->c);
    kvi_block_release(h->pool, t->d);
    h->n_events = 0;
}

static void test_forget_keeps_what_others_use(void **state)
{
    pool_host h;
    fork_tree t;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    grow_fork(&h, &t);
    assert_int_equal(kvi_prefix_forget(h.pool, h.root, t.c), 2 * PH_BLOCK); /* c, then b */
    assert_int_equal(ph_match(&h, t.abc, 12), 4);
    assert_int_equal(ph_match(&h, t.ad, 8), 8);
    assert_int_equal(ph_count_events(&h, KVCSA_TRACE_EVICT, KVCSA_REASON_FORGOTTEN), 2);
    ph_check(h.pool);
    assert_int_equal(kvi_prefix_forget(h.pool, h.root, t.d), 2 * PH_BLOCK); /* d, and a now */
    assert_int_equal(ph_stats(h.pool).used_bytes, 0);
    ph_close(&h);
}

static void test_forget_takes_all_below(void **state)
{
    pool_host h;
    fork_tree t;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    grow_fork(&h, &t);
    kvi_block_retain(h.pool, t.c); /* a session that is still there */
    assert_int_equal(kvi_prefix_forget(h.pool, h.root, t.a), PH_BLOCK); /* d alone is free */
    assert_int_equal(ph_match(&h, t.abc, 12), 0);
    assert_int_equal(ph_stats(h.pool).n_published_blocks, 0);
    assert_int_equal(ph_stats(h.pool).used_bytes, 3 * PH_BLOCK);
    assert_memory_equal(kvi_block_tokens(t.c), t.abc + 8, PH_TOKENS * sizeof(int32_t));
    ph_check(h.pool);
    kvi_block_release(h.pool, t.c);
    assert_int_equal(ph_stats(h.pool).used_bytes, 0);
    ph_close(&h);
}

static void test_forget_one_root_or_all(void **state)
{
    const kvi_domain other = {.weights = 1, .version = KVI_DOMAIN_VERSION};
    pool_host        h;
    fork_tree        t;
    kvi_prefix_root *root = NULL;
    kvi_block       *block = NULL;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    grow_fork(&h, &t);
    root = ph_root(h.pool, &other);
    block = kvi_block_seal(h.pool, root, ph_open_block(&h, t.abc), NULL, 0, NULL, 0);
    kvi_block_release(h.pool, block);
    assert_int_equal(kvi_prefix_forget(h.pool, h.root, NULL), 4 * PH_BLOCK);
    assert_int_equal(ph_stats(h.pool).used_bytes, PH_BLOCK);
    grow_fork(&h, &t);
    kvi_prefix_root_release(h.pool, root);
    assert_int_equal(kvi_prefix_forget(h.pool, NULL, NULL), 5 * PH_BLOCK);
    assert_null(kvi_prefix_root_find(h.pool, &other));
    ph_check(h.pool);
    ph_close(&h);
}

static void test_pins_hold_until_unpinned_as_often(void **state)
{
    pool_host h;
    fork_tree t;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    grow_fork(&h, &t);
    assert_int_equal(kvi_prefix_unpin(h.pool, t.b), 0); /* was not */
    kvi_prefix_pin(h.pool, t.b);
    kvi_prefix_pin(h.pool, t.b);
    assert_int_equal(ph_stats(h.pool).n_pinned_blocks, 1);
    kvi_pool_trim(h.pool, 0, NULL);
    assert_int_equal(ph_match(&h, t.abc, 12), 8); /* and what it needs, but no more */
    assert_int_equal(ph_match(&h, t.ad, 8), 4);
    assert_int_equal(kvi_prefix_unpin(h.pool, t.b), 1);
    kvi_pool_trim(h.pool, 0, NULL);
    assert_int_equal(ph_match(&h, t.abc, 12), 8);
    ph_check(h.pool);
    assert_int_equal(kvi_prefix_unpin(h.pool, t.b), 1);
    assert_int_equal(kvi_prefix_unpin(h.pool, t.b), 0);
    assert_int_equal(ph_stats(h.pool).n_pinned_blocks, 0);
    kvi_pool_trim(h.pool, 0, NULL);
    assert_int_equal(ph_stats(h.pool).used_bytes, 0);
    grow_fork(&h, &t);
    kvi_prefix_pin(h.pool, t.b);
    kvi_prefix_pin(h.pool, t.b);
    kvi_prefix_forget(h.pool, h.root, t.a); /* drops pins */
    assert_int_equal(ph_stats(h.pool).n_pinned_blocks, 0);
    assert_int_equal(ph_stats(h.pool).used_bytes, 0);
    ph_close(&h);
}

static void test_behaviour_34_erase_zeroes_what_nobody_else_holds(void **state)
{
    pool_host      h;
    fork_tree      t;
    const uint8_t *main_of_c = NULL;
    const uint8_t *main_of_a = NULL;
    uint8_t        zeros[PH_MAIN] = {0};

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    grow_fork(&h, &t);
    main_of_c = kvi_block_main_part(t.c);
    main_of_a = kvi_block_main_part(t.a);
    kvi_block_retain(h.pool, t.c);
    kvi_prefix_erase(h.pool, t.c);
    assert_int_equal(ph_count_events(&h, KVCSA_TRACE_EVICT, KVCSA_REASON_ERASED), 2);
    assert_false(kvi_block_is_published(h.pool, t.b));
    assert_true(kvi_block_is_published(h.pool, t.a)); /* d is behind it */
    ph_check(h.pool);
    kvi_block_release(h.pool, t.c);
    assert_memory_equal(main_of_c, zeros, PH_MAIN);
    assert_memory_equal(kvi_block_tokens(t.c), zeros, PH_TOKENS * sizeof(int32_t));
    assert_memory_equal(kvi_block_main_part(t.b), zeros, PH_MAIN);
    assert_memory_not_equal(main_of_a, zeros, PH_MAIN);
    assert_int_equal(ph_match(&h, t.ad, 8), 8);
    kvi_prefix_forget(h.pool, h.root, NULL); /* the others have let go: zeroed now */
    assert_memory_equal(main_of_a, zeros, PH_MAIN);
    ph_close(&h);
}

static void test_erase_waits_for_another_holder(void **state)
{
    static const uint8_t zeros[PH_MAIN];
    pool_host            h;
    fork_tree            t;
    const uint8_t       *main_of_b = NULL;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    grow_fork(&h, &t);
    kvi_block_retain(h.pool, t.c);
    kvi_block_retain(h.pool, t.b); /* somebody else's */
    kvi_prefix_erase(h.pool, t.c);
    assert_false(kvi_block_is_published(h.pool, t.c));
    assert_true(kvi_block_is_published(h.pool, t.b));
    kvi_block_release(h.pool, t.c);
    assert_int_equal(ph_match(&h, t.abc, 12), 8);
    ph_check(h.pool);
    main_of_b = kvi_block_main_part(t.b);
    kvi_block_release(h.pool, t.b); /* now nobody but the tree has it, which is no holder */
    assert_int_equal(ph_match(&h, t.abc, 12), 4);
    assert_memory_equal(main_of_b, zeros, PH_MAIN);
    assert_int_equal(ph_match(&h, t.ad, 8), 8);
    assert_int_equal(ph_count_events(&h, KVCSA_TRACE_EVICT, KVCSA_REASON_ERASED), 2);
    ph_close(&h);
}

/* ------------------------------------------------------------------ stored windows */

static void test_stored_window_is_found(void **state)
{
    pool_host  h;
    int32_t    t[4 * PH_TOKENS];
    kvi_block *window[3] = {NULL, NULL, NULL};
    kvi_block *got[3] = {NULL, NULL, NULL};
    kvi_block *last = NULL;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    ph_prompt(t, 16, 1);
    window[0] = ph_block(h.pool, h.page_cls);
    window[2] = ph_block(h.pool, h.page_cls);
    memset(kvi_block_main_part(window[2]), 42, PH_PAGE);
    last = ph_seal(&h, NULL, t, 0);
    assert_int_equal(kvi_block_stored_window(h.pool, last, 0, got, 3), 0);
    last = kvi_block_seal(h.pool, h.root, ph_open_block(&h, t + 4), last, 0, window, 3);
    kvi_blocks_release(h.pool, window, 3); /* the block keeps them now */
    last = ph_chain(&h, last, t + 8, 2, 0);
    ph_check(h.pool);
    assert_int_equal(kvi_block_stored_window(h.pool, last, 2, got, 3), 0); /* not so far up */
    assert_int_equal(kvi_block_stored_window(h.pool, last, 1, got, 3), 2 * PH_TOKENS);
    assert_ptr_equal(got[0], window[0]);
    assert_null(got[1]);
    assert_ptr_equal(got[2], window[2]);
    assert_int_equal(kvi_block_main_part(got[2])[PH_PAGE - 1], 42);
    kvi_block_release(h.pool, last);
    kvi_prefix_forget(h.pool, h.root, NULL);
    assert_int_equal(ph_stats(h.pool).used_bytes, 2 * PH_PAGE); /* ours alone now */
    assert_int_equal(ph_stats(h.pool).n_window_pages, 2);
    kvi_blocks_release(h.pool, got, 3);
    ph_close(&h);
}

/* ------------------------------------------------------------------ length */

/* One reference more or less is one step a block, without recursion. */
static void test_long_chain_is_let_go(void **state)
{
    enum { N = 8192 };
    pool_host  h;
    int32_t    t[PH_TOKENS];
    kvi_block *last = NULL;

    (void)state;
    for (uint32_t round = 0; round < 3; round++) {
        ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
        last = NULL;
        for (int32_t i = 0; i < N; i++) {
            ph_prompt(t, PH_TOKENS, i);
            last = ph_seal(&h, last, t, round == 0 ? KVI_SEAL_PRIVATE : 0);
        }
        assert_int_equal(kvi_block_depth(last), N - 1);
        kvi_block_release(h.pool, last);
        ph_check(h.pool);
        if (round == 1)
            assert_int_equal(kvi_prefix_forget(h.pool, h.root, NULL), (uint64_t)N * PH_BLOCK);
        if (round == 2) {
            assert_int_equal(ph_stats(h.pool).evictable_bytes, (uint64_t)N * PH_BLOCK);
            kvi_pool_trim(h.pool, 0, NULL);
        }
        assert_int_equal(ph_stats(h.pool).used_bytes, 0);
        ph_close(&h);
    }
}

static void test_behaviour_35_forget_returns_to_the_baseline(void **state)
{
    pool_host h;
    int32_t   t[5 * PH_TOKENS];
    size_t    baseline = 0;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_COST);
    kvi_pool_trim(h.pool, 0, NULL);
    baseline = h.fa.n_bytes;
    for (int round = 0; round < 2; round++) {
        for (int32_t i = 0; i < 500; i++) {
            ph_prompt(t, 20, i);
            kvi_block_release(h.pool, ph_chain(&h, NULL, t, 5, 0));
        }
        assert_int_equal(ph_stats(h.pool).used_bytes, 2500 * PH_BLOCK);
        if (round == 0) {
            assert_int_equal(kvi_prefix_forget(h.pool, NULL, NULL), 2500 * PH_BLOCK);
        } else {
            for (int32_t i = 0; i < 500; i++) { /* by name */
                kvi_prefix_match match;

                ph_prompt(t, 20, i);
                kvi_prefix_find(h.pool, h.root, NULL, t, 4, &match);
                assert_int_equal(kvi_prefix_forget(h.pool, h.root, match.last), 4 * PH_BLOCK);
                kvi_prefix_match_release(h.pool, &match);
            }
        }
        assert_int_equal(ph_stats(h.pool).used_bytes, 0);
        assert_int_equal(ph_stats(h.pool).n_published_blocks, 0);
        kvi_pool_trim(h.pool, 0, NULL);
        assert_int_equal(h.fa.n_bytes, baseline);
    }
    ph_close(&h);
}

/* ------------------------------------------------------------------ failing allocations */

/* A session with stored windows and a private block; stops at the first status that is not OK. */
static kvcsa_status live_once(pool_host *h)
{
    int32_t      t[3 * PH_TOKENS];
    kvi_block   *page = NULL;
    kvi_block   *chain = NULL;
    kvi_block   *block = NULL;
    kvi_block   *copy = NULL;
    kvcsa_status st = KVCSA_OK;
    kvcsa_error  err;

    ph_prompt(t, 12, 1);
    st = kvi_pool_class_acquire(h->pool, &ph_shape, &h->cls, &err);
    if (st == KVCSA_OK)
        st = kvi_pool_class_acquire(h->pool, &ph_page_shape, &h->page_cls, &err);
    if (st == KVCSA_OK)
        st = kvi_prefix_root_acquire(h->pool, &ph_domain, PH_TOKENS, &h->root, &err);
    if (st == KVCSA_OK)
        st = kvi_pool_reserve(h->pool, h->page_cls, 1, &err);
    if (st == KVCSA_OK && (st = kvi_block_acquire(h->pool, h->page_cls, &page, &err)) != KVCSA_OK)
        kvi_pool_unreserve(h->pool, h->page_cls, 1);
    for (size_t i = 0; i < 3 && st == KVCSA_OK; i++) {
        assert_int_equal(kvi_pool_reserve(h->pool, h->cls, 2, &err), KVCSA_OK);
        st = kvi_block_acquire(h->pool, h->cls, &block, &err);
        if (st != KVCSA_OK) {
            assert_null(block);
            kvi_pool_unreserve(h->pool, h->cls, 2);
            break;
        }
        memcpy(kvi_block_tokens(block), t + i * PH_TOKENS, PH_TOKENS * sizeof *t);
        memset(kvi_block_index_part(block), 0, PH_INDEX);
        memset(kvi_block_main_part(block), 0, PH_MAIN);
        st = kvi_block_acquire_copy(h->pool, block, &copy, &err);
        if (st != KVCSA_OK) {
            assert_null(copy);
            kvi_pool_unreserve(h->pool, h->cls, 1);
        }
        kvi_block_release(h->pool, copy);
        copy = NULL;
        chain = kvi_block_seal(h->pool, h->root, block, chain, i == 2 ? KVI_SEAL_PRIVATE : 0,
                               &page, 1);
        block = NULL;
        assert_int_equal(kvi_block_state(chain), KVI_BLOCK_SEALED);
        ph_check(h->pool);
    }
    if (st == KVCSA_OK) { /* a table that could not grow hides nothing */
        assert_int_equal(kvi_prefix_publish(h->pool, h->root, chain), 3);
        assert_int_equal(ph_match(h, t, 12), 12);
    }
    ph_check(h->pool);
    kvi_block_release(h->pool, chain);
    kvi_block_release(h->pool, page);
    kvi_prefix_forget(h->pool, NULL, NULL);
    assert_int_equal(ph_stats(h->pool).used_bytes, 0);
    assert_int_equal(ph_stats(h->pool).reserved_bytes, 0);
    if (h->root)
        kvi_prefix_root_release(h->pool, h->root);
    kvi_pool_class_release(h->pool, h->cls);
    kvi_pool_class_release(h->pool, h->page_cls);
    ph_check(h->pool);
    kvi_pool_release(h->pool);
    return st;
}

static void test_every_failing_allocation_is_survived(void **state)
{
    static pool_host h;
    uint64_t         n = 1;
    uint64_t         n_hidden = 0; /* failures that only cost a stored window or speed */

    (void)state;
    for (;; n++) {
        kvcsa_pool_params p = {.struct_size = sizeof p, .n_threads = 1};
        kvcsa_status      st = KVCSA_OK;

        memset(&h, 0, sizeof h);
        fault_alloc_init(&h.fa);
        p.allocator = &h.fa.hook;
        assert_int_equal(kvi_pool_create(&p, &h.pool, NULL), KVCSA_OK);
        fault_alloc_fail_at(&h.fa, n);
        st = live_once(&h);
        assert_true(fault_alloc_is_clean(&h.fa));
        if (!fault_alloc_hit(&h.fa)) {
            assert_int_equal(st, KVCSA_OK);
            break;
        }
        if (st == KVCSA_OK)
            n_hidden++;
        else
            assert_int_equal(st, KVCSA_ERR_NOMEM);
    }
    assert_in_range(n, 8, 100);
    assert_in_range(n_hidden, 3, n - 6); /* three stored windows, perhaps the table */
}

/* ------------------------------------------------------------------ the check itself */

static void test_check_names_what_is_broken(void **state)
{
    pool_host  h;
    fork_tree  t;
    kvi_block *mine = NULL;
    size_t     bucket = 0;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    grow_fork(&h, &t);
    mine = ph_seal(&h, NULL, t.abc, KVI_SEAL_TAINTED);
    kvi_block_retain(h.pool, t.c);
    kvi_prefix_pin(h.pool, t.b);
    ph_check(h.pool);
    while (!h.pool->buckets[bucket])
        bucket++;

    PH_BROKEN_BY(h.pool, kvi_block_main_part(t.a)[7], (uint8_t)(old_ ^ 1), "P10: ");
    PH_BROKEN_BY(h.pool, kvi_block_index_part(mine)[0], (uint8_t)(old_ ^ 128), "P10: ");
    PH_BROKEN_BY(h.pool, t.b->parent, mine, "T1: ");
    PH_BROKEN_BY(h.pool, t.b->tainted, 1, "T1: ");
    PH_BROKEN_BY(h.pool, t.b->root, NULL, "T1: ");
    PH_BROKEN_BY(h.pool, h.pool->buckets[bucket], NULL, "T2: ");
    PH_BROKEN_BY(h.pool, h.pool->buckets[bucket]->next_in_bucket, mine, "T2: ");
    PH_BROKEN_BY(h.pool, t.c->prev_sibling, t.b, "T2: ");
    PH_BROKEN_BY(h.pool, kvi_block_tokens(t.b)[1], old_ + 1, "T3: ");
    PH_BROKEN_BY(h.pool, h.root->domain.salt, old_ + 1, "T3: ");
    PH_BROKEN_BY(h.pool, t.a->refs, old_ - 1, "T5: ");
    PH_BROKEN_BY(h.pool, t.b->refs, old_ - 1, "T5: ");
    PH_BROKEN_BY(h.pool, t.b->pins, 0, "T6: ");
    PH_BROKEN_BY(h.pool, mine->pins, 1, "T6: ");
    PH_BROKEN_BY(h.pool, h.pool->n_pinned, 0, "T6: ");
    PH_BROKEN_BY(h.pool, h.root->n_published, 0, "T6: ");
    PH_BROKEN_BY(h.pool, mine->published, 1, "T6: ");
    PH_BROKEN_BY(h.pool, t.a->first_child, NULL, "T");
    PH_BROKEN_BY(h.pool, h.root->next, h.root, "T");
    kvi_prefix_unpin(h.pool, t.b);
    kvi_block_release(h.pool, t.c);
    kvi_block_release(h.pool, mine);
    ph_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_are_as_documented),
        cmocka_unit_test(test_seal_chains_blocks),
        cmocka_unit_test(test_sums_tell_bytes_apart),
        cmocka_unit_test(test_behaviour_32_tokens_are_compared),
        cmocka_unit_test(test_match_may_end_inside_a_block),
        cmocka_unit_test(test_longest_part_of_a_block_wins),
        cmocka_unit_test(test_search_goes_on_from_a_block),
        cmocka_unit_test(test_one_probe_a_block_and_one_more),
        cmocka_unit_test(test_buckets_grow_with_the_tree),
        cmocka_unit_test(test_tainted_is_never_published),
        cmocka_unit_test(test_equal_blocks_become_one),
        cmocka_unit_test(test_private_chain_is_published_later),
        cmocka_unit_test(test_publish_does_not_replace),
        cmocka_unit_test(test_each_field_of_the_domain_separates),
        cmocka_unit_test(test_root_lives_while_blocks_are_below),
        cmocka_unit_test(test_forget_keeps_what_others_use),
        cmocka_unit_test(test_forget_takes_all_below),
        cmocka_unit_test(test_forget_one_root_or_all),
        cmocka_unit_test(test_pins_hold_until_unpinned_as_often),
        cmocka_unit_test(test_behaviour_34_erase_zeroes_what_nobody_else_holds),
        cmocka_unit_test(test_erase_waits_for_another_holder),
        cmocka_unit_test(test_stored_window_is_found),
        cmocka_unit_test(test_long_chain_is_let_go),
        cmocka_unit_test(test_behaviour_35_forget_returns_to_the_baseline),
        cmocka_unit_test(test_every_failing_allocation_is_survived),
        cmocka_unit_test(test_check_names_what_is_broken),
    };

    return cmocka_run_group_tests_name("prefix", tests, NULL, NULL);
}
