/* Content hashes (xxHash, XXH3 64 bit). */
#ifndef KVI_HASH_H
#define KVI_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t kvi_hash64(const void *data, size_t n_bytes, uint64_t seed);

#endif
