/* Tokens -> entries: every `ratio` tokens become one latent, from which come the index key and
 * the main entry. */
#ifndef KVI_COMPRESSOR_H
#define KVI_COMPRESSOR_H

#include "backend/exec.h"

typedef struct kvi_compress_params {
    kvi_exec            exec;
    const kvi_plan_row *row;          /* of the owner */
    const kvi_matrix   *wkv, *wgate;  /* wgate only for a gated pool */
    const kvi_matrix   *index_wk;
    const float        *norm, *index_k_norm;
    kvi_rotary          rotary;
    kvi_entries         to;
    const float        *x;            /* [n_rows, hidden], the layer's normed input */
    const float        *pending;      /* [2, entry_width] k and gate of the token in front, if
                                       * pos is inside an entry */
    float              *pending_out;  /* the same after the chunk, written if its end is inside
                                       * an entry */
    float              *k, *gate;     /* scratch [n_rows + 1, entry_width] each */
    float              *latent;       /* scratch [n_rows, entry_width] */
    float              *key;          /* scratch [n_rows, index_width] */
    uint64_t           *entry_pos;    /* scratch [n_rows] */
    int                 replay;       /* the entries are there: make the pending row only */
    uint64_t            pos;          /* of the first row */
    size_t              n_rows;
    float               eps;
} kvi_compress_params;

/* Writes every entry that the rows complete. */
kvcsa_status kvi_compress(const kvi_compress_params *p, kvcsa_error *err);

#endif
