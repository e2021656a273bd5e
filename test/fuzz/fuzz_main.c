/* Replays stored inputs through a fuzz target with any compiler: every argument is a file, or a folder whose files are all
 * used in the order of their names. The empty input is always tried. An input is handed over in a block of exactly its size, so that
 * the address sanitizer sees one byte too many. With clang, libFuzzer takes the place of this file (make fuzz). */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void die(const char *what, const char *path)
{
    fprintf(stderr, "%s: %s\n", what, path);
    exit(2);
}

static void replay_file(const char *path, long n_bytes)
{
    uint8_t *data = malloc(n_bytes > 0 ? (size_t)n_bytes : 1);
    FILE    *file = fopen(path, "rb");

    if (!data || !file || fread(data, 1, (size_t)n_bytes, file) != (size_t)n_bytes)
        die("cannot read", path);
    fclose(file);
    /* Said first: when the target dies, this is the line that names the input. */
    printf("%s: %ld bytes\n", path, n_bytes);
    fflush(stdout);
    LLVMFuzzerTestOneInput(data, (size_t)n_bytes);
    free(data);
}

static size_t replay(const char *path)
{
    struct stat     st;
    struct dirent **names = NULL;
    size_t          n_replayed = 0;

    if (stat(path, &st) != 0)
        die("cannot find", path);
    if (!S_ISDIR(st.st_mode)) {
        replay_file(path, (long)st.st_size);
        return 1;
    }
    int n = scandir(path, &names, NULL, alphasort);

    if (n < 0)
        die("cannot list", path);
    for (int i = 0; i < n; i++) {
        char inner[4096];

        if (names[i]->d_name[0] != '.') {
            if (snprintf(inner, sizeof inner, "%s/%s", path, names[i]->d_name) >= (int)sizeof inner)
                die("path too long in", path);
            n_replayed += replay(inner);
        }
        free(names[i]);
    }
    free(names);
    return n_replayed;
}

int main(int argc, char **argv)
{
    uint8_t *nothing = calloc(1, 1);
    size_t   n_replayed = 0;

    if (!nothing)
        die("out of memory for", "the empty input");
    LLVMFuzzerTestOneInput(nothing, 0);
    free(nothing);
    for (int i = 1; i < argc; i++)
        n_replayed += replay(argv[i]);
    printf("%zu inputs replayed, and the empty one\n", n_replayed);
    return 0;
}
