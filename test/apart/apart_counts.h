/* What the test device was asked for, for tests: the plug-in's table is the first member of an apart_table. A test that has only
 * a pool asks the plug-in that the pool has opened, and looks at the difference of two readings:
 *
 *     apart_counts before, after;
 *
 *     assert_true(apart_counts_now(dir, &before)); // dir: the backend_dir of the pool, test_backend_dir()
 *     step();
 *     assert_true(apart_counts_now(dir, &after));
 *     assert_int_equal(after.graph_runs - before.graph_runs, 1); */
#ifndef APART_COUNTS_H
#define APART_COUNTS_H

#include "backend/backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Of all devices of the process, since the plug-in was loaded. */
typedef struct apart_counts {
    uint64_t launches;   /* operators that were enqueued, those in graphs not */
    uint64_t recorded;   /* operators that were put into graphs */
    uint64_t copies_in;  /* from the host ... */
    uint64_t copies_out; /* to the host; all outside of graphs */
    uint64_t copies;     /* within, and fills; outside of graphs */
    uint64_t graphs;     /* that were recorded */
    uint64_t graph_runs;
    uint64_t syncs;
} apart_counts;

typedef struct apart_tally {
    _Atomic uint64_t launches, recorded, copies_in, copies_out, copies, graphs, graph_runs, syncs;
} apart_tally;

typedef struct apart_table {
    kvi_backend_ops ops;
    apart_tally     tally;
} apart_table;

/* The plug-in of the folder `dir`, which somebody has opened; 0 = nobody has, or it is another one. */
static inline int apart_counts_now(const char *dir, apart_counts *out)
{
    char                   path[PATH_MAX + 64];
    void                  *so = NULL;
    kvi_backend_query_fn   query = NULL;
    const kvi_backend_ops *ops = NULL;

    memset(out, 0, sizeof *out);
    if (!dir || snprintf(path, sizeof path, "%s/libkvcsa_cuda.so", dir) >= (int)sizeof path)
        return 0;
    if (!(so = dlopen(path, RTLD_NOW | RTLD_NOLOAD)))
        return 0;
    *(void **)&query = dlsym(so, KVI_BACKEND_QUERY);
    ops = query ? query(KVI_BACKEND_ABI) : NULL;
    dlclose(so); /* whoever opened it holds it */
    if (!ops || strcmp(ops->name, "apart") != 0)
        return 0;

    const apart_tally *t = &((const apart_table *)(const void *)ops)->tally;

    *out = (apart_counts){.launches = t->launches,
                          .recorded = t->recorded,
                          .copies_in = t->copies_in,
                          .copies_out = t->copies_out,
                          .copies = t->copies,
                          .graphs = t->graphs,
                          .graph_runs = t->graph_runs,
                          .syncs = t->syncs};
    return 1;
}

#endif
