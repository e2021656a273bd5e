/* Attention over window and selected entries for AVX-512. */
#include "cpu/v16.h"

typedef v16 reg;
#define REG_LANES 16
#define reg_zero  v16_zero
#define reg_load  v16_load
#define reg_store v16_store
#define reg_add   v16_add
#define reg_fma   v16_fma
#define reg_set(p) _mm512_set1_ps(*(p))

/* Lane j of a[i] to lane i of a[j]. */
static inline void reg_transpose(reg a[16])
{
    reg b[16];

    for (int i = 0; i < 16; i += 2) { /* neighbouring lanes */
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) /* a[i + j]: lane j of every block of four, of four rows */
        for (int j = 0; j < 4; j += 2) {
            a[i + j] = _mm512_shuffle_ps(b[i + j / 2], b[i + j / 2 + 2], 0x44);
            a[i + j + 1] = _mm512_shuffle_ps(b[i + j / 2], b[i + j / 2 + 2], 0xee);
        }
    for (int i = 0; i < 16; i += 8) /* blocks 0 and 2, 1 and 3, of eight rows */
        for (int j = 0; j < 4; j++) {
            b[i + j] = _mm512_shuffle_f32x4(a[i + j], a[i + j + 4], 0x88);
            b[i + j + 4] = _mm512_shuffle_f32x4(a[i + j], a[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        a[j] = _mm512_shuffle_f32x4(b[j], b[j + 8], 0x88);
        a[j + 8] = _mm512_shuffle_f32x4(b[j], b[j + 8], 0xdd);
    }
}

#define DOT_KEYS 12 /* x 2 registers of heads: 24 sums, 2 queries, 1 key */
#define DOT_REGS 2
#define DOT_FEW  4
#define REST_KEYS 4 /* x 6 heads */
#include "cpu/attend_v16.h"

void kvi_attend_avx512(kvi_attend_kernels *k)
{
    k->min_work = 1500000;
    k->score_keys = DOT_KEYS;
    k->arrange = attend_arrange;
    k->score = attend_score;
    k->add_keys = attend_add_keys;
    k->finish = attend_finish;
}
