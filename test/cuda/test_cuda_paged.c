/* Attention over paged keys and values on the device beside the CPU's, every format. */
#include "cuda/cuda_check.h"

#include <stdio.h>
#include <string.h>

#include "format/dtype.h"
#include "format/row.h"
#include "plan/cache_plan.h"

enum { PAGE_OFF = 48, MAX_PAGES = 600, MAX_ROWS = 8 };

static const uint32_t formats[] = {KVCSA_FORMAT_F16,          KVCSA_FORMAT_BF16,         KVCSA_FORMAT_FP8_E8M0_G32,
                                   KVCSA_FORMAT_Q8_0,         KVCSA_FORMAT_FP4_E4M3_G16, KVCSA_FORMAT_FP4_E8M0_G32,
                                   KVCSA_FORMAT_Q4_0};
enum { N_FORMATS = sizeof formats / sizeof *formats };

typedef struct job {
    uint32_t format, width, n_heads, n_kv, page_rows;
    size_t   n_pos, n_rows, row_bytes, page_bytes, n_pages;
    uint8_t *pages[MAX_PAGES]; /* rows behind the last position are all ones: NaN where the format has one */
    float   *q, *sink;
    uint64_t n_visible[MAX_ROWS], max_visible;
    float    scale;
} job;

static uint8_t *row_of(const job *j, size_t kv, size_t is_value, size_t pos)
{
    return j->pages[pos / j->page_rows] + PAGE_OFF + ((2 * kv + is_value) * j->page_rows + pos % j->page_rows) * j->row_bytes;
}

static void encode(const job *j, size_t kv, size_t is_value, size_t pos, float size)
{
    float x[256];

    fill(x, j->width, size);
    for (uint32_t c = 0; c < j->width; c += 32) /* groups of very different size */
        for (uint32_t i = 0; i < 32; i++)
            x[c + i] *= (float[]){1.0f, 0.25f, 3.0f}[(pos + c / 32) % 3];
    assert_int_equal(kvi_row_encode(j->format, x, j->width, row_of(j, kv, is_value, pos)), 0);
}

static void job_init(job *j, uint32_t format, uint32_t width, uint32_t n_heads, uint32_t n_kv, uint32_t page_rows, size_t n_pos,
                     size_t n_rows)
{
    const size_t n = n_rows * n_heads * width;

    *j = (job){.format = format, .width = width, .n_heads = n_heads, .n_kv = n_kv, .page_rows = page_rows, .n_pos = n_pos,
               .n_rows = n_rows, .row_bytes = kvi_format_row_bytes(format, width), .scale = 1.0f / sqrtf((float)width)};
    j->page_bytes = PAGE_OFF + (size_t)2 * n_kv * page_rows * j->row_bytes;
    j->n_pages = (n_pos + page_rows - 1) / page_rows;
    assert_true(j->n_pages <= MAX_PAGES && n_rows <= MAX_ROWS);
    for (size_t i = 0; i < j->n_pages; i++) {
        assert_non_null(j->pages[i] = malloc(j->page_bytes));
        memset(j->pages[i], 0xff, j->page_bytes);
    }
    for (size_t kv = 0; kv < n_kv; kv++)
        for (size_t is_value = 0; is_value < 2; is_value++)
            for (size_t pos = 0; pos < n_pos; pos++)
                encode(j, kv, is_value, pos, 1.5f);
    assert_non_null(j->q = malloc((n + 1) * sizeof *j->q));
    fill(j->q, n, 2.0f);
    for (size_t i = 0; i < n_rows; i++)
        j->n_visible[i] = i == 0 ? n_pos : i == 1 ? 0 : prng() % (n_pos + 1);
}

static void job_free(job *j)
{
    for (size_t i = 0; i < j->n_pages; i++)
        free(j->pages[i]);
    free(j->q);
    free(j->sink);
}

static void add_sink(job *j, float size)
{
    assert_non_null(j->sink = malloc(j->n_heads * sizeof *j->sink));
    fill(j->sink, j->n_heads, size);
}

static size_t out_floats(const job *j)
{
    return j->n_rows * j->n_heads * j->width;
}

static kvi_paged_attend_params params(const job *j)
{
    return (kvi_paged_attend_params){.page_off = PAGE_OFF, .n_rows = j->n_rows, .n_heads = j->n_heads, .n_kv_heads = j->n_kv,
                                     .width = j->width, .page_rows = j->page_rows, .format = j->format, .scale = j->scale,
                                     .max_visible = j->max_visible};
}

static void run(const void *arg, void *out)
{
    const job              *j = arg;
    kvi_paged_attend_params p = params(j);
    uint8_t                *pages[MAX_PAGES];

    for (size_t i = 0; i < j->n_pages; i++)
        pages[i] = to_device(j->pages[i], j->page_bytes);
    p.pages = table_to_device(pages, j->n_pages);
    p.q = to_device_at(j->q, out_floats(j) * sizeof *j->q, 4);
    p.out = to_device_at(NULL, out_floats(j) * sizeof *p.out, 4);
    p.n_visible = to_device(j->n_visible, j->n_rows * sizeof *j->n_visible);
    if (j->sink)
        p.sink = to_device(j->sink, j->n_heads * sizeof *j->sink);
    GPU(paged_attend, &p);
    from_device(out, p.out, out_floats(j) * sizeof *p.out);
    device_free_all();
}

static void run_cpu(const job *j, float *out)
{
    kvi_paged_attend_params p = params(j);

    p.pages = (uint8_t *const *)j->pages;
    p.q = j->q;
    p.out = out;
    p.n_visible = j->n_visible;
    p.sink = j->sink;
    CPU(paged_attend, &p);
}

/* ---- the bound ---- */

/* u = 2^-24, W = width, n positions, S = largest |score|, R = largest distance of a score (or the sink) to the maximum.
 * The device, see cuda/smxx/paged.cuh:
 *   scores   each of the W products of 2 or 3 parts is added in an mma, which may cut off 2 u of the largest term or sum: 6 W u;
 *            two parts of q in f16 leave 2^-22 = 4 u; the group's scale 2 u: d = (6 W + 6) u scale sum |q k|
 *   x - m    in powers of two: factor and product 3 u S each, the difference u R, times log 2
 *   2^x      4 u
 *   sums     each step of a warp, merge of warps, chunks, groups multiplies by 2^(m - m') (4 u + u R) and rounds twice: at most
 *            n / 64 + 4 + 16 + n / 16384 + 2 times; n additions of p (u each, den) and of two parts p v (4 u each, mma)
 *   p        two parts: 2^-16 in bf16 and 2^-22 in f16, there at least 2^-40 of the largest; times the group's scale u
 * The CPU: test_kern_paged.c: (W + 2) u scale sum |q k| + u R + 4 u + (n / 64 + n / 1024 + 3)(5 u + u R) + n u.
 * Errors of weights count twice, in numerator and denominator, but those of p's parts and of the sums' additions. */
static void bounds(const job *j, size_t row, size_t head, double *allowed)
{
    const size_t  n = j->n_visible[row];
    const float  *q = j->q + (row * j->n_heads + head) * j->width;
    const size_t  kv = head / (j->n_heads / j->n_kv);
    const int     half = j->format == KVCSA_FORMAT_F16 || j->format == KVCSA_FORMAT_FP4_E4M3_G16;
    double       *p = malloc(n * sizeof *p);
    double        most = 0, max = -INFINITY, low = INFINITY, s_max = 0, den = 0;
    float         x[256];

    assert_non_null(p);
    for (size_t i = 0; i < n; i++) {
        double sum = 0, size = 0;

        kvi_row_decode(j->format, row_of(j, kv, 0, i), j->width, x);
        for (uint32_t c = 0; c < j->width; c++) {
            sum += (double)q[c] * (double)x[c];
            size += fabs((double)q[c] * (double)x[c]);
        }
        p[i] = sum * (double)j->scale;
        most = fmax(most, size * (double)j->scale);
        max = fmax(max, p[i]);
        low = fmin(low, p[i]);
        s_max = fmax(s_max, fabs(p[i]));
    }
    for (size_t i = 0; i < n; i++)
        den += p[i] = exp(p[i] - max);
    if (j->sink) {
        const double s = (double)j->sink[head];

        den += exp(s - max);
        low = fmin(low, fmin(s, 2 * max - s));
        s_max = fmax(s_max, fabs(s));
    }

    const double range = max - low, cpu_steps = (double)n / 64 + (double)n / 1024 + 3;
    const double gpu_steps = (double)n / 64 + (double)n / 16384 + 22;
    const double by_cpu = 2 * ((j->width + 2) * U * most + U * range + 4 * U + cpu_steps * (5 * U + U * range) + (double)n * U);
    const double by_gpu = 2 * ((6 * j->width + 6) * U * most + 6 * U * s_max + U * range + 4 * U +
                               gpu_steps * (6 * U + U * range)) +
                          (double)n * 9 * U + (half ? 0x1p-22 : 0x1p-16) + U;

    for (uint32_t c = 0; c < j->width; c++)
        allowed[c] = 1e-30;
    for (size_t i = 0; i < n; i++) {
        kvi_row_decode(j->format, row_of(j, kv, 1, i), j->width, x);
        for (uint32_t c = 0; c < j->width; c++)
            allowed[c] += (1.1 * (by_cpu + by_gpu) * p[i] + (half ? 0x1p-40 : 0)) * fabs((double)x[c]) / den;
    }
    free(p);
}

static void compare(const job *j, const float *got, const float *want)
{
    double allowed[256];

    for (size_t row = 0; row < j->n_rows; row++)
        for (size_t head = 0; head < j->n_heads; head++) {
            bounds(j, row, head, allowed);
            for (uint32_t c = 0; c < j->width; c++) {
                const size_t i = (row * j->n_heads + head) * j->width + c;

                if (j->n_visible[row] == 0 ? got[i] != 0.0f : !(fabs((double)got[i] - (double)want[i]) <= allowed[c]))
                    fail_msg("format %u, %u / %u heads x %u, pages of %u, %zu positions, row %zu of %zu, head %zu, channel %u: "
                             "%g, wanted %g +- %g",
                             j->format, j->n_heads, j->n_kv, j->width, j->page_rows, (size_t)j->n_visible[row], row, j->n_rows,
                             head, c, (double)got[i], (double)want[i], allowed[c]);
            }
        }
}

static float *new_out(const job *j)
{
    float *out = calloc(out_floats(j) + 1, sizeof *out);

    assert_non_null(out);
    return out;
}

static void check(const job *j)
{
    float *got = new_out(j), *want = new_out(j);

    run_cpu(j, want);
    gpu_run(run, j, got, out_floats(j) * sizeof *got);
    compare(j, got, want);
    free(got);
    free(want);
}

/* ---- shapes ---- */

typedef struct shape {
    uint32_t width, n_heads, n_kv, page_rows;
    size_t   n_pos, n_rows;
} shape;

static void check_shape(uint32_t format, const shape *s, int has_sink)
{
    job j;

    job_init(&j, format, s->width, s->n_heads, s->n_kv, s->page_rows, s->n_pos, s->n_rows);
    if (has_sink)
        add_sink(&j, 3.0f);
    check(&j);
    job_free(&j);
}

static void test_every_format(void **state)
{
    static const shape shapes[] = {{32, 1, 1, 16, 1, 1},   {64, 4, 1, 64, 65, 2},  {96, 6, 2, 8, 37, 1},   {128, 8, 2, 32, 50, 1},
                                   {160, 9, 1, 48, 17, 1}, {128, 12, 1, 16, 20, 1}, {256, 3, 1, 5, 21, 1},
                                   {32, 64, 1, 24, 18, 1}, {224, 2, 2, 1, 7, 1},   {64, 17, 1, 7, 16, 3},
                                   {32, 5, 5, 64, 15, 1},  {192, 8, 1, 64, 80, 1}};

    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            check_shape(formats[f], &shapes[i], (i + f) % 2);
}

/* Every length around a step of a warp and of a block, for the stages of the copies. */
static void test_lengths(void **state)
{
    static const size_t lengths[] = {2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 191, 193, 300};

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        check_shape(formats[i % N_FORMATS], &(shape){32, 4, 1, i % 2 ? 16 : 20, lengths[i], 1}, 0);
}

static void test_chunks_one_by_one_and_apart(void **state)
{
    static const size_t lengths[] = {1024, 1025, 2100, 17 * 1024 + 5};

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        job    j;
        float *whole, *split;

        job_init(&j, formats[(2 * i + 4) % N_FORMATS], 32, 2, 1, 32, lengths[i], 2);
        j.n_visible[1] = lengths[i] / 3;
        add_sink(&j, 2.0f);
        whole = new_out(&j);
        split = new_out(&j);
        run(&j, whole);
        j.max_visible = lengths[i] + (i % 2) * 3000;
        run(&j, split);
        assert_memory_equal(whole, split, out_floats(&j) * sizeof *whole);
        if (i < 3) {
            check(&j);
        } else {
            run_cpu(&j, whole);
            compare(&j, split, whole);
        }
        free(whole);
        free(split);
        job_free(&j);
    }
}

/* A row's bits are its own: alone, and among others with other lengths. */
static void test_rows_do_not_mix(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++) {
        job    j, one;
        float *all, *alone;
        size_t n;

        job_init(&j, formats[f], 64, 3, 1, f % 2 ? 9 : 16, 90, 4);
        j.max_visible = f % 3 ? 1500 : 0;
        all = new_out(&j);
        alone = new_out(&j);
        n = (size_t)j.n_heads * j.width;
        run(&j, all);
        for (size_t row = 0; row < j.n_rows; row++) {
            one = j;
            one.q = j.q + row * n;
            one.n_rows = 1;
            one.n_visible[0] = j.n_visible[row];
            one.max_visible = row % 2 ? 1100 : 0;
            run(&one, alone);
            assert_memory_equal(alone, all + row * n, n * sizeof *all);
        }
        free(all);
        free(alone);
        job_free(&j);
    }
}

/* ---- numbers ---- */

static void test_queries_of_any_size(void **state)
{
    static const float sizes[] = {0.0f, 1e-38f, 1e-20f, 1e-4f, 7e4f, 1e8f, 1e20f};

    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            job j;

            job_init(&j, formats[f], 32, 2, 1, 16, 20, 1);
            fill(j.q, out_floats(&j), sizes[i] * 2.0f);
            j.scale = sizes[i] > 1e-30f ? 3.0f / sizes[i] : 1.0f; /* scores of some ten */
            add_sink(&j, 30.0f);
            check(&j);
            job_free(&j);
        }
}

/* Codes and scales that no encoder makes: every byte there is, but scales that leave the fp32 range for scores. */
static void test_any_codes(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++) {
        job    j;
        size_t scale_at, n_scales;

        job_init(&j, formats[f], 64, 2, 1, 16, 40, 1);
        for (size_t is_value = 0; is_value < 2; is_value++)
            for (size_t pos = 0; pos < j.n_pos; pos++) {
                uint8_t *row = row_of(&j, 0, is_value, pos);
                float    x[64];
                bool     is_finite;

                do {
                    for (size_t i = 0; i < j.row_bytes; i++)
                        row[i] = (uint8_t)prng();
                    n_scales = j.format == KVCSA_FORMAT_FP4_E4M3_G16 ? 4 : 2;
                    scale_at = j.row_bytes - n_scales;
                    if (j.format == KVCSA_FORMAT_FP8_E8M0_G32 || j.format == KVCSA_FORMAT_FP4_E8M0_G32)
                        for (size_t i = 0; i < n_scales; i++)
                            row[scale_at + i] = (uint8_t)(is_value ? prng() % 240 : 90 + prng() % 36);
                    kvi_row_decode(j.format, row, j.width, x);
                    is_finite = true;
                    for (size_t i = 0; i < j.width; i++)
                        is_finite = is_finite && fabsf(x[i]) < 1e36f;
                } while (!is_finite);
            }
        j.scale = j.format == KVCSA_FORMAT_BF16 ? 1e-36f : 1e-5f;
        check(&j);
        job_free(&j);
    }
}

static void check_nans(const job *j)
{
    float *got = new_out(j), *want = new_out(j);

    run_cpu(j, want);
    gpu_run(run, j, got, out_floats(j) * sizeof *got);
    for (size_t i = 0; i < out_floats(j); i++)
        if (!isnan(got[i]) != !isnan(want[i]) || (!isnan(got[i]) && fabsf(got[i] - want[i]) > 1e-3f))
            fail_msg("format %u [%zu]: %g, wanted %g", j->format, i, (double)got[i], (double)want[i]);
    free(got);
    free(want);
}

static void test_nan_reaches_what_it_should(void **state)
{
    float x[64];

    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++) {
        job j;

        for (int what = 0; what < 4; what++) { /* key, value, query, a key that is not visible */
            job_init(&j, formats[f], 64, 4, 2, 16, 40, 1);
            fill(x, 64, 1.0f);
            x[37] = NAN;
            if (what == 0)
                kvi_row_encode(j.format, x, 64, row_of(&j, 1, 0, 21));
            if (what == 1)
                kvi_row_encode(j.format, x, 64, row_of(&j, 1, 1, 39));
            if (what == 2)
                j.q[64 + 5] = NAN;
            if (what == 3) {
                kvi_row_encode(j.format, x, 64, row_of(&j, 0, 0, 38));
                kvi_row_encode(j.format, x, 64, row_of(&j, 1, 1, 39));
                j.n_visible[0] = 38;
            }
            check_nans(&j);
            job_free(&j);
        }
    }
}

/* An infinite query: NaN where some score is +infinity, zero weight where it is -infinity, as on the CPU. */
static void test_infinite_query(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++) {
        job j;

        job_init(&j, formats[f], 32, 2, 1, 16, 40, 1);
        j.q[3] = INFINITY;
        check_nans(&j);
        job_free(&j);
    }
}

static void test_scores_far_apart(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++) {
        job j;

        job_init(&j, formats[f], 64, 2, 1, 16, 70, 1);
        j.scale = 20.0f; /* one weight is 1, most are 0 */
        add_sink(&j, 100.0f);
        check(&j);
        job_free(&j);
    }
}

/* ---- refused ---- */

static void refuse(kvi_paged_attend_params p, const char *text)
{
    kvcsa_error err = {0};

    assert_int_equal(gpu_ops->paged_attend(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

static void test_refused(void **state)
{
    const kvi_paged_attend_params good = {.n_rows = 1, .n_heads = 4, .n_kv_heads = 2, .width = 64, .page_rows = 16,
                                          .format = KVCSA_FORMAT_F16, .scale = 1.0f};
    kvi_paged_attend_params       p = good;

    (void)state;
    p.width = 288;
    refuse(p, "up to 256");
    p.width = 48;
    refuse(p, "multiples of 32");
    p = good;
    p.n_heads = 130;
    refuse(p, "1 to 64");
    p.n_heads = 3;
    refuse(p, "3 heads on 2");
    p = good;
    p.page_off = 8;
    refuse(p, "multiple of 16");
    p = good;
    p.format = KVCSA_FORMAT_F32;
    refuse(p, "format 4");
    p = good;
    p.max_visible = UINT64_MAX;
    refuse(p, "chunks");
    p = good;
    p.n_rows = 0;
    GPU(paged_attend, &p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_every_format),
    cmocka_unit_test(test_lengths),
    cmocka_unit_test(test_chunks_one_by_one_and_apart),
    cmocka_unit_test(test_rows_do_not_mix),
    cmocka_unit_test(test_queries_of_any_size),
    cmocka_unit_test(test_any_codes),
    cmocka_unit_test(test_nan_reaches_what_it_should),
    cmocka_unit_test(test_infinite_query),
    cmocka_unit_test(test_scores_far_apart),
    cmocka_unit_test(test_refused),
};

CUDA_MAIN(tests)
