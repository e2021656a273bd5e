/* Experts: every instruction set of this machine against an oracle of numerics revision 2 (fused sums, exp of cpu/v16.h) written
 * with fmaf, and against the portable kernels for what is not a number. */
#include "support/mask_devices.h"

enum { BLOCK = 1024, LANES = 16, EXPERTS = 9 };

/* ------------------------------------------------------------------ oracle */

static float fused_dot(const float *a, const float *b, size_t n)
{
    float sum = 0.0f;

    for (size_t k0 = 0; k0 == 0 || k0 < n; k0 += BLOCK) {
        const size_t m = n - k0 < BLOCK ? n - k0 : BLOCK;
        float        lane[LANES] = {0};

        for (size_t k = 0; k < (m + LANES - 1) / LANES * LANES; k++)
            lane[k % LANES] = k < m ? fmaf(a[k0 + k], b[k0 + k], lane[k % LANES]) : lane[k % LANES] + 0.0f;
        for (size_t half = LANES / 2; half > 0; half /= 2)
            for (size_t i = 0; i < half; i++)
                lane[i] = lane[i] + lane[i + half];
        sum = k0 == 0 ? lane[0] : sum + lane[0];
    }
    return sum;
}

static float power_of_two(int n)
{
    return kvi_bits_f32((uint32_t)(n + 127) << 23);
}

/* cpu/v16.h, one lane */
static float fused_exp(float x)
{
    float t = x > -88.0f ? x : -88.0f;
    float n, r, p, y;
    int   k;

    if (isnan(x))
        return x;
    t = t < 89.0f ? t : 89.0f;
    n = rintf(t * 1.44269504088896341f);
    r = fmaf(-n, 0.693359375f, x);
    r = fmaf(-n, -2.12194440e-4f, r);
    p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    y = fmaf(p, r * r, r) + 1.0f;
    k = (int)n;
    y = y * power_of_two(k >> 1);
    y = y * power_of_two(k - (k >> 1));
    return x < -87.33654f ? 0.0f : x > 88.722839f ? INFINITY : y;
}

static float fused_activate(float g, float u, float limit, const float *weight)
{
    float a;

    if (limit > 0.0f) {
        g = limit < g ? limit : g;
        u = limit < u ? limit : u;
        u = -limit > u ? -limit : u;
    }
    a = g / (1.0f + fused_exp(0.0f - g)) * u;
    return weight ? *weight * a : a;
}

/* Equal bits, or both not a number. */
static void assert_same(const float *is, const float *wanted, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(wanted[i]) ? !isnan(is[i]) : kvi_f32_bits(is[i]) != kvi_f32_bits(wanted[i]))
            fail_msg("%s: element %zu is %.9g, must be %.9g", what, i, (double)is[i], (double)wanted[i]);
}

/* ------------------------------------------------------------------ activation */

static void test_activate_every_kernel(void **state)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 88.7f, 88.73f, -87.3f, -87.34f, -88.8f, 104.0f, -104.0f,
                                1e-40f, 3e38f, -3e38f, 7.0f, -7.0f};
    enum { N = 70, ROWS = 3, STRIDE = 77 };
    float g0[ROWS * STRIDE];
    float u0[ROWS * STRIDE];
    float wanted[ROWS * STRIDE];
    float portable[ROWS * STRIDE];
    float g[ROWS * STRIDE];
    const float weights[ROWS] = {0.25f, -1.5f, 3.0f};

    (void)state;
    for (size_t n = 1; n <= N; n++)
        for (int with = 0; with < 4; with++) {
            kvi_activate_block b = {.g = portable, .u = u0, .weights = with & 1 ? weights : NULL, .g_stride = STRIDE,
                                    .u_stride = STRIDE, .n_rows = ROWS, .n = n, .limit = with & 2 ? 7.0f : 0.0f};

            fill(g0, ROWS * STRIDE, 9.0f);
            fill(u0, ROWS * STRIDE, 9.0f);
            for (size_t i = 0; i < 6; i++) {
                g0[prng() % (ROWS * STRIDE)] = odd[prng() % 17];
                u0[prng() % (ROWS * STRIDE)] = odd[prng() % 17];
            }
            memcpy(wanted, g0, sizeof g0);
            memcpy(portable, g0, sizeof g0);
            kvi_ref_activate(&b);
            for (size_t r = 0; r < ROWS; r++)
                for (size_t i = r * STRIDE; i < r * STRIDE + n; i++) {
                    wanted[i] = fused_activate(g0[i], u0[i], b.limit, b.weights ? &b.weights[r] : NULL);
                    assert_int_equal(isnan(wanted[i]) != 0, isnan(portable[i]) != 0);
                    /* exp within 1.5 ulp of the exact value and within 0.51, then the same four operations: 2 + 4 u, twice;
                     * below 2^-100 the fused exp has no subnormals to offer */
                    if (isfinite(wanted[i]) && isfinite(portable[i]))
                        assert_within(wanted[i], (double)portable[i], 12 * U * fabs((double)portable[i]) + 0x1p-90);
                }
            for (size_t m = 0; m < n_masks; m++) {
                memcpy(g, g0, sizeof g0);
                b.g = g;
                fused[m][0].linear.activate(&b);
                assert_same(g, wanted, ROWS * STRIDE, "activation"); /* gaps are as they were */
            }
        }
}

/* ------------------------------------------------------------------ experts */

typedef struct moe_set {
    test_matrix w[3 * (EXPERTS + 1)]; /* w1, w2, w3 of every expert, the shared one last */
    kvi_expert  experts[EXPERTS + 1];
    float      *x;
    float      *wanted;
    uint32_t   *ids;
    float      *weights;
    size_t      n_rows;
    uint32_t    k;
    uint32_t    width;
    uint32_t    inner;
    float       limit;
} moe_set;

static kvi_moe_params moe_params(const moe_set *s, size_t first, size_t n, float *y)
{
    return (kvi_moe_params){.x = s->x + first * s->width, .y = y, .experts = s->ids + first * s->k,
                            .weights = s->weights + first * s->k, .routed = s->experts, .shared = s->experts + EXPERTS,
                            .n_rows = n, .n_experts = EXPERTS, .k = s->k, .width = s->width, .inner = s->inner,
                            .limit = s->limit};
}

static void fused_product(const kvi_matrix *w, const float *x, float *y, float *row)
{
    for (size_t j = 0; j < w->rows; j++) {
        kvi_ref_weight_row(w, j, row);
        y[j] = fused_dot(x, row, w->cols);
    }
}

static void oracle(moe_set *s)
{
    const size_t most = s->width > s->inner ? s->width : s->inner;
    float       *v = malloc(4 * most * sizeof *v);
    float       *g = v, *u = v + most, *out = v + 2 * most, *row = v + 3 * most;

    assert_non_null(v);
    memset(s->wanted, 0, s->n_rows * s->width * sizeof *s->wanted);
    for (size_t r = 0; r < s->n_rows; r++)
        for (size_t i = 0; i <= s->k; i++) {
            const kvi_expert *e = &s->experts[i < s->k ? s->ids[r * s->k + i] : EXPERTS];
            const float      *weight = i < s->k ? &s->weights[r * s->k + i] : NULL;
            float            *y = s->wanted + r * s->width;

            fused_product(&e->w1, s->x + r * s->width, g, row);
            fused_product(&e->w3, s->x + r * s->width, u, row);
            for (size_t j = 0; j < s->inner; j++)
                g[j] = fused_activate(g[j], u[j], s->limit, weight);
            fused_product(&e->w2, g, out, row);
            for (size_t j = 0; j < s->width; j++)
                y[j] = y[j] + out[j];
        }
    free(v);
}

/* Every row uses expert `busy` first (many rows at once), and others after it, ascending. */
static moe_set moe_new(uint32_t routed, uint32_t shared, uint32_t width, uint32_t inner, uint32_t k, size_t n_rows)
{
    moe_set s = {.k = k, .width = width, .inner = inner, .limit = 0.75f, .n_rows = n_rows};

    for (size_t e = 0; e <= EXPERTS; e++) {
        const uint32_t kind = e == EXPERTS ? shared : routed;

        s.w[3 * e] = matrix_new(kind, inner, width);
        s.w[3 * e + 1] = matrix_new(kind, width, inner);
        s.w[3 * e + 2] = matrix_new(kind, inner, width);
        s.experts[e] = (kvi_expert){.w1 = s.w[3 * e].m, .w2 = s.w[3 * e + 1].m, .w3 = s.w[3 * e + 2].m};
    }
    s.x = malloc(n_rows * width * sizeof *s.x);
    s.wanted = malloc(n_rows * width * sizeof *s.wanted);
    s.ids = malloc(n_rows * k * sizeof *s.ids);
    s.weights = malloc(n_rows * k * sizeof *s.weights);
    assert_true(s.x && s.wanted && s.ids && s.weights);
    fill(s.x, n_rows * width, 0.3f);
    for (size_t i = 0; i < n_rows * k; i++) {
        s.ids[i] = i % k == 0 ? 1 : s.ids[i - 1] + 1 + prng() % ((EXPERTS - 2) / k);
        s.weights[i] = 0.1f + fabsf(uniform(1.0f));
    }
    oracle(&s);
    return s;
}

static void moe_free(moe_set *s)
{
    for (size_t i = 0; i < 3 * (EXPERTS + 1); i++)
        matrix_free(&s->w[i]);
    free(s->x);
    free(s->wanted);
    free(s->ids);
    free(s->weights);
}

static void check_rows(const moe_set *s, kvi_device *dev, size_t first, size_t n)
{
    guarded              y = guarded_new(n * s->width);
    const kvi_moe_params p = moe_params(s, first, n, y.data);

    assert_int_equal(kvi_cpu_moe(dev, &p, NULL), KVCSA_OK);
    assert_same(y.data, s->wanted + first * s->width, n * s->width, "experts");
    guarded_check_free(&y);
}

static void check_moe(const moe_set *s)
{
    for (size_t m = 0; m < n_masks; m++)
        for (size_t t = 0; t < MAX_THREADS; t++) {
            check_rows(s, &fused[m][t], 0, s->n_rows);
            check_rows(s, &fused[m][t], s->n_rows - 1, 1); /* batch invariance */
            check_rows(s, &fused[m][t], 0, s->n_rows / 3 + 1);
        }
}

static void test_moe_as_released(void **state)
{
    moe_set s = moe_new(KVI_W_FP4, KVI_W_FP8, 128, 96, 3, 20);

    (void)state;
    check_moe(&s);
    s.limit = 0.0f;
    oracle(&s);
    check_moe(&s);
    moe_free(&s);
}

/* The wider side takes the odd path and little scratch, the other one panels. */
static void test_moe_scratch_is_for_both_sides(void **state)
{
    static const uint32_t shape[][2] = {{96, 64}, {64, 96}, {160, 128}, {1056, 192}};

    (void)state;
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        moe_set s = moe_new(KVI_W_FP4, KVI_W_FP8, shape[i][0], shape[i][1], 2, 40);

        check_moe(&s);
        moe_free(&s);
    }
}

static void test_moe_kinds(void **state)
{
    static const uint32_t kind[][2] = {{KVI_W_FP8, KVI_W_FP4}, {KVI_W_BF16, KVI_W_F32}, {KVI_W_F32, KVI_W_BF16}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        moe_set s = moe_new(kind[i][0], kind[i][1], 64, 192, 2, 9);

        check_moe(&s);
        moe_free(&s);
    }
}

static void test_moe_odd_sizes(void **state)
{
    moe_set s = moe_new(KVI_W_BF16, KVI_W_F32, 50, 37, 2, 11);

    (void)state;
    check_moe(&s);
    moe_free(&s);
}

/* Work for three threads, decode and prefill. */
static void test_moe_threads(void **state)
{
    moe_set s = moe_new(KVI_W_FP4, KVI_W_FP8, 1088, 128, 3, 8);

    (void)state;
    check_moe(&s);
    moe_free(&s);
}

static void test_moe_not_a_number(void **state)
{
    moe_set s = moe_new(KVI_W_FP8, KVI_W_FP4, 64, 64, 2, 9);
    float   y[9 * 64];

    (void)state;
    s.x[5] = NAN;
    s.x[64 + 1] = INFINITY;
    s.x[3 * 64 + 60] = -INFINITY;
    s.x[4 * 64] = 3e38f;
    s.weights[5 * 2] = NAN;
    oracle(&s);
    check_moe(&s);
    for (size_t d = 0; d < N_DEVICES; d++) {
        const kvi_moe_params p = moe_params(&s, 0, 9, y);

        assert_int_equal(kvi_cpu_moe(devices[d], &p, NULL), KVCSA_OK);
        for (size_t i = 0; i < 9 * 64; i++)
            assert_int_equal(isnan(y[i]) != 0, isnan(s.wanted[i]) != 0);
    }
    moe_free(&s);
}

static void test_moe_reference_mode_is_portable(void **state)
{
    moe_set s = moe_new(KVI_W_FP4, KVI_W_FP8, 64, 96, 2, 10);
    float   y[2][10 * 64];

    (void)state;
    for (uint32_t flags = 1; flags <= 3; flags++)
        for (size_t m = 0; m < n_masks; m++) {
            kvi_moe_params p = moe_params(&s, 0, 10, y[0]);

            p.flags = flags;
            assert_int_equal(kvi_cpu_moe(devices[0], &p, NULL), KVCSA_OK);
            p.y = y[1];
            assert_int_equal(kvi_cpu_moe(&fused[m][1], &p, NULL), KVCSA_OK);
            assert_bits(y[1], y[0], 10 * 64);
        }
    moe_free(&s);
}

static void test_moe_out_of_memory(void **state)
{
    moe_set s = moe_new(KVI_W_FP4, KVI_W_FP8, 64, 64, 2, 10);

    (void)state;
    for (size_t m = 0; m < n_masks; m++)
        for (long n = 0; n < 2; n++) {
            float                y[10 * 64];
            const kvi_moe_params p = moe_params(&s, 0, 10, y);
            kvcsa_error          err = {0};
            const long           before = atomic_load(&the_meter.outstanding);

            the_meter.fail_at = atomic_load(&the_meter.calls) + n;
            assert_int_equal(kvi_cpu_moe(&fused[m][0], &p, &err), KVCSA_ERR_NOMEM);
            the_meter.fail_at = -1;
            assert_int_equal(err.status, KVCSA_ERR_NOMEM);
            assert_int_equal(atomic_load(&the_meter.outstanding), before);
        }
    moe_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_activate_every_kernel),
        cmocka_unit_test(test_moe_as_released),
        cmocka_unit_test(test_moe_scratch_is_for_both_sides),
        cmocka_unit_test(test_moe_kinds),
        cmocka_unit_test(test_moe_odd_sizes),
        cmocka_unit_test(test_moe_threads),
        cmocka_unit_test(test_moe_not_a_number),
        cmocka_unit_test(test_moe_reference_mode_is_portable),
        cmocka_unit_test(test_moe_out_of_memory),
    };

    return cmocka_run_group_tests(tests, open_masks, close_masks);
}
