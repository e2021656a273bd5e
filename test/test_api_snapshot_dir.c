/* Snapshots in a directory: only what is missing is written, names share records, nothing is lost
 * or left behind; and sessions that go on in another process. On the random checkpoint T1.
 *
 * Started as `test_api_snapshot_dir --go-on PATH OUT` the program is that other process. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "support/snap.h"

#define N 200u
#define FULL (KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS)

typedef struct fixture {
    kvcsa_model *model; /* blocks of 16 tokens */
    snap_run     run, other;
    kvcsa_pool  *pool;
    snap_dir     dir;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->model = host_model_in_blocks(16);
    snap_run_make(&f->run, f->model, 311);
    snap_run_make(&f->other, f->model, 312);
    f->pool = host_pool(1, 0);
    f->dir = snap_dir_make();
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    kvcsa_pool_release(&f->pool);
    kvcsa_model_release(&f->model);
    snap_run_free(&f->run);
    snap_run_free(&f->other);
    snap_dir_remove(&f->dir);
    free(f);
    return 0;
}

static void count_segment(void *user, const char *path, const char *name)
{
    const char *dot = strrchr(name, '.');

    (void)path;
    *(size_t *)user += dot && strcmp(dot, ".kvseg") == 0;
}

static size_t n_segments(const snap_dir *d)
{
    size_t n = 0;

    snap_dir_each(d, count_segment, &n);
    return n;
}

/* Nothing but segments and these manifests. */
static void assert_no_litter(const snap_dir *d, size_t n_names)
{
    assert_int_equal(snap_dir_count(d), n_segments(d) + n_names);
}

/* The snapshot of this name, loaded into a new pool, goes on like the run. */
static void check_load(const fixture *f, const snap_run *run, const snap_dir *d, const char *name,
                       uint64_t n, uint64_t to)
{
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = host_session(pool, f->model, 0);

    assert_int_equal(snap_load(s, d->path, name, 0).n_tokens, n);
    snap_assert_tokens(run, s, n);
    if (to > n)
        snap_go_on(run, pool, s, to);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
}

/* ------------------------------------------------------------------ only what is missing */

/* A checkpoint a turn: each writes the turn's records and a manifest, everything is stored once. */
static void test_a_turn_writes_its_own_records_only(void **state)
{
    const fixture  *f = *state;
    snap_dir        d = snap_dir_make_in(&f->dir, "turns");
    kvcsa_pool     *pool = host_pool(1, 0);
    kvcsa_session  *s = host_session(pool, f->model, 0);
    const snap_path file = snap_in(&f->dir, "whole");
    uint64_t        written = 0;

    for (uint64_t n = 32; n <= 256; n += 32) {
        kvcsa_snapshot_info info;

        snap_go_on(&f->run, pool, s, n);
        info = snap_save(s, d.path, NULL, 0);
        assert_int_equal(info.n_tokens, n);
        assert_int_equal(info.n_shared_records, (n - 32) / 16);
        assert_int_equal(info.n_written_records, 2);
        assert_int_equal(info.n_records, n / 16);
        written += info.written_bytes;
        assert_no_litter(&d, 1);
        /* the same again: nothing new */
        info = snap_save(s, d.path, NULL, 0);
        assert_int_equal(info.n_written_records, 0);
        assert_int_equal(info.n_shared_records, n / 16);
        written += info.written_bytes;
    }
    assert_int_equal(snap_pool_stats(pool).n_saved_bytes, written);
    assert_int_equal(snap_pool_stats(pool).n_saved_records, 256 / 16);
    snap_save(s, file.text, NULL, 0);
    /* one copy on the disk: a file's records, and not more than a page for each of the rest */
    assert_true(snap_dir_bytes(&d) < snap_file_size(file.text) + 10 * SNAP_PAGE);
    check_load(f, &f->run, &d, "default", 256, 260);
    snap_put_away(&file, s, pool);
    snap_dir_remove(&d);
}

/* With tails, windows and logits, which change every time: what they replace goes. */
static void test_replaced_tails_and_windows_do_not_pile_up(void **state)
{
    const fixture *f = *state;
    snap_dir       d = snap_dir_make_in(&f->dir, "tails");
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = snap_session(&f->run, pool, f->model, 160);
    uint64_t       first;

    snap_save(s, d.path, NULL, FULL);
    first = snap_dir_bytes(&d);
    for (uint64_t n = 161; n < 176; n++) {
        kvcsa_snapshot_info info;

        snap_go_on(&f->run, pool, s, n);
        info = snap_save(s, d.path, NULL, FULL);
        assert_true(info.n_shared_records >= 10); /* the blocks */
        assert_no_litter(&d, 1);
    }
    /* one more page for the tail; slack for segments that are cleaned one save later */
    assert_true(snap_dir_bytes(&d) < 2 * first);
    check_load(f, &f->run, &d, NULL, 175, 180);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    snap_dir_remove(&d);
}

/* A checkpoint a turn with windows and logits: those of former turns do not stay. */
static void test_windows_of_former_turns_go(void **state)
{
    const fixture  *f = *state;
    snap_dir        d = snap_dir_make_in(&f->dir, "windows");
    const snap_path file = snap_in(&f->dir, "whole");
    kvcsa_pool     *pool = host_pool(1, 0);
    kvcsa_session  *s = host_session(pool, f->model, 0);

    for (uint64_t n = 17; n < 256; n += 17) {
        snap_go_on(&f->run, pool, s, n);
        snap_save(s, d.path, NULL, FULL);
        snap_save(s, file.text, NULL, FULL);
        /* a page for the manifest's header, and one for the header of each segment */
        if (snap_dir_bytes(&d) > snap_file_size(file.text) + SNAP_PAGE * (1 + n_segments(&d)))
            fail_msg("%u tokens: %llu bytes in %zu segments, a file has %llu", (unsigned)n,
                     (unsigned long long)snap_dir_bytes(&d), n_segments(&d),
                     (unsigned long long)snap_file_size(file.text));
    }
    check_load(f, &f->run, &d, NULL, 255, 260);
    snap_put_away(&file, s, pool);
    snap_dir_remove(&d);
}

/* A fork under another name: what both hold is written once. */
static void test_names_share_records(void **state)
{
    const fixture      *f = *state;
    snap_dir            d = snap_dir_make_in(&f->dir, "names");
    kvcsa_session      *a = snap_session(&f->run, f->pool, f->model, N), *b = NULL;
    kvcsa_snapshot_info info;
    int32_t             ids[40];
    float               la[T1_VOCAB], lb[T1_VOCAB];
    size_t              n = 0;
    uint64_t            one;
    kvcsa_error         err;

    snap_save(a, d.path, "a", 0);
    one = snap_dir_bytes(&d);
    assert_ok(kvcsa_session_fork(a, 160, NULL, &b, &err));
    host_run(f->pool, b, f->other.ids, 40, NULL);
    info = snap_save(b, d.path, "b", 0);
    assert_int_equal(info.n_tokens, 200);
    assert_int_equal(info.n_shared_records, 10);
    assert_true(info.n_written_records >= 3); /* two blocks and a tail */
    assert_int_equal(info.n_shared_records + info.n_written_records, info.n_records);
    assert_true(snap_dir_bytes(&d) < 2 * one - 8 * SNAP_PAGE);
    check_load(f, &f->run, &d, "a", N, N + 3);
    snap_load(a, d.path, "b", 0);
    assert_int_equal(kvcsa_session_length(a), 200);
    assert_ok(kvcsa_session_get_tokens(a, 160, ids, 40, &n, &err));
    assert_memory_equal(ids, f->other.ids, sizeof ids);
    host_run(f->pool, a, f->run.ids, 2, NULL);
    host_run(f->pool, b, f->run.ids, 2, NULL);
    host_logits(a, la, T1_VOCAB);
    host_logits(b, lb, T1_VOCAB);
    assert_memory_equal(la, lb, sizeof la);
    kvcsa_session_release(&b);
    kvcsa_session_release(&a);
    snap_dir_remove(&d);
}

/* Loaded, run on and saved back by another pool: the directory still has what it had. */
static void test_behaviour_12_another_pool_goes_on(void **state)
{
    const fixture      *f = *state;
    snap_dir            d = snap_dir_make_in(&f->dir, "pools");
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *s = snap_session(&f->run, pool, f->model, N), *t;
    kvcsa_snapshot_info saved, info;
    kvcsa_reuse         reuse = {.struct_size = sizeof reuse};
    size_t              n = 0;
    kvcsa_error         err;

    saved = snap_save(s, d.path, "talk", 0);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);

    pool = host_pool(1, 0);
    s = host_session(pool, f->model, 0);
    assert_ok(kvcsa_prefix_match(pool, f->model, 0, f->run.ids, N, &n, &err));
    assert_int_equal(n, 0); /* nothing is read that nobody asked for */
    info = snap_load(s, d.path, "talk", 0);
    assert_int_equal(info.n_tokens, saved.n_tokens);
    assert_int_equal(info.n_records, saved.n_records);
    assert_int_equal(snap_pool_stats(pool).n_loaded_records, saved.n_records);
    assert_ok(kvcsa_prefix_match(pool, f->model, 0, f->run.ids, N, &n, &err));
    assert_int_equal(n, N / 16 * 16);
    t = host_session(pool, f->model, 0); /* hits for somebody else */
    assert_ok(kvcsa_session_append(t, f->run.ids, 260, NULL, NULL, &err));
    assert_ok(kvcsa_session_get_reuse(t, &reuse, &err));
    assert_int_equal(reuse.n_adopted, N / 16 * 16);
    assert_int_equal(reuse.n_compute, 260 - N / 16 * 16);
    host_step(pool, t);
    snap_assert_untouched(&f->run, pool, t, 260);
    snap_go_on(&f->run, pool, s, 256);
    info = snap_save(s, d.path, "talk", 0);
    assert_int_equal(info.n_shared_records, N / 16);
    assert_int_equal(info.n_written_records, 256 / 16 - N / 16);
    check_load(f, &f->run, &d, "talk", 256, 257);
    kvcsa_session_release(&s);
    kvcsa_session_release(&t);
    kvcsa_pool_release(&pool);
    snap_dir_remove(&d);
}

/* ------------------------------------------------------------------ removing and damage */

static void test_remove_keeps_what_others_use(void **state)
{
    const fixture              *f = *state;
    snap_dir                    d = snap_dir_make_in(&f->dir, "remove");
    const kvcsa_snapshot_params a = snap_params("a", 0), b = snap_params("b", 0);
    kvcsa_session              *s = snap_session(&f->run, f->pool, f->model, 240);
    kvcsa_session              *t = snap_session(&f->run, f->pool, f->model, 100);
    uint64_t                    small;
    kvcsa_error                 err;

    snap_save(t, d.path, "b", 0);
    small = snap_dir_bytes(&d);
    snap_save(s, d.path, "a", 0);
    assert_ok(kvcsa_snapshot_remove(d.path, &a, &err));
    assert_fails(kvcsa_snapshot_remove(d.path, &a, &err), KVCSA_ERR_IO, "");
    assert_int_equal(err.detail, ENOENT);
    assert_int_equal(snap_dir_bytes(&d), small);
    check_load(f, &f->run, &d, "b", 100, 103);
    /* the other way round: the blocks of b are in segments that a uses too */
    snap_save(s, d.path, "a", 0);
    assert_ok(kvcsa_snapshot_remove(d.path, &b, &err));
    check_load(f, &f->run, &d, "a", 240, 243);
    assert_no_litter(&d, 1);
    assert_ok(kvcsa_snapshot_remove(d.path, &a, &err));
    assert_int_equal(n_segments(&d), 0);
    assert_int_equal(snap_dir_bytes(&d), 0);
    kvcsa_session_release(&s);
    kvcsa_session_release(&t);
    snap_dir_remove(&d);
}

/* A name that is given to something else: the records of the former go. */
static void test_replacing_a_name_frees_its_records(void **state)
{
    const fixture *f = *state;
    snap_dir       d = snap_dir_make_in(&f->dir, "replace");
    kvcsa_session *s = snap_session(&f->run, f->pool, f->model, 240);
    kvcsa_session *t = snap_session(&f->other, f->pool, f->model, 48);
    uint64_t       big;

    snap_save(s, d.path, "x", 0);
    big = snap_dir_bytes(&d);
    snap_save(t, d.path, "x", 0);
    snap_save(t, d.path, "x", 0);
    assert_true(snap_dir_bytes(&d) < big / 2);
    assert_no_litter(&d, 1);
    check_load(f, &f->other, &d, "x", 48, 50);
    kvcsa_session_release(&s);
    kvcsa_session_release(&t);
    snap_dir_remove(&d);
}

/* While a manifest cannot be read nobody knows what it needs: nothing of it may go. */
static void test_a_damaged_manifest_of_another_name_loses_nothing(void **state)
{
    const fixture              *f = *state;
    snap_dir                    d = snap_dir_make_in(&f->dir, "damage");
    const snap_path             man = snap_in(&d, "y.kvman");
    const kvcsa_snapshot_params x = snap_params("x", 0), y = snap_params("y", 0);
    kvcsa_session              *s = snap_session(&f->run, f->pool, f->model, 120);
    kvcsa_session              *t = snap_session(&f->other, f->pool, f->model, 120);
    kvcsa_session              *w = snap_session(&f->run, f->pool, f->model, 20);
    kvcsa_snapshot_info         info = {.struct_size = sizeof info};
    size_t                      n = 0;
    char                       *good, *bad;
    kvcsa_error                 err;

    snap_save(s, d.path, "x", 0);
    snap_save(t, d.path, "y", 0);
    good = read_file(man.text, &n);
    for (int how = 0; how < 4; how++) { /* garbage; cut; a changed byte; another segment's number */
        assert_non_null(bad = malloc(n));
        memcpy(bad, good, n);
        if (how == 0)
            memset(bad, 0x77, n);
        if (how == 3)
            bad[SNAP_PAGE + 16] = (char)(bad[SNAP_PAGE + 16] ^ 8);
        else
            bad[n / 3] = (char)(bad[n / 3] ^ 4);
        snap_write_file(man.text, bad, how == 1 ? n / 2 : n);
        free(bad);
        assert_true(kvcsa_snapshot_load(w, d.path, &y, NULL, &err) != KVCSA_OK);
        snap_assert_tokens(&f->run, w, 20);
        assert_true(kvcsa_snapshot_inspect(d.path, &y, &info, &err) != KVCSA_OK);
        /* others go on: they save, load and are removed */
        snap_save(w, d.path, "x", 0);
        check_load(f, &f->run, &d, "x", 20, 21);
        assert_ok(kvcsa_snapshot_remove(d.path, &x, &err));
        snap_save(s, d.path, "x", 0);
        check_load(f, &f->run, &d, "x", 120, 0);
        /* it is not replaced by its own name either */
        assert_int_equal(kvcsa_snapshot_save(t, d.path, &y, NULL, &err), KVCSA_ERR_FORMAT);
        snap_write_file(man.text, good, n);
        check_load(f, &f->other, &d, "y", 120, 122);
    }
    /* with the manifest whole again, what nobody needs can go */
    assert_ok(kvcsa_snapshot_remove(d.path, &y, &err));
    assert_ok(kvcsa_snapshot_remove(d.path, &x, &err));
    assert_int_equal(n_segments(&d), 0);
    free(good);
    kvcsa_session_release(&s);
    kvcsa_session_release(&t);
    kvcsa_session_release(&w);
    snap_dir_remove(&d);
}

typedef struct victim { /* the first segment of a directory */
    snap_path path;
    int       found;
} victim;

static void find_segment(void *user, const char *path, const char *name)
{
    victim *v = user;
    size_t  n = 0;

    count_segment(&n, path, name);
    if (n && (!v->found || strcmp(path, v->path.text) < 0)) {
        assert_true(snprintf(v->path.text, sizeof v->path.text, "%s", path) > 0);
        v->found = 1;
    }
}

/* Records of a directory damaged, cut or gone: refused, or salvaged up to there. */
static void test_damaged_segments(void **state)
{
    const fixture              *f = *state;
    snap_dir                    d = snap_dir_make_in(&f->dir, "segment");
    const kvcsa_snapshot_params salvage = snap_params("x", KVCSA_SNAPSHOT_SALVAGE),
                                x = snap_params("x", 0);
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *a = snap_session(&f->run, f->pool, f->model, 96);
    kvcsa_session      *s = snap_session(&f->other, pool, f->model, 30);
    kvcsa_snapshot_info info = {.struct_size = sizeof info};
    victim              v = {.found = 0};
    size_t              n = 0;
    char               *good;
    kvcsa_error         err;

    snap_save(a, d.path, "x", 0);
    snap_go_on(&f->run, f->pool, a, 160);
    snap_save(a, d.path, "x", 0);
    snap_dir_each(&d, find_segment, &v);
    assert_true(v.found);
    good = read_file(v.path.text, &n);
    for (size_t at = SNAP_PAGE + 1024; at < n; at += SNAP_PAGE) { /* a record a page */
        kvcsa_pool    *other = host_pool(1, 0);
        kvcsa_session *t = host_session(other, f->model, 0);

        good[at] = (char)(good[at] ^ 0x10);
        snap_write_file(v.path.text, good, n);
        assert_fails(kvcsa_snapshot_load(s, d.path, &x, NULL, &err), KVCSA_ERR_CORRUPT, "checksum");
        snap_assert_untouched(&f->other, pool, s, 30);
        assert_ok(kvcsa_snapshot_load(t, d.path, &salvage, &info, &err));
        assert_int_equal(info.n_tokens, (at / SNAP_PAGE - 1) * 16);
        if (at / SNAP_PAGE == 3)
            snap_go_on(&f->run, other, t, 40);
        good[at] = (char)(good[at] ^ 0x10);
        kvcsa_session_release(&t);
        kvcsa_pool_release(&other);
    }
    snap_write_file(v.path.text, good, n / 2);
    assert_fails(kvcsa_snapshot_load(s, d.path, &x, NULL, &err), KVCSA_ERR_FORMAT, "truncated");
    assert_int_equal(unlink(v.path.text), 0);
    assert_true(kvcsa_snapshot_load(s, d.path, &x, NULL, &err) != KVCSA_OK);
    snap_assert_untouched(&f->other, pool, s, 30);
    /* who still holds it can write again what is missing */
    info = snap_save(a, d.path, "x", 0);
    assert_int_equal(info.n_written_records, 6);
    check_load(f, &f->run, &d, "x", 160, 161);
    /* so with a record whose head is damaged: it is not taken for one that is there */
    free(good);
    v.found = 0;
    snap_dir_each(&d, find_segment, &v);
    good = read_file(v.path.text, &n);
    good[2 * SNAP_PAGE + 60] = (char)(good[2 * SNAP_PAGE + 60] ^ 1);
    snap_write_file(v.path.text, good, n);
    info = snap_save(a, d.path, "x", 0);
    assert_int_equal(info.n_written_records, 1);
    check_load(f, &f->run, &d, "x", 160, 161);
    snap_go_on(&f->other, pool, s, 33);
    free(good);
    kvcsa_session_release(&s);
    kvcsa_session_release(&a);
    kvcsa_pool_release(&pool);
    snap_dir_remove(&d);
}

static void test_inspect_a_directory(void **state)
{
    const fixture              *f = *state;
    snap_dir                    d = snap_dir_make_in(&f->dir, "inspect");
    const kvcsa_snapshot_params p = snap_params("talk.1", 0);
    kvcsa_session              *s = snap_session(&f->run, f->pool, f->model, 100);
    kvcsa_model_info            mi = {.struct_size = sizeof mi};
    kvcsa_snapshot_info         info = {.struct_size = sizeof info}, saved;
    kvcsa_error                 err;

    assert_ok(kvcsa_model_get_info(f->model, &mi, &err));
    assert_int_equal(kvcsa_snapshot_inspect(d.path, &p, &info, &err), KVCSA_ERR_IO);
    assert_int_equal(err.detail, ENOENT);
    saved = snap_save(s, d.path, "talk.1", KVCSA_SNAPSHOT_LOGITS);
    assert_ok(kvcsa_snapshot_inspect(d.path, &p, &info, &err));
    assert_int_equal(info.n_tokens, 100);
    assert_true(info.fingerprint == mi.fingerprint);
    assert_int_equal(info.n_records, saved.n_records);
    assert_int_equal(info.total_bytes, saved.total_bytes);
    assert_int_equal(info.sections, KVCSA_SNAPSHOT_LOGITS);
    assert_int_equal(info.block_tokens, 16);
    assert_int_equal(info.version, 1);
    assert_int_equal(info.exact, 1);
    kvcsa_session_release(&s);
    snap_dir_remove(&d);
}

/* ------------------------------------------------------------------ several savers */

typedef struct saver {
    const fixture  *f;
    const snap_run *run;
    const snap_dir *dir;
    const char     *name;
    kvcsa_status    status;
    kvcsa_error     err;
} saver;

/* No assertions here: CMocka's are for the main thread. */
static void *save_often(void *arg)
{
    saver                *v = arg;
    kvcsa_pool           *pool = NULL;
    kvcsa_session        *s = NULL;
    kvcsa_snapshot_params p;
    kvcsa_pool_params     pp;

    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.n_threads = 1;
    kvcsa_snapshot_params_default(&p, sizeof p);
    p.name = v->name;
    v->status = kvcsa_pool_create(&pp, &pool, &v->err);
    if (v->status == KVCSA_OK)
        v->status = kvcsa_session_create(pool, v->f->model, NULL, &s, &v->err);
    for (size_t n = 0; n < 240 && v->status == KVCSA_OK; n += 24) {
        v->status = kvcsa_session_append(s, v->run->ids + n, 24, NULL, NULL, &v->err);
        if (v->status == KVCSA_OK)
            v->status = kvcsa_pool_step(pool, &s, 1, NULL, NULL, &v->err);
        if (v->status == KVCSA_OK)
            v->status = kvcsa_snapshot_save(s, v->dir->path, &p, NULL, &v->err);
        if (v->status == KVCSA_OK)
            v->status = kvcsa_snapshot_load(s, v->dir->path, &p, NULL, &v->err);
    }
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    return NULL;
}

static void test_two_threads_save_to_one_directory(void **state)
{
    const fixture *f = *state;
    snap_dir       d = snap_dir_make_in(&f->dir, "threads");
    saver          v[3] = {{.f = f, .run = &f->run, .dir = &d, .name = "a"},
                           {.f = f, .run = &f->other, .dir = &d, .name = "b"},
                           {.f = f, .run = &f->run, .dir = &d, .name = "c"}};
    pthread_t      id[3];

    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&id[i], NULL, save_often, &v[i]), 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_join(id[i], NULL), 0);
    for (size_t i = 0; i < 3; i++) {
        if (v[i].status != KVCSA_OK)
            fail_msg("%s: %s: %s", v[i].name, kvcsa_status_name(v[i].status), v[i].err.text);
        check_load(f, v[i].run, &d, v[i].name, 240, 241);
    }
    assert_no_litter(&d, 3);
    snap_dir_remove(&d);
}

/* ------------------------------------------------------------------ nothing can be written */

/* In a child that may not write there even if the tests run as root. Exit status: 0 = refused with
 * errno, 1 = saved, 2 = another status. */
static int save_without_rights(kvcsa_session *s, const char *path)
{
    const pid_t pid = fork();
    int         status = 0;

    assert_true(pid >= 0);
    if (pid == 0) {
        kvcsa_error  err;
        kvcsa_status st;

        if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)
            _exit(3);
        st = kvcsa_snapshot_save(s, path, NULL, NULL, &err);
        _exit(st == KVCSA_ERR_IO && err.detail == EACCES ? 0 : st == KVCSA_OK ? 1 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_behaviour_22_no_room_and_no_rights(void **state)
{
    const fixture  *f = *state;
    snap_dir        d = snap_dir_make_in(&f->dir, "locked"), e = snap_dir_make_in(&f->dir, "full");
    const snap_path file = snap_in(&d, "file"), full = snap_in(&e, "device");
    kvcsa_pool     *pool = host_pool(1, 0);
    kvcsa_session  *s = snap_session(&f->run, pool, f->model, 40);
    kvcsa_session  *t = snap_session(&f->run, pool, f->model, 20);
    struct stat     st;
    kvcsa_error     err;

    snap_save(t, d.path, NULL, 0);
    snap_save(t, file.text, NULL, 0);
    assert_int_equal(chmod(f->dir.path, 0755), 0);
    assert_int_equal(chmod(d.path, 0555), 0);
    assert_int_equal(save_without_rights(s, d.path), 0);
    assert_int_equal(save_without_rights(s, file.text), 0);
    assert_int_equal(chmod(d.path, 0755), 0);
    assert_no_litter(&d, 2); /* the manifest and the file */
    check_load(f, &f->run, &d, NULL, 20, 22);
    assert_int_equal(snap_load(t, file.text, NULL, 0).n_tokens, 20);
    snap_go_on(&f->run, pool, s, 41);
    /* A device that is always full. It stays a device; one of our own, so that nothing else can be
     * hurt, where we may make one. */
    if (mknod(full.text, S_IFCHR | 0666, makedev(1, 7)) == 0) {
        assert_true(kvcsa_snapshot_save(s, full.text, NULL, NULL, &err) != KVCSA_OK);
        assert_int_equal(lstat(full.text, &st), 0);
        assert_true(S_ISCHR(st.st_mode));
        assert_int_equal(snap_dir_count(&e), 1);
    }
    if (geteuid() != 0)
        assert_true(kvcsa_snapshot_save(s, "/dev/full", NULL, NULL, &err) != KVCSA_OK);
    snap_assert_untouched(&f->run, pool, s, 41);
    kvcsa_session_release(&s);
    kvcsa_session_release(&t);
    kvcsa_pool_release(&pool);
    snap_dir_remove(&d);
    snap_dir_remove(&e);
}

/* ------------------------------------------------------------------ another process */

#define PROMPT 60u
#define HALF 25u

static void generate(kvcsa_pool *pool, kvcsa_session *s, size_t n, int32_t *tokens, float *logits)
{
    kvcsa_error err;

    for (size_t i = 0; i < n; i++) {
        assert_ok(kvcsa_session_sample(s, NULL, &tokens[i], &err));
        host_run(pool, s, &tokens[i], 1, NULL);
        host_logits(s, logits + i * T1_VOCAB, T1_VOCAB);
    }
}

/* The other process: loads, goes on for HALF tokens, writes them and their logits. */
static void go_on(const char *path, const char *out)
{
    kvcsa_model   *m = host_model_in_blocks(16);
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *s = host_session(pool, m, 0);
    int32_t        tokens[HALF];
    float         *logits = calloc(HALF * T1_VOCAB, sizeof(float));
    FILE          *f = fopen(out, "wb");

    assert_non_null(logits);
    assert_non_null(f);
    snap_load(s, path, NULL, 0);
    host_step(pool, s);
    generate(pool, s, HALF, tokens, logits);
    assert_int_equal(fwrite(tokens, sizeof *tokens, HALF, f), HALF);
    assert_int_equal(fwrite(logits, sizeof(float) * T1_VOCAB, HALF, f), HALF);
    assert_int_equal(fclose(f), 0);
    free(logits);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

static void test_behaviour_13_another_process_goes_on(void **state)
{
    const fixture  *f = *state;
    snap_dir        d = snap_dir_make_in(&f->dir, "process");
    const snap_path out = snap_in(&f->dir, "out"), file = snap_in(&f->dir, "file");
    kvcsa_session  *s = snap_session(&f->run, f->pool, f->model, PROMPT);
    int32_t         tokens[2 * HALF];
    float          *logits = calloc(2 * HALF * T1_VOCAB, sizeof(float));

    assert_non_null(logits);
    generate(f->pool, s, HALF, tokens, logits);
    snap_save(s, file.text, NULL, 0);
    snap_save(s, d.path, NULL, FULL);
    generate(f->pool, s, HALF, tokens + HALF, logits + HALF * T1_VOCAB);
    for (int i = 0; i < 4; i++) { /* three times the file, once the directory */
        const char *path = i < 3 ? file.text : d.path;
        const char *self = getenv("KVCSA_TEST_SELF"); /* under an emulator: what starts this program */
        const pid_t pid = fork();
        int         status = 0;
        size_t      n = 0;
        char       *got;

        assert_true(pid >= 0);
        if (pid == 0) { /* its list of tests is not ours */
            (void)dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
            execl(self ? self : "/proc/self/exe", "test_api_snapshot_dir", "--go-on", path, out.text,
                  (char *)NULL);
            _exit(127);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        got = read_file(out.text, &n);
        assert_int_equal(n, HALF * (sizeof *tokens + T1_VOCAB * sizeof(float)));
        assert_memory_equal(got, tokens + HALF, HALF * sizeof *tokens);
        assert_memory_equal(got + HALF * sizeof *tokens, logits + HALF * T1_VOCAB,
                            HALF * T1_VOCAB * sizeof(float));
        free(got);
        assert_int_equal(unlink(out.text), 0);
    }
    free(logits);
    kvcsa_session_release(&s);
    assert_int_equal(unlink(file.text), 0);
    snap_dir_remove(&d);
}

static const char *child_args[2];

static void other_process(void **state)
{
    (void)state;
    go_on(child_args[0], child_args[1]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest child[] = {cmocka_unit_test(other_process)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_turn_writes_its_own_records_only),
        cmocka_unit_test(test_replaced_tails_and_windows_do_not_pile_up),
        cmocka_unit_test(test_windows_of_former_turns_go),
        cmocka_unit_test(test_names_share_records),
        cmocka_unit_test(test_behaviour_12_another_pool_goes_on),
        cmocka_unit_test(test_remove_keeps_what_others_use),
        cmocka_unit_test(test_replacing_a_name_frees_its_records),
        cmocka_unit_test(test_a_damaged_manifest_of_another_name_loses_nothing),
        cmocka_unit_test(test_damaged_segments),
        cmocka_unit_test(test_inspect_a_directory),
        cmocka_unit_test(test_two_threads_save_to_one_directory),
        cmocka_unit_test(test_behaviour_22_no_room_and_no_rights),
        cmocka_unit_test(test_behaviour_13_another_process_goes_on),
    };

    if (argc == 4 && strcmp(argv[1], "--go-on") == 0) {
        child_args[0] = argv[2];
        child_args[1] = argv[3];
        return cmocka_run_group_tests(child, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
