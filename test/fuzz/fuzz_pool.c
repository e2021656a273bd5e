/* Operations on the pool against its naive model. The first byte chooses the settings, the others
 * are the choices of the model; it ends where they end. */
#include "support/pool_model.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum { MAX_STEPS = 3000 }; /* a step walks over everything */

typedef struct input {
    const uint8_t *at, *end;
} input;

static uint32_t below(void *user, uint32_t n)
{
    input *in = user;

    return in->at < in->end ? *in->at++ % n : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static const uint64_t budgets[4] = {1000, 2000, 4000, 8000};
    static pool_model     m;
    input                 in = {data, data + n_bytes};
    const uint32_t        settings = below(&in, 64);
    pool_model_params     params = {.budget = budgets[settings & 3],
                                    .flags = settings >> 2 & 3,
                                    .evict = settings >> 4 & 1,
                                    .weak_hash = (int)(settings >> 5 & 1),
                                    .below = below,
                                    .user = &in};
    int                   bad = pool_model_init(&m, &params);

    for (int i = 0; i < MAX_STEPS && !bad && in.at < in.end; i++)
        bad = pool_model_step(&m);
    if (bad || pool_model_finish(&m)) {
        fprintf(stderr, "%s\n", m.fault);
        abort();
    }
    return 0;
}
