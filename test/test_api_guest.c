/* A guest in somebody else's process: what it must leave alone, how little stack it needs, what happens at fork and at exit, and
 * slices of time. Threads of the host, its allocator and its executor: test_api_threads*, test_api_session, test_api_fault. */
#include "support/guest_tour.h"
#include "support/host.h"
#include "support/process.h"

#include <errno.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static tour make_tour(uint32_t n_threads)
{
    return (tour){.k = kvcsa_get_api(KVCSA_VERSION_NUMBER), .model_dir = TINY_DIR, .n_threads = n_threads};
}

/* ------------------------------------------------------------------ state of the process */

enum { N_SIGNALS = 64, N_LIMITS = 16 };

typedef struct process_state {
    void         *handlers[N_SIGNALS + 1];
    int           flags[N_SIGNALS + 1];
    sigset_t      blocked, pending;
    stack_t       signal_stack;
    fenv_t        fp;
    char          locale[512], cwd[1024], name[32];
    locale_t      thread_locale;
    mode_t        umask;
    struct rlimit limits[N_LIMITS];
    cpu_set_t     cores;
    int           nice, dumpable;
    char        **environ_at;
    uint64_t      environ_sum;
    size_t        n_files, n_threads;
} process_state;

static void process_look(process_state *p)
{
    memset(p, 0, sizeof *p);
    fegetenv(&p->fp);
    for (int i = 1; i <= N_SIGNALS; i++) {
        struct sigaction a = {0};

        if (sigaction(i, NULL, &a) == 0) {
            p->handlers[i] = a.sa_flags & SA_SIGINFO ? *(void **)&a.sa_sigaction : *(void **)&a.sa_handler;
            p->flags[i] = a.sa_flags;
        }
    }
    pthread_sigmask(SIG_BLOCK, NULL, &p->blocked);
    sigpending(&p->pending);
    sigaltstack(NULL, &p->signal_stack);
    snprintf(p->locale, sizeof p->locale, "%s", setlocale(LC_ALL, NULL));
    assert_non_null(getcwd(p->cwd, sizeof p->cwd));
    prctl(PR_GET_NAME, p->name);
    p->thread_locale = uselocale((locale_t)0);
    p->umask = umask(0);
    umask(p->umask);
    for (int i = 0; i < N_LIMITS; i++)
        (void)getrlimit((__rlimit_resource_t)i, &p->limits[i]);
    sched_getaffinity(0, sizeof p->cores, &p->cores);
    errno = 0;
    p->nice = getpriority(PRIO_PROCESS, 0);
    p->dumpable = prctl(PR_GET_DUMPABLE);
    p->environ_at = environ;
    for (char **e = environ; *e; e++)
        for (const char *c = *e; *c; c++)
            p->environ_sum = p->environ_sum * 31 + (unsigned char)*c;
    p->n_files = process_files();
    p->n_threads = process_threads(1);
}

static void on_signal(int number)
{
    (void)number;
}

/* Everything that a host may have set is set to what nobody expects, and is so afterwards. */
static void test_behaviour_50_process_state(void **state)
{
    static process_state before, after;
    struct sigaction     mine = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigset_t             blocked;
    tour                 t = make_tour(3);
    char                 file[] = "/tmp/kvcsa-guest-XXXXXX";
    const int            fd = mkstemp(file);
    const mode_t         mask = umask(0137);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    t.file = file;
    assert_non_null(setlocale(LC_ALL, "C.UTF-8"));
    sigaction(SIGUSR1, &mine, NULL);
    sigaction(SIGPIPE, &mine, NULL);
    sigaction(SIGFPE, &mine, NULL);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    fesetround(FE_TOWARDZERO);
    process_look(&before);
    const int rc = tour_run(&t);
    process_look(&after);
    fesetround(FE_TONEAREST);
    umask(mask);
    (void)unlink(file);
    if (rc)
        fail_msg("%s", t.why);
    /* exception flags are not state that anybody keeps; control words are */
    fesetenv(&before.fp), feclearexcept(FE_ALL_EXCEPT), fegetenv(&before.fp);
    fesetenv(&after.fp), feclearexcept(FE_ALL_EXCEPT), fegetenv(&after.fp);
    fesetenv(FE_DFL_ENV);
    assert_memory_equal(&before, &after, sizeof before);
}

/* ------------------------------------------------------------------ stack */

enum { STACK_BYTES = 256 << 10, PAINT = 0xA5 };

typedef struct painted {
    tour           t;
    int            rc;
    unsigned char *stack;
} painted;

static void *run_painted(void *arg)
{
    painted *p = arg;

    p->rc = tour_run(&p->t);
    return NULL;
}

static size_t stack_used(const painted *p)
{
    size_t untouched = 0;

    while (untouched < STACK_BYTES && p->stack[untouched] == PAINT)
        untouched++;
    return STACK_BYTES - untouched;
}

static void *open_nested(void *arg)
{
    painted     *p = arg;
    kvcsa_model *m = NULL;
    kvcsa_error  err;

    p->rc = kvcsa_model_open(p->t.model_dir, NULL, &m, &err) == KVCSA_ERR_FORMAT && !m;
    return NULL;
}

/* Runs f in a thread whose stack has STACK_BYTES and an unreadable page below; the bytes that were used. */
static size_t in_small_stack(painted *p, void *(*f)(void *))
{
    const size_t   page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *base = mmap(NULL, page + STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attr;
    pthread_t      thread;
    size_t         used;

    assert_true(base != MAP_FAILED);
    assert_int_equal(mprotect(base, page, PROT_NONE), 0);
    p->stack = base + page;
    memset(p->stack, PAINT, STACK_BYTES);
    pthread_attr_init(&attr);
    assert_int_equal(pthread_attr_setstack(&attr, p->stack, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attr, f, p), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    used = stack_used(p);
    munmap(base, page + STACK_BYTES);
    return used;
}

/* docs/threading.md promises that 128 KiB are enough, C library and thread included: with the kernels of this machine, and
 * with the portable ones. */
static void test_small_stack(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        char      file[] = "/tmp/kvcsa-guest-XXXXXX";
        const int fd = mkstemp(file);
        painted   p = {.t = make_tour(1)};
        size_t    used;

        assert_true(fd >= 0);
        close(fd);
        p.t.file = file;
        p.t.model_dir = i % 2 ? T1_DIR : TINY_DIR;
        p.t.cpu_avoid = i / 2 ? UINT32_MAX >> 28 : 0;
        used = in_small_stack(&p, run_painted);
        (void)unlink(file);
        if (p.rc)
            fail_msg("%s", p.t.why);
        print_message("stack: %zu bytes used of %d\n", used, STACK_BYTES);
#ifndef TEST_SANITIZED
        assert_true(used <= 128 << 10);
#endif
    }
}

/* Files that try: a configuration that is nested as deep as it likes. 256 KiB have to do. */
static void test_small_stack_of_a_hostile_file(void **state)
{
    enum { DEPTH = 1 << 20 };
    char      *text = malloc(2 * DEPTH);
    painted    p = {.t = make_tour(1)};
    checkpoint c;
    size_t     used;

    (void)state;
    assert_non_null(text);
    checkpoint_copy(&c, TINY_DIR);
    for (int kind = 0; kind < 2; kind++) {
        for (size_t i = 0; i < DEPTH; i++)
            memcpy(text + 2 * i, kind ? "[ " : "{\"", 2);
        checkpoint_write(&c, "config.json", text, kind ? 2 * DEPTH : 2000);
        p.t.model_dir = c.dir;
        used = in_small_stack(&p, open_nested);
        assert_int_equal(p.rc, 1);
        print_message("stack: %zu bytes used of %d\n", used, STACK_BYTES);
    }
    checkpoint_remove(&c);
    free(text);
}

/* ------------------------------------------------------------------ fork and exit */

/* How a child ends: its exit status, or a signal as 1000 + n, or 2000 for one that hangs. */
static int end_of(pid_t pid)
{
    int status = 0;

    assert_true(pid > 0);
    for (int ms = 0; ms < 60000; ms++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        usleep(1000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return 2000;
}

typedef struct busy { /* a step that goes on until it is told to stop */
    tour          t;
    volatile int  running, stop;
    pthread_t     thread;
} busy;

static int32_t keep_going(void *user, kvcsa_session *s, uint64_t n_done, uint64_t n_queued)
{
    busy *b = user;

    (void)s, (void)n_done, (void)n_queued;
    b->running = 1;
    return b->stop;
}

static void *step_on(void *arg)
{
    busy             *b = arg;
    kvcsa_step_params sp;
    int32_t           ids[512];
    kvcsa_error       err;

    for (int i = 0; i < 512; i++)
        ids[i] = 260 + i * 13 % 500;
    kvcsa_step_params_default(&sp, sizeof sp);
    sp.progress = keep_going;
    sp.user = b;
    while (!b->stop) {
        (void)kvcsa_session_erase(b->t.s, 0, &err);
        (void)kvcsa_session_append(b->t.s, ids, 512, NULL, NULL, &err);
        (void)kvcsa_pool_step(b->t.pool, &b->t.s, 1, &sp, NULL, &err);
    }
    return NULL;
}

/* A handle of everything, and a thread inside a step. */
static void busy_start(busy *b)
{
    memset(b, 0, sizeof *b);
    b->t = make_tour(2);
    if (tour_begin(&b->t))
        fail_msg("%s", b->t.why);
    assert_int_equal(pthread_create(&b->thread, NULL, step_on, b), 0);
    while (!b->running)
        usleep(100);
}

static void busy_stop(busy *b)
{
    b->stop = 1;
    pthread_join(b->thread, NULL);
    tour_release(&b->t);
}

/* A child makes handles of its own while another thread of the parent is inside a step; the parent does not notice. */
static void test_fork_child_makes_its_own(void **state)
{
    busy b;
    tour t = make_tour(2);

    (void)state;
    busy_start(&b);
#ifdef TEST_SANITIZED /* whose allocator does not look after its locks at fork */
    b.stop = 1;
    pthread_join(b.thread, NULL);
    assert_int_equal(pthread_create(&b.thread, NULL, step_on, &b), 0); /* ends at once */
    usleep(100000);
#endif
    for (int i = 0; i < 5; i++) {
        const pid_t pid = fork();

        if (pid == 0) {
            tour child = make_tour(2);

            if (tour_run(&child))
                _exit(1);
            _exit(memcmp(child.tokens, b.t.tokens, sizeof child.tokens) ? 2 : 0);
        }
        assert_int_equal(end_of(pid), 0);
    }
    busy_stop(&b);
    assert_int_equal(tour_run(&t), 0);
    assert_memory_equal(t.tokens, b.t.tokens, sizeof t.tokens);
}

/* Finalisers of a host may run in the child: releasing what it inherited ends there and takes nothing from the parent. */
static void test_fork_child_releases(void **state)
{
    tour  t = make_tour(3);
    pid_t pid;

    (void)state;
    if (tour_begin(&t))
        fail_msg("%s", t.why);
    pid = fork();
    if (pid == 0) {
        tour_release(&t);
        _exit(t.pool || t.s ? 1 : 0);
    }
    assert_int_equal(end_of(pid), 0);
    int32_t token;
    assert_int_equal(tour_generate(&t, t.s, &token, 1), 0);
    tour_release(&t);
}

/* exit() of a process that released nothing: its own status, no crash, no hang. */
static void exit_while(void *(*what)(void))
{
    const pid_t pid = fork();

    if (pid == 0) {
        if (what)
            (void)what();
        exit(7);
    }
    assert_int_equal(end_of(pid), 7);
}

static void *is_idle(void)
{
    static tour t;

    t = make_tour(3);
    return tour_begin(&t) ? (_exit(1), NULL) : &t;
}

static void *is_stepping(void)
{
    static busy b;

    busy_start(&b);
    return &b;
}

static int32_t leave(void *user, kvcsa_session *s, uint64_t n_done, uint64_t n_queued)
{
    (void)user, (void)s, (void)n_done, (void)n_queued;
    exit(7);
}

static void *is_in_a_callback(void)
{
    static tour       t;
    kvcsa_step_params sp;
    const int32_t     id = 300;
    kvcsa_error       err;

    t = make_tour(3);
    if (tour_begin(&t))
        _exit(1);
    kvcsa_step_params_default(&sp, sizeof sp);
    sp.progress = leave;
    (void)kvcsa_session_append(t.s, &id, 1, NULL, NULL, &err);
    (void)kvcsa_pool_step(t.pool, &t.s, 1, &sp, NULL, &err);
    _exit(2);
}

static void test_behaviour_47_exit_without_release(void **state)
{
    (void)state;
    exit_while(is_idle);
    exit_while(is_stepping);
    exit_while(is_in_a_callback);
}

/* ------------------------------------------------------------------ slices of time */

enum { N_SLICED = 6, SLICE_TOKENS = 160, SLICE_NS = 1000000 };

static void fill_ids(int32_t *ids, int session)
{
    for (int i = 0; i < SLICE_TOKENS; i++)
        ids[i] = 260 + (i * 31 + session * 7) % 700;
}

/* Six sessions, stepped together in slices: of a millisecond, of a few rows, and cancelled anywhere in between. Each ends
 * with the logits of a run that nobody disturbed. */
static void test_behaviour_49_slices(void **state)
{
    static float         want[N_SLICED][2048], got[2048];
    kvcsa_model         *model = host_model(TINY_DIR);
    kvcsa_model_info     info = {.struct_size = sizeof info};
    kvcsa_pool          *pool = host_pool(2, 0);
    kvcsa_session       *s[N_SLICED];
    kvcsa_session_params p;
    kvcsa_step_params    sp;
    kvcsa_step_result    r[N_SLICED];
    kvcsa_error          err;
    int32_t              ids[SLICE_TOKENS];
    uint64_t             n_left, n_slices = 0, n_cancelled = 0, queued[N_SLICED];

    (void)state;
    assert_ok(kvcsa_model_get_info(model, &info, &err));
    assert_true(info.vocab_tokens <= 2048);
    kvcsa_session_params_default(&p, sizeof p);
    p.chunk_tokens = 8;
    p.flags = KVCSA_SESSION_PRIVATE;
    p.reuse = KVCSA_REUSE_NONE;
    for (int i = 0; i < N_SLICED; i++) {
        fill_ids(ids, i);
        s[i] = NULL;
        assert_ok(kvcsa_session_create(pool, model, &p, &s[i], &err));
        host_run(pool, s[i], ids, SLICE_TOKENS, NULL);
        host_logits(s[i], want[i], info.vocab_tokens);
        assert_ok(kvcsa_session_erase(s[i], 0, &err));
        assert_ok(kvcsa_session_append(s[i], ids, SLICE_TOKENS, NULL, NULL, &err));
        queued[i] = SLICE_TOKENS;
    }
    do {
        kvcsa_step_params_default(&sp, sizeof sp);
        sp.deadline_ns = n_slices % 3 == 0 ? n_slices % 2 ? 1 : SLICE_NS : 0; /* 1: over before it began */
        sp.max_rows = n_slices % 3 == 0 ? 0 : 1 + n_slices % 17;
        const int victim = n_slices % 8 == 5 ? (int)(n_slices % N_SLICED) : -1;
        if (victim >= 0 && queued[victim] > 0 && n_cancelled < 8) {
            kvcsa_session_cancel(s[victim]);
            assert_int_equal(kvcsa_pool_step(pool, s, N_SLICED, &sp, r, &err), KVCSA_ERR_CANCELLED);
            assert_int_equal(kvcsa_session_length(s[victim]), 0);
            fill_ids(ids, victim);
            assert_ok(kvcsa_session_append(s[victim], ids, SLICE_TOKENS, NULL, NULL, &err));
            n_cancelled++;
            queued[victim] = SLICE_TOKENS;
            n_left = 1;
        } else {
            assert_ok(kvcsa_pool_step(pool, s, N_SLICED, &sp, r, &err));
            n_left = 0;
            for (int i = 0; i < N_SLICED; i++) {
                assert_int_equal(kvcsa_session_length(s[i]) + r[i].n_queued, SLICE_TOKENS);
                queued[i] = r[i].n_queued;
                n_left += queued[i];
            }
        }
        assert_true(++n_slices < 100000);
    } while (n_left > 0);
    assert_true(n_slices > 9 && n_cancelled > 0);
    for (int i = 0; i < N_SLICED; i++) {
        host_logits(s[i], got, info.vocab_tokens);
        assert_memory_equal(got, want[i], info.vocab_tokens * sizeof(float));
        kvcsa_session_release(&s[i]);
    }
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&model);
}

/* ------------------------------------------------------------------ all of it */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_behaviour_50_process_state),
        cmocka_unit_test(test_small_stack),
        cmocka_unit_test(test_small_stack_of_a_hostile_file),
        cmocka_unit_test(test_fork_child_makes_its_own),
        cmocka_unit_test(test_fork_child_releases),
        cmocka_unit_test(test_behaviour_47_exit_without_release),
        cmocka_unit_test(test_behaviour_49_slices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
