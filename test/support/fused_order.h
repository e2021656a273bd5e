/* Sums and functions of numerics 2 ("fused") in their stated order, naively with fmaf: what src/cpu/v16.h promises. */
#ifndef FUSED_ORDER_H
#define FUSED_ORDER_H

#include <stddef.h>

/* Sum of (a b) c, b NULL = 1: sixteen lanes, blocks of 1024, folds. */
float fused_sum(const float *a, const float *b, const float *c, size_t n);
float fused_rms_inverse(const float *x, size_t n, float eps);
float fused_exp(float x);
float fused_sigmoid(float x);
float fused_log1p(float x); /* x >= 0 */

#endif
