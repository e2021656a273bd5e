/* Selection: the kernels of every instruction set of this machine against loops written here, and the operators with them on
 * shapes of scores that single methods stumble over. Results have one right value, so what is checked is that: the ids ascend,
 * and nothing that was left out is better than the worst that was taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "cpu/cpu_ops.h"
#include "support/fault_alloc.h"
#include "support/prng.h"

enum { MAX_MASKS = 3, N_THREADS = 3, GUARD = 0xA7 };

static uint64_t     seed;
static fault_alloc  memory;
static kvi_threads *threads[N_THREADS];
static kvi_device   devices[MAX_MASKS][N_THREADS]; /* with 1, 2 and 3 threads; the first mask is portable C */
static size_t       n_masks;

/* ---------------------------------------------------------------- memory that ends where a page ends */

typedef struct fence {
    uint8_t *map;
    size_t   bytes;
} fence;

static fence  fences[16]; /* a stack */
static size_t n_fences;

static void *fenced(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t whole = (bytes + page - 1) / page * page;
    fence       *f = &fences[n_fences++];

    assert_true(n_fences < sizeof fences / sizeof *fences);
    f->bytes = whole + page;
    f->map = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f->map != MAP_FAILED);
    memset(f->map, GUARD, whole);
    assert_int_equal(mprotect(f->map + whole, page, PROT_NONE), 0);
    return f->map + whole - bytes;
}

static void drop_fences(size_t n_kept)
{
    while (n_fences > n_kept) {
        n_fences--;
        munmap(fences[n_fences].map, fences[n_fences].bytes);
    }
}

/* ---------------------------------------------------------------- scores */

enum { N_SHAPES = 17 };

/* Sums of four: as good as a normal distribution here, and far cheaper under an emulator. */
static float bell(prng *r)
{
    const uint64_t u = prng_u64(r);

    return ((float)(u & 0xffff) + (float)(u >> 16 & 0xffff) + (float)(u >> 32 & 0xffff) + (float)(u >> 48)) * 0x1p-15f - 4.0f;
}

static void fill_shape(prng *r, size_t shape, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float v = bell(r);

        switch (shape) {
        case 0: x[i] = v; break;
        case 1: x[i] = i % 4 == 0 ? 0.0f : fmaxf(v, 0); break; /* zero every 4th */
        case 2: x[i] = v > 2.2f ? v : 0.0f; break; /* few above zero */
        case 3: x[i] = -3.5f; break;
        case 4: x[i] = 1 + 1e-4f * v; break; /* narrow */
        case 5: x[i] = (float)i; break;
        case 6: x[i] = -(float)i; break;
        case 7: x[i] = rintf(v * 8) / 8; break; /* many ties */
        case 8: x[i] = prng_float_bits(r); break; /* anything at all */
        case 9: x[i] = v > 0 ? 0.0f : -0.0f; break;
        case 10: x[i] = i % 100 < 97 ? -INFINITY : v; break; /* mostly hidden */
        case 11: x[i] = v > 0.5f ? NAN : v < -1 ? -NAN : v; break;
        case 12: x[i] = v > 1.5f ? INFINITY : v < -1 ? -INFINITY : v; break;
        case 13: x[i] = v > 0 ? -NAN : -INFINITY; break; /* nothing to take */
        case 14: x[i] = v - 10; break;
        case 15: x[i] = v * 0x1p-140f; break; /* subnormal */
        default: x[i] = INFINITY; break;
        }
    }
}

/* ---------------------------------------------------------------- kernels */

/* A list in the middle of guarded arrays. */
typedef struct lists {
    kvi_select_list l;
    size_t          room;
} lists;

static lists make_list(size_t n, size_t cap)
{
    lists g = {.room = cap + KVI_SELECT_ROOM};

    g.l.scores = fenced(g.room * sizeof(float));
    g.l.at = fenced(g.room * sizeof(int32_t));
    g.l.n = n;
    g.l.cap = cap;
    for (size_t i = 0; i < n; i++) {
        g.l.scores[i] = (float)i - 7;
        g.l.at[i] = (int32_t)i - 50;
    }
    return g;
}

static void check_collect(const kvi_select_kernels *k, const float *x, size_t n, float least, size_t n_before, size_t cap)
{
    lists        g = make_list(n_before, cap);
    const size_t n_seen = k->collect(x, n, 1000, least, &g.l);
    size_t       at = n_before;

    assert_true(n_seen <= n && (n_seen == n || g.l.n >= cap));
    for (size_t i = 0; i < n_before; i++)
        assert_true(g.l.scores[i] == (float)i - 7 && g.l.at[i] == (int32_t)i - 50);
    for (size_t i = 0; i < n_seen; i++) {
        if (!(x[i] >= least))
            continue;
        assert_true(at < g.l.n);
        assert_memory_equal(&g.l.scores[at], &x[i], sizeof(float));
        assert_int_equal(g.l.at[at], 1000 + (int32_t)i);
        at++;
    }
    assert_int_equal(at, g.l.n);
    assert_true(g.l.n < cap + 64);
}

static void check_keep(const kvi_select_kernels *k, const float *x, size_t n, float least, float least2, size_t middle)
{
    lists  g = make_list(0, n);
    size_t at = 0;

    memcpy(g.l.scores, x, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        g.l.at[i] = (int32_t)(3 * i);
    k->keep(&g.l, 0, middle, least);
    k->keep(&g.l, middle, n, least2);
    for (size_t i = 0; i < n; i++) {
        if (!(x[i] >= (i < middle ? least : least2)))
            continue;
        assert_true(at < g.l.n);
        assert_memory_equal(&g.l.scores[at], &x[i], sizeof(float));
        assert_int_equal(g.l.at[at], (int32_t)(3 * i));
        at++;
    }
    assert_int_equal(at, g.l.n);
}

static void check_split(const kvi_select_kernels *k, const float *x, size_t n, float least)
{
    const kvi_select_split s = k->split(x, n, least);
    kvi_select_split       want = {0, INFINITY, -INFINITY};

    for (size_t i = 0; i < n; i++) {
        want.n += x[i] >= least;
        if (x[i] >= least && x[i] < want.above)
            want.above = x[i];
        if (!(x[i] >= least) && x[i] > want.below)
            want.below = x[i];
    }
    assert_int_equal(s.n, want.n);
    assert_true(s.above == want.above && s.below == want.below);
}

static void check_maxima(const kvi_select_kernels *k, const float *x, size_t n, size_t block_entries)
{
    const size_t n_blocks = (n + block_entries - 1) / block_entries;
    float       *maxima = fenced(n_blocks * sizeof *maxima);

    k->maxima(x, n, block_entries, maxima);
    for (size_t b = 0; b < n_blocks; b++) {
        float want = -INFINITY;

        for (size_t i = b * block_entries; i < (b + 1) * block_entries && i < n; i++)
            if (x[i] > want)
                want = x[i];
        assert_true(maxima[b] == want);
    }
}

static void check_kernels(const kvi_select_kernels *k, prng *r, const float *x, size_t n)
{
    static const size_t block_entries[] = {1, 3, 4, 7, 8, 16, 19, 64, 100000};
    static const float  bounds[] = {-FLT_MAX, 0, 1, INFINITY, NAN, -3.5f};

    for (size_t t = 0; t < 8; t++) {
        const float  least = t < 6 ? bounds[t] : n > 0 ? x[prng_below(r, n)] : 0;
        const size_t n_before = prng_below(r, 40);
        const size_t middle = prng_below(r, n + 1);

        check_collect(k, x, n, least, n_before, n_before + n + 1);
        check_collect(k, x, n, least, n_before, n_before + 1 + n / 3);
        check_keep(k, x, n, least, x[n - 1], middle);
        check_split(k, x, n, least);
        drop_fences(1); /* the scores stay */
    }
    for (size_t t = 0; t < sizeof block_entries / sizeof *block_entries; t++)
        check_maxima(k, x, n, block_entries[t]);
}

static void test_kernels_do_what_their_header_says(void **state)
{
    static const size_t sizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 517};
    prng r;

    (void)state;
    prng_init(&r, seed);
    for (size_t t = 0; t < sizeof sizes / sizeof *sizes; t++)
        for (size_t m = 0; m < n_masks; m++)
            for (size_t shape = t % 2; shape < N_SHAPES; shape += 2) {
                float *x = fenced(sizes[t] * sizeof *x);

                fill_shape(&r, shape, x, sizes[t]);
                check_kernels(&devices[m][0].select, &r, x, sizes[t]);
                drop_fences(0);
            }
}

/* ---------------------------------------------------------------- results */

/* ids: the k best of x, ascending, then -1. */
static void check_best(const float *x, size_t n, size_t k, const int32_t *ids, size_t n_ids)
{
    size_t n_left = 0; /* that could have been taken */
    size_t n_taken = 0;
    size_t last_tie = 0;
    float  worst = INFINITY;

    while (n_taken < n_ids && ids[n_taken] >= 0)
        n_taken++;
    for (size_t i = n_taken; i < n_ids; i++)
        assert_int_equal(ids[i], -1);
    for (size_t i = 0; i < n_taken; i++) {
        assert_true((size_t)ids[i] < n && (i == 0 || ids[i] > ids[i - 1]));
        assert_true(x[ids[i]] > -INFINITY);
        if (x[ids[i]] < worst)
            worst = x[ids[i]];
    }
    for (size_t i = 0; i < n_taken; i++)
        if (x[ids[i]] == worst)
            last_tie = (size_t)ids[i];
    for (size_t i = 0, at = 0; i < n; i++) {
        if (at < n_taken && (size_t)ids[at] == i) {
            at++;
        } else if (x[i] > -INFINITY) {
            n_left++;
            assert_true(x[i] < worst || (x[i] == worst && i > last_tie));
        }
    }
    assert_true(n_taken == k || (n_taken < k && n_left == 0));
}

static void check_topk(kvi_device *dev, const float *x, size_t n, size_t k)
{
    const uint64_t        n_scores = n;
    int32_t              *ids = fenced(k * sizeof *ids);
    const kvi_topk_params p = {.scores = x, .n_scores = &n_scores, .ids = ids, .scores_stride = n, .n_rows = 1, .k = (uint32_t)k};

    assert_int_equal(kvi_cpu_topk(dev, &p, NULL), KVCSA_OK);
    check_best(x, n, k, ids, k);
    drop_fences(0);
}

static void check_candidates(kvi_device *dev, const float *x, size_t n, size_t block_entries, size_t n_keep)
{
    const size_t                n_blocks = (n + block_entries - 1) / block_entries;
    const uint64_t              n_visible = n;
    const float                 nan = NAN;
    uint32_t                    n_out = 0;
    int32_t                    *blocks = malloc((n_keep + 1) * sizeof *blocks);
    float                      *maxima = malloc((n_blocks + 1) * sizeof *maxima);
    const kvi_candidates_params p = {.scores = n > 0 ? x : &nan, .n_visible = &n_visible, .blocks = blocks, .n_blocks = &n_out,
                                     .scores_stride = n, .n_rows = 1, .block_entries = (uint32_t)block_entries,
                                     .n_keep = (uint32_t)n_keep};

    assert_true(blocks != NULL && maxima != NULL);
    blocks[n_keep] = 77;
    assert_int_equal(kvi_cpu_candidates(dev, &p, NULL), KVCSA_OK);
    assert_int_equal(blocks[n_keep], 77);
    for (size_t b = 0; b < n_blocks; b++) {
        maxima[b] = -INFINITY;
        for (size_t i = b * block_entries; i < (b + 1) * block_entries && i < n; i++)
            if (x[i] > maxima[b])
                maxima[b] = x[i];
    }
    if (n_keep > 0 && n_blocks > 0) {
        assert_true(n_out > 0);
        assert_int_equal(blocks[n_out - 1], (int32_t)n_blocks - 1); /* the newest, whatever its scores are */
        blocks[n_out - 1] = -1;
        if (n_keep > 1)
            check_best(maxima, n_blocks - 1, n_keep - 1, blocks, n_keep);
    } else {
        assert_int_equal(n_out, 0);
    }
    free(blocks);
    free(maxima);
}

/* ---------------------------------------------------------------- sizes and shapes */

static void test_topk_of_every_shape(void **state)
{
    static const size_t sizes[] = {1, 5, 16, 31, 300, 1000, 2049, 4095, 4096, 4097, 4200, 16384, 20001};
    static const size_t ks[] = {1, 2, 33, 512, 2048, 5000};
    enum { MOST = 20001 };
    prng   r;
    float *x = malloc((MOST + 3) * sizeof *x);

    (void)state;
    assert_non_null(x);
    prng_init(&r, seed + 1);
    for (size_t t = 0; t < sizeof sizes / sizeof *sizes; t++)
        for (size_t shape = 0; shape < N_SHAPES; shape++) {
            float *at = x + t % 4;

            fill_shape(&r, shape, at, sizes[t]);
            for (size_t m = 0; m < n_masks; m++)
                for (size_t i = 0; i < sizeof ks / sizeof *ks; i++)
                    if (t < 5 || (shape + i) % 2 == 0)
                        check_topk(&devices[m][0], at, sizes[t], ks[i]);
        }
    free(x);
}

static void test_candidates_of_every_shape(void **state)
{
    static const size_t block_entries[] = {8, 8, 1, 3, 16, 20};
    static const size_t sizes[] = {0, 1, 7, 8, 9, 127, 1000, 4097 * 8 + 3, 50000, 65536};
    enum { MOST = 65536 };
    prng   r;
    float *x = malloc((MOST + 3) * sizeof *x);

    (void)state;
    assert_non_null(x);
    prng_init(&r, seed + 2);
    for (size_t t = 0; t < sizeof sizes / sizeof *sizes; t++)
        for (size_t shape = 0; shape < N_SHAPES; shape++) {
            const size_t be = block_entries[(t + shape) % 6];
            float       *at = x + t % 4;

            fill_shape(&r, shape, at, sizes[t]);
            for (size_t m = 0; m < n_masks; m++) {
                check_candidates(&devices[m][0], at, sizes[t], be, 1 + 40 * (shape % 3));
                check_candidates(&devices[m][0], at, sizes[t], be, t % 3 == 0 ? 0 : 1500);
            }
        }
    free(x);
}

/* A row alone, long enough to be made in parts: as many results as threads, all equal. */
static void test_long_rows_in_parts(void **state)
{
    enum { N = 400003 };
    prng   r;
    float *x = malloc(N * sizeof *x);

    (void)state;
    assert_non_null(x);
    prng_init(&r, seed + 3);
    for (size_t shape = 0; shape < N_SHAPES; shape++) {
        fill_shape(&r, shape, x, N);
        for (size_t m = 0; m < n_masks; m++)
            for (size_t t = 0; t < N_THREADS; t++) {
                check_topk(&devices[m][t], x, N, shape % 2 == 0 ? 512 : 3000);
                if ((shape + t) % 3 == 0)
                    check_candidates(&devices[m][t], x, N, 8, 700);
            }
    }
    free(x);
}

/* More to take than a part has, and lists as long as the row. */
static void test_long_rows_of_which_most_is_taken(void **state)
{
    enum { N = 300000 };
    prng   r;
    float *x = malloc(N * sizeof *x);

    (void)state;
    assert_non_null(x);
    prng_init(&r, seed + 4);
    for (size_t shape = 0; shape < N_SHAPES; shape += 5) {
        fill_shape(&r, shape, x, N);
        for (size_t m = 0; m < n_masks; m++) {
            check_topk(&devices[m][1], x, N, 200000);
            check_topk(&devices[m][2], x, N, 130000);
            check_topk(&devices[m][1], x, N, N + 5);
        }
    }
    free(x);
}

/* ---------------------------------------------------------------- samples that mislead */

/* What is sampled is the best of all, so that the threshold is too high; or cannot be taken, so that there is none. The rest
 * ascends: every score is better than those before it. */
static void test_sample_says_the_worst(void **state)
{
    static const size_t sizes[] = {40000, 300000};
    enum { MOST = 300000 };
    static const float sampled[] = {1e9f, -INFINITY, NAN, INFINITY, -1.0f};
    float *x = malloc(MOST * sizeof *x);

    (void)state;
    assert_non_null(x);
    for (size_t t = 0; t < 2; t++)
        for (size_t s = 0; s < sizeof sampled / sizeof *sampled; s++) {
            const size_t n = sizes[t];

            for (size_t i = 0; i < n; i++) /* or: ties, and few that are better by the smallest step there is */
                x[i] = s % 2 == 0 ? (float)i : kvi_bits_f32(0x40000000u + (i % 100 == 7 ? 2 : i % 2));
            for (uint32_t i = 0; i < KVI_SELECT_SAMPLE && i < n / 32; i++)
                x[kvi_select_place(i, n)] = sampled[s] + (float)i;
            for (size_t m = 0; m < n_masks; m++) {
                check_topk(&devices[m][0], x, n, 2000);
                check_topk(&devices[m][t], x, n, 512);
            }
            for (size_t i = 0; i < n; i++) /* blocks of 8 */
                x[i] = (float)(i / 8);
            for (uint32_t i = 0; i < KVI_SELECT_SAMPLE && i < n / 8 / 32; i++)
                for (size_t j = 0; j < 8; j++)
                    x[8 * kvi_select_place(i, (n - 1) / 8) + j] = sampled[s] + (float)i;
            for (size_t m = 0; m < n_masks; m++)
                check_candidates(&devices[m][t], x, n, 8, 600);
        }
    free(x);
}

static void test_places_of_a_sample_meet_no_period(void **state)
{
    static const size_t sizes[] = {16384, 131072, 1 << 20, 1000003};

    (void)state;
    for (size_t t = 0; t < 4; t++)
        for (size_t period = 2; period <= 128; period++) {
            size_t hits[128] = {0};

            for (uint32_t i = 0; i < KVI_SELECT_SAMPLE; i++) {
                const size_t at = kvi_select_place(i, sizes[t]);

                assert_true(at < sizes[t]);
                hits[at % period]++;
            }
            for (size_t i = 0; i < period; i++) { /* 7 roots of the mean and 7: 1e-8 each if they are as good as random */
                const double mean = (double)KVI_SELECT_SAMPLE / (double)period;

                assert_true(fabs((double)hits[i] - mean) <= 7 * sqrt(mean) + 7);
            }
        }
}

/* ---------------------------------------------------------------- rows */

/* Many rows of different lengths: the same as each alone, with every number of threads and every mask. */
static void test_rows_do_not_see_each_other(void **state)
{
    enum { ROWS = 37, MOST = 9000, STRIDE = MOST + 5, K = 300, IDS = K + 3, BE = 8, KEEP = 200 };
    prng     r;
    uint64_t n[ROWS];
    uint32_t n_blocks[ROWS];
    float   *x = malloc(ROWS * STRIDE * sizeof *x);
    int32_t *ids = malloc(ROWS * IDS * sizeof *ids);

    (void)state;
    assert_true(x != NULL && ids != NULL);
    prng_init(&r, seed + 5);
    for (size_t row = 0; row < ROWS; row++) {
        n[row] = row == 3 ? 0 : row % 4 == 0 ? MOST : prng_below(&r, MOST);
        fill_shape(&r, row % N_SHAPES, x + row * STRIDE, STRIDE);
    }
    for (size_t m = 0; m < n_masks; m++)
        for (size_t t = 0; t < N_THREADS; t++) {
            const kvi_topk_params       p = {.scores = x, .n_scores = n, .ids = ids, .scores_stride = STRIDE, .ids_stride = IDS,
                                             .n_rows = ROWS, .k = K};
            const kvi_candidates_params c = {.scores = x, .n_visible = n, .blocks = ids, .n_blocks = n_blocks,
                                             .scores_stride = STRIDE, .blocks_stride = IDS, .n_rows = ROWS, .block_entries = BE,
                                             .n_keep = KEEP};

            assert_int_equal(kvi_cpu_topk(&devices[m][t], &p, NULL), KVCSA_OK);
            for (size_t row = 0; row < ROWS; row++)
                check_best(x + row * STRIDE, n[row], K, ids + row * IDS, IDS);
            assert_int_equal(kvi_cpu_candidates(&devices[m][t], &c, NULL), KVCSA_OK);
            for (size_t row = 0; row < ROWS; row++) {
                uint32_t n_one = 0;
                int32_t  one[KEEP];
                const kvi_candidates_params alone = {.scores = x + row * STRIDE, .n_visible = n + row, .blocks = one,
                                                     .n_blocks = &n_one, .scores_stride = STRIDE, .n_rows = 1,
                                                     .block_entries = BE, .n_keep = KEEP};

                assert_int_equal(kvi_cpu_candidates(&devices[0][0], &alone, NULL), KVCSA_OK);
                assert_int_equal(n_blocks[row], n_one);
                assert_memory_equal(ids + row * IDS, one, sizeof one);
                for (size_t i = KEEP; i < IDS; i++)
                    assert_int_equal(ids[row * IDS + i], -1);
            }
        }
    free(x);
    free(ids);
}

static void test_blocks_become_entries(void **state)
{
    enum { BLOCKS = 700, K = 400 };
    static const size_t block_entries[] = {8, 5};
    prng     r;
    float    x[BLOCKS * 8];
    int32_t  blocks[BLOCKS];
    int32_t  plain[K];
    int32_t  ids[K];

    (void)state;
    prng_init(&r, seed + 6);
    for (int32_t b = 0, at = 0; b < BLOCKS; b++) {
        blocks[b] = at;
        at += 1 + (int32_t)prng_below(&r, 40);
    }
    for (size_t shape = 0; shape < N_SHAPES; shape++)
        for (size_t m = 0; m < n_masks; m++) {
            const size_t    be = block_entries[shape % 2];
            const uint64_t  n = BLOCKS * be;
            kvi_topk_params p = {.scores = x, .n_scores = &n, .ids = plain, .scores_stride = n, .blocks_stride = BLOCKS, .n_rows = 1,
                                 .block_entries = (uint32_t)be, .k = K};

            fill_shape(&r, shape, x, n);
            assert_int_equal(kvi_cpu_topk(&devices[m][0], &p, NULL), KVCSA_OK);
            check_best(x, n, K, plain, K);
            p.blocks = blocks;
            p.ids = ids;
            assert_int_equal(kvi_cpu_topk(&devices[m][0], &p, NULL), KVCSA_OK);
            for (size_t i = 0; i < K; i++)
                assert_int_equal(ids[i], plain[i] < 0 ? -1
                                                      : blocks[(size_t)plain[i] / be] * (int32_t)be + (int32_t)((size_t)plain[i] % be));
        }
}

/* ---------------------------------------------------------------- scratch */

static void test_no_memory_is_reported(void **state)
{
    enum { N = 300000, K = 100 };
    static float   x[N];
    const uint64_t n = N;
    int32_t        ids[K];
    uint32_t       n_blocks;
    const kvi_topk_params       p = {.scores = x, .n_scores = &n, .ids = ids, .scores_stride = N, .n_rows = 1, .k = K};
    const kvi_candidates_params c = {.scores = x, .n_visible = &n, .blocks = ids, .n_blocks = &n_blocks, .scores_stride = N,
                                     .n_rows = 1, .block_entries = 8, .n_keep = K};

    (void)state;
    for (size_t t = 0; t < N_THREADS; t++) {
        kvcsa_error err = {0};

        fault_alloc_fail_at(&memory, 1);
        assert_int_equal(kvi_cpu_topk(&devices[n_masks - 1][t], &p, &err), KVCSA_ERR_NOMEM);
        assert_int_equal(err.status, KVCSA_ERR_NOMEM);
        fault_alloc_fail_at(&memory, 1);
        assert_int_equal(kvi_cpu_candidates(&devices[n_masks - 1][t], &c, &err), KVCSA_ERR_NOMEM);
        fault_alloc_fail_at(&memory, 0);
        assert_int_equal(kvi_cpu_topk(&devices[n_masks - 1][t], &p, &err), KVCSA_OK);
        check_best(x, N, K, ids, K);
    }
}

/* ---------------------------------------------------------------- devices */

static int open_devices(void **state)
{
    static const uint32_t    masks[] = {0, KVCSA_CPU_AVX2, KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512, KVCSA_CPU_NEON};
    static const char *const names[] = {"portable C", "AVX2", "AVX-512", "NEON"};
    const uint32_t  all = kvi_cpu_flags(0);
    kvcsa_allocator libc;

    (void)state;
    fault_alloc_init(&memory);
    if (kvi_allocator_import(NULL, &libc, NULL) != KVCSA_OK)
        return -1;
    for (uint32_t t = 1; t < N_THREADS; t++)
        if (kvi_threads_create(&libc, t + 1, NULL, &threads[t], NULL) != KVCSA_OK)
            return -1;
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        printf("%s: %s\n", names[i], (masks[i] & all) == masks[i] ? "runs" : "skipped, this machine has it not");
        if ((masks[i] & all) != masks[i])
            continue;
        for (size_t t = 0; t < N_THREADS; t++) {
            kvi_device *dev = &devices[n_masks][t];

            dev->allocator = memory.hook;
            dev->threads = threads[t];
            dev->flags = masks[i];
            kvi_select_init(&dev->select, masks[i]);
        }
        n_masks++;
    }
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_THREADS; t++)
        kvi_threads_destroy(threads[t]);
    return fault_alloc_is_clean(&memory) ? 0 : -1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_do_what_their_header_says),
        cmocka_unit_test(test_topk_of_every_shape),
        cmocka_unit_test(test_candidates_of_every_shape),
        cmocka_unit_test(test_long_rows_in_parts),
        cmocka_unit_test(test_long_rows_of_which_most_is_taken),
        cmocka_unit_test(test_sample_says_the_worst),
        cmocka_unit_test(test_places_of_a_sample_meet_no_period),
        cmocka_unit_test(test_rows_do_not_see_each_other),
        cmocka_unit_test(test_blocks_become_entries),
        cmocka_unit_test(test_no_memory_is_reported),
    };

    seed = prng_seed(argc, argv, 20263);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
