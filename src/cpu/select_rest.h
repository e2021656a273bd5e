/* Selection: the scores behind the last whole vector, one at a time. For variants without masks of
 * lanes. */
#ifndef KVI_CPU_SELECT_REST_H
#define KVI_CPU_SELECT_REST_H

#include "cpu/select_kernels.h"

/* split: scores[0..n-1] are added to s. */
static inline void kvi_split_rest(const float *scores, size_t n, float least, kvi_select_split *s)
{
    for (size_t i = 0; i < n; i++) {
        const float x = scores[i];

        s->n += x >= least;
        s->above = x >= least && x < s->above ? x : s->above;
        s->below = !(x >= least) && x > s->below ? x : s->below;
    }
}

/* collect: from score i on. Returns how many it has looked at in all. */
static inline size_t kvi_collect_rest(const float *scores, size_t i, size_t n, int32_t first,
                                      float least, kvi_select_list *list)
{
    const kvi_select_list out = *list;
    size_t                n_out = out.n;

    for (; i < n && n_out < out.cap; i++) {
        out.scores[n_out] = scores[i];
        out.at[n_out] = first + (int32_t)i;
        n_out += scores[i] >= least;
    }
    list->n = n_out;
    return i;
}

/* keep: the elements begin..end-1. */
static inline void kvi_keep_rest(kvi_select_list *list, size_t begin, size_t end, float least)
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

#endif
