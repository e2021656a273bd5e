/* Holds one implementation's results against the golden ones (test/golden/README.md, "Comparing").
 *
 * What must be equal: cached bytes, selections, the likeliest token of every row, and logits within a bound. An exception is
 * justified if it is
 *   near      the value in front of the decision lies within eps x max(1, |value|) of the boundary that separates the two
 *             results (rounding to bf16 and code, scale, rank, router); a flipped scale counts once for its group
 *   follows   an earlier justified exception can have moved it: same or earlier position, and a lower layer (or an index key
 *             below a selection, or anything below the router, in one layer)
 *   hidden    not both files say what the window rows and routers were, and such a value is near a boundary within the last
 *             window of positions, in a lower layer
 * A row is exempt from the bound on logits when its history (its position or an earlier one) has a justified exception; such rows
 * are held to a mean KL, which a fault behind an exception would break. Random
 * weights amplify each of them into many that follow, so what is bounded is where they begin: rows with an exception that no
 * earlier one can have moved may be at most 2 in 100.
 *
 * Cases that round after every operator (bf16) flip some value in nearly every row, which no list of boundaries can show; they
 * are held to a mean KL instead. */
#ifndef COMPARE_H
#define COMPARE_H

#include "cases.h"
#include "st_io.h"

#include <stdint.h>
#include <stdio.h>

typedef struct compare_geometry {
    uint32_t n_layers, n_vocab, head_dim, index_dim, window, topk, n_experts, n_used;
    uint32_t candidate_blocks, candidate_block;
    int32_t  candidate_source; /* -1 = none */
    uint32_t ratio[256];       /* by layer */
    int32_t  kv_owner[256];    /* by layer, -1 = none */
} compare_geometry;

typedef struct compare_params {
    const st_file          *golden;
    const st_file          *ours;
    const st_file          *extra;     /* more golden values in front of decisions, or NULL */
    const case_list        *cases;
    const compare_geometry *geometry;
    double                  eps;       /* 1e-5 */
    double                  bound;     /* of logits, 1e-3 */
    double                  bound_kl;  /* mean over the rows of a bf16 case, 0.01; twice that above 100 rows */
    double                  bound_kl_exempt; /* mean over the exempt rows of a case, 0.001 */
    uint32_t                max_lines; /* of exceptions and faults; the rest is counted */
    int                     list_all;  /* also exceptions that follow from another */
    FILE                   *out;
} compare_params;

typedef struct compare_totals {
    uint32_t n_cases, n_skipped;
    uint64_t n_rows, n_argmax_equal, n_exempt, n_root; /* n_root: rows where an exception begins */
    uint64_t n_near, n_follows, n_hidden, n_unjustified, n_faults;
    double   max_diff;        /* of logits, rows that are not exempt */
    double   max_diff_exempt;
    double   mean_kl_bf16;    /* the worst case's; likewise below */
    double   mean_kl_exempt;
} compare_totals;

void compare_params_default(compare_params *p);
int  compare_geometry_load(const char *config_path, compare_geometry *g, char *err, size_t n_err); /* 0 = good */

/* Writes the report; 0 = equal but for justified exceptions, 1 = not. */
int compare_run(const compare_params *p, compare_totals *totals);

#endif
