/* Workspace of a run, shared by the files of this room. */
#ifndef KVI_NET_INT_H
#define KVI_NET_INT_H

#include "attn/window.h"
#include "base/alloc.h"
#include "net/net.h"

/* One allocation, cut up for the chunk at hand. n = rows, D = hidden, m = copies, d = head
 * width. */
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
    uint8_t  *kept;       /* [layers] last window rows of each layer, until the commit */
    float    *k, *gate;   /* [n + 1, d] */
    float    *latent;     /* [n, d] */
    float    *key;        /* [n, index width] */
    uint64_t *entry_pos;  /* [n] */
    float    *pending;    /* as the state's, after the chunk */
    float    *iq;         /* [n, index heads, index width] */
    int8_t   *codes;
    float    *iscale;     /* [n, index heads, index width / 32] */
    float    *iweight;    /* [n, index heads] */
    int32_t  *ids;        /* [n, select entries] */
    int32_t  *blocks;     /* [n, candidate blocks] */
    uint32_t *n_blocks;   /* [n] */
    float    *scores;     /* n_scores floats */
    float    *router;     /* [n, experts] */
    uint32_t *experts;    /* [n, k] */
    float    *eweight;    /* [n, k] */
    uint64_t *erows;      /* [n, engram columns] */
    float    *embed;      /* [n, engram columns * width] */
    float    *ekv;        /* [n, (m + 1) D] */
    float    *logits;     /* [logit rows, vocab] */
    size_t    n_scores;
    size_t    select_stride, blocks_stride; /* of ids and blocks, elements */
    uint32_t *live;       /* [layers] window rows that the run wrote */
} kvi_net_buffers;

struct kvi_net {
    const kvcsa_model *model;
    kvcsa_allocator    allocator;
    float             *freqs[2];   /* [rope_dim / 2]: window-only layers, layers with entries */
    kvi_buf            memory;
    kvi_net_buffers    b;
    size_t             n_rows;     /* that still run; those dropped lay in front of them */
};

/* Where a layer's part begins in what all layers share: sums over the layers below. */
typedef struct kvi_layer_offs {
    size_t ring;    /* bytes of the state's windows */
    size_t kept;    /* bytes of the workspace's kept rows */
    size_t pending; /* floats of the pending rows */
} kvi_layer_offs;

static inline void kvi_layer_offs_pass(kvi_layer_offs *o, const kvi_plan_row *row, size_t n_rows)
{
    o->ring += (size_t)row->window_tokens * row->window_bytes;
    o->kept += kvi_window_kept(row, n_rows) * row->window_bytes;
    o->pending += row->pending_bytes / sizeof(float);
}

/* Cut the workspace for a chunk; grows it first. */
kvcsa_status kvi_net_prepare(kvi_net *net, const kvi_net_run_params *p, kvcsa_error *err);

/* Stop running rows below position `first`: everything that lies by row moves up. */
void kvi_net_drop_rows(kvi_net *net, uint64_t first);

/* The sublayers; each reads net->b.x and writes net->b.y. */
kvcsa_status kvi_attention(kvi_net *net, const kvi_net_run_params *p, uint32_t layer,
                           kvcsa_error *err);
kvcsa_status kvi_moe(kvi_net *net, const kvi_net_run_params *p, uint32_t layer, kvcsa_error *err);
/* Adds to the streams net->b.h. */
kvcsa_status kvi_engram(kvi_net *net, const kvi_net_run_params *p, uint32_t layer,
                        kvcsa_error *err);

#endif
