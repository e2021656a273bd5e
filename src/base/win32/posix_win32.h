/* The part of POSIX that the sources use and mingw-w64 lacks or does otherwise: the one place where
 * Windows is told apart. The Makefile puts this header in front of every file of a Windows build.
 *
 * Paths are UTF-8, with / or \. Files are binary, are not inherited, and may be renamed and removed
 * while they are open. Functions return what their namesakes return and leave errno. */
#ifndef KVI_POSIX_WIN32_H
#define KVI_POSIX_WIN32_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------------ limits and codes */

#undef PATH_MAX
#undef NAME_MAX
#define PATH_MAX 4096
#define NAME_MAX 765 /* 255 UTF-16 units */
#ifndef EDQUOT
#define EDQUOT 1133
#endif

/* ------------------------------------------------------------------ files */

#define O_CLOEXEC 0 /* always */
#define O_NOCTTY 0
#define O_NONBLOCK 0
#define O_NOFOLLOW 0x1000000
#define O_DIRECTORY 0x2000000 /* of a directory that is there: a file in it, to be locked */

struct iovec {
    void  *iov_base;
    size_t iov_len;
};

struct kvi_win_stat {
    uint32_t st_mode; /* S_IFREG, S_IFDIR or S_IFCHR, and 0666 */
    uint64_t st_size;
    uint32_t st_nlink; /* 0 = removed while it was open */
};

#define LOCK_SH 1
#define LOCK_EX 2
#define LOCK_NB 4

int     kvi_win_open(const char *path, int flags, ...);
int     kvi_win_stat(const char *path, struct kvi_win_stat *out);
int     kvi_win_fstat(int fd, struct kvi_win_stat *out);
ssize_t kvi_win_writev(int fd, const struct iovec *iov, int n);
ssize_t kvi_win_read(int fd, void *data, size_t n);
ssize_t kvi_win_pread(int fd, void *data, size_t n, off_t at);
int     kvi_win_fsync(int fd);
int     kvi_win_flock(int fd, int op);
int     kvi_win_rename(const char *from, const char *to);
int     kvi_win_unlink(const char *path);
int     kvi_win_mkdir(const char *path, int mode);
int     kvi_win_rmdir(const char *path);
int     kvi_win_access(const char *path, int mode);
FILE   *kvi_win_fopen(const char *path, const char *mode);

/* Members of structs take the new names as well, in all files alike. */
#undef stat
#undef fstat
#define open kvi_win_open
#define stat kvi_win_stat
#define fstat kvi_win_fstat
#define writev kvi_win_writev
#define read kvi_win_read
#define pread kvi_win_pread
#define fsync kvi_win_fsync
#define flock kvi_win_flock
#define rename kvi_win_rename
#define unlink kvi_win_unlink
#define mkdir kvi_win_mkdir
#define rmdir kvi_win_rmdir
#define access kvi_win_access
#define fopen kvi_win_fopen
#define fchmod(fd, mode) ((void)(fd), (void)(mode), 0) /* rights come from the directory */

typedef struct kvi_win_dir kvi_win_dir;
struct kvi_win_dirent {
    char d_name[NAME_MAX + 1];
};
kvi_win_dir           *kvi_win_opendir(const char *path);
struct kvi_win_dirent *kvi_win_readdir(kvi_win_dir *dir);
int                    kvi_win_closedir(kvi_win_dir *dir);
#define DIR kvi_win_dir
#define dirent kvi_win_dirent
#define opendir kvi_win_opendir
#define readdir kvi_win_readdir
#define closedir kvi_win_closedir

/* ------------------------------------------------------------------ memory */

/* A whole file, to be read, or fresh memory. */
#define PROT_NONE 0
#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_PRIVATE 2
#define MAP_ANONYMOUS 4
#define MAP_FAILED ((void *)-1)
#define MADV_NORMAL 0
#define MADV_RANDOM 1
void *kvi_win_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int   kvi_win_munmap(void *data, size_t n);
int   kvi_win_mprotect(void *data, size_t n, int prot);
#define mmap kvi_win_mmap
#define mprotect kvi_win_mprotect
#define munmap kvi_win_munmap
#define madvise(data, n, advice) ((void)(data), (void)(n), (void)(advice), 0)

/* Freed by _aligned_free alone: base/alloc.c. */
int kvi_win_memalign(void **out, size_t align, size_t size);
#define posix_memalign kvi_win_memalign

/* ------------------------------------------------------------------ processors and modules */

long kvi_win_count_cores(void); /* that this process may use */

#define RTLD_NOW 0
#define RTLD_LOCAL 0
#define RTLD_NODELETE 0
typedef struct Dl_info {
    const char *dli_fname;
} Dl_info;
void   *kvi_win_dlopen(const char *path, int flags);
void   *kvi_win_dlsym(void *library, const char *name);
char   *kvi_win_dlerror(void);
int     kvi_win_dladdr(const void *address, Dl_info *out); /* a name that is not absolute */
ssize_t kvi_win_readlink(const char *path, char *out, size_t size); /* of the module we are in */
#define dlopen kvi_win_dlopen
#define dlsym kvi_win_dlsym
#define dlerror kvi_win_dlerror
#define dladdr kvi_win_dladdr
#define readlink kvi_win_readlink

/* ------------------------------------------------------------------ what the command needs */

#define SA_RESTART 0
#define SA_RESETHAND 0
struct sigaction {
    void (*sa_handler)(int);
    int sa_flags;
};
int   kvi_win_sigaction(int sig, const struct sigaction *act, struct sigaction *old);
char *kvi_win_realpath(const char *path, char *out);
char *kvi_win_strndup(const char *text, size_t n);
char *kvi_win_strsep(char **at, const char *ends);
#define sigaction(sig, act, old) kvi_win_sigaction(sig, act, old)
#define realpath kvi_win_realpath
#define strndup kvi_win_strndup
#define strsep kvi_win_strsep
#define _SC_NPROCESSORS_ONLN 0
#define _SC_PAGESIZE 1
#define sysconf(what) ((what) == _SC_PAGESIZE ? 4096L : kvi_win_count_cores())

/* ------------------------------------------------------------------ what the tests need */

char *kvi_win_mkdtemp(char *path);
int   kvi_win_symlink(const char *to, const char *path); /* of a file: a copy */
int   kvi_win_setenv(const char *name, const char *value, int replace);
/* That of mingw-w64 rounds twice, and oracles are written with it. */
float kvi_win_fmaf(float a, float b, float c);
#define fmaf kvi_win_fmaf
#define mkdtemp kvi_win_mkdtemp
#define symlink kvi_win_symlink
#define lstat kvi_win_stat
#define setenv kvi_win_setenv
#define unsetenv(name) kvi_win_setenv(name, "", 1)

#endif
