/* The pool's own structs, for the files of this room. The invariants stand in block_alloc.c. */
#ifndef KVI_POOL_INT_H
#define KVI_POOL_INT_H

#include "pool/pool.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct kvi_slab kvi_slab;

struct kvi_block {
    kvi_slab  *slab;
    kvi_block *next_free; /* while FREE */
    uint32_t   refs;
    uint32_t   state; /* KVI_BLOCK_* */
};

struct kvi_slab {
    kvi_slab        *next;
    kvi_block_class *cls;
    uint8_t         *bytes; /* all index parts, then all main parts: keys lie beside keys */
    uint32_t         n_blocks;
    kvi_block        blocks[]; /* [n_blocks] */
};

struct kvi_block_class {
    kvi_block_class *next;
    uint32_t         index_bytes;
    uint32_t         main_bytes;
    size_t           index_stride; /* sizes rounded up: every part starts at a cache line */
    size_t           main_stride;
    kvi_slab        *slabs;
    kvi_block       *free_list;
    uint64_t         n_users;
    uint64_t         n_reserved;
    uint64_t         n_free;
    uint64_t         n_open;
    uint64_t         n_sealed;
};

struct kvcsa_pool {
    kvcsa_allocator        allocator;
    kvcsa_log              log;
    uint32_t               flags;
    uint64_t               budget_bytes;
    kvi_threads           *threads;
    const kvi_backend_ops *ops;
    kvi_device            *device;
    atomic_uint_fast64_t   refs;
    pthread_mutex_t        lock; /* of all below and of the classes, slabs and blocks */
    kvi_block_class       *classes;
    uint64_t               used_bytes; /* windows + blocks that are not FREE */
    uint64_t               reserved_bytes;
    uint64_t               window_bytes;
    uint64_t               slab_bytes;
    uint64_t               n_sessions;
    uint64_t               n_acquired;
    uint64_t               n_released;
};

/* What the budget counts for one block. */
static inline uint64_t kvi_class_block_bytes(const kvi_block_class *cls)
{
    return (uint64_t)cls->index_bytes + cls->main_bytes;
}

/* The caller holds the lock, or is the last to know the pool. */
void         kvi_pool_destroy_classes(kvcsa_pool *pool);
kvcsa_status kvi_pool_check_blocks(const kvcsa_pool *pool, kvcsa_error *err);
/* ERR_FULL if not so many bytes are free; `what` names them. */
kvcsa_status kvi_pool_check_room(const kvcsa_pool *pool, uint64_t bytes, const char *what,
                                 kvcsa_error *err);

#endif
