#include "apart/apart_memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void apart_die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("apart: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

void *apart_get(size_t size)
{
    void *p = malloc(size ? size : 1);

    if (!p)
        apart_die("no memory of the host");
    return p;
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Number of pieces that begin at or below ptr. */
static size_t count_below(const apart_memory *m, const void *ptr)
{
    size_t low = 0, high = m->n;

    while (low < high) {
        const size_t mid = (low + high) / 2;

        if ((uintptr_t)m->pieces[mid].data <= (uintptr_t)ptr)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static const apart_piece *find(const apart_memory *m, const void *ptr, uint32_t kind)
{
    const size_t       n = count_below(m, ptr);
    const apart_piece *p = n ? &m->pieces[n - 1] : NULL;

    return p && (uintptr_t)ptr - (uintptr_t)p->data <= p->size && (p->map == NULL) == (kind == KVI_MEMORY_PINNED) ? p : NULL;
}

int apart_holds(const apart_memory *m, const void *ptr, size_t size, uint32_t kind)
{
    const apart_piece *p = find(m, ptr, kind);

    return p && size <= p->size - ((uintptr_t)ptr - (uintptr_t)p->data);
}

static void protect(const apart_piece *p, int how)
{
    const size_t page = page_bytes();

    if (p->map && mprotect(p->map + page, p->map_bytes - 2 * page, how) != 0)
        apart_die("mprotect of %zu bytes", p->size);
}

void apart_open(const apart_memory *m)
{
    for (size_t i = 0; i < m->n; i++)
        protect(&m->pieces[i], PROT_READ | PROT_WRITE);
}

void apart_shut(const apart_memory *m)
{
    for (size_t i = 0; i < m->n; i++)
        protect(&m->pieces[i], PROT_NONE);
}

static apart_piece make_pinned(size_t size)
{
    apart_piece p = {.size = size, .data = aligned_alloc(64, (size + 64) / 64 * 64)};

    if (p.data)
        memset(p.data, APART_JUNK, size);
    return p;
}

static apart_piece make_piece(size_t size)
{
    const size_t page = page_bytes();
    const size_t inside = (size + page) / page * page; /* one byte at least */
    apart_piece  p = {.size = size, .map_bytes = inside + 2 * page};

    p.map = mmap(NULL, p.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p.map == MAP_FAILED)
        return (apart_piece){0};
    p.data = p.map + page + inside - (size + 63) / 64 * 64;
    protect(&p, PROT_READ | PROT_WRITE);
    memset(p.map + page, APART_JUNK, inside);
    protect(&p, PROT_NONE);
    return p;
}

void *apart_alloc(apart_memory *m, size_t size, uint32_t kind)
{
    apart_piece p;
    size_t      at;

    if (kind == KVI_MEMORY_DEVICE && (size > m->limit || m->used > m->limit - size))
        return NULL;
    p = kind == KVI_MEMORY_DEVICE ? make_piece(size) : make_pinned(size);
    if (!p.data)
        return NULL;
    if (m->n == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 64;
        if (!(m->pieces = realloc(m->pieces, m->cap * sizeof *m->pieces)))
            apart_die("no memory of the host");
    }
    at = count_below(m, p.data);
    memmove(m->pieces + at + 1, m->pieces + at, (m->n - at) * sizeof *m->pieces);
    m->pieces[at] = p;
    m->n++;
    m->used += p.map ? size : 0;
    return p.data;
}

/* Bytes of the pages around the piece: nobody has written them. */
static void check_around(const apart_piece *p)
{
    const size_t   page = page_bytes();
    const uint8_t *end = p->map + p->map_bytes - page;

    protect(p, PROT_READ);
    for (const uint8_t *b = p->map + page; b < end; b++) {
        if (b == p->data)
            b += p->size;
        if (b < end && *b != APART_JUNK)
            apart_die("a piece of %zu bytes was written %s it", p->size, b < p->data ? "in front of" : "behind");
    }
}

static void give_back(const apart_piece *p)
{
    if (p->map) {
        check_around(p);
        munmap(p->map, p->map_bytes);
    } else {
        free(p->data);
    }
}

void apart_free(apart_memory *m, void *ptr, uint32_t kind)
{
    const apart_piece *p = find(m, ptr, kind);
    size_t             at;

    if (!p || p->data != ptr)
        apart_die("%p is freed, which was not allocated or not as this kind of memory", ptr);
    at = (size_t)(p - m->pieces);
    m->used -= p->map ? p->size : 0;
    give_back(p);
    m->n--;
    memmove(m->pieces + at, m->pieces + at + 1, (m->n - at) * sizeof *m->pieces);
}

void apart_close(apart_memory *m)
{
    if (m->n)
        apart_die("%zu pieces are left, the first of %zu bytes", m->n, m->pieces[0].size);
    free(m->pieces);
    *m = (apart_memory){0};
}
