/* Instruction sets through the public interface: what a pool says about them; results that are the same bits with every set
 * that fuses multiply and add, and close to those without; snapshots between them. */
#include "support/fp_mode.h"
#include "support/snap.h"

#include <math.h>

#define TINY "examples/models/tiny"
#define ALL_SETS (KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512 | KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD)

static const uint32_t avoids[] = {0, KVCSA_CPU_AVX512 | KVCSA_CPU_DOTPROD, ALL_SETS};
enum { N_AVOIDS = 3, N = 150, N_MORE = 3, VOCAB = 1536 };

static kvcsa_pool *pool_without(uint32_t avoid, uint32_t n_threads)
{
    kvcsa_pool_params p;
    kvcsa_pool       *pool = NULL;
    kvcsa_error       err;

    kvcsa_pool_params_default(&p, sizeof p);
    p.cpu_avoid = avoid;
    p.n_threads = n_threads;
    assert_ok(kvcsa_pool_create(&p, &pool, &err));
    return pool;
}

static kvcsa_cpu_info cpu_of(const kvcsa_pool *pool)
{
    kvcsa_cpu_info info = {.struct_size = sizeof info};
    kvcsa_error    err;

    assert_ok(kvcsa_pool_get_cpu(pool, &info, &err));
    return info;
}

static void test_cpu_info_says_what_is_used(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_AVOIDS; i++) {
        kvcsa_pool          *pool = pool_without(avoids[i], 1);
        const kvcsa_cpu_info info = cpu_of(pool);

        assert_int_equal(info.used & avoids[i], 0);
        assert_int_equal(info.used & ~info.detected, 0);
        assert_int_equal(info.detected & ~(uint32_t)ALL_SETS, 0);
        assert_true(!(info.used & KVCSA_CPU_AVX512) || info.used & KVCSA_CPU_AVX2);
        assert_true(!(info.used & KVCSA_CPU_DOTPROD) || info.used & KVCSA_CPU_NEON);
        assert_int_equal(info.numerics, info.used ? 2 : 1);
        assert_true(info.why[0] != '\0' && memchr(info.why, 0, sizeof info.why));
        assert_true(memchr(info.processor, 0, sizeof info.processor));
        assert_int_equal(strcmp(info.kernels, "portable C") == 0, info.used == 0);
        kvcsa_pool_release(&pool);
    }
}

static void test_cpu_info_wrong_arguments(void **state)
{
    struct {
        kvcsa_cpu_info info;
        uint8_t        after[16];
    } grown = {.info.struct_size = sizeof grown};
    kvcsa_cpu_info small = {.struct_size = 16};
    kvcsa_pool    *pool = pool_without(0, 1);
    kvcsa_error    err;

    (void)state;
    assert_fails(kvcsa_pool_get_cpu(pool, NULL, &err), KVCSA_ERR_ARG, "info is NULL");
    assert_fails(kvcsa_pool_get_cpu(NULL, &small, &err), KVCSA_ERR_ARG, "struct_size is 16");
    assert_int_equal(cpu_of(NULL).used, cpu_of(pool).used);
    memset(grown.after, 0xA7, sizeof grown.after);
    assert_ok(kvcsa_pool_get_cpu(pool, &grown.info, &err));
    assert_int_equal(grown.after[0], 0);
    kvcsa_pool_release(&pool);
}

/* Prefill of N tokens in chunks, then N_MORE single ones; all rows of logits. */
static host_rows run_with(kvcsa_model *model, uint32_t avoid, uint32_t n_threads, uint32_t chunk)
{
    kvcsa_pool    *pool = pool_without(avoid, n_threads);
    kvcsa_session *s = host_session(pool, model, chunk);
    host_rows      rows = host_rows_make(N + N_MORE, VOCAB);
    int32_t        ids[N + N_MORE];

    host_tokens(ids, N + N_MORE, 5);
    host_run(pool, s, ids, N, &rows);
    for (size_t i = 0; i < N_MORE; i++)
        host_run(pool, s, ids + N + i, 1, &rows);
    assert_true(rows.in_order && rows.n == N + N_MORE);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    return rows;
}

static double kl(const float *a, const float *b)
{
    double most = -INFINITY, za = 0, zb = 0, sum = 0;

    for (size_t i = 0; i < VOCAB; i++)
        most = fmax(most, fmax((double)a[i], (double)b[i]));
    for (size_t i = 0; i < VOCAB; i++) {
        za += exp((double)a[i] - most);
        zb += exp((double)b[i] - most);
    }
    for (size_t i = 0; i < VOCAB; i++)
        sum += exp((double)a[i] - most) / za * ((double)a[i] - (double)b[i]);
    return sum - log(za) + log(zb);
}

/* Equal ids of numerics, equal bits, whatever the threads and the chunks. Between the two numerics a code of the cache may round
 * the other way now and then, so single rows differ more than their sums' rounding (1e-6); what a lost bit of the cache costs is
 * about 1e-3 (docs/measurements.md), a wrong kernel costs nats. */
static void test_sets_give_the_bits_of_their_numerics(void **state)
{
    kvcsa_model *model = host_model(TINY);
    host_rows    want = run_with(model, 0, 1, 0);
    double       mean = 0;

    (void)state;
    for (size_t i = 0; i < N_AVOIDS; i++) {
        kvcsa_pool          *pool = pool_without(avoids[i], 1);
        const kvcsa_cpu_info info = cpu_of(pool);
        host_rows            one = run_with(model, avoids[i], 1, 0);
        host_rows            other = run_with(model, avoids[i], 2, 37);

        assert_memory_equal(one.data, other.data, one.n * VOCAB * sizeof(float));
        if (info.numerics == cpu_of(NULL).numerics) {
            assert_memory_equal(one.data, want.data, one.n * VOCAB * sizeof(float));
        } else {
            for (size_t r = 0; r < one.n; r++)
                mean += kl(want.data + r * VOCAB, one.data + r * VOCAB) / (double)one.n;
            assert_true(mean >= 0 && mean < 2e-3);
        }
        free(one.data);
        free(other.data);
        kvcsa_pool_release(&pool);
    }
    free(want.data);
    kvcsa_model_release(&model);
}

/* A snapshot is of its numerics, not of its machine. */
static void test_snapshot_moves_between_sets(void **state)
{
    snap_dir        dir = snap_dir_make();
    const snap_path path = snap_in(&dir, "moved");
    kvcsa_model    *model = host_model(TINY);
    kvcsa_pool     *from = pool_without(0, 1);
    kvcsa_session  *s = host_session(from, model, 0);
    float           want[VOCAB];
    int32_t         ids[N];
    kvcsa_error     err;

    (void)state;
    host_tokens(ids, N, 9);
    host_run(from, s, ids, N - 1, NULL);
    snap_save(s, path.text, NULL, 0);
    host_run(from, s, ids + N - 1, 1, NULL);
    host_logits(s, want, VOCAB);
    for (size_t i = 1; i < N_AVOIDS; i++) {
        kvcsa_pool                 *pool = pool_without(avoids[i], 1);
        kvcsa_session              *t = host_session(pool, model, 0);
        const kvcsa_snapshot_params none = snap_params(NULL, 0);
        float                       got[VOCAB];

        if (cpu_of(pool).numerics == cpu_of(from).numerics) {
            assert_ok(kvcsa_snapshot_load(t, path.text, &none, NULL, &err));
            host_run(pool, t, ids + N - 1, 1, NULL);
            host_logits(t, got, VOCAB);
            assert_memory_equal(got, want, sizeof want);
        } else {
            assert_fails(kvcsa_snapshot_load(t, path.text, &none, NULL, &err), KVCSA_ERR_MISMATCH, "numerics");
            (void)snap_load(t, path.text, NULL, KVCSA_SNAPSHOT_ANY_NUMERICS);
            host_run(pool, t, ids + N - 1, 1, NULL);
            host_logits(t, got, VOCAB);
            assert_true(kl(want, got) < 2e-2);
        }
        kvcsa_session_release(&t);
        kvcsa_pool_release(&pool);
    }
    kvcsa_session_release(&s);
    kvcsa_pool_release(&from);
    kvcsa_model_release(&model);
    snap_dir_remove(&dir);
}

/* A host built with -ffast-math flushes subnormals, others round otherwise or trap: neither logits nor tokens know it, with or
 * without threads of the library, and the mode is the host's again afterwards. */
static void test_host_floating_point_mode_changes_nothing(void **state)
{
    kvcsa_model         *model = host_model(TINY);
    host_rows            want = run_with(model, 0, 1, 0);
    kvcsa_sampler_params p;
    kvcsa_error          err;
    int32_t              token, other;

    (void)state;
    kvcsa_sampler_params_default(&p, sizeof p);
    p.temperature = 0.9f;
    p.seed = 4;
    assert_ok(kvcsa_sample_logits(want.data, VOCAB, 7, &p, &token, &err));
    for (uint32_t m = 0; m < N_FP_MODES; m++) {
        host_rows got;
        uint32_t  before, after;

        fp_mode_set(fp_modes[m]);
        before = fp_mode_get(); /* valgrind has the rounding of it alone; test_fp_mode knows what was set */
        got = run_with(model, 0, 1 + m % 2, 41);
        assert_ok(kvcsa_sample_logits(want.data, VOCAB, 7, &p, &other, &err));
        after = fp_mode_get();
        fp_mode_set(FP_MODE_DEFAULT);
        assert_int_equal(after, before);
        assert_int_equal(other, token);
        assert_memory_equal(got.data, want.data, want.n * VOCAB * sizeof(float));
        free(got.data);
    }
    free(want.data);
    kvcsa_model_release(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_info_says_what_is_used),
        cmocka_unit_test(test_cpu_info_wrong_arguments),
        cmocka_unit_test(test_sets_give_the_bits_of_their_numerics),
        cmocka_unit_test(test_snapshot_moves_between_sets),
        cmocka_unit_test(test_host_floating_point_mode_changes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
