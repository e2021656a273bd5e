/* Validation of a plan. A plan comes from a configuration file or a caller, hostile both: every later
 * sum over its rows relies on the limits below, and every later walk from a reader to an owner
 * relies on the owner rules. */
#include "plan/cache_plan.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "base/status.h"
#include "plan/plan_cost.h"
#include "plan/plan_int.h"

#include <stdbool.h>
#include <string.h>

/* Chosen far above every known model, and so that the sums of plan_cost.c stay below 2^63: layers
 * 2^10 x tokens 2^32 x bytes of an entry and its key, 2^18 each at most; windows and states are
 * less. */
#define MAX_TOKENS UINT32_MAX
#define MAX_WIDTH KVI_MAX_ROW_CHANNELS
#define MAX_HEADS 65536u
#define MAX_RATIO 65536u
/* window rows, selected entries, candidate blocks, entries in one, tokens in a cache block */
#define MAX_ROWS (1u << 20)
#define MAX_BLOCK_BYTES ((uint64_t)1 << 31)
#define MAX_STATE_BYTES ((uint64_t)1 << 40)

typedef struct check {
    const kvi_plan     *plan;
    const kvi_plan_row *row;
    uint32_t            layer;
    kvcsa_error        *err;
} check;

uint32_t kvi_plan_max_ratio(const kvi_plan *plan)
{
    uint32_t ratio = 1;

    for (uint32_t l = 0; l < plan->n_layers; l++)
        if (kvi_plan_owns(plan, l) && plan->rows[l].ratio > ratio)
            ratio = plan->rows[l].ratio;
    return ratio;
}

int kvi_plan_has_index(const kvi_plan *plan)
{
    for (uint32_t l = 0; l < plan->n_layers; l++)
        if (kvi_plan_owns(plan, l) && plan->rows[l].index_bytes)
            return 1;
    return 0;
}

uint32_t kvi_plan_span_tokens(const kvi_plan *plan)
{
    uint32_t ratio = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++)
        if (kvi_plan_owns(plan, l) && plan->rows[l].index_bytes && plan->rows[l].ratio > ratio)
            ratio = plan->rows[l].ratio;
    if (ratio)
        return KVI_INDEX_GROUP_ROWS * ratio;
    ratio = kvi_plan_max_ratio(plan);
    return ratio > KVI_INDEX_GROUP_ROWS ? ratio : KVI_INDEX_GROUP_ROWS;
}

static kvcsa_status in_range(const check *c, const char *field, uint32_t value, uint32_t low,
                             uint32_t high)
{
    if (value >= low && value <= high)
        return KVCSA_OK;
    return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: %s is %u, must be %u..%u", c->layer, field,
                    value, low, high);
}

static kvcsa_status equals(const check *c, const char *field, uint32_t value, uint32_t want,
                           const char *why)
{
    if (value == want)
        return KVCSA_OK;
    return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: %s is %u, must be %u %s", c->layer, field,
                    value, want, why);
}

static kvcsa_status layer_is(const check *c, const char *field, int32_t value, int32_t want,
                             const char *why)
{
    if (value == want)
        return KVCSA_OK;
    return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: %s is %d, must be %d %s", c->layer, field,
                    value, want, why);
}

/* ------------------------------------------------------------------ bytes of rows */

static kvcsa_status format_is_known(const check *c, const char *what, uint32_t id)
{
    if (kvi_format_find(id))
        return KVCSA_OK;
    return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                    "layer %u: %s_format is %u, must be a known format (1..%u)", c->layer, what, id,
                    KVI_MAX_FORMAT);
}

/* `format` stands in a field named after `f`, the channels in one named after `w`. */
static kvcsa_status width_fits(const check *c, const char *f, uint32_t format_id, const char *w,
                               uint32_t width)
{
    const kvi_format *known = kvi_format_find(format_id);
    kvcsa_status      st;

    if ((st = format_is_known(c, f, format_id)) || kvi_format_row_bytes(format_id, width))
        return st;
    if (known->is_record)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: %s_width is %u, must be %u for %s",
                        c->layer, w, width, known->channels, known->name);
    return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                    "layer %u: %s_width is %u, must be a multiple of %u in 1..%u", c->layer, w,
                    width, known->channels, MAX_WIDTH);
}

/* Bytes of a row of all heads: keys, and values where they are stored. 0 = too many, or no such
 * row; a shape that has passed has some. */
static uint32_t row_bytes(const kvi_plan_row *r, uint32_t key_format, uint32_t value_format)
{
    uint64_t head = kvi_format_row_bytes(key_format, r->entry_width);

    if (r->value_kind == KVCSA_VALUE_OWN)
        head += kvi_format_row_bytes(value_format, r->value_width);
    head *= r->kv_heads;
    return head <= UINT32_MAX ? (uint32_t)head : 0;
}

/* What the limits of block and window sums rely on. The widths have passed. */
static kvcsa_status check_channels(const check *c)
{
    const kvi_plan_row *r = c->row;
    const uint64_t      head =
        (uint64_t)r->entry_width + (r->value_kind == KVCSA_VALUE_OWN ? r->value_width : 0);

    if (head * r->kv_heads > MAX_WIDTH)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: kv_heads is %u, which makes rows of %llu channels, must be at "
                        "most %u",
                        c->layer, r->kv_heads, (unsigned long long)(head * r->kv_heads), MAX_WIDTH);
    return KVCSA_OK;
}

/* Channels of a value that is a part of the key. */
static kvcsa_status check_value_width(const check *c)
{
    const kvi_plan_row *r = c->row;

    return in_range(c, "value_width", r->value_width,
                    r->value_kind == KVCSA_VALUE_ALIAS ? r->entry_width : 1, r->entry_width);
}

/* What the keys and values of an entry are. */
static kvcsa_status check_shape(const check *c)
{
    const kvi_plan_row *r = c->row;
    kvcsa_status        st;

    if ((st = in_range(c, "kv_heads", r->kv_heads, 1, MAX_HEADS)) ||
        (st = width_fits(c, "entry", r->entry_format, "entry", r->entry_width)) ||
        (st = in_range(c, "value_kind", r->value_kind, KVCSA_VALUE_ALIAS, KVCSA_VALUE_PREFIX)))
        return st;
    if (r->value_kind == KVCSA_VALUE_OWN)
        st = width_fits(c, "value", r->value_format, "value", r->value_width);
    else if ((st = equals(c, "value_format", r->value_format, KVCSA_FORMAT_NONE,
                          "where values are not stored")) == KVCSA_OK)
        st = check_value_width(c);
    return st ? st : check_channels(c);
}

/* A window without entries, of which the channels are given: rows of one format. */
static kvcsa_status check_window_shape(const check *c)
{
    const kvi_plan_row *r = c->row;
    kvcsa_status        st;

    if ((st = in_range(c, "kv_heads", r->kv_heads, 1, MAX_HEADS)) ||
        (st = width_fits(c, "window", r->window_format, "entry", r->entry_width)) ||
        (st = in_range(c, "value_kind", r->value_kind, KVCSA_VALUE_ALIAS, KVCSA_VALUE_PREFIX)))
        return st;
    if (r->value_kind == KVCSA_VALUE_OWN)
        st = width_fits(c, "window", r->window_format, "value", r->value_width);
    else
        st = check_value_width(c);
    return st ? st : check_channels(c);
}

static kvcsa_status check_window(const check *c)
{
    const kvi_plan_row *r = c->row;
    const kvi_format   *f = kvi_format_find(r->window_format);
    kvcsa_status        st;

    if ((st = in_range(c, "window_tokens", r->window_tokens, 0, MAX_ROWS)))
        return st;
    if (r->window_tokens == 0) {
        st = equals(c, "window_format", r->window_format, KVCSA_FORMAT_NONE, "without a window");
        return st ? st : equals(c, "window_bytes", r->window_bytes, 0, "without a window");
    }
    if ((st = format_is_known(c, "window", r->window_format)))
        return st;
    if (r->ratio > 0 || r->entry_width > 0) {
        /* window rows and entries meet in one softmax, so they have one shape */
        if (r->ratio == 0 && (st = check_window_shape(c)))
            return st;
        if ((st = width_fits(c, "window", r->window_format, "entry", r->entry_width)) ||
            (r->value_kind == KVCSA_VALUE_OWN &&
             (st = width_fits(c, "window", r->window_format, "value", r->value_width))))
            return st;
        return equals(c, "window_bytes", r->window_bytes,
                      row_bytes(r, r->window_format, r->window_format), "for this format");
    }
    if (r->window_bytes == 0 || r->window_bytes % f->bytes != 0 ||
        r->window_bytes / f->bytes > MAX_WIDTH / f->channels)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: window_bytes is %u, must be a multiple of %u in %u..%u",
                        c->layer, r->window_bytes, f->bytes, f->bytes,
                        MAX_WIDTH / f->channels * f->bytes);
    if (r->kv_heads && r->window_bytes % r->kv_heads != 0)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: window_bytes is %u, must be a multiple of kv_heads, %u",
                        c->layer, r->window_bytes, r->kv_heads);
    return KVCSA_OK;
}

static kvcsa_status check_extras(const check *c)
{
    const kvi_plan_row *r = c->row;
    kvcsa_status        st;

    if ((st = in_range(c, "sink", r->sink, 0, 1)) ||
        (st = in_range(c, "cost_only", r->cost_only, 0, 1)) ||
        (st = in_range(c, "state_heads", r->state_heads, r->state_bytes > 0,
                       r->state_bytes > 0 ? MAX_HEADS : 0)))
        return st;
    if (r->state_bytes > MAX_STATE_BYTES)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: state_bytes is %llu, must be at most %llu", c->layer,
                        (unsigned long long)r->state_bytes, (unsigned long long)MAX_STATE_BYTES);
    if (r->state_heads && r->state_bytes % r->state_heads != 0)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: state_bytes is %llu, must be a multiple of state_heads, %u",
                        c->layer, (unsigned long long)r->state_bytes, r->state_heads);
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ owners */

/* ratio 0: this layer reads nothing but its window and its state */
static kvcsa_status check_window_only(const check *c)
{
    const kvi_plan_row *r = c->row;
    const char         *why = "where ratio is 0";
    kvcsa_status        st;

    if ((st = layer_is(c, "kv_owner", r->kv_owner, KVI_NO_LAYER, why)) ||
        (st = layer_is(c, "index_owner", r->index_owner, KVI_NO_LAYER, why)) ||
        (st = layer_is(c, "select_owner", r->select_owner, KVI_NO_LAYER, why)) ||
        (st = layer_is(c, "candidate_owner", r->candidate_owner, KVI_NO_LAYER, why)) ||
        (st = equals(c, "select", r->select, KVCSA_SELECT_NONE, why)) ||
        (st = equals(c, "candidates", r->candidates, KVCSA_CANDIDATES_NONE, why)) ||
        (st = equals(c, "entry_bytes", r->entry_bytes, 0, why)) ||
        (st = equals(c, "index_bytes", r->index_bytes, 0, why)) ||
        (st = in_range(c, "kv_heads", r->kv_heads, 0, MAX_HEADS)))
        return st;
    return equals(c, "pending_bytes", r->pending_bytes, 0, why);
}

/* The owner is there, owns itself, and agrees about what an entry is. */
static kvcsa_status check_kv_owner(const check *c)
{
    const kvi_plan_row *r = c->row;
    const kvi_plan_row *o;
    const char         *why = "as in kv_owner";
    kvcsa_status        st;

    if (r->kv_owner < 0 || r->kv_owner > (int32_t)c->layer)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: kv_owner is %d, must be 0..%u",
                        c->layer, r->kv_owner, c->layer);
    o = &c->plan->rows[r->kv_owner];
    if (o->kv_owner != r->kv_owner)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: kv_owner is %d, must be a layer that owns entries", c->layer,
                        r->kv_owner);
    if ((st = equals(c, "ratio", r->ratio, o->ratio, why)) ||
        (st = equals(c, "kv_heads", r->kv_heads, o->kv_heads, why)) ||
        (st = equals(c, "entry_width", r->entry_width, o->entry_width, why)) ||
        (st = equals(c, "entry_rotated", r->entry_rotated, o->entry_rotated, why)) ||
        (st = equals(c, "entry_format", r->entry_format, o->entry_format, why)) ||
        (st = equals(c, "value_kind", r->value_kind, o->value_kind, why)) ||
        (st = equals(c, "value_width", r->value_width, o->value_width, why)) ||
        (st = equals(c, "value_format", r->value_format, o->value_format, why)))
        return st;
    return equals(c, "entry_bytes", r->entry_bytes, o->entry_bytes, why);
}

/* Raw rows of an owner, in f32: latent and gate of all tokens of an entry but the last. Where
 * entries overlap, those of the entry before it too, each with a second latent and gate, and the
 * index keys have their own. */
static uint64_t pending_of(const kvi_plan_row *r)
{
    const uint64_t row = 2u * sizeof(float);

    if (r->pool_kind == KVCSA_POOLING_OVERLAP)
        return (2u * (uint64_t)r->ratio - 1) * 2u * row *
               ((uint64_t)r->entry_width + (r->index_bytes ? r->index_width : 0));
    return (uint64_t)(r->ratio - 1) * row * r->entry_width;
}

static kvcsa_status check_pooling(const check *c)
{
    const kvi_plan_row *r = c->row;
    const bool          owns = r->kv_owner == (int32_t)c->layer;
    uint64_t            pending = 0;

    if (owns) {
        const uint32_t low = r->ratio > 1 ? KVCSA_POOLING_GATED : KVCSA_POOLING_NONE;
        const uint32_t high = r->ratio > 1 ? KVCSA_POOLING_WIDE : KVCSA_POOLING_NONE;

        if (r->pool_kind < low || r->pool_kind > high)
            return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                            "layer %u: pool_kind is %u, must be %u..%u for ratio %u", c->layer,
                            r->pool_kind, low, high, r->ratio);
        pending = pending_of(r);
        if (pending > UINT32_MAX)
            return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                            "layer %u: ratio is %u, which makes raw rows of %llu bytes, must be at "
                            "most %u",
                            c->layer, r->ratio, (unsigned long long)pending, UINT32_MAX);
    }
    if (r->pending_bytes != pending)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: pending_bytes is %u, must be %llu",
                        c->layer, r->pending_bytes, (unsigned long long)pending);
    return KVCSA_OK;
}

static kvcsa_status check_entry(const check *c)
{
    const kvi_plan_row *r = c->row;
    kvcsa_status        st;

    if ((st = check_shape(c)) ||
        (st = equals(c, "entry_bytes", r->entry_bytes,
                     row_bytes(r, r->entry_format, r->value_format), "for its formats")) ||
        (st = in_range(c, "entry_rotated", r->entry_rotated, 0, r->entry_width)))
        return st;
    if (r->entry_rotated % 2 != 0)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: entry_rotated is %u, must be even",
                        c->layer, r->entry_rotated);
    return check_pooling(c);
}

/* ------------------------------------------------------------------ index and selection */

/* Whose keys. An owner has its own, none, or uses a selection that was made with those of an owner
 * below; a reader goes with its owner. */
static kvcsa_status check_index_owner(const check *c)
{
    const kvi_plan_row *r = c->row;
    const int32_t       self = (int32_t)c->layer;
    const kvi_plan_row *i;
    kvcsa_status        st;

    if (r->kv_owner != self &&
        (st = layer_is(c, "index_owner", r->index_owner, c->plan->rows[r->kv_owner].index_owner,
                       "as in kv_owner")))
        return st;
    if (r->index_owner < KVI_NO_LAYER || r->index_owner > self)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: index_owner is %d, must be -1..%d",
                        c->layer, r->index_owner, self);
    if (r->index_owner == KVI_NO_LAYER)
        return equals(c, "index_bytes", r->index_bytes, 0, "without index keys");
    i = &c->plan->rows[r->index_owner];
    if (i->index_owner != r->index_owner)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: index_owner is %d, must be a layer that owns index keys",
                        c->layer, r->index_owner);
    if ((st = equals(c, "ratio", r->ratio, i->ratio, "as in index_owner")))
        return st;
    if (r->kv_owner == self && r->index_owner != self)
        return equals(c, "index_bytes", r->index_bytes, 0, "where the keys are another layer's");
    return KVCSA_OK;
}

/* Layers that score: index keys are the owner's. */
static kvcsa_status check_index(const check *c)
{
    const kvi_plan_row *r = c->row;
    const kvi_plan_row *o;
    kvcsa_status        st;

    if (r->index_owner == KVI_NO_LAYER)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: index_owner is -1, must be a layer in a layer that selects",
                        c->layer);
    o = &c->plan->rows[r->index_owner];
    if ((st = in_range(c, "index_heads", r->index_heads, 1, MAX_HEADS)) ||
        (st = width_fits(c, "index", r->index_format, "index", r->index_width)) ||
        (st = equals(c, "index_bytes", r->index_bytes,
                     kvi_format_row_bytes(r->index_format, r->index_width), "for its format")) ||
        (st = equals(c, "index_width", r->index_width, o->index_width, "as in index_owner")))
        return st;
    return equals(c, "index_format", r->index_format, o->index_format, "as in index_owner");
}

/* A selection holds entry numbers: it serves every layer with as many entries that ranks them by
 * the same keys, and cannot be older than those keys. */
static kvcsa_status check_inherited(const check *c)
{
    const kvi_plan_row *r = c->row;
    const int32_t       self = (int32_t)c->layer;
    const kvi_plan_row *s;

    if (r->select_owner < 0 || r->select_owner < r->index_owner || r->select_owner >= self)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: select_owner is %d, must be %d..%d",
                        c->layer, r->select_owner, r->index_owner < 0 ? 0 : r->index_owner,
                        self - 1);
    s = &c->plan->rows[r->select_owner];
    if (s->select_owner != r->select_owner)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: select_owner is %d, must be a layer that selects", c->layer,
                        r->select_owner);
    if (s->index_owner != r->index_owner)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: select_owner is %d, must read the index keys of layer %d",
                        c->layer, r->select_owner, r->index_owner);
    return equals(c, "select_entries", r->select_entries, s->select_entries, "as in select_owner");
}

static kvcsa_status check_select(const check *c)
{
    const kvi_plan_row *r = c->row;
    const int32_t       self = (int32_t)c->layer;
    const bool          owns = r->kv_owner == self;
    const bool          shares = r->index_owner != r->kv_owner;
    kvcsa_status        st;

    if ((st = in_range(c, "select", r->select, KVCSA_SELECT_OWN, KVCSA_SELECT_ALL)))
        return st;
    if (r->select == KVCSA_SELECT_ALL) {
        if ((st = layer_is(c, "select_owner", r->select_owner, KVI_NO_LAYER, "with select 4")) ||
            (owns && (st = layer_is(c, "index_owner", r->index_owner, KVI_NO_LAYER,
                                    "in an owner with select 4"))))
            return st;
        return equals(c, "select_entries", r->select_entries, 0, "with select 4");
    }
    if ((st = in_range(c, "select_entries", r->select_entries, 1, MAX_ROWS)))
        return st;
    if (owns && !shares &&
        (st = equals(c, "select", r->select, KVCSA_SELECT_OWN, "in a layer that owns entries")))
        return st;
    if (owns && shares &&
        (st = equals(c, "select", r->select, KVCSA_SELECT_INHERITED,
                     "in an owner without index keys of its own")))
        return st;
    if (!owns && r->select == KVCSA_SELECT_OWN)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: select is %u, must be %d or %d in a layer that owns no entries",
                        c->layer, r->select, KVCSA_SELECT_REINDEX, KVCSA_SELECT_INHERITED);
    if (r->select == KVCSA_SELECT_INHERITED)
        return check_inherited(c);
    if ((st = layer_is(c, "select_owner", r->select_owner, self, "in a layer that selects")))
        return st;
    return check_index(c);
}

static kvcsa_status check_candidates(const check *c)
{
    const kvi_plan_row *r = c->row;
    const int32_t       self = (int32_t)c->layer;
    const kvi_plan_row *s;
    kvcsa_status        st;

    if ((st = in_range(c, "candidates", r->candidates, KVCSA_CANDIDATES_NONE,
                       KVCSA_CANDIDATES_CONSUMER)))
        return st;
    if (r->candidates == KVCSA_CANDIDATES_NONE)
        return layer_is(c, "candidate_owner", r->candidate_owner, KVI_NO_LAYER,
                        "without candidates");
    if ((st = in_range(c, "candidate_blocks", r->candidate_blocks, 1, MAX_ROWS)) ||
        (st = in_range(c, "candidate_block_entries", r->candidate_block_entries, 1, MAX_ROWS)))
        return st;
    if (r->select != KVCSA_SELECT_OWN && r->select != KVCSA_SELECT_REINDEX)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: candidates is %u, must be 0 in a layer that does not select",
                        c->layer, r->candidates);
    if (r->candidates == KVCSA_CANDIDATES_SOURCE) {
        /* a source's own selection is not limited, so "none" is as true as "itself" */
        if (r->candidate_owner == KVI_NO_LAYER)
            return KVCSA_OK;
        return layer_is(c, "candidate_owner", r->candidate_owner, self, "or -1 in a source");
    }
    if (r->candidate_owner < 0 || r->candidate_owner >= self)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: candidate_owner is %d, must be 0..%d",
                        c->layer, r->candidate_owner, self - 1);
    s = &c->plan->rows[r->candidate_owner];
    if (s->candidates != KVCSA_CANDIDATES_SOURCE || s->kv_owner != r->kv_owner)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: candidate_owner is %d, must be a candidate source that reads "
                        "the entries of layer %d",
                        c->layer, r->candidate_owner, r->kv_owner);
    if ((st = equals(c, "candidate_blocks", r->candidate_blocks, s->candidate_blocks,
                     "as in candidate_owner")))
        return st;
    return equals(c, "candidate_block_entries", r->candidate_block_entries,
                  s->candidate_block_entries, "as in candidate_owner");
}

/* ------------------------------------------------------------------ what follows */

void kvi_plan_row_complete(kvi_plan_row *r, uint32_t layer)
{
    const bool owns = r->ratio > 0 && r->kv_owner == (int32_t)layer;
    uint64_t   pending;

    if (r->ratio > 0 && r->entry_bytes == 0)
        r->entry_bytes = row_bytes(r, r->entry_format, r->value_format);
    if (r->index_owner >= 0 && r->index_bytes == 0 && !(owns && r->index_owner != r->kv_owner))
        r->index_bytes = kvi_format_row_bytes(r->index_format, r->index_width);
    if (r->window_tokens > 0 && r->window_bytes == 0)
        r->window_bytes = row_bytes(r, r->window_format, r->window_format);
    if (owns && r->pending_bytes == 0 && r->ratio <= MAX_RATIO) {
        pending = pending_of(r);
        r->pending_bytes = pending <= UINT32_MAX ? (uint32_t)pending : 0;
    }
}

/* ------------------------------------------------------------------ the whole */

/* What the operators of this version rely on beyond the rules of every plan. */
static kvcsa_status check_runs(const check *c)
{
    const kvi_plan_row *r = c->row;
    const char         *why = "in a layer that is computed";
    kvcsa_status        st;

    if ((st = in_range(c, "window_tokens", r->window_tokens, 1, MAX_ROWS)) ||
        (st = equals(c, "window_format", r->window_format, KVCSA_FORMAT_FP8_E8M0_G32, why)) ||
        (st = equals(c, "state_heads", r->state_heads, 0, why)) || r->ratio == 0)
        return st;
    if (!kvi_format_can_store(r->entry_format))
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: entry_format is %u, must be one that operators store %s",
                        c->layer, r->entry_format, why);
    if ((st = equals(c, "kv_heads", r->kv_heads, 1, why)) ||
        (st = equals(c, "value_kind", r->value_kind, KVCSA_VALUE_ALIAS, why)) ||
        (st = in_range(c, "pool_kind", r->pool_kind, KVCSA_POOLING_NONE, KVCSA_POOLING_GATED)) ||
        (st = in_range(c, "select", r->select, KVCSA_SELECT_OWN, KVCSA_SELECT_INHERITED)) ||
        (st = layer_is(c, "index_owner", r->index_owner, r->kv_owner, why)))
        return st;
    return equals(c, "index_format", r->index_format, KVCSA_FORMAT_FP4_E8M0_G32, why);
}

uint32_t kvi_plan_window_width(const kvi_plan_row *row)
{
    const kvi_format *f = kvi_format_find(row->window_format);

    return row->window_tokens && f ? row->window_bytes / f->bytes * f->channels : 0;
}

/* Keys and values of heads, side by side, one entry a token: what paged_attend takes. */
static int is_paged(const kvi_plan_row *r)
{
    return r->ratio == 1 && r->select == KVCSA_SELECT_ALL && r->value_kind == KVCSA_VALUE_OWN &&
           r->value_width == r->entry_width && r->value_format == r->entry_format &&
           r->entry_width % 32 == 0 && kvi_format_can_store(r->entry_format) &&
           r->window_tokens == 0 && r->state_bytes == 0;
}

uint32_t kvi_plan_row_kind(const kvi_plan *plan, uint32_t layer)
{
    const check c = {.plan = plan, .row = &plan->rows[layer], .layer = layer};

    if (is_paged(c.row))
        return KVI_ROW_PAGED;
    /* raw rows of an entry are found again by a replay of the window */
    if (check_runs(&c) != KVCSA_OK || c.row->ratio > c.row->window_tokens)
        return KVI_ROW_NONE;
    /* a plan that is counted may have windows of heads */
    return c.row->kv_heads <= 1 && c.row->value_kind == KVCSA_VALUE_ALIAS ? KVI_ROW_SPARSE
                                                                          : KVI_ROW_NONE;
}

/* Every helper returns KVCSA_OK, which is 0, or has filled err. Rows are checked in ascending
 * order, so the rows that an owner index leads to have passed already. */
static kvcsa_status check_row(const check *c)
{
    const kvi_plan_row *r = c->row;
    kvcsa_status        st;

    if ((st = in_range(c, "ratio", r->ratio, 0, MAX_RATIO)) || (st = check_extras(c)))
        return st;
    if (r->ratio == 0)
        st = check_window_only(c);
    else if ((st = check_kv_owner(c)) == KVCSA_OK && (st = check_entry(c)) == KVCSA_OK &&
             (st = check_index_owner(c)) == KVCSA_OK && (st = check_select(c)) == KVCSA_OK)
        st = check_candidates(c);
    if (st || (st = check_window(c)) || r->cost_only || is_paged(r))
        return st;
    return check_runs(c);
}

/* Index keys of an owner lie in whole groups of rows, so a block holds a multiple of that many
 * entries of it; of other owners any number. */
static kvcsa_status check_block(const kvi_plan *plan, kvcsa_error *err)
{
    const uint32_t span = kvi_plan_span_tokens(plan);
    const uint32_t n = plan->block_tokens;
    uint64_t       bytes = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *r = &plan->rows[l];
        uint32_t            by;

        if (!kvi_plan_owns(plan, l))
            continue;
        by = r->index_bytes ? KVI_INDEX_GROUP_ROWS * r->ratio : r->ratio;
        if (n == 0 || n % by != 0)
            return kvi_fail(err, KVCSA_ERR_ARG,
                            "block_tokens is %u, must be a multiple of %u for ratio %u", n, by,
                            r->ratio);
        bytes += (uint64_t)(n / r->ratio) * ((uint64_t)r->entry_bytes + r->index_bytes);
    }
    if (n == 0 || n % span != 0)
        return kvi_fail(err, KVCSA_ERR_ARG, "block_tokens is %u, must be a multiple of %u", n,
                        span);
    if (n > MAX_ROWS)
        return kvi_fail(err, KVCSA_ERR_ARG, "block_tokens is %u, must be at most %u", n, MAX_ROWS);
    if (bytes > MAX_BLOCK_BYTES)
        return kvi_fail(
            err, KVCSA_ERR_ARG,
            "block_tokens is %u, which makes blocks of %llu bytes, must be at most %llu", n,
            (unsigned long long)bytes, (unsigned long long)MAX_BLOCK_BYTES);
    return KVCSA_OK;
}

kvcsa_status kvi_plan_validate(const kvi_plan *plan, kvcsa_error *err)
{
    check        c = {.plan = plan, .err = err};
    kvcsa_status st;

    if (!plan->rows || plan->n_layers == 0 || plan->n_layers > KVI_MAX_PLAN_LAYERS)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "n_layers is %u, must be 1..%u",
                        plan->rows ? plan->n_layers : 0, KVI_MAX_PLAN_LAYERS);
    if (plan->max_tokens == 0 || plan->max_tokens > MAX_TOKENS)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "max_tokens is %llu, must be 1..%u",
                        (unsigned long long)plan->max_tokens, MAX_TOKENS);
    for (c.layer = 0; c.layer < plan->n_layers; c.layer++) {
        c.row = &plan->rows[c.layer];
        if ((st = check_row(&c)))
            return st;
    }
    return check_block(plan, err);
}

kvcsa_status kvi_plan_hash(const kvi_plan *plan, const kvcsa_allocator *a, uint64_t *hash,
                           kvcsa_error *err)
{
    enum { N = 23, N_MORE = 5 };
    const size_t bytes = plan->n_layers * (N + N_MORE) * sizeof(uint32_t);
    uint32_t    *words = kvi_alloc(a, bytes);
    size_t       n = (size_t)plan->n_layers * N;

    if (!words)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "hash of %u plan rows", plan->n_layers);
    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *r = &plan->rows[l];
        const uint32_t      row[N] = {
            (uint32_t)r->kv_owner, (uint32_t)r->select_owner, (uint32_t)r->candidate_owner,
            r->ratio, r->pool_kind, r->pending_bytes, r->entry_width, r->entry_rotated,
            r->entry_format, r->entry_bytes, r->index_heads, r->index_width, r->index_format,
            r->index_bytes, r->select, r->select_entries, r->candidates, r->candidate_blocks,
            r->candidate_block_entries, r->window_tokens, r->window_format, r->window_bytes,
            r->sink,
        };

        memcpy(words + (size_t)l * N, row, sizeof row);
    }
    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *r = &plan->rows[l];
        const uint32_t      row[N_MORE] = {l, r->kv_heads, r->value_kind, r->value_width,
                                           r->value_format};

        if (r->kv_heads <= 1 && r->value_kind == KVCSA_VALUE_ALIAS)
            continue;
        memcpy(words + n, row, sizeof row);
        n += N_MORE;
    }
    *hash = kvi_hash64(words, n * sizeof *words, plan->block_tokens);
    kvi_free(a, words, bytes);
    return KVCSA_OK;
}
