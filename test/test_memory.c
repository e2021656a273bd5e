/* kvi_memory and kvi_copies on the host's memory and on that of the test device "apart" (test/apart), what this device is there to
 * find, and the operators and forms of operators that came with devices: copy, tally, pairs with a head, selection without scores,
 * scores counted in blocks, weights of index heads. Most tests run in both worlds. */
#include "backend/backend_load.h"
#include "backend/memory.h"
#include "format/dtype.h"
#include "support/fault_alloc.h"
#include "support/prng.h"

#include <libgen.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define JUNK 0xee

static fault_alloc            host;
static const kvi_backend_ops *apart;
static uint64_t               seed;

/* ------------------------------------------------------------------ worlds */

enum { ON_HOST, ON_DEVICE, N_WORLDS };

typedef struct world {
    kvi_memory  m;
    kvcsa_error err;
    void       *held[32]; /* what close_world frees */
    size_t      sizes[32];
    size_t      n_held;
} world;

static void must_(world *w, kvcsa_status st, int line)
{
    if (st != KVCSA_OK)
        fail_msg("line %d: status %d: %s", line, (int)st, w->err.text);
}
#define must(w, call) must_(w, call, __LINE__)

/* The variables of the test device, NULL = not set. */
static world open_world(int which, const char *bytes, const char *fail_after, const char *fail_late)
{
    const char *const       names[3] = {"APART_BYTES", "APART_FAIL_AFTER", "APART_FAIL_LATE"};
    const char *const       values[3] = {bytes, fail_after, fail_late};
    const kvi_device_params p = {.allocator = &host.hook, .cpu_flags = kvi_cpu_flags(0)};
    world                   w = {.m = {.allocator = &host.hook}};

    fault_alloc_init(&host); /* also if a test has failed */
    for (int i = 0; i < 3; i++)
        assert_int_equal(values[i] ? setenv(names[i], values[i], 1) : unsetenv(names[i]), 0);
    w.m.ops = which == ON_DEVICE ? apart : kvi_cpu_backend(p.cpu_flags);
    must(&w, w.m.ops->device_open(&p, &w.m.dev, &w.err));
    assert_int_equal(kvi_memory_is_apart(&w.m), which == ON_DEVICE);
    return w;
}

static void close_world(world *w)
{
    while (w->n_held) {
        w->n_held--;
        kvi_memory_free(&w->m, w->held[w->n_held], w->sizes[w->n_held]);
    }
    w->m.ops->device_close(w->m.dev);
    assert_true(fault_alloc_is_clean(&host));
}

/* A place for size bytes; freed at the end. */
static void *room(world *w, size_t size)
{
    void *p = NULL;

    assert_true(w->n_held < 32);
    must(w, kvi_memory_alloc(&w->m, size, &p, &w->err));
    assert_int_equal((uintptr_t)p % 64, 0);
    w->held[w->n_held] = p;
    w->sizes[w->n_held++] = size;
    return p;
}

static void *put(world *w, const void *from, size_t size)
{
    void *p = room(w, size);

    must(w, kvi_memory_put(&w->m, p, from, size, &w->err));
    return p;
}

static void get(world *w, void *to, const void *from, size_t size)
{
    memset(to, 0x11, size);
    must(w, kvi_memory_get(&w->m, to, from, size, &w->err));
}

/* What the function does ends its process by this signal. */
static void assert_dies(void (*function)(void *arg), void *arg, int signal_number)
{
    int         status = 0;
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* sanitizers and CMocka catch them */
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr))
            _exit(3);
        function(arg);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != signal_number)
        fail_msg("wait status %#x where signal %d was expected", (unsigned)status, signal_number);
}

/* ------------------------------------------------------------------ memory */

static void test_bytes_go_round(void **state)
{
    enum { MOST = 70000 };
    static uint8_t source[MOST], back[MOST];

    (void)state;
    for (int which = 0; which < N_WORLDS; which++) {
        world       w = open_world(which, NULL, NULL, NULL);
        prng        r;
        const void *seen = NULL;

        prng_init(&r, seed);
        for (int i = 0; i < 10; i++) {
            const size_t size = i == 0 ? 0 : i == 1 ? 4096 : 1 + prng_below(&r, MOST);
            uint8_t     *a = room(&w, size);
            uint8_t     *b = room(&w, size);
            const size_t at = prng_below(&r, size + 1);

            prng_fill(&r, source, size);
            must(&w, kvi_memory_fill(&w.m, b, 0x3c, size, &w.err));
            must(&w, kvi_memory_put(&w.m, a, source, size, &w.err));
            must(&w, kvi_memory_move(&w.m, b + at, a + at, size - at, &w.err));
            memcpy(back, source, size);
            memset(source, 0, size); /* put has taken its bytes */
            memset(back, 0x3c, at);
            must(&w, kvi_memory_see(&w.m, b, size, source, &seen, &w.err));
            assert_ptr_equal(seen, which == ON_HOST ? (const void *)b : source);
            assert_memory_equal(seen, back, size);
            must(&w, kvi_memory_sync(&w.m, &w.err));
            while (w.n_held) {
                w.n_held--;
                kvi_memory_free(&w.m, w.held[w.n_held], w.sizes[w.n_held]);
            }
        }
        kvi_memory_free(&w.m, NULL, 5);
        close_world(&w);
    }
}

static void test_no_room(void **state)
{
    world           w = open_world(ON_DEVICE, "10000", NULL, NULL);
    void           *p = &w;
    kvi_device_info info;

    (void)state;
    room(&w, 6000);
    assert_int_equal(kvi_memory_alloc(&w.m, 4001, &p, &w.err), KVCSA_ERR_NOMEM);
    assert_null(p);
    room(&w, 4000);
    w.m.ops->describe(w.m.dev, &info);
    assert_int_equal(info.memory, 10000);
    assert_int_equal(info.memory_free, 0);
    assert_int_equal(info.numerics, w.m.ops->numerics);
    close_world(&w);

    w = open_world(ON_HOST, NULL, NULL, NULL);
    fault_alloc_fail_at(&host, 1);
    assert_int_equal(kvi_memory_alloc(&w.m, 4001, &p, &w.err), KVCSA_ERR_NOMEM);
    fault_alloc_fail_at(&host, 0);
    close_world(&w);
}

static void test_pinned_bytes_go_round(void **state)
{
    (void)state;
    for (int which = 0; which < N_WORLDS; which++) {
        world    w = open_world(which, NULL, NULL, NULL);
        uint8_t *p = room(&w, 500);
        void    *pinned = NULL;

        must(&w, kvi_memory_alloc_pinned(&w.m, 1000, &pinned, &w.err));
        uint8_t *const from = pinned, *const back = from + 500;

        memset(from, 5, 500);
        must(&w, kvi_memory_put_pinned(&w.m, p, from, 500, &w.err));
        must(&w, kvi_memory_put_pinned(&w.m, p, from, 0, &w.err));
        must(&w, kvi_memory_get_later(&w.m, back, p, 500, &w.err));
        must(&w, kvi_memory_get_later(&w.m, back, p, 0, &w.err));
        if (which == ON_DEVICE)
            assert_int_equal(back[0], JUNK); /* it did not wait */
        must(&w, kvi_memory_sync(&w.m, &w.err));
        assert_memory_equal(back, from, 500);
        kvi_memory_free_pinned(&w.m, pinned, 1000);
        kvi_memory_free_pinned(&w.m, NULL, 0);
        close_world(&w);
    }
}

/* Posts one piece, and spoils it at once. Returns 1 if that waited. */
static int post_waits(world *w, kvi_post *post, uint8_t *to, uint8_t *from, size_t size)
{
    uint8_t seen = 0;

    must(w, kvi_memory_get_later(&w->m, &seen, to, 1, &w->err));
    seen = JUNK;
    must(w, kvi_post_put(post, &w->m, to, from, size, &w->err));
    memset(from, 0x55, size);
    const int waited = seen != JUNK;

    must(w, kvi_memory_sync(&w->m, &w->err)); /* `seen` is not written any more */
    return waited;
}

static void test_posted_bytes_may_change(void **state)
{
    enum { SIZE = 100, RING = 5 * 128, N = 40 };
    uint8_t  source[N * SIZE], back[N * SIZE], wanted[N * SIZE];
    world    w = open_world(ON_DEVICE, NULL, NULL, NULL);
    kvi_post post = {0};
    uint8_t *to = room(&w, sizeof source);
    prng     r;

    (void)state;
    prng_init(&r, seed + 6);
    for (int round = 0; round < 3; round++) { /* without a ring, with one, with a larger one */
        prng_fill(&r, source, sizeof source);
        memcpy(wanted, source, sizeof source);
        for (int i = 0; i < N; i++) {
            must(&w, kvi_post_put(&post, &w.m, to + i * SIZE, source + i * SIZE, SIZE, &w.err));
            memset(source + i * SIZE, 0x55, SIZE);
            assert_true(post.used <= post.cap);
            if (i == N / 2 && round) { /* it may go while bytes are on their way */
                must(&w, kvi_post_reserve(&post, &w.m, RING, &w.err));
                if (round == 2)
                    kvi_post_wipe(&post, &w.m);
            }
        }
        get(&w, back, to, sizeof back);
        assert_memory_equal(back, wanted, sizeof back);
        kvi_post_arrived(&post);
        assert_int_equal(post.used, 0);
        must(&w, kvi_post_reserve(&post, &w.m, round ? RING : 3 * 128, &w.err));
    }
    assert_int_equal(post.cap, RING);
    kvi_post_arrived(&post);
    for (int i = 0; i < 5; i++)
        assert_false(post_waits(&w, &post, to, source, SIZE));
    assert_true(post_waits(&w, &post, to, source, SIZE)); /* once */
    for (int i = 0; i < 4; i++)
        assert_false(post_waits(&w, &post, to, source, SIZE));
    kvi_post_arrived(&post);
    assert_false(post_waits(&w, &post, to, source, RING));
    must(&w, kvi_post_put(&post, &w.m, to, source, RING + 1, &w.err)); /* as it is */
    must(&w, kvi_post_put(&post, &w.m, to, source, 0, &w.err));
    kvi_post_fini(&post, &w.m);
    close_world(&w);
}

/* A full device is asked for room, as long as there is somebody who makes some. */
typedef struct room_maker {
    world *w;
    void  *ballast[3];
    int    n, n_asked;
} room_maker;

static int make_room(void *user, size_t size)
{
    room_maker *m = user;

    assert_int_equal(size, 5000);
    m->n_asked++;
    if (!m->n)
        return 0;
    kvi_memory_free(&m->w->m, m->ballast[--m->n], 1500);
    return 1;
}

static void test_somebody_makes_room(void **state)
{
    world      w = open_world(ON_DEVICE, "6000", NULL, NULL);
    room_maker maker = {.w = &w};
    void      *p = NULL;

    (void)state;
    while (maker.n < 3)
        must(&w, kvi_memory_alloc(&w.m, 1500, &maker.ballast[maker.n++], &w.err));
    assert_int_equal(kvi_memory_alloc(&w.m, 5000, &p, &w.err), KVCSA_ERR_NOMEM);
    w.m.make_room = make_room;
    w.m.room_user = &maker;
    must(&w, kvi_memory_alloc(&w.m, 5000, &p, &w.err));
    assert_int_equal(w.err.status, KVCSA_OK);
    assert_int_equal(maker.n_asked, 3);
    kvi_memory_free(&w.m, p, 5000);
    room(&w, 1001);
    assert_int_equal(kvi_memory_alloc(&w.m, 5000, &p, &w.err), KVCSA_ERR_NOMEM);
    assert_null(p);
    assert_int_equal(maker.n_asked, 4);
    close_world(&w);
}

/* ------------------------------------------------------------------ many copies */

enum { N_PLACES = 700, PLACE = 48 };

static void copy_places(world *w, kvi_copies *c, uint8_t *to, const uint8_t *from, size_t n, const uint8_t *source)
{
    static uint8_t back[N_PLACES * PLACE], wanted[N_PLACES * PLACE];

    memset(wanted, 0, sizeof wanted);
    must(w, kvi_memory_fill(&w->m, to, 0, sizeof back, &w->err));
    for (size_t i = 0; i < n; i++) { /* the i-th from the back, of another length each */
        const size_t other = (N_PLACES - 1 - i) * PLACE;

        kvi_copies_add(c, &w->m, to + i * PLACE, from + other, i % (PLACE + 1));
        memcpy(wanted + i * PLACE, source + other, i % (PLACE + 1));
    }
    must(w, kvi_copies_run(c, &w->m, &w->err));
    get(w, back, to, sizeof back);
    assert_memory_equal(back, wanted, sizeof back);
}

static void test_copies_grow(void **state)
{
    static uint8_t source[N_PLACES * PLACE];

    (void)state;
    for (int which = 0; which < N_WORLDS; which++) {
        world      w = open_world(which, NULL, NULL, NULL);
        kvi_post   post = {0};
        kvi_copies c = {.post = &post};
        prng       r;
        uint8_t   *from, *to;
        uint64_t   n_total;

        prng_init(&r, seed + 1);
        prng_fill(&r, source, sizeof source);
        from = put(&w, source, sizeof source);
        to = room(&w, sizeof source);
        copy_places(&w, &c, to, from, 0, source);
        copy_places(&w, &c, to, from, 1, source);
        must(&w, kvi_post_reserve(&post, &w.m, 600, &w.err)); /* the longest goes without it */
        copy_places(&w, &c, to, from, 20, source);
        must(&w, kvi_copies_reserve(&c, &w.m, N_PLACES, &w.err));
        n_total = host.n_total;
        copy_places(&w, &c, to, from, N_PLACES, source);
        copy_places(&w, &c, to, from, 3, source);
        assert_int_equal(host.n_total, n_total); /* there was room */
        kvi_copies_fini(&c, &w.m);
        kvi_post_fini(&post, &w.m);
        close_world(&w);
    }
}

static void test_copies_without_memory(void **state)
{
    uint8_t        source[64] = {1, 2, 3}, back[64];
    world          w = open_world(ON_DEVICE, "200", NULL, NULL);
    kvi_copies     c = {0};
    uint8_t *const from = put(&w, source, sizeof source);
    uint8_t *const to = room(&w, sizeof source);

    (void)state;
    must(&w, kvi_memory_fill(&w.m, to, 0, 64, &w.err));
    fault_alloc_fail_at(&host, 1);
    kvi_copies_add(&c, &w.m, to, from, 3);
    assert_true(fault_alloc_hit(&host));
    fault_alloc_fail_at(&host, 0);
    assert_int_equal(kvi_copies_run(&c, &w.m, &w.err), KVCSA_ERR_NOMEM); /* the list has a hole */
    must(&w, kvi_copies_run(&c, &w.m, &w.err));                          /* and is empty again */
    for (int i = 0; i < 4; i++)
        kvi_copies_add(&c, &w.m, to + i, from + i, 1);
    assert_int_equal(kvi_copies_run(&c, &w.m, &w.err), KVCSA_ERR_NOMEM); /* 72 bytes are left, 96 wanted */
    assert_int_equal(kvi_copies_reserve(&c, &w.m, 4, &w.err), KVCSA_ERR_NOMEM);
    fault_alloc_fail_at(&host, 1);
    assert_int_equal(kvi_copies_reserve(&c, &w.m, 1000, &w.err), KVCSA_ERR_NOMEM);
    fault_alloc_fail_at(&host, 0);
    kvi_copies_add(&c, &w.m, to, from, 3);
    must(&w, kvi_copies_run(&c, &w.m, &w.err));
    get(&w, back, to, sizeof back);
    assert_memory_equal(back, source, sizeof back);
    kvi_copies_fini(&c, &w.m);
    close_world(&w);
}

/* ------------------------------------------------------------------ what the test device finds */

static void assert_junk(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(p[i], JUNK);
}

static void test_nothing_happens_before_a_wait(void **state)
{
    uint8_t  source[100], back[100];
    world    w = open_world(ON_DEVICE, NULL, NULL, NULL);
    uint8_t *p = room(&w, 100);

    (void)state;
    get(&w, back, p, 100); /* new memory */
    assert_junk(back, 100);
    memset(source, 7, sizeof source);
    must(&w, kvi_memory_put(&w.m, p, source, 100, &w.err));
    must(&w, w.m.ops->mem_copy(w.m.dev, back, p, 100, KVI_COPY_OUT, &w.err));
    assert_junk(back, 100);
    for (int i = 0; i < 300; i++) /* the queue runs by itself, but what goes to the host is not there */
        must(&w, kvi_memory_fill(&w.m, p, 8, 100, &w.err));
    assert_junk(back, 100);
    must(&w, kvi_memory_sync(&w.m, &w.err));
    assert_memory_equal(back, source, 100);
    close_world(&w);
}

static void test_pinned_memory_is_read_late(void **state)
{
    world    w = open_world(ON_DEVICE, NULL, NULL, NULL);
    uint8_t *p = room(&w, 100);
    uint8_t  back[100];
    void    *pinned = NULL;

    (void)state;
    must(&w, w.m.ops->mem_alloc(w.m.dev, 100, KVI_MEMORY_PINNED, &pinned, &w.err));
    memset(pinned, 1, 100);
    must(&w, kvi_memory_put(&w.m, p, pinned, 100, &w.err));
    memset(pinned, 2, 50); /* too early */
    get(&w, back, p, 100);
    assert_int_equal(back[0], 2);
    assert_int_equal(back[50], 1);
    must(&w, kvi_memory_put(&w.m, p, pinned, 100, &w.err));
    must(&w, w.m.ops->mem_copy(w.m.dev, pinned, p, 100, KVI_COPY_OUT, &w.err)); /* in order: as it was */
    assert_junk(pinned, 100);
    must(&w, kvi_memory_sync(&w.m, &w.err));
    assert_memory_equal(pinned, back, 100);
    w.m.ops->mem_free(w.m.dev, pinned, KVI_MEMORY_PINNED);
    close_world(&w);
}

typedef struct place {
    world   *w;
    uint8_t *p;
} place;

static void read_it(void *arg)
{
    const place            *at = arg;
    const volatile uint8_t *p = at->p;

    (void)*p;
}

static void write_it(void *arg)
{
    const place      *at = arg;
    volatile uint8_t *p = at->p;

    *p = 0;
}

static void give_host_pointer(void *arg)
{
    const place          *at = arg;
    float                 x[4] = {0};
    const kvi_norm_params p = {.x = x, .y = x, .weight = x, .n_rows = 1, .width = 4};

    (void)at->w->m.ops->norm(at->w->m.dev, &p, NULL);
}

static void copy_the_wrong_way(void *arg)
{
    const place *at = arg;
    uint8_t      x[4] = {0};

    (void)at->w->m.ops->mem_copy(at->w->m.dev, x, at->p, 4, KVI_COPY_IN, NULL);
}

static void copy_too_much(void *arg)
{
    const place *at = arg;
    uint8_t      x[101] = {0};

    (void)kvi_memory_put(&at->w->m, at->p, x, 101, NULL);
}

static void copy_job_of_the_host(void *arg)
{
    const place       *at = arg;
    const kvi_copy_job job = {.from = at, .to = at->p, .n_bytes = 4};

    (void)kvi_memory_put(&at->w->m, at->p, &job, sizeof job, NULL);
    (void)at->w->m.ops->copy(at->w->m.dev, &(kvi_copy_params){.jobs = (void *)at->p, .n_jobs = 1, .max_bytes = 4}, NULL);
    (void)kvi_memory_sync(&at->w->m, NULL);
}

static void free_the_middle(void *arg)
{
    const place *at = arg;

    kvi_memory_free(&at->w->m, at->p + 1, 99);
}

static void forget_a_piece(void *arg)
{
    const place *at = arg;

    at->w->m.ops->device_close(at->w->m.dev);
}

static void test_mistakes_of_the_host(void **state)
{
    static const struct {
        void (*make)(void *arg);
        int signal;
    } mistakes[] = {
        {read_it, SIGSEGV},           {write_it, SIGSEGV},
        {give_host_pointer, SIGABRT}, {copy_the_wrong_way, SIGABRT},
        {copy_too_much, SIGABRT},     {copy_job_of_the_host, SIGABRT},
        {free_the_middle, SIGABRT},   {forget_a_piece, SIGABRT},
    };
    world w = open_world(ON_DEVICE, NULL, NULL, NULL);
    place at = {.w = &w, .p = room(&w, 100)};

    (void)state;
    must(&w, kvi_memory_fill(&w.m, at.p, 0, 100, &w.err));
    must(&w, kvi_memory_sync(&w.m, &w.err)); /* shut again */
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        assert_dies(mistakes[i].make, &at, mistakes[i].signal);
    close_world(&w);
    at = (place){.w = &w, .p = at.p};
    assert_dies(read_it, &at, SIGSEGV); /* freed */
}

static void test_failure_is_for_ever(void **state)
{
    uint8_t                back[4] = {1, 2, 3, 4};
    const kvi_tally_params none = {0};
    world                  w = open_world(ON_DEVICE, NULL, "4", NULL); /* of the first four calls */
    uint8_t               *p = room(&w, 4);
    void                  *more = NULL;
    kvi_copies             c = {0};

    (void)state;
    must(&w, kvi_memory_put(&w.m, p, back, 4, &w.err));
    must(&w, w.m.ops->mem_copy(w.m.dev, back, p, 4, KVI_COPY_OUT, &w.err));
    assert_int_equal(kvi_memory_sync(&w.m, &w.err), KVCSA_ERR_BACKEND);
    assert_int_equal(w.err.status, KVCSA_ERR_BACKEND);
    assert_junk(back, 4);
    assert_int_equal(kvi_memory_sync(&w.m, &w.err), KVCSA_ERR_BACKEND);
    assert_int_equal(kvi_memory_get(&w.m, back, p, 4, &w.err), KVCSA_ERR_BACKEND);
    assert_int_equal(kvi_memory_put(&w.m, p, back, 4, &w.err), KVCSA_ERR_BACKEND);
    assert_int_equal(kvi_memory_fill(&w.m, p, 0, 4, &w.err), KVCSA_ERR_BACKEND);
    assert_int_equal(kvi_memory_alloc(&w.m, 4, &more, &w.err), KVCSA_ERR_BACKEND);
    assert_int_equal(w.m.ops->tally(w.m.dev, &none, &w.err), KVCSA_ERR_BACKEND);
    kvi_copies_add(&c, &w.m, p, p + 2, 2);
    assert_int_equal(kvi_copies_run(&c, &w.m, &w.err), KVCSA_ERR_BACKEND);
    assert_int_equal(c.n, 0);
    kvi_copies_fini(&c, &w.m);
    close_world(&w);
}

static void test_failure_is_told_late(void **state)
{
    uint8_t  back[4] = {1, 2, 3, 4};
    world    w = open_world(ON_DEVICE, NULL, "3", "1");
    uint8_t *p = room(&w, 4);

    (void)state;
    must(&w, kvi_memory_put(&w.m, p, back, 4, &w.err));
    must(&w, kvi_memory_fill(&w.m, p, 0, 4, &w.err)); /* seems to work */
    must(&w, w.m.ops->mem_copy(w.m.dev, back, p, 4, KVI_COPY_OUT, &w.err));
    assert_int_equal(kvi_memory_sync(&w.m, &w.err), KVCSA_ERR_BACKEND);
    assert_junk(back, 4);
    assert_int_equal(kvi_memory_put(&w.m, p, back, 4, &w.err), KVCSA_ERR_BACKEND);
    close_world(&w);
}

static void test_graphs_run_again(void **state)
{
    const int32_t    items[4] = {0, 2, 5, -1};
    uint64_t         counts[3] = {0};
    world            w = open_world(ON_DEVICE, NULL, NULL, NULL);
    kvi_graph       *graph = NULL;
    uint64_t        *there = put(&w, counts, sizeof counts);
    uint64_t        *copy = room(&w, sizeof counts);
    kvi_tally_params p = {.items = put(&w, items, sizeof items),
                          .counts = there,
                          .stride = 4,
                          .n_rows = 1,
                          .n_items = 4,
                          .each = 8,
                          .rows_per_block = 8};

    (void)state;
    must(&w, w.m.ops->graph_begin(w.m.dev, &w.err));
    must(&w, w.m.ops->tally(w.m.dev, &p, &w.err));
    must(&w, kvi_memory_move(&w.m, copy, there, sizeof counts, &w.err));
    must(&w, w.m.ops->graph_end(w.m.dev, &graph, &w.err));
    get(&w, counts, there, sizeof counts);
    assert_int_equal(counts[0], 0); /* it has only been recorded */
    p.n_rows = 0;
    for (int i = 0; i < 5; i++)
        must(&w, w.m.ops->graph_run(w.m.dev, graph, &w.err));
    get(&w, counts, copy, sizeof counts);
    assert_int_equal(counts[0], 15);
    assert_int_equal(counts[1], 120);
    assert_int_equal(counts[2], 15);
    w.m.ops->graph_free(w.m.dev, graph);
    w.m.ops->graph_free(w.m.dev, NULL);
    close_world(&w);
}

/* ------------------------------------------------------------------ operators */

enum { N_SHAPES = 20 };

typedef void (*shape_fn)(world *w, prng *r);

/* Random shapes in both worlds, the same ones. */
static void in_both_worlds(shape_fn try_shape)
{
    for (int which = 0; which < N_WORLDS; which++) {
        prng r;

        prng_init(&r, seed + 2);
        for (int i = 0; i < N_SHAPES; i++) {
            world w = open_world(which, NULL, NULL, NULL);

            try_shape(&w, &r);
            close_world(&w);
        }
    }
}

static void random_floats(prng *r, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = prng_normal(r);
}

/* Two results of an operator that are to be equal. */
static void assert_equal_there(world *w, const void *a, const void *b, size_t size)
{
    uint8_t *x = malloc(size), *y = malloc(size);

    assert_true(x && y);
    get(w, x, a, size);
    get(w, y, b, size);
    assert_memory_equal(x, y, size);
    free(x);
    free(y);
}

static void try_copy(world *w, prng *r)
{
    enum { MOST_JOBS = 60, MOST = 300 };
    static uint8_t  source[MOST_JOBS * MOST], wanted[MOST_JOBS * MOST], back[MOST_JOBS * MOST];
    kvi_copy_job    jobs[MOST_JOBS];
    kvi_copy_params p = {.n_jobs = prng_below(r, MOST_JOBS + 1)};
    uint8_t        *from, *to;

    prng_fill(r, source, sizeof source);
    memset(wanted, 0, sizeof wanted);
    from = put(w, source, sizeof source);
    to = put(w, wanted, sizeof wanted);
    for (size_t i = 0; i < p.n_jobs; i++) { /* sources may overlap */
        const size_t n = prng_below(r, MOST + 1);
        const size_t at = prng_below(r, sizeof source - n + 1);
        const size_t into = i * MOST + prng_below(r, MOST - n + 1);

        jobs[i] = (kvi_copy_job){.from = from + at, .to = to + into, .n_bytes = n};
        memcpy(wanted + into, source + at, n);
        p.max_bytes = n > p.max_bytes ? n : p.max_bytes;
    }
    p.jobs = put(w, jobs, p.n_jobs * sizeof *jobs);
    must(w, w->m.ops->copy(w->m.dev, &p, &w->err));
    get(w, back, to, sizeof back);
    assert_memory_equal(back, wanted, sizeof back);
}

static void test_copy(void **state)
{
    (void)state;
    in_both_worlds(try_copy);
}

enum { MOST_ITEMS = 40, MOST_EACH = 16, MOST_ENTRIES = 4 * MOST_ITEMS * MOST_EACH };

/* Entry by entry. */
static void naive_tally(const kvi_tally_params *p, const int32_t *items, uint64_t n_visible, uint64_t *counts)
{
    uint8_t marked[MOST_ENTRIES] = {0}; /* cache blocks */

    for (uint32_t k = 0; k < p->n_items && items[k] >= 0; k++) {
        counts[0]++;
        for (uint64_t e = (uint64_t)items[k] * p->each; e < ((uint64_t)items[k] + 1) * p->each; e++) {
            if (e >= n_visible)
                continue;
            counts[1]++;
            counts[2] += !marked[e / p->rows_per_block];
            marked[e / p->rows_per_block] = 1;
        }
    }
}

static void try_tally(world *w, prng *r)
{
    uint64_t         counts[3] = {5, 7, 9}, back[3];
    kvi_tally_params p = {.n_items = (uint32_t)prng_below(r, MOST_ITEMS + 1),
                          .n_rows = prng_below(r, 6),
                          .each = (uint32_t)prng_range(r, 1, MOST_EACH),
                          .rows_per_block = (uint32_t)prng_range(r, 1, 64)};
    const int        all = prng_below(r, 4) == 0;
    int32_t          items[6 * (MOST_ITEMS + 3)];
    uint64_t         n_visible[6];

    p.stride = p.n_items + prng_below(r, 4);
    p.counts = put(w, counts, sizeof counts);
    for (size_t row = 0; row < p.n_rows; row++) {
        int32_t     *list = items + row * p.stride;
        const size_t n = prng_below(r, p.stride + 1); /* also more than n_items */
        int32_t      next = 0;

        for (size_t i = 0; i < p.stride; i++) {
            next += (int32_t)prng_below(r, 4);
            list[i] = i < n ? next++ : -1;
        }
        n_visible[row] = prng_below(r, 2 * MOST_ITEMS * MOST_EACH);
        naive_tally(&p, list, all ? UINT64_MAX : n_visible[row], counts);
    }
    p.items = put(w, items, p.n_rows * p.stride * sizeof *items);
    p.n_visible = all ? NULL : put(w, n_visible, p.n_rows * sizeof *n_visible);
    must(w, w->m.ops->tally(w->m.dev, &p, &w->err));
    get(w, back, p.counts, sizeof back);
    assert_memory_equal(back, counts, sizeof back);
}

static void test_tally(void **state)
{
    (void)state;
    in_both_worlds(try_tally);
}

/* The first row of the first pair apart from the others, against all in one piece. */
static void try_head(world *w, prng *r)
{
    enum { MOST_PAIRS = 9, MOST_WIDTH = 96 };
    static float          k[2 * MOST_PAIRS * MOST_WIDTH], gate[2 * MOST_PAIRS * MOST_WIDTH], head[2 * MOST_WIDTH];
    const uint32_t        width = 32 * (uint32_t)prng_range(r, 1, MOST_WIDTH / 32);
    const size_t          n = prng_range(r, 1, MOST_PAIRS);
    kvi_pool_pairs_params p = {.n_pairs = n, .width = width, .flags = prng_below(r, 2) ? KVI_OP_ROUND_BF16 : 0};
    float                *out;

    random_floats(r, k, 2 * n * width);
    random_floats(r, gate, 2 * n * width);
    memcpy(head, k, width * sizeof *k);
    memcpy(head + width, gate, width * sizeof *k);
    p.k = put(w, k, 2 * n * width * sizeof *k);
    p.gate = put(w, gate, 2 * n * width * sizeof *k);
    p.out = out = room(w, n * width * sizeof *k);
    must(w, w->m.ops->pool_pairs(w->m.dev, &p, &w->err));
    p.k = put(w, k + width, (2 * n - 1) * width * sizeof *k);
    p.gate = put(w, gate + width, (2 * n - 1) * width * sizeof *k);
    p.head = put(w, head, 2 * width * sizeof *k);
    p.out = room(w, n * width * sizeof *k);
    must(w, w->m.ops->pool_pairs(w->m.dev, &p, &w->err));
    assert_equal_there(w, p.out, out, n * width * sizeof *k);
}

static void test_pairs_with_a_head(void **state)
{
    (void)state;
    in_both_worlds(try_head);
}

enum { MOST_ROWS = 5, MOST_SCORES = 200 };

static void try_equal_scores(world *w, prng *r)
{
    const size_t          n_rows = prng_range(r, 1, MOST_ROWS);
    float                 scores[MOST_ROWS * MOST_SCORES];
    uint64_t              n_scores[MOST_ROWS];
    kvi_topk_params       t = {.n_rows = n_rows, .scores_stride = MOST_SCORES, .k = (uint32_t)prng_below(r, 90)};
    kvi_candidates_params c = {.n_rows = n_rows, .scores_stride = MOST_SCORES, .n_keep = (uint32_t)prng_range(r, 1, 30)};
    const int32_t        *ids, *blocks;
    const uint32_t       *n_blocks;

    for (size_t i = 0; i < MOST_ROWS * MOST_SCORES; i++)
        scores[i] = 0.75f;
    for (size_t i = 0; i < n_rows; i++)
        n_scores[i] = prng_below(r, MOST_SCORES + 1);
    t.ids_stride = prng_below(r, 2) ? t.k + prng_below(r, 4) : 0;
    c.blocks_stride = prng_below(r, 2) ? c.n_keep + prng_below(r, 4) : 0;
    c.block_entries = (uint32_t)prng_range(r, 1, 17);
    t.scores = c.scores = put(w, scores, sizeof scores);
    t.n_scores = c.n_visible = put(w, n_scores, sizeof n_scores);

    const size_t ids_bytes = n_rows * (t.ids_stride ? t.ids_stride : t.k) * sizeof *t.ids;
    const size_t blocks_bytes = n_rows * (c.blocks_stride ? c.blocks_stride : c.n_keep) * sizeof *c.blocks;

    ids = t.ids = room(w, ids_bytes);
    blocks = c.blocks = room(w, blocks_bytes);
    n_blocks = c.n_blocks = room(w, n_rows * sizeof *c.n_blocks);
    must(w, w->m.ops->topk(w->m.dev, &t, &w->err));
    must(w, w->m.ops->candidates(w->m.dev, &c, &w->err));
    t.scores = c.scores = NULL;
    t.ids = room(w, ids_bytes);
    c.blocks = room(w, blocks_bytes);
    c.n_blocks = room(w, n_rows * sizeof *c.n_blocks);
    must(w, w->m.ops->topk(w->m.dev, &t, &w->err));
    must(w, w->m.ops->candidates(w->m.dev, &c, &w->err));
    assert_equal_there(w, t.ids, ids, ids_bytes);
    assert_equal_there(w, c.blocks, blocks, blocks_bytes);
    assert_equal_there(w, c.n_blocks, n_blocks, n_rows * sizeof *c.n_blocks);
}

static void test_selection_without_scores(void **state)
{
    (void)state;
    in_both_worlds(try_equal_scores);
}

/* Scores of listed blocks, their number as entries or as blocks. */
static void try_block_counts(world *w, prng *r)
{
    enum { MOST_BLOCKS = 12, N_HIDDEN = 20 };
    const size_t    n_rows = prng_range(r, 1, MOST_ROWS);
    const uint32_t  be = (uint32_t)prng_range(r, 1, 16);
    const size_t    stride = MOST_BLOCKS * be;
    float           scores[MOST_ROWS * MOST_BLOCKS * 16];
    int32_t         blocks[MOST_ROWS * MOST_BLOCKS];
    uint32_t        n_blocks[MOST_ROWS];
    uint64_t        n_scores[MOST_ROWS];
    uint8_t         hidden[N_HIDDEN];
    kvi_topk_params t = {.n_rows = n_rows, .scores_stride = stride, .blocks_stride = MOST_BLOCKS, .block_entries = be, .k = 20};
    kvi_hide_params h = {.n_rows = n_rows,
                         .scores_stride = stride,
                         .blocks_stride = MOST_BLOCKS,
                         .block_entries = be,
                         .n_hidden = N_HIDDEN,
                         .span_entries = 8,
                         .rest_hidden = (uint32_t)prng_below(r, 2)};
    const float    *old_scores;
    const int32_t  *old_ids;

    random_floats(r, scores, MOST_ROWS * stride);
    for (size_t row = 0; row < n_rows; row++) {
        int32_t next = 0;

        n_blocks[row] = (uint32_t)prng_below(r, MOST_BLOCKS + 1);
        n_scores[row] = (uint64_t)n_blocks[row] * be;
        for (uint32_t i = 0; i < MOST_BLOCKS; i++) {
            next += (int32_t)prng_range(r, 1, 3);
            blocks[row * MOST_BLOCKS + i] = i < n_blocks[row] ? next : -1;
        }
    }
    for (size_t i = 0; i < N_HIDDEN; i++)
        hidden[i] = (uint8_t)prng_below(r, 2);
    h.hidden = put(w, hidden, sizeof hidden);
    t.blocks = h.blocks = put(w, blocks, sizeof blocks);

    t.n_scores = h.n_scores = put(w, n_scores, sizeof n_scores);
    old_scores = t.scores = h.scores = put(w, scores, MOST_ROWS * stride * sizeof *scores);
    old_ids = t.ids = room(w, n_rows * t.k * sizeof *t.ids);
    must(w, w->m.ops->hide(w->m.dev, &h, &w->err));
    must(w, w->m.ops->topk(w->m.dev, &t, &w->err));

    t.n_scores = h.n_scores = NULL;
    t.n_blocks = h.n_blocks = put(w, n_blocks, sizeof n_blocks);
    t.scores = h.scores = put(w, scores, MOST_ROWS * stride * sizeof *scores);
    t.ids = room(w, n_rows * t.k * sizeof *t.ids);
    must(w, w->m.ops->hide(w->m.dev, &h, &w->err));
    must(w, w->m.ops->topk(w->m.dev, &t, &w->err));
    assert_equal_there(w, h.scores, old_scores, MOST_ROWS * stride * sizeof *scores);
    assert_equal_there(w, t.ids, old_ids, n_rows * t.k * sizeof *t.ids);
}

static void test_scores_counted_in_blocks(void **state)
{
    (void)state;
    in_both_worlds(try_block_counts);
}

static void try_weights(world *w, prng *r)
{
    enum { MOST_HEADS = 8, MOST_WIDTH = 128 };
    static float           x[MOST_ROWS * MOST_HEADS * MOST_WIDTH];
    float                  weights[MOST_ROWS * MOST_HEADS], back[MOST_ROWS * MOST_HEADS];
    kvi_index_query_params p = {.n_rows = prng_range(r, 1, MOST_ROWS),
                                .n_heads = (uint32_t)prng_range(r, 1, MOST_HEADS),
                                .width = 32 * (uint32_t)prng_range(r, 1, MOST_WIDTH / 32),
                                .weight_scale = prng_float(r, 0, 2),
                                .flags = prng_below(r, 2) ? KVI_OP_ROUND_BF16 : 0};
    const size_t           n_weights = p.n_rows * p.n_heads, n = n_weights * p.width;
    const int8_t          *codes;
    const float           *scales;

    random_floats(r, x, n);
    random_floats(r, weights, n_weights);
    p.x = put(w, x, n * sizeof *x);
    codes = p.codes = room(w, n);
    scales = p.scales = room(w, n / 32 * sizeof *scales);
    must(w, w->m.ops->index_query(w->m.dev, &p, &w->err));
    p.codes = room(w, n);
    p.scales = room(w, n / 32 * sizeof *scales);
    p.weights = put(w, weights, n_weights * sizeof *weights);
    must(w, w->m.ops->index_query(w->m.dev, &p, &w->err));
    assert_equal_there(w, p.codes, codes, n);
    assert_equal_there(w, p.scales, scales, n / 32 * sizeof *scales);
    get(w, back, p.weights, n_weights * sizeof *weights);
    for (size_t i = 0; i < n_weights; i++) {
        weights[i] *= p.weight_scale;
        if (p.flags)
            weights[i] = kvi_round_bf16(weights[i]);
    }
    assert_memory_equal(back, weights, n_weights * sizeof *weights);
}

static void test_weights_of_index_heads(void **state)
{
    (void)state;
    in_both_worlds(try_weights);
}

/* ------------------------------------------------------------------ the program */

static int load_device(void **state)
{
    char              self[PATH_MAX] = "", folder[PATH_MAX];
    kvi_backend_found found;

    (void)state;
    if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0 ||
        snprintf(folder, sizeof folder, "%s/apart", dirname(self)) >= (int)sizeof folder)
        return -1;
    kvi_backend_load(folder, "cuda", NULL, &found);
    if (!found.ops) {
        print_error("%s\n", found.why);
        return -1;
    }
    apart = found.ops;
    assert_int_equal(apart->numerics, kvi_cpu_backend(kvi_cpu_flags(0))->numerics);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_go_round),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_pinned_bytes_go_round),
        cmocka_unit_test(test_posted_bytes_may_change),
        cmocka_unit_test(test_somebody_makes_room),
        cmocka_unit_test(test_copies_grow),
        cmocka_unit_test(test_copies_without_memory),
        cmocka_unit_test(test_nothing_happens_before_a_wait),
        cmocka_unit_test(test_pinned_memory_is_read_late),
        cmocka_unit_test(test_mistakes_of_the_host),
        cmocka_unit_test(test_failure_is_for_ever),
        cmocka_unit_test(test_failure_is_told_late),
        cmocka_unit_test(test_graphs_run_again),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_tally),
        cmocka_unit_test(test_pairs_with_a_head),
        cmocka_unit_test(test_selection_without_scores),
        cmocka_unit_test(test_scores_counted_in_blocks),
        cmocka_unit_test(test_weights_of_index_heads),
    };

    seed = prng_seed(argc, argv, 20269);
    return cmocka_run_group_tests(tests, load_device, NULL);
}
