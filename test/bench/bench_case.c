#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MAX_RUNS  200u
#define MIN_NS    250000000 /* of a case */
#define MAX_CLOCK 0.03 /* of the clock, before and after */
#define MAX_OTHER 0.02 /* of all processors, by other programs */

void bench_die(const char *what, const char *why)
{
    fprintf(stderr, "bench: %s: %s\n", what, why);
    exit(1);
}

uint64_t bench_free_memory(void)
{
    FILE              *f = fopen("/proc/meminfo", "r");
    char               line[128];
    unsigned long long kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (uint64_t)kib << 10;
}

/* ------------------------------------------------------------------ was anybody else running? */

typedef struct watch {
    int64_t wall_ns;
    double  busy_s; /* all processors, all programs; < 0 = unknown */
    double  own_s;
    double  clock;  /* dependent multiplications per ns */
} watch;

static double busy_seconds(void)
{
    FILE              *f = fopen("/proc/stat", "r");
    unsigned long long v[8] = {0};
    double             ticks = -1;

    if (f && fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3],
                    &v[4], &v[5], &v[6], &v[7]) == 8)
        ticks = (double)(v[0] + v[1] + v[2] + v[5] + v[6] + v[7]); /* not idle, not iowait */
    if (f)
        fclose(f);
    return ticks < 0 ? -1 : ticks / (double)sysconf(_SC_CLK_TCK);
}

static double own_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* The best of a few: one that was interrupted says nothing about the clock. */
static double clock_rate(void)
{
    double best = 0;

    for (int k = 0; k < 5; k++) {
        const int64_t start = bench_now_ns();
        uint64_t      x = 12345;
        double        rate;

        for (int i = 0; i < 200000; i++) {
            x *= 6364136223846793005u;
            __asm__ volatile("" : "+r"(x)); /* each product waits for the one before it */
        }
        rate = 200000.0 / (double)(bench_now_ns() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

static int64_t wall_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static watch look(void)
{
    const double clock = clock_rate();

    return (watch){wall_ns(), busy_seconds(), own_seconds(), clock};
}

static int was_disturbed(const watch *from)
{
    const int64_t wall = wall_ns() - from->wall_ns;
    const double  busy = busy_seconds() - from->busy_s;
    const double  own = own_seconds() - from->own_s;
    const double  n_cpus = (double)sysconf(_SC_NPROCESSORS_ONLN);
    const double  seconds = (double)wall / 1e9 * n_cpus;
    const double  clock = clock_rate();

    /* a tick on either side belongs to nobody */
    return fabs(clock / from->clock - 1) > MAX_CLOCK ||
           (from->busy_s >= 0 && busy - own - 0.02 * n_cpus > MAX_OTHER * seconds);
}

/* ------------------------------------------------------------------ measuring */

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a;
    const int64_t y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void summarise(int64_t *ns, uint32_t n, double *min, double *median)
{
    qsort(ns, n, sizeof *ns, by_value);
    *min = (double)ns[0];
    *median = n % 2 ? (double)ns[n / 2] : (double)(ns[n / 2 - 1] + ns[n / 2]) / 2;
}

static uint32_t most_tries = 3;

void bench_set_tries(uint32_t n)
{
    most_tries = n;
}

/* Runs of a short case go on until a foreign program would be seen in the ticks of the clock. */
static int has_enough(uint32_t n, uint32_t n_runs, const watch *from)
{
    return n == MAX_RUNS || (n >= n_runs && (most_tries == 1 || wall_ns() - from->wall_ns > MIN_NS));
}

static double median_of(double *x, uint32_t n)
{
    qsort(x, n, sizeof *x, by_size);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* Of the limit's loop, beside one run of ours: by as many threads as ours, and by one. */
typedef struct granted {
    double all, one;
} granted;

static granted look_at_limit(const bench_row *row)
{
    granted g = {0, 0};

    if (row->bound_kind == ROOFLINE_NONE)
        return g;
    if (row->n_threads == 2)
        g.all = roofline_burst(row->bound_kind, 2);
    g.one = roofline_burst(row->bound_kind, 1);
    if (row->n_threads != 2)
        g.all = g.one;
    return g;
}

/* What is known after each run; [0..n-1]. */
typedef struct runs {
    int64_t  ours[MAX_RUNS], peer[MAX_RUNS];
    double   rate[MAX_RUNS], share[MAX_RUNS], cores[MAX_RUNS], of_cores[MAX_RUNS];
    uint32_t n;
} runs;

static void one_turn(bench_row *row, bench_fn ours, bench_fn peer, void *arg, runs *r)
{
    const uint32_t n = r->n++;
    granted        before;
    granted        after;

    if (peer && n % 2)
        r->peer[n] = peer(arg);
    before = look_at_limit(row);
    if (row->bound_kind == ROOFLINE_L2 || row->bound_kind == ROOFLINE_L3)
        ours(arg); /* the limit's buffer has taken the cache from what ours finds there */
    r->ours[n] = ours(arg);
    after = look_at_limit(row);
    if (peer && n % 2 == 0)
        r->peer[n] = peer(arg);
    if (row->bound_kind == ROOFLINE_NONE)
        return;
    r->rate[n] = (before.all + after.all) / 2;
    r->share[n] = row->work * 1e9 / ((double)r->ours[n] * r->rate[n]);
    r->cores[n] = (before.all + after.all) / (before.one + after.one);
    r->of_cores[n] = peer ? (double)r->peer[n] / (double)r->ours[n] / r->cores[n] : 0;
}

void bench_pair(bench_row *row, bench_fn ours, bench_fn peer, void *arg, uint32_t n_runs)
{
    static runs r; /* too large for a stack */

    ours(arg); /* caches, page tables, the allocator's lists */
    if (peer)
        peer(arg);
    for (uint32_t try = 0; try < most_tries && (try == 0 || row->disturbed); try++) {
        const watch w = look();

        for (r.n = 0; !has_enough(r.n, n_runs, &w);)
            one_turn(row, ours, peer, arg, &r);
        row->disturbed = was_disturbed(&w);
        summarise(r.ours, r.n, &row->min, &row->median);
        if (peer)
            summarise(r.peer, r.n, &row->peer_min, &row->peer_median);
        if (row->bound_kind == ROOFLINE_NONE)
            continue;
        row->bound_rate = median_of(r.rate, r.n);
        row->share = row->bound ? median_of(r.share, r.n) : 0;
        row->cores = row->n_threads == 2 ? median_of(r.cores, r.n) : 0;
        row->of_cores = row->n_threads == 2 && peer ? median_of(r.of_cores, r.n) : 0;
    }
}

static void many_once(bench_row *const *rows, size_t n_rows, bench_many_fn fn, void *arg, uint32_t n)
{
    static int64_t ours[BENCH_MAX_MANY][MAX_RUNS];
    static int64_t peers[BENCH_MAX_MANY][MAX_RUNS];
    int64_t        a[BENCH_MAX_MANY] = {0};
    int64_t        b[BENCH_MAX_MANY] = {0};
    const watch    w = look();

    for (uint32_t i = 0; i < n; i++) {
        fn(arg, i, a, b);
        for (size_t k = 0; k < n_rows; k++) {
            ours[k][i] = a[k];
            peers[k][i] = b[k];
        }
    }
    for (size_t k = 0; k < n_rows; k++) {
        rows[k]->disturbed = k ? rows[0]->disturbed : was_disturbed(&w);
        summarise(ours[k], n, &rows[k]->min, &rows[k]->median);
        if (rows[k]->peer)
            summarise(peers[k], n, &rows[k]->peer_min, &rows[k]->peer_median);
    }
}

void bench_many(bench_row *const *rows, size_t n_rows, bench_many_fn fn, void *arg, uint32_t n_runs)
{
    int64_t a[BENCH_MAX_MANY];
    int64_t b[BENCH_MAX_MANY];

    fn(arg, 0, a, b);
    for (uint32_t try = 0; try < most_tries && (try == 0 || rows[0]->disturbed); try++)
        many_once(rows, n_rows, fn, arg, n_runs > MAX_RUNS ? MAX_RUNS : n_runs);
}

void bench_scale(bench_row *row, double factor)
{
    row->min *= factor;
    row->median *= factor;
    row->peer_min *= factor;
    row->peer_median *= factor;
}

const char *bench_passed_by(const bench_row *row)
{
    static char goal[16];

    if (row->goal != BENCH_SPEEDUP || row->n_threads != 2 || row->peer_absent)
        return "";
    snprintf(goal, sizeof goal, "%gx", row->limit);
    if (row->peer_median >= row->limit * row->median)
        return goal;
    return row->cores > 0 && row->cores < BENCH_QUIET && row->of_cores >= BENCH_OF_CORES ? "cores" : "";
}

int bench_passes(const bench_row *row)
{
    if (row->share_goal > 0 && row->share < row->share_goal)
        return 0;
    switch (row->goal) {
    case BENCH_AT_MOST:
        return row->median <= row->limit;
    case BENCH_RATIO:
        return row->peer_absent || row->median <= row->limit * row->peer_median;
    case BENCH_SPEEDUP:
        return row->peer_absent || row->peer_median >= row->limit * row->median || bench_passed_by(row)[0];
    case BENCH_EQUAL:
        return row->median == row->limit; /* counted, not measured */
    case BENCH_NO_GOAL:
        break;
    }
    return 1;
}

const char *bench_verdict(const bench_row *row)
{
    const int about_peer = row->goal == BENCH_RATIO || row->goal == BENCH_SPEEDUP;

    if (row->goal == BENCH_NO_GOAL && row->share_goal <= 0)
        return row->peer_absent ? "peer absent" : "-";
    if (!bench_passes(row))
        return "MISSED";
    return row->peer_absent && about_peer ? "peer absent" : "pass";
}

void bench_cores_text(const bench_row *row, char *text, size_t cap)
{
    const char *rule = bench_passed_by(row);

    text[0] = 0;
    if (row->cores > 0)
        snprintf(text, cap, "two cores gave %.2fx, %.2f of it%s%s", row->cores, row->of_cores, rule[0] ? ": passes by " : "", rule);
}

void bench_goal_text(const bench_row *row, char *text, size_t cap)
{
    char share[24] = "";

    text[0] = 0;
    if (row->goal == BENCH_AT_MOST)
        snprintf(text, cap, "<= %g %s", row->limit, row->unit);
    if (row->goal == BENCH_RATIO)
        snprintf(text, cap, "<= %gx", row->limit);
    if (row->goal == BENCH_SPEEDUP)
        snprintf(text, cap, ">= %gx", row->limit);
    if (row->goal == BENCH_EQUAL)
        snprintf(text, cap, "= %g", row->limit);
    if (row->share_goal > 0) {
        snprintf(share, sizeof share, "%s>= %.2f", text[0] ? ", " : "", row->share_goal);
        strncat(text, share, cap - strlen(text) - 1);
    }
}

/* ------------------------------------------------------------------ rows */

bench_row *bench_add(bench_rows *list, const char *name, uint64_t n_tokens, const char *unit)
{
    bench_row *r;

    if (list->n == BENCH_MAX_ROWS)
        bench_die(name, "more rows than there is room for");
    r = &list->rows[list->n++];
    *r = (bench_row){.name = name, .unit = unit};
    if (n_tokens >= 1 << 20 && n_tokens % (1 << 20) == 0)
        snprintf(r->size, sizeof r->size, "%uM", (unsigned)(n_tokens >> 20));
    else if (n_tokens >= 1 << 10)
        snprintf(r->size, sizeof r->size, "%uk", (unsigned)(n_tokens >> 10));
    return r;
}

static void print_goal(const bench_row *r)
{
    char goal[48];
    char cores[64];

    bench_goal_text(r, goal, sizeof goal);
    bench_cores_text(r, cores, sizeof cores);
    printf(" | %-16s %s%s%s%s%s\n", goal, bench_verdict(r), cores[0] ? " (" : "", cores, cores[0] ? ")" : "",
           r->disturbed ? " (disturbed)" : "");
}

void bench_print(const bench_rows *list)
{
    printf("\n%-19s %5s %10s | %10s %10s | %-24s %10s %10s %7s | %s\n", "cache", "size", "unit",
           "min", "median", "peer", "min", "median", "ratio", "goal");
    for (size_t i = 0; i < list->n; i++) {
        const bench_row *r = &list->rows[i];

        printf("%-19s %5s %10s | ", r->name, r->size, r->unit);
        if (r->skipped) {
            printf("not run: %s\n", r->skipped);
            continue;
        }
        printf("%10.6g %10.6g | ", r->min, r->median);
        if (r->peer)
            printf("%-24s %10.6g %10.6g %7.3f", r->peer, r->peer_min, r->peer_median,
                   r->median / r->peer_median);
        else
            printf("%-24s %10s %10s %7s", "-", "", "", "");
        print_goal(r);
    }
    printf("\nGoals are about medians. disturbed: other programs ran meanwhile, or the clock "
           "changed.\n");
}

void bench_print_kernels(const bench_rows *list)
{
    printf("\n%-18s %-30s %10s %-8s | %-5s %6s | %-26s %10s %8s | %s\n", "kernel", "shape", "median", "",
           "of", "share", "peer", "median", "faster", "goal");
    for (size_t i = 0; i < list->n; i++) {
        const bench_row *r = &list->rows[i];
        char             what[64];

        snprintf(what, sizeof what, "%s%s%s", r->size, r->size[0] && r->detail[0] ? " " : "", r->detail);
        printf("%-18s %-30s ", r->name, what);
        if (r->skipped) {
            printf("not run: %s\n", r->skipped);
            continue;
        }
        printf("%10.5g %-8s | ", r->median, r->unit);
        if (r->bound)
            printf("%-5s %5.1f%% | ", r->bound, 100 * r->share);
        else
            printf("%-5s %6s | ", "-", "");
        if (r->peer && !r->peer_absent && r->goal == BENCH_RATIO)
            printf("%-26s %10.5g %6.2fx'", r->peer, r->peer_median, r->median / r->peer_median);
        else if (r->peer && !r->peer_absent)
            printf("%-26s %10.5g %7.2fx", r->peer, r->peer_median, r->peer_median / r->median);
        else
            printf("%-26s %10s %8s", r->peer ? r->peer : "-", r->peer ? "absent" : "", "");
        print_goal(r);
    }
    printf("\nShares: the median of ours beside the loop of the limit, which runs for milliseconds before and after each of our\n"
           "runs. Two threads: that loop runs on two and on one as well, \"two cores gave\" is their ratio. A goal beside one thread\n"
           "is also met if the two cores gave less than %.1fx and ours is at least %.2f of what they gave: \"passes by cores\".\n",
           BENCH_QUIET, BENCH_OF_CORES);
}
