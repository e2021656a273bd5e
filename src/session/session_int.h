/* What the files of this room share. */
#ifndef KVI_SESSION_INT_H
#define KVI_SESSION_INT_H

#include "base/checked.h"
#include "session/session.h"

typedef struct kvi_stop_context {
    kvcsa_session         *s;
    const kvi_chunk_hooks *hooks;
    uint64_t               n_before; /* rows done of the append */
} kvi_stop_context;

static inline uint64_t kvi_session_blocks_for(const kvcsa_session *s, uint64_t n_tokens)
{
    return kvi_div_up(n_tokens, s->model->plan.block_tokens);
}

static inline kvi_block **kvi_session_blocks(const kvcsa_session *s)
{
    return s->blocks.data;
}

/* Entry i of the block table, which is the block and where its parts are. */
static inline void kvi_session_set_block(kvcsa_session *s, uint64_t i, kvi_block *block)
{
    kvi_session_blocks(s)[i] = block;
    ((uint8_t **)s->index_parts.data)[i] = kvi_block_index_part(block);
    ((uint8_t **)s->main_parts.data)[i] = kvi_block_main_part(block);
}

/* A run of n_rows from position pos on the session's state; logit rows are the caller's. */
kvi_net_run_params kvi_session_run_params(const kvcsa_session *s, uint64_t pos, uint32_t n_rows,
                                          kvi_stop_context *stop);

/* Rows that each layer runs from here to `end`, and where a replay begins. */
void kvi_session_plan_forward(kvcsa_session *s, uint64_t end);

/* (S6) The next rows of a replay. *n_done: rows run again. */
kvcsa_status kvi_session_replay_chunk(kvcsa_session *s, kvi_stop_context *stop, uint64_t max_rows,
                                      uint64_t *n_done, kvcsa_error *err);

#endif
