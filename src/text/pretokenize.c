/* Split steps: regular expressions of the file cut a text into the pieces that are merged on their
 * own.
 *
 * The file's expressions are written for Oniguruma and given to PCRE2 as they stand; for the three
 * of the release both agree but for U+180E, which PCRE2's \s counts as a blank, and for characters
 * younger than PCRE2's Unicode version. An expression is hostile input: it has no \C, bounded size,
 * and a bounded number of backtracks for each position that it is tried at, so an exponential one
 * ends in an error.
 */
#include "text/tokenizer_int.h"

#include "base/checked.h"
#include "base/status.h"

#include <string.h>

#define MATCH_STEPS_BASE     10000u /* what short texts need at most, with room */
#define MATCH_STEPS_PER_BYTE 4u     /* \s*[\r\n]+ gives back every blank of a run once */
#define MATCH_HEAP_KIB       (64u << 10)

/* ------------------------------------------------------------------ PCRE2's memory */

#define BLOCK_HEAD 64 /* room for the size before each block; keeps the alignment of kvi_alloc */

static void *block_alloc(size_t size, void *user)
{
    size_t total = 0;
    char  *p = NULL;

    if (!kvi_add_size(size, BLOCK_HEAD, &total) || !(p = kvi_alloc(user, total)))
        return NULL;
    memcpy(p, &total, sizeof total);
    return p + BLOCK_HEAD;
}

static void block_free(void *ptr, void *user)
{
    size_t total = 0;
    char  *p = ptr;

    if (!p)
        return;
    memcpy(&total, p - BLOCK_HEAD, sizeof total);
    kvi_free(user, p - BLOCK_HEAD, total);
}

/* ------------------------------------------------------------------ expressions */

kvcsa_status kvi_splitter_init(const kvcsa_allocator *alloc, kvi_splitter *s, kvcsa_error *err)
{
    s->n_steps = 0;
    s->gctx = pcre2_general_context_create(block_alloc, block_free, (void *)(uintptr_t)alloc);
    if (!s->gctx)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "memory context of the regular expressions");
    return KVCSA_OK;
}

kvcsa_status kvi_splitter_add(kvi_splitter *s, const char *pattern, size_t n_bytes, bool literal,
                              const char *name, kvcsa_error *err)
{
    const uint32_t options =
        literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    char        why[128] = "";
    int         code = 0;
    PCRE2_SIZE  at = 0;
    pcre2_code *re = NULL;

    if (s->n_steps == KVI_TOKENIZER_MAX_STEPS)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "%s: pre_tokenizer has more than %u steps",
                        name, KVI_TOKENIZER_MAX_STEPS);
    if (n_bytes == 0 || n_bytes > KVI_TOKENIZER_MAX_REGEX_BYTES)
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "%s: pre_tokenizer step %u: pattern has %zu bytes, limit 1 to %u", name,
                        (unsigned)s->n_steps, n_bytes, KVI_TOKENIZER_MAX_REGEX_BYTES);
    pcre2_compile_context *cctx = pcre2_compile_context_create(s->gctx);
    if (cctx)
        re = pcre2_compile((PCRE2_SPTR)pattern, n_bytes, options, &code, &at, cctx);
    pcre2_compile_context_free(cctx);
    if (!cctx || (!re && code == PCRE2_ERROR_HEAP_FAILED))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "%s: pre_tokenizer step %u: regular expression", name,
                        (unsigned)s->n_steps);
    if (!re) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "%s: pre_tokenizer step %u: regular expression, byte %zu: %s", name,
                        (unsigned)s->n_steps, (size_t)at, why);
    }
    /* Machine code where the host permits it; otherwise pcre2_match interprets. */
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    s->step[s->n_steps++] = re;
    return KVCSA_OK;
}

void kvi_splitter_free(kvi_splitter *s)
{
    for (uint32_t i = 0; i < s->n_steps; i++)
        pcre2_code_free(s->step[i]);
    s->n_steps = 0;
    pcre2_general_context_free(s->gctx);
    s->gctx = NULL;
}

/* ------------------------------------------------------------------ matching */

kvcsa_status kvi_encoder_init_match(kvi_encoder *e, size_t n_bytes)
{
    const uint64_t steps = MATCH_STEPS_BASE + (uint64_t)MATCH_STEPS_PER_BYTE * n_bytes;
    const uint32_t limit = steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX;

    /* Room for the whole match only; groups of the expression are of no interest. */
    e->match = pcre2_match_data_create(1, e->t->split.gctx);
    e->limits = pcre2_match_context_create(e->t->split.gctx);
    if (!e->match || !e->limits)
        return kvi_fail(e->err, KVCSA_ERR_NOMEM, "match data");
    pcre2_set_match_limit(e->limits, limit);
    pcre2_set_depth_limit(e->limits, limit);
    pcre2_set_heap_limit(e->limits, MATCH_HEAP_KIB);
    return KVCSA_OK;
}

void kvi_encoder_free_match(kvi_encoder *e)
{
    pcre2_match_data_free(e->match);
    pcre2_match_context_free(e->limits);
    e->match = NULL;
    e->limits = NULL;
}

/* Next match at or after pos. *found false = none. */
static kvcsa_status find_match(kvi_encoder *e, uint32_t step, const uint8_t *text, size_t n_bytes,
                               size_t pos, bool *found, size_t *begin, size_t *end)
{
    const pcre2_code *re = e->t->split.step[step];
    int rc = pcre2_match(re, text, n_bytes, pos, PCRE2_NO_UTF_CHECK, e->match, e->limits);

    *found = false;
    /* The machine code has a small stack, the interpreter the heap. */
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(re, text, n_bytes, pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, e->match,
                         e->limits);
    if (rc == PCRE2_ERROR_NOMATCH)
        return KVCSA_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return kvi_fail(e->err, KVCSA_ERR_NOMEM, "pre_tokenizer step %u: match", (unsigned)step);
    if (rc < 0)
        return kvi_fail_code(e->err, KVCSA_ERR_UNSUPPORTED, rc,
                             "pre_tokenizer step %u: regular expression gives up on a text of %zu "
                             "bytes (PCRE2 error %d)",
                             (unsigned)step, n_bytes, rc);
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(e->match);
    if (span[0] < pos || span[1] < span[0]) /* \K can do that */
        return kvi_fail(e->err, KVCSA_ERR_UNSUPPORTED,
                        "pre_tokenizer step %u: match runs backwards", (unsigned)step);
    *found = true;
    *begin = span[0];
    *end = span[1];
    return KVCSA_OK;
}

/* Matches and the gaps between them go on to the next step, each as a text of its own ("Isolated").
 * A match of no bytes cuts too, unless it stands right after a match. Recursion is as deep as there
 * are steps. */
static kvcsa_status split_from(kvi_encoder *e, uint32_t step, const uint8_t *text, size_t n_bytes)
{
    size_t       pos = 0;
    size_t       done = 0; /* everything before has gone on */
    bool         after_match = false;
    kvcsa_status st = KVCSA_OK;

    if (n_bytes == 0)
        return KVCSA_OK;
    if (step == e->t->split.n_steps)
        return kvi_bpe_encode(e, text, n_bytes);
    while (pos < n_bytes) {
        bool   found = false;
        size_t begin = 0;
        size_t end = 0;

        if ((st = find_match(e, step, text, n_bytes, pos, &found, &begin, &end)) != KVCSA_OK)
            return st;
        if (!found)
            break;
        if (begin == end && after_match &&
            begin == pos) { /* the bytes are valid UTF-8: step over one character */
            do
                pos++;
            while (pos < n_bytes && (text[pos] & 0xC0) == 0x80);
            after_match = false;
            continue;
        }
        if ((st = split_from(e, step + 1, text + done, begin - done)) != KVCSA_OK ||
            (st = split_from(e, step + 1, text + begin, end - begin)) != KVCSA_OK)
            return st;
        done = end;
        pos = end;
        after_match = true;
    }
    return split_from(e, step + 1, text + done, n_bytes - done);
}

kvcsa_status kvi_split_run(kvi_encoder *e, const uint8_t *text, size_t n_bytes)
{
    return split_from(e, 0, text, n_bytes);
}
