/* The network around the cache: rows of one or more sessions, from tokens to logits.
 *
 * A slice is a run of consecutive rows of one session. Rows of all slices go through the matrix
 * kernels together; what belongs to one timeline (pairing tokens into entries, selection,
 * attention) is done slice by slice. Rows never mix, so each slice gets the bits of its solo run.
 *
 * The session owns all state and gives views of it; a run reads them and writes entries behind
 * the committed ones (invisible until the session counts them in), everything else into its
 * workspace. So a run that fails has changed nothing, and the commit, which cannot fail, is a
 * few copies. */
#ifndef KVI_NET_H
#define KVI_NET_H

#include "attn/window.h"
#include "backend/exec.h"
#include "index/indexer.h"
#include "model/model.h"

typedef struct kvi_net kvi_net;

typedef struct kvi_net_slice {
    uint64_t               pos;    /* of the first row */
    uint32_t               n_rows; /* 1 .. */
    uint32_t               n_logit_rows;
    const uint32_t        *logit_rows;  /* [n_logit_rows] rows of the slice, ascending */
    const int32_t         *tokens;      /* [n_rows]; tokens[-1], tokens[-2], ... are those in front:
                                         * kvi_net_lookback() of them, or pos if that is less */
    uint8_t *const        *index_parts; /* blocks for pos + n_rows tokens, in the memory of
                                         * operators; the tables are there too */
    uint8_t *const        *main_parts;
    const kvi_window_geom *geom;
    uint8_t *const        *window_pages; /* [n_pages], likewise */
    const uint8_t         *pending;      /* page of raw rows; NULL where pos is at an entry's
                                          * beginning in every owner */
    const uint64_t        *floors;     /* [layers] no right window row of the layer lies below */
    const uint64_t        *first_rows; /* [layers + 1], see attn/swa_replay.h; 0 = all rows */
    int                    replay;     /* 1 = entries are there: window and pending rows only */
    const kvi_select_limits *limits;   /* NULL = what the plan says */
    kvcsa_work            *work;       /* [layers] what the run does is added; may be NULL */
    double                *mass;       /* NULL, or [n_mass] what entries of span i (limits->
                                        * span_tokens) receive is added to mass[i] */
    size_t                 n_mass;     /* spans of pos + n_rows tokens */
    int                  (*stop)(void *user); /* asked between layers; not 0 = stop. May be NULL */
    void                  *stop_user;
    int                    stopped;    /* result: 1 = nothing of it may be committed */
} kvi_net_slice;

/* Rotation tables and workspace; grows to the largest run it has seen. weights: the model's, where
 * operators find them; borrowed. memory: of the operators that run it; copied. */
kvcsa_status kvi_net_create(const kvcsa_model *model, const kvi_weights *weights,
                            const kvi_memory *memory, kvi_net **out, kvcsa_error *err);
void         kvi_net_destroy(kvi_net *net); /* accepts NULL */
void         kvi_net_wipe(kvi_net *net);    /* zero the workspace; accepts NULL */

/* Tokens in front of a row that the model looks at (n-grams). */
uint32_t kvi_net_lookback(const kvcsa_model *model);

/* ERR_NOMEM, ERR_BACKEND, ERR_CANCELLED (every slice was stopped): state as before. OK: slices that
 * were stopped say so, the others can be committed. */
kvcsa_status kvi_net_run(kvi_net *net, const kvi_exec *exec, kvi_net_slice *slices,
                         size_t n_slices, kvcsa_error *err);

/* After a run, for slice i (the same slices): window rows, raw rows and floors go into the state.
 * Pages that the slice's last ring rows fall into, and the pending page if there is one, are the
 * caller's alone. window_pages: the table in the host's memory. floors: [layers], updated. */
void kvi_net_commit(kvi_net *net, const kvi_net_slice *slices, size_t i,
                    uint8_t *const *window_pages, uint8_t *pending, uint64_t *floors);
/* ... and now they are there: of all slices at once. ERR_BACKEND, ERR_NOMEM: the device is in
 * trouble (never where the memory is the host's); the windows are then undefined. */
kvcsa_status kvi_net_commit_all(kvi_net *net, kvcsa_error *err);

/* Short runs of a device that are alike are recorded once as a graph and then run as one: how many
 * graphs there have been, and runs of them. */
void kvi_net_graphs(const kvi_net *net, uint64_t *n_recorded, uint64_t *n_runs);

/* Logits of slice i of the last run: f32 [n_logit_rows, vocab], in the host's memory. */
const float *kvi_net_logits(const kvi_net *net, const kvi_net_slice *slices, size_t i);

uint64_t kvi_net_workspace_bytes(const kvi_net *net); /* accepts NULL */

#endif
