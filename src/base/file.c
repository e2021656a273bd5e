#include "base/file.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_PIECES 64           /* a call; POSIX promises 16, Linux takes 1024 */
#define READ_STEP ((size_t)1 << 30) /* Linux reads at most 2^31 - 4096 bytes a call */

/* ------------------------------------------------------------------ the real thing */

static int posix_open(void *user, const char *path, int flags, int mode)
{
    (void)user;
    return open(path, flags, (mode_t)mode);
}

static int posix_close(void *user, int fd)
{
    (void)user;
    return close(fd);
}

static ssize_t posix_writev(void *user, int fd, const struct iovec *iov, int n)
{
    (void)user;
    return writev(fd, iov, n);
}

static ssize_t posix_pread(void *user, int fd, void *data, size_t n, off_t at)
{
    (void)user;
    return pread(fd, data, n, at);
}

static int posix_fsync(void *user, int fd)
{
    (void)user;
    return fsync(fd);
}

static int posix_rename(void *user, const char *from, const char *to)
{
    (void)user;
    return rename(from, to);
}

static int posix_unlink(void *user, const char *path)
{
    (void)user;
    return unlink(path);
}

const kvi_fs *kvi_fs_posix(void)
{
    static const kvi_fs fs = {.open = posix_open,
                              .close = posix_close,
                              .writev = posix_writev,
                              .pread = posix_pread,
                              .fsync = posix_fsync,
                              .rename = posix_rename,
                              .unlink = posix_unlink};

    return &fs;
}

/* ------------------------------------------------------------------ errors */

/* strerror depends on the host's locale; these are the ones that a user can mend. */
static const char *describe(int code)
{
    switch (code) {
    case ENOENT: return "no such file";
    case ENOTDIR: return "a part of the path is not a directory";
    case EISDIR: return "is a directory";
    case EACCES: return "permission denied";
    case EPERM: return "not permitted";
    case EROFS: return "read-only file system";
    case ENOSPC: return "no space left";
    case EDQUOT: return "quota exceeded";
    case EFBIG: return "file too large";
    case EMFILE: return "too many open files";
    case ENFILE: return "too many open files";
    case ELOOP: return "too many symbolic links";
    case ENAMETOOLONG: return "name too long";
    case EIO: return "input/output error";
    default: return "system error";
    }
}

kvcsa_status kvi_fs_fail(kvcsa_error *err, const char *what, const char *path)
{
    const int code = errno;

    return kvi_fail_code(err, code == ENOMEM ? KVCSA_ERR_NOMEM : KVCSA_ERR_IO, code,
                         "cannot %s %s: errno %d (%s)", what, path, code, describe(code));
}

/* ------------------------------------------------------------------ whole transfers */

int kvi_fs_write_all(const kvi_fs *fs, int fd, struct iovec *iov, int n)
{
    for (;;) {
        ssize_t done = 0;

        while (n > 0 && iov->iov_len == 0) {
            iov++;
            n--;
        }
        if (n == 0)
            return 0;
        done = fs->writev(fs->user, fd, iov, n < MAX_PIECES ? n : MAX_PIECES);
        if (done < 0 && errno == EINTR)
            continue;
        if (done == 0)
            errno = EIO; /* no progress and no reason: not for ever */
        if (done <= 0)
            return -1;
        while (n > 0 && (size_t)done >= iov->iov_len) {
            done -= (ssize_t)iov->iov_len;
            iov++;
            n--;
        }
        if (n > 0) {
            iov->iov_base = (char *)iov->iov_base + done;
            iov->iov_len -= (size_t)done;
        }
    }
}

ssize_t kvi_fs_read_at(const kvi_fs *fs, int fd, void *data, size_t n, uint64_t at)
{
    size_t done = 0;

    if (n > (size_t)SSIZE_MAX || at > (uint64_t)INT64_MAX - n) {
        errno = EOVERFLOW;
        return -1;
    }
    while (done < n) {
        const size_t  left = n - done;
        const ssize_t got = fs->pread(fs->user, fd, (char *)data + done,
                                      left < READ_STEP ? left : READ_STEP, (off_t)(at + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

int kvi_fs_sync_dir(const kvi_fs *fs, const char *path)
{
    const char  *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) + 1 : 1; /* with the slash: "/" is "/" */
    char         dir[PATH_MAX];
    int          fd = -1;
    int          code = 0;

#ifdef _WIN32 /* a rename is written through, and a directory cannot be flushed */
    (void)fs;
    (void)code;
    (void)fd;
    return 0;
#endif
    if (n >= sizeof dir) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(dir, slash ? path : ".", n);
    dir[n] = '\0';
    fd = fs->open(fs->user, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (fs->fsync(fs->user, fd) != 0 && errno != EINVAL) /* a file system that has no such thing */
        code = errno;
    fs->close(fs->user, fd);
    if (code)
        errno = code;
    return code ? -1 : 0;
}
