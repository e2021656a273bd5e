/* Norm, rotation, router: every instruction set of this machine against an oracle of the fused order written with fmaf, against
 * double, and against the portable kernels where the bits are the same. */
#include "support/dense_jobs.h"
#include "support/fused_order.h"
#include "support/mask_rows.h"

#include "base/fmath.h"

/* ---------------------------------------------------------------- norm */

static void check_norm(uint32_t width, size_t n_rows, float size)
{
    const size_t mark = fence_mark();
    const size_t stride = width + 3u;
    float       *x = fenced_random(n_rows * stride - 3, size);
    float       *w = fenced_random(width, 1.0f);
    float       *wanted = fenced(n_rows * width);
    norm_job     job = {.x = x, .weight = w, .width = width};

    for (size_t i = 0; i < n_rows; i++) {
        const float *row = x + i * stride;
        const float  r = fused_rms_inverse(row, width, 1e-20f);

        for (size_t c = 0; c < width; c++)
            wanted[i * width + c] = w[c] * (row[c] * r);
        assert_norm_exact(&job, i, wanted + i * width);
    }
    check_variants(run_norm, &job, wanted, n_rows, width);
    job.in_place = true;
    check_variants(run_norm, &job, wanted, n_rows, width);
    job.flags = KVI_OP_ROUND_BF16;
    check_as_portable(run_norm, &job, n_rows, width);
    free_fenced(mark);
}

static void test_norm_every_width(void **state)
{
    (void)state;
    for (uint32_t width = 1; width <= 50; width += 7)
        check_norm(width, 4, 1.0f);
    check_norm(192, 7, 100.0f);
    check_norm(1023, 3, 1.0f);
    check_norm(1024, 3, 1.0f);
    check_norm(1280, 3, 1e-9f);
    check_norm(4096 + 17, 3, 1.0f);
    check_norm(5120, 40, 0.01f); /* several ranges of rows */
    check_norm(8192 + 5120 + 40, 2, 1.0f);
}

static void test_norm_nan_and_infinity(void **state)
{
    const size_t   mark = fence_mark();
    const uint32_t width = 1100;
    const size_t   stride = width + 3;
    float         *x = fenced_random(5 * stride - 3, 1.0f);
    float         *w = fenced_random(width, 1.0f);
    norm_job       job = {.x = x, .weight = w, .width = width};
    float          a[5 * 1100];
    float          b[5 * 1100];

    (void)state;
    x[17] = NAN;
    x[stride + 1090] = INFINITY;
    for (size_t i = 0; i < width; i++) {
        x[2 * stride + i] = i % 2 ? -0.0f : 0.0f;
        x[3 * stride + i] = 1e30f; /* the sum overflows */
        x[4 * stride + i] = kvi_bits_f32(1 + (uint32_t)i);
    }
    run_norm(&job, devices[0], 0, 5, a);
    for (size_t v = 0; v < n_masks; v++) {
        run_norm(&job, &fused[v][0], 0, 5, b);
        for (size_t i = 0; i < 5 * width; i++)
            assert_true(isnan(a[i]) == isnan(b[i]) && isinf(a[i]) == isinf(b[i]));
        assert_same(b + 2 * width, a + 2 * width, 3 * width); /* no rounding in these sums */
    }
    free_fenced(mark);
}

/* ---------------------------------------------------------------- rope */

static void check_rope(uint32_t n_heads, uint32_t width, uint32_t n_rotated, size_t n_rows)
{
    const size_t          mark = fence_mark();
    static const uint64_t some[9] = {0, 1, 77, 65536, 1048575, 3, 16777215, 16777217, UINT64_MAX};
    const size_t          row = (size_t)n_heads * width;
    float                *x = fenced_random(n_rows * row, 1.0f);
    float                *freqs = fenced(n_rotated / 2);
    uint64_t             *pos = malloc(n_rows * sizeof *pos);
    rope_job              job = {.x = x, .freqs = freqs, .pos = pos, .n_heads = n_heads, .width = width, .n_rotated = n_rotated};

    assert_non_null(pos);
    for (size_t i = 0; i < n_rows; i++)
        pos[i] = some[i % 9];
    for (size_t i = 0; i < n_rotated / 2; i++)
        freqs[i] = kvi_powf(10000.0f, -2.0f * (float)i / (float)n_rotated);
    for (job.inverse = 0; job.inverse < 2; job.inverse++) {
        job.flags = 0;
        check_as_portable(run_rope, &job, n_rows, row);
        job.flags = KVI_OP_ROUND_BF16;
        check_as_portable(run_rope, &job, n_rows, row);
    }
    free_fenced(mark);
    free(pos);
}

static void test_rope_every_shape(void **state)
{
    (void)state;
    check_rope(1, 2, 2, 3);
    check_rope(3, 7, 6, 9);
    check_rope(2, 33, 14, 9);
    check_rope(5, 40, 18, 4);
    check_rope(3, 64, 32, 9);
    check_rope(4, 100, 66, 2);
    check_rope(2, 200, 196, 9); /* more pairs than are held at once */
    check_rope(1, 128, 128, 3);
    check_rope(1, 66, 64, 450); /* several ranges of rows */
    check_rope(64, 512, 64, 3);
}

/* Any bits as the angle, and the neighbours of multiples of a quarter turn: equal to kvi_sincosf. */
static void test_rope_any_angle(void **state)
{
    const size_t mark = fence_mark();
    enum { PAIRS = 4096, ROUNDS = 12 };
    float          *x = fenced(2 * PAIRS);
    float          *freqs = fenced(PAIRS);
    float          *out = fenced(2 * PAIRS);
    const uint64_t  pos = 1;
    const rope_job  job = {.x = x, .freqs = freqs, .pos = &pos, .n_heads = 1, .width = 2 * PAIRS, .n_rotated = 2 * PAIRS};

    (void)state;
    for (size_t i = 0; i < PAIRS; i++) { /* (1, -0) turns into (cos, sin), the sign of a 0 included */
        x[2 * i] = 1.0f;
        x[2 * i + 1] = -0.0f;
    }
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < PAIRS; i++) {
            const float quarter = (float)((double)(prng() % 10680707) * 1.57079632679489661923);

            freqs[i] = kvi_bits_f32(prng());
            if (round % 3 == 1)
                freqs[i] = kvi_bits_f32(kvi_f32_bits(quarter) + prng() % 5);
            if (round % 3 == 2)
                freqs[i] = uniform(0x1p20f);
        }
        freqs[0] = -0.0f;
        freqs[1] = 0x1p24f;
        freqs[2] = -0x1.000002p24f;
        freqs[3] = -INFINITY;
        freqs[4] = -0x1p-149f;
        freqs[5] = NAN;
        for (size_t v = 0; v < n_masks; v++) {
            run_rope(&job, &fused[v][0], 0, 1, out);
            for (size_t i = 0; i < PAIRS; i++) {
                float s;
                float c;

                kvi_sincosf(freqs[i], &s, &c);
                assert_same(&out[2 * i], &(float){c - -0.0f * s}, 1);
                assert_same(&out[2 * i + 1], &(float){s + -0.0f * c}, 1);
            }
        }
    }
    free_fenced(mark);
}

/* ---------------------------------------------------------------- route */

typedef struct route_job {
    const float *z;
    const float *bias;
    uint32_t     n_experts;
    uint32_t     k;
    uint32_t     normalise;
    float        scale;
} route_job;

/* a row of output: k experts as floats, k weights */
static void run_route(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const size_t     mark = fence_mark();
    const route_job *j = job;
    const size_t     k = j->k;
    float           *weights = fenced(n * k);
    float           *ids = fenced(n * k);
    uint32_t        *experts = (uint32_t *)(void *)ids;

    const kvi_route_params p = {.z = j->z + first * j->n_experts, .bias = j->bias, .experts = experts, .weights = weights,
                                .n_rows = n, .n_experts = j->n_experts, .k = j->k, .normalise = j->normalise, .scale = j->scale};

    assert_int_equal(kvi_cpu_route(dev, &p, NULL), KVCSA_OK);
    for (size_t i = 0; i < n; i++)
        for (size_t q = 0; q < k; q++) {
            out[(first + i) * 2 * k + q] = (float)experts[i * k + q];
            out[(first + i) * 2 * k + k + q] = weights[i * k + q];
        }
    free_fenced(mark);
}

static float fused_score(float z)
{
    if (z < -17.0f)
        return fused_exp(z * 0.5f);
    return sqrtf(z > 20.0f ? z : fused_log1p(fused_exp(z)));
}

static void fused_route(const route_job *j, size_t row, float *out)
{
    const float *z = j->z + row * j->n_experts;
    bool         taken[512] = {false};
    float        sum = 0.0f;
    size_t       n = 0;

    for (size_t i = 0; i < j->k; i++) {
        size_t best = j->n_experts;
        float  most = 0.0f;

        for (size_t e = 0; e < j->n_experts; e++) {
            float rank = fused_score(z[e]) + j->bias[e];

            rank = rank != rank ? -INFINITY : rank;
            if (!taken[e] && (best == j->n_experts || rank > most)) {
                best = e;
                most = rank;
            }
        }
        taken[best] = true;
    }
    for (size_t e = 0; e < j->n_experts; e++)
        if (taken[e]) {
            out[n] = (float)e;
            out[j->k + n++] = fused_score(z[e]);
            sum += fused_score(z[e]);
        }
    for (size_t i = 0; i < j->k; i++) {
        if (j->normalise && j->k > 1)
            out[j->k + i] = out[j->k + i] / (sum + 1e-20f);
        out[j->k + i] = out[j->k + i] * j->scale;
    }
}

static void check_route(uint32_t n_experts, uint32_t k, size_t n_rows, float size)
{
    const size_t mark = fence_mark();
    float    *z = fenced_random(n_rows * n_experts, size);
    float    *bias = fenced_random(n_experts, 1.0f);
    float    *wanted = fenced(n_rows * 2 * k);
    route_job job = {.z = z, .bias = bias, .n_experts = n_experts, .k = k, .scale = 1.5f};

    for (size_t i = 0; i < n_rows * n_experts; i += 3)
        z[i] = rintf(z[i]); /* some ties */
    for (job.normalise = 0; job.normalise < 2; job.normalise++) {
        for (size_t i = 0; i < n_rows; i++)
            fused_route(&job, i, wanted + i * 2 * k);
        check_variants(run_route, &job, wanted, n_rows, 2 * k);
    }
    free_fenced(mark);
}

static void test_route_every_shape(void **state)
{
    (void)state;
    check_route(1, 1, 3, 4.0f);
    check_route(5, 5, 3, 4.0f);
    check_route(16, 2, 9, 30.0f);
    check_route(33, 6, 9, 100.0f);
    check_route(48, 7, 5, 12.0f);
    check_route(384, 6, 100, 4.0f); /* several tasks */
    check_route(500, 8, 5, 4.0f);
}

/* low .. high */
static float between(float low, float high)
{
    return (low + high) / 2 + uniform((high - low) / 2);
}

/* The score itself: all experts, not normalised. exp is within 3 u, log(1 + e) within 3 u more, halved by the root, which adds
 * one: 4 u. Equal to the portable kernel where no exp is taken. */
static void test_route_scores(void **state)
{
    const size_t mark = fence_mark();
    enum { E = 512, ROUNDS = 40 };
    float          *z = fenced(E);
    float          *bias = fenced(E);
    float          *out = fenced(2 * E);
    const route_job job = {.z = z, .bias = bias, .n_experts = E, .k = E, .scale = 1.0f};

    (void)state;
    memset(bias, 0, E * sizeof *bias);
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t e = 0; e < E; e++) {
            z[e] = between(-40.0f, 25.0f);
            if (round % 4 == 1)
                z[e] = between(-174.0f, 90.0f);
            if (round % 4 == 2)
                z[e] = ldexpf(uniform(1.0f), -(int)(prng() % 140));
            if (round % 4 == 3)
                z[e] = between(-20.0f, -15.0f);
        }
        z[0] = -17.0f;
        z[1] = -0x1.100002p4f;
        z[2] = 20.0f;
        z[3] = 0x1.400002p4f;
        z[4] = 0.0f;
        z[5] = -0.0f;
        z[6] = 3e38f;
        z[7] = -3e38f;
        z[8] = INFINITY;
        z[9] = -INFINITY;
        z[10] = NAN;
        for (size_t v = 0; v < n_masks; v++) {
            run_route(&job, &fused[v][0], 0, 1, out);
            for (size_t e = 0; e < E; e++) {
                const double soft = z[e] > 20.0f ? (double)z[e] : log1p(exp((double)z[e]));

                assert_true(out[e] == (float)e);
                if (isfinite(soft))
                    assert_within(out[E + e], sqrt(soft), 4 * U * sqrt(soft) + 0x1p-126);
                else
                    assert_true(isnan(out[E + e]) == isnan(z[e]) && isinf(out[E + e]) == isinf(z[e]));
            }
        }
    }
    free_fenced(mark);
}

/* Selection as the portable kernel's where the scores are the same bits: z above 20, infinities, NaN. */
static void test_route_special_values(void **state)
{
    const size_t mark = fence_mark();
    enum { E = 77 };
    static const float zs[8] = {NAN, INFINITY, -INFINITY, 25.0f, 25.0f, 30.0f, 36.0f, 25.0f};
    static const uint32_t ks[5] = {1, 2, 6, 30, E};
    static const float biases[6] = {0.0f, -0.0f, NAN, -INFINITY, 1.0f, INFINITY};
    float             *z = fenced(9 * E);
    float             *bias = fenced(E);
    route_job          job = {.z = z, .bias = bias, .n_experts = E, .normalise = 1, .scale = 2.5f};

    (void)state;
    for (size_t round = 0; round < 6; round++) {
        for (size_t i = 0; i < 9 * E; i++)
            z[i] = round == 0 ? NAN : round == 1 ? 25.0f : zs[prng() % 8];
        for (size_t i = 0; i < E; i++)
            bias[i] = round < 3 ? 0.0f : biases[prng() % 6];
        for (size_t i = 0; i < 5; i++) {
            job.k = ks[i];
            check_as_portable(run_route, &job, 9, 2 * job.k);
        }
    }
    free_fenced(mark);
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    for (size_t v = 0; v < n_masks; v++) {
        kvi_device *dev = &fused[v][1];

        assert_int_equal(kvi_cpu_norm(dev, &(kvi_norm_params){.width = 8}, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_rope(dev, &(kvi_rope_params){.n_heads = 1, .width = 8, .n_rotated = 8}, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_mix(dev, &(kvi_mix_params){.copies = 4, .width = 8}, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_collapse(dev, &(kvi_collapse_params){.copies = 4, .width = 8}, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_expand(dev, &(kvi_expand_params){.copies = 4, .width = 8}, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_engram_gate(dev, &(kvi_engram_gate_params){.copies = 4, .width = 8}, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_route(dev, &(kvi_route_params){.n_experts = 8, .k = 2}, NULL), KVCSA_OK);
    }
}

static int open_all(void **state)
{
    const int failed = open_masks(state);

    for (size_t v = 0; v < n_masks; v++)
        for (size_t t = 0; t < MAX_THREADS; t++)
            assert_int_equal(fused[v][t].dense.flags, masks[v]);
    return failed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_every_width),
        cmocka_unit_test(test_norm_nan_and_infinity),
        cmocka_unit_test(test_rope_every_shape),
        cmocka_unit_test(test_rope_any_angle),
        cmocka_unit_test(test_route_every_shape),
        cmocka_unit_test(test_route_scores),
        cmocka_unit_test(test_route_special_values),
        cmocka_unit_test(test_nothing_to_do),
    };

    prng_seed(20250729);
    return cmocka_run_group_tests(tests, open_all, close_masks);
}
