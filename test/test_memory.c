/* kvi_memory and kvi_copies on the host's memory and on that of the test device "apart" (test/apart), and what this device is there
 * to find. Most tests run in both worlds. */
#include "apart/apart_counts.h"
#include "support/prng.h"
#include "support/test_backend.h"
#include "support/worlds.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define JUNK 0xee

static uint64_t seed;

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
            uint8_t     *a = world_room(&w, size);
            uint8_t     *b = world_room(&w, size);
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
    world_room(&w, 6000);
    assert_int_equal(kvi_memory_alloc(&w.m, 4001, &p, &w.err), KVCSA_ERR_NOMEM);
    assert_null(p);
    world_room(&w, 4000);
    w.m.ops->describe(w.m.dev, &info);
    assert_int_equal(info.memory, 10000);
    assert_int_equal(info.memory_free, 0);
    assert_int_equal(info.numerics, w.m.ops->numerics);
    close_world(&w);

    w = open_world(ON_HOST, NULL, NULL, NULL);
    fault_alloc_fail_at(&world_host, 1);
    assert_int_equal(kvi_memory_alloc(&w.m, 4001, &p, &w.err), KVCSA_ERR_NOMEM);
    fault_alloc_fail_at(&world_host, 0);
    close_world(&w);
}

static void test_pinned_bytes_go_round(void **state)
{
    (void)state;
    for (int which = 0; which < N_WORLDS; which++) {
        world    w = open_world(which, NULL, NULL, NULL);
        uint8_t *p = world_room(&w, 500);
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
    uint8_t *to = world_room(&w, sizeof source);
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
        world_get(&w, back, to, sizeof back);
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
    world_room(&w, 1001);
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
    world_get(w, back, to, sizeof back);
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
        from = world_put(&w, source, sizeof source);
        to = world_room(&w, sizeof source);
        copy_places(&w, &c, to, from, 0, source);
        copy_places(&w, &c, to, from, 1, source);
        must(&w, kvi_post_reserve(&post, &w.m, 600, &w.err)); /* the longest goes without it */
        copy_places(&w, &c, to, from, 20, source);
        must(&w, kvi_copies_reserve(&c, &w.m, N_PLACES, &w.err));
        n_total = world_host.n_total;
        copy_places(&w, &c, to, from, N_PLACES, source);
        copy_places(&w, &c, to, from, 3, source);
        assert_int_equal(world_host.n_total, n_total); /* there was room */
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
    uint8_t *const from = world_put(&w, source, sizeof source);
    uint8_t *const to = world_room(&w, sizeof source);

    (void)state;
    must(&w, kvi_memory_fill(&w.m, to, 0, 64, &w.err));
    fault_alloc_fail_at(&world_host, 1);
    kvi_copies_add(&c, &w.m, to, from, 3);
    assert_true(fault_alloc_hit(&world_host));
    fault_alloc_fail_at(&world_host, 0);
    assert_int_equal(kvi_copies_run(&c, &w.m, &w.err), KVCSA_ERR_NOMEM); /* the list has a hole */
    must(&w, kvi_copies_run(&c, &w.m, &w.err));                          /* and is empty again */
    for (int i = 0; i < 4; i++)
        kvi_copies_add(&c, &w.m, to + i, from + i, 1);
    assert_int_equal(kvi_copies_run(&c, &w.m, &w.err), KVCSA_ERR_NOMEM); /* 72 bytes are left, 96 wanted */
    assert_int_equal(kvi_copies_reserve(&c, &w.m, 4, &w.err), KVCSA_ERR_NOMEM);
    fault_alloc_fail_at(&world_host, 1);
    assert_int_equal(kvi_copies_reserve(&c, &w.m, 1000, &w.err), KVCSA_ERR_NOMEM);
    fault_alloc_fail_at(&world_host, 0);
    kvi_copies_add(&c, &w.m, to, from, 3);
    must(&w, kvi_copies_run(&c, &w.m, &w.err));
    world_get(&w, back, to, sizeof back);
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
    uint8_t *p = world_room(&w, 100);

    (void)state;
    world_get(&w, back, p, 100); /* new memory */
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
    uint8_t *p = world_room(&w, 100);
    uint8_t  back[100];
    void    *pinned = NULL;

    (void)state;
    must(&w, w.m.ops->mem_alloc(w.m.dev, 100, KVI_MEMORY_PINNED, &pinned, &w.err));
    memset(pinned, 1, 100);
    must(&w, kvi_memory_put(&w.m, p, pinned, 100, &w.err));
    memset(pinned, 2, 50); /* too early */
    world_get(&w, back, p, 100);
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

/* A slice whose table of parts is this one. */
static void score_a_slice(const place *at, uint8_t *const *index_parts)
{
    const kvi_kv_owner           owner = {.rows_per_block = 8, .index_width = 32, .index_value_bytes = 16, .index_row_bytes = 17};
    const kvi_slice              slice = {.index_parts = index_parts};
    const uint64_t               none = 0;
    uint8_t *const               n_visible = at->p + sizeof slice;
    const kvi_index_score_params p = {.keys.owner = &owner,
                                      .n_visible = (const void *)n_visible,
                                      .n_rows = 1,
                                      .n_heads = 1,
                                      .of = {.slices = (const void *)at->p, .each = 1}};

    (void)kvi_memory_put(&at->w->m, at->p, &slice, sizeof slice, NULL);
    (void)kvi_memory_put(&at->w->m, n_visible, &none, sizeof none, NULL);
    (void)at->w->m.ops->index_score(at->w->m.dev, &p, NULL);
    (void)kvi_memory_sync(&at->w->m, NULL);
}

static void slice_of_the_host(void *arg)
{
    uint8_t *parts[1] = {0};

    score_a_slice(arg, parts);
}

static void slice_of_the_device(void *arg)
{
    const place *at = arg;

    score_a_slice(at, (uint8_t *const *)(const void *)(at->p + 64));
}

/* A key and a value of one channel, each four bytes, to this page. */
static void write_to_page(const place *at, uint8_t *page)
{
    const float                  x[2] = {1.0f, 2.0f};
    uint8_t *const               rows = at->p + sizeof page;
    const kvi_paged_write_params p = {.k = (const void *)rows,
                                      .v = (const void *)(rows + sizeof *x),
                                      .pages = (void *)at->p,
                                      .n_rows = 1,
                                      .n_kv_heads = 1,
                                      .width = 1,
                                      .page_rows = 1,
                                      .format = KVCSA_FORMAT_F32};

    (void)kvi_memory_put(&at->w->m, at->p, &page, sizeof page, NULL);
    (void)kvi_memory_put(&at->w->m, rows, x, sizeof x, NULL);
    (void)at->w->m.ops->paged_write(at->w->m.dev, &p, NULL);
    (void)kvi_memory_sync(&at->w->m, NULL);
}

static void page_of_the_host(void *arg)
{
    uint8_t page[8];

    write_to_page(arg, page);
}

static void page_without_room_for_the_value(void *arg)
{
    const place *at = arg;

    write_to_page(at, at->p + 100 - 7);
}

static void page_of_the_device(void *arg)
{
    const place *at = arg;
    const float  want[2] = {1.0f, 2.0f};
    float        back[2] = {0};

    write_to_page(at, at->p + 100 - 8);
    must(at->w, kvi_memory_get(&at->w->m, back, at->p + 100 - 8, sizeof back, &at->w->err));
    assert_memory_equal(back, want, sizeof want);
}

static void row_of_the_host(void *arg)
{
    const place                 *at = arg;
    const float                  x = 0;
    const kvi_paged_write_params p = {.k = (void *)at->p, .v = &x, .pages = (void *)at->p};

    (void)at->w->m.ops->paged_write(at->w->m.dev, &p, NULL);
}

/* The last head's row begins where the memory ends. */
static void heads_that_are_not_there(void *arg)
{
    const place                 *at = arg;
    const kvi_paged_write_params p = {.k = (void *)at->p,
                                      .v = (void *)(at->p + 100 - 2 * sizeof(float)),
                                      .pages = (void *)at->p,
                                      .k_head_stride = 1,
                                      .v_head_stride = 1,
                                      .n_rows = 1,
                                      .n_kv_heads = 3,
                                      .width = 1,
                                      .page_rows = 1,
                                      .format = KVCSA_FORMAT_F32};
    uint8_t *const               page = at->p + 32;

    (void)kvi_memory_put(&at->w->m, at->p, &page, sizeof page, NULL);
    (void)at->w->m.ops->paged_write(at->w->m.dev, &p, NULL);
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
        {slice_of_the_host, SIGABRT}, {page_of_the_host, SIGABRT},
        {page_without_room_for_the_value, SIGABRT},
        {row_of_the_host, SIGABRT},   {heads_that_are_not_there, SIGABRT},
        {free_the_middle, SIGABRT},   {forget_a_piece, SIGABRT},
    };
    world w = open_world(ON_DEVICE, NULL, NULL, NULL);
    place at = {.w = &w, .p = world_room(&w, 100)};

    (void)state;
    must(&w, kvi_memory_fill(&w.m, at.p, 0, 100, &w.err));
    must(&w, kvi_memory_sync(&w.m, &w.err)); /* shut again */
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        assert_dies(mistakes[i].make, &at, mistakes[i].signal);
    slice_of_the_device(&at);
    page_of_the_device(&at);
    close_world(&w);
    at = (place){.w = &w, .p = at.p};
    assert_dies(read_it, &at, SIGSEGV); /* freed */
}

static void test_failure_is_for_ever(void **state)
{
    uint8_t                back[4] = {1, 2, 3, 4};
    const kvi_tally_params none = {0};
    world                  w = open_world(ON_DEVICE, NULL, "4", NULL); /* of the first four calls */
    uint8_t               *p = world_room(&w, 4);
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
    uint8_t *p = world_room(&w, 4);

    (void)state;
    must(&w, kvi_memory_put(&w.m, p, back, 4, &w.err));
    must(&w, kvi_memory_fill(&w.m, p, 0, 4, &w.err)); /* seems to work */
    must(&w, w.m.ops->mem_copy(w.m.dev, back, p, 4, KVI_COPY_OUT, &w.err));
    assert_int_equal(kvi_memory_sync(&w.m, &w.err), KVCSA_ERR_BACKEND);
    assert_junk(back, 4);
    assert_int_equal(kvi_memory_put(&w.m, p, back, 4, &w.err), KVCSA_ERR_BACKEND);
    close_world(&w);
}

/* ------------------------------------------------------------------ graphs */

/* A list of three items, whose counts are added up and copied. */
typedef struct counting {
    kvi_tally_params p;
    uint64_t        *copy; /* [3] */
} counting;

static counting make_counting(world *w)
{
    const int32_t  items[4] = {0, 2, 5, -1};
    const uint64_t counts[3] = {0};

    return (counting){.p = {.items = world_put(w, items, sizeof items),
                            .counts = world_put(w, counts, sizeof counts),
                            .stride = 4,
                            .n_rows = 1,
                            .n_items = 4,
                            .each = 8,
                            .rows_per_block = 8},
                      .copy = world_room(w, sizeof counts)};
}

static void assert_counted(world *w, const uint64_t *there, uint64_t n_times)
{
    uint64_t counts[3];

    world_get(w, counts, there, sizeof counts);
    assert_int_equal(counts[0], 3 * n_times);
    assert_int_equal(counts[1], 24 * n_times);
    assert_int_equal(counts[2], 3 * n_times);
}

static void test_graphs_run_again(void **state)
{
    world        w = open_world(ON_DEVICE, NULL, NULL, NULL);
    kvi_graph   *graph = NULL;
    counting     c = make_counting(&w);
    uint8_t     *filled = world_room(&w, 10), back[10];
    apart_counts before, after;

    (void)state;
    assert_true(apart_counts_now(test_backend_beside("apart"), &before));
    must(&w, kvi_memory_fill(&w.m, filled, 1, 10, &w.err));
    must(&w, w.m.ops->graph_begin(w.m.dev, &w.err));
    must(&w, w.m.ops->tally(w.m.dev, &c.p, &w.err));
    must(&w, kvi_memory_move(&w.m, c.copy, c.p.counts, 3 * sizeof *c.copy, &w.err));
    must(&w, kvi_memory_fill(&w.m, filled + 2, 2, 5, &w.err));
    must(&w, w.m.ops->graph_end(w.m.dev, &graph, &w.err));
    assert_counted(&w, c.p.counts, 0); /* it has only been recorded */
    world_get(&w, back, filled, 10);
    assert_memory_equal(back, "\1\1\1\1\1\1\1\1\1\1", 10);
    c.p.n_rows = 0;
    for (int i = 0; i < 5; i++)
        must(&w, w.m.ops->graph_run(w.m.dev, graph, &w.err));
    assert_counted(&w, c.copy, 5);
    world_get(&w, back, filled, 10);
    assert_memory_equal(back, "\1\1\2\2\2\2\2\1\1\1", 10);
    c.p.n_rows = 1;
    must(&w, w.m.ops->tally(w.m.dev, &c.p, &w.err));
    must(&w, w.m.ops->graph_run(w.m.dev, graph, &w.err)); /* in order with others */
    assert_counted(&w, c.copy, 7);
    w.m.ops->graph_free(w.m.dev, graph);
    w.m.ops->graph_free(w.m.dev, NULL);
    assert_true(apart_counts_now(test_backend_beside("apart"), &after));
    assert_int_equal(after.launches - before.launches, 1);
    assert_int_equal(after.recorded - before.recorded, 1);
    assert_int_equal(after.graphs - before.graphs, 1);
    assert_int_equal(after.graph_runs - before.graph_runs, 6);
    assert_int_equal(after.copies - before.copies, 1);
    assert_int_equal(after.copies_in - before.copies_in, 0);
    assert_int_equal(after.copies_out - before.copies_out, 5);
    assert_false(apart_counts_now("/nowhere", &after));
    assert_false(apart_counts_now(NULL, &after));
    close_world(&w);
}

/* What another thread does while a graph is recorded. */
typedef struct other {
    world        *w;
    uint8_t      *p; /* [10] */
    kvcsa_status  st;
    _Atomic int   started, done;
} other;

static void *fill_meanwhile(void *arg)
{
    other *o = arg;

    o->started = 1;
    o->st = o->w->m.ops->mem_fill(o->w->m.dev, o->p, 7, 10, NULL);
    o->done = 1;
    return NULL;
}

static pthread_t start_other(other *o)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, fill_meanwhile, o), 0);
    while (!o->started)
        usleep(100);
    usleep(20000); /* long enough for one that does not wait */
    return thread;
}

static void test_graphs_keep_other_threads_out(void **state)
{
    world      w = open_world(ON_DEVICE, NULL, NULL, NULL);
    kvi_graph *graph = NULL;
    counting   c = make_counting(&w);
    other      o = {.w = &w, .p = world_room(&w, 10)};
    uint8_t    back[10];
    pthread_t  thread;

    (void)state;
    must(&w, w.m.ops->graph_begin(w.m.dev, &w.err));
    must(&w, w.m.ops->tally(w.m.dev, &c.p, &w.err));
    thread = start_other(&o);
    assert_false(o.done);
    must(&w, w.m.ops->tally(w.m.dev, &c.p, &w.err));
    must(&w, w.m.ops->graph_end(w.m.dev, &graph, &w.err));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(o.st, KVCSA_OK);
    world_get(&w, back, o.p, 10); /* it was enqueued, ... */
    assert_memory_equal(back, "\7\7\7\7\7\7\7\7\7\7", 10);
    must(&w, kvi_memory_fill(&w.m, o.p, 1, 10, &w.err));
    must(&w, w.m.ops->graph_run(w.m.dev, graph, &w.err));
    world_get(&w, back, o.p, 10); /* ... and not recorded */
    assert_memory_equal(back, "\1\1\1\1\1\1\1\1\1\1", 10);
    assert_counted(&w, c.p.counts, 2);
    w.m.ops->graph_free(w.m.dev, graph);
    close_world(&w);
}

static void test_graphs_of_a_failed_call(void **state)
{
    world      w;
    kvi_graph *graph = (void *)&w;
    counting   c;

    (void)state;
    assert_int_equal(setenv("APART_FAIL_RECORD", "2", 1), 0);
    w = open_world(ON_DEVICE, NULL, NULL, NULL);
    assert_int_equal(unsetenv("APART_FAIL_RECORD"), 0);
    c = make_counting(&w);
    must(&w, w.m.ops->graph_begin(w.m.dev, &w.err));
    must(&w, w.m.ops->tally(w.m.dev, &c.p, &w.err));
    assert_int_equal(w.m.ops->tally(w.m.dev, &c.p, &w.err), KVCSA_ERR_NOMEM);
    must(&w, w.m.ops->tally(w.m.dev, &c.p, &w.err));
    assert_int_equal(w.m.ops->graph_end(w.m.dev, &graph, &w.err), KVCSA_ERR_NOMEM);
    assert_null(graph);
    must(&w, w.m.ops->tally(w.m.dev, &c.p, &w.err)); /* the device is as before, ... */
    assert_counted(&w, c.p.counts, 1);
    must(&w, w.m.ops->graph_begin(w.m.dev, &w.err)); /* ... and records */
    must(&w, w.m.ops->tally(w.m.dev, &c.p, &w.err));
    must(&w, w.m.ops->graph_end(w.m.dev, &graph, &w.err));
    must(&w, w.m.ops->graph_run(w.m.dev, graph, &w.err));
    assert_counted(&w, c.p.counts, 2);
    w.m.ops->graph_free(w.m.dev, graph);
    close_world(&w);
}

static void test_graphs_of_a_failed_device(void **state)
{
    world      w = open_world(ON_DEVICE, NULL, "8", NULL);
    kvi_graph *graph = (void *)&w;
    counting   c = make_counting(&w); /* five calls */
    other      o = {.w = &w, .p = (void *)c.copy};
    pthread_t  thread;

    (void)state;
    must(&w, w.m.ops->graph_begin(w.m.dev, &w.err));
    must(&w, w.m.ops->tally(w.m.dev, &c.p, &w.err));
    assert_int_equal(w.m.ops->tally(w.m.dev, &c.p, &w.err), KVCSA_ERR_BACKEND);
    thread = start_other(&o);
    assert_false(o.done);
    assert_int_equal(w.m.ops->graph_end(w.m.dev, &graph, &w.err), KVCSA_ERR_BACKEND);
    assert_null(graph);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(o.st, KVCSA_ERR_BACKEND);
    close_world(&w);
}

static void put_it(void *arg)
{
    const place *at = arg;

    (void)kvi_memory_put(&at->w->m, at->p, "four", 4, NULL);
}

static void get_it(void *arg)
{
    const place *at = arg;
    uint8_t      back[4];

    (void)at->w->m.ops->mem_copy(at->w->m.dev, back, at->p, 4, KVI_COPY_OUT, NULL);
}

static void wait_for_it(void *arg)
{
    const place *at = arg;

    (void)kvi_memory_sync(&at->w->m, NULL);
}

static void ask_for_more(void *arg)
{
    const place *at = arg;
    void        *p;

    (void)kvi_memory_alloc(&at->w->m, 4, &p, NULL);
}

static void free_it(void *arg)
{
    const place *at = arg;

    kvi_memory_free(&at->w->m, at->p, 100);
}

static void record_twice(void *arg)
{
    const place *at = arg;

    (void)at->w->m.ops->graph_begin(at->w->m.dev, NULL);
}

static void test_mistakes_while_a_graph_is_recorded(void **state)
{
    void (*const mistakes[])(void *arg) = {put_it, get_it, wait_for_it, ask_for_more, free_it, record_twice};
    world      w = open_world(ON_DEVICE, NULL, NULL, NULL);
    place      at = {.w = &w, .p = world_room(&w, 100)};
    kvi_graph *graph = NULL;

    (void)state;
    must(&w, w.m.ops->graph_begin(w.m.dev, &w.err));
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        assert_dies(mistakes[i], &at, SIGABRT);
    must(&w, w.m.ops->graph_end(w.m.dev, &graph, &w.err));
    w.m.ops->graph_free(w.m.dev, graph);
    close_world(&w);
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
        cmocka_unit_test(test_graphs_keep_other_threads_out),
        cmocka_unit_test(test_graphs_of_a_failed_call),
        cmocka_unit_test(test_graphs_of_a_failed_device),
        cmocka_unit_test(test_mistakes_while_a_graph_is_recorded),
    };

    seed = prng_seed(argc, argv, 20269);
    return cmocka_run_group_tests(tests, load_apart, NULL);
}
