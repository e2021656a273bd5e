/* Status names and filling a kvcsa_error. */
#ifndef KVI_STATUS_H
#define KVI_STATUS_H

#include "kvcsa.h"

#if defined(__MINGW32__) && !defined(__clang__)
#define KVI_PRINTF(f, a) __attribute__((format(gnu_printf, f, a)))
#elif defined(__GNUC__) || defined(__clang__)
#define KVI_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define KVI_PRINTF(f, a)
#endif

const char *kvi_status_name(kvcsa_status status);

/* Write status and a one-line message into err (may be NULL), which is returned. Control
 * characters and bytes that are not UTF-8 become '?', so that a hostile name cannot break a log. */
kvcsa_status kvi_fail(kvcsa_error *err, kvcsa_status status, const char *format, ...) KVI_PRINTF(3,
                      4);

/* The same with the native code (errno). */
kvcsa_status kvi_fail_code(kvcsa_error *err, kvcsa_status status, int32_t detail,
                           const char *format, ...) KVI_PRINTF(4, 5);

/* Set err to "no error". */
void kvi_error_clear(kvcsa_error *err);

/* Only our own bug can make x false; on in debug and test builds (-DKVI_DEBUG). */
#ifdef KVI_DEBUG
void kvi_assert_failed(const char *what, const char *file, int line);
#define KVI_ASSERT(x) ((x) ? (void)0 : kvi_assert_failed(#x, __FILE__, __LINE__))
#else
#define KVI_ASSERT(x) ((void)sizeof(x))
#endif

#endif
