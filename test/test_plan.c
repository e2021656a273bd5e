/* The cache plan: its rules, one broken plan a rule; the five figures against closed formulas. */
#include "plan/cache_plan.h"
#include "plan/plan_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_LAYERS 1025u
#define N_FAULTS 104u /* cases of break_plan */
#define N_MIXED_FAULTS 55u /* and of break_mixed */

typedef struct plan_box {
    kvi_plan     plan;
    kvi_plan_row rows[MAX_LAYERS];
} plan_box;

/* ------------------------------------------------------------------ plans by hand */

/* What a geometry has in common. */
typedef struct geometry {
    uint32_t width, rotated, entry_bytes;
    uint32_t heads, index_width, index_bytes;
    uint32_t select, blocks, block_entries;
    uint32_t window, window_bytes;
} geometry;

static const geometry release_geometry = {512, 64, 288, 32, 128, 68, 512, 2048, 8, 128, 528};
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

/* A layer with entries of kv_owner and the selection of select_owner. */
static kvi_plan_row entry_row(const geometry *g, uint32_t ratio, int32_t layer, int32_t kv_owner,
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

static void candidates(kvi_plan_row *r, const geometry *g, uint32_t role, int32_t owner)
{
    r->candidates = role;
    r->candidate_owner = owner;
    r->candidate_blocks = g->blocks;
    r->candidate_block_entries = g->block_entries;
}

/* The released model: 40 layers. */
static void release_plan(plan_box *box)
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
static void tiny_plan(plan_box *box)
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

static void set_ratio(plan_box *box, uint32_t first, uint32_t last, uint32_t ratio)
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

static plan_box *new_box(void)
{
    plan_box *box = malloc(sizeof *box);

    assert_non_null(box);
    return box;
}

/* ------------------------------------------------------------------ row sizes */

static void test_format_bytes(void **state)
{
    (void)state;
    assert_int_equal(kvi_format_value_bytes(KVCSA_FORMAT_FP4_E4M3_G16, 512), 256);
    assert_int_equal(kvi_format_value_bytes(KVCSA_FORMAT_FP4_E8M0_G32, 128), 64);
    assert_int_equal(kvi_format_value_bytes(KVCSA_FORMAT_FP8_E8M0_G32, 512), 512);
    assert_int_equal(kvi_format_value_bytes(KVCSA_FORMAT_FP4_E4M3_G16, 96), 48);
    for (uint32_t w = 0; w < 200; w++) {
        assert_int_equal(kvi_format_value_bytes(KVCSA_FORMAT_FP4_E4M3_G16, w), w % 16 ? 0 : w / 2);
        assert_int_equal(kvi_format_value_bytes(KVCSA_FORMAT_FP4_E8M0_G32, w), w % 32 ? 0 : w / 2);
        assert_int_equal(kvi_format_value_bytes(KVCSA_FORMAT_FP8_E8M0_G32, w), w % 32 ? 0 : w);
        assert_int_equal(kvi_format_value_bytes(KVCSA_FORMAT_NONE, w), 0);
    }
}

static void test_max_ratio_is_that_of_an_owner(void **state)
{
    plan_box *box = new_box();

    (void)state;
    release_plan(box);
    assert_int_equal(kvi_plan_max_ratio(&box->plan), 2);
    box->rows[21].ratio = 64; /* a reader, not an owner */
    assert_int_equal(kvi_plan_max_ratio(&box->plan), 2);
    box->rows[20].ratio = 64;
    assert_int_equal(kvi_plan_max_ratio(&box->plan), 64);
    box->plan.n_layers = 2; /* no owner */
    assert_int_equal(kvi_plan_max_ratio(&box->plan), 1);
    free(box);
}

/* ------------------------------------------------------------------ validation */

static void test_validate_accepts_known_plans(void **state)
{
    plan_box   *box = new_box();
    kvcsa_error err;

    (void)state;
    release_plan(box);
    assert_int_equal(kvi_plan_validate(&box->plan, &err), KVCSA_OK);
    assert_int_equal(kvi_plan_validate(&box->plan, NULL), KVCSA_OK);
    for (uint32_t l = 0; l < 40; l++)
        assert_int_equal(kvi_plan_owns(&box->plan, l), l == 2 || l == 8 || l == 14 || l == 20);
    box->rows[20].candidate_owner = KVI_NO_LAYER; /* the source itself is not limited */
    assert_int_equal(kvi_plan_validate(&box->plan, &err), KVCSA_OK);
    for (uint32_t b = 1; b <= 256; b++) { /* 8 entries of ratio 2 */
        box->plan.block_tokens = b;
        assert_int_equal(kvi_plan_validate(&box->plan, &err), b % 16 ? KVCSA_ERR_ARG : KVCSA_OK);
    }
    box->plan.n_layers = 2; /* windows only */
    box->plan.block_tokens = 8;
    assert_int_equal(kvi_plan_validate(&box->plan, &err), KVCSA_OK);
    tiny_plan(box);
    assert_int_equal(kvi_plan_validate(&box->plan, &err), KVCSA_OK);
    set_ratio(box, 4, 4, 4);
    box->plan.block_tokens = 32;
    assert_int_equal(kvi_plan_validate(&box->plan, &err), KVCSA_OK);
    free(box);
}

#define ROW(l, field, v) box->rows[l].field = (v)

static void set_entry(plan_box *box, uint32_t first, uint32_t last, uint32_t format, uint32_t bytes)
{
    for (uint32_t l = first; l <= last; l++) {
        ROW(l, entry_format, format);
        ROW(l, entry_bytes, bytes);
    }
}

/* Each case breaks one rule of the release's plan; `broken` below has the message of each. One
 * function of many lines, since it is a table: one line, one fault. */
static void break_plan(plan_box *box, unsigned what)
{
    kvi_plan_row *r = box->rows;

    switch (what) {
    /* the plan itself */
    case 0: box->plan.n_layers = 0; break;
    case 1: box->plan.rows = NULL; break;
    case 2: box->plan.n_layers = 1025; break;
    case 3: box->plan.max_tokens = 0; break;
    case 4: box->plan.max_tokens = (uint64_t)1 << 32; break;
    /* blocks */
    case 5: box->plan.block_tokens = 0; break;
    case 6: set_ratio(box, 14, 19, 128); box->plan.block_tokens = 48; break;
    case 7: box->plan.block_tokens = 24; break;
    case 8: set_ratio(box, 14, 19, 3); box->plan.block_tokens = 24; break;
    case 9: box->plan.block_tokens = 0xfffffff0u; break;
    case 10: box->plan.block_tokens = (1u << 20) + 16; break;
    /* window-only layers */
    case 11: ROW(1, kv_owner, 0); break;
    case 12: ROW(1, select_owner, 1); break;
    case 13: ROW(1, candidate_owner, 1); break;
    case 14: ROW(0, select, KVCSA_SELECT_OWN); break;
    case 15: ROW(0, candidates, KVCSA_CANDIDATES_SOURCE); break;
    case 16: ROW(0, pending_bytes, 4096); break;
    case 17: ROW(0, window_format, KVCSA_FORMAT_NONE); break;
    case 18: ROW(0, window_bytes, 0); break;
    case 19: ROW(0, window_bytes, 529); break;
    case 20: ROW(0, window_bytes, 33u * 2049); break;
    /* windows anywhere */
    case 21: ROW(0, window_tokens, 0); break;
    case 22: ROW(39, window_tokens, 0); break;
    case 23: ROW(39, window_tokens, UINT32_MAX); break;
    case 24: ROW(39, window_format, 17); break;
    case 25: ROW(39, window_bytes, 561); break;
    case 26: ROW(5, sink, 2); break;
    /* owners of entries */
    case 27: ROW(2, kv_owner, -1); break;
    case 28: ROW(7, kv_owner, -2); break;
    case 29: ROW(7, kv_owner, 8); break;
    case 30: ROW(7, kv_owner, INT32_MAX); break;
    case 31: ROW(7, kv_owner, 3); break;
    case 32: ROW(7, kv_owner, 0); break;
    case 33: ROW(21, kv_owner, 14); break;
    case 34: ROW(21, ratio, 2); break;
    case 35: ROW(21, ratio, 65537); break;
    case 36: ROW(21, entry_width, 256); break;
    case 37: ROW(21, entry_rotated, 32); break;
    case 38: ROW(21, entry_format, KVCSA_FORMAT_FP8_E8M0_G32); break;
    case 39: ROW(21, entry_bytes, 287); break;
    /* entries */
    case 40: ROW(2, entry_width, 520); break;
    case 41: ROW(2, entry_width, 0); break;
    case 42: ROW(2, entry_width, 0xfffffff0u); break;
    case 43: ROW(2, entry_bytes, 256); break;
    case 44: ROW(2, entry_format, KVCSA_FORMAT_NONE); break;
    case 45: ROW(2, entry_rotated, 514); break;
    case 46: ROW(2, entry_rotated, 63); break;
    case 47: ROW(2, pool_kind, KVCSA_POOLING_NONE); break;
    case 48: ROW(20, pool_kind, KVCSA_POOLING_GATED); break;
    case 49: ROW(2, pending_bytes, 2048); break;
    case 50: ROW(20, pending_bytes, 4096); break;
    case 51: ROW(3, pending_bytes, 4096); break;
    /* index */
    case 52: ROW(2, index_heads, 0); break;
    case 53: ROW(2, index_heads, 65537); break;
    case 54: ROW(2, index_width, 100); break;
    case 55: ROW(2, index_width, UINT32_MAX - 31); break;
    case 56: ROW(2, index_bytes, 72); break;
    case 57: ROW(2, index_format, 17); break;
    case 58: ROW(24, index_width, 64); ROW(24, index_bytes, 34); break;
    case 59: ROW(24, index_format, KVCSA_FORMAT_FP4_E4M3_G16); ROW(24, index_bytes, 72); break;
    /* selection */
    case 60: ROW(2, select, KVCSA_SELECT_NONE); break;
    case 61: ROW(2, select, 5); break;
    case 62: ROW(2, select, KVCSA_SELECT_REINDEX); break;
    case 63: ROW(2, select, KVCSA_SELECT_INHERITED); break;
    case 64: ROW(3, select, KVCSA_SELECT_OWN); break;
    case 65: ROW(2, select_owner, -1); break;
    case 66: ROW(24, select_owner, 20); break;
    case 67: ROW(9, select_owner, 7); break;
    case 68: ROW(9, select_owner, 9); break;
    case 69: ROW(9, select_owner, 12); break;
    case 70: ROW(22, select_owner, 21); break;
    case 71: ROW(9, select_owner, INT32_MIN); break;
    case 72:
        /* selected in between, but among the entries of another owner */
        r[9] = entry_row(&release_geometry, 2, 9, 2, 9);
        ROW(10, select_owner, 9);
        break;
    case 73: ROW(2, select_entries, 0); break;
    case 74: ROW(2, select_entries, UINT32_MAX); break;
    case 75: ROW(3, select_entries, 256); break;
    /* candidates */
    case 76: ROW(2, candidates, 3); break;
    case 77: ROW(28, candidates, KVCSA_CANDIDATES_NONE); break;
    case 78: ROW(28, candidate_owner, -1); break;
    case 79: ROW(24, candidate_owner, 28); break;
    case 80: ROW(28, candidate_owner, 28); break;
    case 81: ROW(28, candidate_owner, 24); break;
    case 82: ROW(28, candidate_owner, 14); break;
    case 83:
        candidates(&r[14], &release_geometry, KVCSA_CANDIDATES_SOURCE, 14);
        ROW(28, candidate_owner, 14);
        break;
    case 84: ROW(20, candidate_owner, 14); break;
    case 85: candidates(&r[21], &release_geometry, KVCSA_CANDIDATES_CONSUMER, 20); break;
    case 86: candidates(&r[21], &release_geometry, KVCSA_CANDIDATES_SOURCE, 21); break;
    case 87: ROW(20, candidate_blocks, 0); break;
    case 88: ROW(20, candidate_block_entries, 0); break;
    case 89: ROW(20, candidate_blocks, UINT32_MAX); break;
    case 90: ROW(28, candidate_blocks, 1024); break;
    case 91: ROW(28, candidate_block_entries, 16); break;
    case 92: ROW(20, candidates, KVCSA_CANDIDATES_NONE); ROW(20, candidate_owner, -1); break;
    /* what is computed asks more than what is only counted */
    case 93: ROW(5, cost_only, 2); break;
    case 94: ROW(0, window_tokens, 0); ROW(0, window_format, 0); ROW(0, window_bytes, 0); break;
    case 95: ROW(0, window_format, KVCSA_FORMAT_BF16); ROW(0, window_bytes, 1024); break;
    case 96: ROW(0, state_heads, 1); ROW(0, state_bytes, 4); break;
    case 97: set_entry(box, 2, 7, KVCSA_FORMAT_CSA_FP8_584, 584); break;
    case 98: set_entry(box, 2, 7, KVCSA_FORMAT_FP8_E4M3, 512); break;
    case 99: ROW(2, index_format, KVCSA_FORMAT_BF16); ROW(2, index_bytes, 256); break;
    case 100: ROW(2, pool_kind, KVCSA_POOLING_WIDE); break;
    case 101:
        ROW(2, select, KVCSA_SELECT_ALL); ROW(2, select_owner, -1); ROW(2, select_entries, 0);
        ROW(2, index_owner, -1); ROW(2, index_bytes, 0);
        break;
    case 102: ROW(3, index_owner, -1); break;
    case 103: ROW(3, kv_heads, 2); break;
    default: fail();
    }
}

static const struct broken {
    kvcsa_status status;
    const char  *text; /* the whole message */
} broken[] = {
    {KVCSA_ERR_FORMAT, "n_layers is 0, must be 1..1024"},
    {KVCSA_ERR_FORMAT, "n_layers is 0, must be 1..1024"},
    {KVCSA_ERR_FORMAT, "n_layers is 1025, must be 1..1024"},
    {KVCSA_ERR_FORMAT, "max_tokens is 0, must be 1..4294967295"},
    {KVCSA_ERR_FORMAT, "max_tokens is 4294967296, must be 1..4294967295"},

    {KVCSA_ERR_ARG, "block_tokens is 0, must be a multiple of 16 for ratio 2"},
    {KVCSA_ERR_ARG, "block_tokens is 48, must be a multiple of 1024 for ratio 128"},
    {KVCSA_ERR_ARG, "block_tokens is 24, must be a multiple of 16 for ratio 2"},
    {KVCSA_ERR_ARG, "block_tokens is 24, must be a multiple of 16 for ratio 2"},
    {KVCSA_ERR_ARG, "block_tokens is 4294967280, must be at most 1048576"},
    {KVCSA_ERR_ARG, "block_tokens is 1048592, must be at most 1048576"},

    {KVCSA_ERR_FORMAT, "layer 1: kv_owner is 0, must be -1 where ratio is 0"},
    {KVCSA_ERR_FORMAT, "layer 1: select_owner is 1, must be -1 where ratio is 0"},
    {KVCSA_ERR_FORMAT, "layer 1: candidate_owner is 1, must be -1 where ratio is 0"},
    {KVCSA_ERR_FORMAT, "layer 0: select is 1, must be 0 where ratio is 0"},
    {KVCSA_ERR_FORMAT, "layer 0: candidates is 1, must be 0 where ratio is 0"},
    {KVCSA_ERR_FORMAT, "layer 0: pending_bytes is 4096, must be 0 where ratio is 0"},
    {KVCSA_ERR_FORMAT, "layer 0: window_format is 0, must be a known format (1..16)"},
    {KVCSA_ERR_FORMAT, "layer 0: window_bytes is 0, must be a multiple of 33 in 33..67584"},
    {KVCSA_ERR_FORMAT, "layer 0: window_bytes is 529, must be a multiple of 33 in 33..67584"},
    {KVCSA_ERR_FORMAT, "layer 0: window_bytes is 67617, must be a multiple of 33 in 33..67584"},

    {KVCSA_ERR_FORMAT, "layer 0: window_format is 3, must be 0 without a window"},
    {KVCSA_ERR_FORMAT, "layer 39: window_format is 3, must be 0 without a window"},
    {KVCSA_ERR_FORMAT, "layer 39: window_tokens is 4294967295, must be 0..1048576"},
    {KVCSA_ERR_FORMAT, "layer 39: window_format is 17, must be a known format (1..16)"},
    {KVCSA_ERR_FORMAT, "layer 39: window_bytes is 561, must be 528 for this format"},
    {KVCSA_ERR_FORMAT, "layer 5: sink is 2, must be 0..1"},

    {KVCSA_ERR_FORMAT, "layer 2: kv_owner is -1, must be 0..2"},
    {KVCSA_ERR_FORMAT, "layer 7: kv_owner is -2, must be 0..7"},
    {KVCSA_ERR_FORMAT, "layer 7: kv_owner is 8, must be 0..7"},
    {KVCSA_ERR_FORMAT, "layer 7: kv_owner is 2147483647, must be 0..7"},
    {KVCSA_ERR_FORMAT, "layer 7: kv_owner is 3, must be a layer that owns entries"},
    {KVCSA_ERR_FORMAT, "layer 7: kv_owner is 0, must be a layer that owns entries"},
    {KVCSA_ERR_FORMAT, "layer 21: ratio is 1, must be 2 as in kv_owner"},
    {KVCSA_ERR_FORMAT, "layer 21: ratio is 2, must be 1 as in kv_owner"},
    {KVCSA_ERR_FORMAT, "layer 21: ratio is 65537, must be 0..65536"},
    {KVCSA_ERR_FORMAT, "layer 21: entry_width is 256, must be 512 as in kv_owner"},
    {KVCSA_ERR_FORMAT, "layer 21: entry_rotated is 32, must be 64 as in kv_owner"},
    {KVCSA_ERR_FORMAT, "layer 21: entry_format is 3, must be 1 as in kv_owner"},
    {KVCSA_ERR_FORMAT, "layer 21: entry_bytes is 287, must be 288 as in kv_owner"},

    {KVCSA_ERR_FORMAT, "layer 2: entry_width is 520, must be a multiple of 16 in 1..65536"},
    {KVCSA_ERR_FORMAT, "layer 2: entry_width is 0, must be a multiple of 16 in 1..65536"},
    {KVCSA_ERR_FORMAT, "layer 2: entry_width is 4294967280, must be a multiple of 16 in 1..65536"},
    {KVCSA_ERR_FORMAT, "layer 2: entry_bytes is 256, must be 288 for its formats"},
    {KVCSA_ERR_FORMAT, "layer 2: entry_format is 0, must be a known format (1..16)"},
    {KVCSA_ERR_FORMAT, "layer 2: entry_rotated is 514, must be 0..512"},
    {KVCSA_ERR_FORMAT, "layer 2: entry_rotated is 63, must be even"},
    {KVCSA_ERR_FORMAT, "layer 2: pool_kind is 0, must be 1..3 for ratio 2"},
    {KVCSA_ERR_FORMAT, "layer 20: pool_kind is 1, must be 0..0 for ratio 1"},
    {KVCSA_ERR_FORMAT, "layer 2: pending_bytes is 2048, must be 4096"},
    {KVCSA_ERR_FORMAT, "layer 20: pending_bytes is 4096, must be 0"},
    {KVCSA_ERR_FORMAT, "layer 3: pending_bytes is 4096, must be 0"},

    {KVCSA_ERR_FORMAT, "layer 2: index_heads is 0, must be 1..65536"},
    {KVCSA_ERR_FORMAT, "layer 2: index_heads is 65537, must be 1..65536"},
    {KVCSA_ERR_FORMAT, "layer 2: index_width is 100, must be a multiple of 32 in 1..65536"},
    {KVCSA_ERR_FORMAT, "layer 2: index_width is 4294967264, must be a multiple of 32 in 1..65536"},
    {KVCSA_ERR_FORMAT, "layer 2: index_bytes is 72, must be 68 for its format"},
    {KVCSA_ERR_FORMAT, "layer 2: index_format is 17, must be a known format (1..16)"},
    {KVCSA_ERR_FORMAT, "layer 24: index_width is 64, must be 128 as in index_owner"},
    {KVCSA_ERR_FORMAT, "layer 24: index_format is 1, must be 2 as in index_owner"},

    {KVCSA_ERR_FORMAT, "layer 2: select is 0, must be 1..4"},
    {KVCSA_ERR_FORMAT, "layer 2: select is 5, must be 1..4"},
    {KVCSA_ERR_FORMAT, "layer 2: select is 2, must be 1 in a layer that owns entries"},
    {KVCSA_ERR_FORMAT, "layer 2: select is 3, must be 1 in a layer that owns entries"},
    {KVCSA_ERR_FORMAT, "layer 3: select is 1, must be 2 or 3 in a layer that owns no entries"},
    {KVCSA_ERR_FORMAT, "layer 2: select_owner is -1, must be 2 in a layer that selects"},
    {KVCSA_ERR_FORMAT, "layer 24: select_owner is 20, must be 24 in a layer that selects"},
    {KVCSA_ERR_FORMAT, "layer 9: select_owner is 7, must be 8..8"},
    {KVCSA_ERR_FORMAT, "layer 9: select_owner is 9, must be 8..8"},
    {KVCSA_ERR_FORMAT, "layer 9: select_owner is 12, must be 8..8"},
    {KVCSA_ERR_FORMAT, "layer 22: select_owner is 21, must be a layer that selects"},
    {KVCSA_ERR_FORMAT, "layer 9: select_owner is -2147483648, must be 8..8"},
    {KVCSA_ERR_FORMAT, "layer 10: select_owner is 9, must read the index keys of layer 8"},
    {KVCSA_ERR_FORMAT, "layer 2: select_entries is 0, must be 1..1048576"},
    {KVCSA_ERR_FORMAT, "layer 2: select_entries is 4294967295, must be 1..1048576"},
    {KVCSA_ERR_FORMAT, "layer 3: select_entries is 256, must be 512 as in select_owner"},

    {KVCSA_ERR_FORMAT, "layer 2: candidates is 3, must be 0..2"},
    {KVCSA_ERR_FORMAT, "layer 28: candidate_owner is 20, must be -1 without candidates"},
    {KVCSA_ERR_FORMAT, "layer 28: candidate_owner is -1, must be 0..27"},
    {KVCSA_ERR_FORMAT, "layer 24: candidate_owner is 28, must be 0..23"},
    {KVCSA_ERR_FORMAT, "layer 28: candidate_owner is 28, must be 0..27"},
    {KVCSA_ERR_FORMAT, "layer 28: candidate_owner is 24, must be a candidate source that reads the "
                       "entries of layer 20"},
    {KVCSA_ERR_FORMAT, "layer 28: candidate_owner is 14, must be a candidate source that reads the "
                       "entries of layer 20"},
    {KVCSA_ERR_FORMAT, "layer 28: candidate_owner is 14, must be a candidate source that reads the "
                       "entries of layer 20"},
    {KVCSA_ERR_FORMAT, "layer 20: candidate_owner is 14, must be 20 or -1 in a source"},
    {KVCSA_ERR_FORMAT, "layer 21: candidates is 2, must be 0 in a layer that does not select"},
    {KVCSA_ERR_FORMAT, "layer 21: candidates is 1, must be 0 in a layer that does not select"},
    {KVCSA_ERR_FORMAT, "layer 20: candidate_blocks is 0, must be 1..1048576"},
    {KVCSA_ERR_FORMAT, "layer 20: candidate_block_entries is 0, must be 1..1048576"},
    {KVCSA_ERR_FORMAT, "layer 20: candidate_blocks is 4294967295, must be 1..1048576"},
    {KVCSA_ERR_FORMAT, "layer 28: candidate_blocks is 1024, must be 2048 as in candidate_owner"},
    {KVCSA_ERR_FORMAT, "layer 28: candidate_block_entries is 16, must be 8 as in candidate_owner"},
    {KVCSA_ERR_FORMAT, "layer 24: candidate_owner is 20, must be a candidate source that reads the "
                       "entries of layer 20"},

    {KVCSA_ERR_FORMAT, "layer 5: cost_only is 2, must be 0..1"},
    {KVCSA_ERR_FORMAT, "layer 0: window_tokens is 0, must be 1..1048576"},
    {KVCSA_ERR_FORMAT, "layer 0: window_format is 6, must be 3 in a layer that is computed"},
    {KVCSA_ERR_FORMAT, "layer 0: state_heads is 1, must be 0 in a layer that is computed"},
    {KVCSA_ERR_FORMAT, "layer 2: entry_format is 16, must be one that operators store in a layer "
                       "that is computed"},
    {KVCSA_ERR_FORMAT, "layer 2: entry_format is 11, must be one that operators store in a layer "
                       "that is computed"},
    {KVCSA_ERR_FORMAT, "layer 2: index_format is 6, must be 2 in a layer that is computed"},
    {KVCSA_ERR_FORMAT, "layer 2: pool_kind is 3, must be 0..1"},
    {KVCSA_ERR_FORMAT, "layer 2: select is 4, must be 1..3"},
    {KVCSA_ERR_FORMAT, "layer 3: index_owner is -1, must be 2 as in kv_owner"},
    {KVCSA_ERR_FORMAT, "layer 3: kv_heads is 2, must be 1 as in kv_owner"},
};

static void test_validate_names_every_broken_rule(void **state)
{
    plan_box *box = new_box();

    (void)state;
    assert_int_equal(sizeof broken / sizeof *broken, N_FAULTS);
    for (unsigned i = 0; i < sizeof broken / sizeof *broken; i++) {
        kvcsa_error err;

        memset(&err, 0x55, sizeof err);
        release_plan(box);
        break_plan(box, i);
        assert_int_equal(kvi_plan_validate(&box->plan, &err), broken[i].status);
        assert_int_equal(err.status, broken[i].status);
        assert_string_equal(err.text, broken[i].text);
        assert_int_equal(kvi_plan_validate(&box->plan, NULL), broken[i].status);
    }
    free(box);
}

/* ------------------------------------------------------------------ plans of other families */

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

/* A latent of 512 + 64 in 656 bytes, selected by the keys of index_owner. */
static kvi_plan_row latent_row(int32_t layer, int32_t kv_owner, int32_t index_owner)
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

/* One layer of each kind; no model is like this. */
static void mixed_plan(plan_box *box)
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

static void test_validate_accepts_every_kind_of_layer(void **state)
{
    plan_box   *box = new_box();
    kvcsa_error err = {0};

    (void)state;
    mixed_plan(box);
    if (kvi_plan_validate(&box->plan, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    assert_int_equal(kvi_plan_max_ratio(&box->plan), 128);
    assert_int_equal(kvi_plan_span_tokens(&box->plan), 32); /* 8 entries of ratio 4 */
    box->plan.n_layers = 7;
    assert_int_equal(kvi_plan_span_tokens(&box->plan), 8);
    for (uint32_t b = 1; b <= 64; b++) {
        box->plan.block_tokens = b;
        assert_int_equal(kvi_plan_validate(&box->plan, NULL), b % 8 ? KVCSA_ERR_ARG : KVCSA_OK);
    }
    box->plan.n_layers = 3; /* no index keys: any number of whole groups all the same */
    for (uint32_t b = 1; b <= 64; b++) {
        box->plan.block_tokens = b;
        assert_int_equal(kvi_plan_validate(&box->plan, NULL), b % 8 ? KVCSA_ERR_ARG : KVCSA_OK);
    }
    ROW(2, window_tokens, 0), ROW(2, window_format, 0), ROW(2, window_bytes, 0);
    assert_int_equal(kvi_plan_validate(&box->plan, &err), KVCSA_OK); /* it keeps nothing */
    free(box);
}

/* Each case breaks one rule of the mixed plan, as break_plan does. */
static void break_mixed(plan_box *box, unsigned what)
{
    switch (what) {
    case 0: ROW(0, kv_heads, 0); break;
    case 1: ROW(0, kv_heads, 65537); break;
    case 2: ROW(0, kv_heads, 512); break;
    case 3: ROW(0, kv_heads, 4); break;
    case 4: ROW(0, value_kind, 3); break;
    case 5: ROW(0, value_kind, KVCSA_VALUE_ALIAS); break;
    case 6: ROW(0, value_width, 0); break;
    case 7: ROW(0, value_width, 64); break;
    case 8: ROW(0, value_format, KVCSA_FORMAT_NONE); break;
    case 9: ROW(0, value_format, KVCSA_FORMAT_FP8_E4M3); break;
    case 10: ROW(0, value_format, KVCSA_FORMAT_MLA_FP8_656); break;
    case 11: ROW(0, select, KVCSA_SELECT_OWN); ROW(0, select_entries, 8); break;
    case 12: ROW(0, select_entries, 8); break;
    case 13: ROW(0, select_owner, 0); break;
    case 14: ROW(0, index_owner, 0); break;
    case 15: ROW(0, index_owner, 1); break;
    case 16: ROW(0, index_bytes, 68); break;
    case 17: ROW(0, index_owner, -2); break;
    case 18: ROW(0, pool_kind, KVCSA_POOLING_WIDE); break;
    case 19: ROW(1, kv_heads, 1); break;
    case 20: ROW(1, value_width, 64); break;
    case 21: ROW(1, value_kind, KVCSA_VALUE_PREFIX); break;
    case 22: ROW(1, value_format, KVCSA_FORMAT_F16); break;
    case 23: ROW(1, index_owner, 0); break;
    case 24: ROW(1, select, KVCSA_SELECT_REINDEX); ROW(1, select_entries, 1);
        ROW(1, select_owner, 1); break;
    case 25: ROW(2, index_owner, 0); break;
    case 26: ROW(2, window_bytes, 4097); break;
    case 27: ROW(2, entry_bytes, 4096); break;
    case 28: ROW(2, index_bytes, 68); break;
    case 29: ROW(2, kv_heads, 65537); break;
    case 30: ROW(3, state_heads, 0); break;
    case 31: ROW(3, state_heads, 65537); break;
    case 32: ROW(3, state_bytes, 0); break;
    case 33: ROW(3, state_bytes, ((uint64_t)1 << 40) + 1); break;
    case 34: ROW(3, window_bytes, 2); break;
    case 35: ROW(4, value_width, 577); break;
    case 36: ROW(4, value_width, 0); break;
    case 37: ROW(4, value_format, KVCSA_FORMAT_BF16); break;
    case 38: ROW(4, entry_width, 512); ROW(4, value_width, 448); break;
    case 39: ROW(4, entry_bytes, 576); break;
    case 40: ROW(4, index_format, KVCSA_FORMAT_FP4_E8M0_G32); break;
    case 41: ROW(4, index_owner, -1); break;
    case 42: ROW(5, index_bytes, 132); break;
    case 43: ROW(5, index_owner, 5); break;
    case 44: ROW(5, index_owner, 0); break;
    case 45: ROW(5, select, KVCSA_SELECT_OWN); break;
    case 46: ROW(5, select_owner, 3); break;
    case 47: ROW(5, select_owner, 5); break;
    case 48: ROW(5, select_entries, 1024); break;
    case 49: ROW(6, index_owner, 5); break;
    case 50: ROW(6, select, KVCSA_SELECT_REINDEX); ROW(6, select_owner, 6); break;
    case 51: ROW(7, pending_bytes, 7 * 2 * 8 * 512); break;
    case 52: ROW(7, window_bytes, 528); break;
    case 53: ROW(8, pending_bytes, 128 * 8 * 512); break;
    case 54: ROW(8, pool_kind, KVCSA_POOLING_OVERLAP); break;
    default: fail();
    }
}

static const char *const broken_mixed[] = {
    "layer 0: kv_heads is 0, must be 1..65536",
    "layer 0: kv_heads is 65537, must be 1..65536",
    "layer 0: kv_heads is 512, which makes rows of 131072 channels, must be at most 65536",
    "layer 0: entry_bytes is 4096, must be 2048 for its formats",
    "layer 0: value_kind is 3, must be 0..2",
    "layer 0: value_format is 6, must be 0 where values are not stored",
    "layer 0: value_width is 0, must be a multiple of 1 in 1..65536",
    "layer 0: entry_bytes is 4096, must be 3072 for its formats",
    "layer 0: value_format is 0, must be a known format (1..16)",
    "layer 0: entry_bytes is 4096, must be 3072 for its formats",
    "layer 0: value_width is 128, must be 576 for mla-fp8-656",
    "layer 0: select is 1, must be 3 in an owner without index keys of its own",
    "layer 0: select_entries is 8, must be 0 with select 4",
    "layer 0: select_owner is 0, must be -1 with select 4",
    "layer 0: index_owner is 0, must be -1 in an owner with select 4",
    "layer 0: index_owner is 1, must be -1..0",
    "layer 0: index_bytes is 68, must be 0 without index keys",
    "layer 0: index_owner is -2, must be -1..0",
    "layer 0: pool_kind is 3, must be 0..0 for ratio 1",
    "layer 1: kv_heads is 1, must be 8 as in kv_owner",
    "layer 1: value_width is 64, must be 128 as in kv_owner",
    "layer 1: value_kind is 2, must be 1 as in kv_owner",
    "layer 1: value_format is 5, must be 6 as in kv_owner",
    "layer 1: index_owner is 0, must be -1 as in kv_owner",
    "layer 1: index_owner is -1, must be a layer in a layer that selects",
    "layer 2: index_owner is 0, must be -1 where ratio is 0",
    "layer 2: window_bytes is 4097, must be a multiple of 2 in 2..131072",
    "layer 2: entry_bytes is 4096, must be 0 where ratio is 0",
    "layer 2: index_bytes is 68, must be 0 where ratio is 0",
    "layer 2: kv_heads is 65537, must be 0..65536",
    "layer 3: state_heads is 0, must be 1..65536",
    "layer 3: state_heads is 65537, must be 1..65536",
    "layer 3: state_heads is 4, must be 0..0",
    "layer 3: state_bytes is 1099511627777, must be at most 1099511627776",
    "layer 3: window_bytes is 2, must be 0 without a window",
    "layer 4: value_width is 577, must be 1..576",
    "layer 4: value_width is 0, must be 1..576",
    "layer 4: value_format is 6, must be 0 where values are not stored",
    "layer 4: entry_width is 512, must be 576 for mla-fp8-656",
    "layer 4: entry_bytes is 576, must be 656 for its formats",
    "layer 4: index_bytes is 132, must be 68 for its format",
    "layer 4: index_bytes is 132, must be 0 without index keys",
    "layer 5: index_bytes is 132, must be 0 where the keys are another layer's",
    "layer 5: select is 3, must be 1 in a layer that owns entries",
    "layer 5: index_owner is 0, must be a layer that owns index keys",
    "layer 5: select is 1, must be 3 in an owner without index keys of its own",
    "layer 5: select_owner is 3, must be 4..4",
    "layer 5: select_owner is 5, must be 4..4",
    "layer 5: select_entries is 1024, must be 2048 as in select_owner",
    "layer 6: index_owner is 5, must be 4 as in kv_owner",
    "layer 6: index_heads is 0, must be 1..65536",
    "layer 7: pending_bytes is 57344, must be 71680",
    "layer 7: window_bytes is 528, must be 584 for this format",
    "layer 8: pending_bytes is 524288, must be 520192",
    "layer 8: pending_bytes is 520192, must be 2088960",
};

static void test_validate_names_broken_rules_of_every_kind(void **state)
{
    plan_box *box = new_box();

    (void)state;
    assert_int_equal(sizeof broken_mixed / sizeof *broken_mixed, N_MIXED_FAULTS);
    for (unsigned i = 0; i < N_MIXED_FAULTS; i++) {
        kvcsa_error err;

        memset(&err, 0x55, sizeof err);
        mixed_plan(box);
        break_mixed(box, i);
        assert_int_equal(kvi_plan_validate(&box->plan, &err), KVCSA_ERR_FORMAT);
        assert_string_equal(err.text, broken_mixed[i]);
    }
    free(box);
}

/* Against sums that know nothing of rows: keys that are shared are counted once and read by nobody
 * else, a reader's entries are its owner's, states are there at any length. */
static void test_cost_of_every_kind_of_layer(void **state)
{
    static const uint64_t lengths[] = {0, 1, 4, 127, 128, 129, 1023, 1024, 2047, 2048,
                                       2049, 100000, UINT32_MAX};
    plan_box             *box = new_box();
    kvcsa_cost            c;

    (void)state;
    mixed_plan(box);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const uint64_t n = lengths[i];
        const uint64_t top = n < 2048 ? n : 2048;
        const uint64_t quarter = n / 4 < 512 ? n / 4 : 512;
        const uint64_t windows = 4096 * (n < 1024 ? n : 1024) + 2 * 584 * (n < 128 ? n : 128);
        const uint64_t keys = 132 * n + 68 * (n / 4);
        const uint64_t block = 128 * (4096 + 656 + 132 + 656) + 32 * (584 + 68) + 584;

        kvi_plan_cost(&box->plan, n, &c);
        assert_int_equal(c.n_kv_layers, 5);
        assert_true(c.block_bytes == block && c.index_part_bytes == 128 * 132 + 32 * 68);
        assert_true(c.rate == (double)block / 128);
        assert_true(c.sequence_factor == (3 * 128 + 32 + 1) / (128. * 5));
        assert_true(c.entry_bytes == (double)block / (3 * 128 + 32 + 1));
        assert_true(c.const_bytes == 4096 * 1024 + 2 * 584 * 128 + (1 << 20));
        assert_true(c.state_bytes == 1 << 20);
        assert_true(c.resident_bytes == windows + (1 << 20) + (n + 127) / 128 * block);
        assert_true(c.index_read_bytes == keys && c.window_read_bytes == windows);
        assert_true(c.read_bytes == keys + windows + (1 << 20) + 2 * 4096 * n + 3 * 656 * top +
                                        584 * quarter + 584 * (n / 128));
        assert_true(c.persist_bytes == (4096 + 656 + 132 + 656) * n + (584 + 68) * (n / 4) +
                                           584 * (n / 128) + (1 << 20));
        assert_true(c.written_bytes == c.rate + 4096 + 2 * 584);
        assert_true(c.pending_bytes == 71680 + 520192);
    }
    free(box);
}

static void test_public_rows_of_every_kind(void **state)
{
    plan_box      *box = new_box();
    kvcsa_plan_row r;

    (void)state;
    mixed_plan(box);
    kvi_plan_public_row(&box->plan, 0, &r);
    assert_true(r.kv_heads == 8 && r.value_width == 128 && r.value_kind == KVCSA_VALUE_OWN);
    assert_true(r.value_format == KVCSA_FORMAT_BF16 && r.entry_bytes == 4096 && r.cost_only == 1);
    assert_true(r.index_owner == -1 && r.select == KVCSA_SELECT_ALL);
    kvi_plan_public_row(&box->plan, 1, &r);
    assert_true(r.kv_owner == 0 && r.entry_bytes == 0 && r.kv_heads == 8);
    kvi_plan_public_row(&box->plan, 3, &r);
    assert_true(r.state_heads == 4 && r.state_bytes == 1 << 20 && r.kv_owner == -1);
    kvi_plan_public_row(&box->plan, 5, &r);
    assert_true(r.index_owner == 4 && r.index_bytes == 0 && r.entry_bytes == 656);
    assert_true(r.value_kind == KVCSA_VALUE_PREFIX && r.value_format == KVCSA_FORMAT_NONE);
    kvi_plan_public_row(&box->plan, 7, &r);
    assert_true(r.pool_kind == KVCSA_POOLING_OVERLAP && r.index_owner == 7 && r.index_bytes == 68);
    free(box);
}

/* Blocks above 2^31 bytes, from sizes that are legal one by one. */
static void test_validate_bounds_the_block(void **state)
{
    static const geometry wide = {65536, 64, 36864, 1, 65536, 34816, 8, 8, 8, 16, 67584};
    plan_box             *box = new_box();
    kvcsa_error           err;

    (void)state;
    memset(box, 0, sizeof *box);
    box->rows[0] = entry_row(&wide, 1, 0, 0, 0);
    box->plan = (kvi_plan){1, 16384, 1024, box->rows};
    assert_int_equal(kvi_plan_validate(&box->plan, &err), KVCSA_OK); /* 1.17e9 bytes */
    box->plan.block_tokens = 32768;
    assert_int_equal(kvi_plan_validate(&box->plan, &err), KVCSA_ERR_ARG);
    assert_string_equal(err.text, "block_tokens is 32768, which makes blocks of 2348810240 bytes, "
                                  "must be at most 2147483648");
    free(box);
}

/* The largest plan that passes does not overflow a figure. */
static void test_cost_of_the_largest_plan_does_not_overflow(void **state)
{
    static const geometry wide = {65536, 64, 36864, 1,   65536, 34816,
                                  1u << 20, 1u << 20, 1u << 20, 1u << 20, 67584};
    const uint64_t        n = UINT32_MAX;
    plan_box             *box = new_box();
    kvcsa_cost            cost;

    (void)state;
    memset(box, 0, sizeof *box);
    for (int32_t l = 0; l < 1024; l++)
        box->rows[l] = entry_row(&wide, 1, l, l, l);
    box->plan = (kvi_plan){1024, 24, n, box->rows};
    assert_int_equal(kvi_plan_validate(&box->plan, NULL), KVCSA_OK);
    kvi_plan_cost(&box->plan, n, &cost);
    assert_true(cost.const_bytes == 1024ull * 67584 << 20);
    assert_true(cost.block_bytes == 24u * 1024 * (36864 + 34816));
    assert_true(cost.resident_bytes == cost.const_bytes + (n + 23) / 24 * cost.block_bytes);
    assert_true(cost.persist_bytes == 1024 * n * (36864 + 34816));
    assert_true(cost.read_bytes == 1024 * (n * 34816 + ((36864ull + 67584) << 20)));
    free(box);
}

/* The same where rows are only counted: four bytes a channel, and states. */
static void test_cost_of_the_largest_counted_plan_does_not_overflow(void **state)
{
    const uint64_t n = UINT32_MAX;
    plan_box      *box = new_box();
    kvcsa_cost     c;

    (void)state;
    memset(box, 0, sizeof *box);
    for (int32_t l = 0; l < 512; l++) {
        kvi_plan_row *r = &box->rows[l];

        *r = latent_row(l, l, l);
        r->entry_width = r->value_width = r->index_width = 65536;
        r->entry_format = r->index_format = KVCSA_FORMAT_F32;
        r->entry_bytes = r->index_bytes = 1 << 18;
        r->window_format = KVCSA_FORMAT_F32;
        r->window_tokens = 1 << 20;
        r->window_bytes = 1 << 18;
        r->state_heads = 1;
        r->state_bytes = (uint64_t)1 << 40;
        r->select_entries = 1 << 20;
    }
    box->plan = (kvi_plan){512, 8, n, box->rows};
    assert_int_equal(kvi_plan_validate(&box->plan, NULL), KVCSA_OK);
    kvi_plan_cost(&box->plan, n, &c);
    assert_true(c.block_bytes == 1u << 31);
    assert_true(c.const_bytes == ((uint64_t)1 << 47) + ((uint64_t)1 << 49));
    assert_true(c.persist_bytes == (n << 28) + ((uint64_t)1 << 49));
    assert_true(c.resident_bytes == c.const_bytes + (((n + 7) / 8) << 31));
    assert_true(c.read_bytes == (n << 27) + ((uint64_t)1 << 47) + c.const_bytes);
    free(box);
}

/* ------------------------------------------------------------------ figures */

static void test_cost_of_the_release(void **state)
{
    plan_box  *box = new_box();
    kvcsa_cost cost;

    (void)state;
    release_plan(box);
    assert_int_equal(kvi_plan_validate(&box->plan, NULL), KVCSA_OK);
    memset(&cost, 0x77, sizeof cost);
    kvi_plan_cost(&box->plan, 1048576, &cost);
    assert_true(cost.struct_size == 0x7777777777777777u); /* the caller's */
    assert_true(cost.n_tokens == 1048576);
    assert_int_equal(cost.block_tokens, 128);
    assert_int_equal(cost.block_bytes, 113920);
    assert_int_equal(cost.index_part_bytes, 21760);
    assert_int_equal(cost.main_part_bytes, 92160);
    assert_true(cost.rate_bytes_per_token == 890.0f);
    assert_true(cost.const_bytes == 2703360);
    assert_true(kvi_plan_window_bytes(&box->plan) == 2703360);
    assert_true(cost.pending_bytes == 3 * 4096);
    assert_true(cost.persist_bytes == 933232640);
    assert_true(cost.resident_bytes == 2703360 + 933232640);
    /* entries per token 2.5, times main 288 and index 68 */
    assert_int_equal(cost.main_part_bytes * 2, 128 * 5 * 288);
    assert_int_equal(cost.index_part_bytes * 2, 128 * 5 * 68);
    free(box);
}

/* Every figure of the release at many lengths, from formulas that know nothing of rows. For even n
 * read is 68 (2.5 n + 4 min(n, 16384)) + 288 (18 min(n/2, 512) + 20 min(n, 512))
 * + 528 x 40 min(n, 128). */
static void check_release_at(const kvi_plan *plan, uint64_t n)
{
    const uint64_t half = n / 2;
    const uint64_t pool = n < 16384 ? n : 16384;
    const uint64_t keys = 3 * half + n + 4 * pool;
    const uint64_t entries = 18 * (half < 512 ? half : 512) + 20 * (n < 512 ? n : 512);
    const uint64_t window = 40 * (n < 128 ? n : 128);
    kvcsa_cost     cost;

    kvi_plan_cost(plan, n, &cost);
    assert_true(cost.read_bytes == 68 * keys + 288 * entries + 528 * window);
    assert_true(cost.index_read_bytes == 68 * keys);
    assert_true(cost.window_read_bytes == 528 * window);
    assert_true(cost.resident_bytes == 528 * window + (n + 127) / 128 * 113920);
    assert_true(cost.persist_bytes == 356 * (3 * half + n));
    assert_true(cost.const_bytes == 2703360 && cost.pending_bytes == 12288);
    assert_true(cost.rate_bytes_per_token == 890.0f && cost.rate == 890);
    assert_true(cost.n_kv_layers == 4 && cost.sequence_factor == 0.625 && cost.entry_bytes == 356);
    assert_true(cost.written_bytes == 890 + 40 * 528 && cost.state_bytes == 0);
}

static void test_cost_matches_closed_formulas(void **state)
{
    static const uint64_t limits[] = {127, 128, 129, 256, 511, 512, 513, 1023, 1024, 1025, 16383,
                                      16384, 16385, 32768, 131072, 1048575, 1048576};
    plan_box             *box = new_box();

    (void)state;
    release_plan(box);
    for (uint64_t n = 0; n < 1100; n++)
        check_release_at(&box->plan, n);
    for (uint64_t n = 1; n < 1048576; n = n * 5 / 4 + 1)
        check_release_at(&box->plan, n);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        check_release_at(&box->plan, limits[i]);
    free(box);
}

static void test_cost_of_the_tiny_plan(void **state)
{
    plan_box  *box = new_box();
    kvcsa_cost cost;

    (void)state;
    tiny_plan(box);
    kvi_plan_cost(&box->plan, 0, &cost);
    assert_int_equal(cost.block_bytes, 22528);
    assert_int_equal(cost.index_part_bytes, 256 * 34);
    assert_int_equal(cost.main_part_bytes, 256 * 54);
    assert_true(cost.rate_bytes_per_token == 176.0f);
    assert_true(cost.const_bytes == 10 * 16 * 99 && cost.resident_bytes == 0);
    assert_true(cost.pending_bytes == 2 * 768);
    assert_true(cost.read_bytes == 0 && cost.persist_bytes == 0);
    /* 101 tokens: 50, 50 and 101 entries; layer 7 scores a pool of 12; 8 selected everywhere */
    kvi_plan_cost(&box->plan, 101, &cost);
    assert_true(cost.read_bytes == 34 * (50 + 50 + 101 + 12) + 54 * 8 * 8 + 99 * 16 * 10);
    assert_true(cost.persist_bytes == 88 * 201);
    assert_true(cost.resident_bytes == 15840 + 22528);
    /* 7 tokens, all limits out of reach: 3, 3 and 7 entries */
    kvi_plan_cost(&box->plan, 7, &cost);
    assert_true(cost.read_bytes ==
                34 * (3 + 3 + 7 + 7) + 54 * (3 + 3 + 3 + 5 * 7) + 99 * 7 * 10);
    assert_true(cost.resident_bytes == 99 * 7 * 10 + 22528); /* a window that is not full yet */
    /* blocks of another size change the rounding, not the rate */
    box->plan.block_tokens = 16;
    kvi_plan_cost(&box->plan, 101, &cost);
    assert_true(cost.rate_bytes_per_token == 176.0f && cost.block_bytes == 2816);
    assert_true(cost.resident_bytes == 15840 + 7 * 2816);
    /* without candidates a re-indexing layer scores everything */
    box->rows[7].candidates = KVCSA_CANDIDATES_NONE;
    kvi_plan_cost(&box->plan, 101, &cost);
    assert_true(cost.read_bytes == 34 * (50 + 50 + 101 + 101) + 54 * 8 * 8 + 99 * 16 * 10);
    free(box);
}

static void test_public_rows_of_the_release(void **state)
{
    plan_box      *box = new_box();
    kvcsa_plan_row r;

    (void)state;
    release_plan(box);
    for (uint32_t l = 0; l < 40; l++) {
        const kvi_plan_row *mine = &box->rows[l];
        const int           owns = l == 2 || l == 8 || l == 14 || l == 20;

        memset(&r, 0x77, sizeof r);
        kvi_plan_public_row(&box->plan, l, &r);
        assert_true(r.struct_size == 0x7777777777777777u);
        assert_int_equal(r.layer, l);
        assert_int_equal(r.entry_bytes, owns ? 288 : 0);
        assert_int_equal(r.index_bytes, owns ? 68 : 0);
        assert_int_equal(r.pending_bytes, owns && l != 20 ? 4096 : 0);
        assert_int_equal(r.ratio, l < 2 ? 0 : l < 20 ? 2 : 1);
        assert_true(r.window_tokens == 128 && r.window_bytes == 528);
        assert_int_equal(r.window_format, KVCSA_FORMAT_FP8_E8M0_G32);
        assert_int_equal(r.kv_owner, mine->kv_owner);
        assert_int_equal(r.select_owner, mine->select_owner);
        assert_int_equal(r.select, mine->select);
        assert_int_equal(r.candidates, mine->candidates);
        assert_int_equal(r.entry_width, l < 2 ? 0 : 512);
        assert_int_equal(r.entry_format, l < 2 ? KVCSA_FORMAT_NONE : KVCSA_FORMAT_FP4_E4M3_G16);
        assert_int_equal(r.index_heads, l < 2 ? 0 : 32);
        assert_int_equal(r.index_width, l < 2 ? 0 : 128);
        assert_int_equal(r.index_format, l < 2 ? KVCSA_FORMAT_NONE : KVCSA_FORMAT_FP4_E8M0_G32);
        assert_int_equal(r.select_entries, l < 2 ? 0 : 512);
        assert_int_equal(r.candidate_blocks, l >= 20 && l % 4 == 0 ? 2048 : 0);
        assert_int_equal(r.candidate_block_entries, l >= 20 && l % 4 == 0 ? 8 : 0);
    }
    kvi_plan_public_row(&box->plan, 26, &r); /* reads 20's entries by 24's selection */
    assert_true(r.kv_owner == 20 && r.select_owner == 24 && r.select == KVCSA_SELECT_INHERITED);
    free(box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format_bytes),
        cmocka_unit_test(test_max_ratio_is_that_of_an_owner),
        cmocka_unit_test(test_validate_accepts_known_plans),
        cmocka_unit_test(test_validate_names_every_broken_rule),
        cmocka_unit_test(test_validate_accepts_every_kind_of_layer),
        cmocka_unit_test(test_validate_names_broken_rules_of_every_kind),
        cmocka_unit_test(test_cost_of_every_kind_of_layer),
        cmocka_unit_test(test_public_rows_of_every_kind),
        cmocka_unit_test(test_validate_bounds_the_block),
        cmocka_unit_test(test_cost_of_the_largest_plan_does_not_overflow),
        cmocka_unit_test(test_cost_of_the_largest_counted_plan_does_not_overflow),
        cmocka_unit_test(test_cost_of_the_release),
        cmocka_unit_test(test_cost_matches_closed_formulas),
        cmocka_unit_test(test_cost_of_the_tiny_plan),
        cmocka_unit_test(test_public_rows_of_the_release),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
