/* Tokenizer handle: lifetime, look-ups, and encoding from the whole text down to pieces.
 *
 * text -> added tokens cut out (only on request) -> runs of valid UTF-8 and single other bytes
 *      -> pieces (pretokenize.c) -> merges (bpe.c)
 */
#include "text/tokenizer.h"

#include "base/checked.h"
#include "base/status.h"
#include "text/tokenizer_int.h"
#include "text/utf8_int.h"

#include <string.h>

/* ------------------------------------------------------------------ sorted texts */

int kvi_text_ref_compare(const void *a, const void *b)
{
    const kvi_text_ref *x = a;
    const kvi_text_ref *y = b;
    const size_t        common = kvi_min_size(x->n_bytes, y->n_bytes);
    const int           order = common > 0 ? memcmp(x->bytes, y->bytes, common) : 0;

    return order != 0 ? order : (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

bool kvi_text_index_find(const kvi_text_index *index, const uint8_t *bytes, size_t n_bytes,
                         uint32_t *id)
{
    kvi_text_ref key = {bytes, 0, 0};
    uint32_t     lo = 0;
    uint32_t     hi = index->n_refs;

    if (!kvi_to_u32(n_bytes, &key.n_bytes))
        return false;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        const int      order = kvi_text_ref_compare(&index->refs[mid], &key);

        if (order == 0) {
            *id = index->refs[mid].id;
            return true;
        }
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return false;
}

/* First text in lo..hi-1, all of which agree in their first `depth` bytes, whose byte there is at
 * least `byte`; a text that ends at depth comes before all. */
static uint32_t narrow(const kvi_text_ref *refs, uint32_t lo, uint32_t hi, uint32_t depth,
                       uint32_t byte)
{
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;

        if (refs[mid].n_bytes == depth || refs[mid].bytes[depth] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Longest text of the index that text begins with; 0 if none. */
static size_t longest_prefix(const kvi_text_index *index, const uint8_t *text, size_t n_bytes,
                             uint32_t *id)
{
    uint32_t lo = 0;
    uint32_t hi = index->n_refs;
    size_t   found = 0;

    for (uint32_t depth = 0; depth < n_bytes && lo < hi; depth++) {
        const uint32_t begin = narrow(index->refs, lo, hi, depth, text[depth]);

        hi = narrow(index->refs, begin, hi, depth, text[depth] + 1u);
        lo = begin;
        if (lo < hi && index->refs[lo].n_bytes == depth + 1) {
            found = depth + 1;
            *id = index->refs[lo].id;
        }
    }
    return found;
}

/* ------------------------------------------------------------------ lifetime */

kvcsa_status kvi_tokenizer_open(const kvcsa_allocator *a, const char *json, size_t n_bytes,
                                const char *name, kvi_tokenizer **out, kvcsa_error *err)
{
    kvi_tokenizer *t = NULL;
    kvcsa_status   st = KVCSA_OK;

    *out = NULL;
    if (!(t = kvi_zalloc(a, sizeof *t)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "%s: tokenizer", name);
    t->alloc = *a;
    if ((st = kvi_tokenizer_read(t, json, n_bytes, name, err)) != KVCSA_OK) {
        kvi_tokenizer_destroy(t);
        return st;
    }
    *out = t;
    return KVCSA_OK;
}

void kvi_tokenizer_destroy(kvi_tokenizer *t)
{
    if (!t)
        return;
    const kvcsa_allocator a = t->alloc;

    kvi_splitter_free(&t->split);
    kvi_bpe_free(&a, &t->bpe);
    kvi_free(&a, t->by_text.refs, t->by_text.cap_refs * sizeof *t->by_text.refs);
    kvi_free(&a, t->added.refs, t->added.cap_refs * sizeof *t->added.refs);
    kvi_free(&a, t->blob, t->blob_bytes);
    kvi_free(&a, t->tokens, (size_t)t->n_ids * sizeof *t->tokens);
    kvi_free(&a, t, sizeof *t);
}

/* ------------------------------------------------------------------ look-ups */

uint32_t kvi_tokenizer_size(const kvi_tokenizer *t)
{
    return t->n_ids;
}

bool kvi_tokenizer_bytes(const kvi_tokenizer *t, int32_t id, const uint8_t **bytes, size_t *n_bytes)
{
    *bytes = t->blob;
    *n_bytes = 0;
    if (id < 0 || (uint32_t)id >= t->n_ids)
        return false;
    *bytes = t->blob + t->tokens[id].text_off;
    *n_bytes = t->tokens[id].text_len;
    return true;
}

bool kvi_tokenizer_raw(const kvi_tokenizer *t, int32_t id, const char **raw, size_t *n_bytes)
{
    *raw = (const char *)t->blob;
    *n_bytes = 0;
    if (id < 0 || (uint32_t)id >= t->n_ids)
        return false;
    *raw = (const char *)t->blob + t->tokens[id].raw_off;
    *n_bytes = t->tokens[id].raw_len;
    return true;
}

bool kvi_tokenizer_is_special(const kvi_tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->n_ids && (t->tokens[id].flags & KVI_TOKEN_SPECIAL) != 0;
}

int32_t kvi_tokenizer_find_added(const kvi_tokenizer *t, const char *content)
{
    uint32_t id = 0;

    return kvi_text_index_find(&t->added, (const uint8_t *)content, strlen(content), &id)
               ? (int32_t)id
               : -1;
}

/* ------------------------------------------------------------------ encode */

static kvcsa_status encode_plain(kvi_encoder *e, const uint8_t *text, size_t n_bytes)
{
    const uint8_t *end = text + n_bytes;
    const uint8_t *run = text;
    const uint8_t *p = text;
    kvcsa_status   st = KVCSA_OK;

    while (p < end) {
        size_t len = 0;

        if (kvi_utf8_next(p, end, &len) == KVI_UTF8_CHAR) {
            p += len;
            continue;
        }
        if (p > run && (st = kvi_split_run(e, run, (size_t)(p - run))) != KVCSA_OK)
            return st;
        kvi_encoder_emit(e, e->t->bpe.byte_id[*p++]);
        run = p;
    }
    return p > run ? kvi_split_run(e, run, (size_t)(p - run)) : KVCSA_OK;
}

/* Added tokens begin with a whole character, so a cut never falls inside one. */
static kvcsa_status encode_special(kvi_encoder *e, const uint8_t *text, size_t n_bytes)
{
    const kvi_tokenizer *t = e->t;
    size_t               plain = 0;
    size_t               pos = 0;
    kvcsa_status         st = KVCSA_OK;

    while (pos < n_bytes) {
        uint32_t     id = 0;
        const size_t len = t->added_first[text[pos]]
                               ? longest_prefix(&t->added, text + pos, n_bytes - pos, &id)
                               : 0;

        if (len == 0) {
            pos++;
            continue;
        }
        if ((st = encode_plain(e, text + plain, pos - plain)) != KVCSA_OK)
            return st;
        kvi_encoder_emit(e, id);
        pos += len;
        plain = pos;
    }
    return encode_plain(e, text + plain, n_bytes - plain);
}

kvcsa_status kvi_tokenizer_encode(const kvi_tokenizer *t, const char *text, size_t n_bytes,
                                  uint32_t flags, int32_t *ids, size_t cap, size_t *n_ids,
                                  kvcsa_error *err)
{
    kvi_encoder  e = {.t = t, .ids = ids, .cap = cap, .err = err};
    kvcsa_status st = KVCSA_OK;

    *n_ids = 0;
    if (flags & ~(uint32_t)KVCSA_TOKENIZE_SPECIAL)
        return kvi_fail(err, KVCSA_ERR_ARG, "flags is 0x%x, unknown bits", (unsigned)flags);
    if ((!text && n_bytes > 0) || (!ids && cap > 0))
        return kvi_fail(err, KVCSA_ERR_ARG, "%s is NULL", text || n_bytes == 0 ? "ids" : "text");
    if (n_bytes > KVI_TOKENIZER_MAX_TEXT_BYTES)
        return kvi_fail(err, KVCSA_ERR_ARG, "text has %zu bytes, limit %zu", n_bytes,
                        KVI_TOKENIZER_MAX_TEXT_BYTES);
    if (n_bytes == 0)
        return KVCSA_OK;
    if ((st = kvi_encoder_init_match(&e, n_bytes)) == KVCSA_OK)
        st = (flags & KVCSA_TOKENIZE_SPECIAL) ? encode_special(&e, (const uint8_t *)text, n_bytes)
                                              : encode_plain(&e, (const uint8_t *)text, n_bytes);
    if (st == KVCSA_OK)
        *n_ids = e.n_ids;
    kvi_encoder_free_match(&e);
    kvi_bpe_free_scratch(&e);
    return st;
}
