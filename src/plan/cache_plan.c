/* Validation of a plan. A plan comes from a configuration file, which may be hostile: every later
 * sum over its rows relies on the limits below, and every later walk from a reader to an owner
 * relies on the owner rules. */
#include "plan/cache_plan.h"

#include "base/status.h"

#include <stdbool.h>

/* Chosen far above every known model, and so that the sums of plan_cost.c stay below 2^63: layers
 * 2^10 x tokens 2^32 x row bytes below 2^18, three terms a layer. */
#define MAX_LAYERS 1024u
#define MAX_TOKENS UINT32_MAX
#define MAX_WIDTH 65536u
#define MAX_HEADS 65536u
#define MAX_RATIO 65536u
/* window rows, selected entries, candidate blocks, entries in one, tokens in a cache block */
#define MAX_ROWS (1u << 20)
#define MAX_BLOCK_BYTES ((uint64_t)1 << 31)

typedef struct check {
    const kvi_plan     *plan;
    const kvi_plan_row *row;
    uint32_t            layer;
    kvcsa_error        *err;
} check;

/* Channels that share a scale, values and scales in bytes per such group. */
static bool group_of(uint32_t format, uint32_t *channels, uint32_t *value_bytes)
{
    switch (format) {
    case KVCSA_FORMAT_FP4_E4M3_G16:
        *channels = 16;
        *value_bytes = 8;
        return true;
    case KVCSA_FORMAT_FP4_E8M0_G32:
        *channels = 32;
        *value_bytes = 16;
        return true;
    case KVCSA_FORMAT_FP8_E8M0_G32:
        *channels = 32;
        *value_bytes = 32;
        return true;
    default:
        return false;
    }
}

uint32_t kvi_format_value_bytes(uint32_t format, uint32_t width)
{
    uint32_t channels;
    uint32_t bytes;

    if (!group_of(format, &channels, &bytes) || width % channels != 0)
        return 0;
    return width / channels * bytes;
}

uint32_t kvi_format_scale_bytes(uint32_t format, uint32_t width)
{
    uint32_t channels;
    uint32_t bytes;

    if (!group_of(format, &channels, &bytes) || width % channels != 0)
        return 0;
    return width / channels;
}

uint32_t kvi_plan_max_ratio(const kvi_plan *plan)
{
    uint32_t ratio = 1;

    for (uint32_t l = 0; l < plan->n_layers; l++)
        if (kvi_plan_owns(plan, l) && plan->rows[l].ratio > ratio)
            ratio = plan->rows[l].ratio;
    return ratio;
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

/* A row of `width` channels in `format` that is said to take `bytes`. */
static kvcsa_status row_bytes_fit(const check *c, const char *what, uint32_t width, uint32_t format,
                                  uint32_t bytes)
{
    uint32_t channels;
    uint32_t value_bytes;
    uint32_t want;

    if (!group_of(format, &channels, &value_bytes))
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: %s_format is %u, must be a known format (1..3)", c->layer, what,
                        format);
    if (width == 0 || width > MAX_WIDTH || width % channels != 0)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: %s_width is %u, must be a multiple of %u in 1..%u", c->layer,
                        what, width, channels, MAX_WIDTH);
    want = kvi_format_value_bytes(format, width) + kvi_format_scale_bytes(format, width);
    if (bytes != want)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: %s_bytes is %u, must be %u for %u channels", c->layer, what,
                        bytes, want, width);
    return KVCSA_OK;
}

static kvcsa_status check_window(const check *c)
{
    const kvi_plan_row *r = c->row;
    uint32_t            channels;
    uint32_t            value_bytes;
    uint32_t            group_bytes;
    kvcsa_status        st;

    if ((st = in_range(c, "window_tokens", r->window_tokens, 1, MAX_ROWS)) ||
        (st = in_range(c, "sink", r->sink, 0, 1)))
        return st;
    if (r->ratio > 0) /* window rows and entries meet in one softmax, so they have one width */
        return row_bytes_fit(c, "window", r->entry_width, r->window_format, r->window_bytes);
    if (!group_of(r->window_format, &channels, &value_bytes))
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: window_format is %u, must be a known format (1..3)", c->layer,
                        r->window_format);
    group_bytes = value_bytes + 1;
    if (r->window_bytes == 0 || r->window_bytes % group_bytes != 0 ||
        r->window_bytes / group_bytes > MAX_WIDTH / channels)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: window_bytes is %u, must be a multiple of %u in %u..%u",
                        c->layer, r->window_bytes, group_bytes, group_bytes,
                        MAX_WIDTH / channels * group_bytes);
    return KVCSA_OK;
}

/* ratio 0: this layer reads nothing but its window */
static kvcsa_status check_window_only(const check *c)
{
    const kvi_plan_row *r = c->row;
    const char         *why = "where ratio is 0";
    kvcsa_status        st;

    if ((st = layer_is(c, "kv_owner", r->kv_owner, KVI_NO_LAYER, why)) ||
        (st = layer_is(c, "select_owner", r->select_owner, KVI_NO_LAYER, why)) ||
        (st = layer_is(c, "candidate_owner", r->candidate_owner, KVI_NO_LAYER, why)) ||
        (st = equals(c, "select", r->select, KVCSA_SELECT_NONE, why)) ||
        (st = equals(c, "candidates", r->candidates, KVCSA_CANDIDATES_NONE, why)))
        return st;
    return equals(c, "pending_bytes", r->pending_bytes, 0, why);
}

/* The owner is there, owns itself, and agrees about what an entry is. */
static kvcsa_status check_kv_owner(const check *c)
{
    const kvi_plan_row *r = c->row;
    const kvi_plan_row *o;
    kvcsa_status        st;

    if (r->kv_owner < 0 || r->kv_owner > (int32_t)c->layer)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: kv_owner is %d, must be 0..%u",
                        c->layer, r->kv_owner, c->layer);
    o = &c->plan->rows[r->kv_owner];
    if (o->kv_owner != r->kv_owner)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: kv_owner is %d, must be a layer that owns entries", c->layer,
                        r->kv_owner);
    if ((st = equals(c, "ratio", r->ratio, o->ratio, "as in kv_owner")) ||
        (st = equals(c, "entry_width", r->entry_width, o->entry_width, "as in kv_owner")) ||
        (st = equals(c, "entry_rotated", r->entry_rotated, o->entry_rotated, "as in kv_owner")) ||
        (st = equals(c, "entry_format", r->entry_format, o->entry_format, "as in kv_owner")))
        return st;
    return equals(c, "entry_bytes", r->entry_bytes, o->entry_bytes, "as in kv_owner");
}

static kvcsa_status check_entry(const check *c)
{
    const kvi_plan_row *r = c->row;
    const bool          owns = r->kv_owner == (int32_t)c->layer;
    uint64_t            pending = 0;
    kvcsa_status        st;

    if ((st = row_bytes_fit(c, "entry", r->entry_width, r->entry_format, r->entry_bytes)) ||
        (st = in_range(c, "entry_rotated", r->entry_rotated, 0, r->entry_width)))
        return st;
    if (r->entry_rotated % 2 != 0)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: entry_rotated is %u, must be even",
                        c->layer, r->entry_rotated);
    if (owns) {
        st = equals(c, "pool_kind", r->pool_kind, r->ratio > 1 ? KVI_POOL_GATED : KVI_POOL_NONE,
                    "for this ratio");
        if (st != KVCSA_OK)
            return st;
        /* all but the last token of an entry wait, each as an f32 latent and an f32 gate */
        pending = (uint64_t)(r->ratio - 1) * 2u * sizeof(float) * r->entry_width;
    }
    if (r->pending_bytes != pending)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: pending_bytes is %u, must be %llu",
                        c->layer, r->pending_bytes, (unsigned long long)pending);
    return KVCSA_OK;
}

/* Layers that score: index keys are the owner's. */
static kvcsa_status check_index(const check *c)
{
    const kvi_plan_row *r = c->row;
    const kvi_plan_row *o = &c->plan->rows[r->kv_owner];
    kvcsa_status        st;

    if ((st = in_range(c, "index_heads", r->index_heads, 1, MAX_HEADS)) ||
        (st = row_bytes_fit(c, "index", r->index_width, r->index_format, r->index_bytes)) ||
        (st = equals(c, "index_width", r->index_width, o->index_width, "as in kv_owner")))
        return st;
    return equals(c, "index_format", r->index_format, o->index_format, "as in kv_owner");
}

static kvcsa_status check_select(const check *c)
{
    const kvi_plan_row *r = c->row;
    const int32_t       self = (int32_t)c->layer;
    const bool          owns = r->kv_owner == self;
    const kvi_plan_row *s;
    kvcsa_status        st;

    if ((st = in_range(c, "select", r->select, KVCSA_SELECT_OWN, KVCSA_SELECT_INHERITED)) ||
        (st = in_range(c, "select_entries", r->select_entries, 1, MAX_ROWS)))
        return st;
    if (owns &&
        (st = equals(c, "select", r->select, KVCSA_SELECT_OWN, "in a layer that owns entries")))
        return st;
    if (!owns && r->select == KVCSA_SELECT_OWN)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: select is %u, must be %d or %d in a layer that owns no entries",
                        c->layer, r->select, KVCSA_SELECT_REINDEX, KVCSA_SELECT_INHERITED);
    if (r->select != KVCSA_SELECT_INHERITED) {
        if ((st = layer_is(c, "select_owner", r->select_owner, self, "in a layer that selects")))
            return st;
        return check_index(c);
    }
    /* a selection holds entry numbers of one owner: it cannot be older than that owner */
    if (r->select_owner < r->kv_owner || r->select_owner >= self)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT, "layer %u: select_owner is %d, must be %d..%d",
                        c->layer, r->select_owner, r->kv_owner, self - 1);
    s = &c->plan->rows[r->select_owner];
    if (s->select_owner != r->select_owner)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: select_owner is %d, must be a layer that selects", c->layer,
                        r->select_owner);
    if (s->kv_owner != r->kv_owner)
        return kvi_fail(c->err, KVCSA_ERR_FORMAT,
                        "layer %u: select_owner is %d, must read the entries of layer %d", c->layer,
                        r->select_owner, r->kv_owner);
    return equals(c, "select_entries", r->select_entries, s->select_entries, "as in select_owner");
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
    if (r->select == KVCSA_SELECT_INHERITED)
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

/* Every helper returns KVCSA_OK, which is 0, or has filled err. Rows are checked in ascending
 * order, so the rows that an owner index leads to have passed already. */
static kvcsa_status check_row(const check *c)
{
    kvcsa_status st;

    if ((st = in_range(c, "ratio", c->row->ratio, 0, MAX_RATIO)))
        return st;
    if (c->row->ratio == 0) {
        if ((st = check_window_only(c)))
            return st;
        return check_window(c);
    }
    if ((st = check_kv_owner(c)) || (st = check_entry(c)) || (st = check_select(c)) ||
        (st = check_candidates(c)))
        return st;
    return check_window(c);
}

/* Every owner's index keys lie in whole groups of rows, so a block holds a multiple of that many
 * entries of each. */
static kvcsa_status check_block(const kvi_plan *plan, kvcsa_error *err)
{
    const uint32_t max_ratio = kvi_plan_max_ratio(plan);
    uint64_t       bytes = 0;

    if (plan->block_tokens == 0 || plan->block_tokens % (KVI_INDEX_GROUP_ROWS * max_ratio) != 0)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "block_tokens is %u, must be a multiple of %u for ratio %u",
                        plan->block_tokens, KVI_INDEX_GROUP_ROWS * max_ratio, max_ratio);
    if (plan->block_tokens > MAX_ROWS)
        return kvi_fail(err, KVCSA_ERR_ARG, "block_tokens is %u, must be at most %u",
                        plan->block_tokens, MAX_ROWS);
    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *r = &plan->rows[l];

        if (!kvi_plan_owns(plan, l))
            continue;
        if (plan->block_tokens % (KVI_INDEX_GROUP_ROWS * r->ratio) != 0)
            return kvi_fail(err, KVCSA_ERR_ARG,
                            "block_tokens is %u, must be a multiple of %u for ratio %u",
                            plan->block_tokens, KVI_INDEX_GROUP_ROWS * r->ratio, r->ratio);
        bytes +=
            (uint64_t)(plan->block_tokens / r->ratio) * ((uint64_t)r->entry_bytes + r->index_bytes);
    }
    if (bytes > MAX_BLOCK_BYTES)
        return kvi_fail(
            err, KVCSA_ERR_ARG,
            "block_tokens is %u, which makes blocks of %llu bytes, must be at most %llu",
            plan->block_tokens, (unsigned long long)bytes, (unsigned long long)MAX_BLOCK_BYTES);
    return KVCSA_OK;
}

kvcsa_status kvi_plan_validate(const kvi_plan *plan, kvcsa_error *err)
{
    check        c = {.plan = plan, .err = err};
    kvcsa_status st;

    if (!plan->rows || plan->n_layers == 0 || plan->n_layers > MAX_LAYERS)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "n_layers is %u, must be 1..%u",
                        plan->rows ? plan->n_layers : 0, MAX_LAYERS);
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
