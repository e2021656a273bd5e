/* Models through the public header: what opens, what is refused, what is said about it. */
#include <math.h>
#include <stdio.h>

#include "support/checkpoint.h"
#include "support/host.h"
#include "support/tiny_samples.h"

static kvcsa_status open_with(const char *path, uint32_t flags, const char *plan, kvcsa_model **out,
                              kvcsa_error *err)
{
    kvcsa_model_params p;

    kvcsa_model_params_default(&p, sizeof p);
    p.flags = flags;
    p.plan = plan;
    return kvcsa_model_open(path, &p, out, err);
}

static kvcsa_model *open_plan(const char *path)
{
    kvcsa_model *m = NULL;
    kvcsa_error  err;

    assert_ok(open_with(path, KVCSA_MODEL_PLAN_ONLY, NULL, &m, &err));
    return m;
}

static void test_version_is_the_headers(void **state)
{
    char text[32];

    (void)state;
    snprintf(text, sizeof text, "%d.%d.%d", KVCSA_VERSION_MAJOR, KVCSA_VERSION_MINOR,
             KVCSA_VERSION_PATCH);
    assert_string_equal(kvcsa_version_string(), text);
    assert_int_equal(kvcsa_version_number(), KVCSA_VERSION_NUMBER);
    assert_string_equal(kvcsa_status_name(KVCSA_OK), "KVCSA_OK");
    assert_string_equal(kvcsa_status_name(KVCSA_ERR_LIMIT), "KVCSA_ERR_LIMIT");
    assert_string_equal(kvcsa_status_name(77), "KVCSA_ERR_?");
}

/* Callers compile these numbers in: they are never renumbered. */
static void test_constants_keep_their_values(void **state)
{
    static const struct {
        const char *name;
        int         is, was;
    } pins[] = {
        {"KVCSA_OK", (int)KVCSA_OK, 0},
        {"KVCSA_ERR_INTERNAL", (int)KVCSA_ERR_INTERNAL, -1},
        {"KVCSA_ERR_ARG", (int)KVCSA_ERR_ARG, -2},
        {"KVCSA_ERR_NOMEM", (int)KVCSA_ERR_NOMEM, -3},
        {"KVCSA_ERR_FULL", (int)KVCSA_ERR_FULL, -4},
        {"KVCSA_ERR_UNSUPPORTED", (int)KVCSA_ERR_UNSUPPORTED, -5},
        {"KVCSA_ERR_BACKEND", (int)KVCSA_ERR_BACKEND, -6},
        {"KVCSA_ERR_FORMAT", (int)KVCSA_ERR_FORMAT, -7},
        {"KVCSA_ERR_IO", (int)KVCSA_ERR_IO, -8},
        {"KVCSA_ERR_BUSY", (int)KVCSA_ERR_BUSY, -9},
        {"KVCSA_ERR_CANCELLED", (int)KVCSA_ERR_CANCELLED, -10},
        {"KVCSA_ERR_MISMATCH", (int)KVCSA_ERR_MISMATCH, -11},
        {"KVCSA_ERR_CORRUPT", (int)KVCSA_ERR_CORRUPT, -12},
        {"KVCSA_ERR_LIMIT", (int)KVCSA_ERR_LIMIT, -13},
        {"KVCSA_LOG_ERROR", (int)KVCSA_LOG_ERROR, 0},
        {"KVCSA_LOG_WARN", (int)KVCSA_LOG_WARN, 1},
        {"KVCSA_LOG_INFO", (int)KVCSA_LOG_INFO, 2},
        {"KVCSA_LOG_DEBUG", (int)KVCSA_LOG_DEBUG, 3},
        {"KVCSA_MODEL_PLAN_ONLY", (int)KVCSA_MODEL_PLAN_ONLY, 1},
        {"KVCSA_MODEL_READ", (int)KVCSA_MODEL_READ, 2},
        {"KVCSA_SELECT_NONE", (int)KVCSA_SELECT_NONE, 0},
        {"KVCSA_SELECT_OWN", (int)KVCSA_SELECT_OWN, 1},
        {"KVCSA_SELECT_REINDEX", (int)KVCSA_SELECT_REINDEX, 2},
        {"KVCSA_SELECT_INHERITED", (int)KVCSA_SELECT_INHERITED, 3},
        {"KVCSA_CANDIDATES_NONE", (int)KVCSA_CANDIDATES_NONE, 0},
        {"KVCSA_CANDIDATES_SOURCE", (int)KVCSA_CANDIDATES_SOURCE, 1},
        {"KVCSA_CANDIDATES_CONSUMER", (int)KVCSA_CANDIDATES_CONSUMER, 2},
        {"KVCSA_FORMAT_NONE", (int)KVCSA_FORMAT_NONE, 0},
        {"KVCSA_FORMAT_FP4_E4M3_G16", (int)KVCSA_FORMAT_FP4_E4M3_G16, 1},
        {"KVCSA_FORMAT_FP4_E8M0_G32", (int)KVCSA_FORMAT_FP4_E8M0_G32, 2},
        {"KVCSA_FORMAT_FP8_E8M0_G32", (int)KVCSA_FORMAT_FP8_E8M0_G32, 3},
        {"KVCSA_TOKENIZE_SPECIAL", (int)KVCSA_TOKENIZE_SPECIAL, 1},
        {"KVCSA_POOL_FILL_FREED", (int)KVCSA_POOL_FILL_FREED, 1},
        {"KVCSA_POOL_ZERO_FREED", (int)KVCSA_POOL_ZERO_FREED, 2},
        {"KVCSA_POOL_FAST_DENSE", (int)KVCSA_POOL_FAST_DENSE, 4},
        {"KVCSA_EVICT_COST", (int)KVCSA_EVICT_COST, 0},
        {"KVCSA_EVICT_LRU", (int)KVCSA_EVICT_LRU, 1},
        {"KVCSA_MODE_EXACT", (int)KVCSA_MODE_EXACT, 0},
        {"KVCSA_MODE_FAST", (int)KVCSA_MODE_FAST, 1},
        {"KVCSA_REUSE_DEFAULT", (int)KVCSA_REUSE_DEFAULT, 0},
        {"KVCSA_REUSE_NONE", (int)KVCSA_REUSE_NONE, 1},
        {"KVCSA_REUSE_EXACT", (int)KVCSA_REUSE_EXACT, 2},
        {"KVCSA_REUSE_BOUNDED", (int)KVCSA_REUSE_BOUNDED, 3},
        {"KVCSA_DECODER_REPLAY_DEFAULT", (int)KVCSA_DECODER_REPLAY_DEFAULT, 0},
        {"KVCSA_DECODER_REPLAY_OFF", (int)KVCSA_DECODER_REPLAY_OFF, 1},
        {"KVCSA_DECODER_REPLAY_ON", (int)KVCSA_DECODER_REPLAY_ON, 2},
        {"KVCSA_SESSION_PRIVATE", (int)KVCSA_SESSION_PRIVATE, 1},
        {"KVCSA_ERASE_SECURE", (int)KVCSA_ERASE_SECURE, 1},
        {"KVCSA_TRACE_HIT", (int)KVCSA_TRACE_HIT, 1},
        {"KVCSA_TRACE_MISS", (int)KVCSA_TRACE_MISS, 2},
        {"KVCSA_TRACE_PUBLISH", (int)KVCSA_TRACE_PUBLISH, 3},
        {"KVCSA_TRACE_EVICT", (int)KVCSA_TRACE_EVICT, 4},
        {"KVCSA_TRACE_REPLAY", (int)KVCSA_TRACE_REPLAY, 5},
        {"KVCSA_TRACE_SAVE", (int)KVCSA_TRACE_SAVE, 6},
        {"KVCSA_TRACE_LOAD", (int)KVCSA_TRACE_LOAD, 7},
        {"KVCSA_TRACE_MOVE_OUT", (int)KVCSA_TRACE_MOVE_OUT, 8},
        {"KVCSA_TRACE_MOVE_IN", (int)KVCSA_TRACE_MOVE_IN, 9},
        {"KVCSA_REASON_NONE", (int)KVCSA_REASON_NONE, 0},
        {"KVCSA_REASON_OFF", (int)KVCSA_REASON_OFF, 1},
        {"KVCSA_REASON_UNKNOWN", (int)KVCSA_REASON_UNKNOWN, 2},
        {"KVCSA_REASON_DIVERGED", (int)KVCSA_REASON_DIVERGED, 3},
        {"KVCSA_REASON_ENDED", (int)KVCSA_REASON_ENDED, 4},
        {"KVCSA_REASON_LOGITS", (int)KVCSA_REASON_LOGITS, 5},
        {"KVCSA_REASON_SHORT", (int)KVCSA_REASON_SHORT, 6},
        {"KVCSA_REASON_PRIVATE", (int)KVCSA_REASON_PRIVATE, 7},
        {"KVCSA_REASON_BUDGET", (int)KVCSA_REASON_BUDGET, 16},
        {"KVCSA_REASON_TRIM", (int)KVCSA_REASON_TRIM, 17},
        {"KVCSA_REASON_RESIZE", (int)KVCSA_REASON_RESIZE, 18},
        {"KVCSA_REASON_FORGOTTEN", (int)KVCSA_REASON_FORGOTTEN, 19},
        {"KVCSA_REASON_ERASED", (int)KVCSA_REASON_ERASED, 20},
        {"KVCSA_SNAPSHOT_WINDOW", (int)KVCSA_SNAPSHOT_WINDOW, 1},
        {"KVCSA_SNAPSHOT_LOGITS", (int)KVCSA_SNAPSHOT_LOGITS, 2},
        {"KVCSA_SNAPSHOT_ANY_MODEL", (int)KVCSA_SNAPSHOT_ANY_MODEL, 4},
        {"KVCSA_SNAPSHOT_ANY_NUMERICS", (int)KVCSA_SNAPSHOT_ANY_NUMERICS, 8},
        {"KVCSA_SNAPSHOT_SALVAGE", (int)KVCSA_SNAPSHOT_SALVAGE, 16},
        {"KVCSA_LOGITS_LAST", (int)KVCSA_LOGITS_LAST, 0},
        {"KVCSA_LOGITS_ALL", (int)KVCSA_LOGITS_ALL, 1},
        {"KVCSA_LOGITS_ROWS", (int)KVCSA_LOGITS_ROWS, 2},
        {"KVCSA_LOGITS_NONE", (int)KVCSA_LOGITS_NONE, 3},
        {"KVCSA_SELECT_ALL", (int)KVCSA_SELECT_ALL, 4},
        {"KVCSA_FORMAT_F32", (int)KVCSA_FORMAT_F32, 4},
        {"KVCSA_FORMAT_F16", (int)KVCSA_FORMAT_F16, 5},
        {"KVCSA_FORMAT_BF16", (int)KVCSA_FORMAT_BF16, 6},
        {"KVCSA_FORMAT_FP4_AS_F32", (int)KVCSA_FORMAT_FP4_AS_F32, 7},
        {"KVCSA_FORMAT_Q8_0", (int)KVCSA_FORMAT_Q8_0, 8},
        {"KVCSA_FORMAT_Q4_0", (int)KVCSA_FORMAT_Q4_0, 9},
        {"KVCSA_FORMAT_INT3_F16_G32", (int)KVCSA_FORMAT_INT3_F16_G32, 10},
        {"KVCSA_FORMAT_FP8_E4M3", (int)KVCSA_FORMAT_FP8_E4M3, 11},
        {"KVCSA_FORMAT_FP8_F32_G128", (int)KVCSA_FORMAT_FP8_F32_G128, 12},
        {"KVCSA_FORMAT_INT6", (int)KVCSA_FORMAT_INT6, 13},
        {"KVCSA_FORMAT_MLA_FP8_656", (int)KVCSA_FORMAT_MLA_FP8_656, 14},
        {"KVCSA_FORMAT_MLA_FP4_432", (int)KVCSA_FORMAT_MLA_FP4_432, 15},
        {"KVCSA_FORMAT_CSA_FP8_584", (int)KVCSA_FORMAT_CSA_FP8_584, 16},
        {"KVCSA_VALUE_ALIAS", (int)KVCSA_VALUE_ALIAS, 0},
        {"KVCSA_VALUE_OWN", (int)KVCSA_VALUE_OWN, 1},
        {"KVCSA_VALUE_PREFIX", (int)KVCSA_VALUE_PREFIX, 2},
        {"KVCSA_POOLING_NONE", (int)KVCSA_POOLING_NONE, 0},
        {"KVCSA_POOLING_GATED", (int)KVCSA_POOLING_GATED, 1},
        {"KVCSA_POOLING_OVERLAP", (int)KVCSA_POOLING_OVERLAP, 2},
        {"KVCSA_POOLING_WIDE", (int)KVCSA_POOLING_WIDE, 3},
        {"KVCSA_SESSION_WINDOW_ONLY", (int)KVCSA_SESSION_WINDOW_ONLY, 2},
        {"KVCSA_SESSION_TRACK_MASS", (int)KVCSA_SESSION_TRACK_MASS, 4},
        {"KVCSA_LAYERS_WINDOW", (int)KVCSA_LAYERS_WINDOW, 0},
        {"KVCSA_LAYERS_FULL", (int)KVCSA_LAYERS_FULL, 1},
        {"KVCSA_LAYERS_REINDEX", (int)KVCSA_LAYERS_REINDEX, 2},
        {"KVCSA_LAYERS_REUSE", (int)KVCSA_LAYERS_REUSE, 3},
        {"KVCSA_SETTING_CHAIN_HITS", (int)KVCSA_SETTING_CHAIN_HITS, 1},
        {"KVCSA_ATTENTION_TP", (int)KVCSA_ATTENTION_TP, 0},
        {"KVCSA_ATTENTION_DP", (int)KVCSA_ATTENTION_DP, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof pins / sizeof *pins; i++)
        if (pins[i].is != pins[i].was)
            fail_msg("%s is %d, was %d", pins[i].name, pins[i].is, pins[i].was);
}

static void test_released_config_costs_890_bytes_per_token(void **state)
{
    static const uint64_t lengths[] = {1024, 4096, 16384, 131072, 1048576};
    kvcsa_model          *m = open_plan("test/data/v41-flash-config.json");
    kvcsa_cost            c = {.struct_size = sizeof c};
    kvcsa_plan_row        r = {.struct_size = sizeof r};
    kvcsa_model_info      i = {.struct_size = sizeof i};
    kvcsa_error           err;

    (void)state;
    assert_ok(kvcsa_model_get_info(m, &i, &err));
    assert_int_equal(i.n_layers, 40);
    assert_int_equal(i.max_context_tokens, 1048576);
    assert_int_equal(i.image_token, 129264);
    assert_int_equal(i.expert_bytes, 18800640);
    assert_int_equal(i.n_experts, 384);
    assert_int_equal(i.n_experts_per_token, 6);
    assert_int_equal(i.n_moe_layers, 40);
    assert_int_equal(i.span_tokens, 16);
    assert_int_equal(i.cost_only, 0);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        const uint64_t n = lengths[k];
        /* read at n >= 1024: every limit but the candidates' is met */
        const uint64_t closed = 68 * (n * 5 / 2 + 4 * (n < 16384 ? n : 16384)) +
                                288 * (18 * 512 + 20 * 512) + 528 * 40 * 128;

        assert_ok(kvcsa_model_cost(m, n, &c, &err));
        assert_true(c.rate_bytes_per_token == 890.0f);
        assert_int_equal(c.const_bytes, 2703360);
        assert_int_equal(c.block_bytes, 113920);
        assert_int_equal(c.index_part_bytes, 21760);
        assert_int_equal(c.main_part_bytes, 92160);
        assert_int_equal(c.resident_bytes, 2703360 + 890 * n);
        assert_int_equal(c.persist_bytes, 890 * n);
        assert_int_equal(c.pending_bytes, 3 * 4096);
        assert_int_equal(c.read_bytes, closed);
    }
    assert_fails(kvcsa_model_cost(m, 1048577, &c, &err), KVCSA_ERR_LIMIT, "1048576");
    assert_ok(kvcsa_model_plan_row(m, 28, &r, &err));
    assert_int_equal(r.select, KVCSA_SELECT_REINDEX);
    assert_int_equal(r.kv_owner, 20);
    assert_int_equal(r.candidates, KVCSA_CANDIDATES_CONSUMER);
    assert_int_equal(r.entry_bytes, 0); /* it owns none */
    assert_ok(kvcsa_model_plan_row(m, 8, &r, &err));
    assert_int_equal(r.select, KVCSA_SELECT_OWN);
    assert_int_equal(r.entry_bytes, 288);
    assert_int_equal(r.index_bytes, 68);
    assert_int_equal(r.window_bytes, 528);
    assert_fails(kvcsa_model_plan_row(m, 40, &r, &err), KVCSA_ERR_ARG, "must be below 40");
    kvcsa_model_release(&m);
}

/* ------------------------------------------------------------------ families and changed plans */

static const char *const family_configs[] = {
    "gpt2-124m",      "llama3-8b",     "mistral-7b-v0.1",   "qwen2.5-7b",      "qwen3-30b-a3b",
    "gemma3-27b",     "gpt-oss-120b",  "falcon-7b",         "pythia-160m",     "minimax-text-01",
    "minimax-m2",     "minimax-m3",    "deepseek-67b",      "deepseek-v2",     "deepseek-v3",
    "deepseek-v3.2",  "kimi-k2",       "kimi-k3",           "glm-4-9b",        "glm-5.2",
    "deepseek-v4-flash", "deepseek-v4-pro",
};

/* Whatever the plan-only functions are asked about a family, they answer; the rest refuses. */
static void test_families_have_plan_and_cost(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof family_configs / sizeof *family_configs; i++) {
        kvcsa_model         *m = NULL;
        kvcsa_pool          *pool = host_pool(1, 0);
        kvcsa_session       *session = NULL;
        kvcsa_model_info     info = {.struct_size = sizeof info};
        kvcsa_session_params sp;
        kvcsa_plan_row       row = {.struct_size = sizeof row};
        kvcsa_cost           c = {.struct_size = sizeof c};
        kvcsa_estimate       e = {.struct_size = sizeof e}, two = {.struct_size = sizeof two};
        uint64_t             rate = 0, windows = 0;
        char                 path[128];
        kvcsa_error          err;

        snprintf(path, sizeof path, "test/data/configs/%s.json", family_configs[i]);
        m = open_plan(path);
        assert_ok(kvcsa_model_get_info(m, &info, &err));
        assert_true(info.cost_only == 1 && info.fingerprint != 0 && info.n_tensors == 0);
        assert_true(info.span_tokens % 8 == 0 && info.bos_token == -1);
        for (uint32_t l = 0; l < info.n_layers; l++) {
            assert_ok(kvcsa_model_plan_row(m, l, &row, &err));
            assert_int_equal(row.cost_only, 1);
            if (row.kv_owner == (int32_t)l)
                rate += (row.entry_bytes + row.index_bytes) * 128 / row.ratio;
            windows += (uint64_t)row.window_tokens * row.window_bytes + row.state_bytes;
        }
        assert_fails(kvcsa_model_plan_row(m, info.n_layers, &row, &err), KVCSA_ERR_ARG, "layer is");
        assert_ok(kvcsa_model_cost(m, info.max_context_tokens, &c, &err));
        assert_int_equal(c.block_bytes, rate);
        assert_int_equal(c.const_bytes, windows);
        assert_fails(kvcsa_model_cost(m, info.max_context_tokens + 1, &c, &err), KVCSA_ERR_LIMIT,
                     "context limit");
        assert_ok(kvcsa_model_estimate(m, NULL, 1000, 1, 0, &e, &err));
        assert_ok(kvcsa_model_estimate(m, NULL, 1000, 2, 0, &two, &err));
        assert_int_equal(e.block_bytes, 8 * rate);
        assert_true(e.used_bytes >= e.block_bytes + c.state_bytes);
        assert_int_equal(two.used_bytes, 2 * e.used_bytes);
        assert_true(e.slab_bytes >= e.used_bytes);
        assert_ok(kvcsa_model_estimate(m, NULL, info.max_context_tokens, 1000, 999, &e, &err));
        assert_fails(kvcsa_model_estimate(m, NULL, 1000, UINT64_MAX, 0, &e, &err), KVCSA_ERR_LIMIT,
                     "n_sessions");
        kvcsa_session_params_default(&sp, sizeof sp);
        sp.window_slack_tokens = 4096; /* too much for the raw rows of entries of 128 tokens */
        if (kvcsa_model_estimate(m, &sp, 1000, 1, 0, &e, &err) != KVCSA_OK)
            assert_int_equal(err.status, KVCSA_ERR_LIMIT);
        assert_fails(kvcsa_session_create(pool, m, NULL, &session, &err), KVCSA_ERR_UNSUPPORTED,
                     "plan");
        assert_fails(kvcsa_model_tokenize(m, "a", 1, 0, NULL, 0, &(size_t){0}, &err),
                     KVCSA_ERR_UNSUPPORTED, "plan only");
        kvcsa_pool_release(&pool);
        kvcsa_model_release(&m);
    }
}

/* A caller that was built with the structs of the first release. */
static void test_structs_of_the_first_release(void **state)
{
    kvcsa_model     *m = open_plan("test/data/v41-flash-config.json");
    kvcsa_model_info i;
    kvcsa_plan_row   r;
    kvcsa_cost       c;
    kvcsa_error      err;

    (void)state;
    memset(&i, 0x55, sizeof i);
    memset(&r, 0x55, sizeof r);
    memset(&c, 0x55, sizeof c);
    i.struct_size = offsetof(kvcsa_model_info, expert_bytes);
    r.struct_size = offsetof(kvcsa_plan_row, kv_heads);
    c.struct_size = offsetof(kvcsa_cost, rate);
    assert_ok(kvcsa_model_get_info(m, &i, &err));
    assert_ok(kvcsa_model_plan_row(m, 2, &r, &err));
    assert_ok(kvcsa_model_cost(m, 128, &c, &err));
    assert_true(i.n_layers == 40 && r.entry_bytes == 288 && c.block_bytes == 113920);
    assert_true(i.expert_bytes == 0x5555555555555555 && r.kv_heads == 0x55555555);
    assert_true(c.index_read_bytes == 0x5555555555555555);
    i.struct_size--;
    assert_fails(kvcsa_model_get_info(m, &i, &err), KVCSA_ERR_ARG, "kvcsa_model_info");
    kvcsa_model_release(&m);
}

static void test_format_names(void **state)
{
    (void)state;
    assert_string_equal(kvcsa_format_name(KVCSA_FORMAT_FP4_E4M3_G16), "fp4");
    assert_string_equal(kvcsa_format_name(KVCSA_FORMAT_CSA_FP8_584), "csa-fp8-584");
    assert_string_equal(kvcsa_format_name(KVCSA_FORMAT_NONE), "?");
    assert_string_equal(kvcsa_format_name(17), "?");
    assert_string_equal(kvcsa_format_name(UINT32_MAX), "?");
}

/* With weights: another format of entries, and nothing else. The weights are the same ones, the
 * entries are not, so nobody takes blocks of the other. */
static void test_entries_in_another_format_with_weights(void **state)
{
    static const struct {
        const char *plan, *says;
    } refused[] = {
        {"{\"kv_heads\": 1}", "plan: kv_heads changes what is computed"},
        {"{\"entry_format\": \"bf16\", \"window_tokens\": 8}", "plan: window_tokens changes what"},
        {"{\"entry_format\": \"fp8\"}",
         "plan: entry_format is \"fp8\", which this version cannot compute with"},
        {"{\"max_tokens\": 100}", "KVCSA_MODEL_PLAN_ONLY"},
    };
    kvcsa_model     *exact = host_model(T1_DIR), *wide = NULL, *m = NULL;
    kvcsa_model_info a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b};
    kvcsa_plan_row   r = {.struct_size = sizeof r};
    kvcsa_pool      *pool = host_pool(1, 0);
    kvcsa_session   *s;
    kvcsa_reuse      reuse = {.struct_size = sizeof reuse};
    int32_t          ids[300];
    kvcsa_error      err;

    (void)state;
    assert_ok(open_with(T1_DIR, 0, "{\"entry_format\": \"bf16\"}", &wide, &err));
    assert_ok(kvcsa_model_get_info(exact, &a, &err));
    assert_ok(kvcsa_model_get_info(wide, &b, &err));
    assert_true(a.fingerprint == b.fingerprint && a.cost_only == 0 && b.cost_only == 0);
    for (uint32_t l = 0; l < b.n_layers; l++) {
        assert_ok(kvcsa_model_plan_row(wide, l, &r, &err));
        assert_int_equal(r.entry_format, r.ratio ? KVCSA_FORMAT_BF16 : KVCSA_FORMAT_NONE);
        assert_int_equal(r.entry_bytes, r.kv_owner == (int32_t)l ? 192 : 0);
        assert_int_equal(r.cost_only, 0);
    }
    host_tokens(ids, 300, 77);
    for (int k = 0; k < 3; k++) { /* the third finds the blocks of the first, the second none */
        s = host_session(pool, k == 1 ? wide : exact, 0);
        assert_ok(kvcsa_session_append(s, ids, 300, NULL, NULL, &err));
        assert_ok(kvcsa_session_get_reuse(s, &reuse, &err));
        assert_int_equal(reuse.n_adopted, k == 2 ? 256 : 0);
        host_step(pool, s);
        kvcsa_session_release(&s);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_fails(open_with(T1_DIR, 0, refused[i].plan, &m, &err), KVCSA_ERR_UNSUPPORTED,
                     refused[i].says);
        assert_null(m);
        assert_ok(open_with(T1_DIR, KVCSA_MODEL_PLAN_ONLY, refused[i].plan, &m, &err));
        kvcsa_model_release(&m);
    }
    assert_fails(open_with(T1_DIR, 0, "{\"entry_formats\": \"bf16\"}", &m, &err), KVCSA_ERR_ARG,
                 "plan: entry_formats is not a key, the nearest are entry_format, ");
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&wide);
    kvcsa_model_release(&exact);
}

static void test_unused_tensors_are_named(void **state)
{
    kvcsa_model     *m = host_model(T1_DIR);
    kvcsa_model_info i = {.struct_size = sizeof i};
    size_t           lines = 0;
    kvcsa_error      err;

    (void)state;
    assert_ok(kvcsa_model_get_info(m, &i, &err));
    assert_string_equal(i.architecture, "DeepseekV41ForCausalLM");
    assert_int_equal(i.n_tensors + i.n_skipped_tensors, 1212);
    assert_int_equal(i.weight_bytes + i.skipped_bytes, 6751147);
    assert_int_equal(i.n_skipped_tensors, 161); /* two draft stages */
    for (const char *p = i.skipped_names; *p; p++)
        lines += *p == '\n';
    assert_true(lines == 160 || lines == 161);
    assert_non_null(strstr(i.skipped_names, "mtp.1.markov_head.embed.weight"));
    assert_null(strstr(i.skipped_names, "layers.0."));
    assert_int_equal(i.bos_token, 0);
    assert_int_equal(i.eos_token, 1);
    kvcsa_model_release(&m);
}

static void test_open_refuses_bad_calls(void **state)
{
    kvcsa_model       *m = (kvcsa_model *)1;
    kvcsa_model_params p;
    kvcsa_error        err;

    (void)state;
    assert_fails(kvcsa_model_open(NULL, NULL, &m, &err), KVCSA_ERR_ARG, "path is NULL");
    assert_null(m);
    assert_fails(kvcsa_model_open(T1_DIR, NULL, NULL, &err), KVCSA_ERR_ARG, "out is NULL");
    assert_int_equal(kvcsa_model_open(NULL, NULL, NULL, NULL), KVCSA_ERR_ARG);
    assert_fails(kvcsa_model_open("no/such/folder", NULL, &m, &err), KVCSA_ERR_IO,
                 "no/such/folder");
    kvcsa_model_params_default(&p, sizeof p);
    p.flags = 64;
    assert_fails(kvcsa_model_open(T1_DIR, &p, &m, &err), KVCSA_ERR_UNSUPPORTED, "flags is 0x40");
    kvcsa_model_params_default(&p, sizeof p);
    p.block_tokens = 40;
    assert_fails(kvcsa_model_open(T1_DIR, &p, &m, &err), KVCSA_ERR_ARG, "block_tokens is 40");
    p.block_tokens = 64;
    assert_ok(kvcsa_model_open(T1_DIR, &p, &m, &err));
    kvcsa_model_release(&m);
    assert_fails(kvcsa_model_get_info(
                     NULL, &(kvcsa_model_info){.struct_size = sizeof(kvcsa_model_info)}, &err),
                 KVCSA_ERR_ARG, "model is NULL");
}

/* A broken copy of T1, and what opening it says. */
typedef struct broken {
    const char *what;
    void (*break_it)(const checkpoint *c);
    kvcsa_status status;
    const char  *fragments[3];
} broken;

static void cut_shard(const checkpoint *c)
{
    checkpoint_cut(c, "model-00002-of-00002.safetensors", 1546414);
}
static void drop_shard(const checkpoint *c)
{
    checkpoint_drop(c, "model-00001-of-00002.safetensors");
}
static void drop_tokenizer(const checkpoint *c)
{
    checkpoint_drop(c, "tokenizer.json");
}
static void other_architecture(const checkpoint *c)
{
    checkpoint_edit_config(c, "architectures", "[\"LlamaForCausalLM\"]");
}
static void other_vocab(const checkpoint *c)
{
    checkpoint_edit_config(c, "text_config/vocab_size", "544");
}
static void wrong_shape(const checkpoint *c)
{
    checkpoint_edit_tensor(c, "layers.3.attn.q_norm.weight", "shape", "[64, 2]");
}
static void wrong_dtype(const checkpoint *c)
{
    checkpoint_edit_tensor(c, "layers.3.attn.q_norm.weight", "dtype", "\"F16\"");
}

static void test_broken_checkpoints_are_explained(void **state)
{
    static const broken cases[] = {
        {"cut in half", cut_shard, KVCSA_ERR_FORMAT, {"model-00002-of-00002.safetensors"}},
        {"shard missing", drop_shard, KVCSA_ERR_IO, {"model-00001-of-00002.safetensors"}},
        {"no tokenizer", drop_tokenizer, KVCSA_ERR_IO, {"tokenizer.json"}},
        {"architecture",
         other_architecture,
         KVCSA_ERR_UNSUPPORTED,
         {"LlamaForCausalLM", "config.json", "plan and cost only"}},
        {"vocabulary", other_vocab, KVCSA_ERR_FORMAT, {"544", "512"}},
        {"shape", wrong_shape, KVCSA_ERR_FORMAT, {"layers.3.attn.q_norm.weight", "[128]"}},
        {"dtype", wrong_dtype, KVCSA_ERR_FORMAT, {"layers.3.attn.q_norm.weight", "F16", "BF16"}},
    };

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        checkpoint   c;
        kvcsa_model *m = NULL;
        kvcsa_error  err;
        kvcsa_status st;

        checkpoint_copy(&c, T1_DIR);
        cases[k].break_it(&c);
        st = kvcsa_model_open(c.dir, NULL, &m, &err);
        if (st != cases[k].status)
            fail_msg("%s: %s: %s", cases[k].what, kvcsa_status_name(st), err.text);
        assert_null(m);
        for (int f = 0; f < 3 && cases[k].fragments[f]; f++)
            if (!strstr(err.text, cases[k].fragments[f]))
                fail_msg("%s: '%s' lacks '%s'", cases[k].what, err.text, cases[k].fragments[f]);
        checkpoint_remove(&c);
    }
}

static void test_mapped_and_read_weights_are_equal(void **state)
{
    kvcsa_model_params p;
    kvcsa_model       *a = host_model(T1_DIR), *b = NULL;
    kvcsa_model_info   ia = {.struct_size = sizeof ia}, ib = {.struct_size = sizeof ib};
    float              la[T1_VOCAB], lb[T1_VOCAB];
    kvcsa_pool        *pool = host_pool(1, 0);
    kvcsa_session     *sa, *sb;
    int32_t            ids[30];
    kvcsa_error        err;

    (void)state;
    kvcsa_model_params_default(&p, sizeof p);
    p.flags = KVCSA_MODEL_READ;
    assert_ok(kvcsa_model_open(T1_DIR, &p, &b, &err));
    assert_ok(kvcsa_model_get_info(a, &ia, &err));
    assert_ok(kvcsa_model_get_info(b, &ib, &err));
    assert_true(ia.fingerprint == ib.fingerprint && ia.fingerprint != 0);
    host_tokens(ids, 30, 31);
    sa = host_session(pool, a, 0);
    sb = host_session(pool, b, 0);
    host_run(pool, sa, ids, 30, NULL);
    host_run(pool, sb, ids, 30, NULL);
    host_logits(sa, la, T1_VOCAB);
    host_logits(sb, lb, T1_VOCAB);
    assert_memory_equal(la, lb, sizeof la);
    kvcsa_session_release(&sa);
    kvcsa_session_release(&sb);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&a);
    kvcsa_model_release(&b);
}

/* ------------------------------------------------------------------ text */

static void test_tokenize_and_back(void **state)
{
    static const char text[] = "In the beginning God created the heaven and the earth.\n\xff\xfe "
                               "<think> \xe7\x9a\x84 12345";
    kvcsa_model      *m = host_model(TINY_DIR), *plan = open_plan(TINY_DIR);
    int32_t           ids[200], two[2];
    char              back[400];
    size_t            n = 0, n2 = 0, bytes = 0;
    const char       *t = NULL;
    kvcsa_error       err;

    (void)state;
    assert_ok(kvcsa_model_tokenize(m, text, sizeof text - 1, 0, ids, 200, &n, &err));
    assert_true(n > 10 && n < 100);
    assert_ok(
        kvcsa_model_tokenize(m, text, sizeof text - 1, 0, NULL, 0, &n2, &err)); /* count only */
    assert_int_equal(n2, n);
    assert_ok(kvcsa_model_tokenize(m, text, sizeof text - 1, 0, two, 2, &n2, &err));
    assert_int_equal(n2, n);
    assert_memory_equal(two, ids, sizeof two);
    assert_ok(kvcsa_model_detokenize(m, ids, n, back, sizeof back, &bytes, &err));
    assert_int_equal(bytes, sizeof text - 1);
    assert_memory_equal(back, text, bytes);
    /* special tokens are text unless asked for */
    assert_ok(kvcsa_model_tokenize(m, "<think>", 7, 0, ids, 200, &n, &err));
    assert_true(n > 1);
    assert_ok(kvcsa_model_tokenize(m, "<think>", 7, KVCSA_TOKENIZE_SPECIAL, ids, 200, &n, &err));
    assert_int_equal(n, 1);
    assert_int_equal(ids[0], 1533);
    assert_ok(kvcsa_model_token_text(m, 1533, &t, &bytes, &err));
    assert_int_equal(bytes, 7);
    assert_memory_equal(t, "<think>", 7);
    ids[0] = -3;
    assert_fails(kvcsa_model_detokenize(m, ids, 1, back, sizeof back, &bytes, &err), KVCSA_ERR_ARG,
                 "-3");
    assert_fails(kvcsa_model_token_text(m, 1536, &t, &bytes, &err), KVCSA_ERR_ARG, "1536");
    assert_fails(kvcsa_model_tokenize(m, NULL, 3, 0, ids, 200, &n, &err), KVCSA_ERR_ARG,
                 "text is NULL");
    assert_fails(kvcsa_model_tokenize(m, "a", 1, 8, ids, 200, &n, &err), KVCSA_ERR_UNSUPPORTED,
                 "0x8");
    assert_fails(kvcsa_model_tokenize(plan, "a", 1, 0, ids, 200, &n, &err), KVCSA_ERR_UNSUPPORTED,
                 "plan only");
    kvcsa_model_release(&m);
    kvcsa_model_release(&plan);
}

static void test_chat_prompt(void **state)
{
    const kvcsa_message msgs[] = {{"system", "Be brief."}, {"user", "Who is Ishmael? </think>"}};
    kvcsa_model        *m = host_model(TINY_DIR);
    int32_t             ids[100];
    size_t              n = 0;
    kvcsa_error         err;

    (void)state;
    assert_ok(kvcsa_model_chat_prompt(m, msgs, 2, ids, 100, &n, &err));
    assert_int_equal(ids[0], 0);        /* begin of sentence */
    assert_int_equal(ids[1], 1530);     /* system */
    assert_int_equal(ids[n - 2], 1532); /* assistant */
    assert_int_equal(ids[n - 1], 1534); /* </think>: no reasoning */
    for (size_t i = 2; i < n - 2; i++)
        assert_true(ids[i] != 1534); /* the user's own "</think>" is plain text */
    assert_int_equal(
        kvcsa_model_chat_prompt(m, &(kvcsa_message){"wizard", "x"}, 1, ids, 100, &n, &err),
        KVCSA_ERR_ARG);
    assert_non_null(strstr(err.text, "wizard"));
    kvcsa_model_release(&m);
}

static void test_text_stream_holds_back_halves(void **state)
{
    static const char *stops[] = {"STOP"};
    static const char  text[] = "caf\xc3\xa9 ST STOP more";
    kvcsa_model       *m = host_model(TINY_DIR);
    kvcsa_text_stream *s = NULL;
    int32_t            ids[64], stopped = -1;
    char               got[128] = "";
    size_t             n = 0, bytes = 0;
    const char        *t = NULL;
    kvcsa_error        err;

    (void)state;
    assert_ok(kvcsa_model_tokenize(m, text, sizeof text - 1, 0, ids, 64, &n, &err));
    assert_ok(kvcsa_text_stream_create(m, stops, 1, &s, &err));
    kvcsa_model_release(&m); /* the stream keeps it */
    for (size_t i = 0; i < n && stopped < 0; i++) {
        assert_ok(kvcsa_text_stream_push(s, ids[i], &t, &bytes, &stopped, &err));
        assert_int_equal(bytes, strlen(t));
        assert_true(bytes == 0 ||
                    ((unsigned char)t[bytes - 1] != 0xc3)); /* never half of the e acute */
        strncat(got, t, sizeof got - strlen(got) - 1);
    }
    assert_int_equal(stopped, 0);
    assert_string_equal(got, "caf\xc3\xa9 ST ");
    assert_ok(kvcsa_text_stream_finish(s, &t, &bytes, &err));
    assert_int_equal(bytes, 0);
    kvcsa_text_stream_release(&s);
    kvcsa_text_stream_release(&s);
    kvcsa_text_stream_release(NULL);
}

/* The card prints a line break as " / ". */
static const char *as_in_the_card(const char *text)
{
    static char out[2000];
    size_t      n = 0;

    for (; *text && n < sizeof out - 4; text++)
        if (*text == '\n') {
            memcpy(out + n, " / ", 3);
            n += 3;
        } else {
            out[n++] = *text;
        }
    out[n] = 0;
    return out;
}

/* The trained model writes what the reference implementation writes (data card of the model, T =
 * 0). */
static void test_tiny_greedy_continuations(void **state)
{
    kvcsa_model *m = host_model(TINY_DIR);
    kvcsa_pool  *pool = host_pool(0, 0);
    kvcsa_error  err;

    (void)state;
    for (size_t k = 0; k < sizeof tiny_samples / sizeof *tiny_samples; k++) {
        kvcsa_session *s = host_session(pool, m, 0);
        int32_t        ids[200] = {0};
        char           text[1000];
        size_t         n = 0, bytes = 0;

        assert_ok(kvcsa_model_tokenize(m, tiny_samples[k].prompt, strlen(tiny_samples[k].prompt), 0,
                                       ids + 1, 100, &n, &err));
        host_run(pool, s, ids, n + 1, NULL);
        for (int i = 0; i < 70; i++) {
            assert_ok(kvcsa_session_sample(s, NULL, &ids[i], &err));
            host_run(pool, s, &ids[i], 1, NULL);
        }
        assert_ok(kvcsa_model_detokenize(m, ids, 70, text, sizeof text - 1, &bytes, &err));
        text[bytes] = 0;
        assert_string_equal(as_in_the_card(text), tiny_samples[k].text);
        kvcsa_session_release(&s);
    }
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_is_the_headers),
        cmocka_unit_test(test_constants_keep_their_values),
        cmocka_unit_test(test_released_config_costs_890_bytes_per_token),
        cmocka_unit_test(test_families_have_plan_and_cost),
        cmocka_unit_test(test_structs_of_the_first_release),
        cmocka_unit_test(test_format_names),
        cmocka_unit_test(test_entries_in_another_format_with_weights),
        cmocka_unit_test(test_unused_tensors_are_named),
        cmocka_unit_test(test_open_refuses_bad_calls),
        cmocka_unit_test(test_broken_checkpoints_are_explained),
        cmocka_unit_test(test_mapped_and_read_weights_are_equal),
        cmocka_unit_test(test_tokenize_and_back),
        cmocka_unit_test(test_chat_prompt),
        cmocka_unit_test(test_text_stream_holds_back_halves),
        cmocka_unit_test(test_tiny_greedy_continuations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
