#include "backend/backend_load.h"

#include "base/status.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void say(const kvi_host_ops *host, kvi_backend_found *found, const char *format, ...)
    KVI_PRINTF(3, 4);

static void say(const kvi_host_ops *host, kvi_backend_found *found, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(found->why, sizeof found->why, format, args);
    va_end(args);
    if (host && host->log)
        host->log(host->user, KVCSA_LOG_INFO, found->why);
}

/* The folder of the object that holds this code; 0 = it does not fit or cannot be told. */
static int own_folder(char *out, size_t size)
{
    static const char here = 0; /* an address inside */
    Dl_info           info;
    char             *slash;
    ssize_t           n;

    if (!dladdr((const void *)&here, &info) || !info.dli_fname)
        return 0;
    if (info.dli_fname[0] == '/') {
        n = snprintf(out, size, "%s", info.dli_fname);
    } else {
        /* a program by the name it was started with, which says nothing: ask the system */
        n = readlink("/proc/self/exe", out, size - 1);
        if (n > 0 && (size_t)n < size)
            out[n] = '\0';
    }
    if (n <= 0 || (size_t)n >= size || !(slash = strrchr(out, '/')))
        return 0;
    *slash = '\0';
    return 1;
}

void kvi_backend_load(const char *dir, const char *name, const kvi_host_ops *host,
                      kvi_backend_found *found)
{
    char                   folder[PATH_MAX], path[PATH_MAX];
    char                   why[256] = "";
    void                  *library;
    kvi_backend_query_fn   query;
    const kvi_backend_ops *ops;
    int32_t                score;

    memset(found, 0, sizeof *found);
    if (!dir) {
        if (!own_folder(folder, sizeof folder)) {
            say(host, found, "%s: the library cannot tell where it is", name);
            return;
        }
        dir = folder;
    } else if (dir[0] != '/') {
        say(host, found, "%s: the folder of plug-ins is no absolute path", name);
        return;
    }
    if (snprintf(path, sizeof path, "%s/libkvcsa_%s.so", dir, name) >= (int)sizeof path) {
        say(host, found, "%s: the folder's path is too long", name);
        return;
    }
    if (access(path, F_OK) != 0) {
        say(host, found, "%s: no plug-in (%.200s)", name, path);
        return;
    }
    /* Never closed: its exit handlers would be gone. A second open gives the same object. */
    if (!(library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE))) {
        const char *text = dlerror();

        say(host, found, "%s: %.280s", name, text ? text : "cannot be opened");
        return;
    }
    *(void **)&query = dlsym(library, KVI_BACKEND_QUERY);
    if (!query) {
        say(host, found, "%s: %.200s is no plug-in", name, path);
        return;
    }
    ops = query(KVI_BACKEND_ABI);
    if (!ops || ops->abi != KVI_BACKEND_ABI || ops->struct_size != sizeof *ops) {
        say(host, found, "%s: the plug-in was built for another version", name);
        return;
    }
    if ((score = ops->score(host, why, sizeof why)) <= 0) {
        say(host, found, "%s: %.280s", name, why);
        return;
    }
    found->ops = ops;
    found->score = score;
    say(host, found, "%s: %.280s", name, why);
}
