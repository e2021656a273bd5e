/* Operators that are noted instead of run: a list of calls that can be compared with another one,
 * run, and recorded as a graph of a device. Host code that enqueues operators is the same whether
 * they are noted or not. */
#ifndef KVI_TAPE_H
#define KVI_TAPE_H

#include "backend/memory.h"
#include "base/hash.h"

typedef struct kvi_tape {
    const kvcsa_allocator *allocator;
    kvi_buf                bytes; /* calls: what, its size, its parameters */
    size_t                 used;
    int                    lost;  /* 1 = a call could not be noted: play tells */
} kvi_tape;

/* A backend whose device is a tape. All operators, fills and moves within are noted and answer OK.
 * What needs the device at once (allocation, bytes from and to the host, a wait) answers
 * ERR_INTERNAL. */
const kvi_backend_ops *kvi_tape_ops(void);
static inline kvi_device *kvi_tape_device(kvi_tape *tape)
{
    return (kvi_device *)(void *)tape;
}

void kvi_tape_clear(kvi_tape *tape);
void kvi_tape_fini(kvi_tape *tape);
/* Enqueues the calls, in order, up to the first that fails. ERR_NOMEM: some were not noted. */
kvcsa_status kvi_tape_play(const kvi_tape *tape, const kvi_memory *m, kvcsa_error *err);

/* Graphs of the tapes that were played last. A tape is known by its length and by 128 bits of hash, as
 * blocks are by theirs: to keep the tapes would take as much memory as a session's tables. What
 * parameters point to is not looked at: weights and layouts that stay where they are and as they are. */
#define KVI_GRAPHS 8u
typedef struct kvi_graphs {
    struct {
        kvi_hash128 key;
        size_t      size;
        kvi_graph  *graph;    /* NULL = not recorded yet */
        int         refused;  /* 1 = the device could not */
        uint64_t    turn;     /* when it was last played; 0 = free */
    } of[KVI_GRAPHS];
    uint64_t n_turns;
    uint64_t n_recorded;
    uint64_t n_runs;         /* of graphs */
} kvi_graphs;

/* Plays a tape: the first time call by call, which gives operators their scratch; from the second
 * time on as one graph. */
kvcsa_status kvi_graphs_play(kvi_graphs *g, const kvi_memory *m, const kvi_tape *tape,
                             kvcsa_error *err);
void         kvi_graphs_fini(kvi_graphs *g, const kvi_memory *m);

#endif
