/* The byte map of a block. */
#include "base/alloc.h"
#include "format/kv_layout.h"
#include "support/fault_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MAX_LAYERS 24

/* Rows of which only the fields that a layout reads are set; ratios[l] != 0 makes l an owner. */
static void owners_plan(kvi_plan *plan, kvi_plan_row *rows, uint32_t n, const uint32_t *ratios,
                        uint32_t entry_width, uint32_t index_width, uint32_t block_tokens)
{
    memset(rows, 0, n * sizeof *rows);
    *plan =
        (kvi_plan){.n_layers = n, .block_tokens = block_tokens, .max_tokens = 1024, .rows = rows};
    for (uint32_t l = 0; l < n; l++) {
        rows[l].kv_owner = ratios[l] ? (int32_t)l : (l ? rows[l - 1].kv_owner : KVI_NO_LAYER);
        rows[l].ratio = ratios[l] ? ratios[l] : (l ? rows[l - 1].ratio : 0);
        rows[l].entry_width = entry_width;
        rows[l].entry_format = KVCSA_FORMAT_FP4_E4M3_G16;
        rows[l].entry_bytes = entry_width / 2 + entry_width / 16;
        rows[l].index_width = index_width;
        rows[l].index_format = KVCSA_FORMAT_FP4_E8M0_G32;
        rows[l].index_bytes = index_width / 2 + index_width / 32;
    }
}

/* Adds one to every byte of a piece, which lies inside its part. */
static void mark(uint8_t *part, size_t part_bytes, size_t off, size_t n)
{
    assert_true(off <= part_bytes && n <= part_bytes - off);
    for (size_t i = 0; i < n; i++)
        part[off + i]++;
}

/* Keys and values of the heads of an owner, one strip behind the other. */
static void mark_strips(const kvi_kv_layout *layout, const kvi_kv_owner *o, uint8_t *entries)
{
    size_t at = o->main_off;

    for (uint32_t h = 0; h < o->n_strip_heads; h++) {
        assert_int_equal(kvi_kv_key_strip_off(o, h), at);
        for (uint32_t r = 0; r < o->rows_per_block; r++, at += o->key_row_bytes)
            mark(entries, layout->main_part_bytes, at, o->key_row_bytes);
        assert_int_equal(kvi_kv_value_strip_off(o, h), at);
        for (uint32_t r = 0; r < o->rows_per_block; r++, at += o->value_row_bytes)
            mark(entries, layout->main_part_bytes, at, o->value_row_bytes);
    }
    assert_int_equal(o->n_strip_heads * (o->key_row_bytes + o->value_row_bytes),
                     o->n_strip_heads ? o->main_row_bytes : 0);
}

/* Values and scales of all rows of all owners cover both parts exactly once. */
static void check_tiling(const kvi_kv_layout *layout)
{
    uint8_t *index = calloc(layout->index_part_bytes + 1u, 1);
    uint8_t *entries = calloc(layout->main_part_bytes + 1u, 1);

    assert_true(index && entries);
    for (uint32_t i = 0; i < layout->n_owners; i++) {
        const kvi_kv_owner *o = &layout->owners[i];

        assert_int_equal(o->rows_per_block, layout->block_tokens / o->ratio);
        mark_strips(layout, o, entries);
        for (uint32_t r = 0; r < o->rows_per_block && o->n_strip_heads == 0; r++)
            mark(entries, layout->main_part_bytes, kvi_kv_main_row_off(o, r), o->main_row_bytes);
        for (uint32_t r = 0; r < o->rows_per_block && o->index_row_bytes; r++) {
            mark(index, layout->index_part_bytes, kvi_kv_index_values_off(o, r),
                 o->index_value_bytes);
            mark(index, layout->index_part_bytes, kvi_kv_index_scales_off(o, r),
                 o->index_row_bytes - o->index_value_bytes);
            if (r % 8 == 0)
                assert_int_equal(kvi_kv_index_group_off(o, r / 8), kvi_kv_index_values_off(o, r));
            if (r % 8 == 7) /* a group ends with the scales of its last row */
                assert_int_equal(kvi_kv_index_scales_off(o, r) + o->index_row_bytes -
                                     o->index_value_bytes,
                                 kvi_kv_index_group_off(o, r / 8 + 1));
        }
    }
    for (size_t i = 0; i < layout->index_part_bytes; i++)
        assert_int_equal(index[i], 1);
    for (size_t i = 0; i < layout->main_part_bytes; i++)
        assert_int_equal(entries[i], 1);
    free(index);
    free(entries);
}

static void test_layout_of_the_release(void **state)
{
    static const uint32_t ratios[22] = {[2] = 2, [8] = 2, [14] = 2, [20] = 1};
    static const uint32_t layers[4] = {2, 8, 14, 20};
    static const uint32_t index_off[4] = {0, 4352, 8704, 13056};
    static const uint32_t main_off[4] = {0, 18432, 36864, 55296};
    kvi_plan_row          rows[22];
    kvi_plan              plan;
    kvi_kv_layout         layout;
    kvcsa_allocator       a;

    (void)state;
    assert_int_equal(kvi_allocator_import(NULL, &a, NULL), KVCSA_OK);
    owners_plan(&plan, rows, 22, ratios, 512, 128, 128);
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, NULL), KVCSA_OK);
    assert_int_equal(layout.index_part_bytes, 21760);
    assert_int_equal(layout.main_part_bytes, 92160);
    assert_int_equal(layout.n_owners, 4);
    for (uint32_t i = 0; i < 4; i++) {
        const kvi_kv_owner *o = kvi_kv_layout_owner(&layout, layers[i]);

        assert_ptr_equal(o, &layout.owners[i]);
        assert_int_equal(o->layer, layers[i]);
        assert_int_equal(o->ratio, i < 3 ? 2 : 1);
        assert_int_equal(o->rows_per_block, i < 3 ? 64 : 128);
        assert_true(o->main_row_bytes == 288 && o->entry_width == 512);
        assert_true(o->index_row_bytes == 68 && o->index_value_bytes == 64);
        assert_true(o->entry_width == 512 && o->index_width == 128);
        assert_int_equal(o->index_off, index_off[i]);
        assert_int_equal(o->main_off, main_off[i]);
    }
    for (uint32_t l = 0; l < 60; l++)
        if (l != 2 && l != 8 && l != 14 && l != 20)
            assert_null(kvi_kv_layout_owner(&layout, l));
    /* one candidate block of 8 entries is one piece of 544 bytes */
    assert_int_equal(kvi_kv_index_group_off(&layout.owners[3], 3), 13056 + 3 * 544);
    check_tiling(&layout);
    kvi_kv_layout_fini(&layout, &a);
}

static void test_layout_tiles_other_geometries(void **state)
{
    static const struct {
        uint32_t ratios[7];
        uint32_t entry_width;
        uint32_t index_width;
        uint32_t block_tokens;
        uint32_t index_part;
        uint32_t main_part;
    } cases[] = {
        {{0, 0, 2, 0, 2, 1, 0}, 96, 64, 128, 256 * 34, 256 * 54},
        {{0, 0, 2, 0, 2, 1, 0}, 96, 64, 16, 32 * 34, 32 * 54},
        {{0, 0, 2, 0, 2, 1, 0}, 96, 64, 256, 512 * 34, 512 * 54},
        {{1, 0, 0, 0, 0, 0, 0}, 32, 32, 8, 8 * 17, 8 * 18},
        {{4, 0, 128, 0, 1, 0, 0}, 512, 128, 1024, (256 + 8 + 1024) * 68, (256 + 8 + 1024) * 288},
        {{3, 2, 0, 0, 0, 0, 1}, 64, 96, 48, (16 + 24 + 48) * 51, (16 + 24 + 48) * 36},
        {{0, 0, 0, 0, 0, 0, 0}, 64, 96, 128, 0, 0},
    };
    kvcsa_allocator a;

    (void)state;
    assert_int_equal(kvi_allocator_import(NULL, &a, NULL), KVCSA_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvi_plan_row  rows[7];
        kvi_plan      plan;
        kvi_kv_layout layout;

        owners_plan(&plan, rows, 7, cases[i].ratios, cases[i].entry_width, cases[i].index_width,
                    cases[i].block_tokens);
        assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, NULL), KVCSA_OK);
        assert_int_equal(layout.block_tokens, cases[i].block_tokens);
        assert_int_equal(layout.index_part_bytes, cases[i].index_part);
        assert_int_equal(layout.main_part_bytes, cases[i].main_part);
        check_tiling(&layout);
        kvi_kv_layout_fini(&layout, &a);
        assert_true(layout.owners == NULL && layout.n_owners == 0);
        kvi_kv_layout_fini(&layout, &a); /* accepts what it has emptied */
    }
}

static void test_layout_refuses_what_it_cannot_hold(void **state)
{
    static const uint32_t ratios[2] = {1, 1};
    fault_alloc           fa;
    kvcsa_allocator       a;
    kvcsa_error           err;
    kvi_plan_row          rows[2];
    kvi_plan              plan;
    kvi_kv_layout         layout;

    (void)state;
    fault_alloc_init(&fa);
    assert_int_equal(kvi_allocator_import(&fa.hook, &a, NULL), KVCSA_OK);
    fault_alloc_fail_at(&fa, 1);
    owners_plan(&plan, rows, 2, ratios, 65536, 128, 1u << 20);
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, &err), KVCSA_ERR_NOMEM);
    assert_int_equal(err.status, KVCSA_ERR_NOMEM);
    fault_alloc_fail_at(&fa, 0);
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, &err), KVCSA_ERR_FORMAT);
    assert_non_null(strstr(err.text, "38654705664 bytes, must be at most 2147483648"));
    assert_null(layout.owners);
    assert_true(fault_alloc_is_clean(&fa)); /* nothing is left behind */
    /* a part of exactly 2^31 bytes passes, one byte a row more does not */
    rows[0].entry_bytes = rows[1].entry_bytes = 1024;
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, &err), KVCSA_OK);
    assert_int_equal(layout.main_part_bytes, 1u << 31);
    kvi_kv_layout_fini(&layout, &a);
    rows[0].index_bytes = rows[1].index_bytes = 1024;
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, &err), KVCSA_OK);
    assert_int_equal(layout.index_part_bytes, 1u << 31);
    kvi_kv_layout_fini(&layout, &a);
    rows[1].index_bytes = 1025;
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, &err), KVCSA_ERR_FORMAT);
    rows[1].index_bytes = 68;
    rows[1].entry_bytes = 1025;
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, &err), KVCSA_ERR_FORMAT);
    assert_true(fault_alloc_is_clean(&fa));
}

/* ------------------------------------------------------------------ strips */

/* Heads with keys and values of their own, a latent of two tokens with index keys between them, and
 * heads whose value is a part of the key. */
static void strip_plan(kvi_plan *plan, kvi_plan_row *rows, uint32_t block_tokens)
{
    static const uint32_t ratios[5] = {1, 2, 1, 0, 1};

    owners_plan(plan, rows, 5, ratios, 96, 64, block_tokens);
    rows[0].kv_heads = 8;
    rows[0].entry_width = rows[0].value_width = 128;
    rows[0].entry_format = rows[0].value_format = KVCSA_FORMAT_BF16;
    rows[0].value_kind = KVCSA_VALUE_OWN;
    rows[0].entry_bytes = 8 * (256 + 256);
    rows[1].kv_heads = 1;
    rows[2].kv_heads = 3;
    rows[2].entry_width = 64;
    rows[2].entry_format = KVCSA_FORMAT_Q8_0; /* 68 */
    rows[2].value_width = 32;
    rows[2].value_format = KVCSA_FORMAT_FP4_E8M0_G32; /* 17 */
    rows[2].value_kind = KVCSA_VALUE_OWN;
    rows[2].entry_bytes = 3 * (68 + 17);
    rows[4].kv_heads = 2;
    rows[4].entry_width = 64;
    rows[4].entry_format = KVCSA_FORMAT_F16;
    rows[4].value_width = 32;
    rows[4].value_kind = KVCSA_VALUE_PREFIX;
    rows[4].entry_bytes = 2 * 128;
    for (uint32_t l = 0; l < 5; l++)
        if (l != 1)
            rows[l].index_width = rows[l].index_format = rows[l].index_bytes = 0;
}

static void test_strips_lie_head_by_head(void **state)
{
    kvi_plan_row        rows[5];
    kvi_plan            plan;
    kvi_kv_layout       layout;
    kvcsa_allocator     a;
    const kvi_kv_owner *o;

    (void)state;
    assert_int_equal(kvi_allocator_import(NULL, &a, NULL), KVCSA_OK);
    strip_plan(&plan, rows, 16);
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, NULL), KVCSA_OK);
    assert_int_equal(layout.n_owners, 4);
    assert_int_equal(layout.main_part_bytes, 16 * 4096 + 8 * 54 + 16 * 255 + 16 * 256);
    assert_int_equal(layout.index_part_bytes, 8 * 34);
    o = &layout.owners[0];
    assert_true(o->n_strip_heads == 8 && o->key_row_bytes == 256 && o->value_row_bytes == 256);
    assert_true(o->entry_width == 128 && o->entry_format == KVCSA_FORMAT_BF16);
    assert_int_equal(kvi_kv_key_strip_off(o, 0), 0);
    assert_int_equal(kvi_kv_value_strip_off(o, 0), 4096);
    assert_int_equal(kvi_kv_key_strip_off(o, 7), 7 * 8192);
    for (uint32_t h = 0; h < 8; h++) { /* what a page of kvi_paged_attend_params is, at main_off */
        assert_int_equal(kvi_kv_key_strip_off(o, h), o->main_off + 2 * h * 16 * 256);
        assert_int_equal(kvi_kv_value_strip_off(o, h), o->main_off + (2 * h + 1) * 16 * 256);
    }
    o = &layout.owners[1];
    assert_true(o->n_strip_heads == 0 && o->key_row_bytes == 0 && o->value_row_bytes == 0);
    assert_int_equal(o->main_off, 65536);
    o = &layout.owners[2];
    assert_true(o->n_strip_heads == 3 && o->key_row_bytes == 68 && o->value_row_bytes == 17);
    assert_int_equal(o->main_off, 65968);
    assert_int_equal(kvi_kv_key_strip_off(o, 0), 65968);
    assert_int_equal(kvi_kv_value_strip_off(o, 0), 65968 + 16 * 68);
    assert_int_equal(kvi_kv_key_strip_off(o, 2), 65968 + 2 * 16 * 85);
    assert_int_equal(kvi_kv_value_strip_off(o, 2), 65968 + 2 * 16 * 85 + 16 * 68);
    o = &layout.owners[3]; /* the value is in the key: rows of all heads */
    assert_true(o->n_strip_heads == 0 && o->key_row_bytes == 0 && o->value_row_bytes == 0);
    assert_int_equal(o->main_row_bytes, 256);
    check_tiling(&layout);
    kvi_kv_layout_fini(&layout, &a);
}

/* ------------------------------------------------------------------ copies of rows */

/* Byte by byte: to[i] is from[i] where the byte is of a complete entry. */
static void expect_copy(uint8_t *to, const uint8_t *from, size_t off, size_t n)
{
    for (size_t i = off; i < off + n; i++)
        to[i] = from[i];
}

static void expect_rows(const kvi_kv_layout *layout, uint32_t n_tokens, uint8_t *const to[2],
                        uint8_t *const from[2])
{
    for (uint32_t i = 0; i < layout->n_owners; i++) {
        const kvi_kv_owner *o = &layout->owners[i];

        for (uint32_t r = 0; r < n_tokens / o->ratio; r++) {
            if (o->n_strip_heads == 0)
                expect_copy(to[1], from[1], kvi_kv_main_row_off(o, r), o->main_row_bytes);
            for (uint32_t h = 0; h < o->n_strip_heads; h++) {
                expect_copy(to[1], from[1], kvi_kv_key_strip_off(o, h) + r * o->key_row_bytes,
                            o->key_row_bytes);
                expect_copy(to[1], from[1], kvi_kv_value_strip_off(o, h) + r * o->value_row_bytes,
                            o->value_row_bytes);
            }
            if (o->index_row_bytes == 0)
                continue;
            expect_copy(to[0], from[0], kvi_kv_index_values_off(o, r), o->index_value_bytes);
            expect_copy(to[0], from[0], kvi_kv_index_scales_off(o, r),
                        o->index_row_bytes - o->index_value_bytes);
        }
    }
}

static void test_copy_rows_takes_complete_entries_only(void **state)
{
    kvi_plan_row    rows[5];
    kvi_plan        plan;
    kvi_kv_layout   layout;
    kvcsa_allocator a;
    size_t          bytes[2];
    uint8_t        *from[2], *to[2], *want[2];

    (void)state;
    assert_int_equal(kvi_allocator_import(NULL, &a, NULL), KVCSA_OK);
    strip_plan(&plan, rows, 16);
    assert_int_equal(kvi_kv_layout_init(&layout, &plan, &a, NULL), KVCSA_OK);
    bytes[0] = layout.index_part_bytes;
    bytes[1] = layout.main_part_bytes;
    for (size_t part = 0; part < 2; part++) {
        from[part] = malloc(bytes[part]);
        to[part] = malloc(bytes[part]);
        want[part] = malloc(bytes[part]);
        assert_true(from[part] && to[part] && want[part]);
        for (size_t i = 0; i < bytes[part]; i++)
            from[part][i] = (uint8_t)(i * 151 / 256 % 251 + i % 5); /* at most 254 */
    }
    for (uint32_t n = 0; n <= 16; n++) {
        for (size_t part = 0; part < 2; part++) { /* 255: differs from every byte of `from` */
            memset(to[part], 255, bytes[part]);
            memset(want[part], 255, bytes[part]);
        }
        expect_rows(&layout, n, want, from);
        kvi_kv_copy_rows(&layout, n, to[0], to[1], from[0], from[1]);
        for (size_t part = 0; part < 2; part++) {
            assert_memory_equal(to[part], want[part], bytes[part]);
            if (n == 16)
                assert_memory_equal(to[part], from[part], bytes[part]);
        }
    }
    for (size_t part = 0; part < 2; part++) {
        free(from[part]);
        free(to[part]);
        free(want[part]);
    }
    kvi_kv_layout_fini(&layout, &a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_of_the_release),
        cmocka_unit_test(test_layout_tiles_other_geometries),
        cmocka_unit_test(test_layout_refuses_what_it_cannot_hold),
        cmocka_unit_test(test_strips_lie_head_by_head),
        cmocka_unit_test(test_copy_rows_takes_complete_entries_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
