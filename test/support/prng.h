/* Random numbers for tests: xoshiro256** seeded by splitmix64 (Blackman and Vigna). A test prints
 * its seed, and takes it back as `--seed N` or from TEST_SEED, so that a failure can be run again.
 */
#ifndef TEST_PRNG_H
#define TEST_PRNG_H

#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct prng {
    uint64_t s[4];
} prng;

static inline uint64_t prng_splitmix(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static inline void prng_init(prng *r, uint64_t seed)
{
    for (size_t i = 0; i < 4; i++)
        r->s[i] = prng_splitmix(&seed);
}

static inline uint64_t prng_rotl(uint64_t x, unsigned k)
{
    return x << k | x >> (64 - k);
}

static inline uint64_t prng_u64(prng *r)
{
    uint64_t result = prng_rotl(r->s[1] * 5, 7) * 9;
    uint64_t t = r->s[1] << 17;

    r->s[2] ^= r->s[0];
    r->s[3] ^= r->s[1];
    r->s[1] ^= r->s[2];
    r->s[0] ^= r->s[3];
    r->s[2] ^= t;
    r->s[3] = prng_rotl(r->s[3], 45);
    return result;
}

static inline uint32_t prng_u32(prng *r)
{
    return (uint32_t)(prng_u64(r) >> 32);
}

/* 0..n-1, n > 0; the bias of n / 2^64 does not matter to a test */
static inline uint64_t prng_below(prng *r, uint64_t n)
{
    return prng_u64(r) % n;
}

/* low..high, both included */
static inline uint64_t prng_range(prng *r, uint64_t low, uint64_t high)
{
    return low + prng_below(r, high - low + 1);
}

/* in [0, 1) */
static inline double prng_unit(prng *r)
{
    return (double)(prng_u64(r) >> 11) * 0x1p-53;
}

/* in [low, high) */
static inline float prng_float(prng *r, float low, float high)
{
    return (float)((double)low + prng_unit(r) * ((double)high - (double)low));
}

/* any bits: infinities, NaN and subnormals too */
static inline float prng_float_bits(prng *r)
{
    uint32_t u = prng_u32(r);
    float    v;

    memcpy(&v, &u, sizeof v);
    return v;
}

/* about normal: the sum of 12 uniforms has mean 6 and variance 1 */
static inline float prng_normal(prng *r)
{
    double sum = 0;

    for (int i = 0; i < 12; i++)
        sum += prng_unit(r);
    return (float)(sum - 6.0);
}

static inline void prng_fill(prng *r, void *data, size_t n)
{
    unsigned char *p = data;

    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)prng_u64(r);
}

/* The seed of a program; printed to stderr. */
static inline uint64_t prng_seed(int argc, char **argv, uint64_t fallback)
{
    const char *text = getenv("TEST_SEED");
    uint64_t    seed = fallback;

    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0)
            text = argv[i + 1];
    }
    if (text && *text)
        seed = strtoull(text, NULL, 0);
    fprintf(stderr, "seed %" PRIu64 "\n", seed);
    return seed;
}

#endif
