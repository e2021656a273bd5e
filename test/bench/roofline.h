/* What this machine can do at best, measured in the same run as the library: the denominators of the benchmark. */
#ifndef ROOFLINE_H
#define ROOFLINE_H

#include <stddef.h>
#include <stdint.h>

int64_t     bench_now_ns(void);
double      roofline_read(size_t n_bytes, uint32_t n_threads); /* bytes/s, reading a buffer of n_bytes again and again */
double      roofline_fma(uint32_t n_threads);                  /* fp32 multiply-adds/s, from registers */
const char *roofline_isa(void);                                /* the instructions that roofline_fma used */

#endif
