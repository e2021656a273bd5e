/* Text stream: bytes of tokens -> characters -> text that no stop string can take back.
 *
 * (X1) pending holds the beginning of one character, at most 3 bytes.
 * (X2) held is text that was not given out: no stop string begins before it, and some stop string
 *      may begin at its start.
 * (X3) What comes out depends on the tokens' bytes alone, not on how they are cut into tokens: it
 *      is the text before the stop string with the earliest beginning; of those that begin at the
 *      same place the one with the lowest index. So a stop string that is complete still waits for
 *      another that began earlier, or at the same place with a lower index.
 *
 *   running -> stopped   push, when a stop string is met; later pushes give "" and the same index
 *   any     -> running   finish: as new, nothing held
 *
 * A token of a special kind adds nothing; bytes around it belong together.
 */
#include "text/text_stream.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"
#include "text/utf8_int.h"

#include <string.h>

#define PENDING_BYTES 3

struct kvi_text_stream {
    kvcsa_allocator      alloc;
    const kvi_tokenizer *t;
    char               **stops;
    size_t              *stop_bytes;
    size_t               n_stops;
    kvi_buf              held; /* u8 [n_held] */
    kvi_buf              out;  /* the text of the last call, terminated */
    size_t               n_held;
    size_t               n_pending;
    int32_t              stopped; /* -1 = running */
    uint8_t              pending[PENDING_BYTES];
};

/* ------------------------------------------------------------------ lifetime */

static bool is_valid_utf8(const uint8_t *p, size_t n)
{
    const uint8_t *end = p + n;
    size_t         len = 0;

    for (; p < end; p += len)
        if (kvi_utf8_next(p, end, &len) != KVI_UTF8_CHAR)
            return false;
    return true;
}

static kvcsa_status copy_stops(kvi_text_stream *s, const char *const *stops, size_t n_stops,
                               kvcsa_error *err)
{
    if (n_stops > INT32_MAX)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_stops is %zu, limit %d", n_stops, INT32_MAX);
    if (!stops && n_stops > 0)
        return kvi_fail(err, KVCSA_ERR_ARG, "stops is NULL, n_stops is %zu", n_stops);
    for (size_t i = 0; i < n_stops; i++) {
        if (!stops[i] || !stops[i][0])
            return kvi_fail(err, KVCSA_ERR_ARG, "stops[%zu] is %s", i, stops[i] ? "empty" : "NULL");
        if (!is_valid_utf8((const uint8_t *)stops[i], strlen(stops[i])))
            return kvi_fail(err, KVCSA_ERR_ARG,
                            "stops[%zu] is not UTF-8, the text never matches it", i);
    }
    s->n_stops = n_stops;
    s->stops = kvi_zalloc(&s->alloc, n_stops * sizeof *s->stops);
    s->stop_bytes = kvi_zalloc(&s->alloc, n_stops * sizeof *s->stop_bytes);
    if (!s->stops || !s->stop_bytes)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "%zu stop strings", n_stops);
    for (size_t i = 0; i < n_stops; i++) {
        if (!(s->stops[i] = kvi_strdup(&s->alloc, stops[i])))
            return kvi_fail(err, KVCSA_ERR_NOMEM, "stop string %zu", i);
        s->stop_bytes[i] = strlen(stops[i]);
    }
    return KVCSA_OK;
}

kvcsa_status kvi_text_stream_create(const kvcsa_allocator *a, const kvi_tokenizer *t,
                                    const char *const *stops, size_t n_stops, kvi_text_stream **out,
                                    kvcsa_error *err)
{
    kvi_text_stream *s = NULL;
    kvcsa_status     st = KVCSA_OK;

    *out = NULL;
    if (!(s = kvi_zalloc(a, sizeof *s)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "text stream");
    s->alloc = *a;
    s->t = t;
    s->stopped = -1;
    if ((st = copy_stops(s, stops, n_stops, err)) != KVCSA_OK) {
        kvi_text_stream_destroy(s);
        return st;
    }
    *out = s;
    return KVCSA_OK;
}

void kvi_text_stream_destroy(kvi_text_stream *s)
{
    if (!s)
        return;
    const kvcsa_allocator a = s->alloc;

    for (size_t i = 0; s->stops && i < s->n_stops; i++)
        if (s->stops[i])
            kvi_strfree(&a, s->stops[i]);
    kvi_free(&a, s->stops, s->n_stops * sizeof *s->stops);
    kvi_free(&a, s->stop_bytes, s->n_stops * sizeof *s->stop_bytes);
    kvi_buf_free(&a, &s->held, 1);
    kvi_buf_free(&a, &s->out, 1);
    kvi_free(&a, s, sizeof *s);
}

/* ------------------------------------------------------------------ bytes -> held text */

/* Room for n more bytes of text, held and given out at once, so that nothing fails half-way. */
static kvcsa_status reserve(kvi_text_stream *s, size_t n_bytes, kvcsa_error *err)
{
    size_t more = 0;
    size_t need = 0;

    /* every byte may become a U+FFFD of 3; one more for the terminator */
    if (!kvi_add_size(n_bytes, PENDING_BYTES, &more) || !kvi_mul_size(more, 3, &more) ||
        !kvi_add_size(s->n_held + 1, more, &need) ||
        !kvi_buf_reserve(&s->alloc, &s->held, 1, s->n_held, need) ||
        !kvi_buf_reserve(&s->alloc, &s->out, 1, 0, need))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "text of %zu bytes", n_bytes);
    return KVCSA_OK;
}

static void hold(kvi_text_stream *s, const void *bytes, size_t n)
{
    memcpy((uint8_t *)s->held.data + s->n_held, bytes, n);
    s->n_held += n;
}

/* Take whole characters and bad bytes from p..end; returns how many bytes are left over (the
 * beginning of a character). */
static size_t take_text(kvi_text_stream *s, const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        size_t              len = 0;
        const kvi_utf8_kind kind = kvi_utf8_next(p, end, &len);

        if (kind == KVI_UTF8_SHORT)
            break;
        if (kind == KVI_UTF8_CHAR)
            hold(s, p, len);
        else
            hold(s, "\xEF\xBF\xBD", 3);
        p += len;
    }
    return (size_t)(end - p);
}

static void take_bytes(kvi_text_stream *s, const uint8_t *bytes, size_t n)
{
    /* Complete the pending character byte by byte; at most three steps lead back to whole input. */
    while (s->n_pending > 0 && n > 0) {
        uint8_t joined[PENDING_BYTES + 1];
        size_t  n_joined = s->n_pending + 1;
        size_t  left = 0;

        memcpy(joined, s->pending, s->n_pending);
        joined[s->n_pending] = *bytes++;
        n--;
        left = take_text(s, joined, joined + n_joined);
        memcpy(s->pending, joined + n_joined - left, left);
        s->n_pending = left;
    }
    if (n > 0) {
        s->n_pending = take_text(s, bytes, bytes + n);
        memcpy(s->pending, bytes + n - s->n_pending, s->n_pending);
    }
}

/* ------------------------------------------------------------------ held text -> out */

typedef enum verdict { STOP_NONE, STOP_MAYBE, STOP_MET } verdict;

/* Is there a stop string at `at`? The lowest index wins, so one that may still be completed hides
 * those after it. */
static verdict stop_at(const kvi_text_stream *s, size_t at, bool final, int32_t *which)
{
    const size_t left = s->n_held - at;

    for (size_t i = 0; i < s->n_stops; i++) {
        const size_t common = kvi_min_size(left, s->stop_bytes[i]);

        if (memcmp((const uint8_t *)s->held.data + at, s->stops[i], common) != 0)
            continue;
        if (common == s->stop_bytes[i]) {
            *which = (int32_t)i;
            return STOP_MET;
        }
        if (!final)
            return STOP_MAYBE;
    }
    return STOP_NONE;
}

/* Give out what is safe; final = there will be no more text. */
static void release_text(kvi_text_stream *s, bool final, const char **text, size_t *n_bytes)
{
    char   *out = s->out.data;
    size_t  n = 0;
    verdict v = STOP_NONE;

    while (n < s->n_held && (v = stop_at(s, n, final, &s->stopped)) == STOP_NONE)
        n++;
    if (n > 0)
        memcpy(out, s->held.data, n);
    out[n] = 0;
    s->n_held = v == STOP_MET ? 0 : s->n_held - n;
    if (s->n_held > 0)
        memmove(s->held.data, (uint8_t *)s->held.data + n, s->n_held);
    *text = out;
    *n_bytes = n;
}

kvcsa_status kvi_text_stream_push(kvi_text_stream *s, int32_t token, const char **text,
                                  size_t *n_bytes, int32_t *stopped, kvcsa_error *err)
{
    const uint8_t *bytes = NULL;
    size_t         n = 0;
    kvcsa_status   st = KVCSA_OK;

    *text = "";
    *n_bytes = 0;
    *stopped = s->stopped;
    if (!kvi_tokenizer_bytes(s->t, token, &bytes, &n))
        return kvi_fail(err, KVCSA_ERR_ARG, "token is %d, limit 0 to %u", (int)token,
                        (unsigned)kvi_tokenizer_size(s->t) - 1);
    if (s->stopped >= 0)
        return KVCSA_OK;
    if (kvi_tokenizer_is_special(s->t, token))
        n = 0;
    if ((st = reserve(s, n, err)) != KVCSA_OK)
        return st;
    take_bytes(s, bytes, n);
    release_text(s, false, text, n_bytes);
    *stopped = s->stopped;
    return KVCSA_OK;
}

kvcsa_status kvi_text_stream_finish(kvi_text_stream *s, const char **text, size_t *n_bytes,
                                    kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    *text = "";
    *n_bytes = 0;
    if ((st = reserve(s, 0, err)) != KVCSA_OK)
        return st;
    if (s->stopped < 0) {
        if (s->n_pending > 0) /* half a character: one maximal subpart */
            hold(s, "\xEF\xBF\xBD", 3);
        release_text(s, true, text, n_bytes);
    }
    s->n_held = 0;
    s->n_pending = 0;
    s->stopped = -1;
    return KVCSA_OK;
}
