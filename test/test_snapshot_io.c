/* Snapshots on files that fail: the n-th operation, short writes, EINTR, power lost at any moment;
 * and allocations that fail. A table of files of the test's own takes the place of POSIX. */
#include "session/session.h"
#include "support/fault_alloc.h"
#include "support/snap.h"

#include <errno.h>

#define FULL (KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS)

/* ------------------------------------------------------------------ files that fail */

enum { OP_OPEN, OP_CLOSE, OP_WRITEV, OP_PREAD, OP_FSYNC, OP_RENAME, OP_UNLINK, N_OPS };

#define MAX_FD 256

typedef struct fake {
    kvi_fs   fs;
    uint64_t n[N_OPS];
    uint64_t n_all;
    int      fail_op;      /* -1 = none */
    uint64_t fail_at;      /* the n-th of that kind, from 1 on */
    int      fail_errno;
    int      hit;
    uint64_t dead_at;      /* from the n-th operation on nothing is done any more; 0 = never */
    int      torn;         /* that one, if a write, is done by half */
    int      naggy;        /* every second read or write is interrupted, the others are short */
    uint8_t  written[MAX_FD]; /* since the last fsync; by descriptor */
    uint32_t n_unsynced;   /* renames in front of which something written was not synced */
    uint32_t n_lost;       /* descriptors closed so */
    int      renamed;      /* since the directory was synced last */
} fake;

/* 1 = the operation is not to be done; errno is set. */
static int refuse(fake *k, int op)
{
    k->n[op]++;
    k->n_all++;
    if (k->dead_at && k->n_all >= k->dead_at) {
        k->hit = 1;
        errno = EIO;
        return 1;
    }
    if (k->fail_op == op && k->n[op] == k->fail_at) {
        k->hit = 1;
        errno = k->fail_errno;
        return 1;
    }
    return 0;
}

static int fake_open(void *user, const char *path, int flags, int mode)
{
    fake *k = user;
    int   fd;

    if (refuse(k, OP_OPEN))
        return -1;
    fd = kvi_fs_posix()->open(NULL, path, flags, mode);
    if (fd >= 0 && fd < MAX_FD)
        k->written[fd] = 0;
    return fd;
}

/* The descriptor is gone in every case, as on Linux. */
static int fake_close(void *user, int fd)
{
    fake *k = user;
    int   bad, code;

    bad = refuse(k, OP_CLOSE);
    code = errno;
    if (fd >= 0 && fd < MAX_FD) {
        k->n_lost += k->written[fd];
        k->written[fd] = 0;
    }
    if (kvi_fs_posix()->close(NULL, fd) != 0)
        return -1;
    errno = code;
    return bad ? -1 : 0;
}

static ssize_t fake_writev(void *user, int fd, const struct iovec *iov, int n)
{
    fake        *k = user;
    struct iovec part;
    const int    bad = refuse(k, OP_WRITEV), code = errno;

    assert_true(n > 0);
    if (bad && !(k->torn && k->n_all == k->dead_at)) {
        errno = code;
        return -1;
    }
    if (fd >= 0 && fd < MAX_FD)
        k->written[fd] = 1;
    if (bad || k->naggy) { /* a part of the first piece that is not empty */
        while (n > 1 && iov->iov_len == 0)
            iov++, n--;
        part = *iov;
        part.iov_len = bad ? part.iov_len / 2 : part.iov_len > 3 ? part.iov_len / 3 : part.iov_len;
        if (k->naggy && k->n[OP_WRITEV] % 2) {
            errno = EINTR;
            return -1;
        }
        if (!bad)
            return kvi_fs_posix()->writev(NULL, fd, &part, 1);
        (void)!kvi_fs_posix()->writev(NULL, fd, &part, 1);
        errno = code;
        return -1;
    }
    return kvi_fs_posix()->writev(NULL, fd, iov, n);
}

static ssize_t fake_pread(void *user, int fd, void *data, size_t n, off_t at)
{
    fake *k = user;

    if (refuse(k, OP_PREAD))
        return -1;
    if (k->naggy && k->n[OP_PREAD] % 2) {
        errno = EINTR;
        return -1;
    }
    return kvi_fs_posix()->pread(NULL, fd, data, k->naggy && n > 3 ? n / 3 : n, at);
}

static int fake_fsync(void *user, int fd)
{
    fake       *k = user;
    struct stat st;

    if (refuse(k, OP_FSYNC))
        return -1;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        k->renamed = 0;
    if (fd >= 0 && fd < MAX_FD)
        k->written[fd] = 0;
    return 0; /* the machine that runs the tests stays on */
}

static int fake_rename(void *user, const char *from, const char *to)
{
    fake *k = user;

    if (refuse(k, OP_RENAME))
        return -1;
    for (size_t i = 0; i < MAX_FD; i++)
        k->n_unsynced += k->written[i];
    k->n_unsynced += k->n_lost;
    k->renamed = 1;
    return kvi_fs_posix()->rename(NULL, from, to);
}

static int fake_unlink(void *user, const char *path)
{
    fake *k = user;

    return refuse(k, OP_UNLINK) ? -1 : kvi_fs_posix()->unlink(NULL, path);
}

static fake *fake_make(void)
{
    fake *k = calloc(1, sizeof *k);

    assert_non_null(k);
    k->fs = (kvi_fs){fake_open,  fake_close,  fake_writev, fake_pread,
                     fake_fsync, fake_rename, fake_unlink, k};
    k->fail_op = -1;
    return k;
}

static void fake_reset(fake *k)
{
    const kvi_fs fs = k->fs;

    memset(k, 0, sizeof *k);
    k->fs = fs;
    k->fail_op = -1;
}

/* ------------------------------------------------------------------ fixture */

typedef struct fixture {
    kvcsa_model   *model; /* blocks of 16 tokens */
    snap_run       run, other;
    kvcsa_pool    *pool;  /* its files are fake */
    kvcsa_session *a;     /* run.ids[60] */
    kvcsa_session *b;     /* other.ids[75] */
    fake          *k;
    snap_dir       dir;
    size_t         n_fds;
} fixture;

#define NA 60u
#define NB 75u

static size_t n_open_files(void)
{
    const snap_dir d = {"/proc/self/fd"};

    return snap_dir_count(&d);
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->model = host_model_in_blocks(16);
    snap_run_make(&f->run, f->model, 321);
    snap_run_make(&f->other, f->model, 322);
    f->pool = host_pool(1, 0);
    f->k = fake_make();
    kvi_pool_set_fs(f->pool, &f->k->fs);
    f->a = snap_session(&f->run, f->pool, f->model, NA);
    f->b = snap_session(&f->other, f->pool, f->model, NB);
    f->dir = snap_dir_make();
    f->n_fds = n_open_files();
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    assert_int_equal(n_open_files(), f->n_fds);
    kvcsa_session_release(&f->a);
    kvcsa_session_release(&f->b);
    kvcsa_pool_release(&f->pool);
    kvcsa_model_release(&f->model);
    snap_run_free(&f->run);
    snap_run_free(&f->other);
    snap_dir_remove(&f->dir);
    free(f->k);
    free(f);
    return 0;
}

/* Which of the two is there: the tokens say so. With real files and a new pool. */
static char who(const fixture *f, const char *path)
{
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = host_session(pool, f->model, 0);
    char           is = '?';
    float          logits[T1_VOCAB];
    kvcsa_error    err;

    assert_ok(kvcsa_snapshot_load(s, path, NULL, NULL, &err));
    assert_ok(kvcsa_pool_check(pool, &err));
    host_logits(s, logits, T1_VOCAB);
    if (kvcsa_session_length(s) == NA) {
        snap_assert_tokens(&f->run, s, NA);
        assert_memory_equal(logits, snap_row(&f->run, NA - 1), sizeof logits);
        is = 'a';
    } else {
        snap_assert_tokens(&f->other, s, NB);
        assert_memory_equal(logits, snap_row(&f->other, NB - 1), sizeof logits);
        is = 'b';
    }
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    return is;
}

typedef struct place { /* a file or a directory to save to, alone in a folder */
    snap_dir  folder;
    snap_path path;
    int       is_dir;
} place;

static place place_make(const fixture *f, int is_dir)
{
    place p = {.folder = snap_dir_make_in(&f->dir, is_dir ? "dir" : "file"), .is_dir = is_dir};

    p.path = snap_in(&p.folder, is_dir ? "." : "snapshot");
    return p;
}

static void is_tidy(void *user, const char *path, const char *name)
{
    const char *dot = strrchr(name, '.');

    (void)path;
    (void)user;
    if (strcmp(name, "snapshot") != 0 && strcmp(name, "default.kvman") != 0 &&
        strcmp(name, "second.kvman") != 0 &&
        !(dot && strcmp(dot, ".kvseg") == 0))
        fail_msg("%s was left behind", name);
}

static uint64_t usual_bytes(const fixture *f, int is_dir) /* of b, in an empty place */
{
    place    p = place_make(f, is_dir);
    uint64_t n;

    fake_reset(f->k);
    snap_save(f->b, p.path.text, NULL, FULL);
    n = snap_dir_bytes(&p.folder);
    snap_dir_remove(&p.folder);
    return n;
}

/* ------------------------------------------------------------------ the n-th operation */

/* a is stored; saving b fails at the n-th operation of each kind. */
static void check_save_faults(const fixture *f, int is_dir)
{
    static const int codes[] = {ENOSPC, EIO};
    const kvcsa_snapshot_params p = snap_params(NULL, FULL);
    const uint64_t              usual = usual_bytes(f, is_dir);
    uint64_t                    n_faults[N_OPS] = {0};

    for (int op = 0; op < N_OPS; op++)
        for (uint64_t n = 1;; n++) {
            place        at = place_make(f, is_dir);
            kvcsa_error  err;
            kvcsa_status st;
            char         now;
            int          hit;

            fake_reset(f->k);
            snap_save(f->a, at.path.text, NULL, FULL);
            fake_reset(f->k);
            f->k->fail_op = op;
            f->k->fail_at = n;
            f->k->fail_errno = codes[n % 2];
            st = kvcsa_snapshot_save(f->b, at.path.text, &p, NULL, &err);
            hit = f->k->hit;
            assert_int_equal(f->k->n_unsynced, 0);
            now = who(f, at.path.text);
            if (st == KVCSA_OK) {
                assert_int_equal(now, 'b');
                assert_false(f->k->renamed);
            } else {
                assert_true(hit);
                assert_int_equal(st, KVCSA_ERR_IO);
                assert_int_equal(err.detail, codes[n % 2]);
                n_faults[op]++;
                /* only what comes behind the rename can fail with the new one in place */
                if (f->k->n[OP_RENAME] == 0 || op == OP_RENAME)
                    assert_int_equal(now, 'a');
            }
            assert_int_equal(n_open_files(), f->n_fds);
            fake_reset(f->k); /* the next save goes well and cleans up */
            snap_save(f->b, at.path.text, NULL, FULL);
            assert_int_equal(who(f, at.path.text), 'b');
            snap_dir_each(&at.folder, is_tidy, NULL);
            if (is_dir) /* what a left may go one save later */
                snap_save(f->b, at.path.text, NULL, FULL);
            assert_true(snap_dir_bytes(&at.folder) <= usual + 2 * SNAP_PAGE);
            snap_dir_remove(&at.folder);
            if (!hit)
                break;
        }
    assert_true(n_faults[OP_OPEN] >= 1);
    assert_true(n_faults[OP_WRITEV] >= 1);
    assert_true(n_faults[OP_FSYNC] >= 1);
    assert_int_equal(n_faults[OP_RENAME], 1);
    snap_assert_untouched(&f->other, f->pool, f->b, NB);
}

static void test_the_nth_operation_of_a_save_fails(void **state)
{
    check_save_faults(*state, 0);
    check_save_faults(*state, 1);
}

/* Loading a over b fails at the n-th operation: b is as it was. */
static void check_load_faults(const fixture *f, int is_dir)
{
    place at = place_make(f, is_dir);

    fake_reset(f->k);
    snap_save(f->a, at.path.text, NULL, FULL);
    for (int op = 0; op < N_OPS; op++)
        for (uint64_t n = 1;; n++) {
            kvcsa_pool    *pool = host_pool(1, 0); /* nothing is known there */
            kvcsa_session *s = host_session(pool, f->model, 0);
            kvcsa_error    err;
            kvcsa_status   st;

            kvi_pool_set_fs(pool, &f->k->fs);
            host_run(pool, s, f->other.ids, 20, NULL);
            fake_reset(f->k);
            f->k->fail_op = op;
            f->k->fail_at = n;
            f->k->fail_errno = EIO;
            st = kvcsa_snapshot_load(s, at.path.text, NULL, NULL, &err);
            if (st == KVCSA_OK) {
                snap_assert_tokens(&f->run, s, NA);
            } else {
                assert_true(f->k->hit);
                assert_int_equal(st, KVCSA_ERR_IO);
                assert_int_equal(err.detail, EIO);
                snap_assert_untouched(&f->other, pool, s, 20);
            }
            if (op == OP_PREAD && n == 1)
                assert_int_equal(st, KVCSA_ERR_IO);
            assert_int_equal(n_open_files(), f->n_fds);
            kvcsa_session_release(&s);
            kvcsa_pool_release(&pool);
            if (!f->k->hit)
                break;
        }
    fake_reset(f->k);
    snap_dir_remove(&at.folder);
}

static void test_the_nth_operation_of_a_load_fails(void **state)
{
    check_load_faults(*state, 0);
    check_load_faults(*state, 1);
}

/* Interrupted and short reads and writes change nothing. */
static void test_short_and_interrupted_transfers(void **state)
{
    const fixture *f = *state;

    for (int is_dir = 0; is_dir < 2; is_dir++) {
        place          at = place_make(f, is_dir);
        kvcsa_pool    *pool = host_pool(1, 0);
        kvcsa_session *s = host_session(pool, f->model, 0);

        fake_reset(f->k);
        f->k->naggy = 1;
        snap_save(f->a, at.path.text, NULL, FULL);
        assert_true(f->k->n[OP_WRITEV] > 10);
        assert_int_equal(who(f, at.path.text), 'a');
        if (!is_dir) {
            const snap_path plain = snap_in(&f->dir, "plain");

            fake_reset(f->k);
            snap_save(f->a, plain.text, NULL, FULL);
            snap_assert_files_equal(at.path.text, plain.text);
            assert_int_equal(unlink(plain.text), 0);
            f->k->naggy = 1;
        }
        kvi_pool_set_fs(pool, &f->k->fs);
        snap_load(s, at.path.text, NULL, 0);
        snap_assert_untouched(&f->run, pool, s, NA);
        snap_go_on(&f->run, pool, s, NA + 3);
        kvcsa_session_release(&s);
        kvcsa_pool_release(&pool);
        fake_reset(f->k);
        snap_dir_remove(&at.folder);
    }
}

/* The power goes at the n-th operation, which is done by half if it is a write: everything behind
 * it never happens. What is there then is the old or the new one, and the next save cleans up. */
static void check_power_loss(const fixture *f, int is_dir)
{
    const kvcsa_snapshot_params p = snap_params(NULL, FULL);
    const uint64_t              usual = usual_bytes(f, is_dir);
    char                        last = 'a';
    uint64_t                    n = 1;
    int                         hit = 1;

    for (; hit; n++) {
        place        at = place_make(f, is_dir);
        kvcsa_error  err;
        kvcsa_status st;
        char         now;

        fake_reset(f->k);
        snap_save(f->a, at.path.text, NULL, FULL);
        fake_reset(f->k);
        f->k->dead_at = n;
        f->k->torn = 1;
        st = kvcsa_snapshot_save(f->b, at.path.text, &p, NULL, &err);
        hit = f->k->hit;
        now = who(f, at.path.text);
        if (st == KVCSA_OK)
            assert_int_equal(now, 'b');
        assert_true(now >= last); /* never back: once b is there, it stays */
        last = now;
        fake_reset(f->k);
        if (is_dir) { /* of another name, too */
            snap_save(f->b, at.path.text, "second", FULL);
            snap_dir_each(&at.folder, is_tidy, NULL);
            assert_int_equal(who(f, at.path.text), now);
        }
        snap_save(f->b, at.path.text, NULL, FULL);
        assert_int_equal(who(f, at.path.text), 'b');
        snap_dir_each(&at.folder, is_tidy, NULL);
        if (is_dir)
            snap_save(f->b, at.path.text, NULL, FULL);
        assert_true(snap_dir_bytes(&at.folder) <= usual + 4 * SNAP_PAGE);
        snap_dir_remove(&at.folder);
    }
    assert_int_equal(last, 'b');
    assert_true(n > 5);
}

static void test_behaviour_22_power_loss_at_every_operation(void **state)
{
    check_power_loss(*state, 0);
    check_power_loss(*state, 1);
}

/* ------------------------------------------------------------------ allocations */

enum { CALL_SAVE_FILE, CALL_SAVE_DIR, CALL_WRITE, CALL_LOAD_FILE, CALL_LOAD_DIR, CALL_READ,
       N_CALLS };

static kvcsa_status make_call(int call, kvcsa_session *s, const place *file, const place *dir,
                              snap_bytes *b, kvcsa_error *err)
{
    const kvcsa_snapshot_params p = snap_params(NULL, FULL), none = snap_params(NULL, 0);

    b->at = 0;
    switch (call) {
    case CALL_SAVE_FILE: return kvcsa_snapshot_save(s, file->path.text, &p, NULL, err);
    case CALL_SAVE_DIR: return kvcsa_snapshot_save(s, dir->path.text, &p, NULL, err);
    case CALL_WRITE: return kvcsa_snapshot_write(s, &(kvcsa_writer){snap_take, b}, &p, NULL, err);
    case CALL_LOAD_FILE: return kvcsa_snapshot_load(s, file->path.text, &none, NULL, err);
    case CALL_LOAD_DIR: return kvcsa_snapshot_load(s, dir->path.text, &none, NULL, err);
    default: return kvcsa_snapshot_read(s, &(kvcsa_reader){snap_give, b}, &none, NULL, err);
    }
}

static void test_behaviour_39_the_nth_allocation_fails(void **state)
{
    const fixture    *f = *state;
    place             file = place_make(f, 0), dir = place_make(f, 1);
    fault_alloc       fa;
    kvcsa_pool_params pp;
    snap_bytes             b = {.data = malloc(1 << 20)};
    uint64_t          n_faults = 0;

    assert_non_null(b.data);
    fault_alloc_init(&fa);
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &fa.hook;
    pp.n_threads = 1;
    for (int call = 0; call < N_CALLS; call++) {
        kvcsa_pool    *pool = NULL;
        kvcsa_session *s;
        int            hit = 1;
        kvcsa_error    err;

        fake_reset(f->k);
        snap_save(f->a, file.path.text, NULL, FULL);
        snap_save(f->a, dir.path.text, NULL, FULL);
        b.n = 1 << 20;
        b.at = 0;
        assert_ok(make_call(CALL_WRITE, f->a, &file, &dir, &b, &err));
        b.n = call == CALL_WRITE ? 1 << 20 : b.at;
        assert_ok(kvcsa_pool_create(&pp, &pool, &err));
        s = host_session(pool, f->model, 0);
        host_run(pool, s, f->other.ids, NB, NULL);
        for (uint64_t n = 1; hit; n++) {
            kvcsa_status st;

            fault_alloc_fail_at(&fa, n);
            st = make_call(call, s, &file, &dir, &b, &err);
            hit = fault_alloc_hit(&fa);
            fault_alloc_fail_at(&fa, 0);
            if (st != KVCSA_OK) {
                assert_true(hit);
                assert_int_equal(st, KVCSA_ERR_NOMEM);
                snap_assert_untouched(&f->other, pool, s, NB);
                n_faults++;
            } else if (call >= CALL_LOAD_FILE) {
                snap_assert_untouched(&f->run, pool, s, NA);
                hit = 0;
            }
            if (call == CALL_SAVE_FILE)
                assert_int_equal(who(f, file.path.text), st == KVCSA_OK ? 'b' : 'a');
            if (call == CALL_SAVE_DIR)
                assert_int_equal(who(f, dir.path.text), st == KVCSA_OK ? 'b' : 'a');
            if (st == KVCSA_OK)
                break;
        }
        if (call >= CALL_LOAD_FILE)
            snap_go_on(&f->run, pool, s, NA + 2);
        else
            snap_go_on(&f->other, pool, s, NB + 2);
        kvcsa_session_release(&s);
        kvcsa_pool_release(&pool);
        assert_true(fault_alloc_is_clean(&fa));
    }
    assert_true(n_faults > 12);
    snap_dir_each(&file.folder, is_tidy, NULL);
    snap_dir_each(&dir.folder, is_tidy, NULL);
    snap_dir_remove(&file.folder);
    snap_dir_remove(&dir.folder);
    free(b.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_nth_operation_of_a_save_fails),
        cmocka_unit_test(test_the_nth_operation_of_a_load_fails),
        cmocka_unit_test(test_short_and_interrupted_transfers),
        cmocka_unit_test(test_behaviour_22_power_loss_at_every_operation),
        cmocka_unit_test(test_behaviour_39_the_nth_allocation_fails),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
