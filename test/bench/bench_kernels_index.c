/* The part "index": scores of the whole context and of the candidate pool, and the choice of candidates. */
#include "bench_kernels.h"

#include "bench_naive.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    QUERIES = 8,         /* that take turns */
    POOL_BLOCKS = 2048,
    BLOCK = 8,
    POOL_KEYS = POOL_BLOCKS * BLOCK,
    PLAIN_KEYS = 16384,  /* that plain C scores in a run; its time a key is the same everywhere */
    MANY_ROWS = 16
};
#define PRODUCTS_PER_KEY ((double)KERNEL_INDEX_HEADS * KERNEL_KEY)

/* ------------------------------------------------------------------ the whole context */

typedef struct score_case {
    kernel_bench  *b;
    kvi_device    *dev;
    kernel_entries e;
    kernel_query   q; /* QUERIES x MANY_ROWS rows */
    size_t         n; /* keys */
    size_t         n_rows, loops;
    size_t         turn, plain_turn;
    float         *scores, *plain;
} score_case;

static int64_t score_ours(void *arg)
{
    score_case            *c = arg;
    uint64_t               n_visible[MANY_ROWS];
    kvi_index_score_params p = {.keys = c->e.e,
                                .n_visible = n_visible,
                                .scores = c->scores,
                                .scores_stride = c->n,
                                .n_rows = c->n_rows,
                                .n_heads = KERNEL_INDEX_HEADS,
                                .block_entries = BLOCK};
    kvcsa_error            err;
    const int64_t          start = bench_now_ns();

    for (size_t i = 0; i < MANY_ROWS; i++)
        n_visible[i] = c->n;
    for (size_t i = 0; i < c->loops; i++, c->turn++) {
        const size_t first = c->turn % QUERIES * MANY_ROWS * KERNEL_INDEX_HEADS;

        p.codes = c->q.codes + first * KERNEL_KEY;
        p.scales = c->q.scales + first * (KERNEL_KEY / 32);
        p.weights = c->q.weights + first;
        kernel_ok(c->b->ops->index_score(c->dev, &p, &err), &err, "index_score");
    }
    return bench_now_ns() - start;
}

/* A slice of the keys, another one each time; as if it had been all of them. */
static int64_t score_plain(void *arg)
{
    score_case   *c = arg;
    const size_t  n = c->n < PLAIN_KEYS ? c->n : PLAIN_KEYS;
    const size_t  first = c->plain_turn % (c->n / n) * n;
    const size_t  query = c->plain_turn++ % QUERIES * MANY_ROWS * KERNEL_INDEX_HEADS;
    const int64_t start = bench_now_ns();

    naive_scores(kernel_key, &c->e, first, n, c->q.codes + query * KERNEL_KEY, c->q.scales + query * (KERNEL_KEY / 32),
                 c->q.weights + query, KERNEL_INDEX_HEADS, KERNEL_KEY, c->plain);
    return (int64_t)((double)(bench_now_ns() - start) * (double)(c->n / n) * (double)c->loops);
}

static void check_scores(score_case *c)
{
    const size_t n = c->n < PLAIN_KEYS ? c->n : PLAIN_KEYS;

    c->turn = c->plain_turn = c->n / n - 1; /* the last slice */
    c->loops = 1;
    score_ours(c);
    score_plain(c);
    kernel_same(c->scores + (c->n - n), c->plain, n * sizeof(float), "index score");
}

static void score_row(score_case *c, kvi_device *dev, size_t n_rows, double share, double faster, const char *detail)
{
    bench_row *r = kernel_row(c->b, "index score", c->n, detail, "ms");

    c->dev = dev;
    c->n_rows = n_rows;
    c->loops = c->n >= 131072 || n_rows > 1 ? 1 : 8;
    if (dev != c->b->avx2) /* which has no such instruction */
        kernel_bound(r, c->b->dot8, PRODUCTS_PER_KEY * (double)(c->n * n_rows), share);
    if (n_rows == 1)
        kernel_faster(r, "plain C", faster, 0);
    kernel_measure(c->b, r, score_ours, n_rows == 1 ? score_plain : NULL, c, (double)c->loops);
    check_scores(c);
}

static void bench_scores(kernel_bench *b, score_case *c)
{
    static const size_t sizes[] = {16384, 131072, 1048576};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= c->e.n; i++) {
        c->n = sizes[i];
        score_row(c, b->best, 1, b->dot8 == ROOFLINE_DOT8 ? 0.5 : 0, 80, "");
        if (sizes[i] == 131072) {
            score_row(c, b->best, 6, 0, 0, "6 rows");
            if (!b->quick)
                score_row(c, b->best, MANY_ROWS, 0, 0, "16 rows");
            if (b->avx2)
                score_row(c, b->avx2, 1, 0, 18, "AVX2");
        }
    }
}

/* ------------------------------------------------------------------ the pool */

typedef struct pool_case {
    kernel_bench *b;
    score_case   *s;
    int32_t      *small, *large; /* [QUERIES][POOL_BLOCKS] of the first 32k keys, of all */
    uint64_t      n_small, n_large;
    size_t        turn;
} pool_case;

static void score_pool(pool_case *c, kvi_entries keys, const int32_t *blocks, uint64_t n_keys, size_t query, float *scores)
{
    const size_t           first = query * MANY_ROWS * KERNEL_INDEX_HEADS;
    const uint32_t         n_blocks = POOL_BLOCKS;
    kvi_index_score_params p = {.keys = keys,
                                .codes = c->s->q.codes + first * KERNEL_KEY,
                                .scales = c->s->q.scales + first * (KERNEL_KEY / 32),
                                .weights = c->s->q.weights + first,
                                .n_visible = &n_keys,
                                .blocks = blocks,
                                .n_blocks = &n_blocks,
                                .scores = scores,
                                .scores_stride = POOL_KEYS,
                                .blocks_stride = POOL_BLOCKS,
                                .n_rows = 1,
                                .n_heads = KERNEL_INDEX_HEADS,
                                .block_entries = BLOCK};
    kvcsa_error            err;

    kernel_ok(c->b->ops->index_score(c->b->best, &p, &err), &err, "index_score");
}

/* All queries, each with its own blocks: what one touched is out of the near caches when it comes again. */
static int64_t pool_of(pool_case *c, const int32_t *blocks, uint64_t n_keys)
{
    const int64_t start = bench_now_ns();

    for (size_t i = 0; i < QUERIES; i++)
        score_pool(c, c->s->e.e, blocks + i * POOL_BLOCKS, n_keys, i, c->s->scores);
    return bench_now_ns() - start;
}

static int64_t pool_large(void *arg)
{
    const pool_case *c = arg;

    return pool_of(arg, c->large, c->n_large);
}

static int64_t pool_small(void *arg)
{
    const pool_case *c = arg;

    return pool_of(arg, c->small, c->n_small);
}

/* POOL_BLOCKS of n_blocks, ascending: each is taken with the share that is still wanted. */
static void choose_blocks(prng *r, int32_t *blocks, size_t n_blocks)
{
    size_t k = 0;

    for (size_t i = 0; i < n_blocks && k < POOL_BLOCKS; i++)
        if (prng_below(r, n_blocks - i) < POOL_BLOCKS - k)
            blocks[k++] = (int32_t)i;
}

/* Keys that are not listed are poisoned (scores of NaN), and cache blocks without a listed one are not even there: the scores are
 * the same, or the program ends in some way. Returns how many keys outside changed a score: 0. */
static void check_outside(pool_case *c)
{
    const size_t   n = 65536; /* many cache blocks without a candidate */
    kernel_entries e;
    int32_t       *blocks = c->small;
    float         *want = c->s->plain;
    float         *got = c->s->scores;
    size_t         k = 0;
    bench_row     *row = kernel_row(c->b, "keys outside", 0, "of the pool, read", "keys");
    prng           r;

    prng_init(&r, 31);
    choose_blocks(&r, blocks, n / BLOCK / 2);
    for (size_t i = 0; i < POOL_BLOCKS; i++) /* in every second run of 32 cache blocks */
        blocks[i] = (int32_t)((size_t)blocks[i] / 512 * 1024 + (size_t)blocks[i] % 512);
    score_pool(c, c->s->e.e, blocks, c->n_small = n, 0, want);
    kernel_entries_open(c->b, &e, n, 0);
    memset(e.index, 0xFF, n * e.owner.index_row_bytes);
    for (size_t i = 0; i < e.n_blocks; i++)
        e.index_parts[i] = NULL;
    for (; k < POOL_BLOCKS; k++) {
        const size_t block = (size_t)blocks[k] * BLOCK / KERNEL_BLOCK;
        const size_t off = kvi_kv_index_group_off(&e.owner, (uint32_t)((size_t)blocks[k] * BLOCK % KERNEL_BLOCK / BLOCK));

        e.index_parts[block] = e.index + block * KERNEL_BLOCK * e.owner.index_row_bytes;
        memcpy(e.index_parts[block] + off, c->s->e.index_parts[block] + off, (size_t)BLOCK * e.owner.index_row_bytes);
    }
    score_pool(c, e.e, blocks, n, 0, got);
    for (size_t i = 0; i < POOL_KEYS; i++)
        row->median += memcmp(&want[i], &got[i], sizeof(float)) != 0;
    row->min = row->median;
    row->goal = BENCH_EQUAL;
    kernel_entries_close(&e);
}

static void bench_pool_scores(kernel_bench *b, score_case *s)
{
    static const size_t sizes[] = {32768, 131072, 1048576};
    pool_case           c = {.b = b, .s = s};
    prng                r;

    c.small = malloc(QUERIES * POOL_BLOCKS * sizeof(int32_t));
    c.large = malloc(QUERIES * POOL_BLOCKS * sizeof(int32_t));
    if (!c.small || !c.large)
        bench_die("memory", "out of it");
    prng_init(&r, 30);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= s->e.n; i++) {
        bench_row *row = kernel_row(b, "pool score", sizes[i], "16384 keys", "ms");

        for (size_t k = 0; k < QUERIES; k++)
            choose_blocks(&r, (i ? c.large : c.small) + k * POOL_BLOCKS, sizes[i] / BLOCK);
        *(i ? &c.n_large : &c.n_small) = sizes[i];
        kernel_bound(row, b->dot8, PRODUCTS_PER_KEY * POOL_KEYS, 0);
        if (i) {
            row->peer = "the same at 32k";
            row->goal = BENCH_RATIO;
            row->limit = 1.2;
        }
        kernel_measure(b, row, i ? pool_large : pool_small, i ? pool_small : NULL, &c, QUERIES);
    }
    check_outside(&c);
    free(c.small);
    free(c.large);
}

/* ------------------------------------------------------------------ candidates */

typedef struct candidate_case {
    kernel_bench *b;
    size_t        n;      /* scores */
    float        *scores; /* [2][n] */
    float        *maxima; /* [n / BLOCK] */
    int32_t       blocks[POOL_BLOCKS];
    uint32_t      n_blocks;
    size_t        turn;
    const peer_table *std;
} candidate_case;

static int64_t candidates_ours(void *arg)
{
    candidate_case       *c = arg;
    const uint64_t        n_visible = c->n;
    kvi_candidates_params p = {.scores = c->scores + c->turn++ % 2 * c->n,
                               .n_visible = &n_visible,
                               .blocks = c->blocks,
                               .n_blocks = &c->n_blocks,
                               .scores_stride = c->n,
                               .n_rows = 1,
                               .block_entries = BLOCK,
                               .n_keep = POOL_BLOCKS};
    kvcsa_error           err;
    const int64_t         start = bench_now_ns();

    kernel_ok(c->b->ops->candidates(c->b->best, &p, &err), &err, "candidates");
    return bench_now_ns() - start;
}

/* The newest block is forced in; the plain way does not even do that. */
static int64_t candidates_plain(void *arg)
{
    candidate_case *c = arg;
    int32_t         ids[POOL_BLOCKS];
    const int64_t   start = bench_now_ns();

    naive_block_max(c->scores + c->turn++ % 2 * c->n, c->n / BLOCK, c->maxima);
    c->std->nth_packed(c->maxima, c->n / BLOCK, POOL_BLOCKS, ids);
    return bench_now_ns() - start;
}

static int64_t blockmax_plain(void *arg)
{
    candidate_case *c = arg;
    const int64_t   start = bench_now_ns();

    naive_block_max(c->scores + c->turn++ % 2 * c->n, c->n / BLOCK, c->maxima);
    return bench_now_ns() - start;
}

static void bench_candidates(kernel_bench *b)
{
    candidate_case c = {.b = b, .n = b->quick ? 131072 : 1048576, .std = bench_peer(b, "std")};
    bench_row     *r;
    int32_t        want[POOL_BLOCKS];
    prng           rng;

    c.scores = bench_alloc(2 * c.n * sizeof(float));
    c.maxima = bench_alloc(c.n / BLOCK * sizeof(float));
    prng_init(&rng, 32);
    kernel_normal(&rng, c.scores, 2 * c.n, 1);
    r = kernel_row(b, "candidates", c.n, "2048 blocks of 8", "us");
    kernel_bound(r, ROOFLINE_L3, (double)c.n * sizeof(float), 0);
    kernel_faster(r, "max + nth_element, packed", 0, !c.std);
    kernel_measure(b, r, candidates_ours, candidates_plain, &c, 1);
    r = kernel_row(b, "candidates", c.n, "beside the maxima alone", "us");
    kernel_faster(r, "block maxima, plain C", 0, 0);
    kernel_measure(b, r, candidates_ours, blockmax_plain, &c, 1);
    c.turn = 0;
    candidates_ours(&c);
    memcpy(want, c.blocks, sizeof want);
    {
        const uint64_t        n_visible = c.n;
        kvi_candidates_params p = {.scores = c.scores,
                                   .n_visible = &n_visible,
                                   .blocks = c.blocks,
                                   .n_blocks = &c.n_blocks,
                                   .scores_stride = c.n,
                                   .n_rows = 1,
                                   .block_entries = BLOCK,
                                   .n_keep = POOL_BLOCKS};
        kvcsa_error           err;

        kernel_ok(b->portable_ops->candidates(b->portable, &p, &err), &err, "candidates");
    }
    kernel_same(want, c.blocks, sizeof want, "candidates");
    bench_free(c.scores, 2 * c.n * sizeof(float));
    bench_free(c.maxima, c.n / BLOCK * sizeof(float));
}

void bench_index(kernel_bench *b)
{
    score_case   c = {.b = b, .dev = b->best};
    const size_t n = b->quick ? 131072 : 1048576;

    kernel_entries_open(b, &c.e, n, 1);
    kernel_query_open(b, &c.q, (size_t)QUERIES * MANY_ROWS, 33);
    c.scores = bench_alloc(MANY_ROWS * n * sizeof(float));
    c.plain = bench_alloc((size_t)PLAIN_KEYS * 4 * sizeof(float));
    bench_scores(b, &c);
    bench_pool_scores(b, &c);
    bench_candidates(b);
    bench_free(c.scores, MANY_ROWS * n * sizeof(float));
    bench_free(c.plain, (size_t)PLAIN_KEYS * 4 * sizeof(float));
    kernel_query_close(&c.q);
    kernel_entries_close(&c.e);
}
