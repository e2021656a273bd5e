/* Index scores with AVX-512 VNNI; cpu/index_quad.h has the idea and why it is exact.
 *
 * vpdpbusd multiplies unsigned by signed bytes: keys become u8 = code + 128, and sums start at -128
 * * the sum of the query's codes. 64 keys are unpacked into [dword of four channels][64 keys] and
 * scored against four heads at once: 16 sums hide the latency (five cycles, two vpdpbusd a cycle),
 * and a step needs 8 loads for 16 vpdpbusd.
 *
 * Work for a key and 32 heads of 128 channels, in instructions of the two vector ports: 64
 * vpdpbusd; for scales, weights and heads 6 (LEVEL) or 22; 9 or 8 to unpack, which many rows share.
 * Bound: vpdpbusd on both ports. Measured on Sapphire Rapids, share of that bound (LEVEL): scoring
 * 0.90, with unpacking 0.76; the operator, 1 row 0.72, 6 rows 0.80. The long way for scoring: 0.74.
 * Eight sums instead of 16 reach 0.64. */
#include "cpu/index_quad.h"

#include <immintrin.h>

enum {
    LANES = 16, /* keys of a register */
    REGS = 4,
    KEYS = REGS * LANES,
    OFFSET = 128
};

typedef struct key_block {
    uint8_t codes[QUAD_DWORDS][REGS][4 * LANES];
    float   scales[REGS][LANES];
} key_block;

/* A tile: key_head, key_block [n_groups], sums of quads f32 [n_quads][KEYS]. */
typedef struct key_head {
    float    least[REGS][LANES]; /* LEVEL: the smallest scale of the key, to which codes belong */
    uint32_t is_exact;
    uint32_t is_level;
    uint32_t unused[14];
} key_head;

static size_t query_bytes(const kvi_index_shape *s)
{
    return quad_count(s) * quad_bytes(s);
}

static size_t tile_bytes(const kvi_index_shape *s)
{
    return sizeof(key_head) + s->n_groups * sizeof(key_block) +
           quad_count(s) * KEYS * sizeof(float);
}

static void prepare(const kvi_index_shape *s, const int8_t *codes, const float *scales,
                    const float *weights, void *query)
{
    quad_prepare(s, codes, scales, weights, OFFSET, 1, query);
}

/* ---------------------------------------------------------------- keys */

/* 128 + twice the E2M1 value << shift of index shift << 4 | code. vpermb drops bits 6 and 7. */
KVI_ALWAYS_INLINE __m512i code_table(int level)
{
    const __m128i t = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i offset = _mm_set1_epi8((char)OFFSET);
    const __m128i t2 = _mm_add_epi8(t, t);
    const __m128i t4 = _mm_add_epi8(t2, t2);
    __m512i       all = _mm512_broadcast_i32x4(_mm_add_epi8(t, offset));

    if (level) {
        all = _mm512_inserti32x4(all, _mm_add_epi8(t2, offset), 1);
        all = _mm512_inserti32x4(all, _mm_add_epi8(t4, offset), 2);
        all = _mm512_inserti32x4(all, _mm_add_epi8(_mm_add_epi8(t4, t4), offset), 3);
    }
    return all;
}

/* Lane i: 16 bytes of keys i, i + 4 of group a, of group b. */
KVI_ALWAYS_INLINE __m512i load_four(const uint8_t *a, const uint8_t *b, size_t stride, size_t i)
{
    const __m128i *k0 = (const __m128i *)(const void *)(a + i * stride);
    const __m128i *k1 = (const __m128i *)(const void *)(a + (i + 4) * stride);
    const __m128i *k2 = (const __m128i *)(const void *)(b + i * stride);
    const __m128i *k3 = (const __m128i *)(const void *)(b + (i + 4) * stride);
    __m512i        v = _mm512_castsi128_si512(_mm_loadu_si128(k0));

    v = _mm512_inserti32x4(v, _mm_loadu_si128(k1), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128(k2), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128(k3), 3);
}

/* One block of 16 keys: lane k of rows[i] has key 4 k + i. shifts: of each key, << 4, in all bytes
 * of its dword. */
KVI_ALWAYS_INLINE void unpack_block(const __m512i rows[4], int level, __m512i shifts, size_t reg,
                                    key_block *to)
{
    const __m512i nibbles = _mm512_set1_epi8(15);
    const __m512i table = code_table(level);
    const __m512i t0 = _mm512_unpacklo_epi32(rows[0], rows[1]);
    const __m512i t1 = _mm512_unpackhi_epi32(rows[0], rows[1]);
    const __m512i t2 = _mm512_unpacklo_epi32(rows[2], rows[3]);
    const __m512i t3 = _mm512_unpackhi_epi32(rows[2], rows[3]);
    const __m512i w[4] = {_mm512_unpacklo_epi64(t0, t2), _mm512_unpackhi_epi64(t0, t2),
                          _mm512_unpacklo_epi64(t1, t3), _mm512_unpackhi_epi64(t1, t3)};

#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        __m512i low = w[i];
        __m512i high = _mm512_srli_epi16(w[i], 4);

        if (level) { /* (x & nibbles) | shifts; otherwise all four parts of the table are equal */
            low = _mm512_ternarylogic_epi32(low, nibbles, shifts, 0xea);
            high = _mm512_ternarylogic_epi32(high, nibbles, shifts, 0xea);
        }
        _mm512_store_si512(to->codes[2 * i][reg], _mm512_permutexvar_epi8(low, table));
        _mm512_store_si512(to->codes[2 * i + 1][reg], _mm512_permutexvar_epi8(high, table));
    }
}

/* 32 bytes of keys i and i + 4 */
KVI_ALWAYS_INLINE __m512i load_two(const uint8_t *group, size_t stride, size_t i)
{
    const __m256i *k0 = (const __m256i *)(const void *)(group + i * stride);
    const __m256i *k1 = (const __m256i *)(const void *)(group + (i + 4) * stride);

    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(k0)),
                              _mm256_loadu_si256(k1), 1);
}

/* Four scales of 16 keys: a dword is a key. */
KVI_ALWAYS_INLINE __m512i load_scales(const uint8_t *a, const uint8_t *b)
{
    return _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)a)),
        _mm256_loadu_si256((const __m256i *)(const void *)b), 1);
}

/* The smallest byte of each dword, in all its bytes. */
KVI_ALWAYS_INLINE __m512i least_of_four(__m512i v)
{
    const __m512i m = _mm512_min_epu8(v, _mm512_rol_epi32(v, 16));

    return _mm512_min_epu8(m, _mm512_rol_epi32(m, 8));
}

/* All bytes <= limit? */
KVI_ALWAYS_INLINE int are_below(__m512i v, int limit)
{
    return _mm512_cmpgt_epu8_mask(v, _mm512_set1_epi8((char)limit)) == 0;
}

/* Four blocks, LEVEL? */
static int is_level_tile(const uint8_t *const *from)
{
    const size_t  off = KVI_INDEX_GROUP_ROWS * QUAD_LEVEL_GROUPS * QUAD_HALF;
    const __m512i lowest = _mm512_set1_epi8(QUAD_LEVEL_CODE_MIN);
    __m512i       most = _mm512_setzero_si512();
    __m512i       spread = _mm512_setzero_si512();

    for (size_t r = 0; r < REGS; r++) {
        const __m512i v = load_scales(from[2 * r] + off, from[2 * r + 1] + off);

        most = _mm512_max_epu8(most, _mm512_sub_epi8(v, lowest)); /* what is below wraps */
        spread = _mm512_max_epu8(spread, _mm512_sub_epi8(v, least_of_four(v)));
    }
    return are_below(most, QUAD_LEVEL_CODE_MAX - QUAD_LEVEL_CODE_MIN) &&
           are_below(spread, QUAD_LEVEL_SHIFT);
}

static void unpack_level(const uint8_t *const *from, key_head *head)
{
    const size_t  stride = QUAD_LEVEL_GROUPS * QUAD_HALF;
    const __m512i first = _mm512_broadcast_i32x4(
        _mm_setr_epi32(0x00000000, 0x04040404, 0x08080808, 0x0c0c0c0c)); /* of each dword */
    key_block *to = (key_block *)(void *)(head + 1);

    head->is_exact = head->is_level = 1;
    for (size_t r = 0; r < REGS; r++) {
        const uint8_t *a = from[2 * r];
        const uint8_t *b = from[2 * r + 1];
        const __m512i  codes = load_scales(a + 8 * stride, b + 8 * stride);
        const __m512i  least = least_of_four(codes);
        /* below 4, so that shifting words moves no bit into another byte */
        const __m512i shifts = _mm512_slli_epi16(_mm512_sub_epi8(codes, least), 4);
        const __m512i exponents = _mm512_set1_epi32(0x7f800000);

        _mm512_store_si512(head->least[r],
                           _mm512_and_si512(_mm512_slli_epi32(least, 23), exponents));
#pragma GCC unroll 4
        for (size_t g = 0; g < QUAD_LEVEL_GROUPS; g++) {
            const __m512i left = _mm512_slli_epi32(codes, (unsigned)(24 - 8 * g));

            _mm512_store_si512(to[g].scales[r],
                               _mm512_and_si512(_mm512_srli_epi32(left, 1), exponents));
        }
#pragma GCC unroll 2
        for (size_t g = 0; g < QUAD_LEVEL_GROUPS; g += 2) {
            const __m512i byte = _mm512_add_epi8(first, _mm512_set1_epi8((char)g));
            const __m512i next = _mm512_add_epi8(byte, _mm512_set1_epi8(1));
            __m512i       even[4]; /* rows of block g, of g + 1 */
            __m512i       odd[4];

#pragma GCC unroll 4
            for (size_t i = 0; i < 4; i++) {
                const __m512i x = load_two(a + g * QUAD_HALF, stride, i);
                const __m512i y = load_two(b + g * QUAD_HALF, stride, i);

                even[i] = _mm512_shuffle_i32x4(x, y, 0x88);
                odd[i] = _mm512_shuffle_i32x4(x, y, 0xdd);
            }
            unpack_block(even, 1, _mm512_shuffle_epi8(shifts, byte), r, to + g);
            unpack_block(odd, 1, _mm512_shuffle_epi8(shifts, next), r, to + g + 1);
        }
    }
}

/* E8M0 codes as floats: 0 is the subnormal 2^-127, 255 NaN. */
KVI_ALWAYS_INLINE __m512i floats_of(__m512i codes)
{
    const __m512i   next = _mm512_add_epi32(codes, _mm512_set1_epi32(1));
    const __mmask16 odd = _mm512_testn_epi32_mask(next, _mm512_set1_epi32(0xfe));

    return _mm512_mask_or_epi32(_mm512_slli_epi32(codes, 23), odd, _mm512_slli_epi32(codes, 23),
                                _mm512_set1_epi32(0x00400000));
}

/* Codes of block g of 16 keys. */
KVI_ALWAYS_INLINE __m512i codes_of_block(const uint8_t *a, const uint8_t *b, size_t n_groups,
                                         size_t g)
{
    uint8_t codes[LANES];

    if (n_groups == QUAD_LEVEL_GROUPS)
        return _mm512_and_si512(_mm512_srli_epi32(load_scales(a, b), (unsigned)(8 * g)),
                                _mm512_set1_epi32(255));
    for (size_t i = 0; i < LANES; i++)
        codes[i] = (i < 8 ? a : b)[i % 8 * n_groups + g];
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
}

static void unpack_any(size_t n_groups, const uint8_t *const *from, key_head *head)
{
    const size_t stride = n_groups * QUAD_HALF;
    key_block   *to = (key_block *)(void *)(head + 1);

    head->is_exact = 1;
    head->is_level = 0;
    for (size_t g = 0; g < n_groups; g++) {
        for (size_t r = 0; r < REGS; r++) {
            const uint8_t *a = from[2 * r];
            const uint8_t *b = from[2 * r + 1];
            const __m512i  codes = codes_of_block(a + 8 * stride, b + 8 * stride, n_groups, g);
            const __m512i  above = _mm512_sub_epi32(codes, _mm512_set1_epi32(QUAD_CODE_MIN));
            __m512i        rows[4];

            head->is_exact &= _mm512_cmpgt_epu32_mask(
                                  above, _mm512_set1_epi32(QUAD_CODE_MAX - QUAD_CODE_MIN)) == 0;
            for (size_t i = 0; i < 4; i++)
                rows[i] = load_four(a + g * QUAD_HALF, b + g * QUAD_HALF, stride, i);
            unpack_block(rows, 0, above, r, to + g);
            _mm512_store_si512(to[g].scales[r], floats_of(codes));
        }
    }
}

static void unpack(const kvi_index_shape *s, const uint8_t *const *groups, size_t n, void *tile)
{
    const uint8_t *from[KVI_INDEX_TILE / KVI_INDEX_GROUP_ROWS];

    for (size_t i = 0; i < KVI_INDEX_TILE / KVI_INDEX_GROUP_ROWS; i++)
        from[i] = groups[i < n ? i : n - 1]; /* lanes behind the last key repeat it */
    if (s->n_groups == QUAD_LEVEL_GROUPS && is_level_tile(from))
        unpack_level(from, tile);
    else
        unpack_any(s->n_groups, from, tile);
}

/* ---------------------------------------------------------------- scores */

KVI_ALWAYS_INLINE int32_t load_dword(const int8_t *p)
{
    int32_t x;

    memcpy(&x, p, sizeof x);
    return x;
}

typedef __m512i int_tile[QUAD][REGS];

/* acc += codes of one block of four heads x 64 keys. 16 registers of sums, 4 of keys, 1 of
 * the query. */
KVI_ALWAYS_INLINE void add_block(const quad_block *q, const key_block *keys, int_tile acc)
{
#pragma GCC unroll 8
    for (size_t d = 0; d < QUAD_DWORDS; d++) {
        __m512i k[REGS];

#pragma GCC unroll 4
        for (size_t r = 0; r < REGS; r++)
            k[r] = _mm512_load_si512(keys->codes[d][r]);
#pragma GCC unroll 4
        for (size_t h = 0; h < QUAD; h++) {
            const __m512i c = _mm512_set1_epi32(load_dword(q->codes[d][h]));

#pragma GCC unroll 4
            for (size_t r = 0; r < REGS; r++)
                acc[h][r] = _mm512_dpbusd_epi32(acc[h][r], k[r], c);
        }
    }
}

KVI_ALWAYS_INLINE void start_block(const int32_t *start, int_tile acc)
{
#pragma GCC unroll 4
    for (size_t h = 0; h < QUAD; h++)
#pragma GCC unroll 4
        for (size_t r = 0; r < REGS; r++)
            acc[h][r] = _mm512_set1_epi32(start[h]);
}

/* n * half the query's scale */
KVI_ALWAYS_INLINE __m512 scaled(__m512i acc, const quad_block *q, size_t h)
{
    return _mm512_fmadd_ps(_mm512_castsi512_ps(acc), _mm512_set1_ps(q->half[h]),
                           _mm512_set1_ps(q->minus[h]));
}

/* Sum of four heads' w * max(0, dot) for each key; a NaN dot stays. */
KVI_ALWAYS_INLINE void store_sums(const quad_head *head, const __m512 dot[QUAD], float *out)
{
    __m512 y[QUAD];

#pragma GCC unroll 4
    for (size_t h = 0; h < QUAD; h++)
        y[h] = _mm512_mul_ps(_mm512_max_ps(_mm512_setzero_ps(), dot[h]),
                             _mm512_set1_ps(head->weights[h]));
    _mm512_store_ps(out, _mm512_add_ps(_mm512_add_ps(y[0], y[1]), _mm512_add_ps(y[2], y[3])));
}

/* n below 0 is below L as a float too */
static void score_level(const quad_head *head, const key_head *keys, float *out)
{
    const quad_block *q = quad_blocks(head);
    const key_block  *k = (const key_block *)(const void *)(keys + 1);
    const __m512      zero = _mm512_set1_ps(QUAD_LEVEL_ZERO);
    int_tile          acc;

    start_block(head->start, acc);
    for (size_t g = 0; g < QUAD_LEVEL_GROUPS; g++)
        add_block(q + g, k + g, acc);
#pragma GCC unroll 4
    for (size_t r = 0; r < REGS; r++) {
        __m512 y[QUAD];

#pragma GCC unroll 4
        for (size_t h = 0; h < QUAD; h++)
            y[h] = _mm512_fmadd_ps(_mm512_max_ps(_mm512_castsi512_ps(acc[h][r]), zero),
                                   _mm512_set1_ps(head->factor[h]),
                                   _mm512_set1_ps(head->minus[h]));
        _mm512_store_ps(out + r * LANES,
                        _mm512_mul_ps(_mm512_add_ps(_mm512_add_ps(y[0], y[1]),
                                                    _mm512_add_ps(y[2], y[3])),
                                      _mm512_load_ps(keys->least[r])));
    }
}

/* dot + (n * scale) * (key scale / 2) with every rounding of op_params.h */
KVI_ALWAYS_INLINE __m512 add_long(__m512 dot, __m512i acc, float scale, const key_head *keys,
                                  const key_block *k, size_t r)
{
    const __m512 of_key = _mm512_load_ps(k->scales[r]);
    __m512       n = _mm512_cvtepi32_ps(_mm512_sub_epi32(acc, _mm512_set1_epi32(QUAD_MAGIC_BITS)));

    if (keys->is_level) /* codes as they were: the quotient is a power of two */
        n = _mm512_mul_ps(n, _mm512_div_ps(_mm512_load_ps(keys->least[r]), of_key));
    n = _mm512_mul_ps(n, _mm512_set1_ps(scale));
    return _mm512_add_ps(dot, _mm512_mul_ps(n, _mm512_mul_ps(of_key, _mm512_set1_ps(0.5f))));
}

/* 16 sums and 16 dot products do not fit the registers: dot products wait in memory. */
KVI_ALWAYS_INLINE void score_blocks(const quad_head *head, const key_head *keys, size_t n_groups,
                                    int is_exact, float *out)
{
    const quad_block *q = quad_blocks(head);
    const key_block  *k = (const key_block *)(const void *)(keys + 1);
    __m512            dots[REGS][QUAD];

    for (size_t r = 0; r < REGS; r++)
        for (size_t h = 0; h < QUAD; h++)
            dots[r][h] = _mm512_setzero_ps();
    for (size_t g = 0; g < n_groups; g++, q++, k++) {
        int_tile acc;

        start_block(q->start, acc);
        add_block(q, k, acc);
#pragma GCC unroll 4
        for (size_t r = 0; r < REGS; r++) {
            const __m512 scale = _mm512_load_ps(keys->is_level ? keys->least[r] : k->scales[r]);

#pragma GCC unroll 4
            for (size_t h = 0; h < QUAD; h++)
                dots[r][h] = is_exact ? _mm512_fmadd_ps(scaled(acc[h][r], q, h), scale, dots[r][h])
                                      : add_long(dots[r][h], acc[h][r], q->scale[h], keys, k, r);
        }
    }
    for (size_t r = 0; r < REGS; r++)
        store_sums(head, dots[r], out + r * LANES);
}

static void score_exact(const quad_head *head, const key_head *keys, size_t n_groups, float *out)
{
    score_blocks(head, keys, n_groups, 1, out);
}

static void score_long(const quad_head *head, const key_head *keys, size_t n_groups, float *out)
{
    score_blocks(head, keys, n_groups, 0, out);
}

static void score(const kvi_index_shape *s, const void *query, void *tile,
                  const kvi_index_ahead *ahead, float *out)
{
    const key_head *keys = tile;
    const size_t    n_quads = quad_count(s);
    float          *sums =
        (float *)(void *)((uint8_t *)tile + sizeof(key_head) + s->n_groups * sizeof(key_block));

    for (size_t j = 0; j < n_quads; j++) {
        const quad_head *head = quad_at(s, query, j);

        kvi_index_ask(ahead, j, n_quads);
        if (!keys->is_exact || !head->is_exact)
            score_long(head, keys, s->n_groups, sums + j * KEYS);
        else if (keys->is_level && head->is_level)
            score_level(head, keys, sums + j * KEYS);
        else
            score_exact(head, keys, s->n_groups, sums + j * KEYS);
    }
    quad_fold(sums, n_quads, KEYS, out);
}

void kvi_index_avx512(kvi_index_kernels *k)
{
    k->n_keys = KEYS;
    k->rate = 240;
    k->query_bytes = query_bytes;
    k->tile_bytes = tile_bytes;
    k->prepare = prepare;
    k->unpack = unpack;
    k->score = score;
}
