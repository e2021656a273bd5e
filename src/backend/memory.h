/* The memory that operators work on: the host's own, or a device's, which the host cannot touch. Code
 * that is to run on both goes through this header; where the memory is the host's, all of it is a
 * plain copy and nothing here fails. */
#ifndef KVI_MEMORY_H
#define KVI_MEMORY_H

#include "backend/backend.h"
#include "base/alloc.h"

typedef struct kvi_memory {
    const kvi_backend_ops *ops;
    kvi_device            *dev;
    const kvcsa_allocator *allocator; /* of the host */
    /* Asked when a device has no room: 1 = something was given back, try again. NULL = there is
     * nobody. */
    int                  (*make_room)(void *user, size_t size);
    void                  *room_user;
} kvi_memory;

/* 1 = a device's own: pointers to it are for operators and for the calls below only. */
static inline int kvi_memory_is_apart(const kvi_memory *m)
{
    return m->ops->mem_alloc != NULL;
}

/* All calls are enqueued in order with the operators of the device. ERR_BACKEND: the device is in
 * trouble, and stays so. */

/* At least 64-byte aligned; contents are undefined. ERR_NOMEM, and *out is NULL. */
kvcsa_status kvi_memory_alloc(const kvi_memory *m, size_t size, void **out, kvcsa_error *err);
void         kvi_memory_free(const kvi_memory *m, void *ptr, size_t size); /* accepts NULL; waits */
/* ERR_NOMEM with a text: what and how large it is, and where there is no room for it. */
kvcsa_status kvi_memory_no_room(const kvi_memory *m, const char *what, size_t size,
                                kvcsa_error *err);
/* Room for n elements in an array whose contents need not be kept, and by half more than before, so
 * that growing is rare. A device that is full need not have room for both, nor for the half, before
 * others have to go. ERR_NOMEM: as before; on a device there is none then. */
kvcsa_status kvi_memory_grow(const kvi_memory *m, void **data, size_t *cap, size_t elem, size_t n,
                             kvcsa_error *err);
/* From the host; `from` may change as soon as it returns. */
kvcsa_status kvi_memory_put(const kvi_memory *m, void *to, const void *from, size_t size,
                            kvcsa_error *err);
/* To the host; waits. */
kvcsa_status kvi_memory_get(const kvi_memory *m, void *to, const void *from, size_t size,
                            kvcsa_error *err);
/* Within; the ranges do not overlap. */
kvcsa_status kvi_memory_move(const kvi_memory *m, void *to, const void *from, size_t size,
                             kvcsa_error *err);
kvcsa_status kvi_memory_fill(const kvi_memory *m, void *to, int byte, size_t size,
                             kvcsa_error *err);
/* Bytes for the host to read: the very ones, or a copy of them in scratch [size]. */
kvcsa_status kvi_memory_see(const kvi_memory *m, const void *from, size_t size, void *scratch,
                            const void **out, kvcsa_error *err);
/* Waits for all that was enqueued and tells what went wrong. */
kvcsa_status kvi_memory_sync(const kvi_memory *m, kvcsa_error *err);

/* Memory of the host that a device copies from and to by itself. ERR_NOMEM. */
kvcsa_status kvi_memory_alloc_pinned(const kvi_memory *m, size_t size, void **out,
                                     kvcsa_error *err);
void         kvi_memory_free_pinned(const kvi_memory *m, void *ptr, size_t size); /* accepts NULL;
                                                                                  * waits */
/* Without a wait: `from`, pinned, stays as it is until the next one. */
kvcsa_status kvi_memory_put_pinned(const kvi_memory *m, void *to, const void *from, size_t size,
                                   kvcsa_error *err);
/* Without a wait: the bytes are there after the next one. */
kvcsa_status kvi_memory_get_later(const kvi_memory *m, void *to, const void *from, size_t size,
                                  kvcsa_error *err);

/* Bytes on their way to a device, which may change as soon as they have been posted: they are read
 * from a copy in pinned memory, one behind the other. Where that is used up, posting waits once and
 * begins again; a put of memory that is not pinned may wait every time. Where the memory is the
 * host's, kvi_memory_put does the same without the copy. */
typedef struct kvi_post {
    void  *bytes; /* pinned */
    size_t cap;
    size_t used;
} kvi_post;

/* Room for n bytes between two waits, the pieces rounded up to KVI_POST_ALIGN. ERR_NOMEM. */
#define KVI_POST_ALIGN ((size_t)64)
kvcsa_status kvi_post_reserve(kvi_post *p, const kvi_memory *m, size_t n, kvcsa_error *err);
/* More than there is room for at all is put as it is. */
kvcsa_status kvi_post_put(kvi_post *p, const kvi_memory *m, void *to, const void *from, size_t size,
                          kvcsa_error *err);
/* Somebody has waited: all have arrived. */
void         kvi_post_arrived(kvi_post *p);
void         kvi_post_wipe(kvi_post *p, const kvi_memory *m); /* zeros; waits */
void         kvi_post_fini(kvi_post *p, const kvi_memory *m);

/* Many small copies within, in one launch: added, then run. No copy of one run reads or writes what
 * another of it writes. Where the memory is the host's they are done as they are added. */
typedef struct kvi_copies {
    kvi_buf   jobs;      /* kvi_copy_job */
    size_t    n;
    uint64_t  max_bytes;
    int       lost;      /* 1 = one could not be noted: run tells */
    void     *there;     /* the device's copy of jobs */
    size_t    there_cap; /* jobs */
    kvi_post *post;      /* jobs go there with it; borrowed, NULL = with a put */
    /* Where lists of several runs lie one behind the other, here and there: whoever has set it
     * brings them over before the copies are to happen (backend/tape.h). NULL = each list goes
     * over on its own. */
    kvi_copy_job *stage[2];
    size_t        stage_cap; /* jobs */
    size_t        stage_used;
} kvi_copies;

/* Room for n, so that adding and running up to n needs no memory. ERR_NOMEM. */
kvcsa_status kvi_copies_reserve(kvi_copies *c, const kvi_memory *m, size_t n, kvcsa_error *err);
void         kvi_copies_add(kvi_copies *c, const kvi_memory *m, void *to, const void *from,
                            size_t size);
/* On a device, a copy of nothing in place of one of size bytes, so that the launch is the same
 * whether there is anything to copy or not. */
void         kvi_copies_add_none(kvi_copies *c, const kvi_memory *m, void *to, const void *from,
                                 size_t size);
/* Empties the list, whether or not it could be run. ERR_NOMEM, ERR_BACKEND. */
kvcsa_status kvi_copies_run(kvi_copies *c, const kvi_memory *m, kvcsa_error *err);
void         kvi_copies_fini(kvi_copies *c, const kvi_memory *m);

#endif
