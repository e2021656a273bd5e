/* A model from rows of the public struct.
 *
 * Rows come from a caller, so every number in them is hostile. Here they are only translated: what
 * the public struct leaves out is derived, and what has no meaning in its row is refused. The rules
 * of plans are those of kvi_plan_validate.
 */
#include "model/model.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "base/params.h"
#include "base/status.h"
#include "model/layer_plan.h"

#include <stdio.h>
#include <string.h>

#define MAX_CONTEXT_TOKENS UINT32_MAX
#define ALL_TOKENS ((uint32_t)1 << 31) /* every id that is not negative */
#define FIRST_ROW_SIZE offsetof(kvcsa_plan_row, kv_heads)

/* The caller's struct ends behind this field. */
#define HAS_FIELD(size, field)                                                                     \
    ((size) >= offsetof(kvcsa_plan_row, field) + sizeof((kvcsa_plan_row){0}.field))

/* ------------------------------------------------------------------ one row */

/* Fields of a later release than the caller's; entries were a gated pool of single latents then,
 * with index keys beside them. */
static void fill_missing(kvcsa_plan_row *p, size_t size)
{
    const int selects = p->select != KVCSA_SELECT_NONE && p->select != KVCSA_SELECT_ALL;

    if (!HAS_FIELD(size, pool_kind))
        p->pool_kind = p->ratio > 1 ? KVCSA_POOLING_GATED : KVCSA_POOLING_NONE;
    if (!HAS_FIELD(size, index_owner))
        p->index_owner = selects ? p->kv_owner : KVI_NO_LAYER;
}

static kvcsa_status import_row(const unsigned char *theirs, uint32_t layer, size_t size,
                               kvcsa_plan_row *p, kvcsa_error *err)
{
    char         what[40];
    size_t       theirs_size;
    kvcsa_status st;

    memcpy(&theirs_size, theirs, sizeof theirs_size);
    if (theirs_size != size)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "layer %u: struct_size is %zu, must be %zu as in layer 0", layer,
                        theirs_size, size);
    snprintf(what, sizeof what, "layer %u: kvcsa_plan_row", layer);
    *p = (kvcsa_plan_row){.struct_size = sizeof *p};
    if ((st = kvi_params_import(p, sizeof *p, FIRST_ROW_SIZE, theirs, what, err)) != KVCSA_OK)
        return st;
    fill_missing(p, size);
    if (p->layer != (int32_t)layer)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "layer %u: layer is %d, must be %u", layer, p->layer,
                        layer);
    return KVCSA_OK;
}

static kvcsa_status signed_in_range(uint32_t layer, const char *field, int32_t value, int32_t high,
                                    kvcsa_error *err)
{
    if (value >= 0 && value <= high)
        return KVCSA_OK;
    return kvi_fail(err, KVCSA_ERR_FORMAT, "layer %u: %s is %d, must be 0..%d", layer, field, value,
                    high);
}

/* A public row has the bytes of an entry and of its key where they lie only. */
static kvcsa_status check_reader(const kvcsa_plan_row *p, uint32_t layer, kvcsa_error *err)
{
    const char *const field = p->entry_bytes ? "entry_bytes" : "index_bytes";
    const uint32_t    bytes = p->entry_bytes ? p->entry_bytes : p->index_bytes;

    if (p->kv_owner == (int32_t)layer || bytes == 0)
        return KVCSA_OK;
    return kvi_fail(err, KVCSA_ERR_FORMAT,
                    "layer %u: %s is %u, must be 0 in a layer that owns no entries", layer, field,
                    bytes);
}

static kvcsa_status translate(const kvcsa_plan_row *p, uint32_t layer, kvi_plan_row *r,
                              kvcsa_error *err)
{
    kvcsa_status st;

    if ((st = signed_in_range(layer, "select", p->select, KVCSA_SELECT_ALL, err)) ||
        (st =
             signed_in_range(layer, "candidates", p->candidates, KVCSA_CANDIDATES_CONSUMER, err)) ||
        (st = check_reader(p, layer, err)))
        return st;
    *r = (kvi_plan_row){
        .kv_owner = p->kv_owner,
        .index_owner = p->index_owner,
        .select_owner = p->select_owner,
        .candidate_owner = KVI_NO_LAYER,
        .ratio = p->ratio,
        .pool_kind = p->pool_kind,
        .pending_bytes = p->pending_bytes,
        .kv_heads = p->kv_heads,
        .entry_width = p->entry_width,
        .entry_format = p->entry_format,
        .value_kind = p->value_kind,
        .value_width = p->value_width,
        .value_format = p->value_format,
        .entry_bytes = p->entry_bytes,
        .index_heads = p->index_heads,
        .index_width = p->index_width,
        .index_format = p->index_format,
        .index_bytes = p->index_bytes,
        .select = (uint32_t)p->select,
        .select_entries = p->select_entries,
        .candidates = (uint32_t)p->candidates,
        .candidate_blocks = p->candidate_blocks,
        .candidate_block_entries = p->candidate_block_entries,
        .window_tokens = p->window_tokens,
        .window_format = p->window_format,
        .window_bytes = p->window_bytes,
        .cost_only = 1, /* until the plan is known to be one */
        .state_heads = p->state_heads,
        .state_bytes = p->state_bytes,
    };
    return KVCSA_OK;
}

static void inherit_index(kvi_plan_row *r, const kvi_plan_row *owner)
{
    if (r->index_heads == 0)
        r->index_heads = owner->index_heads;
    if (r->index_width == 0)
        r->index_width = owner->index_width;
    if (r->index_format == KVCSA_FORMAT_NONE)
        r->index_format = owner->index_format;
}

/* What follows from other fields of the row, or from the layers that it reads. Owners have not been
 * checked. */
static void complete(kvi_plan_row *rows, uint32_t layer)
{
    const int32_t self = (int32_t)layer;
    kvi_plan_row *r = &rows[layer];

    if (r->entry_width && r->kv_heads == 0)
        r->kv_heads = 1;
    if (r->value_kind == KVCSA_VALUE_ALIAS && r->value_width == 0)
        r->value_width = r->entry_width;
    if (r->kv_owner >= 0 && r->kv_owner < self) {
        if (r->pool_kind == 0)
            r->pool_kind = rows[r->kv_owner].pool_kind;
        if (r->select == KVCSA_SELECT_INHERITED && r->index_owner >= 0 && r->index_owner < self)
            inherit_index(r, &rows[r->index_owner]);
    }
    kvi_plan_row_complete(r, layer);
}

/* The public row has no candidate_owner: a source limits those behind it, up to the next. */
static kvcsa_status find_candidates(kvi_plan_row *rows, uint32_t layer, kvcsa_error *err)
{
    kvi_plan_row *r = &rows[layer];
    int32_t       at = (int32_t)layer;

    if (r->ratio == 0 || r->candidates == KVCSA_CANDIDATES_NONE)
        return KVCSA_OK;
    while (at >= 0 && rows[at].candidates != KVCSA_CANDIDATES_SOURCE)
        at--;
    if (at < 0 || rows[at].kv_owner != r->kv_owner)
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "layer %u: candidates is %u, must be 0 where the candidate source before "
                        "it is not one of the entries of layer %d",
                        layer, r->candidates, r->kv_owner);
    r->candidate_owner = at;
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ fields without a meaning */

typedef struct expected {
    const char *field;
    uint32_t    value;
    uint32_t    want;
} expected;

static kvcsa_status check_all(uint32_t layer, const expected *x, size_t n, const char *why,
                              kvcsa_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (x[i].value != x[i].want)
            return kvi_fail(err, KVCSA_ERR_FORMAT, "layer %u: %s is %u, must be %u %s", layer,
                            x[i].field, x[i].value, x[i].want, why);
    return KVCSA_OK;
}

static kvcsa_status check_no_entries(const kvi_plan_row *r, uint32_t layer, kvcsa_error *err)
{
    const expected entries[] = {{"entry_format", r->entry_format, 0},
                                {"value_format", r->value_format, 0},
                                {"pool_kind", r->pool_kind, 0},
                                {"select_entries", r->select_entries, 0}};
    const expected values[] = {{"value_kind", r->value_kind, 0},
                               {"value_width", r->value_width, 0}};
    const expected width[] = {{"entry_width", r->entry_width, 0}};
    kvcsa_status   st = check_all(layer, entries, 4, "where ratio is 0", err);

    if (st == KVCSA_OK && r->window_tokens == 0)
        st = check_all(layer, width, 1, "where ratio and window_tokens are 0", err);
    if (st == KVCSA_OK && r->entry_width == 0)
        st = check_all(layer, values, 2, "without entry_width", err);
    return st;
}

/* Of a layer that scores, the rules of plans say what its index is. One that inherits a selection
 * has the numbers of the keys that it was made with, but as an owner without keys. */
static kvcsa_status check_index(const kvi_plan *plan, uint32_t layer, kvcsa_error *err)
{
    const kvi_plan_row *const r = &plan->rows[layer];
    const int                 reads =
        r->select == KVCSA_SELECT_INHERITED && r->kv_owner != (int32_t)layer && r->index_owner >= 0;
    const kvi_plan_row *const o = reads ? &plan->rows[r->index_owner] : NULL;
    const expected            index[] = {
                   {"index_heads", r->index_heads, o ? o->index_heads : 0},
                   {"index_width", r->index_width, o ? o->index_width : 0},
                   {"index_format", r->index_format, o ? o->index_format : KVCSA_FORMAT_NONE}};

    if (r->select == KVCSA_SELECT_OWN || r->select == KVCSA_SELECT_REINDEX)
        return KVCSA_OK;
    return check_all(layer, index, 3, o ? "as in index_owner" : "in a layer without an index", err);
}

/* Rows are hashed and given back as they are, so a field that nobody reads must not tell two equal
 * plans apart. The plan has been validated. */
static kvcsa_status check_unused(const kvi_plan *plan, uint32_t layer, kvcsa_error *err)
{
    const kvi_plan_row *r = &plan->rows[layer];
    const expected      blocks[] = {{"candidate_blocks", r->candidate_blocks, 0},
                                    {"candidate_block_entries", r->candidate_block_entries, 0}};
    kvcsa_status        st = check_index(plan, layer, err);

    if (st == KVCSA_OK && r->candidates == KVCSA_CANDIDATES_NONE)
        st = check_all(layer, blocks, 2, "without candidates", err);
    if (st == KVCSA_OK && r->ratio == 0)
        return check_no_entries(r, layer, err);
    if (st == KVCSA_OK) {
        const expected pool[] = {{"pool_kind", r->pool_kind, plan->rows[r->kv_owner].pool_kind}};

        st = check_all(layer, pool, 1, "as in kv_owner", err);
    }
    return st;
}

/* ------------------------------------------------------------------ the plan */

static kvcsa_status read_rows(const void *rows, kvi_plan *plan, kvcsa_error *err)
{
    const unsigned char *at = rows;
    kvcsa_plan_row       p;
    size_t               size;
    kvcsa_status         st;

    memcpy(&size, at, sizeof size); /* layer 0 fails if it is no size */
    for (uint32_t l = 0; l < plan->n_layers; l++, at += size) {
        if ((st = import_row(at, l, size, &p, err)) != KVCSA_OK ||
            (st = translate(&p, l, &plan->rows[l], err)) != KVCSA_OK ||
            (st = find_candidates(plan->rows, l, err)) != KVCSA_OK)
            return st;
        complete(plan->rows, l);
    }
    return KVCSA_OK;
}

static kvcsa_status build_plan(const void *rows, kvi_plan *plan, kvcsa_error *err)
{
    kvcsa_status st;

    if ((st = read_rows(rows, plan, err)) != KVCSA_OK ||
        (st = kvi_plan_validate(plan, err)) != KVCSA_OK)
        return st;
    for (uint32_t l = 0; l < plan->n_layers; l++)
        if ((st = check_unused(plan, l, err)) != KVCSA_OK)
            return st;
    for (uint32_t l = 0; l < plan->n_layers; l++)
        plan->rows[l].cost_only = kvi_plan_row_kind(plan, l) == KVI_ROW_NONE;
    KVI_ASSERT(kvi_plan_validate(plan, NULL) == KVCSA_OK);
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ the model */

/* Begins with a byte that no name of an architecture has, so what is hashed is never what is of a
 * configuration. The hash of the plan leaves out what no block depends on. */
static uint64_t fingerprint(const kvcsa_model *m, uint64_t identity)
{
    static const char domain[8] = "\0kvplan";
    const uint64_t    words[] = {identity, m->plan_hash, m->plan.n_layers};
    const char       *name = m->config.architecture;
    uint64_t          h = kvi_hash64(domain, sizeof domain, 0);

    h = kvi_hash64(name, strlen(name) + 1, h);
    h = kvi_hash64(words, sizeof words, h);
    for (uint32_t l = 0; l < m->plan.n_layers; l++) {
        const kvi_plan_row *r = &m->plan.rows[l];
        const uint64_t      more[] = {r->state_heads, r->state_bytes, (uint32_t)r->index_owner};

        h = kvi_hash64(more, sizeof more, h);
    }
    return h;
}

static kvcsa_status check_params(const kvcsa_plan_params *p, size_t n_rows, kvcsa_error *err)
{
    const size_t max_name = sizeof((kvi_config){0}.architecture) - 1;

    if (n_rows == 0 || n_rows > KVI_MAX_PLAN_LAYERS)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_rows is %zu, must be 1..%u", n_rows,
                        KVI_MAX_PLAN_LAYERS);
    if (p->name && !p->name[0])
        return kvi_fail(err, KVCSA_ERR_ARG, "name is empty");
    if (p->name && strnlen(p->name, max_name + 1) > max_name)
        return kvi_fail(err, KVCSA_ERR_ARG, "name is longer than %zu bytes", max_name);
    if (p->max_tokens > MAX_CONTEXT_TOKENS)
        return kvi_fail(err, KVCSA_ERR_ARG, "max_tokens is %llu, must be at most %u",
                        (unsigned long long)p->max_tokens, MAX_CONTEXT_TOKENS);
    if (p->vocab_tokens > ALL_TOKENS)
        return kvi_fail(err, KVCSA_ERR_ARG, "vocab_tokens is %u, must be at most %u",
                        p->vocab_tokens, ALL_TOKENS);
    return KVCSA_OK;
}

/* What is read of a configuration without a network; the rest stays 0. */
static void fill_config(kvi_config *c, const kvcsa_plan_params *p, uint32_t n_layers)
{
    const char *name = p->name ? p->name : "plan";

    memcpy(c->architecture, name, strlen(name) + 1);
    c->n_layers = n_layers;
    c->vocab_size = p->vocab_tokens ? p->vocab_tokens : ALL_TOKENS;
    c->max_tokens = p->max_tokens ? p->max_tokens : MAX_CONTEXT_TOKENS;
    c->candidate_source = KVI_NO_LAYER;
    c->bos = -1;
    c->eos = -1;
    c->pad = -1;
    c->image = -1;
}

static kvcsa_status alloc_model(const kvcsa_plan_params *p, uint32_t n_layers, kvcsa_model **out,
                                kvcsa_error *err)
{
    kvcsa_allocator a;
    kvcsa_model    *m;
    kvcsa_status    st = kvi_allocator_import(p->allocator, &a, err);

    if (st != KVCSA_OK)
        return st;
    if (!(m = kvi_zalloc(&a, sizeof *m)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "model of %zu bytes", sizeof *m);
    atomic_init(&m->refs, 1);
    m->allocator = a;
    if (p->log)
        m->log = *p->log;
    m->plan_only = 1;
    fill_config(&m->config, p, n_layers);
    m->plan.n_layers = n_layers;
    m->plan.block_tokens = p->block_tokens ? p->block_tokens : KVI_DEFAULT_BLOCK_TOKENS;
    m->plan.max_tokens = m->config.max_tokens;
    *out = m;
    return KVCSA_OK;
}

kvcsa_status kvi_model_from_plan(const void *rows, size_t n_rows, const kvcsa_plan_params *params,
                                 kvcsa_model **out, kvcsa_error *err)
{
    const uint32_t n = (uint32_t)n_rows; /* believed once checked */
    kvcsa_model   *m = NULL;
    kvcsa_status   st;

    *out = NULL;
    if ((st = check_params(params, n_rows, err)) != KVCSA_OK ||
        (st = alloc_model(params, n, &m, err)) != KVCSA_OK)
        return st;
    if (!(m->plan.rows = kvi_zalloc(&m->allocator, n * sizeof *m->plan.rows)))
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "cache plan of %u layers", n);
    else if ((st = build_plan(rows, &m->plan, err)) == KVCSA_OK &&
             (st = kvi_plan_hash(&m->plan, &m->allocator, &m->plan_hash, err)) == KVCSA_OK)
        st = kvi_kv_layout_init(&m->layout, &m->plan, &m->allocator, err);
    if (st != KVCSA_OK) {
        kvi_model_release(m);
        return st;
    }
    m->fingerprint = fingerprint(m, params->identity);
    *out = m;
    return KVCSA_OK;
}
