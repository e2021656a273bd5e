#include "support/test_backend.h"

#include <stdlib.h>

const char *test_backend_dir(void)
{
    const char *dir = getenv("KVCSA_TEST_BACKEND_DIR");

    return dir && *dir ? dir : NULL;
}

kvcsa_status __wrap_kvcsa_pool_create(const kvcsa_pool_params *params, kvcsa_pool **out, kvcsa_error *err)
{
    const char       *dir = test_backend_dir();
    kvcsa_pool_params p;

    if (!dir || (params && (params->struct_size != sizeof p || params->backend != KVCSA_BACKEND_AUTO)))
        return __real_kvcsa_pool_create(params, out, err);
    if (params)
        p = *params;
    else
        kvcsa_pool_params_default(&p, sizeof p);
    p.backend = KVCSA_BACKEND_CUDA;
    p.backend_dir = dir;
    return __real_kvcsa_pool_create(&p, out, err);
}
