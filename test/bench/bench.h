/* One measured figure beside its peer, its limit and its goals, as all benchmarks make them.
 *
 * Ours and the peer run in turn, in the order A B B A, in one process; minimum and median of all
 * runs are kept, goals are about medians. While a case runs, the processor time of other programs
 * and the clock are watched: a case that was disturbed is measured again, a few times, and then
 * says so.
 *
 * What the machine grants changes from minute to minute where it has neighbours. So the loop of the
 * limit runs for a few milliseconds before and after each of our runs, and the share is the median
 * of the single shares. Ours on two threads has that loop on two threads and on one beside it: the
 * goal of 1.8 times one thread also counts as reached if the two cores gave the loop itself less
 * than BENCH_QUIET and ours was BENCH_OF_CORES of that. */
#ifndef BENCH_H
#define BENCH_H

#include <stddef.h>
#include <stdint.h>

#include "roofline.h"

typedef enum bench_goal {
    BENCH_NO_GOAL = 0,
    BENCH_AT_MOST, /* median <= limit */
    BENCH_RATIO,   /* median / peer's median <= limit */
    BENCH_SPEEDUP, /* peer's median / median >= limit */
    BENCH_EQUAL    /* median == limit */
} bench_goal;

typedef struct bench_row {
    const char *name;
    char        size[16];
    const char *unit;
    double      min, median;
    const char *peer;  /* what is compared with; NULL = nothing */
    double      peer_min, peer_median;
    bench_goal  goal;
    double      limit;
    /* To be filled before it is measured: */
    roofline_kind bound_kind;
    const char   *bound;     /* the name of its share; NULL = no share */
    double        work;      /* of one run, in units of the limit */
    uint32_t      n_threads; /* of ours: 2 = the peer is ours on one; otherwise one */
    double        share_goal; /* at least; 0 = none */
    /* Medians, 0 = not measured: */
    double        share;
    double        bound_rate; /* of the limit, per second, while this was measured */
    double        cores;      /* two threads: the limit's loop on two beside one, */
    double        of_cores;   /* and ours on two beside one as a share of that */
    char        detail[32]; /* shape, instruction set */
    int         peer_absent;
    const char *skipped; /* why there are no figures; NULL = there are */
    int         disturbed;
} bench_row;

enum { BENCH_MAX_ROWS = 160 };
typedef struct bench_rows {
    bench_row rows[BENCH_MAX_ROWS];
    size_t    n;
} bench_rows;

typedef struct bench_cache_params {
    const char *config;  /* of the released model; opened for its plan */
    const char *folder;  /* for files; exists */
    uint64_t    largest; /* tokens of the largest session */
    uint32_t    n_runs;
} bench_cache_params;

/* One run, in nanoseconds; what it prepares and clears away is not in them. */
typedef int64_t (*bench_fn)(void *arg);

/* Fills min, median, peer_min, peer_median (in ns, to be scaled by bench_scale), disturbed, and the
 * medians about the limit.
 * peer NULL = none. */
void bench_pair(bench_row *row, bench_fn ours, bench_fn peer, void *arg, uint32_t n_runs);
void bench_scale(bench_row *row, double factor);
/* A case that was disturbed is measured up to n times; 3 unless said. */
void bench_set_tries(uint32_t n);

/* Run number `run` of several figures at once, in nanoseconds: ours [n_rows], and those that they
 * are compared with. */
typedef void (*bench_many_fn)(void *arg, uint32_t run, int64_t *ours, int64_t *peers);
/* As bench_pair for n_rows rows, BENCH_MAX_MANY at most; the function sees to the order of what it
 * runs. */
void bench_many(bench_row *const *rows, size_t n_rows, bench_many_fn fn, void *arg,
                uint32_t n_runs);
enum { BENCH_MAX_MANY = 16 };
int  bench_passes(const bench_row *row); /* 1 without a goal */
/* "pass", "MISSED", "peer absent", "-" (no goal) */
const char *bench_verdict(const bench_row *row);
#define BENCH_QUIET    1.9
#define BENCH_OF_CORES 0.95
/* The rule that a speed-up of two threads passes by: "1.8x" (the goal), "cores" (what they gave), ""
 * = neither. */
const char *bench_passed_by(const bench_row *row);
/* "two cores gave 1.62x, 0.97 of it: passes by cores", "" with one thread. */
void        bench_cores_text(const bench_row *row, char *text, size_t cap);
/* The goals in words, "" without one. */
void        bench_goal_text(const bench_row *row, char *text, size_t cap);

/* A new row at the end, with "4k", "1M" and so on as size. */
bench_row *bench_add(bench_rows *list, const char *name, uint64_t n_tokens, const char *unit);

void bench_print(const bench_rows *list);         /* as a table */
void bench_print_kernels(const bench_rows *list); /* with shares of limits and speed-ups */

/* Message to stderr, exit status 1. */
void bench_die(const char *what, const char *why);
/* Bytes that a process may take now, as the kernel estimates it; 0 = unknown. */
uint64_t bench_free_memory(void);

void bench_pool(const bench_cache_params *p, bench_rows *out);     /* bench_pool.c */
void bench_memory(const bench_cache_params *p, bench_rows *out);   /* bench_pool.c */
void bench_snapshot(const bench_cache_params *p, bench_rows *out); /* bench_snapshot.c */
void bench_long(const bench_cache_params *p, bench_rows *out);     /* bench_long.c */

#endif
