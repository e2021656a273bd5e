/* What `kvcsa needle` says: recall, what it depends on, and which items changed. */
#include "needle_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VALUES 12u  /* distances that are listed as they are; more are put into powers of two */
#define MAX_LISTED 20u  /* items in a list for people */
#define MAX_CONTROLS 4u /* so many are listed even if they are as they must be */
#define N_DEPTHS 10u

/* ------------------------------------------------------------------ sums */

/* Two-sided exact test of b against c discordant pairs: 2 x P(X <= min(b, c)), X binomial with
 * n = b + c and 1/2. 1 without any. */
static double mcnemar(size_t b, size_t c)
{
    const double n = (double)(b + c);
    const size_t k = b < c ? b : c;
    double       sum = 0;

    for (size_t i = 0; i <= k; i++)
        sum +=
            exp(lgamma(n + 1) - lgamma((double)i + 1) - lgamma(n - (double)i + 1) - n * log(2.0));
    return 2 * sum < 1 ? 2 * sum : 1;
}

void needle_sum_up(const needle *n, size_t run, needle_sum *out)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < n->n_items; i++) {
        const needle_outcome *ref = &n->items[i].outcomes[0];
        const needle_outcome *o = &n->items[i].outcomes[run];

        if (!o->has) {
            out->n_missing++;
            continue;
        }
        out->n++;
        out->ref_right += (size_t)ref->right;
        out->right += (size_t)o->right;
        out->lost += ref->right && !o->right;
        out->found += !ref->right && o->right;
        out->ref_log_prob += ref->log_prob;
        out->log_prob += o->log_prob;
        out->ref_first += ref->first_log_prob;
        out->first += o->first_log_prob;
    }
    out->p = mcnemar(out->lost, out->found);
}

static double mean(double sum, size_t n)
{
    return n ? sum / (double)n : (double)NAN;
}

/* ------------------------------------------------------------------ bins */

typedef struct bin { /* items with low <= x <= high */
    double low, high;
    size_t n;
    size_t right[NEEDLE_MAX_RUNS];
    size_t with[NEEDLE_MAX_RUNS]; /* items that have an outcome */
} bin;

typedef struct bins {
    bin    items[80];
    size_t n;
} bins;

/* Where an item stands; NaN = not known. */
typedef double (*place_fn)(const needle_item *it);

static double distance_of(const needle_item *it)
{
    return it->distance == UINT64_MAX ? (double)NAN : (double)it->distance;
}

static double depth_of(const needle_item *it)
{
    return it->depth;
}

static void count_item(const needle *n, const needle_item *it, bin *b)
{
    b->n++;
    for (size_t i = 0; i < n->n_runs; i++) {
        b->with[i] += (size_t)it->outcomes[i].has;
        b->right[i] += (size_t)(it->outcomes[i].has && it->outcomes[i].right);
    }
}

/* Bins stand in ascending order; a new one is put where it belongs. */
static bin *find_bin(bins *b, double low, double high)
{
    size_t k = 0;

    while (k < b->n && b->items[k].low < low)
        k++;
    if (k < b->n && b->items[k].low == low)
        return &b->items[k];
    if (b->n == sizeof b->items / sizeof *b->items)
        return NULL;
    memmove(&b->items[k + 1], &b->items[k], (b->n - k) * sizeof *b->items);
    b->n++;
    b->items[k] = (bin){.low = low, .high = high};
    return &b->items[k];
}

/* One bin for each value; 0 if there are more than MAX_VALUES. */
static int bin_by_value(const needle *n, place_fn place, bins *b)
{
    memset(b, 0, sizeof *b);
    for (size_t i = 0; i < n->n_items; i++) {
        const double x = place(&n->items[i]);

        if (!isnan(x))
            count_item(n, &n->items[i], find_bin(b, x, x));
        if (b->n > MAX_VALUES)
            return 0;
    }
    return 1;
}

static void bin_by_power(const needle *n, place_fn place, bins *b)
{
    memset(b, 0, sizeof *b);
    for (size_t i = 0; i < n->n_items; i++) {
        const double x = place(&n->items[i]);
        const double low = x >= 1 ? exp2(floor(log2(x))) : 0;
        bin         *to = isnan(x) ? NULL : find_bin(b, low, low > 0 ? 2 * low - 1 : 0);

        if (to)
            count_item(n, &n->items[i], to);
    }
}

static void bin_by_tenth(const needle *n, place_fn place, bins *b)
{
    memset(b, 0, sizeof *b);
    for (size_t i = 0; i < n->n_items; i++) {
        const double x = place(&n->items[i]);
        const double k = x < 1 ? floor(x * N_DEPTHS) : N_DEPTHS - 1;

        if (!isnan(x))
            count_item(n, &n->items[i], find_bin(b, k / N_DEPTHS, (k + 1) / N_DEPTHS));
    }
}

static void fill_bins(const needle *n, place_fn place, bins *b)
{
    if (bin_by_value(n, place, b))
        return;
    if (place == depth_of)
        bin_by_tenth(n, place, b);
    else
        bin_by_power(n, place, b);
}

/* ------------------------------------------------------------------ for people */

static int label_width(const needle *n)
{
    size_t w = strlen("setting");

    for (size_t i = 0; i < n->n_runs; i++)
        if (strlen(n->runs[i].label) > w)
            w = strlen(n->runs[i].label);
    return w < 40 ? (int)w : 40;
}

static void print_sums(const needle *n, int width)
{
    needle_sum s;

    printf("%-*s %12s %12s %12s %12s %6s %6s %10s\n", width, "setting", "right", "log p", "change",
           "1st token", "lost", "found", "McNemar p");
    for (size_t i = 0; i < n->n_runs; i++) {
        char right[2 * CLI_NUM];

        needle_sum_up(n, i, &s);
        snprintf(right, sizeof right, "%zu of %zu", s.right, s.n);
        printf("%-*s %12s", width, n->runs[i].label, right);
        if (s.n)
            printf(" %12.5g", s.log_prob / (double)s.n);
        if (s.n && i)
            printf(" %12.5g %12.5g %6zu %6zu %10.3g", (s.log_prob - s.ref_log_prob) / (double)s.n,
                   (s.first - s.ref_first) / (double)s.n, s.lost, s.found, s.p);
        if (i && s.n_missing)
            printf("  %zu without logits", s.n_missing);
        putchar('\n');
    }
    printf("log p: of the right answer, nat, mean over items; change: less the reference's, the "
           "whole\nanswer and its first token; lost, found: right under the reference alone, under "
           "the setting alone\n");
}

static void print_bins(const needle *n, const char *what, place_fn place)
{
    bins b;

    fill_bins(n, place, &b);
    if (!b.n)
        return;
    printf("\n%-16s %6s", what, "items");
    for (size_t i = 0; i < n->n_runs; i++)
        printf("  %*s", (int)(strlen(n->runs[i].label) > 8 ? strlen(n->runs[i].label) : 8),
               n->runs[i].label);
    for (size_t k = 0; k < b.n; k++) {
        char range[2 * CLI_NUM];

        if (b.items[k].low == b.items[k].high)
            snprintf(range, sizeof range, "%g", b.items[k].low);
        else
            snprintf(range, sizeof range, "%g-%g", b.items[k].low, b.items[k].high);
        printf("\n%-16s %6zu", range, b.items[k].n);
        for (size_t i = 0; i < n->n_runs; i++) {
            const int w = (int)(strlen(n->runs[i].label) > 8 ? strlen(n->runs[i].label) : 8);

            if (b.items[k].with[i])
                printf("  %*.3g%%", w - 1,
                       100 * (double)b.items[k].right[i] / (double)b.items[k].with[i]);
            else
                printf("  %*s", w, "-");
        }
    }
    putchar('\n');
}

static int differs(const needle_item *it, size_t run)
{
    return it->outcomes[run].has && it->outcomes[run].right != it->outcomes[0].right;
}

static void print_changes(const needle *n)
{
    size_t listed = 0;
    size_t all = 0;

    for (size_t k = 0; k < n->n_items; k++) {
        const needle_item *it = &n->items[k];

        for (size_t i = 1; i < n->n_runs; i++) {
            if (!differs(it, i) || all++ >= MAX_LISTED)
                continue;
            if (!listed++)
                printf("\nItems whose outcome differs\n");
            printf("  line %zu%s%s, %s: %s, log p %.4g, reference %.4g\n", it->line,
                   it->kind ? " " : "", it->kind ? it->kind : "", n->runs[i].label,
                   it->outcomes[i].right ? "found" : "lost", it->outcomes[i].log_prob,
                   it->outcomes[0].log_prob);
        }
    }
    if (all > listed)
        printf("  and %zu more; --json lists all\n", all - listed);
}

/* Items that were run without their needle, and of them: those that answered with it, those that
 * say without it what they must say then. */
static size_t count_controls(const needle *n, size_t *with, size_t *without)
{
    size_t n_controls = 0;

    *with = *without = 0;
    for (size_t k = 0; k < n->n_items; k++) {
        if (!needle_is_controlled(&n->items[k]))
            continue;
        n_controls++;
        *with += (size_t)n->items[k].outcomes[0].right;
        *without += (size_t)n->items[k].absent_right;
    }
    return n_controls;
}

/* Few controls are listed all, of many only those that failed. */
static void print_controls(const needle *n)
{
    size_t       with;
    size_t       without;
    size_t       listed = 0;
    const size_t n_controls = count_controls(n, &with, &without);

    if (!n_controls)
        return;
    printf("\nControl, the spans of the needle hidden and all else as in the reference: with it "
           "%zu of %zu\nare right, without it %zu of %zu say what they must say then\n",
           with, n_controls, without, n_controls);
    for (size_t k = 0; k < n->n_items && listed < MAX_LISTED; k++) {
        const needle_item *it = &n->items[k];

        if (!needle_is_controlled(it) ||
            (n_controls > MAX_CONTROLS && it->absent_right && it->outcomes[0].right))
            continue;
        printf("  line %zu%s%s: tokens %zu to %zu of %zu; log p %.4g, without them %.4g%s\n",
               it->line, it->kind ? " " : "", it->kind ? it->kind : "", it->place.begin,
               it->place.end, it->n_prompt, it->outcomes[0].log_prob,
               it->outcomes[n->n_runs].log_prob,
               it->absent_right ? "" : "; something else is said");
        listed++;
    }
}

/* ------------------------------------------------------------------ greedy */

static int same_tokens(const needle_item *it, size_t run)
{
    const size_t n = needle_answer_tokens(it);

    return memcmp(it->generated, it->generated + run * n, n * sizeof *it->generated) == 0;
}

static char *text_of(const needle *n, const int32_t *ids, size_t n_ids, size_t *n_bytes)
{
    char  *text = NULL;
    size_t cap = 0;

    *n_bytes = 0;
    if (kvcsa_model_detokenize(n->model, ids, n_ids, NULL, 0, &cap, NULL) != KVCSA_OK ||
        !(text = malloc(cap + 1)))
        return NULL;
    (void)kvcsa_model_detokenize(n->model, ids, n_ids, text, cap, n_bytes, NULL);
    return text;
}

static void print_text(const needle *n, const needle_item *it, size_t run)
{
    const size_t n_answer = needle_answer_tokens(it);
    size_t       n_bytes;
    char        *text = text_of(n, it->generated + run * n_answer, n_answer, &n_bytes);
    json_t      *quoted = text ? cli_json_text(text, n_bytes) : NULL;

    json_dumpf(quoted, stdout, JSON_ENCODE_ANY);
    json_decref(quoted);
    free(text);
}

static void print_greedy(const needle *n, int width)
{
    size_t listed = 0;

    if (!n->o.greedy)
        return;
    printf("\nGreedy answers, as long as the right one: the reference's tokens\n");
    for (size_t i = 1; i < n->n_runs; i++) {
        size_t same = 0;

        for (size_t k = 0; k < n->n_items; k++)
            same += (size_t)same_tokens(&n->items[k], i);
        printf("%-*s %zu of %zu\n", width, n->runs[i].label, same, n->n_items);
    }
    for (size_t k = 0; k < n->n_items; k++) {
        for (size_t i = 1; i < n->n_runs && listed < MAX_LISTED; i++) {
            if (same_tokens(&n->items[k], i))
                continue;
            printf("  line %zu: ", n->items[k].line);
            print_text(n, &n->items[k], 0);
            printf(", %s ", n->runs[i].label);
            print_text(n, &n->items[k], i);
            putchar('\n');
            listed++;
        }
    }
}

int needle_print_table(const needle *n)
{
    const int width = label_width(n);
    char      a[CLI_NUM];

    printf("%s item%s of %s; reference: %s\n\n", cli_num(a, n->n_items), n->n_items == 1 ? "" : "s",
           n->o.words[1], n->runs[0].label);
    print_sums(n, width);
    print_bins(n, "distance, tokens", distance_of);
    print_bins(n, "depth", depth_of);
    print_controls(n);
    print_changes(n);
    print_greedy(n, width);
    return cli_finish_stdout();
}

/* ------------------------------------------------------------------ for programs */

static json_t *number(double v)
{
    return isfinite(v) ? cli_json_rate(v) : json_null();
}

static json_t *bins_json(const needle *n, place_fn place, size_t run)
{
    json_t *list = json_array();
    bins    b;

    fill_bins(n, place, &b);
    for (size_t k = 0; k < b.n; k++)
        json_array_append_new(list, json_pack("{s:o,s:o,s:I,s:I}", "from", number(b.items[k].low),
                                              "to", number(b.items[k].high), "items",
                                              (json_int_t)b.items[k].with[run], "right",
                                              (json_int_t)b.items[k].right[run]));
    return list;
}

static json_t *run_json(const needle *n, size_t run)
{
    needle_sum s;

    needle_sum_up(n, run, &s);
    return json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "setting",
                     n->runs[run].label, "items", (json_int_t)s.n, "right", (json_int_t)s.right,
                     "lost", (json_int_t)s.lost, "found", (json_int_t)s.found, "without_logits",
                     (json_int_t)s.n_missing, "mcnemar_p", number(s.p), "bytes_per_token",
                     number(cli_setting_rate(&n->runs[run].how, 0)), "log_prob",
                     number(mean(s.log_prob, s.n)), "log_prob_change",
                     number(mean(s.log_prob - s.ref_log_prob, s.n)), "first_log_prob_change",
                     number(mean(s.first - s.ref_first, s.n)), "by_distance",
                     bins_json(n, distance_of, run), "by_depth", bins_json(n, depth_of, run));
}

static json_t *outcome_json(const needle *n, const needle_item *it, size_t run)
{
    const needle_outcome *o = &it->outcomes[run];
    const size_t          n_answer = needle_answer_tokens(it);
    json_t               *j = json_object();
    json_t               *ids;

    json_object_set_new(j, "right", o->has ? json_boolean(o->right) : json_null());
    json_object_set_new(j, "log_prob", o->has ? number(o->log_prob) : json_null());
    json_object_set_new(j, "first_log_prob", o->has ? number(o->first_log_prob) : json_null());
    if (!it->generated || run >= n->n_runs)
        return j;
    ids = json_array();
    for (size_t i = 0; i < n_answer; i++)
        json_array_append_new(ids, json_integer(it->generated[run * n_answer + i]));
    json_object_set_new(j, "generated", ids);
    return j;
}

static json_t *item_json(const needle *n, const needle_item *it)
{
    json_t *j = json_object();
    json_t *outcomes = json_array();

    json_object_set_new(j, "line", json_integer((json_int_t)it->line));
    json_object_set_new(j, "kind", it->kind ? json_string(it->kind) : json_null());
    json_object_set_new(j, "tokens", json_integer((json_int_t)it->n_prompt));
    json_object_set_new(j, "distance", number(distance_of(it)));
    json_object_set_new(j, "depth", number(it->depth));
    for (size_t i = 0; i < n->n_runs; i++)
        json_array_append_new(outcomes, outcome_json(n, it, i));
    json_object_set_new(j, "outcomes", outcomes);
    if (it->place.end > it->place.begin)
        json_object_set_new(
            j, "needle",
            json_pack("[I,I]", (json_int_t)it->place.begin, (json_int_t)it->place.end));
    if (needle_is_controlled(it)) {
        json_t *control = outcome_json(n, it, n->n_runs);

        json_object_set_new(control, "absent_right", json_boolean(it->absent_right));
        json_object_set_new(j, "control", control);
    }
    return j;
}

int needle_print_json(const needle *n)
{
    json_t *root = json_object();
    json_t *settings = json_array();
    json_t *items = json_array();

    json_object_set_new(root, "model", cli_json_text(n->o.words[0], strlen(n->o.words[0])));
    json_object_set_new(root, "items_file", cli_json_text(n->o.words[1], strlen(n->o.words[1])));
    json_object_set_new(root, "reference", json_string(n->runs[0].label));
    for (size_t i = 0; i < n->n_runs; i++)
        json_array_append_new(settings, run_json(n, i));
    json_object_set_new(root, "settings", settings);
    for (size_t k = 0; k < n->n_items; k++)
        json_array_append_new(items, item_json(n, &n->items[k]));
    json_object_set_new(root, "items", items);
    json_object_set_new(root, "seconds", json_real(n->seconds));
    return cli_json_print(root);
}
