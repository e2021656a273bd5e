/* Faults that are planted into the cache of a session, and seen by a comparison of its logits with
 * those of an undisturbed run: one entry that is zero, one that was rotated for a wrong position,
 * one candidate block that is dropped. On the random checkpoint T1. */
#include "session/session_int.h"
#include "support/host.h"

#include "format/row.h"
#include "net/rope.h"

enum {
    N = 150,
    AT = 130,       /* faults are planted here */
    WIDTH = 96,     /* of an entry; the last ROTATED channels are rotated */
    ROW_BYTES = 54, /* that it is stored in */
    ROTATED = 32,
    TOP = 8, /* entries that a row selects */
    LAYERS = 10,
    GATED = 2,    /* owner of one entry for two tokens; its selection is read by 2 and 3 */
    SOURCE = 5,   /* owner of one entry a token; ranks candidate blocks, read by 5 and 6 */
    CONSUMER = 7, /* selects from those blocks, read by 7, 8 and 9 */
    BLOCK = 4     /* entries of a candidate block */
};

/* What a run decided. */
typedef struct decisions {
    float   latent[N / 2][WIDTH]; /* of layer GATED, in front of the quantiser */
    int32_t top[LAYERS][N][TOP];  /* by row since the tap was set */
    size_t  n_latent, n_top[LAYERS];
} decisions;

typedef struct fixture {
    kvcsa_model *model;
    kvcsa_pool  *pool;
    int32_t      ids[N];
    host_rows    rows; /* logits of an undisturbed run */
    decisions    seen; /* its decisions */
} fixture;

static void see(void *user, uint32_t kind, uint32_t layer, const void *data, size_t n_rows,
                size_t width)
{
    decisions *d = user;

    if (kind == KVI_TAP_MAIN && layer == GATED) {
        assert_int_equal(width, WIDTH);
        assert_true(d->n_latent + n_rows <= N / 2);
        memcpy(d->latent[d->n_latent], data, n_rows * sizeof d->latent[0]);
        d->n_latent += n_rows;
    }
    if (kind == KVI_TAP_TOPK) {
        assert_int_equal(width, TOP);
        assert_true(layer < LAYERS && d->n_top[layer] + n_rows <= N);
        memcpy(d->top[layer][d->n_top[layer]], data, n_rows * sizeof d->top[0][0]);
        d->n_top[layer] += n_rows;
    }
}

static kvcsa_session *private_session(const fixture *f)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.flags = KVCSA_SESSION_PRIVATE; /* its blocks are its own */
    assert_ok(kvcsa_session_create(f->pool, f->model, &p, &s, &err));
    return s;
}

static int set_up(void **state)
{
    fixture       *f = calloc(1, sizeof *f);
    const kvi_tap  tap = {see, f ? &f->seen : NULL};
    kvcsa_session *s;

    assert_non_null(f);
    f->model = host_model(T1_DIR);
    f->pool = host_pool(2, 0);
    host_tokens(f->ids, N, 33);
    f->rows = host_rows_make(N, T1_VOCAB);
    s = private_session(f);
    kvi_session_set_reference(s, 0, &tap);
    host_run(f->pool, s, f->ids, N, &f->rows);
    assert_int_equal(f->rows.n, N);
    assert_int_equal(f->seen.n_latent, N / 2);
    assert_int_equal(f->seen.n_top[GATED], N);
    assert_int_equal(f->seen.n_top[CONSUMER], N);
    kvcsa_session_release(&s);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    host_pool_is_idle(f->pool);
    kvcsa_pool_release(&f->pool);
    kvcsa_model_release(&f->model);
    free(f->rows.data);
    free(f);
    return 0;
}

/* ------------------------------------------------------------------ who selected what */

static int selects(const int32_t *top, int32_t first, int32_t n)
{
    for (int k = 0; k < TOP; k++)
        if (top[k] >= first && top[k] < first + n)
            return 1;
    return 0;
}

/* First row behind the fault whose selection in one of the layers holds one of the entries; N = no
 * row. */
static size_t first_reader(const decisions *d, const uint32_t *layers, size_t n_layers,
                           int32_t first, int32_t n)
{
    for (size_t row = AT; row < N; row++)
        for (size_t i = 0; i < n_layers; i++)
            if (selects(d->top[layers[i]][row], first, n))
                return row;
    return N;
}

/* Of groups of n entries that lie wholly in front of the fault: one that some row behind it reads,
 * but not the first of these rows. */
static int32_t choose_victim(const decisions *d, const uint32_t *layers, size_t n_layers,
                             int32_t n_entries, int32_t n, size_t *row)
{
    for (int32_t first = 0; first + n <= n_entries; first += n) {
        *row = first_reader(d, layers, n_layers, first, n);
        if (*row > AT && *row < N)
            return first;
    }
    fail_msg("no entry will do: other tokens are needed");
    return -1;
}

/* ------------------------------------------------------------------ the cache of a session */

static uint8_t *main_row(kvcsa_session *s, uint32_t layer, uint32_t entry)
{
    const kvi_kv_owner *o = kvi_kv_layout_owner(&s->model->layout, layer);
    kvcsa_error         err;

    assert_non_null(o);
    assert_int_equal(o->entry_width, WIDTH);
    assert_int_equal(o->entry_format, KVCSA_FORMAT_FP4_E4M3_G16);
    assert_ok(kvi_session_view(s, 0, &err));
    return ((uint8_t **)s->main_parts.data)[entry / o->rows_per_block] +
           kvi_kv_main_row_off(o, entry % o->rows_per_block);
}

static void zero_key(kvcsa_session *s, uint32_t layer, uint32_t entry)
{
    const kvi_kv_owner *o = kvi_kv_layout_owner(&s->model->layout, layer);
    const uint32_t      row = entry % o->rows_per_block;
    uint8_t            *part;
    kvcsa_error         err;

    assert_ok(kvi_session_view(s, 0, &err));
    part = ((uint8_t **)s->index_parts.data)[entry / o->rows_per_block];
    memset(part + kvi_kv_index_values_off(o, row), 0, o->index_value_bytes);
}

/* The row of an entry of layer GATED as if it had been made `shift` tokens later. */
static void encode_rotated(const fixture *f, uint32_t entry, uint64_t shift, uint8_t *row)
{
    const uint64_t  right = 2 * entry;
    const uint64_t  wrong = right + shift;
    float           freqs[ROTATED / 2];
    float           x[WIDTH];
    kvi_rope_params p = {.x = x,
                         .freqs = freqs,
                         .pos = &right,
                         .row_stride = WIDTH,
                         .n_rows = 1,
                         .n_heads = 1,
                         .width = WIDTH,
                         .n_rotated = ROTATED,
                         .inverse = 1};
    kvcsa_error     err;

    memcpy(x, f->seen.latent[entry], sizeof x);
    kvi_rope_freqs(&f->model->config, 1, freqs);
    if (shift) {
        assert_ok(kvi_pool_ops(f->pool)->rope(kvi_pool_device(f->pool), &p, &err));
        p.pos = &wrong;
        p.inverse = 0;
        assert_ok(kvi_pool_ops(f->pool)->rope(kvi_pool_device(f->pool), &p, &err));
    }
    assert_int_equal(kvi_row_encode(KVCSA_FORMAT_FP4_E4M3_G16, x, WIDTH, row), 0);
}

/* ------------------------------------------------------------------ running and comparing */

static kvcsa_session *run_to_fault(const fixture *f)
{
    kvcsa_session *s = private_session(f);

    host_run(f->pool, s, f->ids, AT, NULL);
    return s;
}

/* The rest of the tokens; rows [AT, N) against those of the undisturbed run. The session is
 * released. */
static kvcsa_compare *run_rest(const fixture *f, kvcsa_session *s)
{
    host_rows      rows = host_rows_make(N - AT, T1_VOCAB);
    kvcsa_compare *c = NULL;
    kvcsa_error    err;

    rows.next = AT;
    host_run(f->pool, s, f->ids + AT, N - AT, &rows);
    assert_int_equal(rows.n, N - AT);
    assert_true(rows.in_order);
    assert_ok(kvcsa_compare_create(NULL, &c, &err));
    for (size_t i = AT; i < N; i++)
        assert_ok(kvcsa_compare_add(c, i, i + 1 < N ? f->ids[i + 1] : -1,
                                    f->rows.data + i * T1_VOCAB, rows.data + (i - AT) * T1_VOCAB,
                                    T1_VOCAB, &err));
    free(rows.data);
    kvcsa_session_release(&s);
    return c;
}

/* Nothing is seen in front of the row that reads the fault first, and there it is. */
static void check_seen_from(kvcsa_compare *c, size_t first)
{
    kvcsa_compare_result r = {.struct_size = sizeof r};
    kvcsa_compare_row    rows[N - AT];
    size_t               n = 0;
    kvcsa_error          err;

    assert_ok(kvcsa_compare_get_rows(c, 0, rows, N - AT, &n, &err));
    assert_int_equal(n, N - AT);
    for (size_t i = 0; i < first - AT; i++) {
        assert_int_equal(rows[i].equal, 1);
        assert_true(rows[i].kl == 0);
    }
    assert_int_equal(rows[first - AT].equal, 0);
    assert_true(rows[first - AT].kl > 1e-9);
    assert_ok(kvcsa_compare_get_result(c, &r, &err));
    assert_true(r.kl_max > 1e-4);
    assert_true(r.n_equal_rows >= first - AT && r.n_equal_rows < N - AT);
    kvcsa_compare_release(&c);
}

static void check_not_seen(kvcsa_compare *c)
{
    kvcsa_compare_result r = {.struct_size = sizeof r};
    kvcsa_error          err;

    assert_ok(kvcsa_compare_get_result(c, &r, &err));
    assert_int_equal(r.n_rows, N - AT);
    assert_int_equal(r.n_equal_rows, N - AT);
    assert_true(r.kl_max == 0 && r.max_difference == 0);
    kvcsa_compare_release(&c);
}

/* ------------------------------------------------------------------ tests */

/* The same bytes written again are no fault. */
static void test_an_untouched_session_prints_zero(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = run_to_fault(f);
    uint8_t       *row = main_row(s, GATED, 5);
    uint8_t        again[ROW_BYTES];

    check_not_seen(run_rest(f, run_to_fault(f)));
    encode_rotated(f, 5, 0, again);
    assert_memory_equal(row, again, sizeof again); /* the latent is that of this entry */
    memcpy(row, again, sizeof again);
    check_not_seen(run_rest(f, s));
}

static void test_a_zeroed_entry_is_seen(void **state)
{
    static const uint32_t gated[] = {GATED};
    static const uint32_t plain[] = {SOURCE, CONSUMER};
    const fixture        *f = *state;
    kvcsa_session        *s = run_to_fault(f);
    size_t                row = 0;
    int32_t               victim = choose_victim(&f->seen, gated, 1, AT / 2, 1, &row);

    memset(main_row(s, GATED, (uint32_t)victim), 0, ROW_BYTES);
    check_seen_from(run_rest(f, s), row);
    s = run_to_fault(f);
    victim = choose_victim(&f->seen, plain, 2, AT, 1, &row);
    memset(main_row(s, SOURCE, (uint32_t)victim), 0, ROW_BYTES);
    check_seen_from(run_rest(f, s), row);
}

static void test_a_wrong_rotation_is_seen(void **state)
{
    static const uint32_t gated[] = {GATED};
    const fixture        *f = *state;
    kvcsa_session        *s = run_to_fault(f);
    size_t                row = 0;
    const uint32_t        victim = (uint32_t)choose_victim(&f->seen, gated, 1, AT / 2, 1, &row);
    uint8_t               wrong[ROW_BYTES];

    encode_rotated(f, victim, 1, wrong); /* the position of the entry's second token */
    assert_memory_not_equal(main_row(s, GATED, victim), wrong, sizeof wrong);
    memcpy(main_row(s, GATED, victim), wrong, sizeof wrong);
    check_seen_from(run_rest(f, s), row);
}

/* Without keys the entries of a candidate block score nothing: no row selects them any more. */
static void test_a_dropped_candidate_block_is_seen(void **state)
{
    static const uint32_t layers[] = {SOURCE, CONSUMER};
    const fixture        *f = *state;
    kvcsa_session        *s = run_to_fault(f);
    decisions            *d = calloc(1, sizeof *d);
    const kvi_tap         tap = {see, d};
    size_t                row = 0;
    const int32_t         victim = choose_victim(&f->seen, layers, 2, AT, BLOCK, &row);
    kvcsa_compare        *c;
    kvcsa_compare_row     first;
    size_t                n = 0;
    kvcsa_error           err;

    assert_non_null(d);
    for (int32_t i = 0; i < BLOCK; i++)
        zero_key(s, SOURCE, (uint32_t)(victim + i));
    kvi_session_set_reference(s, 0, &tap);
    c = run_rest(f, s);
    assert_int_equal(d->n_top[SOURCE], N - AT);
    for (size_t i = 0; i < N - AT; i++) {
        assert_false(selects(d->top[SOURCE][i], victim, BLOCK));
        assert_false(selects(d->top[CONSUMER][i], victim, BLOCK));
    }
    /* rows in front may have lost a candidate that they did not select, and got another */
    assert_ok(kvcsa_compare_get_rows(c, row - AT, &first, 1, &n, &err));
    assert_int_equal(first.position, row);
    assert_int_equal(first.equal, 0);
    assert_true(first.kl > 1e-6);
    kvcsa_compare_release(&c);
    free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_untouched_session_prints_zero),
        cmocka_unit_test(test_a_zeroed_entry_is_seen),
        cmocka_unit_test(test_a_wrong_rotation_is_seen),
        cmocka_unit_test(test_a_dropped_candidate_block_is_seen),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
