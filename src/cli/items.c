#include "items.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NEEDLES 4096u

typedef struct needle {
    cli_ids    ids;
    double     depth;
    size_t     offset; /* filler tokens in front of it */
    size_t     order;  /* in the item; of equal depths the first one comes first */
    item_place place;
} needle;

typedef struct build {
    cli_ids before;
    cli_ids filler;
    needle *needles; /* the one of "needle" is the first */
    size_t  n_needles;
    int     has_main;
    size_t  n_filler; /* tokens of filler in the document */
} build;

/* ------------------------------------------------------------------ lines */

int items_fail(const item_reader *r, const char *format, ...)
{
    va_list ap;

    fprintf(stderr, "kvcsa %s: %s:%zu: ", r->command, r->file, r->line);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    return CLI_FAILED;
}

int items_open(item_reader *r, const char *command, const char *file, const kvcsa_model *model,
               const kvcsa_model_info *info, int special)
{
    *r = (item_reader){.command = command, .file = file, .model = model, .info = info};
    r->flags = special ? KVCSA_TOKENIZE_SPECIAL : 0;
    return cli_read_text(command, NULL, file, &r->text);
}

void items_close(item_reader *r)
{
    free(r->text.data);
    memset(r, 0, sizeof *r);
}

static int is_blank(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return 0;
    return 1;
}

int items_next(item_reader *r, json_t **item)
{
    json_error_t err;

    *item = NULL;
    while (r->at < r->text.n) {
        const char *line = r->text.data + r->at;
        const char *end = memchr(line, '\n', r->text.n - r->at);
        size_t      n = end ? (size_t)(end - line) : r->text.n - r->at;

        r->at += n + (end != NULL);
        r->line++;
        if (is_blank(line, n))
            continue;
        *item = json_loadb(line, n, JSON_REJECT_DUPLICATES, &err);
        if (!*item)
            return items_fail(r, "column %d: %s", err.column, err.text);
        if (json_is_object(*item))
            return CLI_OK;
        json_decref(*item);
        *item = NULL;
        return items_fail(r, "the line must be an object in braces");
    }
    return CLI_OK;
}

/* ------------------------------------------------------------------ values */

static int ids_of_list(const item_reader *r, const json_t *list, const char *key, cli_ids *out)
{
    const size_t n = json_array_size(list);

    if (!(out->data = malloc((n + 1) * sizeof *out->data)))
        return cli_no_memory();
    for (size_t i = 0; i < n; i++) {
        const json_t    *v = json_array_get(list, i);
        const json_int_t id = json_integer_value(v);

        if (!json_is_integer(v) || id < 0 || id >= (json_int_t)r->info->vocab_tokens)
            return items_fail(r, "%s[%zu] is not a token id, 0..%u", key, i,
                              r->info->vocab_tokens - 1);
        out->data[out->n++] = (int32_t)id;
    }
    return CLI_OK;
}

/* Frees what it has made on failure. */
static int ids_of_value(const item_reader *r, const json_t *v, const char *key, cli_ids *out)
{
    int rc;

    *out = (cli_ids){0};
    if (json_is_string(v)) {
        const cli_text text = {(char *)(uintptr_t)json_string_value(v), json_string_length(v)};

        rc = cli_tokenize(r->model, &text, r->flags, -1, out);
    } else if (json_is_array(v)) {
        rc = ids_of_list(r, v, key, out);
    } else {
        rc = items_fail(r, "%s must be a text or a list of token ids", key);
    }
    if (rc != CLI_OK) {
        free(out->data);
        *out = (cli_ids){0};
    }
    return rc;
}

int items_ids(const item_reader *r, const json_t *item, const char *key, int optional, cli_ids *out)
{
    const json_t *v = json_object_get(item, key);

    *out = (cli_ids){0};
    if (!v)
        return optional ? CLI_OK : items_fail(r, "%s is missing", key);
    return ids_of_value(r, v, key, out);
}

int items_real(const item_reader *r, const json_t *item, const char *key, double min, double max,
               double absent, double *out)
{
    const json_t *v = json_object_get(item, key);

    *out = v ? json_number_value(v) : absent;
    if (v && (!json_is_number(v) || !(*out >= min && *out <= max)))
        return items_fail(r, "%s must be a number %g..%g", key, min, max);
    return CLI_OK;
}

int items_uint(const item_reader *r, const json_t *item, const char *key, uint64_t min,
               uint64_t max, uint64_t absent, uint64_t *out)
{
    const json_t *v = json_object_get(item, key);

    *out = v ? (uint64_t)json_integer_value(v) : absent;
    if (v && (!json_is_integer(v) || json_integer_value(v) < 0 || *out < min || *out > max))
        return items_fail(r, "%s must be a whole number %llu..%llu", key, (unsigned long long)min,
                          (unsigned long long)max);
    return CLI_OK;
}

/* ------------------------------------------------------------------ a document that is built */

static void free_build(build *b)
{
    free(b->before.data);
    free(b->filler.data);
    for (size_t i = 0; i < b->n_needles; i++)
        free(b->needles[i].ids.data);
    free(b->needles);
}

static int read_one_of_many(const item_reader *r, const json_t *v, size_t i, size_t n, needle *out)
{
    char key[40];
    int  rc;

    snprintf(key, sizeof key, "needles[%zu]", i);
    if (!json_is_object(v))
        return items_fail(r, "%s must be {\"text\": ..., \"depth\": ...}", key);
    if ((rc = ids_of_value(r, json_object_get(v, "text"), key, &out->ids)) != CLI_OK)
        return rc;
    return items_real(r, v, "depth", 0, 1, ((double)i + 0.5) / (double)n, &out->depth);
}

static int read_needles(const item_reader *r, const json_t *item, build *b)
{
    const json_t *list = json_object_get(item, "needles");
    const size_t  n = json_array_size(list);
    int           rc = CLI_OK;

    if (list && (!json_is_array(list) || n > MAX_NEEDLES))
        return items_fail(r, "needles must be a list of at most %u", MAX_NEEDLES);
    if (!(b->needles = calloc(n + 1, sizeof *b->needles)))
        return cli_no_memory();
    if (json_object_get(item, "needle")) {
        needle *first = &b->needles[b->n_needles++];

        b->has_main = 1;
        if ((rc = items_ids(r, item, "needle", 0, &first->ids)) == CLI_OK)
            rc = items_real(r, item, "depth", 0, 1, 0.5, &first->depth);
    }
    for (size_t i = 0; i < n && rc == CLI_OK; i++)
        rc = read_one_of_many(r, json_array_get(list, i), i, n, &b->needles[b->n_needles++]);
    return rc;
}

static int compare_needles(const void *a, const void *b)
{
    const needle *const *x = a;
    const needle *const *y = b;

    if ((*x)->offset != (*y)->offset)
        return (*x)->offset < (*y)->offset ? -1 : 1;
    return (*x)->order < (*y)->order ? -1 : (*x)->order > (*y)->order;
}

static void put(cli_ids *out, const int32_t *ids, size_t n)
{
    if (n)
        memcpy(out->data + out->n, ids, n * sizeof *ids);
    out->n += n;
}

/* Filler up to the number *at that is `end`; the text goes on where it stopped. */
static void put_filler(const build *b, size_t *at, size_t end, cli_ids *out)
{
    for (; *at < end; ++*at)
        put(out, &b->filler.data[*at % b->filler.n], 1);
}

static int compose(build *b, cli_ids *out)
{
    needle **sorted = malloc((b->n_needles + 1) * sizeof(needle *));
    size_t   at = 0;

    if (!sorted)
        return cli_no_memory();
    for (size_t i = 0; i < b->n_needles; i++) {
        b->needles[i].order = i;
        b->needles[i].offset = (size_t)(b->needles[i].depth * (double)b->n_filler);
        sorted[i] = &b->needles[i];
    }
    qsort(sorted, b->n_needles, sizeof *sorted, compare_needles);
    put(out, b->before.data, b->before.n);
    for (size_t i = 0; i < b->n_needles; i++) {
        put_filler(b, &at, sorted[i]->offset, out);
        sorted[i]->place.begin = out->n;
        put(out, sorted[i]->ids.data, sorted[i]->ids.n);
        sorted[i]->place.end = out->n;
    }
    put_filler(b, &at, b->n_filler, out);
    free(sorted);
    return CLI_OK;
}

/* Room for the document, and how much filler goes into it. */
static int size_document(const item_reader *r, const json_t *item, size_t n_behind, build *b,
                         cli_ids *out)
{
    const size_t bos = r->info->bos_token >= 0;
    size_t       fixed = bos + b->before.n + n_behind;
    uint64_t     length = 0;
    int          rc = items_uint(r, item, "length", 1, r->info->max_context_tokens, 0, &length);

    if (rc != CLI_OK)
        return rc;
    if (!length)
        return items_fail(r, "length is missing: tokens of the document that is built");
    for (size_t i = 0; i < b->n_needles; i++)
        fixed += b->needles[i].ids.n;
    if (fixed > length)
        return items_fail(r, "length is %llu, but there are %zu tokens without any filler",
                          (unsigned long long)length, fixed);
    b->n_filler = (size_t)length - fixed;
    if (!b->filler.n && b->n_filler)
        return items_fail(r, "filler is empty");
    if (!(out->data = malloc(((size_t)length + 1) * sizeof *out->data)))
        return cli_no_memory();
    if (bos)
        put(out, &r->info->bos_token, 1);
    return CLI_OK;
}

static int take_places(const build *b, int many, item_places *places)
{
    const size_t first = many && b->has_main;
    const size_t end = many ? b->n_needles : (size_t)b->has_main;

    if (!(places->items = malloc((end + 1) * sizeof *places->items)))
        return cli_no_memory();
    for (size_t i = first; i < end; i++)
        places->items[places->n++] = b->needles[i].place;
    return CLI_OK;
}

static int build_document(const item_reader *r, const json_t *item, size_t n_behind, int many,
                          cli_ids *out, item_places *places)
{
    build b = {0};
    int   rc;

    if ((rc = items_ids(r, item, "before", 1, &b.before)) == CLI_OK &&
        (rc = items_ids(r, item, "filler", 0, &b.filler)) == CLI_OK &&
        (rc = read_needles(r, item, &b)) == CLI_OK &&
        (rc = size_document(r, item, n_behind, &b, out)) == CLI_OK &&
        (rc = compose(&b, out)) == CLI_OK)
        rc = take_places(&b, many, places);
    free_build(&b);
    return rc;
}

int items_document(const item_reader *r, const json_t *item, const char *key, size_t n_behind,
                   int many, cli_ids *out, item_places *places)
{
    const int32_t bos = r->info->bos_token;
    cli_ids       text;
    int           rc;

    *out = (cli_ids){0};
    *places = (item_places){0};
    if (!json_object_get(item, key)) {
        if (!json_object_get(item, "filler"))
            return items_fail(r, "%s is missing, and so is filler", key);
        return build_document(r, item, n_behind, many, out, places);
    }
    if ((rc = items_ids(r, item, key, 0, &text)) != CLI_OK)
        return rc;
    if (text.n + 1 + n_behind > r->info->max_context_tokens)
        rc = items_fail(r, "%s has %zu tokens, the model's limit is %llu", key, text.n,
                        (unsigned long long)r->info->max_context_tokens);
    else if (!(out->data = malloc((text.n + 1) * sizeof *out->data)))
        rc = cli_no_memory();
    if (rc == CLI_OK && bos >= 0)
        put(out, &bos, 1);
    if (rc == CLI_OK)
        put(out, text.data, text.n);
    free(text.data);
    return rc;
}
