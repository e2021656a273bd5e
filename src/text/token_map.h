/* Token map of Engram: token id -> compressed id (tokens whose normalised text is equal share one).
 * Rule: docs/formats.md; normaliser chain NFKC, NFD, drop all combining marks (Mn, Mc, Me),
 * lowercase, blanks. Uses utf8proc. */
#ifndef KVI_TOKEN_MAP_H
#define KVI_TOKEN_MAP_H

#include "text/tokenizer.h"

/* map u32 [n_vocab]; ids past the tokenizer's size are an error (ERR_FORMAT), as is a tokenizer
 * larger than n_vocab. */
kvcsa_status kvi_token_map_build(const kvcsa_allocator *a, const kvi_tokenizer *t, uint32_t n_vocab,
                                 uint32_t *map, uint32_t *n_compressed, kvcsa_error *err);

/* Side file: JSON {"vocab_size": V, "compressed_vocab_size": C, "map": [V integers]}. Checked: V
 * equals n_vocab, ids are below C and every id below C occurs. */
kvcsa_status kvi_token_map_parse(const kvcsa_allocator *a, const char *json, size_t n_bytes,
                                 const char *name, uint32_t n_vocab, uint32_t *map,
                                 uint32_t *n_compressed, kvcsa_error *err);

#endif
