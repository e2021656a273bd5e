/* Index scores, hiding and exact selection of the reference backend, against implementations written here from the specification;
 * where op_params.h fixes the order of a sum, bits are compared. */
#include "support/cache_ops.h"

/* ---------------------------------------------------------------- index scores */

typedef struct query {
    int8_t *codes;
    float  *scales;
    float  *weights;
} query;

static query make_query(prng *r, size_t n_rows, size_t n_heads, size_t width)
{
    static const int8_t values[15] = {0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12};
    query               q = {get(n_rows * n_heads * width), get(n_rows * n_heads * (width / 32) * sizeof(float)),
                             get(n_rows * n_heads * sizeof(float))};

    for (size_t i = 0; i < n_rows * n_heads * width; i++)
        q.codes[i] = values[prng_below(r, 15)];
    for (size_t i = 0; i < n_rows * n_heads * (width / 32); i++)
        q.scales[i] = ldexpf(1, (int)prng_range(r, 0, 12) - 8);
    fill_normal(r, q.weights, n_rows * n_heads, 0.1f);
    return q;
}

static void free_query(query *q)
{
    free(q->codes);
    free(q->scales);
    free(q->weights);
}

/* Score of an entry in the order of op_params.h; *exact the same in double, *size the sum of magnitudes. */
static float naive_score(const store *s, const query *q, size_t row, size_t n_heads, size_t entry, double *exact, double *size)
{
    const size_t width = s->owner.index_width;
    size_t       n_tree = 1;
    float        heads[64] = {0};

    *exact = *size = 0;
    for (size_t h = 0; h < n_heads; h++) {
        const size_t at = row * n_heads + h;
        float        dot = 0;
        double       true_dot = 0;

        for (size_t g = 0; g < width / 32; g++) {
            const float scale = (float)(e8m0(index_scales(s, entry)[g]) / 2);
            int         sum = 0;

            for (size_t c = 32 * g; c < 32 * g + 32; c++) {
                const double key = unpacked(index_values(s, entry), index_scales(s, entry), c, 32);

                if (isnan(key))
                    continue; /* poisoned: the codes are 0 and the scale makes it NaN */
                sum += q->codes[at * width + c] * (int)(key / (double)scale);
                true_dot += key * q->codes[at * width + c] * (double)q->scales[at * (width / 32) + g];
            }
            dot = dot + (float)sum * q->scales[at * (width / 32) + g] * scale;
        }
        heads[h] = (dot < 0 ? 0 : dot) * q->weights[at];
        *exact += fmax(0, true_dot) * (double)q->weights[at];
        *size += fabs(true_dot * (double)q->weights[at]);
    }
    while (n_tree < n_heads)
        n_tree *= 2;
    for (size_t half = n_tree / 2; half > 0; half /= 2)
        for (size_t h = 0; h < half; h++)
            heads[h] = heads[h] + heads[h + half];
    return heads[0];
}

static void test_index_score_vector_j(void **state)
{
    static const uint8_t keys[3] = {0x24, 0x2a, 0xd1}; /* (2, 1), (-1, 1), (.5, -3), first channel in the low nibble */
    int8_t   codes[64] = {2, -1};                      /* (1, -.5) */
    float    scales[2] = {0.5f, 0.5f};
    float    weights[2] = {.5f, -.25f};
    uint64_t n_visible = 3;
    float    scores[3];
    store    s;

    (void)state;
    codes[32] = 1; /* (.5, 2) */
    codes[33] = 4;
    store_init(&s, 32, 32, 8, 8);
    for (size_t e = 0; e < 3; e++) {
        memset(index_values(&s, e), 0, 16);
        index_values(&s, e)[0] = keys[e];
        index_scales(&s, e)[0] = 127;
    }
    const kvi_index_score_params p = {.keys = entries_of(&s), .codes = codes, .scales = scales, .weights = weights,
                                      .n_visible = &n_visible, .scores = scores, .scores_stride = 3, .n_rows = 1, .n_heads = 2};
    assert_int_equal(kvi_cpu_index_score(&devices[0], &p, NULL), KVCSA_OK);
    assert_true(scores[0] == 0 && scores[1] == -0.375f && scores[2] == 1.0f);
    store_fini(&s);
}

/* Compares a whole call with naive_score; rows see n_visible[], blocks may be NULL. */
static void check_scores(const kvi_device *dev, const store *s, const query *q, size_t n_rows, size_t n_heads,
                         const uint64_t *n_visible, const int32_t *blocks, const uint32_t *n_blocks, size_t n_listed)
{
    const size_t be = 8;
    const size_t stride = blocks ? n_listed * be + 3 : 260;
    const size_t bytes = n_rows * stride * sizeof(float);
    float       *scores = get(bytes);
    kvi_index_score_params p = {.keys = entries_of(s), .codes = q->codes, .scales = q->scales, .weights = q->weights,
                                .n_visible = n_visible, .blocks = blocks, .n_blocks = n_blocks, .scores = scores,
                                .scores_stride = stride, .blocks_stride = n_listed, .n_rows = n_rows,
                                .n_heads = (uint32_t)n_heads, .block_entries = (uint32_t)be};

    assert_int_equal(kvi_cpu_index_score((kvi_device *)(uintptr_t)dev, &p, NULL), KVCSA_OK);
    check_guard(scores, bytes);
    for (size_t row = 0; row < n_rows; row++) {
        const size_t n = blocks ? n_blocks[row] * be : n_visible[row];

        for (size_t i = 0; i < stride; i++) {
            const float  got = scores[row * stride + i];
            const size_t entry = blocks && i < n ? (size_t)blocks[row * n_listed + i / be] * be + i % be : i;
            double       exact;
            double       size;

            if (i >= n) { /* behind the row: untouched */
                assert_memory_equal(&got, "\xA7\xA7\xA7\xA7", 4);
            } else if (entry >= n_visible[row]) {
                assert_true(got == -INFINITY);
            } else {
                const float want = naive_score(s, q, row, n_heads, entry, &exact, &size);

                assert_memory_equal(&got, &want, sizeof got);
                /* 4 blocks, weight, 5 levels: at most 10 roundings */
                assert_true(fabs((double)got - exact) <= 10 * 0x1p-24 * (size + fabs(exact)) * 4);
            }
        }
    }
    free(scores);
}

static void test_index_score_matches_naive_bit_for_bit(void **state)
{
    static const uint32_t n_heads[] = {1, 3, 4, 5, 32};
    static const size_t   n_rows[] = {1, 2, 16, 37};
    prng     r;
    store    s;
    uint64_t n_visible[37];

    (void)state;
    prng_init(&r, seed + 4);
    for (size_t t = 0; t < 20; t++) {
        const uint32_t heads = n_heads[t % 5];
        const size_t   rows = heads == 32 ? n_rows[t % 3] : n_rows[t % 4];
        query          q;

        store_init(&s, 32, t % 3 == 0 ? 128 : 32, 16, 256);
        store_fill(&s, &r);
        q = make_query(&r, rows, heads, s.owner.index_width);
        for (size_t i = 0; i < rows; i++)
            n_visible[i] = prng_below(&r, 257);
        check_scores(&devices[t % N_DEVICES], &s, &q, rows, heads, n_visible, NULL, NULL, 0);
        free_query(&q);
        store_fini(&s);
    }
}

static void test_index_score_of_candidate_blocks(void **state)
{
    enum { ROWS = 19, LISTED = 12, HEADS = 3 };
    prng     r;
    store    s;
    query    q;
    uint64_t n_visible[ROWS];
    int32_t  blocks[ROWS * LISTED];
    uint32_t n_blocks[ROWS];

    (void)state;
    prng_init(&r, seed + 5);
    store_init(&s, 32, 64, 24, 240);
    store_fill(&s, &r);
    q = make_query(&r, ROWS, HEADS, 64);
    for (size_t i = 0; i < ROWS; i++) {
        n_visible[i] = i == 4 ? 0 : prng_range(&r, 1, 240);
        n_blocks[i] = 0;
        for (int32_t b = 0; (uint64_t)b * 8 < n_visible[i] && n_blocks[i] < LISTED; b++)
            if ((uint64_t)b * 8 + 8 >= n_visible[i] || prng_below(&r, 2) != 0)
                blocks[i * LISTED + n_blocks[i]++] = b;
    }
    for (size_t d = 0; d < N_DEVICES; d++)
        check_scores(&devices[d], &s, &q, ROWS, HEADS, n_visible, blocks, n_blocks, LISTED);
    free_query(&q);
    store_fini(&s);
}

static void test_index_score_visibility_m(void **state)
{
    static const uint64_t pairs[8] = {0, 1, 1, 2, 2, 3, 3, 4};
    prng     r;
    store    s;
    query    q;
    uint64_t single[8];

    (void)state;
    prng_init(&r, seed + 6);
    store_init(&s, 32, 32, 8, 8);
    store_fill(&s, &r);
    q = make_query(&r, 8, 2, 32);
    for (uint64_t p = 0; p < 8; p++) {
        assert_int_equal(pairs[p], (p + 1) / 2);
        single[p] = p + 1;
    }
    check_scores(&devices[0], &s, &q, 8, 2, pairs, NULL, NULL, 0); /* what is not visible is not even written */
    check_scores(&devices[0], &s, &q, 8, 2, single, NULL, NULL, 0);
    free_query(&q);
    store_fini(&s);
}

static void test_index_score_poison_is_never_selected(void **state)
{
    enum { N = 40 };
    prng     r;
    store    s;
    query    q;
    uint64_t n_visible[2] = {N, N};
    float    scores[2 * N];
    int32_t  ids[2 * N];

    (void)state;
    prng_init(&r, seed + 7);
    store_init(&s, 32, 64, 8, N);
    store_fill(&s, &r);
    q = make_query(&r, 2, 3, 64);
    memset(index_values(&s, 17) + 16, 0, 16);
    index_scales(&s, 17)[1] = 255;
    q.scales[1 * 3 * 2 + 4] = NAN; /* a head of row 1 */
    const kvi_index_score_params p = {.keys = entries_of(&s), .codes = q.codes, .scales = q.scales, .weights = q.weights,
                                      .n_visible = n_visible, .scores = scores, .scores_stride = N, .n_rows = 2, .n_heads = 3};
    const kvi_topk_params top = {.scores = scores, .n_scores = n_visible, .ids = ids, .scores_stride = N, .n_rows = 2, .k = N};
    assert_int_equal(kvi_cpu_index_score(&devices[0], &p, NULL), KVCSA_OK);
    assert_int_equal(kvi_cpu_topk(&devices[0], &top, NULL), KVCSA_OK);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(isnan(scores[i]) != 0, i == 17);
        assert_true(isnan(scores[N + i]));
        assert_int_equal(ids[i], i < 17 ? (int)i : i < N - 1 ? (int)i + 1 : -1);
        assert_int_equal(ids[N + i], -1);
    }
    free_query(&q);
    store_fini(&s);
}

/* ---------------------------------------------------------------- selection */

typedef struct ranked {
    float  score;
    size_t i;
} ranked;

static int by_rank(const void *a, const void *b) /* larger score, then lower index; NaN and -inf last */
{
    const ranked *x = a;
    const ranked *y = b;
    const bool    x_out = isnan(x->score) || x->score == -INFINITY;
    const bool    y_out = isnan(y->score) || y->score == -INFINITY;

    if (x_out != y_out)
        return x_out ? 1 : -1;
    if (!x_out && x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

static int by_id(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a;
    const int32_t y = *(const int32_t *)b;

    return x < y ? -1 : x > y;
}

/* The k best indices, ascending. Returns how many there are. */
static size_t naive_topk(const float *scores, size_t n, size_t k, int32_t *ids)
{
    ranked *all = get((n + 1) * sizeof *all);
    size_t  taken = 0;

    for (size_t i = 0; i < n; i++)
        all[i] = (ranked){scores[i], i};
    qsort(all, n, sizeof *all, by_rank);
    while (taken < k && taken < n && !isnan(all[taken].score) && all[taken].score != -INFINITY) {
        ids[taken] = (int32_t)all[taken].i;
        taken++;
    }
    qsort(ids, taken, sizeof *ids, by_id);
    free(all);
    return taken;
}

enum { N_PATTERNS = 11 };

static void fill_pattern(prng *r, size_t pattern, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        switch (pattern) {
        case 0: x[i] = prng_normal(r); break;
        case 1: x[i] = (float)prng_below(r, 5) - 2.0f; break;                      /* many ties */
        case 2: x[i] = -3.5f; break;                                               /* all equal */
        case 3: x[i] = (float)i; break;
        case 4: x[i] = -(float)i; break;
        case 5: x[i] = i / 7 % 2 == 0 ? -INFINITY : (float)prng_below(r, 9); break;
        case 6: x[i] = prng_below(r, 3) == 0 ? NAN : prng_normal(r); break;
        case 7: x[i] = prng_below(r, 2) == 0 ? -0.0f : 0.0f; break;                /* zeros of both signs tie */
        case 8: x[i] = prng_below(r, 4) == 0 ? INFINITY : prng_normal(r); break;
        case 9: x[i] = prng_float_bits(r); break;                                  /* anything at all */
        default: x[i] = prng_below(r, 2) == 0 ? -NAN : -INFINITY; break;           /* nothing to take */
        }
    }
}

static void test_topk_equals_a_stable_sort(void **state)
{
    enum { MOST = 700, ROWS = 3 };
    prng     r;
    float   *scores = get(ROWS * MOST * sizeof *scores);
    int32_t *want = get(MOST * sizeof *want);
    int32_t *ids = get(ROWS * MOST * sizeof *ids);

    (void)state;
    prng_init(&r, seed + 8);
    for (size_t t = 0; t < 600; t++) {
        const size_t   k = t % 7 == 0 ? 1 : prng_range(&r, 1, t % 2 != 0 ? 40 : MOST);
        const uint64_t n[ROWS] = {prng_below(&r, MOST + 1), t % 3 == 0 ? k : prng_below(&r, 50), t % 5 == 0 ? 0 : MOST};
        const kvi_topk_params p = {.scores = scores, .n_scores = n, .ids = ids, .scores_stride = MOST, .n_rows = ROWS,
                                   .k = (uint32_t)k};

        for (size_t row = 0; row < ROWS; row++)
            fill_pattern(&r, (t + row) % N_PATTERNS, scores + row * MOST, MOST);
        memset(ids, 0xA7, ROWS * MOST * sizeof *ids);
        assert_int_equal(kvi_cpu_topk(&devices[t % N_DEVICES], &p, NULL), KVCSA_OK);
        for (size_t row = 0; row < ROWS; row++) {
            const size_t taken = naive_topk(scores + row * MOST, n[row], k, want);

            for (size_t i = 0; i < k; i++)
                assert_int_equal(ids[row * k + i], i < taken ? want[i] : -1);
        }
        check_guard(ids, ROWS * k * sizeof *ids);
    }
    free(scores);
    free(want);
    free(ids);
}

static void test_topk_maps_blocks_to_entries(void **state)
{
    enum { BLOCKS = 9, BE = 4, N = BLOCKS * BE, K = 10 };
    static const int32_t blocks[2 * 11] = {0, 2, 3, 7, 8, 20, 21, 100, 4000, -1, -1, 5, 6, 9};
    const uint64_t n[2] = {N, 3 * BE};
    prng    r;
    float   scores[2 * 40];
    int32_t ids[2 * K + 1];
    int32_t want[K];

    (void)state;
    prng_init(&r, seed + 9);
    for (size_t t = 0; t < 50; t++) {
        const kvi_topk_params p = {.scores = scores, .n_scores = n, .blocks = blocks, .ids = ids, .scores_stride = 40,
                                   .blocks_stride = 11, .n_rows = 2, .block_entries = BE, .k = K};

        fill_pattern(&r, t % N_PATTERNS, scores, 80);
        ids[2 * K] = 77;
        assert_int_equal(kvi_cpu_topk(&devices[0], &p, NULL), KVCSA_OK);
        assert_int_equal(ids[2 * K], 77);
        for (size_t row = 0; row < 2; row++) {
            const size_t taken = naive_topk(scores + 40 * row, n[row], K, want);

            for (size_t i = 0; i < K; i++)
                assert_int_equal(ids[row * K + i],
                                 i < taken ? blocks[11 * row + (size_t)want[i] / BE] * BE + want[i] % BE : -1);
        }
    }
}

static void test_topk_of_a_million(void **state)
{
    enum { N = 1 << 20, K = 512 };
    const uint64_t n = N;
    prng     r;
    float   *scores = get(N * sizeof *scores);
    int32_t *ids = get(K * sizeof *ids);
    int32_t *want = get(N * sizeof *want);

    (void)state;
    prng_init(&r, seed + 10);
    for (size_t i = 0; i < N; i++)
        scores[i] = (float)(prng_below(&r, 20000)) * 0x1p-10f; /* the cut lies within ties */
    const kvi_topk_params p = {.scores = scores, .n_scores = &n, .ids = ids, .scores_stride = N, .n_rows = 1, .k = K};
    assert_int_equal(kvi_cpu_topk(&devices[1], &p, NULL), KVCSA_OK);
    assert_int_equal(naive_topk(scores, N, K, want), K);
    assert_memory_equal(ids, want, K * sizeof *ids);
    free(scores);
    free(ids);
    free(want);
}

static void test_candidates_vector_k(void **state)
{
    static const float source[14] = {.1f, .9f, .2f, .3f, .8f, .7f, .6f, .5f, 0, 0, 1, 0, -.5f, -.4f};
    static const float consumer[14] = {.3f, .1f, .9f, .8f, .7f, .6f, .5f, .4f, .2f, .25f, .35f, .15f, .05f, .95f};
    const uint64_t n = 14;
    int32_t        blocks[2];
    uint32_t       n_blocks;
    float          pool[8];
    const uint64_t n_pool = 8;
    int32_t        ids[3];

    (void)state;
    const kvi_candidates_params c = {.scores = source, .n_visible = &n, .blocks = blocks, .n_blocks = &n_blocks,
                                     .scores_stride = 14, .n_rows = 1, .block_entries = 4, .n_keep = 2};
    assert_int_equal(kvi_cpu_candidates(&devices[0], &c, NULL), KVCSA_OK);
    assert_int_equal(n_blocks, 2);
    assert_int_equal(blocks[0], 2);
    assert_int_equal(blocks[1], 3);
    for (size_t i = 0; i < 8; i++)
        pool[i] = 8 + i < 14 ? consumer[8 + i] : -INFINITY;
    const kvi_topk_params t = {.scores = pool, .n_scores = &n_pool, .blocks = blocks, .ids = ids, .scores_stride = 8,
                               .blocks_stride = 2, .n_rows = 1, .block_entries = 4, .k = 3};
    assert_int_equal(kvi_cpu_topk(&devices[0], &t, NULL), KVCSA_OK);
    assert_int_equal(ids[0], 9);
    assert_int_equal(ids[1], 10);
    assert_int_equal(ids[2], 13);
}

/* Sort of block maxima in which the newest block counts as larger than everything. */
static size_t naive_candidates(const float *scores, size_t n_visible, size_t be, size_t n_keep, int32_t *blocks)
{
    const size_t n = (n_visible + be - 1) / be;
    float       *maxima = get((n + 1) * sizeof *maxima);
    size_t       taken = 0;

    for (size_t b = 0; b < n; b++) {
        maxima[b] = -INFINITY;
        for (size_t i = b * be; i < n_visible && i < b * be + be; i++)
            if (!isnan(scores[i]))
                maxima[b] = fmaxf(maxima[b], scores[i]);
    }
    if (n > 0) {
        taken = naive_topk(maxima, n - 1, n_keep - 1, blocks);
        blocks[taken++] = (int32_t)n - 1;
    }
    free(maxima);
    return taken;
}

static void test_candidates_equal_a_stable_sort(void **state)
{
    enum { MOST = 600, ROWS = 3, KEEP = 80 };
    prng     r;
    float   *scores = get(ROWS * MOST * sizeof *scores);
    int32_t *blocks = get(ROWS * KEEP * sizeof *blocks);
    int32_t *want = get(MOST * sizeof *want);
    uint32_t n_blocks[ROWS];

    (void)state;
    prng_init(&r, seed + 11);
    for (size_t t = 0; t < 600; t++) {
        const size_t   be = prng_range(&r, 1, 9);
        const size_t   keep = t % 9 == 0 ? 1 : prng_range(&r, 1, KEEP);
        const uint64_t n[ROWS] = {prng_below(&r, MOST + 1), prng_below(&r, 20), t % 4 == 0 ? 0 : MOST};
        const kvi_candidates_params p = {.scores = scores, .n_visible = n, .blocks = blocks, .n_blocks = n_blocks,
                                         .scores_stride = MOST, .n_rows = ROWS, .block_entries = (uint32_t)be,
                                         .n_keep = (uint32_t)keep};

        for (size_t row = 0; row < ROWS; row++)
            fill_pattern(&r, (t + row) % N_PATTERNS, scores + row * MOST, MOST);
        memset(blocks, 0xA7, ROWS * KEEP * sizeof *blocks);
        assert_int_equal(kvi_cpu_candidates(&devices[t % N_DEVICES], &p, NULL), KVCSA_OK);
        for (size_t row = 0; row < ROWS; row++) {
            const size_t taken = naive_candidates(scores + row * MOST, n[row], be, keep, want);

            assert_int_equal(n_blocks[row], taken);
            for (size_t i = 0; i < taken; i++)
                assert_int_equal(blocks[row * keep + i], want[i]);
        }
        check_guard(blocks, ROWS * keep * sizeof *blocks);
    }
    free(scores);
    free(blocks);
    free(want);
}

/* ---------------------------------------------------------------- strides */

/* Rows that are wider than k: what is behind the ids of a row is -1, and nothing else is touched. */
static void test_topk_fills_its_stride(void **state)
{
    enum { MOST = 300, ROWS = 4, K = 20, STRIDE = 29 };
    prng    r;
    float   scores[ROWS * MOST];
    int32_t ids[ROWS * STRIDE + 1];
    int32_t plain[ROWS * K];

    (void)state;
    prng_init(&r, seed + 17);
    for (size_t t = 0; t < 60; t++) {
        const uint64_t  n[ROWS] = {MOST, prng_below(&r, MOST), 0, 7};
        kvi_topk_params p = {.scores = scores, .n_scores = n, .ids = plain, .scores_stride = MOST,
                             .n_rows = ROWS, .k = K};

        for (size_t row = 0; row < ROWS; row++)
            fill_pattern(&r, (t + row) % N_PATTERNS, scores + row * MOST, MOST);
        assert_int_equal(kvi_cpu_topk(&devices[0], &p, NULL), KVCSA_OK);
        p.ids = ids;
        p.ids_stride = t % 2 == 0 ? STRIDE : K;
        memset(ids, 0x77, sizeof ids);
        assert_int_equal(kvi_cpu_topk(&devices[t % N_DEVICES], &p, NULL), KVCSA_OK);
        for (size_t row = 0; row < ROWS; row++)
            for (size_t i = 0; i < p.ids_stride; i++)
                assert_int_equal(ids[row * p.ids_stride + i], i < K ? plain[row * K + i] : -1);
        for (size_t i = ROWS * p.ids_stride; i < ROWS * STRIDE + 1; i++)
            assert_int_equal(ids[i], 0x77777777);
    }
}

static void test_candidates_fill_their_stride(void **state)
{
    enum { MOST = 300, ROWS = 4, KEEP = 12, STRIDE = 17, BE = 8 };
    prng     r;
    float    scores[ROWS * MOST];
    int32_t  blocks[ROWS * STRIDE + 1];
    int32_t  plain[ROWS * KEEP];
    uint32_t n_blocks[2][ROWS];

    (void)state;
    prng_init(&r, seed + 18);
    for (size_t t = 0; t < 60; t++) {
        const uint64_t        n[ROWS] = {MOST, prng_below(&r, MOST), 0, 7};
        kvi_candidates_params p = {.scores = scores, .n_visible = n, .blocks = plain,
                                   .n_blocks = n_blocks[0], .scores_stride = MOST, .n_rows = ROWS,
                                   .block_entries = BE, .n_keep = KEEP};

        for (size_t row = 0; row < ROWS; row++)
            fill_pattern(&r, (t + row) % N_PATTERNS, scores + row * MOST, MOST);
        assert_int_equal(kvi_cpu_candidates(&devices[0], &p, NULL), KVCSA_OK);
        p.blocks = blocks;
        p.n_blocks = n_blocks[1];
        p.blocks_stride = t % 2 == 0 ? STRIDE : KEEP;
        memset(blocks, 0x77, sizeof blocks);
        assert_int_equal(kvi_cpu_candidates(&devices[t % N_DEVICES], &p, NULL), KVCSA_OK);
        assert_memory_equal(n_blocks[1], n_blocks[0], sizeof n_blocks[0]);
        for (size_t row = 0; row < ROWS; row++) {
            assert_true(n_blocks[0][row] <= KEEP);
            for (size_t i = 0; i < p.blocks_stride; i++)
                assert_int_equal(blocks[row * p.blocks_stride + i],
                                 i < n_blocks[0][row] ? plain[row * KEEP + i] : -1);
        }
        for (size_t i = ROWS * p.blocks_stride; i < ROWS * STRIDE + 1; i++)
            assert_int_equal(blocks[i], 0x77777777);
    }
}

/* ---------------------------------------------------------------- hiding */

enum { HIDE_ROWS = 5, HIDE_MOST = 400, HIDE_STRIDE = HIDE_MOST + 3, HIDE_LISTED = 40 };

typedef struct hide_case {
    kvi_hide_params p;
    uint64_t        n_scores[HIDE_ROWS];
    uint8_t         hidden[64];
    int32_t         blocks[HIDE_ROWS * HIDE_LISTED];
    float           scores[HIDE_ROWS * HIDE_STRIDE];
} hide_case;

/* Ascending blocks with gaps; all shapes of spans: smaller and larger than a candidate block, and
 * spans that end inside one. */
static void hide_case_init(hide_case *h, prng *r, size_t t)
{
    const uint32_t be = t % 2 == 0 ? 8 : (uint32_t)prng_range(r, 1, 9);

    *h = (hide_case){.p = {.scores_stride = HIDE_STRIDE, .blocks_stride = HIDE_LISTED,
                           .n_rows = HIDE_ROWS, .block_entries = be,
                           .span_entries = (uint32_t)prng_range(r, 1, 40),
                           .n_hidden = prng_below(r, 65), .rest_hidden = (uint32_t)prng_below(r, 2)}};
    for (size_t i = 0; i < h->p.n_hidden; i++)
        h->hidden[i] = (uint8_t)prng_below(r, 2);
    for (size_t row = 0; row < HIDE_ROWS; row++) {
        int32_t block = 0;

        for (size_t i = 0; i < HIDE_LISTED; i++) {
            block += (int32_t)prng_below(r, 4) + (i > 0);
            h->blocks[row * HIDE_LISTED + i] = block;
        }
        h->n_scores[row] = row == 2 ? 0 : prng_below(r, (t % 3 == 0 ? HIDE_LISTED * be : HIDE_MOST) + 1);
        fill_pattern(r, (t + row) % N_PATTERNS, h->scores + row * HIDE_STRIDE, HIDE_STRIDE);
    }
    h->p.scores = h->scores;
    h->p.n_scores = h->n_scores;
    h->p.blocks = t % 3 == 0 ? h->blocks : NULL;
    h->p.hidden = h->p.n_hidden > 0 ? h->hidden : NULL;
}

static size_t hide_entry(const hide_case *h, size_t row, size_t i)
{
    const size_t be = h->p.block_entries;

    return h->p.blocks ? (size_t)h->blocks[row * HIDE_LISTED + i / be] * be + i % be : i;
}

static bool is_hidden(const hide_case *h, size_t entry)
{
    const size_t span = entry / h->p.span_entries;

    return span < h->p.n_hidden ? h->hidden[span] != 0 : h->p.rest_hidden != 0;
}

static void test_hide_takes_whole_spans(void **state)
{
    prng       r;
    hide_case *h = get(sizeof *h);
    float     *before = get(sizeof h->scores);
    size_t     n_gone = 0;
    size_t     n_left = 0;

    (void)state;
    prng_init(&r, seed + 19);
    for (size_t t = 0; t < 300; t++) {
        hide_case_init(h, &r, t);
        memcpy(before, h->scores, sizeof h->scores);
        assert_int_equal(kvi_cpu_hide(&devices[t % N_DEVICES], &h->p, NULL), KVCSA_OK);
        for (size_t row = 0; row < HIDE_ROWS; row++) {
            for (size_t i = 0; i < HIDE_STRIDE; i++) {
                const float *got = &h->scores[row * HIDE_STRIDE + i];

                if (i < h->n_scores[row] && is_hidden(h, hide_entry(h, row, i))) {
                    assert_true(*got == -INFINITY);
                    n_gone++;
                } else { /* NaN and what lies behind the row too */
                    assert_memory_equal(got, &before[row * HIDE_STRIDE + i], sizeof *got);
                    n_left++;
                }
            }
        }
    }
    check_guard(h, sizeof *h);
    assert_true(n_gone > 50000 && n_left > 50000);
    free(h);
    free(before);
}

/* With a block map and without one, no id of a hidden span is taken, and all others still are. */
static void test_hide_keeps_out_of_the_selection(void **state)
{
    enum { K = HIDE_MOST };
    prng       r;
    hide_case *h = get(sizeof *h);
    int32_t   *ids = get(HIDE_ROWS * K * sizeof *ids);

    (void)state;
    prng_init(&r, seed + 20);
    for (size_t t = 0; t < 60; t++) {
        hide_case_init(h, &r, t);
        for (size_t i = 0; i < HIDE_ROWS * HIDE_STRIDE; i++)
            h->scores[i] = prng_normal(&r);
        const kvi_topk_params p = {.scores = h->scores, .n_scores = h->n_scores, .blocks = h->p.blocks,
                                   .ids = ids, .scores_stride = HIDE_STRIDE,
                                   .blocks_stride = HIDE_LISTED, .n_rows = HIDE_ROWS,
                                   .block_entries = h->p.block_entries, .k = K};
        assert_int_equal(kvi_cpu_hide(&devices[0], &h->p, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_topk(&devices[0], &p, NULL), KVCSA_OK);
        for (size_t row = 0; row < HIDE_ROWS; row++) {
            size_t n = 0;

            for (size_t i = 0; i < h->n_scores[row]; i++)
                if (!is_hidden(h, hide_entry(h, row, i)))
                    assert_int_equal(ids[row * K + n++], hide_entry(h, row, i));
            for (; n < K; n++)
                assert_int_equal(ids[row * K + n], -1);
        }
    }
    free(h);
    free(ids);
}

/* ---------------------------------------------------------------- out of memory */

static kvcsa_status score_some(kvi_device *dev, prng *r)
{
    const uint64_t n_visible[40] = {250, 250, 250, [39] = 250};
    store          s;
    query          q;
    float         *scores = get(40 * 256 * sizeof *scores);
    kvcsa_error    err = {0};
    kvcsa_status   st;

    store_init(&s, 32, 128, 16, 256);
    store_fill(&s, r);
    q = make_query(r, 40, 32, 128);
    const kvi_index_score_params p = {.keys = entries_of(&s), .codes = q.codes, .scales = q.scales, .weights = q.weights,
                                      .n_visible = n_visible, .scores = scores, .scores_stride = 256, .n_rows = 40,
                                      .n_heads = 32};
    st = kvi_cpu_index_score(dev, &p, &err);
    assert_int_equal(err.status, st);
    check_guard(scores, 40 * 256 * sizeof *scores);
    free(scores);
    free_query(&q);
    store_fini(&s);
    return st;
}

static kvcsa_status choose_some(kvi_device *dev, prng *r)
{
    const uint64_t n_visible[3] = {60000, 5, 60000};
    float         *scores = get(3 * 60000 * sizeof *scores);
    int32_t        blocks[3 * 4];
    uint32_t       n_blocks[3];
    kvcsa_error    err = {0};
    kvcsa_status   st;

    fill_normal(r, scores, 3 * 60000, 1.0f);
    const kvi_candidates_params p = {.scores = scores, .n_visible = n_visible, .blocks = blocks, .n_blocks = n_blocks,
                                     .scores_stride = 60000, .n_rows = 3, .block_entries = 8, .n_keep = 4};
    st = kvi_cpu_candidates(dev, &p, &err);
    assert_int_equal(err.status, st);
    free(scores);
    return st;
}

static void test_scratch_failures_of_selection(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed + 16);
    check_scratch_failures(score_some, &r);
    check_scratch_failures(choose_some, &r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index_score_vector_j),
        cmocka_unit_test(test_index_score_matches_naive_bit_for_bit),
        cmocka_unit_test(test_index_score_of_candidate_blocks),
        cmocka_unit_test(test_index_score_visibility_m),
        cmocka_unit_test(test_index_score_poison_is_never_selected),
        cmocka_unit_test(test_topk_equals_a_stable_sort),
        cmocka_unit_test(test_topk_maps_blocks_to_entries),
        cmocka_unit_test(test_topk_of_a_million),
        cmocka_unit_test(test_candidates_vector_k),
        cmocka_unit_test(test_candidates_equal_a_stable_sort),
        cmocka_unit_test(test_topk_fills_its_stride),
        cmocka_unit_test(test_candidates_fill_their_stride),
        cmocka_unit_test(test_hide_takes_whole_spans),
        cmocka_unit_test(test_hide_keeps_out_of_the_selection),
        cmocka_unit_test(test_scratch_failures_of_selection),
    };

    seed = prng_seed(argc, argv, 20261);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
