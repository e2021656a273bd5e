/* Router and experts; operators without memory. Bounds: see support/op_check.h. */
#include "support/op_check.h"

#include "base/fmath.h"
#include "format/dtype.h"

/* ------------------------------------------------------------------ router */

static void route(kvi_device *dev, const float *z, const float *bias, size_t n_rows, uint32_t n_experts, uint32_t k,
                  uint32_t normalise, uint32_t *experts, float *weights)
{
    const kvi_route_params p = {.z = z, .bias = bias, .experts = experts, .weights = weights, .n_rows = n_rows,
                                .n_experts = n_experts, .k = k, .normalise = normalise, .scale = 1.5f};

    assert_int_equal(kvi_cpu_route(dev, &p, NULL), KVCSA_OK);
}

static void test_route_scores_and_weights(void **state)
{
    enum { ROWS = 70, E = 48, K = 6 };
    static float    z[ROWS * E];
    static float    w[ROWS * K];
    static float    w2[ROWS * K];
    static uint32_t id[ROWS * K];
    static uint32_t id2[ROWS * K];
    float           bias[E];

    (void)state;
    fill(z, ROWS * E, 12.0f);
    fill(bias, E, 1.0f);
    z[3] = 25.0f; /* softplus(z) = z */
    route(devices[0], z, bias, ROWS, E, K, 1, id, w);
    for (size_t d = 0; d < N_DEVICES; d++) {
        memset(id2, 0, sizeof id2);
        route(devices[d], z, bias, ROWS, E, K, 1, id2, w2);
        assert_memory_equal(id, id2, sizeof id);
        assert_bits(w2, w, ROWS * K);
        for (size_t r = 0; r < ROWS; r++)
            route(devices[d], z + r * E, bias, 1, E, K, 1, id2 + r * K, w2 + r * K);
        assert_memory_equal(id, id2, sizeof id);
        assert_bits(w2, w, ROWS * K);
    }
    for (size_t r = 0; r < ROWS; r++) {
        double sum = 0;

        for (size_t i = 0; i < K; i++) {
            assert_true(id[r * K + i] < E && (i == 0 || id[r * K + i] > id[r * K + i - 1]));
            sum += sqrt(log1p(exp((double)z[r * E + id[r * K + i]])));
        }
        for (size_t i = 0; i < K; i++) {
            const uint32_t e = id[r * K + i];
            const double   s = sqrt(log1p(exp((double)z[r * E + e])));

            /* score: log1p, exp, root: 3 roundings of less than u; sum of six; quotient; product */
            assert_within(w[r * K + i], s / sum * 1.5, 16 * U * s / sum * 1.5);
            for (uint32_t other = 0; other < E; other++) { /* who is out is not better, beyond rounding */
                bool taken = false;

                for (size_t q = 0; q < K; q++)
                    taken = taken || id[r * K + q] == other;
                if (!taken)
                    assert_true(sqrt(log1p(exp((double)z[r * E + other]))) + (double)bias[other] <=
                                s + (double)bias[e] + 40 * U);
            }
        }
    }
}

static void test_route_ties_take_the_lower_expert(void **state)
{
    const float z[8] = {1, 2, 1, 2, 2, 1, 1, 2};
    const float bias[8] = {0};
    uint32_t    id[5];
    float       w[5];

    (void)state;
    route(devices[0], z, bias, 1, 8, 3, 1, id, w);
    assert_memory_equal(id, ((const uint32_t[3]){1, 3, 4}), 3 * sizeof *id);
    assert_within(w[0], 0.5, 8 * U);
    route(devices[0], z, bias, 1, 8, 5, 1, id, w);
    assert_memory_equal(id, ((const uint32_t[5]){0, 1, 3, 4, 7}), sizeof id);
}

static void test_route_bias_selects_but_does_not_weigh(void **state)
{
    const float z[4] = {0, 0, 0, 3};
    const float bias[4] = {0, 0, 9, 0};
    uint32_t    id[1];
    float       w[1];

    (void)state;
    route(devices[0], z, bias, 1, 4, 1, 1, id, w); /* k = 1 is not normalised */
    assert_int_equal(id[0], 2);
    assert_within(w[0], 0.832555 * 1.5, 1.5 * 5e-7 + 8 * U); /* s(0), printed in the specification */
}

static void test_route_without_normalising(void **state)
{
    const float z[3] = {0, 1, -1};
    const float bias[3] = {0};
    uint32_t    id[2];
    float       w[2];

    (void)state;
    route(devices[0], z, bias, 1, 3, 2, 0, id, w);
    assert_within(w[0], 1.5 * sqrt(log1p(1.0)), 8 * U);
    assert_within(w[1], 1.5 * sqrt(log1p(exp(1.0))), 8 * U);
}

static void test_route_hostile_scores(void **state)
{
    const float some[6] = {NAN, 1.0f, NAN, -INFINITY, 2.0f, NAN};
    const float all[6] = {NAN, NAN, NAN, NAN, NAN, NAN};
    const float huge[6] = {0, INFINITY, 0, 0, 0, INFINITY};
    const float bias[6] = {0};
    const float bad_bias[6] = {NAN, NAN, -INFINITY, NAN, INFINITY, 0};
    uint32_t    id[6];
    float       w[6];

    (void)state;
    route(devices[0], some, bias, 1, 6, 3, 1, id, w); /* NaN is never preferred; s(-inf) = 0 is a score */
    assert_memory_equal(id, ((const uint32_t[3]){1, 3, 4}), 3 * sizeof *id);
    assert_true(w[1] == 0.0f);
    route(devices[0], some, bias, 1, 6, 4, 1, id, w); /* then the lowest ids */
    assert_memory_equal(id, ((const uint32_t[4]){0, 1, 3, 4}), 4 * sizeof *id);
    assert_true(isnan(w[0]));
    route(devices[0], all, bias, 1, 6, 2, 1, id, w);
    assert_memory_equal(id, ((const uint32_t[2]){0, 1}), 2 * sizeof *id);
    route(devices[0], huge, bias, 1, 6, 2, 1, id, w);
    assert_memory_equal(id, ((const uint32_t[2]){1, 5}), 2 * sizeof *id);
    route(devices[0], bias, bad_bias, 1, 6, 6, 1, id, w);
    assert_memory_equal(id, ((const uint32_t[6]){0, 1, 2, 3, 4, 5}), sizeof id);
    route(devices[0], bias, bad_bias, 1, 6, 3, 1, id, w);
    assert_memory_equal(id, ((const uint32_t[3]){0, 4, 5}), 3 * sizeof *id);
}

/* ------------------------------------------------------------------ experts */

enum { EXPERTS = 6, MOE_ROWS = 20 };

typedef struct moe_set {
    test_matrix w[3 * (EXPERTS + 1)]; /* w1, w2, w3 of every expert, the shared one last */
    kvi_expert  experts[EXPERTS + 1];
    float      *x;
    uint32_t   *ids;
    float      *weights;
    uint32_t    k;
    uint32_t    width;
    uint32_t    inner;
    uint32_t    flags;
    float       limit;
} moe_set;

/* Expert 2 gets no rows; rows prefer low experts. */
static moe_set moe_new(uint32_t routed_kind, uint32_t shared_kind, uint32_t width, uint32_t inner, uint32_t k)
{
    moe_set s = {.k = k, .width = width, .inner = inner, .limit = 0.75f};

    for (size_t e = 0; e <= EXPERTS; e++) {
        const uint32_t kind = e == EXPERTS ? shared_kind : routed_kind;

        s.w[3 * e] = matrix_new(kind, inner, width);
        s.w[3 * e + 1] = matrix_new(kind, width, inner);
        s.w[3 * e + 2] = matrix_new(kind, inner, width);
        s.experts[e] = (kvi_expert){.w1 = s.w[3 * e].m, .w2 = s.w[3 * e + 1].m, .w3 = s.w[3 * e + 2].m};
    }
    s.x = malloc(MOE_ROWS * (size_t)width * sizeof *s.x);
    s.ids = malloc(MOE_ROWS * (size_t)k * sizeof *s.ids);
    s.weights = malloc(MOE_ROWS * (size_t)k * sizeof *s.weights);
    assert_true(s.x && s.ids && s.weights);
    fill(s.x, MOE_ROWS * (size_t)width, 0.3f);
    for (size_t r = 0; r < MOE_ROWS; r++) {
        static const uint32_t orders[4][3] = {{0, 1, 3}, {0, 3, 5}, {1, 4, 5}, {0, 1, 5}};

        for (size_t i = 0; i < k; i++) {
            s.ids[r * k + i] = orders[prng() % 4][i];
            if (i > 0 && s.ids[r * k + i] <= s.ids[r * k + i - 1])
                s.ids[r * k + i] = s.ids[r * k + i - 1] < 3 ? 3 : s.ids[r * k + i - 1] + 1;
            s.weights[r * k + i] = 0.1f + fabsf(uniform(1.0f));
        }
    }
    return s;
}

static void moe_free(moe_set *s)
{
    for (size_t i = 0; i < 3 * (EXPERTS + 1); i++)
        matrix_free(&s->w[i]);
    free(s->x);
    free(s->ids);
    free(s->weights);
}

static kvi_moe_params moe_params(const moe_set *s, size_t first, size_t n, float *y)
{
    return (kvi_moe_params){.x = s->x + first * s->width, .y = y, .experts = s->ids + first * s->k,
                            .weights = s->weights + first * s->k, .routed = s->experts, .shared = s->experts + EXPERTS,
                            .n_rows = n, .n_experts = EXPERTS, .k = s->k, .width = s->width, .inner = s->inner,
                            .limit = s->limit, .flags = s->flags};
}

static void run_moe(const void *job, kvi_device *dev, size_t first, size_t n, float *out)
{
    const moe_set       *s = job;
    guarded              y = guarded_new(n * s->width);
    const kvi_moe_params p = moe_params(s, first, n, y.data);

    assert_int_equal(kvi_cpu_moe(dev, &p, NULL), KVCSA_OK);
    memcpy(out + first * s->width, y.data, n * s->width * sizeof *out);
    guarded_check_free(&y);
}

static void one_linear(const kvi_matrix *w, const float *x, float *y, uint32_t flags)
{
    const kvi_linear_params p = {.w = w, .n_out = w->rows, .x = x, .y = y, .x_stride = w->cols, .y_stride = w->rows,
                                 .n_rows = 1, .flags = flags};

    assert_int_equal(kvi_cpu_linear(devices[0], &p, NULL), KVCSA_OK);
}

/* The operator is what the linear operator and the formula give row by row, bit for bit. */
static void moe_by_parts(const moe_set *s, size_t row, float *y)
{
    float *g = malloc(s->inner * sizeof *g);
    float *u = malloc(s->inner * sizeof *u);
    float *out = malloc(s->width * sizeof *out);

    assert_true(g && u && out);
    memset(y, 0, s->width * sizeof *y);
    for (size_t i = 0; i <= s->k; i++) {
        const kvi_expert *e = &s->experts[i < s->k ? s->ids[row * s->k + i] : EXPERTS];

        one_linear(&e->w1, s->x + row * s->width, g, s->flags);
        one_linear(&e->w3, s->x + row * s->width, u, s->flags);
        for (size_t j = 0; j < s->inner; j++) {
            const float limit = s->limit > 0 ? s->limit : INFINITY;
            const float up = fminf(fmaxf(u[j], -limit), limit);
            const float gate = fminf(g[j], limit);

            g[j] = gate / (1.0f + kvi_expf(-gate)) * up;
            if (i < s->k)
                g[j] = s->weights[row * s->k + i] * g[j];
            if (s->flags & KVI_OP_ROUND_BF16)
                g[j] = kvi_round_bf16(g[j]);
        }
        one_linear(&e->w2, g, out, s->flags);
        for (size_t j = 0; j < s->width; j++)
            y[j] = y[j] + out[j];
    }
    if (s->flags & KVI_OP_ROUND_BF16)
        round_all(y, s->width);
    free(g);
    free(u);
    free(out);
}

/* Matrix product in double with a running error bound: x is known within dx. */
static void product_in_double(const test_matrix *w, const double *x, const double *dx, double *y, double *dy)
{
    const size_t n = w->m.cols;

    for (size_t j = 0; j < w->m.rows; j++) {
        y[j] = dy[j] = 0;
        for (size_t c = 0; c < n; c++) {
            const double v = w->values[j * n + c];

            y[j] += v * x[c];
            dy[j] += fabs(v) * dx[c] + ((double)n / 16 + 7) * U * fabs(v * x[c]);
        }
    }
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

static void check_moe_row_in_double(const moe_set *s, size_t row, const float *is)
{
    const size_t most = s->width > s->inner ? s->width : s->inner;
    double      *v = calloc(8 * most, sizeof *v);
    double      *x = v, *dx = v + most, *g = v + 2 * most, *dg = v + 3 * most, *u = v + 4 * most, *du = v + 5 * most;
    double      *y = v + 6 * most, *dy = v + 7 * most;

    assert_non_null(v);
    for (size_t i = 0; i <= s->k; i++) {
        const size_t       e = i < s->k ? s->ids[row * s->k + i] : EXPERTS;
        const test_matrix *w = &s->w[3 * e];
        const double       weight = i < s->k ? (double)s->weights[row * s->k + i] : 1.0;
        const double       limit = s->limit > 0 ? (double)s->limit : INFINITY;

        for (size_t c = 0; c < s->width; c++) {
            x[c] = (double)s->x[row * s->width + c];
            dx[c] = 0;
        }
        product_in_double(&w[0], x, dx, g, dg);
        product_in_double(&w[2], x, dx, u, du);
        for (size_t j = 0; j < s->inner; j++) {
            /* |silu'| <= 1.1; clamps do not widen an error; exp, sum, quotient, two products: 8 u */
            const double a = clamp(g[j], -INFINITY, limit);
            const double b = clamp(u[j], -limit, limit);
            const double silu = a * sigmoid(a);

            g[j] = weight * silu * b;
            dg[j] = weight * (1.1 * dg[j] * (fabs(b) + du[j]) + fabs(silu) * du[j]) + 8 * U * fabs(g[j]);
        }
        product_in_double(&w[1], g, dg, x, dx);
        for (size_t c = 0; c < s->width; c++) {
            y[c] += x[c];
            dy[c] += dx[c] + (double)(s->k + 1) * U * fabs(x[c]);
        }
    }
    for (size_t c = 0; c < s->width; c++)
        assert_within(is[c], y[c], dy[c] * 1.01);
    free(v);
}

static void check_moe(moe_set *s)
{
    static const uint32_t flags[] = {0, KVI_OP_ROUND_BF16, KVI_OP_ACT_QUANT, KVI_OP_ROUND_BF16 | KVI_OP_ACT_QUANT};
    float                *y = malloc(MOE_ROWS * (size_t)s->width * sizeof *y);
    float                *parts = malloc(s->width * sizeof *parts);

    assert_true(y && parts);
    for (size_t f = 0; f < 4; f++) {
        s->flags = flags[f];
        check_invariance(run_moe, s, MOE_ROWS, s->width, y);
        for (size_t r = 0; r < MOE_ROWS; r++) {
            moe_by_parts(s, r, parts);
            assert_bits(y + r * s->width, parts, s->width);
            if (flags[f] == 0)
                check_moe_row_in_double(s, r, y + r * s->width);
        }
    }
    free(y);
    free(parts);
}

static void test_moe_as_released(void **state)
{
    moe_set s = moe_new(KVI_W_FP4, KVI_W_FP8, 96, 64, 3);

    (void)state;
    check_moe(&s);
    s.limit = 0.0f; /* none */
    check_moe(&s);
    moe_free(&s);
}

static void test_moe_one_expert_a_row(void **state)
{
    moe_set s = moe_new(KVI_W_FP8, KVI_W_FP4, 64, 96, 1);

    (void)state;
    check_moe(&s);
    moe_free(&s);
}

static void test_moe_odd_sizes(void **state)
{
    moe_set s = moe_new(KVI_W_BF16, KVI_W_F32, 50, 37, 2);

    (void)state;
    check_moe(&s);
    moe_free(&s);
}

static void test_moe_mixed_kinds(void **state)
{
    moe_set s = moe_new(KVI_W_BF16, KVI_W_FP8, 64, 32, 2); /* quantised x for the shared expert only */

    (void)state;
    check_moe(&s);
    moe_free(&s);
}

static void test_moe_limit_is_felt(void **state)
{
    moe_set s = moe_new(KVI_W_BF16, KVI_W_BF16, 48, 48, 2);
    float   with[MOE_ROWS * 48];
    float   without[MOE_ROWS * 48];

    (void)state;
    run_moe(&s, devices[0], 0, MOE_ROWS, with);
    s.limit = 0.0f;
    run_moe(&s, devices[0], 0, MOE_ROWS, without);
    assert_memory_not_equal(with, without, sizeof with);
    moe_free(&s);
}

static void test_moe_same_expert_twice(void **state)
{
    moe_set s = moe_new(KVI_W_BF16, KVI_W_BF16, 32, 32, 2);
    float   y[MOE_ROWS * 32];

    (void)state;
    for (size_t i = 0; i < MOE_ROWS * 2; i++)
        s.ids[i] = 3; /* more slots than rows */
    check_invariance(run_moe, &s, MOE_ROWS, 32, y);
    for (size_t r = 0; r < MOE_ROWS; r++)
        check_moe_row_in_double(&s, r, y + r * 32);
    moe_free(&s);
}

/* ------------------------------------------------------------------ out of memory */

typedef kvcsa_status (*attempt_fn)(kvi_device *dev, const void *params, kvcsa_error *err);

/* Fails allocation 0, 1, ... until the operator succeeds; returns the number of failures. */
static long check_out_of_memory(attempt_fn attempt, const void *params)
{
    const long before = atomic_load(&the_meter.outstanding);

    for (long n = 0;; n++) {
        kvcsa_error  err = {0};
        kvcsa_status st;

        the_meter.fail_at = atomic_load(&the_meter.calls) + n;
        st = attempt(devices[1], params, &err);
        the_meter.fail_at = -1;
        assert_int_equal(atomic_load(&the_meter.outstanding), before);
        if (st == KVCSA_OK)
            return n;
        assert_int_equal(st, KVCSA_ERR_NOMEM);
        assert_int_equal(err.status, KVCSA_ERR_NOMEM);
        assert_true(err.text[0] != '\0');
        assert_true(n < 100);
    }
}

static kvcsa_status attempt_linear(kvi_device *dev, const void *params, kvcsa_error *err)
{
    return kvi_cpu_linear(dev, params, err);
}

static kvcsa_status attempt_route(kvi_device *dev, const void *params, kvcsa_error *err)
{
    return kvi_cpu_route(dev, params, err);
}

static kvcsa_status attempt_moe(kvi_device *dev, const void *params, kvcsa_error *err)
{
    return kvi_cpu_moe(dev, params, err);
}

static void test_out_of_memory_leaves_nothing(void **state)
{
    moe_set                 s = moe_new(KVI_W_FP4, KVI_W_FP8, 64, 64, 2);
    float                   y[MOE_ROWS * 64];
    float                   bias[64] = {0};
    uint32_t                id[MOE_ROWS * 2];
    float                   w[MOE_ROWS * 2];
    const kvi_linear_params linear = {.w = &s.experts[EXPERTS].w1, .n_out = 64, .x = s.x, .y = y, .x_stride = 64,
                                      .y_stride = 64, .n_rows = MOE_ROWS, .flags = KVI_OP_ACT_QUANT};
    const kvi_route_params  router = {.z = s.x, .bias = bias, .experts = id, .weights = w, .n_rows = MOE_ROWS, .n_experts = 64,
                                      .k = 2, .normalise = 1, .scale = 1};
    kvi_moe_params          moe;

    (void)state;
    s.flags = KVI_OP_ACT_QUANT;
    moe = moe_params(&s, 0, MOE_ROWS, y);
    assert_int_equal(check_out_of_memory(attempt_linear, &linear), 1);
    assert_int_equal(check_out_of_memory(attempt_route, &router), 1);
    assert_int_equal(check_out_of_memory(attempt_moe, &moe), 2);
    moe_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_route_scores_and_weights),
        cmocka_unit_test(test_route_ties_take_the_lower_expert),
        cmocka_unit_test(test_route_bias_selects_but_does_not_weigh),
        cmocka_unit_test(test_route_without_normalising),
        cmocka_unit_test(test_route_hostile_scores),
        cmocka_unit_test(test_moe_as_released),
        cmocka_unit_test(test_moe_one_expert_a_row),
        cmocka_unit_test(test_moe_odd_sizes),
        cmocka_unit_test(test_moe_mixed_kinds),
        cmocka_unit_test(test_moe_limit_is_felt),
        cmocka_unit_test(test_moe_same_expert_twice),
        cmocka_unit_test(test_out_of_memory_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
