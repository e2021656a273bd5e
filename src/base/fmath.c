#include "base/fmath.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Everything is computed in double and rounded once, so the float functions need a relative error
 * well below 2^-31 (0.01 ulp of a float is 2^-30.6) before that rounding; the polynomials below are
 * Taylor series cut where the first dropped term is smaller than that by a wide margin. No table
 * and no fused operation: the same bits on every IEEE machine. */
#if defined(__FAST_MATH__)
#error "fmath.c needs IEEE arithmetic"
#endif
_Static_assert(FLT_EVAL_METHOD == 0, "double must be evaluated as double");

/* ln 2 in two parts: HI has no bit below 2^-32, so k * HI is exact for every exponent k of a
 * double. */
#define LN2_HI 0x1.62e42fee00000p-1
#define LN2_LO 0x1.a39ef35793c76p-33
#define INV_LN2 0x1.71547652b82fep+0

/* pi / 2 in three parts: PIO2_1 ends at 2^-28 (29 bits), PIO2_2 at 2^-57 (at most 29 bits), so a
 * multiple of either is exact below 2^24 times; the last holds the following 53 bits. */
#define PIO2_1 0x1.921fb54000000p+0
#define PIO2_2 0x1.10b4610000000p-30
#define PIO2_3 0x1.a62633145c06ep-58
#define TWO_OVER_PI 0x1.45f306dc9c883p-1
#define SINCOS_LIMIT 0x1p24f

/* exp is 0 or +inf beyond these: below 2^-1075, above 2^1024 */
#define EXP_LOW (-745.14)
#define EXP_HIGH 709.79

static double from_bits(uint64_t u)
{
    double v;

    memcpy(&v, &u, sizeof v);
    return v;
}

static uint64_t to_bits(double v)
{
    uint64_t u;

    memcpy(&u, &v, sizeof u);
    return u;
}

/* 2^k, -1022 <= k <= 1023 */
static double pow2(int32_t k)
{
    return from_bits((uint64_t)(k + 1023) << 52);
}

/* x rounded to the nearest whole number, halves away from 0; by a cast, since rint() would follow
 * the host's rounding mode. |x| < 2^30. */
static int32_t nearest(double x)
{
    return (int32_t)(x < 0 ? x - 0.5 : x + 0.5);
}

/* x = k ln 2 + r, |r| <= 0.347 */
static double reduce_exp(double x, int32_t *k)
{
    *k = nearest(x * INV_LN2);
    return (x - (double)*k * LN2_HI) - (double)*k * LN2_LO;
}

/* y * 2^k with one rounding: the first factor leaves a normal number, so it is exact. */
static double scale(double y, int32_t k)
{
    if (k > 1023)
        return y * 0x1p1023 * pow2(k - 1023);
    if (k < -1022)
        return y * 0x1p-900 * pow2(k + 900);
    return y * pow2(k);
}

double kvi_exp(double x)
{
    int32_t k = 0;
    double  r = 0;
    double  y = 0;

    if (x != x)
        return x;
    if (x > EXP_HIGH)
        return HUGE_VAL;
    if (x < EXP_LOW)
        return 0;
    r = reduce_exp(x, &k);
    /* r^n / n! up to n = 13; the next is 4e-18 */
    y = 1.0 / 6227020800.0;
    y = y * r + 1.0 / 479001600.0;
    y = y * r + 1.0 / 39916800.0;
    y = y * r + 1.0 / 3628800.0;
    y = y * r + 1.0 / 362880.0;
    y = y * r + 1.0 / 40320.0;
    y = y * r + 1.0 / 5040.0;
    y = y * r + 1.0 / 720.0;
    y = y * r + 1.0 / 120.0;
    y = y * r + 1.0 / 24.0;
    y = y * r + 1.0 / 6.0;
    y = y * r + 0.5;
    y = y * r * r + r + 1.0;
    return scale(y, k);
}

/* exp for a result that is rounded to float: r^n / n! up to n = 9, the next is 7e-12 of the result
 * = 0.0001 ulp. In pairs, so that the multiplications do not all wait for each other. */
static double exp_short(double x)
{
    int32_t k = 0;
    double  r = 0;
    double  r2 = 0;
    double  r4 = 0;
    double  low = 0;
    double  high = 0;

    if (x != x)
        return x;
    if (x > EXP_HIGH)
        return HUGE_VAL;
    if (x < EXP_LOW)
        return 0;
    r = reduce_exp(x, &k);
    r2 = r * r;
    r4 = r2 * r2;
    low = (1.0 + r) + (0.5 + r * (1.0 / 6.0)) * r2;
    high = (1.0 / 24.0 + r * (1.0 / 120.0)) + (1.0 / 720.0 + r * (1.0 / 5040.0)) * r2 +
           (1.0 / 40320.0 + r * (1.0 / 362880.0)) * r4;
    return scale(low + high * r4, k);
}

float kvi_expf(float x)
{
    return (float)exp_short((double)x);
}

/* With x = 2^k m, sqrt(1/2) <= m < sqrt(2), f = m - 1 and s = f / (2 + f): log m = 2 atanh s = 2 s
 * + s R, R = 2/3 s^2 + 2/5 s^4 + ...; since 2 s = f - s f, that is f - s (f - R), and with h = f^2
 * / 2, s f = h - s h: the form f - (h - s (h + R)) adds the small parts first. |s| <= 0.1716, so
 * the first dropped term of R, 2/23 s^22, is 1e-18. */
double kvi_ln(double x)
{
    uint64_t bits = 0;
    int32_t  k = 0;
    double   f = 0;
    double   s = 0;
    double   z = 0;
    double   h = 0;
    double   rest = 0;

    if (x != x || x == HUGE_VAL)
        return x;
    if (x <= 0)
        return x == 0 ? -HUGE_VAL : from_bits(0x7FF8000000000000u);
    if (x < 0x1p-1022) { /* subnormal */
        x = x * 0x1p54;
        k = -54;
    }
    bits = to_bits(x);
    k += (int32_t)(bits >> 52) - 1023;
    x = from_bits((bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u);
    if (x > 0x1.6a09e667f3bcdp+0) { /* sqrt 2 */
        x = x * 0.5;
        k++;
    }
    f = x - 1.0;
    s = f / (2.0 + f);
    z = s * s;
    h = 0.5 * f * f;
    rest = 2.0 / 21.0;
    rest = rest * z + 2.0 / 19.0;
    rest = rest * z + 2.0 / 17.0;
    rest = rest * z + 2.0 / 15.0;
    rest = rest * z + 2.0 / 13.0;
    rest = rest * z + 2.0 / 11.0;
    rest = rest * z + 2.0 / 9.0;
    rest = rest * z + 2.0 / 7.0;
    rest = rest * z + 2.0 / 5.0;
    rest = rest * z + 2.0 / 3.0;
    rest = rest * z;
    return (double)k * LN2_HI - ((h - (s * (h + rest) + (double)k * LN2_LO)) - f);
}

float kvi_log1pf(float x)
{
    double v = (double)x;

    /* 1 + v loses bits of a small v; there x - x^2/2 + x^3/3 - x^4/4 is enough: the next term is x
     * 2^-50. Written as a product so that -0 stays -0. At 2^-12 and above 1 + v is exact up to
     * 2^30, and a half ulp of a double off from there. */
    if (v > -0x1p-12 && v < 0x1p-12)
        return (float)(v * (1.0 - v * (0.5 - v * (1.0 / 3.0 - v * 0.25))));
    return (float)kvi_ln(1.0 + v);
}

/* Cody-Waite: x = k pi/2 + r, |r| <= pi/4. x - k PIO2_1 is exact (both are multiples of 2^-28 or k
 * is 0, and the difference is below 1); the next difference is exact wherever r is small, since it
 * is a multiple of 2^-57. No float up to 2^24 is nearer to a multiple of pi/2 than 2^-28 (k = 161),
 * far above the 2^-87 that the last product rounds away. */
static double reduce_angle(double x, int32_t *k)
{
    double n = 0;

    *k = nearest(x * TWO_OVER_PI);
    n = (double)*k;
    return ((x - n * PIO2_1) - n * PIO2_2) - n * PIO2_3;
}

void kvi_sincosf(float x, float *s, float *c)
{
    int32_t k = 0;
    double  r = 0;
    double  z = 0;
    double  sine = 0;
    double  cosine = 0;

    if (!(x >= -SINCOS_LIMIT && x <= SINCOS_LIMIT)) { /* no reduction that we could stand for */
        *s = *c = (float)from_bits(0x7FF8000000000000u);
        return;
    }
    r = reduce_angle((double)x, &k);
    z = r * r;
    /* Taylor up to r^13 and r^14: the next terms are 2e-14 and 1e-15. r times the series, so that
     * -0 stays -0. */
    sine = 1.0 / 6227020800.0;
    sine = sine * z - 1.0 / 39916800.0;
    sine = sine * z + 1.0 / 362880.0;
    sine = sine * z - 1.0 / 5040.0;
    sine = sine * z + 1.0 / 120.0;
    sine = sine * z - 1.0 / 6.0;
    sine = r * (1.0 + sine * z);
    cosine = -1.0 / 87178291200.0;
    cosine = cosine * z + 1.0 / 479001600.0;
    cosine = cosine * z - 1.0 / 3628800.0;
    cosine = cosine * z + 1.0 / 40320.0;
    cosine = cosine * z - 1.0 / 720.0;
    cosine = cosine * z + 1.0 / 24.0;
    cosine = cosine * z - 0.5;
    cosine = 1.0 + cosine * z;

    /* One quarter turn makes (sin, cos) into (cos, -sin), two change both signs; in two's complement
     * the low bits of a negative k count the same way. */
    if (k & 1) {
        r = sine;
        sine = cosine;
        cosine = -r;
    }
    *s = (float)(k & 2 ? -sine : sine);
    *c = (float)(k & 2 ? -cosine : cosine);
}

float kvi_powf(float base, float e)
{
    if (base != base || e != e)
        return base + e;
    if (base == 1.0f || e == 0.0f) /* also where the product below would be 0 * inf */
        return 1.0f;
    return (float)kvi_exp((double)e * kvi_ln((double)base));
}

float kvi_sigmoidf(float x)
{
    return (float)(1.0 / (1.0 + exp_short(-(double)x)));
}

float kvi_sqrtf(float x)
{
    return sqrtf(x); /* one of the basic operations of IEEE 754: exact to the last bit everywhere */
}
