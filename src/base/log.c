#include "base/log.h"

#include "base/line_int.h"

#include <stdarg.h>
#include <stdio.h>

#define LINE_CAP 512

void kvi_log(const kvcsa_log *log, int32_t level, const char *format, ...)
{
    char    raw[LINE_CAP];
    char    line[LINE_CAP];
    va_list args;
    int     n = 0;

    if (!log || !log->write)
        return;
    va_start(args, format);
    n = vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    if (n < 0)
        return;
    if ((size_t)n >= sizeof raw)
        n = (int)sizeof raw - 1;
    kvi_clean_line(line, sizeof line, raw, (size_t)n);
    log->write(log->user, level, line);
}
