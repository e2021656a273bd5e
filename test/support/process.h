/* What a test can see of its own process: threads, mappings of a file, open files. */
#ifndef TEST_PROCESS_H
#define TEST_PROCESS_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif

static inline size_t process_count(const char *folder)
{
    DIR                 *d = opendir(folder);
    const struct dirent *e;
    size_t               n = 0;

    while (d && (e = readdir(d)))
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

static inline size_t process_files(void)
{
    return process_count("/proc/self/fd");
}

/* A thread that was joined is still listed until the kernel has buried it: look again for up to a second. */
static inline size_t process_threads(size_t hoped_for)
{
    size_t n = process_count("/proc/self/task");

    for (int i = 0; i < 1000 && n > hoped_for; i++) {
        usleep(1000);
        n = process_count("/proc/self/task");
    }
    return n;
}

static inline size_t process_mappings(const char *file)
{
    FILE  *f = fopen("/proc/self/maps", "r");
    char   line[4600];
    size_t n = 0;

    while (f && fgets(line, sizeof line, f))
        n += strstr(line, file) != NULL;
    if (f)
        fclose(f);
    return n;
}

#endif
