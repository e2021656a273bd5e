/* Engram's hash: which table rows the last tokens address. Buckets and multipliers are derived
 * from the configuration. */
#ifndef KVI_ENGRAM_HASH_H
#define KVI_ENGRAM_HASH_H

#include "model/config.h"

typedef struct kvi_engram_hash {
    uint32_t n_columns;                     /* (ngram - 1) * heads */
    uint32_t ngram;
    uint32_t heads;
    uint32_t pad;                           /* compressed id of the pad token */
    uint64_t multipliers[KVI_MAX_ENGRAM_LAYERS][KVI_MAX_NGRAM];
    uint64_t *primes;                       /* [engram layers, n_columns] */
    uint64_t *offsets;                      /* [engram layers, n_columns] */
} kvi_engram_hash;

/* Derives primes; ERR_FORMAT if a layer's primes do not add up to the configured rows. pad:
 * compressed id of the pad token. */
kvcsa_status kvi_engram_hash_init(kvi_engram_hash *h, const kvi_config *c, uint32_t pad,
                                  const kvcsa_allocator *a,
                                  kvcsa_error *err);
void         kvi_engram_hash_fini(kvi_engram_hash *h, const kvi_config *c,
                                  const kvcsa_allocator *a);

#define KVI_ENGRAM_DEAD UINT32_MAX /* compressed id of a position without text */

/* Rows of one position. history u32 [ngram]: compressed ids of the position and those before it,
 * newest first; positions before the start of the text are given as n_history < ngram. rows u64
 * [n_columns]. engram_index: 0..n_engram_layers-1. */
void kvi_engram_rows(const kvi_engram_hash *h, uint32_t engram_index, const uint32_t *history,
                     uint32_t n_history,
                     uint64_t *rows);

/* Multipliers of one layer for a compressed vocabulary (numpy default_rng(10007 * layer), odd,
 * below 2^63 / compressed). */
void kvi_engram_multipliers(uint32_t layer, uint32_t compressed_vocab, uint32_t ngram,
                            uint64_t *out);

#endif
