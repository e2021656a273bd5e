#include "base/hash.h"

#include <xxhash.h>

uint64_t kvi_hash64(const void *data, size_t n_bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(n_bytes ? data : "", n_bytes, seed);
}
