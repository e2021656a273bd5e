/* Rows that are no plan: the text says which rule is broken, and no number leads anywhere else. */
#include "support/fault_alloc.h"
#include "support/plan_rows.h"
#include "support/prng.h"

static uint64_t seed;

/* ------------------------------------------------------------------ rules */

#define ROW(l, field, v) rows[l].field = (v)

/* Each case breaks one rule of the mixed plan. A function of many lines, since it is a table. */
static size_t break_rows(kvcsa_plan_row *rows, unsigned what)
{
    switch (what) {
    case 0:
        ROW(3, layer, 2);
        break;
    case 1:
        ROW(0, layer, -1);
        break;
    case 2:
        ROW(1, select, -1);
        break;
    case 3:
        ROW(1, select, 5);
        break;
    case 4:
        ROW(2, candidates, 3);
        break;
    case 5:
        ROW(2, candidates, INT32_MIN);
        break;
    case 6:
        ROW(0, kv_owner, 0);
        break; /* a zeroed row */
    case 7:
        ROW(4, kv_owner, 5);
        break;
    case 8:
        ROW(5, kv_owner, 3);
        break;
    case 9:
        ROW(5, ratio, 2);
        break;
    case 10:
        ROW(2, entry_bytes, 36);
        break;
    case 11:
        ROW(2, index_bytes, 17);
        break;
    case 12:
        ROW(1, entry_bytes, 35);
        break;
    case 13:
        ROW(1, index_bytes, 18);
        break;
    case 14:
        ROW(1, window_bytes, 67);
        break;
    case 15:
        ROW(0, window_bytes, 33);
        break;
    case 16:
        ROW(1, pending_bytes, 511);
        break;
    case 17:
        ROW(2, pending_bytes, 512);
        break;
    case 18:
        ROW(1, candidates, KVCSA_CANDIDATES_CONSUMER);
        break;
    case 19:
        ROW(1, candidates, 0);
        ROW(1, candidate_blocks, 0);
        ROW(1, candidate_block_entries, 0);
        break;
    case 20:
        ROW(2, candidate_blocks, 5);
        break;
    case 21:
        ROW(3, candidate_blocks, 4);
        break;
    case 22:
        ROW(3, index_width, 64);
        break;
    case 23:
        ROW(4, index_heads, 4);
        break;
    case 24:
        ROW(0, entry_format, KVCSA_FORMAT_FP8_E8M0_G32);
        break;
    case 25:
        ROW(0, pool_kind, KVCSA_POOLING_GATED);
        break;
    case 26:
        ROW(0, select_entries, 1);
        break;
    case 27:
        ROW(0, entry_width, 0);
        break;
    case 28:
        ROW(0, entry_width, 0);
        ROW(0, window_bytes, 66);
        ROW(0, value_width, 64);
        break;
    case 29:
        ROW(6, entry_width, 64);
        break;
    case 30:
        ROW(0, entry_width, 65);
        break;
    case 31:
        ROW(0, kv_heads, 4096);
        break;
    case 32:
        ROW(0, value_width, 32);
        break;
    case 33:
        ROW(0, value_kind, 3);
        break;
    case 34:
        ROW(0, value_kind, KVCSA_VALUE_OWN);
        ROW(0, value_width, 1);
        break;
    case 35:
        ROW(2, pool_kind, KVCSA_POOLING_WIDE);
        break;
    case 36:
        ROW(1, pool_kind, KVCSA_POOLING_NONE);
        break;
    case 37:
        ROW(1, index_owner, 0);
        break;
    case 38:
        ROW(1, index_heads, 0);
        break;
    case 39:
        ROW(1, index_width, 33);
        break;
    case 40:
        ROW(3, select_owner, 0);
        break;
    case 41:
        ROW(3, select_entries, 9);
        break;
    case 42:
        ROW(4, kv_heads, UINT32_MAX);
        break;
    case 43:
        ROW(4, value_format, 0);
        break;
    case 44:
        ROW(6, state_heads, 0);
        break;
    case 45:
        ROW(6, state_bytes, ((uint64_t)1 << 40) + 1);
        break;
    case 46:
        ROW(1, ratio, 65536);
        break;
    case 47:
        ROW(1, ratio, 65537);
        break;
    case 48:
        ROW(7, entry_width, 512);
        break;
    case 49:
        ROW(6, state_heads, 3);
        break;
    case 50:
        ROW(0, entry_width, 0);
        ROW(0, window_bytes, 66);
        ROW(0, kv_heads, 4);
        break;
    default:
        rows[1] = selected_row(1, 1, KVCSA_SELECT_OWN, 1);
        return 0;
    }
    return N_MIXED;
}

static const char *const broken[] = {
    "layer 3: layer is 2, must be 3",
    "layer 0: layer is -1, must be 0",
    "layer 1: select is -1, must be 0..4",
    "layer 1: select is 5, must be 0..4",
    "layer 2: candidates is 3, must be 0..2",
    "layer 2: candidates is -2147483648, must be 0..2",
    "layer 0: kv_owner is 0, must be -1 where ratio is 0",
    "layer 4: kv_owner is 5, must be 0..4",
    "layer 5: kv_owner is 3, must be a layer that owns entries",
    "layer 5: ratio is 2, must be 1 as in kv_owner",
    "layer 2: entry_bytes is 36, must be 0 in a layer that owns no entries",
    "layer 2: index_bytes is 17, must be 0 in a layer that owns no entries",
    "layer 1: entry_bytes is 35, must be 36 for its formats",
    "layer 1: index_bytes is 18, must be 17 for its format",
    "layer 1: window_bytes is 67, must be 66 for this format",
    "layer 0: window_bytes is 33, must be 66 for this format",
    "layer 1: pending_bytes is 511, must be 512",
    "layer 2: pending_bytes is 512, must be 0",
    "layer 1: candidates is 2, must be 0 where the candidate source before it is not one of the "
    "entries of layer 1",
    "layer 2: candidates is 2, must be 0 where the candidate source before it is not one of the "
    "entries of layer 1",
    "layer 2: candidate_blocks is 5, must be 4 as in candidate_owner",
    "layer 3: candidate_blocks is 4, must be 0 without candidates",
    "layer 3: index_width is 64, must be 32 as in index_owner",
    "layer 4: index_heads is 4, must be 0 in a layer without an index",
    "layer 0: entry_format is 3, must be 0 where ratio is 0",
    "layer 0: pool_kind is 1, must be 0 where ratio is 0",
    "layer 0: select_entries is 1, must be 0 where ratio is 0",
    "layer 0: window_bytes is 0, must be a multiple of 33 in 33..67584",
    "layer 0: value_width is 64, must be 0 without entry_width",
    "layer 6: entry_width is 64, must be 0 where ratio and window_tokens are 0",
    "layer 0: entry_width is 65, must be a multiple of 32 in 1..65536",
    "layer 0: kv_heads is 4096, which makes rows of 262144 channels, must be at most 65536",
    "layer 0: value_width is 32, must be 64..64",
    "layer 0: value_kind is 3, must be 0..2",
    "layer 0: value_width is 1, must be a multiple of 32 in 1..65536",
    "layer 2: pool_kind is 3, must be 1 as in kv_owner",
    "layer 1: pool_kind is 0, must be 1..3 for ratio 2",
    "layer 1: index_owner is 0, must be a layer that owns index keys",
    "layer 1: index_heads is 0, must be 1..65536",
    "layer 1: index_width is 33, must be a multiple of 32 in 1..65536",
    "layer 3: select_owner is 0, must be 1..2",
    "layer 3: select_entries is 9, must be 8 as in select_owner",
    "layer 4: kv_heads is 4294967295, must be 1..65536",
    "layer 4: value_format is 0, must be a known format (1..16)",
    "layer 6: state_heads is 0, must be 1..65536",
    "layer 6: state_bytes is 1099511627777, must be at most 1099511627776",
    "layer 2: ratio is 2, must be 65536 as in kv_owner",
    "layer 1: ratio is 65537, must be 0..65536",
    "layer 7: entry_width is 512, must be 576 for mla-fp8-656",
    "layer 6: state_bytes is 4096, must be a multiple of state_heads, 3",
    "layer 0: window_bytes is 66, must be a multiple of kv_heads, 4",
};

static void test_every_rule_has_a_text(void **state)
{
    kvcsa_plan_row rows[N_MIXED];
    unsigned       n = 0;

    (void)state;
    for (mixed(rows); break_rows(rows, n) != 0; n++, mixed(rows)) {
        kvcsa_model *m = (kvcsa_model *)rows;
        kvcsa_error  err;

        assert_true(n < sizeof broken / sizeof *broken);
        memset(&err, 0x55, sizeof err);
        if (kvcsa_model_from_plan(rows, N_MIXED, NULL, &m, &err) != KVCSA_ERR_FORMAT)
            fail_msg("case %u: %d '%s', expected '%s'", n, err.status, err.text, broken[n]);
        assert_int_equal(err.status, KVCSA_ERR_FORMAT);
        assert_string_equal(err.text, broken[n]);
        assert_null(m);
        assert_int_equal(kvcsa_model_from_plan(rows, N_MIXED, NULL, &m, NULL), KVCSA_ERR_FORMAT);
    }
    assert_int_equal(n, sizeof broken / sizeof *broken);
}

/* Raw rows that 32 bits cannot count: one owner alone, since a reader would be refused for less. */
static void test_raw_rows_are_bounded(void **state)
{
    kvcsa_plan_row    row = selected_row(0, 0, KVCSA_SELECT_OWN, 0);
    kvcsa_plan_params p = default_params();
    kvcsa_model      *m = NULL;
    kvcsa_error       err;

    (void)state;
    row.ratio = 65536;
    row.entry_width = 8192;
    p.block_tokens = 8 * 65536;
    m = from_rows(&row, 1, &p);
    assert_int_equal(cost_of(m, 0).pending_bytes, 4294901760);
    kvcsa_model_release(&m);
    row.entry_width = 8224;
    assert_fails(kvcsa_model_from_plan(&row, 1, &p, &m, &err), KVCSA_ERR_FORMAT,
                 "layer 0: ratio is 65536, which makes raw rows of 4311678720 bytes, must be at "
                 "most 4294967295");
    assert_null(m);
}

/* What was taken for a plan that is refused is given back. */
static void test_refused_plans_leak_nothing(void **state)
{
    kvcsa_plan_row    rows[N_MIXED];
    kvcsa_plan_params p = default_params();
    fault_alloc       fa;

    (void)state;
    fault_alloc_init(&fa);
    p.allocator = &fa.hook;
    for (unsigned what = 0; what < sizeof broken / sizeof *broken; what++) {
        kvcsa_model *m = NULL;

        mixed(rows);
        break_rows(rows, what);
        assert_int_equal(kvcsa_model_from_plan(rows, N_MIXED, &p, &m, NULL), KVCSA_ERR_FORMAT);
        assert_true(fault_alloc_is_clean(&fa));
    }
}

/* ------------------------------------------------------------------ hostile numbers */

/* The plan is one, or the text says why not. Costs of what is one stay in order. */
static void try_rows(const kvcsa_plan_row *rows, size_t n, unsigned *n_good)
{
    kvcsa_model *m = NULL;
    kvcsa_cost   c;
    kvcsa_error  err;

    if (kvcsa_model_from_plan(rows, n, NULL, &m, &err) != KVCSA_OK) {
        assert_true(err.status == KVCSA_ERR_FORMAT || err.status == KVCSA_ERR_ARG);
        assert_true(strstr(err.text, "must be") != NULL && m == NULL);
        return;
    }
    ++*n_good;
    c = cost_of(m, UINT32_MAX);
    assert_true((uint64_t)c.index_part_bytes + c.main_part_bytes == c.block_bytes);
    assert_true(c.read_bytes >= c.index_read_bytes + c.window_read_bytes + c.state_bytes);
    assert_true(c.resident_bytes >= c.const_bytes - c.state_bytes);
    kvcsa_model_release(&m);
}

/* Every 32 bits of every row but struct_size, at the numbers where things turn. */
static void test_hostile_numbers(void **state)
{
    static const uint32_t values[] = {
        0,          1,          2,          3,         7,     8,       16,
        17,         64,         65535,      65536,     65537, 1 << 20, (1 << 20) + 1,
        0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
    kvcsa_plan_row rows[N_MIXED];
    unsigned       n_good = 0;

    (void)state;
    for (size_t l = 0; l < N_MIXED; l++)
        for (size_t off = sizeof(size_t); off < sizeof *rows; off += 4)
            for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
                mixed(rows);
                memcpy((unsigned char *)&rows[l] + off, &values[v], 4);
                try_rows(rows, N_MIXED, &n_good);
            }
    assert_true(n_good > 8 * 2 * 18); /* cost_only and halves of state_bytes, at least */
}

/* Several at once, from all bits. */
static void test_random_rows(void **state)
{
    kvcsa_plan_row rows[N_MIXED];
    unsigned       n_good = 0;
    prng           r;

    (void)state;
    prng_init(&r, seed);
    for (int i = 0; i < 20000; i++) {
        const uint32_t n_faults = 1 + (uint32_t)(prng_below(&r, 3));

        mixed(rows);
        for (uint32_t k = 0; k < n_faults; k++) {
            const size_t   at = prng_below(&r, N_MIXED);
            const size_t   off = 8 + prng_below(&r, (sizeof *rows - 8) / 4) * 4;
            const uint32_t v = prng_u32(&r) >> prng_below(&r, 32);

            memcpy((unsigned char *)&rows[at] + off, &v, 4);
        }
        try_rows(rows, N_MIXED, &n_good);
    }
    assert_true(n_good > 100);
}

/* The most layers there can be, each of the most bytes. */
static void test_largest_plan(void **state)
{
    kvcsa_plan_row   *rows = calloc(1024, sizeof *rows);
    kvcsa_plan_params p = default_params();
    kvcsa_model      *m;
    kvcsa_cost        c;

    (void)state;
    assert_non_null(rows);
    for (int32_t l = 0; l < 1024; l++) {
        rows[l] = grouped_row(l, l, 1, 32768);
        rows[l].entry_format = rows[l].value_format = KVCSA_FORMAT_F32;
        rows[l].window_tokens = 1 << 20;
        rows[l].window_format = KVCSA_FORMAT_F32;
        rows[l].state_heads = 1;
        rows[l].state_bytes = (uint64_t)1 << 40;
    }
    p.block_tokens = 8;
    m = from_rows(rows, 1024, &p); /* 2^31 bytes a block */
    c = cost_of(m, UINT32_MAX);
    assert_int_equal(c.block_bytes, (uint64_t)1 << 31);
    assert_int_equal(c.read_bytes,
                     ((uint64_t)UINT32_MAX << 28) + ((uint64_t)1 << 48) + ((uint64_t)1 << 50));
    kvcsa_model_release(&m);
    free(rows);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rule_has_a_text),
        cmocka_unit_test(test_raw_rows_are_bounded),
        cmocka_unit_test(test_refused_plans_leak_nothing),
        cmocka_unit_test(test_hostile_numbers),
        cmocka_unit_test(test_random_rows),
        cmocka_unit_test(test_largest_plan),
    };

    seed = prng_seed(argc, argv, 20261130);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
