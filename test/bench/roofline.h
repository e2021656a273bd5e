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
/* The same with vectors of this many floats at most, one thread: 8 = AVX2, 4 = 128 bits. */
double      roofline_fma_lanes(uint32_t n_lanes);
/* int8 multiply-adds/s of the instruction for dot products (vpdpbusd; SDOT), one thread; 0 = there is none. */
double      roofline_dot8(void);

/* Memory in huge pages where there are any, zeroed; the program ends if there is none. */
void       *bench_alloc(size_t n_bytes);
void        bench_free(void *p, size_t n_bytes);

#endif
