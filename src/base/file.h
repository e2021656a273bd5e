/* Files of snapshots and tiers, behind a table so that tests can let the n-th operation fail. Every
 * function returns what its POSIX namesake returns and leaves errno. */
#ifndef KVI_FILE_H
#define KVI_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "kvcsa.h"

typedef struct kvi_fs {
    int (*open)(void *user, const char *path, int flags, int mode);
    int (*close)(void *user, int fd);
    ssize_t (*writev)(void *user, int fd, const struct iovec *iov, int n);
    ssize_t (*pread)(void *user, int fd, void *data, size_t n, off_t at);
    int (*fsync)(void *user, int fd);
    int (*rename)(void *user, const char *from, const char *to);
    int (*unlink)(void *user, const char *path);
    void *user;
} kvi_fs;

const kvi_fs *kvi_fs_posix(void);

/* ERR_IO (ERR_NOMEM for ENOMEM) with `what`, the path and errno as detail. */
kvcsa_status kvi_fs_fail(kvcsa_error *err, const char *what, const char *path);

/* All bytes of n pieces, repeating short writes and EINTR; iov is used up. -1 = errno. */
int kvi_fs_write_all(const kvi_fs *fs, int fd, struct iovec *iov, int n);
/* As many of n bytes as the file has from `at` on. -1 = errno. */
ssize_t kvi_fs_read_at(const kvi_fs *fs, int fd, void *data, size_t n, uint64_t at);
/* fsync of the directory that a path lies in, after a rename. */
int kvi_fs_sync_dir(const kvi_fs *fs, const char *path);

#endif
