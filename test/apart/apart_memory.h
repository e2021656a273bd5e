/* Memory that only the device may touch, while it works: for everybody else its pages fault. */
#ifndef APART_MEMORY_H
#define APART_MEMORY_H

#include "backend/backend.h"
#include "base/status.h"

typedef struct apart_piece { /* one allocation */
    uint8_t *map;            /* pinned: NULL */
    size_t   map_bytes;      /* with the page on either side that always faults */
    uint8_t *data;
    size_t   size;
} apart_piece;

typedef struct apart_memory {
    apart_piece *pieces; /* ascending */
    size_t       n;
    size_t       cap;
    uint64_t     used; /* bytes of the device's memory; not of pinned memory */
    uint64_t     limit;
} apart_memory;

/* A mistake of the host: says what, and ends the program. */
_Noreturn void apart_die(const char *format, ...) KVI_PRINTF(1, 2);
void          *apart_get(size_t size); /* of the host; dies rather than returning NULL */

/* Every new byte is APART_JUNK. NULL = no room. A piece begins at a multiple of 64 and ends less than 64 bytes in front of a page
 * that faults. */
void *apart_alloc(apart_memory *m, size_t size, uint32_t kind);
void  apart_free(apart_memory *m, void *ptr, uint32_t kind); /* dies if ptr is none, or if something around it was written */
void  apart_close(apart_memory *m);                          /* dies if there is a piece left */
#define APART_JUNK 0xee

/* The device works from open to shut. */
void apart_open(const apart_memory *m);
void apart_shut(const apart_memory *m);

/* All of the bytes are in one piece of this kind; a pointer to its end is good for no bytes. */
int apart_holds(const apart_memory *m, const void *ptr, size_t size, uint32_t kind);

#endif
