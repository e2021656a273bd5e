/* Look for the CUDA plug-in in a folder as the library does: load_plugin DIR. Prints what was found or why nothing; 0 = a device is
 * there, 1 = the CPU stays alone. */
#include <stdio.h>

#include "backend/backend_load.h"

int main(int argc, char **argv)
{
    kvi_backend_found found;

    if (argc != 2) {
        fprintf(stderr, "usage: load_plugin DIR\n");
        return 2;
    }
    kvi_backend_load(argv[1], "cuda", NULL, &found);
    printf("%s\n", found.why);
    return found.ops ? 0 : 1;
}
