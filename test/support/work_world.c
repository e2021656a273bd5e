#include "support/work_world.h"

#include "session/session_int.h"

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

int selects(const work_plan *p, uint32_t layer)
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

void check_counts(const world *w, kvcsa_session *s, const kvcsa_work *step,
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

work_forward forward(const world *w, uint64_t begin, uint64_t end, uint64_t chunk)
{
    return (work_forward){
        .begin = begin, .end = end, .chunk = chunk, .picks = w->picks, .n_picks = N};
}

void expect(const world *w, uint64_t begin, uint64_t end, uint64_t chunk, kvcsa_work *layers)
{
    const work_forward f = forward(w, begin, end, chunk);

    memset(layers, 0, T1_LAYERS * sizeof *layers);
    work_add_forward(&w->plan, &f, layers);
}

void add_layers(kvcsa_work *to, const kvcsa_work *from)
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

void watch(const world *w, const setting *set, uint32_t chunk, work_pick *picks)
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

int world_set_up(void **state)
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

int world_tear_down(void **state)
{
    world *w = *state;

    check_pool_empties(w->pool);
    kvcsa_pool_release(&w->pool);
    kvcsa_model_release(&w->model);
    free(w->plan.rows);
    free(w);
    return 0;
}

kvcsa_session *plain_session(const world *w, uint32_t chunk)
{
    kvcsa_session_params p = session_defaults();

    p.chunk_tokens = chunk;
    p.reuse = KVCSA_REUSE_NONE;
    return make_session(w->pool, w->model, &p);
}
