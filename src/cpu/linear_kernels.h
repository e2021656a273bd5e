/* Matrix products and experts: the kernels. */
#ifndef KVI_CPU_LINEAR_KERNELS_H
#define KVI_CPU_LINEAR_KERNELS_H

#include "cpu/cpu_flags.h"

/* Weight rows row0 .. row0 + n_out - 1 against n_rows rows of x, in the calling thread: y[i *
 * y_stride + j] = x[i] . w[row0 + j]. y is not x. */
typedef struct kvi_linear_block {
    const kvi_matrix *w;
    uint64_t          row0;
    size_t            n_out;
    const float      *x;
    const size_t     *ids;      /* row i of the block is row ids[i] of x; NULL = row i */
    size_t            x_stride;
    size_t            n_rows;
    float            *y;
    size_t            y_stride;
    float            *scratch;  /* what `scratch` below says; 64-byte aligned */
    uint32_t          flags;    /* KVI_OP_ROUND_BF16: portable kernel only */
} kvi_linear_block;

/* What stands between the two products of an expert. Row i has n channels at i * stride. */
typedef struct kvi_activate_block {
    float       *g;             /* in: w1 x, out: [weight *] (silu(min(g, limit)) * clamp(u)) */
    const float *u;             /* w3 x */
    const float *weights;       /* [n_rows]; NULL = no factor */
    size_t       g_stride;
    size_t       u_stride;
    size_t       n_rows;
    size_t       n;
    float        limit;         /* 0 = none; NaN passes both clamps */
    uint32_t     flags;         /* KVI_OP_ROUND_BF16: portable kernel only */
} kvi_activate_block;

typedef struct kvi_linear_kernels {
    uint32_t flags;             /* KVCSA_CPU_* that are in use */
    /* Multiply-adds that take about 20 us, several times the cost of a wake-up: the least that a
     * task is worth. */
    double   task_work;
    /* A block's scratch in floats; 0 = NULL will do. Never more for fewer of anything, and most for
     * KVI_W_FP4. */
    size_t (*scratch)(uint32_t kind, size_t cols, size_t n_out, size_t n_rows);
    void   (*block)(const kvi_linear_block *b);
    void   (*activate)(const kvi_activate_block *b);
} kvi_linear_kernels;

/* Portable kernels, overwritten upward by what `flags` allows. */
void kvi_linear_init(kvi_linear_kernels *k, uint32_t flags);

/* The portable kernels: ref_linear.c, ref_moe.c. One weight row: kvi_ref_weight_row, for all. */
size_t kvi_ref_linear_scratch(uint32_t kind, size_t cols, size_t n_out, size_t n_rows);
void   kvi_ref_linear_block(const kvi_linear_block *b);
void   kvi_ref_activate(const kvi_activate_block *b);

/* Variants: each sets the slots it has. */
void kvi_linear_avx2(kvi_linear_kernels *k);
void kvi_linear_avx512(kvi_linear_kernels *k);
void kvi_linear_neon(kvi_linear_kernels *k);

#endif
