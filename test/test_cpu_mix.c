/* Residual stream of several copies: mix, collapse, expand; the Engram gate. Bounds: see support/op_check.h. */
#include "support/dense_jobs.h"

/* ------------------------------------------------------------------ mix */

/* The numbers of an independent calculation: mixes[i] = 1.5 sin(1.7 i), base[i] = 0.05 ((7 i mod 5) - 2). */
static void test_mix_golden_numbers(void **state)
{
    static const double golden[24] = {0.475022, 0.766742, 0.448522, 0.238491, 1.242427, 1.299818, 0.695072, 0.775717,
                                      0.224330, 0.583498, 0.130505, 0.061667, 0.401394, 0.254185, 0.177929, 0.166491,
                                      0.272026, 0.116438, 0.232165, 0.379370, 0.102250, 0.045878, 0.459401, 0.392471};
    float               h[4 * 8];
    float               proj[24];
    float               base[24];
    float               out[24];
    const mix_job       job = {.h = h, .proj = proj, .base = base, .copies = 4, .width = 8, .n_iters = 20};

    (void)state;
    for (size_t i = 0; i < 32; i++)
        h[i] = i % 2 ? 1.0f : -1.0f; /* r = 1 */
    for (size_t i = 0; i < 24; i++) {
        proj[i] = (float)(1.5 * sin(1.7 * (double)i));
        base[i] = (float)(0.05 * ((double)(7 * i % 5) - 2.0));
    }
    run_mix(&job, devices[0], 0, 1, out);
    /* half a printed digit, and 39 normalisations of five roundings each on values below 0.6 */
    for (size_t i = 0; i < 24; i++)
        assert_within(out[i], golden[i], 5e-7 + (i < 8 ? 16 : 39 * 5 * 0.6) * U);
}

static void mix_in_double(const mix_job *j, size_t row, double *out)
{
    const size_t m = j->copies;
    const float *proj = j->proj + row * (2 + m) * m;
    double      *c = out + 2 * m;
    double       r = 0;

    for (size_t i = 0; i < m * j->width; i++)
        r += pow((double)j->h[row * m * j->width + i], 2);
    r = 1 / sqrt(r / (double)(m * j->width));
    for (size_t i = 0; i < m; i++) {
        out[i] = sigmoid((double)proj[i] * r * (double)0.8f + (double)j->base[i]) + 1e-6;
        out[m + i] = 2 * sigmoid((double)proj[m + i] * r * (double)0.6f + (double)j->base[m + i]);
    }
    for (size_t a = 0; a < m; a++) {
        double sum = 0;

        for (size_t b = a * m; b < (a + 1) * m; b++)
            sum += c[b] = exp((double)proj[2 * m + b] * r * (double)1.2f + (double)j->base[2 * m + b]);
        for (size_t b = a * m; b < (a + 1) * m; b++)
            c[b] = c[b] / sum + 1e-6;
    }
    for (size_t it = 0; it < 2 * (size_t)j->n_iters - 1; it++) { /* columns, rows, columns, ... */
        const size_t step = it % 2 ? 1 : m;

        for (size_t a = 0; a < m; a++) {
            const size_t at = it % 2 ? a * m : a;
            double       sum = 1e-6;

            for (size_t b = 0; b < m; b++)
                sum += c[at + b * step];
            for (size_t b = 0; b < m; b++)
                c[at + b * step] /= sum;
        }
    }
}

static void test_mix_against_double(void **state)
{
    static const uint32_t copies[] = {1, 2, 4, 8};

    (void)state;
    for (size_t k = 0; k < 4; k++) {
        const size_t  m = copies[k];
        const size_t  row = (2 + m) * m;
        const size_t  width = 50;
        float        *h = malloc(17 * m * width * sizeof *h);
        float        *proj = malloc(17 * row * sizeof *proj);
        float        *base = malloc(row * sizeof *base);
        float        *out = malloc(17 * row * sizeof *out);
        double       *wanted = malloc(row * sizeof *wanted);
        const mix_job job = {.h = h, .proj = proj, .base = base, .copies = copies[k], .width = (uint32_t)width, .n_iters = 20};

        assert_true(h && proj && base && out && wanted);
        fill(h, 17 * m * width, 1.0f);
        fill(proj, 17 * row, 2.0f);
        fill(base, row, 0.3f);
        check_invariance(run_mix, &job, 17, row, out);
        for (size_t i = 0; i < 17; i++) {
            mix_in_double(&job, i, wanted);
            /* arguments below 8 with (m width / 32 + 12) roundings; sigmoid slopes 1/4 and 1/2; every normalisation of C
             * adds m + 1 roundings; entries are at most 1 */
            for (size_t c = 0; c < row; c++)
                assert_within(out[i * row + c], wanted[c],
                              (8.0 * ((double)(m * width) / 32 + 12) + (c < 2 * m ? 4 : 40.0 * (double)(m + 1))) * U);
        }
        free(h);
        free(proj);
        free(base);
        free(out);
        free(wanted);
    }
}

/* ------------------------------------------------------------------ collapse, expand */

enum { STREAM_ROWS = 11 };

static void check_stream(uint32_t copies, uint32_t width)
{
    const size_t m = copies;
    float       *h = malloc(STREAM_ROWS * m * width * sizeof *h);
    float       *pre = malloc(STREAM_ROWS * m * sizeof *pre);
    float       *comb = malloc(STREAM_ROWS * m * m * sizeof *comb);
    float       *y = malloc(STREAM_ROWS * width * sizeof *y);
    float       *one = malloc(STREAM_ROWS * width * sizeof *one);
    float       *all = malloc(STREAM_ROWS * m * width * sizeof *all);
    float       *rounded = malloc(STREAM_ROWS * m * width * sizeof *rounded);
    stream_job   job = {.h = h, .pre = pre, .comb = comb, .y = y, .copies = copies, .width = width};

    assert_true(h && pre && comb && y && one && all && rounded);
    fill(h, STREAM_ROWS * m * width, 1.0f);
    fill(pre, STREAM_ROWS * m, 1.0f);
    fill(comb, STREAM_ROWS * m * m, 1.0f);
    fill(y, STREAM_ROWS * width, 1.0f);
    check_invariance(run_collapse, &job, STREAM_ROWS, width, one);
    check_invariance(run_expand, &job, STREAM_ROWS, m * width, all);
    for (size_t r = 0; r < STREAM_ROWS; r++)
        for (size_t i = 0; i < width; i++) {
            const float *x = h + r * m * width + i;
            double       sum = 0;

            for (size_t c = 0; c < m; c++)
                sum += (double)pre[r * m + c] * (double)x[c * width];
            assert_within(one[r * width + i], sum, (double)(m + 1) * (double)m * U);
            for (size_t k = 0; k < m; k++) {
                sum = (double)pre[r * m + k] * (double)y[r * width + i];
                for (size_t j = 0; j < m; j++) /* over the first index: the source copy */
                    sum += (double)comb[(r * m + j) * m + k] * (double)x[j * width];
                assert_within(all[(r * m + k) * width + i], sum, (double)(m + 2) * (double)(m + 1) * U);
            }
        }
    job.flags = KVI_OP_ROUND_BF16;
    check_invariance(run_expand, &job, STREAM_ROWS, m * width, rounded);
    round_all(all, STREAM_ROWS * m * width);
    assert_bits(rounded, all, STREAM_ROWS * m * width);
    check_invariance(run_collapse, &job, STREAM_ROWS, width, rounded);
    round_all(one, STREAM_ROWS * width);
    assert_bits(rounded, one, STREAM_ROWS * width);
    free(h);
    free(pre);
    free(comb);
    free(y);
    free(one);
    free(all);
    free(rounded);
}

static void test_collapse_and_expand(void **state)
{
    (void)state;
    check_stream(1, 5);
    check_stream(2, 64);
    check_stream(4, 193);
    check_stream(4, 2050); /* several ranges of rows */
    check_stream(8, 31);
}

static void test_expand_stays_inside(void **state)
{
    const float             y[3] = {1, 2, 3};
    const float             post[2] = {1, 1};
    const float             comb[4] = {0, 1, 0, 0}; /* copy 1 becomes y + old copy 0, copy 0 becomes y */
    guarded                 h = guarded_new(6);
    const kvi_expand_params p = {.h = h.data, .y = y, .post = post, .comb = comb, .n_rows = 1, .copies = 2, .width = 3};

    (void)state;
    for (size_t i = 0; i < 6; i++)
        h.data[i] = (float)(10 * i);
    assert_int_equal(kvi_cpu_expand(devices[0], &p, NULL), KVCSA_OK);
    assert_bits(h.data, ((const float[6]){1, 2, 3, 1, 12, 23}), 6);
    guarded_check_free(&h);
}

/* ------------------------------------------------------------------ Engram gate */

static void check_engram(uint32_t copies, uint32_t width, size_t n_rows)
{
    const size_t row = (size_t)copies * width;
    float       *h = malloc(n_rows * row * sizeof *h);
    float       *kv = malloc(n_rows * (row + width) * sizeof *kv);
    float       *qk = malloc(row * sizeof *qk);
    float       *y = malloc(n_rows * row * sizeof *y);
    float       *rounded = malloc(n_rows * row * sizeof *rounded);
    engram_job   job = {.h = h, .kv = kv, .qk = qk, .copies = copies, .width = width};

    assert_true(h && kv && qk && y && rounded);
    fill(h, n_rows * row, 1.0f);
    fill(kv, n_rows * (row + width), 1.0f);
    fill(qk, row, 2.0f);
    check_invariance(run_engram, &job, n_rows, row, y);
    for (size_t i = 0; i < n_rows * copies; i++)
        assert_engram_exact(&job, i / copies, i % copies, y + i * width, 8 * U);
    job.flags = KVI_OP_ROUND_BF16;
    check_invariance(run_engram, &job, n_rows, row, rounded);
    round_all(y, n_rows * row);
    assert_bits(rounded, y, n_rows * row);
    free(h);
    free(kv);
    free(qk);
    free(y);
    free(rounded);
}

static void test_engram_gate_formula(void **state)
{
    (void)state;
    check_engram(1, 7, 3);
    check_engram(4, 192, 40);
    check_engram(3, 50, 9);
}

static void test_engram_gate_golden(void **state)
{
    static const struct {
        float  qk;   /* with h = key = 1 and width 16, dot = 16 qk / 4 */
        double gate;
    } cases[] = {
        {0.0625f, 0.622459}, /* dot = 0.25, the specification's check */
        {-0.0625f, 1 - 0.622459},
        {0.0f, 0.50025},     /* the floor: sigmoid(0.001) */
        {-0.0f, 0.50025},    /* sums start from +0 */
        {-1e-9f, 0.49975},
        {1.25e-7f, 0.50025}, /* dot = 5e-7, below the floor */
    };
    float      h[16];
    float      kv[32];
    float      qk[16];
    float      y[16];
    engram_job job = {.h = h, .kv = kv, .qk = qk, .copies = 1, .width = 16};

    (void)state;
    for (size_t i = 0; i < 16; i++) {
        h[i] = kv[i] = 1.0f;
        kv[16 + i] = (float)i;
    }
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (size_t i = 0; i < 16; i++)
            qk[i] = cases[k].qk;
        run_engram(&job, devices[0], 0, 1, y);
        for (size_t i = 0; i < 16; i++) /* half a printed digit */
            assert_within(y[i], 1.0 + cases[k].gate * (double)i, 5e-7 * (double)i + 16 * U * (1 + (double)i));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mix_golden_numbers),
        cmocka_unit_test(test_mix_against_double),
        cmocka_unit_test(test_collapse_and_expand),
        cmocka_unit_test(test_expand_stays_inside),
        cmocka_unit_test(test_engram_gate_formula),
        cmocka_unit_test(test_engram_gate_golden),
    };

    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
