/* See the header. Only this file talks to Windows. */
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include "base/win32/posix_win32.h"

#include <malloc.h>
#include <stdarg.h>
#include <string.h>

#define WIDE_MAX 4096 /* UTF-16 units of a path */
#define STEP ((DWORD)1 << 30)
#define LOCK_AT 0x7fffffffu /* high half of the offset: locks are mandatory, so far behind every file */
#define LOCK_NAME "kvcsa.lock"
#define RENAME_TRIES 20 /* a scanner may hold a file for a moment */
#define RENAME_WAIT_MS 10

/* ------------------------------------------------------------------ errors and paths */

static int errno_of(DWORD code)
{
    switch (code) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
    case ERROR_INVALID_NAME:
    case ERROR_INVALID_DRIVE:
    case ERROR_BAD_NETPATH: return ENOENT;
    case ERROR_DIRECTORY: return ENOTDIR;
    case ERROR_ACCESS_DENIED:
    case ERROR_SHARING_VIOLATION: return EACCES;
    case ERROR_WRITE_PROTECT: return EROFS;
    case ERROR_FILE_EXISTS:
    case ERROR_ALREADY_EXISTS: return EEXIST;
    case ERROR_DISK_FULL:
    case ERROR_HANDLE_DISK_FULL: return ENOSPC;
    case 1295L: return EDQUOT; /* ERROR_DISK_QUOTA_EXCEEDED */
    case ERROR_FILE_TOO_LARGE: return EFBIG;
    case ERROR_TOO_MANY_OPEN_FILES: return EMFILE;
    case ERROR_NOT_ENOUGH_MEMORY:
    case ERROR_OUTOFMEMORY: return ENOMEM;
    case ERROR_DIR_NOT_EMPTY: return ENOTEMPTY;
    case ERROR_LOCK_VIOLATION:
    case ERROR_IO_PENDING: return EWOULDBLOCK;
    case ERROR_INVALID_HANDLE: return EBADF;
    case ERROR_FILENAME_EXCED_RANGE: return ENAMETOOLONG;
    case ERROR_INVALID_PARAMETER:
    case ERROR_INVALID_FUNCTION: return EINVAL;
    default: return EIO;
    }
}

static int fail(void)
{
    errno = errno_of(GetLastError());
    return -1;
}

static int widen(const char *path, wchar_t out[WIDE_MAX])
{
    if (MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, out, WIDE_MAX) > 0)
        return 0;
    errno = GetLastError() == ERROR_INSUFFICIENT_BUFFER ? ENAMETOOLONG : ENOENT;
    return -1;
}

/* With / as everywhere. Returns the length, 0 = too long. */
static size_t narrow(const wchar_t *path, char *out, size_t size)
{
    const int n = size > INT_MAX ? 0
                                 : WideCharToMultiByte(CP_UTF8, 0, path, -1, out, (int)size, NULL,
                                                       NULL);

    for (int i = 0; i < n; i++)
        if (out[i] == '\\')
            out[i] = '/';
    return n > 0 ? (size_t)n - 1 : 0;
}

static HANDLE handle_of(int fd)
{
    return (HANDLE)_get_osfhandle(fd);
}

/* ------------------------------------------------------------------ open and stat */

static DWORD disposition(int flags)
{
    if ((flags & O_CREAT) && (flags & O_EXCL))
        return CREATE_NEW;
    if (flags & O_TRUNC)
        return flags & O_CREAT ? CREATE_ALWAYS : TRUNCATE_EXISTING;
    return flags & O_CREAT ? OPEN_ALWAYS : OPEN_EXISTING;
}

static HANDLE open_handle(const wchar_t *path, int flags)
{
    const int   way = flags & (O_RDONLY | O_WRONLY | O_RDWR);
    const DWORD rights = way == O_RDONLY   ? GENERIC_READ
                         : way == O_WRONLY ? GENERIC_WRITE
                                           : GENERIC_READ | GENERIC_WRITE;
    DWORD       how = FILE_ATTRIBUTE_NORMAL | FILE_FLAG_BACKUP_SEMANTICS; /* directories too */

    if (flags & O_NOFOLLOW)
        how |= FILE_FLAG_OPEN_REPARSE_POINT;
    return CreateFileW(path, rights, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                       disposition(flags), how, NULL);
}

static int is_directory(const wchar_t *path)
{
    const DWORD a = GetFileAttributesW(path);

    return a != INVALID_FILE_ATTRIBUTES && (a & FILE_ATTRIBUTE_DIRECTORY);
}

/* Windows locks files only. A directory that cannot be written has no such file: then the directory
 * itself, which cannot be locked. */
static HANDLE open_lock(const char *path, const wchar_t *wide)
{
    char    name[PATH_MAX];
    wchar_t wide_name[WIDE_MAX];
    HANDLE  h;

    if (snprintf(name, sizeof name, "%s/" LOCK_NAME, path) >= (int)sizeof name ||
        widen(name, wide_name) != 0)
        return INVALID_HANDLE_VALUE;
    h = CreateFileW(wide_name, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                    NULL, OPEN_ALWAYS, FILE_ATTRIBUTE_HIDDEN, NULL);
    return h != INVALID_HANDLE_VALUE ? h : open_handle(wide, O_RDONLY);
}

int kvi_win_open(const char *path, int flags, ...)
{
    wchar_t wide[WIDE_MAX];
    HANDLE  h;
    int     fd;

    if (widen(path, wide) != 0)
        return -1;
    if (flags & O_DIRECTORY) {
        if (!is_directory(wide)) {
            errno = GetFileAttributesW(wide) == INVALID_FILE_ATTRIBUTES ? ENOENT : ENOTDIR;
            return -1;
        }
        h = open_lock(path, wide);
    } else {
        h = open_handle(wide, flags);
    }
    if (h == INVALID_HANDLE_VALUE) {
        fail();
        if (errno == EACCES && (flags & (O_WRONLY | O_RDWR)) && is_directory(wide))
            errno = EISDIR;
        return -1;
    }
    fd = _open_osfhandle((intptr_t)h, O_BINARY | O_NOINHERIT | (flags & (O_WRONLY | O_RDWR)));
    if (fd < 0) {
        CloseHandle(h);
        errno = EMFILE;
    }
    return fd;
}

static int stat_handle(HANDLE h, struct kvi_win_stat *out)
{
    FILE_STANDARD_INFO info;

    if (GetFileType(h) != FILE_TYPE_DISK) {
        *out = (struct kvi_win_stat){.st_mode = S_IFCHR | 0666, .st_nlink = 1};
        return 0;
    }
    if (!GetFileInformationByHandleEx(h, FileStandardInfo, &info, sizeof info))
        return fail();
    out->st_mode = (info.Directory ? S_IFDIR : S_IFREG) | 0666u;
    out->st_size = (uint64_t)info.EndOfFile.QuadPart;
    out->st_nlink = info.DeletePending ? 0 : info.NumberOfLinks;
    return 0;
}

int kvi_win_fstat(int fd, struct kvi_win_stat *out)
{
    return stat_handle(handle_of(fd), out);
}

int kvi_win_stat(const char *path, struct kvi_win_stat *out)
{
    wchar_t wide[WIDE_MAX];
    HANDLE  h;
    int     rc;

    if (widen(path, wide) != 0)
        return -1;
    h = CreateFileW(wide, FILE_READ_ATTRIBUTES,
                    FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, OPEN_EXISTING,
                    FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (h == INVALID_HANDLE_VALUE)
        return fail();
    rc = stat_handle(h, out);
    CloseHandle(h);
    return rc;
}

int kvi_win_access(const char *path, int mode)
{
    wchar_t wide[WIDE_MAX];

    (void)mode; /* whether it is there */
    if (widen(path, wide) != 0)
        return -1;
    return GetFileAttributesW(wide) == INVALID_FILE_ATTRIBUTES ? fail() : 0;
}

FILE *kvi_win_fopen(const char *path, const char *mode)
{
    wchar_t wide[WIDE_MAX], wide_mode[16];

    if (widen(path, wide) != 0 ||
        MultiByteToWideChar(CP_UTF8, 0, mode, -1, wide_mode, 16) <= 0)
        return NULL;
    return _wfopen(wide, wide_mode);
}

/* ------------------------------------------------------------------ read, write, lock */

ssize_t kvi_win_writev(int fd, const struct iovec *iov, int n)
{
    ssize_t done = 0;

    for (int i = 0; i < n; i++) {
        const DWORD want = iov[i].iov_len < STEP ? (DWORD)iov[i].iov_len : STEP;
        DWORD       got = 0;

        if (!WriteFile(handle_of(fd), iov[i].iov_base, want, &got, NULL))
            return done > 0 ? done : fail();
        done += (ssize_t)got;
        if (got < iov[i].iov_len)
            break;
    }
    return done;
}

ssize_t kvi_win_read(int fd, void *data, size_t n)
{
    DWORD got = 0;

    if (ReadFile(handle_of(fd), data, n < STEP ? (DWORD)n : STEP, &got, NULL))
        return (ssize_t)got;
    return GetLastError() == ERROR_BROKEN_PIPE ? 0 : fail(); /* a pipe's end */
}

ssize_t kvi_win_pread(int fd, void *data, size_t n, off_t at)
{
    OVERLAPPED where = {.Offset = (DWORD)at, .OffsetHigh = (DWORD)((uint64_t)at >> 32)};
    DWORD      got = 0;

    if (ReadFile(handle_of(fd), data, n < STEP ? (DWORD)n : STEP, &got, &where))
        return (ssize_t)got;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : fail();
}

int kvi_win_fsync(int fd)
{
    return FlushFileBuffers(handle_of(fd)) ? 0 : fail();
}

int kvi_win_flock(int fd, int op)
{
    OVERLAPPED  where = {.OffsetHigh = LOCK_AT};
    const DWORD how = (op & LOCK_EX ? LOCKFILE_EXCLUSIVE_LOCK : 0u) |
                      (op & LOCK_NB ? LOCKFILE_FAIL_IMMEDIATELY : 0u);

    return LockFileEx(handle_of(fd), how, 0, 1, 0, &where) ? 0 : fail();
}

/* ------------------------------------------------------------------ names */

int kvi_win_rename(const char *from, const char *to)
{
    wchar_t wide_from[WIDE_MAX], wide_to[WIDE_MAX];

    if (widen(from, wide_from) != 0 || widen(to, wide_to) != 0)
        return -1;
    for (int i = 0;; i++) {
        DWORD code;

        if (MoveFileExW(wide_from, wide_to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH))
            return 0;
        code = GetLastError();
        if (i == RENAME_TRIES || (code != ERROR_ACCESS_DENIED && code != ERROR_SHARING_VIOLATION)) {
            errno = errno_of(code);
            return -1;
        }
        Sleep(RENAME_WAIT_MS);
    }
}

int kvi_win_unlink(const char *path)
{
    wchar_t wide[WIDE_MAX];

    return widen(path, wide) != 0 ? -1 : DeleteFileW(wide) ? 0 : fail();
}

int kvi_win_mkdir(const char *path, int mode)
{
    wchar_t wide[WIDE_MAX];

    (void)mode;
    return widen(path, wide) != 0 ? -1 : CreateDirectoryW(wide, NULL) ? 0 : fail();
}

int kvi_win_rmdir(const char *path)
{
    wchar_t wide[WIDE_MAX];

    return widen(path, wide) != 0 ? -1 : RemoveDirectoryW(wide) ? 0 : fail();
}

struct kvi_win_dir {
    HANDLE                find;
    WIN32_FIND_DATAW      found;
    int                   is_new; /* `found` has not been given out */
    struct kvi_win_dirent entry;
};

kvi_win_dir *kvi_win_opendir(const char *path)
{
    char         pattern[PATH_MAX];
    wchar_t      wide[WIDE_MAX];
    kvi_win_dir *dir;

    if (snprintf(pattern, sizeof pattern, "%s/*", path) >= (int)sizeof pattern) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    if (widen(pattern, wide) != 0 || !(dir = malloc(sizeof *dir)))
        return NULL;
    dir->find = FindFirstFileW(wide, &dir->found);
    dir->is_new = 1;
    if (dir->find != INVALID_HANDLE_VALUE)
        return dir;
    fail();
    free(dir);
    return NULL;
}

struct kvi_win_dirent *kvi_win_readdir(kvi_win_dir *dir)
{
    if (!dir->is_new && !FindNextFileW(dir->find, &dir->found)) {
        if (GetLastError() != ERROR_NO_MORE_FILES)
            fail();
        return NULL;
    }
    dir->is_new = 0;
    narrow(dir->found.cFileName, dir->entry.d_name, sizeof dir->entry.d_name);
    return &dir->entry;
}

int kvi_win_closedir(kvi_win_dir *dir)
{
    FindClose(dir->find);
    free(dir);
    return 0;
}

/* ------------------------------------------------------------------ memory */

void *kvi_win_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    HANDLE map;
    void  *data;

    if (flags & MAP_ANONYMOUS) {
        data = VirtualAlloc(NULL, n, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
        if (!data)
            fail();
        return data ? data : MAP_FAILED;
    }
    if (at || offset != 0 || prot != PROT_READ) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    map = CreateFileMappingW(handle_of(fd), NULL, PAGE_READONLY, 0, 0, NULL);
    if (!map) {
        fail();
        return MAP_FAILED;
    }
    data = MapViewOfFile(map, FILE_MAP_READ, 0, 0, n);
    if (!data)
        fail();
    CloseHandle(map); /* the view keeps it */
    return data ? data : MAP_FAILED;
}

int kvi_win_munmap(void *data, size_t n)
{
    MEMORY_BASIC_INFORMATION info;

    (void)n;
    if (!VirtualQuery(data, &info, sizeof info))
        return fail();
    if (info.Type == MEM_PRIVATE)
        return VirtualFree(data, 0, MEM_RELEASE) ? 0 : fail();
    return UnmapViewOfFile(data) ? 0 : fail();
}

int kvi_win_mprotect(void *data, size_t n, int prot)
{
    const DWORD how = prot & PROT_WRITE  ? PAGE_READWRITE
                      : prot & PROT_READ ? PAGE_READONLY
                                         : PAGE_NOACCESS;
    DWORD       old;

    return VirtualProtect(data, n, how, &old) ? 0 : fail();
}

int kvi_win_memalign(void **out, size_t align, size_t size)
{
    *out = _aligned_malloc(size, align);
    return *out ? 0 : ENOMEM;
}

/* ------------------------------------------------------------------ processors and modules */

long kvi_win_count_cores(void)
{
    DWORD_PTR ours = 0, system = 0;

    if (!GetProcessAffinityMask(GetCurrentProcess(), &ours, &system) || !ours)
        return (long)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS); /* in several groups */
    return (long)__builtin_popcountll(ours);
}

void *kvi_win_dlopen(const char *path, int flags)
{
    wchar_t wide[WIDE_MAX];

    (void)flags;
    return widen(path, wide) != 0 ? NULL : (void *)LoadLibraryW(wide);
}

void *kvi_win_dlsym(void *library, const char *name)
{
    void   *symbol = NULL;
    FARPROC p = GetProcAddress((HMODULE)library, name);

    memcpy(&symbol, &p, sizeof p);
    return symbol;
}

char *kvi_win_dlerror(void)
{
    return NULL;
}

int kvi_win_dladdr(const void *address, Dl_info *out)
{
    (void)address;
    out->dli_fname = "";
    return 1;
}

ssize_t kvi_win_readlink(const char *path, char *out, size_t size)
{
    static const char here = 0;
    wchar_t           wide[WIDE_MAX];
    HMODULE           module;
    DWORD             n;

    (void)path;
    if (!GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS |
                                GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
                            (const wchar_t *)(const void *)&here, &module))
        return fail();
    n = GetModuleFileNameW(module, wide, WIDE_MAX);
    return n > 0 && n < WIDE_MAX ? (ssize_t)narrow(wide, out, size) : -1;
}

/* ------------------------------------------------------------------ what the command needs */

int kvi_win_sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
    if (old)
        *old = (struct sigaction){.sa_handler = SIG_DFL};
    return !act || signal(sig, act->sa_handler) != SIG_ERR ? 0 : -1;
}

char *kvi_win_realpath(const char *path, char *out)
{
    wchar_t wide[WIDE_MAX], full[WIDE_MAX];
    DWORD   n;
    char   *made = out; /* [PATH_MAX] */

    if (kvi_win_access(path, 0) != 0 || widen(path, wide) != 0)
        return NULL;
    n = GetFullPathNameW(wide, WIDE_MAX, full, NULL);
    if (n == 0 || n >= WIDE_MAX || (!made && !(made = malloc(PATH_MAX))))
        return NULL;
    narrow(full, made, PATH_MAX);
    return made;
}

char *kvi_win_strndup(const char *text, size_t n)
{
    const size_t length = strnlen(text, n);
    char        *copy = malloc(length + 1);

    if (!copy)
        return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

char *kvi_win_strsep(char **at, const char *ends)
{
    char *word = *at;

    if (!word)
        return NULL;
    *at = word + strcspn(word, ends);
    if (**at)
        *(*at)++ = '\0';
    else
        *at = NULL;
    return word;
}

/* ------------------------------------------------------------------ what the tests need */

char *kvi_win_mkdtemp(char *path)
{
    char *const end = path + strlen(path) - 6;

    for (uint32_t i = 0; i < 1000; i++) {
        snprintf(end, 7, "%06x", (unsigned)(GetCurrentProcessId() * 1000 + i) & 0xffffffu);
        if (kvi_win_mkdir(path, 0) == 0)
            return path;
        if (errno != EEXIST)
            break;
    }
    return NULL;
}

/* A copy: links want a right that few users have, and wine 8 says that it made one and makes none. */
int kvi_win_symlink(const char *to, const char *path)
{
    wchar_t wide_to[WIDE_MAX], wide[WIDE_MAX];

    if (widen(to, wide_to) != 0 || widen(path, wide) != 0)
        return -1;
    return CopyFileW(wide_to, wide, TRUE) ? 0 : fail();
}

int kvi_win_setenv(const char *name, const char *value, int replace)
{
    return replace || !getenv(name) ? _putenv_s(name, value) : 0;
}

/* The sum of the exact product and c rounded to odd, which a second rounding cannot spoil. */
float kvi_win_fmaf(float a, float b, float c)
{
    const double product = (double)a * (double)b;
    double       sum = product + (double)c;
    const double part = sum - product;
    const double lost = (product - (sum - part)) + ((double)c - part);
    uint64_t     bits;

    memcpy(&bits, &sum, sizeof bits);
    if (isfinite(lost) && lost != 0.0 && !(bits & 1)) {
        bits = (lost > 0) == (sum > 0) ? bits + 1 : bits - 1;
        memcpy(&sum, &bits, sizeof sum);
    }
    return (float)sum;
}
