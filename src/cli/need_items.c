/* Documents and questions of `kvcsa need`. */
#include "need_int.h"

#include <stdlib.h>
#include <string.h>

#define MAX_QUESTIONS 4096u

static int read_questions(const item_reader *r, const json_t *item, need_doc *d)
{
    json_t      *list = json_object_get(item, "questions");
    const size_t n = json_array_size(list);
    int          rc = CLI_OK;

    if (!json_is_array(list) || n < 1 || n > MAX_QUESTIONS)
        return items_fail(r, "questions must be a list of 1 to %u texts", MAX_QUESTIONS);
    if (!(d->questions = calloc(n, sizeof *d->questions)))
        return cli_no_memory();
    for (size_t i = 0; i < n && rc == CLI_OK; i++) {
        json_t *one = json_pack("{s:O}", "question", json_array_get(list, i));

        if (!one)
            return cli_no_memory();
        rc = items_ids(r, one, "question", 0, &d->questions[i].ids);
        json_decref(one);
        d->n_questions++;
        if (rc == CLI_OK && !d->questions[i].ids.n)
            rc = items_fail(r, "questions[%zu] is empty", i);
    }
    return rc;
}

static int read_doc(const need *n, const item_reader *r, const json_t *item, need_doc *d)
{
    const uint64_t limit = n->info.max_context_tokens;
    int            rc;

    *d = (need_doc){.line = r->line};
    if ((rc = read_questions(r, item, d)) != CLI_OK ||
        (rc = items_document(r, item, "document", 0, 1, &d->ids, &d->places)) != CLI_OK)
        return rc;
    if (!d->ids.n)
        return items_fail(r, "the document is empty");
    d->n_spans = d->ids.n / n->info.span_tokens;
    for (size_t i = 0; i < d->n_questions; i++)
        if (d->ids.n + d->questions[i].ids.n + n->o.generate > limit)
            return items_fail(r,
                              "document and questions[%zu] are %zu tokens, the model's limit is "
                              "%llu",
                              i, d->ids.n + d->questions[i].ids.n + n->o.generate,
                              (unsigned long long)limit);
    return CLI_OK;
}

static int read_all(need *n, item_reader *r)
{
    size_t cap = 0;
    int    rc = CLI_OK;

    while (rc == CLI_OK && (!n->o.limit || n->n_docs < n->o.limit)) {
        json_t *item = NULL;

        if ((rc = items_next(r, &item)) != CLI_OK || !item)
            break;
        if (n->n_docs == cap) {
            need_doc *more = realloc(n->docs, (cap = cap * 2 + 4) * sizeof *more);

            if (!more) {
                json_decref(item);
                return cli_no_memory();
            }
            n->docs = more;
        }
        rc = read_doc(n, r, item, &n->docs[n->n_docs++]);
        json_decref(item);
    }
    return rc;
}

int need_read_items(need *n)
{
    item_reader r;
    int         rc = items_open(&r, "need", n->o.words[1], n->model, &n->info, n->o.special);

    if (rc == CLI_OK)
        rc = read_all(n, &r);
    items_close(&r);
    if (rc == CLI_OK && !n->n_docs) {
        fprintf(stderr, "kvcsa need: %s holds no documents\n", n->o.words[1]);
        rc = CLI_FAILED;
    }
    return rc;
}

void need_free_items(need *n)
{
    for (size_t i = 0; i < n->n_docs; i++) {
        need_doc *d = &n->docs[i];

        for (size_t q = 0; q < d->n_questions; q++) {
            free(d->questions[q].ids.data);
            free(d->questions[q].answer);
            free(d->questions[q].margins);
            free(d->questions[q].mass);
            free(d->questions[q].order);
        }
        for (size_t o = 0; o < NEED_ORDERS; o++)
            free(d->orders[o]);
        for (size_t u = 0; u < d->n_unions; u++)
            free(d->unions[u].best_set);
        free(d->questions);
        free(d->places.items);
        free(d->ids.data);
    }
    free(n->docs);
}
