/* Index scores with AVX2; cpu/index_quad.h has the idea and why it is exact.
 *
 * vpmaddubsw multiplies unsigned by signed bytes and adds pairs, in 16 bits: keys become u8 = code
 * + 16. A pair is at most 28 * 12 * 2 = 672 and a block's sum of eight pairs 5376, so nothing
 * saturates, and one vpmaddwd a block makes 32 bits. 16 keys are scored against four heads at
 * once: 8 registers of sums, 2 of keys, 1 of the query; dot products wait in memory.
 *
 * Work for a key and 32 heads of 128 channels: 16 times 8 vpmaddubsw, 7 additions and 4 for scales:
 * 304 on three vector ports. Bound: 101 cycles. Measured on Sapphire Rapids: 0.84 of that, with
 * unpacking 0.77; one row 54 times as fast as plain C. */
#include "cpu/index_quad.h"

#include <immintrin.h>

enum {
    LANES = 8, /* keys of a register */
    REGS = 2,  /* that are scored together */
    OFFSET = 16
};

typedef struct key_block {
    uint8_t codes[QUAD_DWORDS][REGS][4 * LANES];
    float   scales[REGS][LANES];
} key_block;

#include "cpu/index_v16.h"

static void prepare(const kvi_index_shape *s, const int8_t *codes, const float *scales,
                    const float *weights, void *query)
{
    quad_prepare(s, codes, scales, weights, OFFSET, 0, query);
}

/* ---------------------------------------------------------------- keys */

/* 16 bytes of keys i and i + 4 */
KVI_ALWAYS_INLINE __m256i load_two(const uint8_t *group, size_t stride, size_t i)
{
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(
            _mm_loadu_si128((const __m128i *)(const void *)(group + i * stride))),
        _mm_loadu_si128((const __m128i *)(const void *)(group + (i + 4) * stride)), 1);
}

/* One block of eight keys, whose packed bytes begin at `group`. */
KVI_ALWAYS_INLINE void unpack_block(const uint8_t *group, size_t stride, size_t reg, key_block *to)
{
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4));
    const __m256i nibbles = _mm256_set1_epi8(15);
    const __m256i r0 = load_two(group, stride, 0);
    const __m256i r1 = load_two(group, stride, 1);
    const __m256i r2 = load_two(group, stride, 2);
    const __m256i r3 = load_two(group, stride, 3);
    const __m256i t0 = _mm256_unpacklo_epi32(r0, r1);
    const __m256i t1 = _mm256_unpackhi_epi32(r0, r1);
    const __m256i t2 = _mm256_unpacklo_epi32(r2, r3);
    const __m256i t3 = _mm256_unpackhi_epi32(r2, r3);
    const __m256i w[4] = {_mm256_unpacklo_epi64(t0, t2), _mm256_unpackhi_epi64(t0, t2),
                          _mm256_unpacklo_epi64(t1, t3), _mm256_unpackhi_epi64(t1, t3)};

    for (size_t i = 0; i < 4; i++) {
        const __m256i low = _mm256_and_si256(w[i], nibbles);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(w[i], 4), nibbles);

        _mm256_store_si256((__m256i *)(void *)to->codes[2 * i][reg],
                           _mm256_shuffle_epi8(table, low));
        _mm256_store_si256((__m256i *)(void *)to->codes[2 * i + 1][reg],
                           _mm256_shuffle_epi8(table, high));
    }
}

/* Codes of key scales of block g, eight keys. */
KVI_ALWAYS_INLINE __m256i codes_of_block(const uint8_t *scales, size_t n_groups, size_t g)
{
    uint8_t codes[LANES];

    if (n_groups == 4)
        return _mm256_and_si256(
            _mm256_srlv_epi32(_mm256_loadu_si256((const __m256i *)(const void *)scales),
                              _mm256_set1_epi32((int)(8 * g))),
            _mm256_set1_epi32(255));
    for (size_t i = 0; i < LANES; i++)
        codes[i] = scales[i * n_groups + g];
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)codes));
}

/* E8M0 codes as floats: 0 is the subnormal 2^-127, 255 NaN. */
KVI_ALWAYS_INLINE __m256i floats_of(__m256i codes)
{
    const __m256i odd = _mm256_or_si256(_mm256_cmpeq_epi32(codes, _mm256_setzero_si256()),
                                        _mm256_cmpeq_epi32(codes, _mm256_set1_epi32(255)));

    return _mm256_or_si256(_mm256_slli_epi32(codes, 23),
                           _mm256_and_si256(odd, _mm256_set1_epi32(0x00400000)));
}

static void unpack(const kvi_index_shape *s, const uint8_t *const *groups, size_t n, void *tile)
{
    const size_t stride = s->n_groups * QUAD_HALF;
    key_head    *head = tile;
    key_block   *to = (key_block *)(void *)(head + 1);

    for (size_t u = 0; u < UNITS && u * REGS < n; u++, to += s->n_groups) {
        __m256i bad = _mm256_setzero_si256();

        for (size_t r = 0; r < REGS; r++) { /* a lone register: the last group again */
            const uint8_t *from = groups[u * REGS + r < n ? u * REGS + r : n - 1];

            for (size_t g = 0; g < s->n_groups; g++) {
                const __m256i codes = codes_of_block(from + 8 * stride, s->n_groups, g);

                bad = _mm256_or_si256(
                    bad,
                    _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(QUAD_CODE_MIN), codes),
                                    _mm256_cmpgt_epi32(codes, _mm256_set1_epi32(QUAD_CODE_MAX))));
                unpack_block(from + g * QUAD_HALF, stride, r, to + g);
                _mm256_store_si256((__m256i *)(void *)to[g].scales[r], floats_of(codes));
            }
        }
        head->is_exact[u] = (uint32_t)_mm256_testz_si256(bad, bad);
    }
    for (size_t u = (n + REGS - 1) / REGS; u < UNITS; u++)
        head->is_exact[u] = 0;
}

/* ---------------------------------------------------------------- scores */

typedef __m256i int_tile[QUAD][REGS];

KVI_ALWAYS_INLINE __m256i load_codes(const int8_t *four)
{
    int32_t x;

    memcpy(&x, four, sizeof x);
    return _mm256_set1_epi32(x);
}

/* acc = or += pairs of dword d of four heads x 16 keys */
KVI_ALWAYS_INLINE void add_dword(const quad_block *q, const key_block *keys, size_t d, int first,
                                 int_tile acc)
{
    const __m256i k0 = _mm256_load_si256((const __m256i *)(const void *)keys->codes[d][0]);
    const __m256i k1 = _mm256_load_si256((const __m256i *)(const void *)keys->codes[d][1]);

#pragma GCC unroll 4
    for (size_t h = 0; h < QUAD; h++) {
        const __m256i c = load_codes(q->codes[d][h]);
        const __m256i p0 = _mm256_maddubs_epi16(k0, c);
        const __m256i p1 = _mm256_maddubs_epi16(k1, c);

        acc[h][0] = first ? p0 : _mm256_add_epi16(acc[h][0], p0);
        acc[h][1] = first ? p1 : _mm256_add_epi16(acc[h][1], p1);
    }
}

/* acc = one block of four heads x 16 keys */
KVI_ALWAYS_INLINE void sum_block(const quad_block *q, const key_block *keys, int_tile acc)
{
    add_dword(q, keys, 0, 1, acc);
    /* gcc reorders the sum of a loop that is unrolled further, with its 64 products in memory */
#pragma GCC unroll 2
    for (size_t d = 1; d < QUAD_DWORDS; d++)
        add_dword(q, keys, d, 0, acc);
}

/* dot + product of one block, see index_quad.h */
KVI_ALWAYS_INLINE __m256 add_scaled(__m256 dot, __m256i acc, const quad_block *q, size_t h,
                                    __m256 scale, int is_exact)
{
    const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(acc, _mm256_set1_epi16(1)),
                                         _mm256_set1_epi32(q->start[h]));
    __m256        n;

    if (is_exact) {
        n = _mm256_fmadd_ps(_mm256_castsi256_ps(sum), _mm256_set1_ps(q->half[h]),
                            _mm256_set1_ps(q->minus[h]));
        return _mm256_fmadd_ps(n, scale, dot);
    }
    n = _mm256_cvtepi32_ps(_mm256_sub_epi32(sum, _mm256_set1_epi32(QUAD_MAGIC_BITS)));
    n = _mm256_mul_ps(n, _mm256_set1_ps(q->scale[h]));
    return _mm256_add_ps(dot, _mm256_mul_ps(n, _mm256_mul_ps(scale, _mm256_set1_ps(0.5f))));
}

KVI_ALWAYS_INLINE void score_unit(const quad_head *head, const key_block *keys, size_t n_groups,
                                  int is_exact, float *out)
{
    const quad_block *q = quad_blocks(head);
    __m256            dots[REGS][QUAD];

    for (size_t r = 0; r < REGS; r++)
        for (size_t h = 0; h < QUAD; h++)
            dots[r][h] = _mm256_setzero_ps();
    for (size_t g = 0; g < n_groups; g++, q++, keys++) {
        int_tile acc;

        sum_block(q, keys, acc);
#pragma GCC unroll 2
        for (size_t r = 0; r < REGS; r++) {
            const __m256 scale = _mm256_load_ps(keys->scales[r]);

#pragma GCC unroll 4
            for (size_t h = 0; h < QUAD; h++)
                dots[r][h] = add_scaled(dots[r][h], acc[h][r], q, h, scale, is_exact);
        }
    }
    for (size_t r = 0; r < REGS; r++) {
        __m256 y[QUAD];

        for (size_t h = 0; h < QUAD; h++) /* a NaN stays: max gives its second operand then */
            y[h] = _mm256_mul_ps(_mm256_max_ps(_mm256_setzero_ps(), dots[r][h]),
                                 _mm256_set1_ps(head->weights[h]));
        _mm256_store_ps(out + r * LANES,
                        _mm256_add_ps(_mm256_add_ps(y[0], y[1]), _mm256_add_ps(y[2], y[3])));
    }
}

void kvi_index_avx2(kvi_index_kernels *k)
{
    k->n_keys = KEYS;
    k->rate = 100;
    k->query_bytes = query_bytes;
    k->tile_bytes = tile_bytes;
    k->prepare = prepare;
    k->unpack = unpack;
    k->score = score;
}
