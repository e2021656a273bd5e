/* Reader of the golden data's case files (JSON): which tokens, in which forwards. See test/golden/README.md.
 *
 * A file is an array of {"name", "ids", "steps", "round", "act_quant"}; a step is {"n", "hit", "decoder_replay", "taps", "pre",
 * "rows"}. Everything else is refused, as is a value out of range: a mistyped key must not turn into a weaker test. */
#ifndef CASES_H
#define CASES_H

#include <stddef.h>
#include <stdint.h>

typedef struct case_step {
    uint32_t  n;              /* rows: the next n tokens, >= 1 */
    int       decoder_replay; /* layers past the last owner run on the last window of rows only, and logits are of those */
    int       has_hit;        /* a new session adopts the entries below `hit` (even), then runs n rows */
    uint32_t  hit;
    int       taps;           /* selections are in the result file */
    int       pre;            /* so are the values in front of every decision */
    int       has_rows;       /* only these rows' logits were kept */
    uint32_t *rows;           /* ascending, below n */
    uint32_t  n_rows;
} case_step;

typedef struct case_item {
    char      *name;
    int32_t   *ids;           /* all >= 0 */
    uint32_t   n_ids;
    case_step *steps;
    uint32_t   n_steps;
    int        round_bf16;    /* "round": "bf16" (also when absent); 0 = "f32" */
    int        act_quant;
} case_item;

typedef struct case_list {
    case_item *items;
    uint32_t   n;
} case_list;

/* 0 = good; -1 = refused, with one line in err and *out empty. Steps stay inside the ids, and a hit inside what was run. */
int  cases_parse(const char *json, size_t n, case_list *out, char *err, size_t n_err);
int  cases_load(const char *path, case_list *out, char *err, size_t n_err);
void cases_free(case_list *list);

/* Position of the first row of step `i` (of the rows that its logits are for, n rows from there). */
uint32_t cases_step_start(const case_item *item, uint32_t i);

#endif
