/* What the tests of the CPU operators share: random data, guard bytes, a metering allocator, devices with 1 to 3 threads,
 * matrices of every kind with their values by another way, and the check of batch invariance. */
#ifndef OP_CHECK_H
#define OP_CHECK_H

#include "backend/backend.h"
#include "base/bytes.h"
#include "cpu/cpu_ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include <cmocka.h>

/* Unit roundoff of float. A sum of n products in the order of base/vec.h puts at most n / 16 + 1 + 4 additions and one product
 * rounding on a term, so |error| <= (n / 16 + 6) u sum |a b| to first order; one more u covers the second order here. */
#define U 0x1p-24
#define GUARD 0x5a

uint32_t prng(void);
void     prng_seed(uint64_t seed);
float    uniform(float size); /* -size .. size */
void     fill(float *x, size_t n, float size);

/* Counts what is outstanding; call number `fail_at` (from 0) returns NULL, -1 = none. */
typedef struct meter {
    atomic_long outstanding;
    atomic_long calls;
    long        fail_at;
} meter;
extern meter    the_meter;
kvcsa_allocator metered(void);

enum { N_DEVICES = 3 }; /* with 1, 2 and 3 threads, on the_meter */
extern kvi_device *devices[N_DEVICES];
int open_devices(void **state);
int close_devices(void **state); /* fails if anything is outstanding */

/* floats with guard bytes on both sides */
typedef struct guarded {
    uint8_t *base;
    float   *data;
    size_t   n;
} guarded;
guarded guarded_new(size_t n);
void    guarded_check_free(guarded *g);
bool    untouched(const float *x); /* still all guard bytes */

void   assert_bits(const float *a, const float *b, size_t n);
void   assert_within(float is, double wanted, double bound);
void   round_all(float *x, size_t n); /* to bf16 */
double sigmoid(double x);

/* Runs rows first .. first + n - 1 of one operator and puts their outputs at out + first * width. */
typedef void (*rows_fn)(const void *job, kvi_device *dev, size_t first, size_t n, float *out);

/* Batch invariance: all rows at once with any number of threads, row by row, and in two uneven parts: equal bits. */
void check_invariance(rows_fn run, const void *job, size_t n_rows, size_t width, float *out);

/* A random matrix at an odd address, and its values by another way (double arithmetic on the bits). */
typedef struct test_matrix {
    kvi_matrix m;
    uint8_t   *memory;
    double    *values; /* [rows, cols] */
} test_matrix;
test_matrix matrix_new(uint32_t kind, uint32_t rows, uint32_t cols);
void        matrix_free(test_matrix *t);
double      e4m3_exact(uint8_t code); /* of an FP8 byte, made from the definition */

enum { N_KINDS = 5 };
extern const uint32_t kinds[N_KINDS]; /* all of KVI_W_* */

#endif
