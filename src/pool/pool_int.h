/* The pool's own structs, for the files of this room. The invariants stand in block_alloc.c (P) and
 * prefix_share.c (T). */
#ifndef KVI_POOL_INT_H
#define KVI_POOL_INT_H

#include "backend/backend_choose.h"
#include "pool/pool.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct kvi_slab kvi_slab;
typedef struct kvi_placed_weights kvi_placed_weights; /* pool_weights.c */

typedef struct kvi_stored_window { /* beside a sealed block */
    size_t     n_pages;
    kvi_block *pages[]; /* [n_pages] retained; NULL ones are not held */
} kvi_stored_window;

struct kvi_block {
    kvi_slab          *slab;
    union {
        kvi_block     *next_free; /* while FREE */
        uint64_t       n_at_host; /* published children in the host tier */
        uint64_t       copy_no;   /* of a block out there: see host_tier.c */
    };
    uint32_t           refs;
    atomic_uchar       state;     /* KVI_BLOCK_*; read without the lock by its holders */
    uint8_t            at[2];     /* KVI_AT_*: residence of index and main part */
    uint8_t            published;
    uint8_t            tainted;
    uint8_t            secure;    /* zero the bytes when it is freed */
    uint8_t            idle;      /* in the pool's list of evictable blocks */
    uint8_t            out;       /* in the host tier: the record lies in a slab of it */
    uint32_t           pins;
    /* of SEALED ones */
    kvi_block         *parent;    /* holds a reference */
    uint64_t           depth;
    kvi_hash128        key;
    kvi_hash128        sums[2];   /* of index and main part */
    kvi_stored_window *window;    /* NULL = none */
    /* in the tree, while published */
    kvi_prefix_root   *root;
    kvi_block         *first_child; /* published ones */
    kvi_block         *prev_sibling, *next_sibling;
    kvi_block         *next_in_bucket;
    kvi_block         *prev_idle, *next_idle;
    uint64_t           last_used; /* pool->clock */
    uint64_t           n_hits;    /* of window pages: scratch of evict.c */
    double             worth;     /* cost policy: see evict.c */
};

struct kvi_slab {
    kvi_slab        *next, *prev;           /* all slabs of the class */
    kvi_slab        *next_free, *prev_free; /* those with free blocks */
    kvi_block_class *cls;
    uint8_t         *bytes;  /* of the pool's memory: all index parts, then all main parts, so that
                              * keys lie beside keys; or one block behind the other, see one_piece.
                              * Of a slab of the host tier: pinned */
    int32_t         *tokens; /* [n_blocks, block_tokens]; behind blocks[] in this allocation */
    kvi_block       *free_list;
    uint32_t         n_blocks;
    uint32_t         n_free;
    kvi_block        blocks[]; /* [n_blocks] */
};

struct kvi_block_class {
    kvi_block_class *next;
    kvi_class_shape  shape;
    size_t           index_stride; /* sizes rounded up: every part starts at a cache line */
    size_t           main_stride;
    kvi_slab        *slabs;
    kvi_slab        *free_slabs;   /* with at least one free block */
    uint64_t         n_users;
    uint64_t         n_reserved;
    uint64_t         n_free;
    uint64_t         n_open;
    uint64_t         n_sealed;
    uint64_t         n_empty_slabs; /* with no block in use; one is kept, more are given back */
    uint32_t         one_piece;     /* both parts of a block lie together: one copy moves it */
    uint32_t         n_host_empty;  /* slabs of the host tier, and likewise below */
    kvi_slab        *host_slabs;
    kvi_slab        *host_free_slabs;
    uint64_t         n_host;        /* blocks in use */
};

/* host_tier.c */
typedef struct kvi_host_tier {
    uint64_t   budget_bytes; /* 0 = there is no tier */
    uint64_t   used_bytes;   /* blocks and pages */
    uint64_t   slab_bytes;
    uint64_t   n_blocks;
    uint64_t   n_pages;
    uint64_t   n_moved_out;  /* blocks, since creation */
    uint64_t   n_moved_in;
    uint64_t   n_copies;     /* enqueued, either way */
    uint64_t   n_arrived;    /* of them: somebody has waited here since */
    uint64_t   n_wiped;      /* of them: what they left behind is zeroed */
    kvi_block *idle_head, *idle_tail; /* published, one reference: the tree's */
} kvi_host_tier;

struct kvi_prefix_root {
    kvi_prefix_root *next;
    kvi_domain       domain;
    kvi_hash128      key;
    kvi_hash_fn      hash;        /* the pool's */
    uint32_t         block_tokens;
    uint64_t         refs;        /* sessions */
    uint64_t         n_published;
    kvi_block       *first_child;
};

struct kvcsa_pool {
    kvcsa_allocator        allocator;
    kvcsa_log              log;
    kvcsa_trace            trace;
    uint32_t               flags;
    uint32_t               evict; /* KVCSA_EVICT_* */
    uint32_t               cpu_avoid; /* KVCSA_CPU_* */
    kvi_threads           *threads;
    const kvi_backend_ops *ops;
    kvi_device            *device;
    kvi_memory             memory;
    kvi_backend_choice     choice;
    uint32_t               ordinal;
    uint64_t               numerics;
    kvi_hash_fn            hash;
    const kvi_fs          *fs;
    atomic_uint_fast64_t   refs;
    /* of a device with memory of its own */
    pthread_mutex_t        weights_lock; /* held while they are copied; the pool's is taken behind
                                          * it */
    kvi_placed_weights    *weights;
    atomic_uint_fast64_t   weight_bytes;
    pthread_mutex_t        scratch_lock;
    uint8_t               *scratch;       /* see block_see.c */
    size_t                 scratch_bytes; /* changes under both locks */

    pthread_mutex_t        lock; /* of all below and of the classes, slabs, blocks and roots */
    uint64_t               budget_bytes;
    kvi_block_class       *classes;
    uint64_t               used_bytes; /* blocks that are not FREE */
    uint64_t               reserved_bytes;
    uint64_t               window_bytes; /* of used_bytes: classes of kind WINDOW */
    uint64_t               slab_bytes;
    uint64_t               record_bytes;
    uint64_t               side_bytes; /* classes, roots, table and stored windows */
    uint64_t               n_sessions;
    uint64_t               n_acquired;
    uint64_t               n_released;
    uint64_t               n_copied[2]; /* by KVI_CLASS_* */
    /* prefix tree */
    kvi_prefix_root       *roots;
    kvi_block            **buckets; /* [n_buckets] by key; NULL while there are none */
    size_t                 n_buckets;
    uint64_t               n_published;
    uint64_t               n_pinned;
    /* eviction */
    kvi_block             *idle_head, *idle_tail; /* published, one reference: the tree's */
    uint64_t               clock;
    double                 age; /* cost policy: see evict.c */
    uint64_t               n_evicted;
    uint64_t               n_lookups;
    uint64_t               n_probes;
    uint64_t               n_hit_tokens;
    kvi_pool_io_counts     io;
    kvi_host_tier          host;
};

/* What the budget counts for one block. */
static inline uint64_t kvi_class_block_bytes(const kvi_block_class *cls)
{
    return (uint64_t)cls->shape.index_bytes + cls->shape.main_bytes;
}

/* Where things lie in a slab. */
#define KVI_PART_ALIGN 64u

static inline size_t kvi_slab_size(const kvi_block_class *cls, size_t n_blocks)
{
    return (cls->index_stride + cls->main_stride) * n_blocks;
}

static inline size_t kvi_slab_tokens_off(size_t n_blocks)
{
    const size_t records = sizeof(kvi_slab) + n_blocks * sizeof(kvi_block);

    return (records + KVI_PART_ALIGN - 1) / KVI_PART_ALIGN * KVI_PART_ALIGN;
}

static inline size_t kvi_slab_record_size(const kvi_block_class *cls, size_t n_blocks)
{
    return kvi_slab_tokens_off(n_blocks) + n_blocks * cls->shape.block_tokens * sizeof(int32_t);
}

static inline size_t kvi_block_token_bytes(const kvi_block_class *cls)
{
    return cls->shape.block_tokens * sizeof(int32_t);
}

static inline uint64_t kvi_class_in_use(const kvi_block_class *cls)
{
    return cls->n_open + cls->n_sealed;
}

static inline size_t kvi_stored_window_size(size_t n_pages)
{
    return sizeof(kvi_stored_window) + n_pages * sizeof(kvi_block *);
}

static inline size_t kvi_table_size(const kvcsa_pool *pool)
{
    return pool->n_buckets * sizeof(kvi_block *);
}

#define KVI_FILL_BYTE 0xA5

/* For the walks below. */
#define KVI_BROKEN(...) kvi_fail(err, KVCSA_ERR_INTERNAL, __VA_ARGS__)

/* evict.c; both take the lock. kvi_memory's make_room, for all but slabs; the user is the pool. Gives
 * back empty slabs, and evicts one prefix after the other until there is one; nothing goes for a
 * size that would not fit even then. */
int kvi_pool_make_room(void *user, size_t size);
/* Could so many bytes of the device be free if all prefixes had gone? */
int kvi_pool_could_have(kvcsa_pool *pool, uint64_t n_bytes);

/* Everything below: the caller holds the lock, or is the last to know the pool. */

/* block_alloc.c */
/* OPEN and with one reference, beyond what is reserved; evicts: the caller knows that it will do.
 * ERR_FULL, and as of kvi_block_acquire. */
kvcsa_status     kvi_block_take(kvcsa_pool *pool, kvi_block_class *cls, kvi_block **out,
                                kvcsa_error *err);
void             kvi_block_fill(const kvcsa_pool *pool, const kvi_block *block, int byte);
void             kvi_block_free(kvcsa_pool *pool, kvi_block *block); /* without a reference */
void             kvi_window_drop(kvcsa_pool *pool, kvi_stored_window *window); /* accepts NULL */
void             kvi_pool_destroy_classes(kvcsa_pool *pool);
kvi_block_class *kvi_pool_find_class(const kvcsa_pool *pool, const kvi_class_shape *shape);
void             kvi_pool_free_empty_slabs(kvcsa_pool *pool); /* the spare ones too */
void             kvi_block_hold(kvcsa_pool *pool, kvi_block *block); /* one reference more */
/* One reference less; chains and stored windows follow. Keeps the idle list right. */
void             kvi_block_drop(kvcsa_pool *pool, kvi_block *block);

/* host_tier.c */
/* Bytes of the published block on the device, which is idle, go to the host, and its record with
 * them: `block` is FREE afterwards. 0 = there is no room for it, and it is as before. */
int        kvi_host_take_over(kvcsa_pool *pool, kvi_block *block);
/* The other way. n_held: references of the caller, who holds what is in front of it; they go with
 * the record. room: of kvi_evict_room, and what it takes is subtracted. NULL = no room, or somebody
 * else looks at it: it stays where it is. */
kvi_block *kvi_host_bring(kvcsa_pool *pool, kvi_block *block, uint32_t n_held, uint64_t *room);
/* Its place in the tree for a SEALED block of the device with equal tokens and parent, which is not
 * published. 0 = somebody looks at it. */
int        kvi_host_replace(kvcsa_pool *pool, kvi_block *block, kvi_block *by);
void       kvi_host_free(kvcsa_pool *pool, kvi_block *block); /* any -> FREE */
void       kvi_host_free_slabs(kvcsa_pool *pool, kvi_block_class *cls); /* those that are empty */
/* For erase: what blocks have left behind where they were, on either side, becomes zeros. */
void         kvi_host_wipe(kvcsa_pool *pool);
/* The host may read and write the bytes of the block when it returns OK. */
kvcsa_status kvi_host_wait(kvcsa_pool *pool, const kvi_block *block, kvcsa_error *err);

/* block_check.c */
kvcsa_status kvi_pool_check_blocks(kvcsa_pool *pool, kvcsa_error *err);

/* block_see.c */
/* Room for copies of the parts of such blocks. ERR_NOMEM. */
kvcsa_status kvi_pool_reserve_scratch(kvcsa_pool *pool, const kvi_class_shape *shape,
                                      kvcsa_error *err);
void         kvi_pool_free_scratch(kvcsa_pool *pool);
/* Both parts of a block that the caller holds, for the host to read until kvi_block_unsee; with or
 * without the lock. Waits. ERR_BACKEND, and then there is nothing to unsee. */
typedef struct kvi_seen_parts {
    const uint8_t *index_part;
    const uint8_t *main_part;
} kvi_seen_parts;
kvcsa_status kvi_block_see(kvcsa_pool *pool, const kvi_block *block, kvi_seen_parts *out,
                           kvcsa_error *err);
void         kvi_block_unsee(kvcsa_pool *pool);
/* Checksums of index and main part. Likewise. */
kvcsa_status kvi_block_sums(kvcsa_pool *pool, const kvi_block *block, kvi_hash128 sums[2],
                            kvcsa_error *err);

/* pool_weights.c */
void kvi_pool_destroy_weights(kvcsa_pool *pool);

/* prefix_share.c */
kvi_hash128 kvi_prefix_root_key(const kvi_prefix_root *root);
/* Key of a block behind parent (NULL = the first); those of tainted blocks are a world apart. */
kvi_hash128 kvi_prefix_key_of(const kvi_prefix_root *root, const kvi_block *parent,
                              const int32_t *tokens, int tainted);
/* Published block behind the published parent (NULL = the root) with these tokens, or NULL. */
kvi_block  *kvi_prefix_lookup(const kvcsa_pool *pool, const kvi_prefix_root *root,
                              const kvi_block *parent, kvi_hash128 key, const int32_t *tokens);
kvi_block **kvi_prefix_children(kvi_prefix_root *root, kvi_block *parent);

/* prefix_forget.c */
void        kvi_prefix_root_drop(kvcsa_pool *pool, kvi_prefix_root *root);
void        kvi_prefix_destroy_all(kvcsa_pool *pool);
/* Out of the table and from its parent's children (it has none itself), pins and the tree's
 * reference dropped: with the last one the block is FREE. A root that nobody needs any more goes
 * too. */
void        kvi_prefix_unpublish(kvcsa_pool *pool, kvi_block *block);
/* One reference less, from outside: as kvi_block_drop, but see the definition. */
void         kvi_prefix_let_go(kvcsa_pool *pool, kvi_block *block);
/* The same, with a trace. */
void        kvi_prefix_remove(kvcsa_pool *pool, kvi_block *block, uint32_t reason);
/* And all behind it first; returns how many they were. */
uint64_t    kvi_prefix_remove_tree(kvcsa_pool *pool, kvi_block *block, uint32_t reason);

/* prefix_check.c */
kvcsa_status kvi_pool_check_tree(const kvcsa_pool *pool, kvcsa_error *err);

/* evict.c */
/* A block has become, or is no longer, evictable: published, not pinned, one reference. Called
 * wherever refs, pins or published change. */
void         kvi_evict_update(kvcsa_pool *pool, kvi_block *block);
void         kvi_evict_enter(kvcsa_pool *pool, kvi_block *block); /* published: likewise */
void         kvi_evict_used(kvcsa_pool *pool, kvi_block *block); /* hit: clock and worth */
/* From the device: into the host tier if that has room. 0 = nothing could go. */
int          kvi_evict_one(kvcsa_pool *pool, uint32_t reason);
/* From the host tier, for good; not if it would be the one that `coming` stands behind. */
int          kvi_evict_host_one(kvcsa_pool *pool, const kvi_block *coming);
/* Evict until `bytes` more fit into the budget, or used_bytes <= max_used; 0 = they do not. */
int          kvi_evict_for(kvcsa_pool *pool, uint64_t bytes, uint32_t reason);
void         kvi_evict_down_to(kvcsa_pool *pool, uint64_t max_used, uint32_t reason);
/* Bytes of all blocks that eviction could free, one after the other. */
uint64_t     kvi_evict_possible_bytes(const kvcsa_pool *pool);
/* Likewise what could be used beside what is held and reserved. */
uint64_t     kvi_evict_room(const kvcsa_pool *pool);
kvcsa_status kvi_pool_check_idle(const kvcsa_pool *pool, kvcsa_error *err);

#endif
