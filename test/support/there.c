#include "support/there.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void *bring(there *t, const void *from, void *here, size_t size)
{
    void *p = NULL;

    assert_true(t->n < sizeof t->held / sizeof t->held[0]);
    assert_int_equal(kvi_memory_alloc(&t->m, size, &p, NULL), KVCSA_OK);
    assert_int_equal(kvi_memory_put(&t->m, p, from, size, NULL), KVCSA_OK);
    t->held[t->n].there = p;
    t->held[t->n].here = here;
    t->held[t->n++].size = size;
    return p;
}

void *there_over(there *t, void *here, size_t size)
{
    return kvi_memory_is_apart(&t->m) ? bring(t, here, here, size) : here;
}

uint8_t *const *there_table(there *t, uint8_t *const *here, size_t n, size_t size, uint8_t **table)
{
    for (size_t i = 0; i < n; i++)
        table[i] = there_over(t, here[i], size);
    return kvi_memory_is_apart(&t->m) ? bring(t, table, NULL, n * sizeof *table) : table;
}

void there_back(there *t)
{
    while (t->n) {
        t->n--;
        if (t->held[t->n].here)
            assert_int_equal(kvi_memory_get(&t->m, t->held[t->n].here, t->held[t->n].there, t->held[t->n].size, NULL), KVCSA_OK);
        kvi_memory_free(&t->m, t->held[t->n].there, t->held[t->n].size);
    }
}
