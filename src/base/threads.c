/* Worker threads that sleep between loops.
 *
 * The loop lives on the stack of the thread that called kvi_run; `busy` says that there is one.
 * Workers join and leave it under `lock`, and it is taken away before its caller waits for those
 * inside: a worker that wakes up late finds nothing and costs nobody any time.
 *
 * (W1) loop != NULL only while its caller is inside kvi_run, between publish and retire.
 * (W2) n_inside counts the workers that hold a pointer to the loop; retire returns when it is 0.
 * (W3) A chunk of a loop is run by whoever took its number from `next`, and by nobody else.
 * (W4) `ticket` and `n_inside` change under `lock` only; they are read without it to poll, and what
 *      was seen is looked at again under `lock`.
 * (W5) `owner` is the process that the workers are in: a child of fork has none, and must not wait
 *      for them at the end. Its own loops need no care: nobody but their caller takes their chunks.
 */
#include "base/threads.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/fpenv.h"
#include "base/status.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 1024u

typedef struct loop {
    kvi_range_fn  fn;
    void         *arg;
    size_t        n;
    size_t        grain;
    size_t        n_chunks;
    atomic_size_t next; /* number of the first chunk that nobody has taken */
} loop;

struct kvi_threads {
    kvcsa_allocator allocator;
    kvcsa_executor  executor; /* run NULL = workers of our own */
    uint32_t        width;
    uint32_t        n_workers; /* started */
    uint32_t        n_room;    /* length of workers */
    pid_t           owner;
    pthread_t      *workers;
    atomic_flag     busy;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t  wake;
    pthread_cond_t  left; /* n_inside has become 0 */
    loop           *loop;
    _Atomic uint64_t ticket; /* number of the loop */
    atomic_uint     n_inside;
    uint32_t        n_asleep; /* workers in `wake` */
    uint32_t        quit;
    uint32_t        may_poll; /* a core for every thread */
    atomic_uint     n_holds;
};

/* Run chunks until none is left. */
static void run_chunks(loop *l)
{
    for (;;) {
        size_t chunk = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed);
        size_t begin = 0;

        if (chunk >= l->n_chunks)
            return;
        begin = chunk * l->grain;
        l->fn(l->arg, begin, begin + kvi_min_size(l->n - begin, l->grain));
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* longer than yield, which does nothing on most cores */
#endif
}

static int is_held(const kvi_threads *t)
{
    return t->may_poll && atomic_load_explicit(&t->n_holds, memory_order_relaxed) > 0;
}

/* A short look-out for another loop than `seen`, without the lock. */
static void poll_ticket(kvi_threads *t, uint64_t seen)
{
    const uint64_t until = now_ns() + KVI_POLL_NS;

    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&t->ticket, memory_order_relaxed) != seen)
                return;
            relax();
        }
    } while (is_held(t) && now_ns() < until);
}

/* Likewise for the last worker to leave. */
static void poll_inside(kvi_threads *t)
{
    const uint64_t until = now_ns() + KVI_POLL_NS;

    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&t->n_inside, memory_order_relaxed) == 0)
                return;
            relax();
        }
    } while (now_ns() < until);
}

static uint64_t ticket_of(const kvi_threads *t)
{
    return atomic_load_explicit(&t->ticket, memory_order_relaxed);
}

static void *work(void *arg)
{
    kvi_threads *t = arg;
    uint64_t     seen = 0;

    (void)kvi_fp_enter(); /* not the mode of the thread that made this one */
    pthread_mutex_lock(&t->lock);
    for (;;) {
        loop *l = NULL;

        while (!t->quit && (!t->loop || ticket_of(t) == seen)) {
            t->n_asleep++;
            pthread_cond_wait(&t->wake, &t->lock);
            t->n_asleep--;
        }
        if (t->quit)
            break;
        l = t->loop;
        seen = ticket_of(t); /* its chunks are gone when we come back: do not join twice */
        atomic_fetch_add_explicit(&t->n_inside, 1, memory_order_relaxed);
        pthread_mutex_unlock(&t->lock);
        run_chunks(l);
        pthread_mutex_lock(&t->lock);
        if (atomic_fetch_sub_explicit(&t->n_inside, 1, memory_order_relaxed) == 1)
            pthread_cond_signal(&t->left);
        if (is_held(t) && !t->quit && ticket_of(t) == seen) {
            pthread_mutex_unlock(&t->lock);
            poll_ticket(t, seen);
            pthread_mutex_lock(&t->lock);
        }
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* Signals are the host's: a worker takes none. Those that a thread causes itself stay, so that a
 * crash handler of the host sees a fault in a worker as well (a blocked one would end the process
 * without a word). */
#ifdef _WIN32 /* has none that a thread could take */
typedef int signals;

static void block_signals(signals *old)
{
    *old = 0;
}

static void restore_signals(const signals *old)
{
    (void)old;
}
#else
typedef sigset_t signals;

static void block_signals(signals *old)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t         set;

    sigfillset(&set);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&set, own[i]);
    pthread_sigmask(SIG_BLOCK, &set, old);
}

static void restore_signals(const signals *old)
{
    pthread_sigmask(SIG_SETMASK, old, NULL);
}
#endif

static kvcsa_status start_workers(kvi_threads *t, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    signals      old;

    block_signals(&old); /* inherited by the new threads */
    while (t->n_workers < t->n_room) {
        int code = pthread_create(&t->workers[t->n_workers], NULL, work, t);

        if (code != 0) {
            st = kvi_fail_code(err, KVCSA_ERR_NOMEM, code, "thread %u of %u cannot be started",
                               t->n_workers + 2, t->n_room + 1);
            break;
        }
        t->n_workers++;
    }
    restore_signals(&old);
    return st;
}

/* Cores that this process may use. */
static uint32_t count_cores(void)
{
    long n = 0;
#ifdef _WIN32
    n = kvi_win_count_cores();
#else
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
    else /* more cores than the set has room for */
        n = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    if (n < 1)
        return 1;
    return n > (long)MAX_THREADS ? MAX_THREADS : (uint32_t)n;
}

static kvcsa_status check_executor(const kvcsa_executor *executor, kvcsa_error *err)
{
    if (!executor->run)
        return kvi_fail(err, KVCSA_ERR_ARG, "executor.run is NULL");
    if (executor->reserved != 0)
        return kvi_fail(err, KVCSA_ERR_ARG, "executor.reserved is %u, must be 0",
                        executor->reserved);
    return KVCSA_OK;
}

kvcsa_status kvi_threads_create(const kvcsa_allocator *a, uint32_t n_threads,
                                const kvcsa_executor *executor, kvi_threads **out, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    kvi_threads *t = NULL;

    *out = NULL;
    if (executor && (st = check_executor(executor, err)) != KVCSA_OK)
        return st;
    if (!executor && n_threads > MAX_THREADS)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_threads is %u, limit %u", n_threads, MAX_THREADS);
    t = kvi_zalloc(a, sizeof *t);
    if (!t)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "threads of %zu bytes", sizeof *t);
    t->allocator = *a;
    t->owner = getpid();
    atomic_flag_clear(&t->busy);
    pthread_mutex_init(&t->lock, NULL); /* these three cannot fail with default attributes */
    pthread_cond_init(&t->wake, NULL);
    pthread_cond_init(&t->left, NULL);
    if (executor) {
        t->executor = *executor;
        t->width = executor->width ? executor->width : 1;
    } else {
        t->width = n_threads ? n_threads : count_cores();
        t->may_poll = t->width <= count_cores();
        t->n_room = t->width - 1;
        t->workers = kvi_alloc(a, t->n_room * sizeof *t->workers);
        st = t->workers ? start_workers(t, err)
                        : kvi_fail(err, KVCSA_ERR_NOMEM, "table of %u threads", t->n_room);
        if (st != KVCSA_OK)
            goto fail;
    }
    *out = t;
    return KVCSA_OK;
fail:
    kvi_threads_destroy(t);
    return st;
}

static void end_workers(kvi_threads *t)
{
    KVI_ASSERT(!t->loop);
    pthread_mutex_lock(&t->lock);
    t->quit = 1;
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < t->n_workers; i++)
        pthread_join(t->workers[i], NULL);
    pthread_cond_destroy(&t->left);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
}

void kvi_threads_destroy(kvi_threads *t)
{
    kvcsa_allocator a;

    if (!t)
        return;
    a = t->allocator;
    if (t->owner == getpid())
        end_workers(t);
    kvi_free(&a, t->workers, t->n_room * sizeof *t->workers);
    kvi_free(&a, t, sizeof *t);
}

uint32_t kvi_threads_width(const kvi_threads *t)
{
    return t ? t->width : 1;
}

static void run_task(void *arg, uint32_t i)
{
    const uint64_t mode = kvi_fp_enter();

    (void)i; /* tasks are alike: each takes chunks until there are no more */
    run_chunks(arg);
    kvi_fp_leave(mode);
}

static void run_on_workers(kvi_threads *t, loop *l)
{
    size_t n_wake = kvi_min_size(l->n_chunks - 1, t->n_workers);
    int    alone = 0;

    pthread_mutex_lock(&t->lock);
    t->loop = l; /* publish */
    atomic_fetch_add_explicit(&t->ticket, 1, memory_order_relaxed);
    /* Those who poll come by themselves; sleepers make up for the rest. */
    n_wake -= kvi_min_size(n_wake, t->n_workers - t->n_asleep);
    if (n_wake == t->n_workers)
        pthread_cond_broadcast(&t->wake);
    else
        for (size_t i = 0; i < n_wake; i++)
            pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);

    run_chunks(l);

    pthread_mutex_lock(&t->lock);
    t->loop = NULL; /* retire: nobody joins any more */
    alone = atomic_load_explicit(&t->n_inside, memory_order_relaxed) == 0;
    if (!alone && is_held(t)) {
        pthread_mutex_unlock(&t->lock);
        poll_inside(t);
        pthread_mutex_lock(&t->lock);
    }
    while (atomic_load_explicit(&t->n_inside, memory_order_relaxed) > 0)
        pthread_cond_wait(&t->left, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void kvi_threads_hold(kvi_threads *t)
{
    if (t)
        atomic_fetch_add_explicit(&t->n_holds, 1, memory_order_relaxed);
}

void kvi_threads_rest(kvi_threads *t)
{
    if (t)
        atomic_fetch_sub_explicit(&t->n_holds, 1, memory_order_relaxed);
}

void kvi_run(kvi_threads *t, kvi_range_fn fn, void *arg, size_t n, size_t grain)
{
    loop l = {.fn = fn, .arg = arg, .n = n, .grain = grain ? grain : 1};

    if (n == 0)
        return;
    /* (T2) a loop that finds another running must not wait for it, for it may be inside that one */
    if (!t || t->width <= 1 || n <= l.grain ||
        atomic_flag_test_and_set_explicit(&t->busy, memory_order_acquire)) {
        fn(arg, 0, n);
        return;
    }
    l.n_chunks = kvi_div_up(n, l.grain);
    atomic_init(&l.next, 0);
    if (t->executor.run) {
        t->executor.run(t->executor.user, run_task, &l,
                        (uint32_t)kvi_min_size(t->width, l.n_chunks));
        run_chunks(&l); /* (T1) holds even if the host did not run all its tasks */
    } else {
        run_on_workers(t, &l);
    }
    atomic_flag_clear_explicit(&t->busy, memory_order_release);
}
