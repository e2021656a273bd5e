/* Cache plans of every family, from small configurations with the published shapes: the golden cost
 * table, what is read of a configuration and what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "format/row.h"
#include "model/layer_plan.h"
#include "model/model.h"
#include "model/plan_override.h"
#include "plan/plan_cost.h"
#include "support/checkpoint.h"
#include "support/fault_alloc.h"
#include "support/plan_file.h"

#define SEEDS "../../fuzz/corpus/config/"
#define N_GOLDEN 42u
#define MAX_FIELDS 8u

/* ------------------------------------------------------------------ the golden table */

typedef struct golden {
    char        text[512];
    char        plan[256]; /* JSON; "" = no changes */
    const char *id, *config;
    double      rate;
    uint64_t    const_bytes;
} golden;

/* "a=b;c=1" -> {"a": "b", "c": 1} */
static void make_json(char *changes, char *out, size_t cap)
{
    size_t n = 0;
    char  *at = NULL;

    out[0] = '\0';
    for (char *part = strtok_r(changes, ";", &at); part; part = strtok_r(NULL, ";", &at)) {
        char       *value = strchr(part, '=');
        const char *quote = "\"";

        assert_non_null(value);
        *value++ = '\0';
        if (strspn(value, "0123456789") == strlen(value) || strcmp(value, "true") == 0)
            quote = "";
        n += (size_t)snprintf(out + n, cap - n, "%s\"%s\": %s%s%s", n ? ", " : "{", part, quote,
                              value, quote);
    }
    if (n)
        snprintf(out + n, cap - n, "}");
}

static void read_golden(FILE *f, golden *g)
{
    char *fields[MAX_FIELDS];
    char *at = g->text;

    assert_non_null(fgets(g->text, sizeof g->text, f));
    g->text[strcspn(g->text, "\n")] = '\0';
    for (size_t i = 0; i < MAX_FIELDS; i++) {
        fields[i] = strsep(&at, ",");
        assert_non_null(fields[i]);
    }
    g->id = fields[0];
    g->rate = strtod(fields[3], NULL);
    g->const_bytes = strtoull(fields[4], NULL, 10);
    g->config = fields[5];
    make_json(fields[6], g->plan, sizeof g->plan);
}

static void load_golden(golden *rows)
{
    FILE *f = fopen(CONFIGS "golden.csv", "r");
    char  rest[16];

    assert_non_null(f);
    assert_non_null(fgets(rows[0].text, sizeof rows[0].text, f)); /* names of the columns */
    assert_memory_equal(rows[0].text, "id,family,dtype,rate,const,config,plan,", 39);
    for (size_t i = 0; i < N_GOLDEN; i++)
        read_golden(f, &rows[i]);
    assert_null(fgets(rest, sizeof rest, f));
    fclose(f);
}

static double rate_of(const golden *rows, const char *id)
{
    for (size_t i = 0; i < N_GOLDEN; i++)
        if (strcmp(rows[i].id, id) == 0)
            return cost_of(rows[i].config, rows[i].plan[0] ? rows[i].plan : NULL, 0).rate;
    fail_msg("no row %s", id);
    return 0;
}

/* To the byte, from the code that lays out blocks as well as from the sums. */
static void test_golden_table(void **state)
{
    golden *rows = calloc(N_GOLDEN, sizeof *rows);
    size_t  n_computed = 0;

    (void)state;
    assert_non_null(rows);
    load_golden(rows);
    for (size_t i = 0; i < N_GOLDEN; i++) {
        const golden *g = &rows[i];
        kvcsa_model  *m = open_plan(g->config, g->plan[0] ? g->plan : NULL);
        kvcsa_cost    c;
        double        block;
        uint32_t      cost_only = 0;

        kvi_plan_cost(&m->plan, 1000, &c);
        block = (double)m->layout.index_part_bytes + m->layout.main_part_bytes;
        if (c.rate != g->rate || c.const_bytes != g->const_bytes)
            fail_msg("%s: rate %.10g, const %llu, must be %.10g, %llu", g->id, c.rate,
                     (unsigned long long)c.const_bytes, g->rate,
                     (unsigned long long)g->const_bytes);
        if (block / m->layout.block_tokens != g->rate || m->layout.n_owners != c.n_kv_layers)
            fail_msg("%s: %u owners, block of %g bytes", g->id, m->layout.n_owners, block);
        assert_true(c.rate_bytes_per_token == (float)g->rate);
        assert_true(fabs(c.entry_bytes * c.sequence_factor * c.n_kv_layers - g->rate) <=
                    g->rate * 1e-15 * 8);
        for (uint32_t l = 0; l < m->plan.n_layers; l++)
            cost_only += m->plan.rows[l].cost_only;
        assert_true(m->config.has_network || cost_only == m->plan.n_layers);
        n_computed += cost_only == 0;
        kvi_model_release(m);
    }
    assert_int_equal(n_computed, 2); /* V4.1 as it is, and with MXFP8 entries */
    free(rows);
}

/* What the published figures say of each other. */
static void test_golden_ratios(void **state)
{
    golden *rows = calloc(N_GOLDEN, sizeof *rows);
    double  v32, flash, pro, v67, v41;

    (void)state;
    assert_non_null(rows);
    load_golden(rows);
    v32 = rate_of(rows, "deepseek-v3.2");
    flash = rate_of(rows, "deepseek-v4-flash");
    pro = rate_of(rows, "deepseek-v4-pro");
    v67 = rate_of(rows, "deepseek-67b-v1");
    v41 = rate_of(rows, "deepseek-v4.1-flash");
#define NEAR(x, printed, half) assert_true(fabs((x) - (printed)) <= (half))
    NEAR(pro / v32, 0.1047, 0.00005);
    NEAR(flash / v32, 0.0731, 0.00005);
    NEAR(pro / (61 * 4096), 0.02014, 0.000005);
    NEAR(flash / (43 * 4096), 0.01995, 0.000005);
    NEAR(rate_of(rows, "deepseek-v2-6bit") / v67, 0.0666, 0.00005);
    NEAR(v67 / v41, 437.2, 0.05);
    NEAR(flash / v41, 3.95, 0.005);
    NEAR(rate_of(rows, "deepseek-v4-flash-fp8idx") / v41, 4.33, 0.005);
    NEAR(131072 * rate_of(rows, "deepseek-v3-mtp") / (1 << 30), 8.72, 0.005);
    NEAR(1048576 * rate_of(rows, "deepseek-v4-pro-bf16") / (1 << 30), 9.62, 0.005);
    assert_true(rate_of(rows, "pythia-160m-mqa") / rate_of(rows, "pythia-160m-mlkv2") == 6);
    free(rows);
}

/* 437.2 = 95 / 4 layers x 1 / 0.625 entries x 4096 / 356 bytes, exactly. */
static void test_the_three_factors(void **state)
{
    const kvcsa_cost a = cost_of("deepseek-67b.json", NULL, 0);
    const kvcsa_cost b = cost_of("../v41-flash-config.json", NULL, 0);
    const kvcsa_cost half = cost_of("../v41-flash-config.json",
                                    "{\"entry_format\": \"bf16\", \"index_format\": \"bf16\"}", 0);

    (void)state;
    assert_true(a.n_kv_layers == 95 && a.sequence_factor == 1 && a.entry_bytes == 4096);
    assert_true(b.n_kv_layers == 4 && b.sequence_factor == 0.625 && b.entry_bytes == 356);
    assert_true(half.entry_bytes == 1280); /* one shared vector and its index key, bf16 */
    /* as integers: 389120 x (4 x 0.625 x 356) = 890 x (95 x 1 x 4096) */
    assert_true(a.rate * (b.n_kv_layers * b.sequence_factor * b.entry_bytes) ==
                b.rate * (a.n_kv_layers * a.sequence_factor * a.entry_bytes));
    NEAR(95. / 4 * (1 / 0.625) * (4096. / 356), a.rate / b.rate, 1e-9);
}

/* ------------------------------------------------------------------ bytes read */

typedef struct read_row {
    uint64_t n;
    uint64_t v41, v41_index;
    double   flash, pro, v32, v3, llama, v67; /* whole bytes, or rounded as printed */
    double   half[6];                         /* half a unit of the last digit; 0 = exact */
} read_row;

static const read_row reads[] = {
    {4096, 10117120, 1810432, 11329536, 25168640, 114933760, 287834112, 536870912, 1593835520, {0}},
    {50000,
     21263136,
     12956448,
     31.9e6,
     55.1e6,
     484552768,
     3.51e9,
     6.55e9,
     19.5e9,
     {.05e6, .05e6, 0, .005e9, .005e9, .05e9}},
    {131072,
     35045376,
     26738688,
     68246528,
     107885568,
     1137344512,
     9.21e9,
     17.2e9,
     51.0e9,
     {0, 0, 0, .005e9, .05e9, .05e9}},
    {1048576,
     191021056,
     182714368,
     479517696,
     705582080,
     8525086720,
     73.7e9,
     137e9,
     408e9,
     {0, 0, 0, .05e9, .5e9, .5e9}},
};

static void test_bytes_read_by_a_step(void **state)
{
    static const char *const configs[] = {"deepseek-v4-flash.json", "deepseek-v4-pro.json",
                                          "deepseek-v3.2.json",     "deepseek-v3.json",
                                          "llama3-8b.json",         "deepseek-67b.json"};

    (void)state;
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
        const read_row  *r = &reads[i];
        const double     want[] = {r->flash, r->pro, r->v32, r->v3, r->llama, r->v67};
        const kvcsa_cost v41 = cost_of("../v41-flash-config.json", NULL, r->n);

        assert_true(v41.read_bytes == r->v41 && v41.index_read_bytes == r->v41_index);
        for (size_t k = 0; k < sizeof configs / sizeof *configs; k++) {
            const kvcsa_cost c = cost_of(configs[k], NULL, r->n);

            if (fabs((double)c.read_bytes - want[k]) > r->half[k])
                fail_msg("%s at %llu reads %llu, must be %.10g +- %g", configs[k],
                         (unsigned long long)r->n, (unsigned long long)c.read_bytes, want[k],
                         r->half[k]);
        }
    }
}

/* Windows fill up, shared keys are read where they are scored, states at every step. */
static void test_bytes_of_windows_and_states(void **state)
{
    kvcsa_cost c = cost_of("mistral-7b-v0.1.json", NULL, 1000);

    (void)state;
    assert_true(c.resident_bytes == 131072000 && c.read_bytes == 131072000);
    assert_true(c.rate == 0 && c.n_kv_layers == 0 && c.entry_bytes == 0 && c.block_bytes == 0);
    assert_true(c.written_bytes == 131072 && c.persist_bytes == 0);
    c = cost_of("mistral-7b-v0.1.json", NULL, 5000);
    assert_true(c.resident_bytes == 536870912 && c.window_read_bytes == 536870912);
    /* attention to everything, as an engine without windows does it */
    c = cost_of("mistral-7b-v0.1.json", "{\"window_tokens\": 0}", 5000);
    assert_true(c.rate == 131072 && c.const_bytes == 0 && c.read_bytes == 655360000);
    c = cost_of("gemma3-27b.json", NULL, 2048);
    assert_true(c.read_bytes == 81920ull * 2048 + 436207616 && c.n_kv_layers == 10);
    c = cost_of("glm-5.2.json", NULL, 4096); /* 21 layers score, all 78 attend 2048 entries */
    assert_true(c.index_read_bytes == 21ull * 132 * 4096);
    assert_true(c.read_bytes - c.index_read_bytes == 78ull * 656 * 2048);
    assert_true(c.rate == 78 * 656 + 21 * 132);
    c = cost_of("minimax-m3.json", NULL, 4096); /* 57 layers attend 16 blocks of 128 */
    assert_true(c.read_bytes == 3ull * 2048 * 4096 + 57ull * (256 * 4096 + 2048 * 2048));
    c = cost_of("kimi-k3.json", NULL, 10);
    assert_true(c.state_bytes == 434110464 && c.read_bytes == 276480 + c.state_bytes);
    assert_true(c.persist_bytes == 276480 + c.state_bytes);
    c = cost_of("kimi-k3.json", NULL, 0);
    assert_true(c.resident_bytes == c.state_bytes);
    c = cost_of("pythia-160m.json", "{\"kv_heads\": 1, \"kv_share_layers\": [0, 6]}", 100);
    assert_true(c.rate == 512 && c.read_bytes == 12 * 256 * 100); /* all layers still read */
}

/* ------------------------------------------------------------------ what is known of models */

static void test_experts_and_layers(void **state)
{
    static const struct {
        const char *config;
        uint32_t    n_layers, vocab, n_experts, per_token, moe_layers;
        uint64_t    expert_bytes, max_tokens;
    } want[] = {
        /* three matrices: FP4 with a scale per 32, bf16, FP8 with a scale per 128 x 128 */
        {"../v41-flash-config.json", 40, 129280, 384, 6, 40, 18800640, 1048576},
        {"deepseek-v4-flash.json", 43, 129280, 256, 6, 43, 13369344, 1048576},
        {"deepseek-v3.json", 61, 129280, 256, 8, 58, 44040192 + 3 * 56 * 16 * 4, 163840},
        {"deepseek-v2.json", 60, 102400, 160, 6, 59, 3ull * 5120 * 1536 * 2, 163840},
        {"glm-5.2.json", 78, 154880, 256, 8, 75, 3ull * 6144 * 2048 * 2, 1048576},
        {"gpt-oss-120b.json", 36, 201088, 128, 4, 36, 3ull * 2880 * 2880 * 17 / 32, 131072},
        {"qwen3-30b-a3b.json", 48, 151936, 128, 8, 48, 3ull * 2048 * 768 * 2, 40960},
        {"minimax-text-01.json", 80, 200064, 32, 2, 80, 3ull * 6144 * 9216 * 2, 10240000},
        {"minimax-m3.json", 60, 200064, 128, 4, 57, 3ull * 6144 * 3072 * 2, 524288},
        {"kimi-k3.json", 93, 163840, 896, 16, 92, 3ull * 3584 * 3072 * 17 / 32, 1048576},
        {"gemma3-27b.json", 62, 262208, 0, 0, 0, 0, 131072},
        {"falcon-7b.json", 32, 65024, 0, 0, 0, 0, 2048},
        {"glm-4-9b.json", 40, 151552, 0, 0, 0, 0, 131072},
    };

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        kvcsa_model      *m = open_plan(want[i].config, NULL);
        const kvi_config *c = &m->config;

        if (m->plan.n_layers != want[i].n_layers || c->vocab_size != want[i].vocab ||
            c->n_experts != want[i].n_experts || c->n_experts_per_token != want[i].per_token ||
            c->n_moe_layers != want[i].moe_layers || c->expert_bytes != want[i].expert_bytes ||
            m->plan.max_tokens != want[i].max_tokens)
            fail_msg("%s: %u layers, %u ids, %u of %u experts in %u layers, %llu bytes, %llu",
                     want[i].config, m->plan.n_layers, c->vocab_size, c->n_experts_per_token,
                     c->n_experts, c->n_moe_layers, (unsigned long long)c->expert_bytes,
                     (unsigned long long)m->plan.max_tokens);
        kvi_model_release(m);
    }
}

/* The plan's own list and what the format room can encode. */
static void test_formats_that_can_be_stored(void **state)
{
    uint32_t n = 0;

    (void)state;
    for (uint32_t f = 0; f < 100; f++) {
        if (kvi_format_can_store(f) != kvi_row_can_run(f))
            fail_msg("format %u (%s): plan %d, format room %d", f, kvi_format_name(f),
                     kvi_format_can_store(f), kvi_row_can_run(f));
        n += kvi_format_can_store(f) != 0;
    }
    assert_int_equal(n, 10);
}

/* Which layers do what, beyond the sums. */
static void test_rows_of_families(void **state)
{
    kvcsa_model        *m = open_plan("glm-5.2.json", "{\"draft_layers\": true}");
    const kvi_plan_row *r = m->plan.rows;

    (void)state;
    assert_int_equal(m->plan.n_layers, 79);
    assert_true(r[5].kv_owner == 5 && r[5].index_owner == 2 && r[5].select_owner == 2);
    assert_true(r[5].select == KVCSA_SELECT_INHERITED && r[5].index_bytes == 0);
    assert_true(r[6].index_owner == 6 && r[6].select == KVCSA_SELECT_OWN);
    assert_true(r[77].index_owner == 74 && r[78].index_owner == 78); /* the draft layer's own */
    kvi_model_release(m);

    m = open_plan("deepseek-v4-flash.json", NULL);
    r = m->plan.rows;
    assert_true(r[1].ratio == 0 && r[1].window_tokens == 128 && r[1].window_bytes == 584);
    assert_true(r[2].ratio == 4 && r[2].pool_kind == KVCSA_POOLING_OVERLAP && r[2].sink == 1);
    assert_true(r[2].select == KVCSA_SELECT_OWN && r[2].select_entries == 512);
    assert_true(r[2].pending_bytes == 7 * 2 * 8 * (512 + 128));
    assert_true(r[3].ratio == 128 && r[3].pool_kind == KVCSA_POOLING_WIDE);
    assert_true(r[3].select == KVCSA_SELECT_ALL && r[3].pending_bytes == 127 * 8 * 512);
    kvi_model_release(m);

    m = open_plan("gpt-oss-120b.json", NULL);
    r = m->plan.rows;
    assert_true(r[0].ratio == 0 && r[0].window_tokens == 128 && r[0].window_bytes == 2048);
    assert_true(r[0].kv_heads == 8 && r[1].ratio == 1 && r[1].window_tokens == 0);
    assert_true(r[1].sink == 1 && r[1].value_kind == KVCSA_VALUE_OWN && r[1].value_width == 64);
    kvi_model_release(m);

    m = open_plan("deepseek-v2.json", NULL);
    r = m->plan.rows;
    assert_true(r[0].entry_width == 576 && r[0].value_width == 512 && r[0].entry_rotated == 64);
    assert_true(r[0].value_kind == KVCSA_VALUE_PREFIX && r[0].value_format == KVCSA_FORMAT_NONE);
    kvi_model_release(m);

    m = open_plan("kimi-k3.json", NULL);
    r = m->plan.rows;
    assert_true(r[2].state_heads == 96 && r[2].ratio == 0 && r[3].ratio == 1);
    assert_true(r[91].ratio == 1 && r[92].ratio == 1 && r[90].state_bytes == 6291456);
    kvi_model_release(m);
}

/* ------------------------------------------------------------------ other spellings */

typedef struct spelling {
    const char *config; /* with `path` set to `value`, and then path2 */
    const char *path, *value;
    const char *path2, *value2;
    double      rate;
    uint64_t    const_bytes;
} spelling;

static const spelling spellings[] = {
    {"llama2-7b.json", "torch_dtype", "\"float32\"", NULL, NULL, 1048576, 0},
    {"llama2-7b.json", "torch_dtype", NULL, "dtype", "\"float32\"", 1048576, 0},
    {"llama2-7b.json", "num_key_value_heads", NULL, NULL, NULL, 524288, 0},
    {"llama3-8b.json", "head_dim", "64", NULL, NULL, 65536, 0},
    {"mistral-7b-v0.1.json", "sliding_window", "null", NULL, NULL, 131072, 0},
    {"mistral-7b-v0.1.json", "sliding_window", NULL, NULL, NULL, 0, 536870912},
    {"qwen2.5-7b.json", "use_sliding_window", "true", "max_window_layers", "14", 28672,
     14ull * 2048 * 131072},
    {"qwen2.5-7b.json", "use_sliding_window", "true", "sliding_window", "null", 57344, 0},
    {"qwen3-30b-a3b.json", "mlp_only_layers", "[0, 1]", NULL, NULL, 98304, 0},
    {"gemma3-27b.json", "text_config/sliding_window_pattern", "2", NULL, NULL, 31 * 8192,
     31ull * 1024 * 8192},
    {"gpt-oss-120b.json", "layer_types", NULL, NULL, NULL, 36864, 4718592},
    {"falcon-7b.json", "multi_query", "false", NULL, NULL, 71 * 8192, 0},
    {"falcon-7b.json", "new_decoder_architecture", "true", "num_kv_heads", "1", 8192, 0},
    {"falcon-7b.json", "architectures", "[\"RWForCausalLM\"]", NULL, NULL, 8192, 0},
    {"deepseek-v3.json", "architectures", "[\"KimiK25ForConditionalGeneration\"]", NULL, NULL,
     70272, 0},
    {"deepseek-v3.2.json", "kv_lora_rank", "256", NULL, NULL, 61 * (640 + 132), 0}, /* no record */
    {"glm-5.2.json", "indexer_types", NULL, NULL, NULL, 78 * 656 + 21 * 132, 0},
    {"glm-5.2.json", "indexer_types", NULL, "index_topk_freq", "1", 78 * 788, 0},
    {"glm-5.2.json", "indexer_types", NULL, "num_hidden_layers", "4", 4 * 656 + 3 * 132, 0},
    {"deepseek-v4-flash.json", "num_hidden_layers", "5", NULL, NULL, 2 * 163 + 4.5625,
     5ull * 128 * 584},
    {"minimax-text-01.json", "architectures", "[\"MiniMaxForCausalLM\"]", NULL, NULL, 40960,
     293601280},
    {"glm-4-9b.json", "architectures", "[\"ChatGLMModel\"]", NULL, NULL, 40 * 1024, 0},
    /* kinds of layers and a rate for each, as the class has them: W S H S H S W, 8 and 64 */
    {SEEDS "kinds", "use_cache", "true", NULL, NULL, 3 * 652 / 8. + 2 * 584 / 64., 7 * 128 * 584},
    {SEEDS "kinds", "compress_rates", NULL, NULL, NULL, 3 * 163 + 2 * 4.5625, 7 * 128 * 584},
    {SEEDS "pattern", "use_cache", "true", NULL, NULL, 9 * 656 + 4 * 132, 0}, /* FFSSFSSSF */
};

static void test_other_spellings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        const spelling *s = &spellings[i];
        size_t          n = 0;
        char            path[256];
        char           *text;
        char           *json;
        kvi_config      c;
        kvi_plan        plan;
        kvcsa_cost      cost;
        kvcsa_allocator a;
        kvcsa_error     err;

        snprintf(path, sizeof path, CONFIGS "%s", s->config);
        text = read_file(path, &n);
        json = edit_json(text, n, s->path, s->value);
        if (s->path2) {
            free(text);
            text = json;
            json = edit_json(text, strlen(text), s->path2, s->value2);
        }
        assert_int_equal(kvi_allocator_import(NULL, &a, NULL), KVCSA_OK);
        if (kvi_config_read(json, strlen(json), s->config, 1, &c, NULL, &err) != KVCSA_OK ||
            kvi_layer_plan_build(&c, 0, &a, &plan, &err) != KVCSA_OK)
            fail_msg("%zu: %s", i, err.text);
        kvi_plan_cost(&plan, 0, &cost);
        if (cost.rate != s->rate || cost.const_bytes != s->const_bytes)
            fail_msg("%s with %s: rate %.10g, const %llu", s->config, s->path, cost.rate,
                     (unsigned long long)cost.const_bytes);
        kvi_layer_plan_fini(&plan, &a);
        free(json);
        free(text);
    }
}

/* ------------------------------------------------------------------ hostile files */

/* What sets the bytes of each family: without it, and with any of bad_values, ERR_FORMAT. */
static const struct needed {
    const char *config;
    const char *keys[12];
} needed[] = {
    {"gpt2-124m.json", {"n_embd", "n_head", "n_layer", "n_positions", "vocab_size"}},
    {"pythia-160m.json",
     {"hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings"}},
    {"llama3-8b.json",
     {"hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings",
      "vocab_size"}},
    {"mistral-7b-v0.1.json", {"hidden_size", "num_attention_heads", "num_hidden_layers"}},
    {"qwen2.5-7b.json", {"hidden_size", "num_attention_heads", "num_hidden_layers"}},
    {"qwen3-30b-a3b.json", {"num_attention_heads", "num_hidden_layers", "num_experts_per_tok"}},
    {"gemma3-27b.json", {"text_config/hidden_size", "text_config/num_hidden_layers"}},
    {"gpt-oss-120b.json", {"hidden_size", "num_hidden_layers", "num_experts_per_tok"}},
    {"falcon-7b.json", {"hidden_size", "num_attention_heads", "num_hidden_layers"}},
    {"minimax-text-01.json", {"hidden_size", "num_attention_heads", "num_hidden_layers"}},
    {"minimax-m2.json", {"hidden_size", "num_attention_heads", "num_hidden_layers"}},
    {"minimax-m3.json",
     {"text_config/hidden_size", "text_config/num_hidden_layers",
      "text_config/sparse_attention_config/sparse_index_dim",
      "text_config/sparse_attention_config/sparse_num_index_heads",
      "text_config/sparse_attention_config/sparse_topk_blocks",
      "text_config/sparse_attention_config/sparse_block_size"}},
    {"deepseek-v2.json", {"hidden_size", "num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim"}},
    {"deepseek-v3.json", {"hidden_size", "num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim"}},
    {"deepseek-v3.2.json",
     {"num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim", "index_n_heads", "index_head_dim",
      "index_topk"}},
    {"glm-5.2.json",
     {"num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim", "index_n_heads", "index_head_dim",
      "index_topk"}},
    {"glm-4-9b.json", {"hidden_size", "num_attention_heads", "num_hidden_layers"}},
    {"deepseek-v4-flash.json",
     {"num_hidden_layers", "head_dim", "sliding_window", "compress_ratios", "index_n_heads",
      "index_head_dim", "index_topk"}},
    {"kimi-k3.json",
     {"text_config/num_hidden_layers", "text_config/kv_lora_rank", "text_config/qk_rope_head_dim",
      "text_config/linear_attn_config", "text_config/linear_attn_config/num_heads",
      "text_config/linear_attn_config/head_dim", "text_config/linear_attn_config/kda_layers",
      "text_config/linear_attn_config/full_attn_layers"}},
    {V41, {"text_config/num_hidden_layers", "text_config/head_dim", "text_config/compress_ratios"}},
};

static const char *const bad_values[] = {
    "null",
    "-1",
    "-9223372036854775808",
    "9223372036854775807",
    "1.5",
    "1e300",
    "\"1\"",
    "true",
    "{}",
    "[]",
    "[-1]",
    "[\"full\", null, 7]",
    "[9223372036854775807]",
    "0",
};

/* Reads it, and makes a plan of it if it can be read; never anything but a status. */
static kvcsa_status read_config(const char *json, kvcsa_error *err)
{
    kvi_plan_override o;
    kvcsa_allocator   a;
    kvi_config        c;
    kvi_plan          plan;
    kvcsa_cost        cost;
    kvcsa_status      st = kvi_config_read(json, strlen(json), "c.json", 1, &c, &o, err);

    if (st != KVCSA_OK)
        return st;
    assert_int_equal(kvi_allocator_import(NULL, &a, NULL), KVCSA_OK);
    st = kvi_layer_plan_build(&c, 0, &a, &plan, err);
    if (st != KVCSA_OK && st != KVCSA_ERR_ARG) /* the reader leaves it the size of a block only */
        fail_msg("%s", err->text);
    if (st == KVCSA_OK)
        kvi_plan_cost(&plan, plan.max_tokens, &cost);
    kvi_layer_plan_fini(&plan, &a);
    return KVCSA_OK;
}

static int is_needed(const struct needed *n, const char *path)
{
    for (size_t i = 0; i < 12 && n->keys[i]; i++)
        if (strcmp(n->keys[i], path) == 0)
            return 1;
    return 0;
}

/* One key spoiled in every way, then those below it. Returns how many needed keys were met. */
static size_t spoil(const struct needed *n, const char *text, const json_t *object,
                    const char *prefix)
{
    const char *key;
    json_t     *value;
    size_t      met = 0;

    json_object_foreach((json_t *)object, key, value)
    {
        char path[256];

        snprintf(path, sizeof path, "%s%s", prefix, key);
        for (size_t i = 0; i <= sizeof bad_values / sizeof *bad_values; i++) {
            const char  *bad = i ? bad_values[i - 1] : NULL;
            char        *json = edit_json(text, strlen(text), path, bad);
            kvcsa_error  err = {0};
            kvcsa_status st = read_config(json, &err);

            if (st != KVCSA_OK && st != KVCSA_ERR_FORMAT && st != KVCSA_ERR_UNSUPPORTED)
                fail_msg("%s: %s = %s: %d", n->config, path, bad ? bad : "absent", st);
            /* one that is absent may be named by its first spelling */
            if (is_needed(n, path) && (st != KVCSA_ERR_FORMAT || (i > 1 && !strstr(err.text, key))))
                fail_msg("%s: %s = %s: %d, \"%s\"", n->config, path, bad ? bad : "absent", st,
                         err.text);
            free(json);
        }
        met += (size_t)is_needed(n, path);
        if (json_is_object(value)) {
            strncat(path, "/", sizeof path - strlen(path) - 1);
            met += spoil(n, text, value, path);
        }
    }
    return met;
}

static void test_hostile_configurations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        size_t  n = 0;
        size_t  n_keys = 0;
        char    path[256];
        char   *text;
        json_t *root;

        snprintf(path, sizeof path, CONFIGS "%s", needed[i].config);
        text = read_file(path, &n);
        root = json_loadb(text, n, 0, NULL);
        assert_non_null(root);
        while (n_keys < 12 && needed[i].keys[n_keys])
            n_keys++;
        assert_int_equal(spoil(&needed[i], text, root, ""), n_keys);
        json_decref(root);
        free(text);
    }
}

static const struct bad_value {
    const char  *config, *path, *value, *says;
    kvcsa_status status;
} bad_fields[] = {
#define F KVCSA_ERR_FORMAT
#define U KVCSA_ERR_UNSUPPORTED
    {"llama3-8b.json", "architectures", "[\"BertModel\"]",
     "architectures is \"BertModel\", this version reads \"DeepseekV41ForCausalLM\" and the "
     "families of docs/formats.md",
     U},
    {"llama3-8b.json", "architectures", NULL, "architectures is absent, must be a list", F},
    {"llama3-8b.json", "torch_dtype", "\"float8\"",
     "torch_dtype is \"float8\", must be bfloat16, float16 or float32", F},
    {"llama3-8b.json", "num_key_value_heads", "7",
     "num_key_value_heads is 7, must divide the number of attention heads (32)", F},
    {"llama3-8b.json", "hidden_size", "4097",
     "hidden_size is 4097, must be a multiple of the attention heads (32)", F},
    {"llama3-8b.json", "head_dim", "65536",
     "num_key_value_heads is 8, x 2 x 65536 channels of a head must be at most 65536", F},
    {"llama3-8b.json", "num_hidden_layers", "513", "num_hidden_layers is 513, must be 1..512", F},
    {"deepseek-v3.json", "num_hidden_layers", "512",
     "num_hidden_layers is 512, with 1 draft layers the limit is 512", F},
    {"llama3-8b.json", "text_config", "4", "text_config is an integer, must be an object", F},
    {"gemma3-27b.json", "text_config/sliding_window", "2097152",
     "text_config.sliding_window is 2097152, must be 1..1048576", F},
    {"gpt-oss-120b.json", "layer_types/3", "\"mamba\"",
     "layer_types is \"mamba\" at layer 3, not a kind of this family", U},
    {"gpt-oss-120b.json", "layer_types/3", "3", "layer_types is an integer at layer 3", F},
    {"gpt-oss-120b.json", "num_hidden_layers", "35", "layer_types has 36 items, must have 35", F},
    {"minimax-text-01.json", "attn_type_list/3", "2", "attn_type_list is 2, must be 0..1", F},
    {"minimax-text-01.json", "num_hidden_layers", "79", "attn_type_list has 80 items", F},
    {"deepseek-v4-flash.json", "compress_ratios", NULL, "compress_ratios is absent", F},
    {SEEDS "kinds", "compress_rates/compressed_sparse_attention", "513",
     "compress_rates.compressed_sparse_attention is 513, must be 2..512", F},
    {SEEDS "kinds", "layer_types/0", "\"full_attention\"",
     "layer_types is \"full_attention\" at layer 0, not a kind of this family", U},
    {SEEDS "pattern", "index_topk_pattern", "\"FF\"",
     "index_topk_pattern is \"FF\", must be 9 letters F or S", F},
    {SEEDS "pattern", "index_topk_pattern", "\"SFSSFSSSF\"",
     "index_topk_pattern shares a selection in layer 0", F},
    {"minimax-m3.json", "text_config/sparse_attention_config/sparse_topk_blocks", "1048576",
     "gives 134217728 selected tokens, limit 1048576", F},
    {"deepseek-v3.json", "qk_rope_head_dim", "63", "qk_rope_head_dim is 63, must be a multiple", F},
    {"deepseek-v3.json", "kv_lora_rank", "65536",
     "kv_lora_rank is 65536, + qk_rope_head_dim (64) must be at most 65536", F},
    {"glm-5.2.json", "indexer_types/0", "\"shared\"", "indexer_types shares a selection in layer 0",
     F},
    {"glm-5.2.json", "indexer_types/7", "\"half\"",
     "indexer_types is \"half\" at layer 7, must be full or shared", F},
    {"glm-5.2.json", "indexer_types", "[\"full\"]", "indexer_types has 1 items, must have 78", F},
    {"deepseek-v4-flash.json", "compress_ratios/5", "8",
     "compress_ratios is 8 at layer 5, this version reads 0, 4 and 128", U},
    {"deepseek-v4-flash.json", "compress_ratios", "[0, 0]",
     "compress_ratios has 2 items, must have 43 at least", F},
    {"deepseek-v4-flash.json", "num_key_value_heads", "8", "num_key_value_heads is not 1", U},
    {"deepseek-v4-flash.json", "qk_rope_head_dim", "513", "qk_rope_head_dim is 513", F},
    {"kimi-k3.json", "text_config/linear_attn_config/kda_layers/0", "0",
     "linear_attn_config.kda_layers is 0, must be 1..93", F},
    {"kimi-k3.json", "text_config/linear_attn_config/full_attn_layers/0", "3",
     "full_attn_layers and kda_layers have layer 3 twice, must have it once", F},
    {"kimi-k3.json", "text_config/linear_attn_config/full_attn_layers", "[4]",
     "full_attn_layers and kda_layers have layer 8 nowhere, must have it once", F},
    {"kimi-k3.json", "text_config/linear_attn_config/head_dim", "65536",
     "linear_attn_config is 96, which makes a state of 1649267441664 bytes, limit 1099511627776",
     F},
#undef F
#undef U
};

static void test_bad_fields_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_fields / sizeof *bad_fields; i++) {
        const struct bad_value *b = &bad_fields[i];
        size_t                  n = 0;
        char                    path[256];
        char                   *text;
        char                   *json;
        kvcsa_error             err = {0};
        kvcsa_status            st;

        snprintf(path, sizeof path, CONFIGS "%s", b->config);
        text = read_file(path, &n);
        json = edit_json(text, n, b->path, b->value);
        st = read_config(json, &err);
        if (st != b->status || (st != KVCSA_OK && !strstr(err.text, b->says)))
            fail_msg("%s: %s = %s: %d, \"%s\"", b->config, b->path, b->value ? b->value : "absent",
                     st, err.text);
        free(json);
        free(text);
    }
}

/* Of the configuration, whatever the plan; other shapes have another one. */
static void test_fingerprints(void **state)
{
    kvcsa_model *a = open_plan("deepseek-v3.json", NULL);
    kvcsa_model *b = open_plan("deepseek-v3.json", "{\"entry_format\": \"mla-fp8-656\"}");
    kvcsa_model *c = open_plan("kimi-k2.json", NULL);
    kvcsa_model *d = open_plan("deepseek-v3.2.json", NULL);

    (void)state;
    assert_true(a->fingerprint == b->fingerprint);
    assert_true(a->fingerprint != c->fingerprint && a->fingerprint != d->fingerprint);
    assert_true(b->config.cache.entry_format == KVCSA_FORMAT_BF16); /* what the weights are */
    assert_true(b->plan.rows[0].entry_format == KVCSA_FORMAT_MLA_FP8_656);
    kvi_model_release(a);
    kvi_model_release(b);
    kvi_model_release(c);
    kvi_model_release(d);
}

static void test_open_frees_on_failure(void **state)
{
    fault_alloc        fa;
    kvcsa_model_params p = {.struct_size = sizeof p,
                            .allocator = &fa.hook,
                            .flags = KVCSA_MODEL_PLAN_ONLY,
                            .plan = "{\"entry_format\": \"mla-fp4-432\"}"};
    uint64_t           n = 1;

    (void)state;
    for (;; n++) {
        kvcsa_model *m = NULL;
        kvcsa_status st;

        fault_alloc_init(&fa);
        fault_alloc_fail_at(&fa, n);
        st = kvi_model_open(CONFIGS "glm-5.2.json", &p, &m, NULL);
        kvi_model_release(m);
        assert_true(fault_alloc_is_clean(&fa));
        if (!fault_alloc_hit(&fa)) {
            assert_int_equal(st, KVCSA_OK);
            break;
        }
        assert_int_equal(st, KVCSA_ERR_NOMEM);
        assert_null(m);
    }
    assert_true(n > 4); /* the handle, the text, rows, the layout, ... */
}

/* Without weights of its family nothing but the plan can be opened. */
static void test_a_family_without_network(void **state)
{
    const kvcsa_model_params p = {.struct_size = sizeof p};
    checkpoint               c;
    kvcsa_model             *m = NULL;
    kvcsa_error              err;

    (void)state;
    checkpoint_copy(&c, T1_DIR);
    checkpoint_edit_config(&c, "architectures", "[\"Qwen3ForCausalLM\"]");
    assert_int_equal(kvi_model_open(c.dir, &p, &m, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text,
                           "\"Qwen3ForCausalLM\", of which this version has plan and cost "
                           "only (KVCSA_MODEL_PLAN_ONLY)"));
    assert_null(m);
    checkpoint_remove(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_table),
        cmocka_unit_test(test_golden_ratios),
        cmocka_unit_test(test_the_three_factors),
        cmocka_unit_test(test_bytes_read_by_a_step),
        cmocka_unit_test(test_bytes_of_windows_and_states),
        cmocka_unit_test(test_experts_and_layers),
        cmocka_unit_test(test_formats_that_can_be_stored),
        cmocka_unit_test(test_rows_of_families),
        cmocka_unit_test(test_other_spellings),
        cmocka_unit_test(test_hostile_configurations),
        cmocka_unit_test(test_bad_fields_are_named),
        cmocka_unit_test(test_fingerprints),
        cmocka_unit_test(test_open_frees_on_failure),
        cmocka_unit_test(test_a_family_without_network),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
