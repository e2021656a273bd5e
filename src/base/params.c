#include "base/params.h"

#include "base/checked.h"
#include "base/status.h"

#include <string.h>

/* The bytes behind what we know are read, so a size that was never set must not lead us far: no
 * struct of any release comes near this. */
#define LARGEST_STRUCT 4096u

static kvcsa_status read_size(const void *theirs, size_t first_size, const char *what, size_t *size,
                              kvcsa_error *err)
{
    memcpy(size, theirs, sizeof *size);
    if (*size < first_size)
        return kvi_fail(err, KVCSA_ERR_ARG, "%s.struct_size is %zu, must be at least %zu", what,
                        *size, first_size);
    if (*size > LARGEST_STRUCT)
        return kvi_fail(err, KVCSA_ERR_ARG, "%s.struct_size is %zu, limit %u", what, *size,
                        LARGEST_STRUCT);
    return KVCSA_OK;
}

kvcsa_status kvi_params_import(void *ours, size_t ours_size, size_t first_size, const void *theirs,
                               const char *what, kvcsa_error *err)
{
    const unsigned char *from = theirs;
    const size_t         head = sizeof(size_t); /* struct_size: ours stays */
    kvcsa_status         st = KVCSA_OK;
    size_t               size = 0;

    if (!theirs)
        return KVCSA_OK;
    st = read_size(theirs, first_size, what, &size, err);
    if (st != KVCSA_OK)
        return st;
    for (size_t i = ours_size; i < size; i++) {
        if (from[i])
            return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                            "%s has a field at byte %zu set, this version knows %zu bytes", what, i,
                            ours_size);
    }
    memcpy((unsigned char *)ours + head, from + head, kvi_min_size(size, ours_size) - head);
    return KVCSA_OK;
}

kvcsa_status kvi_params_export(const void *ours, size_t ours_size, size_t first_size, void *theirs,
                               const char *what, kvcsa_error *err)
{
    const size_t head = sizeof(size_t);
    kvcsa_status st = KVCSA_OK;
    size_t       size = 0;
    size_t       known = 0;

    if (!theirs)
        return kvi_fail(err, KVCSA_ERR_ARG, "%s is NULL", what);
    st = read_size(theirs, first_size, what, &size, err);
    if (st != KVCSA_OK)
        return st;
    known = kvi_min_size(size, ours_size);
    memcpy((unsigned char *)theirs + head, (const unsigned char *)ours + head, known - head);
    memset((unsigned char *)theirs + known, 0,
           size - known); /* fields of a later release: nothing known */
    return KVCSA_OK;
}

void kvi_params_default(void *theirs, size_t theirs_size, const void *defaults, size_t ours_size)
{
    if (!theirs || theirs_size < sizeof(size_t))
        return;
    memset(theirs, 0, theirs_size);
    memcpy(theirs, defaults, kvi_min_size(theirs_size, ours_size));
    memcpy(theirs, &theirs_size, sizeof theirs_size);
}
