#include "support/fenced.h"

#include "support/op_check.h"

#include <sys/mman.h>
#include <unistd.h>

typedef struct fence {
    uint8_t *map;
    float   *data;
    size_t   bytes; /* of the map */
} fence;

static fence  fences[64]; /* a stack */
static size_t n_fences;

float *fenced(size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t bytes = (n * sizeof(float) + page - 1) / page * page;
    fence       *f = &fences[n_fences++];

    assert_true(n_fences < sizeof fences / sizeof *fences);
    f->bytes = bytes + 2 * page;
    f->map = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f->map != MAP_FAILED);
    memset(f->map + page, GUARD, bytes);
    assert_int_equal(mprotect(f->map, page, PROT_NONE), 0);
    assert_int_equal(mprotect(f->map + page + bytes, page, PROT_NONE), 0);
    return f->data = (float *)(void *)(f->map + page + bytes - n * sizeof(float));
}

float *fenced_random(size_t n, float size)
{
    float *p = fenced(n);

    fill(p, n, size);
    return p;
}

size_t fence_mark(void)
{
    return n_fences;
}

void free_fenced(size_t mark)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    while (n_fences > mark) {
        const fence *f = &fences[--n_fences];

        for (const uint8_t *b = f->map + page; b < (const uint8_t *)(const void *)f->data; b++)
            assert_int_equal(*b, GUARD);
        munmap(f->map, f->bytes);
    }
}
