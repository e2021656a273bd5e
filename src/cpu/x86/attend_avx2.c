/* Attention over window and selected entries for AVX2. */
#include "cpu/v16.h"

typedef __m256 reg;
#define REG_LANES 8
#define reg_zero  _mm256_setzero_ps
#define reg_load  _mm256_loadu_ps
#define reg_store _mm256_storeu_ps
#define reg_fma   _mm256_fmadd_ps

#define DOT_KEYS 2 /* x 6 heads: 12 sums, 2 keys, 1 query */
#include "cpu/attend_v16.h"

void kvi_attend_avx2(kvi_attend_kernels *k)
{
    k->min_work = 800000;
    k->add_keys = attend_add_keys;
    k->finish = attend_finish;
}
