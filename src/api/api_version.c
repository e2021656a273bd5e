#include "api/api_call.h"

#define STR2(x) #x
#define STR(x) STR2(x)

_Static_assert(KVCSA_VERSION_NUMBER ==
                   KVCSA_VERSION_MAJOR * 10000 + KVCSA_VERSION_MINOR * 100 + KVCSA_VERSION_PATCH,
               "version number");
_Static_assert(sizeof(kvcsa_error) == 256, "kvcsa_error is frozen");

uint32_t kvcsa_version_number(void)
{
    return KVCSA_VERSION_NUMBER;
}

const char *kvcsa_version_string(void)
{
    return STR(KVCSA_VERSION_MAJOR) "." STR(KVCSA_VERSION_MINOR) "." STR(KVCSA_VERSION_PATCH);
}

const char *kvcsa_status_name(kvcsa_status status)
{
    return kvi_status_name(status);
}
