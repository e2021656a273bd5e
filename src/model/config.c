/* config.json of the released format: root keys, quantization_config and text_config. Those of
 * other families are read in family.c.
 *
 * What changes a result must be there and is checked: a value we do not implement is
 * ERR_UNSUPPORTED, one that contradicts another is ERR_FORMAT. These may be absent, meaning:
 *   root  *_token_id                          none
 *         vision_config                       no vision tower
 *   quantization_config  activation_scheme    dynamic
 *   text_config  num_nextn_predict_layers, num_hash_layers   0
 *         gate_temp                           1
 *         attention_bias, tie_word_embeddings false
 *         rope_scaling                        no YaRN
 *         engram_layer_ids                    no Engram
 *         candidate_source_layer_id           no candidates
 *         kv_source_layer_ids, index_*        no entries; every ratio must be 0
 * null counts as absent. Unknown keys are ignored, dspark_* too: draft stages are not run.
 */
#include "model/config.h"

#include "model/config_int.h"
#include "model/model_int.h"
#include "model/plan_override.h"

#include <string.h>

#define MAX_DIM (1 << 20)
#define MAX_WIDTH (1 << 16)     /* of a cached row, as in the cache plan */
#define MAX_ROWS (1 << 24)      /* of a matrix whose rows are a product of two fields */
#define MAX_POSITION (1 << 24)  /* exact in fp32 up to here; the rotation relies on it */
#define MAX_ENGRAM_PRIMES 4096u /* bounds the search for primes */
#define MAX_EXPERTS 4096

/* ------------------------------------------------------------------ the parts */

static const char released[] = "DeepseekV41ForCausalLM";

static void read_root(kvi_json_reader *r, kvi_config *c)
{
    memcpy(c->architecture, released, sizeof released);
    c->has_network = 1;
    kvi_json_want_text(r, "model_type", "deepseek_v41");
    c->has_vision = kvi_json_get(r, "vision_config") != NULL;
}

static void read_token_ids(kvi_json_reader *r, kvi_config *c)
{
    const int64_t last = (int64_t)c->vocab_size - 1;

    c->bos = (int32_t)kvi_json_int_or(r, "bos_token_id", 0, last, -1);
    c->eos = (int32_t)kvi_json_int_or(r, "eos_token_id", 0, last, -1);
    c->pad = (int32_t)kvi_json_int_or(r, "pad_token_id", 0, last, -1);
    c->image = (int32_t)kvi_json_int_or(r, "image_token_id", 0, last, -1);
}

static void read_quantization(kvi_json_reader *r)
{
    size_t        n = 0;
    const json_t *block;

    kvi_json_want_text(r, "quant_method", "fp8");
    block = kvi_json_list(r, "weight_block_size", 2, 1, &n);
    if (r->st == KVCSA_OK && (n != 2 || json_integer_value(json_array_get(block, 0)) != 32 ||
                              json_integer_value(json_array_get(block, 1)) != 32))
        kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, "weight_block_size",
                        "is [%lld, %lld], this version reads [32, 32]",
                        (long long)json_integer_value(json_array_get(block, 0)),
                        (long long)json_integer_value(json_array_get(block, 1)));
    kvi_json_want_text(r, "scale_fmt", "ue8m0");
    kvi_json_want_text(r, "expert_dtype", "fp4");
    if (kvi_json_get(r, "activation_scheme"))
        kvi_json_want_text(r, "activation_scheme", "dynamic");
}

static void read_shape(kvi_json_reader *r, kvi_config *c)
{
    if (kvi_json_get(r, "model_type"))
        kvi_json_want_text(r, "model_type", "deepseek_v41_text");
    c->vocab_size = (uint32_t)kvi_json_int(r, "vocab_size", 1, MAX_ROWS);
    c->hidden_size = (uint32_t)kvi_json_int(r, "hidden_size", 32, MAX_DIM);
    c->n_layers = (uint32_t)kvi_json_int(r, "num_hidden_layers", 1, KVI_MAX_LAYERS);
    c->n_draft_layers =
        (uint32_t)kvi_json_int_or(r, "num_nextn_predict_layers", 0, KVI_MAX_LAYERS, 0);
    if (c->n_layers + c->n_draft_layers > KVI_MAX_LAYERS)
        kvi_json_refuse(r, KVCSA_ERR_FORMAT, "num_hidden_layers",
                        "is %u, with %u draft layers the limit is %u", c->n_layers,
                        c->n_draft_layers, KVI_MAX_LAYERS);
    c->n_heads = (uint32_t)kvi_json_int(r, "num_attention_heads", 1, 1 << 14);
    if (kvi_json_int(r, "num_key_value_heads", 1, MAX_DIM) != 1)
        kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, "num_key_value_heads",
                        "is %lld, this version reads 1",
                        (long long)json_integer_value(kvi_json_get(r, "num_key_value_heads")));
    c->head_dim = (uint32_t)kvi_json_int(r, "head_dim", 32, MAX_WIDTH);
    c->rope_dim = (uint32_t)kvi_json_int(r, "qk_rope_head_dim", 2, MAX_DIM);
    c->q_lora_rank = (uint32_t)kvi_json_int(r, "q_lora_rank", 32, MAX_DIM);
    c->o_lora_rank = (uint32_t)kvi_json_int(r, "o_lora_rank", 1, MAX_DIM);
    c->o_groups = (uint32_t)kvi_json_int(r, "o_groups", 1, 1 << 14);
    c->window = (uint32_t)kvi_json_int(r, "sliding_window", 1, MAX_DIM);
    c->max_tokens = (uint64_t)kvi_json_int(r, "max_position_embeddings", 1, MAX_POSITION);
    c->norm_eps = kvi_json_real(r, "rms_norm_eps", 1e-37, 1.0);
    c->hc_copies = (uint32_t)kvi_json_int(r, "hc_mult", 1, 8); /* KVI_MAX_COPIES of the operators */
    c->hc_iters = (uint32_t)kvi_json_int(r, "hc_sinkhorn_iters", 1, 1000);
    c->hc_eps = kvi_json_real(r, "hc_eps", 1e-37, 1.0);
    kvi_json_want_false(r, "attention_bias");
    kvi_json_want_false(r, "tie_word_embeddings");
}

static void read_experts(kvi_json_reader *r, kvi_config *c)
{
    kvi_json_want_text(r, "hidden_act", "silu");
    kvi_json_want_text(r, "scoring_func", "sqrtsoftplus");
    kvi_json_want_text(r, "topk_method", "noaux_tc");
    c->moe_inner = (uint32_t)kvi_json_int(r, "moe_intermediate_size", 32, MAX_DIM);
    c->n_experts = (uint32_t)kvi_json_int(r, "n_routed_experts", 1, MAX_EXPERTS);
    c->n_experts_per_token = (uint32_t)kvi_json_int(r, "num_experts_per_tok", 1, c->n_experts);
    if (kvi_json_int(r, "n_shared_experts", 0, MAX_EXPERTS) != 1)
        kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, "n_shared_experts",
                        "is %lld, this version reads 1",
                        (long long)json_integer_value(kvi_json_get(r, "n_shared_experts")));
    c->norm_topk_prob = (uint32_t)kvi_json_bool(r, "norm_topk_prob");
    c->routed_scale = kvi_json_real(r, "routed_scaling_factor", 1e-6, 1e6);
    c->swiglu_limit = kvi_json_real(r, "swiglu_limit", 0.0, 1e30); /* 0 = no clamp */
    if (kvi_json_get(r, "gate_temp") && kvi_json_real(r, "gate_temp", -1e30, 1e30) != 1.0f)
        kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, "gate_temp", "is %g, this version reads 1",
                        json_number_value(kvi_json_get(r, "gate_temp")));
    if (kvi_json_int_or(r, "num_hash_layers", 0, KVI_MAX_LAYERS, 0) != 0)
        kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, "num_hash_layers",
                        "is not 0, this version has no hash routing");
}

static void read_rope(kvi_json_reader *r, kvi_config *c)
{
    const json_t   *scaling = kvi_json_get(r, "rope_scaling");
    kvi_json_reader s = *r;

    c->rope_theta = kvi_json_real(r, "rope_theta", 1.001, 1e30);
    c->compress_rope_theta = kvi_json_real(r, "compress_rope_theta", 1.001, 1e30);
    c->rope_factor = 1.0f;
    c->rope_beta_fast = 32.0f;
    c->rope_beta_slow = 1.0f;
    if (!scaling || r->st != KVCSA_OK)
        return;
    if (!json_is_object(scaling)) {
        kvi_json_refuse(r, KVCSA_ERR_FORMAT, "rope_scaling", "is %s, must be an object",
                        kvi_json_type(scaling));
        return;
    }
    s.obj = scaling;
    s.prefix = "text_config.rope_scaling.";
    if (kvi_json_get(&s, "rope_type") || !kvi_json_get(&s, "type"))
        kvi_json_want_text(&s, "rope_type", "yarn");
    if (kvi_json_get(&s, "type"))
        kvi_json_want_text(&s, "type", "yarn");
    c->rope_factor = kvi_json_real(&s, "factor", 1.0, 1e6);
    c->rope_beta_fast = kvi_json_real(&s, "beta_fast", 1e-3, 1e6);
    c->rope_beta_slow = kvi_json_real(&s, "beta_slow", 1e-3, 1e6);
    c->rope_original_tokens =
        (uint64_t)kvi_json_int(&s, "original_max_position_embeddings", 0, MAX_POSITION);
    if (c->rope_beta_fast < c->rope_beta_slow)
        kvi_json_refuse(&s, KVCSA_ERR_FORMAT, "beta_fast", "is %g, must be beta_slow (%g) or more",
                        (double)c->rope_beta_fast, (double)c->rope_beta_slow);
    /* a temperature of the softmax would change every result; the released format has none */
    if (kvi_json_get(&s, "attention_factor") &&
        kvi_json_real(&s, "attention_factor", -1e30, 1e30) != 1.0f)
        kvi_json_refuse(&s, KVCSA_ERR_UNSUPPORTED, "attention_factor", "is not 1");
    r->st = s.st;
}

static void read_sources(kvi_json_reader *r, kvi_config *c)
{
    uint32_t      ids[KVI_MAX_LAYERS];
    uint32_t      n_sources;
    const size_t  n_ratios = c->n_layers + c->n_draft_layers;
    size_t        n = 0;
    const json_t *list = kvi_json_list(r, "compress_ratios", KVI_MAX_LAYERS, 1, &n);

    if (r->st == KVCSA_OK && n != n_ratios)
        kvi_json_refuse(r, KVCSA_ERR_FORMAT, "compress_ratios",
                        "has %zu items, must have %zu (%u layers + %u draft layers)", n, n_ratios,
                        c->n_layers, c->n_draft_layers);
    for (size_t i = 0; i < n && r->st == KVCSA_OK; i++) {
        c->ratios[i] =
            (uint32_t)kvi_json_check_int(r, "compress_ratios", json_array_get(list, i), 0, MAX_DIM);
        if (c->ratios[i] > 2)
            kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, "compress_ratios",
                            "is %u at layer %zu, this version reads 0, 1 and 2", c->ratios[i], i);
        if (i >= c->n_layers && c->ratios[i] != 0)
            kvi_json_refuse(r, KVCSA_ERR_FORMAT, "compress_ratios",
                            "is %u at draft layer %zu, must be 0", c->ratios[i], i);
    }
    n_sources = kvi_json_layers(r, "kv_source_layer_ids", 0, c->n_layers, KVI_MAX_LAYERS, ids);
    for (uint32_t i = 0; i < n_sources; i++)
        c->kv_source[ids[i]] = 1;
    n_sources = kvi_json_layers(r, "index_source_layer_ids", 0, c->n_layers, KVI_MAX_LAYERS, ids);
    for (uint32_t i = 0; i < n_sources; i++)
        c->index_source[ids[i]] = 1;
    c->candidate_source =
        (int32_t)kvi_json_int_or(r, "candidate_source_layer_id", -1, (int64_t)c->n_layers - 1, -1);
    if (n_sources > 0) {
        c->index_heads = (uint32_t)kvi_json_int(r, "index_n_heads", 1, 1 << 14);
        c->index_dim = (uint32_t)kvi_json_int(r, "index_head_dim", 32, MAX_WIDTH);
        c->index_topk = (uint32_t)kvi_json_int(r, "index_topk", 1, MAX_DIM);
    }
    if (c->candidate_source >= 0) {
        c->candidate_blocks = (uint32_t)kvi_json_int(r, "candidate_topk_blocks", 1, MAX_DIM);
        c->candidate_block_size = (uint32_t)kvi_json_int(r, "candidate_block_size", 1, 1 << 12);
    }
}

static void read_engram(kvi_json_reader *r, kvi_config *c)
{
    size_t        n = 0;
    const json_t *rows;

    c->n_engram_layers = kvi_json_layers(r, "engram_layer_ids", 0, c->n_layers,
                                         KVI_MAX_ENGRAM_LAYERS, c->engram_layers);
    if (c->n_engram_layers == 0)
        return;
    rows = kvi_json_list(r, "engram_num_embeddings", KVI_MAX_ENGRAM_LAYERS, 1, &n);
    if (r->st == KVCSA_OK && n != c->n_engram_layers)
        kvi_json_refuse(r, KVCSA_ERR_FORMAT, "engram_num_embeddings",
                        "has %zu items, engram_layer_ids has %u", n, c->n_engram_layers);
    for (size_t i = 0; i < n && r->st == KVCSA_OK; i++)
        c->engram_rows[i] = (uint64_t)kvi_json_check_int(r, "engram_num_embeddings",
                                                         json_array_get(rows, i), 1, UINT32_MAX);
    c->engram_ngram = (uint32_t)kvi_json_int(r, "engram_max_ngram_size", 2, KVI_MAX_NGRAM);
    c->engram_heads = (uint32_t)kvi_json_int(r, "engram_n_heads", 1, 1024);
    c->engram_head_dim = (uint32_t)kvi_json_int(r, "engram_head_dim", 32, MAX_DIM);
    c->engram_vocab = (uint64_t)kvi_json_int(r, "engram_vocab_size", 2, UINT32_MAX);
    c->engram_pad_token =
        (uint32_t)kvi_json_int(r, "engram_pad_token_id", 0, (int64_t)c->vocab_size - 1);
    c->engram_compressed_vocab =
        (uint32_t)kvi_json_int(r, "engram_compressed_vocab_size", 1, c->vocab_size);
    if ((uint64_t)c->n_engram_layers * c->engram_heads * (c->engram_ngram - 1) > MAX_ENGRAM_PRIMES)
        kvi_json_refuse(r, KVCSA_ERR_FORMAT, "engram_n_heads",
                        "is %u, x %u layers x %u n-gram sizes must be at most %u", c->engram_heads,
                        c->n_engram_layers, c->engram_ngram - 1, MAX_ENGRAM_PRIMES);
}

/* ------------------------------------------------------------------ what must agree */

static void want_multiple(kvi_json_reader *r, const char *key, uint64_t value, uint32_t of)
{
    if (value % of != 0)
        kvi_json_refuse(r, KVCSA_ERR_FORMAT, key, "is %llu, must be a multiple of %u",
                        (unsigned long long)value, of);
}

static void want_product(kvi_json_reader *r, const char *key, uint64_t a, uint64_t b)
{
    if (a * b > MAX_ROWS)
        kvi_json_refuse(r, KVCSA_ERR_FORMAT, key, "gives %llu x %llu matrix rows, limit %d",
                        (unsigned long long)a, (unsigned long long)b, MAX_ROWS);
}

/* FP8 and FP4 matrices have one scale per 32 columns, so every inner width is a multiple of 32
 * (docs/formats.md "Tensors"). */
static void check_shape(kvi_json_reader *r, const kvi_config *c)
{
    want_multiple(r, "hidden_size", c->hidden_size, 32);
    want_multiple(r, "q_lora_rank", c->q_lora_rank, 32);
    want_multiple(r, "head_dim", c->head_dim, 32);
    want_multiple(r, "moe_intermediate_size", c->moe_inner, 32);
    want_multiple(r, "qk_rope_head_dim", c->rope_dim, 2);
    want_product(r, "num_attention_heads", c->n_heads, c->head_dim);
    want_product(r, "o_groups", c->o_groups, c->o_lora_rank);
    if (c->n_heads % c->o_groups != 0)
        kvi_json_refuse(r, KVCSA_ERR_FORMAT, "num_attention_heads",
                        "is %u, must be a multiple of o_groups (%u)", c->n_heads, c->o_groups);
    want_multiple(r, "o_lora_rank x o_groups", (uint64_t)c->o_groups * c->o_lora_rank, 32);
    if (c->rope_dim > c->head_dim)
        kvi_json_refuse(r, KVCSA_ERR_FORMAT, "qk_rope_head_dim",
                        "is %u, must be at most head_dim (%u)", c->rope_dim, c->head_dim);
    if (c->index_dim) {
        want_multiple(r, "index_head_dim", c->index_dim, 32);
        want_product(r, "index_n_heads", c->index_heads, c->index_dim);
        if (c->rope_dim > c->index_dim)
            kvi_json_refuse(r, KVCSA_ERR_FORMAT, "qk_rope_head_dim",
                            "is %u, must be at most index_head_dim (%u)", c->rope_dim,
                            c->index_dim);
    }
    if (c->n_engram_layers) {
        want_multiple(r, "engram_head_dim", c->engram_head_dim, 32);
        want_product(r, "engram_head_dim", (uint64_t)(c->engram_ngram - 1) * c->engram_heads,
                     c->engram_head_dim);
    }
}

/* Every layer finds entries and a selection of its own ratio at or before it. */
static void check_sources(kvi_json_reader *r, const kvi_config *c)
{
    int32_t owner = -1;
    int32_t candidate_owner = -1; /* whose entries the candidate blocks are blocks of */

    for (uint32_t i = 0; i < c->n_layers && r->st == KVCSA_OK; i++) {
        if (c->kv_source[i] && !c->index_source[i])
            kvi_json_refuse(r, KVCSA_ERR_FORMAT, "kv_source_layer_ids",
                            "has layer %u, which index_source_layer_ids has not", i);
        if (c->index_source[i] && c->ratios[i] == 0)
            kvi_json_refuse(r, KVCSA_ERR_FORMAT, "index_source_layer_ids",
                            "has layer %u, whose ratio is 0", i);
        if (c->kv_source[i])
            owner = (int32_t)i;
        if (c->ratios[i] > 0 && owner < 0)
            kvi_json_refuse(r, KVCSA_ERR_FORMAT, "compress_ratios",
                            "is %u at layer %u, but no kv source is at or before it", c->ratios[i],
                            i);
        else if (c->ratios[i] > 0 && c->ratios[owner] != c->ratios[i])
            kvi_json_refuse(r, KVCSA_ERR_FORMAT, "compress_ratios",
                            "is %u at layer %u, but %u at its kv source %d", c->ratios[i], i,
                            c->ratios[owner], owner);
        if ((int32_t)i == c->candidate_source)
            candidate_owner = owner;
        else if (c->candidate_source >= 0 && (int32_t)i > c->candidate_source &&
                 c->index_source[i] && owner != candidate_owner)
            kvi_json_refuse(r, KVCSA_ERR_FORMAT, "candidate_source_layer_id",
                            "is %d, but index source %u behind it reads the entries of layer %d",
                            c->candidate_source, i, owner);
    }
    if (c->candidate_source >= 0 && r->st == KVCSA_OK && !c->index_source[c->candidate_source])
        kvi_json_refuse(r, KVCSA_ERR_FORMAT, "candidate_source_layer_id",
                        "is %d, which is not an index source", c->candidate_source);
}

/* ------------------------------------------------------------------ the whole */

/* What the layers cache, in the terms that all families share. */
static void fill_cache(kvi_config *c)
{
    kvi_cache_shape *s = &c->cache;

    s->n_layers = c->n_layers;
    s->kv_heads = 1;
    s->key_width = c->head_dim;
    s->value_width = c->head_dim;
    s->value_kind = KVCSA_VALUE_ALIAS;
    s->rotated = c->rope_dim;
    s->entry_format = KVCSA_FORMAT_FP4_E4M3_G16;
    s->index_format = KVCSA_FORMAT_FP4_E8M0_G32;
    s->window_format = KVCSA_FORMAT_FP8_E8M0_G32;
    s->sink = 1;
    for (uint32_t i = 0; i < c->n_layers + c->n_draft_layers; i++)
        s->layers[i] = c->ratios[i] ? KVI_LAYER_WINDOW | KVI_LAYER_INDEXED : KVI_LAYER_WINDOW;
    c->n_moe_layers = c->n_layers;
    /* three matrices of E2M1 with one E8M0 scale per 32 columns */
    c->expert_bytes = 3 * (uint64_t)c->hidden_size * c->moe_inner * 17 / 32;
}

static void read_released(kvi_json_reader *r, const json_t *root, kvi_config *out)
{
    read_root(r, out);
    if (r->st == KVCSA_OK && !json_is_object(kvi_json_get(r, "text_config")))
        kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, "text_config",
                        "is %s, this version reads an object (not the flat form)",
                        kvi_json_type(kvi_json_get(r, "text_config")));
    if (!json_is_object(kvi_json_get(r, "quantization_config")))
        kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, "quantization_config",
                        "is %s, this version reads an object with quant_method \"fp8\"",
                        kvi_json_type(kvi_json_get(r, "quantization_config")));
    r->obj = json_object_get(root, "quantization_config");
    r->prefix = "quantization_config.";
    read_quantization(r);

    r->obj = json_object_get(root, "text_config");
    r->prefix = "text_config.";
    read_shape(r, out);
    read_experts(r, out);
    read_rope(r, out);
    if (r->st == KVCSA_OK)
        read_sources(r, out);
    if (r->st == KVCSA_OK)
        read_engram(r, out);
    if (r->st == KVCSA_OK)
        check_shape(r, out);
    if (r->st == KVCSA_OK)
        check_sources(r, out);

    r->obj = root;
    r->prefix = "";
    if (r->st == KVCSA_OK)
        read_token_ids(r, out);
    if (r->st == KVCSA_OK)
        fill_cache(out);
}

/* The first architecture that we know, but the one with a network before all others. */
static void read_any(kvi_json_reader *r, const json_t *root, int plan_only, kvi_config *out)
{
    size_t            n = 0;
    const json_t     *list = kvi_json_list(r, "architectures", 64, 1, &n);
    const char       *first = json_string_value(json_array_get(list, 0));
    const kvi_family *family = NULL;

    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(list, i));

        if (name && strcmp(name, released) == 0) {
            read_released(r, root, out);
            return;
        }
        if (name && !family)
            family = kvi_family_find(name);
    }
    if (family && plan_only)
        kvi_family_read(family, r, out);
    else if (family)
        kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, "architectures",
                        "is \"%.60s\", of which this version has plan and cost only "
                        "(KVCSA_MODEL_PLAN_ONLY); it computes \"%s\"",
                        family->architecture, released);
    else
        kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, "architectures",
                        "is \"%.60s\", this version reads \"%s\"%s", first ? first : "", released,
                        plan_only ? " and the families of docs/formats.md" : "");
}

kvcsa_status kvi_config_read(const char *json, size_t n_bytes, const char *name, int plan_only,
                             kvi_config *out, kvi_plan_override *changes, kvcsa_error *err)
{
    json_t         *root = NULL;
    kvi_json_reader r = {.file = name, .prefix = "", .malformed = KVCSA_ERR_FORMAT, .err = err};
    kvcsa_status    st;

    memset(out, 0, sizeof *out);
    if ((st = kvi_json_parse(json, n_bytes, name, &root, err)) != KVCSA_OK)
        return st;
    r.obj = root;
    read_any(&r, root, plan_only, out);
    if (r.st == KVCSA_OK && changes)
        kvi_plan_override_of_file(&r, changes);
    json_decref(root);
    if (r.st != KVCSA_OK)
        memset(out, 0, sizeof *out);
    return r.st;
}

kvcsa_status kvi_config_parse(const char *json, size_t n_bytes, const char *name, kvi_config *out,
                              kvcsa_error *err)
{
    return kvi_config_read(json, n_bytes, name, 0, out, NULL, err);
}
