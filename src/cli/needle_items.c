/* The items of `kvcsa needle`: prompts that are given, and prompts that are built. */
#include "needle_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void append_ids(cli_ids *to, const cli_ids *more)
{
    if (more->n)
        memcpy(to->data + to->n, more->data, more->n * sizeof *more->data);
    to->n += more->n;
}

/* document + question + answer, the first two being the prompt. */
static int join(needle_item *it, const cli_ids *document, const cli_ids *question,
                const cli_ids *answer)
{
    const size_t n = document->n + question->n + answer->n;

    if (!(it->tokens.data = malloc(n * sizeof *it->tokens.data)))
        return cli_no_memory();
    append_ids(&it->tokens, document);
    append_ids(&it->tokens, question);
    it->n_prompt = it->tokens.n;
    append_ids(&it->tokens, answer);
    return CLI_OK;
}

static int read_labels(const item_reader *r, const json_t *item, needle_item *it)
{
    const char *kind = json_string_value(json_object_get(item, "kind"));
    cli_ids     absent;
    int         rc;

    if (kind && !(it->kind = strdup(kind)))
        return cli_no_memory();
    if ((rc = items_ids(r, item, "absent", 1, &absent)) != CLI_OK)
        return rc;
    if (absent.n && r->info->span_tokens) /* else nothing can be hidden */
        it->absent = absent.data[0];
    free(absent.data);
    rc = items_uint(r, item, "distance", 0, INT64_MAX, UINT64_MAX, &it->distance);
    if (rc == CLI_OK)
        rc = items_real(r, item, "depth", 0, 1, (double)NAN, &it->depth);
    return rc;
}

static void place_needle(needle_item *it, const item_places *places)
{
    if (!places->n)
        return;
    it->place = places->items[0];
    it->distance = it->n_prompt - it->place.end;
    if (isnan(it->depth))
        it->depth = 0.5;
}

static int read_item(const item_reader *r, const json_t *item, needle_item *it)
{
    cli_ids     document = {0};
    cli_ids     question = {0};
    cli_ids     answer = {0};
    item_places places = {0};
    int         rc;

    *it = (needle_item){.line = r->line, .absent = -1};
    if (!json_object_get(item, "prompt") && !json_object_get(item, "filler"))
        return items_fail(r, "prompt is missing, and so is filler");
    if ((rc = read_labels(r, item, it)) == CLI_OK &&
        (rc = items_ids(r, item, "answer", 0, &answer)) == CLI_OK &&
        (rc = items_ids(r, item, "question", json_object_get(item, "prompt") != NULL, &question)) ==
            CLI_OK)
        rc = items_document(r, item, "prompt", question.n, 0, &document, &places);
    if (rc == CLI_OK && !answer.n)
        rc = items_fail(r, "answer is empty");
    if (rc == CLI_OK && !document.n && !question.n)
        rc = items_fail(r, "the prompt is empty");
    if (rc == CLI_OK && document.n + question.n + answer.n > r->info->max_context_tokens)
        rc = items_fail(r, "prompt and answer are %zu tokens, the model's limit is %llu",
                        document.n + question.n + answer.n,
                        (unsigned long long)r->info->max_context_tokens);
    if (rc == CLI_OK)
        rc = join(it, &document, &question, &answer);
    if (rc == CLI_OK)
        place_needle(it, &places);
    free(places.items);
    free(answer.data);
    free(question.data);
    free(document.data);
    return rc;
}

static int read_all(needle *n, item_reader *r)
{
    size_t cap = 0;
    int    rc = CLI_OK;

    while (rc == CLI_OK && (!n->o.limit || n->n_items < n->o.limit)) {
        json_t *item = NULL;

        if ((rc = items_next(r, &item)) != CLI_OK || !item)
            break;
        if (n->n_items == cap) {
            needle_item *more = realloc(n->items, (cap = cap * 2 + 16) * sizeof *more);

            if (!more) {
                json_decref(item);
                return cli_no_memory();
            }
            n->items = more;
        }
        rc = read_item(r, item, &n->items[n->n_items++]);
        json_decref(item);
    }
    return rc;
}

int needle_read_items(needle *n)
{
    item_reader r;
    int         rc = items_open(&r, "needle", n->o.words[1], n->model, &n->info, n->o.special);

    if (rc == CLI_OK)
        rc = read_all(n, &r);
    items_close(&r);
    if (rc == CLI_OK && !n->n_items) {
        fprintf(stderr, "kvcsa needle: %s holds no items\n", n->o.words[1]);
        rc = CLI_FAILED;
    }
    for (size_t i = 0; i < n->n_items; i++)
        n->has_control = n->has_control || needle_is_controlled(&n->items[i]);
    return rc;
}

void needle_free_items(needle *n)
{
    for (size_t i = 0; i < n->n_items; i++) {
        free(n->items[i].kind);
        free(n->items[i].tokens.data);
        free(n->items[i].generated);
    }
    free(n->items);
}
