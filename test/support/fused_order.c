#include "support/fused_order.h"

#include <math.h>

float fused_sum(const float *a, const float *b, const float *c, size_t n)
{
    float sum = 0.0f;

    for (size_t begin = 0; begin < n; begin += 1024) {
        float lane[16] = {0};

        for (size_t i = begin; i < n && i < begin + 1024; i++)
            lane[i % 16] = fmaf(b ? a[i] * b[i] : a[i], c[i], lane[i % 16]);
        for (size_t half = 8; half > 0; half /= 2)
            for (size_t i = 0; i < half; i++)
                lane[i] = lane[i] + lane[i + half];
        sum = begin == 0 ? lane[0] : sum + lane[0];
    }
    return sum;
}

float fused_rms_inverse(const float *x, size_t n, float eps)
{
    return 1.0f / sqrtf(fused_sum(x, NULL, x, n) / (float)n + eps);
}

float fused_exp(float x)
{
    const float n = nearbyintf(x * 1.44269504088896341f);
    float       r = fmaf(-n, 0.693359375f, x);
    float       p = 1.9875691500e-4f;

    if (x != x || x > 88.722839f || x < -87.33654f)
        return x != x ? x : x > 0.0f ? INFINITY : 0.0f;
    r = fmaf(-n, -2.12194440e-4f, r);
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    return ldexpf(fmaf(p, r * r, r) + 1.0f, (int)n);
}

float fused_sigmoid(float x)
{
    return 1.0f / (1.0f + fused_exp(0.0f - x));
}

float fused_log1p(float x)
{
    static const float rest[8] = {-1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f, 1.4249322787e-1f,
                                  -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
    const float        u = 1.0f + x;
    const float        c = x - (u - 1.0f);
    float              p = 7.0376836292e-2f;
    float              f;
    float              z;
    int                k;
    float              m = frexpf(u, &k);

    if (x != x)
        return x;
    if (m < 0.70710677f) { /* the float below sqrt(1/2) */
        m *= 2.0f;
        k--;
    }
    f = fmaf(c, ldexpf(1.0f, -k), m - 1.0f);
    z = f * f;
    for (size_t i = 0; i < 8; i++)
        p = fmaf(p, f, rest[i]);
    p = p * f * z;
    p = fmaf((float)k, -2.12194440e-4f, p);
    p = fmaf(-0.5f, z, p);
    return fmaf((float)k, 0.693359375f, f + p);
}
