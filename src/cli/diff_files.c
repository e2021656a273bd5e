/* kvcsa diff for programs and eyes: JSON, rows as CSV, the picture. */
#include "diff_int.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ KL by position */

typedef struct buckets {
    uint64_t width; /* positions in each */
    double   x[DIFF_BUCKETS]; /* their middle */
    double   kl[DIFF_BUCKETS]; /* mean */
    uint64_t rows[DIFF_BUCKETS];
    size_t   n;
} buckets;

/* Only those that have rows: decoder replay leaves gaps. */
static void fill_buckets(const diff *d, const diff_test *t, buckets *b)
{
    size_t n = 0;

    memset(b, 0, sizeof *b);
    b->width = (d->o.context + DIFF_BUCKETS - 1) / DIFF_BUCKETS;
    for (size_t i = 0; i < t->n_rows; i++) {
        const uint64_t k = t->rows[i].position / b->width;

        b->kl[k] += t->rows[i].kl;
        b->rows[k]++;
    }
    for (size_t k = 0; k < DIFF_BUCKETS; k++) {
        if (!b->rows[k])
            continue;
        b->x[n] = ((double)k + 0.5) * (double)b->width;
        b->kl[n] = b->kl[k] / (double)b->rows[k];
        b->rows[n] = b->rows[k];
        n++;
    }
    b->n = n;
}

/* ------------------------------------------------------------------ JSON */

/* JSON knows no infinity and no NaN. */
static json_t *number(double v)
{
    if (isnan(v))
        return json_null();
    return isinf(v) ? json_string(v > 0 ? "inf" : "-inf") : cli_json_rate(v);
}

static json_t *greedy_json(const diff *d, const diff_test *t)
{
    const kvcsa_compare_result *r = &t->result;
    json_t                     *j = json_object();
    json_t                     *same = json_array();
    json_t                     *survival = json_array();

    for (size_t i = 0; i < t->n_same; i++)
        json_array_append_new(same, json_integer((json_int_t)t->same[i]));
    for (uint64_t n = 1; n <= d->o.greedy; n++)
        json_array_append_new(survival, number(diff_survival(t, n)));
    json_object_set_new(j, "runs", json_integer((json_int_t)r->n_greedy));
    json_object_set_new(j, "diverged", json_integer((json_int_t)r->n_diverged));
    json_object_set_new(j, "first_divergence",
                        r->n_diverged ? json_integer((json_int_t)r->first_divergence)
                                      : json_null());
    json_object_set_new(j, "same_tokens", json_integer((json_int_t)r->n_greedy_same));
    json_object_set_new(j, "tokens", json_integer((json_int_t)r->n_greedy_tokens));
    json_object_set_new(j, "same", same);
    json_object_set_new(j, "survival", survival);
    return j;
}

static json_t *position_json(const diff *d, const diff_test *t)
{
    json_t *at = json_array();
    json_t *kl = json_array();
    json_t *rows = json_array();
    buckets b;

    fill_buckets(d, t, &b);
    for (size_t i = 0; i < b.n; i++) {
        json_array_append_new(at, number(b.x[i]));
        json_array_append_new(kl, number(b.kl[i]));
        json_array_append_new(rows, json_integer((json_int_t)b.rows[i]));
    }
    return json_pack("{s:o,s:o,s:o}", "position", at, "kl_mean", kl, "rows", rows);
}

static json_t *test_json(const diff *d, const diff_test *t)
{
    const kvcsa_compare_result *r = &t->result;
    json_t                     *j = json_object();
    const struct {
        const char *key;
        uint64_t    v;
    } counts[] = {
        {"rows", r->n_rows},
        {"equal_rows", r->n_equal_rows},
        {"flips", r->n_flips},
        {"margin_01_rows", r->n_margin_01},
        {"margin_01_flips", r->n_flips_01},
        {"margin_10_rows", r->n_margin_10},
        {"margin_10_flips", r->n_flips_10},
        {"text_rows", r->n_text_rows},
    };
    const struct {
        const char *key;
        double      v;
    } figures[] = {
        {"bytes_per_token", t->rate},
        {"kl_mean", r->kl_mean},
        {"kl_median", r->kl_median},
        {"kl_p99", r->kl_p99},
        {"kl_p999", r->kl_p999},
        {"kl_max", r->kl_max},
        {"max_difference", (double)r->max_difference},
        {"ref_nll", r->ref_nll},
        {"nll", r->test_nll},
        {"ref_bits_per_byte", t->ref_bits},
        {"bits_per_byte", t->test_bits},
    };

    json_object_set_new(j, "setting", json_string(t->how.text));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(j, counts[i].key, json_integer((json_int_t)counts[i].v));
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        json_object_set_new(j, figures[i].key, number(figures[i].v));
    json_object_set_new(j, "kl_max_window", json_integer(r->kl_max_run));
    json_object_set_new(j, "kl_max_position", json_integer((json_int_t)r->kl_max_position));
    json_object_set_new(j, "by_position", position_json(d, t));
    if (d->o.greedy)
        json_object_set_new(j, "greedy", greedy_json(d, t));
    return j;
}

int diff_print_json(const diff *d)
{
    const char *file = d->o.file ? d->o.file : d->o.ids;
    json_t     *root = json_object();
    json_t     *settings = json_array();

    json_object_set_new(root, "model", cli_json_text(d->o.model, strlen(d->o.model)));
    json_object_set_new(root, "text", cli_json_text(file, strlen(file)));
    json_object_set_new(root, "reference", json_string(d->ref.text));
    json_object_set_new(root, "reference_bytes_per_token", number(d->ref_rate));
    json_object_set_new(root, "skipped", json_integer((json_int_t)d->o.skip));
    json_object_set_new(root, "tokens", json_integer((json_int_t)d->ids.n));
    json_object_set_new(root, "windows", json_integer((json_int_t)d->n_windows));
    json_object_set_new(root, "context", json_integer((json_int_t)d->o.context));
    json_object_set_new(root, "first", json_integer((json_int_t)d->o.first));
    json_object_set_new(root, "seconds", json_real(d->seconds));
    json_object_set_new(root, "noise", test_json(d, &d->tests[0]));
    for (size_t i = 1; i < d->n_tests; i++)
        json_array_append_new(settings, test_json(d, &d->tests[i]));
    json_object_set_new(root, "settings", settings);
    return cli_json_print(root);
}

/* ------------------------------------------------------------------ rows */

int diff_write_rows(const diff *d)
{
    FILE *f = fopen(d->o.rows, "w");
    int   bad = !f;

    if (f) {
        fputs("setting,window,position,kl,margin,max_difference,ref_log_prob,log_prob,ref_top,top,"
              "equal\n",
              f);
        for (size_t i = 0; i < d->n_tests; i++)
            for (size_t k = 0; k < d->tests[i].n_rows; k++) {
                const kvcsa_compare_row *r = &d->tests[i].rows[k];

                fprintf(f, "%s,%u,%llu,%.9g,%.9g,%.9g,%.9g,%.9g,%d,%d,%u\n", d->tests[i].label,
                        r->run, (unsigned long long)r->position, r->kl, (double)r->margin,
                        (double)r->max_difference, (double)r->ref_log_prob,
                        (double)r->test_log_prob, r->ref_top, r->test_top, r->equal);
            }
        bad = ferror(f);
        bad |= fclose(f);
    }
    if (bad) {
        fprintf(stderr, "kvcsa: write %s: %s\n", d->o.rows, strerror(errno));
        return CLI_FAILED;
    }
    return CLI_OK;
}

/* ------------------------------------------------------------------ picture */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash && slash[1] ? slash + 1 : path;
}

int diff_write_plot(const diff *d)
{
    const char *file = d->o.file ? d->o.file : d->o.ids;
    const size_t from = d->n_tests > 1; /* the noise floor where there is nothing else */
    const double zero = 0;
    cli_series  lines[DIFF_MAX_TESTS];
    cli_series  points[DIFF_MAX_TESTS + 1];
    char        ref[128];
    size_t      n_points = 0;
    buckets    *b = calloc(d->n_tests, sizeof *b);
    char        title[256];
    char        n[CLI_NUM];
    int         rc;

    if (!b)
        return cli_no_memory();
    for (size_t i = from; i < d->n_tests; i++) {
        const diff_test *t = &d->tests[i];

        fill_buckets(d, t, &b[i]);
        lines[i - from] = (cli_series){t->label, b[i].x, b[i].kl, b[i].n};
        points[n_points++] = (cli_series){t->label, &t->rate, &t->result.kl_mean, 1};
    }
    snprintf(ref, sizeof ref, "%s (reference)", d->ref.text);
    points[n_points++] = (cli_series){ref, &d->ref_rate, &zero, 1};
    snprintf(title, sizeof title, "%s, %s tokens of %s, against: %s", base_name(d->o.model),
             cli_num(n, d->ids.n), base_name(file), d->ref.text);
    rc = cli_plot(d->o.plot, title,
                  (const cli_panel[]){
                      {.title = "Where in a window the answers drift",
                       .x_label = "position, tokens",
                       .y_label = "mean KL, nat",
                       .series = lines,
                       .n_series = d->n_tests - from,
                       .log_y = 1},
                      {.title = "What the bytes are worth",
                       .x_label = "bytes per token that stay in the cache",
                       .y_label = "mean KL, nat",
                       .series = points,
                       .n_series = n_points,
                       .log_y = 1,
                       .points = 1},
                  },
                  2);
    free(b);
    return rc;
}
