/* Long contexts for real: a synthetic checkpoint with the released cache geometry (40 layers, head
 * 512, index 32 x 128, top-512, 2048 candidate blocks of 8) and a small network around it, sessions
 * that are filled with quantised random entries instead of being computed, and decode steps that
 * compute everything, watched operator by operator. Without CMocka: what fails ends the program. */
#ifndef TEST_LONG_CONTEXT_H
#define TEST_LONG_CONTEXT_H

#include <stdatomic.h>

#include "session/session.h"
#include "support/work_count.h"

#define LONG_CONFIG "test/data/synth-released-cache.json"
enum {
    LONG_LAYERS = 40,
    LONG_SELECTORS = 8, /* 2, 8, 14, 20 Full, then 24, 28, 32, 36 Reindex */
    LONG_FULL = 4,
    LONG_TOP_K = 512,
    LONG_BLOCKS = 2048,
    LONG_BLOCK_ENTRIES = 8,
    LONG_RATE = 890      /* bytes per token */
};

/* What the operators of one step were asked for, in the order of the layers. ids and blocks are of
 * steps of one row. */
typedef struct long_step {
    int64_t  total_ns;
    int64_t  operators_ns;  /* of it: inside operators */
    uint32_t n_scores, n_topk, n_candidates, n_attends; /* calls */
    int64_t  score_ns[LONG_SELECTORS];
    int64_t  topk_ns[LONG_SELECTORS];
    int64_t  candidates_ns;
    int64_t  attend_ns[LONG_LAYERS];
    int32_t  ids[LONG_SELECTORS][LONG_TOP_K]; /* ascending, -1 padded */
    int32_t  blocks[LONG_BLOCKS];
    uint32_t n_blocks;
    size_t   most_scores;   /* floats of scores that one call filled, strides included */
    size_t   scratch_bytes; /* most that one of these operators had from the allocator */
} long_step;

typedef struct long_world { /* one at a time: an operator has no user pointer */
    kvcsa_model     *model;
    kvcsa_pool      *pool;
    work_plan        plan;
    kvcsa_allocator  hook;         /* of the pool: counts */
    atomic_uint_fast64_t n_bytes;  /* outstanding */
    atomic_uint_fast64_t peak_bytes;
    uint64_t         empty_bytes;  /* of a pool without sessions */
    kvi_backend_ops  ops;          /* the pool's, watched */
    const kvi_backend_ops *real;
    long_step        step;         /* of the last long_decode or long_run */
} long_world;

/* The checkpoint, made in the folder of `program` (argv[0]) if it is not there; its path into dir
 * [cap]. */
void long_checkpoint(const char *program, char *dir, size_t cap);

void long_open(long_world *w, const char *dir, uint32_t n_threads);
void long_close(long_world *w);

/* An empty session that is private and uses no known prefix; chunk 0 = the default. */
kvcsa_session *long_session(long_world *w, uint32_t chunk);
/* Filled up to n_tokens, an even number, in appends of a few thousand tokens: every entry of every
 * owner, and the windows of the last tokens. Equal contents however it is called. */
void long_fill(long_world *w, kvcsa_session *s, uint64_t n_tokens);
/* n tokens, computed; fills w->step. Returns nanoseconds. */
int64_t long_run(long_world *w, kvcsa_session *s, uint32_t n);

int32_t long_token(uint64_t position); /* the text: ids all over the vocabulary */

/* The last step of the session, long_run of n rows: every count of every layer against the
 * formulas, cache blocks touched against the ids that were selected (n = 1), what was read against
 * the plan's cost and the published formula; what the Reindex layers selected lies in the candidate
 * blocks. NULL, or what is wrong, in static storage. From 2048 tokens on. */
const char *long_check_step(long_world *w, kvcsa_session *s, uint32_t n);

/* Sums over a step. */
typedef struct long_times {
    int64_t full_ns;    /* scores and top-k of the Full layers, candidates */
    int64_t reindex_ns; /* scores and top-k of the Reindex layers */
    int64_t attend_ns;  /* attention of all layers that read entries */
    int64_t reuse_ns;   /* of these, of the Reuse layers */
} long_times;
long_times long_times_of(const long_world *w);

/* Memory of a session beyond its payload of 890 bytes a token, as a share of it: all that the
 * allocator gave for blocks and what describes them. What is apart: window pages and raw rows, the
 * logits, the workspace of a step. */
typedef struct long_memory {
    uint64_t payload_bytes;
    uint64_t window_bytes;    /* slabs and records */
    uint64_t logits_bytes;
    uint64_t workspace_bytes;
    uint64_t other_bytes;     /* payload and overhead */
    double   overhead;        /* other / payload - 1 */
} long_memory;
long_memory long_memory_of(long_world *w, kvcsa_session *s);

#endif
