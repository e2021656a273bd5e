/* Kills a process that saves snapshots, again and again at random moments, and looks at what is
 * there then: the old or the new snapshot, whole, and no litter after the next save.
 *
 *     killed_saver MODEL DIR KILLS [SEED]
 *
 * DIR must be empty. KILLS times a file, KILLS times a name in a directory into which another
 * process saves under a name of its own all the while. Exit status: 0 = as it must be. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvcsa.h"

#include "support/prng.h"

#define FULL (KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS)
#define NA 150u
#define NB 290u
#define MAX_N 290u

typedef struct talk { /* what a session holds */
    kvcsa_session *s;
    int32_t        ids[MAX_N];
    size_t         n;
    float         *logits;
} talk;

typedef struct bench {
    kvcsa_model *model;
    kvcsa_pool  *pool;
    uint32_t     vocab;
    talk         a, b;
    char         file[400];   /* alone in its folder */
    char         folder[400]; /* of the file */
    char         dir[400];
    prng         rng;
    uint32_t     seen[2];     /* how often a and b were found */
    uint32_t     kills;
} bench;

static int fail(const char *what, const kvcsa_error *err)
{
    printf("killed_saver: %s%s%s\n", what, err ? ": " : "", err ? err->text : "");
    return -1;
}

static kvcsa_snapshot_params params_of(const char *name, uint32_t flags)
{
    kvcsa_snapshot_params p;

    kvcsa_snapshot_params_default(&p, sizeof p);
    p.name = name;
    p.flags = flags;
    return p;
}

static kvcsa_pool *make_pool(void)
{
    kvcsa_pool_params p;
    kvcsa_pool       *pool = NULL;

    kvcsa_pool_params_default(&p, sizeof p);
    p.n_threads = 1; /* a fork takes no thread with it */
    (void)kvcsa_pool_create(&p, &pool, NULL);
    return pool;
}

static int talk_make(bench *k, talk *t, size_t n)
{
    kvcsa_error err;

    t->n = n;
    for (size_t i = 0; i < n; i++)
        t->ids[i] = 3 + (int32_t)prng_below(&k->rng, 500);
    if (!(t->logits = calloc(k->vocab, sizeof(float))))
        return fail("no memory", NULL);
    if (kvcsa_session_create(k->pool, k->model, NULL, &t->s, &err) != KVCSA_OK ||
        kvcsa_session_append(t->s, t->ids, n, NULL, NULL, &err) != KVCSA_OK ||
        kvcsa_pool_step(k->pool, &t->s, 1, NULL, NULL, &err) != KVCSA_OK ||
        kvcsa_session_get_logits(t->s, t->logits, k->vocab, &err) != KVCSA_OK)
        return fail("session", &err);
    return 0;
}

static int save(kvcsa_session *s, const char *path, const char *name)
{
    const kvcsa_snapshot_params p = params_of(name, FULL);
    kvcsa_error                 err;

    return kvcsa_snapshot_save(s, path, &p, NULL, &err) == KVCSA_OK ? 0 : fail("save", &err);
}

static int is_talk(bench *k, kvcsa_session *s, const talk *t)
{
    int32_t ids[MAX_N];
    float  *logits = calloc(k->vocab, sizeof(float));
    size_t  n = 0;
    int     is;

    is = logits && kvcsa_session_get_tokens(s, 0, ids, MAX_N, &n, NULL) == KVCSA_OK && n == t->n &&
         memcmp(ids, t->ids, n * sizeof *ids) == 0 &&
         kvcsa_session_get_logits(s, logits, k->vocab, NULL) == KVCSA_OK &&
         memcmp(logits, t->logits, k->vocab * sizeof(float)) == 0;
    free(logits);
    return is;
}

/* What is stored there is a or b, whole. */
static int check(bench *k, const char *path, const char *name)
{
    const kvcsa_snapshot_params p = params_of(name, 0);
    kvcsa_pool                 *pool = make_pool(); /* knows no block: all of them are read */
    kvcsa_session              *s = NULL;
    kvcsa_error                 err = {0};
    int                         bad = 0;

    if (!pool || kvcsa_session_create(pool, k->model, NULL, &s, &err) != KVCSA_OK ||
        kvcsa_snapshot_load(s, path, &p, NULL, &err) != KVCSA_OK)
        bad = fail("load", &err);
    else if (kvcsa_pool_check(pool, &err) != KVCSA_OK)
        bad = fail("pool", &err);
    else if (is_talk(k, s, &k->a))
        k->seen[0]++;
    else if (is_talk(k, s, &k->b))
        k->seen[1]++;
    else
        bad = fail("what is stored is neither the old nor the new one", NULL);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    return bad;
}

/* Files of the folder; litter is what no snapshot is made of. */
static int check_tidy(const char *folder, uint64_t max_bytes)
{
    DIR           *d = opendir(folder);
    struct dirent *e;
    uint64_t       bytes = 0;
    int            bad = d ? 0 : fail(folder, NULL);

    while (d && (e = readdir(d))) {
        const char *dot = strrchr(e->d_name, '.');
        char        path[1024];
        struct stat st;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (stat(path, &st) == 0)
            bytes += (uint64_t)st.st_size;
        if (strcmp(e->d_name, "talk") != 0 &&
            !(dot && (strcmp(dot, ".kvseg") == 0 || strcmp(dot, ".kvman") == 0)))
            bad = fail(path, NULL);
    }
    if (d)
        closedir(d);
    if (bytes > max_bytes) {
        printf("killed_saver: %s holds %llu bytes, limit %llu\n", folder,
               (unsigned long long)bytes, (unsigned long long)max_bytes);
        bad = -1;
    }
    return bad;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static pid_t start_saver(const bench *k, const char *path, const char *name)
{
    const pid_t pid = fork();

    if (pid == 0) {
        while (save(k->b.s, path, name) == 0 && save(k->a.s, path, name) == 0)
            continue;
        fflush(stdout);
        _exit(1);
    }
    return pid;
}

static int stop_saver(pid_t pid)
{
    int status = 0;

    if (pid <= 0 || kill(pid, SIGKILL) != 0 || waitpid(pid, &status, 0) != pid)
        return fail("child", NULL);
    return WIFSIGNALED(status) ? 0 : fail("the saver ended by itself", NULL);
}

static int kill_savers(bench *k, const char *path, const char *name, uint32_t kills)
{
    uint64_t ns = now_ns();

    if (save(k->b.s, path, name) || save(k->a.s, path, name) || save(k->b.s, path, name) ||
        save(k->a.s, path, name))
        return -1;
    ns = (now_ns() - ns) / 2; /* one turn of the saver */
    for (uint32_t i = 0; i < kills; i++) {
        const uint64_t        wait = prng_below(&k->rng, 1 + ns * 3 / 2);
        const struct timespec t = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        const pid_t           pid = start_saver(k, path, name);

        nanosleep(&t, NULL);
        if (stop_saver(pid) || check(k, path, name))
            return -1;
        if (i % 10 == 9 && save(k->a.s, path, name))
            return -1;
    }
    return save(k->a.s, path, name) || check(k, path, name) ? -1 : 0;
}

static uint64_t file_bytes(const bench *k, const talk *t)
{
    const kvcsa_snapshot_params p = params_of(NULL, FULL);
    uint64_t                    n = 0;

    (void)k;
    (void)kvcsa_snapshot_size(t->s, &p, &n, NULL);
    return n;
}

static int run(bench *k, uint32_t kills)
{
    const uint64_t both = file_bytes(k, &k->a) + file_bytes(k, &k->b);
    pid_t          other;
    int            bad;

    printf("file: %u kills\n", kills);
    if (kill_savers(k, k->file, NULL, kills) || check_tidy(k->folder, file_bytes(k, &k->a)))
        return -1;
    printf("directory: %u kills\n", kills);
    fflush(stdout);
    other = start_saver(k, k->dir, "other");
    bad = kill_savers(k, k->dir, "talk", kills);
    if (stop_saver(other))
        bad = -1;
    /* the neighbour may have been killed in the middle; the saves behind that clean up */
    if (bad || check(k, k->dir, "other") || save(k->a.s, k->dir, "other") ||
        save(k->a.s, k->dir, "talk") || save(k->a.s, k->dir, "talk"))
        return -1;
    return check_tidy(k->dir, 2 * both) || check(k, k->dir, "talk") ? -1 : 0;
}

int main(int argc, char **argv)
{
    static bench     k;
    kvcsa_model_info info = {.struct_size = sizeof info};
    kvcsa_error      err;
    int              bad = 1;

    if (argc < 4) {
        fprintf(stderr, "usage: killed_saver MODEL DIR KILLS [SEED]\n");
        return 2;
    }
    prng_init(&k.rng, argc > 4 ? strtoul(argv[4], NULL, 0) : (unsigned long)getpid());
    (void)snprintf(k.folder, sizeof k.folder, "%s/file", argv[2]);
    (void)snprintf(k.file, sizeof k.file, "%s/file/talk", argv[2]);
    (void)snprintf(k.dir, sizeof k.dir, "%s/dir", argv[2]);
    if (mkdir(k.folder, 0755) != 0 || mkdir(k.dir, 0755) != 0) {
        fprintf(stderr, "%s: %s\n", argv[2], strerror(errno));
        return 2;
    }
    k.pool = make_pool();
    if (!k.pool || kvcsa_model_open(argv[1], NULL, &k.model, &err) != KVCSA_OK ||
        kvcsa_model_get_info(k.model, &info, &err) != KVCSA_OK) {
        fail("model", &err);
        goto done;
    }
    k.vocab = info.vocab_tokens;
    if (talk_make(&k, &k.a, NA) || talk_make(&k, &k.b, NB))
        goto done;
    k.kills = (uint32_t)strtoul(argv[3], NULL, 0);
    bad = run(&k, k.kills);
    printf("old found %u times, new %u times\n", k.seen[0], k.seen[1]);
    if (!bad && k.kills >= 50 && (k.seen[0] == 0 || k.seen[1] == 0))
        bad = fail("the kills always came at the same moment", NULL);
done:
    kvcsa_session_release(&k.a.s);
    kvcsa_session_release(&k.b.s);
    kvcsa_pool_release(&k.pool);
    kvcsa_model_release(&k.model);
    free(k.a.logits);
    free(k.b.logits);
    return bad != 0;
}
