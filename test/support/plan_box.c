#include "support/plan_box.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const geometry release_geometry = {512, 64, 288, 32, 128, 68, 512, 2048, 8, 128, 528};
static const geometry tiny_geometry = {96, 32, 54, 4, 64, 34, 8, 3, 4, 16, 99};

static kvi_plan_row window_row(const geometry *g)
{
    return (kvi_plan_row){.kv_owner = -1,
                          .index_owner = -1,
                          .select_owner = -1,
                          .candidate_owner = -1,
                          .window_tokens = g->window,
                          .window_format = KVCSA_FORMAT_FP8_E8M0_G32,
                          .window_bytes = g->window_bytes,
                          .sink = 1};
}

kvi_plan_row entry_row(const geometry *g, uint32_t ratio, int32_t layer, int32_t kv_owner,
                       int32_t select_owner)
{
    kvi_plan_row r = window_row(g);

    r.kv_owner = kv_owner;
    r.index_owner = kv_owner;
    r.select_owner = select_owner;
    r.ratio = ratio;
    r.kv_heads = 1;
    r.value_width = g->width;
    r.entry_width = g->width;
    r.entry_rotated = g->rotated;
    r.entry_format = KVCSA_FORMAT_FP4_E4M3_G16;
    r.entry_bytes = g->entry_bytes;
    r.index_heads = g->heads;
    r.index_width = g->index_width;
    r.index_format = KVCSA_FORMAT_FP4_E8M0_G32;
    r.index_bytes = g->index_bytes;
    r.select_entries = g->select;
    r.select = KVCSA_SELECT_INHERITED;
    if (select_owner == layer)
        r.select = KVCSA_SELECT_REINDEX;
    if (kv_owner == layer) {
        r.select = KVCSA_SELECT_OWN;
        r.pool_kind = ratio > 1 ? KVCSA_POOLING_GATED : KVCSA_POOLING_NONE;
        r.pending_bytes = (ratio - 1) * 2 * 4 * g->width;
    }
    return r;
}

void candidates(kvi_plan_row *r, const geometry *g, uint32_t role, int32_t owner)
{
    r->candidates = role;
    r->candidate_owner = owner;
    r->candidate_blocks = g->blocks;
    r->candidate_block_entries = g->block_entries;
}

/* The released model: 40 layers. */
void release_plan(plan_box *box)
{
    const geometry *g = &release_geometry;

    memset(box, 0, sizeof *box);
    box->plan = (kvi_plan){40, 128, 1048576, box->rows};
    for (int32_t l = 0; l < 40; l++) {
        if (l < 2)
            box->rows[l] = window_row(g);
        else if (l < 20) /* three groups of one owner and five readers */
            box->rows[l] = entry_row(g, 2, l, (l - 2) / 6 * 6 + 2, (l - 2) / 6 * 6 + 2);
        else /* one owner; a selection of its own in every fourth layer */
            box->rows[l] = entry_row(g, 1, l, 20, l / 4 * 4);
    }
    candidates(&box->rows[20], g, KVCSA_CANDIDATES_SOURCE, 20);
    for (int32_t l = 24; l < 40; l += 4)
        candidates(&box->rows[l], g, KVCSA_CANDIDATES_CONSUMER, 20);
}

/* The tiny random checkpoint: 10 layers. */
void tiny_plan(plan_box *box)
{
    const geometry *g = &tiny_geometry;

    memset(box, 0, sizeof *box);
    box->plan = (kvi_plan){10, 128, 16384, box->rows};
    box->rows[0] = box->rows[1] = window_row(g);
    box->rows[2] = entry_row(g, 2, 2, 2, 2);
    box->rows[3] = entry_row(g, 2, 3, 2, 2);
    box->rows[4] = entry_row(g, 2, 4, 4, 4);
    box->rows[5] = entry_row(g, 1, 5, 5, 5);
    box->rows[6] = entry_row(g, 1, 6, 5, 5);
    box->rows[7] = entry_row(g, 1, 7, 5, 7);
    box->rows[8] = entry_row(g, 1, 8, 5, 7);
    box->rows[9] = entry_row(g, 1, 9, 5, 7);
    candidates(&box->rows[5], g, KVCSA_CANDIDATES_SOURCE, 5);
    candidates(&box->rows[7], g, KVCSA_CANDIDATES_CONSUMER, 5);
}

void set_ratio(plan_box *box, uint32_t first, uint32_t last, uint32_t ratio)
{
    for (uint32_t l = first; l <= last; l++) {
        kvi_plan_row *r = &box->rows[l];

        r->ratio = ratio;
        if (r->kv_owner != (int32_t)l)
            continue;
        r->pool_kind = ratio > 1 ? KVCSA_POOLING_GATED : KVCSA_POOLING_NONE;
        r->pending_bytes = (ratio - 1) * 2 * 4 * r->entry_width;
    }
}

plan_box *new_box(void)
{
    plan_box *box = malloc(sizeof *box);

    assert_non_null(box);
    return box;
}

static kvi_plan_row empty_row(void)
{
    return (kvi_plan_row){.kv_owner = -1,
                          .index_owner = -1,
                          .select_owner = -1,
                          .candidate_owner = -1,
                          .cost_only = 1};
}

/* Keys and values of 8 heads of 128, bf16; every entry is attended. */
static kvi_plan_row grouped_row(int32_t kv_owner)
{
    kvi_plan_row r = empty_row();

    r.kv_owner = kv_owner;
    r.ratio = 1;
    r.kv_heads = 8;
    r.entry_width = r.value_width = 128;
    r.entry_format = r.value_format = KVCSA_FORMAT_BF16;
    r.value_kind = KVCSA_VALUE_OWN;
    r.entry_bytes = 8 * 256 * 2;
    r.select = KVCSA_SELECT_ALL;
    return r;
}

kvi_plan_row latent_row(int32_t layer, int32_t kv_owner, int32_t index_owner)
{
    kvi_plan_row r = empty_row();

    r.kv_owner = kv_owner;
    r.index_owner = r.select_owner = index_owner;
    r.ratio = 1;
    r.kv_heads = 1;
    r.entry_width = 576;
    r.entry_rotated = 64;
    r.value_width = 512;
    r.value_kind = KVCSA_VALUE_PREFIX;
    r.entry_format = KVCSA_FORMAT_MLA_FP8_656;
    r.entry_bytes = 656;
    r.select_entries = 2048;
    r.select = KVCSA_SELECT_INHERITED;
    if (index_owner != layer)
        return r;
    r.select = KVCSA_SELECT_OWN;
    r.index_heads = 64;
    r.index_width = 128;
    r.index_format = KVCSA_FORMAT_FP8_F32_G128;
    r.index_bytes = 132;
    return r;
}

/* A latent of 512, key and value, of `ratio` tokens, beside a window. */
static kvi_plan_row pooled_row(int32_t layer, uint32_t kind, uint32_t ratio)
{
    kvi_plan_row r = empty_row();

    r.kv_owner = layer;
    r.ratio = ratio;
    r.pool_kind = kind;
    r.kv_heads = 1;
    r.entry_width = r.value_width = 512;
    r.entry_format = r.window_format = KVCSA_FORMAT_CSA_FP8_584;
    r.entry_bytes = r.window_bytes = 584;
    r.window_tokens = 128;
    r.select = KVCSA_SELECT_ALL;
    r.pending_bytes = (ratio - 1) * 8 * 512;
    return r;
}

void mixed_plan(plan_box *box)
{
    kvi_plan_row *r = box->rows;

    memset(box, 0, sizeof *box);
    box->plan = (kvi_plan){9, 128, UINT32_MAX, r};
    r[0] = grouped_row(0);
    r[1] = grouped_row(0);
    r[2] = empty_row();
    r[2].kv_heads = 8;
    r[2].window_tokens = 1024;
    r[2].window_format = KVCSA_FORMAT_BF16;
    r[2].window_bytes = 4096;
    r[3] = empty_row();
    r[3].state_heads = 4;
    r[3].state_bytes = 1 << 20;
    r[4] = latent_row(4, 4, 4);
    r[5] = latent_row(5, 5, 4);
    r[6] = latent_row(6, 5, 4);
    r[7] = pooled_row(7, KVCSA_POOLING_OVERLAP, 4);
    r[7].select = KVCSA_SELECT_OWN;
    r[7].select_owner = r[7].index_owner = 7;
    r[7].select_entries = 512;
    r[7].index_heads = 64;
    r[7].index_width = 128;
    r[7].index_format = KVCSA_FORMAT_FP4_E8M0_G32;
    r[7].index_bytes = 68;
    r[7].pending_bytes = 7 * 2 * 8 * (512 + 128);
    r[8] = pooled_row(8, KVCSA_POOLING_WIDE, 128);
}
