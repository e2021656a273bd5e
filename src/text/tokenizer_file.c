/* Reading tokenizer.json.
 *
 * Two passes over the vocabulary: the first checks ids and sums up sizes, the second fills one
 * table and one blob, so memory is a small multiple of the file whatever it claims. Everything this
 * reader does not know how to honour is refused. The JSON tree comes from libc and is gone when the
 * call returns: jansson's allocator could only be changed for the whole process.
 */
#include "text/tokenizer_int.h"

#include "base/checked.h"
#include "base/status.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

typedef struct reader {
    kvi_tokenizer *t;
    const char    *name;
    kvcsa_error   *err;
    json_t        *model;
    json_t        *vocab;
    json_t        *added; /* NULL = none */
} reader;

#define FORMAT_ERROR(r, ...) kvi_fail((r)->err, KVCSA_ERR_FORMAT, __VA_ARGS__)
#define UNSUPPORTED(r, ...)  kvi_fail((r)->err, KVCSA_ERR_UNSUPPORTED, __VA_ARGS__)

/* ------------------------------------------------------------------ the byte alphabet
 * Printable bytes stand for themselves, the other 68 for U+0100 onwards in ascending order. */

static int32_t alphabet_byte(int32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255))
        return cp;
    if (cp >= 256 && cp <= 288) /* 0..32 */
        return cp - 256;
    if (cp >= 289 && cp <= 322) /* 127..160 */
        return cp - 289 + 127;
    return cp == 323 ? 173 : -1;
}

/* Bytes that a vocabulary string stands for, written to out unless that is NULL. SIZE_MAX: the
 * string has a character that is not of the alphabet. text is valid UTF-8 (jansson checks); two
 * bytes reach past the alphabet. */
static size_t alphabet_decode(const uint8_t *text, size_t n_bytes, uint8_t *out)
{
    size_t n = 0;

    for (size_t i = 0; i < n_bytes; i++) {
        int32_t cp = text[i];

        if (cp >= 0xE0)
            return SIZE_MAX;
        if (cp >= 0xC0 && i + 1 < n_bytes)
            cp = (cp & 0x1F) << 6 | (text[++i] & 0x3F);
        if ((cp = alphabet_byte(cp)) < 0)
            return SIZE_MAX;
        if (out)
            out[n] = (uint8_t)cp;
        n++;
    }
    return n;
}

/* ------------------------------------------------------------------ small checks */

static bool is_absent(const json_t *v)
{
    return !v || json_is_null(v);
}

static bool is_string(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

static kvcsa_status check_id(const reader *r, const json_t *v, const char *what, const char *key,
                             uint32_t *id)
{
    const json_int_t value = json_integer_value(v);

    if (!json_is_integer(v))
        return FORMAT_ERROR(r, "%s: %s \"%.60s\": id is not an integer", r->name, what, key);
    if (value < 0 || value >= (json_int_t)KVI_TOKENIZER_MAX_IDS)
        return FORMAT_ERROR(r, "%s: %s \"%.60s\": id is %lld, limit 0 to %u", r->name, what, key,
                            (long long)value, KVI_TOKENIZER_MAX_IDS - 1);
    *id = (uint32_t)value;
    return KVCSA_OK;
}

static kvcsa_status check_model(const reader *r)
{
    json_t                  *dropout = json_object_get(r->model, "dropout");
    json_t                  *type = json_object_get(r->model, "type");
    json_t                  *ignore = json_object_get(r->model, "ignore_merges");
    static const char *const unused[] = {"unk_token", "continuing_subword_prefix",
                                         "end_of_word_suffix"};

    if (!is_string(type, "BPE"))
        return UNSUPPORTED(r, "%s: model.type is \"%.60s\", must be \"BPE\"", r->name,
                           json_is_string(type) ? json_string_value(type) : "?");
    if (!is_absent(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0.0))
        return UNSUPPORTED(r, "%s: model.dropout must be null or 0", r->name);
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++) {
        json_t *v = json_object_get(r->model, unused[i]);

        if (!is_absent(v) && !is_string(v, ""))
            return UNSUPPORTED(r, "%s: model.%s must be null", r->name, unused[i]);
    }
    if (json_is_true(json_object_get(r->model, "byte_fallback")))
        return UNSUPPORTED(r, "%s: model.byte_fallback is true, must be false", r->name);
    if (!is_absent(ignore) && !json_is_boolean(ignore))
        return FORMAT_ERROR(r, "%s: model.ignore_merges is not a boolean", r->name);
    r->t->ignore_merges = json_is_true(ignore);
    return KVCSA_OK;
}

/* null, or a sequence of nothing, as in the release */
static kvcsa_status check_normalizer(const reader *r, const json_t *v)
{
    if (is_absent(v))
        return KVCSA_OK;
    if (json_is_object(v) && is_string(json_object_get(v, "type"), "Sequence") &&
        json_is_array(json_object_get(v, "normalizers")) &&
        json_array_size(json_object_get(v, "normalizers")) == 0)
        return KVCSA_OK;
    return UNSUPPORTED(r, "%s: normalizer must be null or an empty Sequence", r->name);
}

/* ------------------------------------------------------------------ sizes */

typedef struct table_size {
    uint32_t n_ids;
    size_t   n_entries;
    size_t   blob_bytes;
} table_size;

static kvcsa_status size_vocab(const reader *r, table_size *size)
{
    const char *key = NULL;
    json_t     *value = NULL;

    json_object_foreach (r->vocab, key, value) {
        const size_t n = strlen(key);
        const size_t text = alphabet_decode((const uint8_t *)key, n, NULL);
        uint32_t     id = 0;
        kvcsa_status st = check_id(r, value, "model.vocab", key, &id);

        if (st != KVCSA_OK)
            return st;
        if (id >= size->n_ids)
            size->n_ids = id + 1;
        size->blob_bytes += n + (text == SIZE_MAX ? 0 : text);
        size->n_entries++;
    }
    return KVCSA_OK;
}

static kvcsa_status check_added(const reader *r, const json_t *entry, size_t i,
                                const char **content, uint32_t *id)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip"};
    json_t                  *text = json_object_get(entry, "content");

    if (!json_is_string(text))
        return FORMAT_ERROR(r, "%s: added_tokens[%zu].content is not a string", r->name, i);
    if (json_string_length(text) == 0 || json_string_length(text) > KVI_TOKENIZER_MAX_ADDED_BYTES)
        return FORMAT_ERROR(r, "%s: added_tokens[%zu].content has %zu bytes, limit 1 to %u",
                            r->name, i, json_string_length(text), KVI_TOKENIZER_MAX_ADDED_BYTES);
    *content = json_string_value(text);
    for (size_t k = 0; k < sizeof flags / sizeof flags[0]; k++) {
        json_t *v = json_object_get(entry, flags[k]);

        if (!is_absent(v) && !json_is_false(v))
            return UNSUPPORTED(r, "%s: added_tokens \"%.60s\": %s must be false", r->name, *content,
                               flags[k]);
    }
    return check_id(r, json_object_get(entry, "id"), "added_tokens", *content, id);
}

static kvcsa_status size_added(const reader *r, table_size *size)
{
    size_t  i = 0;
    json_t *entry = NULL;

    json_array_foreach (r->added, i, entry) {
        const char  *content = NULL;
        uint32_t     id = 0;
        kvcsa_status st = check_added(r, entry, i, &content, &id);

        if (st != KVCSA_OK)
            return st;
        if (id >= size->n_ids)
            size->n_ids = id + 1;
        size->blob_bytes += strlen(content);
        size->n_entries++;
    }
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ tokens */

/* Append bytes to the blob; the sizes were summed up before. */
static uint32_t put_bytes(uint8_t *blob, size_t *used, const void *bytes, size_t n)
{
    const size_t off = *used;

    memcpy(blob + off, bytes, n);
    *used = off + n;
    return (uint32_t)off;
}

static kvcsa_status fill_vocab(const reader *r, size_t *used)
{
    kvi_tokenizer *t = r->t;
    const char    *key = NULL;
    json_t        *value = NULL;

    json_object_foreach (r->vocab, key, value) {
        const size_t n = strlen(key);
        const size_t text = alphabet_decode((const uint8_t *)key, n, NULL);
        kvi_token   *tok = &t->tokens[json_integer_value(value)];

        if (tok->flags)
            return FORMAT_ERROR(r, "%s: model.vocab \"%.60s\": id %lld is taken by \"%.*s\"",
                                r->name, key, (long long)json_integer_value(value),
                                tok->raw_len < 60 ? (int)tok->raw_len : 60,
                                (const char *)t->blob + tok->raw_off);
        tok->flags = KVI_TOKEN_PRESENT;
        tok->raw_len = (uint32_t)n;
        tok->raw_off = put_bytes(t->blob, used, key, n);
        if (text == SIZE_MAX) { /* not of the alphabet: the string is its own text */
            tok->text_off = tok->raw_off;
            tok->text_len = tok->raw_len;
        } else {
            tok->text_off = (uint32_t)*used;
            tok->text_len = (uint32_t)text;
            *used += alphabet_decode((const uint8_t *)key, n, t->blob + *used);
        }
    }
    return KVCSA_OK;
}

/* An added token may be in the vocabulary too, but only as the same token with the same bytes:
 * otherwise plain text that is merged to it would not decode to itself. */
static kvcsa_status check_added_twin(const reader *r, const kvi_token *tok, const char *content,
                                     uint32_t id)
{
    const json_t *twin = json_object_get(r->vocab, content);
    const size_t  n = strlen(content);

    if (twin && json_integer_value(twin) != (json_int_t)id)
        return FORMAT_ERROR(r, "%s: added_tokens \"%.60s\": id is %u, but %lld in model.vocab",
                            r->name, content, (unsigned)id, (long long)json_integer_value(twin));
    if (tok->flags & KVI_TOKEN_ADDED)
        return FORMAT_ERROR(r, "%s: added_tokens \"%.60s\": id %u occurs twice", r->name, content,
                            (unsigned)id);
    if (tok->flags &&
        (!twin || tok->text_len != n || memcmp(r->t->blob + tok->text_off, content, n) != 0))
        return FORMAT_ERROR(r, "%s: added_tokens \"%.60s\": id %u has another text in model.vocab",
                            r->name, content, (unsigned)id);
    return KVCSA_OK;
}

static kvcsa_status fill_added(const reader *r, size_t *used)
{
    kvi_tokenizer *t = r->t;
    size_t         i = 0;
    json_t        *entry = NULL;

    json_array_foreach (r->added, i, entry) {
        const char    *content = json_string_value(json_object_get(entry, "content"));
        const uint32_t id = (uint32_t)json_integer_value(json_object_get(entry, "id"));
        kvi_token     *tok = &t->tokens[id];
        kvi_text_ref  *ref = &t->added.refs[t->added.n_refs];
        kvcsa_status   st = check_added_twin(r, tok, content, id);

        if (st != KVCSA_OK)
            return st;
        if (!tok->flags) {
            tok->raw_len = tok->text_len = (uint32_t)strlen(content);
            tok->raw_off = tok->text_off = put_bytes(t->blob, used, content, tok->raw_len);
        }
        tok->flags |= KVI_TOKEN_PRESENT | KVI_TOKEN_ADDED;
        if (json_is_true(json_object_get(entry, "special")))
            tok->flags |= KVI_TOKEN_SPECIAL;
        ref->bytes = t->blob + tok->text_off;
        ref->n_bytes = tok->text_len;
        ref->id = id;
        t->added.n_refs++;
        t->added_first[ref->bytes[0]] = 1;
    }
    if (t->added.n_refs > 0)
        qsort(t->added.refs, t->added.n_refs, sizeof *t->added.refs, kvi_text_ref_compare);
    for (uint32_t k = 1; k < t->added.n_refs; k++)
        if (kvi_text_ref_compare(&t->added.refs[k - 1], &t->added.refs[k]) == 0)
            return FORMAT_ERROR(r, "%s: added_tokens: ids %u and %u have the same content", r->name,
                                (unsigned)t->added.refs[k - 1].id, (unsigned)t->added.refs[k].id);
    return KVCSA_OK;
}

static kvcsa_status read_tokens(const reader *r)
{
    kvi_tokenizer *t = r->t;
    table_size     size = {0, 0, 0};
    size_t         used = 0;
    kvcsa_status   st = KVCSA_OK;

    if ((st = size_vocab(r, &size)) != KVCSA_OK || (st = size_added(r, &size)) != KVCSA_OK)
        return st;
    /* Gaps are allowed, but a small file must not ask for a large table. */
    if (size.n_ids > 4096 + 4 * size.n_entries)
        return FORMAT_ERROR(r, "%s: largest id is %u, too large for %zu tokens", r->name,
                            (unsigned)size.n_ids - 1, size.n_entries);
    t->added.cap_refs = (uint32_t)json_array_size(r->added);
    t->tokens = kvi_zalloc(&t->alloc, (size_t)size.n_ids * sizeof *t->tokens);
    t->n_ids = size.n_ids;
    t->blob = kvi_alloc(&t->alloc, size.blob_bytes);
    t->blob_bytes = size.blob_bytes;
    t->added.refs = kvi_alloc(&t->alloc, t->added.cap_refs * sizeof *t->added.refs);
    if (!t->tokens || !t->blob || !t->added.refs)
        return kvi_fail(r->err, KVCSA_ERR_NOMEM, "%s: table of %u tokens", r->name,
                        (unsigned)size.n_ids);
    if ((st = fill_vocab(r, &used)) != KVCSA_OK)
        return st;
    return fill_added(r, &used);
}

/* Every byte must have a token, or some text could not be encoded. */
static kvcsa_status read_byte_ids(const reader *r)
{
    uint8_t key[3] = {0, 0, 0};

    for (int32_t cp = 33; cp <= 323; cp++) {
        const int32_t byte = alphabet_byte(cp);
        const json_t *id = NULL;

        if (byte < 0)
            continue;
        key[0] = (uint8_t)(cp < 0x80 ? cp : 0xC0 | cp >> 6);
        key[1] = (uint8_t)(cp < 0x80 ? 0 : 0x80 | (cp & 0x3F));
        if (!(id = json_object_get(r->vocab, (const char *)key)))
            return FORMAT_ERROR(r, "%s: model.vocab has no token for byte %d", r->name, (int)byte);
        r->t->bpe.byte_id[byte] = (uint32_t)json_integer_value(id);
    }
    return KVCSA_OK;
}

static kvcsa_status index_texts(const reader *r)
{
    kvi_tokenizer  *t = r->t;
    kvi_text_index *index = &t->by_text;
    const char     *key = NULL;
    json_t         *value = NULL;

    if (!t->ignore_merges)
        return KVCSA_OK;
    index->cap_refs = (uint32_t)json_object_size(r->vocab);
    if (!(index->refs = kvi_alloc(&t->alloc, index->cap_refs * sizeof *index->refs)))
        return kvi_fail(r->err, KVCSA_ERR_NOMEM, "%s: index of %u tokens", r->name,
                        (unsigned)index->cap_refs);
    json_object_foreach (r->vocab, key, value) {
        const uint32_t   id = (uint32_t)json_integer_value(value);
        const kvi_token *tok = &t->tokens[id];

        if (alphabet_decode((const uint8_t *)key, strlen(key), NULL) == SIZE_MAX)
            continue; /* no text is spelled so */
        index->refs[index->n_refs++] = (kvi_text_ref){t->blob + tok->text_off, tok->text_len, id};
    }
    qsort(index->refs, index->n_refs, sizeof *index->refs, kvi_text_ref_compare);
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ merges */

/* The two halves of "a b" or ["a", "b"], as views. */
static bool merge_halves(const json_t *entry, const char **a, size_t *n_a, const char **b,
                         size_t *n_b)
{
    if (json_is_array(entry)) {
        const json_t *left = json_array_get(entry, 0);
        const json_t *right = json_array_get(entry, 1);

        if (json_array_size(entry) != 2 || !json_is_string(left) || !json_is_string(right))
            return false;
        *a = json_string_value(left);
        *n_a = json_string_length(left);
        *b = json_string_value(right);
        *n_b = json_string_length(right);
    } else {
        const char *blank = NULL;

        if (!json_is_string(entry))
            return false;
        *a = json_string_value(entry);
        if (!(blank = strchr(*a, ' ')) || strchr(blank + 1, ' '))
            return false;
        *n_a = (size_t)(blank - *a);
        *b = blank + 1;
        *n_b = strlen(*b);
    }
    return *n_a > 0 && *n_b > 0; /* so that a merged token is longer than either: no cycles */
}

static kvcsa_status read_merge(const reader *r, const json_t *entry, size_t i, kvi_buf *scratch,
                               kvi_merge *out)
{
    const char   *a = NULL;
    const char   *b = NULL;
    size_t        n_a = 0;
    size_t        n_b = 0;
    const json_t *ids[3];

    if (!merge_halves(entry, &a, &n_a, &b, &n_b))
        return FORMAT_ERROR(r, "%s: model.merges[%zu] is not a pair of strings", r->name, i);
    if (!kvi_buf_reserve(&r->t->alloc, scratch, 1, 0, n_a + n_b + 1))
        return kvi_fail(r->err, KVCSA_ERR_NOMEM, "%s: model.merges[%zu]", r->name, i);
    char *text = scratch->data; /* lookups want terminated strings */
    memcpy(text, a, n_a);
    text[n_a] = 0;
    ids[0] = json_object_get(r->vocab, text);
    ids[1] = json_object_get(r->vocab, b);
    memcpy(text + n_a, b, n_b + 1);
    ids[2] = json_object_get(r->vocab, text);
    if (!ids[0] || !ids[1] || !ids[2])
        return FORMAT_ERROR(
            r, "%s: model.merges[%zu]: \"%.60s\" or one of its halves is not in model.vocab",
            r->name, i, text);
    out->left = (uint32_t)json_integer_value(ids[0]);
    out->right = (uint32_t)json_integer_value(ids[1]);
    out->merged = (uint32_t)json_integer_value(ids[2]);
    return KVCSA_OK;
}

static kvcsa_status read_merges(const reader *r)
{
    const kvcsa_allocator *a = &r->t->alloc;
    json_t                *list = json_object_get(r->model, "merges");
    const size_t           n = json_array_size(list);
    kvi_buf                scratch = {NULL, 0};
    kvi_merge             *merges = NULL;
    size_t                 i = 0;
    json_t                *entry = NULL;
    kvcsa_status           st = KVCSA_OK;

    if (!json_is_array(list))
        return FORMAT_ERROR(r, "%s: model.merges is not an array", r->name);
    if (!(merges = kvi_alloc(a, n * sizeof *merges)))
        return kvi_fail(r->err, KVCSA_ERR_NOMEM, "%s: %zu merges", r->name, n);
    json_array_foreach (list, i, entry)
        if ((st = read_merge(r, entry, i, &scratch, &merges[i])) != KVCSA_OK)
            goto out;
    st = kvi_bpe_build(a, merges, (uint32_t)n, r->t->n_ids, &r->t->bpe, r->err);
out:
    kvi_buf_free(a, &scratch, 1);
    kvi_free(a, merges, n * sizeof *merges);
    return st;
}

/* ------------------------------------------------------------------ pre-tokenizer, decoder */

/* What a ByteLevel step does first when use_regex is true (the GPT-2 expression). */
#define BYTE_LEVEL_REGEX \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static kvcsa_status read_split(const reader *r, const json_t *step)
{
    const json_t *pattern = json_object_get(step, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *literal = json_object_get(pattern, "String");
    const json_t *text = regex ? regex : literal;

    if (!json_is_string(text))
        return FORMAT_ERROR(r, "%s: pre_tokenizer: Split has no pattern.Regex or pattern.String",
                            r->name);
    if (!is_string(json_object_get(step, "behavior"), "Isolated"))
        return UNSUPPORTED(r, "%s: pre_tokenizer: Split behavior must be \"Isolated\"", r->name);
    if (json_is_true(json_object_get(step, "invert")))
        return UNSUPPORTED(r, "%s: pre_tokenizer: Split invert must be false", r->name);
    return kvi_splitter_add(&r->t->split, json_string_value(text), json_string_length(text), !regex,
                            r->name, r->err);
}

static kvcsa_status read_byte_level(const reader *r, const json_t *step)
{
    if (!json_is_false(json_object_get(step, "add_prefix_space")))
        return UNSUPPORTED(r, "%s: pre_tokenizer: ByteLevel add_prefix_space must be false",
                           r->name);
    if (!json_is_false(json_object_get(step, "use_regex"))) /* true when absent */
        return kvi_splitter_add(&r->t->split, BYTE_LEVEL_REGEX, strlen(BYTE_LEVEL_REGEX), false,
                                r->name, r->err);
    return KVCSA_OK;
}

/* Split steps, then one ByteLevel. A single ByteLevel need not stand in a Sequence. */
static kvcsa_status read_pre_tokenizer(const reader *r, const json_t *pre)
{
    const json_t *list = json_object_get(pre, "pretokenizers");
    const bool    sequence = is_string(json_object_get(pre, "type"), "Sequence");
    const size_t  n = sequence ? json_array_size(list) : 1;
    kvcsa_status  st = kvi_splitter_init(&r->t->alloc, &r->t->split, r->err);

    for (size_t i = 0; i < n && st == KVCSA_OK; i++) {
        const json_t *step = sequence ? json_array_get(list, i) : pre;
        const json_t *type = json_object_get(step, "type");
        const bool    last = i + 1 == n;

        if (is_string(type, "Split") && !last)
            st = read_split(r, step);
        else if (is_string(type, "ByteLevel") && last)
            st = read_byte_level(r, step);
        else
            st = UNSUPPORTED(r,
                             "%s: pre_tokenizer: step %zu of %zu is \"%.60s\"; Split steps and "
                             "then one ByteLevel wanted",
                             r->name, i, n, json_is_string(type) ? json_string_value(type) : "?");
    }
    if (st == KVCSA_OK && n == 0)
        st = UNSUPPORTED(r, "%s: pre_tokenizer has no ByteLevel step", r->name);
    return st;
}

static kvcsa_status read_root(reader *r, json_t *root)
{
    json_t      *decoder = json_object_get(root, "decoder");
    kvcsa_status st = KVCSA_OK;

    r->model = json_object_get(root, "model");
    r->vocab = json_object_get(r->model, "vocab");
    r->added = json_object_get(root, "added_tokens");
    if (!json_is_object(r->model) || !json_is_object(r->vocab))
        return FORMAT_ERROR(r, "%s: model.vocab is not an object", r->name);
    if (!is_absent(r->added) && !json_is_array(r->added))
        return FORMAT_ERROR(r, "%s: added_tokens is not an array", r->name);
    if (!is_absent(decoder) && !is_string(json_object_get(decoder, "type"), "ByteLevel"))
        return UNSUPPORTED(r, "%s: decoder.type must be \"ByteLevel\"", r->name);
    if ((st = check_normalizer(r, json_object_get(root, "normalizer"))) != KVCSA_OK ||
        (st = check_model(r)) != KVCSA_OK || (st = read_tokens(r)) != KVCSA_OK ||
        (st = read_byte_ids(r)) != KVCSA_OK || (st = index_texts(r)) != KVCSA_OK ||
        (st = read_merges(r)) != KVCSA_OK)
        return st;
    /* post_processor, truncation and padding add or drop tokens; encoding here never does, so they
     * are not read. */
    return read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"));
}

kvcsa_status kvi_tokenizer_read(kvi_tokenizer *t, const char *json, size_t n_bytes,
                                const char *name, kvcsa_error *err)
{
    reader       r = {.t = t, .name = name, .err = err};
    json_error_t parse;
    json_t      *root = NULL;
    kvcsa_status st = KVCSA_OK;

    if (n_bytes > KVI_TOKENIZER_MAX_FILE_BYTES)
        return FORMAT_ERROR(&r, "%s: has %zu bytes, limit %u", name, n_bytes,
                            KVI_TOKENIZER_MAX_FILE_BYTES);
    if (!(root = json_loadb(json, n_bytes, JSON_REJECT_DUPLICATES, &parse)))
        return json_error_code(&parse) == json_error_out_of_memory
                   ? kvi_fail(err, KVCSA_ERR_NOMEM, "%s: no memory to parse it", name)
                   : FORMAT_ERROR(&r, "%s: line %d: %s", name, parse.line, parse.text);
    st = read_root(&r, root);
    json_decref(root);
    return st;
}
