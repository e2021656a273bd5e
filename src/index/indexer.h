/* Which entries a query attends: scores of the index keys, two-level candidates, exact top-k. */
#ifndef KVI_INDEXER_H
#define KVI_INDEXER_H

#include <stdbool.h>

#include "backend/exec.h"

/* What a session lets a selection see, where that is less than the plan says. */
typedef struct kvi_select_limits {
    uint32_t       select_entries;   /* 0 = the plan's; likewise below */
    uint32_t       candidate_blocks;
    int            window_only;      /* 1 = nothing is selected */
    uint32_t       span_tokens;
    const uint8_t *hidden;           /* u8 [n_hidden]: 1 = entries of the span are hidden */
    size_t         n_hidden;
    int            rest_hidden;      /* of the spans behind them */
} kvi_select_limits;

typedef struct kvi_select_params {
    kvi_exec            exec;
    const kvi_plan_row *row;         /* of the layer that selects */
    const kvi_kv_owner *owner;       /* of the keys */
    kvi_slices          of;          /* whose rows these are */
    const float        *queries;     /* [n_rows, heads, width], rotated */
    int8_t             *codes;       /* scratch [n_rows, heads, width] */
    float              *scales;      /* scratch [n_rows, heads, width / 32] */
    float              *weights;     /* [n_rows, heads]; scaled here */
    const uint64_t     *visible;     /* [n_rows], ascending in a slice: entries that a row sees,
                                      * for the host */
    const uint64_t     *n_visible;   /* ... and for operators */
    float              *scores;      /* scratch of kvi_select_scratch() floats */
    size_t              n_scores;
    int32_t            *blocks;      /* [n_rows, candidate_blocks]: written by a source, read by
                                      * a consumer */
    uint32_t           *n_blocks;    /* [n_rows] */
    int32_t            *ids;         /* [n_rows, select_entries]: ascending, -1 padded */
    size_t              n_rows;
    const kvi_select_limits *limits; /* of a single slice; NULL = what the plan says */
    const uint8_t      *hidden;      /* of the limits, where operators find it */
    kvcsa_work *const  *work;        /* [slices] n_selections, n_keys_scored, n_blocks_touched and
                                      * bytes are added as far as the host knows them; NULL = not
                                      * counted */
    uint64_t           *tally;       /* [3] of the first slice: the rest, see kvi_select_add_tally */
    size_t              tally_stride; /* to that of the next */
} kvi_select_params;

/* Rows that see no more than select_entries, none of them hidden, select all of them without being
 * scored. */
kvcsa_status kvi_select(const kvi_select_params *p, kvcsa_error *err);

/* 1 = the limits leave out something. */
int kvi_select_is_limited(const kvi_select_limits *limits);

/* Once the host has the tally of all selections of a layer: adds it. owner: of the keys. */
void kvi_select_add_tally(const kvi_plan_row *row, const kvi_kv_owner *owner,
                          const uint64_t tally[3], kvcsa_work *work);

/* Floats of scratch for n_rows rows that see at most n_entries; bounded by a tile whatever the
 * two are, but for one row. apart: of a device, where scores of lengths that are not far apart take
 * equally much. */
size_t kvi_select_scratch(const kvi_plan_row *row, uint64_t n_entries, size_t n_rows, bool apart);

#endif
