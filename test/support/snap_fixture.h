/* The fixture of tests of snapshots: T1 in two sizes of blocks, a session of each that has something to save, and a folder. */
#ifndef SNAP_FIXTURE_H
#define SNAP_FIXTURE_H

#include "support/snap.h"

typedef struct fixture {
    kvcsa_model   *model; /* blocks of 128 tokens */
    kvcsa_model   *small; /* the same weights, blocks of 16 tokens */
    snap_run       run, old; /* old: empty unless the set-up runs it */
    kvcsa_pool    *pool;  /* of the saver */
    kvcsa_session *saver; /* run.ids[n] */
    kvcsa_session *small_saver;
    snap_dir       dir;
} fixture;

static inline fixture *fixture_make(size_t n, uint64_t seed)
{
    fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->model = host_model(T1_DIR);
    f->small = host_model_in_blocks(16);
    snap_run_make(&f->run, f->model, seed);
    f->pool = host_pool(1, 0);
    f->saver = snap_session(&f->run, f->pool, f->model, n);
    f->small_saver = snap_session(&f->run, f->pool, f->small, n);
    f->dir = snap_dir_make();
    return f;
}

static inline int tear_down(void **state)
{
    fixture *f = *state;

    kvcsa_session_release(&f->saver);
    kvcsa_session_release(&f->small_saver);
    kvcsa_pool_release(&f->pool);
    kvcsa_model_release(&f->model);
    kvcsa_model_release(&f->small);
    snap_run_free(&f->run);
    snap_run_free(&f->old);
    snap_dir_remove(&f->dir);
    free(f);
    return 0;
}

#endif
