/* Selection, AVX2.
 *
 * Collecting looks at 32 scores with four compares. Where one is taken, the lanes of each vector
 * are moved together by a permutation that a table has for every mask (pext, which would make it,
 * is microcode on some processors), and stored whole, one vector behind the other. */
#include "cpu/select_rest.h"

#include "base/prefetch.h"

#include <immintrin.h>
#include <math.h>

/* Lanes of a mask in ascending order, four bits each, the first lowest. */
#define BIT(m, i) ((uint32_t)(m) >> (i) & 1u)
#define N1(m) BIT(m, 0) /* set below lane 1 */
#define N2(m) (N1(m) + BIT(m, 1))
#define N3(m) (N2(m) + BIT(m, 2))
#define N4(m) (N3(m) + BIT(m, 3))
#define N5(m) (N4(m) + BIT(m, 4))
#define N6(m) (N5(m) + BIT(m, 5))
#define N7(m) (N6(m) + BIT(m, 6))
#define LANE(m, i, below) (BIT(m, i) * (uint32_t)(i) << 4 * (below))
#define MOVE(m)                                                                                    \
    (LANE(m, 1, N1(m)) | LANE(m, 2, N2(m)) | LANE(m, 3, N3(m)) | LANE(m, 4, N4(m)) |               \
     LANE(m, 5, N5(m)) | LANE(m, 6, N6(m)) | LANE(m, 7, N7(m)))
#define MOVE4(m) MOVE(m), MOVE((m) + 1), MOVE((m) + 2), MOVE((m) + 3)
#define MOVE16(m) MOVE4(m), MOVE4((m) + 4), MOVE4((m) + 8), MOVE4((m) + 12)
#define MOVE64(m) MOVE16(m), MOVE16((m) + 16), MOVE16((m) + 32), MOVE16((m) + 48)
static const uint32_t moves[256] = {MOVE64(0), MOVE64(64), MOVE64(128), MOVE64(192)};

static inline void prefetch(const float *p, size_t n_lines)
{
    for (size_t i = 0; i < n_lines; i++)
        kvi_prefetch(p + KVI_SELECT_AHEAD + 16 * i);
}

static inline __m256 reach(__m256 x, __m256 least)
{
    return _mm256_cmp_ps(x, least, _CMP_GE_OQ);
}

static float largest(__m256 a, float most)
{
    float lanes[8];

    _mm256_storeu_ps(lanes, a);
    for (int j = 0; j < 8; j++)
        most = lanes[j] > most ? lanes[j] : most;
    return most;
}

static float smallest(__m256 a, float least)
{
    float lanes[8];

    _mm256_storeu_ps(lanes, a);
    for (int j = 0; j < 8; j++)
        least = lanes[j] < least ? lanes[j] : least;
    return least;
}

typedef struct neighbours { /* of a threshold, lane by lane */
    __m256i sum;            /* minus the number of what reaches it */
    __m256  above;
    __m256  below;
} neighbours;

/* What is not meant is made NaN, all bits set, which min and max pass over. */
static inline void add_neighbours(neighbours *b, __m256 x, __m256 bound)
{
    const __m256 m = reach(x, bound);
    const __m256 not_m = _mm256_xor_ps(m, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));

    b->sum = _mm256_add_epi32(b->sum, _mm256_castps_si256(m));
    b->above = _mm256_min_ps(_mm256_or_ps(x, not_m), b->above);
    b->below = _mm256_max_ps(_mm256_or_ps(x, m), b->below);
}

/* Two at a time, which do not wait for one another. */
static kvi_select_split split(const float *scores, size_t n, float least)
{
    const __m256     bound = _mm256_set1_ps(least);
    kvi_select_split s = {.above = INFINITY, .below = -INFINITY};
    neighbours       b = {_mm256_setzero_si256(), _mm256_set1_ps(INFINITY),
                          _mm256_set1_ps(-INFINITY)};
    neighbours       c = b;
    int32_t          sums[8];
    size_t           i = 0;

    for (; i + 16 <= n; i += 16) {
        add_neighbours(&b, _mm256_loadu_ps(scores + i), bound);
        add_neighbours(&c, _mm256_loadu_ps(scores + i + 8), bound);
    }
    kvi_split_rest(scores + i, n - i, least, &s);
    _mm256_storeu_si256((__m256i *)(void *)sums, _mm256_add_epi32(b.sum, c.sum));
    for (int j = 0; j < 8; j++)
        s.n += (uint32_t)-sums[j];
    s.above = smallest(_mm256_min_ps(b.above, c.above), s.above);
    s.below = largest(_mm256_max_ps(b.below, c.below), s.below);
    return s;
}

/* Stores the lanes of m; n elements are there before. Writes 8. Returns n after. */
static inline size_t put(const kvi_select_list *list, size_t n, unsigned m, __m256 x, __m256i at)
{
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i move = _mm256_srlv_epi32(_mm256_set1_epi32((int32_t)moves[m]), shifts);

    _mm256_storeu_ps(list->scores + n, _mm256_permutevar8x32_ps(x, move));
    _mm256_storeu_si256((__m256i *)(void *)(list->at + n),
                        _mm256_permutevar8x32_epi32(at, move));
    return n + (size_t)_mm_popcnt_u32(m);
}

static size_t collect(const float *scores, size_t n, int32_t first, float least,
                      kvi_select_list *list)
{
    const __m256          bound = _mm256_set1_ps(least);
    const __m256i         lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const kvi_select_list out = *list;
    size_t                n_out = list->n;
    size_t                i = 0;

    for (; i + 32 <= n && n_out < out.cap; i += 32) {
        __m256 x[4];
        __m256 m[4];
        __m256 any;

        prefetch(scores + i, 2);
        for (int j = 0; j < 4; j++) {
            x[j] = _mm256_loadu_ps(scores + i + 8 * (size_t)j);
            m[j] = reach(x[j], bound);
        }
        any = _mm256_or_ps(_mm256_or_ps(m[0], m[1]), _mm256_or_ps(m[2], m[3]));
        if (_mm256_testz_ps(any, any))
            continue;
        for (int j = 0; j < 4; j++)
            n_out = put(&out, n_out, (unsigned)_mm256_movemask_ps(m[j]), x[j],
                        _mm256_add_epi32(lane, _mm256_set1_epi32(first + (int32_t)i + 8 * j)));
    }
    list->n = n_out;
    return kvi_collect_rest(scores, i, n, first, least, list);
}

/* A whole vector is stored at or in front of where it was read. */
static void keep(kvi_select_list *list, size_t begin, size_t end, float least)
{
    const __m256 bound = _mm256_set1_ps(least);
    size_t       n = list->n;
    size_t       i = begin;

    for (; i + 8 <= end; i += 8) {
        const __m256 x = _mm256_loadu_ps(list->scores + i);

        n = put(list, n, (unsigned)_mm256_movemask_ps(reach(x, bound)), x,
                _mm256_loadu_si256((const __m256i *)(const void *)(list->at + i)));
    }
    list->n = n;
    kvi_keep_rest(list, i, end, least);
}

/* max(x, y): y where x is NaN */
static inline __m256 load_clean(const float *p)
{
    return _mm256_max_ps(_mm256_loadu_ps(p), _mm256_set1_ps(-INFINITY));
}

/* Neighbours: in each group of four lanes a01 a23 b01 b23. */
static inline __m256 halve(__m256 a, __m256 b)
{
    return _mm256_max_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}

/* Eight blocks of eight, a vector each. */
static inline __m256 maxima_8x8(const float *p)
{
    const __m256 a = halve(halve(load_clean(p), load_clean(p + 8)),
                           halve(load_clean(p + 16), load_clean(p + 24)));
    const __m256 b = halve(halve(load_clean(p + 32), load_clean(p + 40)),
                           halve(load_clean(p + 48), load_clean(p + 56)));

    return _mm256_max_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

static void maxima_of(const float *scores, size_t n, size_t block_entries, float *maxima)
{
    size_t i = 0;

    for (; block_entries == 8 && i + 64 <= n; i += 64, maxima += 8) {
        prefetch(scores + i, 4);
        _mm256_storeu_ps(maxima, maxima_8x8(scores + i));
    }
    kvi_ref_maxima(scores + i, n - i, block_entries, maxima);
}

void kvi_select_avx2(kvi_select_kernels *k)
{
    k->collect = collect;
    k->keep = keep;
    k->split = split;
    k->maxima = maxima_of;
}
