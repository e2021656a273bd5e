/* What the tests of snapshots share: folders that go away, whole files, parameters, and the rule
 * that a session goes on as if nothing had happened. Public header only. */
#ifndef TEST_SNAP_H
#define TEST_SNAP_H

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/host.h"

#define SNAP_PAGE 4096u /* the header, and what records are padded to */

/* ------------------------------------------------------------------ folders and files */

typedef struct snap_dir {
    char path[256];
} snap_dir;

typedef struct snap_path {
    char text[512];
} snap_path;

static inline snap_path snap_in(const snap_dir *d, const char *file)
{
    snap_path p;

    assert_true(snprintf(p.text, sizeof p.text, "%s/%s", d->path, file) < (int)sizeof p.text);
    return p;
}

static inline snap_dir snap_dir_make(void)
{
    const char *tmp = getenv("TMPDIR");
    snap_dir    d;

    assert_true(snprintf(d.path, sizeof d.path, "%s/kvcsa-snap-XXXXXX", tmp && *tmp ? tmp : "/tmp")
                < (int)sizeof d.path);
    assert_non_null(mkdtemp(d.path));
    return d;
}

static inline snap_dir snap_dir_make_in(const snap_dir *d, const char *name)
{
    const snap_path p = snap_in(d, name);
    snap_dir        sub;

    assert_int_equal(mkdir(p.text, 0755), 0);
    assert_true(snprintf(sub.path, sizeof sub.path, "%.255s", p.text) < (int)sizeof sub.path);
    return sub;
}

/* Calls f for each entry but . and ..; returns how many there are. */
static inline size_t snap_dir_each(const snap_dir *d,
                                   void (*f)(void *user, const char *path, const char *name),
                                   void *user)
{
    DIR           *dir = opendir(d->path);
    struct dirent *e;
    size_t         n = 0;

    assert_non_null(dir);
    while ((e = readdir(dir))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        n++;
        if (f)
            f(user, snap_in(d, e->d_name).text, e->d_name);
    }
    closedir(dir);
    return n;
}

static inline size_t snap_dir_count(const snap_dir *d)
{
    return snap_dir_each(d, NULL, NULL);
}

static inline void snap_remove_leaf(void *user, const char *path, const char *name)
{
    (void)user;
    (void)name;
    assert_int_equal(unlink(path), 0);
}

static inline void snap_remove_entry(void *user, const char *path, const char *name)
{
    struct stat st;
    snap_dir    sub;

    (void)user;
    (void)name;
    assert_int_equal(lstat(path, &st), 0);
    if (!S_ISDIR(st.st_mode)) {
        assert_int_equal(unlink(path), 0);
        return;
    }
    assert_true(snprintf(sub.path, sizeof sub.path, "%s", path) < (int)sizeof sub.path);
    snap_dir_each(&sub, snap_remove_leaf, NULL);
    assert_int_equal(rmdir(path), 0);
}

static inline void snap_dir_remove(snap_dir *d) /* with one level of folders */
{
    snap_dir_each(d, snap_remove_entry, NULL);
    assert_int_equal(rmdir(d->path), 0);
}

/* The end of a test with one file and one session. */
static inline void snap_put_away(const snap_path *file, kvcsa_session *s, kvcsa_pool *pool)
{
    assert_int_equal(unlink(file->text), 0);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
}

static inline uint64_t snap_file_size(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_size;
}

static inline void snap_add_size(void *user, const char *path, const char *name)
{
    (void)name;
    *(uint64_t *)user += snap_file_size(path);
}

static inline uint64_t snap_dir_bytes(const snap_dir *d)
{
    uint64_t n = 0;

    snap_dir_each(d, snap_add_size, &n);
    return n;
}

static inline void snap_write_file(const char *path, const void *data, size_t n_bytes)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n_bytes, f), n_bytes);
    assert_int_equal(fclose(f), 0);
}

static inline void snap_assert_files_equal(const char *a, const char *b)
{
    size_t na = 0, nb = 0;
    char  *da = read_file(a, &na), *db = read_file(b, &nb);

    assert_int_equal(na, nb);
    assert_memory_equal(da, db, na);
    free(da);
    free(db);
}

/* ------------------------------------------------------------------ calls */

static inline kvcsa_snapshot_params snap_params(const char *name, uint32_t flags)
{
    kvcsa_snapshot_params p;

    kvcsa_snapshot_params_default(&p, sizeof p);
    p.name = name;
    p.flags = flags;
    return p;
}

static inline kvcsa_snapshot_info snap_save(kvcsa_session *s, const char *path, const char *name,
                                            uint32_t flags)
{
    const kvcsa_snapshot_params p = snap_params(name, flags);
    kvcsa_snapshot_info         info = {.struct_size = sizeof info};
    kvcsa_error                 err;

    assert_ok(kvcsa_snapshot_save(s, path, &p, &info, &err));
    return info;
}

static inline kvcsa_snapshot_info snap_load(kvcsa_session *s, const char *path, const char *name,
                                            uint32_t flags)
{
    const kvcsa_snapshot_params p = snap_params(name, flags);
    kvcsa_snapshot_info         info = {.struct_size = sizeof info};
    kvcsa_error                 err;

    assert_ok(kvcsa_snapshot_load(s, path, &p, &info, &err));
    return info;
}

static inline kvcsa_pool_stats snap_pool_stats(kvcsa_pool *pool)
{
    kvcsa_pool_stats st = {.struct_size = sizeof st};
    kvcsa_error      err;

    assert_ok(kvcsa_pool_get_stats(pool, &st, &err));
    return st;
}

static inline kvcsa_session_stats snap_session_stats(kvcsa_session *s)
{
    kvcsa_session_stats st = {.struct_size = sizeof st};
    kvcsa_error         err;

    assert_ok(kvcsa_session_get_stats(s, &st, &err));
    return st;
}

/* ------------------------------------------------------------------ one undisturbed run */

#define SNAP_N 264

typedef struct snap_run { /* tokens and the logits of every one of them, computed in one go */
    int32_t   ids[SNAP_N];
    host_rows cold;
} snap_run;

static inline void snap_run_make(snap_run *r, kvcsa_model *model, uint64_t seed)
{
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = host_session(pool, model, 0);

    host_tokens(r->ids, SNAP_N, seed);
    r->cold = host_rows_make(SNAP_N, T1_VOCAB);
    host_run(pool, s, r->ids, SNAP_N, &r->cold);
    assert_true(r->cold.in_order && r->cold.n == SNAP_N);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
}

static inline void snap_run_free(snap_run *r)
{
    free(r->cold.data);
    r->cold.data = NULL;
}

static inline const float *snap_row(const snap_run *r, uint64_t position)
{
    return r->cold.data + position * T1_VOCAB;
}

/* Goes on to n tokens; every row of logits is that of the undisturbed run, bit for bit. */
static inline void snap_go_on(const snap_run *r, kvcsa_pool *pool, kvcsa_session *s, uint64_t n)
{
    const uint64_t from = kvcsa_session_length(s);
    host_rows      rows = host_rows_make(n - from, T1_VOCAB);

    rows.next = from;
    host_run(pool, s, r->ids + from, n - from, &rows);
    assert_true(rows.in_order);
    assert_int_equal(rows.n, n - from);
    assert_memory_equal(rows.data, snap_row(r, from), rows.n * T1_VOCAB * sizeof(float));
    free(rows.data);
}

static inline kvcsa_session *snap_session(const snap_run *r, kvcsa_pool *pool, kvcsa_model *model,
                                          uint64_t n)
{
    kvcsa_session *s = host_session(pool, model, 0);

    if (n) {
        host_run(pool, s, r->ids, n, NULL);
        assert_int_equal(kvcsa_session_length(s), n);
    }
    return s;
}

static inline void snap_assert_tokens(const snap_run *r, kvcsa_session *s, uint64_t n)
{
    int32_t     ids[SNAP_N];
    size_t      n_ids = 0;
    kvcsa_error err;

    assert_int_equal(kvcsa_session_length(s), n);
    assert_ok(kvcsa_session_get_tokens(s, 0, ids, SNAP_N, &n_ids, &err));
    assert_int_equal(n_ids, n);
    assert_memory_equal(ids, r->ids, n * sizeof *ids);
}

/* A session of n tokens after something has failed: tokens and logits are there, nothing is queued
 * or waits to be run again, the pool is sound. */
static inline void snap_assert_untouched(const snap_run *r, kvcsa_pool *pool, kvcsa_session *s,
                                         uint64_t n)
{
    kvcsa_error err;
    float       logits[T1_VOCAB];

    snap_assert_tokens(r, s, n);
    assert_int_equal(snap_session_stats(s).n_queued, 0);
    assert_int_equal(snap_session_stats(s).n_replay, 0);
    if (n) {
        host_logits(s, logits, T1_VOCAB);
        assert_memory_equal(logits, snap_row(r, n - 1), sizeof logits);
    }
    assert_ok(kvcsa_pool_check(pool, &err));
}

/* A snapshot in memory, for kvcsa_writer and kvcsa_reader. */
typedef struct snap_bytes {
    uint8_t *data;
    size_t   n, at;
} snap_bytes;

static inline int32_t snap_take(void *user, const void *data, size_t n)
{
    snap_bytes *b = user;

    assert_true(n <= b->n - b->at);
    memcpy(b->data + b->at, data, n);
    b->at += n;
    return 0;
}

static inline int64_t snap_give(void *user, void *data, size_t n)
{
    snap_bytes *b = user;

    n = n < b->n - b->at ? n : b->n - b->at;
    memcpy(data, b->data + b->at, n);
    b->at += n;
    return (int64_t)n;
}

#endif
