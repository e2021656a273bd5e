/* Two runs side by side, and what the comparing functions share.
 *
 * A comparison is a list of rows (one token each: 48 bytes) and a list of greedy runs. Figures are
 * made from the lists when they are asked for, in the order of the rows, so they do not depend on
 * anything else.
 *
 * (M1) rows[0 .. n_rows) and greedy[0 .. n_greedy) are whole; a call that fails adds nothing.
 * (M2) `run` is that of the next row; has_rows: it has rows already. */
#ifndef KVI_COMPARE_H
#define KVI_COMPARE_H

#include "base/alloc.h"

typedef struct kvi_greedy { /* two free continuations of one prompt */
    uint64_t n_same;        /* tokens in front of the first different one */
    uint64_t n_tokens;
} kvi_greedy;

struct kvcsa_compare {
    kvcsa_allocator allocator;
    kvi_buf         rows;   /* kvcsa_compare_row */
    size_t          n_rows;
    kvi_buf         greedy; /* kvi_greedy */
    size_t          n_greedy;
    uint32_t        run;    /* (M2) */
    int             has_rows;
};

/* Everything of a row but position and run, from logits f32 [n].
 *
 *   kl = sum p_ref (log p_ref - log p_test)
 *      = sum e (a - b) / sum e - (ln sum e - ln sum f)
 *
 * with a = ref - max ref, b = test - max test, e = exp a, f = exp b, all in double and in the order
 * of the ids; exp and ln are those of base/fmath.h. Equal logits give 0 exactly, term by term. A
 * sum below 0 can only be rounding: from -1e-12 on it is 0.
 * ERR_ARG NaN or +infinity, no token that can be, next_token out of range. */
kvcsa_status kvi_compare_logits(int32_t next_token, const float *ref, const float *test, uint32_t n,
                                kvcsa_compare_row *row, kvcsa_error *err);

/* The value of rank ceil(n x part / whole) of n ascending ones, n >= 1: percentiles by nearest
 * rank. */
double kvi_nearest_rank(const double *ascending, size_t n, uint32_t part, uint32_t whole);

#endif
