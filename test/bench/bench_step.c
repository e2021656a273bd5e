/* The parts "step" and "call".
 *
 * step: the synthetic network of the released cache geometry (support/long_context.h: 40 layers, small matrices) at 4k, 32k and
 * 128k tokens. Tokens a second of decode and of prefill, with one thread and with two in turn; the time of a decode step beside the
 * sum of its operators; and, for the longest, where the time of a step goes: operator by operator, and outside of them.
 *
 * call: what a call of the API costs that has nothing to do, beside a call of an empty function through a pointer. */
#include "bench_kernels.h"

#include "pool/pool_int.h"
#include "support/long_context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ operators by name */

#define OPERATORS(X)                                                                                                                   \
    X(embed) X(linear) X(norm) X(rope) X(window_write) X(pool_pairs) X(entry_write) X(index_query) X(index_score) X(candidates) X(hide) \
    X(topk) X(attend) X(mix) X(collapse) X(expand) X(route) X(moe) X(engram_gate)
#define NUMBER(name) OP_##name,
enum { OPERATORS(NUMBER) N_OPERATORS };
#undef NUMBER

/* Operators have no user pointer: one at a time, in the thread that steps. */
static struct {
    const kvi_backend_ops *real;
    int64_t                ns[N_OPERATORS];
    uint64_t               calls[N_OPERATORS];
} meter;

#define METER(name)                                                                                                                    \
    static kvcsa_status meter_##name(kvi_device *dev, const kvi_##name##_params *p, kvcsa_error *err)                                  \
    {                                                                                                                                  \
        const int64_t      start = bench_now_ns();                                                                                     \
        const kvcsa_status st = meter.real->name(dev, p, err);                                                                         \
                                                                                                                                       \
        meter.ns[OP_##name] += bench_now_ns() - start;                                                                                 \
        meter.calls[OP_##name]++;                                                                                                      \
        return st;                                                                                                                     \
    }
OPERATORS(METER)

static const char *const operator_names[] = {
#define NAME(name) #name,
    OPERATORS(NAME)
#undef NAME
};

/* In place of the watch of long_context, which measures each operator too. */
static void meter_on(long_world *w, kvi_backend_ops *ops)
{
    memset(&meter, 0, sizeof meter);
    meter.real = w->real;
    *ops = *w->real;
#define SET(name) ops->name = meter_##name;
    OPERATORS(SET)
#undef SET
    w->pool->ops = ops;
}

/* ------------------------------------------------------------------ steps */

enum { N_LENGTHS = 3, DECODE = 20, PREFILL_RUNS = 3, MOST_PREFILL = 128 };
static const uint64_t lengths[N_LENGTHS] = {4096, 32768, 131072};

typedef struct step_case {
    kernel_bench   *b;
    long_world      w[2]; /* of one thread and of two */
    kvi_backend_ops ops;  /* metered */
    kvcsa_session  *s[2];
    uint32_t        n_worlds;
    uint32_t        n;    /* rows of a run */
} step_case;

static int64_t operators_ns(void)
{
    int64_t ns = 0;

    for (int i = 0; i < N_OPERATORS; i++)
        ns += meter.ns[i];
    return ns;
}

/* By the clock that the operators are measured with. */
static int64_t timed_run(step_case *c, uint32_t world, uint32_t n)
{
    const int64_t start = bench_now_ns();

    long_run(&c->w[world], c->s[world], n);
    return bench_now_ns() - start;
}

static int64_t run_one(void *arg)
{
    step_case *c = arg;

    return timed_run(c, 0, c->n);
}

static int64_t run_two(void *arg)
{
    step_case *c = arg;

    return timed_run(c, 1, c->n);
}

static void decode_many(void *arg, uint32_t run, int64_t *ours, int64_t *peers)
{
    const int64_t before = operators_ns();

    (void)run;
    ours[0] = timed_run(arg, 0, 1);
    peers[0] = operators_ns() - before;
}

static int by_time(const void *a, const void *b)
{
    const int64_t x = meter.ns[*(const int *)a];
    const int64_t y = meter.ns[*(const int *)b];

    return (x < y) - (x > y);
}

static void add_profile(kernel_bench *b, uint64_t n, int64_t total_ns, uint32_t n_steps)
{
    int        order[N_OPERATORS];
    bench_row *r;

    for (int i = 0; i < N_OPERATORS; i++)
        order[i] = i;
    qsort(order, N_OPERATORS, sizeof *order, by_time);
    for (int i = 0; i < N_OPERATORS; i++) {
        const int op = order[i];
        char      detail[32];

        if (!meter.calls[op])
            continue;
        snprintf(detail, sizeof detail, "%s, %.4g calls", operator_names[op], (double)meter.calls[op] / n_steps);
        r = kernel_row(b, "step share", n, detail, "%");
        r->min = r->median = 100 * (double)meter.ns[op] / (double)total_ns;
    }
    r = kernel_row(b, "step share", n, "outside the operators", "%");
    r->min = r->median = 100 * (double)(total_ns - operators_ns()) / (double)total_ns;
    r->goal = BENCH_AT_MOST;
    r->limit = 10;
}

/* Steps of one thread beside their operators. */
static void beside_operators(step_case *c, size_t i)
{
    kernel_bench  *b = c->b;
    const uint32_t n_runs = b->quick ? 3 : DECODE;
    bench_row     *r = kernel_row(b, "decode step", lengths[i], "1 thread", "ms");
    int64_t        total_ns = 0;

    r->peer = "its operators";
    r->goal = BENCH_RATIO;
    r->limit = 1.1;
    bench_many(&r, 1, decode_many, c, n_runs);
    bench_scale(r, 1e-6);
    if (i + 1 < N_LENGTHS)
        return;
    memset(meter.ns, 0, sizeof meter.ns);
    memset(meter.calls, 0, sizeof meter.calls);
    for (uint32_t k = 0; k < n_runs; k++)
        total_ns += timed_run(c, 0, 1);
    add_profile(b, lengths[i], total_ns, n_runs);
}

static void rate_row(kernel_bench *b, const char *name, uint64_t n, const char *detail, double ms)
{
    bench_row *r = kernel_row(b, name, n, detail, "tokens/s");

    r->min = r->median = 1e3 / ms;
}

/* Runs of c->n rows on two threads and on one in turn, at about lengths[i]. */
static void beside_one_thread(step_case *c, const char *name, size_t i, double goal, uint32_t n_runs)
{
    kernel_bench *b = c->b;
    bench_row    *r = kernel_row(b, name, lengths[i], c->n_worlds == 2 ? "2 threads" : "1 thread", "ms/token");
    double        one;

    if (c->n_worlds == 2) {
        kernel_bound(r, ROOFLINE_FMA, 0, 0);
        kernel_two_threads(r, goal);
    }
    bench_pair(r, c->n_worlds == 2 ? run_two : run_one, c->n_worlds == 2 ? run_one : NULL, c, b->quick ? 1 : n_runs);
    bench_scale(r, 1e-6 / c->n);
    one = c->n_worlds == 2 ? r->peer_median : r->median;
    rate_row(b, name, lengths[i], "1 thread", one);
    if (c->n_worlds == 2)
        rate_row(b, name, lengths[i], "2 threads", r->median);
}

/* As many rows as a second allows. */
static uint32_t rows_of_a_second(step_case *c)
{
    const uint32_t first = 16;
    const int64_t  ns = timed_run(c, 0, first);
    const uint32_t n = c->b->quick ? first : (uint32_t)(1e9 * first / (double)(ns + 1));

    return n > MOST_PREFILL ? MOST_PREFILL : n < first ? first : n;
}

static void steps_at(step_case *c, size_t i)
{
    const int is_longest = i + 1 == N_LENGTHS;

    for (uint32_t k = 0; k < c->n_worlds; k++) {
        c->s[k] = long_session(&c->w[k], 0);
        long_fill(&c->w[k], c->s[k], lengths[i] - 128);
    }
    beside_operators(c, i);
    c->n = 1;
    beside_one_thread(c, "decode", i, is_longest ? 1.8 : 0, DECODE);
    c->n = rows_of_a_second(c);
    beside_one_thread(c, "prefill", i, 1.8, PREFILL_RUNS);
    for (uint32_t k = 0; k < c->n_worlds; k++)
        kvcsa_session_release(&c->s[k]);
}

void bench_step(kernel_bench *b, const char *folder)
{
    static step_case c;
    char             program[1024];
    char             dir[1024];

    snprintf(program, sizeof program, "%s/bench", folder); /* the checkpoint lies beside it */
    long_checkpoint(program, dir, sizeof dir);
    memset(&c, 0, sizeof c);
    c.b = b;
    c.n_worlds = b->one_thread ? 1 : 2;
    for (uint32_t k = 0; k < c.n_worlds; k++) {
        long_open(&c.w[k], dir, k + 1);
        meter_on(&c.w[k], &c.ops); /* from here on it is not watched, so there may be two */
    }
    for (size_t i = 0; i < N_LENGTHS; i++)
        steps_at(&c, i);
    for (uint32_t k = 0; k < c.n_worlds; k++)
        long_close(&c.w[k]);
}

/* ------------------------------------------------------------------ calls */

enum { CALLS = 100000 };

typedef struct call_case {
    kvcsa_session *session;
    kvcsa_pool    *pool;
    uint64_t (*volatile length)(const kvcsa_session *);
    kvcsa_status (*volatile tokens)(kvcsa_session *, uint64_t, int32_t *, size_t, size_t *, kvcsa_error *);
    uint64_t (*volatile empty)(const kvcsa_session *);
    volatile uint64_t sink;
} call_case;

static uint64_t do_nothing(const kvcsa_session *session)
{
    (void)session;
    return 0;
}

static int64_t call_length(void *arg)
{
    call_case    *c = arg;
    const int64_t start = bench_now_ns();

    for (int i = 0; i < CALLS; i++)
        c->sink = c->length(c->session);
    return bench_now_ns() - start;
}

/* Enters the session and leaves it. */
static int64_t call_tokens(void *arg)
{
    call_case    *c = arg;
    const int64_t start = bench_now_ns();
    size_t        n;
    kvcsa_error   err;

    for (int i = 0; i < CALLS; i++)
        c->sink = (uint64_t)c->tokens(c->session, 0, NULL, 0, &n, &err);
    return bench_now_ns() - start;
}

static int64_t call_empty(void *arg)
{
    call_case    *c = arg;
    const int64_t start = bench_now_ns();

    for (int i = 0; i < CALLS; i++)
        c->sink = c->empty(c->session);
    return bench_now_ns() - start;
}

void bench_calls(kernel_bench *b)
{
    static const struct {
        const char *detail;
        bench_fn    fn;
    } calls[] = {{"session_length", call_length}, {"session_get_tokens, none", call_tokens}};
    call_case         c = {.length = kvcsa_session_length, .tokens = kvcsa_session_get_tokens, .empty = do_nothing};
    kvcsa_model      *model = NULL;
    kvcsa_pool_params pp;
    kvcsa_error       err;

    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.n_threads = 1;
    kernel_ok(kvcsa_model_open("test/data/t1", NULL, &model, &err), &err, "model");
    kernel_ok(kvcsa_pool_create(&pp, &c.pool, &err), &err, "pool");
    kernel_ok(kvcsa_session_create(c.pool, model, NULL, &c.session, &err), &err, "session");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        bench_row *r = kernel_row(b, "empty call", 0, calls[i].detail, "ns");

        r->peer = i == 0 ? "through a pointer" : NULL;
        r->goal = i == 0 ? BENCH_RATIO : BENCH_AT_MOST;
        r->limit = i == 0 ? 10 : 50;
        kernel_measure(b, r, calls[i].fn, r->peer ? call_empty : NULL, &c, CALLS);
    }
    kvcsa_session_release(&c.session);
    kvcsa_pool_release(&c.pool);
    kvcsa_model_release(&model);
}
