/* Long contexts for real, on the released cache geometry: counts, bytes and workspace at 4k and
 * 128k tokens. The network is small and random, entries are random; blocks, index keys, scores,
 * candidates, selection and attention are the real ones. A million tokens: long_run.c, which `make
 * check-large` starts. */
#include "support/host.h"
#include "support/long_context.h"

#include "session/session_int.h"

#include <math.h>
#include <stdio.h>

#if defined(__SANITIZE_ADDRESS__)
#define STEPS_4K 2u /* a step takes ten times as long */
#define STEPS_128K 2u
#else
#define STEPS_4K 8u
#define STEPS_128K 4u
#endif
#define N_4K 4096u
#define N_128K 131072u
#define TILE_FLOATS ((size_t)4 << 20) /* of scores, whatever the length */
#define PARTS_OF(n, rows) (((n) + (rows)-1) / (rows))

static char checkpoint_dir[1024];

static kvcsa_session_stats figures(kvcsa_session *s)
{
    kvcsa_session_stats st = {.struct_size = sizeof st};
    kvcsa_error         err;

    assert_ok(kvcsa_session_get_stats(s, &st, &err));
    return st;
}

static void check_step(long_world *w, kvcsa_session *s, uint32_t n)
{
    const char *wrong = long_check_step(w, s, n);

    if (wrong)
        fail_msg("%llu tokens: %s", (unsigned long long)kvcsa_session_length(s), wrong);
}

/* In so many words what one step at n tokens (a multiple of 8) does. */
static void check_laws(kvcsa_session *s, uint64_t n)
{
    const kvcsa_session_stats st = figures(s);
    const kvcsa_work         *full = &st.step[KVCSA_LAYERS_FULL];
    const kvcsa_work         *reindex = &st.step[KVCSA_LAYERS_REINDEX];
    const kvcsa_work         *reuse = &st.step[KVCSA_LAYERS_REUSE];
    const uint64_t            pool = n < 16384 ? n : 16384;

    assert_int_equal(st.step[KVCSA_LAYERS_WINDOW].n_window_rows_read, 2 * 128);
    assert_int_equal(full->n_keys_scored, 3 * (n / 2) + n);
    assert_int_equal(full->n_selections, 4);
    assert_int_equal(full->n_candidate_blocks, pool / 8);
    assert_int_equal(reindex->n_keys_scored, 4 * pool);
    assert_int_equal(reindex->n_candidate_blocks, 4 * pool / 8);
    assert_int_equal(reindex->index_read_bytes, 4 * 68 * pool);
    assert_int_equal(reuse->n_selections + reuse->n_keys_scored + reuse->n_candidate_blocks, 0);
    assert_int_equal(reuse->index_read_bytes, 0);
    assert_int_equal(reuse->n_rows, 30);
    assert_int_equal(reuse->n_entries_read + reuse->n_window_rows_read, 30 * 640);
    assert_int_equal(full->n_entries_read + full->n_window_rows_read, 4 * 640);
    assert_int_equal(full->n_entries_written, 4); /* n is even */
    assert_int_equal(full->written_bytes, 4 * (288 + 68 + 528));
    assert_int_equal(reuse->n_entries_written + reindex->n_entries_written, 0);
    /* of 38 layers that read entries, at most a block an entry; of 8 that score, all blocks or
     * those of the candidates */
    assert_true(full->n_blocks_touched >= 4 * (1 + PARTS_OF(n, 128)));
    assert_true(full->n_blocks_touched <= 4 * (512 + PARTS_OF(n, 128)));
    assert_true(reindex->n_blocks_touched <= 4 * (512 + 2048));
    assert_int_equal(full->n_experts, 4 * 2);
}

static uint64_t read_bytes(kvcsa_session *s)
{
    const kvcsa_session_stats st = figures(s);
    uint64_t                  sum = 0;

    for (int g = 0; g < KVCSA_N_LAYER_GROUPS; g++)
        sum += st.step[g].read_bytes;
    return sum;
}

/* No more scores at a time than those of one row of the widest layer, and little beside them. */
static void check_scores(const long_world *w, uint64_t n)
{
    assert_int_equal(w->step.most_scores, n);  /* one row of the widest layer */
    assert_true(w->step.most_scores <= TILE_FLOATS);
    assert_true(w->step.scratch_bytes <= (2u << 20) + n / 8 * sizeof(float));
}

/* Memory beyond 890 bytes a token, windows, logits and workspace apart. */
static void check_overhead(long_world *w, kvcsa_session *s, uint64_t n)
{
    const double      most = n >= 16384 ? 0.02 : n >= 8192 ? 0.025 : 0.1;
    const long_memory m = long_memory_of(w, s);

    assert_int_equal(m.payload_bytes, LONG_RATE * n);
    assert_true(m.overhead > 0);
    if (m.overhead > most)
        fail_msg("%llu tokens: %.3f %% over", (unsigned long long)n, 100 * m.overhead);
}

/* Fill, decode up to n tokens, and look. */
static uint64_t decode_to(long_world *w, uint64_t n, uint32_t n_steps)
{
    kvcsa_session *s = long_session(w, 0);
    float          logits[1024];
    uint64_t       workspace;
    kvcsa_error    err;

    long_fill(w, s, n - n_steps);
    assert_int_equal(figures(s).entry_bytes, LONG_RATE * (n - n_steps));
    assert_int_equal(figures(s).total[KVCSA_LAYERS_FULL].n_rows, 0); /* nothing was computed */
    assert_int_equal(figures(s).workspace_bytes, 0);
    for (uint32_t i = 0; i < n_steps; i++) {
        long_run(w, s, 1);
        check_step(w, s, 1);
    }
    check_laws(s, n);
    check_scores(w, n);
    assert_int_equal(read_bytes(s), work_released_read_bytes(n));
    assert_int_equal(figures(s).total[KVCSA_LAYERS_FULL].n_rows, 4 * n_steps);
    assert_int_equal(figures(s).entry_bytes, LONG_RATE * n);
    assert_int_equal(figures(s).n_blocks, n / 128);
    assert_int_equal(figures(s).block_bytes, LONG_RATE * n); /* n is a multiple of the blocks */
    assert_ok(kvcsa_session_get_logits(s, logits, 1024, &err));
    for (int i = 0; i < 1024; i++)
        assert_true(isfinite(logits[i]));
    workspace = figures(s).workspace_bytes;
    check_overhead(w, s, n);
    kvcsa_session_release(&s);
    assert_ok(kvcsa_pool_trim(w->pool, 0, NULL, &err));
    return workspace;
}

static void test_4k_and_128k(void **state)
{
    long_world    *w = *state;
    const uint64_t small = decode_to(w, N_4K, STEPS_4K);
    const uint64_t large = decode_to(w, N_128K, STEPS_128K);

    assert_int_equal(work_released_read_bytes(N_4K), 10117120);
    assert_int_equal(work_released_read_bytes(N_128K), 35045376);
    assert_true(small < (1u << 20));
    /* nothing but one row of scores grows with the length; buffers grow by half at most */
    assert_true(large >= small + (N_128K - N_4K) * sizeof(float));
    assert_true(large <= (small + (N_128K - N_4K) * sizeof(float)) * 3 / 2);
}

/* Several rows in one chunk count what they count one by one; from an odd position on. */
static void test_chunk_at_4k(void **state)
{
    long_world    *w = *state;
    kvcsa_session *s = long_session(w, 0);
    const uint32_t n = STEPS_4K / 2;

    long_fill(w, s, N_4K);
    long_run(w, s, 1);
    check_step(w, s, 1);
    long_run(w, s, n);
    check_step(w, s, n);
    assert_int_equal(w->step.n_scores, LONG_SELECTORS);
    assert_int_equal(w->step.most_scores, n * (N_4K + 8)); /* Reindex: in whole blocks of 8 */
    kvcsa_session_release(&s);
}

/* A row that sees no more than 512 entries is not scored at all: ratio 1 up to 512 tokens, ratio 2
 * up to 1025. */
static void test_short_contexts_have_no_index_work(void **state)
{
    static const uint32_t lengths[] = {512, 1024};
    long_world           *w = *state;

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const uint64_t      n = lengths[i];
        kvcsa_session      *s = long_session(w, 0);
        kvcsa_session_stats st;

        long_fill(w, s, n - 2);
        long_run(w, s, 2);
        st = figures(s);
        assert_int_equal(st.step[KVCSA_LAYERS_FULL].n_selections, n > 512 ? 2 : 0);
        assert_int_equal(st.step[KVCSA_LAYERS_FULL].n_keys_scored, n > 512 ? 2 * n - 1 : 0);
        assert_int_equal(st.step[KVCSA_LAYERS_REINDEX].n_keys_scored,
                         n > 512 ? 4 * (2 * n - 1) : 0);
        assert_int_equal(w->step.n_scores, n > 512 ? 5 : 0);
        check_step(w, s, 2);
        kvcsa_session_release(&s);
    }
}

/* Scores of one tile of rows at a time: 16 MB whatever rows and entries are, but for one row. */
static void test_scores_are_bounded(void **state)
{
    static const uint64_t entries[] = {1, 512, 16384, 65536, 1 << 20, 1 << 22, 1 << 24};
    static const size_t   rows[] = {1, 2, 128, 4096, 1 << 20};
    const long_world     *w = *state;

    for (uint32_t l = 0; l < LONG_LAYERS; l++) {
        const kvi_plan_row *r = &w->model->plan.rows[l];

        if (r->select != KVCSA_SELECT_OWN && r->select != KVCSA_SELECT_REINDEX)
            continue;
        for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
            for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
                const size_t stride =
                    kvi_min_size(entries[i], r->candidates == KVCSA_CANDIDATES_CONSUMER
                                                 ? kvi_max_size(8, kvi_min_size(entries[i], 16384))
                                                 : entries[i]);
                /* the maxima of a source's blocks lie behind the scores */
                const size_t per_row =
                    kvi_max_size(stride, 8) +
                    (r->candidates == KVCSA_CANDIDATES_SOURCE ? kvi_div_up(stride, r->candidate_block_entries) : 0);
                const size_t n = kvi_select_scratch(r, entries[i], rows[k], false);
                const size_t apart = kvi_select_scratch(r, entries[i], rows[k], true);

                assert_true(n >= stride);
                assert_true(n <= kvi_max_size(TILE_FLOATS, per_row));
                assert_true(n <= per_row * rows[k]);
                /* of a device: up to the next power of two, 1024 entries at least, and four times the tile */
                assert_true(apart >= stride);
                assert_true(apart <= kvi_max_size(4 * TILE_FLOATS, 2 * kvi_max_size(per_row, 1024) * 9 / 8));
            }
    }
}

static void overhead_at(long_world *w, uint64_t n)
{
    kvcsa_session *s = long_session(w, 0);

    long_fill(w, s, n - 2);
    long_run(w, s, 2);
    check_overhead(w, s, n);
    kvcsa_session_release(&s);
}

static void test_overhead_at_8k(void **state)
{
    overhead_at(*state, 8192);
}

static void test_overhead_at_16k(void **state)
{
    overhead_at(*state, 16384);
}

/* The largest length that the model allows does not matter, only the one in use. */
static void test_workspace_follows_the_live_length(void **state)
{
    static const char *const limits[] = {"8192", "1048576"};
    uint64_t                 bytes[2];
    uint64_t                 workspace[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        static long_world w;
        checkpoint        c;
        kvcsa_session    *s;

        checkpoint_copy(&c, checkpoint_dir);
        checkpoint_edit_config(&c, "text_config/max_position_embeddings", limits[i]);
        long_open(&w, c.dir, 2);
        s = long_session(&w, 0);
        long_fill(&w, s, N_4K - 2);
        long_run(&w, s, 1);
        bytes[i] = atomic_load(&w.n_bytes);
        workspace[i] = figures(s).workspace_bytes;
        kvcsa_session_release(&s);
        long_close(&w);
        checkpoint_remove(&c);
    }
    assert_int_equal(workspace[0], workspace[1]);
    assert_int_equal(bytes[0], bytes[1]);
}

static int set_up(void **state)
{
    static long_world w;

    long_open(&w, checkpoint_dir, 2);
    *state = &w;
    return 0;
}

static int tear_down(void **state)
{
    long_world *w = *state;

    host_pool_is_idle(w->pool);
    long_close(w);
    return 0;
}

int main(int argc, char **argv)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_4k_and_128k),
        TEST(test_chunk_at_4k),
        TEST(test_short_contexts_have_no_index_work),
        TEST(test_scores_are_bounded),
        TEST(test_overhead_at_8k),
        TEST(test_overhead_at_16k),
        cmocka_unit_test(test_workspace_follows_the_live_length),
    };

    (void)argc;
    long_checkpoint(argv[0], checkpoint_dir, sizeof checkpoint_dir);
    return cmocka_run_group_tests_name("long", tests, NULL, NULL);
}
