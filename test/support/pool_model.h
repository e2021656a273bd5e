/* A naive model of the pool, driven by a stream of choices: random numbers in the tests, the input
 * bytes in the fuzzer. Every step does one operation on a real pool and on plain arrays, and then
 * compares all that can be seen, and all references.
 *
 * Nothing is counted in the model: how many references a block has, what is used and what can be
 * evicted follow from who names whom.
 */
#ifndef TEST_POOL_MODEL_H
#define TEST_POOL_MODEL_H

#include "pool/pool.h"

#include "support/fault_alloc.h"

enum {
    POOL_MODEL_CLASSES = 3, /* two of blocks, one of pages */
    POOL_MODEL_ROOTS = 3,
    POOL_MODEL_BLOCKS = 160,
    POOL_MODEL_TOKENS = 8, /* in a block, at most */
    POOL_MODEL_PAGES = 2   /* in a stored window */
};

typedef struct pool_model_params {
    uint64_t budget;    /* 0 = none */
    uint32_t flags;     /* KVCSA_POOL_* */
    uint32_t evict;     /* KVCSA_EVICT_* */
    int      weak_hash; /* keys take 2 values only */
    uint32_t (*below)(void *user, uint32_t n); /* the next choice: 0..n-1 */
    void *user;
} pool_model_params;

typedef struct pool_model_block {
    kvi_block *block; /* NULL = this record is not in use */
    uint8_t    state;
    uint8_t    mark; /* what its bytes are */
    uint8_t    published;
    uint8_t    tainted;
    uint8_t    secure; /* of an erased session */
    int        cls;
    int        root;   /* of sealed ones */
    int        parent; /* -1 = none */
    uint32_t   held;   /* references of ours */
    uint32_t   pins;
    uint64_t   n_hits; /* since it was published */
    int32_t    tokens[POOL_MODEL_TOKENS];
    int        n_pages;
    int        pages[POOL_MODEL_PAGES]; /* -1 = not held */
} pool_model_block;

typedef struct pool_model {
    pool_model_params params;
    fault_alloc       fa;
    kvcsa_pool       *pool;
    uint64_t          budget;
    uint64_t          n_steps;
    struct {
        kvi_block_class *cls;
        uint64_t         n_users;
        uint64_t         n_reserved;
    } classes[POOL_MODEL_CLASSES];
    struct {
        kvi_prefix_root *root;
        uint64_t         refs;
    } roots[POOL_MODEL_ROOTS];
    pool_model_block blocks[POOL_MODEL_BLOCKS];
    pool_model_block spare[POOL_MODEL_BLOCKS]; /* to try something out */
    uint32_t         refs[POOL_MODEL_BLOCKS];  /* what follows from blocks[] */
    double           worth[POOL_MODEL_BLOCKS]; /* these two say who is evicted first */
    uint64_t         last_used[POOL_MODEL_BLOCKS];
    uint64_t         n_acquired, n_released, n_evicted, n_lookups;
    uint64_t         n_copied[2];
    uint64_t          n_erased;     /* these two since the step began */
    uint64_t          n_traced[32]; /* EVICT events by reason */
    uint64_t         n_found, n_deduplicated, n_full, n_failed; /* what the run came across */
    char             fault[400];               /* "" = none */
} pool_model;

/* 0; 1 = fault says what differs. */
int pool_model_init(pool_model *m, const pool_model_params *params);
int pool_model_step(pool_model *m);
/* Lets go of everything: the allocator must have got all of it back. */
int pool_model_finish(pool_model *m);

#endif
