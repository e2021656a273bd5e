/* text: the tokenizer and the token map against golden data of another implementation, against a
 * naive encoder, and on any bytes. */
#include "text/token_map.h"
#include "text/tokenizer.h"

#include "support/prng.h"
#include "support/tokenizer_files.h"

static uint64_t seed;

static size_t from_hex(const char *hex, uint8_t *out)
{
    size_t n = strlen(hex) / 2;

    for (size_t i = 0; i < n; i++) {
        unsigned byte = 0;

        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
    return n;
}

static void check_ids(const kvi_tokenizer *t, const char *hex, uint32_t flags, const json_t *want)
{
    uint8_t text[4096];
    int32_t ids[4096];
    size_t  n = 0;
    size_t  n_ids = 0;

    assert_true(strlen(hex) / 2 <= sizeof text);
    n = from_hex(hex, text);
    n_ids = encode(t, text, n, flags, ids, 4096);
    if (n_ids != json_array_size(want))
        fail_msg("text %s: %zu ids, want %zu", hex, n_ids, json_array_size(want));
    for (size_t i = 0; i < n_ids; i++)
        if (ids[i] != (int32_t)json_integer_value(json_array_get(want, i)))
            fail_msg("text %s: id %zu is %d, want %d", hex, i, (int)ids[i],
                     (int)json_integer_value(json_array_get(want, i)));
    check_decodes(t, ids, n_ids, text, n);
}

static const char *hex_of(const json_t *c)
{
    return json_string_value(json_object_get(c, "text"));
}

/* ------------------------------------------------------------------ golden data */

static void check_golden(const char *path)
{
    kvcsa_allocator a;
    json_t         *golden = read_json(path);
    json_t         *cases = json_object_get(golden, "cases");
    kvi_tokenizer  *t = NULL;

    kvi_allocator_import(NULL, &a, NULL);
    t = open_path(&a, json_string_value(json_object_get(golden, "file")));
    assert_true(json_array_size(cases) > 80);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);

        check_ids(t, hex_of(c), 0, json_object_get(c, "plain"));
        check_ids(t, hex_of(c), KVCSA_TOKENIZE_SPECIAL, json_object_get(c, "special"));
    }
    kvi_tokenizer_destroy(t);
    json_decref(golden);
}

static void test_encode_matches_golden_ids(void **state)
{
    (void)state;
    check_golden("test/golden/tokenizer/t1.json");
    check_golden("test/golden/tokenizer/tiny.json");
    check_golden("test/golden/tokenizer/odd.json");
}

static void test_ignore_merges_matches_golden_ids(void **state)
{
    kvcsa_allocator a;
    kvcsa_error     err;
    json_t         *golden = read_json("test/golden/tokenizer/odd.json");
    json_t         *file = read_json(ODD_FILE);
    json_t         *cases = json_object_get(golden, "ignore_merges");
    kvi_tokenizer  *t = NULL;

    (void)state;
    kvi_allocator_import(NULL, &a, NULL);
    json_object_set_new(json_object_get(file, "model"), "ignore_merges", json_true());
    assert_int_equal(open_json(&a, file, &t, &err), KVCSA_OK);
    assert_true(json_array_size(cases) > 60);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);

        check_ids(t, hex_of(c), 0, json_object_get(c, "ids"));
    }
    kvi_tokenizer_destroy(t);
    json_decref(file);
    json_decref(golden);
}

static void test_split_steps_match_golden_ids(void **state)
{
    kvcsa_allocator a;
    kvcsa_error     err;
    json_t         *golden = read_json("test/golden/tokenizer/odd.json");
    json_t         *file = read_json(ODD_FILE);
    json_t         *cases = json_object_get(golden, "splits");

    (void)state;
    kvi_allocator_import(NULL, &a, NULL);
    assert_true(json_array_size(cases) >= 100);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t  *c = json_array_get(cases, i);
        kvi_tokenizer *t = NULL;

        json_object_set(file, "pre_tokenizer", json_object_get(c, "pre_tokenizer"));
        if (open_json(&a, file, &t, &err) != KVCSA_OK)
            fail_msg("case %zu: %s", i, err.text);
        check_ids(t, hex_of(c), 0, json_object_get(c, "ids"));
        kvi_tokenizer_destroy(t);
    }
    json_decref(file);
    json_decref(golden);
}

static void check_golden_map(const char *path, uint32_t want_size)
{
    kvcsa_allocator a;
    kvcsa_error     err;
    json_t         *golden = read_json(path);
    json_t         *want = json_object_get(golden, "map");
    kvi_tokenizer  *t = NULL;
    uint32_t       *map = NULL;
    uint32_t        n = 0;
    uint32_t        n_compressed = 0;

    kvi_allocator_import(NULL, &a, NULL);
    t = open_path(&a, json_string_value(json_object_get(golden, "file")));
    n = kvi_tokenizer_size(t);
    assert_int_equal(n, json_array_size(want));
    map = malloc(n * sizeof *map);
    assert_non_null(map);
    if (kvi_token_map_build(&a, t, n, map, &n_compressed, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < n; i++)
        if (map[i] != (uint32_t)json_integer_value(json_array_get(want, i)))
            fail_msg("%s: map[%u] is %u, want %lld", path, i, map[i],
                     json_integer_value(json_array_get(want, i)));
    assert_int_equal(n_compressed,
                     json_integer_value(json_object_get(golden, "compressed_vocab_size")));
    assert_int_equal(n_compressed, want_size);
    assert_int_equal(kvi_token_map_build(&a, t, n + 1, map, &n_compressed, &err), KVCSA_ERR_FORMAT);
    assert_int_equal(kvi_token_map_build(&a, t, n - 1, map, &n_compressed, &err), KVCSA_ERR_FORMAT);
    assert_int_equal(n_compressed, 0);
    free(map);
    kvi_tokenizer_destroy(t);
    json_decref(golden);
}

static void test_token_map_matches_golden_maps(void **state)
{
    (void)state;
    check_golden_map("test/golden/tokenizer/t1.json", 426);
    check_golden_map("test/golden/tokenizer/tiny.json", 1281);
    check_golden_map("test/golden/tokenizer/odd.json", 1091);
}

/* The numbers that the reference implementation gives for T1. */
static void test_token_map_known_values(void **state)
{
    static const uint32_t ids[] = {0, 17, 200, 5, 300, 2};
    static const uint32_t want[] = {0, 15, 171, 5, 258, 2};
    kvcsa_allocator       a;
    uint32_t              map[512];
    uint32_t              n = 0;
    kvi_tokenizer        *t = NULL;

    (void)state;
    kvi_allocator_import(NULL, &a, NULL);
    t = open_path(&a, T1_FILE);
    assert_int_equal(kvi_tokenizer_size(t), 512);
    assert_int_equal(kvi_token_map_build(&a, t, 512, map, &n, NULL), KVCSA_OK);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(map[ids[i]], want[i]);
    kvi_tokenizer_destroy(t);
}

static void test_token_map_side_file(void **state)
{
    static const struct {
        const char  *json;
        kvcsa_status st;
    } cases[] = {
        {"{\"vocab_size\":4,\"compressed_vocab_size\":3,\"map\":[0,1,0,2]}", KVCSA_OK},
        {"{\"vocab_size\":4,\"compressed_vocab_size\":3,\"map\":[2,1,0,2],\"more\":1}", KVCSA_OK},
        {"{\"vocab_size\":5,\"compressed_vocab_size\":3,\"map\":[0,1,0,2]}", KVCSA_ERR_FORMAT},
        {"{\"vocab_size\":4,\"compressed_vocab_size\":3,\"map\":[0,1,0]}", KVCSA_ERR_FORMAT},
        {"{\"vocab_size\":4,\"compressed_vocab_size\":3,\"map\":[0,1,0,2,1]}", KVCSA_ERR_FORMAT},
        {"{\"vocab_size\":4,\"compressed_vocab_size\":4,\"map\":[0,1,0,2]}", KVCSA_ERR_FORMAT},
        {"{\"vocab_size\":4,\"compressed_vocab_size\":2,\"map\":[0,1,0,2]}", KVCSA_ERR_FORMAT},
        {"{\"vocab_size\":4,\"compressed_vocab_size\":5,\"map\":[0,1,0,2]}", KVCSA_ERR_FORMAT},
        {"{\"vocab_size\":4,\"compressed_vocab_size\":0,\"map\":[0,1,0,2]}", KVCSA_ERR_FORMAT},
        {"{\"vocab_size\":4,\"compressed_vocab_size\":3,\"map\":[0,1,-1,2]}", KVCSA_ERR_FORMAT},
        {"{\"vocab_size\":4,\"compressed_vocab_size\":3,\"map\":[0,1,0.0,2]}", KVCSA_ERR_FORMAT},
        {"{\"vocab_size\":4,\"compressed_vocab_size\":3,\"map\":{}}", KVCSA_ERR_FORMAT},
        {"{\"vocab_size\":\"4\",\"compressed_vocab_size\":3,\"map\":[0,1,0,2]}", KVCSA_ERR_FORMAT},
        {"[]", KVCSA_ERR_FORMAT},
        {"{\"vocab_size\":4", KVCSA_ERR_FORMAT},
        {"", KVCSA_ERR_FORMAT},
    };
    kvcsa_allocator a;

    (void)state;
    kvi_allocator_import(NULL, &a, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t    map[4] = {9, 9, 9, 9};
        uint32_t    n = 77;
        kvcsa_error err;

        assert_int_equal(kvi_token_map_parse(&a, cases[i].json, strlen(cases[i].json), "map.json",
                                             4, map, &n, &err),
                         cases[i].st);
        assert_int_equal(n, cases[i].st == KVCSA_OK ? 3 : 0);
        if (i == 1)
            assert_int_equal(map[0], 2);
        if (cases[i].st != KVCSA_OK)
            assert_non_null(strstr(err.text, "map.json"));
    }
}

/* ------------------------------------------------------------------ a naive encoder */

typedef struct naive_merge {
    const char *a;
    const char *b; /* NULL: the pair comes again later, and then counts */
} naive_merge;

static naive_merge *read_naive_merges(const json_t *file, size_t *n)
{
    const json_t *list = json_object_get(json_object_get(file, "model"), "merges");
    naive_merge  *m = NULL;

    *n = json_array_size(list);
    m = calloc(*n, sizeof *m);
    assert_non_null(m);
    for (size_t i = 0; i < *n; i++) {
        m[i].a = json_string_value(json_array_get(json_array_get(list, i), 0));
        m[i].b = json_string_value(json_array_get(json_array_get(list, i), 1));
        for (size_t k = 0; k < i; k++)
            if (m[k].b && strcmp(m[k].a, m[i].a) == 0 && strcmp(m[k].b, m[i].b) == 0)
                m[k].b = NULL;
    }
    return m;
}

/* Merge the pair of lowest rank, leftmost first, until there is none: the rule as it is written,
 * over strings. */
static size_t merge_naively(const naive_merge *m, size_t n_merges, const json_t *vocab,
                            const uint8_t *text, size_t n, int32_t *ids)
{
    char   part[64][64];
    size_t n_parts = n;

    assert_true(n <= 64);
    for (size_t i = 0; i < n; i++) { /* texts of this test are printable ASCII */
        part[i][0] = (char)text[i];
        part[i][1] = 0;
    }
    for (size_t rank = 0; rank < n_merges;) {
        bool merged = false;

        for (size_t i = 0; i + 1 < n_parts && m[rank].b && !merged; i++) {
            if (strcmp(part[i], m[rank].a) != 0 || strcmp(part[i + 1], m[rank].b) != 0)
                continue;
            memcpy(part[i] + strlen(part[i]), m[rank].b, strlen(m[rank].b) + 1);
            memmove(part[i + 1], part[i + 2], (n_parts - i - 2) * sizeof part[0]);
            n_parts--;
            merged = true;
        }
        rank = merged ? 0 : rank + 1; /* a merge may make a pair of lower rank */
    }
    for (size_t i = 0; i < n_parts; i++)
        ids[i] = (int32_t)json_integer_value(json_object_get(vocab, part[i]));
    return n_parts;
}

static void test_encode_matches_naive_merging(void **state)
{
    kvcsa_allocator a;
    prng            r;
    size_t          n_merges = 0;
    size_t          n_merged = 0;
    json_t         *file = read_json(ODD_FILE);
    const json_t   *vocab = json_object_get(json_object_get(file, "model"), "vocab");
    naive_merge    *merges = read_naive_merges(file, &n_merges);
    kvi_tokenizer  *t = open_path((kvi_allocator_import(NULL, &a, NULL), &a), ODD_FILE);

    (void)state;
    prng_init(&r, seed);
    for (int i = 0; i < 300; i++) {
        uint8_t      text[40];
        int32_t      want[64];
        int32_t      got[64];
        const size_t n = prng_range(&r, 1, sizeof text);
        size_t       n_want = 0;

        for (size_t k = 0; k < n; k++) /* one piece: no blanks, no digits */
            text[k] = (uint8_t) "abc."[prng_below(&r, 4)];
        n_want = merge_naively(merges, n_merges, vocab, text, n, want);
        assert_int_equal(encode(t, text, n, 0, got, 64), n_want);
        assert_memory_equal(got, want, n_want * sizeof *got);
        n_merged += n - n_want;
    }
    assert_true(n_merged > 1000);
    kvi_tokenizer_destroy(t);
    json_decref(file);
    free(merges);
}

/* ------------------------------------------------------------------ any bytes */

static void test_any_bytes_decode_to_themselves(void **state)
{
    static const char *const files[] = {T1_FILE, ODD_FILE};
    kvcsa_allocator          a;
    prng                     r;

    (void)state;
    kvi_allocator_import(NULL, &a, NULL);
    prng_init(&r, seed + 1);
    for (size_t f = 0; f < 2; f++) {
        kvi_tokenizer *t = open_path(&a, files[f]);

        for (int i = 0; i < 400; i++) {
            uint8_t      text[200];
            int32_t      ids[200];
            const size_t n = prng_below(&r, sizeof text + 1);
            size_t       n_ids = 0;

            prng_fill(&r, text, n);
            for (size_t k = 0; k < n; k++) /* often almost UTF-8, or almost an added token */
                if (i % 4 == 1)
                    text[k] = (uint8_t) "\xE4\xB8\x80\xF0\x9F\x98\x80 a"[prng_below(&r, 9)];
                else if (i % 4 == 2)
                    text[k] = (uint8_t) "<s>xy</\xEF\xBD\x9C"[prng_below(&r, 10)];
            n_ids = encode(t, text, n, (uint32_t)(i & 1), ids, 200);
            check_decodes(t, ids, n_ids, text, n);
        }
        kvi_tokenizer_destroy(t);
    }
}

/* Bytes that are not UTF-8 are tokens of their own and part the text around them. */
static void test_bad_bytes_are_encoded_one_by_one(void **state)
{
    static const uint8_t text[] = "ab\xFF"
                                  "ab\xED\xA0\x80\xC0\xAF\xF4\x90\x80\x80\xE2\x82";
    kvcsa_allocator      a;
    kvi_tokenizer       *t = open_path((kvi_allocator_import(NULL, &a, NULL), &a), T1_FILE);
    int32_t              ab[8];
    int32_t              ids[32];
    const size_t         n_ab = encode(t, "ab", 2, 0, ab, 8);
    const size_t         n = encode(t, text, sizeof text - 1, 0, ids, 32);
    const size_t         n_bad = sizeof text - 1 - 4; /* all but twice "ab" */

    (void)state;
    assert_int_equal(n, 2 * n_ab + n_bad);
    for (size_t i = 0; i < n; i++) {
        const uint8_t *bytes = NULL;
        size_t         len = 0;

        kvi_tokenizer_bytes(t, ids[i], &bytes, &len);
        if (i >= 2 * n_ab + 1 || i == n_ab) {
            assert_int_equal(len, 1);
            assert_true(bytes[0] >= 0x80);
        }
    }
    kvi_tokenizer_destroy(t);
}

static void test_encode_honours_cap(void **state)
{
    kvcsa_allocator a;
    kvcsa_error     err;
    kvi_tokenizer  *t = open_path((kvi_allocator_import(NULL, &a, NULL), &a), T1_FILE);
    const char     *text = "Call me Ishmael. <think>";
    const size_t    len = strlen(text);
    int32_t         all[64];
    int32_t         some[64];
    size_t          n = encode(t, text, len, 1, all, 64);
    size_t          got = 0;

    (void)state;
    assert_true(n > 4 && n < 64);
    for (size_t cap = 0; cap <= n; cap++) {
        memset(some, 0x55, sizeof some);
        assert_int_equal(encode(t, text, len, 1, cap ? some : NULL, cap), n);
        assert_memory_equal(some, all, cap * sizeof *all);
        assert_int_equal(some[cap], 0x55555555);
    }
    assert_int_equal(encode(t, NULL, 0, 0, NULL, 0), 0);
    got = 5;
    assert_int_equal(kvi_tokenizer_encode(t, text, len, 2, all, 64, &got, &err), KVCSA_ERR_ARG);
    assert_int_equal(got, 0);
    assert_int_equal(kvi_tokenizer_encode(t, NULL, 1, 0, all, 64, &got, &err), KVCSA_ERR_ARG);
    assert_int_equal(kvi_tokenizer_encode(t, text, len, 0, NULL, 1, &got, &err), KVCSA_ERR_ARG);
    kvi_tokenizer_destroy(t);
}

/* A million letters in one piece: quadratic work would be 10^12 steps. */
static void test_long_pieces_are_quick(void **state)
{
    const size_t    n = 1000000;
    kvcsa_allocator a;
    kvi_tokenizer  *t = open_path((kvi_allocator_import(NULL, &a, NULL), &a), ODD_FILE);
    char           *text = malloc(n);
    int32_t        *ids = malloc(n * sizeof *ids);

    (void)state;
    assert_true(text && ids);
    for (int kind = 0; kind < 2; kind++) {
        for (size_t i = 0; i < n; i++)
            text[i] = kind == 0 ? 'a' : "abc"[i % 3];
        check_decodes(t, ids, encode(t, text, n, 0, ids, n), (const uint8_t *)text, n);
    }
    free(text);
    free(ids);
    kvi_tokenizer_destroy(t);
}

/* ------------------------------------------------------------------ look-ups */

static void test_tokens_are_found_by_id_and_name(void **state)
{
    kvcsa_allocator a;
    kvi_tokenizer  *t = open_path((kvi_allocator_import(NULL, &a, NULL), &a), ODD_FILE);
    const int32_t   size = (int32_t)kvi_tokenizer_size(t);
    const int32_t   s = kvi_tokenizer_find_added(t, "<s>");
    const uint8_t  *bytes = NULL;
    const char     *raw = NULL;
    size_t          n = 0;

    (void)state;
    assert_int_equal(s, size - 6);
    assert_int_equal(kvi_tokenizer_find_added(t, "<s>xy"), s + 2);
    assert_int_equal(kvi_tokenizer_find_added(t, "<s>x"), s + 1);
    assert_int_equal(kvi_tokenizer_find_added(t, "<s"), -1);
    assert_int_equal(kvi_tokenizer_find_added(t, ""), -1);
    assert_int_equal(kvi_tokenizer_find_added(t, "a"), -1); /* in the vocabulary, not added */
    assert_true(kvi_tokenizer_is_special(t, s));
    assert_false(kvi_tokenizer_is_special(t, s + 1));
    assert_false(kvi_tokenizer_is_special(t, 'a'));
    assert_false(kvi_tokenizer_is_special(t, size));
    assert_false(kvi_tokenizer_is_special(t, -1));

    assert_true(kvi_tokenizer_bytes(t, s + 4, &bytes, &n));
    assert_int_equal(n, 9);
    assert_memory_equal(bytes,
                        "\xEF\xBD\x9C"
                        "end\xEF\xBD\x9C",
                        9);
    assert_true(kvi_tokenizer_bytes(t, ' ', &bytes, &n));
    assert_true(n == 1 && bytes[0] == ' ');
    assert_true(kvi_tokenizer_raw(t, ' ', &raw, &n));
    assert_true(n == 2 && memcmp(raw, "\xC4\xA0", 2) == 0); /* U+0120 */
    assert_true(kvi_tokenizer_bytes(t, s - 1, &bytes, &n)); /* a gap */
    assert_int_equal(n, 0);
    assert_true(kvi_tokenizer_bytes(t, s - 4, &bytes, &n)); /* not of the byte alphabet */
    assert_true(n == 6 && memcmp(bytes, "x\xE1\x88\x80 y", 6) == 0);
    assert_false(kvi_tokenizer_bytes(t, size, &bytes, &n));
    assert_false(kvi_tokenizer_bytes(t, -1, &bytes, &n));
    assert_false(kvi_tokenizer_raw(t, INT32_MIN, &raw, &n));
    kvi_tokenizer_destroy(t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_matches_golden_ids),
        cmocka_unit_test(test_ignore_merges_matches_golden_ids),
        cmocka_unit_test(test_split_steps_match_golden_ids),
        cmocka_unit_test(test_token_map_matches_golden_maps),
        cmocka_unit_test(test_token_map_known_values),
        cmocka_unit_test(test_token_map_side_file),
        cmocka_unit_test(test_encode_matches_naive_merging),
        cmocka_unit_test(test_any_bytes_decode_to_themselves),
        cmocka_unit_test(test_bad_bytes_are_encoded_one_by_one),
        cmocka_unit_test(test_encode_honours_cap),
        cmocka_unit_test(test_long_pieces_are_quick),
        cmocka_unit_test(test_tokens_are_found_by_id_and_name),
    };

    seed = prng_seed(argc, argv, 20261129);
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
