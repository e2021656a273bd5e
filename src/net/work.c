/* What a run did, counted layer by layer for each session. */
#include "base/checked.h"
#include "net/net_int.h"

void kvi_net_count_window(const kvi_net *net, const kvi_net_slice *slices, uint32_t layer)
{
    const kvi_plan_row *row = &net->model->plan.rows[layer];

    for (size_t i = 0; i < net->n_parts; i++) {
        const size_t n = net->b.parts[i].n_rows;
        kvcsa_work  *w = slices[i].work ? &slices[i].work[layer] : NULL;

        if (!w)
            continue;
        w->n_replayed_rows += slices[i].replay ? n : 0;
        w->n_window_rows_written += n;
        w->written_bytes += n * row->window_bytes;
    }
}

void kvi_net_count_entries(const kvi_net *net, const kvi_net_slice *slices, uint32_t layer)
{
    const kvi_plan_row *row = &net->model->plan.rows[layer];

    for (size_t i = 0; i < net->n_parts; i++) {
        const kvi_compress_slice *c = &net->b.compress[i];
        const size_t              n = slices[i].replay ? 0 : c->n_entries;
        kvcsa_work               *w = slices[i].work ? &slices[i].work[layer] : NULL;

        if (!w)
            continue;
        w->n_entries_written += n;
        w->written_bytes += n * ((size_t)row->entry_bytes + row->index_bytes);
        w->written_bytes += (size_t)c->n_kept * row->pending_bytes;
    }
}

/* Selected entries of a row, and the cache blocks they lie in. */
static uint64_t count_ids(const int32_t *ids, uint32_t k, uint32_t rows_per_block,
                          uint64_t *n_parts)
{
    int64_t  last = -1;
    uint64_t n = 0;

    for (; n < k && ids[n] >= 0; n++) {
        const int64_t part = ids[n] / (int64_t)rows_per_block;

        *n_parts += part != last;
        last = part;
    }
    return n;
}

void kvi_net_count_attention(const kvi_net *net, const kvi_net_slice *slices, size_t i,
                             uint32_t layer)
{
    const kvi_plan_row  *row = &net->model->plan.rows[layer];
    const kvi_net_part  *part = &net->b.parts[i];
    const kvi_net_slice *slice = &slices[i];
    const uint64_t       floor = kvi_max_size(slice->floors[layer], slice->first_rows[layer]);
    kvcsa_work          *w = slice->work ? &slice->work[layer] : NULL;
    uint64_t             n_entries = 0;
    uint64_t             n_window = 0;

    if (!w)
        return;
    for (size_t r = part->begin; r < part->begin + part->n_rows; r++) {
        const uint64_t end = net->b.pos[r] + 1;

        n_window += kvi_min_size(row->window_tokens, end - kvi_min_size(floor, end));
        if (row->ratio)
            n_entries += count_ids(net->b.ids + r * net->b.n_ids, row->select_entries,
                                   net->model->plan.block_tokens / row->ratio,
                                   &w->n_blocks_touched);
    }
    w->n_rows += part->n_rows;
    w->n_window_rows_read += n_window;
    w->n_entries_read += n_entries;
    w->read_bytes += n_window * row->window_bytes + n_entries * row->entry_bytes;
}

void kvi_net_count_experts(const kvi_net *net, const kvi_net_slice *slices, uint32_t layer)
{
    for (size_t i = 0; i < net->n_parts; i++)
        if (slices[i].work)
            slices[i].work[layer].n_experts += (uint64_t)net->b.parts[i].n_rows *
                                               net->model->config.n_experts_per_token;
}

void kvi_net_add_mass(const kvi_net *net, const kvi_net_slice *slices, size_t i, uint32_t layer)
{
    const kvi_plan_row  *row = &net->model->plan.rows[layer];
    const kvi_net_part  *part = &net->b.parts[i];
    const kvi_net_slice *slice = &slices[i];
    const uint32_t       k = row->select_entries;
    const int32_t       *ids = net->b.ids + part->begin * net->b.n_ids;
    const uint64_t       per_span = slice->limits->span_tokens / row->ratio;

    for (size_t r = 0; r < part->n_rows; r++)
        for (uint32_t j = 0; j < k && ids[r * k + j] >= 0; j++)
            slice->mass[(uint64_t)ids[r * k + j] / per_span] += (double)net->b.mass[r * k + j];
}
