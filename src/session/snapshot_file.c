/* Snapshots in files: a temporary file beside the target, renamed over it when it is on the disk.
 *
 * A temporary file is locked (flock) while its writer lives; the lock goes with the process. So one
 * that can be locked is litter of a writer that was killed, and the next save to the same target
 * removes it. */
#include "session/snapshot_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"

#define MAX_TRIES 32

int kvi_snapshot_name_is_valid(const char *name)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                  "0123456789._-";
    const size_t      n = strlen(name);

    return n >= 1 && n <= 64 && name[0] != '.' && strspn(name, allowed) == n;
}

/* ------------------------------------------------------------------ temporary files */

int kvi_tmp_is_name(const char *name, const char *target, size_t n)
{
    size_t digits;
    size_t hex;

    if (strncmp(name, target, n) != 0 || name[n] != '.')
        return 0;
    name += n + 1;
    digits = strspn(name, "0123456789");
    if (digits == 0 || name[digits] != '-')
        return 0;
    name += digits + 1;
    hex = strspn(name, "0123456789abcdef");
    return hex == 16 && strcmp(name + hex, ".tmp") == 0;
}

/* Nobody else has it, and it still has a name. Where files cannot be locked nobody removes litter
 * either. */
static int lock_tmp(int fd)
{
    struct stat sb;

    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return errno != EWOULDBLOCK && errno != EINTR;
    return fstat(fd, &sb) == 0 && sb.st_nlink > 0;
}

/* A new file of a name that nobody uses. -1 = errno. */
static int open_new(kvi_tmp *t, size_t n_target)
{
    struct timespec now;

    for (uint64_t i = 0; i < MAX_TRIES; i++) {
        uint64_t seed[4];
        int      fd;

        clock_gettime(CLOCK_REALTIME, &now);
        seed[0] = (uint64_t)now.tv_sec;
        seed[1] = (uint64_t)now.tv_nsec;
        seed[2] = (uint64_t)(uintptr_t)t;
        seed[3] = i;
        snprintf(t->path + n_target, t->path_bytes - n_target, ".%ld-%016" PRIx64 ".tmp",
                 (long)getpid(), kvi_hash64(seed, sizeof seed, 0));
        fd = t->fs->open(t->fs->user, t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            return -1;
        if (fd >= 0 && lock_tmp(fd))
            return fd;
        if (fd >= 0) /* somebody took it for litter */
            t->fs->close(t->fs->user, fd);
    }
    errno = EEXIST;
    return -1;
}

static void remove_if_litter(const kvi_fs *fs, const char *path)
{
    const int fd = fs->open(fs->user, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);

    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        fs->unlink(fs->user, path);
    fs->close(fs->user, fd);
}

/* Of killed savers to the same target; the first n_dir of its n_target bytes are its directory. */
static void remove_litter(const kvi_tmp *t, size_t n_dir, size_t n_target)
{
    char           path[PATH_MAX];
    struct dirent *e;
    DIR           *dir;

    if (n_dir + NAME_MAX + 2 > sizeof path)
        return;
    memcpy(path, t->target, n_dir);
    path[n_dir] = '\0';
    if (!(dir = opendir(n_dir ? path : ".")))
        return;
    while ((e = readdir(dir)))
        if (kvi_tmp_is_name(e->d_name, t->target + n_dir, n_target - n_dir)) {
            snprintf(path + n_dir, sizeof path - n_dir, "%s", e->d_name);
            remove_if_litter(t->fs, path);
        }
    closedir(dir);
}

kvcsa_status kvi_tmp_create(kvi_tmp *t, const kvi_fs *fs, const kvcsa_allocator *a,
                            const char *target, kvcsa_error *err)
{
    const char  *slash = strrchr(target, '/');
    const size_t n_target = strlen(target);
    struct stat  sb;

    *t = (kvi_tmp){.fs = fs, .a = a, .target = target, .path_bytes = n_target + 64, .fd = -1};
    if (!(t->path = kvi_alloc(a, t->path_bytes)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "name of a temporary file");
    memcpy(t->path, target, n_target + 1);
    remove_litter(t, slash ? (size_t)(slash + 1 - target) : 0, n_target);
    if ((t->fd = open_new(t, n_target)) < 0) {
        const kvcsa_status st = kvi_fs_fail(err, "create", t->path);

        kvi_free(a, t->path, t->path_bytes);
        t->path = NULL;
        return st;
    }
    if (stat(target, &sb) == 0 && S_ISREG(sb.st_mode)) /* who may read it does not change */
        (void)!fchmod(t->fd, sb.st_mode & 0777);
    return KVCSA_OK;
}

static void free_tmp(kvi_tmp *t)
{
    if (t->fd >= 0)
        t->fs->close(t->fs->user, t->fd);
    kvi_free(t->a, t->path, t->path_bytes);
    t->path = NULL;
    t->fd = -1;
}

void kvi_tmp_drop(kvi_tmp *t)
{
    if (!t->path)
        return;
    t->fs->unlink(t->fs->user, t->path);
    free_tmp(t);
}

kvcsa_status kvi_tmp_commit(kvi_tmp *t, int *in_place, kvcsa_error *err)
{
    const kvi_fs *fs = t->fs;
    kvcsa_status  st = KVCSA_OK;

    *in_place = 0;
    if (fs->fsync(fs->user, t->fd) != 0)
        st = kvi_fs_fail(err, "fsync", t->path);
    else if (fs->rename(fs->user, t->path, t->target) != 0)
        st = kvi_fs_fail(err, "rename", t->path);
    if (st != KVCSA_OK) {
        kvi_tmp_drop(t);
        return st;
    }
    *in_place = 1;
    /* the lock is held until here: nobody took the file for litter */
    if (kvi_fs_sync_dir(fs, t->target) != 0)
        st = kvi_fail_code(err, KVCSA_ERR_IO, errno,
                           "%s is in place, but a power cut may undo that: errno %d of fsync of "
                           "its directory",
                           t->target, errno);
    free_tmp(t);
    return st;
}

/* ------------------------------------------------------------------ save */

/* A pipe or a device: nothing to rename. */
static kvcsa_status save_to_device(kvi_save *v, kvi_sink *k, const char *path, kvcsa_error *err)
{
    const kvi_fs *fs = k->fs;
    kvcsa_status  st;

    if ((k->fd = fs->open(fs->user, path, O_WRONLY | O_CLOEXEC, 0)) < 0)
        return kvi_fs_fail(err, "open", path);
    st = kvi_save_all(v, k, err);
    if (fs->close(fs->user, k->fd) != 0 && st == KVCSA_OK)
        st = kvi_fs_fail(err, "close", path);
    return st;
}

static kvcsa_status save_to_file(kvi_save *v, kvi_sink *k, const char *path, kvcsa_error *err)
{
    kvi_tmp      tmp;
    int          in_place = 0;
    kvcsa_status st = kvi_tmp_create(&tmp, k->fs, &v->s->allocator, path, err);

    if (st != KVCSA_OK)
        return st;
    k->fd = tmp.fd;
    k->path = tmp.path;
    if ((st = kvi_save_all(v, k, err)) == KVCSA_OK)
        return kvi_tmp_commit(&tmp, &in_place, err);
    kvi_tmp_drop(&tmp);
    return st;
}

kvcsa_status kvi_snapshot_save(kvcsa_session *s, const char *path, const char *name, uint32_t flags,
                               kvcsa_snapshot_info *info, kvcsa_error *err)
{
    const kvi_fs *fs = kvi_pool_fs(s->pool);
    kvi_sink      sink = {.fs = fs, .path = path, .fd = -1};
    kvi_save      v;
    struct stat   sb;
    const int     is_there = stat(path, &sb) == 0;
    kvcsa_status  st;

    if (is_there && S_ISDIR(sb.st_mode))
        return kvi_save_to_dir(s, path, name, flags, info, err);
    st = kvi_save_init(&v, s, flags, KVI_SNAP_FILE, err);
    if (st == KVCSA_OK)
        st = is_there && !S_ISREG(sb.st_mode) ? save_to_device(&v, &sink, path, err)
                                              : save_to_file(&v, &sink, path, err);
    if (st == KVCSA_OK)
        kvi_save_count(&v, sink.n_bytes, v.h.n_records, 0, info);
    kvi_save_fini(&v);
    return st;
}

/* ------------------------------------------------------------------ inspect and remove */

static kvcsa_status import_libc(kvcsa_allocator *a, kvcsa_error *err)
{
    return kvi_allocator_import(NULL, a, err);
}

static kvcsa_status inspect_file(const kvi_fs *fs, int fd, uint64_t n_bytes, const char *path,
                                 kvi_snap_header *h, kvcsa_error *err)
{
    uint8_t      page[KVI_SNAP_UNIT];
    ssize_t      n = kvi_fs_read_at(fs, fd, page, sizeof page, 0);
    kvcsa_status st;

    if (n < 0)
        return kvi_fs_fail(err, "read", path);
    if ((st = kvi_snap_header_decode(page, (size_t)n, KVI_SNAP_FILE, h, err)) == KVCSA_OK &&
        n_bytes < h->total_bytes)
        st = kvi_fail(err, KVCSA_ERR_FORMAT, "truncated snapshot: %llu bytes of %llu",
                      (unsigned long long)n_bytes, (unsigned long long)h->total_bytes);
    return st;
}

kvcsa_status kvi_snapshot_inspect(const char *path, const char *name, kvcsa_snapshot_info *info,
                                  kvcsa_error *err)
{
    const kvi_fs   *fs = kvi_fs_posix();
    kvi_manifest    m = {0};
    kvcsa_allocator a;
    struct stat     sb;
    kvcsa_status    st = import_libc(&a, err);
    size_t          n = 0;
    char           *manifest = NULL;
    const int       fd = fs->open(fs->user, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);

    if (st != KVCSA_OK)
        goto done;
    if (fd < 0 || fstat(fd, &sb) != 0) {
        st = kvi_fs_fail(err, "open", path);
    } else if (S_ISDIR(sb.st_mode)) {
        if (!(manifest = kvi_snap_path(&a, path, name, KVI_MANIFEST_SUFFIX, &n)))
            st = kvi_fail(err, KVCSA_ERR_NOMEM, "name of a manifest");
        else
            st = kvi_manifest_read(fs, &a, manifest, &m, err);
    } else if (S_ISREG(sb.st_mode)) {
        st = inspect_file(fs, fd, (uint64_t)sb.st_size, path, &m.h, err);
    } else {
        st = kvi_fail(err, KVCSA_ERR_FORMAT, "%s is neither a file nor a directory", path);
    }
    if (st == KVCSA_OK)
        kvi_snap_fill_info(&m.h, info);
    kvi_manifest_free(&a, &m);
    kvi_free(&a, manifest, n);
done:
    if (fd >= 0)
        fs->close(fs->user, fd);
    return st;
}

kvcsa_status kvi_snapshot_remove(const char *path, const char *name, kvcsa_error *err)
{
    const kvi_fs   *fs = kvi_fs_posix();
    kvcsa_allocator a;
    struct stat     sb;
    uint8_t         begin[KVI_SNAP_MAGIC_BYTES];
    ssize_t         n = 0;
    kvcsa_status    st = import_libc(&a, err);
    int             fd;

    if (st != KVCSA_OK)
        return st;
    if ((fd = fs->open(fs->user, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0)) < 0)
        return kvi_fs_fail(err, "open", path);
    if (fstat(fd, &sb) != 0)
        st = kvi_fs_fail(err, "open", path);
    else if (S_ISDIR(sb.st_mode))
        st = kvi_dir_remove(fs, &a, path, name, err);
    else if (S_ISREG(sb.st_mode) && (n = kvi_fs_read_at(fs, fd, begin, sizeof begin, 0)) < 0)
        st = kvi_fs_fail(err, "read", path);
    else if (!kvi_snap_is_ours(begin, (size_t)n, KVI_SNAP_FILE))
        st = kvi_fail(err, KVCSA_ERR_FORMAT, "%s is not a snapshot", path);
    else if (fs->unlink(fs->user, path) != 0)
        st = kvi_fs_fail(err, "remove", path);
    else if (kvi_fs_sync_dir(fs, path) != 0)
        st = kvi_fs_fail(err, "sync the directory of", path);
    fs->close(fs->user, fd);
    return st;
}
