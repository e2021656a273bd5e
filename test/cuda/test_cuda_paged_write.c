/* Keys and values of heads into pages on the device beside the CPU's, bit for bit, and no other byte. */
#include "cuda/cuda_check.h"

#include <stdio.h>
#include <string.h>

#include "format/row.h"
#include "plan/cache_plan.h"

enum { FORMATS = 10, MAX_PAGES = 20, TAIL = 5 };

typedef struct shape {
    uint32_t format, width, n_kv, page_rows;
    uint64_t first;
    size_t   n_rows;
} shape;

typedef struct job {
    shape    s;
    size_t   strides[4];  /* of rows and heads of keys, then of values */
    size_t   n_floats[2]; /* up to the last channel */
    float   *x[2];
    size_t   page_off, page_bytes, n_pages; /* pages that hold a position */
    size_t   page_at, x_at;                 /* bytes beyond a boundary of 256 */
    int      recorded;
} job;

/* Groups of different sizes, ties, and now and then a special value. */
static void values(float *x, size_t n)
{
    static const float special[] = {NAN, INFINITY, -INFINITY, 3e38f, -0.0f, 0x1p-149f, 65519.0f, 65520.0f, 0x1.01p0f};
    float              size = 1.0f;

    fill(x, n, 6.0f);
    for (size_t i = 0; i < n; i++) {
        if (i % 16 == 0)
            size = ldexpf(1.0f, (int)(prng() % 24) - 12);
        x[i] = prng() % 151 == 0 ? special[prng() % 9]
               : prng() % 5 == 0 ? (float)((int)(prng() % 49) - 24) * 0.25f * size
                                 : x[i] * size;
    }
}

/* `turn` chooses strides and addresses. */
static void job_init(job *j, const shape *s, size_t turn)
{
    static const size_t heads[] = {0, 3, 8}, rows[] = {0, 1, 40}, offs[] = {0, 48, 16, 3}, pages[] = {0, 16, 4, 2, 1},
                        floats[] = {0, 4, 8, 16};

    *j = (job){.s = *s, .page_off = offs[turn % 4], .page_at = pages[turn % 5], .x_at = floats[turn / 2 % 4]};
    for (size_t is_value = 0; is_value < 2; is_value++) {
        size_t *row = &j->strides[2 * is_value], *head = row + 1;

        *head = s->width + heads[(turn + is_value) % 3];
        *row = s->n_kv * *head + rows[(turn / 3 + is_value) % 3];
        if (turn % 7 == 6) { /* head by head */
            *row = s->width + 1;
            *head = s->n_rows * *row;
        }
        j->n_floats[is_value] = s->n_rows ? (s->n_rows - 1) * *row + (s->n_kv - 1) * *head + s->width : 0;
        assert_non_null(j->x[is_value] = malloc((j->n_floats[is_value] + 1) * sizeof(float)));
        values(j->x[is_value], j->n_floats[is_value]);
    }
    j->page_bytes = j->page_off + (size_t)2 * s->n_kv * s->page_rows * kvi_format_row_bytes(s->format, s->width) + TAIL;
    j->n_pages = s->n_rows ? (size_t)((s->first + s->n_rows - 1) / s->page_rows - s->first / s->page_rows) + 1 : 0;
    assert_true(j->n_pages <= MAX_PAGES);
}

static void job_free(job *j)
{
    free(j->x[0]);
    free(j->x[1]);
}

/* pages[0] is that of the first position; those in front of it are in no table. */
static kvi_paged_write_params params(const job *j, const float *k, const float *v, uint8_t *const *pages)
{
    return (kvi_paged_write_params){
        .k = k, .v = v, .k_row_stride = j->strides[0], .k_head_stride = j->strides[1], .v_row_stride = j->strides[2],
        .v_head_stride = j->strides[3], .first = j->s.first, .page_off = j->page_off, .n_rows = j->s.n_rows,
        .n_kv_heads = j->s.n_kv, .width = j->s.width, .page_rows = j->s.page_rows, .format = j->s.format,
        .pages = (uint8_t *const *)((uintptr_t)pages - j->s.first / j->s.page_rows * sizeof *pages)};
}

/* Once as it is, or from a graph. */
static void write_rows(const kvi_paged_write_params *p, int recorded)
{
    kvi_graph  *graph = NULL;
    kvcsa_error err = {0};

    if (recorded)
        must(gpu_ops->graph_begin(gpu, &err), &err);
    GPU(paged_write, p);
    if (!recorded)
        return;
    must(gpu_ops->graph_end(gpu, &graph, &err), &err);
    must(gpu_ops->graph_run(gpu, graph, &err), &err);
    must(gpu_ops->sync(gpu, &err), &err);
    gpu_ops->graph_free(gpu, graph);
}

static void run(const void *arg, void *out)
{
    const job     *j = arg;
    const float   *x[2];
    uint8_t       *pages[MAX_PAGES];
    const uint64_t before = emulated ? emu.launches() : 0;

    for (size_t i = 0; i < j->n_pages; i++)
        pages[i] = to_device_at(NULL, j->page_bytes, j->page_at);
    for (size_t i = 0; i < 2; i++)
        x[i] = to_device_at(j->x[i], j->n_floats[i] * sizeof(float), j->x_at);
    const kvi_paged_write_params p = params(j, x[0], x[1], table_to_device(pages, j->n_pages));

    write_rows(&p, j->recorded);
    for (size_t i = 0; i < j->n_pages; i++)
        from_device((uint8_t *)out + i * j->page_bytes, pages[i], j->page_bytes);
    if (emulated)
        assert_int_equal(emu.launches() - before, j->s.n_rows ? 1 : 0);
    device_free_all();
}

static void check(const job *j)
{
    const size_t size = j->n_pages * j->page_bytes;
    uint8_t     *got = malloc(size + 1), *want = malloc(size + 1), *pages[MAX_PAGES];

    assert_true(got && want);
    memset(want, GUARD, size); /* as to_device leaves it */
    for (size_t i = 0; i < j->n_pages; i++)
        pages[i] = want + i * j->page_bytes;
    const kvi_paged_write_params p = params(j, j->x[0], j->x[1], pages);

    CPU(paged_write, &p);
    gpu_run(run, j, got, size);
    for (size_t i = 0; i < size; i++)
        if (got[i] != want[i])
            fail_msg("format %u, %u heads of %u, pages of %u, %zu rows from %llu on: page %zu, byte %zu is %02x, wanted %02x",
                     j->s.format, j->s.n_kv, j->s.width, j->s.page_rows, j->s.n_rows, (unsigned long long)j->s.first,
                     i / j->page_bytes, i % j->page_bytes, got[i], want[i]);
    free(got);
    free(want);
}

static void check_shape(const shape *s, size_t turn, int recorded)
{
    job j;

    job_init(&j, s, turn);
    j.recorded = recorded;
    check(&j);
    job_free(&j);
}

/* ---- shapes ---- */

static void test_every_format(void **state)
{
    static const shape shapes[] = {
        /* width, heads, rows of a page, first position, rows */
        {0, 128, 8, 64, 0, 1},   {0, 128, 2, 16, 5, 30}, {0, 64, 3, 4, 3, 9},    {0, 32, 1, 1, 7, 5},  {0, 96, 5, 32, 31, 2},
        {0, 256, 2, 8, 8, 8},    {0, 512, 1, 3, 1, 4},   {0, 544, 2, 5, 12, 6},  {0, 1120, 1, 4, 2, 3}, {0, 64, 33, 128, 127, 1},
        {0, 192, 1, 64, 100, 0}, {0, 160, 4, 7, 6, 15},  {0, 224, 2, 24, 23, 2},
    };

    (void)state;
    prng_seed(41);
    for (uint32_t f = 1; f <= FORMATS; f++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            shape s = shapes[i];

            s.format = f;
            check_shape(&s, i + 13 * f, (i + f) % 5 == 0);
        }
}

/* Formats without groups, and those with groups of 16, in widths that fill no lane or no step. */
static void test_odd_widths(void **state)
{
    static const uint32_t any[] = {KVCSA_FORMAT_F32, KVCSA_FORMAT_F16, KVCSA_FORMAT_BF16};
    static const uint32_t by_16[] = {KVCSA_FORMAT_FP4_E4M3_G16, KVCSA_FORMAT_FP4_AS_F32};
    static const uint32_t widths[] = {1, 2, 3, 7, 127, 129, 511, 513};

    (void)state;
    prng_seed(42);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        for (size_t f = 0; f < 3; f++)
            check_shape(&(shape){any[f], widths[i], 2, 3, 2, 3}, i + f, 0);
        for (size_t f = 0; f < 2; f++)
            check_shape(&(shape){by_16[f], 16 + 32 * widths[i % 4], 3, 4, 1, 5}, i + f, 0);
    }
}

/* Positions that 32 bits do not hold. */
static void test_far_positions(void **state)
{
    (void)state;
    prng_seed(43);
    check_shape(&(shape){KVCSA_FORMAT_BF16, 64, 2, 16, ((uint64_t)1 << 36) + 13, 7}, 0, 0);
    check_shape(&(shape){KVCSA_FORMAT_Q8_0, 64, 2, 6, ((uint64_t)1 << 32) - 3, 9}, 1, 0);
}

/* One call for many rows writes what a call for each does. */
static void test_row_by_row(void **state)
{
    enum { ROWS = 11, PAGE_ROWS = 4 };
    const shape s = {KVCSA_FORMAT_FP4_E4M3_G16, 128, 2, PAGE_ROWS, 3, ROWS};
    job         j;

    (void)state;
    prng_seed(44);
    job_init(&j, &s, 1);
    uint8_t *all = malloc(j.n_pages * j.page_bytes), *one = malloc(j.n_pages * j.page_bytes), *pages[MAX_PAGES];

    assert_true(all && one);
    run(&j, all);
    for (size_t i = 0; i < j.n_pages; i++)
        pages[i] = to_device_at(NULL, j.page_bytes, j.page_at);
    kvi_paged_write_params p = params(&j, to_device(j.x[0], j.n_floats[0] * sizeof(float)),
                                      to_device(j.x[1], j.n_floats[1] * sizeof(float)), table_to_device(pages, j.n_pages));

    p.n_rows = 1;
    for (size_t i = 0; i < ROWS; i++) {
        GPU(paged_write, &p);
        p.first++;
        p.k += p.k_row_stride;
        p.v += p.v_row_stride;
    }
    for (size_t i = 0; i < j.n_pages; i++)
        from_device(one + i * j.page_bytes, pages[i], j.page_bytes);
    device_free_all();
    assert_memory_equal(one, all, j.n_pages * j.page_bytes);
    free(all);
    free(one);
    job_free(&j);
}

/* ---- what paged_attend reads ---- */

enum { R_WIDTH = 64, R_KV = 3, R_HEADS = 6, R_PAGE_ROWS = 4, R_ROWS = 7, R_PAGES = 2, R_OFF = 48, R_FLOATS = R_ROWS * R_KV * R_WIDTH };

/* Written and read on the device. */
static void write_and_attend(uint32_t format, const float *k, const float *v, const float *q, float *out)
{
    const size_t   bytes = R_OFF + (size_t)2 * R_KV * R_PAGE_ROWS * kvi_format_row_bytes(format, R_WIDTH);
    const uint64_t n_visible = R_ROWS;
    uint8_t       *pages[R_PAGES] = {to_device(NULL, bytes), to_device(NULL, bytes)};
    uint8_t *const *table = table_to_device(pages, R_PAGES);
    const kvi_paged_write_params  w = {.k = to_device(k, R_FLOATS * sizeof *k), .v = to_device(v, R_FLOATS * sizeof *v),
                                       .pages = table, .k_row_stride = R_KV * R_WIDTH, .k_head_stride = R_WIDTH,
                                       .v_row_stride = R_KV * R_WIDTH, .v_head_stride = R_WIDTH, .page_off = R_OFF,
                                       .n_rows = R_ROWS, .n_kv_heads = R_KV, .width = R_WIDTH, .page_rows = R_PAGE_ROWS,
                                       .format = format};
    const kvi_paged_attend_params a = {.q = to_device(q, R_HEADS * R_WIDTH * sizeof *q),
                                       .out = to_device(NULL, R_HEADS * R_WIDTH * sizeof *out), .pages = table,
                                       .n_visible = to_device(&n_visible, sizeof n_visible), .page_off = R_OFF, .n_rows = 1,
                                       .n_heads = R_HEADS, .n_kv_heads = R_KV, .width = R_WIDTH, .page_rows = R_PAGE_ROWS,
                                       .format = format, .scale = 0.125f};

    GPU(paged_write, &w);
    GPU(paged_attend, &a);
    from_device(out, a.out, R_HEADS * R_WIDTH * sizeof *out);
    device_free_all();
}

/* Softmax in double over rows [R_ROWS, R_KV, R_WIDTH]. */
static void attend_rows(const float *k, const float *v, const float *q, double *out)
{
    for (size_t h = 0; h < R_HEADS; h++) {
        const size_t kv = h / (R_HEADS / R_KV);
        double       p[R_ROWS], den = 0;

        for (size_t i = 0; i < R_ROWS; i++) {
            double sum = 0;

            for (size_t c = 0; c < R_WIDTH; c++)
                sum += (double)q[h * R_WIDTH + c] * (double)k[(i * R_KV + kv) * R_WIDTH + c];
            den += p[i] = exp(0.125 * sum);
        }
        for (size_t c = 0; c < R_WIDTH; c++) {
            out[h * R_WIDTH + c] = 0;
            for (size_t i = 0; i < R_ROWS; i++)
                out[h * R_WIDTH + c] += p[i] / den * (double)v[(i * R_KV + kv) * R_WIDTH + c];
        }
    }
}

static void round_trip(uint32_t format, float *x)
{
    uint8_t row[4 * R_WIDTH];

    for (size_t i = 0; i < R_FLOATS; i += R_WIDTH) {
        assert_int_equal(kvi_row_encode(format, x + i, R_WIDTH, row), 0);
        kvi_row_decode(format, row, R_WIDTH, x + i);
    }
}

/* Every format that the device attends over it can also write, where it reads it. */
static void test_what_is_written_is_read(void **state)
{
    kvi_features features = {0};
    size_t       n_read = 0;

    (void)state;
    prng_seed(45);
    gpu_ops->features(&features);
    for (uint32_t format = 1; format < 64; format++) {
        float  k[R_FLOATS], v[R_FLOATS], q[R_HEADS * R_WIDTH], out[R_HEADS * R_WIDTH];
        double want[R_HEADS * R_WIDTH];

        if (!(features.paged_formats >> format & 1u))
            continue;
        n_read++;
        fill(k, R_FLOATS, 2.0f);
        fill(v, R_FLOATS, 2.0f);
        fill(q, R_HEADS * R_WIDTH, 2.0f);
        write_and_attend(format, k, v, q, out);
        round_trip(format, k);
        round_trip(format, v);
        attend_rows(k, v, q, want);
        /* test_cuda_paged.c has the bound, 2^-16 of the values here at most; what is looked for, another row or head, is of the
         * size of the values. */
        for (size_t i = 0; i < R_HEADS * R_WIDTH; i++)
            if (!(fabs((double)out[i] - want[i]) < 0x1p-12))
                fail_msg("format %u [%zu]: %g, wanted %g", format, i, (double)out[i], want[i]);
    }
    assert_int_equal(n_read, 7);
}

/* ---- refused ---- */

static void refuse(kvi_paged_write_params p, const char *text)
{
    kvcsa_error err = {0};

    assert_int_equal(gpu_ops->paged_write(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

static void test_refused(void **state)
{
    const kvi_paged_write_params good = {.n_rows = 1, .n_kv_heads = 2, .width = 64, .page_rows = 16,
                                         .format = KVCSA_FORMAT_Q8_0};
    kvi_paged_write_params       p = good;
    const uint64_t               before = emulated ? emu.launches() : 0;

    (void)state;
    p.format = KVCSA_FORMAT_INT6;
    refuse(p, "format 13 is not stored");
    p.format = KVCSA_FORMAT_NONE;
    refuse(p, "format 0 is not stored");
    p = good;
    p.width = 48;
    refuse(p, "heads of 48 channels; multiples of 32 up to 65536 in format 8");
    p.width = 0;
    refuse(p, "heads of 0 channels");
    p.width = 65536 + 32;
    refuse(p, "heads of 65568 channels");
    p = good;
    p.n_kv_heads = 0;
    refuse(p, "0 KV heads");
    p = good;
    p.page_rows = 0;
    refuse(p, "pages of 0 rows");
    p = good;
    p.n_rows = (size_t)1 << 29; /* times 4 is one more than a launch counts */
    refuse(p, "536870912 rows of 2 KV heads of 64, at most 2^31 - 1");
    p.n_rows = SIZE_MAX;
    refuse(p, "at most 2^31 - 1");
    p = good;
    p.n_kv_heads = UINT32_MAX;
    refuse(p, "at most 2^31 - 1");
    p = good;
    p.n_rows = 0;
    GPU(paged_write, &p);
    if (emulated)
        assert_int_equal(emu.launches(), before);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_every_format),
    cmocka_unit_test(test_odd_widths),
    cmocka_unit_test(test_far_positions),
    cmocka_unit_test(test_row_by_row),
    cmocka_unit_test(test_what_is_written_is_read),
    cmocka_unit_test(test_refused),
};

CUDA_MAIN(tests)
