/* Tokens -> entries: every `ratio` tokens become one latent, from which come the index key and
 * the main entry. Rows of several slices go through the matrices together. */
#ifndef KVI_COMPRESSOR_H
#define KVI_COMPRESSOR_H

#include "backend/exec.h"

typedef struct kvi_compress_slice { /* consecutive tokens of one timeline */
    kvi_entries  to;
    uint64_t     pos;         /* of the first row */
    size_t       n_rows;
    const float *pending;     /* [2, entry_width] k and gate of the token in front; read if pos is
                               * inside an entry */
    float       *kept;        /* [max_kept, 2, entry_width] out: raw rows of the last tokens that
                               * begin an entry, ascending */
    uint32_t     max_kept;    /* 1 .. */
    uint32_t     n_kept;      /* out */
    int          replay;      /* the entries are there: keep raw rows only */
    uint64_t     first_entry; /* of the call itself */
    size_t       n_entries;
} kvi_compress_slice;

typedef struct kvi_compress_params {
    kvi_exec            exec;
    kvi_copies         *copies;       /* empty */
    const kvi_plan_row *row;          /* of the owner */
    const kvi_matrix   *wkv, *wgate;  /* wgate only for a gated pool */
    const kvi_matrix   *index_wk;
    const float        *norm, *index_k_norm;
    kvi_rotary          rotary;
    const float        *x;            /* [rows of all slices, hidden], the layer's normed input */
    float              *gathered;     /* scratch of the same size; used if a slice is replayed */
    float              *k, *gate;     /* scratch [rows, entry_width] each */
    float              *latent;       /* scratch [rows, entry_width] */
    float              *key;          /* scratch [rows, index_width] */
    const uint64_t     *entry_pos;    /* [entries] positions of those that the rows complete, slice
                                       * by slice */
    kvi_compress_slice *slices;       /* [n_slices] in the order of their rows in x */
    size_t              n_slices;
    float               eps;
} kvi_compress_params;

/* Writes every entry that the rows complete. */
kvcsa_status kvi_compress(const kvi_compress_params *p, kvcsa_error *err);

#endif
