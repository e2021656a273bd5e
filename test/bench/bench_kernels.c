/* What the suites of operators share, and the part "append": quantising rows on their way into the cache, and back. */
#include "bench_kernels.h"

#include "base/alloc.h"
#include "bench_naive.h"
#include "cpu/cpu_flags.h"
#include "plan/cache_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void kernel_ok(kvcsa_status st, const kvcsa_error *err, const char *what)
{
    if (st != KVCSA_OK)
        bench_die(what, err->text);
}

static kvi_device *open_device(uint32_t flags, kvi_threads *threads)
{
    const kvi_device_params p = {.threads = threads, .cpu_flags = flags};
    kvi_device             *dev;
    kvcsa_error             err;

    kernel_ok(kvi_cpu_backend(flags)->device_open(&p, &dev, &err), &err, "device");
    return dev;
}

void kernel_bench_open(kernel_bench *b, const char *peers, uint32_t n_runs, int quick, int one_thread)
{
    kvcsa_error err;

    memset(b, 0, sizeof *b);
    b->flags = kvi_cpu_flags(0);
    b->ops = kvi_cpu_backend(b->flags);
    b->portable_ops = kvi_cpu_backend(0);
    b->n_runs = n_runs;
    b->quick = quick;
    b->one_thread = one_thread || sysconf(_SC_NPROCESSORS_ONLN) < 2;
    snprintf(b->peers, sizeof b->peers, "%s", peers);
    b->best = open_device(b->flags, NULL);
    b->portable = open_device(0, NULL);
    if (b->flags & KVCSA_CPU_AVX512)
        b->avx2 = open_device(b->flags & ~(uint32_t)KVCSA_CPU_AVX512, NULL);
    if (!b->one_thread) {
        kernel_ok(kvi_allocator_import(NULL, &b->allocator, &err), &err, "allocator");
        kernel_ok(kvi_threads_create(&b->allocator, 2, NULL, &b->threads, &err), &err, "threads");
        b->best2 = open_device(b->flags, b->threads);
    }
}

void kernel_bench_close(kernel_bench *b)
{
    b->ops->device_close(b->best);
    b->ops->device_close(b->best2);
    b->ops->device_close(b->avx2);
    b->ops->device_close(b->portable);
    if (b->threads)
        kvi_threads_destroy(b->threads);
    roofline_close();
}

void kernel_bench_limits(kernel_bench *b)
{
    const size_t from_memory = b->quick ? (size_t)256 << 20 : (size_t)1 << 30; /* far more than any cache keeps */

    b->copy = roofline_copy(from_memory / 2);
    roofline_open(from_memory);
    for (int k = ROOFLINE_NONE + 1; k < ROOFLINE_N; k++)
        b->limits[k] = roofline_best((roofline_kind)k, 1);
    b->read2 = b->one_thread ? 0 : roofline_best(ROOFLINE_READ, 2);
    b->dot8 = b->limits[ROOFLINE_DOT8] > 0 ? ROOFLINE_DOT8 : ROOFLINE_FMA;
}

/* ------------------------------------------------------------------ rows */

bench_row *kernel_row(kernel_bench *b, const char *name, uint64_t n, const char *detail, const char *unit)
{
    bench_row *r = bench_add(b->out, name, n, unit);

    snprintf(r->detail, sizeof r->detail, "%s", detail);
    return r;
}

void kernel_faster(bench_row *r, const char *peer, double limit, int absent)
{
    r->peer = peer;
    r->peer_absent = absent;
    if (limit > 0) {
        r->goal = BENCH_SPEEDUP;
        r->limit = limit;
    }
}

static double per_second(const char *unit)
{
    return strncmp(unit, "ns", 2) == 0 ? 1e9 : strncmp(unit, "us", 2) == 0 ? 1e6 : strncmp(unit, "ms", 2) == 0 ? 1e3 : 1;
}

void kernel_bound(bench_row *r, roofline_kind kind, double work, double share_goal)
{
    static const char *const names[ROOFLINE_N] = {NULL, "FMA", "FMA", "VNNI", "read", "L2", "L3"};

    r->bound_kind = kind;
    r->bound = work > 0 ? names[kind] : NULL;
    r->work = work;
    r->share_goal = share_goal;
}

void kernel_two_threads(bench_row *r, double limit)
{
    kernel_faster(r, "one thread", limit, 0);
    r->n_threads = 2;
}

void kernel_measure(kernel_bench *b, bench_row *r, bench_fn ours, bench_fn peer, void *arg, double pieces)
{
    r->work *= pieces;
    bench_pair(r, ours, r->peer_absent ? NULL : peer, arg, b->n_runs);
    bench_scale(r, per_second(r->unit) * 1e-9 / pieces);
}

void kernel_same(const void *a, const void *b, size_t n_bytes, const char *what)
{
    if (memcmp(a, b, n_bytes) != 0)
        bench_die(what, "the result is not that of the portable kernels");
}

void kernel_near(const float *a, const float *b, size_t n, double most, const char *what)
{
    double largest = 0;
    double worst = 0;
    char   text[96];

    for (size_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)b[i]));
        worst = fmax(worst, isfinite(a[i]) ? fabs((double)a[i] - (double)b[i]) : INFINITY);
    }
    if (worst <= most * largest)
        return;
    snprintf(text, sizeof text, "off by %.3g of the largest value, %.3g are allowed", worst / largest, most);
    bench_die(what, text);
}

/* Not the tails that the sum of twelve has, but fast. */
void kernel_normal(prng *r, float *x, size_t n, float sigma)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t u = prng_u64(r);
        const double   sum = (double)(u & 0xFFFF) + (double)(u >> 16 & 0xFFFF) + (double)(u >> 32 & 0xFFFF) + (double)(u >> 48);

        x[i] = sigma * (float)((sum / 65536 - 2) * 1.7320508075688772);
    }
}

/* ------------------------------------------------------------------ entries */

static void *table_of(size_t n)
{
    void *p = calloc(n, sizeof(void *));

    if (!p)
        bench_die("memory", "out of it");
    return p;
}

/* Blocks from first on, as copies of those before it. */
static void repeat(uint8_t *parts, size_t part, size_t first, size_t n)
{
    for (size_t i = first; i < n; i++)
        memcpy(parts + i * part, parts + i % first * part, part);
}

static void fill_entries(kernel_bench *b, kernel_entries *e)
{
    const size_t           n = e->n < KERNEL_UNIQUE ? e->n : KERNEL_UNIQUE;
    float                 *latent = bench_alloc(n * KERNEL_WIDTH * sizeof(float));
    float                 *key = bench_alloc(n * KERNEL_KEY * sizeof(float));
    kvi_entry_write_params p = {.to = e->e, .latent = latent, .key = key, .n_rows = n};
    kvcsa_error            err;
    prng                   r;

    prng_init(&r, 20);
    kernel_normal(&r, latent, n * KERNEL_WIDTH, 1);
    kernel_normal(&r, key, n * KERNEL_KEY, 1);
    kernel_ok(b->portable_ops->entry_write(b->portable, &p, &err), &err, "entry_write");
    repeat(e->index, (size_t)KERNEL_BLOCK * e->owner.index_row_bytes, n / KERNEL_BLOCK, e->n_blocks);
    repeat(e->main, (size_t)KERNEL_BLOCK * e->owner.main_row_bytes, n / KERNEL_BLOCK, e->n_blocks);
    bench_free(latent, n * KERNEL_WIDTH * sizeof(float));
    bench_free(key, n * KERNEL_KEY * sizeof(float));
}

void kernel_entries_open(kernel_bench *b, kernel_entries *e, size_t n, int filled)
{
    memset(e, 0, sizeof *e);
    e->n = n;
    e->n_blocks = n / KERNEL_BLOCK;
    e->owner = (kvi_kv_owner){.ratio = 1,
                              .rows_per_block = KERNEL_BLOCK,
                              .entry_width = KERNEL_WIDTH,
                              .entry_format = KVCSA_FORMAT_FP4_E4M3_G16,
                              .main_row_bytes = kvi_format_row_bytes(KVCSA_FORMAT_FP4_E4M3_G16, KERNEL_WIDTH),
                              .index_width = KERNEL_KEY,
                              .index_value_bytes = KERNEL_KEY / 2,
                              .index_row_bytes = KERNEL_KEY / 2 + KERNEL_KEY / 32};
    e->index = bench_alloc(n * e->owner.index_row_bytes);
    e->main = bench_alloc(n * e->owner.main_row_bytes);
    e->index_parts = table_of(e->n_blocks);
    e->main_parts = table_of(e->n_blocks);
    for (size_t i = 0; i < e->n_blocks; i++) {
        e->index_parts[i] = e->index + i * KERNEL_BLOCK * e->owner.index_row_bytes;
        e->main_parts[i] = e->main + i * KERNEL_BLOCK * e->owner.main_row_bytes;
    }
    e->e = (kvi_entries){&e->owner, e->index_parts, e->main_parts};
    if (filled)
        fill_entries(b, e);
}

void kernel_entries_close(kernel_entries *e)
{
    bench_free(e->index, e->n * e->owner.index_row_bytes);
    bench_free(e->main, e->n * e->owner.main_row_bytes);
    free(e->index_parts);
    free(e->main_parts);
}

void kernel_key(const void *arg, size_t i, const uint8_t **values, const uint8_t **scales)
{
    const kernel_entries *e = arg;
    const uint8_t        *part = e->index_parts[i / KERNEL_BLOCK];

    *values = part + kvi_kv_index_values_off(&e->owner, (uint32_t)(i % KERNEL_BLOCK));
    *scales = part + kvi_kv_index_scales_off(&e->owner, (uint32_t)(i % KERNEL_BLOCK));
}

void kernel_query_open(kernel_bench *b, kernel_query *q, size_t n_rows, uint64_t seed)
{
    const size_t           n = n_rows * KERNEL_INDEX_HEADS;
    float                 *x = bench_alloc(n * KERNEL_KEY * sizeof(float));
    kvi_index_query_params p = {.x = x, .n_rows = n_rows, .n_heads = KERNEL_INDEX_HEADS, .width = KERNEL_KEY};
    kvcsa_error            err;
    prng                   r;

    prng_init(&r, seed);
    kernel_normal(&r, x, n * KERNEL_KEY, 1);
    p.codes = q->codes = malloc(n * KERNEL_KEY);
    p.scales = q->scales = malloc(n * (KERNEL_KEY / 32) * sizeof(float));
    q->weights = malloc(n * sizeof(float));
    if (!q->codes || !q->scales || !q->weights)
        bench_die("memory", "out of it");
    kernel_normal(&r, q->weights, n, 0.1f);
    kernel_ok(b->portable_ops->index_query(b->portable, &p, &err), &err, "index_query");
    bench_free(x, n * KERNEL_KEY * sizeof(float));
}

void kernel_query_close(kernel_query *q)
{
    free(q->codes);
    free(q->scales);
    free(q->weights);
}

/* ------------------------------------------------------------------ append */

enum { APPEND_ROWS = 4096, APPEND_SETS = 3 };

typedef struct append_case {
    kernel_bench  *b;
    kvi_device    *dev;
    kernel_entries ours, plain;
    float         *latent; /* [APPEND_SETS][APPEND_ROWS][KERNEL_WIDTH] */
    float         *key;    /* [APPEND_SETS][APPEND_ROWS][KERNEL_KEY] */
    size_t         set, plain_set;
} append_case;

static int64_t append_ours(void *arg)
{
    append_case           *c = arg;
    kvi_entry_write_params p = {.to = c->ours.e, .n_rows = APPEND_ROWS};
    kvcsa_error            err;
    int64_t                start;

    p.latent = c->latent + c->set * APPEND_ROWS * KERNEL_WIDTH;
    p.key = c->key + c->set * APPEND_ROWS * KERNEL_KEY;
    c->set = (c->set + 1) % APPEND_SETS;
    start = bench_now_ns();
    kernel_ok(c->b->ops->entry_write(c->dev, &p, &err), &err, "entry_write");
    return bench_now_ns() - start;
}

static int64_t append_plain(void *arg)
{
    append_case   *c = arg;
    kernel_entries *e = &c->plain;
    const float   *latent = c->latent + c->plain_set * APPEND_ROWS * KERNEL_WIDTH;
    const float   *key = c->key + c->plain_set * APPEND_ROWS * KERNEL_KEY;
    const int64_t  start = bench_now_ns();

    for (size_t i = 0; i < APPEND_ROWS; i++) {
        const uint32_t row = (uint32_t)(i % KERNEL_BLOCK);
        uint8_t       *index = e->index_parts[i / KERNEL_BLOCK];

        naive_quant_main(latent + i * KERNEL_WIDTH, KERNEL_WIDTH,
                         e->main_parts[i / KERNEL_BLOCK] + kvi_kv_main_row_off(&e->owner, row));
        naive_quant_index(key + i * KERNEL_KEY, KERNEL_KEY, index + kvi_kv_index_values_off(&e->owner, row),
                          index + kvi_kv_index_scales_off(&e->owner, row));
    }
    c->plain_set = (c->plain_set + 1) % APPEND_SETS;
    return bench_now_ns() - start;
}

static void append_rows(append_case *c, kvi_device *dev, const char *detail, double goal)
{
    bench_row *r = kernel_row(c->b, "append", 0, detail, "ns/row");

    c->dev = dev;
    kernel_faster(r, "plain C", goal, 0);
    /* what must be read is in the caches, what is written too */
    kernel_measure(c->b, r, append_ours, append_plain, c, APPEND_ROWS);
    c->set = c->plain_set = 0;
    append_ours(c);
    append_plain(c);
    kernel_same(c->ours.main, c->plain.main, APPEND_ROWS * c->ours.owner.main_row_bytes, "append");
    kernel_same(c->ours.index, c->plain.index, APPEND_ROWS * c->ours.owner.index_row_bytes, "append, keys");
}

/* ------------------------------------------------------------------ window rows */

static int64_t window_ours(void *arg)
{
    append_case            *c = arg;
    kvi_window_write_params p = {.rows = c->ours.main,
                                 .x_stride = KERNEL_WIDTH,
                                 .n_rows = APPEND_ROWS / 2,
                                 .width = KERNEL_WIDTH,
                                 .row_bytes = KERNEL_WIDTH + KERNEL_WIDTH / 32};
    kvcsa_error             err;
    int64_t                 start;

    p.x = c->latent + c->set * APPEND_ROWS * KERNEL_WIDTH;
    c->set = (c->set + 1) % APPEND_SETS;
    start = bench_now_ns();
    if (c->dev == c->b->portable)
        kernel_ok(c->b->portable_ops->window_write(c->dev, &p, &err), &err, "window_write");
    else
        kernel_ok(c->b->ops->window_write(c->dev, &p, &err), &err, "window_write");
    return bench_now_ns() - start;
}

static int64_t window_portable(void *arg)
{
    append_case *c = arg;
    kvi_device  *dev = c->dev;
    int64_t      ns;

    c->dev = c->b->portable;
    ns = window_ours(c);
    c->dev = dev;
    return ns;
}

/* ------------------------------------------------------------------ dequantise */

enum { DEQUANT_ROWS = 640, DEQUANT_LOOPS = 16 };

typedef struct dequant_case {
    kernel_bench *b;
    kvi_matrix    table;
    uint64_t      ids[DEQUANT_ROWS];
    float        *ours, *plain; /* [DEQUANT_ROWS][KERNEL_WIDTH] */
} dequant_case;

static int64_t dequant_ours(void *arg)
{
    dequant_case    *c = arg;
    kvi_embed_params p = {.table = &c->table, .ids = c->ids, .y = c->ours, .y_stride = KERNEL_WIDTH, .n_rows = DEQUANT_ROWS};
    kvcsa_error      err;
    const int64_t    start = bench_now_ns();

    for (int i = 0; i < DEQUANT_LOOPS; i++)
        kernel_ok(c->b->ops->embed(c->b->best, &p, &err), &err, "embed");
    return bench_now_ns() - start;
}

static int64_t dequant_plain(void *arg)
{
    dequant_case *c = arg;
    const int64_t start = bench_now_ns();

    for (int i = 0; i < DEQUANT_LOOPS; i++)
        for (size_t k = 0; k < DEQUANT_ROWS; k++)
            naive_dequant(c->table.data + c->ids[k] * (KERNEL_WIDTH / 2), c->table.scale + c->ids[k] * (KERNEL_WIDTH / 32),
                          KERNEL_WIDTH, c->plain + k * KERNEL_WIDTH);
    return bench_now_ns() - start;
}

static void bench_dequant(kernel_bench *b)
{
    const size_t n_out = (size_t)DEQUANT_ROWS * KERNEL_WIDTH * sizeof(float);
    dequant_case c = {.b = b};
    uint8_t     *data = bench_alloc(DEQUANT_ROWS * (KERNEL_WIDTH / 2));
    uint8_t     *scale = bench_alloc(DEQUANT_ROWS * (KERNEL_WIDTH / 32));
    bench_row   *row = kernel_row(b, "dequantise", 0, "FP4 to f32, in L2", "ns/row");
    prng         r;

    prng_init(&r, 21);
    prng_fill(&r, data, DEQUANT_ROWS * (KERNEL_WIDTH / 2));
    for (size_t i = 0; i < DEQUANT_ROWS * (KERNEL_WIDTH / 32); i++)
        scale[i] = (uint8_t)prng_range(&r, 120, 128);
    for (size_t i = 0; i < DEQUANT_ROWS; i++)
        c.ids[i] = prng_below(&r, DEQUANT_ROWS);
    c.table = (kvi_matrix){data, scale, KVI_W_FP4, DEQUANT_ROWS, KERNEL_WIDTH, 0};
    c.ours = bench_alloc(n_out);
    c.plain = bench_alloc(n_out);
    kernel_faster(row, "plain C", 0, 0);
    kernel_measure(b, row, dequant_ours, dequant_plain, &c, (double)DEQUANT_ROWS * DEQUANT_LOOPS);
    kernel_same(c.ours, c.plain, n_out, "dequantise");
    bench_free(c.ours, n_out);
    bench_free(c.plain, n_out);
    bench_free(data, DEQUANT_ROWS * (KERNEL_WIDTH / 2));
    bench_free(scale, DEQUANT_ROWS * (KERNEL_WIDTH / 32));
}

void bench_append(kernel_bench *b)
{
    const size_t n = (size_t)APPEND_SETS * APPEND_ROWS;
    append_case  c = {.b = b, .dev = b->best};
    bench_row   *row;
    prng         r;

    kernel_entries_open(b, &c.ours, APPEND_ROWS, 0);
    kernel_entries_open(b, &c.plain, APPEND_ROWS, 0);
    c.latent = bench_alloc(n * KERNEL_WIDTH * sizeof(float));
    c.key = bench_alloc(n * KERNEL_KEY * sizeof(float));
    prng_init(&r, 22);
    kernel_normal(&r, c.latent, n * KERNEL_WIDTH, 1);
    kernel_normal(&r, c.key, n * KERNEL_KEY, 1);
    append_rows(&c, b->best, "512 + key 128", 10);
    if (b->avx2)
        append_rows(&c, b->avx2, "512 + key 128, AVX2", 0);
    c.dev = b->best;
    row = kernel_row(b, "window row", 0, "512 FP8", "ns/row");
    kernel_faster(row, "portable", 0, 0);
    kernel_measure(b, row, window_ours, window_portable, &c, APPEND_ROWS / 2);
    bench_free(c.latent, n * KERNEL_WIDTH * sizeof(float));
    bench_free(c.key, n * KERNEL_KEY * sizeof(float));
    kernel_entries_close(&c.ours);
    kernel_entries_close(&c.plain);
    bench_dequant(b);
}
