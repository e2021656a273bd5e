#include "model/json_reader_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void kvi_json_refuse(kvi_json_reader *r, kvcsa_status st, const char *key, const char *format, ...)
{
    char    what[160];
    va_list args;

    if (r->st != KVCSA_OK)
        return;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    r->st = kvi_fail(r->err, st, "%s: %s%s %s", r->file, r->prefix, key, what);
}

const json_t *kvi_json_get(const kvi_json_reader *r, const char *key)
{
    const json_t *value = json_object_get(r->obj, key);

    return json_is_null(value) ? NULL : value;
}

const char *kvi_json_type(const json_t *value)
{
    if (!value)
        return "absent";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

/* ------------------------------------------------------------------ typed access */

int64_t kvi_json_check_int(kvi_json_reader *r, const char *key, const json_t *value, int64_t min,
                           int64_t max)
{
    int64_t n;

    if (r->st != KVCSA_OK)
        return min;
    if (!json_is_integer(value)) {
        kvi_json_refuse(r, r->malformed, key, "is %s, must be an integer %lld..%lld",
                        kvi_json_type(value), (long long)min, (long long)max);
        return min;
    }
    n = json_integer_value(value);
    if (n < min || n > max) {
        kvi_json_refuse(r, r->malformed, key, "is %lld, must be %lld..%lld", (long long)n,
                        (long long)min, (long long)max);
        return min;
    }
    return n;
}

int64_t kvi_json_int(kvi_json_reader *r, const char *key, int64_t min, int64_t max)
{
    return kvi_json_check_int(r, key, kvi_json_get(r, key), min, max);
}

int64_t kvi_json_int_or(kvi_json_reader *r, const char *key, int64_t min, int64_t max,
                        int64_t absent)
{
    return kvi_json_get(r, key) ? kvi_json_int(r, key, min, max) : absent;
}

float kvi_json_real(kvi_json_reader *r, const char *key, double min, double max)
{
    const json_t *value = kvi_json_get(r, key);
    double        x;

    if (r->st != KVCSA_OK)
        return 0.0f;
    if (!json_is_number(value)) {
        kvi_json_refuse(r, r->malformed, key, "is %s, must be a number %g..%g",
                        kvi_json_type(value), min, max);
        return 0.0f;
    }
    x = json_number_value(value);
    if (!isfinite(x) || x < min || x > max) {
        kvi_json_refuse(r, r->malformed, key, "is %g, must be %g..%g", x, min, max);
        return 0.0f;
    }
    return (float)x;
}

const char *kvi_json_text(kvi_json_reader *r, const char *key)
{
    const json_t *value = kvi_json_get(r, key);

    if (r->st == KVCSA_OK && !json_is_string(value))
        kvi_json_refuse(r, r->malformed, key, "is %s, must be a string", kvi_json_type(value));
    return r->st == KVCSA_OK ? json_string_value(value) : "";
}

void kvi_json_want_text(kvi_json_reader *r, const char *key, const char *want)
{
    const char *text = kvi_json_text(r, key);

    if (r->st == KVCSA_OK && strcmp(text, want) != 0)
        kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, key, "is \"%.40s\", this version reads \"%s\"",
                        text, want);
}

int kvi_json_bool(kvi_json_reader *r, const char *key)
{
    const json_t *value = kvi_json_get(r, key);

    if (r->st == KVCSA_OK && !json_is_boolean(value))
        kvi_json_refuse(r, r->malformed, key, "is %s, must be true or false", kvi_json_type(value));
    return json_is_true(value);
}

int kvi_json_bool_or(kvi_json_reader *r, const char *key, int absent)
{
    return kvi_json_get(r, key) ? kvi_json_bool(r, key) : absent;
}

void kvi_json_want_false(kvi_json_reader *r, const char *key)
{
    if (kvi_json_get(r, key) && kvi_json_bool(r, key))
        kvi_json_refuse(r, KVCSA_ERR_UNSUPPORTED, key, "is true, this version reads false");
}

const json_t *kvi_json_list(kvi_json_reader *r, const char *key, size_t max, int required,
                            size_t *n)
{
    const json_t *list = kvi_json_get(r, key);

    *n = 0;
    if (r->st != KVCSA_OK || (!list && !required))
        return NULL;
    if (!json_is_array(list)) {
        kvi_json_refuse(r, r->malformed, key, "is %s, must be a list", kvi_json_type(list));
        return NULL;
    }
    if (json_array_size(list) > max) {
        kvi_json_refuse(r, r->malformed, key, "has %zu items, limit %zu", json_array_size(list),
                        max);
        return NULL;
    }
    *n = json_array_size(list);
    return list;
}

uint32_t kvi_json_layers(kvi_json_reader *r, const char *key, uint32_t first, uint32_t n_layers,
                         uint32_t max, uint32_t *out)
{
    size_t        n = 0;
    const json_t *list = kvi_json_list(r, key, max, 0, &n);
    int64_t       last = -1;

    for (size_t i = 0; i < n && r->st == KVCSA_OK; i++) {
        const int64_t layer = kvi_json_check_int(r, key, json_array_get(list, i), first,
                                                 (int64_t)first + n_layers - 1);

        if (layer <= last)
            kvi_json_refuse(r, r->malformed, key,
                            "has %lld behind %lld, must be distinct and ascending",
                            (long long)layer, (long long)last);
        last = layer;
        out[i] = (uint32_t)layer - first;
    }
    return r->st == KVCSA_OK ? (uint32_t)n : 0;
}

int kvi_json_enter(kvi_json_reader *r, const char *key, const char *prefix, kvi_json_reader *out)
{
    const json_t *value = kvi_json_get(r, key);

    *out = *r;
    if (!value || r->st != KVCSA_OK)
        return 0;
    if (!json_is_object(value)) {
        kvi_json_refuse(r, r->malformed, key, "is %s, must be an object", kvi_json_type(value));
        return 0;
    }
    out->obj = value;
    out->prefix = prefix;
    return 1;
}
