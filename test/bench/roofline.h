/* What this machine can do at best, measured in the same run as the library: the denominators of the benchmark. */
#ifndef ROOFLINE_H
#define ROOFLINE_H

#include <stddef.h>
#include <stdint.h>

int64_t     bench_now_ns(void);
/* From now on bench_now_ns is the processor time of the calling thread: for machines that others use. What several threads do is
 * then measured wrong. */
void        bench_use_cpu_clock(void);
double      roofline_read(size_t n_bytes, uint32_t n_threads); /* bytes/s, reading a buffer of n_bytes again and again */
double      roofline_copy(size_t n_bytes);                     /* memcpy, bytes of the copy/s, one thread */
double      roofline_fma(uint32_t n_threads);                  /* fp32 multiply-adds/s, from registers */
const char *roofline_isa(void);                                /* the instructions that roofline_fma used */

typedef enum roofline_kind {
    ROOFLINE_NONE,
    ROOFLINE_FMA,      /* fp32 multiply-adds from registers */
    ROOFLINE_FMA_AVX2, /* ... with vectors of eight at most */
    ROOFLINE_DOT8,     /* int8 multiply-adds of the instruction for dot products (vpdpbusd; SDOT); 0 = there is none */
    ROOFLINE_READ,     /* bytes from memory */
    ROOFLINE_L2,       /* bytes from the second cache */
    ROOFLINE_L3,       /* ... and the third, as far as others leave it to us */
    ROOFLINE_N
} roofline_kind;

/* The buffers of the kinds that read; memory_bytes: more than any cache keeps. Close forgets them. */
void   roofline_open(size_t memory_bytes);
void   roofline_close(void);
/* Per second, between open and close. The best of a few long measurements, */
double roofline_best(roofline_kind kind, uint32_t n_threads);
/* and one of a few milliseconds: what the machine grants now. */
double roofline_burst(roofline_kind kind, uint32_t n_threads);

/* Memory in huge pages where there are any, zeroed; the program ends if there is none. */
void       *bench_alloc(size_t n_bytes);
void        bench_free(void *p, size_t n_bytes);

#endif
