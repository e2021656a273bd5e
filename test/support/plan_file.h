/* Plans of the small configurations in test/data/configs, for tests of the model room. */
#ifndef TEST_PLAN_FILE_H
#define TEST_PLAN_FILE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "model/model.h"
#include "plan/plan_cost.h"

#define CONFIGS "test/data/configs/"
#define V41 "../v41-flash-config.json" /* from there */

static inline kvcsa_status try_open(const char *path, const char *plan, kvcsa_model **out,
                                    kvcsa_error *err)
{
    const kvcsa_model_params p = {
        .struct_size = sizeof p, .flags = KVCSA_MODEL_PLAN_ONLY, .plan = plan};

    return kvi_model_open(path, &p, out, err);
}

static inline kvcsa_model *open_plan(const char *config, const char *plan)
{
    kvcsa_model *m = NULL;
    kvcsa_error  err;
    char         path[256];

    snprintf(path, sizeof path, CONFIGS "%s", config);
    if (try_open(path, plan, &m, &err) != KVCSA_OK)
        fail_msg("%s with %s: %s", config, plan ? plan : "no changes", err.text);
    return m;
}

static inline kvcsa_cost cost_of(const char *config, const char *plan, uint64_t n)
{
    kvcsa_model *m = open_plan(config, plan);
    kvcsa_cost   c = {.struct_size = sizeof c};

    kvi_plan_cost(&m->plan, n, &c);
    kvi_model_release(m);
    return c;
}

#endif
