/* Byte-level BPE, driven by a tokenizer.json: added tokens, Split steps (PCRE2), ByteLevel,
 * merges. Immutable once open; every function may be called from any thread. The file is treated
 * as hostile. */
#ifndef KVI_TOKENIZER_H
#define KVI_TOKENIZER_H

#include <stdbool.h>

#include "kvcsa.h"

typedef struct kvi_tokenizer kvi_tokenizer;

/* json u8 [n_bytes]; name is the file's name for messages. ERR_FORMAT, ERR_UNSUPPORTED (a
 * normaliser, another model type, a pre-tokenizer step that is not Split(Isolated) / ByteLevel),
 * ERR_NOMEM. */
kvcsa_status kvi_tokenizer_open(const kvcsa_allocator *a, const char *json, size_t n_bytes,
                                const char *name,
                                kvi_tokenizer **out, kvcsa_error *err);
void         kvi_tokenizer_destroy(kvi_tokenizer *t);

uint32_t kvi_tokenizer_size(const kvi_tokenizer *t); /* 1 + the largest id */

/* flags KVCSA_TOKENIZE_*. n_ids counts all ids, ids holds at most cap of them. Bytes that are
 * not UTF-8 are encoded one by one. */
kvcsa_status kvi_tokenizer_encode(const kvi_tokenizer *t, const char *text, size_t n_bytes,
                                  uint32_t flags, int32_t *ids,
                                  size_t cap, size_t *n_ids, kvcsa_error *err);

/* Decoded bytes of a token; false if there is no such id (a gap decodes to no bytes and gives
 * true). */
bool kvi_tokenizer_bytes(const kvi_tokenizer *t, int32_t id, const uint8_t **bytes,
                         size_t *n_bytes);
/* The token's string as it stands in the file (byte alphabet). */
bool kvi_tokenizer_raw(const kvi_tokenizer *t, int32_t id, const char **raw, size_t *n_bytes);
bool kvi_tokenizer_is_special(const kvi_tokenizer *t, int32_t id);
/* Id of an added token by its content; -1 if there is none. */
int32_t kvi_tokenizer_find_added(const kvi_tokenizer *t, const char *content);

#endif
