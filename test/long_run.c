/* long_run [--steps N] [--threads N] [--dir DIR] [TOKENS...]
 *
 * Sessions of the released cache geometry that end at TOKENS tokens (32768 1048576 without any),
 * the last N (20) of them decoded for real: what each step counts is checked layer by layer, then
 * times, memory and the ratios of the largest to the smallest length are printed. At the end of the
 * largest session its last tokens are computed once more as one chunk: the same logits, and scores
 * tile by tile. The checkpoint lies in --dir, or is made beside the program. Exit status 1: a
 * count, a byte or a bit is not what it has to be. */
#include "support/long_context.h"

#include "session/session_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LENGTHS 8u
#define MAX_STEPS 1024u
#define CHUNK_ROWS 6u /* more than fit into one tile of scores at a million tokens */

typedef struct options {
    uint64_t lengths[MAX_LENGTHS];
    size_t   n_lengths;
    uint32_t steps;
    uint32_t threads;
    char     dir[1024];
} options;

typedef struct figures { /* medians of one length, in seconds */
    double step, full, reindex, attend, reuse;
} figures;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "long_run: %s: %s\n", what, why);
    exit(1);
}

static uint64_t number(const char *text, uint64_t lo, uint64_t hi)
{
    char                    *end;
    const unsigned long long v = strtoull(text, &end, 10);

    if (*end || end == text || v < lo || v > hi)
        fail(text, "not a number in range");
    return v;
}

static void read_options(int argc, char **argv, options *o)
{
    *o = (options){.steps = 20, .threads = 0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
            o->steps = (uint32_t)number(argv[++i], 2, MAX_STEPS);
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            o->threads = (uint32_t)number(argv[++i], 1, 64);
        else if (strcmp(argv[i], "--dir") == 0 && i + 1 < argc)
            snprintf(o->dir, sizeof o->dir, "%s", argv[++i]);
        else if (o->n_lengths < MAX_LENGTHS)
            o->lengths[o->n_lengths++] = number(argv[i], 4096, 1 << 20);
        else
            fail(argv[i], "one too many");
    }
    if (!o->n_lengths) {
        o->lengths[o->n_lengths++] = 32768;
        o->lengths[o->n_lengths++] = 1 << 20;
    }
    o->steps += o->steps % 2; /* what is filled has an even length */
}

/* Of the process, in bytes; 0 = unknown. */
static uint64_t peak_memory(void)
{
    FILE              *f = fopen("/proc/self/status", "r");
    char               line[256];
    unsigned long long kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %llu", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib << 10;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* ------------------------------------------------------------------ one length */

static void check(long_world *w, kvcsa_session *s, uint32_t n)
{
    const char *wrong = long_check_step(w, s, n);

    if (wrong)
        fail("counts", wrong);
}

static void check_bytes(long_world *w, kvcsa_session *s, uint64_t n, const long_memory *m)
{
    const double most = n >= 16384 ? 0.02 : n >= 8192 ? 0.025 : 1;

    if (m->payload_bytes != LONG_RATE * n)
        fail("bytes", "a token does not take 890");
    if (m->overhead > most)
        fail("bytes", "more than the payload and two per cent");
    if (w->step.most_scores > (size_t)4 << 20)
        fail("scores", "more than a tile");
    if (kvcsa_session_length(s) != n)
        fail("length", "not what was asked for");
}

static figures decode(long_world *w, kvcsa_session *s, uint32_t n_steps)
{
    static double v[5][MAX_STEPS];

    for (uint32_t i = 0; i < n_steps; i++) {
        const double ns = (double)long_run(w, s, 1);
        long_times   t;

        check(w, s, 1);
        t = long_times_of(w);
        v[0][i] = ns / 1e9;
        v[1][i] = (double)t.full_ns / 1e9;
        v[2][i] = (double)t.reindex_ns / 1e9;
        v[3][i] = (double)t.attend_ns / 1e9;
        v[4][i] = (double)t.reuse_ns / 1e9;
    }
    return (figures){median(v[0], n_steps), median(v[1], n_steps), median(v[2], n_steps),
                     median(v[3], n_steps), median(v[4], n_steps)};
}

/* The last rows up to n one by one, and by a fork in one chunk. */
static void check_chunk(long_world *w, uint64_t n)
{
    const uint32_t vocab = w->model->config.vocab_size;
    float         *logits = malloc(2 * vocab * sizeof *logits);
    kvcsa_session *again = long_session(w, 0);
    kvcsa_session *chunk = NULL;
    kvcsa_error    err;

    long_fill(w, again, n - CHUNK_ROWS);
    if (!logits || kvcsa_session_fork(again, n - CHUNK_ROWS, NULL, &chunk, &err) != KVCSA_OK)
        fail("fork", "did not work");
    for (uint32_t i = 0; i < CHUNK_ROWS; i++)
        long_run(w, again, 1);
    long_run(w, chunk, CHUNK_ROWS);
    check(w, chunk, CHUNK_ROWS);
    if (w->step.most_scores > (size_t)4 << 20)
        fail("scores", "more than a tile");
    if (kvcsa_session_get_logits(again, logits, vocab, &err) != KVCSA_OK ||
        kvcsa_session_get_logits(chunk, logits + vocab, vocab, &err) != KVCSA_OK)
        fail("logits", err.text);
    if (memcmp(logits, logits + vocab, vocab * sizeof *logits) != 0)
        fail("logits", "a chunk does not give what single rows give");
    printf("  %u rows in one chunk: the same logits, %zu scores at a time (%.1f MB)\n", CHUNK_ROWS,
           w->step.most_scores, (double)w->step.most_scores * sizeof(float) / 1e6);
    kvcsa_session_release(&again);
    kvcsa_session_release(&chunk);
    free(logits);
}

/* Where the model allows no more tokens, nor does the session. */
static void check_limit(const long_world *w, kvcsa_session *s, uint64_t n)
{
    const int32_t id = long_token(n);
    kvcsa_error   err;

    if (n == w->model->plan.max_tokens &&
        kvcsa_session_append(s, &id, 1, NULL, NULL, &err) != KVCSA_ERR_LIMIT)
        fail("append", "a token beyond the context limit was taken");
}

static figures run_length(const options *o, uint64_t n, int largest)
{
    static long_world w;
    kvcsa_session    *s;
    long_memory       m;
    figures           f;

    long_open(&w, o->dir, o->threads);
    s = long_session(&w, 0);
    long_fill(&w, s, n - o->steps);
    f = decode(&w, s, o->steps);
    m = long_memory_of(&w, s);
    check_bytes(&w, s, n, &m);
    printf("%llu tokens, %u decode steps, all counts as computed\n", (unsigned long long)n,
           o->steps);
    printf("  seconds a step: %.3f; of them Full layers' selection %.3f, Reindex layers' %.4f, "
           "attention %.3f\n",
           f.step, f.full, f.reindex, f.attend);
    printf("  bytes: payload %llu (890 a token), overhead %.2f %%; apart: windows %llu, workspace "
           "%llu, logits %llu\n",
           (unsigned long long)m.payload_bytes, 100 * m.overhead,
           (unsigned long long)m.window_bytes, (unsigned long long)m.workspace_bytes,
           (unsigned long long)m.logits_bytes);
    printf("  read by the last step: %llu bytes\n",
           (unsigned long long)work_released_read_bytes(n));
    printf("  peak memory of the process: %.2f GiB\n", (double)peak_memory() / (1 << 30));
    check_limit(&w, s, n);
    kvcsa_session_release(&s);
    if (largest)
        check_chunk(&w, n);
    long_close(&w);
    fflush(stdout);
    return f;
}

int main(int argc, char **argv)
{
    figures first = {0};
    figures last = {0};
    options o;

    read_options(argc, argv, &o);
    if (!o.dir[0])
        long_checkpoint(argv[0], o.dir, sizeof o.dir);
    for (size_t i = 0; i < o.n_lengths; i++) {
        last = run_length(&o, o.lengths[i], i + 1 == o.n_lengths);
        first = i == 0 ? last : first;
    }
    if (o.n_lengths > 1)
        printf("t(%llu) / t(%llu): Full %.2f, Reindex %.3f, attention %.3f, of Reuse layers %.3f, "
               "step %.2f\n",
               (unsigned long long)o.lengths[o.n_lengths - 1], (unsigned long long)o.lengths[0],
               last.full / first.full, last.reindex / first.reindex, last.attend / first.attend,
               last.reuse / first.reuse, last.step / first.step);
    return 0;
}
