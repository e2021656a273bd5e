/* Selection, AVX-512.
 *
 * Collecting looks at 64 scores with four compares. Where one is taken, all four vectors are
 * compressed in registers (a compressing store is microcode on some processors) and stored whole,
 * one behind the other. */
#include "cpu/select_kernels.h"

#include "base/prefetch.h"

#include <immintrin.h>
#include <math.h>

static inline void prefetch(const float *p, size_t n_lines)
{
    for (size_t i = 0; i < n_lines; i++)
        kvi_prefetch(p + KVI_SELECT_AHEAD + 16 * i);
}

static inline __mmask16 reach(__m512 x, __m512 least)
{
    return _mm512_cmp_ps_mask(x, least, _CMP_GE_OQ);
}

static inline __mmask16 first_lanes(size_t n)
{
    return (__mmask16)((1u << n) - 1);
}

/* Two sets of sums, since min and max take four cycles. */
static kvi_select_split split(const float *scores, size_t n, float least)
{
    const __m512  bound = _mm512_set1_ps(least);
    const __m512i one = _mm512_set1_epi32(1);
    __m512i       sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    __m512        above[2] = {_mm512_set1_ps(INFINITY), _mm512_set1_ps(INFINITY)};
    __m512        below[2] = {_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)};

    for (size_t i = 0; i < n; i += 32)
        for (size_t j = 0; j < 2; j++) {
            const size_t    at = i + 16 * j;
            const __mmask16 in = at + 16 <= n ? 0xffff : at < n ? first_lanes(n - at) : 0;
            const __m512    x = _mm512_maskz_loadu_ps(in, scores + at);
            const __mmask16 m = _mm512_mask_cmp_ps_mask(in, x, bound, _CMP_GE_OQ);

            sum[j] = _mm512_mask_add_epi32(sum[j], m, sum[j], one);
            above[j] = _mm512_mask_min_ps(above[j], m, x, above[j]);
            below[j] = _mm512_mask_max_ps(below[j], _kandn_mask16(m, in), x, below[j]);
        }
    return (kvi_select_split){
        (uint32_t)_mm512_reduce_add_epi32(_mm512_add_epi32(sum[0], sum[1])),
        _mm512_reduce_min_ps(_mm512_min_ps(above[0], above[1])),
        _mm512_reduce_max_ps(_mm512_max_ps(below[0], below[1]))};
}

/* Stores the lanes of m; n elements are there before. Writes 16. Returns n after. */
static inline size_t put(const kvi_select_list *list, size_t n, __mmask16 m, __m512 x, __m512i at)
{
    _mm512_storeu_ps(list->scores + n, _mm512_maskz_compress_ps(m, x));
    _mm512_storeu_si512(list->at + n, _mm512_maskz_compress_epi32(m, at));
    return n + (size_t)_mm_popcnt_u32(m);
}

static size_t collect(const float *scores, size_t n, int32_t first, float least,
                      kvi_select_list *list)
{
    const __m512          bound = _mm512_set1_ps(least);
    const __m512i         lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                                                   15);
    const kvi_select_list out = *list;
    size_t                n_out = list->n;
    size_t                i = 0;

    for (; i + 64 <= n && n_out < out.cap; i += 64) {
        __m512    x[4];
        __mmask16 m[4];

        prefetch(scores + i, 4);
        for (int j = 0; j < 4; j++) {
            x[j] = _mm512_loadu_ps(scores + i + 16 * (size_t)j);
            m[j] = reach(x[j], bound);
        }
        if (_mm512_kortestz(_mm512_kor(m[0], m[1]), _mm512_kor(m[2], m[3])))
            continue;
        for (int j = 0; j < 4; j++)
            n_out = put(&out, n_out, m[j], x[j],
                        _mm512_add_epi32(lane, _mm512_set1_epi32(first + (int32_t)i + 16 * j)));
    }
    for (; i < n && n_out < out.cap; i += 16) {
        const __mmask16 in = n - i < 16 ? first_lanes(n - i) : 0xffff;
        const __m512    x = _mm512_maskz_loadu_ps(in, scores + i);

        n_out = put(&out, n_out, _mm512_mask_cmp_ps_mask(in, x, bound, _CMP_GE_OQ), x,
                    _mm512_add_epi32(lane, _mm512_set1_epi32(first + (int32_t)i)));
    }
    list->n = n_out;
    return i < n ? i : n;
}

/* A whole vector is stored at or in front of where it was read; the last one, which is not whole,
 * must not touch what is behind `end`. */
static void keep(kvi_select_list *list, size_t begin, size_t end, float least)
{
    const __m512 bound = _mm512_set1_ps(least);
    size_t       n = list->n;
    size_t       i = begin;

    for (; i + 16 <= end; i += 16) {
        const __m512 x = _mm512_loadu_ps(list->scores + i);

        n = put(list, n, reach(x, bound), x, _mm512_loadu_si512(list->at + i));
    }
    if (i < end) {
        const __mmask16 in = first_lanes(end - i);
        const __m512    x = _mm512_maskz_loadu_ps(in, list->scores + i);
        const __m512i   at = _mm512_maskz_loadu_epi32(in, list->at + i);
        const __mmask16 m = _mm512_mask_cmp_ps_mask(in, x, bound, _CMP_GE_OQ);
        const unsigned  n_kept = (unsigned)_mm_popcnt_u32(m);

        _mm512_mask_storeu_ps(list->scores + n, first_lanes(n_kept),
                              _mm512_maskz_compress_ps(m, x));
        _mm512_mask_storeu_epi32(list->at + n, first_lanes(n_kept),
                                 _mm512_maskz_compress_epi32(m, at));
        n += n_kept;
    }
    list->n = n;
}

/* max(x, y): y where x is NaN */
static inline __m512 load_clean(const float *p)
{
    return _mm512_max_ps(_mm512_loadu_ps(p), _mm512_set1_ps(-INFINITY));
}

/* Neighbours: in each group of four lanes a01 a23 b01 b23. */
static inline __m512 halve(__m512 a, __m512 b)
{
    return _mm512_max_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

/* Sixteen blocks of eight. Vector i holds blocks 2i and 2i + 1; three halvings leave the maxima
 * of blocks 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15. */
static inline __m512 maxima_8x16(const float *p)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    const __m512  a = halve(halve(load_clean(p), load_clean(p + 16)),
                            halve(load_clean(p + 32), load_clean(p + 48)));
    const __m512  b = halve(halve(load_clean(p + 64), load_clean(p + 80)),
                            halve(load_clean(p + 96), load_clean(p + 112)));

    return _mm512_permutexvar_ps(order, _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88),
                                                      _mm512_shuffle_f32x4(a, b, 0xdd)));
}

static void maxima_of(const float *scores, size_t n, size_t block_entries, float *maxima)
{
    size_t i = 0;

    for (; block_entries == 8 && i + 128 <= n; i += 128, maxima += 16) {
        prefetch(scores + i, 8);
        _mm512_storeu_ps(maxima, maxima_8x16(scores + i));
    }
    kvi_ref_maxima(scores + i, n - i, block_entries, maxima);
}

void kvi_select_avx512(kvi_select_kernels *k)
{
    k->collect = collect;
    k->keep = keep;
    k->split = split;
    k->maxima = maxima_of;
}
