/* Attention over window and selected entries: every instruction set of this machine against an oracle of the fused order written
 * with fmaf, against softmax in double, and against the portable kernels for what is not a number. Every array ends at the end of
 * a page. */
#include "support/cache_ops.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define U 0x1p-24 /* unit roundoff of float */

enum { MAX_MASKS = 3, TILE = 64, MAX_FENCES = 64 };

static uint32_t masks[MAX_MASKS]; /* without 0 */
static size_t   n_masks;

/* ---------------------------------------------------------------- memory in front of a page that faults */

typedef struct fence {
    uint8_t *map;
    size_t   bytes; /* of the map */
    void    *data;
    size_t   slack; /* bytes in front of the data */
} fence;

static fence  fences[MAX_FENCES]; /* a stack */
static size_t n_fences;

static void *fenced(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t whole = (bytes + page - 1) / page * page;
    fence       *f = &fences[n_fences++];

    assert_true(n_fences <= MAX_FENCES);
    f->bytes = whole + page;
    f->slack = whole - bytes;
    f->map = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f->map != MAP_FAILED);
    memset(f->map, 0xA7, whole);
    assert_int_equal(mprotect(f->map + whole, page, PROT_NONE), 0);
    return f->data = f->map + f->slack;
}

/* Gives back what was taken after the first n. */
static void unfence(size_t n)
{
    while (n_fences > n) {
        const fence *f = &fences[--n_fences];

        for (size_t i = 0; i < f->slack; i++)
            assert_int_equal(f->map[i], 0xA7);
        assert_int_equal(munmap(f->map, f->bytes), 0);
    }
}

/* ---------------------------------------------------------------- scenes */

typedef struct shape {
    uint32_t n_heads;
    uint32_t width;
    uint32_t n_window;
    uint32_t k;
    size_t   n;        /* rows, positions 0.. */
    uint64_t floor;
    size_t   off;      /* bytes: arrays of floats are so far from an aligned address */
    size_t   head_step; /* heads that the oracle looks at */
} shape;

typedef struct scene {
    shape     of;
    uint32_t  row_bytes;
    uint32_t  flags;
    float     scale;
    float    *q;    /* [n, n_heads, width] */
    float    *out;
    float    *mass; /* [n, k] */
    uint8_t  *rows; /* [n, row_bytes] */
    int32_t  *ids;
    float    *sink;
    uint64_t *pos;
    size_t    n_fences;
    store     s;
} scene;

enum { N_ENTRIES = 320 };

static void scene_init(scene *c, prng *r, const shape *of)
{
    const size_t n_out = of->n * of->n_heads * of->width;

    memset(c, 0, sizeof *c);
    c->of = *of;
    c->row_bytes = of->width + of->width / 32;
    c->scale = (float)(1 / sqrt((double)of->width));
    c->n_fences = n_fences;
    c->q = (float *)((uint8_t *)fenced((n_out + 16) * sizeof *c->q) + of->off);
    c->out = fenced(n_out * sizeof *c->out);
    c->mass = fenced(of->n * of->k * sizeof *c->mass);
    c->rows = fenced(of->n * c->row_bytes);
    c->ids = fenced(of->n * of->k * sizeof *c->ids);
    c->sink = fenced(of->n_heads * sizeof *c->sink);
    c->pos = fenced(of->n * sizeof *c->pos);
    fill_normal(r, c->q, n_out, 2.0f);
    fill_normal(r, c->sink, of->n_heads, 1.0f);
    for (size_t i = 0; i < of->n * c->row_bytes; i++) {
        const uint8_t code = (uint8_t)prng_range(r, 0x20, 0x48);

        c->rows[i] = i % c->row_bytes >= of->width ? (uint8_t)prng_range(r, 124, 127)
                                                    : (uint8_t)(code | prng_below(r, 2) << 7);
    }
    store_init(&c->s, of->width, 32, 32, N_ENTRIES);
    store_fill(&c->s, r);
    for (size_t i = 0; i < of->n; i++) {
        c->pos[i] = i;
        for (size_t j = 0; j < of->k; j++) /* whole tiles empty, too */
            c->ids[i * of->k + j] = prng_below(r, 5) == 0 || (i % 3 == 1 && j / 64 == 1) || (i % 5 == 4 && j > 9)
                                        ? -1
                                        : (int32_t)prng_below(r, N_ENTRIES);
    }
}

static void scene_fini(scene *c)
{
    store_fini(&c->s);
    unfence(c->n_fences);
}

/* Rows first .. first + n - 1; the results go to their places. */
static void attend(kvi_device *dev, scene *c, size_t first, size_t n, bool mass)
{
    const size_t at = first * c->of.n_heads * c->of.width;
    const kvi_attend_params p = {.q = c->q + at, .out = c->out + at, .pos = c->pos + first, .chunk = c->rows, .sink = c->sink,
                                 .ids = c->of.k ? c->ids + first * c->of.k : NULL,
                                 .mass = mass ? c->mass + first * c->of.k : NULL, .entries = entries_of(&c->s),
                                 .floor = c->of.floor, .n_rows = n, .n_heads = c->of.n_heads, .width = c->of.width,
                                 .n_window = c->of.n_window, .page_rows = 1, .row_bytes = c->row_bytes, .k = c->of.k,
                                 .scale = c->scale, .flags = c->flags};

    assert_int_equal(kvi_cpu_attend(dev, &p, NULL), KVCSA_OK);
}

static size_t out_bytes(const scene *c)
{
    return c->of.n * c->of.n_heads * c->of.width * sizeof(float);
}

static size_t mass_bytes(const scene *c)
{
    return c->of.n * c->of.k * sizeof(float);
}

/* All devices work with these instruction sets; small scenes are worth threads, too. */
static void use(uint32_t mask)
{
    for (size_t d = 0; d < N_DEVICES; d++) {
        kvi_cpu_device_init(&devices[d], &memory.hook, devices[d].threads, mask);
        devices[d].attend.min_work = 1;
    }
}

/* ---------------------------------------------------------------- the fused order */

static float exp_fused(float x)
{
    const float n = nearbyintf(x * 1.44269504088896341f);
    float       r = fmaf(-n, 0.693359375f, x);
    float       p = 1.9875691500e-4f;

    if (isnan(x))
        return x;
    if (x < -87.33654f)
        return 0.0f;
    if (x > 88.722839f)
        return INFINITY;
    r = fmaf(-n, -2.12194440e-4f, r);
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    return ldexpf(fmaf(p, r * r, r) + 1.0f, (int)n);
}

static float dot_fused(const float *a, const float *b, size_t n)
{
    float sum = 0;

    for (size_t begin = 0; begin < n; begin += 1024) {
        float lane[16] = {0};

        for (size_t i = begin; i < n && i < begin + 1024; i++)
            lane[i % 16] = fmaf(a[i], b[i], lane[i % 16]);
        for (size_t half = 8; half > 0; half /= 2)
            for (size_t i = 0; i < half; i++)
                lane[i] = lane[i] + lane[i + half];
        sum = begin == 0 ? lane[0] : sum + lane[0];
    }
    return sum;
}

/* Key of a slot; false = empty. */
static bool slot_key(const scene *c, size_t row, size_t slot, float *key)
{
    const uint64_t pos = c->pos[row];
    uint64_t       lo = pos + 1 > c->of.n_window ? pos + 1 - c->of.n_window : 0;

    lo = lo > c->of.floor ? lo : c->of.floor;
    if (slot < c->of.n_window) {
        const uint8_t *at = c->rows + (lo + slot) * c->row_bytes;

        for (size_t i = 0; i < c->of.width && lo + slot <= pos; i++)
            key[i] = (float)(e4m3(at[i]) * e8m0(at[c->of.width + i / 32]));
        return lo + slot <= pos;
    }
    const int32_t id = c->ids[row * c->of.k + slot - c->of.n_window];
    for (size_t i = 0; i < c->of.width && id >= 0; i++)
        key[i] = (float)unpacked(main_row(&c->s, (size_t)id), main_row(&c->s, (size_t)id) + c->of.width / 2, i, 16);
    return id >= 0;
}

/* Keys [n_slots, width] of a row; there[slot] says whether. */
static float *row_keys(const scene *c, size_t row, bool *there)
{
    const size_t n_slots = c->of.n_window + c->of.k;
    float       *keys = get(n_slots * c->of.width * sizeof *keys);

    for (size_t slot = 0; slot < n_slots; slot++)
        there[slot] = slot_key(c, row, slot, keys + slot * c->of.width);
    return keys;
}

/* out [width]; probabilities of the selected slots are added to mass [k]. */
static void oracle(const scene *c, size_t row, size_t head, const float *keys, const bool *there, float *out, float *mass)
{
    const size_t n_slots = c->of.n_window + c->of.k;
    const size_t width = c->of.width;
    const float *q = c->q + (row * c->of.n_heads + head) * width;
    float       *scores = get(n_slots * sizeof *scores);
    float        max = -1e30f;
    float        den = 0;

    memset(out, 0, width * sizeof *out);
    for (size_t t = 0; t < n_slots; t += TILE) {
        const size_t end = n_slots - t < TILE ? n_slots : t + TILE;
        float        next = max;
        float        sum = 0;
        bool         any = false;

        for (size_t j = t; j < end; j++) {
            if (!there[j])
                continue;
            any = true;
            scores[j] = dot_fused(q, keys + j * width, width) * c->scale;
            next = scores[j] > next ? scores[j] : next;
        }
        if (!any)
            continue;
        const float f = exp_fused(max - next);
        for (size_t i = 0; i < width; i++)
            out[i] = out[i] * f;
        for (size_t j = t; j < end; j++) {
            if (!there[j])
                continue;
            const float p = exp_fused(scores[j] - next);
            sum = sum + p;
            for (size_t i = 0; i < width; i++)
                out[i] = fmaf(p, keys[j * width + i], out[i]);
        }
        den = den * f + sum;
        max = next;
    }
    den = den + exp_fused(c->sink[head] - max);
    for (size_t i = 0; i < width; i++)
        out[i] = out[i] / den;
    for (size_t j = 0; j < c->of.k; j++)
        if (there[c->of.n_window + j])
            mass[j] = mass[j] + exp_fused(scores[c->of.n_window + j] - max) / den;
    free(scores);
}

/* The bits of a result; NaN is NaN. */
static void assert_same(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(want[i]))
            assert_true(isnan(got[i]));
        else
            assert_memory_equal(got + i, want + i, sizeof *got);
    }
}

static const shape shapes[] = {
    {1, 32, 16, 0, 20, 0, 0, 1},      {2, 64, 0, 70, 5, 0, 4, 1},       {5, 96, 100, 24, 9, 0, 8, 1},
    {16, 32, 64, 130, 12, 0, 12, 1},  {17, 64, 8, 200, 11, 2, 16, 3},   {23, 160, 1, 129, 6, 0, 20, 5},
    {33, 32, 20, 3, 24, 7, 60, 4},    {3, 1056, 5, 9, 3, 0, 36, 1},     {7, 2080, 3, 70, 2, 0, 4, 3},
    {64, 512, 128, 512, 1, 0, 4, 63}, {14, 128, 300, 65, 2, 0, 0, 3},   {15, 96, 40, 131, 9, 0, 4, 3},
};

static void test_attend_equals_the_fused_oracle(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed + 1);
    for (size_t t = 0; t < sizeof shapes / sizeof *shapes; t++) {
        const shape *of = &shapes[t];
        bool         there[1024];
        float       *want = get(of->width * sizeof *want);
        float       *mass = get(of->k * sizeof *mass + 1);
        scene        c;

        scene_init(&c, &r, of);
        c.q[0] *= 30; /* a maximum that moves a lot */
        for (size_t m = 0; m < n_masks; m++) {
            use(masks[m]);
            memset(c.out, 0xA7, out_bytes(&c));
            attend(&devices[t % N_DEVICES], &c, 0, of->n, true);
            for (size_t row = 0; row < of->n; row++) {
                float *keys = row_keys(&c, row, there);

                memset(mass, 0, of->k * sizeof *mass);
                for (size_t h = 0; h < of->n_heads; h += of->head_step) {
                    oracle(&c, row, h, keys, there, want, mass);
                    assert_same(c.out + (row * of->n_heads + h) * of->width, want, of->width);
                }
                if (of->head_step == 1)
                    assert_same(c.mass + row * of->k, mass, of->k);
                free(keys);
            }
        }
        scene_fini(&c);
        free(want);
        free(mass);
    }
}

/* A weight e^s has the error of its score, E = u (width / 16 + 5) scale sum |q key| and the scaling and the difference to the
 * maximum, 2 u R with R the range of the scores, and 3 u of e^x itself; a factor of a tile u (R + 3) in all tiles together plus a
 * rounding a tile; the sums of n slots n u. The denominator has the same and the division one u. */
static void test_attend_is_softmax(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed + 2);
    for (size_t m = 0; m < n_masks; m++) {
        const shape of = {9, 96, 100, 70, 30, 0, 4, 1};
        const size_t n_slots = of.n_window + of.k;
        bool         there[256];
        double       s[256];
        scene        c;

        scene_init(&c, &r, &of);
        use(masks[m]);
        attend(&devices[0], &c, 0, of.n, true);
        for (size_t row = 0; row < of.n; row += 3) {
            float *keys = row_keys(&c, row, there);

            for (size_t h = 0; h < of.n_heads; h++) {
                const float *q = c.q + (row * of.n_heads + h) * of.width;
                double       low = (double)c.sink[h], high = low, size = 0, den = exp((double)c.sink[h]);

                for (size_t j = 0; j < n_slots; j++) {
                    double sum = 0, abs_sum = 0;

                    for (size_t i = 0; i < of.width && there[j]; i++) {
                        sum += (double)q[i] * (double)keys[j * of.width + i];
                        abs_sum += fabs((double)q[i] * (double)keys[j * of.width + i]);
                    }
                    s[j] = there[j] ? sum * (double)c.scale : -INFINITY;
                    den += exp(s[j]);
                    size = fmax(size, abs_sum * (double)c.scale);
                    low = there[j] ? fmin(low, s[j]) : low;
                    high = fmax(high, s[j]);
                }
                const double n_tiles = (double)(n_slots / TILE + 1);
                const double bound = 1.01 * U * (2 * ((of.width / 16 + 6) * size + 3 * (high - low) + 6 + 2 * n_tiles +
                                                      (double)n_slots) + 2);
                for (size_t i = 0; i < of.width; i++) {
                    double want = 0, abs_want = 0;

                    for (size_t j = 0; j < n_slots; j++) {
                        if (!there[j])
                            continue;
                        want += exp(s[j]) / den * (double)keys[j * of.width + i];
                        abs_want += exp(s[j]) / den * fabs((double)keys[j * of.width + i]);
                    }
                    assert_true(fabs((double)c.out[(row * of.n_heads + h) * of.width + i] - want) <= bound * abs_want + 1e-37);
                }
            }
            free(keys);
        }
        scene_fini(&c);
    }
}

/* Two keys, 0 and 1 in one channel, one head for each score; so the output is e^s / (1 + e^s), and it meets every range of e^x. */
static void test_attend_meets_the_whole_range_of_exp(void **state)
{
    const shape  of = {64, 32, 2, 0, 8, 0, 0, 1};
    const size_t n = of.n * of.n_heads;
    prng         r;
    scene        c;

    (void)state;
    prng_init(&r, seed + 3);
    scene_init(&c, &r, &of);
    memset(c.rows, 0, of.n * c.row_bytes);
    for (size_t i = 0; i < of.n; i++) {
        c.rows[i * c.row_bytes] = i % 2 == 0 ? 0x38 : 0; /* 1 */
        c.rows[i * c.row_bytes + 32] = 127;
    }
    c.scale = 1;
    for (size_t i = 0; i < n; i++) {
        static const float edges[] = {-87.33654f, -87.336545f, -87.33655f, -88.0f, -1e30f, -3e38f, -INFINITY, 0.0f, -0.0f,
                                      -87.0f, -86.99f, -1e-30f, -0.34657359f, -0.3465736f, -103.9f, -1e10f};
        static const float ranges[] = {100.0f, 3.0f, 0.8f};

        memset(c.q + i * of.width, 0, of.width * sizeof *c.q);
        c.q[i * of.width] = (float)prng_below(&r, 1 << 24) * -0x1p-24f * ranges[i % 3];
        if (i >= of.n_heads && i < of.n_heads + 16) /* row 0 has one key only */
            c.q[i * of.width] = edges[i - of.n_heads];
    }
    for (size_t h = 0; h < of.n_heads; h++)
        c.sink[h] = -INFINITY;
    for (size_t m = 0; m < n_masks; m++) {
        use(masks[m]);
        attend(&devices[0], &c, 0, of.n, false);
        for (size_t i = of.n_heads; i < n; i++) {
            bool   there[2];
            float  want[32];
            float *keys = row_keys(&c, i / of.n_heads, there);

            oracle(&c, i / of.n_heads, i % of.n_heads, keys, there, want, NULL);
            assert_same(c.out + i * of.width, want, of.width);
            free(keys);
        }
    }
    scene_fini(&c);
}

/* ---------------------------------------------------------------- rows, threads, masks */

static void test_attend_depends_on_neither_rows_nor_threads_nor_mask(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed + 4);
    for (size_t t = 0; t < sizeof shapes / sizeof *shapes; t++) {
        const shape *of = &shapes[t];
        scene        c;
        float       *out, *mass;

        scene_init(&c, &r, of);
        out = get(out_bytes(&c));
        mass = get(mass_bytes(&c) + 1);
        for (size_t m = 0; m < n_masks; m++) {
            use(masks[m]);
            for (size_t row = 0; row < of->n; row++)
                attend(&devices[m % N_DEVICES], &c, row, 1, true);
            if (m > 0) { /* as the mask before */
                assert_memory_equal(c.out, out, out_bytes(&c));
                assert_memory_equal(c.mass, mass, mass_bytes(&c));
            }
            memcpy(out, c.out, out_bytes(&c));
            memcpy(mass, c.mass, mass_bytes(&c));
            for (size_t d = 0; d < N_DEVICES; d++)
                for (size_t step = of->n; step > 1; step = step * 2 / 5) {
                    memset(c.out, 0xA7, out_bytes(&c));
                    memset(c.mass, 0xA7, mass_bytes(&c));
                    for (size_t row = 0; row < of->n; row += step)
                        attend(&devices[d], &c, row, step < of->n - row ? step : of->n - row, true);
                    assert_memory_equal(c.out, out, out_bytes(&c));
                    assert_memory_equal(c.mass, mass, mass_bytes(&c));
                }
            attend(&devices[1], &c, 0, of->n, false); /* the mass changes nothing */
            assert_memory_equal(c.out, out, out_bytes(&c));
        }
        scene_fini(&c);
        free(out);
        free(mass);
    }
}

static void test_attend_in_the_reference_mode_is_portable(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed + 5);
    for (size_t t = 1; t < 6; t++) {
        scene  c;
        float *out;

        scene_init(&c, &r, &shapes[t]);
        out = get(out_bytes(&c));
        c.flags = KVI_OP_ROUND_BF16;
        use(0);
        attend(&devices[0], &c, 0, c.of.n, true);
        memcpy(out, c.out, out_bytes(&c));
        for (size_t m = 0; m < n_masks; m++) {
            use(masks[m]);
            attend(&devices[t % N_DEVICES], &c, 0, c.of.n, true);
            assert_memory_equal(c.out, out, out_bytes(&c));
        }
        scene_fini(&c);
        free(out);
    }
}

/* ---------------------------------------------------------------- what is not a number */

static int kind(float x)
{
    return isnan(x) ? 2 : isinf(x) ? 1 : 0;
}

static void test_attend_has_nan_where_the_portable_kernels_have_it(void **state)
{
    static const uint32_t payload = 0x7fd5aaab; /* a NaN whose low bits are not 0 */
    float values[] = {0, INFINITY, -INFINITY, 3e38f, -3e38f, -NAN};
    prng  r;

    (void)state;
    memcpy(values, &payload, sizeof payload);
    prng_init(&r, seed + 6);
    for (size_t t = 0; t < 24; t++) {
        const shape of = {t % 4 == 0 ? 18 : 3, 64, 12, 140, 20, 0, 4, 1};
        const size_t row_floats = of.n_heads * (size_t)of.width;
        scene  c;
        float *clean, *out, *mass;

        scene_init(&c, &r, &of);
        clean = get(out_bytes(&c));
        out = get(out_bytes(&c));
        mass = get(mass_bytes(&c));
        use(masks[t % n_masks]);
        attend(&devices[0], &c, 0, of.n, true);
        memcpy(clean, c.out, out_bytes(&c));
        if (t % 3 == 0) {
            c.q[(6 * of.n_heads + 1) * of.width + 9] = values[t / 3 % 6]; /* row 6, head 1 */
            c.q[(6 * of.n_heads + 2) * of.width + 40] = values[(t / 3 + 1) % 6];
        } else if (t % 3 == 1) {
            c.rows[8 * c.row_bytes + of.width + t % 2] = 255; /* a group of position 8: rows 8..19 see it */
        } else {
            main_row(&c.s, (size_t)(c.ids[6 * of.k + 3] = 5))[of.width / 2 + 1] = 0x7f; /* a group of entry 5 */
            c.sink[2] = t < 12 ? NAN : INFINITY;
        }
        use(0);
        attend(&devices[0], &c, 0, of.n, true);
        memcpy(out, c.out, out_bytes(&c));
        memcpy(mass, c.mass, mass_bytes(&c));
        for (size_t m = 0; m < n_masks; m++) {
            use(masks[m]);
            attend(&devices[m % N_DEVICES], &c, 0, of.n, true);
            for (size_t i = 0; i < of.n * row_floats; i++)
                assert_int_equal(kind(c.out[i]), kind(out[i]));
            for (size_t i = 0; i < of.n * of.k; i++)
                assert_int_equal(kind(c.mass[i]), kind(mass[i]));
            if (t % 3 == 0) /* other rows see nothing of it */
                for (size_t i = 0; i < of.n * row_floats; i++)
                    if (i / row_floats != 6)
                        assert_memory_equal(c.out + i, clean + i, sizeof *clean);
        }
        scene_fini(&c);
        free(clean);
        free(out);
        free(mass);
    }
}

static void test_attend_without_keys_gives_zero(void **state)
{
    const shape of = {5, 64, 16, 70, 10, 8, 0, 1}; /* positions 0..7 see nothing */
    prng  r;
    scene c;

    (void)state;
    prng_init(&r, seed + 7);
    scene_init(&c, &r, &of);
    memset(c.ids, 0xFF, of.n * of.k * sizeof *c.ids);
    for (size_t m = 0; m < n_masks; m++) {
        use(masks[m]);
        memset(c.out, 0xFF, out_bytes(&c)); /* NaN */
        attend(&devices[m % N_DEVICES], &c, 0, of.n, true);
        for (size_t i = 0; i < 8 * 5 * 64; i++)
            assert_true(c.out[i] == 0);
        for (size_t i = 8 * 5 * 64; i < of.n * 5 * 64; i += 64)
            assert_true(c.out[i] != 0);
        for (size_t i = 0; i < of.n * of.k; i++)
            assert_true(c.mass[i] == 0);
    }
    scene_fini(&c);
}

/* ---------------------------------------------------------------- memory */

static kvcsa_status attend_once(kvi_device *dev, prng *r)
{
    const shape of = {20, 64, 12, 40, 5, 0, 0, 1};
    scene       c;
    kvcsa_status st;

    scene_init(&c, r, &of);
    const kvi_attend_params p = {.q = c.q, .out = c.out, .pos = c.pos, .chunk = c.rows, .sink = c.sink, .ids = c.ids,
                                 .mass = c.mass, .entries = entries_of(&c.s), .n_rows = of.n, .n_heads = of.n_heads,
                                 .width = of.width, .n_window = of.n_window, .page_rows = 1, .row_bytes = c.row_bytes,
                                 .k = of.k, .scale = c.scale};
    st = kvi_cpu_attend(dev, &p, NULL);
    scene_fini(&c);
    return st;
}

static void test_scratch_failures_of_every_mask(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed + 8);
    for (size_t m = 0; m < n_masks; m++) {
        use(masks[m]);
        check_scratch_failures(attend_once, &r);
    }
}

static void test_attend_has_no_variant_here(void **state)
{
    (void)state;
    skip();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest none[] = {cmocka_unit_test(test_attend_has_no_variant_here)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend_equals_the_fused_oracle),
        cmocka_unit_test(test_attend_is_softmax),
        cmocka_unit_test(test_attend_meets_the_whole_range_of_exp),
        cmocka_unit_test(test_attend_depends_on_neither_rows_nor_threads_nor_mask),
        cmocka_unit_test(test_attend_in_the_reference_mode_is_portable),
        cmocka_unit_test(test_attend_has_nan_where_the_portable_kernels_have_it),
        cmocka_unit_test(test_attend_without_keys_gives_zero),
        cmocka_unit_test(test_scratch_failures_of_every_mask),
    };
    static const uint32_t wanted[] = {KVCSA_CPU_AVX2, KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512, KVCSA_CPU_NEON,
                                      KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD};
    static const char *const names[] = {"avx2", "avx512", "neon", "dotprod"};
    const uint32_t have = kvi_cpu_flags(0);

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if ((have & wanted[i]) == wanted[i])
            masks[n_masks++] = wanted[i];
        else
            printf("not on this machine: %s\n", names[i]);
    }
    seed = prng_seed(argc, argv, 20262);
    if (n_masks == 0)
        return cmocka_run_group_tests(none, NULL, NULL);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
