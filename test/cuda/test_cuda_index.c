/* Index scores on the device beside the portable CPU's, bit for bit (of a NaN: that it is one): shapes, tails, candidate blocks,
 * every code of a key's scale, scales and weights on both sides of every bound of the fast path, the maxima of blocks, and many
 * timelines in one call beside calls of one. */
#include "cuda/cuda_check.h"

#include <string.h>

typedef struct shape {
    uint32_t width, n_heads;
    size_t   n_rows;
    uint32_t rows_per_block, index_off;
    size_t   n_entries;
} shape;

/* Everything of one call on the host. */
typedef struct scene {
    shape        s;
    kvi_kv_owner owner;
    size_t       n_parts, part_bytes;
    uint8_t    **parts;
    int8_t      *codes;
    float       *scales, *weights;
    uint64_t    *n_visible;
    int32_t     *blocks; /* NULL = all */
    uint32_t    *n_blocks;
    size_t       scores_stride, blocks_stride;
    uint32_t     block_entries;
    bool         max;
} scene;

static uint32_t below(uint32_t n) { return prng() % n; }

static void *get(size_t n)
{
    void *p = calloc(n ? n : 1, 1);

    assert_non_null(p);
    return p;
}

static uint8_t *group_at(const scene *c, size_t entry)
{
    const size_t row = entry % c->s.rows_per_block;

    return c->parts[entry / c->s.rows_per_block] + kvi_kv_index_group_off(&c->owner, (uint32_t)row / 8);
}
static uint8_t *values_at(const scene *c, size_t entry) { return group_at(c, entry) + entry % 8 * (c->s.width / 2); }
static uint8_t *scales_at(const scene *c, size_t entry)
{
    return group_at(c, entry) + 4 * c->s.width + entry % 8 * (c->s.width / 32);
}

static size_t n_heads_of(const scene *c) { return c->s.n_rows * c->s.n_heads; }
static size_t n_scales_of(const scene *c) { return n_heads_of(c) * (c->s.width / 32); }

/* Random codes; scales of keys and of queries spread around 1; every row sees all entries. */
static scene scene_new(shape s, uint32_t spread, uint32_t q_spread)
{
    static const int8_t values[15] = {0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12};
    scene               c = {.s = s, .block_entries = 8, .scores_stride = s.n_entries};

    c.owner = (kvi_kv_owner){.ratio = 1,
                             .rows_per_block = s.rows_per_block,
                             .index_width = s.width,
                             .index_value_bytes = s.width / 2,
                             .index_row_bytes = s.width / 32 * 17,
                             .index_off = s.index_off};
    c.n_parts = (s.n_entries + s.rows_per_block - 1) / s.rows_per_block;
    c.part_bytes = s.index_off + (size_t)s.rows_per_block * c.owner.index_row_bytes;
    c.parts = get(c.n_parts * sizeof *c.parts);
    for (size_t b = 0; b < c.n_parts; b++) {
        c.parts[b] = get(c.part_bytes);
        for (size_t i = 0; i < c.part_bytes; i++)
            c.parts[b][i] = (uint8_t)below(256);
    }
    for (size_t e = 0; e < c.n_parts * s.rows_per_block; e++)
        for (size_t g = 0; g < s.width / 32; g++)
            scales_at(&c, e)[g] = (uint8_t)(127 - spread / 2 + below(spread + 1));
    c.codes = get(n_heads_of(&c) * s.width);
    c.scales = get(n_scales_of(&c) * sizeof *c.scales);
    c.weights = get(n_heads_of(&c) * sizeof *c.weights);
    c.n_visible = get(s.n_rows * sizeof *c.n_visible);
    for (size_t i = 0; i < n_heads_of(&c) * s.width; i++)
        c.codes[i] = values[below(15)];
    for (size_t i = 0; i < n_scales_of(&c); i++)
        c.scales[i] = ldexpf(1, (int)below(q_spread + 1) - (int)q_spread / 2);
    fill(c.weights, n_heads_of(&c), 0.3f);
    for (size_t i = 0; i < s.n_rows; i++)
        c.n_visible[i] = s.n_entries;
    return c;
}

static void scene_free(scene *c)
{
    for (size_t b = 0; b < c->n_parts; b++)
        free(c->parts[b]);
    free(c->parts);
    free(c->codes);
    free(c->scales);
    free(c->weights);
    free(c->n_visible);
    free(c->blocks);
    free(c->n_blocks);
}

static size_t n_max_of(const scene *c)
{
    return c->max ? (c->scores_stride + c->block_entries - 1) / c->block_entries + c->s.n_entries % 2 : 0;
}

static kvi_index_score_params params_of(const scene *c)
{
    return (kvi_index_score_params){.keys = {&c->owner, c->parts, NULL},
                                    .codes = c->codes,
                                    .scales = c->scales,
                                    .weights = c->weights,
                                    .n_visible = c->n_visible,
                                    .blocks = c->blocks,
                                    .n_blocks = c->n_blocks,
                                    .scores_stride = c->scores_stride,
                                    .blocks_stride = c->blocks_stride,
                                    .n_rows = c->s.n_rows,
                                    .n_heads = c->s.n_heads,
                                    .block_entries = c->block_entries,
                                    .max_stride = n_max_of(c)};
}

/* out: the scores, then the maxima. */
static void run(const void *arg, void *out)
{
    const scene           *c = arg;
    const size_t           n = c->s.n_rows * c->scores_stride, n_max = c->s.n_rows * n_max_of(c);
    kvi_index_score_params p = params_of(c);
    uint8_t              **parts = get(c->n_parts * sizeof *parts);
    float                 *max = to_device(NULL, n_max * sizeof *max);

    for (size_t i = 0; i < c->n_parts; i++)
        parts[i] = to_device(c->parts[i], c->part_bytes);
    p.keys.index_parts = table_to_device(parts, c->n_parts);
    p.codes = to_device(c->codes, n_heads_of(c) * c->s.width);
    p.scales = to_device(c->scales, n_scales_of(c) * sizeof *c->scales);
    p.weights = to_device(c->weights, n_heads_of(c) * sizeof *c->weights);
    p.n_visible = to_device(c->n_visible, c->s.n_rows * sizeof *c->n_visible);
    if (c->blocks) {
        p.blocks = to_device(c->blocks, c->s.n_rows * c->blocks_stride * sizeof *c->blocks);
        p.n_blocks = to_device(c->n_blocks, c->s.n_rows * sizeof *c->n_blocks);
    }
    p.scores = to_device_at(NULL, n * sizeof *p.scores, 4);
    p.block_max = c->max ? max : NULL;
    GPU(index_score, &p);
    from_device(out, p.scores, n * sizeof *p.scores);
    from_device((float *)out + n, max, n_max * sizeof *max);
    device_free_all();
    free(parts);
}

static float more(float a, float most) { return a > most ? a : most; } /* NaN does not count */

static void assert_same(const float *got, const float *want, size_t n, bool zeros_alike)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(want[i]) ? isnan(got[i]) : memcmp(got + i, want + i, sizeof *got) == 0)
            continue;
        if (zeros_alike && want[i] == 0 && got[i] == 0 && !signbit(got[i]))
            continue;
        print_error("%zu is %a, want %a\n", i, (double)got[i], (double)want[i]);
        fail();
    }
}

/* What the scores of the rows that see more than `all` make of the maxima. */
static void want_maxima(const scene *c, uint64_t all, const float *scores, float *maxima, size_t stride)
{
    for (size_t r = 0; r < c->s.n_rows; r++)
        for (size_t b = 0; c->n_visible[r] > all && b * c->block_entries < c->n_visible[r]; b++) {
            float *most = &maxima[r * stride + b];

            *most = -INFINITY;
            for (size_t i = b * c->block_entries; i < (b + 1) * c->block_entries && i < c->n_visible[r]; i++)
                *most = more(scores[r * c->scores_stride + i], *most);
        }
}

/* Scores of the device must be those of the CPU, and what lies behind a row must stay. */
static void check(const scene *c)
{
    const size_t           n = c->s.n_rows * c->scores_stride, stride = n_max_of(c), all = n + c->s.n_rows * stride;
    float                 *want = get(all * sizeof *want), *got = get(all * sizeof *got);
    kvi_index_score_params p = params_of(c);

    memset(want, GUARD, all * sizeof *want);
    p.scores = want;
    if (c->s.n_rows && c->scores_stride)
        CPU(index_score, &p);
    if (c->max)
        want_maxima(c, 0, want, want + n, stride);
    gpu_run(run, c, got, all * sizeof *got);
    assert_same(got, want, n, false);
    assert_same(got + n, want + n, all - n, true);
    free(want);
    free(got);
}

/* ---- shapes ---- */

static void test_shapes(void **state)
{
    static const uint32_t widths[] = {128, 32, 64, 96, 128, 160, 192, 224, 256, 128};
    static const uint32_t heads[] = {32, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 63, 64, 32, 8, 1};
    static const uint32_t rows[] = {1, 2, 1, 6, 3, 1, 13}, parts[] = {8, 64, 24, 40, 32}, maxima[] = {8, 16, 32, 3, 24, 1, 64};
    static const uint32_t spreads[] = {0, 2, 3, 9};

    (void)state;
    for (uint32_t t = 0; t < 54; t++) {
        const shape s = {.width = widths[t % 10], .n_heads = heads[t % 18], .n_rows = rows[t % 7], .rows_per_block = parts[t % 5],
                         .index_off = t % 3 == 0 ? 0 : t % 3 == 1 ? 544 : 40, .n_entries = 1 + below(t % 7 == 6 ? 70 : 150)};
        scene       c = scene_new(s, spreads[t / 2 % 4], spreads[t / 3 % 4]);

        c.scores_stride += t % 4 * 7;
        for (size_t i = 0; t % 2 && i < s.n_rows; i++)
            c.n_visible[i] = below((uint32_t)s.n_entries + 1);
        check(&c);
        c.max = true;
        c.block_entries = maxima[t % 7];
        check(&c);
        scene_free(&c);
    }
}

/* Nothing to do, and every length around a unit of 32 keys. */
static void test_every_length(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < 2; t++) {
        const shape s = {.width = t ? 64 : 128, .n_heads = 4, .n_rows = 1, .rows_per_block = 24, .n_entries = 75};
        scene       c = scene_new(s, 2, 2);

        c.max = true;
        for (uint64_t n = 0; n <= s.n_entries; n += n > 2 && n < 28 ? 5 : 1) {
            c.n_visible[0] = n;
            check(&c);
        }
        c.s.n_rows = 0;
        check(&c);
        c.s.n_rows = 1;
        c.n_visible[0] = c.scores_stride = 0;
        check(&c);
        scene_free(&c);
    }
}

/* More units than warps of the grid: a warp goes round its ring. */
static void test_long_context(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < 2; t++) {
        const shape s = {.width = t ? 64 : 128, .n_heads = 2, .n_rows = 1, .rows_per_block = 512, .n_entries = 9000 + below(100)};
        scene       c = scene_new(s, 3, 2);

        c.max = true;
        check(&c);
        scene_free(&c);
    }
}

static void list_blocks(scene *c, size_t listed, uint32_t t)
{
    const uint32_t be = c->block_entries;

    c->blocks_stride = listed;
    c->scores_stride = listed * be + t % 3;
    c->blocks = get(c->s.n_rows * listed * sizeof *c->blocks);
    c->n_blocks = get(c->s.n_rows * sizeof *c->n_blocks);
    memset(c->blocks, 0xff, c->s.n_rows * listed * sizeof *c->blocks);
    for (size_t i = 0; i < c->s.n_rows; i++) {
        const int32_t last = (int32_t)(c->s.n_entries / be) - 1;
        int32_t      *row = c->blocks + i * listed;

        c->n_visible[i] = t == 5 ? 0 : 1 + below((uint32_t)c->s.n_entries);
        for (int32_t b = 0; b <= last && (uint64_t)b * be < c->n_visible[i] && c->n_blocks[i] < listed; b++)
            if ((uint64_t)(b + 1) * be >= c->n_visible[i] || below(2) != 0)
                row[c->n_blocks[i]++] = b;
        if (t % 3 == 0 && c->n_blocks[i] < listed && (c->n_blocks[i] == 0 || row[c->n_blocks[i] - 1] < last))
            row[c->n_blocks[i]++] = last; /* often nothing of it is visible */
        if (t == 7)
            c->n_blocks[i] = 0;
    }
}

static void test_candidate_blocks(void **state)
{
    static const uint32_t sizes[] = {8, 16, 4, 8, 3, 24, 1, 8}, widths[] = {128, 64, 128, 32, 256, 96};

    (void)state;
    for (uint32_t t = 0; t < 32; t++) {
        const uint32_t size = sizes[t % 8];
        const shape    s = {.width = widths[t % 6], .n_heads = t % 4 == 0 ? 32 : t % 4 == 1 ? 40 : 3, .n_rows = 1 + t % 3,
                            .rows_per_block = 24, .index_off = t % 2 ? 0 : 272, .n_entries = 20 * size};
        scene          c = scene_new(s, t % 5 == 0 ? 9 : 2, 2);

        c.block_entries = size;
        list_blocks(&c, 12, t);
        check(&c);
        scene_free(&c);
    }
}

/* A row's bits do not depend on the rows beside it. */
static void test_rows_do_not_mix(void **state)
{
    const shape s = {.width = 128, .n_heads = 32, .n_rows = 3, .rows_per_block = 64, .n_entries = 64};
    scene       c = scene_new(s, 2, 2);
    const size_t n = s.n_rows * s.n_entries;
    float      *all = get(n * sizeof *all), *one = get(n * sizeof *one);

    (void)state;
    c.scales[s.n_heads * 4 + 5] = NAN; /* the second row takes the long way, and so do all beside it */
    gpu_run(run, &c, all, n * sizeof *all);
    for (size_t r = 0; r < s.n_rows; r++) {
        scene alone = c;

        alone.s.n_rows = 1;
        alone.codes += r * s.n_heads * s.width;
        alone.scales += r * s.n_heads * 4;
        alone.weights += r * s.n_heads;
        gpu_run(run, &alone, one + r * s.n_entries, s.n_entries * sizeof *one);
    }
    assert_same(one, all, n, false);
    scene_free(&c);
    free(all);
    free(one);
}

/* ---- values ---- */

/* Every code of a key's scale, with scales of queries from 0 over subnormal ones to the largest and NaN. */
static void test_every_scale(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        const shape s = {.width = t == 3 ? 96 : 128, .n_heads = 3, .n_rows = 9, .rows_per_block = 128, .n_entries = 256};
        const size_t groups = s.width / 32;
        scene       c = scene_new(s, 0, 0);

        for (size_t e = 0; e < s.n_entries; e++)
            for (size_t g = 0; g < groups; g++) /* blocks alike, near one another, anything */
                scales_at(&c, e)[g] = (uint8_t)(t == 0 ? e : t == 1 ? (e < 253 ? e + below(3) : e) : below(256));
        for (size_t i = 0; i < n_scales_of(&c); i++) {
            static const int exponent[9] = {-300, -128, -100, -61, 0, 40, 90, 126, 999};
            const int        x = exponent[i / groups / s.n_heads];

            c.scales[i] = x == 999 ? NAN : x == -300 ? 0.0f : ldexpf(1, x + (x < 120 ? (int)below(3) : 0));
        }
        for (size_t i = 0; i < n_heads_of(&c); i++)
            c.weights[i] = i % 2 ? 0.1f : 333.0f;
        check(&c); /* together all take the long way */
        for (size_t r = 3; r < 6 && t < 3; r++) {
            scene one = c;

            one.s.n_rows = 1;
            one.codes += r * s.n_heads * s.width;
            one.scales += r * s.n_heads * groups;
            one.weights += r * s.n_heads;
            check(&one);
        }
        scene_free(&c);
    }
}

/* Both sides of each bound of the fast path: codes 68 .. 168 of keys within 2, exponents -60 .. 40 of queries within 3, |f| in
 * 2^-60 .. 2^40. Only extreme values of both together show what is lost. */
static void test_bounds_of_the_fast_path(void **state)
{
    static const int   codes[][2] = {{66, 1},  {67, 2},  {68, 2},  {68, 3}, {166, 2}, {167, 2},
                                     {165, 3}, {127, 2}, {127, 3}, {68, 0}, {168, 0}};
    static const int queries[][2] = {{-62, 3}, {-61, 3}, {-60, 3}, {-60, 4}, {37, 3}, {38, 3}, {36, 4}, {0, 3}, {0, 4}};
    static const float factors[] = {1.3f, 0x1p-60f, 1.3f, 0x1.fffffep-61f, 1.3f, 0x1p40f, 1.3f, 0x1.8p40f, 1.3f, 0.0f, 1.3f};

    (void)state;
    for (size_t t = 0; t < 99; t++) {
        const shape s = {.width = t % 4 == 3 ? 256 : 128, .n_heads = 3, .n_rows = 1, .rows_per_block = 32, .n_entries = 32};
        const int  *k = codes[t % 11], *q = queries[t / 11];
        scene       c = scene_new(s, 0, 0);

        for (size_t e = 0; e < s.n_entries; e++)
            for (size_t g = 0; g < s.width / 32; g++)
                scales_at(&c, e)[g] = (uint8_t)(k[0] + (g == e % 4         ? k[1]
                                                        : g == (e + 1) % 4 ? 0
                                                                           : (int)below((uint32_t)k[1] + 1)));
        for (size_t i = 0; i < n_scales_of(&c); i++)
            c.scales[i] = ldexpf(1, q[0] + (i % 4 == 0 ? q[1] : i % 4 == 1 ? 0 : (int)below((uint32_t)q[1] + 1)));
        for (size_t i = 0; i < s.n_heads; i++)
            c.weights[i] = ldexpf(i == 1 ? -factors[(t + t / 11) % 11] : factors[(t + t / 11) % 11], 1 - q[0]);
        check(&c);
        scene_free(&c);
    }
}

/* Every pair of packed codes and all signs, at the largest sums the fast path can meet. */
static void test_largest_sums(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < 4; t++) {
        const shape s = {.width = t % 2 ? 256 : 128, .n_heads = 4, .n_rows = 1, .rows_per_block = 64, .n_entries = 256};
        scene       c = scene_new(s, 0, 0);

        for (size_t e = 0; e < s.n_entries; e++) {
            memset(values_at(&c, e), (int)e, s.width / 2); /* 0x77 and 0xff among them */
            for (size_t g = 0; g < s.width / 32; g++)
                scales_at(&c, e)[g] = g == 0 ? 125 : 127;
        }
        for (size_t i = 0; i < n_scales_of(&c); i++)
            c.scales[i] = i % (s.width / 32) == 0 ? 0.25f : 2.0f;
        for (size_t i = 0; i < s.n_heads * s.width; i++)
            c.codes[i] = (int8_t)((i / s.width % 2 ? -12 : 12) * (t / 2 && i % 2 ? -1 : 1));
        check(&c);
        scene_free(&c);
    }
}

/* Scales and weights that no quantiser makes; +0 and -0 come out as op_params.h says. */
static void test_odd_values(void **state)
{
    static const float odd[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.1f, 3e38f, -3e38f, 1e-40f, 0x1p-149f, INFINITY, -INFINITY, NAN};
    static const uint32_t heads[] = {1, 2, 3, 4, 5, 8, 32, 16};

    (void)state;
    for (uint32_t t = 0; t < 96; t++) {
        const shape s = {
            .width = t % 2 ? 128 : 64, .n_heads = heads[t / 2 % 8], .n_rows = 1 + t % 2, .rows_per_block = 32, .n_entries = 36};
        scene       c = scene_new(s, t % 3 == 0 ? 9 : 1, 2);

        for (size_t i = 0; i < n_scales_of(&c); i++) /* whole blocks of zeros too */
            if (below(3) == 0)
                memset(c.codes + i * 32, 0, 32);
        for (size_t i = 0; t % 4 < 2 && i < n_scales_of(&c); i++)
            if (below(4) == 0)
                c.scales[i] = odd[t % 3 == 0 ? below(12) : t / 4 % 12];
        for (size_t i = 0; t % 4 != 1 && i < n_heads_of(&c); i++)
            c.weights[i] = odd[below(t % 3 == 0 ? 12 : 4)];
        for (size_t i = 0; t % 6 == 5 && i < n_heads_of(&c); i++)
            c.weights[i] = -fabsf(c.weights[i]); /* a row that may be -0 */
        if (t % 5 == 0)
            memset(c.codes, 0, s.n_heads * s.width); /* nothing but zeros: the sign is the weights' */
        if (t % 7 == 0)
            scales_at(&c, 33)[0] = 255;
        c.max = true;
        check(&c);
        scene_free(&c);
    }
}

/* ---- many timelines ---- */

enum { MAX_SLICES = 300 };

/* Timelines of one call: of the same widths and strides, all of `each` rows but the last. */
typedef struct batch {
    scene    slices[MAX_SLICES];
    size_t   n, each;
    uint64_t all;
    bool     max;
} batch;

static size_t n_rows_of(const batch *b) { return (b->n - 1) * b->each + b->slices[b->n - 1].s.n_rows; }

static size_t batch_max_of(const batch *b)
{
    const scene *c = b->slices;

    return b->max ? (c->scores_stride + c->block_entries - 1) / c->block_entries + b->n % 2 : 0;
}

static void put(uint8_t **to, const void *from, size_t bytes)
{
    memcpy(*to, from, bytes);
    *to += bytes;
}

/* Element i of all timelines, one behind the other, on the device. */
enum { CODES, SCALES, WEIGHTS, VISIBLE, LISTS, N_LISTS, PARTS };
static void *joined(const batch *b, int what)
{
    size_t   all = 0;
    uint8_t *bytes = NULL, *at = NULL;
    void    *on_device;

    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < b->n; i++) {
            const scene  *c = &b->slices[i];
            const size_t  rows = c->s.n_rows, part = what == PARTS ? c->n_parts : 1;
            const size_t  size[] = {n_heads_of(c) * c->s.width, n_scales_of(c) * sizeof *c->scales,
                                    n_heads_of(c) * sizeof *c->weights, rows * sizeof *c->n_visible,
                                    rows * c->blocks_stride * sizeof *c->blocks, rows * sizeof *c->n_blocks, c->part_bytes};
            const void   *from[] = {c->codes, c->scales, c->weights, c->n_visible, c->blocks, c->n_blocks, NULL};

            for (size_t k = 0; k < part; k++)
                if (pass)
                    put(&at, what == PARTS ? c->parts[k] : from[what], size[what]);
                else
                    all += size[what];
        }
        if (!pass)
            at = bytes = get(all);
    }
    on_device = to_device(bytes, all);
    free(bytes);
    return on_device;
}

/* On the device; all tables of parts stand one behind the other. */
static kvi_slice *slices_on_device(const batch *b, kvi_slice *slices)
{
    size_t                 n_parts = 0, k = 0;
    uint8_t               *part = joined(b, PARTS), **parts;
    uint8_t *const        *table;

    for (size_t i = 0; i < b->n; i++)
        n_parts += b->slices[i].n_parts;
    parts = get(n_parts * sizeof *parts);
    for (size_t i = 0; i < b->n; i++)
        for (size_t j = 0; j < b->slices[i].n_parts; j++, part += b->slices[i].part_bytes)
            parts[k++] = part;
    table = table_to_device(parts, n_parts);
    free(parts);
    for (size_t i = 0; i < b->n; table += b->slices[i].n_parts, i++)
        slices[i] = (kvi_slice){.index_parts = table};
    return to_device(slices, b->n * sizeof *slices);
}

static kvi_index_score_params batch_params(const batch *b, kvi_slice *slices)
{
    kvi_index_score_params p = params_of(b->slices);
    const size_t           n = n_rows_of(b);

    p.keys.index_parts = NULL;
    p.codes = joined(b, CODES);
    p.scales = joined(b, SCALES);
    p.weights = joined(b, WEIGHTS);
    p.n_visible = joined(b, VISIBLE);
    if (p.blocks) {
        p.blocks = joined(b, LISTS);
        p.n_blocks = joined(b, N_LISTS);
    }
    p.scores = to_device_at(NULL, n * p.scores_stride * sizeof *p.scores, 4);
    p.n_rows = n;
    p.all = b->all;
    p.of = (kvi_slices){.slices = slices_on_device(b, slices), .each = b->each};
    p.max_stride = batch_max_of(b);
    p.block_max = b->max ? to_device(NULL, n * p.max_stride * sizeof *p.block_max) : NULL;
    return p;
}

static void take_batch(const kvi_index_score_params *p, float *out)
{
    const size_t n = p->n_rows * p->scores_stride;

    from_device(out, p->scores, n * sizeof *out);
    if (p->block_max)
        from_device(out + n, p->block_max, p->n_rows * p->max_stride * sizeof *out);
}

static bool one_pass(uint32_t be) { return be == 8 || be == 16 || be == 32; }

static void run_batch(const void *arg, void *out)
{
    static kvi_slice             slices[MAX_SLICES];
    const batch                 *b = arg;
    const kvi_index_score_params p = batch_params(b, slices);
    const uint64_t               before = emulated ? emu.launches() : 0;

    GPU(index_score, &p);
    take_batch(&p, out);
    if (emulated) /* the maxima of some sizes are made by a second one */
        assert_int_equal(emu.launches() - before, b->max && !one_pass(p.block_entries) ? 2 : 1);
    device_free_all();
}

/* Scores and maxima, of one timeline after the other. */
static float *want_of(const batch *b, size_t *n_floats)
{
    const scene *first = b->slices;
    const size_t stride = first->scores_stride, n = n_rows_of(b) * stride, n_max = batch_max_of(b);
    float       *want;

    *n_floats = n + n_rows_of(b) * n_max;
    want = get(*n_floats * sizeof *want);
    memset(want, GUARD, *n_floats * sizeof *want);
    for (size_t i = 0, row = 0; i < b->n; row += b->slices[i++].s.n_rows) {
        const scene           *c = &b->slices[i];
        kvi_index_score_params p = params_of(c);

        p.scores = want + row * stride;
        p.max_stride = 0;
        CPU(index_score, &p);
        for (size_t r = 0; r < c->s.n_rows; r++)
            if (b->all && c->n_visible[r] <= b->all)
                memset(p.scores + r * stride, GUARD, stride * sizeof *want);
        if (b->max)
            want_maxima(c, b->all, p.scores, want + n + row * n_max, n_max);
    }
    return want;
}

static void check_batch(const batch *b)
{
    size_t n = 0, n_scores = n_rows_of(b) * b->slices[0].scores_stride;
    float *want = want_of(b, &n), *got = get(n * sizeof *got);

    gpu_run(run_batch, b, got, n * sizeof *got);
    assert_same(got, want, n_scores, false);
    assert_same(got + n_scores, want + n_scores, n - n_scores, true);
    free(want);
    free(got);
}

static batch *batch_new(size_t n, size_t each, uint64_t all)
{
    batch *b = get(sizeof *b);

    b->n = n;
    b->each = each;
    b->all = all;
    return b;
}

static void batch_free(batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        scene_free(&b->slices[i]);
    free(b);
}

static const uint64_t all_of[] = {0, 20, UINT64_MAX, 60, 0, 1};

static void test_timelines(void **state)
{
    static const uint32_t widths[] = {128, 128, 64, 256, 96}, heads[] = {32, 4, 40, 1}, maxima[] = {8, 16, 5, 32, 24, 1, 64};
    static const size_t   each[] = {1, 6, 1, 2, 13, 1, 3, 6}, n[] = {2, 5, 9, 3, 2, 17, 1, 7};

    (void)state;
    for (uint32_t t = 0; t < 30; t++) {
        batch       *b = batch_new(n[t % 8], each[t % 8], all_of[t % 6]);
        const size_t most = 130;

        b->max = t % 4 != 3;
        for (size_t i = 0; i < b->n; i++) {
            const shape s = {.width = widths[t % 5], .n_heads = heads[t % 4],
                             .n_rows = i + 1 == b->n && t % 3 == 1 ? (b->each + 1) / 2 : b->each,
                             .rows_per_block = t % 2 ? 24 : 64, .index_off = t % 3 == 0 ? 0 : t % 3 == 1 ? 544 : 40,
                             .n_entries = 1 + below(most)};
            scene      *c = &b->slices[i];

            *c = scene_new(s, t % 5 == 4 ? 9 : 2, 2);
            c->scores_stride = most + t;
            c->block_entries = maxima[t % 7];
            for (size_t r = 0; r < s.n_rows; r++)
                c->n_visible[r] = below(6) == 0 ? 0 : s.n_entries - below((uint32_t)s.n_entries) * (t % 2);
        }
        check_batch(b);
        batch_free(b);
    }
}

static void test_blocks_of_timelines(void **state)
{
    static const uint32_t sizes[] = {8, 16, 4, 3, 1, 24};
    static const size_t   each[] = {1, 6, 1, 2}, n[] = {6, 2, 3, 5};

    (void)state;
    for (uint32_t t = 0; t < 24; t++) {
        batch *b = batch_new(n[t % 4], each[t % 4], all_of[t / 2 % 6]);

        for (size_t i = 0; i < b->n; i++) {
            const shape s = {.width = t % 3 ? 128 : 64, .n_heads = t % 2 ? 32 : 3, .n_rows = b->each, .rows_per_block = 24,
                             .index_off = t % 2 ? 0 : 272, .n_entries = sizes[t % 6] * (1 + below(20))};

            b->slices[i] = scene_new(s, 2, 2);
            b->slices[i].block_entries = sizes[t % 6];
            list_blocks(&b->slices[i], 12, t);
        }
        check_batch(b);
        batch_free(b);
    }
}

/* Timelines of very different lengths: blocks are dealt out, and a short one gets its own. */
static void test_a_batch_of_lengths(void **state)
{
    static const size_t lengths[4][8] = {{3, 3000, 9, 0, 40, 700, 1, 256}, {2100, 2100}, {0, 0, 0}, {1, 1, 33, 31, 32, 64, 1500}};
    static const size_t n[4] = {8, 2, 3, 7};

    (void)state;
    for (uint32_t t = 0; t < 8; t++) {
        batch *b = batch_new(n[t % 4], t < 4 ? 1 : 6, t == 4 ? 300 : 0);

        b->max = true;
        for (size_t i = 0; i < b->n; i++) {
            const size_t length = t < 4 ? lengths[t % 4][i] : lengths[t % 4][i] / 3;
            const shape  s = {.width = t % 2 ? 64 : 128, .n_heads = 2, .n_rows = b->each, .rows_per_block = 128,
                              .n_entries = length + 1};

            b->slices[i] = scene_new(s, 2, 2);
            b->slices[i].scores_stride = 3001 + t;
            for (size_t r = 0; r < s.n_rows; r++)
                b->slices[i].n_visible[r] = length > r ? length - r : 0;
        }
        check_batch(b);
        batch_free(b);
    }
}

/* Up to 256 tiles blocks are dealt out, also where there are fewer to deal than tiles. One order of threads will do. */
static void test_many_timelines(void **state)
{
    static const size_t n_slices[] = {MAX_SLICES, 256};

    (void)state;
    for (size_t t = 0; t < 2; t++) {
        batch *b = batch_new(n_slices[t], 1, 1);
        size_t n = 0;
        float *want, *got;

        for (size_t i = 0; i < b->n; i++) {
            b->slices[i] = scene_new((shape){.width = 32, .n_heads = 1, .n_rows = 1, .rows_per_block = 8, .n_entries = 40}, 2, 2);
            b->slices[i].n_visible[0] = t || i % 41 == 7 ? 1 + i % 40 : i % 2;
        }
        want = want_of(b, &n);
        got = get(n * sizeof *got);
        run_batch(b, got);
        assert_same(got, want, n, false);
        free(want);
        free(got);
        batch_free(b);
    }
}

/* A recorded call follows what the tables say when it runs. */
static void test_timelines_recorded(void **state)
{
    static kvi_slice       slices[MAX_SLICES];
    batch                 *b = batch_new(5, 1, 16);
    kvi_graph             *graph = NULL;
    kvcsa_error            err = {0};
    kvi_index_score_params p;
    size_t                 n = 0;

    (void)state;
    b->max = true;
    for (size_t i = 0; i < b->n; i++) {
        b->slices[i] = scene_new((shape){.width = 128, .n_heads = 32, .n_rows = 1, .rows_per_block = 64, .n_entries = 150}, 2, 2);
        b->slices[i].n_visible[0] = 1;
    }
    p = batch_params(b, slices);
    GPU(index_score, &p);
    must(gpu_ops->graph_begin(gpu, &err), &err);
    GPU(index_score, &p);
    must(gpu_ops->graph_end(gpu, &graph, &err), &err);
    for (size_t t = 0; t < 4; t++) {
        const kvi_slice last = slices[b->n - 1];
        const scene     turned = b->slices[b->n - 1];
        uint64_t        visible[5];
        uint8_t         guard[5 * 150 * 8];
        float          *want, *got;

        for (size_t i = b->n - 1; i > 0; i--) { /* keys move on to the next row; queries stay */
            slices[i] = slices[i - 1];
            b->slices[i].parts = b->slices[i - 1].parts;
        }
        slices[0] = last;
        b->slices[0].parts = turned.parts;
        for (size_t i = 0; i < b->n; i++)
            visible[i] = b->slices[i].n_visible[0] = below(151);
        want = want_of(b, &n);
        got = get(n * sizeof *got);
        memset(guard, GUARD, sizeof guard);
        must(gpu_ops->mem_copy(gpu, (void *)(uintptr_t)p.of.slices, slices, b->n * sizeof *slices, KVI_COPY_IN, &err), &err);
        must(gpu_ops->mem_copy(gpu, (void *)(uintptr_t)p.n_visible, visible, sizeof visible, KVI_COPY_IN, &err), &err);
        must(gpu_ops->mem_copy(gpu, p.scores, guard, 5 * 150 * sizeof(float), KVI_COPY_IN, &err), &err);
        must(gpu_ops->mem_copy(gpu, p.block_max, guard, 5 * p.max_stride * sizeof(float), KVI_COPY_IN, &err), &err);
        must(gpu_ops->graph_run(gpu, graph, &err), &err);
        take_batch(&p, got);
        assert_same(got, want, n, true);
        free(want);
        free(got);
    }
    gpu_ops->graph_free(gpu, graph);
    device_free_all();
    batch_free(b);
}

/* ---- refusals ---- */

static void refuse(const kvi_index_score_params *p, const char *text)
{
    kvcsa_error err = {0};

    assert_int_equal(gpu_ops->index_score(gpu, p, &err), KVCSA_ERR_UNSUPPORTED);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" lacks \"%s\"", err.text, text);
}

static void test_limits_are_refused(void **state)
{
    static const struct {
        uint32_t    width, value_bytes, rows_per_block, off, n_heads;
        const char *text;
    } cases[] = {{288, 144, 64, 0, 32, "up to 256"}, {48, 24, 64, 0, 32, "multiples of 32"}, {0, 0, 64, 0, 32, "multiples of 32"},
                 {128, 64, 64, 0, 65, "1 to 64"},    {128, 64, 64, 0, 0, "1 to 64"},         {128, 128, 64, 0, 32, "not FP4"},
                 {128, 64, 12, 0, 32, "of 8"},       {128, 64, 64, 4, 32, "of 8"},           {128, 64, 0, 0, 32, "of 8"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kvi_kv_owner     o = {.rows_per_block = cases[i].rows_per_block,
                                    .index_width = cases[i].width,
                                    .index_off = cases[i].off,
                                    .index_value_bytes = cases[i].value_bytes,
                                    .index_row_bytes = cases[i].value_bytes + cases[i].width / 32};
        kvi_index_score_params p = {
            .keys.owner = &o, .n_heads = cases[i].n_heads, .n_rows = 1, .scores_stride = 8, .block_entries = 8};

        refuse(&p, cases[i].text);
    }
    const kvi_kv_owner     o = {.rows_per_block = 64, .index_width = 128, .index_value_bytes = 64, .index_row_bytes = 68};
    kvi_index_score_params p = {.keys.owner = &o, .n_heads = 32, .n_rows = 1, .scores_stride = (size_t)1 << 31};

    refuse(&p, "2^31 - 1");
    p.scores_stride = 8;
    p.block_max = to_device(NULL, 4);
    refuse(&p, "blocks of 0");
    p.block_entries = 8;
    p.blocks = to_device(NULL, 4);
    refuse(&p, "maxima");
    p.block_entries = 0;
    p.block_max = NULL;
    refuse(&p, "blocks of 0");
    p.codes = (const int8_t *)to_device(NULL, 64) + 4;
    refuse(&p, "of 8 bytes");
    device_free_all();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_shapes),          cmocka_unit_test(test_every_length),
    cmocka_unit_test(test_long_context),    cmocka_unit_test(test_candidate_blocks),
    cmocka_unit_test(test_rows_do_not_mix), cmocka_unit_test(test_every_scale),
    cmocka_unit_test(test_bounds_of_the_fast_path), cmocka_unit_test(test_largest_sums),
    cmocka_unit_test(test_odd_values),      cmocka_unit_test(test_limits_are_refused),
    cmocka_unit_test(test_timelines),       cmocka_unit_test(test_blocks_of_timelines),
    cmocka_unit_test(test_a_batch_of_lengths), cmocka_unit_test(test_many_timelines),
    cmocka_unit_test(test_timelines_recorded),
};

CUDA_MAIN(tests)
