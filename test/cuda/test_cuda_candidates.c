/* Candidate blocks on the device beside the CPU's: equal bytes, whatever the scores. */
#include "cuda/cuda_check.h"

#include <string.h>

enum { N_PATTERNS = 9 };

static float score(size_t pattern, size_t i)
{
    float any;

    switch (pattern) {
    case 0: return uniform(1.0f) + uniform(1.0f) + uniform(1.0f);
    case 1: return (float)(prng() % 7) - 3.0f; /* ties of most blocks */
    case 2: return 1.0f;
    case 3: return (float)i;
    case 4: return -(float)i;
    case 5: return i / 40 % 3 ? -INFINITY : uniform(2.0f); /* whole blocks that cannot be taken */
    case 6: return prng() % 2 ? NAN : prng() % 5 ? -INFINITY : uniform(2.0f);
    case 7: return -INFINITY;
    default: {
        const uint32_t u = prng();
        memcpy(&any, &u, sizeof any);
        return any;
    }
    }
}

typedef struct job {
    kvi_candidates_params p; /* of the host */
    size_t                off, n_blocks; /* of the result */
} job;

/* blocks, then n_blocks */
static void run(const void *arg, void *out)
{
    const job            *j = arg;
    kvi_candidates_params p = j->p;

    if (p.scores)
        p.scores = to_device_at(p.scores, p.n_rows * p.scores_stride * sizeof *p.scores, j->off * sizeof *p.scores);
    if (p.block_max)
        p.block_max = to_device_at(p.block_max, p.n_rows * p.max_stride * sizeof *p.block_max, j->off * sizeof *p.block_max);
    p.n_visible = to_device(p.n_visible, p.n_rows * sizeof *p.n_visible);
    p.blocks = to_device(NULL, j->n_blocks * sizeof *p.blocks);
    p.n_blocks = to_device(NULL, p.n_rows * sizeof *p.n_blocks);
    GPU(candidates, &p);
    from_device(out, p.blocks, j->n_blocks * sizeof *p.blocks);
    from_device((int32_t *)out + j->n_blocks, p.n_blocks, p.n_rows * sizeof *p.n_blocks);
    device_free_all();
}

static void compare(const job *j, const int32_t *want, size_t pattern, const char *how)
{
    const kvi_candidates_params *p = &j->p;
    const size_t                 n = j->n_blocks + p->n_rows;
    int32_t                     *got = calloc(n + 1, sizeof *got);

    assert_non_null(got);
    gpu_run(run, j, got, n * sizeof *got);
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s: stride %zu, blocks of %u, keep %u, all %llu, pattern %zu, %zu rows: element %zu of %zu is %d, not %d",
                     how, p->scores_stride, p->block_entries, p->n_keep, (unsigned long long)p->all, pattern, p->n_rows, i,
                     j->n_blocks, (int)got[i], (int)want[i]);
    free(got);
}

/* What index_score writes beside the scores; behind a row's newest block anything. */
static float *maxima_of(const kvi_candidates_params *p)
{
    float *max = malloc((p->n_rows * p->max_stride + 1) * sizeof *max);

    assert_non_null(max);
    for (size_t i = 0; i < p->n_rows * p->max_stride; i++)
        max[i] = INFINITY;
    for (size_t row = 0; row < p->n_rows; row++)
        for (size_t i = 0; i < p->n_visible[row] && i < p->scores_stride; i++) {
            const float x = p->scores[row * p->scores_stride + i];
            float      *most = &max[row * p->max_stride + i / p->block_entries];

            if (i % p->block_entries == 0)
                *most = -INFINITY;
            *most = x > *most ? x : *most;
        }
    return max;
}

/* Rows that see at most `all` take their first blocks; what they look like does not matter. */
static void take_all(job *j, float *scores, float *max, int32_t *want, uint64_t all)
{
    const kvi_candidates_params *p = &j->p;
    const size_t                 stride = p->blocks_stride ? p->blocks_stride : p->n_keep;

    for (size_t row = 0; row < p->n_rows; row++) {
        const size_t blocks = (size_t)(p->n_visible[row] + p->block_entries - 1) / p->block_entries;
        const size_t n = blocks < p->n_keep ? blocks : p->n_keep;

        if (p->n_visible[row] > all)
            continue;
        for (size_t i = 0; i < stride; i++)
            want[row * stride + i] = i < n ? (int32_t)i : -1;
        want[j->n_blocks + row] = (int32_t)n;
        for (size_t i = 0; scores && i < p->scores_stride; i++)
            scores[row * p->scores_stride + i] = NAN;
        for (size_t i = 0; max && i < p->max_stride; i++)
            max[row * p->max_stride + i] = NAN;
    }
    j->p.all = all;
}

/* From scores, from their maxima, and both again where some rows, and at last all, take everything. */
static void check(size_t n_rows, size_t stride, const uint64_t *n_visible, uint32_t be, uint32_t n_keep, size_t more,
                  size_t pattern, size_t off)
{
    job      j = {.p = {.n_visible = n_visible, .scores_stride = stride, .n_rows = n_rows, .block_entries = be, .n_keep = n_keep,
                        .blocks_stride = more ? n_keep + more : 0},
                  .off = off,
                  .n_blocks = n_rows * (n_keep + more)};
    float   *scores = calloc(n_rows * stride + 1, sizeof *scores);
    float   *max;
    int32_t *want = calloc(j.n_blocks + n_rows + 1, sizeof *want);
    job      by_maxima;

    assert_true(scores && want);
    for (size_t row = 0; row < n_rows; row++)
        for (size_t i = 0; i < stride; i++) /* what is behind the row must not be seen */
            scores[row * stride + i] = i < n_visible[row] ? score((pattern + row) % N_PATTERNS, i) : INFINITY;
    j.p.scores = scores;
    j.p.blocks = want;
    j.p.n_blocks = (uint32_t *)(want + j.n_blocks);
    CPU(candidates, &j.p);
    compare(&j, want, pattern, "scores");
    by_maxima = j;
    by_maxima.p.max_stride = (stride + be - 1) / be + more;
    by_maxima.p.block_max = max = maxima_of(&by_maxima.p);
    if (more)
        by_maxima.p.scores = NULL;
    compare(&by_maxima, want, pattern, "maxima");
    for (int t = 0; t < 2; t++) {
        const uint64_t all = t ? UINT64_MAX : (uint64_t)stride / 2 + 1;

        take_all(&j, scores, NULL, want, all);
        take_all(&by_maxima, NULL, max, want, all);
        compare(t ? &by_maxima : &j, want, pattern, "all");
        if (pattern % 2)
            compare(t ? &j : &by_maxima, want, pattern, "all of the other");
    }
    free(scores);
    free(max);
    free(want);
}

static void test_candidates_equal_cpu(void **state)
{
    static const size_t   strides[] = {1, 2, 7, 8, 9, 16, 31, 64, 100, 255, 1024, 2047, 4099, 9000};
    static const uint32_t sizes[] = {8, 4, 1, 3, 16, 33, 64, 100}, keeps[] = {2, 1, 16, 7, 300, 2048};

    (void)state;
    prng_seed(1);
    for (size_t s = 0; s < sizeof strides / sizeof *strides; s++)
        for (size_t v = 0; v < 3; v++) {
            const uint64_t n[3] = {strides[s], prng() % (strides[s] + 1), v == 1 ? 0 : strides[s] - 1};

            check(v == 1 ? 3 : 1, strides[s], n, sizes[(s + 3 * v) % 8], keeps[(s + v) % 6], v, 4 * s + v, s % 4);
        }
}

/* Without scores: the first ones and the newest. */
static void test_candidates_of_equals(void **state)
{
    static const uint32_t sizes[] = {8, 1, 16, 3, 128}, keeps[] = {1, 2, 7, 16, 512, 2048, 0};

    (void)state;
    prng_seed(4);
    for (size_t i = 0; i < 28; i++) {
        const uint64_t n[4] = {prng() % 5000, 0, 1 + i % 8, (uint64_t)keeps[i % 7] * sizes[i % 5]};
        const size_t   n_rows = i % 5, stride = keeps[i % 7] + i % 3;
        job            j = {.p = {.n_visible = n, .n_rows = n_rows, .block_entries = sizes[i % 5], .n_keep = keeps[i % 7],
                                  .blocks_stride = i % 3 ? stride : 0},
                            .n_blocks = n_rows * stride};
        int32_t       *want = calloc(j.n_blocks + n_rows + 1, sizeof *want), *got = calloc(j.n_blocks + n_rows + 1, sizeof *got);

        assert_true(want && got);
        j.p.blocks = want;
        j.p.n_blocks = (uint32_t *)(want + j.n_blocks);
        CPU(candidates, &j.p);
        gpu_run(run, &j, got, (j.n_blocks + n_rows) * sizeof *got);
        assert_memory_equal(got, want, (j.n_blocks + n_rows) * sizeof *got);
        take_all(&j, NULL, NULL, want, 1 + i * 100);
        compare(&j, want, 0, "all are equal");
        free(want);
        free(got);
    }
}

/* More blocks than one block of threads chooses from. */
static void test_candidates_of_long_rows(void **state)
{
    (void)state;
    prng_seed(2);
    for (size_t pattern = 0; pattern < N_PATTERNS; pattern++) {
        const uint64_t n[2] = {33000, 32800 - pattern};

        check(pattern % 4 ? 1 : 2, 33001, n, pattern % 3 == 1 ? 1 : 2, pattern % 2 ? 100 : 4000, 1, pattern, pattern % 4);
    }
}

static void test_candidates_of_nothing(void **state)
{
    static const uint64_t n[3] = {0, 5, 13};

    (void)state;
    prng_seed(3);
    check(0, 20, n, 8, 4, 0, 0, 0);
    check(3, 20, n, 8, 0, 2, 0, 0);
    check(3, 20, n, 8, 0, 0, 0, 0);
    check(3, 20, n, 8, 1, 0, 7, 0);
    check(3, 20, n, 8, 3, 1, 7, 0);
    check(3, 40000, n, 2, 3, 1, 0, 0);
    check(1, 0, n, 8, 3, 0, 0, 0);
}

static void test_candidates_refuses(void **state)
{
    const float           none = 0;
    kvi_candidates_params p = {.scores = &none, .n_rows = 1, .scores_stride = (size_t)1 << 31, .block_entries = 1, .n_keep = 1};
    kvcsa_error           err = {0};

    (void)state;
    assert_int_equal(gpu_ops->candidates(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "2147483647"));
    p.block_max = &none;
    p.max_stride = (size_t)1 << 31;
    err = (kvcsa_error){0};
    assert_int_equal(gpu_ops->candidates(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "2147483647"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_candidates_equal_cpu),
    cmocka_unit_test(test_candidates_of_equals),
    cmocka_unit_test(test_candidates_of_long_rows),
    cmocka_unit_test(test_candidates_of_nothing),
    cmocka_unit_test(test_candidates_refuses),
};

CUDA_MAIN(tests)
