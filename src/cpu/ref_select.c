/* Selection, the portable kernels: what every variant has to do.
 *
 * Collecting compares a group of scores; only where there is something to take, all are stored one
 * after the other, without a branch: an element that is not taken is overwritten by the next. About
 * 0.4 ns a score where little is taken. */
#include "cpu/select_kernels.h"

#include "base/checked.h"
#include "base/prefetch.h"

#include <math.h>
#include <string.h>

enum { GROUP = 16 };

/* Four scores. Vectors are spelled out: compilers leave such loops scalar and full of branches. */
typedef float   four __attribute__((vector_size(16)));
typedef int32_t four_masks __attribute__((vector_size(16)));

static inline four load(const float *p)
{
    four x;

    memcpy(&x, p, sizeof x);
    return x;
}

static inline four set(float x)
{
    return (four){x, x, x, x};
}

static inline four choose(four_masks m, four yes, four no)
{
    return (four)(((four_masks)yes & m) | ((four_masks)no & ~m));
}

static inline four more4(four a, four b) /* NaN in a gives b; so below */
{
    return choose(a > b, a, b);
}

static inline float more(float a, float b)
{
    return a > b ? a : b;
}

static inline float less(float a, float b)
{
    return a < b ? a : b;
}

typedef struct neighbours { /* of a threshold, lane by lane */
    four_masks sum;         /* minus the number of what reaches it */
    four       above;
    four       below;
} neighbours;

/* What is not meant is made NaN, all bits set. */
static inline void add_neighbours(neighbours *b, four x, four bound)
{
    const four_masks m = x >= bound;
    const four       up = (four)((four_masks)x | ~m);

    b->sum += m;
    b->above = choose(up < b->above, up, b->above);
    b->below = more4((four)((four_masks)x | m), b->below);
}

/* Two at a time, which do not wait for one another. */
static kvi_select_split split(const float *scores, size_t n, float least)
{
    kvi_select_split s = {.above = INFINITY, .below = -INFINITY};
    neighbours       b = {{0}, set(INFINITY), set(-INFINITY)};
    neighbours       c = b;
    size_t           i = 0;

    for (; i + 8 <= n; i += 8) {
        add_neighbours(&b, load(scores + i), set(least));
        add_neighbours(&c, load(scores + i + 4), set(least));
    }
    b.sum += c.sum;
    for (size_t j = 0; j < 4; j++) {
        s.n += (uint32_t)-b.sum[j];
        s.above = less(less(b.above[j], c.above[j]), s.above);
        s.below = more(more(b.below[j], c.below[j]), s.below);
    }
    for (; i < n; i++) {
        s.n += scores[i] >= least;
        s.above = less(scores[i] >= least ? scores[i] : INFINITY, s.above);
        s.below = more(scores[i] >= least ? -INFINITY : scores[i], s.below);
    }
    return s;
}

/* 1 for every score of a group that is >= bound, else 0; returns whether there is one. */
static inline bool find_taken(const float *scores, four bound, uint32_t taken[GROUP])
{
    four_masks any = {0};
    uint64_t   halves[2];

    for (size_t j = 0; j < GROUP; j += 4) {
        const four_masks m = load(scores + j) >= bound;
        const four_masks one = m & 1;

        any |= m;
        memcpy(taken + j, &one, sizeof one);
    }
    memcpy(halves, &any, sizeof halves);
    return (halves[0] | halves[1]) != 0;
}

static size_t collect(const float *scores, size_t n, int32_t first, float least,
                      kvi_select_list *list)
{
    float   *to = list->scores;
    int32_t *at = list->at;
    size_t   n_out = list->n;
    size_t   i = 0;
    uint32_t taken[GROUP];

    for (; i + GROUP <= n && n_out < list->cap; i += GROUP) {
        kvi_prefetch(scores + i + KVI_SELECT_AHEAD);
        if (!find_taken(scores + i, set(least), taken))
            continue;
        for (size_t j = 0; j < GROUP; j++) {
            to[n_out] = scores[i + j];
            at[n_out] = first + (int32_t)(i + j);
            n_out += taken[j];
        }
    }
    for (; i < n && n_out < list->cap; i++) {
        to[n_out] = scores[i];
        at[n_out] = first + (int32_t)i;
        n_out += scores[i] >= least;
    }
    list->n = n_out;
    return i;
}

static void keep(kvi_select_list *list, size_t begin, size_t end, float least)
{
    size_t n = list->n;

    for (size_t i = begin; i < end; i++) {
        const float score = list->scores[i];

        list->scores[n] = score;
        list->at[n] = list->at[i];
        n += score >= least;
    }
    list->n = n;
}

static float find_maximum(const float *scores, size_t n)
{
    float  most = -INFINITY;
    size_t i = 0;

    if (n >= 8) {
        four a = set(most);
        four b = a;

        for (; i + 8 <= n; i += 8) {
            a = more4(load(scores + i), a);
            b = more4(load(scores + i + 4), b);
        }
        a = more4(a, b);
        most = more(more(a[0], a[1]), more(a[2], a[3]));
    }
    for (; i < n; i++)
        most = more(scores[i], most);
    return most;
}

/* Of eight: a chain of maxima, which the processor works on for several blocks at a time. */
static inline float find_maximum_8(const float *scores)
{
    float most = -INFINITY;

    for (size_t i = 0; i < 8; i++)
        most = more(scores[i], most);
    return most;
}

void kvi_ref_maxima(const float *scores, size_t n, size_t block_entries, float *maxima)
{
    size_t at = 0;

    if (block_entries == 8)
        for (; at + 8 <= n; at += 8) {
            kvi_prefetch(scores + at + KVI_SELECT_AHEAD);
            *maxima++ = find_maximum_8(scores + at);
        }
    for (; at < n; at += kvi_min_size(block_entries, n - at))
        *maxima++ = find_maximum(scores + at, kvi_min_size(block_entries, n - at));
}

void kvi_select_portable(kvi_select_kernels *k)
{
    k->collect = collect;
    k->keep = keep;
    k->split = split;
    k->maxima = kvi_ref_maxima;
}
