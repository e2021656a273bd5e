#include "base/hash.h"

#include <xxhash.h>

uint64_t kvi_hash64(const void *data, size_t n_bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(n_bytes ? data : "", n_bytes, seed);
}

kvi_hash128 kvi_hash128_of(const void *data, size_t n_bytes, uint64_t seed)
{
    const XXH128_hash_t h = XXH3_128bits_withSeed(n_bytes ? data : "", n_bytes, seed);

    return (kvi_hash128){.lo = h.low64, .hi = h.high64};
}
