/* Preloaded into a host (LD_PRELOAD): stands in front of what a guest must not call, notes who did, and passes the call on.
 * The host itself and the C library may call what they like; everything else, libkvcsa and the libraries it brings with it,
 * may not. Notes go to the file that GUEST_TRAP names, one line a call.
 *
 * "write" is trapped for the descriptors 1 and 2 only; formatted output whatever it goes to, unless it is into memory. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_allowed(const void *caller, char *who, size_t cap)
{
    static const char *const may[] = {"libc.so", "ld-linux", "libpthread.so", "guest_trap.so", "libdl.so"};
    Dl_info                  at;
    const char              *name;

    if (!dladdr(caller, &at) || !at.dli_fname)
        return 1;
    name = strrchr(at.dli_fname, '/');
    name = name ? name + 1 : at.dli_fname;
    for (size_t i = 0; i < sizeof may / sizeof *may; i++)
        if (!strncmp(name, may[i], strlen(may[i])))
            return 1;
    snprintf(who, cap, "%s", name);
    return !strstr(name, ".so"); /* the program */
}

static ssize_t (*real_write)(int fd, const void *data, size_t n);
static const char *trap_file;

static void *next(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);

    if (!f)
        _Exit(99);
    return f;
}

__attribute__((constructor)) static void prepare(void)
{
    char *(*real_getenv)(const char *) = NULL;

    *(void **)&real_getenv = next("getenv");
    *(void **)&real_write = next("write");
    trap_file = real_getenv("GUEST_TRAP");
}

static void note(const void *caller, const char *what, const char *detail)
{
    char who[256], line[600];
    int  fd, n, saved = errno;

    if (!trap_file || is_allowed(caller, who, sizeof who))
        return;
    n = snprintf(line, sizeof line, "%s calls %s(%s)\n", who, what, detail ? detail : "");
    fd = open(trap_file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && real_write(fd, line, (size_t)n) != n)
        _Exit(98);
    if (fd >= 0)
        close(fd);
    errno = saved;
}

#define CALLER __builtin_return_address(0)
#define TRAP(ret, name, params, args, detail)                                                                          \
    ret name params;                                                                                                   \
    ret name params                                                                                                    \
    {                                                                                                                  \
        static ret(*real) params;                                                                                      \
                                                                                                                       \
        if (!real)                                                                                                     \
            *(void **)&real = next(#name);                                                                             \
        note(CALLER, #name, detail);                                                                                   \
        return real args;                                                                                              \
    }
#define TRAP_NORETURN(name, params, args)                                                                              \
    void name params                                                                                                   \
    {                                                                                                                  \
        void (*real) params;                                                                                           \
                                                                                                                       \
        note(CALLER, #name, NULL);                                                                                     \
        *(void **)&real = next(#name);                                                                                 \
        real args;                                                                                                     \
        __builtin_unreachable();                                                                                       \
    }

/* environment */
TRAP(char *, getenv, (const char *name), (name), name)
TRAP(char *, secure_getenv, (const char *name), (name), name)
TRAP(int, setenv, (const char *name, const char *value, int over), (name, value, over), name)
TRAP(int, unsetenv, (const char *name), (name), name)
TRAP(int, putenv, (char *text), (text), text)
TRAP(int, clearenv, (void), (), NULL)
/* locale, floating point, place */
TRAP(char *, setlocale, (int category, const char *name), (category, name), name)
TRAP(locale_t, uselocale, (locale_t l), (l), NULL)
TRAP(int, fesetround, (int mode), (mode), NULL)
TRAP(int, feenableexcept, (int mask), (mask), NULL)
TRAP(int, chdir, (const char *path), (path), path)
TRAP(int, fchdir, (int fd), (fd), NULL)
TRAP(unsigned, umask, (unsigned mask), (mask), NULL)
TRAP(int, atexit, (void (*f)(void)), (f), NULL)
TRAP(int, setrlimit, (int what, const void *limit), (what, limit), NULL)
TRAP(int, setpriority, (int which, int who, int nice), (which, who, nice), NULL)
TRAP(int, sched_setaffinity, (int pid, size_t n, const void *set), (pid, n, set), NULL)
TRAP(int, mallopt, (int what, int value), (what, value), NULL)
TRAP(void *, sbrk, (long n), (n), NULL)
/* signals, processes, the end */
TRAP(int, sigaction, (int number, const struct sigaction *a, struct sigaction *old), (number, a, old), NULL)
TRAP(__sighandler_t, signal, (int number, __sighandler_t f), (number, f), NULL)
TRAP(int, sigaltstack, (const stack_t *a, stack_t *old), (a, old), NULL)
TRAP(int, sigprocmask, (int how, const sigset_t *set, sigset_t *old), (how, set, old), NULL)
TRAP(int, raise, (int number), (number), NULL)
TRAP(int, kill, (int pid, int number), (pid, number), NULL)
TRAP(int, fork, (void), (), NULL)
TRAP(int, system, (const char *line), (line), line)
TRAP(int, execve, (const char *path, char *const *argv, char *const *env), (path, argv, env), path)
TRAP_NORETURN(exit, (int rc), (rc))
TRAP_NORETURN(_exit, (int rc), (rc))
TRAP_NORETURN(abort, (void), ())
/* output */
TRAP(int, puts, (const char *text), (text), text)
TRAP(int, fputs, (const char *text, FILE *f), (text, f), text)
TRAP(int, putchar, (int c), (c), NULL)
TRAP(int, fputc, (int c, FILE *f), (c, f), NULL)
TRAP(size_t, fwrite, (const void *data, size_t size, size_t n, FILE *f), (data, size, n, f), NULL)
TRAP(int, vprintf, (const char *format, va_list args), (format, args), format)
TRAP(int, vfprintf, (FILE *f, const char *format, va_list args), (f, format, args), format)
TRAP(int, vdprintf, (int fd, const char *format, va_list args), (fd, format, args), format)
TRAP(void, perror, (const char *text), (text), text)
TRAP(void, vsyslog, (int priority, const char *format, va_list args), (priority, format, args), format)

#define TRAP_FORMAT(name, param, arg, real)                                                                            \
    int name(param const char *format, ...);                                                                           \
    int name(param const char *format, ...)                                                                            \
    {                                                                                                                  \
        va_list args;                                                                                                  \
        int     n;                                                                                                     \
                                                                                                                       \
        note(CALLER, #name, format);                                                                                   \
        va_start(args, format);                                                                                        \
        n = real(arg format, args);                                                                                    \
        va_end(args);                                                                                                  \
        return n;                                                                                                      \
    }
#define COMMA ,
TRAP_FORMAT(printf, , , vprintf)
TRAP_FORMAT(fprintf, FILE *f COMMA, f COMMA, vfprintf)
TRAP_FORMAT(dprintf, int fd COMMA, fd COMMA, vdprintf)
/* as _FORTIFY_SOURCE has them */
#define TRAP_CHECKED(name, param, arg, real)                                                                           \
    int name(param int flag, const char *format, ...);                                                                 \
    int name(param int flag, const char *format, ...)                                                                  \
    {                                                                                                                  \
        va_list args;                                                                                                  \
        int     n;                                                                                                     \
                                                                                                                       \
        (void)flag;                                                                                                    \
        note(CALLER, #name, format);                                                                                   \
        va_start(args, format);                                                                                        \
        n = real(arg format, args);                                                                                    \
        va_end(args);                                                                                                  \
        return n;                                                                                                      \
    }
TRAP_CHECKED(__printf_chk, , , vprintf)
TRAP_CHECKED(__fprintf_chk, FILE *f COMMA, f COMMA, vfprintf)
TRAP_CHECKED(__dprintf_chk, int fd COMMA, fd COMMA, vdprintf)

ssize_t write(int fd, const void *data, size_t n)
{
    if (!real_write)
        *(void **)&real_write = next("write");
    if (fd == 1 || fd == 2)
        note(CALLER, "write", fd == 1 ? "1" : "2");
    return real_write(fd, data, n);
}

ssize_t writev(int fd, const struct iovec *parts, int n)
{
    static ssize_t (*real)(int, const struct iovec *, int);

    if (!real)
        *(void **)&real = next("writev");
    if (fd == 1 || fd == 2)
        note(CALLER, "writev", fd == 1 ? "1" : "2");
    return real(fd, parts, n);
}
