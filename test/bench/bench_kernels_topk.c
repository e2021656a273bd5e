/* The part "topk": exact selection, on every shape of scores that is hard for some method. */
#include "bench_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOP_K = 512, BLOCKS_K = 2048, MAX_SETS = 16 };

typedef struct topk_case {
    kernel_bench     *b;
    kvi_device       *dev;
    const peer_table *std;
    size_t            n, k, n_sets;
    float            *scores; /* [n_sets][n] */
    int32_t          *ids;    /* [k] */
    size_t            turn, peer_turn;
    void (*peer)(const float *scores, size_t n, size_t k, int32_t *ids);
} topk_case;

/* Every set once: what a branch predictor learned of one is worth nothing for the next. */
static int64_t topk_ours(void *arg)
{
    topk_case      *c = arg;
    const uint64_t  n_scores = c->n;
    kvi_topk_params p = {.n_scores = &n_scores, .ids = c->ids, .scores_stride = c->n, .n_rows = 1, .k = (uint32_t)c->k};
    kvcsa_error     err;
    const int64_t   start = bench_now_ns();

    for (size_t i = 0; i < c->n_sets; i++) {
        p.scores = c->scores + i * c->n;
        kernel_ok(c->b->ops->topk(c->dev, &p, &err), &err, "topk");
    }
    return bench_now_ns() - start;
}

/* One set, as if it had been all: peers are slow. */
static int64_t topk_peer(void *arg)
{
    topk_case    *c = arg;
    const size_t  n = c->n > 262144 ? 1 : c->n_sets;
    const int64_t start = bench_now_ns();

    for (size_t i = 0; i < n; i++)
        c->peer(c->scores + c->peer_turn++ % c->n_sets * c->n, c->n, c->k, c->ids);
    return (bench_now_ns() - start) * (int64_t)(c->n_sets / n);
}

/* ------------------------------------------------------------------ shapes */

static void gaussian(prng *r, float *s, size_t n)
{
    kernel_normal(r, s, n, 1);
}

/* As index scores are: many are cut at 0; here every fourth surely. */
static void relu(prng *r, float *s, size_t n)
{
    kernel_normal(r, s, n, 1);
    for (size_t i = 0; i < n; i++)
        s[i] = i % 4 == 0 || s[i] < 0 ? 0 : s[i];
}

static void equal(prng *r, float *s, size_t n)
{
    (void)r;
    for (size_t i = 0; i < n; i++)
        s[i] = 0.25f;
}

static void narrow(prng *r, float *s, size_t n)
{
    kernel_normal(r, s, n, 1e-4f);
    for (size_t i = 0; i < n; i++)
        s[i] += 1;
}

static void ascending(prng *r, float *s, size_t n)
{
    const float first = prng_float(r, 0, 1);

    for (size_t i = 0; i < n; i++)
        s[i] = first + (float)i / (float)n;
}

static void ties(prng *r, float *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        s[i] = (float)(int)(prng_below(r, 64)) / 8 - 4;
}

static const struct {
    const char *name;
    void (*fill)(prng *r, float *s, size_t n);
} shapes[] = {{"gaussian", gaussian}, {"relu", relu},           {"equal", equal},
              {"narrow", narrow},     {"ascending", ascending}, {"ties", ties}};

/* ------------------------------------------------------------------ rows */

static int by_id(const void *a, const void *b)
{
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

static void check_ids(topk_case *c)
{
    const uint64_t  n_scores = c->n;
    int32_t        *want = malloc(c->k * sizeof *want);
    kvi_topk_params p = {.scores = c->scores, .n_scores = &n_scores, .ids = want, .scores_stride = c->n, .n_rows = 1, .k = (uint32_t)c->k};
    kvcsa_error     err;

    if (!want)
        bench_die("memory", "out of it");
    kernel_ok(c->b->portable_ops->topk(c->b->portable, &p, &err), &err, "topk");
    p.ids = c->ids;
    kernel_ok(c->b->ops->topk(c->dev, &p, &err), &err, "topk");
    kernel_same(c->ids, want, c->k * sizeof *want, "topk");
    if (c->std) {
        c->peer(c->scores, c->n, c->k, c->ids);
        qsort(c->ids, c->k, sizeof *c->ids, by_id);
        kernel_same(c->ids, want, c->k * sizeof *want, "the peer of topk");
    }
    free(want);
}

static bench_row *topk_row(topk_case *c, const char *shape, const char *peer, double faster)
{
    bench_row *r = kernel_row(c->b, c->k == TOP_K ? "top-512" : "top-2048", c->n, shape, "us");

    kernel_faster(r, peer, faster, !c->std);
    if (c->n * c->n_sets * sizeof(float) <= (size_t)1 << 20)
        kernel_bound(r, ROOFLINE_L2, (double)c->n * sizeof(float), 0);
    else
        kernel_bound(r, ROOFLINE_L3, (double)c->n * sizeof(float), 0);
    kernel_measure(c->b, r, topk_ours, topk_peer, c, (double)c->n_sets);
    check_ids(c);
    return r;
}

static void fill(topk_case *c, size_t shape, prng *r)
{
    for (size_t i = 0; i < c->n_sets; i++)
        shapes[shape].fill(r, c->scores + i * c->n, c->n);
}

static void bench_size(topk_case *c, double gaussian_goal)
{
    double     best = 1e300;
    double     worst = 0;
    bench_row *r;
    prng       rng;

    prng_init(&rng, 40);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        fill(c, i, &rng);
        c->peer = c->std ? c->std->nth_index : NULL;
        r = topk_row(c, shapes[i].name, "nth_element, indices", i == 0 ? gaussian_goal : 1.5);
        best = r->median < best ? r->median : best;
        worst = r->median > worst ? r->median : worst;
        if (!c->std)
            continue;
        c->peer = c->std->nth_packed;
        topk_row(c, shapes[i].name, "nth_element, packed", 0);
        c->peer = c->std->heap;
        topk_row(c, shapes[i].name, "heap", 0);
    }
    r = kernel_row(c->b, "top-512", c->n, "worst / best shape", "ratio");
    r->min = r->median = worst / best;
    r->goal = BENCH_AT_MOST;
    r->limit = 4;
}

void bench_topk(kernel_bench *b)
{
    const size_t largest = b->quick ? 131072 : 1048576;
    const size_t n_bytes = (largest * 4 > 16384 * MAX_SETS ? largest * 4 : 16384 * MAX_SETS) * sizeof(float);
    topk_case    c = {.b = b, .dev = b->best, .std = bench_peer(b, "std")};
    prng         rng;

    c.scores = bench_alloc(n_bytes);
    if (!(c.ids = malloc(BLOCKS_K * sizeof *c.ids)))
        bench_die("memory", "out of it");
    c.n = 16384;
    c.k = TOP_K;
    c.n_sets = MAX_SETS;
    bench_size(&c, 6);
    if (b->avx2) {
        prng_init(&rng, 41);
        fill(&c, 0, &rng);
        c.dev = b->avx2;
        c.peer = c.std ? c.std->nth_index : NULL;
        topk_row(&c, "gaussian, AVX2", "nth_element, indices", 0);
        c.dev = b->best;
    }
    c.n = largest;
    c.n_sets = 4;
    bench_size(&c, 12);
    c.n = 131072; /* blocks of a million entries */
    c.k = BLOCKS_K;
    prng_init(&rng, 42);
    for (size_t i = 0; i < (b->quick ? 1 : sizeof shapes / sizeof *shapes); i++) {
        fill(&c, i, &rng);
        c.peer = c.std ? c.std->nth_index : NULL;
        topk_row(&c, shapes[i].name, "nth_element, indices", i == 0 ? 8 : 1.5);
    }
    bench_free(c.scores, n_bytes);
    free(c.ids);
}
