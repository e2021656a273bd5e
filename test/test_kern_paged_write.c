/* Keys and values of heads into pages, at every mask of this machine and with 1 to 3 threads: the bytes of kvi_row_encode, row by
 * row, and no other byte; then attention over them against softmax in double over the rows as they decode. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "cpu/cpu_ops.h"
#include "format/row.h"
#include "support/prng.h"

enum { MAX_MASKS = 4, N_THREADS = 3, MAX_PAGES = 400, FORMATS = 10, OFF = 13, TAIL = 7, UNTOUCHED = 0xA7 };

static uint64_t        seed;
static kvcsa_allocator memory;
static kvi_threads    *threads[N_THREADS]; /* of 1, 2 and 3 */
static uint32_t        masks[MAX_MASKS];
static size_t          n_masks;

static void find_masks(void)
{
#if defined(KVI_ARCH_ARM64)
    const uint32_t all[] = {0, KVCSA_CPU_NEON, KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD};
#else
    const uint32_t all[] = {0, KVCSA_CPU_AVX2, KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512};
#endif
    const uint32_t here = kvi_cpu_flags(0);

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if ((all[i] & ~here) == 0)
            masks[n_masks++] = all[i];
        else
            print_message("mask %#x is not of this machine: skipped\n", all[i]);
    }
}

/* ---------------------------------------------------------------- rows and pages */

typedef struct shape {
    uint32_t format, width, n_kv, page_rows;
    size_t   first, n_rows;
} shape;

typedef struct job {
    shape    s;
    size_t   row_bytes, page_bytes, n_pages; /* from the page of position 0 on */
    size_t   row_stride[2], head_stride[2];  /* of keys and of values */
    float   *x[2];
    uint8_t *pages[MAX_PAGES]; /* each ends where its memory ends */
    uint8_t *want[MAX_PAGES];
} job;

static uint8_t *new_page(const job *j)
{
    uint8_t *page = malloc(j->page_bytes);

    assert_non_null(page);
    return memset(page, UNTOUCHED, j->page_bytes);
}

static const float *row_of_x(const job *j, size_t is_value, size_t row, size_t head)
{
    return j->x[is_value] + row * j->row_stride[is_value] + head * j->head_stride[is_value];
}

static uint8_t *row_of(const job *j, uint8_t *const *pages, size_t head, size_t is_value, size_t pos)
{
    return pages[pos / j->s.page_rows] + OFF + ((2 * head + is_value) * j->s.page_rows + pos % j->s.page_rows) * j->row_bytes;
}

/* Numbers of many sizes; with `special`, NaN and infinity among them. */
static void values(prng *r, float *x, size_t n, int special)
{
    static const uint32_t bits[] = {0x7fc00001, 0x7f800000, 0xff800000, 0x80000001, 0x477ff000, 0x7f7fffff};

    for (size_t i = 0; i < n; i++)
        x[i] = special && prng_below(r, 100) == 0
                   ? kvi_bits_f32(bits[prng_below(r, 6)])
                   : prng_normal(r) * (special ? ldexpf(1, (int)(i / 16 % 9) - 4) : 1.0f);
}

static void job_init(job *j, prng *r, const shape *s, int special)
{
    *j = (job){.s = *s, .row_bytes = kvi_format_row_bytes(s->format, s->width)};
    j->page_bytes = OFF + (size_t)2 * s->n_kv * s->page_rows * j->row_bytes + TAIL;
    j->n_pages = (s->first + s->n_rows) / s->page_rows + 1;
    assert_true(j->row_bytes > 0 && j->n_pages <= MAX_PAGES);
    for (size_t is_value = 0; is_value < 2; is_value++) {
        const int    by_head = prng_below(r, 4) == 0;
        const size_t width = s->width + prng_below(r, 3);
        const size_t rows = by_head ? width : width * s->n_kv + prng_below(r, 5);
        size_t       n;

        j->row_stride[is_value] = rows;
        j->head_stride[is_value] = by_head ? rows * s->n_rows : width;
        n = (s->n_rows - 1) * rows + (s->n_kv - 1) * j->head_stride[is_value] + s->width;
        assert_non_null(j->x[is_value] = malloc(n * sizeof(float)));
        values(r, j->x[is_value], n, special);
    }
    for (size_t i = 0; i < j->n_pages; i++) {
        j->pages[i] = new_page(j);
        j->want[i] = new_page(j);
    }
    for (size_t i = 0; i < s->n_rows; i++)
        for (size_t h = 0; h < s->n_kv; h++)
            for (size_t is_value = 0; is_value < 2; is_value++)
                kvi_row_encode(s->format, row_of_x(j, is_value, i, h), s->width, row_of(j, j->want, h, is_value, s->first + i));
}

static void job_free(job *j)
{
    for (size_t i = 0; i < j->n_pages; i++) {
        free(j->pages[i]);
        free(j->want[i]);
    }
    free(j->x[0]);
    free(j->x[1]);
}

static kvi_paged_write_params write_params(const job *j)
{
    return (kvi_paged_write_params){.k = j->x[0], .v = j->x[1], .pages = (uint8_t *const *)j->pages,
                                    .k_row_stride = j->row_stride[0], .k_head_stride = j->head_stride[0],
                                    .v_row_stride = j->row_stride[1], .v_head_stride = j->head_stride[1],
                                    .first = j->s.first, .page_off = OFF, .n_rows = j->s.n_rows, .n_kv_heads = j->s.n_kv,
                                    .width = j->s.width, .page_rows = j->s.page_rows, .format = j->s.format};
}

/* Calls for `step` rows each. */
static void write_rows(kvi_device *dev, job *j, size_t step)
{
    for (size_t i = 0; i < j->n_pages; i++)
        memset(j->pages[i], UNTOUCHED, j->page_bytes);
    for (size_t i = 0; i < j->s.n_rows; i += step) {
        kvi_paged_write_params p = write_params(j);

        p.first += i;
        p.k += i * p.k_row_stride;
        p.v += i * p.v_row_stride;
        p.n_rows = j->s.n_rows - i < step ? j->s.n_rows - i : step;
        assert_int_equal(kvi_cpu_paged_write(dev, &p, NULL), KVCSA_OK);
    }
}

static void check_pages(const job *j, uint32_t mask, size_t n_threads)
{
    for (size_t page = 0; page < j->n_pages; page++)
        for (size_t i = 0; i < j->page_bytes; i++)
            if (j->pages[page][i] != j->want[page][i])
                fail_msg("mask %#x, %zu threads, format %u, %u heads of %u, pages of %u, %zu rows from %zu on: page %zu, byte %zu "
                         "is %02x, wanted %02x",
                         mask, n_threads, j->s.format, j->s.n_kv, j->s.width, j->s.page_rows, j->s.n_rows, j->s.first, page, i,
                         j->pages[page][i], j->want[page][i]);
}

static void check_shape(prng *r, const shape *s)
{
    job j;

    job_init(&j, r, s, 1);
    for (size_t m = 0; m < n_masks; m++)
        for (size_t t = 0; t < N_THREADS; t++) {
            kvi_device dev;

            kvi_cpu_device_init(&dev, &memory, threads[t], masks[m]);
            write_rows(&dev, &j, t == 0 ? 1 + prng_below(r, s->n_rows) : s->n_rows);
            check_pages(&j, masks[m], t + 1);
        }
    job_free(&j);
}

static void test_paged_write_is_row_by_row(void **state)
{
    static const shape shapes[] = {
        /* width, heads, rows of a page, first position, rows; all formats come in these widths */
        {0, 128, 4, 16, 0, 300}, {0, 128, 8, 64, 63, 2}, {0, 64, 3, 5, 3, 40},   {0, 32, 1, 1, 9, 7},
        {0, 96, 2, 7, 7, 7},     {0, 256, 1, 3, 2, 1},   {0, 160, 33, 4, 1, 12}, {0, 1120, 2, 2, 5, 30},
    };
    prng r;

    (void)state;
    prng_init(&r, seed);
    for (uint32_t f = 1; f <= FORMATS; f++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            shape s = shapes[i];

            s.format = f;
            check_shape(&r, &s);
        }
    for (uint32_t width = 1; width < 20; width += 3) { /* formats without groups */
        check_shape(&r, &(shape){KVCSA_FORMAT_F32, width, 3, 4, 2, 9});
        check_shape(&r, &(shape){KVCSA_FORMAT_F16, width, 2, 4, 3, 9});
        check_shape(&r, &(shape){KVCSA_FORMAT_BF16, width, 1, 4, 0, 9});
    }
}

/* ---------------------------------------------------------------- attention over them */

/* Head h of a query of `ratio` heads a KV head, over all positions in front of `end`; rows as they decode. */
static void attend_head(const job *j, const float *q, size_t kv, size_t end, double scale, double *out)
{
    double *p = malloc(end * sizeof *p), den = 0, max = -INFINITY;
    float   x[256];

    assert_non_null(p);
    for (size_t i = 0; i < end; i++) {
        kvi_row_decode(j->s.format, row_of(j, j->want, kv, 0, i), j->s.width, x);
        p[i] = 0;
        for (size_t c = 0; c < j->s.width; c++)
            p[i] += scale * (double)q[c] * (double)x[c];
        max = fmax(max, p[i]);
    }
    for (size_t i = 0; i < end; i++)
        den += p[i] = exp(p[i] - max);
    memset(out, 0, j->s.width * sizeof *out);
    for (size_t i = 0; i < end; i++) {
        kvi_row_decode(j->s.format, row_of(j, j->want, kv, 1, i), j->s.width, x);
        for (size_t c = 0; c < j->s.width; c++)
            out[c] += p[i] / den * (double)x[c];
    }
    free(p);
}

enum { RATIO = 3 };

static void check_attend(kvi_device *dev, const job *j, const float *q, float *out)
{
    const uint64_t                n_visible = j->s.n_rows;
    const size_t                  n_heads = (size_t)RATIO * j->s.n_kv, width = j->s.width;
    const kvi_paged_attend_params p = {.q = q, .out = out, .pages = (uint8_t *const *)j->pages, .n_visible = &n_visible,
                                       .page_off = OFF, .n_rows = 1, .n_heads = (uint32_t)n_heads, .n_kv_heads = j->s.n_kv,
                                       .width = j->s.width, .page_rows = j->s.page_rows, .format = j->s.format,
                                       .scale = 1.0f / sqrtf((float)width)};
    double                        want[256];

    assert_int_equal(kvi_cpu_paged_attend(dev, &p, NULL), KVCSA_OK);
    for (size_t h = 0; h < n_heads; h++) {
        attend_head(j, q + h * width, h / RATIO, j->s.n_rows, (double)p.scale, want);
        /* test_kern_paged.c has the bound: below 2^-14 of the values, which are of the size of 1, at these lengths. Another row
         * or head is as far away as the values are large. */
        for (size_t c = 0; c < width; c++)
            if (!(fabs((double)out[h * width + c] - want[c]) < 0x1p-12))
                fail_msg("mask %#x, format %u, head %zu, channel %zu: %g, wanted %g", dev->flags, j->s.format, h, c,
                         (double)out[h * width + c], want[c]);
    }
}

static void test_what_is_written_is_attended_over(void **state)
{
    static const shape shapes[] = {{0, 64, 2, 16, 0, 130}, {0, 128, 3, 7, 0, 25}, {0, 32, 1, 64, 0, 1}};
    prng               r;

    (void)state;
    prng_init(&r, seed + 1);
    for (uint32_t f = 1; f <= FORMATS; f++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            shape  s = shapes[i];
            size_t n = (size_t)RATIO * s.n_kv * s.width;
            float *q = malloc(n * sizeof *q), *out = malloc(n * sizeof *out);
            job    j;

            assert_true(q && out);
            s.format = f;
            job_init(&j, &r, &s, 0);
            for (size_t c = 0; c < n; c++)
                q[c] = prng_normal(&r);
            for (size_t m = 0; m < n_masks; m++) {
                kvi_device dev;

                kvi_cpu_device_init(&dev, &memory, threads[m % N_THREADS], masks[m]);
                write_rows(&dev, &j, s.n_rows);
                check_attend(&dev, &j, q, out);
            }
            job_free(&j);
            free(q);
            free(out);
        }
}

/* ---------------------------------------------------------------- refused */

static void test_paged_write_refuses_formats(void **state)
{
    const float            x[64] = {0};
    uint8_t                page[256];
    uint8_t *const         pages[] = {page};
    kvi_paged_write_params p = {.k = x, .v = x, .pages = pages, .n_rows = 1, .n_kv_heads = 1, .width = 32, .page_rows = 1};
    kvi_device             dev;
    kvcsa_error            err = {0};

    (void)state;
    memset(page, UNTOUCHED, sizeof page);
    kvi_cpu_device_init(&dev, &memory, threads[0], masks[n_masks - 1]);
    p.format = KVCSA_FORMAT_INT6; /* its cost is known, and no more */
    assert_int_equal(kvi_cpu_paged_write(&dev, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "paged keys: format 13 of 32 channels");
    p.format = KVCSA_FORMAT_Q8_0;
    p.width = 48;
    assert_int_equal(kvi_cpu_paged_write(&dev, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "paged keys: format 8 of 48 channels");
    p.width = 32;
    p.n_rows = 0;
    assert_int_equal(kvi_cpu_paged_write(&dev, &p, &err), KVCSA_OK);
    for (size_t i = 0; i < sizeof page; i++)
        assert_int_equal(page[i], UNTOUCHED);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paged_write_is_row_by_row),
        cmocka_unit_test(test_what_is_written_is_attended_over),
        cmocka_unit_test(test_paged_write_refuses_formats),
    };
    int failed;

    seed = prng_seed(argc, argv, 20270);
    kvi_allocator_import(NULL, &memory, NULL);
    for (uint32_t i = 0; i < N_THREADS; i++)
        if (kvi_threads_create(&memory, i + 1, NULL, &threads[i], NULL) != KVCSA_OK)
            return 1;
    find_masks();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < N_THREADS; i++)
        kvi_threads_destroy(threads[i]);
    return failed;
}
