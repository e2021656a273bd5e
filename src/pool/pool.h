/* Pool handle: one byte budget, blocks in slabs by class, the prefix tree over sealed blocks, and
 * the device that computes. Locked inside. */
#ifndef KVI_POOL_H
#define KVI_POOL_H

#include "backend/memory.h"
#include "base/file.h"
#include "base/hash.h"
#include "model/model.h"

typedef struct kvi_block kvi_block;
typedef struct kvi_block_class kvi_block_class;
typedef struct kvi_prefix_root kvi_prefix_root;

enum { KVI_BLOCK_FREE = 0, KVI_BLOCK_OPEN = 1, KVI_BLOCK_SEALED = 2 };
enum { /* what the blocks of a class are */
    KVI_CLASS_CACHE = 0, /* entries of a span of tokens */
    KVI_CLASS_WINDOW = 1 /* a page of window rows, or pending rows, in the main part */
};
enum { KVI_AT_HOST = 1, KVI_AT_DEVICE = 2 }; /* where a part rests */

/* ------------------------------------------------------------------ the pool */

/* params have been imported. */
kvcsa_status kvi_pool_create(const kvcsa_pool_params *params, kvcsa_pool **out, kvcsa_error *err);
kvcsa_pool  *kvi_pool_retain(kvcsa_pool *pool);
void         kvi_pool_release(kvcsa_pool *pool); /* accepts NULL */

const kvcsa_allocator *kvi_pool_allocator(const kvcsa_pool *pool);
const kvcsa_log       *kvi_pool_log(const kvcsa_pool *pool);
kvi_device            *kvi_pool_device(const kvcsa_pool *pool);
const kvi_backend_ops *kvi_pool_ops(const kvcsa_pool *pool);
/* Where parts of blocks, pages and all that operators work on lie. */
const kvi_memory      *kvi_pool_memory(const kvcsa_pool *pool);
/* Id of the order and rounding of sums of what computes. */
uint64_t               kvi_pool_numerics(const kvcsa_pool *pool);
uint32_t               kvi_pool_backend(const kvcsa_pool *pool); /* KVCSA_BACKEND_*, never AUTO */
const char            *kvi_pool_backend_why(const kvcsa_pool *pool);
/* The CPU: zeros, but for numerics. */
void                   kvi_pool_describe(const kvcsa_pool *pool, kvi_device_info *out);
/* The model's weights where operators find them: its own, or a copy in the device's memory that all
 * sessions of the pool share, with a reference for the caller; the model must outlive it.
 * ERR_NOMEM (the device has no room), ERR_BACKEND. */
kvcsa_status           kvi_pool_weights_acquire(kvcsa_pool *pool, const kvcsa_model *model,
                                                const kvi_weights **out, kvcsa_error *err);
void                   kvi_pool_weights_release(kvcsa_pool *pool,
                                                const kvi_weights *weights); /* accepts NULL */
/* What these copies take of the device's memory. */
uint64_t               kvi_pool_weight_bytes(kvcsa_pool *pool);
uint32_t               kvi_pool_cpu_avoid(const kvcsa_pool *pool);
kvi_threads           *kvi_pool_threads(const kvcsa_pool *pool);

void         kvi_pool_count_session(kvcsa_pool *pool, int delta);
kvcsa_status kvi_pool_resize(kvcsa_pool *pool, uint64_t budget_bytes, kvcsa_error *err);
/* freed: bytes that the allocator got back; may be NULL. */
void         kvi_pool_trim(kvcsa_pool *pool, uint64_t max_used_bytes, uint64_t *freed);
/* struct_size not touched */
kvcsa_status kvi_pool_get_stats(kvcsa_pool *pool, kvcsa_pool_stats *out, kvcsa_error *err);
/* Every invariant of block_alloc.c and prefix_share.c, checksums included. ERR_INTERNAL. */
kvcsa_status kvi_pool_check(kvcsa_pool *pool, kvcsa_error *err);
/* Calls the trace hook, if there is one; with or without the lock. */
void         kvi_pool_trace(const kvcsa_pool *pool, uint32_t kind, uint32_t reason,
                            uint64_t position, uint64_t n_tokens, uint64_t n_bytes);
typedef struct kvi_pool_io_counts {
    uint64_t saved_bytes, saved_records, loaded_bytes, loaded_records;
} kvi_pool_io_counts;
void kvi_pool_count_io(kvcsa_pool *pool, const kvi_pool_io_counts *add);
void kvi_pool_count_adopted(kvcsa_pool *pool, uint64_t n_tokens);

/* ------------------------------------------------------------------ blocks */

/* Classes of equal shapes are one class. Sessions hold a reference while they use it. */
typedef struct kvi_class_shape {
    uint32_t kind;         /* KVI_CLASS_* */
    uint32_t index_bytes;
    uint32_t main_bytes;
    uint32_t block_tokens; /* 0 for windows: no token ids are kept */
} kvi_class_shape;
kvcsa_status kvi_pool_class_acquire(kvcsa_pool *pool, const kvi_class_shape *shape,
                                    kvi_block_class **out, kvcsa_error *err);
void         kvi_pool_class_release(kvcsa_pool *pool, kvi_block_class *cls); /* accepts NULL */

/* Memory that the slabs of n_blocks blocks take in an empty pool without a limit: parts, and what
 * describes them. */
typedef struct kvi_class_cost {
    uint64_t slab_bytes;
    uint64_t record_bytes;
} kvi_class_cost;
kvi_class_cost kvi_class_cost_of(const kvi_class_shape *shape, uint64_t n_blocks);

/* Room for n blocks is promised and later taken by kvi_block_acquire, or given back. Evicts
 * prefixes first; ERR_FULL: what is left in the budget is too little (nothing is promised). */
kvcsa_status kvi_pool_reserve(kvcsa_pool *pool, kvi_block_class *cls, uint64_t n_blocks,
                              kvcsa_error *err);
void         kvi_pool_unreserve(kvcsa_pool *pool, kvi_block_class *cls, uint64_t n_blocks);

/* Drop one reference to each of n blocks (NULL ones are left out) and reserve all that is wanted,
 * in one move, evicting for it. ERR_FULL: even then there is no room; nothing has changed. */
typedef struct kvi_reservation {
    kvi_block_class *cls; /* may be NULL where n_blocks is 0 */
    uint64_t         n_blocks;
} kvi_reservation;
kvcsa_status kvi_pool_trade(kvcsa_pool *pool, const kvi_reservation *want, size_t n_want,
                            kvi_block *const *drop, size_t n_drop, kvcsa_error *err);

/* FREE -> OPEN, one reference, taken from the caller's reservation. ERR_NOMEM, and of a device
 * only when all prefixes that could go have gone; ERR_BACKEND (reservation kept). The holder is the writer: rows that another holder may read are not written again. */
kvcsa_status kvi_block_acquire(kvcsa_pool *pool, kvi_block_class *cls, kvi_block **out,
                               kvcsa_error *err);
/* FREE -> OPEN and the bytes, tokens included, of `from`; counted as a copy. */
kvcsa_status kvi_block_acquire_copy(kvcsa_pool *pool, kvi_block *from, kvi_block **out,
                                    kvcsa_error *err);
/* The same without the bytes: the caller copies those that he may read. */
kvcsa_status kvi_block_acquire_instead(kvcsa_pool *pool, kvi_block *from, kvi_block **out,
                                       kvcsa_error *err);
/* OPEN with one reference -> FREE, and its room back to the caller's reservation. */
void         kvi_block_unacquire(kvcsa_pool *pool, kvi_block *block);
void         kvi_block_retain(kvcsa_pool *pool, kvi_block *block);  /* accepts NULL; not FREE */
void         kvi_block_release(kvcsa_pool *pool, kvi_block *block); /* accepts NULL; last: FREE,
                                                                     * then its parent likewise */
/* The same for n of them under one lock; NULL ones are left out. */
void         kvi_blocks_retain(kvcsa_pool *pool, kvi_block *const *blocks, size_t n);
void         kvi_blocks_release(kvcsa_pool *pool, kvi_block *const *blocks, size_t n);
/* How many of n blocks are NULL or have another holder: what a writer has to acquire. */
size_t       kvi_blocks_count_shared(kvcsa_pool *pool, kvi_block *const *blocks, size_t n);
int          kvi_block_is_shared(kvcsa_pool *pool, const kvi_block *block); /* refs > 1 */
/* OPEN, and the caller is its writer or its only holder. */
int          kvi_block_is_writable(kvcsa_pool *pool, const kvi_block *block, int mine);

uint8_t  *kvi_block_index_part(const kvi_block *block);
uint8_t  *kvi_block_main_part(const kvi_block *block);
int32_t  *kvi_block_tokens(const kvi_block *block); /* [block_tokens] */
uint32_t  kvi_block_state(const kvi_block *block);

/* ------------------------------------------------------------------ sealed blocks and prefixes */

/* A sealed block holds block_tokens tokens and a reference to the block in front of it (NULL for
 * the first), so one reference to the last block keeps a whole prefix: that is what a fork copies.
 * Fields below are constant from the seal on and may be read without the lock by a holder. */
kvi_block *kvi_block_parent(const kvi_block *block);
uint64_t   kvi_block_depth(const kvi_block *block); /* 0 = the first of its chain */
int        kvi_block_is_tainted(const kvi_block *block);
int        kvi_block_is_published(kvcsa_pool *pool, const kvi_block *block);
kvi_hash128 kvi_block_key(const kvi_block *block);
/* Checksums of index and main part. */
kvi_hash128 kvi_block_index_sum(const kvi_block *block);
kvi_hash128 kvi_block_main_sum(const kvi_block *block);

/* What must be equal for blocks to be shared. */
typedef struct kvi_domain {
    uint64_t weights;  /* fingerprint of the model */
    uint64_t adapter;  /* 0 = none */
    uint64_t plan;     /* rows, formats, selection sizes, tokens per block */
    uint64_t numerics; /* kernel revision, backend, ISA class */
    uint64_t salt;
    uint64_t version;  /* KVI_DOMAIN_VERSION */
} kvi_domain;
enum { KVI_DOMAIN_VERSION = 1 };

/* The root of one domain's tree. Sessions hold a reference; it lives while there are any, or
 * published blocks below it. find: with a reference for the caller; NULL if there is none. */
kvcsa_status     kvi_prefix_root_acquire(kvcsa_pool *pool, const kvi_domain *domain,
                                         uint32_t block_tokens, kvi_prefix_root **out,
                                         kvcsa_error *err);
kvi_prefix_root *kvi_prefix_root_find(kvcsa_pool *pool, const kvi_domain *domain);
void             kvi_prefix_root_release(kvcsa_pool *pool, kvi_prefix_root *root);
const kvi_domain *kvi_prefix_root_domain(const kvi_prefix_root *root);
/* Key of the block behind `parent` (NULL = the first) with these block_tokens tokens. */
kvi_hash128      kvi_prefix_key(const kvi_prefix_root *root, const kvi_block *parent,
                                const int32_t *tokens);

enum { /* flags of kvi_block_seal */
    KVI_SEAL_TAINTED = 1u, /* approximate: private for ever */
    KVI_SEAL_PRIVATE = 2u  /* not published now */
};
/* OPEN -> SEALED behind `parent`, whose reference (the caller's) moves into the block; computes key
 * and checksums, and publishes. Cannot fail: where a device does, the block is tainted and its
 * checksums are 0. If the tree holds an equal block already, the caller's goes and that one is
 * returned instead, with a reference for the caller. `window`: [n_window] pages to keep beside the
 * block (a stored window), retained; n_window 0 = none. */
kvi_block *kvi_block_seal(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *block,
                          kvi_block *parent, uint32_t flags, kvi_block *const *window,
                          size_t n_window);

/* The same with checksums that the caller has made of the parts: sums[0] of index, [1] of main. */
kvi_block *kvi_block_seal_with(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *block,
                               kvi_block *parent, uint32_t flags, const kvi_hash128 *sums,
                               kvi_block *const *window, size_t n_window);

typedef struct kvi_prefix_match {
    kvi_block *last;     /* last block matched in whole; retained; NULL = none behind `from` */
    kvi_block *partial;  /* block whose first tokens match; retained; NULL = none */
    uint64_t   n_tokens; /* matched, behind `from` */
    uint32_t   reason;   /* KVCSA_REASON_* why not more; NONE if all */
} kvi_prefix_match;
/* Longest known continuation of the published block `from` (NULL = the root) by tokens[n]. `from`
 * not published: nothing, reason PRIVATE. One probe a block, and one more at the end. Blocks in the
 * host tier are brought back, one copy each, which evicts others; where there is no room for one
 * the match ends in front of it (reason BUDGET). */
void kvi_prefix_find(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *from,
                     const int32_t *tokens, size_t n, kvi_prefix_match *out);
/* The same from the root, for who reads no bytes: all stays where it is. What is held of the host
 * tier cannot be brought back by others meanwhile: to be let go soon. */
void kvi_prefix_look(kvcsa_pool *pool, kvi_prefix_root *root, const int32_t *tokens, size_t n,
                     kvi_prefix_match *out);
void kvi_prefix_match_release(kvcsa_pool *pool, kvi_prefix_match *match);
/* The blocks of the chain that ends in `last`, from depth `from_depth` on, were of use: counts for
 * eviction. */
void kvi_prefix_touch(kvcsa_pool *pool, kvi_block *last, uint64_t from_depth);

/* Publish the chain that ends in `last`. Blocks that are tainted, and all behind them, stay
 * private. An equal chain that is there already is not replaced. Returns the number of blocks of
 * the chain that can be found. */
uint64_t kvi_prefix_publish(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *last);
/* Pins hold a reference. unpin: 0 = it was not pinned. */
void     kvi_prefix_pin(kvcsa_pool *pool, kvi_block *block);
int      kvi_prefix_unpin(kvcsa_pool *pool, kvi_block *block);
/* Unpublish everything below `block` (NULL = of the root; root NULL = of every root), then it and
 * its parents as far as they have no other published child. Drops pins. Returns bytes freed. */
uint64_t kvi_prefix_forget(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *block);
/* For erase: the chain that ends in `last` is zeroed when its blocks are freed, and unpublished
 * from its end up to the first block that has another published child or another holder. */
void     kvi_prefix_erase(kvcsa_pool *pool, kvi_block *last);

/* The stored window of the deepest block of the chain at or above depth `from_depth` that has one:
 * retains its pages into pages[n_pages] and returns the number of tokens at whose end it stands;
 * 0 = none. */
uint64_t kvi_block_stored_window(kvcsa_pool *pool, kvi_block *last, uint64_t from_depth,
                                 kvi_block **pages, size_t n_pages);

/* For tests: keys from this function instead of XXH3-128. */
typedef kvi_hash128 (*kvi_hash_fn)(const void *data, size_t n_bytes, uint64_t seed);
void kvi_pool_set_hash(kvcsa_pool *pool, kvi_hash_fn hash);
/* Files of snapshots go through this; tests put failing ones in. Borrowed. */
void          kvi_pool_set_fs(kvcsa_pool *pool, const kvi_fs *fs);
const kvi_fs *kvi_pool_fs(const kvcsa_pool *pool);

#endif
