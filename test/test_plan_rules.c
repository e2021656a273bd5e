/* The rules of a cache plan, one broken plan a rule. */
#include "base/alloc.h"
#include "support/fault_alloc.h"
#include "support/plan_box.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_FAULTS 104u /* cases of break_plan */
#define N_MIXED_FAULTS 55u /* and of break_mixed */

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

/* ------------------------------------------------------------------ kinds of rows */

static void assert_kind(const plan_box *box, uint32_t layer, uint32_t kind)
{
    if (kvi_plan_row_kind(&box->plan, layer) != kind)
        fail_msg("layer %u is of kind %u, wanted %u", layer, kvi_plan_row_kind(&box->plan, layer),
                 kind);
}

static void test_row_kind_is_what_operators_can_do(void **state)
{
    static const uint32_t mixed[9] = {KVI_ROW_PAGED, KVI_ROW_PAGED}; /* others: NONE */
    plan_box             *box = new_box();

    (void)state;
    release_plan(box);
    for (uint32_t l = 0; l < 40; l++)
        assert_kind(box, l, KVI_ROW_SPARSE);
    tiny_plan(box);
    for (uint32_t l = 0; l < 10; l++)
        assert_kind(box, l, KVI_ROW_SPARSE);
    mixed_plan(box);
    for (uint32_t l = 0; l < 9; l++)
        assert_kind(box, l, mixed[l]);
    free(box);
}

/* Each case takes from layer 0 of the mixed plan what paged attention needs. */
static void break_paged(plan_box *box, unsigned what)
{
    switch (what) {
    case 0: ROW(0, ratio, 2); break;
    case 1: ROW(0, select, KVCSA_SELECT_OWN); break;
    case 2: ROW(0, value_kind, KVCSA_VALUE_ALIAS); break;
    case 3: ROW(0, value_kind, KVCSA_VALUE_PREFIX); break;
    case 4: ROW(0, value_width, 64); break;
    case 5: ROW(0, value_format, KVCSA_FORMAT_F16); break;
    case 6: ROW(0, entry_width, 48); ROW(0, value_width, 48); break;
    case 7: ROW(0, entry_format, KVCSA_FORMAT_INT6); ROW(0, value_format, KVCSA_FORMAT_INT6); break;
    case 8: ROW(0, window_tokens, 128); ROW(0, window_format, KVCSA_FORMAT_FP8_E8M0_G32); break;
    case 9: ROW(0, state_heads, 1); ROW(0, state_bytes, 4); break;
    default: fail();
    }
}

static void test_row_kind_asks_for_every_condition(void **state)
{
    static const uint32_t stored[] = {
        KVCSA_FORMAT_FP4_E4M3_G16, KVCSA_FORMAT_FP4_E8M0_G32, KVCSA_FORMAT_FP8_E8M0_G32,
        KVCSA_FORMAT_F32,          KVCSA_FORMAT_F16,          KVCSA_FORMAT_BF16,
        KVCSA_FORMAT_FP4_AS_F32,   KVCSA_FORMAT_Q8_0,         KVCSA_FORMAT_Q4_0,
        KVCSA_FORMAT_INT3_F16_G32};
    plan_box *box = new_box();

    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        mixed_plan(box);
        break_paged(box, i);
        assert_kind(box, 0, KVI_ROW_NONE);
        assert_kind(box, 1, KVI_ROW_PAGED); /* a row is judged by itself */
    }
    mixed_plan(box);
    for (size_t i = 0; i < sizeof stored / sizeof *stored; i++) {
        ROW(0, entry_format, stored[i]), ROW(0, value_format, stored[i]);
        assert_kind(box, 0, KVI_ROW_PAGED);
    }
    release_plan(box);
    set_ratio(box, 2, 7, 128);
    assert_kind(box, 2, KVI_ROW_SPARSE); /* the window holds what an entry is made of */
    set_ratio(box, 2, 7, 129);
    assert_kind(box, 2, KVI_ROW_NONE);
    ROW(0, window_bytes, 1024), ROW(0, window_format, KVCSA_FORMAT_BF16);
    assert_kind(box, 0, KVI_ROW_NONE);
    assert_kind(box, 1, KVI_ROW_SPARSE);
    free(box);
}

/* ------------------------------------------------------------------ hashes */

static uint64_t hash_of(const plan_box *box)
{
    kvcsa_allocator a;
    uint64_t        hash = 0;

    assert_int_equal(kvi_allocator_import(NULL, &a, NULL), KVCSA_OK);
    assert_int_equal(kvi_plan_hash(&box->plan, &a, &hash, NULL), KVCSA_OK);
    return hash;
}

/* Computed by the version before rows had heads and values in the hash: snapshots of it name
 * these. */
static void test_hash_of_known_plans(void **state)
{
    plan_box *box = new_box();

    (void)state;
    release_plan(box);
    assert_true(hash_of(box) == UINT64_C(0xdeece51462c00b3f));
    tiny_plan(box);
    assert_true(hash_of(box) == UINT64_C(0x31a94a7547374fd3));
    free(box);
}

/* Case 0 changes nothing; the others one field, or which layer has it. */
static void change_heads(plan_box *box, unsigned what)
{
    switch (what) {
    case 0: break;
    case 1: ROW(0, kv_heads, 4); break;
    case 2: ROW(0, kv_heads, 1); break;
    case 3: ROW(0, value_kind, KVCSA_VALUE_ALIAS); break;
    case 4: ROW(0, value_kind, KVCSA_VALUE_PREFIX); break;
    case 5: ROW(0, value_width, 64); break;
    case 6: ROW(0, value_format, KVCSA_FORMAT_F16); break;
    case 7: ROW(0, kv_heads, 1); ROW(0, value_kind, KVCSA_VALUE_ALIAS); break;
    case 8: ROW(1, kv_heads, 1); ROW(1, value_kind, KVCSA_VALUE_ALIAS); break;
    case 9: ROW(1, value_width, 64); break;
    case 10: ROW(4, value_width, 256); break; /* one head, whose value is a part of its key */
    case 11: box->plan.block_tokens = 256; break;
    default: fail();
    }
}

static void test_hash_tells_heads_and_values_apart(void **state)
{
    enum { N = 12 };
    plan_box *box = new_box();
    uint64_t  hash[N];

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        mixed_plan(box);
        change_heads(box, i);
        hash[i] = hash_of(box);
        for (unsigned k = 0; k < i; k++)
            if (hash[k] == hash[i])
                fail_msg("cases %u and %u have one hash", k, i);
    }
    mixed_plan(box);
    assert_true(hash_of(box) == hash[0]);
    free(box);
}

static void test_hash_without_memory(void **state)
{
    plan_box       *box = new_box();
    fault_alloc     fa;
    kvcsa_allocator a;
    kvcsa_error     err = {0};
    uint64_t        hash = 0;

    (void)state;
    mixed_plan(box);
    fault_alloc_init(&fa);
    assert_int_equal(kvi_allocator_import(&fa.hook, &a, NULL), KVCSA_OK);
    fault_alloc_fail_at(&fa, 1);
    assert_int_equal(kvi_plan_hash(&box->plan, &a, &hash, &err), KVCSA_ERR_NOMEM);
    assert_string_equal(err.text, "hash of 9 plan rows");
    fault_alloc_fail_at(&fa, 0);
    assert_int_equal(kvi_plan_hash(&box->plan, &a, &hash, &err), KVCSA_OK);
    assert_true(hash == hash_of(box));
    assert_true(fault_alloc_is_clean(&fa));
    free(box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_max_ratio_is_that_of_an_owner),
        cmocka_unit_test(test_validate_accepts_known_plans),
        cmocka_unit_test(test_validate_names_every_broken_rule),
        cmocka_unit_test(test_validate_accepts_every_kind_of_layer),
        cmocka_unit_test(test_validate_names_broken_rules_of_every_kind),
        cmocka_unit_test(test_validate_bounds_the_block),
        cmocka_unit_test(test_row_kind_is_what_operators_can_do),
        cmocka_unit_test(test_row_kind_asks_for_every_condition),
        cmocka_unit_test(test_hash_of_known_plans),
        cmocka_unit_test(test_hash_tells_heads_and_values_apart),
        cmocka_unit_test(test_hash_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
