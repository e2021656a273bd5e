/* Text for people: one line of valid UTF-8 from whatever bytes came in. */
#ifndef KVI_LINE_INT_H
#define KVI_LINE_INT_H

#include <stddef.h>

/* Copy n bytes into out, which holds cap bytes (at least 1), and terminate it. Each control
 * character, each line separator and each byte that is no part of a UTF-8 character becomes '?'.
 * Cut at a character. Returns the length. */
size_t kvi_clean_line(char *out, size_t cap, const char *raw, size_t n);

#endif
