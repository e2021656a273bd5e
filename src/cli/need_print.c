/* What `kvcsa need` says. */
#include "need_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ANSWERS 8u /* that are shown */

static double span_bytes(const need *n)
{
    return n->cost.rate * n->info.span_tokens;
}

static double part(const need_doc *d, size_t kept)
{
    return d->n_spans ? (double)kept / (double)d->n_spans : 0;
}

static int compare_sizes(const void *a, const void *b)
{
    const size_t *x = a;
    const size_t *y = b;

    return *x < *y ? -1 : *x > *y;
}

/* Spans that each question needs alone, ascending; NULL = no memory. */
static size_t *sorted_needs(const need_doc *d, size_t o)
{
    size_t *all = malloc(d->n_questions * sizeof *all);

    for (size_t q = 0; all && q < d->n_questions; q++)
        all[q] = d->questions[q].found[o].kept;
    if (all)
        qsort(all, d->n_questions, sizeof *all, compare_sizes);
    return all;
}

/* Of the questions alone, how many changed an answer again with more spans than they need. */
static size_t count_again(const need_doc *d, size_t o)
{
    size_t n = 0;

    for (size_t q = 0; q < d->n_questions; q++)
        n += d->questions[q].found[o].again > 0;
    return n;
}

static json_t *answer_text(const need *n, const need_question *q)
{
    size_t  n_bytes = 0;
    char   *text = NULL;
    json_t *j = NULL;

    if (kvcsa_model_detokenize(n->model, q->answer, q->n_answer, NULL, 0, &n_bytes, NULL) ==
            KVCSA_OK &&
        (text = malloc(n_bytes + 1)) &&
        kvcsa_model_detokenize(n->model, q->answer, q->n_answer, text, n_bytes, &n_bytes, NULL) ==
            KVCSA_OK)
        j = cli_json_text(text, n_bytes);
    free(text);
    return j;
}

/* ------------------------------------------------------------------ for people */

static void print_heading(const need *n, const need_doc *d)
{
    const size_t tail = d->ids.n - d->n_spans * n->info.span_tokens;
    char         a[CLI_NUM];
    char         b[CLI_NUM];
    char         c[CLI_NUM];

    printf("%s line %zu: %s tokens in %s spans of %u tokens, %s B a span\n", n->o.words[1], d->line,
           cli_num(a, d->ids.n), cli_num(b, d->n_spans), n->info.span_tokens,
           cli_num(c, (uint64_t)span_bytes(n)));
    printf("always there: windows (%s B)", cli_num(a, n->cost.const_bytes));
    if (tail)
        printf(", the last %zu tokens of the document", tail);
    printf(", what the question and the answer add\n");
    printf("%zu questions, %zu tokens of answers, %zu of them sure (margin above %g nat)\n",
           d->n_questions, d->n_answer_tokens, d->n_sure, (double)n->o.margin);
}

static void print_answers(const need *n, const need_doc *d)
{
    for (size_t q = 0; q < d->n_questions && q < MAX_ANSWERS; q++) {
        json_t *text = answer_text(n, &d->questions[q]);

        printf("  answer %zu: ", q + 1);
        json_dumpf(text, stdout, JSON_ENCODE_ANY);
        putchar('\n');
        json_decref(text);
    }
    if (d->n_questions > MAX_ANSWERS)
        printf("  and %zu more; --json has all\n", d->n_questions - MAX_ANSWERS);
}

static void print_spans(const need *n, const need_doc *d, const need_union *u, const char *label,
                        size_t kept)
{
    char a[CLI_NUM];
    char b[CLI_NUM];
    char times[CLI_NUM] = "-";

    if (u->best)
        snprintf(times, sizeof times, "%.3g", (double)kept / (double)u->best);
    printf("%9zu  %-10s %8s %8.3g%% %12s %8s", u->k, label, cli_num(a, kept), 100 * part(d, kept),
           cli_bytes(b, (uint64_t)((double)kept * span_bytes(n))), times);
}

static void print_union(const need *n, const need_doc *d, const need_union *u)
{
    for (size_t o = 0; o < NEED_ORDERS; o++) {
        char stable[CLI_NUM] = "-";

        if (!n->o.use[o])
            continue;
        if (u->found[o].again)
            snprintf(stable, sizeof stable, "%.3g%%", 100 * part(d, u->found[o].stable));
        print_spans(n, d, u, need_order_names[o], u->found[o].kept);
        printf(" %9s\n", stable);
    }
    if (n->o.prune) {
        print_spans(n, d, u, "pruned", u->best);
        putchar('\n');
    }
}

static void print_unions(const need *n, const need_doc *d)
{
    printf("\nSmallest part of the cache with which no answer changes");
    if (n->o.epsilon > 0)
        printf(" (but for %g of the sure tokens)", (double)n->o.epsilon);
    printf("\n%9s  %-10s %8s %9s %12s %8s %9s\n", "questions", "kept first", "spans", "part",
           "bytes", "x best", "for good");
    for (size_t i = 0; i < d->n_unions; i++)
        print_union(n, d, &d->unions[i]);
}

static void print_each(const need *n, const need_doc *d)
{
    printf("\nEach question alone, spans: fewest, median, most\n");
    for (size_t o = 0; o < NEED_ORDERS; o++) {
        size_t      *all = n->o.use[o] ? sorted_needs(d, o) : NULL;
        const size_t again = n->o.use[o] ? count_again(d, o) : 0;

        if (!all)
            continue;
        printf("%-10s %8zu %8zu %8zu   %.3g%%, %.3g%%, %.3g%%", need_order_names[o], all[0],
               all[d->n_questions / 2], all[d->n_questions - 1], 100 * part(d, all[0]),
               100 * part(d, all[d->n_questions / 2]), 100 * part(d, all[d->n_questions - 1]));
        if (again)
            printf("; %zu of %zu changed again with more", again, d->n_questions);
        putchar('\n');
        free(all);
    }
}

int need_print_table(const need *n)
{
    for (size_t i = 0; i < n->n_docs; i++) {
        const need_doc *d = &n->docs[i];

        if (i)
            putchar('\n');
        print_heading(n, d);
        print_answers(n, d);
        print_unions(n, d);
        print_each(n, d);
    }
    printf("\nThese figures hold for these questions and answers of this length; a later question "
           "can need\nwhat none of them needed. x best: the smallest set that was found as the "
           "unit. for good: with more\nspans an answer changed again; from here on none was seen "
           "to.\n");
    return cli_finish_stdout();
}

/* ------------------------------------------------------------------ for programs */

static json_t *all_found_json(const need *n, const need_doc *d, const need_found *found)
{
    json_t *j = json_object();

    for (size_t o = 0; o < NEED_ORDERS; o++) {
        const need_found *f = &found[o];

        if (n->o.use[o])
            json_object_set_new(j, need_order_names[o],
                                json_pack("{s:I,s:f,s:f,s:b,s:I,s:I}", "spans", (json_int_t)f->kept,
                                          "part", part(d, f->kept), "bytes",
                                          (double)f->kept * span_bytes(n), "monotone",
                                          f->again == 0, "again_at_spans", (json_int_t)f->again,
                                          "stable_spans", (json_int_t)f->stable));
    }
    return j;
}

static json_t *question_json(const need *n, const need_doc *d, const need_question *q)
{
    json_t *j = all_found_json(n, d, q->found);
    json_t *ids = json_array();
    json_t *margins = json_array();

    for (size_t i = 0; i < q->n_answer; i++) {
        json_array_append_new(ids, json_integer(q->answer[i]));
        json_array_append_new(margins, json_real((double)q->margins[i]));
    }
    json_object_set_new(j, "answer", answer_text(n, q));
    json_object_set_new(j, "answer_ids", ids);
    json_object_set_new(j, "margins", margins);
    return j;
}

static json_t *doc_json(const need *n, const need_doc *d)
{
    json_t *j = json_pack("{s:I,s:I,s:I,s:I,s:I}", "line", (json_int_t)d->line, "tokens",
                          (json_int_t)d->ids.n, "spans", (json_int_t)d->n_spans, "sure_tokens",
                          (json_int_t)d->n_sure, "runs", (json_int_t)d->n_runs);
    json_t *unions = json_array();
    json_t *questions = json_array();
    json_t *places = json_array();

    for (size_t i = 0; i < d->n_unions; i++) {
        json_t *u = all_found_json(n, d, d->unions[i].found);
        json_t *set = json_array();

        for (size_t k = 0; k < d->unions[i].best; k++)
            json_array_append_new(set, json_integer(d->unions[i].best_set[k]));
        json_object_set_new(u, "questions", json_integer((json_int_t)d->unions[i].k));
        json_object_set_new(u, "best_spans", json_integer((json_int_t)d->unions[i].best));
        json_object_set_new(u, "best_set", set);
        json_array_append_new(unions, u);
    }
    for (size_t q = 0; q < d->n_questions; q++)
        json_array_append_new(questions, question_json(n, d, &d->questions[q]));
    for (size_t i = 0; i < d->places.n; i++)
        json_array_append_new(places, json_pack("[I,I]", (json_int_t)d->places.items[i].begin,
                                                (json_int_t)d->places.items[i].end));
    json_object_set_new(j, "unions", unions);
    json_object_set_new(j, "questions", questions);
    json_object_set_new(j, "needles", places);
    return j;
}

int need_print_json(const need *n)
{
    json_t *root = json_object();
    json_t *docs = json_array();

    json_object_set_new(root, "model", cli_json_text(n->o.words[0], strlen(n->o.words[0])));
    json_object_set_new(root, "items_file", cli_json_text(n->o.words[1], strlen(n->o.words[1])));
    json_object_set_new(root, "span_tokens", json_integer(n->info.span_tokens));
    json_object_set_new(root, "span_bytes", cli_json_rate(span_bytes(n)));
    json_object_set_new(root, "const_bytes", json_integer((json_int_t)n->cost.const_bytes));
    json_object_set_new(root, "margin", json_real((double)n->o.margin));
    json_object_set_new(root, "epsilon", json_real((double)n->o.epsilon));
    json_object_set_new(root, "generate", json_integer(n->o.generate));
    for (size_t i = 0; i < n->n_docs; i++)
        json_array_append_new(docs, doc_json(n, &n->docs[i]));
    json_object_set_new(root, "documents", docs);
    json_object_set_new(root, "seconds", json_real(n->seconds));
    return cli_json_print(root);
}

/* ------------------------------------------------------------------ for eyes */

typedef struct curve {
    double *x;
    double *y;
    size_t  n;
} curve;

static int make_curve(curve *c, size_t cap)
{
    c->x = malloc((cap + 1) * sizeof *c->x);
    c->y = malloc((cap + 1) * sizeof *c->y);
    return c->x && c->y;
}

/* Part of the cache against the number of questions, mean over documents that have as many. */
static int union_curve(const need *n, size_t o, curve *c)
{
    if (!make_curve(c, n->docs[0].n_unions))
        return 0;
    for (size_t i = 0; i < n->docs[0].n_unions; i++) {
        const size_t k = n->docs[0].unions[i].k;
        double       sum = 0;
        size_t       n_docs = 0;

        for (size_t d = 0; d < n->n_docs; d++)
            for (size_t u = 0; u < n->docs[d].n_unions; u++)
                if (n->docs[d].unions[u].k == k) {
                    sum += part(&n->docs[d], n->docs[d].unions[u].found[o].kept);
                    n_docs++;
                }
        c->x[c->n] = (double)k;
        c->y[c->n++] = 100 * sum / (double)n_docs;
    }
    return 1;
}

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;

    return *x < *y ? -1 : *x > *y;
}

/* Questions of all documents that come out right with a part of the cache. */
static int each_curve(const need *n, size_t o, curve *c)
{
    size_t total = 0;

    for (size_t d = 0; d < n->n_docs; d++)
        total += n->docs[d].n_questions;
    if (!make_curve(c, total))
        return 0;
    for (size_t d = 0; d < n->n_docs; d++)
        for (size_t q = 0; q < n->docs[d].n_questions; q++)
            c->x[c->n++] = 100 * part(&n->docs[d], n->docs[d].questions[q].found[o].kept);
    qsort(c->x, c->n, sizeof *c->x, compare_doubles);
    for (size_t i = 0; i < c->n; i++)
        c->y[i] = 100 * (double)(i + 1) / (double)total;
    return 1;
}

static int fill_panel(const need *n, int (*fill)(const need *, size_t, curve *), curve *curves,
                      cli_series *series, size_t *n_series)
{
    for (size_t o = 0; o < NEED_ORDERS; o++) {
        if (!n->o.use[o])
            continue;
        if (!fill(n, o, &curves[o]))
            return cli_no_memory();
        series[(*n_series)++] =
            (cli_series){need_order_names[o], curves[o].x, curves[o].y, curves[o].n};
    }
    return CLI_OK;
}

int need_write_plot(const need *n)
{
    curve      curves[2 * NEED_ORDERS];
    cli_series series[2][NEED_ORDERS];
    cli_panel  panels[2];
    int        rc;

    memset(curves, 0, sizeof curves);
    memset(panels, 0, sizeof panels);
    panels[0] = (cli_panel){.title = "What must stay for the first K questions together",
                            .x_label = "questions",
                            .y_label = "part of the cache, %",
                            .series = series[0],
                            .log_x = 1};
    panels[1] = (cli_panel){.title = "Each question alone",
                            .x_label = "part of the cache, %",
                            .y_label = "questions whose answer stays, %",
                            .series = series[1]};
    if ((rc = fill_panel(n, union_curve, curves, series[0], &panels[0].n_series)) == CLI_OK &&
        (rc = fill_panel(n, each_curve, curves + NEED_ORDERS, series[1], &panels[1].n_series)) ==
            CLI_OK)
        rc = cli_plot(n->o.plot, "Bytes you still need", panels, 2);
    for (size_t i = 0; i < 2 * NEED_ORDERS; i++) {
        free(curves[i].x);
        free(curves[i].y);
    }
    return rc;
}
