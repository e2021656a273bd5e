/* Session handle: one timeline of tokens.
 *
 * What the timeline holds is a value, kvi_state: a chain of sealed blocks, a tail block, window
 * pages, raw rows and logits, all counted by reference. Fork, mark and roll-back are copies of it;
 * they copy pointers, never rows. Around it the session has a queue of appends and the machinery of
 * a step.
 *
 * (S1) Of the queue, tokens [first_queued, first_queued + n_queued) are to come behind
 * now.n_tokens;
 *      appends[] cover them in order.
 * (S2) now.last is the chain of the first n_tokens / block_tokens blocks; now.tail is there exactly
 *      if tokens are left over. Only its writer (tail_mine, or the holder of its only reference)
 *      writes to the tail, and only rows of tokens behind all that others may read.
 * (S3) A chunk is committed whole or not at all; before the commit nothing of `now` has changed but
 *      the identity of pages and tail (a copy of the same bytes).
 * (S4) While an append is partly committed, `mark` is the state at its beginning. Blocks sealed
 *      since then stay in the prefix tree when it is rolled back, so that a retry finds them. A
 *      light mark is a position; going back to it costs a replay.
 * (S5) busy is held by the one thread that is inside.
 * (S6) With now.replay_end != 0 the window rows are wrong; rows are to be run again up to there,
 *      which is n_tokens, before anything else is.
 * (S7) Blocks, pages and raw rows that the queue and a replay will need are reserved in the pool:
 *      a step with a queue cannot fail for want of budget.
 * (S8) adopt holds the known prefix that the next chunk takes instead of computing: adopt.n_tokens
 *      from the chain's end on, more than the session and no more than session and queue hold.
 */
#ifndef KVI_SESSION_H
#define KVI_SESSION_H

#include <stdatomic.h>

#include "attn/window.h"
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

typedef struct kvi_logits { /* of one token; shared by states, written once */
    atomic_uint_least32_t refs;
    float                 row[]; /* [vocab] */
} kvi_logits;

typedef struct kvi_state {
    uint64_t    n_tokens;
    kvi_block  *last;       /* (S2) */
    kvi_block  *tail;
    int         tail_mine;
    kvi_block **pages;      /* [geom.n_pages]; NULL = not written */
    kvi_block  *pending;    /* NULL = none */
    uint64_t   *floors;     /* [layers] no right window row of the layer lies below */
    kvi_logits *logits;     /* of the last token; NULL = none */
    uint64_t    window_lo;  /* window rows are right in [window_lo, n_tokens), in every layer */
    uint64_t    raw_lo;     /* raw rows are there of tokens from here on, and of those in front that
                             * are in one entry with it; UINT64_MAX = of none */
    uint64_t    raw_end;    /* ... up to here, where writing them stopped last */
    uint64_t    taint_pos;  /* entries from here on are approximate; UINT64_MAX = none are */
    uint64_t    replay_end; /* (S6) 0 = the windows are right */
    uint64_t    replay_from; /* KVI_REPLAY_FROM: windows are right here */
    uint32_t    replay_how; /* KVI_REPLAY_* */
    int         window_approx; /* a bounded or a decoder replay made them */
    int         logits_due; /* a step is to bring the logits back */
    int         logits_approx; /* made from approximate windows, or while less was seen */
} kvi_state;

typedef struct kvi_settings { /* params, resolved */
    uint64_t salt;
    uint32_t chunk_tokens;
    uint32_t flags;          /* KVCSA_SESSION_* */
    uint32_t select_entries;   /* 0 = the plan's; likewise below */
    uint32_t candidate_blocks;
    uint32_t reuse;          /* KVCSA_REUSE_*, not DEFAULT */
    uint32_t decoder_cut;    /* 0 = no decoder replay */
    uint32_t slack_tokens;
    uint32_t store_tokens;   /* 0 = no stored windows */
} kvi_settings;

/* A list of parts, where the pool's memory is apart, as operators find it. */
typedef struct kvi_parts_there {
    void  *data;    /* uint8_t * [cap] in that memory */
    size_t cap;
    size_t n_clean; /* entries [0, n_clean) are those of the host's list */
} kvi_parts_there;
enum { KVI_PARTS_INDEX = 0, KVI_PARTS_MAIN, KVI_PARTS_PAGES, KVI_N_PARTS };

/* Writes entries and window rows of a chunk instead of the network, see
 * kvi_session_set_filler. */
typedef void (*kvi_session_fill_fn)(void *user, const kvcsa_session *s, const kvi_net_slice *slice);

struct kvcsa_session {
    kvcsa_allocator  allocator;
    kvcsa_pool      *pool;
    kvcsa_model     *model;
    kvi_block_class *cls;          /* of blocks */
    kvi_block_class *page_cls;     /* of window pages; NULL = the plan has no windows */
    kvi_block_class *pending_cls;  /* of pages of raw rows; NULL = the plan has none */
    kvi_prefix_root *root;
    kvi_settings     set;
    kvi_window_geom  geom;
    kvi_net         *net;          /* NULL until it computes */
    const kvi_weights *weights;    /* of net, from the pool; NULL likewise */
    int              cache_only;   /* chunks are committed uncomputed: of tests and benchmarks, and
                                    * with KVCSA_SESSION_CACHE_ONLY */
    struct kvi_hosted *hosted;     /* of such sessions: session/hosted.h; NULL until a chunk */
    kvi_session_fill_fn fill;      /* and filled by this; may be NULL */
    void            *fill_user;
    atomic_flag      busy;
    atomic_int       cancel;
    uint32_t         op_flags;     /* KVI_OP_*: reference mode of the tests */
    const kvi_tap   *tap;          /* of the tests */
    kvi_state        now;
    kvi_state        mark;         /* (S4) */
    int              has_mark;
    int              mark_is_light; /* it holds length and logits only: the pool had no room for a
                                     * second copy of the windows */
    int              light_mark;   /* the next one is to be so */
    kvi_buf          queue;        /* i32 */
    size_t           first_queued, n_queued;
    kvi_buf          appends;      /* kvi_append */
    size_t           first_append, n_appends;
    kvi_prefix_match adopt;        /* (S8) n_tokens 0 = none */
    kvi_block      **stored;       /* [geom.n_pages] stored window for it; retained */
    uint64_t         stored_pos;   /* where that stands; 0 = none */
    uint32_t         reuse;        /* of the queue: KVCSA_REUSE_*, not DEFAULT */
    kvi_state       *give;         /* of sync: the state that goes when its room is needed */
    uint64_t         n_reserved;   /* (S7) blocks */
    uint64_t         n_reserved_pages;
    uint64_t         n_reserved_pending;
    /* of the chunk that runs */
    kvi_buf          own;          /* kvi_block *: blocks acquired behind the tail */
    size_t           n_own;
    kvi_buf          chunk;        /* i32: tokens, kvi_net_lookback() of those in front included */
    kvi_buf          rows;         /* u32: rows whose logits are wanted */
    kvi_buf          look;         /* i32: scratch of a prefix search */
    uint64_t        *first_rows;   /* [layers + 1] of the forward that runs (attn/swa_replay.h) */
    int              planned;      /* first_rows are those of the first append */
    int              last_row_only; /* now.replay_end stands for the last row, for its logits */
    uint64_t         replay_pos;   /* next row to replay, once planned */
    int              replay_told;  /* to the trace hook */
    kvi_logits      *next_logits;  /* what a commit writes; allocated before the run */
    /* flat tables of all blocks, for the host, made when they are wanted (kvi_session_view) */
    kvi_buf          blocks;       /* kvi_block *; borrowed from the chain */
    kvi_buf          index_parts;  /* uint8_t * */
    kvi_buf          main_parts;
    kvi_buf          page_parts;   /* uint8_t * [geom.n_pages] */
    uint64_t         n_view;       /* entries [0, n_view) are those of the chain */
    kvi_parts_there  there[KVI_N_PARTS];
    /* what selection may see, and what it saw */
    kvi_select_limits limits;      /* hidden points into `hidden` */
    kvi_buf          hidden;       /* u8 a span */
    kvi_buf          mass;         /* f64 a span */
    size_t           n_mass;       /* spans counted so far; those behind are 0 */
    /* counters */
    kvcsa_work      *work;         /* [2, layers] of the last step, and of those before it; NULL
                                    * until the session computes */
    kvcsa_reuse      report;
    uint64_t         n_computed_rows;
    uint64_t         n_replayed_rows; /* rows of layer 0 */
    uint64_t         n_adopted_tokens;
};

/* params have been imported. cache_only: for tests; works with a model opened for its plan. */
kvcsa_status kvi_session_create(kvcsa_pool *pool, kvcsa_model *model,
                                const kvcsa_session_params *params, int cache_only,
                                kvcsa_session **out, kvcsa_error *err);
void         kvi_session_destroy(kvcsa_session *s);   /* accepts NULL and half-built sessions */

/* What two sessions must have in common to share blocks. */
kvi_domain   kvi_session_domain(const kvcsa_model *model, uint64_t numerics, uint64_t salt);

/* (S5) ERR_BUSY if another thread is inside. */
kvcsa_status kvi_session_enter(kvcsa_session *s, kvcsa_error *err);
/* For calls that have to do with an open chunk; kvi_session_enter gives ERR_BUSY then. */
kvcsa_status kvi_session_enter_chunk(kvcsa_session *s, kvcsa_error *err);
void         kvi_session_leave(kvcsa_session *s);

/* The caller is inside, for everything below. Public semantics: kvcsa.h. */
kvcsa_status kvi_session_append(kvcsa_session *s, const int32_t *tokens, size_t n_tokens,
                                const kvcsa_append_params *p, uint64_t *out_pos, kvcsa_error *err);
kvcsa_status kvi_session_sync(kvcsa_session *s, const int32_t *tokens, size_t n_tokens,
                              const kvcsa_append_params *p, kvcsa_error *err);
kvcsa_status kvi_session_fork(kvcsa_session *s, uint64_t position,
                              const kvcsa_session_params *params, kvcsa_session **out,
                              kvcsa_error *err);
/* `how`: KVI_REPLAY_*, where windows have to be rebuilt. */
kvcsa_status kvi_session_rewind(kvcsa_session *s, uint64_t position, uint32_t how,
                                kvcsa_error *err);
/* As after a prefix hit at the session's length: entries are there, windows are rebuilt by the next
 * step. Nothing is queued. */
void         kvi_session_lose_windows(kvcsa_session *s);
kvcsa_status kvi_session_rewind_default(kvcsa_session *s, uint64_t position, kvcsa_error *err);
void         kvi_session_erase(kvcsa_session *s, uint32_t flags);
/* How many of tokens[n] the session holds, from the first on. */
size_t       kvi_session_count_common(const kvcsa_session *s, const int32_t *tokens, size_t n);
/* Committed tokens [from, from + n) into out; they are there. */
void         kvi_session_copy_tokens(const kvcsa_session *s, uint64_t from, size_t n, int32_t *out);
void         kvi_session_get_stats(const kvcsa_session *s, kvcsa_session_stats *out);
/* Public semantics: kvcsa.h. */
kvcsa_status kvi_session_hide(kvcsa_session *s, uint64_t begin, uint64_t end, int hidden,
                              kvcsa_error *err);
/* Work of a layer; either may be NULL. */
void         kvi_session_layer_work(const kvcsa_session *s, uint32_t layer, kvcsa_work *step,
                                    kvcsa_work *total);
/* Spans of the length; mass of the first cap of them. */
size_t       kvi_session_get_mass(kvcsa_session *s, double *mass, size_t cap, int reset);
/* Public semantics: kvcsa.h; read_rows.c. */
kvcsa_status kvi_session_read_rows(kvcsa_session *s, uint32_t layer, uint32_t what, uint64_t first,
                                   uint64_t n, float *out, size_t cap, kvcsa_error *err);
/* Publishes what can be; tokens that can be found afterwards. */
uint64_t     kvi_session_publish(kvcsa_session *s);

/* Queue of the session is dropped and what its oldest unfinished append had committed is taken
 * back. */
void         kvi_session_rollback(kvcsa_session *s);

/* kvcsa_pool_step. */
kvcsa_status kvi_step(kvcsa_pool *pool, kvcsa_session *const *sessions, size_t n_sessions,
                      const kvcsa_step_params *p, kvcsa_step_result *results, kvcsa_error *err);

/* For tests: the official code's rounding after every operator (KVI_OP_*), and a view of the
 * decisions (borrowed, may be NULL). */
void kvi_session_set_reference(kvcsa_session *s, uint32_t op_flags, const kvi_tap *tap);
/* For tests and benchmarks of long contexts: from now on chunks are not computed but filled. fill
 * writes the entries of the slice's tokens, and window rows into s->page_parts if they are to be
 * read; NULL = compute again. The session is private from then on. */
void kvi_session_set_filler(kvcsa_session *s, kvi_session_fill_fn fill, void *user);
/* For tests: layers from `cut` on run only the last window of a longer append; 0 = off. */
void kvi_session_set_decoder_cut(kvcsa_session *s, uint32_t cut);

static inline uint64_t kvi_session_queued(const kvcsa_session *s)
{
    return s->n_queued;
}

static inline uint64_t kvi_session_total(const kvcsa_session *s)
{
    return s->now.n_tokens + s->n_queued;
}

#endif
