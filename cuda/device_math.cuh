/* Functions of base/fmath.c on the device: double arithmetic in the same order, so the same bits (not those of a NaN). For values
 * of which there are few: angles, gates, router scores. Why the constants are what they are is said there. */
#ifndef KVI_DEVICE_MATH_CUH
#define KVI_DEVICE_MATH_CUH

#include "device.cuh"

KVI_DEV uint64_t kvi_bits64(double x)
{
#ifdef KVI_CUDA_EMULATED
    uint64_t u;
    std::memcpy(&u, &x, sizeof u);
    return u;
#else
    return static_cast<uint64_t>(__double_as_longlong(x));
#endif
}

KVI_DEV double kvi_double(uint64_t u)
{
#ifdef KVI_CUDA_EMULATED
    double x;
    std::memcpy(&x, &u, sizeof x);
    return x;
#else
    return __longlong_as_double(static_cast<long long>(u));
#endif
}

KVI_DEV double kvi_power_of_2(int k) { return kvi_double(static_cast<uint64_t>(k + 1023) << 52); } /* -1022 <= k <= 1023 */
/* To the nearest whole number, halves away from 0; |x| < 2^30. */
KVI_DEV int kvi_nearest(double x) { return static_cast<int>(x < 0 ? x - 0.5 : x + 0.5); }

constexpr double KVI_LN2_HIGH = 0x1.62e42fee00000p-1;
constexpr double KVI_LN2_LOW = 0x1.a39ef35793c76p-33;

/* exp for a result that is rounded to float (exp_short). */
KVI_DEV double kvi_exp_double(double x)
{
    if (x != x)
        return x;
    if (x > 709.79)
        return kvi_double(0x7ff0000000000000u);
    if (x < -745.14)
        return 0;
    const int    k = kvi_nearest(x * 0x1.71547652b82fep+0);
    const double r = (x - static_cast<double>(k) * KVI_LN2_HIGH) - static_cast<double>(k) * KVI_LN2_LOW;
    const double r2 = r * r;
    const double r4 = r2 * r2;
    const double low = (1.0 + r) + (0.5 + r * (1.0 / 6.0)) * r2;
    const double high = (1.0 / 24.0 + r * (1.0 / 120.0)) + (1.0 / 720.0 + r * (1.0 / 5040.0)) * r2 +
                        (1.0 / 40320.0 + r * (1.0 / 362880.0)) * r4;
    const double y = low + high * r4;

    if (k > 1023)
        return y * 0x1p1023 * kvi_power_of_2(k - 1023);
    if (k < -1022)
        return y * 0x1p-900 * kvi_power_of_2(k + 900);
    return y * kvi_power_of_2(k);
}

KVI_DEV float kvi_exp_exact(float x) { return static_cast<float>(kvi_exp_double(static_cast<double>(x))); } /* kvi_expf */

KVI_DEV float kvi_sigmoid_exact(float x) /* kvi_sigmoidf */
{
    return static_cast<float>(1.0 / (1.0 + kvi_exp_double(-static_cast<double>(x))));
}

/* Natural logarithm of a normal x > 0, +inf of itself, NaN of NaN. */
KVI_DEV double kvi_ln_double(double x)
{
    if (x != x || x == kvi_double(0x7ff0000000000000u))
        return x;
    const uint64_t bits = kvi_bits64(x);
    int            k = static_cast<int>(bits >> 52) - 1023;
    double         m = kvi_double((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);

    if (m > 0x1.6a09e667f3bcdp+0) {
        m = m * 0.5;
        k++;
    }
    const double f = m - 1.0;
    const double s = f / (2.0 + f);
    const double z = s * s;
    const double h = 0.5 * f * f;
    double       rest = 2.0 / 21.0;

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
    return static_cast<double>(k) * KVI_LN2_HIGH - ((h - (s * (h + rest) + static_cast<double>(k) * KVI_LN2_LOW)) - f);
}

KVI_DEV float kvi_log1p_exact(float x) /* kvi_log1pf, x >= 0 */
{
    const double v = static_cast<double>(x);

    if (v < 0x1p-12)
        return static_cast<float>(v * (1.0 - v * (0.5 - v * (1.0 / 3.0 - v * 0.25))));
    return static_cast<float>(kvi_ln_double(1.0 + v));
}

KVI_DEV void kvi_sincos_exact(float x, float *sine_out, float *cosine_out) /* kvi_sincosf */
{
    if (!(x >= -0x1p24f && x <= 0x1p24f)) {
        *sine_out = *cosine_out = kvi_float(0x7fc00000u);
        return;
    }
    const double a = static_cast<double>(x);
    const int    k = kvi_nearest(a * 0x1.45f306dc9c883p-1);
    const double n = static_cast<double>(k);
    const double r = ((a - n * 0x1.921fb54000000p+0) - n * 0x1.10b4610000000p-30) - n * 0x1.a62633145c06ep-58;
    const double z = r * r;
    double       sine = 1.0 / 6227020800.0;
    double       cosine = -1.0 / 87178291200.0;

    sine = sine * z - 1.0 / 39916800.0;
    sine = sine * z + 1.0 / 362880.0;
    sine = sine * z - 1.0 / 5040.0;
    sine = sine * z + 1.0 / 120.0;
    sine = sine * z - 1.0 / 6.0;
    sine = r * (1.0 + sine * z);
    cosine = cosine * z + 1.0 / 479001600.0;
    cosine = cosine * z - 1.0 / 3628800.0;
    cosine = cosine * z + 1.0 / 40320.0;
    cosine = cosine * z - 1.0 / 720.0;
    cosine = cosine * z + 1.0 / 24.0;
    cosine = cosine * z - 0.5;
    cosine = 1.0 + cosine * z;
    const double s = k & 1 ? cosine : sine;
    const double c = k & 1 ? -sine : cosine;
    *sine_out = static_cast<float>(k & 2 ? -s : s);
    *cosine_out = static_cast<float>(k & 2 ? -c : c);
}

#endif
