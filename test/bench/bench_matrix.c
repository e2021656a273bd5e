/* The parts "gemv" (one row against weights that come from memory) and "gemm" (256 rows).
 *
 * A matrix is 4096 x 4096, one random one that is copied until the copies fill memory far behind every cache; runs take one copy
 * after the other. Peers get the dequantised weights and quantise them as they like: ggml is beside us per byte of weights, since a
 * weight has other bits there; the sgemm of others multiplies the dequantised weights as they are. */
#include "bench_kernels.h"

#include "format/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 4096, COLS = 4096, MANY = 256, PREFILL_SETS = 3 };
#define WEIGHTS ((size_t)ROWS * COLS)

typedef struct matrix_kind {
    const char *name;
    uint32_t    kind;
    double      data_bytes;  /* of a weight */
    size_t      scale_bytes; /* of the matrix */
    double      gemv_share, gemm_share;
    const char *peers[6];    /* types of ggml, the best of them is beside us; "x+" = repacked */
} matrix_kind;

static const matrix_kind kinds[] = {
    {"fp8", KVI_W_FP8, 1, (size_t)(ROWS / 32) * (COLS / 32), 0.7, 0.7, {"q8_0", "q8_0+"}},
    {"fp4", KVI_W_FP4, 0.5, (size_t)ROWS * (COLS / 32), 0.6, 0.7, {"q4_0", "q4_0+", "q4_K", "q4_K+", "mxfp4", "mxfp4+"}},
    {"bf16", KVI_W_BF16, 2, 0, 0, 0, {"bf16", "f16"}},
    {"f32", KVI_W_F32, 4, 0, 0, 0, {"f32"}}};

typedef struct matrix_case {
    kernel_bench      *b;
    kvi_device        *dev;
    const matrix_kind *kind;
    size_t             n_x, n_sets, set_bytes;
    uint8_t           *weights; /* [n_sets]: data, then scales */
    float             *plain;   /* [ROWS][COLS] dequantised */
    float             *x;       /* [n_x][COLS] */
    float             *y, *other;
    size_t             turn, peer_turn, loops;
    const peer_table  *ggml;
    void              *job;
    const peer_table  *blas;    /* whose gemm is beside us */
    float             *copies;  /* [PREFILL_SETS] of plain, for it */
} matrix_case;

static kvi_matrix matrix_of(const matrix_case *c, size_t set)
{
    const uint8_t *data = c->weights + set % c->n_sets * c->set_bytes;

    return (kvi_matrix){data, data + (size_t)(c->kind->data_bytes * (double)WEIGHTS), c->kind->kind, ROWS, COLS, 0};
}

static void linear(const matrix_case *c, const kvi_backend_ops *ops, kvi_device *dev, size_t set, uint32_t row0, uint32_t n_out,
                   float *y)
{
    const kvi_matrix  w = matrix_of(c, set);
    kvi_linear_params p = {.w = &w, .row0 = row0, .n_out = n_out, .x = c->x, .y = y, .x_stride = COLS, .y_stride = n_out,
                           .n_rows = c->n_x};
    kvcsa_error       err;

    kernel_ok(ops->linear(dev, &p, &err), &err, "linear");
}

static int64_t matrix_ours(void *arg)
{
    matrix_case  *c = arg;
    const int64_t start = bench_now_ns();

    for (size_t i = 0; i < c->loops; i++)
        linear(c, c->b->ops, c->dev, c->turn++, 0, ROWS, c->y);
    return bench_now_ns() - start;
}

static int64_t matrix_ggml(void *arg)
{
    matrix_case  *c = arg;
    const int64_t start = bench_now_ns();

    for (size_t i = 0; i < c->loops; i++)
        c->ggml->matrix_run(c->job, c->x, c->other, c->peer_turn++ % c->n_sets);
    return bench_now_ns() - start;
}

static int64_t matrix_gemm(void *arg)
{
    matrix_case  *c = arg;
    const int64_t start = bench_now_ns();

    for (size_t i = 0; i < c->loops; i++)
        c->blas->gemm(c->x, c->copies + c->peer_turn++ % PREFILL_SETS * WEIGHTS, c->other, c->n_x, ROWS, COLS);
    return bench_now_ns() - start;
}

/* ------------------------------------------------------------------ weights */

static void random_weights(matrix_case *c)
{
    const size_t data = (size_t)(c->kind->data_bytes * (double)WEIGHTS);
    float       *row = c->plain;
    prng         r;

    prng_init(&r, 60);
    if (c->kind->kind == KVI_W_F32 || c->kind->kind == KVI_W_BF16) {
        kernel_normal(&r, row, WEIGHTS, 0.02f);
        for (size_t i = 0; i < WEIGHTS; i++) {
            const uint16_t bits = kvi_f32_to_bf16(row[i]);

            if (c->kind->kind == KVI_W_BF16)
                memcpy(c->weights + 2 * i, &bits, 2);
            else
                memcpy(c->weights + 4 * i, &row[i], 4);
        }
    } else {
        for (size_t i = 0; i < data; i += 8) {
            const uint64_t u = prng_u64(&r);
            /* E4M3 of magnitude below 2^-2, no NaN among them; FP4: any */
            const uint64_t v = c->kind->kind == KVI_W_FP8 ? (u & UINT64_C(0xBFBFBFBFBFBFBFBF)) & ~UINT64_C(0x1010101010101010) : u;

            memcpy(c->weights + i, &v, 8);
        }
        for (size_t i = 0; i < c->kind->scale_bytes; i++)
            c->weights[data + i] = (uint8_t)prng_range(&r, 118, 122);
    }
    for (size_t i = 1; i < c->n_sets; i++)
        memcpy(c->weights + i * c->set_bytes, c->weights, c->set_bytes);
}

static void dequantise(matrix_case *c)
{
    const kvi_matrix w = matrix_of(c, 0);
    uint64_t         ids[256];
    kvi_embed_params p = {.table = &w, .ids = ids, .y_stride = COLS, .n_rows = 256};
    kvcsa_error      err;

    for (uint32_t i = 0; i < ROWS; i += 256) {
        for (uint32_t k = 0; k < 256; k++)
            ids[k] = i + k;
        p.y = c->plain + (size_t)i * COLS;
        kernel_ok(c->b->portable_ops->embed(c->b->portable, &p, &err), &err, "embed");
    }
}

static void matrix_open(matrix_case *c, const matrix_kind *kind, size_t n_x, size_t n_bytes)
{
    prng r;

    c->kind = kind;
    c->n_x = n_x;
    c->set_bytes = (size_t)(kind->data_bytes * (double)WEIGHTS) + kind->scale_bytes;
    c->n_sets = n_bytes / c->set_bytes > 2 ? n_bytes / c->set_bytes : 2;
    c->weights = bench_alloc(c->n_sets * c->set_bytes);
    c->plain = bench_alloc(WEIGHTS * sizeof(float));
    c->x = bench_alloc(n_x * COLS * sizeof(float));
    c->y = bench_alloc(n_x * ROWS * sizeof(float));
    c->other = bench_alloc(n_x * ROWS * sizeof(float));
    c->turn = c->peer_turn = 0;
    prng_init(&r, 61);
    kernel_normal(&r, c->x, n_x * COLS, 1);
    random_weights(c);
    dequantise(c);
}

static void matrix_close(matrix_case *c)
{
    bench_free(c->weights, c->n_sets * c->set_bytes);
    bench_free(c->plain, WEIGHTS * sizeof(float));
    bench_free(c->x, c->n_x * COLS * sizeof(float));
    bench_free(c->y, c->n_x * ROWS * sizeof(float));
    bench_free(c->other, c->n_x * ROWS * sizeof(float));
}

/* 64 outputs from the middle of the matrix, at most four rows. */
static void check_linear(matrix_case *c)
{
    const size_t   n_x = c->n_x;
    const uint32_t n_out = 64;
    const uint32_t row0 = 2016; /* 32 rows behind the border of a tile of 64 */

    c->n_x = n_x < 4 ? n_x : 4;
    linear(c, c->b->ops, c->dev, c->n_sets - 1, row0, n_out, c->y);
    linear(c, c->b->portable_ops, c->b->portable, 0, row0, n_out, c->other);
    /* sums of 4096 products in another order; measured 1e-6 */
    kernel_near(c->y, c->other, c->n_x * n_out, 1e-4, c->kind->name);
    c->n_x = n_x;
}

/* ------------------------------------------------------------------ gemv */

static void release_job(matrix_case *c)
{
    if (c->job)
        c->ggml->matrix_free(c->job);
    c->job = NULL;
}

/* Nanoseconds a byte of weights, the best of a few runs. */
static double try_type(matrix_case *c, const char *type)
{
    double best = 1e300;

    if (!(c->job = c->ggml->matrix_new(type, ROWS, COLS, c->plain, c->n_x, c->n_sets, 1)))
        return best;
    for (int i = 0; i < 3; i++) {
        const double ns = (double)matrix_ggml(c) / (double)c->loops / (double)c->ggml->matrix_bytes(c->job);

        best = ns < best ? ns : best;
    }
    return best;
}

/* The type of ggml that is fastest per byte becomes c->job. */
static const char *choose_type(matrix_case *c)
{
    const char *best = NULL;
    double      best_ns = 1e300;

    if (!c->ggml)
        return NULL;
    for (size_t i = 0; i < 6 && c->kind->peers[i]; i++) {
        const double ns = try_type(c, c->kind->peers[i]);

        if (ns < best_ns) {
            best_ns = ns;
            best = c->kind->peers[i];
        }
        release_job(c);
    }
    if (best)
        c->job = c->ggml->matrix_new(best, ROWS, COLS, c->plain, c->n_x, c->n_sets, 1);
    return best;
}

static const char *name_of(const char *type)
{
    static char names[16][24];
    static int  n;
    char       *name = names[n++ % 16];
    size_t      len;

    if (!type)
        return "ggml";
    len = strlen(type);
    snprintf(name, 24, "ggml %.*s%s", (int)(type[len - 1] == '+' ? len - 1 : len), type, type[len - 1] == '+' ? " repacked" : "");
    return name;
}

static void gemv_rows(matrix_case *c)
{
    kernel_bench *b = c->b;
    const double  bytes = (double)c->set_bytes;
    const char   *type;
    bench_row    *r;
    char          detail[32];

    c->loops = 2;
    check_linear(c);
    type = choose_type(c);
    r = kernel_row(b, "matrix-vector", 0, c->kind->name, "us/MB");
    kernel_bound(r, ROOFLINE_READ, 1e6, c->kind->gemv_share);
    kernel_faster(r, name_of(type), c->kind->gemv_share > 0 ? 1 : 0, !c->job);
    kernel_measure(b, r, matrix_ours, matrix_ggml, c, bytes / 1e6 * (double)c->loops);
    if (c->job) { /* its matrix has as many weights and other bytes */
        r->peer_min *= bytes / (double)c->ggml->matrix_bytes(c->job);
        r->peer_median *= bytes / (double)c->ggml->matrix_bytes(c->job);
    }
    release_job(c);
    if (b->avx2) {
        snprintf(detail, sizeof detail, "%s, AVX2", c->kind->name);
        r = kernel_row(b, "matrix-vector", 0, detail, "us/MB");
        kernel_bound(r, ROOFLINE_READ, 1e6, 0);
        c->dev = b->avx2;
        check_linear(c);
        kernel_measure(b, r, matrix_ours, NULL, c, bytes / 1e6 * (double)c->loops);
        c->dev = b->best;
    }
}

void bench_gemv(kernel_bench *b)
{
    matrix_case c = {.b = b, .dev = b->best, .ggml = bench_peer(b, "ggml")};

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        matrix_open(&c, &kinds[i], 1, (size_t)(b->quick ? 128 : 640) << 20);
        gemv_rows(&c);
        matrix_close(&c);
    }
}

/* ------------------------------------------------------------------ gemm */

static void gemm_row(matrix_case *c, const char *peer, const char *name, double faster, int is_first)
{
    kernel_bench *b = c->b;
    bench_row    *r = kernel_row(b, "matrix-matrix", 0, c->kind->name, "ms");

    c->blas = bench_peer(b, peer);
    kernel_bound(r, ROOFLINE_FMA, (double)MANY * (double)WEIGHTS, is_first ? c->kind->gemm_share : 0);
    kernel_faster(r, name, faster, !c->blas);
    kernel_measure(b, r, matrix_ours, matrix_gemm, c, 1);
    if (c->blas) {
        linear(c, b->ops, c->dev, 0, 0, ROWS, c->y);
        c->blas->gemm(c->x, c->copies, c->other, c->n_x, ROWS, COLS);
        kernel_near(c->y, c->other, (size_t)MANY * ROWS, 1e-4, name);
    }
}

static void gemm_rows(matrix_case *c)
{
    kernel_bench *b = c->b;
    const double  goal = c->kind->gemm_share > 0 ? 0.9 : 0;
    bench_row    *r;
    char          detail[32];

    c->loops = 1;
    check_linear(c);
    for (size_t i = 0; i < PREFILL_SETS; i++)
        memcpy(c->copies + i * WEIGHTS, c->plain, WEIGHTS * sizeof(float));
    gemm_row(c, "blas", "OpenBLAS, f32", goal, 1);
    gemm_row(c, "onednn", "oneDNN, f32", goal, 0);
    gemm_row(c, "torch", "PyTorch, f32", 0, 0);
    r = kernel_row(b, "matrix-matrix", 0, c->kind->name, "ms");
    c->job = c->ggml ? c->ggml->matrix_new(c->kind->peers[0], ROWS, COLS, c->plain, MANY, c->n_sets, 1) : NULL;
    kernel_bound(r, ROOFLINE_FMA, (double)MANY * (double)WEIGHTS, 0);
    kernel_faster(r, name_of(c->kind->peers[0]), 0, !c->job);
    kernel_measure(b, r, matrix_ours, matrix_ggml, c, 1);
    release_job(c);
    if (b->avx2) {
        snprintf(detail, sizeof detail, "%s, AVX2", c->kind->name);
        r = kernel_row(b, "matrix-matrix", 0, detail, "ms");
        kernel_bound(r, ROOFLINE_FMA_AVX2, (double)MANY * (double)WEIGHTS, 0);
        c->dev = b->avx2;
        check_linear(c);
        kernel_measure(b, r, matrix_ours, NULL, c, 1);
        c->dev = b->best;
    }
}

void bench_gemm(kernel_bench *b)
{
    matrix_case c = {.b = b, .dev = b->best, .ggml = bench_peer(b, "ggml")};

    c.copies = bench_alloc(PREFILL_SETS * WEIGHTS * sizeof(float));
    for (size_t i = 0; i < (b->quick ? 2 : sizeof kinds / sizeof *kinds); i++) {
        matrix_open(&c, &kinds[i], MANY, (size_t)PREFILL_SETS * WEIGHTS * 2);
        gemm_rows(&c);
        matrix_close(&c);
    }
    bench_free(c.copies, PREFILL_SETS * WEIGHTS * sizeof(float));
}
