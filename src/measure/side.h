/* One side of a comparison: a text run under one setting, append by append.
 *
 * (D1) `s` holds the tokens that were appended, or is NULL before the first of them.
 * (D2) Where hits find what an exact run has made, `exact` is that run; it stands at the last hit,
 *      and `s` is a fork of it that ends at the next. `found` is then the attention that the exact
 *      run has counted up to the hit.
 * (D3) Hits and what the keep_ fields say happen in front of an append, at the multiples of
 *      hit_tokens and append_tokens. */
#ifndef KVI_SIDE_H
#define KVI_SIDE_H

#include "session/session.h"

typedef struct kvi_side_progress { /* of all sides; rows of the runs behind `exact` included */
    kvcsa_compare_progress hook;   /* progress NULL = none */
    uint64_t               n_done;
    uint64_t               n_rows;
} kvi_side_progress;

typedef struct kvi_side {
    kvcsa_setting        set;     /* imported; session is not used */
    kvcsa_session_params params;  /* of s, imported */
    kvi_side_progress   *progress;
    uint32_t             n_vocab;
    uint32_t             span_tokens;
    int32_t              image_token; /* cannot be fed; -1 = none */
    uint64_t             max_tokens;  /* of a context */
    kvcsa_session       *s;       /* (D1) */
    kvcsa_session       *exact;   /* (D2) */
    kvi_buf              found;   /* f64 [n_found] */
    size_t               n_found;
    kvi_buf              mass;    /* f64: attention that spans received; scratch */
    kvi_buf              ranks;   /* u64: spans by attention; scratch */
} kvi_side;

typedef struct kvi_side_append {
    uint64_t        from; /* tokens [from, from + n) */
    uint64_t        n;
    uint32_t        logits; /* KVCSA_LOGITS_* */
    kvcsa_logits_fn on_logits;
    void           *user;
} kvi_side_append;

/* Checks all of the setting; `name` is for messages. progress is borrowed. Nothing is made yet. */
kvcsa_status kvi_side_init(kvi_side *side, const kvcsa_setting *theirs, const char *name,
                           kvi_side_progress *progress, kvcsa_error *err);
void         kvi_side_fini(kvi_side *side); /* accepts a zeroed one */

/* Likeliest token behind what the side holds, of those that can be fed; ties to the lower id.
 * logits f32 [n_vocab]: scratch. ERR_ARG NaN in the logits. */
kvcsa_status kvi_side_next_token(kvi_side *side, float *logits, int32_t *token, kvcsa_error *err);

/* Rows that a text of n_tokens takes. */
uint64_t     kvi_side_rows(const kvi_side *side, uint64_t n_tokens);

/* Appends and computes tokens a->from .. of the text, which begins at `tokens`; all in front of
 * them have been appended. */
kvcsa_status kvi_side_append_tokens(kvi_side *side, const int32_t *tokens,
                                    const kvi_side_append *a, kvcsa_error *err);

#endif
