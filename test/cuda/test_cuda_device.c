/* The plug-in as a guest: found or not with a reason, its memory, copies and graphs, and what happens when the device has no room. */
#include "cuda/cuda_check.h"

#include "backend/backend_load.h"

#include <limits.h>
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
    assert_int_equal(f.entry_formats, 0x7fe); /* every format of rows that is stored */
    assert_int_equal(f.paged_formats,
                     1u << KVCSA_FORMAT_F16 | 1u << KVCSA_FORMAT_BF16 | 1u << KVCSA_FORMAT_FP8_E8M0_G32 | 1u << KVCSA_FORMAT_Q8_0 |
                         1u << KVCSA_FORMAT_FP4_E4M3_G16 | 1u << KVCSA_FORMAT_FP4_E8M0_G32 | 1u << KVCSA_FORMAT_Q4_0);
    for (sizes = &f.heads; sizes <= &f.paged_width; sizes++) { /* all are told */
        assert_true(sizes->step != 0 && sizes->min != 0 && sizes->min <= sizes->max);
        assert_int_equal(sizes->min % sizes->step, 0);
        assert_true(sizes->max % sizes->step == 0);
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

/* A recorded norm runs again on what stands in its arrays then; nothing is computed or allocated while it is recorded. */
static void test_graph(void **state)
{
    enum { N = 100 };
    float           x[N], w[N], y[N], want[N];
    kvi_norm_params p = {.x_stride = N, .y_stride = N, .n_rows = 1, .width = N, .eps = 1e-6f};
    kvi_norm_params c = p;
    kvi_graph      *graph = NULL;
    void           *none = NULL;
    kvcsa_error     err = {0};

    (void)state;
    fill(w, N, 1.0f);
    memset(y, 0, sizeof y);
    p.x = to_device(x, sizeof x);
    p.weight = to_device(w, sizeof w);
    p.y = to_device(y, sizeof y);
    assert_int_equal(gpu_ops->graph_end(gpu, &graph, &err), KVCSA_ERR_ARG);
    must(gpu_ops->graph_begin(gpu, &err), &err);
    assert_int_equal(gpu_ops->graph_begin(gpu, &err), KVCSA_ERR_ARG);
    GPU(norm, &p);
    assert_int_equal(gpu_ops->mem_alloc(gpu, 8, KVI_MEMORY_DEVICE, &none, &err), KVCSA_ERR_BACKEND);
    must(gpu_ops->graph_end(gpu, &graph, &err), &err);
    from_device(y, p.y, sizeof y);
    for (size_t i = 0; i < N; i++)
        assert_true(y[i] == 0);
    for (int round = 0; round < 3; round++) {
        fill(x, N, 1.0f + (float)round);
        must(gpu_ops->mem_copy(gpu, (void *)(uintptr_t)p.x, x, sizeof x, KVI_COPY_IN, &err), &err);
        must(gpu_ops->graph_run(gpu, graph, &err), &err);
        from_device(y, p.y, sizeof y);
        c.x = x;
        c.y = want;
        c.weight = w;
        CPU(norm, &c);
        for (size_t i = 0; i < N; i++)
            assert_within(y[i], want[i], 26 * U * fabs((double)want[i])); /* as in test_cuda_norm */
    }
    gpu_ops->graph_free(gpu, graph);
    gpu_ops->graph_free(gpu, NULL);
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
    cmocka_unit_test(test_graph),
    cmocka_unit_test(test_reference_mode_is_refused),
};

int main(int argc, char **argv)
{
    cuda_arguments(argc, argv);
    cuda_folder(folder, sizeof folder);
    return cmocka_run_group_tests(tests, cuda_open, cuda_close);
}
