/* Shared inside this room: what a format is made of. */
#ifndef KVI_PLAN_INT_H
#define KVI_PLAN_INT_H

#include "kvcsa.h"

#define KVI_MAX_ROW_CHANNELS 65536u /* of one row: all heads, keys and stored values */
#define KVI_MAX_FORMAT ((uint32_t)KVCSA_FORMAT_CSA_FP8_584)

/* Groups of channels and their bytes, scales included. A record comes in one width only.
 * can_store: operators encode and decode entries in it. */
typedef struct kvi_format {
    const char *name;
    uint32_t    channels;
    uint32_t    bytes;
    int         is_record;
    int         can_store;
} kvi_format;

/* NULL = no such format. */
const kvi_format *kvi_format_find(uint32_t id);

#endif
