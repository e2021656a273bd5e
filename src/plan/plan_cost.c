/* The five figures, as sums over the rows of a plan. kvi_plan_validate bounds every factor so that
 * no sum here overflows for n_tokens up to the plan's max_tokens. */
#include "plan/plan_cost.h"

#include "base/checked.h"

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
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

uint64_t kvi_plan_state_bytes(const kvi_plan *plan)
{
    uint64_t bytes = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++)
        bytes += plan->rows[l].state_bytes;
    return bytes;
}

/* Keys that one layer scores for one token at context length n. A layer that uses the selection of
 * another scores none, wherever its keys lie. */
static uint64_t index_read_of(const kvi_plan_row *r, uint64_t n)
{
    uint64_t keys;

    if (r->select != KVCSA_SELECT_OWN && r->select != KVCSA_SELECT_REINDEX)
        return 0;
    keys = n / r->ratio;
    if (r->candidates == KVCSA_CANDIDATES_CONSUMER)
        keys = min_u64(keys, (uint64_t)r->candidate_blocks * r->candidate_block_entries);
    return r->index_bytes * keys;
}

/* Entries that it attends, its own or another's. */
static uint64_t entry_read_of(const kvi_plan_row *r, uint64_t n)
{
    uint64_t entries;

    if (r->ratio == 0)
        return 0;
    entries = n / r->ratio;
    if (r->select != KVCSA_SELECT_ALL)
        entries = min_u64(entries, r->select_entries);
    return r->entry_bytes * entries;
}

/* The three factors of the rate; all 0 without owners. */
static void factor(const kvi_plan *plan, uint64_t entries_per_block, kvcsa_cost *out)
{
    const double block_tokens = plan->block_tokens;

    out->rate = (double)out->block_bytes / block_tokens;
    out->rate_bytes_per_token = (float)out->rate;
    out->entry_bytes = 0;
    out->sequence_factor = 0;
    if (entries_per_block == 0)
        return;
    out->entry_bytes = (double)out->block_bytes / (double)entries_per_block;
    out->sequence_factor = (double)entries_per_block / (block_tokens * out->n_kv_layers);
}

void kvi_plan_cost(const kvi_plan *plan, uint64_t n_tokens, kvcsa_cost *out)
{
    uint64_t index_part = 0;
    uint64_t main_part = 0;
    uint64_t entries_per_block = 0;
    uint64_t entry_read = 0;
    uint64_t window_row = 0; /* one position in every layer */

    out->n_tokens = n_tokens;
    out->persist_bytes = 0;
    out->index_read_bytes = 0;
    out->window_read_bytes = 0;
    out->n_kv_layers = 0;
    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const kvi_plan_row *r = &plan->rows[l];
        const uint64_t      rows = r->ratio ? plan->block_tokens / r->ratio : 0;

        out->index_read_bytes += index_read_of(r, n_tokens);
        entry_read += entry_read_of(r, n_tokens);
        out->window_read_bytes += r->window_bytes * min_u64(n_tokens, r->window_tokens);
        window_row += r->window_bytes;
        if (!kvi_plan_owns(plan, l))
            continue;
        out->n_kv_layers++;
        entries_per_block += rows;
        index_part += rows * r->index_bytes;
        main_part += rows * r->entry_bytes;
        out->persist_bytes += n_tokens / r->ratio * ((uint64_t)r->entry_bytes + r->index_bytes);
    }
    out->state_bytes = kvi_plan_state_bytes(plan);
    out->persist_bytes += out->state_bytes;
    out->const_bytes = kvi_plan_window_bytes(plan) + out->state_bytes;
    /* a query reads the rows that are there, so what is read of windows is what there is of them */
    out->resident_bytes = out->window_read_bytes + out->state_bytes +
                          kvi_div_up(n_tokens, plan->block_tokens) * (index_part + main_part);
    out->read_bytes =
        out->index_read_bytes + entry_read + out->window_read_bytes + out->state_bytes;
    out->pending_bytes = kvi_plan_pending_bytes(plan);
    out->block_tokens = plan->block_tokens;
    out->block_bytes = (uint32_t)(index_part + main_part); /* at most 2^31 in a validated plan */
    out->index_part_bytes = (uint32_t)index_part;
    out->main_part_bytes = (uint32_t)main_part;
    factor(plan, entries_per_block, out);
    out->written_bytes = out->rate + (double)window_row;
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
    out->kv_heads = r->kv_heads;
    out->value_width = r->value_width;
    out->value_kind = r->value_kind;
    out->value_format = r->value_format;
    out->pool_kind = r->pool_kind;
    out->state_heads = r->state_heads;
    out->state_bytes = r->state_bytes;
    out->index_owner = r->index_owner;
    out->cost_only = r->cost_only;
}
