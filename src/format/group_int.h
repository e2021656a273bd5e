/* What the quantisers of this room share. */
#ifndef KVI_GROUP_INT_H
#define KVI_GROUP_INT_H

#include <stddef.h>

#include "base/bytes.h"

#define KVI_BITS_INFINITY 0x7f800000u /* of a magnitude; NaN lies above */

/* Bits of the largest magnitude. Magnitudes compare like their bits, and NaN and infinity come out
 * on top, so that one comparison by the caller finds them. */
static inline uint32_t kvi_amax_bits(const float *x, size_t n)
{
    uint32_t m = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t a = kvi_f32_bits(x[i]) & 0x7fffffffu;

        m = a > m ? a : m;
    }
    return m;
}

#endif
