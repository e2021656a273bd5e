#include "attn/swa_replay.h"

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

void kvi_replay_first_rows(const kvi_plan *plan, uint64_t hit, uint32_t how, uint64_t *first)
{
    const uint32_t n = plan->n_layers;
    uint64_t       widest = 0;

    if (how == KVI_REPLAY_EXACT) {
        first[n] = hit - 1;
        for (uint32_t l = n; l-- > 0;)
            first[l] = minus(first[l + 1], minus(plan->rows[l].window_tokens, 1));
        return;
    }
    for (uint32_t l = 0; l < n; l++)
        if (plan->rows[l].window_tokens > widest)
            widest = plan->rows[l].window_tokens;
    for (uint32_t l = 0; l <= n; l++)
        first[l] = minus(hit, widest);
}

int kvi_replay_cut(const kvi_plan *plan, uint32_t cut, uint64_t begin, uint64_t end,
                   uint64_t *first)
{
    uint64_t widest = 0;

    for (uint32_t l = cut; l < plan->n_layers; l++)
        if (plan->rows[l].window_tokens > widest)
            widest = plan->rows[l].window_tokens;
    if (widest == 0 || end - begin <= widest)
        return 0;
    for (uint32_t l = cut; l <= plan->n_layers; l++)
        if (first[l] < end - widest)
            first[l] = end - widest;
    return 1;
}

uint32_t kvi_replay_default_cut(const kvi_plan *plan)
{
    uint32_t cut = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++)
        if (kvi_plan_owns(plan, l))
            cut = l + 1;
    return cut;
}
