/* What the files of this room share. */
#ifndef KVI_SESSION_INT_H
#define KVI_SESSION_INT_H

#include "attn/swa_replay.h"
#include "base/checked.h"
#include "session/session.h"

/* ------------------------------------------------------------------ state.c: states as values */

/* An empty state. ERR_NOMEM. fini accepts a zeroed one, and releases everything. */
kvcsa_status kvi_state_init(const kvcsa_session *s, kvi_state *st, kvcsa_error *err);
void         kvi_state_fini(const kvcsa_session *s, kvi_state *st);
/* to (initialised and empty) = from: every reference once more; the writer stays `from`. */
void         kvi_state_copy(const kvcsa_session *s, kvi_state *to, const kvi_state *from);
/* Drop everything: n_tokens 0. */
void         kvi_state_clear(const kvcsa_session *s, kvi_state *st);
/* Forget window pages, raw rows and logits: a replay is due, unless the state is empty. */
void         kvi_state_lose_window(const kvcsa_session *s, kvi_state *st, uint32_t how);
/* The pages are those of a window stored at position pos. */
void         kvi_state_stand_on_stored(const kvcsa_session *s, kvi_state *st, uint64_t pos);
/* The raw rows of the entry that its last token began are there. */
int          kvi_state_has_raw_rows(const kvcsa_session *s, const kvi_state *st);
/* An exact session that can have exact logits takes no others: a step brings them back. */
void         kvi_state_drop_approx_logits(const kvcsa_session *s, kvi_state *st);
/* Lose the window, and take one that is stored beside the chain if that saves work. */
void         kvi_state_rebuild_window(const kvcsa_session *s, kvi_state *st, uint32_t how);
/* Keep the first `position` tokens; windows survive a step back within the ring. Cannot fail. */
void         kvi_state_cut(const kvcsa_session *s, kvi_state *st, uint64_t position, uint32_t how);
/* The session's state is replaced; nothing is queued. st is empty afterwards. */
void         kvi_session_install(kvcsa_session *s, kvi_state *st);
/* What a replay that has begun, or an append that was adopted whole, left behind: mark, plan and
 * reservation. For those who change the state, or begin something new, without a queue. */
void         kvi_session_forget_plan(kvcsa_session *s);

kvi_logits *kvi_logits_create(const kvcsa_session *s); /* NULL = out of memory */
void        kvi_logits_release(const kvcsa_session *s, kvi_logits *l); /* accepts NULL */

/* Room for `need` token ids in a list whose first `used` are kept. What it leaves behind is zeroed:
 * a session that is erased later leaves no ids in memory that it no longer knows. 0 = out of
 * memory. */
int kvi_session_grow_ids(const kvcsa_session *s, kvi_buf *buf, size_t used, size_t need);

/* Blocks of the chain and the tail, in s->blocks, and their parts: [0, ceil(n_tokens /
 * block_tokens)) and room for n_more. ERR_NOMEM. */
kvcsa_status kvi_session_view(kvcsa_session *s, uint64_t n_more, kvcsa_error *err);
/* What has changed of the view goes to where operators find it. ERR_NOMEM, ERR_BACKEND. */
kvcsa_status kvi_session_send_view(kvcsa_session *s, kvcsa_error *err);
/* There: KVI_PARTS_*. */
uint8_t *const *kvi_session_parts(const kvcsa_session *s, uint32_t which);
void            kvi_session_free_view(kvcsa_session *s);

static inline kvi_exec kvi_session_exec(const kvcsa_session *s)
{
    return (kvi_exec){.ops = kvi_pool_ops(s->pool),
                      .dev = kvi_pool_device(s->pool),
                      .allocator = kvi_pool_allocator(s->pool),
                      .flags = s->op_flags,
                      .tap = s->tap};
}

static inline uint32_t kvi_session_block_tokens(const kvcsa_session *s)
{
    return s->model->plan.block_tokens;
}

static inline uint64_t kvi_session_blocks_for(const kvcsa_session *s, uint64_t n_tokens)
{
    return kvi_div_up(n_tokens, kvi_session_block_tokens(s));
}

static inline kvi_block **kvi_session_blocks(const kvcsa_session *s)
{
    return s->blocks.data;
}

/* Blocks of a state's chain. */
static inline uint64_t kvi_state_n_full(const kvi_state *st)
{
    return st->last ? kvi_block_depth(st->last) + 1 : 0;
}

/* Where the tail begins: behind the chain. */
static inline uint64_t kvi_state_begin_of_tail(const kvcsa_session *s, const kvi_state *st)
{
    return kvi_state_n_full(st) * kvi_session_block_tokens(s);
}

static inline int32_t *kvi_session_queue(const kvcsa_session *s)
{
    return (int32_t *)s->queue.data + s->first_queued;
}

/* ------------------------------------------------------------------ session.c */

/* settings are resolved. */
kvcsa_status kvi_session_create_with(kvcsa_pool *pool, kvcsa_model *model, const kvi_settings *set,
                                     int cache_only, kvcsa_session **out, kvcsa_error *err);
/* params as the caller gave them. */
kvcsa_status kvi_session_resolve(const kvi_plan *plan, const kvcsa_session_params *p,
                                 kvi_settings *set, kvcsa_error *err);
kvi_append  *kvi_session_first_append(const kvcsa_session *s); /* NULL = none */
void         kvi_session_drop_append(kvcsa_session *s);
void         kvi_session_drop_adopt(kvcsa_session *s);

/* ------------------------------------------------------------------ queue.c */

/* (S8) Search for the known prefix of session and queue; writes the report. adopt is empty before.
 * ERR_NOMEM. */
kvcsa_status kvi_session_look_up(kvcsa_session *s, kvcsa_error *err);
void         kvi_session_report_kept(kvcsa_session *s); /* nothing is queued */
void         kvi_session_trace_reuse(const kvcsa_session *s);
/* (S7) Reserve what now, adopt, queue and replay need; gives back what they do not. Without a queue
 * nothing is needed, but for a replay that is about to run (with_replay). ERR_FULL: as before. */
kvcsa_status kvi_session_reserve(kvcsa_session *s, int with_replay, kvcsa_error *err);
/* Of the widest layer. */
uint64_t     kvi_session_window_tokens(const kvcsa_session *s);
/* It asks for the bits of an undisturbed run: approximate windows are not good enough. */
int          kvi_session_is_exact(const kvcsa_session *s);
/* KVI_REPLAY_* of its rewinds. */
uint32_t     kvi_session_default_replay(const kvcsa_session *s);
/* Pages that the rows [begin, end) are written to. */
uint64_t     kvi_session_pages_of(const kvcsa_session *s, uint64_t begin, uint64_t end);
/* (S2) `mine`: the session is its writer. */
int          kvi_session_is_writable(const kvcsa_session *s, const kvi_block *block, int mine);
/* Rows of layer 0 that a replay up to hit runs again; and that the next step will. */
uint64_t     kvi_session_replay_rows(const kvcsa_session *s, uint64_t hit, uint32_t how);
uint64_t     kvi_session_rows_to_replay(const kvcsa_session *s);

/* ------------------------------------------------------------------ limits.c */

/* Settings, or hidden spans, let it see less than the plan says: what it makes is approximate. */
int          kvi_session_is_limited(const kvcsa_session *s);
void         kvi_session_init_limits(kvcsa_session *s); /* from the settings */
kvcsa_status kvi_session_copy_limits(kvcsa_session *to, const kvcsa_session *from,
                                     kvcsa_error *err);
/* The attention that was counted belongs to other tokens. */
void         kvi_session_clear_mass(kvcsa_session *s);
/* Nothing is hidden or counted any more. */
void         kvi_session_clear_limits(kvcsa_session *s);
/* Room for the counts of a chunk up to position `end`. ERR_NOMEM. */
kvcsa_status kvi_session_prepare_counts(kvcsa_session *s, uint64_t end, kvcsa_error *err);
/* Summed over the layers of each KVCSA_LAYERS_*: [KVCSA_N_LAYER_GROUPS]. */
void         kvi_session_group_work(const kvcsa_session *s, kvcsa_work *step, kvcsa_work *total);
/* A new step: what the last one counted goes to those before. */
void         kvi_session_begin_work(kvcsa_session *s);

/* ------------------------------------------------------------------ one chunk: chunk.c */

typedef struct kvi_chunk { /* of one session inside a step */
    kvcsa_session    *s;
    kvcsa_progress_fn progress;
    void             *user;
    uint64_t          n_before;   /* rows done of the append */
    uint32_t          n_reported; /* of the logit rows */
} kvi_chunk;

/* Prepare the next rows, at most max_rows (> 0): adopts first, acquires and copies what the rows
 * will write. Fills the slice. 0 rows: nothing is left to run (adopting was enough). */
kvcsa_status kvi_chunk_plan(kvi_chunk *c, uint64_t max_rows, kvi_net_slice *slice,
                            kvcsa_error *err);
/* The run went well: its windows, as copies for kvi_net_commit_all; then all the rest. net NULL:
 * nothing was computed (cache_only), and there are no windows. */
void         kvi_chunk_commit_windows(kvi_chunk *c, kvi_net *net, const kvi_net_slice *slices,
                                      size_t i);
void         kvi_chunk_commit(kvi_chunk *c, const kvi_net *net, const kvi_net_slice *slices,
                              size_t i);
/* ... or nothing: nobody knows what the pages hold now, they have to be rebuilt. Entries of the
 * chunk lie behind the session's tokens. */
void         kvi_chunk_lose_windows(kvi_chunk *c);
/* It did not. */
void         kvi_chunk_undo(kvi_chunk *c);
/* Somebody asked to stop: rolls back and answers ERR_CANCELLED. */
kvcsa_status kvi_session_give_up(kvcsa_session *s, kvcsa_error *err);
void         kvi_session_drop_mark(kvcsa_session *s); /* (S4); there need not be one */

/* Something is queued, to be replayed, or the logits are wanted back. */
int  kvi_session_has_work(const kvcsa_session *s);

/* Rows that each layer runs from here to `end`, and where a replay begins: into first_rows and
 * replay_pos. */
void kvi_session_plan_forward(kvcsa_session *s, uint64_t end);

#endif
