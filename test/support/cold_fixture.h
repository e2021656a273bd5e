/* The fixture of tests of sessions on T1: the model, one undisturbed run, perhaps a second one and a pool. */
#ifndef COLD_FIXTURE_H
#define COLD_FIXTURE_H

#include "support/cold.h"

typedef struct fixture {
    kvcsa_model *model;
    kvcsa_cost   cost; /* of all tokens of cold */
    kvcsa_pool  *pool; /* NULL unless the set-up opens one; has to become empty */
    cold         cold;
    cold         other; /* empty unless the set-up runs one */
} fixture;

static inline fixture *fixture_make(size_t n, uint64_t seed)
{
    fixture    *f = calloc(1, sizeof *f);
    kvcsa_error err;

    assert_non_null(f);
    f->model = host_model(T1_DIR);
    f->cost.struct_size = sizeof f->cost;
    assert_ok(kvcsa_model_cost(f->model, n, &f->cost, &err));
    f->cold = cold_run(f->model, n, seed);
    return f;
}

static inline int tear_down(void **state)
{
    fixture *f = *state;

    if (f->pool)
        close_pool(f->pool);
    cold_free(&f->cold);
    cold_free(&f->other);
    kvcsa_model_release(&f->model);
    free(f);
    return 0;
}

#endif
