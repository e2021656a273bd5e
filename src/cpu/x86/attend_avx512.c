/* Attention over window and selected entries for AVX-512. */
#include "cpu/v16.h"

typedef v16 reg;
#define REG_LANES 16
#define reg_zero  v16_zero
#define reg_load  v16_load
#define reg_store v16_store
#define reg_fma   v16_fma

#define DOT_KEYS 4 /* x 6 heads: 24 sums, 4 keys, 1 query */
#include "cpu/attend_v16.h"

void kvi_attend_avx512(kvi_attend_kernels *k)
{
    k->min_work = 1500000;
    k->add_keys = attend_add_keys;
    k->finish = attend_finish;
}
