/* The network around the cache: one chunk of one session, from tokens to logits.
 *
 * The session owns all state and gives views of it; a run reads them and writes entries behind
 * the committed ones (invisible until the session counts them in), everything else into its
 * workspace. So a run that fails has changed nothing, and the commit, which cannot fail, is a
 * few copies. */
#ifndef KVI_NET_H
#define KVI_NET_H

#include "backend/exec.h"
#include "model/model.h"

typedef struct kvi_net kvi_net;

typedef struct kvi_net_state { /* of the session */
    uint64_t        pos;         /* of the chunk's first row */
    const int32_t  *tokens;      /* [pos + n_rows] */
    uint8_t *const *index_parts; /* blocks for pos + n_rows tokens */
    uint8_t *const *main_parts;
    uint64_t       *floors;      /* [layers] no right window row of the layer lies below */
    uint8_t        *windows;     /* [layers] rings, kvi_plan_window_bytes() in all */
    float          *pending;     /* [layers with pending_bytes, 2, entry_width],
                                  * kvi_plan_pending_bytes() in all */
} kvi_net_state;

typedef struct kvi_net_run_params {
    kvi_exec        exec;
    kvi_net_state   state;
    uint32_t        n_rows;      /* 1 .. */
    const uint64_t *first_rows;  /* [layers + 1], see attn/swa_replay.h; 0 = all rows */
    int             replay;      /* 1 = entries are there: window and pending rows only */
    const uint32_t *logit_rows;  /* [n_logit_rows] rows of the chunk, ascending */
    uint32_t        n_logit_rows;
    int           (*stop)(void *user); /* asked between layers; not 0 = stop. May be NULL */
    void           *stop_user;
} kvi_net_run_params;

/* Rotation tables and workspace of one session. */
kvcsa_status kvi_net_create(const kvcsa_model *model, const kvcsa_allocator *a, kvi_net **out,
                            kvcsa_error *err);
void         kvi_net_destroy(kvi_net *net);

/* ERR_NOMEM, ERR_CANCELLED (stop said so), ERR_BACKEND: state as before. */
kvcsa_status kvi_net_run(kvi_net *net, const kvi_net_run_params *p, kvcsa_error *err);

/* After a run, with the same params: move window rows and pending rows into the state. */
void kvi_net_commit(kvi_net *net, const kvi_net_run_params *p);

/* Logits of the last run: f32 [n_logit_rows, vocab]. */
const float *kvi_net_logits(const kvi_net *net);

uint64_t kvi_net_workspace_bytes(const kvi_net *net);

#endif
