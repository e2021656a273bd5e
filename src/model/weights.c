/* Binding tensors by name. Names, formats and shapes: docs/formats.md, "Tensors"; every shape is a
 * formula of the configuration (several widths of the release coincide: hc_mult = largest n-gram,
 * Engram columns = hidden + o_lora_rank).
 *
 * Matrices stay where they are. Vectors are small and unaligned in the file: they are copied to
 * f32, and a NaN or infinity in one is refused, since it would poison every token. Bytes of
 * matrices are not scanned: that would read the whole checkpoint. */
#include "model/weights.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/status.h"
#include "format/dtype.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define CHUNK_BYTES ((size_t)256 << 10)

typedef struct chunk { /* list of all storage behind kvi_weights.owned */
    struct chunk *next;
    size_t        n_bytes; /* with this head */
    size_t        used;
} chunk;

typedef struct binder {
    const kvi_config      *c;
    kvi_tensors           *t;
    const kvcsa_allocator *a;
    chunk                 *chunks;
    kvcsa_status           st; /* the first failure; after it nothing is bound */
    kvcsa_error           *err;
    char                   prefix[96]; /* of the part being bound, with the dot */
} binder;

/* ------------------------------------------------------------------ storage */

/* Zeroed, 16-byte aligned; NULL and b->st set when out of memory. */
static void *take(binder *b, size_t n_bytes)
{
    const size_t head = (sizeof(chunk) + 63) / 64 * 64;
    chunk       *c = b->chunks;
    void        *p;

    n_bytes =
        (n_bytes + 15) / 16 * 16; /* sizes are products of checked fields, far below overflow */
    if (!c || c->n_bytes - c->used < n_bytes) {
        const size_t want = kvi_max_size(CHUNK_BYTES, head + n_bytes);

        if (!(c = kvi_zalloc(b->a, want))) {
            b->st = kvi_fail(b->err, KVCSA_ERR_NOMEM, "%zu bytes of weights", want);
            return NULL;
        }
        c->n_bytes = want;
        c->used = head;
        c->next = b->chunks;
        b->chunks = c;
    }
    p = (char *)c + c->used;
    c->used += n_bytes;
    return p;
}

/* ------------------------------------------------------------------ one tensor */

static void format_shape(const uint64_t *shape, uint32_t n, char *out, size_t cap)
{
    size_t at = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < n && at < cap; i++) {
        const int wrote =
            snprintf(out + at, cap - at, i ? ", %llu" : "%llu", (unsigned long long)shape[i]);

        at += wrote > 0 ? (size_t)wrote : 0;
    }
}

/* The tensor prefix + name, which must have this dtype and shape; cols 0 = a vector of `rows`. NULL
 * on failure. */
static const kvi_tensor *bind(binder *b, const char *name, uint32_t dtype, uint64_t rows,
                              uint64_t cols)
{
    const uint64_t want[2] = {rows, cols};
    const uint32_t n_dims = cols ? 2 : 1;
    char           full[256];
    char           is[96];
    char           must[64];
    kvi_tensor    *t;

    if (b->st != KVCSA_OK)
        return NULL;
    (void)snprintf(full, sizeof full, "%s%s", b->prefix, name);
    format_shape(want, n_dims, must, sizeof must);
    if (!(t = kvi_tensors_find(b->t, full))) {
        b->st = kvi_fail(b->err, KVCSA_ERR_FORMAT, "tensor %s is absent, must be %s [%s]", full,
                         kvi_dtype_name(dtype), must);
        return NULL;
    }
    if (t->dtype != dtype || t->n_dims != n_dims || t->shape[0] != rows ||
        (cols && t->shape[1] != cols)) {
        format_shape(t->shape, t->n_dims, is, sizeof is);
        b->st = kvi_fail(b->err, KVCSA_ERR_FORMAT, "%s: tensor %s is %s [%s], must be %s [%s]",
                         t->shard, full, kvi_dtype_name(t->dtype), is, kvi_dtype_name(dtype), must);
        return NULL;
    }
    t->used = 1;
    return t;
}

static void bind_plain(binder *b, const char *name, uint32_t kind, uint32_t rows, uint32_t cols,
                       kvi_matrix *out)
{
    const kvi_tensor *t = bind(b, name, kind == KVI_W_F32 ? KVI_ST_F32 : KVI_ST_BF16, rows, cols);

    if (t)
        *out = (kvi_matrix){.data = t->data, .kind = kind, .rows = rows, .cols = cols};
}

/* name.weight and name.scale; cols is that of the matrix, a multiple of 32. */
static void bind_scaled(binder *b, const char *name, uint32_t kind, uint32_t rows, uint32_t cols,
                        kvi_matrix *out)
{
    const uint32_t    dtype = kind == KVI_W_FP4 ? KVI_ST_I8 : KVI_ST_F8_E4M3;
    const uint32_t    data_cols = kind == KVI_W_FP4 ? cols / 2 : cols;
    const uint32_t    scale_rows = kind == KVI_W_FP8 ? (uint32_t)kvi_div_up(rows, 32) : rows;
    char              full[128];
    const kvi_tensor *data;
    const kvi_tensor *scale;

    (void)snprintf(full, sizeof full, "%s.weight", name);
    data = bind(b, full, dtype, rows, data_cols);
    (void)snprintf(full, sizeof full, "%s.scale", name);
    scale = bind(b, full, KVI_ST_F8_E8M0, scale_rows, cols / 32);
    if (data && scale)
        *out = (kvi_matrix){
            .data = data->data, .scale = scale->data, .kind = kind, .rows = rows, .cols = cols};
}

static float element(const kvi_tensor *t, size_t i)
{
    return t->dtype == KVI_ST_F32 ? kvi_load_f32(t->data + 4 * i)
                                  : kvi_bf16_to_f32(kvi_load_u16(t->data + 2 * i));
}

/* n = rows x max(cols, 1) values to f32, all of them finite. */
static void copy_finite(binder *b, const kvi_tensor *t, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = element(t, i);
        if (!isfinite(out[i])) {
            b->st = kvi_fail(b->err, KVCSA_ERR_FORMAT, "%s: element %zu of tensor %s is not finite",
                             t->shard, i, t->name);
            return;
        }
    }
}

static const float *bind_vector(binder *b, const char *name, uint32_t dtype, uint32_t n)
{
    const kvi_tensor *t = bind(b, name, dtype, n, 0);
    float            *out = t ? take(b, n * sizeof *out) : NULL;

    if (out)
        copy_finite(b, t, n, out);
    return b->st == KVCSA_OK ? out : NULL;
}

/* ------------------------------------------------------------------ the parts of a layer */

static void set_prefix(binder *b, const char *format, ...) KVI_PRINTF(2, 3);

static void set_prefix(binder *b, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(b->prefix, sizeof b->prefix, format, args);
    va_end(args);
}

static void bind_attention(binder *b, uint32_t layer, kvi_layer_weights *w)
{
    const kvi_config *c = b->c;
    const uint32_t    all_heads = c->n_heads * c->head_dim;
    const uint32_t    all_out = c->o_groups * c->o_lora_rank;

    set_prefix(b, "layers.%u.attn.", layer);
    w->attn_sink = bind_vector(b, "attn_sink", KVI_ST_F32, c->n_heads);
    w->q_norm = bind_vector(b, "q_norm.weight", KVI_ST_BF16, c->q_lora_rank);
    w->kv_norm = bind_vector(b, "kv_norm.weight", KVI_ST_BF16, c->head_dim);
    bind_scaled(b, "wq_a", KVI_W_FP8, c->q_lora_rank, c->hidden_size, &w->wq_a);
    bind_scaled(b, "wq_b", KVI_W_FP8, all_heads, c->q_lora_rank, &w->wq_b);
    bind_scaled(b, "wkv", KVI_W_FP8, c->head_dim, c->hidden_size, &w->wkv);
    bind_scaled(b, "wo_a", KVI_W_FP8, all_out, all_heads / c->o_groups, &w->wo_a);
    bind_scaled(b, "wo_b", KVI_W_FP8, c->hidden_size, all_out, &w->wo_b);
    if (c->kv_source[layer]) {
        bind_plain(b, "compressor.wkv.weight", KVI_W_BF16, c->head_dim, c->hidden_size,
                   &w->comp_wkv);
        if (c->ratios[layer] > 1)
            bind_plain(b, "compressor.wgate.weight", KVI_W_BF16, c->head_dim, c->hidden_size,
                       &w->comp_wgate);
        w->comp_norm = bind_vector(b, "compressor.norm.weight", KVI_ST_BF16, c->head_dim);
        bind_plain(b, "indexer.wk.weight", KVI_W_BF16, c->index_dim, c->head_dim, &w->index_wk);
        w->index_k_norm = bind_vector(b, "indexer.k_norm.weight", KVI_ST_BF16, c->index_dim);
    }
    if (c->index_source[layer]) {
        bind_scaled(b, "indexer.wq_b", KVI_W_FP8, c->index_heads * c->index_dim, c->q_lora_rank,
                    &w->index_wq_b);
        bind_plain(b, "indexer.weights_proj.weight", KVI_W_BF16, c->index_heads, c->hidden_size,
                   &w->index_weights);
    }
}

static void bind_expert(binder *b, uint32_t kind, kvi_expert *out)
{
    const uint32_t width = b->c->hidden_size;
    const uint32_t inner = b->c->moe_inner;

    bind_scaled(b, "w1", kind, inner, width, &out->w1);
    bind_scaled(b, "w2", kind, width, inner, &out->w2);
    bind_scaled(b, "w3", kind, inner, width, &out->w3);
}

static void bind_feed_forward(binder *b, uint32_t layer, kvi_layer_weights *w)
{
    const kvi_config *c = b->c;

    set_prefix(b, "layers.%u.ffn.", layer);
    bind_plain(b, "gate.weight", KVI_W_BF16, c->n_experts, c->hidden_size, &w->gate);
    w->gate_bias = bind_vector(b, "gate.bias", KVI_ST_F32, c->n_experts);
    set_prefix(b, "layers.%u.ffn.shared_experts.", layer);
    bind_expert(b, KVI_W_FP8, &w->shared);
    /* not before the cheap tensors are there: a hostile configuration should not make us allocate
     * for nothing */
    if (b->st != KVCSA_OK || !(w->experts = take(b, c->n_experts * sizeof *w->experts)))
        return;
    for (uint32_t e = 0; e < c->n_experts && b->st == KVCSA_OK; e++) {
        set_prefix(b, "layers.%u.ffn.experts.%u.", layer, e);
        bind_expert(b, KVI_W_FP4, &w->experts[e]);
    }
}

static void bind_mix(binder *b, uint32_t layer, const char *site, kvi_mix_weights *w)
{
    const kvi_config *c = b->c;
    const uint32_t    n = (2 + c->hc_copies) * c->hc_copies;
    const float      *scale;

    set_prefix(b, "layers.%u.hc_%s_", layer, site);
    bind_plain(b, "fn", KVI_W_F32, n, c->hc_copies * c->hidden_size, &w->fn);
    w->base = bind_vector(b, "base", KVI_ST_F32, n);
    if ((scale = bind_vector(b, "scale", KVI_ST_F32, 3)))
        memcpy(w->scale, scale, sizeof w->scale);
}

/* The gate uses the two weights as a product only. */
static const float *bind_engram_qk(binder *b)
{
    const uint32_t    copies = b->c->hc_copies;
    const uint32_t    width = b->c->hidden_size;
    const size_t      n = (size_t)copies * width;
    const kvi_tensor *q = bind(b, "q_weight", KVI_ST_BF16, copies, width);
    const kvi_tensor *k = bind(b, "k_weight", KVI_ST_BF16, copies, width);
    float            *out = q && k ? take(b, n * sizeof *out) : NULL;

    if (!out)
        return NULL;
    copy_finite(b, k, n, out);
    for (size_t i = 0; i < n && b->st == KVCSA_OK; i++) {
        const float a = element(q, i);

        if (!isfinite(a) || !isfinite(a * out[i]))
            b->st = kvi_fail(b->err, KVCSA_ERR_FORMAT,
                             "%s: element %zu of tensor %s is not finite, or not times that of %s",
                             q->shard, i, q->name, k->name);
        out[i] = a * out[i];
    }
    return b->st == KVCSA_OK ? out : NULL;
}

static void bind_engram(binder *b, uint32_t layer, kvi_layer_weights *w)
{
    const kvi_config *c = b->c;
    kvi_matrix       *table = &w->engram_table;

    w->engram_index = -1;
    for (uint32_t i = 0; i < c->n_engram_layers; i++)
        if (c->engram_layers[i] == layer)
            w->engram_index = (int32_t)i;
    if (w->engram_index < 0)
        return;
    set_prefix(b, "layers.%u.engram.", layer);
    bind_scaled(b, "embed", KVI_W_FP8_ROW, (uint32_t)c->engram_rows[w->engram_index],
                c->engram_head_dim, table);
    bind_scaled(b, "wkv", KVI_W_FP8, (c->hc_copies + 1) * c->hidden_size,
                (c->engram_ngram - 1) * c->engram_heads * c->engram_head_dim, &w->engram_wkv);
    w->engram_qk = bind_engram_qk(b);
}

static void bind_layer(binder *b, uint32_t layer, kvi_layer_weights *w)
{
    set_prefix(b, "layers.%u.", layer);
    w->attn_norm = bind_vector(b, "attn_norm.weight", KVI_ST_BF16, b->c->hidden_size);
    w->ffn_norm = bind_vector(b, "ffn_norm.weight", KVI_ST_BF16, b->c->hidden_size);
    bind_attention(b, layer, w);
    bind_feed_forward(b, layer, w);
    bind_mix(b, layer, "attn", &w->mix_attn);
    bind_mix(b, layer, "ffn", &w->mix_ffn);
    bind_engram(b, layer, w);
}

kvcsa_status kvi_weights_bind(const kvi_config *c, kvi_tensors *t, const kvcsa_allocator *a,
                              kvi_weights *out, kvcsa_error *err)
{
    binder b = {.c = c, .t = t, .a = a, .err = err};

    memset(out, 0, sizeof *out);
    bind_plain(&b, "embed.weight", KVI_W_BF16, c->vocab_size, c->hidden_size, &out->embed);
    bind_plain(&b, "head.weight", KVI_W_BF16, c->vocab_size, c->hidden_size, &out->head);
    out->norm = bind_vector(&b, "norm.weight", KVI_ST_BF16, c->hidden_size);
    if (b.st == KVCSA_OK)
        out->layers = take(&b, c->n_layers * sizeof *out->layers);
    for (uint32_t i = 0; i < c->n_layers && b.st == KVCSA_OK; i++)
        bind_layer(&b, i, &out->layers[i]);
    out->owned = b.chunks;
    if (b.st != KVCSA_OK)
        kvi_weights_fini(out, c, a);
    return b.st;
}

void kvi_weights_fini(kvi_weights *w, const kvi_config *c, const kvcsa_allocator *a)
{
    chunk *next;

    (void)c;
    for (chunk *at = w->owned; at; at = next) {
        next = at->next;
        kvi_free(a, at, at->n_bytes);
    }
    memset(w, 0, sizeof *w);
}
