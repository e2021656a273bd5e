/* text: tokenizer files that are wrong or hostile, and failing allocations. */
#include "text/token_map.h"
#include "text/tokenizer.h"

#include "support/fault_alloc.h"
#include "support/prng.h"
#include "support/tokenizer_files.h"

static uint64_t seed;

/* ------------------------------------------------------------------ files that are wrong */

typedef struct edit { /* set (json NULL = delete) the value at a path of up to three keys */
    const char  *path[3];
    const char  *json;
    kvcsa_status st;
    const char  *says;
} edit;

static void apply_edit(json_t *file, const edit *e)
{
    json_t *at = file;
    size_t  last = 0;

    while (last < 2 && e->path[last + 1])
        at = json_object_get(at, e->path[last++]);
    assert_true(json_is_object(at));
    if (!e->json) {
        assert_int_equal(json_object_del(at, e->path[last]), 0);
        return;
    }
    json_t *value = json_loads(e->json, JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    assert_int_equal(json_object_set_new(at, e->path[last], value), 0);
}

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SPLIT(rx)                                      \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" rx \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define STEPS(list)     "{\"type\":\"Sequence\",\"pretokenizers\":[" list "]}"
#define ADDED(id, text) "{\"id\":" id ",\"content\":\"" text "\",\"special\":true}"

static const edit edits[] = {
    {{"model"}, NULL, KVCSA_ERR_FORMAT, "model.vocab"},
    {{"model"}, "[]", KVCSA_ERR_FORMAT, "model.vocab"},
    {{"model", "vocab"}, "[]", KVCSA_ERR_FORMAT, "model.vocab"},
    {{"model", "vocab"}, "{}", KVCSA_ERR_FORMAT, "byte"},
    {{"model", "vocab", "a"}, NULL, KVCSA_ERR_FORMAT, "byte 97"},
    {{"model", "vocab", "\xC4\x80"}, NULL, KVCSA_ERR_FORMAT, "byte 0"},
    {{"model", "vocab", "\xC5\x83"}, NULL, KVCSA_ERR_FORMAT, "byte 173"},
    {{"model", "vocab", "zz"}, "-1", KVCSA_ERR_FORMAT, "-1"},
    {{"model", "vocab", "zz"}, "16777216", KVCSA_ERR_FORMAT, "16777216"},
    {{"model", "vocab", "zz"}, "16777215", KVCSA_ERR_FORMAT, "too large"},
    {{"model", "vocab", "zz"}, "9223372036854775807", KVCSA_ERR_FORMAT, "9223372036854775807"},
    {{"model", "vocab", "zz"}, "17", KVCSA_ERR_FORMAT, "taken"},
    {{"model", "vocab", "zz"}, "1.0", KVCSA_ERR_FORMAT, "not an integer"},
    {{"model", "vocab", "zz"}, "\"1\"", KVCSA_ERR_FORMAT, "not an integer"},
    {{"model", "vocab", "zz"}, "600", KVCSA_OK, NULL},
    {{"model", "vocab", ""}, "600", KVCSA_OK, NULL},
    {{"model", "type"}, "\"WordPiece\"", KVCSA_ERR_UNSUPPORTED, "WordPiece"},
    {{"model", "type"}, NULL, KVCSA_ERR_UNSUPPORTED, "model.type"},
    {{"model", "dropout"}, "0.1", KVCSA_ERR_UNSUPPORTED, "dropout"},
    {{"model", "dropout"}, "0.0", KVCSA_OK, NULL},
    {{"model", "unk_token"}, "\"<unk>\"", KVCSA_ERR_UNSUPPORTED, "unk_token"},
    {{"model", "continuing_subword_prefix"}, "\"##\"", KVCSA_ERR_UNSUPPORTED, "continuing"},
    {{"model", "continuing_subword_prefix"}, "\"\"", KVCSA_OK, NULL},
    {{"model", "end_of_word_suffix"}, "\"</w>\"", KVCSA_ERR_UNSUPPORTED, "end_of_word"},
    {{"model", "byte_fallback"}, "true", KVCSA_ERR_UNSUPPORTED, "byte_fallback"},
    {{"model", "ignore_merges"}, "1", KVCSA_ERR_FORMAT, "ignore_merges"},
    {{"model", "merges"}, NULL, KVCSA_ERR_FORMAT, "merges"},
    {{"model", "merges"}, "{}", KVCSA_ERR_FORMAT, "merges"},
    {{"model", "merges"}, "[]", KVCSA_OK, NULL},
    {{"model", "merges"}, "[1]", KVCSA_ERR_FORMAT, "merges[0]"},
    {{"model", "merges"}, "[\"a\"]", KVCSA_ERR_FORMAT, "merges[0]"},
    {{"model", "merges"}, "[\"a b c\"]", KVCSA_ERR_FORMAT, "merges[0]"},
    {{"model", "merges"}, "[\"a  b\"]", KVCSA_ERR_FORMAT, "merges[0]"},
    {{"model", "merges"}, "[\" a\"]", KVCSA_ERR_FORMAT, "merges[0]"},
    {{"model", "merges"}, "[\"a \"]", KVCSA_ERR_FORMAT, "merges[0]"},
    {{"model", "merges"}, "[[\"\",\"a\"]]", KVCSA_ERR_FORMAT, "merges[0]"},
    {{"model", "merges"}, "[[\"a\"]]", KVCSA_ERR_FORMAT, "merges[0]"},
    {{"model", "merges"}, "[[\"a\",\"b\",\"c\"]]", KVCSA_ERR_FORMAT, "merges[0]"},
    {{"model", "merges"}, "[[\"a\",1]]", KVCSA_ERR_FORMAT, "merges[0]"},
    {{"model", "merges"}, "[\"a \xC4\xA0\"]", KVCSA_ERR_FORMAT, "not in model.vocab"},
    {{"model", "merges"}, "[\"\xE4\xB8\x80 a\"]", KVCSA_ERR_FORMAT, "not in model.vocab"},
    {{"model", "merges"}, "[\"\xC4\xA0 t\",[\"\xC4\xA0\",\"a\"],[\"e\",\"r\"]]", KVCSA_OK, NULL},
    {{"normalizer"}, "{\"type\":\"NFC\"}", KVCSA_ERR_UNSUPPORTED, "normalizer"},
    {{"normalizer"},
     "{\"type\":\"Sequence\",\"normalizers\":[{}]}",
     KVCSA_ERR_UNSUPPORTED,
     "normalizer"},
    {{"normalizer"}, "{\"type\":\"Sequence\",\"normalizers\":[]}", KVCSA_OK, NULL},
    {{"normalizer"}, NULL, KVCSA_OK, NULL},
    {{"decoder"}, "{\"type\":\"WordPiece\"}", KVCSA_ERR_UNSUPPORTED, "decoder"},
    {{"decoder"}, "null", KVCSA_OK, NULL},
    {{"added_tokens"}, "{}", KVCSA_ERR_FORMAT, "added_tokens"},
    {{"added_tokens"}, "null", KVCSA_OK, NULL},
    {{"added_tokens"}, "[1]", KVCSA_ERR_FORMAT, "added_tokens[0]"},
    {{"added_tokens"}, "[" ADDED("1", "") "]", KVCSA_ERR_FORMAT, "limit 1"},
    {{"added_tokens"}, "[" ADDED("-5", "x!") "]", KVCSA_ERR_FORMAT, "-5"},
    {{"added_tokens"}, "[" ADDED("null", "x!") "]", KVCSA_ERR_FORMAT, "not an integer"},
    {{"added_tokens"}, "[" ADDED("1", "x!") "," ADDED("1", "y!") "]", KVCSA_ERR_FORMAT, "twice"},
    {{"added_tokens"},
     "[" ADDED("1", "x!") "," ADDED("2", "x!") "]",
     KVCSA_ERR_FORMAT,
     "same content"},
    {{"added_tokens"}, "[" ADDED("17", "x!") "]", KVCSA_ERR_FORMAT, "another text"},
    {{"added_tokens"}, "[" ADDED("1", "a") "]", KVCSA_ERR_FORMAT, "in model.vocab"},
    {{"added_tokens"}, "[" ADDED("1", "x!") "]", KVCSA_OK, NULL},
    {{"added_tokens"},
     "[{\"id\":1,\"content\":\"x!\",\"lstrip\":true}]",
     KVCSA_ERR_UNSUPPORTED,
     "lstrip"},
    {{"pre_tokenizer"}, NULL, KVCSA_ERR_UNSUPPORTED, "pre_tokenizer"},
    {{"pre_tokenizer"}, "{\"type\":\"Whitespace\"}", KVCSA_ERR_UNSUPPORTED, "Whitespace"},
    {{"pre_tokenizer"}, BYTE_LEVEL, KVCSA_OK, NULL},
    {{"pre_tokenizer"}, STEPS(""), KVCSA_ERR_UNSUPPORTED, "ByteLevel"},
    {{"pre_tokenizer"}, STEPS(SPLIT("a")), KVCSA_ERR_UNSUPPORTED, "step 0 of 1"},
    {{"pre_tokenizer"}, STEPS(BYTE_LEVEL "," SPLIT("a")), KVCSA_ERR_UNSUPPORTED, "step 0 of 2"},
    {{"pre_tokenizer"}, STEPS("1," BYTE_LEVEL), KVCSA_ERR_UNSUPPORTED, "step 0 of 2"},
    {{"pre_tokenizer"}, STEPS(SPLIT("(") "," BYTE_LEVEL), KVCSA_ERR_FORMAT, "regular expression"},
    {{"pre_tokenizer"}, STEPS(SPLIT("") "," BYTE_LEVEL), KVCSA_ERR_FORMAT, "0 bytes"},
    {{"pre_tokenizer"},
     STEPS(SPLIT("\\\\C") "," BYTE_LEVEL),
     KVCSA_ERR_FORMAT,
     "regular expression"},
    {{"pre_tokenizer"},
     STEPS(SPLIT("((a{999}){999}){999}") "," BYTE_LEVEL),
     KVCSA_ERR_FORMAT,
     "large"},
    {{"pre_tokenizer"}, STEPS("{\"type\":\"Split\"}," BYTE_LEVEL), KVCSA_ERR_FORMAT, "pattern"},
    {{"pre_tokenizer"},
     STEPS(
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removed\"}," BYTE_LEVEL),
     KVCSA_ERR_UNSUPPORTED,
     "Isolated"},
    {{"pre_tokenizer"},
     STEPS("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Isolated\",\"invert\":"
           "true}," BYTE_LEVEL),
     KVCSA_ERR_UNSUPPORTED,
     "invert"},
    {{"pre_tokenizer"},
     "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}",
     KVCSA_ERR_UNSUPPORTED,
     "prefix"},
    {{"pre_tokenizer"}, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", KVCSA_OK, NULL},
};

static void test_open_refuses_wrong_files(void **state)
{
    fault_alloc fa;

    (void)state;
    fault_alloc_init(&fa);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        json_t        *file = read_json(T1_FILE);
        kvi_tokenizer *t = NULL;
        kvcsa_error    err;
        kvcsa_status   st = 0;

        apply_edit(file, &edits[i]);
        st = open_json(&fa.hook, file, &t, &err);
        if (st != edits[i].st || (st != KVCSA_OK && !strstr(err.text, edits[i].says)))
            fail_msg("edit %zu: status %d, text \"%s\"", i, (int)st, err.text);
        assert_true((t != NULL) == (st == KVCSA_OK));
        if (st != KVCSA_OK)
            assert_non_null(strstr(err.text, "tokenizer.json"));
        kvi_tokenizer_destroy(t);
        assert_true(fault_alloc_is_clean(&fa));
        json_decref(file);
    }
}

static void test_open_refuses_what_is_not_json(void **state)
{
    static const char *const texts[] = {"",
                                        "{",
                                        "null",
                                        "[]",
                                        "{}",
                                        "{\"model\":1}",
                                        "\xFF",
                                        "{\"a\":1,\"a\":2}",
                                        "{} x",
                                        "{\"model\":{\"vocab\":{\"\xC3\":1}}}",
                                        "{\"model\":{\"vocab\":{\"a\\u0000\":1}}}"};
    fault_alloc              fa;
    kvi_tokenizer           *t = NULL;
    kvcsa_error              err;
    char                    *deep = malloc(200000);
    size_t                   n = 0;
    char                    *json = read_file(T1_FILE, &n);

    (void)state;
    fault_alloc_init(&fa);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_int_equal(open_bytes(&fa.hook, texts[i], strlen(texts[i]), &t, &err),
                         KVCSA_ERR_FORMAT);
    assert_non_null(deep);
    memset(deep, '[', 200000);
    assert_int_equal(open_bytes(&fa.hook, deep, 200000, &t, &err), KVCSA_ERR_FORMAT);
    for (size_t cut = 0; cut + 1 < n; cut += 97)
        assert_int_equal(open_bytes(&fa.hook, json, cut, &t, &err), KVCSA_ERR_FORMAT);
    assert_null(t);
    assert_true(fault_alloc_is_clean(&fa));
    free(deep);
    free(json);
}

/* Bytes changed at random: whatever opens must still encode. */
static void test_open_survives_changed_bytes(void **state)
{
    fault_alloc fa;
    prng        r;
    size_t      n = 0;
    char       *good = read_file(T1_FILE, &n);
    char       *bad = malloc(n);
    int         n_open = 0;

    (void)state;
    assert_non_null(bad);
    fault_alloc_init(&fa);
    prng_init(&r, seed + 2);
    for (int i = 0; i < 300; i++) {
        kvi_tokenizer *t = NULL;
        kvcsa_error    err;
        int32_t        ids[64];
        size_t         n_ids = 0;

        memcpy(bad, good, n);
        for (uint64_t k = prng_range(&r, 1, 3); k > 0; k--)
            bad[prng_below(&r, n)] =
                (char)(prng_below(&r, 4) ? good[prng_below(&r, n)] : (char)prng_u32(&r));
        if (open_bytes(&fa.hook, bad, n, &t, &err) == KVCSA_OK) {
            n_open++;
            if (kvi_tokenizer_encode(t, "the other <think>", 17, 1, ids, 64, &n_ids, &err) ==
                KVCSA_OK)
                check_decodes(t, ids, n_ids, (const uint8_t *)"the other <think>", 17);
        }
        kvi_tokenizer_destroy(t);
        assert_true(fault_alloc_is_clean(&fa));
    }
    assert_true(n_open > 0);
    free(good);
    free(bad);
}

static kvi_tokenizer *open_with_regex(const kvcsa_allocator *a, const char *steps)
{
    json_t        *file = read_json(T1_FILE);
    kvi_tokenizer *t = NULL;
    kvcsa_error    err;
    const edit     e = {{"pre_tokenizer"}, steps, KVCSA_OK, NULL};

    apply_edit(file, &e);
    if (open_json(a, file, &t, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    json_decref(file);
    return t;
}

static void test_hostile_expressions_end_in_an_error(void **state)
{
    static const char *const steps[] = {
        STEPS(SPLIT("(?:a|a)*[bc]$") "," BYTE_LEVEL), /* exponential */
        STEPS(SPLIT("(?:(?:a+)+)+[bc]$") "," BYTE_LEVEL),
        STEPS(SPLIT("(?:(a|aa)+)+$") "," BYTE_LEVEL),
        STEPS(SPLIT("(?:a(?R)?){2,}b|(?R)") "," BYTE_LEVEL), /* endless recursion */
    };
    fault_alloc fa;
    char        text[3001];

    (void)state;
    fault_alloc_init(&fa);
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'c';
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        kvi_tokenizer *t = open_with_regex(&fa.hook, steps[i]);
        int32_t        ids[4];
        size_t         n = 3;
        kvcsa_error    err;

        text[sizeof text - 1] = 'd';
        if (kvi_tokenizer_encode(t, text, sizeof text, 0, ids, 4, &n, &err) !=
            KVCSA_ERR_UNSUPPORTED)
            fail_msg("expression %zu was not given up", i);
        assert_int_equal(n, 0);
        assert_non_null(strstr(err.text, "pre_tokenizer step 0"));
        kvi_tokenizer_destroy(t);
        assert_true(fault_alloc_is_clean(&fa));
    }
}

/* The expressions of the release on what makes them backtrack most. */
static void test_long_runs_do_not_meet_the_limit(void **state)
{
    static const char *const runs[] = {" ", "\n",        "!",   "\t \n", "\xE4\xB8\x80",
                                       "1", "e\xCC\x81", "\xFF"};
    const size_t             n = 300000;
    kvcsa_allocator          a;
    kvi_tokenizer           *t = open_path((kvi_allocator_import(NULL, &a, NULL), &a), T1_FILE);
    char                    *text = malloc(n);
    int32_t                 *ids = malloc(n * sizeof *ids);

    (void)state;
    assert_true(text && ids);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        for (size_t k = 0; k < n; k++)
            text[k] = runs[i][k % strlen(runs[i])];
        text[n - 1] = 'x';
        check_decodes(t, ids, encode(t, text, n, 0, ids, n), (const uint8_t *)text, n);
    }
    free(text);
    free(ids);
    kvi_tokenizer_destroy(t);
}

/* ------------------------------------------------------------------ out of memory */

static void test_every_failing_allocation_is_survived(void **state)
{
    const char *side = "{\"vocab_size\":1,\"compressed_vocab_size\":1,\"map\":[0]}";
    fault_alloc fa;
    size_t      n = 0;
    char       *json = read_file(ODD_FILE, &n);
    uint64_t    at = 1;

    (void)state;
    fault_alloc_init(&fa);
    for (;; at++) {
        kvi_tokenizer *t = NULL;
        kvcsa_error    err;
        uint32_t       map[4096];
        uint32_t       n_map = 0;
        int32_t        ids[64];
        size_t         n_ids = 0;
        kvcsa_status   st = 0;

        fault_alloc_fail_at(&fa, at);
        st = open_bytes(&fa.hook, json, n, &t, &err);
        if (st == KVCSA_OK)
            st = kvi_tokenizer_encode(t, "abc abc <s>", 11, 1, ids, 64, &n_ids, &err);
        if (st == KVCSA_OK)
            st = kvi_token_map_build(&fa.hook, t, kvi_tokenizer_size(t), map, &n_map, &err);
        if (st == KVCSA_OK)
            st = kvi_token_map_parse(&fa.hook, side, strlen(side), "m", 1, map, &n_map, &err);
        kvi_tokenizer_destroy(t);
        assert_true(fault_alloc_is_clean(&fa));
        if (!fault_alloc_hit(&fa)) {
            assert_int_equal(st, KVCSA_OK);
            break;
        }
        if (st == KVCSA_OK) /* only machine code for an expression may be gone without */
            continue;
        if (st != KVCSA_ERR_NOMEM)
            fail_msg("allocation %u: status %d: %s", (unsigned)at, (int)st, err.text);
        assert_int_equal(err.status, KVCSA_ERR_NOMEM);
    }
    assert_true(at > 15);
    free(json);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_refuses_wrong_files),
        cmocka_unit_test(test_open_refuses_what_is_not_json),
        cmocka_unit_test(test_open_survives_changed_bytes),
        cmocka_unit_test(test_hostile_expressions_end_in_an_error),
        cmocka_unit_test(test_long_runs_do_not_meet_the_limit),
        cmocka_unit_test(test_every_failing_allocation_is_survived),
    };

    seed = prng_seed(argc, argv, 20261128);
    return cmocka_run_group_tests_name("text_file", tests, NULL, NULL);
}
