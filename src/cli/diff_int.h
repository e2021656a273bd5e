/* What the files of `kvcsa diff` share. */
#ifndef KVCSA_CLI_DIFF_INT_H
#define KVCSA_CLI_DIFF_INT_H

#include "cli.h"

#define DIFF_MAX_TESTS (CLI_MAX_LIST + 1u)
#define DIFF_BUCKETS 32u /* parts of a window whose KL is averaged for the picture */

typedef struct diff_options {
    const char *model;
    const char *file;
    const char *ids;     /* file of token ids instead of a text */
    const char *ref;
    const char *plot;
    const char *rows;
    cli_list    sets;
    uint64_t    context; /* tokens of a window; 0 = 2048, or the model's limit */
    uint64_t    skip;    /* tokens of the text in front of those that run */
    uint64_t    limit;   /* tokens; 0 = all */
    uint64_t    first;
    uint64_t    greedy;  /* tokens of each continuation; 0 = none */
    uint64_t    prompts;
    uint64_t    prompt_tokens; /* 0 = context - greedy */
    cli_pool    computer;
    int         noise;   /* nothing but the noise floor */
    int         json;
    int         quiet;
} diff_options;

typedef struct diff_test { /* one setting against the reference */
    const char          *label;
    cli_setting          how;
    kvcsa_compare       *compare;
    kvcsa_compare_result result;
    kvcsa_compare_row   *rows;
    size_t               n_rows;
    uint64_t            *same;      /* u64 [n_same]: first divergence of each greedy run */
    size_t               n_same;
    double               rate;      /* bytes per token */
    double               ref_bits;  /* per byte of text; NaN = no rows with text */
    double               test_bits;
} diff_test;

typedef struct diff {
    diff_options     o;
    kvcsa_model     *model;
    kvcsa_model_info info;
    kvcsa_pool      *pool;
    kvcsa_pool      *noise_pool; /* other threads */
    cli_ids          ids;        /* text without start tokens */
    int32_t          bos;        /* in front of every window; -1 = none */
    size_t           n_windows;
    cli_setting      ref;
    double           ref_rate;   /* bytes per token */
    diff_test        tests[DIFF_MAX_TESTS]; /* the first: the reference against itself */
    size_t           n_tests;
    double           seconds;
} diff;

/* Text tokens of a window: its length without the start token. */
size_t diff_step(const diff *d);

/* diff_table.c: tables and a few sentences on stdout. CLI_OK or CLI_FAILED. */
int diff_print_table(const diff *d);

/* Part of n_runs greedy runs that are still the reference's after n tokens. */
double diff_survival(const diff_test *t, uint64_t n);

/* diff_files.c: CLI_OK or CLI_FAILED (a message was printed). */
int diff_print_json(const diff *d);
int diff_write_rows(const diff *d);
int diff_write_plot(const diff *d);

#endif
