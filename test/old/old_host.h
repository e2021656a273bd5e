/* What the programs of older releases share. They are compiled against the header of their release (kvcsa-0.N.h as kvcsa.h),
 * linked against a library that has the symbols of that release and no others, and run with today's library:
 * check_old_new.sh. Each struct has guard bytes behind it: a library that knows a longer one must not write there. */
#ifndef OLD_HOST_H
#define OLD_HOST_H

#include <kvcsa.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 512, GUARD = 0xEE };

#define GUARDED(type)                                                                                                  \
    struct {                                                                                                           \
        type          s;                                                                                               \
        unsigned char behind[GUARD_BYTES];                                                                             \
    }

static void need(int good, const char *what, const kvcsa_error *err)
{
    if (good)
        return;
    fprintf(stderr, "%s: %s\n", what, err ? err->text : "");
    exit(1);
}

#define NEED(x) need((x), #x, NULL)
#define OK(call) need((call) == KVCSA_OK, #call, &err)
#define FAILS(call, want) need((call) == (want) && err.status == (want) && err.text[0], #call, &err)

/* A struct as an old program has it, and whether what is behind it is untouched. */
#define PREPARE(g) memset(&(g), GUARD, sizeof(g))
#define UNTOUCHED(g) need(all_guard((g).behind), "bytes behind " #g, NULL)

static int all_guard(const unsigned char *p)
{
    for (int i = 0; i < GUARD_BYTES; i++)
        if (p[i] != GUARD)
            return 0;
    return 1;
}

static void say_tokens(const char *what, const int32_t *ids, size_t n)
{
    printf("%s:", what);
    for (size_t i = 0; i < n; i++)
        printf(" %d", (int)ids[i]);
    printf("\n");
}

#endif
