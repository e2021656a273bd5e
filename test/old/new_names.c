/* A program of today that calls functions of the newest release by name. An older library has no such node: the loader says
 * so. */
#include <kvcsa.h>

#include <stdio.h>

int main(void)
{
    kvcsa_cpu_info cpu = {.struct_size = sizeof cpu};
    kvcsa_error    err;

    if (kvcsa_pool_get_cpu(NULL, &cpu, &err) != KVCSA_OK || !kvcsa_get_api(KVCSA_VERSION_NUMBER))
        return 1;
    printf("has today's functions\n");
    return 0;
}
