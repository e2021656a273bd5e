/* One step of several sessions: chunks in turn until the queues are empty or a limit is met. */
#include <time.h>

#include "base/status.h"
#include "session/session.h"

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* One session of the step. */
typedef struct step_slot {
    kvcsa_step_result res;
    uint64_t          start_tokens;
    int               entered;
} step_slot;

typedef struct step_run {
    const kvcsa_step_params *p;
    uint64_t                 start_ns;
    uint64_t                 n_rows; /* over all sessions */
} step_run;

static int out_of_time(const step_run *r)
{
    return (r->p->max_rows && r->n_rows >= r->p->max_rows) ||
           (r->p->deadline_ns && now_ns() - r->start_ns >= r->p->deadline_ns);
}

/* Next chunk of one session. Returns 1 if it has more to do. */
static int run_one(step_run *r, kvcsa_session *s, kvcsa_error *error)
{
    const kvi_chunk_hooks hooks = {.progress = r->p->progress, .user = r->p->user};
    const uint64_t        max_rows = r->p->max_rows ? r->p->max_rows - r->n_rows : UINT64_MAX;
    uint64_t              n = 0;

    if (!kvi_session_queued(s))
        return 0;
    if (atomic_exchange_explicit(&s->cancel, 0, memory_order_relaxed)) {
        kvi_session_rollback(s);
        kvi_fail(error, KVCSA_ERR_CANCELLED, "cancelled; the session holds %llu tokens",
                 (unsigned long long)s->n_tokens);
        return 0;
    }
    if (kvi_session_run_chunk(s, &hooks, max_rows, &n, error) == KVCSA_ERR_CANCELLED)
        atomic_store_explicit(&s->cancel, 0, memory_order_relaxed);
    r->n_rows += n;
    return error->status == KVCSA_OK && kvi_session_queued(s);
}

/* Results are final once the session is left. */
static void finish(step_slot *slot, kvcsa_session *s)
{
    if (!slot->entered)
        return;
    slot->res.n_queued = kvi_session_queued(s);
    /* a cancelled session may be shorter than before */
    slot->res.n_computed = s->n_tokens > slot->start_tokens ? s->n_tokens - slot->start_tokens : 0;
    kvi_session_leave(s);
}

kvcsa_status kvi_step(kvcsa_pool *pool, kvcsa_session *const *sessions, size_t n_sessions,
                      const kvcsa_step_params *p, kvcsa_step_result *results, kvcsa_error *err)
{
    const kvcsa_allocator *a = kvi_pool_allocator(pool);
    step_slot             *slots = kvi_zalloc(a, n_sessions * sizeof *slots);
    step_run               r = {.p = p, .start_ns = now_ns()};
    kvcsa_status           st = KVCSA_OK;
    int                    more = 1;

    if (!slots)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "results of %zu sessions", n_sessions);
    for (size_t i = 0; i < n_sessions; i++) {
        slots[i].entered = kvi_session_enter(sessions[i], &slots[i].res.error) == KVCSA_OK;
        slots[i].start_tokens = slots[i].entered ? sessions[i]->n_tokens : 0;
    }
    while (more && !out_of_time(&r)) {
        more = 0;
        for (size_t i = 0; i < n_sessions && !(i && out_of_time(&r)); i++)
            if (slots[i].entered && slots[i].res.error.status == KVCSA_OK)
                more |= run_one(&r, sessions[i], &slots[i].res.error);
    }
    for (size_t i = 0; i < n_sessions; i++) {
        finish(&slots[i], sessions[i]);
        if (st == KVCSA_OK && slots[i].res.error.status != KVCSA_OK) {
            st = slots[i].res.error.status;
            if (err)
                *err = slots[i].res.error;
        }
        if (results)
            results[i] = slots[i].res;
    }
    kvi_free(a, slots, n_sessions * sizeof *slots);
    return st;
}
