/* What the files of `kvcsa need` share. A span is what can be hidden at once. */
#ifndef KVCSA_CLI_NEED_INT_H
#define KVCSA_CLI_NEED_INT_H

#include "items.h"

#define NEED_MAX_UNIONS 16u
#define NEED_PROBES 4u

enum { /* orders in which spans are kept */
    NEED_HINDSIGHT, /* what the questions and answers themselves attended */
    NEED_MASS,      /* what attention received while the document was read */
    NEED_RECENT,    /* newest first */
    NEED_FIRST,     /* oldest first */
    NEED_ORDERS
};

typedef struct need_options {
    const char *words[2];   /* MODEL, ITEMS */
    const char *questions;  /* "1,4,16" */
    const char *plot;
    cli_list    by;
    uint64_t    limit;      /* documents; 0 = all */
    uint32_t    generate;   /* tokens of each answer */
    cli_pool    computer;
    float       margin;     /* nat */
    float       epsilon;
    int         prune;
    int         special;
    int         json;
    int         quiet;
    int         use[NEED_ORDERS];
    size_t      ks[NEED_MAX_UNIONS]; /* ascending */
    size_t      n_ks;
} need_options;

typedef struct need_found { /* how many spans have to stay */
    size_t kept;            /* the least that was found */
    size_t again;           /* the largest number of spans above `kept` that was tried and changed
                             * an answer all the same; 0 = none did */
    size_t stable;          /* no number of spans from here on that was tried changed one; `kept` if
                             * again is 0 */
} need_found;

typedef struct need_question {
    cli_ids    ids;
    int32_t   *answer;      /* i32 [n_answer]: the reference's */
    float     *margins;     /* f32 [n_answer]: logit of the best token less that of the second */
    size_t     n_answer;
    double    *mass;        /* f64 [n_spans]: share of its attention that spans received */
    uint32_t  *order;       /* u32 [n_spans]: by mass */
    need_found found[NEED_ORDERS];
} need_question;

typedef struct need_union { /* the first k questions together */
    size_t     k;
    need_found found[NEED_ORDERS];
    size_t     best;        /* the least of all orders, after leaving out with --prune */
    uint32_t  *best_set;    /* u32 [best]: these spans, the most important first */
} need_union;

typedef struct need_doc {
    size_t         line;
    cli_ids        ids;
    size_t         n_spans; /* whole ones; tokens behind them always stay */
    item_places    places;  /* of the needles, where it was built */
    need_question *questions;
    size_t         n_questions;
    uint32_t      *orders[NEED_ORDERS]; /* u32 [n_spans]; that of hindsight is of a union */
    need_union     unions[NEED_MAX_UNIONS];
    size_t         n_unions;
    size_t         n_sure;  /* answer tokens of all questions whose margin is above the limit */
    size_t         n_answer_tokens;
    size_t         n_runs;  /* questions that were run with something hidden */
} need_doc;

typedef struct need_job {   /* one question with some spans hidden */
    const uint8_t *visible; /* u8 [n_spans] */
    need_question *question;
    size_t         n_sure;  /* tokens of the answer that count */
    size_t         n_flips; /* of them: another token is likelier */
} need_job;

typedef struct need {
    need_options     o;
    kvcsa_model     *model;
    kvcsa_model_info info;
    kvcsa_pool      *pool;
    kvcsa_cost       cost;
    need_doc        *docs;
    size_t           n_docs;
    kvcsa_session   *base;  /* holds the document that is examined */
    cli_progress     progress;
    double           seconds;
} need;

extern const char *const need_order_names[NEED_ORDERS];

/* need_items.c */
int  need_read_items(need *n);
void need_free_items(need *n);

/* need_run.c: reads the document, lets every question be answered freely, and records what both
 * attended: mass f64 [n_spans] of the document. The caller releases n->base. */
int need_run_document(need *n, need_doc *d, double *mass);
/* Runs the questions of jobs with the reference's answers, and counts. */
int need_run_jobs(need *n, need_doc *d, need_job *jobs, size_t n_jobs);

/* need_find.c: all of one document. */
int need_examine(need *n, need_doc *d);

/* need_print.c */
int need_print_table(const need *n);
int need_print_json(const need *n);
int need_write_plot(const need *n);

#endif
