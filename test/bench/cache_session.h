/* Sessions of the released model's plan for the benchmarks: blocks, windows, seals and prefixes are
 * real ones, the network is not run (kvi_session_create, cache_only). */
#ifndef CACHE_SESSION_H
#define CACHE_SESSION_H

#include "bench.h"
#include "kvcsa.h"

#include <stdatomic.h>

/* An allocator that counts what is outstanding. Large pieces are filled with noise: memory that
 * was never written is one page of zeros to the kernel, and copies of it cost nothing. */
typedef struct counted_alloc {
    kvcsa_allocator      hook;
    atomic_uint_fast64_t n_bytes;
    int                  fill;
} counted_alloc;
void counted_alloc_init(counted_alloc *a, int fill);

kvcsa_model *cache_model(const char *config);
kvcsa_pool  *cache_create_pool(const counted_alloc *a, uint32_t n_threads); /* no budget */
/* With the first n tokens committed, all from one append; published under `salt`. */
kvcsa_session *cache_session(kvcsa_pool *pool, kvcsa_model *model, const int32_t *tokens, size_t n,
                             uint64_t salt);
int32_t       *cache_tokens(size_t n); /* the same in every run; free with free */

#endif
