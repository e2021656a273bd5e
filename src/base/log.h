/* The log hook: one formatted line a call; nothing without a hook. */
#ifndef KVI_LOG_H
#define KVI_LOG_H

#include "base/status.h"

void kvi_log(const kvcsa_log *log, int32_t level, const char *format, ...) KVI_PRINTF(3, 4);

#endif
