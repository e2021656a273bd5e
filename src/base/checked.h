/* Sizes from a caller, a file or a device go through these before they are used. false =
 * overflow. */
#ifndef KVI_CHECKED_H
#define KVI_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sizes of caches go beyond 4 GiB, and files are mapped or copied as they lie. */
_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "kvcsa runs on 64-bit hosts only");
#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kvcsa runs on little-endian hosts only"
#endif

static inline bool kvi_add_size(size_t a, size_t b, size_t *out)
{
    *out = a + b;
    return a <= SIZE_MAX - b;
}

static inline bool kvi_mul_size(size_t a, size_t b, size_t *out)
{
    *out = a * b;
    return b == 0 || a <= SIZE_MAX / b;
}

static inline bool kvi_to_u32(uint64_t a, uint32_t *out)
{
    *out = (uint32_t)a;
    return a <= UINT32_MAX;
}

static inline size_t kvi_min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t kvi_max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline size_t kvi_div_up(size_t a, size_t b) { return a / b + (a % b != 0); }

#endif
