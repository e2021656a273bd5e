/* Importing and exporting size-tagged structs (first field: size_t struct_size). */
#ifndef KVI_PARAMS_H
#define KVI_PARAMS_H

#include "kvcsa.h"

/* ours holds the defaults and its own struct_size. Copies min(theirs, ours) bytes over it.
 * theirs NULL = defaults. first_size: size in the first release. Refuses a smaller struct
 * (ERR_ARG), or set bytes beyond what we know (ERR_UNSUPPORTED). `what` names the struct in the
 * message. */
kvcsa_status kvi_params_import(void *ours, size_t ours_size, size_t first_size, const void *theirs,
                               const char *what,
                               kvcsa_error *err);

/* Fill the caller's output struct, no more than its struct_size, which stays. */
kvcsa_status kvi_params_export(const void *ours, size_t ours_size, size_t first_size, void *theirs,
                               const char *what,
                               kvcsa_error *err);

/* kvcsa_x_params_default(): zero the caller's struct, then copy what it knows of `defaults` and
 * set struct_size. */
void kvi_params_default(void *theirs, size_t theirs_size, const void *defaults, size_t ours_size);

#define KVI_NO_TAIL_PADDING(S, last) \
    _Static_assert(sizeof(S) == offsetof(S, last) + sizeof(((S *)0)->last), "tail padding in " #S)

#endif
