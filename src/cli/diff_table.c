/* kvcsa diff for people: tables, and below them in words which settings changed answers. */
#include "diff_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LINE_WIDTH 100u

/* Three digits; what is exactly 0 is written as 0. */
static const char *figure(char *buf, double v)
{
    snprintf(buf, CLI_NUM, v == 0 ? "0" : "%.3g", v);
    return buf;
}

static const char *share(char *buf, uint64_t n, uint64_t of)
{
    char a[CLI_NUM];

    if (n == 0)
        return "0";
    snprintf(buf, 2 * CLI_NUM, "%s %.3g%%", cli_num(a, n), 100.0 * (double)n / (double)of);
    return buf;
}

static int label_width(const diff *d)
{
    size_t w = strlen("noise floor");

    for (size_t i = 0; i < d->n_tests; i++)
        if (strlen(d->tests[i].label) > w)
            w = strlen(d->tests[i].label);
    return w < 40 ? (int)w : 40;
}

static void print_heading(const diff *d)
{
    char a[CLI_NUM];
    char b[CLI_NUM];
    char c[CLI_NUM];

    printf("%s tokens of %s", cli_num(a, d->ids.n), d->o.file ? d->o.file : d->o.ids);
    if (d->o.skip)
        printf(" behind the first %s", cli_num(c, d->o.skip));
    printf(" in %zu window%s of %s", d->n_windows, d->n_windows == 1 ? "" : "s",
           cli_num(b, d->o.context));
    if (d->o.first)
        printf(", from position %s on", cli_num(c, d->o.first));
    printf("; reference: %s, %.10g B per token\n", d->ref.text, d->ref_rate);
}

static void print_kl(const diff *d, int width)
{
    char a[6][CLI_NUM];

    printf("\nKL divergence of the setting from the reference, nat\n");
    printf("%-*s %9s %10s %10s %10s %10s %10s  %-9s %s\n", width, "setting", "B/token", "mean",
           "median", "p99", "p99.9", "max", "at", "equal rows");
    for (size_t i = 0; i < d->n_tests; i++) {
        const diff_test            *t = &d->tests[i];
        const kvcsa_compare_result *r = &t->result;
        char                        at[CLI_NUM] = "-";
        char                        equal[2 * CLI_NUM] = "all";

        if (r->kl_max > 0)
            snprintf(at, sizeof at, "%u:%llu", r->kl_max_run,
                     (unsigned long long)r->kl_max_position);
        if (r->n_equal_rows < r->n_rows)
            share(equal, r->n_equal_rows, r->n_rows);
        if (r->n_equal_rows == 0)
            snprintf(equal, sizeof equal, "0");
        printf("%-*s %9.4g %10s %10s %10s %10s %10s  %-9s %s\n", width, t->label, t->rate,
               figure(a[0], r->kl_mean), figure(a[1], r->kl_median), figure(a[2], r->kl_p99),
               figure(a[3], r->kl_p999), figure(a[4], r->kl_max), at, equal);
    }
}

static void print_flips(const diff *d, int width)
{
    char a[CLI_NUM];
    char b[3][2 * CLI_NUM];

    printf("\nRows whose likeliest token is another one; bits per byte of the text\n");
    printf("%-*s %10s %14s %14s %14s %10s %10s\n", width, "setting", "rows", "flips",
           "margin > 0.1", "margin > 1", "reference", "setting");
    for (size_t i = 0; i < d->n_tests; i++) {
        const diff_test            *t = &d->tests[i];
        const kvcsa_compare_result *r = &t->result;

        printf("%-*s %10s %14s %14s %14s %10.4f %10.4f\n", width, t->label, cli_num(a, r->n_rows),
               share(b[0], r->n_flips, r->n_rows), share(b[1], r->n_flips_01, r->n_margin_01),
               share(b[2], r->n_flips_10, r->n_margin_10), t->ref_bits, t->test_bits);
    }
}

double diff_survival(const diff_test *t, uint64_t n)
{
    size_t alive = 0;

    for (size_t i = 0; i < t->n_same; i++)
        alive += t->same[i] >= n;
    return t->n_same ? (double)alive / (double)t->n_same : 1;
}

static void print_greedy(const diff *d, int width)
{
    const uint64_t after[] = {(d->o.greedy + 3) / 4, (d->o.greedy + 1) / 2, d->o.greedy};
    char           a[2 * CLI_NUM];

    printf("\nGreedy continuations of %llu prompts of %s tokens, %llu tokens each; part that is "
           "still the reference's\n",
           (unsigned long long)d->o.prompts, cli_num(a, d->o.prompt_tokens),
           (unsigned long long)d->o.greedy);
    printf("%-*s %14s %9s", width, "setting", "diverged", "first at");
    for (size_t k = 0; k < 3; k++) {
        snprintf(a, sizeof a, "after %llu", (unsigned long long)after[k]);
        printf(" %12s", a);
    }
    for (size_t i = 0; i < d->n_tests; i++) {
        const diff_test            *t = &d->tests[i];
        const kvcsa_compare_result *r = &t->result;

        char                        first[CLI_NUM] = "-";

        if (r->n_diverged)
            snprintf(first, sizeof first, "%llu", (unsigned long long)r->first_divergence);
        printf("\n%-*s %14s %9s", width, t->label, share(a, r->n_diverged, r->n_greedy), first);
        for (size_t k = 0; k < 3; k++)
            printf(" %11.3g%%", 100 * diff_survival(t, after[k]));
    }
    putchar('\n');
}

/* ------------------------------------------------------------------ in words */

enum { /* what a setting did to the answers, from nothing to much */
    SAME_BITS,
    SAME_ANSWERS,
    NEAR_TIES,
    CHANGED,
    N_GRADES
};

static int grade(const diff_test *t)
{
    const kvcsa_compare_result *r = &t->result;

    if (r->n_equal_rows == r->n_rows && !r->n_diverged)
        return SAME_BITS;
    if (!r->n_flips && !r->n_diverged)
        return SAME_ANSWERS;
    return r->n_flips_01 ? CHANGED : NEAR_TIES;
}

/* One word and a blank, on the next line where it does not fit. */
static void put_word(size_t *column, const char *word)
{
    const size_t n = strlen(word);

    if (*column && *column + n > LINE_WIDTH) {
        printf("\n  ");
        *column = 2;
    }
    printf("%s%s", *column > 2 ? " " : "", word);
    *column += n + 1;
}

static void put_words(size_t *column, const char *text, const char *end)
{
    char word[256];

    for (size_t n; *text; text += n + (text[n] == ' ')) {
        n = strcspn(text, " ");
        snprintf(word, sizeof word, "%.*s%s", (int)n, text, text[n] ? "" : end);
        put_word(column, word);
    }
}

/* The setting's name and, where answers changed, how many. */
static void put_test(size_t *column, const diff_test *t, int last)
{
    const kvcsa_compare_result *r = &t->result;
    const double                part = 100.0 * (double)r->n_flips / (double)r->n_rows;
    char                        how_many[4 * CLI_NUM] = "";
    char                        a[CLI_NUM];

    if (grade(t) == CHANGED)
        snprintf(how_many, sizeof how_many, " (%.3g%%, %s)", part, cli_num(a, r->n_flips_10));
    else if (r->n_flips)
        snprintf(how_many, sizeof how_many, " (%.3g%%)", part);
    else if (r->n_diverged)
        snprintf(how_many, sizeof how_many, " (%llu of %llu continuations)",
                 (unsigned long long)r->n_diverged, (unsigned long long)r->n_greedy);
    put_words(column, t->label, *how_many ? "" : last ? "." : ",");
    put_words(column, how_many + (*how_many == ' '), last ? "." : ",");
}

static void print_words(const diff *d)
{
    static const char *const heads[N_GRADES] = {
        "Same bits as the reference:",
        "Other logits, but the same likeliest token everywhere:",
        "Another likeliest token, but only where the reference was undecided (margin up to 0.1 "
        "nat; part of all tokens):",
        "Changed answers (part of all tokens, and how many where the reference was sure, by more "
        "than 1 nat):",
    };

    if (d->tests[0].result.n_equal_rows < d->tests[0].result.n_rows)
        printf("\nThe noise floor is not 0: the reference differs from itself, and what is below "
               "that says nothing.\n");
    for (int g = 0; g < N_GRADES; g++) {
        size_t column = 0;
        size_t left = 0;

        for (size_t i = 1; i < d->n_tests; i++)
            left += grade(&d->tests[i]) == g;
        if (!left)
            continue;
        putchar('\n');
        put_words(&column, heads[g], "");
        for (size_t i = 1; i < d->n_tests; i++)
            if (grade(&d->tests[i]) == g)
                put_test(&column, &d->tests[i], --left == 0);
        putchar('\n');
    }
}

int diff_print_table(const diff *d)
{
    const int width = label_width(d);

    print_heading(d);
    print_kl(d, width);
    print_flips(d, width);
    if (d->o.greedy)
        print_greedy(d, width);
    print_words(d);
    return cli_finish_stdout();
}
