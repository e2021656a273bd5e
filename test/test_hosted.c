/* A host that computes what our own network computes: every row that the network hands to window,
 * entries, selection and attention is recorded (backend/exec.h, tap) and given to a cache-only
 * session through the public calls. Selections and attention must come out bit for bit. On the
 * random checkpoint T1 (10 layers, window 16, ratios 2 and 1, two-level selection). */
#include "session/hosted.h"
#include "support/host.h"
#include "support/prng.h"

#include <math.h>

enum { N = 420, LAYERS = 10, N_KINDS = 10 };

/* Rows of one layer, in the order of positions (or entries). */
typedef struct rows {
    float *data; /* four bytes each: floats, or ids */
    size_t n, width;
} rows;

typedef struct record {
    rows of[N_KINDS][LAYERS];
} record;

static void see(void *user, uint32_t kind, uint32_t layer, const void *data, size_t n_rows,
                size_t width)
{
    record *rec = user;
    rows   *r = &rec->of[kind][layer];

    if (kind == KVI_TAP_SCORE)
        return;
    r->width = width;
    r->data = realloc(r->data, (r->n + n_rows) * width * sizeof(float));
    assert_non_null(r->data);
    memcpy(r->data + r->n * width, data, n_rows * width * sizeof(float));
    r->n += n_rows;
}

typedef struct fixture {
    kvcsa_model   *model; /* with weights */
    kvcsa_model   *plan;
    kvcsa_pool    *pool;
    kvcsa_session *computed;
    int32_t        ids[N];
    record         rec;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->model = host_model(T1_DIR);
    f->plan = host_plan(T1_DIR, NULL, NULL);
    f->pool = host_pool(2, 0);
    host_tokens(f->ids, N, 5);
    f->computed = host_session(f->pool, f->model, 0);

    const kvi_tap tap = {.see = see, .user = &f->rec};

    kvi_session_set_reference(f->computed, 0, &tap);
    host_run(f->pool, f->computed, f->ids, N, NULL);
    kvi_session_set_reference(f->computed, 0, NULL);
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_int_equal(f->rec.of[KVI_TAP_WINDOW][l].n, N);
        assert_int_equal(f->rec.of[KVI_TAP_QUERY][l].n, N);
        assert_int_equal(f->rec.of[KVI_TAP_ATTENTION][l].n, N);
    }
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    kvcsa_session_release(&f->computed);
    host_pool_is_idle(f->pool);
    kvcsa_pool_release(&f->pool);
    kvcsa_model_release(&f->plan);
    kvcsa_model_release(&f->model);
    for (uint32_t k = 0; k < N_KINDS; k++)
        for (uint32_t l = 0; l < LAYERS; l++)
            free(f->rec.of[k][l].data);
    free(f);
    return 0;
}

static kvcsa_session *open_hosted(const fixture *f, uint32_t slack)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.flags = KVCSA_SESSION_CACHE_ONLY;
    p.chunk_tokens = 512;
    p.window_slack_tokens = slack;
    assert_ok(kvcsa_session_create(f->pool, f->plan, &p, &s, &err));
    return s;
}

/* ------------------------------------------------------------------ the host's network */

/* How rows are handed over. */
typedef struct layout {
    size_t row_gap;  /* floats behind each row */
    size_t head_gap; /* ... and behind each head */
    int    there;    /* in the memory of the pool's device */
} layout;

typedef struct given {
    float     *memory;
    void      *there;
    size_t     bytes;
    kvcsa_rows rows;
} given;

static const kvi_memory *memory_of(const fixture *f)
{
    return kvi_pool_memory(f->pool);
}

/* To the device, one float behind where kernels would like them. */
static void send(const fixture *f, given *g, size_t n_floats)
{
    kvcsa_error err;

    g->bytes = (n_floats + 1) * sizeof(float);
    assert_ok(kvi_memory_alloc(memory_of(f), g->bytes, &g->there, &err));
    g->rows.data = (float *)g->there + 1;
    assert_ok(kvi_memory_put(memory_of(f), (float *)g->there + 1, g->memory,
                             n_floats * sizeof(float), &err));
    assert_ok(kvi_memory_sync(memory_of(f), &err));
}

static void drop(const fixture *f, given *g)
{
    kvi_memory_free(memory_of(f), g->there, g->bytes);
    free(g->memory);
}

/* Rows [first, first + n) of the record, with gaps of NaN, those below n_bad NaN too. */
static given give(const fixture *f, const rows *r, size_t first, size_t n, uint32_t heads,
                  layout how, size_t n_bad)
{
    const size_t width = r->width / heads;
    const size_t head = width + how.head_gap;
    const size_t row = heads * head + how.row_gap;
    given        g = {.memory = malloc((n * row + 1) * sizeof(float))};

    assert_non_null(g.memory);
    assert_true(first + n <= r->n);
    for (size_t i = 0; i < n * row; i++)
        g.memory[i] = NAN;
    for (size_t i = n_bad; i < n; i++)
        for (size_t h = 0; h < heads; h++)
            memcpy(g.memory + i * row + h * head, r->data + (first + i) * r->width + h * width,
                   width * sizeof(float));
    g.rows = (kvcsa_rows){.data = g.memory};
    if (how.row_gap || how.head_gap) {
        g.rows.row_stride = row;
        g.rows.head_stride = head;
    }
    if (how.there)
        send(f, &g, n * row);
    return g;
}

/* Raw rows say whose they are. */
static given give_raw(uint32_t layer, uint64_t pos, size_t n, size_t width)
{
    given g = {.memory = malloc(n * width * sizeof(float))};

    assert_non_null(g.memory);
    for (size_t i = 0; i < n * width; i++)
        g.memory[i] = (float)(pos + i / width) + (float)layer / 16 + (float)(i % width) * 1024;
    g.rows = (kvcsa_rows){.data = g.memory};
    return g;
}

typedef struct run {
    const fixture   *f;
    kvcsa_session   *s;
    kvcsa_chunk_info c;
    kvcsa_plan_row   row;
    layout           how;
    uint32_t         layer;
} run;

static uint32_t flags_of(const run *r)
{
    return r->how.there ? KVCSA_ROWS_ON_DEVICE : 0;
}

static size_t rows_skipped(const run *r, uint32_t layer)
{
    const uint64_t first = r->c.first_rows[layer];

    if (first <= r->c.position)
        return 0;
    return first - r->c.position < r->c.n_rows ? (size_t)(first - r->c.position) : r->c.n_rows;
}

static void write_layer(const run *r)
{
    const record    *rec = &r->f->rec;
    const uint64_t   end = r->c.position + r->c.n_rows;
    const bool       owns = r->row.kv_owner == (int32_t)r->layer;
    kvcsa_chunk_rows w = {.struct_size = sizeof w};
    given window = give(r->f, &rec->of[KVI_TAP_WINDOW][r->layer], r->c.position, r->c.n_rows, 1,
                        r->how, rows_skipped(r, r->layer));
    given key = {0}, index_key = {0}, raw = {0};
    kvcsa_error err;

    w.window = window.rows;
    if (owns) {
        const uint64_t first = r->c.position / r->row.ratio, n = end / r->row.ratio - first;

        key = give(r->f, &rec->of[KVI_TAP_MAIN][r->layer], first, n, 1, r->how, 0);
        index_key = give(r->f, &rec->of[KVI_TAP_KEY][r->layer], first, n, 1, r->how, 0);
        w.key = key.rows;
        w.index_key = index_key.rows;
    }
    if (r->row.pending_bytes) {
        const size_t row_floats = r->row.pending_bytes / 4;

        raw = give_raw(r->layer, r->c.position, r->c.n_rows, row_floats);
        if (r->how.there)
            send(r->f, &raw, r->c.n_rows * row_floats);
        w.pending = raw.rows;
    }
    w.flags = flags_of(r);
    assert_ok(kvcsa_chunk_write(r->s, r->layer, &w, &err));
    drop(r->f, &window);
    drop(r->f, &key);
    drop(r->f, &index_key);
    drop(r->f, &raw);
}

static void select_layer(const run *r, size_t skip)
{
    const record       *rec = &r->f->rec;
    const rows         *topk = &rec->of[KVI_TAP_TOPK][r->layer];
    const uint32_t      heads = r->row.index_heads;
    const size_t        k = r->row.select_entries;
    kvcsa_chunk_queries q = {.struct_size = sizeof q};
    given query = give(r->f, &rec->of[KVI_TAP_INDEX_QUERY][r->layer], r->c.position, r->c.n_rows,
                       heads, r->how, skip);
    given weights = give(r->f, &rec->of[KVI_TAP_INDEX_WEIGHT][r->layer], r->c.position, r->c.n_rows,
                         1, r->how, skip);
    kvcsa_error err;

    q.query = query.rows;
    q.weights = weights.rows;
    q.flags = flags_of(r);
    q.ids = malloc(r->c.n_rows * k * sizeof *q.ids);
    assert_non_null(q.ids);
    assert_ok(kvcsa_chunk_select(r->s, r->layer, &q, &err));
    assert_int_equal(topk->width, k);
    for (size_t i = 0; i < skip * k; i++)
        assert_int_equal(q.ids[i], -1);
    assert_memory_equal(q.ids + skip * k, topk->data + (r->c.position + skip) * k,
                        (r->c.n_rows - skip) * k * sizeof *q.ids);
    free(q.ids);
    drop(r->f, &query);
    drop(r->f, &weights);
}

static void attend_layer(const run *r, size_t skip, uint32_t n_heads)
{
    const record         *rec = &r->f->rec;
    const rows           *want = &rec->of[KVI_TAP_ATTENTION][r->layer];
    const size_t          width = want->width / n_heads;
    const size_t          head = width + r->how.head_gap, row = n_heads * head + r->how.row_gap;
    const size_t          n_out = r->c.n_rows * row;
    kvcsa_chunk_attention a = {.struct_size = sizeof a, .n_heads = n_heads};
    given q = give(r->f, &rec->of[KVI_TAP_QUERY][r->layer], r->c.position, r->c.n_rows, n_heads,
                   r->how, skip);
    kvcsa_error err;

    a.query = q.rows;
    float *const out = malloc(n_out * sizeof(float));
    given        at = {.memory = out};

    assert_non_null(out);
    for (size_t i = 0; i < n_out; i++)
        out[i] = 12345;
    a.flags = flags_of(r);
    if (r->how.there)
        send(r->f, &at, n_out);
    a.out = r->how.there ? (float *)at.there + 1 : out;
    a.out_row_stride = q.rows.row_stride;
    a.out_head_stride = q.rows.head_stride;
    a.sink = r->f->model->weights.layers[r->layer].attn_sink;
    assert_ok(kvcsa_chunk_attend(r->s, r->layer, &a, &err));
    if (r->how.there)
        assert_ok(kvi_memory_get(memory_of(r->f), out, a.out, n_out * sizeof *out, &err));
    for (size_t i = 0; i < skip * row; i++)
        assert_true(out[i] == 12345);
    for (size_t i = skip; i < r->c.n_rows; i++)
        for (uint32_t h = 0; h < n_heads; h++) {
            const float *got = out + i * row + h * head;

            assert_memory_equal(got, want->data + (r->c.position + i) * want->width + h * width,
                                width * sizeof(float));
            for (size_t g = 0; g < r->how.head_gap; g++)
                assert_true(got[width + g] == 12345); /* gaps are the caller's */
        }
    drop(r->f, &at);
    drop(r->f, &q);
}

/* One chunk as far as the commit. */
static void run_chunk(run *r)
{
    kvcsa_error err;

    for (r->layer = 0; r->layer < LAYERS; r->layer++) {
        const size_t skip = rows_skipped(r, r->layer + 1);

        r->row = (kvcsa_plan_row){.struct_size = sizeof r->row};
        assert_ok(kvcsa_model_plan_row(r->f->plan, r->layer, &r->row, &err));
        write_layer(r);
        if (r->row.select_owner == (int32_t)r->layer)
            select_layer(r, skip);
        attend_layer(r, skip, r->f->model->config.n_heads);
    }
}

/* What was appended, in chunks of at most max_rows; 0 = of random sizes. Counts of rows, and of
 * those that were replayed. */
static void run_all(const fixture *f, kvcsa_session *s, uint32_t max_rows, layout how,
                    uint64_t *n_rows, uint64_t *n_replayed)
{
    const uint64_t most =
        kvi_memory_is_apart(memory_of(f)) ? 200 : 61; /* each call takes long there */
    prng        rng;
    kvcsa_error err;

    prng_init(&rng, 77);
    *n_rows = 0;
    *n_replayed = 0;
    for (;;) {
        run r = {.f = f, .s = s, .c = {.struct_size = sizeof r.c}, .how = how};

        assert_ok(kvcsa_chunk_begin(s, max_rows ? max_rows : 1 + (uint32_t)(prng_u64(&rng) % most),
                                    &r.c, &err));
        if (r.c.n_rows == 0)
            return;
        assert_memory_equal(r.c.tokens, f->ids + r.c.position, r.c.n_rows * sizeof *f->ids);
        run_chunk(&r);
        assert_ok(kvcsa_chunk_commit(s, &err));
        *(r.c.replay ? n_replayed : n_rows) += r.c.n_rows;
    }
}

static void forget(const fixture *f)
{
    kvcsa_error err;

    assert_ok(kvcsa_prefix_forget(f->pool, NULL, 0, NULL, 0, NULL, &err));
}

static void append(kvcsa_session *s, const int32_t *ids, size_t n)
{
    kvcsa_error err;

    assert_ok(kvcsa_session_append(s, ids, n, NULL, NULL, &err));
}

/* Entries, index keys and the window of both sessions are the same. */
static void same_rows(const fixture *f, kvcsa_session *a, kvcsa_session *b)
{
    enum { CAP = N * 512 };
    float      *x = malloc(2 * CAP * sizeof(float)), *y = x + CAP;
    kvcsa_error err;

    assert_non_null(x);
    for (uint32_t l = 0; l < LAYERS; l++) {
        kvcsa_plan_row row = {.struct_size = sizeof row};

        assert_ok(kvcsa_model_plan_row(f->plan, l, &row, &err));
        for (uint32_t what = KVCSA_READ_KEYS; what <= KVCSA_READ_WINDOW; what++) {
            const bool     window = what == KVCSA_READ_WINDOW;
            const uint64_t first = window ? N - row.window_tokens : 0;
            const uint64_t n = window ? row.window_tokens : row.ratio ? N / row.ratio : 0;

            if (n == 0)
                continue;
            memset(x, 1, 2 * CAP * sizeof(float));
            assert_ok(kvcsa_session_read_rows(a, l, what, first, n, x, CAP, &err));
            assert_ok(kvcsa_session_read_rows(b, l, what, first, n, y, CAP, &err));
            assert_memory_equal(x, y, CAP * sizeof(float));
        }
    }
    free(x);
}

/* ------------------------------------------------------------------ tests */

static void check_way(const fixture *f, uint32_t max_rows, size_t n, layout how)
{
    kvcsa_session *s = open_hosted(f, 0);
    uint64_t       n_rows, n_replayed;

    append(s, f->ids, n);
    run_all(f, s, max_rows, how, &n_rows, &n_replayed);
    assert_int_equal(n_rows, n);
    assert_int_equal(n_replayed, 0);
    if (n == N)
        same_rows(f, f->computed, s);
    kvcsa_session_release(&s);
    forget(f);
}

static void test_host_makes_the_bits_of_our_network(void **state)
{
    const fixture *f = *state;

    check_way(f, 0, N, (layout){0});
    check_way(f, 512, N, (layout){.row_gap = 5});
    check_way(f, 1, 40, (layout){.head_gap = 3});
}

/* The host's network runs on the pool's device. */
static void test_host_rows_on_the_device(void **state)
{
    const fixture *f = *state;

    if (kvi_memory_is_apart(memory_of(f))) { /* elsewhere they are refused: test_api_chunk_edges */
        check_way(f, 0, N, (layout){.there = 1});
        check_way(f, 100, 200, (layout){.there = 1, .row_gap = 2, .head_gap = 3});
    }
}

static void test_host_replays_behind_a_known_prefix(void **state)
{
    const fixture *f = *state;
    kvcsa_session *first = open_hosted(f, 0), *second = open_hosted(f, 0);
    kvcsa_reuse    reuse = {.struct_size = sizeof reuse};
    uint64_t       n_rows, n_replayed;
    kvcsa_error    err;

    append(first, f->ids, N);
    run_all(f, first, 0, (layout){0}, &n_rows, &n_replayed);
    append(second, f->ids, N);
    assert_ok(kvcsa_session_get_reuse(second, &reuse, &err));
    assert_true(reuse.n_adopted >= 3 * 128);
    run_all(f, second, 0, (layout){0}, &n_rows, &n_replayed);
    assert_int_equal(n_rows, reuse.n_compute);
    assert_int_equal(n_replayed, reuse.n_replay);
    assert_true(n_replayed > 0);
    same_rows(f, first, second);
    kvcsa_session_release(&first);
    kvcsa_session_release(&second);
}

/* Back to any position and on again: the same bits, from a fork and from a rewind. */
static void test_host_forks_and_rewinds(void **state)
{
    const fixture *f = *state;
    const uint64_t positions[] = {N - 1, 255, N - 7, 256, 257, 31};
    const size_t   n_positions = kvi_memory_is_apart(memory_of(f)) ? 2 : 6;
    kvcsa_session *s = open_hosted(f, 8), *fork;
    uint64_t       n_rows, n_replayed;
    kvcsa_error    err;

    append(s, f->ids, N);
    run_all(f, s, 0, (layout){0}, &n_rows, &n_replayed);
    for (size_t i = 0; i < n_positions; i++) {
        fork = NULL;
        assert_ok(kvcsa_session_fork(s, positions[i], NULL, &fork, &err));
        append(fork, f->ids + positions[i], N - positions[i]);
        run_all(f, fork, 0, (layout){0}, &n_rows, &n_replayed);
        same_rows(f, s, fork);
        kvcsa_session_release(&fork);
        assert_ok(kvcsa_session_rewind(s, positions[i], &err));
        append(s, f->ids + positions[i], N - positions[i]);
        run_all(f, s, 0, (layout){0}, &n_rows, &n_replayed);
        same_rows(f, f->computed, s);
    }
    kvcsa_session_release(&s);
}

/* The last row again, for whoever lost its output: its window is not touched. */
static void test_host_gets_the_last_row_after_a_rewind(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = open_hosted(f, 32);
    uint64_t       n_rows, n_replayed;
    kvcsa_error    err;

    append(s, f->ids, N);
    run_all(f, s, 0, (layout){0}, &n_rows, &n_replayed);
    assert_ok(kvcsa_session_rewind(s, N - 4, &err));
    run_all(f, s, 0, (layout){0}, &n_rows, &n_replayed);
    assert_int_equal(n_rows, 0);
    assert_int_equal(n_replayed, 1);
    run_all(f, s, 0, (layout){0}, &n_rows, &n_replayed);
    assert_int_equal(n_replayed, 0); /* once */
    append(s, f->ids + N - 4, 4);
    run_all(f, s, 0, (layout){0}, &n_rows, &n_replayed);
    same_rows(f, f->computed, s);
    kvcsa_session_release(&s);
}

static void check_raw(const fixture *f, kvcsa_session *s, uint64_t n_tokens)
{
    float       raw[2048];
    kvcsa_error err;

    for (uint32_t l = 0; l < LAYERS; l++) {
        kvcsa_plan_row row = {.struct_size = sizeof row};

        assert_ok(kvcsa_model_plan_row(f->plan, l, &row, &err));
        if (row.pending_bytes == 0) {
            assert_fails(kvcsa_session_read_rows(s, l, KVCSA_READ_PENDING, 0, 0, NULL, 0, &err),
                         KVCSA_ERR_ARG, "has no pending rows");
            continue;
        }
        if (n_tokens % row.ratio == 0) {
            assert_fails(
                kvcsa_session_read_rows(s, l, KVCSA_READ_PENDING, n_tokens - 1, 1, raw, 2048, &err),
                KVCSA_ERR_ARG, "are asked for");
            continue;
        }

        given want = give_raw(l, n_tokens - 1, 1, row.pending_bytes / 4);

        assert_ok(
            kvcsa_session_read_rows(s, l, KVCSA_READ_PENDING, n_tokens - 1, 1, raw, 2048, &err));
        assert_memory_equal(raw, want.memory, row.pending_bytes);
        free(want.memory);
    }
}

/* Raw rows of an entry that a later chunk completes: kept through commits, forks, rewinds. */
static void test_host_finds_its_pending_rows(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = open_hosted(f, 8), *fork = NULL;
    uint64_t       n_rows, n_replayed;
    kvcsa_error    err;

    forget(f); /* a replay behind a hit does not fill the slack */
    append(s, f->ids, 301);
    run_all(f, s, 0, (layout){0}, &n_rows, &n_replayed);
    check_raw(f, s, 301);
    append(s, f->ids + 301, 3);
    run_all(f, s, 1, (layout){0}, &n_rows, &n_replayed);
    check_raw(f, s, 304);
    assert_ok(kvcsa_session_rewind(s, 299, &err)); /* within the slack */
    check_raw(f, s, 299);
    assert_ok(kvcsa_session_fork(s, 251, NULL, &fork, &err)); /* and beyond */
    run_all(f, fork, 0, (layout){0}, &n_rows, &n_replayed);
    assert_true(n_replayed > 0);
    check_raw(f, fork, 251);
    kvcsa_session_release(&fork);
    kvcsa_session_release(&s);
}

/* Work is counted as our own network counts it. */
static void test_host_work_is_counted(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = open_hosted(f, 0);
    uint64_t       n_rows, n_replayed;
    kvcsa_error    err;

    forget(f);
    append(s, f->ids, N);
    run_all(f, s, 128, (layout){0}, &n_rows, &n_replayed);
    for (uint32_t l = 0; l < LAYERS; l++) {
        kvcsa_work mine, ours;

        assert_ok(kvcsa_session_layer_work(s, l, NULL, &mine, &err));
        assert_ok(kvcsa_session_layer_work(f->computed, l, NULL, &ours, &err));
        ours.n_experts = mine.n_experts;         /* of a network of ours only */
        ours.written_bytes = mine.written_bytes; /* with raw rows */
        assert_memory_equal(&mine, &ours, sizeof mine);
    }
    kvcsa_session_release(&s);
}

/* Fewer entries than the plan says, and hidden spans: what our own session selects then. */
static void test_host_selection_is_limited(void **state)
{
    const fixture       *f = *state;
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    run                  r = {.f = f, .c = {.struct_size = sizeof r.c}};
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.flags = KVCSA_SESSION_CACHE_ONLY;
    p.chunk_tokens = 512;
    p.select_entries = 2;
    assert_ok(kvcsa_session_create(f->pool, f->plan, &p, &s, &err));
    append(s, f->ids, 200);
    r.s = s;
    assert_ok(kvcsa_chunk_begin(s, 0, &r.c, &err));
    for (r.layer = 0; r.layer < LAYERS; r.layer++) {
        kvcsa_chunk_queries q = {.struct_size = sizeof q};

        r.row = (kvcsa_plan_row){.struct_size = sizeof r.row};
        assert_ok(kvcsa_model_plan_row(f->plan, r.layer, &r.row, &err));
        write_layer(&r);
        if (r.row.select_owner != (int32_t)r.layer)
            continue;

        const size_t k = r.row.select_entries;

        q.query.data = f->rec.of[KVI_TAP_INDEX_QUERY][r.layer].data;
        q.weights.data = f->rec.of[KVI_TAP_INDEX_WEIGHT][r.layer].data;
        q.ids = malloc(200 * k * sizeof *q.ids);
        assert_non_null(q.ids);
        assert_ok(kvcsa_chunk_select(s, r.layer, &q, &err));
        assert_true(q.ids[199 * k + 1] >= 0);
        for (size_t i = 0; i < 200; i++)
            for (size_t j = 2; j < k; j++)
                assert_int_equal(q.ids[i * k + j], -1);
        free(q.ids);
    }
    kvcsa_session_release(&s); /* with its chunk open */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_makes_the_bits_of_our_network),
        cmocka_unit_test(test_host_rows_on_the_device),
        cmocka_unit_test(test_host_replays_behind_a_known_prefix),
        cmocka_unit_test(test_host_forks_and_rewinds),
        cmocka_unit_test(test_host_gets_the_last_row_after_a_rewind),
        cmocka_unit_test(test_host_finds_its_pending_rows),
        cmocka_unit_test(test_host_work_is_counted),
        cmocka_unit_test(test_host_selection_is_limited),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
