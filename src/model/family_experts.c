/* Experts of a configuration: how many, in how many layers, and the bytes of one as the checkpoint
 * stores it. None of it changes a cache; the cost of a step wants it. */
#include "model/config_int.h"

#include <string.h>

typedef struct weight_format { /* of the matrices of experts */
    uint32_t bits_16;          /* sixteenths of a bit of one weight; 0 = not known */
    uint32_t block_rows;       /* of one scale; 0 = none beside bits_16 */
    uint32_t block_columns;
    uint32_t scale_bytes;
} weight_format;

/* Layers with experts: by a list of kinds or flags, or from a first one on, every so manieth. */
static uint32_t count_layers(kvi_family_input *in)
{
    static const char *const first_keys[] = {"first_k_dense_replace", NULL};
    kvi_json_reader         *r = &in->r;
    const uint32_t           n_layers = in->c->n_layers;
    size_t                   n = 0;
    uint32_t                 count = 0;
    uint8_t                  flags[KVI_MAX_LAYERS];
    int64_t                  first;
    int64_t                  every;
    int64_t                  sparse_every;
    const json_t            *list = kvi_json_list(r, "mlp_layer_types", KVI_MAX_LAYERS, 0, &n);

    for (size_t i = 0; i < n; i++) {
        const char *kind = json_string_value(json_array_get(list, i));

        count += i < n_layers && kind && strcmp(kind, "dense") != 0;
    }
    if (list || r->st != KVCSA_OK)
        return count;
    if (json_is_array(kvi_json_get(r, "moe_layer_freq"))) {
        if (kvi_family_layer_list(r, "moe_layer_freq", n_layers, 0, 1, flags))
            for (uint32_t i = 0; i < n_layers; i++)
                count += flags[i];
        return count;
    }
    first = kvi_family_int(in, first_keys, 0, KVI_MAX_LAYERS, 0);
    every = kvi_json_int_or(r, "moe_layer_freq", 1, KVI_MAX_LAYERS, 1);
    sparse_every = kvi_json_int_or(r, "decoder_sparse_step", 1, KVI_MAX_LAYERS, 1);
    list = kvi_json_list(r, "mlp_only_layers", KVI_MAX_LAYERS, 0, &n);
    memset(flags, 1, sizeof flags);
    for (size_t i = 0; i < n && r->st == KVCSA_OK; i++)
        flags[kvi_json_check_int(r, "mlp_only_layers", json_array_get(list, i), 0,
                                 KVI_MAX_LAYERS - 1)] = 0;
    for (uint32_t i = 0; i < n_layers; i++)
        count += flags[i] && i >= first && i % every == 0 && (i + 1) % sparse_every == 0;
    return count;
}

static int text_is(const json_t *object, const char *key, const char *want)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text && strcmp(text, want) == 0;
}

/* Positive and small, else 0. */
static uint32_t block_side(const json_t *quantization, size_t which)
{
    const json_t    *block = json_object_get(quantization, "weight_block_size");
    const json_int_t side = json_integer_value(json_array_get(block, which));

    return side > 0 && side <= KVI_MAX_HIDDEN ? (uint32_t)side : 0;
}

/* Of what is quantised in a way that we do not know, nothing is said. */
static weight_format read_format(const kvi_family_input *in)
{
    const json_t *q = kvi_json_get(&in->r, "quantization_config");
    const json_t *root = in->root;

    if (!q)
        q = json_object_get(root, "quantization_config");
    if (!json_is_object(q))
        return (weight_format){.bits_16 =
                                   kvi_format_row_bytes(in->c->cache.entry_format, 1) * 8 * 16};
    if (text_is(q, "quant_method", "mxfp4") || text_is(q, "format", "mxfp4-pack-quantized") ||
        text_is(q, "expert_dtype", "fp4") || text_is(in->r.obj, "expert_dtype", "fp4"))
        return (weight_format){.bits_16 = 68}; /* 4 bits, and 8 for every 32 weights */
    if (text_is(q, "quant_method", "mxfp8"))
        return (weight_format){.bits_16 = 132};
    if (text_is(q, "quant_method", "fp8"))
        return (weight_format){.bits_16 = 128,
                               .block_rows = block_side(q, 0),
                               .block_columns = block_side(q, 1),
                               .scale_bytes = sizeof(float)};
    return (weight_format){0};
}

static uint64_t matrix_bytes(const weight_format *f, uint64_t rows, uint64_t columns)
{
    uint64_t bytes = (rows * columns * f->bits_16 + 127) / 128;

    if (f->block_rows && f->block_columns)
        bytes += ((rows + f->block_rows - 1) / f->block_rows) *
                 ((columns + f->block_columns - 1) / f->block_columns) * f->scale_bytes;
    return bytes;
}

void kvi_family_experts(kvi_family_input *in)
{
    static const char *const counts[] = {"n_routed_experts", "num_local_experts", "num_experts",
                                         NULL};
    static const char *const chosen[] = {"num_experts_per_tok", "num_experts_per_token",
                                         "experts_per_token", NULL};
    static const char *const inner[] = {"moe_intermediate_size", "intermediate_size", NULL};
    static const char *const outer[] = {"routed_expert_hidden_size", "hidden_size", NULL};
    kvi_config              *c = in->c;
    weight_format            format;
    uint64_t                 width;

    c->n_experts = (uint32_t)kvi_family_int(in, counts, 0, KVI_MAX_EXPERT_COUNT, 0);
    if (c->n_experts == 0 || in->r.st != KVCSA_OK)
        return;
    c->n_experts_per_token = (uint32_t)kvi_family_int(in, chosen, 1, c->n_experts, -1);
    c->moe_inner = (uint32_t)kvi_family_int(in, inner, 1, KVI_MAX_HIDDEN, -1);
    width = (uint64_t)kvi_family_int(in, outer, 1, KVI_MAX_HIDDEN, -1);
    c->n_moe_layers = count_layers(in);
    if (in->r.st != KVCSA_OK)
        return;
    format = read_format(in);
    c->expert_bytes =
        2 * matrix_bytes(&format, c->moe_inner, width) + matrix_bytes(&format, width, c->moe_inner);
}
