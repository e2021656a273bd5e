/* Token map of Engram.
 *
 * Every token gets a key (docs/formats.md), equal keys share an id, ids count up in the order in
 * which keys are first seen. Keys are sorted to find equal ones: no table that a hostile vocabulary
 * could make slow.
 *
 * NFKC followed by NFD is NFKD, for composition keeps canonical equivalence. NFKD here does not put
 * combining marks in order, since all of them (every character with a combining class is one) are
 * dropped in the next step.
 */
#include "text/token_map.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"
#include "text/tokenizer_int.h"
#include "text/utf8_int.h"

#include <jansson.h>
#include <utf8proc.h>

#include <stdlib.h>
#include <string.h>

typedef struct map_builder {
    const kvcsa_allocator *a;
    const kvi_tokenizer   *t;
    kvi_buf                cps;  /* i32: one token's characters */
    kvi_buf                keys; /* u8: all keys, one after the other */
    size_t                 n_keys;
} map_builder;

/* ------------------------------------------------------------------ characters */

static bool is_mark(int32_t cp)
{
    const utf8proc_category_t c = utf8proc_category(cp);

    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

/* Properties Cased and Case_Ignorable (Unicode Standard, 3.13) of characters that NFKD leaves alone
 * and that are no marks; what these short lists leave out is not such a character. */
static bool is_cased(int32_t cp)
{
    const utf8proc_category_t c = utf8proc_category(cp);

    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
           (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
}

static bool is_case_ignorable(int32_t cp)
{
    static const uint16_t points[] = {0x27, 0x2E, 0x3A, 0xB7, 0x55F, 0x5F4, 0x2018, 0x2019, 0x2027};
    const utf8proc_category_t c = utf8proc_category(cp);

    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++)
        if (cp == points[i])
            return true;
    return c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || c == UTF8PROC_CATEGORY_CF;
}

/* White space in the sense of Python's str.strip. */
static bool is_space(int32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* Final_Sigma: a cased character before (past case-ignorable ones), none after. A long run of
 * ignorable characters is walked once for each sigma in it, so at most once from either side. */
static bool is_final_sigma(const int32_t *cps, size_t n, size_t at)
{
    size_t i = at;

    while (i > 0 && is_case_ignorable(cps[i - 1]))
        i--;
    if (i == 0 || !is_cased(cps[i - 1]))
        return false;
    for (i = at + 1; i < n && is_case_ignorable(cps[i]); i++)
        ;
    return i == n || !is_cased(cps[i]);
}

/* ------------------------------------------------------------------ one key */

/* Decompose, drop marks. false = out of memory. Text is valid UTF-8. */
static bool decompose(map_builder *b, const uint8_t *text, size_t n_bytes, size_t *n_cps)
{
    const uint8_t *end = text + n_bytes;
    size_t         n = 0;

    for (const uint8_t *p = text; p < end;) {
        const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE;
        utf8proc_int32_t        parts[32]; /* the longest decomposition has 18 */
        int                     boundary = 0;
        size_t                  len = 0;
        utf8proc_ssize_t        got = 0;

        kvi_utf8_next(p, end, &len);
        got = utf8proc_decompose_char(kvi_utf8_value(p, len), parts, 32, options, &boundary);
        p += len;
        KVI_ASSERT(got >= 0 && got <= 32);
        if (!kvi_buf_reserve(b->a, &b->cps, sizeof(int32_t), n, n + 32))
            return false;
        for (utf8proc_ssize_t i = 0; i < got && i < 32; i++)
            if (!is_mark(parts[i]))
                ((int32_t *)b->cps.data)[n++] = parts[i];
    }
    *n_cps = n;
    return true;
}

/* Lowercase in the sense of Python's str.lower. Of the characters whose lowercase is more than one
 * or depends on others only the sigma is left after decomposition. A sigma looks at its neighbours
 * before they are lowered or after: both are cased. */
static void lower(int32_t *cps, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cps[i] = cps[i] != 0x3A3             ? utf8proc_tolower(cps[i])
                 : is_final_sigma(cps, n, i) ? 0x3C2
                                             : 0x3C3;
}

/* Runs of blanks to one blank, then strip, unless that is all there is. Returns where the rest
 * begins and its length. */
static size_t squeeze(int32_t *cps, size_t n, size_t *n_left)
{
    size_t out = 0;
    size_t begin = 0;

    for (size_t i = 0; i < n; i++) {
        const bool blank = cps[i] == ' ' || cps[i] == '\t' || cps[i] == '\r' || cps[i] == '\n';

        if (!blank)
            cps[out++] = cps[i];
        else if (out == 0 || cps[out - 1] != ' ')
            cps[out++] = ' ';
    }
    *n_left = out;
    if (out == 1 && cps[0] == ' ')
        return 0;
    while (out > begin && is_space(cps[out - 1]))
        out--;
    while (begin < out && is_space(cps[begin]))
        begin++;
    *n_left = out - begin;
    return begin;
}

static bool is_clean_text(const uint8_t *text, size_t n_bytes)
{
    const uint8_t *end = text + n_bytes;

    for (const uint8_t *p = text; p < end;) {
        size_t len = 0;

        if (kvi_utf8_next(p, end, &len) != KVI_UTF8_CHAR || kvi_utf8_value(p, len) == 0xFFFD)
            return false;
        p += len;
    }
    return true;
}

static bool put_key(map_builder *b, const void *bytes, size_t n)
{
    if (!kvi_buf_reserve(b->a, &b->keys, 1, b->n_keys, b->n_keys + n))
        return false;
    memcpy((uint8_t *)b->keys.data + b->n_keys, bytes, n);
    b->n_keys += n;
    return true;
}

static bool put_token_key(map_builder *b, int32_t id)
{
    const uint8_t *text = NULL;
    const char    *raw = NULL;
    size_t         n_text = 0;
    size_t         n = 0;
    size_t         begin = 0;

    kvi_tokenizer_bytes(b->t, id, &text, &n_text);
    if (!is_clean_text(text, n_text)) {
        kvi_tokenizer_raw(b->t, id, &raw, &n);
        return put_key(b, raw, n);
    }
    if (!decompose(b, text, n_text, &n))
        return false;
    int32_t *cps = b->cps.data;
    lower(cps, n);
    begin = squeeze(cps, n, &n);
    if (n == 0)
        return put_key(b, text, n_text);
    for (size_t i = 0; i < n; i++) {
        utf8proc_uint8_t utf8[4];

        if (!put_key(b, utf8, (size_t)utf8proc_encode_char(cps[begin + i], utf8)))
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------ map */

/* refs sorted by key -> map. One pass gives each run of equal keys its least id, the second counts
 * first appearances. */
static uint32_t number_keys(const kvi_text_ref *refs, uint32_t n, uint32_t *map)
{
    uint32_t n_ids = 0;

    for (uint32_t i = 0; i < n;) {
        uint32_t end = i;
        uint32_t least = refs[i].id;

        for (; end < n && kvi_text_ref_compare(&refs[i], &refs[end]) == 0; end++)
            if (refs[end].id < least)
                least = refs[end].id;
        for (; i < end; i++)
            map[refs[i].id] = least;
    }
    for (uint32_t id = 0; id < n;
         id++) /* map[least] has been numbered when a later id refers to it */
        map[id] = map[id] == id ? n_ids++ : map[map[id]];
    return n_ids;
}

kvcsa_status kvi_token_map_build(const kvcsa_allocator *a, const kvi_tokenizer *t, uint32_t n_vocab,
                                 uint32_t *map, uint32_t *n_compressed, kvcsa_error *err)
{
    map_builder   b = {.a = a, .t = t};
    size_t       *ends = NULL; /* [n_vocab]: where each key ends in b.keys */
    kvi_text_ref *refs = NULL;
    kvcsa_status  st = KVCSA_OK;

    *n_compressed = 0;
    if (kvi_tokenizer_size(t) != n_vocab)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "tokenizer has %u ids, the model's vocabulary %u",
                        (unsigned)kvi_tokenizer_size(t), (unsigned)n_vocab);
    ends = kvi_alloc(a, n_vocab * sizeof *ends);
    refs = kvi_alloc(a, n_vocab * sizeof *refs);
    if (!ends || !refs)
        goto no_memory;
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (!put_token_key(&b, (int32_t)i))
            goto no_memory;
        ends[i] = b.n_keys;
    }
    for (uint32_t i = 0; i < n_vocab; i++) {
        const size_t begin = i > 0 ? ends[i - 1] : 0;

        refs[i].bytes = (const uint8_t *)b.keys.data + begin;
        refs[i].id = i;
        if (!kvi_to_u32(ends[i] - begin, &refs[i].n_bytes))
            goto no_memory;
    }
    qsort(refs, n_vocab, sizeof *refs, kvi_text_ref_compare);
    *n_compressed = number_keys(refs, n_vocab, map);
    goto out;
no_memory:
    st = kvi_fail(err, KVCSA_ERR_NOMEM, "token map of %u tokens", (unsigned)n_vocab);
out:
    kvi_buf_free(a, &b.cps, sizeof(int32_t));
    kvi_buf_free(a, &b.keys, 1);
    kvi_free(a, ends, n_vocab * sizeof *ends);
    kvi_free(a, refs, n_vocab * sizeof *refs);
    return st;
}

/* ------------------------------------------------------------------ side file */

static kvcsa_status read_map(const json_t *list, const char *name, uint32_t n, uint32_t n_ids,
                             uint8_t *seen, uint32_t *map, kvcsa_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        const json_t    *v = json_array_get(list, i);
        const json_int_t id = json_integer_value(v);

        if (!json_is_integer(v) || id < 0 || id >= (json_int_t)n_ids)
            return kvi_fail(err, KVCSA_ERR_FORMAT, "%s: map[%u] is not an integer of 0 to %u", name,
                            (unsigned)i, (unsigned)n_ids - 1);
        map[i] = (uint32_t)id;
        seen[id] = 1;
    }
    for (uint32_t i = 0; i < n_ids; i++)
        if (!seen[i])
            return kvi_fail(err, KVCSA_ERR_FORMAT,
                            "%s: map never has the value %u, compressed_vocab_size is %u", name,
                            (unsigned)i, (unsigned)n_ids);
    return KVCSA_OK;
}

kvcsa_status kvi_token_map_parse(const kvcsa_allocator *a, const char *json, size_t n_bytes,
                                 const char *name, uint32_t n_vocab, uint32_t *map,
                                 uint32_t *n_compressed, kvcsa_error *err)
{
    json_error_t  parse;
    json_t       *root = NULL;
    const json_t *list = NULL;
    json_int_t    n_ids = 0;
    uint8_t      *seen = NULL;
    kvcsa_status  st = KVCSA_OK;

    *n_compressed = 0;
    if (!(root = json_loadb(json, n_bytes, JSON_REJECT_DUPLICATES, &parse)))
        return json_error_code(&parse) == json_error_out_of_memory
                   ? kvi_fail(err, KVCSA_ERR_NOMEM, "%s: no memory to parse it", name)
                   : kvi_fail(err, KVCSA_ERR_FORMAT, "%s: line %d: %s", name, parse.line,
                              parse.text);
    list = json_object_get(root, "map");
    n_ids = json_integer_value(json_object_get(root, "compressed_vocab_size"));
    if (!json_is_integer(json_object_get(root, "vocab_size")) ||
        json_integer_value(json_object_get(root, "vocab_size")) != (json_int_t)n_vocab) {
        st = kvi_fail(err, KVCSA_ERR_FORMAT, "%s: vocab_size is %lld, must be %u", name,
                      (long long)json_integer_value(json_object_get(root, "vocab_size")),
                      (unsigned)n_vocab);
    } else if (!json_is_array(list) || json_array_size(list) != n_vocab) {
        st = kvi_fail(err, KVCSA_ERR_FORMAT, "%s: map has %zu elements, must be %u", name,
                      json_array_size(list), (unsigned)n_vocab);
    } else if (n_ids < 1 || n_ids > (json_int_t)n_vocab) {
        st = kvi_fail(err, KVCSA_ERR_FORMAT, "%s: compressed_vocab_size is %lld, limit 1 to %u",
                      name, (long long)n_ids, (unsigned)n_vocab);
    } else if (!(seen = kvi_zalloc(a, (size_t)n_ids))) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "%s: %lld marks", name, (long long)n_ids);
    } else {
        st = read_map(list, name, n_vocab, (uint32_t)n_ids, seen, map, err);
        kvi_free(a, seen, (size_t)n_ids);
    }
    if (st == KVCSA_OK)
        *n_compressed = (uint32_t)n_ids;
    json_decref(root);
    return st;
}
