/* Inside of the tokenizer, shared by tokenizer.c (use), tokenizer_file.c (reading), bpe.c (merges),
 * pretokenize.c (pieces). */
#ifndef KVI_TOKENIZER_INT_H
#define KVI_TOKENIZER_INT_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/alloc.h"
#include "text/tokenizer.h"

/* Limits of what a file may ask for. The released file has 6.4 MB, 129,280 ids, 3 steps and added
 * tokens of up to 60 bytes. */
#define KVI_TOKENIZER_MAX_FILE_BYTES  (256u << 20) /* blob offsets, up to twice that, fit 32 bits */
#define KVI_TOKENIZER_MAX_IDS         (1u << 24)
#define KVI_TOKENIZER_MAX_ADDED_BYTES 512u /* bounds the work of cutting at one position */
#define KVI_TOKENIZER_MAX_STEPS       16u
#define KVI_TOKENIZER_MAX_REGEX_BYTES (16u << 10)
#define KVI_TOKENIZER_MAX_TEXT_BYTES  ((size_t)1 << 30)

enum { KVI_TOKEN_PRESENT = 1u, KVI_TOKEN_ADDED = 2u, KVI_TOKEN_SPECIAL = 4u };

typedef struct kvi_token { /* offsets into the blob */
    uint32_t raw_off;
    uint32_t raw_len;
    uint32_t text_off;
    uint32_t text_len;
    uint32_t flags; /* KVI_TOKEN_*; 0 = a gap between ids */
} kvi_token;

typedef struct kvi_text_ref { /* texts sorted by bytes, to find an id */
    const uint8_t *bytes;
    uint32_t       n_bytes;
    uint32_t       id;
} kvi_text_ref;

typedef struct kvi_text_index {
    kvi_text_ref *refs;
    uint32_t      n_refs;
    uint32_t      cap_refs;
} kvi_text_index;

typedef struct kvi_merge { /* as in the file: ids of "a", "b" and "ab" */
    uint32_t left;
    uint32_t right;
    uint32_t merged;
} kvi_merge;

/* Merges by left id: pairs of left id l are first[l] .. first[l + 1] - 1, ordered by right id. A
 * sorted table instead of a hash: no file can make it slow. */
typedef struct kvi_bpe {
    uint32_t *first;  /* u32 [n_ids + 1] */
    uint32_t *right;  /* u32 [n_merges], of which first[n_ids] are in use */
    uint32_t *rank;   /* u32 [n_merges]: place in the file */
    uint32_t *merged; /* u32 [n_merges], by rank */
    uint32_t  n_ids;
    uint32_t  n_merges;
    uint32_t  byte_id[256];
} kvi_bpe;

typedef struct kvi_splitter {
    pcre2_general_context *gctx; /* PCRE2's memory comes from our allocator */
    pcre2_code            *step[KVI_TOKENIZER_MAX_STEPS];
    uint32_t               n_steps;
} kvi_splitter;

struct kvi_tokenizer {
    kvcsa_allocator alloc;
    kvi_token      *tokens; /* [n_ids] */
    uint32_t        n_ids;
    uint8_t        *blob; /* u8 [blob_bytes]: strings as in the file and their bytes */
    size_t          blob_bytes;
    kvi_text_index  added;            /* added tokens by content */
    uint8_t         added_first[256]; /* 1: some added token begins with this byte */
    kvi_text_index  by_text;          /* tokens by bytes, only for ignore_merges */
    bool            ignore_merges;
    kvi_bpe         bpe;
    kvi_splitter    split;
};

/* One call of kvi_tokenizer_encode: where ids go, and scratch that lives from piece to piece. */
typedef struct kvi_encoder {
    const kvi_tokenizer *t;
    int32_t             *ids;
    size_t               cap;
    size_t               n_ids; /* all, also those past cap */
    kvi_buf              symbols;
    kvi_buf              heap;
    pcre2_match_data    *match;
    pcre2_match_context *limits;
    kvcsa_error         *err;
} kvi_encoder;

static inline void kvi_encoder_emit(kvi_encoder *e, uint32_t id)
{
    if (e->n_ids < e->cap)
        e->ids[e->n_ids] = (int32_t)id;
    e->n_ids++;
}

/* tokenizer.c */
int  kvi_text_ref_compare(const void *a, const void *b);
bool kvi_text_index_find(const kvi_text_index *index, const uint8_t *bytes, size_t n_bytes,
                         uint32_t *id);

/* tokenizer_file.c: fill a zeroed tokenizer. What is there after a failure is freed by
 * kvi_tokenizer_destroy. */
kvcsa_status kvi_tokenizer_read(kvi_tokenizer *t, const char *json, size_t n_bytes,
                                const char *name, kvcsa_error *err);

/* bpe.c */
kvcsa_status kvi_bpe_build(const kvcsa_allocator *a, const kvi_merge *merges, uint32_t n_merges,
                           uint32_t n_ids, kvi_bpe *bpe, kvcsa_error *err);
void         kvi_bpe_free(const kvcsa_allocator *a, kvi_bpe *bpe);
kvcsa_status kvi_bpe_encode(kvi_encoder *e, const uint8_t *piece, size_t n_bytes); /* n_bytes > 0 */
void         kvi_bpe_free_scratch(kvi_encoder *e);

/* pretokenize.c. `alloc` must stay where it is. */
kvcsa_status kvi_splitter_init(const kvcsa_allocator *alloc, kvi_splitter *s, kvcsa_error *err);
kvcsa_status kvi_splitter_add(kvi_splitter *s, const char *pattern, size_t n_bytes, bool literal,
                              const char *name, kvcsa_error *err);
void         kvi_splitter_free(kvi_splitter *s);
kvcsa_status kvi_encoder_init_match(kvi_encoder *e, size_t n_bytes);
void         kvi_encoder_free_match(kvi_encoder *e);
kvcsa_status kvi_split_run(kvi_encoder *e, const uint8_t *text, size_t n_bytes); /* valid UTF-8 */

#endif
