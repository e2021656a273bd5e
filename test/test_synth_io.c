/* Synthetic checkpoints on files that fail: the n-th operation, a full disk, short writes; failing
 * allocations; a caller who says stop. Whatever happens, nothing is left behind. A table of files
 * of the test's own takes the place of POSIX. */
#include "model/synth.h"
#include "support/fault_alloc.h"
#include "support/snap.h"

#include <errno.h>
#include <fcntl.h>

#define SMALL_CONFIG "test/data/synth-small.json"
#define SMALL_SHARD 100000u /* bytes; five files */

enum { OP_OPEN, OP_CLOSE, OP_WRITEV, OP_FSYNC, OP_RENAME, N_OPS };

#define MAX_FD 256

typedef struct fake {
    kvi_fs   fs;
    uint64_t n[N_OPS];
    int      fail_op;         /* -1 = none */
    uint64_t fail_at;         /* the n-th of that kind, from 1 on */
    uint64_t room_bytes;      /* on the disk; 0 = enough */
    uint64_t n_bytes;
    int      hit;
    int      naggy;           /* every second write is interrupted, the others are short */
    uint8_t  written[MAX_FD]; /* since the last fsync; by descriptor */
    uint32_t n_lost;          /* descriptors closed so */
    uint32_t n_new;           /* names made since the directory was synced */
    uint32_t n_early;         /* of files and names that were not safe at the rename */
} fake;

static int refuse(fake *k, int op)
{
    k->n[op]++;
    if (k->fail_op != op || k->n[op] != k->fail_at)
        return 0;
    k->hit = 1;
    errno = EIO;
    return 1;
}

static int fake_open(void *user, const char *path, int flags, int mode)
{
    fake *k = user;
    int   fd;

    if (refuse(k, OP_OPEN))
        return -1;
    fd = kvi_fs_posix()->open(NULL, path, flags, mode);
    assert_true(fd < MAX_FD);
    k->n_new += fd >= 0 && (flags & O_CREAT);
    return fd;
}

static int fake_close(void *user, int fd)
{
    fake     *k = user;
    const int bad = refuse(k, OP_CLOSE);

    k->n_lost += k->written[fd];
    k->written[fd] = 0;
    assert_int_equal(kvi_fs_posix()->close(NULL, fd), 0);
    errno = EIO;
    return bad ? -1 : 0;
}

static ssize_t fake_writev(void *user, int fd, const struct iovec *iov, int n)
{
    fake        *k = user;
    struct iovec part = *iov;
    ssize_t      done;

    assert_int_equal(n, 1);
    if (refuse(k, OP_WRITEV))
        return -1;
    if (k->naggy && k->n[OP_WRITEV] % 2) {
        errno = EINTR;
        return -1;
    }
    if (k->naggy && part.iov_len > 3)
        part.iov_len /= 3;
    if (k->room_bytes && k->n_bytes + part.iov_len > k->room_bytes) {
        k->hit = 1;
        if (k->n_bytes == k->room_bytes) {
            errno = ENOSPC;
            return -1;
        }
        part.iov_len = k->room_bytes - k->n_bytes;
    }
    done = kvi_fs_posix()->writev(NULL, fd, &part, 1);
    k->n_bytes += (uint64_t)done;
    k->written[fd] = 1;
    return done;
}

static ssize_t fake_pread(void *user, int fd, void *data, size_t n, off_t at)
{
    (void)user;
    return kvi_fs_posix()->pread(NULL, fd, data, n, at);
}

static int fake_fsync(void *user, int fd)
{
    fake       *k = user;
    struct stat st;

    if (refuse(k, OP_FSYNC))
        return -1;
    assert_int_equal(fstat(fd, &st), 0);
    if (S_ISDIR(st.st_mode))
        k->n_new = 0;
    k->written[fd] = 0;
    return 0; /* the machine that runs the tests stays on */
}

static int fake_rename(void *user, const char *from, const char *to)
{
    fake *k = user;

    if (refuse(k, OP_RENAME))
        return -1;
    k->n_early = k->n_lost + k->n_new;
    k->n_new++;
    return kvi_fs_posix()->rename(NULL, from, to);
}

static int fake_unlink(void *user, const char *path)
{
    (void)user;
    return kvi_fs_posix()->unlink(NULL, path);
}

static fake fake_make(fake *at)
{
    return (fake){.fs = {.open = fake_open,
                         .close = fake_close,
                         .writev = fake_writev,
                         .pread = fake_pread,
                         .fsync = fake_fsync,
                         .rename = fake_rename,
                         .unlink = fake_unlink,
                         .user = at},
                  .fail_op = -1};
}

/* ------------------------------------------------------------------ fixture */

typedef struct fixture {
    snap_dir  dir; /* empty */
    snap_path made;
    fake      k;
    size_t    n_fds;
} fixture;

static size_t n_open_files(void)
{
    const snap_dir d = {"/proc/self/fd"};

    return snap_dir_count(&d);
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->dir = snap_dir_make();
    f->made = snap_in(&f->dir, "made");
    f->k = fake_make(&f->k);
    f->n_fds = n_open_files();
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    assert_int_equal(n_open_files(), f->n_fds);
    snap_dir_remove(&f->dir);
    free(f);
    return 0;
}

static kvcsa_status make(fixture *f, const kvcsa_allocator *a, kvcsa_synth_info *info,
                         kvcsa_error *err)
{
    const kvcsa_synth_params p = {.struct_size = sizeof p,
                                  .allocator = a,
                                  .seed = 1,
                                  .shard_bytes = SMALL_SHARD};

    return kvi_synth_checkpoint(SMALL_CONFIG, f->made.text, &p, &f->k.fs, info, err);
}

static int is_there(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static void remove_made(fixture *f)
{
    snap_dir d;

    (void)snprintf(d.path, sizeof d.path, "%.255s", f->made.text);
    snap_dir_remove(&d);
}

/* ------------------------------------------------------------------ tests */

/* Operations of a good run, which the others let fail one by one: 5 shards, index, tokenizer and
 * config.json, each opened, synced and closed; the directory twice and its parent once. */
static void test_everything_is_synced_before_the_name(void **state)
{
    fixture         *f = *state;
    kvcsa_synth_info info = {0};
    kvcsa_error      err;

    assert_ok(make(f, NULL, &info, &err));
    assert_int_equal(info.n_shards, 5);
    assert_int_equal(f->k.n[OP_OPEN], 8 + 3);
    assert_int_equal(f->k.n[OP_CLOSE], 8 + 3);
    assert_int_equal(f->k.n[OP_FSYNC], 8 + 3);
    assert_int_equal(f->k.n[OP_RENAME], 1);
    assert_int_equal(f->k.n_early, 0);
    assert_int_equal(f->k.n_lost, 0);
    assert_int_equal(f->k.n_new, 0); /* the last name is safe too */
    remove_made(f);
}

static void test_any_failed_operation_leaves_nothing(void **state)
{
    fixture         *f = *state;
    kvcsa_synth_info info = {0};
    uint32_t         n_failed = 0;
    kvcsa_error      err;

    for (int op = 0; op < N_OPS; op++)
        for (uint64_t n = 1;; n++, n_failed++) {
            kvcsa_status st;

            f->k = fake_make(&f->k);
            f->k.fail_op = op;
            f->k.fail_at = n;
            st = make(f, NULL, &info, &err);
            if (!f->k.hit) {
                assert_int_equal(st, KVCSA_OK);
                remove_made(f);
                break;
            }
            /* closing a directory that was synced cannot lose anything */
            if (op == OP_CLOSE && st == KVCSA_OK) {
                remove_made(f);
                continue;
            }
            assert_int_equal(st, KVCSA_ERR_IO);
            assert_int_equal(err.detail, EIO);
            assert_false(is_there(f->made.text));
            assert_int_equal(n_open_files(), f->n_fds);
        }
    assert_true(n_failed >= 4 * 8);
}

static void test_a_full_disk_leaves_nothing(void **state)
{
    fixture         *f = *state;
    kvcsa_synth_info info = {0};
    uint64_t         n_bytes;
    kvcsa_error      err;

    assert_ok(make(f, NULL, &info, &err));
    n_bytes = f->k.n_bytes;
    assert_true(n_bytes > info.total_bytes);
    remove_made(f);
    for (uint64_t room = 1; room < n_bytes; room += room < n_bytes - 70000 ? 33333 : 777) {
        f->k = fake_make(&f->k);
        f->k.room_bytes = room;
        assert_fails(make(f, NULL, &info, &err), KVCSA_ERR_IO, "no space left");
        assert_int_equal(err.detail, ENOSPC);
        assert_false(is_there(f->made.text));
    }
    f->k = fake_make(&f->k);
    f->k.room_bytes = n_bytes;
    assert_ok(make(f, NULL, &info, &err));
    remove_made(f);
}

static void test_short_and_interrupted_writes_are_continued(void **state)
{
    fixture         *f = *state;
    kvcsa_synth_info info = {0};
    kvcsa_model     *model;
    kvcsa_model_info was = {.struct_size = sizeof was};
    kvcsa_model_info is = {.struct_size = sizeof is};
    kvcsa_error      err;

    assert_ok(make(f, NULL, &info, &err));
    model = host_model(f->made.text);
    assert_ok(kvcsa_model_get_info(model, &was, &err));
    kvcsa_model_release(&model);
    remove_made(f);
    f->k.naggy = 1;
    assert_ok(make(f, NULL, &info, &err));
    model = host_model(f->made.text);
    assert_ok(kvcsa_model_get_info(model, &is, &err));
    assert_int_equal(is.fingerprint, was.fingerprint);
    kvcsa_model_release(&model);
    remove_made(f);
}

static void test_files_of_others_stay(void **state)
{
    fixture         *f = *state;
    kvcsa_synth_info info = {0};
    const snap_path  other = snap_in(&f->dir, "made/model-00002-of-00005.safetensors");
    const snap_path  first = snap_in(&f->dir, "made/model-00001-of-00005.safetensors");
    snap_dir         made;
    kvcsa_error      err;

    made = snap_dir_make_in(&f->dir, "made");
    snap_write_file(other.text, "mine", 4);
    assert_fails(make(f, NULL, &info, &err), KVCSA_ERR_ARG, "is there already");
    assert_int_equal(snap_file_size(other.text), 4);
    assert_false(is_there(first.text));
    assert_int_equal(snap_dir_count(&made), 1);
    /* and a failure in a directory that was there leaves it there */
    assert_int_equal(unlink(other.text), 0);
    f->k.fail_op = OP_RENAME;
    f->k.fail_at = 1;
    assert_int_equal(make(f, NULL, &info, &err), KVCSA_ERR_IO);
    assert_true(is_there(made.path));
    assert_int_equal(snap_dir_count(&made), 0);
}

static void test_any_failed_allocation_leaves_nothing(void **state)
{
    fixture         *f = *state;
    fault_alloc      fa;
    kvcsa_synth_info info = {0};
    uint64_t         n = 1;
    kvcsa_error      err;

    fault_alloc_init(&fa);
    for (;; n++) {
        kvcsa_status st;

        fault_alloc_fail_at(&fa, n);
        st = make(f, &fa.hook, &info, &err);
        assert_true(fault_alloc_is_clean(&fa));
        if (!fault_alloc_hit(&fa)) {
            assert_int_equal(st, KVCSA_OK);
            break;
        }
        assert_int_equal(st, KVCSA_ERR_NOMEM);
        assert_false(is_there(f->made.text));
    }
    assert_true(n > 15);
    remove_made(f);
}

static int32_t stop_soon(void *user, uint64_t n_done, uint64_t n_total)
{
    (void)n_total;
    *(uint64_t *)user = n_done;
    return n_done > 3000000;
}

/* The release: 501 GB of weights. 32 rows of its widest matrix are 3 MB, as numbers and as bytes. */
static void test_memory_does_not_grow_with_the_model(void **state)
{
    fixture           *f = *state;
    fault_alloc        fa;
    kvcsa_synth_info   info = {0};
    uint64_t           n_done = 0;
    kvcsa_synth_params p = {.struct_size = sizeof p, .progress = stop_soon, .user = &n_done};
    kvcsa_error        err;

    fault_alloc_init(&fa);
    p.allocator = &fa.hook;
    assert_int_equal(kvi_synth_checkpoint(RELEASE_CONFIG, f->made.text, &p, &f->k.fs, &info, &err),
                     KVCSA_ERR_CANCELLED);
    assert_in_range(n_done, 3000000, 5000000);
    assert_true(fault_alloc_is_clean(&fa));
    assert_in_range(fa.peak_bytes, 1, 8 << 20);
    assert_false(is_there(f->made.text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_everything_is_synced_before_the_name, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_any_failed_operation_leaves_nothing, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_a_full_disk_leaves_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_short_and_interrupted_writes_are_continued, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_files_of_others_stay, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_any_failed_allocation_leaves_nothing, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_memory_does_not_grow_with_the_model, set_up,
                                        tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
