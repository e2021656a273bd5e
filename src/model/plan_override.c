/* Plan overrides: an object of a few keys, read from a call or from the configuration file, then
 * applied to what the family reader made of the configuration.
 *
 * (O1) A value of the call wins against the same key of the file, key by key.
 * (O2) Where a key came from says what a fault of it is: ERR_ARG in a call, ERR_FORMAT in a file.
 */
#include "model/plan_override.h"

#include "model/config_int.h"
#include "model/model_int.h"

#include <stdio.h>
#include <string.h>

#define MAX_TEXT_BYTES ((size_t)1 << 16)
#define MAX_KEY 40u  /* of an unknown key, bytes that are looked at */
#define N_NEAREST 3u /* known keys that are named beside it */

/* In the order of the bits of kvi_plan_override.given. */
static const char *const keys[] = {
    "entry_format",    "value_format",       "index_format", "window_format", "kv_heads",
    "kv_share_layers", "index_share_layers", "draft_layers", "window_tokens", "max_tokens",
};
#define N_KEYS ((uint32_t)(sizeof keys / sizeof *keys))

static uint32_t bit_of(const char *key)
{
    for (uint32_t i = 0; i < N_KEYS; i++)
        if (strcmp(keys[i], key) == 0)
            return 1u << i;
    return 0;
}

static const char *name_of(uint32_t bit)
{
    uint32_t i = 0;

    while (i + 1 < N_KEYS && !(bit & 1u << i))
        i++;
    return keys[i];
}

/* ------------------------------------------------------------------ unknown keys */

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Insertions, deletions and changes of a byte between a known key and a text. */
static uint32_t distance(const char *known, const char *text)
{
    const size_t n = strnlen(text, MAX_KEY);
    uint32_t     row[MAX_KEY + 1];

    for (size_t j = 0; j <= n; j++)
        row[j] = (uint32_t)j;
    for (size_t i = 1; known[i - 1]; i++) {
        uint32_t diagonal = row[0];

        row[0] = (uint32_t)i;
        for (size_t j = 1; j <= n; j++) {
            const uint32_t change = diagonal + (known[i - 1] != text[j - 1]);

            diagonal = row[j];
            row[j] = min_u32(change, min_u32(row[j], row[j - 1]) + 1);
        }
    }
    return row[n];
}

static void refuse_key(kvi_json_reader *r, const char *key)
{
    const char *nearest[N_NEAREST];
    char        start[MAX_KEY + 1]; /* a long one must leave room for the others */
    uint32_t    used = 0;

    for (uint32_t k = 0; k < N_NEAREST; k++) {
        uint32_t best = N_KEYS;

        for (uint32_t i = 0; i < N_KEYS; i++)
            if (!(used & 1u << i) &&
                (best == N_KEYS || distance(keys[i], key) < distance(keys[best], key)))
                best = i;
        used |= 1u << best;
        nearest[k] = keys[best];
    }
    (void)snprintf(start, sizeof start, "%s", key);
    kvi_json_refuse(r, r->malformed, start, "is not a key, the nearest are %s, %s, %s", nearest[0],
                    nearest[1], nearest[2]);
}

/* ------------------------------------------------------------------ values */

static void list_formats(char *out, size_t cap)
{
    size_t n = 0;

    out[0] = '\0';
    for (uint32_t id = 1; kvi_format_name(id)[0] != '?' && n < cap; id++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", id > 1 ? ", " : "", kvi_format_name(id));
}

static uint32_t read_format(kvi_json_reader *r, const char *key)
{
    const char    *name = kvi_json_text(r, key);
    const uint32_t id = r->st == KVCSA_OK ? kvi_format_by_name(name) : 0;
    char           known[160];

    if (id || r->st != KVCSA_OK)
        return id;
    list_formats(known, sizeof known);
    kvi_json_refuse(r, r->malformed, key, "is \"%.20s\", must be one of %s", name, known);
    return 0;
}

/* "every so manieth", or a list of the layers that own. */
static void read_share(kvi_json_reader *r, const char *key, kvi_layer_share *out)
{
    const json_t *value = kvi_json_get(r, key);
    uint32_t      ids[KVI_MAX_LAYERS];
    uint32_t      n;

    memset(out, 0, sizeof *out);
    if (json_is_integer(value)) {
        out->every = (uint32_t)kvi_json_int(r, key, 1, KVI_MAX_LAYERS);
        return;
    }
    if (r->st == KVCSA_OK && !json_is_array(value)) {
        kvi_json_refuse(r, r->malformed, key,
                        "is %s, must be a number of layers or a list of those that own",
                        kvi_json_type(value));
        return;
    }
    n = kvi_json_layers(r, key, 0, KVI_MAX_LAYERS, KVI_MAX_LAYERS, ids);
    for (uint32_t i = 0; i < n; i++)
        out->owns[ids[i]] = 1;
}

static void read_value(kvi_json_reader *r, const char *key, uint32_t bit, kvi_plan_override *out)
{
    switch (bit) {
    case KVI_CHANGE_ENTRY_FORMAT:
        out->entry_format = read_format(r, key);
        break;
    case KVI_CHANGE_VALUE_FORMAT:
        out->value_format = read_format(r, key);
        break;
    case KVI_CHANGE_INDEX_FORMAT:
        out->index_format = read_format(r, key);
        break;
    case KVI_CHANGE_WINDOW_FORMAT:
        out->window_format = read_format(r, key);
        break;
    case KVI_CHANGE_KV_HEADS:
        out->kv_heads = (uint32_t)kvi_json_int(r, key, 1, KVI_MAX_HEAD_COUNT);
        break;
    case KVI_CHANGE_KV_SHARE:
        read_share(r, key, &out->kv_share);
        break;
    case KVI_CHANGE_INDEX_SHARE:
        read_share(r, key, &out->index_share);
        break;
    case KVI_CHANGE_DRAFT_LAYERS:
        out->draft_layers = (uint32_t)kvi_json_bool(r, key);
        break;
    case KVI_CHANGE_WINDOW_TOKENS:
        out->window_tokens = (uint32_t)kvi_json_int(r, key, 0, KVI_MAX_HIDDEN);
        break;
    default:
        out->max_tokens = (uint64_t)kvi_json_int(r, key, 1, UINT32_MAX);
    }
}

/* null takes nothing back: it counts as absent, as everywhere. */
static void read_object(kvi_json_reader *r, int from_call, kvi_plan_override *out)
{
    const char *key;
    json_t     *value;

    json_object_foreach((json_t *)r->obj, key, value)
    {
        const uint32_t bit = bit_of(key);

        if (!bit)
            refuse_key(r, key);
        if (r->st != KVCSA_OK)
            return;
        if (json_is_null(value))
            continue;
        read_value(r, key, bit, out);
        out->given |= bit;
        out->from_call = from_call ? out->from_call | bit : out->from_call & ~bit;
    }
}

void kvi_plan_override_of_file(kvi_json_reader *root, kvi_plan_override *out)
{
    kvi_json_reader r;

    memset(out, 0, sizeof *out);
    if (kvi_json_enter(root, "kvcsa_plan", "kvcsa_plan.", &r)) {
        read_object(&r, 0, out);
        root->st = r.st;
    }
}

kvcsa_status kvi_plan_override_parse(const char *text, kvi_plan_override *out, kvcsa_error *err)
{
    kvi_json_reader r = {.file = "plan", .prefix = "", .malformed = KVCSA_ERR_ARG, .err = err};
    json_t         *root = NULL;
    kvcsa_status    st;

    if (!text)
        return KVCSA_OK;
    if (strnlen(text, MAX_TEXT_BYTES + 1) > MAX_TEXT_BYTES)
        return kvi_fail(err, KVCSA_ERR_ARG, "plan: text is longer than %zu bytes", MAX_TEXT_BYTES);
    if ((st = kvi_json_parse(text, strlen(text), "plan", &root, err)) != KVCSA_OK) {
        if (st != KVCSA_ERR_FORMAT)
            return st;
        if (err)
            err->status = KVCSA_ERR_ARG;
        return KVCSA_ERR_ARG;
    }
    r.obj = root;
    read_object(&r, 1, out);
    json_decref(root);
    return r.st;
}

/* ------------------------------------------------------------------ use */

static kvcsa_status fault_of(const kvi_plan_override *o, uint32_t bit)
{
    return o->from_call & bit ? KVCSA_ERR_ARG : KVCSA_ERR_FORMAT; /* (O2) */
}

static const char *place_of(const kvi_plan_override *o, uint32_t bit)
{
    return o->from_call & bit ? "plan: " : "kvcsa_plan.";
}

kvcsa_status kvi_plan_override_runs(const kvi_plan_override *o, kvcsa_error *err)
{
    const uint32_t other = o->given & ~(uint32_t)KVI_CHANGE_ENTRY_FORMAT;

    if (other)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "%s%s changes what is computed, this version has plan and cost of it only "
                        "(KVCSA_MODEL_PLAN_ONLY)",
                        place_of(o, other & (0u - other)), name_of(other));
    if (o->given && !kvi_format_can_store(o->entry_format))
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "%sentry_format is \"%s\", which this version cannot compute with, plan "
                        "and cost of it only (KVCSA_MODEL_PLAN_ONLY)",
                        place_of(o, KVI_CHANGE_ENTRY_FORMAT), kvi_format_name(o->entry_format));
    return KVCSA_OK;
}

static kvcsa_status lacks(const kvi_plan_override *o, uint32_t bit, const char *what,
                          kvcsa_error *err)
{
    return kvi_fail(err, fault_of(o, bit), "%s%s is given, but this model has no %s",
                    place_of(o, bit), name_of(bit), what);
}

/* A format must come in the width that it is wanted for. */
static kvcsa_status fits(const kvi_plan_override *o, uint32_t bit, uint32_t format, uint32_t width,
                         kvcsa_error *err)
{
    if (kvi_format_row_bytes(format, width))
        return KVCSA_OK;
    return kvi_fail(err, fault_of(o, bit), "%s%s is \"%s\", which does not come in %u channels",
                    place_of(o, bit), name_of(bit), kvi_format_name(format), width);
}

static kvcsa_status apply_formats(const kvi_plan_override *o, kvi_config *c, kvcsa_error *err)
{
    kvi_cache_shape *s = &c->cache;
    const int        own = s->value_kind == KVCSA_VALUE_OWN;
    kvcsa_status     st = KVCSA_OK;

    if (o->given & KVI_CHANGE_VALUE_FORMAT) {
        if (!own)
            return lacks(o, KVI_CHANGE_VALUE_FORMAT, "values beside its keys", err);
        s->value_format = o->value_format;
        st = fits(o, KVI_CHANGE_VALUE_FORMAT, o->value_format, s->value_width, err);
    }
    if (st == KVCSA_OK && o->given & KVI_CHANGE_ENTRY_FORMAT) {
        s->entry_format = o->entry_format;
        st = fits(o, KVI_CHANGE_ENTRY_FORMAT, o->entry_format, s->key_width, err);
    }
    if (st == KVCSA_OK && o->given & KVI_CHANGE_INDEX_FORMAT) {
        if (!c->index_dim)
            return lacks(o, KVI_CHANGE_INDEX_FORMAT, "index keys", err);
        s->index_format = o->index_format;
        st = fits(o, KVI_CHANGE_INDEX_FORMAT, o->index_format, c->index_dim, err);
    }
    if (st == KVCSA_OK && o->given & KVI_CHANGE_WINDOW_FORMAT) {
        if (!c->window)
            return lacks(o, KVI_CHANGE_WINDOW_FORMAT, "windows", err);
        s->window_format = o->window_format;
        st = fits(o, KVI_CHANGE_WINDOW_FORMAT, o->window_format, s->key_width, err);
    }
    return st;
}

static kvcsa_status apply_heads(const kvi_plan_override *o, kvi_config *c, kvcsa_error *err)
{
    kvi_cache_shape *s = &c->cache;
    const uint64_t   channels = (uint64_t)o->kv_heads * (s->key_width + s->value_width);

    if (!(o->given & KVI_CHANGE_KV_HEADS))
        return KVCSA_OK;
    if (s->value_kind != KVCSA_VALUE_OWN && o->kv_heads != s->kv_heads)
        return kvi_fail(err, fault_of(o, KVI_CHANGE_KV_HEADS),
                        "%skv_heads is %u, must be %u: all heads share one latent",
                        place_of(o, KVI_CHANGE_KV_HEADS), o->kv_heads, s->kv_heads);
    if (s->value_kind == KVCSA_VALUE_OWN && channels > KVI_MAX_ROW_WIDTH)
        return kvi_fail(err, fault_of(o, KVI_CHANGE_KV_HEADS),
                        "%skv_heads is %u, which makes rows of %llu channels, limit %d",
                        place_of(o, KVI_CHANGE_KV_HEADS), o->kv_heads, (unsigned long long)channels,
                        KVI_MAX_ROW_WIDTH);
    s->kv_heads = o->kv_heads;
    return KVCSA_OK;
}

/* No window: a layer that has nothing else attends to every token instead, and keeps it. */
static void apply_window(const kvi_plan_override *o, kvi_config *c)
{
    if (!(o->given & KVI_CHANGE_WINDOW_TOKENS))
        return;
    c->window = o->window_tokens;
    for (uint32_t i = 0; i < c->cache.n_layers && c->window == 0; i++) {
        uint8_t *flags = &c->cache.layers[i];

        if (*flags & KVI_LAYER_WINDOW && c->ratios[i] == 0) {
            c->ratios[i] = 1;
            c->kv_source[i] = 1;
        }
        *flags &= (uint8_t)~KVI_LAYER_WINDOW;
    }
}

/* Which of the layers with `wanted` flags and entries own. Others of the list are refused: it would
 * say something that is not so. */
static kvcsa_status share(const kvi_plan_override *o, uint32_t bit, const kvi_layer_share *by,
                          uint8_t wanted, kvi_config *c, uint8_t *owns, kvcsa_error *err)
{
    uint32_t n = 0;

    if (!(o->given & bit))
        return KVCSA_OK;
    for (uint32_t i = 0; i < KVI_MAX_LAYERS; i++) {
        const int has =
            i < c->cache.n_layers && c->ratios[i] > 0 && (c->cache.layers[i] & wanted) == wanted;

        if (by->owns[i] && !has)
            return kvi_fail(err, fault_of(o, bit),
                            "%s%s has layer %u, which has no %s in this model", place_of(o, bit),
                            name_of(bit), i, wanted ? "index keys" : "entries");
        owns[i] = has && (by->every ? n % by->every == 0 : by->owns[i]);
        if (has && n++ == 0 && !owns[i])
            return kvi_fail(err, fault_of(o, bit),
                            "%s%s must have layer %u, in front of which none owns",
                            place_of(o, bit), name_of(bit), i);
    }
    return n ? KVCSA_OK : lacks(o, bit, wanted ? "index keys" : "entries", err);
}

kvcsa_status kvi_plan_override_apply(const kvi_plan_override *o, const kvi_config *base,
                                     kvi_config *out, kvcsa_error *err)
{
    kvcsa_status st;

    *out = *base;
    if (o->given & KVI_CHANGE_DRAFT_LAYERS && o->draft_layers) {
        if (out->n_draft_layers == 0)
            return lacks(o, KVI_CHANGE_DRAFT_LAYERS, "draft layers", err);
        out->cache.n_layers = out->n_layers + out->n_draft_layers;
    }
    if (o->given & KVI_CHANGE_MAX_TOKENS)
        out->max_tokens = o->max_tokens;
    if (o->given & KVI_CHANGE_WINDOW_TOKENS && !base->window)
        return lacks(o, KVI_CHANGE_WINDOW_TOKENS, "windows", err);
    if ((st = apply_formats(o, out, err)) != KVCSA_OK ||
        (st = apply_heads(o, out, err)) != KVCSA_OK)
        return st;
    apply_window(o, out);
    if ((st = share(o, KVI_CHANGE_KV_SHARE, &o->kv_share, 0, out, out->kv_source, err)) != KVCSA_OK)
        return st;
    return share(o, KVI_CHANGE_INDEX_SHARE, &o->index_share, KVI_LAYER_INDEXED, out,
                 out->index_source, err);
}

kvcsa_status kvi_plan_override_blame(const kvi_plan_override *o, kvcsa_status st, kvcsa_error *err)
{
    if (st != KVCSA_ERR_FORMAT || !o->from_call)
        return st;
    if (err)
        err->status = KVCSA_ERR_ARG;
    return KVCSA_ERR_ARG;
}
