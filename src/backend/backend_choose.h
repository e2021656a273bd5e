/* Which backend a pool computes with, and why that one. */
#ifndef KVI_BACKEND_CHOOSE_H
#define KVI_BACKEND_CHOOSE_H

#include "backend/backend.h"

typedef struct kvi_backend_wish {
    uint32_t         backend;   /* KVCSA_BACKEND_* */
    const char      *dir;       /* of plug-ins, as in kvi_backend_load */
    uint32_t         cpu_flags; /* that the CPU's kernels may use */
    const kvcsa_log *log;       /* NULL = none */
} kvi_backend_wish;

typedef struct kvi_backend_choice {
    uint32_t backend;  /* KVCSA_BACKEND_*, never AUTO */
    char     why[320];
} kvi_backend_choice;

/* AUTO: the plug-in that finds a device, else the CPU. CPU: nothing is looked for. CUDA:
 * ERR_BACKEND with the loader's reason where it is not there. ERR_UNSUPPORTED: no such backend. */
kvcsa_status kvi_backend_choose(const kvi_backend_wish *wish, const kvi_backend_ops **ops,
                                kvi_backend_choice *choice, kvcsa_error *err);

#endif
