/* Preloaded into a program (LD_PRELOAD): stands in front of what takes an allocator, counts through its hook what is taken and given
 * back, and passes the call on, to the program's own allocator where it has one. The file that GUEST_BALANCE names says what is left
 * at the end: bytes by the sizes that each side names, so a block that is given back with another size is seen, too. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcsa.h>

static _Atomic long long n_taken, n_blocks, n_bytes;

static void *next(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);
    if (!f)
        abort();
    return f;
}

/* `user` is the program's allocator, or NULL. */
static void *take(void *user, size_t size, size_t align)
{
    const kvcsa_allocator *own = user;
    void                  *p = NULL;

    if (own)
        p = own->alloc(own->user, size, align);
    else if (posix_memalign(&p, align < sizeof p ? sizeof p : align, size))
        p = NULL;
    if (p) {
        n_taken++;
        n_blocks++;
        n_bytes += (long long)size;
    }
    return p;
}

static void give(void *user, void *p, size_t size, size_t align)
{
    const kvcsa_allocator *own = user;

    n_blocks--;
    n_bytes -= (long long)size;
    if (own)
        own->free(own->user, p, size, align);
    else
        free(p);
}

/* Hooks outlive the handles that they serve; the end of the process takes them. */
static kvcsa_allocator *count(const kvcsa_allocator *own)
{
    kvcsa_allocator *hook = calloc(2, sizeof *hook);

    if (!hook)
        abort();
    hook[0] = (kvcsa_allocator){take, give, own ? &hook[1] : NULL};
    if (own)
        hook[1] = *own;
    return hook;
}

kvcsa_status kvcsa_model_open(const char *path, const kvcsa_model_params *params, kvcsa_model **out, kvcsa_error *err)
{
    kvcsa_status (*real)(const char *, const kvcsa_model_params *, kvcsa_model **, kvcsa_error *);
    kvcsa_model_params p;

    *(void **)&real = next("kvcsa_model_open");
    kvcsa_model_params_default(&p, sizeof p);
    if (params)
        memcpy(&p, params, params->struct_size < sizeof p ? params->struct_size : sizeof p);
    p.struct_size = sizeof p;
    p.allocator = count(p.allocator);
    return real(path, &p, out, err);
}

kvcsa_status kvcsa_model_from_plan(const kvcsa_plan_row *rows, size_t n_rows, const kvcsa_plan_params *params, kvcsa_model **out,
                                   kvcsa_error *err)
{
    kvcsa_status (*real)(const kvcsa_plan_row *, size_t, const kvcsa_plan_params *, kvcsa_model **, kvcsa_error *);
    kvcsa_plan_params p;

    *(void **)&real = next("kvcsa_model_from_plan");
    kvcsa_plan_params_default(&p, sizeof p);
    if (params)
        memcpy(&p, params, params->struct_size < sizeof p ? params->struct_size : sizeof p);
    p.struct_size = sizeof p;
    p.allocator = count(p.allocator);
    return real(rows, n_rows, &p, out, err);
}

kvcsa_status kvcsa_pool_create(const kvcsa_pool_params *params, kvcsa_pool **out, kvcsa_error *err)
{
    kvcsa_status (*real)(const kvcsa_pool_params *, kvcsa_pool **, kvcsa_error *);
    kvcsa_pool_params p;

    *(void **)&real = next("kvcsa_pool_create");
    kvcsa_pool_params_default(&p, sizeof p);
    if (params)
        memcpy(&p, params, params->struct_size < sizeof p ? params->struct_size : sizeof p);
    p.struct_size = sizeof p;
    p.allocator = count(p.allocator);
    return real(&p, out, err);
}

kvcsa_status kvcsa_compare_create(const kvcsa_allocator *allocator, kvcsa_compare **out, kvcsa_error *err)
{
    kvcsa_status (*real)(const kvcsa_allocator *, kvcsa_compare **, kvcsa_error *);

    *(void **)&real = next("kvcsa_compare_create");
    return real(count(allocator), out, err);
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("GUEST_BALANCE");
    FILE       *f = path ? fopen(path, "w") : NULL;

    if (!f)
        return;
    fprintf(f, "%lld taken, %lld blocks of %lld bytes left\n", n_taken, n_blocks, n_bytes);
    fclose(f);
}
