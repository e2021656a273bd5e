/* Strict UTF-8: no surrogates, no overlong forms, nothing above U+10FFFF. */
#ifndef KVI_UTF8_INT_H
#define KVI_UTF8_INT_H

#include <stddef.h>
#include <stdint.h>

typedef enum kvi_utf8_kind {
    KVI_UTF8_CHAR, /* *len bytes are one character */
    KVI_UTF8_BAD,  /* *len bytes are a "maximal subpart": one U+FFFD stands for all of them */
    KVI_UTF8_SHORT /* the *len bytes up to the end are the beginning of a character */
} kvi_utf8_kind;

/* What stands at p (p < end). The second byte alone tells overlong forms, surrogates and too large
 * values apart (Unicode Standard, table 3-7), so the longest well-formed beginning is found without
 * backing up. */
static inline kvi_utf8_kind kvi_utf8_next(const uint8_t *p, const uint8_t *end, size_t *len)
{
    const uint8_t lead = p[0];
    size_t        want = lead < 0x80   ? 1
                         : lead < 0xC2 ? 0
                         : lead < 0xE0 ? 2
                         : lead < 0xF0 ? 3
                         : lead < 0xF5 ? 4
                                       : 0;
    uint8_t       low = 0x80;
    uint8_t       high = 0xBF;

    *len = 1;
    if (want == 0)
        return KVI_UTF8_BAD;
    if (lead == 0xE0)
        low = 0xA0;
    else if (lead == 0xED)
        high = 0x9F;
    else if (lead == 0xF0)
        low = 0x90;
    else if (lead == 0xF4)
        high = 0x8F;
    while (*len < want) {
        if (p + *len == end)
            return KVI_UTF8_SHORT;
        if (p[*len] < low || p[*len] > high)
            return KVI_UTF8_BAD;
        low = 0x80;
        high = 0xBF;
        *len += 1;
    }
    return KVI_UTF8_CHAR;
}

/* Code point of a character of len bytes. */
static inline int32_t kvi_utf8_value(const uint8_t *p, size_t len)
{
    int32_t cp = len == 1 ? p[0] : p[0] & (0x7F >> len);

    for (size_t i = 1; i < len; i++)
        cp = (cp << 6) | (p[i] & 0x3F);
    return cp;
}

#endif
