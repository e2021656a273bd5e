/* exp, log1p, sin, cos and pow of our own: libm picks its variant by CPU, which would make
 * results depend on the machine. Computed in double with plain operations in a fixed order,
 * rounded once to float; error below 0.51 ulp of the float result for the ranges we use. NaN
 * gives NaN. */
#ifndef KVI_FMATH_H
#define KVI_FMATH_H

float  kvi_expf(float x);                          /* overflow = +inf, underflow = 0 or a
                                                    * subnormal */
float  kvi_log1pf(float x);                        /* x > -1 */
void   kvi_sincosf(float x, float *s, float *c);   /* |x| <= 2^24 */
float  kvi_powf(float base, float e);              /* base > 0 */
double kvi_exp(double x);
double kvi_ln(double x);                           /* natural logarithm, x > 0 (kvi_log is the
                                                    * log hook, base/log.h) */
float  kvi_sigmoidf(float x);                      /* 1 / (1 + e^-x) */
float  kvi_sqrtf(float x);                         /* IEEE square root */

#endif
