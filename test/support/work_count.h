/* What layers must have counted (kvcsa_work), from the rows of the plan and from which rows ran:
 * formulas of the tests' own, public header only. n = position + 1 tokens, m = n / ratio entries, K
 * = select_entries, B blocks of e entries are candidates:
 *
 *   Full       scores all m keys, where m > K (or where not all blocks can be candidates)
 *   source     publishes min(B, ceil(m / e)) blocks; the newest is always one of them
 *   Reindex    scores the entries of those blocks: m where they are all, else B e less what the
 *              newest block lacks
 *   Reuse      scores nothing
 *   attention  min(K, keys in reach) entries, and min(W, n - floor) window rows
 */
#ifndef TEST_WORK_COUNT_H
#define TEST_WORK_COUNT_H

#include "kvcsa.h"

typedef struct work_plan {
    kvcsa_plan_row *rows;     /* [n_layers] */
    uint32_t        n_layers;
    uint32_t        block_tokens;
    uint32_t        n_experts; /* of a token */
} work_plan;

void work_plan_init(work_plan *p, const kvcsa_model *model); /* free rows with free */

typedef struct work_limits {  /* of a session; 0 = the plan's */
    uint32_t select_entries;
    uint32_t candidate_blocks;
    int      window_only;
} work_limits;

typedef struct work_pick { /* what one row's selection came to */
    uint64_t scored;       /* 1 = keys were scored */
    uint64_t n_keys;       /* scored */
    uint64_t n_candidates; /* blocks published or searched, of a scored row */
    uint64_t index_parts;  /* cache blocks that the keys lie in */
    uint64_t n_ids;        /* selected */
    uint64_t main_parts;   /* cache blocks that they lie in */
} work_pick;

/* By the formulas above. index_parts of a Reindex layer and main_parts depend on scores: 0. */
work_pick work_pick_of(const work_plan *p, uint32_t layer, uint64_t pos, const work_limits *limits);

/* Cache blocks that ascending ids lie in; rows: entries of a cache block. */
uint64_t work_count_parts(const int32_t *ids, uint64_t n, uint32_t rows);

typedef struct work_forward { /* rows that a session ran */
    uint64_t        begin, end; /* in layer 0 */
    uint64_t        chunk;
    const uint64_t *first;    /* [n_layers + 1] layer l writes window rows from first[l] on, and
                               * asks queries from first[l + 1] on; NULL = all rows everywhere */
    const uint64_t *floors;   /* [n_layers] no window row below; NULL = 0 */
    int             replay;   /* nothing but window rows and raw rows is written */
    uint32_t        n_slots;  /* raw rows that are kept of an owner, 0 = 1 */
    work_limits     limits;
    const work_pick *picks;   /* [n_layers, n_picks] of selecting layers; NULL = formulas */
    uint64_t        first_pick; /* position of the first */
    uint64_t        n_picks;  /* positions */
} work_forward;

/* Adds to layers[n_layers]. */
void work_add_forward(const work_plan *p, const work_forward *f, kvcsa_work *layers);

/* KVCSA_LAYERS_* of a layer. */
uint32_t work_group(const work_plan *p, uint32_t layer);
/* to += from, all counts. */
void work_add(kvcsa_work *to, const kvcsa_work *from);

enum { /* of work_differs: what is not compared */
    WORK_BUT_PARTS = 1u, /* n_blocks_touched */
    WORK_BUT_WRITTEN = 2u /* written_bytes */
};
/* Name of the first count that differs, with both values; NULL = none. Static storage. */
const char *work_differs(const kvcsa_work *got, const kvcsa_work *want, uint32_t but);

/* What n sessions of n_tokens read by the published formula of the released model:
 * R(n) = 68 (2.5 n + 4 min(n, 16384)) + 288 (18 min(n / 2, 512) + 20 min(n, 512)) + 528 40 min(n,
 * 128) */
uint64_t work_released_read_bytes(uint64_t n_tokens);

#endif
