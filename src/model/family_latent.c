/* Families that cache one latent for all heads: MLA, with an index (DSA), pooled (CSA and HCA), and
 * beside linear attention. */
#include "model/config_int.h"

#include <string.h>

/* Rows as the released kernels store them where they have this width; else as the tensors are. */
static uint32_t record_or(uint32_t record, uint32_t width, uint32_t otherwise)
{
    return kvi_format_row_bytes(record, width) ? record : otherwise;
}

static void set_latent(kvi_config *c, uint32_t key_width, uint32_t value_width, uint32_t rotated)
{
    kvi_cache_shape *s = &c->cache;

    c->head_dim = key_width;
    c->rope_dim = rotated;
    s->kv_heads = 1;
    s->key_width = key_width;
    s->value_width = value_width;
    s->value_kind = value_width == key_width ? KVCSA_VALUE_ALIAS : KVCSA_VALUE_PREFIX;
    s->rotated = rotated;
}

void kvi_family_mla(kvi_family_input *in)
{
    uint32_t rank;
    uint32_t rope;

    kvi_family_basics(in, NULL);
    rank = (uint32_t)kvi_json_int(&in->r, "kv_lora_rank", 1, KVI_MAX_ROW_WIDTH);
    rope = (uint32_t)kvi_json_int(&in->r, "qk_rope_head_dim", 2, KVI_MAX_ROW_WIDTH);
    kvi_family_want_multiple(&in->r, "qk_rope_head_dim", rope, 2);
    if (in->r.st == KVCSA_OK && rank + rope > KVI_MAX_ROW_WIDTH)
        kvi_json_refuse(&in->r, in->r.malformed, "kv_lora_rank",
                        "is %u, + qk_rope_head_dim (%u) must be at most %d", rank, rope,
                        KVI_MAX_ROW_WIDTH);
    set_latent(in->c, rank + rope, rank, rope);
}

static void read_index(kvi_family_input *in)
{
    kvi_config *c = in->c;

    c->index_heads = (uint32_t)kvi_json_int(&in->r, "index_n_heads", 1, KVI_MAX_HEAD_COUNT);
    c->index_dim = (uint32_t)kvi_json_int(&in->r, "index_head_dim", 1, KVI_MAX_ROW_WIDTH);
    c->index_topk = (uint32_t)kvi_json_int(&in->r, "index_topk", 1, KVI_MAX_HIDDEN);
}

/* ------------------------------------------------------------------ DSA */

/* Layers whose own index makes a selection, by a pattern of F and S. */
static void read_pattern(kvi_family_input *in)
{
    static const char key[] = "index_topk_pattern";
    const char       *text = kvi_json_text(&in->r, key);
    const size_t      n = strlen(text);

    if (in->r.st == KVCSA_OK && (n != in->c->n_layers || strspn(text, "FS") != n))
        kvi_json_refuse(&in->r, in->r.malformed, key, "is \"%.40s\", must be %u letters F or S",
                        text, in->c->n_layers);
    for (uint32_t i = 0; i < in->c->n_layers && in->r.st == KVCSA_OK; i++)
        in->c->index_source[i] = text[i] == 'F';
}

/* Which layers have index keys: in a list, by a pattern, or every so manieth from some layer on.
 * Draft layers always have. */
static void read_index_layers(kvi_family_input *in)
{
    static const char key[] = "indexer_types";
    const char       *blame = key; /* of a shared selection in layer 0 */
    kvi_json_reader  *r = &in->r;
    kvi_config       *c = in->c;
    size_t            n = 0;
    const json_t     *list = kvi_json_list(r, key, KVI_MAX_LAYERS, 0, &n);
    int64_t           every;
    int64_t           offset;

    if (!list && kvi_json_get(r, "index_topk_pattern")) {
        blame = "index_topk_pattern";
        read_pattern(in);
    } else if (!list) {
        blame = "index_skip_topk_offset";
        every = kvi_json_int_or(r, "index_topk_freq", 0, KVI_MAX_LAYERS, 1);
        offset = kvi_json_int_or(r, "index_skip_topk_offset", 0, KVI_MAX_LAYERS, 2);
        for (int64_t i = 0; i < c->n_layers && every > 1; i++)
            c->index_source[i] = i - offset + 1 <= 0 || (i - offset + 1) % every == 0;
    } else if (n != c->n_layers) {
        kvi_json_refuse(r, r->malformed, key, "has %zu items, must have %u", n, c->n_layers);
    }
    for (size_t i = 0; i < n && r->st == KVCSA_OK; i++) {
        const char *kind = json_string_value(json_array_get(list, i));

        c->index_source[i] = kind && strcmp(kind, "full") == 0;
        if (!c->index_source[i] && (!kind || strcmp(kind, "shared") != 0))
            kvi_json_refuse(r, r->malformed, key,
                            "is \"%.40s\" at layer %zu, must be full or shared",
                            kind ? kind : kvi_json_type(json_array_get(list, i)), i);
    }
    if (r->st == KVCSA_OK && !c->index_source[0])
        kvi_json_refuse(r, r->malformed, blame,
                        "shares a selection in layer 0, which has none in front of it");
}

void kvi_family_dsa(kvi_family_input *in)
{
    kvi_cache_shape *s = &in->c->cache;
    uint32_t         dtype;

    kvi_family_mla(in);
    read_index(in);
    if (in->r.st != KVCSA_OK)
        return;
    dtype = s->entry_format;
    s->entry_format = record_or(KVCSA_FORMAT_MLA_FP8_656, s->key_width, dtype);
    s->index_format = record_or(KVCSA_FORMAT_FP8_F32_G128, in->c->index_dim, dtype);
    kvi_family_set_layers(in->c, KVI_LAYER_INDEXED, 1);
    read_index_layers(in);
}

/* ------------------------------------------------------------------ CSA and HCA */

enum { WINDOW_ONLY = 0, SPARSE = 1, HEAVY = 2 };

static void set_pooled(kvi_config *c, uint32_t layer, int kind, uint32_t ratio)
{
    static const uint8_t flags[] = {[WINDOW_ONLY] = KVI_LAYER_WINDOW,
                                    [SPARSE] =
                                        KVI_LAYER_WINDOW | KVI_LAYER_INDEXED | KVI_LAYER_OVERLAP,
                                    [HEAVY] = KVI_LAYER_WINDOW | KVI_LAYER_WIDE};

    kvi_family_set_layer(c, layer, flags[kind], kind == WINDOW_ONLY ? 0 : ratio);
}

/* The released form: a ratio for every layer, and zeros behind them for draft layers. */
static void read_ratios(kvi_family_input *in)
{
    static const char key[] = "compress_ratios";
    kvi_config       *c = in->c;
    size_t            n = 0;
    const json_t     *list = kvi_json_list(&in->r, key, KVI_MAX_LAYERS, 1, &n);

    if (in->r.st == KVCSA_OK && n < c->n_layers)
        kvi_json_refuse(&in->r, in->r.malformed, key, "has %zu items, must have %u at least", n,
                        c->n_layers);
    for (uint32_t i = 0; i < c->n_layers + c->n_draft_layers && in->r.st == KVCSA_OK; i++) {
        const int64_t ratio =
            i < n ? kvi_json_check_int(&in->r, key, json_array_get(list, i), 0, KVI_MAX_HIDDEN) : 0;

        if (ratio != 0 && ratio != 4 && ratio != 128)
            kvi_json_refuse(&in->r, KVCSA_ERR_UNSUPPORTED, key,
                            "is %lld at layer %u, this version reads 0, 4 and 128",
                            (long long)ratio, i);
        set_pooled(c, i, ratio == 0 ? WINDOW_ONLY : ratio == 4 ? SPARSE : HEAVY, (uint32_t)ratio);
    }
}

/* The form of the class: kinds of layers, and a rate for each kind. The limits keep the raw rows of
 * one layer below 2^32 bytes. */
static void read_kinds(kvi_family_input *in)
{
    static const char *const names[] = {[WINDOW_ONLY] = "sliding_attention",
                                        [SPARSE] = "compressed_sparse_attention",
                                        [HEAVY] = "heavily_compressed_attention"};
    kvi_config              *c = in->c;
    kvi_json_reader          rates;
    uint8_t                  kinds[KVI_MAX_LAYERS];
    uint32_t                 sparse = 4;
    uint32_t                 heavy = 128;

    if (kvi_json_enter(&in->r, "compress_rates", "compress_rates.", &rates)) {
        sparse = (uint32_t)kvi_json_int_or(&rates, names[SPARSE], 2, 512, sparse);
        heavy = (uint32_t)kvi_json_int_or(&rates, names[HEAVY], 2, 4096, heavy);
        in->r.st = rates.st;
    }
    if (!kvi_family_layer_types(in, names, 3, kinds))
        return;
    for (uint32_t i = 0; i < c->n_layers + c->n_draft_layers; i++) {
        const int kind = i < c->n_layers ? kinds[i] : WINDOW_ONLY;

        set_pooled(c, i, kind, kind == SPARSE ? sparse : heavy);
    }
}

void kvi_family_csa(kvi_family_input *in)
{
    kvi_config      *c = in->c;
    kvi_cache_shape *s = &c->cache;
    uint32_t         dtype;
    uint32_t         width;
    uint32_t         rope;

    kvi_family_basics(in, NULL);
    if (kvi_json_int_or(&in->r, "num_key_value_heads", 1, KVI_MAX_HEAD_COUNT, 1) != 1)
        kvi_json_refuse(&in->r, KVCSA_ERR_UNSUPPORTED, "num_key_value_heads",
                        "is not 1, which this family caches");
    width = (uint32_t)kvi_json_int(&in->r, "head_dim", 2, KVI_MAX_ROW_WIDTH);
    rope = (uint32_t)kvi_json_int_or(&in->r, "qk_rope_head_dim", 0, width, 0);
    kvi_family_want_multiple(&in->r, "qk_rope_head_dim", rope, 2);
    c->window = (uint32_t)kvi_json_int(&in->r, "sliding_window", 1, KVI_MAX_HIDDEN);
    read_index(in);
    if (in->r.st != KVCSA_OK)
        return;
    set_latent(c, width, width, rope);
    dtype = s->entry_format;
    s->entry_format = record_or(KVCSA_FORMAT_CSA_FP8_584, width, dtype);
    s->window_format = s->entry_format;
    s->index_format = record_or(KVCSA_FORMAT_FP4_E8M0_G32, c->index_dim, dtype);
    s->sink = 1;
    if (kvi_json_get(&in->r, "compress_ratios") || !kvi_json_get(&in->r, "layer_types"))
        read_ratios(in);
    else
        read_kinds(in);
}

/* ------------------------------------------------------------------ linear attention */

/* Layers in the two lists count from 1; each is in exactly one of them. */
void kvi_family_kimi_linear(kvi_family_input *in)
{
    kvi_config     *c = in->c;
    kvi_json_reader l;
    uint32_t        ids[KVI_MAX_LAYERS];
    uint8_t         seen[KVI_MAX_LAYERS] = {0};
    uint32_t        n;
    uint32_t        n_heads;
    uint32_t        head_dim;

    kvi_family_mla(in);
    if (!kvi_json_enter(&in->r, "linear_attn_config", "linear_attn_config.", &l)) {
        kvi_json_refuse(&in->r, in->r.malformed, "linear_attn_config",
                        "is absent, must be an object");
        return;
    }
    n_heads = (uint32_t)kvi_json_int(&l, "num_heads", 1, KVI_MAX_HEAD_COUNT);
    head_dim = (uint32_t)kvi_json_int(&l, "head_dim", 1, KVI_MAX_ROW_WIDTH);
    n = kvi_json_layers(&l, "full_attn_layers", 1, c->n_layers, KVI_MAX_LAYERS, ids);
    for (uint32_t i = 0; i < n; i++)
        seen[ids[i]]++;
    n = kvi_json_layers(&l, "kda_layers", 1, c->n_layers, KVI_MAX_LAYERS, ids);
    for (uint32_t i = 0; i < n; i++) {
        seen[ids[i]]++;
        kvi_family_set_layer(c, ids[i], KVI_LAYER_STATE, 0);
    }
    for (uint32_t i = 0; i < c->n_layers && l.st == KVCSA_OK; i++)
        if (seen[i] != 1)
            kvi_json_refuse(&l, l.malformed, "full_attn_layers",
                            "and kda_layers have layer %u %s, must have it once", i + 1,
                            seen[i] ? "twice" : "nowhere");
    in->r.st = l.st;
    kvi_family_set_state(in, "linear_attn_config", n_heads, head_dim, head_dim);
}
