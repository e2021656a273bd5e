/* Workspace of a run, shared by the files of this room. All arrays of operators lie in their
 * memory; what the host reads or makes lies in its own. */
#ifndef KVI_NET_INT_H
#define KVI_NET_INT_H

#include "attn/compressor.h"
#include "attn/window.h"
#include "backend/tape.h"
#include "base/alloc.h"
#include "net/net.h"

/* A slice in the run.
 *
 * (N1) Rows of all slices lie in the order of the slices. A slice stops running rows from its front
 *      on, so the n_rows that are left are its last ones. A stopped slice has none where the memory
 *      is the host's; elsewhere its rows run on and are for nobody.
 * (N2) The window rows of every layer wait for the commit where they were written; of the raw rows
 *      the last raw_slots of every layer, oldest first. */
typedef struct kvi_net_part {
    size_t          begin;       /* its first row among those of the run */
    size_t          n_rows;
    size_t          n_drop;      /* while rows are being dropped */
    kvi_window_offs at;          /* rows of the layer that runs: in the pages of the slice */
    uint32_t        raw_slots;
    uint8_t        *raw;         /* raw rows that are kept */
    size_t          raw_at;      /* ... of the layer that runs */
    const uint8_t  *hidden;      /* of its limits, for operators */
    uint32_t       *chunk;       /* [layers] its first row in the window rows of a layer */
    uint32_t       *n_window;    /* [layers] window rows that the run wrote, kept or not */
    uint32_t       *n_raw;       /* [layers] raw rows kept */
    size_t          first_logit; /* its first row of logits */
    uint32_t        n_counted;   /* layers that are counted: those in front of where it was stopped */
} kvi_net_part;

/* Neighbouring slices that operators take in one call: on a device, where they have equally many
 * rows left, the same geometry, and nothing of their own (limits, mass); elsewhere every slice is
 * alone. Slices without rows are in none. */
typedef struct kvi_net_group {
    size_t first, n; /* slices */
    size_t each;     /* rows of one */
    size_t begin;    /* of its rows */
    size_t n_rows;
} kvi_net_group;

/* What the host knows of the rows: made there, and brought over in one piece where the memory of
 * operators is apart. n = rows of all slices in front of the first layer, m = copies, s = slices.
 * From ids on: of use to the first layer only, or the same in all. */
typedef struct kvi_net_meta {
    uint64_t *pos;        /* [n] */
    uint64_t *n_visible;  /* [ratios, n] */
    uint64_t *entry_pos;  /* [ratios, n] of the entries that the rows complete, slice by slice. On a
                           * device a slice has as many slots as its rows can complete at most, the
                           * last of which may be KVI_NO_ENTRY */
    uint64_t *turn_pos;   /* ... for rotations: 0 where there is no entry; else the very same */
    uint64_t *erows;      /* [Engram layers, n, Engram columns] rows of the tables */
    kvi_slice_rows *slice_rows; /* [layers, s] */
    uint64_t *ids;        /* [n, m] the token, once for each stream */
    float    *pre;        /* [n, m] collapse weights of the first site */
    kvi_slice *slices;    /* [s] */
    kvi_slice_rows *gathered; /* [s] of the layer that runs; brought over on its own */
    uint64_t *in_turn;    /* [n, Engram columns] 0, 1, 2, ...: of tables that have stayed behind */
    uint8_t  *hidden;     /* of all slices; where the memory is apart */
    kvi_copy_job *jobs;   /* of a run that is noted first (net->taped) */
    size_t    lasting;    /* bytes in front of ids */
    size_t    fixed;      /* ... and in front of jobs */
    size_t    bytes;
} kvi_net_meta;

/* Counts that only operators can make, one list a slice and layer. */
enum { KVI_TALLY_BLOCKS = 0, KVI_TALLY_IDS = 3, KVI_TALLY_SIZE = 6 };

/* In the memory of operators, cut up for the run at hand. n, m as above, D = hidden, d = head
 * width. Scratch of selection is that of the largest group: n' rows. */
typedef struct kvi_net_buffers {
    kvi_net_meta meta;    /* where the memory is the host's: the very same */
    float    *h;          /* [n, m, D] residual streams */
    float    *x;          /* [n, D] input of a sublayer */
    float    *y;          /* [n, D] its output */
    float    *pre[2];     /* [n, m] collapse weights: in use, and of the next site */
    float    *post;       /* [n, m] */
    float    *comb;       /* [n, m, m] */
    float    *proj;       /* [n, (2 + m) m] */
    float    *qr;         /* [n, q_lora_rank] */
    float    *q;          /* [n, heads, d] */
    float    *o;          /* [n, heads, d] */
    float    *z;          /* [n, o_groups, o_lora_rank] */
    float    *row;        /* [n, d] window row before quantisation */
    float    *k, *gate;   /* [n, d] */
    float    *latent;     /* [n, d] */
    float    *key;        /* [n, index width] */
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
    uint8_t  *etable;     /* [tables] rows of a table that has stayed with the host: values, then
                           * scales; of a run that is noted first all tables, else one */
    float    *embed;      /* [n, Engram columns * width] */
    float    *ekv;        /* [n, (m + 1) D] */
    float    *wanted_h;   /* [logit rows, m, D]; NULL where the wanted rows lie in line */
    float    *wanted_pre; /* [logit rows, m] */
    uint8_t  *raw;        /* raw rows of all slices and layers */
    uint8_t  *spare;      /* for rows that move; NULL where none will, or the memory is the
                           * host's */
    uint64_t *tally;      /* [s, layers, KVI_TALLY_SIZE]; the logits follow */
    float    *logits;     /* [logit rows, vocab] */
} kvi_net_buffers;

/* In the host's memory. s = slices. */
typedef struct kvi_net_host {
    kvi_net_meta        meta;
    kvi_net_part       *parts;    /* [s] */
    kvi_net_group      *groups;   /* [s] */
    kvi_compress_slice *compress; /* [s] */
    kvi_compress_group *compress_groups; /* [s] */
    kvcsa_work        **work;     /* [s] of the layer that runs */
    kvi_matrix         *tables;   /* [Engram layers] those in etable */
    uint32_t           *counts;   /* [s, 3, layers] of the parts */
    uint8_t           **chunks;   /* [layers] window rows that the run has written, [n, row bytes],
                                   * in the memory of operators */
    uint8_t            *etable;   /* as of the buffers; where the memory is apart, likewise below */
    int32_t            *ids;      /* pinned, from here on */
    float              *mass;
    uint64_t           *tally;    /* else the very same */
    float              *logits;
} kvi_net_host;

struct kvi_net {
    const kvcsa_model *model;
    const kvi_weights *weights;
    kvcsa_allocator    allocator;
    kvi_memory         memory;     /* of operators */
    float             *freqs;      /* [2, rope_dim / 2] there: window-only layers, layers with
                                    * entries */
    uint32_t          *ratios;     /* [n_ratios] the different ones of the plan */
    uint32_t           n_ratios;
    kvi_buf            here;       /* bytes of the workspace: the host's */
    void              *there;      /* ... and of operators */
    size_t             there_bytes;
    void              *pinned;     /* likewise, of the host: what is on its way from a device */
    size_t             pinned_bytes;
    kvi_post           post;       /* ... and what is on its way there */
    kvi_copies         copies;
    kvi_net_host       host;
    kvi_net_buffers    b;
    size_t             n_scores;
    size_t             n_in_turn;  /* of meta.in_turn */
    size_t             n_all;      /* rows of all slices in front of the first layer */
    size_t             n_rows;     /* that still run, of all slices */
    size_t             n_parts;
    size_t             n_real;     /* of them; those behind are copies of the last, for nobody */
    size_t             n_groups;
    size_t             n_jobs;     /* of meta.jobs */
    uint32_t           n_ids, n_block_ids; /* of the layer that selected last; 0 before that */
    bool               taped;      /* the run is noted first: it is what a graph may do again */
    size_t             table_bytes; /* of one of etable */
    kvi_tape           tape;
    kvi_graphs         graphs;
    kvi_buf            padded;     /* kvi_net_slice: those of the run and copies of the last */
};

/* Cut the workspace for a run; grows it first. Fills the parts: all rows run. */
kvcsa_status kvi_net_prepare(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                             size_t n_slices, kvcsa_error *err);

/* What the host knows of the rows (rows.c), made; and brought over. */
void         kvi_net_describe_rows(kvi_net *net, const kvi_net_slice *slices);
kvcsa_status kvi_net_send_rows(kvi_net *net, kvcsa_error *err);

/* Slice i stops running its rows below position first_rows[layer]: everything that lies by row
 * moves up. The rows of stopped slices go too where the memory is the host's. */
kvcsa_status kvi_net_drop_rows(kvi_net *net, const kvi_net_slice *slices, uint32_t layer,
                               kvcsa_error *err);
/* Bytes of a row that move. */
size_t kvi_net_moving_bytes(const kvi_config *c, size_t n_ids, size_t n_block_ids);

static inline const uint64_t *kvi_net_of_ratio(const kvi_net *net, const uint64_t *lists,
                                               uint32_t ratio)
{
    uint32_t k = 0;

    while (net->ratios[k] != ratio)
        k++;
    return lists + k * net->n_all;
}

/* Slots that n_rows rows of a slice take among the entries of a ratio. */
size_t kvi_net_entry_slots(const kvi_net *net, const kvi_net_slice *slice, size_t n_rows,
                           uint32_t ratio);

/* Tables of the slices of a group in a layer. */
static inline kvi_slices kvi_net_slices(const kvi_net *net, const kvi_net_group *g, uint32_t layer)
{
    return (kvi_slices){.slices = net->b.meta.slices + g->first,
                        .rows = net->b.meta.slice_rows + layer * net->n_parts + g->first,
                        .each = g->each};
}

/* Counts of a layer (work.c): window rows that were written; entries; what attention of a group
 * read; rows that went through the experts. A slice that was stopped counts no more. */
void         kvi_net_count_window(const kvi_net *net, const kvi_net_slice *slices, uint32_t layer);
void         kvi_net_count_entries(const kvi_net *net, const kvi_net_slice *slices, uint32_t layer);
kvcsa_status kvi_net_count_attention(const kvi_net *net, const kvi_exec *exec,
                                     const kvi_net_slice *slices, const kvi_net_group *g,
                                     uint32_t layer, kvcsa_error *err);
void         kvi_net_count_experts(const kvi_net *net, const kvi_net_slice *slices, uint32_t layer);
/* Where slice i is counted in a layer; NULL = it is not. */
kvcsa_work  *kvi_net_work(const kvi_net_slice *slices, size_t i, uint32_t layer);
/* The list of slice i and a layer among lists. */
uint64_t    *kvi_net_tally(const kvi_net *net, uint64_t *lists, size_t i, uint32_t layer);
/* What operators have counted, once it is with the host. */
void         kvi_net_add_tallies(const kvi_net *net, const kvi_net_slice *slices);
/* Adds what the selected entries of slice i received (net->b.mass) to the slice's spans. */
kvcsa_status kvi_net_add_mass(const kvi_net *net, const kvi_net_slice *slices, size_t i,
                              uint32_t layer, kvcsa_error *err);

/* The sublayers; each reads net->b.x and writes net->b.y. */
kvcsa_status kvi_attention(kvi_net *net, const kvi_exec *exec, const kvi_net_slice *slices,
                           uint32_t layer, kvcsa_error *err);
kvcsa_status kvi_moe(kvi_net *net, const kvi_exec *exec, uint32_t layer, kvcsa_error *err);
/* Adds to the streams net->b.h. */
kvcsa_status kvi_engram(kvi_net *net, const kvi_exec *exec, uint32_t layer, kvcsa_error *err);
/* In front of a run that is noted: rows of all tables that have stayed with the host. */
kvcsa_status kvi_engram_bring_all(kvi_net *net, kvcsa_error *err);

#endif
