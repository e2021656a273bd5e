/* What sharing costs: forks, look-ups of prefixes, and the memory of a session. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "cache_session.h"
#include "pool/pool_int.h"
#include "session/session_int.h"

#define FORKS 64 /* a run: one alone is too short for the clock */

static kvcsa_pool_stats pool_stats(kvcsa_pool *pool)
{
    kvcsa_pool_stats st = {.struct_size = sizeof st};
    kvcsa_error      err;

    if (kvcsa_pool_get_stats(pool, &st, &err) != KVCSA_OK)
        bench_die("pool statistics", err.text);
    return st;
}

/* ------------------------------------------------------------------ fork */

typedef struct forks {
    kvcsa_pool    *pool;
    kvcsa_session *small, *large;
    kvi_block    **blocks; /* those of `large` */
    size_t         n_blocks;
} forks;

static int64_t fork_many(kvcsa_session *s)
{
    kvcsa_session *made[FORKS];
    const uint64_t n = kvcsa_session_length(s);
    kvcsa_error    err;
    int64_t        start;
    int64_t        ns;

    start = bench_now_ns();
    for (int i = 0; i < FORKS; i++)
        if (kvcsa_session_fork(s, n, NULL, &made[i], &err) != KVCSA_OK)
            bench_die("fork", err.text);
    ns = bench_now_ns() - start;
    for (int i = 0; i < FORKS; i++)
        kvcsa_session_release(&made[i]);
    return ns;
}

static int64_t fork_large(void *arg)
{
    return fork_many(((const forks *)arg)->large);
}

static int64_t fork_small(void *arg)
{
    return fork_many(((const forks *)arg)->small);
}

/* What a fork would cost that takes a reference to each block; FORKS times, as the others. */
static int64_t retain_each(void *arg)
{
    const forks  *f = arg;
    const int64_t start = bench_now_ns();
    int64_t       ns;

    kvi_blocks_retain(f->pool, f->blocks, f->n_blocks);
    ns = bench_now_ns() - start;
    kvi_blocks_release(f->pool, f->blocks, f->n_blocks);
    return ns * FORKS;
}

static void list_blocks(forks *f)
{
    kvi_block *b = f->large->now.last;

    f->n_blocks = b ? (size_t)kvi_block_depth(b) + 1 : 0;
    if (!(f->blocks = calloc(f->n_blocks + 1, sizeof(kvi_block *))))
        bench_die("memory", "out of it");
    for (size_t i = f->n_blocks; i-- > 0; b = kvi_block_parent(b))
        f->blocks[i] = b;
}

static void bench_fork(const bench_cache_params *p, forks *f, bench_rows *out)
{
    const uint64_t         n_large = kvcsa_session_length(f->large);
    const kvcsa_pool_stats before = pool_stats(f->pool);
    kvcsa_pool_stats       after;
    bench_row             *r;

    r = bench_add(out, "fork", kvcsa_session_length(f->small), "ns");
    r->goal = BENCH_AT_MOST;
    r->limit = 2000;
    bench_pair(r, fork_small, NULL, f, p->n_runs);
    bench_scale(r, 1.0 / FORKS);

    r = bench_add(out, "fork", n_large, "ns");
    r->goal = BENCH_AT_MOST;
    r->limit = 2000;
    r->peer = "retain every block";
    bench_pair(r, fork_large, retain_each, f, p->n_runs);
    bench_scale(r, 1.0 / FORKS);

    r = bench_add(out, "fork.flat", n_large, "ns");
    r->goal = BENCH_RATIO;
    r->limit = 1.2;
    r->peer = "fork of the small one";
    bench_pair(r, fork_large, fork_small, f, p->n_runs);
    bench_scale(r, 1.0 / FORKS);

    after = pool_stats(f->pool);
    r = bench_add(out, "fork.copies", n_large, "acquired");
    r->goal = BENCH_EQUAL;
    r->min = r->median = (double)(after.n_acquired - before.n_acquired);
}

/* ------------------------------------------------------------------ prefixes */

typedef struct lookup {
    kvcsa_pool      *pool;
    kvi_prefix_root *root;
    const int32_t   *tokens;
    size_t           n;       /* tokens */
    size_t           n_other; /* of the shorter one that it is compared with */
    uint32_t         block_tokens;
} lookup;

/* So many searches that the clock has something to measure. */
static size_t n_loops(const lookup *l, size_t n)
{
    return kvi_max_size(1, 4096 / (n / l->block_tokens));
}

static int64_t find_n(const lookup *l, size_t n)
{
    const size_t loops = n_loops(l, n);
    int64_t      ns = 0;

    for (size_t i = 0; i < loops; i++) {
        const int64_t    start = bench_now_ns();
        kvi_prefix_match m;

        kvi_prefix_find(l->pool, l->root, NULL, l->tokens, n, &m);
        ns += bench_now_ns() - start;
        if (m.n_tokens != n)
            bench_die("prefix.lookup", "a prefix that is there was not found");
        kvi_prefix_match_release(l->pool, &m);
    }
    return ns / (int64_t)loops;
}

static int64_t find(void *arg)
{
    return find_n(arg, ((const lookup *)arg)->n);
}

static int64_t find_other(void *arg)
{
    return find_n(arg, ((const lookup *)arg)->n_other);
}

/* Nothing but the hash of the same tokens, block by block. */
static int64_t hash_only(void *arg)
{
    const lookup *l = arg;
    const size_t  loops = n_loops(l, l->n);
    const int64_t start = bench_now_ns();

    for (size_t k = 0; k < loops; k++)
        for (size_t i = 0; i + l->block_tokens <= l->n; i += l->block_tokens) {
            const kvi_hash128 h =
                kvi_hash128_of(l->tokens + i, l->block_tokens * sizeof *l->tokens, k);

            __asm__ volatile("" : : "r"(h.lo)); /* wanted, as far as the compiler can tell */
        }
    return (bench_now_ns() - start) / (int64_t)loops;
}

static void bench_lookup(const bench_cache_params *p, lookup *l, bench_rows *out)
{
    const size_t sizes[] = {4096, 131072, (size_t)p->largest};
    bench_row   *r;

    for (size_t i = 0; i < 3; i++) {
        if (i && sizes[i] <= sizes[i - 1])
            continue;
        l->n = sizes[i];
        r = bench_add(out, "prefix.lookup", l->n, "ns/block");
        r->goal = BENCH_AT_MOST;
        r->limit = 100;
        r->peer = "XXH3-128 of the tokens";
        bench_pair(r, find, hash_only, l, p->n_runs);
        bench_scale(r, l->block_tokens / (double)l->n);
    }
    l->n = (size_t)p->largest;
    l->n_other = l->n / 8;
    r = bench_add(out, "prefix.linear", l->n, "us");
    r->goal = BENCH_RATIO;
    r->limit = 9.5;
    r->peer = "an eighth of the tokens";
    bench_pair(r, find, find_other, l, p->n_runs);
    bench_scale(r, 1e-3);
}

void bench_pool(const bench_cache_params *p, bench_rows *out)
{
    kvcsa_model  *model = cache_model(p->config);
    int32_t      *tokens = cache_tokens((size_t)p->largest);
    counted_alloc alloc;
    forks         f;
    lookup        l;

    counted_alloc_init(&alloc, 0);
    f.pool = cache_create_pool(&alloc, 1);
    f.small = cache_session(f.pool, model, tokens, 4096, 1);
    f.large = cache_session(f.pool, model, tokens, (size_t)p->largest, 2);
    list_blocks(&f);
    bench_fork(p, &f, out);
    l = (lookup){.pool = f.pool,
                 .root = f.large->root,
                 .tokens = tokens,
                 .block_tokens = kvi_session_block_tokens(f.large)};
    bench_lookup(p, &l, out);
    free(f.blocks);
    kvcsa_session_release(&f.small);
    kvcsa_session_release(&f.large);
    kvcsa_pool_release(&f.pool);
    kvcsa_model_release(&model);
    free(tokens);
}

/* ------------------------------------------------------------------ memory */

/* Slabs and records of window and raw-row pages, which are reported apart. */
static uint64_t page_memory(const kvcsa_pool *pool)
{
    uint64_t n = 0;

    for (const kvi_block_class *c = pool->classes; c; c = c->next)
        for (const kvi_slab *s = c->slabs; s && c->shape.kind == KVI_CLASS_WINDOW; s = s->next)
            n += s->n_blocks * (c->index_stride + c->main_stride) + sizeof(kvi_slab) +
                 s->n_blocks * sizeof(kvi_block);
    return n;
}

static uint64_t logits_memory(const kvcsa_session *s)
{
    const uint64_t each = sizeof(kvi_logits) + s->model->config.vocab_size * sizeof(float);

    return (s->now.logits ? each : 0) + (s->next_logits ? each : 0);
}

static void add_bytes(bench_rows *out, const char *name, uint64_t n, uint64_t bytes)
{
    bench_row *r = bench_add(out, name, n, "bytes");

    r->min = r->median = (double)bytes;
}

/* The last block is half full, as it is on average. */
static void memory_of(kvcsa_model *model, uint64_t n, double limit, bench_rows *out)
{
    const uint64_t      n_held = n - model->plan.block_tokens / 2;
    int32_t            *tokens = cache_tokens((size_t)n);
    kvcsa_session_stats st = {.struct_size = sizeof st};
    kvcsa_session      *s;
    kvcsa_pool         *pool;
    counted_alloc       alloc;
    uint64_t            empty;
    uint64_t            pages;
    uint64_t            logits;
    kvcsa_error         err;
    bench_row          *r;

    counted_alloc_init(&alloc, 0);
    pool = cache_create_pool(&alloc, 1);
    empty = alloc.n_bytes;
    s = cache_session(pool, model, tokens, (size_t)n_held, 0);
    /* a session that computes has the flat tables too */
    if (kvi_session_view(s, 0, &err) != KVCSA_OK ||
        kvcsa_session_get_stats(s, &st, &err) != KVCSA_OK)
        bench_die("mem.v41", err.text);
    pages = page_memory(pool);
    logits = logits_memory(s);

    r = bench_add(out, "mem.v41", n, "B/token");
    r->goal = BENCH_EQUAL;
    r->limit = 890;
    r->min = r->median = (double)st.entry_bytes / (double)n_held;
    r = bench_add(out, "mem.v41.total", n, "% over");
    r->goal = limit > 0 ? BENCH_AT_MOST : BENCH_NO_GOAL;
    r->limit = limit;
    r->min = r->median =
        100 * ((double)(alloc.n_bytes - empty - pages - logits) / (double)st.entry_bytes - 1);
    add_bytes(out, "mem.window", n, pages);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    free(tokens);
}

void bench_memory(const bench_cache_params *p, bench_rows *out)
{
    kvcsa_model     *model = cache_model(p->config);
    kvcsa_model_info info = {.struct_size = sizeof info};
    kvcsa_error      err;

    memory_of(model, 4096, 0, out);
    memory_of(model, 8192, 2.5, out);
    memory_of(model, 16384, 2, out);
    memory_of(model, 131072, 2, out);
    if (p->largest > 131072)
        memory_of(model, p->largest, 2, out);
    if (kvcsa_model_get_info(model, &info, &err) != KVCSA_OK)
        bench_die("mem.v41", err.text);
    add_bytes(out, "mem.logits", 0, info.vocab_tokens * sizeof(float));
    kvcsa_model_release(&model);
}
