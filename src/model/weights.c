/* The tensors of the text model, and binding them by name. Names, formats and shapes:
 * docs/formats.md, "Tensors"; every shape is a formula of the configuration (several widths of the
 * release coincide: hc_mult = largest n-gram, Engram columns = hidden + o_lora_rank).
 *
 * Three tables hold one line for each tensor, or for each weight with its scales. Nothing else in
 * the library lists tensors.
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
#include <stddef.h>
#include <stdio.h>

#define CHUNK_BYTES ((size_t)256 << 10)

/* ------------------------------------------------------------------ the tables */

enum { /* slot.when */
    ALWAYS,
    KV_SOURCE,
    KV_POOLED, /* kv source whose entries are made of several tokens */
    INDEX_SOURCE,
    ENGRAM
};

enum { /* slot.store, and what the offset points to */
    AS_MATRIX, /* kvi_matrix */
    AS_VECTOR, /* const float *, to a copy */
    AS_VALUES, /* float []: copied there */
    AS_FACTOR  /* const float *, to a copy that exists: multiplied by this tensor */
};

enum dim {
    ONE, /* as columns: the tensor is a vector */
    THREE,
    VOCAB,
    HIDDEN,
    HEADS,
    HEAD_DIM,
    ALL_HEADS,
    GROUP_HEADS,
    Q_RANK,
    ALL_OUT,
    INDEX_DIM,
    INDEX_HEADS,
    ALL_INDEX_HEADS,
    EXPERTS,
    INNER,
    COPIES,
    COPIES_HIDDEN,
    MIX,
    ENGRAM_ROWS,
    ENGRAM_DIM,
    ENGRAM_COLS,
    ENGRAM_OUT
};

typedef struct slot {
    const char *name; /* behind "layers.L." or "layers.L.ffn.experts.e."; of a weight with scales
                       * without ".weight" and ".scale" */
    uint8_t     kind; /* KVI_W_* */
    uint8_t     rows; /* enum dim */
    uint8_t     cols;
    uint8_t     when;
    uint8_t     role;
    uint8_t     store;
    uint16_t    offset; /* in kvi_weights, kvi_layer_weights or kvi_expert */
} slot;

#define BF16 KVI_W_BF16
#define F32 KVI_W_F32
#define FP8 KVI_W_FP8
#define FP4 KVI_W_FP4

#define AT(field) offsetof(kvi_weights, field)
static const slot global_slots[] = {
    {"embed.weight", BF16, VOCAB, HIDDEN, ALWAYS, KVI_ROLE_EMBED, AS_MATRIX, AT(embed)},
    {"head.weight", BF16, VOCAB, HIDDEN, ALWAYS, KVI_ROLE_HEAD, AS_MATRIX, AT(head)},
    {"norm.weight", BF16, HIDDEN, ONE, ALWAYS, KVI_ROLE_NORM, AS_VECTOR, AT(norm)},
};
#undef AT

/* Small ones first: a configuration that does not fit the files is refused before its experts are
 * looked for. */
#define AT(field) offsetof(kvi_layer_weights, field)
static const slot layer_slots[] = {
    {"attn_norm.weight", BF16, HIDDEN, ONE, ALWAYS, KVI_ROLE_ATTN_NORM, AS_VECTOR, AT(attn_norm)},
    {"ffn_norm.weight", BF16, HIDDEN, ONE, ALWAYS, KVI_ROLE_FFN_NORM, AS_VECTOR, AT(ffn_norm)},

    {"attn.attn_sink", F32, HEADS, ONE, ALWAYS, KVI_ROLE_SINK, AS_VECTOR, AT(attn_sink)},
    {"attn.q_norm.weight", BF16, Q_RANK, ONE, ALWAYS, KVI_ROLE_Q_NORM, AS_VECTOR, AT(q_norm)},
    {"attn.kv_norm.weight", BF16, HEAD_DIM, ONE, ALWAYS, KVI_ROLE_KV_NORM, AS_VECTOR, AT(kv_norm)},
    {"attn.wq_a", FP8, Q_RANK, HIDDEN, ALWAYS, KVI_ROLE_WQ_A, AS_MATRIX, AT(wq_a)},
    {"attn.wq_b", FP8, ALL_HEADS, Q_RANK, ALWAYS, KVI_ROLE_WQ_B, AS_MATRIX, AT(wq_b)},
    {"attn.wkv", FP8, HEAD_DIM, HIDDEN, ALWAYS, KVI_ROLE_WKV, AS_MATRIX, AT(wkv)},
    {"attn.wo_a", FP8, ALL_OUT, GROUP_HEADS, ALWAYS, KVI_ROLE_WO_A, AS_MATRIX, AT(wo_a)},
    {"attn.wo_b", FP8, HIDDEN, ALL_OUT, ALWAYS, KVI_ROLE_WO_B, AS_MATRIX, AT(wo_b)},

    {"attn.compressor.wkv.weight", BF16, HEAD_DIM, HIDDEN, KV_SOURCE, KVI_ROLE_COMP_WKV, AS_MATRIX,
     AT(comp_wkv)},
    {"attn.compressor.wgate.weight", BF16, HEAD_DIM, HIDDEN, KV_POOLED, KVI_ROLE_COMP_WGATE,
     AS_MATRIX, AT(comp_wgate)},
    {"attn.compressor.norm.weight", BF16, HEAD_DIM, ONE, KV_SOURCE, KVI_ROLE_COMP_NORM, AS_VECTOR,
     AT(comp_norm)},
    {"attn.indexer.wk.weight", BF16, INDEX_DIM, HEAD_DIM, KV_SOURCE, KVI_ROLE_INDEX_WK, AS_MATRIX,
     AT(index_wk)},
    {"attn.indexer.k_norm.weight", BF16, INDEX_DIM, ONE, KV_SOURCE, KVI_ROLE_INDEX_K_NORM,
     AS_VECTOR, AT(index_k_norm)},
    {"attn.indexer.wq_b", FP8, ALL_INDEX_HEADS, Q_RANK, INDEX_SOURCE, KVI_ROLE_INDEX_WQ_B,
     AS_MATRIX, AT(index_wq_b)},
    {"attn.indexer.weights_proj.weight", BF16, INDEX_HEADS, HIDDEN, INDEX_SOURCE,
     KVI_ROLE_INDEX_WEIGHTS, AS_MATRIX, AT(index_weights)},

    {"ffn.gate.weight", BF16, EXPERTS, HIDDEN, ALWAYS, KVI_ROLE_GATE, AS_MATRIX, AT(gate)},
    {"ffn.gate.bias", F32, EXPERTS, ONE, ALWAYS, KVI_ROLE_GATE_BIAS, AS_VECTOR, AT(gate_bias)},
    {"ffn.shared_experts.w1", FP8, INNER, HIDDEN, ALWAYS, KVI_ROLE_EXPERT_IN, AS_MATRIX,
     AT(shared.w1)},
    {"ffn.shared_experts.w2", FP8, HIDDEN, INNER, ALWAYS, KVI_ROLE_EXPERT_OUT, AS_MATRIX,
     AT(shared.w2)},
    {"ffn.shared_experts.w3", FP8, INNER, HIDDEN, ALWAYS, KVI_ROLE_EXPERT_IN, AS_MATRIX,
     AT(shared.w3)},

    {"hc_attn_fn", F32, MIX, COPIES_HIDDEN, ALWAYS, KVI_ROLE_HC_FN, AS_MATRIX, AT(mix_attn.fn)},
    {"hc_attn_base", F32, MIX, ONE, ALWAYS, KVI_ROLE_HC_BASE, AS_VECTOR, AT(mix_attn.base)},
    {"hc_attn_scale", F32, THREE, ONE, ALWAYS, KVI_ROLE_HC_SCALE, AS_VALUES, AT(mix_attn.scale)},
    {"hc_ffn_fn", F32, MIX, COPIES_HIDDEN, ALWAYS, KVI_ROLE_HC_FN, AS_MATRIX, AT(mix_ffn.fn)},
    {"hc_ffn_base", F32, MIX, ONE, ALWAYS, KVI_ROLE_HC_BASE, AS_VECTOR, AT(mix_ffn.base)},
    {"hc_ffn_scale", F32, THREE, ONE, ALWAYS, KVI_ROLE_HC_SCALE, AS_VALUES, AT(mix_ffn.scale)},

    {"engram.embed", KVI_W_FP8_ROW, ENGRAM_ROWS, ENGRAM_DIM, ENGRAM, KVI_ROLE_ENGRAM_TABLE,
     AS_MATRIX, AT(engram_table)},
    {"engram.wkv", FP8, ENGRAM_OUT, ENGRAM_COLS, ENGRAM, KVI_ROLE_ENGRAM_WKV, AS_MATRIX,
     AT(engram_wkv)},
    /* the gate uses the two as a product only */
    {"engram.q_weight", BF16, COPIES, HIDDEN, ENGRAM, KVI_ROLE_ENGRAM_QK, AS_VECTOR,
     AT(engram_qk)},
    {"engram.k_weight", BF16, COPIES, HIDDEN, ENGRAM, KVI_ROLE_ENGRAM_QK, AS_FACTOR,
     AT(engram_qk)},
};
#undef AT

#define AT(field) offsetof(kvi_expert, field)
static const slot expert_slots[] = {
    {"w1", FP4, INNER, HIDDEN, ALWAYS, KVI_ROLE_EXPERT_IN, AS_MATRIX, AT(w1)},
    {"w2", FP4, HIDDEN, INNER, ALWAYS, KVI_ROLE_EXPERT_OUT, AS_MATRIX, AT(w2)},
    {"w3", FP4, INNER, HIDDEN, ALWAYS, KVI_ROLE_EXPERT_IN, AS_MATRIX, AT(w3)},
};
#undef AT

#define N_SLOTS(table) ((uint32_t)(sizeof(table) / sizeof(table)[0]))

static int32_t engram_index(const kvi_config *c, uint32_t layer)
{
    for (uint32_t i = 0; i < c->n_engram_layers; i++)
        if (c->engram_layers[i] == layer)
            return (int32_t)i;
    return -1;
}

static int is_there(const kvi_config *c, uint32_t layer, uint8_t when)
{
    switch (when) {
    case KV_SOURCE:
        return c->kv_source[layer];
    case KV_POOLED:
        return c->kv_source[layer] && c->ratios[layer] > 1;
    case INDEX_SOURCE:
        return c->index_source[layer];
    case ENGRAM:
        return engram_index(c, layer) >= 0;
    default:
        return 1;
    }
}

/* Products of two fields were checked with the configuration: none exceeds 2^24. */
static uint32_t value_of(const kvi_config *c, uint32_t layer, uint8_t dim)
{
    switch ((enum dim)dim) {
    case ONE: return 1;
    case THREE: return 3;
    case VOCAB: return c->vocab_size;
    case HIDDEN: return c->hidden_size;
    case HEADS: return c->n_heads;
    case HEAD_DIM: return c->head_dim;
    case ALL_HEADS: return c->n_heads * c->head_dim;
    case GROUP_HEADS: return c->n_heads * c->head_dim / c->o_groups;
    case Q_RANK: return c->q_lora_rank;
    case ALL_OUT: return c->o_groups * c->o_lora_rank;
    case INDEX_DIM: return c->index_dim;
    case INDEX_HEADS: return c->index_heads;
    case ALL_INDEX_HEADS: return c->index_heads * c->index_dim;
    case EXPERTS: return c->n_experts;
    case INNER: return c->moe_inner;
    case COPIES: return c->hc_copies;
    case COPIES_HIDDEN: return c->hc_copies * c->hidden_size;
    case MIX: return (2 + c->hc_copies) * c->hc_copies;
    case ENGRAM_ROWS: return (uint32_t)c->engram_rows[engram_index(c, layer)];
    case ENGRAM_DIM: return c->engram_head_dim;
    case ENGRAM_COLS: return (c->engram_ngram - 1) * c->engram_heads * c->engram_head_dim;
    case ENGRAM_OUT: return (c->hc_copies + 1) * c->hidden_size;
    }
    return 0;
}

/* ------------------------------------------------------------------ the list */

static int has_scales(uint32_t kind)
{
    return kind == KVI_W_FP8 || kind == KVI_W_FP8_ROW || kind == KVI_W_FP4;
}

static void fill_format(kvi_weight_tensor *t)
{
    t->n_dims = 2;
    t->shape[0] = t->rows;
    t->shape[1] = t->cols;
    if (t->is_scale) {
        t->dtype = KVI_ST_F8_E8M0;
        t->shape[0] = t->kind == KVI_W_FP8 ? kvi_div_up(t->rows, 32) : t->rows;
        t->shape[1] = t->cols / 32;
    } else if (has_scales(t->kind)) {
        t->dtype = t->kind == KVI_W_FP4 ? KVI_ST_I8 : KVI_ST_F8_E4M3;
        t->shape[1] = t->kind == KVI_W_FP4 ? t->cols / 2 : t->cols;
    } else {
        t->dtype = t->kind == KVI_W_F32 ? KVI_ST_F32 : KVI_ST_BF16;
    }
}

static void fill_tensor(const kvi_weight_iter *it, const slot *s, kvi_weight_tensor *t)
{
    const uint32_t    layer = it->part ? it->part - 1 : 0;
    const char *const end = !has_scales(s->kind) ? "" : it->scale ? ".scale" : ".weight";

    *t = (kvi_weight_tensor){.role = (kvi_weight_role)s->role,
                             .kind = s->kind,
                             .is_scale = it->scale,
                             .rows = value_of(it->c, layer, s->rows),
                             .cols = value_of(it->c, layer, s->cols),
                             .layer = (int32_t)it->part - 1,
                             .expert = (int32_t)it->expert - 1,
                             .offset = s->offset,
                             .store = s->store};
    fill_format(t);
    if (s->cols == ONE) {
        t->n_dims = 1;
        t->shape[1] = 1;
        t->cols = t->rows;
        t->rows = 1;
    }
    if (it->expert)
        (void)snprintf(t->name, sizeof t->name, "layers.%u.ffn.experts.%u.%s%s", layer,
                       it->expert - 1, s->name, end);
    else if (it->part)
        (void)snprintf(t->name, sizeof t->name, "layers.%u.%s%s", layer, s->name, end);
    else
        (void)snprintf(t->name, sizeof t->name, "%s%s", s->name, end);
}

kvi_weight_iter kvi_weight_first(const kvi_config *c)
{
    return (kvi_weight_iter){.c = c};
}

/* The table of the current part, or NULL behind the last one. */
static const slot *current_slots(const kvi_weight_iter *it, uint32_t *n)
{
    *n = it->expert ? N_SLOTS(expert_slots)
         : it->part ? N_SLOTS(layer_slots)
                    : N_SLOTS(global_slots);
    if (it->part > it->c->n_layers)
        return NULL;
    return it->expert ? expert_slots : it->part ? layer_slots : global_slots;
}

static void next_part(kvi_weight_iter *it)
{
    it->slot = 0;
    if (it->part && it->expert < it->c->n_experts) {
        it->expert++;
        return;
    }
    it->expert = 0;
    it->part++;
}

int kvi_weight_next(kvi_weight_iter *it, kvi_weight_tensor *out)
{
    for (;;) {
        uint32_t    n;
        const slot *slots = current_slots(it, &n);
        const slot *s = slots ? &slots[it->slot] : NULL;

        if (!s)
            return 0;
        if (it->slot == n) {
            next_part(it);
            continue;
        }
        if (it->part && !is_there(it->c, it->part - 1, s->when)) {
            it->slot++;
            continue;
        }
        fill_tensor(it, s, out);
        if (has_scales(s->kind) && !it->scale) {
            it->scale = 1;
            return 1;
        }
        it->scale = 0;
        it->slot++;
        return 1;
    }
}

uint64_t kvi_weight_bytes(const kvi_weight_tensor *t)
{
    const uint64_t element = t->dtype == KVI_ST_F32 ? 4 : t->dtype == KVI_ST_BF16 ? 2 : 1;

    return t->shape[0] * t->shape[1] * element;
}

/* ------------------------------------------------------------------ storage of the copies */

typedef struct chunk { /* list of all storage behind kvi_weights.owned */
    struct chunk *next;
    size_t        n_bytes; /* with this head */
    size_t        used;
} chunk;

typedef struct binder {
    const kvi_config      *c;
    kvi_tensors           *t;
    const kvcsa_allocator *a;
    kvi_weights           *w;
    chunk                 *chunks;
    kvcsa_status           st; /* the first failure; after it nothing is bound */
    kvcsa_error           *err;
} binder;

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

/* ------------------------------------------------------------------ binding */

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

/* The tensor of that name, which must have that dtype and shape. NULL on failure. */
static const kvi_tensor *find(binder *b, const kvi_weight_tensor *want)
{
    char        is[96];
    char        must[64];
    kvi_tensor *t;

    format_shape(want->shape, want->n_dims, must, sizeof must);
    if (!(t = kvi_tensors_find(b->t, want->name))) {
        b->st = kvi_fail(b->err, KVCSA_ERR_FORMAT, "tensor %s is absent, must be %s [%s]",
                         want->name, kvi_dtype_name(want->dtype), must);
        return NULL;
    }
    if (t->dtype != want->dtype || t->n_dims != want->n_dims || t->shape[0] != want->shape[0] ||
        (want->n_dims == 2 && t->shape[1] != want->shape[1])) {
        format_shape(t->shape, t->n_dims, is, sizeof is);
        b->st = kvi_fail(b->err, KVCSA_ERR_FORMAT, "%s: tensor %s is %s [%s], must be %s [%s]",
                         t->shard, want->name, kvi_dtype_name(t->dtype), is,
                         kvi_dtype_name(want->dtype), must);
        return NULL;
    }
    t->used = 1;
    return t;
}

static float element(const kvi_tensor *t, size_t i)
{
    return t->dtype == KVI_ST_F32 ? kvi_load_f32(t->data + 4 * i)
                                  : kvi_bf16_to_f32(kvi_load_u16(t->data + 2 * i));
}

/* n values to f32, all of them finite; with `factor` each times what is there. */
static void copy_finite(binder *b, const kvi_tensor *t, size_t n, int factor, float *out)
{
    for (size_t i = 0; i < n; i++) {
        const float x = element(t, i);

        out[i] = factor ? x * out[i] : x;
        if (!isfinite(out[i])) {
            b->st = kvi_fail(b->err, KVCSA_ERR_FORMAT,
                             "%s: element %zu of tensor %s is not finite%s", t->shard, i, t->name,
                             isfinite(x) ? " times that of the tensor it goes with" : "");
            return;
        }
    }
}

/* What the offset of a tensor counts from. NULL on failure. */
static void *base_of(binder *b, const kvi_weight_tensor *want)
{
    kvi_layer_weights *layer;

    if (want->layer < 0)
        return b->w;
    if (!b->w->layers) {
        if (!(b->w->layers = take(b, b->c->n_layers * sizeof *b->w->layers)))
            return NULL;
        for (uint32_t i = 0; i < b->c->n_layers; i++)
            b->w->layers[i].engram_index = engram_index(b->c, i);
    }
    layer = &b->w->layers[want->layer];
    if (want->expert < 0)
        return layer;
    if (!layer->experts &&
        !(layer->experts = take(b, b->c->n_experts * sizeof *layer->experts)))
        return NULL;
    return &layer->experts[want->expert];
}

static void bind(binder *b, const kvi_weight_tensor *want)
{
    const kvi_tensor *t = find(b, want);
    char             *to = t ? base_of(b, want) : NULL;
    const size_t      n = (size_t)want->rows * want->cols;

    if (!to)
        return;
    to += want->offset;
    if (want->store == AS_MATRIX) {
        kvi_matrix *m = (void *)to;

        if (want->is_scale)
            m->scale = t->data;
        else
            *m = (kvi_matrix){
                .data = t->data, .kind = want->kind, .rows = want->rows, .cols = want->cols};
    } else if (want->store == AS_VALUES) {
        copy_finite(b, t, n, 0, (void *)to);
    } else {
        const float **field = (void *)to;
        const int     factor = want->store == AS_FACTOR;
        float        *vector = factor ? (float *)*field : take(b, n * sizeof *vector);

        if (vector)
            copy_finite(b, t, n, factor, vector);
        *field = vector;
    }
}

kvcsa_status kvi_weights_bind(const kvi_config *c, kvi_tensors *t, const kvcsa_allocator *a,
                              kvi_weights *out, kvcsa_error *err)
{
    binder            b = {.c = c, .t = t, .a = a, .w = out, .err = err};
    kvi_weight_iter   it = kvi_weight_first(c);
    kvi_weight_tensor want;

    memset(out, 0, sizeof *out);
    while (b.st == KVCSA_OK && kvi_weight_next(&it, &want))
        bind(&b, &want);
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
