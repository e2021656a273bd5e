/* The part "threads": the same work on two threads and on one. */
#include "bench_kernels.h"

#include <stdlib.h>
#include <string.h>

enum { KEYS = 131072, ROWS = 16, W_ROWS = 4096, W_COLS = 4096, N_X = 64, SETS = 40 };
/* Of the scores of one row. */
#define PRODUCTS ((double)KEYS * KERNEL_INDEX_HEADS * KERNEL_KEY)

typedef struct thread_case {
    kernel_bench  *b;
    kernel_entries e;
    kernel_query   q;
    float         *scores;
    uint8_t       *weights; /* [SETS] FP8 with scales */
    float         *x, *y;
    size_t         n_rows, turn;
    void (*work)(struct thread_case *c, kvi_device *dev);
} thread_case;

static int64_t timed(thread_case *c, kvi_device *dev)
{
    const int64_t start = bench_now_ns();

    c->work(c, dev);
    return bench_now_ns() - start;
}

static int64_t with_two(void *arg)
{
    thread_case *c = arg;

    return timed(c, c->b->best2);
}

static int64_t with_one(void *arg)
{
    thread_case *c = arg;

    return timed(c, c->b->best);
}

static void scores(thread_case *c, kvi_device *dev)
{
    uint64_t               n_visible[ROWS];
    kvi_index_score_params p = {.keys = c->e.e,
                                .codes = c->q.codes,
                                .scales = c->q.scales,
                                .weights = c->q.weights,
                                .n_visible = n_visible,
                                .scores = c->scores,
                                .scores_stride = KEYS,
                                .n_rows = c->n_rows,
                                .n_heads = KERNEL_INDEX_HEADS,
                                .block_entries = 8};
    kvcsa_error            err;

    for (size_t i = 0; i < ROWS; i++)
        n_visible[i] = KEYS;
    kernel_ok(c->b->ops->index_score(dev, &p, &err), &err, "index_score");
}

static void product(thread_case *c, kvi_device *dev)
{
    const size_t      n = (size_t)W_ROWS * W_COLS;
    const uint8_t    *data = c->weights + c->turn++ % SETS * (n + n / 1024);
    const kvi_matrix  w = {data, data + n, KVI_W_FP8, W_ROWS, W_COLS, 0};
    kvi_linear_params p = {.w = &w, .n_out = W_ROWS, .x = c->x, .y = c->y, .x_stride = W_COLS, .y_stride = W_ROWS, .n_rows = c->n_rows};
    kvcsa_error       err;

    kernel_ok(c->b->ops->linear(dev, &p, &err), &err, "linear");
}

static void row(thread_case *c, const char *detail, void (*work)(thread_case *, kvi_device *), size_t n_rows,
                roofline_kind kind, double amount)
{
    bench_row *r = kernel_row(c->b, "two threads", 0, detail, "ms");

    c->work = work;
    c->n_rows = n_rows;
    kernel_bound(r, kind, amount, 0);
    kernel_two_threads(r, 1.8);
    kernel_measure(c->b, r, with_two, with_one, c, 1);
}

void bench_threads(kernel_bench *b)
{
    const size_t n = (size_t)W_ROWS * W_COLS;
    thread_case  c = {.b = b};
    prng         r;

    if (b->one_thread) {
        kernel_row(b, "two threads", 0, "", "ms")->skipped = "one core";
        return;
    }
    prng_init(&r, 70);
    kernel_entries_open(b, &c.e, KEYS, 1);
    kernel_query_open(b, &c.q, ROWS, 71);
    c.scores = bench_alloc((size_t)ROWS * KEYS * sizeof(float));
    c.weights = bench_alloc(SETS * (n + n / 1024));
    c.x = bench_alloc((size_t)N_X * W_COLS * sizeof(float));
    c.y = bench_alloc((size_t)N_X * W_ROWS * sizeof(float));
    kernel_normal(&r, c.x, (size_t)N_X * W_COLS, 1);
    for (size_t i = 0; i < SETS; i++) {
        memset(c.weights + i * (n + n / 1024), 0x2A, n);
        memset(c.weights + i * (n + n / 1024) + n, 120, n / 1024);
    }
    row(&c, "index score, 1 row", scores, 1, b->dot8, PRODUCTS);
    row(&c, "index score, 16 rows", scores, ROWS, b->dot8, ROWS * PRODUCTS);
    row(&c, "fp8 matrix, 1 row", product, 1, ROOFLINE_READ, (double)(n + n / 1024));
    row(&c, "fp8 matrix, 64 rows", product, N_X, ROOFLINE_FMA, N_X * (double)n);
    bench_free(c.scores, (size_t)ROWS * KEYS * sizeof(float));
    bench_free(c.weights, SETS * (n + n / 1024));
    bench_free(c.x, (size_t)N_X * W_COLS * sizeof(float));
    bench_free(c.y, (size_t)N_X * W_ROWS * sizeof(float));
    kernel_query_close(&c.q);
    kernel_entries_close(&c.e);
}
