/* Top-k and hiding on the device beside the CPU's: equal bytes, whatever the scores. */
#include "cuda/cuda_check.h"

#include <string.h>

/* ---- scores ---- */

enum { N_PATTERNS = 16 };

static float any_bits(void)
{
    const uint32_t u = prng();
    float          x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static float bell(void) /* a sum of six */
{
    float x = 0;

    for (int i = 0; i < 6; i++)
        x += uniform(1.0f);
    return x;
}

static float score(size_t pattern, size_t i, size_t n)
{
    switch (pattern) {
    case 0: return bell();
    case 1: return (float)(prng() % 5) - 2.0f;                 /* many ties */
    case 2: return -3.5f;                                      /* all equal */
    case 3: return (float)i;
    case 4: return -(float)i;
    case 5: return i / 7 % 2 == 0 ? -INFINITY : (float)(prng() % 9);
    case 6: return prng() % 3 == 0 ? NAN : bell();
    case 7: return prng() % 2 == 0 ? -0.0f : 0.0f;             /* zeros of both signs tie */
    case 8: return prng() % 4 == 0 ? INFINITY : bell();
    case 9: return any_bits();
    case 10: return prng() % 2 == 0 ? -NAN : -INFINITY;        /* nothing to take */
    case 11: return 1.0f + (float)(prng() % 512) * 0x1p-23f;   /* 14 bits in common */
    case 12: return i % 97 == 5 ? 2.0f : 1.0f;                 /* two values */
    case 13: return i > n / 2 && i < n / 2 + n / 8 ? 9.0f + bell() : bell(); /* the best are neighbours */
    case 14: return (float)((int)(prng() % 2001) - 1000) * 0x1p-149f; /* subnormal */
    default: return prng() % 50 == 0 ? bell() : -INFINITY;     /* few that can be taken */
    }
}

typedef struct topk_job {
    kvi_topk_params p;   /* of the host */
    size_t          off; /* floats between a 16-byte boundary and the first score */
} topk_job;

static size_t ids_stride(const kvi_topk_params *p)
{
    return p->ids_stride ? p->ids_stride : p->k;
}

static void run_topk(const void *arg, void *out)
{
    const topk_job *j = arg;
    kvi_topk_params p = j->p;
    const size_t    n = p.n_rows * ids_stride(&p);

    if (p.scores)
        p.scores = to_device_at(p.scores, p.n_rows * p.scores_stride * sizeof *p.scores, j->off * sizeof *p.scores);
    if (p.n_scores)
        p.n_scores = to_device(p.n_scores, p.n_rows * sizeof *p.n_scores);
    if (p.n_blocks)
        p.n_blocks = to_device(p.n_blocks, p.n_rows * sizeof *p.n_blocks);
    if (p.blocks)
        p.blocks = to_device(p.blocks, p.n_rows * p.blocks_stride * sizeof *p.blocks);
    if (p.n_visible)
        p.n_visible = to_device(p.n_visible, p.n_rows * sizeof *p.n_visible);
    p.ids = to_device(NULL, n * sizeof *p.ids);
    GPU(topk, &p);
    from_device(out, p.ids, n * sizeof *p.ids);
    device_free_all();
}

/* One call with rows of pattern, pattern + 1, ...; a row has as many scores as n says. */
static void check_topk(size_t n_rows, size_t stride, const uint64_t *n, uint32_t k, size_t ids_more, size_t pattern, uint32_t be,
                       size_t off)
{
    topk_job  j = {.p = {.n_scores = n, .scores_stride = stride, .n_rows = n_rows, .k = k, .block_entries = be,
                         .ids_stride = ids_more ? k + ids_more : 0},
                   .off = off};
    float    *scores = calloc(n_rows * stride + 1, sizeof *scores);
    int32_t  *blocks = NULL, *want, *got;
    const size_t n_ids = n_rows * ids_stride(&j.p);

    assert_non_null(scores);
    for (size_t row = 0; row < n_rows; row++)
        for (size_t i = 0; i < stride; i++) /* what is behind the row must not be seen */
            scores[row * stride + i] = i < n[row] ? score((pattern + row) % N_PATTERNS, i, n[row]) : INFINITY;
    if (be) {
        j.p.blocks_stride = stride / be + 2;
        blocks = calloc(n_rows * j.p.blocks_stride, sizeof *blocks);
        assert_non_null(blocks);
        for (size_t i = 0, at = 0; i < n_rows * j.p.blocks_stride; i++)
            blocks[i] = (int32_t)(at = i % j.p.blocks_stride ? at + 1 + prng() % 3 : prng() % 5);
    }
    want = calloc(n_ids + 1, sizeof *want);
    got = calloc(n_ids + 1, sizeof *got);
    assert_true(want && got);
    j.p.scores = scores;
    j.p.blocks = blocks;
    j.p.ids = want;
    CPU(topk, &j.p);
    gpu_run(run_topk, &j, got, n_ids * sizeof *got);
    for (size_t i = 0; i < n_ids; i++)
        if (got[i] != want[i])
            fail_msg("stride %zu, k %u, pattern %zu, row %zu of %zu (%llu scores), place %zu: %d, not %d", stride, k, pattern,
                     i / ids_stride(&j.p), n_rows, (unsigned long long)n[i / ids_stride(&j.p)], i % ids_stride(&j.p), (int)got[i],
                     (int)want[i]);
    free(scores);
    free(blocks);
    free(want);
    free(got);
}

/* Rows as long as their lists of blocks. */
static void check_topk_blocks(size_t n_rows, size_t most, uint32_t be, uint32_t k, size_t pattern)
{
    const size_t stride = most * be;
    topk_job     j = {.p = {.scores_stride = stride, .blocks_stride = most + 1, .n_rows = n_rows, .k = k, .block_entries = be}};
    float       *scores = calloc(n_rows * stride + 1, sizeof *scores);
    int32_t     *blocks = calloc(n_rows * (most + 1), sizeof *blocks);
    uint32_t    *n_blocks = calloc(n_rows, sizeof *n_blocks);
    int32_t     *want = calloc(n_rows * k + 1, sizeof *want), *got = calloc(n_rows * k + 1, sizeof *got);

    assert_true(scores && blocks && n_blocks && want && got);
    for (size_t row = 0; row < n_rows; row++) {
        n_blocks[row] = (uint32_t)(row % 3 == 1 ? prng() % (most + 1) : most);
        for (size_t i = 0; i < stride; i++)
            scores[row * stride + i] = i < (size_t)n_blocks[row] * be ? score((pattern + row) % N_PATTERNS, i, stride) : INFINITY;
        for (size_t i = 0, at = 0; i <= most; i++, at += 1 + prng() % 3)
            blocks[row * (most + 1) + i] = (int32_t)at;
    }
    j.p.scores = scores;
    j.p.blocks = blocks;
    j.p.n_blocks = n_blocks;
    j.p.ids = want;
    CPU(topk, &j.p);
    gpu_run(run_topk, &j, got, n_rows * k * sizeof *got);
    assert_memory_equal(got, want, n_rows * k * sizeof *got);
    free(scores);
    free(blocks);
    free(n_blocks);
    free(want);
    free(got);
}

static void test_topk_of_lists(void **state)
{
    static const uint32_t sizes[] = {8, 1, 16, 3, 32, 8, 100}, ks[] = {16, 1, 512, 5};

    (void)state;
    prng_seed(9);
    for (size_t i = 0; i < 21; i++)
        check_topk_blocks(1 + i % 4, 1 + i * i % 60, sizes[i % 7], ks[i % 4], i);
    check_topk_blocks(2, 2100, 8, 512, 0); /* longer than one block of threads takes */
    check_topk_blocks(1, 2100, 8, 512, 5);
}

/* Without scores: the first k. */
static void test_topk_of_equals(void **state)
{
    static const uint32_t ks[] = {1, 2, 7, 64, 512, 513, 2048};

    (void)state;
    prng_seed(10);
    for (size_t i = 0; i < 21; i++) {
        const uint64_t n[5] = {ks[i % 7], i % 2 ? prng() % 600 : 0, 3, (uint64_t)1 << 40, prng() % 3000};
        const size_t   n_rows = i % 6, stride = ks[i % 7] + i % 3;
        topk_job       j = {.p = {.n_scores = n, .n_rows = n_rows, .k = ks[i % 7], .ids_stride = i % 3 ? stride : 0}};
        int32_t       *want = calloc(n_rows * stride + 1, sizeof *want), *got = calloc(n_rows * stride + 1, sizeof *got);

        assert_true(want && got);
        j.p.ids = want;
        CPU(topk, &j.p);
        gpu_run(run_topk, &j, got, n_rows * stride * sizeof *got);
        assert_memory_equal(got, want, n_rows * stride * sizeof *got);
        free(want);
        free(got);
    }
}

/* Rows that take all they see, between others that do not: neither scores nor lengths nor blocks of them are looked at. The
 * others are as without. */
static void check_takes_all(size_t n_rows, size_t stride, uint32_t k, size_t more, uint64_t all, uint32_t be, bool lists,
                            size_t t)
{
    const size_t ids_of = k + more, lists_of = be ? stride / be + 1 : 0;
    float       *scores = calloc(n_rows * stride + 1, sizeof *scores);
    uint64_t    *n = calloc(n_rows + 1, sizeof *n), *visible = calloc(n_rows + 1, sizeof *visible);
    uint32_t    *n_blocks = calloc(n_rows + 1, sizeof *n_blocks);
    int32_t     *blocks = calloc(n_rows * lists_of + 1, sizeof *blocks);
    int32_t     *want = calloc(n_rows * ids_of + 1, sizeof *want), *got = calloc(n_rows * ids_of + 1, sizeof *got);
    topk_job     j = {.p = {.scores = t % 7 == 6 && !be ? NULL : scores, .n_scores = lists ? NULL : n,
                            .blocks = be ? blocks : NULL,
                            .n_blocks = lists ? n_blocks : NULL, .ids = want, .scores_stride = stride,
                            .blocks_stride = lists_of, .ids_stride = ids_of, .n_rows = n_rows, .block_entries = be, .k = k},
                      .off = t % 4};

    assert_true(scores && n && visible && n_blocks && blocks && want && got);
    for (size_t row = 0; row < n_rows; row++) {
        visible[row] = prng() % 5 == 0 ? 0 : prng() % 2 ? prng() % (k + 1) : k + prng() % (stride + 1);
        n_blocks[row] = (uint32_t)(be ? prng() % (stride / be + 1) : 0);
        n[row] = lists ? (uint64_t)n_blocks[row] * be : prng() % (stride + 1);
        for (size_t i = 0; i < stride; i++)
            scores[row * stride + i] = i < n[row] ? score((t + row) % N_PATTERNS, i, n[row]) : INFINITY;
        for (size_t i = 0, at = 0; i < lists_of; i++, at += 1 + prng() % 3)
            blocks[row * lists_of + i] = (int32_t)at;
    }
    CPU(topk, &j.p);
    for (size_t row = 0; row < n_rows; row++) {
        if (all == 0 || visible[row] > all)
            continue;
        for (size_t i = 0; i < ids_of; i++)
            want[row * ids_of + i] = i < visible[row] ? (int32_t)i : -1;
        for (size_t i = 0; i < stride; i++)
            scores[row * stride + i] = INFINITY;
        n[row] = UINT64_MAX;
        n_blocks[row] = UINT32_MAX;
        for (size_t i = 0; i < lists_of; i++)
            blocks[row * lists_of + i] = -7;
    }
    j.p.all = all;
    j.p.n_visible = visible;
    gpu_run(run_topk, &j, got, n_rows * ids_of * sizeof *got);
    for (size_t i = 0; i < n_rows * ids_of; i++)
        if (got[i] != want[i])
            fail_msg("case %zu: row %zu sees %llu, place %zu: %d, not %d", t, i / ids_of,
                     (unsigned long long)visible[i / ids_of], i % ids_of, (int)got[i], (int)want[i]);
    free(scores);
    free(n);
    free(visible);
    free(n_blocks);
    free(blocks);
    free(want);
    free(got);
}

static void test_topk_of_rows_that_take_all(void **state)
{
    static const size_t   strides[] = {40, 700, 1, 2100, 16500};
    static const uint32_t sizes[] = {0, 8, 3, 0, 8, 16}, ks[] = {16, 5, 512, 64};

    (void)state;
    prng_seed(11);
    for (size_t t = 0; t < 30; t++) {
        const uint32_t k = ks[t % 4];

        check_takes_all(t % 5 == 4 ? 3 : 1 + t % 9, strides[t % 5], k, t % 3, t % 6 == 5 ? 0 : t % 2 ? k : k / 2, sizes[t % 6],
                        sizes[t % 6] && t % 4 == 0, t);
    }
}

static void test_topk_short_rows(void **state)
{
    static const size_t   strides[] = {1, 2, 3, 5, 31, 32, 33, 127, 130, 1000, 4095, 4096, 4097, 8195, 16383, 16384};
    static const uint32_t ks[] = {1, 2, 7, 64, 512, 2047, 2048};

    (void)state;
    prng_seed(1);
    for (size_t s = 0; s < sizeof strides / sizeof *strides; s++) {
        const uint64_t n[2] = {strides[s], prng() % (strides[s] + 1)};

        check_topk(2, strides[s], n, ks[s % 7], s % 3, s, s % 4 == 1 ? 8 : 0, s % 5 % 4);
        if (s % 2)
            check_topk(1, strides[s], n, ks[(s + 3) % 7], 0, s + 9, s % 4 == 3 ? 3 : 0, 0);
    }
}

/* Every pattern, with a k in the middle of what there is. */
static void test_topk_short_patterns(void **state)
{
    const uint64_t n[1] = {5000};

    (void)state;
    prng_seed(2);
    for (size_t pattern = 0; pattern < N_PATTERNS; pattern++)
        check_topk(1, 5001, n, 512, 1, pattern, 0, pattern % 4);
}

static void test_topk_long_rows(void **state)
{
    static const size_t   strides[] = {16385, 16387, 20000, 33000, 45003};
    static const uint32_t ks[] = {512, 1, 2048, 64, 1000};

    (void)state;
    prng_seed(3);
    for (size_t s = 0; s < 5; s++)
        for (size_t r = 0; r < 2; r++) {
            const uint64_t n[2] = {strides[s] - r, prng() % (strides[s] + 1)};

            check_topk(r && s < 3 ? 2 : 1, strides[s], n, ks[(s + r) % 5], r, 3 * s + r, s % 2 ? 0 : 8, (s + r) % 4);
        }
}

static void test_topk_long_patterns(void **state)
{
    (void)state;
    prng_seed(4);
    for (size_t pattern = 0; pattern < N_PATTERNS; pattern++) {
        const uint64_t n[2] = {17001, 17001 - pattern};

        check_topk(pattern % 5 ? 1 : 2, 17001, n, pattern % 3 ? 512 : 2000, 1, pattern, 0, 0);
    }
}

/* More rows than blocks run at once. */
static void test_topk_many_rows(void **state)
{
    uint64_t n[9];

    (void)state;
    prng_seed(5);
    for (size_t i = 0; i < 9; i++)
        n[i] = i % 3 ? 0 : 16000 + 100 * i;
    check_topk(9, 17000, n, 33, 0, 0, 0, 0); /* 8 blocks at once on the emulated device */
    for (size_t i = 0; i < 9; i++)
        n[i] = 3 * i;
    check_topk(9, 24, n, 5, 2, 3, 2, 1);
    check_topk(0, 24, n, 5, 2, 3, 0, 0);
}

/* More rows of the longer kind than are worked on at a time; most are empty. One order of threads will do. */
static void test_topk_rows_in_turns(void **state)
{
    enum { ROWS = 130, STRIDE = 16385, K = 3 };
    float          *scores = calloc((size_t)ROWS * STRIDE, sizeof *scores);
    uint64_t        n[ROWS] = {0};
    int32_t         want[ROWS * K], got[ROWS * K];
    const topk_job  j = {.p = {.scores = scores, .n_scores = n, .ids = want, .scores_stride = STRIDE, .n_rows = ROWS, .k = K}};

    (void)state;
    assert_non_null(scores);
    prng_seed(8);
    for (size_t row = 0; row < ROWS; row += row < 120 ? 30 : 1) {
        n[row] = 1 + row % 7;
        for (size_t i = 0; i < n[row]; i++)
            scores[row * STRIDE + i] = bell();
    }
    CPU(topk, &j.p);
    run_topk(&j, got);
    assert_memory_equal(got, want, sizeof got);
    free(scores);
}

/* A row that fills all its blocks, beside rows of none, of some and of all but one of their blocks. */
static void test_topk_of_uneven_long_rows(void **state)
{
    const uint64_t n[5] = {70000, 8191, 0, 8193, 57345};

    (void)state;
    prng_seed(12);
    check_topk(5, 70000, n, 100, 3, 0, 0, 0);
    check_topk(5, 70000, n, 700, 0, 11, 8, 1);
}

static void test_topk_nothing_to_take(void **state)
{
    static const uint64_t n[3] = {0, 7, 0};

    (void)state;
    check_topk(3, 20, n, 4, 0, 10, 0, 0);
    check_topk(3, 20, n, 0, 3, 0, 0, 0);
    check_topk(3, 0, (const uint64_t[3]){0}, 6, 0, 0, 0, 0);
    check_topk(3, 16400, n, 4, 0, 9, 0, 0);
    check_topk(1, 16400, n, 0, 3, 0, 0, 0);
}

static void test_topk_refuses(void **state)
{
    kvi_topk_params p = {.n_rows = 1, .scores_stride = 1, .k = 2049};
    kvcsa_error     err = {0};

    (void)state;
    assert_int_equal(gpu_ops->topk(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "2048"));
    p.k = 1;
    p.all = 1;
    assert_int_equal(gpu_ops->topk(gpu, &p, &err), KVCSA_ERR_ARG);
    assert_non_null(strstr(err.text, "n_visible"));
    p.all = 0;
    p.scores_stride = (size_t)1 << 31;
    assert_int_equal(gpu_ops->topk(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "2147483647"));
}

/* A recorded selection sees what stands in device memory when it runs, lengths too; launches do not depend on them. */
static void test_topk_recorded(void **state)
{
    enum { STRIDE = 17000, K = 100 };
    float          *scores = calloc(STRIDE, sizeof *scores);
    int32_t         want[K], got[K];
    uint64_t        n = 16900, launches[2] = {0, 0};
    kvi_graph      *graph = NULL;
    kvcsa_error     err = {0};
    kvi_topk_params host = {.scores = scores, .n_scores = &n, .ids = want, .scores_stride = STRIDE, .n_rows = 1, .k = K};
    kvi_topk_params p = host;
    float          *on_device;
    uint64_t       *n_device;

    (void)state;
    assert_non_null(scores);
    prng_seed(6);
    p.scores = on_device = to_device(scores, STRIDE * sizeof *scores);
    p.n_scores = n_device = to_device(&n, sizeof n);
    p.ids = to_device(NULL, sizeof got);
    GPU(topk, &p); /* scratch grows here */
    must(gpu_ops->graph_begin(gpu, &err), &err);
    GPU(topk, &p);
    must(gpu_ops->graph_end(gpu, &graph, &err), &err);
    must(gpu_ops->sync(gpu, &err), &err);
    for (size_t t = 0; t < 4; t++) {
        static const uint64_t lengths[4] = {STRIDE, 99, 0, 12345};
        const uint64_t        before = emulated ? emu.launches() : 0;

        n = lengths[t];
        for (size_t i = 0; i < STRIDE; i++)
            scores[i] = score(t, i, STRIDE);
        must(gpu_ops->mem_copy(gpu, on_device, scores, STRIDE * sizeof *scores, KVI_COPY_IN, &err), &err);
        must(gpu_ops->mem_copy(gpu, n_device, &n, sizeof n, KVI_COPY_IN, &err), &err);
        must(gpu_ops->graph_run(gpu, graph, &err), &err);
        from_device(got, p.ids, sizeof got);
        CPU(topk, &host);
        assert_memory_equal(got, want, sizeof got);
        if (emulated) {
            launches[t % 2] = emu.launches() - before;
            assert_true(t == 0 || launches[0] == launches[1]);
        }
    }
    gpu_ops->graph_free(gpu, graph);
    device_free_all();
    free(scores);
}

/* ---- hiding ---- */

typedef struct hide_job {
    kvi_hide_params p; /* of the host; scores are copied, then hidden */
} hide_job;

static void run_hide(const void *arg, void *out)
{
    const hide_job *j = arg;
    kvi_hide_params p = j->p;
    const size_t    bytes = p.n_rows * p.scores_stride * sizeof *p.scores;

    p.scores = to_device_at(p.scores, bytes, 4);
    if (p.n_scores)
        p.n_scores = to_device(p.n_scores, p.n_rows * sizeof *p.n_scores);
    if (p.n_blocks)
        p.n_blocks = to_device(p.n_blocks, p.n_rows * sizeof *p.n_blocks);
    p.hidden = to_device(p.hidden, p.n_hidden);
    if (p.blocks)
        p.blocks = to_device(p.blocks, p.n_rows * p.blocks_stride * sizeof *p.blocks);
    GPU(hide, &p);
    from_device(out, p.scores, bytes);
    device_free_all();
}

static void check_hide(size_t n_rows, size_t stride, uint32_t be, uint32_t span, size_t n_hidden, uint32_t rest, bool lists)
{
    const size_t    n = n_rows * stride, blocks_stride = be ? stride / be + 3 : 0;
    float          *scores = calloc(n + 1, sizeof *scores);
    float          *want = calloc(n + 1, sizeof *want), *got = calloc(n + 1, sizeof *got);
    uint64_t       *n_scores = calloc(n_rows + 1, sizeof *n_scores);
    uint32_t       *n_blocks = calloc(n_rows + 1, sizeof *n_blocks);
    uint8_t        *hidden = calloc(n_hidden + 1, 1);
    int32_t        *blocks = calloc(n_rows * blocks_stride + 1, sizeof *blocks);
    hide_job        j;
    kvi_hide_params host;

    assert_true(scores && want && got && n_scores && n_blocks && hidden && blocks);
    for (size_t i = 0; i < n; i++)
        scores[i] = want[i] = any_bits();
    for (size_t row = 0; row < n_rows; row++)
        n_scores[row] = row % 3 == 2 ? 0 : row ? prng() % (stride + 1) : stride;
    for (size_t row = 0; row < n_rows && be; row++)
        n_blocks[row] = (uint32_t)(n_scores[row] / be);
    for (size_t i = 0; i < n_hidden; i++)
        hidden[i] = (uint8_t)(prng() % 2);
    for (size_t i = 0, at = 0; i < n_rows * blocks_stride; i++)
        blocks[i] = (int32_t)(at = i % blocks_stride ? at + 1 + prng() % 4 : prng() % 3);
    j.p = (kvi_hide_params){.scores = scores, .n_scores = lists ? NULL : n_scores, .n_blocks = lists ? n_blocks : NULL,
                            .blocks = be ? blocks : NULL, .hidden = hidden,
                            .n_hidden = n_hidden, .scores_stride = stride, .blocks_stride = blocks_stride, .n_rows = n_rows,
                            .block_entries = be, .span_entries = span, .rest_hidden = rest};
    host = j.p;
    host.scores = want;
    CPU(hide, &host);
    gpu_run(run_hide, &j, got, n * sizeof *got);
    assert_memory_equal(got, want, n * sizeof *got);
    free(scores);
    free(want);
    free(got);
    free(n_scores);
    free(n_blocks);
    free(hidden);
    free(blocks);
}

static void test_hide_equals_cpu(void **state)
{
    static const size_t   strides[] = {1, 2, 7, 33, 255, 256, 257, 400, 2047, 2048, 2049, 5000};
    static const uint32_t spans[] = {8, 1, 16, 5, 100}, block_entries[] = {0, 8, 3, 0, 1};

    (void)state;
    prng_seed(7);
    for (size_t s = 0; s < 12; s++)
        for (size_t v = 0; v < 5; v++)
            check_hide(1 + (s + v) % 4, strides[s], block_entries[v], spans[(s + v) % 5], s == 3 ? 0 : prng() % 64,
                       (uint32_t)(v % 2), block_entries[v] && s % 2);
    check_hide(0, 5, 0, 8, 3, 1, false);
    check_hide(2, 0, 0, 8, 3, 1, false);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_topk_short_rows),
    cmocka_unit_test(test_topk_of_lists),
    cmocka_unit_test(test_topk_of_equals),
    cmocka_unit_test(test_topk_of_rows_that_take_all),
    cmocka_unit_test(test_topk_short_patterns),
    cmocka_unit_test(test_topk_long_rows),
    cmocka_unit_test(test_topk_long_patterns),
    cmocka_unit_test(test_topk_many_rows),
    cmocka_unit_test(test_topk_rows_in_turns),
    cmocka_unit_test(test_topk_of_uneven_long_rows),
    cmocka_unit_test(test_topk_nothing_to_take),
    cmocka_unit_test(test_topk_refuses),
    cmocka_unit_test(test_topk_recorded),
    cmocka_unit_test(test_hide_equals_cpu),
};

CUDA_MAIN(tests)
