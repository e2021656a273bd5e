/* Copies and counts on the device beside the CPU's: equal bytes and numbers. */
#include "cuda/cuda_check.h"

#include <string.h>

/* ---- copies ---- */

enum { MAX_JOBS = 200, GAP = 3 };

/* All jobs read one array and write another, with gaps between them. */
typedef struct copy_case {
    const uint8_t *bytes;
    size_t         size;
    size_t         from[MAX_JOBS], to[MAX_JOBS], n[MAX_JOBS], n_jobs;
    uint64_t       max_bytes;
} copy_case;

static void run_copy(const void *arg, void *out)
{
    const copy_case *c = arg;
    const uint8_t   *from = to_device(c->bytes, c->size);
    uint8_t         *to = to_device(NULL, c->size);
    kvi_copy_job     jobs[MAX_JOBS];
    kvi_copy_params  p = {.n_jobs = c->n_jobs, .max_bytes = c->max_bytes};

    for (size_t i = 0; i < c->n_jobs; i++)
        jobs[i] = (kvi_copy_job){from + c->from[i], to + c->to[i], c->n[i]};
    p.jobs = to_device(jobs, c->n_jobs * sizeof *jobs);
    GPU(copy, &p);
    from_device(out, to, c->size);
    device_free_all();
}

static void check_copy(const copy_case *c)
{
    uint8_t        *want = malloc(c->size + 1), *got = malloc(c->size + 1);
    kvi_copy_job    jobs[MAX_JOBS];
    kvi_copy_params p = {.jobs = jobs, .n_jobs = c->n_jobs, .max_bytes = c->max_bytes};

    assert_true(want && got);
    memset(want, GUARD, c->size);
    for (size_t i = 0; i < c->n_jobs; i++)
        jobs[i] = (kvi_copy_job){c->bytes + c->from[i], want + c->to[i], c->n[i]};
    CPU(copy, &p);
    gpu_run(run_copy, c, got, c->size);
    assert_memory_equal(got, want, c->size);
    free(want);
    free(got);
}

/* Jobs of n bytes, every third shorter, whose ends lie at multiples of from_step and of to_step. */
static void check_copies(size_t n_jobs, size_t n, size_t from_step, size_t to_step, uint64_t more)
{
    copy_case c = {.n_jobs = n_jobs, .max_bytes = n + more};
    size_t    from = from_step, to = to_step;
    uint8_t  *bytes;

    for (size_t i = 0; i < n_jobs; i++) {
        c.n[i] = i % 3 == 1 ? prng() % (n + 1) : n;
        c.from[i] = from;
        c.to[i] = to;
        from += (c.n[i] + GAP + from_step) / from_step * from_step;
        to += (c.n[i] + GAP + to_step) / to_step * to_step;
    }
    c.size = from > to ? from : to;
    c.bytes = bytes = malloc(c.size);
    assert_non_null(bytes);
    for (size_t i = 0; i < c.size; i++)
        bytes[i] = (uint8_t)prng();
    check_copy(&c);
    free(bytes);
}

static void test_copies_of_every_size(void **state)
{
    static const size_t sizes[] = {0,  1,   2,   3,   4,   5,   15,  16,   17,   31,   33,   64,   68,   288,
                                   511, 512, 513, 528, 640, 2047, 2048, 2049, 2064, 4095, 4096, 6148, 10001};
    static const size_t steps[] = {16, 4, 16, 1, 8, 3};

    (void)state;
    prng_seed(1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_copies(1 + i % 4, sizes[i], 16, 16, i % 2);
        check_copies(1 + i % 3, sizes[i], steps[i % 6], steps[(i / 2 + 1) % 6], 0);
    }
}

static void test_many_copies(void **state)
{
    (void)state;
    prng_seed(2);
    check_copies(0, 100, 16, 16, 0);
    check_copies(MAX_JOBS, 33, 16, 16, 0);
    check_copies(MAX_JOBS, 528, 16, 16, 5000);
    check_copies(41, 3000, 1, 16, 0);
}

static void test_copies_refused(void **state)
{
    const kvi_copy_params p = {.n_jobs = 1, .max_bytes = (uint64_t)1 << 60};
    kvcsa_error           err = {0};

    (void)state;
    assert_int_equal(gpu_ops->copy(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "2^44"));
}

/* ---- counts ---- */

typedef struct tally_case {
    kvi_tally_params p; /* of the host; counts are what they begin with */
    size_t           n_counts;
} tally_case;

static void run_tally(const void *arg, void *out)
{
    const tally_case *c = arg;
    kvi_tally_params  p = c->p;

    p.items = to_device(p.items, p.n_rows * p.stride * sizeof *p.items);
    if (p.n_visible)
        p.n_visible = to_device(p.n_visible, p.n_rows * sizeof *p.n_visible);
    p.counts = to_device(p.counts, c->n_counts * sizeof *p.counts);
    GPU(tally, &p);
    from_device(out, p.counts, c->n_counts * sizeof *p.counts);
    device_free_all();
}

static void check_tally(const kvi_tally_params *p)
{
    tally_case       c = {*p, 3};
    uint64_t         begin[3] = {5, (uint64_t)1 << 40, 7}, want[3], got[3];
    kvi_tally_params cpu_params = *p;

    memcpy(want, begin, sizeof want);
    c.p.counts = begin;
    cpu_params.counts = want;
    CPU(tally, &cpu_params);
    gpu_run(run_tally, &c, got, sizeof got);
    for (int i = 0; i < 3; i++)
        if (got[i] != want[i])
            fail_msg("%zu rows of %u items of %u entries, blocks of %u: count %d is %llu, not %llu", p->n_rows, p->n_items, p->each,
                     p->rows_per_block, i, (unsigned long long)got[i], (unsigned long long)want[i]);
}

/* Rows of ascending items with steps up to `most`, some of which end early; what stands behind an end is anything. */
static void check_tallies(size_t n_rows, uint32_t n_items, size_t more, uint32_t each, uint32_t per_block, uint32_t most, bool visible)
{
    const size_t     stride = n_items + more;
    int32_t         *items = calloc(n_rows * stride + 1, sizeof *items);
    uint64_t        *n_visible = calloc(n_rows + 1, sizeof *n_visible);
    kvi_tally_params p = {.items = items, .n_visible = visible ? n_visible : NULL, .stride = stride, .n_rows = n_rows,
                          .n_items = n_items, .each = each, .rows_per_block = per_block};

    assert_true(items && n_visible);
    for (size_t row = 0; row < n_rows; row++) {
        const size_t end = row % 3 == 1 ? prng() % (stride + 1) : row % 7 == 5 ? 0 : stride;
        uint32_t     at = prng() % most;

        for (size_t i = 0; i < stride; i++, at += prng() % most + (most > 1))
            items[row * stride + i] = i == end ? -1 : (int32_t)at;
        n_visible[row] = prng() % ((uint64_t)(at + 1) * each + 1);
    }
    check_tally(&p);
    free(items);
    free(n_visible);
}

static void test_tallies(void **state)
{
    static const uint32_t n_items[] = {1, 2, 7, 31, 32, 33, 64, 255, 256, 257, 512, 640, 1000, 2047, 2048, 2049, 4096, 5000};
    static const uint32_t each[] = {1, 8, 1, 32, 3, 16}, per_block[] = {64, 8, 1, 96, 128};

    (void)state;
    prng_seed(3);
    for (size_t i = 0; i < sizeof n_items / sizeof *n_items; i++)
        for (size_t v = 0; v < 2; v++)
            check_tallies(1 + (i + v) % 5, n_items[i], (i + v) % 3, each[(i + 2 * v) % 6], per_block[(i + v) % 5],
                          1 + (uint32_t)(i * 7 % 20), v);
}

static void test_tallies_of_nothing(void **state)
{
    const int32_t    none[4] = {-1, 3, 4, 5}, some[4] = {0, 0, 1, 9};
    const uint64_t   n_visible[1] = {0};
    kvi_tally_params p = {.items = none, .stride = 4, .n_rows = 1, .n_items = 4, .each = 8, .rows_per_block = 64};
    kvcsa_error      err = {0};

    (void)state;
    check_tally(&p);
    p.items = some; /* an item twice counts twice, its block once */
    check_tally(&p);
    p.each = 0;
    check_tally(&p);
    p.each = 8;
    p.n_visible = n_visible;
    check_tally(&p);
    p.n_items = 0;
    check_tally(&p);
    p.n_items = 4;
    p.n_rows = 0;
    check_tally(&p);
    p.rows_per_block = 0;
    assert_int_equal(gpu_ops->tally(gpu, &p, &err), KVCSA_ERR_ARG);
    p.rows_per_block = 64;
    p.n_visible = NULL;
    p.all = 1;
    assert_int_equal(gpu_ops->tally(gpu, &p, &err), KVCSA_ERR_ARG);
}

/* Entries behind 2^32. */
static void test_tallies_of_far_items(void **state)
{
    const int32_t    items[5] = {0, 1 << 20, (1 << 28) + 3, INT32_MAX - 1, INT32_MAX};
    const uint64_t   n_visible[1] = {(uint64_t)INT32_MAX * 256 + 100};
    kvi_tally_params p = {.items = items, .stride = 5, .n_rows = 1, .n_items = 5, .each = 256, .rows_per_block = 96};

    (void)state;
    check_tally(&p);
    p.n_visible = n_visible;
    check_tally(&p);
    p.rows_per_block = UINT32_MAX;
    check_tally(&p);
}

/* Counts of every few rows, and rows that do not count, beside a call of the old kind for each row that does. */
static void test_tallies_of_timelines(void **state)
{
    (void)state;
    prng_seed(5);
    for (size_t t = 0; t < 24; t++) {
        const size_t     each = t % 4 == 3 ? 0 : t % 4 == 1 ? 6 : 1 + t % 3, n_rows = 1 + t * 3 % 25, gap = 3 + t % 3;
        const size_t     n_items = 1 + prng() % 70, n_counts = ((each ? (n_rows - 1) / each : 0) + 1) * gap;
        const uint64_t   all = t % 5 == 0 ? 0 : t % 5 == 4 ? UINT64_MAX : 60;
        int32_t         *items = calloc(n_rows * n_items, sizeof *items);
        uint64_t        *visible = calloc(n_rows, sizeof *visible), *begin = calloc(n_counts, sizeof *begin);
        uint64_t        *want = calloc(n_counts, sizeof *want), *got = calloc(n_counts, sizeof *got);
        tally_case       c = {.p = {.items = items, .n_visible = visible, .counts = begin, .stride = n_items, .n_rows = n_rows,
                                    .n_items = (uint32_t)n_items, .each = 1 + prng() % 9,
                                    .rows_per_block = 1 + prng() % 40, .all = all, .rows_each = each, .counts_stride = gap},
                              .n_counts = n_counts};

        assert_true(items && visible && begin && want && got);
        for (size_t i = 0; i < n_counts; i++)
            begin[i] = want[i] = prng();
        for (size_t row = 0; row < n_rows; row++) {
            kvi_tally_params one = c.p;
            uint32_t         at = 0;

            for (size_t i = 0; i < n_items; i++, at += 1 + prng() % 4)
                items[row * n_items + i] = prng() % 50 == 0 ? -1 : (int32_t)at;
            visible[row] = prng() % 4 == 0 ? prng() % 2 * 60 : prng() % (at * c.p.each + 2);
            one.items = items + row * n_items;
            one.n_visible = visible + row;
            one.counts = want + (each ? row / each : 0) * gap;
            one.n_rows = 1;
            one.all = one.rows_each = one.counts_stride = 0;
            if (all == 0 || visible[row] > all)
                CPU(tally, &one);
        }
        gpu_run(run_tally, &c, got, n_counts * sizeof *got);
        assert_memory_equal(got, want, n_counts * sizeof *got);
        free(items);
        free(visible);
        free(begin);
        free(want);
        free(got);
    }
}

static void test_many_rows_are_counted(void **state)
{
    (void)state;
    prng_seed(4);
    check_tallies(300, 40, 0, 8, 64, 5, true);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_copies_of_every_size), cmocka_unit_test(test_many_copies),
    cmocka_unit_test(test_copies_refused),       cmocka_unit_test(test_tallies),
    cmocka_unit_test(test_tallies_of_nothing),   cmocka_unit_test(test_tallies_of_far_items),
    cmocka_unit_test(test_many_rows_are_counted), cmocka_unit_test(test_tallies_of_timelines),
};

CUDA_MAIN(tests)
