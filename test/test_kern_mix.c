/* Residual stream of several copies, Engram gate: every instruction set of this machine against an oracle of the fused order written
 * with fmaf, against double, and against the portable kernels where the bits are the same. */
#include "support/dense_jobs.h"
#include "support/fused_order.h"
#include "support/mask_rows.h"

/* ---------------------------------------------------------------- mix */

/* Lines of m elements, `step` apart, are divided by their sums. */
static void fused_divide(float *c, size_t m, size_t line, size_t step, float eps)
{
    for (size_t a = 0; a < m; a++) {
        float sum = c[a * line];

        for (size_t b = 1; b < m; b++)
            sum += c[a * line + b * step];
        sum += eps;
        for (size_t b = 0; b < m; b++)
            c[a * line + b * step] = c[a * line + b * step] / sum;
    }
}

static void fused_mix(const mix_job *j, size_t row, float *out)
{
    const size_t m = j->copies;
    const float *proj = j->proj + row * (2 + m) * m;
    const float  r = fused_rms_inverse(j->h + row * m * j->width, m * j->width, 1e-20f);
    float       *c = out + 2 * m;

    for (size_t i = 0; i < m; i++) {
        out[i] = fused_sigmoid(proj[i] * r * mix_scale[0] + j->base[i]) + 1e-6f;
        out[m + i] = 2.0f * fused_sigmoid(proj[m + i] * r * mix_scale[1] + j->base[m + i]);
    }
    for (size_t i = 0; i < m * m; i++)
        c[i] = proj[2 * m + i] * r * mix_scale[2] + j->base[2 * m + i];
    for (size_t a = 0; a < m; a++) {
        float most = c[a * m];

        for (size_t k = 1; k < m; k++)
            most = c[a * m + k] > most ? c[a * m + k] : most;
        for (size_t k = 0; k < m; k++)
            c[a * m + k] = fused_exp(c[a * m + k] - most);
    }
    fused_divide(c, m, m, 1, 0.0f);
    for (size_t i = 0; i < m * m; i++)
        c[i] += 1e-6f;
    fused_divide(c, m, 1, m, 1e-6f);
    for (uint32_t it = 1; it < j->n_iters; it++) {
        fused_divide(c, m, m, 1, 1e-6f);
        fused_divide(c, m, 1, m, 1e-6f);
    }
}

static void check_mix(uint32_t copies, uint32_t width, size_t n_rows, uint32_t n_iters)
{
    const size_t  mark = fence_mark();
    const size_t  m = copies;
    const size_t  row = (2 + m) * m;
    float        *h = fenced_random(n_rows * m * width, 1.0f);
    float        *proj = fenced_random(n_rows * row, 2.0f);
    float        *base = fenced_random(row, 0.3f);
    float        *wanted = fenced(n_rows * row);
    float        *plain = fenced(n_rows * row);
    const mix_job job = {.h = h, .proj = proj, .base = base, .copies = copies, .width = width, .n_iters = n_iters};

    for (size_t i = 0; i < n_rows; i++)
        fused_mix(&job, i, wanted + i * row);
    check_variants(run_mix, &job, wanted, n_rows, row);
    /* Each is this far from the exact value: arguments below 8 with (m width / 32 + 12) roundings, slopes of the sigmoids 1/4
     * and 1/2, entries of C at most 1; every normalisation adds m + 1 roundings; exp is off by 3 u at most. */
    run_mix(&job, devices[0], 0, n_rows, plain);
    for (size_t i = 0; i < n_rows * row; i++)
        assert_within(wanted[i], (double)plain[i],
                      2.0 * (8.0 * ((double)(m * width) / 32 + 12) + (i % row < 2 * m ? 7 : 40.0 * (double)(m + 1) + 6)) * U);
    free_fenced(mark);
}

static void test_mix_every_shape(void **state)
{
    (void)state;
    for (uint32_t copies = 1; copies <= 8; copies++)
        check_mix(copies, 10 + copies, 21, 20);
    check_mix(4, 16, 3, 1);
    check_mix(4, 5120, 2, 20);
    check_mix(4, 300, 130, 20); /* several ranges of rows */
    check_mix(2, 2000, 9, 3);
}

/* NaN and infinity where the portable kernels have them. */
static void test_mix_nan_and_infinity(void **state)
{
    const size_t mark = fence_mark();
    enum { ROWS = 9 };
    static const float bad[4] = {NAN, INFINITY, -INFINITY, 3e38f};

    (void)state;
    for (uint32_t m = 2; m <= 4; m++) {
        const size_t  row = (2 + m) * m;
        float        *h = fenced_random(ROWS * m * 8, 1.0f);
        float        *proj = fenced_random(ROWS * row, 2.0f);
        float        *base = fenced_random(row, 0.3f);
        float         a[ROWS * 24];
        float         b[ROWS * 24];
        const mix_job job = {.h = h, .proj = proj, .base = base, .copies = m, .width = 8, .n_iters = 20};

        h[3] = NAN;
        for (size_t i = 1; i < ROWS; i++)
            proj[i * row + prng() % row] = bad[i % 4];
        run_mix(&job, devices[0], 0, ROWS, a);
        for (size_t v = 0; v < n_masks; v++) {
            run_mix(&job, &fused[v][0], 0, ROWS, b);
            for (size_t i = 0; i < ROWS * row; i++)
                assert_true(isnan(a[i]) == isnan(b[i]) && isinf(a[i]) == isinf(b[i]));
            for (size_t i = 0; i < ROWS; i++)
                fused_mix(&job, i, a + i * row);
            check_device(run_mix, &job, fused[v], a, ROWS, row);
            run_mix(&job, devices[0], 0, ROWS, a);
        }
        free_fenced(mark);
    }
}

/* ---------------------------------------------------------------- collapse, expand */

static void check_stream(uint32_t copies, uint32_t width, size_t n_rows)
{
    const size_t mark = fence_mark();
    const size_t m = copies;
    float       *h = fenced_random(n_rows * m * width, 1.0f);
    float       *pre = fenced_random(n_rows * m, 1.0f);
    float       *comb = fenced_random(n_rows * m * m, 1.0f);
    float       *y = fenced_random(n_rows * width, 1.0f);
    float       *one = fenced(n_rows * width);
    float       *all = fenced(n_rows * m * width);
    float       *plain = fenced(n_rows * m * width);
    stream_job   job = {.h = h, .pre = pre, .comb = comb, .y = y, .copies = copies, .width = width};

    h[width / 2] = NAN;
    h[n_rows * m * width - 1] = INFINITY;
    for (size_t r = 0; r < n_rows; r++)
        for (size_t i = 0; i < width; i++) {
            const float *x = h + r * m * width + i;
            float        sum = pre[r * m] * x[0];

            for (size_t c = 1; c < m; c++)
                sum = fmaf(pre[r * m + c], x[c * width], sum);
            one[r * width + i] = sum;
            for (size_t k = 0; k < m; k++) {
                const float *c = comb + r * m * m + k;

                sum = c[0] * x[0];
                for (size_t j = 1; j < m; j++)
                    sum = fmaf(c[j * m], x[j * width], sum);
                all[(r * m + k) * width + i] = fmaf(pre[r * m + k], y[r * width + i], sum);
            }
        }
    check_variants(run_collapse, &job, one, n_rows, width);
    check_variants(run_expand, &job, all, n_rows, m * width);
    /* every product below 1 has m roundings here and m + 1 there, or one more each */
    run_collapse(&job, devices[0], 0, n_rows, plain);
    for (size_t i = 0; i < n_rows * width; i++)
        if (isfinite(plain[i]))
            assert_within(one[i], (double)plain[i], (double)(2 * m + 1) * (double)m * U);
        else
            assert_true(isnan(one[i]) == isnan(plain[i]) && !isfinite(one[i]));
    run_expand(&job, devices[0], 0, n_rows, plain);
    for (size_t i = 0; i < n_rows * m * width; i++)
        if (isfinite(plain[i]))
            assert_within(all[i], (double)plain[i], (double)(2 * m + 3) * (double)(m + 1) * U);
        else
            assert_true(isnan(all[i]) == isnan(plain[i]) && !isfinite(all[i]));
    job.flags = KVI_OP_ROUND_BF16;
    check_as_portable(run_collapse, &job, n_rows, width);
    check_as_portable(run_expand, &job, n_rows, m * width);
    free_fenced(mark);
}

static void test_collapse_and_expand(void **state)
{
    (void)state;
    for (uint32_t copies = 1; copies <= 8; copies++)
        check_stream(copies, 13 * copies, 3);
    check_stream(4, 1, 2);
    check_stream(4, 64, 5);
    check_stream(4, 2051, 31); /* several ranges of rows */
    check_stream(4, 5120, 2);
}

/* ---------------------------------------------------------------- Engram gate */

static float fused_gate(const engram_job *j, const float *h, const float *qk, const float *key)
{
    const size_t w = j->width;
    const float  r = fused_rms_inverse(h, w, 1e-20f) * fused_rms_inverse(key, w, 1e-20f);
    const float  dot = fused_sum(h, qk, key, w) * r * (1.0f / sqrtf((float)w));
    const float  root = sqrtf(fabsf(dot) < 1e-6f ? 1e-6f : fabsf(dot));

    return fused_sigmoid(copysignf(root, dot));
}

static void check_engram(uint32_t copies, uint32_t width, size_t n_rows)
{
    const size_t mark = fence_mark();
    const size_t row = (size_t)copies * width;
    float       *h = fenced_random(n_rows * row, 1.0f);
    float       *kv = fenced_random(n_rows * (row + width), 1.0f);
    float       *qk = fenced_random(row, 2.0f);
    float       *wanted = fenced(n_rows * row);
    engram_job   job = {.h = h, .kv = kv, .qk = qk, .copies = copies, .width = width};

    for (size_t r = 0; r < n_rows; r++)
        for (size_t c = 0; c < copies; c++) {
            const float *keys = kv + r * (row + width);
            const float *x = h + (r * copies + c) * width;
            float       *y = wanted + (r * copies + c) * width;
            const float  gate = fused_gate(&job, x, qk + c * width, keys + c * width);

            for (size_t i = 0; i < width; i++)
                y[i] = fmaf(gate, keys[row + i], x[i]);
            assert_engram_exact(&job, r, c, y, 16 * U);
        }
    check_variants(run_engram, &job, wanted, n_rows, row);
    job.flags = KVI_OP_ROUND_BF16;
    check_as_portable(run_engram, &job, n_rows, row);
    free_fenced(mark);
}

static void test_engram_every_shape(void **state)
{
    (void)state;
    for (uint32_t copies = 1; copies <= 8; copies++)
        check_engram(copies, 5 + 9 * copies, 3);
    check_engram(17, 20, 2);
    check_engram(4, 1024, 2);
    check_engram(4, 3072 + 33, 3);
    check_engram(4, 5120, 7); /* several ranges of rows */
}

/* The sign of the dot product, its floor, and what is no number. */
static void test_engram_special_values(void **state)
{
    static const float qks[8] = {0.0f, -0.0f, 1e-9f, -1e-9f, NAN, INFINITY, -INFINITY, -1e-44f};
    float              h[8 * 20];
    float              kv[9 * 20];
    float              qk[8 * 20];
    float              a[8 * 20];
    float              b[8 * 20];
    const engram_job   job = {.h = h, .kv = kv, .qk = qk, .copies = 8, .width = 20};

    (void)state;
    for (size_t i = 0; i < 9 * 20; i++)
        kv[i] = 1.0f;
    for (size_t i = 0; i < 8 * 20; i++) {
        h[i] = 1.0f;
        qk[i] = qks[i / 20];
    }
    run_engram(&job, devices[0], 0, 1, a);
    for (size_t v = 0; v < n_masks; v++) {
        run_engram(&job, &fused[v][0], 0, 1, b);
        for (size_t i = 0; i < 8 * 20; i++)
            if (isnan(a[i]))
                assert_true(isnan(b[i]));
            else
                assert_within(b[i], (double)a[i], 16 * U);
        for (size_t c = 0; c < 8; c++) {
            const float gate = fused_gate(&job, h + c * 20, qk + c * 20, kv + c * 20);

            for (size_t i = 0; i < 20; i++)
                a[c * 20 + i] = fmaf(gate, 1.0f, 1.0f);
        }
        assert_same(b, a, 8 * 20);
        run_engram(&job, devices[0], 0, 1, a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mix_every_shape),
        cmocka_unit_test(test_mix_nan_and_infinity),
        cmocka_unit_test(test_collapse_and_expand),
        cmocka_unit_test(test_engram_every_shape),
        cmocka_unit_test(test_engram_special_values),
    };

    prng_seed(20250730);
    return cmocka_run_group_tests(tests, open_masks, close_masks);
}
