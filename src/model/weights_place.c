/* Weights in a device's memory: one allocation for what is global and one for each layer, in which
 * the pieces lie one behind the other in the order of the list of tensors. What is not a tensor (kind
 * and shape, scales of mHC sites, what layers have) comes with the structs. */
#include "model/weights_place.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"

#include <string.h>

typedef struct chunk { /* of the device's memory */
    void  *base;
    size_t size;
} chunk;

/* kvi_weights.owned: one allocation of the host, with layers and experts behind it. */
typedef struct placed {
    size_t   n_host_bytes;
    uint64_t n_bytes;
    size_t   n_chunks;
    chunk    chunks[]; /* [n_chunks] what is global, then the layers */
} placed;

typedef struct pieces { /* a walk over what is copied */
    kvi_weight_iter   it;
    kvi_weight_tensor t;
    int               tables; /* 1 = Engram tables are among them */
    size_t            n_bytes;
} pieces;

/* The list has the factors of one vector as two tensors of two dimensions. */
static int is_vector(const kvi_weight_tensor *t)
{
    return t->n_dims == 1 || t->role == KVI_ROLE_ENGRAM_QK;
}

/* 0 = there is no further piece. */
static int next_piece(pieces *p)
{
    kvi_weight_tensor before = p->t;

    for (; kvi_weight_next(&p->it, &p->t); before = p->t) {
        const kvi_weight_tensor *t = &p->t;

        if (t->role == KVI_ROLE_HC_SCALE || (t->role == KVI_ROLE_ENGRAM_TABLE && !p->tables) ||
            (t->role == KVI_ROLE_ENGRAM_QK && before.role == KVI_ROLE_ENGRAM_QK &&
             before.layer == t->layer))
            continue;
        p->n_bytes = is_vector(t) ? (size_t)t->rows * t->cols * sizeof(float) : kvi_weight_bytes(t);
        return 1;
    }
    return 0;
}

static pieces first_piece(const kvi_config *c, int tables)
{
    return (pieces){.it = kvi_weight_first(c), .t = {.layer = -1}, .tables = tables};
}

/* UINT64_MAX = more than that. */
static uint64_t table_bytes(const kvi_config *c)
{
    kvi_weight_iter   it = kvi_weight_first(c);
    kvi_weight_tensor t;
    size_t            sum = 0;

    while (kvi_weight_next(&it, &t))
        if (t.role == KVI_ROLE_ENGRAM_TABLE && !kvi_add_size(sum, kvi_weight_bytes(&t), &sum))
            return UINT64_MAX;
    return sum;
}

/* ------------------------------------------------------------------ where a tensor is noted */

static void *field_of(const kvi_weights *w, const kvi_weight_tensor *t)
{
    char *base = (char *)w;

    if (t->layer >= 0)
        base = (char *)&w->layers[t->layer];
    if (t->expert >= 0)
        base = (char *)&w->layers[t->layer].experts[t->expert];
    return base + t->offset;
}

static const void *get_piece(const kvi_weights *w, const kvi_weight_tensor *t)
{
    const void *field = field_of(w, t);

    if (is_vector(t))
        return *(const float *const *)field;
    return t->is_scale ? ((const kvi_matrix *)field)->scale : ((const kvi_matrix *)field)->data;
}

static void set_piece(const kvi_weights *w, const kvi_weight_tensor *t, const void *to)
{
    void *field = field_of(w, t);

    if (is_vector(t))
        *(const float **)field = to;
    else if (t->is_scale)
        ((kvi_matrix *)field)->scale = to;
    else
        ((kvi_matrix *)field)->data = to;
}

/* ------------------------------------------------------------------ the host's side */

/* NULL = out of memory, or sizes that no memory has. */
static placed *make_structs(const kvcsa_model *model, const kvcsa_allocator *a, kvi_weights *out)
{
    const kvi_config *c = &model->config;
    const size_t      n_chunks = (size_t)c->n_layers + 1;
    size_t            layers = 0;
    size_t            experts = 0;
    size_t            size = sizeof(placed) + n_chunks * sizeof(chunk);
    char             *at = NULL;
    placed           *p = NULL;

    if (!kvi_mul_size(c->n_layers, sizeof(kvi_layer_weights), &layers) ||
        !kvi_mul_size(c->n_experts, sizeof(kvi_expert), &experts) ||
        !kvi_mul_size(c->n_layers, experts, &experts) || !kvi_add_size(size, layers, &size) ||
        !kvi_add_size(size, experts, &size) || !(p = kvi_zalloc(a, size)))
        return NULL;
    p->n_host_bytes = size;
    p->n_chunks = n_chunks;
    *out = model->weights;
    out->owned = p;
    at = (char *)&p->chunks[n_chunks];
    out->layers = (void *)at;
    memcpy(out->layers, model->weights.layers, layers);
    at += layers;
    for (uint32_t i = 0; i < c->n_layers && c->n_experts; i++) {
        out->layers[i].experts = (void *)at;
        memcpy(at, model->weights.layers[i].experts, c->n_experts * sizeof(kvi_expert));
        at += c->n_experts * sizeof(kvi_expert);
    }
    return p;
}

/* ------------------------------------------------------------------ the device's side */

/* Sizes of the chunks, with room to round up their beginning. 0 = they overflow. */
static int measure(placed *p, const kvi_config *c, int tables)
{
    pieces at = first_piece(c, tables);

    while (next_piece(&at)) {
        size_t *size = &p->chunks[at.t.layer + 1].size;
        size_t  n = 0;

        if (!kvi_add_size(at.n_bytes, KVI_WEIGHT_ALIGN - 1, &n) ||
            !kvi_add_size(*size, n / KVI_WEIGHT_ALIGN * KVI_WEIGHT_ALIGN, size))
            return 0;
    }
    for (size_t i = 0; i < p->n_chunks; i++)
        if (p->chunks[i].size &&
            !kvi_add_size(p->chunks[i].size, KVI_WEIGHT_ALIGN - 1, &p->chunks[i].size))
            return 0;
    return 1;
}

static kvcsa_status alloc_chunks(placed *p, const kvi_memory *m, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    for (size_t i = 0; i < p->n_chunks && st == KVCSA_OK; i++) {
        if (p->chunks[i].size == 0)
            continue;
        st = kvi_memory_alloc(m, p->chunks[i].size, &p->chunks[i].base, err);
        p->n_bytes += p->chunks[i].size;
    }
    return st;
}

static kvcsa_status copy_pieces(const kvi_weights *from, const placed *p, const kvi_memory *m,
                                pieces *at, kvi_weights *out, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    int32_t      layer = -2;
    uintptr_t    to = 0;

    while (st == KVCSA_OK && next_piece(at)) {
        if (at->t.layer != layer) {
            layer = at->t.layer;
            to = (uintptr_t)p->chunks[layer + 1].base;
        }
        to = (to + KVI_WEIGHT_ALIGN - 1) / KVI_WEIGHT_ALIGN * KVI_WEIGHT_ALIGN;
        st = kvi_memory_put(m, (void *)to, get_piece(from, &at->t), at->n_bytes, err);
        set_piece(out, &at->t, (const void *)to);
        to += at->n_bytes;
    }
    return st == KVCSA_OK ? kvi_memory_sync(m, err) : st;
}

kvcsa_status kvi_weights_place(const kvcsa_model *model, const kvi_memory *m,
                               uint64_t max_table_bytes, kvi_weights *out, kvcsa_error *err)
{
    const kvi_config *c = &model->config;
    const int         tables = table_bytes(c) <= max_table_bytes;
    kvcsa_status      st = KVCSA_OK;
    placed           *p = NULL;
    pieces            at = first_piece(c, tables);

    KVI_ASSERT(!model->plan_only && model->weights.layers);
    memset(out, 0, sizeof *out);
    if (!(p = make_structs(model, m->allocator, out)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of weights of %u layers", c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++)
        out->layers[i].engram_on_host = !tables && out->layers[i].engram_index >= 0;
    st = measure(p, c, tables) ? alloc_chunks(p, m, err)
                               : kvi_fail(err, KVCSA_ERR_NOMEM, "weights are too large");
    if (st == KVCSA_OK)
        st = copy_pieces(&model->weights, p, m, &at, out, err);
    if (st != KVCSA_OK)
        kvi_weights_unplace(out, m);
    return st;
}

uint64_t kvi_weights_least_bytes(const kvcsa_model *model)
{
    pieces   at = first_piece(&model->config, 0);
    uint64_t n = 0;

    while (next_piece(&at))
        n += at.n_bytes;
    return n;
}

uint64_t kvi_weights_placed_bytes(const kvi_weights *w)
{
    const placed *p = w->owned;

    return p ? p->n_bytes : 0;
}

void kvi_weights_unplace(kvi_weights *w, const kvi_memory *m)
{
    placed *p = w->owned;

    if (p) {
        for (size_t i = 0; i < p->n_chunks; i++)
            kvi_memory_free(m, p->chunks[i].base, p->chunks[i].size);
        kvi_free(m->allocator, p, p->n_host_bytes);
    }
    memset(w, 0, sizeof *w);
}
