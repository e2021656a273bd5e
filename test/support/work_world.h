/* For tests of what layers count: one world on the random checkpoint T1 (10 layers, window 16, top-8, 3 candidate blocks of 4, blocks
 * of 128 tokens; Full 2, 4 (ratio 2) and 5 (ratio 1, the source), Reindex 7), sessions under the eyes of the tap, selections once
 * more from the scores that it shows, and counts against the formulas of work_count.h. */
#ifndef WORK_WORLD_H
#define WORK_WORLD_H

#include "support/cold.h"
#include "support/work_count.h"

#define N 420u
#define TOP_K 8u
#define SPAN 16u
#define N_SPANS (N / SPAN + 1)
#define SOURCE 5u /* the layer whose scores rank the candidates */

typedef struct world {
    kvcsa_model *model;
    kvcsa_pool  *pool;
    work_plan    plan;
    int32_t      ids[N];
    work_pick    picks[T1_LAYERS * N]; /* of an undisturbed run */
} world;

typedef struct setting {
    uint32_t       flags;
    work_limits    limits;
    const uint8_t *hidden; /* [N_SPANS], NULL = none */
} setting;

/* Of a group of tests: *state is the world. */
int world_set_up(void **state);
int world_tear_down(void **state);

/* Does the layer select entries by scores of its own? */
int selects(const work_plan *p, uint32_t layer);
/* Takes nothing over from other sessions; chunk 0 = the default. */
kvcsa_session *plain_session(const world *w, uint32_t chunk);
/* All N tokens under the eyes of the tap: selections and counts are checked; picks [T1_LAYERS, N]
 * are what the rows selected. */
void watch(const world *w, const setting *set, uint32_t chunk, work_pick *picks);

/* Rows [begin, end) of an undisturbed session, and what its layers count for them. */
work_forward forward(const world *w, uint64_t begin, uint64_t end, uint64_t chunk);
void         expect(const world *w, uint64_t begin, uint64_t end, uint64_t chunk, kvcsa_work *layers);
void         add_layers(kvcsa_work *to, const kvcsa_work *from);
/* step and total [T1_LAYERS] are what every layer counted, and their sums what the groups did. */
void check_counts(const world *w, kvcsa_session *s, const kvcsa_work *step,
                  const kvcsa_work *total, uint32_t but);

#endif
