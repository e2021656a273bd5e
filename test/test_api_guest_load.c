/* A library that is loaded by hand: another copy of it beside the one that the program is linked with, and one that comes and
 * goes. Everything goes through the table of the copy. */
#include "support/guest_tour.h"
#include "support/host.h"
#include "support/process.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

typedef struct copy {
    char             path[256];
    void            *library;
    const kvcsa_api *k;
} copy;

/* Another file with the same bytes: the loader takes it for another library. */
static void copy_make(copy *c)
{
    Dl_info at;
    size_t  n = 0;
    char   *bytes;
    int     fd;
    FILE   *f;

    assert_true(dladdr(kvcsa_get_api(KVCSA_VERSION_NUMBER), &at) != 0);
    bytes = read_file(at.dli_fname, &n);
    snprintf(c->path, sizeof c->path, "/tmp/kvcsa-copy-XXXXXX");
    fd = mkstemp(c->path);
    assert_true(fd >= 0);
    f = fdopen(fd, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(bytes);
}

static void copy_open(copy *c)
{
    const kvcsa_api *(*get_api)(uint32_t version);

    c->library = dlopen(c->path, RTLD_NOW | RTLD_LOCAL);
    if (!c->library)
        fail_msg("%s", dlerror());
    *(void **)&get_api = dlsym(c->library, "kvcsa_get_api");
    assert_non_null(get_api);
    c->k = get_api(KVCSA_VERSION_NUMBER);
    assert_non_null(c->k);
}

static int make(void **state)
{
    copy *c = calloc(1, sizeof *c);

    assert_non_null(c);
    copy_make(c);
    *state = c;
    return 0;
}

static int discard(void **state)
{
    copy *c = *state;

    unlink(c->path);
    free(c);
    return 0;
}

/* Functions of a copy are its own: the loader must not have bound its table, or its calls, to the copy that came first. */
static void assert_functions_are_in(const kvcsa_api *k, const char *file)
{
    for (size_t at = 16; at < k->struct_size; at += sizeof(void *)) {
        void   *function;
        Dl_info info;

        memcpy(&function, (const char *)k + at, sizeof function);
        assert_true(dladdr(function, &info) != 0);
        if (strcmp(info.dli_fname, file))
            fail_msg("the function at byte %zu of the table of %s is in %s", at, file, info.dli_fname);
    }
}

static void assert_tour(tour *t)
{
    if (tour_run(t))
        fail_msg("%s", t->why);
}

static void *tour_in_a_thread(void *t)
{
    return tour_run(t) ? t : NULL;
}

/* Two copies in one process, one after the other, at the same time, and with handles of both alive. */
static void test_behaviour_45_two_copies(void **state)
{
    copy     *c = *state;
    tour      mine = {.k = kvcsa_get_api(KVCSA_VERSION_NUMBER), .model_dir = TINY_DIR, .n_threads = 2};
    tour      theirs = mine;
    pthread_t a, b;
    void     *bad_a, *bad_b;

    copy_open(c);
    assert_ptr_not_equal(c->k, mine.k);
    assert_functions_are_in(c->k, c->path);
    theirs.k = c->k;
    assert_tour(&mine);
    assert_tour(&theirs);
    assert_memory_equal(mine.tokens, theirs.tokens, sizeof mine.tokens);
    memset(theirs.tokens, 0, sizeof theirs.tokens);
    assert_int_equal(pthread_create(&a, NULL, tour_in_a_thread, &mine), 0);
    assert_int_equal(pthread_create(&b, NULL, tour_in_a_thread, &theirs), 0);
    pthread_join(a, &bad_a);
    pthread_join(b, &bad_b);
    assert_null(bad_a);
    assert_null(bad_b);
    assert_memory_equal(mine.tokens, theirs.tokens, sizeof mine.tokens);
    if (tour_begin(&mine) || tour_begin(&theirs))
        fail_msg("%s%s", mine.why, theirs.why);
    tour_release(&mine);
    assert_int_equal(tour_generate(&theirs, theirs.s, theirs.tokens, 3), 0);
    tour_release(&theirs);
    assert_int_equal(dlclose(c->library), 0);
    assert_int_equal(process_mappings(c->path), 0);
    assert_tour(&mine);
}

/* Load, use, release, unload, again and again: no thread, no mapping, no open file, no memory stays. */
static void test_behaviour_47_unload(void **state)
{
    copy        *c = *state;
    const size_t n_files = process_files(), n_threads = process_count("/proc/self/task");
#ifndef TEST_SANITIZED /* whose allocator has other counts */
    size_t n_bytes = 0;
#endif

    for (int i = 0; i < 8; i++) {
        tour t = {.model_dir = TINY_DIR, .n_threads = 3};

        copy_open(c);
        t.k = c->k;
        assert_tour(&t);
        assert_int_equal(process_threads(n_threads), n_threads);
        assert_int_equal(dlclose(c->library), 0);
        assert_int_equal(process_mappings(c->path), 0);
        assert_int_equal(process_files(), n_files);
#ifndef TEST_SANITIZED
        const size_t now = mallinfo2().uordblks;

        if (i > 3 && now != n_bytes)
            fail_msg("round %d: %zu bytes of the heap in use, %zu before", i, now, n_bytes);
        if (i == 3)
            n_bytes = now;
#endif
    }
}

/* The path of a failed load gives everything back too, and so does a library that did nothing. */
static void test_behaviour_47_unload_unused(void **state)
{
    copy        *c = *state;
    const size_t n_threads = process_count("/proc/self/task");
    kvcsa_model *m = NULL;
    kvcsa_error  err;

    copy_open(c);
    assert_int_equal(dlclose(c->library), 0);
    assert_int_equal(process_mappings(c->path), 0);
    copy_open(c);
    assert_int_equal(c->k->model_open("there is no such place", NULL, &m, &err), KVCSA_ERR_IO);
    assert_int_equal(dlclose(c->library), 0);
    assert_int_equal(process_mappings(c->path), 0);
    assert_int_equal(process_threads(n_threads), n_threads);
}

/* glibc counts what a thread keeps in its cache as in use: without it the heap is the same after every round. */
static void restart_without_cache(char **argv)
{
    const char *self = getenv("KVCSA_TEST_SELF"); /* under an emulator: what starts this program */

    if (getenv("GLIBC_TUNABLES"))
        return;
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
    execv(self ? self : "/proc/self/exe", argv);
    perror("execv");
    exit(2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_behaviour_45_two_copies, make, discard),
        cmocka_unit_test_setup_teardown(test_behaviour_47_unload, make, discard),
        cmocka_unit_test_setup_teardown(test_behaviour_47_unload_unused, make, discard),
    };

    (void)argc;
    restart_without_cache(argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
