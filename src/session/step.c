/* One step of several sessions: rows of all that have work go through the network together, chunk
 * by chunk, until the queues are empty or a limit is met. */
#include <time.h>

#include "base/status.h"
#include "session/session_int.h"

/* Rows of one batch: enough to share the reading of weights, little enough for the workspace. One
 * session's chunk may be larger. */
#define BATCH_ROWS 256u

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* One session of the step. */
typedef struct step_slot {
    kvcsa_session    *s;
    kvi_chunk         chunk;
    kvcsa_step_result res;
    uint64_t          start_tokens;
    uint64_t          n_rows; /* computed and committed */
    int               entered;
    int               waits; /* for the next batch of this round */
} step_slot;

typedef struct step_run {
    const kvcsa_step_params *p;
    uint64_t                 start_ns;
    uint64_t                 n_rows; /* over all sessions */
    step_slot               *slots;
    size_t                   n_slots;
    step_slot              **batch;  /* [n_slots] */
    kvi_net_slice           *slices; /* [n_slots] */
    size_t                   n_batch;
    uint64_t                 batch_rows;
} step_run;

static uint64_t rows_left(const step_run *r)
{
    const uint64_t used = r->n_rows + r->batch_rows;

    if (!r->p->max_rows)
        return UINT64_MAX;
    return r->p->max_rows > used ? r->p->max_rows - used : 0;
}

static int out_of_time(const step_run *r)
{
    return !rows_left(r) || (r->p->deadline_ns && now_ns() - r->start_ns >= r->p->deadline_ns);
}

static int is_ready(const step_slot *slot)
{
    return slot->entered && slot->res.error.status == KVCSA_OK && kvi_session_has_work(slot->s);
}

/* Rows of one batch run with the same weights in the same mode. */
static int fits(const step_run *r, const kvcsa_session *s)
{
    const kvcsa_session *first;

    if (r->n_batch == 0)
        return 1;
    first = r->batch[0]->s;
    return s->model == first->model && s->op_flags == first->op_flags && !s->tap && !first->tap &&
           s->cache_only == first->cache_only && r->batch_rows < BATCH_ROWS;
}

/* A request to cancel that came before the session's chunk. */
static int drop_if_asked(step_slot *slot)
{
    if (!atomic_exchange_explicit(&slot->s->cancel, 0, memory_order_relaxed))
        return 0;
    (void)kvi_session_give_up(slot->s, &slot->res.error);
    return 1;
}

/* Next chunk of one session into the batch. */
static void add_to_batch(step_run *r, step_slot *slot)
{
    kvcsa_session *s = slot->s;
    kvi_net_slice *slice = &r->slices[r->n_batch];

    slot->waits = 0;
    if (drop_if_asked(slot))
        return;
    slot->chunk = (kvi_chunk){.s = s, .progress = r->p->progress, .user = r->p->user};
    if (kvi_chunk_plan(&slot->chunk, rows_left(r), slice, &slot->res.error) != KVCSA_OK ||
        slice->n_rows == 0)
        return;
    r->batch[r->n_batch++] = slot;
    r->batch_rows += slice->n_rows;
}

static kvcsa_status create_net(kvcsa_session *s, kvcsa_error *err)
{
    kvi_memory   memory = *kvi_pool_memory(s->pool);
    kvcsa_status st = KVCSA_OK;

    memory.allocator = &s->allocator;
    if (!s->weights)
        st = kvi_pool_weights_acquire(s->pool, s->model, &s->weights, err);
    return st == KVCSA_OK ? kvi_net_create(s->model, s->weights, &memory, &s->net, err) : st;
}

/* Run slices [first, first + n) in the workspace of the first session. */
static kvcsa_status run_slices(step_run *r, size_t first, size_t n, kvcsa_error *err)
{
    kvcsa_session *s = r->batch[first]->s;
    const kvi_exec exec = kvi_session_exec(s);
    kvcsa_status   st;

    if (s->cache_only) {
        for (size_t i = 0; i < n; i++)
            if (r->batch[first + i]->s->fill)
                r->batch[first + i]->s->fill(r->batch[first + i]->s->fill_user,
                                             r->batch[first + i]->s, &r->slices[first + i]);
        return KVCSA_OK;
    }
    if (!s->net && (st = create_net(s, err)) != KVCSA_OK)
        return st;
    kvi_threads_hold(kvi_pool_threads(s->pool)); /* a step is hundreds of short loops */
    st = kvi_net_run(s->net, &exec, r->slices + first, n, err);
    kvi_threads_rest(kvi_pool_threads(s->pool));
    return st;
}

/* Windows of all that went well, in one go. */
static kvcsa_status commit_windows(step_run *r, size_t first, size_t n, kvi_net *net,
                                   kvcsa_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!r->slices[first + i].stopped)
            kvi_chunk_commit_windows(&r->batch[first + i]->chunk, net, r->slices + first, i);
    return kvi_net_commit_all(net, err);
}

static void settle_slices(step_run *r, size_t first, size_t n, kvcsa_status st, kvcsa_error *err)
{
    const kvcsa_session *lead = r->batch[first]->s;
    kvi_net             *net = lead->cache_only ? NULL : lead->net;
    kvcsa_status         windows = KVCSA_OK;

    if (st == KVCSA_OK && net)
        windows = commit_windows(r, first, n, net, err);
    for (size_t i = 0; i < n; i++) {
        step_slot           *slot = r->batch[first + i];
        const kvi_net_slice *slice = &r->slices[first + i];

        if (st == KVCSA_OK && !slice->stopped && windows == KVCSA_OK) {
            kvi_chunk_commit(&slot->chunk, net, r->slices + first, i);
            r->n_rows += slice->n_rows;
            slot->n_rows += slice->replay ? 0 : slice->n_rows;
            continue;
        }
        if (st == KVCSA_OK && !slice->stopped) {
            kvi_chunk_lose_windows(&slot->chunk);
            slot->res.error = *err;
            continue;
        }
        kvi_chunk_undo(&slot->chunk);
        if (st == KVCSA_OK || st == KVCSA_ERR_CANCELLED)
            (void)kvi_session_give_up(slot->s, &slot->res.error);
        else
            slot->res.error = *err;
    }
}

static void run_batch(step_run *r)
{
    kvcsa_error  err = {0};
    kvcsa_status st = KVCSA_OK;

    if (r->n_batch)
        st = run_slices(r, 0, r->n_batch, &err);
    if (st == KVCSA_OK || st == KVCSA_ERR_CANCELLED || r->n_batch == 1) {
        if (r->n_batch)
            settle_slices(r, 0, r->n_batch, st, &err);
    } else { /* what one of them cannot have must not stop the others: one by one */
        for (size_t i = 0; i < r->n_batch; i++) {
            kvi_error_clear(&err);
            st = run_slices(r, i, 1, &err);
            settle_slices(r, i, 1, st, &err);
        }
    }
    r->n_batch = 0;
    r->batch_rows = 0;
}

/* One chunk of every session that has work, in as many batches as it takes. */
static int run_round(step_run *r)
{
    int more = 1;
    int any = 0;

    for (size_t i = 0; i < r->n_slots; i++)
        r->slots[i].waits = is_ready(&r->slots[i]);
    while (more && !out_of_time(r)) {
        more = 0;
        for (size_t i = 0; i < r->n_slots; i++) {
            if (!r->slots[i].waits)
                continue;
            if (rows_left(r) && fits(r, r->slots[i].s))
                add_to_batch(r, &r->slots[i]);
            more |= r->slots[i].waits;
            any = 1;
        }
        run_batch(r);
    }
    return any;
}

/* Results are final once the session is left. */
static void finish(step_slot *slot)
{
    const uint64_t now = slot->entered ? slot->s->now.n_tokens : 0;

    if (!slot->entered)
        return;
    slot->res.n_queued = kvi_session_queued(slot->s);
    /* a cancelled session may be shorter than before */
    slot->res.n_computed =
        now > slot->start_tokens ? kvi_min_size(now - slot->start_tokens, slot->n_rows) : 0;
    kvi_session_leave(slot->s);
}

static void report(step_run *r, kvcsa_step_result *results, kvcsa_status *st, kvcsa_error *err)
{
    for (size_t i = 0; i < r->n_slots; i++) {
        step_slot *slot = &r->slots[i];

        finish(slot);
        if (*st == KVCSA_OK && slot->res.error.status != KVCSA_OK) {
            *st = slot->res.error.status;
            if (err)
                *err = slot->res.error;
        }
        if (results)
            results[i] = slot->res;
    }
}

kvcsa_status kvi_step(kvcsa_pool *pool, kvcsa_session *const *sessions, size_t n_sessions,
                      const kvcsa_step_params *p, kvcsa_step_result *results, kvcsa_error *err)
{
    const kvcsa_allocator *a = kvi_pool_allocator(pool);
    step_run               r = {.p = p, .start_ns = now_ns(), .n_slots = n_sessions};
    kvcsa_status           st = KVCSA_OK;

    if (!(r.slots = kvi_zalloc(a, n_sessions * sizeof *r.slots)) ||
        !(r.batch = kvi_zalloc(a, n_sessions * sizeof *r.batch)) ||
        !(r.slices = kvi_zalloc(a, n_sessions * sizeof *r.slices))) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "results of %zu sessions", n_sessions);
        for (size_t i = 0; i < n_sessions && results; i++) {
            results[i] = (kvcsa_step_result){0};
            kvi_fail(&results[i].error, st, "results of %zu sessions", n_sessions);
        }
        goto done;
    }
    for (size_t i = 0; i < n_sessions; i++) {
        r.slots[i].s = sessions[i];
        r.slots[i].entered =
            kvi_session_enter(sessions[i], &r.slots[i].res.error) == KVCSA_OK;
        r.slots[i].start_tokens = r.slots[i].entered ? sessions[i]->now.n_tokens : 0;
        if (r.slots[i].entered && sessions[i]->set.flags & KVCSA_SESSION_CACHE_ONLY)
            kvi_fail(&r.slots[i].res.error, KVCSA_ERR_UNSUPPORTED,
                     "the host computes this session: kvcsa_chunk_begin");
        else if (r.slots[i].entered)
            kvi_session_begin_work(sessions[i]);
        if (is_ready(&r.slots[i])) /* here, for limits may leave no room for a chunk of it */
            drop_if_asked(&r.slots[i]);
    }
    while (!out_of_time(&r) && run_round(&r))
        ;
    report(&r, results, &st, err);
done:
    kvi_free(a, r.slices, n_sessions * sizeof *r.slices);
    kvi_free(a, r.batch, n_sessions * sizeof *r.batch);
    kvi_free(a, r.slots, n_sessions * sizeof *r.slots);
    return st;
}
