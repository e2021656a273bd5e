/* The network room driven directly, on hand-made blocks and pages: slices of several timelines in
 * one run against the same slices alone, window pages and raw rows against undisturbed timelines.
 * Everything is compared bit for bit; all of it on the CPU, then on the test device "apart", whose
 * results and counts are the CPU's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attn/swa_replay.h"
#include "backend/backend_load.h"
#include "base/alloc.h"
#include "base/hash.h"
#include "model/weights_place.h"
#include "net/net.h"
#include "support/checkpoint.h"
#include "support/fault_alloc.h"
#include "support/prng.h"
#include "support/there.h"
#include "support/timeline.h"
#include "support/test_backend.h"

enum { MAX_SLICES = 8 };

static uint64_t       seed;
static fault_alloc    memory;
static kvcsa_model   *model;
static kvi_threads   *threads;
static enum { ON_CPU, APART, APART_TABLES } world; /* TABLES: on the host */
static there          where; /* memory of the operators */
static kvi_weights    placed; /* weights there, if it is apart */
static const kvi_weights *weights;
static kvi_net       *batch_net, *solo_net;
static uint32_t       op_flags;
static const kvi_tap *tap;

/* ---------------------------------------------------------------- running slices */

typedef struct part { /* what one slice is asked for, and its result */
    timeline *t;
    uint64_t  pos;
    uint32_t  n;
    int       replay;
    uint64_t  first_rows[MAX_LAYERS + 1];
    int (*stop)(void *user);
    void     *stop_user;
    int       stopped;
    float    *logits; /* of all rows that reach the head; NULL if there are none */
    uint32_t  n_logits;
    int32_t  *tokens; /* while it runs */
    uint32_t *rows;
    uint8_t  *index_parts[MAX_BLOCKS]; /* for operators, likewise */
    uint8_t  *main_parts[MAX_BLOCKS];
    uint8_t **pages;
    uint8_t  *pending;
    size_t    kind; /* which of kinds[] it is */
    const kvi_select_limits *limits; /* NULL = none, and no mass */
    kvcsa_work work[MAX_LAYERS];
    double     mass[MAX_TOKENS];
} part;

static part part_of(timeline *t, uint32_t n)
{
    return (part){.t = t, .pos = t->n, .n = n};
}

/* Rows [pos, pos + n) of a replay up to t->n. */
static part replay_of(timeline *t, uint64_t pos, uint32_t n, uint32_t how)
{
    part p = {.t = t, .pos = pos, .n = n, .replay = 1};

    kvi_replay_first_rows(&model->plan, t->n, how, p.first_rows);
    return p;
}

static kvi_net_slice slice_of(part *p)
{
    const uint32_t n_layers = model->plan.n_layers;
    const uint64_t back = p->pos < kvi_net_lookback(model) ? p->pos : kvi_net_lookback(model);
    const uint64_t first = p->first_rows[n_layers] > p->pos ? p->first_rows[n_layers] - p->pos : 0;

    /* no token more than the contract says, so that a look further back shows */
    p->tokens = malloc((back + p->n) * sizeof *p->tokens);
    p->rows = get(p->n * sizeof *p->rows, 0);
    assert_non_null(p->tokens);
    memcpy(p->tokens, p->t->tokens + p->pos - back, (back + p->n) * sizeof *p->tokens);
    p->n_logits = 0;
    p->pages = get(p->t->geom.n_pages * sizeof *p->pages, 0);
    p->pending = there_over(&where, p->t->pending, p->t->geom.pending_bytes);
    for (uint64_t i = first; i < p->n; i++)
        p->rows[p->n_logits++] = (uint32_t)i;
    return (kvi_net_slice){.pos = p->pos,
                           .n_rows = p->n,
                           .n_logit_rows = p->n_logits,
                           .logit_rows = p->rows,
                           .tokens = p->tokens + back,
                           .index_parts = there_table(&where, p->t->index_parts, MAX_BLOCKS,
                                                      model->layout.index_part_bytes,
                                                      p->index_parts),
                           .main_parts = there_table(&where, p->t->main_parts, MAX_BLOCKS,
                                                     model->layout.main_part_bytes,
                                                     p->main_parts),
                           .geom = &p->t->geom,
                           .window_pages = there_table(&where, p->t->pages, p->t->geom.n_pages,
                                                       p->t->geom.page_bytes, p->pages),
                           .pending = p->pos % 2 ? p->pending : NULL,
                           .floors = p->t->floors,
                           .first_rows = p->first_rows,
                           .replay = p->replay,
                           .limits = p->limits,
                           .work = p->work,
                           .mass = p->limits ? p->mass : NULL,
                           .n_mass = MAX_TOKENS,
                           .stop = p->stop,
                           .stop_user = p->stop_user,
                           .stopped = 7};
}

static kvi_exec exec_of(void)
{
    return (kvi_exec){.ops = where.m.ops,
                      .dev = where.m.dev,
                      .allocator = &memory.hook,
                      .flags = op_flags,
                      .tap = tap};
}

static void slice_done(part *p)
{
    free(p->tokens);
    free(p->rows);
    free(p->pages);
}

static kvcsa_status try_run(kvi_net *net, part *parts, size_t n, kvcsa_error *err)
{
    const kvi_exec exec = exec_of();
    const size_t   vocab = model->config.vocab_size;
    kvi_net_slice  slices[MAX_SLICES];
    kvcsa_status   st;

    for (size_t i = 0; i < n; i++)
        slices[i] = slice_of(&parts[i]);
    st = kvi_net_run(net, &exec, slices, n, err);
    for (size_t i = 0; i < n; i++) {
        part *p = &parts[i];

        p->stopped = slices[i].stopped;
        p->logits = NULL;
        if (st == KVCSA_OK && !p->stopped) {
            if (p->n_logits)
                p->logits =
                    copy_of(kvi_net_logits(net, slices, i), p->n_logits * vocab * sizeof(float));
            kvi_net_commit(net, slices, i, p->pages, p->pending, p->t->floors);
            if (!p->replay)
                p->t->n += p->n;
        }
        slice_done(p);
    }
    assert_int_equal(kvi_net_commit_all(net, err), KVCSA_OK);
    there_back(&where);
    return st;
}

static void run(kvi_net *net, part *parts, size_t n)
{
    kvcsa_error err;

    if (try_run(net, parts, n, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
}

static void advance(timeline *t, uint64_t end)
{
    part p = part_of(t, (uint32_t)(end - t->n));

    run(solo_net, &p, 1);
    free(p.logits);
}

/* The whole of a replay to t->n, in runs of at most n rows. */
static void replay_all(timeline *t, uint32_t how, uint32_t n)
{
    uint64_t first[MAX_LAYERS + 1];

    kvi_replay_first_rows(&model->plan, t->n, how, first);
    for (uint64_t pos = first[0]; pos < t->n; pos += n) {
        part p = replay_of(t, pos, (uint32_t)(t->n - pos < n ? t->n - pos : n), how);

        run(solo_net, &p, 1);
        free(p.logits);
    }
}

static void assert_same_logits(const part *a, const part *b)
{
    assert_int_equal(a->n_logits, b->n_logits);
    assert_int_equal(a->logits != NULL, b->logits != NULL);
    if (a->logits)
        assert_memory_equal(a->logits, b->logits,
                            a->n_logits * model->config.vocab_size * sizeof(float));
}

/* Next tokens of both in the same steps: some rows one by one, then a longer run. */
static void assert_same_future(timeline *a, timeline *b)
{
    static const uint32_t steps[] = {1, 1, 2, 19, 1};

    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        part p = part_of(a, steps[i]);
        part q = part_of(b, steps[i]);

        run(solo_net, &p, 1);
        run(solo_net, &q, 1);
        assert_same_logits(&p, &q);
        free(p.logits);
        free(q.logits);
    }
}

/* ---------------------------------------------------------------- one timeline */

static void test_chunks_give_the_bits_of_one_run(void **state)
{
    enum { N = 200 };
    static const uint32_t slacks[] = {0, 1, 8, 300};
    const size_t          vocab = model->config.vocab_size;
    prng                  r;
    timeline             *whole = timeline_new(model, 0, seed);
    part                  all = part_of(whole, N);

    (void)state;
    prng_init(&r, seed + 1);
    run(solo_net, &all, 1);
    for (size_t i = 0; i < 4; i++) {
        timeline *t = timeline_new(model, slacks[i], seed);

        while (t->n < N) {
            const uint64_t most = prng_below(&r, 3) ? 7 : 90;
            const uint64_t n = prng_range(&r, 1, most);
            part           p = part_of(t, (uint32_t)(n < N - t->n ? n : N - t->n));

            run(solo_net, &p, 1);
            assert_memory_equal(p.logits, all.logits + p.pos * vocab,
                                p.n_logits * vocab * sizeof(float));
            free(p.logits);
        }
        assert_same_entries(t, whole);
        timeline_free(t);
    }
    free(all.logits);
    timeline_free(whole);
}

static void test_raw_rows_reach_back_over_the_slack(void **state)
{
    timeline *t[2] = {timeline_new(model, 8, seed + 2), timeline_new(model, 8, seed + 2)};
    timeline *at = timeline_new(model, 8, seed + 2);

    (void)state;
    advance(t[0], 71); /* raw rows of one long run, or of many short ones */
    advance(t[1], 40);
    while (t[1]->n < 71)
        advance(t[1], t[1]->n + 1 + t[1]->n % 2);
    for (uint64_t n = 63; n <= 71; n++) {
        advance(at, n);
        for (size_t i = 0; i < 2; i++) {
            timeline *gone_back = timeline_copy(t[i]);
            timeline *fresh = timeline_copy(at);

            gone_back->n = n;
            timeline_change_tokens(gone_back, n, seed + 3);
            timeline_change_tokens(fresh, n, seed + 3);
            assert_same_future(gone_back, fresh);
            timeline_free(gone_back);
            timeline_free(fresh);
        }
    }
    timeline_free(t[0]);
    timeline_free(t[1]);
    timeline_free(at);
}

static void test_raw_rows_stand_in_their_slots(void **state)
{
    timeline    *t = timeline_new(model, 8, seed + 4); /* 5 slots */
    timeline    *one = timeline_new(model, 0, seed + 4);
    const size_t slot_bytes = t->geom.pending_bytes / 5;

    (void)state;
    assert_int_equal(t->geom.pending_slots, 5);
    assert_int_equal(one->geom.pending_bytes, slot_bytes);
    advance(t, 57);
    for (uint64_t p = 1; p <= 57; p += 2) { /* the raw row of p - 1 is the only one of `one` */
        size_t from = 0;
        size_t to = 0;

        advance(one, p);
        for (uint32_t l = 0; p > 57 - 10 && l < model->plan.n_layers; l++) {
            const size_t bytes = model->plan.rows[l].pending_bytes;

            assert_memory_equal(t->pending + to + (p - 1) / 2 % 5 * bytes, one->pending + from,
                                bytes);
            from += bytes;
            to += 5 * bytes;
        }
    }
    timeline_free(t);
    timeline_free(one);
}

static void test_exact_replay_rebuilds_windows_and_raw_row(void **state)
{
    static const uint64_t ends[] = {1, 33, 170, 171};
    timeline             *at = timeline_new(model, 4, seed + 5);

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        advance(at, ends[i]);
        for (uint32_t n = 27; n <= 384; n += 357) {
            timeline *t = timeline_copy(at);
            timeline *kept = timeline_copy(at);

            timeline_lose_window(t);
            replay_all(t, KVI_REPLAY_EXACT, n);
            assert_same_entries(t, kept);
            if (ends[i] > 151) { /* rows that no layer below got right must not count */
                assert_int_equal(t->floors[0], ends[i] - 16 - 9 * 15);
                assert_int_equal(t->floors[9], ends[i] - 16);
            }
            assert_same_future(t, kept);
            timeline_free(t);
            timeline_free(kept);
        }
    }
    timeline_free(at);
}

/* The window is long enough for it, so the raw row must be there too. */
static void test_one_step_back_behind_a_replay(void **state)
{
    timeline *t = timeline_new(model, 4, seed + 6);

    (void)state;
    advance(t, 169);
    for (uint64_t end = 170; end <= 171; end++) {
        timeline *fresh = timeline_copy(t);
        timeline *back;

        advance(t, end);
        back = timeline_copy(t);
        timeline_lose_window(back);
        replay_all(back, KVI_REPLAY_EXACT, 384);
        back->n = end - 1;
        timeline_change_tokens(back, end - 1, seed + 7);
        timeline_change_tokens(fresh, end - 1, seed + 7);
        assert_same_future(back, fresh);
        timeline_free(back);
        timeline_free(fresh);
    }
    timeline_free(t);
}

/* All rows again from where the windows are right, as behind a stored window. */
static void test_replay_from_right_windows_brings_all_raw_rows_back(void **state)
{
    timeline *at = timeline_new(model, 8, seed + 16);
    timeline *t;

    (void)state;
    advance(at, 47);
    t = timeline_copy(at);
    advance(t, 59);
    memset(t->pending, 0xFF, t->geom.pending_bytes);
    for (uint64_t pos = 47; pos < 59; pos += 4) { /* the windows of 47 would do too */
        part p = {.t = t, .pos = pos, .n = 4, .replay = 1};

        run(solo_net, &p, 1);
        free(p.logits);
    }
    for (uint64_t n = 51; n <= 59; n++) {
        timeline *back = timeline_copy(t);
        timeline *fresh;

        advance(at, n);
        fresh = timeline_copy(at);
        back->n = n;
        timeline_change_tokens(back, n, seed + 17);
        timeline_change_tokens(fresh, n, seed + 17);
        assert_same_future(back, fresh);
        timeline_free(back);
        timeline_free(fresh);
    }
    timeline_free(t);
    timeline_free(at);
}

/* The pages are full of NaN: one row of them too many shows. */
static void test_rows_below_the_floor_are_not_seen(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        timeline *t = timeline_new(model, 0, seed + 13);
        part      p;

        advance(t, 40);
        timeline_lose_window(t);
        p = part_of(t, 20);
        for (uint32_t l = 0; l <= model->plan.n_layers; l++) {
            t->floors[l] = way ? 40 : 0;
            p.first_rows[l] = way ? 0 : 40;
        }
        run(solo_net, &p, 1);
        assert_int_equal(p.n_logits, 20);
        for (size_t i = 0; i < 20 * (size_t)model->config.vocab_size; i++)
            assert_true(p.logits[i] - p.logits[i] == 0);
        assert_int_equal(t->floors[3], 40);
        free(p.logits);
        timeline_free(t);
    }
}

/* ---------------------------------------------------------------- several in one run */

/* Slices of every kind, each of a timeline of its own; made once, see open_all. */
static part kinds[MAX_SLICES];

static void make_kinds(void)
{
    static const uint8_t           hidden[] = {0, 1, 0, 0, 1};
    static const kvi_select_limits fewer = {
        .select_entries = 5, .candidate_blocks = 2, .span_tokens = 16};
    static const kvi_select_limits hiding = {.span_tokens = 16, .hidden = hidden, .n_hidden = 5};
    static const kvi_select_limits seeing_all = {.span_tokens = 16};
    timeline                      *t[MAX_SLICES];

    assert_int_equal(kvi_plan_span_tokens(&model->plan), 16);

    for (size_t i = 0; i < MAX_SLICES; i++)
        t[i] = timeline_new(model, i % 3 == 0 ? 0 : (uint32_t)i * 3, seed + 20 + i);
    kinds[0] = part_of(t[0], 37); /* from the beginning */
    advance(t[1], 21);
    kinds[1] = part_of(t[1], 18); /* odd position, odd end */
    advance(t[2], 63);
    kinds[2] = part_of(t[2], 1); /* decode that ends an entry */
    advance(t[3], 301);
    timeline_lose_window(t[3]);
    kinds[3] = replay_of(t[3], 301 - 90, 90, KVI_REPLAY_EXACT);
    advance(t[4], 150);
    kinds[4] = part_of(t[4], 1); /* decode that begins one */
    advance(t[5], 88);
    timeline_lose_window(t[5]);
    kinds[5] = replay_of(t[5], 72, 11, KVI_REPLAY_BOUNDED); /* not its end */
    advance(t[6], 11);
    kinds[6] = part_of(t[6], 80); /* layers 6.. run the last window only */
    assert_int_equal(kvi_replay_cut(&model->plan, 6, 11, 91, kinds[6].first_rows), 1);
    advance(t[7], 201);
    timeline_lose_window(t[7]);
    kinds[7] = replay_of(t[7], 60, 40, KVI_REPLAY_EXACT); /* reaches the lower layers only */
    kinds[1].limits = &fewer;
    kinds[4].limits = &hiding;
    kinds[6].limits = &seeing_all;
    for (size_t i = 0; i < MAX_SLICES; i++)
        kinds[i].kind = i;
}

/* The same on copies. */
static void copy_slices(part *to, const part *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        to[i] = from[i];
        to[i].t = timeline_copy(from[i].t);
    }
}

static void free_slices(part *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(parts[i].logits);
        timeline_free(parts[i].t);
    }
}

/* Everything that a slice leaves, and what was counted. */
static uint64_t hash_of(const part *p, uint64_t h)
{
    const timeline *t = p->t;

    if (p->logits)
        h = kvi_hash64(p->logits, p->n_logits * model->config.vocab_size * sizeof(float), h);
    for (size_t i = 0; i < MAX_BLOCKS; i++) {
        h = kvi_hash64(t->index_parts[i], model->layout.index_part_bytes, h);
        h = kvi_hash64(t->main_parts[i], model->layout.main_part_bytes, h);
    }
    for (uint32_t i = 0; i < t->geom.n_pages; i++)
        h = kvi_hash64(t->pages[i], t->geom.page_bytes, h);
    h = kvi_hash64(t->pending, t->geom.pending_bytes, h);
    h = kvi_hash64(p->work, sizeof p->work, h);
    return kvi_hash64(p->mass, sizeof p->mass, h);
}

static void shuffle(prng *r, part *parts, size_t n)
{
    for (size_t i = n; i > 1; i--) {
        const size_t j = prng_below(r, i);
        const part   p = parts[i - 1];

        parts[i - 1] = parts[j];
        parts[j] = p;
    }
}

static void test_slices_give_the_bits_of_their_solo_runs(void **state)
{
    static uint64_t cpu_hash;
    uint64_t        hash = 0;
    prng            r;

    (void)state;
    prng_init(&r, seed + 8);
    for (uint32_t way = 0; way < 2; way++) {
        part solo[MAX_SLICES];

        op_flags = way ? KVI_OP_ROUND_BF16 | KVI_OP_ACT_QUANT : 0;
        copy_slices(solo, kinds, MAX_SLICES);
        for (size_t i = 0; i < MAX_SLICES; i++)
            run(solo_net, &solo[i], 1);
        for (size_t i = 0; i < MAX_SLICES; i++)
            hash = hash_of(&solo[i], hash);
        for (uint32_t round = 2 * way; round < 6; round++) {
            const size_t n = round < 3 ? MAX_SLICES : round - 1; /* all of them, or some */
            part         batch[MAX_SLICES];

            if (round)
                shuffle(&r, solo, MAX_SLICES);
            for (size_t i = 0; i < n; i++)
                copy_slices(&batch[i], &kinds[solo[i].kind], 1);
            run(batch_net, batch, n);
            for (size_t i = 0; i < n; i++) {
                assert_int_equal(batch[i].stopped, 0);
                assert_same_logits(&batch[i], &solo[i]);
                assert_same_entries(batch[i].t, solo[i].t);
                assert_same_state(batch[i].t, solo[i].t);
                assert_memory_equal(batch[i].work, solo[i].work, sizeof solo[i].work);
                assert_memory_equal(batch[i].mass, solo[i].mass, sizeof solo[i].mass);
            }
            free_slices(batch, n);
        }
        free_slices(solo, MAX_SLICES);
    }
    op_flags = 0;
    if (world == ON_CPU)
        cpu_hash = hash;
    assert_true(hash == cpu_hash);
}

/* ---------------------------------------------------------------- stopping */

typedef struct stopper {
    uint32_t n_calls, at;
} stopper;

static int count_and_stop(void *user)
{
    stopper *s = user;

    return s->n_calls++ == s->at;
}

static void test_a_stopped_slice_disturbs_nobody(void **state)
{
    const uint32_t n_layers = model->plan.n_layers;
    const size_t   n = MAX_SLICES;
    part           solo[MAX_SLICES];

    (void)state;
    copy_slices(solo, kinds, n);
    for (size_t i = 0; i < n; i++)
        run(solo_net, &solo[i], 1);
    for (uint32_t at = 0; at < n_layers / 2; at++) {
        part    batch[MAX_SLICES];
        stopper stops[2] = {{.at = at}, {.at = n_layers - 1 - at}};
        stopper never = {.at = UINT32_MAX};

        copy_slices(batch, kinds, n);
        batch[at % n].stop = batch[(at + 3) % n].stop = batch[(at + 1) % n].stop = count_and_stop;
        batch[at % n].stop_user = &stops[0];
        batch[(at + 3) % n].stop_user = &stops[1];
        batch[(at + 1) % n].stop_user = &never;
        run(batch_net, batch, n);
        assert_int_equal(stops[0].n_calls, at + 1); /* not asked again */
        assert_int_equal(never.n_calls, n_layers);
        for (size_t i = 0; i < n; i++) {
            const int stopped = i == at % n || i == (at + 3) % n;

            assert_int_equal(batch[i].stopped, stopped);
            if (stopped) { /* what it wrote is not read: the same again gives the same */
                assert_same_state(batch[i].t, kinds[i].t);
                batch[i].stop = NULL;
                run(batch_net, &batch[i], 1);
            }
            assert_same_state(batch[i].t, solo[i].t);
            assert_same_logits(&batch[i], &solo[i]);
            assert_same_entries(batch[i].t, solo[i].t);
        }
        free_slices(batch, n);
    }
    free_slices(solo, n);
}

static void count_window_rows(void *user, uint32_t kind, uint32_t layer, const void *data,
                              size_t n_rows, size_t width)
{
    size_t *n = user;

    (void)data;
    (void)width;
    if (kind == KVI_TAP_WINDOW)
        n[layer] += n_rows;
}

static void test_rows_of_a_stopped_slice_do_not_run_on(void **state)
{
    size_t        n_rows[MAX_LAYERS] = {0};
    const kvi_tap counter = {.see = count_window_rows, .user = n_rows};
    stopper       stop = {.at = 3};
    timeline     *t[2] = {timeline_new(model, 0, seed + 14), timeline_new(model, 0, seed + 15)};
    part          parts[2] = {part_of(t[0], 20), part_of(t[1], 7)};

    (void)state;
    parts[0].stop = count_and_stop;
    parts[0].stop_user = &stop;
    tap = &counter;
    run(batch_net, parts, 2);
    tap = NULL;
    for (uint32_t l = 0; l < model->plan.n_layers; l++) /* a device is not made to move rows for it */
        assert_int_equal(n_rows[l], l < 3 || world != ON_CPU ? 27 : 7);
    free(parts[1].logits);
    timeline_free(t[0]);
    timeline_free(t[1]);
}

static void test_all_slices_stopped_is_cancelled(void **state)
{
    stopper     stops[2] = {{.at = 1}, {.at = 3}};
    timeline   *t[2] = {timeline_new(model, 0, seed + 9), timeline_new(model, 0, seed + 10)};
    part        parts[2] = {part_of(t[0], 20), part_of(t[1], 1)};
    kvcsa_error err;

    (void)state;
    for (int i = 0; i < 2; i++) {
        parts[i].stop = count_and_stop;
        parts[i].stop_user = &stops[i];
    }
    assert_int_equal(try_run(batch_net, parts, 2, &err), KVCSA_ERR_CANCELLED);
    assert_string_equal(err.text, "cancelled in front of layer 3");
    assert_true(parts[0].stopped == 1 && parts[1].stopped == 1);
    assert_true(t[0]->n == 0 && t[1]->n == 0);
    timeline_free(t[0]);
    timeline_free(t[1]);
}

/* ---------------------------------------------------------------- the workspace */

static void test_workspace_grows_and_is_wiped(void **state)
{
    timeline   *t = timeline_new(model, 0, seed + 11);
    timeline   *u = timeline_copy(t);
    part        parts[2] = {part_of(t, 40), part_of(u, 40)};
    kvi_net    *net = NULL;
    kvcsa_error err;
    uint64_t    one;

    (void)state;
    assert_int_equal(kvi_net_create(model, weights, &where.m, &net, &err), KVCSA_OK);
    assert_int_equal(kvi_net_workspace_bytes(net), 0);
    fault_alloc_fail_at(&memory, 1);
    assert_int_equal(try_run(net, parts, 1, &err), KVCSA_ERR_NOMEM);
    assert_int_equal(t->n, 0);
    fault_alloc_fail_at(&memory, 0);
    run(net, parts, 1);
    one = kvi_net_workspace_bytes(net);
    assert_true(one > 0);
    free(parts[0].logits);
    t->n = 0;
    parts[0] = part_of(t, 40);
    fault_alloc_fail_at(&memory, 1); /* the smaller workspace stays */
    assert_int_equal(try_run(net, parts, 2, &err), KVCSA_ERR_NOMEM);
    assert_int_equal(kvi_net_workspace_bytes(net), one);
    fault_alloc_fail_at(&memory, 0);
    run(net, parts, 2);
    assert_true(kvi_net_workspace_bytes(net) > one);
    assert_same_logits(&parts[0], &parts[1]);
    assert_same_state(t, u);
    free(parts[0].logits);
    free(parts[1].logits);
    kvi_net_wipe(net);
    parts[0] = part_of(t, 3); /* and it still works */
    parts[1] = part_of(u, 3);
    run(net, &parts[0], 1);
    run(solo_net, &parts[1], 1);
    assert_same_logits(&parts[0], &parts[1]);
    free(parts[0].logits);
    free(parts[1].logits);
    kvi_net_destroy(net);
    timeline_free(t);
    timeline_free(u);
}

/* Finds nothing of a run in the workspace: its logits are what can be looked at. */
static void test_wipe_zeroes_logits(void **state)
{
    const kvi_exec exec = exec_of();
    timeline      *t = timeline_new(model, 0, seed + 12);
    part           p = part_of(t, 4);
    kvi_net_slice  slice = slice_of(&p);
    const float   *logits;
    double         sum = 0;

    (void)state;
    assert_int_equal(kvi_net_run(batch_net, &exec, &slice, 1, NULL), KVCSA_OK);
    logits = kvi_net_logits(batch_net, &slice, 0);
    assert_true(logits[5] < 0 || logits[5] > 0);
    kvi_net_wipe(batch_net);
    for (size_t i = 0; i < 4 * (size_t)model->config.vocab_size; i++)
        sum += logits[i] < 0 || logits[i] > 0;
    assert_true(sum == 0);
    slice_done(&p);
    there_back(&where);
    timeline_free(t);
}

static void test_no_network_has_nothing(void **state)
{
    (void)state;
    kvi_net_wipe(NULL);
    kvi_net_destroy(NULL);
    assert_int_equal(kvi_net_workspace_bytes(NULL), 0);
}

static void test_lookback_is_that_of_the_ngrams(void **state)
{
    kvcsa_model other = *model;

    (void)state;
    assert_int_equal(kvi_net_lookback(model), 2);
    other.config.n_engram_layers = 0;
    assert_int_equal(kvi_net_lookback(&other), 0);
}

/* The test device lies beside the test programs. */
static const kvi_backend_ops *apart_ops(void)
{
    kvi_backend_found found;

    kvi_backend_load(test_backend_beside("apart"), "cuda", NULL, &found);
    if (!found.ops)
        fail_msg("%s", found.why);
    return found.ops;
}

static int open_all(void **state)
{
    const kvcsa_model_params params = {.struct_size = sizeof params};
    kvi_device_params        d = {.cpu_flags = kvi_cpu_flags(0), .allocator = &memory.hook};

    (void)state;
    fault_alloc_init(&memory);
    assert_int_equal(kvi_model_open(T1_DIR, &params, &model, NULL), KVCSA_OK);
    assert_true(model->plan.n_layers <= MAX_LAYERS && model->plan.block_tokens == 128);
    assert_int_equal(kvi_threads_create(&memory.hook, 2, NULL, &threads, NULL), KVCSA_OK);
    d.threads = threads;
    where.m = (kvi_memory){.ops = world == ON_CPU ? kvi_cpu_backend(kvi_cpu_flags(0)) : apart_ops(),
                           .allocator = &memory.hook};
    assert_int_equal(where.m.ops->device_open(&d, &where.m.dev, NULL), KVCSA_OK);
    weights = &model->weights;
    if (world != ON_CPU) {
        weights = &placed;
        assert_int_equal(kvi_weights_place(model, &where.m, world == APART ? UINT64_MAX : 0, &placed, NULL), KVCSA_OK);
    }
    assert_int_equal(kvi_net_create(model, weights, &where.m, &batch_net, NULL), KVCSA_OK);
    assert_int_equal(kvi_net_create(model, weights, &where.m, &solo_net, NULL), KVCSA_OK);
    make_kinds();
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    free_slices(kinds, MAX_SLICES);
    kvi_net_destroy(batch_net);
    kvi_net_destroy(solo_net);
    if (world != ON_CPU)
        kvi_weights_unplace(&placed, &where.m);
    where.m.ops->device_close(where.m.dev);
    kvi_threads_destroy(threads);
    kvi_model_release(model);
    return fault_alloc_is_clean(&memory) ? 0 : -1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_give_the_bits_of_one_run),
        cmocka_unit_test(test_raw_rows_reach_back_over_the_slack),
        cmocka_unit_test(test_raw_rows_stand_in_their_slots),
        cmocka_unit_test(test_exact_replay_rebuilds_windows_and_raw_row),
        cmocka_unit_test(test_one_step_back_behind_a_replay),
        cmocka_unit_test(test_replay_from_right_windows_brings_all_raw_rows_back),
        cmocka_unit_test(test_rows_below_the_floor_are_not_seen),
        cmocka_unit_test(test_slices_give_the_bits_of_their_solo_runs),
        cmocka_unit_test(test_a_stopped_slice_disturbs_nobody),
        cmocka_unit_test(test_rows_of_a_stopped_slice_do_not_run_on),
        cmocka_unit_test(test_all_slices_stopped_is_cancelled),
        cmocka_unit_test(test_workspace_grows_and_is_wiped),
        cmocka_unit_test(test_wipe_zeroes_logits),
        cmocka_unit_test(test_no_network_has_nothing),
        cmocka_unit_test(test_lookback_is_that_of_the_ngrams),
    };

    int n_failed = 0;

    seed = prng_seed(argc, argv, 20260315);
    world = ON_CPU;
    n_failed += cmocka_run_group_tests_name("net", tests, open_all, close_all);
    world = APART;
    n_failed += cmocka_run_group_tests_name("net, apart", tests, open_all, close_all);
    world = APART_TABLES;
    n_failed += cmocka_run_group_tests_name("net, apart, tables on the host", tests, open_all, close_all);
    return n_failed;
}
