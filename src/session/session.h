/* Session handle: one timeline of tokens.
 *
 * Owns the token list (committed and queued), the block table, the window rings, the pending rows
 * of half-finished entries and the logits of the last token.
 *
 * (S1) n_tokens positions are committed; tokens[n_tokens ..] are queued; appends[] cover the queue
 *      in order.
 * (S2) Blocks cover the committed tokens: n_blocks == ceil(n_tokens / block_tokens) outside a
 *      running chunk. Room for the queued ones is reserved in the pool: n_blocks + n_reserved ==
 *      ceil(all tokens / block_tokens).
 * (S3) A chunk is committed whole or not at all; before the commit nothing that (S1) - (S4) name
 *      has changed.
 * (S4) While an append is partly committed, `mark` holds what is needed to go back to its
 *      beginning; its blocks are OPEN until it is complete, then those that are full are sealed.
 * (S5) busy is held by the one thread that is inside.
 * (S6) After a rewind the rings are wrong below replay_end == n_tokens; rows from replay_pos on are
 *      still to be run again before anything else is.
 */
#ifndef KVI_SESSION_H
#define KVI_SESSION_H

#include <stdatomic.h>

#include "base/alloc.h"
#include "net/net.h"
#include "pool/pool.h"

typedef struct kvi_append {  /* one queued append */
    kvcsa_logits_fn on_logits;
    void           *user;
    uint32_t       *rows;    /* u32 [n_rows] offsets, owned */
    uint32_t        n_rows;
    uint32_t        logits;  /* KVCSA_LOGITS_* */
    uint64_t        begin;   /* first position */
    uint64_t        end;
} kvi_append;

typedef struct kvi_mark {    /* (S4) */
    int      set;
    uint64_t n_tokens;
    int      has_logits; /* s->logits stay as they are until the append is complete */
    uint8_t  *windows;
    float    *pending;
    uint64_t *floors;
} kvi_mark;

struct kvcsa_session {
    kvcsa_allocator  allocator;
    kvcsa_pool      *pool;
    kvcsa_model     *model;
    kvi_block_class *cls;
    kvi_net         *net;
    atomic_flag      busy;
    atomic_int       cancel;
    uint32_t         chunk_tokens;
    uint32_t         op_flags;       /* KVI_OP_*: reference mode of the tests */
    const kvi_tap   *tap;            /* of the tests */
    uint64_t         n_tokens;       /* committed; read by kvcsa_session_length */
    uint64_t         n_total;        /* and queued */
    kvi_buf          tokens;         /* i32 */
    kvi_buf          appends;        /* kvi_append */
    size_t           first_append, n_appends;
    kvi_buf          blocks;         /* kvi_block * */
    kvi_buf          index_parts;    /* uint8_t * */
    kvi_buf          main_parts;
    uint64_t         n_blocks, n_reserved, n_sealed;
    uint64_t        *floors;         /* [layers] no right window row of the layer lies below */
    uint8_t         *windows;
    float           *pending;        /* raw rows of half-finished entries */
    float           *logits;         /* [vocab] */
    int              has_logits;
    kvi_mark         mark;
    uint64_t        *first_rows;     /* [layers + 1] of the forward that runs (attn/swa_replay.h) */
    int              planned;        /* first_rows are those of the first append */
    uint64_t         replay_pos;     /* (S6) next row to replay */
    uint64_t         replay_end;     /* 0 = the windows are right */
    uint32_t         replay_how;     /* KVI_REPLAY_* */
    uint32_t         decoder_cut;    /* kvi_session_set_decoder_cut; 0 = off */
    uint64_t         n_replayed_rows; /* rows of layer 0 */
    uint64_t         charged_bytes;
    uint64_t         n_computed_rows;
};

/* params have been imported. */
kvcsa_status kvi_session_create(kvcsa_pool *pool, kvcsa_model *model,
                                const kvcsa_session_params *params, kvcsa_session **out,
                                kvcsa_error *err);
void         kvi_session_destroy(kvcsa_session *s);   /* accepts NULL and half-built sessions */

/* (S5) ERR_BUSY if another thread is inside. */
kvcsa_status kvi_session_enter(kvcsa_session *s, kvcsa_error *err);
void         kvi_session_leave(kvcsa_session *s);

/* The caller is inside. */
kvcsa_status kvi_session_append(kvcsa_session *s, const int32_t *tokens, size_t n_tokens,
                                const kvcsa_append_params *p,
                                uint64_t *out_pos, kvcsa_error *err);
void         kvi_session_get_stats(const kvcsa_session *s, kvcsa_session_stats *out);

/* Queue of the session is dropped and what its oldest unfinished append had committed is taken
 * back. */
void         kvi_session_rollback(kvcsa_session *s);

/* One chunk of at most max_rows (> 0) rows. n_done: rows committed. ERR_CANCELLED has rolled
 * back. */
typedef struct kvi_chunk_hooks {
    kvcsa_progress_fn progress; /* may be NULL */
    void             *user;
} kvi_chunk_hooks;
kvcsa_status kvi_session_run_chunk(kvcsa_session *s, const kvi_chunk_hooks *hooks,
                                   uint64_t max_rows, uint64_t *n_done,
                                   kvcsa_error *err);

/* kvcsa_pool_step. */
kvcsa_status kvi_step(kvcsa_pool *pool, kvcsa_session *const *sessions, size_t n_sessions,
                      const kvcsa_step_params *p,
                      kvcsa_step_result *results, kvcsa_error *err);

/* For tests: the official code's rounding after every operator (KVI_OP_*), and a view of the
 * decisions (borrowed, may be NULL). */
void kvi_session_set_reference(kvcsa_session *s, uint32_t op_flags, const kvi_tap *tap);

/* Back to an earlier position: blocks are kept, the window is rebuilt by the next chunk. `how`:
 * KVI_REPLAY_*. ERR_ARG behind the length or with a queue; ERR_FULL or ERR_NOMEM (a sealed last
 * block must be copied): the session is as before. */
kvcsa_status kvi_session_rewind(kvcsa_session *s, uint64_t position, uint32_t how,
                                kvcsa_error *err);

/* Layers from `cut` on run only the last window of a longer append (decoder replay); 0 = off. */
void kvi_session_set_decoder_cut(kvcsa_session *s, uint32_t cut);

static inline uint64_t kvi_session_queued(const kvcsa_session *s)
{
    return s->n_total - s->n_tokens;
}

#endif
