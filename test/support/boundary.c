#include "boundary.h"

#include <math.h>
#include <string.h>

float e4m3_value(uint8_t code)
{
    const int   e = code >> 3 & 15;
    const int   m = code & 7;
    const float v = e == 0 ? ldexpf((float)m, -9) : ldexpf(1.0f + (float)m / 8.0f, e - 7);

    if (e == 15 && m == 7)
        return NAN;
    return code & 128 ? -v : v;
}

float e2m1_value(uint8_t code)
{
    static const float grid[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

    return code & 8 ? -grid[code & 7] : grid[code & 7];
}

float e8m0_value(uint8_t code)
{
    return ldexpf(1.0f, code - 127);
}

static float to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

/* Nearest grid value, ties to the even code. Neighbouring codes 0..n-1 have ascending values. */
static float nearest(float x, float (*value)(uint8_t), int n)
{
    const double mag = fabs((double)x);
    int          c = 0;

    if (mag >= (double)value((uint8_t)(n - 1)))
        return copysignf(value((uint8_t)(n - 1)), x);
    while ((double)value((uint8_t)(c + 1)) <= mag)
        c++;
    if (c + 1 < n) {
        const double mid = ((double)value((uint8_t)c) + (double)value((uint8_t)(c + 1))) / 2;

        if (mag > mid || (mag == mid && (c & 1)))
            c++;
    }
    return x < 0 ? -value((uint8_t)c) : value((uint8_t)c);
}

static float power_up(float x)
{
    int         e;
    const float m = frexpf(x, &e); /* x = m 2^e, m in [0.5, 1) */

    return ldexpf(1.0f, m == 0.5f ? e - 1 : e);
}

float stair_value(const stair *s, float x)
{
    const float b = to_bf16(x);

    switch (s->kind) {
    case STAIR_E2M1: return nearest(b / s->scale, e2m1_value, 8);
    case STAIR_E4M3: return nearest(b / s->scale, e4m3_value, 127);
    case STAIR_MAIN_SCALE: return nearest(fmaxf(b, ldexpf(6, -9)) / 6, e4m3_value, 127);
    case STAIR_INDEX_SCALE: return power_up(fmaxf(b, ldexpf(6, -126)) * (float)(1.0 / 6));
    default: return power_up(fmaxf(b, 1e-4f) * (float)(1.0 / 448));
    }
}

double stair_distance(const stair *s, float x, float target)
{
    const float at = stair_value(s, x);
    const int   up = target > at;
    double      lo = 0;
    double      hi = 1e-9 * fmax(1, fabs((double)x));

    if (at == target)
        return 0;
    for (;; hi *= 2) {
        const float v = stair_value(s, (float)((double)x + (up ? hi : -hi)));

        if (up ? v >= target : v <= target)
            break;
        if (hi > 1e6)
            return INFINITY;
        lo = hi;
    }
    for (int i = 0; i < 50; i++) {
        const double mid = (lo + hi) / 2;
        const float  v = stair_value(s, (float)((double)x + (up ? mid : -mid)));

        if (up ? v >= target : v <= target)
            hi = mid;
        else
            lo = mid;
    }
    return hi;
}

int stair_near(const stair *s, float x, double eps)
{
    return stair_value(s, (float)((double)x - eps)) != stair_value(s, (float)((double)x + eps));
}
