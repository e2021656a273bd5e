#include "backend/backend_choose.h"

#include "backend/backend_load.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* One clean line, whatever a driver calls its device. */
static void log_line(void *user, int32_t level, const char *text)
{
    kvi_log(user, level, "%s", text);
}

kvcsa_status kvi_backend_choose(const kvi_backend_wish *wish, const kvi_backend_ops **ops,
                                kvi_backend_choice *choice, kvcsa_error *err)
{
    kvcsa_log         log = wish->log ? *wish->log : (kvcsa_log){0};
    kvi_host_ops      host = {.struct_size = sizeof host, .log = log_line, .user = &log};
    kvi_backend_found found;

    *ops = NULL;
    memset(choice, 0, sizeof *choice);
    if (wish->backend > KVCSA_BACKEND_CUDA)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "backend is %" PRIu32 ", the limit is %d",
                        wish->backend, KVCSA_BACKEND_CUDA);
    if (wish->backend == KVCSA_BACKEND_CPU) {
        snprintf(choice->why, sizeof choice->why, "the CPU was asked for");
    } else {
        kvi_backend_load(wish->dir, "cuda", &host, &found);
        memcpy(choice->why, found.why, sizeof choice->why);
        if (found.ops) {
            choice->backend = KVCSA_BACKEND_CUDA;
            *ops = found.ops;
            return KVCSA_OK;
        }
        if (wish->backend == KVCSA_BACKEND_CUDA)
            return kvi_fail(err, KVCSA_ERR_BACKEND, "%s", found.why);
    }
    choice->backend = KVCSA_BACKEND_CPU;
    *ops = kvi_cpu_backend(wish->cpu_flags);
    return KVCSA_OK;
}
