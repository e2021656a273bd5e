/* The plug-in as a guest: found or not with a reason, its memory, copies and graphs, and what happens when the device has no room. */
#include "cuda/cuda_check.h"

#include "backend/backend_load.h"

#include "format/row.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[PATH_MAX]; /* of the plug-in that runs */

typedef struct heard {
    char text[512];
    int  n;
} heard;

static void hear(void *user, int32_t level, const char *text)
{
    heard *h = user;

    assert_int_equal(level, KVCSA_LOG_INFO);
    snprintf(h->text, sizeof h->text, "%s", text);
    h->n++;
}

/* Look in `dir`; the reason must hold `word`, and is logged once. */
static kvi_backend_found look(const char *dir, const char *word)
{
    heard              h = {.n = 0};
    const kvi_host_ops host = {.struct_size = sizeof host, .log = hear, .user = &h};
    kvi_backend_found  found;

    kvi_backend_load(dir, "cuda", &host, &found);
    if (!strstr(found.why, word))
        fail_msg("\"%s\" does not hold \"%s\"", found.why, word);
    assert_int_equal(h.n, 1);
    assert_string_equal(h.text, found.why);
    assert_int_equal(found.ops != NULL, found.score > 0);
    return found;
}

static void test_plugin_is_found_beside_and_in_a_folder(void **state)
{
    (void)state;
    assert_ptr_equal(look(folder, "compute capability").ops, gpu_ops);
    assert_ptr_equal(look(folder, "compute capability").ops, gpu_ops); /* the same object again */
    /* This program holds the library, so it is looked for where the program stands. */
    assert_null(look(NULL, "no plug-in").ops);
    kvi_backend_found quiet;
    kvi_backend_load(folder, "cuda", NULL, &quiet); /* nobody listens */
    assert_ptr_equal(quiet.ops, gpu_ops);
}

static void test_plugin_that_is_none(void **state)
{
    char  dir[] = "/tmp/kvcsa-plugin-XXXXXX", path[PATH_MAX], far_away[PATH_MAX + 64];
    FILE *f;

    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_null(look(dir, "no plug-in").ops);
    snprintf(path, sizeof path, "%s/libkvcsa_cuda.so", dir);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs("not an object", f);
    fclose(f);
    assert_null(look(dir, "cuda: ").ops);
    assert_null(look("relative", "no absolute path").ops);
    assert_null(look("", "no absolute path").ops);
    memset(far_away, 'x', sizeof far_away - 1);
    far_away[0] = '/';
    far_away[sizeof far_away - 1] = '\0';
    assert_null(look(far_away, "too long").ops);
    unlink(path);
    rmdir(dir);
}

static void test_plugin_of_another_abi(void **state)
{
    (void)state;
    assert_int_equal(gpu_ops->abi, KVI_BACKEND_ABI);
    assert_int_equal(gpu_ops->struct_size, sizeof *gpu_ops);
    assert_string_equal(gpu_ops->name, "cuda");
    assert_null(gpu_query(KVI_BACKEND_ABI + 1));
    assert_null(gpu_query(0));
}

static void test_plugin_without_a_device(void **state)
{
    kvi_device             *dev = gpu;
    const kvi_device_params p = {.ordinal = 0};
    kvcsa_error             err;

    (void)state;
    if (!emulated)
        skip();
    emu.arch(0);
    assert_null(look(folder, "no CUDA device").ops);
    emu.arch(75);
    assert_null(look(folder, "8.0").ops);
    assert_int_equal(gpu_ops->device_open(&p, &dev, &err), KVCSA_ERR_UNSUPPORTED);
    assert_null(dev);
    assert_non_null(strstr(err.text, "7.5"));
    emu.arch(90);
    assert_non_null(look(folder, "9.0").ops);
    emu.arch(80);
}

static void test_describe(void **state)
{
    kvi_device_info info;

    (void)state;
    gpu_ops->describe(gpu, &info);
    assert_true(info.name[0] && memchr(info.name, 0, sizeof info.name));
    assert_true(strncmp(info.kernels, "sm_", 3) == 0);
    assert_true(info.memory >= info.memory_free && info.memory > 0);
    assert_true(info.numerics != 1 && info.numerics != 2); /* those of the CPU */
}

static void test_memory_and_copies(void **state)
{
    static const size_t sizes[] = {0, 1, 15, 4096, 1000003};
    kvcsa_error         err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint32_t kind = KVI_MEMORY_DEVICE; kind <= KVI_MEMORY_PINNED; kind++) {
            const size_t n = sizes[i];
            uint8_t     *host = malloc(n + 1), *back = calloc(1, n + 1);
            void        *a = NULL, *b = NULL;

            for (size_t j = 0; j < n; j++)
                host[j] = (uint8_t)(j * 7 + 1);
            must(gpu_ops->mem_alloc(gpu, n, kind, &a, &err), &err);
            must(gpu_ops->mem_alloc(gpu, n, KVI_MEMORY_DEVICE, &b, &err), &err);
            assert_non_null(a);
            assert_int_equal((uintptr_t)a % 256, 0);
            must(gpu_ops->mem_fill(gpu, b, 0xc3, n, &err), &err);
            must(gpu_ops->mem_copy(gpu, back, b, n, KVI_COPY_OUT, &err), &err);
            must(gpu_ops->sync(gpu, &err), &err);
            for (size_t j = 0; j < n; j++)
                assert_int_equal(back[j], 0xc3);
            if (kind == KVI_MEMORY_PINNED) {
                memcpy(a, host, n);
                must(gpu_ops->mem_copy(gpu, b, a, n, KVI_COPY_IN, &err), &err);
            } else {
                must(gpu_ops->mem_copy(gpu, a, host, n, KVI_COPY_IN, &err), &err);
                must(gpu_ops->mem_copy(gpu, b, a, n, KVI_COPY_WITHIN, &err), &err);
            }
            must(gpu_ops->mem_copy(gpu, back, b, n, KVI_COPY_OUT, &err), &err);
            must(gpu_ops->sync(gpu, &err), &err);
            assert_memory_equal(back, host, n);
            gpu_ops->mem_free(gpu, a, kind);
            gpu_ops->mem_free(gpu, b, KVI_MEMORY_DEVICE);
            free(host);
            free(back);
        }
    gpu_ops->mem_free(gpu, NULL, KVI_MEMORY_DEVICE);
    assert_int_equal(gpu_ops->mem_copy(gpu, NULL, NULL, 1, 3, &err), KVCSA_ERR_ARG);
}

/* What is copied in belongs to the caller again at once, pinned memory after a wait; what is copied out is there after a wait. */
static void test_when_copies_happen(void **state)
{
    uint32_t    in = 1, out = 7;
    uint32_t   *pinned = NULL, *device = NULL;
    kvcsa_error err = {0};

    (void)state;
    must(gpu_ops->mem_alloc(gpu, sizeof *pinned, KVI_MEMORY_PINNED, (void **)&pinned, &err), &err);
    must(gpu_ops->mem_alloc(gpu, 2 * sizeof *device, KVI_MEMORY_DEVICE, (void **)&device, &err), &err);
    *pinned = 3;
    must(gpu_ops->mem_copy(gpu, device, &in, sizeof in, KVI_COPY_IN, &err), &err);
    in = 2;
    must(gpu_ops->mem_copy(gpu, device + 1, pinned, sizeof in, KVI_COPY_IN, &err), &err);
    must(gpu_ops->mem_copy(gpu, &out, device, sizeof out, KVI_COPY_OUT, &err), &err);
    if (emulated)
        assert_true(out != 1);
    must(gpu_ops->sync(gpu, &err), &err);
    assert_int_equal(out, 1);
    must(gpu_ops->mem_copy(gpu, pinned, device + 1, sizeof out, KVI_COPY_OUT, &err), &err);
    must(gpu_ops->sync(gpu, &err), &err);
    assert_int_equal(*pinned, 3);
    if (emulated) { /* a missing wait is seen */
        must(gpu_ops->mem_copy(gpu, device, pinned, sizeof in, KVI_COPY_IN, &err), &err);
        *pinned = 4;
        must(gpu_ops->mem_copy(gpu, &out, device, sizeof out, KVI_COPY_OUT, &err), &err);
        must(gpu_ops->sync(gpu, &err), &err);
        assert_int_equal(out, 4);
    }
    gpu_ops->mem_free(gpu, pinned, KVI_MEMORY_PINNED);
    gpu_ops->mem_free(gpu, device, KVI_MEMORY_DEVICE);
}

static void test_features(void **state)
{
    const kvi_sizes *sizes;
    kvi_features     f;

    (void)state;
    memset(&f, 0xff, sizeof f);
    gpu_ops->features(&f);
    assert_int_equal(f.reference, 0);
    assert_int_equal(f.weight_kinds, 0x3e);
    assert_int_equal(f.expert_kinds, 1u << KVI_W_BF16 | 1u << KVI_W_FP8 | 1u << KVI_W_FP4);
    assert_int_equal(f.entry_formats, 0x7fe); /* every format of rows that is stored */
    assert_int_equal(f.paged_formats,
                     1u << KVCSA_FORMAT_F16 | 1u << KVCSA_FORMAT_BF16 | 1u << KVCSA_FORMAT_FP8_E8M0_G32 | 1u << KVCSA_FORMAT_Q8_0 |
                         1u << KVCSA_FORMAT_FP4_E4M3_G16 | 1u << KVCSA_FORMAT_FP4_E8M0_G32 | 1u << KVCSA_FORMAT_Q4_0);
    for (sizes = &f.heads; sizes <= &f.paged_width; sizes++) { /* all are told */
        assert_true(sizes->step != 0 && sizes->min != 0 && sizes->min <= sizes->max);
        assert_int_equal(sizes->min % sizes->step, 0);
        assert_true(sizes->max % sizes->step == 0 || sizes->max == UINT32_MAX);
    }
    assert_int_equal(f.head_width.max, 512);
    assert_int_equal(f.head_width.step, 32);
}

static void test_device_without_room(void **state)
{
    const kvi_device_params p = {.ordinal = 0};
    kvi_device             *other = NULL;
    size_t                  before;
    void                   *a = &other;
    kvcsa_error             err;

    (void)state;
    if (!emulated)
        skip();
    before = emu.outstanding();
    emu.fail_alloc(0);
    assert_int_equal(gpu_ops->mem_alloc(gpu, 64, KVI_MEMORY_DEVICE, &a, &err), KVCSA_ERR_NOMEM);
    assert_null(a);
    assert_non_null(strstr(err.text, "out of memory"));
    emu.device_memory(before + 1000);
    assert_int_equal(gpu_ops->mem_alloc(gpu, 1001, KVI_MEMORY_DEVICE, &a, &err), KVCSA_ERR_NOMEM);
    emu.device_memory(4ull << 30);
    must(gpu_ops->mem_alloc(gpu, 1001, KVI_MEMORY_DEVICE, &a, &err), &err);
    gpu_ops->mem_free(gpu, a, KVI_MEMORY_DEVICE);
    must(gpu_ops->device_open(&p, &other, &err), &err);
    gpu_ops->device_close(other);
    gpu_ops->device_close(NULL);
    assert_int_equal(emu.outstanding(), before);
}

/* What the runtime says of a call that failed belongs to that call, and not to the next. */
static void test_failure_is_told_once(void **state)
{
    float           one = 1, y = 0;
    kvi_norm_params p = {.x_stride = 1, .y_stride = 1, .n_rows = 1, .width = 1, .eps = 1e-6f};
    void           *none = NULL;
    kvcsa_error     err;

    (void)state;
    if (!emulated)
        skip();
    p.x = p.weight = to_device(&one, sizeof one);
    p.y = to_device(&y, sizeof y);
    emu.fail_alloc(0);
    assert_int_equal(gpu_ops->mem_alloc(gpu, 64, KVI_MEMORY_DEVICE, &none, &err), KVCSA_ERR_NOMEM);
    GPU(norm, &p);
    device_free_all();
}

/* ---------------------------------------------------------------- graphs */

enum { WIDTH = 100 };

/* A norm of one row, in device memory. */
typedef struct row {
    float           x[WIDTH], w[WIDTH];
    kvi_norm_params p;
} row;

static void row_init(row *r)
{
    float y[WIDTH] = {0};

    fill(r->x, WIDTH, 1.0f);
    fill(r->w, WIDTH, 1.0f);
    r->p = (kvi_norm_params){.x_stride = WIDTH, .y_stride = WIDTH, .n_rows = 1, .width = WIDTH, .eps = 1e-6f};
    r->p.x = to_device(r->x, sizeof r->x);
    r->p.weight = to_device(r->w, sizeof r->w);
    r->p.y = to_device(y, sizeof y);
}

static void row_put(row *r, kvcsa_error *err)
{
    must(gpu_ops->mem_copy(gpu, (void *)(uintptr_t)r->p.x, r->x, sizeof r->x, KVI_COPY_IN, err), err);
}

/* Whether y is the norm of x; may run in any thread. */
static bool is_normed(const row *r, const float *y)
{
    kvi_norm_params p = r->p;
    float           want[WIDTH];
    bool            same = true;

    p.x = r->x;
    p.weight = r->w;
    p.y = want;
    if (cpu_ops->norm(cpu, &p, NULL) != KVCSA_OK)
        return false;
    for (size_t i = 0; i < WIDTH; i++) /* as in test_cuda_norm */
        same = same && fabs((double)y[i] - (double)want[i]) <= 26 * U * fabs((double)want[i]);
    return same;
}

/* What is recorded runs again on what stands in its arrays then; nothing happens while it is recorded. */
static void test_graph(void **state)
{
    row         r;
    float       y[WIDTH];
    uint8_t    *copy = to_device(NULL, sizeof y + 8);
    kvi_graph  *graph = NULL;
    kvcsa_error err = {0};

    (void)state;
    row_init(&r);
    assert_int_equal(gpu_ops->graph_end(gpu, &graph, &err), KVCSA_ERR_ARG);
    must(gpu_ops->graph_begin(gpu, &err), &err);
    GPU(norm, &r.p);
    must(gpu_ops->mem_copy(gpu, copy, r.p.y, sizeof y, KVI_COPY_WITHIN, &err), &err);
    must(gpu_ops->mem_fill(gpu, copy + sizeof y, 7, 8, &err), &err);
    GPU(norm, &(kvi_norm_params){.n_rows = 0}); /* nothing, which can be recorded too */
    must(gpu_ops->graph_end(gpu, &graph, &err), &err);
    from_device(y, r.p.y, sizeof y);
    for (size_t i = 0; i < WIDTH; i++)
        assert_true(y[i] == 0);
    for (int round = 0; round < 3; round++) {
        uint8_t got[sizeof y + 8];

        fill(r.x, WIDTH, 1.0f + (float)round);
        row_put(&r, &err);
        must(gpu_ops->mem_fill(gpu, copy, 0, sizeof got, &err), &err);
        must(gpu_ops->graph_run(gpu, graph, &err), &err);
        from_device(got, copy, sizeof got);
        memcpy(y, got, sizeof y);
        assert_true(is_normed(&r, y));
        for (size_t i = 0; i < 8; i++)
            assert_int_equal(got[sizeof y + i], 7);
    }
    gpu_ops->graph_free(gpu, graph);
    gpu_ops->graph_free(gpu, NULL);
    device_free_all();
}

/* ---- what cannot be recorded ---- */

static row       failing_row;
static void     *to_free;
static kvi_graph *to_run;

static kvcsa_status refused_operator(kvcsa_error *err)
{
    kvi_norm_params p = failing_row.p;

    p.flags = KVI_OP_ROUND_BF16;
    return gpu_ops->norm(gpu, &p, err);
}

static kvcsa_status refused_begin(kvcsa_error *err) { return gpu_ops->graph_begin(gpu, err); }

static kvcsa_status refused_allocation(kvcsa_error *err)
{
    void              *none = gpu;
    const kvcsa_status st = gpu_ops->mem_alloc(gpu, 8, KVI_MEMORY_DEVICE, &none, err);

    assert_null(none);
    return st;
}

static kvcsa_status refused_copy_in(kvcsa_error *err)
{
    return gpu_ops->mem_copy(gpu, failing_row.p.y, failing_row.x, sizeof failing_row.x, KVI_COPY_IN, err);
}

static kvcsa_status refused_copy_out(kvcsa_error *err)
{
    return gpu_ops->mem_copy(gpu, failing_row.x, failing_row.p.y, sizeof failing_row.x, KVI_COPY_OUT, err);
}

static kvcsa_status refused_wait(kvcsa_error *err) { return gpu_ops->sync(gpu, err); }

static kvcsa_status refused_graph(kvcsa_error *err) { return gpu_ops->graph_run(gpu, to_run, err); }

/* These two are done, but what was recorded is lost. */
static kvcsa_status free_memory(kvcsa_error *err)
{
    (void)err;
    gpu_ops->mem_free(gpu, to_free, KVI_MEMORY_DEVICE);
    to_free = NULL;
    return KVCSA_ERR_BACKEND;
}

static kvcsa_status free_graph(kvcsa_error *err)
{
    (void)err;
    gpu_ops->graph_free(gpu, to_run);
    to_run = NULL;
    return KVCSA_ERR_BACKEND;
}

static kvi_graph *record_row(const row *r)
{
    kvi_graph  *graph = NULL;
    kvcsa_error err = {0};

    must(gpu_ops->graph_begin(gpu, &err), &err);
    GPU(norm, &r->p);
    must(gpu_ops->graph_end(gpu, &graph, &err), &err);
    return graph;
}

/* After a call that failed the end says so and gives no graph; nothing of it runs, and the device goes on. */
static void test_failed_recording(void **state)
{
    static const struct {
        kvcsa_status (*call)(kvcsa_error *err);
        kvcsa_status status;
        const char  *words;
    } cases[] = {
        {refused_operator, KVCSA_ERR_UNSUPPORTED, "reference mode"}, {refused_begin, KVCSA_ERR_ARG, "already"},
        {refused_allocation, KVCSA_ERR_BACKEND, "allocation"},       {refused_copy_in, KVCSA_ERR_BACKEND, "host"},
        {refused_copy_out, KVCSA_ERR_BACKEND, "host"},               {refused_wait, KVCSA_ERR_BACKEND, "wait"},
        {refused_graph, KVCSA_ERR_BACKEND, "run"},                   {free_memory, KVCSA_ERR_BACKEND, "freed"},
        {free_graph, KVCSA_ERR_BACKEND, "freed"},
    };
    static const float zeros[WIDTH];
    const size_t       before = emulated ? emu.outstanding() : 0;
    float              y[WIDTH];
    kvcsa_error        err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        row        *r = &failing_row;
        kvi_graph  *graph = NULL;

        row_init(r);
        must(gpu_ops->mem_alloc(gpu, 64, KVI_MEMORY_DEVICE, &to_free, &err), &err);
        to_run = record_row(r);
        must(gpu_ops->graph_begin(gpu, &err), &err);
        GPU(norm, &r->p);
        assert_int_equal(cases[i].call(&err), cases[i].status);
        GPU(norm, &r->p); /* it is not run either */
        graph = to_run;
        assert_int_equal(gpu_ops->graph_end(gpu, &graph, &err), cases[i].status);
        assert_null(graph);
        if (!strstr(err.text, cases[i].words))
            fail_msg("\"%s\" does not hold \"%s\"", err.text, cases[i].words);
        from_device(y, r->p.y, sizeof y);
        assert_memory_equal(y, zeros, sizeof y);
        graph = record_row(r);
        must(gpu_ops->graph_run(gpu, graph, &err), &err);
        from_device(y, r->p.y, sizeof y);
        assert_true(is_normed(r, y));
        gpu_ops->graph_free(gpu, graph);
        gpu_ops->graph_free(gpu, to_run);
        gpu_ops->mem_free(gpu, to_free, KVI_MEMORY_DEVICE);
        device_free_all();
    }
    if (emulated)
        assert_int_equal(emu.outstanding(), before);
}

/* No room for the graph itself; and a device that is closed while it records. */
static void test_graph_without_room(void **state)
{
    const kvi_device_params p = {.ordinal = 0};
    kvi_device             *other = NULL;
    row                     r;
    float                   y[WIDTH];
    kvi_graph              *graph = NULL;
    size_t                  before;
    kvcsa_error             err = {0};

    (void)state;
    if (!emulated)
        skip();
    row_init(&r);
    before = emu.outstanding();
    for (long nth = 0; nth < 2; nth++) {
        must(gpu_ops->graph_begin(gpu, &err), &err);
        GPU(norm, &r.p);
        emu.fail_alloc(nth);
        assert_int_equal(gpu_ops->graph_end(gpu, &graph, &err), KVCSA_ERR_NOMEM);
        assert_null(graph);
        assert_int_equal(emu.outstanding(), before);
        GPU(norm, &r.p);
        from_device(y, r.p.y, sizeof y);
        assert_true(is_normed(&r, y));
    }
    must(gpu_ops->device_open(&p, &other, &err), &err);
    must(gpu_ops->graph_begin(other, &err), &err);
    gpu_ops->device_close(other);
    assert_int_equal(emu.outstanding(), before);
    GPU(norm, &r.p);
    device_free_all();
}

/* ---- scratch ---- */

/* An attention of entries alone, with what they are worth: both take scratch. */
typedef struct attention {
    kvi_kv_owner      owner;
    kvi_attend_params p;
    size_t            n_out, n_mass;
} attention;

static void attention_init(attention *a, size_t n_rows, uint32_t k)
{
    enum { ENTRY_WIDTH = 32, ENTRIES = 8 };
    uint8_t   block[ENTRIES * 18];
    uint8_t  *there;
    float    *q = malloc(n_rows * ENTRY_WIDTH * sizeof *q), sink = 0.5f;
    int32_t  *ids = malloc(n_rows * k * sizeof *ids);
    uint64_t *pos = malloc(n_rows * sizeof *pos);

    fill(q, n_rows * ENTRY_WIDTH, 1.0f);
    for (size_t i = 0; i < ENTRIES; i++)
        kvi_row_encode(KVCSA_FORMAT_FP4_E4M3_G16, q, ENTRY_WIDTH, block + 18 * i);
    fill(q, n_rows * ENTRY_WIDTH, 1.0f);
    for (size_t i = 0; i < n_rows * k; i++) /* most slots are empty */
        ids[i] = i % k % 300 < 5 ? (int32_t)((i + i / k) % ENTRIES) : -1;
    for (size_t i = 0; i < n_rows; i++)
        pos[i] = 100 + i;
    there = to_device(block, sizeof block);
    a->owner = (kvi_kv_owner){.rows_per_block = ENTRIES, .entry_width = ENTRY_WIDTH, .entry_format = KVCSA_FORMAT_FP4_E4M3_G16,
                              .main_row_bytes = 18};
    a->n_out = n_rows * ENTRY_WIDTH;
    a->n_mass = n_rows * k;
    a->p = (kvi_attend_params){.q = to_device(q, a->n_out * sizeof *q), .out = to_device(NULL, a->n_out * sizeof *q),
                               .pos = to_device(pos, n_rows * sizeof *pos), .sink = to_device(&sink, sizeof sink),
                               .entries = {.owner = &a->owner, .main_parts = table_to_device(&there, 1)},
                               .ids = to_device(ids, a->n_mass * sizeof *ids), .mass = to_device(NULL, a->n_mass * sizeof *q),
                               .n_rows = n_rows, .n_heads = 1, .width = ENTRY_WIDTH, .k = k, .scale = 0.2f};
    free(q);
    free(ids);
    free(pos);
}

static void attention_get(const attention *a, float *out)
{
    from_device(out, a->p.out, a->n_out * sizeof *out);
    from_device(out + a->n_out, a->p.mass, a->n_mass * sizeof *out);
}

static void attention_clear(const attention *a)
{
    kvcsa_error err = {0};

    must(gpu_ops->mem_fill(gpu, a->p.out, 0, a->n_out * sizeof(float), &err), &err);
    must(gpu_ops->mem_fill(gpu, a->p.mass, 0, a->n_mass * sizeof(float), &err), &err);
}

static kvi_graph *record_attention(const attention *a)
{
    kvi_graph  *graph = NULL;
    kvcsa_error err = {0};

    must(gpu_ops->graph_begin(gpu, &err), &err);
    GPU(attend, &a->p);
    must(gpu_ops->graph_end(gpu, &graph, &err), &err);
    return graph;
}

/* Scratch grows while graphs refer to it: they go on with theirs, which goes with the last of them and not before. */
static void test_graphs_keep_their_scratch(void **state)
{
    enum { ROWS = 2, K = 400, SIZE = ROWS * (32 + K), PIECE = 65536 };
    const kvi_device_params p = {.ordinal = 0};
    kvi_device             *whole = gpu;
    attention               small, large;
    kvi_graph              *graphs[3];
    float                   want[SIZE], got[SIZE], *much;
    size_t                  now = 0;
    kvcsa_error             err = {0};

    (void)state;
    must(gpu_ops->device_open(&p, &gpu, &err), &err); /* without scratch at first */
    attention_init(&small, ROWS, K);
    attention_init(&large, 8, 5000);
    much = malloc((large.n_out + large.n_mass) * sizeof *much);
    must(gpu_ops->graph_begin(gpu, &err), &err);
    assert_int_equal(gpu_ops->attend(gpu, &small.p, &err), KVCSA_ERR_BACKEND); /* nothing has been run before */
    assert_non_null(strstr(err.text, "scratch"));
    assert_int_equal(gpu_ops->graph_end(gpu, &graphs[0], &err), KVCSA_ERR_BACKEND);
    GPU(attend, &small.p);
    attention_get(&small, want);
    graphs[0] = record_attention(&small);
    graphs[1] = record_attention(&small);
    GPU(attend, &large.p);
    attention_get(&large, much); /* which waits */
    graphs[2] = record_attention(&large);
    for (int i = 0; i < 2; i++) {
        attention_clear(&small);
        must(gpu_ops->graph_run(gpu, graphs[2], &err), &err);
        must(gpu_ops->graph_run(gpu, graphs[i], &err), &err);
        attention_get(&small, got);
        assert_memory_equal(got, want, sizeof got);
        now = emulated ? emu.outstanding() : 0;
        gpu_ops->graph_free(gpu, graphs[i]);
        if (emulated)
            assert_int_equal(now - emu.outstanding() >= PIECE, i == 1); /* the last one takes the old piece along */
    }
    now = emulated ? emu.outstanding() : 0;
    gpu_ops->graph_free(gpu, graphs[2]);
    if (emulated)
        assert_true(now - emu.outstanding() < PIECE); /* that is the device's */
    GPU(attend, &small.p);
    attention_get(&small, got);
    assert_memory_equal(got, want, sizeof got);
    device_free_all();
    gpu_ops->device_close(gpu);
    gpu = whole;
    free(much);
}

/* ---- threads ---- */

typedef struct worker {
    row           r;
    float         y[WIDTH];
    int           rounds;
    atomic_bool   begun, done;
    bool          failed;
    kvcsa_error   err;
} worker;

static bool worker_ok(worker *w, kvcsa_status st)
{
    w->failed = w->failed || st != KVCSA_OK;
    return st == KVCSA_OK;
}

/* Memory, copies, an operator and a wait, as the owner of a session makes them. */
static void *run_beside(void *arg)
{
    worker *w = arg;
    void   *room = NULL;

    atomic_store(&w->begun, true);
    worker_ok(w, gpu_ops->mem_alloc(gpu, 64, KVI_MEMORY_DEVICE, &room, &w->err));
    worker_ok(w, gpu_ops->norm(gpu, &w->r.p, &w->err));
    worker_ok(w, gpu_ops->mem_copy(gpu, w->y, w->r.p.y, sizeof w->y, KVI_COPY_OUT, &w->err));
    worker_ok(w, gpu_ops->sync(gpu, &w->err));
    gpu_ops->mem_free(gpu, room, KVI_MEMORY_DEVICE);
    atomic_store(&w->done, true);
    return NULL;
}

/* While one thread records, the calls of another wait, and are not recorded. */
static void test_others_wait_for_a_recording(void **state)
{
    static const float zeros[WIDTH];
    row                r;
    worker             w = {.rounds = 1};
    pthread_t          thread;
    float              y[WIDTH];
    kvi_graph         *graph = NULL;
    kvcsa_error        err = {0};

    (void)state;
    for (int failing = 0; failing < 2; failing++) {
        row_init(&r);
        row_init(&w.r);
        atomic_store(&w.begun, false);
        atomic_store(&w.done, false);
        must(gpu_ops->graph_begin(gpu, &err), &err);
        GPU(norm, &r.p);
        assert_int_equal(pthread_create(&thread, NULL, run_beside, &w), 0);
        while (!atomic_load(&w.begun))
            usleep(100);
        usleep(20000);
        assert_false(atomic_load(&w.done));
        GPU(norm, &r.p);
        if (failing)
            assert_int_equal(refused_allocation(&err), KVCSA_ERR_BACKEND);
        assert_false(atomic_load(&w.done));
        assert_int_equal(gpu_ops->graph_end(gpu, &graph, &err), failing ? KVCSA_ERR_BACKEND : KVCSA_OK);
        pthread_join(thread, NULL);
        assert_true(atomic_load(&w.done));
        if (w.failed)
            fail_msg("%s", w.err.text);
        assert_true(is_normed(&w.r, w.y));
        if (!failing) {
            must(gpu_ops->mem_fill(gpu, w.r.p.y, 0, sizeof y, &err), &err);
            must(gpu_ops->graph_run(gpu, graph, &err), &err);
            from_device(y, w.r.p.y, sizeof y);
            assert_memory_equal(y, zeros, sizeof y); /* it is not in the graph */
            from_device(y, r.p.y, sizeof y);
            assert_true(is_normed(&r, y));
        }
        gpu_ops->graph_free(gpu, graph);
        device_free_all();
    }
}

static bool record_and_run(worker *w)
{
    kvi_graph *graph = NULL;
    bool       good = worker_ok(w, gpu_ops->graph_begin(gpu, &w->err));

    if (!good)
        return false;
    good = worker_ok(w, gpu_ops->norm(gpu, &w->r.p, &w->err));
    good = worker_ok(w, gpu_ops->graph_end(gpu, &graph, &w->err)) && good;
    good = good && worker_ok(w, gpu_ops->graph_run(gpu, graph, &w->err));
    good = good && worker_ok(w, gpu_ops->sync(gpu, &w->err));
    gpu_ops->graph_free(gpu, graph);
    return good;
}

static void *work(void *arg)
{
    worker *w = arg;

    for (int round = 0; round < w->rounds && !w->failed; round++) {
        const kvi_norm_params *p = &w->r.p;

        w->r.x[round % WIDTH] += 1.0f;
        worker_ok(w, gpu_ops->mem_copy(gpu, (void *)(uintptr_t)p->x, w->r.x, sizeof w->r.x, KVI_COPY_IN, &w->err));
        worker_ok(w, gpu_ops->mem_fill(gpu, p->y, 0, sizeof w->y, &w->err));
        if (round % 3 == 2)
            worker_ok(w, gpu_ops->norm(gpu, p, &w->err));
        else
            record_and_run(w);
        worker_ok(w, gpu_ops->mem_copy(gpu, w->y, p->y, sizeof w->y, KVI_COPY_OUT, &w->err));
        worker_ok(w, gpu_ops->sync(gpu, &w->err));
        w->failed = w->failed || !is_normed(&w->r, w->y);
    }
    return NULL;
}

static void test_threads_record_and_run(void **state)
{
    enum { THREADS = 4 };
    static worker workers[THREADS];
    pthread_t     threads[THREADS];

    (void)state;
    for (size_t i = 0; i < THREADS; i++) {
        workers[i].rounds = 20;
        row_init(&workers[i].r);
    }
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < THREADS; i++)
        if (workers[i].failed)
            fail_msg("thread %zu: %s", i, workers[i].err.text);
    device_free_all();
}

static void test_reference_mode_is_refused(void **state)
{
    float           one = 1;
    kvi_norm_params p = {.x = &one, .y = &one, .weight = &one, .n_rows = 1, .width = 1, .flags = KVI_OP_ROUND_BF16};
    kvcsa_error     err;

    (void)state;
    assert_int_equal(gpu_ops->norm(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_plugin_is_found_beside_and_in_a_folder),
    cmocka_unit_test(test_plugin_that_is_none),
    cmocka_unit_test(test_plugin_of_another_abi),
    cmocka_unit_test(test_plugin_without_a_device),
    cmocka_unit_test(test_describe),
    cmocka_unit_test(test_memory_and_copies),
    cmocka_unit_test(test_when_copies_happen),
    cmocka_unit_test(test_features),
    cmocka_unit_test(test_device_without_room),
    cmocka_unit_test(test_failure_is_told_once),
    cmocka_unit_test(test_graph),
    cmocka_unit_test(test_failed_recording),
    cmocka_unit_test(test_graph_without_room),
    cmocka_unit_test(test_graphs_keep_their_scratch),
    cmocka_unit_test(test_others_wait_for_a_recording),
    cmocka_unit_test(test_threads_record_and_run),
    cmocka_unit_test(test_reference_mode_is_refused),
};

int main(int argc, char **argv)
{
    cuda_arguments(argc, argv);
    cuda_folder(folder, sizeof folder);
    return cmocka_run_group_tests(tests, cuda_open, cuda_close);
}
