/* Operators and forms of operators that came with devices: copy, tally, pairs with a head, selection without scores, scores counted
 * in blocks, weights of index heads. In the host's memory and in that of the test device "apart". */
#include "format/dtype.h"
#include "support/prng.h"
#include "support/worlds.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static uint64_t seed;

enum { N_SHAPES = 20 };

typedef void (*shape_fn)(world *w, prng *r);

/* Random shapes in both worlds, the same ones. */
static void in_both_worlds(shape_fn try_shape)
{
    for (int which = 0; which < N_WORLDS; which++) {
        prng r;

        prng_init(&r, seed + 2);
        for (int i = 0; i < N_SHAPES; i++) {
            world w = open_world(which, NULL, NULL, NULL);

            try_shape(&w, &r);
            close_world(&w);
        }
    }
}

static void random_floats(prng *r, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = prng_normal(r);
}

/* Two results of an operator that are to be equal. */
static void assert_equal_there(world *w, const void *a, const void *b, size_t size)
{
    uint8_t *x = malloc(size), *y = malloc(size);

    assert_true(x && y);
    world_get(w, x, a, size);
    world_get(w, y, b, size);
    assert_memory_equal(x, y, size);
    free(x);
    free(y);
}

static void try_copy(world *w, prng *r)
{
    enum { MOST_JOBS = 60, MOST = 300 };
    static uint8_t  source[MOST_JOBS * MOST], wanted[MOST_JOBS * MOST], back[MOST_JOBS * MOST];
    kvi_copy_job    jobs[MOST_JOBS];
    kvi_copy_params p = {.n_jobs = prng_below(r, MOST_JOBS + 1)};
    uint8_t        *from, *to;

    prng_fill(r, source, sizeof source);
    memset(wanted, 0, sizeof wanted);
    from = world_put(w, source, sizeof source);
    to = world_put(w, wanted, sizeof wanted);
    for (size_t i = 0; i < p.n_jobs; i++) { /* sources may overlap */
        const size_t n = prng_below(r, MOST + 1);
        const size_t at = prng_below(r, sizeof source - n + 1);
        const size_t into = i * MOST + prng_below(r, MOST - n + 1);

        jobs[i] = (kvi_copy_job){.from = from + at, .to = to + into, .n_bytes = n};
        memcpy(wanted + into, source + at, n);
        p.max_bytes = n > p.max_bytes ? n : p.max_bytes;
    }
    p.jobs = world_put(w, jobs, p.n_jobs * sizeof *jobs);
    must(w, w->m.ops->copy(w->m.dev, &p, &w->err));
    world_get(w, back, to, sizeof back);
    assert_memory_equal(back, wanted, sizeof back);
}

static void test_copy(void **state)
{
    (void)state;
    in_both_worlds(try_copy);
}

enum { MOST_ITEMS = 40, MOST_EACH = 16, MOST_ENTRIES = 4 * MOST_ITEMS * MOST_EACH };

/* Entry by entry. */
static void naive_tally(const kvi_tally_params *p, const int32_t *items, uint64_t n_visible, uint64_t *counts)
{
    uint8_t marked[MOST_ENTRIES] = {0}; /* cache blocks */

    for (uint32_t k = 0; k < p->n_items && items[k] >= 0; k++) {
        counts[0]++;
        for (uint64_t e = (uint64_t)items[k] * p->each; e < ((uint64_t)items[k] + 1) * p->each; e++) {
            if (e >= n_visible)
                continue;
            counts[1]++;
            counts[2] += !marked[e / p->rows_per_block];
            marked[e / p->rows_per_block] = 1;
        }
    }
}

static void try_tally(world *w, prng *r)
{
    enum { MOST_COUNTS = 6 * 5 }; /* strides of 3 to 5 */
    uint64_t         counts[MOST_COUNTS], back[MOST_COUNTS];
    kvi_tally_params p = {.n_items = (uint32_t)prng_below(r, MOST_ITEMS + 1),
                          .n_rows = prng_below(r, 6),
                          .each = (uint32_t)prng_range(r, 1, MOST_EACH),
                          .rows_per_block = (uint32_t)prng_range(r, 1, 64)};
    const int        see_all = prng_below(r, 4) == 0;
    int32_t          items[6 * (MOST_ITEMS + 3)];
    uint64_t         n_visible[6];

    for (size_t i = 0; i < MOST_COUNTS; i++)
        counts[i] = 5 + 2 * i;
    p.stride = p.n_items + prng_below(r, 4);
    p.rows_each = prng_below(r, 4);
    p.counts_stride = prng_range(r, 3, 5);
    p.all = see_all || prng_below(r, 2) ? 0 : prng_below(r, MOST_ITEMS * MOST_EACH);
    p.counts = world_put(w, counts, sizeof counts);
    for (size_t row = 0; row < p.n_rows; row++) {
        int32_t     *list = items + row * p.stride;
        const size_t n = prng_below(r, p.stride + 1); /* also more than n_items */
        int32_t      next = 0;

        for (size_t i = 0; i < p.stride; i++) {
            next += (int32_t)prng_below(r, 4);
            list[i] = i < n ? next++ : -1;
        }
        n_visible[row] = prng_below(r, 2 * MOST_ITEMS * MOST_EACH);
        if (p.all == 0 || n_visible[row] > p.all)
            naive_tally(&p, list, see_all ? UINT64_MAX : n_visible[row],
                        counts + (p.rows_each ? row / p.rows_each * p.counts_stride : 0));
    }
    p.items = world_put(w, items, p.n_rows * p.stride * sizeof *items);
    p.n_visible = see_all ? NULL : world_put(w, n_visible, p.n_rows * sizeof *n_visible);
    must(w, w->m.ops->tally(w->m.dev, &p, &w->err));
    world_get(w, back, p.counts, sizeof back);
    assert_memory_equal(back, counts, sizeof back);
}

static void test_tally(void **state)
{
    (void)state;
    in_both_worlds(try_tally);
}

/* The first row of the first pair apart from the others, against all in one piece. */
static void try_head(world *w, prng *r)
{
    enum { MOST_PAIRS = 9, MOST_WIDTH = 96 };
    static float          k[2 * MOST_PAIRS * MOST_WIDTH], gate[2 * MOST_PAIRS * MOST_WIDTH], head[2 * MOST_WIDTH];
    const uint32_t        width = 32 * (uint32_t)prng_range(r, 1, MOST_WIDTH / 32);
    const size_t          n = prng_range(r, 1, MOST_PAIRS);
    kvi_pool_pairs_params p = {.n_pairs = n, .width = width, .flags = prng_below(r, 2) ? KVI_OP_ROUND_BF16 : 0};
    float                *out;

    random_floats(r, k, 2 * n * width);
    random_floats(r, gate, 2 * n * width);
    memcpy(head, k, width * sizeof *k);
    memcpy(head + width, gate, width * sizeof *k);
    p.k = world_put(w, k, 2 * n * width * sizeof *k);
    p.gate = world_put(w, gate, 2 * n * width * sizeof *k);
    p.out = out = world_room(w, n * width * sizeof *k);
    must(w, w->m.ops->pool_pairs(w->m.dev, &p, &w->err));
    p.k = world_put(w, k + width, (2 * n - 1) * width * sizeof *k);
    p.gate = world_put(w, gate + width, (2 * n - 1) * width * sizeof *k);
    p.head = world_put(w, head, 2 * width * sizeof *k);
    p.out = world_room(w, n * width * sizeof *k);
    must(w, w->m.ops->pool_pairs(w->m.dev, &p, &w->err));
    assert_equal_there(w, p.out, out, n * width * sizeof *k);
}

static void test_pairs_with_a_head(void **state)
{
    (void)state;
    in_both_worlds(try_head);
}

enum { MOST_ROWS = 5, MOST_SCORES = 200 };

static void try_equal_scores(world *w, prng *r)
{
    const size_t          n_rows = prng_range(r, 1, MOST_ROWS);
    float                 scores[MOST_ROWS * MOST_SCORES];
    uint64_t              n_scores[MOST_ROWS];
    kvi_topk_params       t = {.n_rows = n_rows, .scores_stride = MOST_SCORES, .k = (uint32_t)prng_below(r, 90)};
    kvi_candidates_params c = {.n_rows = n_rows, .scores_stride = MOST_SCORES, .n_keep = (uint32_t)prng_range(r, 1, 30)};
    const int32_t        *ids, *blocks;
    const uint32_t       *n_blocks;

    for (size_t i = 0; i < MOST_ROWS * MOST_SCORES; i++)
        scores[i] = 0.75f;
    for (size_t i = 0; i < n_rows; i++)
        n_scores[i] = prng_below(r, MOST_SCORES + 1);
    t.ids_stride = prng_below(r, 2) ? t.k + prng_below(r, 4) : 0;
    c.blocks_stride = prng_below(r, 2) ? c.n_keep + prng_below(r, 4) : 0;
    c.block_entries = (uint32_t)prng_range(r, 1, 17);
    t.scores = c.scores = world_put(w, scores, sizeof scores);
    t.n_scores = c.n_visible = world_put(w, n_scores, sizeof n_scores);

    const size_t ids_bytes = n_rows * (t.ids_stride ? t.ids_stride : t.k) * sizeof *t.ids;
    const size_t blocks_bytes = n_rows * (c.blocks_stride ? c.blocks_stride : c.n_keep) * sizeof *c.blocks;

    ids = t.ids = world_room(w, ids_bytes);
    blocks = c.blocks = world_room(w, blocks_bytes);
    n_blocks = c.n_blocks = world_room(w, n_rows * sizeof *c.n_blocks);
    must(w, w->m.ops->topk(w->m.dev, &t, &w->err));
    must(w, w->m.ops->candidates(w->m.dev, &c, &w->err));
    t.scores = c.scores = NULL;
    t.ids = world_room(w, ids_bytes);
    c.blocks = world_room(w, blocks_bytes);
    c.n_blocks = world_room(w, n_rows * sizeof *c.n_blocks);
    must(w, w->m.ops->topk(w->m.dev, &t, &w->err));
    must(w, w->m.ops->candidates(w->m.dev, &c, &w->err));
    assert_equal_there(w, t.ids, ids, ids_bytes);
    assert_equal_there(w, c.blocks, blocks, blocks_bytes);
    assert_equal_there(w, c.n_blocks, n_blocks, n_rows * sizeof *c.n_blocks);
}

static void test_selection_without_scores(void **state)
{
    (void)state;
    in_both_worlds(try_equal_scores);
}

/* Scores of listed blocks, their number as entries or as blocks. */
static void try_block_counts(world *w, prng *r)
{
    enum { MOST_BLOCKS = 12, N_HIDDEN = 20 };
    const size_t    n_rows = prng_range(r, 1, MOST_ROWS);
    const uint32_t  be = (uint32_t)prng_range(r, 1, 16);
    const size_t    stride = MOST_BLOCKS * be;
    float           scores[MOST_ROWS * MOST_BLOCKS * 16];
    int32_t         blocks[MOST_ROWS * MOST_BLOCKS];
    uint32_t        n_blocks[MOST_ROWS];
    uint64_t        n_scores[MOST_ROWS];
    uint8_t         hidden[N_HIDDEN];
    kvi_topk_params t = {.n_rows = n_rows, .scores_stride = stride, .blocks_stride = MOST_BLOCKS, .block_entries = be, .k = 20};
    kvi_hide_params h = {.n_rows = n_rows,
                         .scores_stride = stride,
                         .blocks_stride = MOST_BLOCKS,
                         .block_entries = be,
                         .n_hidden = N_HIDDEN,
                         .span_entries = 8,
                         .rest_hidden = (uint32_t)prng_below(r, 2)};
    const float    *old_scores;
    const int32_t  *old_ids;

    random_floats(r, scores, MOST_ROWS * stride);
    for (size_t row = 0; row < n_rows; row++) {
        int32_t next = 0;

        n_blocks[row] = (uint32_t)prng_below(r, MOST_BLOCKS + 1);
        n_scores[row] = (uint64_t)n_blocks[row] * be;
        for (uint32_t i = 0; i < MOST_BLOCKS; i++) {
            next += (int32_t)prng_range(r, 1, 3);
            blocks[row * MOST_BLOCKS + i] = i < n_blocks[row] ? next : -1;
        }
    }
    for (size_t i = 0; i < N_HIDDEN; i++)
        hidden[i] = (uint8_t)prng_below(r, 2);
    h.hidden = world_put(w, hidden, sizeof hidden);
    t.blocks = h.blocks = world_put(w, blocks, sizeof blocks);

    t.n_scores = h.n_scores = world_put(w, n_scores, sizeof n_scores);
    old_scores = t.scores = h.scores = world_put(w, scores, MOST_ROWS * stride * sizeof *scores);
    old_ids = t.ids = world_room(w, n_rows * t.k * sizeof *t.ids);
    must(w, w->m.ops->hide(w->m.dev, &h, &w->err));
    must(w, w->m.ops->topk(w->m.dev, &t, &w->err));

    t.n_scores = h.n_scores = NULL;
    t.n_blocks = h.n_blocks = world_put(w, n_blocks, sizeof n_blocks);
    t.scores = h.scores = world_put(w, scores, MOST_ROWS * stride * sizeof *scores);
    t.ids = world_room(w, n_rows * t.k * sizeof *t.ids);
    must(w, w->m.ops->hide(w->m.dev, &h, &w->err));
    must(w, w->m.ops->topk(w->m.dev, &t, &w->err));
    assert_equal_there(w, h.scores, old_scores, MOST_ROWS * stride * sizeof *scores);
    assert_equal_there(w, t.ids, old_ids, n_rows * t.k * sizeof *t.ids);
}

static void test_scores_counted_in_blocks(void **state)
{
    (void)state;
    in_both_worlds(try_block_counts);
}

static void try_weights(world *w, prng *r)
{
    enum { MOST_HEADS = 8, MOST_WIDTH = 128 };
    static float           x[MOST_ROWS * MOST_HEADS * MOST_WIDTH];
    float                  weights[MOST_ROWS * MOST_HEADS], back[MOST_ROWS * MOST_HEADS];
    kvi_index_query_params p = {.n_rows = prng_range(r, 1, MOST_ROWS),
                                .n_heads = (uint32_t)prng_range(r, 1, MOST_HEADS),
                                .width = 32 * (uint32_t)prng_range(r, 1, MOST_WIDTH / 32),
                                .weight_scale = prng_float(r, 0, 2),
                                .flags = prng_below(r, 2) ? KVI_OP_ROUND_BF16 : 0};
    const size_t           n_weights = p.n_rows * p.n_heads, n = n_weights * p.width;
    const int8_t          *codes;
    const float           *scales;

    random_floats(r, x, n);
    random_floats(r, weights, n_weights);
    p.x = world_put(w, x, n * sizeof *x);
    codes = p.codes = world_room(w, n);
    scales = p.scales = world_room(w, n / 32 * sizeof *scales);
    must(w, w->m.ops->index_query(w->m.dev, &p, &w->err));
    p.codes = world_room(w, n);
    p.scales = world_room(w, n / 32 * sizeof *scales);
    p.weights = world_put(w, weights, n_weights * sizeof *weights);
    must(w, w->m.ops->index_query(w->m.dev, &p, &w->err));
    assert_equal_there(w, p.codes, codes, n);
    assert_equal_there(w, p.scales, scales, n / 32 * sizeof *scales);
    world_get(w, back, p.weights, n_weights * sizeof *weights);
    for (size_t i = 0; i < n_weights; i++) {
        weights[i] *= p.weight_scale;
        if (p.flags)
            weights[i] = kvi_round_bf16(weights[i]);
    }
    assert_memory_equal(back, weights, n_weights * sizeof *weights);
}

static void test_weights_of_index_heads(void **state)
{
    (void)state;
    in_both_worlds(try_weights);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_tally),
        cmocka_unit_test(test_pairs_with_a_head),
        cmocka_unit_test(test_selection_without_scores),
        cmocka_unit_test(test_scores_counted_in_blocks),
        cmocka_unit_test(test_weights_of_index_heads),
    };

    seed = prng_seed(argc, argv, 20269);
    return cmocka_run_group_tests(tests, load_apart, NULL);
}
