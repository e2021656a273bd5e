/* Attention over paged keys and values, at every mask of this machine.
 *
 * Two oracles that share nothing with the kernels but kvi_row_decode (test_row.c): softmax in double, with a bound, and the order
 * of cpu/paged_kernels.h one operation after the other, for bits, in both numerics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fmath.h"
#include "cpu/cpu_ops.h"
#include "format/row.h"
#include "support/fault_alloc.h"
#include "support/prng.h"

enum { MAX_MASKS = 4, N_THREADS = 3, GUARD = 64, TILE = 64, CHUNK = KVI_PAGED_CHUNK };

static uint64_t     seed;
static fault_alloc  memory;
static kvi_threads *threads[N_THREADS]; /* of 1, 2 and 3 */
static uint32_t     masks[MAX_MASKS];
static size_t       n_masks;

static const uint32_t formats[] = {KVCSA_FORMAT_F16,          KVCSA_FORMAT_BF16,         KVCSA_FORMAT_FP8_E8M0_G32, KVCSA_FORMAT_Q8_0,
                                   KVCSA_FORMAT_FP4_E4M3_G16, KVCSA_FORMAT_FP4_E8M0_G32, KVCSA_FORMAT_Q4_0,         KVCSA_FORMAT_F32};
enum { N_FORMATS = sizeof formats / sizeof *formats };

/* ---------------------------------------------------------------- devices */

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

static void device_init(kvi_device *dev, uint32_t mask, size_t n_threads)
{
    memset(dev, 0, sizeof *dev);
    dev->allocator = memory.hook;
    dev->threads = threads[n_threads - 1];
    dev->flags = mask;
    kvi_paged_init(&dev->paged, mask);
}

/* ---------------------------------------------------------------- keys and values */

typedef struct kv {
    uint32_t  format;
    uint32_t  width;
    uint32_t  n_heads;
    uint32_t  n_kv;
    uint32_t  page_rows;
    size_t    n_pos;
    size_t    row_bytes;
    size_t    page_off;
    size_t    n_pages;
    uint8_t  *rows;  /* [n_kv, 2, n_pos, row_bytes] */
    float    *x;     /* the same, decoded: [n_kv, 2, n_pos, width] */
    uint8_t **pages; /* unaligned, and each ends where its memory ends */
    void    **raw;
} kv;

static void kv_free_pages(kv *s)
{
    for (size_t i = 0; i < s->n_pages; i++)
        free(s->raw[i]);
    free(s->raw);
    free(s->pages);
}

static void kv_free(kv *s)
{
    kv_free_pages(s);
    free(s->rows);
    free(s->x);
}

/* Pages of the rows. Rows behind the last position are NaN in most formats. */
static void kv_make_pages(kv *s, uint32_t page_rows)
{
    s->page_rows = page_rows;
    s->page_off = 24;
    s->n_pages = (s->n_pos + page_rows - 1) / page_rows;
    s->pages = malloc((s->n_pages + 1) * sizeof *s->pages);
    s->raw = malloc((s->n_pages + 1) * sizeof *s->raw);
    for (size_t page = 0; page < s->n_pages; page++) {
        const size_t bytes = s->page_off + (size_t)s->n_kv * 2 * page_rows * s->row_bytes;
        const size_t shift = page * 7 % 16;

        s->raw[page] = malloc(bytes + shift);
        memset(s->raw[page], 0xff, bytes + shift);
        s->pages[page] = (uint8_t *)s->raw[page] + shift;
        for (size_t part = 0; part < 2 * s->n_kv; part++)
            for (size_t r = 0; r < page_rows && page * page_rows + r < s->n_pos; r++)
                memcpy(s->pages[page] + s->page_off + (part * page_rows + r) * s->row_bytes,
                       s->rows + (part * s->n_pos + page * page_rows + r) * s->row_bytes, s->row_bytes);
    }
}

static void kv_decode(kv *s)
{
    for (size_t i = 0; i < 2 * s->n_kv * s->n_pos; i++)
        kvi_row_decode(s->format, s->rows + i * s->row_bytes, s->width, s->x + i * s->width);
}

static void kv_init(kv *s, prng *r, uint32_t format, uint32_t width, uint32_t n_heads, uint32_t n_kv, uint32_t page_rows, size_t n_pos)
{
    const size_t n_rows = (size_t)2 * n_kv * n_pos;

    memset(s, 0, sizeof *s);
    s->format = format;
    s->width = width;
    s->n_heads = n_heads;
    s->n_kv = n_kv;
    s->n_pos = n_pos;
    s->row_bytes = kvi_format_row_bytes(format, width);
    s->rows = malloc(n_rows * s->row_bytes);
    s->x = malloc(n_rows * width * sizeof(float));
    for (size_t i = 0; i < n_rows; i++) {
        float *x = s->x + i * width;

        for (size_t c = 0; c < width; c++)
            x[c] = prng_normal(r);
        assert_int_equal(kvi_row_encode(format, x, width, s->rows + i * s->row_bytes), 0);
    }
    kv_decode(s);
    kv_make_pages(s, page_rows);
}

static const float *key_of(const kv *s, size_t head, size_t pos)
{
    return s->x + (head / (s->n_heads / s->n_kv) * 2 * s->n_pos + pos) * s->width;
}

static const float *value_of(const kv *s, size_t head, size_t pos)
{
    return key_of(s, head, pos) + s->n_pos * s->width;
}

/* ---------------------------------------------------------------- the operator */

typedef struct query {
    size_t    n_rows;
    float    *q; /* at an address of 4 modulo 16 */
    float    *sink;
    uint64_t *n_visible;
    float     scale;
} query;

static void query_init(query *x, prng *r, const kv *s, size_t n_rows, int has_sink)
{
    const size_t n = n_rows * s->n_heads * s->width;

    memset(x, 0, sizeof *x);
    x->n_rows = n_rows;
    x->scale = 1.0f / sqrtf((float)s->width);
    x->q = (float *)malloc((n + 1) * sizeof(float)) + 1;
    for (size_t i = 0; i < n; i++)
        x->q[i] = prng_normal(r) * 1.5f;
    if (has_sink) {
        x->sink = malloc(s->n_heads * sizeof(float));
        for (size_t i = 0; i < s->n_heads; i++)
            x->sink[i] = prng_normal(r);
    }
    x->n_visible = malloc(n_rows * sizeof *x->n_visible);
    for (size_t i = 0; i < n_rows; i++)
        x->n_visible[i] = i == 0 ? s->n_pos : prng_below(r, s->n_pos + 1);
}

static void query_free(query *x)
{
    free(x->q - 1);
    free(x->sink);
    free(x->n_visible);
}

static kvcsa_status try_run(kvi_device *dev, const kv *s, const query *x, float *out)
{
    const kvi_paged_attend_params p = {.q = x->q, .out = out, .pages = s->pages, .n_visible = x->n_visible, .sink = x->sink,
                                       .page_off = s->page_off, .n_rows = x->n_rows, .n_heads = s->n_heads, .n_kv_heads = s->n_kv,
                                       .width = s->width, .page_rows = s->page_rows, .format = s->format, .scale = x->scale};

    return kvi_cpu_paged_attend(dev, &p, NULL);
}

static void run(uint32_t mask, size_t n_threads, const kv *s, const query *x, float *out)
{
    const size_t bytes = x->n_rows * s->n_heads * s->width * sizeof(float);
    uint8_t     *guarded = malloc(bytes + 2 * GUARD + 4);
    kvi_device   dev;

    memset(guarded, 0xA7, bytes + 2 * GUARD + 4);
    device_init(&dev, mask, n_threads);
    assert_int_equal(try_run(&dev, s, x, (float *)(void *)(guarded + GUARD + 4)), KVCSA_OK);
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(guarded[i + 4], 0xA7);
        assert_int_equal(guarded[GUARD + 4 + bytes + i], 0xA7);
    }
    memcpy(out, guarded + GUARD + 4, bytes);
    free(guarded);
    assert_true(fault_alloc_is_clean(&memory));
}

static int same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void check_same(const char *what, uint32_t mask, const kv *s, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!same(a[i], b[i]))
            fail_msg("%s, mask %#x, format %u, %u / %u heads x %u, pages of %u, %zu positions: [%zu] is %a, wanted %a", what, mask,
                     s->format, s->n_heads, s->n_kv, s->width, s->page_rows, s->n_pos, i, (double)a[i], (double)b[i]);
}

/* ---------------------------------------------------------------- the order, one operation after the other */

/* v16_exp of cpu/v16.h */
static float exp_fused(float x)
{
    const float n = nearbyintf((x < -88.0f ? -88.0f : x > 89.0f ? 89.0f : x) * 1.44269504088896341f);
    float       r = fmaf(-n, -2.12194440e-4f, fmaf(-n, 0.693359375f, x));
    float       p = 1.9875691500e-4f;

    if (isnan(x))
        return x;
    if (x < -87.33654f)
        return 0.0f;
    if (x > 88.722839f)
        return INFINITY;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    return ldexpf(fmaf(p, r * r, r) + 1.0f, (int)n);
}

typedef struct arithmetic {
    float (*exp)(float x);
    float (*add_product)(float a, float b, float c); /* a b + c */
    size_t block;
    int    fused;
} arithmetic;

static float separate(float a, float b, float c)
{
    const volatile float product = a * b;

    return product + c;
}

static const arithmetic numerics[2] = {{kvi_expf, separate, SIZE_MAX, 0}, {exp_fused, fmaf, 1024, 1}};

static float fold(float *lanes)
{
    for (size_t half = 8; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lanes[i] = lanes[i] + lanes[i + half];
    return lanes[0];
}

static float dot(const arithmetic *a, const float *x, const float *y, size_t n)
{
    float sum = 0;

    for (size_t begin = 0; begin < n; begin += a->block) {
        float lanes[16] = {0};

        for (size_t i = begin; i < n && i - begin < a->block; i++)
            lanes[i % 16] = a->add_product(x[i], y[i], lanes[i % 16]);
        sum = begin == 0 ? fold(lanes) : sum + fold(lanes);
        if (n - begin <= a->block)
            break;
    }
    return sum;
}

typedef struct state {
    float max;
    float den;
    float out[1056];
} state;

static void state_init(state *t)
{
    memset(t, 0, sizeof *t);
    t->max = -1e30f;
}

static void add_tile(const arithmetic *a, const kv *s, const query *x, const float *q, size_t head, size_t begin, size_t end, state *t)
{
    float p[TILE] = {0};
    float max = t->max;
    float sum = 0;
    float f;

    for (size_t i = begin; i < end; i++) {
        p[i - begin] = dot(a, q, key_of(s, head, i), s->width) * x->scale;
        if (p[i - begin] > max)
            max = p[i - begin];
    }
    f = a->exp(t->max - max);
    for (size_t i = 0; i < end - begin; i++)
        p[i] = a->exp(p[i] - max);
    if (a->fused) {
        float lanes[16];

        for (size_t i = 0; i < 16; i++)
            lanes[i] = p[i] + p[i + 16] + p[i + 32] + p[i + 48];
        sum = fold(lanes);
    } else {
        for (size_t i = 0; i < end - begin; i++)
            sum = sum + p[i];
    }
    t->den = a->add_product(t->den, f, sum);
    t->max = max;
    for (size_t c = 0; c < s->width; c++) {
        t->out[c] = t->out[c] * f;
        for (size_t i = begin; i < end; i++)
            t->out[c] = a->add_product(p[i - begin], value_of(s, head, i)[c], t->out[c]);
    }
}

static void expect_head(const arithmetic *a, const kv *s, const query *x, size_t row, size_t head, float *out)
{
    static state all, chunk; /* large */
    const size_t n = x->n_visible[row];
    float        den;

    state_init(&all);
    for (size_t first = 0; first < n; first += CHUNK) {
        const size_t chunk_end = n - first < CHUNK ? n : first + CHUNK;
        float        max, f, w;

        state_init(&chunk);
        for (size_t begin = first; begin < chunk_end; begin += TILE)
            add_tile(a, s, x, x->q + (row * s->n_heads + head) * s->width, head, begin,
                     chunk_end - begin < TILE ? chunk_end : begin + TILE, &chunk);
        max = chunk.max > all.max ? chunk.max : all.max;
        f = a->exp(all.max - max);
        w = a->exp(chunk.max - max);
        all.max = max;
        all.den = a->add_product(w, chunk.den, all.den * f);
        for (size_t c = 0; c < s->width; c++)
            all.out[c] = a->add_product(w, chunk.out[c], all.out[c] * f);
    }
    den = x->sink ? all.den + a->exp(x->sink[head] - all.max) : all.den;
    for (size_t c = 0; c < s->width; c++)
        out[c] = n > 0 ? all.out[c] / den : 0.0f;
}

static void expect(const arithmetic *a, const kv *s, const query *x, float *out)
{
    for (size_t row = 0; row < x->n_rows; row++)
        for (size_t head = 0; head < s->n_heads; head++)
            expect_head(a, s, x, row, head, out + (row * s->n_heads + head) * s->width);
}

/* ---------------------------------------------------------------- softmax in double */

/* With u = 2^-24, W = width, n positions in T tiles:
 *   a score is off by d <= (W + 2) u scale sum |q k|, its distance to the maximum by u R, R = the largest distance;
 *   e^x adds 3 u (1.5 ulp): a weight is off by d + u R + 4 u of itself;
 *   each tile and chunk multiplies by e^(m - m'): at most T + n / CHUNK + 2 times, 3 u + u R + 2 u each;
 *   n additions to numerator and denominator: n u each.
 * A quotient is off by twice the sum, of the sum of |p v| / sum p. First order; 1.1 covers the rest. Weights below e^-87 are 0. */
static void check_close(uint32_t mask, const kv *s, const query *x, const float *out)
{
    const double u = 0x1p-24;

    for (size_t row = 0; row < x->n_rows; row++) {
        const size_t n = x->n_visible[row];
        double      *p = malloc((n + 1) * sizeof *p);

        for (size_t head = 0; head < s->n_heads; head++) {
            const float *q = x->q + (row * s->n_heads + head) * s->width;
            double       max = -INFINITY, low = INFINITY, den = 0, d = 0;

            for (size_t i = 0; i < n; i++) {
                double sum = 0, size = 0;

                for (size_t c = 0; c < s->width; c++) {
                    sum += (double)q[c] * (double)key_of(s, head, i)[c];
                    size += fabs((double)q[c] * (double)key_of(s, head, i)[c]);
                }
                p[i] = sum * (double)x->scale;
                d = fmax(d, (s->width + 2) * u * (double)x->scale * size);
                max = fmax(max, p[i]);
                low = fmin(low, p[i]);
            }
            for (size_t i = 0; i < n; i++)
                den += p[i] = exp(p[i] - max);
            if (x->sink && n > 0) {
                den += exp((double)x->sink[head] - max);
                low = fmin(low, fmin((double)x->sink[head], 2 * max - (double)x->sink[head]));
            }
            for (size_t c = 0; c < s->width; c++) {
                const double range = max - low;
                const double steps = (double)n / TILE + (double)n / CHUNK + 3;
                const double e = d + u * range + 4 * u + steps * (5 * u + u * range) + (double)n * u;
                const double got = (double)out[(row * s->n_heads + head) * s->width + c];
                double       sum = 0, size = 0;

                for (size_t i = 0; i < n; i++) {
                    sum += p[i] * (double)value_of(s, head, i)[c];
                    size += fabs(p[i] * (double)value_of(s, head, i)[c]);
                }
                if (n == 0)
                    assert_true(got == 0);
                else if (!(fabs(got - sum / den) <= 2.2 * e * size / den + 1e-30))
                    fail_msg("mask %#x format %u row %zu head %zu channel %zu: %g, wanted %g +- %g", mask, s->format, row, head, c, got,
                             sum / den, 2.2 * e * size / den);
            }
        }
        free(p);
    }
}

/* ---------------------------------------------------------------- tests */

/* Every mask and number of threads against both oracles; the one in double wants finite numbers. */
static void check_case(const kv *s, const query *x, int is_finite)
{
    const size_t n = x->n_rows * s->n_heads * s->width;
    float       *out = malloc(n * sizeof *out);
    float       *want[2] = {malloc(n * sizeof(float)), malloc(n * sizeof(float))};

    expect(&numerics[0], s, x, want[0]);
    if (n_masks > 1)
        expect(&numerics[1], s, x, want[1]);
    for (size_t i = 0; i < n_masks; i++)
        for (size_t t = 1; t <= (s->n_pos < CHUNK ? 1 : N_THREADS); t++) { /* less is not worth a second thread */
            run(masks[i], t, s, x, out);
            check_same("order", masks[i], s, out, want[masks[i] != 0], n);
            if (t == 1 && is_finite)
                check_close(masks[i], s, x, out);
        }
    free(out);
    free(want[0]);
    free(want[1]);
}

static void check_shape(prng *r, uint32_t format, uint32_t width, uint32_t n_heads, uint32_t n_kv, uint32_t page_rows, size_t n_pos,
                        size_t n_rows)
{
    kv    s;
    query x;

    kv_init(&s, r, format, width, n_heads, n_kv, page_rows, n_pos);
    query_init(&x, r, &s, n_rows, (int)prng_below(r, 2));
    check_case(&s, &x, 1);
    query_free(&x);
    kv_free(&s);
}

static void test_paged_shapes(void **unused)
{
    prng r;

    (void)unused;
    prng_init(&r, seed);
    for (size_t f = 0; f < N_FORMATS; f++) {
        check_shape(&r, formats[f], 128, 8, 2, 64, 131, 1);
        check_shape(&r, formats[f], 96, 4, 1, 16, 67, 2);
        check_shape(&r, formats[f], 32, 7, 1, 1, 63, 2);
        check_shape(&r, formats[f], 64, 3, 3, 16, 100, 5);
        check_shape(&r, formats[f], 256, 8, 1, 100, 129, 2);
        check_shape(&r, formats[f], 160, 2, 1, 100, 17, 3);
        check_shape(&r, formats[f], 32, 4, 1, 64, 1, 1);
    }
}

static void test_paged_many_heads_and_wide_rows(void **unused)
{
    prng r;

    (void)unused;
    prng_init(&r, seed + 1);
    check_shape(&r, KVCSA_FORMAT_F16, 32, 40, 1, 16, 70, 2);        /* heads in two parts */
    check_shape(&r, KVCSA_FORMAT_Q8_0, 32, 33, 1, 16, 65, 1);
    check_shape(&r, KVCSA_FORMAT_BF16, 1056, 4, 1, 16, 20, 1);      /* two blocks of products */
    check_shape(&r, KVCSA_FORMAT_FP4_E8M0_G32, 1056, 3, 1, 16, 20, 1);
}

static void test_paged_chunks(void **unused)
{
    const uint32_t some[] = {KVCSA_FORMAT_F16, KVCSA_FORMAT_FP8_E8M0_G32, KVCSA_FORMAT_FP4_E4M3_G16};
    prng           r;

    (void)unused;
    prng_init(&r, seed + 2);
    for (size_t f = 0; f < 3; f++)
        check_shape(&r, some[f], 32, 4, 1, 64, 2 * CHUNK + 70, 1); /* three threads: in chunks */
    check_shape(&r, KVCSA_FORMAT_Q8_0, 32, 6, 2, 100, CHUNK + 1, 3);
    check_shape(&r, KVCSA_FORMAT_Q4_0, 32, 1, 1, 33, CHUNK, 40);
}

/* A row alone, with others, and on pages of another size. */
static void test_paged_rows_do_not_mix(void **unused)
{
    const uint32_t sizes[] = {1, 16, 64, 100};
    prng           r;
    kv             s;
    query          x;
    float         *all, *one;

    (void)unused;
    prng_init(&r, seed + 3);
    for (size_t f = 0; f < N_FORMATS; f += 3) {
        const size_t n_rows = 11;
        size_t       row_floats;

        kv_init(&s, &r, formats[f], 64, 8, 2, 64, CHUNK + 77);
        query_init(&x, &r, &s, n_rows, 1);
        row_floats = (size_t)s.n_heads * s.width;
        all = malloc(n_rows * row_floats * sizeof *all);
        one = malloc(n_rows * row_floats * sizeof *one);
        for (size_t i = 0; i < n_masks; i++) {
            run(masks[i], 1, &s, &x, all);
            for (size_t row = 0; row < n_rows; row++) {
                query y = x;

                y.n_rows = 1;
                y.q = x.q + row * row_floats;
                y.n_visible = x.n_visible + row;
                run(masks[i], row % N_THREADS + 1, &s, &y, one);
                check_same("one row", masks[i], &s, one, all + row * row_floats, row_floats);
            }
            for (size_t p = 0; p < 4; p++) {
                kv_free_pages(&s);
                kv_make_pages(&s, sizes[p]);
                run(masks[i], 3, &s, &x, one);
                check_same("pages", masks[i], &s, one, all, n_rows * row_floats);
            }
        }
        free(all);
        free(one);
        query_free(&x);
        kv_free(&s);
    }
}

/* The output for one position is its value: rows of any bytes, so every code with every scale. */
static void test_paged_decodes_exactly(void **unused)
{
    const uint32_t ratios[] = {1, 4, 8};
    prng           r;
    kv             s;
    query          x;

    (void)unused;
    prng_init(&r, seed + 4);
    for (size_t f = 0; f < N_FORMATS; f++)
        for (size_t k = 0; k < 3; k++) {
            float *out;

            kv_init(&s, &r, formats[f], 256, 32 * ratios[k], 32, 1, 1);
            for (size_t head = 0; head < s.n_kv; head++) {
                uint8_t *value = s.rows + (head * 2 + 1) * s.row_bytes;

                prng_fill(&r, value, s.row_bytes);
                if (formats[f] == KVCSA_FORMAT_FP8_E8M0_G32 && head < 16) /* the largest scales */
                    for (size_t g = 0; g < 8; g++)
                        value[256 + g] = (uint8_t)(240 + (head * 8 + g) % 16);
            }
            kv_decode(&s);
            kv_free_pages(&s);
            kv_make_pages(&s, 1);
            query_init(&x, &r, &s, 1, 0);
            out = malloc((size_t)s.n_heads * s.width * sizeof *out);
            for (size_t i = 0; i < n_masks; i++) {
                run(masks[i], 1, &s, &x, out);
                for (size_t head = 0; head < s.n_heads; head++)
                    for (size_t c = 0; c < s.width; c++) {
                        const float want = value_of(&s, head, 0)[c];
                        const float got = out[head * s.width + c];

                        if (!same(got, want == 0 ? 0.0f : want)) /* -0 was added to +0 */
                            fail_msg("mask %#x format %u: %a, wanted %a", masks[i], s.format, (double)got, (double)want);
                    }
            }
            free(out);
            query_free(&x);
            kv_free(&s);
        }
}

static void put_f16(kv *s, size_t kv_head, size_t part, size_t pos, size_t c, uint16_t bits)
{
    memcpy(s->rows + ((kv_head * 2 + part) * s->n_pos + pos) * s->row_bytes + 2 * c, &bits, sizeof bits);
}

/* NaN in a key: the heads that see it. In a value: the channel, whatever its weight. */
static void test_paged_nan_and_infinity(void **unused)
{
    static const uint16_t bits[] = {0x7e00, 0x7c00, 0xfc00};
    prng                  r;
    kv                    s;
    query                 x;
    float                 out[3 * 8 * 64];

    (void)unused;
    prng_init(&r, seed + 5);
    for (size_t b = 0; b < 3; b++)
        for (size_t part = 0; part < 2; part++) {
            kv_init(&s, &r, KVCSA_FORMAT_F16, 64, 8, 2, 16, 90);
            put_f16(&s, 1, part, 70, 5, bits[b]);
            kv_decode(&s);
            kv_free_pages(&s);
            kv_make_pages(&s, 16);
            query_init(&x, &r, &s, 3, 1);
            x.n_visible[1] = 70;
            x.n_visible[2] = 71;
            check_case(&s, &x, 0);
            for (size_t i = 0; i < n_masks && b == 0; i++) {
                run(masks[i], 1, &s, &x, out);
                for (size_t at = 0; at < 3 * 8 * 64; at++)
                    assert_int_equal(isnan(out[at]) != 0,
                                     at / 512 != 1 && at / 64 % 8 >= 4 && (part == 0 || at % 64 == 5));
            }
            query_free(&x);
            kv_free(&s);
        }
}

static void test_paged_extreme_scores(void **unused)
{
    const float scales[] = {0.0f, 30.0f, 1e30f, -1e25f};
    prng        r;
    kv          s;
    query       x;

    (void)unused;
    prng_init(&r, seed + 6);
    kv_init(&s, &r, KVCSA_FORMAT_F16, 32, 4, 1, 16, 150);
    query_init(&x, &r, &s, 1, 1);
    for (size_t i = 0; i < 4; i++) {
        const size_t n = 4 * 32;
        float        out[4 * 32], want[2][4 * 32];

        x.scale = scales[i];
        x.sink[0] = 200;
        x.sink[1] = -INFINITY;
        x.sink[2] = i % 2 == 0 ? 1e30f : NAN;
        expect(&numerics[0], &s, &x, want[0]);
        expect(&numerics[1], &s, &x, want[1]);
        for (size_t m = 0; m < n_masks; m++) {
            run(masks[m], 1, &s, &x, out);
            check_same("extreme", masks[m], &s, out, want[masks[m] != 0], n);
        }
    }
    query_free(&x);
    kv_free(&s);
}

static void test_paged_sees_nothing(void **unused)
{
    prng  r;
    kv    s;
    query x;
    float out[3 * 4 * 32];

    (void)unused;
    prng_init(&r, seed + 7);
    kv_init(&s, &r, KVCSA_FORMAT_BF16, 32, 4, 1, 16, 2 * CHUNK);
    for (int has_sink = 0; has_sink < 2; has_sink++) {
        query_init(&x, &r, &s, 3, has_sink);
        x.n_visible[0] = x.n_visible[2] = 0;
        x.n_visible[1] = 2 * CHUNK;
        for (size_t i = 0; i < n_masks; i++)
            for (size_t t = 1; t <= N_THREADS; t++) {
                run(masks[i], t, &s, &x, out);
                for (size_t c = 0; c < 128; c++) {
                    assert_true(out[c] == 0 && out[256 + c] == 0);
                    assert_true(out[128 + c] != 0);
                }
            }
        memset(x.n_visible, 0, 3 * sizeof *x.n_visible);
        run(masks[n_masks - 1], 2, &s, &x, out);
        for (size_t c = 0; c < 3 * 128; c++)
            assert_true(out[c] == 0);
        x.n_rows = 0;
        run(0, 1, &s, &x, out);
        query_free(&x);
    }
    kv_free(&s);
}

static void test_paged_no_memory_and_bad_format(void **unused)
{
    prng       r;
    kv         s;
    query      x;
    kvi_device dev;
    float     *out;

    (void)unused;
    prng_init(&r, seed + 8);
    kv_init(&s, &r, KVCSA_FORMAT_Q8_0, 32, 4, 1, 64, 2 * CHUNK);
    query_init(&x, &r, &s, 2, 0);
    out = malloc(2 * 4 * 32 * sizeof *out);
    for (size_t t = 1; t <= 2; t++)
        for (uint64_t n = 1;; n++) {
            kvcsa_status st;

            device_init(&dev, masks[n_masks - 1], t);
            fault_alloc_fail_at(&memory, n);
            st = try_run(&dev, &s, &x, out);
            assert_true(fault_alloc_is_clean(&memory));
            if (!fault_alloc_hit(&memory)) {
                assert_int_equal(st, KVCSA_OK);
                break;
            }
            assert_int_equal(st, KVCSA_ERR_NOMEM);
            assert_true(n < 100);
        }
    fault_alloc_fail_at(&memory, 0);
    s.format = KVCSA_FORMAT_INT6;
    assert_int_equal(try_run(&dev, &s, &x, out), KVCSA_ERR_UNSUPPORTED);
    free(out);
    query_free(&x);
    kv_free(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paged_shapes),
        cmocka_unit_test(test_paged_many_heads_and_wide_rows),
        cmocka_unit_test(test_paged_chunks),
        cmocka_unit_test(test_paged_rows_do_not_mix),
        cmocka_unit_test(test_paged_decodes_exactly),
        cmocka_unit_test(test_paged_nan_and_infinity),
        cmocka_unit_test(test_paged_extreme_scores),
        cmocka_unit_test(test_paged_sees_nothing),
        cmocka_unit_test(test_paged_no_memory_and_bad_format),
    };
    kvcsa_allocator libc_allocator;
    int             failed;

    seed = prng_seed(argc, argv, 20260);
    fault_alloc_init(&memory);
    kvi_allocator_import(NULL, &libc_allocator, NULL);
    for (uint32_t i = 0; i < N_THREADS; i++)
        if (kvi_threads_create(&libc_allocator, i + 1, NULL, &threads[i], NULL) != KVCSA_OK)
            return 1;
    find_masks();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < N_THREADS; i++)
        kvi_threads_destroy(threads[i]);
    return failed;
}
