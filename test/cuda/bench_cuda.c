/* Times of the plug-in's operators on a device: bench_cuda PLUGIN [--tiny]
 *
 * Each case is recorded as one graph of REPEATS calls that take turns over several copies of its data where it should come from
 * memory, and replayed; the median of the rounds is printed, beside what the same run measured as bandwidth of a copy inside of the
 * device's memory. --tiny: smallest shapes, to see on an emulated device that everything runs; its times mean nothing. */
#include "backend/backend.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 15, REPEATS = 20, BLOCK_TOKENS = 128, HEADS = 64, WIDTH = 512, INDEX_HEADS = 32, INDEX_WIDTH = 128 };

static const kvi_backend_ops *ops;
static kvi_device            *dev;
static double                 copy_rate; /* bytes read and written a second */
static bool                   tiny;

static void must(kvcsa_status st, const kvcsa_error *err)
{
    if (st != KVCSA_OK) {
        fprintf(stderr, "%s (%d)\n", err->text, (int)err->detail);
        exit(1);
    }
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Device memory; never freed: the program ends. */
static void *room(size_t size)
{
    void       *p = NULL;
    kvcsa_error err = {0};

    must(ops->mem_alloc(dev, size, KVI_MEMORY_DEVICE, &p, &err), &err);
    must(ops->mem_fill(dev, p, 0, size, &err), &err);
    return p;
}

static void *placed(const void *from, size_t size)
{
    void       *p = room(size);
    kvcsa_error err = {0};

    must(ops->mem_copy(dev, p, from, size, KVI_COPY_IN, &err), &err);
    must(ops->sync(dev, &err), &err);
    return p;
}

static uint32_t prng(void)
{
    static uint64_t x = 88172645463325252u;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return (uint32_t)(x >> 32);
}

static float *floats(size_t n)
{
    float *host = malloc(n * sizeof *host), *p;

    if (!host)
        exit(1);
    for (size_t i = 0; i < n; i++)
        host[i] = (float)(int32_t)prng() * 0x1p-31f;
    p = placed(host, n * sizeof *host);
    free(host);
    return p;
}

/* Random bytes, all 256 of them: codes of FP4, which has no NaN. Made on the device where it can. */
static uint8_t *fp4_bytes(size_t n)
{
    static uint64_t made; /* words */
    const size_t    n_words = (n + 3) / 4;
    uint32_t       *p = room(4 * n_words), *host;
    kvcsa_error     err = {0};

    if (ops->mem_random) {
        must(ops->mem_random(dev, p, n_words, 41, made, &err), &err);
        made += n_words;
        return (uint8_t *)p;
    }
    if (!(host = malloc(4 * n_words)))
        exit(1);
    for (size_t i = 0; i < n_words; i++)
        host[i] = prng();
    must(ops->mem_copy(dev, p, host, 4 * n_words, KVI_COPY_IN, &err), &err);
    must(ops->sync(dev, &err), &err);
    free(host);
    return (uint8_t *)p;
}

/* Random bytes without the codes of NaN: the highest bit of each is 0 and no scale is extreme. */
static uint8_t *cache_bytes(size_t n)
{
    uint8_t *host = malloc(n), *p;

    if (!host)
        exit(1);
    for (size_t i = 0; i < n; i++)
        host[i] = (uint8_t)(0x30 + (prng() & 0x0f));
    p = placed(host, n);
    free(host);
    return p;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

typedef kvcsa_status (*step_fn)(const void *job, size_t turn, kvcsa_error *err);

/* Seconds of one call. */
static double measure(step_fn step, const void *job)
{
    const size_t repeats = tiny ? 1 : REPEATS;
    double       all[ROUNDS];
    kvi_graph   *graph = NULL;
    kvcsa_error  err = {0};

    must(step(job, 0, &err), &err); /* grows the scratch */
    must(ops->sync(dev, &err), &err);
    must(ops->graph_begin(dev, &err), &err);
    for (size_t i = 0; i < repeats; i++)
        must(step(job, i, &err), &err);
    must(ops->graph_end(dev, &graph, &err), &err);
    must(ops->graph_run(dev, graph, &err), &err);
    must(ops->sync(dev, &err), &err);
    for (size_t r = 0; r < (tiny ? 1 : ROUNDS); r++) {
        const double begin = seconds();

        must(ops->graph_run(dev, graph, &err), &err);
        must(ops->sync(dev, &err), &err);
        all[r] = (seconds() - begin) / (double)repeats;
    }
    ops->graph_free(dev, graph);
    qsort(all, tiny ? 1 : ROUNDS, sizeof *all, ascending);
    return all[tiny ? 0 : ROUNDS / 2];
}

/* bytes: what a call has to move at least, 0 = not bound by memory; goal in microseconds, 0 = none. */
static void report(const char *what, const char *shape, double s, double bytes, double goal)
{
    printf("%-20s %-28s %10.2f us", what, shape, 1e6 * s);
    if (bytes > 0)
        printf("  %8.1f GB/s  %5.1f %% of copy", 1e-9 * bytes / s, 100 * bytes / s / copy_rate);
    if (goal > 0)
        printf("  goal %g us: %s", goal, 1e6 * s <= goal ? "met" : "missed");
    printf("\n");
    fflush(stdout);
}

/* ---- copies ---- */

typedef struct copy_job {
    void  *from, *to;
    size_t size;
} copy_job;

static kvcsa_status copy_step(const void *job, size_t turn, kvcsa_error *err)
{
    const copy_job *c = job;

    (void)turn;
    return ops->mem_copy(dev, c->to, c->from, c->size, KVI_COPY_WITHIN, err);
}

static void bench_copy(void)
{
    const size_t   size = tiny ? 4096 : (size_t)1 << 30;
    const copy_job c = {room(size), room(size), size};
    const double   s = measure(copy_step, &c);

    copy_rate = 2.0 * (double)size / s;
    report("copy", "1 GiB inside of the device", s, 2.0 * (double)size, 0);
}

/* ---- random words ---- */

static kvcsa_status random_step(const void *job, size_t turn, kvcsa_error *err)
{
    const copy_job *c = job;

    return ops->mem_random(dev, c->to, c->size / 4, 1, turn, err);
}

/* Those of a graph come from the plug-in's own kernel, those of one call from cuRAND where it is there. */
static void bench_random(void)
{
    const size_t   size = tiny ? 4096 : (size_t)1 << 30;
    const copy_job c = {NULL, room(size), size};
    kvcsa_error    err = {0};
    double         begin = 0;

    if (!ops->mem_random)
        return;
    report("random words", "1 GiB, own kernel", measure(random_step, &c), (double)size, 0);
    for (int i = 0; i < 2; i++) { /* the first opens the library */
        must(ops->sync(dev, &err), &err);
        begin = seconds();
        must(random_step(&c, 0, &err), &err);
        must(ops->sync(dev, &err), &err);
    }
    report("random words", "1 GiB, one call", seconds() - begin, (double)size, 0);
}

/* ---- cache blocks of one owner, ratio 1 ---- */

typedef struct cache {
    kvi_kv_owner   owner;
    kvi_entries    entries;
    size_t         n_blocks;
} cache;

/* Scales lie among random codes: 32 bytes at each of n places that are `step` apart, the first `off` behind `base`. */
static void put_scales(uint8_t *base, size_t off, size_t step, size_t n)
{
    enum { BYTES = 32, PALETTE = 4096 };
    const uint8_t *palette = cache_bytes((size_t)BYTES * PALETTE);
    kvi_copy_job  *jobs = malloc(n * sizeof *jobs);
    kvcsa_error    err = {0};

    if (!jobs)
        exit(1);
    for (size_t i = 0; i < n; i++)
        jobs[i] = (kvi_copy_job){palette + (size_t)BYTES * (prng() % PALETTE), base + off + i * step, BYTES};
    const kvi_copy_params p = {.jobs = placed(jobs, n * sizeof *jobs), .n_jobs = n, .max_bytes = BYTES};

    must(ops->copy(dev, &p, &err), &err);
    free(jobs);
}

static void cache_make(cache *c, size_t n_entries)
{
    enum { GROUP = 8 }; /* rows of the index part: values, then scales */
    const kvi_kv_owner o = {.layer = 0,
                            .ratio = 1,
                            .rows_per_block = BLOCK_TOKENS,
                            .entry_width = WIDTH,
                            .entry_format = KVCSA_FORMAT_FP4_E4M3_G16,
                            .main_row_bytes = WIDTH / 2 + WIDTH / 16,
                            .index_width = INDEX_WIDTH,
                            .index_value_bytes = INDEX_WIDTH / 2,
                            .index_row_bytes = INDEX_WIDTH / 2 + INDEX_WIDTH / 32};
    const size_t       n = (n_entries + BLOCK_TOKENS - 1) / BLOCK_TOKENS, n_rows = n * BLOCK_TOKENS;
    const size_t       index_bytes = BLOCK_TOKENS * o.index_row_bytes, main_bytes = BLOCK_TOKENS * o.main_row_bytes;
    uint8_t           *index = fp4_bytes(n * index_bytes), *main_part = fp4_bytes(n * main_bytes);
    uint8_t          **table = malloc(2 * n * sizeof *table);

    if (!table)
        exit(1);
    put_scales(index, (size_t)GROUP * o.index_value_bytes, (size_t)GROUP * o.index_row_bytes, n_rows / GROUP);
    put_scales(main_part, WIDTH / 2, o.main_row_bytes, n_rows);
    for (size_t i = 0; i < n; i++) {
        table[i] = index + i * index_bytes;
        table[n + i] = main_part + i * main_bytes;
    }
    c->owner = o;
    c->n_blocks = n;
    c->entries.owner = &c->owner;
    c->entries.index_parts = placed(table, n * sizeof *table);
    c->entries.main_parts = placed(table + n, n * sizeof *table);
    free(table);
}

/* ---- scores ---- */

static kvcsa_status score_step(const void *job, size_t turn, kvcsa_error *err)
{
    (void)turn;
    return ops->index_score(dev, job, err);
}

static void bench_score(size_t n_entries, size_t n_rows, const int32_t *blocks, size_t n_listed, const char *shape, double goal)
{
    static int8_t codes[16 * INDEX_HEADS * INDEX_WIDTH];
    uint64_t      visible[16];
    uint32_t      listed[16];
    cache         c;

    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (int8_t)(prng() % 13) - 6;
    for (size_t i = 0; i < n_rows; i++) {
        visible[i] = n_entries;
        listed[i] = (uint32_t)n_listed;
    }
    cache_make(&c, n_entries);
    const size_t                 n_scores = blocks ? 8 * n_listed : n_entries;
    const kvi_index_score_params p = {.keys = c.entries,
                                      .codes = placed(codes, n_rows * INDEX_HEADS * INDEX_WIDTH),
                                      .scales = floats(n_rows * INDEX_HEADS * INDEX_WIDTH / 32),
                                      .weights = floats(n_rows * INDEX_HEADS),
                                      .n_visible = placed(visible, n_rows * sizeof *visible),
                                      .blocks = blocks ? placed(blocks, n_rows * n_listed * sizeof *blocks) : NULL,
                                      .n_blocks = blocks ? placed(listed, n_rows * sizeof *listed) : NULL,
                                      .scores = room(n_rows * n_scores * sizeof(float)),
                                      .scores_stride = n_scores,
                                      .blocks_stride = n_listed,
                                      .n_rows = n_rows,
                                      .n_heads = INDEX_HEADS,
                                      .block_entries = 8};

    report(blocks ? "pool score" : "index score", shape, measure(score_step, &p), 68.0 * (double)n_scores, goal);
}

/* Listed blocks that lie everywhere in the context. */
static void bench_pool(size_t n_entries, const char *shape)
{
    const size_t n_all = n_entries / 8, n = n_all < 2048 ? n_all : 2048;
    int32_t     *blocks = malloc(n * sizeof *blocks);

    if (!blocks)
        exit(1);
    for (size_t i = 0; i < n; i++)
        blocks[i] = (int32_t)(i * (n_all / n));
    bench_score(n_entries, 1, blocks, n, shape, 7);
    free(blocks);
}

/* ---- selection ---- */

static kvcsa_status topk_step(const void *job, size_t turn, kvcsa_error *err)
{
    (void)turn;
    return ops->topk(dev, job, err);
}

static void bench_topk(size_t n, size_t n_rows, const char *shape, double goal)
{
    uint64_t *lengths = malloc(n_rows * sizeof *lengths);

    if (!lengths)
        exit(1);
    for (size_t i = 0; i < n_rows; i++)
        lengths[i] = n;
    const kvi_topk_params p = {.scores = floats(n_rows * n),
                               .n_scores = placed(lengths, n_rows * sizeof *lengths),
                               .ids = room(n_rows * 512 * sizeof(int32_t)),
                               .scores_stride = n,
                               .n_rows = n_rows,
                               .k = 512};

    free(lengths);
    report("top-512", shape, measure(topk_step, &p), 4.0 * (double)(n * n_rows), goal);
}

/* ---- attention ---- */

static kvcsa_status attend_step(const void *job, size_t turn, kvcsa_error *err)
{
    (void)turn;
    return ops->attend(dev, job, err);
}

static void bench_attend(size_t n_rows, size_t n_entries, const char *shape, double goal)
{
    enum { K = 512, WINDOW = 128, PAGE_ROWS = 16, ROW = WIDTH + WIDTH / 32 };
    const size_t n_pages = WINDOW / PAGE_ROWS;
    uint64_t    *pos = malloc(n_rows * sizeof *pos);
    int32_t     *ids = malloc(n_rows * K * sizeof *ids);
    uint8_t     *pages[WINDOW / PAGE_ROWS], *window = cache_bytes(n_pages * PAGE_ROWS * ROW);
    cache        c;

    if (!pos || !ids)
        exit(1);
    cache_make(&c, n_entries);
    for (size_t i = 0; i < n_pages; i++)
        pages[i] = window + i * PAGE_ROWS * ROW;
    for (size_t i = 0; i < n_rows; i++) {
        pos[i] = n_entries + i;
        for (size_t j = 0; j < K; j++) /* ascending, one of each K-th of the context */
            ids[i * K + j] = n_entries < K ? (j < n_entries ? (int32_t)j : -1)
                                           : (int32_t)(j * (n_entries / K) + prng() % (n_entries / K));
    }
    const kvi_attend_params p = {.q = floats(n_rows * HEADS * WIDTH),
                                 .out = room(n_rows * HEADS * WIDTH * sizeof(float)),
                                 .pos = placed(pos, n_rows * sizeof *pos),
                                 .pages = placed(pages, sizeof pages),
                                 .chunk = cache_bytes(n_rows * ROW),
                                 .sink = floats(HEADS),
                                 .ids = placed(ids, n_rows * K * sizeof *ids),
                                 .entries = c.entries,
                                 .chunk_pos = n_entries,
                                 .n_rows = n_rows,
                                 .n_heads = HEADS,
                                 .width = WIDTH,
                                 .n_window = WINDOW,
                                 .page_rows = PAGE_ROWS,
                                 .n_pages = (uint32_t)n_pages,
                                 .row_bytes = ROW,
                                 .k = K,
                                 .scale = 0.044194174f};
    const double            s = measure(attend_step, &p);

    free(pos);
    free(ids);
    report("sparse attention", shape, s, 0, goal);
    printf("%-49s %10.1f TFLOP/s\n", "", 1e-12 * 4.0 * (double)n_rows * HEADS * WIDTH * (K + WINDOW) / s);
}

/* ---- products ---- */

typedef struct linear_job {
    kvi_linear_params p[8];
    kvi_matrix        w[8];
} linear_job;

static kvcsa_status linear_step(const void *job, size_t turn, kvcsa_error *err)
{
    return ops->linear(dev, &((const linear_job *)job)->p[turn % 8], err);
}

static void bench_linear(uint32_t kind, size_t n_rows, uint32_t n, const char *shape)
{
    const size_t bytes = kind == KVI_W_FP4 ? (size_t)n * n / 2 : (size_t)n * n;
    const size_t scales = kind == KVI_W_FP4 ? (size_t)n * n / 32 : (size_t)n * n / 1024;
    linear_job   j;
    float       *x = floats(n_rows * n), *y = room(n_rows * n * sizeof *y);
    kvcsa_error  err = {0};

    for (size_t i = 0; i < 8; i++) { /* FP8: eight times the same numbers */
        uint8_t *data = kind == KVI_W_FP4 ? fp4_bytes(bytes) : i == 0 ? cache_bytes(bytes) : room(bytes);

        if (kind != KVI_W_FP4 && i > 0)
            must(ops->mem_copy(dev, data, j.w[0].data, bytes, KVI_COPY_WITHIN, &err), &err);
        j.w[i] = (kvi_matrix){.data = data, .scale = cache_bytes(scales), .kind = kind, .rows = n, .cols = n};
        j.p[i] = (kvi_linear_params){.w = &j.w[i], .n_out = n, .x = x, .y = y, .x_stride = n, .y_stride = n, .n_rows = n_rows};
    }
    const double s = measure(linear_step, &j);

    report(kind == KVI_W_FP4 ? "product, FP4" : "product, FP8", shape, s, n_rows <= 8 ? (double)(bytes + scales) : 0, 0);
    if (n_rows > 8)
        printf("%-49s %10.1f TFLOP/s\n", "", 1e-12 * 2.0 * (double)n_rows * n * n / s);
}

int main(int argc, char **argv)
{
    void                *library;
    kvi_backend_query_fn query;
    kvi_device_info      info;
    kvi_device_params    params = {0};
    kvcsa_error          err = {0};
    char                 why[256] = "";

    if (argc < 2 || (argc == 3 && strcmp(argv[2], "--tiny") != 0) || argc > 3) {
        fprintf(stderr, "usage: bench_cuda PLUGIN [--tiny]\n");
        return 2;
    }
    tiny = argc == 3;
    if (!(library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL))) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&query = dlsym(library, KVI_BACKEND_QUERY);
    ops = query ? query(KVI_BACKEND_ABI) : NULL;
    if (!ops || ops->score(NULL, why, sizeof why) <= 0) {
        fprintf(stderr, "no device: %s\n", why);
        return 1;
    }
    must(ops->device_open(&params, &dev, &err), &err);
    ops->describe(dev, &info);
    printf("%s, %s, %.1f GiB\n", info.name, info.kernels, (double)info.memory / (1 << 30));
    bench_copy();
    bench_random();
    if (tiny) {
        bench_score(300, 2, NULL, 0, "300 keys", 0);
        bench_pool(512, "512 keys");
        bench_topk(1000, 2, "1000", 0);
        bench_attend(1, 200, "1 row", 0);
        bench_linear(KVI_W_FP8, 1, 64, "64 x 64, 1 row");
        bench_linear(KVI_W_FP4, 9, 64, "64 x 64, 9 rows");
    } else {
        bench_score(1 << 20, 1, NULL, 0, "1M keys, 1 row", 28);
        bench_score(1 << 20, 6, NULL, 0, "1M keys, 6 rows", 110);
        bench_pool(1 << 15, "16,384 of 32k");
        bench_pool(1 << 20, "16,384 of 1M");
        bench_topk(1 << 14, 1, "16,384", 8);
        bench_topk(1 << 14, 128, "16,384, 128 rows", 8);
        bench_topk(1 << 20, 1, "1M", 30);
        bench_attend(1, 1 << 20, "1 row of 64 x 512 x 640", 12);
        bench_attend(128, 1 << 20, "128 rows of it", 30);
        bench_linear(KVI_W_FP8, 1, 4096, "4096 x 4096, 1 row");
        bench_linear(KVI_W_FP4, 1, 4096, "4096 x 4096, 1 row");
        bench_linear(KVI_W_FP8, 256, 4096, "4096 x 4096, 256 rows");
        bench_linear(KVI_W_FP4, 256, 4096, "4096 x 4096, 256 rows");
    }
    must(ops->sync(dev, &err), &err);
    ops->device_close(dev);
    return 0;
}
