#include "support/worlds.h"

#include "backend/backend_load.h"
#include "support/test_backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

fault_alloc            world_host;
const kvi_backend_ops *apart;

void world_must(world *w, kvcsa_status st, int line)
{
    if (st != KVCSA_OK)
        fail_msg("line %d: status %d: %s", line, (int)st, w->err.text);
}

world open_world(int which, const char *bytes, const char *fail_after, const char *fail_late)
{
    const char *const       names[3] = {"APART_BYTES", "APART_FAIL_AFTER", "APART_FAIL_LATE"};
    const char *const       values[3] = {bytes, fail_after, fail_late};
    const kvi_device_params p = {.allocator = &world_host.hook, .cpu_flags = kvi_cpu_flags(0)};
    world                   w = {.m = {.allocator = &world_host.hook}};

    fault_alloc_init(&world_host); /* also if a test has failed */
    for (int i = 0; i < 3; i++)
        assert_int_equal(values[i] ? setenv(names[i], values[i], 1) : unsetenv(names[i]), 0);
    w.m.ops = which == ON_DEVICE ? apart : kvi_cpu_backend(p.cpu_flags);
    must(&w, w.m.ops->device_open(&p, &w.m.dev, &w.err));
    assert_int_equal(kvi_memory_is_apart(&w.m), which == ON_DEVICE);
    return w;
}

void close_world(world *w)
{
    while (w->n_held) {
        w->n_held--;
        kvi_memory_free(&w->m, w->held[w->n_held], w->sizes[w->n_held]);
    }
    w->m.ops->device_close(w->m.dev);
    assert_true(fault_alloc_is_clean(&world_host));
}

void *world_room(world *w, size_t size)
{
    void *p = NULL;

    assert_true(w->n_held < 32);
    must(w, kvi_memory_alloc(&w->m, size, &p, &w->err));
    assert_int_equal((uintptr_t)p % 64, 0);
    w->held[w->n_held] = p;
    w->sizes[w->n_held++] = size;
    return p;
}

void *world_put(world *w, const void *from, size_t size)
{
    void *p = world_room(w, size);

    must(w, kvi_memory_put(&w->m, p, from, size, &w->err));
    return p;
}

void world_get(world *w, void *to, const void *from, size_t size)
{
    memset(to, 0x11, size);
    must(w, kvi_memory_get(&w->m, to, from, size, &w->err));
}

int load_apart(void **state)
{
    kvi_backend_found found;

    (void)state;
    kvi_backend_load(test_backend_beside("apart"), "cuda", NULL, &found);
    if (!found.ops) {
        print_error("%s\n", found.why);
        return -1;
    }
    apart = found.ops;
    assert_int_equal(apart->numerics, kvi_cpu_backend(kvi_cpu_flags(0))->numerics);
    return 0;
}
