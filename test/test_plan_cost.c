/* The figures of a cache plan against closed formulas, and its public rows. */
#include "plan/plan_cost.h"
#include "support/plan_box.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

/* ------------------------------------------------------------------ plans of other families */

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

/* ------------------------------------------------------------------ the largest plans */

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format_bytes),
        cmocka_unit_test(test_cost_of_the_release),
        cmocka_unit_test(test_cost_matches_closed_formulas),
        cmocka_unit_test(test_cost_of_the_tiny_plan),
        cmocka_unit_test(test_public_rows_of_the_release),
        cmocka_unit_test(test_cost_of_every_kind_of_layer),
        cmocka_unit_test(test_public_rows_of_every_kind),
        cmocka_unit_test(test_cost_of_the_largest_plan_does_not_overflow),
        cmocka_unit_test(test_cost_of_the_largest_counted_plan_does_not_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
