/* Small floats by their definition (sign, exponent, mantissa): values and nearest codes in double, by trying all of them. Shares
 * nothing with the library's conversions. */
#ifndef SMALL_FLOAT_H
#define SMALL_FLOAT_H

typedef struct small_float {
    int      mant_bits;
    int      bias;
    unsigned sign;     /* the sign bit */
    unsigned max_code; /* of the largest finite magnitude */
} small_float;

extern const small_float e2m1;
extern const small_float e4m3;
extern const small_float e5m2;
extern const small_float fp16;

/* Of a code without its sign. */
double ref_value(const small_float *f, unsigned magnitude);
/* Code whose value times s is nearest to x; ties to the even code; saturating. For the x and s of
 * these tests every difference that matters is exact in double. */
unsigned ref_nearest(const small_float *f, double x, double s);

#endif
