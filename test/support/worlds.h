/* The host's memory and that of the test device "apart" (test/apart): tests that run in both worlds. */
#ifndef TEST_WORLDS_H
#define TEST_WORLDS_H

#include "backend/memory.h"
#include "support/fault_alloc.h"

enum { ON_HOST, ON_DEVICE, N_WORLDS };

typedef struct world {
    kvi_memory  m;
    kvcsa_error err;
    void       *held[32]; /* what close_world frees */
    size_t      sizes[32];
    size_t      n_held;
} world;

extern fault_alloc            world_host; /* all worlds allocate from it */
extern const kvi_backend_ops *apart;      /* the test device */

/* For a group's setup: opens the plug-in, beside the program. */
int load_apart(void **state);

/* The variables of the test device, NULL = not set. */
world open_world(int which, const char *bytes, const char *fail_after, const char *fail_late);
void  close_world(world *w);
/* A place for size bytes; freed at the end. world_put: with these bytes in it. */
void *world_room(world *w, size_t size);
void *world_put(world *w, const void *from, size_t size);
void  world_get(world *w, void *to, const void *from, size_t size);

/* Fails the test if the call did not answer OK. */
#define must(w, call) world_must(w, call, __LINE__)
void world_must(world *w, kvcsa_status st, int line);

#endif
