/* An allocator for tests. It counts what is outstanding, fails the n-th call on demand, checks that
 * free gets the size and alignment that alloc got and that nobody wrote beyond a block, and fills
 * fresh memory with 0xCD and freed memory with 0xDD. Usable from several threads.
 *
 *     fault_alloc fa;
 *     fault_alloc_init(&fa);
 *     params.allocator = &fa.hook;
 *     for (uint64_t n = 1;; n++) {
 *         fault_alloc_fail_at(&fa, n);
 *         st = operation();
 *         if (!fault_alloc_hit(&fa)) break;          // everything went well: st must be OK
 *         assert_int_equal(st, KVCSA_ERR_NOMEM);
 *         assert_true(fault_alloc_is_clean(&fa));    // after the objects were released
 *     }
 */
#ifndef TEST_FAULT_ALLOC_H
#define TEST_FAULT_ALLOC_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvcsa.h"

#define FAULT_ALLOC_MAGIC UINT64_C(0x6B76637361746573)
#define FAULT_ALLOC_GUARD 16u /* bytes behind a block */
#define FAULT_ALLOC_FRESH 0xCD
#define FAULT_ALLOC_FREED 0xDD
#define FAULT_ALLOC_FENCE 0xFB

typedef struct fault_alloc {
    kvcsa_allocator hook; /* give this to the library */
    pthread_mutex_t lock;
    uint64_t        n_calls;  /* of alloc, since fault_alloc_fail_at */
    uint64_t        fail_at;  /* 0 = never */
    uint64_t        n_total;  /* calls of alloc in all */
    uint64_t        n_failed; /* calls that got NULL since fault_alloc_fail_at */
    size_t          n_blocks; /* outstanding */
    size_t          n_bytes;  /* outstanding */
    size_t          peak_bytes;
    uint64_t        n_bad;        /* wrong frees and overruns */
    int             keep_failing; /* fail every call from fail_at on, not only that one */
} fault_alloc;

typedef struct fault_alloc_head { /* stands right before a block */
    uint64_t magic;
    size_t   size;
    size_t   align;
    void    *raw;
} fault_alloc_head;

static inline size_t fault_alloc_offset(size_t align)
{
    return align > sizeof(fault_alloc_head) ? align : 64;
}

static inline void *fault_alloc_alloc(void *user, size_t size, size_t align)
{
    fault_alloc     *fa = user;
    unsigned char   *ptr = NULL;
    void            *raw = NULL;
    fault_alloc_head head = {FAULT_ALLOC_MAGIC, size, align, NULL};
    size_t           off = fault_alloc_offset(align);
    int              fail = 0;

    pthread_mutex_lock(&fa->lock);
    fa->n_calls++;
    fa->n_total++;
    if (size == 0 || align == 0 || align > 4096 || (align & (align - 1)) != 0) {
        fprintf(stderr, "fault_alloc: alloc of %zu bytes at %zu\n", size, align);
        fa->n_bad++;
    }
    fail =
        fa->fail_at && (fa->keep_failing ? fa->n_calls >= fa->fail_at : fa->n_calls == fa->fail_at);
    if (!fail && size < SIZE_MAX - off - FAULT_ALLOC_GUARD &&
        posix_memalign(&raw, off, off + size + FAULT_ALLOC_GUARD) != 0)
        raw = NULL;
    if (raw) {
        fa->n_blocks++;
        fa->n_bytes += size;
        if (fa->n_bytes > fa->peak_bytes)
            fa->peak_bytes = fa->n_bytes;
    } else {
        fa->n_failed++;
    }
    pthread_mutex_unlock(&fa->lock);
    if (!raw)
        return NULL;

    ptr = (unsigned char *)raw + off;
    head.raw = raw;
    memcpy(ptr - sizeof head, &head, sizeof head);
    memset(ptr, FAULT_ALLOC_FRESH, size);
    memset(ptr + size, FAULT_ALLOC_FENCE, FAULT_ALLOC_GUARD);
    return ptr;
}

static inline void fault_alloc_free(void *user, void *ptr, size_t size, size_t align)
{
    fault_alloc     *fa = user;
    unsigned char   *p = ptr;
    fault_alloc_head head;
    int              bad = 0;

    if (!p) {
        fprintf(stderr, "fault_alloc: free of NULL\n");
        bad = 1;
        goto done;
    }
    memcpy(&head, p - sizeof head, sizeof head);
    if (head.magic != FAULT_ALLOC_MAGIC) {
        fprintf(stderr, "fault_alloc: %p was not allocated here, or freed before\n", ptr);
        bad = 1;
        goto done;
    }
    if (head.size != size || head.align != align) {
        fprintf(stderr, "fault_alloc: free of %zu bytes at %zu, allocated were %zu at %zu\n", size,
                align, head.size, head.align);
        bad = 1;
    }
    for (size_t i = 0; i < FAULT_ALLOC_GUARD && !bad; i++) {
        if (p[head.size + i] != FAULT_ALLOC_FENCE) {
            fprintf(stderr, "fault_alloc: byte %zu behind a block of %zu was written\n", i, size);
            bad = 1;
        }
    }
    memset(p - sizeof head, FAULT_ALLOC_FREED, sizeof head + head.size);
    pthread_mutex_lock(&fa->lock);
    fa->n_blocks--;
    fa->n_bytes -= head.size;
    pthread_mutex_unlock(&fa->lock);
    free(head.raw);
done:
    if (bad) {
        pthread_mutex_lock(&fa->lock);
        fa->n_bad++;
        pthread_mutex_unlock(&fa->lock);
    }
}

static inline void fault_alloc_init(fault_alloc *fa)
{
    memset(fa, 0, sizeof *fa);
    pthread_mutex_init(&fa->lock, NULL);
    fa->hook.alloc = fault_alloc_alloc;
    fa->hook.free = fault_alloc_free;
    fa->hook.user = fa;
}

/* Fail the n-th alloc from now on (1 = the next); 0 = none. */
static inline void fault_alloc_fail_at(fault_alloc *fa, uint64_t n)
{
    pthread_mutex_lock(&fa->lock);
    fa->n_calls = 0;
    fa->n_failed = 0;
    fa->fail_at = n;
    pthread_mutex_unlock(&fa->lock);
}

/* Has a call failed since fault_alloc_fail_at? */
static inline int fault_alloc_hit(fault_alloc *fa)
{
    int hit = 0;

    pthread_mutex_lock(&fa->lock);
    hit = fa->n_failed > 0;
    pthread_mutex_unlock(&fa->lock);
    return hit;
}

/* Nothing outstanding, and nothing wrong so far. */
static inline int fault_alloc_is_clean(fault_alloc *fa)
{
    int clean = 0;

    pthread_mutex_lock(&fa->lock);
    clean = fa->n_blocks == 0 && fa->n_bytes == 0 && fa->n_bad == 0;
    if (!clean)
        fprintf(stderr, "fault_alloc: %zu blocks, %zu bytes outstanding, %llu faults\n",
                fa->n_blocks, fa->n_bytes, (unsigned long long)fa->n_bad);
    pthread_mutex_unlock(&fa->lock);
    return clean;
}

#endif
