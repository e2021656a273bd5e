/* A document that stays read: the first start computes its cache and saves it, every later start
 * loads it in milliseconds and asks.
 *
 *   cc desktop_notes.c $(pkg-config --cflags --libs kvcsa) -o desktop_notes
 *   ./desktop_notes examples/models/tiny notes.cache notes.txt   one start, as a program has it
 *   ./desktop_notes examples/models/tiny notes.cache             a tour: six starts, one by one
 *
 * The snapshot is only ever a shortcut. It is loaded if it is there, whole and of this model; then
 * kvcsa_session_sync makes the session hold what the document says *now*: nothing is computed if
 * nothing has changed, and what is behind the first change otherwise. Of a damaged snapshot what is
 * in front of the damage is kept. In every case the answer is the one of a session that has read
 * the document from its beginning; the tour checks that. */
#include <kvcsa.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_ANSWER 24
#define MAX_TEXT 65536

static const char question[] = "\n\nAnd the captain looked upon the chart, and he said, ";

/* ------------------------------------------------------------------ the host's side */

static atomic_llong held; /* bytes that the library has of us */

static void *count_alloc(void *user, size_t size, size_t align)
{
    unsigned char *p = size < SIZE_MAX - align - sizeof p ? malloc(size + align + sizeof p) : NULL;
    uintptr_t      at = (uintptr_t)p + sizeof p;

    (void)user;
    if (!p)
        return NULL;
    at += (align - at % align) % align;
    memcpy((unsigned char *)at - sizeof p, &p, sizeof p);
    atomic_fetch_add(&held, (long long)size);
    return (void *)at;
}

static void count_free(void *user, void *ptr, size_t size, size_t align)
{
    unsigned char *p;

    (void)user, (void)align;
    if (!ptr)
        return;
    memcpy(&p, (unsigned char *)ptr - sizeof p, sizeof p);
    atomic_fetch_sub(&held, (long long)size);
    free(p);
}

static const kvcsa_allocator counting = {count_alloc, count_free, NULL};

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static kvcsa_status complain(kvcsa_error *err, const char *what)
{
    snprintf(err->text, sizeof err->text, "%s", what);
    return err->status = KVCSA_ERR_INTERNAL;
}

/* ------------------------------------------------------------------ one start of the program */

typedef struct start {
    /* what it is given */
    const char *model_path, *cache_path, *text;
    /* what it has while it runs */
    kvcsa_model   *model;
    kvcsa_pool    *pool;
    kvcsa_session *session;
    int32_t       *ids;
    size_t         n_ids;
    /* what became of it */
    uint64_t n_loaded;   /* tokens from the snapshot */
    uint64_t n_computed; /* tokens of the document that were not there */
    double   load_ms, read_ms;
    char     note[320];  /* why the snapshot was not used, or not all of it */
    int32_t  answer[N_ANSWER];
    char     said[N_ANSWER * 64];
} start;

static kvcsa_status open_all(start *s, kvcsa_error *err)
{
    kvcsa_model_params mp;
    kvcsa_pool_params  pp;
    kvcsa_status       st;

    kvcsa_model_params_default(&mp, sizeof mp);
    kvcsa_pool_params_default(&pp, sizeof pp);
    mp.allocator = pp.allocator = &counting;
    if ((st = kvcsa_model_open(s->model_path, &mp, &s->model, err)) != KVCSA_OK ||
        (st = kvcsa_pool_create(&pp, &s->pool, err)) != KVCSA_OK)
        return st;
    return kvcsa_session_create(s->pool, s->model, NULL, &s->session, err);
}

static kvcsa_status tokenize(start *s, kvcsa_error *err)
{
    const size_t n = strlen(s->text);
    kvcsa_status st;

    if (!(s->ids = malloc((n + 1) * sizeof *s->ids))) { /* a token is a byte or more */
        snprintf(err->text, sizeof err->text, "no memory for the tokens of %zu bytes", n);
        return err->status = KVCSA_ERR_NOMEM;
    }
    st = kvcsa_model_tokenize(s->model, s->text, n, 0, s->ids, n + 1, &s->n_ids, err);
    if (st == KVCSA_OK && s->n_ids == 0)
        return complain(err, "the document is empty");
    return st;
}

/* What the snapshot has. Whatever is wrong with it costs time and nothing else, so this cannot
 * fail: the reason is noted, and the session is empty then. */
static void load(start *s)
{
    kvcsa_snapshot_params p;
    kvcsa_snapshot_info   info = {.struct_size = sizeof info};
    kvcsa_error           err = {.status = KVCSA_OK};
    kvcsa_status          st;
    const double          begin = now_ms();

    kvcsa_snapshot_params_default(&p, sizeof p);
    st = kvcsa_snapshot_load(s->session, s->cache_path, &p, &info, &err);
    if (st == KVCSA_ERR_CORRUPT || st == KVCSA_ERR_FORMAT) { /* damaged, or cut short */
        snprintf(s->note, sizeof s->note, "%s (%s)", err.text, kvcsa_status_name(st));
        p.flags |= KVCSA_SNAPSHOT_SALVAGE;
        st = kvcsa_snapshot_load(s->session, s->cache_path, &p, &info, NULL);
    } else if (st != KVCSA_OK) { /* there is none; another model; another version */
        snprintf(s->note, sizeof s->note, "%s (%s)", err.text, kvcsa_status_name(st));
    }
    s->n_loaded = st == KVCSA_OK ? info.n_tokens : 0;
    s->load_ms = now_ms() - begin;
}

static kvcsa_status save(start *s, kvcsa_error *err)
{
    kvcsa_snapshot_params p;

    kvcsa_snapshot_params_default(&p, sizeof p);
    p.flags = KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS; /* so that a load computes nothing */
    return kvcsa_snapshot_save(s->session, s->cache_path, &p, NULL, err);
}

/* The session holds the document as it is now. */
static kvcsa_status read_document(start *s, kvcsa_error *err)
{
    kvcsa_reuse  r = {.struct_size = sizeof r};
    const double begin = now_ms();
    kvcsa_status st;

    if ((st = kvcsa_session_sync(s->session, s->ids, s->n_ids, NULL, &r, err)) != KVCSA_OK ||
        (st = kvcsa_pool_step(s->pool, &s->session, 1, NULL, NULL, err)) != KVCSA_OK)
        return st;
    s->n_computed = r.n_compute;
    s->read_ms = now_ms() - begin;
    return st;
}

/* In a fork: the document's own session stays as it is, and many questions may be asked. */
static kvcsa_status ask(start *s, kvcsa_error *err)
{
    kvcsa_session *fork = NULL;
    int32_t        ids[sizeof question];
    size_t         n = 0;
    kvcsa_status   st;

    if ((st = kvcsa_session_fork(s->session, s->n_ids, NULL, &fork, err)) != KVCSA_OK ||
        (st = kvcsa_model_tokenize(s->model, question, sizeof question - 1, 0, ids, sizeof question,
                                   &n, err)) != KVCSA_OK ||
        (st = kvcsa_session_append(fork, ids, n, NULL, NULL, err)) != KVCSA_OK)
        goto done;
    for (int i = 0; i < N_ANSWER; i++)
        if ((st = kvcsa_pool_step(s->pool, &fork, 1, NULL, NULL, err)) != KVCSA_OK ||
            (st = kvcsa_session_sample(fork, NULL, &s->answer[i], err)) != KVCSA_OK ||
            (st = kvcsa_session_append(fork, &s->answer[i], 1, NULL, NULL, err)) != KVCSA_OK)
            goto done;
    if ((st = kvcsa_model_detokenize(s->model, s->answer, N_ANSWER, s->said, sizeof s->said - 1, &n,
                                     err)) == KVCSA_OK)
        s->said[n < sizeof s->said ? n : sizeof s->said - 1] = '\0';
done:
    kvcsa_session_release(&fork);
    return st;
}

static void stop(start *s)
{
    free(s->ids);
    kvcsa_session_release(&s->session);
    kvcsa_pool_release(&s->pool);
    kvcsa_model_release(&s->model);
}

/* A whole life of the program. cache_path NULL: without a snapshot. */
static kvcsa_status run(start *s, kvcsa_error *err)
{
    kvcsa_status st;

    if ((st = open_all(s, err)) != KVCSA_OK || (st = tokenize(s, err)) != KVCSA_OK)
        goto done;
    if (s->cache_path)
        load(s);
    if ((st = read_document(s, err)) != KVCSA_OK)
        goto done;
    if (s->cache_path && (s->n_computed > 0 || s->n_loaded != s->n_ids || s->note[0]))
        st = save(s, err);
    if (st == KVCSA_OK)
        st = ask(s, err);
done:
    stop(s);
    return st;
}

static void report(const start *s, const char *what)
{
    printf("%s\n", what);
    if (s->note[0])
        printf("    %s\n", s->note);
    printf("    %llu of %zu tokens loaded in %.2f ms, %llu computed in %.2f ms\n",
           (unsigned long long)s->n_loaded, s->n_ids, s->load_ms,
           (unsigned long long)s->n_computed, s->read_ms);
}

/* ------------------------------------------------------------------ the tour */

/* A ship's log; `last` is its last line. */
static void write_notes(char *text, size_t size, int n_days, const char *last)
{
    static const char *weather[] = {"a fresh breeze from the north", "no wind, and a thick fog",
                                    "a heavy sea, all boats made fast", "clear, with a light air"};
    static const char *events[] = {"Two whales were seen at a great distance, and lost.",
                                   "The carpenter mended the second boat.",
                                   "A ship was spoken, eleven months from home.",
                                   "The cook found worms in the bread, and said nothing of it.",
                                   "The captain did not come upon the deck."};
    size_t             at = 0;

    for (int d = 1; d <= n_days && at < size; d++)
        at += (size_t)snprintf(text + at, size - at, "Day %d. Wind and weather: %s. %s\n", d,
                               weather[d % 4], events[d % 5]);
    if (at < size)
        snprintf(text + at, size - at, "%s", last);
}

/* Change the file as a bad disk would: one bit at a part of its length, or the rest gone. */
static kvcsa_status damage(const char *path, double where, int cut, kvcsa_error *err)
{
    FILE          *f = fopen(path, "rb");
    unsigned char *bytes = NULL;
    long           n = -1;
    int            good = 0;

    if (f && fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) > 0 && fseek(f, 0, SEEK_SET) == 0 &&
        (bytes = malloc((size_t)n)) != NULL)
        good = fread(bytes, 1, (size_t)n, f) == (size_t)n;
    if (f)
        fclose(f);
    if (good) {
        const size_t at = (size_t)((double)n * where);

        bytes[at] ^= 4;
        f = fopen(path, "wb");
        good = f && fwrite(bytes, 1, cut ? at : (size_t)n, f) == (cut ? at : (size_t)n);
        if (f && fclose(f) != 0)
            good = 0;
    }
    free(bytes);
    return good ? KVCSA_OK : complain(err, "the snapshot could not be damaged");
}

/* One start, compared with a session that has read the document without any snapshot. */
static kvcsa_status tour_start(start *s, const start *plain, const char *what, kvcsa_error *err)
{
    const kvcsa_status st = run(s, err);

    if (st != KVCSA_OK)
        return st;
    report(s, what);
    if (memcmp(s->answer, plain->answer, sizeof s->answer) != 0)
        return complain(err, "the answer is not that of a session which read everything");
    return KVCSA_OK;
}

/* What the tour claims. */
static kvcsa_status tour_check(const start *s, kvcsa_error *err)
{
    if (s[0].n_loaded != 0 || s[0].n_computed != s[0].n_ids)
        return complain(err, "the first start did not read the document");
    if (s[1].n_loaded != s[1].n_ids || s[1].n_computed != 0 || s[1].note[0])
        return complain(err, "the next start computed something");
    if (s[1].load_ms + s[1].read_ms >= s[0].read_ms)
        return complain(err, "loading is not faster than reading");
    if (memcmp(s[0].answer, s[1].answer, sizeof s[0].answer) != 0)
        return complain(err, "the answers differ");
    if (s[2].n_computed == 0 || s[2].n_computed * 4 > s[2].n_ids)
        return complain(err, "a changed line had more than its own tokens computed");
    if (!s[3].note[0] || !s[4].note[0] || !s[5].note[0])
        return complain(err, "damage was not seen");
    if (s[3].n_loaded == 0 || s[3].n_loaded >= s[3].n_ids)
        return complain(err, "nothing was kept of the snapshot in front of the damage");
    return KVCSA_OK;
}

static kvcsa_status tour(const char *model, const char *cache, kvcsa_error *err)
{
    static char  text[MAX_TEXT], other[MAX_TEXT];
    start        s[6];
    start        plain = {.model_path = model, .text = text};
    start        changed = {.model_path = model, .text = other};
    double       first, next;
    kvcsa_status st;

    write_notes(text, sizeof text, 60, "Nobody slept in this night.\n");
    write_notes(other, sizeof other, 60, "In this night the white whale was seen.\n");
    for (int i = 0; i < 6; i++)
        s[i] = (start){.model_path = model, .cache_path = cache, .text = i < 2 ? text : other};
    kvcsa_snapshot_remove(cache, NULL, NULL); /* of an earlier tour; there may be none */

    if ((st = run(&plain, err)) != KVCSA_OK || (st = run(&changed, err)) != KVCSA_OK ||
        (st = tour_start(&s[0], &plain, "First start: there is no snapshot.", err)) != KVCSA_OK ||
        (st = tour_start(&s[1], &plain, "Next start: the same document.", err)) != KVCSA_OK ||
        (st = tour_start(&s[2], &changed, "The last line has changed.", err)) != KVCSA_OK ||
        (st = damage(cache, 0.7, 0, err)) != KVCSA_OK ||
        (st = tour_start(&s[3], &changed, "A bit of the snapshot has flipped.", err)) != KVCSA_OK ||
        (st = damage(cache, 0.4, 1, err)) != KVCSA_OK ||
        (st = tour_start(&s[4], &changed, "The snapshot ends too early.", err)) != KVCSA_OK ||
        (st = damage(cache, 0.0, 0, err)) != KVCSA_OK ||
        (st = tour_start(&s[5], &changed, "The snapshot is no snapshot.", err)) != KVCSA_OK)
        return st;
    first = s[0].load_ms + s[0].read_ms;
    next = s[1].load_ms + s[1].read_ms;
    printf("\nFirst start %.2f ms, next start %.2f ms: %.0f times as fast. Both answer:\n%s\n",
           first, next, first / next, s[1].said);
    if ((st = tour_check(s, err)) != KVCSA_OK)
        return st;
    return kvcsa_snapshot_remove(cache, NULL, err);
}

/* ------------------------------------------------------------------ the program */

static kvcsa_status one_start(const char *model, const char *cache, const char *document,
                              kvcsa_error *err)
{
    static char  text[MAX_TEXT];
    start        s = {.model_path = model, .cache_path = cache, .text = text};
    FILE        *f = fopen(document, "rb");
    size_t       n = 0;
    kvcsa_status st;

    if (f) {
        n = fread(text, 1, sizeof text - 1, f); /* of a long one, the beginning */
        fclose(f);
    }
    text[n] = '\0';
    if (!f || n == 0)
        return complain(err, "the document cannot be read, or is empty");
    st = run(&s, err);
    if (st == KVCSA_OK) {
        report(&s, s.n_loaded ? "The document was read before." : "The document is new.");
        printf("%s\n", s.said);
    }
    return st;
}

int main(int argc, char **argv)
{
    kvcsa_error  err = {.status = KVCSA_OK};
    kvcsa_status st;

    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: desktop_notes MODEL CACHE [DOCUMENT]\n");
        return 2;
    }
    st = argc == 4 ? one_start(argv[1], argv[2], argv[3], &err) : tour(argv[1], argv[2], &err);
    if (st == KVCSA_OK && atomic_load(&held) != 0)
        st = complain(&err, "memory was not given back");
    if (st != KVCSA_OK) {
        fprintf(stderr, "desktop_notes: %s (%s)\n", err.text, kvcsa_status_name(st));
        return 1;
    }
    printf("%lld bytes are left.\n", (long long)atomic_load(&held));
    return 0;
}
