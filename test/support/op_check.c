#include "support/op_check.h"

#include "format/dtype.h"

static uint64_t prng_state = 1;

void prng_seed(uint64_t seed)
{
    prng_state = seed;
}

uint32_t prng(void)
{
    prng_state ^= prng_state << 13;
    prng_state ^= prng_state >> 7;
    prng_state ^= prng_state << 17;
    return (uint32_t)(prng_state >> 32);
}

float uniform(float size)
{
    return ((float)(prng() >> 8) * 0x1p-23f - 1.0f) * size;
}

void fill(float *x, size_t n, float size)
{
    for (size_t i = 0; i < n; i++)
        x[i] = uniform(size);
}

static void *meter_alloc(void *user, size_t size, size_t align)
{
    meter *m = user;
    void  *p = NULL;

    if (atomic_fetch_add(&m->calls, 1) == m->fail_at)
        return NULL;
    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, size ? size : 1))
        return NULL;
    memset(p, 0xff, size); /* scratch that is read before it is written is NaN */
    atomic_fetch_add(&m->outstanding, (long)size);
    return p;
}

static void meter_free(void *user, void *ptr, size_t size, size_t align)
{
    (void)align;
    atomic_fetch_sub(&((meter *)user)->outstanding, (long)size);
    free(ptr);
}

meter the_meter = {.fail_at = -1};
static kvi_threads *threads[N_DEVICES];
kvi_device *devices[N_DEVICES];

kvcsa_allocator metered(void)
{
    return (kvcsa_allocator){.alloc = meter_alloc, .free = meter_free, .user = &the_meter};
}

int open_devices(void **state)
{
    const kvcsa_allocator a = metered();

    (void)state;
    for (uint32_t i = 0; i < N_DEVICES; i++) {
        kvi_device_params p = {.allocator = &a};

        assert_int_equal(kvi_threads_create(&a, i + 1, NULL, &threads[i], NULL), KVCSA_OK);
        p.threads = threads[i];
        assert_int_equal(kvi_cpu_backend(0)->device_open(&p, &devices[i], NULL), KVCSA_OK);
        assert_ptr_equal(devices[i]->threads, threads[i]);
    }
    return 0;
}

int close_devices(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_DEVICES; i++) {
        kvi_cpu_backend(0)->device_close(devices[i]);
        kvi_threads_destroy(threads[i]);
    }
    return atomic_load(&the_meter.outstanding) != 0;
}

guarded guarded_new(size_t n)
{
    guarded g = {.n = n};

    assert_non_null(g.base = malloc(n * sizeof(float) + 128));
    memset(g.base, GUARD, n * sizeof(float) + 128);
    g.data = (float *)(void *)(g.base + 64);
    return g;
}

void guarded_check_free(guarded *g)
{
    const uint8_t *end = g->base + 64 + g->n * sizeof(float);

    for (size_t i = 0; i < 64; i++) {
        assert_int_equal(g->base[i], GUARD);
        assert_int_equal(end[i], GUARD);
    }
    free(g->base);
}

void assert_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (kvi_f32_bits(a[i]) != kvi_f32_bits(b[i]))
            fail_msg("element %zu is %.9g, must be %.9g", i, (double)a[i], (double)b[i]);
}

void assert_within(float is, double wanted, double bound)
{
    if (!(fabs((double)is - wanted) <= bound))
        fail_msg("is %.9g, must be %.9g within %.3g", (double)is, wanted, bound);
}

bool untouched(const float *x)
{
    return kvi_f32_bits(*x) == 0x5a5a5a5au;
}

double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

void round_all(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = kvi_round_bf16(x[i]);
}

void check_invariance(rows_fn run, const void *job, size_t n_rows, size_t width, float *out)
{
    float *again = malloc(n_rows * width * sizeof *again);

    assert_non_null(again);
    run(job, devices[0], 0, n_rows, out);
    for (size_t d = 0; d < N_DEVICES; d++) {
        memset(again, GUARD, n_rows * width * sizeof *again);
        run(job, devices[d], 0, n_rows, again);
        assert_bits(again, out, n_rows * width);
        memset(again, GUARD, n_rows * width * sizeof *again);
        for (size_t i = 0; i < n_rows; i++)
            run(job, devices[d], i, 1, again);
        assert_bits(again, out, n_rows * width);
        run(job, devices[d], 0, n_rows / 3, again);
        run(job, devices[d], n_rows / 3, n_rows - n_rows / 3, again);
        assert_bits(again, out, n_rows * width);
    }
    free(again);
}

/* ------------------------------------------------------------------ matrices */

static double e8m0_value(uint8_t code)
{
    return ldexp(1.0, code - 127);
}

double e4m3_exact(uint8_t code)
{
    const int    e = code >> 3 & 15;
    const double f = (code & 7) / 8.0;
    const double v = e ? ldexp(1.0 + f, e - 7) : ldexp(f, -6);

    return code & 128 ? -v : v;
}

static double e2m1_value(unsigned code)
{
    static const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

    return code & 8 ? -values[code & 7] : values[code & 7];
}

static void matrix_bytes(uint32_t kind, size_t rows, size_t cols, size_t *data, size_t *scale)
{
    static const size_t half_bytes[] = {[KVI_W_F32] = 8, [KVI_W_BF16] = 4, [KVI_W_FP8] = 2, [KVI_W_FP8_ROW] = 2, [KVI_W_FP4] = 1};

    *data = rows * cols * half_bytes[kind] / 2;
    *scale = kind == KVI_W_FP8 ? (rows + 31) / 32 * (cols / 32) : kind >= KVI_W_FP8_ROW ? rows * (cols / 32) : 0;
}

static double matrix_value(const kvi_matrix *m, size_t r, size_t c)
{
    const size_t at = r * m->cols + c;

    switch (m->kind) {
    case KVI_W_F32:
        return kvi_load_f32(m->data + 4 * at);
    case KVI_W_BF16:
        return kvi_bits_f32((uint32_t)kvi_load_u16(m->data + 2 * at) << 16);
    case KVI_W_FP8:
        return e4m3_exact(m->data[at]) * e8m0_value(m->scale[r / 32 * (m->cols / 32) + c / 32]);
    case KVI_W_FP8_ROW:
        return e4m3_exact(m->data[at]) * e8m0_value(m->scale[(r * m->cols + c) / 32]);
    default:
        return e2m1_value(c % 2 ? m->data[at / 2] >> 4 : m->data[at / 2] & 15u) * e8m0_value(m->scale[(r * m->cols + c) / 32]);
    }
}

test_matrix matrix_new(uint32_t kind, uint32_t rows, uint32_t cols)
{
    test_matrix t = {.m = {.kind = kind, .rows = rows, .cols = cols}};
    size_t      n_data = 0;
    size_t      n_scale = 0;
    uint8_t    *data;
    uint8_t    *scale;

    matrix_bytes(kind, rows, cols, &n_data, &n_scale);
    assert_non_null(t.memory = malloc(n_data + n_scale + 2));
    data = t.memory + 1; /* odd: files are mapped at any address; the end of the block is the end of the data (asan) */
    scale = data + n_data + 1;
    for (size_t i = 0; i < n_data; i++) {
        data[i] = (uint8_t)prng();
        if (kind >= KVI_W_FP8 && kind <= KVI_W_FP8_ROW && (data[i] & 127) == 127)
            data[i] = 0x42; /* no NaN */
    }
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        const float    v = uniform(1.0f);
        const uint32_t bits = kvi_f32_bits(v);

        if (kind == KVI_W_F32)
            memcpy(data + 4 * i, &bits, 4);
        if (kind == KVI_W_BF16)
            memcpy(data + 2 * i, (const uint8_t *)&bits + 2, 2);
    }
    for (size_t i = 0; i < n_scale; i++)
        scale[i] = (uint8_t)((kind == KVI_W_FP4 ? 121 : 115) + prng() % 6);
    t.m.data = data;
    t.m.scale = n_scale ? scale : NULL;
    assert_non_null(t.values = malloc((size_t)rows * cols * sizeof *t.values));
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            t.values[r * cols + c] = matrix_value(&t.m, r, c);
    return t;
}

void matrix_free(test_matrix *t)
{
    free(t->memory);
    free(t->values);
}

const uint32_t kinds[N_KINDS] = {KVI_W_F32, KVI_W_BF16, KVI_W_FP8, KVI_W_FP8_ROW, KVI_W_FP4};
