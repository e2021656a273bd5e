#include "base/alloc.h"

#include "base/checked.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN_DATA 64u /* a cache line, and the widest vector */
#define ALIGN_PAGE 4096u

static void *libc_alloc(void *user, size_t size, size_t align)
{
    void *ptr = NULL;

    (void)user;
    return posix_memalign(&ptr, align, size) == 0 ? ptr : NULL;
}

static void libc_free(void *user, void *ptr, size_t size, size_t align)
{
    (void)user;
    (void)size;
    (void)align;
#ifdef _WIN32
    _aligned_free(ptr);
#else
    free(ptr);
#endif
}

kvcsa_status kvi_allocator_import(const kvcsa_allocator *theirs, kvcsa_allocator *ours,
                                  kvcsa_error *err)
{
    const kvcsa_allocator libc = {libc_alloc, libc_free, NULL};

    *ours = libc;
    if (!theirs || (!theirs->alloc && !theirs->free))
        return KVCSA_OK;
    if (!theirs->alloc || !theirs->free)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "allocator.%s is NULL, both functions or neither are wanted",
                        theirs->alloc ? "free" : "alloc");
    *ours = *theirs;
    return KVCSA_OK;
}

/* A hook may return NULL for size 0, which would look like out of memory. */
static size_t hook_size(size_t size)
{
    return size ? size : 1;
}

static void *call_alloc(const kvcsa_allocator *a, size_t size, size_t align)
{
    /* beyond this, pointer differences overflow; no hook need cope with it */
    if (size > PTRDIFF_MAX)
        return NULL;
    return a->alloc(a->user, hook_size(size), align);
}

void *kvi_alloc(const kvcsa_allocator *a, size_t size)
{
    return call_alloc(a, size, ALIGN_DATA);
}

void *kvi_zalloc(const kvcsa_allocator *a, size_t size)
{
    void *ptr = kvi_alloc(a, size);

    if (ptr)
        memset(ptr, 0, size);
    return ptr;
}

void kvi_free(const kvcsa_allocator *a, void *ptr, size_t size)
{
    if (ptr)
        a->free(a->user, ptr, hook_size(size), ALIGN_DATA);
}

void *kvi_alloc_pages(const kvcsa_allocator *a, size_t size)
{
    return call_alloc(a, size, ALIGN_PAGE);
}

void kvi_free_pages(const kvcsa_allocator *a, void *ptr, size_t size)
{
    if (ptr)
        a->free(a->user, ptr, hook_size(size), ALIGN_PAGE);
}

int kvi_buf_reserve(const kvcsa_allocator *a, kvi_buf *buf, size_t elem, size_t used, size_t need)
{
    size_t cap = 0;
    size_t bytes = 0;
    void  *data = NULL;

    if (need <= buf->cap)
        return 1;
    if (!kvi_add_size(buf->cap, buf->cap / 2, &cap) || cap < need)
        cap = need;
    if (!kvi_mul_size(cap, elem, &bytes))
        return 0;
    data = kvi_alloc(a, bytes);
    if (!data)
        return 0;
    KVI_ASSERT(used <= buf->cap);
    if (used)
        memcpy(data, buf->data, used * elem);
    kvi_buf_free(a, buf, elem);
    buf->data = data;
    buf->cap = cap;
    return 1;
}

void kvi_buf_free(const kvcsa_allocator *a, kvi_buf *buf, size_t elem)
{
    kvi_free(a, buf->data, buf->cap * elem);
    buf->data = NULL;
    buf->cap = 0;
}

char *kvi_strdup(const kvcsa_allocator *a, const char *text)
{
    size_t size = strlen(text) + 1;
    char  *copy = kvi_alloc(a, size);

    if (copy)
        memcpy(copy, text, size);
    return copy;
}

void kvi_strfree(const kvcsa_allocator *a, char *text)
{
    if (text)
        kvi_free(a, text, strlen(text) + 1);
}
