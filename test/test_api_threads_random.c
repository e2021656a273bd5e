/* Random calls of four threads that take each other's room, prefixes and sessions, in one pool, on
 * the random checkpoint T1. `make check-tsan` runs this under the thread sanitizer. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "support/cold.h"
#include "support/prng.h"

#ifdef __SANITIZE_THREAD__
#define WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif
#ifndef WITH_TSAN
#define WITH_TSAN 0
#endif

static uint64_t seed = 20261201;

enum {
    THREADS = 4,
    OWN = 3,    /* sessions of one thread, at most */
    LISTS = 5,  /* of tokens; some begin alike */
    BOX = 2,    /* sessions that wait for another thread */
    TOGETHER = 3,
    PINS = 2,
    BLOCK = 16, /* tokens: many blocks from little work */
    LENGTH = 110,
    ROUNDS = WITH_TSAN ? 40 : 400 /* of each thread */
};

typedef struct timeline { /* a session that holds the first n tokens of a list */
    kvcsa_session *s;
    const cold    *c;
    uint64_t       n;
} timeline;

typedef struct stress {
    kvcsa_model    *model;
    kvcsa_pool     *pool;
    cold            lists[LISTS];
    uint64_t        budget;
    atomic_int      stop;    /* something is wrong */
    pthread_mutex_t lock;    /* of all below */
    timeline        box[BOX];
    uint32_t        from[BOX];
    size_t          n_box;
    kvcsa_session  *running[THREADS][TOGETHER]; /* inside a step; may be cancelled */
} stress;

typedef struct stress_counts {
    uint64_t steps, full, cancelled, taken, pinned, loaded;
} stress_counts;

typedef struct pin {
    const cold *c;
    size_t      n;
} pin;

typedef struct blob { /* a snapshot in memory */
    uint8_t    *data;
    size_t      n, cap, at;
    const cold *c;
    uint64_t    n_tokens;
} blob;

typedef struct stress_worker {
    stress       *all;
    pthread_t     thread;
    uint32_t      id;
    uint32_t      round;
    const char   *call; /* the last one */
    prng          rng;
    timeline      own[OWN];
    size_t        n_own;
    pin           pins[PINS];
    size_t        n_pins;
    blob          blob;
    stress_counts counts;
    char          wrong[400]; /* the first thing; CMocka's asserts are for its own thread */
} stress_worker;

static void wrong(stress_worker *w, const char *format, ...)
{
    va_list args;
    int     n;

    if (w->wrong[0])
        return;
    n = snprintf(w->wrong, sizeof w->wrong, "thread %u, round %u, %s: ", w->id, w->round, w->call);
    va_start(args, format);
    vsnprintf(w->wrong + n, sizeof w->wrong - (size_t)n, format, args);
    va_end(args);
    atomic_store(&w->all->stop, 1);
}

#define WANT(w, cond)                                                                              \
    do {                                                                                           \
        if (!(cond))                                                                               \
            wrong(w, "line %d: not so: %s", __LINE__, #cond);                                      \
    } while (0)

/* 1 = done; 0 = the one failure that may be here, or the test has failed. */
static int went(stress_worker *w, const char *call, kvcsa_status st, kvcsa_status may,
                const kvcsa_error *err)
{
    w->call = call;
    w->counts.full += st == KVCSA_ERR_FULL;
    if (st != KVCSA_OK && st != may)
        wrong(w, "%s: %s", kvcsa_status_name(st), err->text);
    return st == KVCSA_OK;
}

static uint64_t below(stress_worker *w, uint64_t n)
{
    return prng_below(&w->rng, n);
}

static const cold *any_list(stress_worker *w)
{
    return &w->all->lists[below(w, LISTS)];
}

static timeline *any_own(stress_worker *w)
{
    return &w->own[below(w, w->n_own)];
}

static uint64_t common(const cold *a, const cold *b)
{
    uint64_t n = 0;

    while (n < a->n && n < b->n && a->ids[n] == b->ids[n])
        n++;
    return n;
}

/* Near the end most of the time, now and then anywhere: 0..t->n. */
static uint64_t some_position(stress_worker *w, const timeline *t)
{
    return below(w, 4) ? t->n - cold_min(t->n, below(w, 9)) : below(w, t->n + 1);
}

/* The length, and logits where there are any (must: there are). */
static void check_timeline(stress_worker *w, timeline *t, int must)
{
    kvcsa_session_stats st = {.struct_size = sizeof st};
    float               logits[T1_VOCAB];
    kvcsa_error         err;
    kvcsa_status        status;

    WANT(w, kvcsa_session_length(t->s) == t->n);
    status = kvcsa_session_get_logits(t->s, logits, T1_VOCAB, &err);
    if (went(w, "get_logits", status, must ? KVCSA_OK : KVCSA_ERR_ARG, &err)) {
        if (t->n == 0 || t->n > t->c->n)
            wrong(w, "logits of %llu tokens", (unsigned long long)t->n);
        else if (memcmp(logits, t->c->rows.data + (t->n - 1) * T1_VOCAB, sizeof logits) != 0)
            wrong(w, "logits of %llu tokens are not a cold run's", (unsigned long long)t->n);
        return;
    }
    (void)went(w, "get_stats", kvcsa_session_get_stats(t->s, &st, &err), KVCSA_OK, &err);
    WANT(w, t->n == 0 || st.n_replay > 0);
}

/* ------------------------------------------------------------------ sessions come and go */

static void drop(stress_worker *w, timeline *t)
{
    kvcsa_session_release(&t->s);
    *t = w->own[--w->n_own];
}

/* Room for one more. */
static timeline *new_own(stress_worker *w)
{
    if (w->n_own == OWN)
        drop(w, any_own(w));
    return &w->own[w->n_own++];
}

static void create(stress_worker *w)
{
    static const uint32_t chunks[] = {0, 7, 40};
    kvcsa_session_params  p = session_defaults();
    timeline              t = {.c = any_list(w)};
    kvcsa_error           err;

    p.chunk_tokens = chunks[below(w, 3)];
    p.flags = below(w, 4) ? 0 : KVCSA_SESSION_PRIVATE;
    p.window_slack_tokens = below(w, 2) ? 8 : 0;
    p.window_store_tokens = below(w, 2) ? BLOCK : 0;
    if (went(w, "create", kvcsa_session_create(w->all->pool, w->all->model, &p, &t.s, &err),
             KVCSA_OK, &err))
        *new_own(w) = t;
}

/* A fork is for another thread, if there is room in the box. */
static void fork_and_hand(stress_worker *w)
{
    stress         *all = w->all;
    const timeline *t = any_own(w);
    timeline        fork = {.c = t->c, .n = some_position(w, t)};
    kvcsa_error     err;

    if (!went(w, "fork", kvcsa_session_fork(t->s, fork.n, NULL, &fork.s, &err), KVCSA_OK, &err))
        return;
    check_timeline(w, &fork, 0);
    pthread_mutex_lock(&all->lock);
    if (all->n_box < BOX) {
        all->from[all->n_box] = w->id;
        all->box[all->n_box++] = fork;
        fork.s = NULL;
    }
    pthread_mutex_unlock(&all->lock);
    if (fork.s)
        *new_own(w) = fork;
}

static void take(stress_worker *w)
{
    stress  *all = w->all;
    timeline t = {0};

    pthread_mutex_lock(&all->lock);
    for (size_t i = 0; i < all->n_box && !t.s; i++) {
        if (all->from[i] == w->id)
            continue;
        t = all->box[i];
        all->box[i] = all->box[--all->n_box];
        all->from[i] = all->from[all->n_box];
    }
    pthread_mutex_unlock(&all->lock);
    if (!t.s)
        return;
    w->counts.taken++;
    check_timeline(w, &t, 0);
    if (below(w, 4))
        *new_own(w) = t;
    else
        kvcsa_session_release(&t.s);
}

/* ------------------------------------------------------------------ steps */

typedef struct job { /* what one session of a step is to become */
    stress_worker *w;
    timeline      *t;
    uint64_t       to;
    uint64_t       next; /* row of logits expected next */
    uint32_t       logits;
} job;

static void take_row(void *user, uint64_t position, const float *logits, uint32_t n_vocab)
{
    job *j = user;

    WANT(j->w, position == j->next && n_vocab == T1_VOCAB && position < j->t->c->n);
    if (!j->w->wrong[0] && memcmp(logits, j->t->c->rows.data + position * T1_VOCAB,
                                  n_vocab * sizeof *logits) != 0)
        wrong(j->w, "row %llu is not a cold run's", (unsigned long long)position);
    j->next = position + 1;
}

/* The sessions that others may cancel from now on; n = 0: none. */
static void show_running(stress_worker *w, kvcsa_session *const *s, size_t n)
{
    pthread_mutex_lock(&w->all->lock);
    for (size_t i = 0; i < TOGETHER; i++)
        w->all->running[w->id][i] = i < n ? s[i] : NULL;
    pthread_mutex_unlock(&w->all->lock);
}

static void settle(stress_worker *w, job *j, const kvcsa_step_result *res)
{
    timeline    *t = j->t;
    kvcsa_status may = KVCSA_ERR_CANCELLED;

    /* without a queue nothing has been reserved for what is to be run again */
    if (res->error.status == KVCSA_ERR_FULL && j->to == t->n)
        may = KVCSA_ERR_FULL;
    w->counts.cancelled += res->error.status == KVCSA_ERR_CANCELLED;
    if (!went(w, "step", res->error.status, may, &res->error)) {
        check_timeline(w, t, 0);
        return;
    }
    WANT(w, res->n_queued == 0);
    WANT(w, j->logits != KVCSA_LOGITS_ALL || j->next == j->to);
    t->n = j->to;
    check_timeline(w, t, t->n > 0);
}

static void step(stress_worker *w, job *jobs, size_t n)
{
    kvcsa_session    *s[TOGETHER];
    kvcsa_step_result res[TOGETHER];
    kvcsa_status      st;

    for (size_t i = 0; i < n; i++)
        s[i] = jobs[i].t->s;
    show_running(w, s, n);
    st = kvcsa_pool_step(w->all->pool, s, n, NULL, res, NULL);
    show_running(w, NULL, 0);
    w->counts.steps++;
    for (size_t i = 0; i < n; i++) {
        st = st == res[i].error.status ? KVCSA_OK : st;
        settle(w, &jobs[i], &res[i]);
    }
    WANT(w, st == KVCSA_OK); /* it was that of a session */
}

static void make_room(stress_worker *w, timeline *t)
{
    kvcsa_error    err;
    const uint64_t n = below(w, 2) ? t->n / 2 : 0;

    if (n) {
        if (went(w, "rewind", kvcsa_session_rewind(t->s, n, &err), KVCSA_OK, &err))
            t->n = n;
    } else if (went(w, "erase", kvcsa_session_erase(t->s, 0, &err), KVCSA_OK, &err)) {
        t->n = 0;
    }
    check_timeline(w, t, 0);
}

static kvcsa_append_params ask_for(stress_worker *w, job *j)
{
    kvcsa_append_params p;

    kvcsa_append_params_default(&p, sizeof p);
    if (below(w, 3) == 0) {
        p.logits = j->logits = KVCSA_LOGITS_ALL;
        p.on_logits = take_row;
        p.user = j;
    }
    return p;
}

static void queue(stress_worker *w, job *j)
{
    timeline           *t = j->t;
    const uint64_t      n = cold_min(t->c->n - t->n, 1 + below(w, below(w, 4) ? 12 : 90));
    kvcsa_append_params p = ask_for(w, j);
    kvcsa_error         err;

    if (!n || !went(w, "append",
                    kvcsa_session_append(t->s, t->c->ids + t->n, n, &p, &j->to, &err),
                    KVCSA_ERR_FULL, &err)) {
        if (!n || below(w, 2))
            make_room(w, t);
        j->to = j->next = t->n;
    }
    WANT(w, !j->to || j->to == t->n || j->to == t->n + n);
}

static void extend(stress_worker *w)
{
    const size_t n = cold_min(w->n_own, 1 + below(w, TOGETHER));
    const size_t first = below(w, w->n_own);
    job          jobs[TOGETHER];

    for (size_t i = 0; i < n; i++) {
        jobs[i] = (job){.w = w, .t = &w->own[(first + i) % w->n_own]};
        jobs[i].next = jobs[i].t->n;
        queue(w, &jobs[i]);
    }
    step(w, jobs, n);
}

static void sync_and_step(stress_worker *w)
{
    timeline           *t = any_own(w);
    const cold         *c = any_list(w);
    job                 j = {.w = w, .t = t, .to = 1 + below(w, c->n)};
    const uint64_t      kept = cold_min(cold_min(common(t->c, c), t->n), j.to);
    kvcsa_append_params p = ask_for(w, &j);
    kvcsa_reuse         r = {.struct_size = sizeof r};
    kvcsa_error         err;

    if (!went(w, "sync", kvcsa_session_sync(t->s, c->ids, j.to, &p, &r, &err), KVCSA_ERR_FULL,
              &err)) {
        check_timeline(w, t, 0); /* as before */
        return;
    }
    WANT(w, r.n_kept == kept && r.n_kept + r.n_adopted + r.n_compute == j.to);
    t->c = c;
    t->n = j.next = kept;
    step(w, &j, 1);
}

static void rewind_some(stress_worker *w)
{
    timeline      *t = any_own(w);
    const uint64_t n = some_position(w, t);
    const cold    *c = any_list(w);
    kvcsa_error    err;

    if (!went(w, "rewind", kvcsa_session_rewind(t->s, n, &err), KVCSA_OK, &err))
        return;
    t->n = n;
    if (n <= common(t->c, c))
        t->c = c;
    check_timeline(w, t, 0);
}

/* Half the time with a queue that has found a prefix and taken room. */
static void erase(stress_worker *w)
{
    timeline   *t = any_own(w);
    kvcsa_error err;

    if (below(w, 2) && t->n < t->c->n)
        (void)went(w, "append",
                   kvcsa_session_append(t->s, t->c->ids + t->n, t->c->n - t->n, NULL, NULL, &err),
                   KVCSA_ERR_FULL, &err);
    (void)went(w, "erase",
               kvcsa_session_erase(t->s, below(w, 2) ? KVCSA_ERASE_SECURE : 0, &err), KVCSA_OK,
               &err);
    *t = (timeline){t->s, any_list(w), 0};
    check_timeline(w, t, 0);
}

static void cancel(stress_worker *w)
{
    stress        *all = w->all;
    const uint32_t whose = (w->id + 1 + (uint32_t)below(w, THREADS - 1)) % THREADS;
    kvcsa_session *s;

    pthread_mutex_lock(&all->lock); /* its thread waits here before it does anything else to it */
    s = all->running[whose][below(w, TOGETHER)];
    if (s)
        kvcsa_session_cancel(s);
    pthread_mutex_unlock(&all->lock);
}

/* ------------------------------------------------------------------ prefixes */

static void publish(stress_worker *w)
{
    const timeline *t = any_own(w);
    uint64_t        n = 0;
    kvcsa_error     err;

    (void)went(w, "publish", kvcsa_prefix_publish(t->s, &n, &err), KVCSA_OK, &err);
    WANT(w, n <= t->n && n % BLOCK == 0);
}

static void match(stress_worker *w)
{
    const cold    *c = any_list(w);
    const uint64_t n = below(w, c->n + 1);
    size_t         known = 0;
    kvcsa_error    err;

    (void)went(w, "match",
               kvcsa_prefix_match(w->all->pool, w->all->model, 0, c->ids, n, &known, &err),
               KVCSA_OK, &err);
    WANT(w, known <= n);
}

static void unpin(stress_worker *w)
{
    const pin   p = w->pins[--w->n_pins];
    kvcsa_error err;

    /* others may have taken it out of the tree, and the pin with it */
    (void)went(w, "unpin",
               kvcsa_prefix_unpin(w->all->pool, w->all->model, 0, p.c->ids, p.n, &err),
               KVCSA_ERR_ARG, &err);
}

static void pin_or_unpin(stress_worker *w)
{
    pin         p = {.c = any_list(w)};
    kvcsa_error err;

    if (w->n_pins == PINS || (w->n_pins && below(w, 2))) {
        unpin(w);
        return;
    }
    (void)went(w, "pin",
               kvcsa_prefix_pin(w->all->pool, w->all->model, 0, p.c->ids, p.c->n, &p.n, &err),
               KVCSA_OK, &err);
    WANT(w, p.n % BLOCK == 0);
    if (p.n)
        w->pins[w->n_pins++] = p;
    w->counts.pinned += p.n > 0;
}

static void forget(stress_worker *w)
{
    const cold  *c = any_list(w);
    kvcsa_pool  *pool = w->all->pool;
    uint64_t     freed = 0;
    kvcsa_error  err;
    kvcsa_status st;

    if (below(w, 8) == 0)
        st = kvcsa_prefix_forget(pool, NULL, 0, NULL, 0, &freed, &err);
    else
        st = kvcsa_prefix_forget(pool, w->all->model, 0, c->ids, below(w, c->n + 1), &freed,
                                 &err);
    (void)went(w, "forget", st, KVCSA_OK, &err);
}

/* ------------------------------------------------------------------ the pool, snapshots */

static void look(stress_worker *w)
{
    stress          *all = w->all;
    kvcsa_pool_stats st = {.struct_size = sizeof st};
    kvcsa_error      err;

    (void)went(w, "check", kvcsa_pool_check(all->pool, &err), KVCSA_OK, &err);
    (void)went(w, "stats", kvcsa_pool_get_stats(all->pool, &st, &err), KVCSA_OK, &err);
    WANT(w, st.used_bytes + st.reserved_bytes <= st.budget_bytes);
    WANT(w, st.evictable_bytes <= st.used_bytes && st.n_released <= st.n_acquired);
}

static void trim(stress_worker *w)
{
    kvcsa_error err;

    (void)went(w, "trim", kvcsa_pool_trim(w->all->pool, below(w, w->all->budget), NULL, &err),
               KVCSA_OK, &err);
}

static void resize(stress_worker *w)
{
    const uint64_t budget = w->all->budget;
    kvcsa_error    err;

    (void)went(w, "resize",
               kvcsa_pool_resize(w->all->pool, budget - below(w, budget / 4), &err),
               KVCSA_ERR_FULL, &err);
    (void)went(w, "resize", kvcsa_pool_resize(w->all->pool, budget, &err), KVCSA_OK, &err);
}

static int32_t blob_write(void *user, const void *data, size_t n)
{
    blob *b = user;

    if (n > b->cap - b->n)
        return 1;
    memcpy(b->data + b->n, data, n);
    b->n += n;
    return 0;
}

static int64_t blob_read(void *user, void *data, size_t n)
{
    blob *b = user;

    n = cold_min(n, b->n - b->at);
    memcpy(data, b->data + b->at, n);
    b->at += n;
    return (int64_t)n;
}

static void save(stress_worker *w)
{
    const timeline       *t = any_own(w);
    const kvcsa_writer    writer = {blob_write, &w->blob};
    kvcsa_snapshot_params p;
    uint64_t              size = 0;
    kvcsa_error           err;

    kvcsa_snapshot_params_default(&p, sizeof p);
    p.flags = (uint32_t)below(w, 4); /* WINDOW, LOGITS */
    (void)went(w, "size", kvcsa_snapshot_size(t->s, &p, &size, &err), KVCSA_OK, &err);
    free(w->blob.data);
    w->blob = (blob){.data = malloc(size), .cap = size, .c = t->c, .n_tokens = t->n};
    (void)went(w, "write", kvcsa_snapshot_write(t->s, &writer, &p, NULL, &err), KVCSA_OK, &err);
    WANT(w, w->blob.n == size);
}

static void load(stress_worker *w)
{
    timeline          *t = any_own(w);
    const kvcsa_reader reader = {blob_read, &w->blob};
    kvcsa_error        err;

    if (!w->blob.data)
        return;
    w->blob.at = 0;
    if (went(w, "read", kvcsa_snapshot_read(t->s, &reader, NULL, NULL, &err), KVCSA_ERR_FULL,
             &err)) {
        *t = (timeline){t->s, w->blob.c, w->blob.n_tokens};
        w->counts.loaded++;
    }
    check_timeline(w, t, 0);
}

/* ------------------------------------------------------------------ the threads */

static void *stress_work(void *arg)
{
    /* some more often than others */
    static void (*const calls[])(stress_worker *) = {
        extend, extend, extend, extend, extend,        extend,        extend,       extend,
        extend, cancel, cancel, cancel, fork_and_hand, fork_and_hand, create,       take,
        take,   save,   load,   look,   sync_and_step, sync_and_step, pin_or_unpin, rewind_some,
        erase,  match,  forget, trim,   resize,        publish};
    stress_worker *w = arg;

    for (w->round = 0; w->round < ROUNDS && !atomic_load(&w->all->stop); w->round++) {
        if (!w->n_own)
            create(w);
        if (w->n_own)
            calls[below(w, sizeof calls / sizeof *calls)](w);
    }
    while (w->n_pins)
        unpin(w);
    if (w->n_own && w->id % 2) /* the others' are left to the main thread */
        while (w->n_own)
            drop(w, &w->own[0]);
    free(w->blob.data);
    return NULL;
}

static void stress_set_up(stress *all)
{
    kvcsa_cost  cost = {.struct_size = sizeof cost};
    kvcsa_error err;

    *all = (stress){0};
    all->model = host_model_in_blocks(BLOCK);
    assert_ok(kvcsa_model_cost(all->model, LENGTH, &cost, &err));
    all->budget = 30 * cost.block_bytes + 14 * (cost.const_bytes + cost.pending_bytes);
    all->pool = host_pool(2, all->budget);
    all->lists[0] = cold_run(all->model, LENGTH, seed);
    all->lists[1] = cold_branch(&all->lists[0], 71, LENGTH - 71, seed + 1);
    all->lists[2] = cold_branch(&all->lists[0], 33, 50, seed + 2);
    all->lists[3] = cold_branch(&all->lists[0], 0, LENGTH, seed + 3);
    all->lists[4] = cold_branch(&all->lists[3], 64, 40, seed + 4);
    pthread_mutex_init(&all->lock, NULL);
}

static void stress_tear_down(stress *all)
{
    for (size_t i = 0; i < all->n_box; i++)
        kvcsa_session_release(&all->box[i].s);
    for (size_t i = 0; i < LISTS; i++)
        cold_free(&all->lists[i]);
    pthread_mutex_destroy(&all->lock);
    kvcsa_model_release(&all->model);
    close_pool(all->pool);
}

static void add_counts(stress_counts *sum, const stress_counts *c)
{
    sum->steps += c->steps;
    sum->full += c->full;
    sum->cancelled += c->cancelled;
    sum->taken += c->taken;
    sum->pinned += c->pinned;
    sum->loaded += c->loaded;
}

/* Threads that do all kinds of things to sessions that share prefixes and have too little room: the
 * bits are those of a cold run, nothing fails but for the room, and all of it comes back. */
static void test_stress_threads_on_one_pool(void **state)
{
    static stress        all;
    static stress_worker w[THREADS];
    stress_counts        n = {0};
    kvcsa_pool_stats     st;

    (void)state;
    stress_set_up(&all);
    for (uint32_t k = 0; k < THREADS; k++) {
        w[k] = (stress_worker){.all = &all, .id = k};
        prng_init(&w[k].rng, seed + k);
        assert_int_equal(pthread_create(&w[k].thread, NULL, stress_work, &w[k]), 0);
    }
    for (uint32_t k = 0; k < THREADS; k++)
        pthread_join(w[k].thread, NULL);
    for (uint32_t k = 0; k < THREADS; k++) {
        if (w[k].wrong[0])
            fail_msg("%s", w[k].wrong);
        add_counts(&n, &w[k].counts);
        while (w[k].n_own)
            drop(&w[k], &w[k].own[0]);
    }
    st = pool_figures(all.pool);
    print_message("%llu steps, %llu without room, %llu cancelled, %llu sessions handed over, "
                  "%llu loaded, %llu pins, %llu blocks evicted, %llu tokens adopted\n",
                  (unsigned long long)n.steps, (unsigned long long)n.full,
                  (unsigned long long)n.cancelled, (unsigned long long)n.taken,
                  (unsigned long long)n.loaded, (unsigned long long)n.pinned,
                  (unsigned long long)st.n_evicted_blocks, (unsigned long long)st.n_hit_tokens);
    assert_true(n.steps > 0 && n.full > 0);
    if (!WITH_TSAN) { /* which makes fewer rounds */
        assert_true(n.cancelled > 0 && n.taken > 0 && n.loaded > 0 && n.pinned > 0);
        assert_true(st.n_evicted_blocks > 0 && st.n_hit_tokens > 0);
    }
    stress_tear_down(&all);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stress_threads_on_one_pool),
    };

    seed = prng_seed(argc, argv, seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
