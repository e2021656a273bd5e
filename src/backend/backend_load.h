/* Plug-ins: shared objects with a table of operators for another kind of device. */
#ifndef KVI_BACKEND_LOAD_H
#define KVI_BACKEND_LOAD_H

#include "backend/backend.h"

typedef struct kvi_backend_found {
    const kvi_backend_ops *ops;    /* NULL = none; never goes away: a plug-in is not unloaded */
    int32_t                score;  /* above 0 where ops is set; the larger the better */
    char                   why[320]; /* what was found, or why nothing */
} kvi_backend_found;

/* Open libkvcsa_NAME.so in `dir`, an absolute path, or with NULL beside the object this code is in
 * (the shared library, or the program that it was linked into); no other place is looked at. It must
 * be of this build's KVI_BACKEND_ABI and find a device. What is missing is told in `why` and logged
 * as KVCSA_LOG_INFO; nothing of it is an error, since the CPU is always there. */
void kvi_backend_load(const char *dir, const char *name, const kvi_host_ops *host,
                      kvi_backend_found *found);

#endif
