/* The five figures, as sums over the rows of a plan. kvi_plan_validate bounds every factor so that
 * no sum here overflows for n_tokens up to the plan's max_tokens. */
#include "plan/plan_cost.h"

#include "base/checked.h"

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* What one layer fetches for one token at context length n: the index keys it scores, the entries
 * it attends, its window. */
static uint64_t read_of_layer(const kvi_plan_row *r, uint64_t n)
{
    uint64_t bytes = (uint64_t)r->window_bytes * min_u64(n, r->window_tokens);
    uint64_t entries;
    uint64_t scored;

    if (r->ratio == 0)
        return bytes;
    entries = n / r->ratio;
    scored = entries;
    if (r->candidates == KVCSA_CANDIDATES_CONSUMER)
        scored = min_u64(entries, (uint64_t)r->candidate_blocks * r->candidate_block_entries);
    if (r->select == KVCSA_SELECT_OWN || r->select == KVCSA_SELECT_REINDEX)
        bytes += r->index_bytes * scored;
    return bytes + r->entry_bytes * min_u64(entries, r->select_entries);
}

uint64_t kvi_plan_window_bytes(const kvi_plan *plan)
{
    uint64_t bytes = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++)
        bytes += (uint64_t)plan->rows[l].window_tokens * plan->rows[l].window_bytes;
    return bytes;
}

uint64_t kvi_plan_pending_bytes(const kvi_plan *plan)
{
    uint64_t bytes = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++)
        bytes += plan->rows[l].pending_bytes;
    return bytes;
}

void kvi_plan_cost(const kvi_plan *plan, uint64_t n_tokens, kvcsa_cost *out)
{
    uint64_t index_part = 0;
    uint64_t main_part = 0;
    uint64_t read = 0;
    uint64_t persist = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *r = &plan->rows[l];

        read += read_of_layer(r, n_tokens);
        if (!kvi_plan_owns(plan, l))
            continue;
        index_part += (uint64_t)(plan->block_tokens / r->ratio) * r->index_bytes;
        main_part += (uint64_t)(plan->block_tokens / r->ratio) * r->entry_bytes;
        persist += n_tokens / r->ratio * ((uint64_t)r->entry_bytes + r->index_bytes);
    }
    out->n_tokens = n_tokens;
    out->const_bytes = kvi_plan_window_bytes(plan);
    out->resident_bytes =
        out->const_bytes + kvi_div_up(n_tokens, plan->block_tokens) * (index_part + main_part);
    out->read_bytes = read;
    out->persist_bytes = persist;
    out->pending_bytes = kvi_plan_pending_bytes(plan);
    out->block_tokens = plan->block_tokens;
    out->block_bytes = (uint32_t)(index_part + main_part); /* at most 2^31 in a validated plan */
    out->index_part_bytes = (uint32_t)index_part;
    out->main_part_bytes = (uint32_t)main_part;
    out->rate_bytes_per_token = (float)((double)(index_part + main_part) / plan->block_tokens);
    out->reserved = 0;
}

void kvi_plan_public_row(const kvi_plan *plan, uint32_t layer, kvcsa_plan_row *out)
{
    const kvi_plan_row *r = &plan->rows[layer];
    const int           owns = kvi_plan_owns(plan, layer);

    out->layer = (int32_t)layer;
    out->kv_owner = r->kv_owner;
    out->select_owner = r->select_owner;
    out->select = (int32_t)r->select;
    out->candidates = (int32_t)r->candidates;
    out->ratio = r->ratio;
    out->entry_width = r->entry_width;
    out->entry_format = r->entry_format;
    out->entry_bytes = owns ? r->entry_bytes : 0;
    out->index_heads = r->index_heads;
    out->index_width = r->index_width;
    out->index_format = r->index_format;
    out->index_bytes = owns ? r->index_bytes : 0;
    out->select_entries = r->select_entries;
    out->candidate_blocks = r->candidate_blocks;
    out->candidate_block_entries = r->candidate_block_entries;
    out->window_tokens = r->window_tokens;
    out->window_format = r->window_format;
    out->window_bytes = r->window_bytes;
    out->pending_bytes = r->pending_bytes;
}
