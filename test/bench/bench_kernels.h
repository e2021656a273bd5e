/* The suites of operators: each is a part of the benchmark that runs alone. Operators are called as the library calls them, through
 * the table of the backend, on devices of their own. */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include "backend/backend.h"
#include "bench.h"
#include "peers/peer_api.h"
#include "support/prng.h"

typedef struct kernel_bench {
    uint32_t               flags;    /* KVCSA_CPU_* of this machine */
    const kvi_backend_ops *ops;      /* of all devices but the portable one */
    const kvi_backend_ops *portable_ops;
    kvcsa_allocator        allocator;
    kvi_threads           *threads;  /* two; NULL where there is one core */
    kvi_device            *best;
    kvi_device            *best2;    /* on two threads; NULL where there is one core */
    kvi_device            *avx2;     /* NULL = best is that or less */
    kvi_device            *portable; /* the truth */
    double                 limits[ROOFLINE_N]; /* of one thread, per second, at the start of the part */
    double                 read2;              /* bytes from memory by two threads */
    double                 copy;               /* memcpy, bytes of the copy */
    roofline_kind          dot8;               /* ROOFLINE_DOT8, or FMA where there is no instruction for it */
    uint32_t               n_runs;
    int                    quick;
    int                    one_thread; /* no rows with two */
    bench_rows            *out;
    char                   peers[512]; /* folder of their shims */
} kernel_bench;

void kernel_bench_open(kernel_bench *b, const char *peers, uint32_t n_runs, int quick, int one_thread);
void kernel_bench_close(kernel_bench *b);
/* Measures the limits again: at the start of every part. */
void kernel_bench_limits(kernel_bench *b);

/* The parts. */
void bench_append(kernel_bench *b);  /* bench_kernels.c */
void bench_index(kernel_bench *b);   /* bench_kernels_index.c */
void bench_topk(kernel_bench *b);    /* bench_kernels_topk.c */
void bench_sparse(kernel_bench *b);  /* bench_kernels_attend.c */
void bench_gqa(kernel_bench *b);     /* bench_kernels_attend.c */
void bench_gemv(kernel_bench *b);    /* bench_matrix.c */
void bench_gemm(kernel_bench *b);    /* bench_matrix.c */
void bench_threads(kernel_bench *b); /* bench_kernels_threads.c */
void bench_step(kernel_bench *b, const char *folder); /* bench_step.c; folder: for the checkpoint */
void bench_calls(kernel_bench *b);   /* bench_step.c */

/* ------------------------------------------------------------------ for their cases */

/* A row with a detail; unit in words of time per something. */
bench_row *kernel_row(kernel_bench *b, const char *name, uint64_t n, const char *detail, const char *unit);
/* Ours shall be so much faster than the peer; peer_absent where there is none. */
void kernel_faster(bench_row *r, const char *peer, double limit, int absent);
/* What limits it; work of one piece, in units of the limit, 0 = not known. The share shall be share_goal at least, 0 = no goal. */
void kernel_bound(bench_row *r, roofline_kind kind, double work, double share_goal);
/* kernel_faster beside our own on one thread, with what two cores gave beside it. After kernel_bound. */
void kernel_two_threads(bench_row *r, double limit);
/* bench_pair, then from nanoseconds a run to `unit`s a piece. */
void kernel_measure(kernel_bench *b, bench_row *r, bench_fn ours, bench_fn peer, void *arg, double pieces);
void kernel_ok(kvcsa_status st, const kvcsa_error *err, const char *what);
/* The program ends if they differ: in bits, or by more than `most` of the largest magnitude. */
void kernel_same(const void *a, const void *b, size_t n_bytes, const char *what);
void kernel_near(const float *a, const float *b, size_t n, double most, const char *what);
void kernel_normal(prng *r, float *x, size_t n, float sigma);

/* n entries of one owner of the released geometry: 512 channels FP4 with 128-channel index keys, in blocks of 128. The first
 * entries are random, the others copies of them in blocks of their own. */
typedef struct kernel_entries {
    kvi_kv_owner owner;
    kvi_entries  e;
    uint8_t    **index_parts;
    uint8_t    **main_parts;
    uint8_t     *index, *main;
    size_t       n, n_blocks;
} kernel_entries;
enum { KERNEL_WIDTH = 512, KERNEL_KEY = 128, KERNEL_BLOCK = 128, KERNEL_UNIQUE = 8192, KERNEL_INDEX_HEADS = 32, KERNEL_HEADS = 64 };
void kernel_entries_open(kernel_bench *b, kernel_entries *e, size_t n, int filled);
void kernel_entries_close(kernel_entries *e);
/* of index key i, for naive_scores; arg: kernel_entries */
void kernel_key(const void *arg, size_t i, const uint8_t **values, const uint8_t **scales);

/* n_rows quantised queries with their weights of heads. */
typedef struct kernel_query {
    int8_t *codes;
    float  *scales;
    float  *weights;
} kernel_query;
void kernel_query_open(kernel_bench *b, kernel_query *q, size_t n_rows, uint64_t seed);
void kernel_query_close(kernel_query *q);

/* bench_peers.c: the shim of a peer, loaded once; NULL = absent. "std" lies beside the program. */
const peer_table *bench_peer(const kernel_bench *b, const char *name);
/* Versions of the peers that were loaded, one a line. */
const char *bench_peer_versions(void);

#endif
