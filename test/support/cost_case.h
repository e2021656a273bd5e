/* For tests of the cost functions: plans alone, and figures that were printed or worked out elsewhere. */
#ifndef COST_CASE_H
#define COST_CASE_H

#include <math.h>

#include "support/host.h"

#define V41_CONFIG "test/data/v41-flash-config.json"
#define CONFIGS "test/data/configs/"
#define ANY_LENGTH "{\"max_tokens\": 1048576}" /* beyond the length that a model was trained for */
#define MI UINT64_C(1048576)

/* |a - b| within half a digit of what was printed. */
#define assert_printed(a, b, half_digit)                                                           \
    do {                                                                                           \
        const double a_ = (a);                                                                     \
        if (!(fabs(a_ - (b)) <= (half_digit)))                                                     \
            fail_msg("%s is %.10g, printed as %.10g", #a, a_, (double)(b));                        \
    } while (0)

#define assert_double(a, b)                                                                        \
    do {                                                                                           \
        const double a_ = (a);                                                                     \
        const double b_ = (b);                                                                     \
        if (!(fabs(a_ - b_) <= 1e-12 * fabs(b_)))                                                  \
            fail_msg("%s is %.17g, %s is %.17g", #a, a_, #b, b_);                                  \
    } while (0)

static inline kvcsa_cost cost_of(const kvcsa_model *m, uint64_t n_tokens)
{
    kvcsa_cost  c = {.struct_size = sizeof c};
    kvcsa_error err;

    assert_ok(kvcsa_model_cost(m, n_tokens, &c, &err));
    return c;
}

/* `call` takes `bad`, which is p after `change`: it is refused, and `emptied` holds of c, which held rubbish before. */
#define REFUSED_BY(call, emptied, change, status, fragment)                                        \
    do {                                                                                           \
        bad = p;                                                                                   \
        change;                                                                                    \
        memset(&c, 0xEE, sizeof c);                                                                \
        c.struct_size = sizeof c;                                                                  \
        assert_fails(call, status, fragment);                                                      \
        assert_true(emptied);                                                                      \
    } while (0)

#endif
