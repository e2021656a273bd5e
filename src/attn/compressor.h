/* Tokens -> entries: every `ratio` tokens become one latent, from which come the index key and
 * the main entry. Rows of several slices go through the matrices together. */
#ifndef KVI_COMPRESSOR_H
#define KVI_COMPRESSOR_H

#include "backend/exec.h"

typedef struct kvi_compress_slice { /* consecutive tokens of one timeline */
    uint64_t pos;       /* of the first row */
    size_t   n_rows;
    float   *kept;      /* [max_kept, 2, entry_width] out: raw rows of the last tokens that begin an
                         * entry, ascending */
    uint32_t max_kept;  /* 1 .. */
    uint32_t n_kept;    /* out */
    int      replay;    /* the entries are there: keep raw rows only */
    size_t   n_slots;   /* of entry_pos that are the slice's; those without an entry come last */
    size_t   n_entries; /* out */
} kvi_compress_slice;

typedef struct kvi_compress_group { /* neighbouring slices that operators take in one call */
    size_t   first, n;      /* all with the same geometry; may differ in n_slots */
    size_t   pending_off;   /* bytes: of the layer inside a page of raw rows */
    uint32_t pending_slots;
} kvi_compress_group;

typedef struct kvi_compress_params {
    kvi_exec            exec;
    kvi_copies         *copies;       /* empty */
    const kvi_plan_row *row;          /* of the owner */
    const kvi_matrix   *wkv, *wgate;  /* wgate only for a gated pool */
    const kvi_matrix   *index_wk;
    const float        *norm, *index_k_norm;
    kvi_rotary          rotary;
    const float        *x;            /* [rows of all slices, hidden], the layer's normed input */
    float              *x_spare;      /* scratch of the same size; used if a slice is replayed */
    float              *k, *gate;     /* scratch [rows, entry_width] each */
    float              *latent;       /* scratch [rows, entry_width] */
    float              *key;          /* scratch [rows, index_width] */
    const uint64_t     *entry_pos;    /* [slots] positions of the entries that the rows complete,
                                       * slice by slice; KVI_NO_ENTRY = none. The memory of
                                       * operators, likewise below */
    const uint64_t     *turn_pos;     /* [slots] the same for rotations, 0 = none */
    const kvi_slice    *tables;       /* [n_slices] */
    const kvi_slice_rows *rows;       /* [n_slices] */
    kvi_slice_rows     *gathered[2];  /* [n_slices] for the host and for operators: where rows are,
                                       * if a slice is replayed */
    const kvi_kv_owner *owner;
    kvi_compress_slice *slices;       /* [n_slices] in the order of their rows in x */
    size_t              n_slices;
    const kvi_compress_group *groups; /* [n_groups] those that have rows, in order */
    size_t              n_groups;
    float               eps;
} kvi_compress_params;

/* Writes every entry that the rows complete. */
kvcsa_status kvi_compress(const kvi_compress_params *p, kvcsa_error *err);

#endif
