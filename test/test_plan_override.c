/* Changes of a plan: what each key does, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/checkpoint.h"
#include "support/plan_file.h"

typedef struct change {
    const char *config, *plan;
    double      rate;
    uint64_t    const_bytes;
} change;

static const change changes[] = {
    {"llama3-8b.json", "{}", 131072, 0},
    {"llama3-8b.json", "{\"entry_format\": null}", 131072, 0},
    {"llama3-8b.json", "{\"entry_format\": \"f32\"}", 262144, 0},
    {"llama3-8b.json", "{\"entry_format\": \"q8_0\", \"value_format\": \"q4_0\"}",
     32 * 8 * (136 + 72), 0},
    {"llama3-8b.json", "{\"value_format\": \"fp8\"}", 32 * 8 * (256 + 128), 0},
    {"llama3-8b.json", "{\"kv_share_layers\": 2}", 65536, 0},
    {"llama3-8b.json", "{\"kv_share_layers\": 3}", 11 * 4096, 0},
    {"llama3-8b.json", "{\"kv_share_layers\": [0, 31]}", 8192, 0},
    {"llama3-8b.json", "{\"kv_share_layers\": 512, \"kv_heads\": 2}", 1024, 0},
    {"gemma3-27b.json", "{\"entry_format\": \"q8_0\"}", 10 * 4352, 52ull * 1024 * 4352},
    {"gemma3-27b.json", "{\"window_format\": \"fp8\"}", 81920, 52ull * 1024 * 4096},
    {"gemma3-27b.json", "{\"window_tokens\": 512}", 81920, 52ull * 512 * 8192},
    {"gemma3-27b.json", "{\"window_tokens\": 0}", 62 * 8192, 0},
    {"gemma3-27b.json", "{\"kv_share_layers\": 2}", 5 * 8192, 52ull * 1024 * 8192},
    {"deepseek-v3.2.json", "{\"index_share_layers\": 4}", 61 * 656 + 16 * 132, 0},
    {"deepseek-v3.2.json", "{\"kv_share_layers\": 2}", 31 * 788, 0},
    {"deepseek-v3.2.json", "{\"kv_share_layers\": 2, \"index_share_layers\": 4}",
     31 * 656 + 16 * 132, 0},
    {"deepseek-v3.2.json", "{\"kv_share_layers\": 4, \"index_share_layers\": 2}", 16 * 788, 0},
    {"deepseek-v3.2.json", "{\"index_share_layers\": [0, 3], \"draft_layers\": true}",
     62 * 656 + 2 * 132, 0},
    {"deepseek-v4-flash.json", "{\"index_share_layers\": 2}", 21 * 146 + 20 * 4.5625 + 11 * 17,
     3214336},
    {V41, "{\"draft_layers\": true}", 890, 2703360 + 202752},
    {V41, "{\"draft_layers\": false}", 890, 2703360},
    {V41, "{\"window_tokens\": 0}", 890 + 2 * 288, 0},
    {V41, "{\"window_tokens\": 64}", 890, 2703360 / 2},
    {V41, "{\"index_share_layers\": [2, 20]}", 890 - 68, 2703360},
    {V41, "{\"index_share_layers\": [2, 8, 14, 20]}", 890, 2703360},
    {V41, "{\"kv_heads\": 1}", 890, 2703360},
    {V41, "{\"entry_format\": \"int3\"}", 2.5 * (224 + 68), 2703360},
};

static void test_changes_of_a_plan(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const change    *k = &changes[i];
        const kvcsa_cost c = cost_of(k->config, k->plan, 0);

        if (c.rate != k->rate || c.const_bytes != k->const_bytes)
            fail_msg("%s with %s: rate %.10g, const %llu", k->config, k->plan, c.rate,
                     (unsigned long long)c.const_bytes);
    }
}

static const struct bad_change {
    const char *config, *plan, *says;
} bad_changes[] = {
    {"llama3-8b.json", "", "plan: not JSON"},
    {"llama3-8b.json", "[1]", "plan: the JSON root must be an object"},
    {"llama3-8b.json", "{\"kv_heads\": 1, \"kv_heads\": 1}", "plan: not JSON at line 1"},
    {"llama3-8b.json", "{\"entri_format\": \"bf16\"}",
     "plan: entri_format is not a key, the nearest are entry_format, index_format, value_format"},
    {"llama3-8b.json", "{\"heads\": 1}", "plan: heads is not a key, the nearest are kv_heads, "},
    {"llama3-8b.json", "{\"\": 1}", "plan:  is not a key, the nearest are kv_heads, "},
    {"llama3-8b.json",
     "{\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\": 1}",
     "plan: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa is not a key, the nearest are"},
    {"llama3-8b.json", "{\"entry_format\": 6}",
     "plan: entry_format is an integer, must be a string"},
    {"llama3-8b.json", "{\"entry_format\": \"fp5\"}",
     "plan: entry_format is \"fp5\", must be one of fp4, mxfp4, mxfp8, f32, f16, bf16, fp4-as-f32, "
     "q8_0, q4_0, int3, fp8, fp8-f32, int6, mla-fp8-656, mla-fp4-432, csa-fp8-584"},
    {"llama3-8b.json", "{\"entry_format\": \"mla-fp8-656\"}",
     "plan: entry_format is \"mla-fp8-656\", which does not come in 128 channels"},
    {"llama3-8b.json", "{\"value_format\": \"csa-fp8-584\"}",
     "plan: value_format is \"csa-fp8-584\", which does not come in 128 channels"},
    {"deepseek-v3.json", "{\"value_format\": \"bf16\"}",
     "plan: value_format is given, but this model has no values beside its keys"},
    {"llama3-8b.json", "{\"index_format\": \"bf16\"}",
     "plan: index_format is given, but this model has no index keys"},
    {"deepseek-v3.2.json", "{\"index_format\": \"mla-fp8-656\"}", "not come in 128 channels"},
    {"llama3-8b.json", "{\"window_format\": \"bf16\"}", "this model has no windows"},
    {"mistral-7b-v0.1.json", "{\"window_format\": \"mla-fp8-656\"}", "not come in 128 channels"},
    {"llama3-8b.json", "{\"kv_heads\": 0}", "plan: kv_heads is 0, must be 1..16384"},
    {"llama3-8b.json", "{\"kv_heads\": 16384}",
     "plan: kv_heads is 16384, which makes rows of 4194304 channels, limit 65536"},
    {"llama3-8b.json", "{\"kv_heads\": 1.5}",
     "plan: kv_heads is a real number, must be an integer"},
    {"deepseek-v3.json", "{\"kv_heads\": 2}",
     "plan: kv_heads is 2, must be 1: all heads share one latent"},
    {"llama3-8b.json", "{\"kv_share_layers\": 0}", "plan: kv_share_layers is 0, must be 1..512"},
    {"llama3-8b.json", "{\"kv_share_layers\": \"2\"}",
     "plan: kv_share_layers is a string, must be a number of layers or a list of those that own"},
    {"llama3-8b.json", "{\"kv_share_layers\": []}", "plan: kv_share_layers must have layer 0"},
    {"llama3-8b.json", "{\"kv_share_layers\": [1]}",
     "plan: kv_share_layers must have layer 0, in front of which none owns"},
    {"llama3-8b.json", "{\"kv_share_layers\": [0, 32]}",
     "plan: kv_share_layers has layer 32, which has no entries in this model"},
    {"llama3-8b.json", "{\"kv_share_layers\": [0, 0]}",
     "plan: kv_share_layers has 0 behind 0, must be distinct and ascending"},
    {"llama3-8b.json", "{\"kv_share_layers\": [0, 512]}", "plan: kv_share_layers is 512"},
    {"mistral-7b-v0.1.json", "{\"kv_share_layers\": 2}",
     "plan: kv_share_layers is given, but this model has no entries"},
    {"deepseek-v4-flash.json", "{\"kv_share_layers\": 2}",
     "layer 3: ratio is 128, must be 4 as in kv_owner"},
    {"llama3-8b.json", "{\"index_share_layers\": 2}",
     "plan: index_share_layers is given, but this model has no index keys"},
    {"minimax-m3.json", "{\"index_share_layers\": [2, 3]}",
     "plan: index_share_layers has layer 2, which has no index keys in this model"},
    {"llama3-8b.json", "{\"draft_layers\": true}", "this model has no draft layers"},
    {"deepseek-v3.json", "{\"draft_layers\": 1}",
     "plan: draft_layers is an integer, must be true or false"},
    {"llama3-8b.json", "{\"window_tokens\": 128}", "this model has no windows"},
    {"mistral-7b-v0.1.json", "{\"window_tokens\": -1}", "plan: window_tokens is -1, must be 0.."},
    {"llama3-8b.json", "{\"max_tokens\": 0}", "plan: max_tokens is 0, must be 1..4294967295"},
    {"llama3-8b.json", "{\"max_tokens\": 4294967296}", "plan: max_tokens is 4294967296"},
};

static void test_bad_changes_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_changes / sizeof *bad_changes; i++) {
        const struct bad_change *b = &bad_changes[i];
        kvcsa_model             *m = NULL;
        kvcsa_error              err = {0};
        char                     path[256];
        kvcsa_status             st;

        snprintf(path, sizeof path, CONFIGS "%s", b->config);
        st = try_open(path, b->plan, &m, &err);
        if (st != KVCSA_ERR_ARG || err.status != st || m || !strstr(err.text, b->says))
            fail_msg("%s with %s: %d, \"%s\"", b->config, b->plan, st, err.text);
        assert_int_equal(try_open(path, b->plan, &m, NULL), KVCSA_ERR_ARG);
    }
}

static void test_a_long_text_is_refused(void **state)
{
    char        *text = malloc((1 << 16) + 2);
    kvcsa_model *m = NULL;
    kvcsa_error  err;

    (void)state;
    assert_non_null(text);
    memset(text, ' ', (1 << 16) + 1);
    memcpy(text, "{}", 2);
    text[1 << 16] = '\0';
    assert_int_equal(try_open(CONFIGS "llama3-8b.json", text, &m, &err), KVCSA_OK);
    kvi_model_release(m);
    text[1 << 16] = ' ';
    text[(1 << 16) + 1] = '\0';
    assert_int_equal(try_open(CONFIGS "llama3-8b.json", text, &m, &err), KVCSA_ERR_ARG);
    assert_string_equal(err.text, "plan: text is longer than 65536 bytes");
    free(text);
}

/* A configuration file in a folder of its own. */
static void write_config(const char *path, const char *config, const char *key, const char *value)
{
    size_t n = 0;
    char   from[256];
    char  *text;
    char  *json;
    FILE  *f;

    snprintf(from, sizeof from, CONFIGS "%s", config);
    text = read_file(from, &n);
    json = edit_json(text, n, key, value);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(json, f) >= 0);
    assert_int_equal(fclose(f), 0);
    free(json);
    free(text);
}

static void test_changes_in_the_file(void **state)
{
    char         path[] = "/tmp/kvcsa-plan-XXXXXX";
    kvcsa_model *m = NULL;
    kvcsa_error  err;
    kvcsa_cost   c;

    (void)state;
    assert_int_equal(close(mkstemp(path)), 0);
    write_config(path, "llama3-8b.json", "kvcsa_plan",
                 "{\"entry_format\": \"q8_0\", \"kv_heads\": 1}");
    assert_int_equal(try_open(path, NULL, &m, &err), KVCSA_OK);
    kvi_plan_cost(&m->plan, 0, &c);
    assert_true(c.rate == 32 * 2 * 136);
    kvi_model_release(m);
    /* the call wins, key by key */
    assert_int_equal(try_open(path, "{\"entry_format\": \"q4_0\"}", &m, &err), KVCSA_OK);
    kvi_plan_cost(&m->plan, 0, &c);
    assert_true(c.rate == 32 * 2 * 72);
    kvi_model_release(m);
    assert_int_equal(try_open(path, "{\"entry_format\": null}", &m, &err), KVCSA_OK);
    kvi_plan_cost(&m->plan, 0, &c);
    assert_true(c.rate == 32 * 2 * 136);
    kvi_model_release(m);
    /* faults are the file's */
    write_config(path, "llama3-8b.json", "kvcsa_plan", "{\"kv_head\": 1}");
    assert_int_equal(try_open(path, "{\"kv_heads\": 1}", &m, &err), KVCSA_ERR_FORMAT);
    assert_non_null(
        strstr(err.text, ": kvcsa_plan.kv_head is not a key, the nearest are kv_heads"));
    write_config(path, "llama3-8b.json", "kvcsa_plan", "7");
    assert_int_equal(try_open(path, NULL, &m, &err), KVCSA_ERR_FORMAT);
    assert_non_null(strstr(err.text, "kvcsa_plan is an integer, must be an object"));
    write_config(path, "llama3-8b.json", "kvcsa_plan", "{\"draft_layers\": true}");
    assert_int_equal(try_open(path, NULL, &m, &err), KVCSA_ERR_FORMAT);
    assert_non_null(strstr(err.text, "kvcsa_plan.draft_layers is given, but this model has no"));
    write_config(path, "deepseek-v4-flash.json", "kvcsa_plan", "{\"kv_share_layers\": 2}");
    assert_int_equal(try_open(path, NULL, &m, &err), KVCSA_ERR_FORMAT);
    assert_non_null(strstr(err.text, "layer 3: ratio is 128, must be 4"));
    assert_null(m);
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changes_of_a_plan),
        cmocka_unit_test(test_bad_changes_are_named),
        cmocka_unit_test(test_a_long_text_is_refused),
        cmocka_unit_test(test_changes_in_the_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
