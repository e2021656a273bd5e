/* Attention over window and selected entries for AVX2. */
#include "cpu/v16.h"

typedef __m256 reg;
#define REG_LANES 8
#define reg_zero  _mm256_setzero_ps
#define reg_load  _mm256_loadu_ps
#define reg_store _mm256_storeu_ps
#define reg_add   _mm256_add_ps
#define reg_fma   _mm256_fmadd_ps
#define reg_set   _mm256_broadcast_ss

/* Lane j of a[i] to lane i of a[j]. */
static inline void reg_transpose(reg a[8])
{
    reg b[8];

    for (int i = 0; i < 8; i += 2) { /* neighbouring lanes */
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) /* a[i + j]: lane j of both halves, of four rows */
        for (int j = 0; j < 4; j += 2) {
            a[i + j] = _mm256_shuffle_ps(b[i + j / 2], b[i + j / 2 + 2], 0x44);
            a[i + j + 1] = _mm256_shuffle_ps(b[i + j / 2], b[i + j / 2 + 2], 0xee);
        }
    for (int j = 0; j < 4; j++) {
        b[j] = _mm256_permute2f128_ps(a[j], a[j + 4], 0x20);
        b[j + 4] = _mm256_permute2f128_ps(a[j], a[j + 4], 0x31);
    }
    for (int j = 0; j < 8; j++)
        a[j] = b[j];
}

#define DOT_KEYS 6 /* x 2 registers of heads: 12 sums, 2 queries, 1 key */
#define DOT_REGS 2
#define DOT_FEW  2
#define REST_KEYS 2 /* x 6 heads */
#include "cpu/attend_v16.h"

void kvi_attend_avx2(kvi_attend_kernels *k)
{
    k->min_work = 800000;
    k->score_keys = DOT_KEYS;
    k->arrange = attend_arrange;
    k->score = attend_score;
    k->add_keys = attend_add_keys;
    k->finish = attend_finish;
}
