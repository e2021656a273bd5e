/* Configurations of families that have a plan and no network: which there are, and what most of
 * them share. Keys and defaults are those of the Hugging Face configuration classes; what is read
 * stands in docs/formats.md "Families".
 *
 * What sets the bytes of a cache must be there (or has a default in its class) and is checked; all
 * else is ignored. null counts as absent. */
#include "model/config_int.h"

#include <string.h>

static const kvi_family families[] = {
    {"LlamaForCausalLM", kvi_family_llama},
    {"GlmForCausalLM", kvi_family_llama},
    {"Glm4ForCausalLM", kvi_family_llama},
    {"Glm4MoeForCausalLM", kvi_family_llama},
    {"ChatGLMModel", kvi_family_llama},
    {"ChatGLMForConditionalGeneration", kvi_family_llama},
    {"MistralForCausalLM", kvi_family_mistral},
    {"MixtralForCausalLM", kvi_family_qwen},
    {"Qwen2ForCausalLM", kvi_family_qwen},
    {"Qwen2MoeForCausalLM", kvi_family_qwen},
    {"Qwen3ForCausalLM", kvi_family_qwen},
    {"Qwen3MoeForCausalLM", kvi_family_qwen},
    {"Gemma3ForCausalLM", kvi_family_gemma3},
    {"Gemma3ForConditionalGeneration", kvi_family_gemma3},
    {"GptOssForCausalLM", kvi_family_gpt_oss},
    {"GPT2LMHeadModel", kvi_family_all_heads},
    {"GPTNeoXForCausalLM", kvi_family_all_heads},
    {"FalconForCausalLM", kvi_family_falcon},
    {"RWForCausalLM", kvi_family_falcon},
    {"MiniMaxText01ForCausalLM", kvi_family_minimax},
    {"MiniMaxM1ForCausalLM", kvi_family_minimax},
    {"MiniMaxForCausalLM", kvi_family_minimax},
    {"MiniMaxM2ForCausalLM", kvi_family_minimax},
    {"MiniMaxM3SparseForCausalLM", kvi_family_minimax_m3},
    {"MiniMaxM3SparseForConditionalGeneration", kvi_family_minimax_m3},
    {"DeepseekV2ForCausalLM", kvi_family_mla},
    {"DeepseekV3ForCausalLM", kvi_family_mla},
    {"KimiK25ForConditionalGeneration", kvi_family_mla},
    {"Glm4MoeLiteForCausalLM", kvi_family_mla},
    {"DeepseekV32ForCausalLM", kvi_family_dsa},
    {"GlmMoeDsaForCausalLM", kvi_family_dsa},
    {"DeepseekV4ForCausalLM", kvi_family_csa},
    {"KimiLinearForCausalLM", kvi_family_kimi_linear},
    {"KimiK3ForCausalLM", kvi_family_kimi_linear},
    {"KimiK3ForConditionalGeneration", kvi_family_kimi_linear},
};

const kvi_family *kvi_family_find(const char *architecture)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].architecture, architecture) == 0)
            return &families[i];
    return NULL;
}

/* ------------------------------------------------------------------ keys */

const char *kvi_family_key(const kvi_family_input *in, const char *const *keys)
{
    for (size_t i = 0; keys[i]; i++)
        if (kvi_json_get(&in->r, keys[i]))
            return keys[i];
    return keys[0];
}

int64_t kvi_family_int(kvi_family_input *in, const char *const *keys, int64_t min, int64_t max,
                       int64_t absent)
{
    const char *key = kvi_family_key(in, keys);

    return absent < 0 ? kvi_json_int(&in->r, key, min, max)
                      : kvi_json_int_or(&in->r, key, min, max, absent);
}

int kvi_family_layer_list(kvi_json_reader *r, const char *key, uint32_t n_layers, int64_t min,
                          int64_t max, uint8_t *out)
{
    size_t        n = 0;
    const json_t *list = kvi_json_list(r, key, KVI_MAX_LAYERS, 0, &n);

    if (!list)
        return 0;
    if (n != n_layers)
        kvi_json_refuse(r, r->malformed, key, "has %zu items, must have %u", n, n_layers);
    for (size_t i = 0; i < n && r->st == KVCSA_OK; i++) {
        const json_t *item = json_array_get(list, i);

        if (json_is_boolean(item) && min == 0 && max == 1)
            out[i] = json_is_true(item);
        else
            out[i] = (uint8_t)kvi_json_check_int(r, key, item, min, max);
    }
    return r->st == KVCSA_OK;
}

int kvi_family_layer_types(kvi_family_input *in, const char *const *names, size_t n_names,
                           uint8_t *kinds)
{
    static const char key[] = "layer_types";
    kvi_json_reader  *r = &in->r;
    size_t            n = 0;
    const json_t     *list = kvi_json_list(r, key, KVI_MAX_LAYERS, 0, &n);

    if (!list)
        return 0;
    if (n != in->c->n_layers)
        kvi_json_refuse(r, r->malformed, key, "has %zu items, must have %u", n, in->c->n_layers);
    for (size_t i = 0; i < n && r->st == KVCSA_OK; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        size_t      k = 0;

        while (k < n_names && (!name || strcmp(names[k], name) != 0))
            k++;
        if (!name)
            kvi_json_refuse(r, r->malformed, key, "is %s at layer %zu, must be a string",
                            kvi_json_type(json_array_get(list, i)), i);
        else if (k == n_names)
            kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, key,
                            "is \"%.40s\" at layer %zu, not a kind of this family", name, i);
        kinds[i] = (uint8_t)k;
    }
    return r->st == KVCSA_OK;
}

void kvi_family_want_multiple(kvi_json_reader *r, const char *key, uint64_t value, uint32_t of)
{
    if (value % of != 0)
        kvi_json_refuse(r, r->malformed, key, "is %llu, must be a multiple of %u",
                        (unsigned long long)value, of);
}

/* ------------------------------------------------------------------ layers */

void kvi_family_set_layer(kvi_config *c, uint32_t layer, uint8_t flags, uint32_t ratio)
{
    c->cache.layers[layer] = flags;
    c->ratios[layer] = ratio;
    c->kv_source[layer] = ratio > 0;
    c->index_source[layer] = ratio > 0 && (flags & KVI_LAYER_INDEXED);
}

void kvi_family_set_layers(kvi_config *c, uint8_t flags, uint32_t ratio)
{
    for (uint32_t i = 0; i < c->n_layers + c->n_draft_layers; i++)
        kvi_family_set_layer(c, i, flags, ratio);
}

void kvi_family_set_state(kvi_family_input *in, const char *key, uint64_t n_heads,
                          uint64_t key_width, uint64_t value_width)
{
    const uint64_t bytes = n_heads * key_width * value_width * sizeof(float);
    const uint64_t limit = (uint64_t)1 << 40; /* as in the plan */

    if (in->r.st != KVCSA_OK)
        return;
    if (bytes > limit)
        kvi_json_refuse(
            &in->r, in->r.malformed, key, "is %llu, which makes a state of %llu bytes, limit %llu",
            (unsigned long long)n_heads, (unsigned long long)bytes, (unsigned long long)limit);
    in->c->cache.state_heads = (uint32_t)n_heads;
    in->c->cache.state_bytes = bytes;
}

/* ------------------------------------------------------------------ what all have */

/* What entries are made of unless a family or an override says otherwise. */
static uint32_t read_dtype(kvi_family_input *in)
{
    static const struct {
        const char *name;
        uint32_t    format;
    } types[] = {{"bfloat16", KVCSA_FORMAT_BF16},
                 {"float16", KVCSA_FORMAT_F16},
                 {"float32", KVCSA_FORMAT_F32}};
    static const char *const keys[] = {"dtype", "torch_dtype", NULL};
    kvi_family_input         at = *in;
    const char              *key = kvi_family_key(&at, keys);
    const char              *name;

    if (!kvi_json_get(&at.r, key)) { /* of a text_config: the root's */
        at.r.obj = in->root;
        at.r.prefix = "";
        key = kvi_family_key(&at, keys);
    }
    if (in->r.st != KVCSA_OK || !kvi_json_get(&at.r, key))
        return KVCSA_FORMAT_BF16;
    name = kvi_json_text(&at.r, key);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].format;
    kvi_json_refuse(&at.r, at.r.malformed, key,
                    "is \"%.40s\", must be bfloat16, float16 or float32", name);
    in->r.st = at.r.st;
    return KVCSA_FORMAT_NONE;
}

void kvi_family_basics(kvi_family_input *in, const kvi_family_absent *absent)
{
    static const char *const       layers[] = {"num_hidden_layers", "n_layer", "num_layers", NULL};
    static const char *const       drafts[] = {"num_nextn_predict_layers", "num_mtp_modules", NULL};
    static const char *const       heads[] = {"num_attention_heads", "n_head", NULL};
    static const char *const       hidden[] = {"hidden_size", "n_embd", NULL};
    static const char *const       vocab[] = {"vocab_size", "padded_vocab_size", NULL};
    static const char *const       tokens[] = {"max_position_embeddings", "n_positions",
                                               "model_max_length", "seq_length", NULL};
    static const kvi_family_absent nothing = {0};
    const kvi_family_absent       *or_else = absent ? absent : &nothing;
    kvi_config                    *c = in->c;

#define OR(field) (or_else->field ? (int64_t)or_else->field : -1)
    c->n_layers = (uint32_t)kvi_family_int(in, layers, 1, KVI_MAX_LAYERS, -1);
    c->n_draft_layers = (uint32_t)kvi_family_int(in, drafts, 0, KVI_MAX_LAYERS, 0);
    if (in->r.st == KVCSA_OK && c->n_layers + c->n_draft_layers > KVI_MAX_LAYERS)
        kvi_json_refuse(&in->r, in->r.malformed, kvi_family_key(in, layers),
                        "is %u, with %u draft layers the limit is %u", c->n_layers,
                        c->n_draft_layers, KVI_MAX_LAYERS);
    c->n_heads = (uint32_t)kvi_family_int(in, heads, 1, KVI_MAX_HEAD_COUNT, OR(n_heads));
    c->hidden_size = (uint32_t)kvi_family_int(in, hidden, 1, KVI_MAX_HIDDEN, -1);
    c->vocab_size = (uint32_t)kvi_family_int(in, vocab, 1, KVI_MAX_VOCAB, OR(vocab_size));
    c->max_tokens = (uint64_t)kvi_family_int(in, tokens, 1, UINT32_MAX, OR(max_tokens));
#undef OR
    c->cache.entry_format = read_dtype(in);
    c->cache.n_layers = c->n_layers;
    kvi_family_experts(in);
    if (in->r.st == KVCSA_OK)
        kvi_family_set_layers(c, 0, 1);
}

void kvi_family_read(const kvi_family *family, kvi_json_reader *root, kvi_config *out)
{
    kvi_family_input in = {.r = *root, .root = root->obj, .c = out};

    memcpy(out->architecture, family->architecture, strlen(family->architecture) + 1);
    out->bos = out->eos = out->pad = out->image = -1;
    out->candidate_source = -1;
    (void)kvi_json_enter(root, "text_config", "text_config.", &in.r);
    in.r.st = root->st;
    if (in.r.st == KVCSA_OK)
        family->read(&in);
    root->st = in.r.st;
}
