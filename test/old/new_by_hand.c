/* A host of today that loads the library by hand and asks for the table: it is there, or the answer says what is too old.
 *
 *   new_by_hand LIBRARY     0 = the table is there; 3 = the library has none; 4 = it is older than this program
 */
#include <kvcsa.h>

#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    const kvcsa_api *(*get_api)(uint32_t version);
    const kvcsa_api *api;
    void            *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int              rc = 0;

    if (!library)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    *(void **)&get_api = dlsym(library, "kvcsa_get_api");
    if (!get_api) {
        printf("no table: the library is older than 0.4\n");
        rc = 3;
    } else if (!(api = get_api(KVCSA_VERSION_NUMBER))) {
        printf("the library is older than this program\n");
        rc = 4;
    } else {
        printf("table of %zu bytes, version %s\n", api->struct_size, api->version_string());
    }
    dlclose(library);
    return rc;
}
