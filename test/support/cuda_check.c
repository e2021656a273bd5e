#include "cuda/cuda_check.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { GUARD_BYTES = 256, MAX_PIECES = 1024 };

const kvi_backend_ops *gpu_ops;
kvi_device            *gpu;
kvi_backend_query_fn   gpu_query;
const kvi_backend_ops *cpu_ops;
kvi_device            *cpu;
bool                   emulated = true;
emulation              emu;

static char         plugin[PATH_MAX];
static kvi_threads *cpu_threads;

typedef struct piece {
    uint8_t *base, *data;
    size_t   size;
} piece;
static piece  pieces[MAX_PIECES];
static size_t n_pieces;

void must(kvcsa_status status, const kvcsa_error *err)
{
    if (status != KVCSA_OK)
        fail_msg("status %d (%d): %s", (int)status, (int)err->detail, err->text);
}

void cuda_arguments(int argc, char **argv)
{
    char self[PATH_MAX];

    if (argc > 1) {
        emulated = false;
        snprintf(plugin, sizeof plugin, "%s", argv[1]);
        return;
    }
    if (!realpath(argv[0], self))
        snprintf(self, sizeof self, "%s", argv[0]);
    if (snprintf(plugin, sizeof plugin, "%s/emulated/libkvcsa_cuda.so", dirname(self)) >= (int)sizeof plugin)
        exit(2);
}

void cuda_folder(char *out, size_t size)
{
    char whole[PATH_MAX];

    if (!realpath(plugin, whole) || snprintf(out, size, "%s", dirname(whole)) >= (int)size) {
        printf("%s is not there\n", plugin);
        exit(2);
    }
}

static void *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);

    if (!symbol) {
        printf("%s: %s\n", name, dlerror());
        exit(2);
    }
    return symbol;
}

int cuda_open(void **state)
{
    const kvcsa_allocator a = metered();
    void                 *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    kvcsa_error           err = {0};
    char                  why[256] = "";
    kvi_device_params     params = {.allocator = &a};

    (void)state;
    if (!library) {
        printf("%s\n", dlerror());
        return -1;
    }
    *(void **)&gpu_query = find(library, KVI_BACKEND_QUERY);
    if (emulated) {
        *(void **)&emu.order = find(library, "kvi_emu_order");
        *(void **)&emu.fault = find(library, "kvi_emu_fault");
        *(void **)&emu.fail_alloc = find(library, "kvi_emu_fail_alloc");
        *(void **)&emu.device_memory = find(library, "kvi_emu_device_memory");
        *(void **)&emu.outstanding = find(library, "kvi_emu_outstanding");
        *(void **)&emu.arch = find(library, "kvi_emu_arch");
        *(void **)&emu.launches = find(library, "kvi_emu_launches");
    }
    gpu_ops = gpu_query(KVI_BACKEND_ABI);
    if (!gpu_ops || gpu_ops->score(NULL, why, sizeof why) <= 0) {
        printf("no device: %s\n", why);
        return -1;
    }
    printf("device: %s\n", why);
    must(gpu_ops->device_open(&params, &gpu, &err), &err);
    must(kvi_threads_create(&a, 1, NULL, &cpu_threads, &err), &err);
    params.threads = cpu_threads;
    cpu_ops = kvi_cpu_backend(0);
    must(cpu_ops->device_open(&params, &cpu, &err), &err);
    return 0;
}

int cuda_close(void **state)
{
    (void)state;
    device_free_all();
    gpu_ops->device_close(gpu);
    cpu_ops->device_close(cpu);
    kvi_threads_destroy(cpu_threads);
    if (emulated && emu.outstanding() != 0) {
        printf("%zu bytes of device memory are outstanding\n", emu.outstanding());
        return -1;
    }
    return 0;
}

void *to_device_at(const void *from, size_t size, size_t off)
{
    const size_t all = size + off + 2 * GUARD_BYTES;
    uint8_t     *host = malloc(all);
    void        *base = NULL;
    kvcsa_error  err = {0};

    assert_non_null(host);
    assert_true(n_pieces < MAX_PIECES);
    memset(host, GUARD, all);
    if (from && size)
        memcpy(host + GUARD_BYTES + off, from, size);
    must(gpu_ops->mem_alloc(gpu, all, KVI_MEMORY_DEVICE, &base, &err), &err);
    must(gpu_ops->mem_copy(gpu, base, host, all, KVI_COPY_IN, &err), &err);
    must(gpu_ops->sync(gpu, &err), &err);
    free(host);
    pieces[n_pieces++] = (piece){base, (uint8_t *)base + GUARD_BYTES + off, size};
    return pieces[n_pieces - 1].data;
}

void *to_device(const void *from, size_t size)
{
    return to_device_at(from, size, 0);
}

static piece *piece_of(const void *device)
{
    for (size_t i = n_pieces; i-- > 0;)
        if (pieces[i].data == device)
            return &pieces[i];
    fail_msg("not an array of to_device");
    return NULL;
}

void from_device(void *to, const void *device, size_t size)
{
    const piece *p = piece_of(device);
    const size_t off = (size_t)(p->data - p->base), all = off + p->size + GUARD_BYTES;
    uint8_t     *host = malloc(all);
    kvcsa_error  err = {0};

    assert_non_null(host);
    assert_true(size <= p->size);
    must(gpu_ops->mem_copy(gpu, host, p->base, all, KVI_COPY_OUT, &err), &err);
    must(gpu_ops->sync(gpu, &err), &err);
    for (size_t i = 0; i < all; i++)
        if ((i < off || i >= off + p->size) && host[i] != GUARD)
            fail_msg("byte %zd outside of an array of %zu bytes was written", (ssize_t)i - (ssize_t)off, p->size);
    memcpy(to, host + off, size);
    free(host);
}

static void piece_drop(piece *p)
{
    uint8_t *seen = malloc(p->size + 1);

    assert_non_null(seen);
    from_device(seen, p->data, p->size);
    free(seen);
    gpu_ops->mem_free(gpu, p->base, KVI_MEMORY_DEVICE);
    *p = pieces[--n_pieces];
}

void device_free_all(void)
{
    while (n_pieces)
        piece_drop(&pieces[n_pieces - 1]);
}

uint8_t *const *table_to_device(uint8_t *const *pointers, size_t n)
{
    return to_device(pointers, n * sizeof *pointers);
}

void gpu_run(gpu_case_fn fn, const void *job, void *out, size_t size)
{
    uint8_t *again;

    if (!emulated) {
        fn(job, out);
        return;
    }
    again = malloc(size ? size : 1);
    assert_non_null(again);
    emu.order(0, 1);
    fn(job, out);
    for (int order = 1; order < 3; order++) {
        memset(again, 0x77, size);
        emu.order(order, 77);
        fn(job, again);
        for (size_t i = 0; i < size; i++)
            if (again[i] != ((uint8_t *)out)[i])
                fail_msg("byte %zu depends on the order of the threads", i);
    }
    emu.order(0, 1);
    free(again);
}
