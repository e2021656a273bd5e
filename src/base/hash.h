/* Content hashes (xxHash: XXH3). */
#ifndef KVI_HASH_H
#define KVI_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct kvi_hash128 {
    uint64_t lo;
    uint64_t hi;
} kvi_hash128;

uint64_t    kvi_hash64(const void *data, size_t n_bytes, uint64_t seed);
kvi_hash128 kvi_hash128_of(const void *data, size_t n_bytes, uint64_t seed);

static inline int kvi_hash128_equal(kvi_hash128 a, kvi_hash128 b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

#endif
