#include "support/small_float.h"

#include <math.h>

const small_float e2m1 = {1, 1, 0x8, 0x7};
const small_float e4m3 = {3, 7, 0x80, 0x7e};
const small_float e5m2 = {2, 15, 0x80, 0x7b};
const small_float fp16 = {10, 15, 0x8000, 0x7bff};

double ref_value(const small_float *f, unsigned magnitude)
{
    const int field = (int)(magnitude >> f->mant_bits);
    const int mant = (int)(magnitude & ((1u << f->mant_bits) - 1));
    const int one = 1 << f->mant_bits;

    if (field == 0)
        return ldexp(mant, 1 - f->bias - f->mant_bits);
    return ldexp(one + mant, field - f->bias - f->mant_bits);
}

unsigned ref_nearest(const small_float *f, double x, double s)
{
    const double a = fabs(x);
    double       best = INFINITY;
    unsigned     code = 0;

    for (unsigned c = 0; c <= f->max_code; c++) {
        const double d = fabs(a - ref_value(f, c) * s);

        if (d < best || (d == best && c % 2 == 0)) {
            best = d;
            code = c;
        }
    }
    return code | (signbit(x) ? f->sign : 0);
}
