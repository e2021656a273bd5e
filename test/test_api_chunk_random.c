/* Random calls on sessions of a host with layers of every kind: ratios 4, 2 and 1 behind a window,
 * a window alone, and heads. Every row is a function of layer, token and position, in values that
 * all formats hold exactly; so whatever was forked, rewound, adopted, saved or loaded, what can be
 * read back must be these functions, and so must raw rows when a chunk begins inside an entry. */
#include "support/plan_rows.h"
#include "support/prng.h"
#include "support/snap.h"

enum { LAYERS = 5, WINDOW = 16, WIDTH = 32, INDEX = 32, MAX = 160, N_SESSIONS = 3, VOCAB = 5 };
enum { KEY = 1, VALUE, INDEX_KEY, ROW, RAW };

static uint64_t seed = 20261130;

typedef struct world {
    kvcsa_model   *model;
    kvcsa_pool    *pool;
    kvcsa_plan_row rows[LAYERS];
    kvcsa_session *s[N_SESSIONS];
    int32_t        ids[N_SESSIONS][MAX];
    size_t         n[N_SESSIONS];
    prng           rng;
    uint32_t       slack;
} world;

/* -1, 0, 1 or 2; the first channel is always 2, so that no group has another scale. */
static float value(uint32_t what, uint32_t layer, int32_t token, uint64_t pos, size_t channel)
{
    uint64_t x =
        ((((uint64_t)what * 8 + layer) * 64 + (uint64_t)token) * 4096 + pos) * 512 + channel;

    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return channel % WIDTH == 0 ? 2.0f : (float)((x >> 33) % 4) - 1.0f;
}

static kvcsa_plan_row latent_row(int32_t layer, uint32_t ratio)
{
    kvcsa_plan_row r = selected_row(layer, layer, KVCSA_SELECT_OWN, layer);

    r.ratio = ratio;
    r.pool_kind = ratio > 1 ? KVCSA_POOLING_GATED : KVCSA_POOLING_NONE;
    r.entry_width = WIDTH;
    r.entry_format = KVCSA_FORMAT_F32;
    r.candidates = KVCSA_CANDIDATES_NONE;
    r.candidate_blocks = r.candidate_block_entries = 0;
    return r;
}

static kvcsa_session *open_session(const world *w)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.flags = KVCSA_SESSION_CACHE_ONLY;
    p.window_slack_tokens = w->slack;
    p.window_store_tokens = 32;
    assert_ok(kvcsa_session_create(w->pool, w->model, &p, &s, &err));
    return s;
}

static void make_world(world *w, uint64_t own_seed, uint32_t slack)
{
    kvcsa_plan_params p = default_params();

    *w = (world){.slack = slack};
    prng_init(&w->rng, own_seed);
    w->rows[0] = window_row(0);
    w->rows[0].entry_width = WIDTH;
    w->rows[1] = latent_row(1, 4);
    w->rows[2] = latent_row(2, 2);
    w->rows[3] = grouped_row(3, 3, 2, WIDTH);
    w->rows[3].entry_format = w->rows[3].value_format = KVCSA_FORMAT_BF16;
    w->rows[4] = latent_row(4, 1);
    for (uint32_t l = 0; l < LAYERS; l++)
        w->rows[l].window_tokens = l == 3 ? 0 : WINDOW;
    p.block_tokens = 32;
    p.vocab_tokens = VOCAB;
    w->model = from_rows(w->rows, LAYERS, &p);
    rows_of(w->model, w->rows);
    w->pool = host_pool(1, 0);
    for (int i = 0; i < N_SESSIONS; i++)
        w->s[i] = open_session(w);
}

static void end_world(world *w)
{
    for (int i = 0; i < N_SESSIONS; i++)
        kvcsa_session_release(&w->s[i]);
    host_pool_is_idle(w->pool);
    kvcsa_pool_release(&w->pool);
    kvcsa_model_release(&w->model);
}

/* ------------------------------------------------------------------ the host */

/* Rows of positions first, first + step, ..; an entry goes by its first token. */
static float *make(uint32_t what, uint32_t layer, const int32_t *ids, uint64_t first, uint64_t step,
                   size_t n, size_t width)
{
    float *x = malloc((n * width + 1) * sizeof *x);

    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < width; c++)
            x[i * width + c] = value(what, layer, ids[first + i * step], first + i * step, c);
    return x;
}

static void expect(const world *w, int i, uint32_t layer, uint32_t read, uint32_t what,
                   uint64_t first, uint64_t step, size_t n, size_t width)
{
    float      *want = make(what, layer, w->ids[i], first, step, n, width);
    float      *got = malloc((n * width + 1) * sizeof *got);
    kvcsa_error err;

    assert_non_null(got);
    assert_ok(kvcsa_session_read_rows(w->s[i], layer, read, first / step, n, got, n * width, &err));
    assert_memory_equal(got, want, n * width * sizeof *got);
    free(got);
    free(want);
}

static size_t raw_width(const kvcsa_plan_row *r)
{
    return r->pending_bytes ? r->pending_bytes / 4 / (r->ratio - 1) : 0;
}

static void write_layer(const world *w, int i, uint32_t l, const kvcsa_chunk_info *c)
{
    const kvcsa_plan_row *r = &w->rows[l];
    const int32_t        *ids = w->ids[i];
    kvcsa_chunk_rows      rows = {.struct_size = sizeof rows};
    float                *x[5] = {NULL};
    kvcsa_error           err;

    if (r->ratio) {
        const uint64_t first = c->position / r->ratio;
        const size_t   n = (size_t)((c->position + c->n_rows) / r->ratio - first);

        rows.key.data = x[0] =
            make(KEY, l, ids, first * r->ratio, r->ratio, n, r->kv_heads * WIDTH);
        if (r->value_kind == KVCSA_VALUE_OWN)
            rows.value.data = x[1] =
                make(VALUE, l, ids, first * r->ratio, r->ratio, n, r->kv_heads * WIDTH);
        if (r->index_bytes)
            rows.index_key.data = x[2] =
                make(INDEX_KEY, l, ids, first * r->ratio, r->ratio, n, INDEX);
    }
    if (r->window_tokens)
        rows.window.data = x[3] = make(ROW, l, ids, c->position, 1, c->n_rows, WIDTH);
    if (r->pending_bytes)
        rows.pending.data = x[4] = make(RAW, l, ids, c->position, 1, c->n_rows, raw_width(r));
    assert_ok(kvcsa_chunk_write(w->s[i], l, &rows, &err));
    for (int k = 0; k < 5; k++)
        free(x[k]);
}

/* A chunk that begins inside an entry finds the raw rows in front of it. */
static void check_raw(const world *w, int i, const kvcsa_chunk_info *c)
{
    for (uint32_t l = 0; l < LAYERS && !c->replay; l++) {
        const kvcsa_plan_row *r = &w->rows[l];
        const size_t          n = r->pending_bytes ? (size_t)(c->position % r->ratio) : 0;

        if (n == 0)
            continue;

        float      *want = make(RAW, l, w->ids[i], c->position - n, 1, n, raw_width(r));
        float      *got = malloc(n * raw_width(r) * sizeof *got);
        kvcsa_error err;

        assert_non_null(got);
        assert_ok(kvcsa_session_read_rows(w->s[i], l, KVCSA_READ_PENDING, c->position - n, n, got,
                                          n * raw_width(r), &err));
        assert_memory_equal(got, want, n * raw_width(r) * sizeof *got);
        free(got);
        free(want);
    }
}

static void run(world *w, int i)
{
    kvcsa_error err;

    for (;;) {
        kvcsa_chunk_info c = {.struct_size = sizeof c};

        assert_ok(kvcsa_chunk_begin(w->s[i], 1 + (uint32_t)prng_below(&w->rng, 40), &c, &err));
        if (c.n_rows == 0)
            return;
        assert_true(c.position + c.n_rows <= w->n[i]);
        assert_memory_equal(c.tokens, w->ids[i] + c.position, c.n_rows * sizeof *c.tokens);
        check_raw(w, i, &c);
        for (uint32_t l = 0; l < LAYERS; l++)
            write_layer(w, i, l, &c);
        if (prng_below(&w->rng, 8) == 0)
            kvcsa_chunk_abandon(w->s[i]);
        else
            assert_ok(kvcsa_chunk_commit(w->s[i], &err));
    }
}

/* All that is there. */
static void check(const world *w, int i)
{
    const size_t n = w->n[i];
    const size_t n_window = n < WINDOW ? n : WINDOW;

    assert_int_equal(kvcsa_session_length(w->s[i]), n);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const kvcsa_plan_row *r = &w->rows[l];

        if (r->ratio)
            expect(w, i, l, KVCSA_READ_KEYS, KEY, 0, r->ratio, n / r->ratio, r->kv_heads * WIDTH);
        if (r->value_kind == KVCSA_VALUE_OWN)
            expect(w, i, l, KVCSA_READ_VALUES, VALUE, 0, r->ratio, n / r->ratio,
                   r->kv_heads * WIDTH);
        if (r->index_bytes)
            expect(w, i, l, KVCSA_READ_INDEX_KEYS, INDEX_KEY, 0, r->ratio, n / r->ratio, INDEX);
        if (r->window_tokens)
            expect(w, i, l, KVCSA_READ_WINDOW, ROW, n - n_window, 1, n_window, WIDTH);
    }
}

/* ------------------------------------------------------------------ calls */

static void append(world *w, int i)
{
    const size_t room = MAX - w->n[i];
    const size_t n = room ? (size_t)prng_range(&w->rng, 1, room < 50 ? room : 50) : 0;
    kvcsa_error  err;

    if (n == 0)
        return;
    for (size_t k = 0; k < n; k++) /* few texts, so that prefixes are met again */
        w->ids[i][w->n[i] + k] = prng_below(&w->rng, 20) ? 1 : (int32_t)prng_below(&w->rng, VOCAB);
    assert_ok(kvcsa_session_append(w->s[i], w->ids[i] + w->n[i], n, NULL, NULL, &err));
    w->n[i] += n;
}

static size_t position_in(world *w, int i)
{
    const size_t near = w->n[i] < 20 ? w->n[i] : 20;

    return prng_below(&w->rng, 2) ? w->n[i] - (size_t)prng_below(&w->rng, near + 1)
                                  : (size_t)prng_below(&w->rng, w->n[i] + 1);
}

static void rewind_to(world *w, int i)
{
    const size_t pos = position_in(w, i);
    kvcsa_error  err;

    assert_ok(kvcsa_session_rewind(w->s[i], pos, &err));
    w->n[i] = pos;
}

static void fork_to(world *w, int i, int to)
{
    const size_t pos = position_in(w, i);
    kvcsa_error  err;

    if (i == to)
        return;
    kvcsa_session_release(&w->s[to]);
    assert_ok(kvcsa_session_fork(w->s[i], pos, NULL, &w->s[to], &err));
    memcpy(w->ids[to], w->ids[i], sizeof w->ids[to]);
    w->n[to] = pos;
}

typedef struct bytes {
    unsigned char *data;
    size_t         n, at;
} bytes;

static int32_t put(void *user, const void *data, size_t n)
{
    bytes *b = user;

    b->data = realloc(b->data, b->n + n);
    assert_non_null(b->data);
    memcpy(b->data + b->n, data, n);
    b->n += n;
    return 0;
}

static int64_t get(void *user, void *data, size_t n)
{
    bytes *b = user;

    n = n < b->n - b->at ? n : b->n - b->at;
    memcpy(data, b->data + b->at, n);
    b->at += n;
    return (int64_t)n;
}

static void save_and_load(world *w, int i)
{
    bytes              b = {0};
    const kvcsa_writer writer = {put, &b};
    const kvcsa_reader reader = {get, &b};
    kvcsa_error        err;

    assert_ok(kvcsa_snapshot_write(w->s[i], &writer, NULL, NULL, &err));
    kvcsa_session_release(&w->s[i]);
    w->s[i] = open_session(w);
    assert_ok(kvcsa_snapshot_read(w->s[i], &reader, NULL, NULL, &err));
    free(b.data);
}

static void one_call(world *w)
{
    const int   i = (int)prng_below(&w->rng, N_SESSIONS);
    kvcsa_error err;

    switch (prng_below(&w->rng, 8)) {
    case 0:
    case 1:
    case 2:
        append(w, i);
        break;
    case 3:
        rewind_to(w, i);
        break;
    case 4:
        fork_to(w, i, (int)prng_below(&w->rng, N_SESSIONS));
        return; /* nobody runs it yet */
    case 5:
        save_and_load(w, i);
        break;
    case 6:
        assert_ok(kvcsa_session_erase(w->s[i], 0, &err));
        w->n[i] = 0;
        break;
    default:
        assert_ok(kvcsa_prefix_forget(w->pool, NULL, 0, NULL, 0, NULL, &err));
    }
    run(w, i);
    check(w, i);
}

static void test_random_calls(void **state)
{
    const uint32_t slacks[] = {0, 7, 30};
    kvcsa_error    err;

    (void)state;
    for (uint32_t k = 0; k < 3; k++) {
        world w;

        make_world(&w, seed + k, slacks[k]);
        for (int n = 0; n < 300; n++) {
            one_call(&w);
            if (n % 20 == 0)
                assert_ok(kvcsa_pool_check(w.pool, &err));
        }
        end_world(&w);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_calls)};

    seed = prng_seed(argc, argv, seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
