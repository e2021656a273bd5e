/* A device for tests, built as the CUDA plug-in is: the CPU's operators, its numbers bit for bit, but with what makes a device
 * one. Its memory faults under the host's hands, and nothing that is enqueued happens before somebody waits, so that whoever
 * forgets either dies or reads APART_JUNK. What the host does wrong ends the program with a line on stderr.
 *
 * Environment, read when a device is opened:
 *   APART_BYTES       its memory, 1 GiB unless set; more is ERR_NOMEM
 *   APART_FAIL_AFTER  n: the n-th call that can fail and all behind it answer ERR_BACKEND
 *   APART_FAIL_LATE   1: if that call enqueues something it seems to work, and who waits next is told
 *   APART_FAIL_RECORD n: the n-th call that is recorded answers ERR_NOMEM, as one without scratch does; the device stays good
 *
 * While a graph is recorded calls of other threads wait. The recording thread may call operators, fills, copies within, what ends it
 * and what frees a graph; all else dies. What was enqueued is counted: apart_counts.h.
 *
 * While the device works nothing of it is hidden from other threads of the host: what they do wrong then goes unnoticed. */
#include "apart/apart_check.h"
#include "apart/apart_counts.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_JOBS = 256 };                    /* of the queue: then it runs, as a device would by itself */
enum { MAX_HELD_BYTES = 64 * 1024 * 1024 }; /* likewise */
enum { JOB_BYTES = APART_N_OPERATORS, JOB_FILL, JOB_GRAPH, JOB_FAIL };

typedef struct job {
    struct job  *next;
    uint32_t     kind;   /* APART_*, JOB_* */
    apart_params p;      /* of an operator */
    kvi_matrix   matrix; /* what the host may change behind the call */
    kvi_kv_owner owner;
    kvi_expert   shared;
    kvi_expert  *routed;
    uint8_t     *bytes; /* COPY_IN: taken at the call, NULL = pinned */
    void        *to;
    const void  *from;
    size_t       size;
    uint32_t     way;
    int          byte;
    kvi_graph   *graph; /* borrowed */
} job;

typedef struct jobs {
    job   *first;
    job  **end;
    size_t n;
    size_t held_bytes;
} jobs;

typedef struct arrival { /* bytes that are on their way to the host */
    struct arrival *next;
    void           *to;
    size_t          size;
    uint8_t         bytes[];
} arrival;

struct kvi_graph {
    jobs         jobs;
    kvcsa_status st; /* of the first recorded call that failed */
};

/* cpu/cpu_ops.h has the CPU's; this file does not see it. */
struct kvi_device {
    const kvi_backend_ops *cpu;
    kvi_device            *inner;
    pthread_mutex_t        mutex; /* over all below */
    pthread_cond_t         ended; /* of the recording */
    apart_memory           memory;
    jobs                   queue;
    arrival               *arrivals;
    arrival              **arrivals_end;
    kvi_graph             *recording; /* NULL = none */
    pthread_t              recorder;
    uint64_t               n_calls;
    uint64_t               n_recorded;  /* calls */
    uint64_t               fail_record; /* 0 = never */
    uint64_t               fail_after; /* 0 = never */
    int                    fail_late;
    int                    failed;
};

static apart_table table;
#define COUNT(what) atomic_fetch_add(&table.tally.what, 1)

/* ------------------------------------------------------------------ the queue */

static void jobs_init(jobs *q)
{
    *q = (jobs){.end = &q->first};
}

static void jobs_clear(jobs *q)
{
    while (q->first) {
        job *j = q->first;

        q->first = j->next;
        free(j->routed);
        free(j->bytes);
        free(j);
    }
    jobs_init(q);
}

static void arrivals_clear(kvi_device *dev, int deliver)
{
    while (dev->arrivals) {
        arrival *a = dev->arrivals;

        dev->arrivals = a->next;
        if (deliver)
            memcpy(a->to, a->bytes, a->size);
        free(a);
    }
    dev->arrivals_end = &dev->arrivals;
}

static kvcsa_status fail(kvi_device *dev, kvcsa_error *err)
{
    dev->failed = 1;
    if (!dev->recording)
        jobs_clear(&dev->queue);
    arrivals_clear(dev, 0);
    return kvi_fail(err, KVCSA_ERR_BACKEND, "the device has failed");
}

static void take_out(kvi_device *dev, const job *j)
{
    arrival *a = apart_get(sizeof *a + j->size);

    a->next = NULL;
    a->to = j->to;
    a->size = j->size;
    memcpy(a->bytes, j->from, j->size);
    *dev->arrivals_end = a;
    dev->arrivals_end = &a->next;
}

/* Pinned bytes as the device sees them: those on their way to the host are among them. */
static void bring_in(const kvi_device *dev, const job *j)
{
    uint8_t *const       to = j->to;
    const uint8_t *const from = j->from;

    memcpy(to, from, j->size);
    for (const arrival *a = dev->arrivals; a; a = a->next) {
        const uint8_t *const begin = (const uint8_t *)a->to > from ? (const uint8_t *)a->to : from;
        const uint8_t *const a_end = (const uint8_t *)a->to + a->size;
        const uint8_t *const end = a_end < from + j->size ? a_end : from + j->size;

        if (begin < end)
            memcpy(to + (begin - from), a->bytes + (begin - (const uint8_t *)a->to), (size_t)(end - begin));
    }
}

static kvcsa_status run_list(kvi_device *dev, const jobs *q, kvcsa_error *err);

static kvcsa_status run_job(kvi_device *dev, const job *j, kvcsa_error *err)
{
    switch (j->kind) {
#define RUN(op)                                                                                                                    \
    case APART_##op:                                                                                                               \
        apart_check_run(&dev->memory, APART_##op, &j->p);                                                                          \
        return dev->cpu->op(dev->inner, &j->p.op, err);
        KVI_EACH_OPERATOR(RUN)
    case JOB_BYTES:
        if (j->way == KVI_COPY_OUT)
            take_out(dev, j);
        else if (j->way == KVI_COPY_IN && !j->bytes)
            bring_in(dev, j);
        else
            memcpy(j->to, j->bytes ? j->bytes : j->from, j->size);
        return KVCSA_OK;
    case JOB_FILL:
        memset(j->to, j->byte, j->size);
        return KVCSA_OK;
    case JOB_GRAPH:
        return run_list(dev, &j->graph->jobs, err);
    default: /* JOB_FAIL */
        return KVCSA_ERR_BACKEND;
    }
}

static kvcsa_status run_list(kvi_device *dev, const jobs *q, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    for (const job *j = q->first; j && st == KVCSA_OK; j = j->next)
        st = run_job(dev, j, err);
    return st;
}

static kvcsa_status run_queue(kvi_device *dev, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    if (!dev->queue.first)
        return KVCSA_OK;
    apart_open(&dev->memory);
    st = run_list(dev, &dev->queue, err);
    apart_shut(&dev->memory);
    jobs_clear(&dev->queue);
    return st == KVCSA_OK ? st : fail(dev, err);
}

/* ------------------------------------------------------------------ calls */

/* Only the thread that records gets in while a graph is recorded. */
static void lock_device(kvi_device *dev)
{
    pthread_mutex_lock(&dev->mutex);
    while (dev->recording && !pthread_equal(dev->recorder, pthread_self()))
        pthread_cond_wait(&dev->ended, &dev->mutex);
}

/* Every call that can fail begins with this and ends with leave. */
static kvcsa_status enter(kvi_device *dev, int enqueues, kvcsa_error *err)
{
    lock_device(dev);
    dev->n_calls++;
    if (dev->failed || (dev->n_calls == dev->fail_after && !(dev->fail_late && enqueues)))
        return fail(dev, err);
    return KVCSA_OK;
}

/* A call that is recorded. */
static kvcsa_status enter_graph(kvi_device *dev, kvcsa_error *err)
{
    if (!dev->recording || ++dev->n_recorded != dev->fail_record)
        return KVCSA_OK;
    dev->recording->st = KVCSA_ERR_NOMEM;
    return kvi_fail(err, KVCSA_ERR_NOMEM, "no scratch for call %llu of a graph", (unsigned long long)dev->n_recorded);
}

static kvcsa_status leave(kvi_device *dev, kvcsa_status st)
{
    pthread_mutex_unlock(&dev->mutex);
    return st;
}

static job *job_new(uint32_t kind)
{
    job *j = apart_get(sizeof *j);

    *j = (job){.kind = kind};
    return j;
}

static kvcsa_status enqueue(kvi_device *dev, job *j, kvcsa_error *err)
{
    jobs *q = dev->recording ? &dev->recording->jobs : &dev->queue;

    if (dev->n_calls == dev->fail_after)
        j->kind = JOB_FAIL;
    *q->end = j;
    q->end = &j->next;
    q->n++;
    q->held_bytes += j->bytes ? j->size : 0;
    if (dev->recording || (q->n < MAX_JOBS && q->held_bytes < MAX_HELD_BYTES))
        return KVCSA_OK;
    return run_queue(dev, err);
}

/* Take the structs of the host that hang on the parameters. */
static void keep_host_structs(job *j)
{
    switch (j->kind) {
    case APART_embed:
        j->matrix = *j->p.embed.table;
        j->p.embed.table = &j->matrix;
        break;
    case APART_linear:
        j->matrix = *j->p.linear.w;
        j->p.linear.w = &j->matrix;
        break;
    case APART_moe:
        if (j->p.moe.routed) {
            const size_t bytes = j->p.moe.n_experts * sizeof *j->routed;

            j->routed = apart_get(bytes);
            memcpy(j->routed, j->p.moe.routed, bytes);
            j->p.moe.routed = j->routed;
        }
        if (j->p.moe.shared) {
            j->shared = *j->p.moe.shared;
            j->p.moe.shared = &j->shared;
        }
        break;
    case APART_entry_write:
        j->owner = *j->p.entry_write.to.owner;
        j->p.entry_write.to.owner = &j->owner;
        break;
    case APART_index_score:
        j->owner = *j->p.index_score.keys.owner;
        j->p.index_score.keys.owner = &j->owner;
        break;
    case APART_attend:
        if (j->p.attend.entries.owner) {
            j->owner = *j->p.attend.entries.owner;
            j->p.attend.entries.owner = &j->owner;
        }
        break;
    default: /* nothing hangs on them */
        break;
    }
}

#define OPERATOR(op)                                                                                                               \
    static kvcsa_status later_##op(kvi_device *dev, const kvi_##op##_params *p, kvcsa_error *err)                                  \
    {                                                                                                                              \
        kvcsa_status st = enter(dev, 1, err);                                                                                      \
        job         *j;                                                                                                            \
                                                                                                                                   \
        if (st == KVCSA_OK)                                                                                                        \
            st = enter_graph(dev, err);                                                                                            \
        if (st != KVCSA_OK)                                                                                                        \
            return leave(dev, st);                                                                                                 \
        dev->recording ? COUNT(recorded) : COUNT(launches);                                                                        \
        j = job_new(APART_##op);                                                                                                   \
        j->p.op = *p;                                                                                                              \
        apart_check_call(&dev->memory, j->kind, &j->p);                                                                            \
        keep_host_structs(j);                                                                                                      \
        return leave(dev, enqueue(dev, j, err));                                                                                   \
    }
KVI_EACH_OPERATOR(OPERATOR)

static void *get_memory(kvi_device *dev, size_t size, uint32_t kind)
{
    if (dev->recording)
        apart_die("allocation of %zu bytes while a graph is recorded", size);
    return apart_alloc(&dev->memory, size, kind);
}

static kvcsa_status mem_alloc(kvi_device *dev, size_t size, uint32_t kind, void **out, kvcsa_error *err)
{
    kvcsa_status st = enter(dev, 0, err);

    *out = NULL;
    if (st == KVCSA_OK && !(*out = get_memory(dev, size, kind)))
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "%zu bytes, and %llu of %llu are taken", size, (unsigned long long)dev->memory.used,
                      (unsigned long long)dev->memory.limit);
    return leave(dev, st);
}

static void mem_free(kvi_device *dev, void *ptr, uint32_t kind)
{
    if (!ptr)
        return;
    lock_device(dev);
    if (dev->recording)
        apart_die("memory is freed while a graph is recorded");
    (void)run_queue(dev, NULL); /* what went wrong is told by the next call */
    apart_free(&dev->memory, ptr, kind);
    pthread_mutex_unlock(&dev->mutex);
}

/* Device memory on the sides where it belongs, and the host's on the others. */
static void check_way(const apart_memory *m, const void *to, const void *from, size_t size, uint32_t way)
{
    const int to_here = apart_holds(m, to, size, KVI_MEMORY_DEVICE);
    const int from_here = apart_holds(m, from, size, KVI_MEMORY_DEVICE);

    if (way > KVI_COPY_WITHIN || to_here != (way != KVI_COPY_OUT) || from_here != (way != KVI_COPY_IN))
        apart_die("copy of %zu bytes, way %u, from %p to %p", size, way, from, to);
    if (way == KVI_COPY_WITHIN && (uintptr_t)to < (uintptr_t)from + size && (uintptr_t)from < (uintptr_t)to + size)
        apart_die("copy of %zu bytes within, and they overlap", size);
}

static kvcsa_status copy_bytes(kvi_device *dev, void *to, const void *from, size_t size, uint32_t way, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    job         *j;

    check_way(&dev->memory, to, from, size, way);
    if (dev->recording && way != KVI_COPY_WITHIN)
        apart_die("copy of %zu bytes, way %u, while a graph is recorded", size, way);
    /* pinned bytes that are to be read have been when they are overwritten */
    if (way == KVI_COPY_OUT && apart_holds(&dev->memory, to, size, KVI_MEMORY_PINNED) &&
        (st = run_queue(dev, err)) != KVCSA_OK)
        return st;
    if ((st = enter_graph(dev, err)) != KVCSA_OK)
        return st;
    if (!dev->recording)
        way == KVI_COPY_IN ? COUNT(copies_in) : way == KVI_COPY_OUT ? COUNT(copies_out) : COUNT(copies);
    j = job_new(JOB_BYTES);
    j->to = to;
    j->from = from;
    j->size = size;
    j->way = way;
    if (way == KVI_COPY_OUT) {
        memset(to, APART_JUNK, size);
    } else if (way == KVI_COPY_IN && !apart_holds(&dev->memory, from, size, KVI_MEMORY_PINNED)) {
        j->bytes = apart_get(size);
        memcpy(j->bytes, from, size);
    }
    return enqueue(dev, j, err);
}

static kvcsa_status mem_copy(kvi_device *dev, void *to, const void *from, size_t size, uint32_t way, kvcsa_error *err)
{
    const kvcsa_status st = enter(dev, 1, err);

    return leave(dev, st != KVCSA_OK || size == 0 ? st : copy_bytes(dev, to, from, size, way, err));
}

static kvcsa_status fill_bytes(kvi_device *dev, void *ptr, int byte, size_t size, kvcsa_error *err)
{
    kvcsa_status st;
    job         *j;

    if (!apart_holds(&dev->memory, ptr, size, KVI_MEMORY_DEVICE))
        apart_die("fill of %zu bytes at %p, which are not the device's", size, ptr);
    if ((st = enter_graph(dev, err)) != KVCSA_OK)
        return st;
    if (!dev->recording)
        COUNT(copies);
    j = job_new(JOB_FILL);
    j->to = ptr;
    j->byte = byte;
    j->size = size;
    return enqueue(dev, j, err);
}

static kvcsa_status mem_fill(kvi_device *dev, void *ptr, int byte, size_t size, kvcsa_error *err)
{
    const kvcsa_status st = enter(dev, 1, err);

    return leave(dev, st != KVCSA_OK || size == 0 ? st : fill_bytes(dev, ptr, byte, size, err));
}

static kvcsa_status sync_device(kvi_device *dev, kvcsa_error *err)
{
    kvcsa_status st = enter(dev, 0, err);

    if (dev->recording)
        apart_die("wait while a graph is recorded");
    COUNT(syncs);
    if (st == KVCSA_OK && (st = run_queue(dev, err)) == KVCSA_OK)
        arrivals_clear(dev, 1);
    return leave(dev, st);
}

/* ------------------------------------------------------------------ graphs */

static kvcsa_status graph_begin(kvi_device *dev, kvcsa_error *err)
{
    const kvcsa_status st = enter(dev, 0, err);

    if (st != KVCSA_OK)
        return leave(dev, st);
    if (dev->recording)
        apart_die("a graph is being recorded already");
    dev->recording = apart_get(sizeof *dev->recording);
    dev->recording->st = KVCSA_OK;
    dev->recorder = pthread_self();
    jobs_init(&dev->recording->jobs);
    return leave(dev, KVCSA_OK);
}

static void graph_destroy(kvi_graph *graph)
{
    jobs_clear(&graph->jobs);
    free(graph);
}

static kvcsa_status graph_end(kvi_device *dev, kvi_graph **out, kvcsa_error *err)
{
    kvcsa_status st = enter(dev, 0, err);
    kvi_graph   *graph = dev->recording;

    *out = NULL;
    if (!graph && st == KVCSA_OK)
        apart_die("no graph is being recorded");
    dev->recording = NULL;
    pthread_cond_broadcast(&dev->ended);
    if (st == KVCSA_OK && (st = graph->st) != KVCSA_OK)
        (void)kvi_fail(err, st, "a call failed while the graph was recorded");
    if (st == KVCSA_OK) {
        COUNT(graphs);
        *out = graph;
    } else if (graph) {
        graph_destroy(graph);
    }
    return leave(dev, st);
}

static kvcsa_status graph_run(kvi_device *dev, kvi_graph *graph, kvcsa_error *err)
{
    const kvcsa_status st = enter(dev, 1, err);
    job               *j;

    if (dev->recording)
        apart_die("a graph is run while another is recorded");
    if (st != KVCSA_OK)
        return leave(dev, st);
    COUNT(graph_runs);
    j = job_new(JOB_GRAPH);
    j->graph = graph;
    return leave(dev, enqueue(dev, j, err));
}

static void graph_free(kvi_device *dev, kvi_graph *graph)
{
    if (!graph)
        return;
    lock_device(dev);
    (void)run_queue(dev, NULL);
    graph_destroy(graph);
    pthread_mutex_unlock(&dev->mutex);
}

/* ------------------------------------------------------------------ the device */

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void device_close(kvi_device *dev)
{
    if (!dev)
        return;
    (void)run_queue(dev, NULL);
    arrivals_clear(dev, 0);
    apart_close(&dev->memory);
    dev->cpu->device_close(dev->inner);
    pthread_cond_destroy(&dev->ended);
    pthread_mutex_destroy(&dev->mutex);
    free(dev);
}

static kvcsa_status device_open(const kvi_device_params *p, kvi_device **out, kvcsa_error *err)
{
    kvi_device_params inner = *p;
    kvi_device       *dev;
    kvcsa_status      st;

    *out = NULL;
    if (p->ordinal != 0)
        return kvi_fail(err, KVCSA_ERR_BACKEND, "there is no device %u", p->ordinal);
    dev = apart_get(sizeof *dev);
    *dev = (kvi_device){.cpu = kvi_cpu_backend(p->cpu_flags),
                        .memory = {.limit = number_of("APART_BYTES", UINT64_C(1) << 30)},
                        .fail_after = number_of("APART_FAIL_AFTER", 0),
                        .fail_late = number_of("APART_FAIL_LATE", 0) != 0,
                        .fail_record = number_of("APART_FAIL_RECORD", 0)};
    jobs_init(&dev->queue);
    arrivals_clear(dev, 0);
    inner.allocator = NULL; /* a device does not work in the host's memory */
    if ((st = dev->cpu->device_open(&inner, &dev->inner, err)) != KVCSA_OK) {
        free(dev);
        return st;
    }
    pthread_mutex_init(&dev->mutex, NULL);
    pthread_cond_init(&dev->ended, NULL);
    *out = dev;
    return KVCSA_OK;
}

static int32_t score(const kvi_host_ops *host, char *why, size_t why_size)
{
    (void)host;
    snprintf(why, why_size, "the CPU behind memory that the host cannot touch, for tests");
    return 1;
}

static void describe(kvi_device *dev, kvi_device_info *out)
{
    lock_device(dev);
    *out = (kvi_device_info){.name = "apart",
                             .kernels = "the CPU's",
                             .memory = dev->memory.limit,
                             .memory_free = dev->memory.limit - dev->memory.used,
                             .numerics = dev->cpu->numerics};
    pthread_mutex_unlock(&dev->mutex);
}

static apart_table table = {.ops = {
    .abi = KVI_BACKEND_ABI,
    .struct_size = sizeof(kvi_backend_ops),
    .name = "apart",
    .device_open = device_open,
    .device_close = device_close,
#define SLOT(op) .op = later_##op,
    KVI_EACH_OPERATOR(SLOT).score = score,
    .describe = describe,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .mem_copy = mem_copy,
    .mem_fill = mem_fill,
    .sync = sync_device,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_run = graph_run,
    .graph_free = graph_free,
}};

static void finish_table(void)
{
    const kvi_backend_ops *cpu = kvi_cpu_backend(kvi_cpu_flags(0));

    table.ops.numerics = cpu->numerics;
    table.ops.features = cpu->features;
}

__attribute__((visibility("default"))) const kvi_backend_ops *kvcsa_backend_query(uint32_t abi);
const kvi_backend_ops                                        *kvcsa_backend_query(uint32_t abi)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, finish_table);
    return abi == KVI_BACKEND_ABI ? &table.ops : NULL;
}
