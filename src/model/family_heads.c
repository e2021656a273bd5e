/* Families that cache keys and values of heads: all of them, groups, or one; in all layers or in
 * some, with windows or linear attention in the others. */
#include "model/config_int.h"

#include <string.h>

/* Keys and values of kv_heads heads, each with as many channels. */
static void set_heads(kvi_family_input *in, const char *key, uint32_t kv_heads, uint32_t head_dim)
{
    kvi_cache_shape *s = &in->c->cache;

    if (in->r.st != KVCSA_OK)
        return;
    if (in->c->n_heads % kv_heads != 0)
        kvi_json_refuse(&in->r, in->r.malformed, key,
                        "is %u, must divide the number of attention heads (%u)", kv_heads,
                        in->c->n_heads);
    if (2ull * kv_heads * head_dim > KVI_MAX_ROW_WIDTH)
        kvi_json_refuse(&in->r, in->r.malformed, key,
                        "is %u, x 2 x %u channels of a head must be at most %d", kv_heads, head_dim,
                        KVI_MAX_ROW_WIDTH);
    in->c->head_dim = head_dim;
    s->kv_heads = kv_heads;
    s->key_width = head_dim;
    s->value_width = head_dim;
    s->value_kind = KVCSA_VALUE_OWN;
}

/* hidden_size / heads, where no key gives the width of a head */
static uint32_t derived_head_dim(kvi_family_input *in)
{
    kvi_config *c = in->c;

    if (in->r.st != KVCSA_OK)
        return 1;
    if (c->hidden_size % c->n_heads != 0)
        kvi_json_refuse(&in->r, in->r.malformed, "hidden_size",
                        "is %u, must be a multiple of the attention heads (%u)", c->hidden_size,
                        c->n_heads);
    return c->hidden_size / c->n_heads;
}

static const char *const kv_head_keys[] = {"num_key_value_heads", "num_kv_heads", "n_head_kv",
                                           "multi_query_group_num", NULL};

/* Grouped heads. head_dim, kv_heads: what the class assumes; 0 = derived, and all heads. */
static void read_heads(kvi_family_input *in, uint32_t kv_heads, uint32_t head_dim)
{
    static const char *const widths[] = {"head_dim", "kv_channels", NULL};
    uint32_t                 width = head_dim;

    if (kvi_json_get(&in->r, kvi_family_key(in, widths)))
        width = (uint32_t)kvi_family_int(in, widths, 1, KVI_MAX_ROW_WIDTH, -1);
    else if (width == 0)
        width = derived_head_dim(in);
    kv_heads = (uint32_t)kvi_family_int(in, kv_head_keys, 1, KVI_MAX_HEAD_COUNT,
                                        kv_heads ? kv_heads : in->c->n_heads);
    set_heads(in, kvi_family_key(in, kv_head_keys), kv_heads, width);
}

/* absent: what the class assumes without the key; null is no window. */
static void read_window(kvi_family_input *in, uint32_t absent)
{
    static const char key[] = "sliding_window";

    if (json_is_null(json_object_get(in->r.obj, key)))
        absent = 0;
    in->c->window = (uint32_t)kvi_json_int_or(&in->r, key, 1, KVI_MAX_HIDDEN, absent);
}

/* Flags u8 [n_layers], 1 = this layer keeps its window only. Draft layers attend everything. */
static void set_windows(kvi_family_input *in, const uint8_t *slides)
{
    if (in->c->window == 0)
        return;
    for (uint32_t i = 0; i < in->c->n_layers && in->r.st == KVCSA_OK; i++)
        if (slides[i])
            kvi_family_set_layer(in->c, i, KVI_LAYER_WINDOW, 0);
}

static int read_window_types(kvi_family_input *in, uint8_t *slides)
{
    static const char *const names[] = {"full_attention", "sliding_attention"};

    return kvi_family_layer_types(in, names, 2, slides);
}

/* ------------------------------------------------------------------ one kind of layer */

void kvi_family_llama(kvi_family_input *in)
{
    kvi_family_basics(in, NULL);
    read_heads(in, 0, 0);
}

void kvi_family_all_heads(kvi_family_input *in)
{
    kvi_family_basics(in, NULL);
    set_heads(in, "num_attention_heads", in->c->n_heads, derived_head_dim(in));
}

void kvi_family_falcon(kvi_family_input *in)
{
    static const kvi_family_absent absent = {.max_tokens = 2048};
    uint32_t                       kv_heads = 1;
    int                            grouped;
    int                            shared;

    kvi_family_basics(in, &absent);
    grouped = kvi_json_bool_or(&in->r, "new_decoder_architecture", 0);
    shared = kvi_json_bool_or(&in->r, "multi_query", 1);
    if (grouped)
        kv_heads =
            (uint32_t)kvi_family_int(in, kv_head_keys, 1, KVI_MAX_HEAD_COUNT, in->c->n_heads);
    else if (!shared)
        kv_heads = in->c->n_heads;
    set_heads(in, kvi_family_key(in, kv_head_keys), kv_heads, derived_head_dim(in));
}

/* ------------------------------------------------------------------ windows */

/* Every layer slides, unless sliding_window is null; a configuration of the first release has no
 * such key and 4096. */
void kvi_family_mistral(kvi_family_input *in)
{
    uint8_t slides[KVI_MAX_LAYERS];

    memset(slides, 1, sizeof slides);
    kvi_family_basics(in, NULL);
    read_heads(in, 0, 0);
    read_window(in, 4096);
    (void)read_window_types(in, slides);
    set_windows(in, slides);
}

/* Windows only where use_sliding_window asks for them, in the layers from max_window_layers on. */
void kvi_family_qwen(kvi_family_input *in)
{
    uint8_t slides[KVI_MAX_LAYERS] = {0};
    int64_t first;

    kvi_family_basics(in, NULL);
    read_heads(in, 0, 0);
    if (!kvi_json_bool_or(&in->r, "use_sliding_window", 0))
        return;
    read_window(in, 4096);
    first = kvi_json_int_or(&in->r, "max_window_layers", 0, KVI_MAX_LAYERS, 28);
    if (!read_window_types(in, slides))
        for (uint32_t i = 0; i < in->c->n_layers; i++)
            slides[i] = i >= first;
    set_windows(in, slides);
}

/* Five of six layers slide; the class knows the shape of the smallest model. */
void kvi_family_gemma3(kvi_family_input *in)
{
    static const char *const patterns[] = {"sliding_window_pattern", "_sliding_window_pattern",
                                           NULL};
    static const kvi_family_absent absent = {
        .n_heads = 8, .vocab_size = 262208, .max_tokens = 131072};
    uint8_t slides[KVI_MAX_LAYERS] = {0};
    int64_t pattern;

    kvi_family_basics(in, &absent);
    read_heads(in, 4, 256);
    read_window(in, 4096);
    pattern = kvi_family_int(in, patterns, 1, KVI_MAX_LAYERS, 6);
    if (!read_window_types(in, slides))
        for (uint32_t i = 0; i < in->c->n_layers; i++)
            slides[i] = (i + 1) % pattern != 0;
    set_windows(in, slides);
}

void kvi_family_gpt_oss(kvi_family_input *in)
{
    static const kvi_family_absent absent = {.n_heads = 64, .max_tokens = 131072};
    uint8_t                        slides[KVI_MAX_LAYERS];

    kvi_family_basics(in, &absent);
    read_heads(in, 8, 64);
    read_window(in, 128);
    if (!read_window_types(in, slides))
        for (uint32_t i = 0; i < in->c->n_layers; i++)
            slides[i] = i % 2 == 0;
    set_windows(in, slides);
    in->c->cache.sink = 1;
}

/* ------------------------------------------------------------------ MiniMax */

/* Text-01 and M1: linear attention in seven of eight layers. M2 has the same list, all ones. */
void kvi_family_minimax(kvi_family_input *in)
{
    static const char *const names[] = {"linear_attention", "full_attention"};
    kvi_config              *c = in->c;
    uint8_t                  full[KVI_MAX_LAYERS];

    memset(full, 1, sizeof full);
    kvi_family_basics(in, NULL);
    read_heads(in, 0, 0);
    if (!kvi_family_layer_list(&in->r, "attn_type_list", c->n_layers, 0, 1, full))
        (void)kvi_family_layer_types(in, names, 2, full);
    if (in->r.st != KVCSA_OK)
        return;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (full[i])
            continue;
        kvi_family_set_layer(c, i, KVI_LAYER_STATE, 0);
        kvi_family_set_state(in, "num_attention_heads", c->n_heads, c->head_dim, c->head_dim);
    }
}

/* M3: some layers rank blocks of tokens by an index key beside the heads. Which, how wide and how
 * many: in an object of its own, or with the names of the class. */
void kvi_family_minimax_m3(kvi_family_input *in)
{
    static const char *const names[] = {"full_attention", "minimax_m3_sparse"};
    kvi_config              *c = in->c;
    uint8_t                  sparse[KVI_MAX_LAYERS] = {0};
    kvi_json_reader          s;
    int                      own;
    uint64_t                 selected;

    kvi_family_basics(in, NULL);
    read_heads(in, 0, 0);
    c->cache.index_format = c->cache.entry_format;
    own = kvi_json_enter(&in->r, "sparse_attention_config", "sparse_attention_config.", &s);
    if (!kvi_family_layer_types(in, names, 2, sparse) && own)
        (void)kvi_family_layer_list(&s, "sparse_attention_freq", c->n_layers, 0, 1, sparse);
    if (in->r.st == KVCSA_OK)
        in->r.st = s.st;
    if (in->r.st != KVCSA_OK || !memchr(sparse, 1, c->n_layers))
        return;
    s.st = in->r.st;
    c->index_heads = (uint32_t)kvi_json_int(&s, own ? "sparse_num_index_heads" : "index_n_heads", 1,
                                            KVI_MAX_HEAD_COUNT);
    c->index_dim = (uint32_t)kvi_json_int(&s, own ? "sparse_index_dim" : "index_head_dim", 1,
                                          KVI_MAX_ROW_WIDTH);
    selected = (uint64_t)kvi_json_int(&s, own ? "sparse_topk_blocks" : "index_topk_blocks", 1,
                                      KVI_MAX_HIDDEN);
    selected *= (uint64_t)kvi_json_int(&s, own ? "sparse_block_size" : "index_block_size", 1,
                                       KVI_MAX_HIDDEN);
    if (s.st == KVCSA_OK && selected > KVI_MAX_HIDDEN)
        kvi_json_refuse(&s, s.malformed, own ? "sparse_topk_blocks" : "index_topk_blocks",
                        "gives %llu selected tokens, limit %d", (unsigned long long)selected,
                        KVI_MAX_HIDDEN);
    in->r.st = s.st;
    c->index_topk = (uint32_t)selected;
    for (uint32_t i = 0; i < c->n_layers && s.st == KVCSA_OK; i++)
        if (sparse[i])
            kvi_family_set_layer(c, i, KVI_LAYER_INDEXED, 1);
}
