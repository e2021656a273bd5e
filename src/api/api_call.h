/* What public functions share, here and in measure/. */
#ifndef KVI_API_CALL_H
#define KVI_API_CALL_H

#include "base/params.h"
#include "base/status.h"

/* if (!p) return ERR_ARG "p is NULL" */
#define KVI_REQUIRE(p, err)                                                                        \
    do {                                                                                           \
        if (!(p))                                                                                  \
            return kvi_fail((err), KVCSA_ERR_ARG, "%s is NULL", #p);                               \
    } while (0)

/* Structs that are as they were in their first release: no smaller struct_size can be real. */
#define KVI_IMPORT(ours, theirs, name, err)                                                        \
    kvi_params_import(&(ours), sizeof(ours), sizeof(ours), (theirs), (name), (err))
#define KVI_EXPORT(ours, theirs, name, err)                                                        \
    kvi_params_export(&(ours), sizeof(ours), sizeof(ours), (theirs), (name), (err))

/* Structs that have grown: `field` is the first one that the first release did not have, so its
 * offset is the size of that release. */
#define KVI_IMPORT_GROWN(ours, field, theirs, name, err)                                           \
    kvi_params_import(&(ours), sizeof(ours), KVI_SIZE_BEFORE(ours, field), (theirs), (name), (err))
#define KVI_EXPORT_GROWN(ours, field, theirs, name, err)                                           \
    kvi_params_export(&(ours), sizeof(ours), KVI_SIZE_BEFORE(ours, field), (theirs), (name), (err))
#define KVI_SIZE_BEFORE(ours, field)                                                               \
    ((size_t)((const char *)&(ours).field - (const char *)&(ours)))

/* The size in the first release, as a fact that must not move. */
#define KVI_FIRST_SIZE(S, field, n_bytes)                                                          \
    _Static_assert(offsetof(S, field) == (n_bytes), "size of " #S " in its first release")

#endif
