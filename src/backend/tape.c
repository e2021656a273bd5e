#include "backend/tape.h"

#include "base/checked.h"
#include "base/status.h"

#include <stdbool.h>
#include <string.h>

enum {
#define NUMBER(op) CALL_##op,
    KVI_EACH_OPERATOR(NUMBER)
#undef NUMBER
    CALL_MOVE,
    CALL_FILL
};

/* Of the two that are not operators. */
typedef struct move_params {
    void       *to;
    const void *from;
    size_t      size;
} move_params;
typedef struct fill_params {
    void    *to;
    size_t   size;
    uint64_t byte;
} fill_params;

typedef struct call {
    uint32_t what;
    uint32_t size; /* of the parameters behind it */
} call;

/* ------------------------------------------------------------------ noting */

static kvcsa_status note(kvi_device *dev, uint32_t what, const void *params, size_t size)
{
    kvi_tape   *t = (kvi_tape *)(void *)dev;
    const call  head = {.what = what, .size = (uint32_t)size};
    uint8_t    *to;

    if (!kvi_buf_reserve(t->allocator, &t->bytes, 1, t->used, t->used + sizeof head + size)) {
        t->lost = 1;
        return KVCSA_OK;
    }
    to = (uint8_t *)t->bytes.data + t->used;
    memcpy(to, &head, sizeof head);
    memcpy(to + sizeof head, params, size);
    t->used += sizeof head + size;
    return KVCSA_OK;
}

#define NOTE(op)                                                                                   \
    static kvcsa_status note_##op(kvi_device *dev, const kvi_##op##_params *p, kvcsa_error *err)   \
    {                                                                                              \
        (void)err;                                                                                 \
        return note(dev, CALL_##op, p, sizeof *p);                                                 \
    }
KVI_EACH_OPERATOR(NOTE)
#undef NOTE

static kvcsa_status note_copy_of_memory(kvi_device *dev, void *to, const void *from, size_t size,
                                        uint32_t way, kvcsa_error *err)
{
    const move_params p = {.to = to, .from = from, .size = size};

    if (way != KVI_COPY_WITHIN)
        return kvi_fail(err, KVCSA_ERR_INTERNAL, "bytes of the host in a list of calls");
    return note(dev, CALL_MOVE, &p, sizeof p);
}

static kvcsa_status note_fill(kvi_device *dev, void *ptr, int byte, size_t size, kvcsa_error *err)
{
    const fill_params p = {.to = ptr, .size = size, .byte = (uint8_t)byte};

    (void)err;
    return note(dev, CALL_FILL, &p, sizeof p);
}

static kvcsa_status refuse_alloc(kvi_device *dev, size_t size, uint32_t kind, void **out,
                                 kvcsa_error *err)
{
    (void)dev;
    (void)kind;
    *out = NULL;
    return kvi_fail(err, KVCSA_ERR_INTERNAL, "%zu bytes for a list of calls", size);
}

static kvcsa_status refuse_sync(kvi_device *dev, kvcsa_error *err)
{
    (void)dev;
    return kvi_fail(err, KVCSA_ERR_INTERNAL, "a wait in a list of calls");
}

const kvi_backend_ops *kvi_tape_ops(void)
{
    static const kvi_backend_ops ops = {.abi = KVI_BACKEND_ABI,
                                        .struct_size = sizeof ops,
                                        .name = "tape",
#define SLOT(op) .op = note_##op,
                                        KVI_EACH_OPERATOR(SLOT)
#undef SLOT
                                        .mem_alloc = refuse_alloc,
                                        .mem_copy = note_copy_of_memory,
                                        .mem_fill = note_fill,
                                        .sync = refuse_sync};

    return &ops;
}

void kvi_tape_clear(kvi_tape *tape)
{
    tape->used = 0;
    tape->lost = 0;
}

void kvi_tape_fini(kvi_tape *tape)
{
    if (tape->allocator)
        kvi_buf_free(tape->allocator, &tape->bytes, 1);
    kvi_tape_clear(tape);
}

/* ------------------------------------------------------------------ playing */

static kvcsa_status play(const kvi_memory *m, uint32_t what, const uint8_t *params,
                         kvcsa_error *err)
{
    union {
#define MEMBER(op) kvi_##op##_params op;
        KVI_EACH_OPERATOR(MEMBER)
#undef MEMBER
        move_params move;
        fill_params fill;
    } p;

    switch (what) {
#define PLAY(op)                                                                                   \
    case CALL_##op:                                                                                \
        memcpy(&p.op, params, sizeof p.op);                                                        \
        return m->ops->op(m->dev, &p.op, err);
        KVI_EACH_OPERATOR(PLAY)
#undef PLAY
    case CALL_MOVE:
        memcpy(&p.move, params, sizeof p.move);
        return kvi_memory_move(m, p.move.to, p.move.from, p.move.size, err);
    default:
        memcpy(&p.fill, params, sizeof p.fill);
        return kvi_memory_fill(m, p.fill.to, (int)p.fill.byte, p.fill.size, err);
    }
}

kvcsa_status kvi_tape_play(const kvi_tape *tape, const kvi_memory *m, kvcsa_error *err)
{
    const uint8_t *at = tape->bytes.data;
    const uint8_t *end = at + tape->used;
    kvcsa_status   st = KVCSA_OK;
    call           head;

    if (tape->lost)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of calls");
    for (; at < end && st == KVCSA_OK; at += head.size) {
        memcpy(&head, at, sizeof head);
        at += sizeof head;
        st = play(m, head.what, at, err);
    }
    return st;
}

/* ------------------------------------------------------------------ graphs */

static kvcsa_status record(kvi_graphs *g, uint32_t i, const kvi_memory *m, const kvi_tape *tape,
                           kvcsa_error *err)
{
    kvcsa_error  own = {0};
    kvcsa_status st = m->ops->graph_begin(m->dev, err);
    kvcsa_status end;

    if (st != KVCSA_OK)
        return st;
    st = kvi_tape_play(tape, m, err);
    end = m->ops->graph_end(m->dev, &g->of[i].graph, st == KVCSA_OK ? err : &own);
    if (st == KVCSA_OK && end == KVCSA_OK) {
        g->n_recorded++;
        return KVCSA_OK;
    }
    m->ops->graph_free(m->dev, g->of[i].graph);
    g->of[i].graph = NULL;
    return st == KVCSA_OK ? end : st;
}

/* Whether an equal tape is known. place: its own, else that of the one that was not played for the
 * longest time. */
static bool find(const kvi_graphs *g, kvi_hash128 key, size_t size, uint32_t *place)
{
    uint32_t oldest = 0;

    for (uint32_t i = 0; i < KVI_GRAPHS; i++) {
        if (g->of[i].turn && g->of[i].size == size && kvi_hash128_equal(g->of[i].key, key)) {
            *place = i;
            return true;
        }
        if (g->of[i].turn < g->of[oldest].turn)
            oldest = i;
    }
    *place = oldest;
    return false;
}

kvcsa_status kvi_graphs_play(kvi_graphs *g, const kvi_memory *m, const kvi_tape *tape,
                             kvcsa_error *err)
{
    kvi_hash128 key;
    uint32_t    i = 0;
    bool        known;

    if (tape->lost)
        return kvi_tape_play(tape, m, err);
    key = kvi_hash128_of(tape->bytes.data, tape->used, 0);
    known = find(g, key, tape->used, &i);
    g->of[i].turn = ++g->n_turns;
    if (known && !g->of[i].graph && !g->of[i].refused &&
        record(g, i, m, tape, err) != KVCSA_OK) {
        g->of[i].refused = 1; /* its own operators tell what is wrong, if anything is */
        kvi_error_clear(err);
    }
    if (known && g->of[i].graph) {
        g->n_runs++;
        return m->ops->graph_run(m->dev, g->of[i].graph, err);
    }
    if (!known) {
        m->ops->graph_free(m->dev, g->of[i].graph);
        g->of[i].graph = NULL;
        g->of[i].refused = 0;
        g->of[i].key = key;
        g->of[i].size = tape->used;
    }
    return kvi_tape_play(tape, m, err);
}

void kvi_graphs_fini(kvi_graphs *g, const kvi_memory *m)
{
    for (uint32_t i = 0; i < KVI_GRAPHS; i++)
        if (g->of[i].graph)
            m->ops->graph_free(m->dev, g->of[i].graph);
    *g = (kvi_graphs){0};
}
