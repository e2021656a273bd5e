/* Attention over paged keys and values: the kernels.
 *
 * Positions are taken in chunks of KVI_PAGED_CHUNK, chunks in tiles of KVI_PAGED_TILE. What a query
 * row knows of a chunk is its state: with m from -1e30, den and out from 0, for each tile
 *   s_i = (q . key_i) * scale       m' = the larger of m and all s_i (NaN does not move it)
 *   f = e^(m - m')                  p_i = e^(s_i - m')
 *   den = den * f + sum of p_i      out = out * f, then out + p_i * value_i, positions ascending
 * States of chunks are merged in ascending order, from m = -1e30, den = 0, out = 0:
 *   m' = the larger of both         f = e^(m - m'), w = e^(m_chunk - m')
 *   den = den * f + w * den_chunk   out = out * f + w * out_chunk
 * and at the end out / (den + e^(sink - m)), without the second term where there is no sink. So
 * chunks can be made by anyone in any order, and scores of -1e30 and less count as -infinity.
 *
 * Numerics 1 rounds every product, adds p_i in ascending order from 0 and uses kvi_expf. Numerics 2
 * has one rounding where a product is added (den * f + sum and den * f + w * den_chunk: the product
 * with f in the first, with w in the second), e^x of v16.h, and the sum of p_i in sixteen lanes:
 * lane i adds p_i, p_(i + 16), p_(i + 32), p_(i + 48) in this order, 0 where there is no position,
 * and the lanes are folded. */
#ifndef KVI_CPU_PAGED_KERNELS_H
#define KVI_CPU_PAGED_KERNELS_H

#include "cpu/cpu_flags.h"

enum {
    KVI_PAGED_TILE = 64,
    KVI_PAGED_MAX_Q = 32 /* query rows x heads that share decoded keys */
};

typedef struct kvi_paged_state {
    float max;
    float den;
} kvi_paged_state;

/* Query rows, of one KV head, against one chunk. */
typedef struct kvi_paged_chunk {
    const kvi_paged_attend_params *p;
    uint64_t                       first;     /* position of the chunk */
    uint64_t                       ahead;     /* positions below are likely to be wanted soon */
    size_t                         row_bytes;
    uint32_t                       kv_head;
    uint32_t                       n_q;       /* 1..KVI_PAGED_MAX_Q */
    const uint32_t                *n_seen;    /* [n_q]: positions of the chunk that it sees */
    const float                   *q;         /* [n_q, width], 64-byte aligned */
    kvi_paged_state               *state;     /* [n_q], written */
    float                         *out;       /* [n_q, width], written; 64-byte aligned */
    float                         *scratch;   /* KVI_PAGED_SCRATCH(width) floats, aligned too */
} kvi_paged_chunk;
#define KVI_PAGED_SCRATCH(width) ((size_t)KVI_PAGED_TILE * ((width) + KVI_PAGED_MAX_Q))

typedef struct kvi_paged_kernels {
    uint32_t flags; /* KVCSA_CPU_* that are in use */
    void (*chunk)(const kvi_paged_chunk *c);
    /* out, chunk_out f32 [width], any alignment */
    void (*merge)(kvi_paged_state *state, float *out, const kvi_paged_state *chunk,
                  const float *chunk_out, size_t width);
    void (*finish)(const kvi_paged_state *state, const float *sink, float *out, size_t width);
} kvi_paged_kernels;

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_paged_init(kvi_paged_kernels *k, uint32_t flags);
void kvi_paged_ref(kvi_paged_kernels *k);
void kvi_paged_avx2(kvi_paged_kernels *k);
void kvi_paged_avx512(kvi_paged_kernels *k);
void kvi_paged_neon(kvi_paged_kernels *k);

/* Key rows of positions pos .. pos + n - 1; the value row of each lies page_rows rows behind. */
void kvi_paged_find(const kvi_paged_chunk *c, uint64_t pos, size_t n, const uint8_t **rows);

/* 2^(code - 127), code 255 NaN: bits of the E8M0 scales. */
extern const uint32_t kvi_paged_e8m0[256];

#endif
