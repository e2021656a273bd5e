/* Private to compare*.c. */
#ifndef COMPARE_INT_H
#define COMPARE_INT_H

#include "compare.h"

enum { KIND_WINDOW, KIND_MAIN, KIND_IKEY, KIND_TOPK, KIND_ROUTER };
enum { VERDICT_UNJUSTIFIED, VERDICT_NEAR, VERDICT_FOLLOWS, VERDICT_HIDDEN };

typedef struct exception {
    int      kind;
    int      is_scale;
    uint32_t step;
    uint32_t layer;
    uint32_t pos;      /* token position */
    uint32_t at;       /* entry, or position again */
    uint32_t channel;  /* first of the group for a scale */
    float    scale;    /* codes: of the group */
    float    golden;   /* values on the stair */
    float    ours;
    double   value;    /* in front of the decision */
    double   distance; /* < 0 = unknown */
    int      verdict;
    int      is_root;  /* justified, and nothing before it can have moved it */
    int      firm;     /* nothing hidden can excuse it */
    char     note[96];
} exception;

typedef struct comparer {
    const compare_params *p;
    compare_totals       *t;
    const case_item      *c;
    exception            *ex; /* of case c */
    size_t                n_ex, cap_ex;
    uint32_t              lines;
    double                kl_exempt; /* sum over the exempt rows of case c */
    uint64_t              rows_exempt;
} comparer;

/* Values in front of a decision. */
typedef struct evidence {
    const float *row;
    uint32_t     width;
    int          from_ours;
} evidence;

/* Row of "window", "score" or "router" at a position (at = pos), or of "main" and "ikey" for an entry that ends at pos: in the
 * case itself, or in one that begins with the same tokens. 0 = found. */
int evidence_golden(const comparer *k, const char *kind, uint32_t layer, uint32_t at, uint32_t pos, evidence *e);
int evidence_ours(const comparer *k, const char *kind, uint32_t layer, uint32_t at, uint32_t pos, evidence *e);

void judge(comparer *k);                                    /* all of k->ex; sorts them */
int  find_hidden(const comparer *k, uint32_t pos, uint32_t below_layer, char *note, size_t n_note); /* 0 = found */
int  is_open(const comparer *k, uint32_t pos);              /* both tell their window rows and routers there */
int  top_set(const float *score, uint32_t n, uint32_t k, uint8_t *in); /* ties to the lower id; number taken */
const st_tensor *step_tensor(const st_file *f, const case_item *c, uint32_t step, const char *kind, int32_t layer);
double tolerance(const comparer *k, double value);

#endif
