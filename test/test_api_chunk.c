/* A host with heads of its own (MHA, GQA, MQA) keeps its keys and values in a pool: attention
 * against plain sums in double, and the same bits whatever way they came there. */
#include "support/heads_host.h"
#include "support/snap.h"

enum { N = 300, CAP = N * HH_KV * HH_WIDTH };

static const hh_attention plain = {0};

/* Softmax over rows that the session gives back, in double. */
static void naive(const float *keys, const float *values, const float *q, uint64_t n_visible,
                  uint32_t head, const hh_attention *as, double *out)
{
    const uint32_t kv = head / (HH_HEADS / HH_KV);
    const double   scale = as->scale != 0.0f ? (double)as->scale : 1.0 / sqrt((double)HH_WIDTH);
    double         p[N], most = -INFINITY, sum = 0;

    for (uint64_t j = 0; j < n_visible; j++) {
        p[j] = 0;
        for (uint32_t c = 0; c < HH_WIDTH; c++)
            p[j] += (double)q[c] * (double)keys[(j * HH_KV + kv) * HH_WIDTH + c];
        p[j] *= scale;
        most = fmax(most, p[j]);
    }
    for (uint64_t j = 0; j < n_visible; j++)
        sum += p[j] = exp(p[j] - most);
    if (as->sink)
        sum += exp((double)as->sink[head] - most);
    memset(out, 0, HH_WIDTH * sizeof *out);
    for (uint64_t j = 0; j < n_visible; j++)
        for (uint32_t c = 0; c < HH_WIDTH; c++)
            out[c] += p[j] / sum * (double)values[(j * HH_KV + kv) * HH_WIDTH + c];
}

/* Sums of N products of values in -1 .. 1 (after quantisation 2 at most), each rounded to f32:
 * a row of scores is off by 2 x 2 x WIDTH x eps, a probability by as much, relatively, and the
 * exponential's own error; the result, a mean of values, likewise. */
#define BOUND (64.0 * 4.0 * HH_WIDTH * 0x1p-24)

static void check_attention(kvcsa_session *s, const int32_t *ids, const hh_attention *as,
                            const hh_out *out)
{
    float      *keys = malloc(2 * CAP * sizeof *keys), *values = keys + CAP;
    kvcsa_error err;

    assert_non_null(keys);
    for (uint32_t l = 0; l < HH_LAYERS; l++) {
        assert_ok(kvcsa_session_read_rows(s, l, KVCSA_READ_KEYS, 0, N, keys, CAP, &err));
        assert_ok(kvcsa_session_read_rows(s, l, KVCSA_READ_VALUES, 0, N, values, CAP, &err));
        for (uint64_t pos = 0; pos < N; pos += pos < 140 ? 1 : 13)
            for (uint32_t h = 0; h < HH_HEADS; h++) {
                float  q[HH_WIDTH];
                double want[HH_WIDTH];

                for (uint32_t c = 0; c < HH_WIDTH; c++)
                    q[c] = hh_value(HH_QUERY, l, ids[pos], pos, h, c);
                naive(keys, values, q, pos + 1, h, as, want);
                for (uint32_t c = 0; c < HH_WIDTH; c++)
                    if (!(fabs(want[c] - (double)hh_out_row(out, pos, l)[h * HH_WIDTH + c]) <=
                          BOUND))
                        fail_msg("layer %u, position %llu, head %u, channel %u: %g, expected %g", l,
                                 (unsigned long long)pos, h, c,
                                 (double)hh_out_row(out, pos, l)[h * HH_WIDTH + c], want[c]);
            }
    }
    free(keys);
}

/* A row that is stored and read back: the same to so many bits of the largest value. */
static void check_stored(kvcsa_session *s, const int32_t *ids, double bound)
{
    float      *rows = malloc(CAP * sizeof *rows);
    kvcsa_error err;

    assert_non_null(rows);
    for (uint32_t l = 0; l < HH_LAYERS; l++)
        for (uint32_t what = HH_KEY; what <= HH_VALUE; what++) {
            assert_ok(kvcsa_session_read_rows(
                s, l, what == HH_KEY ? KVCSA_READ_KEYS : KVCSA_READ_VALUES, 0, N, rows, CAP, &err));
            for (uint64_t i = 0; i < CAP; i++) {
                const uint64_t pos = i / (HH_KV * HH_WIDTH);
                const float x = hh_value(what, l, ids[pos], pos, (uint32_t)(i / HH_WIDTH % HH_KV),
                                         (uint32_t)(i % HH_WIDTH));

                assert_true(fabs((double)x - (double)rows[i]) <= bound);
            }
        }
    free(rows);
}

/* ------------------------------------------------------------------ tests */

static void test_chunk_attention_in_every_format(void **state)
{
    /* half a step of the format where values are largest, 1; scales of groups are rounded */
    static const struct {
        uint32_t format;
        double   bound;
    } formats[] = {
        {KVCSA_FORMAT_F32, 0},
        {KVCSA_FORMAT_F16, 0x1p-12},
        {KVCSA_FORMAT_BF16, 0x1p-9},
        {KVCSA_FORMAT_Q8_0, 0x1p-7},
        {KVCSA_FORMAT_FP8_E8M0_G32, 0x1p-4},
        {KVCSA_FORMAT_Q4_0, 0x1p-2},
        {KVCSA_FORMAT_FP4_E4M3_G16, 0.26},
        {KVCSA_FORMAT_FP4_E8M0_G32, 0.51},
    };
    const float        sinks[HH_HEADS] = {0, 1, -1, 3, -50, 0.5f};
    const hh_attention ways[] = {
        {.how = {0, 0}}, {.how = {1, 0}, .sink = sinks}, {.how = {0, 3}, .scale = 0.7f}};
    int32_t ids[N];

    (void)state;
    host_tokens(ids, N, 9);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        kvcsa_pool        *pool = host_pool(2, 0);
        kvcsa_backend_info b = {.struct_size = sizeof b};
        kvcsa_model       *m = hh_model(formats[i].format, 0);
        kvcsa_session     *s = NULL;
        kvcsa_error        err;

        assert_ok(kvcsa_pool_get_backend(pool, &b, &err));
        if (b.paged_formats >> formats[i].format & 1) {
            const hh_attention *as = &ways[i % 3];
            hh_out              out = hh_out_make(N);

            s = hh_session(pool, m, 0);
            hh_append(s, ids, N, 50, as, &out);
            check_stored(s, ids, formats[i].bound);
            check_attention(s, ids, as, &out);
            kvcsa_session_release(&s);
            free(out.data);
        } else {
            kvcsa_session_params p;

            kvcsa_session_params_default(&p, sizeof p);
            p.flags = KVCSA_SESSION_CACHE_ONLY;
            assert_fails(kvcsa_session_create(pool, m, &p, &s, &err), KVCSA_ERR_UNSUPPORTED,
                         "entries");
        }
        kvcsa_model_release(&m);
        host_pool_is_idle(pool);
        kvcsa_pool_release(&pool);
    }
}

typedef struct fixture {
    kvcsa_model *model;
    kvcsa_pool  *pool;
    int32_t      ids[N];
    hh_out       cold; /* of one undisturbed run */
} fixture;

static int set_up(void **state)
{
    fixture       *f = calloc(1, sizeof *f);
    kvcsa_session *s;

    assert_non_null(f);
    f->model = hh_model(KVCSA_FORMAT_BF16, 64);
    f->pool = host_pool(2, 0);
    host_tokens(f->ids, N, 21);
    f->cold = hh_out_make(N);
    s = hh_session(f->pool, f->model, 1);
    hh_append(s, f->ids, N, 0, &plain, &f->cold);
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
    free(f->cold.data);
    free(f);
    return 0;
}

static void same_from(const fixture *f, const hh_out *out, uint64_t from)
{
    assert_memory_equal(hh_out_row(out, from, 0), hh_out_row(&f->cold, from, 0),
                        (N - from) * HH_LAYERS * HH_HEADS * HH_WIDTH * sizeof(float));
}

static void test_chunk_bits_do_not_depend_on_chunks(void **state)
{
    const fixture *f = *state;
    const uint32_t sizes[] = {1, 7, 64, 128};

    for (uint64_t i = 0; i < 4; i++) {
        const hh_attention as = {.how = {(int)i % 2, i}};
        kvcsa_session     *s = hh_session(f->pool, f->model, 10 + i);
        hh_out             out = hh_out_make(N);

        hh_append(s, f->ids, N, sizes[i], &as, &out);
        same_from(f, &out, 0);
        kvcsa_session_release(&s);
        free(out.data);
    }
}

static void test_chunk_prefix_is_shared(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = hh_session(f->pool, f->model, 1), *fork = NULL;
    kvcsa_reuse    reuse = {.struct_size = sizeof reuse};
    hh_out         out = hh_out_make(N);
    hh_count       n;
    kvcsa_error    err;

    assert_ok(kvcsa_session_append(s, f->ids, N, NULL, NULL, &err));
    assert_ok(kvcsa_session_get_reuse(s, &reuse, &err));
    assert_int_equal(reuse.n_adopted, N / 64 * 64);
    n = hh_run(s, 0, &plain, &out);
    assert_int_equal(n.computed, N - N / 64 * 64);
    assert_int_equal(n.replayed, 0); /* no window, nothing to run again */
    same_from(f, &out, N / 64 * 64);

    assert_ok(kvcsa_session_fork(s, 130, NULL, &fork, &err));
    memset(out.data, 0, N * HH_LAYERS * HH_HEADS * HH_WIDTH * sizeof(float));
    n = hh_append(fork, f->ids + 130, N - 130, 33, &plain, &out);
    assert_true(n.computed > 0);
    same_from(f, &out, N - n.computed);
    assert_ok(kvcsa_session_rewind(fork, 71, &err));
    n = hh_append(fork, f->ids + 71, N - 71, 33, &plain, &out);
    same_from(f, &out, N - n.computed); /* the rest is known again */
    assert_int_equal(n.computed, N - N / 64 * 64);

    /* another text behind the same beginning is not confused with it */
    assert_ok(kvcsa_session_rewind(fork, 200, &err));
    hh_append(fork, f->ids, 40, 33, &plain, &out);
    kvcsa_session_release(&fork);
    assert_ok(kvcsa_session_rewind(s, 190, &err));
    n = hh_append(s, f->ids + 190, N - 190, 33, &plain, &out);
    same_from(f, &out, N - n.computed);
    kvcsa_session_release(&s);
    free(out.data);
}

/* The last row once more, for a host that has gone back and wants to choose another token. */
static void test_chunk_last_row_after_a_rewind(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = hh_session(f->pool, f->model, 1);
    hh_out         out = hh_out_make(N);
    hh_count       n;
    kvcsa_error    err;

    hh_append(s, f->ids, N, 0, &plain, &out);
    assert_ok(kvcsa_session_rewind(s, 100, &err));
    memset(out.data, 0, N * HH_LAYERS * HH_HEADS * HH_WIDTH * sizeof(float));
    n = hh_run(s, 0, &plain, &out);
    assert_int_equal(n.computed, 0);
    assert_int_equal(n.replayed, 1);
    assert_memory_equal(hh_out_row(&out, 99, 0), hh_out_row(&f->cold, 99, 0),
                        HH_LAYERS * HH_HEADS * HH_WIDTH * sizeof(float));
    kvcsa_session_release(&s);
    free(out.data);
}

static void test_chunk_snapshot_goes_on(void **state)
{
    const fixture  *f = *state;
    snap_dir        d = snap_dir_make();
    const snap_path path = snap_in(&d, "heads.kvs");
    kvcsa_session  *s = hh_session(f->pool, f->model, 1), *t = NULL;
    kvcsa_pool     *other = host_pool(1, 0);
    hh_out          out = hh_out_make(N);
    kvcsa_error     err;

    hh_append(s, f->ids, 233, 0, &plain, &out);
    assert_ok(kvcsa_snapshot_save(s, path.text, NULL, NULL, &err));
    kvcsa_session_release(&s);
    t = hh_session(other, f->model, 1);
    assert_ok(kvcsa_snapshot_load(t, path.text, NULL, NULL, &err));
    assert_int_equal(kvcsa_session_length(t), 233);
    hh_append(t, f->ids + 233, N - 233, 0, &plain, &out);
    same_from(f, &out, 233);
    kvcsa_session_release(&t);
    host_pool_is_idle(other);
    kvcsa_pool_release(&other);
    snap_dir_remove(&d);
    free(out.data);
}

/* Prefixes that the host asks for by name. */
static void test_chunk_prefix_calls(void **state)
{
    const fixture *f = *state;
    size_t         n = 0;
    kvcsa_error    err;

    assert_ok(kvcsa_prefix_match(f->pool, f->model, 1, f->ids, N, &n, &err));
    assert_int_equal(n, N / 64 * 64);
    assert_ok(kvcsa_prefix_match(f->pool, f->model, 2, f->ids, N, &n, &err));
    assert_int_equal(n, 0);
    assert_ok(kvcsa_prefix_pin(f->pool, f->model, 1, f->ids, 128, &n, &err));
    assert_int_equal(n, 128);
    assert_ok(kvcsa_prefix_unpin(f->pool, f->model, 1, f->ids, 128, &err));
}

/* A budget for one session and a half: prefixes come and go, on a device by way of the host's
 * memory; what comes back has the same bits. */
static void test_chunk_prefixes_come_and_go(void **state)
{
    const fixture    *f = *state;
    const uint64_t    bytes = (N / 64 + 1) * 64 * (uint64_t)HH_LAYERS * HH_KV * HH_WIDTH * 4;
    kvcsa_pool_params p;
    kvcsa_pool_stats  st = {.struct_size = sizeof st};
    kvcsa_pool       *pool = NULL;
    hh_out            out = hh_out_make(N);
    int32_t           others[N];
    kvcsa_error       err;

    kvcsa_pool_params_default(&p, sizeof p);
    p.budget_bytes = bytes * 3 / 2;
    p.host_bytes = bytes * 4;
    assert_ok(kvcsa_pool_create(&p, &pool, &err));
    for (uint64_t round = 0; round < 6; round++) {
        kvcsa_session *s = hh_session(pool, f->model, 1);

        host_tokens(others, N, 100 + round);
        hh_append(s, others, N, 0, &plain, &out);
        kvcsa_session_release(&s);
        s = hh_session(pool, f->model, 1);
        memset(out.data, 0, N * HH_LAYERS * HH_HEADS * HH_WIDTH * sizeof(float));
        hh_append(s, f->ids, N, 0, &plain, &out);
        assert_memory_equal(hh_out_row(&out, N - 1, 0), hh_out_row(&f->cold, N - 1, 0),
                            HH_LAYERS * HH_HEADS * HH_WIDTH * sizeof(float));
        kvcsa_session_release(&s);
        assert_ok(kvcsa_pool_check(pool, &err));
    }
    assert_ok(kvcsa_pool_get_stats(pool, &st, &err));
    assert_true(st.n_evicted_blocks > 0 || st.n_moved_out_blocks > 0);
    if (st.host_budget_bytes)
        assert_true(st.n_moved_in_blocks > 0);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    free(out.data);
}

static void test_chunk_work_is_counted(void **state)
{
    const fixture *f = *state;
    kvcsa_session *s = hh_session(f->pool, f->model, 99);
    uint64_t       n_read = 0, n_blocks = 0;
    const uint64_t entry = 2ull * HH_KV * HH_WIDTH * 2;
    kvcsa_error    err;

    hh_append(s, f->ids, N, 41, &plain, NULL);
    for (uint64_t n = 1; n <= N; n++) {
        n_read += n;
        n_blocks += (n + 63) / 64;
    }
    for (uint32_t l = 0; l < HH_LAYERS; l++) {
        kvcsa_work w;

        assert_ok(kvcsa_session_layer_work(s, l, NULL, &w, &err));
        assert_int_equal(w.n_rows, N);
        assert_int_equal(w.n_entries_written, N);
        assert_int_equal(w.written_bytes, N * entry);
        assert_int_equal(w.n_entries_read, n_read);
        assert_int_equal(w.n_blocks_touched, n_blocks);
        assert_int_equal(w.read_bytes, n_read * entry);
    }
    kvcsa_session_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunk_attention_in_every_format),
        cmocka_unit_test(test_chunk_bits_do_not_depend_on_chunks),
        cmocka_unit_test(test_chunk_prefix_is_shared),
        cmocka_unit_test(test_chunk_last_row_after_a_rewind),
        cmocka_unit_test(test_chunk_snapshot_goes_on),
        cmocka_unit_test(test_chunk_prefix_calls),
        cmocka_unit_test(test_chunk_prefixes_come_and_go),
        cmocka_unit_test(test_chunk_work_is_counted),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
