/* The allocator hook. Every byte of the library that outlives a call comes from here. */
#ifndef KVI_ALLOC_H
#define KVI_ALLOC_H

#include "kvcsa.h"

/* Copy a caller's allocator; NULL = libc. ERR_ARG if only one of the functions is there. */
kvcsa_status kvi_allocator_import(const kvcsa_allocator *theirs, kvcsa_allocator *ours,
                                  kvcsa_error *err);

/* 64-byte aligned; size 0 gives a valid pointer. NULL = out of memory. kvi_free accepts NULL and
 * wants the same size. */
void *kvi_alloc(const kvcsa_allocator *a, size_t size);
void *kvi_zalloc(const kvcsa_allocator *a, size_t size);
void  kvi_free(const kvcsa_allocator *a, void *ptr, size_t size);

/* Page-aligned (4096), for slabs. */
void *kvi_alloc_pages(const kvcsa_allocator *a, size_t size);
void  kvi_free_pages(const kvcsa_allocator *a, void *ptr, size_t size);

/* A growing array of bytes: grow so that cap >= need elements of `elem` bytes; false = out of
 * memory or overflow (unchanged). Growth is by half, so appending is linear. */
typedef struct kvi_buf {
    void  *data;
    size_t cap; /* elements */
} kvi_buf;
int  kvi_buf_reserve(const kvcsa_allocator *a, kvi_buf *buf, size_t elem, size_t used, size_t need);
void kvi_buf_free(const kvcsa_allocator *a, kvi_buf *buf, size_t elem);

char *kvi_strdup(const kvcsa_allocator *a, const char *text);  /* free with kvi_strfree */
void  kvi_strfree(const kvcsa_allocator *a, char *text);

#endif
