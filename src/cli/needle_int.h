/* What the files of `kvcsa needle` share. */
#ifndef KVCSA_CLI_NEEDLE_INT_H
#define KVCSA_CLI_NEEDLE_INT_H

#include "items.h"

#define NEEDLE_MAX_RUNS (CLI_MAX_LIST + 2u) /* the reference, the settings, the control */

typedef struct needle_options {
    const char *words[2]; /* MODEL, ITEMS */
    const char *ref;
    cli_list    sets;
    uint64_t    limit;    /* items; 0 = all */
    cli_pool    computer;
    int         special;
    int         greedy;
    int         json;
    int         quiet;
} needle_options;

typedef struct needle_outcome { /* of one item under one setting */
    int    has;            /* all rows of logits are there */
    int    right;          /* every token of the answer is the likeliest behind those before it */
    double log_prob;       /* of the answer, nat */
    double first_log_prob; /* of its first token */
} needle_outcome;

typedef struct needle_item {
    size_t         line;
    char          *kind;      /* may be NULL */
    double         depth;     /* NaN = not known */
    uint64_t       distance;  /* tokens from the needle to the answer; UINT64_MAX = not known */
    cli_ids        tokens;    /* prompt and answer */
    size_t         n_prompt;
    int32_t        absent;    /* first token of the answer without the needle; -1 = not said */
    item_place     place;     /* of the needle */
    needle_outcome outcomes[NEEDLE_MAX_RUNS];
    int            absent_right; /* the control's likeliest first token is `absent` */
    int32_t       *generated; /* i32 [n_runs, answer tokens], with --greedy */
} needle_item;

typedef struct needle_run {   /* run 0 is the reference */
    const char *label;
    cli_setting how;
} needle_run;

typedef struct needle_sum {   /* of the items that have an outcome under both */
    size_t n;
    size_t ref_right;
    size_t right;
    size_t lost;              /* right under the reference alone */
    size_t found;             /* right under the setting alone */
    size_t n_missing;         /* items without all rows */
    double ref_log_prob;      /* sums */
    double log_prob;
    double ref_first;
    double first;
    double p;                 /* McNemar, exact */
} needle_sum;

typedef struct needle {
    needle_options   o;
    kvcsa_model     *model;
    kvcsa_model_info info;
    kvcsa_pool      *pool;
    needle_run       runs[NEEDLE_MAX_RUNS];
    size_t           n_runs;  /* without the control */
    int              has_control; /* some item says what happens without its needle */
    needle_item     *items;
    size_t           n_items;
    double           seconds;
} needle;

static inline size_t needle_answer_tokens(const needle_item *it)
{
    return it->tokens.n - it->n_prompt;
}

/* The control of this item: its needle is hidden. */
static inline int needle_is_controlled(const needle_item *it)
{
    return it->absent >= 0 && it->place.end > it->place.begin;
}

/* needle_items.c: reads and builds all items. */
int  needle_read_items(needle *n);
void needle_free_items(needle *n);

/* needle_run.c: runs all items under all settings. */
int needle_run_items(needle *n);

/* needle_print.c */
void needle_sum_up(const needle *n, size_t run, needle_sum *out);
int  needle_print_table(const needle *n);
int  needle_print_json(const needle *n);

#endif
