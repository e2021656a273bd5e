/* What a test has in the host's memory, in the memory of operators for as long as a run takes: it goes over and comes back. Where
 * the two are one nothing is copied. */
#ifndef TEST_THERE_H
#define TEST_THERE_H

#include "backend/memory.h"

typedef struct there {
    kvi_memory m;
    size_t     n;
    struct {
        void  *there;
        void  *here; /* NULL = does not come back */
        size_t size;
    } held[256];
} there;

/* There, or where it is; what operators write to it comes back. */
void *there_over(there *t, void *here, size_t size);
/* A table of n pointers to pieces of size bytes, all of which come back; filled for the host too. */
uint8_t *const *there_table(there *t, uint8_t *const *here, size_t n, size_t size, uint8_t **table);
void            there_back(there *t);

#endif
