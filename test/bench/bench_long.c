/* Long contexts: decode steps of the released cache geometry at 4k, 32k, 128k and 1M tokens, one
 * thread. Entries are random and the network is small, so a step is mostly what grows or must not
 * grow with the context: index scores, candidates, selection, attention. Laws are about counters
 * first (exact), then about the clock: times at the largest length against those at 32k. */
#include "bench.h"

#include <stdio.h>

#include "base/checked.h"
#include "session/session_int.h"
#include "support/long_context.h"

#define N_LENGTHS 4u
#define ROOM 128u /* tokens that the runs may add; even */

typedef struct lengths {
    long_world     w;
    kvcsa_session *s[N_LENGTHS];
    uint64_t       n[N_LENGTHS];
    size_t         n_lengths;
    long_times     times[N_LENGTHS]; /* of the run */
    int64_t        total_ns[N_LENGTHS];
    int64_t        operators_ns[N_LENGTHS];
} lengths;

static void step(lengths *l, size_t i)
{
    const char *wrong;

    l->total_ns[i] = long_run(&l->w, l->s[i], 1);
    if ((wrong = long_check_step(&l->w, l->s[i], 1)))
        bench_die("cpu.step.v41", wrong);
    l->operators_ns[i] = l->w.step.operators_ns;
    l->times[i] = long_times_of(&l->w);
}

/* One step of every session, forwards and backwards in turn. */
static void run_all(void *arg, uint32_t run, int64_t *ours, int64_t *peers)
{
    lengths     *l = arg;
    const size_t n = l->n_lengths;
    const size_t large = n - 1;
    const size_t small = 1; /* 32k */
    size_t       k = 0;

    for (size_t i = 0; i < n; i++)
        step(l, run % 2 ? n - 1 - i : i);
    for (; k < n; k++) {
        ours[k] = l->total_ns[k];
        peers[k] = l->operators_ns[k];
    }
    ours[k] = l->times[large].full_ns;
    peers[k++] = l->times[small].full_ns;
    ours[k] = l->times[large].reindex_ns;
    peers[k++] = l->times[small].reindex_ns;
    ours[k] = l->times[large].attend_ns;
    peers[k++] = l->times[small].attend_ns;
    ours[k] = l->times[large].reuse_ns;
    peers[k] = l->times[small].reuse_ns;
}

static bench_row *add_ratio(bench_rows *out, const char *name, uint64_t n, double limit)
{
    bench_row *r = bench_add(out, name, n, "ms");

    r->peer = "the same at 32k";
    r->goal = BENCH_RATIO;
    r->limit = limit;
    return r;
}

static void measure_times(const bench_cache_params *p, lengths *l, bench_rows *out)
{
    const size_t   large = l->n_lengths - 1;
    const uint64_t n = l->n[large];
    bench_row     *rows[N_LENGTHS + 4];
    size_t         k = 0;

    for (; k < l->n_lengths; k++) {
        rows[k] = bench_add(out, "cpu.step.v41", l->n[k], "ms");
        rows[k]->peer = "its operators";
        rows[k]->goal = BENCH_RATIO;
        rows[k]->limit = 1.1;
    }
    /* Full layers look at every key: as much longer as the context is, within a tenth */
    rows[k++] = add_ratio(out, "step.full", n, 1.1 * (double)n / 32768);
    rows[k++] = add_ratio(out, "step.reindex", n, 1.2);
    rows[k++] = add_ratio(out, "step.attend", n, 1.15);
    rows[k++] = add_ratio(out, "step.reuse", n, 1.15);
    bench_many(rows, k, run_all, l, p->n_runs);
    while (k > 0)
        bench_scale(rows[--k], 1e-6);
}

static void add_count(bench_rows *out, const char *name, uint64_t n, const char *unit, double value,
                      double want)
{
    bench_row *r = bench_add(out, name, n, unit);

    r->goal = BENCH_EQUAL;
    r->limit = want;
    r->min = r->median = value;
}

/* Of the last step; the newest candidate block may lack keys. */
static void add_counts(lengths *l, size_t i, bench_rows *out)
{
    const uint64_t      n = l->n[i];
    const uint64_t      held = kvcsa_session_length(l->s[i]);
    const uint64_t      lacks = held > 16384 ? (8 - held % 8) % 8 : 0;
    kvcsa_session_stats st = {.struct_size = sizeof st};
    const kvcsa_work   *reindex = &st.step[KVCSA_LAYERS_REINDEX];
    const kvcsa_work   *reuse = &st.step[KVCSA_LAYERS_REUSE];
    bench_row          *r;
    kvcsa_error         err;

    if (kvcsa_session_get_stats(l->s[i], &st, &err) != KVCSA_OK)
        bench_die("cpu.step.v41", err.text);
    add_count(out, "keys.reindex", n, "a layer", (double)reindex->n_keys_scored / 4 + (double)lacks,
              (double)kvi_min_size(held, 16384));
    add_count(out, "keys.reuse", n, "a layer", (double)reuse->n_keys_scored, 0);
    add_count(out, "rows.attend", n, "a layer",
              (double)(reuse->n_entries_read + reuse->n_window_rows_read) / 30, 640);
    r = bench_add(out, "mem.workspace", n, "bytes");
    r->min = r->median = (double)st.workspace_bytes;
}

void bench_long(const bench_cache_params *p, bench_rows *out)
{
    static const uint64_t sizes[N_LENGTHS] = {4096, 32768, 131072, 1048576};
    static lengths        l;
    char                  program[1024];
    char                  dir[1024];

    snprintf(program, sizeof program, "%s/bench", p->folder); /* the checkpoint lies beside it */
    long_checkpoint(program, dir, sizeof dir);
    long_open(&l.w, dir, 1);
    for (; l.n_lengths < N_LENGTHS && sizes[l.n_lengths] <= p->largest; l.n_lengths++) {
        const size_t i = l.n_lengths;

        l.n[i] = sizes[i];
        l.s[i] = long_session(&l.w, 0);
        long_fill(&l.w, l.s[i], sizes[i] - ROOM);
    }
    measure_times(p, &l, out);
    add_counts(&l, 0, out);
    add_counts(&l, l.n_lengths - 1, out);
    for (size_t i = 0; i < l.n_lengths; i++)
        kvcsa_session_release(&l.s[i]);
    long_close(&l.w);
}
