/* Index scores: every instruction set of this machine against scores written here from op_params.h, bit for bit: shapes, all codes
 * of key scales with all scales of queries, zeros of both signs, poison, candidate blocks, memory that ends at a page end. */
#include "support/cache_ops.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_MASKS = 3, MAX_HEADS = 70 };

static uint32_t masks[MAX_MASKS];
static size_t   n_masks;

static void add_mask(uint32_t mask, const char *name)
{
    if ((kvi_cpu_flags(0) & mask) == mask)
        masks[n_masks++] = mask;
    else
        printf("skipped: this machine has no %s\n", name);
}

static kvi_device device_of(size_t threads, size_t mask)
{
    kvi_device dev = devices[threads - 1];

    kvi_index_init(&dev.index, masks[mask]);
    return dev;
}

/* ---------------------------------------------------------------- memory that ends at a page end */

typedef struct arena {
    uint8_t *map;
    size_t   bytes;
    size_t   page;
} arena;

/* `bytes` bytes between pages that fault: the one behind touches them. */
static void *arena_init(arena *a, size_t bytes)
{
    a->page = (size_t)sysconf(_SC_PAGESIZE);
    a->bytes = (bytes + a->page - 1) / a->page * a->page + 2 * a->page;
    a->map = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(a->map != MAP_FAILED);
    assert_int_equal(mprotect(a->map, a->page, PROT_NONE), 0);
    assert_int_equal(mprotect(a->map + a->bytes - a->page, a->page, PROT_NONE), 0);
    return a->map + a->bytes - a->page - bytes;
}

static void arena_fini(arena *a)
{
    munmap(a->map, a->bytes);
}

/* ---------------------------------------------------------------- one case */

typedef struct shape {
    uint32_t width;
    uint32_t n_heads;
    size_t   n_rows;
    uint32_t rows_per_block;
    size_t   n_entries;
} shape;

/* Keys, queries, scores; everything ends at a page end, keys begin at odd addresses. */
typedef struct scene {
    shape        s;
    kvi_kv_owner owner;
    size_t       n_blocks;
    size_t       part_bytes;
    uint8_t    **parts;
    arena       *part_arenas;
    arena        arenas[4];
    int8_t      *codes;
    float       *scales;
    float       *weights;
    float       *scores;
    size_t       n_scores; /* all rows */
} scene;

static uint8_t *values_at(const scene *c, size_t entry)
{
    const size_t row = entry % c->s.rows_per_block;

    return c->parts[entry / c->s.rows_per_block] + 40 + row / 8 * 8 * c->owner.index_row_bytes +
           row % 8 * c->owner.index_value_bytes;
}

static uint8_t *scales_at(const scene *c, size_t entry)
{
    const size_t row = entry % c->s.rows_per_block;

    return c->parts[entry / c->s.rows_per_block] + 40 + row / 8 * 8 * c->owner.index_row_bytes +
           (size_t)8 * c->owner.index_value_bytes + row % 8 * (c->s.width / 32);
}

/* Random codes; scales of keys and of queries spread around 1. */
static void scene_init(scene *c, prng *r, shape s, uint32_t spread, uint32_t q_spread, size_t n_scores)
{
    static const int8_t values[15] = {0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12};
    const size_t        n = s.n_rows * s.n_heads;

    memset(c, 0, sizeof *c);
    c->s = s;
    c->owner = (kvi_kv_owner){.ratio = 1, .rows_per_block = s.rows_per_block, .index_width = s.width, .index_value_bytes = s.width / 2,
                              .index_row_bytes = s.width / 2 + s.width / 32, .index_off = 40};
    c->n_blocks = (s.n_entries + s.rows_per_block - 1) / s.rows_per_block;
    c->part_bytes = 40 + (size_t)s.rows_per_block * c->owner.index_row_bytes;
    c->parts = get(c->n_blocks * sizeof *c->parts);
    c->part_arenas = get(c->n_blocks * sizeof *c->part_arenas);
    for (size_t b = 0; b < c->n_blocks; b++) {
        c->parts[b] = arena_init(&c->part_arenas[b], c->part_bytes);
        prng_fill(r, c->parts[b], c->part_bytes);
    }
    for (size_t e = 0; e < c->n_blocks * s.rows_per_block; e++)
        for (size_t g = 0; g < s.width / 32; g++)
            scales_at(c, e)[g] = (uint8_t)(127 - spread / 2 + prng_below(r, spread + 1));
    c->codes = arena_init(&c->arenas[0], n * s.width);
    c->scales = arena_init(&c->arenas[1], n * (s.width / 32) * sizeof(float));
    c->weights = arena_init(&c->arenas[2], n * sizeof(float));
    c->scores = arena_init(&c->arenas[3], n_scores * sizeof(float));
    c->n_scores = n_scores;
    for (size_t i = 0; i < n * s.width; i++)
        c->codes[i] = values[prng_below(r, 15)];
    for (size_t i = 0; i < n * (s.width / 32); i++)
        c->scales[i] = ldexpf(1, (int)prng_below(r, q_spread + 1) - (int)q_spread / 2);
    fill_normal(r, c->weights, n, 0.1f);
}

static void scene_fini(scene *c)
{
    for (size_t b = 0; b < c->n_blocks; b++)
        arena_fini(&c->part_arenas[b]);
    for (size_t i = 0; i < 4; i++)
        arena_fini(&c->arenas[i]);
    free(c->parts);
    free(c->part_arenas);
}

/* One score: each line one rounding. The key's scale is halved, since its codes are doubled. */
static float naive_score(const scene *c, size_t row, size_t entry)
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    float               heads[128] = {0};
    size_t              n_tree = 1;

    for (size_t h = 0; h < c->s.n_heads; h++) {
        const size_t   at = row * c->s.n_heads + h;
        const int8_t  *q = c->codes + at * c->s.width;
        const uint8_t *k = values_at(c, entry);
        float          dot = 0.0f;

        for (size_t g = 0; g < c->s.width / 32; g++) {
            const unsigned code = scales_at(c, entry)[g];
            const float    scale = code == 255 ? NAN : ldexpf(1, (int)code - 128);
            int            sum = 0;
            float          product;

            for (size_t i = 32 * g; i < 32 * g + 32; i++)
                sum += q[i] * twice[i % 2 != 0 ? k[i / 2] >> 4 : k[i / 2] & 15];
            product = (float)sum * c->scales[at * (c->s.width / 32) + g];
            product = product * scale;
            dot = dot + product;
        }
        dot = dot < 0.0f ? 0.0f : dot;
        heads[h] = dot * c->weights[at];
    }
    while (n_tree < c->s.n_heads)
        n_tree *= 2;
    for (size_t half = n_tree / 2; half > 0; half /= 2)
        for (size_t h = 0; h < half; h++)
            heads[h] = heads[h] + heads[h + half];
    return heads[0];
}

static void assert_same(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(want[i])) {
            assert_true(isnan(got[i]));
        } else if (memcmp(got + i, want + i, sizeof *got) != 0) {
            print_error("score %zu is %a, want %a\n", i, (double)got[i], (double)want[i]);
            fail();
        }
    }
}

/* All masks and numbers of threads against naive scores. Candidate blocks may be NULL. What lies behind a row stays. */
static void check_scene(const scene *c, const uint64_t *n_visible, const int32_t *blocks, const uint32_t *n_blocks, uint32_t block_entries)
{
    const size_t stride = c->n_scores / c->s.n_rows;
    const size_t blocks_stride = blocks ? stride / block_entries : 0;
    const kvi_index_score_params p = {.keys = {&c->owner, c->parts, NULL}, .codes = c->codes, .scales = c->scales,
                                      .weights = c->weights, .n_visible = n_visible, .blocks = blocks, .n_blocks = n_blocks,
                                      .scores = c->scores, .scores_stride = stride, .blocks_stride = blocks_stride,
                                      .n_rows = c->s.n_rows, .n_heads = c->s.n_heads, .block_entries = block_entries};
    float *want = get(c->n_scores * sizeof *want);

    for (size_t row = 0; row < c->s.n_rows; row++) {
        const size_t n = blocks ? (size_t)n_blocks[row] * block_entries : (size_t)n_visible[row];

        for (size_t i = 0; i < stride; i++) {
            const size_t entry = blocks && i < n ? (size_t)blocks[row * blocks_stride + i / block_entries] * block_entries +
                                                       i % block_entries : i;

            want[row * stride + i] = i >= n ? -77.0f : entry < n_visible[row] ? naive_score(c, row, entry) : -INFINITY;
        }
    }
    for (size_t m = 0; m < n_masks; m++) {
        kvi_device dev = device_of(m % N_DEVICES + 1, m);

        for (size_t i = 0; i < c->n_scores; i++)
            c->scores[i] = -77.0f;
        assert_int_equal(kvi_cpu_index_score(&dev, &p, NULL), KVCSA_OK);
        assert_same(c->scores, want, c->n_scores);
    }
    free(want);
}

/* ---------------------------------------------------------------- shapes */

static void test_shapes(void **state)
{
    static const uint32_t widths[] = {32, 64, 96, 128, 160, 256};
    static const uint32_t heads[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 33, 64, MAX_HEADS};
    static const uint32_t spreads[] = {0, 3, 12};
    prng     r;
    uint64_t n_visible[19];

    (void)state;
    prng_init(&r, seed);
    for (size_t t = 0; t < 60; t++) {
        const shape s = {.width = t % 3 == 0 ? 128 : widths[t % 6], .n_heads = heads[t % 14],
                         .n_rows = 1 + prng_below(&r, t % 7 == 0 ? 19 : 2),
                         .rows_per_block = 8 * (uint32_t)(1 + prng_below(&r, 9)), .n_entries = 1 + prng_below(&r, 200)};
        scene c;

        scene_init(&c, &r, s, spreads[t / 2 % 3], spreads[t / 6 % 3], s.n_rows * s.n_entries);
        for (size_t i = 0; i < s.n_rows; i++)
            n_visible[i] = t % 2 != 0 ? prng_below(&r, s.n_entries + 1) : s.n_entries;
        check_scene(&c, n_visible, NULL, NULL, 0);
        scene_fini(&c);
    }
}

/* Every length around the tile of every variant. */
static void test_every_length(void **state)
{
    const shape s = {.width = 128, .n_heads = 4, .n_rows = 1, .rows_per_block = 64, .n_entries = 150};
    prng        r;
    scene       c;

    (void)state;
    prng_init(&r, seed + 1);
    scene_init(&c, &r, s, 2, 2, s.n_entries);
    for (uint64_t n = 0; n <= s.n_entries; n++)
        check_scene(&c, &n, NULL, NULL, 0);
    scene_fini(&c);
}

static void test_candidate_blocks(void **state)
{
    static const uint32_t sizes[] = {8, 16, 4, 3, 24, 1}; /* entries of a block: groups of keys and what is none */
    enum { ROWS = 3, LISTED = 12 };
    prng     r;
    uint64_t n_visible[ROWS];
    int32_t  blocks[ROWS * LISTED];
    uint32_t n_blocks[ROWS];

    (void)state;
    prng_init(&r, seed + 2);
    for (size_t t = 0; t < 24; t++) {
        const uint32_t size = sizes[t % 6];
        const shape    s = {.width = t % 2 != 0 ? 64 : 128, .n_heads = t % 4 == 0 ? 32 : 3, .n_rows = ROWS,
                            .rows_per_block = 24, .n_entries = 480};
        scene c;

        memset(blocks, 0xff, sizeof blocks);
        for (size_t i = 0; i < ROWS; i++) {
            n_visible[i] = t == 5 ? 0 : prng_range(&r, 1, 20 * size);
            n_blocks[i] = 0;
            for (int32_t b = 0; (uint64_t)b * size < n_visible[i] && n_blocks[i] < LISTED; b++)
                if ((uint64_t)(b + 1) * size >= n_visible[i] || prng_below(&r, 2) != 0)
                    blocks[i * LISTED + n_blocks[i]++] = b;
            if (t % 3 == 0 && n_blocks[i] < LISTED && n_visible[i] <= 19 * size)
                blocks[i * LISTED + n_blocks[i]++] = 19; /* nothing of it is visible */
        }
        scene_init(&c, &r, s, t % 5 == 0 ? 12 : 2, 2, (size_t)ROWS * LISTED * size);
        check_scene(&c, n_visible, blocks, n_blocks, size);
        scene_fini(&c);
    }
}

/* ---------------------------------------------------------------- values */

/* Scales 2^(x - 128) .. 2^(x - 128 + 3) of queries against keys whose codes stand in c. Large weights show the last bits of
 * subnormal products. */
static void check_query_scale(scene *c, prng *r, int x, int step)
{
    const uint64_t n_visible = c->s.n_entries;

    for (size_t i = 0; i < c->s.n_heads * 4; i++) {
        const int e = x + (step ? (int)(i % 4) * step : (int)prng_below(r, 4));

        c->weights[i / 4] = x % 3 == 0 ? 0.1f : 333.0f;
        c->scales[i] = x == 256 ? NAN : x == 0 && i % 2 != 0 ? 0.0f : ldexpf(1, e % 255 - 128);
    }
    check_scene(c, &n_visible, NULL, NULL, 0);
}

/* Every scale of a query (0, 2^-128 .. 2^126, NaN) with every code of a key's scale. */
static void test_every_scale(void **state)
{
    const shape s = {.width = 128, .n_heads = 3, .n_rows = 1, .rows_per_block = 128, .n_entries = 256};
    prng        r;
    scene       c;

    (void)state;
    prng_init(&r, seed + 3);
    for (int near = 0; near < 2; near++) { /* blocks alike, or not */
        scene_init(&c, &r, s, 0, 0, s.n_entries);
        for (size_t e = 0; e < s.n_entries; e++)
            for (size_t g = 0; g < 4; g++)
                scales_at(&c, e)[g] = (uint8_t)(near && e < 252 ? e + prng_below(&r, 4) : near ? e : prng_below(&r, 256));
        for (int x = 0; x < 257; x++)
            check_query_scale(&c, &r, x, near ? 0 : 60);
        scene_fini(&c);
    }
}

/* Tiles of keys that are all on one side of a bound, with scales of queries on both sides of theirs: where products leave the
 * range of normal floats, below and above. */
static void test_scales_at_the_bounds(void **state)
{
    static const int cases[][3] = {{0, 80, 115}, {1, 80, 115}, {183, 145, 180}, {186, 145, 180}, {200, 145, 180}}; /* code, x */
    const shape s = {.width = 128, .n_heads = 4, .n_rows = 1, .rows_per_block = 64, .n_entries = 64};
    prng        r;
    scene       c;

    (void)state;
    prng_init(&r, seed + 8);
    for (size_t t = 0; t < 5; t++) {
        scene_init(&c, &r, s, 0, 0, s.n_entries);
        for (size_t e = 0; e < s.n_entries; e++)
            for (size_t g = 0; g < 4; g++)
                scales_at(&c, e)[g] = (uint8_t)((unsigned)cases[t][0] + e % 16 + prng_below(&r, 4));
        for (int x = cases[t][1]; x < cases[t][2]; x++) {
            check_query_scale(&c, &r, x, 0);
            check_query_scale(&c, &r, x, 2);
        }
        scene_fini(&c);
    }
}

/* Every pair of packed codes and all the signs, at the largest sums. */
static void test_largest_sums(void **state)
{
    const shape s = {.width = 256, .n_heads = 8, .n_rows = 1, .rows_per_block = 64, .n_entries = 256};
    const uint64_t n_visible = 256;
    prng           r;
    scene          c;

    (void)state;
    prng_init(&r, seed + 4);
    scene_init(&c, &r, s, 3, 3, s.n_entries);
    for (size_t e = 0; e < s.n_entries; e++)
        memset(values_at(&c, e), (int)e, s.width / 2); /* 0x77 and 0xff among them */
    for (size_t i = 0; i < s.n_heads * s.width; i++)
        c.codes[i] = (int8_t)(i / s.width % 2 ? -12 : 12);
    check_scene(&c, &n_visible, NULL, NULL, 0);
    scene_fini(&c);
}

/* Scales and weights that no quantiser makes; +0 and -0 come out as op_params.h says. */
static void test_odd_values(void **state)
{
    static const float odd[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.1f, 3e38f, -3e38f, 1e-40f, 0x1p-149f, INFINITY, -INFINITY, NAN};
    static const uint32_t heads[] = {1, 2, 3, 5, 32};
    prng r;

    (void)state;
    prng_init(&r, seed + 5);
    for (size_t t = 0; t < 120; t++) {
        const shape s = {.width = t % 2 != 0 ? 128 : 64, .n_heads = heads[t % 5], .n_rows = 2, .rows_per_block = 64, .n_entries = 70};
        const uint64_t n_visible[2] = {70, 70};
        scene c;

        scene_init(&c, &r, s, t % 3 == 0 ? 10 : 1, 2, 140);
        for (size_t i = 0; i < 2 * s.n_heads * (s.width / 32); i++) /* whole blocks of zeros too */
            if (prng_below(&r, 3) == 0)
                memset(c.codes + i * 32, 0, 32);
        for (size_t i = 0; t % 4 < 2 && i < 2 * s.n_heads * (s.width / 32); i++)
            if (prng_below(&r, 4) == 0)
                c.scales[i] = odd[t % 3 == 0 ? prng_below(&r, 12) : t / 4 % 12];
        for (size_t i = 0; t % 4 != 1 && i < 2 * s.n_heads; i++)
            c.weights[i] = odd[prng_below(&r, t % 3 == 0 ? 12 : 4)];
        if (t % 5 == 0)
            memset(c.codes, 0, s.n_heads * s.width); /* nothing but zeros: the sign is the weights' */
        if (t % 7 == 0)
            scales_at(&c, 33)[0] = 255;
        check_scene(&c, n_visible, NULL, NULL, 0);
        scene_fini(&c);
    }
}

/* Scales and weights on both sides of the bounds of LEVEL (index_quad.h), and weights that all have a sign, where scores are -0. */
static void test_level_bounds(void **state)
{
    static const uint32_t heads[] = {1, 3, 4, 8, 32};
    static const int      powers[] = {-126, -70, -62, -61, -60, -59, -1, 38, 39, 40, 41, 42, 70};
    const uint64_t        n_visible = 64;
    prng                  r;

    (void)state;
    prng_init(&r, seed + 9);
    for (size_t t = 0; t < 13 * 5; t++) {
        const shape s = {.width = 128, .n_heads = heads[t % 5], .n_rows = 1, .rows_per_block = 64, .n_entries = 64};
        scene       c;

        for (int near = 0; near < 4; near++) { /* codes of keys about 67, 167, 127 */
            scene_init(&c, &r, s, 3, 3, 64);
            for (size_t e = 0; near != 2 && e < s.n_entries; e++)
                for (size_t g = 0; g < 4; g++)
                    scales_at(&c, e)[g] = (uint8_t)((near == 0 ? 66 : near == 1 ? 165 : 67) + prng_below(&r, 4));
            for (size_t h = 0; h < s.n_heads; h++) {
                c.weights[h] = ldexpf(c.weights[h] < 0 ? -1.7f : 1.3f, powers[t / 5]);
                c.weights[h] = near % 2 != 0 || t % 2 != 0 ? c.weights[h] : -fabsf(c.weights[h]);
            }
            memset(c.codes, 0, t % 3 == 0 ? s.n_heads * s.width : 0);
            check_scene(&c, &n_visible, NULL, NULL, 0);
            scene_fini(&c);
        }
    }
}

/* ---------------------------------------------------------------- rows, threads, memory */

/* Neither the rows beside it nor threads change a row. */
static void test_rows_alone_and_together(void **state)
{
    enum { ROWS = 37, N = 700 };
    const shape s = {.width = 128, .n_heads = 32, .n_rows = ROWS, .rows_per_block = 64, .n_entries = N};
    uint64_t    n_visible[ROWS];
    float      *want = get(ROWS * N * sizeof *want);
    prng        r;
    scene       c;

    (void)state;
    prng_init(&r, seed + 6);
    scene_init(&c, &r, s, 4, 3, ROWS * N);
    c.scales[5 * 32 * 4 + 7] = NAN; /* row 5 */
    for (size_t i = 0; i < ROWS; i++)
        n_visible[i] = N - ROWS + i;
    for (size_t i = 0; i < ROWS * N; i++)
        want[i] = c.scores[i] = -77.0f;
    for (size_t m = 0; m < n_masks; m++) {
        for (size_t d = 1; d <= N_DEVICES; d++) {
            kvi_device             dev = device_of(d, m);
            kvi_index_score_params p = {.keys = {&c.owner, c.parts, NULL}, .codes = c.codes, .scales = c.scales,
                                        .weights = c.weights, .n_visible = n_visible, .scores = c.scores,
                                        .scores_stride = N, .n_rows = ROWS, .n_heads = 32};

            assert_int_equal(kvi_cpu_index_score(&dev, &p, NULL), KVCSA_OK);
            for (size_t i = 0; d == 1 && m == 0 && i < ROWS; i++) {
                kvi_index_score_params one = p;

                one.codes += i * 32 * 128;
                one.scales += i * 32 * 4;
                one.weights += i * 32;
                one.n_visible += i;
                one.scores = want + i * N;
                one.n_rows = 1;
                assert_int_equal(kvi_cpu_index_score(&dev, &one, NULL), KVCSA_OK);
            }
            assert_same(c.scores, want, ROWS * N);
        }
    }
    check_guard(want, ROWS * N * sizeof *want);
    free(want);
    scene_fini(&c);
}

static void test_scratch_failures(void **state)
{
    const shape s = {.width = 128, .n_heads = 32, .n_rows = 20, .rows_per_block = 64, .n_entries = 300};
    uint64_t    n_visible[20];
    prng        r;
    scene       c;

    (void)state;
    prng_init(&r, seed + 7);
    scene_init(&c, &r, s, 2, 2, 20 * 300);
    for (size_t i = 0; i < 20; i++)
        n_visible[i] = 300;
    for (size_t m = 0; m < n_masks; m++) {
        for (size_t d = 1; d <= N_DEVICES; d++) {
            const size_t before = memory.n_blocks;

            for (uint64_t n = 1;; n++) {
                kvi_device             dev = device_of(d, m);
                kvcsa_error            err = {0};
                kvi_index_score_params p = {.keys = {&c.owner, c.parts, NULL}, .codes = c.codes, .scales = c.scales,
                                            .weights = c.weights, .n_visible = n_visible, .scores = c.scores,
                                            .scores_stride = 300, .n_rows = 20, .n_heads = 32};
                kvcsa_status st;

                fault_alloc_fail_at(&memory, n);
                st = kvi_cpu_index_score(&dev, &p, &err);
                assert_int_equal(memory.n_blocks, before);
                assert_int_equal(st, fault_alloc_hit(&memory) ? KVCSA_ERR_NOMEM : KVCSA_OK);
                assert_int_equal(err.status, st);
                if (!fault_alloc_hit(&memory))
                    break;
                assert_true(n < 100);
            }
            fault_alloc_fail_at(&memory, 0);
        }
    }
    scene_fini(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_every_length),
        cmocka_unit_test(test_candidate_blocks),
        cmocka_unit_test(test_every_scale),
        cmocka_unit_test(test_scales_at_the_bounds),
        cmocka_unit_test(test_largest_sums),
        cmocka_unit_test(test_odd_values),
        cmocka_unit_test(test_level_bounds),
        cmocka_unit_test(test_rows_alone_and_together),
        cmocka_unit_test(test_scratch_failures),
    };

    seed = prng_seed(argc, argv, 20261);
    add_mask(0, "portable C");
#if defined(KVI_ARCH_X86_64)
    add_mask(KVCSA_CPU_AVX2, "AVX2");
    add_mask(KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512, "AVX-512");
#elif defined(KVI_ARCH_ARM64)
    add_mask(KVCSA_CPU_NEON, "NEON");
    add_mask(KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD, "DOTPROD");
#endif
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
