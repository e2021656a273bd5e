/* Workspace of a run, shared by the files of this room. */
#ifndef KVI_NET_INT_H
#define KVI_NET_INT_H

#include "attn/compressor.h"
#include "attn/window.h"
#include "base/alloc.h"
#include "net/net.h"

/* A slice in the run.
 *
 * (N1) Rows of all slices lie in the order of the slices. A slice stops running rows from its front
 *      on, so the n_rows that are left are its last ones. A stopped slice has none.
 * (N2) Of every layer, at most kept.page_rows window rows and kept.pending_slots raw rows wait for
 *      the commit; they lie like a page of that geometry, oldest first. */
typedef struct kvi_net_part {
    size_t          begin;       /* its first row among those of the run */
    size_t          n_rows;
    size_t          n_drop;      /* while rows are being dropped */
    size_t          chunk;       /* its first row in the window rows of the layer that runs */
    kvi_window_geom kept;
    kvi_window_offs at;          /* rows of the layer that runs: in the pages of the slice */
    kvi_window_offs kept_at;     /* ... and in what is kept */
    uint8_t        *window;      /* kept window rows */
    uint8_t        *raw;         /* kept raw rows */
    uint32_t       *n_window;    /* [layers] window rows that the run wrote, kept or not */
    uint32_t       *n_raw;       /* [layers] raw rows kept */
    size_t          first_logit; /* its first row of logits */
} kvi_net_part;

/* One allocation, cut up for the run at hand. n = rows of all slices, s = slices, D = hidden, m =
 * copies, d = head width. Scratch of selection is that of the longest slice: n' rows. */
typedef struct kvi_net_buffers {
    float    *h;          /* [n, m, D] residual streams */
    float    *x;          /* [n, D] input of a sublayer */
    float    *y;          /* [n, D] its output */
    float    *pre[2];     /* [n, m] collapse weights: in use, and of the next site */
    float    *post;       /* [n, m] */
    float    *comb;       /* [n, m, m] */
    float    *proj;       /* [n, (2 + m) m] */
    uint64_t *pos;        /* [n] */
    uint64_t *n_visible;  /* [n] */
    float    *qr;         /* [n, q_lora_rank] */
    float    *q;          /* [n, heads, d] */
    float    *o;          /* [n, heads, d] */
    float    *z;          /* [n, o_groups, o_lora_rank] */
    float    *row;        /* [n, d] window row before quantisation */
    uint8_t  *chunk;      /* [n, window row bytes] window rows of the layer that runs */
    float    *k, *gate;   /* [n + s, d] */
    float    *latent;     /* [n, d] */
    float    *key;        /* [n, index width] */
    uint64_t *entry_pos;  /* [n] */
    kvi_compress_slice *compress; /* [s] */
    float    *iq;         /* [n, index heads, index width] */
    int8_t   *codes;      /* [n', index heads, index width] */
    float    *iscale;     /* [n', index heads, index width / 32] */
    float    *iweight;    /* [n, index heads] */
    int32_t  *ids;        /* [n, n_ids] */
    int32_t  *blocks;     /* [n, n_block_ids] */
    uint32_t *n_blocks;   /* [n] */
    float    *scores;     /* n_scores floats */
    float    *mass;       /* [n', n_ids] where a slice asks for it */
    float    *router;     /* [n, experts] */
    uint32_t *experts;    /* [n, k] */
    float    *eweight;    /* [n, k] */
    uint64_t *erows;      /* [n, engram columns] */
    float    *embed;      /* [n, engram columns * width] */
    float    *ekv;        /* [n, (m + 1) D] */
    float    *logits;     /* [logit rows, vocab] */
    size_t    n_scores;
    uint32_t  n_ids, n_block_ids; /* of the layer that selected last; 0 before that */
    kvi_net_part *parts;  /* [s] */
    uint8_t  *kept;       /* window rows of all slices and layers */
    float    *raw;        /* raw rows */
    uint32_t *counts;     /* [s, 2, layers] */
} kvi_net_buffers;

struct kvi_net {
    const kvcsa_model *model;
    kvcsa_allocator    allocator;
    float             *freqs[2];   /* [rope_dim / 2]: window-only layers, layers with entries */
    kvi_buf            memory;
    kvi_net_buffers    b;
    size_t             n_rows;     /* that still run, of all slices */
    size_t             n_parts;
};

/* Cut the workspace for a run; grows it first. Fills the parts: all rows run. */
kvcsa_status kvi_net_prepare(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                             size_t n_slices, kvcsa_error *err);

/* Slice i stops running its rows below position first_rows[layer]: everything that lies by row
 * moves up. The rows of stopped slices go too. */
void kvi_net_drop_rows(kvi_net *net, const kvi_net_slice *slices, uint32_t layer);

/* Counts of a layer (work.c): window rows that were written; entries; what attention of slice i
 * read; rows that went through the experts. */
void kvi_net_count_window(const kvi_net *net, const kvi_net_slice *slices, uint32_t layer);
void kvi_net_count_entries(const kvi_net *net, const kvi_net_slice *slices, uint32_t layer);
void kvi_net_count_attention(const kvi_net *net, const kvi_net_slice *slices, size_t i,
                             uint32_t layer);
void kvi_net_count_experts(const kvi_net *net, const kvi_net_slice *slices, uint32_t layer);
/* Adds what the selected entries of slice i received (net->b.mass) to the slice's spans. */
void kvi_net_add_mass(const kvi_net *net, const kvi_net_slice *slices, size_t i, uint32_t layer);

/* The sublayers; each reads net->b.x and writes net->b.y. */
kvcsa_status kvi_attention(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                           uint32_t layer, kvcsa_error *err);
kvcsa_status kvi_moe(kvi_net *net, const kvi_exec *exec, uint32_t layer, kvcsa_error *err);
/* Adds to the streams net->b.h. */
kvcsa_status kvi_engram(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                        uint32_t layer, kvcsa_error *err);

#endif
