/* What the public functions share. */
#ifndef KVI_API_INT_H
#define KVI_API_INT_H

#include "base/params.h"
#include "base/status.h"

/* if (!p) return ERR_ARG "p is NULL" */
#define KVI_REQUIRE(p, err)                                                                        \
    do {                                                                                           \
        if (!(p))                                                                                  \
            return kvi_fail((err), KVCSA_ERR_ARG, "%s is NULL", #p);                               \
    } while (0)

/* Sizes of the structs in 0.1, which is the first release: no smaller struct_size can be real. */
#define KVI_IMPORT(ours, theirs, name, err)                                                        \
    kvi_params_import(&(ours), sizeof(ours), sizeof(ours), (theirs), (name), (err))
#define KVI_EXPORT(ours, theirs, name, err)                                                        \
    kvi_params_export(&(ours), sizeof(ours), sizeof(ours), (theirs), (name), (err))

#endif
