/* kvcsa_model_from_plan: rows of the caller's become a model that gives them back, with the costs
 * that they have. */
#include <stdio.h>

#include "support/fault_alloc.h"
#include "support/heads_host.h"

#define FIRST_ROW_SIZE offsetof(kvcsa_plan_row, kv_heads)

/* Every answer about bytes. */
static void assert_same_costs(const kvcsa_model *a, const kvcsa_model *b, uint64_t max_tokens)
{
    const uint64_t lengths[] = {0, 1, 127, 128, 1000, max_tokens};

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const uint64_t       n = lengths[i] < max_tokens ? lengths[i] : max_tokens;
        const kvcsa_cost     x = cost_of(a, n), y = cost_of(b, n);
        kvcsa_estimate       ex = {.struct_size = sizeof ex}, ey = {.struct_size = sizeof ey};
        kvcsa_serving_cost   sx = {.struct_size = sizeof sx}, sy = {.struct_size = sizeof sy};
        kvcsa_resume_cost    rx = {.struct_size = sizeof rx}, ry = {.struct_size = sizeof ry};
        kvcsa_serving_params sp;
        kvcsa_resume_params  rp;
        kvcsa_error          err;

        assert_memory_equal(&x, &y, sizeof x);
        assert_ok(kvcsa_model_estimate(a, NULL, n, 3, n / 2, &ex, &err));
        assert_ok(kvcsa_model_estimate(b, NULL, n, 3, n / 2, &ey, &err));
        assert_memory_equal(&ex, &ey, sizeof ex);
        kvcsa_serving_params_default(&sp, sizeof sp);
        sp.n_tokens = n;
        sp.expert_bytes = 1000; /* of experts a plan knows nothing */
        sp.n_experts = 16;
        sp.n_experts_per_token = 2;
        sp.n_moe_layers = 3;
        assert_int_equal(kvcsa_model_serving_cost(a, &sp, &sx, &err),
                         kvcsa_model_serving_cost(b, &sp, &sy, &err));
        assert_memory_equal(&sx, &sy, sizeof sx);
        kvcsa_resume_params_default(&rp, sizeof rp);
        assert_int_equal(kvcsa_model_resume_cost(a, &rp, &rx, &err),
                         kvcsa_model_resume_cost(b, &rp, &ry, &err));
        assert_memory_equal(&rx, &ry, sizeof rx);
    }
}

/* ------------------------------------------------------------------ round trips */

/* What a configuration gives, as a model of rows: the same costs, and the same rows again but for
 * cost_only, which says there that the family has no network here. */
static void check_round_trip(const char *path)
{
    static kvcsa_plan_row  rows[MAX_LAYERS], back[MAX_LAYERS];
    kvcsa_model           *opened = host_plan(path, NULL, NULL);
    const kvcsa_model_info was = info_of(opened);
    kvcsa_plan_params      p = default_params();
    kvcsa_model           *m, *again;
    kvcsa_model_info       is;

    p.block_tokens = was.block_tokens;
    p.max_tokens = was.max_context_tokens;
    rows_of(opened, rows);
    m = from_rows(rows, was.n_layers, &p);
    is = info_of(m);
    assert_true(is.n_layers == was.n_layers && is.span_tokens == was.span_tokens);
    assert_true(is.block_tokens == was.block_tokens && is.fingerprint != was.fingerprint);
    assert_same_costs(opened, m, was.max_context_tokens);
    rows_of(m, back);
    for (uint32_t l = 0; l < was.n_layers; l++) {
        rows[l].cost_only = back[l].cost_only;
        if (memcmp(&rows[l], &back[l], sizeof *rows) != 0)
            fail_msg("%s: layer %u came back as another row", path, l);
    }
    again = from_rows(back, was.n_layers, &p);
    assert_true(info_of(again).fingerprint == is.fingerprint);
    rows_of(again, rows);
    assert_memory_equal(rows, back, was.n_layers * sizeof *rows);
    kvcsa_model_release(&again);
    kvcsa_model_release(&m);
    kvcsa_model_release(&opened);
}

static void test_rows_of_a_configuration_come_back(void **state)
{
    static const char *const families[] = {
        "deepseek-v3", "deepseek-v3.2",   "deepseek-v4-flash", "deepseek-v4-pro", "gemma3-27b",
        "glm-5.2",     "gpt-oss-120b",    "gpt2-124m",         "kimi-k3",         "llama3-8b",
        "minimax-m3",  "minimax-text-01", "mistral-7b-v0.1",   "qwen3-30b-a3b",   "falcon-7b",
    };
    char path[128];

    (void)state;
    check_round_trip(V41_CONFIG);
    check_round_trip(T1_DIR);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        snprintf(path, sizeof path, "test/data/configs/%s.json", families[i]);
        check_round_trip(path);
    }
}

/* The layers of the release can be served, and its rows say so. */
static void test_the_release_can_be_served(void **state)
{
    kvcsa_plan_row   rows[MAX_LAYERS];
    kvcsa_model     *opened = host_plan(V41_CONFIG, NULL, NULL);
    const uint32_t   n = info_of(opened).n_layers;
    kvcsa_model     *m;
    kvcsa_model_info info;

    (void)state;
    rows_of(opened, rows);
    m = from_rows(rows, n, NULL);
    info = info_of(m);
    assert_int_equal(info.cost_only, 0);
    assert_int_equal(info.block_tokens, 128);
    assert_int_equal(cost_of(m, 1048576).block_bytes, 113920);
    kvcsa_model_release(&opened);
    assert_int_equal(cost_of(m, 0).const_bytes, 2703360); /* it has its own copy */
    kvcsa_model_release(&m);
    assert_null(m);
}

/* ------------------------------------------------------------------ by hand */

static void test_grouped_plan_by_hand(void **state)
{
    kvcsa_plan_row   rows[4];
    kvcsa_estimate   e = {.struct_size = sizeof e};
    kvcsa_plan_row   row = {.struct_size = sizeof row};
    kvcsa_model_info info;
    kvcsa_cost       c;
    kvcsa_model     *m;
    kvcsa_error      err;

    (void)state;
    for (int32_t l = 0; l < 4; l++)
        rows[l] = grouped_row(l, l, 8, 128);
    m = from_rows(rows, 4, NULL);
    c = cost_of(m, 1000);
    assert_int_equal(c.block_bytes, 4 * 4096 * 128);
    assert_int_equal(c.const_bytes, 0);
    assert_int_equal(c.read_bytes, 4 * 4096 * 1000);
    assert_int_equal(c.persist_bytes, 4 * 4096 * 1000);
    assert_int_equal(c.resident_bytes, 8 * 4 * 4096 * 128);
    assert_true(c.rate == 16384.0 && c.n_kv_layers == 4 && c.pending_bytes == 0);
    assert_ok(kvcsa_model_estimate(m, NULL, 1000, 2, 128, &e, &err));
    assert_int_equal(e.n_blocks, 1 + 2 * 7);
    assert_int_equal(e.used_bytes, (uint64_t)15 * 4 * 4096 * 128);
    assert_ok(kvcsa_model_plan_row(m, 3, &row, &err));
    assert_true(row.entry_bytes == 4096 && row.cost_only == 0);
    info = info_of(m);
    assert_string_equal(info.architecture, "plan");
    assert_string_equal(info.skipped_names, "");
    assert_true(info.vocab_tokens == 1u << 31 && info.max_context_tokens == UINT32_MAX);
    assert_true(info.bos_token == -1 && info.eos_token == -1 && info.pad_token == -1 &&
                info.image_token == -1);
    assert_true(info.span_tokens == 0 && info.cost_only == 0 && info.n_layers == 4);
    assert_true(info.weight_bytes == 0 && info.n_tensors == 0 && info.hidden_size == 0);
    assert_ok(kvcsa_model_estimate(m, NULL, UINT32_MAX, 1000, 999, &e, &err));
    kvcsa_model_release(&m);
}

/* 64 entries of layer 1 and 128 of layers 4 and 7 in a block. */
static void test_mixed_plan_by_hand(void **state)
{
    kvcsa_plan_row rows[N_MIXED], back[MAX_LAYERS];
    kvcsa_model   *m;
    kvcsa_cost     c;

    (void)state;
    mixed(rows);
    m = from_rows(rows, N_MIXED, NULL);
    c = cost_of(m, 1000);
    assert_int_equal(c.index_part_bytes, 64 * 17);
    assert_int_equal(c.main_part_bytes, 64 * 36 + 128 * 256 + 128 * 656);
    assert_int_equal(c.block_bytes, 120128);
    assert_int_equal(c.const_bytes, 4 * 16 * 66 + 4096);
    assert_int_equal(c.index_read_bytes, 500 * 17 + 4 * 8 * 17);
    assert_int_equal(c.window_read_bytes, 4 * 16 * 66);
    assert_int_equal(c.read_bytes, 500 * 17 + 4 * 8 * 17 + 3 * 8 * 36 + 2 * 1000 * 256 +
                                       1000 * 656 + 4 * 16 * 66 + 4096);
    assert_int_equal(c.persist_bytes, 500 * (36 + 17) + 1000 * 256 + 1000 * 656 + 4096);
    assert_int_equal(c.resident_bytes, 4 * 16 * 66 + 4096 + 8 * 120128);
    assert_int_equal(c.pending_bytes, 512);
    assert_int_equal(c.state_bytes, 4096);
    assert_true(c.rate == 938.5 && c.written_bytes == 938.5 + 4 * 66 && c.n_kv_layers == 3);
    rows_of(m, back);
    assert_true(back[1].entry_bytes == 36 && back[1].index_bytes == 17);
    assert_true(back[1].pending_bytes == 512 && back[2].pending_bytes == 0);
    assert_true(back[2].entry_bytes == 0 && back[2].index_bytes == 0 && back[0].window_bytes == 66);
    assert_true(back[0].kv_heads == 1 && back[1].value_width == 64);
    for (int l = 0; l < N_MIXED; l++)
        assert_int_equal(back[l].cost_only, l >= 6);
    assert_true(info_of(m).span_tokens == 16 && info_of(m).cost_only == 1);
    kvcsa_model_release(&m);
    m = from_rows(rows, 6, NULL);
    assert_int_equal(info_of(m).cost_only, 0);
    kvcsa_model_release(&m);
}

/* What no operator computes, one reason a row. */
static void test_rows_that_are_only_counted(void **state)
{
    kvcsa_plan_row rows[N_MIXED], back = {.struct_size = sizeof back};
    kvcsa_error    err;

    (void)state;
    for (int what = 0; what < 9; what++) {
        int          l = 4;
        kvcsa_model *m;

        mixed(rows);
        switch (what) {
        case 0:
            rows[4].value_width = 64;
            break;
        case 1:
            rows[4].value_format = KVCSA_FORMAT_F16;
            break;
        case 2:
            rows[4].entry_width = rows[4].value_width = 48;
            break;
        case 3:
            rows[4].entry_format = rows[4].value_format = KVCSA_FORMAT_FP8_E4M3;
            break;
        case 4:
            rows[4].window_tokens = 16;
            rows[4].window_format = KVCSA_FORMAT_BF16;
            break;
        case 5:
            rows[4].value_kind = 0, rows[4].value_format = 0;
            break;
        case 6:
            l = 0, rows[0].window_format = KVCSA_FORMAT_BF16;
            break;
        case 7:
            l = 0, rows[0].kv_heads = 2;
            break;
        default:
            l = 0;
            rows[0].value_kind = KVCSA_VALUE_OWN;
            rows[0].value_width = 32;
        }
        m = from_rows(rows, 5, NULL);
        assert_ok(kvcsa_model_plan_row(m, (uint32_t)l, &back, &err));
        if (back.cost_only != 1 || info_of(m).cost_only != 1)
            fail_msg("case %d can be served", what);
        kvcsa_model_release(&m);
    }
}

/* ------------------------------------------------------------------ what is wrong with the call */

static void test_params_are_checked(void **state)
{
    static const char long_name[] =
        "0123456789012345678901234567890123456789012345678901234567890123";
    kvcsa_plan_row    rows[N_MIXED];
    kvcsa_plan_params p = default_params();
    kvcsa_allocator   half = {NULL, NULL, NULL};
    fault_alloc       fa;
    char              name[64] = "";
    kvcsa_model      *m = NULL;
    kvcsa_error       err;

    (void)state;
    mixed(rows);
    fault_alloc_init(&fa);
    assert_fails(kvcsa_model_from_plan(NULL, 1, NULL, &m, &err), KVCSA_ERR_ARG, "rows is NULL");
    assert_fails(kvcsa_model_from_plan(rows, 1, NULL, NULL, &err), KVCSA_ERR_ARG, "out is NULL");
    assert_fails(kvcsa_model_from_plan(rows, 0, NULL, &m, &err), KVCSA_ERR_ARG,
                 "n_rows is 0, must be 1..1024");
    assert_fails(kvcsa_model_from_plan(rows, 1025, NULL, &m, &err), KVCSA_ERR_ARG,
                 "n_rows is 1025, must be 1..1024");
    assert_fails(kvcsa_model_from_plan(rows, ((size_t)1 << 32) + 1, NULL, &m, &err), KVCSA_ERR_ARG,
                 "n_rows is 4294967297");
    p.name = long_name;
    assert_fails(kvcsa_model_from_plan(rows, 1, &p, &m, &err), KVCSA_ERR_ARG,
                 "name is longer than 63 bytes");
    p.name = "";
    assert_fails(kvcsa_model_from_plan(rows, 1, &p, &m, &err), KVCSA_ERR_ARG, "name is empty");
    p = default_params();
    p.max_tokens = (uint64_t)1 << 32;
    assert_fails(kvcsa_model_from_plan(rows, 1, &p, &m, &err), KVCSA_ERR_ARG,
                 "max_tokens is 4294967296, must be at most 4294967295");
    p = default_params();
    p.vocab_tokens = (1u << 31) + 1;
    assert_fails(kvcsa_model_from_plan(rows, 1, &p, &m, &err), KVCSA_ERR_ARG,
                 "vocab_tokens is 2147483649, must be at most 2147483648");
    p = default_params();
    p.block_tokens = 24;
    assert_fails(kvcsa_model_from_plan(rows, N_MIXED, &p, &m, &err), KVCSA_ERR_ARG,
                 "block_tokens is 24, must be a multiple of 16 for ratio 2");
    p = default_params();
    half.alloc = fa.hook.alloc;
    p.allocator = &half;
    assert_fails(kvcsa_model_from_plan(rows, 1, &p, &m, &err), KVCSA_ERR_ARG, "alloc");
    p = default_params();
    p.struct_size = sizeof p - 1;
    assert_fails(kvcsa_model_from_plan(rows, 1, &p, &m, &err), KVCSA_ERR_ARG,
                 "kvcsa_plan_params.struct_size");
    assert_null(m);
    p = default_params();
    memcpy(name, long_name, sizeof name - 1);
    p.name = name;
    p.max_tokens = 1000;
    p.block_tokens = 16;
    p.vocab_tokens = 50;
    m = from_rows(rows, N_MIXED, &p);
    memset(name, 'x', sizeof name); /* copied */
    assert_memory_equal(info_of(m).architecture, long_name, 63);
    assert_int_equal(info_of(m).architecture[63], 0);
    assert_true(info_of(m).max_context_tokens == 1000 && info_of(m).block_tokens == 16 &&
                info_of(m).vocab_tokens == 50);
    kvcsa_model_release(&m);
}

/* ------------------------------------------------------------------ sizes of the struct */

/* The rows side by side at that distance, and nothing behind them: sanitizers see one byte too
 * many. What does not fit is cut off, what is new is `fill`. */
static unsigned char *at_distance(const kvcsa_plan_row *rows, size_t n, size_t size, int fill)
{
    unsigned char *bytes = malloc(n * size);

    assert_non_null(bytes);
    memset(bytes, fill, n * size);
    for (size_t i = 0; i < n; i++) {
        memcpy(bytes + i * size, &rows[i], size < sizeof *rows ? size : sizeof *rows);
        memcpy(bytes + i * size, &size, sizeof size);
    }
    return bytes;
}

static kvcsa_status from_bytes(unsigned char *bytes, size_t n, kvcsa_model **m, kvcsa_error *err)
{
    const kvcsa_status st =
        kvcsa_model_from_plan((const kvcsa_plan_row *)(const void *)bytes, n, NULL, m, err);

    free(bytes);
    return st;
}

/* Hosts of 0.1 know latents with a gated pool and index keys beside them, so the release. */
static void test_rows_of_the_first_release(void **state)
{
    kvcsa_plan_row rows[MAX_LAYERS];
    kvcsa_model   *opened = host_plan(V41_CONFIG, NULL, NULL), *m = NULL, *want;
    const uint32_t n = info_of(opened).n_layers;
    kvcsa_error    err;

    (void)state;
    rows_of(opened, rows);
    want = from_rows(rows, n, NULL);
    for (size_t size = FIRST_ROW_SIZE; size <= sizeof *rows; size += 4) {
        assert_ok(from_bytes(at_distance(rows, n, size, 0x55), n, &m, &err));
        assert_same_costs(want, m, 1048576);
        kvcsa_model_release(&m);
    }
    assert_ok(from_bytes(at_distance(rows, n, FIRST_ROW_SIZE + 3, 0), n, &m, &err));
    kvcsa_model_release(&m);
    kvcsa_model_release(&want);
    kvcsa_model_release(&opened);
}

static void test_rows_of_a_later_release(void **state)
{
    kvcsa_plan_row rows[N_MIXED];
    kvcsa_model   *m = NULL, *want;
    unsigned char *bytes;
    kvcsa_error    err;

    (void)state;
    mixed(rows);
    want = from_rows(rows, N_MIXED, NULL);
    for (size_t more = 1; more <= 40; more += 13) { /* not aligned, too */
        assert_ok(
            from_bytes(at_distance(rows, N_MIXED, sizeof *rows + more, 0), N_MIXED, &m, &err));
        assert_true(info_of(m).fingerprint == info_of(want).fingerprint);
        kvcsa_model_release(&m);
    }
    bytes = at_distance(rows, N_MIXED, sizeof *rows + 16, 0);
    bytes[4 * (sizeof *rows + 16) - 1] = 1; /* the last byte of layer 3 */
    assert_fails(from_bytes(bytes, N_MIXED, &m, &err), KVCSA_ERR_UNSUPPORTED,
                 "layer 3: kvcsa_plan_row has a field at byte 143 set, this version knows 128 "
                 "bytes");
    assert_null(m);
    kvcsa_model_release(&want);
}

static void test_struct_sizes_are_checked(void **state)
{
    static const size_t bad[] = {0, 1, 8, FIRST_ROW_SIZE - 1, 4097, (size_t)1 << 63, SIZE_MAX};
    kvcsa_plan_row      rows[N_MIXED];
    kvcsa_model        *m = NULL;
    kvcsa_error         err;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mixed(rows);
        rows[0].struct_size = bad[i];
        assert_fails(kvcsa_model_from_plan(rows, N_MIXED, NULL, &m, &err), KVCSA_ERR_ARG,
                     "layer 0: kvcsa_plan_row.struct_size is");
        mixed(rows);
        rows[5].struct_size = bad[i];
        assert_fails(kvcsa_model_from_plan(rows, N_MIXED, NULL, &m, &err), KVCSA_ERR_ARG,
                     "layer 5: struct_size is");
        assert_true(strstr(err.text, "must be 128 as in layer 0") != NULL);
    }
    assert_null(m);
}

/* ------------------------------------------------------------------ identity */

static uint64_t print_of(const kvcsa_plan_row *rows, size_t n, const kvcsa_plan_params *p)
{
    kvcsa_model   *m = from_rows(rows, n, p);
    const uint64_t f = info_of(m).fingerprint;

    kvcsa_model_release(&m);
    return f;
}

static void test_fingerprint_is_of_rows_name_and_identity(void **state)
{
    kvcsa_plan_row    rows[N_MIXED], back[MAX_LAYERS];
    kvcsa_plan_params p = default_params();
    uint64_t          seen[16];
    size_t            n = 0;
    kvcsa_model      *m;

    (void)state;
    mixed(rows);
    seen[n++] = print_of(rows, N_MIXED, &p);
    assert_true(print_of(rows, N_MIXED, NULL) == seen[0]);
    p.name = "plan"; /* as NULL */
    assert_true(print_of(rows, N_MIXED, &p) == seen[0]);
    p.max_tokens = 4096; /* how long, and with which ids, does not change what blocks hold */
    p.vocab_tokens = 100;
    assert_true(print_of(rows, N_MIXED, &p) == seen[0]);
    m = from_rows(rows, N_MIXED, &p);
    rows_of(m, back); /* what was 0 has been computed */
    kvcsa_model_release(&m);
    assert_true(print_of(back, N_MIXED, &p) == seen[0]);
    p = default_params();
    p.identity = 1;
    seen[n++] = print_of(rows, N_MIXED, &p);
    p.identity = UINT64_C(1) << 63;
    seen[n++] = print_of(rows, N_MIXED, &p);
    p = default_params();
    p.name = "plan2";
    seen[n++] = print_of(rows, N_MIXED, &p);
    p = default_params();
    p.block_tokens = 64;
    seen[n++] = print_of(rows, N_MIXED, &p);
    seen[n++] = print_of(rows, 7, NULL);
    seen[n++] = print_of(rows, 6, NULL);
    rows[6].state_bytes += 4;
    seen[n++] = print_of(rows, N_MIXED, NULL);
    mixed(rows), rows[0].window_tokens = 17;
    seen[n++] = print_of(rows, N_MIXED, NULL);
    mixed(rows), rows[7].value_width = 448;
    seen[n++] = print_of(rows, N_MIXED, NULL);
    mixed(rows), rows[1].pool_kind = rows[2].pool_kind = rows[3].pool_kind = KVCSA_POOLING_WIDE;
    seen[n++] = print_of(rows, N_MIXED, NULL);
    mixed(rows), rows[5].kv_owner = 5;
    seen[n++] = print_of(rows, N_MIXED, NULL);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (seen[i] == seen[k])
                fail_msg("models %zu and %zu have one fingerprint", k, i);
}

/* ------------------------------------------------------------------ as a model */

/* What needs a network says so; prefixes of such a model can be asked for. */
static void test_what_a_plan_can_do(void **state)
{
    const int32_t  ids[3] = {0, 7, INT32_MAX};
    kvcsa_plan_row rows[N_MIXED];
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = NULL;
    size_t         n = 9;
    uint64_t       freed = 9;
    kvcsa_model   *m;
    kvcsa_error    err;

    (void)state;
    mixed(rows);
    m = from_rows(rows, 4, NULL);
    assert_fails(kvcsa_session_create(pool, m, NULL, &s, &err), KVCSA_ERR_UNSUPPORTED, "plan only");
    assert_fails(kvcsa_model_tokenize(m, "a", 1, 0, NULL, 0, &n, &err), KVCSA_ERR_UNSUPPORTED,
                 "plan only");
    assert_ok(kvcsa_prefix_match(pool, m, 0, ids, 3, &n, &err));
    assert_int_equal(n, 0);
    assert_ok(kvcsa_prefix_pin(pool, m, 0, ids, 3, &n, &err));
    assert_int_equal(n, 0);
    assert_fails(kvcsa_prefix_unpin(pool, m, 0, ids, 3, &err), KVCSA_ERR_ARG, "nothing is pinned");
    assert_ok(kvcsa_prefix_forget(pool, m, 0, ids, 3, &freed, &err));
    assert_int_equal(freed, 0);
    kvcsa_model_release(&m);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
}

/* Blocks of the same rows and identity are found, others are not; the session needs no one's
 * model but its own, which it keeps. */
static void test_models_of_the_same_rows_share(void **state)
{
    enum { N = 40 };
    const hh_attention plain = {0};
    kvcsa_plan_row     rows[HH_LAYERS];
    kvcsa_plan_params  p = default_params();
    kvcsa_pool        *pool = host_pool(1, 0);
    int32_t            ids[N];
    size_t             n = 0;
    uint64_t           freed = 0;
    kvcsa_model       *m, *same, *other;
    kvcsa_session     *s;
    kvcsa_error        err;

    (void)state;
    for (int32_t l = 0; l < HH_LAYERS; l++)
        rows[l] = grouped_row(l, l, HH_KV, HH_WIDTH);
    p.block_tokens = 16;
    p.identity = 1;
    m = from_rows(rows, HH_LAYERS, &p);
    same = from_rows(rows, HH_LAYERS, &p);
    p.identity = 2;
    other = from_rows(rows, HH_LAYERS, &p);
    host_tokens(ids, N, 3);
    s = hh_session(pool, m, 0);
    kvcsa_model_release(&m);
    assert_int_equal(hh_append(s, ids, N, 0, &plain, NULL).computed, N);
    assert_ok(kvcsa_prefix_match(pool, same, 0, ids, N, &n, &err));
    assert_int_equal(n, 32);
    assert_ok(kvcsa_prefix_match(pool, other, 0, ids, N, &n, &err));
    assert_int_equal(n, 0);
    assert_ok(kvcsa_prefix_forget(pool, other, 0, NULL, 0, &freed, &err));
    assert_int_equal(freed, 0);
    kvcsa_session_release(&s);
    assert_ok(kvcsa_prefix_forget(pool, same, 0, ids, 32, &freed, &err));
    assert_int_equal(freed, 2 * 16 * HH_LAYERS * HH_KV * 2 * HH_WIDTH * 2);
    s = hh_session(pool, same, 0);
    kvcsa_model_release(&same);
    kvcsa_model_release(&other);
    assert_ok(kvcsa_pool_check(pool, &err));
    kvcsa_pool_release(&pool);
    assert_int_equal(hh_append(s, ids, N, 0, &plain, NULL).computed, N);
    kvcsa_session_release(&s);
}

/* ------------------------------------------------------------------ memory */

static void test_fault_every_allocation(void **state)
{
    kvcsa_plan_row    rows[N_MIXED];
    kvcsa_plan_params p = default_params();
    fault_alloc       fa;
    uint64_t          n = 0;
    int               done = 0;

    (void)state;
    mixed(rows);
    fault_alloc_init(&fa);
    p.allocator = &fa.hook;
    while (!done) {
        kvcsa_model *m = NULL;
        kvcsa_error  err;
        kvcsa_status st;

        fault_alloc_fail_at(&fa, ++n);
        st = kvcsa_model_from_plan(rows, N_MIXED, &p, &m, &err);
        done = !fault_alloc_hit(&fa);
        fault_alloc_fail_at(&fa, 0);
        assert_int_equal(st, done ? KVCSA_OK : KVCSA_ERR_NOMEM);
        assert_true((m != NULL) == done);
        kvcsa_model_release(&m);
        assert_true(fault_alloc_is_clean(&fa));
    }
    assert_true(n > 4); /* model, rows, hash, layout */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_a_configuration_come_back),
        cmocka_unit_test(test_the_release_can_be_served),
        cmocka_unit_test(test_grouped_plan_by_hand),
        cmocka_unit_test(test_mixed_plan_by_hand),
        cmocka_unit_test(test_rows_that_are_only_counted),
        cmocka_unit_test(test_params_are_checked),
        cmocka_unit_test(test_rows_of_the_first_release),
        cmocka_unit_test(test_rows_of_a_later_release),
        cmocka_unit_test(test_struct_sizes_are_checked),
        cmocka_unit_test(test_fingerprint_is_of_rows_name_and_identity),
        cmocka_unit_test(test_what_a_plan_can_do),
        cmocka_unit_test(test_models_of_the_same_rows_share),
        cmocka_unit_test(test_fault_every_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
