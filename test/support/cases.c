#include "cases.h"

#include "st_io.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE  ((size_t)64 << 20)
#define MAX_CASES 4096u
#define MAX_IDS   (1u << 21)
#define MAX_STEPS 65536u
#define MAX_NAME  64u

typedef struct reader {
    char       *err;
    size_t      n_err;
    const char *name; /* of the case that is being read */
} reader;

static int refuse(const reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int refuse(const reader *r, const char *format, ...)
{
    va_list ap;
    int     n = 0;

    if (!r->err || !r->n_err)
        return -1;
    if (r->name)
        n = snprintf(r->err, r->n_err, "case %s: ", r->name);
    if (n < 0 || (size_t)n >= r->n_err)
        return -1;
    va_start(ap, format);
    vsnprintf(r->err + n, r->n_err - (size_t)n, format, ap);
    va_end(ap);
    return -1;
}

/* A key that is not in `known` (separated by blanks) is refused. */
static int check_keys(const reader *r, json_t *obj, const char *known)
{
    const char *key;
    json_t     *v;

    json_object_foreach(obj, key, v) {
        const char *at = known;
        size_t      n = strlen(key);
        int         found = 0;

        for (; n && (at = strstr(at, key)); at++)
            found |= (at == known || at[-1] == ' ') && (at[n] == ' ' || at[n] == 0) && !strchr(key, ' ');
        if (!found)
            return refuse(r, "unknown key \"%.40s\"", key);
    }
    return 0;
}

/* Integer in 0..max; `absent` if the key is not there (negative = it must be). */
static int get_uint(const reader *r, json_t *obj, const char *key, json_int_t absent, json_int_t max, uint32_t *out)
{
    json_t    *v = json_object_get(obj, key);
    json_int_t x;

    if (!v && absent >= 0) {
        *out = (uint32_t)absent;
        return 0;
    }
    if (!json_is_integer(v))
        return refuse(r, "%s is missing or no integer", key);
    x = json_integer_value(v);
    if (x < 0 || x > max)
        return refuse(r, "%s is %lld, must be 0..%lld", key, (long long)x, (long long)max);
    *out = (uint32_t)x;
    return 0;
}

static int get_flag(const reader *r, json_t *obj, const char *key, int *out)
{
    json_t  *v = json_object_get(obj, key);
    uint32_t u = 0;

    if (json_is_boolean(v)) {
        *out = json_is_true(v);
        return 0;
    }
    if (get_uint(r, obj, key, 0, 1, &u))
        return -1;
    *out = (int)u;
    return 0;
}

static int read_rows(const reader *r, json_t *rows, case_step *s)
{
    if (!rows)
        return 0;
    if (!json_is_array(rows) || json_array_size(rows) == 0 || json_array_size(rows) > s->n)
        return refuse(r, "rows must hold 1..%u offsets", s->n);
    s->has_rows = 1;
    s->n_rows = (uint32_t)json_array_size(rows);
    if (!(s->rows = calloc(s->n_rows, sizeof *s->rows)))
        return refuse(r, "out of memory");
    for (uint32_t i = 0; i < s->n_rows; i++) {
        json_t    *v = json_array_get(rows, i);
        json_int_t x = json_is_integer(v) ? json_integer_value(v) : -1;

        if (x < 0 || x >= s->n || (i && x <= s->rows[i - 1]))
            return refuse(r, "rows[%u] must be ascending and below %u", i, s->n);
        s->rows[i] = (uint32_t)x;
    }
    return 0;
}

/* *at: tokens that the case has run so far. */
static int read_step(const reader *r, json_t *m, const case_item *c, case_step *s, uint32_t *at)
{
    if (!json_is_object(m))
        return refuse(r, "a step is no object");
    if (check_keys(r, m, "n hit decoder_replay taps pre rows") || get_uint(r, m, "n", -1, MAX_IDS, &s->n) ||
        get_uint(r, m, "hit", 0, MAX_IDS, &s->hit) || get_flag(r, m, "decoder_replay", &s->decoder_replay) ||
        get_flag(r, m, "taps", &s->taps) || get_flag(r, m, "pre", &s->pre))
        return -1;
    s->has_hit = json_object_get(m, "hit") != NULL;
    if (s->has_hit) {
        if (s->hit > *at || s->hit % 2)
            return refuse(r, "hit is %u, must be even and at most the %u tokens that were run", s->hit, *at);
        *at = s->hit;
    }
    if (s->n == 0 || s->n > c->n_ids - *at)
        return refuse(r, "n is %u, must be 1..%u", s->n, c->n_ids - *at);
    *at += s->n;
    return read_rows(r, json_object_get(m, "rows"), s);
}

static int read_ids(const reader *r, json_t *ids, case_item *c)
{
    if (!json_is_array(ids) || json_array_size(ids) == 0 || json_array_size(ids) > MAX_IDS)
        return refuse(r, "ids must hold 1..%u tokens", MAX_IDS);
    c->n_ids = (uint32_t)json_array_size(ids);
    if (!(c->ids = calloc(c->n_ids, sizeof *c->ids)))
        return refuse(r, "out of memory");
    for (uint32_t i = 0; i < c->n_ids; i++) {
        json_t    *v = json_array_get(ids, i);
        json_int_t x = json_is_integer(v) ? json_integer_value(v) : -1;

        if (x < 0 || x > INT32_MAX)
            return refuse(r, "ids[%u] is no token id", i);
        c->ids[i] = (int32_t)x;
    }
    return 0;
}

/* Names become the first part of tensor names, so they are kept plain. */
static int name_is_plain(const char *name)
{
    size_t n = strlen(name);

    return n > 0 && n <= MAX_NAME &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == n;
}

static int read_case(reader *r, json_t *m, case_item *c)
{
    json_t     *steps;
    const char *text;
    uint32_t    at = 0;

    r->name = NULL;
    if (!json_is_object(m) || !(text = json_string_value(json_object_get(m, "name"))) || !name_is_plain(text))
        return refuse(r, "a case is no object with a name of 1..%u letters, digits, - and _", MAX_NAME);
    if (!(c->name = malloc(strlen(text) + 1)))
        return refuse(r, "out of memory");
    strcpy(c->name, text);
    r->name = c->name;
    if (check_keys(r, m, "name ids steps round act_quant") || read_ids(r, json_object_get(m, "ids"), c) ||
        get_flag(r, m, "act_quant", &c->act_quant))
        return -1;
    c->round_bf16 = 1;
    if (json_object_get(m, "round")) {
        text = json_string_value(json_object_get(m, "round"));
        if (!text || (strcmp(text, "bf16") && strcmp(text, "f32")))
            return refuse(r, "round is neither \"bf16\" nor \"f32\"");
        c->round_bf16 = strcmp(text, "bf16") == 0;
    }
    steps = json_object_get(m, "steps");
    if (!json_is_array(steps) || json_array_size(steps) == 0 || json_array_size(steps) > MAX_STEPS)
        return refuse(r, "steps must hold 1..%u forwards", MAX_STEPS);
    if (!(c->steps = calloc(json_array_size(steps), sizeof *c->steps)))
        return refuse(r, "out of memory");
    c->n_steps = (uint32_t)json_array_size(steps);
    for (uint32_t i = 0; i < c->n_steps; i++)
        if (read_step(r, json_array_get(steps, i), c, &c->steps[i], &at))
            return -1;
    return 0;
}

int cases_parse(const char *json, size_t n, case_list *out, char *err, size_t n_err)
{
    reader       r = {err, n_err, NULL};
    json_error_t je;
    json_t      *root = NULL;
    int          rc = -1;

    memset(out, 0, sizeof *out);
    if (n > MAX_FILE || !(root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &je))) {
        refuse(&r, "not JSON: %.150s", n > MAX_FILE ? "too large" : je.text);
        goto done;
    }
    if (!json_is_array(root) || json_array_size(root) == 0 || json_array_size(root) > MAX_CASES) {
        refuse(&r, "a case file is an array of 1..%u cases", MAX_CASES);
        goto done;
    }
    if (!(out->items = calloc(json_array_size(root), sizeof *out->items))) {
        refuse(&r, "out of memory");
        goto done;
    }
    out->n = (uint32_t)json_array_size(root);
    for (uint32_t i = 0; i < out->n; i++) {
        if (read_case(&r, json_array_get(root, i), &out->items[i]))
            goto done;
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(out->items[i].name, out->items[j].name) == 0) {
                refuse(&r, "the name occurs twice");
                goto done;
            }
    }
    rc = 0;
done:
    json_decref(root);
    if (rc)
        cases_free(out);
    return rc;
}

int cases_load(const char *path, case_list *out, char *err, size_t n_err)
{
    size_t n = 0;
    char   why[256] = "";
    int    rc;
    char  *text = st_slurp(path, MAX_FILE, &n, err, n_err);

    memset(out, 0, sizeof *out);
    if (!text)
        return -1;
    rc = cases_parse(text, n, out, why, sizeof why);
    free(text);
    if (rc && err && n_err)
        snprintf(err, n_err, "%s: %s", path, why);
    return rc;
}

void cases_free(case_list *list)
{
    if (!list)
        return;
    for (uint32_t i = 0; i < list->n; i++) {
        case_item *c = &list->items[i];

        for (uint32_t s = 0; s < c->n_steps; s++)
            free(c->steps[s].rows);
        free(c->steps);
        free(c->ids);
        free(c->name);
    }
    free(list->items);
    memset(list, 0, sizeof *list);
}

uint32_t cases_step_start(const case_item *item, uint32_t i)
{
    uint32_t at = 0;

    for (uint32_t s = 0; s <= i && s < item->n_steps; s++) {
        if (item->steps[s].has_hit)
            at = item->steps[s].hit;
        if (s == i)
            break;
        at += item->steps[s].n;
    }
    return at;
}
