/* Byte map of one cache block, computed from the plan.
 *
 * A block holds the entries of all owners for one span of block_tokens tokens, in two contiguous
 * parts without padding:
 *   index part   per owner with index keys, ascending layer: groups of 8 rows, each 8 x values then
 *                8 x scales
 *   main part    per owner, ascending layer: rows in entry_format, the keys of all heads; or, where
 *                values are stored, strips: of each head all rows of keys, then all rows of values
 */
#ifndef KVI_KV_LAYOUT_H
#define KVI_KV_LAYOUT_H

#include "plan/cache_plan.h"

typedef struct kvi_kv_owner {
    uint32_t layer;
    uint32_t ratio;
    uint32_t rows_per_block;
    uint32_t entry_width;
    uint32_t entry_format;       /* KVCSA_FORMAT_*; of keys where keys and values differ */
    uint32_t main_row_bytes;     /* all heads, keys and values */
    uint32_t n_strip_heads;      /* 0 = rows; else the heads that have a strip of keys and one of
                                  * values each */
    uint32_t key_row_bytes;      /* of one head in a strip; 0 without strips */
    uint32_t value_row_bytes;
    uint32_t index_width;
    uint32_t index_value_bytes;  /* of one row */
    uint32_t index_row_bytes;
    uint32_t index_off;          /* of this owner inside the index part */
    uint32_t main_off;           /* of this owner inside the main part */
} kvi_kv_owner;

typedef struct kvi_kv_layout {
    uint32_t      block_tokens;
    uint32_t      index_part_bytes;
    uint32_t      main_part_bytes;
    uint32_t      n_owners;
    kvi_kv_owner *owners;        /* [n_owners], ascending layer */
} kvi_kv_layout;

/* The plan has been validated. ERR_NOMEM, or ERR_FORMAT if a part is larger than 2^31 bytes.
 * fini accepts a zeroed layout. */
kvcsa_status kvi_kv_layout_init(kvi_kv_layout *layout, const kvi_plan *plan,
                                const kvcsa_allocator *a, kvcsa_error *err);
void         kvi_kv_layout_fini(kvi_kv_layout *layout, const kvcsa_allocator *a);

/* Copy the complete entries of a block's first n_tokens tokens, and no other byte: what lies behind
 * them may be written by somebody else at the same time. */
void kvi_kv_copy_rows(const kvi_kv_layout *layout, uint32_t n_tokens, uint8_t *to_index,
                      uint8_t *to_main, const uint8_t *from_index, const uint8_t *from_main);

/* Owner of a layer; NULL if it owns no entries. */
const kvi_kv_owner *kvi_kv_layout_owner(const kvi_kv_layout *layout, uint32_t layer);

/* Where a head's strips begin inside the main part. */
static inline size_t kvi_kv_key_strip_off(const kvi_kv_owner *o, uint32_t head)
{
    return o->main_off +
           (size_t)head * o->rows_per_block * ((size_t)o->key_row_bytes + o->value_row_bytes);
}

static inline size_t kvi_kv_value_strip_off(const kvi_kv_owner *o, uint32_t head)
{
    return kvi_kv_key_strip_off(o, head) + (size_t)o->rows_per_block * o->key_row_bytes;
}

/* Offsets inside a part; row < rows_per_block. Of owners without strips. */
static inline size_t kvi_kv_main_row_off(const kvi_kv_owner *o, uint32_t row)
{
    return o->main_off + (size_t)row * o->main_row_bytes;
}

static inline size_t kvi_kv_index_group_off(const kvi_kv_owner *o, uint32_t group)
{
    return o->index_off + (size_t)group * KVI_INDEX_GROUP_ROWS * o->index_row_bytes;
}

static inline size_t kvi_kv_index_values_off(const kvi_kv_owner *o, uint32_t row)
{
    return kvi_kv_index_group_off(o, row / KVI_INDEX_GROUP_ROWS) +
           (size_t)(row % KVI_INDEX_GROUP_ROWS) * o->index_value_bytes;
}

static inline size_t kvi_kv_index_scales_off(const kvi_kv_owner *o, uint32_t row)
{
    return kvi_kv_index_group_off(o, row / KVI_INDEX_GROUP_ROWS) +
           (size_t)KVI_INDEX_GROUP_ROWS * o->index_value_bytes +
           (size_t)(row % KVI_INDEX_GROUP_ROWS) * (o->index_row_bytes - o->index_value_bytes);
}

#endif
