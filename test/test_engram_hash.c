/* Engram's derived numbers: multipliers, buckets, rows. Expected values: docs/formats.md;
 * multipliers from numpy 2.4, default_rng(10007 * layer).integers(0, bound). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "model/config.h"
#include "model/engram_hash.h"
#include "support/checkpoint.h"
#include "support/config_file.h"
#include "support/fault_alloc.h"

static void test_engram_multipliers_match_numpy(void **state)
{
    static const struct {
        uint32_t layer;
        uint32_t compressed;
        uint64_t want[8];
    } cases[] = {
        {1,
         426,
         {17825417045574255u, 1125805168635265u, 8364591195936535u, 17210218881284095u,
          9294444289677365u, 16376558054922621u, 4816163642044217u, 488051601339371u}},
        {4,
         426,
         {19134576491454649u, 1171842458098239u, 17132554235986099u, 4409096901926451u,
          12189654017413481u, 20313592233381349u, 14847771935393673u, 8025248749079617u}},
        {1,
         1281,
         {5927890446069191u, 374389540857629u, 2781667329796225u, 5723304639677615u,
          3090892480407929u, 5446068486648741u, 1601628190094329u, 162302874450095u}},
        {0,
         99092,
         {59287678272599u, 25111444230055u, 3813769577005u, 1538373747317u, 75698280210773u,
          84958263713987u, 56464976494235u, 67900720356451u}},
        {1, 99092, {76632096046245u, 4839876093313u, 35959672319349u, 73987337458391u}},
        {14,
         99092,
         {67716810739261u, 51510806800915u, 30921347202721u, 82619226485591u, 50367757958537u,
          37517169465141u, 74292993626237u, 74166606112587u}},
        {511,
         7,
         {1049005011524105003u, 707716819984351375u, 491979107487593751u, 305111453810874897u,
          283961924210385371u, 230197853769144803u, 1054079768829191025u, 4256802988597547u}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t out[8] = {0};

        kvi_engram_multipliers(cases[i].layer, cases[i].compressed, cases[i].want[4] ? 8 : 4, out);
        assert_memory_equal(out, cases[i].want, sizeof out);
    }
}

static void test_engram_hash_init_derives_buckets(void **state)
{
    static const uint64_t t1[] = {211, 223, 227, 229, 233, 239, 241, 251};
    static const uint64_t release[] = {
        16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
        16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321,
        16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463,
        16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627,
        16000667, 16000669, 16000693, 16000697, 16000711, 16000729, 16000759, 16000769,
        16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889,
    };
    kvcsa_allocator a = libc_allocator();
    kvi_config      c;
    kvi_engram_hash h;

    (void)state;
    load_config(T1_CONFIG, &c);
    assert_int_equal(kvi_engram_hash_init(&h, &c, 2, &a, NULL), KVCSA_OK);
    assert_int_equal(h.n_columns, 4);
    assert_memory_equal(h.primes, t1, sizeof t1);
    assert_int_equal(h.offsets[3], 211 + 223 + 227);
    assert_int_equal(h.offsets[4], 0); /* offsets count from the start of each layer's table */
    kvi_engram_hash_fini(&h, &c, &a);

    load_config(RELEASE_CONFIG, &c);
    assert_int_equal(kvi_engram_hash_init(&h, &c, 2, &a, NULL), KVCSA_OK);
    assert_int_equal(h.n_columns, 24);
    assert_memory_equal(h.primes, release, sizeof release);
    assert_int_equal(h.offsets[23] + h.primes[23], 384006168);
    assert_int_equal(h.offsets[47] + h.primes[47], 384016682);
    kvi_engram_hash_fini(&h, &c, &a);
}

static void test_engram_hash_init_refuses_other_rows(void **state)
{
    fault_alloc     fa;
    kvcsa_error     err;
    kvi_config      c;
    kvi_engram_hash h;

    (void)state;
    fault_alloc_init(&fa);
    load_config(T1_CONFIG, &c);
    c.engram_rows[1]++;
    assert_int_equal(kvi_engram_hash_init(&h, &c, 2, &fa.hook, &err), KVCSA_ERR_FORMAT);
    assert_non_null(strstr(err.text, "is 965 for layer 4"));
    assert_non_null(strstr(err.text, "add up to 964"));
    assert_true(fault_alloc_is_clean(&fa));
    c.engram_rows[1]--;
    for (uint64_t n = 1; n <= 2; n++) {
        fault_alloc_fail_at(&fa, n);
        assert_int_equal(kvi_engram_hash_init(&h, &c, 2, &fa.hook, &err), KVCSA_ERR_NOMEM);
        assert_true(fault_alloc_is_clean(&fa));
    }
}

/* The search must end soon whatever the file says. */
static void test_engram_hash_init_handles_largest_search(void **state)
{
    kvcsa_allocator a = libc_allocator();
    kvi_config      c;
    kvi_engram_hash h;

    (void)state;
    load_config(T1_CONFIG, &c);
    c.n_engram_layers = 4;
    c.engram_ngram = 2;
    c.engram_heads = 1024;
    c.engram_vocab = UINT32_MAX;
    for (uint32_t i = 0; i < 4; i++)
        c.engram_layers[i] = i;
    assert_int_equal(kvi_engram_hash_init(&h, &c, 2, &a, NULL), KVCSA_ERR_FORMAT);
}

/* History of a position, newest first. */
static uint32_t history_of(const uint32_t *ids, uint32_t pos, uint32_t ngram, uint32_t *out)
{
    const uint32_t n = pos + 1 < ngram ? pos + 1 : ngram;

    for (uint32_t i = 0; i < n; i++)
        out[i] = ids[pos - i];
    return n;
}

/* Both layers of a tiny geometry at six positions. */
static void check_six(const kvi_config *c, const uint32_t *ids, const uint64_t want[2][6][4])
{
    kvcsa_allocator a = libc_allocator();
    kvi_engram_hash h;

    assert_int_equal(kvi_engram_hash_init(&h, c, 2, &a, NULL), KVCSA_OK);
    for (uint32_t layer = 0; layer < 2; layer++)
        for (uint32_t p = 0; p < 6; p++) {
            uint32_t       history[KVI_MAX_NGRAM];
            const uint32_t n = history_of(ids, p, 3, history);
            uint64_t       rows[4];

            kvi_engram_rows(&h, layer, history, n, rows);
            assert_memory_equal(rows, want[layer][p], sizeof rows);
        }
    kvi_engram_hash_fini(&h, c, &a);
}

static void test_engram_rows_match_golden(void **state)
{
    static const uint32_t ids[] = {0, 15, 171, 5, 258, 2};
    static const uint64_t want[2][6][4] = {
        {{174, 281, 581, 772},
         {177, 353, 562, 682},
         {123, 245, 607, 867},
         {47, 215, 567, 741},
         {162, 361, 566, 790},
         {42, 236, 614, 872}},
        {{147, 469, 518, 804},
         {192, 283, 646, 926},
         {221, 284, 683, 741},
         {68, 462, 625, 880},
         {52, 462, 704, 930},
         {97, 273, 576, 756}},
    };
    kvi_config c;

    (void)state;
    load_config(T1_CONFIG, &c);
    check_six(&c, ids, want);
}

/* The tiny geometry of docs/formats.md with a gap in the text (id DEAD at position 3), and the
 * release's numbers. */
static void test_engram_rows_stop_at_gap(void **state)
{
    static const uint32_t small_ids[] = {0, 17, 399, KVI_ENGRAM_DEAD, 5, 2};
    static const uint64_t small[2][6][4] = {
        {{134, 356, 505, 712},
         {30, 227, 442, 857},
         {179, 237, 457, 759},
         {67, 285, 475, 684},
         {181, 374, 434, 791},
         {91, 386, 602, 662}},
        {{147, 263, 560, 846},
         {158, 387, 608, 798},
         {48, 327, 662, 931},
         {29, 241, 657, 726},
         {67, 251, 504, 878},
         {85, 437, 604, 859}},
    };
    static const uint32_t ids[] = {0, 100, 200, 300, KVI_ENGRAM_DEAD, 400};
    static const struct {
        uint32_t pos;
        uint32_t layer;
        uint32_t col;
        uint64_t row;
    } large[] = {
        {0, 0, 0, 5702652},    {0, 0, 1, 24393184}, {0, 0, 2, 39183301}, {0, 0, 8, 131476717},
        {0, 0, 23, 380066193}, {0, 1, 0, 14361964}, {0, 1, 1, 29977809}, {0, 1, 23, 372375971},
        {3, 0, 0, 10182112},   {3, 0, 1, 20531021}, {3, 0, 2, 33112626}, {3, 0, 8, 141757364},
        {3, 0, 23, 370886073}, {3, 1, 0, 2374165},  {3, 1, 1, 31116184}, {3, 1, 23, 382915207},
        {5, 0, 0, 15507829},   {5, 0, 1, 16511126}, {5, 0, 2, 39880927}, {5, 0, 8, 136244361},
        {5, 0, 23, 372621191}, {5, 1, 0, 11232881}, {5, 1, 1, 29292528}, {5, 1, 23, 383226538},
    };
    kvcsa_allocator a = libc_allocator();
    uint32_t        history[KVI_MAX_NGRAM];
    uint64_t        rows[24];
    kvi_config      c;
    kvi_engram_hash h;

    (void)state;
    load_config(T1_CONFIG, &c);
    c.engram_compressed_vocab = 400;
    check_six(&c, small_ids, small);

    load_config(RELEASE_CONFIG, &c);
    assert_int_equal(kvi_engram_hash_init(&h, &c, 2, &a, NULL), KVCSA_OK);
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        kvi_engram_rows(&h, large[i].layer, history, history_of(ids, large[i].pos, 4, history),
                        rows);
        assert_int_equal(rows[large[i].col], large[i].row);
    }
    kvi_engram_hash_fini(&h, &c, &a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engram_multipliers_match_numpy),
        cmocka_unit_test(test_engram_hash_init_derives_buckets),
        cmocka_unit_test(test_engram_hash_init_refuses_other_rows),
        cmocka_unit_test(test_engram_hash_init_handles_largest_search),
        cmocka_unit_test(test_engram_rows_match_golden),
        cmocka_unit_test(test_engram_rows_stop_at_gap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
