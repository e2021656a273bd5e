/* Sparse attention on the device beside the portable CPU's, and beside an oracle in double that rounds q and keys to bf16 as
 * the device does. The bounds are those of cuda/smxx/attend.cuh. */
#include "cuda/cuda_check.h"

#include "format/row.h"
#include "plan/cache_plan.h"

#include <stdio.h>
#include <string.h>

enum { MAX_BLOCKS = 600, MAX_PAGES = 64 };

typedef struct shape {
    size_t   n_rows;
    uint32_t n_heads, width, n_window, k, format;
    uint32_t page_rows;
    uint64_t first;    /* position of the first row */
    uint32_t in_chunk; /* positions in front of it that the chunk holds too */
    uint64_t floor;
    uint32_t off;      /* of the rows in pages and blocks */
} shape;

typedef struct scene {
    shape        s;
    uint32_t     row_bytes, n_pages, n_blocks;
    size_t       n_out, page_bytes, block_bytes, chunk_bytes;
    float        scale;
    kvi_kv_owner owner;
    float       *q, *sink;
    uint64_t    *pos;
    int32_t     *ids;
    uint8_t     *chunk;
    uint8_t     *pages[MAX_PAGES];
    uint8_t     *blocks[MAX_BLOCKS];
} scene;

static void *some(size_t n) /* never NULL */
{
    void *p = calloc(n + 1, 1);

    assert_non_null(p);
    return p;
}

static uint8_t *random_row(uint32_t format, uint32_t width, uint8_t *row)
{
    float x[512];

    fill(x, width, 2.0f);
    kvi_row_encode(format, x, width, row);
    return row;
}

static uint64_t chunk_pos(const scene *c) { return c->s.first - c->s.in_chunk; }

static void scene_init(scene *c, const shape *s)
{
    const size_t n_heads = s->n_heads, n_in_chunk = s->in_chunk + s->n_rows;

    memset(c, 0, sizeof *c);
    c->s = *s;
    c->row_bytes = s->width + s->width / 32;
    c->scale = (float)(1 / sqrt(s->width));
    c->n_out = s->n_rows * n_heads * s->width;
    c->q = some(c->n_out * sizeof *c->q);
    fill(c->q, c->n_out, 2.0f);
    c->sink = some(n_heads * sizeof *c->sink);
    fill(c->sink, n_heads, 1.0f);
    c->pos = some(s->n_rows * sizeof *c->pos);
    for (size_t i = 0; i < s->n_rows; i++)
        c->pos[i] = s->first + i;

    c->chunk_bytes = n_in_chunk * c->row_bytes;
    c->chunk = some(c->chunk_bytes);
    for (size_t i = 0; i < n_in_chunk; i++)
        random_row(KVCSA_FORMAT_FP8_E8M0_G32, s->width, c->chunk + i * c->row_bytes);
    c->n_pages = (s->n_window + s->page_rows - 1) / s->page_rows + (uint32_t)(s->first % 2);
    c->page_bytes = s->off + (size_t)s->page_rows * c->row_bytes;
    assert_true(c->n_pages <= MAX_PAGES);
    for (uint32_t p = 0; p < c->n_pages; p++) {
        c->pages[p] = some(c->page_bytes);
        memset(c->pages[p], 0xff, c->page_bytes);
        for (uint32_t i = 0; i < s->page_rows; i++)
            random_row(KVCSA_FORMAT_FP8_E8M0_G32, s->width, c->pages[p] + s->off + (size_t)i * c->row_bytes);
    }

    c->owner = (kvi_kv_owner){.rows_per_block = 8, .entry_width = s->width, .entry_format = s->format, .main_off = s->off};
    if (s->k) {
        c->owner.main_row_bytes = kvi_format_row_bytes(s->format, s->width);
        c->n_blocks = 3 + s->k / 32;
        c->block_bytes = s->off + 8 * (size_t)c->owner.main_row_bytes;
        assert_true(c->n_blocks <= MAX_BLOCKS);
        for (uint32_t b = 0; b < c->n_blocks; b++) {
            c->blocks[b] = some(c->block_bytes);
            for (uint32_t i = 0; i < 8; i++)
                random_row(s->format, s->width, c->blocks[b] + s->off + (size_t)i * c->owner.main_row_bytes);
        }
        c->ids = some(s->n_rows * s->k * sizeof *c->ids);
        for (size_t i = 0; i < s->n_rows * s->k; i++)
            c->ids[i] = prng() % 6 == 0 ? -1 : (int32_t)(prng() % (8 * c->n_blocks));
    }
}

static void scene_fini(scene *c)
{
    for (uint32_t p = 0; p < c->n_pages; p++)
        free(c->pages[p]);
    for (uint32_t b = 0; b < c->n_blocks; b++)
        free(c->blocks[b]);
    free(c->q);
    free(c->sink);
    free(c->pos);
    free(c->ids);
    free(c->chunk);
}

static kvi_attend_params params_of(const scene *c)
{
    return (kvi_attend_params){.page_off = c->s.off, .entries = {.owner = &c->owner}, .chunk_pos = chunk_pos(c), .floor = c->s.floor,
                               .n_rows = c->s.n_rows, .n_heads = c->s.n_heads, .width = c->s.width, .n_window = c->s.n_window,
                               .page_rows = c->s.page_rows, .n_pages = c->n_pages, .row_bytes = c->row_bytes, .k = c->s.k,
                               .scale = c->scale};
}

/* What a run on the device takes: rows first .. first + n - 1 of the scene. out: [n, heads, width], then the mass [n, k] if
 * wanted. */
typedef struct job {
    const scene *c;
    size_t       first, n;
    bool         mass;
} job;

static size_t out_bytes(const job *j)
{
    return j->n * ((size_t)j->c->s.n_heads * j->c->s.width + (j->mass ? j->c->s.k : 0)) * sizeof(float);
}

static void run(const void *arg, void *out)
{
    const job        *j = arg;
    const scene      *c = j->c;
    const size_t      row = (size_t)c->s.n_heads * c->s.width, n = j->n;
    uint8_t          *tables[2][MAX_BLOCKS];
    kvi_attend_params p = params_of(c);
    float            *o = to_device(NULL, n * row * sizeof *o), *m = NULL;

    for (uint32_t i = 0; i < c->n_pages; i++)
        tables[0][i] = to_device(c->pages[i], c->page_bytes);
    for (uint32_t i = 0; i < c->n_blocks; i++)
        tables[1][i] = to_device(c->blocks[i], c->block_bytes);
    p.q = to_device(c->q + j->first * row, n * row * sizeof *c->q);
    p.out = o;
    p.pos = to_device(c->pos + j->first, n * sizeof *c->pos);
    p.pages = table_to_device(tables[0], c->n_pages);
    p.chunk = to_device(c->chunk, c->chunk_bytes);
    p.sink = to_device(c->sink, c->s.n_heads * sizeof *c->sink);
    p.n_rows = n;
    if (c->s.k) {
        p.ids = to_device(c->ids + j->first * c->s.k, n * c->s.k * sizeof *c->ids);
        p.entries.main_parts = table_to_device(tables[1], c->n_blocks);
    }
    if (j->mass)
        p.mass = m = to_device(NULL, n * c->s.k * sizeof *m);
    GPU(attend, &p);
    from_device(out, o, n * row * sizeof *o);
    if (m)
        from_device((float *)out + n * row, m, n * c->s.k * sizeof *m);
    device_free_all();
}

static void run_cpu(const scene *c, float *out, float *mass)
{
    kvi_attend_params p = params_of(c);

    p.q = c->q;
    p.out = out;
    p.pos = c->pos;
    p.pages = c->pages;
    p.chunk = c->chunk;
    p.sink = c->sink;
    p.ids = c->ids;
    p.mass = mass;
    p.entries.main_parts = c->blocks;
    CPU(attend, &p);
}

/* ---------------------------------------------------------------- oracle */

/* Keys of a row's slots, [slots, width], and which there are. */
static void slot_keys(const scene *c, size_t row, float *keys, bool *used)
{
    const uint64_t pos = c->pos[row];
    uint64_t       lo = pos + 1 > c->s.n_window ? pos + 1 - c->s.n_window : 0;

    lo = lo > c->s.floor ? lo : c->s.floor;
    for (uint32_t slot = 0; slot < c->s.n_window + c->s.k; slot++, keys += c->s.width) {
        if (slot < c->s.n_window) {
            const uint64_t at = lo + slot;
            const uint8_t *bytes;

            if (!(used[slot] = at <= pos))
                continue;
            if (at >= chunk_pos(c)) {
                bytes = c->chunk + (at - chunk_pos(c)) * c->row_bytes;
            } else {
                const uint64_t ring = at % ((uint64_t)c->n_pages * c->s.page_rows);
                bytes = c->pages[ring / c->s.page_rows] + c->s.off + ring % c->s.page_rows * c->row_bytes;
            }
            kvi_row_decode(KVCSA_FORMAT_FP8_E8M0_G32, bytes, c->s.width, keys);
        } else {
            const int32_t id = c->ids[row * c->s.k + slot - c->s.n_window];

            if ((used[slot] = id >= 0))
                kvi_row_decode(c->s.format, c->blocks[id / 8] + c->s.off + (size_t)(id % 8) * c->owner.main_row_bytes, c->s.width, keys);
        }
    }
}

/* out [width] and mass [k] (added to) of a head in double, with the bounds of both. rounded: q and keys are taken as the
 * device has them, so that only sums and p are off; else they are exact, and the bound knows of the roundings. */
static void oracle(const scene *c, size_t row, size_t head, const float *keys, const bool *used, bool rounded, double *out, double *tol,
                   double *mass, double *mass_tol)
{
    const bool     exact = c->s.format != KVCSA_FORMAT_F32 && c->s.format != KVCSA_FORMAT_F16 && c->s.format != KVCSA_FORMAT_Q8_0 &&
                       c->s.format != KVCSA_FORMAT_Q4_0 && c->s.format != KVCSA_FORMAT_INT3_F16_G32;
    const uint32_t n = c->s.n_window + c->s.k, width = c->s.width;
    const double   u = 0x1p-8, g = width * 0x1p-22, h = (n + 64) * 0x1p-22;
    float         *q = some(width * sizeof *q), *k = some((size_t)n * width * sizeof *k);
    double        *s = some(n * sizeof *s), *d = some(n * sizeof *d), den = exp(c->sink[head]), e = den;

    memcpy(q, c->q + (row * c->s.n_heads + head) * width, width * sizeof *q);
    memcpy(k, keys, (size_t)n * width * sizeof *k);
    if (rounded) {
        round_all(q, width);
        round_all(k, (size_t)n * width);
    }
    for (uint32_t i = 0; i < n; i++) {
        double a = 0, dot = 0;

        if (!used[i])
            continue;
        for (uint32_t x = 0; x < width; x++) {
            dot += (double)q[x] * (double)k[i * width + x];
            a += fabs((double)q[x] * (double)k[i * width + x]);
        }
        a *= (double)c->scale;
        d[i] = rounded ? a * g : i < c->s.n_window || exact ? a * (u + g) : a * (2 * u + u * u + g);
        s[i] = exp(dot * (double)c->scale);
        den += s[i];
        e += s[i] * exp(d[i]);
    }
    e /= den;
    for (uint32_t x = 0; x < width; x++)
        out[x] = tol[x] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double p = s[i] / den, v = rounded || exact || i < c->s.n_window ? 1 : 1 + u, f = exp(d[i]) * e * (1 + h);

        for (uint32_t x = 0; x < width && used[i]; x++) {
            out[x] += p * (double)k[i * width + x];
            tol[x] += p * fabs((double)k[i * width + x]) * (f * (1 + u) * v - 1);
        }
        if (mass && i >= c->s.n_window && used[i]) {
            mass[i - c->s.n_window] += p;
            mass_tol[i - c->s.n_window] += p * (f * (1 + c->s.n_heads * 0x1p-22) - 1);
        }
    }
    free(q);
    free(k);
    free(s);
    free(d);
}

/* Both comparisons, all rows. Returns the largest |device - rounded oracle| in units of its bound. */
static double check(const scene *c, bool want_mass)
{
    const uint32_t n = c->s.n_window + c->s.k, width = c->s.width, k = c->s.k;
    const job      j = {c, 0, c->s.n_rows, want_mass};
    float         *got = some(out_bytes(&j)), *want = some(out_bytes(&j)), *keys = some((size_t)n * width * sizeof *keys);
    float         *mass = want_mass ? want + c->n_out : NULL;
    bool          *used = some(n);
    double        *out = some(width * 8), *tol = some(width * 8), *m = some(k * 8), *m_tol = some(k * 8), worst = 0;

    gpu_run(run, &j, got, out_bytes(&j));
    run_cpu(c, want, mass);
    for (size_t row = 0; row < c->s.n_rows; row++) {
        slot_keys(c, row, keys, used);
        memset(m, 0, k * 8);
        memset(m_tol, 0, k * 8);
        for (size_t head = 0; head < c->s.n_heads; head++) {
            const size_t at = (row * c->s.n_heads + head) * width;

            oracle(c, row, head, keys, used, true, out, tol, NULL, NULL);
            for (uint32_t x = 0; x < width; x++) {
                assert_within(got[at + x], out[x], tol[x] + 1e-30);
                worst = fmax(worst, fabs((double)got[at + x] - out[x]) / (tol[x] + 1e-30));
            }
            oracle(c, row, head, keys, used, false, out, tol, want_mass ? m : NULL, m_tol);
            for (uint32_t x = 0; x < width; x++)
                assert_within(got[at + x], (double)want[at + x], tol[x] + 1e-30);
        }
        for (uint32_t i = 0; want_mass && i < k; i++) {
            assert_within(got[c->n_out + row * k + i], (double)mass[row * k + i], m_tol[i]);
            assert_true(used[c->s.n_window + i] || got[c->n_out + row * k + i] == 0);
        }
    }
    free(got);
    free(want);
    free(keys);
    free(used);
    free(out);
    free(tol);
    free(m);
    free(m_tol);
    return worst;
}

/* ---------------------------------------------------------------- tests */

enum { FP4 = KVCSA_FORMAT_FP4_E4M3_G16 };

static void test_shapes(void **state)
{
    static const shape shapes[] = {
        /* rows, heads, width, window, k, format, page rows, first, in chunk, floor, off */
        {1, 1, 32, 1, 0, FP4, 1, 0, 0, 0, 0},
        {1, 4, 96, 16, 8, FP4, 16, 0, 0, 0, 0},
        {5, 4, 96, 16, 8, FP4, 16, 40, 3, 0, 24},       /* T1, from the ring and the chunk */
        {3, 4, 96, 16, 8, FP4, 7, 9, 0, 0, 33},         /* slots behind pos */
        {2, 3, 64, 8, 5, FP4, 3, 100, 2, 97, 0},        /* floor */
        {2, 2, 32, 64, 64, FP4, 64, 200, 0, 0, 0},
        {1, 2, 32, 65, 63, FP4, 13, 200, 0, 0, 1},
        {1, 17, 64, 31, 33, FP4, 16, 64, 0, 0, 0},      /* a second group of heads */
        {1, 33, 32, 10, 10, FP4, 16, 64, 0, 0, 0},
        {1, 2, 160, 0, 40, FP4, 16, 64, 0, 0, 0},       /* entries alone */
        {1, 2, 480, 40, 0, FP4, 16, 64, 0, 0, 0},       /* window alone */
        {2, 2, 32, 128, 193, FP4, 32, 300, 0, 0, 0},    /* a slot more than a split */
        {1, 3, 64, 100, 900, FP4, 32, 300, 0, 0, 0},    /* four splits */
        {1, 2, 64, 3, 30, KVCSA_FORMAT_FP4_E8M0_G32, 4, 9, 0, 0, 2},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_FP8_E8M0_G32, 4, 9, 0, 0, 0},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_F32, 4, 9, 0, 0, 1},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_F16, 4, 9, 0, 0, 0},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_BF16, 4, 9, 0, 0, 0},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_FP4_AS_F32, 4, 9, 0, 0, 0},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_Q8_0, 4, 9, 0, 0, 0},
        {1, 2, 64, 3, 30, KVCSA_FORMAT_Q4_0, 4, 9, 0, 0, 5},
        {1, 2, 96, 3, 30, KVCSA_FORMAT_INT3_F16_G32, 4, 9, 0, 0, 0},
        {1, 5, 512, 20, 30, FP4, 8, 33, 4, 0, 16},      /* the fast kernels from here on */
        {1, 16, 512, 0, 33, FP4, 8, 33, 0, 0, 0},
        {1, 2, 512, 33, 0, FP4, 8, 33, 0, 0, 64},
        {2, 33, 512, 5, 6, FP4, 8, 3, 0, 0, 0},         /* 64 heads a block */
        {1, 2, 512, 20, 30, FP4, 8, 33, 0, 0, 8},       /* not at multiples of 16 */
        {1, 2, 512, 9, 9, KVCSA_FORMAT_BF16, 8, 33, 0, 0, 0},
        {1, 129, 32, 3, 2, FP4, 8, 33, 0, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        scene c;

        scene_init(&c, &shapes[i]);
        check(&c, shapes[i].k && i % 3 != 1);
        scene_fini(&c);
    }
}

static void check_released(void)
{
    static const shape shapes[] = {{1, 64, 512, 128, 512, FP4, 16, 1000, 0, 0, 0}, {2, 64, 512, 12, 55, FP4, 16, 1000, 0, 0, 0}};

    for (size_t i = 0; i < 2; i++) {
        scene c;

        scene_init(&c, &shapes[i]);
        check(&c, i == 0);
        scene_fini(&c);
    }
}

/* Bits of a row do not depend on how many there are: few and many rows take other kernels. */
static void check_rows_alone(void)
{
    static const shape shapes[] = {{3, 64, 512, 30, 35, FP4, 16, 1000, 2, 0, 0}, {2, 40, 512, 10, 330, FP4, 16, 5, 0, 0, 0}};

    for (size_t t = 0; t < 2; t++) {
        scene  c;
        size_t row;
        float *all, *one;

        scene_init(&c, &shapes[t]);
        if (t == 1) /* most tiles are empty, and the first split of some rows */
            for (size_t i = 0; i < c.s.n_rows * c.s.k; i++)
                if (i % c.s.k % 64 > 3 && i % c.s.k < 328)
                    c.ids[i] = -1;
        row = (size_t)c.s.n_heads * c.s.width;
        all = some(c.n_out * sizeof *all + c.s.n_rows * c.s.k * sizeof *all);
        one = some(row * sizeof *one + c.s.k * sizeof *one);
        run(&(job){&c, 0, c.s.n_rows, true}, all);
        for (size_t i = 0; i < c.s.n_rows; i++) {
            run(&(job){&c, i, 1, true}, one);
            assert_memory_equal(one, all + i * row, row * sizeof *one);
            assert_memory_equal(one + row, all + c.n_out + i * c.s.k, c.s.k * sizeof *one);
        }
        free(all);
        free(one);
        scene_fini(&c);
    }
}

static void test_released_shape(void **state)
{
    (void)state;
    check_released();
}

static void test_rows_alone(void **state)
{
    (void)state;
    check_rows_alone();
}

/* A device with more shared memory has larger tiles. */
static void test_large_tiles(void **state)
{
    const kvcsa_allocator a = metered();
    kvi_device_params     params = {.allocator = &a};
    kvi_device           *small = gpu;
    kvcsa_error           err = {0};

    (void)state;
    if (!emulated)
        skip();
    emu.arch(90);
    must(gpu_ops->device_open(&params, &gpu, &err), &err);
    check_released();
    check_rows_alone();
    gpu_ops->device_close(gpu);
    emu.arch(80);
    gpu = small;
}

/* With few channels and slots the bound against the rounded oracle is near: p in bf16 is all there is. */
static void test_bound_is_not_vacuous(void **state)
{
    static const shape s = {40, 4, 32, 3, 2, FP4, 4, 9, 0, 0, 0};
    scene              c;

    (void)state;
    scene_init(&c, &s);
    assert_true(check(&c, true) > 0.125);
    scene_fini(&c);
}

static void test_no_keys(void **state)
{
    static const shape shapes[] = {{9, 2, 32, 16, 4, FP4, 4, 0, 0, 8, 0},
                                   {2, 2, 512, 0, 0, FP4, 4, 5, 0, 0, 0},
                                   {2, 2, 512, 0, 700, FP4, 4, 5, 0, 0, 0}};

    (void)state;
    for (size_t t = 0; t < 3; t++) {
        scene  c;
        float *got, *want;
        job    j;

        scene_init(&c, &shapes[t]);
        if (c.ids)
            memset(c.ids, 0xff, c.s.n_rows * c.s.k * sizeof *c.ids);
        j = (job){&c, 0, c.s.n_rows, c.s.k != 0};
        got = some(out_bytes(&j));
        want = some(out_bytes(&j));
        gpu_run(run, &j, got, out_bytes(&j));
        run_cpu(&c, want, j.mass ? want + c.n_out : NULL);
        for (size_t i = 0; i < out_bytes(&j) / sizeof *got; i++)
            assert_true((got[i] == 0) == (want[i] == 0)); /* position 8 sees itself */
        for (size_t i = 0; i < (t == 0 ? 8 * 64 : c.n_out); i++)
            assert_true(got[i] == 0);
        free(got);
        free(want);
        scene_fini(&c);
    }
}

/* NaN in q makes its head NaN; in a key, all heads of the rows that see it. Nothing else. */
static void test_nan_positions(void **state)
{
    static const shape shapes[] = {{12, 2, 32, 8, 3, FP4, 4, 20, 0, 0, 0}, {3, 40, 512, 2, 30, FP4, 4, 20, 0, 0, 0},
                                   {2, 2, 64, 4, 400, FP4, 4, 20, 0, 0, 0}};

    (void)state;
    for (size_t t = 0; t < 3; t++) {
        scene    c;
        float   *got, *want;
        job      j;
        size_t   n_nan = 0, bytes;
        uint8_t *entry;

        scene_init(&c, &shapes[t]);
        c.q[c.s.width * (c.s.n_heads + 1) + 9] = NAN;                          /* row 1, head 1 */
        c.q[9] = INFINITY;
        c.chunk[c.row_bytes + c.s.width] = 255;                                /* scale of position 21 */
        c.chunk[3] = t == 1 ? 0xff : 0x7f;                                     /* an element of position 20 */
        if (t != 1)
            c.chunk[3] = 0x10;
        entry = c.blocks[1] + 3 * c.owner.main_row_bytes;                      /* entry 11 */
        entry[c.s.width / 2 + 1] = t == 0 ? 0xff : 0x7f;
        j = (job){&c, 0, c.s.n_rows, true};
        bytes = out_bytes(&j);
        got = some(bytes);
        want = some(bytes);
        gpu_run(run, &j, got, bytes);
        run_cpu(&c, want, want + c.n_out);
        for (size_t i = 0; i < bytes / sizeof *got; i++) {
            assert_int_equal(isnan(got[i]), isnan(want[i]));
            n_nan += isnan(got[i]) != 0;
        }
        assert_true(n_nan > 0 && n_nan < bytes / sizeof *got);
        free(got);
        free(want);
        scene_fini(&c);
    }
}

/* More parts than one portion of rows may leave in scratch. */
static void test_portions(void **state)
{
    static const shape s = {11, 16, 512, 0, 32000, FP4, 4, 20, 0, 0, 0};
    scene              c;
    float             *got, *want;
    size_t             row;

    (void)state;
    scene_init(&c, &(shape){11, 16, 512, 0, 1, FP4, 4, 20, 0, 0, 0});
    c.s.k = s.k;
    free(c.ids);
    c.ids = some(c.s.n_rows * c.s.k * sizeof *c.ids);
    memset(c.ids, 0xff, c.s.n_rows * c.s.k * sizeof *c.ids);
    for (size_t i = 0; i < c.s.n_rows; i++)
        for (size_t k = 0; k < 4; k++)
            c.ids[i * c.s.k + (3 * i + 7 * k + 31 * k * k) * 64] = (int32_t)(i + k);
    row = (size_t)c.s.n_heads * c.s.width;
    got = some(c.n_out * sizeof *got);
    want = some(row * sizeof *want);
    run(&(job){&c, 0, c.s.n_rows, false}, got);
    for (size_t i = 0; i < c.s.n_rows; i += 5) {
        run(&(job){&c, i, 1, false}, want);
        assert_memory_equal(got + i * row, want, row * sizeof *want);
    }
    free(got);
    free(want);
    scene_fini(&c);
}

static void test_refused(void **state)
{
    kvi_kv_owner      owner = {.rows_per_block = 8, .entry_width = 64, .entry_format = 14, .main_row_bytes = 656};
    kvi_attend_params p = {.n_rows = 1, .n_heads = 1, .width = 64, .n_window = 4, .entries = {.owner = &owner}};
    kvcsa_error       err = {0};

    (void)state;
    p.width = 544;
    assert_int_equal(gpu_ops->attend(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "512"));
    p.width = 48;
    assert_int_equal(gpu_ops->attend(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    p.width = 64;
    p.flags = KVI_OP_ROUND_BF16;
    assert_int_equal(gpu_ops->attend(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    p.flags = 0;
    p.k = 1;
    assert_int_equal(gpu_ops->attend(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "14"));
    owner.entry_format = FP4;
    p.k = 1u << 25;
    assert_int_equal(gpu_ops->attend(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    p.n_rows = 0;
    p.k = 0;
    assert_int_equal(gpu_ops->attend(gpu, &p, &err), KVCSA_OK);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_shapes),
    cmocka_unit_test(test_released_shape),
    cmocka_unit_test(test_rows_alone),
    cmocka_unit_test(test_large_tiles),
    cmocka_unit_test(test_bound_is_not_vacuous),
    cmocka_unit_test(test_no_keys),
    cmocka_unit_test(test_nan_positions),
    cmocka_unit_test(test_portions),
    cmocka_unit_test(test_refused),
};

CUDA_MAIN(tests)
