/* Byte map of a block. Without padding, so that block bytes / block tokens is the plan's rate
 * exactly. */
#include "format/kv_layout.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"

#include <string.h>

#define MAX_PART_BYTES ((uint64_t)1 << 31)

static void owner_of_row(const kvi_plan *plan, uint32_t layer, kvi_kv_owner *o)
{
    const kvi_plan_row *r = &plan->rows[layer];

    o->layer = layer;
    o->ratio = r->ratio;
    o->rows_per_block = plan->block_tokens / r->ratio;
    o->entry_width = r->entry_width;
    o->entry_format = r->entry_format;
    o->main_row_bytes = r->entry_bytes;
    if (r->value_kind == KVCSA_VALUE_OWN) {
        o->n_strip_heads = r->kv_heads;
        o->key_row_bytes = kvi_format_row_bytes(r->entry_format, r->entry_width);
        o->value_row_bytes = kvi_format_row_bytes(r->value_format, r->value_width);
    }
    o->index_width = r->index_width;
    o->index_value_bytes = kvi_format_value_bytes(r->index_format, r->index_width);
    o->index_row_bytes = r->index_bytes;
}

kvcsa_status kvi_kv_layout_init(kvi_kv_layout *layout, const kvi_plan *plan,
                                const kvcsa_allocator *a, kvcsa_error *err)
{
    uint64_t index_bytes = 0;
    uint64_t main_bytes = 0;
    uint32_t n = 0;

    memset(layout, 0, sizeof *layout);
    for (uint32_t l = 0; l < plan->n_layers; l++)
        n += kvi_plan_owns(plan, l) ? 1u : 0u;
    layout->owners = kvi_zalloc(a, (size_t)n * sizeof *layout->owners);
    if (!layout->owners)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "cache block layout of %u owners", n);
    layout->block_tokens = plan->block_tokens;
    layout->n_owners = n;
    n = 0;
    for (uint32_t l = 0; l < plan->n_layers; l++) {
        kvi_kv_owner *o = &layout->owners[n];

        if (!kvi_plan_owns(plan, l))
            continue;
        owner_of_row(plan, l, o);
        o->index_off = (uint32_t)
            index_bytes; /* at most MAX_PART_BYTES, checked below before the next is added */
        o->main_off = (uint32_t)main_bytes;
        index_bytes +=
            (uint64_t)o->rows_per_block * o->index_row_bytes; /* no overflow: three 32-bit terms */
        main_bytes += (uint64_t)o->rows_per_block * o->main_row_bytes;
        if (index_bytes > MAX_PART_BYTES || main_bytes > MAX_PART_BYTES)
            goto too_large;
        n++;
    }
    layout->index_part_bytes = (uint32_t)index_bytes;
    layout->main_part_bytes = (uint32_t)main_bytes;
    return KVCSA_OK;
too_large:
    kvi_kv_layout_fini(layout, a);
    return kvi_fail(err, KVCSA_ERR_FORMAT, "cache block part is %llu bytes, must be at most %llu",
                    (unsigned long long)(index_bytes > main_bytes ? index_bytes : main_bytes),
                    (unsigned long long)MAX_PART_BYTES);
}

void kvi_kv_layout_fini(kvi_kv_layout *layout, const kvcsa_allocator *a)
{
    kvi_free(a, layout->owners, (size_t)layout->n_owners * sizeof *layout->owners);
    memset(layout, 0, sizeof *layout);
}

const kvi_kv_owner *kvi_kv_layout_owner(const kvi_kv_layout *layout, uint32_t layer)
{
    for (uint32_t i = 0; i < layout->n_owners && layout->owners[i].layer <= layer; i++)
        if (layout->owners[i].layer == layer)
            return &layout->owners[i];
    return NULL;
}

/* The first n entries. */
static void copy_main(const kvi_kv_owner *o, uint32_t n, uint8_t *to, const uint8_t *from)
{
    if (o->n_strip_heads == 0)
        memcpy(to + o->main_off, from + o->main_off, (size_t)n * o->main_row_bytes);
    for (uint32_t h = 0; h < o->n_strip_heads; h++) {
        const size_t keys = kvi_kv_key_strip_off(o, h);
        const size_t values = kvi_kv_value_strip_off(o, h);

        memcpy(to + keys, from + keys, (size_t)n * o->key_row_bytes);
        memcpy(to + values, from + values, (size_t)n * o->value_row_bytes);
    }
}

void kvi_kv_copy_rows(const kvi_kv_layout *layout, uint32_t n_tokens, uint8_t *to_index,
                      uint8_t *to_main, const uint8_t *from_index, const uint8_t *from_main)
{
    for (uint32_t i = 0; i < layout->n_owners; i++) {
        const kvi_kv_owner *o = &layout->owners[i];
        const uint32_t      n = n_tokens / o->ratio;
        const uint32_t      scale_bytes = o->index_row_bytes - o->index_value_bytes;

        copy_main(o, n, to_main, from_main);
        for (uint32_t row = 0; row < n && o->index_row_bytes; row++) {
            const size_t values = kvi_kv_index_values_off(o, row);
            const size_t scales = kvi_kv_index_scales_off(o, row);

            memcpy(to_index + values, from_index + values, o->index_value_bytes);
            memcpy(to_index + scales, from_index + scales, scale_bytes);
        }
    }
}
