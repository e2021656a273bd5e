/* Items under settings. kvcsa_compare_text feeds every setting the prompt and the right answer; the
 * rows that predict the answer's tokens say whether each is the likeliest. */
#include "needle_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_APPEND 128u /* of kvcsa_setting */
#define MAX_ONE_APPEND                                                                             \
    (1u << 14) /* tokens of a prompt that is one append: rows of logits are held
                                   * for so many */

typedef struct batch { /* settings that run side by side over one item */
    kvcsa_setting  ref;
    kvcsa_setting  tests[NEEDLE_MAX_RUNS];
    kvcsa_compare *compares[NEEDLE_MAX_RUNS];
    size_t         runs[NEEDLE_MAX_RUNS]; /* number of each in outcomes[] */
    size_t         n;
    uint64_t      *hidden; /* of the control; the reference's and the needle */
} batch;

typedef struct walk {
    const needle *n;
    cli_progress  progress;
    uint64_t      n_tokens; /* of what runs now, all settings together */
} walk;

/* ------------------------------------------------------------------ appends */

/* Tokens of an append that a setting asks for. Decoder replay has logits of the last window of an
 * append only, so a prompt is one append, as it is where a prompt is sent at once. */
static uint64_t append_of(const kvcsa_setting *s, const needle_item *it)
{
    if (s->append_tokens)
        return s->append_tokens;
    if (s->session->decoder_replay == KVCSA_DECODER_REPLAY_ON && it->n_prompt <= MAX_ONE_APPEND)
        return it->n_prompt;
    return 0;
}

/* Settings run side by side if their appends divide the largest: those that divide the reference's
 * together, the others each with its like. */
static uint64_t base_append(const needle *n, const needle_item *it)
{
    const uint64_t append = append_of(&n->runs[0].how.setting, it);

    return append ? append : DEFAULT_APPEND;
}

static uint64_t group_of(uint64_t append, uint64_t base)
{
    return append && base % append ? append : base;
}

/* ------------------------------------------------------------------ one batch */

static void free_batch(batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        kvcsa_compare_release(&b->compares[i]);
    free(b->hidden);
    memset(b, 0, sizeof *b);
}

static int add_test(batch *b, const kvcsa_setting *s, size_t run, uint64_t group)
{
    kvcsa_error err;

    b->tests[b->n] = *s;
    if (!s->append_tokens)
        b->tests[b->n].append_tokens = group;
    b->runs[b->n] = run;
    if (kvcsa_compare_create(NULL, &b->compares[b->n], &err) != KVCSA_OK)
        return cli_fail("compare", &err);
    b->n++;
    return CLI_OK;
}

/* The reference without the spans that the needle lies in. */
static int add_control(const needle *n, const needle_item *it, batch *b)
{
    kvcsa_setting  s = n->runs[0].how.setting;
    const uint64_t span = n->info.span_tokens;
    uint64_t      *end;

    if (!(b->hidden = malloc((s.n_hidden + 1) * 2 * sizeof *b->hidden)))
        return cli_no_memory();
    if (s.n_hidden)
        memcpy(b->hidden, s.hidden, s.n_hidden * 2 * sizeof *b->hidden);
    end = b->hidden + 2 * s.n_hidden++;
    end[0] = it->place.begin / span * span;
    end[1] = (it->place.end + span - 1) / span * span;
    s.hidden = b->hidden;
    return add_test(b, &s, n->n_runs, base_append(n, it));
}

/* All settings of one group; the control is in the reference's. */
static int fill_batch(const needle *n, const needle_item *it, uint64_t group, batch *b)
{
    const uint64_t base = base_append(n, it);
    int            rc = CLI_OK;

    b->ref = n->runs[0].how.setting;
    b->ref.append_tokens = append_of(&b->ref, it) ? base : group;
    for (size_t i = 1; i < n->n_runs && rc == CLI_OK; i++) {
        kvcsa_setting s = n->runs[i].how.setting;

        s.append_tokens = append_of(&s, it);
        if (group_of(s.append_tokens, base) == group)
            rc = add_test(b, &s, i, group);
    }
    if (rc == CLI_OK && group == base && needle_is_controlled(it))
        rc = add_control(n, it, b);
    return rc;
}

static int32_t on_progress(void *user, uint64_t n_done, uint64_t n_rows)
{
    walk *w = user;

    if (n_rows)
        cli_progress_update(&w->progress,
                            (uint64_t)((double)n_done / (double)n_rows * (double)w->n_tokens));
    return cli_interrupted();
}

/* ------------------------------------------------------------------ outcomes */

static void add_row(needle_outcome *o, int right, double log_prob)
{
    if (!o->has)
        o->first_log_prob = log_prob;
    o->right = (o->right || !o->has) && right;
    o->log_prob += log_prob;
    o->has = 1;
}

/* Rows of one comparison: the reference's and the setting's outcome. Both stay empty if one of the
 * rows is not there. */
static int take_rows(const needle *n, needle_item *it, size_t run, const kvcsa_compare *compare)
{
    const size_t      n_answer = needle_answer_tokens(it);
    needle_outcome    ref = {0};
    needle_outcome    test = {0};
    kvcsa_compare_row row;
    kvcsa_error       err;
    size_t            left = 0;

    for (size_t i = 0; i < n_answer; i++) {
        const size_t  position = it->n_prompt - 1 + i;
        const int32_t want = it->tokens.data[position + 1];

        if (kvcsa_compare_get_rows(compare, i, &row, 1, &left, &err) != KVCSA_OK)
            return cli_fail("compare", &err);
        if (!left || row.position != position)
            return CLI_OK;
        add_row(&ref, row.ref_top == want, (double)row.ref_log_prob);
        add_row(&test, row.test_top == want, (double)row.test_log_prob);
        if (run == n->n_runs && i == 0)
            it->absent_right = row.test_top == it->absent;
    }
    it->outcomes[0] = ref;
    it->outcomes[run] = test;
    return CLI_OK;
}

/* Continuations: [n_tests + 1, n_answer] of the library into [n_runs, n_answer] of the item. */
static int run_greedy(walk *w, needle_item *it, const batch *b)
{
    const kvcsa_compare_progress p = {on_progress, w};
    const size_t                 n_answer = needle_answer_tokens(it);
    const size_t                 bytes = n_answer * sizeof(int32_t);
    const size_t                 n_runs = w->n->n_runs + (size_t)w->n->has_control;
    int32_t                     *all = malloc((b->n + 1) * bytes);
    kvcsa_error                  err;
    int                          rc = CLI_OK;

    if (!it->generated)
        it->generated = calloc(n_runs, bytes);
    if (!all || !it->generated) {
        free(all);
        return cli_no_memory();
    }
    if (kvcsa_compare_greedy(&b->ref, b->tests, b->compares, b->n, it->tokens.data, it->n_prompt,
                             n_answer, all, &p, &err) != KVCSA_OK) {
        cli_progress_end(&w->progress);
        rc = cli_fail("needle", &err);
    } else {
        memcpy(it->generated, all, bytes);
        for (size_t i = 0; i < b->n; i++)
            memcpy(it->generated + b->runs[i] * n_answer, all + (i + 1) * n_answer, bytes);
    }
    free(all);
    return rc;
}

static int run_batch(walk *w, needle_item *it, const batch *b)
{
    const kvcsa_compare_progress p = {on_progress, w};
    kvcsa_error                  err;
    int                          rc = CLI_OK;

    w->n_tokens = it->tokens.n * (b->n + 1);
    if (kvcsa_compare_text(&b->ref, b->tests, b->compares, b->n, it->tokens.data, it->tokens.n,
                           it->n_prompt - 1, &p, &err) != KVCSA_OK) {
        cli_progress_end(&w->progress);
        return cli_fail("needle", &err);
    }
    w->progress.offset += w->n_tokens;
    for (size_t i = 0; i < b->n && rc == CLI_OK; i++)
        rc = take_rows(w->n, it, b->runs[i], b->compares[i]);
    if (rc == CLI_OK && w->n->o.greedy) {
        rc = run_greedy(w, it, b);
        w->progress.offset += w->n_tokens;
    }
    return rc;
}

/* ------------------------------------------------------------------ all of them */

/* Groups that the settings of this item fall into. */
static size_t list_groups(const needle *n, const needle_item *it, uint64_t *groups)
{
    const uint64_t base = base_append(n, it);
    size_t         n_groups = 0;

    if (needle_is_controlled(it))
        groups[n_groups++] = base;
    for (size_t i = 1; i < n->n_runs; i++) {
        const uint64_t g = group_of(append_of(&n->runs[i].how.setting, it), base);
        size_t         k = 0;

        while (k < n_groups && groups[k] != g)
            k++;
        if (k == n_groups)
            groups[n_groups++] = g;
    }
    return n_groups;
}

static int run_item(walk *w, needle_item *it)
{
    uint64_t     groups[NEEDLE_MAX_RUNS];
    const size_t n_groups = list_groups(w->n, it, groups);
    int          rc = CLI_OK;

    for (size_t g = 0; g < n_groups && rc == CLI_OK; g++) {
        batch b = {0};

        if ((rc = fill_batch(w->n, it, groups[g], &b)) == CLI_OK)
            rc = run_batch(w, it, &b);
        free_batch(&b);
    }
    return rc;
}

static uint64_t count_tokens(const needle *n)
{
    uint64_t total = 0;

    for (size_t i = 0; i < n->n_items; i++) {
        uint64_t     groups[NEEDLE_MAX_RUNS];
        const size_t n_groups = list_groups(n, &n->items[i], groups);
        const size_t n_tests = n->n_runs - 1 + (size_t)needle_is_controlled(&n->items[i]);

        total += n->items[i].tokens.n * (n_tests + n_groups) * (n->o.greedy ? 2 : 1);
    }
    return total;
}

int needle_run_items(needle *n)
{
    walk w = {.n = n};
    int  rc = CLI_OK;

    cli_progress_start(&w.progress, "needle", count_tokens(n), n->o.quiet);
    for (size_t i = 0; i < n->n_items && rc == CLI_OK; i++)
        rc = run_item(&w, &n->items[i]);
    cli_progress_end(&w.progress);
    n->seconds = (double)(cli_now_ns() - w.progress.started) / 1e9;
    return rc;
}
