/* What layers count (kvcsa_work), exactly: per layer, per group, per step, against the formulas of
 * support/work_count.h and against selections recomputed from the scores that the tap shows. On the
 * random checkpoint T1: 10 layers, window 16, top-8, 3 candidate blocks of 4, blocks of 128 tokens;
 * Full 2, 4 (ratio 2) and 5 (ratio 1, the source), Reindex 7. */
#include "session/session_int.h"
#include "support/cold.h"
#include "support/fault_alloc.h"
#include "support/work_count.h"

#include "format/fp8.h"
#include "format/row.h"
#include "pool/pool_int.h"

#include <math.h>

#define N 420u
#define TOP_K 8u
#define SPAN 16u
#define N_SPANS (N / SPAN + 1)
#define HEADS 4u
#define WIDTH 96u
#define ENTRY_LAYERS 8u /* that read entries */
#define SOURCE 5u       /* the layer whose scores rank the candidates */

typedef struct world {
    kvcsa_model *model;
    kvcsa_pool  *pool;
    work_plan    plan;
    int32_t      ids[N];
    work_pick    picks[T1_LAYERS * N]; /* of an undisturbed run */
} world;

/* ------------------------------------------------------------------ what the tap saw */

typedef struct recorder {
    const work_plan *plan;
    float           *scores[T1_LAYERS][N]; /* of all visible entries */
    int32_t          ids[T1_LAYERS][N][TOP_K];
    size_t           n_scored[T1_LAYERS];  /* rows so far */
    size_t           n_selected[T1_LAYERS];
} recorder;

static void see(void *user, uint32_t kind, uint32_t layer, const void *data, size_t n_rows,
                size_t width)
{
    recorder *r = user;

    if (kind == KVI_TAP_SCORE) {
        float *row = malloc((width + 1) * sizeof *row);

        assert_non_null(row);
        assert_int_equal(n_rows, 1);
        assert_true(r->n_scored[layer] < N);
        memcpy(row, data, width * sizeof *row);
        r->scores[layer][r->n_scored[layer]++] = row;
    }
    if (kind == KVI_TAP_TOPK) {
        assert_int_equal(width, TOP_K);
        assert_true(r->n_selected[layer] + n_rows <= N);
        memcpy(r->ids[layer][r->n_selected[layer]], data, n_rows * width * sizeof(int32_t));
        r->n_selected[layer] += n_rows;
    }
}

static void free_recorder(recorder *r)
{
    for (uint32_t l = 0; l < T1_LAYERS; l++)
        for (size_t i = 0; i < r->n_scored[l]; i++)
            free(r->scores[l][i]);
    free(r);
}

/* ------------------------------------------------------------------ selection, once more */

typedef struct setting {
    uint32_t      flags;
    work_limits   limits;
    const uint8_t *hidden; /* [N_SPANS], NULL = none */
} setting;

static int is_hidden(const setting *set, uint64_t token)
{
    return set->hidden && set->hidden[token / SPAN];
}

/* Of entries 0..m-1 with open[j] the k best, ascending, ties to the lower one. */
static uint64_t best_of(const float *scores, const uint8_t *open, uint64_t m, uint64_t k,
                        int32_t *ids)
{
    uint8_t  taken[N] = {0};
    uint64_t n = 0;

    for (; n < k; n++) {
        uint64_t best = m;

        for (uint64_t j = 0; j < m; j++)
            if (open[j] && !taken[j] && (best == m || scores[j] > scores[best]))
                best = j;
        if (best == m)
            break;
        taken[best] = 1;
    }
    for (uint64_t j = 0, at = 0; j < m; j++)
        if (taken[j])
            ids[at++] = (int32_t)j;
    return n;
}

/* Candidate blocks of a row of the source: the newest, and the best of the others by the best score
 * that is not hidden. Returns their number; in[b] says which. */
static uint64_t best_blocks(const kvcsa_plan_row *r, const float *scores, const setting *set,
                            uint64_t m, uint64_t n_keep, uint8_t *in)
{
    const uint32_t e = r->candidate_block_entries;
    const uint64_t n = (m + e - 1) / e;
    float          most[N];
    uint8_t        open[N] = {0};
    int32_t        ids[N];
    uint64_t       n_best;

    memset(in, 0, N);
    if (n == 0)
        return 0;
    for (uint64_t j = 0; j < m; j++) {
        if (is_hidden(set, j * r->ratio))
            continue;
        if (!open[j / e] || scores[j] > most[j / e])
            most[j / e] = scores[j];
        open[j / e] = 1;
    }
    n_best = best_of(most, open, n - 1, n_keep - 1, ids);
    for (uint64_t i = 0; i < n_best; i++)
        in[ids[i]] = 1;
    in[n - 1] = 1;
    return n_best + 1;
}

/* Cache blocks that the m entries which are open lie in. */
static uint64_t parts_of(const uint8_t *open, uint64_t m, uint32_t rows_per_block)
{
    uint64_t n = 0;

    for (uint64_t j = 0, last = UINT64_MAX; j < m; j++)
        if (open[j] && j / rows_per_block != last) {
            last = j / rows_per_block;
            n++;
        }
    return n;
}

/* What the row at pos of a selecting layer has to select and count; checks what it did select. */
static work_pick check_row(const recorder *rec, const setting *set, uint32_t layer, uint64_t pos)
{
    const kvcsa_plan_row *r = &rec->plan->rows[layer];
    const work_limits    *lim = &set->limits;
    const uint32_t        k = lim->select_entries ? lim->select_entries : r->select_entries;
    const uint32_t        n_keep =
        lim->candidate_blocks ? lim->candidate_blocks : r->candidate_blocks;
    const uint64_t m = (pos + 1) / r->ratio;
    const uint32_t rows = rec->plan->block_tokens / r->ratio;
    int32_t        ids[TOP_K];
    uint8_t        in[N];
    uint8_t        reach[N]; /* entries whose keys are looked at */
    uint8_t        open[N];  /* of these, not hidden */
    work_pick      pick = {0};

    memset(reach, 1, sizeof reach);
    if (r->candidates != KVCSA_CANDIDATES_NONE)
        pick.n_candidates =
            best_blocks(r, rec->scores[SOURCE][pos], set, m, n_keep, in);
    if (r->candidates == KVCSA_CANDIDATES_CONSUMER)
        for (uint64_t j = 0; j < m; j++)
            reach[j] = in[j / r->candidate_block_entries];
    for (uint64_t j = 0; j < m; j++) {
        open[j] = reach[j] && !is_hidden(set, j * r->ratio);
        pick.n_keys += reach[j];
    }
    pick.scored = m > k || (m && set->hidden) ||
                  (r->candidates != KVCSA_CANDIDATES_NONE &&
                   pick.n_candidates < (m + r->candidate_block_entries - 1) /
                                           r->candidate_block_entries);
    if (lim->window_only)
        pick = (work_pick){0};
    else
        pick.n_ids = best_of(rec->scores[layer][pos], open, m, k, ids);
    if (pick.scored)
        pick.index_parts = parts_of(reach, m, rows);
    else
        pick.n_keys = pick.n_candidates = 0;
    pick.main_parts = work_count_parts(ids, pick.n_ids, rows);
    for (uint32_t i = 0; i < TOP_K; i++)
        if (rec->ids[layer][pos][i] != (i < pick.n_ids ? ids[i] : -1))
            fail_msg("layer %u, row %llu: id %u is %d, not %d", layer, (unsigned long long)pos, i,
                     rec->ids[layer][pos][i], i < pick.n_ids ? ids[i] : -1);
    return pick;
}

/* ------------------------------------------------------------------ comparing */

static int selects(const work_plan *p, uint32_t layer)
{
    return p->rows[layer].select == KVCSA_SELECT_OWN ||
           p->rows[layer].select == KVCSA_SELECT_REINDEX;
}

static void check_work_of(const char *what, int layer, const kvcsa_work *got,
                          const kvcsa_work *want, uint32_t but)
{
    const char *text = work_differs(got, want, but);

    if (text)
        fail_msg("%s, layer or group %d: %s", what, layer, text);
}

/* step and total [T1_LAYERS] are what every layer counted, and their sums what the groups did. */
static void check_counts(const world *w, kvcsa_session *s, const kvcsa_work *step,
                         const kvcsa_work *total, uint32_t but)
{
    const kvcsa_session_stats st = session_figures(s);
    kvcsa_work                sum[2][KVCSA_N_LAYER_GROUPS] = {{{0}}};
    kvcsa_error               err;

    for (uint32_t l = 0; l < T1_LAYERS; l++) {
        kvcsa_work got[2];

        assert_ok(kvcsa_session_layer_work(s, l, &got[0], &got[1], &err));
        if (step)
            check_work_of("step", (int)l, &got[0], &step[l], but);
        if (total)
            check_work_of("total", (int)l, &got[1], &total[l], but);
        for (int i = 0; i < 2; i++)
            work_add(&sum[i][work_group(&w->plan, l)], &got[i]);
    }
    for (int g = 0; g < KVCSA_N_LAYER_GROUPS; g++) {
        check_work_of("groups, step", g, &st.step[g], &sum[0][g], 0);
        check_work_of("groups, total", g, &st.total[g], &sum[1][g], 0);
    }
}

/* Rows [begin, end) of an undisturbed session. */
static work_forward forward(const world *w, uint64_t begin, uint64_t end, uint64_t chunk)
{
    return (work_forward){
        .begin = begin, .end = end, .chunk = chunk, .picks = w->picks, .n_picks = N};
}

static void expect(const world *w, uint64_t begin, uint64_t end, uint64_t chunk, kvcsa_work *layers)
{
    const work_forward f = forward(w, begin, end, chunk);

    memset(layers, 0, T1_LAYERS * sizeof *layers);
    work_add_forward(&w->plan, &f, layers);
}

static void add_layers(kvcsa_work *to, const kvcsa_work *from)
{
    for (uint32_t l = 0; l < T1_LAYERS; l++)
        work_add(&to[l], &from[l]);
}

/* ------------------------------------------------------------------ worlds */

static kvcsa_session *watched_session(const world *w, const setting *set, uint32_t chunk,
                                      const kvi_tap *tap)
{
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s;
    kvcsa_error          err;

    p.chunk_tokens = chunk;
    p.flags = set->flags | (set->limits.window_only ? KVCSA_SESSION_WINDOW_ONLY : 0);
    p.select_entries = set->limits.select_entries;
    p.candidate_blocks = set->limits.candidate_blocks;
    s = make_session(w->pool, w->model, &p);
    for (uint64_t i = 0; set->hidden && i < N_SPANS; i++)
        if (set->hidden[i])
            assert_ok(kvcsa_session_hide(s, i * SPAN, (i + 1) * SPAN, 1, &err));
    kvi_session_set_reference(s, 0, tap);
    return s;
}

/* All N tokens under the eyes of the tap: selections and counts are checked; picks [T1_LAYERS, N]
 * are what the rows selected. */
static void watch(const world *w, const setting *set, uint32_t chunk, work_pick *picks)
{
    recorder      *rec = calloc(1, sizeof *rec);
    const kvi_tap  tap = {see, rec};
    kvcsa_work     want[T1_LAYERS] = {{0}};
    kvcsa_session *s = watched_session(w, set, chunk, &tap);
    work_forward   f = {.end = N, .chunk = chunk, .picks = picks, .n_picks = N};

    assert_non_null(rec);
    rec->plan = &w->plan;
    host_run(w->pool, s, w->ids, N, NULL);
    for (uint32_t l = 0; l < T1_LAYERS; l++) {
        assert_int_equal(rec->n_scored[l], selects(&w->plan, l) ? N : 0);
        assert_int_equal(rec->n_selected[l], selects(&w->plan, l) ? N : 0);
        for (uint64_t pos = 0; pos < N && selects(&w->plan, l); pos++)
            picks[l * N + pos] = check_row(rec, set, l, pos);
    }
    work_add_forward(&w->plan, &f, want);
    check_counts(w, s, want, want, 0);
    kvcsa_session_release(&s);
    free_recorder(rec);
}

static int set_up(void **state)
{
    const setting none = {0};
    world        *w = calloc(1, sizeof *w);

    assert_non_null(w);
    w->model = host_model(T1_DIR);
    w->pool = host_pool(2, 0);
    work_plan_init(&w->plan, w->model);
    host_tokens(w->ids, N, 41);
    watch(w, &none, 40, w->picks);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    world *w = *state;

    check_pool_empties(w->pool);
    kvcsa_pool_release(&w->pool);
    kvcsa_model_release(&w->model);
    free(w->plan.rows);
    free(w);
    return 0;
}

static kvcsa_session *plain_session(const world *w, uint32_t chunk)
{
    kvcsa_session_params p = session_defaults();

    p.chunk_tokens = chunk;
    p.reuse = KVCSA_REUSE_NONE;
    return make_session(w->pool, w->model, &p);
}

/* ------------------------------------------------------------------ selection and its counts */

/* What the formulas of support/work_count.h say is what the tap saw. */
static void test_formulas_are_what_the_tap_saw(void **state)
{
    const world      *w = *state;
    const work_limits none = {0};

    for (uint32_t l = 0; l < T1_LAYERS; l++)
        for (uint64_t pos = 0; pos < N && selects(&w->plan, l); pos++) {
            const work_pick a = w->picks[l * N + pos];
            const work_pick b = work_pick_of(&w->plan, l, pos, &none);

            assert_int_equal(a.scored, b.scored);
            assert_int_equal(a.n_keys, b.n_keys);
            assert_int_equal(a.n_candidates, b.n_candidates);
            assert_int_equal(a.n_ids, b.n_ids);
            if (w->plan.rows[l].select == KVCSA_SELECT_OWN)
                assert_int_equal(a.index_parts, b.index_parts);
            assert_true(a.main_parts <= a.n_ids);
        }
    /* the limits of T1 in so many words: Full 2 and 4 from 18 tokens on, Full 5 from 9 */
    assert_int_equal(w->picks[2 * N + 16].scored, 0);
    assert_int_equal(w->picks[2 * N + 17].n_keys, 9);
    assert_int_equal(w->picks[5 * N + 7].scored, 0);
    assert_int_equal(w->picks[5 * N + 8].n_keys, 9);
    assert_int_equal(w->picks[7 * N + 11].n_keys, 12);
    assert_int_equal(w->picks[7 * N + 12].n_keys, 9); /* 3 blocks, the newest holds one entry */
    assert_int_equal(w->picks[7 * N + N - 1].n_keys, 12);
    assert_int_equal(w->picks[7 * N + N - 1].n_candidates, 3);
    assert_int_equal(w->picks[5 * N + N - 1].index_parts, 4); /* 420 entries, 128 a block */
}

/* Every limit changes selection and counts as it should. */
static void test_limits_change_what_is_counted(void **state)
{
    static const work_limits cases[] = {
        {.window_only = 1},
        {.select_entries = 3},
        {.candidate_blocks = 1},
        {.candidate_blocks = 2, .select_entries = 7},
    };
    const world *w = *state;
    work_pick   *picks = calloc(T1_LAYERS * N, sizeof *picks);

    assert_non_null(picks);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const setting set = {.limits = cases[i]};

        watch(w, &set, 33, picks);
        for (uint32_t l = 0; l < T1_LAYERS; l++)
            for (uint64_t pos = 0; pos < N && selects(&w->plan, l); pos++) {
                const work_pick want = work_pick_of(&w->plan, l, pos, &cases[i]);

                assert_int_equal(picks[l * N + pos].scored, want.scored);
                assert_int_equal(picks[l * N + pos].n_keys, want.n_keys);
                assert_int_equal(picks[l * N + pos].n_candidates, want.n_candidates);
                assert_int_equal(picks[l * N + pos].n_ids, want.n_ids);
            }
    }
    free(picks);
}

/* Spans that are hidden are never selected, whatever their scores; nor do they make candidates. */
static void test_hidden_spans_are_not_selected(void **state)
{
    const world *w = *state;
    work_pick   *picks = calloc(T1_LAYERS * N, sizeof *picks);
    uint8_t      hidden[N_SPANS] = {0};
    setting      set = {.hidden = hidden};
    uint64_t     n_other = 0;

    assert_non_null(picks);
    for (int k = 0; k < 4; k++) { /* one span; every third; all but two; all of them */
        for (uint64_t i = 0; i < N_SPANS; i++)
            hidden[i] = k == 0   ? i == 3
                        : k == 1 ? i % 3 == 0
                        : k == 2 ? i != 1 && i != 20
                                 : 1;
        watch(w, &set, 50, picks);
        for (size_t i = 0; i < T1_LAYERS * N; i++)
            n_other += picks[i].n_ids != w->picks[i].n_ids;
    }
    assert_true(n_other > 1000); /* it is not that nothing happened */
    set.limits = (work_limits){.select_entries = 5, .candidate_blocks = 2};
    for (uint64_t i = 0; i < N_SPANS; i++)
        hidden[i] = i % 2 == 0;
    watch(w, &set, 50, picks);
    free(picks);
}

/* ------------------------------------------------------------------ prefill and decode */

static void test_prefill_counts(void **state)
{
    static const uint32_t chunks[] = {1, 7, 128, N};
    const world          *w = *state;
    kvcsa_work            want[T1_LAYERS];

    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        kvcsa_session *s = plain_session(w, chunks[i]);
        const uint64_t n = chunks[i] == 1 ? 150 : N;

        host_run(w->pool, s, w->ids, n, NULL);
        expect(w, 0, n, chunks[i], want);
        check_counts(w, s, want, want, 0);
        /* but for raw rows, which only the end of a chunk keeps, chunks do not matter */
        expect(w, 0, n, n, want);
        check_counts(w, s, want, want, WORK_BUT_WRITTEN);
        kvcsa_session_release(&s);
    }
}

/* One token a step: what is read is what the plan says it costs. */
static void test_decode_reads_what_the_plan_costs(void **state)
{
    const world   *w = *state;
    const uint64_t key_bytes = w->plan.rows[SOURCE].index_bytes;
    kvcsa_session *s = plain_session(w, 0);
    kvcsa_work     total[T1_LAYERS] = {{0}};
    kvcsa_work     step[T1_LAYERS];
    kvcsa_error    err;

    host_run(w->pool, s, w->ids, 18, NULL);
    expect(w, 0, 18, 128, total);
    for (uint64_t n = 19; n <= N; n++) { /* from here on every selecting layer scores */
        kvcsa_cost cost = {.struct_size = sizeof cost};
        uint64_t   read = 0;
        uint64_t   written = 0;

        if (n == 100) { /* the same all the way: the middle at once */
            host_run(w->pool, s, w->ids + n - 1, 280, NULL);
            expect(w, n - 1, n + 279, 128, step);
            add_layers(total, step);
            n += 280;
        }
        host_run(w->pool, s, w->ids + n - 1, 1, NULL);
        expect(w, n - 1, n, 1, step);
        add_layers(total, step);
        check_counts(w, s, step, total, 0);
        for (uint32_t l = 0; l < T1_LAYERS; l++) {
            read += step[l].read_bytes;
            written += step[l].written_bytes;
        }
        assert_ok(kvcsa_model_cost(w->model, n, &cost, &err));
        /* the plan counts candidate blocks as full ones: the newest lacks keys at most lengths */
        assert_int_equal(read + key_bytes * ((4 - n % 4) % 4), cost.read_bytes);
        /* ratio 1 writes an entry each time, ratio 2 a raw row and an entry in turn */
        assert_int_equal(written, 10 * 99 + 54 + 34 + (n % 2 ? 2 * 768 : 2 * (54 + 34)));
    }
    kvcsa_session_release(&s);
}

/* A step is what the last call of kvcsa_pool_step ran, in as many chunks as it took. */
static void test_step_begins_again(void **state)
{
    const world      *w = *state;
    kvcsa_session    *s = plain_session(w, 16);
    kvcsa_work        total[T1_LAYERS] = {{0}};
    const kvcsa_work  none[T1_LAYERS] = {{0}};
    kvcsa_work        step[T1_LAYERS];
    kvcsa_step_params p;
    kvcsa_error       err;

    check_counts(w, s, none, none, 0);
    assert_ok(kvcsa_session_append(s, w->ids, 100, NULL, NULL, &err));
    check_counts(w, s, none, none, 0);
    kvcsa_step_params_default(&p, sizeof p);
    p.max_rows = 40;
    for (uint64_t begin = 0; begin < 100; begin += 40) {
        const uint64_t end = cold_min(begin + 40, 100);

        assert_ok(kvcsa_pool_step(w->pool, &s, 1, &p, NULL, &err));
        assert_int_equal(kvcsa_session_length(s), end);
        expect(w, begin, end, 16, step); /* 16, 16 and 8 rows */
        add_layers(total, step);
        check_counts(w, s, step, total, 0);
    }
    host_step(w->pool, s); /* nothing to do */
    check_counts(w, s, none, total, 0);
    assert_ok(kvcsa_session_erase(s, 0, &err)); /* since creation, whatever became of it */
    check_counts(w, s, none, total, 0);
    kvcsa_session_release(&s);
}

static void test_sessions_of_a_batch_count_their_own(void **state)
{
    enum { K = 4 };
    static const uint64_t have[K] = {0, 30, 131, 200};
    static const uint64_t more[K] = {50, 1, 1, 133};
    const world          *w = *state;
    kvcsa_session        *s[K];
    kvcsa_work            total[T1_LAYERS];
    kvcsa_work            step[T1_LAYERS];
    kvcsa_error           err;

    for (int i = 0; i < K; i++) {
        s[i] = plain_session(w, 64);
        if (have[i])
            host_run(w->pool, s[i], w->ids, have[i], NULL);
        assert_ok(kvcsa_session_append(s[i], w->ids + have[i], more[i], NULL, NULL, &err));
    }
    assert_ok(kvcsa_pool_step(w->pool, s, K, NULL, NULL, &err));
    for (int i = 0; i < K; i++) {
        expect(w, 0, have[i], 64, total);
        expect(w, have[i], have[i] + more[i], 64, step);
        add_layers(total, step);
        check_counts(w, s[i], step, total, 0);
        kvcsa_session_release(&s[i]);
    }
}

/* ------------------------------------------------------------------ rows that run again */

/* Layer l writes window rows from first[l] on; the last row of the last layer is right. */
static void exact_first_rows(uint64_t hit, uint64_t *first)
{
    first[T1_LAYERS] = hit - 1;
    for (uint32_t l = 0; l < T1_LAYERS; l++) {
        const uint64_t rows = T1_WINDOW + (T1_LAYERS - 1 - l) * (T1_WINDOW - 1);

        first[l] = hit > rows ? hit - rows : 0;
    }
}

static void last_window(uint64_t hit, uint64_t *first)
{
    for (uint32_t l = 0; l <= T1_LAYERS; l++)
        first[l] = hit > T1_WINDOW ? hit - T1_WINDOW : 0;
}

/* A replay up to `hit`, then n_own rows behind it. */
static void expect_replay(const world *w, const uint64_t *first, uint64_t hit, uint64_t n_own,
                          uint64_t chunk, kvcsa_work *step)
{
    work_forward again = forward(w, first[0], hit, chunk);
    work_forward own = forward(w, hit, hit + n_own, chunk);

    memset(step, 0, T1_LAYERS * sizeof *step);
    again.first = first;
    again.replay = 1;
    own.floors = first;
    work_add_forward(&w->plan, &again, step);
    work_add_forward(&w->plan, &own, step);
}

static void test_exact_replay_counts(void **state)
{
    static const uint64_t hits[] = {400, 399, 152, 151, 150, 17, 1};
    const world          *w = *state;
    kvcsa_session        *s = plain_session(w, 40);
    kvcsa_work            step[T1_LAYERS];
    uint64_t              first[T1_LAYERS + 1];

    host_run(w->pool, s, w->ids, N, NULL);
    for (size_t i = 0; i < sizeof hits / sizeof *hits; i++) {
        const uint64_t hit = hits[i];

        rewind_session(s, hit);
        host_run(w->pool, s, w->ids + hit, 3, NULL);
        exact_first_rows(hit, first);
        expect_replay(w, first, hit, 3, 40, step);
        check_counts(w, s, step, NULL, 0);
        for (uint32_t l = 0; l < T1_LAYERS; l++) {
            const uint64_t rows = T1_WINDOW + (T1_LAYERS - 1 - l) * (T1_WINDOW - 1);
            kvcsa_work     got;
            kvcsa_error    err;

            assert_ok(kvcsa_session_layer_work(s, l, &got, NULL, &err));
            assert_int_equal(got.n_replayed_rows, cold_min(rows, hit));
            assert_int_equal(got.n_entries_written, w->plan.rows[l].kv_owner != (int)l ? 0
                                                    : w->plan.rows[l].ratio == 1
                                                        ? 3
                                                        : (hit + 3) / 2 - hit / 2);
        }
    }
    kvcsa_session_release(&s);
}

static kvcsa_session *session_of_reuse(const world *w, uint32_t reuse, uint32_t decoder)
{
    kvcsa_session_params p = session_defaults();

    p.chunk_tokens = 40;
    p.reuse = reuse;
    p.decoder_replay = decoder;
    return make_session(w->pool, w->model, &p);
}

/* A hit writes no entry again, and reads the entries of others. */
static void test_hits_count_their_replay(void **state)
{
    const world   *w = *state;
    kvcsa_session *first_one = session_of_reuse(w, KVCSA_REUSE_EXACT, 0);
    kvcsa_session *exact = session_of_reuse(w, KVCSA_REUSE_EXACT, 0);
    kvcsa_session *bounded = session_of_reuse(w, KVCSA_REUSE_BOUNDED, 0);
    kvcsa_work     step[T1_LAYERS];
    uint64_t       first[T1_LAYERS + 1];
    kvcsa_error    err;

    host_run(w->pool, first_one, w->ids, N, NULL);
    host_run(w->pool, exact, w->ids, 401, NULL); /* 3 blocks and a part of the tail's */
    assert_int_equal(session_reuse(exact).n_adopted, 384);
    exact_first_rows(384, first);
    expect_replay(w, first, 384, 17, 40, step);
    check_counts(w, exact, step, step, 0);

    host_run(w->pool, bounded, w->ids, 386, NULL);
    last_window(384, first);
    expect_replay(w, first, 384, 2, 40, step);
    /* approximate rows may select other entries: which blocks they lie in is not known */
    check_counts(w, bounded, step, step, WORK_BUT_PARTS);
    for (uint32_t l = 0; l < T1_LAYERS; l++) {
        assert_int_equal(step[l].n_replayed_rows, T1_WINDOW);
        assert_int_equal(step[l].n_rows, T1_WINDOW + 2);
    }
    kvcsa_session_release(&first_one);
    kvcsa_session_release(&exact);
    kvcsa_session_release(&bounded);
    assert_ok(kvcsa_prefix_forget(w->pool, NULL, 0, NULL, 0, NULL, &err));
}

/* Layers from the cut (6) on run the last window; the layer below it asks for no more queries. */
static void test_decoder_replay_counts(void **state)
{
    enum { CUT = 6, AT = 300 };
    const world   *w = *state;
    kvcsa_session *s = session_of_reuse(w, KVCSA_REUSE_NONE, KVCSA_DECODER_REPLAY_ON);
    kvcsa_work     step[T1_LAYERS] = {{0}};
    kvcsa_work     total[T1_LAYERS] = {{0}};
    uint64_t       first[T1_LAYERS + 1] = {0};
    work_forward   f = forward(w, 0, AT, 40);

    for (uint32_t l = CUT; l <= T1_LAYERS; l++)
        first[l] = AT - T1_WINDOW;
    f.first = first;
    work_add_forward(&w->plan, &f, step);
    assert_int_equal(step[CUT - 1].n_rows, T1_WINDOW);
    assert_int_equal(step[CUT - 1].n_entries_written, AT);
    assert_int_equal(step[CUT].n_window_rows_written, T1_WINDOW);
    assert_int_equal(step[CUT - 2].n_rows, AT);
    host_run(w->pool, s, w->ids, AT, NULL);
    /* the layers above the cut see less, and select other entries */
    check_counts(w, s, step, step, WORK_BUT_PARTS);
    add_layers(total, step);
    for (uint64_t n = AT + 1; n < AT + 20; n++) { /* no window row below AT - 16 is there */
        memset(step, 0, sizeof step);
        f = forward(w, n - 1, n, 40);
        f.floors = first;
        work_add_forward(&w->plan, &f, step);
        add_layers(total, step);
        host_run(w->pool, s, w->ids + n - 1, 1, NULL);
        check_counts(w, s, step, total, WORK_BUT_PARTS);
    }
    kvcsa_session_release(&s);
}

/* After a rewind inside the slack the last row runs alone, for its logits. */
static void test_last_row_alone_counts(void **state)
{
    const world         *w = *state;
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s;
    kvcsa_work           step[T1_LAYERS] = {{0}};
    work_forward         f = forward(w, 295, 296, 128);

    p.window_slack_tokens = 16;
    p.reuse = KVCSA_REUSE_NONE;
    s = make_session(w->pool, w->model, &p);
    host_run(w->pool, s, w->ids, 300, NULL);
    rewind_session(s, 296);
    host_step(w->pool, s);
    f.replay = 1;
    work_add_forward(&w->plan, &f, step);
    check_counts(w, s, step, NULL, 0);
    kvcsa_session_release(&s);
}

/* ------------------------------------------------------------------ chunks that come to nothing */

typedef struct stopper {
    int n_asked;
    int stop_at;
} stopper;

static int32_t stop_at(void *user, kvcsa_session *session, uint64_t n_done, uint64_t n_queued)
{
    stopper *st = user;

    (void)session;
    (void)n_done;
    (void)n_queued;
    return st->n_asked++ == st->stop_at;
}

/* Cancelled in front of layer l of its second chunk: the layers below have run. */
static void test_cancelled_chunk_counts(void **state)
{
    const world *w = *state;

    for (int l = 0; l < (int)T1_LAYERS; l++) {
        stopper           stop = {.stop_at = (int)T1_LAYERS + l};
        kvcsa_session    *s = plain_session(w, 40);
        kvcsa_work        total[T1_LAYERS];
        kvcsa_work        step[T1_LAYERS];
        kvcsa_work        half[T1_LAYERS];
        kvcsa_step_params p;
        kvcsa_error       err;

        kvcsa_step_params_default(&p, sizeof p);
        p.progress = stop_at;
        p.user = &stop;
        assert_ok(kvcsa_session_append(s, w->ids, 100, NULL, NULL, &err));
        assert_int_equal(kvcsa_pool_step(w->pool, &s, 1, &p, NULL, &err), KVCSA_ERR_CANCELLED);
        assert_int_equal(stop.n_asked, stop.stop_at + 1);
        assert_int_equal(kvcsa_session_length(s), 0);
        expect(w, 0, 40, 40, total);
        expect(w, 40, 80, 40, half);
        for (int i = 0; i < l; i++)
            work_add(&total[i], &half[i]);
        check_counts(w, s, total, total, 0);
        host_run(w->pool, s, w->ids, 40, NULL);
        expect(w, 0, 40, 40, step);
        add_layers(total, step);
        check_counts(w, s, step, total, 0);
        kvcsa_session_release(&s);
    }
}

/* Counts of got are none above those of want, and are those of whole layers but for one. */
static void check_partial(kvcsa_session *s, const kvcsa_work *want, kvcsa_work *got)
{
    enum { FIELDS = sizeof(kvcsa_work) / sizeof(uint64_t) };
    int n_partial = 0;

    for (uint32_t l = 0; l < T1_LAYERS; l++) {
        static const kvcsa_work none;
        uint64_t                a[FIELDS];
        uint64_t                b[FIELDS];
        kvcsa_error             err;

        assert_ok(kvcsa_session_layer_work(s, l, &got[l], NULL, &err));
        memcpy(a, &got[l], sizeof a);
        memcpy(b, &want[l], sizeof b);
        for (int i = 0; i < FIELDS; i++)
            assert_true(a[i] <= b[i]);
        if (!work_differs(&got[l], &none, 0))
            n_partial += n_partial == 0; /* nothing may come behind it */
        else if (work_differs(&got[l], &want[l], 0))
            n_partial++;
        else
            assert_int_equal(n_partial, 0);
    }
    assert_true(n_partial <= 2); /* the one that failed, and that none follows */
}

static void test_failed_chunk_counts(void **state)
{
    enum { ROWS = 24 }; /* the last of them are scored in every layer */
    const world      *w = *state;
    kvcsa_pool_params pp;
    kvcsa_work        none[T1_LAYERS] = {{0}};
    kvcsa_work        full[T1_LAYERS];
    fault_alloc       fa;
    int               n_failed = 0;
    int               n_began = 0;
    int               hit = 1;

    expect(w, 0, ROWS, ROWS, full);
    for (uint64_t n = 1; hit; n += n < 30 ? 1 : 5) {
        kvcsa_work     got[T1_LAYERS] = {{0}};
        kvcsa_pool    *pool = NULL;
        kvcsa_session *s;
        kvcsa_error    err;

        fault_alloc_init(&fa);
        kvcsa_pool_params_default(&pp, sizeof pp);
        pp.allocator = &fa.hook;
        pp.n_threads = 1;
        assert_ok(kvcsa_pool_create(&pp, &pool, &err));
        s = host_session(pool, w->model, ROWS);
        assert_ok(kvcsa_session_append(s, w->ids, ROWS, NULL, NULL, &err));
        fault_alloc_fail_at(&fa, n);
        if (kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err) != KVCSA_OK) {
            assert_int_equal(err.status, KVCSA_ERR_NOMEM);
            assert_int_equal(kvcsa_session_length(s), 0);
            check_partial(s, full, got);
            n_failed++;
            n_began += work_differs(&got[0], none, 0) != NULL;
        }
        hit = fault_alloc_hit(&fa);
        fault_alloc_fail_at(&fa, 0);
        if (kvcsa_session_length(s) == 0) {
            host_step(pool, s); /* the queue is still there */
            add_layers(got, full);
            check_counts(w, s, full, got, 0);
        } else {
            check_counts(w, s, full, full, 0);
        }
        kvcsa_session_release(&s);
        kvcsa_pool_release(&pool);
        assert_true(fault_alloc_is_clean(&fa));
    }
    assert_true(n_failed > 20);
    assert_true(n_began > 5);
}

/* ------------------------------------------------------------------ mass */

/* The pool's operators, but attention is done once more in double precision. */
typedef struct naive {
    const kvi_backend_ops *real;
    double                 spans[N_SPANS]; /* of entries */
    double                 rest;           /* window and sink */
    uint64_t               n_rows;         /* that could select */
} naive;
static naive the_naive; /* an operator has no user pointer */

static const uint8_t *window_row(const kvi_attend_params *p, uint64_t pos)
{
    const uint64_t slot = pos % ((uint64_t)p->page_rows * p->n_pages);

    if (pos >= p->chunk_pos)
        return p->chunk + (pos - p->chunk_pos) * p->row_bytes;
    return p->pages[slot / p->page_rows] + p->page_off + slot % p->page_rows * p->row_bytes;
}

static double score_of(const kvi_attend_params *p, size_t row, size_t head, const float *key)
{
    const float *q = p->q + (row * p->n_heads + head) * p->width;
    double       dot = 0;

    for (uint32_t c = 0; c < p->width; c++)
        dot += (double)q[c] * (double)key[c];
    return exp(dot * (double)p->scale);
}

/* One head of a row: probabilities of its selected entries are added to their spans. */
static void attend_naively(const kvi_attend_params *p, size_t row, size_t head, double *slots)
{
    const kvi_kv_owner *o = p->entries.owner;
    const uint64_t      pos = p->pos[row];
    const uint64_t      lo = pos + 1 > p->n_window ? pos + 1 - p->n_window : 0;
    double              e[TOP_K] = {0};
    double              rest = exp((double)p->sink[head]);
    double              sum;
    float               key[WIDTH];

    for (uint64_t at = kvi_max_size(lo, p->floor); at <= pos; at++) {
        const uint8_t *bytes = window_row(p, at);

        kvi_dequant_window(bytes, bytes + p->width, p->width, key);
        rest += score_of(p, row, head, key);
    }
    sum = rest;
    for (uint32_t j = 0; j < p->k && p->ids[row * p->k + j] >= 0; j++) {
        const uint32_t id = (uint32_t)p->ids[row * p->k + j];

        kvi_row_decode(o->entry_format,
                       p->entries.main_parts[id / o->rows_per_block] +
                           kvi_kv_main_row_off(o, id % o->rows_per_block),
                       p->width, key);
        sum += e[j] = score_of(p, row, head, key);
    }
    for (uint32_t j = 0; j < p->k && p->ids[row * p->k + j] >= 0; j++) {
        slots[j] += e[j] / sum;
        the_naive.spans[(uint32_t)p->ids[row * p->k + j] * o->ratio / SPAN] += e[j] / sum;
    }
    the_naive.rest += rest / sum;
}

static kvcsa_status attend_twice(kvi_device *dev, const kvi_attend_params *p, kvcsa_error *err)
{
    const kvcsa_status st = the_naive.real->attend(dev, p, err);

    for (size_t i = 0; i < p->n_rows && p->mass; i++) {
        double slots[TOP_K] = {0};

        for (size_t h = 0; h < p->n_heads; h++)
            attend_naively(p, i, h, slots);
        for (uint32_t j = 0; j < p->k; j++)
            assert_true(fabs(slots[j] - (double)p->mass[i * p->k + j]) < 1e-4);
        the_naive.n_rows++;
    }
    return st;
}

/* The spans of s received what double precision says. */
static void check_mass(kvcsa_session *s)
{
    const uint64_t n_rows = the_naive.n_rows;
    double         mass[N_SPANS];
    double         sum = 0;
    size_t         n = 0;
    kvcsa_error    err;

    assert_ok(kvcsa_session_get_mass(s, mass, N_SPANS, &n, 0, &err));
    assert_int_equal(n, (kvcsa_session_length(s) + SPAN - 1) / SPAN);
    for (size_t i = 0; i < n; i++) {
        assert_true(fabs(mass[i] - the_naive.spans[i]) < 1e-3);
        sum += mass[i];
    }
    assert_true(sum > 0);
    assert_true(fabs(sum + the_naive.rest - (double)(n_rows * HEADS)) < 1e-2);
}

static void test_mass_is_what_attention_gave(void **state)
{
    const world         *w = *state;
    kvcsa_pool          *pool = host_pool(1, 0);
    kvi_backend_ops      ops = *pool->ops;
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s;
    kvcsa_session       *f;
    double               mass[N_SPANS];
    size_t               n = 0;
    kvcsa_error          err;

    the_naive = (naive){.real = pool->ops};
    ops.attend = attend_twice;
    pool->ops = &ops;
    p.flags = KVCSA_SESSION_TRACK_MASS;
    p.chunk_tokens = 50;
    s = make_session(pool, w->model, &p);
    host_run(pool, s, w->ids, 200, NULL);
    assert_int_equal(the_naive.n_rows, 200 * ENTRY_LAYERS);
    check_mass(s);
    for (uint64_t i = 200; i < 230; i++)
        host_run(pool, s, w->ids + i, 1, NULL);
    assert_int_equal(the_naive.n_rows, 230 * ENTRY_LAYERS);
    check_mass(s);
    /* a fork begins at zero, and so does a session that asks for it */
    f = fork_session(s, 230);
    assert_ok(kvcsa_session_get_mass(f, mass, N_SPANS, &n, 0, &err));
    assert_int_equal(n, 15);
    for (size_t i = 0; i < n; i++)
        assert_true(mass[i] == 0);
    assert_ok(kvcsa_session_get_mass(s, NULL, 0, &n, 1, &err));
    the_naive = (naive){.real = the_naive.real};
    assert_ok(kvcsa_session_hide(s, 0, 208, 1, &err)); /* what is hidden receives nothing */
    host_run(pool, s, w->ids + 230, 40, NULL);
    check_mass(s);
    assert_ok(kvcsa_session_get_mass(s, mass, N_SPANS, &n, 0, &err));
    for (size_t i = 0; i < n; i++)
        assert_true(i < 13 ? mass[i] == 0 : mass[i] > 0);
    kvcsa_session_release(&s);
    kvcsa_session_release(&f);
    pool->ops = the_naive.real;
    kvcsa_pool_release(&pool);
}

/* Sessions of one batch, of which one counts it. */
static void test_mass_of_a_batch(void **state)
{
    const world         *w = *state;
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s[3];
    double               solo[N_SPANS];
    double               mass[N_SPANS];
    size_t               n = 0;
    kvcsa_error          err;

    p.reuse = KVCSA_REUSE_NONE;
    p.flags = KVCSA_SESSION_TRACK_MASS;
    s[1] = make_session(w->pool, w->model, &p);
    host_run(w->pool, s[1], w->ids, 120, NULL);
    assert_ok(kvcsa_session_get_mass(s[1], solo, N_SPANS, &n, 0, &err));
    kvcsa_session_release(&s[1]);
    for (int i = 0; i < 3; i++) {
        p.flags = i == 1 ? KVCSA_SESSION_TRACK_MASS : 0;
        s[i] = make_session(w->pool, w->model, &p);
        assert_ok(kvcsa_session_append(s[i], w->ids + (i == 1 ? 0 : 9), 120, NULL, NULL, &err));
    }
    assert_ok(kvcsa_pool_step(w->pool, s, 3, NULL, NULL, &err));
    assert_ok(kvcsa_session_get_mass(s[1], mass, N_SPANS, &n, 0, &err));
    assert_int_equal(n, 8);
    assert_memory_equal(mass, solo, n * sizeof *mass);
    for (int i = 0; i < 3; i++)
        kvcsa_session_release(&s[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas_are_what_the_tap_saw),
        cmocka_unit_test(test_limits_change_what_is_counted),
        cmocka_unit_test(test_hidden_spans_are_not_selected),
        cmocka_unit_test(test_prefill_counts),
        cmocka_unit_test(test_decode_reads_what_the_plan_costs),
        cmocka_unit_test(test_step_begins_again),
        cmocka_unit_test(test_sessions_of_a_batch_count_their_own),
        cmocka_unit_test(test_exact_replay_counts),
        cmocka_unit_test(test_hits_count_their_replay),
        cmocka_unit_test(test_decoder_replay_counts),
        cmocka_unit_test(test_last_row_alone_counts),
        cmocka_unit_test(test_cancelled_chunk_counts),
        cmocka_unit_test(test_failed_chunk_counts),
        cmocka_unit_test(test_mass_is_what_attention_gave),
        cmocka_unit_test(test_mass_of_a_batch),
    };

    return cmocka_run_group_tests_name("work", tests, set_up, tear_down);
}
