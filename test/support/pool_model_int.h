/* What the two files of the naive model share. */
#ifndef TEST_POOL_MODEL_INT_H
#define TEST_POOL_MODEL_INT_H

#include "support/pool_model.h"

/* A difference ends the run; its line says which. */
#define WANT(x)                                                                                    \
    do {                                                                                           \
        if (!(x))                                                                                  \
            return pm_blame(m, __FILE__, __LINE__, #x);                                            \
    } while (0)
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if (call)                                                                                  \
            return 1;                                                                              \
    } while (0)

enum { PM_ANY_STATE = 3 };

extern const kvi_class_shape pm_shapes[POOL_MODEL_CLASSES];
extern const int             pm_root_class[POOL_MODEL_ROOTS];

int      pm_blame(pool_model *m, const char *file, int line, const char *what); /* always 1 */
uint32_t pm_choose(pool_model *m, uint32_t n);                                 /* 0..n-1 */

/* What the arrays say. -1 as an index = none, or the root. */
uint64_t pm_block_bytes(int c);
uint64_t pm_used_bytes(const pool_model *m);
uint64_t pm_reserved_bytes(const pool_model *m);
void     pm_count_refs(pool_model *m);
void     pm_collect(pool_model *m);      /* blocks that nobody names any more */
void     pm_let_go(pool_model *m, int i); /* one reference of ours less */
int      pm_depth_of(const pool_model *m, int i);
int      pm_n_live_of(const pool_model *m, int c);
int      pm_is_known_class(const pool_model *m, int c);
int      pm_has_published(const pool_model *m, int r);
int      pm_find_child(const pool_model *m, int r, int parent, const int32_t *tokens);
int      pm_has_published_child(const pool_model *m, int parent);

/* Choices. pick: a block of ours in this state, of class c (-1 = any). */
int  pm_pick(pool_model *m, int state, int c);
void pm_choose_tokens(pool_model *m, int32_t *tokens, size_t n);
void pm_fail_sometimes(pool_model *m);
int  pm_stop_failing(pool_model *m); /* did an allocation fail since then? */

/* note_worth before the pool may evict; then follow it down to `limit` used bytes. */
void     pm_note_worth(pool_model *m);
int      pm_follow_evictions(pool_model *m, uint64_t limit, uint32_t reason);
uint64_t pm_least_used(pool_model *m); /* if all that can go went */
int      pm_is_newest(const pool_model *m, int i);

int pm_compare(pool_model *m);
int pm_run_one(pool_model *m);
int pm_class_acquire(pool_model *m, int c);
int pm_root_acquire(pool_model *m, int r);
void pm_release_some(pool_model *m, int i, uint32_t n);

#endif
