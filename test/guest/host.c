/* A host for check_guest.sh. It prints its tokens into a file, so that nothing but a guest writes to its standard output.
 *
 *   host tour MODEL SNAPSHOT OUT [LOCALE]    the tour of support/guest_tour.h with the library that it is linked with
 *   host two MODEL LIBRARY OUT               linked with the static library: the tour with that, with LIBRARY, and in turns
 *   host other LIBRARY                       calls call_all() of a library that is no guest
 */
#include "support/guest_tour.h"

#include <dlfcn.h>
#include <locale.h>

static int say(const char *path, const tour *t)
{
    FILE *f = fopen(path, "a");

    if (!f)
        return 1;
    for (int i = 0; i < TOUR_TOKENS; i++)
        fprintf(f, "%d ", (int)t->tokens[i]);
    fprintf(f, "\n");
    return fclose(f) != 0;
}

static int failed(const tour *t)
{
    fprintf(stderr, "host: %s\n", t->why);
    return 1;
}

static int make_tour(const char *model, const char *file, const char *out, const char *locale)
{
    tour t = {.k = kvcsa_get_api(KVCSA_VERSION_NUMBER), .model_dir = model, .file = file, .n_threads = 2};

    if (locale && (!setlocale(LC_ALL, locale) || strcmp(localeconv()->decimal_point, ",")))
        return fprintf(stderr, "host: no locale %s with a decimal comma\n", locale), 77;
    return tour_run(&t) ? failed(&t) : say(out, &t);
}

/* Every function of a table lies in the file that it is of. */
static int is_apart(const kvcsa_api *k, const char *library)
{
    for (size_t at = 16; at < k->struct_size; at += sizeof(void *)) {
        void   *function;
        Dl_info info;

        memcpy(&function, (const char *)k + at, sizeof function);
        if (!dladdr(function, &info) || strcmp(info.dli_fname, library))
            return fprintf(stderr, "host: the function at byte %zu is in %s\n", at, info.dli_fname), 0;
    }
    return 1;
}

static int two(const char *model, const char *path, const char *out)
{
    const kvcsa_api *(*get_api)(uint32_t version);
    tour  inside = {.k = kvcsa_get_api(KVCSA_VERSION_NUMBER), .model_dir = model, .n_threads = 2};
    tour  outside = inside;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!library)
        return fprintf(stderr, "host: %s\n", dlerror()), 1;
    *(void **)&get_api = dlsym(library, "kvcsa_get_api");
    outside.k = get_api(KVCSA_VERSION_NUMBER);
    if (!outside.k || outside.k == inside.k || !is_apart(outside.k, path))
        return 1;
    if (tour_begin(&inside))
        return failed(&inside);
    if (tour_begin(&outside))
        return failed(&outside);
    tour_release(&inside);
    if (tour_compare(&outside))
        return failed(&outside);
    tour_release(&outside);
    if (tour_run(&inside))
        return failed(&inside);
    return say(out, &inside) || say(out, &outside) || dlclose(library);
}

static int other(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    void (*call_all)(void);

    if (!library)
        return fprintf(stderr, "host: %s\n", dlerror()), 1;
    *(void **)&call_all = dlsym(library, "call_all");
    call_all();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc >= 5 && !strcmp(argv[1], "tour"))
        return make_tour(argv[2], argv[3], argv[4], argc > 5 ? argv[5] : NULL);
    if (argc == 5 && !strcmp(argv[1], "two"))
        return two(argv[2], argv[3], argv[4]);
    return argc == 3 && !strcmp(argv[1], "other") ? other(argv[2]) : 2;
}
