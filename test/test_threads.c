/* base/threads: every item once, whoever runs it; nothing left behind. */
#include "base/threads.h"

#include "base/alloc.h"
#include "base/status.h"

#include "support/fault_alloc.h"
#include "support/prng.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WITH_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WITH_SANITIZER 1
#endif
#endif
#ifndef WITH_SANITIZER
#define WITH_SANITIZER 0
#endif

#define MAX_ITEMS 2000

static uint64_t seed;

typedef struct tally {
    size_t      n;
    size_t      grain;
    atomic_uint hits[MAX_ITEMS];
    atomic_uint n_bad;
} tally;

static void count_range(void *arg, size_t begin, size_t end)
{
    tally *t = arg;

    /* whole grains but the last; a serial loop gets everything in one range */
    if (begin >= end || end > t->n || begin % t->grain || (end % t->grain && end != t->n))
        atomic_fetch_add(&t->n_bad, 1);
    for (size_t i = begin; i < end && i < MAX_ITEMS; i++)
        atomic_fetch_add(&t->hits[i], 1);
}

static void run_and_check(kvi_threads *threads, tally *t, size_t n, size_t grain)
{
    memset(t, 0, sizeof *t);
    t->n = n;
    t->grain = grain ? grain : 1;
    kvi_run(threads, count_range, t, n, grain);
    assert_int_equal(atomic_load(&t->n_bad), 0);
    for (size_t i = 0; i < MAX_ITEMS; i++) {
        if (atomic_load(&t->hits[i]) != (i < n))
            fail_msg("item %zu of %zu, grain %zu: %u times", i, n, grain, atomic_load(&t->hits[i]));
    }
}

static kvi_threads *make_threads(fault_alloc *fa, uint32_t n, const kvcsa_executor *executor)
{
    kvi_threads *threads = NULL;
    kvcsa_error  err;

    if (kvi_threads_create(&fa->hook, n, executor, &threads, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    assert_non_null(threads);
    return threads;
}

static size_t count_own_threads(void)
{
    DIR   *dir = opendir("/proc/self/task");
    size_t n = 0;

    if (!dir)
        return 1;
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2; /* . and .. */
}

/* A joined thread may stand in the list for a moment longer. */
static int own_threads_become(size_t n)
{
    for (int i = 0; i < 2000; i++) {
        if (count_own_threads() == n)
            return 1;
        usleep(1000);
    }
    return 0;
}

/* Those that stay: under an emulator a joined thread may stand in the list for long. */
static size_t settled_threads(void)
{
    size_t n = count_own_threads();

    for (int quiet = 0; quiet < 10; quiet++) {
        size_t now;

        usleep(5000);
        now = count_own_threads();
        if (now != n)
            quiet = 0;
        n = now;
    }
    return n;
}

/* ------------------------------------------------------------------ loops */

static void test_run_covers_every_item_once(void **state)
{
    static const uint32_t widths[] = {1, 2, 3, 8, 17};
    static const size_t   ns[] = {0, 1, 2, 3, 7, 16, 17, 100, 1023, MAX_ITEMS};
    static const size_t   grains[] = {0, 1, 2, 3, 16, 99, 100, 101, MAX_ITEMS, SIZE_MAX};
    fault_alloc           fa;
    tally                 t;
    prng                  r;

    (void)state;
    fault_alloc_init(&fa);
    prng_init(&r, seed);
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        kvi_threads *threads = make_threads(&fa, widths[w], NULL);

        assert_int_equal(kvi_threads_width(threads), widths[w]);
        for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) {
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++)
                run_and_check(threads, &t, ns[i], grains[g]);
        }
        for (int i = 0; i < 200; i++)
            run_and_check(threads, &t, (size_t)prng_below(&r, MAX_ITEMS),
                          (size_t)prng_range(&r, 1, 40));
        kvi_threads_destroy(threads);
    }
    run_and_check(NULL, &t, 100, 3);
    assert_int_equal(kvi_threads_width(NULL), 1);
    kvi_threads_destroy(NULL);
    assert_true(fault_alloc_is_clean(&fa));
}

static void keep_ends(void *arg, size_t begin, size_t end)
{
    size_t *ends = arg;

    ends[0] += 1;
    ends[1] = begin;
    ends[2] = end;
}

static void test_run_copes_with_huge_ranges(void **state)
{
    fault_alloc  fa;
    kvi_threads *threads = NULL;
    size_t       ends[3] = {0};

    (void)state;
    fault_alloc_init(&fa);
    threads = make_threads(&fa, 4, NULL);
    kvi_run(threads, keep_ends, ends, SIZE_MAX, SIZE_MAX); /* n <= grain: one range, the caller's */
    assert_int_equal(ends[0], 1);
    assert_int_equal(ends[1], 0);
    assert_true(ends[2] == SIZE_MAX);
    kvi_threads_destroy(threads);
    threads = make_threads(&fa, 1, NULL);
    kvi_run(threads, keep_ends, ends, SIZE_MAX, SIZE_MAX / 2 + 2);
    assert_int_equal(ends[0], 2);
    assert_true(ends[2] == SIZE_MAX);
    kvi_threads_destroy(threads);
}

typedef struct meeting { /* items that wait for each other: passes only if they run at the same time
                          */
    pthread_barrier_t barrier;
} meeting;

static void meet(void *arg, size_t begin, size_t end)
{
    meeting *m = arg;

    for (size_t i = begin; i < end; i++)
        pthread_barrier_wait(&m->barrier);
}

static void test_run_really_runs_in_parallel(void **state)
{
    fault_alloc  fa;
    kvi_threads *threads = NULL;
    meeting      m;

    (void)state;
    fault_alloc_init(&fa);
    for (uint32_t width = 2; width <= 6; width++) {
        threads = make_threads(&fa, width, NULL);
        pthread_barrier_init(&m.barrier, NULL, width);
        for (int i = 0; i < 50; i++) /* would hang if a worker missed one */
            kvi_run(threads, meet, &m, width, 1);
        pthread_barrier_destroy(&m.barrier);
        kvi_threads_destroy(threads);
    }
    assert_true(fault_alloc_is_clean(&fa));
}

typedef struct nest {
    kvi_threads *threads;
    tally        inner[8];
    atomic_uint  n_elsewhere; /* inner ranges that ran in another thread than their loop's caller */
} nest;
typedef struct nest_inner {
    nest     *nest;
    tally    *tally;
    pthread_t caller;
} nest_inner;

static void run_inner(void *arg, size_t begin, size_t end)
{
    nest_inner *in = arg;

    if (!pthread_equal(in->caller, pthread_self()))
        atomic_fetch_add(&in->nest->n_elsewhere, 1);
    count_range(in->tally, begin, end);
}

static void run_outer(void *arg, size_t begin, size_t end)
{
    nest *n = arg;

    for (size_t i = begin; i < end; i++) {
        nest_inner in = {n, &n->inner[i], pthread_self()};

        kvi_run(n->threads, run_inner, &in, n->inner[i].n, 1);
    }
}

static void test_run_nested_stays_in_its_thread(void **state)
{
    static nest n;
    fault_alloc fa;

    (void)state;
    fault_alloc_init(&fa);
    n.threads = make_threads(&fa, 4, NULL);
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < 8; i++) {
            memset(&n.inner[i], 0, sizeof n.inner[i]);
            n.inner[i].n = 50 + i;
            n.inner[i].grain = 1;
        }
        kvi_run(n.threads, run_outer, &n, 8, 1);
        for (size_t i = 0; i < 8; i++) {
            for (size_t k = 0; k < 50 + i; k++)
                assert_int_equal(atomic_load(&n.inner[i].hits[k]), 1);
            assert_int_equal(atomic_load(&n.inner[i].n_bad), 0);
        }
    }
    assert_int_equal(atomic_load(&n.n_elsewhere), 0);
    kvi_threads_destroy(n.threads);
    assert_true(fault_alloc_is_clean(&fa));
}

typedef struct caller {
    kvi_threads *threads;
    tally        tally;
    uint64_t     seed;
    int          ok;
} caller;

static void *call_often(void *arg)
{
    caller *c = arg;
    prng    r;

    prng_init(&r, c->seed);
    for (int round = 0; round < 1000 && c->ok; round++) {
        size_t n = (size_t)prng_range(&r, 1, 300);

        memset(&c->tally, 0, sizeof c->tally);
        c->tally.n = n;
        c->tally.grain = (size_t)prng_range(&r, 1, 20);
        kvi_run(c->threads, count_range, &c->tally, n, c->tally.grain);
        for (size_t i = 0; i < 300; i++)
            c->ok &= atomic_load(&c->tally.hits[i]) == (i < n);
        c->ok &= atomic_load(&c->tally.n_bad) == 0;
    }
    return NULL;
}

static void test_run_takes_callers_at_the_same_time(void **state)
{
    static caller callers[3];
    pthread_t     ids[3];
    fault_alloc   fa;
    kvi_threads  *threads = NULL;

    (void)state;
    fault_alloc_init(&fa);
    threads = make_threads(&fa, 3, NULL);
    for (size_t i = 0; i < 3; i++) {
        callers[i].threads = threads;
        callers[i].seed = seed + i;
        callers[i].ok = 1;
        assert_int_equal(pthread_create(&ids[i], NULL, call_often, &callers[i]), 0);
    }
    for (size_t i = 0; i < 3; i++) {
        pthread_join(ids[i], NULL);
        assert_true(callers[i].ok);
    }
    kvi_threads_destroy(threads);
    assert_true(fault_alloc_is_clean(&fa));
}

static void sleep_in_first(void *arg, size_t begin, size_t end)
{
    (void)arg;
    (void)end;
    if (begin == 0)
        usleep(200000);
}

static void nothing(void *arg, size_t begin, size_t end)
{
    (void)arg;
    (void)begin;
    (void)end;
}

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Workers without work sleep: between loops, and while others finish one. */
static void test_idle_workers_do_not_spin(void **state)
{
    fault_alloc  fa;
    kvi_threads *threads = NULL;
    double       before = 0;

    (void)state;
    fault_alloc_init(&fa);
    threads = make_threads(&fa, 4, NULL);
    kvi_run(threads, sleep_in_first, NULL, 4, 1);
    before = cpu_seconds();
    kvi_run(threads, sleep_in_first, NULL, 4, 1);
    usleep(200000);
    assert_true(cpu_seconds() - before < 0.1); /* a spinning one would have burnt 0.2 or more */
    kvi_threads_destroy(threads);
}

/* Held, they poll for a moment after each loop and then sleep all the same; at rest they do not poll at all. Many short loops, so
 * that a worker is met polling, about to sleep and asleep; the callers come from several threads. */
static void test_held_workers_poll_and_sleep(void **state)
{
    static caller callers[2];
    pthread_t     ids[2];
    fault_alloc   fa;
    kvi_threads  *threads = NULL;
    double        before = 0;

    (void)state;
    fault_alloc_init(&fa);
    threads = make_threads(&fa, 2, NULL); /* polls where there are two cores */
    kvi_threads_hold(threads);
    kvi_threads_hold(threads);
    kvi_threads_rest(threads);
    for (size_t i = 0; i < 2; i++) {
        callers[i] = (caller){.threads = threads, .seed = seed + 7 + i, .ok = 1};
        assert_int_equal(pthread_create(&ids[i], NULL, call_often, &callers[i]), 0);
    }
    for (size_t i = 0; i < 2; i++) {
        pthread_join(ids[i], NULL);
        assert_true(callers[i].ok);
    }
    for (uint32_t i = 0; i < 20; i++) { /* gaps around the time after which they sleep */
        usleep(10 * i);
        kvi_run(threads, nothing, NULL, 64, 1);
    }
    before = cpu_seconds();
    usleep(200000);
    assert_true(cpu_seconds() - before < 0.1); /* held, but nothing to do for long: asleep */
    kvi_threads_rest(threads);
    kvi_threads_hold(NULL);
    kvi_threads_rest(NULL);
    kvi_threads_destroy(threads);
    assert_true(fault_alloc_is_clean(&fa));
}

/* ------------------------------------------------------------------ the host's executor */

typedef struct host {
    uint32_t n_calls;
    uint32_t last_n;
    uint32_t lazy; /* leave out all tasks but the first: a host that breaks its promise */
} host;

static void host_run(void *user, void (*task)(void *arg, uint32_t i), void *arg, uint32_t n)
{
    host *h = user;

    h->n_calls++;
    h->last_n = n;
    for (uint32_t i = h->lazy ? 1 : n; i-- > 0;) /* any order */
        task(arg, i);
}

typedef struct host_task {
    void (*task)(void *arg, uint32_t i);
    void    *arg;
    uint32_t i;
} host_task;

static void *host_thread(void *arg)
{
    host_task *t = arg;

    t->task(t->arg, t->i);
    return NULL;
}

static void host_run_threads(void *user, void (*task)(void *arg, uint32_t i), void *arg, uint32_t n)
{
    pthread_t ids[16];
    host_task tasks[16];

    ((host *)user)->n_calls++;
    for (uint32_t i = 0; i < n; i++) {
        tasks[i] = (host_task){task, arg, i};
        pthread_create(&ids[i], NULL, host_thread, &tasks[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        pthread_join(ids[i], NULL);
}

static void test_executor_runs_the_loops(void **state)
{
    host           h = {0};
    kvcsa_executor executor = {host_run, &h, 5, 0};
    fault_alloc    fa;
    kvi_threads   *threads = NULL;
    size_t         before = settled_threads();
    tally          t;

    (void)state;
    fault_alloc_init(&fa);
    threads = make_threads(&fa, 7, &executor); /* n_threads is ignored */
    assert_int_equal(kvi_threads_width(threads), 5);
    assert_true(own_threads_become(before));
    run_and_check(threads, &t, 100, 3);
    assert_int_equal(h.n_calls, 1);
    assert_int_equal(h.last_n, 5);
    run_and_check(threads, &t, 6, 3); /* no more tasks than chunks */
    assert_int_equal(h.last_n, 2);
    run_and_check(threads, &t, 3, 3);
    assert_int_equal(h.n_calls, 2);
    h.lazy = 1;
    run_and_check(threads, &t, 1000, 7);
    kvi_threads_destroy(threads);

    executor.run = host_run_threads;
    threads = make_threads(&fa, 0, &executor);
    for (size_t n = 1; n < 200; n += 13)
        run_and_check(threads, &t, n, 2);
    kvi_threads_destroy(threads);
    executor.width = 0; /* = 1 */
    threads = make_threads(&fa, 0, &executor);
    assert_int_equal(kvi_threads_width(threads), 1);
    run_and_check(threads, &t, 100, 1);
    kvi_threads_destroy(threads);
    assert_true(fault_alloc_is_clean(&fa));
}

/* ------------------------------------------------------------------ lifetime */

static void test_create_refuses_wrong_arguments(void **state)
{
    kvcsa_executor executor = {NULL, NULL, 2, 0};
    fault_alloc    fa;
    kvi_threads   *threads = (kvi_threads *)&fa;
    kvcsa_error    err;

    (void)state;
    fault_alloc_init(&fa);
    assert_int_equal(kvi_threads_create(&fa.hook, 2, &executor, &threads, &err), KVCSA_ERR_ARG);
    assert_null(threads);
    executor.run = host_run;
    executor.reserved = 1;
    assert_int_equal(kvi_threads_create(&fa.hook, 2, &executor, &threads, &err), KVCSA_ERR_ARG);
    assert_int_equal(kvi_threads_create(&fa.hook, 1025, NULL, &threads, &err), KVCSA_ERR_ARG);
    assert_string_equal(err.text, "n_threads is 1025, limit 1024");
    assert_int_equal(kvi_threads_create(&fa.hook, UINT32_MAX, NULL, &threads, &err), KVCSA_ERR_ARG);
    assert_null(threads);
    assert_true(fault_alloc_is_clean(&fa));
}

static void test_create_survives_every_failing_allocation(void **state)
{
    fault_alloc  fa;
    kvi_threads *threads = NULL;
    kvcsa_error  err;
    size_t       before = settled_threads();
    uint64_t     n = 1;

    (void)state;
    fault_alloc_init(&fa);
    for (;; n++) {
        kvcsa_status st = KVCSA_OK;

        fault_alloc_fail_at(&fa, n);
        st = kvi_threads_create(&fa.hook, 4, NULL, &threads, &err);
        if (!fault_alloc_hit(&fa)) {
            assert_int_equal(st, KVCSA_OK);
            break;
        }
        assert_int_equal(st, KVCSA_ERR_NOMEM);
        assert_null(threads);
        assert_true(fault_alloc_is_clean(&fa));
    }
    assert_true(n > 1);
    kvi_threads_destroy(threads);
    assert_true(own_threads_become(before));
    assert_true(fault_alloc_is_clean(&fa));
}

static void test_create_and_destroy_leave_nothing(void **state)
{
    fault_alloc fa;
    tally       t;
    size_t      before = settled_threads();

    (void)state;
    fault_alloc_init(&fa);
    for (uint32_t i = 0; i < 200; i++) {
        kvi_threads *threads = make_threads(&fa, 1 + i % 5, NULL);

        assert_true(own_threads_become(before + i % 5));
        if (i % 3) /* or destroyed before a worker has slept */
            run_and_check(threads, &t, 64, 1);
        kvi_threads_destroy(threads);
        assert_true(own_threads_become(before));
        assert_int_equal(fa.n_bytes, 0);
    }
    assert_true(fault_alloc_is_clean(&fa));
}

static void test_width_of_0_is_the_cores_we_may_use(void **state)
{
    fault_alloc  fa;
    kvi_threads *threads = NULL;
    cpu_set_t    old;
    cpu_set_t    one;

    (void)state;
    fault_alloc_init(&fa);
    assert_int_equal(sched_getaffinity(0, sizeof old, &old), 0);
    threads = make_threads(&fa, 0, NULL);
    assert_int_equal(kvi_threads_width(threads), CPU_COUNT(&old));
    kvi_threads_destroy(threads);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &old) && CPU_COUNT(&one) == 0)
            CPU_SET(i, &one);
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    threads = make_threads(&fa, 0, NULL);
    assert_int_equal(sched_setaffinity(0, sizeof old, &old), 0);
    assert_int_equal(kvi_threads_width(threads), 1);
    kvi_threads_destroy(threads);
}

typedef struct masks {
    meeting     meeting;
    pthread_t   caller;
    atomic_uint n_blocked;
    atomic_uint n_workers;
} masks;

static void look_at_mask(void *arg, size_t begin, size_t end)
{
    masks   *m = arg;
    sigset_t set;

    if (!pthread_equal(m->caller, pthread_self())) {
        atomic_fetch_add(&m->n_workers, 1);
        pthread_sigmask(SIG_BLOCK, NULL, &set);
        if (sigismember(&set, SIGINT) == 1 && sigismember(&set, SIGALRM) == 1 &&
            sigismember(&set, SIGTERM) == 1 && sigismember(&set, SIGUSR1) == 1 &&
            sigismember(&set, SIGCHLD) == 1 && sigismember(&set, SIGSEGV) == 0)
            atomic_fetch_add(&m->n_blocked, 1);
    }
    meet(&m->meeting, begin, end);
}

static void test_workers_take_no_signals(void **state)
{
    fault_alloc  fa;
    kvi_threads *threads = NULL;
    masks        m = {0};
    sigset_t     saved;
    sigset_t     before;
    sigset_t     after;

    (void)state;
    fault_alloc_init(&fa);
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &before, &saved);
    threads = make_threads(&fa, 4, NULL);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    for (int s = 1; s < 32; s++) /* the caller's mask is as it was */
        assert_int_equal(sigismember(&before, s), sigismember(&after, s));
    m.caller = pthread_self();
    pthread_barrier_init(&m.meeting.barrier, NULL, 4);
    kvi_run(threads, look_at_mask, &m, 4, 1);
    pthread_barrier_destroy(&m.meeting.barrier);
    assert_int_equal(atomic_load(&m.n_workers), 3);
    assert_int_equal(atomic_load(&m.n_blocked), 3);
    kvi_threads_destroy(threads);
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
}

enum { NO_LIMITS = 77 }; /* an emulator does not keep its guest to them */

/* In a child process with little address space left, 1000 stacks do not fit. */
static int create_without_room(void)
{
    struct rlimit limit = {0};
    fault_alloc   fa;
    kvi_threads  *threads = NULL;
    kvcsa_error   err;
    unsigned long pages = 0;
    FILE         *f = fopen("/proc/self/statm", "r");

    if (!f || fscanf(f, "%lu", &pages) != 1)
        return 2;
    fclose(f);
    fault_alloc_init(&fa);
    limit.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)128 << 20);
    limit.rlim_max = limit.rlim_cur;
    if (setrlimit(RLIMIT_AS, &limit) != 0)
        return 3;
    if (mmap(NULL, (size_t)256 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        return NO_LIMITS;
    if (kvi_threads_create(&fa.hook, 1000, NULL, &threads, &err) != KVCSA_ERR_NOMEM || threads)
        return 4;
    if (err.detail == 0 || !strstr(err.text, "of 1000 cannot be started") ||
        !fault_alloc_is_clean(&fa))
        return 5;
    if (!own_threads_become(1))
        return 6;
    return 0;
}

static void test_create_survives_a_thread_that_cannot_start(void **state)
{
    pid_t pid = 0;
    int   how = 0;

    (void)state;
    if (WITH_SANITIZER)
        skip(); /* it needs the address space for itself */
    pid = fork();
    if (pid == 0)
        _exit(create_without_room());
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == NO_LIMITS)
        skip();
    assert_int_equal(WEXITSTATUS(how), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_covers_every_item_once),
        cmocka_unit_test(test_run_copes_with_huge_ranges),
        cmocka_unit_test(test_run_really_runs_in_parallel),
        cmocka_unit_test(test_run_nested_stays_in_its_thread),
        cmocka_unit_test(test_run_takes_callers_at_the_same_time),
        cmocka_unit_test(test_idle_workers_do_not_spin),
        cmocka_unit_test(test_held_workers_poll_and_sleep),
        cmocka_unit_test(test_executor_runs_the_loops),
        cmocka_unit_test(test_create_refuses_wrong_arguments),
        cmocka_unit_test(test_create_survives_every_failing_allocation),
        cmocka_unit_test(test_create_and_destroy_leave_nothing),
        cmocka_unit_test(test_width_of_0_is_the_cores_we_may_use),
        cmocka_unit_test(test_workers_take_no_signals),
        cmocka_unit_test(test_create_survives_a_thread_that_cannot_start),
    };

    seed = prng_seed(argc, argv, 20250811);
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
