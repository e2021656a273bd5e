/* Pool handle: one byte budget, blocks in slabs by class, and the device that computes. Locked
 * inside. */
#ifndef KVI_POOL_H
#define KVI_POOL_H

#include "backend/backend.h"

typedef struct kvi_block kvi_block;
typedef struct kvi_block_class kvi_block_class;

enum { KVI_BLOCK_FREE = 0, KVI_BLOCK_OPEN = 1, KVI_BLOCK_SEALED = 2 };

/* params have been imported. */
kvcsa_status kvi_pool_create(const kvcsa_pool_params *params, kvcsa_pool **out, kvcsa_error *err);
kvcsa_pool  *kvi_pool_retain(kvcsa_pool *pool);
void         kvi_pool_release(kvcsa_pool *pool);        /* accepts NULL */

const kvcsa_allocator *kvi_pool_allocator(const kvcsa_pool *pool);
const kvcsa_log       *kvi_pool_log(const kvcsa_pool *pool);
kvi_device            *kvi_pool_device(const kvcsa_pool *pool);
const kvi_backend_ops *kvi_pool_ops(const kvcsa_pool *pool);

/* Blocks of one size pair; classes of equal part sizes are one class. Sessions hold a reference
 * while they use it. */
kvcsa_status kvi_pool_class_acquire(kvcsa_pool *pool, uint32_t index_bytes, uint32_t main_bytes,
                                    kvi_block_class **out,
                                    kvcsa_error *err);
void         kvi_pool_class_release(kvcsa_pool *pool, kvi_block_class *cls);

/* Bytes that are not blocks (windows of a session), within the budget. ERR_FULL. */
kvcsa_status kvi_pool_charge(kvcsa_pool *pool, uint64_t bytes, kvcsa_error *err);
void         kvi_pool_uncharge(kvcsa_pool *pool, uint64_t bytes);
void         kvi_pool_count_session(kvcsa_pool *pool, int delta);

/* Room for n blocks is promised (ERR_FULL: budget) and later taken by kvi_block_acquire, or
 * given back. */
kvcsa_status kvi_pool_reserve(kvcsa_pool *pool, kvi_block_class *cls, uint64_t n_blocks,
                              kvcsa_error *err);
void         kvi_pool_unreserve(kvcsa_pool *pool, kvi_block_class *cls, uint64_t n_blocks);

/* FREE -> OPEN, one reference, taken from the caller's reservation. ERR_NOMEM (reservation
 * kept). */
kvcsa_status kvi_block_acquire(kvcsa_pool *pool, kvi_block_class *cls, kvi_block **out,
                               kvcsa_error *err);
/* OPEN -> FREE, and its room back to the caller's reservation: undo of kvi_block_acquire. */
void         kvi_block_unacquire(kvcsa_pool *pool, kvi_block *block);
void         kvi_block_seal(kvcsa_pool *pool, kvi_block *block);     /* OPEN -> SEALED */
void         kvi_block_retain(kvcsa_pool *pool, kvi_block *block);   /* SEALED only */
void         kvi_block_release(kvcsa_pool *pool, kvi_block *block);  /* last reference: -> FREE */

uint8_t *kvi_block_index_part(const kvi_block *block);
uint8_t *kvi_block_main_part(const kvi_block *block);
uint32_t kvi_block_state(const kvi_block *block);

/* struct_size not touched */
kvcsa_status kvi_pool_get_stats(kvcsa_pool *pool, kvcsa_pool_stats *out, kvcsa_error *err);
kvcsa_status kvi_pool_check(kvcsa_pool *pool, kvcsa_error *err);

#endif
