#include "bench_kernels.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Variables that choose kernels or threads for a peer are the user's business elsewhere: here each peer runs what it finds best, in
 * one thread. They are read when the shim is loaded. */
static void clear_environment(void)
{
    static const char *const unwanted[] = {"OPENBLAS_CORETYPE",     "OPENBLAS_L2_SIZE",     "OPENBLAS_VERBOSE", "DNNL_MAX_CPU_ISA",
                                           "ONEDNN_MAX_CPU_ISA",    "ATEN_CPU_CAPABILITY",  "MKL_CBWR",         "MKL_DEBUG_CPU_TYPE",
                                           "MKL_ENABLE_INSTRUCTIONS", "DNNL_CPU_ISA_HINTS", "ONEDNN_CPU_ISA_HINTS"};

    for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++)
        unsetenv(unwanted[i]);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    setenv("MKL_NUM_THREADS", "1", 1);
    setenv("OMP_NUM_THREADS", "1", 1); /* ggml says how many itself */
}

enum { MAX_PEERS = 8 };
static struct {
    char              name[16];
    const peer_table *table;
} known[MAX_PEERS];
static size_t n_known;
static char   versions[1024];

static const peer_table *load(const kernel_bench *b, const char *name)
{
    char              path[640];
    void             *lib;
    const peer_table *(*open)(void);
    const peer_table *t;

    snprintf(path, sizeof path, "%s/peer_%s.so", b->peers, name);
    if (!strchr(path, '/') || !(lib = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
        return NULL;
    *(void **)&open = dlsym(lib, "peer_open"); /* POSIX wants the cast this way */
    if (!open || !(t = open()) || t->abi != PEER_ABI)
        return NULL;
    snprintf(versions + strlen(versions), sizeof versions - strlen(versions), "%s: %s\n", name, t->version);
    return t;
}

const peer_table *bench_peer(const kernel_bench *b, const char *name)
{
    for (size_t i = 0; i < n_known; i++)
        if (strcmp(known[i].name, name) == 0)
            return known[i].table;
    if (n_known == MAX_PEERS)
        bench_die(name, "one peer too many");
    clear_environment();
    snprintf(known[n_known].name, sizeof known[n_known].name, "%s", name);
    known[n_known].table = load(b, name);
    return known[n_known++].table;
}

const char *bench_peer_versions(void)
{
    return versions;
}
