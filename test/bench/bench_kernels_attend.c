/* The parts "attend" (one shared latent, window and selected entries) and "gqa" (keys and values of ordinary models in pages),
 * beside ggml's flash attention of the same shape on contiguous data. */
#include "bench_kernels.h"

#include "format/dtype.h"
#include "format/row.h"
#include "plan/cache_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ sparse attention */

enum {
    WINDOW = 128,
    SELECTED = 512,
    SLOTS = WINDOW + SELECTED,
    QUERIES = 16, /* that take turns, each with ids of its own */
    ROW_BYTES = KERNEL_WIDTH + KERNEL_WIDTH / 32,
    Q_FLOATS = KERNEL_HEADS * KERNEL_WIDTH,
    KV_SETS = 8 /* copies that the peer goes through */
};
/* Of both products; what a multiply-add is counted as. */
#define SPARSE_ADDS (2.0 * KERNEL_HEADS * KERNEL_WIDTH * SLOTS)

typedef struct sparse_case {
    kernel_bench  *b;
    kvi_device    *dev;
    const kvi_backend_ops *ops;
    kernel_entries e;
    float         *q;   /* [QUERIES][heads][width] */
    float         *out, *other;
    int32_t       *ids; /* [QUERIES][SELECTED] */
    uint8_t       *page;
    float          sink[KERNEL_HEADS];
    size_t         turn, peer_turn, loops;
    uint64_t       pos;
    const peer_table *ggml;
    void             *job;
} sparse_case;

static void attend_one(sparse_case *c, size_t query, size_t n_rows, float *out)
{
    uint8_t          *page = c->page;
    uint64_t          pos[QUERIES];
    kvi_attend_params p = {.q = c->q + query * Q_FLOATS,
                           .out = out,
                           .pos = pos,
                           .pages = &page,
                           .chunk = c->page, /* of position pos: row 0 */
                           .sink = c->sink,
                           .ids = c->ids + query * SELECTED,
                           .entries = c->e.e,
                           .chunk_pos = c->pos,
                           .n_rows = n_rows,
                           .n_heads = KERNEL_HEADS,
                           .width = KERNEL_WIDTH,
                           .n_window = WINDOW,
                           .page_rows = 2 * WINDOW,
                           .n_pages = 1,
                           .row_bytes = ROW_BYTES,
                           .k = SELECTED,
                           .scale = 0.0441941738f};
    kvcsa_error       err;

    for (size_t i = 0; i < n_rows; i++)
        pos[i] = c->pos + i;
    kernel_ok(c->ops->attend(c->dev, &p, &err), &err, "attend");
}

static int64_t sparse_ours(void *arg)
{
    sparse_case  *c = arg;
    const int64_t start = bench_now_ns();

    for (size_t i = 0; i < c->loops; i++)
        attend_one(c, c->turn++ % QUERIES, 1, c->out);
    return bench_now_ns() - start;
}

static int64_t sparse_many(void *arg)
{
    sparse_case  *c = arg;
    const int64_t start = bench_now_ns();

    attend_one(c, 0, QUERIES, c->out);
    return bench_now_ns() - start;
}

static int64_t sparse_peer(void *arg)
{
    sparse_case  *c = arg;
    const int64_t start = bench_now_ns();

    for (size_t i = 0; i < c->loops; i++, c->peer_turn++)
        c->ggml->attend_run(c->job, c->q + c->peer_turn % QUERIES * Q_FLOATS, c->other, 0.0441941738f, c->peer_turn % KV_SETS);
    return bench_now_ns() - start;
}

/* The keys of query 0 as floats, in the order of the slots. */
static float *gather(sparse_case *c)
{
    float *kv = bench_alloc((size_t)SLOTS * KERNEL_WIDTH * sizeof(float));

    for (size_t i = 0; i < WINDOW; i++) {
        const uint64_t pos = c->pos - WINDOW + 1 + i;
        const uint8_t *row = c->page + (pos == c->pos ? 0 : pos % (2 * WINDOW)) * ROW_BYTES;

        kvi_row_decode(KVCSA_FORMAT_FP8_E8M0_G32, row, KERNEL_WIDTH, kv + i * KERNEL_WIDTH);
    }
    for (size_t i = 0; i < SELECTED; i++) {
        const size_t   id = (size_t)c->ids[i];
        const uint8_t *part = c->e.main_parts[id / KERNEL_BLOCK];

        kvi_row_decode(KVCSA_FORMAT_FP4_E4M3_G16, part + kvi_kv_main_row_off(&c->e.owner, (uint32_t)(id % KERNEL_BLOCK)), KERNEL_WIDTH,
                       kv + (WINDOW + i) * KERNEL_WIDTH);
    }
    return kv;
}

static void check_sparse(sparse_case *c)
{
    kvi_device            *dev = c->dev;
    const kvi_backend_ops *ops = c->ops;

    attend_one(c, 0, 1, c->out);
    c->dev = c->b->portable;
    c->ops = c->b->portable_ops;
    attend_one(c, 0, 1, c->other);
    c->dev = dev;
    c->ops = ops;
    /* sums of 512 products and of 640 slots, both rounded differently; measured 2e-6 */
    kernel_near(c->out, c->other, Q_FLOATS, 1e-4, "attend");
}

static void sparse_peers(sparse_case *c)
{
    static const struct {
        const char *type, *name;
        double      faster;
        double      off; /* of the largest value: what the format does */
    } peers[] = {{"f16", "ggml f16", 3, 0.01}, {"q8_0", "ggml q8_0", 10, 0.03}, {"q4_0", "ggml q4_0", 18, 0.3}};
    float *kv = gather(c);

    for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) {
        bench_row *r = kernel_row(c->b, "sparse attention", c->e.n, "64 x 512 x 640", "ms");

        c->job = c->ggml ? c->ggml->attend_new(peers[i].type, KERNEL_WIDTH, KERNEL_HEADS, 1, SLOTS, kv, kv, KV_SETS, 1) : NULL;
        c->loops = i == 0 ? 8 : 3;
        kernel_bound(r, ROOFLINE_FMA, SPARSE_ADDS, i == 0 ? 0.75 : 0);
        kernel_faster(r, peers[i].name, peers[i].faster, !c->job);
        if (c->job) {
            c->ggml->attend_run(c->job, c->q, c->other, 0.0441941738f, 0);
            attend_one(c, 0, 1, c->out);
            kernel_near(c->out, c->other, Q_FLOATS, peers[i].off, peers[i].name);
        }
        kernel_measure(c->b, r, sparse_ours, sparse_peer, c, (double)c->loops);
        if (c->job)
            c->ggml->attend_free(c->job);
    }
    bench_free(kv, (size_t)SLOTS * KERNEL_WIDTH * sizeof(float));
}

void bench_sparse(kernel_bench *b)
{
    const size_t n = b->quick ? 131072 : 1048576;
    sparse_case  c = {.b = b, .dev = b->best, .ops = b->ops, .pos = n - 1, .loops = 4, .ggml = bench_peer(b, "ggml")};
    float       *rows = bench_alloc((size_t)2 * WINDOW * KERNEL_WIDTH * sizeof(float));
    bench_row   *r;
    prng         rng;
    kvi_window_write_params w = {.x = rows, .x_stride = KERNEL_WIDTH, .n_rows = 2 * WINDOW, .width = KERNEL_WIDTH, .row_bytes = ROW_BYTES};
    kvcsa_error  err;

    prng_init(&rng, 50);
    kernel_entries_open(b, &c.e, n, 1);
    c.q = bench_alloc((size_t)QUERIES * Q_FLOATS * sizeof(float));
    c.out = bench_alloc((size_t)QUERIES * Q_FLOATS * sizeof(float));
    c.other = bench_alloc((size_t)Q_FLOATS * sizeof(float));
    c.ids = bench_alloc((size_t)QUERIES * SELECTED * sizeof(int32_t));
    w.rows = c.page = bench_alloc((size_t)2 * WINDOW * ROW_BYTES);
    kernel_normal(&rng, c.q, (size_t)QUERIES * Q_FLOATS, 1);
    kernel_normal(&rng, c.sink, KERNEL_HEADS, 1);
    kernel_normal(&rng, rows, (size_t)2 * WINDOW * KERNEL_WIDTH, 1);
    kernel_ok(b->portable_ops->window_write(b->portable, &w, &err), &err, "window_write");
    for (size_t i = 0; i < (size_t)QUERIES * SELECTED; i++) /* one of every n / 512 */
        c.ids[i] = (int32_t)(i % SELECTED * (n / SELECTED) + prng_below(&rng, n / SELECTED));
    for (size_t i = 0; i < KERNEL_HEADS; i++)
        c.sink[i] -= 20; /* the peer has none */
    check_sparse(&c);
    sparse_peers(&c);
    if (b->avx2) {
        c.dev = b->avx2;
        check_sparse(&c);
        r = kernel_row(b, "sparse attention", n, "64 x 512 x 640, AVX2", "ms");
        kernel_bound(r, ROOFLINE_FMA_AVX2, SPARSE_ADDS, 0);
        kernel_measure(b, r, sparse_ours, NULL, &c, (double)c.loops);
        c.dev = b->best;
    }
    r = kernel_row(b, "sparse attention", n, "16 rows", "ms");
    kernel_bound(r, ROOFLINE_FMA, SPARSE_ADDS * QUERIES, 0);
    kernel_measure(b, r, sparse_many, NULL, &c, 1);
    bench_free(rows, (size_t)2 * WINDOW * KERNEL_WIDTH * sizeof(float));
    bench_free(c.q, (size_t)QUERIES * Q_FLOATS * sizeof(float));
    bench_free(c.out, (size_t)QUERIES * Q_FLOATS * sizeof(float));
    bench_free(c.other, (size_t)Q_FLOATS * sizeof(float));
    bench_free(c.ids, (size_t)QUERIES * SELECTED * sizeof(int32_t));
    bench_free(c.page, (size_t)2 * WINDOW * ROW_BYTES);
    kernel_entries_close(&c.e);
}

/* ------------------------------------------------------------------ keys and values of ordinary models */

enum { GQA_HEADS = 32, GQA_KV = 8, GQA_WIDTH = 128, GQA_PAGE = 64, GQA_UNIQUE = 512, GQA_QUERIES = 8, GQA_FLOATS = GQA_HEADS * GQA_WIDTH };
#define GQA_SCALE 0.08838834764831845f

typedef struct gqa_case {
    kernel_bench     *b;
    kvi_device       *dev;
    const peer_table *ggml;
    void             *job;
    uint32_t          format;
    size_t            n_rows, n_sets; /* positions; copies of everything */
    size_t            row_bytes;
    uint8_t          *memory;
    uint8_t         **pages;          /* [n_sets][n_rows / GQA_PAGE] */
    float            *k, *v;          /* f32 [GQA_KV][GQA_UNIQUE][GQA_WIDTH]: position p has row p % GQA_UNIQUE */
    float            *q;              /* [GQA_QUERIES][heads][width] */
    float            *out, *other;
    size_t            turn, peer_turn, loops;
} gqa_case;

static void paged_one(gqa_case *c, const kvi_backend_ops *ops, kvi_device *dev, size_t turn, float *out)
{
    const uint64_t          n_visible = c->n_rows;
    kvi_paged_attend_params p = {.q = c->q + turn % GQA_QUERIES * GQA_FLOATS,
                                 .out = out,
                                 .pages = c->pages + turn % c->n_sets * (c->n_rows / GQA_PAGE),
                                 .n_visible = &n_visible,
                                 .n_rows = 1,
                                 .n_heads = GQA_HEADS,
                                 .n_kv_heads = GQA_KV,
                                 .width = GQA_WIDTH,
                                 .page_rows = GQA_PAGE,
                                 .format = c->format,
                                 .scale = GQA_SCALE};
    kvcsa_error             err;

    kernel_ok(ops->paged_attend(dev, &p, &err), &err, "paged_attend");
}

static int64_t gqa_ours(void *arg)
{
    gqa_case     *c = arg;
    const int64_t start = bench_now_ns();

    for (size_t i = 0; i < c->loops; i++)
        paged_one(c, c->b->ops, c->dev, c->turn++, c->out);
    return bench_now_ns() - start;
}

static int64_t gqa_one_thread(void *arg)
{
    gqa_case   *c = arg;
    kvi_device *dev = c->dev;
    int64_t     ns;

    c->dev = c->b->best;
    ns = gqa_ours(c);
    c->dev = dev;
    return ns;
}

static int64_t gqa_peer(void *arg)
{
    gqa_case     *c = arg;
    const int64_t start = bench_now_ns();

    for (size_t i = 0; i < c->loops; i++, c->peer_turn++)
        c->ggml->attend_run(c->job, c->q + c->peer_turn % GQA_QUERIES * GQA_FLOATS, c->other, GQA_SCALE, c->peer_turn % c->n_sets);
    return bench_now_ns() - start;
}

/* Pages of one set, encoded once; the other sets are copies. */
static void fill_pages(gqa_case *c)
{
    const size_t page = (size_t)GQA_KV * 2 * GQA_PAGE * c->row_bytes;
    const size_t n_pages = c->n_rows / GQA_PAGE;
    const size_t unique = GQA_UNIQUE / GQA_PAGE;

    for (size_t i = 0; i < c->n_sets * n_pages; i++) {
        uint8_t *to = c->memory + i * page;

        c->pages[i] = to;
        if (i % n_pages >= unique || i >= n_pages) {
            memcpy(to, c->memory + i % n_pages % unique * page, page);
            continue;
        }
        for (size_t h = 0; h < GQA_KV; h++)
            for (size_t j = 0; j < GQA_PAGE; j++) {
                const size_t row = (h * GQA_UNIQUE + i * GQA_PAGE + j) * GQA_WIDTH;

                kvi_row_encode(c->format, c->k + row, GQA_WIDTH, to + (2 * h * GQA_PAGE + j) * c->row_bytes);
                kvi_row_encode(c->format, c->v + row, GQA_WIDTH, to + ((2 * h + 1) * GQA_PAGE + j) * c->row_bytes);
            }
    }
}

/* Rows of all positions as the peer wants them. */
static float *spread(const gqa_case *c, const float *rows)
{
    float *all = bench_alloc((size_t)GQA_KV * c->n_rows * GQA_WIDTH * sizeof(float));

    for (size_t h = 0; h < GQA_KV; h++)
        for (size_t p = 0; p < c->n_rows; p++)
            memcpy(all + (h * c->n_rows + p) * GQA_WIDTH, rows + (h * GQA_UNIQUE + p % GQA_UNIQUE) * GQA_WIDTH, GQA_WIDTH * sizeof(float));
    return all;
}

static void check_gqa(gqa_case *c)
{
    const size_t n = c->n_rows;

    c->n_rows = n < 4096 ? n : 4096; /* the portable kernels are slow; the first pages of set 0 */
    paged_one(c, c->b->ops, c->dev, 0, c->out);
    paged_one(c, c->b->portable_ops, c->b->portable, 0, c->other);
    kernel_near(c->out, c->other, GQA_FLOATS, 1e-4, "paged_attend");
    c->n_rows = n;
}

static const struct {
    const char *name;
    uint32_t    format;
    const char *type, *peer;
    double      faster;
    double      off; /* of the largest output, which is a mean of thousands of values: small beside what formats lose. ggml adds
                      * f16 values in f16, where a long sum stands still: 11 % off at 32k rows */
} formats[] = {{"f16", KVCSA_FORMAT_F16, "f16", "ggml f16", 2, 0.5},
               {"bf16", KVCSA_FORMAT_BF16, "bf16", "ggml bf16", 0, 0.1},
               {"mxfp8", KVCSA_FORMAT_FP8_E8M0_G32, "q8_0", "ggml q8_0", 3.5, 0.3},
               {"q8_0", KVCSA_FORMAT_Q8_0, "q8_0", "ggml q8_0", 3.5, 0.1},
               {"fp4", KVCSA_FORMAT_FP4_E4M3_G16, "q4_0", "ggml q4_0", 10, 0.6}};

static void gqa_rows(gqa_case *c, size_t i)
{
    kernel_bench *b = c->b;
    const double  bytes = 2.0 * GQA_KV * (double)c->n_rows * (double)c->row_bytes;
    const int     is_long = c->n_rows >= 32768;
    float        *k = c->ggml ? spread(c, c->k) : NULL;
    float        *v = c->ggml ? spread(c, c->v) : NULL;
    bench_row    *r = kernel_row(b, "GQA 32/8 x 128", c->n_rows, formats[i].name, "ms");
    const size_t  n_floats = (size_t)GQA_KV * c->n_rows * GQA_WIDTH;

    c->job = c->ggml ? c->ggml->attend_new(formats[i].type, GQA_WIDTH, GQA_HEADS, GQA_KV, c->n_rows, k, v, c->n_sets, 1) : NULL;
    if (c->job) {
        c->ggml->attend_run(c->job, c->q, c->other, GQA_SCALE, 0);
        paged_one(c, b->ops, c->dev, 0, c->out);
        kernel_near(c->out, c->other, GQA_FLOATS, formats[i].off, formats[i].peer);
    }
    if (c->ggml) {
        bench_free(k, n_floats * sizeof(float));
        bench_free(v, n_floats * sizeof(float));
    }
    kernel_bound(r, ROOFLINE_READ, bytes, 0);
    kernel_faster(r, formats[i].peer, is_long ? formats[i].faster : 0, !c->job);
    kernel_measure(b, r, gqa_ours, gqa_peer, c, (double)c->loops);
    if (c->job)
        c->ggml->attend_free(c->job);
    if (!b->one_thread && is_long) {
        char detail[32];

        snprintf(detail, sizeof detail, "%s, 2 threads", formats[i].name);
        r = kernel_row(b, "GQA 32/8 x 128", c->n_rows, detail, "ms");
        kernel_bound(r, ROOFLINE_READ, bytes, formats[i].format == KVCSA_FORMAT_F16 ? 0.7 : 0);
        kernel_two_threads(r, 0);
        c->dev = b->best2;
        kernel_measure(b, r, gqa_ours, gqa_one_thread, c, (double)c->loops);
        c->dev = b->best;
    }
}

/* 0 = this build cannot attend to the format. */
static int can_run(const gqa_case *c)
{
    const uint64_t          none = 0;
    uint8_t                *pages[1] = {NULL};
    kvi_paged_attend_params p = {.q = c->q, .out = c->out, .pages = pages, .n_visible = &none, .n_rows = 1, .n_heads = GQA_HEADS,
                                 .n_kv_heads = GQA_KV, .width = GQA_WIDTH, .page_rows = GQA_PAGE, .format = c->format, .scale = 1};
    kvcsa_error             err;

    return c->b->ops->paged_attend(c->dev, &p, &err) == KVCSA_OK;
}

static void gqa_format(gqa_case *c, size_t i)
{
    static const size_t sizes[] = {4096, 32768};

    c->format = formats[i].format;
    c->row_bytes = kvi_format_row_bytes(c->format, GQA_WIDTH);
    for (size_t k = 0; k < (c->b->quick ? 1 : 2); k++) {
        const size_t bytes_of_set = sizes[k] * GQA_KV * 2 * c->row_bytes;
        size_t       n_bytes;

        if (!can_run(c)) {
            kernel_row(c->b, "GQA 32/8 x 128", sizes[k], formats[i].name, "ms")->skipped = "the operator is not there";
            continue;
        }
        c->n_rows = sizes[k];
        c->n_sets = ((size_t)512 << 20) / bytes_of_set; /* from memory, not from a cache */
        c->loops = k ? 1 : 4;
        n_bytes = c->n_sets * bytes_of_set;
        c->memory = bench_alloc(n_bytes);
        if (!(c->pages = calloc(c->n_sets * sizes[k] / GQA_PAGE, sizeof *c->pages)))
            bench_die("memory", "out of it");
        fill_pages(c);
        check_gqa(c);
        gqa_rows(c, i);
        bench_free(c->memory, n_bytes);
        free(c->pages);
    }
}

void bench_gqa(kernel_bench *b)
{
    gqa_case     c = {.b = b, .dev = b->best, .ggml = bench_peer(b, "ggml")};
    const size_t n = (size_t)GQA_KV * GQA_UNIQUE * GQA_WIDTH;
    prng         r;

    prng_init(&r, 51);
    c.k = bench_alloc(n * sizeof(float));
    c.v = bench_alloc(n * sizeof(float));
    c.q = bench_alloc((size_t)GQA_QUERIES * GQA_FLOATS * sizeof(float));
    c.out = bench_alloc((size_t)GQA_FLOATS * sizeof(float));
    c.other = bench_alloc((size_t)GQA_FLOATS * sizeof(float));
    kernel_normal(&r, c.k, n, 1);
    kernel_normal(&r, c.v, n, 1);
    kernel_normal(&r, c.q, (size_t)GQA_QUERIES * GQA_FLOATS, 1);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        gqa_format(&c, i);
    bench_free(c.k, n * sizeof(float));
    bench_free(c.v, n * sizeof(float));
    bench_free(c.q, (size_t)GQA_QUERIES * GQA_FLOATS * sizeof(float));
    bench_free(c.out, (size_t)GQA_FLOATS * sizeof(float));
    bench_free(c.other, (size_t)GQA_FLOATS * sizeof(float));
}
