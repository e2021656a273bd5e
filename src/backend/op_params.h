/* One flat struct per operator. Shapes stand beside each pointer; [rows, width] is row-major,
 * strides count elements. All pointers are the device's memory (for the CPU: the host's). Rows
 * never mix: an output row depends on its own input row, on weights and on cached rows only, and
 * its bits (but for sign and payload of a NaN) do not depend on how many rows there are (batch
 * invariance). No struct has padding: calls are compared byte by byte (backend/tape.h). */
#ifndef KVI_OP_PARAMS_H
#define KVI_OP_PARAMS_H

#include <stddef.h>
#include <stdint.h>

#include "format/kv_layout.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"

enum { /* flags of operators; both belong to the reference mode of the scalar kernels, 0
        * otherwise */
    KVI_OP_ROUND_BF16 = 1u, /* round every result to bf16 */
    KVI_OP_ACT_QUANT = 2u   /* linear: quantise x (Q-SWA after bf16) in front of FP8 / FP4
                             * weights */
};

enum { KVI_W_NONE = 0, KVI_W_F32, KVI_W_BF16, KVI_W_FP8, KVI_W_FP8_ROW, KVI_W_FP4 };

/* A weight matrix [rows, cols], y = W x, in the checkpoint's bytes. Pointers may have any
 * alignment (mapped files).
 *   F32, BF16   data f32 / bf16 [rows, cols]
 *   FP8         data E4M3 [rows, cols], scale E8M0 [ceil(rows / 32), cols / 32]
 *   FP8_ROW     data E4M3 [rows, cols], scale E8M0 [rows, cols / 32] (Engram tables)
 *   FP4         data u8 [rows, cols / 2], even column in the low nibble, scale E8M0 [rows, cols
 *               / 32] */
typedef struct kvi_matrix {
    const uint8_t *data;
    const uint8_t *scale;
    uint32_t       kind; /* KVI_W_* */
    uint32_t       rows;
    uint32_t       cols;
    uint32_t       reserved;
} kvi_matrix;

/* Timelines (slices) among the rows of one call: row i is of slice i / each. What then belongs to one
 * timeline is read from these tables, in the memory of operators, and not from the fields of the
 * operator, so that a call is the same whatever the sessions are and can be recorded. */
typedef struct kvi_slice {
    uint8_t *const *index_parts;    /* [blocks], as in kvi_entries */
    uint8_t *const *main_parts;
    uint8_t *const *pages;          /* [n_pages], as in kvi_attend_params */
    const uint8_t  *pending;        /* page of raw rows; NULL = there is none */
} kvi_slice;
typedef struct kvi_slice_rows {     /* of a slice, in one layer */
    uint64_t pos;                   /* position of its first row that the layer made */
    uint64_t row;                   /* ... where that stands among the rows of all slices */
    uint64_t floor;                 /* no window key below this position */
} kvi_slice_rows;
typedef struct kvi_slices {
    const kvi_slice      *slices;   /* [n]; NULL = all rows are of one timeline, which the fields
                                     * describe */
    const kvi_slice_rows *rows;     /* [n] of the layer */
    size_t                each;     /* 1 .. */
} kvi_slices;
#define KVI_NO_ENTRY UINT64_MAX

typedef struct kvi_embed_params {   /* y[i] = row ids[i] of a matrix, dequantised */
    const kvi_matrix *table;
    const uint64_t   *ids;          /* [n_rows], below table->rows */
    float            *y;            /* [n_rows, cols] at y_stride */
    size_t            y_stride;
    size_t            n_rows;
    uint32_t          flags;
    uint32_t          reserved;
} kvi_embed_params;

typedef struct kvi_linear_params {  /* y[i][j] = x[i] . w[row0 + j], summed as base/vec.h says */
    const kvi_matrix *w;
    uint32_t          row0;         /* first weight row */
    uint32_t          n_out;        /* weight rows used */
    const float      *x;            /* [n_rows, w->cols] at x_stride */
    float            *y;            /* [n_rows, n_out] at y_stride */
    size_t            x_stride;
    size_t            y_stride;
    size_t            n_rows;
    uint32_t          flags;
    uint32_t          reserved;
} kvi_linear_params;

typedef struct kvi_norm_params {    /* y = w * (x * rsqrt(mean x^2 + eps)); rsqrt = 1 / sqrt,
                                     * IEEE */
    const float *x;                 /* [n_rows, width] at x_stride; y may be x */
    float       *y;
    const float *weight;            /* [width] */
    size_t       x_stride;
    size_t       y_stride;
    size_t       n_rows;
    uint32_t     width;
    float        eps;
    uint32_t     flags;
    uint32_t     reserved;
} kvi_norm_params;

typedef struct kvi_rope_params {    /* rotate the last n_rotated channels of every head, adjacent
                                     * pairs, in place */
    float          *x;              /* [n_rows, n_heads, width] at row_stride, heads at width */
    const float    *freqs;          /* f32 [n_rotated / 2] */
    const uint64_t *pos;            /* [n_rows]; angle = fp32(pos) * freq rounded to fp32 */
    size_t          row_stride;
    size_t          n_rows;
    uint32_t        n_heads;
    uint32_t        width;
    uint32_t        n_rotated;
    uint32_t        inverse;        /* 1 = rotate back */
    uint32_t        flags;
    uint32_t        reserved;
} kvi_rope_params;

typedef struct kvi_window_write_params { /* round to bf16, Q-SWA, pack: values then scales */
    const float *x;                 /* [n_rows, width] at x_stride, rotated */
    uint8_t     *rows;              /* [n_rows, row_bytes], contiguous */
    size_t       x_stride;
    size_t       n_rows;
    uint32_t     width;
    uint32_t     row_bytes;
} kvi_window_write_params;

typedef struct kvi_pool_pairs_params { /* out[j][c] = softmax over (g[2j][c], g[2j+1][c]) of
                                        * k[2j][c], k[2j+1][c] */
    const float *k;                 /* [2 n_pairs, width]; with a head: [2 n_pairs - 1, width] */
    const float *gate;              /* likewise */
    const float *head;              /* NULL, or k and then gate of the row in front of k[0]: [2,
                                     * width], the first row of the first pair */
    float       *out;               /* [n_pairs, width] */
    size_t       n_pairs;
    uint32_t     width;
    uint32_t     flags;
    /* With `of` (head NULL): pair j belongs to slice j / of.each and makes the entry of positions
     * p = entry_pos[j] and p + 1; KVI_NO_ENTRY: out[j] is 0. The row of position p is row
     * of.rows[s].row + p - of.rows[s].pos of k and gate; where p is below of.rows[s].pos, k and
     * then gate of it stand at slices[s].pending + pending_off + p / 2 % pending_slots x
     * pending_bytes. */
    kvi_slices      of;
    const uint64_t *entry_pos;      /* [n_pairs] */
    size_t          pending_off;    /* bytes: of the layer inside the page */
    uint32_t        pending_slots;
    uint32_t        pending_bytes;
} kvi_pool_pairs_params;

/* Rows of one owner inside a session's blocks: entry j is row j % rows_per_block of block j /
 * rows_per_block. */
typedef struct kvi_entries {
    const kvi_kv_owner *owner;
    uint8_t *const     *index_parts; /* [blocks] */
    uint8_t *const     *main_parts;  /* [blocks] */
} kvi_entries;

typedef struct kvi_entry_write_params { /* latents in the owner's entry_format (format/row.h), keys
                                         * rounded to bf16 and through Q-IDX; store */
    kvi_entries  to;
    const float *latent;            /* [n_rows, entry_width], rotated */
    const float *key;               /* [n_rows, index_width], rotated */
    uint64_t     first_entry;
    size_t       n_rows;
    /* With `of` (the tables of `to` are NULL): row j belongs to slice j / of.each and is entry
     * entry_pos[j] / ratio; KVI_NO_ENTRY: it is not stored. of.rows is not read. */
    kvi_slices      of;
    const uint64_t *entry_pos;      /* [n_rows] */
    uint32_t        ratio;
    uint32_t        reserved;
} kvi_entry_write_params;

/* Keys and values of consecutive positions into pages as paged_attend reads them: each head's row is
 * a row of format/row.h. */
typedef struct kvi_paged_write_params {
    const float    *k;              /* [n_rows, n_kv_heads, width] at k_row_stride, heads at
                                     * k_head_stride */
    const float    *v;              /* likewise */
    uint8_t *const *pages;          /* as in kvi_paged_attend_params */
    size_t          k_row_stride;
    size_t          k_head_stride;
    size_t          v_row_stride;
    size_t          v_head_stride;
    uint64_t        first;          /* position of row 0 */
    size_t          page_off;       /* bytes: this layer's rows inside a page */
    size_t          n_rows;
    uint32_t        n_kv_heads;
    uint32_t        width;
    uint32_t        page_rows;
    uint32_t        format;         /* KVCSA_FORMAT_* of keys and values */
} kvi_paged_write_params;

typedef struct kvi_index_query_params { /* round to bf16, Q-IDX; codes as twice their value; the
                                         * weights of the heads are scaled in place */
    const float *x;                 /* [n_rows, n_heads, width], rotated */
    int8_t      *codes;             /* [n_rows, n_heads, width] */
    float       *scales;            /* [n_rows, n_heads, width / 32]: the scale / 2, so that code
                                     * x scale is the value */
    float       *weights;           /* NULL, or [n_rows, n_heads]: times weight_scale (ROUND_BF16:
                                     * rounded) */
    size_t       n_rows;
    uint32_t     n_heads;
    uint32_t     width;
    float        weight_scale;
    uint32_t     flags;
} kvi_index_query_params;

/* score(row, j) = sum over heads of w[h] * max(0, q[h] . key[j]).
 * The dot product of a 32-channel block is an exact integer (codes x codes), times the query
 * scale, times the key scale / 2; blocks are added in order; heads are added in a tree: with P =
 * the power of two >= n_heads and absent heads 0, (h, h + P/2), (h, h + P/4), ... */
typedef struct kvi_index_score_params {
    kvi_entries     keys;           /* with `of`: the owner only */
    const int8_t   *codes;          /* as kvi_index_query_params */
    const float    *scales;
    const float    *weights;        /* [n_rows, n_heads], already times width^-0.5 * n_heads^-0.5 */
    const uint64_t *n_visible;      /* [n_rows]: entries 0..n_visible-1 are scored */
    const int32_t  *blocks;         /* NULL = all; else [n_rows, blocks_stride] candidate blocks,
                                     * ascending */
    const uint32_t *n_blocks;       /* [n_rows] */
    float          *scores;         /* [n_rows, scores_stride]; with blocks: the entries of the
                                     * listed blocks in order, invisible ones (behind n_visible
                                     * in the last block) -inf */
    size_t          scores_stride;  /* >= largest n_visible, or n_blocks x block_entries */
    size_t          blocks_stride;
    size_t          n_rows;
    uint32_t        n_heads;
    uint32_t        block_entries;
    uint64_t        all;            /* rows that see no more take all of it (kvi_topk_params): they
                                     * are not scored */
    kvi_slices      of;             /* of.rows is not read */
    float          *block_max;      /* NULL, or, without blocks, [n_rows, max_stride]: the largest
                                     * score of the visible entries b x block_entries .. of a row
                                     * that is scored, as kvi_candidates_params takes it; behind
                                     * the newest visible entry's block undefined */
    size_t          max_stride;     /* >= blocks of the largest n_visible */
} kvi_index_score_params;

/* Candidate blocks of a row: the block of the newest visible entry first, then the best by their
 * maximum, ties to the lower block; at most n_keep in all; a block whose maximum is -inf is
 * dropped. Ascending. Rows that see at most `all` entries, all of which n_keep blocks hold, take
 * the first blocks without a look at their scores. */
typedef struct kvi_candidates_params {
    const float    *scores;         /* [n_rows, scores_stride]; NULL = all visible scores are
                                     * equal */
    const uint64_t *n_visible;      /* [n_rows] */
    int32_t        *blocks;         /* [n_rows, blocks_stride] */
    uint32_t       *n_blocks;       /* [n_rows] */
    size_t          scores_stride;
    size_t          blocks_stride;  /* >= n_keep, the rest is -1; 0 = n_keep */
    size_t          n_rows;
    uint32_t        block_entries;
    uint32_t        n_keep;
    uint64_t        all;            /* 0 = no row */
    const float    *block_max;      /* NULL, or what index_score made of the same scores: they are
                                     * not read again; [n_rows, max_stride] */
    size_t          max_stride;
} kvi_candidates_params;

/* Ids of the k largest scores of a row, ascending ids; ties to the lower id; -inf is never
 * taken; the rest of ids_stride is -1. A row that sees at most `all` entries, k at most, takes
 * ids 0 .. n_visible - 1 without a look at its scores or blocks. */
typedef struct kvi_topk_params {
    const float    *scores;         /* [n_rows, scores_stride]; NULL, without blocks = all are
                                     * equal: the first k */
    const uint64_t *n_scores;       /* [n_rows]; or NULL with n_blocks */
    const int32_t  *blocks;         /* NULL: score i is entry i; else it is entry blocks[i /
                                     * block_entries] * block_entries + i % block_entries */
    const uint32_t *n_blocks;       /* [n_rows] or NULL; row i has n_blocks[i] x block_entries
                                     * scores */
    int32_t        *ids;            /* [n_rows, ids_stride] */
    size_t          scores_stride;
    size_t          blocks_stride;
    size_t          ids_stride;     /* >= k; 0 = k */
    size_t          n_rows;
    uint32_t        block_entries;
    uint32_t        k;
    uint64_t        all;            /* 0 = no row */
    const uint64_t *n_visible;      /* [n_rows]; read where all is not 0 */
} kvi_topk_params;

/* Scores of hidden entries become -inf. Entry j belongs to span j / span_entries. */
typedef struct kvi_hide_params {
    float          *scores;         /* [n_rows, scores_stride] */
    const uint64_t *n_scores;       /* as in kvi_topk_params */
    const int32_t  *blocks;         /* as in kvi_topk_params */
    const uint32_t *n_blocks;       /* as in kvi_topk_params */
    const uint8_t  *hidden;         /* u8 [n_hidden]: 1 = the span is hidden */
    size_t          n_hidden;       /* spans behind them: rest_hidden */
    size_t          scores_stride;
    size_t          blocks_stride;
    size_t          n_rows;
    uint32_t        block_entries;
    uint32_t        span_entries;
    uint32_t        rest_hidden;
    uint32_t        reserved;
} kvi_hide_params;

/* Softmax over window rows and selected entries together (not deduplicated), one latent for key
 * and value, sink in the denominator only. Slots of a row: n_window window slots, the oldest
 * first, positions max(floor, pos - n_window + 1) upwards (slots behind pos are empty), then the
 * k selected. Tiles of 64 slots with a running maximum from -1e30.
 *
 * With `of`: pages, the tables of entries, chunk_pos and floor are not read. For a row of slice s,
 * the window row of position p is row of.rows[s].row + p - of.rows[s].pos of chunk where p is not
 * below of.rows[s].pos, else it stands in of.slices[s].pages; floor is of.rows[s].floor. */
typedef struct kvi_attend_params {
    const float    *q;              /* [n_rows, n_heads, width] */
    float          *out;            /* [n_rows, n_heads, width] */
    const uint64_t *pos;            /* [n_rows], ascending by 1 (in a slice) */
    uint8_t *const *pages;          /* [n_pages] of window rows, for positions below chunk_pos:
                                     * position p stands in slot s = p % (n_pages * page_rows),
                                     * row s % page_rows of page s / page_rows; n_pages x
                                     * page_rows >= n_window */
    size_t          page_off;       /* bytes: this layer's rows inside a page */
    const uint8_t  *chunk;          /* [.., row_bytes]: row of position chunk_pos + i;
                                     * chunk_pos <= pos[0] */
    const float    *sink;           /* [n_heads] */
    const int32_t  *ids;            /* [n_rows, k] selected entries, -1 = empty; NULL when k is 0 */
    float          *mass;           /* NULL, or [n_rows, k]: probability of each selected slot,
                                     * heads added in ascending order; 0 where it is empty */
    kvi_entries     entries;        /* rows in entry_format of the owner */
    uint64_t        chunk_pos;
    uint64_t        floor;          /* no window key below this position */
    size_t          n_rows;
    uint32_t        n_heads;
    uint32_t        width;
    uint32_t        n_window;
    uint32_t        page_rows;
    uint32_t        n_pages;
    uint32_t        row_bytes;
    uint32_t        k;
    float           scale;
    uint32_t        flags;          /* ROUND_BF16: probabilities too, as the official kernel does */
    uint32_t        reserved;
    kvi_slices      of;
} kvi_attend_params;

/* Attention of ordinary models: softmax over the first n_visible positions of paged keys and values,
 * n_heads / n_kv_heads query heads share a KV head (head h uses h / (n_heads / n_kv_heads)).
 * A page holds page_rows positions: for each KV head page_rows key rows, then page_rows value rows,
 * each row kvi_format_row_bytes(format, width) bytes. Positions are taken in chunks of
 * KVI_PAGED_CHUNK, each in tiles of 64 with a running maximum as in kvi_attend_params; the chunks
 * are combined in ascending order: neither threads nor other rows change a bit. */
typedef struct kvi_paged_attend_params {
    const float    *q;              /* [n_rows, n_heads, width] */
    float          *out;            /* [n_rows, n_heads, width] */
    uint8_t *const *pages;          /* position p: row p % page_rows of page p / page_rows */
    const uint64_t *n_visible;      /* [n_rows], 0 = the output is 0 */
    const float    *sink;           /* [n_heads] in the denominator, NULL = none */
    size_t          page_off;       /* bytes: this layer's rows inside a page */
    size_t          n_rows;
    uint32_t        n_heads;
    uint32_t        n_kv_heads;
    uint32_t        width;          /* a multiple of 32 */
    uint32_t        page_rows;
    uint32_t        format;         /* KVCSA_FORMAT_*: F16, BF16, MXFP8, Q8_0, FP4, MXFP4, Q4_0 */
    float           scale;
    uint64_t        max_visible;    /* no n_visible is larger; 0 = unknown. A device that cannot see
                                     * n_visible splits its work by this; no bit depends on it */
} kvi_paged_attend_params;
#define KVI_PAGED_CHUNK 1024u

/* mHC: coefficients of one site from the projection of the stream. mixes = (fn . x) * r, r = 1 /
 * sqrt(mean x^2 + eps). */
typedef struct kvi_mix_params {
    const float *h;                 /* [n_rows, copies * width] the stream before the sublayer */
    const float *proj;              /* [n_rows, (2 + copies) * copies] fn . x, not yet times r */
    const float *base;              /* [(2 + copies) * copies] */
    float       *pre;               /* [n_rows, copies] */
    float       *post;              /* [n_rows, copies] */
    float       *comb;              /* [n_rows, copies, copies]: C[j][k] */
    size_t       n_rows;
    uint32_t     copies;            /* at most KVI_MAX_COPIES */
    uint32_t     width;
    uint32_t     n_iters;
    float        scale[3];
    float        norm_eps;
    float        eps;
} kvi_mix_params;
#define KVI_MAX_COPIES 8u

typedef struct kvi_collapse_params { /* y[i] = sum_c pre[c] * h[c][i], c ascending */
    const float *h;
    const float *pre;
    float       *y;                 /* [n_rows, width] */
    size_t       n_rows;
    uint32_t     copies;
    uint32_t     width;
    uint32_t     flags;
    uint32_t     reserved;
} kvi_collapse_params;

typedef struct kvi_expand_params {  /* h[k][i] = post[k] * y[i] + sum_j C[j][k] * h[j][i], j
                                     * ascending; in place */
    float       *h;
    const float *y;
    const float *post;
    const float *comb;
    size_t       n_rows;
    uint32_t     copies;
    uint32_t     width;
    uint32_t     flags;
    uint32_t     reserved;
} kvi_expand_params;

/* Router: s = sqrt(softplus(z)); the k largest of s + bias, ties to the lower expert; weights s
 * / (sum + 1e-20) * scale (normalised only if normalise and k > 1; sum in ascending expert
 * order). Experts ascending within a row. */
typedef struct kvi_route_params {
    const float *z;                 /* [n_rows, n_experts] */
    const float *bias;              /* [n_experts] */
    uint32_t    *experts;           /* [n_rows, k] */
    float       *weights;           /* [n_rows, k] */
    size_t       n_rows;
    uint32_t     n_experts;
    uint32_t     k;
    uint32_t     normalise;
    float        scale;
} kvi_route_params;

typedef struct kvi_expert { /* w1 gate, w3 up [inner, width]; w2 down [width, inner] */
    kvi_matrix w1;
    kvi_matrix w2;
    kvi_matrix w3;
} kvi_expert;

/* y = sum over the row's experts, ascending, of w2 (w * silu(min(g, limit)) * clamp(u, limit)),
 * plus the shared expert last (weight 1). g = w1 x, u = w3 x; the input of w2 is rounded to bf16
 * in reference mode. limit 0 = none. */
typedef struct kvi_moe_params {
    const float      *x;            /* [n_rows, width] */
    float            *y;            /* [n_rows, width] */
    const uint32_t   *experts;      /* [n_rows, k] */
    const float      *weights;      /* [n_rows, k] */
    const kvi_expert *routed;       /* [n_experts] */
    const kvi_expert *shared;
    size_t            n_rows;
    uint32_t          n_experts;
    uint32_t          k;
    uint32_t          width;
    uint32_t          inner;
    float             limit;
    uint32_t          flags;
} kvi_moe_params;

/* Engram gate: dot_c = sum_i (h * qk * key)_ci * rsqrt(mean h_c^2 + eps) * rsqrt(mean key_c^2 +
 * eps) * width^-0.5, gate_c = sigmoid(copysign(sqrt(max(|dot_c|, 1e-6)), dot_c)), h_c += gate_c
 * * value; in place. */
typedef struct kvi_engram_gate_params {
    float       *h;                 /* [n_rows, copies, width] */
    const float *kv;                /* [n_rows, (copies + 1) * width]: keys of all copies, then
                                     * the value */
    const float *qk;                /* [copies, width] q_weight * k_weight */
    size_t       n_rows;
    uint32_t     copies;
    uint32_t     width;
    float        eps;
    uint32_t     flags;
} kvi_engram_gate_params;

/* Bytes from place to place. No job writes what another reads or writes. */
typedef struct kvi_copy_job {
    const void *from;
    void       *to;
    uint64_t    n_bytes;
} kvi_copy_job;
typedef struct kvi_copy_params {
    const kvi_copy_job *jobs;       /* [n_jobs], in the device's memory like all else */
    size_t              n_jobs;
    uint64_t            max_bytes;  /* no job has more */
} kvi_copy_params;

/* Adds what rows of ascending lists name to three counts: the items, the entries (item i stands for
 * entries i * each .. i * each + each - 1, those from n_visible on do not count), and the cache
 * blocks of rows_per_block entries that hold one of them, row by row. */
typedef struct kvi_tally_params {
    const int32_t  *items;          /* [n_rows, stride]; the first negative one ends a row */
    const uint64_t *n_visible;      /* [n_rows]; NULL = every entry counts */
    uint64_t       *counts;         /* [3] */
    size_t          stride;
    size_t          n_rows;
    uint32_t        n_items;        /* per row, at most; <= stride */
    uint32_t        each;
    uint32_t        rows_per_block;
    uint32_t        reserved;
    uint64_t        all;            /* rows that see no more do not count; 0 = no row. Needs
                                     * n_visible */
    size_t          rows_each;      /* 0 = all rows add to counts; else row i adds to counts + i /
                                     * rows_each x counts_stride */
    size_t          counts_stride;
} kvi_tally_params;

#pragma GCC diagnostic pop

#endif
