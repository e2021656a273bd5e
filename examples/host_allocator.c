/* Every byte through the host's allocator: what is held, what it was at most, and what happens when
 * the host says no.
 *
 *   cc host_allocator.c $(pkg-config --cflags --libs kvcsa) -o host_allocator
 *   ./host_allocator examples/models/tiny
 *
 * The hook is told size and alignment when memory is taken and again when it is given back, so an
 * arena or a counter needs no header in front of each block. It may be called from any thread.
 *
 * An allocator that returns NULL is no catastrophe: the call answers KVCSA_ERR_NOMEM, its objects
 * are as before, and the same call may be made again when there is room. Here the limit is raised
 * bit by bit until the whole job fits; and once more it falls in the middle of an answer. */
#include <kvcsa.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TOKENS 24
#define N_LIMITS 12 /* a third of them below what the model takes, the others above */

static const char prompt[] = "In the beginning the captain stood upon the deck, and he said unto ";

/* ------------------------------------------------------------------ the host's allocator */

typedef struct arena {
    atomic_llong held, peak, n_calls, n_refused;
    atomic_llong limit; /* bytes; negative = none */
    atomic_llong n_wrong; /* given back with another size than it was taken with */
} arena;

typedef struct tag { /* in front of each block, only to find out whether the sizes agree */
    void  *start;
    size_t size, align;
} tag;

static void raise_peak(arena *a, long long now)
{
    long long old = atomic_load(&a->peak);

    while (now > old && !atomic_compare_exchange_weak(&a->peak, &old, now))
        ;
}

static void *host_alloc(void *user, size_t size, size_t align)
{
    arena          *a = user;
    const long long limit = atomic_load(&a->limit);
    const long long now = atomic_fetch_add(&a->held, (long long)size) + (long long)size;
    unsigned char  *start = NULL;
    uintptr_t       at;
    tag             t = {.size = size, .align = align};

    atomic_fetch_add(&a->n_calls, 1);
    if ((limit < 0 || now <= limit) && size < SIZE_MAX - align - sizeof t)
        start = malloc(size + align + sizeof t);
    if (!start) {
        atomic_fetch_sub(&a->held, (long long)size);
        atomic_fetch_add(&a->n_refused, 1);
        return NULL;
    }
    raise_peak(a, now);
    at = (uintptr_t)start + sizeof t;
    at += (align - at % align) % align;
    t.start = start;
    memcpy((unsigned char *)at - sizeof t, &t, sizeof t);
    return (void *)at;
}

static void host_free(void *user, void *ptr, size_t size, size_t align)
{
    arena *a = user;
    tag    t;

    if (!ptr)
        return;
    memcpy(&t, (unsigned char *)ptr - sizeof t, sizeof t);
    if (t.size != size || t.align != align)
        atomic_fetch_add(&a->n_wrong, 1);
    atomic_fetch_sub(&a->held, (long long)size);
    free(t.start);
}

/* ------------------------------------------------------------------ the job */

typedef struct job {
    kvcsa_allocator hook;
    arena          *arena;
    kvcsa_model    *model;
    kvcsa_pool     *pool;
    kvcsa_session  *session;
    const char     *doing; /* what failed, if something did */
    long long       model_bytes; /* held when the model was open */
    int             show;
    int32_t         answer[N_TOKENS];
    int             n_answer;
} job;

static void show(const job *j, const char *what)
{
    if (j->show)
        printf("%-34s %12lld bytes %8lld calls\n", what, (long long)atomic_load(&j->arena->held),
               (long long)atomic_load(&j->arena->n_calls));
}

static void release(job *j)
{
    kvcsa_session_release(&j->session);
    kvcsa_pool_release(&j->pool);
    kvcsa_model_release(&j->model);
}

/* One token of the answer. What of it was done before a failure stays done: a token that is queued
 * is not asked for again. */
static kvcsa_status next_token(job *j, kvcsa_error *err)
{
    int32_t      token;
    kvcsa_status st;

    j->doing = "step";
    if ((st = kvcsa_pool_step(j->pool, &j->session, 1, NULL, NULL, err)) != KVCSA_OK)
        return st;
    j->doing = "sample";
    if ((st = kvcsa_session_sample(j->session, NULL, &token, err)) != KVCSA_OK)
        return st;
    j->doing = "append";
    if ((st = kvcsa_session_append(j->session, &token, 1, NULL, NULL, err)) == KVCSA_OK)
        j->answer[j->n_answer++] = token;
    return st;
}

static kvcsa_status open_all(job *j, const char *path, kvcsa_error *err)
{
    kvcsa_model_params mp;
    kvcsa_pool_params  pp;
    kvcsa_status       st;

    kvcsa_model_params_default(&mp, sizeof mp);
    mp.allocator = &j->hook;
    mp.flags = KVCSA_MODEL_READ; /* the weights too; mapped files are nobody's memory */
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &j->hook;
    pp.backend = KVCSA_BACKEND_CPU;
    j->doing = "open the model";
    if ((st = kvcsa_model_open(path, &mp, &j->model, err)) != KVCSA_OK)
        return st;
    j->model_bytes = atomic_load(&j->arena->held);
    show(j, "model, weights read");
    j->doing = "create the pool";
    if ((st = kvcsa_pool_create(&pp, &j->pool, err)) != KVCSA_OK)
        return st;
    show(j, "pool");
    j->doing = "create the session";
    if ((st = kvcsa_session_create(j->pool, j->model, NULL, &j->session, err)) != KVCSA_OK)
        return st;
    show(j, "session, empty");
    return KVCSA_OK;
}

static kvcsa_status queue_prompt(job *j, kvcsa_error *err)
{
    int32_t      ids[sizeof prompt];
    size_t       n = 0;
    kvcsa_status st;

    j->doing = "tokenize";
    if ((st = kvcsa_model_tokenize(j->model, prompt, sizeof prompt - 1, 0, ids, sizeof prompt, &n,
                                   err)) != KVCSA_OK)
        return st;
    j->doing = "append";
    return kvcsa_session_append(j->session, ids, n, NULL, NULL, err);
}

/* All of it; where it fails, what there is stays for the caller to look at and to release. */
static kvcsa_status run(job *j, const char *path, kvcsa_error *err)
{
    kvcsa_status st;

    if ((st = open_all(j, path, err)) != KVCSA_OK || (st = queue_prompt(j, err)) != KVCSA_OK)
        return st;
    show(j, "prompt queued");
    while (j->n_answer < N_TOKENS && (st = next_token(j, err)) == KVCSA_OK)
        if (j->n_answer == 1)
            show(j, "prompt computed");
    if (st != KVCSA_OK)
        return st;
    show(j, "answer computed");
    j->doing = "check the pool";
    return kvcsa_pool_check(j->pool, err);
}

static job new_job(arena *a, long long limit)
{
    atomic_store(&a->limit, limit);
    atomic_store(&a->n_calls, 0);
    return (job){.hook = {host_alloc, host_free, a}, .arena = a};
}

/* ------------------------------------------------------------------ what is shown */

static kvcsa_status complain(kvcsa_error *err, const char *what)
{
    snprintf(err->text, sizeof err->text, "%s", what);
    return err->status = KVCSA_ERR_INTERNAL;
}

/* A limit from nothing to enough: each run either fails with ERR_NOMEM and leaves nothing behind,
 * or says what it says without a limit. */
static kvcsa_status try_limits(arena *a, const char *path, const job *want, long long peak,
                               kvcsa_error *err)
{
    const int n = N_LIMITS, low = n / 3;
    int       n_refused = 0;

    for (int i = 0; i <= n; i++) {
        const long long limit =
            i <= low ? want->model_bytes * i / low
                     : want->model_bytes + (peak - want->model_bytes) * (i - low) / (n - low);
        job             j = new_job(a, limit);
        kvcsa_error     why = {.status = KVCSA_OK};
        kvcsa_status    st = run(&j, path, &why);

        if (st == KVCSA_OK)
            printf("limit %9lld bytes: the whole answer\n", limit);
        else
            printf("limit %9lld bytes: \"%s\" answers %s: %s\n", limit, j.doing,
                   kvcsa_status_name(st), why.text);
        release(&j);
        n_refused += st == KVCSA_ERR_NOMEM;
        if (st != KVCSA_OK && st != KVCSA_ERR_NOMEM)
            return complain(err, "a refusal of memory became another error");
        if (st == KVCSA_OK && memcmp(j.answer, want->answer, sizeof j.answer) != 0)
            return complain(err, "a limit changes the answer");
        if (atomic_load(&a->held) != 0)
            return complain(err, "a failed call keeps memory");
    }
    return n_refused > 0 ? KVCSA_OK : complain(err, "no limit was felt");
}

/* No memory at all from the middle of an answer on: the first call that needs some fails and
 * changes nothing; when there is memory again, the same call goes on. */
static kvcsa_status try_in_the_middle(arena *a, const char *path, const job *want, kvcsa_error *err)
{
    job          j = new_job(a, -1);
    kvcsa_error  why = {.status = KVCSA_OK};
    kvcsa_status st;
    uint64_t     length;

    if ((st = open_all(&j, path, err)) != KVCSA_OK || (st = queue_prompt(&j, err)) != KVCSA_OK)
        goto done;
    while (j.n_answer < N_TOKENS / 2)
        if ((st = next_token(&j, err)) != KVCSA_OK)
            goto done;
    atomic_store(&a->limit, 0);
    while (j.n_answer < N_TOKENS && (st = next_token(&j, &why)) == KVCSA_OK)
        ;
    length = kvcsa_session_length(j.session);
    printf("no memory after %d tokens: \"%s\" answers %s; the session holds %llu\n",
           j.n_answer, j.doing, kvcsa_status_name(st), (unsigned long long)length);
    if (st != KVCSA_ERR_NOMEM) {
        st = complain(err, "a session that may take nothing works on");
        goto done;
    }
    atomic_store(&a->limit, -1); /* and the same call once more */
    while (j.n_answer < N_TOKENS && (st = next_token(&j, err)) == KVCSA_OK)
        ;
    printf("memory again: the answer has %d tokens\n", j.n_answer);
    if (st == KVCSA_OK && memcmp(j.answer, want->answer, sizeof j.answer) != 0)
        st = complain(err, "the answer is another one after a failure");
    if (st == KVCSA_OK)
        st = kvcsa_pool_check(j.pool, err);
done:
    release(&j);
    return st;
}

static kvcsa_status print_answer(const job *j, kvcsa_error *err)
{
    char         text[N_TOKENS * 64];
    size_t       n = 0;
    kvcsa_status st = kvcsa_model_detokenize(j->model, j->answer, N_TOKENS, text, sizeof text, &n,
                                             err);

    if (st == KVCSA_OK)
        printf("\n%s%.*s\n\n", prompt, (int)(n < sizeof text ? n : sizeof text), text);
    return st;
}

int main(int argc, char **argv)
{
    static arena a;
    kvcsa_error  err = {.status = KVCSA_OK};
    long long    peak;
    job          j;

    if (argc != 2) {
        fprintf(stderr, "usage: host_allocator MODEL\n");
        return 2;
    }
    j = new_job(&a, -1);
    j.show = 1;
    if (run(&j, argv[1], &err) == KVCSA_OK)
        print_answer(&j, &err);
    release(&j);
    peak = atomic_load(&a.peak);
    printf("%-34s %12lld bytes\n%-34s %12lld bytes\n\n", "at the peak", peak, "after release",
           (long long)atomic_load(&a.held));
    if (err.status == KVCSA_OK && try_limits(&a, argv[1], &j, peak, &err) == KVCSA_OK)
        try_in_the_middle(&a, argv[1], &j, &err);
    if (err.status == KVCSA_OK && (atomic_load(&a.held) != 0 || atomic_load(&a.n_wrong) != 0))
        complain(&err, "memory was not given back, or with another size");
    if (err.status != KVCSA_OK) {
        fprintf(stderr, "host_allocator: %s (%s)\n", err.text, kvcsa_status_name(err.status));
        return 1;
    }
    printf("\n%lld allocations were refused; %lld bytes are left.\n",
           (long long)atomic_load(&a.n_refused), (long long)atomic_load(&a.held));
    return 0;
}
