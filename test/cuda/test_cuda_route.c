/* Router and embedding on the device: the CPU's bits. */
#include "cuda/cuda_check.h"

#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------- route */

typedef struct route_case {
    size_t   n_rows;
    uint32_t n_experts, k, normalise;
    float    scale;
    float   *z, *bias;
} route_case;

static void route_params(const route_case *j, kvi_route_params *p)
{
    *p = (kvi_route_params){.z = j->z, .bias = j->bias, .n_rows = j->n_rows, .n_experts = j->n_experts, .k = j->k,
                            .normalise = j->normalise, .scale = j->scale};
}

/* out: experts of all rows, then weights */
static void run_route(const void *arg, void *out)
{
    const route_case *j = arg;
    const size_t      n = j->n_rows * j->k;
    kvi_route_params  p;
    char             *to = out;

    route_params(j, &p);
    p.z = to_device(j->z, j->n_rows * j->n_experts * sizeof *j->z);
    p.bias = to_device(j->bias, j->n_experts * sizeof *j->bias);
    p.experts = to_device(NULL, n * sizeof *p.experts);
    p.weights = to_device(NULL, n * sizeof *p.weights);
    GPU(route, &p);
    from_device(to, p.experts, n * sizeof *p.experts);
    from_device(to + n * sizeof *p.experts, p.weights, n * sizeof *p.weights);
    device_free_all();
}

static void check_route(const route_case *j)
{
    const size_t     n = j->n_rows * j->k;
    uint32_t        *experts = calloc(n + 1, sizeof *experts);
    float           *weights = calloc(n + 1, sizeof *weights);
    char            *got = calloc(2 * n + 1, 4);
    kvi_route_params p;

    route_params(j, &p);
    p.experts = experts;
    p.weights = weights;
    CPU(route, &p);
    gpu_run(run_route, j, got, 8 * n);
    assert_memory_equal(got, experts, 4 * n);
    for (size_t i = 0; i < n; i++) {
        float w;

        memcpy(&w, got + 4 * (n + i), 4);
        if (!(isnan(w) && isnan(weights[i])) && memcmp(&w, weights + i, 4) != 0)
            fail_msg("weight %zu is %a, not %a", i, (double)w, (double)weights[i]);
    }
    free(experts);
    free(weights);
    free(got);
}

static void route_with(size_t n_rows, uint32_t n_experts, uint32_t k, uint32_t normalise, float size, float bias)
{
    route_case j = {.n_rows = n_rows, .n_experts = n_experts, .k = k, .normalise = normalise, .scale = 2.5f};

    j.z = calloc(n_rows * n_experts + 1, sizeof *j.z);
    j.bias = calloc(n_experts, sizeof *j.bias);
    fill(j.z, n_rows * n_experts, size);
    fill(j.bias, n_experts, bias);
    check_route(&j);
    free(j.z);
    free(j.bias);
}

static void test_route_every_shape(void **state)
{
    static const uint32_t experts[] = {1, 2, 7, 31, 32, 33, 63, 64, 100, 128, 160, 256, 257, 384, 511, 512, 513, 768, 1000, 1024};

    (void)state;
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++) {
        const uint32_t n = experts[i], some = n < 8 ? n : 8;

        route_with(1, n, 1, 1, 4.0f, 0.1f);
        route_with(3, n, some, i % 2, 4.0f, 0.1f);
    }
    route_with(0, 64, 6, 1, 1.0f, 0.0f);
    route_with(2, 64, 0, 1, 1.0f, 0.0f);
    route_with(2, 96, 96, 1, 8.0f, 1.0f); /* all of them */
    route_with(1, 1024, 200, 0, 8.0f, 1.0f);
    route_with(9, 384, 6, 1, 120.0f, 0.0f); /* e^z from 0 to infinity */
    route_with(9, 384, 6, 1, 0x1p-13f, 0.0f);
}

/* Equal ranks go to the lower expert, wherever in the warp they are; -0 and 0 are equal. */
static void test_route_ties(void **state)
{
    enum { N = 200 };
    float      z[4 * N], bias[N];
    route_case j = {.n_rows = 4, .n_experts = N, .normalise = 1, .scale = 1.0f, .z = z, .bias = bias};

    (void)state;
    for (size_t i = 0; i < N; i++) {
        bias[i] = 0.0f;
        z[i] = 1.0f;                          /* all equal */
        z[N + i] = i % 32 == 5 ? 2.0f : 1.0f; /* of one lane */
        z[2 * N + i] = -200.0f;               /* s = 0 */
        z[3 * N + i] = (float)(i % 3);
    }
    for (j.k = 1; j.k <= N; j.k = 3 * j.k + 1)
        check_route(&j);
    for (size_t i = 0; i < N; i++)
        bias[i] = i % 2 ? -0.0f : 0.0f;
    j.k = 9;
    check_route(&j);
}

static void test_route_nan_and_infinity(void **state)
{
    enum { N = 70 };
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
    float              z[5 * N], bias[N];
    route_case         j = {.n_rows = 5, .n_experts = N, .k = 4, .normalise = 1, .scale = 1.0f, .z = z, .bias = bias};

    (void)state;
    fill(bias, N, 0.1f);
    fill(z, 5 * N, 3.0f);
    for (size_t i = 0; i < 5; i++)
        z[i * N + 11 * i] = bad[i];
    check_route(&j);
    for (size_t i = 0; i < N; i++)
        z[N + i] = NAN; /* nothing but NaN: the lowest experts */
    bias[3] = INFINITY;
    bias[60] = -INFINITY;
    bias[61] = NAN;
    check_route(&j);
    j.k = N;
    check_route(&j);
}

static void test_route_refuses(void **state)
{
    kvcsa_error      err = {0};
    kvi_route_params p = {.n_rows = 1, .n_experts = 1025, .k = 1};

    (void)state;
    assert_int_equal(gpu_ops->route(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "1024"));
    p = (kvi_route_params){.n_rows = 1, .n_experts = 4, .k = 5};
    assert_int_equal(gpu_ops->route(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
}

/* ---------------------------------------------------------------- embed */

typedef struct embed_case {
    kvi_matrix m; /* of the host */
    size_t     n_data, n_scale, n_rows, y_stride, off;
    uint64_t  *ids;
} embed_case;

static void run_embed(const void *arg, void *out)
{
    const embed_case *j = arg;
    kvi_matrix        m = j->m;
    const size_t      n = j->n_rows * j->y_stride;
    float            *y = to_device_at(NULL, n * sizeof *y, j->off);
    kvi_embed_params  p = {.table = &m, .ids = to_device(j->ids, j->n_rows * sizeof *j->ids), .y = y, .y_stride = j->y_stride,
                           .n_rows = j->n_rows};

    m.data = to_device(j->m.data, j->n_data);
    m.scale = to_device_at(j->m.scale, j->n_scale, 1);
    GPU(embed, &p);
    from_device(out, y, n * sizeof *y);
    device_free_all();
}

/* Every byte there is, so NaN, subnormals and infinity too. */
static void check_embed(uint32_t kind, uint32_t rows, uint32_t cols, size_t n_rows, size_t pad, size_t off)
{
    static const size_t bits[] = {0, 32, 16, 8, 8, 4};
    const size_t        groups = kind >= KVI_W_FP8 ? cols / 32 : 0;
    embed_case          j = {.m = {.kind = kind, .rows = rows, .cols = cols}, .n_rows = n_rows, .y_stride = cols + pad, .off = off,
                             .n_data = (size_t)rows * cols * bits[kind] / 8,
                             .n_scale = groups * (kind == KVI_W_FP8 ? (rows + 31) / 32 : rows)};
    const size_t        n = n_rows * j.y_stride;
    uint8_t            *data = malloc(j.n_data + 1), *scale = malloc(j.n_scale + 1);
    float              *want = malloc((n + 1) * sizeof *want), *got = malloc((n + 1) * sizeof *got);

    for (size_t i = 0; i < j.n_data; i++)
        data[i] = (uint8_t)prng();
    for (size_t i = 0; i < j.n_scale; i++) /* both ends, the middle, anything */
        scale[i] = (uint8_t)(i % 4 == 0 ? prng() % 4 : i % 4 == 1 ? 252 + prng() % 4 : i % 4 == 2 ? 120 + prng() % 12 : prng());
    j.m.data = data;
    j.m.scale = scale;
    j.ids = calloc(n_rows + 1, sizeof *j.ids);
    for (size_t i = 0; i < n_rows; i++)
        j.ids[i] = i == 0 ? rows - 1 : prng() % rows;
    memset(want, GUARD, n * sizeof *want);
    kvi_embed_params p = {.table = &j.m, .ids = j.ids, .y = want, .y_stride = j.y_stride, .n_rows = n_rows};
    CPU(embed, &p);
    gpu_run(run_embed, &j, got, n * sizeof *got);
    for (size_t i = 0; i < n; i++)
        if (!(isnan(got[i]) && isnan(want[i])) && memcmp(got + i, want + i, sizeof *got) != 0)
            fail_msg("kind %u, %u columns, [%zu] is %a, not %a", kind, cols, i, (double)got[i], (double)want[i]);
    free(data);
    free(scale);
    free(want);
    free(got);
    free(j.ids);
}

static void test_embed_every_kind(void **state)
{
    static const uint32_t widths[] = {32, 64, 96, 256, 512, 544, 1056, 2560};
    static const uint32_t odd[] = {1, 2, 3, 5, 63, 511, 513, 1030};

    (void)state;
    for (size_t k = 0; k < N_KINDS; k++)
        for (size_t i = 0; i < 8; i++) {
            check_embed(kinds[k], 1, widths[i], 1, 0, 0);
            check_embed(kinds[k], 70, widths[i], 5, i % 4, 4 * (i % 3));
            if (kinds[k] == KVI_W_F32 || kinds[k] == KVI_W_BF16)
                check_embed(kinds[k], 9, odd[i], 4, i % 5, 4 * (i % 4));
        }
    check_embed(KVI_W_FP8, 40, 64, 0, 0, 0);
}

static void test_embed_refuses(void **state)
{
    static const kvi_matrix bad[] = {{.kind = KVI_W_NONE, .rows = 4, .cols = 32},
                                     {.kind = 77, .rows = 4, .cols = 32},
                                     {.kind = KVI_W_FP8, .rows = 4, .cols = 33},
                                     {.kind = KVI_W_F32, .rows = 4, .cols = 32, .data = (const uint8_t *)4}};
    kvcsa_error             err = {0};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        kvi_embed_params p = {.table = &bad[i], .n_rows = 1};

        assert_int_equal(gpu_ops->embed(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    }
    kvi_matrix       good = {.kind = KVI_W_F32, .rows = 4, .cols = 32};
    kvi_embed_params p = {.table = &good, .n_rows = 1, .flags = KVI_OP_ROUND_BF16};
    assert_int_equal(gpu_ops->embed(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "reference mode"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_route_every_shape), cmocka_unit_test(test_route_ties),       cmocka_unit_test(test_route_nan_and_infinity),
    cmocka_unit_test(test_route_refuses),     cmocka_unit_test(test_embed_every_kind), cmocka_unit_test(test_embed_refuses),
};

CUDA_MAIN(tests)
