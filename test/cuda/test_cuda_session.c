/* Whole sessions on the CUDA plug-in: however a place is reached, the bits are those of one undisturbed run on the device, and
 * they lie near those of the CPU. On the emulated device the threads of nearly every run but the undisturbed ones go in random
 * order.
 *
 * The model is random, and small: five layers (window only, Full, Full and source of candidates, Reuse, Reindex), a window of 4
 * tokens, blocks of 16, 8 selected entries of 3 candidate blocks of 4. So 36 tokens seal two blocks, select, and an exact replay
 * runs 4 + 4 x 3 rows. A real device gets more tokens. */
#include "cuda/cuda_check.h"

#include "session/session_int.h"

#include "support/snap.h"
#include "support/work_count.h"

#include <limits.h>
#include <string.h>

enum { LAYERS = 5, WINDOW = 4, REPLAY = WINDOW + (LAYERS - 1) * (WINDOW - 1), BLOCK = 16, MAX_VOCAB = 2048 };

typedef struct cold { /* one undisturbed run */
    int32_t   *ids;
    size_t     n;
    host_rows  rows; /* logits of every token */
    kvcsa_work work[LAYERS];
} cold;

static char         folder[PATH_MAX]; /* of the plug-in that runs */
static snap_dir     made;             /* of the models */
static kvcsa_model *model;
static uint32_t     vocab;
static size_t       common; /* tokens that a and b have in common; no whole blocks */
static cold         a, b, c;

/* ------------------------------------------------------------------ pools and sessions */

static kvcsa_pool_params pool_params(uint32_t backend)
{
    kvcsa_pool_params p;

    kvcsa_pool_params_default(&p, sizeof p);
    p.n_threads = 1;
    p.flags = KVCSA_POOL_FILL_FREED;
    p.backend = backend;
    p.backend_dir = folder;
    return p;
}

static kvcsa_pool *open_pool(uint32_t backend)
{
    const kvcsa_pool_params p = pool_params(backend);
    kvcsa_pool             *pool = NULL;
    kvcsa_error             err;

    assert_ok(kvcsa_pool_create(&p, &pool, &err));
    return pool;
}

/* No session is left: without the prefixes nothing is held. */
static void close_pool(kvcsa_pool *pool)
{
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
}

static kvcsa_session_params session_params(void)
{
    kvcsa_session_params p;

    kvcsa_session_params_default(&p, sizeof p);
    return p;
}

static kvcsa_session *open_session(kvcsa_pool *pool, const kvcsa_session_params *p)
{
    kvcsa_session *s = NULL;
    kvcsa_error    err;

    assert_ok(kvcsa_session_create(pool, model, p, &s, &err));
    return s;
}

static kvcsa_reuse reuse_of(kvcsa_session *s)
{
    kvcsa_reuse r = {.struct_size = sizeof r};
    kvcsa_error err;

    assert_ok(kvcsa_session_get_reuse(s, &r, &err));
    return r;
}

static const float *row_of(const cold *r, uint64_t position)
{
    return r->rows.data + position * vocab;
}

static void assert_cold(const cold *r, kvcsa_session *s)
{
    const uint64_t n = kvcsa_session_length(s);
    float          logits[MAX_VOCAB];

    assert_in_range(n, 1, r->n);
    host_logits(s, logits, vocab);
    if (memcmp(logits, row_of(r, n - 1), vocab * sizeof *logits) != 0)
        fail_msg("logits of token %llu are not those of an undisturbed run", (unsigned long long)(n - 1));
}

/* The next tokens of r up to `to`; the last logits are compared. */
static void go_on(kvcsa_pool *pool, kvcsa_session *s, const cold *r, uint64_t to)
{
    const uint64_t from = kvcsa_session_length(s);

    host_run(pool, s, r->ids + from, to - from, NULL);
    assert_int_equal(kvcsa_session_length(s), to);
    assert_cold(r, s);
}

/* The same, and all rows are computed and compared. */
static void go_on_in_rows(kvcsa_pool *pool, kvcsa_session *s, const cold *r, uint64_t to)
{
    const uint64_t from = kvcsa_session_length(s);
    host_rows      rows = host_rows_make(to - from, vocab);

    rows.next = from;
    host_run(pool, s, r->ids + from, to - from, &rows);
    assert_true(rows.in_order);
    assert_int_equal(rows.n, to - from);
    assert_memory_equal(rows.data, row_of(r, from), rows.n * vocab * sizeof *rows.data);
    free(rows.data);
}

static void run_cold(cold *r, size_t n, size_t kept, uint64_t seed)
{
    kvcsa_pool    *pool = open_pool(KVCSA_BACKEND_CUDA);
    kvcsa_session *s = open_session(pool, NULL);
    kvcsa_error    err;

    r->ids = malloc(n * sizeof *r->ids);
    assert_non_null(r->ids);
    r->n = n;
    host_tokens(r->ids, n, seed);
    for (size_t i = 0; i < n; i++)
        r->ids[i] = 3 + r->ids[i] % 250;
    memcpy(r->ids, a.ids, kept * sizeof *r->ids);
    if (kept && r->ids[kept] == a.ids[kept])
        r->ids[kept] = r->ids[kept] == 7 ? 8 : 7;
    r->rows = host_rows_make(n, vocab);
    host_run(pool, s, r->ids, n, &r->rows);
    assert_true(r->rows.in_order && r->rows.n == n);
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_ok(kvcsa_session_layer_work(s, l, NULL, &r->work[l], &err));
    kvcsa_session_release(&s);
    close_pool(pool);
}

static void free_cold(cold *r)
{
    free(r->ids);
    free(r->rows.data);
}

/* ------------------------------------------------------------------ models */

/* A random checkpoint, test/data/synth-small.json with changes: pairs of path and value, NULL at the end. */
static kvcsa_model *make_model(const char *name, const char *const *changes)
{
    const snap_path    dir = snap_in(&made, name);
    snap_path          file;
    size_t             n = 0;
    char              *json = read_file("test/data/synth-small.json", &n), *edited;
    kvcsa_model_params p;
    kvcsa_model       *m = NULL;
    kvcsa_error        err;

    for (; *changes; changes += 2) {
        edited = edit_json(json, n, changes[0], changes[1]);
        free(json);
        json = edited;
        n = strlen(json);
    }
    assert_true(snprintf(file.text, sizeof file.text, "%s/%s.json", made.path, name) < (int)sizeof file.text);
    snap_write_file(file.text, json, n);
    free(json);
    assert_ok(kvcsa_synth_checkpoint(file.text, dir.text, NULL, NULL, &err));
    kvcsa_model_params_default(&p, sizeof p);
    p.block_tokens = BLOCK;
    assert_ok(kvcsa_model_open(dir.text, &p, &m, &err));
    return m;
}

static int set_up(void **state)
{
    static const char *const changes[] = {"text_config/num_hidden_layers", "5", "text_config/compress_ratios", "[0, 2, 1, 1, 1]",
                                          "text_config/index_source_layer_ids", "[1, 2, 4]", "text_config/candidate_topk_blocks",
                                          "3", "text_config/candidate_block_size", "4", "text_config/sliding_window", "4", NULL};
    kvcsa_model_info         info = {.struct_size = sizeof info};
    kvcsa_error              err;

    if (cuda_open(state) != 0)
        return -1;
    made = snap_dir_make();
    model = make_model("small", changes);
    assert_ok(kvcsa_model_get_info(model, &info, &err));
    vocab = info.vocab_tokens;
    assert_int_equal(info.n_layers, LAYERS);
    assert_true(vocab > 253 && vocab <= MAX_VOCAB);
    common = emulated ? 20 : 180;
    run_cold(&a, emulated ? 36 : 300, 0, 1);
    run_cold(&b, common + (emulated ? 3 : 60), common, 2);
    run_cold(&c, emulated ? 7 : 90, 0, 3);
    return 0;
}

static int tear_down(void **state)
{
    free_cold(&a);
    free_cold(&b);
    free_cold(&c);
    kvcsa_model_release(&model);
    snap_dir_remove(&made);
    return cuda_close(state);
}

static int set_order(void **state)
{
    (void)state;
    if (emulated)
        emu.order(2, 77);
    return 0;
}

/* ------------------------------------------------------------------ one run in other pieces */

/* The emulation is ten times slower under the address sanitizer, which sees the same code in the tests that are left. */
static void skip_where_slow(void)
{
#if defined(__SANITIZE_ADDRESS__)
    if (emulated)
        skip();
#endif
}

static void test_pieces(void **state)
{
    kvcsa_pool          *pool = open_pool(KVCSA_BACKEND_CUDA);
    kvcsa_session_params p = session_params();
    kvcsa_session       *s;
    uint64_t             n_recorded = 0, n_runs = 0;

    (void)state;
    p.flags = KVCSA_SESSION_PRIVATE;
    s = open_session(pool, &p);
    for (uint64_t n = emulated ? common - 9 : 1; n <= common; n++)
        go_on(pool, s, &a, n);
    kvi_net_graphs(s->net, &n_recorded, &n_runs); /* all but the first step, and one for each layer that begins to leave out */
    assert_true(n_recorded >= 1 && n_runs >= 5);
    go_on_in_rows(pool, s, &a, emulated ? common + 4 : a.n);
    kvcsa_session_release(&s);

    p.chunk_tokens = 3;
    s = open_session(pool, &p);
    go_on_in_rows(pool, s, &a, emulated ? common + 1 : a.n);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* Rows of three texts go through the kernels together, in chunks of other sizes. */
static void test_batch(void **state)
{
    kvcsa_pool          *pool = open_pool(KVCSA_BACKEND_CUDA);
    kvcsa_session_params p = session_params();
    const cold *const    texts[] = {&c, &a, &b};
    const size_t         n[] = {c.n, emulated ? common + 4 : a.n, emulated ? 6 : b.n};
    kvcsa_session       *s[3];
    kvcsa_error          err;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        p.chunk_tokens = i == 0 ? 4 : 11;
        s[i] = open_session(pool, &p);
        assert_ok(kvcsa_session_append(s[i], texts[i]->ids, n[i], NULL, NULL, &err));
    }
    assert_ok(kvcsa_pool_step(pool, s, 3, NULL, NULL, &err));
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(kvcsa_session_length(s[i]), n[i]);
        assert_cold(texts[i], s[i]);
    }
    assert_ok(kvcsa_pool_check(pool, &err));
    for (size_t i = 0; i < 3; i++)
        kvcsa_session_release(&s[i]);
    close_pool(pool);
}

/* ------------------------------------------------------------------ timelines */

static uint64_t n_replay(kvcsa_session *s)
{
    kvcsa_session_stats st = {.struct_size = sizeof st};
    kvcsa_error         err;

    assert_ok(kvcsa_session_get_stats(s, &st, &err));
    return st.n_replay;
}

static void test_fork_rewind_sync(void **state)
{
    skip_where_slow();

    kvcsa_pool          *pool = open_pool(KVCSA_BACKEND_CUDA);
    kvcsa_session_params p = session_params();
    kvcsa_session       *s, *at_end = NULL, *earlier = NULL;
    kvcsa_reuse          r = {.struct_size = sizeof r};
    kvcsa_error          err;

    (void)state;
    p.window_slack_tokens = 2;
    s = open_session(pool, &p);
    go_on(pool, s, &a, common + 3);
    assert_ok(kvcsa_session_fork(s, common + 3, NULL, &at_end, &err));
    assert_cold(&a, at_end);
    go_on(pool, s, &a, common + 4); /* both write the page that they share */
    go_on(pool, at_end, &a, common + 4);
    assert_ok(kvcsa_session_rewind(s, common + 3, &err)); /* within the slack */
    go_on(pool, s, &a, common + 4);

    assert_ok(kvcsa_session_fork(s, common, NULL, &earlier, &err));
    assert_in_range(n_replay(earlier), 1, REPLAY); /* pages may still have the window's rows */
    go_on(pool, earlier, &b, common + 2); /* another end of the same block */
    assert_cold(&a, s);

    assert_ok(kvcsa_session_rewind(at_end, emulated ? common - 1 : common - 50, &err));
    assert_int_equal(n_replay(at_end), REPLAY);
    go_on_in_rows(pool, at_end, &a, common + 1);
    assert_ok(kvcsa_session_sync(at_end, b.ids, common + 2, NULL, &r, &err));
    assert_int_equal(r.n_kept, common);
    host_step(pool, at_end);
    assert_int_equal(kvcsa_session_length(at_end), common + 2);
    assert_cold(&b, at_end);
    go_on(pool, s, &a, common + 5);
    assert_ok(kvcsa_pool_check(pool, &err));
    kvcsa_session_release(&s);
    kvcsa_session_release(&at_end);
    kvcsa_session_release(&earlier);
    close_pool(pool);
}

/* What one session has computed another takes over: windows are computed again, or copied from where they were stored. */
static void test_prefix(void **state)
{
    skip_where_slow();

    const uint64_t known = a.n / BLOCK * BLOCK;
    kvcsa_pool    *pool = open_pool(KVCSA_BACKEND_CUDA);
    kvcsa_error    err;

    (void)state;
    for (uint32_t store = 0; store <= BLOCK; store += BLOCK) {
        const uint64_t       end = store && emulated ? BLOCK + 1 : known + 1; /* of the first */
        const uint64_t       from = end / BLOCK * BLOCK;
        kvcsa_session_params p = session_params();
        kvcsa_session       *s;
        kvcsa_reuse          r;

        p.salt = store;
        p.window_store_tokens = store;
        s = open_session(pool, &p);
        go_on(pool, s, &a, end);
        kvcsa_session_release(&s);

        s = open_session(pool, &p);
        go_on(pool, s, &a, end + 2);
        r = reuse_of(s);
        assert_int_equal(r.n_adopted, from);
        assert_int_equal(r.n_compute, end + 2 - from);
        assert_int_equal(r.n_replay, store ? 0 : REPLAY);
        assert_int_equal(r.how, KVCSA_REUSE_EXACT);
        assert_ok(kvcsa_pool_check(pool, &err));
        kvcsa_session_release(&s);
    }
    close_pool(pool);
}

/* ------------------------------------------------------------------ beside the CPU */

/* The kernels round queries and probabilities to bf16, 2^-9 of each, where the CPU keeps floats, and sum in another order. In
 * logits of the random model that is 0.001 to 0.04 of their root mean square as long as both choose the same entries and experts
 * (0.003 to 0.02 with the trained one). Where a rounding flips a choice, in one row of seven, a row may lie anywhere: up to 1.1
 * was seen. Rows of different tokens are 2.8 and more apart. So half of the rows must be near, nine of ten nearer than others. */
static const double same_choice = 0.1, other_choice = 1.7; /* times the root mean square of the CPU's logits */

static double root_mean_square(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum / (double)n);
}

/* The largest difference, in root mean squares of x. */
static double difference(const float *x, const float *y, size_t n)
{
    double largest = 0;

    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)x[i] - (double)y[i]));
    return largest / root_mean_square(x, n);
}

/* ------------------------------------------------------------------ snapshots */

static void save(kvcsa_session *s, uint32_t flags, snap_bytes *to)
{
    const kvcsa_snapshot_params p = snap_params(NULL, flags);
    const kvcsa_writer          w = {snap_take, to};
    uint64_t                    n = 0;
    kvcsa_error                 err;

    assert_ok(kvcsa_snapshot_size(s, &p, &n, &err));
    *to = (snap_bytes){.data = malloc(n), .n = n};
    assert_non_null(to->data);
    assert_ok(kvcsa_snapshot_write(s, &w, &p, NULL, &err));
    assert_int_equal(to->at, n);
}

static kvcsa_status load(kvcsa_session *s, snap_bytes *from, uint32_t flags, kvcsa_error *err)
{
    const kvcsa_snapshot_params p = snap_params(NULL, flags);
    const kvcsa_reader          r = {snap_give, from};

    from->at = 0;
    return kvcsa_snapshot_read(s, &r, &p, NULL, err);
}

static void test_snapshot(void **state)
{
    const uint64_t n = emulated ? BLOCK + 5 : a.n - 9;
    kvcsa_pool    *pool = open_pool(KVCSA_BACKEND_CUDA), *other;
    kvcsa_session *s = open_session(pool, NULL), *t;
    snap_bytes     whole, bare;
    kvcsa_error    err;

    (void)state;
    go_on(pool, s, &a, n);
    save(s, KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS, &whole);
    save(s, 0, &bare);
    assert_true(bare.n < whole.n);
    kvcsa_session_release(&s);
    close_pool(pool);

    other = open_pool(KVCSA_BACKEND_CUDA);
    t = open_session(other, NULL);
    assert_ok(load(t, &whole, 0, &err));
    assert_int_equal(kvcsa_session_length(t), n);
    assert_int_equal(n_replay(t), 0);
    assert_cold(&a, t);
    go_on(other, t, &a, n + 1);
    assert_ok(load(t, &bare, 0, &err));
    assert_int_equal(n_replay(t), REPLAY);
    go_on(other, t, &a, n + 1);
    kvcsa_session_release(&t);
    close_pool(other);
    free(whole.data);
    free(bare.data);
}

/* A snapshot of the other side's bits is refused, and what is held stays; it can be asked for, and then it goes on near by. */
static void test_snapshot_of_the_cpu(void **state)
{
    const uint32_t   backends[] = {KVCSA_BACKEND_CPU, KVCSA_BACKEND_CUDA};
    const uint64_t   n = BLOCK + 5;
    snap_bytes       bytes;
    kvcsa_pool      *pool;
    kvcsa_session   *s;
    kvcsa_error      err;
    float            logits[2][MAX_VOCAB];
    kvcsa_pool_stats st = {.struct_size = sizeof st};

    (void)state;
    pool = open_pool(KVCSA_BACKEND_CPU);
    s = open_session(pool, NULL);
    host_run(pool, s, a.ids, n, NULL);
    save(s, KVCSA_SNAPSHOT_WINDOW, &bytes);
    kvcsa_session_release(&s);
    close_pool(pool);
    for (size_t i = 0; i < 2; i++) {
        pool = open_pool(backends[i]);
        s = open_session(pool, NULL);
        if (backends[i] == KVCSA_BACKEND_CUDA) {
            go_on(pool, s, &a, 2);
            assert_fails(load(s, &bytes, 0, &err), KVCSA_ERR_MISMATCH, "snapshot is of numerics");
            assert_int_equal(kvcsa_session_length(s), 2);
            go_on(pool, s, &a, 3);
        }
        assert_ok(load(s, &bytes, KVCSA_SNAPSHOT_ANY_NUMERICS, &err));
        assert_int_equal(kvcsa_session_length(s), n);
        host_run(pool, s, a.ids + n, 1, NULL);
        host_logits(s, logits[i], vocab);
        assert_ok(kvcsa_pool_get_stats(pool, &st, &err));
        /* entries of other bits are nobody else's */
        assert_int_equal(st.n_published_blocks, backends[i] == KVCSA_BACKEND_CPU ? 1 : 0);
        kvcsa_session_release(&s);
        close_pool(pool);
    }
    assert_true(difference(logits[0], logits[1], vocab) < other_choice);
    free(bytes.data);
}

static int by_size(const void *x, const void *y)
{
    const double p = *(const double *)x, q = *(const double *)y;

    return (p > q) - (p < q);
}

/* The same tokens on the CPU: the same work, but for which blocks the selected entries lie in, and logits near by. */
static void test_beside_the_cpu(void **state)
{
    skip_where_slow();

    kvcsa_pool    *pool = open_pool(KVCSA_BACKEND_CPU);
    kvcsa_session *s = open_session(pool, NULL);
    host_rows      rows = host_rows_make(a.n, vocab);
    double        *apart = malloc(a.n * sizeof *apart);
    kvcsa_error    err;

    (void)state;
    assert_non_null(apart);
    host_run(pool, s, a.ids, a.n, &rows);
    for (uint32_t l = 0; l < LAYERS; l++) {
        kvcsa_work total;

        assert_ok(kvcsa_session_layer_work(s, l, NULL, &total, &err));
        assert_int_equal(total.n_rows, a.n);
        if (work_differs(&a.work[l], &total, WORK_BUT_PARTS))
            fail_msg("layer %u: %s", l, work_differs(&a.work[l], &total, WORK_BUT_PARTS));
    }
    for (size_t i = 0; i < a.n; i++) {
        apart[i] = difference(rows.data + i * vocab, row_of(&a, i), vocab);
        assert_true(i == 0 || difference(rows.data + i * vocab, row_of(&a, i - 1), vocab) > other_choice);
    }
    qsort(apart, a.n, sizeof *apart, by_size);
    if (apart[a.n / 2] > same_choice || apart[a.n * 9 / 10] > other_choice)
        fail_msg("half of the rows differ by %g and more, a tenth by %g", apart[a.n / 2], apart[a.n * 9 / 10]);
    free(apart);
    free(rows.data);
    kvcsa_session_release(&s);
    close_pool(pool);
}

/* A model that has been taught: where the CPU is sure of a token the device chooses it too. */
static void test_trained_model(void **state)
{
    skip_where_slow();

    enum { N = 7 };
    static const char text[] = "It was a dark and stormy night; the wind blew hard";
    const uint32_t    backends[] = {KVCSA_BACKEND_CPU, KVCSA_BACKEND_CUDA};
    kvcsa_model      *tiny = host_model(TINY_DIR);
    kvcsa_model_info  info = {.struct_size = sizeof info};
    host_rows         rows[2];
    kvcsa_work        work[2][16];
    size_t            n = 0;
    int32_t           ids[64];
    kvcsa_error       err;

    (void)state;
    assert_ok(kvcsa_model_get_info(tiny, &info, &err));
    assert_true(info.n_layers <= 16 && info.vocab_tokens <= MAX_VOCAB);
    assert_ok(kvcsa_model_tokenize(tiny, text, sizeof text - 1, 0, ids, 64, &n, &err));
    assert_true(n >= N);
    for (size_t i = 0; i < 2; i++) {
        kvcsa_pool    *pool = open_pool(backends[i]);
        kvcsa_session *s = host_session(pool, tiny, 0);

        rows[i] = host_rows_make(N, info.vocab_tokens);
        host_run(pool, s, ids, N, &rows[i]);
        for (uint32_t l = 0; l < info.n_layers; l++)
            assert_ok(kvcsa_session_layer_work(s, l, NULL, &work[i][l], &err));
        kvcsa_session_release(&s);
        close_pool(pool);
    }
    for (uint32_t l = 0; l < info.n_layers; l++)
        assert_null(work_differs(&work[1][l], &work[0][l], 0)); /* so few entries are all selected */
    for (size_t i = 0; i < N; i++) {
        const float *x = rows[0].data + i * info.vocab_tokens, *y = rows[1].data + i * info.vocab_tokens;
        const double bound = same_choice * root_mean_square(x, info.vocab_tokens);
        size_t       first = 0, top = 0;
        double       second = -INFINITY;

        for (size_t j = 1; j < info.vocab_tokens; j++) {
            first = x[j] > x[first] ? j : first;
            top = y[j] > y[top] ? j : top;
        }
        for (size_t j = 0; j < info.vocab_tokens; j++)
            if (j != first)
                second = fmax(second, (double)x[j]);
        assert_true(difference(x, y, info.vocab_tokens) < same_choice);
        if ((double)x[first] - second > 2 * bound) /* both logits may have moved */
            assert_int_equal(top, first);
    }
    free(rows[0].data);
    free(rows[1].data);
    kvcsa_model_release(&tiny);
}

/* ------------------------------------------------------------------ what the device is and has */

static void test_what_computes(void **state)
{
    kvcsa_pool        *pool = open_pool(KVCSA_BACKEND_CUDA);
    kvcsa_backend_info info = {.struct_size = sizeof info};
    kvi_device_info    device;
    kvcsa_error        err;

    (void)state;
    gpu_ops->describe(gpu, &device);
    assert_ok(kvcsa_pool_get_backend(pool, &info, &err));
    assert_int_equal(info.backend, KVCSA_BACKEND_CUDA);
    assert_int_equal(info.reference, 0);
    assert_string_equal(info.name, "cuda");
    assert_string_equal(info.device, device.name);
    assert_string_equal(info.kernels, device.kernels);
    assert_int_equal(info.numerics, device.numerics);
    assert_int_equal(info.memory_bytes, device.memory);
    assert_in_range(info.memory_free_bytes, 1, info.memory_bytes);
    assert_non_null(strstr(info.features, "head width 32 to 512 in steps of 32"));
    close_pool(pool);
}

/* A model that the CPU runs, with heads wider than the kernels can take. */
static void test_model_that_is_too_wide(void **state)
{
    static const char *const changes[] = {"text_config/head_dim", "544", NULL};
    kvcsa_model             *wide = make_model("wide", changes);
    kvcsa_pool              *pool = open_pool(KVCSA_BACKEND_CPU);
    kvcsa_session           *s = host_session(pool, wide, 0);
    kvcsa_error              err;

    (void)state;
    host_run(pool, s, a.ids, 1, NULL);
    kvcsa_session_release(&s);
    close_pool(pool);
    pool = open_pool(KVCSA_BACKEND_CUDA);
    assert_fails(kvcsa_session_create(pool, wide, NULL, &s, &err), KVCSA_ERR_UNSUPPORTED,
                 "cuda: head width 544; it has kernels for 32 to 512 in steps of 32");
    assert_null(s);
    s = open_session(pool, NULL); /* the pool is as good as before */
    go_on(pool, s, &a, 1);
    kvcsa_session_release(&s);
    close_pool(pool);
    kvcsa_model_release(&wide);
}

/* ------------------------------------------------------------------ no room on the device */

static void assert_no_room(kvcsa_status st, const kvcsa_error *err)
{
    if (st != KVCSA_ERR_NOMEM || !(strstr(err->text, "no room on emulated") || strstr(err->text, "of cuda: out of memory")))
        fail_msg("%s: %s", kvcsa_status_name(st), err->text);
}

typedef struct attempt {
    kvcsa_pool    *pool;
    kvcsa_session *s;
} attempt;

static kvcsa_status try_pool(attempt *t, kvcsa_error *err)
{
    const kvcsa_pool_params p = pool_params(KVCSA_BACKEND_CUDA);

    return kvcsa_pool_create(&p, &t->pool, err);
}

static kvcsa_status try_session(attempt *t, kvcsa_error *err)
{
    return kvcsa_session_create(t->pool, model, NULL, &t->s, err);
}

static kvcsa_status try_step(attempt *t, kvcsa_error *err)
{
    return kvcsa_pool_step(t->pool, &t->s, 1, NULL, NULL, err);
}

/* Each allocation of the device in the call fails in turn; the call is made again until none does. How often it failed. */
static long fail_each(attempt *t, kvcsa_status (*call)(attempt *t, kvcsa_error *err))
{
    kvcsa_status st;
    kvcsa_error  err;
    long         n = 0;

    for (;; n++) {
        emu.fail_alloc(n);
        st = call(t, &err);
        emu.fail_alloc(-1);
        if (st == KVCSA_OK)
            return n;
        assert_no_room(st, &err);
        assert_true(n < 100);
    }
}

static void test_each_allocation_fails_once(void **state)
{
    attempt     t = {NULL, NULL};
    kvcsa_error err;

    (void)state;
    if (!emulated)
        skip();
    fail_each(&t, try_pool);
    assert_true(fail_each(&t, try_session) > 0);
    assert_ok(kvcsa_session_append(t.s, a.ids, 1, NULL, NULL, &err));
    assert_true(fail_each(&t, try_step) > 0);
    assert_cold(&a, t.s);
    assert_ok(kvcsa_session_append(t.s, a.ids + 1, BLOCK + 1, NULL, NULL, &err)); /* more rows, another block */
    fail_each(&t, try_step); /* what grows is given back before the call fails, so that one refusal need not be told */
    assert_int_equal(kvcsa_session_length(t.s), BLOCK + 2);
    assert_cold(&a, t.s);
    kvcsa_session_release(&t.s);
    close_pool(t.pool);
}

/* The device is full for as long as it lasts. */
static void test_full_device(void **state)
{
    kvcsa_pool       *pool;
    kvcsa_session    *s;
    kvcsa_step_result result = {.n_queued = 0};
    kvcsa_error       err;

    (void)state;
    if (!emulated)
        skip();
    pool = open_pool(KVCSA_BACKEND_CUDA);
    s = open_session(pool, NULL);
    go_on(pool, s, &a, 1);
    emu.device_memory(emu.outstanding());
    assert_ok(kvcsa_session_append(s, a.ids + 1, 9, NULL, NULL, &err));
    for (int i = 0; i < 2; i++) {
        assert_fails(kvcsa_pool_step(pool, &s, 1, NULL, &result, &err), KVCSA_ERR_NOMEM, "no room on emulated, a device of cuda");
        assert_int_equal(result.error.status, KVCSA_ERR_NOMEM);
        assert_int_equal(result.n_queued, 9);
        assert_int_equal(kvcsa_session_length(s), 1);
        assert_cold(&a, s);
        assert_ok(kvcsa_pool_check(pool, &err));
    }
    emu.device_memory((size_t)4 << 30);
    host_step(pool, s);
    assert_int_equal(kvcsa_session_length(s), 10);
    assert_cold(&a, s);
    kvcsa_session_release(&s);
    close_pool(pool);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(test_pieces, set_order),
    cmocka_unit_test_setup(test_batch, set_order),
    cmocka_unit_test_setup(test_fork_rewind_sync, set_order),
    cmocka_unit_test_setup(test_prefix, set_order),
    cmocka_unit_test_setup(test_snapshot, set_order),
    cmocka_unit_test_setup(test_snapshot_of_the_cpu, set_order),
    cmocka_unit_test(test_beside_the_cpu),
    cmocka_unit_test_setup(test_trained_model, set_order),
    cmocka_unit_test(test_what_computes),
    cmocka_unit_test(test_model_that_is_too_wide),
    cmocka_unit_test_setup(test_each_allocation_fails_once, set_order),
    cmocka_unit_test_setup(test_full_device, set_order),
};

int main(int argc, char **argv)
{
    cuda_arguments(argc, argv);
    cuda_folder(folder, sizeof folder);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
