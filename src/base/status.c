#include "base/status.h"

#include "base/line_int.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#ifdef KVI_DEBUG
#include <stdlib.h>
#endif

_Static_assert(sizeof(kvcsa_error) == 256, "kvcsa_error is frozen");

#define TEXT_CAP sizeof(((kvcsa_error *)0)->text)

/* A raw byte gives at most one clean byte, so no more raw text is wanted than fits; the 4 bytes
 * more let the last character that can fit be seen whole. */
#define RAW_CAP (TEXT_CAP + 4)

const char *kvi_status_name(kvcsa_status status)
{
    switch (status) {
    case KVCSA_OK: return "KVCSA_OK";
    case KVCSA_ERR_INTERNAL: return "KVCSA_ERR_INTERNAL";
    case KVCSA_ERR_ARG: return "KVCSA_ERR_ARG";
    case KVCSA_ERR_NOMEM: return "KVCSA_ERR_NOMEM";
    case KVCSA_ERR_FULL: return "KVCSA_ERR_FULL";
    case KVCSA_ERR_UNSUPPORTED: return "KVCSA_ERR_UNSUPPORTED";
    case KVCSA_ERR_BACKEND: return "KVCSA_ERR_BACKEND";
    case KVCSA_ERR_FORMAT: return "KVCSA_ERR_FORMAT";
    case KVCSA_ERR_IO: return "KVCSA_ERR_IO";
    case KVCSA_ERR_BUSY: return "KVCSA_ERR_BUSY";
    case KVCSA_ERR_CANCELLED: return "KVCSA_ERR_CANCELLED";
    case KVCSA_ERR_MISMATCH: return "KVCSA_ERR_MISMATCH";
    case KVCSA_ERR_CORRUPT: return "KVCSA_ERR_CORRUPT";
    case KVCSA_ERR_LIMIT: return "KVCSA_ERR_LIMIT";
    default: return "KVCSA_ERR_?";
    }
}

/* Length of the UTF-8 character at s, 0 if there is none (RFC 3629: shortest form only, no
 * surrogates, at most U+10FFFF). */
static size_t decode_char(const unsigned char *s, size_t n, uint32_t *code)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t                len = 0;

    if (s[0] < 0x80)
        len = 1;
    else if (s[0] >= 0xC2 && s[0] < 0xE0)
        len = 2;
    else if (s[0] >= 0xE0 && s[0] < 0xF0)
        len = 3;
    else if (s[0] >= 0xF0 && s[0] < 0xF5)
        len = 4;
    if (len == 0 || len > n)
        return 0;

    *code = len == 1 ? s[0] : s[0] & (0x7Fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xC0u) != 0x80)
            return 0;
        *code = *code << 6 | (s[i] & 0x3Fu);
    }
    if (*code < least[len] || *code > 0x10FFFF || (*code >= 0xD800 && *code <= 0xDFFF))
        return 0;
    return len;
}

/* C0, DEL, C1, and the two separators that some viewers break a line at. */
static int is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029;
}

size_t kvi_clean_line(char *out, size_t cap, const char *raw, size_t n)
{
    const unsigned char *s = (const unsigned char *)raw;
    size_t               used = 0;
    size_t               len = 0;

    for (size_t i = 0; i < n; i += len) {
        uint32_t code = 0;
        size_t   found = decode_char(s + i, n - i, &code);
        int      replace = found == 0 || is_control(code);

        len = found == 0 ? 1 : found;
        if (used + (replace ? 1 : len) >= cap)
            break;
        if (replace) {
            out[used++] = '?';
        } else {
            memcpy(out + used, s + i, len);
            used += len;
        }
    }
    out[used] = '\0';
    return used;
}

static void KVI_PRINTF(4, 0) set_error(kvcsa_error *err, kvcsa_status status, int32_t detail,
                                       const char *format, va_list args)
{
    char raw[RAW_CAP];
    int  n = 0;

    if (!err)
        return;
    /* by way of raw: an argument may be the text that is in err */
    n = vsnprintf(raw, sizeof raw, format, args);
    if (n < 0)
        n = 0;
    if ((size_t)n >= sizeof raw)
        n = (int)sizeof raw - 1;
    memset(err, 0, sizeof *err);
    err->status = status;
    err->detail = detail;
    kvi_clean_line(err->text, sizeof err->text, raw, (size_t)n);
}

kvcsa_status kvi_fail(kvcsa_error *err, kvcsa_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    set_error(err, status, 0, format, args);
    va_end(args);
    return status;
}

kvcsa_status kvi_fail_code(kvcsa_error *err, kvcsa_status status, int32_t detail,
                           const char *format, ...)
{
    va_list args;

    va_start(args, format);
    set_error(err, status, detail, format, args);
    va_end(args);
    return status;
}

void kvi_error_clear(kvcsa_error *err)
{
    if (err)
        memset(err, 0, sizeof *err);
}

#ifdef KVI_DEBUG
void kvi_assert_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: broken: %s\n", file, line, what);
    abort();
}
#endif
