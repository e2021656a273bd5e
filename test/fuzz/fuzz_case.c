/* The readers of the tests themselves: case files, and the safetensors files of golden data. They run on files from outside the
 * tree when somebody checks another implementation, so they must stand any bytes. */
#include "support/cases.h"
#include "support/st_io.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* What the header promises about an accepted file. */
static void check_cases(const case_list *list)
{
    for (uint32_t i = 0; i < list->n; i++) {
        const case_item *c = &list->items[i];

        if (!c->name[0] || !c->n_ids || !c->n_steps)
            abort();
        for (uint32_t s = 0; s < c->n_steps; s++) {
            const case_step *t = &c->steps[s];

            if (!t->n || cases_step_start(c, s) + t->n > c->n_ids || (t->has_hit && t->hit % 2))
                abort();
            for (uint32_t r = 0; r < t->n_rows; r++)
                if (t->rows[r] >= t->n)
                    abort();
        }
        for (uint32_t t = 0; t < c->n_ids; t++)
            if (c->ids[t] < 0)
                abort();
    }
}

static void check_tensors(const st_file *f)
{
    volatile uint8_t sum = 0;

    for (size_t i = 0; i < st_count(f); i++) {
        const st_tensor *t = st_at(f, i);

        if (st_find(f, t->name) != t || (uintptr_t)t->data % 16)
            abort();
        for (size_t k = 0; k < t->n_bytes; k++)
            sum = (uint8_t)(sum + ((const uint8_t *)t->data)[k]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    char      err[128] = "";
    case_list list;
    st_file  *f;

    if (cases_parse((const char *)data, n_bytes, &list, err, sizeof err) == 0)
        check_cases(&list);
    else if (!err[0] || list.items || list.n)
        abort();
    cases_free(&list);
    if ((f = st_parse(data, n_bytes, err, sizeof err)))
        check_tensors(f);
    st_close(f);
    return 0;
}
