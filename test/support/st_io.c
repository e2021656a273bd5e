#include "st_io.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE    ((size_t)4 << 30)
#define MAX_HEADER  ((size_t)64 << 20)
#define MAX_TENSORS 1000000u
#define MAX_NAME    512u
#define ALIGN       16u

struct st_file {
    st_tensor *tensors; /* ascending name; names point into the JSON tree */
    size_t     n;
    json_t    *head;
    char      *data;    /* payloads, each at a multiple of ALIGN */
};

typedef struct slot {
    char     *name;
    st_tensor t;
} slot;

struct st_writer {
    slot  *slots;
    size_t n;
    size_t cap;
};

static void say(char *err, size_t n_err, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void say(char *err, size_t n_err, const char *format, ...)
{
    va_list ap;

    if (!err || !n_err)
        return;
    va_start(ap, format);
    vsnprintf(err, n_err, format, ap);
    va_end(ap);
}

/* Bytes of one element; 0 = unknown. */
static size_t dtype_size(const char *dtype)
{
    static const struct { const char *name; size_t size; } known[] = {
        {"F32", 4}, {"I32", 4}, {"U32", 4}, {"U8", 1},  {"I8", 1},      {"BOOL", 1},    {"BF16", 2},
        {"F16", 2}, {"I16", 2}, {"F64", 8}, {"I64", 8}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(dtype, known[i].name) == 0)
            return known[i].size;
    return 0;
}

/* Product of shape and element size; -1 = overflow. */
static int shape_bytes(const uint64_t *shape, uint32_t n_dims, size_t elem, size_t *out)
{
    uint64_t n = elem;

    for (uint32_t i = 0; i < n_dims; i++) {
        if (shape[i] != 0 && n > MAX_FILE / shape[i])
            return -1;
        n *= shape[i];
    }
    *out = (size_t)n;
    return 0;
}

/* ------------------------------------------------------------------ reading */

char *st_slurp(const char *path, size_t limit, size_t *n, char *err, size_t n_err)
{
    FILE  *f = fopen(path, "rb");
    char  *p = NULL;
    size_t have = 0;
    size_t cap = 1 << 16;

    *n = 0;
    if (!f) {
        say(err, n_err, "%s: %s", path, strerror(errno));
        return NULL;
    }
    for (;;) {
        char  *q = realloc(p, cap + 1);
        size_t got;

        if (!q) {
            say(err, n_err, "%s: out of memory at %zu bytes", path, cap);
            goto fail;
        }
        p = q;
        got = fread(p + have, 1, cap - have, f);
        have += got;
        if (have > limit) {
            say(err, n_err, "%s: larger than %zu bytes", path, limit);
            goto fail;
        }
        if (have < cap)
            break;
        cap *= 2;
    }
    if (ferror(f)) {
        say(err, n_err, "%s: %s", path, strerror(errno));
        goto fail;
    }
    fclose(f);
    p[have] = 0;
    *n = have;
    return p;
fail:
    free(p);
    fclose(f);
    return NULL;
}

/* One header entry; *off is where its payload begins. 0 = good. */
static int read_entry(const char *name, json_t *m, size_t payload, st_tensor *t, size_t *off, char *err, size_t n_err)
{
    json_t     *shape = json_object_get(m, "shape");
    json_t     *offs = json_object_get(m, "data_offsets");
    const char *dtype = json_string_value(json_object_get(m, "dtype"));
    size_t      elem = dtype ? dtype_size(dtype) : 0;
    json_int_t  a, b;

    if (!elem || strlen(name) > MAX_NAME) {
        say(err, n_err, "%.64s: unknown dtype, or a name over %u bytes", name, MAX_NAME);
        return -1;
    }
    if (!json_is_array(shape) || json_array_size(shape) > ST_MAX_DIMS || !json_is_array(offs) || json_array_size(offs) != 2 ||
        !json_is_integer(json_array_get(offs, 0)) || !json_is_integer(json_array_get(offs, 1))) {
        say(err, n_err, "%s: shape or data_offsets is not what it should be", name);
        return -1;
    }
    t->name = name;
    strcpy(t->dtype, dtype); /* one of dtype_size()'s names, all shorter than 12 */
    t->n_dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        json_t *d = json_array_get(shape, i);

        if (!json_is_integer(d) || json_integer_value(d) < 0) {
            say(err, n_err, "%s: shape[%u] is not a size", name, i);
            return -1;
        }
        t->shape[i] = (uint64_t)json_integer_value(d);
    }
    a = json_integer_value(json_array_get(offs, 0));
    b = json_integer_value(json_array_get(offs, 1));
    if (a < 0 || b < a || (uint64_t)b > payload) {
        say(err, n_err, "%s: data_offsets [%lld, %lld], payload has %zu bytes", name, (long long)a, (long long)b, payload);
        return -1;
    }
    if (shape_bytes(t->shape, t->n_dims, elem, &t->n_bytes) || t->n_bytes != (size_t)(b - a)) {
        say(err, n_err, "%s: shape does not fit %lld bytes", name, (long long)(b - a));
        return -1;
    }
    *off = (size_t)a;
    return 0;
}

typedef struct by_off {
    size_t off;
    size_t len;
    size_t i;
} by_off;

static int cmp_off(const void *x, const void *y)
{
    const by_off *a = x;
    const by_off *b = y;

    if (a->off != b->off)
        return a->off < b->off ? -1 : 1;
    return (a->len > b->len) - (a->len < b->len); /* empty ones first */
}

static int cmp_name(const void *x, const void *y)
{
    return strcmp(((const st_tensor *)x)->name, ((const st_tensor *)y)->name);
}

/* Copy payloads to aligned places; they must tile [0, payload). */
static int place(st_file *f, by_off *o, const char *payload, size_t n_payload, char *err, size_t n_err)
{
    size_t at = 0;
    size_t dst = 0;

    qsort(o, f->n, sizeof *o, cmp_off);
    for (size_t i = 0; i < f->n; i++) {
        if (o[i].off != at) {
            say(err, n_err, "%s: gap or overlap at byte %zu of the payload", f->tensors[o[i].i].name, o[i].off);
            return -1;
        }
        at += o[i].len;
    }
    if (at != n_payload) {
        say(err, n_err, "tensors cover %zu of %zu payload bytes", at, n_payload);
        return -1;
    }
    f->data = aligned_alloc(ALIGN, (n_payload + ALIGN * (f->n + 2)) / ALIGN * ALIGN);
    if (!f->data) {
        say(err, n_err, "out of memory: %zu bytes", n_payload);
        return -1;
    }
    for (size_t i = 0; i < f->n; i++) {
        st_tensor *t = &f->tensors[o[i].i];

        memcpy(f->data + dst, payload + o[i].off, t->n_bytes);
        t->data = f->data + dst;
        dst += (t->n_bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    return 0;
}

st_file *st_parse(const void *bytes, size_t n, char *err, size_t n_err)
{
    const char  *p = bytes;
    st_file     *f = NULL;
    by_off      *o = NULL;
    uint64_t     n_head = 0;
    json_error_t je;
    const char  *name;
    json_t      *m;

    if (n >= 8)
        memcpy(&n_head, p, 8);
    if (n < 8 || n_head > MAX_HEADER || n_head > n - 8) {
        say(err, n_err, "header of %llu bytes in a file of %zu", (unsigned long long)n_head, n);
        return NULL;
    }
    if (!(f = calloc(1, sizeof *f)) || !(f->head = json_loadb(p + 8, (size_t)n_head, JSON_REJECT_DUPLICATES, &je)) ||
        !json_is_object(f->head) || json_object_size(f->head) > MAX_TENSORS) {
        say(err, n_err, "header is not a JSON object of at most %u tensors%s%.100s", MAX_TENSORS, f && !f->head ? ": " : "",
            f && !f->head ? je.text : "");
        goto fail;
    }
    f->tensors = calloc(json_object_size(f->head) + 1, sizeof *f->tensors);
    o = calloc(json_object_size(f->head) + 1, sizeof *o);
    if (!f->tensors || !o) {
        say(err, n_err, "out of memory: %zu tensors", json_object_size(f->head));
        goto fail;
    }
    json_object_foreach(f->head, name, m) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (read_entry(name, m, n - 8 - (size_t)n_head, &f->tensors[f->n], &o[f->n].off, err, n_err))
            goto fail;
        o[f->n].len = f->tensors[f->n].n_bytes;
        o[f->n].i = f->n;
        f->n++;
    }
    if (place(f, o, p + 8 + n_head, n - 8 - (size_t)n_head, err, n_err))
        goto fail;
    qsort(f->tensors, f->n, sizeof *f->tensors, cmp_name);
    free(o);
    return f;
fail:
    free(o);
    st_close(f);
    return NULL;
}

st_file *st_open(const char *path, char *err, size_t n_err)
{
    char     why[256] = "";
    size_t   n = 0;
    st_file *f = NULL;
    char    *raw = st_slurp(path, MAX_FILE, &n, err, n_err);

    if (!raw)
        return NULL;
    f = st_parse(raw, n, why, sizeof why);
    if (!f)
        say(err, n_err, "%s: %s", path, why);
    free(raw);
    return f;
}

void st_close(st_file *f)
{
    if (!f)
        return;
    free(f->tensors);
    free(f->data);
    json_decref(f->head);
    free(f);
}

const st_tensor *st_find(const st_file *f, const char *name)
{
    st_tensor key = {.name = name};

    if (!f || !name || !f->n)
        return NULL;
    return bsearch(&key, f->tensors, f->n, sizeof key, cmp_name);
}

size_t st_count(const st_file *f)
{
    return f ? f->n : 0;
}

const st_tensor *st_at(const st_file *f, size_t i)
{
    return f && i < f->n ? &f->tensors[i] : NULL;
}

/* ------------------------------------------------------------------ writing */

st_writer *st_create(void)
{
    return calloc(1, sizeof(st_writer));
}

static int grow(st_writer *w)
{
    size_t cap = w->cap ? w->cap * 2 : 64;
    slot  *s;

    if (w->n < w->cap)
        return 0;
    if (!(s = realloc(w->slots, cap * sizeof *s)))
        return -1;
    w->slots = s;
    w->cap = cap;
    return 0;
}

int st_add(st_writer *w, const char *name, const char *dtype, uint32_t n_dims, const uint64_t *shape, const void *data)
{
    slot   s = {0};
    void  *copy = NULL;
    size_t elem = dtype ? dtype_size(dtype) : 0;

    if (!w || !name || !elem || n_dims > ST_MAX_DIMS || strcmp(name, "__metadata__") == 0 || strlen(name) > MAX_NAME)
        return -1;
    if (shape_bytes(shape, n_dims, elem, &s.t.n_bytes) || (!data && s.t.n_bytes))
        return -1;
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->slots[i].name, name) == 0)
            return -1;
    if (grow(w) || !(s.name = malloc(strlen(name) + 1)) || !(copy = malloc(s.t.n_bytes + 1))) {
        free(s.name);
        return -1;
    }
    strcpy(s.name, name);
    strcpy(s.t.dtype, dtype);
    s.t.name = s.name;
    s.t.n_dims = n_dims;
    for (uint32_t i = 0; i < n_dims; i++)
        s.t.shape[i] = shape[i];
    if (s.t.n_bytes)
        memcpy(copy, data, s.t.n_bytes);
    s.t.data = copy;
    w->slots[w->n++] = s;
    return 0;
}

/* The JSON header, padded with blanks to a multiple of 8; malloc. */
static char *header_text(const st_writer *w, size_t *n)
{
    json_t *head = json_object();
    size_t  off = 0;
    char   *text = NULL;
    char   *padded = NULL;

    for (size_t i = 0; head && i < w->n; i++) {
        const st_tensor *t = &w->slots[i].t;
        json_t          *shape = json_array();

        for (uint32_t d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        if (json_object_set_new(head, t->name, json_pack("{s:s,s:o,s:[I,I]}", "dtype", t->dtype, "shape", shape, "data_offsets",
                                                         (json_int_t)off, (json_int_t)(off + t->n_bytes)))) {
            json_decref(head);
            return NULL;
        }
        off += t->n_bytes;
    }
    if (head)
        text = json_dumps(head, JSON_COMPACT);
    json_decref(head);
    if (!text)
        return NULL;
    *n = (strlen(text) + 7) / 8 * 8;
    if ((padded = malloc(*n + 1))) {
        memset(padded, ' ', *n);
        memcpy(padded, text, strlen(text));
        padded[*n] = 0;
    }
    free(text);
    return padded;
}

int st_write(const st_writer *w, const char *path, char *err, size_t n_err)
{
    size_t   n = 0;
    char    *head = header_text(w, &n);
    uint64_t n64 = n;
    FILE    *f = NULL;
    int      bad = 0;

    if (!head) {
        say(err, n_err, "%s: a name is not UTF-8, or out of memory", path);
        return -1;
    }
    if (!(f = fopen(path, "wb"))) {
        say(err, n_err, "%s: %s", path, strerror(errno));
        free(head);
        return -1;
    }
    bad = fwrite(&n64, 8, 1, f) != 1 || fwrite(head, 1, n, f) != n;
    for (size_t i = 0; !bad && i < w->n; i++)
        bad = fwrite(w->slots[i].t.data, 1, w->slots[i].t.n_bytes, f) != w->slots[i].t.n_bytes;
    bad |= fclose(f) != 0;
    free(head);
    if (bad)
        say(err, n_err, "%s: %s", path, strerror(errno));
    return bad ? -1 : 0;
}

void st_destroy(st_writer *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n; i++) {
        free(w->slots[i].name);
        free((void *)(uintptr_t)w->slots[i].t.data);
    }
    free(w->slots);
    free(w);
}
