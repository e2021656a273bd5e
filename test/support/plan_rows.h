/* Rows of plans for kvcsa_model_from_plan, and what tests ask of the models. Public header only. */
#ifndef PLAN_ROWS_H
#define PLAN_ROWS_H

#include "support/host.h"

#define V41_CONFIG "test/data/v41-flash-config.json"
#define MAX_LAYERS 256

enum { N_MIXED = 8 };

static inline kvcsa_plan_row empty_row(int32_t layer)
{
    return (kvcsa_plan_row){.struct_size = sizeof(kvcsa_plan_row),
                            .layer = layer,
                            .kv_owner = -1,
                            .select_owner = -1,
                            .index_owner = -1};
}

static inline kvcsa_plan_row window_row(int32_t layer)
{
    kvcsa_plan_row r = empty_row(layer);

    r.entry_width = 64;
    r.window_tokens = 16;
    r.window_format = KVCSA_FORMAT_FP8_E8M0_G32;
    return r;
}

/* One latent of 64 channels for two tokens, 8 of them selected, beside a window. */
static inline kvcsa_plan_row selected_row(int32_t layer, int32_t kv_owner, int32_t select,
                                          int32_t select_owner)
{
    kvcsa_plan_row r = window_row(layer);

    r.kv_owner = kv_owner;
    r.index_owner = kv_owner;
    r.select = select;
    r.select_owner = select_owner;
    r.ratio = 2;
    r.pool_kind = KVCSA_POOLING_GATED;
    r.entry_format = KVCSA_FORMAT_FP4_E4M3_G16;
    r.select_entries = 8;
    if (select == KVCSA_SELECT_INHERITED)
        return r;
    r.index_heads = 4;
    r.index_width = 32;
    r.index_format = KVCSA_FORMAT_FP4_E8M0_G32;
    r.candidates = layer == kv_owner ? KVCSA_CANDIDATES_SOURCE : KVCSA_CANDIDATES_CONSUMER;
    r.candidate_blocks = 4;
    r.candidate_block_entries = 8;
    return r;
}

/* Keys and values of heads, every token attended. */
static inline kvcsa_plan_row grouped_row(int32_t layer, int32_t kv_owner, uint32_t heads,
                                         uint32_t width)
{
    kvcsa_plan_row r = empty_row(layer);

    r.kv_owner = kv_owner;
    r.select = KVCSA_SELECT_ALL;
    r.ratio = 1;
    r.kv_heads = heads;
    r.entry_width = width;
    r.value_width = width;
    r.value_kind = KVCSA_VALUE_OWN;
    r.entry_format = KVCSA_FORMAT_BF16;
    r.value_format = KVCSA_FORMAT_BF16;
    return r;
}

/* Layers of every kind: 0..3 window and selection, 4..5 grouped, 6..7 for their cost. */
static inline void mixed(kvcsa_plan_row rows[N_MIXED])
{
    rows[0] = window_row(0);
    rows[1] = selected_row(1, 1, KVCSA_SELECT_OWN, 1);
    rows[2] = selected_row(2, 1, KVCSA_SELECT_REINDEX, 2);
    rows[3] = selected_row(3, 1, KVCSA_SELECT_INHERITED, 2);
    rows[4] = grouped_row(4, 4, 2, 32);
    rows[5] = grouped_row(5, 4, 2, 32);
    rows[6] = empty_row(6);
    rows[6].state_heads = 4;
    rows[6].state_bytes = 4096;
    rows[7] = grouped_row(7, 7, 1, 576);
    rows[7].value_kind = KVCSA_VALUE_PREFIX;
    rows[7].value_width = 512;
    rows[7].value_format = KVCSA_FORMAT_NONE;
    rows[7].entry_format = KVCSA_FORMAT_MLA_FP8_656;
}

static inline kvcsa_plan_params default_params(void)
{
    kvcsa_plan_params p;

    kvcsa_plan_params_default(&p, sizeof p);
    return p;
}

static inline kvcsa_model *from_rows(const kvcsa_plan_row *rows, size_t n,
                                     const kvcsa_plan_params *p)
{
    kvcsa_model *m = NULL;
    kvcsa_error  err;

    assert_ok(kvcsa_model_from_plan(rows, n, p, &m, &err));
    return m;
}

static inline kvcsa_model_info info_of(const kvcsa_model *m)
{
    kvcsa_model_info info = {.struct_size = sizeof info};
    kvcsa_error      err;

    assert_ok(kvcsa_model_get_info(m, &info, &err));
    return info;
}

static inline void rows_of(const kvcsa_model *m, kvcsa_plan_row *rows)
{
    const uint32_t n = info_of(m).n_layers;
    kvcsa_error    err;

    assert_true(n <= MAX_LAYERS);
    for (uint32_t l = 0; l < n; l++) {
        rows[l].struct_size = sizeof rows[l];
        assert_ok(kvcsa_model_plan_row(m, l, &rows[l], &err));
    }
}

static inline kvcsa_cost cost_of(const kvcsa_model *m, uint64_t n_tokens)
{
    kvcsa_cost  c;
    kvcsa_error err;

    memset(&c, 0, sizeof c); /* compared as bytes */
    c.struct_size = sizeof c;
    assert_ok(kvcsa_model_cost(m, n_tokens, &c, &err));
    return c;
}

#endif
