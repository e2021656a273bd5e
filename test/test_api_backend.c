/* What computes in a pool, through the public interface: which backend is taken and why, what is said about it, and what is wrong
 * to ask. The devices are those of the tests: the emulated CUDA plug-in, and the CPU behind memory of its own. */
#include "support/host.h"
#include "support/test_backend.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

/* ------------------------------------------------------------------ help */

typedef struct heard {
    char text[512]; /* the last line */
    int  n;
} heard;

static void hear(void *user, int32_t level, const char *text)
{
    heard *h = user;

    assert_int_equal(level, KVCSA_LOG_INFO);
    snprintf(h->text, sizeof h->text, "%s", text);
    h->n++;
}

static kvcsa_pool_params params_of(uint32_t backend, const char *dir)
{
    kvcsa_pool_params p;

    kvcsa_pool_params_default(&p, sizeof p);
    p.n_threads = 1;
    p.backend = backend;
    p.backend_dir = dir;
    return p;
}

static kvcsa_pool *pool_with(uint32_t backend, const char *dir)
{
    const kvcsa_pool_params p = params_of(backend, dir);
    kvcsa_pool             *pool = NULL;
    kvcsa_error             err;

    assert_ok(kvcsa_pool_create(&p, &pool, &err));
    return pool;
}

static kvcsa_backend_info info_of(const kvcsa_pool *pool)
{
    kvcsa_backend_info info = {.struct_size = sizeof info};
    kvcsa_error        err;

    assert_ok(kvcsa_pool_get_backend(pool, &info, &err));
    assert_int_equal(info.struct_size, sizeof info);
    assert_true(info.name[0] != '\0' && memchr(info.name, 0, sizeof info.name));
    assert_non_null(memchr(info.device, 0, sizeof info.device));
    assert_true(info.kernels[0] != '\0' && memchr(info.kernels, 0, sizeof info.kernels));
    assert_true(info.why[0] != '\0' && memchr(info.why, 0, sizeof info.why));
    /* the list is whole */
    assert_true(memchr(info.features, 0, sizeof info.features) && strlen(info.features) < sizeof info.features - 1);
    assert_non_null(strstr(info.features, "DeepSeek-V4.1"));
    assert_int_equal(info.reference, info.backend == KVCSA_BACKEND_CPU);
    return info;
}

static uint64_t cpu_numerics(void)
{
    kvcsa_cpu_info cpu = {.struct_size = sizeof cpu};
    kvcsa_error    err;

    assert_ok(kvcsa_pool_get_cpu(NULL, &cpu, &err));
    return cpu.numerics;
}

static void assert_is_cpu(const kvcsa_pool *pool)
{
    const kvcsa_backend_info info = info_of(pool);
    kvcsa_cpu_info           cpu = {.struct_size = sizeof cpu};
    kvcsa_error              err;

    assert_ok(kvcsa_pool_get_cpu(pool, &cpu, &err));
    assert_int_equal(info.backend, KVCSA_BACKEND_CPU);
    assert_string_equal(info.name, "cpu");
    assert_string_equal(info.device, cpu.processor);
    assert_string_equal(info.kernels, cpu.kernels);
    assert_int_equal(info.numerics, cpu.numerics);
    assert_int_equal(info.memory_bytes, 0);
    assert_int_equal(info.memory_free_bytes, 0);
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(info.entry_formats >> i & 1, i >= KVCSA_FORMAT_FP4_E4M3_G16 && i <= KVCSA_FORMAT_INT3_F16_G32);
    assert_int_equal(info.paged_formats, info.entry_formats);
}

/* ------------------------------------------------------------------ the CPU */

static void test_a_pool_says_what_computes(void **state)
{
    kvcsa_pool              *pool = pool_with(KVCSA_BACKEND_AUTO, NULL);
    const kvcsa_backend_info info = info_of(pool);
    const kvcsa_backend_info none = info_of(NULL);

    (void)state;
    /* Where a device and its plug-in are beside the library it is that. */
    if (info.backend == KVCSA_BACKEND_CPU)
        assert_is_cpu(pool);
    assert_non_null(strstr(info.why, "cuda: "));
    assert_int_equal(none.backend, info.backend);
    assert_string_equal(none.device, info.device);
    assert_string_equal(none.features, info.features);
    kvcsa_pool_release(&pool);
}

static void test_cpu_is_taken_when_asked_for(void **state)
{
    heard             h = {.n = 0};
    const kvcsa_log   log = {hear, &h};
    kvcsa_pool_params p = params_of(KVCSA_BACKEND_CPU, test_backend_beside("emulated"));
    kvcsa_pool       *pool = NULL;
    kvcsa_error       err;

    (void)state;
    p.log = &log;
    p.ordinal = 3;
    p.cpu_avoid = KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512 | KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD;
    assert_ok(kvcsa_pool_create(&p, &pool, &err));
    assert_is_cpu(pool);
    assert_non_null(strstr(info_of(pool).why, "asked for"));
    assert_string_equal(info_of(pool).kernels, "portable C");
    assert_int_equal(h.n, 0); /* nothing is looked for */
    kvcsa_pool_release(&pool);
}

static void test_folder_without_a_plugin(void **state)
{
    char              dir[] = "/tmp/kvcsa-backend-XXXXXX";
    heard             h = {.n = 0};
    const kvcsa_log   log = {hear, &h};
    kvcsa_pool_params p;
    kvcsa_pool       *pool = (kvcsa_pool *)dir;
    kvcsa_error       err;

    (void)state;
    assert_non_null(mkdtemp(dir));
    p = params_of(KVCSA_BACKEND_CUDA, dir);
    assert_fails(kvcsa_pool_create(&p, &pool, &err), KVCSA_ERR_BACKEND, "cuda: no plug-in");
    assert_non_null(strstr(err.text, dir));
    assert_null(pool);
    p.backend = KVCSA_BACKEND_AUTO;
    p.log = &log;
    assert_ok(kvcsa_pool_create(&p, &pool, &err));
    assert_is_cpu(pool);
    assert_non_null(strstr(info_of(pool).why, "cuda: no plug-in"));
    assert_int_equal(h.n, 1);
    assert_string_equal(h.text, info_of(pool).why);
    kvcsa_pool_release(&pool);
    assert_int_equal(rmdir(dir), 0);
}

/* ------------------------------------------------------------------ wrong arguments */

static void test_wrong_arguments(void **state)
{
    static const char *const dirs[] = {"", "lib", "./lib"};
    struct {
        kvcsa_backend_info info;
        uint8_t            after[16];
    } grown = {.info.struct_size = sizeof grown};
    kvcsa_backend_info small = {.struct_size = sizeof small - 8};
    kvcsa_pool_params  p;
    kvcsa_pool        *pool = (kvcsa_pool *)&small;
    kvcsa_error        err;

    (void)state;
    for (uint32_t b = KVCSA_BACKEND_AUTO; b <= KVCSA_BACKEND_CUDA; b++) {
        for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
            p = params_of(b, dirs[i]);
            assert_fails(kvcsa_pool_create(&p, &pool, &err), KVCSA_ERR_ARG, "must be an absolute path");
            assert_null(pool);
        }
    }
    p = params_of(KVCSA_BACKEND_CUDA + 1, NULL);
    assert_fails(kvcsa_pool_create(&p, &pool, &err), KVCSA_ERR_UNSUPPORTED, "backend is 3");
    assert_null(pool);

    pool = pool_with(KVCSA_BACKEND_CPU, NULL);
    assert_fails(kvcsa_pool_get_backend(pool, NULL, &err), KVCSA_ERR_ARG, "info is NULL");
    assert_fails(kvcsa_pool_get_backend(pool, &small, &err), KVCSA_ERR_ARG, "struct_size is");
    memset(grown.after, 0xA7, sizeof grown.after);
    assert_ok(kvcsa_pool_get_backend(pool, &grown.info, &err));
    assert_string_equal(grown.info.name, "cpu");
    for (size_t i = 0; i < sizeof grown.after; i++)
        assert_int_equal(grown.after[i], 0);
    kvcsa_pool_release(&pool);
}

/* Programs of 0.1 to 0.3 know nothing of what stands behind their structs; a later one's fields must be zero. */
static void test_params_of_other_releases(void **state)
{
    static const size_t sizes[] = {offsetof(kvcsa_pool_params, trace), offsetof(kvcsa_pool_params, backend)};
    struct {
        kvcsa_pool_params p;
        uint64_t          later;
    } grown;
    kvcsa_pool *pool = NULL;
    kvcsa_error err;

    (void)state;
    assert_int_equal(sizes[0], 48);
    assert_int_equal(sizes[1], 64);
    for (size_t i = 0; i < 2; i++) {
        kvcsa_pool_params p;

        memset(&p, 0xA7, sizeof p);
        kvcsa_pool_params_default(&p, sizes[i]);
        p.n_threads = 1;
        assert_int_equal(p.backend, 0xA7A7A7A7u); /* not touched */
        assert_ok(kvcsa_pool_create(&p, &pool, &err));
        kvcsa_pool_release(&pool);
    }
    kvcsa_pool_params_default(&grown.p, sizeof grown);
    assert_int_equal(grown.p.backend, KVCSA_BACKEND_AUTO);
    assert_null(grown.p.backend_dir);
    grown.p.n_threads = 1;
    grown.p.backend = KVCSA_BACKEND_CPU;
    assert_ok(kvcsa_pool_create(&grown.p, &pool, &err));
    assert_is_cpu(pool);
    kvcsa_pool_release(&pool);
    grown.later = 1;
    assert_fails(kvcsa_pool_create(&grown.p, &pool, &err), KVCSA_ERR_UNSUPPORTED, "kvcsa_pool_params has a field");
    assert_null(pool);
}

/* ------------------------------------------------------------------ devices */

static void check_device(const char *folder, const char *name, int same_numerics)
{
    for (uint32_t b = KVCSA_BACKEND_AUTO; b <= KVCSA_BACKEND_CUDA; b += KVCSA_BACKEND_CUDA) {
        heard              h = {.n = 0};
        const kvcsa_log    log = {hear, &h};
        kvcsa_pool_params  p = params_of(b, test_backend_beside(folder));
        kvcsa_pool_stats   stats = {.struct_size = sizeof stats};
        kvcsa_pool        *pool = NULL;
        kvcsa_backend_info info;
        kvcsa_error        err;

        p.log = &log;
        assert_ok(kvcsa_pool_create(&p, &pool, &err));
        info = info_of(pool);
        assert_int_equal(info.backend, KVCSA_BACKEND_CUDA);
        assert_string_equal(info.name, name);
        assert_true(info.device[0] != '\0');
        assert_true(info.memory_bytes > 0 && info.memory_free_bytes <= info.memory_bytes);
        assert_true(info.numerics != 0);
        assert_int_equal(info.numerics == cpu_numerics(), same_numerics);
        assert_true(info.entry_formats >> KVCSA_FORMAT_FP4_E4M3_G16 & 1); /* the model's own */
        assert_non_null(strstr(info.why, "cuda: "));
        assert_true(h.n >= 1);
        assert_ok(kvcsa_pool_get_stats(pool, &stats, &err));
        assert_int_equal(stats.used_bytes, 0);
        assert_ok(kvcsa_pool_check(pool, &err));
        kvcsa_pool_release(&pool);
        assert_null(pool);
    }
}

/* Tests that were built by a cross compiler have no emulated device. */
static void skip_without_emulated(void)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/libkvcsa_cuda.so", test_backend_beside("emulated"));
    if (access(path, F_OK) != 0)
        skip();
}

static void test_emulated_device(void **state)
{
    (void)state;
    skip_without_emulated();
    check_device("emulated", "cuda", 0);
}

static void test_device_with_memory_of_its_own(void **state)
{
    (void)state;
    check_device("apart", "apart", 1);
}

static void test_device_that_is_not_there(void **state)
{
    kvcsa_pool_params p = params_of(KVCSA_BACKEND_CUDA, test_backend_beside("emulated"));
    kvcsa_pool       *pool = NULL;
    kvcsa_error       err;

    (void)state;
    skip_without_emulated();
    p.ordinal = 1000;
    assert_fails(kvcsa_pool_create(&p, &pool, &err), KVCSA_ERR_BACKEND, "device");
    assert_null(pool);
    /* one that nobody asked for is none: the CPU is always there */
    p.backend = KVCSA_BACKEND_AUTO;
    assert_ok(kvcsa_pool_create(&p, &pool, &err));
    assert_is_cpu(pool);
    assert_non_null(strstr(info_of(pool).why, "device 1000 cannot be opened"));
    kvcsa_pool_release(&pool);
}

static void hear_of_cublas(void *user, int32_t level, const char *text)
{
    if (strstr(text, "cuBLASLt"))
        *(int32_t *)user = level;
}

/* The emulated device has no cuBLASLt: who asked for it is warned, and has the numerics of everybody. */
static void test_fast_dense_is_asked_for(void **state)
{
    (void)state;
    skip_without_emulated();
    for (uint32_t b = KVCSA_BACKEND_CPU; b <= KVCSA_BACKEND_CUDA; b++) {
        int32_t           level = -1;
        const kvcsa_log   log = {hear_of_cublas, &level};
        kvcsa_pool_params p = params_of(b, test_backend_beside("emulated"));
        kvcsa_pool       *plain = pool_with(b, p.backend_dir), *pool = NULL;
        kvcsa_error       err;

        p.log = &log;
        p.flags = KVCSA_POOL_FAST_DENSE;
        assert_ok(kvcsa_pool_create(&p, &pool, &err));
        assert_int_equal(level, b == KVCSA_BACKEND_CPU ? -1 : KVCSA_LOG_WARN);
        assert_true(info_of(pool).numerics == info_of(plain).numerics);
        kvcsa_pool_release(&pool);
        kvcsa_pool_release(&plain);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pool_says_what_computes),
        cmocka_unit_test(test_cpu_is_taken_when_asked_for),
        cmocka_unit_test(test_folder_without_a_plugin),
        cmocka_unit_test(test_wrong_arguments),
        cmocka_unit_test(test_params_of_other_releases),
        cmocka_unit_test(test_emulated_device),
        cmocka_unit_test(test_device_with_memory_of_its_own),
        cmocka_unit_test(test_device_that_is_not_there),
        cmocka_unit_test(test_fast_dense_is_asked_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
