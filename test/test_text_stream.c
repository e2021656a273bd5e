/* text: the stream of text (characters, stop strings) and the chat format. */
#include "text/prompt.h"
#include "text/text_stream.h"

#include "base/alloc.h"
#include "base/status.h"

#include "support/fault_alloc.h"
#include "support/prng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define T1_FILE "test/data/t1/tokenizer.json"
#define BAD     "\xEF\xBF\xBD" /* U+FFFD */
#define BAR     "\xEF\xBD\x9C"

static uint64_t seed;

typedef struct fixture {
    fault_alloc    fa;
    kvi_tokenizer *t;
    int32_t        byte[256]; /* the token of each byte */
    int32_t        eos;
} fixture;

static void set_up(fixture *f)
{
    static char json[65536];
    FILE       *file = fopen(T1_FILE, "rb");
    size_t      n = 0;
    kvcsa_error err;

    assert_non_null(file);
    n = fread(json, 1, sizeof json, file);
    fclose(file);
    assert_true(n > 0 && n < sizeof json);
    memset(f, 0, sizeof *f);
    fault_alloc_init(&f->fa);
    if (kvi_tokenizer_open(&f->fa.hook, json, n, T1_FILE, &f->t, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < 256; i++) {
        const char one = (char)i;
        size_t     got = 0;

        assert_int_equal(kvi_tokenizer_encode(f->t, &one, 1, 0, &f->byte[i], 1, &got, NULL),
                         KVCSA_OK);
        assert_int_equal(got, 1);
    }
    f->eos =
        kvi_tokenizer_find_added(f->t, "<" BAR "end\xE2\x96\x81of\xE2\x96\x81sentence" BAR ">");
    assert_true(f->eos >= 0 && kvi_tokenizer_is_special(f->t, f->eos));
}

static void tear_down(fixture *f)
{
    kvi_tokenizer_destroy(f->t);
    assert_true(fault_alloc_is_clean(&f->fa));
}

/* ------------------------------------------------------------------ stream */

static kvi_text_stream *make_stream(fixture *f, const char *const *stops, size_t n_stops)
{
    kvi_text_stream *s = NULL;
    kvcsa_error      err;

    if (kvi_text_stream_create(&f->fa.hook, f->t, stops, n_stops, &s, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    return s;
}

/* Push one byte, -1 = a special token, -2 = finish; the text and the stop index must be these. */
static void check_step(fixture *f, kvi_text_stream *s, int byte, const char *want,
                       int32_t want_stop)
{
    const char *text = NULL;
    size_t      n = 99;
    int32_t     stopped = -1;

    if (byte == -2)
        assert_int_equal(kvi_text_stream_finish(s, &text, &n, NULL), KVCSA_OK);
    else
        assert_int_equal(
            kvi_text_stream_push(s, byte == -1 ? f->eos : f->byte[byte], &text, &n, &stopped, NULL),
            KVCSA_OK);
    assert_int_equal(n, strlen(want));
    assert_string_equal(text, want);
    assert_int_equal(stopped, want_stop);
}

typedef struct result {
    char    text[512];
    size_t  n;
    int32_t stopped;
} result;

/* Everything that comes out for these bytes; what the first `n` pushes gave never changes later. */
static result run_bytes(fixture *f, kvi_text_stream *s, const uint8_t *bytes, size_t n)
{
    result      r = {.stopped = -1};
    const char *text = NULL;
    size_t      len = 0;

    for (size_t i = 0; i <= n; i++) {
        if (i < n)
            assert_int_equal(
                kvi_text_stream_push(s, f->byte[bytes[i]], &text, &len, &r.stopped, NULL),
                KVCSA_OK);
        else
            assert_int_equal(kvi_text_stream_finish(s, &text, &len, NULL), KVCSA_OK);
        assert_true(r.n + len < sizeof r.text);
        assert_int_equal(text[len], 0);
        memcpy(r.text + r.n, text, len);
        r.n += len;
    }
    return r;
}

/* The same by tokens of several bytes, cut at random from the file's vocabulary: ids of the whole
 * text. */
static result run_tokens(fixture *f, kvi_text_stream *s, const uint8_t *bytes, size_t n)
{
    result      r = {.stopped = -1};
    const char *text = NULL;
    size_t      len = 0;
    int32_t     ids[256];
    size_t      n_ids = 0;

    assert_int_equal(kvi_tokenizer_encode(f->t, (const char *)bytes, n, 0, ids, 256, &n_ids, NULL),
                     KVCSA_OK);
    for (size_t i = 0; i < n_ids; i++) {
        assert_int_equal(kvi_text_stream_push(s, ids[i], &text, &len, &r.stopped, NULL), KVCSA_OK);
        memcpy(r.text + r.n, text, len);
        r.n += len;
    }
    assert_int_equal(kvi_text_stream_finish(s, &text, &len, NULL), KVCSA_OK);
    memcpy(r.text + r.n, text, len);
    r.n += len;
    return r;
}

static void test_stream_gives_whole_characters(void **state)
{
    fixture          f;
    kvi_text_stream *s = NULL;

    (void)state;
    set_up(&f);
    s = make_stream(&f, NULL, 0);
    check_step(&f, s, 'a', "a", -1);
    check_step(&f, s, 0xE2, "", -1);
    check_step(&f, s, 0x82, "", -1);
    check_step(&f, s, -1, "", -1); /* a special token parts nothing */
    check_step(&f, s, 0xAC, "\xE2\x82\xAC", -1);
    check_step(&f, s, 0xF0, "", -1);
    check_step(&f, s, 0x9F, "", -1);
    check_step(&f, s, 0x98, "", -1);
    check_step(&f, s, 'x', BAD "x", -1);
    check_step(&f, s, 0xF0, "", -1);
    check_step(&f, s, 0xE2, BAD, -1);
    check_step(&f, s, -2, BAD, -1);
    check_step(&f, s, 'b', "b", -1); /* as new */
    check_step(&f, s, -2, "", -1);
    check_step(&f, s, -2, "", -1);
    kvi_text_stream_destroy(s);
    tear_down(&f);
}

/* Maximal subparts: table 3-8 of the Unicode Standard, and U+FFFD practice of the WHATWG decoder.
 */
static void test_stream_replaces_maximal_subparts(void **state)
{
    static const struct {
        const char *bytes;
        const char *text;
    } cases[] = {
        {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",
         "a" BAD BAD BAD "b" BAD "c" BAD BAD "d"},
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", BAD BAD BAD BAD BAD BAD BAD BAD "A"},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", BAD BAD BAD BAD BAD BAD BAD BAD "A"},
        {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", BAD BAD BAD BAD BAD "A" BAD BAD "B"},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", BAD BAD BAD BAD "A"},
        {"\xEF\xBF\xBD", BAD},
        {"\xF4\x8F\xBF\xBF\xED\x9F\xBF", "\xF4\x8F\xBF\xBF\xED\x9F\xBF"},
    };
    fixture          f;
    kvi_text_stream *s = NULL;

    (void)state;
    set_up(&f);
    s = make_stream(&f, NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const result r = run_bytes(&f, s, (const uint8_t *)cases[i].bytes, strlen(cases[i].bytes));

        assert_int_equal(r.n, strlen(cases[i].text));
        assert_memory_equal(r.text, cases[i].text, r.n);
    }
    kvi_text_stream_destroy(s);
    tear_down(&f);
}

static void test_stream_holds_back_stop_strings(void **state)
{
    static const char *const stops[] = {"END", "\n\n", "NDA"};
    fixture                  f;
    kvi_text_stream         *s = NULL;

    (void)state;
    set_up(&f);
    s = make_stream(&f, stops, 3);
    check_step(&f, s, 'a', "a", -1);
    check_step(&f, s, 'E', "", -1);
    check_step(&f, s, 'N', "", -1);
    check_step(&f, s, 'E', "EN", -1); /* "EN" is free, the new E is not */
    check_step(&f, s, 'N', "", -1);
    check_step(&f, s, 'D', "", 0);
    check_step(&f, s, 'x', "", 0);
    check_step(&f, s, -2, "", -1);
    check_step(&f, s, '\n', "", -1);
    check_step(&f, s, -2, "\n", -1); /* nothing completes it any more */
    check_step(&f, s, 'N', "", -1);
    check_step(&f, s, 'D', "", -1);
    check_step(&f, s, 'A', "", 2);
    kvi_text_stream_destroy(s);
    tear_down(&f);
}

/* The earliest beginning wins; at one place the lowest index. A complete stop string waits for one
 * that may still win. */
static void test_stream_prefers_the_earliest_stop(void **state)
{
    static const char *const stops[] = {"abcd", "bc", "ab"};
    fixture                  f;
    kvi_text_stream         *s = NULL;

    (void)state;
    set_up(&f);
    s = make_stream(&f, stops, 3);
    check_step(&f, s, 'a', "", -1);
    check_step(&f, s, 'b', "", -1); /* "ab" is met, but "abcd" may come */
    check_step(&f, s, 'c', "", -1);
    check_step(&f, s, 'd', "", 0);
    check_step(&f, s, -2, "", -1);
    check_step(&f, s, 'a', "", -1);
    check_step(&f, s, 'b', "", -1);
    check_step(&f, s, 'x', "", 2);
    check_step(&f, s, -2, "", -1);
    check_step(&f, s, 'x', "x", -1);
    check_step(&f, s, 'b', "", -1);
    check_step(&f, s, 'c', "", 1);
    check_step(&f, s, -2, "", -1);
    check_step(&f, s, 'z', "z", -1);
    check_step(&f, s, 'a', "", -1);
    check_step(&f, s, 'b', "", -1);
    check_step(&f, s, -2, "", -1); /* "ab" was met: nothing of it is given out */
    kvi_text_stream_destroy(s);
    tear_down(&f);
}

/* The rule on the whole text at once. */
static result stop_naively(const char *text, size_t n, const char *const *stops, size_t n_stops)
{
    result r = {.stopped = -1};

    for (size_t at = 0; at < n && r.stopped < 0; at++) {
        for (size_t i = 0; i < n_stops && r.stopped < 0; i++)
            if (strlen(stops[i]) <= n - at && memcmp(text + at, stops[i], strlen(stops[i])) == 0)
                r.stopped = (int32_t)i;
        if (r.stopped < 0)
            r.text[r.n++] = text[at];
    }
    return r;
}

static void test_stream_matches_the_rule_however_text_is_cut(void **state)
{
    static const char *const sets[][3] = {{"aa", "ab", "ba"},
                                          {"aab", "abaa", "b\xC3\xA9"},
                                          {"aba", "abab", "ababa"},
                                          {"bbb", "a\xC3\xA9", "bba"},
                                          {"the", "he ", "t"}};
    fixture                  f;
    prng                     r;
    int                      n_stopped = 0;

    (void)state;
    set_up(&f);
    prng_init(&r, seed);
    for (int i = 0; i < 2000; i++) {
        const char *const *stops = sets[i % 5];
        const size_t       n_stops = prng_below(&r, 4);
        kvi_text_stream   *s = make_stream(&f, stops, n_stops);
        char               text[40] = "";
        result             want;
        result             one;
        result             many;

        for (uint64_t k = prng_below(&r, 12); k > 0; k--)
            strcat(text, ((const char *const[]){"a", "b", "\xC3\xA9", "the ",
                                                "x"})[prng_below(&r, i % 5 == 4 ? 5 : 3)]);
        want = stop_naively(text, strlen(text), stops, n_stops);
        one = run_bytes(&f, s, (const uint8_t *)text, strlen(text));
        many = run_tokens(&f, s, (const uint8_t *)text, strlen(text));
        assert_int_equal(one.n, want.n);
        assert_memory_equal(one.text, want.text, want.n);
        assert_int_equal(many.n, want.n);
        assert_memory_equal(many.text, want.text, want.n);
        /* the end of the text may be what decides, and then finish cannot tell the index */
        if (one.stopped >= 0)
            assert_int_equal(one.stopped, want.stopped);
        assert_int_equal(one.stopped, many.stopped);
        n_stopped += one.stopped >= 0;
        kvi_text_stream_destroy(s);
    }
    assert_true(n_stopped > 300);
    tear_down(&f);
}

static void test_stream_refuses_wrong_arguments(void **state)
{
    static const char *const empty[] = {"a", ""};
    static const char *const null[] = {NULL};
    static const char *const bad[] = {"a\xC3"};
    fixture                  f;
    kvi_text_stream         *s = NULL;
    const char              *text = NULL;
    size_t                   n = 1;
    int32_t                  stopped = 0;
    kvcsa_error              err;

    (void)state;
    set_up(&f);
    assert_int_equal(kvi_text_stream_create(&f.fa.hook, f.t, empty, 2, &s, &err), KVCSA_ERR_ARG);
    assert_int_equal(kvi_text_stream_create(&f.fa.hook, f.t, null, 1, &s, &err), KVCSA_ERR_ARG);
    assert_int_equal(kvi_text_stream_create(&f.fa.hook, f.t, bad, 1, &s, &err), KVCSA_ERR_ARG);
    assert_int_equal(kvi_text_stream_create(&f.fa.hook, f.t, NULL, 1, &s, &err), KVCSA_ERR_ARG);
    assert_null(s);
    s = make_stream(&f, NULL, 0);
    assert_int_equal(kvi_text_stream_push(s, -1, &text, &n, &stopped, &err), KVCSA_ERR_ARG);
    assert_int_equal(kvi_text_stream_push(s, 512, &text, &n, &stopped, &err), KVCSA_ERR_ARG);
    assert_string_equal(text, "");
    assert_int_equal(n, 0);
    assert_int_equal(stopped, -1);
    check_step(&f, s, 'a', "a", -1);
    kvi_text_stream_destroy(s);
    tear_down(&f);
}

static void test_stream_survives_failing_allocations(void **state)
{
    static const char *const stops[] = {"stop", "other"};
    fixture                  f;

    (void)state;
    set_up(&f);
    for (uint64_t at = 1;; at++) {
        kvi_text_stream *s = NULL;
        const char      *text = NULL;
        size_t           n = 0;
        int32_t          stopped = 0;
        kvcsa_status     st = 0;
        bool             hit = false;

        fault_alloc_fail_at(&f.fa, at);
        st = kvi_text_stream_create(&f.fa.hook, f.t, stops, 2, &s, NULL);
        if (st == KVCSA_OK &&
            (st = kvi_text_stream_push(s, f.byte['o'], &text, &n, &stopped, NULL)) != KVCSA_OK) {
            fault_alloc_fail_at(&f.fa, 0); /* the push has not happened: do it again */
            hit = true;
            check_step(&f, s, 'o', "", -1);
            check_step(&f, s, 'x', "ox", -1);
        }
        hit = hit || fault_alloc_hit(&f.fa);
        kvi_text_stream_destroy(s);
        if (!hit) {
            assert_int_equal(st, KVCSA_OK);
            assert_true(at > 6);
            break;
        }
        assert_int_equal(st, KVCSA_ERR_NOMEM);
    }
    fault_alloc_fail_at(&f.fa, 0);
    tear_down(&f);
}

/* ------------------------------------------------------------------ chat format */

static int32_t added(const fixture *f, const char *name)
{
    const int32_t id = kvi_tokenizer_find_added(f->t, name);

    assert_true(id >= 0);
    return id;
}

static size_t chat(const fixture *f, const kvcsa_message *m, size_t n, int32_t *ids, size_t cap)
{
    size_t      n_ids = 0;
    kvcsa_error err;

    if (kvi_prompt_chat(f->t, 0, f->eos, m, n, ids, cap, &n_ids, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    return n_ids;
}

static void test_chat_writes_the_format(void **state)
{
    static const kvcsa_message m[] = {
        {"system", "Be brief."}, {"user", "Hi <think>"}, {"assistant", "Yes."}, {"user", ""}};
    fixture f;
    int32_t want[128];
    int32_t got[128];
    int32_t names[4];
    size_t  n = 0;
    size_t  len = 0;

    (void)state;
    set_up(&f);
    names[0] = added(&f, "<" BAR "System" BAR ">");
    names[1] = added(&f, "<" BAR "User" BAR ">");
    names[2] = added(&f, "<" BAR "Assistant" BAR ">");
    names[3] = added(&f, "</think>");
    want[n++] = 0;
    for (size_t i = 0; i < 4; i++) {
        want[n++] = i == 0 ? names[0] : i == 2 ? names[2] : names[1];
        if (i == 2)
            want[n++] = names[3];
        assert_int_equal(kvi_tokenizer_encode(f.t, m[i].text, strlen(m[i].text), 0, want + n,
                                              128 - n, &len, NULL),
                         KVCSA_OK);
        n += len;
        if (i == 2)
            want[n++] = f.eos;
    }
    want[n++] = names[2];
    want[n++] = names[3];
    assert_int_equal(chat(&f, m, 4, got, 128), n);
    assert_memory_equal(got, want, n * sizeof *got);
    for (size_t i = 0; i < n; i++)
        assert_true(got[i] !=
                    added(&f, "<think>")); /* text of a message is never a special token */
    for (size_t cap = 0; cap < n; cap++) {
        memset(got, 0x55, sizeof got);
        assert_int_equal(chat(&f, m, 4, cap ? got : NULL, cap), n);
        assert_memory_equal(got, want, cap * sizeof *got);
        assert_int_equal(got[cap], 0x55555555);
    }
    assert_int_equal(kvi_prompt_chat(f.t, -1, -1, m, 2, got, 128, &len, NULL), KVCSA_OK);
    assert_int_equal(got[0], names[0]); /* no BOS */
    assert_int_equal(kvi_prompt_chat(f.t, 0, -1, m, 4, got, 128, &len, NULL),
                     KVCSA_ERR_UNSUPPORTED);
    assert_int_equal(len, 0);
    tear_down(&f);
}

static void test_chat_refuses_wrong_roles(void **state)
{
    static const struct {
        kvcsa_status st;
        size_t       n;
        const char  *says;
        const char  *role[4];
    } cases[] = {
        {KVCSA_OK, 1, NULL, {"user"}},
        {KVCSA_OK, 2, NULL, {"user", "user"}},
        {KVCSA_OK, 3, NULL, {"system", "system", "user"}},
        {KVCSA_OK, 4, NULL, {"user", "assistant", "assistant", "user"}},
        {KVCSA_OK, 3, NULL, {"user", "assistant", "system"}},
        {KVCSA_ERR_ARG, 0, "n_messages", {NULL}},
        {KVCSA_ERR_ARG, 1, "no user message", {"system"}},
        {KVCSA_ERR_ARG, 2, "messages[1]", {"user", "assistant"}},
        {KVCSA_ERR_ARG, 2, "messages[0]", {"assistant", "user"}},
        {KVCSA_ERR_ARG, 3, "messages[1]", {"system", "assistant", "user"}},
        {KVCSA_ERR_ARG, 1, "\"User\"", {"User"}},
        {KVCSA_ERR_ARG, 2, "\"tool\"", {"user", "tool"}},
        {KVCSA_ERR_ARG, 1, "messages[0].role is NULL", {NULL}},
    };
    fixture f;

    (void)state;
    set_up(&f);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvcsa_message m[4] = {{NULL, NULL}};
        int32_t       ids[64];
        size_t        n = 5;
        kvcsa_error   err;

        for (size_t k = 0; k < cases[i].n; k++)
            m[k] = (kvcsa_message){cases[i].role[k], "x"};
        if (kvi_prompt_chat(f.t, 0, f.eos, m, cases[i].n, ids, 64, &n, &err) != cases[i].st)
            fail_msg("case %zu: %s", i, err.text);
        if (cases[i].st != KVCSA_OK) {
            assert_non_null(strstr(err.text, cases[i].says));
            assert_int_equal(n, 0);
        }
    }
    const kvcsa_message null_text = {"user", NULL};
    size_t              n = 5;
    assert_int_equal(kvi_prompt_chat(f.t, 0, f.eos, &null_text, 1, NULL, 0, &n, NULL),
                     KVCSA_ERR_ARG);
    assert_int_equal(kvi_prompt_chat(f.t, 0, f.eos, NULL, 1, NULL, 0, &n, NULL), KVCSA_ERR_ARG);
    assert_int_equal(n, 0);
    tear_down(&f);
}

static void test_chat_needs_its_tokens(void **state)
{
    const kvcsa_message m = {"user", "x"};
    fault_alloc         fa;
    kvi_tokenizer      *t = NULL;
    kvcsa_error         err;
    size_t              n = 5;
    char                json[65536];
    FILE               *file = fopen(T1_FILE, "rb");
    char               *at = NULL;

    (void)state;
    assert_non_null(file);
    n = fread(json, 1, sizeof json - 1, file);
    fclose(file);
    json[n] = 0;
    at = strstr(json, "</think>");
    assert_non_null(at);
    memcpy(at, "</thunk>", 8);
    fault_alloc_init(&fa);
    assert_int_equal(kvi_tokenizer_open(&fa.hook, json, n, "t", &t, &err), KVCSA_OK);
    assert_int_equal(kvi_prompt_chat(t, 0, 1, &m, 1, NULL, 0, &n, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "</think>"));
    assert_int_equal(n, 0);
    kvi_tokenizer_destroy(t);
    assert_true(fault_alloc_is_clean(&fa));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_gives_whole_characters),
        cmocka_unit_test(test_stream_replaces_maximal_subparts),
        cmocka_unit_test(test_stream_holds_back_stop_strings),
        cmocka_unit_test(test_stream_prefers_the_earliest_stop),
        cmocka_unit_test(test_stream_matches_the_rule_however_text_is_cut),
        cmocka_unit_test(test_stream_refuses_wrong_arguments),
        cmocka_unit_test(test_stream_survives_failing_allocations),
        cmocka_unit_test(test_chat_writes_the_format),
        cmocka_unit_test(test_chat_refuses_wrong_roles),
        cmocka_unit_test(test_chat_needs_its_tokens),
    };

    seed = prng_seed(argc, argv, 20261130);
    return cmocka_run_group_tests_name("text_stream", tests, NULL, NULL);
}
