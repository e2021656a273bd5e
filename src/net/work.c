/* What a run did, counted layer by layer for each session. */
#include "base/checked.h"
#include "net/net_int.h"

kvcsa_work *kvi_net_work(const kvi_net_slice *slices, size_t i, uint32_t layer)
{
    return slices[i].work && !slices[i].stopped ? &slices[i].work[layer] : NULL;
}

void kvi_net_count_window(const kvi_net *net, const kvi_net_slice *slices, uint32_t layer)
{
    const kvi_plan_row *row = &net->model->plan.rows[layer];

    for (size_t i = 0; i < net->n_parts; i++) {
        const size_t n = net->host.parts[i].n_rows;
        kvcsa_work  *w = kvi_net_work(slices, i, layer);

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
        const kvi_compress_slice *c = &net->host.compress[i];
        const size_t              n = slices[i].replay ? 0 : c->n_entries;
        kvcsa_work               *w = kvi_net_work(slices, i, layer);

        if (!w)
            continue;
        w->n_entries_written += n;
        w->written_bytes += n * ((size_t)row->entry_bytes + row->index_bytes);
        w->written_bytes += (size_t)c->n_kept * row->pending_bytes;
    }
}

uint64_t *kvi_net_tally(const kvi_net *net, uint64_t *lists, size_t i, uint32_t layer)
{
    return lists + (i * net->model->plan.n_layers + layer) * KVI_TALLY_SIZE;
}

/* What the host knows of slice i. Returns 1 if the slice is counted. */
static int count_window_reads(const kvi_net *net, const kvi_net_slice *slices, size_t i,
                              uint32_t layer)
{
    const kvi_plan_row  *row = &net->model->plan.rows[layer];
    const kvi_net_part  *part = &net->host.parts[i];
    const kvi_net_slice *slice = &slices[i];
    const uint64_t       floor = kvi_max_size(slice->floors[layer], slice->first_rows[layer]);
    kvcsa_work          *w = kvi_net_work(slices, i, layer);
    uint64_t             n_window = 0;

    if (!w)
        return 0;
    for (size_t r = part->begin; r < part->begin + part->n_rows; r++) {
        const uint64_t end = net->host.meta.pos[r] + 1;

        n_window += kvi_min_size(row->window_tokens, end - kvi_min_size(floor, end));
    }
    w->n_rows += part->n_rows;
    w->n_window_rows_read += n_window;
    w->read_bytes += n_window * row->window_bytes;
    return 1;
}

kvcsa_status kvi_net_count_attention(const kvi_net *net, const kvi_exec *exec,
                                     const kvi_net_slice *slices, const kvi_net_group *g,
                                     uint32_t layer, kvcsa_error *err)
{
    const kvi_plan_row    *row = &net->model->plan.rows[layer];
    const kvi_tally_params ids = {
        .items = net->b.ids + g->begin * net->n_ids,
        .counts = kvi_net_tally(net, net->b.tally, g->first, layer) + KVI_TALLY_IDS,
        .stride = net->n_ids,
        .n_rows = g->n_rows,
        .n_items = row->select_entries,
        .each = 1,
        .rows_per_block = row->ratio ? net->model->plan.block_tokens / row->ratio : 1,
        .rows_each = g->each,
        .counts_stride = net->model->plan.n_layers * (size_t)KVI_TALLY_SIZE};
    int counted = 0;

    for (size_t i = g->first; i < g->first + g->n; i++)
        counted |= count_window_reads(net, slices, i, layer);
    return counted && row->ratio ? exec->ops->tally(exec->dev, &ids, err) : KVCSA_OK;
}

void kvi_net_add_tallies(const kvi_net *net, const kvi_net_slice *slices)
{
    for (size_t i = 0; i < net->n_parts; i++)
        for (uint32_t l = 0; slices[i].work && l < net->host.parts[i].n_counted; l++) {
            const kvi_plan_row *row = &net->model->plan.rows[l];
            const uint64_t     *tally = kvi_net_tally(net, net->host.tally, i, l);
            const uint64_t     *ids = tally + KVI_TALLY_IDS;
            kvcsa_work         *w = &slices[i].work[l];

            if (row->ratio == 0)
                continue;
            kvi_select_add_tally(row,
                                 kvi_kv_layout_owner(&net->model->layout, (uint32_t)row->kv_owner),
                                 tally + KVI_TALLY_BLOCKS, w);
            w->n_entries_read += ids[1];
            w->n_blocks_touched += ids[2];
            w->read_bytes += ids[1] * row->entry_bytes;
        }
}

void kvi_net_count_experts(const kvi_net *net, const kvi_net_slice *slices, uint32_t layer)
{
    for (size_t i = 0; i < net->n_parts; i++)
        if (kvi_net_work(slices, i, layer))
            slices[i].work[layer].n_experts +=
                (uint64_t)net->host.parts[i].n_rows * net->model->config.n_experts_per_token;
}

kvcsa_status kvi_net_add_mass(const kvi_net *net, const kvi_net_slice *slices, size_t i,
                              uint32_t layer, kvcsa_error *err)
{
    const kvi_plan_row  *row = &net->model->plan.rows[layer];
    const kvi_net_part  *part = &net->host.parts[i];
    const kvi_net_slice *slice = &slices[i];
    const uint32_t       k = row->select_entries;
    const size_t         n = part->n_rows * k;
    const uint64_t       per_span = slice->limits->span_tokens / row->ratio;
    const void          *seen[2];
    kvcsa_status         st;

    if (slice->stopped)
        return KVCSA_OK;
    if ((st = kvi_memory_see(&net->memory, net->b.ids + part->begin * net->n_ids,
                             n * sizeof(int32_t), net->host.ids, &seen[0], err)) != KVCSA_OK ||
        (st = kvi_memory_see(&net->memory, net->b.mass, n * sizeof(float), net->host.mass, &seen[1],
                             err)) != KVCSA_OK)
        return st;

    const int32_t *ids = seen[0];
    const float   *mass = seen[1];

    for (size_t r = 0; r < part->n_rows; r++)
        for (uint32_t j = 0; j < k && ids[r * k + j] >= 0; j++)
            slice->mass[(uint64_t)ids[r * k + j] / per_span] += (double)mass[r * k + j];
    return KVCSA_OK;
}
