/* config.json and the cache plan made of it. Expected values: docs/formats.md and the published
 * configuration. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "model/config.h"
#include "model/layer_plan.h"
#include "support/checkpoint.h"
#include "support/config_file.h"
#include "support/fault_alloc.h"

/* ------------------------------------------------------------------ config */

static void test_config_parse_reads_release(void **state)
{
    kvi_config c;

    (void)state;
    load_config(RELEASE_CONFIG, &c);
    assert_string_equal(c.architecture, "DeepseekV41ForCausalLM");
    assert_int_equal(c.vocab_size, 129280);
    assert_int_equal(c.hidden_size, 5120);
    assert_int_equal(c.n_layers, 40);
    assert_int_equal(c.n_draft_layers, 3);
    assert_int_equal(c.n_heads, 64);
    assert_int_equal(c.head_dim, 512);
    assert_int_equal(c.rope_dim, 64);
    assert_int_equal(c.q_lora_rank, 1280);
    assert_int_equal(c.o_lora_rank, 1024);
    assert_int_equal(c.o_groups, 8);
    assert_int_equal(c.window, 128);
    assert_int_equal(c.index_heads, 32);
    assert_int_equal(c.index_dim, 128);
    assert_int_equal(c.index_topk, 512);
    assert_int_equal(c.candidate_source, 20);
    assert_int_equal(c.candidate_blocks, 2048);
    assert_int_equal(c.candidate_block_size, 8);
    assert_int_equal(c.n_experts, 384);
    assert_int_equal(c.n_experts_per_token, 6);
    assert_int_equal(c.moe_inner, 2304);
    assert_int_equal(c.norm_topk_prob, 1);
    assert_int_equal(c.hc_copies, 4);
    assert_int_equal(c.hc_iters, 20);
    assert_int_equal(c.n_engram_layers, 2);
    assert_int_equal(c.engram_layers[1], 14);
    assert_int_equal(c.engram_rows[0], 384006168);
    assert_int_equal(c.engram_rows[1], 384016682);
    assert_int_equal(c.engram_ngram, 4);
    assert_int_equal(c.engram_heads, 8);
    assert_int_equal(c.engram_head_dim, 256);
    assert_int_equal(c.engram_pad_token, 2);
    assert_int_equal(c.engram_compressed_vocab, 99092);
    assert_int_equal(c.engram_vocab, 16000000);
    assert_int_equal(c.max_tokens, 1048576);
    assert_int_equal(c.rope_original_tokens, 65536);
    assert_true(c.rope_theta == 10000.0f && c.compress_rope_theta == 160000.0f &&
                c.rope_factor == 16.0f);
    assert_true(c.rope_beta_fast == 32.0f && c.rope_beta_slow == 1.0f);
    assert_true(c.norm_eps == 1e-20f && c.hc_eps == 1e-6f && c.routed_scale == 1.5f &&
                c.swiglu_limit == 10.0f);
    assert_int_equal(c.bos, 0);
    assert_int_equal(c.eos, 1);
    assert_int_equal(c.pad, 2);
    assert_int_equal(c.image, 129264);
    assert_int_equal(c.has_vision, 0);
    assert_int_equal(c.n_moe_layers, 40);
    assert_int_equal(c.expert_bytes, 18800640);
    assert_int_equal(c.ratios[1], 0);
    assert_int_equal(c.ratios[19], 2);
    assert_int_equal(c.ratios[20], 1);
    assert_int_equal(c.ratios[42], 0);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(c.kv_source[i], i == 2 || i == 8 || i == 14 || i == 20);
        assert_int_equal(c.index_source[i], i == 2 || i == 8 || i == 14 || (i >= 20 && i % 4 == 0));
    }
}

static void test_config_parse_gives_defaults(void **state)
{
    static const char *const optional[] = {
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "image_token_id",
        "quantization_config/activation_scheme",
        "text_config/rope_scaling",
        "text_config/attention_bias",
        "text_config/tie_word_embeddings",
        "text_config/candidate_source_layer_id",
        "text_config/engram_layer_ids",
        "text_config/model_type",
    };
    size_t     n = 0;
    char      *text = read_file(T1_CONFIG, &n);
    kvi_config c;

    (void)state;
    for (size_t i = 0; i < sizeof optional / sizeof optional[0]; i++) {
        char *next = edit_json(text, strlen(text), optional[i],
                               i % 2 ? NULL : "null"); /* null is as good as absent */

        free(text);
        text = next;
    }
    assert_int_equal(kvi_config_parse(text, strlen(text), "config.json", &c, NULL), KVCSA_OK);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.eos, -1);
    assert_int_equal(c.pad, -1);
    assert_int_equal(c.image, -1);
    assert_int_equal(c.rope_original_tokens, 0);
    assert_true(c.rope_factor == 1.0f);
    assert_int_equal(c.candidate_source, -1);
    assert_int_equal(c.candidate_blocks, 0);
    assert_int_equal(c.n_engram_layers, 0);
    free(text);
}

typedef struct bad_value {
    const char  *path;
    const char  *value; /* NULL = removed */
    kvcsa_status status;
    const char  *says;
} bad_value;

#define F KVCSA_ERR_FORMAT
#define U KVCSA_ERR_UNSUPPORTED

static const bad_value bad_values[] = {
    /* on T1: 10 layers, ratios 0 0 2 2 2 1 1 1 1 1, kv 2 4 5, index 2 4 5 7 */
    {"architectures", "[\"DeepseekV4ForCausalLM\"]", U,
     "architectures is \"DeepseekV4ForCausalLM\", of which this version has plan and cost only "
     "(KVCSA_MODEL_PLAN_ONLY); it computes \"DeepseekV41ForCausalLM\""},
    {"architectures", "[\"BertModel\"]", U,
     "architectures is \"BertModel\", this version reads \"DeepseekV41ForCausalLM\""},
    {"architectures", "[]", U, "this version reads \"DeepseekV41ForCausalLM\""},
    {"architectures", "\"DeepseekV41ForCausalLM\"", F, "architectures is a string, must be a list"},
    {"model_type", "\"deepseek_v4\"", U, "model_type is \"deepseek_v4\""},
    {"model_type", NULL, F, "model_type is absent, must be a string"},
    {"text_config", NULL, U, "text_config is absent"},
    {"text_config", "[]", U, "text_config is a list"},
    {"text_config/model_type", "\"other\"", U, "text_config.model_type is \"other\""},
    {"bos_token_id", "512", F, "bos_token_id is 512, must be 0..511"},
    {"eos_token_id", "[1]", F, "eos_token_id is a list, must be an integer"},
    {"image_token_id", "-2", F, "image_token_id is -2"},
    {"quantization_config", NULL, U, "quantization_config is absent"},
    {"quantization_config/quant_method", "\"gptq\"", U,
     "quantization_config.quant_method is \"gptq\""},
    {"quantization_config/weight_block_size", "[128, 128]", U, "weight_block_size is [128, 128]"},
    {"quantization_config/weight_block_size", "[32]", U, "weight_block_size is [32, 0]"},
    {"quantization_config/scale_fmt", "\"fp32\"", U, "scale_fmt is \"fp32\""},
    {"quantization_config/expert_dtype", NULL, F, "expert_dtype is absent"},
    {"quantization_config/activation_scheme", "\"static\"", U, "activation_scheme is \"static\""},
    {"text_config/vocab_size", "0", F, "text_config.vocab_size is 0, must be 1..16777216"},
    {"text_config/vocab_size", "9223372036854775807", F, "vocab_size is 9223372036854775807"},
    {"text_config/vocab_size", "512.0", F, "vocab_size is a real number, must be an integer"},
    {"text_config/vocab_size", "\"512\"", F, "vocab_size is a string"},
    {"text_config/hidden_size", "168", F, "hidden_size is 168, must be a multiple of 32"},
    {"text_config/hidden_size", "1048608", F, "hidden_size is 1048608"},
    {"text_config/num_hidden_layers", "513", F, "num_hidden_layers is 513, must be 1..512"},
    {"text_config/num_hidden_layers", "511", F, "with 2 draft layers the limit is 512"},
    {"text_config/num_hidden_layers", "9", F,
     "compress_ratios has 12 items, must have 11 (9 layers + 2 draft layers)"},
    {"text_config/num_nextn_predict_layers", "3", F, "compress_ratios has 12 items, must have 13"},
    {"text_config/num_attention_heads", "3", F,
     "num_attention_heads is 3, must be a multiple of o_groups (2)"},
    {"text_config/num_attention_heads", "0", F, "num_attention_heads is 0"},
    {"text_config/num_key_value_heads", "2", U, "num_key_value_heads is 2, this version reads 1"},
    {"text_config/head_dim", "80", F, "head_dim is 80, must be a multiple of 32"},
    {"text_config/qk_rope_head_dim", "31", F, "qk_rope_head_dim is 31, must be a multiple of 2"},
    {"text_config/qk_rope_head_dim", "98", F,
     "qk_rope_head_dim is 98, must be at most head_dim (96)"},
    {"text_config/qk_rope_head_dim", "66", F,
     "qk_rope_head_dim is 66, must be at most index_head_dim (64)"},
    {"text_config/q_lora_rank", "130", F, "q_lora_rank is 130, must be a multiple of 32"},
    {"text_config/o_lora_rank", "24", F, "o_lora_rank x o_groups is 48, must be a multiple of 32"},
    {"text_config/moe_intermediate_size", "72", F,
     "moe_intermediate_size is 72, must be a multiple of 32"},
    {"text_config/index_head_dim", "48", F, "index_head_dim is 48, must be a multiple of 32"},
    {"text_config/index_n_heads", NULL, F, "index_n_heads is absent"},
    {"text_config/index_topk", "0", F, "index_topk is 0"},
    {"text_config/sliding_window", "0", F, "sliding_window is 0"},
    {"text_config/max_position_embeddings", "16777217", F, "max_position_embeddings is 16777217"},
    {"text_config/rms_norm_eps", "0", F, "rms_norm_eps is 0"},
    {"text_config/rms_norm_eps", "\"1e-20\"", F, "rms_norm_eps is a string, must be a number"},
    {"text_config/hc_mult", "9", F, "hc_mult is 9, must be 1..8"},
    {"text_config/hc_sinkhorn_iters", "0", F, "hc_sinkhorn_iters is 0"},
    {"text_config/hc_eps", "-1e-6", F, "hc_eps is -1e-06"},
    {"text_config/attention_bias", "true", U, "attention_bias is true"},
    {"text_config/attention_bias", "0", F, "attention_bias is an integer, must be true or false"},
    {"text_config/tie_word_embeddings", "true", U, "tie_word_embeddings is true"},
    {"text_config/hidden_act", "\"gelu\"", U,
     "hidden_act is \"gelu\", this version reads \"silu\""},
    {"text_config/scoring_func", "\"sigmoid\"", U, "scoring_func is \"sigmoid\""},
    {"text_config/topk_method", "\"greedy\"", U, "topk_method is \"greedy\""},
    {"text_config/n_routed_experts", "4097", F, "n_routed_experts is 4097"},
    {"text_config/num_experts_per_tok", "13", F, "num_experts_per_tok is 13, must be 1..12"},
    {"text_config/n_shared_experts", "2", U, "n_shared_experts is 2"},
    {"text_config/norm_topk_prob", "1", F, "norm_topk_prob is an integer, must be true or false"},
    {"text_config/routed_scaling_factor", "0", F, "routed_scaling_factor is 0"},
    {"text_config/swiglu_limit", "-1", F, "swiglu_limit is -1"},
    {"text_config/swiglu_limit", NULL, F, "swiglu_limit is absent"},
    {"text_config/gate_temp", "0.5", U, "gate_temp is 0.5"},
    {"text_config/num_hash_layers", "3", U, "num_hash_layers is not 0"},
    {"text_config/rope_theta", "1", F, "rope_theta is 1"},
    {"text_config/compress_rope_theta", NULL, F, "compress_rope_theta is absent"},
    {"text_config/rope_scaling", "\"yarn\"", F, "rope_scaling is a string, must be an object"},
    {"text_config/rope_scaling/rope_type", "\"linear\"", U,
     "text_config.rope_scaling.rope_type is \"linear\""},
    {"text_config/rope_scaling/rope_type", NULL, F, "rope_scaling.rope_type is absent"},
    {"text_config/rope_scaling/type", "\"dynamic\"", U, "rope_scaling.type is \"dynamic\""},
    {"text_config/rope_scaling/factor", "0.5", F, "rope_scaling.factor is 0.5"},
    {"text_config/rope_scaling/beta_fast", "0.5", F,
     "beta_fast is 0.5, must be beta_slow (1) or more"},
    {"text_config/rope_scaling/original_max_position_embeddings", "1e3", F, "must be an integer"},
    {"text_config/rope_scaling/attention_factor", "1.3", U, "attention_factor is not 1"},
    {"text_config/compress_ratios/3", "4", U, "compress_ratios is 4 at layer 3"},
    {"text_config/compress_ratios/3", "1", F,
     "compress_ratios is 1 at layer 3, but 2 at its kv source 2"},
    {"text_config/compress_ratios/1", "2", F,
     "is 2 at layer 1, but no kv source is at or before it"},
    {"text_config/compress_ratios/11", "1", F, "compress_ratios is 1 at draft layer 11, must be 0"},
    {"text_config/compress_ratios/7", "0", F,
     "index_source_layer_ids has layer 7, whose ratio is 0"},
    {"text_config/compress_ratios/0", "-1", F, "compress_ratios is -1"},
    {"text_config/kv_source_layer_ids", "[2, 3, 4, 5]", F,
     "has layer 3, which index_source_layer_ids has not"},
    {"text_config/kv_source_layer_ids", "[4, 2, 5]", F,
     "has 2 behind 4, must be distinct and ascending"},
    {"text_config/kv_source_layer_ids", "[2, 2, 5]", F,
     "has 2 behind 2, must be distinct and ascending"},
    {"text_config/kv_source_layer_ids", "[2, 4, 10]", F, "kv_source_layer_ids is 10, must be 0..9"},
    {"text_config/kv_source_layer_ids", NULL, F, "no kv source"},
    {"text_config/candidate_source_layer_id", "6", F,
     "candidate_source_layer_id is 6, which is not an index source"},
    {"text_config/candidate_source_layer_id", "4", F,
     "is 4, but index source 5 behind it reads the entries of layer 5"},
    {"text_config/candidate_topk_blocks", "0", F, "candidate_topk_blocks is 0"},
    {"text_config/candidate_block_size", NULL, F, "candidate_block_size is absent"},
    {"text_config/engram_layer_ids", "[1, 10]", F, "engram_layer_ids is 10, must be 0..9"},
    {"text_config/engram_layer_ids", "[0,1,2,3,4,5,6,7,8]", F,
     "engram_layer_ids has 9 items, limit 8"},
    {"text_config/engram_num_embeddings", "[890]", F,
     "engram_num_embeddings has 1 items, engram_layer_ids has 2"},
    {"text_config/engram_num_embeddings/0", "4294967296", F, "engram_num_embeddings is 4294967296"},
    {"text_config/engram_max_ngram_size", "9", F, "engram_max_ngram_size is 9, must be 2..8"},
    {"text_config/engram_n_heads", "1025", F, "engram_n_heads is 1025"},
    {"text_config/engram_head_dim", "40", F, "engram_head_dim is 40, must be a multiple of 32"},
    {"text_config/engram_vocab_size", "1", F, "engram_vocab_size is 1"},
    {"text_config/engram_pad_token_id", "512", F, "engram_pad_token_id is 512"},
    {"text_config/engram_compressed_vocab_size", "513", F, "engram_compressed_vocab_size is 513"},
};

static void test_config_parse_names_bad_value(void **state)
{
    size_t n = 0;
    char  *text = read_file(T1_CONFIG, &n);

    (void)state;
    for (size_t i = 0; i < sizeof bad_values / sizeof bad_values[0]; i++) {
        const bad_value *b = &bad_values[i];
        char            *json = edit_json(text, n, b->path, b->value);
        kvcsa_error      err = {0};
        kvi_config       c;
        kvi_config       zero;
        kvcsa_status     st;

        st = kvi_config_parse(json, strlen(json), "config.json", &c, &err);
        if (st != b->status || err.status != st || !strstr(err.text, b->says))
            fail_msg("%s = %s: status %d, \"%s\"", b->path, b->value ? b->value : "absent", st,
                     err.text);
        memset(&zero, 0, sizeof zero);
        assert_memory_equal(&c, &zero, sizeof c);
        free(json);
    }
    free(text);
}

/* Beside others the one with a network is taken. */
static void test_config_parse_takes_the_architecture_with_a_network(void **state)
{
    size_t     n = 0;
    char      *text = read_file(T1_CONFIG, &n);
    char      *json = edit_json(text, n, "architectures",
                                "[7, \"LlamaForCausalLM\", \"DeepseekV41ForCausalLM\"]");
    kvi_config c;

    (void)state;
    assert_int_equal(kvi_config_parse(json, strlen(json), "config.json", &c, NULL), KVCSA_OK);
    assert_string_equal(c.architecture, "DeepseekV41ForCausalLM");
    assert_int_equal(c.has_network, 1);
    free(json);
    free(text);
}

static void test_config_parse_limits_engram_primes(void **state)
{
    size_t      n = 0;
    char       *text = read_file(T1_CONFIG, &n);
    char       *heads = edit_json(text, n, "text_config/engram_n_heads", "1024");
    char       *json = edit_json(heads, strlen(heads), "text_config/engram_max_ngram_size", "4");
    kvcsa_error err;
    kvi_config  c;

    (void)state;
    assert_int_equal(kvi_config_parse(heads, strlen(heads), "config.json", &c, &err), KVCSA_OK);
    assert_int_equal(kvi_config_parse(json, strlen(json), "config.json", &c, &err),
                     KVCSA_ERR_FORMAT);
    assert_non_null(strstr(
        err.text, "engram_n_heads is 1024, x 2 layers x 3 n-gram sizes must be at most 4096"));
    free(json);
    free(heads);
    free(text);
}

static void test_config_parse_refuses_what_is_not_json(void **state)
{
    static const struct {
        const char *text;
        const char *says;
    } bad[] = {
        {"", "not JSON"},
        {"{\"architectures\": [", "not JSON at line 1"},
        {"[]", "the JSON root must be an object"},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"{\"a\": 99999999999999999999}", "not JSON"},
        {"{\"a\": \"\\u0000\"}", "not JSON"},
        {"{} trailing", "not JSON"},
    };
    kvcsa_error err;
    kvi_config  c;
    char       *deep = malloc(1 << 20);

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(kvi_config_parse(bad[i].text, strlen(bad[i].text), "c.json", &c, &err),
                         KVCSA_ERR_FORMAT);
        if (!strstr(err.text, bad[i].says) || strncmp(err.text, "c.json: ", 8) != 0)
            fail_msg("%s: \"%s\"", bad[i].text, err.text);
    }
    assert_non_null(deep);
    memset(deep, '[', 1 << 20); /* must not use up the stack */
    assert_int_equal(kvi_config_parse(deep, 1 << 20, "c.json", &c, &err), KVCSA_ERR_FORMAT);
    free(deep);
}

/* ------------------------------------------------------------------ plan */

static void test_layer_plan_build_gives_published_table(void **state)
{
    kvcsa_allocator a = libc_allocator();
    kvi_config      c;
    kvi_plan        plan;

    (void)state;
    load_config(RELEASE_CONFIG, &c);
    assert_int_equal(kvi_layer_plan_build(&c, 0, &a, &plan, NULL), KVCSA_OK);
    assert_int_equal(plan.n_layers, 40);
    assert_int_equal(plan.block_tokens, 128);
    assert_int_equal(plan.max_tokens, 1048576);
    for (int32_t i = 0; i < 40; i++) {
        const kvi_plan_row *r = &plan.rows[i];
        const int           full = i == 2 || i == 8 || i == 14 || i == 20;
        const int           reindex = i == 24 || i == 28 || i == 32 || i == 36;
        const int32_t       owner = i < 2 ? -1 : i < 8 ? 2 : i < 14 ? 8 : i < 20 ? 14 : 20;
        const int32_t       select_owner = i < 24 ? owner : i / 4 * 4;
        const uint32_t      candidates = i == 20   ? KVCSA_CANDIDATES_SOURCE
                                         : reindex ? KVCSA_CANDIDATES_CONSUMER
                                                   : KVCSA_CANDIDATES_NONE;

        assert_int_equal(r->kv_owner, owner);
        assert_int_equal(r->select_owner, select_owner);
        assert_int_equal(r->ratio, i < 2 ? 0 : i < 20 ? 2 : 1);
        assert_int_equal(r->select, i < 2     ? KVCSA_SELECT_NONE
                                    : full    ? KVCSA_SELECT_OWN
                                    : reindex ? KVCSA_SELECT_REINDEX
                                              : KVCSA_SELECT_INHERITED);
        assert_int_equal(r->candidates, candidates);
        assert_int_equal(r->candidate_owner, candidates ? 20 : -1);
        assert_int_equal(r->candidate_blocks, candidates ? 2048 : 0);
        assert_int_equal(r->candidate_block_entries, candidates ? 8 : 0);
        assert_int_equal(r->pool_kind, i >= 2 && i < 20 ? KVCSA_POOLING_GATED : KVCSA_POOLING_NONE);
        assert_int_equal(r->pending_bytes, full && i < 20 ? 4096 : 0);
        assert_int_equal(r->entry_width, i < 2 ? 0 : 512);
        assert_int_equal(r->entry_rotated, i < 2 ? 0 : 64);
        assert_int_equal(r->entry_format, i < 2 ? KVCSA_FORMAT_NONE : KVCSA_FORMAT_FP4_E4M3_G16);
        assert_int_equal(r->entry_bytes, i < 2 ? 0 : 288);
        assert_int_equal(r->index_bytes, i < 2 ? 0 : 68);
        assert_int_equal(r->index_heads, i < 2 ? 0 : 32);
        assert_int_equal(r->select_entries, i < 2 ? 0 : 512);
        assert_int_equal(r->window_tokens, 128);
        assert_int_equal(r->window_format, KVCSA_FORMAT_FP8_E8M0_G32);
        assert_int_equal(r->window_bytes, 528);
        assert_int_equal(r->sink, 1);
        assert_int_equal(r->index_owner, owner);
        assert_int_equal(r->kv_heads, 1);
        assert_int_equal(r->value_kind, KVCSA_VALUE_ALIAS);
        assert_int_equal(r->value_width, i < 2 ? 0 : 512);
        assert_int_equal(r->value_format, KVCSA_FORMAT_NONE);
        assert_int_equal(r->state_bytes, 0);
        assert_int_equal(r->cost_only, 0);
    }
    kvi_layer_plan_fini(&plan, &a);
    assert_null(plan.rows);
}

static void test_layer_plan_build_refuses_block_tokens(void **state)
{
    kvcsa_allocator a = libc_allocator();
    kvcsa_error     err;
    kvi_config      c;
    kvi_plan        plan;

    (void)state;
    load_config(T1_CONFIG, &c);
    assert_int_equal(kvi_layer_plan_build(&c, 24, &a, &plan, &err), KVCSA_ERR_ARG);
    assert_non_null(strstr(err.text, "block_tokens is 24"));
    assert_null(plan.rows);
    assert_int_equal(kvi_layer_plan_build(&c, 16, &a, &plan, &err), KVCSA_OK);
    assert_int_equal(plan.block_tokens, 16);
    kvi_layer_plan_fini(&plan, &a);
}

static void test_layer_plan_build_frees_on_failure(void **state)
{
    fault_alloc fa;
    kvi_config  c;
    kvi_plan    plan;

    (void)state;
    load_config(T1_CONFIG, &c);
    fault_alloc_init(&fa);
    fault_alloc_fail_at(&fa, 1);
    assert_int_equal(kvi_layer_plan_build(&c, 0, &fa.hook, &plan, NULL), KVCSA_ERR_NOMEM);
    assert_true(fault_alloc_is_clean(&fa));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_parse_reads_release),
        cmocka_unit_test(test_config_parse_gives_defaults),
        cmocka_unit_test(test_config_parse_names_bad_value),
        cmocka_unit_test(test_config_parse_takes_the_architecture_with_a_network),
        cmocka_unit_test(test_config_parse_limits_engram_primes),
        cmocka_unit_test(test_config_parse_refuses_what_is_not_json),
        cmocka_unit_test(test_layer_plan_build_gives_published_table),
        cmocka_unit_test(test_layer_plan_build_refuses_block_tokens),
        cmocka_unit_test(test_layer_plan_build_frees_on_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
